"""An editor in memory that speaks the Agent Client Protocol with the agent of chain."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import trio

from chain.config.load import load_settings
from chain.tools.tool import Tool
from cli.acp.methods import EditorAgent
from cli.acp.opener import SessionOpener
from cli.acp.rpc import RpcError
from cli.acp.wire import Wire
from cli.input.splitter import RawLine
from cli.outbox import Outbox

RULES = r"""
rules:
  - {when: {interruption: 'stream'}, text: "Understood.", and: work}
  - {when: {interruption: '(?P<all>[\s\S]+)'}, text: "Understood: ${all}", and: continue}
  - {when: {user: '\Await', tool: wait}, text: "Waited."}
  - {when: {user: '\Await'}, text: "Looking.", tools: [{name: wait, input: {}}]}
  - {when: {user: '\Astream'}, text: "one two LONG seven", pace: {chunk: 4, delay_s: 0.02}}
  - {when: {user: '\Awrite', tool: write_file}, text: "Written: ${result}"}
  - {when: {user: '\Awrite'}, tools: [{name: write_file, input: {path: new.txt, content: "a\nb\n"}}]}
  - {when: {user: '\Aedit', tool: edit_file}, text: "Edited: ${result}"}
  - when: {user: '\Aedit', tool: read_file}
    tools: [{name: edit_file, input: {path: old.txt, old_string: b, new_string: B}}]
  - {when: {user: '\Aedit'}, tools: [{name: read_file, input: {path: old.txt}}]}
  - {when: {user: '\Aask', tool: ask_user_question}, text: "You said: ${result}"}
  - {when: {user: '\Aask'}, tools: [{name: ask_user_question, input: {question: "Which?", options: [left, stop]}}]}
  - {when: {user: '\Aplan', tool: plan_set_tasks}, text: "Planned."}
  - {when: {user: '\Aplan'}, tools: [{name: plan_set_tasks, input: {tasks: [look, write]}}]}
  - {when: {user: '\Arefuse'}, text: "No.", stop_reason: refusal}
  - {when: {user: '\Along'}, text: "Too lo", stop_reason: max_tokens}
  - {when: {user: '\Aloop', tool: plan_list}, tools: [{name: plan_list, input: {}}]}
  - {when: {user: '\Aloop'}, tools: [{name: plan_list, input: {}}]}
  - {when: {user: '\Aexplore', tool: explore}, text: "It says: ${result}"}
  - {when: {user: '\Aexplore'}, tools: [{name: explore, input: {task: "look around"}}]}
  - {when: {user: 'look around'}, text: "I see nothing."}
  - {when: {user: 'Greet Ada'}, text: "Good day."}
  - {when: {user: '\Afail'}, error: {message: the service is gone, retryable: false}}
  - {text: "Hello."}
