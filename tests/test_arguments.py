"""The words and options of a command line: what they mean, what is wrong with them, and the help."""

from __future__ import annotations

import math
import re

import pytest

from chain.errors import UserError
from cli.arguments import one_word, read_job, read_mode
from cli.options import COMMANDS, HELP, Information, parse_arguments


def mistake(*argv: str) -> str:
    """The one sentence that a command line gets."""
    with pytest.raises(UserError) as caught:
        parse_arguments(argv)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


# --------------------------------------------------------------------------------------------------------------- words


@pytest.mark.parametrize(
    ("argv", "command", "word"),
    [
        ([], "", None),
        (["hello"], "", "hello"),
        (["list the files"], "", "list the files"),
        (["check"], "check", []),
        (["init", "here"], "init", ["here"]),
        (["--state", "x", "worker"], "worker", []),
        (["--session", "send", "send", "hi"], "send", ["hi"]),
        (["send", "a", "--wait", "b"], "send", ["a", "b"]),
        (["send", "--", "-x"], "send", ["-x"]),
        (["explain", "todo: add x"], "explain", ["todo: add x"]),
        (["explain", "--chain", "mine", "todo:", "add", "x"], "explain", ["todo:", "add", "x"]),
        (["help"], "help", []),
        (["help", "exit", "codes"], "help", ["exit", "codes"]),
        (["sessions"], "sessions", []),
        (["sessions", "export", "2026", "--format", "html"], "sessions", ["export", "2026"]),
        (["sessions", "--format", "html", "export", "2026"], "sessions", ["export", "2026"]),
        (["-p", "sessions"], "", "sessions"),
        (["--", "- a list"], "", "- a list"),
        (["- a list"], "", "- a list"),
        (["-p", "-1"], "", "-1"),
        (["-p", "check"], "", "check"),
        (["-p", "chek"], "", "chek"),
        (["-p", "--", "-x"], "", "-x"),
        (["--print", "run"], "", "run"),
        (["-c", "run"], "", "run"),
        (["-pc", "run"], "", "run"),
        (["--model", "offline", "-p", "hello", "--say", "x"], "", "hello"),
        (["init", "--model", "offline", "here"], "init", ["here"]),
    ],
)
def test_words(argv: list[str], command: str, word: str | list[str] | None) -> None:
    args = parse_arguments(argv)
    assert (args.command, args.words if command else args.query) == (command, word)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["chek"], ["chek", "chain check", "chain -p chek"]),
        (["Check"], ["chain check", "chain -p Check"]),
        (["exec", "fix the test"], ["2 words", "or did you mean chain -p?"]),
        (["login"], ["there is no command login: did you mean chain help models?", "chain -p login"]),
        (["Resume"], ["did you mean chain -c?"]),
        (["initt", "here"], ["2 words", "quotes", "chain init"]),
        (["list", "the", "files"], ["3 words", "quotes"]),
        (["hello", "--model", "offline", "world"], ["2 words"]),
        (["check", "this"], ["chain check has no arguments"]),
        (["sesions", "list"], ["2 words", "chain sessions"]),
        (["--format", "md", "hello"], ["--format is for chain sessions export", "--output-format"]),
        (["-p", "sessions", "--output", "y"], ["--output is for chain sessions export"]),
        (["check", "--wait"], ["--wait is for chain send"]),
        (["hello", "--session", "x"], ["--session is for chain send and chain watch"]),
    ],
)
def test_a_mistake_in_the_words_is_told(argv: list[str], says: list[str]) -> None:
    sentence = mistake(*argv)
    for part in says:
        assert part in sentence


def test_a_command_with_one_argument_takes_no_more() -> None:
    assert one_word(parse_arguments(["init", "a"]), "DIR") == "a"
    with pytest.raises(UserError, match="chain init has one argument, DIR"):
        one_word(parse_arguments(["init", "a", "b"]), "DIR")


