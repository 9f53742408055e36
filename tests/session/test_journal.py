"""The journal: what is on the disk when somebody is told so, in which order, and what a failing disk does."""

import errno
import fcntl
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import example, given
from hypothesis import strategies as st
from support.disks import files_at_most
from trio.testing import wait_all_tasks_blocked

from chain.errors import JournalError, SessionError
from chain.events import Event, Notice
from chain.journal import file as session
from chain.journal.file import DiskFile
from chain.journal.journal import Journal
from chain.journal.records import Model, Unknown
from chain.session import listing
from chain.session.store import FileStore


class Disk:
    """A file layer in memory. ``is_slow`` holds every sync until ``release``; the two errors make it fail."""

    def __init__(self, *, is_slow: bool = False) -> None:
        self.data = b""
        self.on_disk = b""
        self.syncs = 0
        self.append_error: OSError | None = None
        self.sync_error: OSError | None = None
        self._is_slow = is_slow
        self._held: list[trio.Event] = []

    @property
    def is_syncing(self) -> bool:
        return bool(self._held)

    def append(self, data: bytes) -> None:
        if self.append_error is not None:
            raise self.append_error
        self.data += data

    async def sync(self) -> None:
        self.syncs += 1
        written, error = self.data, self.sync_error
        if self._is_slow:
            self._held.append(trio.Event())
            await self._held[-1].wait()
        if error is not None:
            raise error
        self.on_disk = max(self.on_disk, written, key=len)

    async def release(self) -> None:
        """Let the oldest sync end, and everybody act on it."""
        self._held.pop(0).set()
        await wait_all_tasks_blocked()


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
BROKEN = OSError(errno.EIO, os.strerror(errno.EIO))


def records(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(row) for row in data.split(b"\n")[:-1]]


def started(nursery: trio.Nursery, disk: Disk) -> Journal:
    journal = Journal(disk)
    nursery.start_soon(journal.run)
    return journal


def saying(said: list[str], what: str) -> Callable[[], None]:
    return lambda: said.append(what)


# ----------------------------------------------------------------------------------------------------------- records


def test_a_record_is_in_the_file_whole_before_anything_else_happens() -> None:
    disk = Disk()
    Journal(disk).record(Unknown("line", {"id": "L1", "text": "zwei\nZeilen ⏳"}))

    assert disk.data.endswith(b"\n")
    assert disk.data.count(b"\n") == 1
    (record,) = records(disk.data)
    assert record.pop("time") > 1_600_000_000
    assert list(record.items()) == [("type", "line"), ("seq", 1), ("id", "L1"), ("text", "zwei\nZeilen ⏳")]


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(st.characters(exclude_categories=()))),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(json_values)
@example("a lone surrogate \ud800 and a backslash before one \\\udfff")
@example("rows \r\n \u2028 \x85 \x00")
def test_any_text_comes_back_as_it_was(value: Any) -> None:
    disk = Disk()

    Journal(disk).record(Unknown("line", {"text": value}))

    assert len(disk.data.decode().splitlines()) == 1  # also for who ends rows where Unicode does
    (record,) = records(disk.data)
    # Two surrogates that make a pair are one character to JSON, however it is written.
    assert record["text"] == json.loads(json.dumps(value))


def test_a_failed_write_says_why_and_where_and_the_next_record_may_succeed() -> None:
    disk = Disk()
    disk.append_error = FULL
    journal = Journal(disk, path=Path("/somewhere/s1.jsonl"))

    with pytest.raises(JournalError, match=r"cannot be written to /somewhere/s1\.jsonl: No space left on device"):
        journal.record(Unknown("line", {}))

    assert disk.data == b""
    assert journal.failure is None
    disk.append_error = None
    journal.record(Unknown("line", {}))
    assert [r["seq"] for r in records(disk.data)] == [1]


# ------------------------------------------------------------------------------------------------------------ events


def test_a_record_has_its_events_for_when_it_is_time_also_where_it_cannot_be_written() -> None:
    disk, told = Disk(), list[Event]()
    journal = Journal(disk)
    journal.connect(lambda entry: [Notice(message=f"{entry.record.type} {entry.seq}")], told.append)

    first = journal.record(Model("one"))
    assert told == []
    first.emit()
    disk.append_error = FULL
    with pytest.raises(JournalError):
        journal.record(Model("two"))
    journal.record_if_possible(Model("two")).emit()
    disk.append_error = None
    journal.record_if_possible(Model("four")).emit()

    said = [event.message for event in told if isinstance(event, Notice)]
    assert said == ["model 1", "model 1", "model 2"]
    assert [(r["name"], r["seq"]) for r in records(disk.data)] == [("one", 1), ("four", 2)]


