"""The inputs of programs that are killed: lines at the start, and lines in answer to events.

Every line has a unique text, by which it is found in the journal and in the conversation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from .point import Way

Row: TypeAlias = Mapping[str, Any]

RULES = Path(__file__).with_name("rules.yaml")

CONFIG = f"""\
models:
  default: test
  definitions:
    test: {{provider: scripted, script: {RULES}, max_attempts: 2}}
chains:
  default: {{model: test, tools: [todo, files, edit, shell, ask, agents]}}
inbox: {{size: 4}}
tools: {{allow: [shell]}}
"""

_READS_JSON = ("--input-format", "stream-json")


def line(text: str, **more: object) -> Row:
    """Return a line as JSON, without an id."""
    return {"type": "line", "text": text, **more}


def answer(id: str, text: str) -> Row:
    return {"type": "answer", "id": id, "text": text}


INTERRUPT: Row = {"type": "interrupt"}


@dataclass(frozen=True, slots=True)
class Cue:
    """Rows that are written once, when an event with these fields arrives. A ``text`` may be a part of its text."""

    on: Mapping[str, object]
    rows: list[Row]

    def matches(self, event: Mapping[str, Any]) -> bool:
        return all(
            str(value) in str(event.get(key)) if key == "text" else event.get(key) == value
            for key, value in self.on.items()
        )


@dataclass(frozen=True, slots=True)
class Scenario:
    """The input of a program. It ends after a number of ``results``.

    ``codes`` are the exit codes of a program that is not killed, and ``made`` are the files that only an answer may
    create. ``weight`` is the share of the points: about one for each 25 writes.
    """

    name: str
    rows: list[Row]
    cues: list[Cue] = field(default_factory=list)
    results: int = 1
    args: Sequence[str] = _READS_JSON
    codes: frozenset[int] = frozenset({0})
    made: Sequence[str] = ()
    weight: int = 2


SCENARIOS = (
    Scenario(
        "lines",
        [
            line("@iteration 1 use the red one"),
            line("@tool list_files the urgent green one", urgent=True),
            line("@iteration 2 todo: add paint the fence"),
            line("@iteration 2 then: work on the second thing"),
            line("@iteration 3 todo: complete 1"),
            line("@iteration 3 context: the moon is full"),
            line("@answer is it far from here?"),
            line("@iteration 1 focus on the cellar"),
            line("work on the first thing"),
        ],
        results=2,
        weight=3,
    ),
    Scenario(
        "interrupted",
        [line("@iteration 1 then: work on what never was"), line("stream until I interrupt")],
        [
            Cue({"type": "text_delta", "text": "w"}, [line("a word in between"), line("todo: add a word")]),
            Cue({"type": "line_queued", "text": "a word in between"}, [INTERRUPT, line("work after all of that")]),
        ],
        results=2,
        codes=frozenset({130}),
    ),
    Scenario(
        "questions",
        [line("make three files")],
        [
            Cue({"type": "question", "id": "Q1"}, [answer("Q1", "y"), line("while you were asked")]),
            Cue({"type": "question", "id": "Q2"}, [answer("Q2", "no, not that one")]),
            Cue({"type": "question", "id": "Q3"}, [answer("Q3", "left")]),
            Cue({"type": "question", "id": "Q4"}, [line("leave the third alone", urgent=True)]),
        ],
        made=["made-1.txt"],
    ),
    Scenario(
        "commands",
        [line("@iteration 1 todo: add run the tap"), line("run two commands")],
        [Cue({"type": "tool_progress", "text": "started"}, [line("now stop that one", now=True)])],
        weight=1,
    ),
    Scenario(
        "agents",
        [
            line("@iteration 1 look closer, first one", to="explore-1"),
            line("@iteration 2 look closer, second one", to="explore-2"),
            line("@iteration 1 and be brief", to="main"),
            line("@iteration 1 todo: add thank them all"),
            line("@iteration 1 look closer, leader", to="agent-1"),
            line("@iteration 1 look closer, third one", to="explore-3"),
            line("send them all"),
        ],
        weight=4,
    ),
)

BY_NAME: Mapping[str, Scenario] = {scenario.name: scenario for scenario in SCENARIOS}


def resumed(query: str, way: Way, id: str | None) -> Scenario:
    """Return the scenario that resumes a session with a query, which also delivers the waiting lines."""
    args = ["-c"] if id is None or way == "query" else ["-r", id]
    if way == "query":
        return Scenario("resumed", [], results=0, args=[*args, "--no-stdin", "-p", query])
    return Scenario("resumed", [line(query)], results=0, args=[*args, *_READS_JSON])
