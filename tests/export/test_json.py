"""The session as one JSON document."""

from __future__ import annotations

import json

from support.eventful import eventful

from chain.app.sessions import json_document


def test_document_has_every_record_unchanged() -> None:
    rows = eventful().journal.splitlines()
    rows += [
        b'{"type":"of a newer version","seq":900,"time":5.0,"x":{"y":[1,null,"\xc2\x9b2J\\ud800"]}}',
        b'{"type":"line","seq":901,"time":5.0,"id":"L9","text":"of the first version","kind":"urgent","urgent":true}',
    ]
    torn = [b'{"type":"line","seq":902,"te', b"\0", b"", b"[]", b"7", b"{}", b"[" * 100_000]
    text = "".join(json_document("an-id", [*rows, *torn], {}.get))
    found, records = json.loads(text), [json.loads(row) for row in rows]
    assert found["records"] == records
    fields = {name: value for name, value in records[0].items() if name not in ("type", "seq", "time")}
    assert found["session"] == {**fields, "id": "an-id", "began": records[0]["time"]}
    assert set(text) - {"\n"} <= set(map(chr, range(32, 127)))
    assert json.loads("".join(json_document("an-id", [], {}.get))) == {"session": {"id": "an-id"}, "records": []}
