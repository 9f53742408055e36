"""A Redis server: addresses, checks before it is used, errors, and what survives outages and lost answers."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from support import redis
from support.redis import OwnRedis

from chain.app.remote import MISSED, RemoteSession, remote_session
from chain.errors import SessionError
from chain.journal import records
from chain.journal.journal import Journal
from chain.messages import Image, Message
from chain.redis import bounded_connection, redis_server, redis_store, scripts
from chain.redis.lease import Lease, claim, hold_lease
from chain.redis.redis_server import RedisServer, Unreachable, connect, read_address
from chain.redis.redis_store import RedisStore
from chain.session.listing import Summary

pytestmark = [pytest.mark.slow, *redis.MARKS]

SECRET = "hush-hush"
HERE = Path("/")
TOKEN = "t"
"""The token of a holder that runs scripts itself."""
ROW = ("row", "{}", "")
"""The change that appends an empty row to a journal, as the script APPEND has it."""
NOTICE = json.dumps({"type": "notice", "message": "hello"})


@pytest.fixture
async def id(store: RedisStore, connection: RedisServer) -> str:
    return await store.create(connection, "/")


@pytest.fixture
async def claimed_id(connection: RedisServer, id: str) -> str:
    """Claim a session for ``TOKEN``. Return its id."""
    lease_ms, by_worker = 10_000, 0
    assert await connection.run(scripts.CLAIM, id, TOKEN, lease_ms, by_worker)
    return id


async def submit(store: RedisStore, connection: RedisServer, id: str, line: str = "one", **more: Any) -> str:
    """Send a line to a session, and return its state."""
    needs_room = more.pop("needs_room", True)
    row = {"id": line, "type": "line", "text": "x", **more}
    return (await store.submit(connection, id, row, needs_room=needs_room)).state


async def write(journal: Journal, *written: records.Record) -> None:
    """Write records to a journal, by default its first one."""
    for each in written or (records.Session(journal.id, "1", "m", "/"),):
        journal.record(each)
    await journal.sync()


def lease_of(journal: Journal) -> Lease:
    assert isinstance(journal._file, Lease)
    return journal._file


def count_rows(store: RedisStore, id: str) -> int:
    with store.rows(id) as rows:
        return len(list(rows))


async def find(store: RedisStore, id: str) -> Summary:
    return await trio.to_thread.run_sync(store.find, id)


def open_remote(
    server: OwnRedis,
    id: str = "",
    *,
    workspace: Path = HERE,
    say: Callable[[str], object] = lambda text: None,
) -> AbstractAsyncContextManager[RemoteSession]:
    """Open a session as another machine does. Without an id, create it."""
    return remote_session(server.address, id=id, workspace=workspace, is_new=not id, say=say)


async def until_info(server: OwnRedis, part: str, row: bytes) -> None:
    while row not in server.command("INFO", part):
        await trio.lowlevel.checkpoint()


def count_in_info(server: OwnRedis, part: str, name: bytes) -> int:
    return int(server.command("INFO", part).partition(name + b":")[2].partition(b"\r")[0])


# ------------------------------------------------------------------------------------------------------ the address


def test_an_address_is_shown_without_credentials() -> None:
    address = read_address(f"rediss://me:{SECRET}%40@db.example:7000/3")
    assert (address.username, address.password, address.is_tls) == ("me", f"{SECRET}@", True)
    assert str(address) == "rediss://db.example:7000/3"
    assert SECRET not in repr(address)


@pytest.mark.parametrize(
    "text", ["", "/a/folder", "http://host/0", "redis://", "redis://h:port/0", "redis://h/x", "redis://h/0?a=b"]
)
def test_an_invalid_address_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(SessionError, match="is not the address of a Redis; write redis://") as raised:
        read_address(text.replace("redis://", f"redis://u:{SECRET}@"))
    assert SECRET not in str(raised.value)


# ---------------------------------------------------------------------------------------------- checks of the server


async def connect_error(address: str) -> str:
    with pytest.raises(SessionError) as raised:
        async with connect(read_address(address)):
            pytest.fail("it was connected")
    error = str(raised.value)
    assert len(error.splitlines()) == 1
    assert SECRET not in error
    return error


async def test_a_missing_server_is_an_error() -> None:
    assert "does not answer; is it running" in await connect_error("redis://127.0.0.1:1/0")


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--appendonly", "no"], "set appendonly yes and appendfsync always in redis.conf"),
        (["--appendonly", "yes", "--appendfsync", "no"], "appendfsync"),
        ([*redis.SAFE, "--maxmemory-policy", "allkeys-lru"], "set maxmemory-policy noeviction"),
        ([*redis.SAFE, "--replicaof", "127.0.0.1 1"], "is a read-only replica"),
    ],
    ids=["no append-only file", "no fsync", "eviction", "replica"],
)
async def test_an_unsafe_server_is_refused(tmp_path: Path, options: Sequence[str], error: str) -> None:
    with redis.own_redis(tmp_path / "r", options) as server:
        assert error in await connect_error(server.address)


@pytest.mark.parametrize(
    ("credentials", "database", "error"),
    [
        pytest.param("", 0, "requires a password", id="no password"),
        pytest.param(":hush", 0, "refuses the user name or the password", id="wrong password"),
        pytest.param(f":{SECRET}", 99, "has no database of that number", id="missing database"),
    ],
)
async def test_wrong_parts_of_an_address_are_errors(
    tmp_path: Path, credentials: str, database: int, error: str
) -> None:
    with redis.own_redis(tmp_path / "r", (*redis.SAFE, "--requirepass", SECRET)) as server:
        assert error in await connect_error(f"redis://{credentials}@127.0.0.1:{server.port}/{database}")
        async with connect(read_address(f"redis://:{SECRET}@127.0.0.1:{server.port}/2")):
            pass  # the right password and database are accepted


async def test_a_server_without_tls_is_an_error(server: OwnRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_server, "SERVER_ANSWER_S", 0.5)
    error = await connect_error(server.address.replace("redis:", "rediss:"))
    assert "TLS" in error or "does not answer" in error


@pytest.fixture
def tls_files(tmp_path: Path) -> Path:
    """Create a private authority, ``ca.pem``, and a certificate for a server. Return their folder."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make an authority with")
    if not redis.has_tls():
        pytest.skip("this server was built without TLS")
    new_key = "-newkey rsa:2048 -nodes -subj"
    (tmp_path / "names").write_text("subjectAltName=IP:127.0.0.1")
    for arguments in (
        f"req -x509 -days 2 {new_key} /CN=ours -keyout ca.key -out ca.pem",
        f"req {new_key} /CN=redis -keyout key.pem -out request.pem",
        "x509 -req -in request.pem -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out cert.pem",
    ):
        subprocess.run(["openssl", *arguments.split()], cwd=tmp_path, check=True, capture_output=True)
    return tmp_path


