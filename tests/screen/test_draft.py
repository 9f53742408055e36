"""The parts of the text in an editor."""

import pytest

from cli.screen.draft import Draft
from cli.screen.protocol import Acceptance

# What the session does with a line that it does not accept.
QUEUE_IS_FULL: Acceptance = "later"
NEEDS_CORRECTION: Acceptance = "keep"


def draft_below(*returned_lines: str, typed: str) -> tuple[Draft, str]:
    """Return a draft with returned lines above a typed text, and the whole text."""
    draft, text = Draft(), typed
    for line in returned_lines:
        text = "\n".join(draft.put_above(text, line))
    return draft, text


def test_a_changed_line_joins_the_lines_below_it() -> None:
    draft, text = draft_below("a", "b", "c", typed="typed")
    lines = ["a", "B\nc\ntyped"]
    assert draft.lines_to_send(text.replace("b", "B")) == lines
    assert draft.lines("\n".join(draft.lines_to_show(lines, QUEUE_IS_FULL))) == lines


@pytest.mark.parametrize("sent_count", [0, 1, 2])
def test_unsent_lines_stay_separate_with_their_markers(sent_count: int) -> None:
    draft, text = draft_below("use B", "use C", typed="x")
    urgent_lines = [f"!{line}" for line in draft.lines_to_send(text)]  # a refused line may have another marker
    draft.remove_sent(sent_count)
    unsent = urgent_lines[sent_count:]
    assert draft.lines_to_show(unsent, QUEUE_IS_FULL) == unsent
    assert draft.lines("\n".join(unsent)) == unsent
    *_, typed = draft.put_above("\n".join(unsent), "another returned line")
    assert typed == "!x"


def test_a_returned_line_is_put_above_refused_ones() -> None:
    draft, text = draft_below("one", typed="refused")
    text = "\n".join(draft.lines_to_show(draft.lines_to_send(text), QUEUE_IS_FULL))
    separated = draft.update(f"{text}new")
    assert separated == "one\nrefused\nnew", "typed text starts a new line"
    draft.update(separated)
    assert draft.put_above(separated, "two") == ["one", "two", "refused", "new"]


@pytest.mark.parametrize(
    ("typed", "is_sent_first"), [("stop", True), ("/drop", True), ("!!now", True), ("!urgent", False), ("text", False)]
)
def test_stops_and_commands_precede_unsent_lines(typed: str, is_sent_first: bool) -> None:
    draft, text = draft_below("one", "two", typed=typed)
    assert draft.overtaking_line(text) == ((typed, "one\ntwo\n") if is_sent_first else None)


@pytest.mark.parametrize(
    ("typed", "line_and_rest"), [("stop", ("stop", "todo: complete x")), ("/y", None)], ids=["stop", "command"]
)
def test_only_a_stop_passes_a_text_to_correct(typed: str, line_and_rest: tuple[str, str] | None) -> None:
    draft = Draft()
    draft.lines_to_show(["todo: complete x"], NEEDS_CORRECTION)
    text = f"todo: complete x{typed}"  # the cursor is behind the text to correct
    assert draft.overtaking_line(text) == line_and_rest
