"""A session that is resumed after its process ended: what is restored, and what a crash prevented."""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import pytest
import trio
from hypothesis import strategies as st
from support import FullDisk, MemoryFile, open_session, settings, sharded, wait_quiet
from support.agents import WAIT, family, start
from support.crashes import ANSWER, check_conversations, check_needs_no_repair, check_resumed, load_crashed, reopened
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
from chain.session import resume
from chain.session.restored_state import events_of_journal
from chain.session.resume import load_journal

RULES = """
rules:
  - {when: {user: hello}, times: 1, text: I add it., tools: [{name: plan_add_task, input: {task: check the SKU}}]}
  - {text: The answer.}
"""

NOTE = "[The program ended here]"
_LIVE_ONLY = events.TextDelta | events.ThinkingDelta | events.UsageReport | events.Init


async def test_history_plan_and_usage_are_restored() -> None:
    async with open_session(RULES) as session:
        await session.run("hello")
        await session.run("again")
        shown = [type(event) for event in session.events if not isinstance(event, _LIVE_ONLY)]
        data, plan, usage = session.file.data, session.chain.plan.tasks, session.chain.state.usage
    async with reopened(data) as session:
        assert [type(event) for event in session.resumed.past if not isinstance(event, _LIVE_ONLY)] == shown
        assert session.resumed.changes == []
        assert (session.chain.plan.tasks, session.chain.state.usage) == (plan, usage)
        await session.run("third")
        assert session.sent().splitlines()[0] == "user: hello"
        assert session.sent().splitlines()[-2:] == ["assistant: The answer.", "user: third"]
        check_resumed(session)


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
"""The lines that wait after a crash, the query of each run that follows, and texts that the model gets."""


@pytest.mark.parametrize("has_crashed", [True, False])
@pytest.mark.parametrize("case", WAITING)
async def test_waiting_lines_start_a_run_on_request(case: str, has_crashed: bool) -> None:
    lines, queries, texts = WAITING[case]
    data = await killed(*lines) if has_crashed else (await departed(*lines)).file.data
    async with reopened(data, interactive=True) as session:
        assert session.file.synced == session.file.data
        assert [accepted.line.text for accepted in session.chain.lines.waiting] == lines
        assert {accepted.line.urgency for accepted in session.chain.lines.waiting} == {"next"}
        await wait_all_tasks_blocked()
        assert session.model.requests == []
        assert session.chain.runs.start_waiting()
        assert not session.chain.runs.start_waiting(), "it is active already"
        await session.chain.wait_idle()
        assert [run.query for run in session.of(events.RunStarted)] == queries
        places = [session.sent().index(each) for each in texts]
        assert places == sorted(places)
        assert all(entered.point == "A" for entered in session.of(events.UserInterruption))
        check_resumed(session)


async def test_leaving_ends_the_run_and_stores_the_draft() -> None:
    session = await departed("use B", draft="half a\nthought")
    assert [e.status for e in session.of(events.Result)] == ["interrupted"]
    assert {e.state for e in session.of(events.Receipt)} == {"delivered", "refused"}
    assert replayed(session).is_same
    async with reopened(session.file.data, interactive=True) as session:
        assert (session.resumed.draft, session.resumed.was_cut) == ("half a\nthought", False)
        await session.run("half a\nthought")
    assert load_crashed(session.file.data)[1].state.draft == "", "a draft that was sent is gone"


@pytest.mark.parametrize(("ago", "waited"), [(3600.0, 3600.0), (-3600.0, 0.0)])
async def test_waiting_counts_from_acceptance(ago: float, waited: float, mock_clock: MockClock) -> None:
    rows = [json.loads(row) | {"time": time.time() - ago} for row in (await killed("use B")).splitlines()]
    async with reopened(b"".join(json.dumps(row).encode() + b"\n" for row in rows), interactive=True) as session:
        session.chain.runs.start_waiting()
        await session.chain.wait_idle()
        [receipt] = (each for each in session.of(events.Receipt) if each.id == "L2")
        [entered] = session.of(events.UserInterruption)
    assert receipt.waited_s == entered.waited_s == pytest.approx(waited, rel=0.1)


