"""Fetches pages over http and https within limits, and extracts their text.

``fetch`` follows redirects itself, so that the user is asked about each new host. It connects only to IP addresses that
were checked. Requests share no state: each has a client of its own, without cookies. ``page_text`` extracts the text,
in a separate process. ``httpx2`` is imported only when the first page is fetched.
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
import ssl
import sys
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import trio

from chain.concurrency.threads import Threads
from chain.network import proxy_for, tls_context
from chain.tools.processes.environment import bare_environment
from chain.tools.processes.guarded import Guard
from chain.tools.research import page_text
from chain.tools.research.addresses import (
    IPAddress,
    SourceError,
    host_in,
    host_of,
    normalize_host,
    parse_ip,
    parse_url,
)
from chain.tools.research.hosts import HostApprovals, HostRefused
from chain.tools.research.ranking import Row
from chain.version import VERSION

if TYPE_CHECKING:
    import httpx2

SOURCE_S = 30.0
"""The most seconds to visit a source. The time while a question is open does not count."""

MAX_SOURCE_BYTES = 5 * 1024 * 1024
"""The most bytes of a source that are read, after decompression: more than any page that people read."""

HOST_CONNECT_S = 10.0
"""Seconds to connect to one of a host's IP addresses, so that there is time left for another."""

TEXT_S = 10.0
"""Seconds to extract the text of a page. A usual page of 5 MB takes 0.7 s."""

CLOSE_S = 1.0
"""Seconds to close a connection cleanly."""

MAX_REDIRECTS = 5
MAX_IPS = 4
"""The most IP addresses of a host that are tried."""

_HTML = ("text/html", "application/xhtml+xml")
_TEXT = re.compile(r"text/.+|application/(?:json|xml|yaml|javascript)|.+\+(?:json|xml)|")
_CHARSET = re.compile(r";\s*charset\s*=\s*[\"']?([\w.:-]{1,40})", re.IGNORECASE)

_THREADS = Threads("pages")


@dataclass(frozen=True, slots=True)
class WebPage:
    """A fetched page. ``address`` is the address after all redirects; ``was_cut`` says whether ``raw`` lacks the rest.

    ``charset`` is the charset that the server declared; empty if it declared none.
    """

    address: str
    raw: bytes
    kind: Literal["html", "text"]
    charset: str
    was_cut: bool


async def fetch(address: str, approvals: HostApprovals, other_addresses: Collection[str] = ()) -> WebPage:
    """Fetch a page, and follow redirects. Questions about a host also show its URLs in ``other_addresses``.

    Raise ``HostRefused`` if the host of the address is refused, and ``SourceError`` for any other failure, such as a
    refused host of a redirect.
    """
    url = parse_url(address)
    with trio.move_on_after(SOURCE_S) as limit:
        for hop in range(MAX_REDIRECTS + 1):
            host = host_in(url)
            same_host = (each for each in other_addresses if each != address and host_of(each) == normalize_host(host))
            try:
                with _paused(limit):
                    await approvals.check_host(host, [str(url), *same_host])
                targets = [host]
                # A proxy resolves names itself, in its own network.
                if parse_ip(host) is None and proxy_for(url) is None:
                    ips = await _resolve(host)
                    with _paused(limit):
                        await approvals.check_ips(host, ips.values())
                    targets = list(ips)[:MAX_IPS]
            except HostRefused as refused:
                if hop == 0:
                    raise
                raise SourceError(f"redirects to {host}, which was refused: {refused}") from None
            answer = await _get(url, targets)
            if isinstance(answer, WebPage):
                return answer
            url = answer
        raise SourceError(f"redirects more than {MAX_REDIRECTS} times")
    raise SourceError(f"took longer than {SOURCE_S:g} s")


@contextmanager
def _paused(limit: trio.CancelScope) -> Iterator[None]:
    left, limit.deadline = limit.deadline - trio.current_time(), math.inf
    yield
    limit.deadline = trio.current_time() + left


async def _resolve(host: str) -> dict[str, IPAddress]:
    """Resolve a host to its IP addresses, by their texts, in the order to try. Raise ``SourceError`` if it has none."""
    try:
        found = await trio.socket.getaddrinfo(host, None, type=trio.socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise SourceError(f"cannot be reached: the name {host} was not found") from None
    texts = [str(address[0]) for *_, address in found]
    ips = {text: ip for text in texts if (ip := parse_ip(text)) is not None}
    if not ips:
        raise SourceError(f"cannot be reached: the name {host} has no address")
    return ips


async def _get(url: httpx2.URL, targets: Sequence[str]) -> WebPage | httpx2.URL:
    """Request a page. Return it or, if the server redirects, the URL to request next.

    ``targets`` are hosts or IP addresses to connect to, in turn, until one accepts. Raise ``SourceError`` on failure.
    """
    import httpx2

    headers = {
        "user-agent": f"chain/{VERSION}",
        "accept": "text/html, text/plain, text/markdown, application/json, application/xml;q=0.9, */*;q=0.1",
        "accept-encoding": "gzip",
        "host": url.netloc.decode("ascii"),
    }
    extensions = {"sni_hostname": host_in(url).rstrip(".")}
    timeout = httpx2.Timeout(None, connect=HOST_CONNECT_S)
    tls = await _THREADS.run(partial(_tls, url), abandon_on_cancel=True)
    failure: Exception | None = None
    try:
        # Without trust_env: the client might find another proxy than ``proxy_for``, and connect to an unchecked name.
        client = httpx2.AsyncClient(verify=tls, proxy=proxy_for(url), timeout=timeout, trust_env=False)
        try:
            for target in targets:
                where = url.copy_with(host=target, fragment=None)
                request = client.build_request("GET", where, headers=headers, extensions=extensions)
                try:
                    response = await client.send(request, stream=True)
                except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                    failure = error
                else:
                    return await _handle_response(url, response)
            assert failure is not None
            raise failure
        finally:
            # Also after a cancellation. The timeout is for a server that does not answer the end of TLS.
            with trio.move_on_after(CLOSE_S, shield=True):
                await client.aclose()
    except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, ImportError, OSError, ValueError) as error:
        raise SourceError(_fetch_problem(error)) from None


