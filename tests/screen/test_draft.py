"""The parts of the text in an editor."""

import pytest

from cli.screen.draft import Draft


def draft_below(*returned_lines: str, typed: str) -> tuple[Draft, str]:
    """Return a draft with returned lines above a typed text, and the whole text."""
    draft, text = Draft(), typed
    for line in returned_lines:
        text = "\n".join(draft.put_above(text, line))
    return draft, text


def test_a_changed_line_joins_the_lines_below_it() -> None:
    draft, text = draft_below("a", "b", "c", typed="typed")
    assert draft.lines_to_send(text.replace("b", "B")) == ["a", "B\nc\ntyped"]
    remaining = draft.lines_to_show(["a", "B\nc\ntyped"], "later")
    assert draft.lines("\n".join(remaining)) == ["a", "B\nc\ntyped"]


@pytest.mark.parametrize("sent_count", [0, 1, 2])
def test_unsent_lines_stay_separate_with_their_markers(sent_count: int) -> None:
    draft, text = draft_below("use B", "use C", typed="x")
    lines = [f"!{line}" for line in draft.lines_to_send(text)]
    draft.remove_sent(sent_count)
    unsent = lines[sent_count:]
    assert draft.lines_to_show(unsent, "later") == unsent
    assert draft.lines("\n".join(unsent)) == unsent
    *_, typed = draft.put_above("\n".join(unsent), "another returned line")
    assert typed == "!x"


def test_a_returned_line_is_put_above_refused_ones() -> None:
    draft, text = draft_below("one", typed="refused")
    text = "\n".join(draft.lines_to_show(draft.lines_to_send(text), "later"))
    separated = draft.update(f"{text}t")
    assert separated == "one\nrefused\nt"
    draft.update(separated)
    assert draft.put_above(separated, "two") == ["one", "two", "refused", "t"]


@pytest.mark.parametrize(
    ("typed", "is_sent_first"),
    [("stop", True), ("/drop", True), ("!!now", True), ("!urgent", False), ("text", False)],
)
def test_stops_and_commands_precede_unsent_lines(typed: str, is_sent_first: bool) -> None:
    draft, text = draft_below("one", "two", typed=typed)
    assert draft.overtaking_line(text) == ((typed, "one\ntwo\n") if is_sent_first else None)


@pytest.mark.parametrize(
    ("typed", "line_and_rest"), [("stop", ("stop", "todo: complete x")), ("/y", None)], ids=["stop", "command"]
)
def test_only_a_stop_passes_a_text_to_correct(typed: str, line_and_rest: tuple[str, str] | None) -> None:
    draft = Draft()
    draft.lines_to_show(["todo: complete x"], "keep")
    assert draft.overtaking_line(f"todo: complete x{typed}") == line_and_rest
