"""Tool calls and questions as editors show them, and the answers of editors."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain import events
from chain.lines.parse import MAX_LINE
from chain.text.hunks import FileDiff
from chain.text.wording import NOBODY_CHOOSES
from chain.tools.diff import Whole, apply_edit
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
        ("edit_file", {"path": "a.py", "old_string": "x"}, "edit_file: a.py"),
        ("search_files", {"pattern": "x", "path": "src"}, "search_files: src"),
        ("shell", {"command": "ls\n-l"}, "shell: ls -l"),
        ("plan_list", {}, "plan_list"),
        ("reviewer", {"task": 5}, "reviewer"),
        ("shell", {"command": "echo \x1b[2J \u202eback"}, r"shell: echo \x1b[2J \u202eback"),
        ("shell", {"command": "x" * 10_000}, f"shell: {'x' * (LONGEST_TITLE - 7)}…"),
    ],
)
def test_a_title_has_the_main_input(name: str, input: dict[str, object], title: str) -> None:
    assert title_of(name, input) == title


@pytest.mark.parametrize(
    ("input", "expected"),
    [
        ({"path": "src/a.py"}, [{"path": "/home/me/src/a.py"}]),
        ({"path": "a.py", "offset": 7}, [{"path": "/home/me/a.py", "line": 7}]),
        ({"path": "a.py", "offset": True}, [{"path": "/home/me/a.py"}]),
        *(({"path": path}, []) for path in ("", "a\0b", 5)),
        ({}, []),
    ],
)
def test_a_location_is_a_usable_path(input: dict[str, object], expected: list[object]) -> None:
    assert locations_of(input, WORKSPACE) == expected


LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "@@ -1 +1 @@\n", "\\ x\n", "-\n", "+d\n", "\n"]), max_size=12)
ENDS = st.sampled_from(["", "end"])


@given(LINES, ENDS, LINES, ENDS)
def test_differences_turn_the_old_file_into_the_new(
    before: list[str], before_end: str, after: list[str], after_end: str
) -> None:
    old, new = "".join(before) + before_end, "".join(after) + after_end
    made = apply_edit("a file", FileText(old), Whole(new))
    if old == new:
        return
    result, place = "", 0
    for each in preview_content(made.diff, made.diff.text, WORKSPACE):
        assert (each["type"], each["path"]) == ("diff", "/home/me/a file")
        part = each["oldText"] or ""
        # The text between two differences is the same on both sides.
        line = max(each["_meta"]["chain"]["line"] - 1, 0)
        between = len("".join(new.splitlines(keepends=True)[:line])) - len(result)
        result += old[place : place + between]
        place += between
        assert old[place : place + len(part)] == part
        result += each["newText"]
        place += len(part)
    assert result + old[place:] == new


@pytest.mark.parametrize(
    ("diff", "preview", "shown"),
    [
        (None, "rm -rf x", "rm -rf x"),
        (FileDiff("empty.txt"), "empty.txt +0 −0", "empty.txt +0 −0"),
        (None, "echo a \x08 \u200bc", r"echo a \x08 \u200bc"),
    ],
)
def test_a_preview_without_difference_is_fenced(diff: FileDiff | None, preview: str, shown: str) -> None:
    [content] = preview_content(diff, preview, WORKSPACE)
    assert content["content"]["text"] == f"```\n{shown}\n```"


def test_invisible_characters_of_an_edit_are_escaped() -> None:
    made = apply_edit("a", FileText("x\n"), Whole("x\u202ey\n"))
    [difference] = preview_content(made.diff, made.diff.text, WORKSPACE)
    assert difference["newText"] == "x\\u202ey\n"


@given(st.text(alphabet="`a\n", max_size=20))
def test_no_text_ends_its_fence(text: str) -> None:
    first, *inside, last = in_fence(text).split("\n")
    assert first == last
    assert set(first) == {"`"}
    assert all(not (row.startswith(first) and set(row) == {"`"}) for row in inside)


APPROVAL = events.Question(
    id="Q1", kind="approval", text="Allow shell: ls", options=(), tool_call_id="1", name="shell",
    escalations=("outside",),
)  # fmt: skip
CHOICE = replace(APPROVAL, kind="choice", text="Which?", options=("left", "right"))


def chosen(id: object) -> dict[str, Any]:
    return {"outcome": {"outcome": "selected", "optionId": id}}


def accepted(**content: object) -> dict[str, Any]:
    return {"action": "accept", "content": content}


def test_an_offered_escalation_is_an_option() -> None:
    _, parameters = question_request(APPROVAL, {}, has_forms=False)
    assert [each["optionId"] for each in parameters["options"]] == ["y", "o", "a", "n"]


@pytest.mark.parametrize(
    ("question", "result", "answer"),
    [
        *((APPROVAL, chosen(id), id) for id in ("y", "o", "a", "n")),
        *((APPROVAL, result, "n") for result in (chosen("w"), chosen("nonsense"), chosen(5), {"outcome": 5}, None)),
        *((CHOICE, result, "2") for result in (chosen("2"), accepted(choice="2"), accepted(choice="2", other=" "))),
        (CHOICE, accepted(choice="1", other="go back"), "go back"),
        *((CHOICE, result, NOBODY_CHOOSES) for result in (
            *(chosen("none"), {"outcome": {"outcome": "cancelled"}}, {"outcome": 5}),
            *(accepted(choice="3"), accepted(choice=1), accepted(other="x" * (MAX_LINE + 1))),
            *({"action": "accept", "content": None}, {"action": "decline"}, {"action": "cancel"}, {"action": 5}),
        )),
    ],
)  # fmt: skip
def test_only_an_offered_answer_counts(question: events.Question, result: object, answer: str) -> None:
    assert question_answer(question, result) == answer
