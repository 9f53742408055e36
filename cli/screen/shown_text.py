"""Converts the editor's text to the text on the screen, which differs for long pastes and some characters.

The editor's text contains a single private-use character for each long paste. It is shown as ``[pasted 300 lines]``. So
the cursor, deletion and undo treat a paste as a whole, and a label typed by hand is plain text.

Characters of no width that join others (U+200D in a family emoji) or change their width are not shown: terminals
disagree about the width of the result, but not about the width of its parts.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

from prompt_toolkit.formatted_text.utils import fragment_list_to_text
from prompt_toolkit.layout.processors import Processor, Transformation, TransformationInput
from prompt_toolkit.layout.utils import explode_text_fragments

from cli.screen.toolkit import screen_size
from cli.show.text_rows import LONGEST_SHOWN, amount, row_count

FIRST_SIGN, LAST_SIGN = 0x10F000, 0x10FFFD
"""The first and last of the private-use characters that represent pastes, which no program is known to use."""

_NOT_SHOWN = {0x200D: None, 0xFE0E: None, 0xFE0F: None}


class Pastes:
    """The long pastes of one editor, and the private-use characters that represent them."""

    def __init__(self) -> None:
        self._whole: dict[str, str] = {}
        """The pastes by their characters. No paste is removed, since undo, or Ctrl-Y after Ctrl-U, may restore it."""

    def fold(self, text: str) -> str:
        """Return the text to insert for a paste: one character that represents a long paste, else the paste.

        Characters of the paste that represent earlier pastes become U+FFFD.
        """
        text = "".join("\ufffd" if char in self._whole else char for char in text) if self.has_any(text) else text
        if row_count(text, screen_size().columns) <= LONGEST_SHOWN or FIRST_SIGN + len(self._whole) > LAST_SIGN:
            return text
        sign = next((sign for sign, whole in self._whole.items() if whole == text), "")
        sign = sign or chr(FIRST_SIGN + len(self._whole))
        self._whole[sign] = text
        return sign

    def fold_again(self, text: str) -> str:
        """Replace each known paste in a text by the character that represents it. Return the result."""
        for sign, whole in self._whole.items():
            text = text.replace(whole, sign)
        return text

    def whole(self, text: str) -> str:
        """Replace each character that represents a paste by the paste. Return the result."""
        if not self.has_any(text):
            return text
        return "".join(self._whole.get(char, char) for char in text)

    def has_any(self, text: str) -> bool:
        """Return whether the text contains a character that represents a paste."""
        return bool(self._whole) and not text.isascii() and any(char in self._whole for char in text)

    def shown(self, char: str) -> str:
        """Return the text to show for one character; empty if the character is not shown."""
        if char in self._whole:
            return f"[pasted {amount(self._whole[char])}]"
        return char.translate(_NOT_SHOWN)


class ShownText(Processor):
    """A prompt_toolkit processor that shows pastes as labels."""

    def __init__(self, pastes: Pastes) -> None:
        self._pastes = pastes

    def apply_transformation(self, transformation_input: TransformationInput) -> Transformation:
        """Return the text to show for one line, and functions that convert columns between that text and the line."""
        fragments = transformation_input.fragments
        if fragment_list_to_text(fragments).isascii():
            return Transformation(fragments)
        shown = [(style, self._pastes.shown(char)) for style, char, *_ in explode_text_fragments(fragments)]
        starts = list(accumulate((len(text) for _, text in shown), initial=0))

        def to_display(at: int) -> int:
            return starts[min(at, len(shown))]

        def to_source(at: int) -> int:
            return bisect_right(starts, at) - 1

        return Transformation([*shown], to_display, to_source)
