"""What a program does until it is killed: what is written to it at once, and what in answer to what it shows.

Every line has a text of its own, by which it is found in the journal, in the conversation and on the screen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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

ESC = "\x1b"

_READS = ("--input-format", "stream-json")


def line(text: str, **more: object) -> Row:
    """A line of JSON. It has no id, so the chain gives it one."""
    return {"type": "line", "text": text, **more}


def answer(id: str, text: str) -> Row:
    return {"type": "answer", "id": id, "text": text}


INTERRUPT: Row = {"type": "interrupt"}


@dataclass(frozen=True, slots=True)
class Cue:
    """What is written when an event like this comes, once. The event's ``text`` need only be in that of the event."""

    on: Mapping[str, object]
    rows: Sequence[Row]

    def fits(self, event: Mapping[str, Any]) -> bool:
        return all(
            value in str(event.get(key, "")) if key == "text" and isinstance(value, str) else event.get(key) == value
            for key, value in self.on.items()
        )


@dataclass(frozen=True, slots=True)
class Headless:
    """A program that reads and writes JSON. Its input ends after so many results.

    ``codes`` are the exit codes that it may have if nobody kills it, or once it is resumed.
    """

    name: str
    rows: Sequence[Row]
    cues: Sequence[Cue] = ()
    results: int = 1
    args: Sequence[str] = _READS
    codes: frozenset[int] = frozenset({0})
    made: Sequence[str] = ()
    """The files that only an answer may bring about."""
    weight: int = 2
    """How many points it has, beside the others: about one for each twenty-five calls of its journal."""


@dataclass(frozen=True, slots=True)
class Step:
    """Keys, once a text has been shown so often in all."""

    shown: str
    keys: str
    times: int = 1


@dataclass(frozen=True, slots=True)
class AtTerminal:
    """A program at a terminal, and what is typed into it; the last keys end it."""

    name: str
    steps: Sequence[Step]
    args: Sequence[str] = ()
    codes: frozenset[int] = frozenset({0})
    made: Sequence[str] = ()
    weight: int = 2


Scenario: TypeAlias = Headless | AtTerminal

IDLE = "Type a task"
"""What the prompt welcomes its user with."""

DONE = "✓ done,"
INTERRUPTED = "⏹ interrupted,"
"""How the last row of a run begins."""


def typed(*lines: str) -> str:
    """Lines with their Enter, in one go."""
    return "".join(f"{each}\r" for each in lines)


