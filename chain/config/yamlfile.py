"""YAML read safely. Every value keeps its place, so that a mistake is reported with its line.

Only the safe subset is read. Size, depth and the number of values are bounded *after aliases are expanded*, so that a
file of a few hundred bytes with aliases of aliases ("a billion laughs") is harmless.

In a configuration ``${VAR}`` and ``${VAR:-default}`` stand for environment variables, and ``$${`` for a plain ``${``.
They are filled in when a value is read, so that a missing variable is an error only if its value is needed. Errors show
a value as it was written, since a variable may hold a key.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chain.errors import ConfigError, UnreadableFile, did_you_mean
from chain.regular_file import FLAGS, regular_file

if TYPE_CHECKING:
    import yaml

MAX_YAML_BYTES = 128 * 1024
"""The shipped files have at most 30 kB. Reading this much takes about 0.3 s with libyaml; without it, or to
find what is wrong with the file, up to 3 s."""
MAX_YAML_DEPTH = 20
MAX_YAML_VALUES = 20_000
MAX_INTEGER = 10**15
"""Beyond it a whole number is no longer exact as a float, and a very long one cannot even be shown."""
MAX_NUMBER = 40
"""Characters of a number. The time to read one grows with their square: ``1:1:1...``, a number to the base 60, took
seconds at the length that fits into a file."""

_REFERENCE = re.compile(r"\$\$\{|\$\{(?P<name>[A-Za-z_]\w*)(?P<default>:-(?P<value>[^}]*))?\}|\$\{", re.ASCII)

_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


class MissingVariable(ConfigError):
    """A variable without a value."""


@dataclass(frozen=True, slots=True)
class Node:
    """A value with its place.

    ``value`` is ``None``, a ``str``, ``bool``, ``int`` or ``float``, a list of nodes, or a dict from ``str`` to nodes.
    ``key`` is the dotted path from the top (``chains.default.tools``), empty for the top; ``line`` counts from 1.
    The value of a flag has the flag as ``file``, and line 0. ``environ`` has the variables that texts may name; without
    it a text means itself.
    """

    value: Any
    file: str
    line: int
    key: str
    environ: Mapping[str, str] | None = field(default=None, repr=False, compare=False)

    def error(self, message: str) -> ConfigError:
        """Return the error for a mistake in this value, to be raised by the caller."""
        return ConfigError(f"{self.key}: {message}" if self.key else message, file=self.file, line=self.line or None)

    def mapping(self, known: Iterable[str] | None = None) -> dict[str, Node]:
        """Return the values by key. With ``known``, any other key is an error that names the nearest known one."""
        if self.value is None and known is not None:
            return {}
        self._expected("a mapping", self.value, dict)
        if known is not None:
            names = list(known)
            for key, node in self.value.items():
                if key not in names:
                    hint = did_you_mean(key, names, f"the keys here are {', '.join(names)}", 0.5)
                    raise ConfigError(f"unknown key {printable(node.key)}: {hint}", file=self.file, line=node.line)
        return dict(self.value)

    def entries(self, *path: str) -> dict[str, Node]:
        """Return the mapping at a path of keys beneath this value; empty where there is none."""
        node: Node | None = self
        for key in path:
            node = node.value.get(key) if node is not None and isinstance(node.value, dict) else None
        return dict(node.value) if node is not None and isinstance(node.value, dict) else {}

    def find(self, key: str) -> Node | None:
        """Return the value at a dotted key; names may hold dots themselves."""
        for name, child in self.entries().items():
            if key == name:
                return child
            if key.startswith(f"{name}.") and (found := child.find(key[len(name) + 1 :])) is not None:
                return found
        return None

    def items(self) -> list[Node]:
        """Return the values of a list."""
        return list(self._expected("a list", self.value, list))

    def text(self) -> str:
        """Return a string. Raise ``MissingVariable`` if it names a variable that is not set."""
        text = str(self._expected("text", self.value, str))
        return text if self.environ is None else _REFERENCE.sub(self._variable, text)

    def boolean(self) -> bool:
        """Return ``true`` or ``false``."""
        return bool(self._expected("true or false", self._scalar(), bool))

    def integer(self, *, minimum: int = 0) -> int:
        """Return a whole number."""
        number = int(self._expected("a whole number", self._scalar(), int))
        if number < minimum:
            raise self.error(f"must be at least {minimum}, found {number}")
        return number

    def number(self, *, minimum: float = 0) -> float:
        """Return a finite number, whole or not."""
        number = float(self._expected("a number", self._scalar(), int, float))
        if not minimum <= number < float("inf"):
            raise self.error(f"must be a number of at least {minimum:g}, found {self.value}")
        return number

    def choice(self, options: Iterable[str]) -> str:
        """Return one of a few words."""
        names, value = list(options), self.value
        # YAML reads a bare `off` as false, and `on` as true.
        word = ("on" if value else "off") if isinstance(value, bool) else self.text() if isinstance(value, str) else ""
        if word not in names:
            raise self.error(f"expected one of {', '.join(names)}, found {self._found}")
        return word

    def plain(self, *, is_filled: bool = False) -> Any:  # noqa: ANN401 - JSON leaves here
        """Return the value without its places, as ``json`` reads it; with its variables if it ``is_filled``."""
        if isinstance(self.value, dict):
            return {key: node.plain(is_filled=is_filled) for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain(is_filled=is_filled) for node in self.value]
        return self.text() if is_filled and isinstance(self.value, str) else self.value

    def variables(self) -> list[str]:
        """Return the names of the variables in this value, at any depth."""
        if isinstance(self.value, str):
            return [found["name"] for found in _REFERENCE.finditer(self.value) if found["name"]]
        children = self.value if isinstance(self.value, list) else self.entries().values()
        return [name for child in children for name in child.variables()]

    def with_environ(self, environ: Mapping[str, str] | None) -> Node:
        """Return a copy in which texts, at any depth, may name these variables; none for ``None``."""
        value = self.value
        if isinstance(value, dict):
            value = {key: child.with_environ(environ) for key, child in value.items()}
        elif isinstance(value, list):
            value = [item.with_environ(environ) for item in value]
        return Node(value, self.file, self.line, self.key, environ)

    def replaced(self, path: str, new: Node) -> Node:
        """Return a copy with another value at a dotted path, in which ``*`` is any key. A missing key is not added."""
        name, _, rest = path.partition(".")
        changed = {
            key: child.replaced(rest, new) if rest else new
            for key, child in self.entries().items()
            if name in ("*", key)
        }
        return replace(self, value={**self.value, **changed}) if changed else self

    def _expected(self, what: str, value: Any, *types: type) -> Any:  # noqa: ANN401 - one of the types
        if type(value) not in types:
            raise self.error(f"expected {what}, found {self._found}")
        return value

    def _scalar(self) -> Any:  # noqa: ANN401 - any value
        """Return the value, or the number or truth value that its variables make."""
        if self.environ is None or not isinstance(self.value, str) or "${" not in self.value:
            return self.value
        text = self.text().strip()
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        for convert in (int, float):
            with suppress(ValueError):
                number = convert(text)
                return number if abs(number) <= MAX_INTEGER else text
        return text

    def _variable(self, found: re.Match[str]) -> str:
        name = found["name"]
        if found[0] == "$${":
            return "${"
        if name is None:
            raise self.error("after ${ comes a variable's name and }; write $${ for a plain ${")
        # As in a shell, an empty variable has the default, as an unset one has.
        given = (self.environ or {}).get(name)
        if not given and found["default"] is not None:
            return str(found["value"])
        if given is None:
            hint = f"set it, or write ${{{name}:-}} to do without"
            message = f"{self.key}: the environment variable {name} is not set: {hint}"
            raise MissingVariable(message, file=self.file, line=self.line)
        return given

    @property
    def _found(self) -> str:
        shown = {type(None): "nothing", dict: "a mapping", list: "a list"}.get(type(self.value)) or repr(self.value)
        return shown if len(shown) <= 60 else f"{shown[:60]}…"


def printable(text: str) -> str:
    """Return the text as an error may show it: short, and with control characters written as escapes."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return shown if len(shown) <= 80 else f"{shown[:80]}…"


