"""One connection to a server, from its start to its end.

The client of ``mcp`` matches answers to requests, and sends cancellations. Lists and results are requested raw, and
checked in ``tools`` and ``content``: one bad tool must not make the others unusable, and validating results against the
schemas of a server would block the trio thread.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import httpx2
import mcp_types as types
import trio
from mcp.client.session import ClientRequestContext, ClientSession
from mcp.shared.dispatcher import CallOptions, ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND

from chain.concurrency.threads import Threads
from chain.config.servers import START_S, Address, Launch
from chain.errors import ToolError
from chain.tools import calling
from chain.tools.mcp.content import NotCarriedOutError
from chain.tools.mcp.streams import Outgoing, RowReader, http_streams, row_of
from chain.tools.mcp.traffic import LARGE, READ_COST, OpenRequest, Traffic
from chain.tools.processes.guarded import Guard, GuardedProgram
from chain.version import VERSION

CLOSED = "Connection closed"
"""The message of the client's error after the connection has broken."""
UNEXPLAINED = ("Session terminated", "Server returned an error response")
"""The client's error messages for an HTTP response that has a status but gives no reason."""
MAX_ERRORS = 4_096
"""The most bytes that are stored of a program's standard error."""
ENDING_S = 0.1
"""Seconds to wait for a program's last output and exit code."""
MAX_PAGES, MAX_LIST_ENTRIES, MAX_LIST_BYTES = 50, 10_000, 10_000_000
"""The most pages, entries and bytes of one list."""

_THREADS = Threads("mcp results")

Json: TypeAlias = Mapping[str, Any]
T = TypeVar("T")

for _name in ("mcp", "client"):
    # The library's log records would be printed on the terminal.
    logging.getLogger(_name).addHandler(logging.NullHandler())
    logging.getLogger(_name).propagate = False


class ServerHost(Protocol):
    """The owner of a connection to an MCP server, which may take ``max(start_s, START_S)`` seconds to start."""

    workspace: Path
    start_s: float

    async def elicit(self, message: str, schema: Json, url: str) -> tuple[str, dict[str, Any] | None]:
        """Ask the user the server's question. Return the action (accept, decline or cancel) and the answers."""

    async def on_connected(self, connection: ServerConnection) -> None:
        """Handle a new connection after its handshake. Raise ``ToolError`` if the server is unusable."""

    def on_list_changed(self) -> None:
        """Handle the server's report that its tools or prompts have changed."""


@dataclass(frozen=True, slots=True)
class ServerConnection:
    """A connection to a server after the handshake. It may have ended."""

    _dispatcher: JSONRPCDispatcher[Any]
    _traffic: Traffic
    _capabilities: types.ServerCapabilities
    explained: trio.Event = field(default_factory=trio.Event)
    """Set when the connection has ended and its owner has stored the reason for the end."""
    _ids: Iterator[int] = field(default_factory=lambda: count(1_000))

    @property
    def is_gone(self) -> bool:
        """Whether the connection has ended."""
        return self._traffic.gone.is_set()

    async def request(
        self, method: str, params: Json, convert: Callable[[dict[str, Any]], T], progress: ProgressFnT | None = None
    ) -> T:
        """Send a request and return its result, converted by ``convert``.

        Raise ``ToolError`` if the server answers with an error or the connection ends. Pass on errors of ``convert``. A
        large result is converted in a thread. A cancelled call is cancelled at the server too.
        """
        options = CallOptions(request_id=(id := next(self._ids)))
        if progress is not None:
            options["on_progress"] = progress
        request = self._traffic.open_requests[id] = OpenRequest()
        try:
            result = await self._dispatcher.send_raw_request(method, _sendable(params), options)
        except MCPError as error:
            why = error.error.message or f"The server answered with the error {error.error.code}."
            if request.fault and why in UNEXPLAINED:
                why = request.fault
            is_unknown = request.is_session_unknown and error.error.code not in (METHOD_NOT_FOUND, INVALID_PARAMS)
            if is_unknown or why == CLOSED:
                self._traffic.gone.set()  # only a new connection helps
            raise (NotCarriedOutError if is_unknown else ToolError)(why) from None
        finally:
            del self._traffic.open_requests[id]
        if request.large is None or LARGE not in result:
            return convert(result)
        return await _THREADS.run(partial(convert, request.large), abandon_on_cancel=True)

    async def list_all(self, kind: str) -> list[Json]:
        """Return the server's whole list of one kind, ``tools`` or ``prompts``, read page by page.

        Return an empty list if the server does not offer this kind. Raise ``ToolError`` if a page cannot be read.
        """
        found: list[Json] = []
        cursors: set[str] = set()
        params: dict[str, Any] = {}
        before = self._traffic.received
        for _ in range(MAX_PAGES if getattr(self._capabilities, kind) is not None else 0):
            answer = await self.request(f"{kind}/list", params, dict)
            page = answer.get(kind)
            if not isinstance(page, list):
                raise ToolError(f"its list of {kind} is not a list")
            if self._traffic.received - before > MAX_LIST_BYTES:
                self._traffic.fail_limit(f"its list of {kind} has more than {MAX_LIST_BYTES:,} bytes")
            found += [each for each in page if isinstance(each, dict)]
            cursor = answer.get("nextCursor")
            if not isinstance(cursor, str) or cursor in ("", *cursors) or len(found) >= MAX_LIST_ENTRIES:
                break
            cursors.add(cursor)
            params = {"cursor": cursor}
        return found[:MAX_LIST_ENTRIES]


