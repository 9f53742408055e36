"""One connection to a server, from its start to its end.

Messages go through the client of ``mcp``: who asked what, progress, and the ``notifications/cancelled`` of a call that
is cut. What is listed and given back is taken as it comes, and judged here and in ``offers``: a tool with a mistake
must not cost the others, and a schema of a server's is nothing to check its answers by in our own thread.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import httpx2
import mcp_types as types
import trio
from mcp.client.session import ClientRequestContext, ClientSession
from mcp.shared.dispatcher import CallOptions, ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND

from chain.errors import ToolError
from chain.servers import START_S, Address, Launch
from chain.tools import calling
from chain.tools.mcp.content import NotCarriedOutError
from chain.tools.mcp.streams import (
    LARGE,
    ErrorTail,
    HttpNotes,
    OpenRequest,
    Outgoing,
    RowReader,
    http_streams,
    row_of,
)
from chain.tools.mcp.traffic import Traffic
from chain.tools.processes.guarded import Guard
from chain.version import VERSION

CLOSED = "Connection closed"
"""The client's message when the connection broke."""
UNEXPLAINED = ("Session terminated", "Server returned an error response")
"""The client's messages for an HTTP response that says nothing but its status."""
ENDING_S = 0.1
"""Seconds for what a server says last, which may be on its way."""
MAX_PAGES, MAX_LISTED, MAX_LIST_BYTES = 50, 10_000, 10_000_000
"""Pages of a list, what is on them, and the bytes of all: more is a server that does not end."""

Json: TypeAlias = Mapping[str, Any]

for _name in ("mcp", "client"):
    # What the library logs would go to the terminal.
    logging.getLogger(_name).addHandler(logging.NullHandler())
    logging.getLogger(_name).propagate = False


class ServerHost(Protocol):
    """The owner of a connection. ``start_s`` is how long the server may take until it has said what it has."""

    workspace: Path
    start_s: float

    async def elicit(self, message: str, schema: Json, url: str) -> tuple[str, dict[str, Any] | None]:
        """What the user answers: accept, decline or cancel, and what to."""

    async def on_connected(self, connection: ServerConnection) -> None:
        """The server answers. Raises ``ToolError`` where it is of no use."""

    def on_listed_anew(self) -> None:
        """Its tools or prompts have changed."""


@dataclass(frozen=True, slots=True)
class ServerConnection:
    """A server that answers."""

    _dispatcher: JSONRPCDispatcher[Any]
    _notes: HttpNotes
    has_tools: bool
    has_prompts: bool
    _ids: Iterator[int] = field(default_factory=lambda: count(1_000))

    @property
    def is_gone(self) -> bool:
        """Whether the other side has ended."""
        return self._notes.traffic.gone.is_set()

    async def ask(self, method: str, params: Json, progress: ProgressFnT | None = None) -> dict[str, Any]:
        """Return the answer to a request. Raises ``ToolError``. A cancelled request is cancelled at the server too."""
        options = CallOptions(request_id=(id := next(self._ids)))
        if progress is not None:
            options["on_progress"] = progress
        # Half a surrogate pair, which a model may write, cannot be sent.
        params = json.loads(json.dumps(params, ensure_ascii=False).encode(errors="replace"))
        request = self._notes.open[id] = OpenRequest()
        try:
            result = await self._dispatcher.send_raw_request(method, params, options)
            return result if request.large is None or LARGE not in result else request.large
        except MCPError as error:
            why = request.fault if request.fault and error.error.message in UNEXPLAINED else error.error.message
            is_unknown = request.is_unknown and error.error.code not in (METHOD_NOT_FOUND, INVALID_PARAMS)
            if is_unknown or why == CLOSED:
                self._notes.traffic.gone.set()  # which it is a little later, and only a new connection helps
            raise (NotCarriedOutError if is_unknown else ToolError)(why) from None
        finally:
            del self._notes.open[id]

    async def listed(self, what: str) -> list[Json]:
        """The tools or prompts, page after page. Raises ``ToolError``."""
        found: list[Json] = []
        cursors: set[str] = set()
        params: dict[str, Any] = {}
        traffic = self._notes.traffic
        before = traffic.received
        for _ in range(MAX_PAGES):
            answer = await self.ask(f"{what}/list", params)
            page = answer.get(what)
            if not isinstance(page, list):
                raise ToolError(f"its list of {what} is none")
            if traffic.received - before > MAX_LIST_BYTES:
                traffic.exceed(f"its list of {what} has more than {MAX_LIST_BYTES:,} bytes")
            found += [each for each in page if isinstance(each, dict)]
            cursor = answer.get("nextCursor")
            if not isinstance(cursor, str) or cursor in ("", *cursors) or len(found) >= MAX_LISTED:
                break
            cursors.add(cursor)
            params = {"cursor": cursor}
        return found[:MAX_LISTED]