async def test_tls_with_a_private_authority(tls_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = redis.free_port()
    files = {"cert-file": "cert.pem", "key-file": "key.pem", "ca-cert-file": "ca.pem"}
    options = [word for name, file in files.items() for word in (f"--tls-{name}", str(tls_files / file))]
    options += ["--tls-port", str(port), "--tls-auth-clients", "no"]
    with redis.own_redis(tmp_path / "r", (*redis.SAFE, *options)):
        address = f"rediss://127.0.0.1:{port}/0"
        assert "has a TLS certificate that is not trusted; name" in await connect_error(address)
        monkeypatch.setenv("SSL_CERT_FILE", str(tls_files / "ca.pem"))
        async with connect(read_address(address)) as connection:
            assert await connection.ask((b"PING",)) == [b"PONG"]


HELLO = b"%3\r\n+version\r\n+7.2.0\r\n+proto\r\n:3\r\n+id\r\n:1\r\n"
ENDLESS = b"$1000000000000\r\n"
"""The beginning of an answer that does not end."""


@asynccontextmanager
async def fake_server(**answers: bytes) -> AsyncIterator[str]:
    """Serve these answers to commands, and OK to all others. Yield the address."""

    async def serve(peer: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            async for data in peer:
                for command in re.findall(rb"\*\d+\r\n\$\d+\r\n([A-Za-z]+)", data):
                    answer = {"HELLO": HELLO, **answers}.get(command.decode().upper(), b"+OK\r\n")
                    await peer.send_all(answer)
                    while answer == ENDLESS:
                        await peer.send_all(b"x" * (1 << 16))

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        yield f"redis://127.0.0.1:{listener.socket.getsockname()[1]}/0"
        nursery.cancel_scope.cancel()


def info(text: str) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(text), text.encode())


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (info("redis_version:6.2.14"), "is 6.2.14, and sessions need 7.0 or newer; update it"),
        (info("redis_version:7.0.15\r\nloading:1\r\naof_enabled:0"), "is still reading its data"),
        (ENDLESS, "does not answer"),
    ],
    ids=["too old", "loading", "endless"],
)
async def test_an_unusable_answer_is_an_error(answer: bytes, error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_connection, "MAX_SERVER_ANSWER", 1 << 20)
    async with fake_server(INFO=answer) as address:
        assert error in await connect_error(address)


