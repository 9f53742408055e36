"""A worker: claims sessions of a Redis that want one, and runs up to a number of them at once.

A session wants a worker when a line was sent and no process holds the session, or when its holder is silent. A worker
holds a session until nothing is left to do. It continues a run whose worker died or handed the session over.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import trio

from chain.app.open import open_chain
from chain.app.session_context import session_context
from chain.chain import Chain
from chain.concurrency.wakeup import Wakeup
from chain.config.load import Settings
from chain.errors import SessionError, UserError
from chain.events import Event, IterationStarted, Notice
from chain.redis.lease import LEASE_S, Lease, hold_lease
from chain.redis.redis_server import RedisServer
from chain.redis.redis_store import RedisStore
from chain.session import event_json
from chain.text.wording import GO_ON, MAIN
from chain.tools.tool import Tool

IDLE_LOOK_S = 1.0
"""How often an idle worker looks for sessions whose holders are silent."""
HAND_OVER_S = 60.0
"""How long a worker that is to end waits for the next safe point of a run."""
MAX_TAKEOVERS = 3
"""After how many workers that died with a session its run is not continued: the run may be what kills them."""
DEADLY = f"{MAX_TAKEOVERS} workers have died with its run, which is not gone on with; send a line to go on"
SWEEP_S = 60.0
"""How often old sessions are deleted."""
_SERVER = ""
"""The subject of reports about the server, which name it themselves."""
_SWEEPING = "deleting old sessions"


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """What a worker runs: ``at_once`` sessions, and ``only`` those that work in this folder, if it is not empty.

    Sessions in which nothing happened for ``keep_s`` seconds are deleted.
    """

    at_once: int = 1
    only: str = ""
    keep_s: float | None = None


class Worker:
    """Runs the sessions of the Redis at ``settings.state`` until ``leave`` is called.

    Call ``report`` with what goes wrong, and ``note`` with each session that is claimed or released.
    Raise ``SessionError`` for an address that cannot be parsed.
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
        """Set when the server is connected."""
        self._leaving = trio.Event()
        self._running: set[str] = set()
        """The sessions that run here, including those that were lost and have not ended yet."""
        self._outlived: list[Lease] = []
        """Lost leases of which the server has not been told yet that this worker is alive."""
        self._freed = Wakeup()
        self._reported: dict[str, str] = {}
        """The latest report of each subject."""

    def leave(self) -> None:
        """Claim no more sessions, and hand over the running ones at their next safe points."""
        self._leaving.set()
        self._freed.set()

    async def run(self) -> None:
        """Run sessions until ``leave``. Raise ``SessionError`` if the server cannot be used at the start."""
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
            if self._reported.pop(_SERVER, None):
                self._report(f"the Redis at {self._store.address} can be used again")
            if lease is not None:
                self._note(f"{'goes on with' if lease.has_open_run else 'takes'} {_of(lease)}, in {lease.workspace}")
                self._running.add(lease.id)
                sessions.start_soon(self._run_session, lease)

    async def _claim_next(self, server: RedisServer) -> Lease | None:
        # No cancellation between the claim and the task that releases the session.
        with trio.CancelScope(shield=True):
            while self._outlived:
                await self._store.discount_death(server, self._outlived[0])
                self._outlived.pop(0)  # only now: a report that fails is repeated
            for id in await self._store.due(server, only=self._limits.only):
                if id in self._running:
                    continue  # no two chains work in one folder
                lease = await self._store.claim_for_worker(server, id)
                if lease is not None:
                    return lease
        return None

    async def _run_session(self, lease: Lease) -> None:
        lease.release_mode = "retry"
        self._store.claimed[lease.id] = lease
        async with hold_lease(lease):
            try:
                await self._open(lease)
            except UserError as error:
                self._tell(_of(lease), str(error))
            except Exception:  # noqa: BLE001 - a bug in one session must not end the others
                self._tell(_of(lease), traceback.format_exc())
            else:
                self._reported.pop(_of(lease), None)
        del self._store.claimed[lease.id]
        if lease.was_released:
            self._note(f"gives back {_of(lease)}")
        else:
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
            whereabouts=session_context,
            instructions=True,
        )
        with trio.CancelScope() as scope:
            async with opened as chain:
                self._continue_run(chain, lease)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._stop_when_lost, lease, scope)
                    nursery.start_soon(self._hand_over, chain, lease, scope)
                    await _until_done(chain, lease)
                    nursery.cancel_scope.cancel()

    def _continue_run(self, chain: Chain, lease: Lease) -> None:
        """Continue an open run that a worker left, and let lines that wait start a run otherwise."""
        is_asked = any(accepted.line.text == GO_ON for accepted in chain.lines.waiting)
        was_cut = lease.has_open_run and chain.resumed is not None and chain.resumed.was_cut
        if was_cut and lease.takeovers > MAX_TAKEOVERS:
            self._tell(_of(lease), DEADLY)
            with suppress(OSError):  # the lease is lost
                lease.publish(json.dumps(event_json.to_json(Notice(message=DEADLY))), Notice.type)
        elif was_cut and not is_asked:
            chain.start(GO_ON, origin="door")
            return
        chain.runs.begin_waiting()

    async def _stop_when_lost(self, lease: Lease, scope: trio.CancelScope) -> None:
        await lease.lost.wait()
        self._tell(_of(lease), f"this worker has lost its lease: {lease.lost_reason}")
        scope.cancel()

    async def _hand_over(self, chain: Chain, lease: Lease, scope: trio.CancelScope) -> None:
        """Let another worker continue from the next safe point, as if this one had ended there."""
        safe = trio.Event()

        def hear(event: Event) -> None:
            if isinstance(event, IterationStarted) and event.agent == MAIN and self._leaving.is_set():
                lease.hand_over()
                safe.set()

        chain.listen(hear)
        await self._leaving.wait()
        with trio.move_on_after(HAND_OVER_S):
            await safe.wait()
        lease.hand_over()  # released once the work has ended: no two workers are in one folder
        scope.cancel()

    async def _sweep(self, server: RedisServer, keep_s: float) -> None:
        while True:
            try:
                await self._store.delete_old(server, keep_s)
            except SessionError as error:
                self._tell(_SWEEPING, str(error))
            else:
                self._reported.pop(_SWEEPING, None)
            await trio.sleep(SWEEP_S)

    def _tell(self, subject: str, why: str) -> None:
        """Report what goes wrong with a subject, but not the same twice in a row."""
        if self._reported.get(subject) != why:
            self._reported[subject] = why
            self._report(f"{subject}: {why}" if subject else why)


async def _until_done(chain: Chain, lease: Lease) -> None:
    """Wait until no run is active and all fetched rows were acted on. Then accept nothing more."""
    while True:
        await chain.wait_idle()
        if await chain.jobs.wait_awaited():
            continue
        if not (chain.is_running or lease.unread):
            break
        if not chain.is_running:
            await lease.was_read.wait()
    # No await since the check: what is sent from now on is for the next holder.
    chain.stop_accepting()
    if lease.release_mode == "retry":
        lease.release_mode = "done"


def _of(lease: Lease) -> str:
    return f"the session {lease.id}"