async def keep_connected(how: Launch | Address, guard: Guard, env: Mapping[str, str], host: ServerHost) -> str:
    """Start or reach a server and keep the connection until it ends. Return why it ended."""
    notes, problem = HttpNotes(Traffic()), "it ended"
    try:
        if isinstance(how, Launch):
            return await _with_program(how, guard, env, host, notes)
        async with http_streams(how, notes) as (read, write):
            await _converse(read, write, host, notes)
    except* Exception as errors:  # noqa: BLE001 - a server must not end the session
        problem = _problem(errors)
    return notes.traffic.fault or notes.fault or problem


async def _with_program(how: Launch, guard: Guard, env: Mapping[str, str], host: ServerHost, notes: HttpNotes) -> str:
    problem, traffic = "", notes.traffic
    async with (
        guard.open(how.argv, cwd=how.cwd or host.workspace, env={**env, **how.env}) as program,
        trio.open_nursery() as nursery,
    ):
        reader, tail = RowReader(program, traffic), ErrorTail(program, traffic)
        writer = Outgoing(lambda item: program.input.send_all(row_of(item)), traffic)
        nursery.start_soon(writer.run)
        nursery.start_soon(tail.run)
        try:
            await _converse(reader, writer, host, notes)
        except* Exception as errors:  # noqa: BLE001 - reported
            problem = _problem(errors)
        if reader.is_closed or writer.is_broken:
            problem = f"it closed its {'input' if writer.is_broken else 'output'}"
        with trio.move_on_after(ENDING_S):
            problem = traffic.fault or await program.end()
        if beside := tail.last_row or reader.noise:
            problem = f"{problem} ({beside})"
        nursery.cancel_scope.cancel()
    return problem


def _problem(error: Exception) -> str:
    """What went wrong, on one row."""
    leaf = next(calling.leaves_of(error))
    match leaf:
        case MCPError():
            text = leaf.error.message
        case httpx2.HTTPError():
            text = f"it cannot be reached: {str(leaf) or type(leaf).__name__}"
        case ToolError() | RuntimeError():
            text = str(leaf)
        case ValueError():
            text = "what it said first is not what the protocol has"
        case OSError() | trio.BrokenResourceError() | trio.ClosedResourceError():
            text = "the connection broke"
        case _:  # of the client, brought about by what the server sent: it ends that server, and no session
            text = f"what it sent could not be understood ({type(leaf).__name__})"
    return text.strip().partition("\n")[0]


async def _converse(
    read: Any,  # noqa: ANN401 - streams of either kind
    write: Any,  # noqa: ANN401
    host: ServerHost,
    notes: HttpNotes,
) -> None:
    """Begin, and stay until the other side is gone. Raises ``MCPError``, ``ToolError``, ``RuntimeError``."""

    async def elicited(context: ClientRequestContext, params: Any) -> types.ElicitResult:  # noqa: ANN401
        schema = getattr(params, "requested_schema", None) or {}
        action, content = await host.elicit(params.message, schema, getattr(params, "url", None) or "")
        return types.ElicitResult.model_validate({"action": action, "content": content})

    async def roots(context: ClientRequestContext) -> types.ListRootsResult:
        root = {"uri": host.workspace.as_uri(), "name": host.workspace.name}
        return types.ListRootsResult.model_validate({"roots": [root]})

    async def told(message: object) -> None:
        if isinstance(message, types.ToolListChangedNotification | types.PromptListChangedNotification):
            host.on_listed_anew()

    dispatcher = JSONRPCDispatcher[Any](read, write)
    session = ClientSession(
        dispatcher=dispatcher,
        elicitation_callback=elicited,
        list_roots_callback=roots,
        message_handler=told,
        client_info=types.Implementation(name="chain", version=VERSION),
    )
    async with session:
        with trio.move_on_after(most := max(host.start_s, START_S)) as limit:
            has = (await session.initialize()).capabilities
            await host.on_connected(ServerConnection(dispatcher, notes, has.tools is not None, has.prompts is not None))
        if limit.cancelled_caught:
            raise ToolError(f"it did not answer within {most:g} s")
        await notes.traffic.gone.wait()
