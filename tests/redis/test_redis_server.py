"""A Redis server: addresses, checks before it is used, errors, and what survives outages and lost answers."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from support import redis

from chain.app.remote import MISSED, RemoteSession, remote_session
from chain.errors import SessionError
from chain.journal import records
from chain.journal.journal import Journal
from chain.messages import Image, Message
from chain.redis import bounded_connection, redis_server, redis_store, scripts
from chain.redis.lease import Lease, claim, hold_lease
from chain.redis.redis_server import RedisAddress, RedisServer, Unreachable, connect, read_address
from chain.redis.redis_store import RedisStore

pytestmark = [pytest.mark.slow, *redis.MARKS]

SECRET = "hush-hush"
HERE = Path("/")
CLAIM: tuple[Any, ...] = ("t", 10_000, 0)
ROW = ("row", "{}", "")
NOTICE = json.dumps({"type": "notice", "message": "hello"})


async def submit(store: RedisStore, connection: RedisServer, id: str, line: str = "one", **more: Any) -> str:
    """Send a line to a session, and return its state."""
    needs_room = more.pop("needs_room", True)
    row = {"id": line, "type": "line", "text": "x", **more}
    return (await store.submit(connection, id, row, needs_room=needs_room)).state


async def record(journal: Journal, *written: records.Record) -> None:
    for each in written or (records.Session(journal.id, "1", "m", "/"),):
        journal.record(each)
    await journal.sync()


def lease_of(journal: Journal) -> Lease:
    assert isinstance(journal._file, Lease)
    return journal._file


def rows_of(store: RedisStore, id: str) -> int:
    with store.rows(id) as rows:
        return len(list(rows))


def watched(
    server: redis.OwnRedis,
    id: str = "",
    *,
    workspace: Path = HERE,
    say: Callable[[str], object] = lambda what: None,
) -> AbstractAsyncContextManager[RemoteSession]:
    """Reach a session from elsewhere; without an id, a new one."""
    return remote_session(server.address, id=id, workspace=workspace, is_new=not id, say=say)


async def until_info(server: redis.OwnRedis, part: str, row: bytes) -> None:
    while row not in server.command("INFO", part):
        await trio.lowlevel.checkpoint()


# ------------------------------------------------------------------------------------------------------ the address


def test_an_address_is_shown_without_credentials() -> None:
    found = read_address(f"rediss://me:{SECRET}%40@db.example:7000/3")
    assert (found.username, found.password, found.is_tls) == ("me", f"{SECRET}@", True)
    assert str(found) == "rediss://db.example:7000/3"
    assert SECRET not in f"{found!r} {found}"


@pytest.mark.parametrize(
    "wrong", ["", "/a/folder", "http://host/0", "redis://", "redis://h:port/0", "redis://h/x", "redis://h/0?a=b"]
)
def test_an_invalid_address_is_refused_and_not_shown(wrong: str) -> None:
    with pytest.raises(SessionError, match="is not the address of a Redis; write redis://") as raised:
        read_address(wrong.replace("redis://", f"redis://u:{SECRET}@"))
    assert SECRET not in str(raised.value)


# ---------------------------------------------------------------------------------------------- checks of the server


async def problem(address: RedisAddress | str) -> str:
    """Return the error of connecting."""
    with pytest.raises(SessionError) as raised:
        async with connect(read_address(address) if isinstance(address, str) else address):
            pytest.fail("it was connected")
    said = str(raised.value)
    assert len(said.splitlines()) == 1
    assert SECRET not in said
    return said


async def test_no_server() -> None:
    assert "does not answer; is it running" in await problem("redis://127.0.0.1:1/0")


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--appendonly", "no"), "set appendonly yes and appendfsync always in redis.conf"),
        (("--appendonly", "yes", "--appendfsync", "no"), "appendfsync"),
        ((*redis.SAFE, "--maxmemory-policy", "allkeys-lru"), "set maxmemory-policy noeviction"),
        ((*redis.SAFE, "--replicaof", "127.0.0.1 1"), "is a read-only replica"),
        ((*redis.SAFE, "--requirepass", "other"), "refuses the user name or the password"),
    ],
)
async def test_an_unsafe_server_is_refused(tmp_path: Path, options: Sequence[str], why: str) -> None:
    with redis.own_redis(tmp_path / "r", options) as server:
        assert why in await problem(server.address.replace("//", f"//:{SECRET}@") if "pass" in why else server.address)


async def test_a_missing_password_and_a_missing_database(tmp_path: Path) -> None:
    with redis.own_redis(tmp_path / "r", (*redis.SAFE, "--requirepass", SECRET)) as server:
        assert "requires a password" in await problem(server.address)
        right = f"redis://:{SECRET}@127.0.0.1:{server.port}"
        assert "has no database of that number" in await problem(f"{right}/99")
        async with connect(read_address(f"{right}/2")):
            pass


async def test_a_server_without_tls(server: redis.OwnRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_server, "SERVER_ANSWER_S", 0.5)
    said = await problem(server.address.replace("redis:", "rediss:"))
    assert "TLS" in said or "does not answer" in said


def openssl(folder: Path, words: str) -> None:
    subprocess.run(["openssl", *words.split()], cwd=folder, check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl to make an authority with")
async def test_tls_with_a_private_authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not redis.has_tls():
        pytest.skip("this server was built without TLS")
    new_key = "-newkey rsa:2048 -nodes -subj"
    (tmp_path / "names").write_text("subjectAltName=IP:127.0.0.1")
    for words in (
        f"req -x509 -days 2 {new_key} /CN=ours -keyout ca.key -out ca.pem",
        f"req {new_key} /CN=redis -keyout key.pem -out request.pem",
        "x509 -req -in request.pem -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out cert.pem",
    ):
        openssl(tmp_path, words)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    files = {"cert-file": "cert.pem", "key-file": "key.pem", "ca-cert-file": "ca.pem"}
    options = [word for name, file in files.items() for word in (f"--tls-{name}", str(tmp_path / file))]
    options += ["--tls-port", str(port), "--tls-auth-clients", "no"]
    with redis.own_redis(tmp_path / "r", (*redis.SAFE, *options)):
        address = read_address(f"rediss://127.0.0.1:{port}/0")
        assert "has a TLS certificate that is not trusted; name" in await problem(address)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        async with connect(address) as connection:
            assert await connection.ask((b"PING",)) == [b"PONG"]


HELLO = b"%3\r\n+version\r\n+7.2.0\r\n+proto\r\n:3\r\n+id\r\n:1\r\n"
ENDLESS = b"$1000000000000\r\n"


@asynccontextmanager
async def answering(**answers: bytes) -> AsyncIterator[str]:
    """Serve these answers to commands, and OK to all others. Yield the address."""

    async def answer(peer: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            async for data in peer:
                for command in re.findall(rb"\*\d+\r\n\$\d+\r\n([A-Za-z]+)", data):
                    found = {"HELLO": HELLO, **answers}.get(command.decode().upper(), b"+OK\r\n")
                    await peer.send_all(found)
                    while found == ENDLESS:
                        await peer.send_all(b"x" * (1 << 16))

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, answer, 0, host="127.0.0.1"))
        yield f"redis://127.0.0.1:{listener.socket.getsockname()[1]}/0"
        nursery.cancel_scope.cancel()


def info(about: str) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(about), about.encode())


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (info("redis_version:6.2.14"), "is 6.2.14, and sessions need 7.0 or newer; update it"),
        (info("redis_version:7.0.15\r\nloading:1\r\naof_enabled:0"), "is still reading its data"),
        (ENDLESS, "does not answer"),
    ],
    ids=["too old", "loading", "endless"],
)
async def test_answers_of_a_server(answer: bytes, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_connection, "MAX_SERVER_ANSWER", 1 << 20)
    async with answering(INFO=answer) as address:
        assert why in await problem(address)


async def test_changes_must_be_on_the_disk() -> None:
    about = info("redis_version:7.2.0\r\nrole:master\r\naof_enabled:1")
    syncs = b"%1\r\n+appendfsync\r\n+everysec\r\n"
    answers = {"INFO": about, "CONFIG": syncs, "EVAL": b"*1\r\n+ok\r\n", "WAITAOF": b"*2\r\n:0\r\n:0\r\n"}
    async with answering(**answers) as address, connect(read_address(address)) as connection:
        with pytest.raises(Unreachable, match="does not write its changes to disk in time"):
            await connection.run(scripts.CREATE, "one", "/")


@pytest.mark.parametrize("program", redis.PROGRAMS)
async def test_a_server_that_syncs_each_second(tmp_path: Path, program: str) -> None:
    with redis.own_redis(tmp_path / "r", ("--appendonly", "yes", "--appendfsync", "everysec"), program) as server:
        if b"ERR" in server.command("WAITAOF", "0", "0", "1"):
            assert "may lose the last second" in await problem(server.address)
            return
        store = RedisStore(server.address, lease_s=1.0)
        async with store.open_new(HERE) as held:
            await record(held.journal)
            server.kill()  # at once: an acknowledged record survives
        server.start()
        assert rows_of(store, held.journal.id) == 1


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("commands", "why"),
    [
        ([("CONFIG", "SET", "maxmemory", "1")], "has no memory left"),
        ([("REPLICAOF", "127.0.0.1", "1")], "is a read-only replica"),
        ([("DEL", "JOURNAL"), ("SET", "JOURNAL", "x")], "has keys of another program under the names of chain"),
        ([("CONFIG", "SET", "appendfsync", "no")], "may lose the last second in a crash"),
        ([("CONFIG", "SET", "appendonly", "no")], redis_server.HOW_TO_BE_SAFE),
        ([("HSET", "META", "token", "another")], "another process has taken over the session"),
    ],
)
async def test_a_server_that_changes_during_a_session(
    server: redis.OwnRedis, commands: Sequence[Sequence[str]], why: str
) -> None:
    if "appendfsync" in commands[0] and b"ERR" not in server.command("WAITAOF", "0", "0", "1"):
        pytest.skip("each change waits for the disk")
    async with RedisStore(server.address, lease_s=3.0).open_new(HERE) as held:
        await record(held.journal)
        keys = {part.upper(): scripts.key(held.journal.id, part) for part in ("journal", "meta")}
        for command in commands:
            server.command(*(keys.get(word, word) for word in command))
        await record(held.journal, records.Line("L1", "x" * 1000, "redirect", "next", "main"))
        assert why in str(held.journal.failure)


# ------------------------------------------------------------------------------------------ outages and lost answers


async def test_cancelled_waits_leave_no_connections(server: redis.OwnRedis, connection: RedisServer) -> None:
    for _ in range(20):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(connection.ask, (b"BLPOP", b"nothing", 60), wait_s=60))
                await until_info(server, "clients", b"blocked_clients:1")
                scope.cancel()
        assert await connection.ask((b"PING",)) == [b"PONG"]
    await until_info(server, "clients", b"blocked_clients:0")
    assert int(server.command("INFO", "clients").partition(b"connected_clients:")[2].partition(b"\r")[0]) < 5


async def test_blocking_methods_have_a_timeout(
    server: redis.OwnRedis, store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_store, "IN_LOOP_S", 1.0)
    await trio.to_thread.run_sync(store.check)  # imports the library before the clock counts
    assert store.summaries() == []
    monkeypatch.setattr(redis_server, "SERVER_ANSWER_S", 1e6)
    server.signal(signal.SIGSTOP)
    with pytest.raises(SessionError, match="did not answer in time"):
        store.summaries()


async def test_records_are_written_after_a_short_outage(server: redis.OwnRedis, store: RedisStore) -> None:
    async with store.open_new(HERE) as held:
        await record(held.journal)
        server.kill()
        held.journal.record(records.Model("other"))
        server.start()
        await held.journal.sync()
        assert held.journal.failure is None
    assert rows_of(store, held.journal.id) == 2


async def test_records_wait_for_replicas(server: redis.OwnRedis, store: RedisStore) -> None:
    async with store.open_new(HERE) as held:
        server.command("CONFIG", "SET", "min-replicas-to-write", "1")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(record, held.journal)
            await until_info(server, "errorstats", b"errorstat_NOREPLICAS")
            server.command("CONFIG", "SET", "min-replicas-to-write", "0")
        assert held.journal.failure is None


async def test_sessions_are_held_until_the_lease_ends(server: redis.OwnRedis) -> None:
    start = trio.current_time()
    async with RedisStore(server.address, lease_s=2.0).open_new(HERE) as held:
        await record(held.journal)
        server.kill()
        await record(held.journal, records.Model("other"))
        assert held.journal.failure is not None
        assert trio.current_time() - start > 1.0


async def test_releasing_stops_when_the_lease_ends(server: redis.OwnRedis) -> None:
    store = RedisStore(server.address, lease_s=0.5)
    async with store.connect() as connection:
        id = await store.create(connection, "/")
        await submit(store, connection, id)
        lease = await store.claim_for_worker(connection, id)
        assert lease is not None
        async with hold_lease(lease):
            server.kill()
        assert not lease.was_released


async def test_a_claim_survives_a_lost_answer(
    server: redis.OwnRedis, store: RedisStore, connection: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = await store.create(connection, "/")
    await submit(store, connection, id)
    run, runs = connection.run, 0

    async def lose_first_answer(*arguments: Any) -> list[bytes]:
        nonlocal runs
        runs += 1
        answer = await run(*arguments)
        if runs == 1:
            raise Unreachable("lost")
        return answer

    monkeypatch.setattr(connection, "run", lose_first_answer)
    lease = await claim(connection, id, by_worker=True)
    assert isinstance(lease, Lease)
    assert (lease.has_open_run, lease.takeovers) == (False, 0)


async def test_events_continue_after_a_failover(server: redis.OwnRedis, store: RedisStore) -> None:
    async with store.open_new(HERE) as held:
        said = list[str]()
        opened = watched(server, held.journal.id, say=said.append)
        async with opened as session, aclosing(session.events()) as events:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(events.__anext__)
                await until_info(server, "clients", b"blocked_clients:1")
                server.command("REPLICAOF", "127.0.0.1", "1")
                server.command("REPLICAOF", "NO", "ONE")
                lease_of(held.journal).publish(NOTICE, "notice")
            lease_of(held.journal).publish(NOTICE, "notice")
            assert (await anext(events))["message"] == "hello"
    assert "cannot carry out a command at the moment" in said[1]
    assert said[2].endswith("answers again")


async def test_a_clock_that_was_set_back(server: redis.OwnRedis, store: RedisStore, connection: RedisServer) -> None:
    """As after a failover to a server whose clock is an hour behind."""
    id = await store.create(connection, "/")
    await submit(store, connection, id)
    assert await store.claim_for_worker(connection, id) is not None
    later = str(int(server.command("ZSCORE", scripts.DUE, id).split()[1]) + 3_600_000)
    server.command("HSET", scripts.key(id, "meta"), "until", later)
    server.command("ZADD", scripts.DUE, later, id)
    assert await store.due_sessions(connection) == [id]
    assert await store.claim_for_worker(connection, id) is not None
    server.command("HSET", scripts.key(id, "meta"), "until", later)
    server.command("ZREM", scripts.DUE, id)
    assert await store.active_sessions(connection, [id]) == []


@pytest.mark.parametrize("needs_password", [False, True])
async def test_an_unknown_outcome_is_reported(
    needs_password: bool, server: redis.OwnRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server stops while a line is sent, and then either continues, or restarts with a password."""
    monkeypatch.setattr(redis_server, "SERVER_ANSWER_S", 0.3)
    said, heard, failures = list[str](), trio.Event(), list[str]()

    def say(text: str) -> None:
        said.append(text)
        heard.set()

    async def send(session: RemoteSession) -> None:
        try:
            await session.send("hello")
        except SessionError as error:
            failures.append(str(error))

    async with watched(server, workspace=tmp_path, say=say) as session, trio.open_nursery() as nursery:
        server.signal(signal.SIGSTOP)
        nursery.start_soon(send, session)
        await heard.wait()
        if needs_password:
            server.kill()
            server.options += ("--requirepass", "secret")
            server.start()
        server.signal(signal.SIGCONT)
    assert "the line may have been accepted; retrying" in said[0]
    if needs_password:
        assert re.search("requires a password.*the line may have been accepted before", failures[0])
    else:
        assert b":1\r\n" in server.command("XLEN", scripts.key(session.id, "lines")), "it was sent once"


