"""Frozen settings for chains, kinds of agents and the shell, and how they are read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar, get_args

from chain.config.values import Values, names_of
from chain.config.yamlfile import Node, printable
from chain.errors import ConfigError, nearest


@dataclass(frozen=True, slots=True)
class Budget:
    """What a run may use; ``None`` is no limit."""

    max_tokens: int | None = None
    max_cost_usd: float | None = None


@dataclass(frozen=True, slots=True)
class Compact:
    """Shares of the window: ``at`` which a conversation is compacted, ``None`` for off, and what ``keep`` may fill."""

    at: float | None = 0.9
    keep: float = 0.2


@dataclass(frozen=True, slots=True)
class ChainSettings:
    """A chain. ``model`` is the name of a definition, ``tools`` are names of groups or of single tools."""

    name: str
    model: str
    system_prompt: Path | None
    interruption_prompt: Path | None
    compaction_prompt: Path | None
    compact: Compact
    tools: tuple[str, ...]
    max_iterations: int
    timeout_s: float
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


Sandbox = Literal["auto", "strict", "off"]
Notify = Literal["bell", "off"]
"""How a terminal tells that it waits for its user."""
Word = TypeVar("Word", bound=str)


@dataclass(frozen=True, slots=True)
class ShellSettings:
    """How commands are fenced in; ``env`` names variables that they get though they look like keys."""

    sandbox: Sandbox = "auto"
    network: bool = False
    env: tuple[str, ...] = ()
    writable: tuple[Path, ...] = ()


BUILT_IN = ("explore", "plan", "agent")
"""The kinds that are there without being written. Their descriptions are built in, too."""

BOUNDS = names_of(AgentsSettings)[:-1]
KIND_KEYS = names_of(KindSettings)[1:]
CHAIN_KEYS = names_of(ChainSettings)[1:]

LEAST_SHARE = 0.05
"""Less of a window has no room for a message."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,56}")
"""A kind is a tool's name, which may have 64 of these characters, and an agent's name ends in a number besides."""

_TAKEN = ("main", "root")
"""The names of the agent that a session begins with, and of what stands above it."""


def read_chain(values: Values, name: str, node: Node, default_model: str) -> ChainSettings:
    """Read a chain, which has all keys except perhaps ``model``. Raises ``ConfigError``."""
    keys = node.mapping(CHAIN_KEYS)
    read = values.fields(
        ChainSettings,
        keys,
        compact=partial(_read_compact, values),
        timeout_s=values.seconds,
        budget=lambda budget: Budget(**values.fields(Budget, budget.given(names_of(Budget)))),
    )
    return ChainSettings(name=name, **{**read, "model": read.get("model") or default_model})


def _read_compact(values: Values, node: Node) -> Compact:
    if node.value is False or node.value == "off":  # YAML reads a bare `off` as false
        return Compact(at=None)
    if not isinstance(node.value, dict):
        raise node.error("must be off, or have at and keep, as in {at: 0.9, keep: 0.2}")
    keys = node.given(names_of(Compact))
    if "at" in keys and keys["at"].value is False:
        raise keys["at"].error("is a share of the window; `compact: off` leaves it to /compact")
    share = partial(_read_share, values)
    compact = Compact(**values.fields(Compact, keys, at=share, keep=share))
    if compact.at is not None and compact.keep >= compact.at:
        raise keys.get("keep", node).error(f"must be less than at ({compact.at:g}), or nothing is gained")
    return compact


def _read_share(values: Values, node: Node) -> float:
    share = values.number(node)
    if not LEAST_SHARE <= share <= 1:
        raise node.error(f"is a share of the window: from {LEAST_SHARE:g} to 1")
    return share


def read_shell(values: Values, node: Node) -> ShellSettings:
    """Read how commands are sandboxed. Raises ``ConfigError``."""

    def paths(writable: Node) -> tuple[Path, ...]:
        found = [values.path(item) for item in writable.items()] if writable.value else []
        return tuple(path for path in found if path is not None)

    sandbox = partial(read_word, values, words=get_args(Sandbox))
    keys = node.mapping(names_of(ShellSettings))
    return ShellSettings(**values.fields(ShellSettings, keys, sandbox=sandbox, writable=paths))


def read_file_names(values: Values, node: Node) -> tuple[str, ...]:
    """A list of names of files, each without a folder. Raises ``ConfigError``."""
    names = values.names(node)
    for n, name in enumerate(names):
        if name in (".", "..") or "/" in name or "\0" in name:
            raise node.items()[n].error("must be the name of a file, without a folder")
    return names


def read_word(values: Values, node: Node, words: Sequence[Word]) -> Word:
    """One of a few words. Raises ``ConfigError``."""
    # YAML reads a bare `off` as false, and `on` as true.
    chosen = {True: "on", False: "off"}[node.value] if isinstance(node.value, bool) else values.text(node)
    word = next((each for each in words if each == chosen), None)
    if word is None:
        raise node.error(f"must be one of {', '.join(words)}")
    return word


def read_kind(values: Values, name: str, node: Node) -> KindSettings:
    """Read a kind of agent. Raises ``ConfigError``."""
    _check_name(name, node)
    keys = node.given(KIND_KEYS)
    kind = KindSettings(name=name, **values.fields(KindSettings, keys))
    if not kind.description and name not in BUILT_IN:
        near = nearest(name, BUILT_IN)
        hint = f", or did you mean {near}?" if near else ""
        place = keys.get("description", node)
        raise place.error(f"a kind of your own needs a description, which tells the model what it is for{hint}")
    return replace(kind, model=kind.model or None)


def is_kind(node: Node) -> bool:
    """Whether a value looks as if it was meant as a kind."""
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
