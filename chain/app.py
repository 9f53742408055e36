"""The one place that wires a chain together: ``open_chain`` gives a ``Chain`` that is ready for lines."""

from __future__ import annotations

import difflib
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import trio

from chain import records
from chain.agent.questions import Questions
from chain.agent.spec import AgentSpec, Limits, Shared
from chain.chain import Chain
from chain.config.load import Settings, require_trust
from chain.config.settings import ChainSettings, ModelSettings
from chain.config.system_prompt import read_system_prompt
from chain.errors import ConfigError, JournalError, SessionError, UnreadableFile, UserError
from chain.explain import Explanation as Explanation  # front ends have it from here
from chain.explain import explain
from chain.interruption.file import PromptFile
from chain.lines.inbox import Inbox
from chain.lines.receipts import Ledger
from chain.model import Model
from chain.plan import Plan
from chain.session.feed import Audience
from chain.session.journal import Journal
from chain.session.runs import Session
from chain.session.store import new_journal, sessions_folder
from chain.session.trace import Trace
from chain.tools import allowances, calling
from chain.tools.allowances import SUBJECTS, Allowance
from chain.tools.processes import Guard
from chain.tools.registry import Registry
from chain.tools.tool import Tool
from chain.version import VERSION
from chain.wording import MAIN, ROOT

ToolGroups: TypeAlias = Mapping[str, tuple[Tool, ...]]

if TYPE_CHECKING:
    from chain.providers.anthropic.client import AnthropicModel, Verdict
    from chain.tools.shell import ShellRules


@asynccontextmanager
async def open_chain(
    settings: Settings,
    *,
    workspace: Path,
    state: Path,
    tools: Iterable[Tool] = (),
    model: Model | None = None,
    journal: Journal | None = None,
    interactive: bool = False,
    traces: Path | None = None,
) -> AsyncIterator[Chain]:
    """Open a new session and keep it running; leaving the block interrupts what runs and closes the session.

    ``workspace`` is the folder that the tools work in, ``state`` the one for the journals (``config.state_folder``).
    ``tools`` are added to those of the configuration; ``model`` and ``journal`` replace the configured ones; ``traces``
    is the folder for debug traces, ``None`` for none. Raises ``UserError`` for anything in the configuration that
    cannot be used.
    """
    guard = Guard()
    groups = tool_groups(settings, guard)
    spec, workspace, rules = _main_agent(settings, workspace, tools, model, groups, interactive=interactive)
    allowed = read_allowances(settings, spec.registry, groups)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(guard.close)
        if journal is None:
            journal = stack.enter_context(new_journal(sessions_folder(state)))
        audience = Audience()
        trace = None
        if traces is not None:
            trace = stack.enter_context(closing(Trace(traces, journal.id)))
            audience.listen(trace.on_event)
        ledger = Ledger(journal, audience.emit)
        inbox = Inbox(ledger, journal, audience.emit, agent=spec.name, size=settings.inbox_size)
        questions = Questions(journal, audience.emit, allowed)
        shared = Shared(journal, ledger, audience.emit, Plan(), workspace, questions, rules, trace=trace)
        session = Session(spec, shared, inbox, journal, trace, interactive=interactive)
        chain = Chain(session, shared, journal, audience, inbox)
        try:
            journal.record(records.Session(journal.id, VERSION, spec.model.name, str(shared.workspace)))
        except JournalError as error:
            raise SessionError(f"{error}; make room or set XDG_STATE_HOME") from None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(journal.run)
            nursery.start_soon(session.forever)
            try:
                yield chain
            finally:
                await chain.close()
                nursery.cancel_scope.cancel()


