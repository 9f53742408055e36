"""The sessions that are open: each is a task of its own, from the request that opens it to its end.

Its chain is closed before the task that tells its events ends, so the editor hears how an interrupted run ended.
"""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import trio

from chain.app import sessions
from chain.chain import CLOSING_S, Chain
from chain.errors import UserError
from cli.acp.editor_session import EditorSession
from cli.acp.opening import Opening
from cli.acp.rpc import CANCELLED, INTERNAL_ERROR, INVALID_REQUEST, RpcError
from cli.acp.wire import IncomingCall, Wire

MAX_SESSIONS = 50
"""Sessions that may be open: each has files, tasks and, once it runs a command, processes."""

GRACE_S = 1.0
"""How long the last updates may take once the chains are closed: perhaps nobody reads them any more."""

BUG = "this is a mistake in chain; standard error has its traceback"


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """A session that a request asks for; ``id`` is that of a kept one, and ``find`` reads how it is opened."""

    call: IncomingCall
    find: Callable[[], Awaitable[Opening]]
    id: str | None = None
    notes: Sequence[str] = ()
    is_told_again: bool = False


class Host:
    """Opens sessions, and closes all of them when it is left."""

    def __init__(self, wire: Wire, notify: Callable[[str], None]) -> None:
        self.sessions: dict[str, EditorSession] = {}
        self.tells_receipts = False
        self._wire = wire
        self._notify = notify
        self._tasks: trio.Nursery | None = None
        self._opening: dict[str, IncomingCall] = {}
        """The requests for those that are kept and about to be opened, by their ids."""
        self._ends: dict[str, trio.Event] = {}
        """Set when a session has ended, for those that are open or being closed."""
        self._chains = 0
        """How many are open, or about to be."""
        self._all_closed = trio.Event()
        self._is_leaving = False

    async def run(self, serve: Callable[[], Awaitable[None]]) -> None:
        """Keep sessions as long as ``serve`` runs; then close them."""
        async with trio.open_nursery() as self._tasks:
            await serve()
            self._is_leaving = True
            for session in self.sessions.values():
                session.leaving.set()
            if self._chains:
                with trio.move_on_after(CLOSING_S + GRACE_S):
                    await self._all_closed.wait()
            self._tasks.cancel_scope.deadline = trio.current_time() + GRACE_S

    def start(self, work: Callable[[IncomingCall], Awaitable[None]], call: IncomingCall) -> None:
        """Do in a task what answers a request."""
        assert self._tasks is not None
        self._tasks.start_soon(self._answer, call, lambda: work(call))

    def open(self, wanted: SessionRequest) -> None:
        """Open a session, and keep it. Raises ``RpcError``."""
        assert self._tasks is not None
        if self._chains >= MAX_SESSIONS:
            raise RpcError(INVALID_REQUEST, f"{MAX_SESSIONS} sessions are open; close one")
        if wanted.id is not None:
            self._claim(wanted.id, wanted.call)
        self._chains += 1
        self._tasks.start_soon(self._answer, wanted.call, lambda: self._keep(wanted))

    def close(self, session: EditorSession, call: IncomingCall) -> None:
        """Close a session, and answer then."""
        session.closing.append(call)
        session.leaving.set()

    def _claim(self, id: str, call: IncomingCall) -> None:
        """Let nobody but this request open a session. Raises ``RpcError`` if another has, or is about to."""
        session = self.sessions.get(id)
        if id in self._opening:
            raise RpcError(INVALID_REQUEST, f"the session {id} is being opened here already")
        if session is not None and not session.leaving.is_set():
            raise RpcError(INVALID_REQUEST, f"the session {id} is open here already")
        self._opening[id] = call

    def _release(self, wanted: SessionRequest) -> None:
        if wanted.id is not None and self._opening.get(wanted.id) is wanted.call:
            del self._opening[wanted.id]

    async def _answer(self, call: IncomingCall, work: Callable[[], Awaitable[None]]) -> None:
        """Answer a request also if what it asks for fails, by whatever mistake: the others go on."""
        try:
            await work()
        except RpcError as error:
            call.fail(error)
        except UserError as error:
            call.fail(RpcError(INTERNAL_ERROR, str(error)))
        except Exception:  # noqa: BLE001 - a mistake of ours in one session must not end the others
            self._notify(traceback.format_exc())
            call.fail(RpcError(INTERNAL_ERROR, BUG))
        finally:
            call.fail(RpcError(CANCELLED, "the program ends"))

    async def _keep(self, wanted: SessionRequest) -> None:
        """Keep a session until it is closed or fails. Raises ``RpcError`` and ``UserError``."""
        kept: EditorSession | None = None
        problem: UserError | RpcError | None = None
        try:
            async with trio.open_nursery() as nursery:
                try:
                    opening = await self._find(wanted)
                    async with opening.open() as chain, opening.open_door(chain) as doorless:
                        kept = EditorSession(
                            chain, self._wire, opening.kinds, self._notify, tells_receipts=self.tells_receipts
                        )
                        await self._admit(wanted, opening, kept, doorless)
                        nursery.start_soon(kept.tell)
                        await kept.leaving.wait()
                        self.sessions.pop(kept.id)
                except (UserError, RpcError) as error:
                    problem = error  # raised outside the nursery, which would wrap it in a group
                finally:
                    self._count_closed()
                    self._release(wanted)
            if problem is not None:
                raise problem
        finally:
            if kept is not None:
                self._end(kept)

    async def _find(self, wanted: SessionRequest) -> Opening:
        """What a session is opened with, once it is closed if it is being closed. Raises ``UserError``."""
        if wanted.id is not None and (end := self._ends.get(wanted.id)) is not None:
            await end.wait()
        return await wanted.find()

    async def _admit(self, wanted: SessionRequest, opening: Opening, session: EditorSession, problem: str) -> None:
        """Answer the request for a session that is open; from then on it gets prompts."""
        if wanted.is_told_again and opening.kept is not None:
            await session.tell_past(sessions.told_again(opening.kept))
        notes = [*wanted.notes, *filter(None, [problem]), *_notes(opening, session.chain)]
        for note in notes:
            self._notify(f"{session.id}: {note}")
        self.sessions[session.id] = session
        self._ends[session.id] = trio.Event()
        self._release(wanted)
        result: dict[str, Any] = {"sessionId": session.id} if opening.kept is None else {}
        wanted.call.answer({**result, **_meta(notes)})
        if self._is_leaving:
            session.leaving.set()

    def _end(self, session: EditorSession) -> None:
        self.sessions.pop(session.id, None)
        session.fail_prompts()
        for call in session.closing:
            call.answer({})
        if (end := self._ends.pop(session.id, None)) is not None:
            end.set()

    def _count_closed(self) -> None:
        self._chains -= 1
        if not self._chains and self._is_leaving:
            self._all_closed.set()


def _notes(opening: Opening, chain: Chain) -> Sequence[str]:
    notes = [] if opening.settings.passed_over is None else [str(opening.settings.passed_over)]
    if chain.resumed is not None:
        notes += chain.resumed.changes
        waiting = "; ".join(f"{each.id} {each.line.text:.200}" for each in chain.waiting)
        notes += [f"Lines from before, delivered with the next prompt: {waiting}"] if waiting else []
    return notes


def _meta(notes: Sequence[str]) -> Mapping[str, Any]:
    return {"_meta": {"chain": {"notices": list(notes)}}} if notes else {}
