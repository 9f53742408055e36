"""A web site on this machine, its host names, and a user who answers questions about hosts."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Never

import trio

from chain.tools.tool import Preview, Verdict


@dataclass
class Answer:
    """The answer of a server. With ``is_held`` the connection stays open after the body."""

    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    is_held: bool = False
    is_endless: bool = False


@dataclass
class Site:
    """A server of pages, by ``host/path`` or by ``/path`` for any host. It is also an http proxy."""

    pages: dict[str, Answer] = field(default_factory=dict)
    port: int = 0
    requests: list[str] = field(default_factory=list)
    """The ``host/path`` of each request."""
    request_headers: list[dict[str, str]] = field(default_factory=list)
    held_answer_sent: trio.Event = field(default_factory=trio.Event)
    open_connections: int = 0

    def url(self, path: str, host: str = "127.0.0.1", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"

    def redirect(self, path: str, to: str) -> None:
        self.pages[path] = Answer(status=302, headers={"location": to})

    async def serve(self, stream: trio.abc.Stream) -> None:
        self.open_connections += 1
        try:
            async with stream:
                await self._serve(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the client has closed the connection
        finally:
            self.open_connections -= 1

    async def _serve(self, stream: trio.abc.Stream) -> None:
        head = bytearray()
        while b"\r\n\r\n" not in head:
            data = await stream.receive_some()
            if not data:
                return
            head += data
            if head.startswith(b"\x16"):  # TLS
                await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                return
        first, *rows = head.decode("latin-1").split("\r\n\r\n")[0].split("\r\n")
        headers = {name.casefold(): value.strip() for name, _, value in (row.partition(":") for row in rows)}
        path = first.split(" ")[1]
        if "://" in path:
            path = "/" + path.split("://", 1)[1].partition("/")[2]
        host = headers["host"].rsplit(":", 1)[0]
        self.requests.append(f"{host}{path}")
        self.request_headers.append(headers)
        page = self.pages.get(f"{host}{path}", self.pages.get(path, Answer(status=404)))
        fields = {"content-type": page.content_type, "connection": "close", **page.headers}
        if not page.content_type:
            del fields["content-type"]
        reply = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        await stream.send_all(f"HTTP/1.1 {page.status} X\r\n{reply}\r\n".encode() + page.body)
        while page.is_endless:
            await stream.send_all(b"more and more\n" * 1000)
        if page.is_held:
            self.held_answer_sent.set()
            await stream.receive_some()  # until the client closes its end


@asynccontextmanager
async def open_site(tls: ssl.SSLContext | None = None, **pages: Answer) -> AsyncIterator[Site]:
    """Yield a site that is served on 127.0.0.1. The names of the pages are paths without their ``/``."""
    site = Site({f"/{name}": page for name, page in pages.items()})
    async with trio.open_nursery() as nursery:

        async def serve(stream: trio.SocketStream) -> None:
            await site.serve(stream if tls is None else trio.SSLStream(stream, tls, server_side=True))

        listeners: list[trio.SocketListener] = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        site.port = listeners[0].socket.getsockname()[1]
        yield site
        nursery.cancel_scope.cancel()


@dataclass
class User:
    """A user who approves hosts: ``y`` allows, ``?`` withdraws the question, any other text is a reason to refuse."""

    answers: dict[str, str] = field(default_factory=dict)
    """The answers by host or IP address; ``y`` for all others."""
    previews: list[Preview] = field(default_factory=list)
    on_question: Callable[[], object] = lambda: None
    """Called while a question is open."""

    @property
    def asked_about(self) -> list[str]:
        """The hosts and IP addresses in the questions so far."""
        return [preview.subject for preview in self.previews]

    async def choose(self, question: str, options: object) -> str:
        raise AssertionError("research asks only for approvals")

    async def approve(self, preview: Preview) -> Verdict:
        await trio.lowlevel.checkpoint()
        self.previews.append(preview)
        self.on_question()
        answer = self.answers.get(preview.subject, "y")
        return Verdict(answer == "y", "" if answer in "y?" else answer, withdrawn=answer == "?")


@dataclass
class NameTable(trio.abc.HostnameResolver):
    """A resolver with a table of host names. Any other name is not found, so that no test uses a real server."""

    table: dict[str, list[str]]
    lookups: list[str] = field(default_factory=list)

    async def getaddrinfo(self, host: Any, port: Any, *more: Any) -> Any:
        await trio.lowlevel.checkpoint()
        name = host.decode() if isinstance(host, bytes) else host
        self.lookups.append(name)
        if name not in self.table:
            raise OSError("no such name")
        return [(trio.socket.AF_INET, trio.socket.SOCK_STREAM, 6, "", (ip, port or 0)) for ip in self.table[name]]

    async def getnameinfo(self, sockaddr: Any, flags: int) -> Never:
        raise AssertionError("research looks up no names of addresses")
