"""Questions as rows: nobody can make one row pass for two, or two for one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain import events
from chain.text.escalations import Escalation
from chain.text.hunks import FileDiff, Hunk
from chain.text.wording import ASKED_EACH_TIME
from cli.show.question_rows import (
    UNCLEAR,
    answer_keys,
    answer_parts,
    fence,
    hint,
    preview_rows,
    title,
    unclear,
)

TEXT = st.text(alphabet="ab $>-↪\n\t全", max_size=60)


@given(TEXT, st.integers(12, 20), st.sampled_from(["↪", "->"]))
def test_a_preview_can_be_put_together_again_from_its_rows(text: str, width: int, more: str) -> None:
    rows = [row for _, row in preview_rows(asked(preview=text), width, "…", more, whole=True)]
    lines: list[str] = []
    for row in rows:
        is_new = row.startswith("  ")
        assert is_new or row.startswith(f"{more} ")
        lines += [row[2:]] if is_new else [lines.pop() + row.removeprefix(f"{more} ")]
    assert lines == ([line.expandtabs(4) for line in text.split("\n")] if text.strip() else [])


@pytest.mark.parametrize(
    ("text", "what"), [("\n".join(map(str, range(1, 100))), "lines"), ("1" + "x" * 2_000 + "99", "rows")]
)
def test_of_a_long_preview_the_beginning_and_the_end_are_shown(text: str, what: str) -> None:
    question = asked(preview=text)
    rows = [row for _, row in preview_rows(question, 40, "…")]
    (note,) = [row for row in rows if f" more {what}; /diff shows all" in row]
    left_out = len(preview_rows(question, 40, "…", whole=True)) - (len(rows) - 1)
    assert note == f"  … {left_out} more {what}; /diff shows all"
    assert rows[0].startswith("  1")
    assert rows[-1].endswith("99")


def test_a_row_of_a_difference_that_goes_on_has_its_colour() -> None:
    question = asked(diff=FileDiff("a.txt", (Hunk(0, 1, ("+" + "x" * 30,)),)))
    assert preview_rows(question, 20, "…")[2:] == [("added", "  +" + "x" * 17), ("added", "↪ " + "x" * 13)]


def test_a_long_row_breaks_between_words_and_keeps_their_spaces() -> None:
    rows = [row for _, row in preview_rows(asked(preview="rm -rf build/cache /home/ada/notes"), 24, "…")]
    assert rows == ["  rm -rf build/cache", "↪  /home/ada/notes"]


def test_a_command_that_reads_like_a_difference_is_not_shown_as_one() -> None:
    rows = preview_rows(asked(preview="a.txt +1 −0\n@@ -0,0 +1 @@\n+x"), 40, "…")
    assert {style for style, _ in rows} == {"plain"}


def asked(name: str = "write_file", text: str = "Allow write_file: x", **more: Any) -> events.Question:
    return events.Question(id="Q1", kind="approval", text=text, options=(), tool_call_id="1", name=name, **more)


def test_always_is_not_offered_where_it_would_hold_for_one_call_alone() -> None:
    assert "a allow every write_file until you leave" in hint(asked())
    assert "a allow this exact command until you leave" in hint(asked("shell", "Allow shell: ls", always="subject"))
    assert answer_keys(asked()) == "yan"
    each_time = asked(only_by_name=".git")
    assert "a allow" not in hint(each_time)
    assert answer_keys(each_time) == "yn"


def test_an_escalation_is_offered_where_the_question_has_it_and_else_asked_back() -> None:
    question = asked("shell", "Allow shell: ls", always="subject", escalations=("network", "outside"))
    assert hint(question).startswith(
        "y allow once · w with network · o outside the sandbox · a allow this exact command"
    )
    assert (answer_keys(question), unclear(question, "w"), unclear(question, "O")) == ("ywoan", "", "")
    assert unclear(question, "ok") == "y, w, o, a or n; or say why not in a few words"
    only_outside = replace(question, escalations=("outside",))
    assert answer_keys(only_outside) == "yoan"
    assert unclear(only_outside, "w") == "y, o, a or n; or say why not in a few words"
    assert unclear(asked(), "o") == UNCLEAR


@pytest.mark.parametrize(
    ("escalation", "words"), [("network", "allowed once with network"), ("outside", "allowed once outside the sandbox")]
)
def test_an_answer_names_its_escalation(escalation: Escalation, words: str) -> None:
    answer = events.Answer(id="Q1", text="", decision="allowed", by="user", escalation=escalation)
    assert answer_parts(answer) == ("✓", f"Q1 {words}")


def test_a_reason_needs_a_space_first_only_where_one_key_answers() -> None:
    assert "(a space first)" in hint(asked())
    assert "(a space first)" not in hint(asked(), by_key=False)


@pytest.mark.parametrize(
    ("text", "is_unclear"),
    [
        *((text, True) for text in ("1", "12", "2024", "x", "?", "ye", "ok", " q ", "help", "exit")),
        *((text, True) for text in ("yes do it", "OK, go on")),
        *((text, False) for text in ("y", "YES", "a", "always", "n", "No")),
        *((text, False) for text in ("use B", "why", "not 2", "yesterday", "不行")),
    ],
)
def test_a_digit_or_a_slip_is_no_answer_to_an_approval(text: str, is_unclear: bool) -> None:
    assert bool(unclear(asked(), text)) is is_unclear


@pytest.mark.parametrize(("text", "is_unclear"), [("1", False), ("2", False), ("3", True), ("0", True), ("x", False)])
def test_a_number_that_a_choice_does_not_have_is_asked_back(text: str, is_unclear: bool) -> None:
    assert bool(unclear(replace(asked(), kind="choice", options=("left", "right")), text)) is is_unclear


def test_a_number_answers_a_choice_without_options() -> None:
    assert unclear(replace(asked(), kind="choice", options=()), "7") == ""


def test_what_is_approved_is_never_left_out_by_chance() -> None:
    """What a call is about stands in the title unless it begins the rows below it."""
    products = asked("deploy", "Allow deploy: prod", subject="prod", preview="Restarts all products")
    assert title(products) == "Q1 Allow deploy: prod"
    assert title(asked("pay", "Allow pay: 5", subject="5", preview="2025\n5")) == "Q1 Allow pay: 5"


def test_what_a_call_is_about_is_said_once() -> None:
    diff = "a.txt +1 −0\n@@ -0,0 +1 @@\n+x"
    assert title(asked(text="Allow write_file: a.txt", subject="a.txt", preview=diff)) == "Q1 Allow write_file?"
    assert title(asked("shell", "Allow shell: ls", subject="ls", preview="ls")) == "Q1 Allow shell: ls"
    each_time = asked(text="Allow write_file: .git", subject="a.txt", only_by_name=".git", preview=diff)
    assert title(each_time) == f"Q1 Allow write_file?{ASKED_EACH_TIME}"
    # What the preview does not show stays.
    assert title(asked(text="Allow write_file: b.txt", subject="b.txt", preview=diff)) == "Q1 Allow write_file: b.txt"


@pytest.mark.parametrize(
    ("held", "words"),
    [
        (("writes", "network", "signals", "devices"), "sandboxed: no network, writes here only"),
        (("writes", "unix_sockets"), "sandboxed: writes here only"),
        (("network",), "sandboxed: no network"),
        (("signals", "devices"), "sandboxed: no signals to other programs, no terminals or devices"),
        ((), ""),
    ],
)
def test_what_fences_a_command_in_is_said_in_words_and_only_what_holds(held: tuple[str, ...], words: str) -> None:
    assert fence(asked("shell", protections=held)) == words


def test_an_answer_of_before_that_allows_a_call_is_told() -> None:
    answer = events.Answer(id="Q1", text="", decision="allowed", by="config", is_for_always=True)
    assert answer_parts(answer) == ("✓", 'Q1 allowed: you said "always" before')
