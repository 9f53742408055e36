"""The configuration: YAML to frozen settings.

A value is the first that is given by a flag, the environment (``CHAIN_MODEL``, ...), the user's file, the shipped file.
How a user's file is put over the shipped one:

- Mappings are merged key by key, all else replaces what was shipped.
- A model's definition that names another provider replaces the shipped one of its name. One with a ``base_url`` does
  not take over the shipped ``api_key``: a key never goes to an address that it was not written for.
- A chain of a new name takes what it leaves out from the shipped chain ``default``. A file with a ``models.default``
  means it for every chain that names no model.

``${VAR}`` and ``${VAR:-default}`` are filled in wherever a value is a text or a number (``$${`` is a plain ``${``), but
only when the value is needed. Errors show a value as it was written, never as filled in: it may be a key.

A ``./config.yaml`` that was merely found may come from anybody. ``_sensitive_keys`` decides what it may not set before
the user trusted it, and ``Settings.model`` gives nothing out until then.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from chain import yamlfile
from chain.errors import ConfigError, UserError
from chain.yamlfile import Node

MAX_TOKENS = 8192
"""Long enough for a long answer with a file in it, short enough to stream well within ``TIMEOUT_S``."""
TIMEOUT_S = 600.0
"""For a whole reply. The service ends a request after ten minutes itself."""
IDLE_TIMEOUT_S = 120.0
"""Between two pieces of a reply. The service sends a ping every few seconds; a local server on a slow machine needs a
minute or two for the prompt before its first word."""
MAX_ATTEMPTS = 4
"""With exponential backoff: outlasts a rate limit of some seconds, and the user still waits less than a minute."""
MIN_TIMEOUT_S = 0.01
"""A time limit of 0 would end everything before it began, where "no limit" was meant."""
CACHE_READ_PRICE, CACHE_WRITE_PRICE = 0.1, 1.25
"""Times the price of input, as Anthropic charges, where a price names only input and output."""

KEY_REFERENCE = "${ANTHROPIC_API_KEY}"
"""The key of a definition that names neither a key nor an address."""

Provider = Literal["anthropic", "scripted"]
_PROVIDERS: tuple[Provider, ...] = ("anthropic", "scripted")

_OVERRIDES = {name: f"CHAIN_{name.upper()}" for name in ("model", "chain", "max_iterations", "allow")}
"""What a flag may set, with the environment variable that may set it as well."""

_REFERENCE = re.compile(r"\$\$\{|\$\{(?P<name>[A-Za-z_]\w*)(?P<default>:-(?P<value>[^}]*))?\}|\$\{", re.ASCII)
_NAME = re.compile(r"\w[\w.-]*")
"""Names of models and chains are shown to the user, also in the question whether to trust a file: nothing in them may
end a line or steer a terminal."""
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[\x20-\x7e]*")


class _MissingVariable(ConfigError):
    """A variable without a value, which is an error only when the value is needed."""


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars a million tokens."""

    input: float
    output: float
    cache_read: float
    cache_write: float


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """A model's definition, filled in. ``name`` is the definition's, ``model`` is what the service calls it.

    ``thinking`` is what the API takes. ``key_variable`` is the environment variable that the key is expected in.
    ``None`` is for what is not set.
    """

    name: str
    provider: Provider
    model: str
    script: Path | None = None
    api_key: str | None = field(default=None, repr=False)
    key_variable: str = "ANTHROPIC_API_KEY"
    base_url: str | None = None
    max_tokens: int = MAX_TOKENS
    effort: str | None = None
    temperature: float | None = None
    thinking: Mapping[str, Any] | None = None
    stop_sequences: tuple[str, ...] = ()
    timeout_s: float = TIMEOUT_S
    idle_timeout_s: float = IDLE_TIMEOUT_S
    max_attempts: int = MAX_ATTEMPTS
    system_messages: bool = False
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    extra_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    price: Price | None = None

    @property
    def lacks_key(self) -> bool:
        """Whether the service cannot be asked for want of a key. One with an address of its own may need none."""
        return self.provider == "anthropic" and self.base_url is None and self.api_key is None

    def require_key(self) -> None:
        """Raise ``ConfigError`` if the key is missing."""
        if self.lacks_key:
            raise ConfigError(f"no API key: set {self.key_variable} or use --model offline")


