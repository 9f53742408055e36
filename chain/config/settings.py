"""Frozen settings for chains, agents and the shell, and how those of a chain and the shell are read."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, get_args

from chain.values import Values
from chain.yamlfile import Node


@dataclass(frozen=True, slots=True)
class Budget:
    """What a run may use; ``None`` is no limit."""

    max_tokens: int | None = None
    max_cost_usd: float | None = None


@dataclass(frozen=True, slots=True)
class ChainSettings:
    """A chain. ``model`` is the name of a definition, ``tools`` are names of groups or of single tools."""

    name: str
    model: str
    system_prompt: Path | None
    interruption_prompt: Path | None
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


@dataclass(frozen=True, slots=True)
class ShellSettings:
    """How commands are fenced in; ``env`` names variables that they get though they look like keys."""

    sandbox: Sandbox = "auto"
    network: bool = False
    env: tuple[str, ...] = ()
    writable: tuple[Path, ...] = ()


CHAIN_KEYS = tuple(f.name for f in fields(ChainSettings) if f.name != "name")
_SANDBOXES: tuple[Sandbox, ...] = get_args(Sandbox)


def read_chain(values: Values, name: str, node: Node, default_model: str) -> ChainSettings:
    """A chain, all keys of which are there but perhaps ``model``. Raises ``ConfigError``."""
    keys = node.mapping(CHAIN_KEYS)
    limits = keys["budget"].mapping([f.name for f in fields(Budget)])
    budget = {key: limit for key, limit in limits.items() if limit.value is not None}
    return ChainSettings(
        name=name,
        model=values.text(keys.get("model")) or default_model,
        system_prompt=values.path(keys["system_prompt"]),
        interruption_prompt=values.path(keys["interruption_prompt"]),
        tools=values.names(keys["tools"]),
        max_iterations=values.integer(keys["max_iterations"]),
        timeout_s=values.seconds(keys["timeout_s"]),
        budget=Budget(
            max_tokens=values.integer(budget["max_tokens"]) if "max_tokens" in budget else None,
            max_cost_usd=values.number(budget["max_cost_usd"]) if "max_cost_usd" in budget else None,
        ),
    )


def read_shell(values: Values, node: Node) -> ShellSettings:
    """How the shell's commands are fenced in. Raises ``ConfigError``."""
    keys = node.mapping([f.name for f in fields(ShellSettings)])
    # YAML reads a bare `off` as false, and `on` as true.
    is_word = isinstance(keys["sandbox"].value, bool)
    chosen = {True: "on", False: "off"}[keys["sandbox"].value] if is_word else values.text(keys["sandbox"])
    sandbox = next((s for s in _SANDBOXES if s == chosen), None)
    if sandbox is None:
        raise keys["sandbox"].error(f"must be one of {', '.join(_SANDBOXES)}")
    writable = [values.path(item) for item in keys["writable"].items()] if keys["writable"].value else []
    return ShellSettings(
        sandbox=sandbox,
        network=values.boolean(keys["network"]),
        env=values.names(keys["env"]),
        writable=tuple(path for path in writable if path is not None),
    )
