"""A session that is read again is what it was, also where a crash left something out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import trio
from support import FullDisk, MemoryFile, open_session, settings, wait_quiet
from support.agents import WAIT, Family, Obedient, Waiters, asks, family, starts
from support.crashes import left
from support.gate import Gate
from support.states import check_states, watch_states

from chain import events
from chain.app.open import open_chain
from chain.journal import records
from chain.journal.journal import Journal
from chain.journal.records import Entry
from chain.messages import TOO_LONG, Message, Text, Usage
from chain.model import Delta, Reply, Request, Window
from chain.providers.scripted.scripted_model import ScriptedModel
from chain.session.restored_state import events_of_journal
from chain.tools.tool import ToolContext, tool

OK = "rules: [{text: ok}]"
KNOWN = Window(100_000, 1_000)
REFUSING = "rules: [{text: nay, stop_reason: refusal}]"


async def test_a_query_that_a_crash_kept_from_its_run_is_shown_as_waiting() -> None:
    file = MemoryFile()
    async with open_session(OK, interactive=True, file=file) as session:
        session.chain.submit("Do the task")
        data = file.data  # the run has begun, and the query is not delivered yet
        await session.chain.wait_idle()
    file, read = left(data)
    async with open_session(OK, interactive=True, file=file, resume=read) as session:
        assert [line.id for line in session.chain.lines.waiting] == ["L1"]
        assert session.chain.resumed is not None
        shown = [event for event in session.chain.resumed.past if isinstance(event, events.LineQueued)]
        assert [(event.id, event.waiting) for event in shown] == [("L1", 1)]


async def test_the_urgency_of_a_line_that_waited_for_an_agent_below_is_spent() -> None:
    async with family() as agents:
        await agents.begin([starts("explore", [WAIT])])
        agents.send("!use B")
        await agents.quiet()
        data = agents.session.file.data
        await agents.finish()
    file, read = left(data)
    waiters = Waiters()
    async with open_session(
        Obedient(), tools=[waiters.tool], use=settings(agents=True), file=file, resume=read, interactive=True
    ) as session:
        assert session.chain.resumed is not None
        shown = [event for event in session.chain.resumed.past if isinstance(event, events.LineQueued)]
        assert (shown[-1].target_agent, shown[-1].urgency) == ("main", "next")


async def test_a_plan_command_without_a_change_is_not_given_back_after_a_crash() -> None:
    gate = Gate()
    rules = "rules: [{when: {tool: wait}, text: nay, stop_reason: refusal}, {text: Wait., tools: [{name: wait}]}]"
    async with open_session(rules, tools=[gate.tool], interactive=True) as session:
        session.chain.submit("Do the task")
        await gate.started.wait()
        session.chain.submit("todo: list")
        gate.open.set()
        await wait_quiet(session)
        rows = session.file.data.splitlines(keepends=True)
    end = next(n for n, row in enumerate(rows) if row.startswith(b'{"type":"withdrawn"'))
    file, read = left(b"".join(rows[:end]))
    async with open_session(REFUSING, file=file, resume=read, interactive=True) as session:
        await session.run("again")
        assert session.state("L2") == "delivered"


async def test_an_agent_that_another_call_waits_for_is_not_forgotten() -> None:
    use = settings(agents=True, max_kept=1)
    async with family(use=use) as agents:
        await agents.begin([starts("explore", [WAIT]), starts("explore", [WAIT])])
        data = agents.session.file.data  # after it more agents are there than are kept
        await agents.finish()
    file, read = left(data)
    waiters = Waiters()
    async with open_session(Obedient(), tools=[waiters.tool], use=use, file=file, resume=read) as session:
        agents = Family(session, waiters)
        first, second = asks("explore-1", [WAIT], answer="first"), asks("explore-1", answer="second")
        await agents.begin([first, second, asks("explore-2", [WAIT], answer="x")])
        waiters.let_go("explore-1")
        await agents.quiet()
        await agents.finish()
        assert [text for text, _ in agents.results("main")][-3:] == ["first", "second", "x"]


@dataclass
class TooLong:
    """A model whose service finds the first request too long, and does not say how long it is."""

    name: str = "m"
    calls: int = 0
    window: Window = KNOWN

    async def reply(self, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        self.calls += 1
        await trio.lowlevel.checkpoint()
        if self.calls == 1:
            return Reply(Message("assistant", (Text("x"),)), TOO_LONG, Usage())
        return Reply(Message("assistant", (Text("ok"),)), "end_turn", Usage(10, 1))

    async def prepare(self) -> None:
        """There is nothing to prepare."""

    async def aclose(self) -> None:
        """There is nothing to close."""


async def test_the_estimate_of_what_fills_the_window_is_on_record() -> None:
    async with open_session(TooLong()) as session:
        watch_states(session)
        session.chain.submit("hello " * 1_000)
        await wait_quiet(session)
        assert session.model.inner.calls == 1  # type: ignore[attr-defined]
        assert len(session.states) > 5
    check_states(session)


async def test_what_fills_the_window_is_known_as_soon_as_a_session_is_resumed(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("Be brief. " * 400)
    file = MemoryFile()
    model, use = ScriptedModel.parse(OK), settings()
    more = {"workspace": tmp_path, "state": tmp_path / "state", "model": model, "instructions": True}
    async with open_chain(use, journal=Journal(file), **more) as chain:  # type: ignore[arg-type]
        chain.submit("hi")
        await chain.wait_idle()
        before = chain.window.parts
    file, read = left(file.data)
    async with open_chain(use, journal=Journal(file, seq=read.seq), resume=read, **more) as chain:  # type: ignore[arg-type]
        assert chain.window.parts == before


async def test_a_call_that_a_full_disk_left_open_has_its_end_when_the_session_is_resumed() -> None:
    disk = FullDisk()

    @tool
    async def look(ctx: ToolContext) -> str:
        """Look."""
        disk.room = 1_000  # for the end of the run, and not for the result
        return "x" * 2_000

    rules = "rules: [{when: {step: 1}, text: Wait., tools: [{name: look}]}, {text: Done.}]"
    async with open_session(rules, tools=[look], file=disk) as session:
        assert (await session.run("Do the task")).status == "error"
    file, read = left(disk.data)
    assert not read.state.is_running
    async with open_session(OK, file=file, resume=read, interactive=True) as session:
        assert session.chain.resumed is not None
        past = session.chain.resumed.past
        begun = [event.id for event in past if isinstance(event, events.ToolCall)]
        assert len(begun) == 1
        assert [event.id for event in past if isinstance(event, events.ToolResult)] == begun
        assert (await session.run("Do another task")).status == "done"
        assert not session.of(events.ToolResult)


def test_the_usage_of_a_reply_that_was_cut_names_the_window() -> None:
    reply = records.RequestSent("main", 1, "", "", window=30_000)
    cut = records.Interrupted("main", 1, "answering", "line", Usage(10, 1))
    entries = [Entry(n, 0.0, record) for n, record in enumerate((reply, cut), 1)]
    (usage,) = (event for event in events_of_journal(entries) if isinstance(event, events.UsageReport))
    assert usage.context_window == 30_000
