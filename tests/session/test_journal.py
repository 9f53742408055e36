"""The journal runs an action once the records before it are on disk, in order, and reports a disk that fails."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from support.disks import FullDisk, limit_file_size
from trio.testing import wait_all_tasks_blocked

from chain.errors import JournalError, SessionError
from chain.events import Event, Notice
from chain.journal import file as journal_file
from chain.journal.file import DiskFile
from chain.journal.journal import Journal
from chain.journal.records import Model, Unknown
from chain.session import listing
from chain.session.store import FileStore


class Disk(FullDisk):
    """A disk in memory that counts its syncs."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs = 0

    async def sync(self) -> None:
        self.syncs += 1
        await super().sync()

    async def finish_syncs(self) -> None:
        """Let the running syncs end, and block the next ones."""
        await wait_all_tasks_blocked()
        self.release()
        self.hold()
        await wait_all_tasks_blocked()


class Writer:
    """A journal and the names of the actions that it ran, in order. It syncs by itself if there is a ``nursery``."""

    def __init__(self, disk: Disk, nursery: trio.Nursery | None = None) -> None:
        self.journal = Journal(disk, path=Path("/somewhere/s1.jsonl"))
        self.ran: list[str] = []
        if nursery is not None:
            nursery.start_soon(self.journal.run)

    def line(self, name: str) -> None:
        """Record a line and queue its acknowledgement."""
        self.journal.record(Unknown("line", {"id": name}))
        self.journal.acknowledge(partial(self.ran.append, name))

    def event(self, name: str) -> None:
        """Queue an action behind the acknowledgements."""
        self.journal.emit_after_acks(partial(self.ran.append, name))


def rows_of(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(row) for row in data.split(b"\n")[:-1]]


@contextmanager
def open_file(path: Path) -> Iterator[DiskFile]:
    file = DiskFile(path, is_new=not path.exists())
    try:
        yield file
    finally:
        file.close()


# ----------------------------------------------------------------------------------------------------------- records


def test_any_text_is_one_row_of_json() -> None:
    disk = Disk()
    every_character = " ".join(map(chr, [*range(0x10000), 0x10000, 0x10FFFF]))
    text = {"nested": [f"\\\udfff {every_character}", None, True, 5, {}]}

    Journal(disk).record(Unknown("line", {"id": "L1", "text": text}))

    assert len(disk.data.decode().splitlines()) == 1, "also for readers that end rows at U+0085 or U+2028"
    [record] = rows_of(disk.data)
    assert record.pop("time") > 1_600_000_000  # in 2020, in seconds
    assert list(record.items()) == [("type", "line"), ("seq", 1), ("id", "L1"), ("text", text)]


def test_a_write_may_succeed_after_a_failed_one() -> None:
    disk, emitted = Disk(), list[Event]()
    journal = Journal(disk, path=Path("/somewhere/s1.jsonl"))
    journal.connect(lambda entry: [Notice(message=f"{entry.record.type} {entry.seq}")], emitted.append)

    first = journal.record(Model("one"))
    assert emitted == []
    first.emit()
    disk.full = True
    with pytest.raises(JournalError, match=r"cannot be written to /somewhere/s1\.jsonl: No space left on device"):
        journal.record(Model("two"))
    journal.record_if_possible(Model("three")).emit()
    assert journal.failure is None
    disk.full = False
    journal.record_if_possible(Model("four")).emit()

    # The second notice is of "three". A record that was not written has the number of the one before it.
    assert [event.message for event in emitted if isinstance(event, Notice)] == ["model 1", "model 1", "model 2"]
    assert [(row["name"], row["seq"]) for row in rows_of(disk.data)] == [("one", 1), ("four", 2)]


# --------------------------------------------------------------------------------------------------- acknowledgements


