"""A worker: runs the sessions of a store that others share, as many at once as it may, one after the other.

A session is wanted when a line came for it and nobody holds it, or when its holder says nothing any more. Whoever holds
it keeps it until nothing is left to do. A run that ended with its process is gone on with.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from chain.app.open import open_chain
from chain.app.whereabouts import whereabouts
from chain.chain import Chain
from chain.concurrency.signal import Signal
from chain.config.load import Settings
from chain.errors import SessionError, UserError
from chain.events import Event, IterationStarted, Notice, Result
from chain.redis.lease import LEASE_S, Lease
from chain.redis.redis_server import RedisServer
from chain.redis.redis_store import RedisStore
from chain.session import event_json
from chain.text.wording import GO_ON, MAIN
from chain.tools.tool import Tool

IDLE_LOOK_S = 1.0
"""How often an idle worker looks for sessions whose holders are silent."""
REOPEN_S = 30
"""After how long a session that could not be opened is tried again, by whichever worker."""
HAND_OVER_S = 60.0
"""How long a worker that is to end waits for the next safe point of a run."""
MAX_TAKEOVERS = 3
"""After how many workers that died with a session, none of them at the end of a run, its run is not gone on with: it
may be what kills them."""
DEADLY = f"{MAX_TAKEOVERS} workers have died with its run, which is not gone on with; send a line to go on"
SWEEP_S = 60.0
"""How often sessions that are old enough are deleted."""
_SERVER = ""
"""Reports about the server, which name it themselves."""
_SWEEPING = "deleting old sessions"


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """What a worker takes on: so many sessions at once, and those that work in one folder ``only``, if that is given.

    ``keep_s``: sessions in which nothing happened for so many seconds are deleted.
    """

    at_once: int = 1
    only: str = ""
    keep_s: float | None = None


class Worker:
    """Runs the sessions of the Redis at ``settings.state`` until it is to leave.

    ``report`` is told what goes wrong, and ``note`` which session is taken and given back.
    Raises ``SessionError`` for what is no address.
    """

    def __init__(
        self,
        settings: Settings,
        state: Path,
        limits: WorkerLimits,
        report: Callable[[str], object],
        *,
        note: Callable[[str], object] = lambda what: None,
        tools: Sequence[Tool] = (),
        lease_s: float = LEASE_S,
    ) -> None:
        self._settings = settings
        self._store = RedisStore(settings.state, source="the state", lease_s=lease_s)
        self._state = state
        self._limits = limits
        self._report = report
        self._note = note
        self._tools = tools
        self.ready = trio.Event()
        """Set when the server is reached."""
        self._leaving = trio.Event()
        self._running: set[str] = set()
        """The sessions that run here, those among them that were lost and have not ended yet."""
        self._outlived: list[Lease] = []
        """Those that were lost; that this worker has not died with their sessions is still to be said."""
        self._freed = Signal()
        self._told: dict[str, str] = {}
        """What was reported last, by what it is about."""

    def leave(self) -> None:
        """Begin no more sessions, and hand over the running ones at their next safe points."""
        self._leaving.set()
        self._freed.set()

    async def run(self) -> None:
        """Run sessions until ``leave``. Raises ``SessionError`` if the server cannot be used from the beginning."""
        async with self._store.connected() as server, trio.open_nursery() as sessions, trio.open_nursery() as nursery:
            self.ready.set()
            nursery.start_soon(self._look_for_work, server, sessions)
            if self._limits.keep_s is not None:
                nursery.start_soon(self._sweep, server, self._limits.keep_s)
            await self._leaving.wait()
            nursery.cancel_scope.cancel()

    async def _look_for_work(self, server: RedisServer, sessions: trio.Nursery) -> None:
        while True:
            while len(self._running) >= self._limits.at_once:
                await self._freed.wait()
            try:
                lease = await self._claim_next(server)
                if lease is None:
                    await self._store.wait_for_work(server, IDLE_LOOK_S)
            except SessionError as error:
                self._tell(_SERVER, str(error))
                await trio.sleep(IDLE_LOOK_S)
                continue
            if self._told.pop(_SERVER, None):
                self._report(f"the Redis at {self._store.address} can be used again")
            if lease is not None:
                self._note(f"{'goes on with' if lease.goes_on else 'takes'} {_of(lease)}, in {lease.workspace}")
                self._running.add(lease.id)
                sessions.start_soon(self._run_session, lease)

    async def _claim_next(self, server: RedisServer) -> Lease | None:
        # No cancellation between the claim and the task that gives the session back.
        with trio.CancelScope(shield=True):
            while self._outlived:
                await self._store.discount_death(server, self._outlived[0])
                self._outlived.pop(0)  # another may have been added meanwhile
            for id in await self._store.due(server, only=self._limits.only):
                if id in self._running:
                    continue  # no two chains work in one folder
                lease = await self._store.claim_for_worker(server, id, size=self._settings.inbox_size)
                if lease is not None:
                    return lease
        return None

    async def _run_session(self, lease: Lease) -> None:
        lease.at_exit = REOPEN_S * 1000
        self._store.claimed[lease.id] = lease
        try:
            await self._open(lease)
        except UserError as error:
            self._tell(_of(lease), str(error))
        except Exception:  # noqa: BLE001 - a mistake of ours in one session must not end the others
            self._tell(_of(lease), traceback.format_exc())
        else:
            self._told.pop(_of(lease), None)
        finally:
            if self._store.claimed.pop(lease.id, None) is not None:  # it was not even opened
                # Else nobody would get it before its lease ends, which bounds this as well.
                with trio.CancelScope(shield=True):
                    await lease.release(lease.at_exit)
            if lease.was_released:
                self._note(f"gives back {_of(lease)}")
            elif lease.why:
                self._outlived.append(lease)
            self._running.remove(lease.id)
            self._freed.set()

    async def _open(self, lease: Lease) -> None:
        opened = open_chain(
            self._settings,
            workspace=Path(lease.workspace),
            state=self._state,
            store=self._store,
            tools=self._tools,
            resume=lease.id,
            whereabouts=whereabouts,
            instructions=True,
        )
        with trio.CancelScope() as scope:
            async with opened as chain:
                resumed = chain.resumed
                chain.listen(partial(self._hear_end, lease))
                is_asked = any(accepted.line.text == GO_ON for accepted in chain.lines.waiting)
                was_cut = resumed is not None and resumed.was_cut and lease.goes_on
                if was_cut and lease.takeovers > MAX_TAKEOVERS:
                    self._tell(_of(lease), DEADLY)
                    with suppress(OSError):
                        lease.tell(json.dumps(event_json.to_json(Notice(message=DEADLY))), Notice.type)
                    chain.runs.begin_waiting()
                elif was_cut and not is_asked:
                    chain.start(GO_ON, origin="door")
                else:
                    chain.runs.begin_waiting()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._stop_when_lost, lease, scope)
                    nursery.start_soon(self._hand_over, chain, lease, scope)
                    await self._until_done(chain, lease)
                    nursery.cancel_scope.cancel()

    def _hear_end(self, lease: Lease, event: Event) -> None:
        if isinstance(event, Result) and not event.program_ended:
            with suppress(OSError):
                lease.end_run()

    async def _until_done(self, chain: Chain, lease: Lease) -> None:
        while True:
            await chain.wait_idle()
            if await chain.jobs.wait_awaited():
                continue
            if await lease.release("idle"):
                return
            await lease.was_read.wait()

    async def _stop_when_lost(self, lease: Lease, scope: trio.CancelScope) -> None:
        await lease.lost.wait()
        if not lease.was_released:
            self._tell(_of(lease), f"this worker has lost its lease: {lease.why}")
            scope.cancel()

    async def _hand_over(self, chain: Chain, lease: Lease, scope: trio.CancelScope) -> None:
        """Let another worker go on from the next safe point, as if this one had ended there."""
        safe = trio.Event()

        def hear(event: Event) -> None:
            if isinstance(event, IterationStarted) and event.agent == MAIN and self._leaving.is_set():
                lease.close()
                safe.set()

        chain.listen(hear)
        await self._leaving.wait()
        with trio.move_on_after(HAND_OVER_S):
            await safe.wait()
        lease.close()
        lease.at_exit = "handed"  # once the work has ended: no two workers are in one folder
        scope.cancel()

    async def _sweep(self, server: RedisServer, keep_s: float) -> None:
        while True:
            try:
                await self._store.delete_old(server, keep_s)
            except SessionError as error:
                self._tell(_SWEEPING, str(error))
            else:
                self._told.pop(_SWEEPING, None)
            await trio.sleep(SWEEP_S)

    def _tell(self, what: str, why: str) -> None:
        """Report why something goes wrong, but not the same twice in a row."""
        if self._told.get(what) != why:
            self._told[what] = why
            self._report(f"{what}: {why}" if what else why)


def _of(lease: Lease) -> str:
    return f"the session {lease.id}"
