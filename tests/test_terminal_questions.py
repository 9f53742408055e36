"""Questions at a real terminal: what is shown, what answers, and what was begun before."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.examples import some
from support.journals import records
from support.screen import Screen
from support.terminal import CTRL_J, ESC, PASTE, UP, Start, edits, idle, quit, send

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
        "❓ Q1 Allow edit_file?",
        "  notes.txt +2 −1",
        "  @@ -1,3 +1,4 @@",
        "  -beta",
        "  +two",
        "  +three",
    ):
        assert row in screen.rows
    how = "y allow once · a allow every edit_file until you leave · n refuse · or say why not (a space first)"
    assert how in screen.flat
    assert "Q1 waits" in screen.toolbar
    assert notes(screen) == "alpha\nbeta\ngamma\n"
    send(screen, "y").until("✓ edit_file notes.txt · +2 −1 · Q1 allowed").until("Result: Changed notes.txt +2 −1.")
    assert notes(screen) == "alpha\ntwo\nthree\ngamma\n"
    quit(idle(screen))


def test_a_refusal_says_why_and_changes_nothing(screen: Screen) -> None:
    send(screen, "read and write notes.txt")
    asked(screen)
    send(screen, "keep the old ones").until(" · refused: keep the old ones")
    screen.until("Result: The user refused this: keep the old ones")
    assert notes(screen) == "alpha\nbeta\ngamma\n"
    quit(idle(screen))


@pytest.mark.slow
@pytest.mark.spec("8", "a terminal whose editor is up")
def test_what_was_begun_before_the_question_never_answers_it(screen: Screen, tmp_path: Path) -> None:
    # Typed behind the query without an Enter, so it is in the editor before anything is asked.
    screen.type("read and write notes.txt\ry")
    screen.until("❓ Q1 Allow write_file?")
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


@pytest.mark.sampled(every=3)
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
    send(screen, "!and").until("↩ Q1 withdrawn").until("Noted: and")
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
    send(screen, "a").until('✓ write_file b · +1 −0 · allowed: you said "always" before')
    assert answers(screen) == [("Q1", "allowed", "user"), ("Q2", "allowed", "config")]
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


def test_leaving_at_a_question_withdraws_it(screen: Screen) -> None:
    send(screen, "read and write notes.txt")
    asked(screen)
    quit(screen)
    assert answers(screen) == [("Q1", "withdrawn", "user")]
    [result] = [r for r in records(screen.home) if r["type"] == "result"]
    assert result["status"] == "interrupted"
    assert json.dumps(result)


def pressable(screen: Screen, id: str = "Q1") -> Screen:
    """Wait until one key answers this question."""
    return screen.until(lambda s: s.prompt == f"{id}?" and f"y, a or n answers {id} (main)" in s.toolbar)


def test_one_key_answers_in_an_empty_editor(screen: Screen) -> None:
    for n, (key, became) in enumerate((("n", "notes.txt · refused"), ("y", "Q2 allowed")), 1):
        send(screen, "read and write notes.txt")
        pressable(screen, f"Q{n}").type(key)
        screen.until(became)
        idle(screen)
    send(screen, "write 2 files")
    pressable(screen, "Q3").type("a")
    screen.until("Q3 allowed from now on").until('allowed: you said "always" before')
    idle(screen)
    decided = [decision for _, decision, _ in answers(screen)]
    assert decided == ["refused", "allowed", "allowed", "allowed"]
    quit(screen)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("keys", some([" no", PASTE.format("n"), "yn", "xy", "next time"], every=3))
def test_what_is_no_single_key_is_a_reason_and_waits_for_enter(screen: Screen, keys: str) -> None:
    send(screen, "read and write notes.txt")
    pressable(screen).type(keys)
    screen.until(lambda s: s.editor == keys.removeprefix("\x1b[200~").removesuffix("\x1b[201~"))
    assert answers(screen) == []
    screen.type("ot now\r")
    screen.until("notes.txt · refused: ").until(lambda s: answers(s) == [("Q1", "refused", "user")])
    quit(idle(screen))


def test_a_key_that_came_with_the_question_answers_nothing(screen: Screen) -> None:
    send(screen, "write 2 files")
    pressable(screen).type("y")
    # Q2 opens in the moment in which a second key may be on its way.
    screen.until(lambda s: s.prompt == "Q2?").type("y")
    screen.until(lambda s: s.editor == "y" or "Q2 allowed" in s.everything)
    if screen.editor == "y":  # on a slow machine the moment may have passed
        assert answers(screen) == [("Q1", "allowed", "user")]
        screen.type("\x15")
        pressable(screen, "Q2").type("n")
        screen.until("· refused")
    quit(idle(screen))


@pytest.mark.slow
def test_a_digit_or_a_slip_is_asked_back(screen: Screen) -> None:
    send(screen, "read and write notes.txt")
    pressable(screen)
    for n, slip in enumerate(("1", "x", "ok"), 1):
        send(screen, slip).until(lambda s, n=n: s.everything.count("y, a or n; or say why not in a few words") == n)
        pressable(screen)
        assert screen.editor == ""
    assert answers(screen) == []
    screen.type("y")
    screen.until("Q1 allowed").until("Result: Changed notes.txt")
    quit(idle(screen))


TITLE, PLAIN, KEPT, BROUGHT_BACK = b"\x1b]2;chain: Q1 asks\x07", b"\x1b]2;chain\x07", b"\x1b[22;2t", b"\x1b[23;2t"


def test_a_question_rings_and_is_in_the_title_until_somebody_types(screen: Screen) -> None:
    assert b"\x1b]" not in screen.raw
    asked(send(screen, "which")).until(lambda s: TITLE + b"\x07" in s.raw)
    screen.type("1")
    screen.until(lambda s: s.raw.endswith(PLAIN) or PLAIN in s.raw[s.raw.index(TITLE) :])
    send(screen, "").until("answered: left")
    quit(idle(screen))
    after = bytes(screen.raw[screen.raw.index(KEPT) :])
    assert after.count(KEPT) == after.count(BROUGHT_BACK) == 1
    assert after.index(PLAIN) < after.index(BROUGHT_BACK)


@pytest.mark.slow
@pytest.mark.parametrize(("term", "notify", "rings"), [("linux", "bell", True), ("xterm", "off", False)])
def test_a_terminal_without_titles_only_rings_and_with_notify_off_nothing_does(
    term: str, notify: str, rings: bool, start: Start, screen: Screen, tmp_path: Path
) -> None:
    quit(screen)
    config = tmp_path / "test.yaml"
    config.write_text(f"{config.read_text()}notify: {notify}\n")
    other = idle(start(env={"TERM": term}))
    asked(send(other, "which"))
    send(other, "1").until("answered: left")
    quit(idle(other))
    assert b"\x1b]" not in other.raw
    assert BROUGHT_BACK not in other.raw
    assert (b"\x07" in other.raw) == rings
