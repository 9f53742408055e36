"""The prompt itself, in a real terminal: what is where after a refusal, a search, a change of width."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from support.examples import some
from support.journals import receipts
from support.screen import Screen
from support.terminal import (
    CTRL_C,
    CTRL_J,
    CTRL_L,
    CTRL_R,
    ESC,
    PASTE,
    UP,
    Start,
    busy,
    edits,
    idle,
    quit,
    send,
    states,
)  # fmt: skip

pytest_plugins = ["support.terminal"]

LEFT, DOWN, CTRL_G, CTRL_S, CTRL_U, BACKSPACE = "\x1b[D", "\x1b[B", "\x07", "\x13", "\x15", "\x7f"
FULL = "⚠️ Interruption channel full, try again"


def asked(screen: Screen, *queries: str) -> Screen:
    """Ask one query after the other, each of which is then in the history."""
    for query in queries:
        idle(send(screen, query).until(f"Done: {query}"))
    return screen


def fill(screen: Screen) -> None:
    """Make the channel full."""
    busy(screen, "gate a")
    send(screen, *(f"line {n}" for n in range(1, 11))).until(lambda s: "queue 10/10" in s.toolbar)


# ------------------------------------------------------------------------------------------- what was not accepted


@pytest.mark.slow
def test_a_line_that_does_not_fit_is_told_once_until_there_is_room(screen: Screen) -> None:
    fill(screen)
    send(screen, "one more").until(FULL).until("  one more").until(edits("one more"))
    screen.type("\rtwo\r")
    screen.until(edits("one more\ntwo"))
    screen.open_gate("a")
    screen.until("Understood: ").until(lambda s: "idle" in s.toolbar)
    assert screen.everything.count(FULL) == 1
    screen.type("\r")
    screen.until("Done: one more")
    send(screen, "/quit")
    assert screen.wait() == 0


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("keys", "text"),
    some(
        [
            ("/status", "/status"),
            ("hello", "hello"),
            (PASTE.format("one\rtwo"), "one\ntwo"),
            (f"{LEFT}{LEFT}{LEFT}{BACKSPACE}{BACKSPACE}tat", "/stataus"),
            (BACKSPACE, ""),
            (CTRL_U, ""),
        ],
        every=3,
    ),
)
def test_the_next_key_replaces_a_command_that_failed_or_mends_it(screen: Screen, keys: str, text: str) -> None:
    send(screen, "/sttaus").until("did you mean /status?").until(edits("/sttaus"))
    screen.type(keys)
    screen.until(edits(text))
    screen.type(CTRL_C)
    quit(idle(screen))


def test_a_command_typed_ahead_behind_one_that_fails_is_carried_out(screen: Screen) -> None:
    send(screen, "/stauts", "/status", "/drop L99", "stop")
    screen.until("nothing is running").until("nothing waits").until("Nothing is running.").until(edits(""))
    quit(screen)


def test_answers_repeat_the_command(screen: Screen) -> None:
    for typed, answer in (("/todo", "The plan is empty."), ("status", "nothing is running"), ("/nope", "there is no")):
        send(screen, typed).until(lambda s, answer=answer: answer in s.everything)
        rows = screen.rows
        at = next(n for n, row in enumerate(rows) if row.startswith(answer))
        assert rows[at - 1] == f"» {typed}"
    screen.type(CTRL_C)
    quit(idle(screen))


def test_what_people_type_to_leave_or_to_be_helped_is_no_line_and_text_behind_a_space(screen: Screen) -> None:
    busy(screen, "gate a")
    send(screen, "quit").until("A run is active: stop ends it, /quit leaves.").until(
        lambda s: "quit" in (s.editor or "")
    )
    screen.type(CTRL_U)
    send(screen.until(edits("")), "?").until("Lines, while a run is active:")
    assert "Interrupting" not in screen.everything
    screen.type(ESC)
    screen.until(lambda s: "idle" in s.toolbar)
    send(screen.until(edits("")), " exit").until("Done: exit")
    send(idle(screen), "exit()")
    assert screen.wait() == 0


def test_an_urgent_line_where_nothing_runs_costs_no_query(screen: Screen) -> None:
    send(idle(screen), "!ls").until("Nothing runs that a ! could interrupt")
    screen.until(edits("!ls"))
    send(screen, "!stop").until("» !stop")
    send(screen.until(edits("")), "ls").until("Done: ls")
    quit(idle(screen))
    assert [line.text for line in receipts(screen.home).values()] == ["ls"]


def test_a_todo_line_at_rest_has_one_answer(screen: Screen) -> None:
    send(screen, "todo: add check the licence", "todo: complete 7", "todo: done 1").until("[✓] 1. check the licence")
    assert [row for row in screen.rows if row.startswith(("»", "task", "there", "✓", "✗"))] == [
        "» todo: add check the licence",
        "task 1 added: check the licence",
        "» todo: complete 7",
        "there is no task 7; the plan has 1",
        "» todo: done 1",
        "task 1 completed: check the licence",
    ]
    quit(screen)
    assert set(states(screen).values()) == {"handled"}


@pytest.mark.slow
def test_the_cursor_stands_behind_a_refused_line_and_the_next_one_begins_below(screen: Screen) -> None:
    fill(screen)
    send(screen, "one more").until(FULL).until(edits("one more"))
    row, column = screen.cursor
    assert screen.display[row][:column] == "> one more"

    screen.type("and this")
    screen.until(edits("one more\nand this"))
    screen.type(f"{CTRL_U}{BACKSPACE}")
    screen.until(edits("one more"))
    screen.open_gate("a")
    screen.until("✓ done")
    send(screen, "").until("Done: one more")
    quit(idle(screen))


def test_a_refused_line_can_be_changed(screen: Screen) -> None:
    fill(screen)
    send(screen, "one more").until(FULL).until(edits("one more"))
    screen.type(f"{BACKSPACE}{BACKSPACE}{BACKSPACE}{BACKSPACE}less, and more")
    screen.until(edits("one less, and more"))
    screen.open_gate("a")
    screen.until("✓ done")
    send(screen, "").until("Done: one less, and more")
    quit(idle(screen))


@pytest.mark.slow
@pytest.mark.parametrize("command", ["/drop", "/drop L3"])
def test_a_command_passes_by_refused_lines_and_may_make_room_for_them(screen: Screen, command: str) -> None:
    fill(screen)
    send(screen, "one more").until(FULL).until(edits("one more"))
    send(screen, command).until("↩ Dropped").until(edits("one more\n"))
    screen.type("\r")
    screen.until("📤 Interrupting: one more").until(edits(""))
    screen.open_gate("a")
    screen.until("✓ done")
    quit(idle(screen))


@pytest.mark.slow
def test_a_failed_command_is_not_joined_with_the_next_in_a_full_queue(screen: Screen) -> None:
    fill(screen)
    send(screen, "/sttaus", "/status", "todo: complete x")
    screen.until("iteration 1, tools").until("write it as todo: complete <N>").until(edits("todo: complete x"))
    screen.type(CTRL_U)
    screen.open_gate("a")
    screen.until("✓ done")
    quit(idle(screen))


def test_a_now_line_passes_by_refused_lines(screen: Screen) -> None:
    fill(screen)
    send(screen, "one more").until(FULL).until(edits("one more"))
    send(screen, "!!stop that, use B").until("✓ done")
    assert "🔔 INTERRUPTION at iteration 1:" in screen.everything
    screen.until(edits("one more\n"))
    screen.type(CTRL_C)
    quit(idle(screen))


def test_a_refused_urgent_line_stays_urgent(screen: Screen) -> None:
    fill(screen)
    send(screen, "!use B")
    screen.until(FULL).until(edits("!use B"))
    screen.type(ESC)
    screen.until("Interrupted.").until(lambda s: (s.editor or "").endswith("line 10\n!use B"))
    screen.type(CTRL_C)
    quit(idle(screen))


@pytest.mark.slow
def test_lines_that_come_back_stand_above_a_refused_one_and_the_row_says_how_many_enter_sends(screen: Screen) -> None:
    fill(screen)
    send(screen, "line 11").until(FULL).until(edits("line 11"))
    send(screen, "stop")
    screen.until("⏹ Stopping after gate").open_gate("a")
    screen.until("⏹ cancelled with partial")
    screen.until(lambda s: (s.editor or "").rstrip("\n").endswith("line 9\nline 10\nline 11"))
    screen.until(lambda s: "⏎ sends 11 lines" in s.toolbar)
    screen.type("and this")
    screen.until(lambda s: "⏎ sends 12 lines" in s.toolbar)
    screen.type(CTRL_C)
    quit(idle(screen))


# ------------------------------------------------------------------------------------------ markers, kinds and order


KINDS = ["!!look there", "!look here", " stop", "todo: add x", "context: it is late", "use B"]


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("line", some([text for text in KINDS if not text.startswith("!!")], every=5))
@pytest.mark.parametrize("way", ["/edit", "Up"])
def test_what_is_taken_back_has_the_marker_it_was_sent_with(screen: Screen, line: str, way: str) -> None:
    busy(screen, "gates a b")
    send(screen, line).until("queue 1/10")
    if way == "Up":
        screen.type(UP)
    else:
        send(screen, "/edit")
    screen.until(edits(line))
    send(screen, "").until(
        lambda s: s.editor == "" and "📤 Interrupting:" in s.everything and "queue 1/10" in s.toolbar
    )
    screen.type(ESC)
    screen.until("Interrupted.").until(lambda s: s.editor == f"{line}\n")
    screen.type(CTRL_C)
    quit(idle(screen))
    [first, second] = [receipt for receipt in receipts(screen.home).values() if receipt.point != "start"]
    assert (first.text, first.kind) == (second.text, second.kind)
    assert first.text == line


@pytest.mark.slow
def test_several_lines_taken_back_stay_several(screen: Screen) -> None:
    busy(screen, "gate a")
    send(screen, "first", "second").until("queue 2/10")
    send(screen, "/edit L2", "/edit L3")
    screen.until(edits("second\nfirst"))
    send(screen, "").until(lambda s: s.everything.count("📤 Interrupting:") == 2 and "queue 2/10" in s.toolbar)
    screen.open_gate("a")
    screen.until("✓ done")
    quit(idle(screen))
    assert [line.text for line in receipts(screen.home).values() if line.point == "D"] == ["second", "first"]


def test_what_came_back_goes_out_in_its_order_and_as_what_it_was(screen: Screen) -> None:
    busy(screen, "hang", "hang")
    send(screen, "!use A")
    send(screen, " stop", "todo: add x", "use B", "context: it is late", "why?").until("queue 6/10")
    screen.type(ESC)
    screen.until("Interrupted.").until(edits("!use A\n stop\ntodo: add x\nuse B\ncontext: it is late\nwhy?\n"))
    rows = [row for row in screen.rows if row.startswith("↩ Returned")]
    assert [row.partition(": ")[2] for row in rows] == [
        "!use A", " stop", "todo: add x", "use B", "context: it is late", "why?",
    ]  # fmt: skip

    before = len(receipts(screen.home))
    screen.type("\x08")
    send(screen, "").until("✓ done")
    idle(screen)
    again = list(receipts(screen.home).values())[before:]
    assert [(line.text, line.kind) for line in again] == [
        ("!use A", "redirect"),
        (" stop", "verbatim"),
        ("todo: add x", "todo"),
        ("use B", "redirect"),
        ("context: it is late", "context"),
        ("why?", "question"),
    ]
    quit(screen)


@pytest.mark.slow
def test_ten_lines_that_come_back_are_ten_rows_once(screen: Screen) -> None:
    fill(screen)
    screen.type(ESC)
    screen.until("Interrupted.").until(lambda s: (s.editor or "").endswith("line 10\n"))
    counted = Counter(row for row in screen.rows if row.startswith("↩ Returned"))
    assert counted == Counter(f"↩ Returned (interrupted): line {n}" for n in range(1, 11))
    screen.type(CTRL_C)
    quit(idle(screen))


def test_a_line_is_shown_with_the_space_that_makes_it_verbatim(screen: Screen) -> None:
    busy(screen, "gate a")
    send(screen, " stop").until("📤 Interrupting:  stop ⏳")
    screen.open_gate("a")
    screen.until("✓ done")
    quit(idle(screen))
    assert states(screen)[" stop"] == "delivered"


def test_a_long_query_and_a_long_paste_are_shown_whole(start: Start) -> None:
    screen = idle(start(columns=60, rows=40))
    query = " ".join(f"word{n}" for n in range(60))
    send(screen, query).until(lambda s: f"▶ {query}" in s.flat)
    busy(idle(screen), "gate a")
    screen.type(PASTE.format("\r".join(f"row {n} of the paste" for n in range(30))))
    send(screen, "").until("📤 Interrupting: row 0 of the paste").until("⏳ next safe point")
    assert "row 29" not in screen.everything, "it is cut while it waits"
    screen.open_gate("a")
    screen.until(lambda s: "row 29 of the paste ✓ injected" in s.flat)
    for n in range(1, 29):
        assert f"  row {n} of the paste" in screen.rows
    quit(idle(screen))


# --------------------------------------------------------------------------------------------------- moving and looking


def test_up_and_down_move_inside_a_long_draft(start: Start) -> None:
    screen = idle(start(columns=40))
    asked(screen, "an earlier query")
    text = "a" * 38 + "b" * 38 + "c" * 10
    screen.type(text)
    screen.until(edits(f"{'a' * 38}\n{'b' * 38}\n{'c' * 10}"))
    screen.type(f"{UP}x")
    screen.until(lambda s: (s.editor or "").split("\n")[1] == "b" * 10 + "x" + "b" * 27)
    screen.type(f"{UP}{UP}")
    screen.until(edits("an earlier query"))
    screen.type(f"{DOWN}y")
    screen.until(lambda s: "x" in (s.editor or "") and "y" in (s.editor or ""))
    screen.type(CTRL_C)
    quit(idle(screen))


def test_ctrl_g_after_ctrl_r_restores_what_was_there(screen: Screen) -> None:
    asked(screen, "an alpha query", "an alpha again")
    screen.type(f"half{CTRL_R}alpha")
    screen.until(lambda s: (s.editor or "").startswith("an alpha again"))
    screen.type(CTRL_R)
    screen.until(lambda s: (s.editor or "").startswith("an alpha query"))
    screen.type(CTRL_G)
    screen.until(edits("half"))
    screen.type(" done")
    screen.until(edits("half done"))
    screen.type(CTRL_C)
    quit(idle(screen))


@pytest.mark.slow
def test_lines_that_come_back_during_a_search_are_not_lost(screen: Screen) -> None:
    busy(asked(screen, "an alpha query"), "gate a")
    send(screen, "use B").until("📤 Interrupting: use B")
    send(screen, "stop").until("⏹ Stopping after gate")
    screen.type(f"half{CTRL_R}alpha")
    screen.until("I-search backward: alpha").open_gate("a")
    screen.until("⏹ cancelled").until(edits("use B\nhalf"))
    screen.type(CTRL_G)
    screen.type("x")
    screen.until(edits("use B\nhalfx"))
    screen.type(CTRL_C)
    quit(idle(screen))


def test_a_line_that_is_taken_back_during_a_search_is_not_lost(screen: Screen) -> None:
    busy(asked(screen, "an alpha query"), "gate a")
    send(screen, "use B").until("📤 Interrupting: use B")
    screen.type(f"/edit\r{CTRL_R}alp{CTRL_G}x")
    screen.until(lambda s: "use B" in (s.editor or "") and "I-search" not in s.everything)
    screen.open_gate("a")
    screen.until("The gate said opened.").until(lambda s: "idle" in s.toolbar)
    screen.type(CTRL_C)
    quit(idle(screen))


@pytest.mark.slow
def test_ctrl_g_restores_what_was_there_when_this_search_began(screen: Screen) -> None:
    asked(screen, "an alpha query")
    screen.type(f"draft{CTRL_R}alpha\r")
    screen.until(edits("an alpha query"))
    screen.type(f"\x05{CTRL_U}precious text")
    screen.until(edits("precious text"))
    screen.type(f"{CTRL_S}zzz")
    screen.until("I-search").type(CTRL_G)
    screen.until(lambda s: "I-search" not in s.everything and s.editor == "precious text")
    screen.type(CTRL_C)
    quit(idle(screen))


def test_a_reply_is_painted_while_it_streams(screen: Screen) -> None:
    send(screen, "markdown slowly")
    screen.until(lambda s: _has_no_escapes(s) and "✓ done" in s.everything)
    assert "bold" in screen.everything
    assert "**bold**" not in screen.everything
    quit(idle(screen))


def _has_no_escapes(screen: Screen) -> bool:
    assert "^[" not in screen.everything, screen.everything
    return True


def test_the_prompt_shrinks_with_its_text(screen: Screen) -> None:
    screen.type(CTRL_J.join(["one", "two", "three", "four"]))
    screen.until(edits("one\ntwo\nthree\nfour"))
    for rows, left in ((2, "one\ntwo"), (1, "one")):
        screen.type(f"{CTRL_U}{BACKSPACE}" * rows)
        screen.until(lambda s, left=left: s.editor == left and _has_the_toolbar_next(s))
    screen.type(f"{CTRL_U}{CTRL_R}nothing like it")
    screen.until("I-search backward").type(CTRL_G)
    screen.until(lambda s: s.editor == "" and _has_the_toolbar_next(s))
    quit(screen)


def _has_the_toolbar_next(screen: Screen) -> bool:
    return screen.display[screen.cursor[0] + 1].startswith("idle")


def test_the_unfinished_row_is_not_bold(start: Start) -> None:
    screen = idle(start("--no-color"))
    send(screen, "stream 40 words slowly").until("w05")
    screen.until("✓ done")
    drawn = re.findall(rb"\x1b\[([0-9;]*)mw01", bytes(screen.raw))
    assert drawn
    assert not [sgr for sgr in drawn if b"1" in sgr.split(b";")]
    quit(idle(screen))


def test_the_first_prompt_and_ctrl_l_leave_nothing_in_the_scrollback_of_tmux(start: Start) -> None:
    screen = idle(start(reflows=True))
    send(screen, "hello").until("Done: hello")
    rows = idle(screen).rows
    assert rows[0].startswith("chain ")
    screen.type(f"{CTRL_L}more")
    screen.until(edits("more"))
    assert screen.rows[:-2] == rows[:-2]
    screen.type(CTRL_C)
    quit(idle(screen))


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("reflows", [False, True])
def test_no_text_is_doubled_when_the_width_changes_while_it_streams(start: Start, reflows: bool) -> None:
    screen = idle(start(columns=60, rows=24, reflows=reflows))
    send(screen, "stream 40 words slowly").until("w07")
    screen.type("a text that is being typed meanwhile")
    screen.resize(24, 22)
    screen.until(lambda s: "w12" in s.everything and (s.editor or "").startswith("a text that is"))
    screen.resize(24, 70)
    screen.until("w17")
    screen.resize(24, 33)
    # What is said at the end is written first, and the prompt below it drawn again after that.
    screen.until("✓ done").until(lambda s: (s.editor or "").startswith("a text that is") and "idle" in s.toolbar)
    found = Counter(re.findall(r"\bw\d\d\b", " ".join(screen.rows)))
    assert found == Counter(f"w{n:02}" for n in range(1, 41))
    assert sum(row.startswith("> a text") for row in screen.rows) == 1, screen.everything
    screen.type(CTRL_U)
    screen.resize(24, 100)
    send(idle(screen), "/quit")
    assert screen.wait() == 0, screen.everything


def test_what_was_typed_before_the_prompt_is_not_in_the_history_twice(start: Start, tmp_path: Path) -> None:
    screen = idle(start())
    send(screen, "/stauts").until(edits("/stauts"))
    screen.type(f"{CTRL_U}{UP}")
    screen.until(edits("/stauts"))
    screen.type(CTRL_C)
    quit(idle(screen))
    history = (tmp_path / "state" / "chain" / "history").read_text()
    assert history.count("+/stauts") == 1