@dataclass(frozen=True, slots=True)
class Budget:
    """What a run may use; ``None`` is no limit."""

    max_tokens: int | None = None
    max_cost_usd: float | None = None


@dataclass(frozen=True, slots=True)
class ChainSettings:
    """A chain. ``model`` is the name of a definition, ``tools`` are names of groups or of single tools."""

    name: str
    model: str
    system_prompt: Path | None
    interruption_prompt: Path | None
    tools: tuple[str, ...]
    max_iterations: int
    timeout_s: float
    budget: Budget


@dataclass(frozen=True, slots=True)
class Settings:
    """The whole configuration.

    ``file`` is the user's, ``None`` where only the shipped values hold. ``default_model`` is for chains that name no
    model, ``default_chain`` runs unless another is asked for. ``allow`` are tools that need no approval. ``untrusted``
    are the keys of a found file that must be trusted first, and ``digest`` is what trust is remembered by.
    """

    file: Path | None
    default_model: str
    default_chain: str
    inbox_size: int
    tool_timeout_s: float
    tool_result_limit: int
    allow: tuple[str, ...]
    untrusted: tuple[str, ...]
    digest: str
    _root: Node = field(repr=False)
    _given: Mapping[str, _Given] = field(repr=False)
    _values: _Values = field(repr=False)
    _cwd: Path = field(repr=False)

    @property
    def model_names(self) -> tuple[str, ...]:
        """The names of the models' definitions."""
        return tuple(_entries(self._root, "models", "definitions"))

    @property
    def chain_names(self) -> tuple[str, ...]:
        """The names of the chains."""
        return tuple(_entries(self._root, "chains"))

    def model(self, name: str | None = None) -> ModelSettings:
        """A definition with its variables filled in, by default that of the default chain.

        Raises ``ConfigError``: there is none of that name, a variable is missing, or the file is not trusted yet.
        """
        require_trust(self)
        name = name or self.chain().model
        definitions = _entries(self._root, "models", "definitions")
        if name not in definitions:
            raise ConfigError(_unknown("model", name, definitions))
        return self._values.model(name, definitions[name])

    def chain(self, name: str | None = None) -> ChainSettings:
        """A chain by name, or the default one. Raises ``ConfigError`` as ``model`` does, but for the trust."""
        name = name or self.default_chain
        chains = _entries(self._root, "chains")
        if name not in chains:
            raise ConfigError(_unknown("chain", name, chains))
        settings = self._values.chain(name, chains[name], self.default_model)
        if "model" in self._given:
            settings = replace(settings, model=self.default_model)
        if "max_iterations" in self._given:
            settings = replace(settings, max_iterations=self._given["max_iterations"].integer())
        return settings

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
        variables = _variables(node)
        return ", ".join([place, *variables])


_DEFINITION_KEYS = tuple(f.name for f in fields(ModelSettings) if f.name not in ("name", "key_variable"))
_CHAIN_KEYS = tuple(f.name for f in fields(ChainSettings) if f.name != "name")


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
        return tuple(name.strip() for part in parts for name in str(part).split(",") if name.strip())


