"""The outer end of the side door: finds the chain that is meant, and speaks with it.

It blocks, since a program that sends one line has nothing else to do, and is there at once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from chain.errors import UserError
from cli.door import places

ANSWER_S = 5.0
"""How long a chain may take to say who it is: it may be stopped, or hang."""
_CHUNK = 65_536


@dataclass(frozen=True, slots=True)
class Running:
    """A chain that runs: its session, where it works, and its socket."""

    id: str
    workspace: str
    path: Path


class Refused(ConnectionError):
    """Who is there does not let this program in, and says why."""


class Door:
    """A connection to a running chain. A context manager."""

    def __init__(self, path: Path) -> None:
        """Connect, and hear who it is (``init``). Raises ``OSError`` if nobody is there, or does not say so."""
        self._socket = places.connect(path)
        try:
            self._socket.settimeout(ANSWER_S)
            self._rows = self._read()
            self.init = next(self._rows, {})
            if self.init.get("type") != "init":
                raise Refused(str(self.init.get("message", "it has ended")))
            self._socket.settimeout(None)
        except OSError:
            self._socket.close()
            raise

    def send(self, **row: Any) -> None:  # noqa: ANN401 - the JSON edge
        """Send a row. Raises ``OSError`` when the chain has ended."""
        self._socket.sendall(json.dumps(row).encode() + b"\n")

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """The rows that it is told, until the chain ends."""
        return self._rows

    def _read(self) -> Iterator[Mapping[str, Any]]:
        rest = bytearray()
        while True:
            try:
                chunk = self._socket.recv(_CHUNK)
            except ConnectionError:
                return
            if not chunk:
                return
            *whole, left = (bytes(rest) + chunk).split(b"\n")
            rest = bytearray(left)
            for row in whole:
                with suppress(ValueError):
                    found = json.loads(row)
                    if isinstance(found, dict):
                        yield found

    def __enter__(self) -> Door:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()


def running(state: Path, environ: Mapping[str, str]) -> tuple[list[Running], list[str]]:
    """The chains that run and can be reached, and why others cannot be."""
    found: dict[str, Running] = {}
    problems = []
    for path in places.sockets(state, environ):
        try:
            with Door(path) as door:
                id = str(door.init.get("session"))
                found.setdefault(id, Running(id, str(door.init.get("workspace")), path))
        except ConnectionRefusedError:
            continue  # it was left by a program that was killed
        except Refused as error:
            problems.append(f"the session {path.name}: {error}")
        except OSError as error:
            problems.append(f"the session {path.name} does not answer ({error.strerror or error})")
    return list(found.values()), problems


def find(state: Path, environ: Mapping[str, str], *, session: str, workspace: Path) -> Path:
    """The socket of the chain that is meant: of this session, or else the only one of this workspace.

    Raises ``UserError`` for none and for several, with those that there are.
    """
    there, problems = running(state, environ)
    if session:
        meant = [each for each in there if each.id == session] or [
            each for each in there if each.id.startswith(session)
        ]
        problem = f"no chain runs the session {session!r:.60}"
    else:
        here = os.path.realpath(workspace)
        meant = [each for each in there if os.path.realpath(each.workspace) == here]
        problem = f"no chain runs in {here}"
    if len(meant) == 1:
        return meant[0].path
    if meant:
        problem = f"{len(meant)} chains could be meant"
    shown = meant or there
    if not shown and problems:
        raise UserError(f"{problem}; {'; '.join(problems)}")
    if not shown:
        raise UserError(f"{problem}, nor anywhere else; start one with: chain")
    raise UserError(f"{problem}; name one by --session ID: " + "; ".join(_named(shown, state)))


def enter(path: Path) -> Door:
    """A connection to the chain at a socket. Raises ``UserError`` when it has ended meanwhile."""
    try:
        return Door(path)
    except OSError as error:
        raise UserError(f"the session {path.name} cannot be reached: {error.strerror or error}") from None


def _named(there: Sequence[Running], state: Path) -> Iterator[str]:
    from chain.app import sessions  # only for a mistake

    for each in there:
        query = ""
        with suppress(UserError):
            query = sessions.find(state, each.id).query
        yield f"{each.id} in {each.workspace}" + (f" ({query[:60]})" if query else "")