# --------------------------------------------------------------------------------------------------- acknowledgements


def acknowledge_record(journal: Journal, action: Callable[[], None]) -> None:
    journal.record(Unknown("line", {}))
    journal.acknowledge(action)


async def test_what_comes_while_the_disk_is_busy_waits_for_the_next_sync(nursery: trio.Nursery) -> None:
    disk, said = Disk(is_slow=True), list[str]()
    journal = started(nursery, disk)
    journal.record(Unknown("line", {"n": 0}))
    journal.acknowledge(saying(said, "early"))
    await wait_all_tasks_blocked()

    for n in range(50):
        journal.record(Unknown("line", {"n": n}))
        journal.acknowledge(saying(said, "late"))
    await disk.release()
    assert said == ["early"]

    await disk.release()
    assert said == ["early", *["late"] * 50]
    assert disk.syncs == 2


async def test_what_follows_from_a_line_is_told_after_the_line(nursery: trio.Nursery) -> None:
    disk, said = Disk(is_slow=True), list[str]()
    journal = started(nursery, disk)

    journal.emit_after_acks(saying(said, "nothing waits, so at once"))
    assert said == ["nothing waits, so at once"]

    acknowledge_record(journal, saying(said, "L1 queued"))
    journal.emit_after_acks(saying(said, "L1 delivered"))
    await wait_all_tasks_blocked()
    acknowledge_record(journal, saying(said, "L2 queued"))
    journal.emit_after_acks(saying(said, "L2 delivered"))
    assert said == ["nothing waits, so at once"]

    await disk.release()
    assert said[1:] == ["L1 queued", "L1 delivered"]
    await disk.release()
    assert said[3:] == ["L2 queued", "L2 delivered"]
    journal.emit_after_acks(saying(said, "at once again"))
    assert said[5:] == ["at once again"]


async def test_what_an_action_brings_up_is_told_after_what_waited_already(nursery: trio.Nursery) -> None:
    said = list[str]()
    journal = started(nursery, Disk())

    def first() -> None:
        said.append("L1 queued")
        journal.emit_after_acks(saying(said, "brought up by L1"))

    acknowledge_record(journal, first)
    journal.emit_after_acks(saying(said, "L1 delivered"))
    await journal.flush()

    assert said == ["L1 queued", "L1 delivered", "brought up by L1"]


async def test_a_flush_waits_for_all_that_was_queued_before_it(nursery: trio.Nursery) -> None:
    disk, said = Disk(is_slow=True), list[str]()
    journal = started(nursery, disk)
    acknowledge_record(journal, saying(said, "L1"))

    async def flush() -> None:
        await journal.flush()
        said.append("flushed")

    nursery.start_soon(flush)
    await wait_all_tasks_blocked()
    acknowledge_record(journal, saying(said, "L2"))
    assert said == []

    await disk.release()
    assert said == ["L1", "flushed"]


async def test_a_flush_of_a_journal_that_waits_for_nothing_returns_at_once(autojump_clock: trio.abc.Clock) -> None:
    journal = Journal(Disk())
    journal.record(Unknown("line", {}))
    journal.emit_after_acks(lambda: None)

    with trio.fail_after(1):
        await journal.flush()


async def test_giving_up_a_flush_gives_up_no_acknowledgement(nursery: trio.Nursery) -> None:
    disk, said = Disk(is_slow=True), list[str]()
    journal = started(nursery, disk)
    acknowledge_record(journal, saying(said, "L1"))
    with trio.CancelScope() as scope:
        scope.cancel()
        await journal.flush()
    assert scope.cancelled_caught

    await wait_all_tasks_blocked()
    await disk.release()

    assert said == ["L1"]


async def test_two_syncs_at_a_time_tell_nobody_too_early(nursery: trio.Nursery) -> None:
    disk, said = Disk(is_slow=True), list[str]()
    journal = Journal(disk)
    journal.record(Unknown("line", {"id": "L1"}))
    journal.acknowledge(saying(said, "L1"))
    nursery.start_soon(journal.sync)
    nursery.start_soon(journal.sync)
    await wait_all_tasks_blocked()

    journal.record(Unknown("line", {"id": "L2"}))
    journal.acknowledge(saying(said, "L2"))
    await disk.release()
    await disk.release()

    assert said == ["L1"], "L2 came after both syncs had begun"


