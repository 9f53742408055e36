"""Translates errors of a service to ``ModelError``: HTTP statuses, error events, exceptions of the HTTP client.

An error message says what happened and what to do. It quotes the service if that helps. Secrets are removed from
quotes, because a service may repeat a key, and a proxy may repeat headers.
"""

from __future__ import annotations

import email.utils
import json
import math
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlsplit

from chain.errors import ModelError
from chain.providers.anthropic.service import SERVICE_CONNECT_S, Parameters, Service
from chain.providers.anthropic.stream import BrokenStream, RequestRefused, ServiceError

MAX_QUOTED = 500
"""The maximum number of characters of a quote: enough for every message of the API."""

SHORTEST_SECRET = 4
"""The minimum number of characters of a value that is redacted. Shorter values are numbers or flags."""

_TOO_LONG = re.compile(
    r"prompt is too long|input is too long for requested model|longer than the maximum model length"
    r"|(exceed(s|ed)?|greater than) ((the|your|this|a|model's|available|maximum|configured|allowed) )*"
    r"context.(limit|length|size|window)|context.(limit|length|size|window)( is| was)?.exceed|maximum context length"
    r"|context length of only|exceeded model token limit|prompt exceeds max length|maximum prompt length is",
    re.IGNORECASE,
)
"""Matches the messages by which services refuse a request that is too long. There is no error code for it."""

_REPLY_TOO_LONG = re.compile(r"max_(completion_)?tokens\W.{0,20}is too large", re.IGNORECASE)
"""Matches the messages of services whose limit for a reply is lower than ``max_tokens``."""

_COUNTS = tuple(
    map(
        re.compile,
        (
            r"(?P<tokens>\d+) tokens? > (?P<window>\d+) maximum",  # Anthropic
            r"context limit: (?P<tokens>\d+) \+ \d+ > (?P<window>\d+)",  # Anthropic, with max_tokens
            r"\((?P<tokens>\d+) tokens?\) exceeds the available context size \((?P<window>\d+)",  # llama.cpp
            r"maximum context length is (?P<window>\d+) tokens.*(requested|request has|in)( about)? (?P<tokens>\d+)",
            r"length (?P<tokens>\d+)\) is longer than the maximum model length of (?P<window>\d+)",  # both vLLM
        ),
    )
)
"""Find the sizes of the request and of the window, in tokens, in messages that match ``_TOO_LONG``."""


class Unreached(Exception):
    """A request that got no response. The cause of the exception says why."""


@dataclass
class BadStatus(Exception):
    """A response with an HTTP status other than success. ``retry_after`` is in seconds."""

    status: int
    body: str = field(repr=False)
    retry_after: float | None


class TooLong(RequestRefused):
    """A request that does not fit into the model's context window."""

    def __init__(self, message: str, said: str) -> None:
        super().__init__(message, said)
        found = next(filter(None, (pattern.search(said.replace(",", "")) for pattern in _COUNTS)), None)
        self.tokens = int(found["tokens"]) if found else 0
        """The size of the request in tokens; 0 if the service does not report it."""
        self.window = int(found["window"]) if found else 0
        """The size of the context window in tokens; 0 if the service does not report it."""


