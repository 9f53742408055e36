"""How the work of children is shown: nested under the call that started it, and at a terminal collapsed."""

import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.painted import bare, check_row
from support.renderers import Make, above_a_prompt, at_a_terminal
from support.tellers import BELOW, DEEPEST, ITERATION, MAIN, ONE, RUN, TWO, Teller, usage
from support.work import calls_of

from chain import events
from chain.events import Event
from cli.show.child_agents import MOST_ROWS, short_name
from cli.show.renderer import Renderer
from cli.show.text_rows import columns

QUEUED = "  📤 Interrupting → explore-1: use B ⏳ Will inject at next safe point"
IN = "  [🔔 INTERRUPTION of explore-1 at iteration 2] use B ✓ Message injected (before a tool, 1.2 s)"


def live(*happened: Event, width: int = 80, ascii: bool = False) -> tuple[list[str], list[str]]:
    """The rows above the prompt, and those of the tail."""
    renderer = above_a_prompt(color=False, ascii=ascii, width=width)
    rows = [row for event in happened for row in renderer.lines(event)]
    return rows, renderer.tail.split("\n") if renderer.tail else []


def headless(*happened: Event, width: int = 80, ascii: bool = False, make: Make = Renderer) -> list[str]:
    renderer = make(color=False, ascii=ascii, width=width)
    return [row for event in happened for row in renderer.lines(event)]


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


@pytest.mark.parametrize("width", [80, 120])
def test_a_childs_work_is_a_row_at_its_start_and_one_at_its_end(width: int) -> None:
    rows, tail = live(RUN, ITERATION, *ONE.around(*WORK), width=width)

    assert rows[2:] == [
        '→ explore(task="find the tests")',
        "  ▶ explore-1: find the tests",
        "  ✓ explore-1: 2 iterations, 1 tool call, 1,234 tokens, 5.0 s",
        "✓ explore (5.0 s): 5 tests",
    ]
    assert tail == []


@pytest.mark.parametrize(
    ("happened", "rows"),
    [
        ([ONE.queued()], [QUEUED]),
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
        ([BELOW.started()], ["    ▶ agent-1 (of explore-1): deeper into it"]),
        ([BELOW.started(), BELOW.notice()], ["    ▶ agent-1 (of explore-1): deeper into it", "    ℹ agent-1: no file"]),
        ([BELOW.started(), DEEPEST.started(), DEEPEST.error()],
         ["    ▶ agent-1 (of explore-1): deeper into it", "      ▶ plan-1 (of agent-1): the deepest",
          "      ✗ plan-1: the service is gone"]),
        ([BELOW.started(), BELOW.ended("interrupted")],
         ["    ▶ agent-1 (of explore-1): deeper into it",
          "    ⏹ agent-1: interrupted, 0 iterations, 0 tool calls, 0 tokens, 3.0 s"]),
        ([TWO.started(), TWO.notice()],
         ["  ▶ explore-2: read the documents of the project and sum them up", "  ℹ explore-2: no file"]),
        (list(WORK), []),
    ],
)  # fmt: skip
def test_what_is_between_a_child_and_the_user_is_nested_and_names_it(happened: list[Event], rows: list[str]) -> None:
    assert live(ONE.started(), *happened, width=120)[0][1:] == rows


def test_the_end_of_a_child_says_how_it_went() -> None:
    row = "  ⏹ explore-1: cancelled with partial, 0 iterations, 0 tool calls, 0 tokens, 5.0 s"
    happened = [ONE.started(), ONE.ended("cancelled_with_partial")]
    assert live(*happened, width=120)[0][1:] == headless(*happened, width=120)[1:] == [row]


def test_what_a_child_says_to_a_line_is_shown_and_no_other_reply() -> None:
    said = [ONE.reply("I look.", 1), ONE.queued(), ONE.interruption(), ONE.iteration(2), ONE.reply("Heard: B.", 1)]
    rows, _ = live(RUN, ITERATION, *ONE.around(*said, ONE.reply("I go on.", 1), ONE.reply("5 tests")))
    assert [row for row in rows if row.startswith("  explore-1: ")] == ["  explore-1: Heard: B."]


