"""Servers of HTTP that are started again, refuse, or cannot be reached."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.http_server import HttpServer, http_server
from support.servers import running

from chain.errors import ToolError
from chain.tools.mcp import server_connection


@pytest.fixture(autouse=True, scope="module")
def _imported() -> None:
    """The client, whose import takes long."""
    assert server_connection.START_S


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