# --------------------------------------------------------------------------------------- scripts and stored sessions


async def test_due_sessions_of_a_folder(
    server: redis.OwnRedis, store: RedisStore, connection: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_store, "MAX_DUE", 2)
    ids = []
    for n, where in enumerate(["/", "/", "/", "/mine"]):
        ids.append(id := await store.create(connection, where))
        server.command("ZADD", scripts.DUE, str(n), id)
    assert await store.due_sessions(connection, only="/mine") == ids[3:]
    assert sorted(await store.due_sessions(connection)) == sorted(ids[:2])


async def test_a_session_to_retry_is_claimed_later(
    server: redis.OwnRedis, store: RedisStore, connection: RedisServer
) -> None:
    id = await store.create(connection, "/")
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
        await record(second.journal)
        assert second.journal.failure is None


async def test_a_repeated_change_is_written_again(
    server: redis.OwnRedis, store: RedisStore, connection: RedisServer
) -> None:
    """WAITAOF waits only for changes of its own connection."""
    id = await store.create(connection, "/")
    assert await connection.run(scripts.CLAIM, id, *CLAIM)
    changes = [changes_of(server)]
    for _ in range(2):
        assert await submit(store, connection, id) == "queued"
        changes.append(changes_of(server))
    for _ in range(2):
        assert await connection.run(scripts.APPEND, id, "t", 1, "", *ROW) == [b"ok"]
        changes.append(changes_of(server))
    assert len(set(changes)) == 5, changes


