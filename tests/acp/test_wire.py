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
from support.examples import trying
from trio.testing import wait_all_tasks_blocked

from cli.acp.rpc import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, RpcError
from cli.acp.wire import MAX_REQUESTS, MAX_RPC_ROW, IncomingCall, Wire
from cli.input.splitter import RawLine
from cli.input.stdin import Lines
from cli.outbox import ROOM, Outbox


@dataclass
class Echo:
    """A server that answers ``echo`` at once, and ``hold`` when the test does so."""

    held: list[IncomingCall] = field(default_factory=list)
    heard: list[str] = field(default_factory=list)
    cancelled: list[IncomingCall] = field(default_factory=list)

    def on_request(self, call: IncomingCall) -> None:
        match call.method:
            case "echo":
                call.answer(call.params)
            case "hold":
                self.held.append(call)
                call.on_cancel = lambda: self.cancelled.append(call)
            case _:
                raise RpcError(METHOD_NOT_FOUND, "unknown")

    def on_notification(self, method: str, params: Mapping[str, Any]) -> None:
        self.heard.append(method)


@asynccontextmanager
async def wired(server: Echo, *, reads: bool = True) -> AsyncIterator[tuple[Editor, Wire]]:
    sender, receiver = trio.open_memory_channel[RawLine](10_000)
    editor = Editor(sender)
    if reads:
        editor.reads.set()
    editor.outbox = Outbox(editor.write)
    wire = Wire(partial(next_row, receiver), editor.outbox)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(editor.outbox.run)
        nursery.start_soon(wire.run, server.on_request, server.on_notification)
        yield editor, wire
        nursery.cancel_scope.cancel()


async def test_a_request_is_answered_once_at_any_time() -> None:
    server = Echo()
    async with wired(server) as (editor, wire):
        held = editor.begin("hold")
        assert await editor.call("echo", a=1) == {"a": 1}
        assert len(wire.calls) == 1
        for answer in ({"b": 2}, {"c": 3}):
            server.held[0].answer(answer)
        assert await editor.result(held) == {"b": 2}
        assert len(wire.calls) == 0
        assert [id for what, id in editor.log if id == held] == [held]


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ({"id": 9, "method": "nothing"}, METHOD_NOT_FOUND),
        ({"id": 9, "method": "echo", "params": [1]}, INVALID_PARAMS),
        ({"id": 9, "method": "echo", "params": None}, INVALID_PARAMS),
        ({"id": "held", "method": "echo"}, INVALID_REQUEST),
    ],
)
async def test_a_refused_request_has_an_error(row: dict[str, Any], code: int) -> None:
    async with wired(Echo()) as (editor, wire):
        editor.say(id="held", method="hold", params={})
        editor.say(**row)
        with pytest.raises(RpcError) as caught:
            await editor.result(row["id"])
        assert (caught.value.code, len(wire.calls)) == (code, 1)


async def test_an_answered_id_can_be_reused() -> None:
    server = Echo()
    async with wired(server) as (editor, wire):
        for id in (1, "1"):  # which differ
            editor.say(id=id, method="hold", params={})
        await wait_all_tasks_blocked()
        assert len(wire.calls) == 2
        for call in server.held:
            call.answer({})
        editor.say(id=1, method="hold", params={})
        await wait_all_tasks_blocked()
        assert len(server.held) == 3


async def test_notifications_have_no_answer() -> None:
    server = Echo()
    async with wired(server) as (editor, _):
        editor.tell("known")
        editor.say(method="listed", params=[1])
        for id in (5, [5]):
            editor.tell("$/cancel_request", requestId=id)
        await editor.call("echo")
        assert (server.heard, len(editor.log)) == (["known"], 1)


async def test_unanswered_requests_are_bounded() -> None:
    async with wired(Echo()) as (editor, wire):
        for _ in range(MAX_REQUESTS):
            editor.begin("hold")
        assert (await editor.error("echo")).code == INVALID_REQUEST
        assert len(wire.calls) == MAX_REQUESTS


async def test_our_requests_get_results_and_errors() -> None:
    async with wired(Echo()) as (editor, wire), trio.open_nursery() as nursery:
        found: dict[str, object] = {}

        async def ask(name: str) -> None:
            result = await wire.request(name, {})
            found[name] = result.message if isinstance(result, RpcError) else result

        nursery.start_soon(ask, "good")
        good = await editor.question(1)
        nursery.start_soon(ask, "bad")
        bad = await editor.question(2)
        editor.say(id=99, result="not asked for")
        editor.say(id=bad.id, error={"code": 1, "message": "no"})
        for result in ([1], [2]):
            editor.say(id=good.id, result=result)
        await editor.call("echo")
        assert found == {"good": [1], "bad": "no"}


async def test_a_peer_that_does_not_read_is_bounded() -> None:
    server = Echo()
    async with wired(server, reads=False) as (editor, wire), trio.open_nursery() as nursery:

        async def chatter() -> None:
            while True:
                await wire.notify("news", {})

        nursery.start_soon(chatter)
        editor.begin("echo")
        editor.tell("cancel")
        await wait_all_tasks_blocked()
        assert server.heard == ["cancel"], "an unread answer does not delay a cancellation"
        for _ in range(10 * ROOM):
            editor.begin("echo")
            editor.row("nonsense")
        await wait_all_tasks_blocked()
        assert len(editor.outbox) <= 2 * ROOM
        nursery.cancel_scope.cancel()


# ----------------------------------------------------------------------------------------------------------- any bytes


async def answers_to(data: bytes) -> list[dict[str, Any]]:
    """Return the answers to these bytes on the input, at whose end the wire ends."""
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
LAST = b'{"jsonrpc":"2.0","id":"last","method":"echo","params":{"still":"here"}}'
"""A row without its end, which counts at the end of the input."""


@trying(100)
@given(st.binary(max_size=60) | st.lists(PIECES, max_size=12).map(b"".join))
def test_no_bytes_end_the_wire(data: bytes) -> None:
    async def main() -> None:
        found = await answers_to(data + b"\n" + LAST)
        assert found[-1] == {"jsonrpc": "2.0", "id": "last", "result": {"still": "here"}}
        assert all(("result" in each) != ("error" in each) for each in found)

    trio.run(main)
