"""The program without a terminal, with agents at work: lines of a script, of a pipe and of JSON find theirs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from support import forked
from support.program import environ
from support.stages import line

DEADLINE_S = 120

RULES = r"""
rules:
  - {when: {interruption: '(?P<said>.+)'}, text: "Heard: ${said}", and: continue}
  - {when: {user: '^look', step: 1}, tools: [{name: explore, input: {task: find the notes}}]}
  - {when: {user: '^look', tool: explore}, text: "It says: ${result}"}
  - {when: {user: '^find', step: 1}, tools: [{name: list_files, input: {path: .}}]}
  - {when: {user: '^find'}, text: Found.}
  - when: {user: '^ask', step: 1}
    tools: [{name: explore, input: {task: choose one}}, {name: plan, input: {task: choose two}}]
  - when: {user: '^choose', step: 1}
    tools: [{name: ask_user_question, input: {question: "Which?", options: [left, right]}}]
  - {when: {tool: ask_user_question}, text: "${result}"}
"""

CONFIG = """\
models: {default: test, definitions: {test: {provider: scripted, script: rules.yaml}}}
chains: {default: {model: test, tools: [todo, files, ask, agents]}}
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "rules.yaml").write_text(RULES)
    (tmp_path / "test.yaml").write_text(CONFIG)
    return tmp_path


def told(home: Path, *args: str, input: Iterable[dict[str, Any] | str] = ()) -> tuple[int, list[dict[str, Any]]]:
    """What the program prints as stream-json, and its exit code."""
    rows = [each if isinstance(each, str) else json.dumps(each) for each in input]
    done = forked.run(
        [sys.executable, "-m", "cli", "--config", "test.yaml", "--output-format", "stream-json", *args],
        cwd=home,
        env=environ(home, {}),
        input="".join(f"{row}\n" for row in rows),
        text=True,
        timeout=DEADLINE_S,
    )
    return done.returncode, [json.loads(row) for row in done.stdout.splitlines()]


def landed(objects: list[dict[str, Any]]) -> dict[str, tuple[str, str]]:
    """What became of each line but the query, by its text, and where."""
    receipts = [r for o in objects if o["type"] == "result" for r in o["receipts"] if r["point"] != "start"]
    return {r["text"]: (r["state"], r["agent"]) for r in receipts}


WRITTEN = ["@iteration 1 @to explore-1 look closer", "@tool list_files as you go", "@iteration 1 and be brief"]
LANDED = {
    "look closer": ("delivered", "explore-1"),
    "as you go": ("delivered", "explore-1"),
    "and be brief": ("delivered", "main"),
}


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("way", ["say", "script", "pipe", "json"])
def test_lines_reach_the_agents_that_they_are_for(home: Path, way: str) -> None:
    (home / "script").write_text("\n".join(WRITTEN))
    args, input = {
        "say": (["-p", "look around", *(part for text in WRITTEN for part in ("--say", text))], []),
        "script": (["-p", "look around", "--script", "script"], []),
        # The query comes last: no moment of its run may have gone by when a line is read.
        "pipe": ([], [*WRITTEN, "look around"]),
        "json": (["--input-format", "stream-json"], [line(text) for text in (*WRITTEN, "look around")]),
    }[way]
    code, objects = told(home, *args, input=input)  # type: ignore[arg-type]
    assert code == 0
    assert landed(objects) == LANDED
    assert {o["target_agent"] for o in objects if o["type"] == "line_queued" and o["text"] == "look closer"} == {
        "explore-1"
    }


def test_json_names_the_agent_beside_the_text(home: Path) -> None:
    lines = [
        line("@iteration 1 look closer", "a", to="explore-1"),
        line("@tool list_files for the first", "b", to="main", urgent=True),
        line("@tool list_files @to explore-1 the text decides", "c", to="main"),
        line("@tool list_files nobody", "d", to="explore-7"),
        line("wrong", "e", to=["main"]),
        line("@iteration 1 never", "f", to="plan-1"),
        line("look around"),
    ]
    code, objects = told(home, "--input-format", "stream-json", input=lines)
    assert code == 3
    found = {r["id"]: (r["state"], r["agent"]) for o in objects if o["type"] == "result" for r in o["receipts"]}
    assert {id: found[id] for id in "abc"} == {
        "a": ("delivered", "explore-1"),
        "b": ("delivered", "main"),
        "c": ("delivered", "explore-1"),
    }
    reasons = {o["id"]: o["reason"] for o in objects if o["type"] == "line_refused"}
    assert sorted(reasons) == ["d", "e"]
    assert "explore-7" in reasons["d"]
    assert "main, explore-1" in reasons["d"]
    assert [text for o in objects if o["type"] == "result" for text in o["unsent"]] == ["@iteration 1 never"]


def test_a_script_answers_each_agent(home: Path) -> None:
    says = ["--say", "@question @to plan-1 left", "--say", "@question @to explore-1 right"]
    code, objects = told(home, "-p", "ask them", *says)
    assert code == 0
    answers = {o["agent"]: o["text"] for o in objects if o["type"] == "answer"}
    assert answers == {"explore-1": "right", "plan-1": "left"}


def test_a_mistake_in_an_address_is_wrong_usage(home: Path) -> None:
    code, _ = told(home, "-p", "look around", "--say", "@to explore-1")
    assert code == 2