def changes_of(server: redis.OwnRedis) -> int:
    about = server.command("INFO", "persistence")
    return int(about.partition(b"rdb_changes_since_last_save:")[2].partition(b"\r")[0])


async def test_groups_are_written_once_without_gaps(
    server: redis.OwnRedis, store: RedisStore, connection: RedisServer
) -> None:
    id = await store.create(connection, "/")
    assert await connection.run(scripts.CLAIM, id, *CLAIM)
    for number, said in [(1, b"ok"), (1, b"ok"), (3, b"fenced"), (2, b"ok")]:
        assert await connection.run(scripts.APPEND, id, "t", number, "", *ROW) == [said]
    assert b":2\r\n" in server.command("XLEN", scripts.key(id, "journal"))


async def test_a_release_may_be_repeated(server: redis.OwnRedis, store: RedisStore, connection: RedisServer) -> None:
    id = await store.create(connection, "/")
    assert await connection.run(scripts.CLAIM, id, *CLAIM)
    for _ in range(2):
        assert await connection.run(scripts.RELEASE, id, "t", "done") == [b"ok"]
    store.delete(id)
    assert await connection.run(scripts.RELEASE, id, "t", "done") == [b"ok"]
    assert server.command("KEYS", "*") == b"*0\r\n"


async def test_waiting_lines_need_a_worker_after_their_holder(
    server: redis.OwnRedis, store: RedisStore, connection: RedisServer
) -> None:
    id = await store.create(connection, "/")
    assert await connection.run(scripts.CLAIM, id, *CLAIM)
    assert await connection.run(scripts.APPEND, id, "t", 1, 2, *ROW) == [b"ok"]
    assert await connection.run(scripts.RENEW, id, "t", 10_000) == [b"ok"]
    assert server.command("ZSCORE", scripts.DUE, id).startswith(b"$13")
    assert await connection.run(scripts.RELEASE, id, "t", "done") == [b"ok"]
    assert await store.due_sessions(connection) == [id]


