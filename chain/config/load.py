"""The configuration: found, put over what is shipped, and read into frozen settings.

A value is the first that is given by a flag, the environment (``CHAIN_MODEL``, ...), the user's file, the shipped file
(``layers`` has the rules for these two).

A ``./config.yaml`` that was merely found may come from anybody. ``trust`` decides what it may not set before the user
trusted it, and ``Settings.model`` gives nothing out until then.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import get_args

from chain.config import trust, yamlfile
from chain.config.layers import INBOX_KEYS, MODELS_KEYS, TOOLS_KEYS, TOP_KEYS, find_file, merge, xdg_folder
from chain.config.provider import ModelSettings, providers, read_model, with_environment
from chain.config.servers import ToolServer, read_servers
from chain.config.settings import (
    BOUNDS,
    AgentsSettings,
    ChainSettings,
    KindSettings,
    Notify,
    ShellSettings,
    read,
    read_file_names,
    read_kind,
    read_word,
)
from chain.config.trust import Sensitive, is_trusted
from chain.config.values import MissingVariable, Values, variables, variables_within
from chain.config.yamlfile import Node
from chain.errors import ConfigError, UnreadableFile, did_you_mean
from chain.text.listed import listed

_NAME = re.compile(r"\w[\w.-]*")
"""Names of models and chains are shown to the user, also in the question whether to trust a file: nothing in them may
end a line or steer a terminal."""

_NO_KEYS = frozenset({"HOME", "LANG", "LOGNAME", "PATH", "PWD", "SHELL", "TMPDIR", "USER"})
"""What an entry of a server may name as well, as in ``${HOME}/bin/server``, and no command could do without."""

_OVERRIDES = {
    "model": ("models.default", "chains.*.model", "agents.*.model"),
    "chain": ("chain",),
    "max_iterations": ("chains.*.max_iterations",),
    "allow": ("tools.allow",),
    "state": ("state",),
}
"""The flags that override the files, as ``CHAIN_MODEL`` and so on in the environment do, and the keys that they set."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The whole configuration.

    ``file`` is the user's, if any. ``default_model`` is for chains that name none, ``default_chain`` runs unless
    another is asked for. ``allow`` are calls that need no approval, as written. ``passed_over`` is why a file like a
    configuration is not used. ``instructions`` are names of files with a project's instructions. ``servers`` are
    those of tools, and ``found_servers`` says whether those may start that a workspace names. ``state`` is the
    address of a Redis that keeps the sessions, if it is no folder; it may hold a password. ``asked`` is what a found
    file needs trust for, and ``digest`` what that is remembered by.
    """

    file: Path | None
    default_model: str
    default_chain: str
    inbox_size: int
    notify: Notify
    instructions: tuple[str, ...]
    state: str = field(repr=False)
    tool_timeout_s: float
    tool_result_limit: int
    allow: tuple[str, ...]
    shell: ShellSettings
    research_hosts: tuple[str, ...]
    servers: tuple[ToolServer, ...]
    found_servers: Mapping[str, bool]
    passed_over: ConfigError | None
    _root: Node = field(repr=False)
    _values: Values = field(repr=False)
    _cwd: Path = field(repr=False)
    asked: tuple[Sensitive, ...] = ()
    digest: str = ""
    _judged: tuple[str, ...] | None = field(default=None, repr=False)
    """Of a file that was merely found: what in it needs trust, whether it was given or not."""

    @property
    def model_names(self) -> tuple[str, ...]:
        """The names of the models' definitions."""
        return tuple(self._root.entries("models", "definitions"))

    @property
    def chain_names(self) -> tuple[str, ...]:
        """The names of the chains."""
        return tuple(self._root.entries("chains"))

    @property
    def kind_names(self) -> tuple[str, ...]:
        """The names of the kinds of agents: those that are built in, then the user's own."""
        return tuple(self._kinds)

    @property
    def agents(self) -> AgentsSettings:
        """The kinds of agents and the bounds for them. Raises ``ConfigError`` for a variable that is missing."""
        nodes = self._root.entries("agents")
        bounds = {key: self._values.integer(nodes[key]) for key in BOUNDS}
        return AgentsSettings(**bounds, kinds=tuple(self.kind(name) for name in self._kinds))

    @property
    def _kinds(self) -> dict[str, Node]:
        return {name: node for name, node in self._root.entries("agents").items() if name not in BOUNDS}

    @property
    def untrusted(self) -> tuple[str, ...]:
        """The keys of a found file that must be trusted first."""
        return tuple(dict.fromkeys(each.setting for each in self.asked))

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment that the configuration was read in."""
        return self._values.environ

    @property
    def config_folder(self) -> Path | None:
        """The folder of the user's configuration, if it is known."""
        return xdg_folder(self.environ, "XDG_CONFIG_HOME", ".config")

    @property
    def trusted_places(self) -> tuple[Path, ...]:
        """The folders of the user's configuration, and of sessions and what is trusted, as far as they are known.

        With the file, but for one that was merely found, which is judged again when it has changed.
        """
        state = xdg_folder(self.environ, "XDG_STATE_HOME", ".local/state")
        file = self.file if self._judged is None else None
        return tuple(place for place in (self.config_folder, state, file) if place is not None)

    def named_files(self) -> Iterator[Path]:
        """Yield the shipped file and the user's, if any, and each that they name. Reads the disk."""
        yield from (defaults_folder() / "config.yaml", *([self.file] if self.file else []))
        yield from trust.named_files(self._root, self.environ)

    @property
    def key_variables(self) -> frozenset[str]:
        """The environment variables that hold secrets of the models' definitions and of the user's own servers."""
        definitions = self._root.entries("models", "definitions").values()
        nodes = [definition.entries().get(key) for definition in definitions for key in trust.sensitive_keys()]
        usual = {each.usual.strip("${}") for each in providers().values()} - {""}
        given = {name for server in self.servers for name in variables_within(server.entry)} - _NO_KEYS
        return frozenset({*usual, *given, *(name for node in nodes for name in variables_within(node))})

    def model(self, name: str | None = None) -> ModelSettings:
        """Return a definition with its variables filled in, by default that of the default chain.

        Raises ``ConfigError``: there is none of that name, a variable is missing, or the file is not trusted yet.
        """
        require_trust(self)
        name = name or self.chain().model
        definitions = self._root.entries("models", "definitions")
        if name not in definitions:
            raise ConfigError(_unknown("model", name, definitions))
        place = f"models.definitions.{name}"
        return read_model(name, definitions[name], self._values, lambda key: self.within(f"{place}.{key}"))

    def chain(self, name: str | None = None) -> ChainSettings:
        """Return a chain by name, or the default one. Raises ``ConfigError`` as ``model`` does. Needs no trust."""
        name = name or self.default_chain
        chains = self._root.entries("chains")
        if name not in chains:
            raise ConfigError(_unknown("chain", name, chains))
        chain = read(self._values, ChainSettings, chains[name], name=name)
        return chain if chain.model else replace(chain, model=self.default_model)

    def kind(self, name: str) -> KindSettings:
        """Return a kind of agent by name. Raises ``ConfigError`` as ``chain`` does."""
        if name not in self._kinds:
            raise ConfigError(_unknown("kind", name, self._kinds))
        return read_kind(self._values, name, self._kinds[name])

    def read_file(self, key: str, path: Path) -> Node:
        """Read the YAML file that a dotted key names. Raises ``ConfigError``, at the key if it cannot be opened."""
        try:
            return yamlfile.read(path, self.within(key))
        except UnreadableFile as error:
            raise self.error(key, f"{error.file} {error.message}") from None

    def within(self, key: str, judged: str = "") -> Path | None:
        """Return the folder that must contain the file named at a dotted key: a link can change after it was trusted.

        ``None`` means any folder. ``judged`` is what trust would hold for, if not for the key itself.
        """
        if self.file is None or self._judged is None or (judged or key) in self._judged:
            return None
        node = _find(self._root, key)
        return self.file.parent if node is not None and node.file == str(self.file) else None

    def source(self, key: str) -> str:
        """Return where a value is from: ``flag --model``, ``CHAIN_MODEL``, ``config.yaml:12, VARIABLE`` or ``default``.

        ``key`` is dotted, as in ``chains.default.tools``; ``chain`` is the choice of the default chain.
        """
        node = _find(self._root, key)
        if node is not None and node.is_final:
            return node.file
        if node is None or node.file != str(self.file):
            place = "default"
        else:
            path = Path(node.file)
            place = f"{path.relative_to(self._cwd) if path.is_relative_to(self._cwd) else path}:{node.line}"
        return ", ".join([place, *variables(node)])

    def error(self, key: str, message: str, *, item: int | None = None) -> ConfigError:
        """Return the error for the value at a dotted key, or for an ``item`` of it, with where that is from."""
        node = _find(self._root, key)
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
    """Find the configuration, read and check it. Raises ``ConfigError``.

    ``skip_here`` leaves a ``./config.yaml`` aside that nobody named. Of ``flags`` only ``model``, ``chain``,
    ``max_iterations``, ``allow`` and ``state`` are read. What needs a variable that is not set is checked when it is
    used.
    """
    shipped = yamlfile.read(defaults_folder() / "config.yaml")
    found = find_file(config, environ, cwd, skip_here=skip_here)
    user = found.content
    own = list(user.entries("chains"))
    merged = merge(user, shipped)
    merged.mapping(TOP_KEYS)
    chosen = Node(own[0] if len(own) == 1 else "default", "", 1, "chain")
    root = _overridden(replace(merged, value={**merged.value, "chain": chosen}), flags or {}, environ)
    root = with_environment(root, environ)
    top = root.entries()
    models, tools = top["models"].mapping(MODELS_KEYS), top["tools"].mapping(TOOLS_KEYS)
    values = Values(environ)
    servers, found_servers = read_servers(top["mcp"])
    settings = Settings(
        file=found.file,
        default_model=values.text(models["default"]),
        default_chain=top["chain"].text(),
        inbox_size=values.integer(top["inbox"].mapping(INBOX_KEYS)["size"]),
        notify=read_word(values, top["notify"], get_args(Notify)),
        instructions=read_file_names(values, top["instructions"]),
        state=values.text(top["state"]),
        tool_timeout_s=values.seconds(tools["timeout_s"]),
        tool_result_limit=values.integer(tools["result_limit"]),
        allow=values.names(tools["allow"]),
        shell=read(values, ShellSettings, tools["shell"]),
        research_hosts=values.names(tools["research"].mapping(("hosts",))["hosts"]),
        servers=servers,
        found_servers=found_servers,
        passed_over=found.passed_over,
        _root=root,
        _values=values,
        _cwd=cwd,
    )
    _check(settings)
    if found.is_own:
        return settings
    sensitive = trust.sensitive(user, shipped, environ)
    judged = tuple(dict.fromkeys(each.judged for each in sensitive))
    digest = trust.digest_of(user, judged)
    state = xdg_folder(environ, "XDG_STATE_HOME", ".local/state")
    asked = () if state is not None and is_trusted(digest, state) else sensitive
    return replace(settings, asked=asked, digest=digest, _judged=judged)


