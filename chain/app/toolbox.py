"""The tools of a chain: the groups of tools, the configured tools, and the allowances for calls without approval."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from chain.config.load import Settings
from chain.config.servers import Address, Launch, ToolServer
from chain.config.settings import ChainSettings
from chain.config.yamlfile import MissingVariable
from chain.errors import ConfigError, ToolError, UserError, did_you_mean
from chain.tools import calling
from chain.tools.agents import ASK
from chain.tools.allowances import Allowance, Subjects, names_server_tools, parse_allowance
from chain.tools.allowances import allowance_meaning as allowance_meaning  # for front ends
from chain.tools.file_tree import LEFT_OUT as LEFT_OUT  # for front ends
from chain.tools.processes.guarded import Guard
from chain.tools.tool import FunctionTool, Tool, ToolKind, kind_of

if TYPE_CHECKING:
    from chain.tools.processes.sandbox import ShellRules

SERVERS = "mcp"
"""The group of all server tools. The group of one server is ``mcp:SERVER``."""

ToolGroups: TypeAlias = Mapping[str, tuple[Tool, ...]]


def tool_groups(
    settings: Settings, guard: Guard | None = None, state: Path | None = None, servers: Sequence[ToolServer] = ()
) -> ToolGroups:
    """Return all tools by group. Commands run under the ``guard``.

    ``state`` is the folder of the journals, which commands must not change; ``None`` means the user's state folder.
    ``servers`` are the started servers.
    """
    from chain.tools import agents, ask, edit, files, jobs, plan_tools
    from chain.tools.processes.shell import shell_tools
    from chain.tools.research.visits import research_tools

    rules, guard = shell_rules(settings, state, servers), guard or Guard()
    shell = shell_tools(guard, rules, settings.environ)
    return {
        "todo": plan_tools.TOOLS,
        "files": files.TOOLS,
        "edit": edit.edit_tools(rules.protected),
        "shell": (*shell, *(jobs.JOB_TOOLS if shell else ())),
        "ask": ask.TOOLS,
        "agents": agents.agent_tools(_agent_kinds(settings)),
        "research": research_tools(settings.research_hosts, guard),
        SERVERS: (),  # listed at the start of a run
    }


def tool_kinds(settings: Settings, registered: Iterable[Tool]) -> Mapping[str, ToolKind]:
    """Return the kind of each tool by its name, including the registered tools."""
    groups = (*tool_groups(settings).values(), registered)
    return {tool.name: kind_of(tool) for tools in groups for tool in tools}


def with_servers(groups: ToolGroups, tools: Iterable[Tool], servers: Mapping[str, str]) -> ToolGroups:
    """Return the groups extended with the tools of servers. ``servers`` maps the name of each tool to its server."""
    found: dict[str, tuple[Tool, ...]] = {SERVERS: tuple(tools)}
    for tool in found[SERVERS]:
        name = f"{SERVERS}:{servers[tool.name]}"
        found[name] = (*found.get(name, ()), tool)
    return {**groups, **found}


def subjects_of(groups: ToolGroups) -> Subjects:
    """Return, by the name of the tool, how the subject of a call is found: the path, command or host that it is about.

    Tools whose calls have no subject are left out.
    """
    tools = [tool for group in groups.values() for tool in group if isinstance(tool, FunctionTool)]
    return {tool.name: tool.subject for tool in tools if tool.subject is not None}


def _agent_kinds(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield the name and description of each kind of agent, except kinds with a variable that is not set."""
    for name in settings.kind_names:
        with suppress(MissingVariable):  # reported where the kind is read
            yield name, settings.kind(name).description


def check_kind_name(settings: Settings, name: str, groups: ToolGroups, own: Iterable[Tool]) -> None:
    """Raise ``ConfigError`` if the name of a kind of agent is already that of a group of tools or of another tool."""
    others = {tool.name for group, tools in groups.items() if group != "agents" for tool in tools}
    if name in {ASK, *others, *groups, *(tool.name for tool in own)}:
        taken = f"{name} is the name of a tool or of a group of tools already; give one of the two another name"
        raise settings.error(f"agents.{name}", taken)


def configured_tools(settings: Settings, chosen: ChainSettings, own: Iterable[Tool], groups: ToolGroups) -> list[Tool]:
    """Return the tools in a chain's ``tools`` key, without the program's ``own`` tools, which every chain has."""
    own = tuple(own)
    found = named_tools(settings, f"chains.{chosen.name}.tools", chosen.tools, groups, own)
    return [tool for tool in found if tool not in own]


