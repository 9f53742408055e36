"""YAML to settings: values are checked, and the environment's variables filled in.

``${VAR}`` and ``${VAR:-default}`` are filled in wherever a value is a text or a number (``$${`` is a plain ``${``), but
only when the value is needed. Errors show a value as it was written, never as filled in: it may be a key.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from chain.config.yamlfile import MAX_INTEGER, Node
from chain.errors import ConfigError

MIN_TIMEOUT_S = 0.01
"""A time limit of 0 would end everything before it began, where "no limit" was meant."""

_REFERENCE = re.compile(r"\$\$\{|\$\{(?P<name>[A-Za-z_]\w*)(?P<default>:-(?P<value>[^}]*))?\}|\$\{", re.ASCII)
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[\x20-\x7e]*")


class MissingVariable(ConfigError):
    """A variable without a value, which is an error only when the value is needed."""


def variables(node: Node | None) -> list[str]:
    """Return the names of the variables that a value is made of."""
    if node is None or not isinstance(node.value, str):
        return []
    return [found["name"] for found in _REFERENCE.finditer(node.value) if found["name"]]


def variables_within(node: Node | None) -> list[str]:
    """Return the names of the variables in a value, at any depth."""
    value = None if node is None else node.value
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [*variables(node), *(name for child in children for name in variables_within(child))]


def located_path(text: str, file: str, environ: Mapping[str, str]) -> Path | None:
    """Return the path that a text in a file means, to judge it and to use it; ``None`` for a blank one."""
    text = text.strip()
    if not text:
        return None
    if text.startswith("~/") and environ.get("HOME"):
        return Path(environ["HOME"], text[2:])
    return Path(os.path.dirname(file), text)


@dataclass(frozen=True, slots=True)
class Values:
    """Reads values out of YAML. Each method raises ``ConfigError``; ``None`` for a node is its absence."""

    environ: Mapping[str, str]

    def text(self, node: Node | None) -> str:
        """Return a text, empty for none."""
        return "" if node is None or node.value is None else self._fill(node).strip()

    def integer(self, node: Node | None, default: int = 0, *, minimum: int = 1) -> int:
        """Return a whole number of at least ``minimum``."""
        return default if node is None else self._converted(node).integer(minimum=minimum)

    def seconds(self, node: Node | None, default: float = 0) -> float:
        """Return a time limit."""
        return default if node is None else self.number(node, minimum=MIN_TIMEOUT_S)

    def names(self, node: Node | None) -> tuple[str, ...]:
        """Return a list of texts that are not blank."""
        items = [] if node is None or node.value is None else node.items()
        for item in items:
            if not item.text().strip():
                raise item.error("is blank")
        return tuple(self._fill(item) for item in items)

    def path(self, node: Node | None) -> Path | None:
        """Return a path, ``None`` for none and for a blank one."""
        text = self.text(node)
        if node is not None and "\0" in text:
            raise node.error("is not a path")
        return None if node is None else located_path(text, node.file, self.environ)

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

        return node.text() if node.is_final else _REFERENCE.sub(value, node.text())

    def _converted(self, node: Node) -> Node:
        """Return a node with the number or truth value that its variable holds."""
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

    def number(self, node: Node, minimum: float = 0) -> float:
        """Return a number of at least ``minimum``."""
        return self._converted(node).number(minimum=minimum)

    def boolean(self, node: Node) -> bool:
        """Return a truth value."""
        return self._converted(node).boolean()

    def url(self, node: Node | None) -> str | None:
        """Return a web address, or ``None`` for none and for a blank one."""
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

    def secret(self, node: Node | None, *, needed: bool) -> str | None:
        """Return a key; ``None`` for none, a blank one, and for a variable that is not set, unless it is ``needed``."""
        if node is None:
            return None
        if not isinstance(node.value, str):
            raise node.error("expected text")  # without what was found
        try:
            key = self.text(node)
        except MissingVariable:
            if needed:
                raise
            return None
        if not _HEADER_VALUE.fullmatch(key):
            raise node.error("holds what cannot be in a key")
        return key or None

    def headers(self, node: Node | None) -> dict[str, str]:
        """Return the headers of an HTTP request."""
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

    def json(self, node: Node | None) -> dict[str, Any]:
        """Return an object of JSON with the variables in it filled in, empty for none."""
        return {} if node is None else {key: self._filled(value) for key, value in node.mapping().items()}

    def _filled(self, node: Node) -> Any:  # noqa: ANN401 - JSON leaves here
        match node.value:
            case dict():
                return self.json(node)
            case list():
                return [self._filled(item) for item in node.value]
            case str():
                return self._fill(node)
            case _:
                return node.value
