"""What of a tool's calls the patterns of allowances are matched with. Pure."""

from __future__ import annotations

from fnmatch import fnmatchcase


class Subject:
    """What of a call the pattern of an allowance is matched with; as it stands, a text without rules of its own."""

    plural = "subjects"
    """What people call it."""

    def pattern(self, text: str) -> str:
        """A pattern as it is compared. Raises ``UserError`` with the reason for one that can never match."""
        return text

    def matches(self, pattern: str, subject: str) -> bool:
        """Whether a pattern matches, in which ``*``, ``?`` and ``[...]`` stand for other characters."""
        return fnmatchcase(subject, pattern)

    def note(self, pattern: str | None) -> str:
        """What people should know of an allowance with this pattern, or of one without, after what it allows."""
        return ""
