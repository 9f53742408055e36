"""Servers of HTTP that are started again, refuse, answer with something else, or cannot be reached."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.http_server import HttpServer, http_server
from support.servers import running, server, without_time_limits

from chain.errors import ToolError

_patient = pytest.fixture(autouse=True)(without_time_limits)
# The client leaves the generators of a stream open that is cut.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


async def test_one_that_was_started_again_is_there_at_the_next_call(tmp_path: Path) -> None:
    async with http_server(HttpServer()) as served, running(tmp_path, served.entry()) as made:
        await made.tools()
        assert await made.call("h__t") == "Done."
        served.session += 1  # it has forgotten ours
        with pytest.raises(ToolError, match="404"):
            await made.call("h__t")
        assert await made.call("h__t") == "Done."


async def test_one_that_hangs_up_in_a_call_is_there_at_the_next(tmp_path: Path) -> None:
    async with http_server(HttpServer()) as served, running(tmp_path, served.entry()) as made:
        await made.tools()
        served.status = 0
        with pytest.raises(ToolError, match="ended in the call"):
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
        ("html", "it answered with a page of HTML"),
        ("login", "it wants a login (401): OAuth is not supported; give a token in its headers"),
        ("away", "Redirect to http://example.org/mcp not followed"),
        ("broken", "it answered 500"),
        ("large", "it sent a message of more than 16,777,216 bytes"),
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
