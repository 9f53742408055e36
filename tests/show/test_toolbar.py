"""The row below the prompt, after events and with a typed text."""

import unicodedata
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.utils import get_cwidth
from support.agent_events import AgentEvents

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
CHILD, SECOND = AgentEvents("explore-1", "t1"), AgentEvents("explore-2", "t3")


def call(name: str = "search_files", id: str = "t1", agent: str = "main", time: float = 103.0) -> events.ToolCall:
    return events.ToolCall(agent=agent, id=id, name=name, input={}, time=time)


def answered(id: str = "t1", agent: str = "main", time: float = 105.0) -> events.ToolResult:
    return events.ToolResult(agent=agent, id=id, name="x", text="", is_error=False, seconds=2.0, time=time)


QUESTION = replace(CHILD.question(), time=104.0)
WORKING = (RUN, ITERATION)
EXPLORING = (RUN, ITERATION, call("explore"), CHILD.started(), call("shell", "t2", "explore-1"))


def toolbar(*happened: Event, ascii: bool = False, **more: Any) -> Toolbar:
    made = Toolbar(ascii=ascii, inbox_size=10, **more)
    for event in happened:
        made.update(event)
    return made


def row_of(
    bar: Toolbar,
    *,
    typed: str = "",
    target: str = "main",
    waiting: int = 0,
    own: int | None = None,
    is_addressed: bool = False,
    **changes: Any,
) -> str:
    """Return the row as text. ``own`` of the waiting lines are the target's, by default all."""
    to = Recipient(target, typed, waiting if own is None else own, is_addressed)
    parts = bar.row(**{"width": 80, "now": 106.0, "to": to, "waiting": waiting, **changes})
    return "".join(text for _, text in parts)


def sides(*happened: Event, ascii: bool = False, **changes: Any) -> tuple[str, str]:
    """Return the left side and the right end of a wide row."""
    left, _, right = row_of(toolbar(*happened, ascii=ascii), width=200, **changes).partition("   ")
    return left, right.strip()


@pytest.mark.parametrize(
    ("happened", "left"),
    [
        ((), "idle"),
        ((PLAN, USAGE), "idle · plan 1/3 · 12,345 tokens"),
        ((*WORKING, RESULT), "idle"),
        ((RUN,), "starting 6 s · queue 0/10"),
        (WORKING, "3/20 · thinking 5 s · queue 0/10"),
        ((*WORKING, TEXT, TEXT), "3/20 · answering 2 s · queue 0/10"),
        ((*WORKING, call()), "3/20 · search_files 3 s · queue 0/10"),
        ((*WORKING, call(), call("list_files", "t2", time=104.0)), "3/20 · list_files +1 2 s · queue 0/10"),
        ((*WORKING, call(), answered()), "3/20 · thinking 1 s · queue 0/10"),
        ((*EXPLORING, call("grep", "t3", "explore-1", 106.0)), "3/20 · explore-1: grep +1 0 s · queue 0/10"),
        ((*EXPLORING, answered("t2", "explore-1")), "3/20 · explore 3 s · queue 0/10"),
        ((*EXPLORING, CHILD.ended()), "3/20 · explore 3 s · queue 0/10"),
        ((*EXPLORING, CHILD.ended(), answered()), "3/20 · thinking 1 s · queue 0/10"),
        ((*EXPLORING, call("explore", "t3"), SECOND.started()),
         "3/20 · explore-1: shell 3 s · 2 agents · queue 0/10"),
        ((*EXPLORING, SECOND.started(), RESULT, RUN), "starting 6 s · queue 0/10"),
        ((*EXPLORING, QUESTION), "3/20 · explore-1: Q1 waits 2 s · queue 0/10"),
        ((*EXPLORING, QUESTION, CHILD.ended()), "3/20 · explore 3 s · queue 0/10"),
        ((*EXPLORING, STOP), "3/20 · ⏹ Stopping after shell of explore-1 (3 s); Esc kills it · queue 0/10"),
        ((*WORKING, call("explore"), CHILD.iteration()), "3/20 · explore 3 s · queue 0/10"),
        ((*WORKING, RETRY), "3/20 · retry in 1 s · queue 0/10"),
        ((*WORKING, PLAN, USAGE), "3/20 · thinking 5 s · queue 0/10 · plan 1/3 · 12,345 tokens"),
        ((*WORKING, STOP), "3/20 · ⏹ Stopping · queue 0/10"),
        ((STOP, *WORKING), "3/20 · thinking 5 s · queue 0/10"),
    ],
)  # fmt: skip
def test_the_left_side_describes_the_run(happened: tuple[Event, ...], left: str) -> None:
    assert sides(*happened)[0] == left


