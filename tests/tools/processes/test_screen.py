"""The final screen of a terminal, as far as a model needs it."""

from __future__ import annotations

import time
import tracemalloc

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.tools.processes.screen import HEIGHT, MAX_COLUMNS, Screen


def screen_of(*pieces: str) -> str:
    """Return the text on the screen of a terminal that received these pieces of output."""
    screen = Screen()
    return "".join(screen.add(piece) for piece in pieces) + screen.end()


SCREENS = {
    "progress in one row": ("10%\r50%\r100%\ndone\n", "100%\ndone\n"),
    "CR LF": ("a\r\nb\r\n", "a\nb\n"),
    "erased row": ("longer\r\x1b[Kab", "ab"),
    "bold by backspace": ("N\bNA\bA", "NA"),
    "underlined by backspace": ("_\bu_\bn", "un"),
    "colors": ("\x1b[1;31mred\x1b[0m \x1b[38;2;1;2;3mx\x1b(B", "red x"),
    "title and link": ("\x1b]0;title\x07a\x1b]8;;https://example.org\x1b\\link\x1b]8;;\x1b\\", "alink"),
    "two rows of progress": ("one: 1\ntwo: 1\n\x1b[2A\x1b[2Kone: 2\n\x1b[2Ktwo: 2\n", "one: 2\ntwo: 2\n"),
    "cleared screen": ("old\nrows\n\x1b[H\x1b[2Jnew\n", "new\n"),
    "alternate screen": ("kept\n\x1b[?1049h\x1b[H\x1b[2Ja file\n~\n~\x1b[?1049lafter\n", "kept\nafter\n"),
    "saved cursor": ("\x1b7a\x1b8b", "b"),
    "tab": ("a\tb\rX", "X       b"),
    "bell and NUL": ("bell\x07\x00", "bell"),
    "form feed": ("page\x0cnext", "page\x0cnext"),
    "right-to-left override": ("right\u202eleft", "right\u202eleft"),
    "far column": ("\x1b[999999999Cx", " " * MAX_COLUMNS + "x"),
    "modes": ("\x1b[>4;2m\x1b[?25l\x1b[2 qa", "a"),
}


@pytest.mark.parametrize(("output", "screen"), SCREENS.values(), ids=SCREENS)
def test_overwritten_text_is_gone_however_it_arrives(output: str, screen: str) -> None:
    assert screen_of(output) == screen
    assert screen_of(*output) == screen


MOVES = [
    *("\n", "\r", "\b", "\x1b[A", "\x1b[2B", "\x1b[3C", "\x1b[2D", "\x1b[K", "\x1b[1K", "\x1b[2K", "\x1b[J", "\x1b[2J"),
    *("\x1b[H", "\x1b[3;4H", "\x1b[5G", "\x1b[E", "\x1b[2F", "\x1b7", "\x1b8", "\x1b[32m"),
]


@given(st.lists(st.one_of(st.sampled_from(MOVES), st.text("abc ", min_size=1, max_size=3)), max_size=20))
def test_rows_are_those_of_a_terminal(pieces: list[str]) -> None:
    terminal = pyte.Screen(80, HEIGHT)
    pyte.Stream(terminal).feed("".join(pieces).replace("\n", "\r\n"))
    rows = [row.rstrip() for row in screen_of(*pieces).split("\n")]
    assert "\n".join(rows).rstrip() == "\n".join(row.rstrip() for row in terminal.display).rstrip()


@given(st.text("ab\n\t ", max_size=200))
def test_text_without_control_characters_is_unchanged(text: str) -> None:
    longer_than_a_screen = text * 5
    assert screen_of(longer_than_a_screen) == longer_than_a_screen


def test_rows_that_scrolled_out_cannot_be_overwritten() -> None:
    rows = [f"{n}\n" for n in range(100)]
    scrolled_out = rows[:77]  # the other 23 are on the screen of 24 rows, above the row of the cursor
    move_to_top_and_clear = "\x1b[200A\x1b[J"
    assert screen_of("".join(rows), f"{move_to_top_and_clear}end") == "".join(scrolled_out) + "end"


HEAVY_OUTPUTS = {
    "a long row": ["x" * 60_000] * 20,
    "an incomplete sequence": ["\x1b["] * 2,
    "many carriage returns": ["\rab" * 5_000] * 2,
    "a far column": ["\x1b[4096Gx" * 2_000] * 2,
    "many incomplete titles": ["\x1b]" * 10_000] * 2,
}


@pytest.mark.parametrize("pieces", HEAVY_OUTPUTS.values(), ids=HEAVY_OUTPUTS)
def test_time_and_memory_are_bounded(pieces: list[str]) -> None:
    """The bounds are far above what is needed, and far below what an unbounded row would need."""
    screen, start = Screen(), time.process_time()
    tracemalloc.start()
    try:
        for piece in pieces:
            screen.add(piece)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20_000_000
    assert time.process_time() - start < 20
