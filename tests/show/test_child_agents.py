"""The rows of child agents: nested below the call that started them, and at a terminal collapsed."""

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.agent_events import (
    CHILD,
    EXPLORATION,
    GRANDCHILD,
    GREAT_GRANDCHILD,
    ITERATION,
    MAIN,
    RUN,
    SECOND_CHILD,
    AgentEvents,
)
from support.rows import (
    MakeRenderer,
    check_row,
    count_calls,
    prompt_renderer,
    rows_and_tail,
    rows_of,
    tail_of,
    terminal_renderer,
)

from chain import events
from chain.events import Event
from cli.show.child_agents import MOST_ROWS, short_name
from cli.show.renderer import LAST, Renderer
from cli.show.text_rows import columns

STARTED = "  ▶ explore-1: find the tests"
GRANDCHILD_STARTED = "    ▶ agent-1 (of explore-1): deeper into it"
QUEUED = "  📤 Interrupting → explore-1: use B ⏳ Will inject at next safe point"
DELIVERED = "  [🔔 INTERRUPTION of explore-1 at iteration 2] use B ✓ Message injected (before a tool, 1.2 s)"
DELIVERED_AFTER_TOOL = DELIVERED.replace("before a tool", "after read_file")


def tail_after(*stream: Event) -> list[str]:
    _, tail = rows_and_tail(*stream)
    return tail


def children(count: int) -> list[AgentEvents]:
    return [AgentEvents(f"explore-{n}", call=f"c{n}") for n in range(1, count + 1)]


# ------------------------------------------------------------------------------------------------- above the prompt

