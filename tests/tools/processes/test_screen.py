"""The final screen of a terminal, as far as a model needs it."""

from __future__ import annotations

import time
import tracemalloc

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.tools.processes.screen import HEIGHT, MAX_COLUMNS, Screen


def shown(*pieces: str) -> str:
    screen = Screen()
    return "".join(screen.add(piece) for piece in pieces) + screen.end()


SHOWN = {
    "10%\r50%\r100%\ndone\n": "100%\ndone\n",
    "a\r\nb\r\n": "a\nb\n",
    "longer\r\x1b[Kab": "ab",
    "N\bNA\bA": "NA",
    "_\bu_\bn": "un",
    "\x1b[1;31mred\x1b[0m \x1b[38;2;1;2;3mx\x1b(B": "red x",
    "\x1b]0;title\x07a\x1b]8;;https://example.org\x1b\\link\x1b]8;;\x1b\\": "alink",
    "one: 1\ntwo: 1\n\x1b[2A\x1b[2Kone: 2\n\x1b[2Ktwo: 2\n": "one: 2\ntwo: 2\n",
    "old\nrows\n\x1b[H\x1b[2Jnew\n": "new\n",
    "kept\n\x1b[?1049h\x1b[H\x1b[2Ja file\n~\n~\x1b[?1049lafter\n": "kept\nafter\n",
    "\x1b7a\x1b8b": "b",
    "a\tb\rX": "X       b",
    "bell\x07\x00": "bell",
    "page\x0cnext": "page\x0cnext",
    "right\u202eleft": "right\u202eleft",
    "\x1b[999999999Cx": " " * MAX_COLUMNS + "x",
    "\x1b[>4;2m\x1b[?25l\x1b[2 qa": "a",
}


@pytest.mark.parametrize("text", SHOWN)
def test_overwritten_text_is_gone_however_it_arrives(text: str) -> None:
    assert shown(text) == shown(*text) == SHOWN[text]


MOVES = [
    *("\n", "\r", "\b", "\x1b[A", "\x1b[2B", "\x1b[3C", "\x1b[2D", "\x1b[K", "\x1b[1K", "\x1b[2K", "\x1b[J", "\x1b[2J"),
    *("\x1b[H", "\x1b[3;4H", "\x1b[5G", "\x1b[E", "\x1b[2F", "\x1b7", "\x1b8", "\x1b[32m"),
]


@given(st.lists(st.one_of(st.sampled_from(MOVES), st.text("abc ", min_size=1, max_size=3)), max_size=20))
def test_the_rows_are_those_of_a_terminal(pieces: list[str]) -> None:
    terminal = pyte.Screen(80, HEIGHT)
    pyte.Stream(terminal).feed("".join(pieces).replace("\n", "\r\n"))
    rows = [row.rstrip() for row in shown(*pieces).split("\n")]
    assert "\n".join(rows).rstrip() == "\n".join(row.rstrip() for row in terminal.display).rstrip()


@given(st.text("ab\n\t ", max_size=200))
def test_text_without_control_characters_is_unchanged(text: str) -> None:
    assert shown(text * 5) == text * 5


def test_rows_that_scrolled_out_cannot_be_overwritten() -> None:
    rows = "".join(f"{n}\n" for n in range(100))
    assert shown(rows, "\x1b[200A\x1b[Jend") == "".join(f"{n}\n" for n in range(77)) + "end"


@pytest.mark.parametrize("piece", ["x" * 60_000, "\x1b[", "\rab" * 5_000, "\x1b[4096Gx" * 2_000, "\x1b]" * 10_000])
def test_time_and_memory_are_bounded(piece: str) -> None:
    """The bounds are far above what is needed, and far below what an unbounded row would need."""
    screen, begun = Screen(), time.process_time()
    tracemalloc.start()
    try:
        for _ in range(20 if len(piece) > 50_000 else 2):
            screen.add(piece)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()
    assert time.process_time() - begun < 20