async def test_the_room_for_rows(server: redis.OwnRedis, store: RedisStore, connection: RedisServer) -> None:
    id = await store.create(connection, "/")
    assert await store.claim_for_worker(connection, id) is None
    assert await connection.run(scripts.CLAIM, id, *CLAIM)
    server.command("HSET", scripts.key(id, "meta"), "size", "2")
    for n in range(5):
        assert await submit(store, connection, id, f"h{n}", type="hello", for_s=1.0, needs_room=False) == "queued"
    assert server.command("HLEN", scripts.key(id, "ids")) == b":0\r\n"
    assert [await submit(store, connection, id, f"l{n}") for n in range(3)] == ["queued", "queued", "refused"]
    most = scripts.MAX_WAITING_ROWS - 7
    said = [await submit(store, connection, id, f"s{n}", text="stop", needs_room=False) for n in range(most + 1)]
    assert said == ["queued"] * most + ["refused"]


async def test_a_watcher_starts_with_the_latest_run(server: redis.OwnRedis, store: RedisStore) -> None:
    async with store.open_new(HERE) as held:
        published = [("init", "0"), ("run_started", "A"), *[("notice", "x")] * 1_200]
        published += [("init", "1"), ("run_started", "B"), ("notice", "y"), ("init", "2")]
        for type, message in published:
            lease_of(held.journal).publish(json.dumps({"type": type, "message": message}), type)
        await lease_of(held.journal).sync()
        async with watched(server, held.journal.id) as session, aclosing(session.events()) as events:
            assert [(await anext(events))["message"] for _ in range(4)] == ["1", "B", "y", "2"]


