"""The frozen rules that ``reader`` makes of a rule file. The head of ``prompts/offline_model.yaml`` has the language.

Their fields are named as the keys of the file (a word of Python gets a ``_``), in the order in which errors list them.

Beyond what stands there: the numbered groups are those of the first of interruption, result, user, tail and system that
a rule has, and in a ``row`` or a ``for_each`` those of the item. ``has`` disregards case.

An error is raised each time, or the first ``times`` in a conversation, once ``after`` characters of text were streamed.
With ``refuses`` it is raised only for a request that sets one of those parameters.

``and: continue`` in a rule for an interruption also applies the rule for the latest results, or for the query, and
appends its output; in a rule for results it applies the one for what came before them. If the first of the two calls
tools and the other does not, the other waits until the results are there. A message that only asks to go on stands for
the latest results, or query, before it.

``and: work`` in a rule for an interruption does the same if the task then calls tools. If it would only answer, the
reply is left to the interruption, and the answer to the task waits for a message that asks to go on. That is for lines
after which such a message comes (SPEC, section 5): else the answer would be given twice. Beside a line with ``and:
continue``, and where the query itself is to be answered, it means ``continue``.

``from: stdin`` is the text between a line ``<stdin>`` and a last line ``</stdin>`` in the query.

``marks`` say how messages are recognised: ``interruption`` is the text before a line; ``redirect`` is a regular
expression for lines that replace the query (without it none do; if it has a group ``query``, only that group does, as
of a query that it fits: "no, list the files" may come first);
``resume`` is one for messages that only ask to go on, and ``note`` one for messages to be ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from textwrap import indent
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from chain.config import yamlfile
from chain.messages import StopReason

if TYPE_CHECKING:
    from chain.text.search import Pattern

Template: TypeAlias = str
"""Text with ``$$``, which is a dollar sign, and with slots that values fill."""

Source: TypeAlias = Literal["results", "conversation", "latest", "query", "stdin", "interruption", "tail"]

RULE_NAMES = ("query", "interruption", "turn", "step", "tool", "used", "result", "tail", "file", "offered")
PARAMETERS = ("max_tokens", "temperature", "effort")

MAX_SEARCHED = 40_000
"""Characters at the beginning of a text that a rule's expressions are searched in."""
INDENTATION = "    "
"""Makes rows a block of code where the reply is shown as Markdown, which would join them to a paragraph."""
SLOT = re.compile(
    r"\$(?:\$|\{(?P<name>[A-Za-z0-9_.]+)(?:\|(?P<form>number|list|indent|s|\d{1,3}))?(?::-(?P<default>[^}]*))?\})?"
)
NUMBER_PATTERN = re.compile(r"[-+]?\d{1,30}(\.\d{1,30})?")


