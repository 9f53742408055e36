"""``chain worker``: runs the sessions of a Redis that machines share, until a signal."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import trio

from chain.app.session_worker import Worker, WorkerLimits
from chain.app.sessions import redacted_address
from chain.concurrency.nurseries import background_task
from chain.config.load import require_trust, state_folder
from chain.errors import UserError
from cli.arguments import read_settings
from cli.command_output import fail
from cli.ending import leaving_at_signal

MAX_WORKER_SESSIONS = 1_000
"""The maximum of ``--at-once``: each session needs memory for its conversation, and tasks of its own."""


def run(args: argparse.Namespace) -> int:
    """Run sessions until a signal, then hand them over to other workers. Return the exit code.

    A second signal ends the process immediately; other workers take over the sessions when the leases of this process
    expire. With ``--verbose``, each session that this worker claims or releases is reported too.
    Raise ``UserError`` if the configuration has no usable Redis or model.
    """
    settings = read_settings(args)
    require_trust(settings)
    if not settings.state:
        raise UserError("chain worker needs the address of a Redis: --state redis://HOST/DB, or CHAIN_STATE")
    limits = read_limits(args)
    settings.model().require_key()  # report an error before a session is claimed
    note = fail if args.verbose else lambda what: None
    worker = Worker(settings, state_folder(os.environ), limits, fail, note=note, tools=args.tools)

    async def serve() -> None:
        async with leaving_at_signal(leave), background_task(say_ready):
            await worker.run()

    async def say_ready() -> None:
        await worker.ready.wait()
        fail(f"waiting for sessions of {redacted_address(settings.state)}")

    def leave(number: int) -> None:
        worker.leave()
        fail("handing the sessions over")

    trio.run(serve)
    return 0


_UNITS = {"d": 86_400, "h": 3_600, "m": 60}


def read_limits(args: argparse.Namespace) -> WorkerLimits:
    """Return the limits of the worker. Raise ``UserError`` if an option has an invalid value."""
    count = args.at_once or "1"
    if not (count.isascii() and count.isdecimal() and 1 <= int(count) <= MAX_WORKER_SESSIONS):
        raise UserError(f"-n must be a number from 1 to {MAX_WORKER_SESSIONS}, found {count!r:.60}")
    keep_s = None
    if args.keep is not None:
        number, unit = args.keep[:-1], _UNITS.get(args.keep[-1:])
        if unit is None or not (number.isascii() and number.isdecimal() and 0 < int(number) < 100_000):
            raise UserError(f"--keep must be a number of days, hours or minutes such as 30d, found {args.keep!r:.60}")
        keep_s = float(number) * unit
    if args.only is not None and not os.path.isdir(args.only):
        raise UserError("is not a folder; name one that exists with --only", file=Path(args.only))
    return WorkerLimits(int(count), os.path.realpath(args.only) if args.only else "", keep_s)
