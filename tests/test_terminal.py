"""The program in a pseudo-terminal: keys, redrawing, signals and exit codes. ``test_terminal_*.py`` have the rest.

What needs no terminal is in ``tests/terminal`` and ``tests/screen``. A start costs half a second, so a test has
several steps. Most end with ``check_exit`` or ``quit``, which check that the terminal is as it was before.
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
from support.keys import CTRL_C, CTRL_D, CTRL_U, CTRL_Z, ESC, UP
from support.screen import Screen
from support.terminal import (
    COLOUR,
    PASTE,
    SLOW_QUERY,
    WORDS,
    Start,
    check_exit,
    editor_has,
    line_states,
    quit_program,
    send,
    shown_words,
    start_tool,
    wait_idle,
)

from chain.events import Point

pytest_plugins = ["support.terminal"]

NON_ASCII = "日本語 é 🎉 ⚠ ñ"
SHOW_CURSOR, ERASE = b"\x1b[?25h", b"\x1b[J"
LONG_PASTE = "\n".join(f"row {n}" for n in range(300))
JOB_CONTROL_SHELL = ("/bin/sh", "-m", "-c")


def test_a_query_is_answered_and_the_prompt_returns(start: Start) -> None:
    screen = start("stop").until("Done: stop")  # the query of a command line is not parsed
    assert "▶ stop" in screen.rows
    wait_idle(screen).type(f"{NON_ASCII}: {PASTE.format(LONG_PASTE)} now")
    screen.until(editor_has(f"{NON_ASCII}: [pasted 300 lines] now")).type("\r")
    screen.until(f"Done: {NON_ASCII}: row 0")
    send(wait_idle(screen), "/copy").until("Sent to the clipboard: ")

    screen.type(CTRL_D)

    check_exit(screen)
    assert COLOUR.search(screen.raw)
    query = f"{NON_ASCII}: {LONG_PASTE} now"
    assert line_states(screen) == {"stop": "delivered", query: "delivered"}
    [copied] = re.findall(rb"\x1b\]52;c;([A-Za-z0-9+/=]*)\x07", screen.raw)
    assert b64decode(copied).decode() == f"Done: {query}"


def test_a_line_arrives_while_another_is_typed(screen: Screen) -> None:
    start_tool(screen, "walk a b").until(lambda s: re.search(r"1/100 .*gate \d+ s", s.toolbar))
    send(screen, "todo: add check the licence").until("📤 Interrupting: todo: add check the licence ⏳ next safe point")
    screen.type("and then per")
    screen.until(lambda s: "queue 1/10" in s.toolbar and s.toolbar.endswith("⏳ main, next safe point"))
    assert "INTERRUPTION" not in screen.everything

    screen.open_gate("a")

    screen.until("🔔 INTERRUPTION at iteration 1:").until(lambda s: re.search(r" ✓ injected \(\d+ s\)", s.flat))
    screen.until("Plan 0/1: [ ] 1. check the licence").until("Understood: todo: add")
    screen.until(lambda s: re.search(r"2/100 .*gate .*plan 0/1", s.toolbar)).until(editor_has("and then per"))
    screen.type("haps")
    screen.open_gate("b")
    screen.until("The walk is over.").until("✓ done").until(editor_has("and then perhaps"))
    send(screen, "").until("Done: and then perhaps")
    quit_program(wait_idle(screen))
    _, todo, _ = receipts(screen.home).values()
    assert (todo.text, todo.point) == ("todo: add check the licence", Point.AFTER_TOOLS)


def test_a_reply_streams_while_the_user_types(start: Start) -> None:
    screen = wait_idle(start(rows=30, columns=60))

    def has_word_and_draft(screen: Screen, word: str) -> bool:
        shown = shown_words(screen)
        assert shown == WORDS[: len(shown)], screen.everything
        return word in shown and screen.editor == "half"

    send(screen, SLOW_QUERY).until("w01").until(lambda s: "answering" in s.toolbar)
    screen.type("half")
    screen.until(lambda s: has_word_and_draft(s, "w02"))
    for rows, columns, word in ((20, 100, "w04"), (12, 70, "w06")):
        screen.resize(rows, columns)
        screen.until(lambda s, word=word: has_word_and_draft(s, word))
    assert len(screen.toolbar) <= 70

    screen.type(ESC)

    screen.until("⏹ interrupted").until(lambda s: has_word_and_draft(s, "w06"))
    assert sum(row.startswith("> ") for row in screen.rows) == 1
    shows_and_erasures = re.findall(rb"\x1b\[(?:\?25[hl]|J)", screen.raw)
    assert (SHOW_CURSOR, ERASE) not in pairwise(shows_and_erasures), "the cursor is hidden during a drawing"
    styles = re.findall(rb"\x1b\[([0-9;]*)mw01", bytes(screen.raw))
    assert styles
    assert all(b"1" not in style.split(b";") for style in styles), "rows above the prompt are not bold"
    send(screen, "").until("Done: half")
    quit_program(wait_idle(screen))


@pytest.mark.slow
def test_a_flood_of_output_does_not_block_keys(screen: Screen) -> None:
    send(screen, "flood 3000 10000")
    typed = "not lost at all"
    for n, char in enumerate(typed, 1):
        screen.type(char)
        screen.until(editor_has(typed[:n].rstrip()))  # the rows of a screen have no spaces at their end
    screen.until("It gave 3000 lines of flood").until(editor_has(typed))
    shown_lines = re.findall(r"^ +flood line \d+$", screen.everything, re.M)
    omitted = sum(int(n.replace(",", "")) for n in re.findall(r"… ([\d,]+) more lines", screen.everything))
    assert len(shown_lines) + omitted == 3000
    send(screen, "").until("Done: not lost at all")
    quit_program(wait_idle(screen))


def test_esc_returns_waiting_lines_to_the_editor(screen: Screen) -> None:
    lines = {
        "!use A": "redirect",
        " stop": "verbatim",
        "todo: add x": "todo",
        "use B": "redirect",
        "context: it is late": "context",
        "why?": "question",
    }
    start_tool(screen, "hang", "hang")
    send(screen, *lines).until("queue 6/10").type("half")
    screen.until(editor_has("half"))

    screen.type(ESC)

    screen.until("⏹ interrupted").until("Interrupted. Tell the chain what to do instead.")
    screen.until(editor_has("\n".join([*lines, "half"]))).until(lambda s: s.toolbar.endswith("⏎ sends 7 lines"))
    returned = [row.partition(": ") for row in screen.rows if row.startswith("↩ Returned")]
    assert [text for _, _, text in returned] == list(lines)
    ids_before = receipts(screen.home).keys()
    send(screen, "way").until(editor_has("")).until("✓ done")
    quit_program(wait_idle(screen))
    *sent_again, halfway = [line for id, line in receipts(screen.home).items() if id not in ids_before]
    assert {line.text: line.kind for line in sent_again} == lines
    assert halfway.text == "halfway"


def test_ctrl_c_clears_interrupts_and_exits(screen: Screen) -> None:
    screen.type(f"half{CTRL_D}{ESC}")
    screen.until(editor_has("half")).type(CTRL_C)
    screen.until(editor_has("")).type(UP)
    screen.until(editor_has("half")).send_signal(signal.SIGINT)  # as a Ctrl-C while the editor waits for trio's thread
    start_tool(screen.until(editor_has("")), "hang", "hang").type("half")
    screen.until(editor_has("half")).type(ESC)
    screen.until("⏹ interrupted").until(lambda s: "idle" in s.toolbar).type(CTRL_C)
    start_tool(screen.until(editor_has("")), "hang", "hang")
    send(screen, "waits").until("📤 Interrupting: waits")
    assert "exit" not in screen.everything, "no press was the first of two"

    screen.type(CTRL_C)
    screen.until(editor_has("waits\n")).type(CTRL_C)
    screen.until("again to exit").until(editor_has("waits\n")).type(CTRL_C)

    check_exit(screen, 130)
    assert line_states(screen) == {"hang": "delivered", "waits": "returned"}


def test_ctrl_z_suspends_and_fg_resumes(start: Start) -> None:
    script = """/bin/sh -c '"$@"; exit $?' sh "$@" """  # it starts the program and waits for it
    shell = f'{script}; echo "stopped: $?"; read -r line; echo "read $line"; fg >/dev/null; echo "ended: $?"'
    screen = wait_idle(start(launcher=(*JOB_CONTROL_SHELL, shell, "sh")))
    screen.type(f"half{CTRL_Z}")

    screen.until("stopped: 1")  # 128 and the number of a signal
    assert screen.is_cooked
    assert screen.editor is None
    assert screen.left_behind == []
    send(screen, "a word").until("read a word").until(editor_has("half"))

    send(screen, " a line").until("Done: half a line")
    send(wait_idle(screen), "/quit").until("ended: 0")
    assert screen.wait() == 0
    assert screen.left_behind == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGTSTP])
def test_a_stopped_program_continues_with_its_keys(start: Start, number: signal.Signals) -> None:
    shell = '"$@"; stty sane; echo "stopped: $?"; read -r line; fg >/dev/null; echo "ended: $?"'
    screen = start(launcher=(*JOB_CONTROL_SHELL, shell, "sh"))
    screen.until("Type a task").until(lambda s: not s.is_echoing)
    (child,) = Path(f"/proc/{screen.process.pid}/task/{screen.process.pid}/children").read_text().split()
    os.kill(int(child), number)
    screen.until("stopped:").until(lambda s: s.is_echoing).resize(30, 60)
    send(screen, "").until(lambda s: not s.is_echoing)

    send(screen, f"{CTRL_U}hello there").until("Done: hello there")
    send(screen, "/quit").until("ended: 0")
    assert screen.wait() == 0
