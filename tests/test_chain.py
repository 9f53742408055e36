"""What a front end asks of a chain between its lines: take one back, send what waits, change the model, prepare."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import trio
from support import (
    FullDisk,
    Recorder,
    check_invariants,
    open_session,
    settings,
)
from support.disks import SMALL, MemoryFile
from support.examples import one
from support.gate import TWO_STEPS, Gate, begin, finish
from support.house import ROOT
from support.wire import model_at
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.config.retries import Retries
from chain.errors import JournalError, UserError
from chain.journal import json as record_json
from chain.journal import records
from chain.plan import Task
from chain.providers.scripted.scripted_model import ScriptedModel
from chain.session.exit_codes import LINES_LEFT

ANSWER = "rules: [{text: The answer.}]"


def scripted(rules: str = "rules: [{text: The other answer.}]", name: str = "other") -> Recorder:
    return Recorder(ScriptedModel.parse(f"name: {name}\n{rules}"))


# --------------------------------------------------------------------------------------------------------- dropping


async def test_a_dropped_line_never_reaches_the_model_and_its_text_is_the_users_again() -> None:
    gate = Gate()
    async with open_session(TWO_STEPS, tools=[gate.tool]) as session:
        await begin(session, gate, "use B", "!Use C  ", "context: it is late")
        assert session.chain.lines.last_waiting() == "L4"
        assert session.chain.lines.drop("l3", "edited") == "!Use C  "
        assert [a.id for a in session.chain.lines.waiting] == ["L2", "L4"]
        await finish(session, gate)
        assert "Use C" not in session.sent()
        [entered] = session.of(events.UserInterruption)
        assert (entered.ids, entered.point, entered.tools_skipped) == (("L2", "L4"), "D", ())
        [dropped] = [r for r in session.of(events.Receipt) if r.id == "L3"]
        assert (dropped.state, dropped.reason, dropped.iteration) == ("dropped", "edited", 1)
        assert session.result.exit_code == 0


async def test_what_cannot_be_dropped_is_told_with_what_waits() -> None:
    gate = Gate()
    async with open_session(TWO_STEPS, tools=[gate.tool]) as session:
        with pytest.raises(UserError, match=r"^no line is waiting$"):
            session.chain.lines.drop("L1")
        assert session.chain.lines.last_waiting() is None
        await begin(session, gate, "use B", "then: the next")
        with pytest.raises(UserError, match=r"^L1 is not waiting; the waiting lines are L2, L3$"):
            session.chain.lines.drop("L1")
        await finish(session, gate)
        assert [e.query for e in session.of(events.RunStarted)] == ["Do the task", "the next"]


async def test_a_query_is_told_as_it_was_typed() -> None:
    async with open_session("rules: [{text: Noted.}]") as session:
        session.chain.submit("context: it is late")
        await session.chain.wait_idle()
        assert [e.query for e in session.of(events.RunStarted)] == ["context: it is late"]
        assert session.model.requests[0].messages[-1].text == "[USER ADDED] it is late"


async def test_a_line_that_a_running_tool_has_acted_on_stays() -> None:
    gate = Gate(asks=True)
    async with open_session(TWO_STEPS, tools=[gate.tool]) as session:
        await begin(session, gate, "use B", "focus on prices")
        assert session.chain.lines.last_waiting() == "L3"
        gate.asked.set()
        await wait_all_tasks_blocked()
        assert gate.heard == ["prices"]
        assert session.chain.lines.last_waiting() == "L2", "the latest of those that can still be dropped"
        with pytest.raises(UserError, match="a running tool has acted on L3 already, so it cannot be dropped any more"):
            session.chain.lines.drop("L3")
        await finish(session, gate)
        assert session.state("L3") == "delivered"


async def test_a_sender_that_waits_for_room_gets_the_place_of_a_dropped_line() -> None:
    gate = Gate()
    async with open_session(TWO_STEPS, tools=[gate.tool], use=settings(inbox_size=1)) as session:
        await begin(session, gate, "use B")

        async def send() -> None:
            await session.chain.lines.wait_for_change()
            assert session.chain.submit("use C").what == "queued"

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await wait_all_tasks_blocked()
            assert session.chain.lines.drop("L2") == "use B"
        await finish(session, gate)
        assert session.sent(1).endswith("USER INTERRUPTION: use C")


# ------------------------------------------------------------------------------------------ lines that wait from before


async def test_without_a_line_that_waits_no_run_is_started() -> None:
    async with open_session(ANSWER, interactive=True) as session:
        assert not session.chain.runs.begin_waiting()
        assert not session.chain.is_running
        assert (await session.run("Do the task")).status == "done"
        assert not session.chain.runs.begin_waiting()
        assert len(session.model.requests) == 1


async def test_waiting_lines_stay_with_a_run_that_is_active() -> None:
    gate = Gate()
    async with open_session(TWO_STEPS, tools=[gate.tool], interactive=True) as session:
        await begin(session, gate, "use B")
        assert not session.chain.runs.begin_waiting()
        assert [accepted.id for accepted in session.chain.lines.waiting] == ["L2"]
        await finish(session, gate)
        assert len(session.of(events.RunStarted)) == 1


# ------------------------------------------------------------------------------------------ with the plan of another


async def test_a_session_begins_with_the_plan_that_it_is_given() -> None:
    tasks = (Task("buy milk"), Task("find a shop", "DONE"), Task("ask for credit", "FAILED", "none is given"))
    async with open_session(ANSWER, plan=iter(tasks)) as session:
        assert session.chain.plan.tasks == tasks
        plan = record_json.from_json(session.records[1]).record
        assert isinstance(plan, records.PlanRestored)
        assert plan.by == "user"
        assert [(view.n, view.text, view.state, view.reason) for view in plan.tasks] == [
            (1, "buy milk", "PENDING", ""),
            (2, "find a shop", "DONE", ""),
            (3, "ask for credit", "FAILED", "none is given"),
        ]
        await session.run("Do the task")
        await session.run("Do another task")
        assert [request.tail for request in session.model.requests] == [(session.chain.plan.render(),), ()]
        check_invariants(session)


async def test_without_a_plan_a_session_begins_with_none() -> None:
    async with open_session(ANSWER) as session:
        assert [record["type"] for record in session.records] == ["session"]
        await session.run("Do the task")
        assert session.model.requests[0].tail == ()


async def test_a_session_whose_plan_cannot_be_recorded_is_not_opened() -> None:
    disk = FullDisk()
    disk.room = SMALL
    with pytest.raises(UserError, match="No space left"):
        async with open_session(ANSWER, file=disk, plan=[Task("x" * SMALL)]):
            pytest.fail("it was opened")


# ------------------------------------------------------------------------------------------------- another model


async def test_the_next_run_asks_the_other_model() -> None:
    other = scripted()
    async with open_session(f"name: first\n{ANSWER}") as session:
        await session.run("Do the task")
        session.chain.use_model(other)
        assert session.chain.init.model == "other"
        assert (session.records[-1]["type"], session.records[-1]["name"]) == ("model", "other")
        [init] = await session.chain.feed().batch()
        assert isinstance(init, events.Init)
        assert init.model == "other"
        assert (await session.run("Do another task")).result == "The other answer."
        assert (len(session.model.requests), len(other.requests)) == (1, 1)
        assert [m.text for m in other.requests[0].messages] == ["Do the task", "The answer.", "Do another task"]
        check_invariants(session)
        assert (session.model.closed, other.closed) == (0, 0)
    assert (session.model.closed, other.closed) == (1, 1)


@pytest.mark.parametrize("begun", [True, False])
async def test_a_run_that_is_active_keeps_its_model_to_its_end(begun: bool) -> None:
    gate, other = Gate(), scripted()
    async with open_session(TWO_STEPS, tools=[gate.tool]) as session:
        if begun:
            await begin(session, gate, "then: Do the next task")
        else:
            session.chain.submit("Do the task")
            session.chain.submit("then: Do the next task")
        session.chain.use_model(other)
        assert session.chain.init.model == "other"
        await finish(session, gate)
        assert [r.result for r in session.of(events.Result)] == ["The answer.", "The other answer."]
        assert (len(session.model.requests), len(other.requests)) == (2, 1)


async def test_a_model_comes_with_its_number_of_attempts(autojump_clock: MockClock) -> None:
    failing = "rules: [{text: x, error: {message: too busy, retryable: true, cause: overloaded}}]"
    use = settings(max_attempts=3, models='{"once": 1, "often": 5}')
    async with open_session(ANSWER, use=use) as session:
        cases = (("x", None, 3), ("once", Retries(1), 1), ("y", None, 1), ("often", Retries(5), 5))
        for name, retries, expected in cases:
            other = scripted(failing, name)
            session.chain.use_model(other, retries=retries)
            assert (await session.run("Go")).status == "error"
            assert len(other.requests) == expected
        assert session.chain.max_iterations == 20
        check_invariants(session)


async def test_a_change_of_model_that_cannot_be_recorded_is_none() -> None:
    disk, other = FullDisk(), scripted()
    async with open_session(f"name: first\n{ANSWER}", file=disk) as session:
        disk.full = True
        with pytest.raises(JournalError, match="No space left"):
            session.chain.use_model(other)
        disk.full = False
        assert session.chain.init.model == "first"
        assert (await session.run("Do the task")).result == "The answer."
    assert (other.requests, other.closed) == ([], 0)


class Closing(Recorder):
    """A model that takes so long to close."""

    takes_s = 0.0

    async def aclose(self) -> None:
        await trio.sleep(self.takes_s)
        await super().aclose()


async def test_models_are_closed_though_the_disk_hangs_and_one_of_them_too(autojump_clock: MockClock) -> None:
    file = MemoryFile()
    others = [Closing(ScriptedModel.parse(ANSWER)) for _ in range(2)]
    others[0].takes_s = 1_000
    async with trio.open_nursery() as nursery:
        async with open_session(ANSWER, file=file) as session:
            for other in others:
                session.chain.use_model(other)
            await session.run("Do the task")
            file.hold()

            @nursery.start_soon
            async def go_on() -> None:
                await trio.sleep(100)
                file.release()

        assert [each.closed for each in (session.model, *others)] == [1, 0, 1]


async def test_a_model_that_comes_back_is_closed_once() -> None:
    other = scripted()
    async with open_session(ANSWER) as session:
        for model in (other, session.model, other, other, session.model):
            session.chain.use_model(model)
        assert (await session.run("Do the task")).result == "The answer."
    assert (session.model.closed, other.closed) == (1, 1)


async def test_the_other_model_is_traced_and_prepared_too(tmp_path: Path) -> None:
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
        [response] = [s for s in trace["steps"] if s["type"] == "response"]
        assert response["message"]["content"][0]["text"] == "The other answer."


async def test_a_closing_chain_takes_no_model_and_begins_nothing() -> None:
    refused: list[str] = []
    gate = Gate()

    def at_the_end(event: events.Event) -> None:
        if isinstance(event, events.Result):
            with pytest.raises(UserError) as caught:
                session.chain.use_model(scripted())
            refused.append(str(caught.value))
            assert not session.chain.runs.begin_waiting()

    async with open_session(TWO_STEPS, tools=[gate.tool]) as session:
        session.chain.listen(at_the_end)
        await begin(session, gate)
    assert refused == ["the chain is closing"]


async def test_what_a_front_end_shows() -> None:
    async with open_session(ANSWER, use=settings(inbox_size=3, max_iterations=7)) as session:
        chain = session.chain
        assert (chain.inbox_size, chain.max_iterations, chain.state.trace_path()) == (3, 7, None)


# ------------------------------------------------------------------------------------------------------- preparing


class Import:
    """Stands before the import of ``httpx2``: holds it, counts it, lets it fail."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module
        self.count = 0
        self.fails = False
        self.begun = trio.Event()
        self._token = trio.lowlevel.current_trio_token()
        self._go_on = threading.Event()
        self._go_on.set()

    def hold(self) -> None:
        self._go_on.clear()

    def release(self) -> None:
        self._go_on.set()

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        if name != "httpx2":
            return None
        self.count += 1
        self._token.run_sync_soon(self.begun.set)
        assert self._go_on.wait(60)
        if self.fails:
            raise ImportError("it is broken")
        return ModuleSpec(name, self)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        """It was executed when the tests began."""