def test_the_tokens_of_a_child_are_with_those_of_its_own_children() -> None:
    rows, _ = live(
        ONE.started(), usage("explore-1", 1), BELOW.started(), usage("agent-1", 10), TWO.started(),
        usage("explore-2", 100), BELOW.ended(), ONE.ended(), TWO.ended(),
    )  # fmt: skip
    assert [row.partition(" tokens")[0].split()[-1] for row in rows if "tokens" in row] == ["10", "11", "100"]


def test_a_child_that_is_asked_again_counts_from_its_new_start() -> None:
    again = ONE.started(task="and where are they?", parent_id="c9")
    rows, _ = live(*ONE.around(*WORK), again, ONE.iteration(), ONE.reply("there"), ONE.ended())
    assert rows[-2:] == [
        "  ▶ explore-1: and where are they?",
        "  ✓ explore-1: 1 iteration, 0 tool calls, 0 tokens, 5.0 s",
    ]


@pytest.mark.parametrize("parent", [MAIN, ONE])
def test_a_line_that_waits_for_another_agent_now_is_no_new_line(parent: Teller) -> None:
    target = BELOW if parent is ONE else ONE
    rows, _ = live(ONE.started(), BELOW.started(), target.queued("use\nB"), parent.queued("use\nB"))
    inset = "  " if parent is ONE else ""
    assert rows[-2:] == [f"{inset}📤 use", f"{inset}  B ⏳ Now waits for {parent.name}"]


def test_a_line_with_the_id_of_one_that_was_settled_is_a_new_one() -> None:
    settled = ([ONE.receipt("dropped")], [ONE.receipt("delivered")], [ONE.interruption()])
    for ends in settled:
        rows, _ = live(ONE.started(), ONE.queued(), *ends, MAIN.queued())
        assert rows[-1] == "📤 Interrupting: use B ⏳ Will inject at next safe point"


def test_how_to_answer_stands_below_the_question() -> None:
    renderer = above_a_prompt(color=False, ascii=False, width=40)
    for event in (ONE.started(), BELOW.started(), BELOW.question()):
        renderer.lines(event)
    rows = renderer.hint(BELOW.question())
    assert all(row.startswith("      ") and columns(row) <= 40 for row in rows)


def test_a_plan_that_a_child_changed_says_who() -> None:
    changed = events.PlanChanged(tasks=(events.TaskView(1, "a", "PENDING"),), by="plan-1")
    assert live(changed)[0][0] == "Plan: 0 done, 0 failed, 1 pending (by plan-1)"


@pytest.mark.parametrize(
    ("ascii", "rows"),
    [
        (False, [
            "  ▶ explore-1: find the tests",
            "  📤 Interrupting → explore-1: look at",
            "    漢字漢字漢字漢字 ⏳ Will inject at",
            "    next safe point",
            "    ▶ agent-1 (of explore-1): deeper in…",
            "    ✗ agent-1: the service is gone",
            "  ✓ explore-1: 0 iterations, 0 tool",
            "  calls, 0 tokens, 5.0 s",
        ]),
        (True, [
            "  >> explore-1: find the tests",
            "  > Interrupting -> explore-1: look at",
            "    漢字漢字漢字漢字 ... Will inject at",
            "    next safe point",
            "    >> agent-1 (of explore-1): deeper...",
            "    failed: agent-1: the service is gone",
            "  ok: explore-1: 0 iterations, 0 tool",
            "  calls, 0 tokens, 5.0 s",
        ]),
    ],
)  # fmt: skip
def test_forty_columns(ascii: bool, rows: list[str]) -> None:
    happened = [ONE.started(), ONE.queued("look at 漢字漢字漢字漢字"), BELOW.started(), BELOW.error(), ONE.ended()]
    assert live(*happened, width=40, ascii=ascii)[0] == rows


