"""Servers of HTTP that are started again, refuse, answer with something else, or cannot be reached."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx2
import pytest
import trio
from support.http_server import TOOL, HttpServer, http_server, response
from support.servers import running, server, without_time_limits

from chain.errors import ToolError
from chain.tools.mcp.streams import inspect
from chain.tools.mcp.traffic import Traffic

_patient = pytest.fixture(autouse=True)(without_time_limits)
# The client leaves the generators of a stream open that is cut.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


NO_SESSION = {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": "no such session"}}


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("status", [404, 400, 410])
@pytest.mark.parametrize("body", [json.dumps(NO_SESSION).encode(), b"Bad Request: no such session", b"<html>", b""])
async def test_a_call_is_repeated_where_the_server_was_started_again(tmp_path: Path, status: int, body: bytes) -> None:
    async with http_server(HttpServer()) as served, running(tmp_path, served.entry()) as made:
        await made.tools()
        served.unknown = response(status, body, "content-type: application/json\r\n" if body[:1] == b"{" else "")
        served.session += 1  # it has forgotten ours
        assert await made.call("h__t") == "Done."
        assert (served.session, served.calls) == (3, 1)


async def test_a_call_is_repeated_once(tmp_path: Path) -> None:
    async with http_server(HttpServer()) as served, running(tmp_path, served.entry()) as made:
        await made.tools()
        served.answer = lambda id: response(404, b"")
        with pytest.raises(ToolError, match="refuses the request in a new session too: it answered 404"):
            await made.call("h__t")
        assert served.session == 2


TEXT = "[1, {}]\r\n" * 50_000
JSON, EVENTS = "content-type: application/json\r\n", "content-type: text/event-stream; charset=utf-8\r\n"


def said(id: int, text: str = TEXT) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": text}]}}).encode()


@pytest.mark.parametrize(
    "answer",
    [
        lambda id: response(200, said(id), JSON),
        lambda id: response(200, b"data: " + said(id) + b"\n\n", EVENTS),
        lambda id: response(200, b": hi\r\n\r\nevent: message\r\nid: 1\r\ndata: " + said(id) + b"\r\n\r\n", EVENTS),
        lambda id: response(200, b"data:" + said(id).replace(b', "', b',\rdata:"') + b"\r\r", EVENTS),
        lambda id: response(
            200, b"event: ping\ndata: " + said(id, "wrong" * 60_000) + b"\n\ndata: " + said(id) + b"\n\n", EVENTS
        ),
    ],
)
async def test_a_large_result_comes_as_it_was_sent(tmp_path: Path, answer: Callable[[int], bytes]) -> None:
    async with http_server(HttpServer()) as served, running(tmp_path, served.entry()) as made:
        await made.tools()
        served.answer = answer
        assert await made.call("h__t") == TEXT


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (
            response(200, b"", JSON + "content-encoding: gzip\r\n"),
            "ended during the call.* it encoded its answer as gzip",
        ),
        (response(200, b"", EVENTS + "content-encoding: identity, br\r\n"), "it encoded its answer as identity, br"),
        (response(200, b"x" * 300_000, JSON), "Failed to parse"),
        (response(200, b"data: " + b"x" * 300_000 + b"\n\n", EVENTS), "Failed to parse"),
        (response(500, b"x" * 300_000), "it answered 500"),
        (response(200, b"data: " + b"[" * 300_000 + b"\n\n", EVENTS), "more than 50,000 values"),
        (response(200, b"data: x\n" * 80_000 + b"\n", EVENTS), "more than 50,000 lines"),
        (
            response(200, b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"%s"}}' % (b"x" * 300_000), JSON),
            "besides its",
        ),
    ],
)
async def test_an_answer_that_is_no_good_is_the_error_of_its_call(tmp_path: Path, answer: bytes, why: str) -> None:
    async with http_server(HttpServer()) as served, running(tmp_path, served.entry()) as made:
        await made.tools()
        served.answer = lambda id: answer
        with pytest.raises(ToolError, match=why):
            await made.call("h__t")
        served.answer = None
        assert await made.call("h__t") == "Done."


@pytest.mark.parametrize(
    ("next_cursors", "asked"),
    [
        (["a", "b", None], 3),
        ([""], 1),
        ([5], 1),
        (["a", "a"], 2),
        (["a", "b", "a"], 3),
    ],
)
async def test_a_cursor_that_is_empty_or_was_there_ends_a_list(
    tmp_path: Path, next_cursors: list[object], asked: int
) -> None:
    async with http_server(served := HttpServer()):
        served.page = lambda cursor: {"tools": [TOOL], "nextCursor": next_cursors[len(served.cursors) - 1]}
        async with running(tmp_path, served.entry()) as made:
            assert await made.tools() == ["h__t"]
            assert made.notices == []
        assert len(served.cursors) == asked


async def test_the_pages_of_a_list_are_bounded_together(tmp_path: Path) -> None:
    async with http_server(served := HttpServer()):
        served.page = lambda cursor: {"tools": [], "nextCursor": f"{cursor}1", "pad": "x" * 3_000_000}
        async with running(tmp_path, served.entry()) as made:
            assert await made.tools() == []
            assert "its list of tools has more than 10,000,000 bytes" in made.notices[0]
        assert len(served.cursors) == 4


async def test_one_that_hangs_up_in_a_call_is_there_at_the_next(tmp_path: Path) -> None:
    async with http_server(HttpServer()) as served, running(tmp_path, served.entry()) as made:
        await made.tools()
        served.status = 0
        with pytest.raises(ToolError, match="ended during the call"):
            await made.call("h__t")
        served.status = 200
        assert await made.call("h__t") == "Done."
        assert served.session == 2


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (401, {}, "OAuth is not supported"),
        (500, {}, "it answered 500 Status"),
        (400, {"error": {"code": -32602, "message": "No such colour"}}, "No such colour"),
        (404, {"error": {"code": -32601, "message": "No such method"}}, "No such method"),
    ],
)
async def test_why_it_refuses_a_call_is_said_at_once(
    tmp_path: Path, status: int, body: dict[str, object], why: str
) -> None:
    async with http_server(HttpServer()) as served, running(tmp_path, served.entry()) as made:
        await made.tools()
        served.status, served.body = status, body
        with pytest.raises(ToolError, match=why):
            await made.call("h__t")
        served.status = 200
        assert await made.call("h__t") == "Done."
        assert served.session == 1


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("html", "it answered with an HTML page"),
        ("login", "it requires a login (401): OAuth is not supported; give a token in its headers"),
        ("away", "Redirect to http://example.org/mcp not followed"),
        ("broken", "it answered 500"),
        ("large", "it sent a message of more than 8,388,608 bytes"),
    ],
)
async def test_it_is_said_what_it_answered(tmp_path: Path, path: str, why: str) -> None:
    async with http_server(HttpServer()) as served, running(tmp_path, served.entry(path)) as made:
        assert await made.tools() == []
        assert why in made.notices[0]


async def test_nobody_answers(tmp_path: Path) -> None:
    async with running(tmp_path, server({"url": "http://127.0.0.1:9/mcp"})) as made:
        assert await made.tools() == []
        assert "it cannot be reached" in made.notices[0]


async def test_a_stream_that_is_dropped_is_the_error_of_its_call(tmp_path: Path) -> None:
    async with http_server(HttpServer()) as served, running(tmp_path, served.entry("dropped")) as made:
        assert await made.tools() == ["h__t"]
        for _ in range(2):
            with pytest.raises(ToolError, match="without a response"):
                await made.call("h__t")


async def test_a_large_result_that_no_request_waits_for_is_dropped() -> None:
    async def events() -> AsyncIterator[bytes]:
        for id in range(20):
            yield b"data: " + said(id, "x" * 500_000) + b"\n\n"

    traffic = Traffic()
    answer = httpx2.Response(200, content=events(), request=httpx2.Request("GET", "http://h"))
    answer.headers["content-type"] = "text/event-stream"
    await inspect(traffic, answer)
    parts = [part async for part in answer.aiter_raw()]
    assert len(parts) == 20
    assert max(map(len, parts)) < 100
    assert traffic.open == {}


async def test_streams_that_carry_no_answer_are_opened_ten_times_a_second(autojump_clock: trio.abc.Clock) -> None:
    traffic, begun = Traffic(), trio.current_time()
    for _ in range(100):
        await inspect(traffic, httpx2.Response(200, content=b"", request=httpx2.Request("GET", "http://h")))
    assert trio.current_time() - begun >= 8
