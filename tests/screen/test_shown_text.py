"""The display of the editor's text: labels for long pastes, and no joining characters."""

import pytest
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.document import Document
from prompt_toolkit.layout.controls import BufferControl
from prompt_toolkit.layout.processors import TransformationInput

from cli.screen.shown_text import Pastes, ShownText
from cli.show.text_rows import LONGEST_SHOWN

LONG = "".join(f"row {n}\n" for n in range(300))


def shown(pastes: Pastes, line: str) -> tuple[str, list[int], list[int]]:
    """Return the display of a line, the display column of each character, and the character at each column."""
    document = Document(line)
    source = TransformationInput(
        BufferControl(Buffer(document=document)), document, 0, lambda at: at, [("", line), ("", " ")], 80, 1
    )
    display = ShownText(pastes).apply_transformation(source)
    text = "".join(part[1] for part in display.fragments).removesuffix(" ")
    return (
        text,
        [display.source_to_display(index) for index in range(len(line) + 1)],
        [display.display_to_source(column) for column in range(len(text) + 1)],
    )


def display_of(pastes: Pastes, line: str) -> str:
    text, _, _ = shown(pastes, line)
    return text


def test_a_long_paste_is_one_labelled_character() -> None:
    pastes = Pastes()
    sign = pastes.fold(LONG)
    assert len(sign) == 1
    text, columns, indexes = shown(pastes, f"a {sign} b")
    label = "[pasted 300 lines]"
    assert text == f"a {label} b"
    end_of_label = len(f"a {label}")
    assert columns == [0, 1, 2, end_of_label, end_of_label + 1, end_of_label + 2]
    assert indexes == [0, 1, *[2] * len(label), 3, 4, 5]
    assert pastes.whole(f"a {sign} b") == f"a {LONG} b"
    assert pastes.fold_again(f"a {LONG} b") == f"a {sign} b"


ROW = "x" * 80  # up to LONGEST_SHOWN = 20 of these rows are shown


@pytest.mark.parametrize(
    "text",
    ["x", "x\n" * (LONGEST_SHOWN - 1) + "x", ROW * LONGEST_SHOWN],
    ids=["short", "as many lines as are shown", "as many rows as are shown"],
)
def test_a_short_paste_is_shown(text: str) -> None:
    pastes = Pastes()
    assert display_of(pastes, pastes.fold(text)) == text


@pytest.mark.parametrize(
    ("text", "label"),
    [
        (ROW * LONGEST_SHOWN + "x", "[pasted 1,601 characters]"),
        ("漢" * 41 * LONGEST_SHOWN, "[pasted 820 characters]"),
        ((ROW * 2 + "\n") * 11, "[pasted 11 lines]"),
        ("x\n" * 21, "[pasted 21 lines]"),
    ],
    ids=["one line", "one line of wide characters", "lines of two rows", "lines"],
)
def test_a_paste_of_many_rows_has_a_label(text: str, label: str) -> None:
    pastes = Pastes()
    assert display_of(pastes, pastes.fold(text)) == label


def test_labels_are_text_and_signs_cannot_be_pasted() -> None:
    pastes = Pastes()
    sign = pastes.fold(LONG)
    assert pastes.whole("[pasted 300 lines]") == "[pasted 300 lines]"
    assert pastes.fold(f"x{sign}") == "x\ufffd"


def test_each_long_text_has_its_own_sign() -> None:
    pastes = Pastes()
    sign = pastes.fold(LONG)
    assert pastes.fold(LONG) == sign
    assert pastes.fold(f"other {LONG}") != sign


def test_joiners_and_variation_selectors_are_not_shown() -> None:
    text, columns, indexes = shown(Pastes(), "👨\u200d👩\u200d👧x")
    assert text == "👨👩👧x"
    # A joiner has the place of the next character.
    assert columns == [0, 1, 1, 2, 2, 3, 4]
    assert indexes == [0, 2, 4, 5, 6]
    assert display_of(Pastes(), "⚠\ufe0f") == "⚠"
