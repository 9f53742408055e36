"""A configuration that was merely found, at a terminal: what is asked, and what each answer does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.screen import Screen
from support.terminal import CTRL_C, Start, edits, idle, quit, send

pytest_plugins = ["support.terminal"]

UNTRUSTED = """\
models: {default: mine, definitions: {mine: {provider: scripted, script: rules.yaml}}}
chains: {default: {model: mine}}
tools: {allow: [list_files]}
"""

ASKED = "[y/N] "


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder with a configuration from somebody."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "config.yaml").write_text(UNTRUSTED)
    (work / "rules.yaml").write_text('rules: [{text: "Mine: ${query}"}]')
    return work


def asked(screen: Screen) -> Screen:
    return screen.until(lambda s: s.everything.rstrip().endswith(ASKED.rstrip()))


def compact(screen: Screen) -> str:
    """All that was shown, wherever a row ended."""
    return "".join(screen.everything.split())


@pytest.mark.slow
def test_what_was_typed_before_the_question_is_no_answer_and_is_not_lost(start: Start, work: Path) -> None:
    # The terminal has all of it before the program begins.
    screen = start(config=False, under=["/bin/sh", "-c", 'read go; exec "$0" "$@"'])
    screen.type("go\rlist them\rand")
    asked(screen)
    assert screen.is_cooked
    assert 'line 3  tools.allow: ["list_files"]' in screen.everything

    send(screen, "yesterday").until(lambda s: s.everything.count(ASKED.rstrip()) == 2)
    send(screen, "y").until("Mine: list them").until(edits("and"))

    screen.type("\x15")
    quit(idle(screen))


@pytest.mark.slow
def test_a_yes_is_remembered_for_the_content(start: Start, work: Path) -> None:
    send(asked(start(config=False)), "y").until("idle")
    screen = idle(start(config=False))
    assert ASKED not in screen.everything
    quit(screen)

    (work / "config.yaml").write_text(UNTRUSTED.replace("list_files", "list_files, shell"))
    screen = asked(start(config=False))
    assert '["list_files", "shell"]' in screen.everything
    screen.type(CTRL_C)
    assert screen.wait() == 130
    assert screen.left_behind == []


@pytest.mark.slow
def test_a_no_goes_on_without_the_file_and_says_so(start: Start, work: Path) -> None:
    screen = asked(start(config=False))
    send(screen, "")
    idle(screen.until("is not used; the built-in defaults are").until("offline"))
    quit(screen)
    own = work.parent / "config/chain/config.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("models: {default: offline}\ninbox: {size: 3}\n")
    screen = asked(start(config=False))
    send(screen, "n")
    screen.until(lambda s: f"isnotused;{own}is." in compact(s))
    quit(idle(screen))


@pytest.mark.slow
def test_a_file_that_is_replaced_at_the_question_is_neither_used_nor_trusted(start: Start, work: Path) -> None:
    screen = asked(start(config=False))
    evil = UNTRUSTED.replace("list_files", "shell").replace("rules.yaml", "evil.yaml")
    (work / "evil.yaml").write_text("rules: [{text: Evil.}]")
    (work / "new.yaml").write_text(evil)
    os.replace(work / "new.yaml", work / "config.yaml")

    send(screen, "y")
    send(idle(screen), "hello").until("Mine: hello")
    quit(idle(screen))
    assert "Evil" not in screen.everything


def test_a_command_of_the_folder_is_offered_once_it_is_trusted(start: Start, tmp_path: Path) -> None:
    commands = tmp_path / "work/.chain/commands"
    commands.mkdir(parents=True)
    (commands / "greet.md").write_text("hello $1")
    screen = asked(start())
    assert "/greet" in screen.everything
    send(screen, "n")
    send(idle(screen), "/greet Ada").until("you have not trusted its present content")
    quit(screen)

    screen = asked(start())
    send(screen, "y")
    send(idle(screen), "/greet Ada").until("Done: hello Ada")
    quit(screen)

    screen = idle(start())
    assert ASKED not in screen.everything
    quit(screen)


def test_a_yes_that_cannot_be_stored_holds_up_nobody(start: Start, work: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    screen = asked(start(config=False, env={"XDG_STATE_HOME": str(tmp_path / "file")}))
    send(screen, "y").until(lambda s: "the trust cannot be stored" in s.flat)
    screen.until(lambda s: "this session is not stored" in s.flat)
    send(idle(screen), "hello").until("Mine: hello")
    send(screen, "/quit")
    assert screen.wait() == 0
