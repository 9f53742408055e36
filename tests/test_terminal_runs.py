"""Runs at a real terminal with many lines at once, a limit, and a window that is compacted."""

from __future__ import annotations

import re
import signal

import pytest
from support.journals import receipts
from support.screen import Screen
from support.terminal import CTRL_C, Start, edits, idle, journal, left, quit, send, states

from chain import events
from chain.journal.reading import Reading
from chain.session.restored_state import events_of_journal

pytest_plugins = ["support.terminal"]

pytestmark = pytest.mark.slow

FILL = re.compile(r"ctx (\d+)%")
LIMIT = ("--max-iterations", "1")


def fill(screen: Screen) -> int:
    """Return how full the window is, in percent, as the row below the prompt says."""
    found = FILL.search(screen.toolbar)
    return 0 if found is None else int(found[1])


def test_lines_that_race_with_the_ends_of_runs(screen: Screen) -> None:
    lines = [f"line {n}" for n in range(1, 31)]

    for n in range(0, 30, 10):  # no more than wait at the same time
        send(screen, *lines[n : n + 10])
        idle(screen.until(f"{lines[n + 9]}\n"))

    send(screen, "refuse this").until("The model refused to answer").until(edits("refuse this\n"))
    screen.type(CTRL_C)
    quit(idle(screen))
    assert states(screen) == {**dict.fromkeys(lines, "delivered"), "refuse this": "returned"}
    assert list(states(screen)) == [*lines, "refuse this"]


def test_enter_goes_on_after_the_limit_also_in_a_resumed_session(start: Start) -> None:
    screen = idle(start(*LIMIT))
    send(screen, "fails").until("1 step done; Enter continues")
    idle(screen).type("\r")
    screen.until("▶ Continue.").until("Done: Continue.")
    # That run ended by itself, so nothing is to go on.
    idle(screen).type("\r\r")
    send(screen, "fails").until(lambda s: s.everything.count("1 step done; Enter continues") == 2)
    quit(idle(screen))
    assert [line.text for line in receipts(screen.home).values()] == ["fails", "Continue.", "fails"]

    again = start(*LIMIT, "-r", journal(screen).stem).until("Enter continues")
    idle(again).type("\r")
    again.until(lambda s: s.everything.count("Done: Continue.") == 2)
    send(idle(again), "/quit")
    left(again)


def test_a_window_is_filled_compacted_and_gone_on_with_after_a_kill(start: Start) -> None:
    screen = start(config=False)
    screen.until("offline").until("ANTHROPIC_API_KEY")
    work = screen.home / "work"
    for n in range(3):
        (work / f"long{n}.txt").write_text(f"a row about the SKU A-{n}\n" * 700)
    idle(screen)
    before = 0
    for n in range(3):
        send(screen, f"count the lines of @long{n}.txt")
        screen.until(lambda s, before=before: fill(s) > before)
        idle(screen)
        before = fill(screen)
    send(screen, "/context").until("user's words").until("free")
    send(screen, "/compact the SKU numbers")
    screen.until("✂ Conversation compacted from").until("as you asked")
    screen.until(lambda s: 0 < fill(s) < before)
    idle(screen)
    send(screen, "/context").until("summary")
    send(screen, "list the files").until("long2.txt")
    idle(screen)
    screen.kill(signal.SIGKILL)
    screen.wait()

    again = start("-c", config=False)
    again.until("Conversation compacted from")
    send(idle(again), "/context").until("summary")
    send(again, "list the files")
    again.until(lambda s: s.everything.count("long2.txt") > 1)
    quit(idle(again))
    told = list(events_of_journal(Reading(journal(again).read_bytes().splitlines(keepends=True))))
    assert next(e.query for e in told if isinstance(e, events.RunStarted)) == "count the lines of @long0.txt"
    assert [e.state for e in told if isinstance(e, events.Compaction)] == ["ended"]
