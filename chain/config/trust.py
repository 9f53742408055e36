"""Decides which values of a found ``./config.yaml`` need the user's trust, and stores that trust.

The file may belong to a cloned repository, which must not get a key or run commands. Trust is stored as a digest of the
content, in the file ``trusted`` of the state folder. To add a rule, add it to ``_HARMLESS``, or for a key of models to
the ``PROVIDER`` of its provider.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chain.config import yamlfile
from chain.config.provider import providers
from chain.config.values import located_path, path
from chain.config.yamlfile import Node
from chain.errors import ConfigError, UserError

_HARMLESS: Mapping[str, Callable[[Any, Any], bool]] = {
    "state": lambda value, shipped: value is None,  # the whole conversation is sent to this address
    # Files of these names are also read above the workspace, so another name could send a private file to the model.
    "instructions": lambda value, shipped: not isinstance(value, list) or {*map(str, value)} <= {*shipped},
    # A program that is started, or an address that receives the arguments of calls.
    "mcp.*": lambda value, shipped: False,
    # Above the shipped values, agents that start agents can use up the memory of the machine.
    "agents.max_depth": lambda value, shipped: not isinstance(value, int | float) or value <= shipped,
    "agents.max_running": lambda value, shipped: not isinstance(value, int | float) or value <= shipped,
    "tools.allow": lambda value, shipped: not value,
    # What commands may do to the user's machine.
    "tools.shell.*": lambda value, shipped: value == shipped,
    # A request to another host can contain text that the model has read.
    "tools.research.*": lambda value, shipped: value == shipped,
}
"""The keys that need trust unless their value is harmless. Each function gets the value and the shipped one."""

HANDLER = "interruption_prompt"
"""The key of a handler prompt, in a chain and in the prompt file of a kind of agent."""
_PATHS = ("system_prompt", HANDLER, "compaction_prompt", "prompt")

MAX_JUDGED_CHARS = yamlfile.MAX_YAML_BYTES
"""The limit, in characters, of all prompt files that a trust check reads, so that many files cause no delay."""


@dataclass(frozen=True, slots=True)
class Sensitive:
    """A value that needs trust, with the details that the question to the user shows.

    ``setting`` is the dotted key that needs trust, and ``line`` its line. ``key`` is the dotted key of the value, which
    is ``setting`` or below it. ``value`` is the value as written. If the value is a path that leaves the folder of the
    file, ``leads_to`` is the target of the path. If the value is not in the configuration but in a prompt file that
    ``setting`` names, ``place`` is the file and line of the value.
    """

    setting: str
    key: str
    value: str
    line: int
    leads_to: str = ""
    place: str = ""

    @property
    def judged(self) -> str:
        """The fact that the user has to trust, as text: ``setting``, with ``value`` if that is in a prompt file."""
        return named_value(self.setting, self.value) if self.place else self.setting


def sensitive_keys() -> frozenset[str]:
    """Return the keys of models' definitions that decide where a secret or a conversation is sent."""
    return frozenset(key for each in providers().values() for key in each.sensitive)


def _paths() -> frozenset[str]:
    return frozenset({*_PATHS, *(key for each in providers().values() for key in each.paths)})


def named_value(setting: str, value: str) -> str:
    """Return the text to trust for a handler prompt ``value`` that the prompt file at ``setting`` names."""
    return f"{setting}.{HANDLER}: {value}"


def sensitive_values(root: Node, shipped: Node) -> tuple[Sensitive, ...]:
    """Return the values of a found file that could send data to someone or run something.

    These are also every value with a variable (``model: ${AWS_SECRET}`` would send the secret), every path or link out
    of the folder, and a changed provider in a definition with a shipped name. Prompt files of agents are checked like
    the configuration.
    """
    # Nodes are compared, not keys: a key is ambiguous if a name has dots in it.
    found = {
        id(n): n for n in (*_redefined_keys(root, shipped), *_dangerous_values(root, shipped), *_outside_paths(root))
    }
    written = [each for node in found.values() for each in _written_values(node, node)]
    return (*written, *_named_by_prompts(root))


def _written_values(node: Node, setting: Node) -> Iterator[Sensitive]:
    """Yield each leaf value of a node, attributed to ``setting``. A list without mappings and lists is one leaf."""
    children: list[Node] = []
    if isinstance(node.value, dict):
        children = list(node.value.values())
    elif isinstance(node.value, list) and any(isinstance(item.value, dict | list) for item in node.value):
        children = node.value
    if children:
        for child in children:
            yield from _written_values(child, setting)
        return
    is_named = node is setting and node.key.rpartition(".")[2] in _paths()
    is_path = is_named and isinstance(node.value, str) and "${" not in node.value
    leads_to = _outside_target(node, node.file) if is_path else None
    yield Sensitive(setting.key, node.key, written_form(node), node.line, leads_to or "")


def named_files(root: Node) -> Iterator[Path]:
    """Yield each file that a configuration or the prompt file of an agent names. Skip a name that cannot be read."""
    paths = _paths()
    written = [node for key, node in _walk(root) if key in paths and not node.entries()]
    for node in (*written, *(handler for _, handler in _handlers(root))):
        with suppress(ConfigError):
            if (named := path(node)) is not None:
                yield named


def _walk(node: Node, whole: Set[int] = frozenset()) -> Iterator[tuple[str, Node]]:
    """Yield each key and value in mappings at any depth. Do not descend into the nodes whose ids are in ``whole``."""
    for key, child in node.entries().items():
        yield key, child
        if id(child) not in whole:
            yield from _walk(child, whole)


