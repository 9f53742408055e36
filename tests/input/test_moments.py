"""Moments: how they are written, and the event at which each of them comes."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain import events
from chain.errors import UserError
from chain.events import Event
from cli.input.moments import (
    After,
    AtAgent,
    AtAnswer,
    AtDone,
    AtIteration,
    AtQuestion,
    AtTool,
    Moment,
    Now,
    ScheduledLine,
    is_due,
    parse_moment,
    read_script,
)


@pytest.mark.parametrize(
    "text",
    [
        "use B",
        " @iteration 2 is text",
        " @to main is text",
        "mail me@done now",
        "@README.md sum it up",
        "@docs/plan sum it up",
        '@"my notes" sum it up',
    ],
)
@pytest.mark.parametrize("strict", [True, False], ids=["strict", "lenient"])
def test_other_text_has_no_moment(text: str, strict: bool) -> None:
    assert parse_moment(text, strict=strict) == ScheduledLine(Now(), text, text)


@pytest.mark.parametrize(
    ("written", "moment", "to", "text"),
    [
        ("@iteration 2 todo: add x", AtIteration(2), "", "todo: add x"),
        ("@Iteration 12   stop", AtIteration(12), "", "stop"),
        ("@tool read_file !skip the rest", AtTool("read_file"), "", "!skip the rest"),
        ("@answer and in French?", AtAnswer(), "", "and in French?"),
        ("@done then this", AtDone(), "", "then this"),
        ("@after 3 stop", After(3.0), "", "stop"),
        ("@after 0.5 @home is text", After(0.5), "", "@home is text"),
        ("@to explore-1 use B", Now(), "explore-1", "use B"),
        ("@TO Explore-1   use B", Now(), "Explore-1", "use B"),
        ("@iteration 2 @to explore-1 use B", AtIteration(2), "explore-1", "use B"),
        ("@tool read_file  @to main !use B", AtTool("read_file"), "main", "!use B"),
        ("@answer @to plan-1 and in French?", AtAnswer(), "plan-1", "and in French?"),
        ("@done @to explore-1 next", AtDone(), "explore-1", "next"),
        ("@after 3 @to main stop", After(3.0), "main", "stop"),
        ("@question @to explore-1 y", AtQuestion(), "explore-1", "y"),
        ("@to explore-1 @home is text", Now(), "explore-1", "@home is text"),
        ("@done @told is text", AtDone(), "", "@told is text"),
    ],
)
@pytest.mark.parametrize("strict", [True, False], ids=["strict", "lenient"])
def test_a_moment_and_an_address_precede_the_text(
    written: str, moment: Moment, to: str, text: str, strict: bool
) -> None:
    assert parse_moment(written, strict=strict) == ScheduledLine(moment, text, written, to)


ARABIC_3 = "\u0663"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("@iterations 2 x", "did you mean @iteration?"),
        ("@aftr 2 x", "did you mean @after?"),
        ("@zzz x", "the moments are @iteration, @tool, @answer, @done, @after"),
        ("@", "the moments are"),
        ("@iteration", "write it as @iteration N TEXT"),
        ("@iteration 2", "write it as @iteration N TEXT"),
        ("@iteration 0 x", "write it as @iteration N TEXT"),
        ("@iteration 2.5 x", "write it as @iteration N TEXT"),
        ("@tool", "write it as @tool NAME TEXT"),
        ("@tool shell", "write it as @tool NAME TEXT"),
        ("@answer", "write it as @answer TEXT"),
        ("@done  ", "write it as @done TEXT"),
        *((f"@after {s} x", "write it as @after SECONDS TEXT") for s in ("lunch", "nan", "inf", "-1", "1e9", ARABIC_3)),
        ("@ot explore-1 x", "did you mean @to?"),
        ("@to", "write it as @to AGENT TEXT"),
        ("@to explore-1  ", "write it as @to AGENT TEXT"),
        ("@iteration 2 @to", "write it as @to AGENT TEXT"),
        ("@question @to explore-1", "write it as @to AGENT TEXT"),
        ("@to explore-1 @iteration 2 x", "write the moment first"),
        ("@to explore-1 @to plan-1 x", "@to once"),
    ],
)
def test_a_mistake_is_text_unless_strict(text: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_moment(text, strict=True)
    assert words in caught.value.message
    assert parse_moment(text, strict=False) == ScheduledLine(Now(), text, text)


@given(st.sampled_from(["", "@", "@iteration ", "@to "]), st.text())
def test_no_text_is_lost(start: str, rest: str) -> None:
    line = parse_moment(start + rest, strict=False)
    assert line.written == start + rest
    assert line.written.endswith(line.text)
    if isinstance(line.moment, Now) and not line.to:
        assert line.text == line.written


def test_a_script_has_one_line_per_row() -> None:
    script = "\ufeff# a comment\r\n\r\n@iteration 1 one\r\na\u2028b\x0cc\n   \n #three\n@done four"
    assert read_script(script, "s.txt") == [
        ScheduledLine(AtIteration(1), "one", "@iteration 1 one"),
        ScheduledLine(Now(), "a\u2028b\x0cc", "a\u2028b\x0cc"),
        ScheduledLine(Now(), " #three", " #three"),
        ScheduledLine(AtDone(), "four", "@done four"),
    ]


def test_an_empty_script_has_no_lines() -> None:
    assert read_script("", "s.txt") == []


def test_an_error_in_a_script_has_its_row() -> None:
    with pytest.raises(UserError, match=r"^s\.txt:3: "):
        read_script("# first\n\n@iteration two x\n", "s.txt")


ITERATION = events.IterationStarted(iteration=2, max_iterations=20)
TOOL = events.ToolCall(id="t1", name="shell", input={})
ANSWER = events.Reply(text="It is 5.", tool_calls=0)
RESULT = events.Result(status="done", result="It is 5.")
TOOL_ENDED = events.ToolResult(id="t2", name="explore", text="", is_error=False, seconds=1)
ENDED = events.AgentEnded(name="explore-1", kind="explore", parent_id="t2", task="x", status="done")
STARTED = events.AgentStarted(name="explore-1", kind="explore", parent_id="t2", task="x")
"""The agent that the call ``t2`` starts."""
NO_ANSWER = events.Reply(text="Let me look.", tool_calls=2)
CHILD_ITERATION, CHILD_TOOL, CHILD_ANSWER = (replace(event, agent="explore-1") for event in (ITERATION, TOOL, ANSWER))
EVENTS = (
    *(ITERATION, TOOL, ANSWER, NO_ANSWER, RESULT, TOOL_ENDED, STARTED, ENDED),
    *(CHILD_ITERATION, CHILD_TOOL, CHILD_ANSWER),
)


DUE_EVENTS: dict[str, tuple[Moment, str, list[Event]]] = {
    "iteration": (AtIteration(2), "", [ITERATION]),
    "iteration of main": (AtIteration(2), "main", [ITERATION]),
    "iteration of a child": (AtIteration(2), "explore-1", [CHILD_ITERATION]),
    "another iteration": (AtIteration(3), "", []),
    "a tool of any agent": (AtTool("shell"), "", [TOOL, CHILD_TOOL]),
    "a tool, with an address": (AtTool("shell"), "explore-1", [TOOL, CHILD_TOOL]),
    "another tool": (AtTool("read_file"), "", []),
    "answer without tool calls": (AtAnswer(), "", [ANSWER]),
    "answer of a child in capitals": (AtAnswer(), "EXPLORE-1", [CHILD_ANSWER]),
    "end of the run": (AtDone(), "", [RESULT]),
    "end of main": (AtDone(), "main", [RESULT]),
    "end of a child": (AtDone(), "explore-1", [ENDED]),
    "end of an unknown agent": (AtDone(), "plan-1", []),
    "start of a call's agent, or end of the call": (AtAgent("t2"), "", [TOOL_ENDED, STARTED]),
    "now": (Now(), "", []),
    "after seconds": (After(0), "", []),
}


@pytest.mark.parametrize(("moment", "to", "expected"), DUE_EVENTS.values(), ids=DUE_EVENTS)
def test_moments_come_at_events_of_their_agent(moment: Moment, to: str, expected: list[Event]) -> None:
    assert [event for event in EVENTS if is_due(moment, event, to)] == expected
