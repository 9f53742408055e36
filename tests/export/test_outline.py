"""The outline of a session: runs, iterations, calls and agents in their places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.eventful import FIRST, eventful_session
from support.examples import max_examples
from support.strategies import instances_of

from chain import events
from chain.export.html import render_html
from chain.export.markdown import render_markdown
from chain.export.outline import MAX_DEPTH, AgentRun, CallItem, Moment, Outline, outline_of
from chain.journal.reading import Reading
from chain.session.restored_state import events_of_journal


def rows_of(outline: Outline) -> list[str]:
    """Return a row for each part: its iteration, and a call, an event, or the safe point and the urgency of a line."""
    rows: list[str] = []

    def add(run: AgentRun, depth: int) -> None:
        rows.append(f"{'  ' * depth}{run.agent}: {run.status}, {run.iterations} iterations")
        for number, item in ((step.number, item) for step in run.steps for item in step.items):
            where = f"{'  ' * depth}  {number}"
            match item:
                case CallItem():
                    state = "open" if item.result is None else "failed" if item.result.is_error else "ok"
                    rows.append(f"{where} {item.name} {state if item.has_started else 'unstarted'}")
                    for agent_run in item.agents:
                        add(agent_run, depth + 2)
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

    for run in outline.runs:
        add(run, 0)
    return rows


def test_outline_nests_agents_in_their_calls() -> None:
    assert rows_of(outline_of(events_of_journal(Reading(eventful_session().journal.splitlines(keepends=True))))) == [
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


def test_title_is_the_first_row_of_a_query() -> None:
    assert outline_of(eventful_session().events).title == FIRST.splitlines()[0]


def test_tokens_are_those_of_all_requests() -> None:
    reports = [e for e in eventful_session().events if isinstance(e, events.UsageReport)]
    assert outline_of(eventful_session().events).tokens == sum(e.input_tokens + e.output_tokens for e in reports)


def events_until_line() -> tuple[list[events.Event], events.LineQueued]:
    """Return the events until a line is queued, and the event of the line."""
    happened = [*eventful_session().events]
    line = next(event for event in happened if isinstance(event, events.LineQueued) and "appendix" in event.text)
    return happened[: happened.index(line) + 1], line


def test_line_that_still_waits_is_shown() -> None:
    happened, line = events_until_line()
    outline = outline_of(happened)
    assert [waiting.event for waiting in outline.waiting] == [line]
    for export in (render_html, render_markdown):
        assert "look at the appendix as well" in "".join(export(outline))


def test_dropped_line_does_not_wait() -> None:
    happened, line = events_until_line()
    dropped = events.Receipt(id=line.id, text=line.text, state="dropped")
    assert outline_of([*happened, dropped]).waiting == []


def test_delivered_line_does_not_wait() -> None:
    assert outline_of(eventful_session().events).waiting == []


def test_event_after_a_result_prolongs_no_run() -> None:
    happened: list[events.Event] = [
        events.RunStarted(id="L1", query="x", time=1.0),
        events.Result(status="done", result="y", time=2.0),
        events.Notice(message="later", time=900.0),
    ]
    (run,) = outline_of(happened).runs
    assert run.duration_text == "1.0 s"
    assert [item.event.type for item in run.items() if isinstance(item, Moment)] == ["result", "notice"]


@pytest.mark.parametrize("parent", ["main", "a-{}"], ids=["all of main", "each of the one before"])
def test_nesting_of_agents_is_limited(parent: str) -> None:
    happened: list[events.Event] = [events.RunStarted(id="L1", query="x")]
    for n in range(1, 300):
        happened.append(events.ToolCall(id=f"t{n}", name="agent", input={}, agent=f"a-{n - 1}"))
        names = {"name": f"a-{n}", "parent_id": f"t{n}", "agent": parent.format(n - 1)}
        happened.append(events.AgentStarted(kind="a", task="y", **names))
    outline = outline_of(happened)
    assert max(agent.depth for agent in outline.agents) == MAX_DEPTH
    for export in (render_html, render_markdown):
        assert "a-299" in "".join(export(outline)), "no agent is lost"


def test_duration_is_unknown_if_the_program_ended() -> None:
    call = events.ToolCall(time=2.0, iteration=1, id="t1", name="explore", input={})
    agent = {"name": "explore-1", "kind": "explore", "task": "look", "parent_id": "t1"}
    run = [
        events.RunStarted(time=1.0, id="L1", query="go"),
        events.IterationStarted(time=1.0, iteration=1, max_iterations=9),
        call,
        events.AgentStarted(time=3.0, **agent),
        events.AgentEnded(time=3600.0, status="interrupted", **agent),
    ]
    result = {"time": 3601.0, "iteration": 1, "iterations": 1, "status": "interrupted", "result": "x"}
    known = outline_of([*run, events.Result(program_ended=False, **result)])
    assert [agent.duration_text for agent in known.agents] == ["1 h 0 min", "59 min 57 s"]
    unknown = outline_of([*run, events.Result(program_ended=True, **result)])
    assert [agent.duration_text for agent in unknown.agents] == ["an unknown time", "an unknown time"]
    document = "".join(render_markdown(unknown))
    assert "## Run 1 (interrupted, 1 iteration, an unknown time)" in document
    assert "### Iteration 1 (an unknown time)" in document
    assert "iteration 1 (an unknown time)" in "".join(render_html(unknown))


IDS = st.sampled_from(["a", "b", "c"])
NAMES = st.sampled_from(["main", "explore-1", "agent-1", "nobody"])
KINDS = (
    *(events.RunStarted, events.IterationStarted, events.ThinkingDelta, events.Reply, events.ToolCall),
    *(events.ToolResult, events.AgentStarted, events.AgentEnded, events.Answer, events.Result),
)
EVENT = st.one_of(
    instances_of(
        kind, agent=NAMES, id=IDS, parent_id=IDS, text=IDS, **({"name": NAMES} if "agent" in kind.type else {})
    )
    for kind in KINDS
)


@max_examples(60)
@given(st.lists(EVENT, max_size=30))
def test_damaged_journal_loses_and_repeats_nothing(happened: list[events.Event]) -> None:
    def count(items: Iterable[object], *kinds: type) -> Counter[int]:
        """Count objects of these types by identity, since equal events may occur more than once."""
        return Counter(id(each) for each in items if isinstance(each, kinds))

    outline = outline_of(happened)
    items = [item for run in outline.agents for item in run.items()] + outline.preamble
    shown = [item.event for item in items if isinstance(item, Moment)]
    unchanged = (events.Reply, events.ThinkingDelta, events.Answer)
    assert count(shown, *unchanged) == count(happened, *unchanged)
    assert count(shown, events.Result).total() == count(happened, events.Result).total()
    calls = [item for item in items if isinstance(item, CallItem)]
    assert len({call.index for call in calls}) == len(calls)
    assert count([call.result for call in calls], events.ToolResult) == count(happened, events.ToolResult)
