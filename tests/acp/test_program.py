"""The real program as an editor starts it: its streams, signals and child processes.

After ``configure_client``, the first word of a prompt selects a rule of ``support/acp_rules.yaml``.
"""

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
from support.editor import configure_client
from support.processes import block_until, pids_with
from support.program import make_environ, program_command, start_program

from chain.errors import UserError
from cli.acp.rpc import INVALID_REQUEST, PARSE_ERROR
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

    def start_request(self, id: object, method: str, **params: object) -> None:
        row = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
        self.input.write(json.dumps(row).encode() + b"\n")
        self.input.flush()

    def read(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self.output.readline())
        self.messages.append(message)
        return message

    def call(self, id: object, method: str, **params: object) -> dict[str, Any]:
        self.start_request(id, method, **params)
        while (message := self.read()).get("id") != id:
            pass
        result: dict[str, Any] = message["result"]
        return result

    def open_session(self, workspace: Path, *servers: object) -> str:
        self.call("initialize", "initialize", protocolVersion=1)
        id: str = self.call("new", "session/new", cwd=str(workspace), mcpServers=servers)["sessionId"]
        return id

    def prompt(self, session: str, text: str) -> dict[str, Any]:
        return {"sessionId": session, "prompt": [{"type": "text", "text": text}]}

    def run_tool(self, session: str, text: str) -> None:
        """Send a prompt, and wait until its tool runs."""
        self.start_request("tool", "session/prompt", **self.prompt(session, text))
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
            command or program_command("acp", *args),
            env=make_environ(home, {}),
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
    *_, last = (home / "state/chain/sessions" / f"{session}.jsonl").read_text().splitlines()
    status: str = json.loads(last)["status"]
    return status


def test_only_messages_are_written_until_the_input_ends(tmp_path: Path, workspace: Path) -> None:
    with running(tmp_path, *configure_client(tmp_path)) as agent:
        invalid_utf_8, empty, batch, no_json = b"\xff\xfe\n", b"\n", b"[]\n", b"nonsense\n"
        agent.input.write(invalid_utf_8 + empty + batch + no_json)
        session = agent.open_session(workspace, {"name": "weather"})
        assert agent.call("p", "session/prompt", **agent.prompt(session, "hello"))["stopReason"] == "end_turn"
        agent.run_tool(session, "gate")
        agent.input.close()
        assert agent.wait() == 0
    errors = [message["error"]["code"] for message in agent.messages if "error" in message]
    assert errors == [PARSE_ERROR, INVALID_REQUEST, PARSE_ERROR], "an empty row is ignored"
    [answer] = [message for message in agent.messages if message.get("id") == "tool"]
    assert answer["result"]["stopReason"] == "cancelled"
    assert last_status(tmp_path, session) == "interrupted"
    standard_error = (tmp_path / "errors").read_text()
    assert "weather" in standard_error, "the server without an address is named"
    assert "Traceback" not in standard_error


@pytest.mark.slow
@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), (signal.SIGHUP, 143), (signal.SIGINT, 130)],
    ids=["SIGTERM", "SIGHUP", "SIGINT"],
)
def test_a_signal_interrupts_the_run(tmp_path: Path, workspace: Path, number: signal.Signals, code: int) -> None:
    with running(tmp_path, *configure_client(tmp_path)) as agent:
        session = agent.open_session(workspace)
        agent.run_tool(session, "gate")
        agent.process.send_signal(number)
        assert agent.wait() == code
    assert last_status(tmp_path, session) == "interrupted"


@pytest.mark.slow
def test_no_process_is_left_when_the_editor_exits(tmp_path: Path, workspace: Path, scripted: Path) -> None:
    rules = "rules: [{tools: [{name: shell, input: {command: 'echo > started; sleep 1000'}}]}]"
    (tmp_path / "rules.yaml").write_text(rules)
    started = workspace / "started"
    os.mkfifo(started)
    mark = f"GATES={tmp_path}"  # make_environ sets this variable for the program, and its child processes inherit it
    with running(tmp_path, "--config", str(scripted)) as agent:
        session = agent.open_session(workspace)
        agent.run_tool(session, "go")
        started.read_text()  # blocks until the command writes to the FIFO
        # More than the program itself. Not asserted at once: during exec a process has no environment for a moment.
        block_until(lambda: len(pids_with(mark)) > 1)
        agent.output.close()
        agent.input.close()
        assert agent.process.wait() == 0
        block_until(lambda: not pids_with(mark))
    assert last_status(tmp_path, session) == "interrupted"


PROGRAM = """
import os, sys
from chain import ToolContext, tool
from cli.main import main

@tool
async def use_streams(ctx: ToolContext) -> str:
    "Write to standard output, and read standard input."
    print("printed", flush=True)
    os.system("echo echoed")
    return f"read {sys.stdin.read()!r}"

sys.exit(main(sys.argv[1:], tools=[use_streams]))
"""


@pytest.mark.slow
def test_a_tool_cannot_use_the_editors_streams(tmp_path: Path, workspace: Path, scripted: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    rules = "rules: [{when: {tool: use_streams}, text: '${result}'}, {tools: [{name: use_streams}]}]"
    (tmp_path / "rules.yaml").write_text(rules)
    command = [sys.executable, str(tmp_path / "program.py"), "acp", "--config", str(scripted)]
    with running(tmp_path, command=command) as agent:
        session = agent.open_session(workspace)
        assert agent.call("p", "session/prompt", **agent.prompt(session, "go"))["stopReason"] == "end_turn"
        agent.input.close()
        assert agent.wait() == 0
    assert any("read ''" in json.dumps(message) for message in agent.messages)
    assert {"printed", "echoed"} <= set((tmp_path / "errors").read_text().split())


@pytest.mark.parametrize(
    "words", [["--workspace", "."], ["-c"], ["-r", "x"], ["-r"], ["--say", "hello"], ["more"]], ids=" ".join
)
def test_options_that_the_editor_decides_are_refused(words: list[str]) -> None:
    with pytest.raises(UserError, match="chain acp"):
        check_options(parse_arguments(["acp", *words]))
