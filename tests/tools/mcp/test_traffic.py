"""The bounds of a connection: what a message costs, what is refused, and that writing never waits."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import trio
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse
from trio.testing import wait_all_tasks_blocked

from chain.tools.mcp import traffic as bounds
from chain.tools.mcp.streams import MAX_WAITING, Outgoing
from chain.tools.mcp.traffic import MAX_MARKS, MAX_OPEN, MAX_PER_S, MAX_SMALL, OverBoundError, Traffic, count_marks

MANY = MAX_MARKS + 1
RESULT = b'{"jsonrpc":"2.0","id":1,"result":{"a":%s}}'


@pytest.mark.parametrize(
    ("row", "marks"),
    [
        (b'"' + b"1," * MANY + b'"', 1),
        (b'["' + b'\\"[' * MANY + b'\\\\", ""]', 4),
        (b'["' + b"\\n," * MANY + b'", "a' + b"," * 200_000 + b'"]', 4),
        (b'"never ends' + b"," * MANY, 1),
        (b" " * 200_000 + b"," * 3 + b'"' + b"," * MANY + b'"', 4),
        (b"[]," * MANY, MANY),
        (b"[" * MANY, MANY),
        (b'{"a":""},' * MANY, MANY),
        (b'"a"' * MANY, MANY),
    ],
)
def test_marks_are_counted_outside_of_texts(row: bytes, marks: int) -> None:
    assert count_marks(row) == marks


@pytest.mark.parametrize(
    "value",
    [b"[" + b"[]," * MANY + b"1]", b"[" + b"1," * MANY + b"1]", b"{" + b'"a":{},' * MANY + b'"b":1}'],
)
async def test_a_message_of_too_many_values_is_not_parsed(value: bytes) -> None:
    traffic = Traffic()
    with pytest.raises(OverBoundError, match="75,000 values"):
        await traffic.parse(RESULT % value)
    assert traffic.gone.is_set()


async def test_a_large_text_is_parsed_whatever_is_in_it() -> None:
    text = '[1, {"a": "b"}],\n' * 100_000
    message = await Traffic().parse(RESULT % json.dumps(text).encode())
    assert isinstance(message, JSONRPCResponse)
    assert message.result == {"a": text}


async def test_of_a_large_message_only_a_result_is_kept() -> None:
    text = b'"' + b"x" * MAX_SMALL + b'"'
    note = await Traffic().parse(b'{"jsonrpc":"2.0","method":"m","params":{"a":%s}}' % text)
    assert note == JSONRPCNotification(jsonrpc="2.0", method="m", params=None)
    error = await Traffic().parse(b'{"jsonrpc":"2.0","id":1,"error":{"code":5,"message":%s}}' % text)
    assert isinstance(error, JSONRPCError)
    assert (error.error.code, error.error.message) == (5, "x" * bounds.MAX_ERROR)
    with pytest.raises(OverBoundError, match="a request of more than"):
        await Traffic().parse(b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":%s}}' % text)


async def test_what_is_too_much_for_a_second_waits_for_the_next(autojump_clock: trio.abc.Clock) -> None:
    traffic, begun = Traffic(), trio.current_time()
    for _ in range(5):
        await traffic.spend(MAX_PER_S)
    assert 2 <= trio.current_time() - begun <= 5


async def test_values_cost_as_much_as_they_take(autojump_clock: trio.abc.Clock) -> None:
    traffic, begun = Traffic(), trio.current_time()
    row = RESULT % (b"[" + b"[]," * 30_000 + b"1]")
    for _ in range(50):
        await traffic.parse(row)
    assert trio.current_time() - begun >= 5


def asked(id: int | str) -> JSONRPCMessage:
    return JSONRPCRequest(jsonrpc="2.0", id=id, method="ping")


def cancelled(id: int | str) -> JSONRPCMessage:
    return JSONRPCNotification(jsonrpc="2.0", method="notifications/cancelled", params={"requestId": id})


def answered(id: int | str) -> JSONRPCMessage:
    return JSONRPCResponse(jsonrpc="2.0", id=id, result={})


@pytest.mark.parametrize("ending", [cancelled, answered])
def test_a_request_is_open_until_it_is_answered_or_cancelled(ending: Callable[[int | str], JSONRPCMessage]) -> None:
    traffic = Traffic()
    for id in range(3 * MAX_OPEN):
        traffic.count_open(asked(id))
        traffic.count_open(ending(str(id)))
        traffic.count_answer(ending(id))
    for id in range(MAX_OPEN):
        traffic.count_open(asked(id))
    with pytest.raises(OverBoundError, match="more than 32 requests"):
        traffic.count_open(asked("more"))


def test_an_id_is_open_once() -> None:
    traffic = Traffic()
    traffic.count_open(asked(1))
    with pytest.raises(OverBoundError, match="two with one id"):
        traffic.count_open(asked("1"))


def test_what_is_held_is_bounded_for_each_message_and_for_all() -> None:
    traffic = Traffic()
    for holder in range(8):
        traffic.hold(holder, bounds.MAX_ROW)
    traffic.release(0)
    traffic.hold(8, bounds.MAX_ROW)
    with pytest.raises(OverBoundError, match="at once"):
        traffic.hold(9, 1)


async def test_nobody_waits_for_a_server_that_does_not_read() -> None:
    traffic = Traffic()

    async def never(item: SessionMessage) -> None:
        await trio.sleep_forever()

    outgoing = Outgoing(never, traffic)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outgoing.run)
        await wait_all_tasks_blocked()
        for n in range(MAX_WAITING + 1):
            await outgoing.send(SessionMessage(asked(n)))
            await wait_all_tasks_blocked()
        assert not traffic.gone.is_set()
        await outgoing.send(SessionMessage(asked("more")))
        assert traffic.fault == "it reads nothing, and 64 messages wait for it"
        nursery.cancel_scope.cancel()
