"""Loads the configuration into frozen settings.

A value comes from the first of these that sets it: a flag, the environment (``CHAIN_MODEL``, ...), the user's file, the
shipped file. ``layers`` merges the files. ``trust`` decides which values of a found file need the user's trust; until
the user trusts them, ``Settings.model`` raises an error. To add a key, add it to ``config.yaml`` and as a field to
``Settings`` or to a dataclass of ``settings``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from chain.config import trust, yamlfile
from chain.config.layers import defaults_folder as defaults_folder
from chain.config.layers import find_file, merge, read_shipped, xdg_folder
from chain.config.provider import ModelSettings, providers, read_model, with_environment
from chain.config.servers import ToolServer, read_servers
from chain.config.settings import (
    BOUNDS,
    AgentsSettings,
    ChainSettings,
    FileNames,
    KindSettings,
    Notify,
    Seconds,
    ShellSettings,
    read,
    read_fields,
    read_kind,
)
from chain.config.trust import Sensitive, is_trusted
from chain.config.values import count
from chain.config.yamlfile import MissingVariable, Node
from chain.errors import ConfigError, UnreadableFile, did_you_mean
from chain.text.commas import split_commas

_NAME = re.compile(r"\w[\w.-]*")
"""A valid name of a model or chain. The question about trust shows it, so control characters are not allowed."""

_NO_KEYS = frozenset({"HOME", "LANG", "LOGNAME", "PATH", "PWD", "SHELL", "TMPDIR", "USER"})
"""Variables that are not secrets even if a server's entry names them, as in ``${HOME}/bin/server``."""

_OVERRIDES = {
    "model": ("models.default", "chains.*.model", "agents.*.model"),
    "chain": ("chain",),
    "max_iterations": ("chains.*.max_iterations",),
    "allow": ("tools.allow",),
    "state": ("state",),
}
"""The flags that override the files, with the keys that they set. ``CHAIN_MODEL`` and so on have the same effect."""

