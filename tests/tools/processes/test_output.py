"""The part of a command's output that is stored for the result, and the part that is reported while it runs."""

from __future__ import annotations

import tracemalloc

import pytest

from chain.tools.processes.output import Output


def ended(*chunks: bytes, stored: int = 1_000) -> Output:
    output = Output(stored)
    for chunk in chunks:
        output.add(chunk)
    output.end()
    return output


def test_a_chunk_may_end_within_a_character() -> None:
    raw = "a€𝄞ü\n".encode()
    for n in range(len(raw) + 1):
        assert ended(raw[:n], raw[n:]).text() == "a€𝄞ü\n"
    assert ended(b"a\xffb", b"\xe2\x82").text() == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("chunk", [1, 7, 64, 5_000])
def test_a_long_output_is_stored_without_its_middle(chunk: int) -> None:
    raw = b"".join(b"%05d" % n for n in range(1_000))
    output = ended(*(raw[n : n + chunk] for n in range(0, len(raw), chunk)), stored=100)
    assert output.text() == f"{raw[:100].decode()}\n[4,800 of 5,000 characters left out]\n{raw[-100:].decode()}"
    assert output.note == "The output had 5,000 characters; 4,800 of them were not stored."


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 199, 200])
def test_an_output_that_fits_is_stored_whole(size: int) -> None:
    output = ended(b"x" * size, stored=100)
    assert (output.text(), output.note) == ("x" * size, "")


def test_a_flood_takes_bounded_memory() -> None:
    output = Output(1_000, 100)
    tracemalloc.start()
    try:
        for _ in range(200):
            output.add(b"x" * 65_536)
        assert tracemalloc.get_traced_memory()[1] < 10 * 65_536
    finally:
        tracemalloc.stop()
    assert "13,105,200 of 13,107,200" in output.text()


def test_whole_rows_are_reported_before_incomplete_ones() -> None:
    output = Output()
    output.add(b"one\ntwo\nth")
    assert output.take_unseen() == "one\ntwo\n"
    output.add(b"ree\n")
    assert output.take_unseen() == "three\n"
    output.add(b"Continue? ")
    assert [output.take_unseen(), output.has_unseen, output.take_unseen()] == ["", True, "Continue? "]
    assert [output.take_unseen(), output.has_unseen] == ["", False]


def test_the_end_of_a_flood_is_reported() -> None:
    output = Output(reported=20)
    output.add(b"".join(b"%03d\n" % n for n in range(100)))
    assert output.take_unseen() == "[380 characters not shown]\n095\n096\n097\n098\n099\n"
    output.add(b"next\n")
    assert output.take_unseen() == "next\n"
    output.add(b"x" * 50)
    assert output.take_unseen() == f"[30 characters not shown]\n{'x' * 20}"
