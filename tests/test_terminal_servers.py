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
from support.processes import until
from support.servers import PROGRAM, entry_of, live_daemons, log_rows
from support.terminal import CTRL_C, Start, configure, idle, quit, send

pytest_plugins = ["support.terminal"]

pytestmark = pytest.mark.slow

RULES = """
rules:
  - when: {user: '^say (?P<what>.*)', step: 1}
    tools: [{name: mcp__h__echo, input: {text: "${what}"}}]
  - {text: "Result: ${result}"}
"""
ASKED = "Start it? [y/N]"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A workspace that names a server."""
    work = configure(tmp_path, RULES, "mcp")
    name_server(work, tmp_path / "log")
    return work


def name_server(work: Path, log: Path, *acts: str) -> None:
    (work / ".mcp.json").write_text(
        json.dumps({"mcpServers": {"h": {**entry_of(log, *acts), "env": {"A": "b\x1b[2J"}}}})
    )


def server_pid(log: Path) -> int:
    """Return the pid of the server that writes this log. Its children are in the log."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            command = Path("/proc", name, "cmdline").read_bytes()
        except OSError:
            continue
        if str(log).encode() in command and b"hostile_server" in command:
            found.append(int(name))
    (pid,) = set(found) - set(live_daemons(log))
    return pid


def test_a_workspace_server_from_question_to_end(start: Start, work: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    screen = start().until(ASKED)
    assert screen.times("hostile_server.py")
    assert "env A: b\\x1b[2J" in screen.everything
    assert log_rows(log) == []
    send(screen, "y")
    send(idle(screen), "say hello")
    screen.until("Allow mcp__h__echo?").until('"text": "hello"').until("answers Q1").type("y\r")
    idle(screen.until("Result: hello"))
    send(screen, "/mcp").until("ready").until("17 tools")
    send(screen, "/mcp h").until("/mcp:h:greet")
    send(screen, "/mcp:h:greet Ada")
    idle(screen.until("▶ Greet Ada.").until("✓ done"))

    os.kill(server_pid(log), signal.SIGKILL)
    while "h  ended" not in screen.everything:
        n = screen.times("» /mcp")
        idle(send(screen, "/mcp").until(lambda s, n=n: s.times("» /mcp") > n))
    assert "signal 9" in screen.everything
    send(screen, "say again").until("Q2 Allow mcp__h__echo?").until("answers Q2").type("y\r")
    idle(screen.until("Result: again"))
    quit(screen)
    assert ASKED not in idle(start()).everything


def test_a_no_starts_nothing_and_is_stored(start: Start, work: Path, tmp_path: Path) -> None:
    screen = start().until(ASKED)
    send(screen, "n")
    send(idle(screen), "/mcp").until("No server is set up")
    quit(idle(screen))
    assert ASKED not in idle(start().until("start it with --mcp h")).everything
    assert log_rows(tmp_path / "log") == []


@pytest.mark.skipif(shutil.which("strace") is None, reason="there is no strace here")
def test_no_server_is_used_before_its_answer(start: Start, work: Path, tmp_path: Path) -> None:
    """Neither a process nor a connection, as the kernel sees it, nor the value of a variable."""
    calls, log = tmp_path / "calls", tmp_path / "log"
    watched = ("strace", "-f", "--seccomp-bpf", "-s", "4096", "-e", "trace=execve,execveat,connect", "-o", str(calls))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        marks = {"h": str(log), "far": f"htons({port})"}
        env = {"PYTHON": sys.executable, "LOG": str(log), "PORT": str(port), "TOKEN": "what-is-secret"}
        far = {"type": "http", "url": "http://127.0.0.1:${PORT}/mcp", "headers": {"Authorization": "${TOKEN}"}}

        def used() -> set[str]:
            return {name for name, mark in marks.items() if mark in calls.read_text()}

        for changed, wanted in (("", ["h", "far"]), ("since", ["h"])):
            stdio = {"command": "${PYTHON}", "args": ["-S", str(PROGRAM), "${LOG}"], "env": {"CHANGED": changed}}
            (work / ".mcp.json").write_text(json.dumps({"mcpServers": {"h": stdio, "far": far}}))
            calls.write_text("")
            screen = start(under=watched, env=env)
            for n, name in enumerate(wanted, 1):
                screen.until(lambda s, n=n: s.times(ASKED) == n)
                assert screen.times(f"names the server {name}:")
                assert used() == set(), "none is started before all questions are answered"
                assert not any(value in screen.everything for value in (str(log), str(port), "what-is-secret"))
                send(screen, "y")
            idle(screen).until(lambda s: used() == {"h", "far"})
            quit(screen)
            assert screen.times(ASKED) == len(wanted)


HANGING = """
rules:
  - when: {step: 1}
    tools: [{name: mcp__h__spawn, input: {}}]
  - tools: [{name: mcp__h__hang, input: {}}]
"""


@pytest.mark.parametrize("way", ["Ctrl-C", "a closed terminal"])
def test_nothing_of_a_server_outlives_the_program(start: Start, work: Path, tmp_path: Path, way: str) -> None:
    """Of a server that hangs at its end and has started daemons."""
    log = tmp_path / "log"
    name_server(work, log, "spawn-first", "hang-at-end")
    (tmp_path / "rules.yaml").write_text(HANGING)
    screen = idle(start("--mcp", "h", "--allow", "mcp__h__*"))
    send(screen, "Go")
    until(lambda: log_rows(log).count("tools/call") == 2 and sum(row.startswith("left ") for row in log_rows(log)) == 2)
    server = server_pid(log)
    if way == "Ctrl-C":
        screen.type(CTRL_C * 3)
    else:
        screen.hang_up()
    screen.wait()
    until(lambda: live_daemons(log) == [] and not Path(f"/proc/{server}").exists())
