"""The comments of the demonstration's guide."""

from dataclasses import replace
from typing import Any

import pytest
from support.agent_events import CHILD, MAIN

from chain import events
from chain.events import Event, Point
from chain.lines.parse import Urgency
from cli.show.tour import AFTERWARDS, INTRODUCTION, INVITATION, READING, TRIES, Tour

INIT = events.Init(session="s", version="1", model="offline", workspace="/w")
RUN = events.RunStarted(id="L1", query="analyze")
READ = events.ToolCall(id="t1", name="read_file", input={})
DONE = events.Result(status="done", result="5")
TODO = MAIN.queued(kind="todo")
URGENT = MAIN.queued(urgency="urgent")
DELIVERY = MAIN.interruption()
SKIPPING_DELIVERY = MAIN.interruption(point=Point.BEFORE_TOOL, tools_skipped=("read_file",))


def comments(*stream: Event) -> list[Any]:
    tour = Tour()
    return [text for event in stream for text in tour.comments(event)]


def test_the_first_run_is_introduced() -> None:
    assert comments(INIT, RUN) == [*INTRODUCTION, *INVITATION]
    assert tuple(TRIES.values()) in INVITATION


def test_later_runs_are_not_introduced() -> None:
    assert comments(INIT, RUN, RUN) == comments(INIT, RUN)


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        pytest.param([TODO, DELIVERY], ["put on the plan"], id="task"),
        pytest.param([MAIN.queued(kind="question"), DELIVERY], ["Your question"], id="question"),
        pytest.param([MAIN.queued(), DELIVERY], ["Nothing was cancelled"], id="line"),
        pytest.param([URGENT, SKIPPING_DELIVERY], ["All tools of that reply"], id="urgent, no tool started"),
        pytest.param([URGENT, DELIVERY], ["no waiting tool"], id="urgent, nothing to skip"),
        # The first comment is READING.
        pytest.param([READ, URGENT, SKIPPING_DELIVERY], ["!use the notes first", "The running tool has finished"],
                     id="urgent, a tool started"),
        pytest.param([MAIN.queued(urgency="now"), MAIN.interruption(point=Point.AT_ONCE)], ["was cancelled"], id="now"),
        pytest.param([TODO, MAIN.queued(id="L3", kind="redirect"), MAIN.queued(id="L4", kind="guidance"),
                      MAIN.interruption(ids=("L2", "L3", "L4"))],
                     ["put on the plan", "Nothing was cancelled"], id="one comment for lines of other kinds"),
        pytest.param([CHILD.queued(), CHILD.interruption(), replace(DONE, agent=CHILD.name)], [], id="child's line"),
    ],
)  # fmt: skip
def test_the_effect_of_a_line_is_explained(stream: list[Event], words: list[str]) -> None:
    for comment, expected in zip(comments(*stream), words, strict=True):
        assert expected in comment


def test_skipping_tools_is_suggested_until_it_was_tried() -> None:
    assert comments(READ, READ) == [READING]
    assert READING not in comments(URGENT, DELIVERY, READ)


@pytest.mark.parametrize(
    ("urgency", "untried"),
    [  # an urgent or a now line counts as a try of "!use the notes first"
        ("next", "how far are you?, !use the notes first, stop"),
        ("urgent", "how far are you?, stop"),
        ("now", "how far are you?, stop"),
    ],
)
def test_the_first_end_names_what_was_not_tried(urgency: Urgency, untried: str) -> None:
    _, *at_ends = comments(replace(TODO, urgency=urgency), DELIVERY, DONE, DONE)
    hint = f"Not tried yet: {untried}. They need a task at work: analyze SKU122, and then one of them."
    assert at_ends == [*AFTERWARDS, hint]


@pytest.mark.parametrize(
    ("status", "words", "suggests_stop"),
    [
        ("cancelled_with_partial", "Stopped.", False),
        ("cancelled", "Stopped.", False),
        ("interrupted", "was cancelled", True),
    ],
)
def test_the_end_of_a_run_is_explained(status: Any, words: str, suggests_stop: bool) -> None:
    explanation, *_, untried = comments(events.Result(status=status, result=""))
    assert words in explanation
    assert ("stop" in untried) is suggests_stop