async def test_a_sync_by_hand_does_not_stop_the_syncs_that_come_by_themselves(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    said = list[str]()
    journal = started(nursery, Disk())
    await wait_all_tasks_blocked()

    await journal.sync()
    journal.record(Unknown("line", {"id": "L1"}))
    journal.acknowledge(saying(said, "L1"))

    with trio.move_on_after(1):
        await journal.flush()
    assert said == ["L1"]


@pytest.mark.parametrize("is_syncing", [True, False])
async def test_all_that_was_recorded_before_the_end_is_synced(is_syncing: bool, nursery: trio.Nursery) -> None:
    said, disk = list[str](), Disk(is_slow=True)
    journal = started(nursery, disk)
    if is_syncing:
        acknowledge_record(journal, saying(said, "before"))
        await wait_all_tasks_blocked()
    journal.record(Unknown("line", {"id": "L1"}))
    journal.acknowledge(saying(said, "L1"))
    journal.end()
    await wait_all_tasks_blocked()
    while disk.is_syncing:
        await disk.release()
    assert said[-1:] == ["L1"]
    assert disk.on_disk == disk.data
    assert disk.syncs == 1 + is_syncing
    assert not nursery.child_tasks


async def test_what_is_on_the_disk_is_not_synced_again(nursery: trio.Nursery) -> None:
    disk = Disk()
    journal = started(nursery, disk)
    journal.record(Unknown("line", {"id": "L1"}))
    await journal.sync()
    await journal.sync()
    journal.end()
    await wait_all_tasks_blocked()
    assert disk.syncs == 1
    assert not nursery.child_tasks


# Mostly a disk that works; the length is drawn first, since lists of no fixed length are mostly short ones.
a_step = st.sampled_from(["line", "line", "line", "event", "event", "disk", "disk", "disk", "disk fails"])
stories = st.integers(0, 30).flatmap(lambda n: st.lists(a_step, min_size=n, max_size=n))


@given(stories)
def test_whatever_happens_in_whatever_order_the_promises_hold(steps: list[str]) -> None:
    """I6 for acknowledgements, and everything that is told is told in the order in which it came up."""

    async def main() -> None:
        disk, told = Disk(is_slow=True), list[int]()
        journal = Journal(disk)
        acknowledged: set[int] = set()

        def tell(n: int, upto: int) -> Callable[[], None]:
            def action() -> None:
                assert upto == 0 or len(disk.on_disk) >= upto
                told.append(n)

            return action

        async with trio.open_nursery() as nursery:
            nursery.start_soon(journal.run)
            for n, step in enumerate(steps):
                match step:
                    case "line":
                        try:
                            journal.record(Unknown("line", {"n": n}))
                        except JournalError:
                            assert journal.failure is not None
                            continue
                        acknowledged.add(n)
                        journal.acknowledge(tell(n, len(disk.data)))
                    case "event":
                        journal.emit_after_acks(tell(n, 0))
                    case _:
                        disk.sync_error = BROKEN if step == "disk fails" else disk.sync_error
                        await wait_all_tasks_blocked()
                        if disk.is_syncing:
                            await disk.release()
            await wait_all_tasks_blocked()
            while disk.is_syncing:
                await disk.release()
            nursery.cancel_scope.cancel()
        assert told == sorted(told)
        assert {n for n, step in enumerate(steps) if step == "event"} <= set(told)
        assert journal.failure is not None or acknowledged <= set(told)

    trio.run(main)


# ---------------------------------------------------------------------------------------------------- a failing disk


async def test_after_a_failed_sync_no_line_is_ever_acknowledged(nursery: trio.Nursery) -> None:
    disk, said = Disk(is_slow=True), list[str]()
    journal = Journal(disk, path=Path("/somewhere/s1.jsonl"))
    nursery.start_soon(journal.run)
    disk.sync_error = BROKEN
    journal.record(Unknown("line", {}))
    journal.acknowledge(saying(said, "L1 queued"))
    journal.emit_after_acks(saying(said, "L1 returned"))
    await wait_all_tasks_blocked()
    journal.acknowledge(saying(said, "L2 queued"))
    journal.emit_after_acks(saying(said, "L2 returned"))
    written = disk.data

    await disk.release()
    assert said == ["L1 returned", "L2 returned"], "what became of the lines is told all the same"
    with pytest.raises(JournalError, match=r"could not be flushed to disk in /somewhere/s1\.jsonl: Input/output error"):
        await journal.flush()
    with pytest.raises(JournalError, match="could not be flushed"):
        journal.record(Unknown("line", {}))

    disk.sync_error = None
    journal.acknowledge(saying(said, "L3 queued"))
    journal.emit_after_acks(saying(said, "the run ended"))
    await wait_all_tasks_blocked()
    assert said == ["L1 returned", "L2 returned", "the run ended"]
    assert disk.data == written
    assert disk.syncs == 1, "a failed sync is never tried again"
    assert not nursery.child_tasks


async def test_the_order_holds_also_when_the_disk_fails(nursery: trio.Nursery) -> None:
    disk, said = Disk(), list[str]()
    disk.sync_error = BROKEN
    journal = started(nursery, disk)

    def first() -> None:
        said.append("first")
        journal.emit_after_acks(saying(said, "brought up by the first"))

    acknowledge_record(journal, lambda: None)
    journal.emit_after_acks(first)
    journal.emit_after_acks(saying(said, "second"))
    with pytest.raises(JournalError):
        await journal.flush()

    assert said == ["first", "second", "brought up by the first"]


# ------------------------------------------------------------------------------------------------------ a real file


@contextmanager
def disk_file(path: Path) -> Iterator[DiskFile]:
    file = DiskFile(path, is_new=not path.exists())
    try:
        yield file
    finally:
        file.close()


async def test_records_go_to_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    said = list[str]()
    async with FileStore(tmp_path / "state").open_new(tmp_path) as held:
        journal = held.journal
        journal.record(Unknown("line", {"text": "hello"}))
        journal.acknowledge(saying(said, "on the disk"))
        await journal.sync()

    assert said == ["on the disk"]
    assert journal.path is not None
    assert journal.path.parent == tmp_path / "state" / "sessions"
    assert journal.path.name == f"{journal.id}.jsonl"
    assert records(journal.path.read_bytes())[0]["text"] == "hello"
    assert journal.path.stat().st_mode & 0o777 == 0o600
    assert journal.path.parent.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    (tmp_path / "sessions").mkdir(mode=0o755)
    (tmp_path / "sessions").chmod(0o755)

    FileStore(tmp_path).check()

    assert (tmp_path / "sessions").stat().st_mode & 0o777 == 0o700


def test_a_record_that_was_half_written_is_cut_off_again(tmp_path: Path) -> None:
    path = tmp_path / "s1.jsonl"
    with disk_file(path) as file:
        journal = Journal(file, path=path)
        journal.record(Unknown("line", {"text": "kept"}))
        before = path.read_bytes()

        with files_at_most(len(before) + 20), pytest.raises(JournalError, match="cannot be written"):
            journal.record(Unknown("line", {"text": "x" * 1000}))
        assert path.read_bytes() == before

        journal.record(Unknown("line", {"text": "next"}))
        assert [(r["text"], r["seq"]) for r in records(path.read_bytes())] == [("kept", 1), ("next", 2)]


def test_what_is_there_already_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "s1.jsonl"
    with disk_file(path) as file:
        file.append(b"one\n")

    with disk_file(path) as file:
        file.append(b"two\n")
        with files_at_most(10), pytest.raises(OSError, match="too large"):
            file.append(b"three\n")

    assert path.read_bytes() == b"one\ntwo\n"


def test_who_only_asks_whether_a_session_is_open_keeps_nobody_from_writing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s1.jsonl"
    path.write_bytes(b"{}\n")
    with path.open("rb") as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)
        pauses: list[float] = []

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            fcntl.flock(asking, fcntl.LOCK_UN)

        monkeypatch.setattr(time, "sleep", pause)
        with disk_file(path) as file:
            file.append(b"{}\n")
            assert listing.is_open(path)
            assert len(pauses) == 1
            open_files = os.listdir("/proc/self/fd")
            with pytest.raises(BlockingIOError):
                DiskFile(path)
            assert len(pauses) == 1, "a writer is not waited for"
            assert os.listdir("/proc/self/fd") == open_files
    assert not listing.is_open(path)


