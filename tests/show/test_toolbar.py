"""Events in, the row below the prompt out."""

import unicodedata
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.utils import get_cwidth
from support.drawn import drawn

from chain import events
from chain.events import Event, TaskView
from chain.lines.parse import MAX_LINE, STOP_PHRASES
from chain.text.modes import Mode
from cli.show.toolbar import LONGEST_PARSED, Recipient, Toolbar

RUN = events.RunStarted(id="L1", query="count", time=100.0)
ITERATION = events.IterationStarted(iteration=3, max_iterations=20, time=101.0)
TEXT = events.TextDelta(text="There", time=104.0)
USAGE = events.UsageReport(
    input_tokens=12_000, output_tokens=300, cache_read_tokens=40, cache_write_tokens=5, cost_usd=None
)
PLAN = events.PlanChanged(tasks=(TaskView(1, "a", "DONE"), TaskView(2, "b", "PENDING"), TaskView(3, "c", "PENDING")),
                          by="user")  # fmt: skip
RESULT = events.Result(status="done", result="5", time=110.0)
STOP = events.Receipt(id="L2", text="halt", state="handled", kind="stop", time=105.0)
RETRY = events.Retry(attempt=1, delay_s=4.5, reason="overloaded", time=102.0)


def call(name: str = "search_files", id: str = "t1", agent: str = "main", time: float = 103.0) -> events.ToolCall:
    return events.ToolCall(agent=agent, id=id, name=name, input={}, time=time)


def answered(id: str = "t1", agent: str = "main", time: float = 105.0) -> events.ToolResult:
    return events.ToolResult(agent=agent, id=id, name="x", text="", is_error=False, seconds=2.0, time=time)


def started(name: str = "explore-1", call: str = "t1", agent: str = "main") -> events.AgentStarted:
    return events.AgentStarted(agent=agent, name=name, kind="explore", parent_id=call, task="look", time=103.0)


STARTED = started()
ENDED = events.AgentEnded(name="explore-1", kind="explore", parent_id="t1", task="look", status="done", time=105.0)
QUESTION = events.Question(
    agent="explore-1", id="Q1", kind="approval", text="May it?", options=(), tool_call_id="t2", name="shell", time=104.0
)


def toolbar(*happened: Event, ascii: bool = False) -> Toolbar:
    made = Toolbar(ascii=ascii, inbox_size=10)
    for event in happened:
        made.update(event)
    return made


def row(*happened: Event, ascii: bool = False, **changes: Any) -> str:
    return row_of(toolbar(*happened, ascii=ascii), **changes)


def row_of(
    bar: Toolbar,
    *,
    typed: str = "",
    target: str = "main",
    waiting: int = 0,
    ahead: int | None = None,
    is_addressed: bool = False,
    **changes: Any,
) -> str:
    """All that wait, wait for the target, unless it is said otherwise."""
    to = Recipient(target, typed, waiting if ahead is None else ahead, is_addressed)
    parts = bar.row(**{"width": 80, "now": 106.0, "to": to, "waiting": waiting, **changes})
    return "".join(text for _, text in parts)


def sides(*happened: Event, **changes: Any) -> tuple[str, str]:
    """What stands at the left and at the right end of a wide row."""
    left, _, right = row(*happened, width=200, **changes).partition("   ")
    return left, right.strip()


