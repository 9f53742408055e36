"""A session that is resumed after its process ended: what is restored, and what a crash prevented."""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any

import pytest
import trio
from hypothesis import strategies as st
from support.agents import WAIT, open_agents, start
from support.checks import replay_session
from support.crashes import ANSWER, check_conversations, check_needs_no_repair, check_resumed, load_crashed, reopen
from support.disks import FullDisk, MemoryFile
from support.eventful import eventful_session
from support.examples import sample_in_short_run, sharded
from support.gate import REFUSES_RESULT, Gate, finish_run, kill_session, leave_session, start_run
from support.sessions import make_settings, open_session, wait_quiet
from support.trees import TREE_TOOLS, Tree, TreeModel, tree_settings, trees
from support.users import ActingUser, AnsweringUser
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.errors import SessionError
from chain.journal.reading import Reading
from chain.lines.accepted import AcceptedLine
from chain.session import resume
from chain.session.restored_state import events_of_journal
from chain.session.resume import load_journal

RULES = """
rules:
  - {when: {user: hello}, times: 1, text: I add it., tools: [{name: plan_add_task, input: {task: check the SKU}}]}
  - {text: The answer.}
"""

NOTE = "[The program ended here]"

_NOT_RECORDED = events.TextDelta | events.ThinkingDelta | events.UsageReport | events.Init


def shown_types(all_events: Iterable[events.Event]) -> list[type[events.Event]]:
    """Return the types of the events that a journal leads to."""
    return [type(event) for event in all_events if not isinstance(event, _NOT_RECORDED)]


def to_rows(records: Iterable[dict[str, Any]]) -> bytes:
    """Return a journal with these records."""
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


async def test_history_plan_and_usage_are_restored() -> None:
    async with open_session(RULES) as session:
        await session.run("hello")
        await session.run("again")
        data, plan, usage = session.file.data, session.chain.plan.tasks, session.chain.state.usage
    async with reopen(data) as resumed:
        assert shown_types(resumed.resumed.past) == shown_types(session.events)
        assert resumed.resumed.changes == []
        assert (resumed.chain.plan.tasks, resumed.chain.state.usage) == (plan, usage)
        await resumed.run("third")
        assert resumed.sent().startswith("user: hello\n")
        assert resumed.sent().endswith("\nassistant: The answer.\nuser: third")
        check_resumed(resumed)


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


@pytest.mark.parametrize("has_crashed", [True, False], ids=["crash", "user left"])
@pytest.mark.parametrize("case", WAITING)
async def test_waiting_lines_start_a_run_on_request(case: str, has_crashed: bool) -> None:
    lines, queries, texts = WAITING[case]
    data = await kill_session(*lines) if has_crashed else (await leave_session(*lines)).file.data
    async with reopen(data, interactive=True) as session:
        assert session.file.synced == session.file.data
        assert [accepted.line.text for accepted in session.chain.lines.waiting] == lines
        assert {accepted.line.urgency for accepted in session.chain.lines.waiting} == {"next"}
        await wait_all_tasks_blocked()
        assert session.model.requests == []
        assert session.chain.runs.start_waiting()
        assert not session.chain.runs.start_waiting(), "it is active already"
        await session.chain.wait_idle()
        assert [run.query for run in session.of(events.RunStarted)] == queries
        positions = [session.sent().index(text) for text in texts]
        assert positions == sorted(positions)
        assert all(interruption.point == "A" for interruption in session.of(events.UserInterruption))
        check_resumed(session)


async def test_leaving_ends_the_run_and_stores_the_draft() -> None:
    session = await leave_session("use B", draft="half a\nthought")
    assert [e.status for e in session.of(events.Result)] == ["interrupted"]
    assert {e.state for e in session.of(events.Receipt)} == {"delivered", "refused"}
    assert replay_session(session).is_same
    async with reopen(session.file.data, interactive=True) as session:
        assert (session.resumed.draft, session.resumed.was_cut) == ("half a\nthought", False)
        await session.run("half a\nthought")
    _, loaded = load_crashed(session.file.data)
    assert loaded.state.draft == "", "a draft that was sent is removed"


