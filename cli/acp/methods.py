"""The agent's side of the Agent Client Protocol, version 1: its methods, and the sessions that are open.

Methods that change a run (prompt, steering, cancel) are served in the step in which they are read, so that they keep
their order. Methods that take time (open, load, list, close) are served in tasks. Each open session has two more tasks:
one keeps its chain open, and one sends its updates until the chain is closed.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import trio

from chain.app import sessions
from chain.app.open import open_chain
from chain.app.session_context import session_context
from chain.app.toolbox import tool_kinds
from chain.chain import CLOSING_S
from chain.concurrency.threads import Threads
from chain.config.allowed_servers import servers_of
from chain.config.commands import find_commands
from chain.config.load import Settings
from chain.config.servers import ToolServer, editor_servers
from chain.errors import SessionError, UserError
from chain.text.wording import instructions_sentence
from chain.version import VERSION
from cli.acp import params
from cli.acp.editor_offer import CHAIN, MODEL
from cli.acp.editor_session import STEERING, EditorFeatures, EditorSession
from cli.acp.opener import SessionOpener
from cli.acp.rpc import CANCELLED, INTERNAL_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, NOT_FOUND, RpcError
from cli.acp.wire import IncomingCall, Wire
from cli.door.server import side_door

PROTOCOL_VERSION = 1

MAX_SESSIONS = 50
"""The maximum number of open sessions. Each has files, tasks and, after its first command, processes."""

UPDATES_GRACE_S = 1.0
"""Seconds to send the last updates after all chains are closed. The editor may have stopped reading."""

_THREADS = Threads("editors")
"""The threads for reading files, so that a slow disk delays only the request that needs it."""

BUG = "this is a bug in chain; see the traceback on standard error"

_CAPABILITIES = {
    "loadSession": True,
    "promptCapabilities": {"embeddedContext": True, "image": True, "audio": False},
    "mcpCapabilities": {"http": True, "sse": False},
    "sessionCapabilities": {"list": {}, "resume": {}, "close": {}, "delete": {}},
}
_EXTENSIONS = {"steering": {"supported": True}, "receipts": {"supported": True}}


class EditorAgent:
    """The server of one editor. ``log`` writes a text to standard error."""

    def __init__(self, wire: Wire, opener: SessionOpener, log: Callable[[str], None]) -> None:
        self._wire = wire
        self._opener = opener
        self._log = log
        self._features: EditorFeatures | None = None
        """The features of the editor; ``None`` before ``initialize``."""
        self._sessions: dict[str, EditorSession] = {}
        """The sessions that have not ended, by their ids. In those that are being closed, ``leaving`` is set."""
        self._opening: dict[IncomingCall, str | None] = {}
        """The requests that are opening a session, each with the session's id, or ``None`` for a new session."""
        self._reading = trio.CancelScope()
        self._tasks: trio.Nursery | None = None
        self._updates: trio.Nursery | None = None
        self._is_leaving = False
        self._methods: Mapping[str, Callable[[IncomingCall], None]] = {
            "initialize": self._initialize,
            "authenticate": self._authenticate,
            "session/new": self._open,
            "session/load": self._open,
            "session/resume": self._open,
            "session/list": partial(self._start_task, self._list),
            "session/close": self._close,
            "session/delete": partial(self._start_task, self._delete),
            "session/set_config_option": self._set_option,
            "session/prompt": self._submit,
            STEERING: self._submit,
        }

    async def run(self) -> None:
        """Serve until the input ends or ``leave`` is called. Then close every session."""
        async with trio.open_nursery() as self._updates:
            async with trio.open_nursery() as self._tasks:
                with self._reading:
                    await self._wire.run(self._on_request, self._on_notification)
                self._is_leaving = True
                for session in self._sessions.values():
                    session.leaving.set()
                self._tasks.cancel_scope.deadline = trio.current_time() + CLOSING_S + UPDATES_GRACE_S
            self._updates.cancel_scope.deadline = trio.current_time() + UPDATES_GRACE_S

    def leave(self) -> None:
        """Make ``run`` stop reading requests, close every session and return."""
        self._reading.cancel()

    def _on_request(self, call: IncomingCall) -> None:
        method = self._methods.get(call.method)
        if method is None:
            raise RpcError(METHOD_NOT_FOUND, f"there is no method {call.method!r:.200}")
        if self._features is None and call.method != "initialize":
            raise RpcError(INVALID_REQUEST, "send initialize first")
        method(call)

    def _on_notification(self, method: str, fields: Mapping[str, Any]) -> None:
        id = fields.get("sessionId")
        if method == "session/cancel" and isinstance(id, str) and id in self._sessions:
            self._sessions[id].cancel()

    def _initialize(self, call: IncomingCall) -> None:
        if self._features is not None:
            raise RpcError(INVALID_REQUEST, "the connection is initialized already")
        if type(call.params.get("protocolVersion")) is not int:
            raise params.error("protocolVersion must be a whole number")
        elicitation = params.mapping(call.params, "clientCapabilities", "elicitation")
        self._features = EditorFeatures(
            receipts=params.mapping(call.params, "_meta").get("receipts") is True,
            forms=isinstance(elicitation.get("form"), dict),
        )
        call.answer(
            {
                "protocolVersion": PROTOCOL_VERSION,
                "agentInfo": {"name": "chain", "title": "chain", "version": VERSION},
                "agentCapabilities": {**_CAPABILITIES, "_meta": _EXTENSIONS},
                "authMethods": [],
                "_meta": _EXTENSIONS,
            }
        )

    def _authenticate(self, call: IncomingCall) -> None:
        id = params.text(call.params, "methodId")
        raise params.error(f"methodId {id!r:.60}: there are no authentication methods")

    def _open(self, call: IncomingCall) -> None:
        id = None if call.method == "session/new" else params.text(call.params, "sessionId")
        workspace = params.absolute_path(call.params, "cwd")
        if not os.path.isdir(workspace):  # False where Path.is_dir raises
            raise params.error(f"cwd is not a folder: {workspace}")
        if id == "":
            raise params.error("sessionId is empty")
        servers, faults = editor_servers(params.array(call.params, "mcpServers"))
        if len(self._sessions) + len(self._opening) >= MAX_SESSIONS:
            raise RpcError(INVALID_REQUEST, f"{MAX_SESSIONS} sessions are open; close one")
        if id is not None:
            self._check_not_opening(id, " here already")
            if id in self._sessions and not self._sessions[id].leaving.is_set():
                raise RpcError(INVALID_REQUEST, f"the session {id} is open here already")
        self._opening[call] = id
        self._start_task(lambda call: self._run_session(call, workspace, id, faults, servers), call)

    async def _list(self, call: IncomingCall) -> None:
        cwd = None if call.params.get("cwd") is None else params.absolute_path(call.params, "cwd")
        cursor = params.text(call.params, "cursor", default="")
        call.answer(await _THREADS.run(partial(self._opener.page, cwd, cursor)))

    def _close(self, call: IncomingCall) -> None:
        session = self._named_session(call)

        async def answer(call: IncomingCall) -> None:
            await session.ended.wait()
            call.answer({})

        session.leaving.set()
        self._start_task(answer, call)

    async def _delete(self, call: IncomingCall) -> None:
        id = params.text(call.params, "sessionId")
        self._check_not_opening(id, " here")
        if (session := self._sessions.get(id)) is not None:
            session.leaving.set()
            await session.ended.wait()
        await _THREADS.run(partial(self._opener.delete, id))
        call.answer({})

    def _set_option(self, call: IncomingCall) -> None:
        session = self._named_session(call)
        id, value = params.text(call.params, "configId"), params.text(call.params, "value")
        if id == MODEL:
            session.offer.set_model(value)
            call.answer({"configOptions": session.offer.options})
        elif id == CHAIN:
            self._start_task(lambda call: self._switch(session, value, call), call)
        else:
            raise params.error(f"there is no option {id!r:.60}; the options are {MODEL} and {CHAIN}")

    async def _switch(self, session: EditorSession, name: str, call: IncomingCall) -> None:
        """Close a session, resume it with the chain ``name``, and answer the request.

        Raise ``RpcError`` if there is no such chain, or if a run is active. Raise ``UserError`` if the chain cannot be
        opened.
        """
        if name not in session.offer.settings.chain_names:
            known = ", ".join(session.offer.settings.chain_names)
            raise params.error(f"there is no chain {name!r:.60}; the chains are {known}")
        if name == session.offer.settings.default_chain:
            call.answer({"configOptions": session.offer.options})
            return
        settings = replace(session.offer.settings, default_chain=name)
        # Faults of the configuration are found while the session is still open.
        await _THREADS.run(partial(self._opener.check_chain, settings))
        if session.is_busy or session.leaving.is_set():
            raise RpcError(INVALID_REQUEST, "a run is active; the chain can be changed when it has ended")
        self._opening[call] = session.id
        session.leaving.set()
        try:
            await self._run_session(call, session.workspace, session.id, (), session.servers, settings)
        except UserError as error:
            raise SessionError(f"{error}; the session is closed now") from None

    def _submit(self, call: IncomingCall) -> None:
        session = self._named_session(call)
        steering = params.mapping(call.params, "_meta", "steering") if call.method == STEERING else {}
        behavior = steering.get("idleBehavior")
        if behavior not in (None, "startNewTurn", "promptRequired"):
            raise params.error("_meta.steering.idleBehavior must be startNewTurn or promptRequired")
        text, images = params.read_prompt(params.array(call.params, "prompt"), session.workspace)
        if behavior == "promptRequired" and not session.has_turn:
            call.answer({"outcome": "promptRequired", "reason": "noRunningTurn"})
        else:
            session.submit(call, text, images)

    def _named_session(self, call: IncomingCall) -> EditorSession:
        """Return the open session that a request names. Raise ``RpcError`` if that session is not open."""
        id = params.text(call.params, "sessionId")
        self._check_not_opening(id, "; wait for the answer")
        session = self._sessions.get(id)
        if session is None or session.leaving.is_set():
            raise RpcError(NOT_FOUND, f"the session {id!r:.60} is not open here; session/load opens a stored one")
        return session

    def _start_task(self, work: Callable[[IncomingCall], Awaitable[None]], call: IncomingCall) -> None:
        """Start a task that serves a request with ``work``."""
        assert self._tasks is not None
        self._tasks.start_soon(self._serve, work, call)

    def _check_not_opening(self, id: str, hint: str) -> None:
        if id in self._opening.values():
            raise RpcError(INVALID_REQUEST, f"the session {id} is being opened{hint}")

    async def _serve(self, work: Callable[[IncomingCall], Awaitable[None]], call: IncomingCall) -> None:
        """Serve a request with ``work``. Turn an exception into the answer, so that other requests continue."""
        try:
            await work(call)
        except RpcError as error:
            call.answer(error)
        except UserError as error:
            call.answer(RpcError(INTERNAL_ERROR, str(error)))
        except Exception:  # noqa: BLE001 - a bug in one session must not end the others
            self._log(traceback.format_exc())
            call.answer(RpcError(INTERNAL_ERROR, BUG))
        finally:
            call.answer(RpcError(CANCELLED, "chain is exiting"))

    async def _run_session(
        self,
        call: IncomingCall,
        workspace: Path,
        id: str | None,
        notes: Sequence[str],
        servers: Sequence[ToolServer],
        settings: Settings | None = None,
    ) -> None:
        """Open a session, and keep it open until ``leaving`` is set. Raise ``RpcError`` or ``UserError`` on failure.

        ``id`` is the id of a stored session; ``None`` for a new session. ``notes`` are notices to show. ``servers`` are
        the MCP servers that the editor named. ``settings`` replace the settings of the folder, unless ``None``.
        """
        opener = self._opener
        try:
            if id is not None and id in self._sessions:
                await self._sessions[id].ended.wait()
            if settings is None:
                settings = await _THREADS.run(partial(opener.settings_for, workspace, id))
            found = await _THREADS.run(partial(servers_of, settings, workspace, opener.state))
            own = [each for each in found.allowed if all(each.name != other.name for other in servers)]
            async with (
                open_chain(
                    settings,
                    workspace=workspace,
                    state=opener.state,
                    store=opener.store,
                    tools=opener.tools,
                    resume=id or "",
                    interactive=True,
                    traces=opener.traces,
                    session_context=session_context,
                    instructions=True,
                    servers=[*servers, *own],
                    mode=opener.mode if id is None else None,
                ) as chain,
                side_door(chain, opener.state, opener.environ) if opener.is_kept else nullcontext("") as doorless,
            ):
                kinds = tool_kinds(settings, opener.tools)
                features = self._features or EditorFeatures()
                custom = partial(find_commands, settings, chain.workspace, opener.state)
                session = EditorSession(chain, settings, self._wire, kinds, self._log, features, custom)
                session.servers = servers
                if call.method == "session/load":
                    await session.send_past(sessions.session_events(opener.store, session.id))
                self._admit(session, call, [*notes, *found.notes_unattended, doorless, *_notes(settings, session)])
                await session.leaving.wait()
        finally:
            self._opening.pop(call, None)

    def _admit(self, session: EditorSession, call: IncomingCall, notes: Sequence[str]) -> None:
        """Answer the request that opened a session, and accept the session's prompts. ``notes`` are notices to show."""
        assert self._updates is not None
        notes = [note for note in notes if note]
        for note in notes:
            self._log(f"{session.id}: {note}")
        del self._opening[call]
        self._sessions[session.id] = session
        self._updates.start_soon(self._send_updates, session)
        about = {"_meta": {"chain": {"notices": notes}}} if notes else {}
        new = {"sessionId": session.id} if call.method == "session/new" else {}
        call.answer({**new, "configOptions": session.offer.options, **about})
        if self._is_leaving:
            session.leaving.set()

    async def _send_updates(self, session: EditorSession) -> None:
        """Send a session's updates until its chain is closed, including those for a run that closing interrupts."""
        try:
            await session.send_updates()
        except Exception:  # noqa: BLE001 - a bug in one session must not end the others
            self._log(traceback.format_exc())
            session.leaving.set()
        finally:
            del self._sessions[session.id]
            session.end()


def _notes(settings: Settings, session: EditorSession) -> Sequence[str]:
    read = session.chain.state.instructions
    notes = [str(settings.passed_over or ""), instructions_sentence(read.files), *read.faults]
    if session.chain.resumed is not None:
        notes += session.chain.resumed.changes
        waiting = "; ".join(f"{each.id} {each.line.text:.200}" for each in session.chain.lines.waiting)
        notes += [f"Earlier lines, delivered with the next prompt: {waiting}"] if waiting else []
    return notes
