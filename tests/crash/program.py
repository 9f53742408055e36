"""The real program, as a fork of this process.

Importing the program takes longer than most of its runs, so this process imports it once. It must have no thread and
no trio run when it forks. The fork runs ``run_command``, the function of the installed command, with its own
environment, descriptors, folder and session, up to the end of the interpreter.

This process is a subreaper: processes that a program leaves behind become its children (``remaining_processes``).
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import select
import signal
import sys
import tempfile
import threading
import time
from atexit import _run_exitfuncs
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from support.project import modules

from . import layer
from .point import Kill

PROCESSES_END_S = 10.0
"""The time limit for processes of a killed program to end. Usually they take some milliseconds."""

HEADERS = {"x-api-key": "test-key", "anthropic-version": "2023-06-01"}
"""The headers of all requests, for the rules of the double."""

_PR_SET_CHILD_SUBREAPER = 36
_NOT_IMPORTED = ("chain.providers.anthropic.", "cli.__main__", "cli.screen", "cli.terminal")
_SCRIPTS = ("guard", "page_text", "fence")


@dataclass(frozen=True, slots=True)
class Files:
    """The files that a program writes: its standard error, the counts of the layer, and its requests."""

    errors: Path
    counts: Path
    requests: Path


def prepare() -> None:
    """Become the parent of all programs, and import their modules. Call this once."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    for name, path in modules().items():
        if not name.startswith(_NOT_IMPORTED) and path.stem not in _SCRIPTS:
            importlib.import_module(name)
    gc.collect()
    gc.freeze()


def start(
    argv: Sequence[str],
    environ: Mapping[str, str],
    folder: Path,
    stdin: int,
    stdout: int,
    files: Files,
    kill: Kill | None,
) -> int:
    """Start a program in a folder. Return its process id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        errors = os.open(files.errors, os.O_WRONLY | os.O_CREAT, 0o600)
        for number, fd in enumerate((stdin, stdout, errors)):
            os.dup2(fd, number)
        os.closerange(3, 256)
        os.chdir(folder)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(environ)
        tempfile.tempdir = None
        for name, fd, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
            setattr(sys, name, open(fd, mode, encoding="utf-8", errors="surrogateescape", closefd=False))  # noqa: SIM115
        sys.argv = ["chain", *argv]
        _record_requests(files.requests)
        layer.arm(files.counts, kill)
        _run()
    finally:
        os._exit(70)


def wait(pid: int, timeout_s: float) -> int | None:
    """Return the exit code of a program, negative for a signal. Return ``None`` after the timeout."""
    fd = os.pidfd_open(pid)
    try:
        if not select.select([fd], [], [], timeout_s)[0]:
            return None
    finally:
        os.close(fd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill(pid: int) -> None:
    """Kill a program and wait for its end."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def remaining_processes() -> list[str]:
    """Wait for the processes that a program left behind. Kill and return those that do not end."""
    end = time.monotonic() + PROCESSES_END_S
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return []
        if not pid and time.monotonic() > end:
            break
        if not pid:
            select.select([], [], [], 0.002)
    left: list[str] = []
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    while pids := list(map(int, children.read_text().split())):
        for pid in pids:
            left.append(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "))
            kill(pid)
    return left


# ------------------------------------------------------------------------------------------------------- in the child


def _record_requests(path: Path) -> None:
    """Append each request to a file before it is answered, as the real adapter encodes it."""
    from chain.providers.anthropic.encoding import Encoder, Parameters
    from chain.providers.scripted.scripted_model import ScriptedModel

    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    encoder_of, reply = Parameters(model="claude-sonnet-5-5", max_tokens=1024), ScriptedModel.reply

    async def record_and_reply(self: ScriptedModel, request: Any, on_delta: Callable[[Any], None]) -> Any:
        os.write(fd, Encoder(encoder_of).encode(request) + b"\n")
        return await reply(self, request, on_delta)

    ScriptedModel.reply = record_and_reply  # type: ignore[method-assign]


def _run() -> NoReturn:
    """Run the command and end the process as the interpreter does."""
    from cli.main import run_command

    try:
        run_command()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException as error:  # noqa: BLE001 - as the interpreter does
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    _run_exitfuncs()
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
