"""Programs that tools start: each runs under the guard (``guard``), and nothing of it outlives its call.

The trio side. A call has two descriptors, the leash and the read end of its output. It is over when the leash has ended
or its keeper says so, for then nothing is left; the output has ended by then, since nobody is left to hold it open.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
from array import array
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import trio

from chain.concurrency.threads import Threads
from chain.errors import ToolError
from chain.tools.processes import guard
from chain.tools.processes.environment import bare_environment
from chain.tools.processes.fence import Fence
from chain.tools.processes.places import Places

GONE_S = 5.0
"""Seconds for everything below a command to be gone after it was killed; usual are some milliseconds.

What hangs in the kernel (a dead network disk) cannot be killed, and must not hold up an interrupt for ever.
"""

START_S = 30.0
"""Seconds for the guard to start; usual are 50 ms."""

INPUT_END_S = 0.5
"""Seconds for a program that is spoken to, to end when it has read the end of its input."""

CHUNK = 1 << 16
"""Bytes of output that are read in one step: what a pipe holds."""

_THREADS = Threads("processes")

GUARD_LOST = "The guard of the commands was killed, so the command was ended; it may have had effects."
KEEPER_LOST = "The process that watches over the command was killed, so the command was ended; it may have had effects."
LEFT = f"What the command started could not be ended within {GONE_S:g} s: some of it may still run."


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended: its exit code, or minus the signal that killed it; ``None`` if its time was over.

    ``left`` counts the processes that it had left at work, and that ended with it.
    """

    code: int | None
    left: int = 0