@dataclass(frozen=True, slots=True)
class Pace:
    """How a reply is streamed: in pieces of ``chunk`` characters, ``delay_s`` seconds before each and before the end.

    ``think_s`` are the seconds before it begins. One that would take longer than ``most_s`` comes in larger pieces.
    """

    chunk: int = 200
    delay_s: float = 0.0
    think_s: float = 0.0
    most_s: float | None = None

    def piece(self, length: int) -> int:
        """Characters in a piece of a reply of that length."""
        if not self.most_s:
            return self.chunk
        return max(self.chunk, ceil(length * self.delay_s / self.most_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """How the user messages that are no queries are recognised."""

    interruption: str = "USER INTERRUPTION: "
    redirect: Pattern | None = None
    resume: Pattern
    note: Pattern


@dataclass(frozen=True, slots=True)
class When:
    """The conditions of a rule; ``None`` asks for nothing."""

    user: Pattern | None = None
    interruption: Pattern | None = None
    result: Pattern | None = None
    tool: Pattern | None = None
    tail: Pattern | None = None
    system: Pattern | None = None
    offered: Pattern | None = None
    is_error: bool | None = None
    aside: bool | None = None
    turn: int | None = None
    step: int | None = None
    overrides: frozenset[str] | None = None

    @property
    def wants_results(self) -> bool:
        """Whether tool results must have come."""
        return not (self.result is None and self.tool is None and self.is_error is None and self.aside is None)

    @property
    def wants_query(self) -> bool:
        """Whether the query itself must be what is to be answered."""
        later = self.wants_results or (self.interruption, self.turn, self.step) != (None, None, None)
        return self.user is not None and not later

    @property
    def patterns(self) -> dict[str, Pattern]:
        """The expressions whose groups fill templates, by key, the one that owns the numbers first."""
        found = {name: getattr(self, name) for name in ("interruption", "result", "user", "tail", "system")}
        return {name: pattern for name, pattern in found.items() if pattern is not None}


@dataclass(frozen=True, slots=True)
class Collection:
    """A list of matches."""

    match: Pattern
    from_: Source = "results"
    tool: Pattern | None = None
    is_error: bool = False
    within: Pattern | None = None
    has: Template = ""
    unique: str | None = None
    row: Template = "${0}"
    join: str = "\n"
    limit: int = 20
    empty: str = ""


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """A tool call to make; ``input`` is JSON with templates for its texts."""

    name: str
    input: Mapping[str, Any] = field(default_factory=dict)
    id: str | None = None
    cut: bool = False
    for_each: str | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """An error to raise."""

    message: str = "the rule file says that this call fails"
    retryable: bool = False
    retry_after: float | None = None
    cause: str = ""
    times: int | None = None
    after: int = 0
    refuses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ScriptRule:
    """One rule; ``index`` counts from 0 in its file."""

    index: int
    when: When = When()
    times: int | None = None
    collect: Mapping[str, Collection] = field(default_factory=dict)
    pace: Pace | None = None
    thinking: Template = ""
    text: Template = ""
    tools: tuple[ScriptedCall, ...] = ()
    stop_reason: StopReason | None = None
    usage: Mapping[str, int] = field(default_factory=dict)
    error: Failure | None = None
    and_: str = ""


@dataclass(frozen=True, slots=True)
class RuleFile:
    """A rule file; ``file`` is its path as it was given, ``places`` has the place of each expression."""

    file: str
    name: str
    rules: tuple[ScriptRule, ...]
    marks: Marks
    pace: Pace
    places: Mapping[Pattern, yamlfile.Node]


def fill(template: Template, names: Mapping[str, str]) -> str:
    """The text with its slots filled; a name without a value counts as empty."""
    return SLOT.sub(lambda slot: _value(slot, names), template)


def _value(slot: re.Match[str], names: Mapping[str, str]) -> str:
    if slot["name"] is None:
        return "$"
    value = names.get(slot["name"]) or slot["default"] or ""
    match slot["form"]:
        case "indent":
            return indent(value, INDENTATION)
        case "s":
            return "" if value == "1" else "s"
        case form:
            return value.rjust(int(form)) if form and form.isdecimal() else value


def fill_input(value: Any, names: Mapping[str, str]) -> Any:  # noqa: ANN401 - JSON with templates for its texts
    """A tool's input with its templates filled; one that is a slot alone may become a number or a list."""
    match value:
        case dict():
            return {key: fill_input(item, names) for key, item in value.items()}
        case list():
            return [fill_input(item, names) for item in value]
        case str():
            text, alone = fill(value, names), SLOT.fullmatch(value)
            form = alone and alone["form"]
            if form == "list":
                return [line for line in text.split("\n") if line.strip()]
            if form == "number" and (number := NUMBER_PATTERN.fullmatch(text.strip())):
                return float(text) if number[1] else int(text)
            return text
        case _:
            return value


def groups(*patterns: Pattern) -> set[str]:
    """The names that the groups of these expressions give; the first owns the numbers."""
    numbers = {str(n) for pattern in patterns[:1] for n in range(pattern.groups + 1)}
    return numbers | {name for pattern in patterns for name in pattern.groupindex}