_SECTIONS = ("models", "inbox", "tools", "tools.research")
"""The sections that may have only the keys of the shipped file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The whole configuration.

    A field with a ``key`` holds the value at that dotted key, read by the type of the field. ``file`` is the user's
    file, if any. ``allow`` are the calls that need no approval, as written. ``instructions`` are names of files.
    ``state`` is the address of the Redis that stores the sessions, which may contain a password; it is empty if a
    folder stores them. ``servers`` are the configured MCP servers. ``found_servers`` maps the name of a server in a
    workspace to whether it may start. ``passed_over`` is the reason why a file in the current folder that looks like a
    configuration is not used. ``untrusted_values`` are the values that still need trust, and ``digest`` identifies
    them. ``_judged`` are the facts that need trust, including those that the user trusts already
    (``Sensitive.judged``); ``None`` for the user's own file.
    """

    file: Path | None
    default_model: str = field(metadata={"key": "models.default"})
    default_chain: str = field(metadata={"key": "chain"})
    inbox_size: int = field(metadata={"key": "inbox.size"})
    notify: Notify = field(metadata={"key": "notify"})
    instructions: FileNames = field(metadata={"key": "instructions"})
    state: str = field(default="", repr=False, metadata={"key": "state"})
    tool_timeout_s: Seconds = field(metadata={"key": "tools.timeout_s"})
    tool_result_limit: int = field(metadata={"key": "tools.result_limit"})
    allow: tuple[str, ...] = field(metadata={"key": "tools.allow"})
    shell: ShellSettings = field(metadata={"key": "tools.shell"})
    research_hosts: tuple[str, ...] = field(metadata={"key": "tools.research.hosts"})
    model_names: tuple[str, ...]
    chain_names: tuple[str, ...]
    kind_names: tuple[str, ...]
    """The kinds of agents: the built-in ones, then the user's own."""
    servers: tuple[ToolServer, ...]
    found_servers: Mapping[str, bool]
    passed_over: ConfigError | None
    _root: Node = field(repr=False)
    environ: Mapping[str, str] = field(repr=False)
    _cwd: Path = field(repr=False)
    untrusted_values: tuple[Sensitive, ...] = ()
    digest: str = ""
    _judged: tuple[str, ...] | None = field(default=None, repr=False)

    @classmethod
    def key_by_field(cls) -> Mapping[str, str]:
        """Return a mapping from each field that holds a value of the file to the dotted key of this value."""
        return {each.name: each.metadata["key"] for each in fields(cls) if each.metadata}

    @property
    def agents(self) -> AgentsSettings:
        """The kinds of agents and their limits. Raise ``ConfigError`` for a missing variable."""
        nodes = self._root.entries("agents")
        bounds = {key: count(nodes[key]) for key in BOUNDS}
        return AgentsSettings(**bounds, kinds=tuple(self.kind(name) for name in self.kind_names))

    @property
    def untrusted(self) -> tuple[str, ...]:
        """The keys of a found file that still need trust."""
        return tuple(dict.fromkeys(each.setting for each in self.untrusted_values))

    @property
    def config_folder(self) -> Path | None:
        """The folder of the user's configuration; ``None`` if the environment names no home directory."""
        return xdg_folder(self.environ, "XDG_CONFIG_HOME", ".config")

    @property
    def trusted_places(self) -> tuple[Path, ...]:
        """The folders of the user's configuration and state, and the file unless it was found in the current folder.

        Commands must not write there, since a command could grant itself permissions. A found file is not included:
        trust in it ends when it changes.
        """
        state = xdg_folder(self.environ, "XDG_STATE_HOME", ".local/state")
        file = self.file if self._judged is None else None
        return tuple(place for place in (self.config_folder, state, file) if place is not None)

    def named_files(self) -> Iterator[Path]:
        """Yield the shipped file, the user's file if any, and each file that they name. Reads the disk."""
        yield from (defaults_folder() / "config.yaml", *([self.file] if self.file else []))
        yield from trust.named_files(self._root)

    @property
    def key_variables(self) -> frozenset[str]:
        """The environment variables with secrets: those of the models' definitions and of the user's own servers."""
        definitions = self._root.entries("models", "definitions").values()
        secrets = [
            node for each in definitions for key, node in each.entries().items() if key in trust.sensitive_keys()
        ]
        usual = {each.usual.strip("${}") for each in providers().values()} - {""}
        given = {name for server in self.servers for name in server.entry.variables()} - _NO_KEYS
        return frozenset({*usual, *given, *(name for node in secrets for name in node.variables())})

    def model(self, name: str | None = None) -> ModelSettings:
        """Return a model's definition, by default that of the default chain.

        Raise ``ConfigError`` for an unknown name, a missing variable, or if the user does not trust the file yet.
        """
        require_trust(self)
        name = name or self.chain().model
        node = _select("model", name, self._root.entries("models", "definitions"))
        return read_model(name, node, lambda key: self.required_folder(f"models.definitions.{name}.{key}"))

    def chain(self, name: str | None = None) -> ChainSettings:
        """Return the chain of this name, or the default chain if ``name`` is ``None``.

        Raise ``ConfigError`` for an unknown name or a missing variable.
        """
        name = name or self.default_chain
        chain = read(ChainSettings, _select("chain", name, self._root.entries("chains")), name=name)
        return chain if chain.model else replace(chain, model=self.default_model)

    def kind(self, name: str) -> KindSettings:
        """Return a kind of agent. Raise ``ConfigError`` for an unknown name or a missing variable."""
        nodes = self._root.entries("agents")
        return read_kind(name, _select("kind", name, {kind: nodes[kind] for kind in self.kind_names}))

    def read_file(self, key: str, path: Path) -> Node:
        """Read the YAML file at ``path``, which is the value at a dotted key.

        Raise ``ConfigError`` if the file is unusable. If it cannot be opened, the error names the line of the key.
        """
        try:
            return yamlfile.read(path, self.required_folder(key))
        except UnreadableFile as error:
            raise self.error(key, f"{error.file} {error.message}") from None

    def required_folder(self, key: str, judged: str = "") -> Path | None:
        """Return the folder that must contain the file named at a dotted key, or ``None`` if any folder is allowed.

        The file itself must be checked when it is opened, since a link can change. ``judged`` is the fact that the user
        has to trust before any folder is allowed (``Sensitive.judged``); by default it is ``key``.
        """
        if self.file is None or self._judged is None or (judged or key) in self._judged:
            return None
        node = self._root.find(key)
        return self.file.parent if node is not None and node.file == str(self.file) else None

    def source(self, key: str) -> str:
        """Return the source of a value: ``flag --model``, ``CHAIN_MODEL``, ``config.yaml:12, VARIABLE`` or ``default``.

        ``key`` is dotted, as in ``chains.default.tools``. The key of the default chain's name is ``chain``.
        """
        node = self._root.find(key)
        if node is not None and not node.line:
            return node.file
        if node is None or node.file != str(self.file):
            place = "default"
        else:
            path = Path(node.file)
            place = f"{path.relative_to(self._cwd) if path.is_relative_to(self._cwd) else path}:{node.line}"
        return ", ".join([place, *([] if node is None else node.variables())])

    def error(self, key: str, message: str, *, item: int | None = None) -> ConfigError:
        """Return the error for the value at a dotted key, or for an ``item`` of that value, with its file and line."""
        node = self._root.find(key)
        if node is None:
            return ConfigError(f"{key}: {message}", file=self.file)
        return (node if item is None else node.items()[item]).error(message)


