"""A program that is talked to in JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from .point import Kill
from .scenarios import Cue, Row
from .seen import Seen, Watch


def talk(
    begin: Callable[[int, int], int], kill: Kill | None, rows: Sequence[Row], cues: Sequence[Cue], results: int
) -> Seen:
    """Write the rows, and those of each cue once it comes, and close the input after so many results.

    ``begin`` starts the program with these descriptors as its standard input and output, and gives its process id.
    """
    stdin, ours = os.pipe()
    output, stdout = os.pipe()
    try:
        watch = Watch(begin(stdin, stdout), output, kill)
    finally:
        os.close(stdin)
        os.close(stdout)
    talker = _Talker(ours, list(cues), results)
    try:
        talker.write(rows)
        rest = b""
        while data := watch.read():
            *whole, rest = (rest + data).split(b"\n")
            for row in whole:
                event = json.loads(row)
                watch.seen.hear(event)
                talker.hear(event, watch.seen)
                watch.piece()
    finally:
        talker.close()
        os.close(output)
        seen = watch.close()
    return seen


class _Talker:
    def __init__(self, fd: int, cues: list[Cue], results: int) -> None:
        self._fd = fd
        self._cues = cues
        self._results = results

    def write(self, rows: Sequence[Row]) -> None:
        data = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
        if data and self._fd >= 0:
            with suppress(BrokenPipeError):
                os.write(self._fd, data)
        if not self._results:
            self.close()

    def hear(self, event: dict[str, Any], seen: Seen) -> None:
        for cue in [each for each in self._cues if each.fits(event)]:
            self._cues.remove(cue)
            self.write(cue.rows)
        if seen.results >= self._results:
            self.close()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
