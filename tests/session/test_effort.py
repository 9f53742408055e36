"""The effort that the user sets: the first call that uses it, and a service that refuses it."""

from __future__ import annotations

from collections.abc import Callable

import trio
from support.checks import check_replays
from support.crashes import reopen
from support.models import look
from support.sessions import Session, call_at_event, make_settings, open_session
from support.trees import tree_settings

from chain import events
from chain.errors import ParameterRefused
from chain.journal import records
from chain.journal.records import Entry
from chain.messages import Message, Text, ToolCall
from chain.model import Delta, Model, Reply, Request
from chain.session.restored_state import RestoredState


class EffortModel(Model):
    """A model that calls a tool once in each run, and refuses the efforts in ``refused``."""

    name = "efforts"

    def __init__(self, *refused: str, tool: str = "look") -> None:
        self._refused = refused
        self._tool = tool
        self._calls = 0

    async def reply(self, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        await trio.lowlevel.checkpoint()
        if request.overrides.effort in self._refused:
            raise ParameterRefused("unknown effort", ["effort"])
        tools = {tool.name for tool in request.tools}
        if request.messages[-1].results or self._tool not in tools:
            return Reply(Message("assistant", (Text("Done."),)), "end_turn")
        self._calls += 1
        call = ToolCall(f"c{self._calls}", self._tool, {} if self._tool == "look" else {"task": "look around"})
        return Reply(Message("assistant", (call,)), "tool_use")


def efforts(session: Session) -> list[str | None]:
    """Return the effort of each request."""
    return [request.overrides.effort for request in session.model.requests]


async def test_an_effort_applies_from_the_next_run_on() -> None:
    async with open_session(EffortModel(), tools=[look]) as session:
        call_at_event(session, events.ToolCall, lambda: session.chain.use_effort("high"))
        await session.run("one")
        await session.run("two")
        session.chain.use_effort("")
        await session.run("three")
        session.chain.use_effort("low")
    first_run, second_run, third_run = [None, None], ["high", "high"], [None, None]
    assert efforts(session) == [*first_run, *second_run, *third_run]
    async with reopen(session.file.data, EffortModel()) as session:
        assert session.chain.effort == "low"


async def test_a_refused_effort_is_omitted_with_a_notice() -> None:
    async with open_session(EffortModel("max"), tools=[look]) as session:
        session.chain.use_effort("max")
        await session.run("one")
        assert [event.message for event in session.of(events.Notice)] == [
            "the service refused the effort max, so this run continues without it; see /effort"
        ]
        await session.run("two")
    refused_then_two_calls = ["max", None, None]
    assert efforts(session) == [*refused_then_two_calls, *refused_then_two_calls]
    check_replays(session)


async def test_the_effort_of_a_handler_prompt_comes_first() -> None:
    handler = "messages: [{role: system, content: Be brief.}]\nconfig: {effort: low}"
    async with open_session(EffortModel("low"), tools=[look], settings=make_settings(handler=handler)) as session:
        session.chain.use_effort("high")
        call_at_event(session, events.ToolCall, lambda: session.chain.submit("use the other file"))
        await session.run("one")
    before_line, refused_for_line, for_line, after_line = efforts(session)
    assert (before_line, refused_for_line, for_line, after_line) == ("high", "low", None, "high")
    [notice] = session.of(events.Notice)
    assert "config: the service refused effort" in notice.message
    check_replays(session)


async def test_child_agents_use_the_effort() -> None:
    async with open_session(EffortModel(tool="agent"), tools=[look], settings=tree_settings()) as session:
        session.chain.use_effort("high")
        await session.run("one")
        assert session.of(events.AgentStarted)
    assert set(efforts(session)) == {"high"}
    assert len(efforts(session)) > 2, "the main agent has two requests, and the child its own"
    check_replays(session)


def test_model_and_effort_are_restored_with_notices() -> None:
    state, notices = RestoredState(), list[str]()
    changes = [records.Model("one"), records.Model("two", once=True), records.Effort("high"), records.Effort("")]
    for seq, record in enumerate(changes, start=1):
        notices += [event.message for event in state.read(Entry(seq, 1.0, record)) if isinstance(event, events.Notice)]
    assert notices == [
        "one answers from the next run on.",
        "two answers this run.",
        "The effort is high from the next run on.",
        "The effort is that of the model's definition from the next run on.",
    ]
    assert (state.model, state.effort) == ("one", "")
