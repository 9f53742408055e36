"""How a run ends: the table of SPEC section 7, and what a stopped run shows. Pure.

==============================  =========  ====================================
status                          exit code  lines that still wait
==============================  =========  ====================================
done                            0          none; follow-ups start the next run
cancelled, and its two kinds    0          returned
interrupted                     130        returned
max_iterations                  4          carried over
limit_reached                   4          returned
all others                      1          returned
==============================  =========  ====================================
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chain.events import Phase, Status

EXIT_CODES: dict[Status, int] = {
    "done": 0,
    "cancelled": 0,
    "cancelled_with_partial": 0,
    "cancelled_during_synthesis": 0,
    "interrupted": 130,
    "max_iterations": 4,
    "limit_reached": 4,
    "truncated": 1,
    "empty": 1,
    "refused": 1,
    "context_full": 1,
    "error": 1,
}

LINES_LEFT = 3
"""The exit code when all runs went well but some lines came back, were refused or were never sent."""

WRONG_USAGE = 2
"""Wrong usage or configuration, before any run."""

INTERRUPTED_CODE = 130
SIGTERM_CODE = 143

_BY_SIZE_OF_PROBLEM = (SIGTERM_CODE, INTERRUPTED_CODE, 1, 4, LINES_LEFT, 0)

QUESTION = "What would you like to do instead?"
INTERRUPTED_TEXT = "Interrupted. Tell the chain what to do instead."
STOPPED_BY_RULE = "a rule of the handler prompt makes it a stop"
"""The reason on the receipt of such a line, whose text does not show it."""

STOP_NOTE = "[The user stopped the run here]"
INTERRUPT_NOTE = "[The user interrupted the run here]"

_SHOWN = 200
"""Characters of a result in the list of what was found: enough to recognise it, and the whole is in the result."""


def exit_code(codes: Iterable[int]) -> int:
    """The exit code of a process from those of its parts: the largest problem wins."""
    found = set(codes)
    return next((code for code in _BY_SIZE_OF_PROBLEM if code in found), 0)


def keeps_lines(status: Status, *, run_follows: bool) -> bool:
    """Whether waiting lines stay for the next run; ``run_follows``: one will start, or a person can start one."""
    return status == "done" or (status == "max_iterations" and run_follows)


@dataclass(frozen=True, slots=True)
class Found:
    """A tool result that was no error."""

    tool: str
    text: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """What a stopped run comes to."""

    status: Status
    text: str


def stopped(phase: Phase, found: Sequence[Found], skipped: int, streamed: str) -> Stopped:
    """The outcome of a stop; ``streamed`` is the text of the reply that was under way or just ended."""
    listed = _listed(found, skipped)
    if phase == "answering":
        text = streamed.strip()
        if not found:
            return Stopped("cancelled", f"{text}\n\n{QUESTION}" if text else f"Cancelled. {QUESTION}")
        note = "Results found but response generation was cancelled."
        return Stopped("cancelled_during_synthesis", "\n\n".join(p for p in (text, listed, note, QUESTION) if p))
    if found:
        return Stopped("cancelled_with_partial", f"{listed}\n\n{QUESTION}")
    if phase == "tools":
        return Stopped("cancelled", "Cancelled before any results. What would you like to do?")
    return Stopped("cancelled", f"Cancelled. {QUESTION}")


def _listed(found: Sequence[Found], skipped: int) -> str:
    rows = [f"• {f.tool}: {_short(f.text)}" for f in found]
    return "\n".join(["Here's what I found before you cancelled:", *rows, f"[{len(found)} done, {skipped} skipped]"])


def _short(text: str) -> str:
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return first if len(first) <= _SHOWN else f"{first[:_SHOWN]}…"
