"""The program in a pseudo-terminal: keys, redrawing, signals and exit codes. ``test_terminal_*.py`` have the rest.

What needs no terminal is in ``tests/terminal`` and ``tests/screen``. At its end ``left`` compares the rows with the
journal, and the terminal with its state before.
"""

from __future__ import annotations

import os
import re
import signal
from base64 import b64decode
from itertools import pairwise
from pathlib import Path

import pytest
from support.journals import receipts
from support.screen import Screen
from support.terminal import (
    COLOUR,
    CTRL_C,
    CTRL_D,
    ESC,
    PASTE,
    SLOW,
    UP,
    WORDS,
    Start,
    busy,
    edits,
    idle,
    left,
    quit,
    send,
    states,
    words,
)

pytest_plugins = ["support.terminal"]

LONG = "\n".join(f"row {n}" for n in range(300))


def test_a_query_is_answered_and_the_prompt_returns(start: Start) -> None:
    screen = start("stop").until("Done: stop")  # the query of a command line is not parsed
    assert "▶ stop" in screen.rows
    idle(screen).type(f"日本語 é 🎉 ⚠ ñ: {PASTE.format(LONG)} now")
    screen.until(edits("日本語 é 🎉 ⚠ ñ: [pasted 300 lines] now")).type("\r")
    screen.until("Done: 日本語 é 🎉 ⚠ ñ: row 0")
    send(idle(screen), "/copy").until("Sent to the clipboard: ")

    screen.type(CTRL_D)

    left(screen)
    assert COLOUR.search(screen.raw)
    assert states(screen) == {"stop": "delivered", f"日本語 é 🎉 ⚠ ñ: {LONG} now": "delivered"}
    [copied] = re.findall(rb"\x1b\]52;c;([A-Za-z0-9+/=]*)\x07", screen.raw)
    assert b64decode(copied).decode() == f"Done: 日本語 é 🎉 ⚠ ñ: {LONG} now"


def test_a_line_arrives_while_another_is_typed(screen: Screen) -> None:
    busy(screen, "walk a b").until(lambda s: re.search(r"1/100 .*gate \d+ s", s.toolbar))
    send(screen, "todo: add check the licence").until("📤 Interrupting: todo: add check the licence ⏳ next safe point")
    screen.type("and then per")
    screen.until(lambda s: "queue 1/10" in s.toolbar and s.toolbar.endswith("⏳ main, next safe point"))
    assert "INTERRUPTION" not in screen.everything

    screen.open_gate("a")

    screen.until("🔔 INTERRUPTION at iteration 1:").until(lambda s: re.search(r" ✓ injected \(\d+ s\)", s.flat))
    screen.until("Plan 0/1: [ ] 1. check the licence").until("Understood: todo: add")
    screen.until(lambda s: re.search(r"2/100 .*gate .*plan 0/1", s.toolbar)).until(edits("and then per"))
    screen.type("haps")
    screen.open_gate("b")
    screen.until("The walk is over.").until("✓ done").until(edits("and then perhaps"))
    send(screen, "").until("Done: and then perhaps")
    quit(idle(screen))
    assert list(receipts(screen.home).values())[1].point == "D"


def test_a_reply_streams_while_the_user_types(start: Start) -> None:
    screen = idle(start(rows=30, columns=60))

    def streams(screen: Screen, word: str) -> bool:
        found = words(screen)
        assert found == WORDS[: len(found)], screen.everything
        return word in found and screen.editor == "half"

    send(screen, SLOW).until("w01").until(lambda s: "answering" in s.toolbar)
    screen.type("half")
    screen.until(lambda s: streams(s, "w02"))
    for rows, columns, word in ((20, 100, "w04"), (12, 70, "w06")):
        screen.resize(rows, columns)
        screen.until(lambda s, word=word: streams(s, word))
    assert len(screen.toolbar) <= 70

    screen.type(ESC)

    screen.until("⏹ interrupted").until(lambda s: streams(s, "w06"))
    assert sum(row.startswith("> ") for row in screen.rows) == 1
    # The cursor is hidden while a drawing is incomplete.
    steps = re.findall(rb"\x1b\[(?:\?25[hl]|J)", screen.raw)
    assert [was for was, now in pairwise(steps) if now == b"\x1b[J" and was == b"\x1b[?25h"] == []
    drawn = re.findall(rb"\x1b\[([0-9;]*)mw01", bytes(screen.raw))
    assert drawn
    assert not [sgr for sgr in drawn if b"1" in sgr.split(b";")], "rows above the prompt are not bold"
    send(screen, "").until("Done: half")
    quit(idle(screen))