def defaults_folder() -> Path:
    """Return the folder with the shipped ``config.yaml`` and ``prompts``: in the package, or in a checkout above it."""
    package = Path(__file__).parent.parent
    installed = package / "defaults"
    return installed if installed.is_dir() else package.parent


def state_folder(environ: Mapping[str, str]) -> Path:
    """Return ``$XDG_STATE_HOME/chain``, by default ``~/.local/state/chain``. Raises ``ConfigError`` without either."""
    folder = xdg_folder(environ, "XDG_STATE_HOME", ".local/state")
    if folder is None:
        raise ConfigError("there is no place for the state: set HOME or XDG_STATE_HOME to a full path")
    return folder


def require_trust(settings: Settings) -> None:
    """Raise ``ConfigError`` if the file was merely found and sets what only a trusted one may."""
    if settings.asked:
        keys = ", ".join(map(yamlfile.printable, settings.untrusted))
        raise ConfigError(
            f"this file was found, not named, and is not trusted yet: it sets {keys}; "
            f"if you trust it, name it with --config {settings.file}",
            file=settings.file,
            line=settings.asked[0].line,
        )


def remember_trust(settings: Settings, state: Path) -> Settings:
    """Store that the user trusts this configuration, and return it as trusted. Raises ``UserError``."""
    trust.remember(settings.digest, state)
    return replace(settings, asked=())


