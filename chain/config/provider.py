"""Providers of models: what the configuration and the wiring know of one, and the table of those that there are.

A provider is a module with a ``PROVIDER``. It is found by its name, so that the configuration stands aside of all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from chain.config.retries import RETRY_S, Retries
from chain.config.values import Values
from chain.config.yamlfile import Node
from chain.errors import ConfigError

if TYPE_CHECKING:
    from chain.model import Model

_HOMES = {
    "anthropic": "chain.providers.anthropic.service_settings",
    "scripted": "chain.providers.scripted.rule_settings",
}

PROVIDER_NAMES = tuple(_HOMES)

COMMON_KEYS = (*(each.name for each in fields(Retries)), "context_window")
"""The keys that every definition may have."""

MIN_WINDOW = 1_000
"""Tokens of the smallest window that can be meant: the tools alone are more."""


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """Whether the settings of a model are good, as its service says; ``None`` where that cannot be known."""

    is_good: bool | None
    message: str


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """A model's definition, filled in. ``name`` is the definition's, ``label`` what people know the model by.

    ``values`` are by their keys, and ``shown`` says those that people do not see as they are. ``files`` are those that
    it names, by key. ``missing_key`` is the environment variable that a key is expected in and lacking. ``open`` makes
    the model (``interactive``: people watch it and type meanwhile) and raises ``ConfigError``; ``check`` asks its
    service, and is ``None`` where there is none. ``tells_costs``: what a run costs can be known.
    """

    name: str
    label: str
    retries: Retries
    values: Mapping[str, object] = field(repr=False)
    open: Callable[[bool], Model] = field(repr=False, compare=False)
    shown: Mapping[str, str] = field(default_factory=dict, compare=False)
    files: Mapping[str, Path] = field(default_factory=dict)
    missing_key: str = ""
    check: Callable[[], Awaitable[ModelCheck]] | None = field(default=None, repr=False, compare=False)
    tells_costs: bool = True

    def require_key(self) -> None:
        """Raise ``ConfigError`` if the key is missing."""
        if self.missing_key:
            raise ConfigError(f"no API key: set {self.missing_key} or use --model offline")


@dataclass(frozen=True, slots=True)
class Definition:
    """A model's definition as it was written. ``keys`` are those that have a value.

    ``context_window`` is how many tokens the model can take in, 0 where that is not written. ``within`` gives the
    folder that the file named at a key must be in whenever it is read; ``None`` for anywhere.
    """

    name: str
    node: Node
    keys: Mapping[str, Node]
    values: Values
    retries: Retries
    context_window: int
    within: Callable[[str], Path | None]


@dataclass(frozen=True, slots=True)
class Provider:
    """How definitions are read (raises ``ConfigError``), and what must be known of their keys before.

    ``needed`` is the key that each must have. ``sensitive`` keys decide where a secret or a conversation goes, so a
    file from a stranger needs trust for them; ``paths`` name files. Those ``of_model`` hold for one model of one
    service. What is in the ``free`` ones is the service's business. ``key`` goes to the ``address``, or with none to
    the service's own, for which the variable is ``usual``. ``address_variable`` and ``key_variable`` are the
    environment's, for definitions that name neither (``with_environment``).
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
    """Return the configuration with the address and the key that the user's environment has for models.

    They hold for a definition that names no address. So a key of the environment goes to no address of a file, and a
    key that a file writes down stays. The usual variable counts as no key: it may be that of another service.
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
            added[provider.address] = Node(
                url, provider.address_variable, 0, f"{place}.{provider.address}", is_final=True
            )
        written = keys.get(provider.key)
        if written is None or written.value == provider.usual:
            source = written or definition
            text = f"${{{provider.key_variable}}}" if environ.get(provider.key_variable, "").strip() else ""
            if url and not text:
                text = f"{provider.usual[:-1]}:-}}"  # the server at this address may need none
            if text:
                added[provider.key] = Node(text, source.file, source.line, f"{place}.{provider.key}")
        if added:
            entry = replace(definition, value={**definition.entries(), **added})
            definitions = root.entries("models")["definitions"]
            root = root.replaced(
                "models.definitions", replace(definitions, value={**definitions.entries(), name: entry})
            )
    return root


def read_model(
    name: str, node: Node, values: Values, within: Callable[[str], Path | None] = lambda key: None
) -> ModelSettings:
    """Read a model's definition. Raises ``ConfigError``."""
    known = dict.fromkeys(key for each in providers().values() for key in each.keys)
    written = node.mapping(("provider", *known, *COMMON_KEYS))
    keys = {key: child for key, child in written.items() if child.value is not None}
    if "provider" not in keys:
        raise node.error(f"needs a provider: {' or '.join(PROVIDER_NAMES)}")
    provider = providers().get(chosen := values.text(keys["provider"]))
    if provider is None:
        raise keys["provider"].error(f"must be one of {', '.join(PROVIDER_NAMES)}")
    if provider.needed not in keys:
        raise node.error(f"needs a {provider.needed}, as its provider is {chosen}")
    attempts = values.integer(keys["max_attempts"]) if "max_attempts" in keys else None
    retries = Retries(attempts, values.seconds(keys.get("retry_s"), RETRY_S))
    window = values.integer(keys["context_window"], minimum=MIN_WINDOW) if "context_window" in keys else 0
    return provider.read(Definition(name, node, keys, values, retries, window, within))
