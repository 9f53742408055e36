"""The content of a rule file as frozen dataclasses. The head of ``prompts/offline_model.yaml`` explains the language.

Fields have the names of the keys in the file (with a ``_`` after a Python keyword), in the order in which errors list
them. The following is not explained there.

Numbered groups are those of the first pattern that a rule has, of interruption, result, user, tail and system; in a
``row`` or a ``for_each`` they are those of the item. ``has`` ignores case.

An error is raised each time, or the first ``times`` in a conversation, after ``after`` characters of text were
streamed. With ``refuses`` it is raised only for a request that sets one of those parameters.

``and: continue`` in a rule for an interruption also applies the rule for the latest results, or for the query, and
appends its output. In a rule for results it also applies the rule for the event before them. If the first of two rules
calls tools and the second does not, the second is applied after the results. A message that only asks to continue is
answered like the latest results, or the query, before it.

``and: work`` in a rule for an interruption does the same if the task's rule calls tools. If it would only answer, the
reply has only the output for the interruption, and the task is answered after a message that asks to continue. Use it
for lines that are followed by such a message (SPEC, section 5): otherwise the task would be answered twice. It means
``continue`` if another line of the request has ``and: continue``, and if there are no results yet.

``from: stdin`` is the text between a line ``<stdin>`` and a last line ``</stdin>`` in the query.

``marks`` classify user messages. ``interruption`` is the prefix of a line. ``redirect`` is a pattern for lines that
replace the query; without it, none do. If it has a group ``query``, only the text of that group becomes the query, also
of a query that matches ("no, list the files"). ``resume`` is a pattern for messages that only ask to continue, and
``note`` one for messages to ignore.
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
"""Text with slots such as ``${query}`` for values. ``$$`` is a dollar sign."""

Source: TypeAlias = Literal["results", "conversation", "latest", "query", "stdin", "interruption", "tail"]

RULE_NAMES = ("query", "interruption", "turn", "step", "tool", "used", "result", "tail", "file", "offered")
PARAMETERS = ("max_tokens", "temperature", "effort")

MAX_SEARCHED = 40_000
"""Characters at the start of a text that patterns are searched in."""
INDENTATION = "    "
"""The prefix of rows in Markdown, which would join them to a paragraph without it."""
SLOT = re.compile(
    r"\$(?:\$|\{(?P<name>[A-Za-z0-9_.]+)(?:\|(?P<form>number|list|indent|s|\d{1,3}))?(?::-(?P<default>[^}]*))?\})?"
)
NUMBER_PATTERN = re.compile(r"[-+]?\d{1,30}(\.\d{1,30})?")


@dataclass(frozen=True, slots=True)
class Pace:
    """The pace of a streamed reply, in chunks of ``chunk`` characters.

    ``think_s`` are the seconds before the first chunk, and ``delay_s`` those before each chunk and before the end. A
    reply that would take longer than ``most_s`` has larger chunks.
    """

    chunk: int = 200
    delay_s: float = 0.0
    think_s: float = 0.0
    most_s: float | None = None

    def piece(self, length: int) -> int:
        """Return the number of characters in each chunk of a reply of this length."""
        if not self.most_s:
            return self.chunk
        return max(self.chunk, ceil(length * self.delay_s / self.most_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """The patterns that classify user messages other than queries."""

    interruption: str = "USER INTERRUPTION: "
    redirect: Pattern | None = None
    resume: Pattern
    note: Pattern


@dataclass(frozen=True, slots=True)
class When:
    """The conditions of a rule. A condition that is ``None`` is always met."""

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
        """Whether the rule applies only to tool results."""
        return not (self.result is None and self.tool is None and self.is_error is None and self.aside is None)

    @property
    def wants_query(self) -> bool:
        """Whether the rule applies only to the query itself, not to later events."""
        later = self.wants_results or (self.interruption, self.turn, self.step) != (None, None, None)
        return self.user is not None and not later

    @property
    def patterns(self) -> dict[str, Pattern]:
        """The patterns whose groups fill templates, by key. Numbered groups are those of the first."""
        found = {name: getattr(self, name) for name in ("interruption", "result", "user", "tail", "system")}
        return {name: pattern for name, pattern in found.items() if pattern is not None}


@dataclass(frozen=True, slots=True)
class Collection:
    """A list of matches in the conversation, for templates and calls."""

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
    """A tool call of a reply. ``input`` is JSON whose strings are templates."""

    name: str
    input: Mapping[str, Any] = field(default_factory=dict)
    id: str | None = None
    cut: bool = False
    for_each: str | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """A ``ModelError`` to raise instead of a complete reply."""

    message: str = "the rule file says that this call fails"
    retryable: bool = False
    retry_after: float | None = None
    cause: str = ""
    times: int | None = None
    after: int = 0
    refuses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ScriptRule:
    """One rule. ``index`` is its position in the file, from 0."""

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
    """The content of a rule file. ``file`` is its path as given, and ``places`` has the YAML node of each pattern."""

    file: str
    name: str
    rules: tuple[ScriptRule, ...]
    marks: Marks
    pace: Pace
    places: Mapping[Pattern, yamlfile.Node]


def fill(template: Template, names: Mapping[str, str]) -> str:
    """Fill the slots of a template. A name without a value is empty."""
    return SLOT.sub(lambda slot: _slot_value(slot, names), template)


def _slot_value(slot: re.Match[str], names: Mapping[str, str]) -> str:
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
    """Fill the templates of a tool's input. A string that is a single slot may become a number or a list."""
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


def group_names(*patterns: Pattern) -> set[str]:
    """Return the names of the groups in these patterns. Numbered groups are those of the first pattern."""
    numbers = {str(n) for pattern in patterns[:1] for n in range(pattern.groups + 1)}
    return numbers | {name for pattern in patterns for name in pattern.groupindex}
