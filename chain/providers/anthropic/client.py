"""The Anthropic Messages API as a ``Model``: the only importer of ``anthropic``.

The SDK brings the connection, the authentication and its headers. What it would do with the messages is done here
instead: it walks through the whole history at every call and builds an object for every event, which at 500 iterations
is most of the CPU time of an iteration. So the body is encoded in ``encoding``, sent by the SDK's own HTTP client, and
the stream is read in ``stream``.

Nothing is retried here, since the executor's retries are the only ones. The environment is not looked at: keys, address
and headers come from the configuration or not at all (only proxies are taken from ``HTTPS_PROXY`` and the like).

Importing ``anthropic`` takes a second, so the client is built in a thread, by ``prepare`` or else by the first call. A
call that is cancelled meanwhile does not wait for that thread, which goes on; whoever comes next waits for it.
"""

from __future__ import annotations

import email.utils
import gc
import json
import math
import re
import sys
import threading
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, urlsplit

import trio

from chain.errors import ModelError, ParameterRefused
from chain.messages import Message, Usage
from chain.model import Delta, Reply, Request
from chain.providers.anthropic.encoding import Encoder, Parameters, set_parameters
from chain.providers.anthropic.stream import BrokenStream, ReplyReader, ServiceError
from chain.threads import Threads

if TYPE_CHECKING:
    import httpx2

_THREADS = Threads("clients")

CONNECT_S = 15.0
"""Seconds to reach the service; a machine without a network says so sooner than a person gives up."""

_BUILDING = threading.Lock()
"""Held by the thread that builds a client: of two at once, the second would import with the first one's collector."""

CLOSE_S = 1.0
LOOK_S = 30.0
MAX_ERROR_BODY = 64 * 1024
MAX_LIST = 4 * 1024 * 1024
"""Bytes of a list of models that are read."""
MAX_SAID = 500
"""Characters of what a service says that are passed on: enough for every message of the API."""
SHORTEST_SECRET = 4
"""Characters: a header's value that is shorter is a number or a flag."""

SAMPLING_VERSION = "2023-06-01"
"""The API version of a request that sets ``temperature``: later ones know no such parameter, whatever the model."""

