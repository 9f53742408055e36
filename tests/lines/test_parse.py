"""What a line says: the grammar of SPEC section 3 as tables, and what holds for every text."""

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


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("", "blank", ""),
        (" \t\n", "blank", ""),
        ("use B instead", "redirect", "use B instead"),
        ("use B \n", "redirect", "use B"),
        ("Use the File Docs.MD", "redirect", "Use the File Docs.MD"),
        (" todo: add x", "verbatim", "todo: add x"),
        (" stop", "verbatim", "stop"),
        (" !now", "verbatim", "!now"),
        (" /help", "verbatim", "/help"),
        ("/help", "local", "/help"),
        ("/help\n", "local", "/help"),
        ("/", "local", "/"),
        ("/? lines", "local", "/? lines"),
        ("/mcp:docs:read a/b", "local", "/mcp:docs:read a/b"),
        ("/to explore look there", "local", "/to explore look there"),
        ("/to explore look\nthere", "local", "/to explore look\nthere"),
        ("/compact the SKU\nnumbers", "local", "/compact the SKU\nnumbers"),
        ("/srv/app.py fails, why?", "question", "/srv/app.py fails, why?"),
        ("/srv/app.py:12: error: x\n    return x", "redirect", "/srv/app.py:12: error: x\n    return x"),
        ("/app.py:3: error: x", "redirect", "/app.py:3: error: x"),
        ("/tmp is full\nwhat now", "redirect", "/tmp is full\nwhat now"),
        ("// a comment", "redirect", "// a comment"),
        ("/* a comment */", "redirect", "/* a comment */"),
        ("/ is the root", "redirect", "/ is the root"),
        ("!use B", "redirect", "use B"),
        ("!!use B", "redirect", "use B"),
        ("!  use B ", "redirect", "use B"),
        ("!/etc/hosts is wrong", "redirect", "/etc/hosts is wrong"),
        ("stop using grep", "redirect", "stop using grep"),
        ("please stop", "redirect", "please stop"),
        ("then: check the Licence", "follow-up", "check the Licence"),
        ("THEN:check", "follow-up", "check"),
        ("then check", "redirect", "then check"),
        ("context: the SKU is SKU123", "context", "[USER ADDED] the SKU is SKU123"),
        ("Context:two\nrows", "context", "[USER ADDED] two\nrows"),
        ("what are you doing?", "question", "what are you doing?"),
        ("Status", "question", "Status"),
        ("status report", "redirect", "status report"),
        ("is it B? use C", "redirect", "is it B? use C"),
        ("todo: buy milk", "redirect", "todo: buy milk"),
        ("plan: let us think", "redirect", "plan: let us think"),
        ("todo: add x\nand y", "redirect", "todo: add x\nand y"),
        ("todo: ad x\nand y", "redirect", "todo: ad x\nand y"),
        ("focus", "redirect", "focus"),
        ("focus on", "redirect", "focus on"),
        ("skipping is fine", "redirect", "skipping is fine"),
        ("@iteration 2 x", "redirect", "@iteration 2 x"),
        ("continue", "redirect", "continue"),
    ],
)
def test_the_kind_and_message_of_a_line(text: str, kind: Kind, message: str) -> None:
    line = parse_line(text)

    assert (line.kind, line.message) == (kind, message)
    assert (line.command, line.adjustment, line.problem) == (None, None, "")


PHRASES = ["stop", "cancel", "abort", "nevermind", "never mind", "forget it", "don't worry", "actually no"]


@pytest.mark.parametrize("phrase", PHRASES)
@pytest.mark.parametrize(
    "written", ["{}", "{} ", "\t{}", "{}.", "{}!!!", "{} …", "{}...", "!{}", "! {} !", "!!{}", "!! {}"]
)
def test_a_stop_phrase_is_the_whole_line(phrase: str, written: str) -> None:
    assert set(STOP_PHRASES) == set(PHRASES)
    for text in (phrase, phrase.upper(), phrase.replace("'", "’")):
        assert parse_line(written.format(text)).kind == "stop"
    assert parse_line(written.format(f"{phrase} that tool")).kind != "stop"
    assert parse_line(written.format(f"do not {phrase}")).kind != "stop"


