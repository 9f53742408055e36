"""The kinds of agents in a configuration: the keys under ``agents`` that are no bounds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields

from chain.config.settings import AgentsSettings, KindSettings
from chain.errors import ConfigError, nearest
from chain.values import Values
from chain.yamlfile import Node, printable

BUILT_IN = ("explore", "plan", "agent")
"""The kinds that are there without being written. Their descriptions are built in, too."""

BOUNDS = tuple(f.name for f in fields(AgentsSettings) if f.name != "kinds")
KIND_KEYS = tuple(f.name for f in fields(KindSettings) if f.name != "name")

_NAME = re.compile(r"[A-Za-z0-9_-]{1,56}")
"""A kind is a tool's name, which may have 64 of these characters, and an agent's name ends in a number besides."""

_TAKEN = ("main", "root")
"""The names of the agent that a session begins with, and of what stands above it."""


def kind_nodes(agents: Mapping[str, Node]) -> dict[str, Node]:
    """The kinds: those of the shipped file, then the user's own in the order of theirs, as ``layers`` merges them."""
    return {name: node for name, node in agents.items() if name not in BOUNDS}


def read_kind(values: Values, name: str, node: Node) -> KindSettings:
    """A kind of agent. Raises ``ConfigError``."""
    _check_name(name, node)
    keys = {key: child for key, child in node.mapping(KIND_KEYS).items() if child.value is not None}
    description = values.text(keys.get("description"))
    if not description and name not in BUILT_IN:
        near = nearest(name, BUILT_IN)
        hint = f", or did you mean {near}?" if near else ""
        place = keys.get("description", node)
        raise place.error(f"a kind of your own needs a description, which tells the model what it is for{hint}")
    return KindSettings(
        name=name,
        description=description,
        prompt=values.path(keys.get("prompt")),
        tools=values.names(keys["tools"]) if "tools" in keys else None,
        model=values.text(keys.get("model")) or None,
        max_iterations=values.integer(keys["max_iterations"]) if "max_iterations" in keys else None,
    )


def is_kind(node: Node) -> bool:
    """Whether a value looks as if it was meant as a kind."""
    keys = node.entries()
    return bool(keys) and set(keys) <= set(KIND_KEYS)


def _check_name(name: str, node: Node) -> None:
    if not isinstance(node.value, dict | None) and (near := nearest(name, BOUNDS)):
        raise ConfigError(f"unknown key {printable(node.key)}: did you mean {near}?", file=node.file, line=node.line)
    if name.casefold() in _TAKEN:
        taken = f"{name} cannot be a kind of agent, since {' and '.join(_TAKEN)} are names of the program's own"
        raise ConfigError(f"{taken}: take another name", file=node.file, line=node.line)
    if not _NAME.fullmatch(name):
        allowed = "1 to 56 letters of a-z and A-Z, digits, _ and -"
        raise ConfigError(
            f"{name!r:.60} cannot be a kind of agent: its name is {allowed}", file=node.file, line=node.line
        )
