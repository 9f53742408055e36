"""Commands at a real terminal: what is seen of them, what cuts them, and that nothing of them is left."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from support.examples import some
from support.processes import marked, until
from support.screen import Screen
from support.terminal import CTRL_C, ESC, Start, idle, quit, send

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
  - {when: {interruption: '(?P<said>.*)'}, text: "Noted: ${said}"}
  - {text: "Result: ${result}"}
"""

SOON_S = 0.1
ECHOES = 20
"""A machine that does other work as well takes longer: as long as the echoes of so many keys do there."""


@pytest.fixture
def mark() -> str:
    """What marks the processes of a test."""
    return f"terminal-shell-{os.getpid()}-{time.monotonic_ns()}"


@pytest.fixture
def screen(start: Start, tmp_path: Path, mark: str) -> Screen:
    """The program with a model that runs commands, which need no asking, and wait for somebody to write."""
    (tmp_path / "test.yaml").write_text(
        "models: {default: test, definitions: {test: {provider: scripted, script: rules.yaml}}}\n"
        "chains: {default: {model: test, tools: [shell]}}\n"
        "tools: {allow: [shell]}\n"
    )
    (tmp_path / "rules.yaml").write_text(RULES)
    (tmp_path / "work").mkdir()
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


@pytest.mark.slow
def test_a_now_line_cuts_a_command_and_the_run_goes_on(screen: Screen, mark: str) -> None:
    running(screen, "hide", mark, 4)
    echo = seconds(screen, "e", lambda s: s.editor == "e")
    screen.type("\x15")
    screen.until(lambda s: s.editor == "")
    screen.type("!!stop that, list the files")
    screen.until(lambda s: s.editor == "!!stop that, list the files")
    began = time.monotonic()
    screen.type("\r")
    until(lambda: not commands(mark))
    assert time.monotonic() - began < max(SOON_S, ECHOES * echo)
    screen.until("✗ shell").until("Noted: stop that, list the files")
    quit(idle(screen))


def seconds(screen: Screen, keys: str, condition: object) -> float:
    begun = time.monotonic()
    screen.type(keys)
    screen.until(condition)  # type: ignore[arg-type]
    return time.monotonic() - begun


def test_a_stop_waits_for_the_command_and_esc_kills_it(screen: Screen, mark: str) -> None:
    running(screen, "hide", mark, 4)
    send(screen, "stop").until("Esc kills it")
    assert len(commands(mark)) >= 4
    screen.type(ESC)
    screen.until("⏹ interrupted")
    idle(screen)
    assert not commands(mark)
    quit(screen)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("way", some(["/quit", "Ctrl-C twice", "SIGTERM", "SIGHUP", "SIGKILL"], every=3))
def test_nothing_of_a_command_outlives_the_program(screen: Screen, mark: str, way: str) -> None:
    running(screen, "hide", mark, 4)
    match way:
        case "/quit":
            send(screen, "/quit")
        case "Ctrl-C twice":
            screen.type(CTRL_C + CTRL_C)
        case _:
            screen.process.send_signal(signal.Signals[way])
    screen.wait()
    until(lambda: not marked(mark))
