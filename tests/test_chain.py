"""The operations of a `Chain`: drop a line, start waiting lines, change the model, and prepare it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from support.checks import check_invariants
from support.disks import SMALL, FullDisk, MemoryFile
from support.examples import first_in_short_run
from support.gate import TWO_STEPS, Gate, finish_run, start_run
from support.project import ROOT
from support.sessions import RecordingModel, make_settings, open_session
from support.sockets import create_certificate
from support.wire import model_at
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.chain import CLOSING_S
from chain.config.retries import Retries
from chain.errors import JournalError, UserError
from chain.events import Point
from chain.plan import Task
from chain.providers.scripted.scripted_model import ScriptedModel
from chain.session.exit_codes import LINES_LEFT

ANSWER = "rules: [{text: The answer.}]"
ROOM_FOR_ONE = make_settings(inbox_size=1)  # one line waits, and the next is refused


def scripted(rules: str = "rules: [{text: The other answer.}]", name: str = "other") -> RecordingModel:
    return RecordingModel(ScriptedModel.parse(f"name: {name}\n{rules}"))


# ------------------------------------------------------------------------------------------------------------- lines


async def test_a_dropped_line_never_reaches_the_model() -> None:
    gate = Gate()
    async with open_session(TWO_STEPS, tools=[gate.tool]) as session:
        await start_run(session, gate, "use B", "!Use C  ", "context: it is late")
        assert session.chain.lines.drop("l3", "edited") == "!Use C  ", "an id may be in lower case"
        await finish_run(session, gate)
        assert "Use C" not in session.sent()
        [interruption] = session.of(events.UserInterruption)
        assert (interruption.ids, interruption.point) == (("L2", "L4"), Point.AFTER_TOOLS)
        assert interruption.tools_skipped == (), "the dropped line was the urgent one"
        [dropped] = [receipt for receipt in session.of(events.Receipt) if receipt.id == "L3"]
        assert (dropped.state, dropped.reason, dropped.iteration) == ("dropped", "edited", 1)
        assert session.result.exit_code == 0


async def test_the_last_waiting_line_is_the_prompts() -> None:
    gate = Gate()
    async with open_session(TWO_STEPS, tools=[gate.tool]) as session:
        assert session.chain.lines.last_waiting() is None
        await start_run(session, gate, "use B", "use C")
        session.chain.submit("use D", origin="door")
        assert session.chain.lines.last_waiting() == "L3"


async def test_a_line_that_acted_cannot_be_dropped() -> None:
    gate = Gate(reads_guidance=True)
    async with open_session(TWO_STEPS, tools=[gate.tool]) as session:
        await start_run(session, gate, "use B", "focus on prices")
        gate.may_read.set()
        await wait_all_tasks_blocked()
        assert gate.adjustments == ["prices"]
        assert session.chain.lines.last_waiting() == "L2"
        with pytest.raises(UserError, match="a running tool has acted on L3 already, so this line cannot be dropped"):
            session.chain.lines.drop("L3")
        await finish_run(session, gate)
        assert session.state("L3") == "delivered"


async def test_a_dropped_line_leaves_room_for_another() -> None:
    gate = Gate()
    async with open_session(TWO_STEPS, tools=[gate.tool], settings=ROOM_FOR_ONE) as session:
        await start_run(session, gate, "use B")
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def send() -> None:
                await session.chain.lines.wait_for_change()
                assert session.chain.submit("use C").what == "queued"

            await wait_all_tasks_blocked()
            assert session.chain.lines.drop("L2") == "use B"
        await finish_run(session, gate)
        assert session.sent(1).endswith("USER INTERRUPTION: use C")


@pytest.mark.parametrize(
    ("origin", "exit_code"), [("prompt", LINES_LEFT), ("script", LINES_LEFT), ("json", LINES_LEFT), ("door", 0)]
)
async def test_exit_code_3_counts_the_own_lines(origin: events.Origin, exit_code: int) -> None:
    gate = Gate()
    async with open_session(TWO_STEPS, tools=[gate.tool], settings=ROOM_FOR_ONE) as session:
        await start_run(session, gate)
        for line in ("use B", "use C", "stop"):
            session.chain.submit(line, origin=origin)
        await finish_run(session, gate)
        use_c, stop, use_b = [(r.id, r.state, r.origin) for r in session.of(events.Receipt) if r.id != "L1"]
        assert use_c == ("", "refused", origin)
        assert (stop, use_b) == (("L3", "handled", origin), ("L2", "returned", origin))
        assert session.chain.runs.exit_code() == exit_code


async def test_a_query_is_shown_as_typed() -> None:
    async with open_session("rules: [{text: Noted.}]") as session:
        await session.run("context: it is late")
        assert [event.query for event in session.of(events.RunStarted)] == ["context: it is late"]
        assert session.sent(0).endswith("user: [USER ADDED] it is late")


async def test_a_query_with_half_a_character_is_sent() -> None:
    async with open_session("rules: [{text: Noted.}]") as session:
        await session.run("hello \ud800")
        session.chain.start("again \ud800")
        await session.chain.wait_idle()
        assert [event.query for event in session.of(events.RunStarted)] == ["hello ?", "again ?"]
        assert session.sent(1).endswith("user: again ?")


async def test_without_waiting_lines_nothing_is_started() -> None:
    async with open_session(ANSWER) as session:
        assert not session.chain.runs.start_waiting()
        await session.run("Do the task")
        assert not session.chain.runs.start_waiting()


async def test_a_session_may_start_with_a_plan() -> None:
    tasks = (Task("buy milk"), Task("find a shop", "DONE"), Task("ask for credit", "FAILED", "none is given"))
    async with open_session(ANSWER, plan=iter(tasks)) as session:
        assert session.chain.plan.tasks == tasks
        await session.run("Do the task")
        await session.run("Do another task")
        first, second = session.model.requests
        assert (first.tail, second.tail) == ((session.chain.plan.render(),), ()), "an unchanged plan is sent once"
        check_invariants(session)


async def test_a_plan_that_cannot_be_recorded_is_refused() -> None:
    disk = FullDisk()
    disk.room = SMALL
    with pytest.raises(UserError, match="No space left"):
        async with open_session(ANSWER, file=disk, plan=[Task("x" * SMALL)]):
            pytest.fail("the session was opened")


# ------------------------------------------------------------------------------------------------- another model


async def test_the_next_run_uses_the_new_model() -> None:
    other = scripted()
    async with open_session(f"name: first\n{ANSWER}") as session:
        await session.run("Do the task")
        session.chain.use_model(other)
        assert session.chain.init.model == "other"
        *_, record = session.records
        assert (record["type"], record["name"]) == ("model", "other")
        [init] = await session.chain.feed().batch()
        assert isinstance(init, events.Init)
        assert init.model == "other"
        assert (await session.run("Do another task")).result == "The other answer."
        assert len(session.model.requests) == 1
        [request] = other.requests
        assert [message.text for message in request.messages] == ["Do the task", "The answer.", "Do another task"]
        check_invariants(session)
        assert (session.model.closed, other.closed) == (0, 0)
    assert (session.model.closed, other.closed) == (1, 1)


@pytest.mark.parametrize("has_requested", [True, False])
async def test_an_active_run_keeps_its_model(has_requested: bool) -> None:
    gate, other = Gate(), scripted()
    async with open_session(TWO_STEPS, tools=[gate.tool]) as session:
        session.chain.submit("Do the task")
        session.chain.submit("then: Do the next task")
        if has_requested:
            await gate.started.wait()
        session.chain.use_model(other)
        assert session.chain.init.model == "other"
        await finish_run(session, gate)
        assert [r.result for r in session.of(events.Result)] == ["The answer.", "The other answer."]
        assert (len(session.model.requests), len(other.requests)) == (2, 1), "the first run has two requests"


async def test_a_model_comes_with_its_number_of_attempts(autojump_clock: MockClock) -> None:
    failing = "rules: [{text: x, error: {message: too busy, retryable: true, cause: overloaded}}]"
    settings = make_settings(max_attempts=3, models='{"once": 1, "often": 5}')
    async with open_session(ANSWER, settings=settings) as session:
        # Without retries of its own, a model has those of the model before it.
        models = (("first", None, 3), ("once", Retries(1), 1), ("next", None, 1), ("often", Retries(5), 5))
        for name, retries, attempts in models:
            other = scripted(failing, name)
            session.chain.use_model(other, retries=retries)
            assert (await session.run("Go")).status == "error"
            assert len(other.requests) == attempts


async def test_a_change_that_cannot_be_recorded_is_none() -> None:
    disk, other = FullDisk(), scripted()
    async with open_session(f"name: first\n{ANSWER}", file=disk) as session:
        disk.full = True
        with pytest.raises(JournalError, match="No space left"):
            session.chain.use_model(other)
        disk.full = False
        assert session.chain.init.model == "first"
        assert (await session.run("Do the task")).result == "The answer."
    assert (other.requests, other.closed) == ([], 0)


class HangingModel(RecordingModel):
    """A model that closes long after the chain has stopped waiting."""

    async def aclose(self) -> None:
        await trio.sleep(100 * CLOSING_S)
        await super().aclose()


async def test_a_hanging_disk_or_model_blocks_no_closing(autojump_clock: MockClock) -> None:
    file, hanging, last = MemoryFile(), HangingModel(ScriptedModel.parse(ANSWER)), scripted()
    async with trio.open_nursery() as nursery:
        async with open_session(ANSWER, file=file) as session:
            for model in (hanging, last):
                session.chain.use_model(model)
            await session.run("Do the task")
            file.hold()

            @nursery.start_soon
            async def release() -> None:
                await trio.sleep(10 * CLOSING_S)
                file.release()

        assert (session.model.closed, hanging.closed, last.closed) == (1, 0, 1)


async def test_a_model_used_twice_is_closed_once() -> None:
    other = scripted()
    async with open_session(ANSWER) as session:
        for model in (other, session.model, other, other, session.model):
            session.chain.use_model(model)
        assert (await session.run("Do the task")).result == "The answer."
    assert (session.model.closed, other.closed) == (1, 1)


async def test_the_new_model_is_traced_and_prepared(tmp_path: Path) -> None:
    other = scripted()
    async with open_session(ANSWER, traces=tmp_path) as session:
        assert session.chain.state.trace_path() is None
        await session.chain.prepare()
        await session.run("Do the task")
        assert session.chain.state.trace_path() == session.result.trace_path == str(tmp_path / "test-1.json")
        session.chain.use_model(other)
        await session.chain.prepare()
        await session.run("Do another task")
        assert (session.model.prepared, other.prepared) == (1, 1)
        trace = json.loads((tmp_path / "test-2.json").read_text())
        [response] = [step for step in trace["steps"] if step["type"] == "response"]
        [block] = response["message"]["content"]
        assert block["text"] == "The other answer."


async def test_a_closing_chain_starts_nothing() -> None:
    errors: list[str] = []
    gate = Gate()

    def use_the_chain(event: events.Event) -> None:
        if isinstance(event, events.Result):
            with pytest.raises(UserError) as caught:
                session.chain.use_model(scripted())
            errors.append(str(caught.value))
            assert not session.chain.runs.start_waiting()

    async with open_session(TWO_STEPS, tools=[gate.tool]) as session:
        session.chain.listen(use_the_chain)
        await start_run(session, gate)
    assert errors == ["the chain is closing"]


# --------------------------------------------------------------------------------------------------------- preparing


REFUSED = "https://127.0.0.1:9"
"""An address that refuses connections. Its client reads the trusted certificates."""


async def test_the_first_call_reports_a_failed_preparation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/ca.pem")
    async with open_session(model_at(REFUSED), settings=make_settings(max_attempts=1)) as session:
        await session.chain.prepare()
        assert session.events == []
        assert "cannot be created (FileNotFoundError: " in (await session.run("Do the task")).result
        monkeypatch.delenv("SSL_CERT_FILE")
        assert "cannot be reached" in (await session.run("Do the task")).result, "the client is created now"


async def test_one_preparation_serves_all_and_blocks_no_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, _ = create_certificate(tmp_path)
    pipe, model = tmp_path / "pipe", model_at(REFUSED)
    os.mkfifo(pipe)
    monkeypatch.setenv("SSL_CERT_FILE", str(pipe))
    async with open_session(model) as session:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.chain.prepare)
            writer = await trio.to_thread.run_sync(os.open, pipe, os.O_WRONLY)  # waits until the pipe is read
            nursery.cancel_scope.cancel()
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        assert session.chain.interrupt()
        await session.chain.wait_idle()
        assert session.result.status == "interrupted"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(model.connect)
            await wait_all_tasks_blocked()
            os.write(writer, certificate.read_bytes())
            os.close(writer)  # another preparation would read the pipe for ever


PREPARES_AND_ENDS = """
import sys
import trio
from chain.providers.anthropic.client import AnthropicModel
from chain.providers.anthropic.encoding import Parameters
from chain.providers.anthropic.service import Service

async def main():
    model = AnthropicModel(Parameters("m", 10), Service("key"))
    with trio.move_on_after(float(sys.argv[1])):
        await model.prepare()
    await model.aclose()
    print("ended")

trio.run(main)
"""


@pytest.mark.parametrize("patience_s", first_in_short_run([0.0, 0.1, 0.3, 60.0]))  # the import takes 0.1 s
def test_a_program_may_end_during_the_import(patience_s: float) -> None:
    args = [sys.executable, "-c", PREPARES_AND_ENDS, str(patience_s)]
    done = subprocess.run(args, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")
