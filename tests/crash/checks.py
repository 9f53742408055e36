"""Checks of a session that was killed and resumed. Pure.

Each check yields a sentence for each violation. I1 to I7 are invariants of the specification.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from double import rules
from double.continuity import FlatRequest, find_breach, flat_request
from support.crashes import check_settled

from chain.journal import json as record_json
from chain.journal import records

from .program import HEADERS

Record: TypeAlias = Mapping[str, Any]
"""A row of a journal, as JSON."""


@dataclass(frozen=True, slots=True)
class SentRequests:
    """The requests that one program sent, and whether a power cut followed its end."""

    requests: Sequence[Mapping[str, Any]]
    lost_power: bool


def read_records(data: bytes) -> list[Record]:
    """Return the records of a journal. Rows that a kill or a power cut damaged are skipped."""
    found: list[Record] = []
    for row in data.split(b"\n")[:-1]:
        try:
            record = json.loads(row)
        except ValueError:
            continue
        found += [record] if isinstance(record, dict) else []
    return found


def check_acknowledged(
    acknowledged: Iterable[str], answers: Mapping[str, str], journal: Sequence[Record]
) -> Iterator[str]:
    """I6: every acknowledged line and answer is on disk."""
    recorded = {_bare(r["text"]) for r in journal if r["type"] == "line"}
    for text in sorted(set(map(_bare, acknowledged)) - recorded):
        yield f"the line {text!r} was acknowledged and is not in the journal"
    decided = {(r["id"], r["decision"]) for r in journal if r["type"] == "answer"}
    for id, decision in sorted(set(answers.items()) - decided):
        yield f"the answer to {id} ({decision}) was acknowledged and is not in the journal"


def check_endings(journal: Sequence[Record]) -> Iterator[str]:
    """I1: each run, agent and question has ended, and each line has exactly one final state."""
    try:
        check_settled(journal)
    except AssertionError as error:
        yield f"{error}"


def check_effects(written: Iterable[str], journal: Sequence[Record]) -> Iterator[str]:
    """A file is written only after the answer that allows it is on disk."""
    allowed = {r["id"] for r in journal if r["type"] == "answer" and r["decision"] == "allowed"}
    previews = [r["preview"] or r["diff"]["path"] for r in journal if r["type"] == "question" and r["id"] in allowed]
    for name in written:
        if not any(name in each for each in previews):
            yield f"{name} was written, and no answer in the journal allows it"


def check_records(journal: Sequence[Record]) -> Iterator[str]:
    """Every record is valid and of a known type. The records are numbered from 1."""
    for n, record in enumerate(journal, 1):
        try:
            entry = record_json.from_json(record)
        except ValueError as error:
            yield f"record {n} cannot be read: {error}"
            continue
        if isinstance(entry.record, records.Unknown) or entry.seq != n:
            yield f"record {n} has the number {entry.seq} and the type {record['type']}"


def check_requests(sent: Iterable[SentRequests]) -> Iterator[str]:
    """I2: the Messages API accepts every request."""
    for n, program in enumerate(sent, 1):
        for k, body in enumerate(program.requests, 1):
            if (fault := rules.check(body, HEADERS)) is not None:
                yield f"request {k} of program {n}: {fault.message}"


def check_continuity(sent: Iterable[SentRequests], journal: Sequence[Record]) -> Iterator[str]:
    """I7: each request starts with the previous one of its conversation, also across programs.

    A conversation is identified by its first text. Nothing is checked if messages were withdrawn or removed. A request
    after a power cut is not compared with earlier ones, whose records may not have been synced.
    """
    if any(r["type"] in ("withdrawn", "removed") for r in journal):
        return
    last: dict[str, FlatRequest] = {}
    for n, program in enumerate(sent, 1):
        for k, body in enumerate(program.requests, 1):
            first, now = body["messages"][0]["content"][0]["text"], flat_request(body)
            before = last.get(first)
            if before is not None and (why := find_breach(before, now, fixed=False)) is not None:
                yield f"request {k} of program {n}: {why}"
            last[first] = now
        if program.lost_power:
            last.clear()


def _bare(text: str) -> str:
    """Return the text of a line without its marker."""
    return text.lstrip("! ")
