"""Whether a run is active, as the records of a journal say. Pure.

It is from its first message to its result: the message of its query, or that of the lines that it begins with. A line
that was accepted and has no message yet has begun nothing; if the program ends there, it waits.
"""

from __future__ import annotations

from chain import records
from chain.wording import MAIN


class Activity:
    """Whether a run is active after the records that were added."""

    def __init__(self) -> None:
        self.is_running = False

    def add(self, record: records.Record | records.Unknown) -> bool:
        """Add the next record. Whether a run begins with it."""
        match record:
            case records.Message(agent=agent, point="start") if agent == MAIN:
                begins = True
            case records.Message(agent=agent, point="A") if agent == MAIN:
                begins = not self.is_running
            case records.Result() | records.Session():
                # Who opens a session finds no run in it, whatever the record of its end came to.
                self.is_running = begins = False
            case _:
                begins = False
        self.is_running = self.is_running or begins
        return begins
