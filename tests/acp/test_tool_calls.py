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
from chain.text.wording import NO_USER_CHOOSES
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
        ("shell", {"command": "x" * LONGEST_TITLE}, f"shell: {'x' * (LONGEST_TITLE - len('shell: '))}…"),
    ],
    ids=["path", "path and pattern", "two rows", "no input", "wrong type", "invisible characters", "long"],
)
def test_a_title_has_the_main_input(name: str, input: dict[str, object], title: str) -> None:
    assert title_of(name, input) == title


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
    ids=["path", "path and line", "boolean as line", "empty path", "null character", "number as path", "no path"],
)
def test_a_location_is_a_usable_path(input: dict[str, object], expected: list[object]) -> None:
    assert locations_of(input, WORKSPACE) == expected


LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "@@ -1 +1 @@\n", "\\ x\n", "-\n", "+d\n", "\n"]), max_size=12)
FILES = st.builds(lambda lines, end: "".join(lines) + end, LINES, st.sampled_from(["", "end"]))


@given(FILES, FILES)
def test_differences_turn_the_old_file_into_the_new(old: str, new: str) -> None:
    if old == new:
        return
    diff = apply_edit("a file", FileText(old), Whole(new)).diff
    patched, rest = "", old
    for part in preview_content(diff, diff.text, WORKSPACE):
        assert (part["type"], part["path"]) == ("diff", "/home/me/a file")
        # The text between two differences is the same in both files.
        lines_before = max(part["_meta"]["chain"]["line"] - 1, 0)  # an empty new file has the line 0
        start = len("".join(new.splitlines(keepends=True)[:lines_before]))
        unchanged = start - len(patched)
        patched, rest = patched + rest[:unchanged], rest[unchanged:]
        removed = part["oldText"] or ""
        assert rest.startswith(removed)
        patched, rest = patched + part["newText"], rest.removeprefix(removed)
    assert patched + rest == new


@pytest.mark.parametrize(
    ("diff", "preview", "shown"),
    [
        (None, "rm -rf x", "rm -rf x"),
        (FileDiff("empty.txt"), "empty.txt +0 −0", "empty.txt +0 −0"),
        (None, "echo a \x08 \u200bc", r"echo a \x08 \u200bc"),
    ],
    ids=["command", "empty file", "invisible characters"],
)
def test_a_preview_without_difference_is_fenced(diff: FileDiff | None, preview: str, shown: str) -> None:
    [content] = preview_content(diff, preview, WORKSPACE)
    assert content["content"]["text"] == f"```\n{shown}\n```"


def test_invisible_characters_of_an_edit_are_escaped() -> None:
    diff = apply_edit("a", FileText("x\n"), Whole("x\u202ey\n")).diff
    [difference] = preview_content(diff, diff.text, WORKSPACE)
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


def choose(id: object) -> dict[str, Any]:
    """Return the answer of an editor whose user chose an option."""
    return {"outcome": {"outcome": "selected", "optionId": id}}


def fill_in(**fields: object) -> dict[str, Any]:
    """Return the answer of an editor whose user filled in a form."""
    return {"action": "accept", "content": fields}


def test_an_offered_escalation_is_an_option() -> None:
    _, parameters = question_request(APPROVAL, {}, has_forms=False)
    yes, outside_the_sandbox, always, no = "y", "o", "a", "n"
    assert [option["optionId"] for option in parameters["options"]] == [yes, outside_the_sandbox, always, no]


@pytest.mark.parametrize("option", ["y", "o", "a", "n"])
def test_an_approval_is_decided_by_the_option(option: str) -> None:
    assert question_answer(APPROVAL, choose(option)) == option


@pytest.mark.parametrize(
    "result",
    [choose("w"), choose("nonsense"), choose(5), {"outcome": 5}, None],
    ids=["not offered", "unknown", "number", "malformed", "null"],
)
def test_any_other_answer_denies_an_approval(result: object) -> None:
    assert question_answer(APPROVAL, result) == "n"


@pytest.mark.parametrize(
    ("result", "answer"),
    [
        pytest.param(choose("2"), "2", id="option"),
        pytest.param(fill_in(choice="2"), "2", id="option in a form"),
        pytest.param(fill_in(choice="2", other=" "), "2", id="blank text"),
        pytest.param(fill_in(choice="1", other="go back"), "go back", id="text instead of an option"),
    ],
)
def test_a_choice_is_an_option_or_a_text(result: object, answer: str) -> None:
    assert question_answer(CHOICE, result) == answer


@pytest.mark.parametrize(
    "result",
    [
        pytest.param(choose("none"), id="none of the options"),
        pytest.param({"outcome": {"outcome": "cancelled"}}, id="cancelled"),
        pytest.param({"outcome": 5}, id="malformed"),
        pytest.param(fill_in(choice="3"), id="unknown option"),
        pytest.param(fill_in(choice=1), id="number as option"),
        pytest.param(fill_in(other="x" * (MAX_LINE + 1)), id="too long"),
        pytest.param({"action": "accept", "content": None}, id="no content"),
        pytest.param({"action": "decline"}, id="form declined"),
        pytest.param({"action": "cancel"}, id="form cancelled"),
        pytest.param({"action": 5}, id="malformed form"),
    ],
)
def test_any_other_answer_chooses_nothing(result: object) -> None:
    assert question_answer(CHOICE, result) == NO_USER_CHOOSES
