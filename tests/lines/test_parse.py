"""Parsing a line by the grammar of SPEC section 3."""

from typing import get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from chain.lines.parse import (
    MAX_LINE,
    STOP_PHRASES,
    AddTask,
    Adjustment,
    AdjustmentType,
    ClearTasks,
    CompleteTask,
    FailTask,
    Kind,
    Line,
    ListTasks,
    PlanCommand,
    Urgency,
    is_sent_first,
    is_stop,
    nearest_word,
    parse_line,
)

KINDS: dict[Kind, list[tuple[str, str]]] = {
    # Each text with its message.
    "blank": [("", ""), (" \t\n", "")],
    "verbatim": [(" todo: add x", "todo: add x"), (" stop", "stop"), (" !now", "!now"), (" /help", "/help")],
    "local": [
        ("/help\n", "/help"),
        ("/", "/"),
        ("/? lines", "/? lines"),
        ("/mcp:docs:read a/b", "/mcp:docs:read a/b"),
        ("/to explore look there", "/to explore look there"),
        ("/to explore look\nthere", "/to explore look\nthere"),
        ("/compact the SKU\nnumbers", "/compact the SKU\nnumbers"),
    ],
    "follow-up": [("then: check the Licence", "check the Licence"), ("THEN:check", "check")],
    "context": [
        ("context: the SKU is SKU123", "[USER ADDED] the SKU is SKU123"),
        ("Context:two\nrows", "[USER ADDED] two\nrows"),
    ],
    "question": [
        ("what are you doing?", "what are you doing?"),
        ("Status", "Status"),
        ("/srv/app.py fails, why?", "/srv/app.py fails, why?"),
    ],
    "redirect": [
        ("use B \n", "use B"),
        ("Use the File Docs.MD", "Use the File Docs.MD"),
        ("!use B", "use B"),
        ("!!use B", "use B"),
        ("!  use B ", "use B"),
        ("!/etc/hosts is wrong", "/etc/hosts is wrong"),
    ],
}


@pytest.mark.parametrize(
    ("text", "kind", "message"), [(text, kind, message) for kind, rows in KINDS.items() for text, message in rows]
)
def test_a_text_determines_kind_and_message(text: str, kind: Kind, message: str) -> None:
    line = parse_line(text)
    assert (line.kind, line.message) == (kind, message)
    assert (line.command, line.adjustment, line.problem) == (None, None, "")


@pytest.mark.parametrize(
    "text",
    [
        *("/srv/app.py:12: error: x\n    return x", "/app.py:3: error: x", "/tmp is full\nwhat now"),
        *("// a comment", "/* a comment */", "/ is the root"),
        *("stop using grep", "please stop", "then check", "status report", "is it B? use C", "continue"),
        *("todo: buy milk", "plan: let us think", "todo: add x\nand y", "todo: ad x\nand y"),
        *("focus", "focus on", "skipping is fine", "@iteration 2 x"),
    ],
)
def test_similar_texts_are_plain_redirects(text: str) -> None:
    line = parse_line(text)
    assert (line.kind, line.message) == ("redirect", text)
    assert (line.command, line.adjustment, line.problem) == (None, None, "")


PHRASES = ["stop", "cancel", "abort", "nevermind", "never mind", "forget it", "don't worry", "actually no"]


@pytest.mark.parametrize("phrase", PHRASES)
@pytest.mark.parametrize(
    "form", ["{}", "{} ", "\t{}", "{}.", "{}!!!", "{} …", "{}...", "!{}", "! {} !", "!!{}", "!! {}"]
)
def test_a_stop_phrase_is_the_whole_line(phrase: str, form: str) -> None:
    assert set(STOP_PHRASES) == set(PHRASES)
    for text in (phrase, phrase.upper(), phrase.replace("'", "’")):
        assert parse_line(form.format(text)).kind == "stop"
    assert parse_line(form.format(f"{phrase} that tool")).kind != "stop"
    assert parse_line(form.format(f"do not {phrase}")).kind != "stop"