async def test_acknowledgements_queued_during_a_sync_share_the_next(nursery: trio.Nursery) -> None:
    disk = Disk()
    disk.hold()
    writer = Writer(disk, nursery)
    writer.line("L1")
    await wait_all_tasks_blocked()
    for name in ("L2", "L3", "L4"):
        writer.line(name)
        writer.event(f"{name} delivered")
    assert writer.ran == []

    await disk.finish_syncs()
    assert writer.ran == ["L1"]
    await disk.finish_syncs()
    assert writer.ran == ["L1", "L2", "L2 delivered", "L3", "L3 delivered", "L4", "L4 delivered"]
    assert disk.syncs == 2


def test_an_event_runs_immediately_without_waiting_lines() -> None:
    writer = Writer(Disk())
    writer.event("reply")
    assert writer.ran == ["reply"]


@pytest.mark.parametrize("fails", [False, True], ids=["disk works", "disk fails"])
async def test_an_action_queued_by_an_action_runs_last(fails: bool, nursery: trio.Nursery) -> None:
    disk = Disk()
    disk.broken = fails
    writer = Writer(disk, nursery)

    writer.line("L1")
    writer.journal.emit_after_acks(lambda: writer.event("queued by an action"))
    writer.event("second")
    with suppress(JournalError):
        await writer.journal.flush()

    assert writer.ran == [*([] if fails else ["L1"]), "second", "queued by an action"]


async def test_a_line_recorded_by_an_action_waits() -> None:
    writer = Writer(Disk())

    def accept() -> None:
        writer.line("L2")
        writer.ran.append("L2 accepted")

    writer.journal.record(Model("one"))
    writer.journal.acknowledge(accept)
    writer.event("waits behind")
    await writer.journal.sync()
    assert writer.ran == ["L2 accepted", "waits behind"]
    await writer.journal.sync()
    assert writer.ran == ["L2 accepted", "waits behind", "L2"]


async def test_a_flush_waits_for_earlier_actions_only(nursery: trio.Nursery) -> None:
    disk = Disk()
    disk.hold()
    writer = Writer(disk, nursery)
    await writer.journal.flush()  # returns, as nothing waits
    writer.line("L1")

    @nursery.start_soon
    async def flush() -> None:
        await writer.journal.flush()
        writer.ran.append("flushed")

    await wait_all_tasks_blocked()
    writer.line("L2")
    await disk.finish_syncs()
    assert writer.ran == ["L1", "flushed"]


async def test_a_flush_can_be_cancelled() -> None:
    writer = Writer(Disk())
    writer.line("L1")
    with trio.CancelScope() as scope:
        scope.cancel()
        await writer.journal.flush()
    assert scope.cancelled_caught


async def test_two_explicit_syncs_acknowledge_only_synced_lines(nursery: trio.Nursery) -> None:
    disk = Disk()
    disk.hold()
    writer = Writer(disk)
    writer.line("L1")
    nursery.start_soon(writer.journal.sync)
    nursery.start_soon(writer.journal.sync)
    await wait_all_tasks_blocked()
    writer.line("L2")
    await disk.finish_syncs()
    assert writer.ran == ["L1"], "L2 was recorded after both syncs had started"

    nursery.start_soon(writer.journal.run)
    await disk.finish_syncs()
    assert writer.ran == ["L1", "L2"]


@pytest.mark.parametrize("is_syncing", [True, False], ids=["during a sync", "without a sync"])
async def test_the_end_syncs_all_records(is_syncing: bool, nursery: trio.Nursery) -> None:
    disk = Disk()
    disk.hold()
    writer = Writer(disk, nursery)
    if is_syncing:
        writer.line("L1")
        await wait_all_tasks_blocked()
    writer.line("L2")
    writer.journal.end()
    await disk.finish_syncs()
    await disk.finish_syncs()
    needed_syncs = 2 if is_syncing else 1
    assert writer.ran == (["L1", "L2"] if is_syncing else ["L2"])
    assert disk.synced == disk.data
    assert disk.syncs == needed_syncs
    assert not nursery.child_tasks
    await writer.journal.sync()
    assert disk.syncs == needed_syncs, "synced data is not synced again"


