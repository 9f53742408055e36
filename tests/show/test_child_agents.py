"""The rows of child agents: nested below the call that started them, and at a terminal collapsed."""

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.agent_events import BELOW, DEEPEST, ITERATION, MAIN, ONE, RUN, TWO, AgentEvents, usage
from support.painted import check_row
from support.renderers import Make, above_a_prompt, at_a_terminal, rendered, tail_of
from support.work import calls_of

from chain import events
from chain.events import Event
from cli.show.child_agents import MOST_ROWS, short_name
from cli.show.renderer import Renderer
from cli.show.text_rows import columns

STARTED = "  ▶ explore-1: find the tests"
NESTED = "    ▶ agent-1 (of explore-1): deeper into it"
QUEUED = "  📤 Interrupting → explore-1: use B ⏳ Will inject at next safe point"
IN = "  [🔔 INTERRUPTION of explore-1 at iteration 2] use B ✓ Message injected (before a tool, 1.2 s)"


def collapsed(*happened: Event, width: int = 80, ascii: bool = False) -> tuple[list[str], list[str]]:
    """Return the rows above the prompt, and those of the tail."""
    renderer = above_a_prompt(color=False, ascii=ascii, width=width)
    return rendered(renderer, *happened), tail_of(renderer)


def headless(*happened: Event) -> list[str]:
    return rendered(Renderer(color=False, ascii=False), *happened)


WORK = (
    ONE.iteration(),
    ONE.thinks("Hm.\n"),
    ONE.writes("I look."),
    usage("explore-1", 1200),
    ONE.reply("I look.", 1),
    ONE.tool(path="a"),
    ONE.progress("half\n"),
    ONE.result("text"),
    ONE.iteration(2),
    ONE.reply("5 tests"),
    usage("explore-1", 34),
)

# ------------------------------------------------------------------------------------------------- above the prompt


@pytest.mark.parametrize(
    ("happened", "rows"),
    [
        ([*WORK, ONE.ended()], ["  ✓ explore-1: 2 iterations, 1 tool call, 1,234 tokens, 5.0 s"]),
        ([ONE.ended("cancelled_with_partial")],
         ["  ⏹ explore-1: cancelled with partial, 0 iterations, 0 tool calls, 0 tokens, 5.0 s"]),
        ([ONE.queued(), ONE.interruption(), ONE.receipt("delivered")], [QUEUED, IN]),
        ([ONE.tool(), ONE.result(), ONE.interruption()], [IN.replace("before a tool", "after read_file")]),
        ([ONE.tool(), ONE.result(), ONE.iteration(2), ONE.interruption()], [IN]),
        ([ONE.receipt("returned", reason="it was stopped")], ["  ↩ explore-1: Returned (it was stopped): use B"]),
        ([ONE.receipt("handled", "stop", kind="stop")], ["  ⏹ explore-1: stop"]),
        ([ONE.question()], ["  ❓ explore-1: Q1 Run this command?", "    ls -la"]),
        ([ONE.answer()], ["  ✓ explore-1: Q1 allowed"]),
        ([ONE.retry()], ["  ↻ explore-1: Asking again in 1.0 s (attempt 2): overloaded"]),
        ([ONE.notice()], ["  ℹ explore-1: no file"]),
        ([ONE.error()], ["  ✗ explore-1: the service is gone"]),
        ([BELOW.started(), BELOW.notice()], [NESTED, "    ℹ agent-1: no file"]),
        ([BELOW.started(), DEEPEST.started(), DEEPEST.error()],
         [NESTED, "      ▶ plan-1 (of agent-1): the deepest", "      ✗ plan-1: the service is gone"]),
        ([TWO.started(), TWO.notice()],
         ["  ▶ explore-2: read the documents of the project and sum them up", "  ℹ explore-2: no file"]),
        # The reply to the user's line is shown, but no other one.
        ([ONE.reply("I look.", 1), ONE.interruption(), ONE.reply("Heard: B.", 1), ONE.reply("I go on.", 1)],
         [IN, "  explore-1: Heard: B."]),
        # A parent's tokens include those of its children.
        ([usage("explore-1", 1), BELOW.started(), usage("agent-1", 10), BELOW.ended(), ONE.ended()],
         [NESTED, "    ✓ agent-1: 0 iterations, 0 tool calls, 10 tokens, 3.0 s",
          "  ✓ explore-1: 0 iterations, 0 tool calls, 11 tokens, 5.0 s"]),
        # The counts of an agent that is asked again start anew.
        ([*WORK, ONE.started(task="and where?"), ONE.iteration(), ONE.ended()],
         ["  ▶ explore-1: and where?", "  ✓ explore-1: 1 iteration, 0 tool calls, 0 tokens, 5.0 s"]),
    ],
)  # fmt: skip
def test_a_collapsed_child_shows_only_exchanges(happened: list[Event], rows: list[str]) -> None:
    assert collapsed(ONE.started(), *happened, width=120)[0] == [STARTED, *rows]


