"""What a row is, and how ours are written."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.acp import rpc
from cli.acp.rpc import (
    INVALID_REQUEST,
    PARSE_ERROR,
    Response,
    RpcError,
    RpcRequest,
    read_message,
)

DEEP = "[" * 50_000


@pytest.mark.parametrize(
    ("row", "code", "id"),
    [
        ("", PARSE_ERROR, None),
        ("nonsense", PARSE_ERROR, None),
        ('{"jsonrpc":"2.0","id":1,', PARSE_ERROR, None),
        ('{"jsonrpc":"2.0","id":1,"method":"x","params":{"n":NaN}}', PARSE_ERROR, None),
        ('{"jsonrpc":"2.0","id":' + "9" * 5_000 + ',"method":"x"}', PARSE_ERROR, None),
        ('{"id":' + DEEP, INVALID_REQUEST, None),
        (DEEP + "]" * 50_000, INVALID_REQUEST, None),
        ("[]", INVALID_REQUEST, None),
        ('[{"jsonrpc":"2.0","id":1,"method":"x"}]', INVALID_REQUEST, None),
        ('"text"', INVALID_REQUEST, None),
        ("{}", INVALID_REQUEST, None),
        ('{"jsonrpc":"2.0"}', INVALID_REQUEST, None),
        ('{"id":1,"method":"x"}', INVALID_REQUEST, 1),
        ('{"jsonrpc":"1.0","id":"a","method":"x"}', INVALID_REQUEST, "a"),
        ('{"jsonrpc":"2.0","id":1,"method":5}', INVALID_REQUEST, 1),
        ('{"jsonrpc":"2.0","method":5}', INVALID_REQUEST, None),
        ('{"jsonrpc":"2.0","id":1.5,"method":"x"}', INVALID_REQUEST, None),
        ('{"jsonrpc":"2.0","id":true,"method":"x"}', INVALID_REQUEST, None),
        ('{"jsonrpc":"2.0","id":[1],"method":"x"}', INVALID_REQUEST, None),
        ('{"jsonrpc":"2.0","id":1}', INVALID_REQUEST, 1),
        ('{"jsonrpc":"2.0","id":1,"result":1,"error":{}}', INVALID_REQUEST, 1),
        ('{"jsonrpc":"2.0","result":1}', INVALID_REQUEST, None),
    ],
)
def test_a_row_that_is_no_message(row: str, code: int, id: object) -> None:
    with pytest.raises(RpcError) as caught:
        read_message(row)
    assert (caught.value.code, caught.value.id) == (code, id)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ('{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":1}}', RpcRequest(1, "x", {"a": 1})),
        ('{"jsonrpc":"2.0","id":"1","method":"x"}', RpcRequest("1", "x", {})),
        ('{"jsonrpc":"2.0","id":null,"method":"x","params":[1]}', RpcRequest(None, "x", [1])),
        ('{"jsonrpc":"2.0","method":"x"}', RpcRequest(None, "x", {}, is_notification=True)),
        ('{"jsonrpc":"2.0","id":7,"result":null}', Response(7, None)),
    ],
)
def test_a_row_that_is_one(row: str, expected: object) -> None:
    assert read_message(row) == expected


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [({"code": 5, "message": "no"}, 5, "no"), ({"code": "5"}, -32603, "no reason was given"), (None, -32603, None)],
)
def test_an_answer_that_is_an_error(error: object, code: int, message: str | None) -> None:
    found = read_message(json.dumps({"jsonrpc": "2.0", "id": 1, "error": error}))
    assert isinstance(found, Response)
    assert isinstance(found.result, RpcError)
    assert found.result.code == code
    assert message is None or found.result.message == message


@pytest.mark.parametrize(
    ("begin", "id"),
    [
        ('{"jsonrpc":"2.0","id":12,"method":"session/prompt","params":{"prompt":[{"type":"te', 12),
        ('{ "jsonrpc": "2.0", "id": "ab", "method"', "ab"),
        ('{"jsonrpc":"2.0","method":"x","params":{"id":12,', None),
        ("nonsense", None),
    ],
)
def test_a_row_that_was_cut_is_answered_with_its_id_if_it_is_known(begin: str, id: object) -> None:
    with pytest.raises(RpcError, match="100") as caught:
        read_message(begin, is_cut=True, most=100)
    assert (caught.value.code, caught.value.id) == (INVALID_REQUEST, id)


def test_what_is_no_utf_8_is_a_parse_error() -> None:
    with pytest.raises(RpcError) as caught:
        read_message('{"jsonrpc":"2.0","method":"\ufffd"}', is_utf8=False)
    assert caught.value.code == PARSE_ERROR


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), st.lists, max_leaves=5))
def test_what_is_written_is_read_again(value: object) -> None:
    row = rpc.message_row(id="id", result=value).decode()
    assert row.endswith("\n")
    assert "\n" not in row[:-1]
    assert read_message(row) == Response("id", value)


def test_half_of_a_pair_can_be_written() -> None:
    row = rpc.response_row(None, RpcError(1, "half \ud800 \x9b2J"))
    assert row.isascii()
    found = read_message(row.decode())
    assert isinstance(found, Response)
    assert isinstance(found.result, RpcError)
    assert found.result.message == "half \ud800 \x9b2J"
