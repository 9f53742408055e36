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
CHILD, SECOND_CHILD = AgentEvents("explore-1", "t1"), AgentEvents("explore-2", "t3")


def call(name: str = "search_files", id: str = "t1", agent: str = "main", time: float = 103.0) -> events.ToolCall:
    return events.ToolCall(agent=agent, id=id, name=name, input={}, time=time)


def result_of(id: str = "t1", agent: str = "main") -> events.ToolResult:
    return events.ToolResult(agent=agent, id=id, name="x", text="", is_error=False, seconds=2.0, time=105.0)


NOW = 106.0
"""The seconds in a row are those from the time of an event above until now."""
QUESTION = replace(CHILD.question(), time=104.0)
WORKING = (RUN, ITERATION)
EXPLORING = (RUN, ITERATION, call("explore"), CHILD.started(), call("shell", "t2", "explore-1"))


def toolbar(*stream: Event, ascii: bool = False, **settings: Any) -> Toolbar:
    bar = Toolbar(ascii=ascii, inbox_size=10, **settings)
    for event in stream:
        bar.update(event)
    return bar


def row_of(
    bar: Toolbar,
    *,
    typed: str = "",
    target: str = "main",
    waiting: int = 0,
    waiting_for_target: int | None = None,
    is_addressed: bool = False,
    **changes: Any,
) -> str:
    """Return the row as text. By default all waiting lines are the target's."""
    own = waiting if waiting_for_target is None else waiting_for_target
    to = Recipient(target, typed, own, is_addressed)
    parts = bar.row(**{"width": 80, "now": NOW, "to": to, "waiting": waiting, **changes})
    return "".join(text for _, text in parts)


def sides(*stream: Event, ascii: bool = False, **changes: Any) -> tuple[str, str]:
    """Return the left side and the right end of a wide row."""
    left, _, right = row_of(toolbar(*stream, ascii=ascii), width=200, **changes).partition("   ")
    return left, right.strip()


def left_side(*stream: Event, **changes: Any) -> str:
    left, _ = sides(*stream, **changes)
    return left


def right_end(*stream: Event, **changes: Any) -> str:
    _, right = sides(*stream, **changes)
    return right


ACTIVITIES: dict[str, tuple[tuple[Event, ...], str]] = {
    "started": ((RUN,), "starting 6 s"),
    "iteration": (WORKING, "3/20 · thinking 5 s"),
    "text": ((*WORKING, TEXT, TEXT), "3/20 · answering 2 s"),
    "tool": ((*WORKING, call()), "3/20 · search_files 3 s"),
    "two tools": ((*WORKING, call(), call("list_files", "t2", time=104.0)), "3/20 · list_files +1 2 s"),
    "finished tool": ((*WORKING, call(), result_of()), "3/20 · thinking 1 s"),
    "tools of a child": ((*EXPLORING, call("grep", "t3", "explore-1", time=106.0)), "3/20 · explore-1: grep +1 0 s"),
    "finished tool of a child": ((*EXPLORING, result_of("t2", "explore-1")), "3/20 · explore 3 s"),
    "ended child": ((*EXPLORING, CHILD.ended()), "3/20 · explore 3 s"),
    "ended child and call": ((*EXPLORING, CHILD.ended(), result_of()), "3/20 · thinking 1 s"),
    "two children": (
        (*EXPLORING, call("explore", "t3"), SECOND_CHILD.started()), "3/20 · explore-1: shell 3 s · 2 agents"
    ),
    "next run": ((*EXPLORING, SECOND_CHILD.started(), RESULT, RUN), "starting 6 s"),
    "question of a child": ((*EXPLORING, QUESTION), "3/20 · explore-1: Q1 waits 2 s"),
    "ended child with a question": ((*EXPLORING, QUESTION, CHILD.ended()), "3/20 · explore 3 s"),
    "stop during a child's tool": (
        (*EXPLORING, STOP), "3/20 · ⏹ Stopping after shell of explore-1 (3 s); Esc kills it"
    ),
    "iteration of a child": ((*WORKING, call("explore"), CHILD.iteration()), "3/20 · explore 3 s"),
    "retry": ((*WORKING, RETRY), "3/20 · retry in 1 s"),
    "stop": ((*WORKING, STOP), "3/20 · ⏹ Stopping"),
    "stop before the run": ((STOP, *WORKING), "3/20 · thinking 5 s"),
}  # fmt: skip


@pytest.mark.parametrize(("stream", "activity"), ACTIVITIES.values(), ids=ACTIVITIES)
def test_the_left_side_describes_the_activity(stream: tuple[Event, ...], activity: str) -> None:
    assert left_side(*stream) == f"{activity} · queue 0/10"


@pytest.mark.parametrize("stream", [(), (*WORKING, RESULT)], ids=["before a run", "after a run"])
def test_the_left_side_is_idle_without_a_run(stream: tuple[Event, ...]) -> None:
    assert left_side(*stream) == "idle"


