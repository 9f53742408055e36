"""Exits of the program in a pseudo-terminal: before it is ready, and where something does not end."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from support.keys import ALT_ENTER, CTRL_C, CTRL_D
from support.program import gates
from support.project import ROOT
from support.screen import Screen
from support.terminal import LIMITS, Start, editor_has, journal, line_states, quit_program, send, start_tool, wait_idle

pytest_plugins = ["support.terminal"]

pytestmark = pytest.mark.slow


def test_a_draft_survives_a_lost_connection(start: Start) -> None:
    screen = wait_idle(start())
    screen.type(f"half{ALT_ENTER}a thought")
    screen.until(editor_has("half\na thought")).hang_up()
    assert screen.wait() == 143
    start("-c").until(editor_has("half\na thought"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_the_program_is_ready(start: Start, number: signal.Signals) -> None:
    screen = start(disabled=()).until(lambda s: not s.is_cooked)  # with the time limits of every exit

    screen.send_signal(number)
    if number == signal.SIGINT:  # at the prompt the first one only gives a hint
        screen.until(lambda s: s.has_ended or "again to exit" in s.everything)
        screen.send_signal(number)

    screen.wait()
    assert screen.left_behind == []
    assert "Traceback" not in screen.everything


def test_keys_typed_ahead_are_not_lost(start: Start) -> None:
    # The shell starts the program when the first line was typed.
    screen = start(disabled=(), launcher=["/bin/sh", "-c", 'read -r go; exec "$@"', "sh"])
    screen.type("go\rvery early\r")
    screen.until(lambda s: not s.is_cooked).type("early bird")

    screen.until("Done: very early").until(editor_has("early bird"))
    send(screen, "").until("Done: early bird")
    quit_program(wait_idle(screen))
    assert line_states(screen) == {"very early": "delivered", "early bird": "delivered"}


def test_an_unread_terminal_delays_no_exit(start: Start) -> None:
    screen = wait_idle(start(disabled=()))
    send(screen, "flood 20000 100000").until("flood line")

    screen.send_signal(signal.SIGTERM)

    assert screen.wait(reads=False) == 143
    screen.wait()
    assert screen.left_behind == []


def test_an_endless_tool_delays_no_second_press(start: Start) -> None:
    screen = wait_idle(start(disabled=[*LIMITS, "cli.terminal.terminal_session.CLOSING_S"]))
    start_tool(screen, "stone", "stone")
    screen.type(CTRL_D)
    screen.until("Waiting for the running tool to end")

    screen.type(CTRL_C)

    assert screen.wait() == 130
    assert screen.left_behind == []
    assert screen.times(f"chain -r {journal(screen).stem}")


def test_a_bug_restores_the_terminal(screen: Screen) -> None:
    screen.type("breaks\r")

    assert screen.wait() not in (0, 130, 143)
    assert screen.left_behind == []
    assert "a mistake of our own" in screen.everything
    assert screen.times(f"chain -r {journal(screen).stem}")


IMPATIENT_PROGRAM = f"""
import runpy
from cli import ending
ending.EXIT_S = 0.1
runpy.run_path({str(ROOT / "tests/support/slow_disk_program.py")!r}, run_name="__main__")
"""
"""The program on a disk that can be paused. Its process ends at most 0.1 s after its last row."""


def test_quit_succeeds_on_a_hanging_disk(start: Start) -> None:
    screen = wait_idle(start(launcher=(sys.executable, "-c", IMPATIENT_PROGRAM), disabled=()))
    send(screen, "hello").until("Done: hello")
    os.mkfifo(gates(screen.home) / "disk")
    send(wait_idle(screen), "todo: add buy milk").until("added")
    send(screen, "/quit")
    assert screen.wait() == 0


INTERRUPTED_PROGRAM = """
import signal, sys, weakref

class Thing: pass

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            thing = Thing()
            callback = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGINT))
            del thing

sys.meta_path.insert(0, Finder())
from cli import console
console()
"""
"""The program, with a Ctrl-C during the import of the module ``name``, in a callback where Python drops exceptions."""


@pytest.mark.parametrize("name", ["cli.main", "cli.terminal.plain_question"])
def test_ctrl_c_during_an_import_ends_the_program(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("chains: {default: {model: offline}}\ntools: {allow: [shell]}\n")
    with Screen([sys.executable, "-c", INTERRUPTED_PROGRAM.format(name=name)], home=tmp_path, cwd=tmp_path) as screen:
        assert screen.wait() == 130