def test_a_folder_that_cannot_be_used_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "sessions").write_text("a file where the folder should be")

    with pytest.raises(SessionError, match="XDG_STATE_HOME") as caught:
        FileStore(tmp_path).check()
    assert caught.value.file == str(tmp_path / "sessions")


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
async def test_a_folder_that_is_not_writable_is_named_with_what_to_do(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o500)
    with pytest.raises(SessionError, match="Permission denied; make it writable or set XDG_STATE_HOME"):
        FileStore(state).check()
    state.chmod(0o700)
    (state / "sessions").mkdir(mode=0o500)
    with pytest.raises(SessionError, match="Permission denied; make the folder writable or set XDG_STATE_HOME"):
        async with FileStore(state).open_new(tmp_path):
            pytest.fail("a session was opened in a folder that is not writable")


@pytest.mark.parametrize("missing", [1, 980])
@pytest.mark.parametrize("cannot_cut", [PermissionError(errno.EPERM, "Operation not permitted"), None])
def test_what_is_left_of_a_torn_record_never_joins_the_next(
    tmp_path: Path, cannot_cut: OSError | None, missing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if all of it was written but the end of its row: it was refused."""
    path = tmp_path / "s1.jsonl"
    cut = os.ftruncate

    def truncate(fd: int, length: int) -> None:
        if cannot_cut is not None:
            raise cannot_cut
        cut(fd, length)

    monkeypatch.setattr(os, "ftruncate", truncate)
    monkeypatch.setattr(time, "time", lambda: 1234567890.5)
    with disk_file(path) as file:
        journal = Journal(file, path=path)
        journal.record(Unknown("line", {"text": "kept"}))
        size = path.stat().st_size + 1000 - len("kept")
        for tries in range(2):
            room = size - missing + 2 * tries * (cannot_cut is not None)
            with files_at_most(path.stat().st_size + room), pytest.raises(JournalError):
                journal.record(Unknown("line", {"text": "x" * 1000}))
        journal.record(Unknown("line", {"text": "next"}))
        journal.record(Unknown("line", {"text": "last"}))

    whole = []
    for row in path.read_bytes().split(b"\n")[:-1]:
        with suppress(ValueError):
            whole.append(json.loads(row)["text"])
    assert whole == ["kept", "next", "last"]


async def test_a_sync_that_gets_no_thread_fails_for_all_that_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    failed = []

    async def sync(file: DiskFile) -> None:
        with pytest.raises(OSError, match="can't start new thread"):
            await file.sync()
        failed.append(file)

    monkeypatch.setattr(session._THREADS, "run", no_thread)
    with disk_file(tmp_path / "s1.jsonl") as one, disk_file(tmp_path / "s2.jsonl") as two:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sync, one)
            nursery.start_soon(sync, two)
        assert len(failed) == 2


async def test_every_folder_on_the_way_is_brought_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    sync = os.fsync

    def note(fd: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")))
        sync(fd)

    monkeypatch.setattr(os, "fsync", note)
    state = tmp_path / "new" / "state"
    store = FileStore(state)
    async with store.open_new(tmp_path):
        pass
    assert synced == [tmp_path, tmp_path / "new", state, state / "sessions"]
    synced.clear()
    store.check()
    assert synced == []


async def test_a_session_never_writes_into_a_file_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that was set back, a copied machine."""
    monkeypatch.setattr(secrets, "token_hex", lambda size: "abcdef")
    monkeypatch.setattr(time, "strftime", lambda form: "20260101-000000")
    async with FileStore(tmp_path).open_new(tmp_path) as held:
        held.journal.record(Unknown("session", {}))
    with pytest.raises(SessionError, match="File exists"):
        async with FileStore(tmp_path).open_new(tmp_path):
            pytest.fail("the file is another session's")
    (found,) = (tmp_path / "sessions").iterdir()
    assert len(records(found.read_bytes())) == 1


async def test_a_file_that_was_removed_keeps_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s1.jsonl"
    with disk_file(path) as file:
        journal = Journal(file, path=path)
        told = []
        journal.record(Unknown("line", {"n": 1}))
        path.unlink()
        journal.acknowledge(lambda: told.append("safe"))
        await journal.sync()
    assert told == []
    assert journal.failure is not None
    assert "the file was removed" in journal.failure


async def test_who_accepts_a_line_on_hearing_of_something_is_not_overtaken_by_what_waits_behind_it() -> None:
    journal, said = Journal(Disk()), list[str]()

    def accept() -> None:
        said.append("heard")
        journal.record(Model("two"))
        journal.acknowledge(saying(said, "acknowledged"))
        said.append("accepted")

    journal.record(Model("one"))
    journal.acknowledge(accept)
    journal.emit_after_acks(saying(said, "what waits"))
    await journal.sync()
    assert said == ["heard", "accepted", "what waits"]
    await journal.sync()
    assert said[-1] == "acknowledged"
