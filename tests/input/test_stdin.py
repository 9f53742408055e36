"""Standard input: its lines, and all of it as a part of the query."""

from __future__ import annotations

import math
import os
import pty
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from chain.errors import UserError
from chain.lines.parse import MAX_LINE
from cli.input.splitter import RawLine
from cli.input.stdin import FIRST_BYTE_S, Lines, Piped, is_piped, read_piped, with_piped


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Return the ends of a socket that keeps packets apart, so that each read gets one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs


# -------------------------------------------------------------------------------------------------------------- lines


async def test_lines_are_returned_before_the_input_ends(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    lines = Lines(theirs.fileno(), read_before=b"ze")
    for n, (packet, text) in enumerate([(b"ro\npart", "zero"), (b" one\n", "part one"), (b"end", "end")], 1):
        ours.send(packet)
        if text == "end":
            ours.close()
        assert await lines.next() == RawLine(text, n)
    assert [await lines.next() for _ in range(2)] == [None, None]


@pytest.mark.parametrize("is_closed", [True, False])
async def test_an_unusable_descriptor_has_no_lines(is_closed: bool) -> None:
    folder = os.open("/", os.O_RDONLY)
    if is_closed:
        os.close(folder)
    assert await Lines(folder).next() is None
    if not is_closed:
        os.close(folder)


async def test_a_non_blocking_input_is_awaited() -> None:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    found: list[RawLine | None] = []

    async def collect() -> None:
        found.append(await Lines(reading).next())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(collect)
        await trio.to_thread.run_sync(os.stat, "/")  # time for the first read, which finds nothing
        os.write(writing, b"late\n")
        os.close(writing)
    os.close(reading)
    assert found == [RawLine("late", 1)]


# -------------------------------------------------------------------------------------------------------- piped input


def test_pipes_sockets_and_files_are_piped(ends: tuple[socket.socket, socket.socket], tmp_path: Path) -> None:
    pipe, terminal = os.pipe(), pty.openpty()
    with (tmp_path / "file").open("w+b") as file, open(os.devnull, "rb") as null:
        piped = (pipe[0], ends[0].fileno(), file.fileno())
        others = (*terminal, null.fileno())
        assert [is_piped(fd) for fd in (*piped, *others)] == [True] * 3 + [False] * 3
    for fd in (*pipe, *terminal):
        os.close(fd)
    assert not is_piped(pipe[0])


def fail() -> None:
    raise AssertionError("no wait is expected")


async def test_a_silent_pipe_is_left_unread(
    ends: tuple[socket.socket, socket.socket], autojump_clock: MockClock
) -> None:
    ours, theirs = ends
    assert await read_piped(theirs.fileno(), first_byte_s=FIRST_BYTE_S, on_wait=fail) is None
    assert trio.current_time() == FIRST_BYTE_S
    ours.send(b"late")
    assert theirs.recv(10) == b"late"


@pytest.mark.parametrize("first_byte_s", [FIRST_BYTE_S, math.inf])
async def test_a_slow_pipe_is_read_to_its_end(
    ends: tuple[socket.socket, socket.socket], autojump_clock: MockClock, first_byte_s: float
) -> None:
    ours, theirs = ends
    waits, has_waited = list[float](), trio.Event()

    def on_wait() -> None:
        waits.append(trio.current_time())
        has_waited.set()

    async def write() -> None:
        await trio.sleep(min(first_byte_s - 0.1, 1000))
        for piece in (b"zw", "ö".encode()[:1], "ö".encode()[1:], b"lf\n"):
            ours.send(piece)
            await has_waited.wait()
            await trio.sleep(1000)
        ours.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        assert await read_piped(theirs.fileno(), first_byte_s=first_byte_s, on_wait=on_wait) == Piped("zwölf")
    assert len(waits) == 1


@pytest.mark.parametrize("packet", [b"begun", b""])
async def test_reading_can_be_cancelled(ends: tuple[socket.socket, socket.socket], packet: bytes) -> None:
    ours, theirs = ends
    async with trio.open_nursery() as nursery:
        for read in (Lines(theirs.fileno()).next, lambda: read_piped(theirs.fileno(), first_byte_s=1000, on_wait=fail)):
            if packet:
                ours.send(packet)
            nursery.start_soon(read)
            await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    ours.close()  # which ends the thread


@pytest.mark.parametrize(
    ("raw", "text", "replaced"),
    [
        (b"", "", False),
        (b"one\ntwo\n\n", "one\ntwo", False),
        (b"  indented\n", "  indented", False),
        (b"one\r\ntwo\r\n", "one\r\ntwo", False),
        (b"\xef\xbb\xbfone", "one", False),
        (b"gr\xfc\xdfe", "gr\ufffd\ufffde", True),
    ],
)
async def test_a_file_is_read_as_text(tmp_path: Path, raw: bytes, text: str, replaced: bool) -> None:
    (tmp_path / "file").write_bytes(raw)
    with (tmp_path / "file").open("rb") as file:
        assert await read_piped(file.fileno(), first_byte_s=FIRST_BYTE_S, on_wait=fail) == Piped(text, replaced)


@pytest.mark.parametrize(("mode", "says"), [("r+b", "more than the 100,000 characters"), ("wb", "cannot be read")])
async def test_unusable_input_is_an_error(tmp_path: Path, mode: str, says: str) -> None:
    (tmp_path / "file").touch()
    with (tmp_path / "file").open(mode) as file:
        file.truncate(3_000_000_000)
        with pytest.raises(UserError, match=says):
            await read_piped(file.fileno(), first_byte_s=FIRST_BYTE_S, on_wait=fail)


@pytest.mark.parametrize(
    ("query", "piped", "whole"),
    [
        ("sum up", "one\ntwo", "sum up\n\n<stdin>\none\ntwo\n</stdin>"),
        ("sum up", " \n", "sum up"),
        (None, "sum up\nthis", "sum up\nthis"),
    ],
)
def test_piped_input_is_appended_to_the_query(query: str | None, piped: str, whole: str) -> None:
    assert with_piped(query, Piped(piped)) == whole


@pytest.mark.parametrize("query", ["sum up", None])
def test_query_and_input_share_one_limit(query: str | None) -> None:
    room = MAX_LINE - len(with_piped(query, Piped("x"))) + 1
    assert len(with_piped(query, Piped("x" * room))) == MAX_LINE
    with pytest.raises(UserError, match="100,001"):
        with_piped(query, Piped("x" * (room + 1)))