_SAMPLING = re.compile(rb'"(temperature|top_p|top_k)":')
_TOO_LONG = re.compile(r"prompt is too long|exceed context limit|context (length|size)", re.IGNORECASE)
"""How Anthropic's service and the compatible ones say it: there is no error code for it."""


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars per million tokens."""

    input: float
    output: float
    cache_read: float
    cache_write: float

    def of(self, usage: Usage) -> float:
        """What this many tokens cost."""
        return (
            usage.input_tokens * self.input
            + usage.output_tokens * self.output
            + usage.cache_read_tokens * self.cache_read
            + usage.cache_write_tokens * self.cache_write
        ) / 1e6


@dataclass(frozen=True, slots=True)
class Service:
    """Where the model is and how long to wait for it, in seconds. Without ``base_url`` it is Anthropic's own."""

    api_key: str | None = field(default=None, repr=False)
    base_url: str | None = None
    timeout_s: float = 600.0
    idle_timeout_s: float = 120.0
    extra_headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Client:
    """What each request takes from the SDK, taken once: the headers of an ``AsyncAnthropic`` and its HTTP client."""

    http: httpx2.AsyncClient = field(repr=False)
    base_url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    timeout: dict[str, float | None]

    def request(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> httpx2.Request:
        """One request to the service."""
        import httpx2

        return httpx2.Request(
            method,
            self.base_url + path,
            headers={**self.headers, **headers},
            content=body,
            extensions={"timeout": self.timeout},
        )


@dataclass(frozen=True, slots=True)
class Finding:
    """What asking a service came to; ``is_good`` of ``None``: whether the settings are good cannot be known."""

    is_good: bool | None
    message: str


class AnthropicModel:
    """A ``Model`` that asks a server which speaks ``/v1/messages``."""

    def __init__(self, parameters: Parameters, service: Service, price: Price | None = None) -> None:
        self._parameters = parameters
        self._service = service
        self._price = price
        self._client: Client | None = None
        self._secrets = _secrets(parameters, service)

    @property
    def name(self) -> str:
        """What the service calls the model."""
        return self._parameters.model

    async def reply(self, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        """Answer one request. Raises ``ModelError``."""
        client = await self.connect()
        encoder: Encoder = request.memory.setdefault(self, Encoder(self._parameters))
        body = encoder.encode(request)
        with trio.move_on_after(self._service.timeout_s):
            try:
                return self._priced(await self._ask(client, body, on_delta))
            except _TooLong as error:
                if refused := error.names([p for p in set_parameters(request.overrides) if p == "max_tokens"]):
                    raise ParameterRefused(str(error), refused) from None
                return Reply(Message("assistant", ()), "model_context_window_exceeded")
            except _BadRequest as error:
                refused = error.names(set_parameters(request.overrides))
                if refused:
                    raise ParameterRefused(str(error), refused) from None
                raise
        seconds = f"{self._service.timeout_s:g} s"
        raise ModelError(f"the reply took more than {seconds} (timeout_s of the model)", retryable=True)

    async def prepare(self) -> None:
        """Build the client ahead of the first call, while somebody is typing. Raises ``ModelError``."""
        await self.connect()

    async def connect(self) -> Client:
        """The client, which is built if there is none yet. Raises ``ModelError``."""
        if self._client is not None:
            return self._client
        return await _THREADS.run(self._build, abandon_on_cancel=True)

    async def look(self) -> Finding:
        """Ask the service whether it takes the key and has the model."""
        try:
            client = await self.connect()
        except ModelError as error:
            return Finding(False, str(error))
        with trio.move_on_after(LOOK_S):
            return await self._look(client)
        return Finding(None, f"{self._where} did not answer within {LOOK_S:g} s")

    async def aclose(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            with trio.move_on_after(CLOSE_S, shield=True):
                await client.http.aclose()

    # ------------------------------------------------------------------------------------------------- inside

    async def _look(self, client: Client) -> Finding:
        try:
            answer = await self._get(client, f"/v1/models/{quote(self.name, safe='')}")
        except _Refusal as refusal:
            problem = self._status_error(refusal)
            if refusal.status in (404, 405):
                return await self._look_among_all(client, str(problem))
            # What may pass says nothing about the settings.
            return Finding(None if problem.retryable else False, str(problem))
        except Exception as error:  # noqa: BLE001 - translated, or raised again
            # Nor does a connection that was made and lost; where nobody is, base_url may be wrong.
            return Finding(False if _is_nowhere(error) else None, str(self._translated(error)))
        if answer.lstrip().startswith("<"):
            return Finding(False, f"{self._where} answered with a page of HTML; check base_url")
        return Finding(True, f"{self._where} {'takes the key and ' if self._service.api_key else ''}has {self.name}")

    async def _look_among_all(self, client: Client, problem: str) -> Finding:
        """Look for the model in the list of all, since many servers answer for none by its name."""
        try:
            listed = json.loads(await self._get(client, "/v1/models?limit=1000"))["data"]
            owners = {str(model["id"]): model.get("owned_by") for model in listed}
        except Exception:  # noqa: BLE001 - whatever it is, there is no list
            return Finding(None, f"{self._where} does not say which models it has")
        if self.name in owners:
            return Finding(True, f"{self._where} has {self.name}")
        if not owners or "llamacpp" in owners.values():
            return Finding(None, f"{self._where} answers for its one model under any name")
        return Finding(False, problem)

    async def _get(self, client: Client, path: str) -> str:
        async with self._sent(client, client.request("GET", path, None, {})) as response:
            return (await _at_most(response, MAX_LIST)).decode(errors="replace")

    def _build(self) -> Client:
        """Build the client, if no other thread has. Runs in a thread of its own, which nobody may be waiting for."""
        with _BUILDING:
            if self._client is None:
                try:
                    _import_sdk()
                    self._client = self._new_client()
                except Exception as error:  # noqa: BLE001 - whatever keeps the client from being, the user has to hear
                    why = f"{type(error).__name__}: {self._words(error)}"
                    raise ModelError(
                        f"the client for {self._where} cannot be made ({why}); check the installation of anthropic, "
                        "base_url, and the certificates and proxies of the environment"
                    ) from None
            return self._client

    def _new_client(self) -> Client:
        import anthropic
        import httpx2

        service = self._service
        timeout = httpx2.Timeout(service.idle_timeout_s, connect=min(CONNECT_S, service.idle_timeout_s))
        # A redirect could take the conversation, and headers that hold keys, to another host.
        http = anthropic.DefaultAsyncHttpxClient(timeout=timeout, follow_redirects=False)
        sdk = anthropic.AsyncAnthropic(
            # An empty key is a key to the SDK: it does not go on to look for one in the environment.
            api_key=service.api_key or "",
            base_url=service.base_url or "https://api.anthropic.com",
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
            async with self._sent(client, client.request("POST", "/v1/messages", body, headers)) as response:
                if "event-stream" not in response.headers.get("content-type", ""):
                    raise ModelError(
                        f"{self._where} answered with something else than a stream of events; check base_url"
                    )
                await self._read(response, reader, on_delta)
            return reader.reply()
        except _Refusal as refusal:
            raise self._status_error(refusal) from None
        except ServiceError as error:
            said = self._shown(error.said)
            raise (_TooLong(said, said) if _TOO_LONG.search(said) else ServiceError(error.kind, said)) from None
        except ModelError as error:
            error.args = (self._shown(str(error)),)
            error.usage = self._used(reader)
            raise
        except Exception as error:  # noqa: BLE001 - translated, or raised again
            problem = self._translated(error)
            problem.usage = self._used(reader)
            raise problem from None

    @asynccontextmanager
    async def _sent(self, client: Client, request: httpx2.Request) -> AsyncIterator[httpx2.Response]:
        """The response to a request, whose body is read in the block. Raises ``_Refusal`` and ``_Unreached``."""
        try:
            response = await client.http.send(request, stream=True)
        except Exception as error:
            raise _Unreached from error
        try:
            if response.status_code >= 300:
                said = (await _at_most(response, MAX_ERROR_BODY)).decode(errors="replace")
                raise _Refusal(response.status_code, said, _retry_after(response.headers))
            yield response
        finally:
            # One that was read to its end is closed already.
            if not response.is_closed:
                with trio.move_on_after(CLOSE_S, shield=True):
                    await response.aclose()

    async def _read(self, response: httpx2.Response, reader: ReplyReader, on_delta: Callable[[Delta], None]) -> None:
        """Feed the stream to the reader.

        The SDK's iterators stand in each other, and the inner ones are left open when the outermost is closed. Only an
        exception from the innermost ends them all, so when the reader fails, the reading is cancelled first.
        """
        import httpx2

        failure: Exception | None = None
        chunks: AsyncIterable[bytes] = response.aiter_bytes()
        if "content-encoding" not in response.headers and isinstance(response.stream, httpx2.AsyncByteStream):
            # Without what undoes a compression, each piece passes through three iterators less.
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

    def _used(self, reader: ReplyReader) -> tuple[int, int, int, int, float | None]:
        """What a call that failed had used by then."""
        usage = reader.usage
        cost = None if self._price is None else self._price.of(usage)
        return (usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens, cost)

    def _priced(self, reply: Reply) -> Reply:
        if self._price is None:
            return reply
        return replace(reply, usage=replace(reply.usage, cost_usd=self._price.of(reply.usage)))

    def _translated(self, error: Exception) -> ModelError:
        """The HTTP client's exception as ours; any other is our bug and raised as it is."""
        import httpx2

        match error:
            case _Unreached(__cause__=httpx2.ConnectTimeout()):
                why = f"{self._where} cannot be reached (no answer for {CONNECT_S:g} s); check the network and base_url"
                return ModelError(why, retryable=True)
            case _Unreached(__cause__=httpx2.TimeoutException()) | httpx2.TimeoutException():
                seconds = f"{self._service.idle_timeout_s:g} s"
                return ModelError(f"{self._where} sent nothing for {seconds} (idle_timeout_s)", retryable=True)
            case _Unreached():
                cause = error.__cause__ or error
                return ModelError(
                    f"{self._where} cannot be reached ({self._words(cause)}); check the network and base_url",
                    retryable=True,
                )
            case httpx2.InvalidURL():
                return ModelError(f"{self._where} is no address; correct base_url")
            case httpx2.TransportError() | httpx2.StreamError() | httpx2.DecodingError():
                return BrokenStream(f"the connection to {self._where} was lost ({self._words(error)})")
            case _:
                raise error

    def _status_error(self, refusal: _Refusal) -> ModelError:
        status, retry_after = refusal.status, refusal.retry_after
        said = self._shown(_said(refusal.body))
        match status:
            case 400 if _TOO_LONG.search(said):
                return _TooLong(said, said)
            case 400 | 422:
                return _BadRequest(f"{self._where} refused the request: {said}; check the model's settings", said)
            case _ if 300 <= status < 400:
                return ModelError(
                    f"{self._where} redirects to another address, which is not followed; correct base_url"
                )
            case 401:
                return ModelError(f"{self._where} did not take the API key: {said}; check api_key of the model")
            case 403:
                return ModelError(
                    f"the API key may not use {self.name} at {self._where}: {said}; use another key or model"
                )
            case 404:
                return ModelError(f"{self._where} does not know {self.name}: {said}; check model and base_url")
            case 413:
                return ModelError(f"the request is too large for {self._where}: {said}; /new starts afresh")
            case 429:
                why = f"{self._where} wants fewer requests: {said}; wait, or ask for a higher limit"
                return ModelError(why, retryable=True, retry_after=retry_after)
            case 529:
                why = f"{self._where} is overloaded: {said}; try again later"
                return ModelError(why, retryable=True, retry_after=retry_after)
            case _ if status >= 500 or status in (408, 409):
                why = f"{self._where} failed with {status}: {said}; try again later"
                return ModelError(why, retryable=True, retry_after=retry_after)
            case _:
                return ModelError(f"{self._where} answered {status}: {said}; check base_url")

    @property
    def _where(self) -> str:
        if self._service.base_url is None:
            return "the Anthropic API"
        # Without user, password and query, any of which may be a key.
        url = urlsplit(self._service.base_url)
        return f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}"

    def _words(self, error: BaseException) -> str:
        return self._shown(str(error)) or type(error).__name__

    def _shown(self, text: str) -> str:
        """The text, short, without the key and the headers' values, which a service may repeat in what it says."""
        for secret in self._secrets:
            text = text.replace(secret, "…")
        return " ".join(text.split())[:MAX_SAID]


class _Unreached(Exception):
    """The service sent no response; the cause says why."""


@dataclass
class _Refusal(Exception):
    """The service answered with another status than success."""

    status: int
    body: str = field(repr=False)
    retry_after: float | None


class _Refused(ModelError):
    """The service refused the request; ``said`` are its own words."""

    def __init__(self, message: str, said: str) -> None:
        super().__init__(message)
        self.said = said

    def names(self, parameters: Iterable[str]) -> list[str]:
        """Those of the parameters that the service speaks of; one inside a path, such as a tool's, is another."""
        return [p for p in parameters if re.search(rf"(?<![\w.]){p}(?!\w)", self.said)]


class _BadRequest(_Refused):
    """The service found the request wrong."""


class _TooLong(_Refused):
    """The conversation is longer than the model's context."""


def _import_sdk() -> None:
    """Import the libraries so that somebody who types meanwhile notices nothing.

    The import makes a hundred thousand objects. Looking through them again and again stops every thread for up to
    80 ms at a time; without the collector a key waits 15 to 30 ms at worst. What was imported stays, so it is frozen.
    """
    if "anthropic" in sys.modules:
        return
    was_on = gc.isenabled()
    gc.disable()
    try:
        import anthropic  # noqa: F401
        import httpx2  # noqa: F401

        # First frozen, then on: the other way round the collector begins with all of it.
        gc.freeze()
    finally:
        if was_on:
            gc.enable()


def _secrets(parameters: Parameters, service: Service) -> list[str]:
    """What must not be shown though a service may repeat it, the longest first so that none hides in another."""
    url = urlsplit(service.base_url or "")
    found = {
        service.api_key or "",
        url.username or "",
        url.password or "",
        *(value for _, value in parse_qsl(url.query)),
    }
    for value in service.extra_headers.values():
        found |= {value, *value.split()}
    found |= set(_leaves(parameters.extra_body))
    return sorted((secret for secret in found if len(secret) >= SHORTEST_SECRET), key=len, reverse=True)


def _leaves(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _leaves(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _leaves(inner)


def _is_nowhere(error: Exception) -> bool:
    """Whether no connection was made at all."""
    import httpx2

    cause = error.__cause__ if isinstance(error, _Unreached) else error
    return not isinstance(cause, httpx2.ReadError | httpx2.ReadTimeout | httpx2.RemoteProtocolError)


def _said(body: str) -> str:
    """What the service said; of a page of HTML only that it is one."""
    try:
        found = json.loads(body)["error"]["message"]
    except (ValueError, TypeError, LookupError, RecursionError):
        found = None
    if found and isinstance(found, str):
        return found
    if body.lstrip().startswith("<"):
        return "a page of HTML, so a proxy or another server answered"
    return body.strip() or "nothing more"


async def _at_most(response: httpx2.Response, limit: int) -> bytes:
    """The body of a response up to a limit in bytes; the rest is not read."""
    found = bytearray()
    async for chunk in response.aiter_bytes():
        found += chunk
        if len(found) >= limit:
            break
    return bytes(found[:limit])


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """The header in seconds: it may be a number or a date (RFC 9110, section 10.2.3)."""
    value = headers.get("retry-after", "").strip()
    try:
        seconds = float(value)
        return max(0.0, seconds) if math.isfinite(seconds) else None
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError, OSError):
        return None
