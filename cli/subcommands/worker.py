"""``chain worker``: runs the sessions of a Redis that machines share, until a signal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import trio

from chain import Tool
from chain.app.session_worker import Worker, WorkerLimits
from chain.app.sessions import shown_address
from chain.concurrency.tasks import during
from chain.config.load import Settings
from cli.ending import leaving_at_signal


def work(
    settings: Settings,
    state: Path,
    limits: WorkerLimits,
    tools: Sequence[Tool],
    report: Callable[[str], object],
    *,
    tells_all: bool,
) -> int:
    """Run sessions until a signal, then hand them over; the exit code. Raises ``UserError``.

    A second signal ends the process at once: other workers go on when its leases end. ``tells_all``: which sessions it
    takes and gives back is reported too.
    """
    settings.model().require_key()  # an error is reported before a session suffers from it
    note = report if tells_all else lambda what: None
    worker = Worker(settings, state, limits, report, note=note, tools=tools)

    async def run() -> None:
        async with leaving_at_signal(leave), during(say_ready):
            await worker.run()

    async def say_ready() -> None:
        await worker.ready.wait()
        report(f"waiting for sessions of {shown_address(settings.state)}")

    def leave(number: int) -> None:
        worker.leave()
        report("handing over what runs")

    trio.run(run)
    return 0
