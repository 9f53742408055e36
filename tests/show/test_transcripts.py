"""The transcript of a child agent: the rows that it would have if it were the main agent."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from support.agent_events import BELOW, DEEPEST, ONE, RUN, TWO, AgentEvents, usage
from support.renderers import above_a_prompt
from support.work import calls_of

from chain.events import Event
from cli.show.renderer import LAST
from cli.show.transcripts import MAX_AGENTS, MAX_ROWS, Transcripts


def recorded(*happened: Event, width: int = 80, color: bool = False) -> Transcripts:
    transcripts = Transcripts(color=color, ascii=False)
    for event in happened:
        transcripts.update(event, width)
    return transcripts


WORK = [
    ONE.iteration(),
    ONE.thinks("Hm, "),
    ONE.thinks("yes.\n"),
    ONE.writes("I lo"),
    ONE.writes("ok."),
    usage("explore-1", 1_000),
    ONE.reply("I look.", 1),
    ONE.tool(path="a"),
    ONE.progress("half"),
    ONE.queued(),
    ONE.result("\nfound\nmore"),
    ONE.interruption(),
    ONE.receipt("delivered"),
    ONE.iteration(2),
    ONE.reply("There are 5."),
]
SHOWN = [
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
    "There are 5.",
    "✓ 2 iterations, 1 tool call, 1,000 tokens, 5.0 s",
]


def test_a_transcript_has_only_its_agents_rows() -> None:
    other = [TWO.iteration(), TWO.writes("Mine"), TWO.tool("t7"), TWO.queued(id="L9"), TWO.reply("Mine")]
    woven = [event for pair in zip(WORK, [*other, *other, *other], strict=True) for event in pair]
    transcripts = recorded(RUN, ONE.started(), TWO.started(), *woven, TWO.ended(), ONE.ended())
    assert transcripts.rows("explore-1") == SHOWN
    assert set(transcripts.transcripts) == {"explore-1", "explore-2"}


@pytest.mark.parametrize("color", [False, True])
@pytest.mark.parametrize("width", [40, 120])
def test_the_rows_are_those_of_a_main_agent(color: bool, width: int) -> None:
    text = "# Found\n\n| file | tests |\n|---|---|\n| a.py | 5 |\n\n```python\nprint(5)\n```\n"
    work = [*WORK, ONE.iteration(3), *(ONE.writes(char) for char in text), ONE.reply(text)]
    main = above_a_prompt(color=color, ascii=False, width=width)
    expected = [row for event in work for row in main.rows(replace(event, agent="main"))]
    assert recorded(ONE.started(), *work, width=width, color=color).rows("explore-1")[1:] == expected


@pytest.mark.parametrize(
    ("happened", "last"),
    [
        ([ONE.writes("Row.\nSo"), ONE.writes(" it")], ["Row.", "So it"]),
        ([ONE.writes("So it"), ONE.ended("interrupted")],
         ["So it", "⏹ interrupted, 1 iteration, 0 tool calls, 0 tokens, 5.0 s"]),
        ([ONE.tool(), ONE.ended("max_iterations")],
         ["→ read_file()", "✗ max iterations, 1 iteration, 1 tool call, 0 tokens, 5.0 s"]),
        ([ONE.question(), ONE.answer()], ["❓ Q1 Run this command?", "  ls -la", "✓ Q1 allowed"]),
        ([ONE.ended(), ONE.started(task="and where?"), ONE.iteration(), ONE.ended()],
         ["✓ 1 iteration, 0 tool calls, 0 tokens, 5.0 s", "▶ and where?", "[1/20]",
          "✓ 1 iteration, 0 tool calls, 0 tokens, 5.0 s"]),
    ],
    ids=["writing", "interrupted", "tool without result", "question", "asked again"],
)  # fmt: skip
def test_unfinished_work_is_shown(happened: list[Event], last: list[str]) -> None:
    assert recorded(ONE.started(), ONE.iteration(), *happened).rows("explore-1")[2:] == last


def test_children_are_nested_in_their_ancestors() -> None:
    deepest = [DEEPEST.started(), usage("plan-1", 1), DEEPEST.notice(), DEEPEST.ended()]
    work = [BELOW.iteration(), BELOW.reply("Not here", 1), BELOW.tool("t3", "agent"), usage("agent-1", 10)]
    below = BELOW.around(*work, BELOW.queued(), BELOW.interruption(), *deepest)
    transcripts = recorded(ONE.started(), ONE.iteration(), *below, usage("explore-1", 100), ONE.ended(), width=120)
    assert transcripts.rows("explore-1")[2:] == [
        '→ explore(task="deeper into it")',
        "  ▶ agent-1: deeper into it",
        "  📤 Interrupting → agent-1: use B ⏳ Will inject at next safe point",
        "  [🔔 INTERRUPTION of agent-1 at iteration 2] use B ✓ Message injected (after agent, 1.2 s)",
        "    ▶ plan-1 (of agent-1): the deepest",
        "    ℹ plan-1: no file",
        "    ✓ plan-1: 0 iterations, 0 tool calls, 1 token, 5.0 s",
        "  ✓ agent-1: 1 iteration, 1 tool call, 11 tokens, 3.0 s",
        "✓ explore (5.0 s): 5 tests",
        "✓ 1 iteration, 1 tool call, 111 tokens, 5.0 s",
    ]
    assert transcripts.rows("agent-1")[:4] == ["▶ deeper into it", "[1/20]", "Not here", "→ agent()"]


def test_only_the_latest_rows_are_stored() -> None:
    count = 3 * MAX_ROWS
    rows = recorded(ONE.started(), *(ONE.notice(f"n{n}.") for n in range(count))).rows("explore-1")
    assert rows[0] == f"… {count + 1 - MAX_ROWS:,} earlier rows dropped"
    assert rows[1:] == [f"ℹ n{n}." for n in range(count - MAX_ROWS, count)]


@pytest.mark.parametrize("piece", [ONE.writes, ONE.thinks, ONE.progress])
def test_the_latest_rows_of_streaming_text_are_stored(piece: Callable[[str], Event]) -> None:
    count = 2 * MAX_ROWS
    happened = [ONE.started(), ONE.iteration(), ONE.tool(), *(piece(f"p{n}\n") for n in range(count))]
    rows = recorded(*happened).rows("explore-1")
    assert len(rows) <= MAX_ROWS + LAST + 1
    assert f"p{count - 1}" in rows[-1]


def test_the_agents_that_ended_first_are_dropped() -> None:
    many = [AgentEvents(f"explore-{n}", f"c{n}") for n in range(MAX_AGENTS + 5)]
    ended = [event for one in many[1:] for event in (one.started(), one.ended())]
    transcripts = recorded(many[0].started(), *ended)
    assert len(transcripts.transcripts) == MAX_AGENTS
    assert list(transcripts.transcripts)[:2] == ["explore-0", "explore-6"]
    assert transcripts.rows("explore-1") == ["There is no transcript of explore-1 (dropped: 5 older agents)."]
    assert recorded().rows("no such") == ["There is no transcript of no such."]


def test_the_cost_of_an_event_is_constant() -> None:
    def work(count: int) -> int:
        transcripts = recorded(ONE.started(), ONE.iteration())
        deltas = [ONE.writes("some words\n"), ONE.progress("a row\n"), ONE.notice()]
        return calls_of(lambda: [transcripts.update(delta, 80) for _ in range(count) for delta in deltas])

    assert work(500) < 6 * work(100)
