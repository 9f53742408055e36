"""``chain explain``: the words that make the line, and its explanation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from chain.lines.parse import MAX_LINE
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
ACTIVE, IDLE = "while a run is active", "with no run active"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a configuration."""
    (tmp_path / "mine.yaml").write_text(CONFIG)
    (tmp_path / "handler.yaml").write_text(HANDLER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("CHAIN_CONFIG", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def explanation(capfd: pytest.CaptureFixture[str], words: Sequence[str], chain: str = "default") -> dict[str, str]:
    """Return the rows of an explanation by their heads."""
    assert main(["explain", "--config", "mine.yaml", "--chain", chain, *words]) == 0
    rows = capfd.readouterr().out.splitlines()
    return {head: rest for head, _, rest in (row.partition(": ") for row in rows)}


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["stop using grep"], "stop using grep"),
        (["stop", "using", "grep"], "stop using grep"),
        ([" stop"], " stop"),
        (["--", "-x", "--model"], "-x --model"),
        ([""], "(blank)"),
        (["x" * (MAX_LINE + 1)], "x" * 200 + "..."),  # a refused line is shown in part
        (["a\nb"], "a b"),
        (["/to", "explore-1", "!use B"], "/to explore-1 !use B"),
    ],
)
def test_the_words_make_the_line(words: list[str], line: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert explanation(capfd, words)["line"] == line


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
def test_each_kind_has_its_effects(
    line: str, kind: str, active: str, idle: str, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = explanation(capfd, [line])
    assert rows["kind"].startswith(kind)
    assert active in rows[ACTIVE]
    assert idle in rows[IDLE]


def prompt_rows(capfd: pytest.CaptureFixture[str], line: str) -> dict[str, str]:
    """Return the rows about what a line does only when it is typed at a prompt."""
    return {head: text for head, text in explanation(capfd, [line]).items() if head.startswith("at a prompt")}


@pytest.mark.parametrize(
    ("line", "head", "words"),
    [
        ("exit", "at a prompt, instead", "/quit"),
        ("?", "at a prompt, instead", "/help"),
        ("!hurry", "at a prompt with no run active, instead", "stays in the editor"),
    ],
)
def test_a_prompts_own_meaning_is_shown(line: str, head: str, words: str, capfd: pytest.CaptureFixture[str]) -> None:
    rows = prompt_rows(capfd, line)
    assert [*rows] == [head]
    assert words in rows[head]


@pytest.mark.parametrize("line", [" exit", "exit it", "!stop", "use B"])
def test_other_lines_have_no_meaning_for_prompts(line: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert prompt_rows(capfd, line) == {}


def test_an_address_is_shown_apart(capfd: pytest.CaptureFixture[str]) -> None:
    rows = explanation(capfd, ["/to", "explore-1", "!use B"])
    assert rows["kind"] == "urgent redirect"
    assert rows["to"].startswith("explore-1,")
    assert explanation(capfd, ["/to", "explore-1"])["kind"] == "local command"


def test_the_rule_is_shown_with_its_place(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = place / "handler.yaml"
    assert explanation(capfd, ["deploy it"])["rule"] == f"1 of 1 in {file}:3, action stop: ^deploy"
    assert explanation(capfd, ["hello"])["rule"] == f"none of 1 rule in {file} matches"
    assert "built-in" in explanation(capfd, ["deploy it"], chain="bare")["rule"]
    rows = explanation(capfd, ["deploy it"], chain="broken")
    assert rows["problem"].startswith(f"{place / 'gone.yaml'}: ")
    assert rows["kind"] == "redirect"


def test_the_message_for_the_model_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--config", "mine.yaml", "why?"]) == 0
    shown = capfd.readouterr().out
    assert "\n  USER INTERRUPTION: why?\n" in shown
    assert "\nSettings of the call that answers: effort low\n" in shown
    assert "\n  Your reply was shown to the user." in shown


@pytest.mark.parametrize(
    ("words", "message_part"),
    [([], "chain explain needs a line"), (["hello"], "chains.default.interruption_prompt"), (["hello"], "--config")],
    ids=["no line", "an untrusted file", "the way to trust it"],
)
def test_wrong_use_is_an_error(
    words: list[str], message_part: str, place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (place / "config.yaml").write_text("chains: {default: {interruption_prompt: /etc/hostname}}\n")
    assert main(["explain", *words]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert message_part in err
