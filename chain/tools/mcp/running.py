"""The MCP servers of a session: their starts, what they offer, and their calls.

All start at once, in the background. One that ends is started again at its next call. A changed list of tools counts
from the next run on, because tools are part of the prefix that services cache.
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
from chain.config.servers import Launch, ToolServer
from chain.errors import ConfigError, ToolError
from chain.events import OfferedTool
from chain.journal.records import ServerTools
from chain.tools.mcp import content, offers
from chain.tools.tool import ToolContext, ToolOutput

if TYPE_CHECKING:
    from chain.tools.mcp.server_connection import ServerConnection
    from chain.tools.processes.guarded import Guard

FIRST_S = 10.0
"""Seconds that the first run waits for a server to start, unless its entry or a flag says otherwise."""
LIST_S = 5.0
"""Seconds that a run waits for changed lists."""
MAX_STARTS, PER_S = 3, 60.0
"""Restarts of a server in a period, and the period in seconds."""
PROGRESS_S = 0.1
"""Seconds between two reports of progress."""
WHY_S = 1.0
"""Seconds that a failed call waits for the reason why its server ended."""
MAX_ASKING = 3
"""Open questions of a server."""

_THREADS = Threads("mcp")
_IMPORTS = Threads("mcp import", limit=1)
"""One at a time: concurrent imports of a missing module raise unrelated errors."""

_SCRIPT = re.compile(r"[^-/].*\.(?:py|[cm]?js|ts|rb|sh)")
"""A relative path to a script. Names of packages and modules have no such suffix."""

State: TypeAlias = Literal["starting", "ready", "ended"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ServerView:
    """A server as users see it: ``written`` is its command or address, ``error`` the latest error."""

    name: str
    written: str
    state: State
    tools: tuple[str, ...]
    prompts: tuple[tuple[str, str], ...]
    """Names and descriptions."""
    error: str


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the servers of a session share: the ``env`` of their programs, and the ``keys`` kept from found ones."""

    guard: Guard
    workspace: Path
    folder: Path
    environ: Mapping[str, str] = field(repr=False)
    env: Mapping[str, str] = field(repr=False)
    keys: frozenset[str]

    def start_folder(self, argv: Sequence[str]) -> Path:
        """Return where a program without ``cwd`` starts, and create it. Raises ``OSError``.

        This is ``folder``, where no command can write, or the workspace if the program names a script there.
        """
        if any(os.path.isfile(self.workspace / each) for each in argv if _SCRIPT.fullmatch(each)):
            return self.workspace
        os.makedirs(self.folder, 0o700, exist_ok=True)
        return self.folder


class Servers:
    """The servers of one session. ``run`` imports the client and starts them."""

    def __init__(self, servers: Iterable[ToolServer], around: Surroundings, notice: Callable[[str], None]) -> None:
        self._servers = {server.name: _Running(server, around) for server in servers}
        self._notice = notice
        self._is_first = True
        self._scope = trio.CancelScope()
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Start all servers and serve until ``end``."""
        with self._scope:
            async with trio.open_nursery() as self._nursery:
                for server in self._servers.values():
                    self._nursery.start_soon(server.run)

    def end(self) -> None:
        """End all servers."""
        self._scope.cancel()

    @property
    def views(self) -> tuple[ServerView, ...]:
        """The current state of each server."""
        return tuple(server.view for server in self._servers.values())

    @property
    def left_out(self) -> tuple[str, ...]:
        """Sentences on the tools that were left out."""
        return tuple(filter(None, (server.left_out for server in self._servers.values())))

    def timeout_of(self, server: str) -> float | None:
        """Return the time limit of a server's calls in seconds, if its entry has one."""
        return self._servers[server].server.timeout_s if server in self._servers else None

    async def settled(self) -> None:
        """Wait until each server has started or failed."""
        for server in self._servers.values():
            await server.settled.wait()

    async def now(self, latest: ServerTools) -> ServerTools:
        """Return the tools for a new run. The first run waits for servers that are still starting."""
        begun = trio.current_time()
        for server in self._servers.values() if self._is_first else ():
            with trio.CancelScope(deadline=begun + (server.start_s or FIRST_S)):
                await server.settled.wait()
        with trio.move_on_after(LIST_S):
            for server in self._servers.values():
                await server.list_anew()
        self._is_first = False
        for server in self._servers.values():
            for sentence in server.news():
                self._notice(sentence)
            server.try_again()
        return ServerTools(tuple(tool for server in self._servers.values() for tool in server.tools))

    async def call(self, server: str, tool: str, context: ToolContext, input: Mapping[str, Any]) -> ToolOutput:
        """Call a tool by its name at the server. Raises ``ToolError``."""
        if server not in self._servers:
            raise ToolError(f"There is no server {server} any more.")
        return await self._servers[server].call(tool, context, input)

    def ask_prompt(
        self,
        server: str,
        prompt: str,
        words: Sequence[str],
        then: Callable[[str], object],
        failed: Callable[[str], object] | None = None,
    ) -> None:
        """Request a prompt, and pass its text to ``then``, or an error to ``failed`` or as a notice."""

        async def ask() -> None:
            try:
                then(await self._servers[server].prompt(prompt, words))
            except ToolError as error:
                (failed or self._notice)(f"{server}: {content.in_a_row(str(error), offers.MAX_SERVER_TEXT)}")

        assert self._nursery is not None
        self._nursery.start_soon(ask)