async def test_a_missing_receipt_counts_until_delivery(mock_clock: MockClock) -> None:
    async with open_session(ANSWER) as session:
        await session.run("Count them")
    before = itertools.takewhile(lambda row: row["type"] != "receipt", map(json.loads, session.file.data.splitlines()))
    rows = [{**row, "time": 6.0 if row["type"] == "message" else 1.0} for row in before]
    async with reopened(b"".join(json.dumps(row).encode() + b"\n" for row in rows)) as session:
        [receipt] = session.chain.lines.receipts
    assert receipt.state == "delivered"
    assert receipt.waited_s == pytest.approx(5.0)


async def test_a_plan_command_is_not_carried_out_twice() -> None:
    async with open_session(ANSWER, interactive=True) as session:
        session.chain.submit("todo: add buy milk")
        await session.chain.wait_idle()
    before, _, _ = session.file.data.partition(b'{"type":"receipt"')
    async with reopened(before) as session:
        assert session.state("L1") == "handled"
        assert [task.text for task in session.chain.plan.tasks] == ["buy milk"]


async def test_a_call_cut_by_a_crash_is_interrupted() -> None:
    async with reopened(await killed()) as session:
        assert any("1 tool running" in change for change in session.resumed.changes)
        await session.run("and now?")
        [result] = (result for message in session.model.requests[0].messages for result in message.results)
        assert result.text.startswith("[Interrupted: stopped")
        assert NOTE in session.sent()


async def test_a_session_on_a_broken_disk_is_refused() -> None:
    file, read = load_crashed(await killed("use B"))
    disk = FullDisk()
    disk.data, disk.broken = file.data, True
    with pytest.raises(SessionError):
        async with open_session(ANSWER, file=disk, resume=read):
            pytest.fail("it was opened")


JOURNALS: dict[str, Callable[[], bytes]] = {
    "lines that wait": lambda: trio.run(killed, "use B", "then: Do more"),
    "agents and questions": lambda: eventful().journal,
}


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", JOURNALS)
def test_every_prefix_of_a_journal_shows_complete_runs(name: str) -> None:
    async def check(data: bytes) -> None:
        async with reopened(data, interactive=True, use=tree_settings()) as session:
            past = session.resumed.past
            waiting = {accepted.id for accepted in session.chain.lines.waiting}
        check_ends(past)
        assert waiting <= {event.id for event in past if isinstance(event, events.LineQueued)}

    rows = JOURNALS[name]().splitlines(keepends=True)
    for end in some(range(len(rows) + 1), every=10):
        trio.run(check, b"".join(rows[:end]))


def check_ends(past: Sequence[events.Event]) -> None:
    """Each run and each agent starts and ends, and events of agents are within runs."""
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
async def test_a_run_was_cut_unless_stopped(
    lines: list[str], was_cut: bool, returned: list[str], waiting: list[str]
) -> None:
    data = await killed(*lines)
    for query, *expected in (("", was_cut, returned, waiting), ("again", was_cut, [], waiting), ("", False, [], [])):
        async with reopened(data, interactive=True) as session:
            lists = (session.resumed.returned, session.chain.lines.waiting)
            texts = ([accepted.line.text for accepted in each] for each in lists)
            assert [session.resumed.was_cut, *texts] == expected
            if query:
                await session.run(query)
        data = session.file.data


async def test_lines_returned_at_resuming_are_no_failure_later() -> None:
    async with reopened(await killed("use B", "stop")) as session:
        assert session.state("L2") == "returned"
        assert [r.id for r in (await session.run("and now?")).receipts] == ["L4"]
        assert session.chain.runs.exit_code() == 0


