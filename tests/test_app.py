"""The block of ``open_chain``: errors of listeners, and how runs and tools end when the block is left."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
from support.agents import open_agents, start
from support.checks import check_invariants
from support.gate import TWO_STEPS, Gate, finish_run, start_run
from support.sessions import Session, open_session
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.chain import CLOSING_S
from chain.errors import UserError
from chain.events import Event
from chain.tools.tool import ToolContext, tool

ANSWER = "rules: [{text: The answer.}]"
LONG_S = 3 * CLOSING_S
LINE = "L2"
"""The id of the line after the query."""


@tool(timeout_s=100)
async def resist(ctx: ToolContext) -> str:
    """Delay a cancellation for longer than the grace period."""
    with trio.CancelScope(shield=True):
        await trio.sleep(LONG_S)
    return "at last"


# Listeners


def failing_listener(error: Exception) -> Callable[[Event], None]:
    """Return a listener that fails at every event but notices."""

    def listen(event: Event) -> None:
        if not isinstance(event, events.Notice):
            raise error

    return listen


async def test_failing_listeners_disturb_no_other() -> None:
    gate, later_events = Gate(), list[Event]()
    errors = [ValueError("a"), OSError("b")]

    async def main() -> None:
        async with open_session(TWO_STEPS, tools=[gate.tool]) as session:
            feed = session.chain.feed()
            for error in errors:
                session.chain.listen(failing_listener(error))
            session.chain.listen(later_events.append)
            await start_run(session, gate, "use B", "todo: add x", "then: next")
            await finish_run(session, gate)
            assert session.events[-len(later_events) :] == later_events
            _, *fed_events = feed.take()  # after ``Init``
            assert fed_events == session.events
            assert [result.status for result in session.of(events.Result)] == ["done", "done"]
            assert {receipt.state for receipt in session.chain.lines.receipts} == {"delivered"}
            assert [notice.message for notice in session.of(events.Notice) if "listener" in notice.message] == [
                "a listener failed at run_started: ValueError: a",
                "a listener failed at run_started: OSError: b",
            ]

    with pytest.raises(ExceptionGroup) as caught:
        await main()
    assert list(caught.value.exceptions) == errors, "the first error of each leaves the block"


# Leaving the block


@pytest.mark.parametrize(
    ("error", "by_listener"),
    [
        (SystemExit(3), True),
        (KeyboardInterrupt(), True),
        (KeyboardInterrupt(), False),
        (UserError("no"), False),
        (ExceptionGroup("mine", [ValueError()]), False),
    ],
    ids=["exit by a listener", "Ctrl+C in a listener", "Ctrl+C", "an error", "a group"],
)
async def test_an_exception_leaves_the_block_unchanged(error: BaseException, by_listener: bool) -> None:
    gate, sessions = Gate(), list[Session]()

    def leave(event: Event) -> None:
        if by_listener and isinstance(event, events.LineQueued):
            raise error

    async def main() -> None:
        async with open_session(TWO_STEPS, tools=[gate.tool]) as session:
            sessions.append(session)
            session.chain.listen(leave)
            await start_run(session, gate, "use B")
            if by_listener:
                await trio.sleep_forever()
            raise error

    with pytest.raises(type(error)) as caught:
        await main()
    assert repr(caught.value) == repr(error)
    [session] = sessions
    assert (session.result.status, session.state(LINE)) == ("interrupted", "returned")
    check_invariants(session)


async def test_a_run_that_never_began_is_interrupted() -> None:
    async with open_session(ANSWER) as session:
        session.chain.submit("Do the task")
    assert (session.result.status, session.model.requests) == ("interrupted", [])


async def test_a_tool_that_resists_is_awaited(autojump_clock: MockClock) -> None:
    async with open_session("rules: [{tools: [{name: resist, input: {}}]}]", tools=[resist]) as session:
        feed = session.chain.feed()
        session.chain.submit("Do the task")
        await trio.sleep(1)
        session.chain.submit("use B")
        await trio.sleep(1)
    assert trio.current_time() == LONG_S
    assert (session.result.status, session.state(LINE)) == ("interrupted", "returned")
    assert [record["status"] for record in session.records if record["type"] == "result"] == ["interrupted"]
    _, *fed_events = feed.take()  # after ``Init``
    assert fed_events == session.events
    check_invariants(session)


async def test_a_resisting_child_returns_its_lines(autojump_clock: MockClock) -> None:
    async with open_agents(tools=[resist]) as agents:
        await agents.start_run([start("agent", [["resist", {}]])])
        agents.send("look at the tests too", "agent-1")
        await agents.wait_blocked()
    assert (agents.session.result.status, agents.session.state(LINE)) == ("interrupted", "returned")


async def test_a_cancellation_interrupts_before_the_block_ends(autojump_clock: MockClock) -> None:
    gate = Gate()
    with trio.CancelScope() as scope:
        async with open_session(TWO_STEPS, tools=[gate.tool]) as session:
            await start_run(session, gate, "use B")
            scope.cancel()
            with trio.CancelScope(shield=True):
                await wait_all_tasks_blocked()
                assert (session.result.status, session.state(LINE)) == ("interrupted", "returned")
                assert session.chain.submit("use C").what == "refused"
    assert trio.current_time() == 0


async def test_a_closed_chain_lets_no_task_wait(autojump_clock: MockClock) -> None:
    gate, full_queue = Gate(), [f"line {n}" for n in range(10)]
    async with open_session(TWO_STEPS, tools=[gate.tool]) as session:
        await start_run(session, gate, *full_queue)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.chain.lines.wait_for_change)
            await wait_all_tasks_blocked()
            assert nursery.child_tasks
            await session.chain.close()
        assert session.file.synced == session.file.data
        for _ in range(2):
            await session.chain.lines.wait_for_change()
        feed = session.chain.feed()
        assert await feed.batch() == [session.chain.init]
        assert await feed.batch() == [], "the end of the feed"
        await session.chain.close()
        await session.chain.wait_idle()
    assert session.model.closed == 1
