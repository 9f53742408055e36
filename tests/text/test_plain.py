"""JSON rows without characters that a reader or a terminal could interpret."""

import json

from chain.text.plain import escape_json


def test_escaped_json_is_one_safe_row() -> None:
    value = {"".join(map(chr, range(0x20, 0x3000))): "half \ud800 and \udfff"}
    row = escape_json(json.dumps(value, ensure_ascii=False))
    assert len(row.encode().decode().splitlines()) == 1
    assert not any(0x7F <= ord(char) < 0xA0 for char in row)
    assert "é" in row
    assert json.loads(row) == value
