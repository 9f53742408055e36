"""The files of prompts: a chain's system prompt, and that of a kind of agent, which may name a handler prompt too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chain import yamlfile
from chain.config.trust import HANDLER, as_written
from chain.errors import ConfigError
from chain.values import Values
from chain.yamlfile import Node

KEYS = ("version", "description", "messages")


@dataclass(frozen=True, slots=True)
class AgentPrompt:
    """What an agent of a kind is told.

    ``interruption_prompt`` is its handler prompt, ``None`` for the chain's, ``written`` how the file has it,
    ``named_at`` the place that names it. It must be in the folder ``within`` whenever it is read, ``None`` for
    anywhere.
    """

    system: str = ""
    interruption_prompt: Path | None = None
    within: Path | None = None
    named_at: str = ""
    written: str = field(default="", repr=False)


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


def read_agent_prompt(path: Path, within: Path | None, values: Values) -> AgentPrompt:
    """The content of a prompt file in ``within``, which its handler prompt must be in, too. Raises ``ConfigError``."""
    root = yamlfile.read(path, within)
    system = system_text(root, (*KEYS, HANDLER))
    handler = root.entries().get(HANDLER)
    if handler is None:
        return AgentPrompt(system)
    return AgentPrompt(system, values.path(handler), within, f"{handler.file}:{handler.line}", as_written(handler))