@dataclass(eq=False, slots=True)
class _ActiveCall:
    """A running call. Questions that the server asks meanwhile are cancelled when it ends."""

    context: ToolContext
    asking: list[trio.CancelScope] = field(default_factory=list)


class _Running:
    """One server, through all its starts. It has at most one connection."""

    def __init__(self, server: ToolServer, around: Surroundings) -> None:
        self.server = server
        self.workspace = around.workspace
        self.start_s = server.start_s or 0.0
        self.tools: tuple[OfferedTool, ...] = ()
        """The tools of the latest connection."""
        self.settled = trio.Event()
        """Set unless the server is starting."""
        self._around = around
        self._prompts: tuple[Mapping[str, Any], ...] = ()
        self._shown_prompts: tuple[tuple[str, str], ...] = ()
        self._connection: ServerConnection | None = None
        self._error = ""
        self.left_out = ""
        self._told: set[str] = set()
        self._wanted = Wakeup()
        self._wanted.set()
        self._starts: deque[float] = deque(maxlen=MAX_STARTS)
        """Times of its latest restarts."""
        self._changes = self._listed = 0
        """How often its lists have changed, and the change that the latest lists include."""
        self._explained = trio.Event()
        """Set when ``_error`` says why the connection ended."""
        self._asking = trio.Lock()
        self._calls: list[_ActiveCall] = []

    @property
    def view(self) -> ServerView:
        state: State = "ready" if self._connection else "ended" if self.settled.is_set() else "starting"
        names = tuple(tool.name for tool in self.tools)
        return ServerView(self.server.name, self.server.written, state, names, self._shown_prompts, self._error)

    def news(self) -> Iterator[str]:
        """Yield the sentences that the user has not seen yet."""
        name, told = self.server.name, ""
        if self.settled.is_set() and self._connection is None:
            again = "; its next call starts it again" if self.tools else ""
            told = f"The server {name} is not there: {self._error}{again}"
        elif not self.settled.is_set() and not self._error:
            late = f"The server {name} has not started within {self.start_s or FIRST_S:g} s"
            told = f"{late}: what begins goes without it until it has."
        for sentence in filter(None, (told, self.left_out)):
            if sentence not in self._told:
                self._told.add(sentence)
                yield sentence

    async def run(self) -> None:
        while True:
            await self._wanted.wait()
            try:
                keep_connected = await _IMPORTS.run(_import_client)
                how = self.server.filled(self._around.environ, self._around.keys)
                if isinstance(how, Launch) and how.cwd is None:
                    how = replace(how, cwd=await _THREADS.run(partial(self._around.start_folder, how.argv)))
                ended = await keep_connected(how, self._around.guard, self._around.env, self)
            except (ToolError, ConfigError, OSError) as error:
                ended = str(error)
            self._error = content.in_a_row(ended, offers.MAX_SERVER_TEXT)
            self._connection = None
            self._explained.set()
            self.settled.set()

    async def on_connected(self, connection: ServerConnection) -> None:
        """List what a new connection offers. Raises ``ToolError``."""
        await self._list(connection)
        self._connection, self._explained = connection, trio.Event()
        self.settled.set()

    def on_listed_anew(self) -> None:
        self._changes += 1

    async def list_anew(self) -> None:
        """List tools and prompts again if they have changed."""
        if self._listed != self._changes and self._connection is not None:
            with suppress(ToolError):  # the next run tries again
                await self._list(self._connection)

    def try_again(self) -> None:
        """Restart a server without tools, because no call can. The next run gets its tools."""
        if self.settled.is_set() and self._connection is None and not self.tools and not self._wait_s():
            self._start_again()

    def _start_again(self) -> None:
        self._starts.append(trio.current_time())
        self.settled = trio.Event()
        self._wanted.set()

    def _wait_s(self) -> float:
        """Return the seconds until it may be restarted."""
        is_spent = len(self._starts) == MAX_STARTS
        return max(PER_S - (trio.current_time() - self._starts[0]), 0) if is_spent else 0

    async def _list(self, connection: ServerConnection) -> None:
        changes = self._changes
        tools = await connection.listed("tools") if connection.has_tools else []
        prompts = await connection.listed("prompts") if connection.has_prompts else []
        judge = partial(offers.tools_of, self.server, tools)
        self.tools, self.left_out = await _THREADS.run(judge, abandon_on_cancel=True)
        self._prompts, self._shown_prompts = await _THREADS.run(partial(offers.prompts_of, prompts))
        self._listed = changes

    async def _connect(self) -> ServerConnection:
        """Return the connection, after a restart if needed. Raises ``ToolError``."""
        if self._connection is not None and self._connection.is_gone:
            await self._explained.wait()
        if self.settled.is_set() and self._connection is None:
            if wait_s := self._wait_s():
                why = f"it was started {MAX_STARTS} times in a minute, and ended: {self._error}"
                again = f"it may be tried again in {math.ceil(wait_s)} s"
                raise ToolError(f"The server {self.server.name} is not there; {why}; {again}.")
            self._start_again()
        await self.settled.wait()
        if self._connection is None:
            raise ToolError(f"The server {self.server.name} could not be started: {self._error}")
        return self._connection

    async def call(self, tool: str, context: ToolContext, input: Mapping[str, Any]) -> ToolOutput:
        told_at = -math.inf

        async def told(progress: float, total: float | None, message: str | None) -> None:
            nonlocal told_at
            context.extend()
            if (now := trio.current_time()) >= told_at + PROGRESS_S:
                told_at = now
                said = message or (f"{progress:g} of {total:g}" if total else f"{progress:g}")
                context.progress(said[: offers.MAX_SERVER_TEXT])

        call = _ActiveCall(context)
        self._calls.append(call)
        try:
            return await self._ask("tools/call", {"name": tool, "arguments": dict(input)}, content.output_of, told)
        finally:
            self._calls.remove(call)
            for scope in call.asking:
                scope.cancel()

    async def _ask(
        self,
        method: str,
        params: Mapping[str, Any],
        read: Callable[[dict[str, Any]], T],
        progress: Any = None,  # noqa: ANN401
    ) -> T:
        """Return what ``read`` makes of the answer to a request. Raises ``ToolError``.

        The request is repeated once if a restarted server refused it.
        """
        was_refused = False
        while True:
            connection = await self._connect()
            before = connection.received
            try:
                result = await connection.ask(method, params, progress)
                break
            except content.NotCarriedOutError as error:
                if was_refused:
                    raise ToolError(f"The server refuses it in a new session, too: {error}") from None
                was_refused = True
            except ToolError as error:
                if not connection.is_gone:
                    raise
                with trio.move_on_after(WHY_S):
                    await self._explained.wait()
                name, why = self.server.name, self._error or str(error)
                raise ToolError(f"The server {name} ended in the call, which may have had effects: {why}") from None
        if connection.is_little_since(before):
            return read(result)
        return await _THREADS.run(partial(read, result), abandon_on_cancel=True)

    async def prompt(self, name: str, words: Sequence[str]) -> str:
        """Return the text of a prompt, with words as its arguments. Raises ``ToolError``."""
        await self._connect()
        found = next((each for each in self._prompts if each["name"] == name), None)
        if found is None:
            raise ToolError(f"There is no prompt {name}.")
        listed = found.get("arguments")
        arguments = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
        wanted = [str(each.get("name")) for each in arguments]
        needed = [str(each.get("name")) for each in arguments if each.get("required")]
        if len(needed) > len(words):
            raise ToolError(f"The prompt {name} needs {', '.join(needed)}.")
        if wanted and len(words) > len(wanted):  # the last argument gets the rest
            words = [*words[: len(wanted) - 1], " ".join(words[len(wanted) - 1 :])]
        params = {"name": name, "arguments": dict(zip(wanted, words, strict=False))}
        return await self._ask("prompts/get", params, content.messages_text)

    async def elicit(self, message: str, schema: Mapping[str, Any], url: str) -> tuple[str, dict[str, Any] | None]:
        """Ask the user a question of the server, as part of the latest call. Return the action and the answers."""
        if not self._calls or self._asking.statistics().tasks_waiting >= MAX_ASKING - 1:
            return "decline", None
        call = self._calls[-1]
        with suppress(ToolError), trio.CancelScope() as scope:  # nobody can answer, or the user stops
            call.asking.append(scope)
            async with self._asking:
                return await content.answer_of(self.server.name, message, schema, url, call.context.asking.choose)
        return "cancel", None


