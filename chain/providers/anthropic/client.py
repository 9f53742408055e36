"""The Anthropic Messages API as a ``Model``: the only importer of ``anthropic``.

The SDK provides the connection, the authentication and its headers. As it would walk through the whole history at every
call, the body is encoded in ``encoding``, sent by the SDK's own HTTP client, and the stream is read in ``stream``.

Nothing is retried here. Keys, address and headers come from the configuration alone (only proxies are taken from
``HTTPS_PROXY`` and the like). Importing ``anthropic`` takes a second, so the client is built in a thread, by
``prepare`` or by the first call; one that is cancelled meanwhile does not wait for that thread.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import astuple, dataclass, field, replace
from typing import TYPE_CHECKING
from urllib.parse import quote

import trio

from chain.errors import ModelError, ParameterRefused
from chain.messages import COST_DIGITS, TOO_LONG, Message, Usage, is_signed_thinking
from chain.model import Delta, Reply, Request, Window
from chain.provider import ModelCheck
from chain.providers.anthropic import failures
from chain.providers.anthropic.encoding import Encoder
from chain.providers.anthropic.refusals import refused_content
from chain.providers.anthropic.service import CONNECT_S, Parameters, Price, Service
from chain.providers.anthropic.stream import ReplyReader, RequestRefused
from chain.threads import Threads, collector_off

if TYPE_CHECKING:
    import httpx2

_THREADS = Threads("clients")

_BUILDING = threading.Lock()
"""Held by the thread that builds a client: of two at once, the second would import while the first one has turned the
garbage collector off."""

CLOSE_S = 1.0
"""Seconds to close a connection in good order."""
CHECK_S = 30.0
"""Seconds for checking the settings; a person waits for it."""
MAX_ERROR_BODY = 64 * 1024
"""Bytes that are read of the response to a request that was refused."""
LEAST_TOO_LARGE = 64 * 1024
"""Bytes: where a smaller request is too large for a service or a proxy, a shorter conversation does not help."""
MAX_LIST = 4 * 1024 * 1024
"""Bytes that are read of a list of models."""

MOST_ASKS = 3
"""Requests beside which the service is asked for the window, as long as each is over first."""

SAMPLING_VERSION = "2023-06-01"
"""The API version of a request that sets ``temperature``: later versions have no such parameter, whatever the model."""

_SAMPLING = re.compile(rb'"(temperature|top_p|top_k)":')


@dataclass(frozen=True, slots=True)
class Client:
    """What requests need of the SDK, asked for once: the headers of an ``AsyncAnthropic`` and its HTTP client."""

    http: httpx2.AsyncClient = field(repr=False)
    base_url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    timeout: dict[str, float | None]


class AnthropicModel:
    """A ``Model`` that asks a server which speaks ``/v1/messages``."""

    def __init__(self, parameters: Parameters, service: Service, price: Price | None = None) -> None:
        self.name = parameters.model
        self._parameters = parameters
        self._service = service
        self._price = price
        self._failures = failures.Failures(parameters, service)
        self._client: Client | None = None
        self._context_window = parameters.context_window
        self._asks_left = 0 if parameters.context_window else MOST_ASKS
        """How often the service may still be asked for the window."""

    @property
    def window(self) -> Window | None:
        """The context window: as configured, or as the service says, which is asked beside the first call."""
        return Window(self._context_window, self._parameters.max_tokens) if self._context_window else None

    async def reply(self, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        """Answer one request. Raises ``ModelError``."""
        client = await self.connect()
        if self._asks_left:
            return await self._beside_asking_for_window(client, request, on_delta)
        return await self._answer(client, request, on_delta)

    async def _answer(self, client: Client, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        encoder: Encoder = request.memory.setdefault(self, Encoder(self._parameters))
        body = encoder.encode(request)
        with trio.move_on_after(self._service.timeout_s):
            try:
                reply = await self._ask(client, body, on_delta)
                model = self.name if any(map(is_signed_thinking, reply.message.blocks)) else ""
                return replace(reply, message=replace(reply.message, model=model), usage=self._priced(reply.usage))
            except RequestRefused as error:
                is_long = isinstance(error, failures.TooLong)
                given = request.overrides.given if error.status in (400, 422) else ()
                if refused := error.names(p for p in given if p == "max_tokens" or not is_long):
                    raise ParameterRefused(str(error), refused) from None
                if isinstance(error, failures.TooLong):
                    self._context_window = self._context_window or error.window
                    return Reply(Message("assistant", ()), TOO_LONG, asked_tokens=error.tokens)
                error.refused = refused_content(error, request, self.name)
                if error.status == 413 and not error.refused and len(body) >= LEAST_TOO_LARGE:
                    return Reply(Message("assistant", ()), TOO_LONG, asked_tokens=len(body) // 4)
                raise
        seconds = f"{self._service.timeout_s:g} s"
        raise ModelError(f"the reply took more than {seconds} (timeout_s of the model)", retryable=True)

    async def _beside_asking_for_window(
        self, client: Client, request: Request, on_delta: Callable[[Delta], None]
    ) -> Reply:
        """Answer a request, and ask the service for the window meanwhile, for no longer than that takes.

        What was cut short is asked with the next request.
        """
        self._asks_left -= 1
        failed: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._ask_window, client)
            try:
                reply = await self._answer(client, request, on_delta)
            except Exception as error:  # noqa: BLE001 - raised below, as it is and not in a group
                failed = error
            nursery.cancel_scope.cancel()
        if failed is not None:
            raise failed
        return reply

    async def _ask_window(self, client: Client) -> None:
        # Whatever goes wrong, the window stays unknown.
        with suppress(failures.BadStatus, failures.Unreached, OSError, ValueError, KeyError, TypeError):
            answer = json.loads(await self._get(client, f"/v1/models/{quote(self.name, safe='')}"))
            tokens = answer["max_input_tokens"]
            if isinstance(tokens, int) and tokens > 0:
                self._context_window = tokens
        self._asks_left = 0

    async def prepare(self) -> None:
        """Build the client ahead of the first call, while somebody is typing. Raises ``ModelError``."""
        await self.connect()

    async def connect(self) -> Client:
        """The client, which is built if there is none yet. Raises ``ModelError``."""
        if self._client is not None:
            return self._client
        return await _THREADS.run(self._build, abandon_on_cancel=True)

    async def check(self) -> ModelCheck:
        """Ask the service whether it accepts the key and has the model."""
        try:
            client = await self.connect()
        except ModelError as error:
            return ModelCheck(False, str(error))
        with trio.move_on_after(CHECK_S):
            return await self._check(client)
        return ModelCheck(None, f"{self._service.label} did not answer within {CHECK_S:g} s")

    async def aclose(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            # Connections are closed also where the chain is cancelled; a server that hangs has a bound.
            with trio.move_on_after(CLOSE_S, shield=True):
                await client.http.aclose()

    def _build(self) -> Client:
        """Build the client, if no other thread has. Runs in a thread, which nobody may be waiting for any more."""
        with _BUILDING:
            if self._client is None:
                try:
                    _import_sdk()
                    self._client = self._new_client()
                except Exception as error:  # noqa: BLE001 - whatever keeps the client from being, the user has to hear
                    raise self._failures.of_building(error) from None
            return self._client

    def _new_client(self) -> Client:
        import ssl

        import anthropic
        import httpx2

        service = self._service
        timeout = httpx2.Timeout(service.idle_timeout_s, connect=min(CONNECT_S, service.idle_timeout_s))
        address = service.base_url or "https://api.anthropic.com"
        # Reading who is trusted takes 25 ms, for nothing where nothing is encrypted; then nobody is.
        verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if address.lower().startswith("http:") else True
        # A redirect could take the conversation, and headers that hold keys, to another host.
        http = anthropic.DefaultAsyncHttpxClient(timeout=timeout, follow_redirects=False, verify=verify)
        sdk = anthropic.AsyncAnthropic(
            # An empty key is a key to the SDK: it does not go on to look for one in the environment.
            api_key=service.api_key or "",
            base_url=address,
            http_client=http,
        )
        # What ANTHROPIC_CUSTOM_HEADERS adds may be a key; there is no argument that keeps it out.
        sdk._custom_headers = {}
        headers = {name.lower(): str(value) for name, value in sdk.default_headers.items()}
        if not service.api_key:
            del headers["authorization"]
        headers |= {name.lower(): value for name, value in service.extra_headers.items()}
        return Client(http, str(sdk.base_url).rstrip("/"), headers, timeout.as_dict())

    async def _ask(self, client: Client, body: bytes, on_delta: Callable[[Delta], None]) -> Reply:
        reader = ReplyReader()
        headers = {"content-type": "application/json", "accept": "text/event-stream"}
        if _SAMPLING.search(body, 0, body.index(b'"messages":[')):
            headers["anthropic-version"] = SAMPLING_VERSION
        try:
            async with self._sent(client, "POST", "/v1/messages", body, headers) as response:
                if "event-stream" not in response.headers.get("content-type", ""):
                    raise ModelError(
                        f"{self._service.label} answered with something else than a stream of events; check base_url"
                    )
                await self._read(response, reader, on_delta)
            return reader.reply()
        except failures.BadStatus as answer:
            raise self._failures.of_status(answer) from None
        except Exception as error:  # noqa: BLE001 - translated, or raised again
            problem = self._failures.of_exception(error, has_begun=reader.has_begun)
            problem.usage = astuple(self._priced(reader.usage))
            raise problem from None
        except BaseException:
            if reader.usage != Usage():
                on_delta(Delta("usage", usage=self._priced(reader.usage)))
            raise

    @asynccontextmanager
    async def _sent(
        self, client: Client, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> AsyncIterator[httpx2.Response]:
        """The response to a request, whose body is read in the block. Raises ``BadStatus`` and ``Unreached``."""
        import httpx2

        request = httpx2.Request(
            method,
            client.base_url + path,
            headers={**client.headers, **headers},
            content=body,
            extensions={"timeout": client.timeout},
        )
        try:
            response = await client.http.send(request, stream=True)
        except Exception as error:
            raise failures.Unreached from error
        try:
            if response.status_code >= 300:
                said = (await _at_most(response, MAX_ERROR_BODY)).decode(errors="replace")
                raise failures.BadStatus(response.status_code, said, failures.retry_after(response.headers))
            yield response
        finally:
            # One that was read to its end is closed already.
            if not response.is_closed:
                # The connection is given back also where the reply is cut; a server that hangs has a bound.
                with trio.move_on_after(CLOSE_S, shield=True):
                    await response.aclose()

    async def _read(self, response: httpx2.Response, reader: ReplyReader, on_delta: Callable[[Delta], None]) -> None:
        """Feed the stream to the reader.

        When that fails, the reading is cancelled: only an exception from the innermost of the SDK's iterators ends them
        all.
        """
        import httpx2

        failure: Exception | None = None
        chunks: AsyncIterable[bytes] = response.aiter_bytes()
        if "content-encoding" not in response.headers and isinstance(response.stream, httpx2.AsyncByteStream):
            # Nothing to decompress: without the decoders each piece passes through three iterators less.
            chunks = response.stream
        with trio.CancelScope() as reading:
            async for chunk in chunks:
                try:
                    for delta in reader.feed(chunk) if failure is None else ():
                        on_delta(delta)
                except Exception as error:  # noqa: BLE001 - raised below
                    failure = error
                    reading.cancel()
        if failure is not None:
            raise failure

    def _priced(self, usage: Usage) -> Usage:
        return usage if self._price is None else replace(usage, cost_usd=round(self._price.of(usage), COST_DIGITS))

    async def _check(self, client: Client) -> ModelCheck:
        where = self._service.label
        try:
            answer = await self._get(client, f"/v1/models/{quote(self.name, safe='')}")
        except failures.BadStatus as bad:
            problem = self._failures.of_status(bad)
            if bad.status in (404, 405):
                return await self._check_list(client, str(problem))
            # A failure that may pass says nothing about the settings.
            return ModelCheck(None if problem.retryable else False, str(problem))
        except Exception as error:  # noqa: BLE001 - translated, or raised again
            # Nor does a connection that was made and lost; where nobody answers, base_url may be wrong.
            problem = self._failures.of_exception(error)
            return ModelCheck(False if failures.never_connected(error) else None, str(problem))
        if answer.lstrip().startswith("<"):
            return ModelCheck(False, f"{where} answered with a page of HTML; check base_url")
        return ModelCheck(True, f"{where} {'takes the key and ' if self._service.api_key else ''}has {self.name}")

    async def _check_list(self, client: Client, problem: str) -> ModelCheck:
        """Look the model up in the list of all, since many servers do not answer for a single one by its name."""
        where = self._service.label
        try:
            listed = json.loads(await self._get(client, "/v1/models?limit=1000"))["data"]
            owners = {str(model["id"]): model.get("owned_by") for model in listed}
        except Exception:  # noqa: BLE001 - whatever it is, there is no list
            return ModelCheck(None, f"{where} does not say which models it has")
        if self.name in owners:
            return ModelCheck(True, f"{where} has {self.name}")
        if not owners or "llamacpp" in owners.values():
            return ModelCheck(None, f"{where} answers for its one model under any name")
        return ModelCheck(False, problem)

    async def _get(self, client: Client, path: str) -> str:
        async with self._sent(client, "GET", path, None, {}) as response:
            return (await _at_most(response, MAX_LIST)).decode(errors="replace")


def _import_sdk() -> None:
    """Import the libraries. A key waits 15 to 30 ms at worst."""
    if "anthropic" in sys.modules:
        return
    with collector_off():
        import anthropic  # noqa: F401
        import httpx2  # noqa: F401


async def _at_most(response: httpx2.Response, limit: int) -> bytes:
    """The body of a response up to a limit in bytes; the rest is not read."""
    found = bytearray()
    async for chunk in response.aiter_bytes():
        found += chunk
        if len(found) >= limit:
            break
    return bytes(found[:limit])