def named_tools(
    settings: Settings, key: str, names: Sequence[str], groups: ToolGroups, own: Sequence[Tool] = ()
) -> list[Tool]:
    """Return the tools that ``names`` refer to: tools, also those in ``own``, or groups.

    Raise ``ConfigError``, with the file and line of ``key``, for an unknown name.
    """
    known = {tool.name: (tool,) for tools in (own, *groups.values()) for tool in tools} | dict(groups)
    found: dict[str, Tool] = {}
    for n, name in enumerate(names):
        if name not in known and (names_server_tools(name) or name.startswith(f"{SERVERS}:")):
            continue  # a server tool, which may be listed later
        if name not in known:
            hint = did_you_mean(name, known, f"the groups are {', '.join(groups)}")
            raise settings.error(key, f"there is no tool or group {name!r}; {hint}", item=n)
        found |= {tool.name: tool for tool in known[name]}
    return list(found.values())


def shell_rules(settings: Settings, state: Path | None = None, servers: Sequence[ToolServer] = ()) -> ShellRules:
    """Return the settings of the shell, with the protected files. The arguments are those of ``tool_groups``."""
    from chain.tools.processes.sandbox import ShellRules
    from chain.tools.protected import INSTRUCTIONS, Protected

    shell, keys, launches = settings.shell, settings.key_variables, list[Launch | Address]()
    for server in {server.name: server for server in (*settings.servers, *servers)}.values():
        with suppress(ConfigError):  # reported when the server starts
            launches.append(server.with_variables(settings.environ, keys))
    named = (Path(server.entry.file) for server in servers if server.is_named)
    protected = Protected(
        (*settings.trusted_places, *named, *([] if state is None else [state])),
        cache(lambda: tuple(settings.named_files())),
        tuple(each for each in launches if isinstance(each, Launch)),
        INSTRUCTIONS.union(name.casefold() for name in settings.instructions),
    )
    return ShellRules(shell.sandbox, shell.network, frozenset(shell.env), shell.writable, keys, protected)


def shell_protections(settings: Settings, workspace: Path) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """Return the names of active protections, sentences about missing ones, and a sentence about read-only folders.

    Raise ``ConfigError`` if the sandbox would let no command run.
    """
    from chain.tools.processes.sandbox import Sandbox

    rules = shell_rules(settings)
    found = rules.probed_protections()
    try:
        paths = rules.writable_paths(found, workspace)
    except ToolError as error:
        raise settings.error("tools.shell.writable", str(error)) from None
    with nullcontext() if paths is None else closing(paths):
        box = Sandbox(rules, found, paths)
        if box.missing_reason:
            raise settings.error("tools.shell.sandbox", box.missing_reason)
        return box.active_protections, box.gap_sentences, box.closed_folders_sentence(workspace)


def read_allowances(settings: Settings, registered: Iterable[Tool], groups: ToolGroups) -> tuple[Allowance, ...]:
    """Return the allowances of a configuration.

    Raise ``ConfigError`` for an allowance whose tool does not exist or that never matches, and for a host in
    ``tools.research.hosts`` that never matches.
    """
    from chain.tools.research.visits import HOSTS

    for n, host in enumerate(settings.research_hosts):
        try:
            HOSTS.normalize_pattern(host.strip())
        except UserError as error:
            why = f"{host!r:.80} can never allow anything: {error}"
            raise settings.error("tools.research.hosts", why, item=n) from None
    ours = {tool.name: tool for group in groups.values() for tool in group}
    known, subjects = ours | {tool.name: tool for tool in registered}, subjects_of(groups)
    found = []
    for n, text in enumerate(settings.allow):
        try:
            allowance = parse_allowance(text, subjects)
            name = allowance.tool
            if name == SERVERS or groups.get(name) != ():  # an empty group is a tool that this system does not support
                # A tool that the program adds may ask about any subject while it runs.
                _check_allowance(allowance, known, may_ask=name in subjects or name not in ours)
            found.append(allowance)
        except UserError as error:
            raise settings.error("tools.allow", str(error), item=n) from None
    return tuple(found)


def _check_allowance(found: Allowance, known: Mapping[str, Tool], *, may_ask: bool) -> None:
    """Raise ``UserError`` if the tool of an allowance does not exist, or if its calls have no subject to match.

    ``may_ask``: a tool that needs no approval may still ask about a subject while it runs.
    """
    if names_server_tools(found.tool) and found.pattern is None:
        return
    group, _, server = found.tool.partition(":")
    if group == SERVERS:
        raise UserError(f"{found.tool} is a group of tools; mcp__{f'{server}__' if server else ''}* allows all of them")
    if found.tool not in known:
        hint = did_you_mean(found.tool, known, f"the tools are {', '.join(sorted(known))}")
        raise UserError(f"there is no tool {found.tool!r}; {hint}")
    tool = known[found.tool]
    has_subject = calling.can_preview(tool) if tool.needs_approval else may_ask
    if found.pattern is not None and not has_subject:
        raise UserError(f"{found} can never allow anything: {found.tool} takes no pattern")
