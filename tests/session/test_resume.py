"""A session that goes on after its process has ended: what is there again, and what a crash left out."""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import pytest
import trio
from hypothesis import strategies as st
from support import FullDisk, MemoryFile, open_session, settings, sharded, wait_quiet
from support.agents import WAIT, family, starts
from support.crashes import check_damaged, check_same_again, check_went_on, left
from support.eventful import eventful
from support.examples import some
from support.gate import Gate, begin, finish
from support.killed import departed, killed
from support.replays import replayed
from support.trees import TREE_TOOLS, Tree, TreeModel, tree_settings, trees
from support.users import Acts, Replies
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.errors import SessionError
from chain.journal.reading import Reading
from chain.session.restored_state import events_of_journal
from chain.session.resume import MAX_PAST, load_journal

RULES = """
rules:
  - {when: {user: hello}, times: 1, text: I add it., tools: [{name: plan_add_task, input: {task: check the SKU}}]}
  - {text: The answer.}
"""
ANSWER = "rules: [{text: Gone on.}]"

NOTE = "[The program ended here]"
_LIVE_ONLY = events.TextDelta | events.ThinkingDelta | events.UsageReport | events.Init


async def test_what_was_is_there_again() -> None:
    async with open_session(RULES) as session:
        await session.run("hello")
        await session.run("again")
        told = [type(event) for event in session.events if not isinstance(event, _LIVE_ONLY)]
        data, plan, usage = session.file.data, session.chain.plan.tasks, session.chain.state.usage
    file, read = left(data)
    async with open_session(ANSWER, file=file, resume=read) as session:
        resumed = session.chain.resumed
        assert resumed is not None
        assert [type(event) for event in resumed.past if not isinstance(event, _LIVE_ONLY)] == told
        assert resumed.changes == []
        assert (session.chain.plan.tasks, session.chain.state.usage) == (plan, usage)
        await session.run("third")
        assert session.sent().splitlines()[0] == "user: hello"
        assert session.sent().splitlines()[-2:] == ["assistant: The answer.", "user: third"]
        check_went_on(session, len(data.splitlines()))


WAITING = {
    "lines": (["use B", "context: it is late"], [""], ["USER INTERRUPTION: use B", "[USER ADDED] it is late"]),
    "an urgent line": (["!use B"], [""], ["USER INTERRUPTION: use B"]),
    "a follow-up": (["then: Do more"], ["Do more"], ["Do more"]),
    "follow-ups among lines": (
        ["use B", "then: Do more", "then: Do most"],
        ["Do more", "Do most"],
        ["Do more", "USER INTERRUPTION: use B", "Do most"],
    ),
    "a todo line": (["todo: add buy milk"], [""], ["(Done: task 1 added: buy milk)"]),
}
"""What waits after a crash, the query of each run that follows, and what the model is told."""


@pytest.mark.parametrize("has_crashed", [True, False])
@pytest.mark.parametrize("case", WAITING)
async def test_lines_that_waited_start_a_run_when_the_user_wants_it(case: str, has_crashed: bool) -> None:
    lines, queries, told = WAITING[case]
    file, read = left(await killed(*lines) if has_crashed else (await departed(*lines)).file.data)
    async with open_session(ANSWER, file=file, interactive=True, resume=read) as session:
        assert [accepted.line.text for accepted in session.chain.lines.waiting] == lines
        assert {accepted.line.urgency for accepted in session.chain.lines.waiting} == {"next"}
        await wait_all_tasks_blocked()
        assert session.model.requests == [], "they are the user's to send"
        assert session.chain.runs.begin_waiting()
        assert not session.chain.runs.begin_waiting(), "it is active already"
        await session.chain.wait_idle()
        assert [run.query for run in session.of(events.RunStarted)] == queries
        text = session.sent()
        places = [text.index(each) for each in told]
        assert places == sorted(places)
        assert all(entered.point == "A" for entered in session.of(events.UserInterruption))
        check_went_on(session, len(read.past))


async def test_a_session_that_was_left_has_an_ended_run_no_line_that_came_back_and_the_draft() -> None:
    session = await departed("use B", draft="half a\nthought")
    assert [e.status for e in session.of(events.Result)] == ["interrupted"]
    assert {e.state for e in session.of(events.Receipt)} == {"delivered", "refused"}
    assert replayed(session).is_same
    file, read = left(session.file.data)
    async with open_session(ANSWER, file=file, interactive=True, resume=read) as session:
        resumed = session.chain.resumed
        assert resumed is not None
        assert (resumed.draft, resumed.was_cut) == ("half a\nthought", False)
        await session.run("half a\nthought")
    assert left(session.file.data)[1].state.draft == "", "what was sent is no draft any more"