@pytest.mark.parametrize(
    ("happened", "left"),
    [
        ((), "idle"),
        ((PLAN, USAGE), "idle · plan 1/3 · 12,345 tokens"),
        ((RUN, ITERATION, RESULT), "idle"),
        ((RUN,), "starting 6 s · queue 0/10"),
        ((RUN, ITERATION), "3/20 · thinking 5 s · queue 0/10"),
        ((RUN, ITERATION, TEXT, TEXT), "3/20 · answering 2 s · queue 0/10"),
        ((RUN, ITERATION, call()), "3/20 · search_files 3 s · queue 0/10"),
        ((RUN, ITERATION, call(), call("list_files", "t2", time=104.0)),
         "3/20 · list_files +1 2 s · queue 0/10"),
        ((RUN, ITERATION, call(), answered()), "3/20 · thinking 1 s · queue 0/10"),
        ((RUN, ITERATION, call("explore"), call("shell", "t2", "explore-1", 105.0)),
         "3/20 · explore-1: shell 1 s · queue 0/10"),
        ((RUN, ITERATION, call("explore"), STARTED, call("shell", "t2", "explore-1", 105.0),
          call("grep", "t3", "explore-1", 106.0)), "3/20 · explore-1: grep +1 0 s · queue 0/10"),
        ((RUN, ITERATION, call("explore"), call("shell", "t2", "explore-1"), answered("t2", "explore-1")),
         "3/20 · explore 3 s · queue 0/10"),
        ((RUN, ITERATION, call("explore"), STARTED, call("shell", "t2", "explore-1"), ENDED),
         "3/20 · explore 3 s · queue 0/10"),
        ((RUN, ITERATION, call("explore"), STARTED, call("shell", "t2", "explore-1"), ENDED, answered()),
         "3/20 · thinking 1 s · queue 0/10"),
        ((RUN, ITERATION, call("explore"), STARTED, call("shell", "t2", "explore-1"), call("explore", "t3"),
          started("explore-2", "t3")), "3/20 · explore-1: shell 3 s · 2 agents · queue 0/10"),
        ((RUN, ITERATION, call("explore"), STARTED, call("explore", "t3", time=104.0), started("explore-2", "t3")),
         "3/20 · explore +1 2 s · 2 agents · queue 0/10"),
        ((RUN, ITERATION, call("explore"), STARTED, started("agent-1", "t2", agent="explore-1"),
          started("agent-2", "t4", agent="explore-1"), USAGE),
         "3/20 · explore 3 s · 3 agents · queue 0/10 · 12,345 tokens"),
        ((RUN, ITERATION, call("explore"), STARTED, started("explore-2", "t3"), RESULT, RUN),
         "starting 6 s · queue 0/10"),
        ((RUN, ITERATION, call("explore"), STARTED, QUESTION), "3/20 · explore-1: Q1 waits 2 s · queue 0/10"),
        ((RUN, ITERATION, call("explore"), STARTED, QUESTION, ENDED), "3/20 · explore 3 s · queue 0/10"),
        ((RUN, ITERATION, call("explore"), STARTED, call("shell", "t2", "explore-1"), STOP),
         "3/20 · ⏹ Stopping after shell of explore-1 (3 s); Esc kills it · queue 0/10"),
        ((RUN, ITERATION, call("explore"),
          events.IterationStarted(agent="explore", iteration=1, max_iterations=5)), "3/20 · explore 3 s · queue 0/10"),
        ((RUN, ITERATION, RETRY), "3/20 · retry in 1 s · queue 0/10"),
        ((RUN, ITERATION, PLAN, USAGE), "3/20 · thinking 5 s · queue 0/10 · plan 1/3 · 12,345 tokens"),
        ((RUN, ITERATION, STOP), "3/20 · ⏹ Stopping · queue 0/10"),
        ((RUN, ITERATION, call("shell"), STOP), "3/20 · ⏹ Stopping after shell (3 s); Esc kills it · queue 0/10"),
        ((STOP, RUN, ITERATION), "3/20 · thinking 5 s · queue 0/10"),
    ],
)  # fmt: skip
def test_the_left_side_tells_of_the_run(happened: tuple[Event, ...], left: str) -> None:
    assert sides(*happened)[0] == left


@pytest.mark.parametrize(
    ("mode", "idle", "running"),
    [
        ("ask", "idle · ask", "3/20 · thinking 5 s · queue 0/10"),
        ("accept edits", "idle · accept edits", "edits · 3/20 · thinking 5 s · queue 0/10"),
        ("read only", "idle · read only", "read only · 3/20 · thinking 5 s · queue 0/10"),
    ],
)
def test_the_mode_is_shown_when_idle_and_briefly_while_a_run_is_active(mode: Mode, idle: str, running: str) -> None:
    assert sides(mode=mode)[0] == idle
    assert sides(RUN, ITERATION, mode=mode)[0] == running


WINDOW = events.UsageReport(
    input_tokens=40, output_tokens=2, cache_read_tokens=0, cache_write_tokens=0, cost_usd=None,
    context_tokens=43, context_window=100)  # fmt: skip


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (95, "idle · queue 0/10 +2 · plan 1/3 · some-model · ~/src/tool · a-branch · ctx 43% · 42 tokens"),
        (80, "idle · queue 0/10 +2 · plan 1/3 · some-model · ~/src/tool · a-branch · ctx 43%"),
        (70, "idle · queue 0/10 +2 · plan 1/3 · some-model · a-branch · ctx 43%"),
        (60, "idle · queue 0/10 +2 · plan 1/3 · some-model · ctx 43%"),
        (50, "idle · queue 0/10 +2 · plan 1/3 · ctx 43%"),
        (35, "idle · queue 0/10 +2 · plan 1/3"),
        (25, "idle · queue 0/10 +2"),
    ],
)
def test_an_idle_row_names_model_folder_and_branch_as_far_as_it_has_room(width: int, shown: str) -> None:
    bar = Toolbar(ascii=False, inbox_size=10, folder="~/src/tool")
    bar.model, bar.branch = "some-model", "a-branch"
    for event in (PLAN, WINDOW):
        bar.update(event)
    # Lines for another agent: with its own, the right end would say that they start a run.
    assert row_of(bar, width=width, waiting=2, ahead=0).rstrip() == shown