@pytest.fixture
async def importing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The next import of ``httpx2``."""
    import httpx2

    held = Import(httpx2)
    monkeypatch.setattr(httpx2, "__spec__", httpx2.__spec__)
    monkeypatch.delitem(sys.modules, "httpx2")
    monkeypatch.setattr(sys, "meta_path", [held, *sys.meta_path])
    yield held
    held.release()


async def test_preparing_builds_the_client(importing: Import) -> None:
    adapter = model_at("http://127.0.0.1:9")
    async with open_session(adapter) as session:
        await session.chain.prepare()
        assert importing.count == 1
        assert await adapter.connect() is await adapter.connect()
        await session.chain.prepare()
        assert importing.count == 1


async def test_a_preparation_that_fails_is_told_by_the_first_call(importing: Import) -> None:
    importing.fails = True
    adapter = model_at("http://127.0.0.1:9")
    async with open_session(adapter) as session:
        await session.chain.prepare()
        assert session.events == []
        result = await session.run("Do the task")
        assert result.status == "error"
        assert "cannot be created (ImportError: it is broken); check the installation, base_url," in result.result
        assert importing.count == 2
        check_invariants(session)


async def test_who_leaves_at_once_does_not_wait_and_who_calls_waits_for_the_same_import(importing: Import) -> None:
    importing.hold()
    adapter = model_at("http://127.0.0.1:9")
    clients: list[object] = []

    async def connect() -> None:
        clients.append(await adapter.connect())

    async with open_session(adapter) as session:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.chain.prepare)
            await importing.begun.wait()
            nursery.cancel_scope.cancel()
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        assert session.chain.interrupt(), "a run that waits for the import can be interrupted"
        await session.chain.wait_idle()
        assert session.result.status == "interrupted"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connect)
            nursery.start_soon(connect)
            await wait_all_tasks_blocked()
            assert clients == []
            importing.release()
        assert clients[0] is clients[1]
        assert importing.count == 1
        check_invariants(session)


LEAVES = """
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
    print("left")

