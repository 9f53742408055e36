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
NOTE = "Results found but response generation was cancelled"

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


def test_every_status_has_a_row() -> None:
    assert set(ENDINGS) == set(EXIT_CODES) == set(get_args(Status))


@pytest.mark.parametrize(("status", "code"), [(status, row[0]) for status, row in ENDINGS.items()])
def test_exit_codes_of_statuses(status: Status, code: int) -> None:
    assert EXIT_CODES[status] == code
    assert exit_code([EXIT_CODES[status]]) == code


@pytest.mark.parametrize(("status", "follows", "alone"), [(status, *row[1:]) for status, row in ENDINGS.items()])
def test_which_endings_keep_waiting_lines(status: Status, follows: bool, alone: bool) -> None:
    assert keeps_lines(status, run_follows=True) is follows
    assert keeps_lines(status, run_follows=False) is alone


# ------------------------------------------------------------------------------------------------------- exit codes

BY_SIZE = (143, 130, 1, 4, 3, 0)


@pytest.mark.parametrize("n", range(len(BY_SIZE)))
def test_the_largest_problem_gives_the_exit_code(n: int) -> None:
    smaller = list(BY_SIZE[n:])

    assert exit_code(smaller) == BY_SIZE[n]
    assert exit_code(reversed(smaller)) == BY_SIZE[n]
    assert exit_code([BY_SIZE[n]] * 3) == BY_SIZE[n]


# ----------------------------------------------------------------------------------------------- what a stop shows


@pytest.mark.parametrize(
    ("phase", "text"),
    [
        ("thinking", "Cancelled. What would you like to do instead?"),
        ("tools", "Cancelled before any results. What would you like to do?"),
    ],
)
def test_a_stop_before_any_result_says_so(phase: Phase, text: str) -> None:
    ending = stop_outcome(phase, [], 3, "")

    assert (ending.status, ending.result) == ("cancelled", text)


@pytest.mark.parametrize("phase", ["thinking", "tools"])
def test_a_stop_shows_what_was_found_so_far(phase: Phase) -> None:
    ending = stop_outcome(phase, FOUND, 3, "Let me look.")

    assert ending.status == "cancelled_with_partial"
    assert ending.result == f"{LIST}\n\n{QUESTION}"


def test_a_stop_in_the_answer_shows_everything() -> None:
    ending = stop_outcome("answering", FOUND, 3, "The answer is")

    assert ending.status == "cancelled_during_synthesis"
    assert ending.result.startswith(f"The answer is\n\n{LIST}\n\n{NOTE}")
    assert QUESTION in ending.result
    assert ending.short.splitlines() == [LIST.splitlines()[-1], f"{NOTE}.", QUESTION]


@pytest.mark.parametrize("blank", ["", " \n"])
def test_a_stop_in_a_blank_answer(blank: str) -> None:
    assert stop_outcome("answering", [], 0, blank).result == f"Cancelled. {QUESTION}"
    assert stop_outcome("answering", FOUND, 3, blank).result.startswith(LIST)


def test_long_results_are_shortened() -> None:
    row = stop_outcome("tools", [PartialResult("shell", "x" * 5000)], 0, "").result.splitlines()[1]

    assert row.startswith("• shell: xxxx")
    assert row.endswith("…")
    assert len(row) < 300


# ------------------------------------------------------------------------------------------- what overrides what

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
    assert (run.earlier, len(run.found)) == (MAX_RESULTS + 20, 1)
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
