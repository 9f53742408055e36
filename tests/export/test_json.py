"""The session as one JSON document."""

from __future__ import annotations

import json
import re

from support.eventful import eventful_session

from chain.app.sessions import json_document

ROWS = [
    *eventful_session().journal.splitlines(),
    b'{"type":"of a newer version","seq":900,"time":5.0,"x":{"y":[1,null,"\xc2\x9b2J\\ud800"]}}',
    b'{"type":"line","seq":901,"time":5.0,"id":"L9","text":"of the first version","kind":"urgent","urgent":true}',
]


def document_of(rows: list[bytes]) -> str:
    return "".join(json_document("an-id", rows, {}.get))


def test_document_has_every_record_unchanged() -> None:
    assert json.loads(document_of(ROWS))["records"] == [json.loads(row) for row in ROWS]


def test_damaged_rows_are_left_out() -> None:
    damaged = [b'{"type":"line","seq":902,"te', b"\0", b"", b"[]", b"7", b"{}", b"[" * 100_000]
    assert document_of([*ROWS, *damaged]) == document_of(ROWS)


def test_document_has_the_facts_of_the_session() -> None:
    facts = json.loads(ROWS[0])
    began = facts.pop("time")
    del facts["type"], facts["seq"]
    assert json.loads(document_of(ROWS))["session"] == {**facts, "id": "an-id", "began": began}


def test_document_is_printable_ascii() -> None:
    assert re.fullmatch(r"[ -~\n]+", document_of(ROWS))


def test_empty_journal_is_a_document() -> None:
    assert json.loads(document_of([])) == {"session": {"id": "an-id"}, "records": []}
