"""What is piped in beside a query: what counts as piped, how long it is waited for, and what becomes of it."""

from __future__ import annotations

import math
import os
import pty
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from chain.errors import UserError
from chain.lines.parse import MAX_LINE
from cli.input.stdin import FIRST_BYTE_S, Piped, is_piped, read_piped, with_piped


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a socket that keeps packets apart: each read gets one of them."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs


def never() -> None:
    raise AssertionError("it does not stand still")


async def read_file(path: Path) -> Piped | None:
    with path.open("rb") as file:
        return await read_piped(file.fileno(), first_byte_s=FIRST_BYTE_S, on_wait=never)


# ------------------------------------------------------------------------------------------------------ what is piped


def a_pipe(stack: ExitStack, folder: Path) -> int:
    reading, writing = os.pipe()
    stack.callback(os.close, reading)
    stack.callback(os.close, writing)
    return reading


def a_socket(stack: ExitStack, folder: Path) -> int:
    ours, theirs = socket.socketpair()
    stack.enter_context(ours)
    return stack.enter_context(theirs).fileno()


def a_file(stack: ExitStack, folder: Path) -> int:
    return stack.enter_context((folder / "file").open("w+b")).fileno()


def a_terminal(stack: ExitStack, folder: Path) -> int:
    ours, theirs = pty.openpty()
    stack.callback(os.close, ours)
    stack.callback(os.close, theirs)
    return theirs


def the_null_device(stack: ExitStack, folder: Path) -> int:
    return stack.enter_context(Path(os.devnull).open("rb")).fileno()


def what_is_closed(stack: ExitStack, folder: Path) -> int:
    with closing(socket.socket()) as gone:
        return gone.fileno()


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (a_pipe, True),
        (a_socket, True),
        (a_file, True),
        (a_terminal, False),
        (the_null_device, False),
        (what_is_closed, False),
    ],
)
def test_what_may_have_been_piped_in(make: Callable[[ExitStack, Path], int], expected: bool, tmp_path: Path) -> None:
    with ExitStack() as stack:
        assert is_piped(make(stack, tmp_path)) is expected


# ------------------------------------------------------------------------------------------------- how long it takes


async def test_a_pipe_that_nobody_writes_into_is_left_alone(
    ends: tuple[socket.socket, socket.socket], autojump_clock: MockClock
) -> None:
    ours, theirs = ends
    begun = trio.current_time()

    assert await read_piped(theirs.fileno(), first_byte_s=FIRST_BYTE_S, on_wait=never) is None

    assert trio.current_time() - begun == FIRST_BYTE_S
    ours.send(b"late")
    assert theirs.recv(10) == b"late", "what comes later is still there for others"


async def test_an_input_that_has_begun_is_read_to_its_end(
    ends: tuple[socket.socket, socket.socket], autojump_clock: MockClock
) -> None:
    ours, theirs = ends
    told: list[float] = []
    news = trio.Event()

    def on_wait() -> None:
        told.append(trio.current_time())
        news.set()

    async def write() -> None:
        await trio.sleep(FIRST_BYTE_S - 0.1)
        ours.send(b"zw")
        await news.wait()
        for piece in ("ö".encode()[:1], "ö".encode()[1:], b"lf\n"):
            await trio.sleep(1000)
            ours.send(piece)
        ours.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        piped = await read_piped(theirs.fileno(), first_byte_s=FIRST_BYTE_S, on_wait=on_wait)

    assert piped == Piped("zwölf")
    assert len(told) == 1, "that it stands still is told once"


async def test_it_can_be_waited_for_however_long_it_takes(
    ends: tuple[socket.socket, socket.socket], autojump_clock: MockClock
) -> None:
    ours, theirs = ends
    told: list[float] = []

    async def write() -> None:
        await trio.sleep(1000)
        ours.send(b"late")
        ours.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        piped = await read_piped(
            theirs.fileno(), first_byte_s=math.inf, on_wait=lambda: told.append(trio.current_time())
        )

    assert piped == Piped("late")
    assert len(told) == 1


@pytest.mark.parametrize("has_begun", [True, False])
async def test_the_reading_can_be_cancelled(ends: tuple[socket.socket, socket.socket], has_begun: bool) -> None:
    ours, theirs = ends
    if has_begun:
        ours.send(b"begun")
    async with trio.open_nursery() as nursery:

        async def read() -> None:
            await read_piped(theirs.fileno(), first_byte_s=1000, on_wait=never)

        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()


# ------------------------------------------------------------------------------------------------------- what it holds


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
async def test_the_bytes_of_a_file_are_text(tmp_path: Path, raw: bytes, text: str, replaced: bool) -> None:
    (tmp_path / "file").write_bytes(raw)

    assert await read_file(tmp_path / "file") == Piped(text, replaced)


async def test_more_than_a_query_may_have_is_not_read_to_its_end(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        file.truncate(3_000_000_000)

    with pytest.raises(UserError, match="100,000"):
        await read_file(tmp_path / "file")


async def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file, pytest.raises(UserError, match="cannot be read"):
        await read_piped(file.fileno(), first_byte_s=FIRST_BYTE_S, on_wait=never)


# ------------------------------------------------------------------------------------------------------- with a query


@pytest.mark.parametrize(
    ("query", "piped", "whole"),
    [
        ("sum up", "one\ntwo", "sum up\n\n<stdin>\none\ntwo\n</stdin>"),
        ("sum up", "", "sum up"),
        ("sum up", " \n", "sum up"),
        (None, "sum up\nthis", "sum up\nthis"),
    ],
)
def test_what_was_piped_in_goes_with_the_query(query: str | None, piped: str, whole: str) -> None:
    assert with_piped(query, Piped(piped)) == whole


@pytest.mark.parametrize("query", ["sum up", None])
def test_together_they_may_be_as_long_as_a_query(query: str | None) -> None:
    room = MAX_LINE - len(with_piped(query, Piped("x"))) + 1
    assert len(with_piped(query, Piped("x" * room))) == MAX_LINE

    with pytest.raises(UserError, match="100,001"):
        with_piped(query, Piped("x" * (room + 1)))
