"""Programs of our own for what a thread cannot be trusted with: they can be killed, and they end with chain.

What they read may be hostile, so they get no key, and fence themselves in before they look at it (``lifeline``).
"""

from __future__ import annotations

import contextlib
import subprocess
import sys

import trio

from chain.tools.processes import lifeline
from chain.tools.processes.environment import bare_environment


async def run_worker(program: str, *arguments: str, input: bytes) -> tuple[int, bytes]:
    """Run a program by its path; its exit code (negative: a signal) and output. A cancelled caller kills it."""
    # A session of its own: Ctrl-C in the terminal is for the chain, which ends the program itself.
    process = await trio.lowlevel.open_process(
        [sys.executable, "-I", "-S", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=bare_environment(),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    written = bytearray()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_send, process.stdin, lifeline.framed(input))
            while chunk := await process.stdout.receive_some():
                written += chunk
            nursery.cancel_scope.cancel()  # who has ended reads no more
        return await process.wait(), bytes(written)
    finally:
        # A worker must not outlive its call; who is killed ends at once.
        with trio.CancelScope(shield=True):
            if process.returncode is None:
                process.kill()
            await process.wait()
            await process.stdin.aclose()
            await process.stdout.aclose()


async def _send(stream: trio.abc.SendStream, data: bytes) -> None:
    with contextlib.suppress(trio.BrokenResourceError):  # it has ended before it read all
        await stream.send_all(data)
