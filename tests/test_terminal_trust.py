"""A configuration that was merely found, at a terminal: what is asked, and what each answer does."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from support.examples import one, some
from support.journals import journals
from support.screen import Screen
from support.terminal import CTRL_C, CTRL_D, Start, edits, idle, quit, send

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


def test_a_yes_is_remembered_for_the_content(start: Start, work: Path) -> None:
    screen = asked(start(config=False))
    assert 'line 3  tools.allow: ["list_files"]' in screen.everything
    send(screen, "y")
    send(idle(screen), "hello").until("Mine: hello")
    quit(idle(screen))

    screen = idle(start(config=False))
    assert ASKED not in screen.everything
    quit(idle(screen))

    (work / "config.yaml").write_text(UNTRUSTED.replace("list_files", "list_files, shell"))
    screen = asked(start(config=False))
    assert '["list_files", "shell"]' in screen.everything
    screen.type(CTRL_C)
    assert screen.wait() == 130


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("answer", some(["n\r", "No\r", "\r", CTRL_D, f"y{CTRL_D}{CTRL_D}"], every=3))
def test_a_no_goes_on_without_the_file_and_says_so(start: Start, work: Path, answer: str) -> None:
    screen = asked(start(config=False))
    screen.type(answer)
    idle(screen.until("is not used; the built-in defaults hold").until("offline"))
    send(screen, "/debug").until("configuration   the built-in one")
    quit(idle(screen))
    asked(start(config=False))


def test_the_users_own_configuration_holds_after_a_no(start: Start, work: Path) -> None:
    own = work.parent / "config/chain/config.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("models: {default: offline}\ninbox: {size: 3}\n")
    screen = asked(start(config=False))
    send(screen, "n")
    screen.until(lambda s: f"isnotused;{own}holds" in compact(s))
    quit(idle(screen))


def test_ctrl_c_leaves_with_the_terminal_as_it_was(start: Start, work: Path) -> None:
    screen = asked(start(config=False))
    assert screen.is_cooked
    screen.type(CTRL_C)
    assert screen.wait() == 130
    assert screen.left_behind == []
    assert journals(work.parent) == {}

    screen = asked(start(config=False))
    screen.kill(signal.SIGTERM)
    screen.wait()
    assert screen.is_cooked


def test_anything_else_is_asked_again(start: Start, work: Path) -> None:
    screen = asked(start(config=False))
    for n, text in enumerate(["maybe", "yesterday", "list the files"], 2):
        send(screen, text).until(lambda s, n=n: s.everything.count(ASKED.rstrip()) == n)
    send(screen, "yes")
    send(idle(screen), "hello").until("Mine: hello")
    quit(idle(screen))


@pytest.mark.sampled
@pytest.mark.parametrize("typed", one(["y\ry\r", "list them\rand", "y"]))
def test_what_was_typed_before_the_question_is_no_answer_and_is_not_lost(start: Start, work: Path, typed: str) -> None:
    # The terminal has all of it before the program begins.
    screen = start(config=False, under=["/bin/sh", "-c", 'read go; exec "$0" "$@"'])
    screen.type(f"go\r{typed}")

    asked(screen)
    send(screen, "y")

    lines = typed.split("\r")
    for line in lines[:-1]:
        screen.until(f"Mine: {line}")
    screen.until(edits(lines[-1]))
    if lines[-1]:
        screen.type("\x15")
    quit(idle(screen))


def test_a_file_that_is_replaced_at_the_question_is_neither_used_nor_trusted(start: Start, work: Path) -> None:
    screen = asked(start(config=False))
    evil = UNTRUSTED.replace("list_files", "shell").replace("rules.yaml", "evil.yaml")
    (work / "evil.yaml").write_text("rules: [{text: Evil.}]")
    (work / "new.yaml").write_text(evil)
    os.replace(work / "new.yaml", work / "config.yaml")

    send(screen, "y")
    send(idle(screen), "hello").until("Mine: hello")
    quit(idle(screen))

    screen = asked(start(config=False))
    assert '["shell"]' in screen.everything


def test_a_long_file_is_shown_whole(start: Start, work: Path) -> None:
    headers = "".join(f'        X-{n:03}: "{"v" * 90}{n:03}"\n' for n in range(60))
    text = "models:\n  definitions:\n    claude:\n      extra_headers:\n" + headers + "chains: {}\n"
    (work / "config.yaml").write_text(text)
    screen = asked(start(config=False, columns=60))
    whole = screen.everything.replace("\n      ", "")
    for n in range(60):
        assert f"line {n + 5}  models.definitions.claude.extra_headers.X-{n:03}:{'v' * 90}{n:03}" in whole


def test_a_terminal_of_rows_asks_too(start: Start, work: Path) -> None:
    screen = asked(start(config=False, env={"TERM": "dumb"}))
    send(screen, "y")
    send(screen.until("/help"), "hello").until("Mine: hello")
    send(screen, "/quit")
    assert screen.wait() == 0
    assert b"\x1b" not in screen.raw


def test_a_file_without_chains_that_was_meant_to_be_used_is_told(start: Start, work: Path) -> None:
    (work / "config.yaml").write_text("# mine\nmodels: {default: offline}\n")
    screen = start(config=False).until(lambda s: "config.yaml:2:isnotused" in compact(s))
    assert ASKED not in screen.everything
    quit(idle(screen))
