"""Bytes from a pipe to lines: wherever they are cut, whatever they are, and however long.

The bytes come through a socket that keeps packets apart, so that each read gets exactly the chunk that the test sent.
"""

from __future__ import annotations

import os
import socket
import tracemalloc
from collections.abc import Iterable, Iterator

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from chain.lines.parse import MAX_LINE
from cli.input.splitter import RawLine
from cli.input.stdin import Lines

BOM = b"\xef\xbb\xbf"
CHUNK = 60_000


def read(chunks: Iterable[bytes]) -> list[RawLine]:
    """The lines of an input that comes in these chunks; an empty chunk would be its end."""

    async def work() -> list[RawLine]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        found: list[RawLine] = []

        async def collect() -> None:
            lines = Lines(theirs.fileno())
            while (line := await lines.next()) is not None:
                found.append(line)

        def send() -> None:
            for chunk in chunks:
                if chunk:
                    ours.sendall(chunk)
            ours.close()

        with ours, theirs:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(collect)
                await trio.to_thread.run_sync(send)
        return found

    return trio.run(work)


def texts(*chunks: bytes) -> list[str]:
    return [line.text for line in read(chunks)]


def in_chunks(data: bytes) -> Iterator[bytes]:
    return (data[n : n + CHUNK] for n in range(0, len(data), CHUNK))


def test_lines_are_numbered_from_one_and_lose_their_ends() -> None:
    assert read([b"one\ntwo\n"]) == [RawLine("one", 1), RawLine("two", 2)]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a", ["a"]),
        (b"a\n\nb", ["a", "", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\r\nb\r", ["a", "b"]),
        (b"a\rb\n", ["a\rb"]),
        (b"a\r\r\n", ["a\r"]),
        (BOM + b"a\nb", ["a", "b"]),
        (b"a\n" + BOM + b"b", ["a", "\ufeffb"]),
        (BOM, [""]),
        (BOM + b"\r\n", [""]),
        ("a\u2028b\x0bc\u0085d\n".encode(), ["a\u2028b\x0bc\u0085d"]),
        (b"a\x00b\n", ["a\x00b"]),
        (b"  a \n", ["  a "]),
    ],
)
def test_what_ends_a_line(data: bytes, expected: list[str]) -> None:
    assert texts(data) == expected


def test_it_does_not_matter_where_the_bytes_are_cut() -> None:
    data = BOM + "eins\r\nzwölf 🔔\n\r\nlast \xff".encode() + b"\xff\r\nno end"
    whole = read([data])

    for cut in range(1, len(data)):
        assert read([data[:cut], data[cut:]]) == whole, cut
    assert read([bytes([byte]) for byte in data]) == whole
    assert [line.text for line in whole] == ["eins", "zwölf 🔔", "", "last ÿ\ufffd", "no end"]


@given(st.lists(st.binary(max_size=6), max_size=8))
def test_nothing_is_lost_or_made_up(chunks: list[bytes]) -> None:
    data = b"".join(chunks)
    ended = data.removeprefix(BOM).removesuffix(b"\n").split(b"\n") if data else []
    if data == BOM:
        ended = [b""]

    found = read(chunks)

    assert [line.text for line in found] == [row.removesuffix(b"\r").decode(errors="replace") for row in ended]
    assert [line.number for line in found] == list(range(1, len(ended) + 1))


def test_bytes_that_are_not_utf_8_are_replaced_and_told_of() -> None:
    first, second, third = read([b"gr\xfc\xdfe\nfine\n\xed\xa0\x80"])

    assert first == RawLine("gr\ufffd\ufffde", 1, replaced=True)
    assert second == RawLine("fine", 2)
    assert third.replaced
    assert third.text.strip("\ufffd") == ""


def test_the_longest_line_that_may_be_sent_comes_whole() -> None:
    longest = "🔔" * MAX_LINE

    assert read(in_chunks(f"{longest}\r\nnext\n".encode())) == [RawLine(longest, 1), RawLine("next", 2)]


def test_a_byte_order_mark_takes_no_room_from_the_longest_line() -> None:
    longest = "🔔" * MAX_LINE

    assert read(in_chunks(BOM + longest.encode())) == [RawLine(longest, 1)]


@pytest.mark.parametrize("prefix", [b"", BOM], ids=["plain", "bom"])
@pytest.mark.parametrize(
    "tail",
    ["🔔", "\rx", "x" * 10, "\r" * 2_000_000, "🔔" * 500_000],
    ids=["one more", "return", "ten more", "returns", "bells"],
)
def test_a_line_that_was_cut_never_passes_for_a_shorter_one(prefix: bytes, tail: str) -> None:
    whole = "🔔" * MAX_LINE + tail

    first, second = read(in_chunks(prefix + whole.encode() + b"\nnext\n"))

    assert len(first.text) > MAX_LINE, "whoever reads it would take it for a line that may be sent"
    assert first.cut == (first.text != whole.removesuffix("\r"))
    assert not first.replaced, "the cut is ours, and says nothing about the input"
    assert second == RawLine("next", 2)


def test_a_line_without_an_end_does_not_fill_the_memory() -> None:
    size = 30_000_000

    def endless() -> Iterator[bytes]:
        yield b"first\n"
        for _ in range(0, size, CHUNK):
            yield b"x" * CHUNK
        yield b"\nlast\n"

    tracemalloc.start()
    try:
        found = read(endless())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert [line.text[:5] for line in found] == ["first", "xxxxx", "last"]
    assert [line.cut for line in found] == [False, True, False]
    assert MAX_LINE < len(found[1].text) < size / 10
    assert peak < size / 5


async def test_a_closed_descriptor_has_no_lines() -> None:
    reading, writing = os.pipe()
    os.close(writing)
    os.close(reading)

    assert await Lines(reading).next() is None


async def test_a_descriptor_that_cannot_be_read_has_no_lines() -> None:
    folder = os.open("/", os.O_RDONLY)
    try:
        assert await Lines(folder).next() is None
    finally:
        os.close(folder)


async def test_after_the_end_there_is_nothing_more() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"a")
    os.close(writing)
    lines = Lines(reading)

    assert [await lines.next() for _ in range(3)] == [RawLine("a", 1), None, None]
    os.close(reading)


async def test_a_line_is_there_before_the_input_ends() -> None:
    reading, writing = os.pipe()
    lines = Lines(reading)
    for text in ("one", "two"):
        os.write(writing, f"{text}\npart".encode())
        line = await lines.next()
        assert line is not None
        assert line.text.removeprefix("part") == text
    os.close(writing)
    os.close(reading)


async def test_an_input_that_does_not_block_is_waited_for() -> None:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    lines, found = Lines(reading), list[RawLine | None]()

    async def collect() -> None:
        found.append(await lines.next())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(collect)
        # Time for the first read, which finds nothing. If the line is faster after all, the test asks less.
        await trio.to_thread.run_sync(os.stat, "/")
        os.write(writing, b"late\n")
        os.close(writing)
    os.close(reading)

    assert found == [RawLine("late", 1)]


async def test_waiting_for_a_line_can_be_given_up() -> None:
    reading, writing = os.pipe()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Lines(reading).next)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    os.close(writing)  # and with it ends the thread
    os.close(reading)