@pytest.mark.parametrize(("ago", "waited"), [(3600.0, 3600.0), (-3600.0, 0.0)])
async def test_a_line_has_waited_since_it_was_accepted(ago: float, waited: float, mock_clock: MockClock) -> None:
    rows = [json.loads(row) for row in (await killed("use B")).splitlines()]
    for row in rows:
        row["time"] = time.time() - ago
    file, read = left(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    async with open_session(ANSWER, file=file, interactive=True, resume=read) as session:
        session.chain.runs.begin_waiting()
        await session.chain.wait_idle()
        (receipt,) = (each for each in session.of(events.Receipt) if each.id == "L2")
        (entered,) = session.of(events.UserInterruption)
    assert receipt.waited_s == entered.waited_s == pytest.approx(waited, rel=0.1)


async def test_a_line_whose_receipt_is_missing_had_waited_until_it_was_delivered(mock_clock: MockClock) -> None:
    file, read = left(b"".join([row async for row in delivered_after(5.0)]))
    async with open_session(ANSWER, file=file, resume=read) as session:
        (receipt,) = session.chain.lines.receipts
    assert receipt.state == "delivered"
    assert receipt.waited_s == pytest.approx(5.0)


async def delivered_after(seconds: float) -> AsyncIterator[bytes]:
    """The journal of a program that was killed before it had written that a line is delivered."""
    async with open_session(ANSWER) as session:
        await session.run("Count them")
    rows = map(json.loads, session.file.data.splitlines())
    for row in itertools.takewhile(lambda row: row["type"] != "receipt", rows):
        yield json.dumps({**row, "time": 1.0 + seconds if row["type"] == "message" else 1.0}).encode() + b"\n"


async def test_a_call_that_ran_is_told_as_interrupted_and_those_after_it_as_skipped() -> None:
    file, read = left(await killed())
    async with open_session(ANSWER, file=file, resume=read) as session:
        assert session.chain.resumed is not None
        assert any("1 tool running" in change for change in session.chain.resumed.changes)
        await session.run("and now?")
        results = [m for m in session.model.requests[0].messages if m.results]
        assert ["[Interrupted: stopped" in r.text for r in results[-1].results][:1] == [True]
        assert NOTE in session.sent()
        check_went_on(session, 0)


async def test_what_is_shown_after_a_crash_is_on_the_disk() -> None:
    file, read = left(await killed("use B"))
    async with open_session(ANSWER, file=file, resume=read) as session:
        assert session.chain.lines.waiting
        assert file.synced == file.data


async def test_a_session_whose_disk_is_broken_is_not_opened() -> None:
    file, read = left(await killed("use B"))
    disk = FullDisk()
    disk.data, disk.broken = file.data, True
    with pytest.raises(SessionError):
        async with open_session(ANSWER, file=disk, resume=read):
            pass


async def test_what_is_dropped_after_a_crash_is_not_sent() -> None:
    file, read = left(await killed("use B", "use C"))
    async with open_session(ANSWER, file=file, interactive=True, resume=read) as session:
        session.chain.lines.drop("L2")
        await session.run("go on")
        assert "use B" not in session.sent()
        assert "use C" in session.sent()
        check_went_on(session, 0)


async def accepted_at_once() -> bytes:
    """A session in which more lines are accepted before the first step of their run."""
    async with open_session(ANSWER, interactive=True) as session:
        for query in ("one", "then: more", "todo: add buy milk"):
            session.chain.submit(query)
        await wait_quiet(session)
        session.chain.submit("todo: add buy bread")
        session.chain.submit("status")
        session.chain.submit("two")
        session.chain.lines.drop(session.chain.submit("not this").id)
        session.chain.submit("!and three")
        await wait_quiet(session)
    file, read = left(session.file.data)
    async with open_session(ANSWER, file=file, resume=read) as session:
        await session.run("four")
    return session.file.data


JOURNALS: dict[str, Callable[[], bytes]] = {
    "lines that wait": lambda: trio.run(killed, "use B", "then: Do more"),
    "lines at the start": lambda: trio.run(accepted_at_once),
    "agents and questions": lambda: eventful().journal,
}


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", JOURNALS)
def test_wherever_it_was_killed_all_that_is_told_has_its_end(name: str) -> None:
    async def check(data: bytes) -> None:
        file, read = left(data)
        async with open_session(ANSWER, file=file, resume=read, interactive=True, use=tree_settings()) as session:
            assert session.chain.resumed is not None
            past = session.chain.resumed.past
            waiting = {accepted.id for accepted in session.chain.lines.waiting}
        check_ends(past)
        told = {event.id for event in past if isinstance(event, events.LineQueued)}
        assert waiting <= told, f"{waiting - told} wait, and nobody hears of it"

    rows = JOURNALS[name]().splitlines(keepends=True)
    for end in some(range(len(rows) + 1), every=10):
        trio.run(check, b"".join(rows[:end]))


def check_ends(past: Sequence[events.Event]) -> None:
    """Each run and each agent's work that is told begins and ends, and nothing of an agent is told outside of a run."""
    is_running, at_work = False, set[str]()
    for event in past:
        match event:
            case events.RunStarted():
                assert not is_running
                is_running = True
            case events.Result():
                assert is_running
                is_running = False
            case events.AgentStarted(name=name):
                assert name not in at_work
                at_work.add(name)
            case events.AgentEnded(name=name):
                at_work.remove(name)
            case events.IterationStarted() | events.Reply() | events.ToolResult() | events.UserInterruption():
                assert is_running
            case _:
                pass
    assert not is_running
    assert not at_work


REFUSES = "rules: [{when: {tool: wait}, text: No., stop_reason: refusal}, {text: Wait., tools: [{name: wait}]}]"


@pytest.mark.parametrize(
    ("lines", "was_cut", "returned", "waiting"),
    [(["use B"], True, [], ["use B"]), (["use B", "stop"], False, ["use B"], [])],
)
async def test_a_run_was_cut_by_the_end_of_its_program_unless_the_user_had_stopped_it(
    lines: list[str], was_cut: bool, returned: list[str], waiting: list[str]
) -> None:
    data = await killed(*lines)
    for query, *said in (("", was_cut, returned, waiting), ("again", was_cut, [], waiting), ("", False, [], [])):
        file, read = left(data)
        async with open_session(ANSWER, file=file, interactive=True, resume=read) as session:
            resumed = session.chain.resumed
            assert resumed is not None
            texts = (
                [accepted.line.text for accepted in each] for each in (resumed.returned, session.chain.lines.waiting)
            )
            assert [resumed.was_cut, *texts] == said
            if query:
                await session.run(query)
        data = session.file.data


SAME = """
rules:
  - {when: {user: worse}, text: No., stop_reason: refusal}
  - {when: {user: look, step: 1}, tools: [{name: plan_list, id: a}]}
  - {text: "Yes."}
"""


@pytest.mark.parametrize("said", ["hello", "worse", "look", "todo: add x, hello", "todo: add x, hello, worse"])
@pytest.mark.parametrize("next_said", ["third", "worse", "look"])
async def test_what_follows_is_as_if_the_program_had_not_ended(said: str, next_said: str) -> None:
    async with open_session(SAME) as session:
        for line in ("first", *said.split(", ")):
            session.chain.submit(line)
            await session.chain.wait_idle()
        data, asked, heard = session.file.data, len(session.model.requests), len(session.events)
        await session.run(next_said)
    file, read = left(data)
    async with open_session(SAME, file=file, resume=read) as again:
        await again.run(next_said)
    requests = [(request.messages, request.tail) for request in session.model.requests[asked:]]
    assert [(request.messages, request.tail) for request in again.model.requests] == requests
    receipts = [(each.id, each.state) for each in session.events[heard:] if isinstance(each, events.Receipt)]
    assert [(each.id, each.state) for each in again.of(events.Receipt)] == receipts


async def test_the_lines_of_a_refusal_that_a_crash_cut_short_come_back() -> None:
    gate = Gate()
    async with open_session(REFUSES, tools=[gate.tool], interactive=True) as session:
        await begin(session, gate, "use B", "todo: add buy milk", "use C")
        await finish(session, gate)
        rows = session.file.data.splitlines(keepends=True)
    types = [record["type"] for record in session.records]
    for end in range(types.index("withdrawn") + 1, len(rows) + 1):
        file, read = left(b"".join(rows[:end]))
        async with open_session(ANSWER, file=file, resume=read, interactive=True) as session:
            assert session.chain.resumed is not None
            returned = [accepted.line.text for accepted in session.chain.resumed.returned]
            # With its result the run has come to its end, and with it the lines to their user.
            assert returned == ([] if types[end - 1] == "result" else ["Do the task", "use B", "use C"])


@pytest.mark.parametrize(("runs", "has_earlier"), [(10, False), (150, True)])
async def test_that_more_happened_than_is_told_again_is_known(runs: int, has_earlier: bool) -> None:
    async with open_session(ANSWER) as session:
        for n in range(runs):
            await session.run(f"query {n}")
    file, read = left(session.file.data)
    async with open_session(ANSWER, file=file, resume=read) as session:
        resumed = session.chain.resumed
        assert resumed is not None
        assert resumed.has_earlier == has_earlier
        assert len(resumed.past) <= MAX_PAST
        queries = [event.query for event in resumed.past if isinstance(event, events.RunStarted)]
        assert (queries[0] == "query 0") != has_earlier
        assert queries[-1] == f"query {runs - 1}"


async def finished(count: int, kind: str) -> bytes:
    """A session in which so many agents of a kind did their work, one after the other."""
    calls = [{"name": kind, "input": {"task": f"part {n}"}} for n in range(1, count + 1)]
    rules = {"rules": [{"when": {"user": "Do the task", "step": 1}, "tools": calls}, {"text": "Done."}]}
    use = settings(agents=True, kinds=KINDS, files=KIND_FILES, max_running=count)
    async with open_session(json.dumps(rules), use=use) as session:
        await session.run("Do the task")
        assert len(session.of(events.AgentEnded)) == count
    return session.file.data


KINDS = json.dumps({"reviewer": {"description": "Reviews", "prompt": "reviewer.yaml"}})
KIND_FILES = json.dumps({"reviewer.yaml": "messages: [{role: system, content: You review.}]"})


async def test_of_the_agents_that_had_finished_the_last_ones_can_be_asked() -> None:
    file, read = left(await finished(5, "explore"))
    use = settings(agents=True, max_kept=2)
    async with open_session(ANSWER, use=use, file=file, resume=read) as session:
        assert [view.name for view in session.chain.agents] == ["main", "explore-4", "explore-5"]


async def test_an_agent_that_was_at_work_is_told_that_the_program_ended() -> None:
    async with family() as agents:
        await agents.begin([starts("agent", [WAIT])])
        file, read = left(agents.session.file.data)
        await agents.finish()
    async with open_session(ANSWER, use=settings(agents=True), file=file, resume=read):
        pass
    again = load_journal(file.data.splitlines(keepends=True)).state.agents["agent-1"]
    assert again.history.conversation.messages[-1].text.startswith(NOTE)


async def test_agents_whose_kind_is_gone_are_said_to_be() -> None:
    data = await finished(2, "reviewer")
    for kinds, says in ((KINDS, []), ("{}", ["2 agents of the kind reviewer can no longer be asked: "])):
        file, read = left(data)
        use = settings(agents=True, kinds=kinds, files=KIND_FILES)
        async with open_session(ANSWER, use=use, file=file, resume=read) as session:
            assert session.chain.resumed is not None
            said = [change for change in session.chain.resumed.changes if "reviewer can" in change]
            assert [change[: len(start)] for change, start in zip(said, says, strict=True)] == says


COMPACTS = """
rules:
  - {when: {user: shortened}, text: Short.}
  - {when: {user: '^add', step: 1}, text: I add it., tools: [{name: plan_add_task, input: {task: check the SKU}}]}
  - {text: The answer.}
"""


async def compacted() -> bytes:
    """The journal of a session with tool calls before and after a compaction."""
    async with open_session(COMPACTS, interactive=True) as session:
        for query in ("add one", "hello " * 2_000):
            await session.run(query)
        session.chain.runs.compact()
        await session.chain.wait_idle()
        await session.run("add two")
    assert any(record["type"] == "compacted" for record in session.records)
    return session.file.data


@pytest.mark.parametrize("made", [partial(killed, "use B", "todo: add buy milk"), compacted])
async def test_a_record_that_is_lost_or_doubled_is_named_and_costs_only_itself(
    made: Callable[[], Awaitable[bytes]],
) -> None:
    rows = (await made()).splitlines(keepends=True)
    for n in range(len(rows) - 1):
        check_damaged([*rows[:n], *rows[n + 1 :]])
        check_damaged([*rows[:n], b"\0" * (len(rows[n]) - 1) + b"\n", *rows[n + 1 :]])
        check_damaged([*rows[:n], rows[n], *rows[n:]])
    for n in range(len(rows) - 2):
        check_damaged([*rows[:n], *rows[n + 2 :]])


async def test_where_a_record_is_lost_no_call_is_told_as_running_for_ever() -> None:
    rows = (await compacted()).splitlines(keepends=True)
    for n in range(1, len(rows) - 1):
        told = list(events_of_journal(Reading([*rows[:n], *rows[n + 1 :]])))
        begun = {event.id for event in told if isinstance(event, events.ToolCall)}
        assert begun <= {event.id for event in told if isinstance(event, events.ToolResult)}


async def test_what_is_not_read_is_said_and_the_rest_goes_on() -> None:
    rows = (await killed("use B")).splitlines(keepends=True)
    # Of a type that only an event has: no record of it makes one.
    foreign = json.dumps({"type": "notice", "seq": len(rows) + 1, "time": 1.0, "message": "hello"}).encode() + b"\n"
    file, read = left(b"".join([*rows, foreign, b"half a rec\0\n", b"\xff\n"]))
    assert len(read.complaints) == 1
    async with open_session(ANSWER, file=file, resume=read) as session:
        assert session.chain.resumed is not None
        assert any("cannot be read" in change for change in session.chain.resumed.changes)
        assert not [event for event in session.chain.resumed.past if isinstance(event, events.Notice)]
        await session.run("and now?")
    assert foreign in session.file.data


async def test_a_journal_tells_the_end_of_a_run_that_has_no_record_of_it() -> None:
    rows = (await killed()).splitlines(keepends=True)
    message = {"role": "user", "content": [{"type": "text", "text": "use B"}]}
    # It came in as the second iteration began, before the record of its request.
    entered = {"type": "message", "seq": len(rows) + 1, "time": 1.0, "message": message, "agent": "main"}
    entered |= {"parent_id": "root", "line_ids": ["L2"], "point": "N", "iteration": 2}
    again = [*rows, json.dumps(entered).encode() + b"\n", session_row(len(rows) + 2)]
    told = list(events_of_journal(Reading(again)))
    assert [(each.iteration, each.max_iterations) for each in told if isinstance(each, events.IterationStarted)] == [
        (1, 20)
    ]
    interruption, result, notice = told[-3:]
    assert isinstance(interruption, events.UserInterruption)
    assert isinstance(result, events.Result)
    assert isinstance(notice, events.Notice)
    assert (interruption.iteration, result.status, result.iterations) == (2, "interrupted", 2)


def message_row(seq: int, role: str, *content: dict[str, Any]) -> bytes:
    row = {"type": "message", "seq": seq, "time": 0, "message": {"role": role, "content": content}}
    return json.dumps({**row, "agent": "main", "parent_id": "root"}).encode() + b"\n"


SAID = {"type": "text", "text": "x"}
CALLS = [{"type": "tool_use", "id": id, "name": "look", "input": {}} for id in ("a", "b")]
RESULTS = [{"type": "tool_result", "tool_use_id": id, "content": f"of {id}"} for id in ("a", "b")]
LOST = "[This could not be read from the session's journal]"


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([("assistant", SAID)], [LOST, "x"]),
        ([("user", SAID), ("assistant", SAID), ("assistant", SAID)], ["x", "x", LOST, "x"]),
        ([("user", SAID), ("user", *RESULTS), ("assistant", SAID)], ["x", "x"]),
        ([("user", SAID), ("assistant", *CALLS), ("user", SAID)], ["x", "", f"{LOST} {LOST}", "x"]),
        ([("user", SAID), ("assistant", *CALLS), ("user", RESULTS[1])], ["x", "", f"{LOST} of b"]),
        ([("user", SAID), ("user", {"type": "tool_use"}), ("user", {"text": "x"})], ["x"]),
    ],
)
def test_what_a_lost_record_leaves_without_its_other_half_is_fitted_and_named(
    rows: list[tuple[Any, ...]], told: list[str]
) -> None:
    read = load_journal(message_row(n, *row) for n, row in enumerate(rows, 1))
    messages = read.state.main.history.conversation.messages
    assert [m.text or " ".join(result.text for result in m.results) for m in messages] == told
    assert "records of the journal refer to missing ones" in read.complaints[-1]


