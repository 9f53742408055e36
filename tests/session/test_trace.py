"""Debug traces: their contents, and failures that do not affect the run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support import Session, open_session
from support.disks import files_at_most

from chain import events
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


async def traced(folder: Path, *queries: str, on_event: Callable[[], None] = lambda: None) -> Session:
    """Run the queries with traces in the folder. A line arrives in each first iteration."""
    async with open_session(MODEL, traces=folder / "traces") as session:

        def act(event: events.Event) -> None:
            on_event()
            if isinstance(event, events.ToolCall):
                session.chain.submit("use B")

        session.chain.listen(act)
        for query in queries:
            await session.run(query)
    return session


async def test_a_trace_has_requests_replies_and_tools(tmp_path: Path) -> None:
    session = await traced(tmp_path, "Do the task")

    path = session.result.trace_path
    assert path == str(tmp_path / "traces" / "test-1.json")
    assert session.of(events.UserInterruption)[0].trace_path == path
    trace = read(path)
    types = [step["type"] for step in trace["steps"]]
    assert (trace["session"], trace["run"], trace["query"]) == ("test", 1, "Do the task")
    assert types[0:4] == ["receipt", "iteration_started", "request", "response"]
    assert [each for each in types if each in ("tool_call", "tool_result")] == ["tool_call", "tool_result"]
    assert types[-1] == "result"
    first, second = [step for step in trace["steps"] if step["type"] == "request"]
    assert first["system"] == "You are a test."
    assert "plan_add_task" in [t["name"] for t in first["tools"]]
    assert "system" not in second, "only changes are written"
    assert second["messages_before"] == 1
    assert [m["role"] for m in second["messages"]] == ["assistant", "user", "user"]
    assert second["tail"]
    response = next(step for step in trace["steps"] if step["type"] == "response")
    assert response["time"] >= first["time"]
    assert response["seconds"] >= 0
    assert (response["agent"], response["stop_reason"]) == ("main", "tool_use")


async def test_each_run_has_a_private_file(tmp_path: Path) -> None:
    sizes: list[int] = []

    def look() -> None:
        path = tmp_path / "traces" / "test-1.json"
        sizes.extend([len(read(path)["steps"])] if path.exists() else [])

    await traced(tmp_path, "Do the task", "Do it again", on_event=look)
    files = sorted((tmp_path / "traces").iterdir())
    assert [read(f)["query"] for f in files] == ["Do the task", "Do it again"]
    assert {f.stat().st_mode & 0o777 for f in files} == {0o600}
    assert sizes == sorted(sizes), "it can be read at every moment"
    assert sizes[-1] > 6


async def test_an_unusable_folder_affects_only_the_trace(tmp_path: Path) -> None:
    (tmp_path / "traces").write_text("a file in its place")

    session = await traced(tmp_path, "Do the task")

    assert session.result.status == "done"
    assert session.result.trace_path is None


async def test_only_new_messages_are_written(tmp_path: Path) -> None:
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


def test_a_full_disk_ends_the_trace(tmp_path: Path) -> None:
    trace = Trace(tmp_path, "s")
    trace.on_event(events.RunStarted(id="L1", query="Do the task"))
    trace.step("one", {})
    path = tmp_path / "s-1.json"
    with files_at_most(path.stat().st_size + 20):
        trace.step("two", {"text": "x" * 100})
    trace.step("three", {})
    assert [step["type"] for step in read(path)["steps"]] == ["one"]
