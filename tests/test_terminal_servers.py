"""Servers of tools at a terminal: the question before one starts, a call, `/mcp`, and one that was killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.processes import until
from support.screen import Screen
from support.servers import PROGRAM, entry_of, heard, left_by
from support.terminal import CTRL_C, Start, idle, quit, send

pytest_plugins = ["support.terminal"]

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
    (tmp_path / "test.yaml").write_text(
        "models: {default: test, definitions: {test: {provider: scripted, script: rules.yaml}}}\n"
        "chains: {default: {model: test, tools: [mcp]}}\n"
    )
    (tmp_path / "rules.yaml").write_text(RULES)
    work = tmp_path / "work"
    work.mkdir()
    name_server(work, tmp_path / "log")
    return work


def name_server(work: Path, log: Path, *acts: str) -> None:
    (work / ".mcp.json").write_text(
        json.dumps({"mcpServers": {"h": {**entry_of(log, *acts), "env": {"A": "b\x1b[2J"}}}})
    )


HANGING = """
rules:
  - when: {step: 1}
    tools: [{name: mcp__h__spawn, input: {}}]
  - tools: [{name: mcp__h__hang, input: {}}]
"""
LEAVING: dict[str, Callable[[Screen], object]] = {
    "Ctrl-C": lambda s: typed(s, CTRL_C * 3),
    "a closed terminal": lambda s: s.hang_up(),
}


def typed(screen: Screen, keys: str) -> Screen:
    screen.type(keys)
    return screen


def asked(screen: Screen) -> Screen:
    return screen.until(ASKED)


def until_it_is(screen: Screen, state: str) -> None:
    """Ask for the server until it is in this state."""
    while f"h  {state}" not in screen.everything:
        n = screen.times("» /mcp")
        idle(send(screen, "/mcp").until(lambda s, n=n: s.times("» /mcp") > n))


def server_pid(log: Path) -> int:
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            command = Path("/proc", name, "cmdline").read_bytes()
        except OSError:
            continue
        if str(log).encode() in command and b"hostile_server" in command:
            found.append(int(name))
    (pid,) = set(found) - set(left_by(log))  # which it has forked
    return pid


@pytest.mark.slow
def test_a_server_of_the_workspace_from_its_question_to_its_end(start: Start, work: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    screen = asked(start())
    assert "hostile_server.py" in "".join(screen.everything.split())
    assert "env A: b\\x1b[2J" in screen.everything
    assert heard(log) == []
    send(screen, "y")
    send(idle(screen), "say hello")
    send(screen.until("Allow mcp__h__echo?").until('"text": "hello"').until("answers Q1"), "y")
    idle(screen.until("Result: hello"))
    send(screen, "/mcp").until("ready").until("17 tools")
    send(screen, "/mcp h").until("/mcp:h:greet")
    send(screen, "/mcp:h:greet Ada")
    idle(screen.until("▶ Greet Ada.").until("✓ done"))

    os.kill(server_pid(log), signal.SIGKILL)
    until_it_is(screen, "ended")
    assert "signal 9" in screen.everything
    send(screen, "say again")
    send(screen.until("Q2 Allow mcp__h__echo?").until("answers Q2"), "y")
    idle(screen.until("Result: again"))
    quit(screen)

    screen = idle(start())
    assert ASKED not in screen.everything
    quit(screen)


@pytest.mark.slow
def test_a_no_starts_nothing_and_holds(start: Start, work: Path, tmp_path: Path) -> None:
    screen = asked(start())
    send(screen, "n")
    send(idle(screen), "/mcp").until("No server is set up")
    quit(idle(screen))
    screen = idle(start().until("start it with --mcp h"))
    assert ASKED not in screen.everything
    quit(screen)
    assert heard(tmp_path / "log") == []


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="there is no strace here")
def test_of_a_server_nothing_is_run_or_called_or_filled_in_before_its_answer(
    start: Start, work: Path, tmp_path: Path
) -> None:
    """As the kernel is asked for it, by the program and all that it starts."""
    calls, log = tmp_path / "calls", tmp_path / "log"
    watched = ("strace", "-f", "--seccomp-bpf", "-s", "4096", "-e", "trace=execve,execveat,connect", "-o", str(calls))

    def names(*, changed: str) -> None:
        stdio = {"command": "${PYTHON}", "args": ["-S", str(PROGRAM), "${LOG}"], "env": {"CHANGED": changed}}
        far = {"type": "http", "url": "http://127.0.0.1:${PORT}/mcp", "headers": {"Authorization": "${TOKEN}"}}
        (work / ".mcp.json").write_text(json.dumps({"mcpServers": {"h": stdio, "far": far}}))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        marks = {"h": str(log), "far": f"htons({port})"}
        env = {"PYTHON": sys.executable, "LOG": str(log), "PORT": str(port), "TOKEN": "what-is-secret"}

        def touched() -> set[str]:
            return {name for name, mark in marks.items() if mark in calls.read_text()}

        for changed, wanted in (("", ["h", "far"]), ("since", ["h"])):
            names(changed=changed)
            calls.write_text("")
            screen = start(under=watched, env=env)
            for n, name in enumerate(wanted, 1):
                screen.until(lambda s, n=n: s.times(ASKED) == n)
                assert f"namestheserver{name}:" in "".join(screen.everything.split()), "wherever its row is broken"
                # Of those that are allowed none is started before all were asked about.
                assert touched() == set()
                assert not any(value in screen.everything for value in (str(log), str(port), "what-is-secret"))
                send(screen, "y")
            idle(screen).until(lambda s: touched() == {"h", "far"})
            quit(screen)
            assert screen.times(ASKED) == len(wanted)


@pytest.mark.slow
@pytest.mark.parametrize("ending", LEAVING)
def test_nothing_of_a_server_is_left_however_its_user_leaves(
    start: Start, work: Path, tmp_path: Path, ending: str
) -> None:
    """Of one that hangs at its end, and has started what has a session of its own after two forks, twice."""
    log = tmp_path / "log"
    name_server(work, log, "spawn-first", "hang-at-end")
    (tmp_path / "rules.yaml").write_text(HANGING)
    screen = idle(start("--mcp", "h", "--allow", "mcp__h__*"))
    send(screen, "Go")
    until(lambda: heard(log).count("tools/call") == 2 and sum(row.startswith("left ") for row in heard(log)) == 2)
    server = server_pid(log)
    LEAVING[ending](screen)
    screen.wait()
    until(lambda: left_by(log) == [] and not Path(f"/proc/{server}").exists())
