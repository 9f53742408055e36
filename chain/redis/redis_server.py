"""The connection to a Redis server: its address, the checks of its configuration, and the translation of its errors.

``Unreachable`` is a temporary error. Any other ``SessionError`` persists until the server or the address is changed.
Credentials are part of the address and are never shown.

Each change is sent together with a command whose answer proves that the change is on the server's disk. The command is
``WAITAOF``. On a server before 7.2 it is ``CONFIG GET``, and the answer must be ``appendfsync always``.
"""

from __future__ import annotations

import logging
import re
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote, urlsplit

import trio

from chain.concurrency.nurseries import background_tasks
from chain.config.extras import REDIS, install_command
from chain.errors import SessionError
from chain.redis.scripts import keys

if TYPE_CHECKING:
    from coredis.connection import TCPConnection

DEFAULT_PORT = 6379
SERVER_ANSWER_S = 5.0
"""The timeout of an answer, in seconds. An answer usually takes milliseconds."""
SAFE_S = 4.0
"""Seconds that ``WAITAOF`` may take: less than ``SERVER_ANSWER_S``, so that the server can report the timeout."""
OLDEST = (7, 0)
HAS_WAITAOF = (7, 2)

FORM = "write redis://HOST[:PORT]/DB, or rediss:// for TLS"
HOW_TO_BE_SAFE = "set appendonly yes and appendfsync always in redis.conf (chain help machines)"
MAY_LOSE = "may lose the last second in a crash (appendonly is not yes, or appendfsync not always)"

logging.getLogger("coredis").addHandler(logging.NullHandler())  # its log messages repeat our errors

Command: TypeAlias = tuple[Any, ...]
"""The name of a command, as bytes, and its arguments."""
ConnectionFactory: TypeAlias = Callable[[], "TCPConnection"]

_GET_SYNCS: Command = (b"CONFIG GET", b"appendonly", b"appendfsync")
_WAITAOF: Command = (b"WAITAOF", 1, 0, int(SAFE_S * 1000))


class Unreachable(SessionError):
    """A temporary error: the server does not answer, or cannot execute a command at the moment."""


class Forbidden(SessionError):
    """A command that the server does not know, or does not permit to this user."""


@dataclass(frozen=True)
class RedisAddress:
    """The address of a server. ``str()`` omits the user name and the password."""

    host: str
    port: int
    database: int
    is_tls: bool
    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == DEFAULT_PORT else f":{self.port}"
        return f"redis{'s' if self.is_tls else ''}://{host}{port}/{self.database}"


def read_address(text: str, source: str = "--state") -> RedisAddress:
    """Parse the address of a server. Raise ``SessionError`` if it is invalid.

    The error names ``source`` and does not quote the text, which may contain a password.
    """
    try:
        parts = urlsplit(text.strip())
        port = parts.port or DEFAULT_PORT
    except ValueError:
        raise SessionError(f"{source} is not the address of a Redis; {FORM}") from None
    database = parts.path.strip("/") or "0"
    is_redis = parts.scheme in ("redis", "rediss") and not (parts.query or parts.fragment)
    if not is_redis or not parts.hostname or not re.fullmatch(r"[0-9]{1,6}", database):
        raise SessionError(f"{source} is not the address of a Redis; {FORM}")
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    return RedisAddress(parts.hostname, port, int(database), parts.scheme == "rediss", user, password)


