"""Completion of the command line, by the shells themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cli.main import main
from cli.options import COMMANDS, parser_of
from cli.subcommands.completion import script

CONFIG = """\
models: {default: little, definitions: {little: {provider: scripted, script: rules.yaml}}}
chains: {default: {model: little}}
"""
SESSION = '{"type":"session","seq":1,"time":1.0,"id":"%s","version":"1","model":"m","workspace":"%s"}\n'


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with a configuration, a session, and the command on the path."""
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "rules.yaml").write_text("rules: [{text: hello}]\n")
    kept = tmp_path / "state/chain/sessions"
    kept.mkdir(parents=True)
    (kept / "20260101-one.jsonl").write_text(SESSION % ("20260101-one", tmp_path))
    (tmp_path / "chain").write_text(f'#!/bin/sh\nexec {sys.executable} -m cli "$@"\n')
    (tmp_path / "chain").chmod(0o755)
    return tmp_path


def asked(home: Path, *command: str) -> list[str]:
    env = os.environ | {
        "PATH": f"{home}:{os.environ['PATH']}",
        "XDG_STATE_HOME": str(home / "state"),
        "HOME": str(home),
    }
    done = subprocess.run(command, cwd=home, env=env, capture_output=True, text=True, check=True)
    assert not done.stderr
    return done.stdout.split()


def bash(home: Path, *words: str) -> list[str]:
    """What bash offers for the last of the words."""
    (home / "script").write_text(script("bash"))
    line = " ".join(f"'{word}'" for word in words)
    program = f". ./script; COMP_WORDS=(chain {line}); COMP_CWORD={len(words)}; _chain; "
    program += 'printf "%s\\n" "${COMPREPLY[@]}"'
    return asked(home, "bash", "-c", program)


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("se",), ["send", "sessions"]),
        (("--no",), ["--no-stdin", "--no-session", "--no-color"]),
        (("--output-format", "j"), ["json"]),
        (("-p", "--model", "li"), ["little"]),
        (("-p", "--model", "=", "li"), ["little"]),  # as bash splits --model=li
        (("-p", "--model", "="), ["claude", "offline", "little"]),
        (("--state", "=", "x", "sessions", "e"), ["export"]),
        (("-r", ""), ["20260101-one"]),
        (("send", "--session", ""), ["20260101-one"]),
        (("worker", "--k"), ["--keep"]),
        (("-p", "--config", "ru"), ["rules.yaml"]),
        (("sessions", "show", "2026"), ["20260101-one"]),
        (("sessions", "e"), ["export"]),
        (("help", "ke"), ["keys"]),
        (("completion", ""), ["bash", "zsh", "fish"]),
    ],
)
def test_bash_offers_what_may_stand_there(words: tuple[str, ...], offered: list[str], home: Path) -> None:
    assert bash(home, *words) == offered


def test_bash_knows_every_command_and_option(home: Path) -> None:
    assert bash(home, "") == list(COMMANDS)
    assert set(bash(home, "-")) == {*parser_of("")._option_string_actions}


@pytest.mark.parametrize("line", ["chain sessions e", "chain --output-format j", "chain -r 2026"])
def test_fish_offers_the_same(line: str, home: Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("there is no fish here")
    (home / "script").write_text(script("fish"))
    found = asked(home, "fish", "--no-config", "-c", f"source script; complete --do-complete '{line}'")
    assert found[:1] == bash(home, *line.split()[1:])


def test_zsh_takes_the_script(home: Path) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("there is no zsh here")
    (home / "script").write_text(script("zsh"))
    assert asked(home, "zsh", "-fc", "source ./script; print $_comps[chain]") == ["_shtab_chain"]


def test_another_shell_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert "bash or zsh or fish" in capfd.readouterr().err
