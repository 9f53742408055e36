"""The course of a research: what is still to be visited and how it is judged, and how the user's lines change that.

Pure: it knows sources by their names alone. A line changes what comes after it; what was found before stays.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import assert_never

from chain.lines.parse import Adjustment

_ALL_LEFT = frozenset({"rest", "others", "other sources", "all", "everything", "everything else"})
"""What ``skip`` says of all that is left, if no source has such a name."""

_BEFORE = re.compile(r"(?:(?:the|in|inside|into|at|to)\s+)+", re.I)
_AFTER = re.compile(
    r"\s+(?:folder|directory|file|files|page|website|site|source|sources|too|as well|also|please)$", re.I
)
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://", re.I)
_HOST = re.compile(r"(?:localhost|(?:[a-z0-9-]+\.)+[a-z][a-z0-9-]+)(?::\d{1,5})?(?:/\S*)?", re.I)
_AROUND = "`'\"“”‘’<> "


@dataclass(frozen=True, slots=True)
class Source:
    """Something to visit: a path of the workspace or an address. ``by_user``: a line of the user's named it."""

    name: str
    by_user: bool = False


@dataclass(frozen=True, slots=True)
class Course:
    """What is still to be visited, in order, how it is judged, and in ``notes`` what lines have changed so far."""

    topic: str
    waiting: tuple[Source, ...]
    visited: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    focus: str = ""
    ignored: tuple[str, ...] = ()
    preferred: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def sought(self) -> str:
        """What is searched for now."""
        return self.focus or self.topic

    @property
    def counts(self) -> str:
        """The row that a result ends with; what still waits then was skipped."""
        return f"[{len(self.visited)} visited, {len(self.skipped) + len(self.waiting)} skipped]"


def begin(topic: str, sources: list[str]) -> Course:
    """The course as the model asks for it; a source that it names twice is visited once."""
    return Course(topic, tuple(Source(name) for name in dict.fromkeys(tidied(s) for s in sources)))


def steered(course: Course, adjustment: Adjustment) -> Course:
    """The course after a line of the user's."""
    text, name = _plain(adjustment.value), cleaned(adjustment.value)
    if not text or not name:
        return course
    match adjustment.type:
        case "focus_query":
            return _noted(replace(course, focus=text), f"focus: {text}")
        case "skip_source":
            return _skip(course, text, name)
        case "add_source":
            return _add(course, tidied(name))
        case "drop_criterion":
            text = _without_article(text)
            return _noted(replace(course, ignored=_once(course.ignored, text)), f"ignore: {text}")
        case "preference":
            text = _without_article(text)
            first = tuple(s for s in course.waiting if is_named(s.name, text) or is_named(s.name, name))
            rest = tuple(s for s in course.waiting if s not in first)
            changed = replace(course, waiting=first + rest, preferred=_once(course.preferred, text))
            return _noted(changed, f"prefer: {text}")
        case _:
            assert_never(adjustment.type)


def visiting(course: Course) -> Course:
    """The course once its first source was begun."""
    first, *rest = course.waiting
    return replace(course, waiting=tuple(rest), visited=(*course.visited, first.name))


def passed_over(course: Course) -> Course:
    """The course once its last visit turned out to be none, since its host was refused."""
    return replace(course, visited=course.visited[:-1], skipped=_once(course.skipped, course.visited[-1]))


def _plain(value: str) -> str:
    """The text of a line's end without its full stop, and on one row."""
    return " ".join(value.split()).rstrip(".!,;…").strip()


def cleaned(value: str) -> str:
    """What a line names, without the words and signs around it: ``the tests folder.`` is ``tests``."""
    value = _plain(value).strip(_AROUND)
    value = value[bare.end() :] if (bare := _BEFORE.match(value)) else value
    while (after := _AFTER.search(value)) is not None:
        value = value[: after.start()]
    return value.rstrip(".!,;").strip(_AROUND)


def tidied(name: str) -> str:
    """The one form of a source's name: ``./docs/`` is ``docs``."""
    name = name.strip()
    if not name or is_address(name):
        return name
    while name.startswith("./"):
        name = name[2:].lstrip("/")
    return name.rstrip("/") or name[:1] or "."


def is_address(name: str) -> bool:
    """Whether a source is an address, with its scheme, and no path."""
    return _ADDRESS.match(name) is not None


def is_like_host(name: str) -> bool:
    """Whether a name without a scheme may be an address, as in ``example.org/page``. So may ``notes.md``."""
    return _HOST.fullmatch(name) is not None


def is_named(source: str, wanted: str) -> bool:
    """Whether a user who says ``wanted`` means this source: all of it, its last part, or whole words of it."""
    source, wanted = tidied(source).casefold(), tidied(wanted).casefold()
    if wanted in (source, source.rstrip("/").rsplit("/", 1)[-1]):
        return True
    return re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", source) is not None


def _skip(course: Course, text: str, name: str) -> Course:
    out = tuple(s for s in course.waiting if is_named(s.name, text) or is_named(s.name, name))
    if not out and name.casefold() in _ALL_LEFT:
        out = course.waiting
    if not out:
        return _noted(course, f"skip: {name}, but no source of that name is left")
    waiting = tuple(s for s in course.waiting if s not in out)
    skipped = course.skipped + tuple(s.name for s in out)
    return _noted(replace(course, waiting=waiting, skipped=skipped), f"skip: {name}")


def _add(course: Course, name: str) -> Course:
    if any(s.name == name for s in course.waiting):
        # It keeps its place, but its host needs no approval any more.
        marked = tuple(Source(s.name, by_user=True) if s.name == name else s for s in course.waiting)
        return _noted(replace(course, waiting=marked), f"also check: {name}, which was going to be visited")
    if name in course.visited:
        return _noted(course, f"also check: {name}, which was visited already")
    # One that was skipped is visited after all: the user's last word counts.
    skipped = tuple(s for s in course.skipped if s != name)
    waiting = (*course.waiting, Source(name, by_user=True))
    return _noted(replace(course, waiting=waiting, skipped=skipped), f"also check: {name}")


def _noted(course: Course, note: str) -> Course:
    return replace(course, notes=(*course.notes, note))


def _without_article(text: str) -> str:
    return text[4:] if text[:4].casefold() == "the " and text[4:] else text


def _once(values: tuple[str, ...], value: str) -> tuple[str, ...]:
    return values if value in values else (*values, value)
