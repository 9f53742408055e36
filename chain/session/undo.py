"""Undo the last runs: restore the files that edit tools changed, and rewind the conversation."""

from __future__ import annotations

from chain.agent.spec import Shared
from chain.errors import UserError
from chain.journal.records import Rewound
from chain.messages import user_text
from chain.session.checkpoints import Checkpoint
from chain.session.runs import SessionRuns
from chain.tools.restoring import restore_files

UNDONE_NOTE = "[The user undid your changes of: {}. Read these files again before you edit them.]"
"""The message that tells the model about restored files, if only files were restored."""


class Undo:
    """Undo for the runs of a session. It is possible only while no run is active.

    The methods are synchronous, so that no run can start during an undo.
    """

    def __init__(self, runs: SessionRuns, shared: Shared) -> None:
        self._runs = runs
        self._shared = shared

    @property
    def points(self) -> tuple[Checkpoint, ...]:
        """The runs that can be undone, the last run first."""
        return tuple(reversed(self._runs.state.checkpoints))

    def undo(self, count: int = 1, *, keeps_conversation: bool = False) -> None:
        """Undo the last ``count`` runs, and emit a notice of what was undone. Changes by shell commands stay.

        With ``keeps_conversation``, only restore files. Raise ``UserError`` if a run is active, fewer runs can be
        undone, or the files cannot be restored in this process. Raise ``JournalError`` if the undo cannot be recorded.
        """
        points, journal = self.points[:count], self._shared.journal
        if self._runs.active is not None:
            raise UserError("a run is active; stop it before you undo")
        if not points or len(points) < count:
            most = f"only the last {len(points)} can be undone" if points else "there is no run to undo"
            raise UserError(most)
        changes = [change for point in reversed(points) for change in point.changes]
        if changes and not journal.reads_attachments:
            raise UserError("files can be restored only in a session on this machine; use /undo where the session runs")
        workspace = self._shared.workspace
        restored, left = restore_files(workspace, changes, journal.read_attachment)
        for each in restored:
            # The model has to read the restored content before it edits the file again.
            self._shared.known_files.digests.pop(workspace.resolve() / each, None)
        rewound = journal.record(Rewound(count, keeps_conversation, tuple(restored), tuple(left)))
        if keeps_conversation and restored:
            context = self._runs.tree.main.agent
            journal.emit_after_acks(context.append(user_text(UNDONE_NOTE.format(", ".join(restored)))).emit)
        journal.emit_after_acks(rewound.emit)
