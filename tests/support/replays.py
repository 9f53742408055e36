"""A session that a test has left behind, run again from its record."""

from __future__ import annotations

import re
import zlib
from itertools import pairwise
from threading import Thread

from chain import events
from chain.replaying import Replayed, replay
from chain.tools.tool import may_run_beside_others

from .disks import FullDisk
from .examples import PROFILE
from .sessions import Session, written_at

ONE_IN = 1 if PROFILE == "long" else 24
"""How many sessions there are to one that ``check_replayed`` replays: replaying costs as much as the session did."""

_TIME = re.compile(rb'"time": ?[0-9.]+')

_GIVEN_UP = "longer than the run has left"
"""What is told of a call that was not made again since the service asked to wait too long."""


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


def check_replayed(session: Session, one_in: int) -> None:
    """One in so many sessions, always the same, is as it is on record when it is replayed, or cannot be followed."""
    if zlib.crc32(_TIME.sub(b"", session.file.data)) % one_in == 0 and is_replayable(session):
        check_replays(session, is_sure=False)


def is_replayable(session: Session) -> bool:
    """Whether the record tells all that mattered (``cli/help/sessions.md``).

    It does not where the disk failed or was slow, a line was refused, a call was given up, or a prompt was changed. Nor
    where a listener raised: nobody does so in a replay, and what was done on hearing of that has no moment there.
    """
    if session.use is None or session.chain.is_running or isinstance(session.file, FullDisk) or session.file.is_slow:
        return False
    if written_at(session.use) != session.prompts:
        return False
    if session.of(events.LineRefused) or any(r.state in ("refused", "unsent") for r in session.chain.receipts):
        return False
    if any(event.message.startswith("a listener failed") for event in session.of(events.Notice)):
        return False
    told = [*session.of(events.Result), *session.of(events.ToolResult)]
    return not any(_GIVEN_UP in getattr(event, "result", getattr(event, "text", "")) for event in told)


def check_replays(session: Session, *, is_sure: bool = True) -> None:
    """The session, replayed, is as it is on record.

    Not ``is_sure``: it may hang on a moment that is not on record, so that it cannot be followed to its end, but only
    if calls, or agents, were at work at the same time.
    """
    result = replayed(session)
    may_part = not is_sure and _is_side_by_side(session)
    assert result.outcome == "same" or (result.outcome == "cannot be followed" and may_part), "\n".join(result.rows)


def _is_side_by_side(session: Session) -> bool:
    """Whether neighbouring calls of one reply may have run at the same time, and the agents that they started."""
    alone = {tool.name for tool in session.tools if not may_run_beside_others(tool)}
    started = {record["id"] for record in session.records if record["type"] == "tool_started"}
    for record in session.records:
        if record["type"] == "message":
            calls = [block for block in record["message"]["content"] if block["type"] == "tool_use"]
            # One whose input does not fit may be beside any other.
            if any(map(all, pairwise(c["name"] not in alone or c["id"] not in started for c in calls))):
                return True
    return False
