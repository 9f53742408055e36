"""The configuration: found, put over what is shipped, and read into frozen settings.

A value is the first that is given by a flag, the environment (``CHAIN_MODEL``, ...), the user's file, the shipped file
(``layers`` has the rules for these two).

A ``./config.yaml`` that was merely found may come from anybody. ``trust`` decides what it may not set before the user
trusted it, and ``Settings.model`` gives nothing out until then.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from chain import yamlfile
from chain.config import layers, trust
from chain.config.settings import KEY_VARIABLE, ChainSettings, ModelSettings, ShellSettings
from chain.config.trust import is_trusted
from chain.config.values import MissingVariable, Values, variables, variables_within
from chain.errors import ConfigError
from chain.yamlfile import Node

_OVERRIDES = {name: f"CHAIN_{name.upper()}" for name in ("model", "chain", "max_iterations", "allow")}
"""What a flag may set, with the environment variable that may set it as well."""

_NAME = re.compile(r"\w[\w.-]*")
"""Names of models and chains are shown to the user, also in the question whether to trust a file: nothing in them may
end a line or steer a terminal."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The whole configuration.

    ``file`` is the user's, ``None`` where only the shipped values hold. ``default_model`` is for chains that name no
    model, ``default_chain`` runs unless another is asked for. ``allow`` are the calls that need no approval, as they
    were written, and ``research_hosts`` the hosts. ``untrusted`` are the keys of a found file that must be trusted
    first, and ``digest`` is what trust is remembered by.
    """

    file: Path | None
    default_model: str
    default_chain: str
    inbox_size: int
    tool_timeout_s: float
    tool_result_limit: int
    allow: tuple[str, ...]
    shell: ShellSettings
    research_hosts: tuple[str, ...]
    untrusted: tuple[str, ...]
    digest: str
    _root: Node = field(repr=False)
    _given: Mapping[str, _Given] = field(repr=False)
    _values: Values = field(repr=False)
    _cwd: Path = field(repr=False)
    _judged: tuple[str, ...] | None = field(default=None, repr=False)
    """Of a file that was merely found: the keys in it that need trust, whether it was given or not."""

    @property
    def model_names(self) -> tuple[str, ...]:
        """The names of the models' definitions."""
        return tuple(self._root.entries("models", "definitions"))

    @property
    def chain_names(self) -> tuple[str, ...]:
        """The names of the chains."""
        return tuple(self._root.entries("chains"))

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment that the configuration was read in."""
        return self._values.environ

    @property
    def key_variables(self) -> frozenset[str]:
        """The environment variables that models' definitions take keys, headers and the like from."""
        definitions = self._root.entries("models", "definitions").values()
        nodes = [definition.entries().get(key) for definition in definitions for key in trust.SENSITIVE]
        return frozenset({KEY_VARIABLE, *(name for node in nodes for name in variables_within(node))})

    def model(self, name: str | None = None) -> ModelSettings:
        """A definition with its variables filled in, by default that of the default chain.

        Raises ``ConfigError``: there is none of that name, a variable is missing, or the file is not trusted yet.
        """
        require_trust(self)
        name = name or self.chain().model
        definitions = self._root.entries("models", "definitions")
        if name not in definitions:
            raise ConfigError(_unknown("model", name, definitions))
        within = self.within(f"models.definitions.{name}.script")
        return replace(self._values.model(name, definitions[name]), within=within)

    def chain(self, name: str | None = None) -> ChainSettings:
        """A chain by name, or the default one. Raises ``ConfigError`` as ``model`` does, but for the trust."""
        name = name or self.default_chain
        chains = self._root.entries("chains")
        if name not in chains:
            raise ConfigError(_unknown("chain", name, chains))
        settings = self._values.chain(name, chains[name], self.default_model)
        if "model" in self._given:
            settings = replace(settings, model=self.default_model)
        if "max_iterations" in self._given:
            settings = replace(settings, max_iterations=self._given["max_iterations"].integer())
        return settings

    def within(self, key: str) -> Path | None:
        """The folder that the file named at a dotted key must be in whenever it is read; ``None`` for anywhere.

        A file that was merely found was judged by where the paths in it lead, and a link may lead elsewhere later.
        """
        node = _find(self._root, key)
        if self._judged is None or self.file is None or node is None or node.file != str(self.file):
            return None
        return None if key in self._judged else self.file.parent

    def source(self, key: str) -> str:
        """Where a value is from: ``flag --model``, ``CHAIN_MODEL``, ``config.yaml:12``, ``default``.

        ``key`` is dotted, as in ``chains.default.tools``; ``chain`` is the choice of the default chain. A place is
        followed by the variables that the value is made of.
        """
        override = {"models.default": "model", "tools.allow": "allow"}.get(key, key)
        if key.startswith("chains.") and key.endswith((".model", ".max_iterations")):
            override = key.rpartition(".")[2]
        if override in self._given:
            return self._given[override].source
        node = _find(self._root, key)
        if node is None and key.endswith(".model"):
            return self.source("models.default")
        if node is None or node.file != str(self.file):
            place = "default"
        else:
            path = Path(node.file)
            place = f"{path.relative_to(self._cwd) if path.is_relative_to(self._cwd) else path}:{node.line}"
        return ", ".join([place, *variables(node)])


