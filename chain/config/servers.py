"""The MCP servers that a configuration, a workspace or an editor names.

An entry is checked when it is read. Its variables are read when the server starts.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from chain.config import values, yamlfile
from chain.config.values import MIN_TIMEOUT_S
from chain.config.yamlfile import Node, printable
from chain.errors import ConfigError

FILE = ".mcp.json"
"""The file in which a workspace names its MCP servers. Other programs read it too."""

_NAME = re.compile(r"(?!.*__)[A-Za-z0-9](?:[A-Za-z0-9_-]{0,29}[A-Za-z0-9-])?")
"""A valid name of a server. It has no ``__``, because a tool's full name is ``mcp__SERVER__TOOL``."""

_STDIO, _HTTP = ("command", "args", "env", "cwd"), ("url", "headers")
_SECONDS = ("start_s", "timeout_s")
START_S = 30.0
"""The time limit for a server's start, in seconds, unless its entry allows more."""
_KEYS = ("type", *_STDIO, *_HTTP, *_SECONDS, "trust_hints")
_TYPES = {"stdio": "command", "http": "url", "streamable-http": "url"}


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start a server on standard streams. ``cwd`` is ``None`` for the default folder."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    cwd: Path | None = None


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a server over HTTP."""

    url: str
    headers: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class ToolServer:
    """An MCP server, as its ``entry`` describes it.

    ``is_found``: the entry is in a file of the workspace. ``is_named``: the user allowed the server by name. With
    ``trust_hints`` a tool with ``readOnlyHint`` needs no approval. ``start_s`` limits how long the first run waits for
    the server, and ``timeout_s`` limits each call of a tool, both in seconds; ``None`` means the default.
    """

    name: str
    entry: Node = field(repr=False)
    is_found: bool = False
    trust_hints: bool = False
    start_s: float | None = None
    timeout_s: float | None = None
    is_named: bool = False

    @property
    def target(self) -> str:
        """The command line or the address of the server, with its variables as written."""
        keys = self.entry.entries()
        if "url" in keys:
            return str(keys["url"].value)
        args = keys["args"].items() if "args" in keys else []
        import shlex  # imports delay the prompt, and most sessions have no servers

        return shlex.join([str(keys["command"].value), *(str(arg.value) for arg in args)])

    @property
    def extras(self) -> Iterable[tuple[str, str]]:
        """The environment variables or headers: pairs of ``env NAME`` or ``headers NAME`` and the value as written."""
        keys = self.entry.entries()
        for of in ("env", "headers"):
            for name, node in keys[of].entries().items() if of in keys else ():
                yield f"{of} {name}", str(node.value)

    def digest(self, workspace: Path) -> str:
        """Return the digest under which the user's approval of this entry is stored."""
        import json

        what = [str(workspace), self.name, self.entry.plain()]
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()

    def with_variables(self, environ: Mapping[str, str], keys: frozenset[str]) -> Launch | Address:
        """Return how to start or reach the server, with its variables substituted.

        ``keys`` are the names of the variables with the user's API keys. Raise ``ConfigError`` if a value is unusable,
        or if a found entry uses one of ``keys``.
        """
        if self.is_found and (given_away := keys.intersection(self.entry.variables())):
            why = f"{self.name} asks for {', '.join(sorted(given_away))}, your API key"
            raise self.entry.error(
                f"{why}, which files of a workspace cannot use; define the server in your own configuration"
            )
        entry = self.entry.with_environ(environ)
        nodes = entry.entries()
        if "url" in nodes:
            url = values.url(nodes["url"])
            if url is None:
                raise nodes["url"].error("is blank")
            if urlsplit(url).username is not None:
                raise nodes["url"].error("contains a user name or a password; put them in a header")
            return Address(url, values.headers(nodes["headers"]) if "headers" in nodes else {})
        filled = values.json(entry)
        env = {name: str(value) for name, value in filled.get("env", {}).items()}
        argv = (filled["command"], *map(str, filled.get("args", ())))
        if any("\0" in text for text in (*argv, *env, *env.values())) or any("=" in name for name in env):
            raise self.entry.error(f"{self.name} cannot be started: a NUL in a text, or = in the name of a variable")
        cwd = values.path(nodes["cwd"]) if "cwd" in nodes else None
        return Launch(argv, env, Path(self.entry.file).parent if self.is_found else cwd)


