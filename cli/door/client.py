"""The client of a side door: finds a running chain, and exchanges rows with it.

Its functions block and do not use trio, so that ``chain send`` starts quickly.
"""

from __future__ import annotations

import json
import os
import selectors
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import Any

from chain.errors import UserError
from cli.door import sockets

GREETING_S = 2.0
"""Seconds to wait for a chain's ``init`` event: the chain may be suspended, or hang."""
OTHERS_S = 0.5
"""Seconds to wait for other chains after a matching chain has answered. A chain that does not hang answers at once."""

CUT_OFF_MESSAGE = "disconnected, since this program did not read for too long; the chain continues"


class ClientRefused(ConnectionError):
    """A refusal of this program by a chain. The message is the chain's reason."""


class DoorClient(AbstractContextManager["DoorClient"]):
    """A connection to a running chain, as a context manager that closes it."""

    def __init__(self, path: Path, *, removes_stale: bool = True) -> None:
        """Connect to a socket. Raise ``OSError`` on failure. If ``removes_stale``, delete a socket without listener."""
        self.path = path
        self._socket = sockets.connect(path, timeout_s=GREETING_S, removes_stale=removes_stale)
        self._file = self._socket.makefile("rb")
        self._rows = self._read()
        self.init: Mapping[str, Any] = {}
        self.session = self.workspace = ""
        """The id and the workspace of the session."""
        self.was_killed = False
        """Whether the chain was killed. Set when ``rows`` ends."""

    def read_greeting(self) -> None:
        """Read the ``init`` event. Raise ``ClientRefused`` if another row or none comes, ``OSError`` on a timeout."""
        self.init = next(self._rows, {})
        if self.init.get("type") != "init":
            raise ClientRefused(str(self.init.get("message", "it has ended")))
        self.session, self.workspace = str(self.init.get("session")), str(self.init.get("workspace"))
        self._socket.settimeout(None)

    def fileno(self) -> int:
        """Return the descriptor of the connection."""
        return self._socket.fileno()

    def send(self, **row: Any) -> None:  # noqa: ANN401 - the JSON edge
        """Send a row. Raise ``OSError`` if the chain has ended."""
        self._socket.sendall(json.dumps(row).encode() + b"\n")

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """Yield the rows after ``init`` until the chain ends. Raise ``UserError`` if the chain cuts this client off."""
        yield from self._rows
        self.close()
        for _ in range(2):  # the door of a chain that is being killed may close after this connection
            try:
                with DoorClient(self.path, removes_stale=False) as again:
                    again.read_greeting()
                    if again.session == self.session:
                        raise UserError(CUT_OFF_MESSAGE)
            except OSError as error:
                self.was_killed |= isinstance(error, ConnectionRefusedError)  # a chain that exits removes its socket

    def close(self) -> None:
        """Close the connection."""
        self._file.close()
        self._socket.close()

    def _read(self) -> Iterator[Mapping[str, Any]]:
        with suppress(ConnectionError):
            for row in self._file:
                with suppress(ValueError):  # also for a row without its end
                    found = json.loads(row)
                    if isinstance(found, dict):
                        yield found

    def __exit__(self, *_: object) -> None:
        self.close()


def find_chain(state: Path, environ: Mapping[str, str], *, session: str, workspace: Path) -> DoorClient:
    """Connect to the chain that runs a session. ``session`` is the session's id, or the start of the id.

    If ``session`` is empty, connect to the only chain that runs in the workspace. Raise ``UserError`` if no chain
    matches, or if several may match.
    """
    with ExitStack() as stack:
        here, doors = os.path.realpath(workspace), list(sockets.sockets(state, environ))
        # A door is named after its session.
        candidates = [path for path in doors if path.name == session]
        candidates = candidates or [path for path in doors if path.name.startswith(session)]

        def is_meant(client: DoorClient) -> bool:
            return bool(session) or os.path.realpath(client.workspace) == here

        clients, problems = _connect_all(candidates, is_meant, stack)
        meant = [each for each in clients if is_meant(each)]
        # A chain that cannot be reached may be meant, too.
        others = [id for id in problems if session or _works_in(here, id, state)] if meant else []
        if len(meant) == 1 and not others:
            stack.pop_all()
            for each in clients:
                if each is not meant[0]:
                    each.close()
            return meant[0]
        problem = f"no chain is running the session {session!r:.60}" if session else f"no chain is running in {here}"
        if meant:
            problem = f"{len(meant) + len(others)} chains could be meant"
        elif session:
            clients, problems = _connect_all(doors, lambda client: False, stack)
        named = "; ".join(_descriptions(meant or clients, state))
        choice = f"choose with --session ID: {named}" if named else ""
        hints = [*problems.values(), choice or ("" if problems else "start one with: chain")]
        raise UserError("; ".join([problem, *filter(None, hints)]))


def _connect_all(
    doors: Sequence[Path], is_meant: Callable[[DoorClient], bool], stack: ExitStack
) -> tuple[list[DoorClient], dict[str, str]]:
    """Connect to the chains of some doors. Return the connections, and the failures by the ids of the sessions.

    Wait for all chains at the same time, since each may hang. After the answer of a chain that ``is_meant``, wait at
    most ``OTHERS_S`` for the others.
    """
    found, problems = list[DoorClient](), dict[str, str]()
    with selectors.DefaultSelector() as asked:
        for path in doors:
            try:
                client = stack.enter_context(DoorClient(path))
                asked.register(client, selectors.EVENT_READ, client)
            except ConnectionRefusedError:
                continue  # it was left by a program that was killed
            except OSError as error:
                problems[path.name] = _problem(path, error)
        until = time.monotonic() + GREETING_S
        while asked.get_map() and (left := until - time.monotonic()) > 0:
            for key, _ in asked.select(left):
                client = key.data
                asked.unregister(client)
                try:
                    client.read_greeting()
                except OSError as error:
                    client.close()
                    problems[client.path.name] = _problem(client.path, error)
                    continue
                found.append(client)
                if is_meant(client):
                    until = min(until, time.monotonic() + OTHERS_S)
        for key in asked.get_map().values():
            key.data.close()
            problems[key.data.path.name] = _problem(key.data.path, TimeoutError("timed out"))
    return found, problems


def _problem(path: Path, error: OSError) -> str:
    if isinstance(error, ClientRefused):
        return f"the session {path.name}: {error}"
    return f"the session {path.name} does not answer ({error.strerror or error})"


def _works_in(folder: str, id: str, state: Path) -> bool:
    from chain.app import sessions  # only for a mistake

    try:
        return os.path.realpath(sessions.FileStore(state).find(id).workspace) == folder
    except UserError:
        return False


def _descriptions(clients: Sequence[DoorClient], state: Path) -> Iterator[str]:
    from chain.app import sessions  # only for a mistake

    for each in clients:
        query = ""
        with suppress(UserError):
            query = sessions.FileStore(state).find(each.session).query
        yield f"{each.session} in {each.workspace}" + (f" ({query[:60]})" if query else "")