trio.run(main)
"""


@pytest.mark.parametrize("seconds", one([0.0, 0.1, 0.3, 60.0]))
def test_a_program_may_end_in_the_middle_of_the_import(seconds: float) -> None:
    args = [sys.executable, "-c", LEAVES, str(seconds)]
    done = subprocess.run(args, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "left\n", "")


# ------------------------------------------------------------------------------------- at any time, whatever happens

# ------------------------------------------------------------------------------------- where a line came from it goes


@pytest.mark.parametrize(("origin", "is_own"), [("prompt", True), ("script", True), ("json", True), ("door", False)])
async def test_lines_of_others_are_not_counted_as_the_processes_own(origin: events.Origin, is_own: bool) -> None:
    gate = Gate()
    async with open_session(TWO_STEPS, tools=[gate.tool], use=settings(inbox_size=1)) as session:
        await begin(session, gate)
        session.chain.submit("use B", origin=origin)
        session.chain.submit("use C", origin=origin)
        session.chain.submit("stop", origin=origin)
        await finish(session, gate)
        told = [(r.id, r.state, r.origin) for r in session.of(events.Receipt) if r.id != "L1"]
        assert told == [("", "refused", origin), ("L3", "handled", origin), ("L2", "returned", origin)]
        assert session.chain.runs.exit_code() == (LINES_LEFT if is_own else 0)
        check_invariants(session)


async def test_only_the_prompts_own_lines_are_taken_back() -> None:
    gate = Gate()
    async with open_session(TWO_STEPS, tools=[gate.tool]) as session:
        await begin(session, gate, "use B")
        session.chain.submit("use C", origin="door")
        assert session.chain.lines.last_waiting() == "L2"
        session.chain.lines.drop("L3")
        await finish(session, gate)


async def test_half_of_a_surrogate_pair_in_a_query_is_replaced() -> None:
    async with open_session(ANSWER) as session:
        session.chain.start("hello \ud800")
        await session.chain.wait_idle()
        assert session.model.requests[0].messages[0].text == "hello ?"