def read_server(name: str, entry: Node, *, is_found: bool = False) -> ToolServer:
    """Return the server that an entry describes. Raise ``ConfigError`` if the entry is invalid.

    With ``is_found``, the entry is in a file of the workspace: unknown keys and ``cwd`` are ignored.
    """
    if not _NAME.fullmatch(name):
        allowed = "1 to 31 letters of a-z and A-Z, digits, _ and -, without two _ in a row or one at its end"
        raise ConfigError(
            f"{printable(name)} cannot be a server: its name is {allowed}", file=entry.file, line=entry.line
        )
    keys = entry.mapping(None if is_found and entry.value else _KEYS)
    keys = {key: node for key, node in keys.items() if key in _KEYS and not (is_found and key == "cwd")}
    kind = "command" if "command" in keys else "url"
    if "type" in keys:
        if keys["type"].value == "sse":
            raise keys["type"].error("sse is not supported; use http")
        kind = _TYPES[keys["type"].choice(_TYPES)]
    if ("command" in keys) == ("url" in keys) or kind not in keys:
        raise entry.error("needs either a command, with args and env, or a url, with headers")
    for key in _HTTP if kind == "command" else _STDIO:
        if key in keys:
            raise keys[key].error(f"cannot be used with {kind}")
    for node in (keys[key] for key in (kind, "cwd") if key in keys):
        if not node.text().strip():
            raise node.error("is blank")
    texts = [*keys["args"].items()] if "args" in keys else []
    texts += [node for key in ("env", "headers") if key in keys for node in keys[key].mapping().values()]
    for node in texts:
        if not isinstance(node.value, str | int | float) or isinstance(node.value, bool):
            raise node.error("expected text; put it in quotes")
    trusts = not is_found and "trust_hints" in keys and keys["trust_hints"].boolean()
    start_s, timeout_s = (keys[key].number(minimum=MIN_TIMEOUT_S) if key in keys else None for key in _SECONDS)
    return ToolServer(name, Node(keys, entry.file, entry.line, entry.key), is_found, trusts, start_s, timeout_s)


def read_servers(node: Node) -> tuple[tuple[ToolServer, ...], Mapping[str, bool]]:
    """Return the servers in a configuration, and whether a workspace's servers may start, by name."""
    if node.value is None:
        return (), {}
    entries = node.mapping()
    wishes = {name: entry.value for name, entry in entries.items() if isinstance(entry.value, bool)}
    return tuple(read_server(name, entry) for name, entry in entries.items() if name not in wishes), wishes


def editor_servers(named: Sequence[object]) -> tuple[tuple[ToolServer, ...], tuple[str, ...]]:
    """Return the servers that an ACP editor names, and a sentence about each unusable one.

    A ``${VAR}`` in these entries is plain text.
    """
    import json

    servers, faults = list[ToolServer](), list[str]()
    for n, raw in enumerate(named):
        given = dict(raw) if isinstance(raw, dict) else {}
        name = re.sub(r"[^A-Za-z0-9-]+", "-", str(given.pop("name", ""))).strip("-")[:31] or f"server-{n + 1}"
        for key in ("env", "headers"):
            pairs = given.get(key)
            if isinstance(pairs, list):
                given[key] = {str(p.get("name")): p.get("value") for p in pairs if isinstance(p, dict)}
        given = {key: value for key, value in given.items() if key in _KEYS and value not in ({}, None)}
        try:
            text = json.dumps(given).replace("${", "$${")
            server = read_server(name, yamlfile.parse(text, f"mcpServers[{n}]"))
        except ConfigError as error:
            faults.append(f"{name}: {error}")
            continue
        if any(each.name == name for each in servers):
            faults.append(f"{name}: there is another server of that name")
        else:
            servers.append(server)
    return tuple(servers), tuple(faults)


def find_servers(workspace: Path) -> tuple[tuple[ToolServer, ...], tuple[str, ...]]:
    """Return the servers that the ``.mcp.json`` of a workspace names, and a sentence about each fault of this file."""
    servers, faults = [], []
    try:
        entries = _read_entries(workspace / FILE) if os.path.lexists(workspace / FILE) else {}
    except ConfigError as error:
        return (), (str(error),)
    for name, entry in entries.items():
        try:
            servers.append(read_server(name, entry, is_found=True))
        except ConfigError as error:
            faults.append(str(error))
    return tuple(servers), tuple(faults)


def _read_entries(path: Path) -> dict[str, Node]:
    """Return the entries of a ``.mcp.json`` by name. Raise ``ConfigError`` if the file is unusable."""
    import json  # imports delay the prompt, and most workspaces have no such file

    text = yamlfile.read_text(path)
    try:
        json.loads(text, parse_int=str)  # Python refuses numbers of 4,301 digits
    except json.JSONDecodeError as error:
        raise ConfigError(f"is not valid JSON: {error.msg}", file=path, line=error.lineno) from None
    except RecursionError:
        raise ConfigError("is nested too deeply", file=path) from None
    # JSON is YAML, except for tabs between values. JSON strings contain no tabs.
    keys = yamlfile.parse(text.replace("\t", " "), str(path)).mapping()
    if keys and "mcpServers" not in keys:
        raise ConfigError("needs a key mcpServers, with the servers by their names", file=path, line=1)
    return keys["mcpServers"].mapping() if keys else {}
