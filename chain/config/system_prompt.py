"""The files of prompts: a chain's system prompt, and that of a kind of agent, which may name a handler prompt too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from chain import yamlfile
from chain.errors import ConfigError
from chain.yamlfile import Node

FOCUS_NAME = "focus"
"""What a compaction prompt calls what the user said matters."""

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


def system_text(root: Node, known: Sequence[str] = KEYS, *, role: str = "system") -> str:
    """The text in the content of such a file, in which there may be these keys. Raises ``ConfigError``.

    ``role`` is that of its messages.
    """
    keys = root.mapping(known)
    if "messages" not in keys:
        missing = f"has no messages; give it one with role: {role} and content"
        raise ConfigError(missing, file=root.file, line=root.line)
    parts = []
    for node in keys["messages"].items():
        message = node.mapping(("role", "content"))
        for key in ("role", "content"):
            if key not in message:
                raise node.error(f"a message needs a {key}")
        message["role"].choice([role])
        parts.append(message["content"].text().strip())
    text = "\n\n".join(part for part in parts if part)
    if not text:
        raise keys["messages"].error("the prompt is empty" if role == "user" else "the system prompt is empty")
    return text


def read_compaction_prompt(path: Path, within: Path | None = None) -> str:
    """The text of a compaction prompt file in ``within``: a template that has ``${focus}``. Raises ``ConfigError``."""
    root = yamlfile.read(path, within)
    text = system_text(root, role="user")
    place = root.entries()["messages"]
    template = Template(text)
    if not template.is_valid():
        raise place.error("has a $ that cannot be read: write $$ for a dollar sign")
    if unknown := sorted({*template.get_identifiers()} - {FOCUS_NAME}):
        raise place.error(f"unknown name ${{{unknown[0]}}}: the only one is ${{{FOCUS_NAME}}}")
    return text if FOCUS_NAME in template.get_identifiers() else f"{text}\n\n${{{FOCUS_NAME}}}"
