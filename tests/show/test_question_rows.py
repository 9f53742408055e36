"""Questions as rows: the user sees what an approval covers, and cannot approve by mistake."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain import events
from chain.text.hunks import FileDiff, Hunk
from chain.text.wording import ASKED_EACH_TIME
from cli.show.question_rows import answer_keys, answer_parts, fence, hint, preview_rows, title, unclear

TEXT = st.text(alphabet="ab $>-↪\n\t全", max_size=60)


def asked(name: str = "write_file", text: str = "Allow write_file: x", **more: Any) -> events.Question:
    return events.Question(id="Q1", kind="approval", text=text, options=(), tool_call_id="1", name=name, **more)


SHELL = asked("shell", "Allow shell: ls", always="subject")
EACH_TIME = asked(only_by_name=".git")
ESCALATING = replace(SHELL, escalations=("network", "outside"))


@given(TEXT, st.integers(12, 20), st.sampled_from(["↪", "->"]))
def test_a_previews_rows_can_be_joined_again(text: str, width: int, more: str) -> None:
    lines: list[str] = []
    for _, row in preview_rows(asked(preview=text), width, "…", more, whole=True):
        is_new = row.startswith("  ")
        assert is_new or row.startswith(f"{more} ")
        lines += [row[2:]] if is_new else [lines.pop() + row.removeprefix(f"{more} ")]
    assert lines == ([line.expandtabs(4) for line in text.split("\n")] if text.strip() else [])


@pytest.mark.parametrize(
    ("text", "unit"), [("\n".join(map(str, range(1, 100))), "lines"), ("1" + "x" * 2_000 + "99", "rows")]
)
def test_a_long_preview_is_cut_in_the_middle(text: str, unit: str) -> None:
    question = asked(preview=text)
    rows = [row for _, row in preview_rows(question, 40, "…")]
    (note,) = [row for row in rows if f" more {unit}; /diff shows all" in row]
    left_out = len(preview_rows(question, 40, "…", whole=True)) - (len(rows) - 1)
    assert note == f"  … {left_out} more {unit}; /diff shows all"
    assert (rows[0][:3], rows[-1][-2:]) == ("  1", "99")


def test_a_long_row_breaks_between_words() -> None:
    rows = [row for _, row in preview_rows(asked(preview="rm -rf build/cache /home/ada/notes"), 24, "…")]
    assert rows == ["  rm -rf build/cache", "↪  /home/ada/notes"]


def test_only_a_difference_has_its_colours() -> None:
    diff = asked(diff=FileDiff("a.txt", (Hunk(0, 1, ("+" + "x" * 30,)),)))
    assert preview_rows(diff, 20, "…")[2:] == [("added", "  +" + "x" * 17), ("added", "↪ " + "x" * 13)]
    lookalike = asked(preview="a.txt +1 −0\n@@ -0,0 +1 @@\n+x")
    assert {style for style, _ in preview_rows(lookalike, 40, "…")} == {"plain"}


@pytest.mark.parametrize(
    ("question", "shown", "keys"),
    [
        (asked(), "y allow once · a allow every write_file until you leave", "yan"),
        (SHELL, "y allow once · a allow this exact command until you leave", "yan"),
        (EACH_TIME, "y allow once", "yn"),
        (
            ESCALATING,
            "y allow once · w with network · o outside the sandbox · a allow this exact command until you leave",
            "ywoan",
        ),
    ],
    ids=["tool", "command", "each time", "escalations"],
)
def test_the_hint_has_the_possible_answers(question: events.Question, shown: str, keys: str) -> None:
    assert hint(question) == f"{shown} · n refuse · or type a space, then why not"
    assert hint(question, by_key=False) == f"{shown} · n refuse · or say why not"
    assert answer_keys(question) == keys


@pytest.mark.parametrize(
    ("question", "text", "correction"),
    [
        *((asked(), text, "y, a or n") for text in ("1", "2024", "x", "o", "ye", "ok", " q ", "exit", "yes do it")),
        *((asked(), text, "") for text in ("y", "YES", "a", "always", "No", "use B", "why", "yesterday", "不行")),
        (EACH_TIME, "ok", "y or n"),
        *((ESCALATING, text, "") for text in ("w", "O")),
        (ESCALATING, "ok", "y, w, o, a or n"),
        (replace(SHELL, escalations=("outside",)), "w", "y, o, a or n"),
    ],
)
def test_a_slip_does_not_answer_an_approval(question: events.Question, text: str, correction: str) -> None:
    assert unclear(question, text) == (correction and f"{correction}; or say why not in a few words")


@pytest.mark.parametrize(
    ("options", "text", "is_answer"),
    [
        *((("left", "right"), text, True) for text in ("1", "2", "x")),
        *((("left", "right"), text, False) for text in ("3", "0")),
        ((), "7", True),
    ],
)
def test_a_choice_accepts_only_its_numbers(options: tuple[str, ...], text: str, is_answer: bool) -> None:
    assert (unclear(replace(asked(), kind="choice", options=options), text) == "") is is_answer


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"by": "user", "escalation": "network"}, "allowed once with network"),
        ({"by": "user", "escalation": "outside"}, "allowed once outside the sandbox"),
        ({"by": "config", "is_for_always": True}, 'allowed: you said "always" before'),
    ],
)
def test_an_answer_says_what_it_allows(answer: dict[str, Any], words: str) -> None:
    assert answer_parts(events.Answer(id="Q1", text="", decision="allowed", **answer)) == ("✓", f"Q1 {words}")


DIFF = "a.txt +1 −0\n@@ -0,0 +1 @@\n+x"


@pytest.mark.parametrize(
    ("question", "shown"),
    [
        (asked(text="Allow write_file: a.txt", subject="a.txt", preview=DIFF), "Allow write_file?"),
        (
            asked(text="Allow write_file: .git", subject="a.txt", only_by_name=".git", preview=DIFF),
            f"Allow write_file?{ASKED_EACH_TIME}",
        ),
        (asked("shell", "Allow shell: ls", subject="ls", preview="ls"), "Allow shell: ls"),
        (asked(text="Allow write_file: b.txt", subject="b.txt", preview=DIFF), "Allow write_file: b.txt"),
        (asked("deploy", "Allow deploy: prod", subject="prod", preview="Restarts products"), "Allow deploy: prod"),
        (asked("pay", "Allow pay: 5", subject="5", preview="2025\n5"), "Allow pay: 5"),
    ],
)
def test_the_title_omits_only_what_starts_the_preview(question: events.Question, shown: str) -> None:
    assert title(question) == f"Q1 {shown}"


@pytest.mark.parametrize(
    ("protections", "words"),
    [
        (("writes", "network", "signals", "devices"), "sandboxed: no network, writes here only"),
        (("writes", "unix_sockets"), "sandboxed: writes here only"),
        (("signals", "devices"), "sandboxed: no signals to other programs, no terminals or devices"),
        ((), ""),
    ],
)
def test_the_protections_are_named(protections: tuple[str, ...], words: str) -> None:
    assert fence(asked("shell", protections=protections)) == words
