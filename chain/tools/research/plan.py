"""The plan of a call of ``research``: its sources, how they are searched, and how the user's lines change both. Pure.

The plan knows only the names of sources. A user's line affects later visits, but not earlier results.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import assert_never

from chain.lines.parse import Adjustment

MAX_NAME = 2_000
"""Characters of a source's name."""

_ALL_LEFT = frozenset({"rest", "others", "other sources", "all", "everything", "everything else"})
"""Names that mean all remaining sources in a ``skip`` line, unless a source has such a name."""

_QUOTES = "`'\"“”‘’<>"

_NAME = re.compile(
    rf"""(?:(?:the|in|inside|into|at|to)\s+)*
    [{_QUOTES}]*(?P<name>.*?)[{_QUOTES}.!,;]*
    (?:,?\s+(?:folder|directory|files?|page|website|site|sources?|too|as\ well|also|please))*""",
    re.IGNORECASE | re.VERBOSE,
)
"""Matches the name of a source in a line, with the words around it."""

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_HOST = re.compile(r"(?:localhost|(?:[a-z0-9-]+\.)+[a-z][a-z0-9-]+)(?::\d{1,5})?(?:/\S*)?", re.IGNORECASE)


@dataclass(slots=True)
class ResearchPlan:
    """The sources of a call, how they are searched, and ``notes`` on the changes by the user's lines.

    Each source is either ``waiting``, ``visited`` or ``skipped``. The user's lines added ``user_sources``.
    """

    topic: str
    waiting: list[str]
    visited: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    user_sources: set[str] = field(default_factory=set)
    ignored: list[str] = field(default_factory=list)
    preferred: list[str] = field(default_factory=list)
    focus: str = ""
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, topic: str, sources: list[str]) -> ResearchPlan:
        """Return the initial plan of a call. A source that is named twice is visited once."""
        return cls(topic, list(dict.fromkeys(map(normalize_name, sources))))

    @property
    def counts_row(self) -> str:
        """The last row of a result: how many sources were visited and skipped. Waiting sources count as skipped."""
        return f"[{len(self.visited)} visited, {len(self.skipped) + len(self.waiting)} skipped]"

    def steer(self, adjustment: Adjustment) -> None:
        """Change the plan as a line of the user asks."""
        text, name = _plain(adjustment.value), source_name(adjustment.value)
        if not text or not name:
            return
        wanted = text.removeprefix("the ").strip(_QUOTES)
        match adjustment.type:
            case "focus_query":
                self.focus = text
                self.notes.append(f"focus: {text}")
            case "skip_source":
                self._skip(name, self._named(wanted, name))
            case "add_source":
                self._add(normalize_name(name))
            case "drop_criterion":
                self.ignored.append(wanted)
                self.notes.append(f"ignore: {wanted}")
            case "preference":
                self.preferred.append(wanted)
                self.notes.append(f"prefer: {wanted}")
                first = self._named(wanted, name)
                self.waiting = [*first, *(source for source in self.waiting if source not in first)]
            case _:
                assert_never(adjustment.type)

    def _named(self, *names: str) -> list[str]:
        return [source for source in self.waiting if any(is_named(source, name) for name in names)]

    def _skip(self, name: str, sources: list[str]) -> None:
        if not sources and name.casefold() in _ALL_LEFT:
            sources = self.waiting
        nothing = "" if sources else ", but no remaining source has that name"
        self.notes.append(f"skip: {name}{nothing}")
        self.skipped += sources
        self.waiting = [source for source in self.waiting if source not in sources]

    def _add(self, name: str) -> None:
        note = f"also check: {name}"
        self.user_sources.add(name)
        if name in self.waiting:
            note += ", which is in the list already"
        elif name in self.visited:
            note += ", which was visited already"
        else:
            self.waiting.append(name)
            self.skipped = [source for source in self.skipped if source != name]
        self.notes.append(note)


def source_name(value: str) -> str:
    """Extract the name of a source from a line: ``tests`` from ``the tests folder.``."""
    found = _NAME.fullmatch(_plain(value)[: MAX_NAME + 1])
    return found["name"] if found else ""


def normalize_name(name: str) -> str:
    """Return the normal form of a source's name: ``docs`` for ``./docs/``."""
    name = name.strip()
    return name if is_address(name) else re.sub(r"\A(?:\./+)+|/+\Z", "", name) or name[:1]


def is_address(name: str) -> bool:
    """Return whether a source's name is an address with a scheme, not a path."""
    return _ADDRESS.match(name) is not None


def may_be_host(name: str) -> bool:
    """Return whether a name has the form of an address without scheme, as ``example.org/page`` and ``notes.md`` do."""
    return _HOST.fullmatch(name) is not None


def is_named(source: str, wanted: str) -> bool:
    """Return whether ``wanted`` is the name of a source, or consists of whole words of the name."""
    wanted = re.escape(normalize_name(wanted).casefold())
    return re.search(rf"(?<!\w){wanted}(?!\w)", source.casefold()) is not None


def _plain(value: str) -> str:
    return " ".join(value.split()).rstrip(".!,;… ")
