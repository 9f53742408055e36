"""How the text in the editor is shown: long pastes as one sign, and no sign that joins others."""

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
    """A line as it is shown, with where each place of it is then, and the reverse."""
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


def test_a_long_paste_is_one_sign_that_is_shown_in_words_and_means_the_whole() -> None:
    pastes = Pastes()
    sign = pastes.fold(LONG)
    assert len(sign) == 1
    text, there, back = shown(pastes, f"a {sign} b")
    assert text == "a [pasted 300 lines] b"
    assert there == [0, 1, 2, 20, 21, 22]
    assert back == [0, 1, *[2] * 18, 3, 4, 5]
    assert pastes.whole(f"a {sign} b") == f"a {LONG} b"
    assert pastes.fold_again(f"a {LONG} b") == f"a {sign} b"


@pytest.mark.parametrize("rows", [1, LONGEST_SHOWN])
def test_a_paste_that_fits_stays_as_it_is(rows: int) -> None:
    text = "x\n" * (rows - 1) + "x"
    assert Pastes().fold(text) == text
    assert len(Pastes().fold(f"{text}\nx" if rows == LONGEST_SHOWN else "x")) == 1


@pytest.mark.parametrize(
    ("text", "shows"),
    [
        ("x" * 80 * LONGEST_SHOWN, None),
        ("x" * 80 * LONGEST_SHOWN + "x", "[pasted 1,601 characters]"),
        ("漢" * 41 * LONGEST_SHOWN, "[pasted 820 characters]"),
        (("x" * 160 + "\n") * 11, "[pasted 11 lines]"),
        ("x\n" * 21, "[pasted 21 lines]"),
    ],
)
def test_a_paste_is_folded_by_the_rows_that_it_fills(text: str, shows: str | None) -> None:
    pastes = Pastes()
    assert shown(pastes, pastes.fold(text))[0] == (shows or text)


def test_the_words_for_a_paste_are_plain_text_and_its_sign_cannot_be_pasted() -> None:
    pastes = Pastes()
    sign = pastes.fold(LONG)
    assert pastes.whole("[pasted 300 lines]") == "[pasted 300 lines]"
    assert pastes.fold(f"x{sign}") == "x\ufffd"
    assert pastes.fold(LONG) == sign
    assert pastes.fold(f"other {LONG}") != sign


def test_what_joins_signs_or_changes_their_width_has_no_column() -> None:
    family = "👨\u200d👩\u200d👧"
    text, there, back = shown(Pastes(), f"{family}x")
    assert text == "👨👩👧x"
    assert there == [0, 1, 1, 2, 2, 3, 4]
    assert back == [0, 2, 4, 5, 6]
    assert shown(Pastes(), "⚠\ufe0f")[0] == "⚠"