async def test_changes_must_be_on_the_disk() -> None:
    everysec = b"%1\r\n+appendfsync\r\n+everysec\r\n"
    nothing_synced = b"*2\r\n:0\r\n:0\r\n"
    server = info("redis_version:7.2.0\r\nrole:master\r\naof_enabled:1")
    answers = {"INFO": server, "CONFIG": everysec, "EVAL": b"*1\r\n+ok\r\n", "WAITAOF": nothing_synced}
    async with fake_server(**answers) as address, connect(read_address(address)) as connection:
        with pytest.raises(Unreachable, match="does not write its changes to disk in time"):
            await connection.run(scripts.CREATE, "one", "/")


def has_waitaof(server: OwnRedis) -> bool:
    return b"ERR" not in server.command("WAITAOF", "0", "0", "1")


@pytest.mark.parametrize("program", redis.PROGRAMS, ids=lambda program: Path(program).name)
async def test_record_survives_if_the_server_syncs_each_second(tmp_path: Path, program: str) -> None:
    with redis.own_redis(tmp_path / "r", ("--appendonly", "yes", "--appendfsync", "everysec"), program) as server:
        if not has_waitaof(server):
            assert "may lose the last second" in await connect_error(server.address)
            return
        store = RedisStore(server.address, lease_s=1.0)
        async with store.open_new(HERE) as opened:
            await write(opened.journal)
            server.kill()
        server.start()
        assert count_rows(store, opened.journal.id) == 1


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("commands", "error"),
    [
        (["CONFIG SET maxmemory 1"], "has no memory left"),
        (["REPLICAOF 127.0.0.1 1"], "is a read-only replica"),
        (["DEL JOURNAL", "SET JOURNAL x"], "has keys of another program under the names of chain"),
        (["CONFIG SET appendfsync no"], "may lose the last second in a crash"),
        (["CONFIG SET appendonly no"], redis_server.HOW_TO_BE_SAFE),
        (["HSET META token another"], "another process has taken over the session"),
    ],
    ids=["no memory", "replica", "key of another type", "no fsync", "no append-only file", "another holder"],
)
async def test_a_changed_server_ends_the_journal(server: OwnRedis, commands: Sequence[str], error: str) -> None:
    if "CONFIG SET appendfsync no" in commands and has_waitaof(server):
        pytest.skip("each change waits for the disk")
    async with RedisStore(server.address, lease_s=3.0).open_new(HERE) as opened:
        await write(opened.journal)
        keys = {part.upper(): scripts.key(opened.journal.id, part) for part in ("journal", "meta")}
        for command in commands:
            server.command(*(keys.get(word, word) for word in command.split()))
        await write(opened.journal, records.Line("L1", "x" * 1000, "redirect", "next", "main"))
        assert error in str(opened.journal.failure)