@pytest.mark.parametrize(
    ("name", "width", "shown"),
    [
        ("explore-1", 80, "explore-1"),
        ("explore-1", 20, "explo…-1"),
        ("a-very-long-name-of-a-kind-of-agent-12", 80, "a-very-long-name-of-…-12"),
        ("reviewer-of-changes-12", 40, "reviewer-…-12"),
        ("without_any_number_at_all", 40, "without_any_…"),
        ("\x1b[2Jexplore\n-1", 80, "explore -1"),
        ("", 80, "agent"),
    ],
)
def test_a_name_that_is_cut_keeps_its_number(name: str, width: int, shown: str) -> None:
    assert short_name(name, width, "…") == shown


# ---------------------------------------------------------------------------------------------------------- the tail


@pytest.mark.parametrize(
    ("happened", "row"),
    [
        ([], "  ● explore-1 · starting · find the tests"),
        ([ONE.iteration(2)], "  ● explore-1 2/20 · thinking · find the tests"),
        ([ONE.iteration(), ONE.thinks("hm")], "  ● explore-1 1/20 · thinking · find the tests"),
        ([ONE.iteration(), ONE.writes("One row\nand an"), ONE.writes("other")],
         "  ● explore-1 1/20 · and another · find the tests"),
        ([ONE.iteration(), ONE.writes("One row\n\n")], "  ● explore-1 1/20 · One row · find the tests"),
        ([ONE.iteration(), ONE.reply("Whole\nreply", 1)], "  ● explore-1 1/20 · reply · find the tests"),
        ([ONE.iteration(), ONE.writes("void"), ONE.retry()], "  ● explore-1 1/20 · asks again · find the tests"),
        ([ONE.iteration(), ONE.writes("void"), ONE.retry(), ONE.iteration()],
         "  ● explore-1 1/20 · thinking · find the tests"),
        ([ONE.iteration(), ONE.writes("So"), ONE.tool()], "  ● explore-1 1/20 · read_file · find the tests"),
        ([ONE.iteration(), ONE.tool(), ONE.tool("t2", "list_files")],
         "  ● explore-1 1/20 · list_files +1 · find the tests"),
        ([ONE.iteration(), ONE.tool(), ONE.result()], "  ● explore-1 1/20 · thinking · find the tests"),
        ([ONE.iteration(), ONE.question()], "  ❓ explore-1 1/20 · Q1 waits · find the tests"),
        ([ONE.iteration(), ONE.question(), ONE.answer()], "  ● explore-1 1/20 · thinking · find the tests"),
    ],
)  # fmt: skip
def test_a_row_of_the_tail_says_what_a_child_does(happened: list[Event], row: str) -> None:
    assert live(ONE.started(), *happened)[1] == [row]


def test_children_stand_below_their_parents_with_as_much_as_fits() -> None:
    says = "I see now that the documents say more than the tests do, and that they are older"
    happened = [ONE.started(), ONE.iteration(), TWO.started(), ONE.tool("t2", "agent"), BELOW.started()]
    assert live(*happened, BELOW.writes(says))[1] == [
        "  ● explore-1 1/20 · agent · find the tests",
        "    ● agent-1 · …ore than the tests do, and that they are older · deeper into it",
        "  ● explore-2 · starting · read the documents of the project and sum them up",
    ]
    assert all(columns(row) <= 40 for row in live(*happened, BELOW.writes(says), width=40)[1])


@pytest.mark.parametrize(("count", "shown", "last"), [
    (MOST_ROWS, MOST_ROWS, f"explore-{MOST_ROWS}"),
    (MOST_ROWS + 1, MOST_ROWS - 1, "  … and 2 more agents"),
    (50, MOST_ROWS - 1, f"  … and {51 - MOST_ROWS} more agents"),
])  # fmt: skip
def test_more_children_than_rows_are_counted(count: int, shown: int, last: str) -> None:
    _, tail = live(*(Teller(f"explore-{n + 1}", f"c{n}").started() for n in range(count)))
    assert len(tail) == MOST_ROWS
    assert sum("●" in row for row in tail) == shown
    assert last in tail[-1]