SAME = """
rules:
  - {when: {user: worse}, text: No., stop_reason: refusal}
  - {when: {user: look, step: 1}, tools: [{name: plan_list, id: a}]}
  - {text: "Yes."}
"""


@pytest.mark.parametrize("said", ["hello", "worse", "look", "todo: add x, hello", "todo: add x, hello, worse"])
@pytest.mark.parametrize("next_said", ["third", "worse", "look"])
async def test_the_next_run_ignores_a_restart(said: str, next_said: str) -> None:
    async with open_session(SAME) as session:
        for line in ("first", *said.split(", ")):
            session.chain.submit(line)
            await session.chain.wait_idle()
        data, requests, heard = session.file.data, len(session.model.requests), len(session.events)
        await session.run(next_said)
    async with reopened(data, SAME) as again:
        await again.run(next_said)
    expected = [(request.messages, request.tail) for request in session.model.requests[requests:]]
    assert [(request.messages, request.tail) for request in again.model.requests] == expected
    receipts = [(each.id, each.state) for each in session.events[heard:] if isinstance(each, events.Receipt)]
    assert [(each.id, each.state) for each in again.of(events.Receipt)] == receipts


async def test_a_crash_in_a_refusal_returns_its_lines() -> None:
    gate = Gate()
    async with open_session(REFUSES, tools=[gate.tool], interactive=True) as session:
        await begin(session, gate, "use B", "todo: add buy milk", "use C")
        await finish(session, gate)
        rows = session.file.data.splitlines(keepends=True)
    types = [record["type"] for record in session.records]
    for end in range(types.index("withdrawn") + 1, len(rows) + 1):
        async with reopened(b"".join(rows[:end]), interactive=True) as session:
            returned = [accepted.line.text for accepted in session.resumed.returned]
            # The result was the last record: the run had ended, and the user had the lines.
            assert returned == ([] if types[end - 1] == "result" else ["Do the task", "use B", "use C"])


@pytest.mark.parametrize(("runs", "has_earlier"), [(2, False), (20, True)])
async def test_only_the_latest_events_are_shown_again(
    runs: int, has_earlier: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resume, "MAX_PAST", 50)
    async with open_session(ANSWER) as session:
        for n in range(runs):
            await session.run(f"query {n}")
    async with reopened(session.file.data) as session:
        assert session.resumed.has_earlier == has_earlier
        assert len(session.resumed.past) <= 50
        queries = [event.query for event in session.resumed.past if isinstance(event, events.RunStarted)]
        assert (queries[0] == "query 0") != has_earlier
        assert queries[-1] == f"query {runs - 1}"


async def finished(count: int, kind: str) -> bytes:
    """A session in which agents of a kind did their work, one after the other."""
    calls = [{"name": kind, "input": {"task": f"part {n}"}} for n in range(1, count + 1)]
    rules = {"rules": [{"when": {"user": "Do the task", "step": 1}, "tools": calls}, {"text": "Done."}]}
    use = settings(agents=True, kinds=KINDS, files=KIND_FILES, max_running=count)
    async with open_session(json.dumps(rules), use=use) as session:
        await session.run("Do the task")
        assert len(session.of(events.AgentEnded)) == count
    return session.file.data


KINDS = json.dumps({"reviewer": {"description": "Reviews", "prompt": "reviewer.yaml"}})
KIND_FILES = json.dumps({"reviewer.yaml": "messages: [{role: system, content: You review.}]"})


async def test_the_latest_finished_agents_can_be_asked() -> None:
    async with reopened(await finished(5, "explore"), use=settings(agents=True, max_kept=2)) as session:
        assert [view.name for view in session.chain.agents] == ["main", "explore-4", "explore-5"]


async def test_an_agent_at_work_gets_the_note() -> None:
    async with family() as agents:
        await agents.begin([start("agent", [WAIT])])
        data = agents.session.file.data
        await agents.finish()
    async with reopened(data, use=settings(agents=True)) as session:
        pass
    agent = load_crashed(session.file.data)[1].state.agents["agent-1"]
    assert agent.history.conversation.messages[-1].text.startswith(NOTE)


