"""Questions as rows: the user sees what an approval covers, and cannot approve by mistake."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain import events
from chain.text.hunks import FileDiff, Hunk
from chain.text.wording import ASKED_EACH_TIME
from cli.show.question_rows import answer_keys, answer_parts, fence, hint, option_rows, preview_rows, title, warning

DIFF = "a.txt +1 −0\n@@ -0,0 +1 @@\n+x"


def approval(name: str = "write_file", text: str = "Allow write_file: x", **more: Any) -> events.Question:
    return events.Question(id="Q1", kind="approval", text=text, options=(), tool_call_id="1", name=name, **more)


WRITE = approval()
SHELL = approval("shell", "Allow shell: ls", always="subject")
WRITE_TO_GIT = approval(only_by_name=".git")
ESCALATING = replace(SHELL, escalations=("network", "outside"))


@given(st.text(alphabet="ab $>-↪\n\t全", max_size=60), st.integers(12, 20), st.sampled_from(["↪", "->"]))
def test_a_previews_rows_can_be_joined_again(preview: str, width: int, continuation: str) -> None:
    lines: list[str] = []
    for _, row in preview_rows(approval(preview=preview), width, "…", continuation, whole=True):
        if row.startswith("  "):
            lines.append(row.removeprefix("  "))
        else:
            assert row.startswith(f"{continuation} ")
            lines[-1] += row.removeprefix(f"{continuation} ")
    assert lines == ([line.expandtabs(4) for line in preview.split("\n")] if preview.strip() else [])


@pytest.mark.parametrize(
    ("preview", "unit"),
    [("\n".join(map(str, range(1, 100))), "lines"), ("1" + "x" * 2_000 + "99", "rows")],
    ids=["many lines", "long line"],
)
def test_a_long_preview_is_cut_in_the_middle(preview: str, unit: str) -> None:
    question = approval(preview=preview)
    first, *_, last = rows = [row for _, row in preview_rows(question, 40, "…")]
    assert first.startswith("  1")
    assert last.endswith("99")
    (note,) = [row for row in rows if f" more {unit}; /diff shows all" in row]
    rows_of_whole = preview_rows(question, 40, "…", whole=True)
    rows_beside_note = len(rows) - 1
    assert note == f"  … {len(rows_of_whole) - rows_beside_note} more {unit}; /diff shows all"


def test_a_long_row_breaks_between_words() -> None:
    rows = [row for _, row in preview_rows(approval(preview="rm -rf build/cache /home/ada/notes"), 24, "…")]
    assert rows == ["  rm -rf build/cache", "↪  /home/ada/notes"]


def test_a_difference_has_its_colours() -> None:
    diff = FileDiff("a.txt", (Hunk(0, 1, ("+" + "x" * 30,)),))
    assert preview_rows(approval(diff=diff), 20, "…") == [
        ("plain", "  a.txt +1 −0"),
        ("place", "  @@ -0,0 +1 @@"),
        ("added", "  +" + "x" * 17),
        ("added", "↪ " + "x" * (30 - 17)),
    ]


def test_text_that_looks_like_a_difference_is_plain() -> None:
    rows = preview_rows(approval(preview=DIFF), 40, "…")
    assert {style for style, _ in rows} == {"plain"}


@pytest.mark.parametrize(
    ("question", "shown", "keys"),
    [
        pytest.param(WRITE, "y allow once · a allow every write_file until you leave", "yan", id="tool"),
        pytest.param(SHELL, "y allow once · a allow this exact command until you leave", "yan", id="command"),
        pytest.param(WRITE_TO_GIT, "y allow once", "yn", id="protected path"),
        pytest.param(
            ESCALATING,
            "y allow once · w with network · o outside the sandbox · a allow this exact command until you leave",
            "ywoan",
            id="escalations",
        ),
    ],
)
def test_the_hint_has_the_possible_answers(question: events.Question, shown: str, keys: str) -> None:
    assert hint(question) == f"{shown} · n refuse · or a space, then the reason"
    assert hint(question, by_key=False) == f"{shown} · n refuse · or type the reason"
    assert answer_keys(question) == keys


def choice(*options: str) -> events.Question:
    return replace(WRITE, kind="choice", options=options)


@pytest.mark.parametrize(
    ("question", "typed", "keys"),
    [
        *((WRITE, typed, "y, a or n") for typed in ("1", "2024", "x", "o", "ye", "ok", " q ", "exit", "yes do it")),
        (WRITE_TO_GIT, "ok", "y or n"),
        (ESCALATING, "ok", "y, w, o, a or n"),
        (replace(SHELL, escalations=("outside",)), "w", "y, o, a or n"),  # w is the key of another escalation
    ],
)
def test_a_slip_does_not_answer_an_approval(question: events.Question, typed: str, keys: str) -> None:
    assert warning(question, typed) == f"{keys}; or say why not in a few words"


@pytest.mark.parametrize("typed", ["3", "0"])
def test_another_number_does_not_answer_a_choice(typed: str) -> None:
    assert warning(choice("left", "right"), typed) == "type a number from 1 to 2, or answer in words"


@pytest.mark.parametrize(
    ("question", "typed"),
    [
        *((WRITE, typed) for typed in ("y", "YES", "a", "always", "No", "use B", "why", "yesterday", "不行")),
        *((ESCALATING, key) for key in ("w", "O")),
        *((choice("left", "right"), typed) for typed in ("1", "2", "x")),
        (choice(), "7"),  # without options a number is a word
    ],
)
def test_keys_numbers_and_words_are_answers(question: events.Question, typed: str) -> None:
    assert warning(question, typed) == ""


def test_a_long_option_is_indented() -> None:
    question = choice("red", "a blue that is not too dark", "")
    assert option_rows(question, 20) == ["  1. red", "  2. a blue that is", "     not too dark", "  3. "]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"by": "user", "escalation": "network"}, "allowed once with network"),
        ({"by": "user", "escalation": "outside"}, "allowed once outside the sandbox"),
        ({"by": "config", "is_for_always": True}, 'allowed: you said "always" before'),
    ],
    ids=["with network", "outside the sandbox", "earlier always"],
)
def test_an_answer_says_what_it_allows(answer: dict[str, Any], words: str) -> None:
    assert answer_parts(events.Answer(id="Q1", text="", decision="allowed", **answer)) == ("✓", f"Q1 {words}")


WRITE_A = approval(text="Allow write_file: a.txt", subject="a.txt", preview=DIFF)
PROTECTED_WRITE = approval(text="Allow write_file: .git", subject="a.txt", only_by_name=".git", preview=DIFF)


@pytest.mark.parametrize(
    ("question", "text"),
    [(WRITE_A, "Allow write_file?"), (PROTECTED_WRITE, f"Allow write_file?{ASKED_EACH_TIME}")],
    ids=["a file's difference", "protected path"],
)
def test_the_title_omits_what_starts_the_preview(question: events.Question, text: str) -> None:
    assert title(question) == f"Q1 {text}"


@pytest.mark.parametrize(
    "question",
    [
        pytest.param(replace(SHELL, subject="ls", preview="ls"), id="the preview says no more"),
        pytest.param(replace(WRITE_A, text="Allow write_file: b.txt", subject="b.txt"), id="another file's difference"),
        pytest.param(
            approval("deploy", "Allow deploy: prod", subject="prod", preview="Restarts products"), id="part of a word"
        ),
        pytest.param(approval("pay", "Allow pay: 5", subject="5", preview="2025\n5"), id="not on the first row"),
    ],
)
def test_the_title_has_what_the_preview_omits(question: events.Question) -> None:
    assert title(question) == f"Q1 {question.text}"


@pytest.mark.parametrize(
    ("protections", "words"),
    [
        (("writes", "network", "signals", "devices"), "sandboxed: no network, writes here only"),
        (("writes", "unix_sockets"), "sandboxed: writes here only"),
        (("signals", "devices"), "sandboxed: no signals to other programs, no terminals or devices"),
        ((), ""),
    ],
    ids=["all", "no network", "neither writes nor network", "none"],
)
def test_the_main_protections_are_named(protections: tuple[str, ...], words: str) -> None:
    assert fence(approval("shell", protections=protections)) == words
