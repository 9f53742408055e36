"""The one place that wires a chain together: ``open_chain`` gives a ``Chain`` that is ready for lines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from chain.agent.children import Bounds, Children
from chain.agent.questions import Questions
from chain.agent.spec import AgentContext, AgentSpec, Limits, Shared
from chain.agent.tree import AgentNode, AgentTree
from chain.app.kinds import Kinds, OpenModel
from chain.app.prompt_files import compaction_rules, prompt_file, system_prompt
from chain.app.toolbox import (
    ToolGroups,
    check_kind_name,
    configured_tools,
    read_allowances,
    subjects_of,
    tool_groups,
    with_servers,
)
from chain.chain import Chain
from chain.config.load import Settings
from chain.errors import JournalError, SessionError, UserError
from chain.events import Notice
from chain.instructions import read_in_time
from chain.journal.journal import Journal
from chain.journal.records import ServerTools
from chain.lines.inbox import Inbox
from chain.lines.receipts import Ledger
from chain.model import Model
from chain.plan import Plan, Task
from chain.provider import ModelSettings
from chain.servers import ToolServer
from chain.session.feed import Broadcaster
from chain.session.projection import Projection
from chain.session.resume import ReadBack, Resuming, record_opening
from chain.session.runs import Offers, SessionRuns, close_models, no_instructions
from chain.session.store import FileStore, Serve, Store
from chain.session.trace import Trace
from chain.tasks import beside, during
from chain.text.wording import MAIN, ROOT
from chain.tools import calling
from chain.tools.processes.guarded import Guard
from chain.tools.registry import Registry
from chain.tools.tool import Tool, delegates, kind_of

REALLY_RUN = frozenset({"plan", "ask", "delegate"})
"""The kinds of our tools that have no effects outside of a session, so that a replay runs them."""

if TYPE_CHECKING:
    from chain.replay.actors import Actors
    from chain.tools.mcp.running import Servers


@asynccontextmanager
async def open_chain(
    settings: Settings,
    *,
    workspace: Path,
    state: Path,
    store: Store | None = None,
    tools: Iterable[Tool] = (),
    model: Model | None = None,
    journal: Journal | None = None,
    plan: Iterable[Task] = (),
    resume: str | ReadBack = "",
    interactive: bool = False,
    traces: Path | None = None,
    whereabouts: Callable[[Path], str] | None = None,
    instructions: bool = False,
    actors: Actors | None = None,
    servers: Sequence[ToolServer] = (),
) -> AsyncIterator[Chain]:
    """Open a session and keep it running; leaving the block interrupts what runs and closes the session.

    ``workspace`` is the folder that the tools work in, ``state`` the one for what is kept (``config.state_folder``):
    the sessions too, unless they have another ``store``.
    ``tools`` are added to those of the configuration; ``model`` and ``journal`` replace the configured ones; ``plan``
    is what a new session begins with, of which the first request tells the model; ``resume`` is the id of an old one,
    or a unique beginning of it, or what was read of its journal, where that is given; ``traces`` is the folder for
    debug traces, ``None`` for none; ``whereabouts`` says of a workspace what the agents of a new session are told
    behind their prompts (``app.whereabouts``), as long as the session lives; with ``instructions`` they are told those
    of the project too, as they are when a run begins (``chain.instructions``); ``actors`` stand in for models and tools
    where a session is replayed; ``servers`` are started and offer tools (``config.allowed_servers``). Raises
    ``UserError`` for anything in the configuration that cannot be used, and for a session that cannot be resumed. What
    is raised in the block leaves it as it is.
    """
    guard = Guard()
    today = groups = tool_groups(settings, guard, state, servers)
    tools = tuple(tools)
    open_model: OpenModel = partial(build_model, interactive=interactive)
    if actors is not None:
        real = [tool for each in groups.values() for tool in each if kind_of(tool) in REALLY_RUN]
        groups = {name: actors.tools(each, real) for name, each in groups.items()}
        tools = actors.tools(tools, real)
        open_model = actors.open_model
    if any(delegates(tool) for tool in configured_tools(settings, settings.chain(), tools, groups)):
        for kind in settings.kind_names:
            check_kind_name(settings, kind, groups, tools)
    spec, workspace = _main_agent(settings, workspace, tools, model, groups, interactive=interactive)
    place = ""
    rules = calling.Rules(settings.tool_timeout_s, settings.tool_result_limit)
    if actors is not None:
        rules = actors.rules(rules)
        spec = actors.unhurried(spec)
    kinds = Kinds(settings, spec, groups, tools, open_model)

    def make_spec(kind: str, name: str, parent: AgentSpec, call_id: str) -> AgentSpec:
        made = _at(place, kinds.make(kind, name, parent, call_id))
        return made if actors is None else actors.unhurried(made)

    allowed = read_allowances(settings, spec.registry, today)
    serve: Serve | None = None
    async with AsyncExitStack() as stack:
        stack.push_async_callback(guard.close)
        read = resume if isinstance(resume, ReadBack) else None
        if isinstance(resume, str) and resume:
            held = await stack.enter_async_context((store or FileStore(state)).resume(resume))
            journal, read, serve = held.journal, held.read, held.serve
            id, opened = journal.id, None if read is None else read.restored.session
            before = Path(opened.workspace) if opened is not None and opened.workspace else workspace
            if before.is_dir() and before.resolve() != workspace:
                raise SessionError(f"the session {id} works in {before}; go on with it by chain -r {id}")
        elif journal is None:
            held = await stack.enter_async_context((store or FileStore(state)).begin(workspace))
            journal, serve = held.journal, held.serve
        if read is not None:
            place = "" if read.restored.session is None else read.restored.session.whereabouts
        elif whereabouts is not None:
            place = whereabouts(workspace)
        spec = _at(place, spec)
        audience = Broadcaster()
        trace: Trace | None = None
        if traces is not None:
            trace = stack.enter_context(closing(Trace(traces, journal.id)))
            audience.listen(trace.on_event)
        ledger = Ledger(journal, audience.emit)
        inbox = Inbox(ledger, agent=spec.name, size=settings.inbox_size)
        questions = Questions(journal, allowed, subjects_of(today))
        shared = Shared(
            journal,
            ledger,
            audience.emit,
            Plan(),
            workspace,
            questions,
            rules,
            trace=actors or trace,
            read_lines=None if actors is None else actors.read,
        )
        tree = AgentTree(AgentNode(AgentContext(spec, shared, inbox), kind=spec.name))
        if actors is not None:
            actors.tree, actors.journal = tree, journal
        agents = settings.agents
        bounds = Bounds(agents.max_depth, agents.max_running, agents.max_kept)
        children = Children(tree, shared, make_spec, bounds)
        reads = partial(read_in_time, settings, workspace) if instructions else no_instructions
        if actors is not None:
            reads = actors.instructions
        running: Servers | None = None
        offers: Offers | None = None
        if servers or actors is not None or (read is not None and read.restored.server_tools.tools):
            # Imported late: most sessions have none.
            from chain.app.serving import running_servers
            from chain.tools.mcp.running import ServerTool

            def notice(text: str) -> None:
                audience.emit(Notice(message=text))

            running = running_servers(settings, servers, guard, workspace, state, notice)

            def with_server_tools(offered: ServerTools) -> Registry:
                assert running is not None
                made: Sequence[Tool] = [ServerTool(tool, running) for tool in offered.tools]
                made = made if actors is None else actors.tools(made, ())
                now = with_servers(groups, made, {tool.name: tool.server for tool in offered.tools})
                registry = Registry.of([*configured_tools(settings, settings.chain(), tools, now), *tools])
                kinds.use_tools(registry, now)
                return registry

            offers = Offers(running.now if actors is None else actors.server_tools, with_server_tools)
        session = SessionRuns(tree, children, shared, interactive=interactive, reads=reads, offers=offers)
        projection = Projection() if read is None else read.projection
        try:
            resumed = None if read is None else Resuming(read, session, children, shared).bring_back()
            projection.go_live(ledger.ids, lambda: shared.trace_path)
            audience.listen(projection.on_event)
            journal.tells(projection.of, audience.emit)
            record_opening(session, shared, repaired=journal.seq - (0 if read is None else read.seq), whereabouts=place)
            shared.plan.carry_over(plan)
            await session.read_instructions()
        except JournalError as error:
            hint = "" if journal.path is None else "; make room or set XDG_STATE_HOME"
            raise SessionError(f"{error}{hint}") from None
        if resumed is not None:
            # A crash may have left lines unsynced that will be shown as safe.
            await journal.sync()
            if journal.failure is not None:
                raise SessionError(f"{journal.failure}; chain sessions show reads it")
        chain = Chain(session, shared, audience, projection, resumed, running)

        def interrupt() -> None:
            chain.stop_accepting()
            chain.interrupt()

        tasks = [journal.run, session.forever, audience.watch, *([running.run] if running else [])]
        await stack.enter_async_context(beside(*tasks, when_cancelled=interrupt))
        # Called in reverse order, each though another fails; then the tasks end.
        stack.callback(journal.end)
        stack.callback(audience.close)
        if running is not None:
            stack.callback(running.end)
        stack.push_async_callback(lambda: close_models(kinds.models))
        stack.push_async_callback(chain.close)
        if serve is not None:
            await stack.enter_async_context(during(partial(serve, chain)))
        yield chain


def _main_agent(
    settings: Settings,
    workspace: Path,
    tools: Sequence[Tool],
    model: Model | None,
    groups: ToolGroups,
    *,
    interactive: bool,
) -> tuple[AgentSpec, Path]:
    """The main agent and its workspace, once all that can be wrong is checked. Raises ``UserError``."""
    if not workspace.is_dir():
        raise UserError("the workspace is not a folder; give one that exists with --workspace", file=workspace)
    chosen = settings.chain()
    definition = settings.model(chosen.model)
    registry = Registry.of([*configured_tools(settings, chosen, tools, groups), *tools])
    spec = AgentSpec(
        name=MAIN,
        parent_id=ROOT,
        model=build_model(definition, interactive=interactive) if model is None else model,
        system=system_prompt(settings, chosen),
        registry=registry,
        limits=Limits(
            max_iterations=chosen.max_iterations,
            timeout_s=chosen.timeout_s,
            retries=definition.retries,
            max_tokens=chosen.budget.max_tokens,
            max_cost_usd=chosen.budget.max_cost_usd,
        ),
        prompts=prompt_file(settings, chosen),
        compaction=compaction_rules(settings, chosen),
    )
    return spec, workspace.resolve()


def _at(place: str, spec: AgentSpec) -> AgentSpec:
    """The agent with its whereabouts behind the system prompt."""
    return replace(spec, system="\n\n".join(filter(None, [spec.system, place])))


def build_model(settings: ModelSettings, *, interactive: bool = False) -> Model:
    """The model of a definition. Raises ``ConfigError``. ``interactive``: people watch it and type meanwhile."""
    settings.require_key()
    return settings.open(interactive)
