"""A JSON-RPC connection alone: requests in both directions, bounds, and any bytes."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from tempfile import TemporaryFile
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from support.editor import Editor, next_row
from support.examples import max_examples
from trio.testing import wait_all_tasks_blocked

from cli.acp.rpc import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, RpcError
from cli.acp.wire import MAX_REQUESTS, MAX_RPC_ROW, IncomingCall, Wire
from cli.input.splitter import RawLine
from cli.input.stdin import Lines
from cli.outbox import ROOM, Outbox


@dataclass
class Echo:
    """A server that answers ``echo`` at once, and leaves the answer of ``hold`` to the test."""

    open_calls: list[IncomingCall] = field(default_factory=list)
    notifications: list[str] = field(default_factory=list)

    def on_request(self, call: IncomingCall) -> None:
        match call.method:
            case "echo":
                call.answer(call.params)
            case "hold":
                self.open_calls.append(call)
            case _:
                raise RpcError(METHOD_NOT_FOUND, "unknown")

    def on_notification(self, method: str, params: Mapping[str, Any]) -> None:
        self.notifications.append(method)


@asynccontextmanager
async def connected(server: Echo, *, reads: bool = True) -> AsyncIterator[tuple[Editor, Wire]]:
    """Yield an editor, which reads answers if ``reads``, and the connection on which the server serves it."""
    sender, receiver = trio.open_memory_channel[RawLine](10_000)
    editor = Editor(sender)
    if reads:
        editor.reads.set()
    editor.outbox = Outbox(editor.receive)
    wire = Wire(partial(next_row, receiver), editor.outbox)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(editor.outbox.run)
        nursery.start_soon(wire.run, server.on_request, server.on_notification)
        yield editor, wire
        nursery.cancel_scope.cancel()


async def test_a_request_is_answered_once_at_any_time() -> None:
    server = Echo()
    async with connected(server) as (editor, wire):
        hold = editor.start_request("hold")
        assert await editor.call("echo", a=1) == {"a": 1}
        assert list(wire.calls) == [hold]
        [call] = server.open_calls
        for answer in ({"b": 2}, {"c": 3}):
            call.answer(answer)
        assert await editor.result(hold) == {"b": 2}
        assert not wire.calls
        assert editor.log.count(("answer", hold)) == 1


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ({"id": 9, "method": "nothing"}, METHOD_NOT_FOUND),
        ({"id": 9, "method": "echo", "params": [1]}, INVALID_PARAMS),
        ({"id": 9, "method": "echo", "params": None}, INVALID_PARAMS),
        ({"id": "open", "method": "echo"}, INVALID_REQUEST),
    ],
    ids=["unknown method", "array as params", "null as params", "id of an open request"],
)
async def test_a_refused_request_has_an_error(row: dict[str, Any], code: int) -> None:
    async with connected(Echo()) as (editor, wire):
        editor.send(id="open", method="hold", params={})
        editor.send(**row)
        with pytest.raises(RpcError) as caught:
            await editor.result(row["id"])
        assert (caught.value.code, list(wire.calls)) == (code, ["open"])


async def test_a_number_and_its_text_are_different_ids() -> None:
    async with connected(Echo()) as (editor, wire):
        for id in (1, "1"):
            editor.send(id=id, method="hold", params={})
        await wait_all_tasks_blocked()
        assert list(wire.calls) == [1, "1"]


async def test_an_answered_id_can_be_reused() -> None:
    async with connected(Echo()) as (editor, _):
        for text in ("first", "second"):
            editor.send(id=1, method="echo", params={"text": text})
            assert await editor.result(1) == {"text": text}
            editor.answers.clear()


async def test_notifications_have_no_answer() -> None:
    server = Echo()
    async with connected(server) as (editor, _):
        editor.notify("known")
        editor.send(method="params that are no object", params=[1])
        for unknown_id in (5, [5]):
            editor.notify("$/cancel_request", requestId=unknown_id)
        echo = editor.start_request("echo")
        await editor.result(echo)
        assert editor.log == [("answer", echo)]
        assert server.notifications == ["known"]


async def test_unanswered_requests_are_bounded() -> None:
    async with connected(Echo()) as (editor, wire):
        for _ in range(MAX_REQUESTS):
            editor.start_request("hold")
        assert (await editor.error_of("echo")).code == INVALID_REQUEST
        assert len(wire.calls) == MAX_REQUESTS


async def test_our_requests_get_results_and_errors() -> None:
    async with connected(Echo()) as (editor, wire), trio.open_nursery() as nursery:
        results: dict[str, object] = {}

        async def ask(name: str) -> None:
            result = await wire.request(name, {})
            results[name] = result.message if isinstance(result, RpcError) else result

        nursery.start_soon(ask, "good")
        good = await editor.nth_request(nth=1)
        nursery.start_soon(ask, "bad")
        bad = await editor.nth_request(nth=2)
        editor.send(id=99, result="an answer without a request")
        editor.send(id=bad.id, error={"code": 1, "message": "no"})
        for result in ("first answer", "second answer"):
            editor.send(id=good.id, result=result)
        await editor.call("echo")
        assert results == {"good": "first answer", "bad": "no"}


async def test_messages_for_a_stalled_peer_are_bounded() -> None:
    server = Echo()
    async with connected(server, reads=False) as (editor, wire), trio.open_nursery() as nursery:

        async def notify_endlessly() -> None:
            while True:
                await wire.notify("news", {})

        nursery.start_soon(notify_endlessly)
        editor.start_request("echo")
        editor.notify("cancel")
        await wait_all_tasks_blocked()
        assert server.notifications == ["cancel"], "an unread answer does not delay a cancellation"
        for _ in range(10 * ROOM):
            editor.start_request("echo")
            editor.send_row("nonsense")
        await wait_all_tasks_blocked()
        assert len(editor.outbox) <= 2 * ROOM, "a full outbox stops our notifications, and the reading of requests"
        nursery.cancel_scope.cancel()


async def answers_to(data: bytes) -> list[dict[str, Any]]:
    """Return the answers to the rows of an input with these bytes."""
    written = b""

    async def write(rows: bytes) -> None:
        nonlocal written
        await trio.lowlevel.checkpoint()
        written += rows

    with TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        outbox = Outbox(write)
        wire = Wire(Lines(file.fileno(), MAX_RPC_ROW).next, outbox)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outbox.run)
            await wire.run(Echo().on_request, Echo().on_notification)
            await outbox.wait_empty()
            nursery.cancel_scope.cancel()
    return [json.loads(row) for row in written.splitlines()]


PIECES = st.sampled_from(
    [b'{"jsonrpc":"2.0",', b'"id":1,', b'"method":"echo"', b'"params":{}', b"}", b"{", b"[", b"]", b",", b"\n", b"\xff"]
)
LAST_ROW = b'{"jsonrpc":"2.0","id":"last","method":"echo","params":{"still":"here"}}'


@max_examples(100)
@given(st.binary(max_size=60) | st.lists(PIECES, max_size=12).map(b"".join))
def test_the_connection_survives_any_bytes(data: bytes) -> None:
    async def main() -> None:
        *answers, last = await answers_to(data + b"\n" + LAST_ROW)
        assert last == {"jsonrpc": "2.0", "id": "last", "result": {"still": "here"}}
        assert all(("result" in answer) != ("error" in answer) for answer in answers)

    trio.run(main)