@pytest.mark.parametrize(
    ("mode", "idle", "running"), [("ask", "ask", ""), ("accept edits", "accept edits", "edits · "),
                                  ("read only", "read only", "read only · ")]
)  # fmt: skip
def test_the_mode_is_short_during_a_run(mode: Mode, idle: str, running: str) -> None:
    assert sides(mode=mode)[0] == f"idle · {idle}"
    assert sides(*WORKING, mode=mode)[0] == f"{running}3/20 · thinking 5 s · queue 0/10"


def test_background_jobs_are_counted() -> None:
    assert sides(jobs=1)[0] == "idle · 1 job"
    assert sides(*WORKING, PLAN, jobs=2)[0] == "3/20 · thinking 5 s · queue 0/10 · 2 jobs · plan 1/3"


def test_the_seconds_of_a_step_pass() -> None:
    bar = toolbar(*WORKING, call("shell"))
    shown = [row_of(bar, width=200, now=now, waiting=2).partition("   ")[0] for now in (90.0, 103.9, 144.0, 168)]
    assert shown == [f"3/20 · shell {s} · queue 2/10" for s in ("0 s", "0 s", "41 s", "1 min 5 s")]


def test_a_delay_or_a_reply_ends_a_retry() -> None:
    bar = toolbar(*WORKING, TEXT, RETRY)
    assert "retry in 5 s" in row_of(bar, now=102.0)
    assert "thinking 3 s" in row_of(bar, now=109.6)
    bar.update(replace(TEXT, time=109.0))
    assert "answering 1 s" in row_of(bar, now=110.0)


def test_a_run_is_active_until_its_result() -> None:
    bar = toolbar()
    assert not bar.is_running
    child = events.Result(agent="explore", status="done", result="")
    steps: list[tuple[Event, bool]] = [(RUN, True), (ITERATION, True), (RESULT, False), (RUN, True), (child, True)]
    for event, is_running in steps:
        bar.update(event)
        assert bar.is_running == is_running


@pytest.mark.parametrize(
    ("of", "more", "shown"),
    [
        ("main", {}, "⏹ Stopping after search_files (3 s); Esc kills it"),
        ("main", {"has_esc": False}, "⏹ Stopping after search_files (3 s); Ctrl-C kills it"),
        ("explore-1", {}, "⏹ Stopping explore-1"),
    ],
)
def test_a_stop_says_what_it_waits_for(of: str, more: dict[str, Any], shown: str) -> None:
    assert toolbar(*WORKING, call(), **more).stopping(106.0, of) == shown


# ------------------------------------------------------------------------------------------------------ the right end


TO_CHILD = {"target": "explore-1", "is_addressed": True, "waiting": 10}


