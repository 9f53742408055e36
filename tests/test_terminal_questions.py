"""Questions at a real terminal: what is shown, what answers, and what was begun before."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.journals import journals, records
from support.screen import Screen
from support.terminal import ESC, LIMITS, PASTE, UP, Start, edits, idle, quit, send

pytest_plugins = ["support.terminal"]

RULES = r"""
rules:
  - when: {user: '^read and (?P<how>write|edit) (?P<path>\S+)', step: 1}
    tools: [{name: read_file, input: {path: "${path}"}}]
  - when: {user: '^read and edit (?P<path>\S+)', tool: read_file}
    tools: [{name: edit_file, input: {path: "${path}", old_string: beta, new_string: "two\nthree"}}]
  - when: {user: '^read and write (?P<path>\S+)', tool: read_file}
    tools: [{name: write_file, input: {path: "${path}", content: "new\n"}}]
  - when: {user: '^write (?P<count>\d+) files', step: 1}
    tools: [{name: write_file, input: {path: a, content: "a\n"}}, {name: write_file, input: {path: b, content: "b\n"}}]
  - when: {user: '^long', step: 1}
    tools: [{name: write_file, input: {path: long, content: "LONG"}}]
  - when: {user: '^which', step: 1}
    tools: [{name: ask_user_question, input: {question: "Which file?", options: [left, right]}}]
  - {when: {interruption: '(?P<said>.*)'}, text: "Noted: ${said}"}
  - {text: "Result: ${result}"}