async def test_agents_of_a_removed_kind_are_named() -> None:
    data = await finished(2, "reviewer")
    for kinds, says in ((KINDS, []), ("{}", ["2 agents of the kind reviewer can no longer be asked: "])):
        async with reopened(data, use=settings(agents=True, kinds=kinds, files=KIND_FILES)) as session:
            found = [change for change in session.resumed.changes if "reviewer can" in change]
            assert [change[: len(start)] for change, start in zip(found, says, strict=True)] == says


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


@pytest.mark.parametrize(
    "made", [partial(killed, "use B", "todo: add buy milk"), compacted], ids=["killed", "compacted"]
)
async def test_a_lost_or_doubled_record_costs_only_itself(made: Callable[[], Awaitable[bytes]]) -> None:
    rows = (await made()).splitlines(keepends=True)

    def check(damaged: list[bytes]) -> None:
        read = load_journal(damaged)
        check_conversations(read)
        assert "record" in read.complaints[0]
        calls = {event.id for event in read.past if isinstance(event, events.ToolCall)}
        results = {event.id for event in read.past if isinstance(event, events.ToolResult)}
        assert calls <= results or made is not compacted, "no call is shown as running for ever"

    for n in range(len(rows) - 1):
        check([*rows[:n], *rows[n + 1 :]])
        check([*rows[:n], b"\0" * (len(rows[n]) - 1) + b"\n", *rows[n + 1 :]])
        check([*rows[:n], rows[n], *rows[n:]])
    for n in range(len(rows) - 2):
        check([*rows[:n], *rows[n + 2 :]])


async def test_an_unreadable_row_is_skipped_and_reported() -> None:
    rows = (await killed("use B")).splitlines(keepends=True)
    foreign = json.dumps({"type": "notice", "seq": len(rows) + 1, "time": 1.0, "message": "hello"}).encode() + b"\n"
    async with reopened(b"".join([*rows, foreign, b"half a rec\0\n", b"\xff\n"])) as session:
        [fault] = [change for change in session.resumed.changes if "journal" in change]
        assert "cannot be read" in fault
        assert not [event for event in session.resumed.past if isinstance(event, events.Notice)], (
            "no record is a notice"
        )
        await session.run("and now?")
    assert foreign in session.file.data


async def test_a_run_without_a_recorded_end_is_ended() -> None:
    rows = (await killed()).splitlines(keepends=True)
    message = {"role": "user", "content": [{"type": "text", "text": "use B"}]}
    # It came in as the second iteration began, before the record of its request.
    entered = {"type": "message", "seq": len(rows) + 1, "time": 1.0, "message": message, "agent": "main"}
    entered |= {"parent_id": "root", "line_ids": ["L2"], "point": "N", "iteration": 2}
    shown = list(events_of_journal(Reading([*rows, json.dumps(entered).encode() + b"\n", session_row(len(rows) + 2)])))
    iterations = [each for each in shown if isinstance(each, events.IterationStarted)]
    assert [(each.iteration, each.max_iterations) for each in iterations] == [(1, 20)]
    interruption, result, notice = shown[-3:]
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
    ("rows", "texts"),
    [
        ([("assistant", SAID)], [LOST, "x"]),
        ([("user", SAID), ("assistant", SAID), ("assistant", SAID)], ["x", "x", LOST, "x"]),
        ([("user", SAID), ("user", *RESULTS), ("assistant", SAID)], ["x", "x"]),
        ([("user", SAID), ("assistant", *CALLS), ("user", SAID)], ["x", "", f"{LOST} {LOST}", "x"]),
        ([("user", SAID), ("assistant", *CALLS), ("user", RESULTS[1])], ["x", "", f"{LOST} of b"]),
        ([("user", SAID), ("user", {"type": "tool_use"}), ("user", {"text": "x"})], ["x"]),
    ],
)
def test_half_of_a_pair_is_repaired_and_reported(rows: list[tuple[Any, ...]], texts: list[str]) -> None:
    read = load_journal(message_row(n, *row) for n, row in enumerate(rows, 1))
    messages = read.state.main.history.conversation.messages
    assert [m.text or " ".join(result.text for result in m.results) for m in messages] == texts
    assert "records of the journal refer to missing records" in read.complaints[-1]


