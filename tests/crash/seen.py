"""What was seen of one program, from its start to its end: what it acknowledged, and how it ended."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from . import program
from .point import Kill

DEADLINE_S = 60.0
"""Of one program; usual is a tenth of a second. One that is not over by then hangs."""

CHUNK = 1 << 16
_SEEN_S = 0.004
"""The longest time between what was seen and the kill: what a program does until its next write takes less."""


@dataclass(slots=True)
class Seen:
    """What one program has shown.

    ``acknowledged`` are the texts of lines that it said it has, ``receipts`` what it said became of them, and
    ``answers`` the questions that it said are answered, with the decision. ``pieces`` counts what was read of it;
    ``shown`` is all of it at a terminal, ``errors`` what was on standard error elsewhere. ``is_stuck``: what the keys
    waited for was not shown.
    """

    acknowledged: list[str] = field(default_factory=list)
    receipts: list[tuple[str, str]] = field(default_factory=list)
    answers: dict[str, str] = field(default_factory=dict)
    results: int = 0
    pieces: int = 0
    code: int | None = None
    shown: str = ""
    errors: str = ""
    is_stuck: bool = False
    is_killed: bool = False

    def hear(self, event: Mapping[str, Any]) -> None:
        """Take an event of the JSON stream."""
        match event:
            case {"type": "line_queued", "text": text}:
                self.acknowledged.append(text)
            case {"type": "receipt", "text": text, "state": "delivered" | "handled" | "returned" | "dropped" as state}:
                self.acknowledged.append(text)
                self.receipts.append((text, state))
            case {"type": "answer", "id": id, "decision": decision}:
                self.answers[id] = decision
            case {"type": "result"}:
                self.results += 1
            case _:
                pass


class Watch:
    """One program while it runs: reads what it shows, and kills it from outside if the point says so."""

    def __init__(self, pid: int, output: int, kill: Kill | None) -> None:
        self.pid = pid
        self.seen = Seen()
        self.is_over = False
        self._output = output
        self._kill = kill if kill is not None and kill.call == "seen" else None
        self._end = time.monotonic() + DEADLINE_S
        self._pidfd = os.pidfd_open(pid)
        self._has_ended = False

    def read(self) -> bytes:
        """What comes next; empty when nothing more will."""
        while not self.is_over:
            sources = [self._output] if self._has_ended else [self._output, self._pidfd]
            ready, _, _ = select.select(sources, [], [], 0 if self._has_ended else max(0, self._end - time.monotonic()))
            if self._output in ready:
                try:
                    if data := os.read(self._output, CHUNK):
                        return data
                except OSError:
                    pass  # nobody holds the other end of the terminal any more
                self.is_over = True
            elif self._pidfd in ready:
                self._has_ended = True
            else:
                self.is_over = True
        return b""

    def piece(self) -> None:
        """Count a piece of the output, and kill the program if this was the last one that it was to show."""
        self.seen.pieces += 1
        if self._kill is not None and self.seen.pieces == self._kill.n and not self._has_ended:
            select.select([self._pidfd], [], [], self._kill.part * _SEEN_S)
            program.kill(self.pid)

    def close(self) -> Seen:
        """Wait for the program's end. ``code`` stays empty for one that hangs, which is killed."""
        os.close(self._pidfd)
        self.seen.code = program.wait(self.pid, max(0.0, self._end - time.monotonic()))
        if self.seen.code is None:
            program.kill(self.pid)
            program.wait(self.pid, DEADLINE_S)
        self.seen.is_killed = self.seen.code == -9
        return self.seen