class Guard:
    """The guard of one chain's programs; the process starts with the first of them, and again if it was killed."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.gettempdir()) / f"chain-{secrets.token_hex(8)}"
        """Where the programs may have temporary files. It exists while the process does."""
        self._process: _Process | None = None
        self._starting = trio.Lock()
        self._parent: int | None = None
        """A descriptor of what ``folder`` is in, opened before any program runs that could lead its path elsewhere."""
        self._folder: int | None = None
        """A descriptor of ``folder``."""
        self._places: Places | None = None
        self._opening = threading.Lock()
        self._leashes: set[socket.socket] = set()

    def places(self, make: Callable[[], Places | None]) -> Places | None:
        """What its programs may write: made once, and closed with it. To be called in a thread."""
        with self._opening:
            if self._places is None:
                self._places = make()
            return self._places

    async def run(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        on_output: Callable[[bytes], None],
        timeout_s: float = math.inf,
        fence: Fence | None = None,
    ) -> Ended:
        """Run a program, and give what it writes (stdout and stderr) to ``on_output`` as it comes.

        It has no input. The call ends with the program, or after ``timeout_s`` seconds, and whatever the program
        started is killed then; also when the call is cancelled. All output is given before the call returns. Raises
        ``ToolError`` if it cannot be started, or its watchers were killed.
        """
        rules = [fence.writable] if fence is not None and isinstance(fence.writable, int) else []
        call = await self._begin(rules)
        self._leashes.add(call.leash)
        try:
            request = _request(argv, cwd, env, fence, with_=["rules"] if rules else [])
            return await call.run(request, on_output, timeout_s)
        finally:
            await call.close()
            self._leashes.discard(call.leash)

    @asynccontextmanager
    async def open(self, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> AsyncIterator[GuardedProgram]:
        """Start a program that is spoken to; leaving the block ends it, and whatever it started.

        It gets the end of its input first, and ``INPUT_END_S`` to end by itself. Raises ``ToolError`` if there is no
        guard, and ``OSError``; that the program itself cannot be started is said by ``GuardedProgram.end``.
        """
        ends: list[int] = []
        try:
            for _ in range(2):
                ends += os.pipe()
            their_input, our_input, our_errors, their_errors = ends
            call = await self._begin([their_input, their_errors])
        except BaseException:
            for each in ends:
                os.close(each)
            raise
        os.close(their_input)
        os.close(their_errors)
        input, errors = map(trio.lowlevel.FdStream, (our_input, our_errors))
        self._leashes.add(call.leash)
        try:
            with contextlib.suppress(trio.BrokenResourceError):
                await call.stream.send_all(_request(argv, cwd, env, None, with_=["input", "errors"]))
            yield GuardedProgram(input, call.output, errors, call)
        finally:
            # Nothing of the program may stay, whatever ends the block.
            with trio.CancelScope(shield=True):
                await input.aclose()
                with trio.move_on_after(INPUT_END_S):
                    await call.ended()
                await call.close()
                await errors.aclose()
            self._leashes.discard(call.leash)

    async def close(self) -> None:
        """End the guard and everything below it, and remove its folder. Calls that still run fail."""
        for leash in self._leashes:
            _let_go(leash)
        # The guard must not outlive the chain, whatever ends that.
        with trio.CancelScope(shield=True):
            async with self._starting:
                if self._process is not None:
                    await self._process.close()
                    self._process = None
                if self._parent is not None:
                    await _THREADS.run(partial(self._remove_folder, self._parent))
        if self._places is not None:
            self._places.close()

    async def start(self) -> int:
        """Start the process, if need be; a descriptor of ``folder``, open until ``close``. Raises ``ToolError``."""
        async with self._starting:
            await self._ensure()
            assert self._folder is not None
            return self._folder

    async def _ensure(self) -> _Process:
        """The process; under the lock."""
        if self._process is not None and self._process.process.poll() is not None:
            await self._process.close()
            self._process = None
        try:
            if self._parent is None:
                above = self.folder.parent
                self._parent = await _THREADS.run(lambda: os.open(above, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
            if self._process is None:
                self._process = await _Process.start(self._parent, self.folder.name)
            if self._folder is None:
                self._folder = await _THREADS.run(partial(guard.open_subfolder, self.folder.name, self._parent))
        except OSError as error:
            raise ToolError(f"The guard of the commands cannot be started: {error.strerror}.") from None
        return self._process

    def _remove_folder(self, parent: int) -> None:
        """Remove the folder, which the guard has done unless it was killed, and close the descriptors."""
        if self._folder is not None:
            guard.remove(self._folder, self.folder.name, parent)
            os.close(self._folder)
        os.close(parent)
        self._folder = self._parent = None

    async def _begin(self, others: Sequence[int]) -> _Call:
        """A call whose ends are with the guard, and with them what else its program is to have."""
        async with self._starting:
            process = await self._ensure()
            try:
                leash, their_leash = socket.socketpair()
                try:
                    output, their_output = os.pipe()
                except OSError:
                    leash.close()
                    their_leash.close()
                    raise
            except OSError as error:
                raise ToolError(f"The command cannot be started: {error.strerror}.") from None
            stream = trio.SocketStream(trio.socket.from_stdlib_socket(leash))
            call = _Call(process, leash, stream, trio.lowlevel.FdStream(output))
            try:
                with their_leash:
                    await process.send(their_leash.fileno(), their_output, *others)
            except BaseException:
                await call.close()
                raise
            finally:
                os.close(their_output)
            return call


@dataclass(slots=True)
class _Process:
    """The guard's process and the socket on which it gets the ends of the calls."""

    process: trio.Process
    control: trio.socket.SocketType

    @classmethod
    async def start(cls, parent: int, name: str) -> _Process:
        """Start it, and wait until it serves; its folder is in ``parent``. Raises ``ToolError`` and ``OSError``."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control = trio.socket.from_stdlib_socket(ours)
        try:
            with theirs:
                process = await trio.lowlevel.open_process(
                    [sys.executable, "-I", "-S", guard.__file__, str(theirs.fileno()), str(parent), name],
                    pass_fds=[theirs.fileno(), parent],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    # A command that is not fenced in can read the environment of the guard: no key may be in it.
                    env=bare_environment(),
                )
        except BaseException:
            control.close()
            raise
        made = cls(process, control)
        try:
            with trio.move_on_after(START_S):
                answer = await control.recv(CHUNK)
                said = json.loads(answer) if answer else {"failed": "it ended at once"}
                if "failed" in said:
                    raise ToolError(f"The guard of the commands cannot be started: {said['failed']}.")
                return made
            raise ToolError(f"The guard of the commands did not start within {START_S:g} s.")
        except BaseException:
            await made.close()
            raise

    async def send(self, *descriptors: int) -> None:
        """Give it the ends of a call. Raises ``ToolError`` if it is gone."""
        ends = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))]
        try:
            await self.control.sendmsg([b"run"], ends)
        except OSError:
            raise ToolError(GUARD_LOST) from None

    async def close(self) -> None:
        """End it. Whatever it still guards is killed, by its keepers, when chain lets go of the leashes."""
        self.control.close()
        # Also where the chain is cancelled, nothing that a tool has started may stay.
        with trio.CancelScope(shield=True):
            with trio.move_on_after(GONE_S):
                await self.process.wait()
                return
            self.process.kill()
            await self.process.wait()


@dataclass(eq=False, slots=True)
class _Call:
    """One program's run, as chain sees it."""

    guard: _Process
    leash: socket.socket
    stream: trio.SocketStream
    """The leash as trio reads and writes it."""
    output: trio.lowlevel.FdStream
    _is_guard_lost: bool = False
    _is_gone: bool = False
    _has_waited: bool = False
    _read: bytes = b""
    _answer: dict[str, Any] | None = None
    _output_ended: trio.Event = field(default_factory=trio.Event)

    async def run(self, request: bytes, on_output: Callable[[bytes], None], timeout_s: float) -> Ended:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read_output, on_output)
            with trio.move_on_after(timeout_s) as limit:
                nursery.start_soon(self._watch_guard, limit)
                with contextlib.suppress(trio.BrokenResourceError):  # the end of the leash says so as well
                    await self.stream.send_all(request)
                await self.ended()
            await self._wait_until_gone()
            with trio.move_on_after(GONE_S if self._is_gone else 0):
                await self._output_ended.wait()
            nursery.cancel_scope.cancel()
        answer = self._answer
        if answer is None and self._is_guard_lost:
            raise ToolError(GUARD_LOST)
        if not self._is_gone:
            raise ToolError(LEFT)
        if answer is None:
            return Ended(None)
        if "failed" in answer:
            raise ToolError(f"The command cannot be started: {answer['failed']}.")
        if "exit" not in answer:
            raise ToolError(KEEPER_LOST)
        return Ended(answer["exit"], answer["left"])

    async def ended(self) -> dict[str, Any]:
        """What is said first: how the program ended, or why it was not started; empty if nobody could say so."""
        if self._answer is None:
            self._answer = await self._next()
        return self._answer

    async def close(self) -> None:
        """Wait, whatever happened, until nothing is left."""
        await self._wait_until_gone()
        # Closes descriptors alone, which waits for nobody.
        with trio.CancelScope(shield=True):
            await self.stream.aclose()
            await self.output.aclose()

    async def _read_output(self, on_output: Callable[[bytes], None]) -> None:
        while chunk := await self.output.receive_some(CHUNK):
            on_output(chunk)
        self._output_ended.set()

    async def _watch_guard(self, scope: trio.CancelScope) -> None:
        await self.guard.process.wait()
        self._is_guard_lost = True
        scope.cancel()

    async def _next(self) -> dict[str, Any]:
        """The next message of the keeper; empty if there will be none."""
        while b"\n" not in self._read:
            try:
                chunk = await self.stream.receive_some(CHUNK)
            except trio.BrokenResourceError:
                chunk = b""
            if not chunk:
                self._is_gone = True
                return {}
            self._read += chunk
        line, _, self._read = self._read.partition(b"\n")
        said: dict[str, Any] = json.loads(line)
        self._is_gone = "gone" in said
        return said

    async def _wait_until_gone(self) -> None:
        """Let go of the leash, which kills everything, and wait until nothing is left, or nobody who could say so."""
        _let_go(self.leash)
        if self._has_waited:
            return  # a second wait would be in vain, if this one was
        self._has_waited = True
        # Whatever ends the call, it must not end before what the command has started; the bound holds for the rest.
        with trio.CancelScope(shield=True), trio.move_on_after(GONE_S):
            while not self._is_gone:
                await self._next()


@dataclass(frozen=True, slots=True)
class GuardedProgram:
    """A program that is spoken to, as long as ``Guard.open`` keeps it, by its standard streams."""

    input: trio.lowlevel.FdStream
    output: trio.lowlevel.FdStream
    errors: trio.lowlevel.FdStream
    _call: _Call

    async def end(self) -> str:
        """Wait until it has ended, and how, in a few words."""
        match await self._call.ended():
            case {"failed": str(why)}:
                return f"it cannot be started: {why}"
            case {"exit": int(code)} if code < 0:
                return f"it was ended by signal {-code}"
            case {"exit": int(code)}:
                return f"it ended with exit code {code}"
            case _:
                return "it was ended"


def _request(
    argv: Sequence[str], cwd: Path, env: Mapping[str, str], fence: Fence | None, *, with_: Sequence[str]
) -> bytes:
    """What a keeper is asked for (``guard``)."""
    box = None if fence is None else fence._asdict()
    return json.dumps({"argv": argv, "cwd": str(cwd), "env": dict(env), "fence": box, "with": with_}).encode() + b"\n"


def _let_go(leash: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the other side was faster
        leash.shutdown(socket.SHUT_WR)