whats = st.sampled_from(["use A ‹›", "!use B ‹›", "!!use C ‹›", "todo: add one ‹›", "then: do more ‹›", "stop"])
moments = st.lists(st.tuples(st.integers(3, 60), whats), max_size=6)


@sharded(150, trees, moments, st.floats(0, 1), st.floats(0, 1))
def test_a_tree_resumes_after_two_crashes(tree: Tree, at: list[tuple[int, str]], where: float, again: float) -> None:
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
        # The second crash comes while the records that the first prevented are written.
        for end in (where, again):
            data = data[: kept + int((len(data) - kept) * end)]
            kept = len(data)
            async with reopened(data, TreeModel(tree), tools=TREE_TOOLS, use=use) as resumed:
                pass
            data = resumed.file.data
        async with reopened(data, TreeModel(tree, "other"), tools=TREE_TOOLS, use=use) as last:
            last.chain.submit("and the next")
            await wait_quiet(last)
            check_resumed(last)
        check_needs_no_repair(last)

    random.seed(0)
    trio.run(play, clock=MockClock(autojump_threshold=0))


def session_row(seq: int, **fields: Any) -> bytes:
    row = {"type": "session", "seq": seq, "time": 1.0, "id": "test", "version": "0.1.0", "model": "unnamed"}
    return json.dumps({**row, "workspace": "", **fields}).encode() + b"\n"


async def test_removed_server_tools_leave_the_next_run() -> None:
    tool = {"name": "mcp__h__echo", "description": "Echo.", "input_schema": {"type": "object"}, "server": "h"}
    offered = {"type": "server_tools", "seq": 2, "time": 1.0, "tools": [tool]}
    async with reopened(session_row(1) + json.dumps(offered).encode() + b"\n") as session:
        await session.run("and now?")
    assert [record["tools"] for record in session.records if record["type"] == "server_tools"] == [[tool], []]


CHANGES = {
    "another model": ({"model": "large"}, "The model is now rules; it was large."),
    "tools that are gone": ({"tools": ["plan_list", "fly"]}, "Tools removed since then: fly."),
    "new tools": ({"tools": ["plan_list"]}, "Tools added since then: plan_add_task"),
    "a newer version": ({"version": "9.1.0"}, "The session was last written by chain 9.1.0"),
    "a version of no release": ({"version": "9" * 5_000}, "The session was last written by chain 99999"),
}
"""The fields with which a session was opened, and what is said when it is resumed."""


@pytest.mark.parametrize("case", CHANGES)
async def test_differences_to_the_earlier_configuration_are_said(case: str) -> None:
    fields, says = CHANGES[case]
    async with reopened(session_row(1, **fields)) as session:
        assert [change for change in session.resumed.changes if says in change], session.resumed.changes
        assert (await session.run("and now?")).status == "done"


async def test_a_number_out_of_range_does_not_count() -> None:
    question = {"type": "question", "seq": 2, "time": 1.0, "agent": "main", "iteration": 1, "id": "Q" + "9" * 5_000}
    question |= {"kind": "choice", "text": "which?", "tool_call_id": "t", "name": "ask"}
    async with reopened(session_row(1) + json.dumps(question).encode() + b"\n") as session:
        assert session.chain.state.question_log.count == 0
        assert session.resumed.changes == ["The model is now rules; it was unnamed."]
        assert (await session.run("and now?")).status == "done"
