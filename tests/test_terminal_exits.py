"""Leaving the program: in a run, by signals, before the prompt is up, and where something does not end."""

from __future__ import annotations

import signal

import pytest
from support.screen import Screen
from support.terminal import (
    ALT_ENTER,
    CTRL_C,
    CTRL_D,
    LIMITS,
    UP,
    Start,
    busy,
    edits,
    idle,
    journal,
    left,
    quit,
    send,
    states,
)

pytest_plugins = ["support.terminal"]

pytestmark = pytest.mark.slow


def test_quit_in_a_run_names_what_was_not_sent_and_what_waits_is_there_again(start: Start) -> None:
    screen = idle(start("--say", "@iteration 9 too late"))
    send(screen, "/new").until("New conversation")  # which what is said moves along to
    busy(idle(screen), "hang", "hang")
    send(screen, "one waits", "!another waits").until("📤 Interrupting: !another waits")

    send(screen, "/quit")

    left(screen, 3)
    assert [row for row in screen.rows if row.startswith("Not sent: ")] == ["Not sent: @iteration 9 too late"]
    assert "2 lines stay queued in the session." in screen.rows
    send(start("-c").until("2 lines from before wait"), "").until("🔔 INTERRUPTION before iteration 1: one waits")


def test_after_a_lost_connection_the_draft_is_in_the_editor_and_in_the_history(start: Start) -> None:
    screen = idle(start())
    screen.type(f"half{ALT_ENTER}a thought")
    screen.until(edits("half\na thought")).hang_up()
    assert screen.wait() == 143

    screen = start("-c").until(edits("half\na thought"))
    screen.type(CTRL_C)
    screen.until(edits("")).type(UP)
    screen.until(edits("half\na thought"))


def test_an_interrupt_from_elsewhere_is_a_ctrl_c(screen: Screen) -> None:
    busy(screen, "hang", "hang")
    send(screen, "waits").until("📤 Interrupting: waits")

    screen.kill(signal.SIGINT)
    screen.until("⏹ interrupted")
    screen.kill(signal.SIGINT)
    screen.until("again to exit").kill(signal.SIGINT)

    left(screen, 130)
    assert states(screen) == {"hang": "delivered", "waits": "returned"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_before_the_program_is_ready(start: Start, number: signal.Signals) -> None:
    screen = start(never=()).until(lambda s: not s.is_cooked)

    screen.kill(number)
    if number == signal.SIGINT:
        screen.until(lambda s: s.has_ended or "again to exit" in s.everything)
        screen.kill(number)

    screen.wait()
    assert screen.left_behind == []
    assert "Traceback" not in screen.everything


def test_keys_and_enter_before_the_program_has_the_terminal_are_not_lost(start: Start) -> None:
    screen = start(never=(), under=["/bin/sh", "-c", 'read -r go; exec "$@"', "sh"])
    screen.type("go\rvery early\r")
    screen.until(lambda s: not s.is_cooked).type("early bird")

    screen.until("Done: very early").until(edits("early bird"))
    send(screen, "").until("Done: early bird")
    quit(idle(screen))
    assert states(screen) == {"very early": "delivered", "early bird": "delivered"}


def test_a_terminal_that_nobody_reads_keeps_nobody_from_leaving(start: Start) -> None:
    screen = idle(start(never=()))
    send(screen, "flood 20000 100000").until("flood line")

    screen.kill(signal.SIGTERM)

    assert screen.wait(reads=False) == 143
    screen.wait()
    assert screen.left_behind == []
    assert states(screen) == {"flood 20000 100000": "delivered"}


def test_a_tool_that_never_lets_go_keeps_nobody_at_the_terminal(start: Start) -> None:
    screen = idle(start(never=[*LIMITS, "cli.terminal.terminal_session.CLOSING_S"]))
    busy(screen, "stone", "stone")
    screen.type(CTRL_D)
    screen.until("Waiting for the running tool to end")

    screen.type(CTRL_C)

    assert screen.wait() == 130
    assert screen.left_behind == []
    assert screen.times(f"chain -r {journal(screen).stem}")


def test_a_mistake_of_our_own_leaves_the_terminal_as_it_was(screen: Screen) -> None:
    screen.type("breaks\r")

    assert screen.wait() not in (0, 130, 143)
    assert screen.left_behind == []
    assert "a mistake of our own" in screen.everything
    assert screen.times(f"chain -r {journal(screen).stem}")


def test_a_start_query_that_is_refused_is_in_the_editor(start: Start) -> None:
    # The journal has room for its first record and not for this query.
    limited = ["/bin/bash", "-c", 'ulimit -f 1; exec "$@"', "bash"]
    # Python keeps what it could compile half, and takes it for whole the next time.
    screen = start("x" * 1000 + " the end", under=limited, env={"PYTHONDONTWRITEBYTECODE": "1"})

    screen.until("File too large").until(lambda s: s.editor is not None and s.editor.rstrip("\n").endswith("the end"))
    screen.type(CTRL_C)
    left(screen.until(edits("")) and send(screen, "/quit"))
