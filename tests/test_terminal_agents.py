"""Agents at a real terminal: whom a line goes to, by default and by ``/to``, and what is shown beforehand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from support.journals import records
from support.screen import Screen
from support.terminal import UP, Start, edits, idle, send

pytest_plugins = ["support.terminal"]

RULES = r"""
rules:
  - {when: {interruption: '(?P<said>.+)'}, text: "Heard: ${said}", and: continue}
  - {when: {user: '^look', step: 1}, tools: [{name: explore, input: {task: "walk through"}}]}
  - {when: {user: '^decide', step: 1}, tools: [{name: explore, input: {task: "choose for me"}}]}
  - {when: {tool: explore}, text: "It says: ${result}"}
  - {when: {user: '^walk', step: 1}, tools: [{name: gate, input: {name: one}}]}
  - {when: {user: '^walk', step: 2}, tools: [{name: gate, input: {name: two}}]}
  - {when: {user: '^walk', tool: gate}, text: "The walk is over."}
  - when: {user: '^choose', step: 1}
    tools: [{name: ask_user_question, input: {question: "Which?", options: [left, right]}}]
  - {when: {tool: ask_user_question}, text: "Result: ${result}"}
  - {text: "Done: ${query}"}
"""

CONFIG = """\
models: {default: test, definitions: {test: {provider: scripted, script: rules.yaml}}}
chains: {default: {model: test, tools: [todo, agents]}}
agents: {explore: {tools: [gate, ask]}}
inbox: {size: 2}
"""


@pytest.fixture
def screen(start: Start, tmp_path: Path) -> Screen:
    """The program with a model that starts an agent."""
    (tmp_path / "test.yaml").write_text(CONFIG)
    (tmp_path / "rules.yaml").write_text(RULES)
    return idle(start())


def exploring(screen: Screen) -> Screen:
    """Start a run, and wait until its agent works."""
    send(screen, "look around")
    return screen.until(lambda s: s.toolbar.endswith("→ explore-1") and "gate" in s.toolbar)


def waits(screen: Screen, lines: int) -> bool:
    """Whether the row below says that so many lines wait, those for other agents included."""
    found = re.search(r"queue (\d+)/2(?: \+(\d+))?", screen.toolbar)
    return found is not None and int(found[1]) + int(found[2] or 0) == lines and int(found[1]) <= 2


def types(screen: Screen, text: str, shown: str) -> Screen:
    """Type a text; this is then at the right end of the row below."""
    screen.type(text)
    screen.until(lambda s: s.editor == text and s.toolbar.endswith(shown))
    return screen


def goes_on(screen: Screen) -> Screen:
    """Let the agent work to its end, and wait for that of the run."""
    for gate in ("one", "two"):
        screen.open_gate(gate)
    return idle(screen.until("It says: The walk is over."))


def left(screen: Screen) -> list[dict[str, Any]]:
    """End the program; what became of each line but the query."""
    send(screen, "/quit")
    assert screen.wait() == 0, screen.everything
    return [r for r in records(screen.home) if r["type"] == "receipt" and r["point"] != "start"]


@pytest.mark.slow
def test_the_prompt_names_the_agent_that_a_line_goes_to(screen: Screen) -> None:
    types(screen, "/to explore-1 hello", "no such agent at work").type("\r")
    screen.until("active: main").until(edits("/to explore-1 hello"))
    screen.type("\x15")
    exploring(screen.until(edits(""))).until(lambda s: s.prompt == "explore-1 >")
    for typed, prompt in (("look there", "explore-1 >"), ("/to main x", ">"), ("todo: add x", ">"), ("stop", ">")):
        screen.type(typed)
        screen.until(lambda s, typed=typed, prompt=prompt: (s.prompt, s.editor) == (prompt, typed))
        screen.type("\x15")
    screen.until(lambda s: s.prompt == "explore-1 >")

    types(screen, "use B", "⏳ explore-1, next safe point").type("\r")
    screen.until(lambda s: s.editor == "" and waits(s, 1))
    types(screen, "/to main use C", "⏳ main, next safe point").type("\r")
    screen.until(lambda s: s.editor == "" and waits(s, 2))
    types(screen, "todo: add x", "plan, next safe point").type("\r")
    screen.until(lambda s: s.editor == "" and waits(s, 3))
    send(screen, "/queue").until("line for explore-1")
    send(screen, "/agents").until(lambda s: any("explore-1" in row and "walk through" in row for row in s.rows))

    goes_on(screen)
    assert screen.prompt == ">"
    assert [(r["id"], r["state"], r["agent"]) for r in left(screen)] == [
        ("L2", "delivered", "explore-1"),
        ("L3", "delivered", "main"),
        ("L4", "delivered", "main"),
    ]


@pytest.mark.slow
def test_a_full_inbox_is_that_of_the_agent_and_what_comes_back_has_its_address(screen: Screen) -> None:
    exploring(screen)
    send(screen, "one", "two").until(lambda s: waits(s, 2))
    types(screen, "/to main three", "⏳ main, next safe point").type("\r")
    screen.until(lambda s: s.editor == "" and waits(s, 3))
    types(screen, "/to explore-1 four", "queue full").type("\r")
    screen.until("channel full").until(edits("/to explore-1 four"))
    # What is for another agent does not wait behind it.
    send(screen, "/to plan-1 five")
    screen.until("there is no active agent 'plan-1'")
    screen.type("\x15")
    screen.until(edits("/to explore-1 four\n"))
    send(screen, "/to main !five")
    screen.until(lambda s: waits(s, 4)).until(edits("/to explore-1 four\n"))
    screen.type("\x15\x7f\x15" + UP)
    screen.until(edits("/to main !five"))
    screen.type("\x15" + UP)
    screen.until(edits("/to main three"))
    screen.type("\r")
    screen.until(lambda s: s.editor == "" and waits(s, 3))
    goes_on(screen)
    assert [(r["id"], r["state"], r["agent"]) for r in left(screen)] == [
        *((id, "dropped", "main") for id in ("L5", "L4")),
        ("L2", "delivered", "explore-1"),
        ("L3", "delivered", "explore-1"),
        ("L6", "delivered", "main"),
    ]


@pytest.mark.slow
def test_the_question_of_an_agent_is_answered_and_an_address_sends_a_line(screen: Screen) -> None:
    send(screen, "decide")
    screen.until(lambda s: s.prompt == "Q1?" and s.toolbar.endswith("answers Q1 (explore-1)"))
    types(screen, "/to main use C", "⏳ main, next safe point").type("\r")
    screen.until(lambda s: s.prompt == "Q1?" and s.editor == "" and waits(s, 1))
    types(screen, "2", "answers Q1 (explore-1)").type("\r")
    screen.until("It says: Result: The user answered: right")
    idle(screen)
    answers = [(r["agent"], r["text"]) for r in records(screen.home) if r["type"] == "answer"]
    assert answers == [("explore-1", "right")]
    assert [(r["state"], r["agent"]) for r in left(screen)] == [("delivered", "main")]