""".replace("LONG", "three " * 1_000)
"""Streaming all of the long text takes longer than whatever a test does meanwhile."""

GROUPS = ("todo", "ask", "files", "edit", "agents")


@dataclass
class Asked:
    """A request of the agent, which the editor answers."""

    id: object
    method: str
    params: dict[str, Any]


@dataclass
class Editor:
    """A client that sends rows to an agent, and stores what comes back once ``reads`` is set."""

    send_rows: trio.MemorySendChannel[RawLine]
    answers: dict[object, dict[str, Any]] = field(default_factory=dict)
    heard: list[dict[str, Any]] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    log: list[tuple[str, object]] = field(default_factory=list)
    """The received messages in order: ``answer`` and the id, or the method and the kind of update."""
    outbox: Outbox = field(init=False)
    notes: list[str] = field(default_factory=list)
    reads: trio.Event = field(default_factory=trio.Event)
    _news: trio.Event = field(default_factory=trio.Event)
    _last: int = 0
    _number: int = 0

    def row(self, text: str, **more: bool) -> None:
        """Send a row as it is."""
        self._number += 1
        self.send_rows.send_nowait(RawLine(text, self._number, **more))

    def say(self, **message: object) -> None:
        """Send a message."""
        self.row(json.dumps({"jsonrpc": "2.0", **message}))

    def begin(self, method: str, **params: object) -> int:
        """Send a request, and return its id."""
        self._last += 1
        self.say(id=self._last, method=method, params=params)
        return self._last

    def tell(self, method: str, **params: object) -> None:
        """Send a notification."""
        self.say(method=method, params=params)

    def answer(self, asked: Asked, **result: object) -> None:
        """Answer a request of the agent."""
        self.say(id=asked.id, result=result)

    def choose(self, asked: Asked, option: str) -> None:
        """Answer a request for permission."""
        self.answer(asked, outcome={"outcome": "selected", "optionId": option})

    async def write(self, rows: bytes) -> None:
        """Receive rows, which the agent writes."""
        await trio.lowlevel.checkpoint()
        await self.reads.wait()
        assert rows.endswith(b"\n")
        for row in rows.splitlines():
            self._receive(json.loads(row))
        self._news.set()
        self._news = trio.Event()

    def _receive(self, message: dict[str, Any]) -> None:
        assert message.pop("jsonrpc") == "2.0"
        if "method" not in message:
            self.answers[message["id"]] = message
            self.log.append(("answer", message["id"]))
        elif "id" in message:
            self.asked.append(Asked(message["id"], message["method"], message["params"]))
            self.log.append((message["method"], message["id"]))
        else:
            self.heard.append(message)
            update = message["params"].get("update", {})
            self.log.append((message["method"], update.get("sessionUpdate")))

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until a condition holds. It is checked at each message."""
        while not condition():
            await self._news.wait()

    async def result(self, id: object) -> dict[str, Any]:
        """Return the answer to a request. Raise ``RpcError``."""
        await self.until(lambda: id in self.answers)
        found = self.answers[id]
        if "error" in found:
            error = found["error"]
            raise RpcError(error["code"], error["message"], error.get("data"))
        result: dict[str, Any] = found["result"]
        return result

    async def call(self, method: str, **params: object) -> dict[str, Any]:
        """Send a request, and return its answer. Raise ``RpcError``."""
        return await self.result(self.begin(method, **params))

    async def error(self, method: str, **params: object) -> RpcError:
        """Send a request, and return the error that answers it."""
        try:
            result = await self.call(method, **params)
        except RpcError as error:
            return error
        raise AssertionError(f"{method} gave {result}")

    async def question(self, nth: int = 1) -> Asked:
        """Wait for the nth request of the agent."""
        await self.until(lambda: len(self.asked) >= nth)
        return self.asked[nth - 1]

    def updates(self, kind: str = "") -> list[dict[str, Any]]:
        """Return the updates of a kind, or all."""
        found = [m["params"]["update"] for m in self.heard if m["method"] == "session/update"]
        return [update for update in found if not kind or update["sessionUpdate"] == kind]

    def text(self, kind: str = "agent_message_chunk") -> str:
        """Return the text of the chunks of a kind."""
        return "".join(update["content"]["text"] for update in self.updates(kind))

    def calls(self) -> dict[str, dict[str, Any]]:
        """Return the tool calls by their ids, with all updates applied."""
        found: dict[str, dict[str, Any]] = {}
        for update in self.updates():
            if update["sessionUpdate"] in ("tool_call", "tool_call_update"):
                found.setdefault(update["toolCallId"], {}).update(update)
        return found

    def receipts(self, state: str = "") -> list[dict[str, Any]]:
        """Return the receipts, or those with a state."""
        found = [m["params"] for m in self.heard if m["method"] == "_chain/receipt"]
        return [each for each in found if not state or each["state"] == state]

    async def initialize(self, **params: object) -> dict[str, Any]:
        """Initialize the connection."""
        return await self.call("initialize", **{"protocolVersion": 1, **params})

    async def new(self, cwd: Path) -> str:
        """Open a session."""
        id: str = (await self.call("session/new", cwd=str(cwd), mcpServers=[]))["sessionId"]
        return id

    def prompt(self, session: str, text: str) -> int:
        """Send a prompt, and return its id."""
        return self.begin("session/prompt", sessionId=session, prompt=[{"type": "text", "text": text}])

    async def run(self, session: str, text: str) -> str:
        """Send a prompt, and return its stop reason."""
        return (await self.reasons(self.prompt(session, text)))[0]

    async def reasons(self, *ids: object) -> list[str]:
        """Return the stop reasons of prompts."""
        return [(await self.result(id))["stopReason"] for id in ids]

    async def refusal(self, session: str, text: str) -> RpcError:
        """Send a prompt, and return the error that answers it."""
        return await self.error("session/prompt", sessionId=session, prompt=[{"type": "text", "text": text}])

    async def steer(self, session: str, text: str, **more: object) -> dict[str, Any]:
        """Send a line of steering, and return its answer. Raise ``RpcError``."""
        blocks = [{"type": "text", "text": text}]
        return await self.call("_session/steering", sessionId=session, prompt=blocks, **more)


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
    """Return an opener of sessions with a scripted model; ``more`` are keys of the configuration."""
    home.mkdir(exist_ok=True)
    (home / "system.yaml").write_text("messages: [{role: system, content: You are a test.}]")
    (home / "rules.yaml").write_text(rules)
    chosen = {
        "model": "test",
        "system_prompt": "system.yaml",
        "interruption_prompt": None,
        "tools": list(groups),
        "max_iterations": more.pop("max_iterations", 20),
    }
    config = {
        "models": {"default": "test", "definitions": {"test": {"provider": "scripted", "script": "rules.yaml"}}},
        "chains": dict.fromkeys(chains, chosen),
        **more,
    }
    path = home / "config.yaml"
    path.write_text(json.dumps(config))
    return SessionOpener(
        lambda folder: load_settings(config=path, environ={}, cwd=folder, flags={}), home / "state", tuple(tools)
    )


@asynccontextmanager
async def connected(opener: SessionOpener, *, reads: bool = True) -> AsyncIterator[Editor]:
    """Yield an editor whose agent serves it until the end of the block."""
    sender, receiver = trio.open_memory_channel[RawLine](1_000)
    editor = Editor(sender)
    if reads:
        editor.reads.set()
    outbox = editor.outbox = Outbox(editor.write)

    agent = EditorAgent(Wire(partial(next_row, receiver), outbox), opener, editor.notes.append)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outbox.run)

        async def serve() -> None:
            await agent.run()
            await outbox.wait_empty()
            nursery.cancel_scope.cancel()

        nursery.start_soon(serve)
        yield editor
        await sender.aclose()
