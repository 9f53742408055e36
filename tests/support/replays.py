"""A session that a test has left behind, compared with what the model would be told today."""

from __future__ import annotations

from chain.app.replay import Replayed, replay

from .sessions import Session, written_at


def replayed(session: Session) -> Replayed:
    """What comes of comparing a session with what it was opened with."""
    assert session.use is not None
    return replay(session.use, session.file.data.splitlines(keepends=True), tools=session.tools)


def check_replays(session: Session) -> None:
    """Nothing in the session differs, unless its prompts were changed while it was open."""
    if session.use is not None and written_at(session.use) == session.prompts:
        found = replayed(session)
        assert found.is_same, "\n".join(found.rows)
