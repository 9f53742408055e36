"""The providers of models, and the reader for a model's definition.

A provider is a module with a ``PROVIDER``. To add one, add its module to ``_HOMES``. It is imported by name, so that
the configuration depends on no provider.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from chain.config import values
from chain.config.retries import RETRY_S, Retries
from chain.config.yamlfile import Node
from chain.errors import ConfigError

if TYPE_CHECKING:
    from chain.model import Model

T = TypeVar("T")

_HOMES = {
    "anthropic": "chain.providers.anthropic.service_settings",
    "scripted": "chain.providers.scripted.rule_settings",
}

PROVIDER_NAMES = tuple(_HOMES)

COMMON_KEYS = (*(each.name for each in fields(Retries)), "context_window")
"""The keys that every definition may have."""

MIN_WINDOW = 1_000
"""The smallest accepted context window in tokens. The descriptions of the tools alone need more."""


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """The response of a model's service to the settings.

    ``is_good`` says whether the service accepts them; ``None`` if that is unknown.
    """

    is_good: bool | None
    message: str


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """A model's definition with its variables substituted.

    ``label`` is the name of the model for people. ``values`` and ``files`` map keys of the definition to values and to
    paths of files. ``display_values`` maps keys to texts that are shown for secret values. ``missing_key`` is the
    environment variable that should contain the API key but is not set; otherwise empty. ``open`` opens the model, and
    raises ``ConfigError``; its argument says whether a person is at a prompt. ``check`` asks the service to check the
    settings; ``None`` if there is no service. ``tells_costs``: the cost of a run is known.
    """

    name: str
    label: str
    retries: Retries
    values: Mapping[str, object] = field(repr=False)
    open: Callable[[bool], Model] = field(repr=False, compare=False)
    display_values: Mapping[str, str] = field(default_factory=dict, compare=False)
    files: Mapping[str, Path] = field(default_factory=dict)
    missing_key: str = ""
    check: Callable[[], Awaitable[ModelCheck]] | None = field(default=None, repr=False, compare=False)
    tells_costs: bool = True

    def require_key(self) -> None:
        """Raise ``ConfigError`` if the API key is missing."""
        if self.missing_key:
            raise ConfigError(f"no API key: set {self.missing_key} or use --model offline")


@dataclass(frozen=True, slots=True)
class Definition:
    """A model's definition as written. ``keys`` maps each key that has a value to the value.

    ``within`` is a function from a key that names a file to the folder that must contain the file; ``None`` means that
    any folder is allowed.
    """

    name: str
    node: Node
    keys: Mapping[str, Node]
    within: Callable[[str], Path | None]

    def get(self, key: str, read: Callable[[Node], T], default: T) -> T:
        """Return the value of a key, or ``default`` if it has none. Raise ``ConfigError`` if the value is invalid."""
        node = self.keys.get(key)
        return default if node is None else read(node)

    @property
    def retries(self) -> Retries:
        """The limits for retries of a call."""
        attempts = self.get("max_attempts", values.count, None)
        return Retries(attempts, self.get("retry_s", values.seconds, RETRY_S))

    @property
    def context_window(self) -> int:
        """The model's context window in tokens; 0 if the definition does not set it."""
        return self.get("context_window", lambda node: node.integer(minimum=MIN_WINDOW), 0)


@dataclass(frozen=True, slots=True)
class Provider:
    """The reader of a provider's definitions, and the properties of their keys. ``read`` raises ``ConfigError``.

    All fields but ``read``, ``usual`` and the variables are names of keys. ``keys`` are all keys of a definition, and
    ``needed`` is the one that each definition must have. ``sensitive`` keys decide where a secret or a conversation is
    sent, so a found file needs trust for them. ``paths`` are keys that name files. The keys ``of_model`` are valid only
    for one model of one service, such as its price. ``free`` keys contain mappings that are passed to the service.
    ``key`` is the key with the API key, and ``address`` the one with the address that gets it; a definition without an
    address means the provider's own service.

    ``usual`` is the reference to the variable with the API key of that service, as ``${VAR}``. ``address_variable`` and
    ``key_variable`` are the environment variables that ``with_environment`` uses.
    """

    read: Callable[[Definition], ModelSettings]
    keys: tuple[str, ...]
    needed: str
    sensitive: tuple[str, ...] = ()
    of_model: tuple[str, ...] = ()
    free: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    key: str = ""
    address: str = ""
    usual: str = ""
    address_variable: str = ""
    key_variable: str = ""


@cache
def providers() -> Mapping[str, Provider]:
    """Return all providers by name."""
    return {name: import_module(home).PROVIDER for name, home in _HOMES.items()}


def with_environment(root: Node, environ: Mapping[str, str]) -> Node:
    """Return the configuration with the addresses and keys that the environment sets for models.

    They apply only to definitions without an address, so that an API key of the environment is never sent to an address
    in a file. They do not replace an API key in a file, with one exception: the provider's ``usual`` reference, such as
    ``${ANTHROPIC_API_KEY}``, because that variable may contain the API key of another service.
    """
    known = providers()
    for name, definition in root.entries("models", "definitions").items():
        keys = {key: node for key, node in definition.entries().items() if node.value is not None}
        provider = known.get(str(keys["provider"].value)) if "provider" in keys else None
        if provider is None or not provider.address or provider.address in keys:
            continue
        place, added = f"models.definitions.{name}", dict[str, Node]()
        url = environ.get(provider.address_variable, "").strip()
        if url:
            added[provider.address] = Node(url, provider.address_variable, 0, f"{place}.{provider.address}")
        written = keys.get(provider.key)
        if written is None or written.value == provider.usual:
            source = written or definition
            text = f"${{{provider.key_variable}}}" if environ.get(provider.key_variable, "").strip() else ""
            if url and not text:
                text = f"{provider.usual[:-1]}:-}}"  # the server at this address may need no key
            if text:
                added[provider.key] = Node(text, source.file, source.line, f"{place}.{provider.key}", environ)
        if added:
            entry = replace(definition, value={**definition.entries(), **added})
            definitions = root.entries("models")["definitions"]
            root = root.with_value(
                "models.definitions", replace(definitions, value={**definitions.entries(), name: entry})
            )
    return root


def read_model(name: str, node: Node, within: Callable[[str], Path | None] = lambda key: None) -> ModelSettings:
    """Return the settings of a model's definition. Raise ``ConfigError`` if the definition is invalid.

    ``within`` returns the folder that must contain the file at a key; ``None`` allows any folder.
    """
    known = dict.fromkeys(key for each in providers().values() for key in each.keys)
    written = node.mapping(("provider", *known, *COMMON_KEYS))
    keys = {key: child for key, child in written.items() if child.value is not None}
    if "provider" not in keys:
        raise node.error(f"needs a provider: {' or '.join(PROVIDER_NAMES)}")
    provider = providers()[chosen := keys["provider"].choice(PROVIDER_NAMES)]
    if provider.needed not in keys:
        raise node.error(f"needs a {provider.needed}, as its provider is {chosen}")
    return provider.read(Definition(name, node, keys, within))
