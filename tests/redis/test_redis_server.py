"""What is wrong with a server, or with its address, is said in one sentence, before anything is lost."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, suppress
from functools import partial
from pathlib import Path

import pytest
import trio
from support import redis

from chain.app.remote import MISSED, RemoteSession, remote_session
from chain.errors import SessionError
from chain.journal import records
from chain.redis import bounded_connection, redis_server, redis_store, scripts
from chain.redis.lease import Lease, hold_lease
from chain.redis.redis_server import RedisAddress, RedisServer, connected, read_address
from chain.redis.redis_store import RedisStore

pytestmark = [pytest.mark.slow, *redis.MARKS]

SECRET = "hush-hush"


async def submit(store: RedisStore, link: RedisServer, id: str) -> None:
    """Send a line to a session."""
    await store.submit(link, id, {"id": "one", "type": "line", "text": "x"}, needs_room=True)


def test_an_address_is_shown_without_credentials() -> None:
    found = read_address(f"rediss://me:{SECRET}%40@db.example:7000/3")
    assert (found.username, found.password, found.is_tls) == ("me", f"{SECRET}@", True)
    assert str(found) == "rediss://db.example:7000/3"
    assert SECRET not in f"{found!r} {found}"


@pytest.mark.parametrize(
    "wrong", ["", "/a/folder", "http://host/0", "redis://", "redis://h:port/0", "redis://h/x", "redis://h/0?a=b"]
)
def test_what_is_no_address_is_refused_without_being_shown(wrong: str) -> None:
    with pytest.raises(SessionError, match="is not the address of a Redis; write redis://") as raised:
        read_address(wrong.replace("redis://", f"redis://u:{SECRET}@"))
    assert SECRET not in str(raised.value)


async def problem(address: RedisAddress) -> str:
    with pytest.raises(SessionError) as raised:
        async with connected(address):
            pytest.fail("it was connected")
    said = str(raised.value)
    assert len(said.splitlines()) == 1
    assert SECRET not in said
    return said


def test_who_keeps_sessions_in_a_folder_imports_nothing_of_this(tmp_path: Path) -> None:
    program = """