def test_of_a_long_or_hostile_folder_and_branch_the_end_is_shown_and_the_beginning() -> None:
    bar = Toolbar(ascii=True, inbox_size=10, folder="~/a/very/long/way/down/to/the/t\x1b[2Jo\u202eol")
    bar.branch = "feature/that-goes-on-and-on-and-on"
    assert row_of(bar) == "idle - .../way/down/to/the/tool - feature/that-goes-on-..."


def test_the_seconds_of_a_step_go_on() -> None:
    bar = toolbar(RUN, ITERATION, call("shell"))
    shown = [row_of(bar, width=200, now=now, waiting=2).partition("   ")[0] for now in (90.0, 103.9, 144.0, 168)]
    assert shown == [f"3/20 · shell {s} · queue 2/10" for s in ("0 s", "0 s", "41 s", "1 min 5 s")]
    assert bar.stopping(144.0) == "⏹ Stopping after shell (41 s); Esc kills it"
    assert toolbar(RUN).stopping(144.0) == "⏹ Stopping"


def test_after_the_wait_for_a_retry_the_model_thinks_again() -> None:
    bar = toolbar(RUN, ITERATION, TEXT, RETRY)
    assert "retry in 5 s" in row_of(bar, now=102.0)
    assert "thinking 3 s" in row_of(bar, now=109.6)
    bar.update(events.TextDelta(text="There", time=109.0))
    assert "answering 1 s" in row_of(bar, now=110.0)


def test_a_run_is_active_from_its_start_to_its_result() -> None:
    bar = toolbar()
    assert not bar.is_running
    steps: list[tuple[Event, bool]] = [(RUN, True), (ITERATION, True), (RESULT, False), (RUN, True), (STOP, True)]
    for event, is_running in steps:
        bar.update(event)
        assert bar.is_running == is_running
    bar.update(events.Result(agent="explore", status="done", result=""))
    assert bar.is_running


@pytest.mark.parametrize(
    ("typed", "right"),
    [
        ("", "→ main"),
        ("  \n", "→ main"),
        ("use the other file", "⏳ main, next safe point"),
        (" stop", "⏳ main, next safe point"),
        ("how far are you?", "⏳ main, next safe point"),
        ("focus on tests", "⏳ main, next safe point"),
        ("!use the other file", "⚡ main, skips tools"),
        ("stop", "⏹ stops the run"),
        ("Never mind!", "⏹ stops the run"),
        ("todo: add x", "plan, next safe point"),
        ("!todo: add x", "⚡ plan, skips tools"),
        ("todo: add", "write it as todo: add <task>"),
        ("plan: fail x", "write it as todo: fail <N> [reason]"),
        ("!", "write the message after the !, for example: !use the other file"),
        ("then: check the licence", "after this run"),
        ("/status", "command"),
        ("x" * LONGEST_PARSED + "?", "⏳ main, next safe point"),
        ("!" + "x" * LONGEST_PARSED, "⏳ main, next safe point"),
        ("x" * (MAX_LINE + 1), "too long, at most 100,000 characters"),
    ],
)
def test_the_right_end_tells_what_enter_would_do(typed: str, right: str) -> None:
    assert sides(RUN, ITERATION, typed=typed)[1] == right
    assert row(RUN, ITERATION, typed=typed, width=120).endswith(right)


@pytest.mark.parametrize(
    ("typed", "right"),
    [("", ""), ("count", "⏎ starts a run"), ("todo: list", "⏎ answers at once"), ("status", "⏎ answers at once"),
     ("stop", "nothing to stop"), ("/help", "command"), ("todo: add", "write it as todo: add <task>")],
)  # fmt: skip
def test_with_no_run_active_enter_starts_one(typed: str, right: str) -> None:
    assert sides(typed=typed) == ("idle", right)