class RedisServer:
    """A Redis server and the connections to it. Created by ``connect``."""

    def __init__(self, address: RedisAddress, new_connection: ConnectionFactory, nursery: trio.Nursery) -> None:
        self.address = address
        self._new_connection = new_connection
        self._nursery = nursery
        self._idle: list[TCPConnection] = []
        self._proof = _GET_SYNCS
        """The command whose answer proves that the changes before it are on the disk."""

    async def run(self, script: str, id: str, *arguments: bytes | str | int) -> list[bytes]:
        """Run a script on a session. Return its answer once its changes are on disk; else raise ``SessionError``."""
        names = keys(id)
        answer, proof = await self.ask((b"EVAL", script, len(names), *names, id, *arguments), self._proof)
        if self._proof is _GET_SYNCS:
            if proof != {b"appendonly": b"yes", b"appendfsync": b"always"}:
                raise SessionError(f"the Redis at {self.address} {MAY_LOSE}; {HOW_TO_BE_SAFE}")
        elif proof[0] < 1:
            raise Unreachable(f"the Redis at {self.address} does not write its changes to disk in time")
        found: list[bytes] = answer
        return found

    async def ask(self, *commands: Command, wait_s: float = 0) -> list[Any]:
        """Send commands that may take ``wait_s`` seconds. Return their answers. Raise ``SessionError`` on failure."""
        with _translate_errors(self.address):
            connection = await self._idle_connection()
            requests = [connection.create_request(name, *rest, decode=False) for name, *rest in commands]
            is_shared = wait_s == 0 and self._proof is _GET_SYNCS  # otherwise these commands would delay others
            if is_shared:
                self._idle.append(connection)
            try:
                with trio.move_on_after(wait_s + SERVER_ANSWER_S):
                    return [await request for request in requests]
                connection.invalidate()  # the network may have dropped it silently
            finally:
                if not is_shared and requests[-1].complete:
                    self._idle.append(connection)
                elif not is_shared:  # a late answer must not be taken for that to a later command
                    connection.invalidate()
        while self._idle:
            self._idle.pop().invalidate()
        raise Unreachable(f"the Redis at {self.address} did not answer for {SERVER_ANSWER_S:.0f} s")

    async def _idle_connection(self) -> TCPConnection:
        """Remove an idle connection from the list and return it. If there is none, open a connection."""
        while self._idle:
            if (connection := self._idle.pop()).usable:
                return connection
        connection = self._new_connection()
        with trio.fail_after(SERVER_ANSWER_S):
            await self._nursery.start(connection.run)
        return connection

    async def read_stream(
        self, key: str, after: str, *, count: int, wait_s: float
    ) -> Sequence[tuple[bytes, Sequence[bytes]]]:
        """Return up to ``count`` entries of a stream after the position ``after``, each with its position.

        If there are none, wait up to ``wait_s`` seconds for the next one.
        """
        wanted = (b"COUNT", count, b"BLOCK", max(1, int(wait_s * 1000)))
        (found,) = await self.ask((b"XREAD", *wanted, b"STREAMS", key, after), wait_s=wait_s)
        return found[key.encode()] if found else ()

    async def check_safety(self) -> None:
        """Raise ``SessionError`` if sessions would not be safe on the server."""
        (raw,) = await self.ask((b"INFO",))
        about = dict(row.split(":", 1) for row in raw.decode(errors="replace").split("\r\n") if ":" in row)
        number = about.get("redis_version", "0")
        version = tuple(int(part) for part in number.split(".")[:2] if part.isdecimal())
        where = f"the Redis at {self.address}"
        if version < OLDEST:
            raise SessionError(
                f"{where} is {number}, and sessions need {'.'.join(map(str, OLDEST))} or newer; update it"
            )
        if about.get("loading") == "1":  # it reports no append-only file while it loads
            raise Unreachable(f"{where} is still reading its data")
        if about.get("role") not in ("master", None):
            raise SessionError(f"{where} is a read-only replica; name the address of its primary")
        if (policy := about.get("maxmemory_policy", "noeviction")).startswith("allkeys"):
            fix = "set maxmemory-policy noeviction in redis.conf"
            raise SessionError(f"{where} would drop sessions when its memory is full ({policy}); {fix}")
        if about.get("aof_enabled") != "1":
            raise SessionError(f"{where} does not store sessions safely on its disk (appendonly no); {HOW_TO_BE_SAFE}")
        syncs: Mapping[bytes, bytes] = {}
        with suppress(Forbidden):  # a hosted server may hide its configuration
            (syncs,) = await self.ask(_GET_SYNCS)
        allowed: Sequence[bytes | None] = (b"always",)
        if version >= HAS_WAITAOF:
            self._proof = _WAITAOF
            allowed = (b"always", b"everysec", None)
        if syncs.get(b"appendfsync") not in allowed:
            raise SessionError(f"{where} {MAY_LOSE}; {HOW_TO_BE_SAFE}")


