"""An editor in memory that speaks the Agent Client Protocol with the agent of chain."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from chain.config.load import load_settings
from chain.tools.tool import Tool
from cli.acp.methods import EditorAgent
from cli.acp.opener import SessionOpener
from cli.acp.rpc import RpcError
from cli.acp.wire import Wire
from cli.input.splitter import RawLine
from cli.outbox import ROOM, Outbox

from .project import ROOT

RULES = r"""
rules:
  - {when: {interruption: '(?P<all>[\s\S]+)'}, text: "Understood: ${all}", and: continue}
  - {when: {user: '\Await', tool: wait}, text: "Waited."}
  - {when: {user: '\Await'}, text: "Looking.", tools: [{name: wait, input: {}}]}
  - {when: {user: '\Astream'}, text: "one two LONG seven", pace: {chunk: 4, delay_s: 0.02}}
  - {when: {user: '\Awrite', tool: write_file}, text: "Written: ${result}"}
  - {when: {user: '\Awrite'}, tools: [{name: write_file, input: {path: new.txt, content: "a\nb\n"}}]}
  - {when: {user: '\Aask', tool: ask_user_question}, text: "You said: ${result}"}
  - {when: {user: '\Aask'}, tools: [{name: ask_user_question, input: {question: "Which?", options: [left, stop]}}]}
  - {when: {user: '\Aplan', tool: plan_set_tasks}, text: "Planned."}
  - {when: {user: '\Aplan'}, tools: [{name: plan_set_tasks, input: {tasks: [look, write]}}]}
  - {when: {user: '\Arefuse'}, text: "No.", stop_reason: refusal}
  - {when: {user: '\Along'}, text: "Too lo", stop_reason: max_tokens}
  - {when: {user: '\Aloop', tool: plan_list}, tools: [{name: plan_list, input: {}}]}
  - {when: {user: '\Aloop'}, tools: [{name: plan_list, input: {}}]}
  - {when: {user: 'Greet Ada'}, text: "Good day."}
  - {when: {user: '\Afail'}, error: {message: the service is gone, retryable: false}}
  - {text: "Hello."}
