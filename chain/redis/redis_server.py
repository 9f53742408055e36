"""The connection to a Redis that keeps sessions: its address, what it must be like, and what it answers.

What cannot be reached may be there again in a moment (``Unreachable``); all else is a mistake that somebody has to
mend, and is said in one sentence. Credentials are part of the address and are never shown.
"""

from __future__ import annotations

import logging
import math
import re
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

import trio

from chain.concurrency.nurseries import background_tasks
from chain.config.extras import REDIS, install_command
from chain.errors import SessionError
from chain.redis.scripts import LuaScript, keys

DEFAULT_PORT = 6379
SERVER_ANSWER_S = 5.0
"""How long the server may take to answer, which it does within milliseconds."""
SAFE_S = 4.0
"""How long it may take to bring a change to its disk: shorter, so that it says so before nobody waits for it."""
MAX_SERVER_CONNECTIONS = 10_000
"""More than anybody needs: each session that is open waits for its lines with one."""
OLDEST = (7, 0)
WAITS = (7, 2)
"""Since when a server can be asked to answer once what it did is on its disk."""
SYNC_CHECK_S = 3.0
"""How often an older one is asked whether it still does that by itself."""

FORM = "write redis://HOST[:PORT]/DB, or rediss:// for TLS"

HOW_TO_BE_SAFE = "set appendonly yes and appendfsync always in redis.conf (chain help machines)"

logging.getLogger("coredis").addHandler(logging.NullHandler())  # what it has to say is said by our errors

Command: TypeAlias = tuple[bytes | str | int | float, ...]


class Unreachable(SessionError):
    """The server does not answer, for now."""


class Forbidden(SessionError):
    """The server knows no such command, or not for this user."""


@dataclass(frozen=True)
class RedisAddress:
    """Where a server is, and what it wants to hear; ``str`` is without credentials."""

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
    """The address that a text says. Raises ``SessionError``, which shows nothing of it: a part may be a secret."""
    try:
        parts = urlsplit(text.strip())
        port = parts.port or DEFAULT_PORT
    except ValueError:
        raise SessionError(f"{source} is no address of a Redis; {FORM}") from None
    database = parts.path.strip("/") or "0"
    is_one = parts.scheme in ("redis", "rediss") and parts.hostname and not (parts.query or parts.fragment)
    if not is_one or not re.fullmatch(r"[0-9]{1,6}", database):
        raise SessionError(f"{source} is no address of a Redis; {FORM}")
    assert parts.hostname is not None
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    return RedisAddress(parts.hostname, port, int(database), parts.scheme == "rediss", user, password)


