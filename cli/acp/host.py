"""The sessions of an editor: opens, closes, deletes and lists them.

Each open session has two tasks: one keeps its chain open, and one sends its updates until the chain is closed.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import trio

from chain import Tool
from chain.app import sessions
from chain.app.open import open_chain
from chain.app.prompt_files import compaction_rules, prompt_file, system_prompt
from chain.app.toolbox import configured_tools, tool_groups, tool_kinds
from chain.app.whereabouts import whereabouts
from chain.chain import CLOSING_S
from chain.concurrency.threads import Threads
from chain.config.allowed_servers import servers_of
from chain.config.commands import find_commands
from chain.config.load import Settings, require_trust
from chain.config.servers import ToolServer
from chain.errors import ConfigError, SessionError, UserError
from chain.text.phrases import iso
from chain.text.wording import instructions_read
from cli.acp import params
from cli.acp.editor_session import EditorFeatures, EditorSession
from cli.acp.rpc import CANCELLED, INTERNAL_ERROR, INVALID_REQUEST, NOT_FOUND, RpcError
from cli.acp.shown_calls import as_title
from cli.acp.wire import IncomingCall, Wire
from cli.door.server import side_door

MAX_SESSIONS = 50
"""Open sessions. Each has files, tasks and, after its first command, processes."""

UPDATES_GRACE_S = 1.0
"""Seconds for the last updates after the chains are closed. The editor may not read them."""

PAGE = 50
"""Stored sessions in one answer."""

_THREADS = Threads("editors")
"""For work that reads files, so that a slow disk delays only the request that needs it."""

BUG = "this is a mistake in chain; standard error has its traceback"


@dataclass(frozen=True, slots=True)
class Opener:
    """The parameters for opening the sessions of one process. ``read_settings`` reads the configuration for a folder.

    ``address`` is that of the Redis that stores the sessions. If it is empty, the folder ``state`` stores them.
    """

    read_settings: Callable[[Path], Settings]
    state: Path
    tools: Sequence[Tool] = ()
    traces: Path | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    address: str = ""
    is_kept: bool = True
    """Whether sessions are stored at all."""

    @property
    def store(self) -> sessions.Store:
        """The store of the sessions."""
        if not self.is_kept:
            return sessions.MemoryStore()
        return sessions.open_store(self.state, self.address)

    def settings_for(self, workspace: Path, id: str | None) -> Settings:
        """Return the settings for a new session, or for a stored one. Raise ``RpcError`` and ``UserError``."""
        if id is not None:
            _check_kept(self.store, id, workspace)
        settings = self.read_settings(workspace)
        try:
            require_trust(settings)
        except ConfigError as error:
            hint = "; or start chain in that folder once and say there that you trust it"
            raise ConfigError(f"{error.message}{hint}", file=error.file, line=error.line) from None
        return settings


class Host:
    """The sessions of an editor. All of them are closed when ``run`` ends."""

    def __init__(self, wire: Wire, opener: Opener, notify: Callable[[str], None]) -> None:
        self.sessions: dict[str, EditorSession] = {}
        """The sessions that have not ended, by their ids; ``leaving`` is set in those that are being closed."""
        self.features = EditorFeatures()
        self._wire = wire
        self._opener = opener
        self._notify = notify
        self._opening: dict[IncomingCall, str | None] = {}
        """The requests that open a session, with its id if it is a stored one."""
        self._tasks: trio.Nursery | None = None
        self._updates: trio.Nursery | None = None
        self._is_leaving = False

    async def run(self, serve: Callable[[], Awaitable[None]]) -> None:
        """Run ``serve``, then close the sessions."""
        async with trio.open_nursery() as self._updates:
            async with trio.open_nursery() as self._tasks:
                await serve()
                self._is_leaving = True
                for session in self.sessions.values():
                    session.leaving.set()
                self._tasks.cancel_scope.deadline = trio.current_time() + CLOSING_S + UPDATES_GRACE_S
            self._updates.cancel_scope.deadline = trio.current_time() + UPDATES_GRACE_S

    def start(self, work: Callable[[IncomingCall], Awaitable[None]], call: IncomingCall) -> None:
        """Serve a request in a task."""
        assert self._tasks is not None
        self._tasks.start_soon(self._answer, work, call)

    def open(
        self, call: IncomingCall, workspace: Path, id: str | None, notes: Sequence[str], servers: Sequence[ToolServer]
    ) -> None:
        """Open the stored session with this ``id``, or a new one, with servers of the editor. Raise ``RpcError``."""
        if len(self.sessions) + len(self._opening) >= MAX_SESSIONS:
            raise RpcError(INVALID_REQUEST, f"{MAX_SESSIONS} sessions are open; close one")
        if id is not None:
            self._check_not_opening(id, " here already")
            if id in self.sessions and not self.sessions[id].leaving.is_set():
                raise RpcError(INVALID_REQUEST, f"the session {id} is open here already")
        self._opening[call] = id
        self.start(lambda call: self._keep(call, workspace, id, notes, servers), call)

    async def switch(self, session: EditorSession, name: str, call: IncomingCall) -> None:
        """Continue a session in the chain of this name. Raise ``RpcError`` and ``UserError``.

        A chain's tools and prompt are fixed when a session opens, so the session is closed and resumed.
        """
        if name not in session.offer.settings.chain_names:
            known = ", ".join(session.offer.settings.chain_names)
            raise params.wrong(f"there is no chain {name!r:.60}; there is {known}")
        if name == session.offer.settings.default_chain:
            call.answer({"configOptions": session.offer.options})
            return
        settings = replace(session.offer.settings, default_chain=name)
        # Faults of the configuration are found while the session is still open.
        await _THREADS.run(partial(_check_chain, settings, self._opener.tools))
        if session.is_busy or session.leaving.is_set():
            raise RpcError(INVALID_REQUEST, "a run is active; the chain can be changed when it has ended")
        self._opening[call] = session.id
        session.leaving.set()
        try:
            await self._keep(call, session.workspace, session.id, (), session.servers, settings)
        except UserError as error:
            raise SessionError(f"{error}; the session is closed now") from None

    async def delete(self, id: str, call: IncomingCall) -> None:
        """Delete a session; close it first if it is open here. Raise ``RpcError`` and ``UserError``."""
        self._check_not_opening(id, " here")
        if (session := self.sessions.get(id)) is not None:
            session.leaving.set()
            await session.ended.wait()
        await _THREADS.run(partial(_delete_kept, self._opener.store, id))
        call.answer({})

    async def list(self, workspace: Path | None, cursor: str) -> Mapping[str, Any]:
        """Return a page of the stored sessions. Raise ``RpcError``."""
        return await _THREADS.run(partial(_page, self._opener.store, workspace, cursor))

    def find(self, id: str) -> EditorSession:
        """Return the open session with this id. Raise ``RpcError``."""
        self._check_not_opening(id, "; wait for the answer")
        session = self.sessions.get(id)
        if session is None or session.leaving.is_set():
            raise RpcError(NOT_FOUND, f"the session {id!r:.60} is not open here; session/load opens one that is kept")
        return session

    def close(self, session: EditorSession, call: IncomingCall) -> None:
        """Close a session, and answer when it has ended."""
        session.closing = call
        session.leaving.set()

    def _check_not_opening(self, id: str, hint: str) -> None:
        if id in self._opening.values():
            raise RpcError(INVALID_REQUEST, f"the session {id} is being opened{hint}")

    async def _answer(self, work: Callable[[IncomingCall], Awaitable[None]], call: IncomingCall) -> None:
        """Serve a request. Answer it with what is raised, and let the other requests continue."""
        try:
            await work(call)
        except RpcError as error:
            call.answer(error)
        except UserError as error:
            call.answer(RpcError(INTERNAL_ERROR, str(error)))
        except Exception:  # noqa: BLE001 - a bug in one session must not end the others
            self._notify(traceback.format_exc())
            call.answer(RpcError(INTERNAL_ERROR, BUG))
        finally:
            call.answer(RpcError(CANCELLED, "the program ends"))

    async def _keep(
        self,
        call: IncomingCall,
        workspace: Path,
        id: str | None,
        notes: Sequence[str],
        servers: Sequence[ToolServer],
        chosen: Settings | None = None,
    ) -> None:
        """Open a session, and keep it open until it is closed or fails. Raise ``RpcError`` and ``UserError``.

        ``servers`` are the editor's. ``chosen`` are the settings to use instead of those of the folder.
        """
        opener = self._opener
        try:
            if id is not None and id in self.sessions:
                await self.sessions[id].ended.wait()
            settings = chosen
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
                    whereabouts=whereabouts,
                    instructions=True,
                    servers=[*servers, *own],
                ) as chain,
                side_door(chain, opener.state, opener.environ) if opener.is_kept else nullcontext("") as doorless,
            ):
                kinds = tool_kinds(settings, opener.tools)
                custom = partial(find_commands, settings, chain.workspace, opener.state)
                session = EditorSession(chain, settings, self._wire, kinds, self._notify, self.features, custom)
                session.servers = servers
                if call.method == "session/load":
                    await session.tell_past(sessions.told_again(opener.store, session.id))
                self._admit(session, call, [*notes, *found.notes_unattended, doorless, *_notes(settings, session)])
                await session.leaving.wait()
        finally:
            self._opening.pop(call, None)

    def _admit(self, session: EditorSession, call: IncomingCall, notes: Sequence[str]) -> None:
        """Answer the request for a session that is open, and accept prompts for it."""
        assert self._updates is not None
        notes = [note for note in notes if note]
        for note in notes:
            self._notify(f"{session.id}: {note}")
        del self._opening[call]
        self.sessions[session.id] = session
        self._updates.start_soon(self._tell, session)
        about = {"_meta": {"chain": {"notices": notes}}} if notes else {}
        new = {"sessionId": session.id} if call.method == "session/new" else {}
        call.answer({**new, "configOptions": session.offer.options, **about})
        if self._is_leaving:
            session.leaving.set()

    async def _tell(self, session: EditorSession) -> None:
        """Send a session's updates until its chain is closed, so that the editor hears how an interrupted run ended."""
        try:
            await session.tell()
        except Exception:  # noqa: BLE001 - a bug in one session must not end the others
            self._notify(traceback.format_exc())
            session.leaving.set()
        finally:
            del self.sessions[session.id]
            session.end()