def _overridden(root: Node, flags: Mapping[str, object], environ: Mapping[str, str]) -> Node:
    """Replace values by those of flags, and of environment variables whose flags are not given."""
    for name, places in _OVERRIDES.items():
        value, source = flags.get(name), f"flag --{name.replace('_', '-')}"
        if value in (None, [], ()):
            source = f"CHAIN_{name.upper()}"
            value = environ.get(source, "").strip()
            if not value:
                continue
        node = Node(str(value).strip(), source, 0, "", is_final=True)
        if name == "max_iterations":
            node = replace(node, value=_positive(node))
        elif name == "allow":
            node = replace(node, value=[replace(node, value=part) for part in split_names(value)])
        for place in places:
            # A kind without a model uses the model of the agent that starts it.
            root = root.replaced(place, replace(node, value=None) if place == "agents.*.model" else node)
    return root


def _positive(node: Node) -> int:
    with suppress(ValueError):
        if (number := int(node.value)) >= 1:
            return number
    raise node.error(f"must be a whole number of at least 1, found {node.value!r:.60}")


def split_names(value: object) -> list[str]:
    """Return the names in a list with commas, or in several such lists."""
    lists = value if isinstance(value, list | tuple) else [value]
    return [name.strip() for each in lists for name in listed(str(each)) if name.strip()]