def _named_by_prompts(root: Node) -> Iterator[Sensitive]:
    """Yield each handler prompt that an agent's prompt file names, if its path has a variable or leaves the folder.

    Other handler prompts need no trust here: when one is read, its path is checked again.
    """
    for prompt, handler in _handlers(root):
        leads_to = "" if "${" in handler.value else _outside_target(handler, prompt.file)
        if leads_to is not None:
            value, place = written_form(handler), f"{handler.file}:{handler.line}"
            yield Sensitive(prompt.key, f"{prompt.key}.{HANDLER}", value, prompt.line, leads_to, place)


def _handlers(root: Node) -> Iterator[tuple[Node, Node]]:
    """Yield pairs of nodes: the prompt file of a kind of agent, and the handler prompt that this file names."""
    left = MAX_JUDGED_CHARS
    for kind in root.entries("agents").values():
        prompt = kind.entries().get("prompt")
        if prompt is None:
            continue
        try:
            file = path(prompt)
            # The path may be that of a device, which a check must not open.
            text = yamlfile.read_text(file) if file is not None and os.path.isfile(file) else ""
            left -= len(text)
            handler = yamlfile.parse(text, str(file)).entries().get(HANDLER) if left >= 0 else None
        except ConfigError:
            continue
        if handler is not None and isinstance(handler.value, str):
            yield prompt, handler.with_environ(root.environ or {})


def written_form(node: Node) -> str:
    """Return a value as written, on one row. Use JSON if the text would be ambiguous."""
    import json

    if node.key.endswith(".sandbox") and node.value is False:
        return "off"  # YAML reads a bare `off` as false
    value = node.plain()
    if node.key == "state" and isinstance(value, str):
        value = re.sub(r"(?s)//.*@", "//…@", value)  # a user name and a password, which may contain any character
    if isinstance(value, str) and value.strip() == value != "" and len(value.splitlines()) == 1 and "\t" not in value:
        return value
    return json.dumps(value, ensure_ascii=False)


def digest_of(root: Node, keys: Sequence[str]) -> str:
    """Return the digest of a file's content together with the keys that need trust."""
    import json  # imports delay the prompt, and most folders have no configuration

    # The keys are included, because the same text needs more trust in a folder with a link that leads out of it.
    return hashlib.sha256(json.dumps([root.plain(), keys], sort_keys=True).encode()).hexdigest()


def is_trusted(digest: str, state: Path) -> bool:
    """Return whether a digest is in the state folder."""
    try:
        return digest in (state / "trusted").read_text(encoding="ascii").split()
    except (OSError, UnicodeDecodeError):
        return False


def remember(digest: str, state: Path) -> None:
    """Store a digest in the state folder. Raise ``UserError`` if it cannot be written."""
    file = state / "trusted"
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(descriptor, "ab", buffering=0) as trusted:
            os.fchmod(descriptor, 0o600)
            trusted.write(f"{digest}\n".encode())
    except OSError as error:
        raise UserError(f"the trust cannot be stored: {error.strerror}", file=file) from None


def _redefined_keys(root: Node, shipped: Node) -> Iterator[Node]:
    """Yield the values of sensitive keys in models' definitions that differ from the shipped values."""
    for name, definition in root.entries("models", "definitions").items():
        was = {key: node.plain() for key, node in shipped.entries("models", "definitions", name).items()}
        was |= {each.key: each.usual for each in providers().values() if each.key}
        for key, node in definition.entries().items():
            is_judged = key in sensitive_keys() or (key == "provider" and key in was)
            if is_judged and (node.plain() or None) != was.get(key):
                yield node


def _dangerous_values(root: Node, shipped: Node) -> Iterator[Node]:
    """Yield the values that ``_HARMLESS`` does not allow."""
    for place, is_harmless in _HARMLESS.items():
        *parents, name = place.split(".")
        known = shipped.entries(*parents)
        for key, node in root.entries(*parents).items():
            if name in ("*", key) and not is_harmless(node.plain(), known[key].plain() if key in known else None):
                yield node


def _outside_paths(root: Node) -> Iterator[Node]:
    """Yield the values that name a variable, and the paths that leave the folder of the file."""
    usual, paths = {(each.key, each.usual) for each in providers().values()}, _paths()
    definitions = [definition.entries() for definition in root.entries("models", "definitions").values()]
    # The service defines these keys, so the mapping is trusted as a whole.
    whole = {id(keys.get(key)) for keys in definitions for each in providers().values() for key in each.free}
    for key, node in _walk(root, whole):
        if isinstance(node.value, str):
            has_variable = "${" in node.value and (key, node.value) not in usual
            if has_variable or (key in paths and _outside_target(node, node.file) is not None):
                yield node
        elif (isinstance(node.value, list) or id(node) in whole) and "${" in repr(node.plain()):
            yield node


def _outside_target(node: Node, config: str) -> str | None:
    """Return the target of the path in a node, with links resolved, if it is outside the folder of ``config``.

    Return ``None`` if the target is inside the folder, and an empty text if the target is unknown.
    """
    path = located_path(node.value, node)
    if path is None:
        return None
    with suppress(OSError, RuntimeError, ValueError):  # a circle of links, a NUL
        real = path.resolve()
        # A circle of links raises an error up to Python 3.12. Later versions leave its links in the resolved path.
        is_circle = any(os.path.islink(each) for each in (real, *real.parents))
        if not is_circle and real.is_relative_to(Path(config).parent.resolve()):
            return None
    with suppress(OSError, ValueError):  # a NUL
        return os.path.realpath(path)
    return ""