@dataclass(frozen=True, slots=True)
class _Given:
    """A value from a flag or from the environment."""

    value: object
    source: str

    def text(self) -> str:
        return str(self.value).strip()

    def integer(self) -> int:
        try:
            number = int(self.text())
        except ValueError:
            number = 0
        if number < 1:
            raise ConfigError(f"{self.source}: must be a whole number of at least 1, found {self.text()!r:.60}")
        return number

    def names(self) -> tuple[str, ...]:
        parts = self.value if isinstance(self.value, list | tuple) else [self.value]
        return tuple(name.strip() for part in parts for name in _listed(str(part)) if name.strip())


def _listed(text: str) -> list[str]:
    """The parts of a list with commas; one in brackets belongs to a pattern: ``read,shell(git log --format=%h,%s)``."""
    parts, depth = [""], 0
    for char in text:
        depth += (char == "(") - (char == ")")
        if char == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def load_settings(
    *, config: Path | None, environ: Mapping[str, str], cwd: Path, flags: Mapping[str, object] | None = None
) -> Settings:
    """Find the configuration and read it. Raises ``ConfigError``.

    ``config`` is what ``--config`` names. Of ``flags`` only ``model``, ``chain``, ``max_iterations`` and ``allow`` are
    read; ``None`` and an empty list are flags that were not given. All of the file is checked now, but for what waits
    for a variable that is not set.
    """
    shipped = yamlfile.read(defaults_folder() / "config.yaml")
    file, user, is_named = _find_file(config, environ, cwd)
    root = layers.put_over(user, shipped)
    top = root.mapping(("models", "chains", "inbox", "tools"))
    models = top["models"].mapping(("default", "definitions"))
    tools = top["tools"].mapping(("timeout_s", "result_limit", "allow", "shell", "research"))
    values, given = Values(environ), _given(flags or {}, environ)
    own = list(user.entries("chains"))
    settings = Settings(
        file=file,
        default_model=given["model"].text() if "model" in given else values.text(models["default"]),
        default_chain=given["chain"].text() if "chain" in given else own[0] if len(own) == 1 else "default",
        inbox_size=values.integer(top["inbox"].mapping(("size",))["size"]),
        tool_timeout_s=values.seconds(tools["timeout_s"]),
        tool_result_limit=values.integer(tools["result_limit"]),
        allow=given["allow"].names() if "allow" in given else values.names(tools["allow"]),
        shell=values.shell(tools["shell"]),
        research_hosts=values.names(tools["research"].mapping(("hosts",))["hosts"]),
        untrusted=(),
        digest="",
        _root=root,
        _given=given,
        _values=values,
        _cwd=cwd,
    )
    _check(settings, models["default"], models["definitions"], top["chains"])
    if is_named:
        return settings
    asked = untrusted = trust.sensitive_keys(user, shipped, environ)
    digest = trust.digest_of(user, untrusted)
    state = _xdg(environ, "XDG_STATE_HOME", ".local/state")
    if state is not None and is_trusted(digest, state):
        untrusted = ()
    return replace(settings, untrusted=untrusted, digest=digest, _judged=asked)


def defaults_folder() -> Path:
    """The folder with the shipped ``config.yaml`` and ``prompts``: in the package, or in a checkout above it."""
    package = Path(__file__).parent.parent
    installed = package / "defaults"
    return installed if installed.is_dir() else package.parent


def state_folder(environ: Mapping[str, str]) -> Path:
    """``$XDG_STATE_HOME/chain``, by default ``~/.local/state/chain``. Raises ``ConfigError`` if neither is known."""
    folder = _xdg(environ, "XDG_STATE_HOME", ".local/state")
    if folder is None:
        raise ConfigError("there is no place for the state: set HOME or XDG_STATE_HOME to a full path")
    return folder


