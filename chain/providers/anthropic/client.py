"""The Anthropic Messages API as a ``Model``.

``encoding`` encodes a request, ``connection`` sends it, and ``stream`` parses the reply. Requests are not retried here,
with one exception: if the service refuses a default ``max_tokens``, the request is sent again with a lower one. Keys,
address and headers come only from the configuration, and proxies from environment variables such as ``HTTPS_PROXY``.
Building the client takes 0.1 s, so ``prepare`` or the first call does it in a thread. A call that is cancelled
meanwhile does not wait for the thread.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import AsyncIterable, Callable
from contextlib import suppress
from dataclasses import astuple, replace
from typing import TYPE_CHECKING
from urllib.parse import quote

import trio

from chain.concurrency.threads import Threads
from chain.errors import ModelError, ParameterRefused
from chain.messages import COST_DIGITS, TOO_LONG, Message, Usage, is_signed_thinking
from chain.model import Delta, Reply, Request, Window
from chain.providers.anthropic import failures
from chain.providers.anthropic.connection import Client, new_client
from chain.providers.anthropic.encoding import Encoder
from chain.providers.anthropic.refusals import refused_content
from chain.providers.anthropic.service import Parameters, Price, Service
from chain.providers.anthropic.stream import ReplyReader, RequestRefused

if TYPE_CHECKING:
    import httpx2

_THREADS = Threads("clients")

LEAST_TOO_LARGE = 64 * 1024
"""The minimum size, in bytes, of a request to compact after a status 413. Compacting less would not help."""
MAX_MODEL = 64 * 1024
"""The maximum number of bytes that are read of a service's description of a model."""

MAX_WINDOW_REQUESTS = 3
"""The maximum number of requests for the context window. Each model call sends one until the service answers."""

REPLY_SHARE = 4
"""A default ``max_tokens`` is at most the window divided by this number: some servers add it to the prompt's size."""

SAFE_MAX_TOKENS = 8192
"""A value of ``max_tokens`` that nearly every model allows."""

SAMPLING_VERSION = "2023-06-01"
"""The API version of a request with a sampling parameter, such as ``temperature``. Later versions accept none."""

_SAMPLING = re.compile(rb'"(temperature|top_p|top_k)":')


