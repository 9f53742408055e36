"""A service with the Messages API: its address, the parameters of requests, and its prices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from chain.messages import Usage

SERVICE_CONNECT_S = 15.0
"""The timeout of connecting to the service, in seconds."""

REPLY_TIMEOUT_S = 600.0
"""The default time limit of a reply, in seconds. Anthropic's service itself ends a request after ten minutes."""

IDLE_TIMEOUT_S = 120.0
"""The default maximum pause before a part of a reply, in seconds. Slow local servers need minutes for the first."""


@dataclass(frozen=True, slots=True)
class Service:
    """The address of a service, its credentials, and its timeouts in seconds.

    ``base_url`` is ``None`` for Anthropic's own service.
    """

    api_key: str | None = field(default=None, repr=False)
    base_url: str | None = None
    timeout_s: float = REPLY_TIMEOUT_S
    idle_timeout_s: float = IDLE_TIMEOUT_S
    extra_headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def host(self) -> str:
        """The host name and port."""
        return "api.anthropic.com" if self.base_url is None else urlsplit(self.base_url).netloc.rpartition("@")[2]

    @property
    def label(self) -> str:
        """The name of the service in messages: its address without user, password and query, which may be keys."""
        if self.base_url is None:
            return "the Anthropic API"
        url = urlsplit(self.base_url)
        return f"{url.scheme}://{self.host}{url.path}"


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of requests. A parameter that is ``None`` is not sent.

    ``context_window`` is not sent; 0: unknown. ``extra_body`` adds keys to the body. ``system_messages``: the tail is
    sent as system messages. ``adapts_max_tokens``: ``max_tokens`` is a default, lowered to the limit of the service.
    """

    model: str
    max_tokens: int
    temperature: float | None = None
    effort: str | None = None
    thinking: Mapping[str, Any] | None = None
    stop_sequences: tuple[str, ...] = ()
    system_messages: bool = False
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    context_window: int = 0
    adapts_max_tokens: bool = False


@dataclass(frozen=True, slots=True)
class Price:
    """The prices of tokens, in US dollars per million."""

    input: float
    output: float
    cache_read: float
    cache_write: float
    as_of: str = ""
    """The date of the prices, as it is written in the configuration."""

    def of(self, usage: Usage) -> float:
        """Return the price of the tokens in ``usage``, in US dollars."""
        return (
            usage.input_tokens * self.input
            + usage.output_tokens * self.output
            + usage.cache_read_tokens * self.cache_read
            + usage.cache_write_tokens * self.cache_write
        ) / 1e6
