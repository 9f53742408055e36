"""The parts of the text in an editor."""

from collections.abc import Sequence

import pytest

from cli.screen.draft import Draft


def with_lines(*lines: str, typed: str = "typed") -> tuple[Draft, str]:
    """Return a draft with lines that came back, and its text."""
    draft, text = Draft(), typed
    for line in lines:
        text = "\n".join(draft.put_above(text, line))
    return draft, text


def test_a_changed_line_joins_the_lines_below_it() -> None:
    draft, text = with_lines("a", "b", "c")
    text = text.replace("b", "B")
    assert draft.lines_to_send(text) == ["a", "B\nc\ntyped"]
    left = draft.lines_to_show(["a", "B\nc\ntyped"], "later")
    assert draft.lines("\n".join(left)) == ["a", "B\nc\ntyped"]


@pytest.mark.parametrize("sent", [0, 1, 2])
def test_lines_left_unsent_stay_separate_with_their_markers(sent: int) -> None:
    draft, text = with_lines("use B", "use C", typed="x")
    lines: Sequence[str] = [f"!{line}" for line in draft.lines_to_send(text)]
    draft.remove_sent(sent)
    left = draft.lines_to_show(lines[sent:], "later")
    assert left == lines[sent:]
    assert draft.lines("\n".join(left)) == left
    assert draft.put_above("\n".join(left), "back")[-1] == "!x"


def test_a_returned_line_is_put_above_refused_ones() -> None:
    draft, text = with_lines("one", typed="refused")
    text = "\n".join(draft.lines_to_show(draft.lines_to_send(text), "later"))
    separated = draft.update(f"{text}t")
    assert separated == "one\nrefused\nt"
    draft.update(separated)
    assert draft.put_above(separated, "two") == ["one", "two", "refused", "t"]


@pytest.mark.parametrize(
    ("typed", "passes"), [("stop", True), ("/drop", True), ("!!now", True), ("!urgent", False), ("text", False)]
)
def test_a_stop_or_command_passes_unsent_lines(typed: str, passes: bool) -> None:
    draft, text = with_lines("one", "two", typed=typed)
    assert draft.overtaking_line(text) == ((typed, "one\ntwo\n") if passes else None)


@pytest.mark.parametrize(("typed", "passes"), [("stop", True), ("/y", False)])
def test_only_a_stop_passes_a_text_to_correct(typed: str, passes: bool) -> None:
    draft = Draft()
    draft.lines_to_show(["todo: complete x"], "keep")
    assert draft.overtaking_line(f"todo: complete x{typed}") == (("stop", "todo: complete x") if passes else None)