class AnthropicModel:
    """A ``Model`` behind a server with the endpoint ``/v1/messages``."""

    def __init__(self, parameters: Parameters, service: Service, price: Price | None = None) -> None:
        self.name = parameters.model
        self._parameters = parameters
        self._service = service
        self._price = price
        self._failures = failures.Failures(parameters, service)
        self._client: Client | None = None
        self._building = threading.Lock()
        self._context_window = parameters.context_window
        self._window_requests_left = (
            MAX_WINDOW_REQUESTS if parameters.adapts_max_tokens or not parameters.context_window else 0
        )
        """The number of requests for the model's limits (context window, longest reply) that may still be sent."""
        self._use_window(parameters.context_window)

    @property
    def window(self) -> Window | None:
        """The context window, from the configuration or from the service; ``None`` while it is unknown."""
        return Window(self._context_window, self._parameters.max_tokens) if self._context_window else None

    async def reply(self, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        """Send one request and return the reply. Raise ``ModelError`` if the call failed."""
        client = await self.connect()
        if self._window_requests_left:
            return await self._answer_and_request_window(client, request, on_delta)
        return await self._answer(client, request, on_delta)

    async def _answer(self, client: Client, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        encoder: Encoder = request.memory.setdefault(self, Encoder(self._parameters))
        encoder.parameters = self._parameters
        sent = self._parameters.max_tokens
        body = encoder.encode(request)
        with trio.move_on_after(self._service.timeout_s):
            try:
                reply = await self._send(client, body, on_delta)
                model = self.name if any(map(is_signed_thinking, reply.message.blocks)) else ""
                return replace(reply, message=replace(reply.message, model=model), usage=self._with_price(reply.usage))
            except RequestRefused as error:
                if request.overrides.max_tokens is None and await self._lower_max_tokens(client, error, sent):
                    return await self._answer(client, request, on_delta)
                is_long = isinstance(error, failures.TooLong)
                given = request.overrides.values if error.status in (400, 422) else ()
                if refused := error.find_mentioned(p for p in given if p == "max_tokens" or not is_long):
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

    async def _answer_and_request_window(
        self, client: Client, request: Request, on_delta: Callable[[Delta], None]
    ) -> Reply:
        """Return the reply to a request, and ask the service for the context window at the same time.

        If the reply is complete first, cancel the request for the window. The next call repeats that request.
        """
        self._window_requests_left -= 1
        failed: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._request_window, client)
            try:
                reply = await self._answer(client, request, on_delta)
            except Exception as error:  # noqa: BLE001 - raised below, outside of the group
                failed = error
            nursery.cancel_scope.cancel()
        if failed is not None:
            raise failed
        return reply

    async def _request_window(self, client: Client) -> None:
        with suppress(Exception):  # after any error the window stays unknown
            answer = json.loads(await client.get(f"/v1/models/{quote(self.name, safe='')}", MAX_MODEL))
            longest, tokens = answer.get("max_tokens"), answer.get("max_input_tokens")
            if isinstance(longest, int) and longest > 0:
                self._limit_max_tokens(longest)
            if isinstance(tokens, int) and tokens > 0:
                self._use_window(tokens)
        self._window_requests_left = 0

    def _use_window(self, tokens: int) -> None:
        """Store the size of the context window in tokens, unless one is already stored.

        Lower a default ``max_tokens`` to its share of the window (``REPLY_SHARE``).
        """
        self._context_window = self._context_window or tokens
        if self._context_window:
            self._limit_max_tokens(max(self._context_window // REPLY_SHARE, 1))

    def _limit_max_tokens(self, longest: int) -> None:
        if self._parameters.adapts_max_tokens and longest < self._parameters.max_tokens:
            self._parameters = replace(self._parameters, max_tokens=longest)

    async def _lower_max_tokens(self, client: Client, error: RequestRefused, sent: int) -> bool:
        """Lower a default ``max_tokens`` that a service may have refused. Return whether the result is below ``sent``.

        ``sent`` is the value in the refused request. The new value is the limit that the service reports for the
        model, or ``SAFE_MAX_TOKENS``.
        """
        if not self._parameters.adapts_max_tokens or error.status not in (400, 413, 422):
            return False
        if isinstance(error, failures.TooLong):
            self._use_window(error.window)
        elif "max_tokens" in str(error):
            if self._window_requests_left:
                await self._request_window(client)
            if self._parameters.max_tokens == sent:
                self._limit_max_tokens(SAFE_MAX_TOKENS)
        else:
            return False
        return self._parameters.max_tokens < sent

    async def prepare(self) -> None:
        """Build the client before the first call, while the user is typing. Raise ``ModelError`` like ``connect``."""
        await self.connect()

    async def connect(self) -> Client:
        """Return the client. If there is none, build one. Raise ``ModelError`` if it cannot be built."""
        if self._client is not None:
            return self._client
        return await _THREADS.run(self._build, abandon_on_cancel=True)

    async def aclose(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _build(self) -> Client:
        """Return the client, and build it if there is none. Runs in a thread. Raise ``ModelError`` if this fails."""
        with self._building:  # no second build while an abandoned thread still builds
            if self._client is None:
                try:
                    self._client = new_client(self._service)
                except Exception as error:  # noqa: BLE001 - reported to the user
                    raise self._failures.building_error(error) from None
            return self._client

    async def _send(self, client: Client, body: bytes, on_delta: Callable[[Delta], None]) -> Reply:
        reader = ReplyReader()
        headers = {"content-type": "application/json", "accept": "text/event-stream"}
        if _SAMPLING.search(body, 0, body.index(b'"messages":[')):
            headers["anthropic-version"] = SAMPLING_VERSION
        try:
            async with client.response("POST", "/v1/messages", body, headers) as response:
                if "event-stream" not in response.headers.get("content-type", ""):
                    raise ModelError(f"{self._service.label} did not answer with a stream of events; check base_url")
                await self._read(response, reader, on_delta)
            return reader.reply()
        except failures.BadStatus as answer:
            raise self._failures.status_error(answer) from None
        except Exception as error:  # noqa: BLE001 - translated, or raised again
            problem = self._failures.translate(error, has_begun=reader.has_begun)
            problem.usage = astuple(self._with_price(reader.usage))
            raise problem from None
        except BaseException:
            if reader.usage != Usage():
                on_delta(Delta("usage", usage=self._with_price(reader.usage)))
            raise

    async def _read(self, response: httpx2.Response, reader: ReplyReader, on_delta: Callable[[Delta], None]) -> None:
        """Pass the stream to the reader, and the reader's deltas to ``on_delta``.

        If the reader raises an error, cancel the reading before the error is raised again: only a cancellation closes
        all iterators of the HTTP client cleanly.
        """
        import httpx2

        failure: Exception | None = None
        chunks: AsyncIterable[bytes] = response.aiter_bytes()
        if "content-encoding" not in response.headers and isinstance(response.stream, httpx2.AsyncByteStream):
            # Nothing to decompress: skip the three iterators of the decoders.
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

    def _with_price(self, usage: Usage) -> Usage:
        return usage if self._price is None else replace(usage, cost_usd=round(self._price.of(usage), COST_DIGITS))