whats = st.sampled_from(["use A ‹›", "!use B ‹›", "!!use C ‹›", "todo: add one ‹›", "then: do more ‹›", "stop"])
moments = st.lists(st.tuples(st.integers(3, 60), whats), max_size=6)


@sharded(150, trees, moments, st.floats(0, 1), st.floats(0, 1))
def test_whatever_a_tree_was_doing_it_can_be_gone_on_with(
    tree: Tree, at: list[tuple[int, str]], where: float, again: float
) -> None:
    async def play() -> None:
        use = tree_settings()
        async with (
            open_session(TreeModel(tree), tools=TREE_TOOLS, use=use, file=MemoryFile()) as session,
            trio.open_nursery() as nursery,
        ):
            session.chain.listen(Acts(session, at))
            session.chain.listen(Replies(session, [(0.0, "y")] * 6, nursery))
            with session.chain.answering(), trio.move_on_after(1e5):
                session.chain.submit("task main")
                await wait_quiet(session)
            nursery.cancel_scope.cancel()
        data, kept = session.file.data, 0
        # The second crash comes while what the first left out is written.
        for end in (where, again):
            file, read = left(data[: kept + int((len(data) - kept) * end)])
            kept = len(file.data)
            async with open_session(TreeModel(tree), tools=TREE_TOOLS, use=use, file=file, resume=read) as resumed:
                data = resumed.file.data
        file, read = left(data)
        async with open_session(TreeModel(tree, "other"), tools=TREE_TOOLS, use=use, file=file, resume=read) as last:
            last.chain.submit("and the next")
            await wait_quiet(last)
            check_went_on(last, len(data.splitlines()))
        check_same_again(last)

    random.seed(0)
    trio.run(play, clock=MockClock(autojump_threshold=0))


