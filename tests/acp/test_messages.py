"""JSON-RPC messages: which rows are accepted, and how ours are written."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.acp.rpc import (
    INVALID_REQUEST,
    PARSE_ERROR,
    Response,
    RpcError,
    RpcRequest,
    message_row,
    read_message,
    response_row,
)

DEEP = "[" * 50_000


@pytest.mark.parametrize(
    ("row", "code", "id"),
    [
        ("", PARSE_ERROR, None),
        ('{"jsonrpc":"2.0","id":1,', PARSE_ERROR, None),
        ('{"jsonrpc":"2.0","id":1,"method":"x","params":{"n":NaN}}', PARSE_ERROR, None),
        ('{"jsonrpc":"2.0","id":' + "9" * 5_000 + ',"method":"x"}', PARSE_ERROR, None),
        ('{"id":' + DEEP, INVALID_REQUEST, None),
        (DEEP + "]" * 50_000, INVALID_REQUEST, None),
        ('[{"jsonrpc":"2.0","id":1,"method":"x"}]', INVALID_REQUEST, None),
        ('"text"', INVALID_REQUEST, None),
        ('{"jsonrpc":"2.0"}', INVALID_REQUEST, None),
        ('{"id":1,"method":"x"}', INVALID_REQUEST, 1),
        ('{"jsonrpc":"1.0","id":"a","method":"x"}', INVALID_REQUEST, "a"),
        ('{"jsonrpc":"2.0","id":1,"method":5}', INVALID_REQUEST, 1),
        ('{"jsonrpc":"2.0","method":5}', INVALID_REQUEST, None),
        *((f'{{"jsonrpc":"2.0","id":{id},"method":"x"}}', INVALID_REQUEST, None) for id in ("1.5", "true", "[1]")),
        ('{"jsonrpc":"2.0","id":1}', INVALID_REQUEST, 1),
        ('{"jsonrpc":"2.0","id":1,"result":1,"error":{}}', INVALID_REQUEST, 1),
        ('{"jsonrpc":"2.0","result":1}', INVALID_REQUEST, None),
    ],
)
def test_a_wrong_row_has_an_error(row: str, code: int, id: object) -> None:
    with pytest.raises(RpcError) as caught:
        read_message(row)
    assert (caught.value.code, caught.value.id) == (code, id)


@pytest.mark.parametrize(
    ("begin", "id"),
    [
        ('{"jsonrpc":"2.0","id":12,"method":"session/prompt","params":{"prompt":[{"type":"te', 12),
        ('{ "jsonrpc": "2.0", "id": "ab", "method"', "ab"),
        ('{"jsonrpc":"2.0","method":"x","params":{"id":12,', None),
    ],
)
def test_a_cut_row_is_answered_with_its_id(begin: str, id: object) -> None:
    with pytest.raises(RpcError, match="100") as caught:
        read_message(begin, is_cut=True, most=100)
    assert (caught.value.code, caught.value.id) == (INVALID_REQUEST, id)


def test_invalid_utf_8_is_a_parse_error() -> None:
    with pytest.raises(RpcError) as caught:
        read_message('{"jsonrpc":"2.0","method":"\ufffd"}', is_utf8=False)
    assert caught.value.code == PARSE_ERROR


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
def test_requests_notifications_and_answers_are_read(row: str, expected: object) -> None:
    assert read_message(row) == expected


def error_of(row: str) -> tuple[int, str]:
    found = read_message(row)
    assert isinstance(found, Response)
    assert isinstance(found.result, RpcError)
    return found.result.code, found.result.message


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        ({"code": 5, "message": "no"}, 5, "no"),
        ({"code": "5"}, -32603, "no reason was given"),
        (None, -32603, "no reason was given"),
    ],
)
def test_an_error_has_a_code_and_a_message(error: object, code: int, message: str) -> None:
    assert error_of(json.dumps({"jsonrpc": "2.0", "id": 1, "error": error})) == (code, message)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), st.lists, max_leaves=5))
def test_a_written_row_is_read_back(value: object) -> None:
    row = message_row(id="id", result=value).decode()
    assert (row[-1], "\n" in row[:-1]) == ("\n", False)
    assert read_message(row) == Response("id", value)


def test_half_a_surrogate_pair_can_be_written() -> None:
    row = response_row(None, RpcError(1, "half \ud800 \x9b2J"))
    assert row.isascii()
    assert error_of(row.decode()) == (1, "half \ud800 \x9b2J")
