"""The display of the editor's text: labels for long pastes, and no joining characters."""

from __future__ import annotations

import pytest
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.document import Document
from prompt_toolkit.layout.controls import BufferControl
from prompt_toolkit.layout.processors import TransformationInput

from cli.screen.shown_text import Pastes, ShownText
from cli.show.text_rows import LONGEST_SHOWN

LONG = "".join(f"row {n}\n" for n in range(300))


def shown(pastes: Pastes, line: str) -> tuple[str, list[int], list[int]]:
    """Return the display of a line, the display column of each character, and the reverse."""
    document = Document(line)
    given = TransformationInput(
        BufferControl(Buffer(document=document)), document, 0, lambda at: at, [("", line), ("", " ")], 80, 1
    )
    made = ShownText(pastes).apply_transformation(given)
    text = "".join(part[1] for part in made.fragments).removesuffix(" ")
    return (
        text,
        [made.source_to_display(at) for at in range(len(line) + 1)],
        [made.display_to_source(at) for at in range(len(text) + 1)],
    )


def test_a_long_paste_is_one_labelled_character() -> None:
    pastes = Pastes()
    sign = pastes.fold(LONG)
    assert len(sign) == 1
    text, there, back = shown(pastes, f"a {sign} b")
    assert text == "a [pasted 300 lines] b"
    assert there == [0, 1, 2, 20, 21, 22]
    assert back == [0, 1, *[2] * 18, 3, 4, 5]
    assert pastes.whole(f"a {sign} b") == f"a {LONG} b"
    assert pastes.fold_again(f"a {LONG} b") == f"a {sign} b"


@pytest.mark.parametrize(
    ("text", "shows"),
    [
        ("x", None),
        ("x\n" * (LONGEST_SHOWN - 1) + "x", None),
        ("x" * 80 * LONGEST_SHOWN, None),
        ("x" * 80 * LONGEST_SHOWN + "x", "[pasted 1,601 characters]"),
        ("漢" * 41 * LONGEST_SHOWN, "[pasted 820 characters]"),
        (("x" * 160 + "\n") * 11, "[pasted 11 lines]"),
        ("x\n" * 21, "[pasted 21 lines]"),
    ],
)
def test_pastes_are_folded_by_their_rows(text: str, shows: str | None) -> None:
    pastes = Pastes()
    assert shown(pastes, pastes.fold(text))[0] == (shows or text)


def test_labels_are_text_and_signs_cannot_be_pasted() -> None:
    pastes = Pastes()
    sign = pastes.fold(LONG)
    assert pastes.whole("[pasted 300 lines]") == "[pasted 300 lines]"
    assert pastes.fold(f"x{sign}") == "x\ufffd"
    assert pastes.fold(LONG) == sign
    assert pastes.fold(f"other {LONG}") != sign


def test_joiners_and_variation_selectors_are_not_shown() -> None:
    family = "👨\u200d👩\u200d👧"
    text, there, back = shown(Pastes(), f"{family}x")
    assert text == "👨👩👧x"
    assert there == [0, 1, 1, 2, 2, 3, 4]
    assert back == [0, 2, 4, 5, 6]
    assert shown(Pastes(), "⚠\ufe0f")[0] == "⚠"