@pytest.mark.parametrize(
    ("recorded_ago_s", "waited_s"), [(3600.0, 3600.0), (-3600.0, 0.0)], ids=["an hour ago", "clock was set back"]
)
async def test_waiting_counts_from_acceptance(recorded_ago_s: float, waited_s: float, mock_clock: MockClock) -> None:
    recorded_at = time.time() - recorded_ago_s
    records = [json.loads(row) | {"time": recorded_at} for row in (await kill_session("use B")).splitlines()]
    async with reopen(to_rows(records), interactive=True) as session:
        session.chain.runs.start_waiting()
        await session.chain.wait_idle()
        [receipt] = (each for each in session.of(events.Receipt) if each.id == "L2")
        [interruption] = session.of(events.UserInterruption)
    assert receipt.waited_s == interruption.waited_s == pytest.approx(waited_s, rel=0.1)


async def test_a_missing_receipt_counts_until_delivery(mock_clock: MockClock) -> None:
    async with open_session(ANSWER) as session:
        await session.run("Count them")
    accepted_at, delivered_at = 1.0, 6.0
    until_receipt = itertools.takewhile(lambda record: record["type"] != "receipt", session.records)
    records = [
        {**record, "time": delivered_at if record["type"] == "message" else accepted_at} for record in until_receipt
    ]
    async with reopen(to_rows(records)) as session:
        [receipt] = session.chain.lines.receipts
    assert receipt.state == "delivered"
    assert receipt.waited_s == pytest.approx(delivered_at - accepted_at)


async def test_a_plan_command_is_not_carried_out_twice() -> None:
    async with open_session(ANSWER, interactive=True) as session:
        session.chain.submit("todo: add buy milk")
        await session.chain.wait_idle()
    until_receipt, _, _ = session.file.data.partition(b'{"type":"receipt"')
    async with reopen(until_receipt) as session:
        assert session.state("L1") == "handled"
        assert [task.text for task in session.chain.plan.tasks] == ["buy milk"]


async def test_a_call_cut_by_a_crash_is_interrupted() -> None:
    async with reopen(await kill_session()) as session:
        assert any("1 tool running" in change for change in session.resumed.changes)
        await session.run("and now?")
        [request] = session.model.requests
        [result] = (result for message in request.messages for result in message.results)
        assert result.text.startswith("[Interrupted: stopped")
        assert NOTE in session.sent()


async def test_a_session_on_a_broken_disk_is_refused() -> None:
    file, read = load_crashed(await kill_session("use B"))
    disk = FullDisk()
    disk.data, disk.broken = file.data, True
    with pytest.raises(SessionError):
        async with open_session(ANSWER, file=disk, resume=read):
            pytest.fail("the session was opened")


JOURNALS: dict[str, Callable[[], bytes]] = {
    "lines that wait": lambda: trio.run(kill_session, "use B", "then: Do more"),
    "agents and questions": lambda: eventful_session().journal,
}


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", JOURNALS)
def test_every_prefix_of_a_journal_shows_complete_runs(name: str) -> None:
    async def check(data: bytes) -> None:
        async with reopen(data, interactive=True, settings=tree_settings()) as session:
            past = session.resumed.past
            waiting = {accepted.id for accepted in session.chain.lines.waiting}
        check_ends(past)
        assert waiting <= {event.id for event in past if isinstance(event, events.LineQueued)}

    rows = JOURNALS[name]().splitlines(keepends=True)
    for end in sample_in_short_run(range(len(rows) + 1), every=10):
        trio.run(check, b"".join(rows[:end]))


def check_ends(past: Sequence[events.Event]) -> None:
    """Check that each run and each agent starts and ends, and that events of agents are within runs."""
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


def texts_of(lines: Iterable[AcceptedLine]) -> list[str]:
    return [accepted.line.text for accepted in lines]


