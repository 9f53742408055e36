"""The content of a rule file as frozen dataclasses. The head of ``prompts/offline_model.yaml`` explains the language.

Fields have the names of the keys in the file (with a ``_`` after a Python keyword), in the order in which errors list
them. The following rules are not explained in that file.

A numbered group belongs to the first pattern that the rule has, in the order interruption, result, user, tail, system.
In a ``row`` or a ``for_each``, it belongs to the item. ``has`` ignores case.

An error is raised each time its rule is applied, or only the first ``times`` times in a conversation. It is raised
when ``after`` characters of text were streamed. With ``refuses`` it is raised only for a request that sets one of the
parameters in ``refuses``.

``and: continue`` applies a second rule and appends its output. In a rule for an interruption, the second rule is that
for the latest results, or for the query if there are none. In a rule for results, the second rule is that for the event
before these results. If the first rule calls tools and the second does not, the second is applied after the results of
these calls. A message that only asks to continue is answered by the rule for the latest results before it, or for the
query if there are none.

``and: work`` in a rule for an interruption means ``and: continue`` in three cases: the second rule calls tools, another
line of the request has ``and: continue``, or there are no results yet. Otherwise the reply has only the output for the
interruption, and the task is answered after a message that asks to continue. Use ``work`` for lines that are followed
by such a message (SPEC, section 5): with ``continue``, the task would be answered twice.

``from: stdin`` is the text between a line ``<stdin>`` and a last line ``</stdin>`` in the query.

``marks`` classify user messages. ``interruption`` is the prefix of a line. ``redirect`` is a pattern for lines that
replace the query; without it, no line does. If the pattern has a group ``query``, only the text of that group becomes
the query. A query that itself matches the pattern, such as "no, list the files", is shortened in the same way.
``resume`` is a pattern for messages that only ask to continue, and ``note`` is a pattern for messages to ignore.
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
"""The number of characters to search in a text. Characters after these are not searched."""
INDENTATION = "    "
"""A prefix that makes rows a code block in Markdown, so that they are not joined to one paragraph."""
SLOT = re.compile(
    r"\$(?:\$|\{(?P<name>[A-Za-z0-9_.]+)(?:\|(?P<form>number|list|indent|s|\d{1,3}))?(?::-(?P<default>[^}]*))?\})?"
)
NUMBER_PATTERN = re.compile(r"[-+]?\d{1,30}(\.\d{1,30})?")


@dataclass(frozen=True, slots=True)
class Pace:
    """The pace of a streamed reply, in chunks of ``chunk`` characters.

    ``think_s`` is the time before the first chunk, in seconds. ``delay_s`` is the time before each chunk and before the
    end. If a reply would take longer than ``most_s`` seconds, its chunks are larger.
    """

    chunk: int = 200
    delay_s: float = 0.0
    think_s: float = 0.0
    most_s: float | None = None

    def chunk_size(self, length: int) -> int:
        """Return the number of characters in each chunk of a reply that has ``length`` characters."""
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
        """The patterns by their keys. Templates can use all named groups, and the first pattern's numbered groups."""
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
    """A tool call of a reply. ``input`` is JSON in which each string is a template."""

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
    """A rule of a scripted model: when it applies, and its reply or error. ``index`` is its position from 0."""

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
    """Fill each slot of a template with its value in ``names``, or with its default, which is empty if not given."""
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
    """Fill the templates in the input of a tool. A string that is a single slot may become a number or a list."""
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
    """Return the names of all groups in the patterns, and the numbers of the groups in the first pattern."""
    numbers = {str(n) for pattern in patterns[:1] for n in range(pattern.groups + 1)}
    return numbers | {name for pattern in patterns for name in pattern.groupindex}
