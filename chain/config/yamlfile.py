"""A safe reader of YAML. Every value stores its file and line, so that an error names the line.

Only the safe subset is read. Size, depth and the number of values are bounded *after aliases are expanded*, so that a
small file with aliases of aliases ("a billion laughs") is harmless.

In a configuration ``${VAR}`` and ``${VAR:-default}`` are environment variables, and ``$${`` is a literal ``${``.
Variables are substituted when a value is read, so that a missing variable is an error only if its value is used. Errors
show a value as written, since a variable may contain a key.
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
"""The maximum size of a YAML file in bytes; the shipped files have at most 30 kB. A file of the maximum size is read in
about 0.3 s with libyaml, and in up to 3 s without libyaml or if it has a mistake to locate."""
MAX_YAML_DEPTH = 20
MAX_YAML_VALUES = 20_000
MAX_INTEGER = 10**15
"""The maximum of a whole number. Larger ones are not exact as floats, and very long ones cannot be printed."""
MAX_NUMBER = 40
"""The maximum length of a number in characters. The time to read a number grows with the square of its length: a number
to the base 60 (``1:1:1...``) that filled a file took seconds."""

_REFERENCE = re.compile(r"\$\$\{|\$\{(?P<name>[A-Za-z_]\w*)(?P<default>:-(?P<value>[^}]*))?\}|\$\{", re.ASCII)

_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


class MissingVariable(ConfigError):
    """Raised if a value names an environment variable that is not set."""


@dataclass(frozen=True, slots=True)
class Node:
    """A value with its file and line.

    ``value`` is ``None``, a ``str``, ``bool``, ``int`` or ``float``, a list of nodes, or a dict from ``str`` to nodes.
    ``key`` is the dotted path from the top (``chains.default.tools``), empty for the top; ``line`` counts from 1. A
    value from a flag has the flag as ``file``, and line 0. ``environ`` has the variables that texts may name; if it is
    ``None``, texts contain no variables.
    """

    value: Any
    file: str
    line: int
    key: str
    environ: Mapping[str, str] | None = field(default=None, repr=False, compare=False)

    def error(self, message: str) -> ConfigError:
        """Return the error for a mistake in this value. The caller raises it."""
        return ConfigError(f"{self.key}: {message}" if self.key else message, file=self.file, line=self.line or None)

    def mapping(self, known: Iterable[str] | None = None) -> dict[str, Node]:
        """Return the values by key.

        With ``known``, raise ``ConfigError`` for any other key and suggest the nearest known one.
        """
        if self.value is None and known is not None:
            return {}
        self._require_type("a mapping", self.value, dict)
        if known is not None:
            names = list(known)
            for key, node in self.value.items():
                if key not in names:
                    hint = did_you_mean(key, names, f"the keys here are {', '.join(names)}", 0.5)
                    raise ConfigError(f"unknown key {printable(node.key)}: {hint}", file=self.file, line=node.line)
        return dict(self.value)

    def entries(self, *path: str) -> dict[str, Node]:
        """Return the mapping at a path of keys below this value; an empty one if there is none."""
        node: Node | None = self
        for key in path:
            node = node.value.get(key) if node is not None and isinstance(node.value, dict) else None
        return dict(node.value) if node is not None and isinstance(node.value, dict) else {}

    def find(self, key: str) -> Node | None:
        """Return the value at a dotted key, or ``None``. Names may contain dots."""
        for name, child in self.entries().items():
            if key == name:
                return child
            if key.startswith(f"{name}.") and (found := child.find(key[len(name) + 1 :])) is not None:
                return found
        return None

    def items(self) -> list[Node]:
        """Return the values of a list."""
        return list(self._require_type("a list", self.value, list))

    def text(self) -> str:
        """Return a string. Raise ``MissingVariable`` if it names a variable that is not set."""
        text = str(self._require_type("text", self.value, str))
        return text if self.environ is None else _REFERENCE.sub(self._variable, text)

    def boolean(self) -> bool:
        """Return the value as a bool. Raise ``ConfigError`` if it is not ``true`` or ``false``."""
        return bool(self._require_type("true or false", self._scalar(), bool))

    def integer(self, *, minimum: int = 0) -> int:
        """Return the value as a whole number. Raise ``ConfigError`` if it is none or less than ``minimum``."""
        number = int(self._require_type("a whole number", self._scalar(), int))
        if number < minimum:
            raise self.error(f"must be at least {minimum}, found {number}")
        return number

    def number(self, *, minimum: float = 0) -> float:
        """Return the value as a finite number. Raise ``ConfigError`` if it is none or less than ``minimum``."""
        number = float(self._require_type("a number", self._scalar(), int, float))
        if not minimum <= number < float("inf"):
            raise self.error(f"must be a number of at least {minimum:g}, found {self.value}")
        return number

    def choice(self, options: Iterable[str]) -> str:
        """Return a word that must be one of ``options``."""
        names, value = list(options), self.value
        # YAML reads a bare `off` as false, and `on` as true.
        word = ("on" if value else "off") if isinstance(value, bool) else self.text() if isinstance(value, str) else ""
        if word not in names:
            raise self.error(f"expected one of {', '.join(names)}, found {self._found_text}")
        return word

    def plain(self, *, is_filled: bool = False) -> Any:  # noqa: ANN401 - JSON leaves here
        """Return the value as ``json`` would parse it. With ``is_filled``, substitute its variables."""
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
        """Return a copy whose texts, at any depth, may name these variables. With ``None`` they may name none."""
        value = self.value
        if isinstance(value, dict):
            value = {key: child.with_environ(environ) for key, child in value.items()}
        elif isinstance(value, list):
            value = [item.with_environ(environ) for item in value]
        return Node(value, self.file, self.line, self.key, environ)

    def with_value(self, path: str, new: Node) -> Node:
        """Return a copy with ``new`` at a dotted path, in which ``*`` matches any key. Missing keys are not added."""
        name, _, rest = path.partition(".")
        changed = {
            key: child.with_value(rest, new) if rest else new
            for key, child in self.entries().items()
            if name in ("*", key)
        }
        return replace(self, value={**self.value, **changed}) if changed else self

    def _require_type(self, what: str, value: Any, *types: type) -> Any:  # noqa: ANN401 - one of the types
        if type(value) not in types:
            raise self.error(f"expected {what}, found {self._found_text}")
        return value

    def _scalar(self) -> Any:  # noqa: ANN401 - any value
        """Return the value.

        If it has variables, substitute them, and parse the result as a number or boolean if it is one.
        """
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
        """Return the value that replaces a variable in a text. Raise ``MissingVariable`` or ``ConfigError``."""
        name = found["name"]
        if found[0] == "$${":
            return "${"
        if name is None:
            raise self.error("${ needs a variable's name and } after it; write $${ for a literal ${")
        # As in a shell, the default replaces an empty variable too.
        given = (self.environ or {}).get(name)
        if not given and found["default"] is not None:
            return str(found["value"])
        if given is None:
            hint = f"set it, or write ${{{name}:-}} to use an empty value"
            message = f"{self.key}: the environment variable {name} is not set: {hint}"
            raise MissingVariable(message, file=self.file, line=self.line)
        return given

    @property
    def _found_text(self) -> str:
        shown = {type(None): "nothing", dict: "a mapping", list: "a list"}.get(type(self.value)) or repr(self.value)
        return shown if len(shown) <= 60 else f"{shown[:60]}…"


def printable(text: str) -> str:
    """Return the text for an error message: shortened, with control characters escaped."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return shown if len(shown) <= 80 else f"{shown[:80]}…"


