"""MCP servers in a pseudo-terminal: the question before one starts, calls, ``/mcp``, and what outlives an end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
from pathlib import Path

import pytest
from support.keys import CTRL_C
from support.processes import block_until
from support.screen import Screen
from support.servers import PROGRAM, daemon_pids, entry_of, live_daemons, log_rows, server_pids
from support.terminal import Start, configure, quit_program, send, wait_idle

pytest_plugins = ["support.terminal"]

pytestmark = pytest.mark.slow

RULES = """
rules:
  - when: {user: '^say (?P<text>.*)', step: 1}
    tools: [{name: mcp__h__echo, input: {text: "${text}"}}]
  - {text: "Result: ${result}"}
"""
QUESTION = "Start it? [y/N]"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def work(tmp_path: Path, log: Path) -> Path:
    """Return a workspace whose ``.mcp.json`` names a server."""
    work = configure(tmp_path, RULES, "mcp")
    name_server(work, log)
    return work


def name_server(work: Path, log: Path, *acts: str) -> None:
    server = {**entry_of(log, *acts), "env": {"A": "b\x1b[2J"}}
    (work / ".mcp.json").write_text(json.dumps({"mcpServers": {"h": server}}))


def server_pid(log: Path) -> int:
    (pid,) = {*server_pids(log)} - {*live_daemons(log)}
    return pid


def call_tool(screen: Screen, text: str, question: str) -> None:
    send(screen, f"say {text}").until(f"{question} Allow mcp__h__echo?").until(f'"text": "{text}"')
    screen.until(f"answers {question}").type("y\r")
    wait_idle(screen.until(f"Result: {text}"))


def test_a_workspace_server_from_question_to_end(start: Start, work: Path, log: Path) -> None:
    screen = start().until(QUESTION)
    assert screen.times("hostile_server.py")
    assert "env A: b\\x1b[2J" in screen.everything
    assert log_rows(log) == []
    send(screen, "y")
    call_tool(wait_idle(screen), "hello", "Q1")
    send(screen, "/mcp").until("ready").until("17 tools")
    send(screen, "/mcp h").until("/mcp:h:greet")
    send(screen, "/mcp:h:greet Ada")
    wait_idle(screen.until("▶ Greet Ada.").until("✓ done"))

    os.kill(server_pid(log), signal.SIGKILL)
    while "h  ended" not in screen.everything:  # chain may notice the kill later
        answers = screen.times("» /mcp")
        wait_idle(send(screen, "/mcp").until(lambda s, answers=answers: s.times("» /mcp") > answers))
    assert "signal 9" in screen.everything
    call_tool(screen, "again", "Q2")
    quit_program(screen)
    assert QUESTION not in wait_idle(start()).everything


def test_a_no_starts_nothing_and_is_stored(start: Start, work: Path, log: Path) -> None:
    screen = start().until(QUESTION)
    send(screen, "n")
    send(wait_idle(screen), "/mcp").until("No server is set up")
    quit_program(wait_idle(screen))
    assert QUESTION not in wait_idle(start().until("start it with --mcp h")).everything
    assert log_rows(log) == []


@pytest.mark.skipif(shutil.which("strace") is None, reason="there is no strace here")
def test_no_server_is_used_before_its_answer(start: Start, work: Path, tmp_path: Path, log: Path) -> None:
    """Until all questions are answered, the kernel sees no process and no connection, and no variable is shown."""
    trace = tmp_path / "trace"
    strace = ("strace", "-f", "--seccomp-bpf", "-s", "4096", "-e", "trace=execve,execveat,connect", "-o", str(trace))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        traces = {"h": str(log), "far": f"htons({port})"}
        env = {"PYTHON": sys.executable, "LOG": str(log), "PORT": str(port), "TOKEN": "what-is-secret"}
        far = {"type": "http", "url": "http://127.0.0.1:${PORT}/mcp", "headers": {"Authorization": "${TOKEN}"}}

        def used_servers() -> set[str]:
            return {name for name, text in traces.items() if text in trace.read_text()}

        for changed, asked_about in (("", ["h", "far"]), ("since", ["h"])):
            stdio = {"command": "${PYTHON}", "args": ["-S", str(PROGRAM), "${LOG}"], "env": {"CHANGED": changed}}
            (work / ".mcp.json").write_text(json.dumps({"mcpServers": {"h": stdio, "far": far}}))
            trace.write_text("")
            screen = start(launcher=strace, env=env)
            for n, name in enumerate(asked_about, 1):
                screen.until(lambda s, n=n: s.times(QUESTION) == n)
                assert screen.times(f"names the server {name}:")
                assert used_servers() == set()
                assert not any(value in screen.everything for value in (str(log), str(port), "what-is-secret"))
                send(screen, "y")
            wait_idle(screen).until(lambda s: used_servers() == {"h", "far"})
            quit_program(screen)
            assert screen.times(QUESTION) == len(asked_about)


SPAWN_AND_HANG = """
rules:
  - when: {step: 1}
    tools: [{name: mcp__h__spawn, input: {}}]
  - tools: [{name: mcp__h__hang, input: {}}]
"""


@pytest.mark.parametrize("end", ["Ctrl-C", "a closed terminal"])
def test_no_server_or_daemon_outlives_the_program(
    start: Start, work: Path, tmp_path: Path, log: Path, end: str
) -> None:
    name_server(work, log, "spawn-first", "hang-at-end")  # one daemon at its start, and no end when asked for it
    (tmp_path / "rules.yaml").write_text(SPAWN_AND_HANG)
    screen = wait_idle(start("--mcp", "h", "--allow", "mcp__h__*"))
    send(screen, "Go")
    block_until(lambda: log_rows(log).count("tools/call") == 2)
    assert len(daemon_pids(log)) == 2  # the other one is from the tool ``spawn``
    server = server_pid(log)
    if end == "Ctrl-C":
        screen.type(CTRL_C * 3)  # it interrupts the run, gives a hint, and exits
    else:
        screen.hang_up()
    screen.wait()
    block_until(lambda: live_daemons(log) == [] and not Path(f"/proc/{server}").exists())