@pytest.mark.parametrize(
    ("happened", "typed", "more", "right"),
    [
        (WORKING, "  \n", {}, "→ main"),
        (WORKING, "use the other file", {}, "⏳ main, next safe point"),
        (WORKING, " stop", {}, "⏳ main, next safe point"),
        (WORKING, "how far are you?", {}, "⏳ main, next safe point"),
        (WORKING, "!use the other file", {}, "⚡ main, skips tools"),
        (WORKING, "Never mind!", {}, "⏹ stops the run"),
        (WORKING, "todo: add x", {}, "plan, next safe point"),
        (WORKING, "!todo: add x", {}, "⚡ plan, skips tools"),
        (WORKING, "todo: add", {}, "write it as todo: add <task>"),
        (WORKING, "!", {}, "write the message after the !, for example: !use the other file"),
        (WORKING, "then: check the licence", {}, "after this run"),
        (WORKING, "/status", {}, "command"),
        (WORKING, "x" * LONGEST_PARSED + "?", {}, "⏳ main, next safe point"),
        (WORKING, "!" + "x" * LONGEST_PARSED, {}, "⏳ main, next safe point"),
        (WORKING, "x" * (MAX_LINE + 1), {}, "too long, at most 100,000 characters"),
        # No run is active.
        ((), "", {}, ""),
        ((), "count", {}, "⏎ starts a run"),
        ((), "todo: list", {}, "⏎ answers at once"),
        ((), "status", {}, "⏎ answers at once"),
        ((), "stop", {}, "nothing to stop"),
        ((), "/help", {}, "command"),
        ((), "todo: add", {}, "write it as todo: add <task>"),
        ((), "", {"waiting": 2}, "⏎ starts a run with 2 lines"),
        ((), "another", {"waiting": 2}, "⏎ starts a run"),
        # The queue is full.
        *((WORKING, typed, {"waiting": 10}, "queue full") for typed in ("use B", "!use B", "then: B", "todo: add x")),
        (WORKING, "stop", {"waiting": 10}, "⏹ stops the run"),
        (WORKING, "/drop", {"waiting": 10}, "command"),
        (WORKING, "todo: add", {"waiting": 10}, "write it as todo: add <task>"),
        (WORKING, "", {"waiting": 10}, "→ main"),
        # The line has an address, or a question is open, or the run was stopped.
        (WORKING, "use B", {**TO_CHILD, "own": 0}, "⏳ explore-1, next safe point"),
        (WORKING, "use B", {**TO_CHILD, "own": 10}, "queue full"),
        (WORKING, "", {**TO_CHILD, "own": 10}, "→ explore-1"),
        (WORKING, "todo: add x", {**TO_CHILD, "own": 0}, "⏳ explore-1, next safe point"),
        (WORKING, "stop", {**TO_CHILD, "own": 0}, "⏹ stops explore-1"),
        (WORKING, "stop", {**TO_CHILD, "target": "main"}, "⏹ stops the run"),
        (WORKING, "use B", {**TO_CHILD, "target": "", "own": 0}, "no such agent at work"),
        ((*EXPLORING, QUESTION), "", {"at": "Q1"}, "⏎ answers Q1 (explore-1)"),
        ((*EXPLORING, QUESTION, RESULT), "because", {"at": "Q1"}, "Q1 is no longer open"),
        ((*WORKING, STOP), "use B", {}, "is returned after the stop"),
        ((*WORKING, STOP, RESULT, RUN), "use B", {}, "⏳ main, next safe point"),
    ],
)
def test_the_right_end_says_what_enter_does(
    happened: tuple[Event, ...], typed: str, more: dict[str, Any], right: str
) -> None:
    assert sides(*happened, typed=typed, **more)[1] == right


@pytest.mark.parametrize(("waiting", "queue"), [(5, "queue 2/10 +3"), (2, "queue 2/10")])
def test_lines_for_other_agents_are_counted_apart(waiting: int, queue: str) -> None:
    assert sides(*WORKING, target="explore", own=2, waiting=waiting)[0].split(" · ")[-1] == queue


def test_a_session_may_start_with_a_plan() -> None:
    bar = toolbar(plan=["DONE", "PENDING", "PENDING"])
    assert "plan 1/3" in row_of(bar)
    bar.update(events.PlanChanged(tasks=(TaskView(1, "a", "FAILED"),), by="user"))
    assert "plan 1/1, 1 failed" in row_of(bar)
    bar.update(events.PlanChanged(tasks=(), by="user"))
    assert "plan" not in row_of(bar)


@pytest.mark.parametrize(("tokens", "marked"), [(79_000, []), (80_000, ["ctx 80%"])])
def test_a_nearly_full_window_is_marked(tokens: int, marked: list[str]) -> None:
    bar = toolbar(RUN, replace(USAGE, context_tokens=tokens, context_window=100_000))
    parts = bar.row(width=80, now=106.0, to=Recipient("main", ""), waiting=0)
    assert [text for style, text in parts if style == "nearly-full"] == marked


