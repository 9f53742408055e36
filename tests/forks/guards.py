"""Forks a guard for each request: ``python -I -S guards.py FD``, where FD is a socket to who asks.

The server that misbehaves (``support/hostile_server.py``) is a fork too: where its keeper would make an interpreter of
the process that it has forked, the process runs that script as it is. Any other program is started.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Sequence

if __name__ == "__main__":
    TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.path += [os.path.dirname(TESTS), TESTS]

import random  # noqa: F401 - the server does

from chain.tools.processes import guard
from forks.serving import serve

SERVER = os.path.join(TESTS, "support", "hostile_server.py")
with open(SERVER, encoding="utf-8") as script:
    CODE = compile(script.read(), SERVER, "exec")

_execute = os.execvpe


def _become(file: str, argv: Sequence[str], env: dict[str, str]) -> None:
    """As ``os.execvpe``."""
    if argv[:3] != [sys.executable, "-S", SERVER]:
        _execute(file, argv, env)
    os.closerange(3, 256)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = list(argv[2:])
    try:
        exec(CODE, {"__name__": "__main__"})
    except SystemExit as ended:
        os._exit(int(ended.code or 0))
    except BaseException as error:  # noqa: BLE001 - as the interpreter does
        sys.excepthook(type(error), error, error.__traceback__)
        os._exit(1)
    os._exit(0)


def _main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    os.execvpe = _become  # type: ignore[assignment]
    if (served := serve(channel)) is not None:
        channel.close()
        request, (control, parent) = served
        guard.main(control, parent, request["argv"][-1])
        os._exit(0)


_main()