async def test_a_run_was_cut_until_the_next_one() -> None:
    data = await kill_session("use B")
    for query, was_cut, waiting in (("", True, ["use B"]), ("again", True, ["use B"]), ("", False, [])):
        async with reopen(data, interactive=True) as session:
            assert (session.resumed.was_cut, texts_of(session.chain.lines.waiting)) == (was_cut, waiting)
            assert session.resumed.returned == []
            if query:
                await session.run(query)
        data = session.file.data


async def test_a_stopped_run_was_not_cut() -> None:
    data = await kill_session("use B", "stop")
    for returned in (["use B"], []):  # only the first resumed session returns it
        async with reopen(data, interactive=True) as session:
            assert not session.resumed.was_cut
            assert texts_of(session.resumed.returned) == returned
            assert session.chain.lines.waiting == ()
        data = session.file.data


async def test_lines_returned_at_resuming_are_no_failure_later() -> None:
    """``L1`` is the first query, ``L2`` "use B", ``L3`` the stop and ``L4`` the query after resuming."""
    async with reopen(await kill_session("use B", "stop")) as session:
        assert session.state("L2") == "returned"
        assert [r.id for r in (await session.run("and now?")).receipts] == ["L4"]
        assert session.chain.runs.exit_code() == 0


REFUSES_OR_CALLS = """
rules:
  - {when: {user: refuse}, text: No., stop_reason: refusal}
  - {when: {user: call, step: 1}, tools: [{name: plan_list, id: a}]}
  - {text: "Yes."}
"""


@pytest.mark.parametrize(
    "lines",
    [["hello"], ["refuse"], ["call"], ["todo: add x", "hello"], ["todo: add x", "hello", "refuse"]],
    ids=", ".join,
)
@pytest.mark.parametrize("query", ["third", "refuse", "call"])
async def test_a_restart_does_not_change_the_next_run(lines: list[str], query: str) -> None:
    async with open_session(REFUSES_OR_CALLS) as session:
        for line in ("first", *lines):
            session.chain.submit(line)
            await session.chain.wait_idle()
        data = session.file.data
        session.model.requests.clear()
        session.events.clear()
        await session.run(query)
    async with reopen(data, REFUSES_OR_CALLS) as resumed:
        await resumed.run(query)
    requests, requests_after_restart = (
        [(request.messages, request.tail) for request in each.model.requests] for each in (session, resumed)
    )
    assert requests_after_restart == requests
    receipts, receipts_after_restart = (
        [(receipt.id, receipt.state) for receipt in each.of(events.Receipt)] for each in (session, resumed)
    )
    assert receipts_after_restart == receipts


async def test_a_crash_in_a_refusal_returns_its_lines() -> None:
    gate = Gate()
    async with open_session(REFUSES_RESULT, tools=[gate.tool], interactive=True) as session:
        await start_run(session, gate, "use B", "todo: add buy milk", "use C")
        await finish_run(session, gate)
        rows = session.file.data.splitlines(keepends=True)
    types = [record["type"] for record in session.records]
    for end in range(types.index("withdrawn") + 1, len(rows) + 1):
        async with reopen(b"".join(rows[:end]), interactive=True) as session:
            last_type = types[end - 1]
            # After the result, the user has the lines already.
            expected = [] if last_type == "result" else ["Do the task", "use B", "use C"]
            assert texts_of(session.resumed.returned) == expected


@pytest.mark.parametrize(("runs", "has_earlier"), [(2, False), (20, True)], ids=["all fit", "too many"])
async def test_only_the_latest_events_are_shown_again(
    runs: int, has_earlier: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resume, "MAX_PAST", 50)  # a few runs
    async with open_session(ANSWER) as session:
        for n in range(runs):
            await session.run(f"query {n}")
    async with reopen(session.file.data) as session:
        assert session.resumed.has_earlier == has_earlier
        assert len(session.resumed.past) <= 50
        first, *_, last = (event.query for event in session.resumed.past if isinstance(event, events.RunStarted))
        assert (first == "query 0") != has_earlier
        assert last == f"query {runs - 1}"


