"""Sessions without a screen, and what their front ends print."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chain import events

from .sessions import Session


@dataclass
class HeadlessSession:
    """A session whose lines and runs a test checks by their states."""

    session: Session

    @property
    def statuses(self) -> list[str]:
        """The status of each finished run, in order."""
        return [result.status for result in self.session.of(events.Result)]

    @property
    def states(self) -> dict[str, str]:
        """The state of each line, by its text."""
        return {receipt.text: receipt.state for receipt in self.session.chain.lines.receipts}

    @property
    def delivered(self) -> list[tuple[str, str | None]]:
        """The delivered lines, with their safe points."""
        receipts = self.session.chain.lines.receipts
        return [(receipt.text, receipt.point) for receipt in receipts if receipt.state == "delivered"]


@dataclass
class PrintingSession(HeadlessSession):
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
        """The JSON objects on standard output, one per row."""
        return [json.loads(row) for row in self.stdout.splitlines()]


def line_object(text: str, id: str = "", **more: object) -> dict[str, Any]:
    """Return the JSON object that submits a line."""
    return {"type": "line", "text": text, **({"id": id} if id else {}), **more}
