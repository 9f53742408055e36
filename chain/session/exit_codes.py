"""The exit codes of the program (SPEC section 7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chain.events import Status

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


def exit_code(codes: Iterable[int]) -> int:
    """The exit code of a process from those of its parts: the largest problem wins."""
    found = set(codes)
    return next((code for code in _BY_SIZE_OF_PROBLEM if code in found), 0)
