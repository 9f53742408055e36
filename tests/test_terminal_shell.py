"""Shell commands in a pseudo-terminal: approvals, and that no process outlives them."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from support.keys import ESC
from support.processes import block_until, pids_with
from support.screen import Screen
from support.terminal import Start, configure, line_states, quit_program, send, wait_idle

from chain.tools.processes.probe import probe

pytest_plugins = ["support.terminal"]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="commands need Linux")

RULES = r"""
rules:
  - when: {user: '^hide', step: 1}
    tools:
      - name: shell
        input: {command: "setsid sleep 1000 & (sleep 1001 &) ; nohup sleep 1002 & echo hidden; cat wait"}
  - {when: {user: '^touch', step: 1}, tools: [{name: shell, input: {command: "touch ../outside"}}]}
  - when: {user: '^serve', step: 1}
    tools: [{name: shell, input: {command: "setsid sleep 1000 & echo up; cat wait", background: true, wake: true}}]
  - {when: {interruption: 'JOB'}, text: "I see that it ended."}
  - {when: {interruption: '(?P<said>.*)'}, text: "Noted: ${said}"}
  - {text: "Result: ${result}"}
"""


HIDDEN_PROCESSES = 4
"""The three ``sleep`` and the ``cat`` of the command for ``hide``."""


@pytest.fixture
def mark() -> str:
    """The mark in the environment of a test's processes."""
    return f"terminal-shell-{os.getpid()}-{time.monotonic_ns()}"


@pytest.fixture
def screen(start: Start, tmp_path: Path, mark: str) -> Screen:
    """The program with a model that runs commands without asking. They wait for a write to a pipe."""
    work = configure(tmp_path, RULES, "shell", "tools: {allow: [shell]}\n")
    os.mkfifo(work / "wait")
    return wait_idle(start(env={"MARK": mark}))


def commands(mark: str, *names: str) -> list[int]:
    """Return the marked processes with these names; without names, those of all commands."""
    found = []
    for pid in pids_with(mark):
        with suppress(OSError):  # the process has ended
            if Path(f"/proc/{pid}/comm").read_text().strip() in (names or ("sleep", "cat", "bash")):
                found.append(pid)
    return found


def start_command(screen: Screen, query: str, mark: str, process_count: int) -> Screen:
    """Start a run, and wait until its command has started its processes."""
    send(screen, query)
    block_until(lambda: len(commands(mark, "sleep", "cat")) >= process_count)
    return screen


@pytest.mark.skipif(not probe().writes, reason="this machine cannot refuse writes")
def test_a_denied_command_is_allowed_outside_once(start: Start, tmp_path: Path) -> None:
    configure(tmp_path, RULES, "shell")
    screen, outside = wait_idle(start()), tmp_path / "outside"
    for id, key, row, is_written in (
        ("Q1", "y", "  [sandbox: writes denied; approve with o]", False),
        ("Q2", "o", "✓ shell  touch ../outside · Q2 allowed once outside the sandbox", True),
        ("Q3", "y", "Q3 allowed", False),
    ):
        outside.unlink(missing_ok=True)
        send(screen, "touch").until(lambda s, id=id: f"o, a or n answers {id} (main)" in s.toolbar)
        assert "o outside the sandbox · a allow this exact command" in screen.flat
        screen.type(key)
        wait_idle(screen.until(row))
        assert outside.exists() == is_written
    quit_program(screen)


def test_esc_and_a_closed_window_kill_a_command(screen: Screen, mark: str) -> None:
    start_command(screen, "hide", mark, HIDDEN_PROCESSES)
    send(screen, "stop").until("Esc kills it")
    assert len(commands(mark)) >= HIDDEN_PROCESSES
    screen.type(ESC)
    wait_idle(screen.until("⏹ interrupted"))
    assert not commands(mark)

    start_command(screen, "hide", mark, HIDDEN_PROCESSES)
    send(screen, "waits").until("📤 Interrupting: waits").hang_up()
    screen.wait()
    block_until(lambda: not pids_with(mark))
    assert line_states(screen) == {"hide": "delivered", "stop": "handled", "waits": "queued"}


def start_job(screen: Screen, mark: str, id: str) -> Screen:
    """Start a background job, which gets this id, and wait until it has started its processes."""
    wait_idle(send(screen, "serve").until(f"job {id} started"))
    block_until(lambda: len(commands(mark, "sleep", "cat")) == 2)
    return screen


@pytest.mark.slow
def test_a_job_wakes_the_model(screen: Screen, mark: str) -> None:
    send(start_job(screen, mark, "J1"), "/jobs").until("J1  running for ")
    (screen.home / "work/wait").write_text("written\n")
    wait_idle(screen.until("● [JOB J1] exit code 0 after ").until("I see that it ended."))
    block_until(lambda: not commands(mark))
    send(start_job(screen, mark, "J2"), "/kill J2").until("● [JOB J2] killed by the user after ")
    block_until(lambda: not commands(mark))
    quit_program(wait_idle(screen))


@pytest.mark.slow
@pytest.mark.parametrize("end", ["stop", "/new", "quit", "hang up", "SIGKILL"])
def test_no_process_of_a_job_outlives_the_session(screen: Screen, mark: str, end: str) -> None:
    start_job(screen, mark, "J1")
    match end:
        case "quit":
            quit_program(screen)
        case "hang up":
            screen.hang_up()
        case "SIGKILL":
            screen.send_signal(signal.SIGKILL)
        case _:
            send(screen, end).until("Killing 1 background job: J1." if end == "stop" else "New conversation.")
            block_until(lambda: not commands(mark))
            send(wait_idle(screen), "/quit")
    screen.wait()
    block_until(lambda: not pids_with(mark))
