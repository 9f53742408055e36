"""The exit codes of the program."""

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
"""The exit code of each status of a run."""

LINES_LEFT = 3
"""The exit code if all runs succeeded, but some lines were returned, refused or never sent."""

WRONG_USAGE = 2
"""The exit code for wrong usage or configuration, before any run."""

INTERRUPTED_CODE = 130
SIGTERM_CODE = 143

_BY_SEVERITY = (SIGTERM_CODE, INTERRUPTED_CODE, 1, 4, LINES_LEFT, 0)


def exit_code(codes: Iterable[int]) -> int:
    """Return the most severe of these exit codes, or 0 if there are none."""
    found = set(codes)
    return next((code for code in _BY_SEVERITY if code in found), 0)