def require_trust(settings: Settings) -> None:
    """Raise ``ConfigError`` if the file was merely found and sets what only a trusted one may."""
    if settings.untrusted:
        raise ConfigError(
            f"this file was found, not named, and sets {', '.join(settings.untrusted)}: "
            f"if you trust it, name it with --config {settings.file}",
            file=settings.file,
        )


def remember_trust(settings: Settings, state: Path) -> Settings:
    """Note in the state folder that the user trusts this configuration; returns it as trusted.

    Raises ``UserError`` if it cannot be written down.
    """
    trust.remember(settings.digest, state)
    return replace(settings, untrusted=())


def _find_file(config: Path | None, environ: Mapping[str, str], cwd: Path) -> tuple[Path | None, Node, bool]:
    """The file that holds, if any, what is in it, and whether the user named or owns it, rather than came across it."""
    if config is not None or environ.get("CHAIN_CONFIG"):
        named = cwd / (config if config is not None else environ["CHAIN_CONFIG"])
        if not os.path.exists(named):
            by = "--config" if config is not None else "CHAIN_CONFIG"
            raise ConfigError(f"there is no such file, which {by} names", file=named)
        return named, yamlfile.read(named), True
    here = cwd / "config.yaml"
    if os.path.isfile(here) and (root := _ours(here)) is not None:
        return here, root, False
    home = _xdg(environ, "XDG_CONFIG_HOME", ".config")
    if home is not None and os.path.isfile(home / "config.yaml"):
        return home / "config.yaml", yamlfile.read(home / "config.yaml"), True
    return None, Node(None, "", 1, ""), True


def _ours(path: Path) -> Node | None:
    """The content of a ``config.yaml`` if it is one of this program: others have files of that name too."""
    try:
        root = yamlfile.read(path)
    except ConfigError:
        # Not YAML that we read. That is no business of ours unless it was meant for us.
        try:
            with path.open("rb") as file:
                meant = re.search(rb"^[\"']?chains[\"']?\s*:", file.read(yamlfile.MAX_BYTES), re.MULTILINE)
        except OSError:
            meant = None
        if meant is None:
            return None
        raise
    return root if isinstance(root.value, dict) and "chains" in root.value else None


def _xdg(environ: Mapping[str, str], variable: str, fallback: str) -> Path | None:
    """Our folder beneath an XDG one. Relative paths are ignored, as the XDG specification demands."""
    for folder in (Path(environ.get(variable, "")), Path(environ.get("HOME", ""), fallback)):
        if folder.is_absolute():
            return folder / "chain"
    return None


def _given(flags: Mapping[str, object], environ: Mapping[str, str]) -> dict[str, _Given]:
    given = {}
    for name, variable in _OVERRIDES.items():
        flag = flags.get(name)
        if flag not in (None, [], ()):
            given[name] = _Given(flag, f"flag --{name.replace('_', '-')}")
        elif environ.get(variable, "").strip():
            given[name] = _Given(environ[variable], variable)
    return given


def _check(settings: Settings, default: Node, definitions: Node, chains: Node) -> None:
    """Read everything once, so that a mistake is reported now, though some of it may never be used."""
    for name, node in [*definitions.mapping().items(), *chains.mapping().items()]:
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{name!r:.60} cannot be a name: take a word", file=node.file, line=node.line)
    for kind, names in (("model", settings.model_names), ("chain", settings.chain_names)):
        given = settings._given.get(kind)
        if given is not None and given.text() not in names:
            raise ConfigError(f"{given.source}: {_unknown(kind, given.text(), names)}")
    if "max_iterations" in settings._given:
        settings._given["max_iterations"].integer()
    if settings.default_model not in settings.model_names:
        raise default.error(_unknown("model", default.text(), settings.model_names))
    for name, node in definitions.mapping().items():
        with suppress(MissingVariable):
            settings._values.model(name, node)
    for name, node in chains.mapping().items():
        with suppress(MissingVariable):
            if settings.chain(name).model not in settings.model_names:
                model = node.mapping()["model"]
                raise model.error(_unknown("model", model.text(), settings.model_names))


def _unknown(kind: str, name: str, names: Iterable[str]) -> str:
    import difflib  # only for a mistake, and the prompt waits for every import

    near = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"the {kind}s are {', '.join(names)}"
    return f"there is no {kind} {name!r:.60}: {hint}"


def _find(node: Node, key: str) -> Node | None:
    """The value at a dotted key; names may hold dots themselves."""
    for name, child in node.entries().items():
        if key == name:
            return child
        if key.startswith(f"{name}.") and (found := _find(child, key[len(name) + 1 :])) is not None:
            return found
    return None
