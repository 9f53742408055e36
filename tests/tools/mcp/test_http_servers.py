"""Servers of HTTP that answer with something else: each is a clear sentence, and the others go on."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.servers import running, server

from chain.errors import ToolError

# The client leaves the generators of a stream open that is cut.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Misbehaving(BaseHTTPRequestHandler):
    """What it does is the path of its address."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        match self.path:
            case "/html":
                self.reply(200, "text/html", b"<html>")
            case "/login":
                self.reply(401, "application/json", b"{}")
            case "/away":
                self.reply(307, "text/plain", b"", location="http://example.org/mcp")
            case "/broken":
                self.reply(500, "text/plain", b"oops")
            case "/large":
                self.reply(200, "application/json", b"x" * 20_000_000)
            case _ if "id" not in asked:
                self.reply(202, "text/plain", b"")
            case _:
                self.answer(asked)

    def answer(self, asked: dict[str, object]) -> None:
        """As a server does that answers, but for its one tool, which drops the stream."""
        if asked["method"] == "tools/call":
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            self.close_connection = True
            return
        result: dict[str, object] = {"tools": [{"name": "drop", "inputSchema": {"type": "object"}}]}
        if asked["method"] == "initialize":
            info = {"name": "x", "version": "1"}
            result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
        answer = {"jsonrpc": "2.0", "id": asked["id"], "result": result}
        self.reply(200, "application/json", json.dumps(answer).encode())

    def do_GET(self) -> None:
        self.reply(405, "text/plain", b"")

    def reply(self, status: int, kind: str, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"content-type": kind, "content-length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:  # what is too long is not read to its end
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Misbehaving) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{serving.server_port}"
        serving.shutdown()
        thread.join()


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
async def test_it_is_said_what_it_answered(tmp_path: Path, address: str, path: str, why: str) -> None:
    async with running(tmp_path, server({"url": f"{address}/{path}"})) as made:
        assert await made.tools() == []
        assert why in made.notices[0]


async def test_nobody_answers(tmp_path: Path) -> None:
    async with running(tmp_path, server({"url": "http://127.0.0.1:9/mcp"})) as made:
        assert await made.tools() == []
        assert "it cannot be reached" in made.notices[0]


async def test_a_stream_that_is_dropped_is_the_error_of_its_call(tmp_path: Path, address: str) -> None:
    async with running(tmp_path, server({"url": f"{address}/mcp"})) as made:
        assert await made.tools() == ["h__drop"]
        for _ in range(2):
            with pytest.raises(ToolError, match="without a response"):
                await made.call("h__drop")
