"""The command line and the environment of the program, and functions that run it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, chdir, contextmanager
from pathlib import Path
from typing import Any

from cli.main import main

from .project import ROOT


def make_environ(home: Path, more: Mapping[str, str | None]) -> dict[str, str]:
    """Return an environment with this home and a full terminal, and without API keys."""
    defaults = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "XDG_STATE_HOME": str(home / "state"),
        "XDG_CONFIG_HOME": str(home / "config"),
        "PYTHONPATH": str(ROOT),
        "LANG": "C.UTF-8",
        "TERM": "xterm-256color",
        "GATES": str(gates(home)),
    }
    return {name: value for name, value in {**defaults, **more}.items() if value is not None}


def gates(home: Path) -> Path:
    """Return the folder of the pipes that the tool ``gate`` reads."""
    folder = home / "gates"
    folder.mkdir(exist_ok=True)
    return folder


def program_command(*args: str) -> list[str]:
    """Return the command line of the ``chain`` program with the tools of the tests."""
    return [sys.executable, str(ROOT / "tests/support/terminal_program.py"), *args]


_ON_ITS_OWN_TERMINAL = ': <>"$0"; exec "$@"'
"""The first terminal that a session leader opens becomes its controlling terminal."""


def start_program(argv: Sequence[str], *, terminal: str | None = None, **more: Any) -> subprocess.Popen[Any]:
    """Start a process. ``terminal`` is the device that becomes its controlling terminal."""
    if terminal is not None:
        argv = ["/bin/sh", "-c", _ON_ITS_OWN_TERMINAL, terminal, *argv]
        more["start_new_session"] = True
    return subprocess.Popen(argv, **more)


def run_program(argv: Sequence[str], **more: Any) -> subprocess.CompletedProcess[Any]:
    """Run a process to its end and capture its output."""
    return subprocess.run(argv, capture_output=True, check=False, **more)


def call_program(
    *args: str, cwd: Path, environ: Mapping[str, str], stdin: str | bytes | int = b"", stdout: int | None = None
) -> subprocess.CompletedProcess[str]:
    """Call the program's ``main`` in this process, which takes 20 ms instead of 600.

    ``stdin`` is the input or its descriptor. The outputs are captured, unless ``stdout`` is a descriptor.
    """
    with ExitStack() as stack:
        out, err = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(2))
        if not isinstance(stdin, int):
            file = stack.enter_context(tempfile.TemporaryFile())
            file.write(stdin.encode() if isinstance(stdin, str) else stdin)
            file.seek(0)
            stdin = file.fileno()
        with _streams(stdin, out.fileno() if stdout is None else stdout, err.fileno()), _environ(environ), chdir(cwd):
            code = main(args)
        for file in (out, err):
            file.seek(0)
        outputs = [file.read().decode() for file in (out, err)]
    return subprocess.CompletedProcess(args, code, *outputs)


def call_at_home(
    home: Path, *args: str, stdin: str | bytes | int = b"", stdout: int | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Call the program in its home folder, with these variables."""
    return call_program(*args, cwd=home, environ=make_environ(home, variables), stdin=stdin, stdout=stdout)


@contextmanager
def _streams(*descriptors: int) -> Iterator[None]:
    """Replace the standard streams by these descriptors."""
    saved = [os.dup(number) for number in range(3)]
    before = sys.stdin
    try:
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
        with open(0, encoding="utf-8", closefd=False) as sys.stdin:
            yield
    finally:
        sys.stdin = before
        for number, descriptor in enumerate(saved):
            os.dup2(descriptor, number)
            os.close(descriptor)


@contextmanager
def _environ(environ: Mapping[str, str]) -> Iterator[None]:
    """Replace the environment of this process."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