@pytest.mark.parametrize(
    ("mode", "words_in_run"), [("ask", ""), ("accept edits", "edits · "), ("read only", "read only · ")]
)
def test_the_mode_is_short_during_a_run(mode: Mode, words_in_run: str) -> None:
    assert left_side(mode=mode) == f"idle · {mode}"
    assert left_side(*WORKING, mode=mode) == f"{words_in_run}3/20 · thinking 5 s · queue 0/10"


def test_background_jobs_are_counted() -> None:
    assert left_side(jobs=1) == "idle · 1 job"
    assert left_side(*WORKING, PLAN, jobs=2) == "3/20 · thinking 5 s · queue 0/10 · 2 jobs · plan 1/3"


# The call is at 103. A clock that was set back to 90 does not count below 0.
@pytest.mark.parametrize(("now", "seconds"), [(90.0, "0 s"), (103.9, "0 s"), (144.0, "41 s"), (168.0, "1 min 5 s")])
def test_the_seconds_of_a_step_pass(now: float, seconds: str) -> None:
    assert left_side(*WORKING, call("shell"), now=now) == f"3/20 · shell {seconds} · queue 0/10"


def test_a_delay_or_a_reply_ends_a_retry() -> None:
    bar = toolbar(*WORKING, TEXT, RETRY)  # whose delay ends at 106.5
    assert "retry in 5 s" in row_of(bar, now=102.0)
    assert "thinking 3 s" in row_of(bar, now=109.6)
    bar.update(replace(TEXT, time=109.0))
    assert "answering 1 s" in row_of(bar, now=110.0)


def test_a_run_is_active_until_its_result() -> None:
    bar = toolbar()
    assert not bar.is_running
    result_of_child = events.Result(agent="explore", status="done", result="")
    for event, is_running in ((RUN, True), (ITERATION, True), (RESULT, False), (RUN, True), (result_of_child, True)):
        bar.update(event)
        assert bar.is_running == is_running


@pytest.mark.parametrize(
    ("agent", "has_esc", "words"),
    [
        ("main", True, "⏹ Stopping after search_files (3 s); Esc kills it"),
        ("main", False, "⏹ Stopping after search_files (3 s); Ctrl-C kills it"),
        ("explore-1", True, "⏹ Stopping explore-1"),
    ],
)
def test_a_stop_says_what_it_waits_for(agent: str, has_esc: bool, words: str) -> None:
    assert toolbar(*WORKING, call(), has_esc=has_esc).stopping(NOW, agent) == words


# ------------------------------------------------------------------------------------------------------ the right end


@pytest.mark.parametrize(
    ("typed", "right"),
    [
        ("  \n", "→ main"),
        ("use the other file", "⏳ main, next safe point"),
        (" stop", "⏳ main, next safe point"),
        ("how far are you?", "⏳ main, next safe point"),
        ("!use the other file", "⚡ main, skips tools"),
        ("Never mind!", "⏹ stops the run"),
        ("todo: add x", "plan, next safe point"),
        ("!todo: add x", "⚡ plan, skips tools"),
        ("todo: add", "write it as todo: add <task>"),
        ("!", "write the message after the !, for example: !use the other file"),
        ("then: check the licence", "after this run"),
        ("/status", "command"),
        pytest.param("x" * LONGEST_PARSED + "?", "⏳ main, next safe point", id="unparsed question"),
        pytest.param("!" + "x" * LONGEST_PARSED, "⏳ main, next safe point", id="unparsed urgent line"),
        pytest.param("x" * (MAX_LINE + 1), "too long, at most 100,000 characters", id="too long"),
    ],
)
def test_the_right_end_says_what_enter_does(typed: str, right: str) -> None:
    assert right_end(*WORKING, typed=typed) == right


@pytest.mark.parametrize(
    ("typed", "waiting", "right"),
    [
        ("", 0, ""),
        ("count", 0, "⏎ starts a run"),
        ("todo: list", 0, "⏎ answers at once"),
        ("status", 0, "⏎ answers at once"),
        ("stop", 0, "nothing to stop"),
        ("/help", 0, "command"),
        ("todo: add", 0, "write it as todo: add <task>"),
        ("", 2, "⏎ starts a run with 2 lines"),
        ("another", 2, "⏎ starts a run"),
    ],
)
def test_without_a_run_enter_starts_one(typed: str, waiting: int, right: str) -> None:
    assert right_end(typed=typed, waiting=waiting) == right


@pytest.mark.parametrize(
    ("typed", "right"),
    [
        *((typed, "queue full") for typed in ("use B", "!use B", "then: B", "todo: add x")),
        ("stop", "⏹ stops the run"),
        ("/drop", "command"),
        ("todo: add", "write it as todo: add <task>"),
        ("", "→ main"),
    ],
)
def test_a_full_queue_accepts_only_stops_and_commands(typed: str, right: str) -> None:
    assert right_end(*WORKING, typed=typed, waiting=10) == right