@pytest.mark.parametrize(("target", "to", "inset"), [(BELOW, ONE, "  "), (ONE, MAIN, "")])
def test_a_readdressed_line_is_not_repeated(target: AgentEvents, to: AgentEvents, inset: str) -> None:
    rows, _ = collapsed(ONE.started(), BELOW.started(), target.queued("use\nB"), to.queued("use\nB"))
    assert rows[-2:] == [f"{inset}📤 use", f"{inset}  B ⏳ Now waits for {to.name}"]


@pytest.mark.parametrize("settled", [ONE.receipt("dropped"), ONE.receipt("delivered"), ONE.interruption()])
def test_a_settled_lines_id_can_be_reused(settled: Event) -> None:
    rows, _ = collapsed(ONE.started(), ONE.queued(), settled, MAIN.queued())
    assert rows[-1] == "📤 Interrupting: use B ⏳ Will inject at next safe point"


def test_the_answers_are_below_the_question() -> None:
    renderer = above_a_prompt(color=False, ascii=False, width=40)
    rendered(renderer, ONE.started(), BELOW.started(), BELOW.question())
    assert all(row.startswith("      ") and columns(row) <= 40 for row in renderer.hint(BELOW.question()))


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
)
def test_a_cut_name_keeps_its_number(name: str, width: int, shown: str) -> None:
    assert short_name(name, width, "…") == shown


# ---------------------------------------------------------------------------------------------------------- the tail


@pytest.mark.parametrize(
    ("happened", "activity"),
    [
        ([], " · starting"),
        ([ONE.iteration(2)], " 2/20 · thinking"),
        ([ONE.iteration(), ONE.thinks("hm")], " 1/20 · thinking"),
        ([ONE.iteration(), ONE.writes("One row\nand an"), ONE.writes("other")], " 1/20 · and another"),
        ([ONE.iteration(), ONE.writes("One row\n\n")], " 1/20 · One row"),
        ([ONE.iteration(), ONE.reply("Whole\nreply", 1)], " 1/20 · reply"),
        ([ONE.iteration(), ONE.writes("void"), ONE.retry()], " 1/20 · asks again"),
        ([ONE.iteration(), ONE.writes("void"), ONE.retry(), ONE.iteration()], " 1/20 · thinking"),
        ([ONE.iteration(), ONE.writes("So"), ONE.tool()], " 1/20 · read_file"),
        ([ONE.iteration(), ONE.tool(), ONE.tool("t2", "list_files")], " 1/20 · list_files +1"),
        ([ONE.iteration(), ONE.tool(), ONE.result()], " 1/20 · thinking"),
        ([ONE.iteration(), ONE.question(), ONE.answer()], " 1/20 · thinking"),
    ],
)
def test_the_tail_has_a_childs_activity(happened: list[Event], activity: str) -> None:
    assert collapsed(ONE.started(), *happened)[1] == [f"  ● explore-1{activity} · find the tests"]


