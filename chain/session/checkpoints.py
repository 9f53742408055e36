"""Checkpoints for undo: the state of a session before each of its latest runs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from chain.agent.history import Snapshot
from chain.journal.records import FileChanged, Rewound
from chain.text.wording import truncate

MAX_CHECKPOINTS = 10
"""The maximum number of runs that can be undone."""

MAX_QUERY = 60
"""The maximum number of characters of a query that ``undo_sentence`` shows."""

SHELL_STAYS = "Changes by shell commands are not undone."


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state before a run, and the changes of files in the run.

    ``query`` is the query of the run, ``began`` the time of its start in seconds since the epoch, and ``history`` the
    main agent's history before the run.
    """

    query: str
    began: float
    history: Snapshot
    changes: list[FileChanged] = field(default_factory=list)

    @property
    def paths(self) -> tuple[str, ...]:
        """The files that edit tools changed in the run, without repetitions."""
        return tuple(dict.fromkeys(change.path for change in self.changes))


def undo_sentence(record: Rewound, undone: Sequence[Checkpoint]) -> str:
    """Return a message about the result of an undo. ``undone`` are the undone runs, the last run first."""
    query = undone[-1].query if undone else ""
    befores = {change.path: change.before for point in undone for change in reversed(point.changes)}
    removed = [path for path in record.restored if befores.get(path) == "" and path not in record.left]
    restored = [path for path in record.restored if path not in removed]
    parts = []
    if not record.keeps_conversation:
        parts.append(f"Back to before: {truncate(' '.join(query.split()) or 'a run without a query', MAX_QUERY)}.")
    if restored:
        parts.append(f"Restored: {', '.join(restored)}.")
    if removed:
        parts.append(f"Removed: {', '.join(removed)}.")
    if not record.restored:
        parts.append("No file was restored.")
    if record.left:
        parts.append(f"Changed since, so not restored: {', '.join(record.left)}.")
    return " ".join([*parts, SHELL_STAYS])
