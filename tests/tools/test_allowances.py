"""Allowances: what they cover, which are refused, and which one covers a given call."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from chain.config.load import split_names
from chain.errors import UserError
from chain.tools import allowances
from chain.tools.allowances import Allowance, allowance_meaning, narrowest_allowance, rule_for_always
from chain.tools.edit import PATHS
from chain.tools.processes.shell import COMMAND_SUBJECT
from chain.tools.research.visits import HOSTS
from chain.tools.tool import Preview

SUBJECTS = {"shell": COMMAND_SUBJECT, "write_file": PATHS, "edit_file": PATHS, "research": HOSTS}


def parse(text: str) -> Allowance:
    return allowances.parse_allowance(text, SUBJECTS)


COVERED = [
    ("edit_file", "edit_file", "docs/a.md", True),
    ("edit_file", "write_file", "docs/a.md", False),
    ("edit_file(docs/*)", "edit_file", "docs/deep/a.md", True),
    ("edit_file(docs/*)", "edit_file", "src/docs/a.md", False),
    ("edit_file(*.md)", "edit_file", "docs/a.MD", False),
    ("edit_file(a(1).md)", "edit_file", "a(1).md", True),
    (" shell(git status*) ", "shell", "git status --short", True),
    ("shell(git status*)", "shell", "git stat", False),
    ("shell", "shell", "git status; rm -r .", True),
    ("research(Example.ORG)", "research", "example.org", True),
    ("research(example.org)", "research", "www.example.org", False),
    ("research(::1)", "research", "::1", True),
    ("research(*.example.org)", "research", "www.example.org", True),
    ("deploy(*)", "deploy", "", True),
]


@pytest.mark.parametrize(("text", "tool", "subject", "is_covered"), COVERED)
def test_calls_that_an_allowance_covers(text: str, tool: str, subject: str, is_covered: bool) -> None:
    assert parse(text).covers(tool, subject) == is_covered


@pytest.mark.parametrize("more", ["; x", " | x", " & x", " < x", " > x", " $x", " `x`", "\nx", "\rx"])
def test_shell_pattern_never_matches_several_commands(more: str) -> None:
    assert parse("shell(git status*)").covers("shell", "git status -s")
    assert not parse("shell(git status*)").covers("shell", f"git status{more}")
    assert not parse("shell(*)").covers("shell", f"git status{more}")


PROTECTED = [
    ("edit_file", ".git", ".git/hooks/pre-commit", False),
    ("edit_file(*)", ".git", ".git/hooks/pre-commit", False),
    ("edit_file(.g*/*)", ".git", ".git/hooks/pre-commit", False),
    ("edit_file(.git/*)", ".git", ".git/hooks/pre-commit", True),
    ("edit_file(*/.git/*)", ".git", "sub/.git/config", True),
    ("edit_file(AGENTS.md)", "AGENTS.md", "AGENTS.md", True),
    ("edit_file(AGENTS.md)", "AGENTS.md", "sub/AGENTS.md", False),
    ("edit_file(a[[]1].yaml)", "a[1].yaml", "a[1].yaml", True),
]


@pytest.mark.parametrize(("text", "name", "path", "is_covered"), PROTECTED)
def test_protected_path_must_be_named(text: str, name: str, path: str, is_covered: bool) -> None:
    assert parse(text).covers("edit_file", path, name) == is_covered


REFUSED = [
    ("", "is not a tool"),
    ("edit_file(", "is not a tool"),
    ("a b", "is not a tool"),
    ("(x)", "is not a tool"),
    ("edit_file()", "the pattern is empty"),
    ("shell( )", "the pattern is empty"),
    ("shell(a; b)", "plain shell allows all"),
    ("shell(echo $HOME)", "plain shell allows all"),
    ("edit_file(//x)", "empty parts"),
    ("write_file(~/x)", "paths are relative to the workspace"),
    ("write_file(../x)", "paths are relative to the workspace"),
    ("write_file(./x)", "paths are relative to the workspace"),
    ("edit_file(docs/)", "docs/* are the files in it"),
    ("edit_file(docs//x)", "empty parts"),
    ("research(bücher.de)", "begins with xn--"),
    ("research(faß.de)", "begins with xn--"),
    ("research(https://example.org)", "without https://"),
    ("research(1.2.3.4:80)", "without https://"),
    ("research([::1])", "without https://"),
    ("research(example.org/docs)", "without https://"),
]


@pytest.mark.parametrize(("text", "why"), REFUSED)
def test_pattern_that_cannot_match_is_refused(text: str, why: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(text)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


COMMANDS = st.text(min_size=1, max_size=30) | st.text(alphabet="aq(),[]*?'# \n", min_size=1, max_size=12)


@given(COMMANDS.filter(str.strip))
@example("make test # ),shell,research(x")
@example('echo "a), b"')
@example("x)")
@example("ls *; pwd")
@example("ls\x1b[8m")
def test_always_and_suggested_allowance_cover_one_command(command: str) -> None:
    preview = Preview("", command, "", always="subject")
    again = rule_for_always("shell", preview)
    assert again.covers("shell", command)
    assert not again.covers("shell", command + "x")
    suggested = narrowest_allowance("shell", preview, SUBJECTS)
    if suggested != "shell":
        (word,) = shlex.split(suggested)
        text, added = split_names([f"{word},edit_file"])
        assert added == "edit_file"
        assert suggested.isprintable()
        assert parse(text).covers("shell", command)
        assert not parse(text).covers("shell", command + "x")


@pytest.mark.parametrize(
    ("path", "name", "suggested"),
    [
        ("docs/a.md", "", "edit_file"),
        (".git/config", ".git", "'edit_file(.git/config)'"),
        (".git/a*[b]", ".git", "'edit_file(.git/a[*][[]b])'"),
        (".git/it's", ".git", ""),
        (".git/a),b", ".git", ""),
    ],
)
def test_suggested_allowance_of_an_edit(path: str, name: str, suggested: str) -> None:
    preview = Preview("", path, "", only_by_name=name)
    assert narrowest_allowance("edit_file", preview, SUBJECTS) == suggested
    assert rule_for_always("edit_file", preview).covers("edit_file", "other.md")


MEANINGS = {
    "deploy": "every call of deploy, without asking",
    "edit_file": "every call of edit_file, without asking; "
    "files that run or are trusted outside the sandbox must be named",
    "edit_file(docs/*)": "paths that match docs/*; * matches slashes too",
    "shell(git status)": "commands that match git status, but none with ; | & < > $ ` or a line break",
    "research(example.org)": "hosts that match example.org",
    "deploy(x)": "subjects that match x",
}


@pytest.mark.parametrize("text", MEANINGS)
def test_meaning_of_an_allowance(text: str) -> None:
    assert allowance_meaning(parse(text)) == MEANINGS[text]
    assert str(parse(text)) == text
