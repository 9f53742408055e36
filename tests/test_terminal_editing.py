"""The prompt itself, in a real terminal: the user's own editor, pastes, searches, the menu, changes of width."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.journals import receipts
from support.screen import Screen
from support.terminal import (
    COLOUR,
    CTRL_C,
    CTRL_J,
    CTRL_L,
    CTRL_R,
    ESC,
    PASTE,
    UP,
    WORDS,
    Start,
    busy,
    edits,
    idle,
    quit,
    send,
    states,
    words,
)

from cli.show.text_rows import unpainted

pytest_plugins = ["support.terminal"]

LEFT, DOWN, CTRL_E, CTRL_G, CTRL_S, CTRL_U, CTRL_X = "\x1b[D", "\x1b[B", "\x05", "\x07", "\x13", "\x15", "\x18"
CTRL_O = "\x0f"
BACKSPACE = "\x7f"
FULL = "⚠️ Interruption channel full, try again"
EDITOR = """\
#!/bin/sh
trap 'echo interrupted >> "$1"' INT
echo "the editor has: $(cat "$1")" > /dev/tty
read -r row < /dev/tty
if [ "$row" = fail ]; then exit 3; fi
echo "$row" >> "$1"
"""

PAGER = """\
#!/bin/sh
cat > "$0.read"
echo "the pager has it" > /dev/tty
read -r row < /dev/tty
"""


@pytest.fixture
def with_editor(start: Start, tmp_path: Path) -> Screen:
    """The program with an editor that appends a row, or fails."""
    script = tmp_path / "editor"
    script.write_text(EDITOR)
    script.chmod(0o755)
    return idle(start(env={"VISUAL": str(script)}))


def asked(screen: Screen, *queries: str) -> Screen:
    """Ask one query after the other, each of which is then in the history."""
    for query in queries:
        idle(send(screen, query).until(f"Done: {query}"))
    return screen


def fill(screen: Screen) -> None:
    """Make the channel full."""
    busy(screen, "gate a")
    send(screen, *(f"line {n}" for n in range(1, 11))).until(lambda s: "queue 10/10" in s.toolbar)


def cleared(screen: Screen) -> Screen:
    """Empty the editor."""
    screen.type(CTRL_C)
    return screen.until(edits(""))


# ------------------------------------------------------------------------------------------------ the user's own editor


def test_an_editor_has_the_text_while_the_run_goes_on(with_editor: Screen) -> None:
    screen = with_editor
    busy(screen, "gate a")
    screen.type("one")
    screen.until(edits("one"))
    screen.type(CTRL_G)
    screen.until("the editor has: one")
    screen.open_gate("a")
    screen.type("two\n")
    screen.until(edits("one\ntwo")).until("✓ done")
    assert list(states(screen)) == ["gate a"], "what was saved is not sent"
    send(screen, "").until("▶ one")
    quit(idle(screen))
    assert list(states(screen)) == ["gate a", "one\ntwo"]


def test_the_pager_has_the_whole_session_while_the_run_goes_on(start: Start, tmp_path: Path) -> None:
    script, pasted = tmp_path / "pager", "\n".join(f"row {n}" for n in range(300))
    script.write_text(PAGER)
    script.chmod(0o755)
    screen = idle(start(env={"PAGER": str(script)}))
    send(screen, "think").until("Thought about it.")
    idle(screen).type(f"look at {PASTE.format(pasted)}\r")
    idle(screen.until("[300 lines pasted]"))
    busy(screen, "gate a").type("a draft")
    screen.until(edits("a draft")).type(CTRL_O)
    screen.until("the pager has it")
    seen = unpainted((tmp_path / "pager.read").read_text())
    assert "Considering it from all sides." in seen
    assert pasted in seen.replace("\n│ ", "\n")
    screen.open_gate("a")
    screen.type("q\n")
    screen.until("The gate said").until(edits("a draft"))
    quit(idle(cleared(screen)))


@pytest.mark.slow
def test_a_long_text_of_an_editor_is_folded_as_a_paste_is(start: Start, tmp_path: Path) -> None:
    script = tmp_path / "editor"
    script.write_text(f"#!/bin/sh\nyes 'a word' | head -c {len('a word ') * 10_000} | tr '\\n' ' ' > \"$1\"\n")
    script.chmod(0o755)
    screen = idle(start(env={"VISUAL": str(script)}))
    screen.type(CTRL_G)
    screen.until(lambda s: "[pasted " in (s.editor or ""))
    quit(idle(cleared(screen)))


@pytest.mark.slow
def test_an_editor_that_fails_leaves_the_text_and_ctrl_c_in_it_is_its_own(with_editor: Screen) -> None:
    screen = with_editor
    busy(screen, "gate a")
    screen.type(f"one{CTRL_X}{CTRL_E}")
    screen.until("the editor has: one")
    screen.type("fail\n")
    screen.until("ended with 3; the text is unchanged").until(edits("one"))
    for key in (CTRL_X, CTRL_E):
        screen.type(key)
    screen.until(lambda s: s.everything.count("the editor has: one") == 2)
    screen.type(CTRL_C)  # the terminal sends SIGINT to the editor and to the program
    screen.type("two\n")
    screen.until(lambda s: (s.editor or "").startswith("one\n"))
    assert "Interrupted" not in screen.everything
    screen.open_gate("a")
    screen.until("✓ done")
    quit(idle(cleared(screen)))


@pytest.mark.slow
def test_ctrl_z_in_an_editor_stops_the_job_and_fg_continues_it(start: Start, tmp_path: Path) -> None:
    (tmp_path / "editor").write_text(EDITOR)
    (tmp_path / "editor").chmod(0o755)
    shell = '"$@"; echo "stopped: $?"; read -r line; fg >/dev/null; echo "ended: $?"'
    screen = idle(start(under=("/bin/sh", "-m", "-c", shell, "sh"), env={"VISUAL": str(tmp_path / "editor")}))
    screen.type(f"one{CTRL_G}")
    screen.until("the editor has: one").type("\x1a")
    screen.until("stopped: ").type("\n")
    screen.type("two\n")
    screen.until(edits("one\ntwo")).type("\r")
    idle(screen.until("▶ one"))
    send(screen, "/quit").until("ended: 0")
    assert screen.wait() == 0
    assert screen.left_behind == []


# ----------------------------------------------------------------------------------------------- what was not accepted


MEANT = "did you mean /status?"


@pytest.mark.slow
def test_the_next_key_replaces_a_command_that_failed_or_mends_it(screen: Screen) -> None:
    for keys, text in {
        "/status": "/status",
        "hello": "hello",
        PASTE.format("one\rtwo"): "one\ntwo",
        f"{LEFT}{LEFT}{LEFT}{BACKSPACE}{BACKSPACE}tat": "/stataus",
        BACKSPACE: "",
        CTRL_U: "",
    }.items():
        count = screen.everything.count(MEANT)
        send(screen, "/sttaus").until(lambda s, n=count: s.everything.count(MEANT) > n).until(edits("/sttaus"))
        screen.type(keys)
        cleared(screen.until(edits(text)))
    # A command that was typed ahead behind one that fails is carried out, and so is a stop.
    send(screen, "/stauts", "/status", "/drop L99", "stop")
    screen.until("nothing is running").until("no line is waiting").until("Nothing is running.").until(edits(""))
    # Each of these has one answer.
    send(screen, "todo: add check the licence", "todo: complete 7", "todo: done 1").until("[✓] 1. check the licence")
    shown = [row for row in screen.rows if row.startswith(("» todo", "task", "there is no task"))]
    assert shown == [
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
def test_what_people_type_to_leave_or_to_be_helped_is_no_line_and_text_behind_a_space(screen: Screen) -> None:
    send(screen, "!ls").until("Nothing is running to interrupt").until(edits("!ls"))
    send(screen, "!stop").until("» !stop")
    busy(screen.until(edits("")), "gate a")
    send(screen, "quit").until("A run is active: stop ends it, /quit exits.").until(edits("quit"))
    screen.type(CTRL_U)
    send(screen.until(edits("")), "?").until("Lines, while a run is active:")
    assert "Interrupting" not in screen.everything
    screen.type(ESC)
    screen.until(lambda s: "idle" in s.toolbar)
    send(screen.until(edits("")), " exit").until("Done: exit")
    # What came back may start a run, and the same text does not when it is typed later.
    busy(idle(screen), "hang", "hang")
    send(screen, "!use B").until("queue 1/10")
    screen.type(ESC)
    send(screen.until(edits("!use B\n")), "").until("Done: use B")
    send(idle(screen), "!use B").until(lambda s: s.everything.count("Nothing is running to interrupt") == 2)
    screen.until(edits("!use B")).type(CTRL_U)
    send(screen.until(edits("")), "exit()")
    assert screen.wait() == 0
    assert [line.text for line in receipts(screen.home).values()] == ["gate a", " exit", "hang", "!use B", "!use B"]


@pytest.mark.slow
def test_a_line_without_room_stays_is_told_once_and_others_pass_by_it(screen: Screen) -> None:
    fill(screen)
    send(screen, "one more").until(FULL).until("  one more").until(edits("one more"))
    row, column = screen.cursor
    assert screen.display[row][:column] == "> one more"
    screen.type("\rtwo\r")
    screen.until(edits("one more\ntwo"))
    screen.type(f"{CTRL_U}{BACKSPACE}{BACKSPACE * 4}less")
    send(screen.until(edits("one less")), "").until(lambda s: s.everything.count(FULL) == 2)
    send(screen, "/drop").until("↩ Dropped: line 10").until(edits("one less\n"))
    send(screen, "/status").until("iteration 1, tools").until(edits("one less\n"))
    send(screen, "!!stop that, use B").until("Understood: ").until("✓ done")
    assert "🔔 INTERRUPTION at iteration 1:" in screen.everything
    assert screen.everything.count(FULL) == 2, "once for each line"
    send(screen.until(edits("one less\n")), "").until("Done: one less")
    quit(idle(screen))
    assert states(screen)["line 10"] == "dropped"


@pytest.mark.slow
def test_a_long_paste_can_be_taken_out_and_comes_back_whole(screen: Screen) -> None:
    pasted = "\n".join(f"row {n}" for n in range(300))
    screen.type(f"look at {PASTE.format(pasted)} now")
    screen.until(edits("look at [pasted 300 lines] now"))
    screen.type(LEFT * 4 + BACKSPACE)
    cleared(screen.until(edits("look at  now")))
    busy(screen, "hang", "hang")
    screen.type(f"a {PASTE.format(pasted)}\r")
    screen.until("queue 1/10")
    screen.type(ESC)
    screen.until("↩ Returned").until(lambda s: (s.editor or "").startswith("[pasted 300 lines]"))
    screen.type(BACKSPACE)
    send(screen, "").until("✓ done")
    idle(screen).type(UP)
    screen.until(lambda s: s.display[s.cursor[0]] == "  row 299")
    send(cleared(screen), "[pasted 300 lines]").until("Done: [pasted 300 lines]")
    quit(idle(screen))
    assert list(states(screen))[-2:] == [f"a {pasted}", "[pasted 300 lines]"]


# -------------------------------------------------------------------------------------------------- moving and looking


@pytest.mark.slow
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
    quit(idle(cleared(screen)))


@pytest.mark.slow
def test_a_search_restores_what_was_there_when_it_began(screen: Screen) -> None:
    asked(screen, "an alpha query", "an alpha again")
    screen.type(f"half{CTRL_R}alpha")
    screen.until(lambda s: (s.editor or "").startswith("an alpha again"))
    screen.type(CTRL_R)
    screen.until(lambda s: (s.editor or "").startswith("an alpha query"))
    screen.type(CTRL_G)
    screen.until(edits("half"))
    screen.type(f"{CTRL_R}query\r")
    screen.until(edits("an alpha query"))
    screen.type(f"{CTRL_E}{CTRL_U}precious text")
    screen.until(edits("precious text"))
    screen.type(f"{CTRL_S}zzz")
    screen.until("I-search").type(CTRL_G)
    screen.until(lambda s: "I-search" not in s.everything and s.editor == "precious text")
    screen.type(f"{CTRL_U}{CTRL_R}nothing like it")
    screen.until("I-search backward").type(CTRL_G)
    screen.until(lambda s: s.editor == "" and s.display[s.cursor[0] + 1].startswith("idle"))
    quit(screen)


@pytest.mark.slow
def test_lines_that_come_back_during_a_search_are_not_lost(screen: Screen) -> None:
    busy(asked(screen, "an alpha query"), "gate a")
    send(screen, "use A").until("📤 Interrupting: use A")
    screen.type(f"/edit\r{CTRL_R}alp{CTRL_G}x")
    screen.until(lambda s: "use A" in (s.editor or "") and "I-search" not in s.everything)
    screen.type(f"{CTRL_U}{BACKSPACE}{CTRL_U}")
    send(screen.until(edits("")), "use B").until("📤 Interrupting: use B")
    send(screen, "stop").until("⏹ Stopping after gate")
    screen.type(f"half{CTRL_R}alpha")
    screen.until("I-search backward: alpha").open_gate("a")
    screen.until("⏹ cancelled").until("I-search backward: alpha").type(CTRL_G)
    screen.until(edits("use B\nhalf")).type("x")
    quit(idle(cleared(screen.until(edits("use B\nhalfx")))))


@pytest.mark.slow
def test_tab_completes_and_a_menu_says_what_commands_do(screen: Screen) -> None:
    for typed, whole in {"/sta": "/status", "forg": "forget it", "/model ot": "/model other"}.items():
        screen.type(f"{typed}\t")
        cleared(screen.until(edits(whole)))
    for typed, common, names in (("st", "st", ["status", "stop"]), ("todo: c", "todo: c", ["todo: clear"])):
        screen.type(f"{typed}\t")
        screen.until(lambda s, names=names: all(any(row.strip() == name for row in s.display) for name in names))
        screen.until(lambda s, common=common: f"> {common}" in s.display)
        cleared(screen)
    screen.type("/")
    screen.until(lambda s: any(row.strip().startswith("/status ") and "state and usage" in row for row in s.menu))
    screen.type("mo")
    screen.until(lambda s: [" ".join(row.split()[:2]) for row in s.menu] == ["/model [NAME]", "/mode [MODE]"])
    screen.type("del")
    screen.until(lambda s: [" ".join(row.split()[:2]) for row in s.menu] == ["/model [NAME]"])
    screen.type(" ")
    screen.until(lambda s: s.menu == [])
    screen.type(f"{CTRL_U}/st")
    screen.until(lambda s: len(s.menu) == 1)
    screen.type(ESC)
    screen.until(lambda s: s.menu == []).until(edits("/st"))
    screen.type(f"{CTRL_U}/tox")
    screen.until(lambda s: s.menu == []).type(BACKSPACE)
    screen.until(lambda s: len(s.menu) > 1).type(DOWN)
    screen.until(edits("/todo")).type("\r")
    screen.until(lambda s: s.menu == []).until(edits("/todo")).type("\r")
    screen.until("» /todo").until(edits(""))
    send(screen, "/st")
    screen.until(edits("/st"))
    screen.type("\t")
    cleared(screen.until(edits("/status")))

    work = screen.home / "work"
    (work / "papers").mkdir()
    (work / "papers" / "one.md").write_text("1\n2\n")
    (work / "papers" / "two.md").write_text("1\n")
    screen.type("first\nsecond\nread @pap")
    screen.until(lambda s: s.display[s.display.index("> first") + 1] == "  second" if "> first" in s.display else False)
    screen.until(lambda s: any("papers/" in row for row in s.display[s.display.index("> first") + 3 :]))
    cleared(screen)
    screen.type("sum up @pap\t")
    screen.until("> sum up @papers/").until("papers/one.md").until("papers/two.md")  # the menu
    screen.type("o\t")
    screen.until("> sum up @papers/one.md")
    screen.type("\r")
    quit(idle(screen.until("with papers/one.md (2 lines)")))


# ----------------------------------------------------------------------------------------------------- how it is drawn


@pytest.mark.slow
def test_a_reply_is_painted_while_it_streams(screen: Screen) -> None:
    send(screen, "markdown slowly")
    screen.until(lambda s: _has_no_escapes(s) and "✓ done" in s.everything)
    assert "bold" in screen.everything
    assert "**bold**" not in screen.everything
    send(idle(screen), "stream 40 words slowly").until("w40")
    drawn = re.findall(rb"\x1b\[([0-9;]*)mw01", bytes(screen.raw))
    assert drawn
    assert not [sgr for sgr in drawn if b"1" in sgr.split(b";")], "the prompt is bold, what is above it is not"
    quit(idle(screen))


def _has_no_escapes(screen: Screen) -> bool:
    assert "^[" not in screen.everything, screen.everything
    return True


@pytest.mark.slow
def test_the_prompt_is_as_high_as_its_text_and_leaves_the_screen_whole(screen: Screen) -> None:
    screen.type(CTRL_J.join(["one", "two", "three", "four"]))
    screen.until(edits("one\ntwo\nthree\nfour"))
    for rows, left in ((2, "one\ntwo"), (1, "one")):
        screen.type(f"{CTRL_U}{BACKSPACE}" * rows)
        screen.until(lambda s, left=left: s.editor == left and s.display[s.cursor[0] + 1].startswith("idle"))
    cleared(screen)

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


@pytest.mark.slow
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


@pytest.mark.slow
def test_no_text_is_doubled_when_a_terminal_that_wraps_rows_again_changes_its_width(start: Start) -> None:
    screen = idle(start(columns=60, rows=24, reflows=True))
    typed = "a text that is being typed meanwhile"
    send(screen, "stream 40 words in 8 seconds").until("w07")
    screen.type(typed)
    screen.resize(24, 22)
    screen.until(lambda s: "w12" in words(s) and (s.editor or "").startswith("a text that is"))
    screen.resize(24, 70)
    screen.until("w17")
    screen.resize(24, 33)
    # What is said at the end is written first, and the prompt below it drawn again after that.
    screen.until("✓ done").until(lambda s: (s.editor or "").startswith("a text that is") and "idle" in s.toolbar)
    assert words(screen) == WORDS
    assert sum(row.startswith("> a text") for row in screen.rows) == 1, screen.everything
    screen.type(CTRL_U)
    screen.resize(24, 100)
    send(idle(screen), "/quit")
    assert screen.wait() == 0, screen.everything


@pytest.mark.slow
def test_colours_and_signs_are_those_that_the_terminal_can_show(start: Start) -> None:
    for args, env, is_ascii in (
        (["--no-color", "-v"], {}, False),
        ([], {"LANG": "de_DE.ISO-8859-1", "NO_COLOR": "1"}, True),
    ):
        screen = idle(start(*args, env=env))
        send(screen, "gate a").until("gate")
        send(screen, "hello there").until("Interrupting: hello there")
        screen.open_gate("a")
        screen.until("INTERRUPTION at iteration 1").until("✓ done" if not is_ascii else "done, ")
        if "-v" in args:
            screen.until("[1/100]").until("→ gate(").until("⏳ Will inject at next safe point").until(
                "✓ Message injected ("
            )
        send(idle(screen), "/quit")
        assert screen.wait() == 0
        assert screen.raw.isascii() == is_ascii
        assert not COLOUR.search(screen.raw)
        assert screen.left_behind == []
