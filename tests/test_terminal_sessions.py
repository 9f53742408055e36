"""Sessions in a pseudo-terminal: after a kill, selected from a list, and on a disk that hangs."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Literal

import pytest
from support.journals import journal_files
from support.keys import CTRL_C, CTRL_D, CTRL_R, CTRL_U, ESC, UP
from support.program import gates
from support.project import ROOT
from support.screen import Screen
from support.terminal import Start, editor_has, journal, line_states, quit_program, send, start_tool, wait_idle

pytest_plugins = ["support.terminal"]


@contextmanager
def hanging_disk(screen: Screen, call: Literal["disk", "write"] = "disk") -> Iterator[None]:
    """Inside the block no fsync returns, or no write to a journal if ``call`` is ``write``."""
    gate = gates(screen.home) / call
    os.mkfifo(gate)
    try:
        yield
    finally:
        # With both ends open no opener waits, and readers reach the end when they close.
        both_ends = os.open(gate, os.O_RDWR | os.O_NONBLOCK)
        gate.unlink()
        os.close(both_ends)


@pytest.fixture
def screen(start: Start) -> Screen:
    """The program with its prompt up, on a disk that can hang."""
    return wait_idle(start(launcher=(sys.executable, str(ROOT / "tests/support/slow_disk_program.py"))))


def test_a_session_and_its_history_survive_kill_9(start: Start) -> None:
    first = wait_idle(start())
    send(first, "an alpha query").until("Done: an alpha query")
    start_tool(wait_idle(first), "gate a")
    send(first, "!use B").until("Interrupting: !use B")
    first.until(lambda s: b"use B" in journal(s).read_bytes())
    first.send_signal(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    part_of_id = journal(first).stem[:-3]

    second = wait_idle(start("-r", part_of_id).until("earlier line waits"))
    assert second.times("[Interrupted: stopped while running")
    assert second.times("The program ended in the middle of the last run, with 1 tool running.")
    second.type("\r")
    wait_idle(second.until("Understood: use B")).type(UP)
    second.until(editor_has("!use B")).type(f"{CTRL_U}{CTRL_R}alph\r")
    second.until(editor_has("an alpha query")).type("\r")
    second.until(lambda s: s.everything.count("Done: an alpha query") == 2)
    quit_program(wait_idle(second))
    assert line_states(second) == dict.fromkeys(("an alpha query", "gate a", "!use B"), "delivered")
    (history,) = (second.home / "state/chain").rglob("*hist*")
    assert history.stat().st_mode & 0o077 == 0, "the history is private"


@pytest.mark.slow
def test_a_session_is_chosen_from_a_list(start: Start) -> None:
    first = wait_idle(start())
    send(first, "hello").until("Done: hello")
    quit_program(wait_idle(first))
    id = journal(first).stem
    screen = start("-r").until("Resume which session?")
    [row_of_session] = [row for row in screen.rows if id in row]
    assert row_of_session.startswith(" 1. ")
    screen.type("9z\r")
    screen.until("there is no session '9z'").until(lambda s: s.everything.count("Resume which session?") == 2)
    screen.type("1\r")
    wait_idle(screen.until("Done: hello"))
    second = start("-r", id)
    assert second.wait() == 2
    assert second.times(f"the session {id} is open in another process; chain watch shows it, and chain send")
    quit_program(screen)
    none = start("-r").until("Resume which session?")
    none.type("\r")
    assert none.wait() == 0


@pytest.mark.slow
def test_a_hanging_fsync_delays_no_keys(screen: Screen) -> None:
    start_tool(screen, "gate a")
    with hanging_disk(screen):
        screen.type(ESC)
        wait_idle(screen.until("Interrupted"))
        for line in ("hello", "and you"):
            send(screen, line).type("half")
            screen.until(editor_has("half")).type(CTRL_U)
            screen.until(editor_has(""))
        assert "Done" not in screen.everything
    wait_idle(screen.until("Done: hello"))
    quit_program(screen)
    assert line_states(screen) == dict.fromkeys(("gate a", "hello", "and you"), "delivered")


@pytest.mark.slow
def test_a_hanging_write_restores_ctrl_c_as_key(screen: Screen) -> None:
    with hanging_disk(screen, "write"):
        send(screen, "hello").until(lambda s: s.sends_signals)
    wait_idle(screen.until("Done: hello"))
    assert not screen.sends_signals
    quit_program(screen)


@pytest.mark.slow
@pytest.mark.parametrize(("cause", "code"), [("Ctrl-C", 130), ("SIGTERM", 143)])
def test_a_hanging_write_delays_no_exit(screen: Screen, cause: str, code: int) -> None:
    start_tool(screen, "gate a")
    with hanging_disk(screen, "write"):
        screen.open_gate("a")
        screen.type("half")
        screen.until(editor_has("half"))
        if cause == "Ctrl-C":
            screen.type(CTRL_C)
            screen.until(lambda s: s.sends_signals)
        repeat = partial(screen.type, CTRL_C) if cause == "Ctrl-C" else partial(screen.send_signal, signal.SIGTERM)
        screen.until(lambda s: s.has_ended or repeat())  # again and again, as ``repeat`` returns nothing
        assert screen.wait() == code
    assert screen.is_cooked


@pytest.mark.slow
@pytest.mark.parametrize(("cause", "code"), [("Ctrl-D", 0), ("SIGTERM", 143)])
def test_an_exit_while_a_session_is_opened(screen: Screen, cause: str, code: int) -> None:
    with hanging_disk(screen):
        send(screen, "/new").until(lambda s: len(journal_files(s.home)) == 2)
        if cause == "Ctrl-D":
            screen.type(CTRL_D)
        else:
            screen.type("half")
            screen.until(editor_has("half")).send_signal(signal.SIGTERM)
    assert screen.wait() == code
    assert screen.left_behind == []
    assert any(screen.times(f"chain -r {path.stem}") == 1 for path in journal_files(screen.home))
    assert ("Not sent: half" in screen.everything) == (cause == "SIGTERM")
