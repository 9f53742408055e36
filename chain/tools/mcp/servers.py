"""The MCP servers of a session: their starts, their lists of tools, and their calls.

All servers are started at the same time, in the background. A server that has ended is restarted when one of its tools
is called. A changed list of tools is used from the next run on, because the list of tools is part of the prompt prefix
that model services cache.
"""

from __future__ import annotations

import math
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import trio

from chain.concurrency.threads import Threads, without_collector
from chain.concurrency.wakeup import Wakeup
from chain.config.extras import MCP, install_command
from chain.config.servers import Address, Launch, ToolServer
from chain.errors import ConfigError, ToolError
from chain.events import OfferedTool
from chain.journal.records import ServerTools
from chain.tools.mcp import content
from chain.tools.mcp.tools import MAX_SERVER_TEXT, prompts_of, tools_of
from chain.tools.tool import ToolContext, ToolOutput

if TYPE_CHECKING:
    from chain.tools.mcp.connection import ServerConnection
    from chain.tools.processes.guarded import Guard

FIRST_S = 10.0
"""Seconds that the first run waits for a server to start, unless the configuration or a flag sets another time."""
LIST_S = 5.0
"""Seconds that a run waits at its start for the changed lists of all servers."""
MAX_STARTS, PER_S = 3, 60.0
"""The most restarts of a server in a period, and the length of the period in seconds."""
PROGRESS_S = 0.1
"""Seconds between two reports of progress."""
WHY_S = 1.0
"""Seconds that a failed call waits for the reason why its server has ended."""
MAX_ASKING = 3
"""The most questions of one server that are open or wait to be asked."""

_THREADS = Threads("mcp")
_IMPORTS = Threads("mcp import", limit=1)
"""A thread that imports one module at a time: concurrent imports of a missing module raise unrelated errors."""

_SCRIPT = re.compile(r"[^-/].*\.(?:py|[cm]?js|ts|rb|sh)")
"""Matches a relative path to a script. Names of packages and modules have no such suffix."""

