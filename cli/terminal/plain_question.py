"""Shows rows and reads an answer before there is an editor, of a terminal that edits lines itself."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from cli.writing import write_all


def show_plainly(rows: Sequence[str], *, ascii: bool) -> None:
    """Write rows to the terminal."""
    text = "".join(f"{row}\n" for row in rows)
    _write(text.encode("ascii", "backslashreplace").decode() if ascii else text)


def ask_plainly(asking: str) -> str | None:
    """What is typed after the text ``asking``; ``None`` at the end of input. Raises ``KeyboardInterrupt``."""
    try:
        _write(asking)
        answer = _read_line()
    except KeyboardInterrupt:
        _write("\n")
        raise
    if answer is None:
        _write("\n")
    return answer


def _read_line() -> str | None:
    line = b""
    with suppress(OSError):
        while piece := os.read(0, 4096):
            line += piece
            if line.endswith(b"\n"):
                return line.decode(errors="replace")
    return None


def _write(text: str) -> None:
    with suppress(OSError):
        write_all(1, text.encode(errors="replace"))
