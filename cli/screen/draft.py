"""What the text in an editor is made of: lines that came back, and the one that is being typed. Pure.

Lines that came back to the top of the text, and were not changed, are lines of their own again. The rest was begun at
the question that was on the screen when its first character came, or at none, and answers only that.
"""

from __future__ import annotations

from collections.abc import Sequence

from chain.lines.parse import is_stop
from cli.screen.protocol import Acceptance


class Draft:
    """The parts of one editor's text, which stays the editor's and is given to each method."""

    def __init__(self) -> None:
        self.question = ""
        """The question that is on the screen; empty for none."""
        self._came_back: list[str] = []
        self._kept = ""
        """The text that was last refused and has to be corrected."""
        self._refused = ""
        """The text that is to be sent again as it is; what is typed after it is a line of its own."""
        self._begun_at: str | None = None
        """The question at which the rest was begun, empty for none; ``None`` while there is no rest."""

    @property
    def at(self) -> str:
        """The question that what is typed answers, or will."""
        return self.question if self._begun_at is None else self._begun_at

    def lines(self, text: str) -> list[str]:
        """The lines that came back, and the rest."""
        lines = []
        for line in self._came_back:
            if not text.startswith(f"{line}\n"):
                break
            lines.append(line)
            text = text[len(line) + 1 :]
        return [*lines, text]

    def changed(self, text: str) -> str | None:
        """The text was changed. Returns the text to have instead, where a new line has to begin after a refused one."""
        refused, self._refused = self._refused, ""
        if refused and text == refused:
            self._refused = refused
        elif refused and text.startswith(refused):
            typed = text[len(refused) :]
            self._came_back = [*self._came_back, self.lines(refused)[-1]]
            self._begun_at = None
            if not typed.startswith("\n"):
                return f"{refused}\n{typed}"
        if not self.lines(text)[-1]:
            self._begun_at = None
        elif self._begun_at is None:
            self._begun_at = self.question
        return None

    def cleared(self) -> None:
        """The text was emptied."""
        self._came_back = []
        self._begun_at = None

    def put_above(self, text: str, line: str) -> list[str]:
        """The lines with one that came back: above what is being typed, below others that came back before."""
        *above, typed = self.lines(text)
        self._came_back = [*above, line]
        return [*self._came_back, typed]

    def is_no_answer(self) -> None:
        """The text was begun before any question, or is a line from now on."""
        self._begun_at = ""

    def left(self, lines: Sequence[str], answer: Acceptance) -> list[str]:
        """The lines to show when the first of these was not accepted."""
        if answer == "gone":
            self.is_no_answer()
        if answer in ("keep", "gone") and len(lines) == 1:
            self._came_back = []
            self._kept = lines[0]
            return list(lines)
        left = list(lines if lines[-1] else lines[:-1])
        self._came_back = left[:-1]
        self._refused = "\n".join(left)
        return left

    def stop_in(self, text: str) -> tuple[str, str] | None:
        """A stop that was typed after text that could not be sent, and that text: a stop must always work."""
        for before in (self._kept, "".join(f"{line}\n" for line in self.lines(text)[:-1])):
            typed = text.removeprefix(before)
            if before and typed != text and is_stop(typed):
                return typed, before
        self._kept = ""
        return None