# ------------------------------------------------------------------------------------------ outages and lost answers


async def test_cancelled_waits_leave_no_connections(server: OwnRedis, connection: RedisServer) -> None:
    for _ in range(20):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(connection.ask, (b"BLPOP", b"nothing", 60), wait_s=60))
                await until_info(server, "clients", b"blocked_clients:1")
                scope.cancel()
        assert await connection.ask((b"PING",)) == [b"PONG"]
    await until_info(server, "clients", b"blocked_clients:0")
    assert count_in_info(server, "clients", b"connected_clients") < 5


async def test_blocking_methods_have_a_timeout(
    server: OwnRedis, store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_store, "IN_LOOP_S", 1.0)
    await trio.to_thread.run_sync(store.check)  # imports the library before the clock counts
    assert store.summaries() == []
    monkeypatch.setattr(redis_server, "SERVER_ANSWER_S", 1e6)
    server.signal(signal.SIGSTOP)
    with pytest.raises(SessionError, match="did not answer in time"):
        store.summaries()


async def test_records_are_written_after_a_short_outage(server: OwnRedis, store: RedisStore) -> None:
    async with store.open_new(HERE) as opened:
        await write(opened.journal)
        server.kill()
        opened.journal.record(records.Model("other"))
        server.start()
        await opened.journal.sync()
        assert opened.journal.failure is None
    assert count_rows(store, opened.journal.id) == 2


async def test_records_wait_for_replicas(server: OwnRedis, store: RedisStore) -> None:
    async with store.open_new(HERE) as opened:
        server.command("CONFIG", "SET", "min-replicas-to-write", "1")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write, opened.journal)
            await until_info(server, "errorstats", b"errorstat_NOREPLICAS")
            server.command("CONFIG", "SET", "min-replicas-to-write", "0")
        assert opened.journal.failure is None


async def test_writing_is_retried_until_the_lease_ends(server: OwnRedis) -> None:
    start = trio.current_time()
    async with RedisStore(server.address, lease_s=2.0).open_new(HERE) as opened:
        await write(opened.journal)
        server.kill()
        await write(opened.journal, records.Model("other"))
        assert opened.journal.failure is not None
        assert trio.current_time() - start > 1.0, "most of the lease"


async def test_releasing_stops_when_the_lease_ends(server: OwnRedis, connection: RedisServer, id: str) -> None:
    store = RedisStore(server.address, lease_s=0.5)
    await submit(store, connection, id)
    lease = await store.claim_for_worker(connection, id)
    assert lease is not None
    async with hold_lease(lease):
        server.kill()
    assert not lease.was_released


