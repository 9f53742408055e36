"""A session that a test has left behind, run again from its record."""

from __future__ import annotations

from threading import Thread

from chain.replaying import Replayed, replay

from .sessions import Session


def replayed(session: Session) -> Replayed:
    """What comes of replaying a session as it was opened, in a thread, since a trio loop may run here."""
    found: list[Replayed | BaseException] = []

    def run() -> None:
        assert session.use is not None
        try:
            found.append(replay(session.use, session.file.data.splitlines(keepends=True), tools=session.tools))
        except BaseException as error:  # noqa: BLE001 - raised below
            found.append(error)

    thread = Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def check_replays(session: Session) -> None:
    """The session, replayed, is as it is on record."""
    result = replayed(session)
    assert result.same, "\n".join(result.rows)