KINDS = json.dumps({"reviewer": {"description": "Reviews", "prompt": "reviewer.yaml"}})
KIND_FILES = json.dumps({"reviewer.yaml": "messages: [{role: system, content: You review.}]"})


async def session_with_finished_agents(count: int, kind: str) -> bytes:
    """Return the journal of a session in which agents of a kind finished their work."""
    calls = [{"name": kind, "input": {"task": f"part {n}"}} for n in range(1, count + 1)]
    rules = {"rules": [{"when": {"user": "Do the task", "step": 1}, "tools": calls}, {"text": "Done."}]}
    settings = make_settings(agents=True, kinds=KINDS, files=KIND_FILES, max_running=count)
    async with open_session(json.dumps(rules), settings=settings) as session:
        await session.run("Do the task")
        assert len(session.of(events.AgentEnded)) == count
    return session.file.data


async def test_the_latest_finished_agents_can_be_asked() -> None:
    data = await session_with_finished_agents(5, "explore")
    async with reopen(data, settings=make_settings(agents=True, max_kept=2)) as session:
        assert [view.name for view in session.chain.agents] == ["main", "explore-4", "explore-5"]


async def test_an_agent_at_work_gets_the_note() -> None:
    async with open_agents() as agents:
        await agents.start_run([start("agent", [WAIT])])
        data = agents.session.file.data
        await agents.finish_run()
    async with reopen(data, settings=make_settings(agents=True)) as session:
        pass
    _, loaded = load_crashed(session.file.data)
    *_, last_message = loaded.state.agents["agent-1"].history.conversation.messages
    assert last_message.text.startswith(NOTE)


@pytest.mark.parametrize(("kinds", "has_notice"), [(KINDS, False), ("{}", True)], ids=["kind exists", "kind removed"])
async def test_agents_of_a_removed_kind_are_named(kinds: str, has_notice: bool) -> None:
    data = await session_with_finished_agents(2, "reviewer")
    async with reopen(data, settings=make_settings(agents=True, kinds=kinds, files=KIND_FILES)) as session:
        assert has_notice == any(
            change.startswith("2 agents of the kind reviewer can no longer be asked: ")
            for change in session.resumed.changes
        )


CALLS_AND_SUMMARY = """
rules:
  - {when: {user: shortened}, text: Short.}
  - {when: {user: '^add', step: 1}, text: I add it., tools: [{name: plan_add_task, input: {task: check the SKU}}]}
  - {text: The answer.}
"""


async def compacted() -> bytes:
    """Return the journal of a session with tool calls before and after a compaction."""
    async with open_session(CALLS_AND_SUMMARY, interactive=True) as session:
        for query in ("add one", "hello " * 2_000):
            await session.run(query)
        session.chain.runs.compact()
        await session.chain.wait_idle()
        await session.run("add two")
    assert any(record["type"] == "compacted" for record in session.records)
    return session.file.data


@pytest.mark.parametrize(
    "record_session", [partial(kill_session, "use B", "todo: add buy milk"), compacted], ids=["killed", "compacted"]
)
async def test_a_lost_or_doubled_record_costs_only_itself(record_session: Callable[[], Awaitable[bytes]]) -> None:
    rows = (await record_session()).splitlines(keepends=True)

    def check(damaged: list[bytes]) -> None:
        read = load_journal(damaged)
        check_conversations(read)
        first_complaint, *_ = read.complaints
        assert "record" in first_complaint
        calls = {event.id for event in read.past if isinstance(event, events.ToolCall)}
        results = {event.id for event in read.past if isinstance(event, events.ToolResult)}
        if record_session is compacted:  # the other journal was cut while a tool ran
            assert calls <= results, "no call is shown as running for ever"

    for n, row in enumerate(rows[:-1]):  # the loss of the last row cannot be noticed
        before, after = rows[:n], rows[n + 1 :]
        check([*before, *after])
        check([*before, b"\0" * len(row.rstrip()) + b"\n", *after])  # zeros, as a crash may leave
        check([*before, row, row, *after])
    for n in range(len(rows) - 2):  # two rows are lost
        before, after_next = rows[:n], rows[n + 2 :]
        check([*before, *after_next])


