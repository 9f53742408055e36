"""Frozen settings for chains, kinds of agents and the shell, and their readers.

The keys of a section are the fields of its dataclass. ``_READERS`` maps the type of a field to its reader.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, get_args

from chain.config import values
from chain.config.yamlfile import Node, printable
from chain.errors import ConfigError, nearest_name

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


Sandbox = Literal["auto", "strict", "off"]
Notify = Literal["bell", "off"]
"""How a terminal notifies its user."""
Seconds: TypeAlias = float
Share: TypeAlias = float
"""A fraction of the model's context window, from 0 to 1."""
FileNames: TypeAlias = tuple[str, ...]
"""Names of files, each without a folder."""
Section = TypeVar("Section", bound="DataclassInstance")


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of a run; ``None`` is no limit."""

    max_tokens: int | None = None
    max_cost_usd: float | None = None


@dataclass(frozen=True, slots=True)
class Compact:
    """The settings of compaction, as shares of the context window.

    A compaction starts when the conversation fills the share ``at``, and keeps the latest messages up to the share
    ``keep``. If ``at`` is ``None``, only the user starts a compaction.
    """

    at: Share | None = 0.9
    keep: Share = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainSettings:
    """A chain. ``model`` is the name of a definition, ``tools`` are names of groups or of single tools."""

    name: str
    model: str = ""
    system_prompt: Path | None
    interruption_prompt: Path | None
    compaction_prompt: Path | None
    compact: Compact
    tools: tuple[str, ...]
    max_iterations: int
    timeout_s: Seconds | None = None
    budget: Budget


@dataclass(frozen=True, slots=True)
class KindSettings:
    """A kind of agent. The tool that starts such an agent has the same name.

    If a value is missing, the kind has the built-in description, the prompt of the kind ``agent``, the tools that
    ``chain.app.kinds`` lists, the model of the agent that makes the call, and the iterations of the chain.
    """

    name: str
    description: str = ""
    prompt: Path | None = None
    tools: tuple[str, ...] | None = None
    model: str | None = None
    max_iterations: int | None = None


@dataclass(frozen=True, slots=True)
class AgentsSettings:
    """The kinds of agents, and the limits for agents.

    ``max_depth`` limits the levels below the main agent, ``max_running`` the active agents below it, and ``max_kept``
    the finished agents that are stored to be asked again.
    """

    max_depth: int = 3
    max_running: int = 8
    max_kept: int = 50
    kinds: tuple[KindSettings, ...] = ()


@dataclass(frozen=True, slots=True)
class ShellSettings:
    """The sandbox of commands. ``env`` names variables that are passed to commands although they look like secrets."""

    sandbox: Sandbox
    network: bool
    env: tuple[str, ...]
    writable: tuple[Path, ...]


BUILT_IN_KINDS = ("explore", "plan", "agent")
"""The kinds that need no entry and no description."""

BOUNDS = tuple(f.name for f in fields(AgentsSettings) if f.name != "kinds")
KIND_KEYS = tuple(f.name for f in fields(KindSettings) if f.name != "name")
CHAIN_KEYS = tuple(f.name for f in fields(ChainSettings) if f.name != "name")

LEAST_SHARE = 0.05
"""The minimum of a share: a smaller part of the context window has no room for a message."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,56}")
"""A valid name of a kind. It is the name of a tool too, and services limit these to 64 such characters.

It is shorter than that because an agent's name adds a number to it.
"""

_RESERVED_NAMES = ("main", "root")
"""The names of the main agent and of its parent, which no kind can have."""


def read(kind: type[Section], node: Node, **known: object) -> Section:
    """Read a mapping as a dataclass, with the fields ``known``. Raise ``ConfigError`` if a key or value is invalid."""
    keys = node.mapping(each.name for each in fields(kind) if each.name not in known)
    return kind(**known, **read_fields(kind, keys))