@dataclass(frozen=True, slots=True)
class _Values:
    """Reads settings out of the YAML and fills in the environment's variables. ``None`` for a node is its absence."""

    environ: Mapping[str, str]

    def model(self, name: str, definition: Node) -> ModelSettings:
        keys = {key: node for key, node in definition.mapping(_DEFINITION_KEYS).items() if node.value is not None}
        if "provider" not in keys:
            raise definition.error(f"needs a provider: {' or '.join(_PROVIDERS)}")
        provider = next((p for p in _PROVIDERS if p == self.text(keys["provider"])), None)
        if provider is None:
            raise keys["provider"].error(f"must be one of {', '.join(_PROVIDERS)}")
        needed = "model" if provider == "anthropic" else "script"
        if needed not in keys:
            raise definition.error(f"needs a {needed}, as its provider is {provider}")
        base_url = self._url(keys.get("base_url"))
        key = keys.get("api_key")
        if key is None and base_url is None:
            key = replace(definition, value=KEY_REFERENCE, key=f"{definition.key}.api_key")
        return ModelSettings(
            name=name,
            provider=provider,
            model=self.text(keys.get("model")) or name,
            script=self._path(keys.get("script")),
            api_key=self._key(key, needed=base_url is not None),
            key_variable=next(iter(_variables(key)), _variables(KEY_REFERENCE)[0]),
            base_url=base_url,
            max_tokens=self.integer(keys.get("max_tokens"), MAX_TOKENS),
            effort=self.text(keys.get("effort")) or None,
            temperature=self._number(keys["temperature"]) if "temperature" in keys else None,
            thinking=self._json(keys.get("thinking")) or None,
            stop_sequences=self.names(keys.get("stop_sequences")),
            timeout_s=self.seconds(keys.get("timeout_s"), TIMEOUT_S),
            idle_timeout_s=self.seconds(keys.get("idle_timeout_s"), IDLE_TIMEOUT_S),
            max_attempts=self.integer(keys.get("max_attempts"), MAX_ATTEMPTS),
            system_messages="system_messages" in keys and self._converted(keys["system_messages"]).boolean(),
            extra_body=self._json(keys.get("extra_body")),
            extra_headers=self._headers(keys.get("extra_headers")),
            price=self._price(keys["price"]) if "price" in keys else None,
        )

    def chain(self, name: str, node: Node, default_model: str) -> ChainSettings:
        keys = node.mapping(_CHAIN_KEYS)
        limits = keys["budget"].mapping(("max_tokens", "max_cost_usd"))
        budget = {key: limit for key, limit in limits.items() if limit.value is not None}
        return ChainSettings(
            name=name,
            model=self.text(keys.get("model")) or default_model,
            system_prompt=self._path(keys["system_prompt"]),
            interruption_prompt=self._path(keys["interruption_prompt"]),
            tools=self.names(keys["tools"]),
            max_iterations=self.integer(keys["max_iterations"]),
            timeout_s=self.seconds(keys["timeout_s"]),
            budget=Budget(
                max_tokens=self.integer(budget["max_tokens"]) if "max_tokens" in budget else None,
                max_cost_usd=self._number(budget["max_cost_usd"]) if "max_cost_usd" in budget else None,
            ),
        )

    def text(self, node: Node | None) -> str:
        """A text, empty for none."""
        return "" if node is None or node.value is None else self._fill(node).strip()

    def integer(self, node: Node | None, default: int = 0) -> int:
        return default if node is None else self._converted(node).integer(minimum=1)

    def seconds(self, node: Node | None, default: float = 0) -> float:
        return default if node is None else self._number(node, minimum=MIN_TIMEOUT_S)

    def names(self, node: Node | None) -> tuple[str, ...]:
        """A list of texts that are not blank."""
        items = [] if node is None or node.value is None else node.items()
        for item in items:
            if not item.text().strip():
                raise item.error("is blank")
        return tuple(self._fill(item) for item in items)

    def _fill(self, node: Node) -> str:
        def value(found: re.Match[str]) -> str:
            name = found["name"]
            if found[0] == "$${":
                return "${"
            if name is None:
                raise node.error("after ${ comes a variable's name and }; write $${ for a plain ${")
            # As in a shell, an empty variable takes the default as an unset one does.
            given = self.environ.get(name, "")
            if not given and found["default"] is not None:
                return found["value"]
            if name not in self.environ:
                hint = f"set it, or write ${{{name}:-}} to do without"
                raise _MissingVariable(
                    f"{node.key}: the environment variable {name} is not set: {hint}", file=node.file, line=node.line
                )
            return given

        return _REFERENCE.sub(value, node.text())

    def _converted(self, node: Node) -> Node:
        """What was written as a variable is read as the number or the truth value that the variable holds."""
        if not isinstance(node.value, str) or "${" not in node.value:
            return node
        filled = self._fill(node).strip()
        if filled.lower() in ("true", "false"):
            return replace(node, value=filled.lower() == "true")
        for convert in (int, float):
            try:
                return replace(node, value=convert(filled))
            except ValueError:
                continue
        return node

    def _number(self, node: Node, minimum: float = 0) -> float:
        return self._converted(node).number(minimum=minimum)

    def _path(self, node: Node | None) -> Path | None:
        text = self.text(node)
        if node is None or not text:
            return None
        if "\0" in text:
            raise node.error("is not a path")
        if text.startswith("~/") and self.environ.get("HOME"):
            return Path(self.environ["HOME"], text[2:])
        return Path(node.file).parent / text

    def _url(self, node: Node | None) -> str | None:
        text = self.text(node)
        if node is None or not text:
            return None
        try:
            url = urlsplit(text)
            usable = url.scheme in ("http", "https") and bool(url.hostname) and (url.port is None or url.port > 0)
        except ValueError:
            usable = False
        if not usable or not _HEADER_VALUE.fullmatch(text) or " " in text:
            raise node.error("must be an address that begins with http:// or https://")
        return text

    def _key(self, node: Node | None, *, needed: bool) -> str | None:
        if node is None:
            return None
        if not isinstance(node.value, str):
            raise node.error("expected text")  # without what was found
        try:
            key = self._fill(node).strip()
        except _MissingVariable:
            # With an address of its own, a definition that names a key means it. Else the lack is told when the model
            # is asked for, in words of its own.
            if needed:
                raise
            return None
        if not _HEADER_VALUE.fullmatch(key):
            raise node.error("holds what cannot be in a key")
        return key or None

    def _headers(self, node: Node | None) -> dict[str, str]:
        headers = {}
        if node is not None and not isinstance(node.value, dict):
            raise node.error("expected a mapping")  # without what was found: it may be a secret
        for name, value in node.mapping().items() if node is not None else ():
            if not _HEADER_NAME.fullmatch(name):
                raise value.error("is not the name of a header")
            if not isinstance(value.value, str):
                raise value.error("expected text; put it in quotes")
            headers[name] = self._fill(value).strip()
            if not _HEADER_VALUE.fullmatch(headers[name]):
                raise value.error("holds what cannot be in a header")
        return headers

    def _json(self, node: Node | None) -> dict[str, Any]:
        return {} if node is None else {key: self._plain(value) for key, value in node.mapping().items()}

    def _plain(self, node: Node) -> Any:  # noqa: ANN401 - JSON leaves here
        if isinstance(node.value, dict):
            return self._json(node)
        if isinstance(node.value, list):
            return [self._plain(item) for item in node.items()]
        return self._fill(node) if isinstance(node.value, str) else node.value

    def _price(self, node: Node) -> Price:
        keys = node.mapping(("input", "output", "cache_read", "cache_write"))
        if not {"input", "output"} <= keys.keys():
            raise node.error("needs input and output, in US dollars a million tokens")
        price = {key: self._number(value) for key, value in keys.items()}
        shares = {"cache_read": price["input"] * CACHE_READ_PRICE, "cache_write": price["input"] * CACHE_WRITE_PRICE}
        return Price(**{**shares, **price})


