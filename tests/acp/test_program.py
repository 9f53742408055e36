"""The real program as an editor starts it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.clients import configure
from support.processes import marked, until
from support.program import environ, program, start_program

from chain.errors import UserError
from cli.options import parse_arguments
from cli.subcommands.acp import check_options


class Program:
    """The program, and what it writes."""

    def __init__(self, home: Path, *args: str, command: Sequence[str] = ()) -> None:
        with (home / "errors").open("a") as errors:
            self.process = start_program(
                command or program("acp", *args),
                env=environ(home, {}),
                cwd=home,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        self.rows: list[dict[str, Any]] = []
        self._last = 0

    def say(self, **message: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.process.stdin.flush()

    def begin(self, method: str, **params: object) -> int:
        self._last += 1
        self.say(id=self._last, method=method, params=params)
        return self._last

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        row = self.process.stdout.readline()
        assert row, "the program has ended its output"
        found: dict[str, Any] = json.loads(row)
        assert found["jsonrpc"] == "2.0"
        self.rows.append(found)
        return found

    def answer(self, id: object) -> dict[str, Any]:
        while (row := self.read()).get("id") != id or "method" in row:
            pass
        return row

    def call(self, method: str, **params: object) -> dict[str, Any]:
        return self.answer(self.begin(method, **params))

    def open(self, workspace: Path) -> str:
        self.call("initialize", protocolVersion=1)
        id: str = self.call("session/new", cwd=str(workspace), mcpServers=[])["result"]["sessionId"]
        return id

    def prompt(self, session: str, text: str) -> int:
        return self.begin("session/prompt", sessionId=session, prompt=[{"type": "text", "text": text}])

    def until_update(self, kind: str) -> None:
        while self.read().get("params", {}).get("update", {}).get("sessionUpdate") != kind:
            pass

    def end(self) -> int:
        """End its input, read what is left, and wait."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.wait()

    def wait(self) -> int:
        assert self.process.stdout is not None
        self.rows += [json.loads(row) for row in self.process.stdout.readlines()]
        return self.process.wait()


@contextmanager
def running(home: Path, *args: str, command: Sequence[str] = ()) -> Iterator[Program]:
    started = Program(home, *args, command=command)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.wait()
        for stream in (started.process.stdin, started.process.stdout):
            assert stream is not None
            stream.close()


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


def last_record(home: Path, session: str) -> dict[str, Any]:
    rows = (home / "state/chain/sessions" / f"{session}.jsonl").read_text().splitlines()
    found: dict[str, Any] = json.loads(rows[-1])
    return found


def test_only_messages_are_written_until_the_end_of_the_input_ends_the_program(tmp_path: Path, workspace: Path) -> None:
    with running(tmp_path, *configure(tmp_path)) as agent:
        agent.say(id="init", method="initialize", params={"protocolVersion": 1})
        assert agent.process.stdin is not None
        agent.process.stdin.write(b"\xff\xfe\n\n[]\nnonsense\n")
        session = agent.call("session/new", cwd=str(workspace), mcpServers=[{"name": "weather"}])["result"]["sessionId"]
        assert agent.answer(agent.prompt(session, "hello"))["result"]["stopReason"] == "end_turn"
        id = agent.prompt(session, "gate")
        agent.until_update("tool_call")
        assert agent.end() == 0
        codes = [row["error"]["code"] for row in agent.rows if "error" in row]
        assert codes == [-32700, -32600, -32700]
        [answer] = [row for row in agent.rows if row.get("id") == id]
        assert answer["result"]["stopReason"] == "cancelled"
    assert last_record(tmp_path, session)["status"] == "interrupted"
    errors = (tmp_path / "errors").read_text()
    assert "weather" in errors
    assert "Traceback" not in errors


@pytest.mark.slow
@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_it_properly(tmp_path: Path, workspace: Path, number: signal.Signals, code: int) -> None:
    with running(tmp_path, *configure(tmp_path)) as agent:
        session = agent.open(workspace)
        agent.prompt(session, "gate")
        agent.until_update("tool_call")
        agent.process.send_signal(number)
        assert agent.wait() == code
    assert last_record(tmp_path, session)["status"] == "interrupted"


@pytest.mark.slow
def test_an_editor_that_has_gone_leaves_nothing_behind(tmp_path: Path, workspace: Path) -> None:
    rules = "rules: [{tools: [{name: shell, input: {command: 'echo > begun; sleep 1000'}}]}]"
    (tmp_path / "rules.yaml").write_text(rules)
    mark = f"GATES={tmp_path}"
    (tmp_path / "config.yaml").write_text("""
models: {default: test, definitions: {test: {provider: scripted, script: rules.yaml}}}
chains: {default: {model: test, system_prompt: null, tools: [shell]}}
tools: {allow: [shell], shell: {sandbox: "off"}}
""")
    with running(tmp_path, "--config", str(tmp_path / "config.yaml")) as agent:
        session = agent.open(workspace)
        os.mkfifo(workspace / "begun")
        agent.prompt(session, "go")
        (workspace / "begun").read_text()
        until(lambda: len(marked(mark)) > 1)  # while a shell becomes another program, it has no environment
        assert agent.process.stdout is not None
        agent.process.stdout.close()
        assert agent.process.stdin is not None
        agent.process.stdin.close()
        assert agent.process.wait() == 0
        until(lambda: not marked(mark))
    assert last_record(tmp_path, session)["status"] == "interrupted"


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
def test_a_tool_that_prints_or_reads_does_not_get_into_the_messages(tmp_path: Path, workspace: Path) -> None:
    (tmp_path / "loud.py").write_text(LOUD)
    (tmp_path / "rules.yaml").write_text("rules: [{when: {tool: loud}, text: '${result}'}, {tools: [{name: loud}]}]")
    (tmp_path / "config.yaml").write_text("""
models: {default: test, definitions: {test: {provider: scripted, script: rules.yaml}}}
chains: {default: {model: test, system_prompt: null, tools: []}}
""")
    command = [sys.executable, str(tmp_path / "loud.py"), "acp", "--config", str(tmp_path / "config.yaml")]
    with running(tmp_path, command=command) as agent:
        session = agent.open(workspace)
        assert agent.answer(agent.prompt(session, "go"))["result"]["stopReason"] == "end_turn"
        assert agent.end() == 0
        assert any("read ''" in json.dumps(row) for row in agent.rows)
    assert {"printed", "echoed"} <= set((tmp_path / "errors").read_text().split())


def read(*words: str) -> None:
    """Read the words behind ``chain acp``. Raises ``UserError``."""
    args = parse_arguments(["acp", *words])
    check_options(args)


@pytest.mark.parametrize("words", [["--workspace", "."], ["-c"], ["-r", "x"], ["-r"], ["--say", "hello"], ["more"]])
def test_what_the_editor_decides_is_no_option(words: list[str]) -> None:
    with pytest.raises(UserError, match="chain acp"):
        read(*words)
