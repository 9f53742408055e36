"""``chain check``: shows changed values, problems and a verdict. A problem is shown at the key that has to be fixed."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeAlias, TypeVar

import trio

from chain import Tool
from chain.app.instructions import read_instructions
from chain.app.open import build_model
from chain.app.prompt_files import agent_prompt, compaction_rules, prompt_file, system_prompt
from chain.app.sessions import Store, open_store, redacted_address
from chain.app.toolbox import (
    allowance_meaning,
    check_kind_name,
    configured_tools,
    named_tools,
    read_allowances,
    shell_protections,
    tool_groups,
)
from chain.config.allowed_servers import servers_of
from chain.config.commands import find_commands
from chain.config.load import Settings, defaults_folder, load_settings, require_trust, state_folder
from chain.config.settings import ChainSettings
from chain.errors import ConfigError, SessionError, UserError
from chain.session.exit_codes import WRONG_USAGE
from chain.text.wording import pluralize
from cli.arguments import absolute_path, read_settings
from cli.command_output import show
from cli.show.text_rows import flat

P = ParamSpec("P")
T = TypeVar("T")

ServerRows: TypeAlias = tuple[list[str], dict[str, list[str]]]
"""Rows about servers, and the problems of servers by the dotted keys of their entries."""
_FIELDS_WITHOUT_KEY = ("name", "kinds")
"""Fields of dataclasses for which the configuration has no key, so that they are not shown as values."""


def run(args: argparse.Namespace) -> int:
    """Check the configuration, and the service and servers that it names. Return the exit code."""
    settings, state = read_settings(args), state_folder(os.environ)
    store = open_store(state, "" if settings.untrusted_values else settings.state)
    where = absolute_path(args.workspace)
    servers = partial(trio.run, check_servers, settings, where.resolve(), state, args.mcp)
    commands = find_commands(settings, where, state)
    rows, is_good = check(
        settings,
        store,
        args.tools,
        workspace=where,
        start_servers=servers,
        notes=(*commands.faults, *commands.notes),
        is_verbose=args.verbose,
    )
    if is_good:
        more, is_good = trio.run(check_service, settings)
        rows += more
    return show(args, rows) or (0 if is_good else WRONG_USAGE)


class _CheckResult:
    """The result of a check: rows and problems by dotted keys.

    A problem has the key that the user has to fix. The configuration may have no value at this key.
    """

    def __init__(self, settings: Settings, tools: Sequence[Tool], workspace: Path) -> None:
        self.settings = settings
        self.workspace = workspace
        self.tools = tools
        self.groups = tool_groups(settings)
        self.rows: dict[str, list[str]] = {}
        self.problems: dict[str, list[str]] = {}
        self.noted = set[str]()
        """Keys whose rows have a note that matters even if the value is the default."""

    def add_problem(self, key: str, text: str) -> None:
        """Add a problem, unless it was added before: several chains may have the same faulty model or prompt."""
        if not any(text in known for known in self.problems.values()):
            self.problems.setdefault(key, []).append(text)

    def add_mistake(self, key: str, mistake: ConfigError | None) -> None:
        if mistake is not None:
            self.add_problem(key, str(mistake))

    def attempt(self, key: str, action: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T | None:
        """Return the result of an action, or ``None`` if it raised a ``ConfigError``, which becomes a problem."""
        try:
            return action(*arguments, **named)
        except ConfigError as error:
            self.add_problem(key, str(error))
            return None

    def check_all(self) -> None:
        settings = self.settings
        for name in settings.model_names:
            model = self.attempt(f"models.definitions.{name}", settings.model, name)
            if model is not None:
                for key in model.files:
                    self.attempt(f"models.definitions.{name}.{key}", build_model, model)
        for name in settings.chain_names:
            chain = self.attempt(f"chains.{name}", settings.chain, name)
            if chain is not None:
                self.check_chain(chain)
        for text in settings.allow:
            try:
                alone = replace(settings, allow=(text,), research_hosts=())
                (allowed,) = read_allowances(alone, self.tools, self.groups)
            except ConfigError as error:
                self.add_problem("tools.allow", str(error))
            else:
                self.rows["tools.allow"].append(f"  {text}: {allowance_meaning(allowed)}")
        for host in settings.research_hosts:
            alone = replace(settings, allow=(), research_hosts=(host,))
            self.attempt("tools.research.hosts", read_allowances, alone, self.tools, self.groups)
        self.check_shell()
        # Faults of instructions are notes: a run reports them too, and continues.
        read = read_instructions(self.workspace, settings.instructions, settings.config_folder)
        self.rows["instructions"] += [f"  read here: {name}" for name in read.files]
        self.rows["instructions"] += [f"  note: {fault}" for fault in read.faults]
        self.noted |= {"instructions"} if read.faults else set()
        for name in settings.kind_names:
            self.check_kind(name)
        self.attempt("agents", lambda: settings.agents)  # for the limits; the kinds are checked above

    def check_chain(self, chain: ChainSettings) -> None:
        settings, place = self.settings, f"chains.{chain.name}"
        self.attempt(f"{place}.system_prompt", system_prompt, settings, chain)
        self.attempt(f"{place}.compaction_prompt", compaction_rules, settings, chain)
        if chain.interruption_prompt is not None:
            self.add_mistake(f"{place}.interruption_prompt", prompt_file(settings, chain).current()[1])
        self.attempt(f"{place}.tools", configured_tools, settings, chain, self.tools, self.groups)
        model = self.attempt(f"{place}.model", settings.model, chain.model)
        if model is None:
            return
        if model.missing_key and chain.name == settings.default_chain:
            self.attempt(f"models.definitions.{model.name}.api_key", model.require_key)
        if chain.budget.max_cost_usd is not None and not model.tells_costs:
            limit = f"{place}.budget.max_cost_usd"
            hint = f"a cost limit needs a price: set models.definitions.{model.name}.price"
            self.add_problem(limit, str(settings.error(limit, hint)))

    def check_kind(self, name: str) -> None:
        settings, place = self.settings, f"agents.{name}"
        self.attempt(place, check_kind_name, settings, name, self.groups, self.tools)
        kind = self.attempt(place, settings.kind, name)
        if kind is None:
            return
        if kind.tools is not None:
            self.attempt(f"{place}.tools", named_tools, settings, f"{place}.tools", kind.tools, self.groups, self.tools)
        model = None if kind.model is None else self.attempt(f"{place}.model", settings.model, kind.model)
        if model is not None and model.missing_key:
            self.attempt(f"models.definitions.{model.name}.api_key", model.require_key)
        prompt = None if kind.prompt is None else self.attempt(f"{place}.prompt", agent_prompt, settings, name)
        if prompt is not None and prompt.handler is not None:
            self.add_mistake(f"{place}.prompt", prompt.handler.current()[1])

    def check_shell(self) -> None:
        place = "tools.shell.sandbox"
        try:
            active, missing, closed = shell_protections(self.settings, self.workspace)
        except ConfigError as error:
            self.add_problem(place, str(error))
            return
        if not self.groups["shell"]:
            self.rows[place].append("  there is no shell on this system: it needs Linux")
            self.noted.add(place)
            return
        self.rows[place] += [f"  protections: {', '.join(active)}"] if active else []
        self.rows[place] += [f"  not protected: {sentence}" for sentence in missing]
        self.rows[place] += [f"  {closed[0].lower()}{closed[1:]}"] if closed else []
        self.noted |= {place} if missing or closed else set()


def check(
    settings: Settings,
    store: Store | None = None,
    tools: Sequence[Tool] = (),
    *,
    workspace: Path | None = None,
    start_servers: Callable[[], ServerRows] = lambda: ([], {}),
    notes: Sequence[str] = (),
    is_verbose: bool = False,
) -> tuple[list[str], bool]:
    """Check configuration, prompts and models, and the ``store`` if it is given.

    Return the rows to show, and whether there is no problem. The first rows show the values that differ from the
    defaults. Default values without a problem or a note are shown if ``is_verbose``; otherwise they are only counted.
    ``workspace`` is the current folder by default. ``notes`` on custom commands are shown after the values.

    Values of a file that is not trusted are not shown, since they may contain any environment variable.
    ``start_servers`` is called only if there is no problem, or none but a missing API key.
    """
    rows = [f"config: {settings.file or 'built in'}"]
    rows += [] if settings.passed_over is None else [f"note: {settings.passed_over}"]
    try:
        require_trust(settings)
    except ConfigError as error:
        return [*rows, f"1 problem: {error}"], False
    found, values = _CheckResult(settings, tools, workspace or Path.cwd()), dict[str, object]()
    for key, value, shown in _values(settings):
        values[key] = value
        found.rows[key] = [f"{key}: {shown or _format(key, value)}  ({settings.source(key)})"]
    # API keys of the environment must not count as differences, but addresses and settings in it must.
    environ = {
        name: value for name, value in settings.environ.items() if not name.startswith(("CHAIN_", "ANTHROPIC_BASE"))
    }
    defaults = load_settings(config=defaults_folder() / "config.yaml", environ=environ, cwd=Path("/"))
    shipped = {key: value for key, value, _ in _values(defaults)}
    found.check_all()
    if store is not None:
        try:
            store.check()
        except SessionError as error:
            found.add_problem("", str(error))
    keys = dict.fromkeys([*found.rows, *found.problems])
    differ = [key for key in keys if key in found.problems or (key, values[key]) not in shipped.items()]
    same = [key for key in keys if key not in differ]
    noted = [] if is_verbose else [key for key in same if key in found.noted]
    first = "Different from the defaults, or with a problem:" if found.problems else "Different from the defaults:"
    for title, group in ((first, differ), ("Defaults:", same if is_verbose else []), ("Defaults to note:", noted)):
        rows += ["", title] if group else []
        for key in group:
            rows += [*found.rows.get(key, ()), *(f"problem: {text}" for text in found.problems.get(key, ()))]
    if not is_verbose:
        rows += ["", f"{pluralize(len(same) - len(noted), 'default value')} not shown; chain check -v shows all"]
    served, faults = start_servers() if all(key.endswith(".api_key") for key in found.problems) else ([], {})
    problems = found.problems | faults
    served = [*(f"note: {note}" for note in notes), *served]
    return [*rows, *([""] if served else []), *served, "", *_verdict(problems)], not problems


async def check_service(settings: Settings) -> tuple[list[str], bool]:
    """Ask the model's service whether it accepts the settings. Return the rows of the verdict, and whether all is well.

    Call it only for a configuration without problems.
    """
    model = settings.model(settings.chain().model)
    if model.check is None:
        return [f"All is well: no problem was found, and the model {model.name} needs no service"], True
    verdict = await model.check()
    if verdict.is_good is False:
        return [f"1 problem: {verdict.message}"], False
    that = "and" if verdict.is_good else "but the model could not be checked:"
    return [f"All is well: no problem was found, {that} {verdict.message}"], True


async def check_servers(settings: Settings, workspace: Path, state: Path, named: Sequence[str]) -> ServerRows:
    """Start the allowed servers. Return a row for each server, and the problems of those that failed."""
    try:
        found = servers_of(settings, workspace, state, named)
    except ConfigError as error:
        return [f"problem: {error}"], {"": [str(error)]}
    rows = [f"note: {note}" for note in found.notes_unattended]
    problems: dict[str, list[str]] = {}
    if found.allowed:
        from chain.app.serving import try_servers

        views = await try_servers(settings, found.allowed, workspace, state)
        for view in views:
            has = f"{pluralize(len(view.tools), 'tool')}, {pluralize(len(view.prompts), 'prompt')}"
            rows.append(f"mcp.{view.name}: {has if view.state == 'ready' else 'not available'}")
            if view.state != "ready":
                problems[f"mcp.{view.name}"] = [view.error]
                rows.append(f"problem: {view.error}")
        rows += [f"note: {view.left_out}" for view in views if view.left_out]
    return rows, problems


def _verdict(problems: Mapping[str, Sequence[str]]) -> list[str]:
    count = sum(map(len, problems.values()))
    if count == 1:
        [[only]] = problems.values()
        return [f"1 problem: {only}"]
    places = ", ".join(filter(None, problems))
    return [f"{pluralize(count, 'problem')}: fix them above{f', at {places}' if places else ''}"] if problems else []


def _values(settings: Settings) -> Iterator[tuple[str, object, str]]:
    """Yield the dotted key of each value, the value, and a text that is shown instead; empty to show the value.

    Leave out values that cannot be read.
    """
    for field, key in settings.key_by_field().items():
        yield from _flatten(key, getattr(settings, field))
    for name in settings.model_names:
        with suppress(ConfigError):
            model = settings.model(name)
            for key, value in model.values.items():
                yield f"models.definitions.{name}.{key}", value, model.display_values.get(key, "")
    for name in settings.chain_names:
        with suppress(ConfigError):
            yield from _flatten(f"chains.{name}", settings.chain(name))
    for server in settings.servers:
        yield f"mcp.{server.name}", server.target, ""
    for name, can_start_run in settings.found_servers.items():
        yield f"mcp.{name}", can_start_run, ""
    with suppress(ConfigError):
        yield from _flatten("agents", settings.agents)
    for name in settings.kind_names:
        with suppress(ConfigError):
            yield from _flatten(f"agents.{name}", settings.kind(name))


def _flatten(key: str, value: object) -> Iterator[tuple[str, object, str]]:
    """Yield a value as ``_values`` does. If it is a section, yield all values in it."""
    if not is_dataclass(value):
        yield key, value, _redact(str(value)) if key == "state" else ""
        return
    for each in fields(value):
        if each.name not in _FIELDS_WITHOUT_KEY:
            yield from _flatten(f"{key}.{each.name}", getattr(value, each.name))


def _redact(address: str) -> str:
    """Return an address without credentials."""
    with suppress(UserError):
        return redacted_address(address) if address else ""
    return "not an address"


def _format(key: str, value: object) -> str:
    if value is None or value == "":
        return "not set"
    if isinstance(value, tuple):
        return ", ".join(str(item) for item in value) or "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    return flat(str(value)) if key.endswith(".description") else str(value)