@asynccontextmanager
async def connect(address: RedisAddress) -> AsyncIterator[RedisServer]:
    """Connect to a server for the duration of the block. Raise ``SessionError`` if that or ``check_safety`` fails.

    If the block is cancelled, the connections stay open until the block has ended, so that it can still write.
    """
    try:
        from coredis.connection import TCPLocation

        from chain.redis.bounded_connection import BoundedConnection
    except ModuleNotFoundError:
        raise SessionError(f"sessions in Redis need the extra redis: {install_command(REDIS)}") from None
    new_connection = partial(
        BoundedConnection,
        TCPLocation(address.host, address.port),
        connect_timeout=SERVER_ANSWER_S,
        username=address.username or None,
        password=address.password or None,
        db=address.database,
        ssl_context=ssl.create_default_context() if address.is_tls else None,
    )
    ready, over = trio.Event(), trio.Event()
    servers: list[RedisServer] = []

    async def hold_connections() -> None:
        async with trio.open_nursery() as nursery:
            servers.append(RedisServer(address, new_connection, nursery))
            ready.set()
            await over.wait()
            nursery.cancel_scope.cancel()

    async with background_tasks(hold_connections):
        try:
            await ready.wait()
            await servers[0].check_safety()
            yield servers[0]
        finally:
            over.set()


@contextmanager
def _translate_errors(address: RedisAddress) -> Iterator[None]:
    """Raise a ``SessionError`` instead of an error of the library that is raised in the block."""
    from coredis import exceptions

    try:
        yield
    except (exceptions.RedisError, OSError, trio.TooSlowError) as error:
        raise _session_error(error, address) from None


_CREDENTIALS = "refuses the user name or the password; correct them in the address"
_PASSWORD = "requires a password; write redis://:PASSWORD@HOST/DB"
_TOO_OLD = "is too old, or is not a Redis; update it"
_EXPLANATIONS: Sequence[tuple[str, str]] = (
    ("WRONGPASS", _CREDENTIALS),
    ("INVALID USERNAME", _CREDENTIALS),
    ("NOAUTH", _PASSWORD),
    ("AUTHENTICATION", _PASSWORD),
    ("NOPERM", "does not permit the needed commands to this user; grant it +@all ~{chain}:* in its ACL"),
    ("READONLY", "is a read-only replica; name the address of its primary"),
    ("OOM", "has no memory left; raise its maxmemory, or delete sessions"),
    ("MISCONF", "cannot write to its disk; its own log says why"),
    ("WAITAOF CANNOT", f"no longer stores sessions safely on its disk; {HOW_TO_BE_SAFE}"),
    ("MOVED", "is a cluster node that does not have the keys of chain; use the address of the node that has them"),
    ("WRONGTYPE", "has keys of another program under the names of chain; use another database, such as /1"),
    ("DB INDEX", "has no database of that number; use another one, such as /0"),
    ("UNKNOWN COMMAND", _TOO_OLD),
    ("HELLO", _TOO_OLD),
)
_FORBIDDEN = ("NOPERM", "UNKNOWN COMMAND")
_TEMPORARY_ERRORS = ("LOADING", "MASTERDOWN", "BUSY ", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS", "UNBLOCK")
"""Words in the errors of a server that starts, is busy or in a failover (``UNBLOCKED``), or waits for replicas."""


def _session_error(error: BaseException, address: RedisAddress) -> SessionError:
    from coredis import exceptions

    causes = [error]
    while (cause := causes[-1].__cause__) is not None and len(causes) < 5:
        causes.append(cause)
    folded = " ".join(f"{type(each).__name__} {each}" for each in causes).upper()
    who = f"the Redis at {address}"
    if any(isinstance(each, ssl.SSLError) for each in causes):
        return SessionError(
            f"{who} has a TLS certificate that is not trusted; name that of a private authority in SSL_CERT_FILE"
        )
    own_words = str(error).partition(" script: ")[0][:200]
    if any(word in folded for word in _TEMPORARY_ERRORS):
        return Unreachable(f"{who} cannot carry out a command at the moment: {own_words}")
    for word, why in _EXPLANATIONS:
        if word in folded:
            return (Forbidden if word in _FORBIDDEN else SessionError)(f"{who} {why}")
    if isinstance(error, exceptions.ResponseError):
        return SessionError(f"{who} refuses a command: {own_words}")
    return Unreachable(f"{who} does not answer; is it running, and is the address right?")