def read(path: Path, within: Path | None = None) -> Node:
    """Read and parse a file, as ``read_text`` and ``parse`` do."""
    return parse(read_text(path, within), str(path))


def read_text(path: Path, within: Path | None = None) -> str:
    """Return the text of a regular UTF-8 file, truncated just above the limit of ``parse``.

    With ``within``, the file must be in that folder after links are resolved. The open file is checked, because the
    target of a path can change. Raise ``ConfigError`` if the file cannot be read.
    """
    try:
        with regular_file(os.open(path, FLAGS)) as file:
            if within is not None:
                # Use the system's path of the open file; without one, resolve the path again.
                known = f"/proc/self/fd/{file.fileno()}"
                real = Path(os.path.realpath(known if os.path.exists(known) else path))
                if not real.is_relative_to(within.resolve()):
                    hint = "if you trust its configuration, name it with --config"
                    raise ConfigError(f"leads out of {within}; {hint}", file=path)
            raw = file.read(MAX_YAML_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise UnreadableFile(f"cannot be read: {reason}", file=path) from None
    if len(raw) > MAX_YAML_BYTES:  # may end inside a character; ``parse`` reports that the file is too large
        return raw.decode("utf-8-sig", errors="replace")
    return decode(raw, path)


def decode(raw: bytes, path: Path) -> str:
    """Decode the UTF-8 content of a file. Raise ``ConfigError`` with the line of the first wrong byte."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError("is not UTF-8 text; save it as UTF-8", file=path, line=line) from None


@lru_cache(maxsize=32)  # a new session and its agents read the same files again
def parse(text: str, file: str) -> Node:
    """Parse YAML text; ``file`` is its name in errors.

    Raise ``ConfigError`` if it is invalid. Results are cached, so two equal calls may return one node.
    """
    import yaml

    if len(text.encode(errors="replace")) > MAX_YAML_BYTES:
        raise ConfigError(f"is larger than {MAX_YAML_BYTES // 1024} kB, the limit for a YAML file", file=file)
    try:
        root = _compose(text, file, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, UnicodeEncodeError):  # libyaml raises ``UnicodeEncodeError`` for a lone surrogate
        root = _compose_and_explain(text, file)
    if root is None:
        return Node(None, file, 1, "")
    return _Builder(file, yaml.SafeLoader("")).build(root, "", 0)


def _compose_and_explain(text: str, file: str) -> yaml.Node | None:
    """Parse again with PyYAML's own parser, and raise ``ConfigError`` for the mistake, with its line.

    This parser gives the same error messages with and without libyaml. Return the document if it has no mistake.
    """
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
        what = f"the character {printable(chr(error.character))} is not allowed; remove it, or write it as an escape"
        raise ConfigError(f"is not valid YAML: {what}", file=file, line=line) from None


def _compose(text: str, file: str, loader: type[yaml.SafeLoader | yaml.CSafeLoader]) -> yaml.Node | None:
    """Parse a document to YAML nodes with ``loader``; ``None`` if it is empty. Raise ``ConfigError`` for deep nesting.

    The depth is checked first, because the parser uses a Python frame or more per level.
    """
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
    """A converter from composed YAML to nodes. Values that aliases repeat are counted each time."""

    def __init__(self, file: str, loader: yaml.SafeLoader) -> None:
        self._file = file
        self._loader = loader
        self._values = 0

    def build(self, node: yaml.Node, key: str, depth: int) -> Node:
        import yaml

        self._values += 1
        if self._values > MAX_YAML_VALUES or depth > MAX_YAML_DEPTH:
            raise self._error(node, "has too many values after its aliases are expanded")
        value: Any
        if isinstance(node, yaml.MappingNode):
            value = {}
            for key_node, value_node in node.value:
                if not isinstance(name := key_node.value, str):
                    raise self._error(key_node, "a key must be a word")
                child = self.build(value_node, f"{key}.{name}" if key else name, depth + 1)
                if name in value:
                    first = value[name].line
                    message = f"the key {printable(child.key)} occurs twice, first on line {first}; remove one"
                    raise self._error(key_node, message)
                # The line of the key, where a user searches, even if the value starts on a later line.
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
            raise self._error(node, f"a number may have at most {MAX_NUMBER} characters")
        try:
            value = self._loader.construct_object(node)
        except Exception:  # noqa: BLE001 - yaml's constructors raise ValueError, KeyError and their own
            kind = node.tag.removeprefix("tag:yaml.org,2002:")
            raise self._error(node, f"{node.value!r:.60} cannot be read as {kind}") from None
        if isinstance(value, int) and abs(value) > MAX_INTEGER:
            raise self._error(node, "a number may have at most 15 digits")
        if value is None or isinstance(value, str | bool | int | float):
            return value
        return str(node.value)  # a date or similar: use the text as written
