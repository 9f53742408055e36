"""The line that is typed at a terminal without an editor, key by key. Pure."""

from __future__ import annotations

from typing import Literal, TypeAlias

from chain.text.plain import sanitize

Press: TypeAlias = Literal["changed", "enter", "end", "interrupt", "suspend"]
"""What a key means: the text is another one, perhaps; the line ends; the input ends; Ctrl-C; Ctrl-Z."""

ENTER = ("\r", "\n")
_PRESSES: dict[str, Press] = {**dict.fromkeys(ENTER, "enter"), "\x03": "interrupt", "\x1a": "suspend"}
_ERASE, _ERASE_WORD, _ERASE_ALL, _END, _ESC = ("\x7f", "\x08"), "\x17", "\x15", "\x04", "\x1b"


class TypedLine:
    """The text so far. The keys are those of a terminal that edits lines itself; other controls do nothing."""

    def __init__(self) -> None:
        self.text = ""
        self._sequence = ""
        """What came of an escape sequence, such as that of an arrow key."""

    def press(self, char: str) -> Press:
        """Change the text by one character, and say what it means."""
        if self._swallows(char):
            return "changed"
        if char in _PRESSES:
            return _PRESSES[char]
        if char == _END and not self.text:
            return "end"
        if char in _ERASE:
            self.text = self.text[:-1]
        elif char == _ERASE_WORD:
            self.text = self.text.rstrip()
            self.text = self.text[: self.text.rfind(" ") + 1]
        elif char == _ERASE_ALL:
            self.text = ""
        elif sanitize(char):
            self.text += char
        return "changed"

    def take(self) -> str:
        """The text, which is empty from now on."""
        text, self.text = self.text, ""
        return text

    def _swallows(self, char: str) -> bool:
        """Whether a character belongs to an escape sequence. What follows a bare Esc is a key of its own."""
        before, self._sequence = self._sequence, ""
        if char == _ESC or (before == _ESC and char in "[O"):
            self._sequence = before + char if before == _ESC and char != _ESC else char
        elif before.startswith(f"{_ESC}[") and not "@" <= char <= "~":
            self._sequence = before + char
        else:
            return len(before) > 1
        return True
