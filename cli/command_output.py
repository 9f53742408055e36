"""The output of commands on their standard streams: rows, pages and problems."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING

from chain.text.plain import sanitize
from cli.screen import tty
from cli.writing import try_to_write

if TYPE_CHECKING:
    import argparse

    from cli.show.renderer import Renderer

ROWS_PER_WRITE = 200
"""The number of rows per write: many for speed, but few enough that a long session is never in memory as a whole."""


def renderer(args: argparse.Namespace, *, fd: int = 2, streams: bool = False) -> Renderer:
    """Return a renderer for output to ``fd``. With ``streams`` it shows replies while they arrive."""
    from cli.show.renderer import Renderer

    color, ascii, width = terminal_style(args, fd)
    return Renderer(color=color, ascii=ascii, width=width, streams=streams)


def terminal_style(args: argparse.Namespace, fd: int) -> tuple[bool, bool, int]:
    """Return whether to write colours to a descriptor, whether to write only ASCII, and the width in columns."""
    is_tty = os.isatty(fd)
    plain = args.no_color or bool(os.environ.get("NO_COLOR")) or tty.is_dumb(os.environ)
    encoding = (getattr(sys.stderr, "encoding", None) or "ascii").lower().replace("-", "")
    width = (os.get_terminal_size(fd).columns if is_tty else 0) or 100
    return is_tty and not plain, args.ascii or encoding != "utf8", width


def show(args: argparse.Namespace, rows: Iterable[str]) -> int:
    """Write rows to standard output and return the exit code."""
    # A line end inside a value must not start a new row.
    text = "".join(f"{' '.join(row.splitlines())}\n" for row in rows)
    return report_write_error(write(1, convert_for_terminal(args, text)))


def show_pages(rows: Iterable[str]) -> int:
    """Show rows in the pager, or write them to standard output if there is no pager. Return the exit code."""
    from cli.pager import show_in_pager

    left = iter(show_in_pager(rows, os.environ))
    while piece := list(islice(left, ROWS_PER_WRITE)):
        if why := try_to_write(1, "".join(f"{row}\n" for row in piece)):
            return report_write_error(why)
    return 0


def convert_for_terminal(args: argparse.Namespace, text: str) -> str:
    """Return a text for standard output, in ASCII if the user or the terminal requires it."""
    from cli.show.signs import to_ascii

    _, ascii, _ = terminal_style(args, fd=1)
    return to_ascii(text) if ascii else text


def report_write_error(why: str) -> int:
    """Report why standard output cannot be written, unless ``why`` is empty. Return the exit code."""
    return fail(f"standard output cannot be written: {why}") if why else 0


def fail(problem: str, code: int = 1) -> int:
    """Write a problem to standard error and return the exit code."""
    write(2, f"chain: {problem}\n")
    return code


def say(text: str) -> None:
    """Write a row to standard output."""
    write(1, f"{text}\n")


def write(fd: int, text: str) -> str:
    """Write a text, which may be untrusted, without its control characters. Return an error message, or ""."""
    return try_to_write(fd, sanitize(text))
