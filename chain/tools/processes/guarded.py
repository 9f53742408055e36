"""Runs programs under the guard process, so that no process of a program outlives the call that started it.

``Guard.run`` runs a program to its end, and ``Guard.open`` starts an interactive one. This is the trio side; ``guard``
explains the processes and their protocol.
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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import trio

from chain.concurrency.threads import Threads
from chain.errors import ToolError
from chain.tools.processes import guard
from chain.tools.processes.environment import bare_environment
from chain.tools.processes.fence import Fence
from chain.tools.processes.writable_paths import WritablePaths

GONE_S = 5.0
"""Seconds to wait until all processes of a killed program have ended. The processes usually need some milliseconds.

A process that hangs in the kernel (a dead network disk) cannot be killed, and must not block an interrupt for ever.
"""

INPUT_END_S = 0.5
"""Seconds that an interactive program has to exit after the end of its input."""

CHUNK = 1 << 16
"""Bytes of one read of output: the capacity of a pipe."""

_THREADS = Threads("processes")

GUARD_LOST = "The guard of the commands was killed, so the command was ended; it may have had effects."
KEEPER_LOST = "The process that watches over the command was killed, so the command was ended; it may have had effects."
LEFT = f"Some processes of the command could not be killed within {GONE_S:g} s and may still be running."


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a program ended.

    ``code`` is its exit code, or the negative number of the signal that killed it, or ``None`` after a timeout.
    ``left_running`` is the number of processes that the program left running, which were killed.
    """

    code: int | None
    left_running: int = 0


