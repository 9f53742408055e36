"""Commands at a real terminal: what is seen of them, what cuts them, and that nothing of them is left."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from support.processes import marked, until
from support.screen import Screen
from support.terminal import ESC, Start, idle, quit, send, states

from chain.tools.processes.probe import probe

pytest_plugins = ["support.terminal"]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="commands need Linux")

RULES = r"""
rules:
  - when: {user: '^count', step: 1}
    tools: [{name: shell, input: {command: "for i in $$(seq 1 30); do echo row $$i; done; cat wait"}}]
  - when: {user: '^hide', step: 1}
    tools:
      - name: shell
        input: {command: "setsid sleep 1000 & (sleep 1001 &) ; nohup sleep 1002 & echo hidden; cat wait"}
  - {when: {user: '^reach', step: 1}, tools: [{name: shell, input: {command: "touch ../outside"}}]}
  - when: {user: '^serve', step: 1}
    tools: [{name: shell, input: {command: "setsid sleep 1000 & echo up; cat wait", background: true, wake: true}}]
  - {when: {user: 'JOB'}, text: "I see that it ended."}
  - {when: {interruption: '(?P<said>.*)'}, text: "Noted: ${said}"}
  - {text: "Result: ${result}"}
"""


def configure(home: Path, more: str = "") -> None:
    """Write a configuration with a model that runs commands."""
    (home / "test.yaml").write_text(
        "models: {default: test, definitions: {test: {provider: scripted, script: rules.yaml}}}\n"
        f"chains: {{default: {{model: test, tools: [shell]}}}}\n{more}"
    )
    (home / "rules.yaml").write_text(RULES)
    (home / "work").mkdir()


@pytest.fixture
def mark() -> str:
    """What marks the processes of a test."""
    return f"terminal-shell-{os.getpid()}-{time.monotonic_ns()}"


@pytest.fixture
def screen(start: Start, tmp_path: Path, mark: str) -> Screen:
    """The program with a model that runs commands, which need no asking, and wait for somebody to write."""
    configure(tmp_path, "tools: {allow: [shell]}\n")
    os.mkfifo(tmp_path / "work/wait")
    return idle(start(env={"MARK": mark}))


SLEEPERS = ("sleep", "cat")
"""What a command's processes become, and stay: a shell on its way there may be gone at the next look."""


def commands(mark: str, names: tuple[str, ...] = (*SLEEPERS, "bash")) -> list[int]:
    """What a command has started and still lives: all that is marked but the program and its helpers."""
    return [pid for pid in marked(mark) if name_of(pid) in names]


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""  # it has ended


def running(screen: Screen, query: str, mark: str, count: int) -> Screen:
    """Start a run, and wait until so many processes of its command sleep."""
    send(screen, query).until(lambda s: "shell " in s.toolbar)
    until(lambda: len(commands(mark, SLEEPERS)) >= count)
    return screen


@pytest.mark.skipif(not probe().writes, reason="this machine cannot refuse writes")
def test_a_command_that_the_sandbox_denied_is_allowed_outside_once(start: Start, tmp_path: Path) -> None:
    configure(tmp_path)
    screen, outside = idle(start()), tmp_path / "outside"
    for id, key, row in (
        ("Q1", "y", "  [sandbox: writes denied; approve with o]"),
        ("Q2", "o", "✓ shell  touch ../outside · Q2 allowed once outside the sandbox"),
        ("Q3", "y", "Q3 allowed"),
    ):
        outside.unlink(missing_ok=True)
        send(screen, "reach").until(lambda s, id=id: f"o, a or n answers {id} (main)" in s.toolbar)
        assert "o outside the sandbox · a allow this exact command" in screen.flat
        screen.type(key)
        idle(screen.until(row))
        assert outside.exists() == (key == "o")
    quit(screen)


@pytest.mark.slow
def test_output_is_shown_as_it_comes_the_last_rows_below_and_no_flood(screen: Screen, mark: str) -> None:
    running(screen, "count", mark, 1).until("  row 30")
    assert [f"  row {n}" for n in range(1, 21)] == [r for r in screen.rows if r.startswith("  row ")][:20]
    assert "  row 21" not in screen.rows
    (screen.home / "work/wait").write_text("written\n")
    screen.until("… 6 more lines").until("✓ shell  ")
    idle(screen)
    assert screen.rows.count("  row 30") == 1
    assert "  written" not in screen.rows, "the row of the call says it"
    assert any(row.startswith("✓ shell  ") and " · written" in row for row in screen.rows)
    quit(screen)


def test_esc_and_a_closed_window_leave_nothing_of_a_command(screen: Screen, mark: str) -> None:
    running(screen, "hide", mark, 4)
    send(screen, "stop").until("Esc kills it")
    assert len(commands(mark)) >= 4
    screen.type(ESC)
    screen.until("⏹ interrupted")
    idle(screen)
    assert not commands(mark)

    running(screen, "hide", mark, 4)
    send(screen, "waits").until("📤 Interrupting: waits")
    screen.hang_up()
    screen.wait()
    until(lambda: not marked(mark))
    assert states(screen) == {"hide": "delivered", "stop": "handled", "waits": "queued"}


@pytest.mark.slow
@pytest.mark.parametrize("way", ["!!", "SIGKILL"])
def test_nothing_of_a_command_outlives_what_cuts_it(screen: Screen, mark: str, way: str) -> None:
    running(screen, "hide", mark, 4)
    if way == "!!":
        send(screen, "!!stop that, list the files")
        until(lambda: not commands(mark))
        quit(idle(screen.until("✗ shell").until("Noted: stop that, list the files")))
    else:
        screen.kill(signal.SIGKILL)
    screen.wait()
    until(lambda: not marked(mark))


def test_a_job_runs_beside_the_prompt_wakes_the_model_and_is_killed_by_name(screen: Screen, mark: str) -> None:
    send(screen, "serve")
    idle(screen.until("job J1 started").until("Result: [job J1 started]"))
    until(lambda: len(commands(mark, SLEEPERS)) == 2)
    send(screen, "/jobs").until("J1  running for ")
    (screen.home / "work/wait").write_text("written\n")
    screen.until("● [JOB J1] exit code 0 after ").until("I see that it ended.")
    idle(screen)
    until(lambda: not commands(mark))
    send(screen, "serve")
    idle(screen.until("job J2 started"))
    send(screen, "/kill J2").until("● [JOB J2] killed by the user after ")
    idle(screen)
    until(lambda: not commands(mark))
    quit(screen)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["quit", "stop", "hang up", "SIGKILL", "/new"])
def test_nothing_of_a_job_outlives_the_session(screen: Screen, mark: str, way: str) -> None:
    send(screen, "serve")
    idle(screen.until("job J1 started"))
    until(lambda: len(commands(mark, SLEEPERS)) == 2)
    match way:
        case "quit":
            quit(screen)
        case "stop":
            send(screen, "stop").until("Killing 1 background job: J1.")
            until(lambda: not commands(mark))
            quit(screen)
        case "/new":
            send(screen, "/new").until("New conversation.")
            until(lambda: not commands(mark))
            send(idle(screen), "/quit")
        case "hang up":
            screen.hang_up()
        case _:
            screen.kill(signal.SIGKILL)
    screen.wait()
    until(lambda: not marked(mark))
