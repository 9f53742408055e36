"""The transcript of a child agent: the rows that it would have if it were the main agent."""

from collections.abc import Callable
from dataclasses import replace
from itertools import cycle

import pytest
from support.agent_events import CHILD, EXPLORATION, GRANDCHILD, GREAT_GRANDCHILD, SECOND_CHILD, AgentEvents
from support.rows import count_calls, prompt_renderer

from chain.events import Event
from cli.show.renderer import LAST
from cli.show.transcripts import MAX_AGENTS, MAX_ROWS, Transcripts


def transcripts_of(*stream: Event, width: int = 80, color: bool = False) -> Transcripts:
    transcripts = Transcripts(color=color, ascii=False)
    for event in stream:
        transcripts.update(event, width)
    return transcripts


ROWS_OF_EXPLORATION = [
    "▶ find the tests",
    "[1/20]",
    "Hm, yes.",
    "I look.",
    '→ read_file(path="a")',
    "  half",
    "📤 Interrupting → explore-1: use B ⏳ Will inject at next safe point",
    "✓ read_file (0.2 s): found",
    "[🔔 INTERRUPTION of explore-1 at iteration 2] use B ✓ Message injected (after",
    "  read_file, 1.2 s)",
    "[2/20]",
    "5 tests",
    "✓ 2 iterations, 1 tool call, 1,234 tokens, 5.0 s",
]


def test_a_transcript_has_only_its_agents_rows() -> None:
    others = cycle([
        SECOND_CHILD.iteration(), SECOND_CHILD.text_delta("Mine"), SECOND_CHILD.tool_call("t7"),
        SECOND_CHILD.queued(id="L9"), SECOND_CHILD.reply("Mine"),
    ])  # fmt: skip
    alternating = [event for own in EXPLORATION for event in (own, next(others))]
    stream = [CHILD.started(), SECOND_CHILD.started(), *alternating, SECOND_CHILD.ended(), CHILD.ended()]
    transcripts = transcripts_of(*stream)
    assert transcripts.rows("explore-1") == ROWS_OF_EXPLORATION
    assert set(transcripts.transcripts) == {"explore-1", "explore-2"}


@pytest.mark.parametrize("color", [False, True])
@pytest.mark.parametrize("width", [40, 120])
def test_the_rows_are_those_of_a_main_agent(color: bool, width: int) -> None:
    (row_of_task,) = transcripts_of(CHILD.started(), width=width, color=color).rows("explore-1")
    text = "# Found\n\n| file | tests |\n|---|---|\n| a.py | 5 |\n\n```python\nprint(5)\n```\n"
    work = [*EXPLORATION, CHILD.iteration(3), *(CHILD.text_delta(char) for char in text), CHILD.reply(text)]
    main = prompt_renderer(color=color, ascii=False, width=width)
    expected = [row for event in work for row in main.rows(replace(event, agent="main"))]
    transcript = transcripts_of(CHILD.started(), *work, width=width, color=color).rows("explore-1")
    assert transcript == [row_of_task, *expected]


LAST_ROWS: dict[str, tuple[list[Event], list[str]]] = {
    "writing": ([CHILD.text_delta("Row.\nSo"), CHILD.text_delta(" it")], ["Row.", "So it"]),
    "interrupted": ([CHILD.text_delta("So it"), CHILD.ended("interrupted")],
                    ["So it", "⏹ interrupted, 1 iteration, 0 tool calls, 0 tokens, 5.0 s"]),
    "tool without result": ([CHILD.tool_call(), CHILD.ended("max_iterations")],
                            ["→ read_file()", "✗ max iterations, 1 iteration, 1 tool call, 0 tokens, 5.0 s"]),
    "question": ([CHILD.question(), CHILD.answer()], ["❓ Q1 Run this command?", "  ls -la", "✓ Q1 allowed"]),
}  # fmt: skip


@pytest.mark.parametrize(("stream", "last"), LAST_ROWS.values(), ids=LAST_ROWS)
def test_unfinished_work_is_shown(stream: list[Event], last: list[str]) -> None:
    rows = transcripts_of(CHILD.started(), CHILD.iteration(), *stream).rows("explore-1")
    assert rows == ["▶ find the tests", "[1/20]", *last]


