"""Tool calls as editors show them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain import events
from chain.text.hunks import FileDiff
from chain.tools.diff import Whole, change
from chain.tools.file_text import FileText
from cli.acp.shown_calls import (
    LONGEST_TITLE,
    in_fence,
    locations_of,
    preview_content,
    question_answer,
    question_request,
    title_of,
)

WORKSPACE = Path("/home/me")


@pytest.mark.parametrize(
    ("name", "input", "title"),
    [
        ("read_file", {"path": "a.py"}, "read_file: a.py"),
        ("edit_file", {"path": "a.py", "old_string": "x"}, "edit_file: a.py"),
        ("search_files", {"pattern": "x", "path": "src"}, "search_files: src"),
        ("shell", {"command": "ls\n-l"}, "shell: ls -l"),
        ("research", {"topic": "trio", "sources": []}, "research: trio"),
        ("plan_list", {}, "plan_list"),
        ("explore", {"task": "look"}, "explore: look"),
        ("reviewer", {"task": 5}, "reviewer"),
        ("shell", {"command": "echo \x1b[2J \u202eback"}, r"shell: echo \x1b[2J \u202eback"),
    ],
)
def test_title(name: str, input: dict[str, object], title: str) -> None:
    assert title_of(name, input) == title


def test_a_title_is_short() -> None:
    assert len(title_of("shell", {"command": "x" * 10_000})) == LONGEST_TITLE + 1


@pytest.mark.parametrize(
    ("input", "expected"),
    [
        ({"path": "src/a.py"}, [{"path": "/home/me/src/a.py"}]),
        ({"path": "a.py", "offset": 7}, [{"path": "/home/me/a.py", "line": 7}]),
        ({"path": "a.py", "offset": True}, [{"path": "/home/me/a.py"}]),
        ({"path": ""}, []),
        ({"path": "a\0b"}, []),
        ({"path": 5}, []),
        ({}, []),
    ],
)
def test_locations(input: dict[str, object], expected: list[object]) -> None:
    assert locations_of(input, WORKSPACE) == expected


LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "@@ -1 +1 @@\n", "\\ x\n", "-\n", "+d\n", "\n"]), max_size=12)
ENDS = st.sampled_from(["", "end"])


@given(LINES, ENDS, LINES, ENDS)
def test_a_difference_tells_both_sides(before: list[str], before_end: str, after: list[str], after_end: str) -> None:
    """Put in the place of the old text the new one gives the new file, one difference after the other."""
    old, new = "".join(before) + before_end, "".join(after) + after_end
    made = change("a file", FileText(old), Whole(new))
    shown = preview_content(made.diff, made.diff.text, WORKSPACE)
    if old == new:
        return
    told, place = "", 0
    for each in shown:
        assert (each["type"], each["path"]) == ("diff", "/home/me/a file")
        part = each["oldText"] or ""
        # What stands between two differences is the same on both sides.
        line = max(each["_meta"]["chain"]["line"] - 1, 0)
        between = len("".join(new.splitlines(keepends=True)[:line])) - len(told)
        told += old[place : place + between]
        place += between
        assert old[place : place + len(part)] == part
        told += each["newText"]
        place += len(part)
    assert told + old[place:] == new


@pytest.mark.parametrize(
    ("diff", "preview"), [(None, "rm -rf x"), (FileDiff("empty.txt"), "empty.txt +0 −0"), (None, "@@ -1 +1 @@")]
)
def test_what_is_no_difference_is_shown_as_it_is(diff: FileDiff | None, preview: str) -> None:
    [shown] = preview_content(diff, preview, WORKSPACE)
    assert shown["content"]["text"] == f"```\n{preview}\n```"


def test_nothing_is_hidden_in_what_is_asked() -> None:
    [shown] = preview_content(None, "echo a \x08\x08b \u200bc", WORKSPACE)
    assert "\\x08" in shown["content"]["text"]
    assert "\\u200b" in shown["content"]["text"]
    made = change("a", FileText("x\n"), Whole("x\u202ey\n"))
    [difference] = preview_content(made.diff, made.diff.text, WORKSPACE)
    assert difference["newText"] == "x\\u202ey\n"


@given(st.text(alphabet="`a\n", max_size=20))
def test_no_text_ends_its_fence(text: str) -> None:
    first, *inside, last = in_fence(text).split("\n")
    assert first == last
    assert set(first) == {"`"}
    assert all(not (row.startswith(first) and set(row) == {"`"}) for row in inside)


def test_an_escalation_is_an_option_where_the_question_offers_it() -> None:
    asked = {"kind": "approval", "text": "Allow shell: ls", "options": (), "tool_call_id": "1", "name": "shell"}
    question = events.Question(id="Q1", **asked, escalations=("outside",))  # type: ignore[arg-type]
    _, parameters = question_request(question, {}, has_forms=False)
    assert [each["optionId"] for each in parameters["options"]] == ["y", "o", "a", "n"]
    for chosen, answer in {"o": "o", "w": "n", "a": "a"}.items():
        assert question_answer(question, {"outcome": {"outcome": "selected", "optionId": chosen}}) == answer
