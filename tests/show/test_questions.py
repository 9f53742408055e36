"""Questions as rows: nobody can make one row pass for two, or two for one."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from chain import events
from chain.text.wording import ASKED_EACH_TIME
from cli.show.questions import hint, preview_rows

TEXT = st.text(alphabet="ab $>-↪\n\t全", max_size=60)


@given(TEXT, st.integers(12, 20), st.sampled_from(["↪", "->"]))
def test_a_preview_can_be_put_together_again_from_its_rows(text: str, width: int, more: str) -> None:
    rows = [row for _, row in preview_rows(text, width, "…", more, whole=True)]
    lines: list[str] = []
    for row in rows:
        is_new = row.startswith("  ")
        assert is_new or row.startswith(f"{more} ")
        lines += [row[2:]] if is_new else [lines.pop() + row.removeprefix(f"{more} ")]
    assert lines == ([line.expandtabs(4) for line in text.split("\n")] if text.strip() else [])


def test_a_row_of_a_difference_that_goes_on_has_its_colour() -> None:
    diff = "a.txt +1 −0\n@@ -0,0 +1 @@\n+" + "x" * 30
    assert preview_rows(diff, 20, "…")[2:] == [("added", "  +" + "x" * 17), ("added", "↪ " + "x" * 13)]


def test_always_is_not_offered_where_it_would_hold_for_one_call_alone() -> None:
    asked = events.Question(
        id="Q1", kind="approval", text="Allow write_file: x", options=(), tool_call_id="1", name="w"
    )
    assert "a always" in hint(asked)
    assert "always" not in hint(replace(asked, text=asked.text + ASKED_EACH_TIME))
