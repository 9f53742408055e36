"""Frozen settings for chains, kinds of agents and the shell, and how they are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, get_args

from chain.config.values import Values
from chain.config.yamlfile import Node, printable
from chain.errors import ConfigError, nearest

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


Sandbox = Literal["auto", "strict", "off"]
Notify = Literal["bell", "off"]
"""How a terminal tells that it waits for its user."""
Seconds: TypeAlias = float
Share: TypeAlias = float
"""A part of the model's window."""
Section = TypeVar("Section", bound="DataclassInstance")
Word = TypeVar("Word", bound=str)


@dataclass(frozen=True, slots=True)
class Budget:
    """What a run may use; ``None`` is no limit."""

    max_tokens: int | None = None
    max_cost_usd: float | None = None


@dataclass(frozen=True, slots=True)
class Compact:
    """Shares of the window: ``at`` which a conversation is compacted, ``None`` for off, and what ``keep`` may fill."""

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
    """A kind of agent; ``name`` is also that of the tool that starts one. An empty ``description`` is the built-in one.

    ``None``: the prompt of ``agent``, the tools by the kind, the model of who starts it, the iterations of the chain.
    """

    name: str
    description: str = ""
    prompt: Path | None = None
    tools: tuple[str, ...] | None = None
    model: str | None = None
    max_iterations: int | None = None


@dataclass(frozen=True, slots=True)
class AgentsSettings:
    """The kinds of agents and the bounds: levels below main, agents at work, finished ones that can be asked again."""

    max_depth: int = 3
    max_running: int = 8
    max_kept: int = 50
    kinds: tuple[KindSettings, ...] = ()


@dataclass(frozen=True, slots=True)
class ShellSettings:
    """How commands are fenced in; ``env`` names variables that they get though they look like keys."""

    sandbox: Sandbox
    network: bool
    env: tuple[str, ...]
    writable: tuple[Path, ...]


BUILT_IN_KINDS = ("explore", "plan", "agent")
"""The kinds that are there without being written. Their descriptions are built in, too."""

BOUNDS = tuple(f.name for f in fields(AgentsSettings) if f.name != "kinds")
KIND_KEYS = tuple(f.name for f in fields(KindSettings) if f.name != "name")
CHAIN_KEYS = tuple(f.name for f in fields(ChainSettings) if f.name != "name")

LEAST_SHARE = 0.05
"""Less of a window has no room for a message."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,56}")
"""A kind is a tool's name, which may have 64 of these characters, and an agent's name ends in a number besides."""

_TAKEN = ("main", "root")
"""The names of the agent that a session begins with, and of what stands above it."""


def read(values: Values, kind: type[Section], node: Node, **known: object) -> Section:
    """Read a mapping as a dataclass, of which some fields are known already. Raises ``ConfigError``.

    Null counts as absent if the field has a default.
    """
    asked = [each for each in fields(kind) if each.name not in known]
    keys = node.mapping(each.name for each in asked)
    for each in asked:
        child = keys.get(each.name)
        if child is not None and (child.value is not None or each.default is MISSING):
            known[each.name] = _READERS[str(each.type).removesuffix(" | None")](values, child)
    return kind(**known)


def _read_compact(values: Values, node: Node) -> Compact:
    if node.value is False or node.value == "off":  # YAML reads a bare `off` as false
        return Compact(at=None)
    if not isinstance(node.value, dict):
        raise node.error("must be off, or have at and keep, as in {at: 0.9, keep: 0.2}")
    at = node.value.get("at")
    if at is not None and at.value is False:
        raise at.error("is a share of the window; `compact: off` leaves it to /compact")
    compact = read(values, Compact, node)
    if compact.at is not None and compact.keep >= compact.at:
        raise node.value.get("keep", node).error(f"must be less than at ({compact.at:g}), or nothing is gained")
    return compact


def _read_share(values: Values, node: Node) -> float:
    share = values.number(node)
    if not LEAST_SHARE <= share <= 1:
        raise node.error(f"is a share of the window: from {LEAST_SHARE:g} to 1")
    return share


def _read_paths(values: Values, node: Node) -> tuple[Path, ...]:
    found = [values.path(item) for item in node.items()] if node.value else []
    return tuple(path for path in found if path is not None)


def read_file_names(values: Values, node: Node) -> tuple[str, ...]:
    """Read a list of file names, each without a folder. Raises ``ConfigError``."""
    names = values.names(node)
    for n, name in enumerate(names):
        if name in (".", "..") or "/" in name or "\0" in name:
            raise node.items()[n].error("must be the name of a file, without a folder")
    return names


def read_word(values: Values, node: Node, words: Sequence[Word]) -> Word:
    """Read one of a few words. Raises ``ConfigError``."""
    # YAML reads a bare `off` as false, and `on` as true.
    chosen = {True: "on", False: "off"}[node.value] if isinstance(node.value, bool) else values.text(node)
    word = next((each for each in words if each == chosen), None)
    if word is None:
        raise node.error(f"must be one of {', '.join(words)}")
    return word


_READERS: dict[str, Callable[[Values, Node], Any]] = {
    "str": Values.text,
    "int": Values.integer,
    "float": Values.number,
    "bool": Values.boolean,
    "Path": Values.path,
    "tuple[str, ...]": Values.names,
    "tuple[Path, ...]": _read_paths,
    "Seconds": Values.seconds,
    "Share": _read_share,
    "Sandbox": partial(read_word, words=get_args(Sandbox)),
    "Compact": _read_compact,
    "Budget": lambda values, node: read(values, Budget, node),
}
"""How to read a field, by its type."""


def read_kind(values: Values, name: str, node: Node) -> KindSettings:
    """Read a kind of agent. Raises ``ConfigError``."""
    _check_name(name, node)
    description = node.mapping(KIND_KEYS).get("description")
    if name not in BUILT_IN_KINDS and not values.text(description):
        near = nearest(name, BUILT_IN_KINDS)
        hint = f", or did you mean {near}?" if near else ""
        place = node if description is None or description.value is None else description
        raise place.error(f"a kind of your own needs a description, which tells the model what it is for{hint}")
    kind = read(values, KindSettings, node, name=name)
    return replace(kind, model=kind.model or None)


def is_kind(node: Node) -> bool:
    """Return whether a value looks as if it was meant as a kind."""
    keys = node.entries()
    return bool(keys) and set(keys) <= set(KIND_KEYS)


def _check_name(name: str, node: Node) -> None:
    if not isinstance(node.value, dict | None) and (near := nearest(name, BOUNDS)):
        why = f"unknown key {printable(node.key)}: did you mean {near}?"
    elif name.casefold() in _TAKEN:
        taken = f"{' and '.join(_TAKEN)} are names of the program's own"
        why = f"{name} cannot be a kind of agent, since {taken}: take another name"
    elif not _NAME.fullmatch(name):
        allowed = "1 to 56 letters of a-z and A-Z, digits, _ and -"
        why = f"{name!r:.60} cannot be a kind of agent: its name is {allowed}"
    else:
        return
    raise ConfigError(why, file=node.file, line=node.line)
