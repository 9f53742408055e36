"""Pages of http and https: fetched within bounds, and made text.

Nothing of a visit is left for the next: each response has a client of its own, without cookies, which is closed with
it. Redirects are followed here, so that each new host is asked about. ``httpx2`` is imported with the first page.
"""

from __future__ import annotations

import importlib.util
import os
import ssl
import sys
import zlib
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import trio

from chain.concurrency.threads import Threads
from chain.errors import ToolError
from chain.proxies import proxy_for
from chain.tools.processes.environment import bare_environment
from chain.tools.processes.guarded import Guard
from chain.tools.research import page_text
from chain.tools.research.addresses import Unreadable, host_in, host_of, parsed, redirected
from chain.tools.research.hosts import Address, Permits, Refused, as_address, folded
from chain.version import VERSION

if TYPE_CHECKING:
    import httpx2

SOURCE_S = 30.0
"""Seconds for visiting a source; those in which a question waits do not count."""

MAX_SOURCE_BYTES = 5 * 1024 * 1024
"""Bytes of a source that are read, once decompressed: more than any page that people read."""

HOST_CONNECT_S = 10.0
"""Seconds to connect to one of a host's addresses, so that there is time left for another."""

TEXT_S = 10.0
"""Seconds to make text of a page; the usual one of 5 MB takes 0.5."""

CLOSE_S = 1.0
"""Seconds to close a connection in good order."""

MAX_REDIRECTS = 5
MAX_ADDRESSES = 4
"""Addresses of a host that are tried."""

_HTML = frozenset({"text/html", "application/xhtml+xml"})
_TEXT = frozenset({"application/json", "application/xml", "application/yaml", "application/javascript"})
_PLAIN = frozenset({"", "identity"})
_CODINGS = _PLAIN | {"gzip", "x-gzip", "deflate"}

_THREADS = Threads("pages")


@dataclass(frozen=True, slots=True)
class WebPage:
    """What was fetched: where it was in the end, its bytes, and what the server says that they are."""

    address: str
    raw: bytes
    kind: Literal["html", "text"]
    charset: str
    was_cut: bool


@dataclass(frozen=True, slots=True)
class PageText:
    """A page's text: rows that are numbered as ``unit`` counts, several of one number where one was long."""

    unit: Literal["paragraph", "line"]
    rows: list[tuple[int, str]]