def read(path: Path, within: Path | None = None) -> Node:
    """Read a file. Raises ``ConfigError``, also when there is no such file or it is not UTF-8; ``within`` as below."""
    return parse(read_text(path, within), str(path))


def read_text(path: Path, within: Path | None = None) -> str:
    """Return the text of a file, at most a little more than ``parse`` accepts. Raises ``ConfigError``, also for a FIFO.

    ``within`` is a folder that it must be in, links followed; the open file is checked, since its path may change.
    """
    try:
        with regular_file(os.open(path, FLAGS)) as file:
            if within is not None:
                # The system knows where an open file is; else the path is resolved once more.
                known = f"/proc/self/fd/{file.fileno()}"
                real = Path(os.path.realpath(known if os.path.exists(known) else path))
                if not real.is_relative_to(within.resolve()):
                    hint = "if you trust it, name it with --config"
                    raise ConfigError(
                        f"leads out of {within}, whose config.yaml was found and not named: {hint}", file=path
                    )
            raw = file.read(MAX_YAML_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise UnreadableFile(f"cannot be read: {reason}", file=path) from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # A file that the bound cut may end inside a character; ``parse`` reports that it is too large.
        if len(raw) <= MAX_YAML_BYTES:
            line = raw.count(b"\n", 0, error.start) + 1
            raise ConfigError("is not UTF-8 text; save it as UTF-8", file=path, line=line) from None
        return raw.decode("utf-8-sig", errors="replace")


@lru_cache(maxsize=32)  # a session reads the files that the one before it read, and its agents' prompts anew
def parse(text: str, file: str) -> Node:
    """Parse YAML text; ``file`` is its name in errors. Raises ``ConfigError``. The same text may give the same node."""
    import yaml

    if len(text.encode(errors="replace")) > MAX_YAML_BYTES:
        raise ConfigError(f"is larger than {MAX_YAML_BYTES // 1024} kB, the limit for a YAML file", file=file)
    try:
        root = _compose(text, file, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, UnicodeEncodeError):  # the latter is what libyaml makes of half a surrogate pair
        root = _compose_and_explain(text, file)
    if root is None:
        return Node(None, file, 1, "")
    return _Builder(file, yaml.SafeLoader("")).build(root, "", 0)


def _compose_and_explain(text: str, file: str) -> yaml.Node | None:
    """Compose with PyYAML's own parser, so that an error has the same words with and without libyaml."""
    import yaml

    try:
        return _compose(text, file, yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = None if mark is None else mark.line + 1
        what = error.problem or "cannot be parsed"
        if line and what.startswith("expected ',' or") and "${" in "".join(text.splitlines()[line - 1 : line]):
            what += '; quote ${...} between braces and brackets: "${VAR}"'
        raise ConfigError(f"is not valid YAML: {what}", file=file, line=line) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        what = f"the character {printable(chr(error.character))} cannot be in it; take it out, or write it as an escape"
        raise ConfigError(f"is not valid YAML: {what}", file=file, line=line) from None


def _compose(text: str, file: str, loader: type[yaml.SafeLoader | yaml.CSafeLoader]) -> yaml.Node | None:
    """Compose a document, and refuse deep nesting first: composing recurses a Python frame or more a level."""
    import yaml

    depth = 0
    for event in yaml.parse(text, Loader=loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_YAML_DEPTH:
                line = event.start_mark.line + 1 if event.start_mark else None
                raise ConfigError(f"is nested more than {MAX_YAML_DEPTH} levels deep", file=file, line=line)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
    return yaml.compose(text, Loader=loader)


class _Builder:
    """Turns composed YAML into nodes, counting every value as often as aliases repeat it."""

    def __init__(self, file: str, loader: yaml.SafeLoader) -> None:
        self._file = file
        self._loader = loader
        self._values = 0

    def build(self, node: yaml.Node, key: str, depth: int) -> Node:
        import yaml

        self._values += 1
        if self._values > MAX_YAML_VALUES or depth > MAX_YAML_DEPTH:
            raise self._error(node, "holds too many values once its aliases are expanded")
        value: Any
        if isinstance(node, yaml.MappingNode):
            value = {}
            for key_node, value_node in node.value:
                if not isinstance(name := key_node.value, str):
                    raise self._error(key_node, "a key must be a word")
                child = self.build(value_node, f"{key}.{name}" if key else name, depth + 1)
                if name in value:
                    first = value[name].line
                    message = f"the key {printable(child.key)} is there twice, first on line {first}; take one away"
                    raise self._error(key_node, message)
                # A key's line is where a user looks, also when its value begins further down.
                value[name] = Node(child.value, child.file, key_node.start_mark.line + 1, child.key)
        elif isinstance(node, yaml.SequenceNode):
            value = [self.build(item, f"{key}[{n}]", depth + 1) for n, item in enumerate(node.value)]
        else:
            value = self._scalar(node)
        return Node(value, self._file, node.start_mark.line + 1, key)

    def _error(self, node: yaml.Node, message: str) -> ConfigError:
        return ConfigError(message, file=self._file, line=node.start_mark.line + 1)

    def _scalar(self, node: yaml.Node) -> str | bool | int | float | None:
        if node.tag in _NUMBERS and len(node.value) > MAX_NUMBER:
            raise self._error(node, f"a number of more than {MAX_NUMBER} characters has no use here")
        try:
            value = self._loader.construct_object(node)
        except Exception:  # noqa: BLE001 - yaml's constructors raise ValueError, KeyError and their own
            kind = node.tag.removeprefix("tag:yaml.org,2002:")
            raise self._error(node, f"{node.value!r:.60} cannot be read as {kind}") from None
        if isinstance(value, int) and abs(value) > MAX_INTEGER:
            raise self._error(node, "a number of more than 15 digits has no use here")
        if value is None or isinstance(value, str | bool | int | float):
            return value
        return str(node.value)  # a date or the like: what was written is meant
