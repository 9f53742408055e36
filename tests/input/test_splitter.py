"""Bytes to lines: wherever the chunks end, with any bytes, and of any length."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.lines.parse import MAX_LINE
from cli.input.splitter import TEXT_BYTES, RawLine, Splitter

BOM = b"\xef\xbb\xbf"


def split(*chunks: bytes) -> list[RawLine]:
    splitter = Splitter(TEXT_BYTES)
    return [*(line for chunk in chunks for line in splitter.add(chunk)), *splitter.end()]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a", ["a"]),
        (b"a\n\nb", ["a", "", "b"]),
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
def test_a_line_ends_at_a_newline(data: bytes, expected: list[str]) -> None:
    assert split(data) == [RawLine(text, n) for n, text in enumerate(expected, 1)]


def test_chunks_may_end_anywhere() -> None:
    data = BOM + "eins\r\nzwölf 🔔\n\r\nlast \xff".encode() + b"\xff\r\nno end"
    whole = split(data)
    assert [line.text for line in whole] == ["eins", "zwölf 🔔", "", "last ÿ\ufffd", "no end"]
    for cut in range(1, len(data)):
        assert split(data[:cut], data[cut:]) == whole, cut
    assert split(*(bytes([byte]) for byte in data)) == whole


@given(st.lists(st.binary(max_size=6), max_size=8))
def test_no_bytes_are_lost(chunks: list[bytes]) -> None:
    data = b"".join(chunks)
    rows = [b""] if data == BOM else data.removeprefix(BOM).removesuffix(b"\n").split(b"\n") if data else []
    texts = [row.removesuffix(b"\r").decode(errors="replace") for row in rows]
    assert [(line.text, line.number) for line in split(*chunks)] == [(text, n) for n, text in enumerate(texts, 1)]


def test_invalid_bytes_are_replaced_with_a_notice() -> None:
    first, second, third = split(b"gr\xfc\xdfe\nfine\n\xed\xa0\x80")
    assert first == RawLine("gr\ufffd\ufffde", 1, has_invalid_bytes=True)
    assert first.notice == "line 1 of the input is not UTF-8; its invalid bytes were replaced"
    assert (second, second.notice) == (RawLine("fine", 2), "")
    assert third.has_invalid_bytes
    assert third.text.strip("\ufffd") == ""


LONGEST = "🔔" * MAX_LINE


@pytest.mark.parametrize("prefix", [b"", BOM], ids=["plain", "bom"])
def test_the_longest_line_is_not_cut(prefix: bytes) -> None:
    assert split(prefix + f"{LONGEST}\r\nnext\n".encode()) == [RawLine(LONGEST, 1), RawLine("next", 2)]


@pytest.mark.parametrize("prefix", [b"", BOM], ids=["plain", "bom"])
@pytest.mark.parametrize(
    "tail",
    ["🔔", "\rx", "x" * 10, "\r" * 2_000_000, "🔔" * 500_000],
    ids=["one more", "return", "ten more", "returns", "bells"],
)
def test_a_cut_line_is_longer_than_the_limit(prefix: bytes, tail: str) -> None:
    """So that it is refused, and not accepted as a shorter line."""
    first, second = split(prefix + f"{LONGEST}{tail}\nnext\n".encode())
    assert len(first.text) > MAX_LINE
    assert first.is_cut == (first.text != f"{LONGEST}{tail}".removesuffix("\r"))
    assert not first.has_invalid_bytes
    assert second == RawLine("next", 2)


def test_an_endless_line_takes_bounded_memory() -> None:
    splitter, chunk = Splitter(TEXT_BYTES), b"x" * 60_000
    tracemalloc.start()
    try:
        for _ in range(500):
            assert splitter.add(chunk) == []
        assert tracemalloc.get_traced_memory()[1] < 6_000_000
    finally:
        tracemalloc.stop()
    long, last = splitter.add(b"\nlast\n")
    assert (long.is_cut, len(long.text), last) == (True, TEXT_BYTES, RawLine("last", 2))
