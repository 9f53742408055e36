"""A program with a guard, under which commands start processes that try to escape. Arguments: ``HOW MARK [fenced]``.

It prints the folder for temporary files, ``up`` when all commands have started their escaping process, and
``over`` when all calls have ended. It exits at the end of its input. ``HOW`` is what ends the calls: ``end`` (the
commands exit), ``timeout`` or ``cancel``; with ``stay`` they do not end. ``MARK`` is in the environment of the
escaping processes.

The program imports nothing of the tests, because the Python of another user may lack their packages.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import trio

from chain.errors import ToolError
from chain.tools.processes import fence
from chain.tools.processes.guarded import Guard
from chain.tools.processes.probe import probe
from chain.tools.processes.sandbox import Sandbox, ShellRules

STAYS = "sh -c 'echo > $PIPE; exec sleep 1000'"
"""The escaping process, which reports its start in a pipe."""

WAYS = {
    "setsid": f"setsid {STAYS} &",
    "nohup": f"nohup {STAYS} >/dev/null 2>&1 & disown",
    "two forks": f"( ( setsid {STAYS} & ) & );",
    "in the background": f"{STAYS} &",
    "kills its keeper": f"(setsid {STAYS} &); read x < $PIPE; kill -9 $PPID;",
    "stops its keeper": f"(setsid {STAYS} &); read x < $PIPE; kill -STOP $PPID;",
}


class Clock(trio.abc.Clock):
    """A clock that can be advanced. ``trio.testing`` takes longer to import than all else here."""

    added_s = 0.0

    def start_clock(self) -> None:
        """Do nothing."""

    def current_time(self) -> float:
        return time.perf_counter() + self.added_s

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return deadline - self.current_time()


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def run(how: str, mark: str, is_fenced: bool, clock: Clock) -> None:
    guard = Guard()
    say(str(guard.folder))
    box = Sandbox(ShellRules(), probe()).fence
    assert box is not None
    box = box._replace(namespace=False, writable=[str(guard.folder), *fence.DEVICES] if probe().writes else None)
    starting = set(WAYS)
    all_up = trio.Event()

    async def start(way: str) -> None:
        command = f"export PIPE=$(mktemp -u); mkfifo $PIPE; {WAYS[way]} "
        command += "echo up; " if "read" in WAYS[way] else "read x < $PIPE; echo up; "
        output = bytearray()

        def on_output(chunk: bytes) -> None:
            output.extend(chunk)
            if b"up\n" in output:
                is_up(way)

        try:
            await guard.run(
                ["bash", "-c", command + ("" if how == "end" else "sleep 1000")],
                cwd=Path("/"),
                env={"PATH": os.environ["PATH"], "TMPDIR": str(guard.folder), "MARK": mark},
                on_output=on_output,
                timeout_s=500,
                fence=box if is_fenced else None,
            )
        except ToolError:
            is_up(way)  # its keeper was killed

    def is_up(way: str) -> None:
        starting.discard(way)
        if not starting:
            all_up.set()

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            for way in WAYS:
                nursery.start_soon(start, way)
            await all_up.wait()
            say("up")
            if how == "timeout":
                clock.added_s += 501
            elif how == "cancel":
                scope.cancel()
    say("over")
    await trio.to_thread.run_sync(sys.stdin.read)
    await guard.close()


if __name__ == "__main__":
    clock = Clock()
    trio.run(run, sys.argv[1], sys.argv[2], "fenced" in sys.argv, clock, clock=clock)