class Guard:
    """The connection of one chain to its guard process, which runs programs.

    The guard process starts with the first program. If it was killed, it is restarted for the next program.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.gettempdir()) / f"chain-{secrets.token_hex(8)}"
        """The directory for temporary files of the programs. It exists from the first program until ``close``."""
        self._folder: tuple[int, int] | None = None
        """Descriptors of ``folder`` and its parent, opened before any program could replace the path."""
        self._process: _Process | None = None
        self._starting = trio.Lock()
        self._paths: dict[tuple[Path, ...], WritablePaths | None] = {}
        self._opening = threading.Lock()
        self._programs: set[GuardedProgram] = set()

    def writable_paths(
        self, create: Callable[[], WritablePaths | None], added: tuple[Path, ...] = ()
    ) -> WritablePaths | None:
        """Return the paths that programs may write if the user has added the directories ``added``.

        The first call for these directories calls ``create``, which may block, and later calls return the same paths.
        """
        with self._opening:
            if added not in self._paths:
                self._paths[added] = create()
            return self._paths[added]

    async def run(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        on_output: Callable[[bytes], None],
        timeout_s: float = math.inf,
        fence: Fence | None = None,
        paths: WritablePaths | None = None,
        input: bytes | None = None,
    ) -> ExitStatus:
        """Run a program and pass its output (stdout and stderr) to ``on_output`` as it arrives.

        Its standard input is ``input``, or ``/dev/null`` for ``None``. With a ``fence`` and ``paths``, the program may
        write only to ``paths`` and in ``folder``. All its processes are killed when the program ends, after
        ``timeout_s`` seconds, or when the call is cancelled. All output is passed on before the call returns. Raise
        ``ToolError`` if the program cannot be started, its guard or keeper was killed, or a process cannot be killed.
        """
        streams = () if input is None else ("input",)
        async with self._start(argv, cwd, env, streams, fence, paths) as program:
            return await program.run(on_output, timeout_s, input)

    @asynccontextmanager
    async def open(self, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> AsyncIterator[GuardedProgram]:
        """Run an interactive program for the duration of the block.

        On exit, close its input, wait up to ``INPUT_END_S`` for it to exit by itself, and kill all its processes. Raise
        ``ToolError`` if the guard cannot be started. If the program cannot be started, ``GuardedProgram.end`` returns
        the reason.
        """
        async with self._start(argv, cwd, env, ("input", "errors")) as program:
            try:
                yield program
            finally:
                # A cancelled caller must not leave the program running.
                with trio.CancelScope(shield=True):
                    await program.input.aclose()
                    with trio.move_on_after(INPUT_END_S):
                        await program.end()

    async def close(self) -> None:
        """End the guard and all its programs, and remove its directory. Running calls fail."""
        for program in self._programs:
            program.release()
        # The guard must not outlive the chain, even if the chain is cancelled.
        with trio.CancelScope(shield=True):
            async with self._starting:
                if self._process is not None:
                    await self._process.close()
                    self._process = None
                if self._folder is not None:
                    await _THREADS.run(partial(self._remove_folder, *self._folder))
                    self._folder = None
        for paths in self._paths.values():
            if paths is not None:
                paths.close()

    async def _ensure_started(self) -> tuple[_Process, int]:
        """Start the guard process unless it is running. Return the process, and a descriptor of ``folder``.

        Raise ``ToolError`` if the process cannot be started. The caller must have the lock ``_starting``.
        """
        if self._process is not None and self._process.process.poll() is not None:
            await self._process.close()
            self._process = None
        try:
            if self._folder is None:
                self._folder = await _THREADS.run(self._create_folder)
            if self._process is None:
                self._process = await _Process.start(*self._folder, self.folder.name)
        except OSError as error:
            raise ToolError(f"The process that runs commands cannot be started: {error.strerror}.") from None
        return self._process, self._folder[0]

    def _create_folder(self) -> tuple[int, int]:
        parent = os.open(self.folder.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.mkdir(self.folder.name, 0o700, dir_fd=parent)
            return guard.open_subfolder(self.folder.name, parent), parent
        except BaseException:
            os.close(parent)
            raise

    def _remove_folder(self, folder: int, parent: int) -> None:
        """Remove the temporary directory if a killed guard has left it behind. Close its descriptors."""
        guard.remove(folder, self.folder.name, parent)
        os.close(folder)
        os.close(parent)

    @asynccontextmanager
    async def _start(
        self,
        argv: Sequence[str],
        cwd: Path,
        env: Mapping[str, str],
        streams: Sequence[str],
        fence: Fence | None = None,
        paths: WritablePaths | None = None,
    ) -> AsyncIterator[GuardedProgram]:
        """Start a program with pipes for its output and for ``streams``. Kill its processes on exit from the block.

        Raise ``ToolError`` if the program cannot be started.
        """
        async with self._starting:
            process, folder = await self._ensure_started()
        try:
            control, their_control = socket.socketpair()
            program = GuardedProgram(process.process, trio.SocketStream(trio.socket.from_stdlib_socket(control)))
            try:
                with contextlib.ExitStack() as theirs:
                    theirs.enter_context(their_control)
                    given = {name: program.open_pipe(name, theirs) for name in ("output", *streams)}
                    if fence is not None and paths is not None:
                        given["rules"] = await _THREADS.run(partial(paths.rules, folder, signals=fence.signals))
                        theirs.callback(os.close, given["rules"])
                    async with self._starting:
                        await process.send(their_control.fileno(), *given.values())
            except BaseException:
                await program.close()
                raise
        except OSError as error:
            raise ToolError(f"The command cannot be started: {error.strerror}.") from None
        self._programs.add(program)
        try:
            request = {
                "argv": argv,
                "cwd": str(cwd),
                "env": dict(env),
                "fence": None if fence is None else fence._asdict(),
                "with": [*given][1:],
            }
            with contextlib.suppress(trio.BrokenResourceError):  # the end of the control socket is handled later
                await program.control.send_all(json.dumps(request).encode() + b"\n")
            yield program
        finally:
            await program.close()
            self._programs.discard(program)


@dataclass(frozen=True, slots=True)
class _Process:
    """The guard process, and the socket by which it receives the descriptors of each program."""

    process: trio.Process
    control: trio.socket.SocketType

    @classmethod
    async def start(cls, folder: int, parent: int, name: str) -> _Process:
        """Start the guard process. Raise ``OSError`` if that fails."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control = trio.socket.from_stdlib_socket(ours)
        descriptors = [theirs.fileno(), folder, parent]
        try:
            with theirs:
                process = await trio.lowlevel.open_process(
                    [sys.executable, "-I", "-S", guard.__file__, *map(str, descriptors), name],
                    pass_fds=descriptors,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    # A command without a fence can read the environment of the guard, which must not contain a key.
                    env=bare_environment(),
                )
        except BaseException:
            control.close()
            raise
        return cls(process, control)

    async def send(self, *descriptors: int) -> None:
        """Send the guard the descriptors of a program. Raise ``ToolError`` if the guard has ended."""
        try:
            await self.control.sendmsg([b"run"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))])
        except (OSError, trio.ClosedResourceError):
            raise ToolError(GUARD_LOST) from None

    async def close(self) -> None:
        """Close the control socket, which ends the guard, and wait for its end. Kill it after ``GONE_S`` seconds."""
        self.control.close()
        # A cancelled caller must not leave the guard running.
        with trio.CancelScope(shield=True):
            with trio.move_on_after(GONE_S):
                await self.process.wait()
                return
            self.process.kill()
            await self.process.wait()


