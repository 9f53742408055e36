"""The HTTP client of a service, and the headers of all requests.

Requests are equal to those of the official SDK. The SDK takes a second to import, and ``httpx2`` a tenth of that. So
only ``chain check`` uses the SDK (``checking``), and tests compare the requests of both.
"""

from __future__ import annotations

import socket
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from chain.network import proxy_for, tls_context
from chain.providers.anthropic.failures import BadStatus, Unreached, retry_after
from chain.providers.anthropic.service import SERVICE_CONNECT_S, Service
from chain.version import VERSION

if TYPE_CHECKING:
    import httpx2

API_VERSION = "2026-10-21"
"""The version of the API that the SDK requests."""

ADDRESS = "https://api.anthropic.com"
"""The address of the service if a model definition has no ``base_url``."""

CLOSE_S = 1.0
"""The maximum time for closing a connection cleanly, in seconds."""
MAX_ERROR_BODY = 64 * 1024
"""The maximum number of bytes that are read of an error response."""
MAX_SERVICE_CONNECTIONS, MAX_IDLE = 1000, 100
"""The maximum numbers of connections and of idle connections, as in the SDK.

A cancellation just after connecting over TLS can use up a connection forever, so the limit must be high.
"""

_PROBES = {"TCP_KEEPINTVL": 60, "TCP_KEEPCNT": 5, "TCP_KEEPIDLE": 60}
"""The keepalive options of TCP, as in the SDK, in seconds or failed probes. An option the system lacks is not set."""


@dataclass(frozen=True, slots=True)
class Client:
    """A connection to a service: its address, the headers of every request, and the timeouts."""

    http: httpx2.AsyncBaseTransport = field(repr=False)
    """The transport. A client of ``httpx2`` would follow redirects, and take a tenth of an iteration's time."""
    base_url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    timeout: dict[str, float | None]

    @asynccontextmanager
    async def response(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[httpx2.Response]:
        """Send a request and yield the response, whose body the caller reads within the block.

        Raise ``BadStatus`` for a status of 300 or more, and ``Unreached`` if there is no response.
        """
        import httpx2

        request = httpx2.Request(
            method,
            self.base_url + path,
            headers={**self.headers, **(headers or {})},
            content=body,
            extensions={"timeout": self.timeout},
        )
        try:
            response = await self.http.handle_async_request(request)
        except Exception as error:
            raise Unreached from error
        try:
            if response.status_code >= 300:
                said = (await _read_body(response, MAX_ERROR_BODY)).decode(errors="replace")
                raise BadStatus(response.status_code, said, retry_after(response.headers))
            yield response
        finally:
            # A response that was read to its end is closed already. Of any other, the connection is returned to the
            # pool, with a timeout for a server that hangs.
            if not response.is_closed:
                with trio.move_on_after(CLOSE_S, shield=True):
                    await response.aclose()

    async def get(self, path: str, limit: int) -> str:
        """Return the text at a path, truncated to ``limit`` bytes. Raise the same errors as ``response``."""
        async with self.response("GET", path) as response:
            return (await _read_body(response, limit)).decode(errors="replace")

    async def aclose(self) -> None:
        """Close the connections, even if the caller is cancelled."""
        with trio.move_on_after(CLOSE_S, shield=True):
            await self.http.aclose()


def new_client(service: Service) -> Client:
    """Build the client of a service. Blocks while ``httpx2`` is imported and certificates are read."""
    import httpx2

    url = httpx2.URL(service.base_url or ADDRESS)
    http = httpx2.AsyncHTTPTransport(
        verify=tls_context(url),
        proxy=proxy_for(url),
        limits=httpx2.Limits(max_connections=MAX_SERVICE_CONNECTIONS, max_keepalive_connections=MAX_IDLE),
        socket_options=[
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
            *((socket.IPPROTO_TCP, getattr(socket, n), v) for n, v in _PROBES.items() if hasattr(socket, n)),
        ],
    )
    headers = {
        "accept": "application/json",
        "content-type": "application/json",
        "user-agent": f"chain/{VERSION}",
        "anthropic-version": API_VERSION,
    }
    if service.api_key:
        headers["authorization"] = f"Bearer {service.api_key}"
    headers |= {name.lower(): value for name, value in service.extra_headers.items()}
    return Client(http, str(url).rstrip("/"), headers | basic_auth(url), timeout_of(service).as_dict())


def basic_auth(url: httpx2.URL) -> dict[str, str]:
    """Return the ``authorization`` header for the user and password in an address; empty if it has none.

    Callers let this header replace any other ``authorization``, as ``httpx2`` does.
    """
    if not (url.username or url.password):
        return {}
    return {"authorization": f"Basic {b64encode(f'{url.username}:{url.password}'.encode()).decode()}"}


def timeout_of(service: Service) -> httpx2.Timeout:
    """Return the timeouts for requests to a service, which also limit the wait for a free connection."""
    import httpx2

    return httpx2.Timeout(service.idle_timeout_s, connect=min(SERVICE_CONNECT_S, service.idle_timeout_s))


async def _read_body(response: httpx2.Response, limit: int) -> bytes:
    """Return the body of a response, truncated to ``limit`` bytes."""
    found = bytearray()
    async for chunk in response.aiter_bytes():
        found += chunk
        if len(found) >= limit:
            break
    return bytes(found[:limit])
