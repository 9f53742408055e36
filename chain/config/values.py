"""YAML to settings: values are checked, and the environment's variables filled in.

``${VAR}`` and ``${VAR:-default}`` are filled in wherever a value is a text or a number (``$${`` is a plain ``${``), but
only when the value is needed. Errors show a value as it was written, never as filled in: it may be a key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

from chain.config.settings import (
    IDLE_TIMEOUT_S,
    KEY_VARIABLE,
    MAX_ATTEMPTS,
    MAX_TOKENS,
    TIMEOUT_S,
    Budget,
    ChainSettings,
    ModelSettings,
    Price,
    Provider,
    Sandbox,
    ShellSettings,
)
from chain.errors import ConfigError
from chain.yamlfile import MAX_INTEGER, Node

MIN_TIMEOUT_S = 0.01
"""A time limit of 0 would end everything before it began, where "no limit" was meant."""
CACHE_READ_PRICE, CACHE_WRITE_PRICE = 0.1, 1.25
"""Times the price of input, as Anthropic charges, where a price names only input and output."""

KEY_REFERENCE = f"${{{KEY_VARIABLE}}}"

PROVIDERS: tuple[Provider, ...] = get_args(Provider)
_SANDBOXES: tuple[Sandbox, ...] = get_args(Sandbox)
_NOT_KEYS = ("name", "key_variable", "within", "named_at")
_DEFINITION_KEYS = tuple(f.name for f in fields(ModelSettings) if f.name not in _NOT_KEYS)
CHAIN_KEYS = tuple(f.name for f in fields(ChainSettings) if f.name != "name")

_REFERENCE = re.compile(r"\$\$\{|\$\{(?P<name>[A-Za-z_]\w*)(?P<default>:-(?P<value>[^}]*))?\}|\$\{", re.ASCII)
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[\x20-\x7e]*")


class MissingVariable(ConfigError):
    """A variable without a value, which is an error only when the value is needed."""


def variables(node: Node | None) -> list[str]:
    """The names of the variables that a value is made of."""
    if node is None or not isinstance(node.value, str):
        return []
    return [found["name"] for found in _REFERENCE.finditer(node.value) if found["name"]]


def variables_within(node: Node | None) -> list[str]:
    """The same of a value with all that is in it."""
    match None if node is None else node.value:
        case dict() as children:
            return [name for child in children.values() for name in variables_within(child)]
        case list() as children:
            return [name for child in children for name in variables_within(child)]
        case _:
            return variables(node)


def located(text: str, file: str, environ: Mapping[str, str]) -> Path | None:
    """The path that a text in a configuration file means, ``None`` for a blank one; for judging it and for using it."""
    text = text.strip()
    if not text:
        return None
    if text.startswith("~/") and environ.get("HOME"):
        return Path(environ["HOME"], text[2:])
    return Path(file).parent / text


@dataclass(frozen=True, slots=True)
class Values:
    """Reads values out of YAML. Each method raises ``ConfigError``; ``None`` for a node is its absence."""

    environ: Mapping[str, str]

    def model(self, name: str, definition: Node) -> ModelSettings:
        """A model's definition."""
        keys = {key: node for key, node in definition.mapping(_DEFINITION_KEYS).items() if node.value is not None}
        if "provider" not in keys:
            raise definition.error(f"needs a provider: {' or '.join(PROVIDERS)}")
        provider = next((p for p in PROVIDERS if p == self.text(keys["provider"])), None)
        if provider is None:
            raise keys["provider"].error(f"must be one of {', '.join(PROVIDERS)}")
        needed = "model" if provider == "anthropic" else "script"
        if needed not in keys:
            raise definition.error(f"needs a {needed}, as its provider is {provider}")
        base_url = self._url(keys.get("base_url"))
        key = keys.get("api_key")
        if key is None and base_url is None:
            key = replace(definition, value=KEY_REFERENCE, key=f"{definition.key}.api_key")
        return ModelSettings(
            name=name,
            provider=provider,
            model=self.text(keys.get("model")) or name,
            script=self.path(keys.get("script")),
            named_at=(keys["script"].file, keys["script"].line) if "script" in keys else None,
            api_key=self._key(key, needed=base_url is not None),
            key_variable=next(iter(variables(key)), KEY_VARIABLE),
            base_url=base_url,
            max_tokens=self.integer(keys.get("max_tokens"), MAX_TOKENS),
            effort=self.text(keys.get("effort")) or None,
            temperature=self._number(keys["temperature"]) if "temperature" in keys else None,
            thinking=self._json(keys.get("thinking")) or None,
            stop_sequences=self.names(keys.get("stop_sequences")),
            timeout_s=self.seconds(keys.get("timeout_s"), TIMEOUT_S),
            idle_timeout_s=self.seconds(keys.get("idle_timeout_s"), IDLE_TIMEOUT_S),
            max_attempts=self.integer(keys.get("max_attempts"), MAX_ATTEMPTS),
            system_messages="system_messages" in keys and self._converted(keys["system_messages"]).boolean(),
            extra_body=self._json(keys.get("extra_body")),
            extra_headers=self._headers(keys.get("extra_headers")),
            price=self._price(keys["price"]) if "price" in keys else None,
        )

    def chain(self, name: str, node: Node, default_model: str) -> ChainSettings:
        """A chain, all keys of which are there but perhaps ``model``."""
        keys = node.mapping(CHAIN_KEYS)
        limits = keys["budget"].mapping([f.name for f in fields(Budget)])
        budget = {key: limit for key, limit in limits.items() if limit.value is not None}
        return ChainSettings(
            name=name,
            model=self.text(keys.get("model")) or default_model,
            system_prompt=self.path(keys["system_prompt"]),
            interruption_prompt=self.path(keys["interruption_prompt"]),
            tools=self.names(keys["tools"]),
            max_iterations=self.integer(keys["max_iterations"]),
            timeout_s=self.seconds(keys["timeout_s"]),
            budget=Budget(
                max_tokens=self.integer(budget["max_tokens"]) if "max_tokens" in budget else None,
                max_cost_usd=self._number(budget["max_cost_usd"]) if "max_cost_usd" in budget else None,
            ),
        )

    def text(self, node: Node | None) -> str:
        """A text, empty for none."""
        return "" if node is None or node.value is None else self._fill(node).strip()

    def integer(self, node: Node | None, default: int = 0) -> int:
        """A whole number of at least 1."""
        return default if node is None else self._converted(node).integer(minimum=1)

    def seconds(self, node: Node | None, default: float = 0) -> float:
        """A time limit."""
        return default if node is None else self._number(node, minimum=MIN_TIMEOUT_S)

    def names(self, node: Node | None) -> tuple[str, ...]:
        """A list of texts that are not blank."""
        items = [] if node is None or node.value is None else node.items()
        for item in items:
            if not item.text().strip():
                raise item.error("is blank")
        return tuple(self._fill(item) for item in items)

    def path(self, node: Node | None) -> Path | None:
        """A path, ``None`` for none and for a blank one."""
        text = self.text(node)
        if node is not None and "\0" in text:
            raise node.error("is not a path")
        return None if node is None else located(text, node.file, self.environ)

    def shell(self, node: Node) -> ShellSettings:
        """How the shell's commands are fenced in."""
        keys = node.mapping([f.name for f in fields(ShellSettings)])
        # YAML reads a bare `off` as false, and `on` as true.
        is_word = isinstance(keys["sandbox"].value, bool)
        chosen = {True: "on", False: "off"}[keys["sandbox"].value] if is_word else self.text(keys["sandbox"])
        sandbox = next((s for s in _SANDBOXES if s == chosen), None)
        if sandbox is None:
            raise keys["sandbox"].error(f"must be one of {', '.join(_SANDBOXES)}")
        writable = [self.path(item) for item in keys["writable"].items()] if keys["writable"].value else []
        return ShellSettings(
            sandbox=sandbox,
            network=self._converted(keys["network"]).boolean(),
            env=self.names(keys["env"]),
            writable=tuple(path for path in writable if path is not None),
        )

    def _fill(self, node: Node) -> str:
        def value(found: re.Match[str]) -> str:
            name = found["name"]
            if found[0] == "$${":
                return "${"
            if name is None:
                raise node.error("after ${ comes a variable's name and }; write $${ for a plain ${")
            # As in a shell, an empty variable has the default, as an unset one has.
            given = self.environ.get(name, "")
            if not given and found["default"] is not None:
                return found["value"]
            if name not in self.environ:
                hint = f"set it, or write ${{{name}:-}} to do without"
                message = f"{node.key}: the environment variable {name} is not set: {hint}"
                raise MissingVariable(message, file=node.file, line=node.line)
            return given

        return _REFERENCE.sub(value, node.text())

    def _converted(self, node: Node) -> Node:
        """What was written as a variable is read as the number or the truth value that the variable holds."""
        if not isinstance(node.value, str) or "${" not in node.value:
            return node
        filled = self._fill(node).strip()
        if filled.lower() in ("true", "false"):
            return replace(node, value=filled.lower() == "true")
        for convert in (int, float):
            with suppress(ValueError):
                number = convert(filled)
                return replace(node, value=number) if abs(number) <= MAX_INTEGER else node
        return node

    def _number(self, node: Node, minimum: float = 0) -> float:
        return self._converted(node).number(minimum=minimum)

    def _url(self, node: Node | None) -> str | None:
        text = self.text(node)
        if node is None or not text:
            return None
        try:
            url = urlsplit(text)
            usable = url.scheme in ("http", "https") and bool(url.hostname) and (url.port is None or url.port > 0)
        except ValueError:
            usable = False
        if not usable or not _HEADER_VALUE.fullmatch(text) or " " in text:
            raise node.error("must be an address that begins with http:// or https://")
        return text

    def _key(self, node: Node | None, *, needed: bool) -> str | None:
        if node is None:
            return None
        if not isinstance(node.value, str):
            raise node.error("expected text")  # without what was found
        try:
            key = self.text(node)
        except MissingVariable:
            # With an address of its own, a definition that names a key means it. Else the lack is reported when the
            # model is asked for, in words of its own.
            if needed:
                raise
            return None
        if not _HEADER_VALUE.fullmatch(key):
            raise node.error("holds what cannot be in a key")
        return key or None

    def _headers(self, node: Node | None) -> dict[str, str]:
        if node is None:
            return {}
        if not isinstance(node.value, dict):
            raise node.error("expected a mapping")  # without what was found: it may be a secret
        headers = {}
        for name, value in node.mapping().items():
            if not _HEADER_NAME.fullmatch(name):
                raise value.error("is not the name of a header")
            if not isinstance(value.value, str):
                raise value.error("expected text; put it in quotes")
            headers[name] = self.text(value)
            if not _HEADER_VALUE.fullmatch(headers[name]):
                raise value.error("holds what cannot be in a header")
        return headers

    def _json(self, node: Node | None) -> dict[str, Any]:
        return {} if node is None else {key: self._plain(value) for key, value in node.mapping().items()}

    def _plain(self, node: Node) -> Any:  # noqa: ANN401 - JSON leaves here
        if isinstance(node.value, dict):
            return self._json(node)
        if isinstance(node.value, list):
            return [self._plain(item) for item in node.value]
        return self._fill(node) if isinstance(node.value, str) else node.value

    def _price(self, node: Node) -> Price:
        keys = node.mapping([f.name for f in fields(Price)])
        if not {"input", "output"} <= keys.keys():
            raise node.error("needs input and output, in US dollars per million tokens")
        price = {key: self._number(value) for key, value in keys.items()}
        shares = {"cache_read": price["input"] * CACHE_READ_PRICE, "cache_write": price["input"] * CACHE_WRITE_PRICE}
        return Price(**{**shares, **price})
