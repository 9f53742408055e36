"""What ``open_chain`` promises of its block: how it is left, what is told before, and what listeners may raise."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
from support import check_invariants, open_session
from support.agents import WAIT, family, starts
from support.gate import TWO_STEPS, Gate, begin, finish
from support.gates import THREE_TOOLS, Gates
from support.gates import begin as begin_at
from support.gates import finish as finish_gates
from support.sessions import Session
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.chain import CLOSING_S
from chain.errors import UserError
from chain.events import Event
from chain.tools.tool import ToolContext, tool

ANSWER = "rules: [{text: The answer.}]"
LONG_S = 3 * CLOSING_S


@tool(timeout_s=100)
async def cling(ctx: ToolContext) -> str:
    """Hold off what would cancel it for longer than the grace period."""
    with trio.CancelScope(shield=True):
        await trio.sleep(LONG_S)
    return "at last"


# -------------------------------------------------------------------------------------------------------- listeners


async def test_a_listener_that_raises_at_every_event_keeps_nothing_from_anybody() -> None:
    gates, after = Gates(), list[Event]()

    def bad(event: Event) -> None:
        raise ZeroDivisionError(event.type)

    async def main() -> None:
        async with open_session(THREE_TOOLS, tools=gates.tools) as session:
            feed = session.chain.feed()
            session.chain.listen(bad)
            session.chain.listen(after.append)
            await begin_at(session, gates, "a", "use B", "todo: add x", "then: next")
            await finish_gates(session, gates)
            heard = len(after)
            assert session.events[-heard:] == after
            assert feed.take()[1:] == session.events
            assert [result.status for result in session.of(events.Result)] == ["done", "done"]
            assert {receipt.state for receipt in session.chain.lines.receipts} == {"delivered"}
            said = [notice.message for notice in session.of(events.Notice) if "listener" in notice.message]
            assert said == ["a listener failed at run_started: ZeroDivisionError: run_started"]

    with pytest.raises(ExceptionGroup) as caught:
        await main()
    [raised] = caught.value.exceptions
    assert (type(raised), str(raised)) == (ZeroDivisionError, "run_started")


async def test_the_first_error_of_each_listener_leaves_the_block() -> None:
    def failing(error: Exception) -> Callable[[Event], None]:
        def listen(event: Event) -> None:
            if not isinstance(event, events.Notice):
                raise error

        return listen

    errors = [ValueError("a"), OSError("b")]

    async def main() -> None:
        async with open_session(ANSWER) as session:
            for error in errors:
                session.chain.listen(failing(error))
            await session.run("Do the task")
            assert len(session.of(events.Notice)) == 2

    with pytest.raises(ExceptionGroup) as caught:
        await main()
    assert list(caught.value.exceptions) == errors


@pytest.mark.parametrize("leaving", [SystemExit(3), KeyboardInterrupt()], ids=repr)
async def test_what_is_to_end_the_program_ends_the_block_at_once(leaving: BaseException) -> None:
    gate, sessions = Gate(), list[Session]()

    def leave(event: Event) -> None:
        if isinstance(event, events.LineQueued):
            raise leaving

    async def main() -> None:
        async with open_session(TWO_STEPS, tools=[gate.tool]) as session:
            sessions.append(session)
            session.chain.listen(leave)
            await begin(session, gate, "use B")
            await trio.sleep_forever()

    with pytest.raises(type(leaving)) as caught:
        await main()
    assert caught.value is leaving
    [session] = sessions
    assert (session.result.status, session.state("L2")) == ("interrupted", "returned")
    check_invariants(session)


# ----------------------------------------------------------------------------------------------- leaving the block


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), UserError("no"), ExceptionGroup("mine", [ValueError()])], ids=repr
)
async def test_what_is_raised_in_the_block_leaves_it_as_it_is(error: BaseException) -> None:
    gate, sessions = Gate(), list[Session]()

    async def main() -> None:
        async with open_session(TWO_STEPS, tools=[gate.tool]) as session:
            sessions.append(session)
            await begin(session, gate, "use B")
            raise error

    with pytest.raises(type(error)) as caught:
        await main()
    assert repr(caught.value) == repr(error)
    [session] = sessions
    assert (session.result.status, session.state("L2")) == ("interrupted", "returned")


async def test_a_run_that_had_no_time_to_begin_is_interrupted() -> None:
    async with open_session(ANSWER) as session:
        session.chain.submit("Do the task")
    assert (session.result.status, session.model.requests) == ("interrupted", [])


async def test_what_a_tool_that_shields_itself_leaves_is_told_however_long_it_takes(autojump_clock: MockClock) -> None:
    async with open_session("rules: [{tools: [{name: cling, input: {}}]}]", tools=[cling]) as session:
        feed = session.chain.feed()
        session.chain.submit("Do the task")
        await trio.sleep(1)
        session.chain.submit("use B")
        await trio.sleep(1)
    assert trio.current_time() == LONG_S
    assert (session.result.status, session.state("L2")) == ("interrupted", "returned")
    assert [record["status"] for record in session.records if record["type"] == "result"] == ["interrupted"]
    assert feed.take()[1:] == session.events
    check_invariants(session)


async def test_a_child_that_shields_itself_hands_its_lines_back(autojump_clock: MockClock) -> None:
    async with family(tools=[cling]) as agents:
        await agents.begin([starts("agent", [["cling", {}]])])
        agents.send("look at the tests too", "agent-1")
        await agents.quiet()
    assert agents.session.result.status == "interrupted"
    [returned] = [r for r in agents.session.of(events.Receipt) if r.id == "L2"]
    assert returned.state == "returned"


async def test_cancelled_from_outside_a_chain_ends_as_soon_as_the_disk_lets_it(autojump_clock: MockClock) -> None:
    with trio.CancelScope() as scope:
        async with family() as agents:
            await agents.begin([starts("agent", [WAIT])])
            agents.send("look at the tests too", "agent-1")
            begun = trio.current_time()
            scope.cancel()
            await trio.sleep(1)
    assert trio.current_time() == begun
    assert agents.session.result.status == "interrupted"
    assert agents.session.state("L2") == "returned"


async def test_a_cancellation_from_outside_interrupts_before_the_block_has_ended(autojump_clock: MockClock) -> None:
    gate = Gate()
    with trio.CancelScope() as scope:
        async with open_session(TWO_STEPS, tools=[gate.tool]) as session:
            await begin(session, gate, "use B")
            scope.cancel()
            with trio.CancelScope(shield=True):
                await wait_all_tasks_blocked()
                assert (session.result.status, session.state("L2")) == ("interrupted", "returned")
                assert session.chain.submit("use C").what == "refused"


# --------------------------------------------------------------------------------------------------- once it closed


async def test_a_chain_that_has_closed_lets_nobody_wait(autojump_clock: MockClock) -> None:
    gate = Gate()
    async with open_session(TWO_STEPS, tools=[gate.tool]) as session:
        await begin(session, gate, *(f"line {n}" for n in range(10)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.chain.lines.wait_for_change)
            await wait_all_tasks_blocked()
            await session.chain.close()
        assert session.file.synced == session.file.data
        for _ in range(2):
            await session.chain.lines.wait_for_change()
        feed = session.chain.feed()
        assert await feed.batch() == [session.chain.init]
        assert await feed.batch() == []
        await session.chain.close()
        await session.chain.wait_idle()
    assert session.model.closed == 1


async def test_lines_wait_as_usual_for_a_chain_that_is_open(autojump_clock: MockClock) -> None:
    gate = Gate()
    async with open_session(TWO_STEPS, tools=[gate.tool]) as session:
        await begin(session, gate, "use B")
        with trio.move_on_after(1) as scope:
            await session.chain.lines.wait_for_change()
        assert scope.cancelled_caught
        await finish(session, gate)
