"""The journals that a program wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Receipt:
    """The recorded state of a line; ``queued`` without a receipt."""

    text: str
    kind: str
    state: str = "queued"
    iteration: int = 0
    point: str | None = None


def journals(home: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the records of each session by its id, the latest session last, without a torn record."""
    return {path.stem: [json.loads(row) for row in path.read_bytes().split(b"\n")[:-1]] for path in journal_files(home)}


def journal_files(home: Path) -> list[Path]:
    """Return the journals, the latest last."""
    return sorted((home / "state/chain/sessions").glob("*.jsonl"), key=lambda path: path.stat().st_mtime_ns)


def records(home: Path) -> list[dict[str, Any]]:
    """Return the records of the only session."""
    (only_session,) = journals(home).values()
    return only_session


def receipts(home: Path) -> dict[str, Receipt]:
    """Return the last state of each line of the only session by its id, in the order of acceptance."""
    return receipts_of(records(home))


def receipts_of(all_records: Sequence[Mapping[str, Any]]) -> dict[str, Receipt]:
    """Return the last state of each line in these records."""
    lines: dict[str, Receipt] = {}
    for record in all_records:
        if record["type"] == "line":
            lines[record["id"]] = Receipt(record["text"], record["kind"])
        elif record["type"] == "receipt":
            state, iteration, point = record["state"], record["iteration"], record["point"]
            lines[record["id"]] = replace(lines[record["id"]], state=state, iteration=iteration, point=point)
    return lines