# ------------------------------------------------------------------------------------------------------------- widths


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (95, "idle · queue 0/10 +2 · plan 1/3 · some-model · ~/src/tool · a-branch · ctx 43% · 12,345 tokens"),
        (80, "idle · queue 0/10 +2 · plan 1/3 · some-model · ~/src/tool · a-branch · ctx 43%"),
        (70, "idle · queue 0/10 +2 · plan 1/3 · some-model · a-branch · ctx 43%"),
        (60, "idle · queue 0/10 +2 · plan 1/3 · some-model · ctx 43%"),
        (50, "idle · queue 0/10 +2 · plan 1/3 · ctx 43%"),
        (35, "idle · queue 0/10 +2 · plan 1/3"),
        (25, "idle · queue 0/10 +2"),
    ],
)
def test_an_idle_row_drops_parts_in_order(width: int, shown: str) -> None:
    bar = toolbar(PLAN, replace(USAGE, context_tokens=43, context_window=100), folder="~/src/tool")
    bar.model, bar.branch = "some-model", "a-branch"
    # With lines of its own the right end would say that they start a run.
    assert row_of(bar, width=width, waiting=2, own=0).rstrip() == shown


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
        (12, "⚡ main, sk…"),
    ],
)
def test_a_running_row_drops_parts_in_order(width: int, shown: str) -> None:
    found = row_of(toolbar(*WORKING, call(), PLAN, USAGE), width=width, waiting=2, typed="!use B")
    assert " ".join(found.split()) == " ".join(shown.split())
    assert columns(found) <= width


def test_long_and_hostile_names_are_cut() -> None:
    bar = toolbar(ascii=True, folder="~/a/very/long/way/down/to/the/t\x1b[2Jo\u202eol")
    bar.branch = "feature/that-goes-on-and-on-and-on"
    assert row_of(bar) == "idle - .../way/down/to/the/tool - feature/that-goes-on-..."


def test_the_row_may_be_ascii() -> None:
    assert sides(*WORKING, call("søk"), STOP, PLAN, ascii=True, typed="stop") == (
        "3/20 - Stopping after s?k (3 s); Esc kills it - queue 0/10 - plan 1/3", "stops the run",
    )  # fmt: skip
    assert sides(RUN, ascii=True, typed="!x")[1] == "! main, skips tools"
    assert sides(RUN, ascii=True)[1] == "-> main"
    assert sides(ascii=True, typed="x")[1] == "Enter starts a run"


def columns(text: str) -> int:
    """Return the width as prompt-toolkit counts it."""
    return sum(get_cwidth(char) for char in text)


TIMES = st.floats(min_value=-1e12, max_value=1e12)
NAMES = ["shell", "検索" * 20, "\x1b[31mred", "a\u00adb", "é" * 30, "", "\ud800\u2028"]
TYPED = st.one_of(
    st.text(max_size=30),
    st.sampled_from([*STOP_PHRASES, "!x", "todo: ", "todo: add x", "then: x", "/x", "x?", "status", "x" * 3000]),
)
HAPPENINGS = st.sampled_from(
    [
        *(call(name, id, agent, time) for name, time in zip(NAMES, range(7), strict=True)
          for id, agent in (("t1", "main"), ("t2", "explore-1"))),
        *(RUN, ITERATION, TEXT, USAGE, PLAN, RESULT, STOP, RETRY, QUESTION, CHILD.started(), CHILD.ended()),
        *(replace(RETRY, delay_s=1e12), answered(), answered("t2", "explore-1"), CHILD.iteration(), CHILD.thinking_delta("x")),
    ]
)  # fmt: skip


@given(
    st.lists(HAPPENINGS, max_size=12),
    st.integers(10, 300),
    TIMES,
    st.integers(0, 12),
    TYPED,
    st.sampled_from(NAMES),
    st.booleans(),
)
def test_any_row_fits_and_can_be_printed(
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