def _main_agent(
    settings: Settings,
    workspace: Path,
    tools: Iterable[Tool],
    model: Model | None,
    groups: ToolGroups,
    *,
    interactive: bool,
) -> tuple[AgentSpec, Path, calling.Rules]:
    """The main agent, its workspace and the rules of its tools.

    Checks everything that can be wrong before a session exists. Raises ``UserError``.
    """
    if not workspace.is_dir():
        raise UserError("the workspace is not a folder; give one that exists with --workspace", file=workspace)
    chosen = settings.chain()
    definition = settings.model(chosen.model)
    limits = Limits(
        max_iterations=chosen.max_iterations,
        timeout_s=chosen.timeout_s,
        max_attempts=definition.max_attempts,
        max_tokens=chosen.budget.max_tokens,
        max_cost_usd=chosen.budget.max_cost_usd,
    )
    tools = tuple(tools)
    registry = Registry.of([*configured_tools(settings, chosen, tools, groups), *tools])
    spec = AgentSpec(
        name=MAIN,
        parent_id=ROOT,
        model=build_model(definition, interactive=interactive) if model is None else model,
        system=system_prompt(settings, chosen),
        registry=registry,
        limits=limits,
        prompts=prompt_file(settings, chosen),
    )
    return (
        spec,
        workspace.resolve(),
        calling.Rules(settings.tool_timeout_s, settings.tool_result_limit),
    )


def system_prompt(settings: Settings, chosen: ChainSettings) -> str:
    """The system prompt of a chain. Raises ``ConfigError``; that the file cannot be read is told where it is named."""
    if chosen.system_prompt is None:
        return ""
    key = f"chains.{chosen.name}.system_prompt"
    try:
        return read_system_prompt(chosen.system_prompt, settings.within(key))
    except UnreadableFile as error:
        raise settings.error(key, f"{error.file} {error.message}") from None


def prompt_file(settings: Settings, chosen: ChainSettings) -> PromptFile:
    """The handler prompt of a chain."""
    key = f"chains.{chosen.name}.interruption_prompt"
    place = settings.source(key)
    named_at = "" if place == "default" else place
    return PromptFile(chosen.interruption_prompt, settings.within(key), named_at=named_at)


def explain_line(settings: Settings, text: str) -> Explanation:
    """What a line that is typed while the configured chain runs would be.

    Raises ``ConfigError``, also for a file that is not trusted yet.
    """
    require_trust(settings)
    chosen = settings.chain()
    return explain(text, prompt_file(settings, chosen), max_iterations=chosen.max_iterations)


def read_allowances(settings: Settings, registered: Iterable[Tool], groups: ToolGroups) -> tuple[Allowance, ...]:
    """The allowances of a configuration, each for a tool that there is: one of ours, or one that is registered.

    Raises ``ConfigError``, also for a host of ``tools.research`` that could never be met.
    """
    for n, host in enumerate(settings.research_hosts):
        if problem := allowances.host_problem(host.strip()):
            raise settings.error("tools.research.hosts", f"{host!r:.80} can never allow anything: {problem}", item=n)
    ours = {tool.name: tool for group in groups.values() for tool in group}
    others = {tool.name: tool for tool in registered}
    found = []
    for n, text in enumerate(settings.allow):
        try:
            found.append(_read_allowance(text, ours, others))
        except UserError as error:
            raise settings.error("tools.allow", str(error), item=n) from None
    return tuple(found)


def explain_allowance(text: str) -> str:
    """What an allowance means. Raises ``UserError`` for one that means nothing."""
    return allowances.explain(allowances.parse(text))


