"""The outline that events make: what stands where, and what is known of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import trying
from support.drawn import drawn
from support.eventful import FIRST, eventful

from chain import events
from chain.export.html import html
from chain.export.markdown import markdown
from chain.export.outline import MAX_DEPTH, AgentRun, CallItem, Moment, Outline, outline_of
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
                    rows.append(f"{where} {item.name} {state if item.has_started else 'unstarted'}")
                    for inside in item.agents:
                        add(inside, depth + 2)
                case AgentRun():
                    add(item, depth + 1)
                case Moment(event=events.UserInterruption() as event):
                    rows.append(f"{where} {event.point} {item.urgency}")
                case Moment(event=events.Question() | events.Answer() as event):
                    rows.append(f"{where} {event.type} {event.id}")
                case Moment(event=events.Reply() | events.ThinkingDelta()):
                    pass
                case Moment(event=event):
                    rows.append(f"{where} {event.type}")

    for run in story.runs:
        add(run, 0)
    return rows


def test_everything_is_where_it_happened() -> None:
    assert rows_of(outline_of(events_of_journal(Reading(eventful().journal.splitlines(keepends=True))))) == [
        "main: done, 9 iterations",
        "  0 A next",
        "  1 plan_set_tasks ok",
        "  1 plan_changed",
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
        "  3 plan_changed",
        "  3 C urgent",
        "  4 question Q1",
        "  4 answer Q1",
        "  4 mend ok",
        "  4 D next",
        "  5 question Q2",
        "  5 answer Q2",
        "  5 mend unstarted",
        "  6 ask_user_question ok",
        "  6 question Q3",
        "  6 answer Q3",
        "  7 plan_mark_done ok",
        "  7 plan_changed",
        "  7 plan_mark_failed ok",
        "  7 plan_changed",
        "  8 N now",
        "  0 result",
        "main: cancelled_with_partial, 2 iterations",
        "  1 slow ok",
        "  1 ledger ok",
        "  2 slow ok",
        "  2 receipt",
        "  2 look unstarted",
        "  0 result",
        "main: interrupted, 1 iterations",
        "  1 agent failed",
        "    agent-2: interrupted, 1 iterations",
        "      1 slow failed",
        "  0 result",
    ]


def test_the_title_the_tokens_and_the_outcomes_of_runs() -> None:
    told = eventful().events
    story = outline_of(told)
    assert story.title == FIRST.splitlines()[0]
    used = [e for e in told if isinstance(e, events.UsageReport)]
    assert story.tokens == sum(e.input_tokens + e.output_tokens for e in used)
    assert [run.status for run in story.runs] == ["done", "cancelled_with_partial", "interrupted"]


def test_a_line_that_still_waits_at_the_end_is_shown() -> None:
    told = eventful().events
    queued = next(n for n, e in enumerate(told) if isinstance(e, events.LineQueued) and "appendix" in e.text)
    assert [line.event for line in outline_of(told[: queued + 1]).waiting] == [told[queued]]
    for export in (html, markdown):
        assert "look at the appendix as well" in "".join(export(outline_of(told[: queued + 1])))
    assert outline_of(told).waiting == []


def test_what_comes_after_a_result_is_shown_after_it_and_makes_the_run_no_longer() -> None:
    told: list[events.Event] = [
        events.RunStarted(id="L1", query="x", time=1.0),
        events.Result(status="done", result="y", time=2.0),
        events.Notice(message="later", time=900.0),
    ]
    (run,) = outline_of(told).runs
    assert run.took == "1.0 s"
    assert [item.event.type for item in run.items() if isinstance(item, Moment)] == ["result", "notice"]


@pytest.mark.parametrize("parent", ["main", "a-{}"])
def test_agents_are_inside_each_other_up_to_a_limit(parent: str) -> None:
    told: list[events.Event] = [events.RunStarted(id="L1", query="x")]
    for n in range(1, 300):
        told.append(events.ToolCall(id=f"t{n}", name="agent", input={}, agent=f"a-{n - 1}"))
        started = {"name": f"a-{n}", "parent_id": f"t{n}", "agent": parent.format(n - 1)}
        told.append(events.AgentStarted(kind="a", task="y", **started))
    story = outline_of(told)
    assert max(agent.depth for agent in story.agents) == MAX_DEPTH
    for export in (html, markdown):
        assert "a-299" in "".join(export(story))


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
def test_nothing_is_lost_and_nothing_is_there_twice(told: list[events.Event]) -> None:
    story = outline_of(told)
    assert len({id(work) for work in story.agents}) == len(story.agents)
    items = [item for work in story.agents for item in work.items()] + story.before
    shown = [item.event for item in items if isinstance(item, Moment)]
    kinds = (events.Reply, events.ThinkingDelta, events.Answer)
    assert sorted(map(id, filter(lambda e: isinstance(e, kinds), shown))) == sorted(
        id(e) for e in told if isinstance(e, kinds)
    )
    assert sum(isinstance(e, events.Result) for e in shown) == sum(isinstance(e, events.Result) for e in told)
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
    assert [step.took for run in story.runs for step in run.steps if step.number] == ["an unknown time", "1 h 0 min"]
    written = "".join(markdown(story))
    assert "## Run 1 (interrupted, 1 iteration, an unknown time)" in written
    assert "### Iteration 1 (an unknown time)" in written
    page = "".join(html(story))
    assert "iteration 1 (an unknown time)" in page
    *begun, result = lost(1.0)
    child = [
        events.ToolCall(time=2.0, iteration=1, id="t1", name="explore", input={}),
        events.AgentStarted(time=3.0, name="explore-1", kind="explore", task="look", parent_id="t1"),
        events.AgentEnded(
            time=3600.0, name="explore-1", parent_id="t1", kind="explore", task="look", status="interrupted"
        ),
    ]
    assert [agent.took for agent in outline_of([*begun, *child, result]).agents] == ["an unknown time"] * 2
