"""Draws screens of the terminal emulator as an animated SVG."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from support.screen import Screen

CELL, ROW, MARGIN = 8.4, 18, 14
"""The width of a character, the height of a row and the margin, in pixels, for a font of 14."""

BACKGROUND, TEXT, FADED = "#16181d", "#d7dae0", "#8b919e"

_COLOURS = {
    "black": "#5c6370", "red": "#e8747c", "green": "#8fc97a", "brown": "#e2b86b", "blue": "#6fb1f2",
    "magenta": "#cf8ee0", "cyan": "#5fc3cf", "white": "#d7dae0",
}  # fmt: skip

_STYLE = (
    "text{font-family:ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;font-size:14px;white-space:pre}"
    "@media(prefers-reduced-motion:reduce){g{animation:none!important}}"
    ".b{font-weight:bold}"
)


@dataclass(frozen=True)
class Cell:
    """A character of the screen with its style; ``columns`` is 2 for a wide one."""

    text: str
    colour: str
    is_bold: bool
    columns: int = 1


Row = tuple[Cell, ...]


@dataclass(frozen=True)
class Frame:
    """The content of a screen from a time on, in seconds, and the row and column of a visible cursor."""

    at: float
    rows: tuple[Row, ...]
    cursor: tuple[int, int] | None = None


def frame(screen: Screen, at: float = 0.0) -> Frame:
    """Return the current content of a screen."""
    return Frame(at, tuple(_cells(screen, y) for y in range(screen.size[0])), screen.cursor)


def recording(frames: Sequence[Frame], columns: int, *, rest_s: float, about: str) -> str:
    """Return an SVG that shows the frames in a loop, the last one for ``rest_s``. ``about`` is its description.

    A viewer without animation shows only the first frame.
    """
    length = frames[-1].at + rest_s
    height = len(frames[0].rows) * ROW + 2 * MARGIN
    width = columns * CELL + 2 * MARGIN
    rows: dict[Row, str] = {}
    body, times = [], []
    for n, shown in enumerate(frames):
        used = []
        for y, row in enumerate(shown.rows):
            if row:
                name = rows.setdefault(row, f"r{len(rows)}")
                used.append(f'<use href="#{name}" y="{y * ROW}"/>')
        if shown.cursor is not None:
            y, x = shown.cursor
            used.append(
                f'<rect x="{x * CELL:.1f}" y="{y * ROW}" width="{CELL}" height="{ROW}" fill="{TEXT}" opacity=".55"/>'
            )
        ends = frames[n + 1].at if n + 1 < len(frames) else length
        start, end = 100 * shown.at / length, 100 * ends / length
        times.append(
            f"@keyframes f{n}{{0%{{visibility:{'visible' if n == 0 else 'hidden'}}}"
            f"{start:.3f}%{{visibility:visible}}{end:.3f}%{{visibility:{'visible' if end >= 100 else 'hidden'}}}"
            f"100%{{visibility:{'visible' if end >= 100 else 'hidden'}}}}}"
            f".f{n}{{animation:f{n} {length:.2f}s step-end infinite}}"
        )
        still = "" if n == 0 else ' visibility="hidden"'
        body.append(f'<g class="f{n}"{still}>{"".join(used)}</g>')
    defined = "".join(f'<g id="{name}">{_svg_of_row(row)}</g>' for row, name in rows.items())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xml:space="preserve" viewBox="0 0 {width:.0f} {height}" '
        f'width="{width:.0f}"><desc>{escape(about)}</desc>'
        f"<style>{_STYLE}{''.join(times)}</style>"
        f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>'
        f"<defs>{defined}</defs>\n"
        f'<g transform="translate({MARGIN} {MARGIN})">\n' + "\n".join(body) + "\n</g></svg>\n"
    )


def _svg_of_row(row: Row) -> str:
    """Draw a row at the height 0. Each stretch of one style has its own position, so that no font can shift it."""
    parts, x = [], 0
    for (colour, is_bold, is_wide), cells in itertools.groupby(
        row, key=lambda c: (c.colour, c.is_bold, c.columns != 1 or not c.text.isascii())
    ):
        stretch = list(cells)
        taken = sum(cell.columns for cell in stretch)
        text = "".join(cell.text for cell in stretch)
        if text.strip():
            place = " ".join(f"{(x + sum(c.columns for c in stretch[:n])) * CELL:.1f}" for n in range(len(stretch)))
            where = place if is_wide else f"{x * CELL:.1f}"
            length = "" if is_wide else f' textLength="{taken * CELL:.1f}"'
            bold = ' class="b"' if is_bold else ""
            parts.append(f'<text x="{where}" y="{ROW - 5}"{length} fill="{colour}"{bold}>{escape(text)}</text>')
        x += taken
    return "".join(parts)


def _cells(screen: Screen, y: int) -> Row:
    cells: list[Cell] = []
    for data, style in screen.cells(y):
        if not data:  # the second half of a wide character
            if cells:
                cells[-1] = replace(cells[-1], columns=2)
            continue
        cells.append(Cell(data, _colour(style.fg), style.bold))
    while cells and not cells[-1].text.strip():
        cells.pop()
    return tuple(cells)


def _colour(name: str) -> str:
    if name in ("default", ""):
        return TEXT
    if name == "faint":
        return FADED
    name = name.removeprefix("bright")
    return _COLOURS.get(name) or (f"#{name}" if len(name) == 6 else TEXT)