import sys
from cli.main import main
assert main(["-p", "hello", "--model", "offline", "--no-stdin"]) == 0
assert main(["sessions"]) == 0
assert not [name for name in sys.modules if "coredis" in name or name.startswith("chain.redis")]
"""
    environ = {**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    environ.pop("CHAIN_STATE", None)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    assert (done.returncode, done.stderr[-2000:]) == (0, done.stderr[-2000:])


async def test_no_server() -> None:
    assert "does not answer; is it running" in await problem(read_address("redis://127.0.0.1:1/0"))


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
async def test_a_server_that_cannot_keep_sessions(tmp_path: Path, options: Sequence[str], why: str) -> None:
    with redis.own_redis(tmp_path / "r", options) as server:
        assert why in await problem(
            read_address(f"redis://:{SECRET}@127.0.0.1:{server.port}/0" if "pass" in why else server.address)
        )


async def test_a_password_that_is_missing_and_a_database_that_is_not_there(tmp_path: Path) -> None:
    with redis.own_redis(tmp_path / "r", (*redis.SAFE, "--requirepass", SECRET)) as server:
        assert "requires a password" in await problem(read_address(server.address))
        right = f"redis://:{SECRET}@127.0.0.1:{server.port}"
        assert "has no database of that number" in await problem(read_address(f"{right}/99"))
        async with connected(read_address(f"{right}/2")):
            pass


async def test_tls_that_is_not_there(server: redis.OwnRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_server, "SERVER_ANSWER_S", 0.5)
    said = await problem(read_address(server.address.replace("redis:", "rediss:")))
    assert "TLS" in said or "does not answer" in said


def openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl to make an authority with")
async def test_tls_is_trusted_by_the_certificate_of_an_own_authority_and_not_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not redis.has_tls():
        pytest.skip("this server was built without TLS")
    new_key = ("-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj")
    openssl(tmp_path, "req", "-x509", *new_key, "/CN=ours", "-keyout", "ca.key", "-out", "ca.pem")
    openssl(tmp_path, "req", *new_key[:3], "-subj", "/CN=redis", "-keyout", "key.pem", "-out", "request.pem")
    (tmp_path / "names").write_text("subjectAltName=IP:127.0.0.1")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
    openssl(tmp_path, "x509", "-req", "-in", "request.pem", *signed, "-out", "cert.pem")
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
        async with connected(address) as link:
            assert await link.ask((b"PING",)) == [b"PONG"]


@pytest.mark.parametrize(
    ("about", "why"),
    [
        ("redis_version:6.2.14", "is 6.2.14, and sessions need 7.0 or newer; update it"),
        # Until then it says that it keeps no append-only file.
        ("redis_version:7.0.15\r\nloading:1\r\naof_enabled:0", "is still reading its data"),
    ],
)
async def test_a_server_that_is_too_old_or_just_starts(about: str, why: str) -> None:
    info = f"role:master\r\n{about}\r\n".encode()
    hello = b"%3\r\n+version\r\n+6.2.14\r\n+proto\r\n:3\r\n+id\r\n:1\r\n"

    async def answer(peer: trio.SocketStream) -> None:
        async for data in peer:
            for command in re.findall(rb"\*\d+\r\n\$\d+\r\n([A-Za-z]+)", data):
                answers = {b"HELLO": hello, b"INFO": b"$%d\r\n%s\r\n" % (len(info), info)}
                with suppress(trio.BrokenResourceError):
                    await peer.send_all(answers.get(command.upper(), b"+OK\r\n"))

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, answer, 0, host="127.0.0.1"))
        port = listener.socket.getsockname()[1]
        assert why in await problem(read_address(f"redis://127.0.0.1:{port}/0"))
        nursery.cancel_scope.cancel()


async def test_waits_that_are_cancelled_leave_no_connections_behind(server: redis.OwnRedis, link: RedisServer) -> None:
    for _ in range(20):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(link.ask, (b"BLPOP", b"nothing", 60), wait_s=60))
                while b"blocked_clients:1" not in server.command("INFO", "clients"):
                    await trio.lowlevel.checkpoint()
                scope.cancel()
        assert await link.ask((b"PING",)) == [b"PONG"]
    while b"blocked_clients:0" not in server.command("INFO", "clients"):
        await trio.lowlevel.checkpoint()
    assert int(server.command("INFO", "clients").partition(b"connected_clients:")[2].partition(b"\r")[0]) < 5


async def test_who_asks_in_a_loop_is_not_held_up_for_long_by_a_server_that_stalls(
    server: redis.OwnRedis, store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_store, "IN_LOOP_S", 1.0)
    await trio.to_thread.run_sync(store.check)  # the import of the library is not part of it
    assert store.summaries() == []
    monkeypatch.setattr(redis_server, "SERVER_ANSWER_S", 1e6)
    server.signal(signal.SIGSTOP)
    with pytest.raises(SessionError, match="did not answer in time"):
        store.summaries()


@pytest.mark.parametrize("program", redis.PROGRAMS)
async def test_a_server_that_syncs_each_second_is_waited_for_if_it_has_waitaof_and_else_refused(
    tmp_path: Path, program: str
) -> None:
    with redis.own_redis(tmp_path / "r", ("--appendonly", "yes", "--appendfsync", "everysec"), program) as server:
        if b"ERR" in server.command("WAITAOF", "0", "0", "1"):
            assert "may lose the last second" in await problem(read_address(server.address))
            return
        store = RedisStore(server.address, lease_s=1.0)
        async with store.open_new(Path("/")) as held:
            held.journal.record(records.Session(held.journal.id, "1", "m", "/"))
            await held.journal.sync()
            assert held.journal.failure is None
            server.kill()  # at once: what was written is there
        server.start()
        with store.rows(held.journal.id) as rows:
            assert len(list(rows)) == 1


async def recorded(store: RedisStore, spoil: Callable[[str], object]) -> str | None:
    """Why a session could not be written to when something had been done to its server."""
    async with store.open_new(Path("/")) as held:
        held.journal.record(records.Session(held.journal.id, "1", "m", "/"))
        await held.journal.sync()
        assert held.journal.failure is None
        spoil(held.journal.id)
        held.journal.record(records.Line("L1", "x" * 1000, "redirect", "next", "main"))
        await held.journal.sync()
        return held.journal.failure


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
async def test_a_server_that_changes_while_a_session_is_open(
    server: redis.OwnRedis, monkeypatch: pytest.MonkeyPatch, commands: Sequence[Sequence[str]], why: str
) -> None:
    if "appendfsync" in commands[0] and b"ERR" not in server.command("WAITAOF", "0", "0", "1"):
        pytest.skip("it is asked to wait for the disk")

    def spoil(id: str) -> None:
        keys = {part.upper(): scripts.key(id, part) for part in ("journal", "meta")}
        for command in commands:
            server.command(*(keys.get(word, word) for word in command))

    found = await recorded(RedisStore(server.address, lease_s=3.0), spoil)
    assert found is not None
    assert why in found
    assert SECRET not in found


async def test_a_worker_finds_sessions_of_its_folder_behind_those_of_others(
    server: redis.OwnRedis, store: RedisStore, link: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_store, "MAX_DUE", 2)
    ids = []
    for n, where in enumerate(["/", "/", "/", "/mine"]):
        ids.append(id := await store.create(link, where))
        server.command("ZADD", scripts.DUE, str(n), id)
    assert await store.due(link, only="/mine") == ids[3:]
    assert sorted(await store.due(link)) == sorted(ids[:2])


async def test_a_session_that_is_to_be_tried_again_later_is_not_claimed_before(
    server: redis.OwnRedis, store: RedisStore, link: RedisServer
) -> None:
    id = await store.create(link, "/")
    await submit(store, link, id)
    lease = await store.claim_for_worker(link, id)
    assert lease is not None
    lease.release_mode = "retry"
    await lease.release()
    assert await store.claim_for_worker(link, id) is None
    assert await store.due(link) == []
    server.command("ZADD", scripts.DUE, "1", id)
    assert await store.claim_for_worker(link, id) is not None


async def test_sessions_of_one_store_do_not_end_each_other(store: RedisStore, tmp_path: Path) -> None:
    async with AsyncExitStack() as first, store.open_new(tmp_path) as second:
        await first.enter_async_context(store.open_new(tmp_path))
        await first.aclose()
        second.journal.record(records.Session(second.journal.id, "1", "m", "/"))
        await second.journal.sync()
        assert second.journal.failure is None


async def test_what_is_sent_again_is_changed_again_so_that_its_safety_is_waited_for(
    server: redis.OwnRedis, store: RedisStore, link: RedisServer
) -> None:
    """WAITAOF looks at what the same connection has changed: where that is nothing, it does not wait."""
    id = await store.create(link, "/")
    assert await link.run(scripts.CLAIM, id, "t", 10_000, 0)
    row = {"id": "one", "type": "line", "text": "x"}
    changes = [changes_of(server)]
    for _ in range(2):
        assert (await store.submit(link, id, row, needs_room=True)).state == "queued"
        changes.append(changes_of(server))
    for _ in range(2):
        assert await link.run(scripts.APPEND, id, "t", 1, "", "row", "{}", "") == [b"ok"]
        changes.append(changes_of(server))
    assert len(set(changes)) == 5, changes


def changes_of(server: redis.OwnRedis) -> int:
    about = server.command("INFO", "persistence")
    return int(about.partition(b"rdb_changes_since_last_save:")[2].partition(b"\r")[0])


async def test_replicas_that_lag_behind_are_waited_for(server: redis.OwnRedis, tmp_path: Path) -> None:
    async with RedisStore(server.address).open_new(tmp_path) as held:
        server.command("CONFIG", "SET", "min-replicas-to-write", "1")
        held.journal.record(records.Session(held.journal.id, "1", "m", "/"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(held.journal.sync)
            while not server.command("INFO", "errorstats").count(b"errorstat_NOREPLICAS"):
                await trio.lowlevel.checkpoint()
            server.command("CONFIG", "SET", "min-replicas-to-write", "0")
        assert held.journal.failure is None


async def test_who_watches_and_who_sends_go_on_after_a_failover(
    server: redis.OwnRedis, store: RedisStore, tmp_path: Path
) -> None:
    event = json.dumps({"type": "notice", "message": "hello"})
    async with store.open_new(tmp_path) as held:
        lease = held.journal._file
        assert isinstance(lease, Lease)
        said = list[str]()
        opened = reached(server, held.journal.id, say=said.append)
        async with opened as session, aclosing(session.events()) as events:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(events.__anext__)
                while not server.command("INFO", "clients").count(b"blocked_clients:1"):
                    await trio.lowlevel.checkpoint()
                server.command("REPLICAOF", "127.0.0.1", "1")
                server.command("REPLICAOF", "NO", "ONE")
                lease.publish(event, "notice")
            lease.publish(event, "notice")
            assert (await anext(events))["message"] == "hello"
    assert "cannot carry out a command at the moment" in said[1]
    assert said[2].endswith("answers again")


async def test_a_line_of_which_nothing_is_known_is_not_said_to_be_refused(
    server: redis.OwnRedis, tmp_path: Path
) -> None:
    said, heard = list[str](), trio.Event()

    def say(what: str) -> None:
        said.append(what)
        heard.set()

    async with reached(server, is_new=True, workspace=tmp_path, say=say) as session:

        async def send() -> None:
            with pytest.raises(SessionError, match=r"requires a password.*the line may have been accepted before"):
                await session.send("hello")

        server.kill()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await heard.wait()
            server.options += ("--requirepass", "secret")
            server.start()


async def test_who_watches_begins_with_the_latest_run_and_who_began_it(
    server: redis.OwnRedis, store: RedisStore, tmp_path: Path
) -> None:
    async with store.open_new(tmp_path) as held:
        lease = held.journal._file
        assert isinstance(lease, Lease)
        told = [
            ("init", "0"),
            ("run_started", "A"),
            *[("notice", "x")] * 1_200,
            ("init", "1"),
            ("run_started", "B"),
        ]
        for type, message in [*told, ("notice", "y"), ("init", "2")]:
            lease.publish(json.dumps({"type": type, "message": message}), type)
        await lease.sync()
        async with reached(server, held.journal.id) as session, aclosing(session.events()) as events:
            seen = [(await anext(events))["message"] for _ in range(4)]
    assert seen == ["1", "B", "y", "2"]


async def test_a_session_that_was_given_back_and_whose_answer_was_lost_was_given_back(
    server: redis.OwnRedis, store: RedisStore, link: RedisServer
) -> None:
    id = await store.create(link, "/")
    assert await link.run(scripts.CLAIM, id, "t", 10_000, 0)
    for _ in range(2):
        assert await link.run(scripts.RELEASE, id, "t", "done") == [b"ok"]
    store.delete(id)
    assert await link.run(scripts.RELEASE, id, "t", "done") == [b"ok"]
    assert server.command("KEYS", "*") == b"*0\r\n"


async def test_what_needs_no_room_has_a_bound_too(store: RedisStore, link: RedisServer) -> None:
    id = await store.create(link, "/")
    said = [
        (await store.submit(link, id, {"id": f"s{n}", "type": "line", "text": "stop"}, needs_room=False)).state
        for n in range(scripts.MAX_WAITING_ROWS + 1)
    ]
    assert said == ["queued"] * scripts.MAX_WAITING_ROWS + ["refused"]


def reached(
    server: redis.OwnRedis,
    id: str = "",
    *,
    is_new: bool = False,
    workspace: Path = Path("/"),
    say: Callable[[str], object] = lambda what: None,
) -> AbstractAsyncContextManager[RemoteSession]:
    return remote_session(server.address, id=id, workspace=workspace, is_new=is_new, say=say)


async def test_lines_that_wait_are_wanted_by_a_worker_when_another_process_dies_or_goes(
    server: redis.OwnRedis, store: RedisStore, link: RedisServer
) -> None:
    id = await store.create(link, "/")
    assert await link.run(scripts.CLAIM, id, "t", 10_000, 0)
    assert await link.run(scripts.APPEND, id, "t", 1, 2, "row", "{}", "") == [b"ok"]
    assert await link.run(scripts.RENEW, id, "t", 10_000) == [b"ok"]
    assert server.command("ZSCORE", scripts.DUE, id).startswith(b"$13")
    assert await link.run(scripts.RELEASE, id, "t", "done") == [b"ok"]
    assert await store.due(link) == [id]


async def test_only_lines_fill_the_inbox_and_a_hello_leaves_nothing(
    server: redis.OwnRedis, store: RedisStore, link: RedisServer
) -> None:
    id = await store.create(link, "/")
    assert await store.claim_for_worker(link, id) is None
    assert await link.run(scripts.CLAIM, id, "t", 10_000, 0)
    server.command("HSET", scripts.key(id, "meta"), "size", "2")
    for n in range(5):
        hello = {"id": f"h{n}", "type": "hello", "for_s": 1.0}
        assert (await store.submit(link, id, hello, needs_room=False)).state == "queued"
    assert server.command("HLEN", scripts.key(id, "ids")) == b":0\r\n"
    said = [
        (await store.submit(link, id, {"id": f"l{n}", "type": "line", "text": "x"}, needs_room=True)).state
        for n in range(3)
    ]
    assert said == ["queued", "queued", "refused"]


async def test_who_gives_a_session_back_does_not_wait_for_a_server_longer_than_it_holds_it(
    server: redis.OwnRedis,
) -> None:
    store = RedisStore(server.address, lease_s=0.5)
    async with store.connected() as link:
        id = await store.create(link, "/")
        await submit(store, link, id)
        lease = await store.claim_for_worker(link, id)
        assert lease is not None
        async with hold_lease(lease):
            server.kill()
        assert not lease.was_released


async def test_a_summary_is_made_once_for_each_state_of_a_journal(server: redis.OwnRedis, store: RedisStore) -> None:
    async with store.open_new(Path("/")) as held:
        id, said = held.journal.id, []
        for line in ("L1", "L2"):
            held.journal.record(records.Line(line, f"line {line}", "redirect", "next", "main"))
            await held.journal.sync()
            said.append([await trio.to_thread.run_sync(store.find, id) for _ in range(2)])
            assert said[-1][0].is_open
    assert [[each.open_lines for each in pair] for pair in said] == [
        [("L1",)] * 2,
        [("L1", "L2")] * 2,
    ]
    first, again = await trio.to_thread.run_sync(store.find, id), await trio.to_thread.run_sync(store.find, id)
    assert first == again
    assert not again.is_open
    assert b"L2" in server.command("HGET", scripts.key(id, "meta"), "summary")


async def test_who_sends_through_a_stall_hears_that_it_is_not_known_and_the_line_is_sent_once(
    server: redis.OwnRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_server, "SERVER_ANSWER_S", 0.3)
    said: list[str] = []
    heard = trio.Event()

    def say(text: str) -> None:
        said.append(text)
        heard.set()

    async with (
        remote_session(server.address, id="", workspace=tmp_path, is_new=True, say=say) as session,
        trio.open_nursery() as nursery,
    ):
        server.signal(signal.SIGSTOP)
        nursery.start_soon(session.send, "hello")
        await heard.wait()
        server.signal(signal.SIGCONT)
    assert "the line may have been accepted; retrying" in said[0]
    assert b":1\r\n" in server.command("XLEN", scripts.key(session.id, "lines"))


async def test_a_session_is_lost_when_its_lease_may_have_ended_and_no_earlier(server: redis.OwnRedis) -> None:
    begun = trio.current_time()
    async with RedisStore(server.address, lease_s=2.0).open_new(Path("/")) as held:
        held.journal.record(records.Session(held.journal.id, "1", "m", "/"))
        await held.journal.sync()
        server.kill()
        held.journal.record(records.Model("other"))
        await held.journal.sync()
        assert held.journal.failure is not None
        assert trio.current_time() - begun > 1.0


async def test_a_group_is_written_once_and_none_after_a_gap(server: redis.OwnRedis, store: RedisStore) -> None:
    async with store.connected() as link:
        id = await store.create(link, "/")
        assert await link.run(scripts.CLAIM, id, "t", 10_000, 0)
        for number, said in [(1, b"ok"), (1, b"ok"), (3, b"fenced"), (2, b"ok")]:
            assert await link.run(scripts.APPEND, id, "t", number, "", "row", "{}", "") == [said]
    assert b":2\r\n" in server.command("XLEN", scripts.key(id, "journal"))


async def test_what_was_told_is_kept_up_to_a_number_of_bytes_and_who_missed_some_hears_so(
    server: redis.OwnRedis, tmp_path: Path
) -> None:
    store, said = RedisStore(server.address), list[str]()
    event = json.dumps({"type": "notice", "message": "x" * 1000})
    at_once = 2 * scripts.MAX_EVENT_BYTES // len(event)
    async with store.open_new(tmp_path) as held:
        lease = held.journal._file
        assert isinstance(lease, Lease)
        lease.publish(event, "notice")
        await lease.sync()
        async with (
            reached(server, held.journal.id, say=said.append) as session,
            aclosing(session.events()) as events,
        ):
            first = await anext(events)
            for _ in range(at_once):
                lease.publish(event, "notice")
            await lease.sync()
            await anext(events)
            assert first["type"] == "notice"
            assert said[1:] == [MISSED.format(id=session.id)]
        async with store.connected() as link:
            sizes, after = list[int](), "0"
            while found := await store.events(link, held.journal.id, after, wait_s=0.01):
                sizes += [each.until - each.before for each in found]
                after = found[-1].place
    assert scripts.MAX_EVENT_BYTES < sum(sizes) <= scripts.MAX_EVENT_BYTES + len(event)


async def test_a_short_outage_is_waited_for(server: redis.OwnRedis, store: RedisStore) -> None:
    async with store.open_new(Path("/")) as held:
        held.journal.record(records.Session(held.journal.id, "1", "m", "/"))
        await held.journal.sync()
        server.kill()
        held.journal.record(records.Model("other"))
        server.start()
        await held.journal.sync()
        assert held.journal.failure is None
    with store.rows(held.journal.id) as rows:
        assert len(list(rows)) == 2


async def test_old_sessions_are_deleted_and_others_are_kept(server: redis.OwnRedis, store: RedisStore) -> None:
    async with store.connected() as link:
        old, due, new = [await store.create(link, "/") for _ in range(3)]
        await store.submit(link, due, {"id": "one", "type": "line", "text": "x"}, needs_room=True)
        for id in (old, due):
            server.command("ZADD", scripts.SESSIONS, "1000", id)
        async with store.resume(new):
            await store.delete_old(link, 3600)
    left = {each.id for each in await trio.to_thread.run_sync(store.summaries)}
    assert left == {due, new}


async def test_an_answer_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_connection, "MAX_SERVER_ANSWER", 1 << 20)
    received = 0

    async def answer(stream: trio.SocketStream) -> None:
        nonlocal received
        await stream.receive_some()
        with suppress(trio.BrokenResourceError):
            await stream.send_all(b"$1000000000000\r\n")
            while True:
                await stream.send_all(b"x" * (1 << 16))
                received += 1 << 16

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, answer, 0, host="127.0.0.1"))
        port = listener.socket.getsockname()[1]
        with pytest.raises(SessionError, match="does not answer"):
            async with connected(read_address(f"redis://127.0.0.1:{port}/0")):
                pass
        nursery.cancel_scope.cancel()
    assert received < 64 << 20, "with what the buffers of the sockets hold"
