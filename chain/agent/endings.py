"""How a run ends (SPEC section 7), what becomes of the lines that wait then, and what a stopped run shows. Pure.

==============================  ====================================
status                          lines that still wait
==============================  ====================================
done                            none; follow-ups start the next run
max_iterations                  carried over
all others                      returned
==============================  ====================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chain.text.wording import INTERRUPTED_TEXT, QUESTION

if TYPE_CHECKING:
    from chain.events import Phase, Status

_SHOWN = 200
"""Characters of a result in the list of what was found: enough to recognise it, and the whole is in the result."""


def keeps_lines(status: Status, *, run_follows: bool) -> bool:
    """Whether waiting lines stay for the next run; ``run_follows``: one will start, or a person can start one."""
    return status == "done" or (status == "max_iterations" and run_follows)


@dataclass(frozen=True, slots=True)
class Found:
    """A tool result that was no error."""

    tool: str
    text: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended; the waiting lines are still where they were."""

    status: Status
    result: str
    partial: bool = False
    phase_reached: Phase | None = None
    partial_results: tuple[str, ...] = ()
    termination_reason: str | None = None


def interrupted(phase: Phase | None, found: Sequence[Found]) -> Outcome:
    """The outcome of a hard interrupt."""
    results = tuple(f.text for f in found)
    return Outcome("interrupted", INTERRUPTED_TEXT, True, phase, results, "user_interrupted")


def stopped(phase: Phase, found: Sequence[Found], skipped: int, streamed: str) -> Outcome:
    """The outcome of a stop; ``streamed`` is the text of the reply that was under way or just ended."""
    status, text = _stopped(phase, found, skipped, streamed.strip())
    return Outcome(status, text, True, phase, tuple(f.text for f in found), "user_cancelled")


def _stopped(phase: Phase, found: Sequence[Found], skipped: int, text: str) -> tuple[Status, str]:
    listed = _listed(found, skipped)
    if phase == "answering":
        if not found:
            return "cancelled", f"{text}\n\n{QUESTION}" if text else f"Cancelled. {QUESTION}"
        note = "Results found but response generation was cancelled."
        return "cancelled_during_synthesis", "\n\n".join(p for p in (text, listed, note, QUESTION) if p)
    if found:
        return "cancelled_with_partial", f"{listed}\n\n{QUESTION}"
    if phase == "tools":
        return "cancelled", "Cancelled before any results. What would you like to do?"
    return "cancelled", f"Cancelled. {QUESTION}"


def _listed(found: Sequence[Found], skipped: int) -> str:
    rows = [f"• {f.tool}: {_short(f.text)}" for f in found]
    return "\n".join(["Here's what I found before you cancelled:", *rows, f"[{len(found)} done, {skipped} skipped]"])


def _short(text: str) -> str:
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return first if len(first) <= _SHOWN else f"{first[:_SHOWN]}…"
