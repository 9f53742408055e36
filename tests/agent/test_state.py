"""The outcome of a run: its status, text, phase and exit code, after each act of the user."""

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
from chain.session.exit_codes import exit_code

RESULTS = [PartialResult("search_files", "3 matches\nin 2 files"), PartialResult("read_file", "\n  SKU123: 9 left  \n")]

RESULTS_TEXT = """\
Here's what I found before you cancelled:
• search_files: 3 matches
• read_file: SKU123: 9 left
[2 done, 3 skipped]"""

QUESTION = "What would you like to do instead?"
NOTE = "Results found but response generation was cancelled."


@pytest.mark.parametrize("status", get_args(Status))
def test_only_done_and_continued_runs_keep_lines(status: Status) -> None:
    assert keeps_lines(status, run_follows=True) == (status in ("done", "max_iterations"))
    assert keeps_lines(status, run_follows=False) == (status == "done")


def test_the_most_severe_code_is_the_exit_code() -> None:
    codes = [143, 130, 1, 4, 3, 0]  # SIGTERM, an interrupt, an error, a limit, lines left, success
    while codes:
        most_severe, *others = codes
        assert exit_code(codes) == exit_code(reversed(codes)) == most_severe
        codes = others


CANCELLED = f"Cancelled. {QUESTION}"
STOPS: dict[str, tuple[Phase, list[PartialResult], str, Status, str]] = {
    # The phase, the results and the shown text at the stop; the status and the text of the outcome.
    "before any result": ("thinking", [], "", "cancelled", CANCELLED),
    "in the tools": ("tools", [], "", "cancelled", "Cancelled before any results. What would you like to do?"),
    "after results": ("thinking", RESULTS, "Let me look.", "cancelled_with_partial", f"{RESULTS_TEXT}\n\n{QUESTION}"),
    "in the tools, after results": ("tools", RESULTS, "", "cancelled_with_partial", f"{RESULTS_TEXT}\n\n{QUESTION}"),
    "in the answer": ("answering", [], "It is\n", "cancelled", f"It is\n\n{QUESTION}"),
    "in a blank answer": ("answering", [], " \n", "cancelled", CANCELLED),
    "in the answer, after results": (
        "answering", RESULTS, "It is", "cancelled_during_synthesis", f"It is\n\n{RESULTS_TEXT}\n\n{NOTE}\n\n{QUESTION}"
    ),
    "in a blank answer, after results": (
        "answering", RESULTS, "", "cancelled_during_synthesis", f"{RESULTS_TEXT}\n\n{NOTE}\n\n{QUESTION}"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("phase", "results", "shown", "status", "text"), STOPS.values(), ids=STOPS)
def test_a_stop_shows_results_and_text(
    phase: Phase, results: list[PartialResult], shown: str, status: Status, text: str
) -> None:
    outcome = stop_outcome(phase, results, skipped=3, streamed=shown)
    assert (outcome.status, outcome.result) == (status, text)
    assert not outcome.short or outcome.short in text.replace("\n\n", "\n"), "the short text has no blank rows"


def test_long_results_are_shortened() -> None:
    result = stop_outcome("tools", [PartialResult("shell", "x" * 5000)], skipped=0, streamed="").result
    _, row, *_ = result.splitlines()
    assert row.startswith("• shell: xxx")
    assert row.endswith("…")
    assert len(row) < 300


@pytest.mark.parametrize("status", ["done", "max_iterations", "limit_reached", "truncated"])
def test_stops_override_uninformative_endings(status: Status) -> None:
    assert _statuses_at_end(status) == {"undisturbed": status, "stopped": "cancelled", "interrupted": "interrupted"}


@pytest.mark.parametrize("status", ["empty", "refused", "context_full", "error"])
def test_stops_do_not_override_problems(status: Status) -> None:
    assert _statuses_at_end(status) == {"undisturbed": status, "stopped": status, "interrupted": status}


def _statuses_at_end(status: Status) -> dict[str, Status]:
    """Return the status of runs that end with ``status``: undisturbed, after a stop, and after an interrupt."""
    runs = {"undisturbed": Run(), "stopped": Run(), "interrupted": Run()}
    runs["stopped"].stop()
    runs["interrupted"].interrupt()
    return {name: run.outcome(Outcome(status, "text"), timeout_s=1.0).status for name, run in runs.items()}


@pytest.mark.parametrize(
    ("acts", "state", "status"),
    [
        ([], "running", "limit_reached"),
        (["stop"], "stop asked", "limit_reached"),
        (["interrupt"], "interrupted", "interrupted"),
        (["stop", "interrupt"], "interrupted", "interrupted"),
        (["interrupt", "stop"], "interrupted", "interrupted"),
    ],
    ids=["no act", "stop", "interrupt", "stop, interrupt", "interrupt, stop"],
)
def test_a_cancelled_run_ends_by_the_strongest_act(acts: list[str], state: str, status: Status) -> None:
    run = Run()
    for act in acts:
        run.stop() if act == "stop" else run.interrupt()
    assert run.state == state
    assert run.outcome(None, timeout_s=1.0).status == status


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

    assert run.outcome(None, timeout_s=1.0).phase_reached == "thinking"


async def test_each_act_cuts_its_own_scopes() -> None:
    run = Run()
    call, tools, wait = run.cut_scope("stop", "now"), run.cut_scope("now"), run.cut_scope("stop")
    run.cut("now")
    assert [scope.cancel_called for scope in (call, tools, wait)] == [True, True, False]
    assert run.state == "running"
    run.stop()
    assert wait.cancel_called


def test_a_long_run_keeps_the_latest_results() -> None:
    run, dropped = Run(), MAX_RESULTS + 20
    for n in range(dropped):
        run.add_results([PartialResult("read", f"row {n}")])
    run.add_results([PartialResult("read", "x" * MAX_RESULT_CHARS)])
    run.stop()
    outcome = run.outcome(Outcome("done", ""), timeout_s=1.0)
    assert (run.dropped_findings, len(run.findings)) == (dropped, 1)
    assert f"• {dropped:,} earlier results\n• read: xxx" in outcome.result
    assert f"[{dropped + 1} done, 0 skipped]" in outcome.result


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
