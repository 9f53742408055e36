"""Debug traces: their contents, and failures that do not affect the run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.disks import limit_file_size
from support.sessions import Session, open_session

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


def requests_in(path: Path) -> list[dict[str, Any]]:
    return [step for step in read(path)["steps"] if step["type"] == "request"]


async def run_with_traces(folder: Path, *queries: str, on_event: Callable[[], None] = lambda: None) -> Session:
    """Run the queries with traces in the folder. A line arrives during the first tool of each run."""
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
    session = await run_with_traces(tmp_path, "Do the task")
    path = tmp_path / "traces" / "test-1.json"
    [interruption] = session.of(events.UserInterruption)
    assert session.result.trace_path == interruption.trace_path == str(path)
    trace = read(path)
    assert (trace["session"], trace["run"], trace["query"]) == ("test", 1, "Do the task")
    types = [step["type"] for step in trace["steps"]]
    start, iteration, request, reply, *during_run, end = types
    assert (start, iteration, request, reply) == ("receipt", "iteration_started", "request", "response")
    assert [each for each in during_run if each in ("tool_call", "tool_result")] == ["tool_call", "tool_result"]
    assert end == "result"
    first, second = requests_in(path)
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
    await run_with_traces(tmp_path, "Do the task", "Do it again")
    files = sorted((tmp_path / "traces").iterdir())
    assert [read(f)["query"] for f in files] == ["Do the task", "Do it again"]
    assert {f.stat().st_mode & 0o777 for f in files} == {0o600}


async def test_a_trace_can_be_read_at_every_moment(tmp_path: Path) -> None:
    step_counts: list[int] = []

    def read_trace() -> None:
        path = tmp_path / "traces" / "test-1.json"
        if path.exists():
            step_counts.append(len(read(path)["steps"]))

    await run_with_traces(tmp_path, "Do the task", on_event=read_trace)
    assert step_counts == sorted(step_counts)
    assert len(set(step_counts)) > 3, "it grows during the run"


async def test_an_unusable_folder_affects_only_the_trace(tmp_path: Path) -> None:
    (tmp_path / "traces").write_text("a file in its place")
    session = await run_with_traces(tmp_path, "Do the task")
    assert session.result.status == "done"
    assert session.result.trace_path is None


class TracedConversation:
    """A conversation whose requests are traced. ``memory`` is what the model's adapter stores between requests."""

    def __init__(self, trace: Trace, name: str) -> None:
        self._ask = trace.tracer("main", ScriptedModel.parse("rules: [{text: ok}]"))
        self._system = f"You are {name}."
        self._memory: dict[object, Any] = {}
        self.messages: list[Message] = []

    async def ask(self, text: str) -> None:
        self.messages.append(user_text(text))
        request = Request(self._system, tuple(self.messages), memory=self._memory)
        self.messages.append((await self._ask(request, lambda delta: None)).message)


async def test_only_new_messages_are_written(tmp_path: Path) -> None:
    trace = Trace(tmp_path, "s")
    conversations = [TracedConversation(trace, name) for name in "AB"]
    for run, path in ((0, tmp_path / "s-1.json"), (1, tmp_path / "s-2.json")):
        trace.on_event(events.RunStarted(id="", query=f"{run}, with a lone surrogate \ud800"))
        for _ in range(3):
            for conversation in conversations:
                await conversation.ask("Go on")
        messages_before_run = 6 * run
        for n, name in enumerate("AB"):
            first, second, third = requests_in(path)[n::2]  # the conversations send requests in turn
            assert (first["system"], first["messages_before"]) == (f"You are {name}.", 0), "each file is complete"
            assert len(first["messages"]) == messages_before_run + 1
            for request, messages_before in ((second, messages_before_run + 1), (third, messages_before_run + 3)):
                assert request["messages_before"] == messages_before
                assert [message["role"] for message in request["messages"]] == ["assistant", "user"]
    trace.close()


async def test_a_rewound_conversation_is_traced(tmp_path: Path) -> None:
    trace = Trace(tmp_path, "s")
    trace.on_event(events.RunStarted(id="", query="Do the task"))
    conversation = TracedConversation(trace, "A")
    for query in ("one", "two"):
        await conversation.ask(query)
    del conversation.messages[-2:]  # the second query and its reply
    messages_before = len(conversation.messages)
    await conversation.ask("instead")
    *_, last = requests_in(tmp_path / "s-1.json")
    assert (last["messages_before"], len(last["messages"])) == (messages_before, 1)
    trace.close()


def test_a_full_disk_ends_the_trace(tmp_path: Path) -> None:
    trace = Trace(tmp_path, "s")
    trace.on_event(events.RunStarted(id="L1", query="Do the task"))
    trace.step("one", {})
    path = tmp_path / "s-1.json"
    with limit_file_size(path.stat().st_size + 20):  # too little for the next step
        trace.step("two", {"text": "x" * 100})
    trace.step("three", {})
    assert [step["type"] for step in read(path)["steps"]] == ["one"]
