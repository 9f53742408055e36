"""How a run ends: each row of the two tables of ``chain/agent/state.py``."""

import math
from typing import get_args

import pytest
import trio
from trio.testing import MockClock

from chain.agent.state import (
    MAX_RESULT_CHARS,
    MAX_RESULTS,
    Outcome,
    PartialResult,
    PausableDeadline,
    Run,
    keeps_lines,
    stop_outcome,
)
from chain.events import Phase, Status
from chain.session.exit_codes import EXIT_CODES, exit_code

FOUND = [PartialResult("search_files", "3 matches\nin 2 files"), PartialResult("read_file", "\n  SKU123: 9 left  \n")]

LIST = """\
Here's what I found before you cancelled:
• search_files: 3 matches
• read_file: SKU123: 9 left
[2 done, 3 skipped]"""

QUESTION = "What would you like to do instead?"
NOTE = "Results found but response generation was cancelled."

# status: exit code, whether waiting lines stay when a run follows, and when none does
ENDINGS: dict[Status, tuple[int, bool, bool]] = {
    "done": (0, True, True),
    "cancelled": (0, False, False),
    "cancelled_with_partial": (0, False, False),
    "cancelled_during_synthesis": (0, False, False),
    "interrupted": (130, False, False),
    "max_iterations": (4, True, False),
    "limit_reached": (4, False, False),
    "truncated": (1, False, False),
    "empty": (1, False, False),
    "refused": (1, False, False),
    "context_full": (1, False, False),
    "error": (1, False, False),
}


@pytest.mark.parametrize("status", get_args(Status))
def test_the_table_of_endings(status: Status) -> None:
    code, follows, alone = ENDINGS[status]
    assert (EXIT_CODES[status], exit_code([code, code])) == (code, code)
    assert (keeps_lines(status, run_follows=True), keeps_lines(status, run_follows=False)) == (follows, alone)


def test_the_largest_problem_gives_the_exit_code() -> None:
    by_size = [143, 130, 1, 4, 3, 0]
    for n, largest in enumerate(by_size):
        assert exit_code(by_size[n:]) == exit_code(reversed(by_size[n:])) == largest


CANCELLED = f"Cancelled. {QUESTION}"
STOPS: dict[str, tuple[Phase, list[PartialResult], str, Status, str]] = {
    "before any result": ("thinking", [], "", "cancelled", CANCELLED),
    "in the tools": ("tools", [], "", "cancelled", "Cancelled before any results. What would you like to do?"),
    "after results": ("thinking", FOUND, "Let me look.", "cancelled_with_partial", f"{LIST}\n\n{QUESTION}"),
    "in the tools, after results": ("tools", FOUND, "", "cancelled_with_partial", f"{LIST}\n\n{QUESTION}"),
    "in the answer": ("answering", [], "It is\n", "cancelled", f"It is\n\n{QUESTION}"),
    "in a blank answer": ("answering", [], " \n", "cancelled", CANCELLED),
    "in the answer, after results": (
        "answering", FOUND, "It is", "cancelled_during_synthesis", f"It is\n\n{LIST}\n\n{NOTE}\n\n{QUESTION}"
    ),
    "in a blank answer, after results": (
        "answering", FOUND, "", "cancelled_during_synthesis", f"{LIST}\n\n{NOTE}\n\n{QUESTION}"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("phase", "found", "shown", "status", "text"), STOPS.values(), ids=STOPS)
def test_what_a_stop_shows(phase: Phase, found: list[PartialResult], shown: str, status: Status, text: str) -> None:
    outcome = stop_outcome(phase, found, 3, shown)

    assert (outcome.status, outcome.result) == (status, text)
    assert not outcome.short or outcome.short in text.replace("\n\n", "\n")


def test_long_results_are_shortened() -> None:
    row = stop_outcome("tools", [PartialResult("shell", "x" * 5000)], 0, "").result.splitlines()[1]
    assert (row[:12], row[-1], len(row) < 300) == ("• shell: xxx", "…", True)


OWN: list[tuple[Status, str, str]] = [
    # the loop's own ending, what stands after a stop, what stands after an interrupt
    *((status, "cancelled", "interrupted") for status in ("done", "max_iterations", "limit_reached", "truncated")),
    *((status, status, status) for status in ("empty", "refused", "context_full", "error")),
]


@pytest.mark.parametrize(("own", "after_stop", "after_interrupt"), OWN)
def test_stops_override_uninformative_endings(own: Status, after_stop: str, after_interrupt: str) -> None:
    undisturbed, stopped_one, interrupted_one = Run(), Run(), Run()
    stopped_one.stop()
    interrupted_one.interrupt()

    ends = [run.outcome(Outcome(own, "text"), 1.0).status for run in (undisturbed, stopped_one, interrupted_one)]

    assert ends == [own, after_stop, after_interrupt]


@pytest.mark.parametrize(
    ("acts", "state", "status"),
    [
        ("", "running", "limit_reached"),
        ("s", "stop asked", "limit_reached"),
        ("i", "interrupted", "interrupted"),
        ("si", "interrupted", "interrupted"),
        ("is", "interrupted", "interrupted"),
        ("ss", "stop asked", "limit_reached"),
    ],
)
def test_a_cancelled_run_ends_by_the_strongest_act(acts: str, state: str, status: Status) -> None:
    run = Run()
    for act in acts:
        run.stop() if act == "s" else run.interrupt()
    assert run.state == state

    assert run.outcome(None, 1.0).status == status


def test_the_strongest_act_sets_the_phase() -> None:
    run = Run()
    run.step.tools = "running"
    run.stop()
    run.step.tools = "over"
    run.stop()
    assert run.phase_reached == "tools", "a second stop changes nothing"

    run.interrupt()
    run.step.tools = "running"
    run.stop()

    assert run.outcome(None, 1.0).phase_reached == "thinking"


async def test_each_act_cuts_its_own_scopes() -> None:
    run = Run()
    call, tools, wait = run.cut_by("stop", "now"), run.cut_by("now"), run.cut_by("stop")

    run.cut("now")
    assert [scope.cancel_called for scope in (call, tools, wait)] == [True, True, False]
    assert run.state == "running"
    run.stop()
    assert wait.cancel_called


def test_a_long_run_keeps_the_latest_results() -> None:
    run = Run()
    for n in range(MAX_RESULTS + 20):
        run.add_results([PartialResult("read", f"row {n}")])
    run.add_results([PartialResult("read", "x" * MAX_RESULT_CHARS)])
    run.stop()
    outcome = run.outcome(Outcome("done", ""), 1.0)
    assert (run.dropped_findings, len(run.findings)) == (MAX_RESULTS + 20, 1)
    assert "• 1,020 earlier results\n• read: xxx" in outcome.result
    assert "[1021 done, 0 skipped]" in outcome.result


async def test_pauses_of_a_deadline_nest(mock_clock: MockClock) -> None:
    scope = trio.CancelScope(deadline=trio.current_time() + 10)
    deadline = PausableDeadline(scope)
    deadline.pause()
    deadline.pause()
    mock_clock.jump(100)
    deadline.resume()
    assert scope.deadline == math.inf
    deadline.resume()
    assert scope.deadline == trio.current_time() + 10
