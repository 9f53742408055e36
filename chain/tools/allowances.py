"""Allowances: which calls need no asking. Pure.

An allowance names a tool (``edit_file``), or a tool with a pattern for its subject: the path of an edit, the command of
the shell, the host of a page (``edit_file(docs/*)``, ``shell(git status*)``, ``research(*.example.org)``). In a pattern
``*`` stands for any characters, slashes too, ``?`` for one, and ``[...]`` for one of those.

A pattern never matches a shell command that the shell would take apart: with ``git status*`` nobody means
``git status; rm -r .``. Plain ``shell`` allows these too.

Some paths (``Preview.only_by_name``) no allowance covers that does not name them: neither ``edit_file`` nor
``edit_file(*)`` covers ``.git/hooks/pre-commit``, and ``edit_file(.git/hooks/*)`` does.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

from chain.errors import UserError
from chain.listed import listed
from chain.tools.tool import Preview

_FORM = re.compile(r"([^()\s]+)(?:\((.*)\))?", re.S)

_SPECIAL = re.compile(r"([*?[])")
_ESCAPED = re.compile(r"\[([*?[])\]")

_TAKEN_APART = re.compile(r"[;|&<>$`\r\n]")
"""What ends a command or puts another one, a file or a variable into it."""

SUBJECTS = {"shell": "commands", "write_file": "paths", "edit_file": "paths", "research": "hosts"}
"""What the patterns of our own tools are matched with."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """A tool, and a pattern for its subject or (``is_literal``) the one subject that it holds for."""

    tool: str
    pattern: str | None = None
    is_literal: bool = False

    def covers(self, tool: str, subject: str, only_by_name: str = "") -> bool:
        """Whether a call of this tool with this subject needs no asking; ``only_by_name`` is as in ``Preview``."""
        if tool != self.tool or (only_by_name and not self._names(only_by_name)):
            return False
        if self.pattern is None or (self.is_literal and subject == self.pattern):
            return True
        if self.is_literal or (tool == "shell" and _TAKEN_APART.search(subject)):
            return False
        return fnmatchcase(subject, self.pattern)

    def _names(self, part: str) -> bool:
        """Whether a part of the pattern is this part of a path, without anything that stands for others."""
        return self.pattern is not None and part in _ESCAPED.sub(r"\1", self.pattern).split("/")

    def __str__(self) -> str:
        return self.tool if self.pattern is None else f"{self.tool}({self.pattern})"


def parse(text: str) -> Allowance:
    """Read an allowance as a user writes it. Raises ``UserError`` for one that could never allow anything."""
    form = _FORM.fullmatch(text.strip())
    if form is None:
        raise UserError(f"{text!r:.80} is not a tool, nor a tool with a pattern such as edit_file(docs/*)")
    tool, pattern = form[1], form[2]
    if pattern is None:
        return Allowance(tool)
    if SUBJECTS.get(tool) == "hosts":
        pattern = pattern.lower()
    if problem := _problem(tool, pattern):
        raise UserError(f"{tool}({pattern:.80}) can never allow anything: {problem}")
    return Allowance(tool, pattern)


def for_always(tool: str, preview: Preview) -> Allowance:
    """What the answer "always" allows from now on."""
    if preview.always == "subject":
        return Allowance(tool, preview.subject, is_literal=True)
    return Allowance(tool)


def that_permits(tool: str, preview: Preview) -> str:
    """The narrowest allowance that a user can write for a call, as a word of a shell; empty if there is none.

    The subject is the model's, and the list that allowances are given in has commas and brackets of its own. So a
    pattern is suggested only if, read from such a list, it is this one allowance; else the whole tool is.
    """
    plain = "" if preview.only_by_name else tool
    if preview.always == "tool" and plain:
        return plain
    found = Allowance(tool, _SPECIAL.sub(r"[\1]", preview.subject))
    is_shown_whole = preview.subject.isprintable() and "'" not in preview.subject
    # With another behind it: an open bracket would take in what people add to the list.
    is_read_back = listed(f"{found},x") == [str(found), "x"] and _is_read_as(str(found), found)
    covers = found.covers(tool, preview.subject, preview.only_by_name)
    return f"'{found}'" if is_shown_whole and is_read_back and covers else plain


def _is_read_as(text: str, allowance: Allowance) -> bool:
    try:
        return parse(text) == allowance
    except UserError:
        return False


def explain(allowance: Allowance) -> str:
    """What an allowance means, for people who check a configuration."""
    subjects = SUBJECTS.get(allowance.tool, "subjects")
    if allowance.pattern is None:
        but = "; what git runs and what configures the chain has to be named" if subjects == "paths" else ""
        return f"every call of {allowance.tool}, without asking{but}"
    but = ", but none with ; | & < > $ ` or a line break" if allowance.tool == "shell" else ""
    slashes = "; * stands for slashes too" if subjects == "paths" and "*" in allowance.pattern else ""
    return f"{subjects} that match {allowance.pattern}{but}{slashes}"


def host_problem(host: str) -> str:
    """Why a host, or a pattern for hosts, cannot match; empty if it can."""
    if (":" in host and not _is_address(host)) or re.search(r"[/@\s]", host):
        return "a host is a name such as example.org, without https:// and without a path or port"
    return "" if host.isascii() else "write it as it is asked for, in the form that begins with xn--"


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _problem(tool: str, pattern: str) -> str:
    """Why a pattern cannot match; empty if it can."""
    if not pattern.strip():
        return "the pattern is empty"
    match SUBJECTS.get(tool):
        case "commands" if _TAKEN_APART.search(pattern):
            return "a pattern never matches a command with ; | & < > $ ` or a line break; plain shell allows all"
        case "paths" if pattern.startswith(("/", "~")):
            return "paths are relative to the workspace"
        case "paths" if pattern.endswith("/"):
            return f"{pattern} is a folder; {pattern}* are the files in it"
        case "paths" if {"", ".", ".."} & set(pattern.split("/")):
            return "paths are relative to the workspace, without . and .. and empty parts in them"
        case "hosts":
            return host_problem(pattern)
        case _:
            return ""