def load(
    *, config: Path | None, environ: Mapping[str, str], cwd: Path, flags: Mapping[str, object] | None = None
) -> Settings:
    """Find the configuration and read it. Raises ``ConfigError``.

    ``config`` is what ``--config`` names. Of ``flags`` only ``model``, ``chain``, ``max_iterations`` and ``allow`` are
    read; ``None`` and an empty list are flags that were not given. All of the file is checked now, but for what waits
    for a variable that is not set.
    """
    shipped = yamlfile.read(defaults_folder() / "config.yaml")
    file, user, is_named = _find_file(config, environ, cwd)
    root = shipped if user is None else _merged(user, _beneath(user, shipped))
    top = root.mapping(("models", "chains", "inbox", "tools"))
    models = top["models"].mapping(("default", "definitions"))
    tools = top["tools"].mapping(("timeout_s", "result_limit", "allow"))
    values, given = _Values(environ), _given(flags or {}, environ)
    own = list(_entries(user, "chains"))
    default_chain = own[0] if len(own) == 1 else "default"
    settings = Settings(
        file=file,
        default_model=given["model"].text() if "model" in given else values.text(models["default"]),
        default_chain=given["chain"].text() if "chain" in given else default_chain,
        inbox_size=values.integer(top["inbox"].mapping(("size",))["size"]),
        tool_timeout_s=values.seconds(tools["timeout_s"]),
        tool_result_limit=values.integer(tools["result_limit"]),
        allow=given["allow"].names() if "allow" in given else values.names(tools["allow"]),
        untrusted=(),
        digest="",
        _root=root,
        _given=given,
        _values=values,
        _cwd=cwd,
    )
    _check(settings, models["default"], models["definitions"], top["chains"])
    if user is None or is_named:
        return settings
    untrusted = tuple(dict.fromkeys(_sensitive_keys(user, shipped)))
    # The keys are in the digest since a link in the folder can make a file sensitive that has the same text elsewhere.
    digest = hashlib.sha256(json.dumps([user.plain(), untrusted], sort_keys=True).encode()).hexdigest()
    state = _xdg(environ, "XDG_STATE_HOME", ".local/state")
    if state is not None and is_trusted(digest, state):
        untrusted = ()
    return replace(settings, untrusted=untrusted, digest=digest)


