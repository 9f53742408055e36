"""Questions about files that were only found, in a pseudo-terminal: configuration, and commands of the folder."""

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

ASKED = "[y/N]"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder with a configuration that came with it."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "config.yaml").write_text(UNTRUSTED)
    (work / "rules.yaml").write_text('rules: [{text: "Mine: ${query}"}]')
    return work


def asked(screen: Screen) -> Screen:
    return screen.until(lambda s: s.everything.rstrip().endswith(ASKED))


@pytest.mark.slow
def test_text_typed_before_the_question_is_no_answer(start: Start, work: Path) -> None:
    # The terminal has all of it before the program begins.
    screen = start(config=False, under=["/bin/sh", "-c", 'read go; exec "$0" "$@"'])
    screen.type("go\rlist them\rand")
    assert asked(screen).is_cooked
    assert 'line 3  tools.allow: ["list_files"]' in screen.everything

    send(screen, "yesterday").until(lambda s: s.everything.count(ASKED) == 2)
    send(screen, "y").until("Mine: list them").until(edits("and"))

    screen.type("\x15")
    quit(idle(screen))


@pytest.mark.slow
def test_a_yes_is_stored_for_the_content(start: Start, work: Path) -> None:
    send(asked(start(config=False)), "y").until("idle")
    screen = idle(start(config=False))
    assert ASKED not in screen.everything

    (work / "config.yaml").write_text(UNTRUSTED.replace("list_files", "list_files, shell"))
    screen = asked(start(config=False))
    assert '["list_files", "shell"]' in screen.everything
    screen.type(CTRL_C)
    assert screen.wait() == 130
    assert screen.left_behind == []


@pytest.mark.slow
def test_a_no_uses_another_configuration(start: Start, work: Path) -> None:
    idle(send(asked(start(config=False)), "").until("is not used; the built-in defaults are").until("offline"))
    own = work.parent / "config/chain/config.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("models: {default: offline}\ninbox: {size: 3}\n")
    screen = send(asked(start(config=False)), "n").until(lambda s: s.times(f"is not used; {own} is."))
    quit(idle(screen))


@pytest.mark.slow
def test_a_file_replaced_meanwhile_is_not_used(start: Start, work: Path) -> None:
    screen = asked(start(config=False))
    (work / "evil.yaml").write_text("rules: [{text: Evil.}]")
    (work / "new.yaml").write_text(UNTRUSTED.replace("rules.yaml", "evil.yaml"))
    os.replace(work / "new.yaml", work / "config.yaml")

    send(screen, "y")
    send(idle(screen), "hello").until("Mine: hello")
    quit(idle(screen))
    assert "Evil" not in screen.everything


@pytest.mark.slow
def test_commands_of_the_folder_work_once_trusted(start: Start, tmp_path: Path) -> None:
    commands = tmp_path / "work/.chain/commands"
    commands.mkdir(parents=True)
    (commands / "greet.md").write_text("hello $1")
    for answer, says in (("n", "you have not trusted its present content"), ("y", "Done: hello Ada")):
        screen = asked(start())
        assert "/greet" in screen.everything
        send(screen, answer)
        send(idle(screen), "/greet Ada").until(says)
        quit(screen)
    assert ASKED not in idle(start()).everything


def test_a_yes_that_cannot_be_stored_counts_once(start: Start, work: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    screen = asked(start(config=False, env={"XDG_STATE_HOME": str(tmp_path / "file")}))
    send(screen, "y").until(lambda s: "the trust cannot be stored" in s.flat)
    screen.until(lambda s: "this session is not stored" in s.flat)
    send(idle(screen), "hello").until("Mine: hello")