def load_settings(
    *,
    config: Path | None,
    environ: Mapping[str, str],
    cwd: Path,
    flags: Mapping[str, object] | None = None,
    skip_here: bool = False,
) -> Settings:
    """Find, read and check the configuration. Raise ``ConfigError`` if it has a mistake.

    With ``skip_here``, ``./config.yaml`` is ignored unless ``config`` or the environment names it. ``flags`` may have
    ``model``, ``chain``, ``max_iterations``, ``allow`` and ``state``; others are ignored. A value that names a missing
    variable raises no error here, but when it is used.
    """
    shipped = read_shipped().with_environ(environ)
    found = find_file(config, environ, cwd, skip_here=skip_here)
    user = found.content.with_environ(environ)
    own = list(user.entries("chains"))
    merged = merge(user, shipped)
    merged.mapping(shipped.entries())
    chosen = Node(own[0] if len(own) == 1 else "default", "", 1, "chain")
    root = _apply_overrides(replace(merged, value={**merged.value, "chain": chosen}), flags or {}, environ)
    root = with_environment(root, environ)
    for section in _SECTIONS:
        _find(root, section).mapping(_find(shipped, section).entries())
    # Variables in a server's entry are substituted when the server starts.
    servers, found_servers = read_servers(_find(root, "mcp").with_environ(None))
    settings = Settings(
        file=found.file,
        model_names=tuple(root.entries("models", "definitions")),
        chain_names=tuple(root.entries("chains")),
        kind_names=tuple(name for name in root.entries("agents") if name not in BOUNDS),
        servers=servers,
        found_servers=found_servers,
        passed_over=found.passed_over,
        environ=environ,
        _root=root,
        _cwd=cwd,
        **read_fields(Settings, {name: _find(root, key) for name, key in Settings.key_by_field().items()}),
    )
    _check_values(settings)
    if found.is_own:
        return settings
    sensitive = trust.sensitive_values(user, shipped)
    judged = tuple(dict.fromkeys(each.judged for each in sensitive))
    digest = trust.digest_of(user, judged)
    state = xdg_folder(environ, "XDG_STATE_HOME", ".local/state")
    asked = () if state is not None and is_trusted(digest, state) else sensitive
    return replace(settings, untrusted_values=asked, digest=digest, _judged=judged)


def state_folder(environ: Mapping[str, str]) -> Path:
    """Return ``$XDG_STATE_HOME/chain``, by default ``~/.local/state/chain``.

    Raise ``ConfigError`` if neither is known.
    """
    folder = xdg_folder(environ, "XDG_STATE_HOME", ".local/state")
    if folder is None:
        raise ConfigError("there is no place for the state: set HOME or XDG_STATE_HOME to a full path")
    return folder


