"""Allowances: what they cover, which are refused, and which one covers a given call."""

from __future__ import annotations

import shlex
from typing import Any

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


def preview_of(subject: str, **fields: Any) -> Preview:
    return Preview(text="", subject=subject, digest="", **fields)


COVERED_CALLS = {
    "every call of the tool": ("edit_file", "edit_file", "docs/a.md"),
    "the star matches a slash": ("edit_file(docs/*)", "edit_file", "docs/deep/a.md"),
    "a name with parentheses": ("edit_file(a(1).md)", "edit_file", "a(1).md"),
    "spaces around the allowance": (" shell(git status*) ", "shell", "git status --short"),
    "several commands": ("shell", "shell", "git status; rm -r ."),
    "a host in other case": ("research(Example.ORG)", "research", "example.org"),
    "an IPv6 address": ("research(::1)", "research", "::1"),
    "subdomains": ("research(*.example.org)", "research", "www.example.org"),
    "a tool without subjects": ("deploy(*)", "deploy", ""),
}
UNCOVERED_CALLS = {
    "another tool": ("edit_file", "write_file", "docs/a.md"),
    "the folder elsewhere": ("edit_file(docs/*)", "edit_file", "src/docs/a.md"),
    "a path in other case": ("edit_file(*.md)", "edit_file", "docs/a.MD"),
    "a shorter command": ("shell(git status*)", "shell", "git stat"),
    "a subdomain": ("research(example.org)", "research", "www.example.org"),
}


@pytest.mark.parametrize(("allowance", "tool", "subject"), COVERED_CALLS.values(), ids=COVERED_CALLS)
def test_allowance_covers_matching_calls(allowance: str, tool: str, subject: str) -> None:
    assert parse(allowance).covers(tool, subject)


@pytest.mark.parametrize(("allowance", "tool", "subject"), UNCOVERED_CALLS.values(), ids=UNCOVERED_CALLS)
def test_allowance_does_not_cover_other_calls(allowance: str, tool: str, subject: str) -> None:
    assert not parse(allowance).covers(tool, subject)


@pytest.mark.parametrize("second_part", ["; x", " | x", " & x", " < x", " > x", " $x", " `x`", "\nx", "\rx"])
def test_shell_pattern_never_matches_several_commands(second_part: str) -> None:
    for allowance in ("shell(git status*)", "shell(*)"):
        assert parse(allowance).covers("shell", "git status -s")
        assert not parse(allowance).covers("shell", f"git status{second_part}")


HOOK = ".git/hooks/pre-commit"
PROTECTED_PATHS = {
    "no pattern": ("edit_file", HOOK, ".git", False),
    "only a wildcard": ("edit_file(*)", HOOK, ".git", False),
    "a wildcard in the name": ("edit_file(.g*/*)", HOOK, ".git", False),
    "the folder by name": ("edit_file(.git/*)", HOOK, ".git", True),
    "the folder by name, at any depth": ("edit_file(*/.git/*)", "sub/.git/config", ".git", True),
    "the file by name": ("edit_file(AGENTS.md)", "AGENTS.md", "AGENTS.md", True),
    "a file of this name in another folder": ("edit_file(AGENTS.md)", "sub/AGENTS.md", "AGENTS.md", False),
    "a name with an escaped bracket": ("edit_file(a[[]1].yaml)", "a[1].yaml", "a[1].yaml", True),
}


@pytest.mark.parametrize(
    ("allowance", "path", "protected_part", "is_covered"), PROTECTED_PATHS.values(), ids=PROTECTED_PATHS
)
def test_protected_path_must_be_named(allowance: str, path: str, protected_part: str, is_covered: bool) -> None:
    assert parse(allowance).covers("edit_file", path, protected_part) == is_covered


