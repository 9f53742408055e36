"""The file of a system prompt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from chain import yamlfile
from chain.errors import ConfigError
from chain.yamlfile import Node

KEYS = ("version", "description", "messages")


def read_system_prompt(path: Path, within: Path | None = None) -> str:
    """The text of a system prompt file in ``within``: its ``system`` messages, joined. Raises ``ConfigError``."""
    return system_text(yamlfile.read(path, within))


def system_text(root: Node, known: Sequence[str] = KEYS) -> str:
    """The text in the content of such a file, in which there may be these keys. Raises ``ConfigError``."""
    keys = root.mapping(known)
    if "messages" not in keys:
        raise ConfigError("has no messages; give it one with role: system and content", file=root.file, line=root.line)
    parts = []
    for node in keys["messages"].items():
        message = node.mapping(("role", "content"))
        for key in ("role", "content"):
            if key not in message:
                raise node.error(f"a message needs a {key}")
        message["role"].choice(["system"])
        parts.append(message["content"].text().strip())
    text = "\n\n".join(part for part in parts if part)
    if not text:
        raise keys["messages"].error("the system prompt is empty")
    return text