@pytest.mark.parametrize(
    ("typed", "right"),
    [("use B", "queue full"), ("!use B", "queue full"), ("then: B", "queue full"), ("todo: add x", "queue full"),
     ("stop", "⏹ stops the run"), ("/drop", "command"), ("todo: add", "write it as todo: add <task>"),
     ("", "→ main")],
)  # fmt: skip
def test_a_full_queue_is_told_where_room_is_needed(typed: str, right: str) -> None:
    assert sides(RUN, ITERATION, typed=typed, waiting=10)[1] == right


@pytest.mark.parametrize(
    ("typed", "target", "ahead", "right"),
    [
        ("use B", "explore-1", 0, "⏳ explore-1, next safe point"),
        ("use B", "explore-1", 10, "queue full"),
        ("", "explore-1", 10, "→ explore-1"),
        ("!use B", "explore-1", 0, "⚡ explore-1, skips tools"),
        ("stop", "explore-1", 0, "⏹ stops explore-1"),
        ("stop", "main", 0, "⏹ stops the run"),
        ("use B", "", 0, "no such agent at work"),
    ],
)
def test_what_is_addressed_is_about_that_agent(typed: str, target: str, ahead: int, right: str) -> None:
    assert sides(RUN, ITERATION, typed=typed, target=target, ahead=ahead, waiting=10, is_addressed=True)[1] == right


def test_lines_that_wait_while_nothing_runs_are_told_and_enter_starts_a_run_with_them() -> None:
    left, right = sides(waiting=2)
    assert "queue 2/" in left
    assert right == "⏎ starts a run with 2 lines"
    assert sides(waiting=2, typed="another")[1] == "⏎ starts a run"
    assert sides(waiting=0)[1] == ""


def test_a_session_may_begin_with_a_plan() -> None:
    toolbar = Toolbar(ascii=False, inbox_size=10, plan=["DONE", "PENDING", "PENDING"])
    assert "plan 1/3" in row_of(toolbar, now=0.0)
    toolbar.update(events.PlanChanged(tasks=(TaskView(1, "a", "FAILED"),), by="user"))
    assert "plan 1/1, 1 failed" in row_of(toolbar, now=0.0)
    toolbar.update(events.PlanChanged(tasks=(), by="user"))
    assert "plan" not in row_of(toolbar, now=0.0)


@pytest.mark.parametrize(("tokens", "marked"), [(79_000, []), (80_000, ["ctx 80%"])])
def test_a_window_that_is_nearly_full_is_marked(tokens: int, marked: list[str]) -> None:
    bar = toolbar(RUN, replace(USAGE, context_tokens=tokens, context_window=100_000))
    parts = bar.row(width=80, now=106.0, to=Recipient("main", ""), waiting=0)
    assert [text for style, text in parts if style == "nearly-full"] == marked


def test_a_stop_of_one_agent_is_told_by_its_name() -> None:
    bar = toolbar(RUN, ITERATION, call())
    assert bar.stopping(106.0, "explore-1") == "⏹ Stopping explore-1"
    assert bar.stopping(106.0, "main") == bar.stopping(106.0)


def test_a_line_typed_after_a_stop_comes_back() -> None:
    assert sides(RUN, ITERATION, STOP, typed="use B")[1] == "comes back after the stop"
    assert sides(RUN, ITERATION, STOP, RESULT, RUN, typed="use B")[1] == "⏳ main, next safe point"


def test_the_queue_is_that_of_the_agent_the_next_line_goes_to_and_others_are_added() -> None:
    assert "queue 2/10 +3" in sides(RUN, ITERATION, target="explore", ahead=2, waiting=5)[0]
    assert "queue 2/10 " not in sides(RUN, ITERATION, target="explore", ahead=2, waiting=2)[0] + "."


def test_the_next_line_may_go_to_a_child() -> None:
    assert sides(RUN, ITERATION, target="explore")[1] == "→ explore"
    assert sides(RUN, ITERATION, target="explore", typed="use B")[1] == "⏳ explore, next safe point"
    assert sides(RUN, ITERATION, target="explore", typed="todo: add x")[1] == "⏳ explore, next safe point"
    assert sides(RUN, ITERATION, target="main", typed="todo: add x")[1] == "plan, next safe point"


