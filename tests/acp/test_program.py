"""The real program as an editor starts it: its streams, signals and child processes."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from support.clients import configure
from support.processes import marked, until
from support.program import environ, program, start_program

from chain.errors import UserError
from cli.options import parse_arguments
from cli.subcommands.acp import check_options


class Agent:
    """The running program, and the messages that it has written."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process = process
        self.input: BinaryIO = process.stdin
        self.output: BinaryIO = process.stdout
        self.messages: list[dict[str, Any]] = []

    def begin(self, id: object, method: str, **params: object) -> None:
        row = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
        self.input.write(json.dumps(row).encode() + b"\n")
        self.input.flush()

    def read(self) -> dict[str, Any]:
        self.messages.append(json.loads(self.output.readline()))
        return self.messages[-1]

    def call(self, id: object, method: str, **params: object) -> dict[str, Any]:
        self.begin(id, method, **params)
        while (message := self.read()).get("id") != id:
            pass
        result: dict[str, Any] = message["result"]
        return result

    def open(self, workspace: Path, *servers: object) -> str:
        self.call("initialize", "initialize", protocolVersion=1)
        id: str = self.call("new", "session/new", cwd=str(workspace), mcpServers=servers)["sessionId"]
        return id

    def prompt(self, session: str, text: str) -> dict[str, Any]:
        return {"sessionId": session, "prompt": [{"type": "text", "text": text}]}

    def run_tool(self, session: str, text: str) -> None:
        """Send a prompt, and wait until its tool runs."""
        self.begin("tool", "session/prompt", **self.prompt(session, text))
        while self.read().get("params", {}).get("update", {}).get("sessionUpdate") != "tool_call":
            pass

    def wait(self) -> int:
        """Read the remaining messages, and return the exit code."""
        self.messages += [json.loads(row) for row in self.output.readlines()]
        return self.process.wait()


@contextmanager
def running(home: Path, *args: str, command: Sequence[str] = ()) -> Iterator[Agent]:
    with (home / "errors").open("a") as errors:
        process = start_program(
            command or program("acp", *args),
            env=environ(home, {}),
            cwd=home,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    agent = Agent(process)
    try:
        yield agent
    finally:
        process.kill()
        process.wait()
        agent.input.close()
        agent.output.close()


@pytest.fixture
def scripted(tmp_path: Path) -> Path:
    """Return a configuration for the rules in ``rules.yaml``."""
    (tmp_path / "config.yaml").write_text("""
models: {default: test, definitions: {test: {provider: scripted, script: rules.yaml}}}
chains: {default: {model: test, system_prompt: null, tools: [shell]}}
tools: {allow: [shell], shell: {sandbox: "off"}}
""")
    return tmp_path / "config.yaml"


def last_status(home: Path, session: str) -> str:
    rows = (home / "state/chain/sessions" / f"{session}.jsonl").read_text().splitlines()
    status: str = json.loads(rows[-1])["status"]
    return status


def test_only_messages_are_written_until_the_input_ends(tmp_path: Path, workspace: Path) -> None:
    with running(tmp_path, *configure(tmp_path)) as agent:
        agent.input.write(b"\xff\xfe\n\n[]\nnonsense\n")
        session = agent.open(workspace, {"name": "weather"})
        assert agent.call("p", "session/prompt", **agent.prompt(session, "hello"))["stopReason"] == "end_turn"
        agent.run_tool(session, "gate")
        agent.input.close()
        assert agent.wait() == 0
    assert [row["error"]["code"] for row in agent.messages if "error" in row] == [-32700, -32600, -32700]
    [answer] = [row for row in agent.messages if row.get("id") == "tool"]
    assert answer["result"]["stopReason"] == "cancelled"
    assert last_status(tmp_path, session) == "interrupted"
    errors = (tmp_path / "errors").read_text()
    assert "weather" in errors
    assert "Traceback" not in errors


@pytest.mark.slow
@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 143), (signal.SIGINT, 130)])
def test_a_signal_interrupts_the_run(tmp_path: Path, workspace: Path, number: signal.Signals, code: int) -> None:
    with running(tmp_path, *configure(tmp_path)) as agent:
        session = agent.open(workspace)
        agent.run_tool(session, "gate")
        agent.process.send_signal(number)
        assert agent.wait() == code
    assert last_status(tmp_path, session) == "interrupted"


@pytest.mark.slow
def test_no_process_is_left_when_the_editor_exits(tmp_path: Path, workspace: Path, scripted: Path) -> None:
    rules = "rules: [{tools: [{name: shell, input: {command: 'echo > begun; sleep 1000'}}]}]"
    (tmp_path / "rules.yaml").write_text(rules)
    os.mkfifo(workspace / "begun")
    mark = f"GATES={tmp_path}"
    with running(tmp_path, "--config", str(scripted)) as agent:
        session = agent.open(workspace)
        agent.run_tool(session, "go")
        (workspace / "begun").read_text()
        until(lambda: len(marked(mark)) > 1)  # a shell that becomes another program has no environment for a moment
        agent.output.close()
        agent.input.close()
        assert agent.process.wait() == 0
        until(lambda: not marked(mark))
    assert last_status(tmp_path, session) == "interrupted"


LOUD = """
import os, sys
from chain import ToolContext, tool
from cli.main import main

@tool
async def loud(ctx: ToolContext) -> str:
    "Write to standard output, and read standard input."
    print("printed", flush=True)
    os.system("echo echoed")
    return f"read {sys.stdin.read()!r}"

sys.exit(main(sys.argv[1:], tools=[loud]))
"""


@pytest.mark.slow
def test_a_tool_cannot_use_the_editors_streams(tmp_path: Path, workspace: Path, scripted: Path) -> None:
    (tmp_path / "loud.py").write_text(LOUD)
    (tmp_path / "rules.yaml").write_text("rules: [{when: {tool: loud}, text: '${result}'}, {tools: [{name: loud}]}]")
    command = [sys.executable, str(tmp_path / "loud.py"), "acp", "--config", str(scripted)]
    with running(tmp_path, command=command) as agent:
        session = agent.open(workspace)
        assert agent.call("p", "session/prompt", **agent.prompt(session, "go"))["stopReason"] == "end_turn"
        agent.input.close()
        assert agent.wait() == 0
    assert any("read ''" in json.dumps(row) for row in agent.messages)
    assert {"printed", "echoed"} <= set((tmp_path / "errors").read_text().split())


@pytest.mark.parametrize("words", [["--workspace", "."], ["-c"], ["-r", "x"], ["-r"], ["--say", "hello"], ["more"]])
def test_options_that_the_editor_decides_are_refused(words: list[str]) -> None:
    with pytest.raises(UserError, match="chain acp"):
        check_options(parse_arguments(["acp", *words]))