""".replace("LONG", "three " * 1_000)
"""Rules by the first word of a prompt. The text of ``stream`` takes 30 s, longer than any test streams it."""

TOOL_GROUPS = ("todo", "ask", "files", "edit")

with_unread_end = pytest.mark.parametrize("config", [{"max_iterations": ROOM}], indirect=True, ids=["unread end"])
"""The run of ``loop`` has more updates than can wait for the editor. So its end stays unsent until the editor reads."""


@dataclass
class AgentRequest:
    """A request of the agent, which the editor answers."""

    id: object
    method: str
    params: dict[str, Any]


@dataclass
class Editor:
    """A client that sends rows to an agent, and stores the agent's messages once ``reads`` is set."""

    rows: trio.MemorySendChannel[RawLine]
    answers: dict[object, dict[str, Any]] = field(default_factory=dict)
    """The answers to the editor's requests, by the ids of the requests."""
    notifications: list[dict[str, Any]] = field(default_factory=list)
    requests: list[AgentRequest] = field(default_factory=list)
    """The requests of the agent."""
    log: list[tuple[str, object]] = field(default_factory=list)
    """The received messages in order: ``answer`` and the id, or the method and the kind of update."""
    outbox: Outbox = field(init=False)
    warnings: list[str] = field(default_factory=list)
    """What the agent writes to its standard error."""
    reads: trio.Event = field(default_factory=trio.Event)
    _changed: trio.Event = field(default_factory=trio.Event)
    _last_id: int = 0
    _row_number: int = 0

    def send_row(self, text: str) -> None:
        self._row_number += 1
        self.rows.send_nowait(RawLine(text, self._row_number))

    def send(self, **message: object) -> None:
        self.send_row(json.dumps({"jsonrpc": "2.0", **message}))

    def start_request(self, method: str, **params: object) -> int:
        """Send a request, and return its id."""
        self._last_id += 1
        self.send(id=self._last_id, method=method, params=params)
        return self._last_id

    def notify(self, method: str, **params: object) -> None:
        self.send(method=method, params=params)

    def answer(self, request: AgentRequest, **result: object) -> None:
        self.send(id=request.id, result=result)

    def choose_option(self, request: AgentRequest, option: str) -> None:
        """Answer a request for permission."""
        self.answer(request, outcome={"outcome": "selected", "optionId": option})

    def pause_reading(self) -> None:
        """Leave the agent's messages unread until ``reads`` is set again."""
        self.reads = trio.Event()

    async def receive(self, rows: bytes) -> None:
        """Receive rows of the agent."""
        await trio.lowlevel.checkpoint()
        await self.reads.wait()
        assert rows.endswith(b"\n")
        for row in rows.splitlines():
            self._store(json.loads(row))
        self._changed.set()
        self._changed = trio.Event()

    def _store(self, message: dict[str, Any]) -> None:
        assert message.pop("jsonrpc") == "2.0"
        if "method" not in message:
            self.answers[message["id"]] = message
            self.log.append(("answer", message["id"]))
        elif "id" in message:
            self.requests.append(AgentRequest(message["id"], message["method"], message["params"]))
            self.log.append((message["method"], message["id"]))
        else:
            self.notifications.append(message)
            update = message["params"].get("update", {})
            self.log.append((message["method"], update.get("sessionUpdate")))

    @property
    def last_message(self) -> tuple[str, object]:
        return self.log[-1]

    async def wait_until(self, condition: Callable[[], object]) -> None:
        """Wait until a condition holds. It is checked at each message."""
        while not condition():
            await self._changed.wait()

    async def result(self, id: object) -> dict[str, Any]:
        """Wait for the answer to a request, and return its result. Raise ``RpcError`` if it is an error."""
        await self.wait_until(lambda: id in self.answers)
        if error := self.answers[id].get("error"):
            raise RpcError(error["code"], error["message"], error.get("data"))
        result: dict[str, Any] = self.answers[id]["result"]
        return result

    async def call(self, method: str, **params: object) -> dict[str, Any]:
        """Send a request, and return its result. Raise ``RpcError`` if the answer is an error."""
        return await self.result(self.start_request(method, **params))

    async def error_of(self, method: str, **params: object) -> RpcError:
        """Send a request, and return the error that answers it."""
        try:
            result = await self.call(method, **params)
        except RpcError as error:
            return error
        raise AssertionError(f"{method} gave {result}")

    async def nth_request(self, nth: int = 1) -> AgentRequest:
        """Wait for the nth request of the agent."""
        await self.wait_until(lambda: len(self.requests) >= nth)
        return self.requests[nth - 1]

    def updates(self, kind: str = "") -> list[dict[str, Any]]:
        """Return the updates of a kind, or all."""
        updates = [m["params"]["update"] for m in self.notifications if m["method"] == "session/update"]
        return [update for update in updates if not kind or update["sessionUpdate"] == kind]

    def text(self, kind: str = "agent_message_chunk") -> str:
        """Return the text of the chunks of a kind."""
        return "".join(update["content"]["text"] for update in self.updates(kind))

    def tool_calls(self) -> dict[str, dict[str, Any]]:
        """Return the tool calls by their ids, with all updates applied."""
        calls: dict[str, dict[str, Any]] = {}
        for update in self.updates():
            if update["sessionUpdate"] in ("tool_call", "tool_call_update"):
                calls.setdefault(update["toolCallId"], {}).update(update)
        return calls

    def receipts(self, state: str = "") -> list[dict[str, Any]]:
        """Return the receipts with a state, or all."""
        receipts = [m["params"] for m in self.notifications if m["method"] == "_chain/receipt"]
        return [receipt for receipt in receipts if not state or receipt["state"] == state]

    def receipt_states(self, line: str) -> list[str]:
        """Return the states in the receipts of a line, in order."""
        return [receipt["state"] for receipt in self.receipts() if receipt["id"] == line]

    async def initialize(self, **params: object) -> dict[str, Any]:
        return await self.call("initialize", **{"protocolVersion": 1, **params})

    async def new_session(self, cwd: Path) -> str:
        """Open a session, and return its id."""
        id: str = (await self.call("session/new", cwd=str(cwd), mcpServers=[]))["sessionId"]
        return id

    def prompt(self, session: str, text: str) -> int:
        """Send a prompt, and return its id."""
        return self.start_request("session/prompt", **_line(session, text))

    async def run(self, session: str, text: str) -> str:
        """Send a prompt, and return its stop reason."""
        [reason] = await self.stop_reasons(self.prompt(session, text))
        return reason

    async def stop_reasons(self, *prompts: object) -> list[str]:
        return [(await self.result(id))["stopReason"] for id in prompts]

    async def prompt_error(self, session: str, text: str) -> RpcError:
        """Send a prompt, and return the error that answers it."""
        return await self.error_of("session/prompt", **_line(session, text))

    def start_steering(self, session: str, text: str, **params: object) -> int:
        """Send a line of steering, and return its id."""
        return self.start_request("_session/steering", **_line(session, text), **params)

    async def steer(self, session: str, text: str, **params: object) -> dict[str, Any]:
        """Send a line of steering, and return its result. Raise ``RpcError`` if the answer is an error."""
        return await self.result(self.start_steering(session, text, **params))