def test_a_child_that_has_ended_leaves_the_tail() -> None:
    assert live(ONE.started(), TWO.started(), ONE.ended())[1][0].startswith("  ● explore-2")
    assert live(ONE.started(), TWO.started(), ONE.ended(), TWO.ended())[1] == []
    assert live(ONE.started(), events.Result(status="interrupted", result=""))[1] == []


def test_what_the_main_agent_writes_comes_before_its_children() -> None:
    assert live(ONE.started(), MAIN.writes("So I"))[1] == ["So I"]


def test_what_a_tool_of_the_main_agent_says_stands_below_its_children() -> None:
    said = [MAIN.progress(f"row {n}\n") for n in range(30)]
    _, tail = live(MAIN.tool(), ONE.started(), *said, ONE.tool(), ONE.progress("no row\n" * 30))
    assert tail[0].startswith("  ● explore-1")
    assert tail[1:] == [f"  row {n}" for n in range(25, 30)]
    many = [Teller(f"explore-{n}").started() for n in range(7)]
    assert live(MAIN.tool(), *many, *said)[1][-2:] == ["  ● explore-6 · starting · find the tests", "  row 25"]


# ------------------------------------------------------------------------------------------------ beside a run's answer


@pytest.mark.parametrize("make", [Renderer, at_a_terminal])
def test_where_no_command_shows_it_a_childs_work_is_shown_as_it_goes(make: Make) -> None:
    rows = headless(RUN, ITERATION, *ONE.around(*WORK, ONE.queued(), ONE.interruption()), make=make, width=120)
    assert rows[2:] == [
        '→ explore(task="find the tests")',
        "  ▶ explore-1: find the tests",
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


def test_a_childs_reply_is_not_held_back_and_does_not_release_the_main_agents() -> None:
    answer = events.Reply(text="There are 5.", tool_calls=0)
    assert headless(answer, ONE.started(), ONE.iteration(), ONE.reply("5"), ONE.tool(), ONE.interruption())[2:3] == [
        "  explore-1: 5"
    ]
    result = events.Result(status="done", result="There are 5.")
    assert "There are 5." not in headless(answer, ONE.started(), ONE.reply("5"), ONE.ended(), result)


def test_the_tail_of_a_terminal_without_a_prompt_has_no_children() -> None:
    renderer = at_a_terminal(color=True, ascii=False, width=80)
    rows = [row for event in (ONE.started(), ONE.iteration()) for row in renderer.lines(event)]
    assert len(rows) == 2
    assert renderer.drawn_tail == ""


# ------------------------------------------------------------------------------------------------- whatever the order

TEXTS = st.sampled_from(["use B", "漢字" * 30, "word " * 40, "\x1b[2J\x1b]0;t\x07x\ny", "x" * 300, " ", ""])
FAMILY = [ONE, TWO, BELOW, DEEPEST, Teller("a-very-long-name-of-a-kind-12", "c7", task="漢字 " * 40)]


MARK = "#in"
"""Begins the text of each interruption."""


def doings(one: Teller) -> st.SearchStrategy[Sequence[Event]]:
    """Some of what an agent may do, in order."""
    steps = st.one_of(
        st.builds(one.writes, TEXTS),
        st.builds(one.thinks, TEXTS),
        st.builds(one.reply, TEXTS, st.integers(0, 2)),
        st.builds(one.tool, st.sampled_from(["t1", "t5"]), TEXTS),
        st.builds(one.progress, TEXTS),
        st.builds(one.result, TEXTS),
        st.builds(one.iteration, st.integers(1, 20)),
        st.builds(one.queued, TEXTS, st.just(f"L-{one.name}")),
        st.builds(one.interruption, TEXTS.map(lambda text: f"{MARK} {text}")),
        st.builds(one.receipt, st.sampled_from(["returned", "handled", "dropped"]), TEXTS),
        st.builds(one.question, TEXTS),
        st.builds(one.answer),
        st.builds(one.retry),
        st.builds(one.notice, TEXTS),
        st.builds(one.error, TEXTS),
        st.builds(usage, st.just(one.name), st.integers(0, 10**6)),
    )
    return st.lists(steps, max_size=8)


@st.composite
def interleavings(draw: st.DrawFn) -> list[Event]:
    """The family's events: each child's in their order, and a child within its parent's time."""
    own: dict[str, list[Event]] = {"main": [ITERATION, *draw(doings(MAIN))]}
    for one in sorted(FAMILY, key=lambda one: one in (DEEPEST, BELOW), reverse=True):
        own[one.name] = [one.started(), *draw(doings(one)), one.ended()]
    woven = own["main"]
    for one in (DEEPEST, BELOW):
        own[one.parent] = woven_in(draw, own[one.parent], own[one.name], inside=True)
    for one in FAMILY:
        if one.parent == "main":
            woven = woven_in(draw, woven, own[one.name], inside=False)
    return [RUN, *woven, events.Result(status="done", result="all")]


def woven_in(draw: st.DrawFn, outer: list[Event], inner: list[Event], *, inside: bool) -> list[Event]:
    first, last = (1, len(outer) - 1) if inside else (0, len(outer))
    places = sorted(draw(st.lists(st.integers(first, last), min_size=len(inner), max_size=len(inner))))
    found, at = list[Event](), 0
    for place, event in zip(places, inner, strict=True):
        found += [*outer[at:place], event]
        at = place
    return [*found, *outer[at:]]


@given(interleavings(), st.sampled_from([40, 80, 120]), st.booleans(), st.booleans())
def test_whatever_the_interleaving_an_interruption_stands_between_the_start_and_the_end_of_its_child(
    happened: list[Event], width: int, color: bool, ascii: bool
) -> None:
    renderer = above_a_prompt(color=color, ascii=ascii, width=width)
    rows = [bare(row).strip() for event in happened for row in renderer.lines(event)]
    for one in FAMILY:
        name = re.escape(short_name(one.name, width, "..." if ascii else "…"))
        [start] = [n for n, row in enumerate(rows) if re.match(rf"(▶|>>) {name}(:| \()", row)]
        [end] = [n for n, row in enumerate(rows) if re.match(rf"(✓|ok:) {name}: \d", row)]
        told = re.findall(rf"INTERRUPTION of {one.name} at iteration 2\] {MARK}", " ".join(rows[start:end]))
        assert len(told) == sum(isinstance(e, events.UserInterruption) and e.agent == one.name for e in happened)


@given(
    st.sampled_from([above_a_prompt, at_a_terminal, Renderer]), interleavings(),
    st.sampled_from([20, 40, 80, 120]), st.booleans(), st.booleans(),
)  # fmt: skip
def test_whatever_happens_all_fits_and_the_rows_of_the_main_agent_are_as_without_children(
    make: Make, happened: list[Event], width: int, color: bool, ascii: bool
) -> None:
    renderer, alone = (make(color=color, ascii=ascii, width=width) for _ in range(2))
    own, told = list[str](), list[str]()
    for event in happened:
        rows = renderer.lines(event)
        told += rows
        is_own = event.agent == "main" and not event.type.startswith("agent_")
        own += alone.lines(event) if is_own else []
        tail = renderer.tail.split("\n") if make is not Renderer else []
        assert len(tail) <= MOST_ROWS
        # Progress that may go into a file leaves the main agent's whole texts to whoever reads it.
        for row in (*([] if make is Renderer and is_own else rows), *tail):
            check_row(row, width)
    left = iter(told)
    assert all(row in left for row in own)


@pytest.mark.parametrize("make", [above_a_prompt, Renderer])
def test_a_thousand_times_the_events_are_a_thousand_times_the_work(make: Make) -> None:
    def work(count: int) -> int:
        renderer = make(color=False, ascii=False, width=80)
        family = [Teller(f"explore-{n}", f"c{n}") for n in range(8)]
        for event in [event for one in family for event in (one.started(), one.iteration(), one.tool())]:
            renderer.lines(event)
        deltas = [one.writes("some words of a row\n") for one in family]
        return calls_of(lambda: [renderer.lines(delta) for _ in range(count) for delta in deltas])

    assert work(200) < 5 * work(50)