def _import_client() -> Callable[..., Any]:
    """Import the client. Raise ``ToolError`` if it is not installed."""
    try:
        with without_collector():
            from chain.tools.mcp.server_connection import keep_connected
    except ImportError as error:
        why = "" if isinstance(error, ModuleNotFoundError) else f" ({error})"
        raise ToolError(f"servers need the extra mcp: {install_command(MCP)}{why}") from None
    return keep_connected


class ServerTool:
    """A tool of a server, as a ``Tool``."""

    def __init__(self, offered: OfferedTool, servers: Servers) -> None:
        self.name = offered.name
        self.description = offered.description
        self.input_schema = offered.input_schema
        self.read_only = offered.read_only
        self.needs_approval = offered.needs_approval
        self.timeout_s = servers.timeout_of(offered.server)
        self._offered = offered
        self._servers = servers

    def check(self, input: Mapping[str, Any]) -> None:
        """Raise ``ToolError`` if required input is missing, or there is input that the tool does not have."""
        if why := offers.mistake(self.name, self.input_schema, input):
            raise ToolError(why)

    async def run(self, context: ToolContext, input: Mapping[str, Any]) -> ToolOutput:
        """Call the server. Raises ``ToolError``."""
        return await self._servers.call(self._offered.server, self._offered.tool, context, input)
