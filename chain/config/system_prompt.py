"""The files of prompts: a chain's system prompt, and that of a kind of agent, which may name a handler prompt too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from chain import yamlfile
from chain.errors import ConfigError
from chain.yamlfile import Node

KEYS = ("version", "description", "messages")


@dataclass(frozen=True, slots=True)
class AgentPrompt:
    """What an agent of a kind is told.

    ``interruption_prompt`` is its handler prompt, ``None`` for the chain's, ``named_at`` the place that names it. It
    must be in the folder ``within`` whenever it is read, ``None`` for anywhere.
    """

    system: str = ""
    interruption_prompt: Path | None = None
    within: Path | None = None
    named_at: str = ""


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
