"""`chain explain`: what a person reads of a line, and which words of the command line make the line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from cli.main import main

CONFIG = """\
chains:
  default: {model: offline, interruption_prompt: handler.yaml}
  bare: {model: offline, interruption_prompt: null}
  broken: {model: offline, interruption_prompt: gone.yaml}
"""
HANDLER = """\
config: {effort: low}
rules:
  - {match: '^deploy', action: stop}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a configuration, where the command is run."""
    (tmp_path / "mine.yaml").write_text(CONFIG)
    (tmp_path / "handler.yaml").write_text(HANDLER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("CHAIN_CONFIG", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def explained(capfd: pytest.CaptureFixture[str], words: Sequence[str], chain: str = "default") -> dict[str, str]:
    """The rows of an explanation by their heads."""
    assert main(["explain", "--config", "mine.yaml", "--chain", chain, *words]) == 0
    rows = capfd.readouterr().out.splitlines()
    return {head: told for head, _, told in (row.partition(": ") for row in rows)}


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["stop using grep"], "stop using grep"),
        (["stop", "using", "grep"], "stop using grep"),
        ([" stop"], " stop"),
        (["--", "-x", "--model"], "-x --model"),
        ([""], "(blank)"),
        (["x" * 100_001], "x" * 200 + "..."),
        (["a\nb\x1b[2J"], "a b"),
    ],
)
def test_the_words_make_the_line(words: list[str], line: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert explained(capfd, words)["line"] == line


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("line", "kind", "active", "idle"),
    [
        ("use the other file", "redirect", "next safe point", "starts a run"),
        ("!hurry", "urgent redirect", "have not started", "query: hurry"),
        ("!!hurry", "now redirect", "at once", "query: hurry"),
        ("!todo: add x", "urgent todo", "changes the plan", "changes the plan at once"),
        ("stop", "stop", "ends the run", "nothing"),
        ("deploy it", "stop, by a rule", "ends the run", "query: deploy it"),
        ("skip docs", "guidance", "skip_source: docs", "query: skip docs"),
        ("context: it is late", "context", "information", "[USER ADDED] it is late"),
        ("why?", "question", "next safe point", "query: why?"),
        ("status", "question", "next safe point", "without the model"),
        ("then: sum up", "follow-up", "next run: sum up", "query: sum up"),
        ("/queue", "local command", "never reads", "the same"),
        (" stop", "verbatim", "leading space", "query: stop"),
        ("todo: add", "todo, but it would be refused", "todo: add <task>", "the same"),
        ("", "blank", "nothing", "nothing"),
    ],
)
def test_each_kind_says_what_it_does(
    line: str, kind: str, active: str, idle: str, capfd: pytest.CaptureFixture[str]
) -> None:
    told = explained(capfd, [line])
    assert told["kind"].startswith(kind)
    assert active in told["while a run is active"]
    assert idle in told["with no run active"]


def test_a_line_with_an_address_is_explained_without_it(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rows = explained(capfd, ["/to", "explore-1", "!use B"])
    assert rows["line"] == "/to explore-1 !use B"
    assert rows["kind"] == "urgent redirect"
    assert rows["to"].startswith("explore-1,")
    assert explained(capfd, ["/to", "explore-1"])["kind"] == "local command"


def test_the_rule_is_named_with_its_place(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    told = explained(capfd, ["deploy it"])
    assert told["rule"] == f"1 of 1 in {place / 'handler.yaml'}:3, action stop: ^deploy"
    assert explained(capfd, ["hello"])["rule"] == f"none of 1 rule in {place / 'handler.yaml'} matches"
    assert "built-in" in explained(capfd, ["deploy it"], chain="bare")["rule"]


def test_a_broken_handler_prompt_is_a_problem_and_no_failure(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    told = explained(capfd, ["deploy it"], chain="broken")
    assert told["problem"].startswith(f"{place / 'gone.yaml'}: ")
    assert told["kind"] == "redirect"


@pytest.mark.usefixtures("place")
def test_what_the_model_would_be_told_is_shown_as_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--config", "mine.yaml", "why?"]) == 0
    shown = capfd.readouterr().out
    assert "\n  USER INTERRUPTION: why?\n" in shown
    assert "\nSettings of that call: effort low\n" in shown
    assert "\n  Your reply was shown to the user." in shown


def test_a_configuration_that_was_merely_found_is_not_used(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (place / "config.yaml").write_text("chains: {default: {interruption_prompt: /etc/hostname}}\n")
    assert main(["explain", "hello"]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert "chains.default.interruption_prompt" in err
    assert "--config" in err


@pytest.mark.usefixtures("place")
def test_without_a_line_it_says_how_to_write_one(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 2
    assert "chain explain needs a line" in capfd.readouterr().err


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("line", "head", "told"),
    [
        ("exit", "at a prompt, instead", "/quit"),
        ("?", "at a prompt, instead", "/help"),
        ("!hurry", "at a prompt with no run active, instead", "stays in the editor"),
    ],
)
def test_what_a_prompt_makes_of_a_line_alone_is_said(
    line: str, head: str, told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert told in explained(capfd, [line])[head]


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("line", [" exit", "exit it", "!stop", "use B"])
def test_of_most_lines_a_prompt_makes_what_all_others_make(line: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert not [head for head in explained(capfd, [line]) if head.startswith("at a prompt")]
