"""Renderers as the front ends create them, and checks and comparisons of shown rows.

``Renderer`` itself shows the progress of a headless run.
"""

import cProfile
import itertools
import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeAlias

from chain.events import Event
from chain.text.plain import sanitize
from cli.show.renderer import Renderer
from cli.show.text_rows import columns

MakeRenderer: TypeAlias = Callable[..., Renderer]

prompt_renderer = partial(Renderer, streams=True, collapses=True)
terminal_renderer = partial(Renderer, streams=True)

_SGR = re.compile(r"\x1b\[[0-9;]+m")


def without_colours(row: str) -> str:
    """Return the row without its SGR sequences."""
    return _SGR.sub("", row)


def check_row(row: str, width: int) -> None:
    """Assert that a row fits, resets its colours, and contains no other control characters."""
    text = without_colours(row)
    assert columns(text) <= width
    assert sanitize(text) == text
    assert not {"\n", "\t"} & set(text)
    assert (_SGR.findall(row) or ["\x1b[0m"])[-1] == "\x1b[0m"


def pieces_of(text: str, length: int) -> list[str]:
    """Cut a text into pieces, as it would stream."""
    return [text[start : start + length] for start in range(0, len(text), length)]


def check_order(text: str, parts: Iterable[str]) -> None:
    """Assert that the text contains the parts in this order."""
    at = -1
    for part in parts:
        at = text.find(part, at + 1)
        assert at >= 0, part


def without_varying_parts(transcript: str) -> list[str]:
    """Return the rows without times, session ids and the sizes of files, which differ in each run.

    Rows of files that are read in parallel are sorted.
    """
    transcript = re.sub(r"\d+(\.\d)? s\b", "0 s", transcript)
    transcript = transcript.replace("thought 0 s\n\n", "")  # a shorter thought has no row
    transcript = re.sub(r"\d[\d,]*(?= (?:lines?|words?|bytes?|tokens?)\b)", "N", transcript)
    transcript = re.sub(r"^[ \d]+(?=  )", "N", transcript, flags=re.M)
    rows = re.sub(r"\d{8}-\d{6}-\w{6}", "ID", transcript).split("\n")
    groups = itertools.groupby(rows, key=lambda row: row.startswith(("→ read_file", "✓ read_file")))
    return [row for is_reading, group in groups for row in (sorted(group) if is_reading else group)]


def rows_of(renderer: Renderer, *stream: Event) -> list[str]:
    """Return the rows of events, without colours."""
    return [without_colours(row) for event in stream for row in renderer.rows(event)]


def tail_of(renderer: Renderer) -> list[str]:
    """Return the unsettled rows, without colours."""
    return [without_colours(row) for row in renderer.tail.split("\n")] if renderer.tail else []


def rows_and_tail(*stream: Event, width: int = 80) -> tuple[list[str], list[str]]:
    """Return the rows of events above a prompt, and the unsettled rows, without colours."""
    renderer = prompt_renderer(color=False, ascii=False, width=width)
    return rows_of(renderer, *stream), tail_of(renderer)


def count_calls(work: Callable[[], object]) -> int:
    """Return the number of functions that ``work`` calls, including those of the interpreter."""
    profile = cProfile.Profile()
    profile.runcall(work)
    return sum(entry.callcount for entry in profile.getstats())
