"""The README, compared with the program: its commands, examples, tables and links."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
from support.documents import code_block, run_at_home, table_rows, text_of
from support.project import ROOT
from support.rows import without_varying_parts
from support.screen import Screen

from chain.lines.parse import STOP_PHRASES, parse_line
from cli.options import COMMANDS, HELP
from cli.subcommands.help import TOPICS

README = text_of("README.md")
NOT_OURS = {"--no-deps"}  # an option of pip


def test_the_main_job_delivers_the_line(tmp_path: Path) -> None:
    command = code_block("README.md", "main job").split(".venv/bin/chain ")[1]
    words = [quoted or plain for quoted, plain in re.findall(r"'([^']*)'|(\S+)", command)]
    done = run_at_home("-m", "cli", *words, cwd=ROOT, home=tmp_path)
    assert done.returncode == 0
    assert "[🔔 INTERRUPTION at iteration 2] todo: add check the licence ✓ Message injected (after " in done.stderr
    assert "[ ] 1. check the licence" in done.stderr
    assert re.search(r"total of \d+", done.stdout)


def test_the_ci_runs_the_readmes_own_command() -> None:
    assert "pytest" in code_block("README.md", "tests")
    assert "<!-- tests -->" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_transcript_is_what_a_terminal_shows(tmp_path: Path) -> None:
    command, _, transcript = code_block("README.md", "transcript").partition("\n")
    argv = shlex.split(command.removeprefix("$ chain "))
    with Screen([sys.executable, "-m", "cli", *argv], home=tmp_path, cwd=ROOT, rows=50, columns=120) as screen:
        screen.until("✓ done")
        screen.type("/quit\r")
        assert screen.wait() == 0
        shown = without_varying_parts(screen.everything)
    expected = without_varying_parts(transcript.rstrip())
    assert len(expected) == 5, "the rows of the transcript without those that vary"
    remaining = iter(shown)  # each ``in`` continues after the previous row, so the order is checked too
    assert all(row in remaining for row in expected), "\n".join(shown)


@pytest.mark.slow
def test_the_library_example_works(tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(code_block("library", "whole program"))
    done = run_at_home("example.py", cwd=tmp_path, home=tmp_path)
    assert (done.returncode, done.stdout) == (0, code_block("library", "whole program output")), done.stderr


@pytest.mark.slow
def test_the_recorded_session_replays_the_same(tmp_path: Path) -> None:
    (command,) = re.findall(r"`chain (replay .*?)`", README)
    argv = shlex.split(command)
    done = run_at_home("-m", "cli", *argv, cwd=ROOT, home=tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_the_table_shows_every_kind_of_line() -> None:
    examples = [re.findall(r"`(.+?)`", line)[0] for line, *_ in table_rows("README.md", "line")]
    lines = [parse_line(text) for text in examples]
    assert [(line.kind, line.urgency) for line in lines] == [
        ("redirect", "next"),
        ("redirect", "urgent"),
        ("redirect", "now"),
        ("stop", "next"),
        ("todo", "next"),
        ("question", "next"),
        ("follow-up", "next"),
    ]
    _, _, _, stop, *_ = examples
    assert stop in STOP_PHRASES


def test_every_name_in_the_readme_exists() -> None:
    commands = {*re.findall(r"`(?:\.venv/bin/)?chain ([a-z]+)", README)}
    assert {"check", "demo", "explain", "help", "init", "replay", "sessions"} <= commands <= {*COMMANDS, "help"}
    for option in sorted(set(re.findall(r"--[a-z][a-z-]+", README)) - NOT_OURS):
        assert option in HELP, option


def test_the_links_lead_to_files_and_every_topic() -> None:
    for path in set(re.findall(r"\]\(([^)#]+)\)", README)):
        assert (ROOT / path).is_file(), path
    assert set(re.findall(r"\(cli/help/([a-z-]+)\.md\)", README)) == set(TOPICS)