def test_a_child_that_asks_has_another_sign() -> None:
    assert collapsed(ONE.started(), ONE.question())[1] == ["  ❓ explore-1 · Q1 waits · find the tests"]


def test_children_are_below_their_parents() -> None:
    says = "I see now that the documents say more than the tests do, and that they are older"
    happened = [ONE.started(), ONE.iteration(), TWO.started(), ONE.tool("t2", "agent"), BELOW.started()]
    assert collapsed(*happened, BELOW.writes(says))[1] == [
        "  ● explore-1 1/20 · agent · find the tests",
        "    ● agent-1 · …ore than the tests do, and that they are older · deeper into it",
        "  ● explore-2 · starting · read the documents of the project and sum them up",
    ]


@pytest.mark.parametrize(("count", "shown", "last"), [
    (MOST_ROWS, MOST_ROWS, f"explore-{MOST_ROWS}"),
    (MOST_ROWS + 1, MOST_ROWS - 1, "  … and 2 more agents"),
    (50, MOST_ROWS - 1, f"  … and {51 - MOST_ROWS} more agents"),
])  # fmt: skip
def test_children_without_a_row_are_counted(count: int, shown: int, last: str) -> None:
    _, tail = collapsed(*(AgentEvents(f"explore-{n + 1}", f"c{n}").started() for n in range(count)))
    assert len(tail) == MOST_ROWS
    assert sum("●" in row for row in tail) == shown
    assert last in tail[-1]


@pytest.mark.parametrize(
    ("happened", "tail"),
    [
        ([ONE.started(), TWO.started(), ONE.ended(), TWO.ended()], []),
        ([ONE.started(), events.Result(status="interrupted", result="")], []),
        ([ONE.started(), MAIN.writes("So I")], ["So I"]),
    ],
    ids=["ended", "run ended", "the main agent writes"],
)
def test_the_tail_shows_children_at_work_only(happened: list[Event], tail: list[str]) -> None:
    assert collapsed(*happened)[1] == tail


def test_the_main_agents_progress_is_below_the_children() -> None:
    said = [MAIN.progress(f"row {n}\n") for n in range(30)]
    _, tail = collapsed(MAIN.tool(), ONE.started(), *said, ONE.tool(), ONE.progress("no row\n" * 30))
    assert tail[0].startswith("  ● explore-1")
    assert tail[1:] == [f"  row {n}" for n in range(25, 30)]
    many = [AgentEvents(f"explore-{n}").started() for n in range(7)]
    assert collapsed(MAIN.tool(), *many, *said)[1][-2:] == ["  ● explore-6 · starting · find the tests", "  row 25"]


# ------------------------------------------------------------------------------------------------------ not collapsed


@pytest.mark.parametrize("make", [Renderer, at_a_terminal])
def test_a_childs_work_is_shown_without_a_prompt(make: Make) -> None:
    renderer = make(color=False, ascii=False, width=120)
    rows = rendered(renderer, RUN, ITERATION, *ONE.around(*WORK, ONE.queued(), ONE.interruption()))
    assert rows[2:] == [
        '→ explore(task="find the tests")',
        STARTED,
        "  [explore-1 1/20]",
        "  explore-1: I look.",
        '  → explore-1: read_file(path="a")',
        "    explore-1: half",
        "  ✓ explore-1: read_file (0.2 s): text",
        "  [explore-1 2/20]",
        "  explore-1: 5 tests",
        QUEUED,
        IN,
        "  ✓ explore-1: 2 iterations, 1 tool call, 1,234 tokens, 5.0 s",
        "✓ explore (5.0 s): 5 tests",
    ]
    assert renderer.drawn_tail == ""


def test_a_childs_events_do_not_release_the_answer() -> None:
    answer, result = MAIN.reply("There are 5."), events.Result(status="done", result="There are 5.")
    begun = [answer, ONE.started(), ONE.iteration(), ONE.reply("5"), ONE.tool(), ONE.interruption()]
    assert headless(*begun)[2] == "  explore-1: 5"
    assert "There are 5." not in headless(*begun, ONE.ended(), result)


