"""Wires the parts of a chain together. ``open_chain`` yields a ``Chain`` that is ready for lines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from chain.agent.children import Bounds, Children
from chain.agent.questions import Questions
from chain.agent.spec import AgentContext, AgentSpec, Shared
from chain.agent.tree import AgentNode, AgentTree
from chain.app.instructions import read_in_time
from chain.app.kinds import Kinds, OpenModel, main_agent
from chain.app.toolbox import (
    check_kind_name,
    configured_tools,
    read_allowances,
    subjects_of,
    tool_groups,
)
from chain.chain import Chain, ServedSession
from chain.concurrency.nurseries import background_task, background_tasks
from chain.config.load import Settings
from chain.config.provider import ModelSettings
from chain.config.servers import ToolServer
from chain.errors import JournalError, SessionError, UserError
from chain.events import Notice
from chain.journal.journal import Journal
from chain.journal.records import ServerTools
from chain.lines.inbox import Inbox
from chain.lines.receipts import Ledger
from chain.model import Model
from chain.plan import Task
from chain.session.feed import Broadcaster
from chain.session.jobs import SessionJobs
from chain.session.resume import LoadedSession, SessionRestorer, record_opening
from chain.session.runs import ServerToolSource, SessionRuns, close_models, no_instructions
from chain.session.state import State
from chain.session.store import FileStore, OpenSession, Store
from chain.session.trace import Trace
from chain.text.modes import Mode
from chain.tools import calling
from chain.tools.paths import added_root
from chain.tools.processes.guarded import Guard
from chain.tools.registry import Registry
from chain.tools.tool import Tool, delegates

if TYPE_CHECKING:
    from chain.tools.mcp.servers import Servers


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
    resume: str | LoadedSession = "",
    interactive: bool = False,
    traces: Path | None = None,
    session_context: Callable[[Path], str] | None = None,
    instructions: bool = False,
    servers: Sequence[ToolServer] = (),
    mode: Mode | None = None,
    add_dirs: Sequence[str] = (),
) -> AsyncIterator[Chain]:
    """Open a session and serve it during the block. On exit, interrupt the active run and close the session.

    ``workspace`` is the folder that the tools work in. ``state`` is the state folder (``config.state_folder``), which
    also stores the sessions unless there is a ``store``. ``tools`` are added to the configured ones. ``model`` and
    ``journal`` replace the configured ones. ``plan`` is the initial plan of a new session; the first request contains
    it. ``resume`` is the id of an earlier session or a unique prefix of the id. It can also be the loaded session;
    ``journal`` is the session's journal then. ``traces`` is the folder for debug traces; ``None`` writes none.

    ``session_context`` is called with a workspace and returns the text that follows the system prompts for the whole
    life of the session (``app.session_context``). With ``instructions``, the project instructions follow too; they are
    read at the start of each run (``app.instructions``). ``servers`` are started and offer tools
    (``config.allowed_servers``). ``mode`` changes the mode of the session. ``add_dirs`` are directories outside the
    workspace that tools may read, and edit with approval; a resumed session also keeps those that were added before.

    Raise ``UserError`` for a configuration that cannot be used, and for a session that cannot be resumed. Exceptions of
    the block are not wrapped in groups.
    """
    guard = Guard()
    groups = tool_groups(settings, guard, state, servers)
    tools = tuple(tools)
    open_model: OpenModel = partial(build_model, interactive=interactive)
    if any(delegates(tool) for tool in configured_tools(settings, settings.chain(), tools, groups)):
        for kind in settings.kind_names:
            check_kind_name(settings, kind, groups, tools)
    workspace = _check_workspace(workspace)
    for each in add_dirs:
        added_root(workspace, (), each)  # raises before a session is created
    model = open_model(settings.model(settings.chain().model)) if model is None else model
    spec = main_agent(settings, tools, model, groups)
    place = ""
    rules = calling.ToolLimits(settings.tool_timeout_s, settings.tool_result_limit)
    kinds = Kinds(settings, spec, groups, tools, open_model)

    def make_spec(kind: str, name: str, parent: AgentSpec, call_id: str) -> AgentSpec:
        return kinds.make(kind, name, parent, call_id).with_context(place)

    allowed = read_allowances(settings, spec.registry, groups)
    held: OpenSession | None = None
    async with AsyncExitStack() as stack:
        stack.push_async_callback(guard.close)
        read = resume if isinstance(resume, LoadedSession) else None
        session_state = State() if read is None else read.state
        if isinstance(resume, str) and resume:
            held = await stack.enter_async_context((store or FileStore(state)).resume(resume))
            journal, session_state, read = held.journal, held.state, held.loaded
            id, opened = journal.id, session_state.session
            before = Path(opened.workspace) if opened is not None and opened.workspace else workspace
            if before.is_dir() and before.resolve() != workspace:
                raise SessionError(f"the session {id} works in {before}; resume it with chain -r {id}")
        elif journal is None:
            held = await stack.enter_async_context((store or FileStore(state)).open_new(workspace))
            journal, session_state = held.journal, held.state
        if read is not None:
            place = "" if session_state.session is None else session_state.session.whereabouts
        elif session_context is not None:
            place = session_context(workspace)
        spec = replace(spec.with_context(place), effort=session_state.effort)
        audience = Broadcaster()
        trace: Trace | None = None
        if traces is not None:
            trace = stack.enter_context(closing(Trace(traces, journal.id)))
            audience.listen(trace.on_event)
        ledger = Ledger(journal, session_state.lines, audience.emit)
        jobs = SessionJobs(journal, session_state, audience.emit)
        shared = Shared(
            journal,
            ledger,
            audience.emit,
            session_state.plan,
            workspace,
            Questions(journal, session_state.question_log, allowed, subjects_of(groups), lambda: session_state.mode),
            rules,
            session_state.call_ids,
            session_state.refused_tools,
            session_state.agents,
            tracer=None if trace is None else trace.tracer,
            jobs=jobs,
            added_directories=session_state.added_directories,
        )
        inbox = Inbox(ledger, agent=spec.name, size=settings.inbox_size)
        tree = AgentTree(AgentNode(AgentContext(spec, shared, inbox, session_state.main)))
        agents = settings.agents
        bounds = Bounds(agents.max_depth, agents.max_running, agents.max_kept)
        children = Children(tree, shared, make_spec, bounds, session_state.numbers)
        load_instructions = partial(read_in_time, settings, workspace) if instructions else no_instructions
        running: Servers | None = None
        server_tools: ServerToolSource | None = None
        if servers or session_state.server_tools.tools:
            # Imported late, since most sessions have no servers.
            from chain.app.serving import create_servers

            def notice(text: str) -> None:
                audience.emit(Notice(message=text))

            running = create_servers(settings, servers, guard, workspace, state, notice)

            def with_server_tools(offered: ServerTools) -> Registry:
                assert running is not None
                made = [running.tool(tool) for tool in offered.tools]
                return kinds.use_server_tools(made, {tool.name: tool.server for tool in offered.tools})

            server_tools = ServerToolSource(running.offer, with_server_tools)
        session = SessionRuns(
            session_state,
            tree,
            children,
            shared,
            interactive=interactive,
            load_instructions=load_instructions,
            server_tools=server_tools,
        )
        jobs.connect(session)
        try:
            resumed = None if read is None else SessionRestorer(read, session, children, shared).resume()
            session_state.trace_path = lambda: None if trace is None else trace.path
            journal.connect(session_state.apply, audience.emit)
            record_opening(session, shared, session_context=place)
            session.use_mode(mode or session_state.mode)
            shared.plan.carry_over(plan)
            for each in add_dirs:
                session.add_directory(each)
            await session.read_instructions()
        except JournalError as error:
            hint = "" if journal.path is None else "; make room or set XDG_STATE_HOME"
            raise SessionError(f"{error}{hint}") from None
        if resumed is not None:
            # After a crash, lines that will be shown as saved may not be synced yet.
            await journal.sync()
            if journal.failure is not None:
                raise SessionError(f"{journal.failure}; to read the session: chain sessions show {journal.id}")
        chain = Chain(session, shared, audience, resumed, running, jobs)

        def interrupt() -> None:
            chain.stop_accepting()
            chain.interrupt()

        tasks = [journal.run, session.serve, audience.watch, jobs.run, *([running.run] if running else [])]
        await stack.enter_async_context(background_tasks(*tasks, when_cancelled=interrupt))
        # These callbacks run in reverse order, also if one of them fails. Then the tasks end.
        stack.callback(journal.end)
        stack.callback(audience.close)
        if running is not None:
            stack.callback(running.end)
        stack.callback(jobs.close)
        stack.push_async_callback(lambda: close_models(kinds.models))
        stack.push_async_callback(chain.close)
        if isinstance(held, ServedSession):
            await stack.enter_async_context(background_task(partial(held.serve, chain)))
        yield chain


def _check_workspace(workspace: Path) -> Path:
    """Return a workspace without links in its path. Raise ``UserError`` if it is not a folder."""
    if not workspace.is_dir():
        raise UserError("the workspace is not a folder; give one that exists with --workspace", file=workspace)
    return workspace.resolve()


def build_model(settings: ModelSettings, *, interactive: bool = False) -> Model:
    """Open a definition's model. Raise ``ConfigError`` if that fails. ``interactive``: a person watches the replies."""
    settings.require_key()
    return settings.open(interactive)