ROWS_OF_CHILD: dict[str, tuple[list[Event], list[str]]] = {
    "exploration": (
        [*EXPLORATION, CHILD.ended()],
        [QUEUED, DELIVERED_AFTER_TOOL, "  explore-1: 5 tests",
         "  ✓ explore-1: 2 iterations, 1 tool call, 1,234 tokens, 5.0 s"],
    ),
    "cancelled": ([CHILD.ended("cancelled_with_partial")],
                  ["  ⏹ explore-1: cancelled with partial, 0 iterations, 0 tool calls, 0 tokens, 5.0 s"]),
    "line before a tool": ([CHILD.queued(), CHILD.interruption(), CHILD.receipt("delivered")], [QUEUED, DELIVERED]),
    "line after a tool": ([CHILD.tool_call(), CHILD.tool_result(), CHILD.interruption()], [DELIVERED_AFTER_TOOL]),
    "line in a later iteration": (
        [CHILD.tool_call(), CHILD.tool_result(), CHILD.iteration(2), CHILD.interruption()], [DELIVERED]
    ),
    "returned line": ([CHILD.receipt("returned", reason="it was stopped")],
                      ["  ↩ explore-1: Returned (it was stopped): use B"]),
    "stop": ([CHILD.receipt("handled", "stop", kind="stop")], ["  ⏹ explore-1: stop"]),
    "question": ([CHILD.question()], ["  ❓ explore-1: Q1 Run this command?", "    ls -la"]),
    "answer": ([CHILD.answer()], ["  ✓ explore-1: Q1 allowed"]),
    "retry": ([CHILD.retry()], ["  ↻ explore-1: Asking again in 1.0 s (attempt 2): overloaded"]),
    "notice": ([CHILD.notice()], ["  ℹ explore-1: no file"]),
    "error": ([CHILD.error()], ["  ✗ explore-1: the service is gone"]),
    "grandchild": ([GRANDCHILD.started(), GRANDCHILD.notice()], [GRANDCHILD_STARTED, "    ℹ agent-1: no file"]),
    "great-grandchild": (
        [GRANDCHILD.started(), GREAT_GRANDCHILD.started(), GREAT_GRANDCHILD.error()],
        [GRANDCHILD_STARTED, "      ▶ plan-1 (of agent-1): the deepest", "      ✗ plan-1: the service is gone"],
    ),
    "second child": (
        [SECOND_CHILD.started(), SECOND_CHILD.notice()],
        ["  ▶ explore-2: read the documents of the project and sum them up", "  ℹ explore-2: no file"],
    ),
    "only the reply to a line": (
        [CHILD.reply("I look.", 1), CHILD.interruption(), CHILD.reply("Heard: B.", 1), CHILD.reply("I continue.", 1)],
        [DELIVERED, "  explore-1: Heard: B."],
    ),
    "tokens include those of children": (
        [CHILD.usage(1), GRANDCHILD.started(), GRANDCHILD.usage(10), GRANDCHILD.ended(), CHILD.ended()],
        [GRANDCHILD_STARTED, "    ✓ agent-1: 0 iterations, 0 tool calls, 10 tokens, 3.0 s",
         "  ✓ explore-1: 0 iterations, 0 tool calls, 11 tokens, 5.0 s"],
    ),
    "a second task has its own counts": (
        [CHILD.iteration(2), CHILD.tool_call(), CHILD.usage(1),
         CHILD.started(task="and where?"), CHILD.iteration(), CHILD.ended()],
        ["  ▶ explore-1: and where?", "  ✓ explore-1: 1 iteration, 0 tool calls, 0 tokens, 5.0 s"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("stream", "rows"), ROWS_OF_CHILD.values(), ids=ROWS_OF_CHILD)
def test_a_collapsed_child_shows_only_exchanges(stream: list[Event], rows: list[str]) -> None:
    shown, _ = rows_and_tail(CHILD.started(), *stream, width=120)
    assert shown == [STARTED, *rows]


@pytest.mark.parametrize(
    ("recipient", "new_recipient", "indent"),
    [pytest.param(GRANDCHILD, CHILD, "  ", id="to a child"), pytest.param(CHILD, MAIN, "", id="to the main agent")],
)
def test_a_readdressed_line_is_not_repeated(recipient: AgentEvents, new_recipient: AgentEvents, indent: str) -> None:
    lines = recipient.queued("use\nB"), new_recipient.queued("use\nB")
    rows, _ = rows_and_tail(CHILD.started(), GRANDCHILD.started(), *lines)
    assert rows[-2:] == [f"{indent}📤 use", f"{indent}  B ⏳ Now waits for {new_recipient.name}"]


@pytest.mark.parametrize(
    "settlement",
    [CHILD.receipt("dropped"), CHILD.receipt("delivered"), CHILD.interruption()],
    ids=["dropped", "delivered", "interruption"],
)
def test_a_settled_lines_id_can_be_reused(settlement: Event) -> None:
    rows, _ = rows_and_tail(CHILD.started(), CHILD.queued(), settlement, MAIN.queued())  # both lines are L2
    assert rows[-1] == "📤 Interrupting: use B ⏳ Will inject at next safe point"


def test_possible_answers_are_indented_like_their_question() -> None:
    renderer = prompt_renderer(color=False, ascii=False, width=40)
    rows_of(renderer, CHILD.started(), GRANDCHILD.started(), GRANDCHILD.question())
    assert all(row.startswith("      ") and columns(row) <= 40 for row in renderer.hint(GRANDCHILD.question()))


@pytest.mark.parametrize(
    ("name", "width", "shown"),
    [
        ("explore-1", 80, "explore-1"),
        ("explore-1", 20, "explo…-1"),
        ("a-very-long-name-of-a-kind-of-agent-12", 80, "a-very-long-name-of-…-12"),
        ("without_any_number_at_all", 40, "without_any_…"),
        ("explore\n-1", 80, "explore -1"),
        ("", 80, "agent"),
    ],
    ids=["short", "narrow row", "longer than any name shown", "no number", "newline", "empty"],
)
def test_a_cut_name_keeps_its_number(name: str, width: int, shown: str) -> None:
    assert short_name(name, width, "…") == shown


# ---------------------------------------------------------------------------------------------------------- the tail

ACTIVITIES: dict[str, tuple[list[Event], str]] = {
    "starting": ([], " · starting"),
    "iteration": ([CHILD.iteration(2)], " 2/20 · thinking"),
    "thought": ([CHILD.iteration(), CHILD.thinking_delta("hm")], " 1/20 · thinking"),
    "last row of text": (
        [CHILD.iteration(), CHILD.text_delta("One row\nand an"), CHILD.text_delta("other")], " 1/20 · and another"
    ),
    "text before blank rows": ([CHILD.iteration(), CHILD.text_delta("One row\n\n")], " 1/20 · One row"),
    "reply": ([CHILD.iteration(), CHILD.reply("Whole\nreply", 1)], " 1/20 · reply"),
    "retry": ([CHILD.iteration(), CHILD.text_delta("void"), CHILD.retry()], " 1/20 · asks again"),
    "after a retry": (
        [CHILD.iteration(), CHILD.text_delta("void"), CHILD.retry(), CHILD.iteration()], " 1/20 · thinking"
    ),
    "tool": ([CHILD.iteration(), CHILD.text_delta("So"), CHILD.tool_call()], " 1/20 · read_file"),
    "two tools": (
        [CHILD.iteration(), CHILD.tool_call(), CHILD.tool_call("t2", "list_files")], " 1/20 · list_files +1"
    ),
    "finished tool": ([CHILD.iteration(), CHILD.tool_call(), CHILD.tool_result()], " 1/20 · thinking"),
    "answered question": ([CHILD.iteration(), CHILD.question(), CHILD.answer()], " 1/20 · thinking"),
}  # fmt: skip


@pytest.mark.parametrize(("stream", "activity"), ACTIVITIES.values(), ids=ACTIVITIES)
def test_the_tail_has_a_childs_activity(stream: list[Event], activity: str) -> None:
    assert tail_after(CHILD.started(), *stream) == [f"  ● explore-1{activity} · find the tests"]


def test_a_child_that_asks_has_another_sign() -> None:
    assert tail_after(CHILD.started(), CHILD.question()) == ["  ❓ explore-1 · Q1 waits · find the tests"]


def test_children_are_below_their_parents() -> None:
    text = "I see now that the documents say more than the tests do, and that they are older"
    starts = [CHILD.started(), CHILD.iteration(), SECOND_CHILD.started()]
    grandchild = [CHILD.tool_call("t2", "agent"), GRANDCHILD.started(), GRANDCHILD.text_delta(text)]
    tail = tail_after(*starts, *grandchild)
    assert tail == [
        "  ● explore-1 1/20 · agent · find the tests",
        "    ● agent-1 · …ore than the tests do, and that they are older · deeper into it",
        "  ● explore-2 · starting · read the documents of the project and sum them up",
    ]


@pytest.mark.parametrize(
    ("count", "last"),
    [
        (MOST_ROWS, f"  ● explore-{MOST_ROWS} · starting · find the tests"),
        (MOST_ROWS + 1, "  … and 2 more agents"),  # the row of the count replaces an agent's
        (MOST_ROWS + 40, "  … and 41 more agents"),
    ],
)
def test_children_without_a_row_are_counted(count: int, last: str) -> None:
    tail = tail_after(*(child.started() for child in children(count)))
    first_rows = [f"  ● explore-{n} · starting · find the tests" for n in range(1, MOST_ROWS)]
    assert tail == [*first_rows, last]


@pytest.mark.parametrize(
    ("stream", "tail"),
    [
        ([CHILD.started(), SECOND_CHILD.started(), CHILD.ended(), SECOND_CHILD.ended()], []),
        ([CHILD.started(), events.Result(status="interrupted", result="")], []),
        ([CHILD.started(), MAIN.text_delta("So I")], ["So I"]),
    ],
    ids=["ended", "run ended", "the main agent writes"],
)
def test_the_tail_shows_children_at_work_only(stream: list[Event], tail: list[str]) -> None:
    assert tail_after(*stream) == tail


PROGRESS = [MAIN.progress(f"row {n}\n") for n in range(30)]
LAST_OF_PROGRESS = [f"  row {n}" for n in range(30 - LAST, 30)]


def test_the_main_agents_progress_is_below_the_children() -> None:
    childs_progress = CHILD.progress("no row\n" * 30)
    tail = tail_after(MAIN.tool_call(), CHILD.started(), *PROGRESS, CHILD.tool_call(), childs_progress)
    assert tail == ["  ● explore-1 · read_file · find the tests", *LAST_OF_PROGRESS]


def test_many_children_leave_one_row_of_progress() -> None:
    most = children(MOST_ROWS - 1)
    tail = tail_after(MAIN.tool_call(), *(child.started() for child in most), *PROGRESS)
    assert tail[-2:] == [f"  ● {most[-1].name} · starting · find the tests", LAST_OF_PROGRESS[0]]


# ------------------------------------------------------------------------------------------------------ not collapsed


@pytest.mark.parametrize("make", [Renderer, terminal_renderer], ids=["headless", "at a terminal"])
def test_a_childs_work_is_shown_without_a_prompt(make: MakeRenderer) -> None:
    renderer = make(color=False, ascii=False, width=120)
    assert rows_of(renderer, *CHILD.around(*EXPLORATION)) == [
        '→ explore(task="find the tests")',
        STARTED,
        "  [explore-1 1/20]",
        "  explore-1: I look.",
        '  → explore-1: read_file(path="a")',
        "    explore-1: half",
        QUEUED,
        "  ✓ explore-1: read_file (0.2 s): found",
        DELIVERED_AFTER_TOOL,
        "  [explore-1 2/20]",
        "  explore-1: 5 tests",
        "  ✓ explore-1: 2 iterations, 1 tool call, 1,234 tokens, 5.0 s",
        "✓ explore (5.0 s): 5 tests",
    ]
    assert renderer.drawn_tail == ""


def test_a_childs_events_do_not_release_the_answer() -> None:
    answer, result = MAIN.reply("There are 5."), events.Result(status="done", result="There are 5.")
    of_child = CHILD.started(), CHILD.iteration(), CHILD.reply("5"), CHILD.tool_call(), CHILD.interruption()
    rows = rows_of(Renderer(color=False, ascii=False), answer, *of_child, CHILD.ended(), result)
    assert "  explore-1: 5" in rows
    assert "There are 5." not in rows


# ------------------------------------------------------------------------------------------------- any order of events

TEXTS = ("use B", "漢字" * 30, "word " * 40, "\x1b[2J\x1b]0;t\x07x\ny", "x" * 300, " ", "")
LONG_NAMED_CHILD = AgentEvents("a-very-long-name-of-a-kind-12", "c7", task="漢字 " * 40)
FAMILY = [CHILD, SECOND_CHILD, GRANDCHILD, GREAT_GRANDCHILD, LONG_NAMED_CHILD]


@cache
def events_of(agent: AgentEvents) -> st.SearchStrategy[list[Event]]:
    """Draw events of an agent between its start and its end."""
    with_text = (
        agent.text_delta, agent.thinking_delta, agent.reply, agent.progress, agent.tool_result, agent.interruption,
        agent.notice, agent.question, agent.error,
    )  # fmt: skip
    possible: list[Event] = [event(text) for event in with_text for text in TEXTS]
    possible += [agent.queued(text, id=f"L-{agent.name}") for text in TEXTS]
    possible += [agent.receipt(state, text) for state in ("returned", "handled", "dropped") for text in TEXTS]
    possible += [agent.tool_call(id, text) for id in ("t1", "t5") for text in TEXTS]
    # Those without a text are drawn three times as often.
    possible += [agent.iteration(), agent.answer(), agent.retry(), agent.usage(10**6)] * 3
    return st.lists(st.sampled_from(possible), max_size=8)


@st.composite
def interleavings(draw: st.DrawFn) -> list[Event]:
    """Draw the events of a run: each agent's in their order, and a child's within its parent's time."""
    own = {agent.name: [agent.started(), *draw(events_of(agent)), agent.ended()] for agent in FAMILY}
    for agent in (GREAT_GRANDCHILD, GRANDCHILD):
        # A margin of 1 is the start and the end of the parent.
        own[agent.parent] = interleaved(draw, own[agent.parent], own[agent.name], margin=1)
    stream: list[Event] = [ITERATION, *draw(events_of(MAIN))]
    for agent in FAMILY:
        if agent.parent == "main":
            stream = interleaved(draw, stream, own[agent.name], margin=0)
    return [RUN, *stream, events.Result(status="done", result="all")]


def interleaved(draw: st.DrawFn, outer: list[Event], inner: list[Event], *, margin: int) -> list[Event]:
    """Insert the inner events among the outer ones, but not among the first and last ``margin`` of those."""
    place = st.integers(margin, len(outer) - margin)
    places = sorted(draw(st.lists(place, min_size=len(inner), max_size=len(inner))))
    merged = list(outer)
    for index, event in reversed(list(zip(places, inner, strict=True))):
        merged.insert(index, event)
    return merged


@given(
    st.sampled_from([prompt_renderer, terminal_renderer, Renderer]), interleavings(),
    st.sampled_from([20, 40, 80, 120]), st.booleans(), st.booleans(),
)  # fmt: skip
def test_children_change_no_row_of_the_main_agent(
    make: MakeRenderer, stream: list[Event], width: int, color: bool, ascii: bool
) -> None:
    renderer, renderer_of_main = (make(color=color, ascii=ascii, width=width) for _ in range(2))
    rows_of_main, all_rows = list[str](), list[str]()
    for event in stream:
        rows = renderer.rows(event)
        all_rows += rows
        is_of_main = event.agent == "main" and not event.type.startswith("agent_")
        rows_of_main += renderer_of_main.rows(event) if is_of_main else []
        tail = tail_of(renderer) if make is not Renderer else []
        assert len(tail) <= MOST_ROWS
        # Headless rows of the main agent may go into a file, so whole texts are not cut.
        for row in (*([] if make is Renderer and is_of_main else rows), *tail):
            check_row(row, width)
    remaining_rows = iter(all_rows)
    assert all(row in remaining_rows for row in rows_of_main), "missing, or not in this order"


@pytest.mark.parametrize("make", [prompt_renderer, Renderer], ids=["above a prompt", "headless"])
def test_the_cost_of_an_event_is_constant(make: MakeRenderer) -> None:
    def cost_of_deltas(count: int) -> int:
        renderer = make(color=False, ascii=False, width=80)
        family = children(8)
        rows_of(renderer, *(event for one in family for event in (one.started(), one.iteration(), one.tool_call())))
        deltas = [child.text_delta("some words of a row\n") for child in family]
        return count_calls(lambda: [renderer.rows(delta) for _ in range(count) for delta in deltas])

    assert cost_of_deltas(200) < 5 * cost_of_deltas(50)  # 4 times if the cost is constant, else 16