def defaults_folder() -> Path:
    """The folder with the shipped ``config.yaml`` and ``prompts``: in the package, or in a checkout above it."""
    package = Path(__file__).parent
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


def is_trusted(digest: str, state: Path) -> bool:
    """Whether the user trusted a configuration of this digest before; ``state`` is the state folder."""
    try:
        return digest in (state / "trusted").read_text(encoding="ascii").split()
    except (OSError, UnicodeDecodeError):
        return False


def remember_trust(settings: Settings, state: Path) -> Settings:
    """Note in the state folder that the user trusts this configuration; returns it as trusted.

    Raises ``UserError`` if it cannot be written down.
    """
    file = state / "trusted"
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(descriptor, 0o600)
            os.write(descriptor, f"{settings.digest}\n".encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        raise UserError(f"the trust cannot be noted: {error.strerror}", file=file) from None
    return replace(settings, untrusted=())


def _find_file(config: Path | None, environ: Mapping[str, str], cwd: Path) -> tuple[Path | None, Node | None, bool]:
    """The file that holds, what is in it, and whether the user named or owns it, rather than came across it."""
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
    return None, None, True


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
    """Read everything once, so that a mistake is told now, though some of it may never be used."""
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
        with suppress(_MissingVariable):
            settings._values.model(name, node)
    for name, node in chains.mapping().items():
        with suppress(_MissingVariable):
            if settings.chain(name).model not in settings.model_names:
                model = node.mapping()["model"]
                raise model.error(_unknown("model", model.text(), settings.model_names))


def _unknown(kind: str, name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"the {kind}s are {', '.join(names)}"
    return f"there is no {kind} {name!r:.60}: {hint}"


def _entries(node: Node | None, *path: str) -> dict[str, Node]:
    """The mapping at a path; empty where there is none."""
    for key in path:
        node = node.value.get(key) if node is not None and isinstance(node.value, dict) else None
    return node.value if node is not None and isinstance(node.value, dict) else {}


def _find(node: Node, key: str) -> Node | None:
    """The value at a dotted key; names may hold dots themselves."""
    for name, child in _entries(node).items():
        if key == name:
            return child
        if key.startswith(f"{name}.") and (found := _find(child, key[len(name) + 1 :])) is not None:
            return found
    return None


def _merged(over: Node, base: Node | None) -> Node:
    if base is None or not isinstance(base.value, dict):
        return over
    if over.value is None:
        return base
    if not isinstance(over.value, dict):
        return over
    own = {key: _merged(value, base.value.get(key)) for key, value in over.value.items()}
    return replace(over, value={**base.value, **own})


def _beneath(user: Node, shipped: Node) -> Node:
    """The shipped values as far as they hold for this file, by the rules at the top of this module."""
    definitions = {}
    for name, node in _entries(shipped, "models", "definitions").items():
        own, values = _entries(user, "models", "definitions", name), _entries(node)
        if "base_url" in own:
            values = {key: value for key, value in values.items() if key != "api_key"}
        if "provider" not in own or own["provider"].value == values["provider"].value:
            definitions[name] = replace(node, value=values)
    chains = dict(_entries(shipped, "chains"))
    chains = {**dict.fromkeys(_entries(user, "chains"), chains["default"]), **chains}
    if "default" in _entries(user, "models"):
        for name, node in chains.items():
            values = {key: value for key, value in _entries(node).items() if key != "model"}
            chains[name] = replace(node, value=values)
    top = _entries(shipped)
    models = _entries(top["models"])
    models = {**models, "definitions": replace(models["definitions"], value=definitions)}
    beneath = {"models": replace(top["models"], value=models), "chains": replace(top["chains"], value=chains)}
    return replace(shipped, value={**top, **beneath})


def _variables(node: Node | str | None) -> list[str]:
    """The names of the variables in a text."""
    text = node.value if isinstance(node, Node) else node
    return [m["name"] for m in _REFERENCE.finditer(text) if m["name"]] if isinstance(text, str) else []


_SENSITIVE = ("api_key", "base_url", "extra_headers", "extra_body")
"""What decides where a key and a conversation go. ``extra_body`` is one of them: a request can name servers that the
service then calls on its own."""
_HANDED_ON = ("thinking", "extra_body", "extra_headers")
"""Mappings that are the service's business, so that any key may be in them."""
_SENSITIVE_TOOLS = ("shell", "research")
"""The shell is the user's machine, and ``research`` can carry what was read to any address."""


def _sensitive_keys(user: Node, shipped: Node) -> Iterator[str]:
    """The keys of a file from a stranger that could send something away or run something.

    Besides the obvious ones: a variable anywhere (``model: ${AWS_SECRET}`` would send it), a path that leads out of the
    file's folder, also by a link (a private key as the system prompt), and another provider under a shipped name
    (``offline`` that is not).
    """
    for name, definition in _entries(user, "models", "definitions").items():
        was = {key: node.plain() for key, node in _entries(shipped, "models", "definitions", name).items()}
        was["api_key"] = KEY_REFERENCE
        for key, node in _entries(definition).items():
            if (key in _SENSITIVE or (key == "provider" and key in was)) and (node.plain() or None) != was.get(key):
                yield node.key
    known = {tool.value for tool in _entries(shipped, "chains", "default")["tools"].items()}
    for chain in _entries(user, "chains").values():
        tools = _entries(chain).get("tools")
        if tools and tools.value and {t.value for t in tools.items()} & set(_SENSITIVE_TOOLS) - known:
            yield tools.key
    allow = _entries(user, "tools").get("allow")
    if allow is not None and allow.value:
        yield allow.key
    yield from _leading_out(user, Path(user.file).parent)


def _leading_out(node: Node, folder: Path) -> Iterator[str]:
    """The keys of texts that name a variable, and of paths that leave the folder."""
    for key, child in _entries(node).items():
        if isinstance(child.value, str):
            is_path = key in ("script", "system_prompt", "interruption_prompt")
            has_variable = "${" in child.value and not (key == "api_key" and child.value == KEY_REFERENCE)
            if has_variable or (is_path and not _is_inside(child.value, folder)):
                yield child.key
        elif isinstance(child.value, list) or key in _HANDED_ON:
            # Not by the keys within, which are free: nothing of them may reach the terminal.
            if "${" in json.dumps(child.plain()):
                yield child.key
        else:
            yield from _leading_out(child, folder)


def _is_inside(path: str, folder: Path) -> bool:
    try:
        return not path.startswith("~") and (folder / path.strip()).resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):  # a loop of links, a NUL
        return False