class _Patience:
    """The seconds that the transfers of one source take together."""

    def __init__(self) -> None:
        self._left_s = SOURCE_S

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time of the block. Raises ``Unreadable`` when there is none left."""
        begun = trio.current_time()
        with trio.move_on_after(max(self._left_s, 0)) as scope:
            yield
        self._left_s -= trio.current_time() - begun
        if scope.cancelled_caught:
            raise Unreadable(f"took longer than {SOURCE_S:g} s")


class Web:
    """Fetches pages. Their text is made under the ``guard``, if there is one."""

    def __init__(self, guard: Guard | None = None) -> None:
        self.guard = guard
        self._tls: ssl.SSLContext | None = None

    async def fetch(self, address: str, permits: Permits, by_user: Collection[str], wanted: Collection[str]) -> WebPage:
        """The page at an address, after redirects; ``by_user`` are those that the user named, ``wanted`` those to come.

        Raises ``Refused`` if the first host may not be visited, else ``Unreadable``.
        """
        url, patience = parsed(address), _Patience()
        if self._tls is None:
            try:
                self._tls = await _THREADS.run(_tls, abandon_on_cancel=True)
            except (OSError, ValueError) as error:
                why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
                raise Unreadable(f"cannot be reached: the certificates to check with cannot be read ({why})") from None
        users = {host for each in by_user if (host := host_of(each))}
        for hop in range(MAX_REDIRECTS + 1):
            host = host_in(url)
            there = [str(url), *(each for each in wanted if each != address and host_of(each) == folded(host))]
            try:
                await permits.of_host(host, users, there)
                targets = await self._targets(url, permits, users, patience)
            except Refused as refused:
                if hop == 0:
                    raise
                raise Unreadable(f"redirects to {host}, which was refused: {refused}") from None
            with patience.running():
                answer = await self._get(url, targets, self._tls)
            if isinstance(answer, WebPage):
                return answer
            url = answer
        raise Unreadable(f"redirects more than {MAX_REDIRECTS} times")

    async def _targets(
        self, url: httpx2.URL, permits: Permits, users: Collection[str], patience: _Patience
    ) -> list[str]:
        """The addresses to connect to in place of the name; none where a proxy does that, or there is no name."""
        host = host_in(url)
        # A proxy looks names up itself, in its own network, so there is nothing here to look at.
        if as_address(host) is not None or proxy_for(url) is not None:
            return []
        with patience.running():
            found = await _looked_up(host)
        await permits.of_target(host, found.values(), users)
        return list(found)[:MAX_ADDRESSES]

    async def _get(self, url: httpx2.URL, targets: list[str], tls: ssl.SSLContext) -> WebPage | httpx2.URL:
        """The page, or where it redirects to. Raises ``Unreadable``."""
        import httpx2

        headers = {
            "user-agent": f"chain/{VERSION}",
            "accept": "text/html, text/plain, text/markdown, application/json, application/xml;q=0.9, */*;q=0.1",
            "accept-encoding": "gzip, deflate",
            "host": url.netloc.decode("ascii"),
        }
        extensions = {"sni_hostname": host_in(url).rstrip(".")}
        timeout = httpx2.Timeout(None, connect=HOST_CONNECT_S)
        hosts = targets or [host_in(url)]
        try:
            # Not by trust_env: a client that looks for a proxy itself might find another than the one that we found,
            # and connect to a name that nobody has looked up. The certificates of the environment are in ``tls``.
            client = httpx2.AsyncClient(verify=tls, proxy=proxy_for(url), timeout=timeout, trust_env=False)
            async with _closing(client):
                for n, host in enumerate(hosts, 1):
                    target = url.copy_with(host=host, fragment=None)
                    request = client.build_request("GET", target, headers=headers, extensions=extensions)
                    try:
                        response = await client.send(request, stream=True)
                    except (httpx2.ConnectError, httpx2.ConnectTimeout):
                        if n == len(hosts):
                            raise
                        continue
                    async with _closing(response):
                        return await _answer(url, response)
                raise AssertionError("unreachable: the last of the addresses answers or raises")
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, ImportError, OSError, ValueError) as error:
            raise Unreadable(_why(error)) from None


@asynccontextmanager
async def _closing(opened: httpx2.AsyncClient | httpx2.Response) -> AsyncIterator[None]:
    try:
        yield
    finally:
        # A connection is given back also where the call is cut; a server that hangs has a bound.
        with trio.move_on_after(CLOSE_S, shield=True):
            await opened.aclose()


async def _answer(url: httpx2.URL, response: httpx2.Response) -> WebPage | httpx2.URL:
    status = response.status_code
    if status in (301, 302, 303, 307, 308) and (location := response.headers.get("location")):
        return redirected(url, location)
    if not 200 <= status < 300:
        known = {s.value: s.phrase for s in HTTPStatus}
        raise Unreadable(f"answered {status} {known.get(status, '')}".rstrip())
    coding = response.headers.get("content-encoding", "").strip().casefold()
    if coding not in _CODINGS:
        raise Unreadable(f"is compressed as {coding[:40]!r}, which was not asked for")
    kind, _, parameters = response.headers.get("content-type", "").partition(";")
    kind = kind.strip().casefold()
    if kind and kind not in _HTML | _TEXT and not kind.startswith("text/") and not kind.endswith(("+json", "+xml")):
        raise Unreadable(f"is {kind[:60]!r}; only text can be read (HTML, plain text, Markdown, JSON, XML)")
    raw, was_cut = await _read(response, coding)
    if not kind and raw.lstrip()[:1] == b"<":
        kind = "text/html"
    charset = next(
        (p.split("=", 1)[1] for p in parameters.split(";") if p.strip().casefold().startswith("charset=")), ""
    )
    if b"\0" in raw[:1024] and not charset and not raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise Unreadable("is no text, whatever its server says")
    return WebPage(str(url), raw, "html" if kind in _HTML else "text", charset.replace("\0", ""), was_cut)


class _Unpacked:
    """The body of a response, decompressed, up to one byte more than is read of a source."""

    def __init__(self, coding: str) -> None:
        self.raw = bytearray()
        self.is_broken = False
        self._is_deflate = coding == "deflate"
        # Either of the two headers is accepted for either name, as servers mix them up.
        self._unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32) if coding not in _PLAIN else None

    def feed(self, chunk: bytes) -> bool:
        """Add what came, as long as more is wanted; whether it still is."""
        room = MAX_SOURCE_BYTES + 1 - len(self.raw)
        if self.is_broken or not room:
            return False
        try:
            # At most what there is room for: a byte may be the beginning of a thousand, and a few of them of a million.
            self.raw += chunk[:room] if self._unpacker is None else self._unpacker.decompress(chunk, room)
        except zlib.error:
            if self._is_deflate and not self.raw:
                # Many servers send `deflate` without its header.
                self._is_deflate, self._unpacker = False, zlib.decompressobj(-zlib.MAX_WBITS)
                return self.feed(chunk)
            self.is_broken = True
        return not self.is_broken and len(self.raw) <= MAX_SOURCE_BYTES


async def _read(response: httpx2.Response, coding: str) -> tuple[bytes, bool]:
    """The body up to its limit, and whether there was more. Raises ``Unreadable``."""
    body = _Unpacked(coding)
    # Cancelled where no more is wanted: only an exception from the innermost of the iterators ends all of them.
    with trio.CancelScope() as reading:
        async for chunk in response.aiter_raw():
            if not body.feed(chunk):
                reading.cancel()
    if body.is_broken:
        raise Unreadable("is not compressed as it says")
    return bytes(body.raw[:MAX_SOURCE_BYTES]), len(body.raw) > MAX_SOURCE_BYTES


async def text_of_page(page: WebPage, guard: Guard | None = None) -> PageText:
    """Return the text of a page, made by a guarded program that is killed when it takes too long.

    Without a ``guard``, one is started for this page. Raise ``Unreadable`` if no text can be made of it, and
    ``ToolError`` if the guard cannot be started.
    """
    if guard is None:
        guard = Guard()
        try:
            return await text_of_page(page, guard)
        finally:
            await guard.close()
    library, written = await _THREADS.run(_library, abandon_on_cancel=True), bytearray()
    status = await guard.run(
        [sys.executable, "-I", "-S", page_text.__file__, library, page.kind, page.charset],
        cwd=Path("/"),
        env=bare_environment(),
        on_output=written.extend,
        timeout_s=TEXT_S,
        input=page.raw,
    )
    if status.code != 0:
        raise Unreadable("was fetched, but no text could be made of it: its HTML is too deep, too large or too odd")
    rows = await _THREADS.run(partial(_rows, bytes(written)), abandon_on_cancel=True)
    return PageText("paragraph" if page.kind == "html" else "line", rows)


async def _looked_up(host: str) -> dict[str, Address]:
    """The addresses of a host, in the order in which they are to be tried. Raises ``Unreadable``."""
    try:
        found = await trio.socket.getaddrinfo(host, None, type=trio.socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise Unreadable(f"cannot be reached: the name {host} was not found") from None
    names = [str(name[0]) for *_, name in found]
    addresses = {name: address for name in names if (address := as_address(name)) is not None}
    if not addresses:
        # Without one the connection would be made by name, to whatever that leads to by then.
        raise Unreadable(f"cannot be reached: the name {host} has no address")
    return addresses


def _tls() -> ssl.SSLContext:
    """What certificates are checked with. Made in a thread: it reads many files, and imports ``httpx2``."""
    import httpx2

    return httpx2.create_ssl_context()


def _library() -> str:
    """The folder that selectolax is in; it is not imported here."""
    spec = importlib.util.find_spec("selectolax")
    if spec is None or not spec.submodule_search_locations:
        raise ToolError("selectolax is not installed, so no page can be read; install react-chain again.")
    return os.path.dirname(next(iter(spec.submodule_search_locations)))


def _rows(output: bytes) -> list[tuple[int, str]]:
    rows = (line.partition("\t") for line in output.decode().split("\n") if line)
    return [(int(n), text) for n, _, text in rows]


def _why(error: BaseException) -> str:
    """Why a page could not be fetched: by the most telling of the errors that led to each other."""
    import httpx2

    causes = list(_causes(error))
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"cannot be reached: its certificate is not valid ({cause.verify_message})"
    for cause in causes:
        if isinstance(cause, ssl.SSLError):
            return f"cannot be reached: no secure connection could be made ({cause.reason or 'TLS error'})"
    if isinstance(error, ImportError):
        return "cannot be reached: its proxy needs a package that is not installed (socksio)"
    if isinstance(error, httpx2.ProxyError):
        return "cannot be reached: the proxy refused"
    if isinstance(error, httpx2.ConnectTimeout):
        return f"cannot be reached: nobody answered within {HOST_CONNECT_S:g} s"
    for cause in causes:
        if isinstance(cause, OSError) and cause.errno:
            return f"cannot be reached: {os.strerror(cause.errno)}"
    if isinstance(error, httpx2.ConnectError):
        return "cannot be reached: no connection could be made"
    if isinstance(error, httpx2.ProtocolError):
        return "ended too early, or its server does not speak HTTP"
    return f"could not be read ({type(error).__name__})"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and those that led to it, also those of a group: one for each address that was tried."""
    seen: list[BaseException] = []
    left: list[BaseException | None] = [error]
    while left:
        here = left.pop()
        if here is None or here in seen:
            continue
        seen.append(here)
        yield here
        left += [here.__context__, here.__cause__]
        if isinstance(here, BaseExceptionGroup):
            left += here.exceptions
