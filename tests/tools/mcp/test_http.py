"""Servers over HTTP that are restarted, refuse, send other answers, or cannot be reached."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
from support.http_server import TOOL, HttpServer, http_server, json_response, response
from support.processes import wait_until
from support.servers import RunningServers, remove_time_limits, run_servers, server

from chain.errors import ToolError
from chain.tools.mcp.streams import inspect
from chain.tools.mcp.traffic import Traffic

_no_time_limits = pytest.fixture(autouse=True)(remove_time_limits)
# The client leaves the generators of a stream open that is cut.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

JSON, EVENTS = "content-type: application/json\r\n", "content-type: text/event-stream; charset=utf-8\r\n"
LARGE_TEXT = "[1, {}]\r\n" * 50_000


def result(id: int, text: str) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": text}]}}).encode()


@pytest.fixture
async def http() -> AsyncIterator[HttpServer]:
    async with http_server() as http:
        yield http


@pytest.fixture
async def servers(tmp_path: Path, http: HttpServer) -> AsyncIterator[RunningServers]:
    async with run_servers(tmp_path, http.entry()) as servers:
        await servers.tools()
        yield servers


# ------------------------------------------------------------------------------------------------------------ sessions

NO_SESSION = {"id": None, "error": {"code": -32000, "message": "no such session"}}


@pytest.mark.parametrize("status", [404, 400, 410])
@pytest.mark.parametrize("body", ["json", "text", "empty"])
async def test_call_is_repeated_at_a_restarted_server(
    http: HttpServer, servers: RunningServers, status: int, body: str
) -> None:
    http.unknown_session_response = {
        "json": json_response(status, NO_SESSION),
        "text": response(status, b"Bad Request: no such session"),
        "empty": response(status, b""),
    }[body]
    http.session = 7  # the server has forgotten session 1
    assert await servers.call("h__t") == "Done."
    assert http.session == 8
    assert http.successful_calls == 1


async def test_call_is_repeated_only_once(http: HttpServer, servers: RunningServers) -> None:
    http.respond_to_call = lambda id: response(404, b"")
    with pytest.raises(ToolError, match="refuses the request in a new session too: it answered 404"):
        await servers.call("h__t")
    assert http.session == 2


@pytest.mark.parametrize(
    ("status", "error", "message"),
    [
        pytest.param(401, {}, "OAuth is not supported", id="unauthorized"),
        pytest.param(500, {}, "it answered 500 Status", id="server error"),
        pytest.param(400, {"code": -32602, "message": "No such colour"}, "No such colour", id="invalid parameters"),
        pytest.param(404, {"code": -32601, "message": "No such method"}, "No such method", id="unknown method"),
    ],
)
async def test_refused_call_does_not_end_the_session(
    http: HttpServer, servers: RunningServers, status: int, error: dict[str, Any], message: str
) -> None:
    http.respond_to_call = lambda id: (
        json_response(status, {"id": id, "error": error}) if error else response(status, b"")
    )
    with pytest.raises(ToolError, match=message):
        await servers.call("h__t")
    http.respond_to_call = None
    assert await servers.call("h__t") == "Done."
    assert http.session == 1


async def test_connection_lost_during_a_call_fails_it(http: HttpServer, servers: RunningServers) -> None:
    http.respond_to_call = lambda id: b""
    with pytest.raises(ToolError, match="ended during the call"):
        await servers.call("h__t")
    http.respond_to_call = None
    assert await servers.call("h__t") == "Done."
    assert http.session == 2


async def test_connection_lost_between_calls_costs_no_call(http: HttpServer, servers: RunningServers) -> None:
    connection = servers.manager.by_name["h"]._connection
    assert connection is not None
    http.notification_response = b""
    await connection._dispatcher.notify("notifications/cancelled", {"requestId": 1})
    await wait_until(lambda: servers.manager.views[0].state == "ended")
    http.notification_response = response(202, b"")
    assert await servers.call("h__t") == "Done."
    assert http.session == 2


# ------------------------------------------------------------------------------------------------------------- answers

OTHER_EVENT = b"event: ping\ndata: " + result(1, "wrong" * 60_000) + b"\n\n"


@pytest.mark.parametrize(
    ("template", "line_separator", "headers"),
    [
        pytest.param(b"%s", b"", JSON, id="JSON"),
        pytest.param(b"data: %s\n\n", b"", EVENTS, id="event"),
        pytest.param(b": hi\r\n\r\nevent: message\r\nid: 1\r\ndata: %s\r\n\r\n", b"", EVENTS, id="event with fields"),
        pytest.param(b"data:%s\r\r", b"\rdata:", EVENTS, id="data on several lines"),
        pytest.param(OTHER_EVENT + b"data: %s\n\n", b"", EVENTS, id="event of another type before it"),
    ],
)
async def test_large_result_arrives_unchanged(
    http: HttpServer, servers: RunningServers, template: bytes, line_separator: bytes, headers: str
) -> None:
    def respond(id: int) -> bytes:
        message = result(id, LARGE_TEXT).replace(b', "', b"," + line_separator + b'"')  # between the keys of objects
        return response(200, template % message, headers)

    http.respond_to_call = respond
    assert await servers.call("h__t") == LARGE_TEXT


LONG = b"x" * 300_000
"""More than a message may have besides its result."""


@pytest.mark.parametrize(
    ("status", "headers", "body", "error"),
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
    ids=["gzip", "brotli", "text as JSON", "text as an event", "status 500", "deep JSON", "many lines", "long error"],
)
async def test_unusable_answer_is_the_error_of_its_call(
    http: HttpServer, servers: RunningServers, status: int, headers: str, body: bytes, error: str
) -> None:
    http.respond_to_call = lambda id: response(status, body, headers)
    with pytest.raises(ToolError, match=error):
        await servers.call("h__t")
    http.respond_to_call = None
    assert await servers.call("h__t") == "Done."


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("path", "notice"),
    [  # see PAGES in support/http_server.py
        ("html", "it answered with an HTML page"),
        ("login", "it requires a login (401): OAuth is not supported; give a token in its headers"),
        ("redirect", "Redirect to http://example.org/mcp not followed"),
        ("broken", "it answered 500"),
        ("large", "it sent a message of more than 8,388,608 bytes"),
    ],
)
async def test_unusable_server_has_a_notice(tmp_path: Path, http: HttpServer, path: str, notice: str) -> None:
    async with run_servers(tmp_path, http.entry(path)) as servers:
        assert await servers.tools() == []
        assert notice in servers.notices[0]


async def test_unreachable_server_has_a_notice(tmp_path: Path) -> None:
    async with run_servers(tmp_path, server({"url": "http://127.0.0.1:9/mcp"})) as servers:
        assert await servers.tools() == []
        assert "it cannot be reached" in servers.notices[0]


async def test_dropped_stream_is_the_error_of_its_call(tmp_path: Path, http: HttpServer) -> None:
    async with run_servers(tmp_path, http.entry("dropped")) as servers:
        assert await servers.tools() == ["h__t"]
        for _ in range(2):
            with pytest.raises(ToolError, match="without a response"):
                await servers.call("h__t")


# --------------------------------------------------------------------------------------------------------------- lists


@pytest.mark.parametrize(
    "next_cursors",
    [
        pytest.param(["a", "b", None], id="no cursor"),
        pytest.param([""], id="empty cursor"),
        pytest.param([5], id="invalid cursor"),
        pytest.param(["a", "b", "a"], id="repeated cursor"),
    ],
)
async def test_list_ends_without_a_new_cursor(tmp_path: Path, http: HttpServer, next_cursors: list[object]) -> None:
    pages = iter(next_cursors)
    http.tools_page = lambda cursor: {"tools": [TOOL], "nextCursor": next(pages)}
    async with run_servers(tmp_path, http.entry()) as servers:
        assert await servers.tools() == ["h__t"]
        assert servers.notices == []
    assert len(http.cursors) == len(next_cursors)


async def test_pages_of_a_list_are_bounded_together(tmp_path: Path, http: HttpServer) -> None:
    http.tools_page = lambda cursor: {"tools": [], "nextCursor": f"{cursor}1", "padding": "x" * 3_000_000}
    async with run_servers(tmp_path, http.entry()) as servers:
        assert await servers.tools() == []
        assert "its list of tools has more than 10,000,000 bytes" in servers.notices[0]
    assert len(http.cursors) == 4  # four pages have 12,000,000 bytes


# ------------------------------------------------------------------------------------------------------------- streams


async def test_large_result_without_a_request_is_dropped() -> None:
    async def events() -> AsyncIterator[bytes]:
        for id in range(20):
            yield b"data: " + result(id, "x" * 300_000) + b"\n\n"

    traffic = Traffic()
    stream = httpx2.Response(200, content=events(), request=httpx2.Request("GET", "http://h"))
    stream.headers["content-type"] = "text/event-stream"
    await inspect(traffic, stream)
    parts = [part async for part in stream.aiter_raw()]
    assert len(parts) == 20
    assert max(map(len, parts)) < 100, "only the id is left"
    assert traffic.open_requests == {}


async def test_empty_streams_are_opened_slowly(autojump_clock: trio.abc.Clock) -> None:
    traffic, start = Traffic(), trio.current_time()
    for _ in range(100):
        await inspect(traffic, httpx2.Response(200, content=b"", request=httpx2.Request("GET", "http://h")))
    assert trio.current_time() - start >= 8, "about ten in a second"