@pytest.mark.parametrize("text", ["stop?", "stop,", "stopp", "stop it", "no", "quit", "never  mind", ""])
def test_near_misses_are_no_stop_phrases(text: str) -> None:
    assert not is_stop(text)


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("todo: add verify SKU Data", AddTask("verify SKU Data")),
        ("todo:add x", AddTask("x")),
        ("TODO: Add   x ", AddTask("x")),
        *((f"todo: add{space}x", AddTask("x")) for space in "\t\u2003"),
        ("plan: add x", AddTask("x")),
        ("todo: add 2", AddTask("2")),
        ("todo: complete 2", CompleteTask(2)),
        ("todo: done 2", CompleteTask(2)),
        ("plan: DONE #12", CompleteTask(12)),
        ("todo: fail 3", FailTask(3)),
        ("todo: fail 3 no Network", FailTask(3, "no Network")),
        ("todo: complete 0", CompleteTask(0)),
        ("todo: complete 99", CompleteTask(99)),
        ("todo: list", ListTasks()),
        ("todo: show", ListTasks()),
        ("Plan: Clear", ClearTasks()),
        ("!todo: add x", AddTask("x")),
    ],
)
def test_a_plan_command(text: str, command: PlanCommand) -> None:
    line = parse_line(text)

    assert (line.kind, line.command, line.problem) == ("todo", command, "")
    assert line.message == text.removeprefix("!").strip()
    assert line.urgency == ("now" if text.startswith("!!") else "urgent" if text.startswith("!") else "next")


@pytest.mark.parametrize(
    ("text", "usage"),
    [
        ("todo:", "todo: add <task>"),
        ("todo: add", "todo: add <task>"),
        ("todo: complete", "todo: complete <N>"),
        ("todo: complete x", "todo: complete <N>"),
        ("todo: complete -1", "todo: complete <N>"),
        ("todo: complete 1 2", "todo: complete <N>"),
        ("todo: done soon", "todo: complete <N>"),
        ("todo: fail", "todo: fail <N> [reason]"),
        ("todo: fail because", "todo: fail <N> [reason]"),
        ("todo: list all", "todo: list"),
        ("todo: clear 1", "todo: clear"),
        ("!todo: add", "todo: add <task>"),
    ],
)
def test_a_malformed_plan_command_shows_its_usage(text: str, usage: str) -> None:
    line = parse_line(text)

    assert (line.kind, line.command) == ("todo", None)
    assert usage in line.problem


@pytest.mark.parametrize(
    ("word", "command"),
    [
        *[("chek", "check"), ("chekc", "check"), ("CHECK", "check"), ("dmo", "demo"), ("helpp", "help")],
        *[("hello", ""), ("hi", ""), ("list", ""), ("explanation", ""), ("count the lines", ""), ("", "")],
        ("h" * 1_000_000, ""),
    ],
)
def test_the_nearest_word(word: str, command: str) -> None:
    assert nearest_word(word, ("check", "demo", "explain", "help", "init")) == command


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
    assert (parse_line(text, local=False).kind, parse_line(text, local=False).problem) == ("redirect", "")


@pytest.mark.parametrize(
    "text",
    [
        *(
            "todo: maybe later",
            "todo: and then the tests",
            "todo: ask him",
            "todo: shows nothing",
            "todo: lists the files",
        ),
        *("todo: complet the form", "note: add x", "toto: add x", "todos: buy milk", "food: add salt"),
    ],
)
def test_other_words_are_no_typing_mistakes(text: str) -> None:
    assert (parse_line(text).kind, parse_line(text).problem) == ("redirect", "")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        *((text, "after the !, for example: !use") for text in ("!", "! !", "!\u2000")),
        ("!!", "after the !!, for example: !!use"),
        *((text, "then: check") for text in ("then:", "then: ")),
        *((text, "context: the SKU") for text in ("context:", "!context: ")),
    ],
)
def test_a_marker_needs_a_text(text: str, hint: str) -> None:
    assert hint in parse_line(text).problem


@pytest.mark.parametrize(
    ("text", "is_first"),
    [
        *(("stop", True), ("/help", True), ("!!use B", True), ("!use B", False), ("use B", False)),
        ("/srv/app.py fails", False),
    ],
)
def test_which_lines_overtake_held_ones(text: str, is_first: bool) -> None:
    assert is_sent_first(text) is is_first


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


@pytest.mark.parametrize(
    ("text", "is_aside"),
    [("why?", True), ("todo: add x", True), ("context: x", True), ("!why?", True), ("use B", False), ("skip B", False)],
)
def test_asides_change_no_course(text: str, is_aside: bool) -> None:
    assert parse_line(text).is_aside is is_aside


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
    assert (line.command is not None) <= (line.kind == "todo")
    assert (line.kind == "todo") <= ((line.command is None) == bool(line.problem))
    assert (line.adjustment is not None) == (line.kind == "guidance")
    assert parse_line(text, local=False).kind != "local", "where no commands can be typed"
    verbatim = parse_line(f" {text}")
    assert (verbatim.kind, verbatim.message) == ("verbatim" if text.strip() else "blank", text.strip())