# The disk works in most examples. The length is drawn first, since lists of no fixed length are mostly short.
a_step = st.sampled_from(["line", "line", "line", "event", "event", "disk", "disk", "disk", "disk fails"])
stories = st.integers(0, 30).flatmap(lambda n: st.lists(a_step, min_size=n, max_size=n))


@given(stories)
def test_actions_run_in_order_and_never_too_early(steps: list[str]) -> None:
    """I6: the record of an acknowledged line is on disk. A failed disk drops acknowledgements, but no event."""

    async def main() -> None:
        disk, ran, acknowledged = Disk(), list[int](), set[int]()
        disk.hold()
        journal = Journal(disk)

        def run(n: int, end_of_record: int) -> None:
            assert len(disk.synced) >= end_of_record
            ran.append(n)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(journal.run)
            for n, step in enumerate(steps):
                if step == "event":
                    journal.emit_after_acks(partial(run, n, 0))
                elif step != "line":
                    disk.broken |= step == "disk fails"
                    await disk.finish_syncs()
                elif journal.failure is None:
                    journal.record(Unknown("line", {"n": n}))
                    acknowledged.add(n)
                    journal.acknowledge(partial(run, n, len(disk.data)))
            for _ in steps:
                await disk.finish_syncs()
            nursery.cancel_scope.cancel()
        assert ran == sorted(ran)
        assert {n for n, step in enumerate(steps) if step == "event"} <= set(ran)
        assert journal.failure is not None or acknowledged <= set(ran)

    trio.run(main)


async def test_after_a_failed_sync_nothing_is_acknowledged(nursery: trio.Nursery) -> None:
    disk = Disk()
    disk.hold()
    writer = Writer(disk, nursery)
    disk.broken = True
    writer.line("L1 queued")
    writer.event("L1 returned")
    await wait_all_tasks_blocked()
    writer.line("L2 queued")
    writer.event("L2 returned")
    written = disk.data

    await disk.finish_syncs()
    assert writer.ran == ["L1 returned", "L2 returned"]
    with pytest.raises(JournalError, match=r"could not be flushed to disk in /somewhere/s1\.jsonl: Input/output error"):
        await writer.journal.flush()
    with pytest.raises(JournalError, match="could not be flushed"):
        writer.line("L3 queued")

    disk.broken = False
    writer.journal.acknowledge(partial(writer.ran.append, "L3 queued"))
    writer.event("the run ended")
    await wait_all_tasks_blocked()
    assert writer.ran == ["L1 returned", "L2 returned", "the run ended"]
    assert (disk.data, disk.syncs) == (written, 1), "a failed sync is never tried again"
    assert not nursery.child_tasks


# ------------------------------------------------------------------------------------------------------ a real file


async def test_only_its_owner_can_read_a_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    sync = os.fsync

    def record_sync(fd: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")))
        sync(fd)

    monkeypatch.setattr(os, "fsync", record_sync)
    state = tmp_path / "new" / "state"
    async with FileStore(state).open_new(tmp_path) as opened:
        path = opened.journal.path
    assert path == state / "sessions" / f"{opened.journal.id}.jsonl"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert synced == [tmp_path, tmp_path / "new", state, state / "sessions"], "each new entry is on disk"

    synced.clear()
    path.parent.chmod(0o755)
    FileStore(state).check()
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert synced == []


def test_a_writer_waits_for_readers_of_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s1.jsonl"
    path.write_bytes(b"{}\n")
    with path.open("rb") as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        pauses: list[float] = []

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            fcntl.flock(reader, fcntl.LOCK_UN)

        monkeypatch.setattr(time, "sleep", pause)
        with open_file(path):
            assert listing.is_open(path)
            open_files = os.listdir("/proc/self/fd")
            with pytest.raises(BlockingIOError):
                DiskFile(path)
            assert len(pauses) == 1, "the second writer does not wait for the first"
            assert os.listdir("/proc/self/fd") == open_files
    assert not listing.is_open(path)


async def test_an_unusable_folder_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "sessions").write_text("a file where the folder should be")

    with pytest.raises(SessionError, match="XDG_STATE_HOME") as caught:
        FileStore(tmp_path).check()
    assert caught.value.file == str(tmp_path / "sessions")


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
async def test_a_folder_without_permission_is_named(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o500)
    with pytest.raises(SessionError, match="Permission denied; make the folder writable or set XDG_STATE_HOME"):
        FileStore(state).check()
    state.chmod(0o700)
    (state / "sessions").mkdir(mode=0o500)
    with pytest.raises(SessionError, match="Permission denied; make the folder writable or set XDG_STATE_HOME"):
        async with FileStore(state).open_new(tmp_path):
            pytest.fail("a session was opened in a folder that is not writable")