class RedisServer:
    """A Redis that is connected. Made by ``connected``."""

    def __init__(self, address: RedisAddress, pool: Any) -> None:  # noqa: ANN401 - coredis is imported only where it is used
        self.address = address
        self._pool = pool
        self._connection: Any = None
        """What is asked goes through this one, in turn: a connection for each question costs more than the question."""
        self._connecting = trio.Lock()
        self._can_wait = False
        """Whether the server can be asked to answer once what it did is on its disk."""
        self._checked_at = -math.inf
        """When it was found last that it does so by itself."""

    async def run(self, script: LuaScript, id: str, *arguments: bytes | str | int) -> list[bytes]:
        """Run a script on a session, and wait until what it changed is safe. Raises ``SessionError``."""
        between = (len(found := keys(id)), *found, id, *arguments)
        after: list[Command] = [(b"WAITAOF", 1, 0, int(SAFE_S * 1000))] if self._can_wait else []
        if not self._can_wait and trio.current_time() >= self._checked_at + SYNC_CHECK_S:
            await self._check_syncs()
        try:
            try:
                answers = await self.ask((b"EVALSHA", script.sha, *between), *after)
            except _NoSuchScript:
                answers = await self.ask((b"EVAL", script.text, *between), *after)
        except Unreachable:
            self._checked_at = -math.inf  # it may come back with another configuration
            raise
        if after and answers[1][0] < 1:
            raise Unreachable(f"the Redis at {self.address} does not bring its changes to the disk in time")
        found_answer: list[bytes] = answers[0]
        return found_answer

    async def ask(self, *commands: Command) -> list[Any]:
        """The answers to commands, which are sent together. Raises ``SessionError``."""
        with self._translated():
            if self._can_wait:  # nobody else is to wait behind that
                async with self._pool.acquire() as connection:
                    return await self._answers(connection, commands)
            connection = self._connection
            if connection is None or not connection.usable:
                async with self._connecting:
                    connection = self._connection
                    if connection is None or not connection.usable:
                        connection = self._connection = await self._pool.get_connection()
            return await self._answers(connection, commands)

    async def _answers(self, connection: Any, commands: Sequence[Command]) -> list[Any]:  # noqa: ANN401
        requests = [connection.create_request(name, *rest, decode=False) for name, *rest in commands]
        with trio.move_on_after(SERVER_ANSWER_S):
            return [await request for request in requests]
        connection.invalidate()  # perhaps the network forgot it
        raise Unreachable(f"the Redis at {self.address} did not answer for {SERVER_ANSWER_S:.0f} s")

    async def block(self, seconds: float, name: bytes, *rest: bytes | str | int | float) -> Any:  # noqa: ANN401
        """The answer to a command that waits for so many seconds at most. Raises ``SessionError``."""
        with self._translated():
            async with self._pool.acquire() as connection:
                request = connection.create_request(name, *rest, decode=False, disconnect_on_cancellation=True)
                with trio.move_on_after(seconds + SERVER_ANSWER_S):
                    return await request
            raise Unreachable(f"the Redis at {self.address} did not answer for {SERVER_ANSWER_S:.0f} s")

    def _translated(self) -> _Translated:
        return _Translated(self.address)

    async def check(self) -> None:
        """Whether sessions are safe there. Raises ``SessionError``."""
        (raw,) = await self.ask((b"INFO",))
        about = dict(row.split(":", 1) for row in raw.decode(errors="replace").split("\r\n") if ":" in row)
        number = about.get("redis_version", "0")
        version = tuple(int(part) for part in number.split(".")[:2] if part.isdecimal())
        where = f"the Redis at {self.address}"
        if version < OLDEST:
            raise SessionError(
                f"{where} is {number}, and sessions need {'.'.join(map(str, OLDEST))} or newer; update it"
            )
        if about.get("loading") == "1":  # until then it says that it keeps no append-only file
            raise Unreachable(f"{where} is still reading its data")
        if about.get("role") not in ("master", None):
            raise SessionError(f"{where} is a read-only replica; name the address of its primary")
        if (policy := about.get("maxmemory_policy", "noeviction")).startswith("allkeys"):
            fix = "set maxmemory-policy noeviction in redis.conf"
            raise SessionError(f"{where} would drop sessions when its memory is full ({policy}); {fix}")
        if about.get("aof_enabled") != "1":
            raise SessionError(f"{where} does not keep sessions safe on its disk (appendonly no); {HOW_TO_BE_SAFE}")
        self._can_wait = version >= WAITS
        if not self._can_wait:
            await self._check_syncs()
        elif (await self._syncs()).get(b"appendfsync") == b"no":
            why = "never brings its changes to the disk by itself (appendfsync no)"
            raise SessionError(f"{where} {why}; {HOW_TO_BE_SAFE}")

    async def _check_syncs(self) -> None:
        found = await self._syncs()
        if (found.get(b"appendonly"), found.get(b"appendfsync")) != (b"yes", b"always"):
            why = "may lose the last second in a crash (appendonly is not yes, or appendfsync not always)"
            raise SessionError(f"the Redis at {self.address} {why}; {HOW_TO_BE_SAFE}")
        self._checked_at = trio.current_time()

    async def _syncs(self) -> Mapping[bytes, bytes]:
        """What the server says of its append-only file; nothing where it may not say, as a hosted one."""
        try:
            (found,) = await self.ask((b"CONFIG GET", b"append*"))
        except Forbidden:
            return {}
        return found if isinstance(found, dict) else dict(zip(found[::2], found[1::2], strict=True))


