"""The end of a run that has used its iterations, at a terminal: Enter goes on, also after the session was resumed."""

from __future__ import annotations

from support.screen import Screen
from support.terminal import Start, idle, journal, left, quit, send, states

pytest_plugins = ["support.terminal"]

LIMIT = ["--max-iterations", "1"]


def at_limit(screen: Screen) -> Screen:
    send(screen, "fails")
    return screen.until("1 step done; Enter goes on")


def test_enter_goes_on_after_the_limit(start: Start) -> None:
    screen = idle(start(*LIMIT))
    at_limit(screen)
    idle(screen)
    screen.type("\r")
    screen.until("▶ Continue.").until("Done: Continue.")
    idle(screen)
    # That run ended by itself, so nothing is to go on.
    screen.type("\r\r")
    quit(idle(screen))
    assert states(screen) == {"fails": "delivered", "Continue.": "delivered"}


def test_another_query_is_what_is_gone_on_with(start: Start) -> None:
    screen = idle(start(*LIMIT))
    send(at_limit(screen), "hello").until("Done: hello")
    screen.type("\r")
    quit(idle(screen))
    assert states(screen) == {"fails": "delivered", "hello": "delivered"}


def test_a_resumed_session_goes_on_as_well(start: Start) -> None:
    screen = idle(start(*LIMIT))
    quit(idle(at_limit(screen)))
    again = start(*LIMIT, "-r", journal(screen).stem).until("Enter goes on")
    idle(again).type("\r")
    again.until("Done: Continue.")
    send(idle(again), "/quit")
    left(again)


def test_it_says_so_in_ascii_and_without_a_terminal_of_its_own(start: Start) -> None:
    screen = idle(start(*LIMIT, "--ascii"))
    at_limit(screen)
    assert any(row.startswith("paused: 1 step done; Enter goes on - ") for row in screen.rows)
    send(screen, "/quit")
    assert screen.wait() == 0
    dumb = start(*LIMIT, env={"TERM": "dumb"}).until(lambda s: s.rows[-1:] == [">"])
    send(dumb, "fails").until("⏸ 1 step done; Enter goes on").until(lambda s: s.rows[-1:] == [">"])
    dumb.type("\r")
    dumb.until("Done: Continue.")
    send(dumb, "/quit")
    assert dumb.wait() == 0
