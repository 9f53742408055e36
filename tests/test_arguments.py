"""The words and options of a command line, mistakes in them, and the help."""

from __future__ import annotations

import math
import re

import pytest

from chain.errors import UserError
from cli.arguments import one_word, read_mode, read_task
from cli.options import COMMANDS, HELP, Information, parse_arguments


@pytest.mark.parametrize(
    ("argv", "command", "words"),
    [
        ([], "", None),
        (["hello"], "", "hello"),
        (["check"], "check", []),
        (["init", "--model", "offline", "here"], "init", ["here"]),
        (["--session", "send", "send", "hi"], "send", ["hi"]),
        (["send", "a", "--wait", "b"], "send", ["a", "b"]),
        (["send", "--", "-x"], "send", ["-x"]),
        (["explain", "--chain", "mine", "todo:", "add", "x"], "explain", ["todo:", "add", "x"]),
        (["sessions", "export", "2026", "--format", "html"], "sessions", ["export", "2026"]),
        (["sessions", "--format", "html", "export", "2026"], "sessions", ["export", "2026"]),
        (["-p", "sessions"], "", "sessions"),
        (["--", "- a list"], "", "- a list"),
        (["- a list"], "", "- a list"),
        (["-p", "-1"], "", "-1"),
        (["-p", "--", "-x"], "", "-x"),
        (["-pc", "run"], "", "run"),
        (["--model", "offline", "-p", "hello", "--say", "x"], "", "hello"),
    ],
)
def test_words_are_a_command_or_a_query(argv: list[str], command: str, words: str | list[str] | None) -> None:
    args = parse_arguments(argv)
    assert (args.command, args.words if command else args.query) == (command, words)


@pytest.mark.parametrize(
    ("argv", "message_parts"),
    [
        # Words that look like a command, and too many words.
        (["chek"], ["chek", "chain check", "chain -p chek"]),
        (["Check"], ["chain check", "chain -p Check"]),
        (["exec", "fix the test"], ["2 words", "or did you mean chain -p?"]),
        (["login"], ["there is no command login: did you mean chain help models?", "chain -p login"]),
        (["Resume"], ["did you mean chain -c?"]),
        (["initt", "here"], ["2 words", "quotes", "chain init"]),
        (["hello", "--model", "offline", "world"], ["2 words"]),
        (["check", "this"], ["chain check has no arguments"]),
        # Options of another command.
        (["--format", "md", "hello"], ["--format is for chain sessions export", "--output-format"]),
        (["check", "--wait"], ["--wait is for chain send"]),
        (["hello", "--session", "x"], ["--session is for chain send and chain watch"]),
        (["check", "--mode", "ask"], ["--mode is for a run", "chain check"]),
        # Unknown options.
        (["--modle", "x"], ["there is no option --modle: did you mean --model?"]),
        (["send", "--sesion", "x", "hello"], ["--sesion: did you mean --session?"]),
        (["--quiet", "x"], ["there is no option --quiet; chain --help lists them"]),
        (["--modle=x"], ["no option --modle:", "--model?"]),
        (["-modle", "x"], ["--model?"]),
        (["--max", "3"], ["--max-iterations?"]),
        (["--json"], ["--output-format json"]),
        (["-m", "offline"], ["--model?"]),
        (["--yes"], ["--allow?"]),
        (["-p", "-list"], ["no option -list", "--help", "goes after --"]),
        # Values of options.
        (["--model"], ["--model needs a value: --model NAME"]),
        (["--model", "--say", "x"], ["--model needs a value: --model NAME"]),
        (["sessions", "export", "--format", "xml"], ["--format", "'xml'", "md, json or html"]),
        (["--mode", "auto"], ["--mode cannot be 'auto'; write ask, accept-edits or read-only"]),
        (["--stdin=yes"], ["--stdin takes no value"]),
        (["-phello"], ["-p needs a space"]),
        (["--print=hello"], ["-p/--print takes no value"]),
    ],
)
def test_a_mistake_gets_one_sentence(argv: list[str], message_parts: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        parse_arguments(argv)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert "usage:" not in sentence
    for part in message_parts:
        assert part in sentence


def test_a_command_may_have_one_argument() -> None:
    assert one_word(parse_arguments(["init", "a"]), "DIR") == "a"
    with pytest.raises(UserError, match="chain init has one argument, DIR"):
        one_word(parse_arguments(["init", "a", "b"]), "DIR")


def test_options_may_be_joined_and_anywhere() -> None:
    args = parse_arguments(["-vp", "hello", "--model=offline", "--say", "@done x", "--say=y"])
    assert (args.print, args.verbose, args.model, args.say) == (True, True, "offline", ["@done x", "y"])
    assert args.query == "hello"
    for argv in (["worker", "-vn", "3"], ["worker", "-vn3"], ["-n3", "-v", "worker"]):
        args = parse_arguments(argv)
        assert (args.command, args.verbose, args.at_once) == ("worker", True, "3")


@pytest.mark.parametrize(
    ("words", "mode"), [([], None), (["--mode", "read-only"], "read only"), (["--mode=accept edits"], "accept edits")]
)
def test_a_mode_has_a_hyphen_or_a_space(words: list[str], mode: str | None) -> None:
    assert read_mode(parse_arguments(words)) == mode


def test_stdin_is_awaited_without_a_limit() -> None:
    assert read_task(parse_arguments(["-p", "hello", "--stdin"]), "hello").piped_within == math.inf


@pytest.mark.parametrize("argv", [["-h"], ["check", "--help"], ["--help", "--modle"]])
def test_help_may_be_asked_for_anywhere(argv: list[str]) -> None:
    with pytest.raises(Information) as caught:
        parse_arguments(argv)
    assert str(caught.value) == HELP


def test_the_help_fits_80_columns() -> None:
    assert HELP.isascii()
    assert max(len(row) for row in HELP.splitlines()) <= 80
    columns = {len(found[0]) for row in HELP.splitlines() if (found := re.match(r"  -.*?  +(?=\S)", row))}
    assert len(columns) == 1, "the explanations are aligned"


def is_option(name: str) -> bool:
    """Return whether the program knows an option, even if it cannot be used alone."""
    try:
        parse_arguments([name, "text"])
    except UserError as error:
        return "no option" not in str(error)
    except Information:
        pass
    return True


def test_the_help_lists_every_option_and_command() -> None:
    left_columns = re.findall(r"^  (\S.*?)  ", HELP, re.M)
    listed = {*re.findall(r"--?[a-z][\w-]*", "\n".join(left for left in left_columns if left.startswith("-")))}
    mentioned = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", HELP))
    assert mentioned <= listed
    assert {name for name in listed if is_option(name)} == listed
    parsed_options = vars(parse_arguments([])).keys() - {"command", "query"}
    assert {f"--{option.replace('_', '-')}" for option in parsed_options} <= listed
    assert {f"{name} {argument}".strip() for name, (argument, _) in COMMANDS.items()} <= set(left_columns)
