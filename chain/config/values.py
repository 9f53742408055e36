"""Readers of values that are not plain text or numbers: paths, addresses, keys, headers, JSON.

Each raises ``ConfigError`` for a value that cannot be used, without showing a secret in the message.
"""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from chain.config.yamlfile import MissingVariable, Node

MIN_TIMEOUT_S = 0.01
"""The shortest time limit, in seconds. A limit of 0 would end every run at once, where "no limit" was meant."""

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[\x20-\x7e]*")


count = partial(Node.integer, minimum=1)
seconds = partial(Node.number, minimum=MIN_TIMEOUT_S)


def trimmed_text(node: Node) -> str:
    """Return a text without leading and trailing white space."""
    return node.text().strip()


def names(node: Node) -> tuple[str, ...]:
    """Return a list of non-blank texts. Null gives an empty list."""
    items = [] if node.value is None else node.items()
    for item in items:
        if not str(item.value).strip():
            raise item.error("is blank")
    return tuple(item.text() for item in items)


def path(node: Node) -> Path | None:
    """Return a path; ``None`` for null and for a blank text."""
    text = "" if node.value is None else node.text()
    if "\0" in text:
        raise node.error("is not a path")
    return located_path(text, node)


def located_path(text: str, node: Node) -> Path | None:
    """Return the path that ``text`` means if it is written at ``node``; ``None`` for a blank text.

    ``~/`` is the user's home, and a relative path begins at the folder of the node's file. Trust checks and readers
    both call this function, so that they agree.
    """
    text, home = text.strip(), (node.environ or {}).get("HOME")
    if not text:
        return None
    return Path(home, text[2:]) if text.startswith("~/") and home else Path(os.path.dirname(node.file), text)


def url(node: Node) -> str | None:
    """Return a web address; ``None`` for a blank text."""
    text = trimmed_text(node)
    if not text:
        return None
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable or not _HEADER_VALUE.fullmatch(text) or " " in text:
        raise node.error("must be an address that begins with http:// or https://")
    return text


def secret(node: Node, *, needed: bool) -> str | None:
    """Return an API key; ``None`` for a blank text.

    If the text names a variable that is not set, raise ``MissingVariable`` if ``needed``; otherwise return ``None``.
    """
    if not isinstance(node.value, str):
        raise node.error("expected text")  # the message omits the value, which may be a secret
    try:
        key = trimmed_text(node)
    except MissingVariable:
        if needed:
            raise
        return None
    if not _HEADER_VALUE.fullmatch(key):
        raise node.error("contains a character that an API key cannot contain")
    return key or None


def headers(node: Node) -> dict[str, str]:
    """Return the headers of an HTTP request."""
    if not isinstance(node.value, dict):
        raise node.error("expected a mapping")  # the message omits the value, which may be a secret
    found = {}
    for name, value in node.value.items():
        if not _HEADER_NAME.fullmatch(name):
            raise value.error("is not the name of a header")
        if not isinstance(value.value, str):
            raise value.error("expected text; put it in quotes")
        found[name] = trimmed_text(value)
        if not _HEADER_VALUE.fullmatch(found[name]):
            raise value.error("contains a character that a header cannot contain")
    return found


def json(node: Node) -> dict[str, Any]:
    """Return a JSON object with its variables substituted."""
    return {key: value.plain(is_filled=True) for key, value in node.mapping().items()}
