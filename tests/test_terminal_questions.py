"""Questions in a pseudo-terminal: what one key answers, titles and the bell."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.journals import records
from support.screen import Screen
from support.terminal import LIMITS, Start, configure, quit_program, send, wait_idle

pytest_plugins = ["support.terminal"]

RULES = r"""
rules:
  - when: {user: '^read and write', step: 1}
    tools: [{name: read_file, input: {path: notes.txt}}]
  - when: {user: '^read and write', tool: read_file}
    tools: [{name: write_file, input: {path: notes.txt, content: "new\n"}}]
  - when: {user: '^write 2 files', step: 1}
    tools: [{name: write_file, input: {path: a, content: "a\n"}}, {name: write_file, input: {path: b, content: "b\n"}}]
  - {when: {interruption: '(?P<said>.*)'}, text: "Noted: ${said}"}
  - {text: "Result: ${result}"}
"""

QUESTION_TITLE, PLAIN_TITLE = b"\x1b]2;chain: Q1 asks\x07", b"\x1b]2;chain: ~/work\x07"
SAVE_TITLE, RESTORE_TITLE = b"\x1b[22;2t", b"\x1b[23;2t"
BELL = b"\x07"  # which also ends a title


@pytest.fixture
def configured(start: Start, tmp_path: Path) -> Start:
    """Start the program with a model that changes files."""
    work = configure(tmp_path, RULES, "files, edit")
    (work / "notes.txt").write_text("old\n")
    return start


def wait_for_keys(screen: Screen, id: str = "Q1") -> Screen:
    """Wait until a single key answers this question."""
    return screen.until(lambda s: s.prompt == f"{id}?" and f"y, a or n answers {id} (main)" in s.toolbar)


def answers(screen: Screen) -> list[tuple[str, str, str]]:
    """Return the id, the decision and the author of each recorded answer."""
    found = [record for record in records(screen.home) if record["type"] == "answer"]
    return [(answer["id"], answer["decision"], answer["by"]) for answer in found]


def test_only_a_key_after_the_question_answers(configured: Start) -> None:
    screen = wait_idle(configured()).until(lambda s: PLAIN_TITLE in s.raw)
    screen.type("read and write\ry")  # the last key is in the editor before the question
    screen.until("❓ Q1 Allow write_file?").until(lambda s: QUESTION_TITLE + BELL in s.raw)
    screen.until(lambda s: "Q1 waits" in s.toolbar and "next safe point" in s.toolbar)
    assert (screen.prompt, screen.editor) == (">", "y")
    screen.type("es, but later\r")
    screen.until("📤 Interrupting: yes, but later").until(lambda s: PLAIN_TITLE in s.raw[s.raw.index(QUESTION_TITLE) :])
    wait_for_keys(screen).type("n")
    screen.until("notes.txt · refused").until("Noted: yes, but later")

    send(wait_idle(screen), "read and write")
    wait_for_keys(screen, "Q2")
    assert {"❓ Q2 Allow write_file?", "  notes.txt +1 −1", "  -old", "  +new"} <= {*screen.rows}
    assert "y allow once · a allow every write_file until you leave · n refuse" in screen.flat
    screen.type("y")
    screen.until("✓ write_file notes.txt · +1 −1 · Q2 allowed")

    quit_program(wait_idle(screen))
    assert (screen.home / "work/notes.txt").read_text() == "new\n"
    assert answers(screen) == [("Q1", "refused", "user"), ("Q2", "allowed", "user")]
    assert screen.raw.count(SAVE_TITLE) == screen.raw.count(RESTORE_TITLE) == 1
    assert screen.raw.index(SAVE_TITLE) < screen.raw.rindex(PLAIN_TITLE) < screen.raw.index(RESTORE_TITLE)


@pytest.mark.slow
def test_a_key_just_after_the_question_answers_nothing(configured: Start, tmp_path: Path) -> None:
    with (tmp_path / "test.yaml").open("a") as config:
        config.write("notify: off\n")
    # Without that limit, no question is on the screen for long enough to be answered by a key.
    screen = wait_idle(configured(disabled=[*LIMITS, "cli.screen.row_output.MOMENT_S"]))
    send(screen, "write 2 files")
    screen.until(lambda s: s.prompt == "Q1?").type("y")
    screen.until(lambda s: s.editor == "y")
    assert answers(screen) == []
    send(screen, "").until("Q1 allowed").until(lambda s: s.prompt == "Q2?")

    quit_program(screen)

    assert answers(screen) == [("Q1", "allowed", "user"), ("Q2", "withdrawn", "user")]
    assert screen.raw.count(BELL) == screen.raw.count(PLAIN_TITLE) == 1, "without notifications"


@pytest.mark.slow
def test_a_terminal_without_titles_only_rings(configured: Start) -> None:
    screen = wait_idle(configured(env={"TERM": "linux"}))
    wait_for_keys(send(screen, "read and write")).type("n")
    screen.until("· refused")
    send(wait_idle(screen), "/copy").until("no clipboard that chain can reach")
    quit_program(wait_idle(screen))
    assert b"\x1b]" not in screen.raw
    assert RESTORE_TITLE not in screen.raw
    assert BELL in screen.raw
