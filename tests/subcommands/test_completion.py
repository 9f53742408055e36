"""``chain completion``: the scripts, run by the shells themselves."""

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
    sessions = tmp_path / "state/chain/sessions"
    sessions.mkdir(parents=True)
    (sessions / "20260101-one.jsonl").write_text(SESSION % ("20260101-one", tmp_path))
    (tmp_path / "chain").write_text(f'#!/bin/sh\nexec {sys.executable} -m cli "$@"\n')
    (tmp_path / "chain").chmod(0o755)
    return tmp_path


def output_of(home: Path, *command: str) -> list[str]:
    path = f"{home}:{os.environ['PATH']}"
    env = os.environ | {"PATH": path, "XDG_STATE_HOME": str(home / "state"), "HOME": str(home)}
    done = subprocess.run(command, cwd=home, env=env, capture_output=True, text=True, check=True)
    assert not done.stderr
    return done.stdout.split()


def bash(home: Path, *words: str) -> list[str]:
    """Return what bash completes the last word to."""
    (home / "script").write_text(script("bash"))
    line = " ".join(f"'{word}'" for word in words)
    program = f". ./script; COMP_WORDS=(chain {line}); COMP_CWORD={len(words)}; _chain; "
    program += 'printf "%s\\n" "${COMPREPLY[@]}"'
    return output_of(home, "bash", "-c", program)


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(
    ("words", "completions"),
    [
        (("se",), ["send", "sessions"]),
        (("--output-format", "j"), ["json"]),
        (("-p", "--model", "li"), ["little"]),
        (("-p", "--model", "=", "li"), ["little"]),  # as bash splits --model=li
        (("-p", "--model", "="), ["claude", "offline", "little"]),
        (("--state", "=", "x", "sessions", "e"), ["export"]),
        (("-r", ""), ["20260101-one"]),
        (("-p", "--config", "ru"), ["rules.yaml"]),
        (("sessions", "show", "2026"), ["20260101-one"]),
        (("help", "ke"), ["keys"]),
    ],
)
def test_bash_completes_a_word(words: tuple[str, ...], completions: list[str], home: Path) -> None:
    assert bash(home, *words) == completions


def test_bash_completes_every_command_and_option(home: Path) -> None:
    assert bash(home, "") == list(COMMANDS)
    assert set(bash(home, "-")) == {*parser_of("")._option_string_actions}


@pytest.mark.parametrize("line", ["chain sessions e", "chain --output-format j", "chain -r 2026"])
def test_fish_completes_the_same(line: str, home: Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    (home / "script").write_text(script("fish"))
    word, *_ = output_of(home, "fish", "--no-config", "-c", f"source script; complete --do-complete '{line}'")
    _, *words = line.split()
    assert [word] == bash(home, *words)


def test_zsh_accepts_the_script(home: Path) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    (home / "script").write_text(script("zsh"))
    assert output_of(home, "zsh", "-fc", "source ./script; print $_comps[chain]") == ["_shtab_chain"]


@pytest.mark.parametrize(("words", "message_part"), [(["tcsh"], "bash or zsh or fish"), ([], "bash, zsh or fish")])
def test_a_shell_must_be_supported(words: list[str], message_part: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", *words]) == 2
    assert message_part in capfd.readouterr().err
