"""Servers of tools (MCP), as a configuration, a workspace or an editor names them, and what a start of one takes.

An entry is checked where it is read and filled in only where its server starts: until then no variable is read.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from chain import yamlfile
from chain.errors import ConfigError
from chain.values import MIN_TIMEOUT_S, Values, variables_within
from chain.yamlfile import Node, printable

FILE = ".mcp.json"
"""The file of a workspace that names its servers, as several programs read it."""

_NAME = re.compile(r"(?!.*__)[A-Za-z0-9](?:[A-Za-z0-9_-]{0,29}[A-Za-z0-9-])?")
"""A tool is called ``mcp__SERVER__TOOL``, in 64 of these characters: the first ``__`` ends the name."""

_STDIO, _HTTP = ("command", "args", "env", "cwd"), ("url", "headers")
_SECONDS = ("start_s", "timeout_s")
START_S = 30.0
"""Seconds for a server to say what it has, if its entry does not have more."""
_OURS = ("type", *_STDIO, *_HTTP, *_SECONDS, "trust_hints")
_TYPES = {"stdio": "command", "http": "url", "streamable-http": "url"}


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start a server that speaks over its standard streams; ``cwd`` is ``None`` for a neutral folder."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    cwd: Path | None = None


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is that speaks over HTTP."""

    url: str
    headers: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class ToolServer:
    """A server by its name. ``is_found``: its entry came with a workspace, from whomever.

    With ``trust_hints`` a tool that says of itself that it only reads needs no approval. ``start_s`` is how long the
    first run waits for it, and ``timeout_s`` the limit of its calls, both in seconds and ``None`` for the default.
    ``is_named``: its name is allowed, whatever the entry that was found says.
    """

    name: str
    entry: Node = field(repr=False)
    is_found: bool = False
    trust_hints: bool = False
    start_s: float | None = None
    timeout_s: float | None = None
    is_named: bool = False

    @property
    def written(self) -> str:
        """Its command or address, word for word."""
        keys = self.entry.entries()
        if "url" in keys:
            return str(keys["url"].value)
        args = keys["args"].items() if "args" in keys else []
        import shlex  # only where there are servers, and the prompt waits for every import

        return shlex.join([str(keys["command"].value), *(str(arg.value) for arg in args)])

    @property
    def beside(self) -> Iterable[tuple[str, str]]:
        """Its variables or headers, word for word."""
        keys = self.entry.entries()
        for of in ("env", "headers"):
            for name, node in keys[of].entries().items() if of in keys else ():
                yield f"{of} {name}", str(node.value)

    def digest(self, workspace: Path) -> str:
        """The key under which the answer is kept whether it may start."""
        import json

        what = [str(workspace), self.name, self.entry.plain()]
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()

    def filled(self, environ: Mapping[str, str], keys: frozenset[str]) -> Launch | Address:
        """How it is started, with the variables filled in. ``keys`` are those with keys of ours.

        Raises ``ConfigError``, also for a found entry that asks for one of these.
        """
        if self.is_found and (given_away := keys.intersection(variables_within(self.entry))):
            why = f"{self.name} asks for {', '.join(sorted(given_away))}, a key of yours that a found file does not get"
            raise self.entry.error(f"{why}; name the server in your own configuration to give it")
        values, nodes = Values(environ), self.entry.entries()
        if "url" in nodes:
            url = values.url(nodes["url"])
            assert url is not None
            if urlsplit(url).username is not None:
                raise nodes["url"].error("holds a name or a password: put them in a header")
            return Address(url, values.headers(nodes.get("headers")))
        filled = values.json(self.entry)
        env = {name: str(value) for name, value in filled.get("env", {}).items()}
        argv = (filled["command"], *map(str, filled.get("args", ())))
        if any("\0" in text for text in (*argv, *env, *env.values())) or any("=" in name for name in env):
            raise self.entry.error(f"{self.name} cannot be started: a NUL in a text, or = in the name of a variable")
        return Launch(argv, env, Path(self.entry.file).parent if self.is_found else values.path(nodes.get("cwd")))


