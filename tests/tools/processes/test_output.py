"""The part of a command's output that is stored for the result, and the part that is reported while it runs."""

from __future__ import annotations

import tracemalloc

import pytest

from chain.tools.processes.output import Output


def output_of(*chunks: bytes, stored: int = 1_000) -> Output:
    """Return the ended output of a command that wrote these chunks."""
    output = Output(stored)
    for chunk in chunks:
        output.add(chunk)
    output.end()
    return output


def test_chunk_may_end_within_a_character() -> None:
    raw = "a€𝄞ü\n".encode()
    for n in range(len(raw) + 1):
        first, second = raw[:n], raw[n:]
        assert output_of(first, second).text() == "a€𝄞ü\n"


def test_invalid_and_incomplete_characters_are_replaced() -> None:
    assert output_of(b"a\xffb", b"\xe2\x82").text() == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}"


NUMBERS = b"".join(b"%05d" % n for n in range(1_000))


@pytest.mark.parametrize("chunk_size", [1, 7, 64, len(NUMBERS)])
def test_long_output_is_stored_without_its_middle(chunk_size: int) -> None:
    chunks = [NUMBERS[n : n + chunk_size] for n in range(0, len(NUMBERS), chunk_size)]
    output = output_of(*chunks, stored=100)
    head, tail = NUMBERS[:100].decode(), NUMBERS[-100:].decode()
    assert output.text() == f"{head}\n[4,800 of 5,000 characters left out]\n{tail}"
    assert output.note == "The output had 5,000 characters; 4,800 of them were not stored."


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 199, 200])
def test_output_that_fits_is_stored_whole(size: int) -> None:
    """``stored`` characters of the start and as many of the end are stored."""
    output = output_of(b"x" * size, stored=100)
    assert (output.text(), output.note) == ("x" * size, "")


def test_flood_takes_bounded_memory() -> None:
    stored, chunk, chunk_count = 1_000, b"x" * 65_536, 200
    output, total = Output(max_stored=stored, max_report=100), len(chunk) * chunk_count
    tracemalloc.start()
    try:
        for _ in range(chunk_count):
            output.add(chunk)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10 * len(chunk)
    assert f"{total - 2 * stored:,} of {total:,}" in output.text()


def test_whole_rows_are_reported_before_incomplete_ones() -> None:
    output = Output()
    output.add(b"one\ntwo\nth")
    assert output.take_unseen() == "one\ntwo\n"
    output.add(b"ree\n")
    assert output.take_unseen() == "three\n"


def test_incomplete_row_is_reported_the_second_time() -> None:
    output = Output()
    output.add(b"Continue? ")
    assert [output.take_unseen(), output.has_unseen] == ["", True]
    assert [output.take_unseen(), output.has_unseen] == ["Continue? ", False]
    assert output.take_unseen() == ""


def test_end_of_a_flood_is_reported() -> None:
    output = Output(max_report=20)
    output.add(b"".join(b"%03d\n" % n for n in range(100)))  # 400 characters
    assert output.take_unseen() == "[380 characters not shown]\n095\n096\n097\n098\n099\n"
    output.add(b"next\n")
    assert output.take_unseen() == "next\n"
    output.add(b"x" * 50)
    assert output.take_unseen() == f"[30 characters not shown]\n{'x' * 20}"
