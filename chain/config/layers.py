"""Which file is the user's configuration, and how it is put over the shipped one.

Other programs have a ``config.yaml`` too. So one that lies in the folder counts only with a key ``chains``; where that
key is missing or misspelt in a file that otherwise looks like ours, the user hears of it. As to both files:

- Mappings are merged key by key, all else replaces what was shipped.
- A model's definition that names another provider replaces the shipped one of its name. One with an address
  does not inherit the shipped key: a key never goes to an address that it was not written for. With an address or
  another model it does not inherit the price, and one that it names replaces the shipped one as a whole.
- A chain of a new name inherits what it leaves out from the shipped chain ``default``. A file with a ``models.default``
  means it for every chain that names no model.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from chain.config import yamlfile
from chain.config.provider import PROVIDER_NAMES, providers
from chain.config.settings import BOUNDS, CHAIN_KEYS, is_kind
from chain.config.yamlfile import Node
from chain.errors import ConfigError, nearest
from chain.regular_file import FLAGS, regular_file

TOP_KEYS = ("models", "chains", "inbox", "notify", "instructions", "state", "tools", "agents", "mcp")
MODELS_KEYS = ("default", "definitions")
INBOX_KEYS = ("size",)
TOOLS_KEYS = ("timeout_s", "result_limit", "allow", "shell", "research")

_SHAPES = {"models": MODELS_KEYS, "inbox": INBOX_KEYS, "tools": TOOLS_KEYS}
"""The keys under each top key but ``chains`` and ``agents``, where names are the user's."""

_NOTHING = Node(None, "", 1, "")

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
        if "chains" in root.entries():
            return FoundFile(here, root, is_own=False)
        passed_over = _why_unused(root)
    home = xdg_folder(environ, "XDG_CONFIG_HOME", ".config")
    if home is not None and os.path.isfile(home / "config.yaml"):
        return FoundFile(home / "config.yaml", yamlfile.read(home / "config.yaml"), passed_over=passed_over)
    return FoundFile(None, _NOTHING, passed_over=passed_over)


def xdg_folder(environ: Mapping[str, str], variable: str, fallback: str) -> Path | None:
    """Return our folder beneath an XDG one. Relative paths are ignored, as the XDG specification demands."""
    for folder in (Path(environ.get(variable, "")), Path(environ.get("HOME", ""), fallback)):
        if folder.is_absolute():
            return folder / "chain"
    return None


def _read_if_ours(path: Path) -> Node:
    """Read a ``config.yaml``. Nothing is in one that only another program can read."""
    try:
        return yamlfile.read(path)
    except ConfigError:
        # Not YAML that we read. That is no business of ours unless it was meant for us.
        meant = None
        with suppress(OSError), regular_file(os.open(path, FLAGS)) as file:
            meant = re.search(rb"^[\"']?chains[\"']?\s*:", file.read(yamlfile.MAX_YAML_BYTES), re.MULTILINE)
        if meant is None:
            return _NOTHING
        raise


def _why_unused(root: Node) -> ConfigError | None:
    """Return why a file without ``chains`` is not used, or ``None`` if it is another program's.

    Raises ``ConfigError`` if there are chains under a similar key.
    """
    top = root.entries()
    for key, node in top.items():
        if nearest("chains", [key.strip().casefold()], _LIKENESS) and _holds_chains(node):
            hint = f"did you mean chains instead of {yamlfile.printable(key)}?"
            raise ConfigError(f"unknown key, and there is no key chains: {hint}", file=node.file, line=node.line)
    keys = [definition.entries() for definition in root.entries("models", "definitions").values()]
    has_our_definitions = any(each["provider"].value in PROVIDER_NAMES for each in keys if "provider" in each)
    if has_our_definitions or (top and all(_has_our_shape(key, node.entries()) for key, node in top.items())):
        line = next(iter(top.values())).line
        hint = "add a line chains: {}, or name the file with --config"
        return ConfigError(f"is not used, as it has no key chains: {hint}", file=root.file, line=line)
    return None


def _holds_chains(node: Node) -> bool:
    """Return whether a value holds chains or the settings of one: ``chain: mainnet`` is another program's."""
    inner = [child for each in node.entries().values() for child in each.entries()]
    return not {*node.entries(), *inner}.isdisjoint(CHAIN_KEYS)


def _has_our_shape(section: str, keys: Mapping[str, Node]) -> bool:
    if section == "agents":
        return bool(keys) and all(name in BOUNDS or is_kind(node) for name, node in keys.items())
    return bool(keys) and {*keys} <= {*_SHAPES.get(section, ())}


def merge(user: Node, shipped: Node) -> Node:
    """Merge the two. Every value keeps its file and line; the reader refuses those of the wrong shape."""
    return _merged(user, _applicable_defaults(user, shipped))


def _merged(over: Node, base: Node | None) -> Node:
    if base is None or not isinstance(base.value, dict):
        return over
    if not isinstance(over.value, dict):
        return base if over.value is None else over
    own = {key: _merged(value, base.value.get(key)) for key, value in over.value.items()}
    return replace(over, value={**base.value, **own})


def _applicable_defaults(user: Node, shipped: Node) -> Node:
    """Return the shipped values that hold for this file, by the rules above."""
    definitions = shipped.entries("models", "definitions")
    for name, own in user.entries("models", "definitions").items():
        keys, base = own.entries(), definitions.get(name)
        if base is None:
            continue
        if "provider" in keys and keys["provider"].value != base.entries()["provider"].value:
            del definitions[name]
        else:
            definitions[name] = _without(base, *_not_inherited(keys, base.entries()))
    chains = shipped.entries("chains")
    chains = {**dict.fromkeys(user.entries("chains"), chains["default"]), **chains}
    if (model := user.entries("models").get("default")) is not None:
        chains = {name: replace(chain, value={**chain.value, "model": model}) for name, chain in chains.items()}
    top = shipped.entries()
    base = shipped.replaced("chains", replace(top["chains"], value=chains))
    return base.replaced("models.definitions", replace(top["models"].entries()["definitions"], value=definitions))


def _not_inherited(keys: Mapping[str, Node], base: Mapping[str, Node]) -> Iterator[str]:
    """Yield the shipped keys that do not hold for a definition with these keys."""
    for each in providers().values():
        is_elsewhere = each.address in keys
        if is_elsewhere:
            yield each.key
        is_other = is_elsewhere or (each.needed in keys and keys[each.needed].value != base[each.needed].value)
        yield from (key for key in each.of_model if is_other or key in keys)


def _without(node: Node, *names: str) -> Node:
    return replace(node, value={key: value for key, value in node.entries().items() if key not in names})
