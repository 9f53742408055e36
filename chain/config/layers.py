"""Finds the user's configuration file, and merges it with the shipped one.

Other programs have a ``config.yaml`` too, so a file in the current folder is used only if it has a key ``chains``. If
this key is missing in a file that otherwise looks like ours, a notice says so; if it is misspelt, that is an error. The
rules for merging:

- Mappings are merged key by key. All other values replace the shipped ones.
- A model's definition with another provider replaces the shipped definition of the same name.
- A definition with an address does not inherit the shipped API key, which must not be sent to another address.
- A definition with an address or another model does not inherit the shipped price. A price is never merged with the
shipped price, but replaces it.
- A chain with a new name inherits from the shipped chain ``default``. A ``models.default`` of the file applies to every
chain that names no model.
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
from chain.config.settings import CHAIN_KEYS, is_kind
from chain.config.yamlfile import Node
from chain.errors import ConfigError, nearest_name
from chain.regular_file import FLAGS, regular_file

_NOTHING = Node(None, "", 1, "")

_LIKENESS = 0.7
"""The minimum similarity, from 0 to 1, at which a key counts as a misspelt ``chains``.

``chain`` and ``chians`` are similar enough, ``change`` and ``champs`` are not.
"""


@dataclass(frozen=True, slots=True)
class FoundFile:
    """The configuration file and its content. ``file`` is ``None`` if there is no file.

    ``is_own`` is false for a ``config.yaml`` in the current folder, which the user may not have written.
    ``passed_over`` is the reason why a file in the current folder is not used although it looks like a configuration.
    """

    file: Path | None
    content: Node
    is_own: bool = True
    passed_over: ConfigError | None = None


def find_file(config: Path | None, environ: Mapping[str, str], cwd: Path, *, skip_here: bool = False) -> FoundFile:
    """Find and read the configuration file, but not ``./config.yaml`` if ``skip_here``.

    Raise ``ConfigError`` if it is faulty.
    """
    if config is not None or environ.get("CHAIN_CONFIG"):
        named = cwd / (config if config is not None else environ["CHAIN_CONFIG"])
        if not os.path.exists(named):
            by = "--config" if config is not None else "CHAIN_CONFIG"
            raise ConfigError(f"there is no such file; check {by}", file=named)
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
    """Return the subfolder ``chain`` of an XDG folder.

    ``variable`` is the environment variable with the XDG folder, and ``fallback`` its default path below ``$HOME``.
    Return ``None`` if neither gives an absolute path.
    """
    for folder in (Path(environ.get(variable, "")), Path(environ.get("HOME", ""), fallback)):
        if folder.is_absolute():
            return folder / "chain"
    return None


def defaults_folder() -> Path:
    """Return the folder with the shipped ``config.yaml`` and ``prompts``: in the package, or above it in a checkout."""
    package = Path(__file__).parent.parent
    installed = package / "defaults"
    return installed if installed.is_dir() else package.parent


def read_shipped() -> Node:
    """Read the shipped configuration. It contains every section, and every key that is not a name chosen by users."""
    return yamlfile.read(defaults_folder() / "config.yaml")


def _read_if_ours(path: Path) -> Node:
    """Read a ``config.yaml`` that may belong to another program.

    If it cannot be parsed, return an empty configuration, or raise ``ConfigError`` if it has a line ``chains:``.
    """
    try:
        return yamlfile.read(path)
    except ConfigError:
        meant = None
        with suppress(OSError), regular_file(os.open(path, FLAGS)) as file:
            meant = re.search(rb"^[\"']?chains[\"']?\s*:", file.read(yamlfile.MAX_YAML_BYTES), re.MULTILINE)
        if meant is None:
            return _NOTHING
        raise


def _why_unused(root: Node) -> ConfigError | None:
    """Return the notice that a configuration of chain is not used, because it has no key ``chains``.

    Raise ``ConfigError`` if the file has chains under a misspelt key.
    """
    top = root.entries()
    for key, node in top.items():
        # Another program has `chain: mainnet`; ours has keys of a chain here, or a level below.
        names = {*node.entries(), *(name for each in node.entries().values() for name in each.entries())}
        if not names.isdisjoint(CHAIN_KEYS) and nearest_name("chains", [key.strip().casefold()], _LIKENESS):
            message = f"unknown key {yamlfile.printable(key)}: did you mean chains?"
            raise ConfigError(message, file=node.file, line=node.line)
    keys = [definition.entries() for definition in root.entries("models", "definitions").values()]
    has_our_definitions = any(each["provider"].value in PROVIDER_NAMES for each in keys if "provider" in each)
    if has_our_definitions or (top and all(_has_our_shape(key, node) for key, node in top.items())):
        line = next(iter(top.values())).line
        hint = "add a line chains: {}, or name the file with --config"
        return ConfigError(f"is not used, as it has no key chains: {hint}", file=root.file, line=line)
    return None


def _has_our_shape(section: str, node: Node) -> bool:
    """Return whether a section has at least one key, and each key is in the shipped file or is a kind of agent."""
    keys, known = node.entries(), read_shipped().entries(section)
    return bool(keys) and all(key in known or (section == "agents" and is_kind(keys[key])) for key in keys)


def merge(user: Node, shipped: Node) -> Node:
    """Return the user's configuration merged with the shipped one. Every value keeps its own file and line."""
    return _merge(user, _applicable_defaults(user, shipped))


def _merge(over: Node, base: Node | None) -> Node:
    if base is None or not isinstance(base.value, dict):
        return over
    if not isinstance(over.value, dict):
        return base if over.value is None else over
    own = {key: _merge(value, base.value.get(key)) for key, value in over.value.items()}
    return replace(over, value={**base.value, **own})


def _applicable_defaults(user: Node, shipped: Node) -> Node:
    """Return the shipped values that the user's file inherits, by the rules of this module."""
    definitions = shipped.entries("models", "definitions")
    for name, own in user.entries("models", "definitions").items():
        keys, base = own.entries(), definitions.get(name)
        if base is None:
            continue
        if "provider" in keys and keys["provider"].value != base.entries()["provider"].value:
            del definitions[name]
        else:
            dropped = set(_non_inherited_keys(keys, base.entries()))
            definitions[name] = replace(base, value={k: v for k, v in base.entries().items() if k not in dropped})
    chains = shipped.entries("chains")
    chains = {**dict.fromkeys(user.entries("chains"), chains["default"]), **chains}
    if (model := user.entries("models").get("default")) is not None:
        chains = {name: replace(chain, value={**chain.value, "model": model}) for name, chain in chains.items()}
    top = shipped.entries()
    base = shipped.with_value("chains", replace(top["chains"], value=chains))
    return base.with_value("models.definitions", replace(top["models"].entries()["definitions"], value=definitions))


def _non_inherited_keys(keys: Mapping[str, Node], base: Mapping[str, Node]) -> Iterator[str]:
    """Yield the keys of the shipped definition ``base`` that a definition with ``keys`` does not inherit."""
    for each in providers().values():
        is_elsewhere = each.address in keys
        if is_elsewhere:
            yield each.key
        is_other = is_elsewhere or (each.needed in keys and keys[each.needed].value != base[each.needed].value)
        yield from (key for key in each.of_model if is_other or key in keys)
