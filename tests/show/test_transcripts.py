"""A child shown whole, as if it were the main agent."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from support.painted import bare
from support.renderers import above_a_prompt
from support.tellers import BELOW, DEEPEST, ONE, RUN, TWO, Teller, usage
from support.work import calls_of

from chain import events
from chain.events import Event
from cli.show.renderer import LAST
from cli.show.transcripts import MAX_AGENTS, MAX_ROWS, Transcripts


def recorded(*happened: Event, width: int = 80, color: bool = False) -> Transcripts:
    transcripts = Transcripts(color=color, ascii=False)
    for event in happened:
        transcripts.update(event, width)
    return transcripts


def rows(name: str, *happened: Event, width: int = 80, color: bool = False) -> list[str]:
    return recorded(*happened, width=width, color=color).rows(name)


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
    ONE.progress("way"),
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
    "  way",
    "📤 Interrupting → explore-1: use B ⏳ Will inject at next safe point",
    "✓ read_file (0.2 s): found",
    "[🔔 INTERRUPTION of explore-1 at iteration 2] use B ✓ Message injected (after",
    "  read_file, 1.2 s)",
    "[2/20]",
    "There are 5.",
    "✓ 2 iterations, 1 tool call, 1,000 tokens, 5.0 s",
]


def test_a_child_looks_like_the_main_agent() -> None:
    assert rows("explore-1", RUN, *ONE.around(*WORK)) == SHOWN


@pytest.mark.parametrize("color", [False, True])
@pytest.mark.parametrize("width", [40, 120])
def test_a_childs_rows_are_those_that_the_main_agent_would_have_had(color: bool, width: int) -> None:
    text = "# Found\n\n| file | tests |\n|---|---|\n| a.py | 5 |\n\n```python\nprint(5)\n```\n"
    work = [*WORK, ONE.iteration(3), *(ONE.writes(char) for char in text), ONE.reply(text)]
    main = above_a_prompt(color=color, ascii=False, width=width)
    told = [row for event in work for row in main.lines(replace(event, agent="main"))]
    assert rows("explore-1", ONE.started(), *work, width=width, color=color)[1:] == told


def test_what_another_did_meanwhile_is_not_in_it() -> None:
    other = [TWO.iteration(), TWO.writes("Mine"), TWO.tool("t7"), TWO.queued(id="L9"), TWO.reply("Mine")]
    woven = [event for pair in zip(WORK, [*other, *other, *other, TWO.notice()], strict=True) for event in pair]
    assert rows("explore-1", ONE.started(), TWO.started(), *woven, TWO.ended(), ONE.ended()) == SHOWN


@pytest.mark.parametrize("color", [False, True])
def test_replies_are_markdown_where_there_are_colours(color: bool) -> None:
    found = rows("explore-1", ONE.started(), ONE.iteration(), ONE.reply("A **bold** word"), color=color)
    assert bare(found[-1]) == ("A bold word" if color else "A **bold** word")
    assert ("\x1b[" in found[-1]) == color


@pytest.mark.parametrize(
    ("happened", "last"),
    [
        ([ONE.writes("So it")], ["So it"]),
        ([ONE.writes("Row.\nSo"), ONE.writes(" it")], ["Row.", "So it"]),
        ([ONE.writes("So it"), ONE.retry()],
         ["↻ That reply was cut off; ignore it.", "↻ Asking again in 1.0 s (attempt 2): overloaded"]),
        ([ONE.writes("So it"), ONE.ended("interrupted")],
         ["So it", "⏹ interrupted, 1 iteration, 0 tool calls, 0 tokens, 5.0 s"]),
        ([ONE.writes("So it"), ONE.iteration(2)], ["So it", "[2/20]"]),
        ([ONE.tool(), ONE.ended("max_iterations")],
         ["→ read_file()", "✗ max iterations, 1 iteration, 1 tool call, 0 tokens, 5.0 s"]),
        ([ONE.question(), ONE.answer()], ["❓ Q1 Run this command?", "  ls -la", "✓ Q1 allowed"]),
    ],
)  # fmt: skip
def test_what_is_not_complete_is_shown_as_far_as_it_came(happened: list[Event], last: list[str]) -> None:
    assert rows("explore-1", ONE.started(), ONE.iteration(), *happened)[2:] == last


def test_its_children_have_their_places_in_it() -> None:
    happened = [
        ONE.started(), ONE.iteration(), *BELOW.around(
            BELOW.iteration(), BELOW.reply("Not here", 1), BELOW.tool("t3", "agent"), usage("agent-1", 10),
            BELOW.queued(), BELOW.interruption(),
            DEEPEST.started(), usage("plan-1", 1), DEEPEST.notice(), DEEPEST.ended(),
        ), usage("explore-1", 100), ONE.ended(),
    ]  # fmt: skip
    assert rows("explore-1", *happened, width=120)[2:] == [
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
    assert rows("agent-1", *happened, width=120)[:4] == [
        "▶ deeper into it", "[1/20]", "Not here", "→ agent()",
    ]  # fmt: skip


def test_a_child_that_is_asked_again_goes_on() -> None:
    again = ONE.started(task="and where?", parent_id="c9")
    found = rows("explore-1", *ONE.around(*WORK), again, ONE.iteration(), ONE.reply("There."), ONE.ended())
    assert found == [
        *SHOWN, "▶ and where?", "[1/20]", "There.", "✓ 1 iteration, 0 tool calls, 0 tokens, 5.0 s",
    ]  # fmt: skip


def test_of_a_long_life_the_latest_is_kept_and_the_rest_counted() -> None:
    count = 3 * MAX_ROWS
    found = rows("explore-1", ONE.started(), *(ONE.notice(f"n{n}.") for n in range(count)))
    assert found[0] == f"… {count + 1 - MAX_ROWS:,} earlier rows dropped"
    assert found[1:] == [f"ℹ n{n}." for n in range(count - MAX_ROWS, count)]


@pytest.mark.parametrize("piece", [ONE.writes, ONE.thinks, ONE.progress])
def test_of_running_text_the_latest_is_kept(piece: Callable[[str], Event]) -> None:
    count = 2 * MAX_ROWS
    found = rows("explore-1", ONE.started(), ONE.iteration(), ONE.tool(), *(piece(f"p{n}\n") for n in range(count)))
    assert len(found) <= MAX_ROWS + LAST + 1
    assert f"p{count - 1}" in found[-1]


def test_of_many_agents_the_ones_that_ended_first_are_forgotten() -> None:
    many = [Teller(f"explore-{n}", f"c{n}") for n in range(MAX_AGENTS + 5)]
    happened: list[Event] = [many[0].started()]  # which goes on
    for one in many[1:]:
        happened += [one.started(), one.ended()]
    transcripts = recorded(*happened)
    assert len(transcripts.transcripts) == MAX_AGENTS
    assert list(transcripts.transcripts)[:2] == ["explore-0", "explore-6"]
    assert transcripts.rows("explore-1") == ["There is no transcript of explore-1 (dropped: 5 older agents)."]
    assert rows("no\x1b[2J such") == ["There is no transcript of no such."]


def test_events_of_the_main_agent_are_not_kept() -> None:
    assert recorded(RUN, events.Reply(text="x", tool_calls=0)).transcripts == {}


def test_events_are_the_same_work_however_many_came_before() -> None:
    def work(count: int) -> int:
        transcripts = recorded(ONE.started(), ONE.iteration())
        deltas = [ONE.writes("some words\n"), ONE.progress("a row\n"), ONE.notice()]
        return calls_of(lambda: [transcripts.update(delta, 80) for _ in range(count) for delta in deltas])

    assert work(2_000) < 11 * work(200)
