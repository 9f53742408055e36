"""The program as somebody sits before it: real keys in a real pseudo-terminal, and a screen that is read.

A test is a scenario that shows one or two things which only a terminal can show (SPEC sections 3, 7 and 9). When its
program has ended, what the screen said of every line is held against the journal (``agree``), and the terminal against
what it was before (``left``). What questions, sessions, agents, commands and a terminal without an editor add is in
``test_terminal_*.py``.
"""

from __future__ import annotations

import os
import re
import signal
from itertools import pairwise
from pathlib import Path

import pytest
from support.journals import Receipt, receipts, records
from support.screen import Screen
from support.terminal import (
    ALT_ENTER,
    COLOUR,
    CTRL_C,
    CTRL_D,
    CTRL_J,
    ESC,
    PASTE,
    SHIFT_ENTER,
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
from support.terminal_program import SHOWN_OF_WILD

pytest_plugins = ["support.terminal"]

PASTED = "\n".join(f"row {n}" for n in range(300))


def points(screen: Screen) -> list[tuple[str, str | None]]:
    """Return the text of each line but the queries, with the safe point at which it was delivered."""
    return [(line.text, line.point) for line in receipts(screen.home).values() if line.point != "start"]


# ---------------------------------------------------------------------------------------------------------------- runs


def test_a_query_is_answered_and_the_prompt_is_back(start: Start) -> None:
    screen = start("stop").until("Done: stop")  # the query of a command line is not parsed
    assert "▶ stop" in screen.rows
    send(idle(screen), "/thinking on").until("Thoughts are now shown in full.")
    send(screen, "think").until("Considering it from all sides.").until("Thought about it.")
    send(idle(screen), "/model other")
    send(idle(screen), "and you").until("The other one says: and you").until("✓ done, 1 iteration")

    idle(screen).type(CTRL_D)

    left(screen)
    assert COLOUR.search(screen.raw)
    assert states(screen) == {"stop": "delivered", "think": "delivered", "and you": "delivered"}


def test_a_line_lands_in_the_run_while_the_next_one_is_typed(screen: Screen) -> None:
    busy(screen, "walk a b").until(lambda s: re.search(r"1/100 .*gate \d+ s", s.toolbar))
    send(screen, "todo: add check the licence").until("📤 Interrupting: todo: add check the licence ⏳ next safe point")
    half = edits("and then per")
    screen.type("and then per")
    screen.until(half).until(lambda s: "queue 1/10" in s.toolbar and s.toolbar.endswith("⏳ main, next safe point"))
    assert "INTERRUPTION" not in screen.everything

    screen.open_gate("a")

    screen.until("🔔 INTERRUPTION at iteration 1:").until(lambda s: re.search(r" ✓ injected \(\d+ s\)", s.flat))
    screen.until("Plan 0/1: [ ] 1. check the licence").until("Understood: todo: add")
    screen.until(lambda s: re.search(r"2/100 .*gate .*plan 0/1", s.toolbar)).until(half)
    screen.type("haps")
    screen.open_gate("b")
    screen.until("The walk is over.").until("✓ done").until(edits("and then perhaps"))
    send(screen, "").until("Done: and then perhaps")
    quit(idle(screen))
    landed = list(receipts(screen.home).values())[1]
    assert landed == Receipt("todo: add check the licence", "todo", "delivered", 1, "D")


def test_a_reply_streams_above_the_prompt_while_somebody_types_and_resizes(start: Start) -> None:
    screen = idle(start(rows=30, columns=60))

    def streams(screen: Screen, word: str) -> bool:
        found = words(screen)
        assert found == WORDS[: len(found)], screen.everything
        return word in found and screen.editor == "half"

    send(screen, SLOW).until("w01").until(lambda s: "answering" in s.toolbar)
    screen.type("half")
    screen.until(lambda s: streams(s, "w02"))
    screen.resize(20, 100)
    screen.until(lambda s: streams(s, "w04"))
    screen.resize(12, 70)
    screen.until(lambda s: streams(s, "w06"))
    assert len(screen.toolbar) <= 70

    screen.type(ESC)

    screen.until("⏹ interrupted").until(lambda s: streams(s, "w06"))
    assert sum(row.startswith("> ") for row in screen.rows) == 1
    # A terminal may show a part of a drawing for a moment: without a cursor, as ``until`` knows.
    steps = re.findall(rb"\x1b\[(?:\?25[hl]|J)", screen.raw)
    assert [was for was, now in pairwise(steps) if now == b"\x1b[J" and was == b"\x1b[?25h"] == []
    send(screen, "").until("Done: half")
    quit(idle(screen))


@pytest.mark.slow
def test_a_flood_and_wild_output_leave_the_prompt_and_the_terminal_alone(screen: Screen) -> None:
    send(screen, "flood 3000 10000")
    typed = "not lost at all"
    for n, char in enumerate(typed, 1):
        screen.type(char)
        screen.until(edits(typed[:n].rstrip()))
    screen.until("It gave 3000 lines of flood").until(edits(typed))
    left_out = sum(int(n.replace(",", "")) for n in re.findall(r"… ([\d,]+) more lines", screen.everything))
    assert len(re.findall(r"^ +flood line \d+$", screen.everything, re.M)) + left_out == 3000
    send(screen, "").until("Done: not lost at all")

    send(idle(screen), "wild").until("It gave moved").until(lambda s: s.everything.count("✓ done") == 3)

    for text in SHOWN_OF_WILD:
        assert screen.times(text), text
    # Nothing of these is the program's own: beside its title it has no clipboard, no margins.
    raw = screen.raw.decode().replace("\x1b]2;chain: ~/work\x07", "")
    for part in ("title-of-a-tool", "Y2xpcGJvYXJk", "\x9b", "\x1b[5;10r", "\x1bc", "\x1bP", "\x07", "\u202e"):
        assert part not in raw, part
    assert "\x1b[?1049" not in raw
    assert "\x1b[2J" not in raw
    quit(idle(screen))


# ------------------------------------------------------------------------------------------------- lines to a busy run


@pytest.mark.slow
def test_an_urgent_line_skips_tools_and_a_now_line_cuts_one(screen: Screen) -> None:
    busy(screen, "gates a b c")
    send(screen, "!use the other file").until("⚡ ASAP, may skip tools")
    screen.open_gate("a")
    screen.until("🔔 INTERRUPTION at iteration 1:").until("⏭ skipped: 2 × gate").until("Understood: use the other file")

    busy(idle(screen), "gate d")
    send(screen, "!!use B").until("✗ gate").until("Understood: use B")

    quit(idle(screen))
    assert [text for text, _ in points(screen)] == ["!use the other file", "!!use B"]
    assert points(screen)[0][1] == "C"


def test_a_stop_ends_the_run_and_gives_waiting_lines_back(screen: Screen) -> None:
    busy(screen, "gates a b")
    send(screen, "later", "Never mind!")
    screen.until(lambda s: re.search(r"^⏹ Stopping after gate \(\d+ s\); Esc kills it$", s.everything, re.M))
    screen.open_gate("a", "this much")
    screen.until("✓ gate a · this much").until("Here's what I found before you cancelled:\n• gate: this much\n")
    screen.until("[1 done, 1 skipped]").until("What would you like")
    screen.until("⏹ cancelled with partial").until(edits("later\n"))
    screen.type(CTRL_C)

    send(idle(screen), SLOW).until("w01")
    send(screen, "stop").until(lambda s: s.everything.count("What would you like to do instead?") == 2)

    assert idle(screen).everything.count("w01") == 1, "what was shown is not shown again"
    send(screen, "hello").until("Done: hello")
    quit(idle(screen))
    assert states(screen) == {
        "gates a b": "delivered",
        "later": "returned",
        "Never mind!": "handled",
        SLOW: "delivered",
        "stop": "handled",
        "hello": "delivered",
    }


def test_esc_interrupts_and_what_waited_is_in_the_editor_to_be_sent_as_it_was(screen: Screen) -> None:
    lines = {
        "!use A": "redirect",
        " stop": "verbatim",
        "todo: add x": "todo",
        "use B": "redirect",
        "context: it is late": "context",
        "why?": "question",
    }
    busy(screen, "hang", "hang").until(lambda s: re.search(r"hang [1-9]\d* s", s.toolbar))
    send(screen, *lines).until("queue 6/10")
    screen.type("half")
    screen.until(edits("half"))

    screen.type(ESC)

    screen.until("⏹ interrupted").until("Interrupted. Tell the chain what to do instead.")
    screen.until(edits("\n".join([*lines, "half"]))).until(lambda s: s.toolbar.endswith("⏎ sends 7 lines"))
    assert "✗ hang" in screen.everything
    assert [row.partition(": ")[2] for row in screen.rows if row.startswith("↩ Returned")] == list(lines)

    before = len(receipts(screen.home))
    send(screen, "way").until(edits("")).until("✓ done")
    quit(idle(screen))
    again = list(receipts(screen.home).values())[before:]
    assert [(line.text, line.kind) for line in again][:-1] == list(lines.items())
    assert again[-1].text == "halfway"


@pytest.mark.slow
def test_waiting_lines_are_listed_dropped_and_edited(screen: Screen) -> None:
    busy(screen, "gate a")
    send(screen, *(f"line {n}" for n in range(1, 11))).until(lambda s: "queue 10/10" in s.toolbar)
    send(screen, "one more").until("⚠️ Interruption channel full, try again").until(edits("one more"))
    screen.type("\x15")
    screen.until(edits(""))

    send(screen, "/drop L4").until("↩ Dropped: line 3").until(lambda s: "queue 9/10" in s.toolbar)
    send(screen, "one more").until("📤 Interrupting: one more").until(lambda s: "queue 10/10" in s.toolbar)
    send(screen, "/edit L6").until("↩ Dropped (taken back to edit): line 5").until(edits("line 5"))
    send(screen, " as I mean it").until("📤 Interrupting: line 5 as I mean it")
    screen.type(UP)
    screen.until(edits("line 5 as I mean it")).until(lambda s: "queue 9/10" in s.toolbar)
    send(screen, ", please").until("📤 Interrupting: line 5 as I mean it, please")
    send(screen, "/queue").until(lambda s: re.search(r"^\s*L14 .*line 5 as I mean it, please$", s.everything, re.M))
    screen.open_gate("a")

    screen.until("✓ injected")
    quit(idle(screen))
    delivered = [text for text, point in points(screen) if point == "D"]
    assert delivered == [*(f"line {n}" for n in (1, 2, 4, 6, 7, 8, 9, 10)), "one more", "line 5 as I mean it, please"]


# ---------------------------------------------------------------------------------------------------------- the editor


@pytest.mark.slow
def test_a_line_may_have_several_rows_wide_signs_and_long_pastes(screen: Screen) -> None:
    several = "one\ntwo\nthree\nfour\nfive"
    screen.type(f"one{CTRL_J}two\\\rthree{ALT_ENTER}four{SHIFT_ENTER[0]}five")
    screen.until(edits(several))
    send(screen, "").until(lambda s: "▶ one two three four five" in s.flat)

    idle(screen).type("日本語 é 🎉 ⚠ ñ")
    screen.until(edits("日本語 é 🎉 ⚠ ñ"))
    send(screen, "").until("Done: 日本語 é 🎉 ⚠ ñ")

    short = "\n".join(f"row {n} of the paste" for n in range(1, 13))
    idle(screen).type(PASTE.format(short.replace("\n", "\r")))
    screen.until(edits(short))
    assert "row 1 of the paste" not in states(screen)
    send(screen, "").until("Done: row 1 of the paste")

    idle(screen).type(f"look at {PASTE.format(PASTED)} now")
    screen.until(edits("look at [pasted 300 lines] now"))
    send(screen, "").until("Done: look at row 0")
    quit(idle(screen))
    assert list(states(screen)) == [several, "日本語 é 🎉 ⚠ ñ", short, f"look at {PASTED} now"]


# ------------------------------------------------------------------------------------------------------------- leaving


def test_ctrl_c_clears_the_line_or_interrupts_the_run_and_exits_only_after_its_hint(screen: Screen) -> None:
    screen.type(f"half{CTRL_D}{ESC}")
    screen.until(edits("half"))
    screen.type(CTRL_C)
    screen.until(edits(""))
    assert "exit" not in screen.everything
    screen.type(UP)
    screen.until(edits("half")).type(CTRL_C)
    screen.until(edits("")).type(CTRL_C)
    screen.until("again to exit")
    busy(screen, "hang", "hang")  # after a line the next press is the first one
    send(screen, "waits").until("📤 Interrupting: waits")
    screen.type(CTRL_C)
    screen.until("⏹ interrupted").until(edits("waits\n"))

    screen.type(CTRL_C)
    screen.until(lambda s: s.times("again to exit") == 2).until(edits("waits\n"))
    screen.type(CTRL_C)

    left(screen, 130)
    assert states(screen) == {"hang": "delivered", "waits": "returned"}


def test_ctrl_c_that_arrives_as_a_signal_clears_the_text(screen: Screen) -> None:
    """It does so while the editor waits for an answer to the key before."""
    screen.type("half")
    screen.until(edits("half")).kill(signal.SIGINT)
    screen.until(edits(""))
    assert "exit" not in screen.everything
    screen.type(UP)
    screen.until(edits("half"))


def test_ctrl_c_after_esc_clears_the_text(screen: Screen) -> None:
    busy(screen, "hang", "hang").type("half")
    screen.until(edits("half")).type(ESC)
    screen.until("⏹ interrupted").until(lambda s: "idle" in s.toolbar).type(CTRL_C)

    screen.until(edits(""))
    assert "again to exit" not in screen.everything
    quit(idle(screen))


def test_sigterm_closes_the_session_and_shows_what_was_not_sent(screen: Screen) -> None:
    busy(screen, "gates a b")
    send(screen, "waits").until("📤 Interrupting: waits")
    screen.type("half a thought")
    screen.until(edits("half a thought"))

    screen.kill(signal.SIGTERM)

    left(screen, 143)
    assert {"Not sent: half a thought", "1 line stays queued in the session."} <= {*screen.rows}
    found = records(screen.home)
    result, draft = found[-2:]
    assert (result["type"], result["status"], draft["text"]) == ("result", "interrupted", "half a thought")
    [results] = [r["message"]["content"] for r in found if r["type"] == "message" and "tool_use_id" in str(r)]
    assert [b["content"] for b in results] == [
        "[Interrupted: stopped while running, it may have had effects]",
        "[Skipped: user interrupted]",
    ]


def test_ctrl_z_gives_the_terminal_to_the_shell_and_fg_brings_the_prompt_back(start: Start) -> None:
    # The job is a script that has started the program.
    job = """/bin/sh -c '"$@"; exit $?' sh "$@" """
    shell = f'{job}; echo "stopped: $?"; read -r line; echo "read $line"; fg >/dev/null; echo "ended: $?"'
    screen = idle(start(under=("/bin/sh", "-m", "-c", shell, "sh")))
    screen.type("half\x1a")

    screen.until("stopped: 1")
    assert screen.is_cooked
    assert screen.mode(2004) is False
    assert screen.editor is None
    assert screen.left_behind == []
    send(screen, "a word").until("read a word").until(edits("half"))

    send(screen, " a line").until("Done: half a line")
    send(idle(screen), "/quit").until("ended: 0")
    assert screen.wait() == 0
    assert screen.left_behind == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGTSTP])
def test_a_program_that_others_have_stopped_has_its_keys_again_when_it_continues(
    start: Start, number: signal.Signals
) -> None:
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