REASON_BY_ALLOWANCE = {
    "": "is not a tool",
    "edit_file(": "is not a tool",
    "a b": "is not a tool",
    "(x)": "is not a tool",
    "edit_file()": "the pattern is empty",
    "shell( )": "the pattern is empty",
    "shell(a; b)": "plain shell allows all",
    "edit_file(//x)": "empty parts",
    "write_file(~/x)": "paths are relative to the workspace",
    "write_file(../x)": "paths are relative to the workspace",
    "write_file(./x)": "paths are relative to the workspace",
    "edit_file(docs/)": "docs/* are the files in it",
    "edit_file(docs//x)": "empty parts",
    "research(bücher.de)": "begins with xn--",
    "research(https://example.org)": "without https://",
    "research(1.2.3.4:80)": "without https://",
    "research([::1])": "without https://",
    "research(example.org/docs)": "without https://",
}


@pytest.mark.parametrize(("allowance", "reason"), REASON_BY_ALLOWANCE.items())
def test_allowance_that_cannot_match_is_refused(allowance: str, reason: str) -> None:
    with pytest.raises(UserError) as refusal:
        parse(allowance)
    assert reason in str(refusal.value)
    assert "\n" not in str(refusal.value)


SPECIAL_CHARACTERS = "(),[]*?'# \n"
"""Characters that mean something in a pattern, a list of allowances or a shell."""
COMMANDS = st.text(min_size=1, max_size=30) | st.text(f"aq{SPECIAL_CHARACTERS}", min_size=1, max_size=12)


def command_preview(command: str) -> Preview:
    """Return the preview of a shell call, for which the answer "always" allows only this command."""
    return preview_of(command, always="subject")


@given(COMMANDS.filter(str.strip))
@example("ls *; pwd")
def test_answer_always_covers_one_command(command: str) -> None:
    added = rule_for_always("shell", command_preview(command))
    assert added.covers("shell", command)
    assert not added.covers("shell", command + "x")


@given(COMMANDS.filter(str.strip))
@example("make test # ),shell,research(x")
@example('echo "a), b"')
@example("x)")
@example("ls *; pwd")
@example("ls\x1b[8m")
def test_suggested_allowance_covers_one_command(command: str) -> None:
    suggested = narrowest_allowance("shell", command_preview(command), SUBJECTS)
    if suggested != "shell":  # no pattern covers several commands
        assert suggested.isprintable()
        (unquoted,) = shlex.split(suggested)
        allowance, next_name = split_names([f"{unquoted},edit_file"])
        assert next_name == "edit_file"
        assert parse(allowance).covers("shell", command)
        assert not parse(allowance).covers("shell", command + "x")


SUGGESTIONS = {
    "not protected": ("docs/a.md", "", "edit_file"),
    "protected": (".git/config", ".git", "'edit_file(.git/config)'"),
    "wildcards are escaped": (".git/a*[b]", ".git", "'edit_file(.git/a[*][[]b])'"),
    "none: a quote cannot be quoted": (".git/it's", ".git", ""),
    "none: a list would be split at the comma": (".git/a),b", ".git", ""),
}


@pytest.mark.parametrize(("path", "protected_part", "suggested"), SUGGESTIONS.values(), ids=SUGGESTIONS)
def test_suggested_allowance_of_an_edit(path: str, protected_part: str, suggested: str) -> None:
    preview = preview_of(path, only_by_name=protected_part)
    assert narrowest_allowance("edit_file", preview, SUBJECTS) == suggested


@pytest.mark.parametrize("protected_part", ["", ".git"], ids=["not protected", "protected"])
def test_answer_always_covers_edits_of_other_files(protected_part: str) -> None:
    preview = preview_of(".git/config", only_by_name=protected_part)
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


@pytest.mark.parametrize(("allowance", "meaning"), MEANINGS.items())
def test_meaning_of_an_allowance(allowance: str, meaning: str) -> None:
    assert allowance_meaning(parse(allowance)) == meaning


@pytest.mark.parametrize("allowance", MEANINGS)
def test_allowance_is_shown_as_it_was_written(allowance: str) -> None:
    assert str(parse(allowance)) == allowance