@pytest.mark.parametrize("missing", [1, 980], ids=["only the newline is missing", "most is missing"])
@pytest.mark.parametrize("can_truncate", [False, True], ids=["cannot truncate", "can truncate"])
def test_a_torn_record_never_joins_the_next(
    tmp_path: Path, can_truncate: bool, missing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two records of which ``missing`` bytes do not fit on the disk leave no trace, or torn rows of their own."""
    path = tmp_path / "s1.jsonl"
    truncate = os.ftruncate

    def truncate_if_possible(fd: int, length: int) -> None:
        if not can_truncate:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        truncate(fd, length)

    monkeypatch.setattr(os, "ftruncate", truncate_if_possible)
    monkeypatch.setattr(time, "time", lambda: 1234567890.5)  # so that all records have the same size
    with open_file(path) as file:
        journal = Journal(file, path=path)
        journal.record(Unknown("line", {"text": "kept"}))
        before = path.read_bytes()
        size_of_long_record = len(before) - len("kept") + 1000
        room = size_of_long_record - missing
        end_of_torn_row = 0 if can_truncate else len(b"\0\n")
        for more in (0, end_of_torn_row):  # the second write first ends the torn row
            with limit_file_size(path.stat().st_size + room + more), pytest.raises(JournalError):
                journal.record(Unknown("line", {"text": "x" * 1000}))
        assert not can_truncate or path.read_bytes() == before
    with open_file(path) as file:
        journal = Journal(file, path=path, seq=1)
        journal.record(Unknown("line", {"text": "next"}))
        journal.record(Unknown("line", {"text": "last"}))

    readable = []
    for row in path.read_bytes().splitlines():
        with suppress(ValueError):
            readable.append(json.loads(row)["text"])
    assert readable == ["kept", "next", "last"]


async def test_every_waiting_sync_fails_without_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    failed = []

    async def sync(file: DiskFile) -> None:
        with pytest.raises(OSError, match="can't start new thread"):
            await file.sync()
        failed.append(file)

    monkeypatch.setattr(journal_file._THREADS, "run", no_thread)
    with open_file(tmp_path / "s1.jsonl") as one, open_file(tmp_path / "s2.jsonl") as two:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sync, one)
            nursery.start_soon(sync, two)
        assert len(failed) == 2


async def test_a_new_session_never_reuses_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids are times with random digits. Another clock and bad luck can repeat one."""
    monkeypatch.setattr(secrets, "token_hex", lambda size: "abcdef")
    monkeypatch.setattr(time, "strftime", lambda form: "20260101-000000")
    async with FileStore(tmp_path).open_new(tmp_path) as opened:
        opened.journal.record(Unknown("session", {}))
    with pytest.raises(SessionError, match="File exists"):
        async with FileStore(tmp_path).open_new(tmp_path):
            pytest.fail("the file is another session's")
    [journal] = (tmp_path / "sessions").iterdir()
    assert [row["type"] for row in rows_of(journal.read_bytes())] == ["session"]


async def test_a_removed_file_acknowledges_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s1.jsonl"
    with open_file(path) as file:
        journal, ran = Journal(file, path=path), list[str]()
        journal.record(Unknown("line", {"n": 1}))
        path.unlink()
        journal.acknowledge(partial(ran.append, "on disk"))
        await journal.sync()
    assert ran == []
    assert journal.failure is not None
    assert "the file was removed" in journal.failure