SCENARIOS: Sequence[Scenario] = (
    Headless(
        "lines",
        [
            line("@iteration 1 use the red one"),
            line("@tool list_files the urgent green one", urgent=True),
            line("@iteration 2 todo: add paint the fence"),
            line("@iteration 2 todo: add mow the lawn"),
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
    Headless(
        "full",
        [line("stall for a while")],
        [
            Cue(
                {"type": "iteration_started", "iteration": 1},
                [*(line(f"wish number {n} of six") for n in range(1, 7)), line("now the seventh", now=True)],
            ),
        ],
        weight=1,
    ),
    Headless(
        "cut",
        [line("@iteration 1 todo: add sweep the stairs"), line("stream your words")],
        [
            Cue({"type": "text_delta", "text": "w"}, [line("now another word", now=True)]),
            Cue({"type": "result"}, [line("stall until I stop you"), line("@after 0.02 stop")]),
        ],
        results=2,
        weight=1,
    ),
    Headless(
        "stopped",
        [
            line("@tool read_file a wish too late"),
            line("@tool read_file then: work on the next thing"),
            line("@tool read_file stop"),
            line("@done work after the stop"),
            line("work until the stop"),
        ],
        results=2,
        codes=frozenset({0, 3}),
    ),
    Headless(
        "interrupted",
        [line("@iteration 1 then: work on what never was"), line("stream until I interrupt")],
        [
            Cue({"type": "text_delta", "text": "w"}, [line("a word in between"), line("todo: add a word")]),
            Cue({"type": "line_queued", "text": "a word in between"}, [INTERRUPT, line("work after all of that")]),
        ],
        results=2,
        codes=frozenset({130}),
    ),
    Headless(
        "carried",
        [
            line("@iteration 1 todo: add count the sheep"),
            line("@iteration 3 todo: add count the goats"),
            line("@iteration 3 what about the cows?"),
            line("@iteration 3 and the hens"),
            line("@iteration 2 then: loop once more"),
            line("loop for ever"),
        ],
        results=2,
        args=[*_READS, "--max-iterations", "3"],
        codes=frozenset({4}),
    ),
    Headless(
        "refused",
        [
            line("@iteration 1 say it nicely"),
            line("@iteration 1 todo: add say it again"),
            line("@done work instead of that"),
            line("refuse to do this"),
        ],
        results=2,
        codes=frozenset({1}),
    ),
    Headless(
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
    Headless(
        "commands",
        [line("@iteration 1 todo: add run the tap"), line("run two commands")],
        [Cue({"type": "tool_progress", "text": "started"}, [line("now stop that one", now=True)])],
        weight=1,
    ),
    Headless(
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
    Headless(
        "children",
        [line("guide two of them")],
        [
            Cue(
                {"type": "question", "id": "Q1"},
                [line("for the one that holds", to="plan-1"), answer("Q1", "right")],
            ),
            Cue({"type": "agent_ended", "name": "explore-1"}, [line("let go at once", to="plan-1"), INTERRUPT]),
            Cue({"type": "result"}, [line("work without them")]),
        ],
        results=2,
        codes=frozenset({130}),
        weight=3,
    ),
    AtTerminal(
        "typed",
        [
            Step(IDLE, typed("stall at the terminal")),
            Step("▶ stall", typed("a typed wish", "todo: add rake the leaves", "then: work on a typed task")),
            Step("📤 Interrupting: then:", typed("!!now go on typing")),
            Step(DONE, typed("work again please"), 2),
            Step(DONE, typed("/new"), 3),
            Step("/new", typed("work in a new session")),
            Step(DONE, typed("/quit"), 4),
        ],
    ),
    AtTerminal(
        "asked",
        [
            Step(IDLE, typed("make some files")),
            Step("Q1?", "y\r"),
            Step("Q2?", typed("no, rather not")),
            Step("Q3?", typed("/to main wait for me", "right")),
            Step("Q4?", ESC),
            Step(INTERRUPTED, typed("work on a last task")),
            Step(DONE, typed("/quit")),
        ],
        made=["made-1.txt"],
        weight=1,
    ),
    AtTerminal(
        "watched",
        [
            Step(IDLE, typed("run commands here")),
            Step("started", typed("!!cut it short here")),
            Step(DONE, typed("stall here too")),
            Step("▶ stall", ESC),
            Step(INTERRUPTED, typed("send some of them")),
            Step(DONE, typed("/quit"), 2),
        ],
    ),
    AtTerminal(
        "compacted",
        [
            Step(IDLE, typed("work on the first thing", "then: work on the second thing")),
            Step(DONE, typed("/compact the numbers"), 2),
            Step("Conversation compacted", typed("work on the third thing")),
            Step(DONE, typed("/quit"), 3),
        ],
    ),
)

BY_NAME: Mapping[str, Scenario] = {scenario.name: scenario for scenario in SCENARIOS}


def resumed(query: str, way: Way, id: str | None, was: Scenario) -> Scenario:
    """The session of a scenario that is opened again, with a query that ends the waiting.

    With a query in the arguments it is the latest session; else it is named.
    """
    args = [
        *(each for each in was.args if each not in _READS),
        *(["-c"] if id is None or way == "query" else ["-r", id]),
    ]
    codes = was.codes & {4} | {0}
    if way == "prompt":
        return AtTerminal(
            f"{was.name}, resumed",
            [Step(IDLE, typed(query)), Step(f"Recapped for {query}.", typed("/quit"))],
            args=args,
            codes=codes,
        )
    if way == "query":
        return Headless(f"{was.name}, resumed", [], results=0, args=[*args, "--no-stdin", "-p", query], codes=codes)
    args += _READS
    return Headless(f"{was.name}, resumed", [line(query)], results=0, args=args, codes=codes)
