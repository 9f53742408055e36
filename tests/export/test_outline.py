"""The outline that events make: what stands where, and what is known of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from support import trying
from support.drawn import drawn
from support.eventful import FIRST, eventful

from chain import events
from chain.export.html import html
from chain.export.markdown import markdown
from chain.export.outline import (
    AgentRun,
    CallItem,
    Delivered,
    Outline,
    PlanItem,
    QuestionItem,
    Remark,
    ReplyItem,
    ThoughtItem,
    outline_of,
)
from chain.journal.reading import Reading
from chain.session.restored_state import events_of_journal


def rows_of(story: Outline) -> list[str]:
    """A row for each part, further in for what is inside a call."""
    rows: list[str] = []

    def add(work: AgentRun, depth: int) -> None:
        rows.append(f"{'  ' * depth}{work.agent}: {work.status}, {work.iterations} iterations")
        for number, item in ((step.number, item) for step in work.steps for item in step.items):
            where = f"{'  ' * depth}  {number}"
            match item:
                case CallItem():
                    state = "open" if item.result is None else "failed" if item.result.is_error else "ok"
                    rows.append(f"{where} {item.name} {'unstarted' if item.input is None else state}")
                    for inside in item.agents:
                        add(inside, depth + 2)
                case Delivered():
                    rows.append(f"{where} {item.event.point} {item.urgency}")
                case QuestionItem():
                    rows.append(f"{where} {item.event.id} {item.answer.decision if item.answer else 'open'}")
                case PlanItem():
                    rows.append(f"{where} plan of {len(item.event.tasks)}, before of {len(item.before)}")
                case Remark():
                    rows.append(f"{where} {item.event.type}")
                case ReplyItem() | ThoughtItem():
                    pass
                case AgentRun():
                    add(item, depth + 1)

    for run in story.runs:
        add(run, 0)
    return rows


def test_everything_stands_where_it_happened() -> None:
    assert rows_of(outline_of(eventful().events)) == [
        "main: done, 9 iterations",
        "  0 A next",
        "  1 plan_set_tasks ok",
        "  1 plan of 3, before of 0",
        "  2 explore ok",
        "    explore-1: done, 3 iterations",
        "      1 read_reports ok",
        "      1 D next",
        "      2 watch ok",
        "      2 watch ok",
        "  2 agent ok",
        "    agent-1: done, 3 iterations",
        "      1 read_reports ok",
        "      2 explore ok",
        "        explore-2: done, 2 iterations",
        "          1 ledger ok",
        "  3 ledger failed",
        "  3 read_reports ok",
        "  3 slow unstarted",
        "  3 plan of 4, before of 3",
        "  3 C urgent",
        "  4 Q1 allowed",
        "  4 mend ok",
        "  4 D next",
        "  5 Q2 refused",
        "  5 mend unstarted",
        "  6 ask_user_question ok",
        "  6 Q3 answered",
        "  7 plan_mark_done ok",
        "  7 plan of 4, before of 4",
        "  7 plan_mark_failed ok",
        "  7 plan of 4, before of 4",
        "  8 N now",
        "main: cancelled_with_partial, 2 iterations",
        "  1 slow ok",
        "  1 ledger ok",
        "  2 slow ok",
        "  2 receipt",
        "  2 look unstarted",
        "main: interrupted, 1 iterations",
        "  1 agent failed",
        "    agent-2: interrupted, 1 iterations",
        "      1 slow failed",
    ]


def test_the_journal_tells_the_same_story() -> None:
    told = list(events_of_journal(Reading(eventful().journal.splitlines(keepends=True))))
    story, lived = outline_of(told), outline_of(eventful().events)
    assert rows_of(story) == rows_of(lived)
    assert waits(story) == waits(lived)
    assert story.tokens == lived.tokens


def waits(story: Outline) -> list[float]:
    """How long the user's lines had waited, in the order in which they landed."""
    items = [item for work in story.agents() for item in work.items() if isinstance(item, Delivered)]
    return [round(item.event.waited_s, 3) for item in sorted(items, key=lambda item: item.at)]