class Failures:
    """A translator of a service's errors to ``ModelError``."""

    def __init__(self, parameters: Parameters, service: Service) -> None:
        self._model = parameters.model
        self._service = service
        self._secrets = _secrets(parameters, service)

    def status_error(self, answer: BadStatus) -> ModelError:
        """Return the error for an HTTP status (https://docs.anthropic.com/en/api/errors)."""
        where, status, cause = self._service.label, answer.status, f"failed with {answer.status}"
        said = self.redact(_error_text(answer.body))
        match status:
            case 400 | 413 if _TOO_LONG.search(said):
                too_long = TooLong(said, said)
                if not _REPLY_TOO_LONG.search(said) or too_long.tokens > too_long.window // 2:
                    return too_long
                return RequestRefused(f"{where} refused the request: {said}; lower max_tokens of the model", said)
            case 400 | 422:
                why = f"{where} refused the request: {said}; check the model's settings"
            case _ if 300 <= status < 400:
                why = f"{where} redirects to another address, which is not followed; correct base_url"
            case 401:
                why = f"{where} rejected the API key: {said}; check api_key of the model"
            case 403:
                why = f"the API key may not use {self._model} at {where}: {said}; use another key or model"
            case 404:
                why = f"{where} does not know {self._model}: {said}; check model and base_url"
            case 413:
                why = f"the request is too large for {where}: {said}; /new starts a new conversation"
            case 429:
                cause = "rate limited"
                why = f"{where} limits the rate of requests: {said}; wait, or get a higher limit"
            case 529:
                cause, why = "overloaded", f"{where} is overloaded: {said}; try again later"
            case _ if status >= 500 or status in (408, 409):
                why = f"{where} failed with {status}: {said}; try again later"
            case _:
                why = f"{where} answered {status}: {said}; check base_url"
        failed = RequestRefused(why, said, status)
        if status >= 500 or status in (408, 409, 429):
            failed.retryable, failed.retry_after, failed.cause = True, answer.retry_after, cause
        return failed

    def translate(self, error: Exception, *, has_begun: bool = False) -> ModelError:
        """Return the error for an exception of the stream or the HTTP client. Raise any other exception again.

        ``has_begun`` says whether a part of the reply was received.
        """
        import httpx2

        where, host = self._service.label, self._service.host
        match error:
            case ServiceError():
                said = self.redact(error.said)
                return TooLong(said, said) if _TOO_LONG.search(said) else ServiceError(error.kind, said)
            case ModelError():
                error.args = (self.redact(str(error)),)
                return error
            case Unreached(__cause__=httpx2.ConnectTimeout()):
                return self._unreached_error(f"no answer for {SERVICE_CONNECT_S:g} s")
            case Unreached(__cause__=httpx2.TimeoutException()) | httpx2.TimeoutException():
                why = f"{where} sent nothing for {self._service.idle_timeout_s:g} s (idle_timeout_s)"
                return ModelError(why, retryable=True, cause="" if has_begun else f"no answer from {host}")
            case Unreached():
                return self._unreached_error(self._message_of(error.__cause__ or error))
            case httpx2.InvalidURL():
                return ModelError(f"{where} is not an address; correct base_url")
            case httpx2.TransportError() | httpx2.StreamError() | httpx2.DecodingError():
                lost = BrokenStream(f"the connection to {where} was lost ({self._message_of(error)})")
                lost.cause = "" if has_begun else f"no connection to {host}"
                return lost
            case _:
                raise error

    def _unreached_error(self, said: str) -> ModelError:
        why = f"{self._service.label} cannot be reached ({said}); check the network and base_url"
        return ModelError(why, retryable=True, cause=f"no connection to {self._service.host}")

    def building_error(self, error: Exception) -> ModelError:
        """Return the error for a client that could not be built."""
        return ModelError(
            f"the client for {self._service.label} cannot be created "
            f"({type(error).__name__}: {self._message_of(error)}); "
            "check the installation, base_url, and the certificates and proxies of the environment"
        )

    def redact(self, text: str) -> str:
        """Return the text on one row, truncated, without the key and other secrets of the settings."""
        for secret in self._secrets:
            text = text.replace(secret, "…")
        return " ".join(text.split())[:MAX_QUOTED]

    def _message_of(self, error: BaseException) -> str:
        return self.redact(str(error)) or type(error).__name__


def is_connect_failure(error: Exception) -> bool:
    """Return whether an exception was raised before there was a connection, so that the address may be wrong."""
    import httpx2

    cause = error.__cause__ if isinstance(error, Unreached) else error
    return not isinstance(cause, httpx2.ReadError | httpx2.ReadTimeout | httpx2.RemoteProtocolError)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the pause in the header ``retry-after`` (RFC 9110) in seconds; ``None`` without a valid header."""
    value = headers.get("retry-after", "").strip()
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError, OSError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _error_text(body: str) -> str:
    """Return the error message in the body of a response. For an HTML page, return only a note."""
    try:
        found = json.loads(body)["error"]["message"]
    except (ValueError, TypeError, LookupError, RecursionError):
        found = None
    if found and isinstance(found, str):
        return found
    if body.lstrip().startswith("<"):
        return "an HTML page, so a proxy or another server answered"
    return body.strip() or "nothing more"


def _secrets(parameters: Parameters, service: Service) -> list[str]:
    """Return the keys and passwords to redact, longest first, because one may contain another."""
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
    """Yield the strings in a JSON value at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(inner)
