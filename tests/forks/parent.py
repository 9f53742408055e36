"""Forks a program for each request: ``python -m forks.parent FD``, where FD is a socket to who asks."""

from __future__ import annotations

import atexit
import os
import runpy
import socket
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from . import terminal_program
from .load import ROOT, load
from .serving import serve


def _enter(request: dict[str, Any]) -> None:
    if request["is_leader"]:
        os.setsid()
    if request["terminal"] is not None:
        os.close(os.open(request["terminal"], os.O_RDWR))
    os.closerange(3, 256)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    tempfile.tempdir = None
    for name, fd, mode, errors in (
        ("stdin", 0, "r", "surrogateescape"),
        ("stdout", 1, "w", "surrogateescape"),
        ("stderr", 2, "w", "backslashreplace"),
    ):
        stream = open(fd, mode, 1 if fd == 2 else -1, "utf-8", errors, closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    path = [folder for folder in sys.path[1:] if Path(folder) != ROOT / "tests"]
    load(ROOT / "tests/support/terminal_rules.yaml", tools=terminal_program.TOOLS)
    run_each(channel, path)


def run_each(channel: socket.socket, path: list[str]) -> None:
    """Fork a program for each request, and be that in each fork; ``path`` is where it imports from."""
    if (served := serve(channel)) is None:
        return
    request, _ = served
    _enter(request)
    channel.detach()
    _finish(_run(request, path))


def _run(request: dict[str, Any], path: list[str]) -> int:
    argv = request["argv"]
    try:
        if argv[0] == "-m":
            sys.argv, sys.path = argv[1:], [request["cwd"], *path]
            runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv, sys.path = argv, [str(Path(request["cwd"], argv[0]).parent), *path]
            if argv[0] == terminal_program.__file__:
                return terminal_program.run()
            runpy.run_path(argv[0], run_name="__main__")
    except SystemExit as ended:
        if isinstance(ended.code, str):
            sys.stderr.write(f"{ended.code}\n")
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException as error:  # noqa: BLE001 - as the interpreter does
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def _finish(code: int) -> NoReturn:
    """What the interpreter does at its end, but that it would go over all objects, which copies all memory."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    with suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _main()