async def test_an_unreadable_row_is_skipped_and_reported() -> None:
    rows = (await kill_session("use B")).splitlines(keepends=True)
    foreign = json.dumps({"type": "notice", "seq": len(rows) + 1, "time": 1.0, "message": "hello"}).encode() + b"\n"
    async with reopen(b"".join([*rows, foreign, b"half a rec\0\n", b"\xff\n"])) as session:
        [complaint] = [change for change in session.resumed.changes if "journal" in change]
        assert "cannot be read" in complaint
        assert not any(isinstance(event, events.Notice) for event in session.resumed.past), "no record is a notice"
        await session.run("and now?")
    assert foreign in session.file.data


async def test_a_run_without_a_recorded_end_is_ended() -> None:
    rows = (await kill_session()).splitlines(keepends=True)
    message = {"role": "user", "content": [{"type": "text", "text": "use B"}]}
    # A line was delivered as the second iteration began, before the record of its request.
    delivered = {"type": "message", "seq": len(rows) + 1, "time": 1.0, "message": message, "agent": "main"}
    delivered |= {"parent_id": "root", "line_ids": ["L2"], "point": "N", "iteration": 2}
    shown = list(events_of_journal(Reading([*rows, to_rows([delivered]), session_row(len(rows) + 2)])))
    iterations = [each for each in shown if isinstance(each, events.IterationStarted)]
    assert [(each.iteration, each.max_iterations) for each in iterations] == [(1, 20)]  # the default limit of tests
    *_, interruption, result, notice = shown
    assert isinstance(interruption, events.UserInterruption)
    assert isinstance(result, events.Result)
    assert isinstance(notice, events.Notice)
    assert (interruption.iteration, result.status, result.iterations) == (2, "interrupted", 2)


def message_row(seq: int, role: str, *content: dict[str, Any]) -> bytes:
    row = {"type": "message", "seq": seq, "time": 0, "message": {"role": role, "content": content}}
    return to_rows([{**row, "agent": "main", "parent_id": "root"}])


TEXT = {"type": "text", "text": "x"}
CALLS = [{"type": "tool_use", "id": id, "name": "look", "input": {}} for id in ("a", "b")]
RESULTS = [{"type": "tool_result", "tool_use_id": id, "content": f"of {id}"} for id in ("a", "b")]
LOST = "[This could not be read from the session's journal]"
FIRST_RESULT, SECOND_RESULT = RESULTS
QUERY, REPLY, REPLY_WITH_CALLS = ("user", TEXT), ("assistant", TEXT), ("assistant", *CALLS)


@pytest.mark.parametrize(
    ("rows", "texts"),
    [
        pytest.param([REPLY], [LOST, "x"], id="no query"),
        pytest.param([QUERY, REPLY, REPLY], ["x", "x", LOST, "x"], id="no query between replies"),
        pytest.param([QUERY, ("user", *RESULTS), REPLY], ["x", "x"], id="no calls"),
        pytest.param([QUERY, REPLY_WITH_CALLS, QUERY], ["x", "", f"{LOST} {LOST}", "x"], id="no results"),
        pytest.param([QUERY, REPLY_WITH_CALLS, ("user", SECOND_RESULT)], ["x", "", f"{LOST} of b"], id="one result"),
        pytest.param([QUERY, ("user", {"type": "tool_use"}), ("user", {"text": "x"})], ["x"], id="unreadable messages"),
    ],
)
def test_half_of_a_pair_is_repaired_and_reported(rows: list[tuple[Any, ...]], texts: list[str]) -> None:
    read = load_journal(message_row(n, *row) for n, row in enumerate(rows, 1))
    messages = read.state.main.history.conversation.messages
    assert [m.text or " ".join(result.text for result in m.results) for m in messages] == texts
    *_, last_complaint = read.complaints
    assert "records of the journal refer to missing records" in last_complaint