class GuardedProgram:
    """A program under the guard, and chain's ends of its streams."""

    output: trio.lowlevel.FdStream
    input: trio.lowlevel.FdStream
    errors: trio.lowlevel.FdStream
    """``input`` and ``errors`` exist only if they were requested."""

    def __init__(self, guard: trio.Process, control: trio.SocketStream) -> None:
        self.control = control
        self._streams: list[trio.lowlevel.FdStream] = []
        self._guard = guard
        self._is_guard_lost = False
        self._received = b""
        self._end: Mapping[str, Any] | None = None
        self._is_gone = False
        """Whether no process of the program is left: the keeper said so, or the control socket has ended."""
        self._is_killed = False

    def open_pipe(self, name: str, theirs: contextlib.ExitStack) -> int:
        """Create a pipe for the stream ``name``, and store chain's end as the attribute of this name.

        Return the descriptor of the program's end, which ``theirs`` closes.
        """
        reader, writer = os.pipe()
        our_end, their_end = (writer, reader) if name == "input" else (reader, writer)
        self._streams.append(trio.lowlevel.FdStream(our_end))
        setattr(self, name, self._streams[-1])
        theirs.callback(os.close, their_end)
        return their_end

    async def end(self) -> str:
        """Wait until the program has ended. Return how it ended, in a few words."""
        match await self._wait_for_end():
            case {"failed": str(why)}:
                return f"it cannot be started: {why}"
            case {"exit": int(code)} if code < 0:
                return f"it was ended by signal {-code}"
            case {"exit": int(code)}:
                return f"it ended with exit code {code}"
            case _:
                return "it was ended"

    async def run(self, on_output: Callable[[bytes], None], timeout_s: float, input: bytes | None) -> ExitStatus:
        """Pass on the output until the program ends or the time is over, then kill all its processes.

        The parameters, the result and the errors are those of ``Guard.run``.
        """
        output_ended = trio.Event()

        async def read_output() -> None:
            while chunk := await self.output.receive_some(CHUNK):
                on_output(chunk)
            output_ended.set()

        async def write_input() -> None:
            if input is not None:
                with contextlib.suppress(trio.BrokenResourceError):  # the program ended before it read everything
                    await self.input.send_all(input)
                await self.input.aclose()

        async def watch_guard() -> None:
            await self._guard.wait()
            self._is_guard_lost = True
            limit.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_output)
            nursery.start_soon(write_input)
            with trio.move_on_after(timeout_s) as limit:
                nursery.start_soon(watch_guard)
                await self._wait_for_end()
            await self._kill()
            with trio.move_on_after(GONE_S if self._is_gone else 0):
                await output_ended.wait()
            nursery.cancel_scope.cancel()
        if self._end is None and self._is_guard_lost:
            raise ToolError(GUARD_LOST)
        if not self._is_gone:
            raise ToolError(LEFT)
        match self._end:
            case None:
                return ExitStatus(None)
            case {"exit": int(code), "left": int(left)}:
                return ExitStatus(code, left)
            case {"failed": str(why)}:
                raise ToolError(f"The command cannot be started: {why}.")
            case _:
                raise ToolError(KEEPER_LOST)

    async def _wait_for_end(self) -> Mapping[str, Any]:
        """Wait for the keeper's message that says how the program ended, or why it did not start. Return the message.

        Return an empty mapping if the keeper ended without such a message.
        """
        if self._end is None:
            while b"\n" not in self._received and not self._is_gone:
                await self._receive()
            first, line_end, _ = self._received.partition(b"\n")
            self._end = json.loads(first) if line_end else {}
        return self._end

    async def close(self) -> None:
        """Kill the program and everything that it started, and close the descriptors."""
        await self._kill()
        # The shielded calls do not block: they only close descriptors.
        with trio.CancelScope(shield=True):
            await self.control.aclose()
            for stream in self._streams:
                await stream.aclose()

    def release(self) -> None:
        """Close the control socket for sending. The keeper then kills all processes of the program."""
        with contextlib.suppress(OSError):  # the other end was closed first
            self.control.socket.shutdown(socket.SHUT_WR)

    async def _kill(self) -> None:
        """Kill all processes of the program, and wait up to ``GONE_S`` for their end. A second call returns at once."""
        self.release()
        if self._is_killed:
            return
        self._is_killed = True
        # The call must not end before the processes that the program started, also when it is cancelled.
        with trio.CancelScope(shield=True), trio.move_on_after(GONE_S):
            while not self._is_gone:
                await self._receive()

    async def _receive(self) -> None:
        try:
            chunk = await self.control.receive_some(CHUNK)
        except trio.BrokenResourceError:
            chunk = b""
        self._received += chunk
        self._is_gone = not chunk or b'"gone"' in self._received
