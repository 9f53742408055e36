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
    """Return the lines of an input that comes in these chunks."""
    splitter = Splitter(TEXT_BYTES)
    return [*(line for chunk in chunks for line in splitter.add(chunk)), *splitter.end()]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(b"", [], id="empty input"),
        pytest.param(b"\n", [""], id="newline alone"),
        pytest.param(b"a", ["a"], id="no newline"),
        pytest.param(b"a\n\nb", ["a", "", "b"], id="empty line"),
        pytest.param(b"a\r\nb\r", ["a", "b"], id="carriage returns at the end"),
        pytest.param(b"a\rb\n", ["a\rb"], id="carriage return within a line"),
        pytest.param(b"a\r\r\n", ["a\r"], id="two carriage returns"),
        pytest.param(BOM + b"a\nb", ["a", "b"], id="byte order mark"),
        pytest.param(b"a\n" + BOM + b"b", ["a", "\ufeffb"], id="byte order mark in the second line"),
        pytest.param(BOM, [""], id="byte order mark alone"),
        pytest.param(BOM + b"\r\n", [""], id="byte order mark and newline"),
        pytest.param("a\u2028b\x0bc\u0085d\n".encode(), ["a\u2028b\x0bc\u0085d"], id="other line separators"),
        pytest.param(b"a\x00b\n", ["a\x00b"], id="null character"),
        pytest.param(b"  a \n", ["  a "], id="spaces"),
    ],
)
def test_a_line_ends_at_a_newline(data: bytes, expected: list[str]) -> None:
    assert split(data) == [RawLine(text, n) for n, text in enumerate(expected, 1)]


def test_chunks_may_end_anywhere() -> None:
    data = BOM + "eins\r\nzwölf 🔔\n\r\nlast \xff".encode() + b"\xff\r\nno end"
    whole = split(data)
    # ``\xff`` is a character in the encoded text, and an invalid byte after it.
    assert [line.text for line in whole] == ["eins", "zwölf 🔔", "", "last ÿ\ufffd", "no end"]
    for cut in range(1, len(data)):
        assert split(data[:cut], data[cut:]) == whole, cut
    assert split(*(bytes([byte]) for byte in data)) == whole


@given(st.lists(st.binary(max_size=6), max_size=8))
def test_no_bytes_are_lost(chunks: list[bytes]) -> None:
    data = b"".join(chunks)
    rows = data.removeprefix(BOM).removesuffix(b"\n").split(b"\n") if data else []
    texts = [row.removesuffix(b"\r").decode(errors="replace") for row in rows]
    assert [(line.text, line.number) for line in split(*chunks)] == [(text, n) for n, text in enumerate(texts, 1)]


def test_invalid_bytes_are_replaced_with_a_notice() -> None:
    latin_1, valid, surrogate = split(b"gr\xfc\xdfe\nfine\n\xed\xa0\x80")
    assert latin_1 == RawLine("gr\ufffd\ufffde", 1, has_invalid_bytes=True)
    assert latin_1.notice == "line 1 of the input is not UTF-8; its invalid bytes were replaced"
    assert (valid, valid.notice) == (RawLine("fine", 2), "")
    assert surrogate.has_invalid_bytes
    assert set(surrogate.text) == {"\ufffd"}


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
    """So the line is refused, and not accepted as a shorter one."""
    long, next_line = split(prefix + f"{LONGEST}{tail}\nnext\n".encode())
    assert len(long.text) > MAX_LINE
    has_lost_text = long.text != f"{LONGEST}{tail}".removesuffix("\r")
    assert long.is_cut == has_lost_text
    assert not long.has_invalid_bytes
    assert next_line == RawLine("next", 2)


def test_an_endless_line_takes_bounded_memory() -> None:
    splitter = Splitter(TEXT_BYTES)
    tracemalloc.start()
    try:
        for _ in range(500):  # 30 MB in all
            assert splitter.add(b"x" * 60_000) == []
        _, peak = tracemalloc.get_traced_memory()
        assert peak < 6_000_000
    finally:
        tracemalloc.stop()
    long, last = splitter.add(b"\nlast\n")
    assert (long.is_cut, len(long.text), last) == (True, TEXT_BYTES, RawLine("last", 2))