def session_row(seq: int, **fields: Any) -> bytes:
    row = {"type": "session", "seq": seq, "time": 1.0, "id": "test", "version": "0.1.0", "model": "unnamed"}
    return json.dumps({**row, "workspace": "", **fields}).encode() + b"\n"


async def test_tools_of_servers_that_are_gone_are_so_from_the_next_run_on() -> None:
    tool = {"name": "mcp__h__echo", "description": "Echo.", "input_schema": {"type": "object"}, "server": "h"}
    offered = {"type": "server_tools", "seq": 2, "time": 1.0, "tools": [tool]}
    file, read = left(session_row(1) + json.dumps(offered).encode() + b"\n")
    async with open_session(ANSWER, file=file, resume=read) as session:
        await session.run("and now?")
    assert [record["tools"] for record in session.records if record["type"] == "server_tools"] == [[tool], []]


CHANGES = {
    "another model": ({"model": "large"}, "The model is now rules; it was large."),
    "tools that are gone": ({"tools": ["plan_list", "fly"]}, "Tools removed since then: fly."),
    "new tools": ({"tools": ["plan_list"]}, "Tools added since then: plan_add_task"),
    "a newer version": ({"version": "9.1.0"}, "The session was last written by chain 9.1.0"),
    "a version that nobody wrote": ({"version": "9" * 5_000}, "The session was last written by chain 99999"),
}
"""What a session was opened with, and what is said of it when it is resumed."""