def read_fields(kind: type[DataclassInstance], nodes: Mapping[str, Node]) -> dict[str, Any]:
    """Read fields of a dataclass, each by its type. Raise ``ConfigError`` if a value is invalid.

    Null counts as absent if the field has a default.
    """
    return {
        each.name: _READERS[str(each.type).removesuffix(" | None")](nodes[each.name])
        for each in fields(kind)
        if each.name in nodes and (nodes[each.name].value is not None or each.default is MISSING)
    }


def _read_compact(node: Node) -> Compact:
    if node.value is False or node.value == "off":  # YAML reads a bare `off` as false
        return Compact(at=None)
    if not isinstance(node.value, dict):
        raise node.error("must be off, or have at and keep, as in {at: 0.9, keep: 0.2}")
    at = node.value.get("at")
    if at is not None and at.value is False:
        raise at.error("must be a share of the window; with `compact: off` only /compact compacts")
    compact = read(Compact, node)
    if compact.at is not None and compact.keep >= compact.at:
        raise node.value.get("keep", node).error(f"must be less than at ({compact.at:g}), or nothing is gained")
    return compact


def _read_share(node: Node) -> float:
    share = node.number()
    if not LEAST_SHARE <= share <= 1:
        raise node.error(f"must be a share of the window, from {LEAST_SHARE:g} to 1")
    return share


def _read_paths(node: Node) -> tuple[Path, ...]:
    found = [values.path(item) for item in node.items()] if node.value else []
    return tuple(path for path in found if path is not None)


def _read_file_names(node: Node) -> tuple[str, ...]:
    names = values.names(node)
    for n, name in enumerate(names):
        if name in (".", "..") or "/" in name or "\0" in name:
            raise node.items()[n].error("must be the name of a file, without a folder")
    return names


_READERS: dict[str, Callable[[Node], Any]] = {
    "str": values.trimmed_text,
    "int": values.count,
    "float": Node.number,
    "bool": Node.boolean,
    "Path": values.path,
    "tuple[str, ...]": values.names,
    "tuple[Path, ...]": _read_paths,
    "FileNames": _read_file_names,
    "Seconds": values.seconds,
    "Share": _read_share,
    "Sandbox": partial(Node.choice, options=get_args(Sandbox)),
    "Notify": partial(Node.choice, options=get_args(Notify)),
    "Compact": _read_compact,
    "Budget": partial(read, Budget),
    "ShellSettings": partial(read, ShellSettings),
}
"""How to read a field, by its type."""


def read_kind(name: str, node: Node) -> KindSettings:
    """Read a kind of agent. Raise ``ConfigError`` if its name or entry is invalid."""
    _check_name(name, node)
    kind = read(KindSettings, node, name=name)
    if name not in BUILT_IN_KINDS and not kind.description:
        near = nearest_name(name, BUILT_IN_KINDS)
        hint = f"; did you mean {near}?" if near else ""
        written = node.entries().get("description")
        place = node if written is None or written.value is None else written
        raise place.error(f"an agent kind of your own needs a description for the model{hint}")
    return replace(kind, model=kind.model or None)


def is_kind(node: Node) -> bool:
    """Return whether a value looks like the entry of a kind."""
    keys = node.entries()
    return bool(keys) and set(keys) <= set(KIND_KEYS)


def _check_name(name: str, node: Node) -> None:
    """Raise ``ConfigError`` if a kind of agent cannot have this name."""
    if not isinstance(node.value, dict | None) and (near := nearest_name(name, BOUNDS)):
        why = f"unknown key {printable(node.key)}: did you mean {near}?"
    elif name.casefold() in _RESERVED_NAMES:
        reserved = " and ".join(_RESERVED_NAMES)
        why = f"{name} cannot be a kind of agent, because {reserved} are reserved; use another name"
    elif not _NAME.fullmatch(name):
        allowed = "1 to 56 letters of a-z and A-Z, digits, _ and -"
        why = f"{name!r:.60} cannot be a kind of agent: its name is {allowed}"
    else:
        return
    raise ConfigError(why, file=node.file, line=node.line)
