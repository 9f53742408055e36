"""A user's file put over the shipped one.

- Mappings are merged key by key, all else replaces what was shipped.
- A model's definition that names another provider replaces the shipped one of its name. One with an address
  does not inherit the shipped key: a key never goes to an address that it was not written for.
- A chain of a new name inherits what it leaves out from the shipped chain ``default``. A file with a ``models.default``
  means it for every chain that names no model.
"""

from __future__ import annotations

from dataclasses import replace

from chain.provider import providers
from chain.yamlfile import Node


def merge(user: Node, shipped: Node) -> Node:
    """Both as one. Every value keeps its file and line; what has the wrong shape is left for the reader to refuse."""
    return _merged(user, _applicable_defaults(user, shipped))


def _merged(over: Node, base: Node | None) -> Node:
    if base is None or not isinstance(base.value, dict):
        return over
    if not isinstance(over.value, dict):
        return base if over.value is None else over
    own = {key: _merged(value, base.value.get(key)) for key, value in over.value.items()}
    return replace(over, value={**base.value, **own})


def _applicable_defaults(user: Node, shipped: Node) -> Node:
    """The shipped values as far as they hold for this file, by the rules above."""
    definitions = shipped.entries("models", "definitions")
    for name, own in user.entries("models", "definitions").items():
        keys = own.entries()
        if name not in definitions:
            continue
        if "provider" in keys and keys["provider"].value != definitions[name].entries()["provider"].value:
            del definitions[name]
            continue
        for each in providers().values():
            if each.address in keys:
                definitions[name] = _without(definitions[name], each.key)
    chains = shipped.entries("chains")
    chains = {**dict.fromkeys(user.entries("chains"), chains["default"]), **chains}
    if "default" in user.entries("models"):
        chains = {name: _without(chain, "model") for name, chain in chains.items()}
    top = shipped.entries()
    models = top["models"].entries()
    models["definitions"] = replace(models["definitions"], value=definitions)
    top["models"] = replace(top["models"], value=models)
    top["chains"] = replace(top["chains"], value=chains)
    return replace(shipped, value=top)


def _without(node: Node, name: str) -> Node:
    return replace(node, value={key: value for key, value in node.entries().items() if key != name})