async def keep_connected(transport: Launch | Address, guard: Guard, host: ServerHost) -> str:
    """Start a server or connect to it, and serve the connection until it ends. Return the reason for the end."""
    traffic, problem = Traffic(), "it ended"
    try:
        if isinstance(transport, Launch):
            return await _serve_program(transport, guard, host, traffic)
        async with http_streams(transport, traffic) as (read, write):
            await _converse(read, write, host, traffic)
    except* Exception as error:  # noqa: BLE001 - a server must not end the session
        problem = _describe_problem(error)
    return traffic.fault or traffic.http_fault or problem


async def _serve_program(launch: Launch, guard: Guard, host: ServerHost, traffic: Traffic) -> str:
    problem, errors = "", b""

    async def read_errors(program: GuardedProgram) -> None:
        nonlocal errors
        while piece := await program.errors.receive_some():  # a full pipe would block the program
            errors = (errors + piece)[-MAX_ERRORS:]
            await traffic.spend(READ_COST + len(piece))

    async with (
        guard.open(launch.argv, cwd=launch.cwd or host.workspace, env=launch.env) as program,
        trio.open_nursery() as nursery,
    ):
        reader = RowReader(program, traffic)
        writer = Outgoing(lambda item: program.input.send_all(row_of(item)), traffic)
        nursery.start_soon(writer.run)
        nursery.start_soon(read_errors, program)
        try:
            await _converse(reader, writer, host, traffic)
        except* Exception as error:  # noqa: BLE001 - reported
            problem = _describe_problem(error)
        problem = traffic.closed_reason or problem
        with trio.move_on_after(ENDING_S):
            problem = traffic.fault or await program.end()
        last_row = "".join(errors.decode(errors="replace").strip().splitlines()[-1:])
        if detail := last_row.strip() or reader.noise:
            problem = f"{problem} ({detail})"
        nursery.cancel_scope.cancel()
    return problem


def _sendable(value: Any) -> Any:  # noqa: ANN401 - any JSON
    """Return JSON with question marks in place of lone surrogates, which cannot be encoded."""
    return json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))


def _describe_problem(error: Exception) -> str:
    """Return a description, on one row, of an error that ended a connection."""
    leaf = next(calling.exceptions_in(error))
    match leaf:
        case MCPError():
            text = leaf.error.message
        case httpx2.HTTPError():
            text = f"it cannot be reached: {str(leaf) or type(leaf).__name__}"
        case ToolError() | RuntimeError():
            text = str(leaf)
        case ValueError():
            text = "its first messages do not follow the protocol"
        case OSError() | trio.BrokenResourceError() | trio.ClosedResourceError():
            text = "the connection broke"
        case _:  # an error of the client's code, caused by the server's messages
            text = f"its messages could not be understood ({type(leaf).__name__})"
    return text.strip().partition("\n")[0]


async def _converse(
    read: Any,  # noqa: ANN401 - streams of either kind
    write: Any,  # noqa: ANN401
    host: ServerHost,
    traffic: Traffic,
) -> None:
    """Do the handshake, and serve ``host`` until the connection ends. Raise an error if the handshake fails."""

    async def elicit(context: ClientRequestContext, params: Any) -> types.ElicitResult:  # noqa: ANN401
        schema = getattr(params, "requested_schema", None) or {}
        action, content = await host.elicit(params.message, schema, getattr(params, "url", None) or "")
        return types.ElicitResult.model_validate({"action": action, "content": _sendable(content)})

    async def roots(context: ClientRequestContext) -> types.ListRootsResult:
        root = {"uri": host.workspace.as_uri(), "name": _sendable(host.workspace.name)}
        return types.ListRootsResult.model_validate({"roots": [root]})

    async def on_message(message: object) -> None:
        if isinstance(message, types.ToolListChangedNotification | types.PromptListChangedNotification):
            host.on_list_changed()

    dispatcher = _Dispatcher(read, write, traffic.gone)
    session = ClientSession(
        dispatcher=dispatcher,
        elicitation_callback=elicit,
        list_roots_callback=roots,
        message_handler=on_message,
        client_info=types.Implementation(name="chain", version=VERSION),
    )
    async with session:
        with trio.move_on_after(most := max(host.start_s, START_S)) as limit:
            capabilities = (await session.initialize()).capabilities
            await host.on_connected(ServerConnection(dispatcher, traffic, capabilities))
        if limit.cancelled_caught:
            raise ToolError(f"it did not answer within {most:g} s")
        await traffic.gone.wait()


class _Dispatcher(JSONRPCDispatcher[Any]):
    """A dispatcher that sets the event ``gone`` when it ends, so that the next tool call restarts the server."""

    def __init__(self, read: Any, write: Any, gone: trio.Event) -> None:  # noqa: ANN401
        super().__init__(read, write)
        self._gone = gone

    async def run(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401
        try:
            await super().run(*arguments, **named)
        finally:
            self._gone.set()
