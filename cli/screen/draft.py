"""The parts of the text in an editor: lines that were returned to the user, and the typed text below them. Pure.

Each returned line is sent as a line of its own if the user has not changed it. If a question was on the screen when the
first character of the typed text was typed, the typed text answers that question, and no other one.
"""

from __future__ import annotations

from collections.abc import Sequence

from chain.lines.parse import is_sent_first, is_stop
from cli.screen.protocol import Acceptance


class Draft:
    """The parts of one editor's text. The editor owns the text, and passes it to the methods that need it."""

    def __init__(self) -> None:
        self.question = ""
        """The id of the question on the screen; empty for none."""
        self._returned_lines: list[str] = []
        self._refused_lines: list[str] = []
        """The lines that a full queue refused, shown below the returned ones. Enter sends them again unchanged."""
        self._refused_text = ""
        """The whole text if it ends with a refused line; else empty. Text typed after it starts a new line."""
        self._text_to_correct = ""
        """The last refused text that must be corrected."""
        self._asked_at_start: str | None = None
        """The id of the question that was open at the first typed key, empty for none; ``None`` without typed text."""

    @property
    def question_id(self) -> str:
        """The id of the question that the typed text answers, or else of the question on the screen; empty for none."""
        return self.question if self._asked_at_start is None else self._asked_at_start

    def lines(self, text: str) -> list[str]:
        """Split the text into the returned lines, the refused lines, and the typed text, which may be empty."""
        lines = []
        for line in (*self._returned_lines, *self._refused_lines):
            if not text.startswith(f"{line}\n"):
                break
            lines.append(line)
            text = text[len(line) + 1 :]
        return [*lines, text]

    def lines_to_send(self, text: str) -> list[str]:
        """Return the lines to send, in order. All text from the first line that the user has changed is one line."""
        *above, rest = self.lines(text)
        count = len(self._returned_lines)
        self._returned_lines, self._refused_lines = above[:count], above[count:]
        return [*above, rest]

    def remove_sent(self, count: int) -> None:
        """Remove the first ``count`` lines, which were accepted."""
        for _ in range(count):
            del (self._returned_lines or self._refused_lines)[:1]

    def update(self, text: str) -> str | None:
        """Update the parts after the text has changed to ``text``.

        If the user has typed after a refused line, return the text to show: with a newline before the typed characters.
        Otherwise return ``None``.
        """
        behind, self._refused_text = self._refused_text, ""
        if behind and text == behind:
            self._refused_text = behind
        elif behind and text.startswith(behind):
            typed = text[len(behind) :]
            self._refused_lines = self.lines(behind)[len(self._returned_lines) :]
            self._asked_at_start = None
            if not typed.startswith("\n"):
                return f"{behind}\n{typed}"
        if not self.lines(text)[-1]:
            self._asked_at_start = None
        elif self._asked_at_start is None:
            self._asked_at_start = self.question
        return None

    def clear(self) -> None:
        """Remove all parts. Call this after the editor was emptied."""
        self._returned_lines, self._refused_lines, self._refused_text = [], [], ""
        self._asked_at_start = None

    def put_above(self, text: str, line: str) -> list[str]:
        """Insert a returned line below the lines that were returned earlier, above all other text. Return all lines."""
        lines = self.lines(text)
        count = min(len(self._returned_lines), len(lines) - 1)
        self._returned_lines = [*lines[:count], line]
        left = [*self._returned_lines, *lines[count:]]
        if self._refused_text:
            self._refused_text = "\n".join(left)
        return left

    def assign_to(self, question: str) -> None:
        """Let the typed text answer the question with this id. If the id is empty, the text is an ordinary line."""
        self._asked_at_start = question

    def lines_to_show(self, lines: Sequence[str], answer: Acceptance) -> list[str]:
        """Return the lines that stay in the editor after ``answer``, which did not accept the first of ``lines``."""
        if answer == "gone":
            self.assign_to("")
        if answer in ("keep", "replace", "gone") and len(lines) == 1:
            self._returned_lines, self._refused_lines = [], []
            self._text_to_correct = lines[0]
            return list(lines)
        left = list(lines if lines[-1] else lines[:-1])
        # Returned lines are first. They stay as they were submitted, perhaps with another marker.
        count = len(self._returned_lines)
        self._returned_lines, self._refused_lines = left[:count], left[count:-1]
        self._refused_text = "\n".join(left)
        return left

    def overtaking_line(self, text: str) -> tuple[str, str] | None:
        """Return the typed text and the text above it if the typed text is sent first, as a stop is.

        Return ``None`` if the text above is sent first or there is none.
        """
        *above, typed = self.lines(text)
        if above and is_sent_first(typed):
            return typed, text.removesuffix(typed)
        typed = text.removeprefix(self._text_to_correct)
        if self._text_to_correct and typed != text and is_stop(typed):
            return typed, self._text_to_correct
        self._text_to_correct = ""
        return None