# ------------------------------------------------------------------------------------------------- any order of events

TEXTS = ("use B", "漢字" * 30, "word " * 40, "\x1b[2J\x1b]0;t\x07x\ny", "x" * 300, " ", "")
FAMILY = [ONE, TWO, BELOW, DEEPEST, AgentEvents("a-very-long-name-of-a-kind-12", "c7", task="漢字 " * 40)]


@cache
def work_of(one: AgentEvents) -> st.SearchStrategy[list[Event]]:
    """Draw events of an agent, in order."""
    texts = (one.writes, one.thinks, one.reply, one.progress, one.result, one.interruption, one.notice)
    happened = [event(text) for event in (*texts, one.question, one.error) for text in TEXTS]
    happened += [one.queued(text, f"L-{one.name}") for text in TEXTS]
    happened += [one.receipt(state, text) for state in ("returned", "handled", "dropped") for text in TEXTS]
    happened += [one.tool(id, text) for id in ("t1", "t5") for text in TEXTS]
    happened += [one.iteration(), one.answer(), one.retry(), usage(one.name, 10**6)] * 3
    return st.lists(st.sampled_from(happened), max_size=8)


@st.composite
def interleavings(draw: st.DrawFn) -> list[Event]:
    """Draw the events of a family: each agent's in their order, and a child within its parent's time."""
    own = {one.name: [one.started(), *draw(work_of(one)), one.ended()] for one in FAMILY}
    for one in (DEEPEST, BELOW):
        own[one.parent] = woven(draw, own[one.parent], own[one.name], margin=1)
    found: list[Event] = [ITERATION, *draw(work_of(MAIN))]
    for one in FAMILY:
        if one.parent == "main":
            found = woven(draw, found, own[one.name], margin=0)
    return [RUN, *found, events.Result(status="done", result="all")]


def woven(draw: st.DrawFn, outer: list[Event], inner: list[Event], *, margin: int) -> list[Event]:
    place = st.integers(margin, len(outer) - margin)
    places = sorted(draw(st.lists(place, min_size=len(inner), max_size=len(inner))))
    found, at = list[Event](), 0
    for place_of, event in zip(places, inner, strict=True):
        found += [*outer[at:place_of], event]
        at = place_of
    return [*found, *outer[at:]]


@given(
    st.sampled_from([above_a_prompt, at_a_terminal, Renderer]), interleavings(),
    st.sampled_from([20, 40, 80, 120]), st.booleans(), st.booleans(),
)  # fmt: skip
def test_children_change_no_row_of_the_main_agent(
    make: Make, happened: list[Event], width: int, color: bool, ascii: bool
) -> None:
    renderer, alone = (make(color=color, ascii=ascii, width=width) for _ in range(2))
    own, every = list[str](), list[str]()
    for event in happened:
        rows = renderer.lines(event)
        every += rows
        is_own = event.agent == "main" and not event.type.startswith("agent_")
        own += alone.lines(event) if is_own else []
        tail = tail_of(renderer) if make is not Renderer else []
        assert len(tail) <= MOST_ROWS
        # Headless rows of the main agent may go into a file, so whole texts are not cut.
        for row in (*([] if make is Renderer and is_own else rows), *tail):
            check_row(row, width)
    left = iter(every)
    assert all(row in left for row in own)


@pytest.mark.parametrize("make", [above_a_prompt, Renderer])
def test_the_cost_of_an_event_is_constant(make: Make) -> None:
    def work(count: int) -> int:
        renderer = make(color=False, ascii=False, width=80)
        family = [AgentEvents(f"explore-{n}", f"c{n}") for n in range(8)]
        rendered(renderer, *(event for one in family for event in (one.started(), one.iteration(), one.tool())))
        deltas = [one.writes("some words of a row\n") for one in family]
        return calls_of(lambda: [renderer.lines(delta) for _ in range(count) for delta in deltas])

    assert work(200) < 5 * work(50)