async def test_numbers_that_nobody_wrote_do_not_count() -> None:
    forged = {"type": "question", "seq": 2, "time": 1.0, "agent": "main", "iteration": 1, "id": "Q" + "9" * 5_000}
    question = (
        json.dumps({**forged, "kind": "choice", "text": "which?", "tool_call_id": "t", "name": "ask"}).encode() + b"\n"
    )
    file, read = left(session_row(1) + question)
    assert not read.complaints
    assert read.state.asked.count == 0
    async with open_session(ANSWER, file=file, resume=read) as session:
        assert session.chain.resumed is not None
        assert session.chain.resumed.changes == ["The model is now rules; it was unnamed."]
        assert (await session.run("and now?")).status == "done"


@pytest.mark.parametrize("case", CHANGES)
async def test_what_is_no_longer_as_it_was_is_said(case: str) -> None:
    fields, says = CHANGES[case]
    file, read = left(session_row(1, **fields))
    async with open_session(ANSWER, file=file, resume=read) as session:
        assert session.chain.resumed is not None
        said = [change for change in session.chain.resumed.changes if not change.startswith("unnamed answered")]
        assert [change for change in said if says in change], said
        assert (await session.run("and now?")).status == "done"


async def test_lines_that_are_returned_as_a_session_is_resumed_are_no_failure_of_what_follows() -> None:
    file, read = left(await killed("use B", "stop"))
    async with open_session(ANSWER, file=file, resume=read) as session:
        assert session.state("L2") == "returned"
        assert [r.id for r in (await session.run("and now?")).receipts] == ["L4"]
        assert session.chain.runs.exit_code() == 0