def _tls(url: httpx2.URL) -> ssl.SSLContext:
    """Return the TLS context for an address. Raise ``SourceError`` if the certificates cannot be read."""
    try:
        return tls_context(url)
    except (OSError, ValueError) as error:
        raise SourceError(f"cannot be reached: the trusted certificates cannot be read ({error})") from None


async def _handle_response(url: httpx2.URL, response: httpx2.Response) -> WebPage | httpx2.URL:
    import httpx2

    headers = response.headers
    if response.has_redirect_location and (location := headers["location"]):
        try:
            return parse_url(location, base=url)
        except SourceError as error:
            raise SourceError(f"redirects to an address that {error}") from None
    if not response.is_success:
        phrase = httpx2.codes.get_reason_phrase(response.status_code)
        raise SourceError(f"answered {response.status_code} {phrase}".rstrip())
    content_type = headers.get("content-type", "")
    kind = content_type.partition(";")[0].strip().casefold()
    if not _TEXT.fullmatch(kind):
        raise SourceError(f"is {kind[:60]!r}; only text can be read (HTML, plain text, Markdown, JSON, XML)")
    raw, was_cut = await _read(response, headers.get("content-encoding", "").strip().casefold())
    charset = _CHARSET.search(content_type)
    if b"\0" in raw[:1024] and not charset and not raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise SourceError("is not text, although its server declares text")
    is_html = kind in _HTML or (not kind and raw.lstrip().startswith(b"<"))
    return WebPage(str(url), raw, "html" if is_html else "text", charset[1] if charset else "", was_cut)


async def _read(response: httpx2.Response, coding: str) -> tuple[bytes, bool]:
    """Return the first ``MAX_SOURCE_BYTES`` of the decompressed body, and whether the body has more bytes.

    Raise ``SourceError`` if the body cannot be decompressed.
    """
    if coding not in ("", "identity", "gzip", "x-gzip", "deflate"):
        raise SourceError(f"is compressed as {coding[:40]!r}, which was not requested")
    # Not by httpx2, which decompresses a whole chunk at once: one byte may expand to a thousand.
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32) if coding not in ("", "identity") else None
    raw, is_broken = bytearray(), False
    # Cancelled when enough was read: only an exception in the innermost iterator ends all nested iterators.
    with trio.CancelScope() as reading:
        async for chunk in response.aiter_raw():
            try:
                if room := MAX_SOURCE_BYTES + 1 - len(raw):  # 0 is no limit for zlib
                    raw += unpacker.decompress(chunk, room) if unpacker else chunk[:room]
            except zlib.error:
                is_broken = True
            if is_broken or len(raw) > MAX_SOURCE_BYTES:
                reading.cancel()
    if is_broken:
        raise SourceError("cannot be decompressed")
    return bytes(raw[:MAX_SOURCE_BYTES]), len(raw) > MAX_SOURCE_BYTES


def _fetch_problem(error: BaseException) -> str:
    """Return why a page could not be fetched: the reason of the first known error among ``error`` and its causes."""
    import httpx2

    if isinstance(error, httpx2.ConnectTimeout):
        return f"cannot be reached: no answer within {HOST_CONNECT_S:g} s"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"cannot be reached: its certificate is not valid ({cause.verify_message})"
        if isinstance(cause, ssl.SSLError):
            return f"cannot be reached: no secure connection could be made ({cause.reason or 'TLS error'})"
        if isinstance(cause, OSError) and cause.errno:
            return f"cannot be reached: {os.strerror(cause.errno)}"
        inner = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else None
        cause = inner or cause.__cause__ or cause.__context__
    if isinstance(error, httpx2.RemoteProtocolError):
        return "ended too early, or its server does not speak HTTP"
    return f"cannot be reached: {str(error) or type(error).__name__}"


async def text_of_page(page: WebPage, guard: Guard) -> list[Row]:
    """Return the paragraphs or lines of a page. A program under the ``guard`` extracts them, with a time limit.

    Raise ``SourceError`` if the text cannot be extracted, and ``ToolError`` if the guard cannot be started.
    """
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
        raise SourceError(
            "was fetched, but its text could not be extracted: its HTML is too deeply nested, too large or malformed"
        )
    prefix = f"{page.address}: {'paragraph' if page.kind == 'html' else 'line'} "
    return await _THREADS.run(partial(_rows, prefix, bytes(written)), abandon_on_cancel=True)


def _library() -> str:
    """Return the folder that contains selectolax. Does not import selectolax, since only ``page_text`` needs it."""
    selectolax = importlib.util.find_spec("selectolax")
    assert selectolax is not None
    assert selectolax.origin is not None
    return os.path.dirname(os.path.dirname(selectolax.origin))


def _rows(prefix: str, output: bytes) -> list[Row]:
    rows = (line.partition("\t") for line in output.decode().split("\n") if line)
    return [Row(prefix, int(n), text) for n, _, text in rows]
