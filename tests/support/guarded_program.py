"""A program with a guard, under which commands start processes that try to escape. Arguments: ``END MARK [fenced]``.

It prints the folder for temporary files, ``up`` when all commands have started their escaping process, and ``over``
when all calls have ended. It exits at the end of its input. ``END`` is what ends the calls: ``end`` (the commands
exit), ``timeout`` or ``cancel``; with ``stay`` they do not end. ``MARK`` is in the environment of the
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

ESCAPING = "sh -c 'echo > $PIPE; exec sleep 1000'"
"""The escaping process, which reports its start in a pipe."""
TIMEOUT_S = 500

COMMANDS = {
    "setsid": f"setsid {ESCAPING} &",
    "nohup": f"nohup {ESCAPING} >/dev/null 2>&1 & disown",
    "two forks": f"( ( setsid {ESCAPING} & ) & );",
    "in the background": f"{ESCAPING} &",
    "kills its keeper": f"(setsid {ESCAPING} &); read x < $PIPE; kill -9 $PPID;",
    "stops its keeper": f"(setsid {ESCAPING} &); read x < $PIPE; kill -STOP $PPID;",
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


def print_line(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def run(end: str, mark: str, is_fenced: bool, clock: Clock) -> None:
    guard = Guard()
    print_line(str(guard.folder))
    full_fence = Sandbox(ShellRules(), probe()).fence
    assert full_fence is not None
    writable = [str(guard.folder), *fence.DEVICES] if probe().writes else None
    full_fence = full_fence._replace(namespace=False, writable=writable)
    starting = set(COMMANDS)
    all_up = trio.Event()

    async def run_command(name: str) -> None:
        command = f"export PIPE=$(mktemp -u); mkfifo $PIPE; {COMMANDS[name]} "
        command += "echo up; " if "read" in COMMANDS[name] else "read x < $PIPE; echo up; "
        output = bytearray()

        def on_output(chunk: bytes) -> None:
            output.extend(chunk)
            if b"up\n" in output:
                report_start(name)

        try:
            await guard.run(
                ["bash", "-c", command + ("" if end == "end" else "sleep 1000")],
                cwd=Path("/"),
                env={"PATH": os.environ["PATH"], "TMPDIR": str(guard.folder), "MARK": mark},
                on_output=on_output,
                timeout_s=TIMEOUT_S,
                fence=full_fence if is_fenced else None,
            )
        except ToolError:
            report_start(name)  # its keeper was killed

    def report_start(name: str) -> None:
        starting.discard(name)
        if not starting:
            all_up.set()

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            for name in COMMANDS:
                nursery.start_soon(run_command, name)
            await all_up.wait()
            print_line("up")
            if end == "timeout":
                clock.added_s += TIMEOUT_S + 1
            elif end == "cancel":
                scope.cancel()
    print_line("over")
    await trio.to_thread.run_sync(sys.stdin.read)
    await guard.close()


if __name__ == "__main__":
    clock = Clock()
    trio.run(run, sys.argv[1], sys.argv[2], "fenced" in sys.argv, clock, clock=clock)