@pytest.mark.parametrize("text", ["stop?", "stop,", "stopp", "stop it", "no", "quit", "never  mind", ""])
def test_similar_texts_are_no_stop_phrases(text: str) -> None:
    assert not is_stop(text)


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("todo: add verify SKU Data", AddTask("verify SKU Data")),
        ("todo:add x", AddTask("x")),
        ("TODO: Add   x ", AddTask("x")),
        ("todo: add\tx", AddTask("x")),
        ("todo: add\u2003x", AddTask("x")),  # an em space
        ("plan: add x", AddTask("x")),
        ("todo: add 2", AddTask("2")),
        ("todo: complete 2", CompleteTask(2)),
        ("todo: done 2", CompleteTask(2)),
        ("plan: DONE #12", CompleteTask(12)),
        ("todo: fail 3", FailTask(3)),
        ("todo: fail 3 no Network", FailTask(3, "no Network")),
        ("todo: complete 0", CompleteTask(0)),
        ("todo: list", ListTasks()),
        ("todo: show", ListTasks()),
        ("Plan: Clear", ClearTasks()),
    ],
)
def test_a_plan_command_is_parsed(text: str, command: PlanCommand) -> None:
    line = parse_line(text)
    assert (line.kind, line.command, line.problem) == ("todo", command, "")
    assert (line.message, line.urgency) == (text.strip(), "next")
    urgent = parse_line(f"!{text}")
    assert (urgent.command, urgent.message, urgent.urgency) == (command, text.strip(), "urgent")


MALFORMED = {
    "todo: add <task>": ["todo:", "todo: add", "!todo: add"],
    "todo: complete <N>": [
        f"todo: {words}" for words in ("complete", "complete x", "complete -1", "complete 1 2", "done soon")
    ],
    "todo: fail <N> [reason]": ["todo: fail", "todo: fail because"],
    "todo: list": ["todo: list all"],
    "todo: clear": ["todo: clear 1"],
}
"""Malformed plan commands by the usage that the user is shown."""


@pytest.mark.parametrize(("text", "usage"), [(text, usage) for usage, rows in MALFORMED.items() for text in rows])
def test_a_malformed_plan_command_shows_its_usage(text: str, usage: str) -> None:
    line = parse_line(text)
    assert (line.kind, line.command) == ("todo", None)
    assert usage in line.problem


WORDS = ("check", "demo", "explain", "help", "init")


@pytest.mark.parametrize(
    ("mistyped", "word"),
    [("chek", "check"), ("chekc", "check"), ("CHECK", "check"), ("dmo", "demo"), ("helpp", "help")],
)
def test_a_mistyped_word_has_a_nearest_word(mistyped: str, word: str) -> None:
    assert nearest_word(mistyped, WORDS) == word


@pytest.mark.parametrize(
    "word",
    [
        *("hello", "hi", "list", "explanation", "count the lines", ""),
        pytest.param("h" * 1_000_000, id="a million letters"),
    ],
)
def test_other_words_have_no_nearest_word(word: str) -> None:
    assert nearest_word(word, WORDS) == ""


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("todo: ad x", "todo: add x"),
        ("todo: adds x", "todo: add x"),
        ("!Todo: complet 2", "todo: complete 2"),
        ("todo: conplete 2", "todo: complete 2"),
        ("plan: lsit", "todo: list"),
        ("todo: fial 2 no network", "todo: fail 2 no network"),
        ("tood: add x", "todo: add x"),
        ("todos: done 3", "todo: done 3"),
    ],
)
def test_a_mistyped_plan_command_suggests_the_right_one(text: str, meant: str) -> None:
    line = parse_line(text)
    assert (line.kind, line.command) == ("todo", None)
    assert f"did you mean {meant}?" in line.problem
    assert parse_line(meant).command is not None
    assert parse_line(f" {text}").kind == "verbatim"
    # In a pipe, a mistyped command is text for the model.
    assert (parse_line(text, local=False).kind, parse_line(text, local=False).problem) == ("redirect", "")


