"""Servers over HTTP that are restarted, refuse, send other answers, or cannot be reached."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
import trio
from support.http_server import TOOL, HttpServer, http_server, response
from support.processes import until_async
from support.servers import Running, running, server, without_time_limits

from chain.errors import ToolError
from chain.tools.mcp.streams import inspect
from chain.tools.mcp.traffic import Traffic

_patient = pytest.fixture(autouse=True)(without_time_limits)
# The client leaves the generators of a stream open that is cut.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

JSON, EVENTS = "content-type: application/json\r\n", "content-type: text/event-stream; charset=utf-8\r\n"
TEXT = "[1, {}]\r\n" * 50_000


def result(id: int, text: str = TEXT) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": text}]}}).encode()


@pytest.fixture
async def served() -> AsyncIterator[HttpServer]:
    async with http_server(HttpServer()) as served:
        yield served


@pytest.fixture
async def made(tmp_path: Path, served: HttpServer) -> AsyncIterator[Running]:
    """A connection to the server."""
    async with running(tmp_path, served.entry()) as made:
        await made.tools()
        yield made


# ------------------------------------------------------------------------------------------------------------ sessions

NO_SESSION = {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": "no such session"}}


@pytest.mark.parametrize("status", [404, 400, 410])
async def test_call_is_repeated_at_a_restarted_server(served: HttpServer, made: Running, status: int) -> None:
    for n, body in enumerate([json.dumps(NO_SESSION).encode(), b"Bad Request: no such session", b""], 1):
        served.unknown = response(status, body, JSON if body[:1] == b"{" else "")
        served.session += 1  # the server has forgotten the session
        assert await made.call("h__t") == "Done."
        assert (served.session, served.calls) == (2 * n + 1, n)


async def test_call_is_repeated_only_once(served: HttpServer, made: Running) -> None:
    served.answer = lambda id: response(404, b"")
    with pytest.raises(ToolError, match="refuses the request in a new session too: it answered 404"):
        await made.call("h__t")
    assert served.session == 2


async def test_refused_call_costs_no_later_call(served: HttpServer, made: Running) -> None:
    for status, message, why, sessions in [
        (401, "", "OAuth is not supported", 1),
        (500, "", "it answered 500 Status", 1),
        (400, "No such colour", "No such colour", 1),
        (404, "No such method", "No such method", 1),
        (0, "", "ended during the call", 2),
    ]:
        code = -32601 if status == 404 else -32602
        served.status, served.body = status, {"error": {"code": code, "message": message}} if message else {}
        with pytest.raises(ToolError, match=why):
            await made.call("h__t")
        served.status = 200
        assert await made.call("h__t") == "Done."
        assert served.session == sessions


async def test_connection_lost_between_calls_costs_no_call(served: HttpServer, made: Running) -> None:
    connection = made.servers.by_name["h"]._connection
    assert connection is not None
    served.notified = b""
    await connection._dispatcher.notify("notifications/cancelled", {"requestId": 1})
    await until_async(lambda: made.servers.views[0].state == "ended")
    served.notified = response(202, b"")
    assert await made.call("h__t") == "Done."
    assert served.session == 2


# ------------------------------------------------------------------------------------------------------------- answers


async def test_large_result_arrives_unchanged(served: HttpServer, made: Running) -> None:
    other = b"event: ping\ndata: " + result(1, "wrong" * 60_000) + b"\n\n"
    for body, separator, headers in [
        (b"%s", b"", JSON),
        (b"data: %s\n\n", b"", EVENTS),
        (b": hi\r\n\r\nevent: message\r\nid: 1\r\ndata: %s\r\n\r\n", b"", EVENTS),
        (b"data:%s\r\r", b"\rdata:", EVENTS),
        (other + b"data: %s\n\n", b"", EVENTS),
    ]:
        served.answer = lambda id: response(200, body % result(id).replace(b', "', b"," + separator + b'"'), headers)  # noqa: B023
        assert await made.call("h__t") == TEXT, body[:40]


LONG = b"x" * 300_000


@pytest.mark.parametrize(
    ("status", "headers", "body", "why"),
    [
        (200, JSON + "content-encoding: gzip\r\n", b"", "ended during the call.* it encoded its answer as gzip"),
        (200, EVENTS + "content-encoding: identity, br\r\n", b"", "it encoded its answer as identity, br"),
        (200, JSON, LONG, "Failed to parse"),
        (200, EVENTS, b"data: " + LONG + b"\n\n", "Failed to parse"),
        (500, "", LONG, "it answered 500"),
        (200, EVENTS, b"data: " + b"[" * 300_000 + b"\n\n", "more than 50,000 values"),
        (200, EVENTS, b"data: x\n" * 80_000 + b"\n", "more than 50,000 lines"),
        (200, JSON, b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"%s"}}' % LONG, "besides its"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
async def test_unusable_answer_is_the_error_of_its_call(
    served: HttpServer, made: Running, status: int, headers: str, body: bytes, why: str
) -> None:
    served.answer = lambda id: response(status, body, headers)
    with pytest.raises(ToolError, match=why):
        await made.call("h__t")
    served.answer = None
    assert await made.call("h__t") == "Done."


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("html", "it answered with an HTML page"),
        ("login", "it requires a login (401): OAuth is not supported; give a token in its headers"),
        ("away", "Redirect to http://example.org/mcp not followed"),
        ("broken", "it answered 500"),
        ("large", "it sent a message of more than 8,388,608 bytes"),
        ("", "it cannot be reached"),
    ],
)
async def test_unusable_server_has_a_notice(tmp_path: Path, served: HttpServer, path: str, why: str) -> None:
    unreachable = server({"url": "http://127.0.0.1:9/mcp"})
    async with running(tmp_path, served.entry(path) if path else unreachable) as made:
        assert await made.tools() == []
        assert why in made.notices[0]


async def test_dropped_stream_is_the_error_of_its_call(tmp_path: Path, served: HttpServer) -> None:
    async with running(tmp_path, served.entry("dropped")) as made:
        assert await made.tools() == ["h__t"]
        for _ in range(2):
            with pytest.raises(ToolError, match="without a response"):
                await made.call("h__t")


# --------------------------------------------------------------------------------------------------------------- lists


@pytest.mark.parametrize(
    "next_cursors", [["a", "b", None], [""], [5], ["a", "a"], ["a", "b", "a"]], ids=lambda cursors: str(cursors)
)
async def test_empty_or_repeated_cursor_ends_a_list(
    tmp_path: Path, served: HttpServer, next_cursors: list[object]
) -> None:
    served.page = lambda cursor: {"tools": [TOOL], "nextCursor": next_cursors[len(served.cursors) - 1]}
    async with running(tmp_path, served.entry()) as made:
        assert await made.tools() == ["h__t"]
        assert made.notices == []
    assert len(served.cursors) == len(next_cursors)


async def test_pages_of_a_list_are_bounded_together(tmp_path: Path, served: HttpServer) -> None:
    served.page = lambda cursor: {"tools": [], "nextCursor": f"{cursor}1", "pad": "x" * 3_000_000}
    async with running(tmp_path, served.entry()) as made:
        assert await made.tools() == []
        assert "its list of tools has more than 10,000,000 bytes" in made.notices[0]
    assert len(served.cursors) == 4


# ------------------------------------------------------------------------------------------------------------- streams


async def test_large_result_without_a_request_is_dropped() -> None:
    async def events() -> AsyncIterator[bytes]:
        for id in range(20):
            yield b"data: " + result(id, "x" * 300_000) + b"\n\n"

    traffic = Traffic()
    answer = httpx2.Response(200, content=events(), request=httpx2.Request("GET", "http://h"))
    answer.headers["content-type"] = "text/event-stream"
    await inspect(traffic, answer)
    parts = [part async for part in answer.aiter_raw()]
    assert len(parts) == 20
    assert max(map(len, parts)) < 100
    assert traffic.open == {}


async def test_streams_without_an_answer_are_opened_slowly(autojump_clock: trio.abc.Clock) -> None:
    traffic, begun = Traffic(), trio.current_time()
    for _ in range(100):
        await inspect(traffic, httpx2.Response(200, content=b"", request=httpx2.Request("GET", "http://h")))
    assert trio.current_time() - begun >= 8