def test_a_second_task_is_below_the_first() -> None:
    transcripts = transcripts_of(CHILD.started(), CHILD.ended(), CHILD.started(task="and where?"), CHILD.ended())
    end = "✓ 0 iterations, 0 tool calls, 0 tokens, 5.0 s"
    assert transcripts.rows("explore-1") == ["▶ find the tests", end, "▶ and where?", end]


def test_children_are_nested_in_their_ancestors() -> None:
    work_of_grandchild = GRANDCHILD.around(
        GRANDCHILD.iteration(), GRANDCHILD.reply("Not here", 1), GRANDCHILD.tool_call("t3", "agent"),
        GRANDCHILD.usage(10), GRANDCHILD.queued(), GRANDCHILD.interruption(),
        GREAT_GRANDCHILD.started(), GREAT_GRANDCHILD.usage(1), GREAT_GRANDCHILD.notice(), GREAT_GRANDCHILD.ended(),
    )  # fmt: skip
    transcripts = transcripts_of(CHILD.started(), *work_of_grandchild, CHILD.usage(100), CHILD.ended(), width=120)
    assert transcripts.rows("explore-1") == [
        "▶ find the tests",
        '→ explore(task="deeper into it")',
        "  ▶ agent-1: deeper into it",
        "  📤 Interrupting → agent-1: use B ⏳ Will inject at next safe point",
        "  [🔔 INTERRUPTION of agent-1 at iteration 2] use B ✓ Message injected (after agent, 1.2 s)",
        "    ▶ plan-1 (of agent-1): the deepest",
        "    ℹ plan-1: no file",
        "    ✓ plan-1: 0 iterations, 0 tool calls, 1 token, 5.0 s",
        "  ✓ agent-1: 1 iteration, 1 tool call, 11 tokens, 3.0 s",
        "✓ explore (5.0 s): 5 tests",
        "✓ 0 iterations, 1 tool call, 111 tokens, 5.0 s",
    ]
    task, iteration, reply, call, *_ = transcripts.rows("agent-1")
    assert [task, iteration, reply, call] == ["▶ deeper into it", "[1/20]", "Not here", "→ agent()"]


def test_only_the_latest_rows_are_stored() -> None:
    count = 3 * MAX_ROWS
    note, *rows = transcripts_of(CHILD.started(), *(CHILD.notice(f"n{n}.") for n in range(count))).rows("explore-1")
    rows_with_start = count + 1
    assert note == f"… {rows_with_start - MAX_ROWS:,} earlier rows dropped"
    assert rows == [f"ℹ n{n}." for n in range(count - MAX_ROWS, count)]


@pytest.mark.parametrize(
    "delta", [CHILD.text_delta, CHILD.thinking_delta, CHILD.progress], ids=["text", "thought", "tool output"]
)
def test_the_latest_rows_of_streaming_text_are_stored(delta: Callable[[str], Event]) -> None:
    deltas = [*(delta(f"row {n}\n") for n in range(2 * MAX_ROWS)), delta("last row\n")]
    rows = transcripts_of(CHILD.started(), CHILD.iteration(), CHILD.tool_call(), *deltas).rows("explore-1")
    # Besides the stored rows: the number of dropped ones, and the rows at the end of a tool's output.
    assert len(rows) <= MAX_ROWS + 1 + LAST
    assert "last row" in rows[-1]


def test_the_agents_that_ended_first_are_dropped() -> None:
    dropped = 5
    working, *ended = (AgentEvents(f"explore-{n}", call=f"c{n}") for n in range(MAX_AGENTS + dropped))
    transcripts = transcripts_of(working.started(), *(event for one in ended for event in (one.started(), one.ended())))
    assert list(transcripts.transcripts) == [agent.name for agent in (working, *ended[dropped:])]
    assert transcripts.rows("explore-1") == ["There is no transcript of explore-1 (dropped: 5 older agents)."]


def test_an_unknown_agent_has_no_transcript() -> None:
    assert transcripts_of().rows("no such") == ["There is no transcript of no such."]


def test_the_cost_of_an_event_is_constant() -> None:
    def cost_of_events(count: int) -> int:
        transcripts = transcripts_of(CHILD.started(), CHILD.iteration())
        stream = [CHILD.text_delta("some words\n"), CHILD.progress("a row\n"), CHILD.notice()]
        return count_calls(lambda: [transcripts.update(event, 80) for _ in range(count) for event in stream])

    assert cost_of_events(500) < 6 * cost_of_events(100)  # 5 times if the cost is constant, else 25
