"""JSON-RPC messages: which rows are accepted, and how ours are written."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.acp.rpc import (
    INTERNAL_ERROR,
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
"""Arrays that are nested deeper than the parser of Python allows."""


@pytest.mark.parametrize(
    "row",
    [
        pytest.param("", id="empty"),
        pytest.param('{"jsonrpc":"2.0","id":1,', id="incomplete"),
        pytest.param('{"jsonrpc":"2.0","id":1,"method":"x","params":{"n":NaN}}', id="not a number"),
        pytest.param('{"jsonrpc":"2.0","id":' + "9" * 5_000 + ',"method":"x"}', id="longer number than Python reads"),
    ],
)
def test_malformed_json_is_a_parse_error(row: str) -> None:
    with pytest.raises(RpcError) as caught:
        read_message(row)
    assert (caught.value.code, caught.value.id) == (PARSE_ERROR, None)


@pytest.mark.parametrize(
    ("row", "id"),
    [
        pytest.param(DEEP + "]" * len(DEEP), None, id="deep"),
        pytest.param('[{"jsonrpc":"2.0","id":1,"method":"x"}]', None, id="batch"),
        pytest.param('"text"', None, id="no object"),
        pytest.param('{"jsonrpc":"2.0"}', None, id="no method"),
        pytest.param('{"id":1,"method":"x"}', 1, id="no version"),
        pytest.param('{"jsonrpc":"1.0","id":"a","method":"x"}', "a", id="other version"),
        pytest.param('{"jsonrpc":"2.0","id":1,"method":5}', 1, id="number as method"),
        pytest.param('{"jsonrpc":"2.0","id":1.5,"method":"x"}', None, id="fraction as id"),
        pytest.param('{"jsonrpc":"2.0","id":true,"method":"x"}', None, id="boolean as id"),
        pytest.param('{"jsonrpc":"2.0","id":1}', 1, id="answer without result"),
        pytest.param('{"jsonrpc":"2.0","id":1,"result":1,"error":{}}', 1, id="answer with result and error"),
        pytest.param('{"jsonrpc":"2.0","result":1}', None, id="answer without id"),
    ],
)
def test_a_wrong_message_is_an_invalid_request(row: str, id: object) -> None:
    with pytest.raises(RpcError) as caught:
        read_message(row)
    assert (caught.value.code, caught.value.id) == (INVALID_REQUEST, id)


@pytest.mark.parametrize(
    ("start", "id"),
    [
        ('{"jsonrpc":"2.0","id":12,"method":"session/prompt","params":{"prompt":[{"type":"te', 12),
        ('{ "jsonrpc": "2.0", "id": "ab", "method"', "ab"),
        ('{"jsonrpc":"2.0","method":"x","params":{"id":12,', None),
    ],
    ids=["number", "text", "notification"],
)
def test_a_cut_row_is_answered_with_its_id(start: str, id: object) -> None:
    with pytest.raises(RpcError, match="100") as caught:
        read_message(start, is_cut=True, limit=100)
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
    ids=["request", "text as id", "null as id", "notification", "answer"],
)
def test_a_valid_message_is_read(row: str, expected: object) -> None:
    assert read_message(row) == expected


def error_in(row: str) -> tuple[int, str]:
    """Return the code and message of an error answer."""
    answer = read_message(row)
    assert isinstance(answer, Response)
    assert isinstance(answer.result, RpcError)
    return answer.result.code, answer.result.message


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        ({"code": 5, "message": "no"}, 5, "no"),
        ({"code": "5"}, INTERNAL_ERROR, "no reason was given"),
        (None, INTERNAL_ERROR, "no reason was given"),
    ],
    ids=["complete", "wrong code", "null"],
)
def test_an_error_has_a_code_and_a_message(error: object, code: int, message: str) -> None:
    assert error_in(json.dumps({"jsonrpc": "2.0", "id": 1, "error": error})) == (code, message)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), st.lists, max_leaves=5))
def test_a_written_row_is_read_back(value: object) -> None:
    row, end, rest = message_row(id="id", result=value).decode().partition("\n")
    assert (end, rest) == ("\n", "")
    assert read_message(row) == Response("id", value)


def test_half_a_surrogate_pair_can_be_written() -> None:
    row = response_row(None, RpcError(1, "half \ud800 \x9b2J"))
    assert row.isascii()
    assert error_in(row.decode()) == (1, "half \ud800 \x9b2J")