@pytest.mark.parametrize(
    "text",
    [
        *("todo: maybe later", "todo: and then the tests", "todo: ask him", "todo: shows nothing"),
        *("todo: lists the files", "todo: complet the form", "note: add x", "toto: add x"),
        *("todos: buy milk", "food: add salt"),
    ],
)
def test_other_words_are_no_typing_mistakes(text: str) -> None:
    assert (parse_line(text).kind, parse_line(text).problem) == ("redirect", "")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("!", "after the !, for example: !use"),
        ("! !", "after the !, for example: !use"),
        ("!\u2000", "after the !, for example: !use"),  # an en quad, a kind of space
        ("!!", "after the !!, for example: !!use"),
        ("then:", "then: check"),
        ("then: ", "then: check"),
        ("context:", "context: the SKU"),
        ("!context: ", "context: the SKU"),
    ],
)
def test_a_marker_needs_a_text(text: str, hint: str) -> None:
    assert hint in parse_line(text).problem


def test_stops_commands_and_now_lines_are_sent_first() -> None:
    for text in ("stop", "/help", "!!use B"):
        assert is_sent_first(text)
    for text in ("!use B", "use B", "/srv/app.py fails"):
        assert not is_sent_first(text)


@pytest.mark.parametrize(
    ("text", "type", "value"),
    [
        ("focus on SKU Data", "focus_query", "SKU Data"),
        ("skip wikipedia", "skip_source", "wikipedia"),
        ("also check the Wiki", "add_source", "the Wiki"),
        ("ignore prices", "drop_criterion", "prices"),
        ("prefer short names", "preference", "short names"),
        ("FOCUS ON X", "focus_query", "X"),
        ("Also Check   x ", "add_source", "x"),
    ],
)
def test_guidance_has_an_adjustment(text: str, type: AdjustmentType, value: str) -> None:
    line = parse_line(text)
    assert line == Line(text, "guidance", text.strip(), adjustment=Adjustment(type, value))


@pytest.mark.parametrize(
    ("text", "kind", "urgency"),
    [
        ("use B", "redirect", "urgent"),
        ("focus on B", "guidance", "urgent"),
        ("why?", "question", "urgent"),
        ("todo: add x", "todo", "urgent"),
        ("context: x", "context", "urgent"),
        (" use B", "verbatim", "urgent"),
        ("then: x", "follow-up", "next"),
        ("!then: x", "follow-up", "next"),
        ("stop", "stop", "next"),
        ("!stop", "stop", "next"),
        ("/stop", "local", "next"),
    ],
)
def test_a_key_makes_lines_urgent(text: str, kind: Kind, urgency: Urgency) -> None:
    line = parse_line(text, urgency="urgent")
    assert (line.kind, line.urgency) == (kind, urgency)
    assert parse_line(text).urgency == "next"


def test_questions_commands_and_context_are_asides() -> None:
    for text in ("why?", "todo: add x", "context: x", "!why?"):
        assert parse_line(text).is_aside
    for text in ("use B", "skip B"):
        assert not parse_line(text).is_aside


PIECES = [
    "!", "/", " ", "todo:", "plan:", "add", "complete", "fail", "1", "then:", "context:", "focus on", "skip", "stop",
    "status", "?", ".", "\n", "\t", "\u2003", "\ud800", "\x00", "İ", "ß", "$",
]  # fmt: skip
lines = st.one_of(
    st.text(), st.lists(st.sampled_from(PIECES)).map("".join), st.lists(st.sampled_from(PIECES)).map(" ".join)
)


@given(text=lines, urgency=st.sampled_from(get_args(Urgency)), local=st.booleans())
@example("!" * MAX_LINE, "next", True)
def test_every_text_is_a_line(text: str, urgency: Urgency, local: bool) -> None:
    line = parse_line(text, urgency=urgency, local=local)

    assert line.text == text
    assert (line.kind == "blank") == (not text.strip())
    assert line.message.removeprefix("[USER ADDED] ") in text
    assert line.message.strip() or line.problem or line.kind == "blank"
    if line.kind == "todo":
        assert (line.command is None) == bool(line.problem)
    else:
        assert line.command is None
    assert (line.adjustment is not None) == (line.kind == "guidance")
    assert parse_line(text, local=False).kind != "local"


@given(text=lines)
def test_a_leading_space_makes_any_text_verbatim(text: str) -> None:
    line = parse_line(f" {text}")
    assert (line.kind, line.message) == ("verbatim" if text.strip() else "blank", text.strip())
