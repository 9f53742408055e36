"""Which file is the user's configuration, and whether one was passed over that seems to be meant as one.

Other programs have a ``config.yaml`` too. So one that lies in the folder counts only with a key ``chains``; where that
key is missing or misspelt in a file that otherwise looks like ours, the user hears of it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from chain import yamlfile
from chain.config.kind_settings import BOUNDS, is_kind
from chain.config.settings import CHAIN_KEYS
from chain.errors import ConfigError
from chain.provider import NAMES
from chain.yamlfile import Node

TOP_KEYS = ("models", "chains", "inbox", "tools", "agents")
MODELS_KEYS = ("default", "definitions")
INBOX_KEYS = ("size",)
TOOLS_KEYS = ("timeout_s", "result_limit", "allow", "shell", "research")

_SHAPES = {"models": MODELS_KEYS, "inbox": INBOX_KEYS, "tools": TOOLS_KEYS}
"""The keys under each top key but ``chains`` and ``agents``, where names are the user's."""

_LIKENESS = 0.7
"""Of a key to ``chains``: ``chain``, ``chians`` and ``Chains`` have more, ``change`` and ``champs`` less."""


@dataclass(frozen=True, slots=True)
class FoundFile:
    """The configuration file, if any; ``is_own``: not merely found. ``passed_over`` is why one like it is not used."""

    file: Path | None
    content: Node
    is_own: bool = True
    passed_over: ConfigError | None = None


def find_file(config: Path | None, environ: Mapping[str, str], cwd: Path, *, skip_here: bool = False) -> FoundFile:
    """Find the configuration and read it; ``skip_here`` leaves ``./config.yaml`` aside. Raises ``ConfigError``."""
    if config is not None or environ.get("CHAIN_CONFIG"):
        named = cwd / (config if config is not None else environ["CHAIN_CONFIG"])
        if not os.path.exists(named):
            by = "--config" if config is not None else "CHAIN_CONFIG"
            raise ConfigError(f"there is no such file, which {by} names", file=named)
        return FoundFile(named, yamlfile.read(named))
    here, passed_over = cwd / "config.yaml", None
    if not skip_here and os.path.isfile(here):
        root = _read_if_ours(here)
        if root is not None and "chains" in root.entries():
            return FoundFile(here, root, is_own=False)
        if root is not None and (near := _near_chains(root)) is not None:
            hint = f"did you mean chains instead of {yamlfile.printable(near.key)}?"
            raise ConfigError(f"unknown key, and there is no key chains: {hint}", file=near.file, line=near.line)
        passed_over = None if root is None else misspelt(root)
    home = xdg_folder(environ, "XDG_CONFIG_HOME", ".config")
    if home is not None and os.path.isfile(home / "config.yaml"):
        return FoundFile(home / "config.yaml", yamlfile.read(home / "config.yaml"), passed_over=passed_over)
    return FoundFile(None, Node(None, "", 1, ""), passed_over=passed_over)


def xdg_folder(environ: Mapping[str, str], variable: str, fallback: str) -> Path | None:
    """Our folder beneath an XDG one. Relative paths are ignored, as the XDG specification demands."""
    for folder in (Path(environ.get(variable, "")), Path(environ.get("HOME", ""), fallback)):
        if folder.is_absolute():
            return folder / "chain"
    return None


def misspelt(root: Node) -> ConfigError | None:
    """Why a file without ``chains`` is not used, if it looks as if it were meant for this program; else ``None``."""
    top = root.entries()
    if _has_our_definitions(root) or (top and all(_has_our_shape(key, node) for key, node in top.items())):
        line = next(iter(top.values())).line
        hint = "add a line chains: {}, or name the file with --config"
        return ConfigError(f"is not used, as it has no key chains: {hint}", file=root.file, line=line)
    return None


def _near_chains(root: Node) -> Node | None:
    """What stands in the place of ``chains``, in a file that is meant for this program."""
    return next((node for key, node in root.entries().items() if _is_like_chains(key) and _holds_chains(node)), None)


def _read_if_ours(path: Path) -> Node | None:
    """The content of a ``config.yaml``, or ``None`` for one that only another program can read."""
    try:
        return yamlfile.read(path)
    except ConfigError:
        # Not YAML that we read. That is no business of ours unless it was meant for us.
        meant = None
        with suppress(OSError), path.open("rb") as file:
            meant = re.search(rb"^[\"']?chains[\"']?\s*:", file.read(yamlfile.MAX_BYTES), re.MULTILINE)
        if meant is None:
            return None
        raise


def _is_like_chains(key: str) -> bool:
    import difflib  # only where a file was found that is not used, and the prompt waits for every import

    return difflib.SequenceMatcher(None, key.strip().casefold(), "chains").ratio() >= _LIKENESS


def _holds_chains(node: Node) -> bool:
    """Whether there are chains in it, or the settings of one: ``chain: mainnet`` is another program's."""
    inner = [child for each in node.entries().values() for child in each.entries()]
    return not {*node.entries(), *inner}.isdisjoint(CHAIN_KEYS)


def _has_our_definitions(root: Node) -> bool:
    definitions = root.entries("models", "definitions").values()
    providers = [provider.value for each in definitions if (provider := each.entries().get("provider")) is not None]
    return any(provider in NAMES for provider in providers)


def _has_our_shape(key: str, node: Node) -> bool:
    if key == "agents":
        return bool(node.entries()) and all(name in BOUNDS or is_kind(kind) for name, kind in node.entries().items())
    keys = node.entries()
    return bool(keys) and set(keys) <= set(_SHAPES.get(key, ()))