# ------------------------------------------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--modle", "x"], ["there is no option --modle: did you mean --model?"]),
        (["check", "--modle", "x"], ["--modle: did you mean --model?"]),
        (["send", "--sesion", "x", "hello"], ["--sesion: did you mean --session?"]),
        (["--quiet", "x"], ["there is no option --quiet; chain --help lists them"]),
        (["--modle=x"], ["no option --modle:", "--model?"]),
        (["-modle", "x"], ["--model?"]),
        (["--max", "3"], ["--max-iterations?"]),
        (["--nocolor"], ["--no-color?"]),
        (["--json"], ["--output-format json"]),
        (["-m", "offline"], ["--model?"]),
        (["--yes"], ["--allow?"]),
        (["--last"], ["--continue?"]),
        (["-p", "hello", "--zzzz"], ["no option --zzzz", "chain --help"]),
        (["-p", "-list"], ["no option -list", "--help", "goes after --"]),
        (["--model"], ["--model needs a value: --model NAME"]),
        (["--model", "--say", "x"], ["--model needs a value: --model NAME"]),
        (["--say"], ["--say LINE"]),
        (["sessions", "export", "--format", "xml"], ["--format", "'xml'", "md, json or html"]),
        (["--output-format", "xml"], ["--output-format", "'xml'", "text, json or stream-json"]),
        (["--input-format", "json"], ["--input-format", "'json'", "text or stream-json"]),
        (["--mode", "auto"], ["--mode cannot be 'auto'; write ask, accept-edits or read-only"]),
        (["check", "--mode", "ask"], ["--mode is for a run", "chain check"]),
        (["--stdin=yes"], ["--stdin takes no value"]),
        (["-phello"], ["-p needs a space"]),
        (["--print=hello"], ["-p/--print takes no value"]),
    ],
)
def test_a_mistake_in_the_options_is_told(argv: list[str], says: list[str]) -> None:
    sentence = mistake(*argv)
    for part in says:
        assert part in sentence
    assert "usage:" not in sentence


def test_an_option_may_stand_anywhere_and_be_joined_with_its_value() -> None:
    args = parse_arguments(["-vp", "hello", "--model=offline", "--say", "@done x", "--say=y"])

    assert (args.print, args.verbose, args.model, args.say) == (True, True, "offline", ["@done x", "y"])
    assert args.query == "hello"


def test_short_options_may_be_joined() -> None:
    for argv in (["worker", "-vn", "3"], ["worker", "-vn3"], ["-n3", "-v", "worker"]):
        args = parse_arguments(argv)
        assert (args.command, args.verbose, args.at_once) == ("worker", True, "3")


@pytest.mark.parametrize(
    ("words", "mode"), [([], None), (["--mode", "read-only"], "read only"), (["--mode=accept edits"], "accept edits")]
)
def test_the_mode_is_written_with_a_hyphen_or_a_space(words: list[str], mode: str | None) -> None:
    assert read_mode(parse_arguments(words)) == mode


def test_with_stdin_it_is_waited_for_however_long_that_takes() -> None:
    job = read_job(parse_arguments(["-p", "hello", "--stdin"]), "hello")

    assert job.piped_within == math.inf


# ---------------------------------------------------------------------------------------------------------------- help


@pytest.mark.parametrize("argv", [["--help"], ["-h"], ["check", "--help"], ["--help", "--modle"]])
def test_who_asks_for_help_gets_it(argv: list[str]) -> None:
    with pytest.raises(Information) as caught:
        parse_arguments(argv)

    assert str(caught.value) == HELP


def test_the_help_fits_a_terminal_of_80_columns() -> None:
    assert HELP.isascii()
    assert max(len(row) for row in HELP.splitlines()) <= 80
    columns = {len(found[0]) for row in HELP.splitlines() if (found := re.match(r"  -.*?  +(?=\S)", row))}
    assert len(columns) == 1, "the explanations stand below each other"


def test_the_help_has_every_option_and_no_other() -> None:
    explained = {name for row in re.findall(r"^  (-.*?)  ", HELP, re.M) for name in re.findall(r"--?[a-z][\w-]*", row)}
    mentioned = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", HELP))
    known = {name for name in explained if is_known(name)}

    assert explained == known
    assert mentioned <= explained
    for dest in {*vars(parse_arguments([]))} - {"command", "query", "version", "help"}:
        name = f"--{dest.replace('_', '-')}"
        assert name in explained


def is_known(name: str) -> bool:
    try:
        parse_arguments([name, "text"])
    except UserError as error:
        return "no option" not in str(error)
    except Information:
        return True
    return True


def test_the_help_has_every_command() -> None:
    for name, (argument, _) in COMMANDS.items():
        assert re.search(rf"^  {re.escape(f'{name} {argument}'.strip())}  ", HELP, re.M), name
