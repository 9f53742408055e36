"""Exchange JSON with a program, and record which lines and answers it acknowledges."""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from . import program
from .scenarios import Row, Scenario

DEADLINE_S = 60.0
"""The time limit of one program. Usually a program takes a tenth of a second."""


@dataclass(slots=True)
class Seen:
    """The acknowledgements of a program: the texts of lines, and the decisions of questions by their ids.

    ``code`` is its exit code, or ``None`` if it did not end in time.
    """

    acknowledged: list[str] = field(default_factory=list)
    answers: dict[str, str] = field(default_factory=dict)
    results: int = 0
    code: int | None = None

    @property
    def is_killed(self) -> bool:
        return self.code == -9

    def add(self, event: dict[str, Any]) -> None:
        match event:
            case {"type": "line_queued", "text": text}:
                self.acknowledged.append(text)
            case {"type": "receipt", "text": text, "state": "delivered" | "handled" | "returned" | "dropped"}:
                self.acknowledged.append(text)
            case {"type": "answer", "id": id, "decision": decision}:
                self.answers[id] = decision
            case {"type": "result"}:
                self.results += 1
            case _:
                pass


def talk(start: Callable[[int, int], int], scenario: Scenario) -> Seen:
    """Write the rows of a scenario, and those of each cue when its event arrives. Close the input after the results.

    ``start`` starts the program with two descriptors as standard input and output, and returns its process id.
    """
    stdin, input = os.pipe()
    output, stdout = os.pipe()
    pid = start(stdin, stdout)
    os.close(stdin)
    os.close(stdout)
    end = time.monotonic() + DEADLINE_S
    seen, cues, partial_row = Seen(), list(scenario.cues), b""
    _write(input, scenario.rows)
    while True:
        if input >= 0 and seen.results >= scenario.results:
            os.close(input)
            input = -1
        if not select.select([output], [], [], max(0.0, end - time.monotonic()))[0]:
            break
        if not (data := os.read(output, 1 << 16)):
            break
        *rows, partial_row = (partial_row + data).split(b"\n")
        for event in map(json.loads, rows):
            seen.add(event)
            for cue in [each for each in cues if each.matches(event)]:
                cues.remove(cue)
                _write(input, cue.rows)
    for fd in (input, output):
        if fd >= 0:
            os.close(fd)
    seen.code = program.wait(pid, max(0.0, end - time.monotonic()))
    if seen.code is None:
        program.kill(pid)
    return seen


def _write(fd: int, rows: list[Row]) -> None:
    if rows and fd >= 0:
        with suppress(BrokenPipeError):
            os.write(fd, "".join(f"{json.dumps(row)}\n" for row in rows).encode())
