"""Moments: how they are written, what is a mistake where, and which event each of them is."""

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
    fires,
    parse_moment,
    read_script,
)


@pytest.mark.parametrize(
    ("written", "moment", "text"),
    [
        ("use B", Now(), "use B"),
        ("@iteration 2 todo: add x", AtIteration(2), "todo: add x"),
        ("@Iteration 12   stop", AtIteration(12), "stop"),
        ("@tool read_file !skip the rest", AtTool("read_file"), "!skip the rest"),
        ("@answer and in French?", AtAnswer(), "and in French?"),
        ("@done then this", AtDone(), "then this"),
        ("@after 3 stop", After(3.0), "stop"),
        ("@after 0.5 @home is text", After(0.5), "@home is text"),
        (" @iteration 2 is text", Now(), " @iteration 2 is text"),
        ("mail me@done now", Now(), "mail me@done now"),
    ],
)
@pytest.mark.parametrize("strict", [True, False])
def test_a_moment_and_its_text(written: str, moment: Moment, text: str, strict: bool) -> None:
    assert parse_moment(written, strict=strict) == ScheduledLine(moment, text, written)


@pytest.mark.parametrize(
    ("written", "moment", "to", "text"),
    [
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
        (" @to main is text", Now(), "", " @to main is text"),
    ],
)
@pytest.mark.parametrize("strict", [True, False])
def test_an_address_stands_behind_a_moment_or_alone(
    written: str, moment: Moment, to: str, text: str, strict: bool
) -> None:
    assert parse_moment(written, strict=strict) == ScheduledLine(moment, text, written, to)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("@iterations 2 x", "did you mean @iteration?"),
        ("@aftr 2 x", "did you mean @after?"),
        ("@zzz x", "the moments are @iteration, @tool, @answer, @done, @after"),
        ("@", "the moments are"),
        ("@iteration x", "write it as @iteration N TEXT"),
        ("@iteration 0 x", "write it as @iteration N TEXT"),
        ("@iteration -1 x", "write it as @iteration N TEXT"),
        ("@iteration 2.5 x", "write it as @iteration N TEXT"),
        ("@iteration 2", "write it as @iteration N TEXT"),
        ("@iteration", "write it as @iteration N TEXT"),
        ("@tool shell", "write it as @tool NAME TEXT"),
        ("@tool", "write it as @tool NAME TEXT"),
        ("@answer", "write it as @answer TEXT"),
        ("@done  ", "write it as @done TEXT"),
        ("@after lunch eat", "write it as @after SECONDS TEXT"),
        ("@after nan x", "write it as @after SECONDS TEXT"),
        ("@after inf x", "write it as @after SECONDS TEXT"),
        ("@after -1 x", "write it as @after SECONDS TEXT"),
        ("@after 1e9 x", "write it as @after SECONDS TEXT"),
        ("@after ٣ x", "write it as @after SECONDS TEXT"),
        ("@ot explore-1 x", "did you mean @to?"),
        ("@to", "write it as @to AGENT TEXT"),
        ("@to explore-1", "write it as @to AGENT TEXT"),
        ("@to explore-1  ", "write it as @to AGENT TEXT"),
        ("@iteration 2 @to", "write it as @to AGENT TEXT"),
        ("@question @to explore-1", "write it as @to AGENT TEXT"),
        ("@to explore-1 @iteration 2 x", "write the moment first"),
        ("@to explore-1 @to plan-1 x", "@to once"),
    ],
)
def test_what_is_no_moment_is_a_mistake_in_a_script_and_text_in_a_pipe(text: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_moment(text, strict=True)

    assert words in caught.value.message
    assert parse_moment(text, strict=False) == ScheduledLine(Now(), text, text)


@given(
    st.one_of(
        st.text(),
        st.text().map(lambda t: "@" + t),
        st.text().map(lambda t: "@iteration " + t),
        st.text().map(lambda t: "@to " + t),
    )
)
def test_a_pipe_never_raises_and_never_loses_a_word(text: str) -> None:
    say = parse_moment(text, strict=False)

    assert say.written == text
    assert text.endswith(say.text)
    assert say.text == text or say.to or not isinstance(say.moment, Now)


def test_a_script_is_a_line_each() -> None:
    script = "\ufeff# a comment\r\n\r\n@iteration 1 one\r\ntwo\n   \n #three\n@done four"

    assert read_script(script, "s.txt") == [
        ScheduledLine(AtIteration(1), "one", "@iteration 1 one"),
        ScheduledLine(Now(), "two", "two"),
        ScheduledLine(Now(), " #three", " #three"),
        ScheduledLine(AtDone(), "four", "@done four"),
    ]


def test_an_empty_script_says_nothing() -> None:
    assert read_script("", "s.txt") == []


def test_a_mistake_in_a_script_is_told_with_its_line() -> None:
    with pytest.raises(UserError) as caught:
        read_script("# first\n\n@iteration two x\n", "s.txt")

    assert str(caught.value).startswith("s.txt:3: ")


def test_a_row_ends_only_at_a_newline() -> None:
    row = "a\u2028b\x0cc"

    assert read_script(row, "s.txt") == [ScheduledLine(Now(), row, row)]


ITERATION = events.IterationStarted(iteration=2, max_iterations=20)
TOOL = events.ToolCall(id="t1", name="shell", input={})
ANSWER = events.Reply(text="It is 5.", tool_calls=0)
INTERIM = events.Reply(text="Let me look.", tool_calls=2)
RESULT = events.Result(status="done", result="It is 5.")
TOOL_ENDED = events.ToolResult(id="t1", name="shell", text="", is_error=False, seconds=1)
ALL = (ITERATION, TOOL, ANSWER, INTERIM, RESULT, TOOL_ENDED)


@pytest.mark.parametrize(
    ("moment", "when"),
    [
        (AtIteration(2), ITERATION),
        (AtTool("shell"), TOOL),
        (AtAnswer(), ANSWER),
        (AtDone(), RESULT),
        (AtIteration(1), None),
        (AtIteration(3), None),
        (AtTool("read_file"), None),
        (Now(), None),
        (After(0), None),
    ],
)
def test_a_moment_is_its_event_and_no_other(moment: Moment, when: Event | None) -> None:
    assert [event for event in ALL if fires(moment, event)] == ([] if when is None else [when])


@pytest.mark.parametrize("moment", [AtIteration(2), AtAnswer(), AtDone()])
def test_iterations_answers_and_results_of_a_child_are_no_moments(moment: Moment) -> None:
    assert not any(fires(moment, replace(event, agent="explore")) for event in ALL)


def test_a_tool_that_a_child_starts_is_a_moment() -> None:
    assert fires(AtTool("shell"), replace(TOOL, agent="explore"))


ENDED = events.AgentEnded(name="explore-1", kind="explore", parent_id="t2", task="x", status="done")
STARTED = events.AgentStarted(name="explore-1", kind="explore", parent_id="t2", task="x")


@pytest.mark.parametrize(
    ("moment", "event"),
    [(AtIteration(2), ITERATION), (AtAnswer(), ANSWER), (AtTool("shell"), TOOL)],
)
@pytest.mark.parametrize("to", ["explore-1", "EXPLORE-1"])
def test_with_an_address_they_are_those_of_that_agent(moment: Moment, event: Event, to: str) -> None:
    own = replace(event, agent="explore-1")
    assert fires(moment, own, to)
    other = replace(event, agent="explore-2")
    assert fires(moment, other, to) == isinstance(moment, AtTool), "a tool is a moment, whoever calls it"


@pytest.mark.parametrize(
    ("to", "when"),
    [("", [RESULT]), ("main", [RESULT]), ("explore-1", [ENDED]), ("plan-1", [])],
)
def test_done_is_the_end_of_the_run_or_of_the_agent_of_the_address(to: str, when: list[Event]) -> None:
    assert [event for event in (*ALL, STARTED, ENDED) if fires(AtDone(), event, to)] == when


def test_a_call_that_starts_an_agent_is_a_moment_from_when_the_agent_is_there() -> None:
    result = replace(TOOL_ENDED, id="t2")
    assert [event for event in (*ALL, STARTED, ENDED, result) if fires(AtAgent("t2"), event)] == [STARTED, result]


@pytest.mark.parametrize("text", ["@README.md sum it up", "@docs/plan sum it up", '@"my notes" sum it up'])
def test_the_name_of_a_file_is_no_moment(text: str) -> None:
    assert parse_moment(text, strict=True) == ScheduledLine(Now(), text, text)