def _line(session: str, text: str) -> dict[str, object]:
    return {"sessionId": session, "prompt": [{"type": "text", "text": text}]}


async def next_row(channel: trio.MemoryReceiveChannel[RawLine]) -> RawLine | None:
    """Return the next row of a channel; ``None`` at its end."""
    try:
        return await channel.receive()
    except trio.EndOfChannel:
        return None


def opener(
    home: Path,
    rules: str,
    *,
    tools: Iterable[Tool] = (),
    groups: Iterable[str] = ("todo", "ask"),
    chains: Iterable[str] = ("default",),
    **more: object,
) -> SessionOpener:
    """Return an opener of sessions with a scripted model.

    ``groups`` are the groups of tools of each chain. ``more`` are other keys of the configuration.
    """
    home.mkdir(exist_ok=True)
    (home / "system.yaml").write_text("messages: [{role: system, content: You are a test.}]")
    (home / "rules.yaml").write_text(rules)
    chain = {
        "model": "test",
        "system_prompt": "system.yaml",
        "interruption_prompt": None,
        "tools": list(groups),
        "max_iterations": more.pop("max_iterations", 20),
    }
    config = {
        "models": {"default": "test", "definitions": {"test": {"provider": "scripted", "script": "rules.yaml"}}},
        "chains": dict.fromkeys(chains, chain),
        **more,
    }
    path = home / "config.yaml"
    path.write_text(json.dumps(config))
    return SessionOpener(
        lambda folder: load_settings(config=path, environ={}, cwd=folder, flags={}), home / "state", tuple(tools)
    )


@asynccontextmanager
async def open_uninitialized_editor(opener: SessionOpener) -> AsyncIterator[Editor]:
    """Yield an editor whose agent serves it until the end of the block."""
    sender, receiver = trio.open_memory_channel[RawLine](1_000)
    editor = Editor(sender)
    editor.reads.set()
    outbox = editor.outbox = Outbox(editor.receive)

    agent = EditorAgent(Wire(partial(next_row, receiver), outbox), opener, editor.warnings.append)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outbox.run)

        async def serve() -> None:
            await agent.run()
            await outbox.wait_empty()
            nursery.cancel_scope.cancel()

        nursery.start_soon(serve)
        yield editor
        await sender.aclose()


@asynccontextmanager
async def open_editor(opener: SessionOpener, **features: object) -> AsyncIterator[Editor]:
    """Yield an editor that has initialized its connection with these parameters."""
    async with open_uninitialized_editor(opener) as editor:
        await editor.initialize(**features)
        yield editor


def configure_client(home: Path) -> Sequence[str]:
    """Write a configuration for the real ``chain acp``. Return the options that select it."""
    config = home / "config.yaml"
    script = f"{ROOT}/tests/support/acp_rules.yaml"
    config.write_text(f"""
models:
  default: test
  definitions:
    test: {{provider: scripted, script: {script}}}
    other: {{provider: scripted, script: {script}}}
chains:
  default: {{model: test, system_prompt: null, tools: [todo, files, edit, ask]}}
  review: {{model: other, system_prompt: null, tools: [todo, files]}}
""")
    return ["--config", str(config)]