@asynccontextmanager
async def connected(address: RedisAddress) -> AsyncIterator[RedisServer]:
    """A server for the block, checked. What cancels the block lets it be, so that the last of it can still be said.

    Raises ``SessionError``.
    """
    try:
        from coredis.connection import TCPLocation
        from coredis.pool import ConnectionPool

        from chain.redis.bounded_connection import BoundedConnection
    except ModuleNotFoundError:
        raise SessionError(f"sessions in Redis need the extra redis: {install_command(REDIS)}") from None
    context = ssl.create_default_context() if address.is_tls else None
    pool: ConnectionPool[Any] = ConnectionPool(
        connection_class=BoundedConnection,
        location=TCPLocation(address.host, address.port),
        max_connections=MAX_SERVER_CONNECTIONS,
        timeout=SERVER_ANSWER_S,
        connect_timeout=SERVER_ANSWER_S,
        username=address.username or None,
        password=address.password or None,
        db=address.database,
        ssl_context=context,
    )
    ready, over = trio.Event(), trio.Event()

    async def keep() -> None:
        async with pool:
            ready.set()
            await over.wait()

    async with background_tasks(keep):
        try:
            await ready.wait()
            server = RedisServer(address, pool)
            await server.check()
            yield server
        finally:
            over.set()


class _NoSuchScript(Exception):
    """The server has forgotten a script."""


class _Translated:
    """Says what the library raises in the block in a sentence of ours."""

    def __init__(self, address: RedisAddress) -> None:
        self._address = address

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        from coredis import exceptions

        if isinstance(error, exceptions.NoScriptError):
            raise _NoSuchScript from None
        if isinstance(error, exceptions.RedisError | OSError | TimeoutError):
            raise _sentence(error, self._address) from None


_SENTENCES: Sequence[tuple[str, str]] = (
    ("WRONGPASS", "refuses the user name or the password; correct them in the address"),
    ("INVALID USERNAME", "refuses the user name or the password; correct them in the address"),
    ("NOAUTH", "wants a password; write redis://:PASSWORD@HOST/DB"),
    ("AUTHENTICATION", "wants a password; write redis://:PASSWORD@HOST/DB"),
    ("NOPERM", "does not let this user run what is needed; give it +@all ~{chain}:* in its ACL"),
    ("READONLY", "is a read-only replica; name the address of its primary"),
    ("OOM", "has no memory left; raise its maxmemory, or delete sessions"),
    ("MISCONF", "cannot write to its disk; its own log says why"),
    ("WAITAOF CANNOT", f"does not keep sessions safe on its disk any more; {HOW_TO_BE_SAFE}"),
    ("MOVED", "is a cluster that keeps our keys on another node; name the address of that one"),
    ("WRONGTYPE", "has keys of another program in the place of ours; name another database, such as /1"),
    ("DB INDEX", "has no database of that number; name another one, such as /0"),
    ("UNKNOWN COMMAND", "is too old, or is no Redis; update it"),
    ("HELLO", "is too old, or is no Redis; update it"),
)
_FORBIDDEN = ("NOPERM", "UNKNOWN COMMAND")
_FOR_NOW = ("LOADING", "MASTERDOWN", "BUSY ", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS", "UNBLOCK")
"""What passes by itself: a start, a failover (``UNBLOCKED``), replicas that lag behind."""


def _sentence(error: BaseException, address: RedisAddress) -> SessionError:
    from coredis import exceptions

    causes = [error]
    while (cause := causes[-1].__cause__) is not None and len(causes) < 5:
        causes.append(cause)
    said = " ".join(f"{type(each).__name__} {each}" for each in causes)
    folded = said.upper()
    who = f"the Redis at {address}"
    if any(isinstance(each, ssl.SSLError) for each in causes):
        return SessionError(f"{who} cannot be trusted by TLS; SSL_CERT_FILE names the certificate of an own authority")
    own_words = str(error).partition(" script: ")[0][:200]
    if any(word in folded for word in _FOR_NOW):
        return Unreachable(f"{who} cannot do what it was asked for now: {own_words}")
    for word, why in _SENTENCES:
        if word in folded:
            return (Forbidden if word in _FORBIDDEN else SessionError)(f"{who} {why}")
    if isinstance(error, exceptions.ResponseError):
        return SessionError(f"{who} refuses what it was asked: {own_words}")
    return Unreachable(f"{who} does not answer; is it running, and is the address right?")
