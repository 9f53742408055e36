"""Allowances: which tool calls run without approval. Pure.

An allowance has one of three forms:

- the name of a tool: ``edit_file``;
- the name of a tool and a pattern for the subject of its calls: ``edit_file(docs/*)``, ``shell(git status*)``,
  ``research(*.example.org)``. The subject is the path of an edit, the command of the shell or the host of a page;
- a pattern for the names of the tools of an MCP server: ``mcp__git__*``.

In a pattern ``*`` matches any characters, including slashes, ``?`` matches one character, and ``[...]`` one of a set. A
tool can restrict its patterns further (``Subject``).

Some paths (``Preview.only_by_name``) are covered only by a pattern that names them: neither ``edit_file`` nor
``edit_file(*)`` covers ``.git/hooks/pre-commit``, but ``edit_file(.git/hooks/*)`` does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import TypeAlias

from chain.errors import UserError
from chain.text.commas import split_commas
from chain.text.modes import Mode
from chain.tools.tool import Preview, Subject, ToolKind

SERVER_PREFIX = "mcp__"
"""The prefix of the names of tools of MCP servers."""

_FORM = re.compile(r"([^()\s]+)(?:\((.*)\))?", re.S)

_WILDCARD = re.compile(r"([*?[])")
_ESCAPED_WILDCARD = re.compile(r"\[([*?[])\]")

Subjects: TypeAlias = Mapping[str, Subject]
"""The kind of subject of each tool, by the tool's name. For a tool that is not listed, the subject is plain text."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """A permission to call ``tool`` without approval.

    It covers the calls whose subject matches ``pattern``, or all calls if ``pattern`` is ``None``. If ``is_literal``,
    the pattern has no wildcards and must equal the subject.
    """

    tool: str
    pattern: str | None = None
    is_literal: bool = False
    subject: Subject = field(default_factory=Subject, compare=False, repr=False)

    def covers(self, tool: str, subject: str, only_by_name: str = "") -> bool:
        """Return whether this allowance covers a call of ``tool`` whose subject is ``subject``.

        ``only_by_name``, usually empty, is a part of a path, such as ``.git``, that the pattern must contain literally.
        """
        if not self._is_for(tool) or (only_by_name and not self._spells_out(only_by_name)):
            return False
        if self.pattern is None or (self.is_literal and subject == self.pattern):
            return True
        return not self.is_literal and self.subject.matches(self.pattern, subject)

    def _is_for(self, tool: str) -> bool:
        return tool == self.tool or (names_server_tools(self.tool) and fnmatchcase(tool, self.tool))

    def _spells_out(self, part: str) -> bool:
        """Return whether the pattern contains this part of a path literally. A wildcard does not match the part."""
        return self.pattern is not None and part in _ESCAPED_WILDCARD.sub(r"\1", self.pattern).split("/")

    def __str__(self) -> str:
        return self.tool if self.pattern is None else f"{self.tool}({self.pattern})"


def names_server_tools(name: str) -> bool:
    """Return whether ``name`` is the name of an MCP server's tool, or a pattern for such names.

    Only the prefix is checked, because the tools of a server are known only after its start.
    """
    return name.startswith(SERVER_PREFIX)


def parse_allowance(text: str, subjects: Subjects) -> Allowance:
    """Parse an allowance as users write it. Raise ``UserError`` if its syntax is wrong or it can match no call."""
    form = _FORM.fullmatch(text.strip())
    if form is None:
        raise UserError(f"{text!r:.80} is not a tool, nor a tool with a pattern such as edit_file(docs/*)")
    tool, pattern = form[1], form[2]
    subject = subjects.get(tool, Subject())
    if pattern is None:
        return Allowance(tool, subject=subject)
    try:
        if not pattern.strip():
            raise UserError("the pattern is empty")
        return Allowance(tool, subject.normalize_pattern(pattern), subject=subject)
    except UserError as error:
        raise UserError(f"{tool}({pattern:.80}) can never allow anything: {error.message}") from None


def rule_for_always(tool: str, preview: Preview) -> Allowance:
    """Return the allowance that is added when the user answers "always" to the question about a call."""
    if preview.always == "subject":
        return Allowance(tool, preview.subject, is_literal=True)
    return Allowance(tool)


def narrowest_allowance(tool: str, preview: Preview, subjects: Subjects) -> str:
    """Return the narrowest allowance that a user can write for a call; empty if there is none.

    An allowance with a pattern is in single quotes, for use in a shell.
    """
    plain = "" if preview.only_by_name else tool
    if preview.always == "tool" and plain:
        return plain
    pattern = _WILDCARD.sub(r"[\1]", preview.subject)
    found = f"{tool}({pattern})"
    is_shown_whole = preview.subject.isprintable() and "'" not in preview.subject
    # Tested with a second entry after it: an open bracket would swallow an entry that the user appends to the list.
    if not is_shown_whole or split_commas(f"{found},x") != [found, "x"]:
        return plain
    try:
        read = parse_allowance(found, subjects)
    except UserError:
        return plain
    is_read_back = str(read) == found and read.covers(tool, preview.subject, preview.only_by_name)
    return f"'{found}'" if is_read_back else plain


def mode_allows(mode: Mode, kind: ToolKind, preview: Preview) -> bool:
    """Return whether a permission mode allows a call without asking the user.

    Only the mode "accept edits" allows any: the edits of unprotected files in the workspace.
    """
    if mode != "accept edits" or kind != "edit" or preview.diff is None or preview.only_by_name:
        return False
    path = PurePath(preview.diff.path)
    return not path.is_absolute() and ".." not in path.parts


def mode_denies(mode: Mode, kind: ToolKind) -> bool:
    """Return whether a permission mode denies all tools of this kind, even if an allowance covers the call."""
    return mode == "read only" and kind in ("edit", "execute")


def allowance_meaning(allowance: Allowance) -> str:
    """Return what an allowance permits, in words, for ``chain check``."""
    note = allowance.subject.note(allowance.pattern)
    if allowance.pattern is None:
        return f"every call of {allowance.tool}, without asking{note}"
    return f"{allowance.subject.plural} that match {allowance.pattern}{note}"