sent_lines = st.sampled_from(["use A ‹›", "!use B ‹›", "!!use C ‹›", "todo: add one ‹›", "then: do more ‹›", "stop"])
moments = st.lists(st.tuples(st.integers(3, 60), sent_lines), max_size=6)


@sharded(150, trees, moments, st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_a_tree_resumes_after_two_crashes(tree: Tree, at: list[tuple[int, str]], parts: tuple[float, float]) -> None:
    """``parts``: the part of the records that each program writes before its crash."""

    async def play() -> None:
        settings = tree_settings()
        async with (
            open_session(TreeModel(tree), tools=TREE_TOOLS, settings=settings, file=MemoryFile()) as session,
            trio.open_nursery() as nursery,
        ):
            session.chain.listen(ActingUser(session, at))
            session.chain.listen(AnsweringUser(session, [(0.0, "y")] * 6, nursery))
            with session.chain.answering(), trio.move_on_after(1e5):
                session.chain.submit("task main")
                await wait_quiet(session)
            nursery.cancel_scope.cancel()
        data, size_at_resume = session.file.data, 0
        # The second crash happens while the records that the first prevented are written.
        for part in parts:
            data = data[: size_at_resume + int((len(data) - size_at_resume) * part)]
            size_at_resume = len(data)
            async with reopen(data, TreeModel(tree), tools=TREE_TOOLS, settings=settings) as resumed:
                pass
            data = resumed.file.data
        async with reopen(data, TreeModel(tree, "other"), tools=TREE_TOOLS, settings=settings) as last:
            last.chain.submit("and the next")
            await wait_quiet(last)
            check_resumed(last)
        check_needs_no_repair(last)

    random.seed(0)
    trio.run(play, clock=MockClock(autojump_threshold=0))


def session_row(seq: int, **fields: Any) -> bytes:
    row = {"type": "session", "seq": seq, "time": 1.0, "id": "test", "version": "0.1.0", "model": "unnamed"}
    return to_rows([{**row, "workspace": "", **fields}])


async def test_removed_server_tools_leave_the_next_run() -> None:
    tool = {"name": "mcp__h__echo", "description": "Echo.", "input_schema": {"type": "object"}, "server": "h"}
    offered = {"type": "server_tools", "seq": 2, "time": 1.0, "tools": [tool]}
    async with reopen(session_row(1) + to_rows([offered])) as session:
        await session.run("and now?")
    assert [record["tools"] for record in session.records if record["type"] == "server_tools"] == [[tool], []]


CONFIGURATION_CHANGES = {
    "another model": ({"model": "large"}, "The model is now rules; it was large."),
    "tools that are gone": ({"tools": ["plan_list", "fly"]}, "Tools removed since then: fly."),
    "new tools": ({"tools": ["plan_list"]}, "Tools added since then: plan_add_task"),
    "a newer version": ({"version": "9.1.0"}, "The session was last written by chain 9.1.0"),
    "a version of no release": ({"version": "9" * 5_000}, "The session was last written by chain 99999"),
}
"""The fields with which a session was opened, and the sentence that the user reads when it is resumed."""


@pytest.mark.parametrize("case", CONFIGURATION_CHANGES)
async def test_changes_of_the_configuration_are_reported(case: str) -> None:
    fields, sentence = CONFIGURATION_CHANGES[case]
    async with reopen(session_row(1, **fields)) as session:
        assert any(sentence in change for change in session.resumed.changes), session.resumed.changes
        assert (await session.run("and now?")).status == "done"


async def test_an_id_out_of_range_is_not_counted() -> None:
    question = {"type": "question", "seq": 2, "time": 1.0, "agent": "main", "iteration": 1, "id": "Q" + "9" * 5_000}
    question |= {"kind": "choice", "text": "which?", "tool_call_id": "t", "name": "ask"}
    async with reopen(session_row(1) + to_rows([question])) as session:
        assert session.chain.state.question_log.count == 0
        assert session.resumed.changes == ["The model is now rules; it was unnamed."]
        assert (await session.run("and now?")).status == "done"