def require_trust(settings: Settings) -> None:
    """Raise ``ConfigError`` if values of the file still need trust."""
    if settings.untrusted_values:
        keys = ", ".join(map(yamlfile.printable, settings.untrusted))
        raise ConfigError(
            f"this file was found, not named, and is not trusted yet: it sets {keys}; "
            f"if you trust it, name it with --config {settings.file}",
            file=settings.file,
            line=settings.untrusted_values[0].line,
        )


def remember_trust(settings: Settings, state: Path) -> Settings:
    """Store that the user trusts this configuration, and return it as trusted. Raise ``UserError`` if that fails."""
    trust.remember(settings.digest, state)
    return replace(settings, untrusted_values=())


def _apply_overrides(root: Node, flags: Mapping[str, object], environ: Mapping[str, str]) -> Node:
    """Return the configuration with the values of flags and of environment variables. A flag overrides its variable."""
    for name, places in _OVERRIDES.items():
        value, source = flags.get(name), f"flag --{name.replace('_', '-')}"
        if value in (None, [], ()):
            source = f"CHAIN_{name.upper()}"
            value = environ.get(source, "").strip()
            if not value:
                continue
        node = Node(str(value).strip(), source, 0, "")
        if name == "max_iterations":
            if not re.fullmatch("0*[1-9][0-9]{0,8}", node.value):
                raise node.error(f"must be a whole number of at least 1, found {node.value!r:.60}")
            node = replace(node, value=int(node.value))
        elif name == "allow":
            node = replace(node, value=[replace(node, value=part) for part in split_names(value)])
        for place in places:
            # A kind without a model uses the model of the agent that starts it.
            root = root.with_value(place, replace(node, value=None) if place == "agents.*.model" else node)
    return root


def split_names(value: object) -> list[str]:
    """Return the names in a comma-separated string, or in a list of such strings."""
    lists = value if isinstance(value, list | tuple) else [value]
    return [name.strip() for each in lists for name in split_commas(str(each)) if name.strip()]


def _check_values(settings: Settings) -> None:
    """Read every value once, so that an error is reported even if the value is never used."""
    root = settings._root
    definitions, chains = _find(root, "models.definitions").mapping(), _find(root, "chains").mapping()
    agents = _find(root, "agents").mapping()
    for name, node in [*definitions.items(), *chains.items()]:
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{name!r:.60} cannot be a name; use a word", file=node.file, line=node.line)
    _select("model", settings.default_model, definitions, _find(root, "models.default"))
    _select("chain", settings.default_chain, chains, _find(root, "chain"))
    for name, node in definitions.items():
        with suppress(MissingVariable):
            read_model(name, node)
    for bound in BOUNDS:
        with suppress(MissingVariable):
            count(agents[bound])
    kinds = {name: agents[name] for name in settings.kind_names}
    for read_one, nodes in ((settings.chain, chains), (settings.kind, kinds)):
        for name, node in nodes.items():
            with suppress(MissingVariable):
                if (model := read_one(name).model) is not None:
                    _select("model", model, definitions, node.entries().get("model"))


def _select(kind: str, name: str, nodes: Mapping[str, Node], place: Node | None = None) -> Node:
    """Return the node with this name. If there is none, raise ``ConfigError`` with the file and line of ``place``."""
    if name in nodes:
        return nodes[name]
    known = list(nodes)
    all_known = f"the only {kind} is {known[0]}" if len(known) == 1 else f"the {kind}s are {', '.join(known)}"
    written = name if place is None else str(place.value)
    message = f"there is no {kind} {written!r:.60}: {did_you_mean(written, known, all_known, 0.5)}"
    raise ConfigError(message) if place is None else place.error(message)


def _find(root: Node, key: str) -> Node:
    """Return the value at a dotted key that the shipped file contains."""
    node = root.find(key)
    assert node is not None
    return node
