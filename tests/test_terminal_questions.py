"""Questions at a real terminal: what is shown, what answers, and what was begun before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.journals import records
from support.screen import Screen
from support.terminal import ALT_ENTER, CTRL_J, ESC, UP, Start, edits, idle, quit, send

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
def screen(start: Start, tmp_path: Path) -> Screen:
    """The program with a model that changes files."""
    (tmp_path / "test.yaml").write_text(
        "models: {default: test, definitions: {test: {provider: scripted, script: rules.yaml}}}\n"
        "chains: {default: {model: test, tools: [files, edit, ask]}}\n"
    )
    (tmp_path / "rules.yaml").write_text(RULES.replace("LONG", LONG.replace("\n", "\\n")))
    (tmp_path / "work").mkdir()
    (tmp_path / "work/notes.txt").write_text("alpha\nbeta\ngamma\n")
    return idle(start())


def asked(screen: Screen, id: str = "Q1") -> Screen:
    """Wait until the prompt takes the answer to this question."""
    return screen.until(lambda s: s.prompt == f"{id}?" and f"answers {id} (main)" in s.toolbar)


def notes(screen: Screen) -> str:
    return (screen.home / "work/notes.txt").read_text()


def answers(screen: Screen) -> list[tuple[str, str, str]]:
    return [(r["id"], r["decision"], r["by"]) for r in records(screen.home) if r["type"] == "answer"]


def test_an_edit_is_shown_as_a_difference_and_done_when_it_is_allowed(screen: Screen) -> None:
    send(screen, "read and edit notes.txt")
    asked(screen)
    for row in (
        "❓ Q1 Allow edit_file: notes.txt",
        "  notes.txt +2 −1",
        "  @@ -1,3 +1,4 @@",
        "  -beta",
        "  +two",
        "  +three",
    ):
        assert row in screen.rows
    assert any("y allows it · n or a reason refuses · a always allows such calls" in row for row in screen.rows)
    assert "Q1 waits" in screen.toolbar
    assert notes(screen) == "alpha\nbeta\ngamma\n"
    send(screen, "y").until("✓ Q1 allowed").until("Result: Changed notes.txt +2 −1.")
    assert notes(screen) == "alpha\ntwo\nthree\ngamma\n"
    quit(idle(screen))


def test_a_refusal_says_why_and_changes_nothing(screen: Screen) -> None:
    send(screen, "read and write notes.txt")
    asked(screen)
    send(screen, "keep the old ones").until("✗ Q1 refused: keep the old ones")
    screen.until("Result: The user refused this: keep the old ones")
    assert notes(screen) == "alpha\nbeta\ngamma\n"
    quit(idle(screen))


@pytest.mark.spec("8", "a terminal whose editor is up")
def test_what_was_begun_before_the_question_never_answers_it(screen: Screen, tmp_path: Path) -> None:
    # Typed behind the query without an Enter, so it is in the editor before anything is asked.
    screen.type("read and write notes.txt\ry")
    screen.until("❓ Q1 Allow write_file: notes.txt")
    screen.until(lambda s: "Q1 waits" in s.toolbar and "next safe point" in s.toolbar)
    assert screen.prompt == ">"
    assert screen.editor == "y"
    screen.type("es, but later\r")
    screen.until("📤 Interrupting: yes, but later")
    asked(screen)
    assert notes(screen) == "alpha\nbeta\ngamma\n"
    send(screen, "n").until("Noted: yes, but later")
    assert answers(screen) == [("Q1", "refused", "user")]
    quit(idle(screen))


@pytest.mark.parametrize("line", ["stop", "!use another", "!!use another"])
def test_stops_and_urgent_lines_keep_their_meaning_at_a_question(screen: Screen, line: str) -> None:
    send(screen, "read and write notes.txt")
    asked(screen)
    screen.type(line)
    screen.until(lambda s: s.editor == line and "answers" not in s.toolbar)
    send(screen, "").until("↩ Q1 withdrawn")
    screen.until("What would you like to do instead?" if line == "stop" else "Noted: use another")
    assert answers(screen) == [("Q1", "withdrawn", "user")]
    assert notes(screen) == "alpha\nbeta\ngamma\n"
    quit(idle(screen))


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


def test_commands_and_other_keys_at_a_question(screen: Screen) -> None:
    send(screen, "long")
    asked(screen)
    assert any("more lines; /diff shows all" in row or "more rows; /diff shows all" in row for row in screen.rows)
    assert "  +row 50" not in screen.rows
    send(screen, "/diff").until("  +row 50")
    send(screen, "/diff Q1", "/status", "/nope").until("there is no /nope").until(edits("/nope"))
    screen.type("\x15")
    asked(screen)
    send(screen, "  ", "/queue").until("Nothing waits.")  # a blank line does nothing
    asked(screen)
    screen.type(f"and{ALT_ENTER}")
    screen.until("⚡ Will inject ASAP").until("↩ Q1 withdrawn").until("Noted: and")
    quit(idle(screen))


def test_a_choice_by_number_and_by_text_of_several_rows(screen: Screen) -> None:
    send(screen, "which")
    asked(screen)
    assert {"❓ Q1 Which file?", "  1. left", "  2. right"} <= set(screen.rows)
    send(screen, "2").until("✓ Q1: right").until("Result: The user answered: right")
    idle(screen)
    send(screen, "which")
    asked(screen, "Q2")
    screen.type(f"neither{CTRL_J}of them\r")
    screen.until("Result: The user answered: neither")
    assert [r["text"] for r in records(screen.home) if r["type"] == "answer"] == ["right", "neither\nof them"]
    quit(idle(screen))


def test_always_allows_the_next_without_asking(screen: Screen) -> None:
    send(screen, "write 2 files")
    asked(screen)
    send(screen, "a").until("✓ Q2 allowed without asking").until("✓ write_file (0.0 s): Created b +1 −0.")
    assert answers(screen) == [("Q1", "allowed", "user"), ("Q2", "allowed", "config")]
    quit(idle(screen))


def test_what_is_taken_back_to_edit_is_no_answer(screen: Screen) -> None:
    send(screen, "read and write notes.txt")
    asked(screen)
    screen.type(" spaced\r")  # an answer, since all is one at this prompt
    screen.until("✗ Q1 refused: spaced")
    idle(screen)
    screen.type("read and write notes.txt\rnot an answer")
    screen.until("❓ Q2").until(edits("not an answer"))
    screen.type("\r")
    asked(screen, "Q2")
    screen.type(UP)
    screen.until(lambda s: s.editor == "not an answer" and s.prompt == ">")
    screen.type("\x15")
    asked(screen, "Q2")
    send(screen, "n").until("✗ Q2 refused")
    quit(idle(screen))


def test_leaving_at_a_question_withdraws_it(screen: Screen) -> None:
    send(screen, "read and write notes.txt")
    asked(screen)
    quit(screen)
    assert answers(screen) == [("Q1", "withdrawn", "user")]
    [result] = [r for r in records(screen.home) if r["type"] == "result"]
    assert result["status"] == "interrupted"
    assert json.dumps(result)
