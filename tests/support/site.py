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
    kind: str = "text/plain; charset=utf-8"
    status: int = 200
    more: dict[str, str] = field(default_factory=dict)
    is_held: bool = False
    is_endless: bool = False


@dataclass
class Site:
    """A server of pages, by ``host/path`` or by ``/path`` for any host. It is also an http proxy."""

    pages: dict[str, Answer] = field(default_factory=dict)
    port: int = 0
    asked: list[str] = field(default_factory=list)
    """The ``host/path`` of each request."""
    heads: list[dict[str, str]] = field(default_factory=list)
    holding: trio.Event = field(default_factory=trio.Event)
    """Set when a held answer was sent."""
    open: int = 0
    """The number of open connections."""

    def at(self, path: str, host: str = "127.0.0.1", scheme: str = "http") -> str:
        """Return the address of a page."""
        return f"{scheme}://{host}:{self.port}{path}"

    def redirect(self, path: str, to: str) -> None:
        self.pages[path] = Answer(status=302, more={"location": to})

    async def serve(self, stream: trio.abc.Stream) -> None:
        self.open += 1
        try:
            async with stream:
                await self._serve(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the client has closed the connection
        finally:
            self.open -= 1

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
        sent = {name.casefold(): value.strip() for name, _, value in (row.partition(":") for row in rows)}
        path = first.split(" ")[1]
        if "://" in path:
            path = "/" + path.split("://", 1)[1].partition("/")[2]
        host = sent["host"].rsplit(":", 1)[0]
        self.asked.append(f"{host}{path}")
        self.heads.append(sent)
        page = self.pages.get(f"{host}{path}", self.pages.get(path, Answer(status=404)))
        fields = {"content-type": page.kind, "connection": "close", **page.more}
        if not page.kind:
            del fields["content-type"]
        reply = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        await stream.send_all(f"HTTP/1.1 {page.status} X\r\n{reply}\r\n".encode() + page.body)
        while page.is_endless:
            await stream.send_all(b"more and more\n" * 1000)
        if page.is_held:
            self.holding.set()
            await stream.receive_some()  # until the client closes its end


@asynccontextmanager
async def open_site(tls: ssl.SSLContext | None = None, **pages: Answer) -> AsyncIterator[Site]:
    """Serve a site on 127.0.0.1. The names of the pages are paths without their ``/``."""
    site = Site({f"/{name}": page for name, page in pages.items()})
    async with trio.open_nursery() as nursery:

        async def serve(stream: trio.SocketStream) -> None:
            await site.serve(stream if tls is None else trio.SSLStream(stream, tls, server_side=True))

        listeners: list[trio.SocketListener] = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        site.port = listeners[0].socket.getsockname()[1]
        yield site
        nursery.cancel_scope.cancel()


@dataclass
class Asked:
    """A user who approves hosts: ``y`` allows, ``?`` withdraws the question, any other text is a reason to refuse."""

    answers: dict[str, str] = field(default_factory=dict)
    previews: list[Preview] = field(default_factory=list)
    before: Callable[[], object] = lambda: None
    """Called while a question is open."""

    @property
    def subjects(self) -> list[str]:
        return [preview.subject for preview in self.previews]

    async def choose(self, question: str, options: object) -> str:
        raise AssertionError("nothing is to be chosen here")

    async def approve(self, preview: Preview) -> Verdict:
        await trio.lowlevel.checkpoint()
        self.previews.append(preview)
        self.before()
        answer = self.answers.get(preview.subject, "y")
        return Verdict(answer == "y", "" if answer in "y?" else answer, withdrawn=answer == "?")


@dataclass
class Names(trio.abc.HostnameResolver):
    """A table of host names. Any other name is not found, so that no test uses a real server."""

    table: dict[str, list[str]]
    asked: list[str] = field(default_factory=list)

    async def getaddrinfo(self, host: Any, port: Any, *more: Any) -> Any:
        await trio.lowlevel.checkpoint()
        name = host.decode() if isinstance(host, bytes) else host
        self.asked.append(name)
        if name not in self.table:
            raise OSError("no such name")
        return [(trio.socket.AF_INET, trio.socket.SOCK_STREAM, 6, "", (each, port or 0)) for each in self.table[name]]

    async def getnameinfo(self, sockaddr: Any, flags: int) -> Never:
        raise AssertionError("no address is looked up")
