"""Sessions with front ends that have no screen."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chain import events

from .sessions import Session


@dataclass
class Stage:
    """A session with the states of its lines and runs."""

    session: Session

    @property
    def statuses(self) -> list[str]:
        return [r.status for r in self.session.of(events.Result)]

    @property
    def states(self) -> dict[str, str]:
        """The state of each line, by its text."""
        return {r.text: r.state for r in self.session.chain.lines.receipts}

    @property
    def delivered(self) -> list[tuple[str, str | None]]:
        """The delivered lines, with their safe points."""
        return [(r.text, r.point) for r in self.session.chain.lines.receipts if r.state == "delivered"]


@dataclass
class Printing(Stage):
    """A session whose standard output and standard error are two files."""

    paths: tuple[Path, Path]

    @property
    def stdout(self) -> str:
        return self.paths[0].read_bytes().decode()

    @property
    def stderr(self) -> str:
        return self.paths[1].read_bytes().decode()

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(row) for row in self.stdout.splitlines()]


def line(text: str, id: str = "", **more: object) -> dict[str, Any]:
    return {"type": "line", "text": text, **({"id": id} if id else {}), **more}
