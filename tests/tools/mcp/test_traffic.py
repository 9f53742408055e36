"""The bounds of a connection: the cost of messages, those that are refused, and writing that never waits."""

from __future__ import annotations

import json

import pytest
import trio
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCNotification, JSONRPCResponse
from trio.testing import wait_all_tasks_blocked

from chain.tools.mcp.streams import MAX_WAITING, Outgoing
from chain.tools.mcp.traffic import (
    MAX_INCOMPLETE_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_MESSAGE_VALUES,
    MAX_MESSAGES_PER_S,
    MAX_PER_S,
    MAX_SMALL,
    OpenRequest,
    OverBoundError,
    Traffic,
    has_too_many_values,
    parse_message,
)

MANY = MAX_MESSAGE_VALUES + 1
SPACES = b" " * 200_000
RESULT = b'{"jsonrpc":"2.0","id":1,"result":{"a":%s}}'


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(b'"' + b"1," * MANY + b'"', id="commas"),
        pytest.param(b'["' + b'\\"[' * MANY + b'\\\\", ""]', id="quotes and brackets"),
        pytest.param(b'["' + b"\\n," * MANY + b'", "a' + b"," * 600_000 + b'"]', id="two strings"),
        pytest.param(b'"never ends' + b"," * MANY + b"\\", id="string that does not end"),
        pytest.param(SPACES + b"," * 3 + b'"' + b"," * MANY + b'"', id="string after many spaces"),
    ],
)
def test_values_in_strings_are_not_counted(row: bytes) -> None:
    assert not has_too_many_values(row)


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(b'"' + b"\\\\" * MANY + b'"' + b"," * MAX_MESSAGE_VALUES, id="commas after a string"),
        pytest.param(SPACES + b"," * MANY, id="commas after many spaces"),
        pytest.param(b"[]," * MANY, id="lists"),
        pytest.param(b"[" * MANY, id="nested lists"),
        pytest.param(b'{"a":""},' * MANY, id="objects"),
        pytest.param(b'"a"' * MANY, id="strings"),
    ],
)
def test_values_outside_of_strings_are_counted(row: bytes) -> None:
    assert has_too_many_values(row)


async def test_message_of_many_values_is_not_parsed() -> None:
    traffic = Traffic()
    with pytest.raises(OverBoundError, match="50,000 values"):
        await traffic.parse(RESULT % (b"[" + b"[]," * MANY + b"1]"))
    assert traffic.gone.is_set()


async def test_large_text_is_parsed() -> None:
    text = '[1, {"a": "b"}],\n' * 100_000
    (traffic := Traffic()).open_requests[1] = request = OpenRequest()
    message = await traffic.parse(RESULT % json.dumps(text).encode())
    assert isinstance(message, JSONRPCResponse)
    assert request.large == {"a": text}


async def test_parameters_of_a_large_notification_are_dropped() -> None:
    notification = await Traffic().parse(b'{"jsonrpc":"2.0","method":"m","params":{"a":"%s"}}' % (b"x" * MAX_SMALL))
    assert notification == JSONRPCNotification(jsonrpc="2.0", method="m", params=None)


async def test_large_request_is_refused() -> None:
    with pytest.raises(OverBoundError, match="a request of more than"):
        await Traffic().parse(b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":"%s"}}' % (b"x" * MAX_SMALL))


@pytest.mark.parametrize(
    ("value", "result"),
    [
        pytest.param(b'"cut \\ud83d"', "cut ?", id="half of a pair"),
        pytest.param(b'"\\ud83d\\ude00"', "\N{GRINNING FACE}", id="pair"),
        pytest.param(b'"caf\xe9"', "caf\N{REPLACEMENT CHARACTER}", id="Latin-1"),
    ],
)
def test_undecodable_characters_are_replaced(value: bytes, result: str) -> None:
    message = parse_message(RESULT % value)
    assert isinstance(message, JSONRPCResponse)
    assert message.result == {"a": result}


@pytest.mark.parametrize(
    "row",
    [
        b'{"jsonrpc":"2.0","id":1,"result":[]}',
        b'{"jsonrpc":"2.0","id":1,"result":["%s"]}' % (b"x" * MAX_SMALL),
        RESULT % (b'{"a":' * 300 + b"1" + b"}" * 300),
        b'{"jsonrpc":"2.0","id":1,"error":"no"}',
    ],
    ids=["list as result", "large list as result", "deep result", "text as error"],
)
def test_malformed_answer_is_an_error_of_its_request(row: bytes) -> None:
    message = parse_message(row)
    assert isinstance(message, JSONRPCError)
    assert message.id == 1


@pytest.mark.parametrize(
    "row",
    [b"", b"[" * 100_000, b'{"jsonrpc":"2.0","id":1,"method":5}', b"no JSON", b"\xff"],
    ids=["empty", "deep", "number as method", "no JSON", "no UTF-8"],
)
def test_other_text_raises_value_error(row: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of several libraries
        parse_message(row)


async def test_spending_waits_for_the_next_second(autojump_clock: trio.abc.Clock) -> None:
    traffic, start = Traffic(), trio.current_time()
    for _ in range(5):
        await traffic.spend(MAX_PER_S)
    assert 2 <= trio.current_time() - start <= 5, "one or two calls in a second"


async def test_values_cost_like_bytes(autojump_clock: trio.abc.Clock) -> None:
    traffic, start = Traffic(), trio.current_time()
    row = RESULT % (b"[" + b"[]," * 30_000 + b"1]")
    for _ in range(50):
        assert await traffic.count_message(row)
    assert trio.current_time() - start >= 5, "their bytes alone would cost less than a second"


async def test_messages_of_a_second_are_bounded(autojump_clock: trio.abc.Clock) -> None:
    traffic = Traffic()
    for pause_s in (1, 0):
        for _ in range(MAX_MESSAGES_PER_S):
            await traffic.count_message(b"")
        await trio.sleep(pause_s)
    with pytest.raises(OverBoundError, match="2,000 messages in a second"):
        await traffic.count_message(b"")
    await traffic.spend(1)  # the reader of the standard error may still spend until the program is killed


@pytest.mark.parametrize(
    ("full_messages", "size"),
    [(0, MAX_MESSAGE_BYTES + 1), (MAX_INCOMPLETE_BYTES // MAX_MESSAGE_BYTES, 1)],
    ids=["one message", "all messages together"],
)
async def test_incomplete_messages_are_bounded(full_messages: int, size: int) -> None:
    traffic = Traffic()
    for holder in range(full_messages):
        await traffic.record_read(holder, MAX_MESSAGE_BYTES, 0)
    with pytest.raises(OverBoundError, match="more than 8,388,608 bytes, or 67,108,864 at once"):
        await traffic.record_read("last", size, 0)


async def test_writing_to_a_stuck_server_never_waits() -> None:
    async def write(item: SessionMessage) -> None:
        await trio.sleep_forever()

    traffic = Traffic()
    outgoing = Outgoing(write, traffic)
    message = SessionMessage(JSONRPCNotification(jsonrpc="2.0", method="m"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outgoing.run)
        await wait_all_tasks_blocked()
        for _ in range(1 + MAX_WAITING):  # one is being written
            await outgoing.send(message)
            await wait_all_tasks_blocked()
        assert not traffic.gone.is_set()
        await outgoing.send(message)
        assert traffic.fault == "it does not read its input: 32 messages are waiting"
        nursery.cancel_scope.cancel()