def read_server(name: str, entry: Node, *, is_found: bool = False) -> ToolServer:
    """The server of an entry; if it was found, keys of other programs are ignored. Raises ``ConfigError``."""
    if not _NAME.fullmatch(name):
        allowed = "1 to 31 letters of a-z and A-Z, digits, _ and -, without two _ in a row or one at its end"
        raise ConfigError(
            f"{printable(name)} cannot be a server: its name is {allowed}", file=entry.file, line=entry.line
        )
    keys = entry.entries() if is_found and isinstance(entry.value, dict) else entry.mapping(_OURS)
    keys = {key: node for key, node in keys.items() if key in _OURS and not (is_found and key == "cwd")}
    kind = "command" if "command" in keys else "url"
    if "type" in keys:
        if keys["type"].value == "sse":
            raise keys["type"].error("sse is not supported: servers have http in its place")
        kind = _TYPES[keys["type"].choice(_TYPES)]
    if ("command" in keys) == ("url" in keys) or kind not in keys:
        raise entry.error("needs either a command, with args and env, or a url, with headers")
    for key in _HTTP if kind == "command" else _STDIO:
        if key in keys:
            raise keys[key].error(f"does not go with {kind}")
    for node in (keys[key] for key in (kind, "cwd") if key in keys):
        if not node.text().strip():
            raise node.error("is blank")
    for node in keys["args"].items() if "args" in keys else ():
        if isinstance(node.value, dict | list | bool | None):
            raise node.error("expected text; put it in quotes")
    for key in ("env", "headers"):
        for node in keys[key].mapping().values() if key in keys else ():
            if not isinstance(node.value, str | int | float) or isinstance(node.value, bool):
                raise node.error("expected text; put it in quotes")
    trusts = not is_found and "trust_hints" in keys and keys["trust_hints"].boolean()
    start_s, timeout_s = (keys[key].number(minimum=MIN_TIMEOUT_S) if key in keys else None for key in _SECONDS)
    return ToolServer(name, Node(keys, entry.file, entry.line, entry.key), is_found, trusts, start_s, timeout_s)


def read_servers(node: Node) -> tuple[tuple[ToolServer, ...], Mapping[str, bool]]:
    """The servers of a configuration, and what it says by true or false of those that a workspace names.

    Raises ``ConfigError``.
    """
    if node.value is None:
        return (), {}
    entries = node.mapping()
    wishes = {name: entry.value for name, entry in entries.items() if isinstance(entry.value, bool)}
    return tuple(read_server(name, entry) for name, entry in entries.items() if name not in wishes), wishes


def editor_servers(named: Sequence[object]) -> tuple[tuple[ToolServer, ...], tuple[str, ...]]:
    """The servers that an editor hands over, as the Agent Client Protocol has them, and what is wrong with the others.

    What they hold is meant as it stands: there are no variables in it.
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
        given = {key: value for key, value in given.items() if key in _OURS and value not in ({}, None)}
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
    """The servers that a workspace names, and what is wrong with its file, in sentences."""
    path = workspace / FILE
    if not os.path.lexists(path):
        return (), ()
    import json  # only where there is one: the prompt waits for every import

    servers, faults = [], []
    try:
        # JSON is YAML, but for tabs between its values. In its texts there can be none.
        text = yamlfile.read_text(path)
        json.loads(text, parse_int=str)  # Python refuses numbers of 4,301 digits
        root = yamlfile.parse(text.replace("\t", " "), str(path))
        entries = root.mapping()["mcpServers"].mapping() if root.value != {} else {}
    except json.JSONDecodeError as error:
        return (), (str(ConfigError(f"is not valid JSON: {error.msg}", file=path, line=error.lineno)),)
    except KeyError:
        return (), (str(ConfigError("needs a key mcpServers, with the servers by their names", file=path, line=1)),)
    except (ConfigError, RecursionError) as error:
        return (), (str(error) if isinstance(error, ConfigError) else f"{path}: is nested too deeply",)
    for name, entry in entries.items():
        try:
            servers.append(read_server(name, entry, is_found=True))
        except ConfigError as error:
            faults.append(str(error))
    return tuple(servers), tuple(faults)