def test_what_a_story_is_known_by() -> None:
    told = eventful().events
    story = outline_of(told)
    assert story.title == FIRST.splitlines()[0]
    used = [e for e in told if isinstance(e, events.UsageReport)]
    assert story.tokens == sum(e.input_tokens + e.output_tokens for e in used)
    assert [run.result.status if run.result else None for run in story.runs] == [
        "done",
        "cancelled_with_partial",
        "interrupted",
    ]
    assert story.runs[0].answer is not None
    assert story.runs[1].answer is None, "what was cut is no answer"


def test_a_story_that_a_crash_cut_short_has_all_that_was_told() -> None:
    told = eventful().events
    for end in range(0, len(told), 7):
        story = outline_of(told[:end])
        assert len(story.runs) == sum(isinstance(e, events.RunStarted) for e in told[:end])
    begun = next(n for n, e in enumerate(told) if isinstance(e, events.ToolCall) and e.name == "ledger")
    assert rows_of(outline_of(told[: begun + 1]))[-1] == "          1 ledger open"


def test_a_result_that_comes_twice_counts_once() -> None:
    told = [events.RunStarted(id="L1", query="x", time=1.0), events.Result(status="done", result="y", time=2.0)]
    story = outline_of([*told, events.Result(status="done", result="y", time=900.0)])
    assert [(run.number, run.ended) for run in story.runs] == [(1, 2.0)]


ids = st.sampled_from(["a", "b", "c"])
names = st.sampled_from(["main", "explore-1", "agent-1", "nobody"])
strange = st.lists(
    st.one_of(
        drawn(kind, agent=names, id=ids, parent_id=ids, text=ids, **({"name": names} if "agent" in kind.type else {}))
        for kind in (
            *(events.RunStarted, events.IterationStarted, events.ThinkingDelta, events.Reply, events.ToolCall),
            *(events.ToolResult, events.AgentStarted, events.AgentEnded, events.Answer, events.Result),
        )
    ),
    max_size=30,
)
"""Events in any order, as a journal could tell that was damaged."""


@trying(60)
@given(strange)
def test_nothing_that_is_told_is_lost_and_nothing_stands_twice(told: list[events.Event]) -> None:
    story = outline_of(told)
    works = list(story.agents())
    assert len({id(work) for work in works}) == len(works)
    replies = [e.text for e in told if isinstance(e, events.Reply)]
    items = [item for work in works for item in work.items()] + story.before
    assert sorted(item.text for item in items if isinstance(item, ReplyItem)) == sorted(replies)
    calls = [item for item in items if isinstance(item, CallItem)]
    assert len({call.at for call in calls}) == len(calls)
    assert sum(call.result is not None for call in calls) == sum(isinstance(e, events.ToolResult) for e in told)


def test_of_what_ended_with_the_program_nobody_knows_how_long_it_took() -> None:
    def lost(at: float, *, is_lost: bool = True) -> list[events.Event]:
        begun = [
            events.RunStarted(time=at, id="L1", query="go"),
            events.IterationStarted(time=at, iteration=1, max_iterations=9),
        ]
        end = events.Result(
            time=at + 3600.0, iteration=1, iterations=1, status="interrupted", result="x", program_ended=is_lost
        )
        return [*begun, end]

    told = [*lost(1.0), *lost(5000.0, is_lost=False)]
    story = outline_of(told)
    assert [run.took for run in story.runs] == ["an unknown time", "1 h 0 min"]
    assert [step.took for run in story.runs for step in run.steps] == ["an unknown time", "1 h 0 min"]
    written = "".join(markdown(story))
    assert "## Run 1 (interrupted, 1 iteration, an unknown time)" in written
    assert "### Iteration 1 (an unknown time)" in written
    page = "".join(html(story))
    assert "more than 1 h 0 min" in page
    assert "iteration 1: an unknown time" in page
    *begun, result = lost(1.0)
    child = [
        events.ToolCall(time=2.0, iteration=1, id="t1", name="explore", input={}),
        events.AgentStarted(time=3.0, name="explore-1", kind="explore", task="look", parent_id="t1"),
        events.AgentEnded(
            time=3600.0, name="explore-1", parent_id="t1", kind="explore", task="look", status="interrupted"
        ),
    ]
    assert [agent.took for agent in outline_of([*begun, *child, result]).agents()] == ["an unknown time"] * 2
