"""A worker: claims sessions in Redis that have work, and runs several of them concurrently, up to a limit.

A session has work if a line was sent and no process holds the session, or if its holder has stopped responding. A
worker holds a session until no work is left. It continues a run whose worker died or handed the session over.
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

IDLE_POLL_S = 1.0
"""The interval, in seconds, at which an idle worker searches for sessions whose holders do not respond."""
HAND_OVER_S = 60.0
"""The time, in seconds, that a worker waits for the next safe point of a run before it exits."""
MAX_TAKEOVERS = 3
"""The number of workers that may die during one run. After that the run is not continued, as it may be the cause."""
DEADLY = f"{MAX_TAKEOVERS} workers have died during its run, so it is not continued; send a line to resume"
SWEEP_S = 60.0
"""The interval, in seconds, at which old sessions are deleted."""
_SERVER = ""
"""The subject of reports about the server. It is empty, because these reports name the server."""
_SWEEPING = "deleting old sessions"


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """The limits of a worker: the number of concurrent sessions, and the folder ``only`` of their workspaces, if any.

    Sessions without changes for ``keep_s`` seconds are deleted.
    """

    at_once: int = 1
    only: str = ""
    keep_s: float | None = None


class Worker:
    """A worker for the sessions in the Redis at ``settings.state``.

    ``report`` is called with each problem, and ``note`` with each session that is claimed or released. The constructor
    raises ``SessionError`` for an address that cannot be parsed.
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
        """The ids of the sessions that run here, including those whose lease was lost and that have not ended yet."""
        self._lost_leases: list[Lease] = []
        """Lost leases to report. The server has counted each loss as the death of this worker, which is alive."""
        self._slot_freed = Wakeup()
        self._reported: dict[str, str] = {}
        """The latest report of each subject."""

    def leave(self) -> None:
        """Claim no more sessions, and hand over the running ones at their next safe points."""
        self._leaving.set()
        self._slot_freed.set()

    async def run(self) -> None:
        """Run sessions until ``leave``. Raise ``SessionError`` if the server cannot be used at the start."""
        async with self._store.connect() as server, trio.open_nursery() as sessions, trio.open_nursery() as nursery:
            self.ready.set()
            nursery.start_soon(self._claim_sessions, server, sessions)
            if self._limits.keep_s is not None:
                nursery.start_soon(self._sweep, server, self._limits.keep_s)
            await self._leaving.wait()
            nursery.cancel_scope.cancel()

    async def _claim_sessions(self, server: RedisServer, sessions: trio.Nursery) -> None:
        """Claim sessions that have work, and run each in a task. Claim none while the limit of sessions is reached."""
        while True:
            while len(self._running) >= self._limits.at_once:
                await self._slot_freed.wait()
            try:
                lease = await self._claim_next(server)
                if lease is None:
                    await self._store.wait_for_work(server, IDLE_POLL_S)
            except SessionError as error:
                self._report_once(_SERVER, str(error))
                await trio.sleep(IDLE_POLL_S)
                continue
            if self._reported.pop(_SERVER, None):
                self._report(f"the Redis at {self._store.address} can be used again")
            if lease is not None:
                self._note(
                    f"{'resumes' if lease.has_open_run else 'claims'} {_subject_of(lease)}, in {lease.workspace}"
                )
                self._running.add(lease.id)
                sessions.start_soon(self._run_session, lease)

    async def _claim_next(self, server: RedisServer) -> Lease | None:
        """Claim one session that has work, and return its lease. Return ``None`` if there is none."""
        # No cancellation between the claim and the task that releases the session.
        with trio.CancelScope(shield=True):
            while self._lost_leases:
                await self._store.discount_death(server, self._lost_leases[0])
                self._lost_leases.pop(0)  # after the report, so that a failed one is repeated
            for id in await self._store.due_sessions(server, only=self._limits.only):
                if id in self._running:
                    continue  # two chains must not share a folder
                lease = await self._store.claim_for_worker(server, id)
                if lease is not None:
                    return lease
        return None

    async def _run_session(self, lease: Lease) -> None:
        """Run a claimed session until its work is done, then release it. Report errors."""
        lease.release_mode = "retry"
        self._store.claimed[lease.id] = lease
        async with hold_lease(lease):
            try:
                await self._open(lease)
            except UserError as error:
                self._report_once(_subject_of(lease), str(error))
            except Exception:  # noqa: BLE001 - a bug in one session must not end the others
                self._report_once(_subject_of(lease), traceback.format_exc())
            else:
                self._reported.pop(_subject_of(lease), None)
        del self._store.claimed[lease.id]
        if lease.was_released:
            self._note(f"releases {_subject_of(lease)}")
        else:
            self._lost_leases.append(lease)
        self._running.remove(lease.id)
        self._slot_freed.set()

    async def _open(self, lease: Lease) -> None:
        """Open the session of a lease, and serve it until no work is left or the lease ends."""
        opened = open_chain(
            self._settings,
            workspace=Path(lease.workspace),
            state=self._state,
            store=self._store,
            tools=self._tools,
            resume=lease.id,
            session_context=session_context,
            instructions=True,
        )
        with trio.CancelScope() as scope:
            async with opened as chain:
                self._continue_run(chain, lease)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._stop_when_lost, lease, scope)
                    nursery.start_soon(self._hand_over, chain, lease, scope)
                    await _finish_work(chain, lease)
                    nursery.cancel_scope.cancel()

    def _continue_run(self, chain: Chain, lease: Lease) -> None:
        """Continue the run that another worker left unfinished, unless too many workers have died during it.

        If no run is to be continued, start a run with the waiting lines, if there are any.
        """
        is_asked = any(accepted.line.text == GO_ON for accepted in chain.lines.waiting)
        was_cut = lease.has_open_run and chain.resumed is not None and chain.resumed.was_cut
        if was_cut and lease.takeovers > MAX_TAKEOVERS:
            self._report_once(_subject_of(lease), DEADLY)
            with suppress(OSError):  # the lease is lost
                lease.publish(json.dumps(event_json.to_json(Notice(message=DEADLY))), Notice.type)
        elif was_cut and not is_asked:
            chain.start(GO_ON, origin="door")
            return
        chain.runs.start_waiting()

    async def _stop_when_lost(self, lease: Lease, scope: trio.CancelScope) -> None:
        """Cancel the session as soon as its lease is lost."""
        await lease.lost.wait()
        self._report_once(_subject_of(lease), f"this worker has lost its lease: {lease.lost_reason}")
        scope.cancel()

    async def _hand_over(self, chain: Chain, lease: Lease, scope: trio.CancelScope) -> None:
        """Wait for ``leave``, then release the session at the next safe point, or after ``HAND_OVER_S`` at the latest.

        Another worker continues the run.
        """
        safe = trio.Event()

        def on_event(event: Event) -> None:
            if isinstance(event, IterationStarted) and event.agent == MAIN and self._leaving.is_set():
                lease.hand_over()
                safe.set()

        chain.listen(on_event)
        await self._leaving.wait()
        with trio.move_on_after(HAND_OVER_S):
            await safe.wait()
        lease.hand_over()  # it is released when the work has ended, so that two workers never share a folder
        scope.cancel()

    async def _sweep(self, server: RedisServer, keep_s: float) -> None:
        """Delete old sessions at regular intervals."""
        while True:
            try:
                await self._store.delete_old(server, keep_s)
            except SessionError as error:
                self._report_once(_SWEEPING, str(error))
            else:
                self._reported.pop(_SWEEPING, None)
            await trio.sleep(SWEEP_S)

    def _report_once(self, subject: str, why: str) -> None:
        """Report a problem of a subject, unless the last report about this subject was the same problem."""
        if self._reported.get(subject) != why:
            self._reported[subject] = why
            self._report(f"{subject}: {why}" if subject else why)


async def _finish_work(chain: Chain, lease: Lease) -> None:
    """Wait until no run is active and all fetched rows were processed. Then refuse further lines."""
    while True:
        await chain.wait_idle()
        if await chain.jobs.wait_for_waking_job():
            continue
        if not (chain.is_running or lease.unread):
            break
        if not chain.is_running:
            await lease.row_removed.wait()
    # No await since the check: lines that are sent from now on go to the next holder.
    chain.stop_accepting()
    if lease.release_mode == "retry":
        lease.release_mode = "done"


def _subject_of(lease: Lease) -> str:
    return f"the session {lease.id}"
