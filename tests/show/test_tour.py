"""The comments of the demonstration's guide."""

from dataclasses import replace
from typing import Any

import pytest
from support.agent_events import MAIN, ONE

from chain import events
from chain.events import Event
from cli.show.tour import AFTERWARDS, INTRODUCTION, INVITATION, READING, TRIES, Tour

INIT = events.Init(session="s", version="1", model="offline", workspace="/w")
RUN = events.RunStarted(id="L1", query="analyze")
READ = events.ToolCall(id="t1", name="read_file", input={})
DONE = events.Result(status="done", result="5")
TODO = MAIN.queued(kind="todo")
URGENT = MAIN.queued(urgency="urgent")
SKIPPING = MAIN.interruption(point="C", tools_skipped=("read_file",))


def comments(*happened: Event) -> list[Any]:
    tour = Tour()
    return [text for event in happened for text in tour.comments(event)]


def test_the_introduction_comes_once() -> None:
    assert comments(INIT, RUN, DONE, RUN) == [*INTRODUCTION, *INVITATION, *comments(RUN, DONE)[len(INVITATION) :]]
    assert tuple(TRIES.values()) in INVITATION


@pytest.mark.parametrize(
    ("happened", "says"),
    [
        ([TODO, MAIN.interruption()], ["put on the plan"]),
        ([MAIN.queued(kind="question"), MAIN.interruption()], ["Your question"]),
        ([MAIN.queued(), MAIN.interruption()], ["Nothing was cancelled"]),
        ([URGENT, SKIPPING], ["All tools of that reply"]),
        ([URGENT, MAIN.interruption()], ["no waiting tool"]),
        ([MAIN.queued(urgency="now"), MAIN.interruption(point="N")], ["was cancelled"]),
        ([READ, URGENT, SKIPPING], ["!use the notes first", "The running tool has finished"]),
        ([TODO, *(MAIN.queued(id=id, kind=kind) for id, kind in [("L3", "redirect"), ("L4", "guidance")]),
          MAIN.interruption(ids=("L2", "L3", "L4"))], ["put on the plan", "Nothing was cancelled"]),
        ([ONE.queued(), ONE.interruption(), replace(DONE, agent="child-1")], []),
    ],
    ids=["task", "question", "line", "urgent", "nothing to skip", "now", "running tool", "together", "child"],
)  # fmt: skip
def test_the_effect_of_a_line_is_explained(happened: list[Event], says: list[str]) -> None:
    for comment, words in zip(comments(*happened), says, strict=True):
        assert words in comment


def test_skipping_tools_is_suggested_until_it_was_tried() -> None:
    assert comments(READ, READ) == [READING]
    assert READING not in comments(URGENT, MAIN.interruption(), READ)


@pytest.mark.parametrize(
    ("line", "left"),
    [
        (TODO, "how far are you?, !use the notes first, stop"),
        (replace(TODO, urgency="urgent"), "how far are you?, stop"),
        (replace(TODO, urgency="now"), "how far are you?, stop"),
    ],
)
def test_the_first_end_names_what_was_not_tried(line: events.LineQueued, left: str) -> None:
    assert comments(line, MAIN.interruption(), DONE, DONE)[1:] == [
        *AFTERWARDS,
        f"Not tried yet: {left}. They need a task at work: analyze SKU122, and then one of them.",
    ]


@pytest.mark.parametrize(
    ("status", "says"),
    [("cancelled_with_partial", "Stopped."), ("cancelled", "Stopped."), ("interrupted", "was cancelled")],
)
def test_the_end_of_a_run_is_explained(status: Any, says: str) -> None:
    first, *rest = comments(events.Result(status=status, result=""))
    assert says in first
    assert ("stop" in rest[-1]) == (status == "interrupted")
