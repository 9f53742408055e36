"""An MCP server over HTTP in the process of the test, which can restart and refuse requests."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from chain.config.servers import ToolServer

from .servers import server

TOOL = {"name": "t", "inputSchema": {"type": "object"}}


class HttpServer:
    """A server with one session at a time, which is numbered. An empty response closes the connection.

    A path in ``PAGES`` answers every request with that page. ``/dropped`` drops the streams of calls.
    """

    def __init__(self) -> None:
        self.port = 0
        self.session = 0
        self.unknown_session_response = json_response(
            404, {"id": None, "error": {"code": -32001, "message": "Session not found"}}
        )
        self.respond_to_call: Callable[[int], bytes] | None = None
        """Returns the response to the call with an id. If ``None``, calls succeed."""
        self.notification_response = response(202, b"")
        self.successful_calls = 0
        self.cursors: list[str] = []
        """The cursors of the requested pages of tools."""
        self.tools_page: Callable[[str], dict[str, Any]] = lambda cursor: {"tools": [TOOL]}

    def entry(self, path: str = "mcp") -> ToolServer:
        """Return the server of a configuration."""
        return server({"url": f"http://127.0.0.1:{self.port}/{path}"})

    async def serve(self, stream: trio.SocketStream) -> None:
        read = b""
        try:
            while True:
                while b"\r\n\r\n" not in read:
                    if not (piece := await stream.receive_some()):
                        return
                    read += piece
                head, _, read = read.partition(b"\r\n\r\n")
                lines = head.decode().split("\r\n")
                headers = {n.lower(): v for n, v in (line.split(": ", 1) for line in lines[1:])}
                while len(read) < (length := int(headers.get("content-length", "0"))):
                    read += await stream.receive_some()
                body, read = read[:length], read[length:]
                verb, path, _ = lines[0].split()
                answer = PAGES.get(path) or self._answer(verb, headers.get("mcp-session-id"), body)
                if path == "/dropped" and b"tools/call" in body:
                    answer = _STREAM
                await stream.send_all(answer)
                if answer in (b"", _STREAM):
                    await stream.aclose()
                    return
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return

    def _answer(self, verb: str, session: str | None, body: bytes) -> bytes:
        if verb != "POST":
            return response(405, b"")
        asked = json.loads(body)
        method, id = asked["method"], asked.get("id")
        if method != "initialize" and session != str(self.session):
            return self.unknown_session_response
        match method:
            case "initialize":
                self.session += 1
                result = {
                    "protocolVersion": asked["params"]["protocolVersion"],
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "h", "version": "1"},
                }
                return json_response(200, {"id": id, "result": result}, f"mcp-session-id: {self.session}\r\n")
            case "tools/list":
                cursor = asked.get("params", {}).get("cursor", "")
                self.cursors.append(cursor)
                return json_response(200, {"id": id, "result": self.tools_page(cursor)})
            case "tools/call" if self.respond_to_call is not None:
                return self.respond_to_call(id)
            case "tools/call":
                self.successful_calls += 1
                return json_response(200, {"id": id, "result": {"content": [{"type": "text", "text": "Done."}]}})
            case _:
                return self.notification_response


def json_response(status: int, message: dict[str, Any], more: str = "") -> bytes:
    """Return a response with a JSON-RPC message."""
    body = json.dumps({"jsonrpc": "2.0", **message}).encode()
    return response(status, body, f"content-type: application/json\r\n{more}")


def response(status: int, body: bytes, more: str = "") -> bytes:
    """Return a response. ``more`` are headers, each with its line end."""
    return f"HTTP/1.1 {status} Status\r\ncontent-length: {len(body)}\r\n{more}\r\n".encode() + body


_STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"

PAGES = {
    "/html": response(200, b"<html>", "content-type: text/html\r\n"),
    "/login": response(401, b"{}", "content-type: application/json\r\n"),
    "/redirect": response(307, b"", "location: http://example.org/mcp\r\n"),
    "/broken": response(500, b"oops"),
    "/large": response(200, b"x" * (1 << 23) + b"x", "content-type: application/json\r\n"),
}


@asynccontextmanager
async def http_server() -> AsyncIterator[HttpServer]:
    """Yield a server on a free port of 127.0.0.1."""
    server = HttpServer()
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        server.port = listener.socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, server.serve, [listener])
        yield server
        nursery.cancel_scope.cancel()