async def test_a_claim_survives_a_lost_answer(
    store: RedisStore, connection: RedisServer, id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await submit(store, connection, id)
    run = connection.run

    async def run_and_lose_answer(*arguments: Any) -> list[bytes]:
        monkeypatch.setattr(connection, "run", run)
        await run(*arguments)
        raise Unreachable("lost")

    monkeypatch.setattr(connection, "run", run_and_lose_answer)
    lease = await claim(connection, id, by_worker=True)
    assert isinstance(lease, Lease)
    assert (lease.has_open_run, lease.takeovers) == (False, 0)


async def test_events_continue_after_a_failover(server: OwnRedis, store: RedisStore) -> None:
    messages = list[str]()
    async with (
        store.open_new(HERE) as opened,
        open_remote(server, opened.journal.id, say=messages.append) as session,
        aclosing(session.events()) as events,
    ):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(events.__anext__)
            await until_info(server, "clients", b"blocked_clients:1")
            server.command("REPLICAOF", "127.0.0.1", "1")
            server.command("REPLICAOF", "NO", "ONE")
            lease_of(opened.journal).publish(NOTICE, "notice")
        lease_of(opened.journal).publish(NOTICE, "notice")
        assert (await anext(events))["message"] == "hello"
    _not_begun, outage, end_of_outage = messages
    assert "cannot carry out a command at the moment" in outage
    assert end_of_outage.endswith("answers again")


@pytest.fixture
async def claimed_in_future(server: OwnRedis, store: RedisStore, connection: RedisServer, id: str) -> str:
    """Claim a session with a line, then set the server's clock back by an hour, as in a failover. Return its id."""
    await submit(store, connection, id)
    assert await store.claim_for_worker(connection, id) is not None
    _, due = server.command("ZSCORE", scripts.DUE, id).split()
    in_an_hour = str(int(due) + 3_600_000)
    server.command("HSET", scripts.key(id, "meta"), "until", in_an_hour)
    server.command("ZADD", scripts.DUE, in_an_hour, id)
    return id


async def test_lease_ends_after_a_clock_change(
    store: RedisStore, connection: RedisServer, claimed_in_future: str
) -> None:
    assert await store.due_sessions(connection) == [claimed_in_future]
    assert await store.claim_for_worker(connection, claimed_in_future) is not None


async def test_session_is_idle_after_a_clock_change(
    server: OwnRedis, store: RedisStore, connection: RedisServer, claimed_in_future: str
) -> None:
    server.command("ZREM", scripts.DUE, claimed_in_future)
    assert await store.active_sessions(connection, [claimed_in_future]) == []


@pytest.mark.parametrize("needs_password", [False, True], ids=["it continues", "it restarts with a password"])
async def test_an_unknown_outcome_is_reported(
    needs_password: bool, server: OwnRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server stops while a line is sent."""
    monkeypatch.setattr(redis_server, "SERVER_ANSWER_S", 0.3)
    messages, has_message, errors = list[str](), trio.Event(), list[str]()

    def say(text: str) -> None:
        messages.append(text)
        has_message.set()

    async def send(session: RemoteSession) -> None:
        try:
            await session.send("hello")
        except SessionError as error:
            errors.append(str(error))

    async with open_remote(server, workspace=tmp_path, say=say) as session, trio.open_nursery() as nursery:
        server.signal(signal.SIGSTOP)
        nursery.start_soon(send, session)
        await has_message.wait()
        if needs_password:
            server.kill()
            server.options += ("--requirepass", "secret")
            server.start()
        server.signal(signal.SIGCONT)
    assert "the line may have been accepted; retrying" in messages[0]
    if needs_password:
        assert re.search("requires a password.*the line may have been accepted before", errors[0])
    else:
        assert b":1\r\n" in server.command("XLEN", scripts.key(session.id, "lines")), "it was sent once"


# --------------------------------------------------------------------------------------- scripts and stored sessions


async def test_due_sessions_can_be_of_one_folder(
    server: OwnRedis, store: RedisStore, connection: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_store, "MAX_DUE", 2)
    first, second, third, mine = [await store.create(connection, folder) for folder in ("/", "/", "/", "/mine")]
    for due, id in enumerate((first, second, third, mine)):
        server.command("ZADD", scripts.DUE, str(due), id)
    assert await store.due_sessions(connection, only="/mine") == [mine]
    assert {*await store.due_sessions(connection)} == {first, second}


async def test_a_session_to_retry_is_claimed_later(
    server: OwnRedis, store: RedisStore, connection: RedisServer, id: str
) -> None:
    await submit(store, connection, id)
    lease = await store.claim_for_worker(connection, id)
    assert lease is not None
    lease.release_mode = "retry"
    await lease.release()
    assert await store.claim_for_worker(connection, id) is None
    assert await store.due_sessions(connection) == []
    server.command("ZADD", scripts.DUE, "1", id)
    assert await store.claim_for_worker(connection, id) is not None


async def test_sessions_of_one_store_are_independent(store: RedisStore, tmp_path: Path) -> None:
    async with AsyncExitStack() as first, store.open_new(tmp_path) as second:
        await first.enter_async_context(store.open_new(tmp_path))
        await first.aclose()
        await write(second.journal)
        assert second.journal.failure is None


async def test_a_repeated_change_is_written_again(
    server: OwnRedis, store: RedisStore, connection: RedisServer, claimed_id: str
) -> None:
    """WAITAOF waits only for changes of its own connection."""

    async def send_line() -> None:
        assert await submit(store, connection, claimed_id) == "queued"

    async def append() -> None:
        assert await connection.run(scripts.APPEND, claimed_id, TOKEN, 1, "", *ROW) == [b"ok"]

    for change in (send_line, send_line, append, append):
        before = count_in_info(server, "persistence", b"rdb_changes_since_last_save")
        await change()
        assert count_in_info(server, "persistence", b"rdb_changes_since_last_save") > before


async def test_groups_are_written_once_without_gaps(server: OwnRedis, connection: RedisServer, claimed_id: str) -> None:
    for number, answer in [(1, b"ok"), (1, b"ok"), (3, b"fenced"), (2, b"ok")]:  # 1 is repeated, 3 leaves a gap
        assert await connection.run(scripts.APPEND, claimed_id, TOKEN, number, "", *ROW) == [answer]
    assert b":2\r\n" in server.command("XLEN", scripts.key(claimed_id, "journal"))


async def test_a_release_may_be_repeated(
    server: OwnRedis, store: RedisStore, connection: RedisServer, claimed_id: str
) -> None:
    for _ in range(2):
        assert await connection.run(scripts.RELEASE, claimed_id, TOKEN, "done") == [b"ok"]
    store.delete(claimed_id)
    assert await connection.run(scripts.RELEASE, claimed_id, TOKEN, "done") == [b"ok"]
    assert server.command("KEYS", "*") == b"*0\r\n"


async def test_waiting_lines_need_a_worker_after_their_holder(
    server: OwnRedis, store: RedisStore, connection: RedisServer, claimed_id: str
) -> None:
    waiting_lines = 2
    assert await connection.run(scripts.APPEND, claimed_id, TOKEN, 1, waiting_lines, *ROW) == [b"ok"]
    assert await connection.run(scripts.RENEW, claimed_id, TOKEN, 10_000) == [b"ok"]
    time_in_ms = b"$13"
    assert server.command("ZSCORE", scripts.DUE, claimed_id).startswith(time_in_ms)
    assert await connection.run(scripts.RELEASE, claimed_id, TOKEN, "done") == [b"ok"]
    assert await store.due_sessions(connection) == [claimed_id]


async def test_a_session_without_lines_needs_no_worker(store: RedisStore, connection: RedisServer, id: str) -> None:
    assert await store.claim_for_worker(connection, id) is None


async def test_the_lines_of_a_session_are_limited(
    server: OwnRedis, store: RedisStore, connection: RedisServer, claimed_id: str
) -> None:
    server.command("HSET", scripts.key(claimed_id, "meta"), "size", "2")
    for n in range(5):
        hello = {"type": "hello", "for_s": 1.0, "needs_room": False}
        assert await submit(store, connection, claimed_id, f"h{n}", **hello) == "queued"
    assert server.command("HLEN", scripts.key(claimed_id, "ids")) == b":0\r\n", "they have no status"
    assert [await submit(store, connection, claimed_id, f"l{n}") for n in range(3)] == ["queued", "queued", "refused"]


async def test_the_rows_of_a_session_are_limited(store: RedisStore, connection: RedisServer, claimed_id: str) -> None:
    stop = {"text": "stop", "needs_room": False}
    for n in range(scripts.MAX_WAITING_ROWS):
        assert await submit(store, connection, claimed_id, f"s{n}", **stop) == "queued"
    assert await submit(store, connection, claimed_id, "last", **stop) == "refused"


async def test_a_watcher_starts_with_the_latest_run(server: OwnRedis, store: RedisStore) -> None:
    async with store.open_new(HERE) as opened:
        more_than_one_request = [("notice", "x")] * 1_200
        published = [("init", "0"), ("run_started", "A"), *more_than_one_request]
        published += [("init", "1"), ("run_started", "B"), ("notice", "y"), ("init", "2")]
        for type, message in published:
            lease_of(opened.journal).publish(json.dumps({"type": type, "message": message}), type)
        await lease_of(opened.journal).sync()
        async with open_remote(server, opened.journal.id) as session, aclosing(session.events()) as events:
            assert [(await anext(events))["message"] for _ in range(4)] == ["1", "B", "y", "2"]


LARGE_NOTICE = json.dumps({"type": "notice", "message": "x" * 1000})


async def publish_too_many(lease: Lease) -> None:
    """Publish twice as many events as are stored."""
    for _ in range(2 * scripts.MAX_EVENT_BYTES // len(LARGE_NOTICE)):
        lease.publish(LARGE_NOTICE, "notice")
    await lease.sync()


async def test_a_watcher_learns_of_missed_events(server: OwnRedis, store: RedisStore) -> None:
    messages = list[str]()
    async with store.open_new(HERE) as opened:
        lease, id = lease_of(opened.journal), opened.journal.id
        lease.publish(NOTICE, "notice")
        await lease.sync()
        async with open_remote(server, id, say=messages.append) as session, aclosing(session.events()) as events:
            await anext(events)
            await publish_too_many(lease)
            await anext(events)
    _not_begun, *others = messages
    assert others == [MISSED.format(id=id)]


async def test_the_stored_events_are_limited(store: RedisStore, connection: RedisServer) -> None:
    async with store.open_new(HERE) as opened:
        await publish_too_many(lease_of(opened.journal))
        stored, after = 0, "0"
        while page := await store.events(connection, opened.journal.id, after, wait_s=0.01):
            stored += sum(event.until - event.before for event in page)
            after = page[-1].place
    assert scripts.MAX_EVENT_BYTES < stored <= scripts.MAX_EVENT_BYTES + len(LARGE_NOTICE)


async def test_summaries_follow_the_journal(server: OwnRedis, store: RedisStore) -> None:
    async with store.open_new(HERE) as opened:
        for lines in (("L1",), ("L1", "L2")):
            await write(opened.journal, records.Line(lines[-1], "x", "redirect", "next", "main"))
            for _ in range(2):  # from the journal, then from the stored summary
                summary = await find(store, opened.journal.id)
                assert (summary.open_lines, summary.is_open) == (lines, True)
    for _ in range(2):
        assert not (await find(store, opened.journal.id)).is_open
    assert b"L2" in server.command("HGET", scripts.key(opened.journal.id, "meta"), "summary")


async def test_attachments_may_exceed_one_answer(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_connection, "MAX_SERVER_ANSWER", 1_000_000)
    images = [Image("image/png", str(n) * 64, f"{n}.png") for n in range(4)]
    async with store.open_new(HERE) as opened:
        for image in images:
            lease_of(opened.journal).store_attachment(image.digest, b"x" * 400_000)
        session = records.Session(opened.journal.id, "1", "m", "/")
        await write(opened.journal, session, records.Message(Message("user", tuple(images)), "main", ""))
    async with store.resume(opened.journal.id) as resumed:
        (message,) = resumed.state.main.history.conversation.messages
    assert [len(image.data) > 400_000 for image in message.images] == [True] * 4


async def test_old_sessions_without_work_are_deleted(
    server: OwnRedis, store: RedisStore, connection: RedisServer
) -> None:
    old, due, new = [await store.create(connection, "/") for _ in range(3)]
    await submit(store, connection, due)
    for id in (old, due):
        server.command("ZADD", scripts.SESSIONS, "1000", id)
    async with store.resume(new):
        await store.delete_old(connection, 3600)
    assert {each.id for each in await trio.to_thread.run_sync(store.summaries)} == {due, new}
