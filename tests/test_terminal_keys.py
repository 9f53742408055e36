"""Keys of the prompt in a real terminal: the user's own editor, the menu, long pastes, wide signs, the target."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.journals import receipts
from support.screen import Screen
from support.terminal import CTRL_C, ESC, PASTE, UP, Start, busy, edits, idle, quit, send

pytest_plugins = ["support.terminal"]

CTRL_G, CTRL_X, CTRL_E, BACKSPACE, LEFT = "\x07", "\x18", "\x05", "\x7f", "\x1b[D"
PASTED = "\n".join(f"row {n}" for n in range(300))
EDITOR = """\
#!/bin/sh
trap 'echo interrupted >> "$1"' INT
echo "the editor has: $(cat "$1")" > /dev/tty
read -r row < /dev/tty
if [ "$row" = fail ]; then exit 3; fi
echo "$row" >> "$1"
"""


@pytest.fixture
def with_editor(start: Start, tmp_path: Path) -> Screen:
    """The program with an editor that appends a row, or fails."""
    script = tmp_path / "editor"
    script.write_text(EDITOR)
    script.chmod(0o755)
    return idle(start(env={"VISUAL": str(script)}))


def texts(screen: Screen) -> list[str]:
    return [line.text for line in receipts(screen.home).values()]


# ---------------------------------------------------------------------------------------------- the user's own editor


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("keys", [(CTRL_G,), (CTRL_X + CTRL_E,), (CTRL_X, CTRL_E)])
def test_an_editor_has_the_text_while_the_chain_goes_on(with_editor: Screen, keys: tuple[str, ...]) -> None:
    screen = with_editor
    busy(screen, "gate a")
    screen.type("one")
    screen.until(edits("one"))
    for key in keys:
        screen.type(key)
    screen.until("the editor has: one")
    screen.open_gate("a")
    screen.type("two\n")
    screen.until(edits("one\ntwo")).until("✓ done")
    assert texts(screen) == ["gate a"]  # what was saved is not sent
    send(screen, "").until("▶ one")
    quit(idle(screen))
    assert texts(screen) == ["gate a", "one\ntwo"]


def test_an_editor_that_fails_leaves_the_text_and_ctrl_c_in_it_is_its_own(with_editor: Screen) -> None:
    screen = with_editor
    busy(screen, "gate a")
    screen.type(f"one{CTRL_G}")
    screen.until("the editor has: one")
    screen.type("fail\n")
    screen.until("ended with 3; the text is as it was").until(edits("one"))
    screen.type(CTRL_G)
    screen.until(lambda s: s.everything.count("the editor has: one") == 2)
    screen.type(CTRL_C)
    screen.type("two\n")
    screen.until(lambda s: (s.editor or "").startswith("one\n"))
    assert "Interrupted" not in screen.everything
    screen.open_gate("a")
    screen.until("✓ done")
    screen.type("\x15\x15\x15\x15\x15\x15")
    quit(idle(screen))


# ---------------------------------------------------------------------------------------------------------- the menu


def test_a_menu_says_what_commands_do_while_one_is_typed(screen: Screen) -> None:
    screen.type("/")
    screen.until(lambda s: any(row.startswith("  /status ") and "what is going on" in row for row in s.menu))
    screen.type("mo")
    screen.until(lambda s: [row.split()[0] for row in s.menu] == ["/model"])
    screen.type(" ")
    screen.until(lambda s: s.menu == [])
    screen.type("\x15/st")
    screen.until(lambda s: len(s.menu) == 1)
    screen.type(ESC)
    screen.until(lambda s: s.menu == []).until(edits("/st"))
    screen.type("\t")
    screen.until(edits("/status"))
    send(screen, "").until("» /status")  # Enter sends what is there
    quit(idle(screen))


# ---------------------------------------------------------------------------------------------------------- pastes


def test_a_long_paste_is_a_row_in_the_editor_and_whole_everywhere_else(screen: Screen) -> None:
    screen.type(f"look at {PASTE.format(PASTED)} now")
    screen.until(edits("look at [pasted 300 lines] now"))
    screen.type(LEFT * 4 + BACKSPACE)
    screen.until(edits("look at  now"))
    screen.type(PASTE.format(PASTED))
    screen.until(edits("look at [pasted 300 lines] now"))
    send(screen, "").until("✓ done")
    idle(screen)
    assert texts(screen) == [f"look at {PASTED} now"]
    screen.type(UP)
    screen.until(lambda s: s.display[s.cursor[0]] == "  row 299 now")
    screen.type(CTRL_C)
    screen.until(edits(""))
    quit(idle(screen))


def test_a_long_paste_comes_back_whole(screen: Screen) -> None:
    busy(screen, "hang", "hang")
    screen.type(f"a {PASTE.format(PASTED)}\r")
    screen.until("queue 1/10")
    screen.type(ESC)
    screen.until("↩ Returned").until(lambda s: (s.editor or "").startswith("[pasted 300 lines]"))
    screen.type(BACKSPACE)
    send(screen, "").until("✓ done")
    idle(screen)
    assert texts(screen)[-1] == f"a {PASTED}"
    send(screen, "[pasted 300 lines]").until("Done: [pasted 300 lines]")
    quit(idle(screen))


# ---------------------------------------------------------------------------------------------------------- wide signs


def test_joined_signs_have_the_columns_that_the_terminal_gives_them(start: Start) -> None:
    screen = idle(start(columns=40))
    family = "👨\u200d👩\u200d👧"
    before = len(screen.raw)
    screen.type(family * 7)
    # Six columns each, six to a row: nothing that a terminal could join is written.
    screen.until(lambda s: s.cursor[1] == 6 and any("👧" in row for row in s.display))
    assert b"\xe2\x80\x8d" not in screen.raw[before:]
    screen.type("\x1b[H\x1b[C\x1b[C")
    screen.until(lambda s: s.cursor[1] == 4)
    screen.type("\x1b[F")
    send(screen, "").until("✓ done")
    idle(screen)
    assert texts(screen) == [family * 7]
