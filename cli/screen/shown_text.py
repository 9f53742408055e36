"""How the text in the editor is shown where that is not as it is.

A long paste is one sign of a private plane in the text, and is shown as ``[pasted 300 lines]``: so the cursor, deletion
and undo treat it as a whole, and the same words typed by hand are plain text. ``whole`` is the text that is meant.

Signs without a column that join others (U+200D in a family) or change their width are not shown. Terminals do not agree
on how wide the result is; on the parts they do.
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
"""Signs for private use that nobody is known to use; which text each stands for is known to one editor."""

_NOT_SHOWN = {0x200D: None, 0xFE0E: None, 0xFE0F: None}


class Pastes:
    """The long texts of one editor, and the signs that stand for them."""

    def __init__(self) -> None:
        self._whole: dict[str, str] = {}
        """Kept for good: undo, and Ctrl-Y after Ctrl-U, may bring any of them back."""

    def folded(self, text: str) -> str:
        """Return a text for the editor: one sign if it is long. Signs that already mean another text are replaced."""
        text = "".join("\ufffd" if char in self._whole else char for char in text) if self.has_any(text) else text
        if row_count(text, screen_size().columns) <= LONGEST_SHOWN or FIRST_SIGN + len(self._whole) > LAST_SIGN:
            return text
        sign = next((sign for sign, whole in self._whole.items() if whole == text), "")
        sign = sign or chr(FIRST_SIGN + len(self._whole))
        self._whole[sign] = text
        return sign

    def folded_again(self, text: str) -> str:
        """Return a whole text with the signs in it that stand for parts of it."""
        for sign, whole in self._whole.items():
            text = text.replace(whole, sign)
        return text

    def whole(self, text: str) -> str:
        """Return the text with what its signs stand for."""
        if not self.has_any(text):
            return text
        return "".join(self._whole.get(char, char) for char in text)

    def has_any(self, text: str) -> bool:
        """Return whether there are such signs in the text."""
        return bool(self._whole) and not text.isascii() and any(char in self._whole for char in text)

    def shown(self, char: str) -> str:
        """Return how one character is shown."""
        if char in self._whole:
            return f"[pasted {amount(self._whole[char])}]"
        return char.translate(_NOT_SHOWN)


class ShownText(Processor):
    """Shows the text of an editor with its pastes."""

    def __init__(self, pastes: Pastes) -> None:
        self._pastes = pastes

    def apply_transformation(self, transformation_input: TransformationInput) -> Transformation:
        """Return one line of the text as it is shown."""
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
