"""Questions in a pseudo-terminal whether to trust the folder's configuration and commands."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.keys import CTRL_C, CTRL_U
from support.screen import Screen
from support.terminal import Start, editor_has, quit_program, send, wait_idle

pytest_plugins = ["support.terminal"]

UNTRUSTED = """\
models: {default: mine, definitions: {mine: {provider: scripted, script: rules.yaml}}}
chains: {default: {model: mine}}
tools: {allow: [list_files]}
"""

ANSWERS = "[y/N]"
"""The end of a question."""


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A workspace with an untrusted configuration."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "config.yaml").write_text(UNTRUSTED)
    (work / "rules.yaml").write_text('rules: [{text: "Mine: ${query}"}]')
    return work


def wait_for_question(screen: Screen) -> Screen:
    return screen.until(lambda s: s.everything.rstrip().endswith(ANSWERS))


@pytest.mark.slow
def test_text_typed_before_the_question_is_no_answer(start: Start, work: Path) -> None:
    # The shell starts the program when the whole text was typed.
    screen = start(config=False, launcher=["/bin/sh", "-c", 'read go; exec "$0" "$@"'])
    screen.type("go\rlist them\rand")
    assert wait_for_question(screen).is_cooked
    assert 'line 3  tools.allow: ["list_files"]' in screen.everything

    send(screen, "yesterday").until(lambda s: s.everything.count(ANSWERS) == 2)
    send(screen, "y").until("Mine: list them").until(editor_has("and"))

    screen.type(CTRL_U)
    quit_program(wait_idle(screen))


@pytest.mark.slow
def test_a_yes_is_stored_for_the_content(start: Start, work: Path) -> None:
    send(wait_for_question(start(config=False)), "y").until("idle")
    screen = wait_idle(start(config=False))
    assert ANSWERS not in screen.everything

    (work / "config.yaml").write_text(UNTRUSTED.replace("list_files", "list_files, shell"))
    screen = wait_for_question(start(config=False))
    assert '["list_files", "shell"]' in screen.everything
    screen.type(CTRL_C)
    assert screen.wait() == 130
    assert screen.left_behind == []


@pytest.mark.slow
def test_a_no_uses_another_configuration(start: Start, work: Path) -> None:
    screen = send(wait_for_question(start(config=False)), "").until("is not used; the built-in defaults are")
    wait_idle(screen.until("offline"))
    own_file = work.parent / "config/chain/config.yaml"
    own_file.parent.mkdir(parents=True)
    own_file.write_text("models: {default: offline}\ninbox: {size: 3}\n")
    screen = send(wait_for_question(start(config=False)), "n").until(lambda s: s.times(f"is not used; {own_file} is."))
    quit_program(wait_idle(screen))


@pytest.mark.slow
def test_a_file_replaced_during_the_question_is_ignored(start: Start, work: Path) -> None:
    screen = wait_for_question(start(config=False))
    (work / "evil.yaml").write_text("rules: [{text: Evil.}]")
    (work / "new.yaml").write_text(UNTRUSTED.replace("rules.yaml", "evil.yaml"))
    os.replace(work / "new.yaml", work / "config.yaml")

    send(screen, "y")
    send(wait_idle(screen), "hello").until("Mine: hello")
    quit_program(wait_idle(screen))
    assert "Evil" not in screen.everything


@pytest.mark.slow
def test_commands_of_the_folder_work_once_trusted(start: Start, tmp_path: Path) -> None:
    commands = tmp_path / "work/.chain/commands"
    commands.mkdir(parents=True)
    (commands / "greet.md").write_text("hello $1")
    for answer, row in (("n", "you have not trusted its present content"), ("y", "Done: hello Ada")):
        screen = wait_for_question(start())
        assert "/greet" in screen.everything
        send(screen, answer)
        send(wait_idle(screen), "/greet Ada").until(row)
        quit_program(screen)
    assert ANSWERS not in wait_idle(start()).everything


def test_a_yes_that_cannot_be_stored_counts_once(start: Start, work: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    screen = wait_for_question(start(config=False, env={"XDG_STATE_HOME": str(tmp_path / "file")}))
    send(screen, "y").until(lambda s: "the trust cannot be stored" in s.flat)
    screen.until(lambda s: "this session is not stored" in s.flat)
    send(wait_idle(screen), "hello").until("Mine: hello")
