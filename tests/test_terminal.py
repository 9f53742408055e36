"""The interactive program as somebody sits before it: real keys in a real pseudo-terminal, a screen that is read.

Each test says what must be seen (SPEC sections 3, 7 and 9). When its program has ended, what the screen said of every
line is held against the journal (``agree``), and the terminal against what it was before (``left``).
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from forks.terminal_program import SHOWN_OF_WILD
from support.examples import one
from support.journals import Receipt, receipts
from support.screen import Screen
from support.terminal import (
    COLOUR,
    CONFIG,
    CTRL_C,
    CTRL_D,
    CTRL_J,
    CTRL_L,
    CTRL_O,
    CTRL_R,
    ESC,
    PASTE,
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

# ---------------------------------------------------------------------------------------------------------- a first run


def test_a_query_is_answered_and_the_prompt_is_there_again(screen: Screen) -> None:
    send(screen, "hello there")

    screen.until("Done: hello there").until("✓ done, 1 iteration")
    idle(screen)
    assert "▶ hello there" in screen.rows
    assert "[1/50]" not in screen.everything
    send(screen, "/thinking on").until("From now on thoughts are shown whole.")
    send(screen, "think").until("Considering it from all sides.").until("Thought about it.")
    quit(idle(screen))
    assert COLOUR.search(screen.raw)
    assert states(screen) == {"hello there": "delivered", "think": "delivered"}


def test_the_toolbar_shows_the_step_in_hand(screen: Screen) -> None:
    send(screen, "todo: add one", "todo: add two", "todo: complete 1")
    screen.until(lambda s: "plan 1/2" in s.toolbar)
    busy(screen, "gate a")
    screen.until(lambda s: all(re.search(part, s.toolbar) for part in ("main", "1/50", r"gate \d+ s")))

    send(screen, "first", "second")

    screen.until(lambda s: "queue 2/10" in s.toolbar)
    screen.open_gate("a")
    idle(screen)
    screen.until(lambda s: re.search(r"[\d,]+ tokens", s.toolbar) is not None)
    busy(screen, "hang", "hang").until(lambda s: "hang 1 s" in s.toolbar)
    screen.type(ESC)
    quit(idle(screen))


def test_text_appears_above_the_prompt_as_it_comes(screen: Screen) -> None:
    words = [f"w{n:02}" for n in range(1, 41)]
    counts = [0]

    def grows(screen: Screen) -> bool:
        found = re.findall(r"w\d\d", screen.everything)
        assert found == words[: max(len(found), counts[-1])], f"{counts[-1]} words were there, now {found}"
        assert not screen.editor  # in the middle of a repaint there may be none
        counts.append(len(found))
        return "✓ done" in screen.everything

    send(screen, "stream 40 words slowly")

    screen.until("▶ stream 40 words").until(grows)
    idle(screen)
    assert len(set(counts)) > 10
    assert counts[-1] == 40
    # A terminal may show a part of a drawing for a moment: without a cursor, as ``until`` knows.
    steps = re.findall(rb"\x1b\[(?:\?25[hl]|J)", screen.raw)
    assert [was for was, now in pairwise(steps) if now == b"\x1b[J" and was == b"\x1b[?25h"] == []
    quit(screen)


@pytest.mark.spec("3", "a query given as an argument")
def test_a_query_may_be_an_argument(start: Start) -> None:
    screen = start("stop")

    screen.until("Done: stop")
    idle(screen)
    send(screen, "another").until("Done: another")
    quit(screen)
    assert states(screen) == {"stop": "delivered", "another": "delivered"}


# ----------------------------------------------------------------------------------------------------- lines in a run


def test_a_line_is_announced_delivered_and_answered(screen: Screen) -> None:
    busy(screen, "walk a b")

    send(screen, "use the other file")

    screen.until("📤 Interrupting: use the other file").until("⏳ next safe point")
    assert "INTERRUPTION" not in screen.everything
    screen.open_gate("a")
    screen.until("🔔 INTERRUPTION at iteration 1:")
    screen.until(lambda s: re.search(r" ✓ injected \(\d+ s\)$", s.everything, re.M))
    screen.until("Understood: use the other file")
    screen.open_gate("b")
    screen.until("The walk is over.")
    idle(screen)
    quit(screen)
    assert list(receipts(screen.home).values())[1] == Receipt("use the other file", "redirect", "delivered", 1, "D")


def test_a_task_is_added_while_it_works_and_the_next_line_stays(screen: Screen) -> None:
    busy(screen, "walk a b c")
    send(screen, "todo: add check the licence").until("📤 Interrupting: todo: add check the licence")
    half = edits("and then per")
    screen.type("and then per")
    screen.until(half)

    screen.open_gate("a")
    screen.until("🔔 INTERRUPTION at iteration 1:").until("Plan 0/1: [ ] 1. check the licence").until(
        "Understood: todo: add"
    )
    screen.until(lambda s: "2/50" in s.toolbar and "gate" in s.toolbar).until(half)
    screen.until(lambda s: "plan 0/1" in s.toolbar)
    screen.open_gate("b")
    screen.until(lambda s: "3/50" in s.toolbar and "gate" in s.toolbar).until(half)
    screen.type("haps")
    screen.open_gate("c")
    screen.until("The walk is over.").until("✓ done").until(edits("and then perhaps"))

    send(screen, "").until("Done: and then perhaps")
    idle(screen)
    quit(screen)


def test_urgent_lines_skip_the_tools_that_have_not_started(screen: Screen) -> None:
    busy(screen, "gates a b c")
    send(screen, "!now").until("⚡ ASAP, may skip tools")
    screen.open_gate("a")
    screen.until("✓ injected")
    idle(screen)
    assert "⏭ skipped: 2 × gate" in screen.everything
    quit(screen)
    found = [line for line in receipts(screen.home).values() if line.point != "start"]
    assert [(line.text, line.state, line.point) for line in found] == [("!now", "delivered", "C")]


@pytest.mark.slow
def test_eleven_quick_lines_show_one_refusal(screen: Screen) -> None:
    busy(screen, "gate a")

    send(screen, *(f"line {n}" for n in range(1, 12)))

    screen.until("⚠️ Interruption channel full, try again").until(edits("line 11"))
    screen.until("📤 7 more lines").until("📤 Interrupting: line 10 ⏳ next safe point")
    screen.until(lambda s: "queue 10/10" in s.toolbar)
    assert screen.everything.count("⚠️") == 1
    assert "📤 Interrupting: line 11" not in screen.everything
    screen.open_gate("a")
    screen.until("✓ injected").until("✓ done").until(edits("line 11"))
    send(screen, "").until("Done: line 11")
    idle(screen)
    quit(screen)
    assert list(states(screen)) == ["gate a", *(f"line {n}" for n in range(1, 12))]


@pytest.mark.slow
@pytest.mark.spec("3", "returned, to the editor")
@pytest.mark.spec("7", "text that goes back is placed above what is typed")
def test_lines_that_come_back_are_above_what_is_typed(screen: Screen) -> None:
    busy(screen, "hang", "hang")
    send(screen, "first", "second").until("📤 Interrupting: second")
    screen.type("half")
    screen.until(edits("half"))

    screen.type(ESC)

    screen.until("↩ Returned (interrupted): second").until(edits("first\nsecond\nhalf"))
    screen.type("way")
    screen.until(edits("first\nsecond\nhalfway"))
    send(screen, "").until("▶ first").until("Done: first")
    idle(screen.until("halfway\n"))
    quit(screen)
    found = [(line.text, line.state) for line in receipts(screen.home).values()]
    assert found[:3] == [("hang", "delivered"), ("first", "returned"), ("second", "returned")]
    assert found[3:] == [("first", "delivered"), ("second", "delivered"), ("halfway", "delivered")]


def test_a_stop_ends_the_run_and_what_waits_comes_back(screen: Screen) -> None:
    busy(screen, "gates a b")
    send(screen, "later", "Never mind!")
    screen.until(lambda s: re.search(r"⏹ Stopping after gate \(\d+ s\); Esc kills it", s.everything))

    screen.open_gate("a", "this much")

    screen.until("✓ gate a · this much").until("[1 done, 1 skipped]").until("What would you like")
    assert "Here's what I found" not in screen.everything, "the rows of the calls stand just above"
    screen.until(edits("later\n"))
    screen.until("⏹ cancelled with partial")
    screen.type(CTRL_C)
    idle(screen)
    quit(screen)
    assert states(screen) == {"gates a b": "delivered", "later": "returned", "Never mind!": "handled"}


def test_a_reply_that_is_cut_keeps_what_was_shown(screen: Screen) -> None:
    send(screen, "stream some and wait").until("first part of the answer")
    send(screen, "stop").until("What would you like to do instead?")
    assert idle(screen).everything.count("first part of the answer") == 1

    send(screen, "stream some and wait").until(lambda s: s.everything.count("first part of the answer") == 2)
    screen.type(ESC)
    screen.until("⏹ interrupted").until("Interrupted. Tell the chain what to do instead.")

    send(idle(screen), "hello").until("Done: hello")
    assert screen.everything.count("first part of the answer") == 2
    assert "second part" not in screen.everything
    quit(idle(screen))


@pytest.mark.slow
def test_lines_that_race_with_the_ends_of_runs(screen: Screen) -> None:
    lines = [f"line {n}" for n in range(1, 31)]

    for n in range(0, 30, 10):  # no more than wait at the same time
        send(screen, *lines[n : n + 10])
        idle(screen.until(f"{lines[n + 9]}\n"))

    quit(screen)
    assert list(states(screen)) == lines
    assert set(states(screen).values()) == {"delivered"}


def test_what_enter_would_do_is_shown_while_typing(screen: Screen) -> None:
    says = {"hello": "starts a run", "/st": "command", "todo: list": "at once", "stop": "nothing to stop"}
    in_a_run = {
        "hello": "main, next safe point",
        "!hello": "main, skips tools",
        "stop": "stops the run",
        "then: on": "after this run",
        "todo: add": "write it as todo: add <task>",
    }
    for rounds in (says, in_a_run):
        for typed, told in rounds.items():
            screen.type(typed)
            screen.until(edits(typed)).until(lambda s, told=told: s.toolbar.endswith(told))
            screen.type("\x15")
        screen.until(edits(""))
        if rounds is says:
            busy(screen, "hang", "hang")
    screen.type(ESC)
    quit(idle(screen))


@pytest.mark.slow
@pytest.mark.spec("3", "malformed")
def test_the_other_kinds_of_line(screen: Screen) -> None:
    busy(screen, "gate a")
    send(screen, "focus on tests", "context: it is late", "then: what follows", " stop", "how far?", "todo: add")
    screen.until("📤 2 more lines").until("then: what follows ⏳ after this run")
    screen.until(edits("todo: add")).until("write it as todo: add <task>")
    screen.type("\x15")

    screen.open_gate("a")

    screen.until("▶ what follows").until("Done: what follows")
    idle(screen)
    for text in ("focus on tests", "[USER ADDED] it is late", "stop", "how far?"):
        assert f"Understood: {text}" in screen.everything
    quit(screen)
    found = receipts(screen.home).values()
    assert [(line.kind, line.point) for line in found] == [
        ("redirect", "start"),
        ("guidance", "D"),
        ("context", "D"),
        ("follow-up", "start"),
        ("verbatim", "D"),
        ("question", "D"),
    ]


def test_lines_at_the_limit_begin_the_next_run(start: Start) -> None:
    screen = idle(start("--max-iterations", "1"))
    busy(screen, "gate a")
    send(screen, "one more thing").until("📤 Interrupting: one more thing")

    screen.open_gate("a")

    screen.until("⏸ 1 step done; Enter goes on").until("🔔 INTERRUPTION before iteration 1:").until(
        "Understood: one more thing"
    )
    idle(screen)
    quit(screen)
    assert list(receipts(screen.home).values())[1] == Receipt("one more thing", "redirect", "delivered", 0, "A")


def test_the_first_rows_say_which_instructions_are_read_and_a_change_is_told(start: Start, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work/AGENTS.md").write_text("Use make.")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "config/chain").mkdir(parents=True)
    (tmp_path / "config/chain/AGENTS.md").symlink_to(tmp_path / "pipe")
    screen = idle(start())
    screen.until("Project instructions: AGENTS.md.").until("it is a folder, a device")
    (tmp_path / "work/AGENTS.md").unlink()
    (tmp_path / "work/CLAUDE.md").write_text("Use ninja.")
    send(screen, "hello there").until("Project instructions changed: CLAUDE.md.").until("Done: hello there")
    send(screen, "/new").until(lambda s: "Project instructions: CLAUDE.md." in s.everything)
    quit(idle(screen))


@pytest.mark.slow
def test_what_the_first_rows_say_is_not_said_again_with_what_was_before(start: Start, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work/AGENTS.md").write_text("Use make.")
    screen = idle(start())
    send(screen, "hello there").until("Done: hello there")
    quit(idle(screen))

    again = idle(start("-c").until("Done: hello there").until("/help explains"))
    assert again.everything.count("Project instructions: AGENTS.md.") == 1
    quit(again)


def test_with_v_a_line_has_two_rows_and_a_call_and_an_iteration_too(start: Start) -> None:
    screen = idle(start("-v"))
    send(screen, "gate a").until("[1/50]").until("→ gate(")
    send(screen, "also b").until("📤 Interrupting: also b ⏳ Will inject at next safe point")
    screen.open_gate("a")
    screen.until("✓ gate (").until("[🔔 INTERRUPTION at iteration 1] also b ✓ Message injected (")
    idle(screen)
    send(screen, "/quit")
    assert screen.wait() == 0


@pytest.mark.slow
def test_up_on_an_empty_line_takes_the_latest_waiting_line_back(screen: Screen) -> None:
    busy(screen, "gate a")
    send(screen, "first", "second").until(lambda s: "queue 2/10" in s.toolbar)

    screen.type(UP)

    screen.until(edits("second")).until(lambda s: "queue 1/10" in s.toolbar)
    screen.until("↩ Dropped (taken back to edit): second")
    send(screen, " thoughts").until("📤 Interrupting: second thoughts")
    screen.open_gate("a")
    screen.until("Understood: second thoughts")
    idle(screen)
    quit(screen)
    assert states(screen) == {
        "gate a": "delivered",
        "first": "delivered",
        "second": "dropped",
        "second thoughts": "delivered",
    }


def test_a_service_that_fails_or_refuses(screen: Screen) -> None:
    send(screen, "stumble").until("That reply was cut off").until("Fine after all.")
    send(idle(screen), "trouble").until("✗ the service is away")
    send(idle(screen), "fails").until("✗ fails · ").until(
        "That failed: fails failed: OSError: the tool is made to fail"
    )
    send(idle(screen), "refuse this").until("The model refused to answer").until(edits("refuse this\n"))

    screen.type(CTRL_C)
    quit(idle(screen))
    assert states(screen) == {
        "stumble": "delivered",
        "trouble": "delivered",
        "fails": "delivered",
        "refuse this": "returned",
    }


# ----------------------------------------------------------------------------------------------------------- the editor


def test_half_typed_text_survives_whatever_scrolls_by(screen: Screen) -> None:
    send(screen, "flood 3000 10000")
    typed = "not lost at all"
    for n, char in enumerate(typed, 1):
        screen.type(char)
        screen.until(edits(typed[:n].rstrip()))

    screen.until("It gave 3000 lines of flood").until(edits(typed))
    left_out = sum(int(n.replace(",", "")) for n in re.findall(r"… ([\d,]+) more lines", screen.everything))
    assert len(re.findall(r"^ +flood line \d+$", screen.everything, re.M)) + left_out == 3000
    send(screen, "").until("Done: not lost at all")
    idle(screen)
    quit(screen)


@pytest.mark.slow
def test_a_line_may_have_several_rows_wide_signs_and_any_length(screen: Screen) -> None:
    screen.type(f"one{CTRL_J}two\\\rthree")
    screen.until(edits("one\ntwo\nthree"))
    send(screen, "").until(lambda s: "▶ one two three" in s.flat)
    idle(screen)

    screen.type("日本語 é 🎉 ⚠ ñ")
    screen.until(edits("日本語 é 🎉 ⚠ ñ"))
    send(screen, "").until("Done: 日本語 é 🎉 ⚠ ñ")
    idle(screen)

    long = " ".join(f"word{n}" for n in range(60))
    screen.type(long)
    screen.until(lambda s: "word59" in (s.editor or ""))
    send(screen, "").until("Done: word0")

    quit(idle(screen))
    assert states(screen) == {"one\ntwo\nthree": "delivered", "日本語 é 🎉 ⚠ ñ": "delivered", long: "delivered"}


def test_a_paste_of_many_lines_is_one_line(screen: Screen) -> None:
    text = "\n".join(f"row {n} of the paste" for n in range(1, 13))
    busy(screen, "gate a")
    screen.type(PASTE.format(text.replace("\n", "\r")))
    screen.until(edits(text))
    assert "📤" not in screen.everything

    send(screen, "").until(lambda s: "📤 Interrupting: row 1 of the paste row 2 of the paste" in s.flat)

    screen.open_gate("a")
    screen.until("Understood: row 1 of the paste")
    idle(screen)
    quit(screen)
    assert states(screen) == {"gate a": "delivered", text: "delivered"}


def test_history_is_kept_from_session_to_session(start: Start) -> None:
    screen = idle(start())
    send(screen, "an alpha query").until("Done: an alpha query")
    idle(screen)
    send(screen, "a beta query").until("Done: a beta query")
    idle(screen)
    screen.type(f"two{CTRL_J}rows\r")
    idle(screen.until("Done: two"))
    quit(screen)

    screen = idle(start())
    screen.type(UP)
    screen.until(edits("/quit"))
    screen.type("\x15" + UP)
    idle_history = screen.home / "state/chain"
    screen.type("\x15\x7f\x15\x7f\x15")
    screen.until(edits(""))
    screen.type(CTRL_R + "alph")
    screen.until("an alpha query")
    screen.type("\r")
    screen.until(edits("an alpha query"))
    send(screen, "").until("Done: an alpha query")
    quit(idle(screen))
    assert [p for p in idle_history.rglob("*hist*") if p.stat().st_mode & 0o077] == []


def test_tab_completes(screen: Screen) -> None:
    for typed, whole in {"/sta": "/status", "forg": "forget it", "todo: cl": "todo: clear", "/queu": "/queue"}.items():
        screen.type(f"{typed}\t")
        screen.until(edits(whole))
        screen.type("\x15")
        screen.until(edits(""))
    screen.type("st\t")
    screen.until(lambda s: "status" in s.toolbar and "stop" in s.toolbar)
    assert screen.editor == "st"
    screen.type("\x15")
    screen.until(edits(""))
    screen.type("todo: \t")
    screen.until(lambda s: "add" in s.toolbar and "complete" in s.toolbar)
    screen.type("\x15")
    screen.until(edits(""))
    screen.type("todo: c\t")
    screen.until(lambda s: "todo: clear" in s.toolbar and "todo: complete" in s.toolbar)
    assert screen.editor == "todo: c"
    screen.type("\x15")
    screen.until(edits(""))
    screen.type("/c\t")
    screen.until(edits("/co")).until("/context").until("/compact")
    assert "idle" in screen.toolbar, "the menu has the names"
    screen.type("\x15")
    screen.until(edits(""))
    screen.type("/model ot\t")
    screen.until(edits("/model other"))


def test_tab_completes_the_name_of_a_file_which_goes_along_with_its_line(screen: Screen) -> None:
    work = screen.home / "work"
    (work / "papers").mkdir()
    (work / "papers" / "one.md").write_text("1\n2\n")
    (work / "papers" / "two.md").write_text("1\n")
    screen.type("sum up @pap\t")
    screen.until("> sum up @papers/").until("papers/one.md").until("papers/two.md")  # the menu
    screen.type("o\t")
    screen.until("> sum up @papers/one.md")
    screen.type("\r")
    idle(screen.until("with papers/one.md (2 lines)"))


# ------------------------------------------------------------------------------------------------------- slash commands


@pytest.mark.spec("3", "/command")
def test_an_unknown_command_stays_with_the_nearest_name_and_help_names_all(screen: Screen) -> None:
    send(screen, "/stauts")

    screen.until("did you mean /status?").until(edits("/stauts"))

    screen.type("\x15")
    send(idle(screen), "/help")
    idle(screen.until("chain help"))
    for name in ("help", "status", "queue", "drop", "edit", "todo", "tools", "model", "resume", "new", "quit"):
        assert re.search(rf"(^|  )/{name}\b", screen.everything, re.M), name
    for key in ("Esc", "Ctrl-C", "Ctrl-D", "Ctrl-G", "Ctrl-L", "Alt-Enter", "Tab"):
        assert key in screen.everything
    quit(screen)
    assert states(screen) == {}


def test_help_fits_on_a_small_screen(start: Start) -> None:
    screen = idle(start(rows=24, columns=80))
    send(screen, "/help").until("chain help")
    idle(screen)
    assert "Commands:" in screen.display
    assert max(map(len, screen.display)) <= 78
    quit(screen)


def test_commands_are_answered_while_a_run_is_busy(screen: Screen) -> None:
    busy(screen, "gate a")
    send(screen, "one", "two", "three", "/queue")
    screen.until(lambda s: re.search(r"^\s*L3 .*two$", s.everything, re.M))

    send(screen, "/drop L3").until("↩ Dropped: two").until(lambda s: "queue 2/10" in s.toolbar)
    send(screen, "/drop L9").until(edits("/drop L9"))
    screen.type("\x15")
    send(screen, "/edit L2").until(edits("one"))
    screen.type(" again\r")
    screen.until("📤 Interrupting: one again")
    send(screen, "/status").until("iteration 1, tools; 2 lines wait")
    send(screen, "/todo")
    send(screen, "/tools").until("Wait until somebody writes into the pipe")
    screen.open_gate("a")
    screen.until("✓ injected")
    idle(screen)
    send(screen, "/queue").until("Nothing waits.")
    quit(idle(screen))
    assert states(screen) == {
        "gate a": "delivered",
        "one": "dropped",
        "two": "dropped",
        "three": "delivered",
        "one again": "delivered",
    }


@pytest.mark.spec("3", "status")
def test_status_plan_and_files_of_the_session(screen: Screen) -> None:
    send(screen, "hello").until("Done: hello")
    idle(screen)
    send(screen, "status", "/status")
    screen.until(lambda s: s.everything.count("nothing is running") == 2)
    assert re.search(r"[1-9]\d* input, [1-9]\d* output", screen.everything)
    send(screen, "todo: add check the licence").until("1. check the licence")
    send(screen, "/todo").until(lambda s: s.everything.count("1. check the licence") == 2)
    send(screen, "stop").until("Nothing is running.")
    send(screen, "/debug")
    screen.until(lambda s: s.times(journal(s).name) and s.times("state/chain/traces"))

    quit(idle(screen))
    assert states(screen) == {"hello": "delivered", "status": "handled", "todo: add check the licence": "handled"}


def test_another_model(screen: Screen) -> None:
    send(screen, "hello").until("Done: hello")
    send(idle(screen), "/model").until("other")
    send(screen, "/model othr").until("did you mean other?").until(edits("/model othr"))
    screen.type("\x15")
    send(screen, "/model other")
    send(idle(screen), "and you").until("The other one says: and you")

    quit(idle(screen))
    assert states(screen) == {"hello": "delivered", "and you": "delivered"}


def test_ctrl_l_draws_the_screen_again_and_debug_names_the_last_trace(screen: Screen) -> None:
    send(screen, "hello").until("Done: hello")
    idle(screen)
    before = screen.display
    screen.type(f"half{CTRL_L}")

    screen.until(lambda s: s.editor == "half" and [row for row in s.display if "Done: hello" in row])
    assert [row for row in screen.display if row.startswith(">")] == ["> half"]
    assert screen.display[: before.index(">")] == before[: before.index(">")]
    screen.type("\x15")
    send(idle(screen), "/debug").until("last trace")
    path = re.findall(r"/\S*?state/chain/traces/\S+?\.json", screen.joined)[-1]
    assert json.loads(Path(path).read_text())
    send(idle(screen), "/quit")
    assert screen.wait() == 0
    assert states(screen) == {"hello": "delivered"}


# ------------------------------------------------------------------------------------------------- interrupts and exits


@pytest.mark.sampled(every=2)
@pytest.mark.spec("7", "hard: Esc, Ctrl-C, SIGINT")
@pytest.mark.spec("7", "text in the editor survives")
@pytest.mark.parametrize("key", [ESC, CTRL_C], ids=["Esc", "Ctrl-C"])
def test_a_key_interrupts_the_work_in_hand(screen: Screen, key: str) -> None:
    busy(screen, "hang", "hang")
    screen.type("half")
    screen.until(edits("half"))

    screen.type(key)

    screen.until("⏹ interrupted").until("Interrupted. Tell the chain what to do instead.").until(edits("half"))
    assert "✗ hang" in screen.everything
    send(screen, "").until("Done: half")
    quit(idle(screen))
    assert states(screen) == {"hang": "delivered", "half": "delivered"}


@pytest.mark.spec("7", "with no run active: Ctrl-C, Esc")
def test_keys_when_nothing_runs(screen: Screen) -> None:
    screen.type(f"half{ESC}")
    screen.until(edits("half"))
    screen.type(CTRL_C)
    screen.until(edits(""))
    assert "exit" not in screen.everything

    screen.type(f"half{CTRL_D}")
    screen.until(edits("half"))
    screen.type(CTRL_C)
    screen.until(edits(""))
    screen.type(CTRL_C)
    screen.until("again to exit")
    screen.type(CTRL_C)
    left(screen, 130)


@pytest.mark.spec("7", "exit: Ctrl-C twice")
def test_ctrl_c_twice_exits_from_a_run(screen: Screen) -> None:
    busy(screen, "hang", "hang")
    send(screen, "waits").until("📤 Interrupting: waits")

    screen.type(CTRL_C)
    screen.until("⏹ interrupted")
    screen.type(CTRL_C)

    left(screen, 130)
    assert states(screen) == {"hang": "delivered", "waits": "returned"}


@pytest.mark.spec("7", "exit: Ctrl-C twice")
def test_ctrl_c_before_a_line_and_after_it_is_not_twice(screen: Screen) -> None:
    screen.type(CTRL_C)
    screen.until("again to exit")
    busy(screen, "hang", "hang")
    screen.type(CTRL_C)

    quit(idle(screen.until("⏹ interrupted")))


@pytest.mark.spec("7", "exit: Ctrl-D, SIGTERM, /quit")
def test_ctrl_d_exits(screen: Screen) -> None:
    screen.type(CTRL_D)

    left(screen)


@pytest.mark.spec("7", "exit: Ctrl-D, SIGTERM, /quit")
def test_quit_in_a_run_gives_the_waiting_lines_back(screen: Screen) -> None:
    busy(screen, "hang", "hang")
    send(screen, "waits").until("📤 Interrupting: waits")

    send(screen, "/quit")

    assert screen.wait() in (3, 130)
    left(screen, screen.wait())
    assert states(screen) == {"hang": "delivered", "waits": "returned"}


@pytest.mark.sampled(every=3)
@pytest.mark.spec("7", "hard: Esc, Ctrl-C, SIGINT")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signals(screen: Screen, number: signal.Signals) -> None:
    busy(screen, "hang", "hang")
    send(screen, "waits").until("📤 Interrupting: waits")

    screen.kill(number)
    if number == signal.SIGINT:
        screen.until("⏹ interrupted")
        screen.kill(number)

    codes = {signal.SIGTERM: [143], signal.SIGHUP: [129, 143], signal.SIGINT: [130]}
    assert screen.wait() in codes[number]
    left(screen, screen.wait())
    assert states(screen) == {"hang": "delivered", "waits": "returned"}


def test_a_window_that_is_closed_loses_no_line(screen: Screen) -> None:
    busy(screen, "hang", "hang")
    send(screen, "waits").until("📤 Interrupting: waits")

    screen.hang_up()

    screen.wait()
    assert states(screen) == {"hang": "delivered", "waits": "returned"}


@pytest.mark.slow
def test_a_tool_that_does_not_listen_holds_nobody_up(screen: Screen) -> None:
    busy(screen, "deaf", "deaf")
    screen.until("deaf now")

    screen.type(CTRL_C + CTRL_C)

    left(screen, 130)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signals_before_the_program_is_ready(start: Start, number: signal.Signals) -> None:
    moments: list[Callable[[Screen], object]] = [lambda s: not s.is_cooked, lambda s: s.editor is not None]
    for moment in moments:
        screen = start().until(moment)

        screen.kill(number)
        if number == signal.SIGINT:
            screen.until(lambda s: s.has_ended or "again to exit" in s.everything)
            screen.kill(number)

        screen.wait()
        assert screen.left_behind == []
        assert "Traceback" not in screen.everything


@pytest.mark.slow  # it fills a terminal
def test_a_terminal_that_nobody_reads_keeps_nobody_from_leaving(screen: Screen) -> None:
    send(screen, "flood 20000 100000").until("flood line")

    screen.kill(signal.SIGTERM)

    assert screen.wait(reads=False) == 143
    screen.wait()
    assert screen.left_behind == []
    assert states(screen) == {"flood 20000 100000": "delivered"}


@pytest.mark.slow
def test_ctrl_z_gives_the_terminal_to_the_shell_and_comes_back(start: Start) -> None:
    shell = '"$@"; echo "stopped: $?"; read -r line; echo "read $line"; fg >/dev/null; echo "ended: $?"'
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


def test_a_mistake_of_our_own_leaves_the_terminal_as_it_was(screen: Screen) -> None:
    screen.type("breaks\r")

    assert screen.wait() not in (0, 130, 143)
    assert screen.left_behind == []
    assert "a mistake of our own" in screen.everything
    assert screen.times(f"chain -r {journal(screen).stem} ")


def test_text_that_was_being_typed_is_not_lost_at_an_exit(screen: Screen) -> None:
    screen.type("half a thought")
    screen.until(edits("half a thought"))

    screen.kill(signal.SIGTERM)

    left(screen, 143)
    assert "half a thought" in screen.everything


# --------------------------------------------------------------------------------------------------------- the terminal


def test_a_tools_wild_output_is_shown_and_not_obeyed(screen: Screen) -> None:
    send(screen, "wild").until("It gave").until("✓ done")
    idle(screen)

    raw = screen.raw.decode()
    for text in SHOWN_OF_WILD:
        assert screen.times(text), text
    # Nothing of these is the program's own: it has no title, no clipboard, no margins.
    for part in (
        "title-of-a-tool",
        "Y2xpcGJvYXJk",
        "\x9b",
        "\x1b[5;10r",
        "\x1bc",
        "\x1bP",
        "\x07",
        "\u202e",
        "\x1b[?1049",
    ):
        assert part not in raw, part
    assert screen.raw.count(b"\x1b[2J") == 0
    send(screen, "after it").until("Done: after it")
    quit(idle(screen))


@pytest.mark.slow
def test_a_new_size_in_the_middle_of_a_stream(start: Start) -> None:
    screen = idle(start(rows=30, columns=60))
    screen.type("half")
    screen.until(edits("half"))
    screen.type("\x15")
    send(screen, "stream 40 words slowly").until("w05")
    screen.type("half")
    screen.until(edits("half"))
    screen.resize(20, 100)
    screen.until("w20").until(edits("half"))
    screen.resize(12, 70)
    screen.until("w39 w40").until("✓ done").until(edits("half"))

    assert len(screen.toolbar) <= 70
    assert sorted(set(re.findall(r"w\d\d", screen.everything))) == [f"w{n:02}" for n in range(1, 41)]
    assert sum(row.startswith("> ") for row in screen.rows) == 1
    send(screen, "").until("Done: half")
    quit(idle(screen))


@pytest.mark.slow
def test_forty_columns(start: Start) -> None:
    screen = idle(start(columns=40, rows=15))
    busy(screen, "gate a")
    assert len(screen.toolbar) <= 40
    send(screen, "look at the licence").until("📤 Interrupting: look at the licence")
    screen.type("this text is longer than the terminal is wide")
    wrapped = edits("this text is longer than the terminal\nis wide")
    screen.until(wrapped)
    screen.open_gate("a")
    screen.until(lambda s: "✓ injected (" in s.flat).until("✓ done").until(wrapped)
    assert all(len(row) <= 40 for row in screen.rows)
    screen.type("\x15")
    send(idle(screen), "stream 40 words slowly")
    screen.until("w40")
    assert re.findall(r"w\d\d", screen.everything) == [f"w{n:02}" for n in range(1, 41)]
    quit(idle(screen))


def test_no_colours_and_no_signs_where_none_are_wanted(start: Start) -> None:
    screen = idle(start("--no-color"))
    send(screen, "hello").until("Done: hello")
    quit(idle(screen))
    assert not COLOUR.search(screen.raw)

    screen = idle(start("--ascii", env={"NO_COLOR": "1"}))
    send(screen, "hello").until("Done: hello")
    send(idle(screen), "/quit")
    assert screen.wait() == 0
    assert not COLOUR.search(screen.raw)
    assert screen.raw.isascii()


@pytest.mark.slow  # of a locale without Unicode the test of locales tells
def test_a_terminal_without_unicode(start: Start) -> None:
    screen = idle(start(env={"LC_ALL": "C"}))
    send(screen, "gate a").until("-> gate a")
    send(screen, "hello there").until("Interrupting: hello there").until("next safe point")

    screen.open_gate("a")

    screen.until("INTERRUPTION at iteration 1:").until("injected (")
    send(idle(screen), "/quit")
    assert screen.wait() == 0
    assert screen.raw.isascii()
    assert screen.left_behind == []
    assert states(screen) == {"gate a": "delivered", "hello there": "delivered"}


# -------------------------------------------------------------------------------------------------------- the beginning


def test_keys_typed_ahead_are_not_lost(start: Start) -> None:
    screen = start()
    screen.until(lambda s: not s.is_cooked)

    screen.type("early bird\rnext")

    screen.until("Done: early bird").until(edits("next"))
    assert sum("early bird" in row for row in screen.rows) == 2
    screen.type("\x15")
    quit(idle(screen))
    assert states(screen) == {"early bird": "delivered"}


def test_keys_typed_before_the_program_has_the_terminal_are_not_lost(start: Start) -> None:
    screen = start()
    screen.type("very early")

    screen.until(edits("very early"))
    send(screen, "").until("Done: very early")
    quit(idle(screen))


SLOW = "terminal_pace: {think_s: 1000}\nrules: [{text: 'Said: ${query}'}]\n"


@pytest.mark.slow
def test_a_rule_file_takes_its_time_at_a_prompt_and_nowhere_else(start: Start, tmp_path: Path) -> None:
    (tmp_path / "test.yaml").write_text(CONFIG)
    (tmp_path / "other.yaml").write_text(SLOW)
    screen = idle(start("--model", "other"))
    for n, command in enumerate(("", "/model other"), 1):
        if command:
            send(screen, command).until("answers from now on")
        send(screen, "hello").until(lambda s: "thinking" in s.toolbar)
        screen.type(ESC)
        screen.until(lambda s, n=n: s.everything.count("⏹ interrupted") == n)
        idle(screen)
    assert "Said: " not in screen.everything
    quit(screen)
    assert start("-p", "hello", "--model", "other").until("Said: hello").wait() == 0


@pytest.mark.slow
def test_without_a_key_the_offline_model_answers_and_says_so(start: Start) -> None:
    screen = start(config=False)
    screen.until("offline").until("ANTHROPIC_API_KEY")
    (screen.home / "work/notes.txt").write_text("one\ntwo\n")

    send(idle(screen), "list the files").until("notes.txt")

    quit(idle(screen))


def test_a_configuration_that_cannot_be_used_says_why(start: Start, tmp_path: Path) -> None:
    (tmp_path / "test.yaml").write_text(CONFIG + "other: 1\n")
    screen = start()

    assert screen.wait() == 2
    assert "chain: " in screen.everything
    assert screen.times("test.yaml:")
    assert screen.left_behind == []


# -------------------------------------------------------------------------------------------------------------- trouble


def test_a_key_that_accepts_text_by_itself_is_an_enter(screen: Screen) -> None:
    screen.type(f"hello{CTRL_O}")

    screen.until("Done: hello")
    quit(idle(screen))
    assert states(screen) == {"hello": "delivered"}


def test_a_history_that_cannot_be_written_is_kept_in_memory(start: Start, tmp_path: Path) -> None:
    (tmp_path / "state" / "chain" / "history").mkdir(parents=True)
    screen = idle(start())
    send(screen, "hello").until("Done: hello")
    idle(screen)

    screen.type(UP)

    screen.until(edits("hello"))
    screen.type("\x15")
    quit(idle(screen))


@pytest.mark.slow
def test_of_a_long_history_the_end_is_read(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "state" / "chain" / "history"
    file.parent.mkdir(parents=True)
    entries = "".join(f"\n# 2026-01-01 00:00:00\n+entry {n}\n+of two rows\n" for n in range(200_000))
    file.write_text(entries)
    screen = idle(start())

    screen.type(UP)

    screen.until(edits("entry 199999\nof two rows"))
    screen.type(f"\x15{CTRL_C}")
    quit(idle(screen))
    assert file.read_text().startswith(entries)


@pytest.mark.slow  # full disks are held in memory
def test_a_start_query_that_is_refused_is_in_the_editor(start: Start) -> None:
    # The journal has room for its first record and not for this query.
    limited = ["/bin/bash", "-c", 'ulimit -f 1; exec "$@"', "bash"]
    # Python keeps what it could compile half, and takes it for whole the next time.
    screen = start("x" * 1000 + " the end", under=limited, env={"PYTHONDONTWRITEBYTECODE": "1"})

    screen.until("File too large").until(lambda s: s.editor is not None and s.editor.rstrip("\n").endswith("the end"))
    screen.type(CTRL_C)
    left(screen.until(edits("")) and send(screen, "/quit"))


def test_a_tool_that_never_lets_go_keeps_nobody_at_the_terminal(screen: Screen) -> None:
    busy(screen, "stone", "stone")
    screen.type(CTRL_D)
    screen.until("Waiting for the running tool to end")

    screen.type(CTRL_C)

    assert screen.wait() == 130
    assert screen.left_behind == []
    assert screen.times(f"chain -r {journal(screen).stem} ")


@pytest.mark.sampled
@pytest.mark.parametrize("locale", one([{"LANG": "C"}, {"LC_ALL": "POSIX"}, {"LANG": "de_DE.ISO-8859-1"}]))
def test_a_locale_without_unicode_gets_none(start: Start, locale: dict[str, str]) -> None:
    screen = start(env={"LANG": None, "LC_ALL": None, "LC_CTYPE": None, **locale})
    send(idle(screen), "hello").until("Done: hello")
    send(idle(screen), "/quit")
    assert screen.wait() == 0
    assert screen.raw.isascii()


@pytest.mark.slow
def test_a_text_taller_than_the_screen_leaves_it_whole(screen: Screen) -> None:
    tall = "\n".join(f"row {n}" for n in range(60))
    send(screen, "hello").until("Done: hello")
    screen.type(tall)  # a paste of it would be one row
    screen.until(lambda s: "row 59" in "\n".join(s.display))
    assert "Done: hello" in "\n".join(screen.display)

    send(screen, "").until("Done: row 0")

    idle(screen)
    blank = [row for row in screen.display[: screen.cursor[1]] if not row]
    assert len(blank) <= 1
    quit(screen)
    assert states(screen) == {"hello": "delivered", tall: "delivered"}


def test_enter_before_the_program_has_the_terminal_is_an_enter(start: Start) -> None:
    screen = start(under=["/bin/sh", "-c", 'read -r go; exec "$@"', "sh"])
    screen.type("go\rvery early\rnext")

    screen.until("Done: very early").until(edits("next"))
    screen.type("\x15")
    quit(idle(screen))
    assert states(screen) == {"very early": "delivered"}


@pytest.mark.slow
def test_an_urgent_line_that_comes_back_is_still_urgent(screen: Screen) -> None:
    busy(screen, "hang", "hang")
    send(screen, "!look here").until("⚡ ASAP")

    screen.type(ESC)

    screen.until(edits("!look here\n"))
    screen.type(CTRL_C)
    quit(idle(screen))


@pytest.mark.slow
def test_a_stop_is_a_stop_also_after_text_that_could_not_be_sent(screen: Screen) -> None:
    busy(screen, "hang", "hang")
    send(screen, "/drop L99", "stop").until("nothing waits").until("⏹ Stopping after hang")
    screen.until(edits(""))
    screen.type(ESC)

    busy(idle(screen.until("Interrupted.")), "hang", "hang")
    send(screen, *(f"line {n}" for n in range(1, 12)), "never mind")
    screen.until("Interruption channel full").until(
        lambda s: len(re.findall(r"^⏹ Stopping after hang", s.everything, re.M)) >= 2
    )
    assert screen.everything.count("Interruption channel full") == 1
    screen.type(ESC)
    screen.until(lambda s: "idle" in s.toolbar and "line 10" in (s.editor or ""))
    screen.type(CTRL_C)
    quit(idle(screen))
    assert {state for text, state in states(screen).items() if text.startswith("line ")} == {"returned"}
