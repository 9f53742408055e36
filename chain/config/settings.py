"""Frozen settings for models, chains and agents, with their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from chain.errors import ConfigError

MAX_TOKENS = 8192
"""Long enough for a long answer with a file in it, short enough to stream well within ``TIMEOUT_S``."""
TIMEOUT_S = 600.0
"""For a whole reply. The service ends a request after ten minutes itself."""
IDLE_TIMEOUT_S = 120.0
"""Between two pieces of a reply. The service sends a ping every few seconds; a local server on a slow machine needs a
minute or two for the prompt before its first word."""
MAX_ATTEMPTS = 4
"""With exponential backoff: outlasts a rate limit of some seconds, and the user still waits less than a minute."""

KEY_VARIABLE = "ANTHROPIC_API_KEY"
"""Holds the key of a definition that names neither a key nor an address."""

Provider = Literal["anthropic", "scripted"]


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars per million tokens."""

    input: float
    output: float
    cache_read: float
    cache_write: float


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """A model's definition, filled in. ``name`` is the definition's, ``model`` is what the service calls it.

    ``within`` is a folder that the script must be in whenever it is read, ``named_at`` the file and line that name it,
    ``thinking`` is as the API defines it,
    ``key_variable`` is the environment variable that the key is expected in. ``None`` is for what is not set; an
    ``api_key`` that is not set must not be looked for anywhere else.
    """

    name: str
    provider: Provider
    model: str
    script: Path | None = None
    within: Path | None = None
    named_at: tuple[str, int] | None = field(default=None, repr=False, compare=False)
    api_key: str | None = field(default=None, repr=False)
    key_variable: str = KEY_VARIABLE
    base_url: str | None = field(default=None, repr=False)
    max_tokens: int = MAX_TOKENS
    effort: str | None = None
    temperature: float | None = None
    thinking: Mapping[str, Any] | None = None
    stop_sequences: tuple[str, ...] = ()
    timeout_s: float = TIMEOUT_S
    idle_timeout_s: float = IDLE_TIMEOUT_S
    max_attempts: int = MAX_ATTEMPTS
    system_messages: bool = False
    extra_body: Mapping[str, Any] = field(default_factory=dict, repr=False)
    extra_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    price: Price | None = None

    @property
    def lacks_key(self) -> bool:
        """Whether the service cannot be asked for want of a key. One with an address of its own may need none."""
        return self.provider == "anthropic" and self.base_url is None and self.api_key is None

    def require_key(self) -> None:
        """Raise ``ConfigError`` if the key is missing."""
        if self.lacks_key:
            raise ConfigError(f"no API key: set {self.key_variable} or use --model offline")


@dataclass(frozen=True, slots=True)
class Budget:
    """What a run may use; ``None`` is no limit."""

    max_tokens: int | None = None
    max_cost_usd: float | None = None


@dataclass(frozen=True, slots=True)
class ChainSettings:
    """A chain. ``model`` is the name of a definition, ``tools`` are names of groups or of single tools."""

    name: str
    model: str
    system_prompt: Path | None
    interruption_prompt: Path | None
    tools: tuple[str, ...]
    max_iterations: int
    timeout_s: float
    budget: Budget


@dataclass(frozen=True, slots=True)
class KindSettings:
    """A kind of agent; ``name`` is also that of the tool that starts one. An empty ``description`` is the built-in one.

    ``None``: the prompt of ``agent``, the tools by the kind, the model of who starts it, the iterations of the chain.
    """

    name: str
    description: str = ""
    prompt: Path | None = None
    tools: tuple[str, ...] | None = None
    model: str | None = None
    max_iterations: int | None = None


@dataclass(frozen=True, slots=True)
class AgentsSettings:
    """The kinds of agents and the bounds: levels below main, agents at work, finished ones that can be asked again."""

    max_depth: int = 3
    max_running: int = 8
    max_kept: int = 50
    kinds: tuple[KindSettings, ...] = ()


Sandbox = Literal["auto", "strict", "off"]


@dataclass(frozen=True, slots=True)
class ShellSettings:
    """How commands are fenced in; ``env`` names variables that they get though they look like keys."""

    sandbox: Sandbox = "auto"
    network: bool = False
    env: tuple[str, ...] = ()
    writable: tuple[Path, ...] = ()