def _notes(settings: Settings, session: EditorSession) -> Sequence[str]:
    read = session.chain.state.instructions
    notes = [str(settings.passed_over or ""), instructions_read(read.files), *read.faults]
    if session.chain.resumed is not None:
        notes += session.chain.resumed.changes
        waiting = "; ".join(f"{each.id} {each.line.text:.200}" for each in session.chain.lines.waiting)
        notes += [f"Lines from before, delivered with the next prompt: {waiting}"] if waiting else []
    return notes


def _check_chain(settings: Settings, tools: Sequence[Tool]) -> None:
    """Raise ``UserError`` if the chain of these settings could not be opened."""
    chain = settings.chain()
    settings.model(chain.model).require_key()
    for read in (system_prompt, prompt_file, compaction_rules):
        read(settings, chain)
    configured_tools(settings, chain, tools, tool_groups(settings))


def _delete_kept(store: sessions.Store, id: str) -> None:
    """Delete the session with exactly this id, if there is one. Raise ``SessionError``."""
    try:
        is_kept = store.whole_id(id) == id
    except SessionError:
        is_kept = False
    if is_kept:  # the protocol wants no error for a session that does not exist
        store.delete(id)


def _page(store: sessions.Store, cwd: Path | None, cursor: str) -> Mapping[str, Any]:
    """Return a page of the stored sessions, or of those of a workspace, the latest first. Raise ``RpcError``."""
    if cursor and not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 10):
        raise params.wrong("cursor is none of those that were given")
    begin = int(cursor or 0)
    here = None if cwd is None else os.path.realpath(cwd)
    found = [
        each
        for each in store.summaries()
        if each.query and each.workspace and (here is None or os.path.realpath(each.workspace) == here)
    ]
    shown = [_info(each) for each in found[begin : begin + PAGE]]
    more = {"nextCursor": str(begin + PAGE)} if len(found) > begin + PAGE else {}
    return {"sessions": shown, **more}


def _check_kept(store: sessions.Store, id: str, workspace: Path) -> None:
    """Raise ``RpcError`` unless there is a session with exactly this id whose workspace is this folder."""
    try:
        found = store.find(id)
    except SessionError as error:
        raise RpcError(NOT_FOUND, str(error)) from None
    if found.id != id:
        raise RpcError(NOT_FOUND, f"there is no session {id!r:.60}; is it {found.id}?")
    before = Path(found.workspace)
    if found.workspace and before.is_dir() and before.resolve() != workspace.resolve():
        raise params.wrong(f"cwd is not the folder of the session, which is {before}")


def _info(session: sessions.Summary) -> Mapping[str, Any]:
    return {
        "sessionId": session.id,
        "cwd": session.workspace,
        "title": as_title(session.query),
        "updatedAt": iso(session.changed).replace("+00:00", "Z"),
        "_meta": {"chain": {"runs": session.runs, "isOpen": session.is_open}},
    }