def _read_allowance(text: str, ours: Mapping[str, Tool], registered: Mapping[str, Tool]) -> Allowance:
    found = allowances.parse(text)
    known = {**ours, **registered}
    if found.tool in SUBJECTS and found.tool not in known:
        return found  # one of ours that this system lacks
    if found.tool not in known:
        near = difflib.get_close_matches(found.tool, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"the tools are {', '.join(sorted(known))}"
        raise UserError(f"there is no tool {found.tool!r}; {hint}")
    tool = known[found.tool]
    # A program's own tool may ask in the middle of its work, about whatever it likes.
    has_subject = calling.can_preview(tool) if tool.needs_approval else found.tool not in ours
    if found.pattern is not None and not (found.tool in SUBJECTS or has_subject):
        raise UserError(f"{found} can never allow anything: {found.tool} takes no pattern")
    return found


def tool_groups(settings: Settings, guard: Guard | None = None) -> ToolGroups:
    """The tools that there are, by group, as the settings want them; commands run under the ``guard``."""
    from chain.tools import ask, edit, files, plan
    from chain.tools.research import ResearchRules, research_tools
    from chain.tools.shell import shell_tools

    return {
        "todo": plan.TOOLS,
        "files": files.TOOLS,
        "edit": edit.TOOLS,
        "shell": shell_tools(guard or Guard(), shell_rules(settings), settings.environ),
        "ask": ask.TOOLS,
        "research": research_tools(ResearchRules(settings.research_hosts)),
    }


def shell_rules(settings: Settings) -> ShellRules:
    """How the shell's commands are fenced in."""
    from chain.tools.shell import ShellRules

    shell = settings.shell
    return ShellRules(shell.sandbox, shell.network, frozenset(shell.env), shell.writable, settings.key_variables)


def shell_protections(settings: Settings) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What fences a command in here, by its short names, and in words what it can do all the same.

    Raises ``ConfigError`` where no command would run.
    """
    from chain.tools import fence, shell

    rules = shell_rules(settings)
    found = fence.Protections() if rules.sandbox == "off" else fence.probe()
    if lacks := shell.missing(rules, found):
        raise settings.error("tools.shell.sandbox", lacks.removeprefix("tools.shell.sandbox is "))
    return shell.protections(rules, found), shell.gaps(rules, found)


def build_model(settings: ModelSettings, *, interactive: bool = False) -> Model:
    """The model of a definition. Raises ``ConfigError``.

    ``interactive``: people watch it and type meanwhile, so a file of rules answers at the pace that it has for them.
    """
    from chain.providers.scripted.model import ScriptedModel

    settings.require_key()
    if settings.provider == "scripted":
        assert settings.script is not None
        try:
            return ScriptedModel.load(settings.script, settings.within, at_terminal=interactive)
        except UnreadableFile as error:
            file, line = settings.named_at or (None, None)
            message = f"models.definitions.{settings.name}.script: {error.file} {error.message}"
            raise ConfigError(message, file=file, line=line) from None
    return anthropic_model(settings)


def anthropic_model(settings: ModelSettings) -> AnthropicModel:
    """The model of a definition whose provider is ``anthropic``; its library is imported at the first call."""
    from chain.providers.anthropic.client import AnthropicModel
    from chain.providers.anthropic.encoding import Parameters
    from chain.providers.anthropic.service import Price, Service

    parameters = Parameters(
        model=settings.model,
        max_tokens=settings.max_tokens,
        temperature=settings.temperature,
        effort=settings.effort,
        thinking=settings.thinking,
        stop_sequences=settings.stop_sequences,
        system_messages=settings.system_messages,
        extra_body=settings.extra_body,
    )
    service = Service(
        api_key=settings.api_key,
        base_url=settings.base_url,
        timeout_s=settings.timeout_s,
        idle_timeout_s=settings.idle_timeout_s,
        extra_headers=settings.extra_headers,
    )
    cost = settings.price
    price = Price(cost.input, cost.output, cost.cache_read, cost.cache_write) if cost else None
    return AnthropicModel(parameters, service, price)


async def check_model(settings: ModelSettings) -> Verdict:
    """Ask the service of a definition whether it accepts the key and has the model."""
    model = anthropic_model(settings)
    try:
        return await model.check()
    finally:
        await model.aclose()


def check_state(state: Path) -> None:
    """Make the folder of the sessions, if there is none. Raises ``SessionError`` where none can be kept."""
    sessions_folder(state)


def configured_tools(settings: Settings, chosen: ChainSettings, own: Iterable[Tool], groups: ToolGroups) -> list[Tool]:
    """The tools that a chain's ``tools`` key names, by group or one by one. Raises ``ConfigError``.

    ``own`` are the program's, which every chain has: they may be named as well.
    """
    ours = {tool.name for tool in own}
    single = {tool.name: tool for group in groups.values() for tool in group}
    tools: dict[str, Tool] = {}
    for n, name in enumerate(chosen.tools):
        if name in ours and name not in single:
            continue
        if name not in groups and name not in single:
            near = difflib.get_close_matches(name, [*groups, *single], n=1)
            hint = f"did you mean {near[0]}?" if near else f"the groups are {', '.join(groups)}"
            raise settings.error(f"chains.{chosen.name}.tools", f"there is no tool or group {name!r}; {hint}", item=n)
        for tool in groups[name] if name in groups else (single[name],):
            tools[tool.name] = tool
    return list(tools.values())
