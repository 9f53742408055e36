"""What is kept and shown of a command's output."""

from __future__ import annotations

import tracemalloc

from chain.tools.processes.output import Output


def whole(*chunks: bytes, kept: int = 1_000, shown: int = 1_000) -> Output:
    output = Output(kept, shown)
    for chunk in chunks:
        output.add(chunk)
    output.end()
    return output


def test_a_character_may_be_cut_anywhere() -> None:
    text = "a€𝄞ü\n" * 3
    raw = text.encode()
    for n in range(len(raw) + 1):
        assert whole(raw[:n], raw[n:]).text() == text
    assert whole(*(bytes([each]) for each in raw)).text() == text


def test_what_is_no_text_is_replaced() -> None:
    assert whole(b"a\xffb", b"\xe2\x82").text() == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}"


def test_a_long_output_keeps_its_beginning_and_its_end_and_counts_the_rest() -> None:
    text = "".join(f"{n:05}" for n in range(1_000))
    for size in (1, 7, 64, 5_000):
        raw = text.encode()
        output = whole(*(raw[n : n + size] for n in range(0, len(raw), size)), kept=100)
        assert output.text() == f"{text[:100]}\n[4,800 of 5,000 characters left out]\n{text[-100:]}"
        assert output.note == "The output had 5,000 characters; 4,800 of them were not kept."


def test_what_just_fits_is_whole() -> None:
    for size in (0, 1, 99, 100, 101, 199, 200):
        output = whole(b"x" * size, kept=100)
        assert output.text() == "x" * size
        assert output.note == ""


def test_memory_is_bounded_whatever_comes() -> None:
    output = Output(1_000, 100)
    tracemalloc.start()
    try:
        for _ in range(200):
            output.add(b"x" * 65_536)
        assert tracemalloc.get_traced_memory()[1] < 10 * 65_536
    finally:
        tracemalloc.stop()
    assert "13,105,200 of 13,107,200" in output.text()


def test_what_is_shown_are_whole_rows_while_there_are_any() -> None:
    output = Output()
    output.add(b"one\ntwo\nth")
    assert output.unseen() == "one\ntwo\n"
    output.add(b"ree\n")
    assert output.unseen() == "three\n"
    output.add(b"Continue? ")
    assert output.unseen() == ""
    assert output.has_unseen
    assert output.unseen() == "Continue? "
    assert output.unseen() == ""
    assert not output.has_unseen


def test_a_row_that_is_written_in_pieces_is_shown_whole() -> None:
    """As ``ls`` does: its name first, then what is wrong."""
    output = Output()
    output.add(b"ls: ")
    assert output.unseen() == ""
    output.add(b"cannot access '/nope'\n")
    assert output.unseen() == "ls: cannot access '/nope'\n"


def test_of_a_flood_its_end_is_shown_with_how_much_was_not() -> None:
    output = Output(shown=20)
    output.add(b"".join(b"%03d\n" % n for n in range(100)))
    assert output.unseen() == "[380 characters not shown]\n095\n096\n097\n098\n099\n"
    output.add(b"next\n")
    assert output.unseen() == "next\n"
