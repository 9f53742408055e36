"""A resumed session has the state that its journal leads to, also if a crash lost its last records."""

from __future__ import annotations

from pathlib import Path

from support.agents import WAIT, AgentSession, ObedientModel, Waiters, ask, open_agents, start
from support.crashes import load_crashed, reopen
from support.disks import FullDisk, MemoryFile
from support.gate import REFUSES_RESULT, Gate, finish_run, start_run
from support.sessions import make_settings, open_session

from chain import events
from chain.app.open import open_chain
from chain.journal import records
from chain.journal.journal import Journal
from chain.journal.records import Entry
from chain.messages import Usage
from chain.providers.scripted.scripted_model import ScriptedModel
from chain.session.restored_state import events_of_journal
from chain.tools.tool import ToolContext, tool

ANSWERS = "rules: [{text: ok}]"
REFUSES = "rules: [{text: No., stop_reason: refusal}]"


async def test_lines_of_a_lost_child_wait_for_main() -> None:
    async with open_agents() as agents:
        await agents.start_run([start("explore", [WAIT])])
        agents.send("!use B")
        await agents.wait_blocked()
        data = agents.session.file.data
        await agents.finish_run()
    async with reopen(data, settings=make_settings(agents=True), interactive=True) as session:
        *_, queued = (event for event in session.resumed.past if isinstance(event, events.LineQueued))
        assert (queued.target_agent, queued.urgency) == ("main", "next")


async def test_a_query_cut_by_a_crash_waits() -> None:
    async with open_session(ANSWERS, interactive=True) as session:
        session.chain.submit("Do the task")
        data = session.file.data  # the run has started, and the query is not delivered yet
        await session.chain.wait_idle()
    async with reopen(data, ANSWERS, interactive=True) as session:
        assert [line.id for line in session.chain.lines.waiting] == ["L1"]
        shown = [event for event in session.resumed.past if isinstance(event, events.LineQueued)]
        assert [(event.id, event.waiting) for event in shown] == [("L1", 1)]


async def test_a_plan_command_in_a_refusal_stays_delivered() -> None:
    gate = Gate()
    async with open_session(REFUSES_RESULT, tools=[gate.tool], interactive=True) as session:
        await start_run(session, gate, "todo: list")
        await finish_run(session, gate)
    until_refusal, _, _ = session.file.data.partition(b'{"type":"withdrawn"')
    async with reopen(until_refusal, REFUSES, interactive=True) as session:
        await session.run("again")
        assert session.state("L2") == "delivered"


async def test_an_agent_with_waiting_calls_is_kept() -> None:
    """The second call for ``explore-1`` waits for the first, while ``max_kept`` would drop one of two agents."""
    settings = make_settings(agents=True, max_kept=1)
    async with open_agents(settings=settings) as agents:
        await agents.start_run([start("explore", [WAIT]), start("explore", [WAIT])])
        data = agents.session.file.data  # has two agents, of which ``max_kept`` allows one
        await agents.finish_run()
    waiters = Waiters()
    async with reopen(data, ObedientModel(), tools=[waiters.tool], settings=settings) as session:
        agents = AgentSession(session, waiters)
        first, second = ask("explore-1", [WAIT], answer="first"), ask("explore-1", answer="second")
        await agents.start_run([first, second, ask("explore-2", [WAIT], answer="x")])
        waiters.release("explore-1")
        await agents.wait_blocked()
        await agents.finish_run()
        *_, first_result, second_result, third_result = (text for text, is_error in agents.results("main"))
        assert (first_result, second_result, third_result) == ("first", "second", "x")


async def test_the_used_part_of_the_window_is_restored(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("Be brief. " * 400)
    file = MemoryFile()
    model, settings = ScriptedModel.parse(ANSWERS), make_settings()
    options = {"workspace": tmp_path, "state": tmp_path / "state", "model": model, "instructions": True}
    async with open_chain(settings, journal=Journal(file), **options) as chain:  # type: ignore[arg-type]
        chain.submit("hi")
        await chain.wait_idle()
        before = chain.window.parts
    file, read = load_crashed(file.data)
    async with open_chain(settings, journal=Journal(file, seq=read.seq), resume=read, **options) as chain:  # type: ignore[arg-type]
        assert chain.window.parts == before


async def test_a_call_on_a_full_disk_is_answered() -> None:
    disk = FullDisk()

    @tool
    async def look(ctx: ToolContext) -> str:
        """Look."""
        disk.room = 1_000  # enough for the end of the run, and too little for the result of this call
        return "x" * 2_000

    rules = "rules: [{when: {step: 1}, text: Wait., tools: [{name: look}]}, {text: Done.}]"
    async with open_session(rules, tools=[look], file=disk) as session:
        assert (await session.run("Do the task")).status == "error"
    async with reopen(disk.data, interactive=True) as session:
        calls = [event.id for event in session.resumed.past if isinstance(event, events.ToolCall)]
        assert len(calls) == 1
        assert [event.id for event in session.resumed.past if isinstance(event, events.ToolResult)] == calls
        assert (await session.run("Do another task")).status == "done"
        assert not session.of(events.ToolResult)


def test_usage_of_a_cut_reply_names_the_window() -> None:
    sent = records.RequestSent("main", 1, system="", tools="", window=30_000)
    cut = records.Interrupted("main", 1, what="answering", by="line", usage=Usage(10, 1))
    entries = [Entry(n, 0.0, record) for n, record in enumerate((sent, cut), 1)]
    (usage,) = (event for event in events_of_journal(entries) if isinstance(event, events.UsageReport))
    assert usage.context_window == 30_000