@pytest.mark.slow
def test_a_flood_of_output_does_not_block_keys(screen: Screen) -> None:
    send(screen, "flood 3000 10000")
    typed = "not lost at all"
    for n, char in enumerate(typed, 1):
        screen.type(char)
        screen.until(edits(typed[:n].rstrip()))
    screen.until("It gave 3000 lines of flood").until(edits(typed))
    omitted = sum(int(n.replace(",", "")) for n in re.findall(r"… ([\d,]+) more lines", screen.everything))
    assert len(re.findall(r"^ +flood line \d+$", screen.everything, re.M)) + omitted == 3000
    send(screen, "").until("Done: not lost at all")
    quit(idle(screen))


def test_esc_returns_waiting_lines_to_the_editor(screen: Screen) -> None:
    lines = {
        "!use A": "redirect",
        " stop": "verbatim",
        "todo: add x": "todo",
        "use B": "redirect",
        "context: it is late": "context",
        "why?": "question",
    }
    busy(screen, "hang", "hang")
    send(screen, *lines).until("queue 6/10").type("half")
    screen.until(edits("half"))

    screen.type(ESC)

    screen.until("⏹ interrupted").until("Interrupted. Tell the chain what to do instead.")
    screen.until(edits("\n".join([*lines, "half"]))).until(lambda s: s.toolbar.endswith("⏎ sends 7 lines"))
    assert [row.partition(": ")[2] for row in screen.rows if row.startswith("↩ Returned")] == list(lines)
    before = len(receipts(screen.home))
    send(screen, "way").until(edits("")).until("✓ done")
    quit(idle(screen))
    again = [(line.text, line.kind) for line in receipts(screen.home).values()][before:]
    assert again == [*lines.items(), ("halfway", again[-1][1])]


def test_ctrl_c_clears_interrupts_and_exits(screen: Screen) -> None:
    screen.type(f"half{CTRL_D}{ESC}")
    screen.until(edits("half")).type(CTRL_C)
    screen.until(edits("")).type(UP)
    screen.until(edits("half")).kill(signal.SIGINT)  # as a Ctrl-C while the editor waits for trio's thread
    busy(screen.until(edits("")), "hang", "hang").type("half")
    screen.until(edits("half")).type(ESC)
    screen.until("⏹ interrupted").until(lambda s: "idle" in s.toolbar).type(CTRL_C)
    busy(screen.until(edits("")), "hang", "hang")
    send(screen, "waits").until("📤 Interrupting: waits")
    assert "exit" not in screen.everything

    screen.type(CTRL_C)
    screen.until(edits("waits\n")).type(CTRL_C)
    screen.until("again to exit").until(edits("waits\n")).type(CTRL_C)

    left(screen, 130)
    assert states(screen) == {"hang": "delivered", "waits": "returned"}


def test_ctrl_z_suspends_and_fg_resumes(start: Start) -> None:
    job = """/bin/sh -c '"$@"; exit $?' sh "$@" """  # a script that has started the program
    shell = f'{job}; echo "stopped: $?"; read -r line; echo "read $line"; fg >/dev/null; echo "ended: $?"'
    screen = idle(start(under=("/bin/sh", "-m", "-c", shell, "sh")))
    screen.type("half\x1a")

    screen.until("stopped: 1")
    assert screen.is_cooked
    assert screen.editor is None
    assert screen.left_behind == []
    send(screen, "a word").until("read a word").until(edits("half"))

    send(screen, " a line").until("Done: half a line")
    send(idle(screen), "/quit").until("ended: 0")
    assert screen.wait() == 0
    assert screen.left_behind == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGTSTP])
def test_a_stopped_program_continues_with_its_keys(start: Start, number: signal.Signals) -> None:
    shell = '"$@"; stty sane; echo "stopped: $?"; read -r line; fg >/dev/null; echo "ended: $?"'
    screen = start(under=("/bin/sh", "-m", "-c", shell, "sh"))
    screen.until("Type a task").until(lambda s: not s.echoes)
    (child,) = Path(f"/proc/{screen.process.pid}/task/{screen.process.pid}/children").read_text().split()
    os.kill(int(child), number)
    screen.until("stopped:").until(lambda s: s.echoes).resize(30, 60)
    send(screen, "").until(lambda s: not s.echoes)

    send(screen, "\x15hello there").until("Done: hello there")
    send(screen, "/quit").until("ended: 0")
    assert screen.wait() == 0
