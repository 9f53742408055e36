"""Debug traces: what is in them, and that they stop nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support import MemoryFile, Recorder, Session, check_invariants, settings
from support.disks import files_at_most

from chain import events
from chain.app.open import open_chain
from chain.journal.journal import Journal
from chain.messages import Message, user_text
from chain.model import Request
from chain.providers.scripted.scripted_model import ScriptedModel
from chain.session.trace import Trace

MODEL = """
rules:
  - {when: {step: 1}, thinking: Hm., text: Looking., tools: [{name: plan_list, input: {}}]}
  - {text: The answer.}
"""


def read(path: str | Path) -> Any:
    return json.loads(Path(path).read_text())


async def traced(folder: Path, *queries: str) -> Session:
    """Run the queries with traces in the folder; a line comes in each first iteration."""
    model, file = Recorder(ScriptedModel.parse(MODEL)), MemoryFile()
    use = settings()
    async with open_chain(
        use, workspace=folder, state=folder, model=model, journal=Journal(file, id="s"), traces=folder / "traces"
    ) as chain:
        session = Session(chain, model, file)
        model.on_request = session.mark
        chain.listen(session.hear)
        chain.listen(lambda e: chain.submit("use B") and None if isinstance(e, events.ToolCall) else None)
        for query in queries:
            await session.run(query)
    return session


async def test_a_run_has_a_file_with_requests_replies_and_tools(tmp_path: Path) -> None:
    session = await traced(tmp_path, "Do the task")

    path = session.result.trace_path
    assert path == str(tmp_path / "traces" / "s-1.json")
    assert session.of(events.UserInterruption)[0].trace_path == path
    trace = read(path)
    steps = [step["type"] for step in trace["steps"]]
    assert (trace["session"], trace["run"], trace["query"]) == ("s", 1, "Do the task")
    assert steps[0:4] == ["receipt", "iteration_started", "request", "response"]
    assert [s for s in steps if s in ("tool_call", "tool_result")] == ["tool_call", "tool_result"]
    assert steps[-1] == "result"
    first, second = [step for step in trace["steps"] if step["type"] == "request"]
    assert first["system"] == "You are a test."
    assert "plan_add_task" in [t["name"] for t in first["tools"]]
    assert "system" not in second, "what did not change is not written again"
    assert second["messages_before"] == 1
    assert [m["role"] for m in second["messages"]] == ["assistant", "user", "user"]
    assert second["tail"]
    response = next(step for step in trace["steps"] if step["type"] == "response")
    assert response["time"] >= first["time"]
    assert response["seconds"] >= 0
    assert (response["agent"], response["stop_reason"]) == ("main", "tool_use")
    check_invariants(session)


async def test_each_run_has_its_own_file_that_nobody_else_may_read(tmp_path: Path) -> None:
    await traced(tmp_path, "Do the task", "Do it again")

    files = sorted((tmp_path / "traces").iterdir())
    assert [read(f)["query"] for f in files] == ["Do the task", "Do it again"]
    assert {f.stat().st_mode & 0o777 for f in files} == {0o600}


async def test_a_folder_that_cannot_be_made_costs_the_trace_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "traces").write_text("a file in its place")

    session = await traced(tmp_path, "Do the task")

    assert session.result.status == "done"
    assert session.result.trace_path is None


async def test_a_trace_can_be_read_while_the_run_goes_on(tmp_path: Path) -> None:
    seen: list[int] = []
    model, file = Recorder(ScriptedModel.parse(MODEL)), MemoryFile()
    async with open_chain(
        settings(), workspace=tmp_path, state=tmp_path, model=model, journal=Journal(file, id="s"), traces=tmp_path
    ) as chain:
        path = tmp_path / "s-1.json"
        chain.listen(lambda e: seen.append(len(read(path)["steps"])) if path.exists() else None)
        chain.submit("Do the task")
        await chain.wait_idle()

    assert seen == sorted(seen)
    assert seen[-1] > 6


async def test_of_each_conversation_only_what_is_new_is_written(tmp_path: Path) -> None:
    trace = Trace(tmp_path, "s")
    ask = trace.tracer("main", ScriptedModel.parse("rules: [{text: ok}]"))
    memories: dict[str, dict[object, Any]] = {"A": {}, "B": {}}
    histories: dict[str, list[Message]] = {name: [] for name in memories}
    for run in range(2):
        trace.on_event(events.RunStarted(id="", query=f"{run}, with a lone surrogate \ud800"))
        for _ in range(3):
            for name, memory in memories.items():
                histories[name].append(user_text(name))
                request = Request(f"You are {name}.", tuple(histories[name]), memory=memory)
                histories[name].append((await ask(request, lambda delta: None)).message)
        steps = [s for s in read(tmp_path / f"s-{run + 1}.json")["steps"] if s["type"] == "request"]
        for n, name in enumerate(memories):
            first, *later = steps[n::2]
            assert (first["system"], first["messages_before"]) == (f"You are {name}.", 0), "a file is whole by itself"
            assert len(first["messages"]) == 6 * run + 1
            assert [s["messages_before"] for s in later] == [6 * run + 1, 6 * run + 3]
            assert all([m["role"] for m in s["messages"]] == ["assistant", "user"] for s in later)
    *kept, _, _ = histories["A"]  # the last query and its reply leave the conversation
    await ask(Request("You are A.", (*kept, user_text("instead")), memory=memories["A"]), lambda delta: None)
    last = [s for s in read(tmp_path / "s-2.json")["steps"] if s["type"] == "request"][-1]
    assert (last["messages_before"], len(last["messages"])) == (len(kept), 1)
    trace.close()


def test_a_full_disk_ends_the_trace_and_leaves_whole_what_was_written(tmp_path: Path) -> None:
    trace = Trace(tmp_path, "s")
    trace.on_event(events.RunStarted(id="L1", query="Do the task"))
    trace.step("one", {})
    path = tmp_path / "s-1.json"
    with files_at_most(path.stat().st_size + 20):
        trace.step("two", {"text": "x" * 100})
    trace.step("three", {})
    assert [step["type"] for step in read(path)["steps"]] == ["one"]
