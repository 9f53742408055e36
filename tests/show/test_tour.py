"""What the guide through the demonstration says, and when it says nothing."""

from dataclasses import replace
from typing import Any

import pytest
from support.tellers import MAIN

from chain import events
from chain.events import Event
from cli.show.tour import AFTERWARDS, INTRODUCTION, INVITATION, READING, TRIES, Tour

INIT = events.Init(session="s", version="1", model="offline", workspace="/w")
RUN = events.RunStarted(id="L1", query="analyze")
READ = events.ToolCall(id="t1", name="read_file", input={})
DONE = events.Result(status="done", result="5")


def queued(id: str, kind: str = "redirect", urgency: str = "next") -> events.LineQueued:
    return replace(MAIN.queued(id=id), kind=kind, urgency=urgency)


def delivered(*ids: str, point: Any = "D", skipped: tuple[str, ...] = ()) -> events.UserInterruption:
    return replace(MAIN.interruption(), ids=ids, point=point, tools_skipped=skipped)


def said(*happened: Event) -> list[str]:
    tour = Tour()
    return [text for event in happened for text in tour.comments(event)]


def test_it_introduces_itself_once() -> None:
    assert said(INIT, RUN, DONE, RUN)[: len(INTRODUCTION) + len(INVITATION)] == [*INTRODUCTION, *INVITATION]
    assert said(INIT, RUN, RUN).count(INVITATION[0]) == 1
    assert tuple(TRIES.values()) in INVITATION


@pytest.mark.parametrize(
    ("line", "how", "says"),
    [
        ({"kind": "todo"}, {}, "put on the plan"),
        ({"kind": "question"}, {}, "Your question"),
        ({}, {}, "Nothing was cancelled"),
        ({"kind": "guidance"}, {}, "Nothing was cancelled"),
        ({"urgency": "urgent"}, {"point": "C", "skipped": ("read_file",)}, "All tools of that reply"),
        ({"urgency": "urgent"}, {}, "no waiting tool"),
        ({"kind": "todo", "urgency": "urgent"}, {}, "no waiting tool"),
        ({"urgency": "now"}, {"point": "N"}, "was cancelled"),
    ],
)
def test_it_says_what_a_line_did(line: dict[str, str], how: dict[str, Any], says: str) -> None:
    (effect,) = said(queued("L2", **line), delivered("L2", **how))
    assert says in effect


def test_of_lines_that_come_together_it_says_what_each_kind_did() -> None:
    lines = [queued("L2", kind="todo"), queued("L3"), queued("L4", kind="guidance"), queued("L5", kind="question")]
    task, other, question = said(*lines, delivered("L2", "L3", "L4", "L5"))
    assert "put on the plan" in task
    assert "Nothing was cancelled" in other
    assert "Your question" in question


def test_a_tool_that_ran_is_told_apart_from_tools_that_never_started() -> None:
    *_, effect = said(READ, queued("L2", urgency="urgent"), delivered("L2", point="C", skipped=("read_file",)))
    assert "The running tool has finished" in effect


def test_it_tells_when_to_skip_tools_unless_that_was_tried() -> None:
    assert said(READ, READ) == [READING]
    assert READING not in said(queued("L2", urgency="urgent"), delivered("L2"), READ)


@pytest.mark.parametrize("urgency", ["urgent", "now"])
def test_a_line_that_is_urgent_and_a_task_has_tried_both(urgency: str) -> None:
    assert said(queued("L2", kind="todo", urgency=urgency), delivered("L2"), DONE)[-1].startswith(
        "Not tried yet: how far are you?, stop. "
    )


def test_what_was_not_tried_is_named_at_the_first_end_alone() -> None:
    assert said(queued("L2", kind="todo"), delivered("L2"), DONE, DONE)[1:] == [
        *AFTERWARDS,
        "Not tried yet: how far are you?, !use the notes first, stop. "
        "They need a task at work: analyze SKU122, and then one of them.",
    ]


@pytest.mark.parametrize(
    ("status", "says"),
    [("cancelled_with_partial", "Stopped."), ("cancelled", "Stopped."), ("interrupted", "was cancelled")],
)
def test_it_says_how_a_run_was_ended(status: Any, says: str) -> None:
    first, *rest = said(events.Result(status=status, result=""))
    assert says in first
    assert ("stop" in rest[-1]) == (status == "interrupted")


def test_what_other_agents_do_is_not_its_business() -> None:
    assert said(events.Result(agent="child-1", status="done", result="")) == []
