"""Compare the session of a test with the requests that its settings lead to now."""

from __future__ import annotations

from chain.app.replay import Replayed, replay

from .sessions import Session, written_at


def replay_session(session: Session) -> Replayed:
    """Return the replay of a session with its own settings."""
    assert session.use is not None
    return replay(session.use, session.file.data.splitlines(keepends=True), tools=session.tools)


def check_replays(session: Session) -> None:
    """Check that a replay finds no difference, unless prompts were changed while the session was open."""
    if session.use is not None and written_at(session.use) == session.prompts:
        replayed = replay_session(session)
        assert replayed.is_same, "\n".join(replayed.rows)
