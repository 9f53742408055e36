"""How full the window is, and what a compaction shows of itself: at a terminal, with the model that is offline."""

from __future__ import annotations

import re
import signal

import pytest
from support.screen import Screen
from support.terminal import Start, edits, idle, journal, quit, send

from chain import events
from chain.journal.reading import Reading
from chain.session.projection import retell

pytest_plugins = ["support.terminal"]

FILL = re.compile(r"ctx (\d+)%")


def fill(screen: Screen) -> int:
    """How full the window is, in percent, as the row below the prompt says."""
    found = FILL.search(screen.toolbar)
    return 0 if found is None else int(found[1])


@pytest.mark.slow  # the model that is offline takes its time at a terminal
def test_a_window_is_filled_compacted_and_gone_on_with_after_a_kill(start: Start) -> None:
    screen = start(config=False)
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
    told = list(retell(Reading(journal(again).read_bytes().splitlines(keepends=True))))
    assert next(e.query for e in told if isinstance(e, events.RunStarted)) == "count the lines of @long0.txt"
    assert [e.state for e in told if isinstance(e, events.Compaction)] == ["ended"]


def test_a_name_behind_an_at_sign_is_completed(start: Start) -> None:
    screen = start(config=False)
    (screen.home / "work" / "prompts").mkdir()
    (screen.home / "work" / "shot.png").write_bytes(b"\x89PNG\r\n\x1a\n and so on")
    idle(screen)
    for begun in "see @pro\t", "see @pri\t":
        screen.type(begun)
        screen.until(edits("see @prompts/"))
        screen.type("\x15")
        screen.until(edits(""))
    send(idle(screen), "what is on @shot.png?")
    screen.until("with shot.png (PNG")
    quit(idle(screen))
