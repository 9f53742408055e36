"""Questions in a pseudo-terminal: what one key answers, titles and the bell."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.journals import records
from support.screen import Screen
from support.terminal import LIMITS, Start, configure, idle, quit, send

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

TITLE, PLAIN = b"\x1b]2;chain: Q1 asks\x07", b"\x1b]2;chain: ~/work\x07"
SAVED, RESTORED = b"\x1b[22;2t", b"\x1b[23;2t"


@pytest.fixture
def configured(start: Start, tmp_path: Path) -> Start:
    """Start the program with a model that changes files."""
    work = configure(tmp_path, RULES, "files, edit")
    (work / "notes.txt").write_text("old\n")
    return start


def pressable(screen: Screen, id: str = "Q1") -> Screen:
    """Wait until one key answers this question."""
    return screen.until(lambda s: s.prompt == f"{id}?" and f"y, a or n answers {id} (main)" in s.toolbar)


def answers(screen: Screen) -> list[tuple[str, str, str]]:
    return [(r["id"], r["decision"], r["by"]) for r in records(screen.home) if r["type"] == "answer"]


def test_one_key_answers_but_no_text_begun_before(configured: Start) -> None:
    screen = idle(configured()).until(lambda s: PLAIN in s.raw)
    screen.type("read and write\ry")  # the last key is in the editor before the question
    screen.until("❓ Q1 Allow write_file?").until(lambda s: TITLE + b"\x07" in s.raw)
    screen.until(lambda s: "Q1 waits" in s.toolbar and "next safe point" in s.toolbar)
    assert (screen.prompt, screen.editor) == (">", "y")
    screen.type("es, but later\r")
    screen.until("📤 Interrupting: yes, but later").until(lambda s: PLAIN in s.raw[s.raw.index(TITLE) :])
    pressable(screen).type("n")
    screen.until("notes.txt · refused").until("Noted: yes, but later")

    send(idle(screen), "read and write")
    pressable(screen, "Q2")
    assert {"❓ Q2 Allow write_file?", "  notes.txt +1 −1", "  -old", "  +new"} <= {*screen.rows}
    assert "y allow once · a allow every write_file until you leave · n refuse" in screen.flat
    screen.type("y")
    screen.until("✓ write_file notes.txt · +1 −1 · Q2 allowed")

    quit(idle(screen))
    assert (screen.home / "work/notes.txt").read_text() == "new\n"
    assert answers(screen) == [("Q1", "refused", "user"), ("Q2", "allowed", "user")]
    after = bytes(screen.raw[screen.raw.index(SAVED) :])
    assert after.count(SAVED) == after.count(RESTORED) == 1
    assert after.rindex(PLAIN) < after.index(RESTORED)


@pytest.mark.slow
def test_a_key_just_after_the_question_answers_nothing(configured: Start, tmp_path: Path) -> None:
    with (tmp_path / "test.yaml").open("a") as config:
        config.write("notify: off\n")
    screen = idle(configured(never=[*LIMITS, "cli.screen.row_output.MOMENT_S"]))
    send(screen, "write 2 files")
    screen.until(lambda s: s.prompt == "Q1?").type("y")
    screen.until(lambda s: s.editor == "y")
    assert answers(screen) == []
    send(screen, "").until("Q1 allowed").until(lambda s: s.prompt == "Q2?")

    quit(screen)

    assert answers(screen) == [("Q1", "allowed", "user"), ("Q2", "withdrawn", "user")]
    assert screen.raw.count(b"\x07") == screen.raw.count(PLAIN) == 1, "without notifications"


@pytest.mark.slow
def test_a_terminal_without_titles_only_rings(configured: Start) -> None:
    screen = idle(configured(env={"TERM": "linux"}))
    pressable(send(screen, "read and write")).type("n")
    screen.until("· refused")
    send(idle(screen), "/copy").until("no clipboard that chain can reach")
    quit(idle(screen))
    assert b"\x1b]" not in screen.raw
    assert RESTORED not in screen.raw
    assert b"\x07" in screen.raw