async def test_the_stored_events_are_limited(
    server: redis.OwnRedis, store: RedisStore, connection: RedisServer
) -> None:
    said = list[str]()
    event = json.dumps({"type": "notice", "message": "x" * 1000})
    async with store.open_new(HERE) as held:
        lease, id = lease_of(held.journal), held.journal.id
        lease.publish(event, "notice")
        await lease.sync()
        async with watched(server, id, say=said.append) as session, aclosing(session.events()) as events:
            await anext(events)
            for _ in range(2 * scripts.MAX_EVENT_BYTES // len(event)):
                lease.publish(event, "notice")
            await lease.sync()
            await anext(events)
            assert said[1:] == [MISSED.format(id=session.id)]
        sizes, after = list[int](), "0"
        while found := await store.events(connection, id, after, wait_s=0.01):
            sizes += [each.until - each.before for each in found]
            after = found[-1].place
    assert scripts.MAX_EVENT_BYTES < sum(sizes) <= scripts.MAX_EVENT_BYTES + len(event)


async def test_summaries_follow_the_journal(server: redis.OwnRedis, store: RedisStore) -> None:
    async with store.open_new(HERE) as held:
        for n in (1, 2):
            await record(held.journal, records.Line(f"L{n}", "x", "redirect", "next", "main"))
            for _ in range(2):
                found = await trio.to_thread.run_sync(store.find, held.journal.id)
                assert (found.open_lines, found.is_open) == (("L1", "L2")[:n], True)
    for _ in range(2):
        assert not (await trio.to_thread.run_sync(store.find, held.journal.id)).is_open
    assert b"L2" in server.command("HGET", scripts.key(held.journal.id, "meta"), "summary")


async def test_attachments_may_exceed_one_answer(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_connection, "MAX_SERVER_ANSWER", 1 << 20)
    images = [Image("image/png", str(n) * 64, f"{n}.png") for n in range(4)]
    async with store.open_new(HERE) as held:
        for image in images:
            lease_of(held.journal).store_attachment(image.digest, b"x" * 400_000)
        session = records.Session(held.journal.id, "1", "m", "/")
        await record(held.journal, session, records.Message(Message("user", tuple(images)), "main", ""))
    async with store.resume(held.journal.id) as again:
        (message,) = again.state.main.history.conversation.messages
    assert [len(image.data) > 400_000 for image in message.images] == [True] * 4


async def test_old_sessions_without_work_are_deleted(
    server: redis.OwnRedis, store: RedisStore, connection: RedisServer
) -> None:
    old, due, new = [await store.create(connection, "/") for _ in range(3)]
    await submit(store, connection, due)
    for id in (old, due):
        server.command("ZADD", scripts.SESSIONS, "1000", id)
    async with store.resume(new):
        await store.delete_old(connection, 3600)
    assert {each.id for each in await trio.to_thread.run_sync(store.summaries)} == {due, new}