@pytest.mark.parametrize(
    ("typed", "target", "waiting_for_target", "right"),
    [
        ("use B", "explore-1", 0, "⏳ explore-1, next safe point"),
        ("use B", "explore-1", 10, "queue full"),
        ("", "explore-1", 10, "→ explore-1"),
        ("todo: add x", "explore-1", 0, "⏳ explore-1, next safe point"),
        ("stop", "explore-1", 0, "⏹ stops explore-1"),
        ("stop", "main", 10, "⏹ stops the run"),
        ("use B", "", 0, "no such agent at work"),
    ],
)
def test_an_addressed_line_is_for_its_agent(typed: str, target: str, waiting_for_target: int, right: str) -> None:
    address = {"target": target, "waiting_for_target": waiting_for_target, "is_addressed": True}
    assert right_end(*WORKING, typed=typed, waiting=10, **address) == right


def test_the_right_end_names_the_open_question() -> None:
    assert right_end(*EXPLORING, QUESTION, question_id="Q1") == "⏎ answers Q1 (explore-1)"
    assert right_end(*EXPLORING, QUESTION, RESULT, typed="because", question_id="Q1") == "Q1 is no longer open"


def test_a_stopped_run_returns_lines() -> None:
    assert right_end(*WORKING, STOP, typed="use B") == "is returned after the stop"
    assert right_end(*WORKING, STOP, RESULT, RUN, typed="use B") == "⏳ main, next safe point"


@pytest.mark.parametrize(("waiting", "queue"), [(5, "queue 2/10 +3"), (2, "queue 2/10")])
def test_lines_for_other_agents_are_counted_apart(waiting: int, queue: str) -> None:
    assert left_side(*WORKING, target="explore", waiting_for_target=2, waiting=waiting).endswith(f" · {queue}")


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
    parts = bar.row(width=80, now=NOW, to=Recipient("main", ""), waiting=0)
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
    # Lines that wait for the main agent would be mentioned at the right end.
    assert row_of(bar, width=width, waiting=2, waiting_for_target=0).rstrip() == shown


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
    row = row_of(toolbar(*WORKING, call(), PLAN, USAGE), width=width, waiting=2, typed="!use B")
    assert row.split() == shown.split()
    assert columns(row) <= width


def test_long_and_hostile_names_are_cut() -> None:
    bar = toolbar(ascii=True, folder="~/a/very/long/way/down/to/the/t\x1b[2Jo\u202eol")
    bar.branch = "feature/that-goes-on-and-on-and-on"
    assert row_of(bar) == "idle - .../way/down/to/the/tool - feature/that-goes-on-..."


def test_the_row_may_be_ascii() -> None:
    assert sides(*WORKING, call("søk"), STOP, PLAN, ascii=True, typed="stop") == (
        "3/20 - Stopping after s?k (3 s); Esc kills it - queue 0/10 - plan 1/3", "stops the run",
    )  # fmt: skip
    assert right_end(RUN, ascii=True, typed="!x") == "! main, skips tools"
    assert right_end(RUN, ascii=True) == "-> main"
    assert right_end(ascii=True, typed="x") == "Enter starts a run"


def columns(text: str) -> int:
    """Return the width as prompt-toolkit counts it."""
    return sum(get_cwidth(char) for char in text)


NAMES = ["shell", "検索" * 20, "\x1b[31mred", "a\u00adb", "é" * 30, "", "\ud800\u2028"]
LINES = [*STOP_PHRASES, "!x", "todo: ", "todo: add x", "then: x", "/x", "x?", "status", "x" * 3000]
EVENTS = [
    *(call(name, id, agent, float(n)) for n, name in enumerate(NAMES)
      for id, agent in (("t1", "main"), ("t2", "explore-1"))),
    RUN, ITERATION, TEXT, USAGE, PLAN, RESULT, STOP, RETRY, replace(RETRY, delay_s=1e12), QUESTION,
    result_of(), result_of("t2", "explore-1"),
    CHILD.started(), CHILD.iteration(), CHILD.thinking_delta("x"), CHILD.ended(),
]  # fmt: skip


@given(
    st.lists(st.sampled_from(EVENTS), max_size=12), st.booleans(), st.integers(10, 300),
    st.fixed_dictionaries({
        "now": st.floats(min_value=-1e12, max_value=1e12),
        "waiting": st.integers(0, 12),
        "typed": st.text(max_size=30) | st.sampled_from(LINES),
        "target": st.sampled_from(NAMES),
    }),
)  # fmt: skip
def test_any_row_fits_and_can_be_printed(stream: list[Event], ascii: bool, width: int, changes: dict[str, Any]) -> None:
    bar = toolbar(*stream, ascii=ascii)
    row = row_of(bar, width=width, **changes)
    assert columns(row) <= width
    for text in (row, bar.stopping(changes["now"])):
        assert not [char for char in text if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")]
        assert "\ufe0f" not in text
        assert text.isascii() or not ascii
    if bar.is_running or changes["typed"].strip():  # the left side gives way to the right end
        right = row_of(bar, width=1_000, **changes).rsplit("   ")[-1].strip()
        assert row.endswith(right) or columns(right) > width
