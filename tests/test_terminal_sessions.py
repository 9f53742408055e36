"""Sessions in a pseudo-terminal: after a kill, chosen from a list, and on a disk that hangs."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from support.house import ROOT
from support.journals import journal_files
from support.program import gates
from support.screen import Screen
from support.terminal import CTRL_C, CTRL_D, CTRL_R, ESC, UP, Start, busy, edits, idle, quit, send, states

pytest_plugins = ["support.terminal"]


@contextmanager
def hanging_disk(screen: Screen, at: str = "disk") -> Iterator[None]:
    """Inside the block no fsync returns, or no write to a journal if ``at`` is ``write``."""
    gate = gates(screen.home) / at
    os.mkfifo(gate)
    try:
        yield
    finally:
        # With both ends open no opener waits, and readers reach the end when they close.
        both = os.open(gate, os.O_RDWR | os.O_NONBLOCK)
        gate.unlink()
        os.close(both)


@pytest.fixture
def slow(start: Start) -> Screen:
    """The program with its prompt up, on a disk that can hang."""
    return idle(start(under=(sys.executable, str(ROOT / "tests/support/slow_disk_program.py"))))


def test_a_session_and_its_history_survive_kill_9(start: Start) -> None:
    first = idle(start())
    send(first, "an alpha query").until("Done: an alpha query")
    busy(idle(first), "gate a")
    send(first, "!use B").until("Interrupting: !use B")
    first.until(lambda s: b"use B" in journal_files(s.home)[-1].read_bytes())
    first.kill(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    id = journal_files(first.home)[-1].stem

    second = idle(start("-r", id[:-3]).until("earlier line waits"))
    assert second.times("[Interrupted: stopped while running")
    assert second.times("The program ended in the middle of the last run, 1 tool running.")
    second.type("\r")
    idle(second.until("Understood: use B")).type(UP)
    second.until(edits("!use B")).type(f"\x15{CTRL_R}alph\r")
    second.until(edits("an alpha query")).type("\r")
    second.until(lambda s: s.everything.count("Done: an alpha query") == 2)
    quit(idle(second))
    assert states(second) == dict.fromkeys(("an alpha query", "gate a", "!use B"), "delivered")
    histories = list((second.home / "state/chain").rglob("*hist*"))
    assert [file.stat().st_mode & 0o077 for file in histories] == [0]


@pytest.mark.slow
def test_a_session_is_chosen_from_a_list(start: Start) -> None:
    first = idle(start())
    send(first, "hello").until("Done: hello")
    quit(idle(first))
    id = journal_files(first.home)[-1].stem
    screen = start("-r").until("Resume which session?")
    assert next(row for row in screen.rows if id in row).startswith(" 1. ")
    screen.type("9z\r")
    screen.until("there is no session '9z'").until(lambda s: s.everything.count("Resume which session?") == 2)
    screen.type("1\r")
    idle(screen.until("Done: hello"))
    second = start("-r", id)
    assert second.wait() == 2
    assert second.times(f"the session {id} is open in another process; chain watch shows it, and chain send")
    quit(screen)
    none = start("-r").until("Resume which session?")
    none.type("\r")
    assert none.wait() == 0


@pytest.mark.slow
def test_a_hanging_fsync_delays_no_keys(slow: Screen) -> None:
    busy(slow, "gate a")
    with hanging_disk(slow):
        slow.type(ESC)
        idle(slow.until("Interrupted"))
        for line in ("hello", "and you"):
            send(slow, line).type("half")
            slow.until(edits("half")).type("\x15")
            slow.until(edits(""))
        assert "Done" not in slow.everything
    idle(slow.until("Done: hello"))
    quit(slow)
    assert states(slow) == dict.fromkeys(("gate a", "hello", "and you"), "delivered")


@pytest.mark.slow
def test_ctrl_c_is_a_key_after_a_hanging_write(slow: Screen) -> None:
    with hanging_disk(slow, "write"):
        send(slow, "hello").until(lambda s: s.sends_signals)
    idle(slow.until("Done: hello"))
    assert not slow.sends_signals
    quit(slow)


@pytest.mark.slow
@pytest.mark.parametrize(("way", "code"), [("Ctrl-C", 130), ("SIGTERM", 143)])
def test_a_write_that_hangs_delays_no_exit(slow: Screen, way: str, code: int) -> None:
    busy(slow, "gate a")
    with hanging_disk(slow, "write"):
        slow.open_gate("a")
        slow.type("half")
        slow.until(edits("half"))
        if way == "Ctrl-C":
            slow.type(CTRL_C)
            slow.until(lambda s: s.sends_signals)
        again = partial(slow.type, CTRL_C) if way == "Ctrl-C" else partial(slow.kill, signal.SIGTERM)
        slow.until(lambda s: s.has_ended or again())
        assert slow.wait() == code
    assert slow.is_cooked


@pytest.mark.slow
@pytest.mark.parametrize("way", ["Ctrl-D", "SIGTERM"])
def test_an_exit_while_a_session_is_opened(slow: Screen, way: str) -> None:
    with hanging_disk(slow):
        send(slow, "/new").until(lambda s: len(journal_files(s.home)) == 2)
        if way == "Ctrl-D":
            slow.type(CTRL_D)
        else:
            slow.type("half")
            slow.until(edits("half")).kill(signal.SIGTERM)
    assert slow.wait() == (0 if way == "Ctrl-D" else 143)
    assert slow.left_behind == []
    assert any(slow.times(f"chain -r {path.stem}") == 1 for path in journal_files(slow.home))
    assert way == "Ctrl-D" or "Not sent: half" in slow.everything
