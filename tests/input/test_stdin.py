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
from cli.input.stdin import FIRST_BYTE_S, Lines, PipedInput, append_piped, is_piped, read_piped

Connection = tuple[socket.socket, int]
"""A socket that writes to an input, and the descriptor of the input."""


@pytest.fixture
def connection() -> Iterator[Connection]:
    """Yield a connection on which each read returns what one write sent."""
    writer, reader = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with writer, reader:
        yield writer, reader.fileno()


async def test_lines_are_returned_before_the_input_ends(connection: Connection) -> None:
    writer, fd = connection
    lines = Lines(fd, read_before=b"ze")
    writer.send(b"ro\npart")
    assert await lines.next() == RawLine("zero", 1)
    writer.send(b" one\n")
    assert await lines.next() == RawLine("part one", 2)
    writer.send(b"end")
    writer.close()
    assert await lines.next() == RawLine("end", 3)
    for _ in range(2):
        assert await lines.next() is None


async def test_a_closed_descriptor_has_no_lines() -> None:
    folder = os.open("/", os.O_RDONLY)
    os.close(folder)
    assert await Lines(folder).next() is None


async def test_a_folder_has_no_lines() -> None:
    folder = os.open("/", os.O_RDONLY)
    assert await Lines(folder).next() is None
    os.close(folder)


async def test_a_non_blocking_input_is_awaited() -> None:
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)

    async def write() -> None:
        await trio.to_thread.run_sync(os.stat, "/")  # time for the first read, which finds nothing
        os.write(write_end, b"late\n")
        os.close(write_end)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        assert await Lines(read_end).next() == RawLine("late", 1)
    os.close(read_end)


def test_pipes_sockets_and_files_are_piped(connection: Connection, tmp_path: Path) -> None:
    _, fd = connection
    read_end, write_end = os.pipe()
    with (tmp_path / "file").open("w+b") as file:
        assert is_piped(read_end)
        assert is_piped(fd)
        assert is_piped(file.fileno())
    os.close(read_end)
    os.close(write_end)
    assert not is_piped(read_end), "a closed descriptor is no input"


def test_terminals_and_devices_are_not_piped() -> None:
    terminal, program = pty.openpty()
    with open(os.devnull, "rb") as null:
        assert not is_piped(terminal)
        assert not is_piped(program)
        assert not is_piped(null.fileno())
    os.close(terminal)
    os.close(program)


def fail() -> None:
    raise AssertionError("no wait is expected")


async def test_a_silent_pipe_is_left_unread(connection: Connection, autojump_clock: MockClock) -> None:
    writer, fd = connection
    assert await read_piped(fd, first_byte_s=FIRST_BYTE_S, on_wait=fail) is None
    assert trio.current_time() == FIRST_BYTE_S
    writer.send(b"late")
    assert os.read(fd, 10) == b"late"


@pytest.mark.parametrize(
    ("first_byte_s", "delay_s"), [(FIRST_BYTE_S, FIRST_BYTE_S - 0.1), (math.inf, 1000)], ids=["in time", "no limit"]
)
async def test_a_slow_pipe_is_read_to_its_end(
    connection: Connection, autojump_clock: MockClock, first_byte_s: float, delay_s: float
) -> None:
    writer, fd = connection
    waits, has_waited = list[float](), trio.Event()

    def on_wait() -> None:
        waits.append(trio.current_time())
        has_waited.set()

    async def write() -> None:
        await trio.sleep(delay_s)
        for part in (b"zw", b"\xc3", b"\xb6", b"lf\n"):  # the bytes of ö apart
            writer.send(part)
            await has_waited.wait()
            await trio.sleep(1000)
        writer.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        assert await read_piped(fd, first_byte_s=first_byte_s, on_wait=on_wait) == PipedInput("zwölf")
    assert len(waits) == 1


@pytest.mark.parametrize("packet", [b"the start of a line", b""], ids=["after bytes", "before any byte"])
async def test_reading_can_be_cancelled(connection: Connection, packet: bytes) -> None:
    writer, fd = connection
    async with trio.open_nursery() as nursery:
        for read in (Lines(fd).next, lambda: read_piped(fd, first_byte_s=1000, on_wait=fail)):
            if packet:
                writer.send(packet)
            nursery.start_soon(read)
            await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    writer.close()  # which ends the thread


@pytest.mark.parametrize(
    ("raw", "piped"),
    [
        (b"", PipedInput("")),
        (b"one\ntwo\n\n", PipedInput("one\ntwo")),
        (b"  indented\n", PipedInput("  indented")),
        (b"one\r\ntwo\r\n", PipedInput("one\r\ntwo")),
        (b"\xef\xbb\xbfone", PipedInput("one")),
        (b"gr\xfc\xdfe", PipedInput("gr\ufffd\ufffde", has_invalid_bytes=True)),
    ],
    ids=["empty", "newlines at the end", "indented", "carriage returns", "byte order mark", "invalid bytes"],
)
async def test_a_file_is_read_as_text(tmp_path: Path, raw: bytes, piped: PipedInput) -> None:
    (tmp_path / "file").write_bytes(raw)
    with (tmp_path / "file").open("rb") as file:
        assert await read_piped(file.fileno(), first_byte_s=FIRST_BYTE_S, on_wait=fail) == piped


@pytest.mark.parametrize(
    ("mode", "message"),
    [("r+b", "more than the 100,000 characters"), ("wb", "cannot be read")],
    ids=["too long", "write-only"],
)
async def test_unusable_input_is_an_error(tmp_path: Path, mode: str, message: str) -> None:
    (tmp_path / "file").touch()
    with (tmp_path / "file").open(mode) as file:
        file.truncate(3_000_000_000)  # more than fits into memory
        with pytest.raises(UserError, match=message):
            await read_piped(file.fileno(), first_byte_s=FIRST_BYTE_S, on_wait=fail)


@pytest.mark.parametrize(
    ("query", "piped", "whole"),
    [
        ("sum up", "one\ntwo", "sum up\n\n<stdin>\none\ntwo\n</stdin>"),
        ("sum up", " \n", "sum up"),
        (None, "sum up\nthis", "sum up\nthis"),
    ],
    ids=["both", "blank input", "no query"],
)
def test_piped_input_is_appended_to_the_query(query: str | None, piped: str, whole: str) -> None:
    assert append_piped(query, PipedInput(piped)) == whole


@pytest.mark.parametrize("query", ["sum up", None], ids=["query", "no query"])
def test_query_and_input_share_one_limit(query: str | None) -> None:
    length_without_input = len(append_piped(query, PipedInput("x"))) - 1
    longest = "x" * (MAX_LINE - length_without_input)
    assert len(append_piped(query, PipedInput(longest))) == MAX_LINE
    with pytest.raises(UserError, match="100,001"):
        append_piped(query, PipedInput(longest + "x"))