"""

LONG = "\n".join(f"row {n}" for n in range(100))


@pytest.fixture
def configured(start: Start, tmp_path: Path) -> Start:
    """Start the program with a model that changes files."""
    (tmp_path / "test.yaml").write_text(
        "models: {default: test, definitions: {test: {provider: scripted, script: rules.yaml}}}\n"
        "chains: {default: {model: test, tools: [files, edit, ask]}}\n"
    )
    (tmp_path / "rules.yaml").write_text(RULES.replace("LONG", LONG.replace("\n", "\\n")))
    (tmp_path / "work").mkdir()
    (tmp_path / "work/notes.txt").write_text("alpha\nbeta\ngamma\n")
    return start


@pytest.fixture
def screen(configured: Start) -> Screen:
    """The program with its prompt up."""
    return idle(configured())


def asked(screen: Screen, id: str = "Q1") -> Screen:
    """Wait until the prompt takes the answer to this question."""
    return screen.until(lambda s: s.prompt == f"{id}?" and f"answers {id} (main)" in s.toolbar)


def notes(screen: Screen) -> str:
    return (screen.home / "work/notes.txt").read_text()


def answers(screen: Screen) -> list[tuple[str, str, str]]:
    return [(r["id"], r["decision"], r["by"]) for r in records(screen.home) if r["type"] == "answer"]


def pressable(screen: Screen, id: str = "Q1") -> Screen:
    """Wait until one key answers this question."""
    return screen.until(lambda s: s.prompt == f"{id}?" and f"y, a or n answers {id} (main)" in s.toolbar)


TITLE, PLAIN, KEPT, BROUGHT_BACK = (
    b"\x1b]2;chain: Q1 asks\x07",
    b"\x1b]2;chain: ~/work\x07",
    b"\x1b[22;2t",
    b"\x1b[23;2t",
)


def test_a_question_is_answered_by_one_key_but_not_by_what_was_typed_before_it(screen: Screen) -> None:
    screen.until(lambda s: PLAIN in s.raw)
    # Typed behind the query without an Enter, so it is in the editor before anything is asked.
    screen.type("read and write notes.txt\ry")
    screen.until("❓ Q1 Allow write_file?").until(lambda s: TITLE + b"\x07" in s.raw)
    screen.until(lambda s: "Q1 waits" in s.toolbar and "next safe point" in s.toolbar)
    assert (screen.prompt, screen.editor) == (">", "y")
    screen.type("es, but later\r")
    screen.until("📤 Interrupting: yes, but later").until(lambda s: PLAIN in s.raw[s.raw.index(TITLE) :])
    pressable(screen).type("n")
    screen.until("notes.txt · refused").until("Noted: yes, but later")

    send(idle(screen), "read and edit notes.txt")
    pressable(screen, "Q2")
    difference = ["❓ Q2 Allow edit_file?", "  notes.txt +2 −1", "  @@ -1,3 +1,4 @@", "  -beta", "  +two", "  +three"]
    assert {*difference} <= {*screen.rows}
    assert "y allow once · a allow every edit_file until you leave · n refuse" in screen.flat
    assert notes(screen) == "alpha\nbeta\ngamma\n"
    screen.type("y")
    screen.until("✓ edit_file notes.txt · +2 −1 · Q2 allowed").until("Result: Changed notes.txt +2 −1.")

    assert notes(screen) == "alpha\ntwo\nthree\ngamma\n"
    quit(idle(screen))
    assert answers(screen) == [("Q1", "refused", "user"), ("Q2", "allowed", "user")]
    after = bytes(screen.raw[screen.raw.index(KEPT) :])
    assert after.count(KEPT) == after.count(BROUGHT_BACK) == 1
    assert after.rindex(PLAIN) < after.index(BROUGHT_BACK)


def test_esc_twice_at_an_empty_prompt_offers_the_runs_that_can_be_undone(screen: Screen) -> None:
    for key in (ESC, ESC):
        screen.type(key)
    screen.until("No run can be undone.").until(edits(""))
    send(screen, "read and edit notes.txt")
    pressable(screen).type("y")
    idle(screen.until("Result: Changed notes.txt"))
    send(screen, "another").until("Result: ").until("✓ done")
    idle(screen).type(f"x{ESC}{ESC}")
    screen.until(edits("x")).type("\x7f")
    idle(screen).type(ESC)
    screen.type(ESC)
    screen.until(edits("/undo"))
    for row in (r"  1  \S+ \d\d:\d\d  another +no file", r"  2  \S+ \d\d:\d\d  read and edit notes.txt +notes.txt"):
        screen.until(lambda s, row=row: re.search(f"^{row}$", s.everything, re.M))
    screen.type("2\r")
    idle(screen.until("Restored: notes.txt."))
    assert notes(screen) == "alpha\nbeta\ngamma\n"
    quit(screen)


@pytest.mark.slow
def test_esc_withdraws_and_a_line_begun_at_the_question_stays(screen: Screen) -> None:
    send(screen, "read and write notes.txt")
    asked(screen)
    screen.type("yes I th")
    screen.until(edits("yes I th"))
    screen.type(ESC)
    screen.until("↩ Q1 withdrawn").until(lambda s: "idle" in s.toolbar and s.editor == "yes I th")
    screen.type("ink\r")
    # It was to be an answer, so it is not sent as a line before the user has seen that.
    screen.until("⚠️ Q1 is no longer open").until(lambda s: s.prompt == ">" and s.editor == "yes I think")
    send(screen, "").until("▶ yes I think")
    quit(idle(screen))


@pytest.mark.slow
def test_what_is_no_single_key_is_a_reason_and_waits_for_enter(screen: Screen) -> None:
    for n, keys in enumerate([" no", PASTE.format("n"), "yn", "xy", "next time"], 1):
        send(screen, "read and write notes.txt")
        pressable(screen, f"Q{n}").type(keys)
        screen.until(edits(keys.removeprefix("\x1b[200~").removesuffix("\x1b[201~")))
        assert len(answers(screen)) == n - 1
        screen.type("ot now\r")
        idle(screen.until(lambda s, n=n: s.everything.count("notes.txt · refused: ") == n))
    assert {decision for _, decision, _ in answers(screen)} == {"refused"}
    quit(screen)


@pytest.mark.slow
def test_commands_and_other_keys_at_a_question(screen: Screen) -> None:
    send(screen, "long")
    asked(screen)
    assert any("more lines; /diff shows all" in row or "more rows; /diff shows all" in row for row in screen.rows)
    assert "  +row 50" not in screen.rows
    send(screen, "/diff").until("  +row 50")
    send(screen, "/diff Q1", "/status", "/nope").until("there is no /nope").until(edits("/nope"))
    screen.type("\x15")
    asked(screen)
    send(screen, "  ", "/queue").until("No line is waiting.")  # a blank line does nothing
    asked(screen)
    for n, line in enumerate(("!and", "!!and now", "stop"), 1):  # these answer nothing
        screen.type(line)
        screen.until(lambda s, line=line: s.editor == line and "answers" not in s.toolbar)
        send(screen, "").until(f"↩ Q{n} withdrawn")
        if line != "stop":
            send(idle(screen), "read and write notes.txt")
            asked(screen, f"Q{n + 1}")
    screen.until("Noted: and now").until("What would you like to do instead?")
    quit(idle(screen))


@pytest.mark.slow
def test_what_is_taken_back_to_edit_is_no_answer(screen: Screen) -> None:
    send(screen, "read and write notes.txt")
    asked(screen)
    screen.type(" spaced\r")  # an answer, since all is one at this prompt
    screen.until(" · refused: spaced")
    idle(screen)
    screen.type("read and write notes.txt\rnot an answer")
    screen.until("❓ Q2").until(edits("not an answer"))
    screen.type("\r")
    asked(screen, "Q2")
    screen.type(UP)
    screen.until(lambda s: s.editor == "not an answer" and s.prompt == ">")
    screen.type("\x15")
    asked(screen, "Q2")
    send(screen, "n").until(lambda s: re.search(r"^✗ .* · refused$", s.everything, re.M))
    quit(idle(screen))


@pytest.mark.slow
def test_a_key_that_came_with_the_question_answers_nothing(configured: Start, tmp_path: Path) -> None:
    with (tmp_path / "test.yaml").open("a") as config:
        config.write("notify: off\n")
    screen = idle(configured(never=[*LIMITS, "cli.screen.page.MOMENT_S"]))
    send(screen, "write 2 files")
    screen.until(lambda s: s.prompt == "Q1?").type("y")
    screen.until(edits("y"))
    assert answers(screen) == []
    send(screen, "").until("Q1 allowed")
    asked(screen, "Q2")

    quit(screen)

    assert answers(screen) == [("Q1", "allowed", "user"), ("Q2", "withdrawn", "user")]
    [result] = [r for r in records(screen.home) if r["type"] == "result"]
    assert result["status"] == "interrupted"
    assert screen.raw.count(b"\x07") == screen.raw.count(PLAIN) == 1, "nobody is notified"


@pytest.mark.slow
def test_a_terminal_without_titles_only_rings(configured: Start) -> None:
    screen = idle(configured(env={"TERM": "linux"}))
    asked(send(screen, "which"))
    send(screen, "1").until("answered: left")
    quit(idle(screen))
    assert b"\x1b]" not in screen.raw
    assert BROUGHT_BACK not in screen.raw
    assert b"\x07" in screen.raw


def test_shift_tab_changes_the_mode_and_a_new_session_has_it_too(screen: Screen) -> None:
    assert "idle · ask" in screen.toolbar
    screen.type("\x1b[Z")
    screen.until("ℹ Mode accept edits: edits in the workspace are allowed").until("idle · accept edits")
    send(screen, "read and write notes.txt").until("Result: Changed notes.txt")
    send(idle(screen), "/new").until("New conversation")
    idle(screen).until("idle · accept edits").type("\x1b[Z")
    screen.until("idle · read only")
    send(screen, "read and edit notes.txt").until("✗ edit_file").until("Only the user can change the mode.")
    quit(idle(screen))
    assert notes(screen) == "new\n"
    kept = [[r["name"] for r in found if r["type"] == "mode"] for found in journals(screen.home).values()]
    assert sorted(kept) == [["accept edits"], ["accept edits", "read only"]]