def test_an_answer_goes_to_the_agent_that_asked() -> None:
    assert sides(RUN, ITERATION, call("explore"), STARTED, QUESTION, at="Q1")[1] == "⏎ answers Q1 (explore-1)"


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (88, "3/20 · search_files 3 s · queue 2/10 · plan 1/3 · 12,345 tokens  ⚡ main, skips tools"),
        (80, "3/20 · search_files 3 s · queue 2/10 · plan 1/3               ⚡ main, skips tools"),
        (62, "3/20 · search_files 3 s · queue 2/10       ⚡ main, skips tools"),
        (55, "3/20 · search_files · queue 2/10    ⚡ main, skips tools"),
        (50, "3/20 · search_files            ⚡ main, skips tools"),
        (30, "3/20       ⚡ main, skips tools"),
        (25, "⚡ main, skips tools"),
        (20, "⚡ main, skips tools"),
        (12, "⚡ main, sk…"),
    ],
)
def test_a_narrow_row_leaves_out_the_least_important_first(width: int, shown: str) -> None:
    got = row(RUN, ITERATION, call(), PLAN, USAGE, width=width, waiting=2, typed="!use B")
    assert " ".join(got.split()) == " ".join(shown.split())
    assert columns(got) <= width


def test_without_signs_the_row_is_ascii() -> None:
    assert sides(RUN, ITERATION, call("søk"), STOP, PLAN, ascii=True, typed="stop") == (
        "3/20 - Stopping after s?k (3 s); Esc kills it - queue 0/10 - plan 1/3", "stops the run",
    )  # fmt: skip
    assert sides(RUN, ascii=True, typed="!x")[1] == "! main, skips tools"
    assert sides(RUN, ascii=True)[1] == "-> main"
    assert sides(ascii=True, typed="x")[1] == "Enter starts a run"


def columns(text: str) -> int:
    """As prompt-toolkit counts them."""
    return sum(get_cwidth(char) for char in text)


TIMES = st.floats(min_value=-1e12, max_value=1e12)
TYPED = st.one_of(
    st.text(max_size=30),
    st.sampled_from([*STOP_PHRASES, "!x", "todo: ", "todo: add x", "then: x", "/x", "x?", "status", "x" * 3000]),
)
NAMES = st.one_of(st.text(max_size=40), st.sampled_from(["shell", "検索" * 20, "\x1b[31mred", "a\u00adb", "é" * 30]))
AGENTS, IDS = st.sampled_from(["main", "explore"]), st.sampled_from(["t1", "t2"])
HAPPENINGS = st.one_of(
    st.sampled_from([USAGE, PLAN, RESULT]),
    drawn(events.ToolCall, id=IDS, name=NAMES, time=TIMES, agent=AGENTS),
    drawn(events.AgentStarted, name=AGENTS, parent_id=IDS, time=TIMES, agent=AGENTS),
    drawn(events.AgentEnded, name=AGENTS, parent_id=IDS, time=TIMES, agent=AGENTS),
    *(
        drawn(kind, id=IDS, text=TYPED, time=TIMES, agent=AGENTS)
        for kind in (
            *(events.RunStarted, events.IterationStarted, events.ThinkingDelta, events.TextDelta, events.ToolResult),
            *(events.Retry, events.Receipt),
        )
    ),
)


@given(st.lists(HAPPENINGS, max_size=12), st.integers(10, 300), TIMES, st.integers(0, 12), TYPED, NAMES, st.booleans())
def test_the_row_always_fits_and_is_one_row_of_text(
    happened: list[Event], width: int, now: float, waiting: int, typed: str, target: str, ascii: bool
) -> None:
    bar = toolbar(*happened, ascii=ascii)
    shown = row_of(bar, width=width, now=now, waiting=waiting, typed=typed, target=target)
    assert columns(shown) <= width
    for text in (shown, bar.stopping(now)):
        assert not [char for char in text if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")]
        assert "\ufe0f" not in text
        assert text.isascii() or not ascii
    if bar.is_running or typed.strip():
        right = row_of(bar, width=1_000, now=now, waiting=waiting, typed=typed, target=target).rsplit("   ")[-1].strip()
        assert shown.endswith(right) or columns(right) > width


@pytest.mark.parametrize(("has_esc", "key"), [(True, "Esc"), (False, "Ctrl-C")])
def test_a_stop_names_a_key_that_the_terminal_has(has_esc: bool, key: str) -> None:
    toolbar = Toolbar(ascii=True, inbox_size=10, has_esc=has_esc)
    for event in (RUN, ITERATION, call()):
        toolbar.update(event)
    assert toolbar.stopping(106.0).endswith(f"; {key} kills it")