State: TypeAlias = Literal["starting", "ready", "ended"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ServerView:
    """The state of a server, as users see it. ``target`` is its command or address, ``error`` its latest error.

    ``prompts`` are pairs of a name and a description. ``left_out`` is a sentence on the tools that were left out.
    """

    name: str
    target: str
    state: State
    tools: tuple[str, ...]
    prompts: tuple[tuple[str, str], ...]
    error: str
    left_out: str = ""


@dataclass(frozen=True, slots=True)
class LaunchEnvironment:
    """The environment in which the servers of a session are started.

    Programs are started in ``folder`` with the environment variables ``env``. References to variables in a server's
    configuration are replaced by their values in ``environ``. Variables in ``keys`` are replaced only in the user's own
    configuration.
    """

    guard: Guard
    workspace: Path
    folder: Path
    environ: Mapping[str, str] = field(repr=False)
    env: Mapping[str, str] = field(repr=False)
    keys: frozenset[str]

    def resolve(self, server: ToolServer) -> Launch | Address:
        """Return how to start or reach a server. Raise ``ConfigError`` if a value of its configuration is unusable.

        A program without a configured ``cwd`` is started in the workspace if its arguments name a script there.
        Otherwise it is started in ``folder``, where no command can write. Raise ``OSError`` if it cannot be created.
        """
        launch = server.with_variables(self.environ, self.keys)
        if isinstance(launch, Address):
            return launch
        cwd = launch.cwd
        if cwd is None and any(os.path.isfile(self.workspace / arg) for arg in launch.argv if _SCRIPT.fullmatch(arg)):
            cwd = self.workspace
        if cwd is None:
            os.makedirs(cwd := self.folder, 0o700, exist_ok=True)
        return replace(launch, env={**self.env, **launch.env}, cwd=cwd)


class Servers:
    """The servers of one session. ``run`` imports the MCP client and starts the servers."""

    def __init__(
        self, servers: Iterable[ToolServer], environment: LaunchEnvironment, notice: Callable[[str], None]
    ) -> None:
        self.by_name = {server.name: ManagedServer(server, environment) for server in servers}
        self._notice = notice
        self._noticed: set[str] = set()
        self._is_first = True
        self._scope = trio.CancelScope()
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Start all servers and keep them running until ``end`` is called."""
        with self._scope:
            async with trio.open_nursery() as self._nursery:
                for server in self.by_name.values():
                    self._nursery.start_soon(server.run)

    def end(self) -> None:
        """End all servers."""
        self._scope.cancel()

    @property
    def views(self) -> tuple[ServerView, ...]:
        """The current state of each server."""
        return tuple(server.view for server in self.by_name.values())

    async def wait_settled(self) -> None:
        """Wait until each server has started or failed."""
        for server in self.by_name.values():
            await server.settled.wait()

    async def offer(self) -> ServerTools:
        """Return the tools for a new run. The first call waits a limited time for servers that are still starting."""
        begun = trio.current_time()
        for server in self.by_name.values() if self._is_first else ():
            with trio.CancelScope(deadline=begun + (server.start_s or FIRST_S)):
                await server.settled.wait()
        with trio.move_on_after(LIST_S):
            for server in self.by_name.values():
                await server.refresh()
        self._is_first = False
        for server in self.by_name.values():
            for sentence in server.notices:
                if sentence not in self._noticed:
                    self._noticed.add(sentence)
                    self._notice(sentence)
            server.restart_if_needed()
        return ServerTools(tuple(tool for server in self.by_name.values() for tool in server.tools))

    def tool(self, offered: OfferedTool) -> ServerTool:
        """Return an offered tool as a ``Tool``."""
        return ServerTool(offered, self.by_name.get(offered.server))

    def request_prompt(
        self,
        server: str,
        prompt: str,
        words: Sequence[str],
        on_text: Callable[[str], object],
        on_error: Callable[[str], object] | None = None,
    ) -> None:
        """Request a prompt from a server in the background, with ``words`` as its arguments.

        Call ``on_text`` with the prompt's text, or ``on_error`` with an error message. Without ``on_error``, show the
        message as a notice.
        """

        async def request() -> None:
            try:
                on_text(await self.by_name[server].get_prompt(prompt, words))
            except ToolError as error:
                (on_error or self._notice)(f"{server}: {content.one_row(str(error), MAX_SERVER_TEXT)}")

        assert self._nursery is not None
        self._nursery.start_soon(request)


@dataclass(eq=False, slots=True)
class _ActiveCall:
    """A running call of a tool. The scopes of the server's questions are cancelled when the call ends."""

    context: ToolContext
    question_scopes: list[trio.CancelScope] = field(default_factory=list)


class ManagedServer:
    """One server, across all its restarts. It has at most one connection at a time."""

    def __init__(self, server: ToolServer, environment: LaunchEnvironment) -> None:
        self.server = server
        self.workspace = environment.workspace
        self.start_s = server.start_s or 0.0
        self.tools: tuple[OfferedTool, ...] = ()
        """The tools of the latest connection."""
        self.settled = trio.Event()
        """Set when the start has succeeded or failed. Replaced by a new event at each restart."""
        self._environment = environment
        self._prompts: tuple[Mapping[str, Any], ...] = ()
        self._shown_prompts: tuple[tuple[str, str], ...] = ()
        self._connection: ServerConnection | None = None
        self._error = self._left_out = ""
        self._start_requested = Wakeup()
        self._start_requested.set()
        self._starts: deque[float] = deque(maxlen=MAX_STARTS)
        """The times of the server's latest restarts, in trio's clock."""
        self._change_count = self._read_change_count = 0
        """How often the server's lists have changed, and the value of this count when the lists were last read."""
        self._asking = trio.Lock()
        self._calls: list[_ActiveCall] = []

    @property
    def state(self) -> State:
        """Whether the server is starting, is connected, or has ended."""
        return "ready" if self._connection else "ended" if self.settled.is_set() else "starting"

    @property
    def view(self) -> ServerView:
        """The server as users see it."""
        names = tuple(tool.name for tool in self.tools)
        name, target = self.server.name, self.server.target
        return ServerView(name, target, self.state, names, self._shown_prompts, self._error, self._left_out)

    @property
    def notices(self) -> Iterator[str]:
        """The sentences about the server's state that the user should see."""
        name = self.server.name
        if self.state == "ended":
            again = "; the next call of one of its tools restarts it" if self.tools else ""
            yield f"The server {name} is not running: {self._error}{again}"
        elif self.state == "starting" and not self._error:
            late = f"The server {name} did not start within {self.start_s or FIRST_S:g} s"
            yield f"{late}; once it has started, new runs have its tools."
        if self._left_out:
            yield self._left_out

    async def run(self) -> None:
        """Start the server, and restart it whenever a restart is requested."""
        while True:
            await self._start_requested.wait()
            try:
                keep_connected = await _IMPORTS.run(_import_client)
                transport = await _THREADS.run(partial(self._environment.resolve, self.server))
                ended = await keep_connected(transport, self._environment.guard, self)
            except (ToolError, ConfigError, OSError) as error:
                ended = str(error)
            self._error = content.one_row(ended, MAX_SERVER_TEXT)
            if self._connection is not None:
                self._connection.explained.set()
                self._connection = None
            self.settled.set()

    async def on_connected(self, connection: ServerConnection) -> None:
        """Read the tools and prompts of a new connection, and store the connection. Raise ``ToolError`` on failure."""
        await self._read_lists(connection)
        self._connection = connection
        self.settled.set()

    def on_list_changed(self) -> None:
        """Record that tools or prompts have changed."""
        self._change_count += 1

    async def refresh(self) -> None:
        """Read the lists of tools and prompts again if they have changed."""
        if self._read_change_count != self._change_count and self._connection is not None:
            with suppress(ToolError):  # the next run tries again
                await self._read_lists(self._connection)

    def restart_if_needed(self) -> None:
        """Restart a server that has ended and has no tools: without tools, no call of a tool restarts it."""
        if self.state == "ended" and not self.tools and not self._restart_delay_s():
            self._restart()

    def _restart(self) -> None:
        self._starts.append(trio.current_time())
        self.settled = trio.Event()
        self._start_requested.set()

    def _restart_delay_s(self) -> float:
        """Return the seconds until the server may be restarted; 0 if it may be now."""
        is_spent = len(self._starts) == MAX_STARTS
        return max(PER_S - (trio.current_time() - self._starts[0]), 0) if is_spent else 0

    async def _read_lists(self, connection: ServerConnection) -> None:
        changes = self._change_count
        tools, prompts = await connection.list_all("tools"), await connection.list_all("prompts")
        check = partial(tools_of, self.server, tools)
        self.tools, self._left_out = await _THREADS.run(check, abandon_on_cancel=True)
        self._prompts, self._shown_prompts = await _THREADS.run(partial(prompts_of, prompts))
        self._read_change_count = changes

    async def _ensure_connected(self) -> ServerConnection:
        """Return the connection. Restart the server if it has ended. Raise ``ToolError`` if the restart fails."""
        if self._connection is not None and self._connection.is_gone:
            await self._connection.explained.wait()
        if self.state == "ended":
            if wait_s := self._restart_delay_s():
                why = f"it ended after {MAX_STARTS} starts in a minute: {self._error}"
                again = f"try again in {math.ceil(wait_s)} s"
                raise ToolError(f"The server {self.server.name} is not running; {why}; {again}.")
            self._restart()
        await self.settled.wait()
        if self._connection is None:
            raise ToolError(f"The server {self.server.name} could not be started: {self._error}")
        return self._connection

    async def call(self, tool: str, context: ToolContext, input: Mapping[str, Any]) -> ToolOutput:
        """Call a tool, by the name that the server uses, and return its output. Raise ``ToolError`` on failure."""
        reported_at = -math.inf

        async def report(progress: float, total: float | None, message: str | None) -> None:
            nonlocal reported_at
            context.extend()
            if (now := trio.current_time()) >= reported_at + PROGRESS_S:
                reported_at = now
                text = message or (f"{progress:g} of {total:g}" if total else f"{progress:g}")
                context.progress(text[:MAX_SERVER_TEXT])

        call = _ActiveCall(context)
        self._calls.append(call)
        try:
            return await self._request(
                "tools/call", {"name": tool, "arguments": dict(input)}, content.output_of, report
            )
        finally:
            self._calls.remove(call)
            for scope in call.question_scopes:
                scope.cancel()

    async def _request(
        self,
        method: str,
        params: Mapping[str, Any],
        convert: Callable[[dict[str, Any]], T],
        progress: Any = None,  # noqa: ANN401
    ) -> T:
        """Send a request and return its result, converted by ``convert``. Raise ``ToolError`` on failure.

        If the server refuses the request because the server was restarted, the request is sent again once.
        """
        was_refused = False
        while True:
            connection = await self._ensure_connected()
            try:
                return await connection.request(method, params, convert, progress)
            except content.NotCarriedOutError as error:
                if was_refused:
                    raise ToolError(f"The server refuses the request in a new session too: {error}") from None
                was_refused = True
            except ToolError as error:
                if not connection.is_gone:
                    raise
                with trio.move_on_after(WHY_S):
                    await connection.explained.wait()
                name, why = self.server.name, self._error or str(error)
                raise ToolError(f"The server {name} ended during the call, which may have had effects: {why}") from None

    async def get_prompt(self, name: str, words: Sequence[str]) -> str:
        """Return the text of a prompt, with ``words`` as its arguments in order. Raise ``ToolError`` on failure."""
        await self._ensure_connected()
        found = next((each for each in self._prompts if each["name"] == name), None)
        if found is None:
            raise ToolError(f"There is no prompt {name}.")
        listed = found.get("arguments")
        arguments = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
        wanted = [str(each.get("name")) for each in arguments]
        needed = [str(each.get("name")) for each in arguments if each.get("required")]
        if len(needed) > len(words):
            raise ToolError(f"The prompt {name} needs {', '.join(needed)}.")
        if wanted and len(words) > len(wanted):  # the last argument gets all remaining words
            words = [*words[: len(wanted) - 1], " ".join(words[len(wanted) - 1 :])]
        params = {"name": name, "arguments": dict(zip(wanted, words, strict=False))}
        return await self._request("prompts/get", params, content.messages_text)

    async def elicit(self, message: str, schema: Mapping[str, Any], url: str) -> tuple[str, dict[str, Any] | None]:
        """Ask the user the server's question, as part of the latest tool call. Return the action and the answers."""
        if not self._calls or self._asking.statistics().tasks_waiting >= MAX_ASKING - 1:
            return "decline", None
        call = self._calls[-1]
        with suppress(ToolError), trio.CancelScope() as scope:  # no user is available, or the user stopped
            call.question_scopes.append(scope)
            async with self._asking:
                return await content.ask_user(self.server.name, message, schema, url, call.context.asking.choose)
        return "cancel", None


def _import_client() -> Callable[..., Any]:
    """Import the MCP client and return ``keep_connected``. Raise ``ToolError`` if the client is not installed."""
    try:
        with without_collector():
            from chain.tools.mcp.connection import keep_connected
    except ImportError as error:
        why = "" if isinstance(error, ModuleNotFoundError) else f" ({error})"
        raise ToolError(f"servers need the extra mcp: {install_command(MCP)}{why}") from None
    return keep_connected


class ServerTool:
    """A tool of an MCP server. ``server`` is ``None`` if the session does not have this server any more."""

    def __init__(self, offered: OfferedTool, server: ManagedServer | None) -> None:
        self.name = offered.name
        self.description = offered.description
        self.input_schema = offered.input_schema
        self.read_only = offered.read_only
        self.needs_approval = offered.needs_approval
        self.timeout_s = None if server is None else server.server.timeout_s
        self._offered = offered
        self._server = server

    def check(self, input: Mapping[str, Any]) -> None:
        """Raise ``ToolError`` if a key of the input is missing or unknown. The server checks the rest."""
        schema = self.input_schema
        is_closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
        faults = [f"{key} is missing" for key in schema.get("required", ()) if key not in input]
        if is_closed:
            faults += [f"there is no {key}" for key in input if key not in schema.get("properties", {})]
        if faults:
            raise ToolError(f"The input of {self.name} does not fit its schema: {'; '.join(faults)}.")

    async def run(self, context: ToolContext, input: Mapping[str, Any]) -> ToolOutput:
        """Call the tool at the server and return its output. Raise ``ToolError`` on failure."""
        if self._server is None:
            raise ToolError(f"There is no server {self._offered.server} any more.")
        return await self._server.call(self._offered.tool, context, input)