def _check(settings: Settings) -> None:
    """Read everything once, so that a mistake is reported now, though some of it may never be used."""
    root, values = settings._root, settings._values
    models, top = root.entries("models"), root.entries()
    definitions, chains, bounds = models["definitions"].mapping(), top["chains"].mapping(), top["agents"].mapping()
    for name, node in [*definitions.items(), *chains.items()]:
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{name!r:.60} cannot be a name: take a word", file=node.file, line=node.line)
    if settings.default_model not in definitions:
        raise models["default"].error(_unknown("model", models["default"].text(), definitions))
    if settings.default_chain not in chains:
        raise top["chain"].error(_unknown("chain", settings.default_chain, chains))
    for name, node in definitions.items():
        with suppress(MissingVariable):
            read_model(name, node, values)
    for bound in BOUNDS:
        with suppress(MissingVariable):
            values.integer(bounds[bound])
    named: tuple[Callable[[str], ChainSettings | KindSettings], ...] = (settings.chain, settings.kind)
    for read_named, nodes in zip(named, (chains, settings._kinds), strict=True):
        for name, node in nodes.items():
            with suppress(MissingVariable):
                model = read_named(name).model
                if model is not None and model not in definitions:
                    written = node.entries()["model"]
                    raise written.error(_unknown("model", written.text(), definitions))


def _unknown(kind: str, name: str, names: Iterable[str]) -> str:
    known = list(names)
    all_known = f"the only {kind} is {known[0]}" if len(known) == 1 else f"the {kind}s are {', '.join(known)}"
    return f"there is no {kind} {name!r:.60}: {did_you_mean(name, known, all_known, 0.5)}"


def _find(node: Node, key: str) -> Node | None:
    """Return the value at a dotted key; names may hold dots themselves."""
    for name, child in node.entries().items():
        if key == name:
            return child
        if key.startswith(f"{name}.") and (found := _find(child, key[len(name) + 1 :])) is not None:
            return found
    return None
