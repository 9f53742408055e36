"""The inputs of rules: a conversation, read message by message, and the context in which rules are matched. Pure."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chain.messages import Block, Image, Message, Opaque, Text, Thinking, ToolCall, ToolResult
from chain.model import Request
from chain.providers.scripted import rules
from chain.providers.scripted.rules import MAX_SEARCHED, Collection, Marks, ScriptRule, When
from chain.text.search import SearchBudget
from chain.text.wording import COMPACTED, STDIN_BEGIN, STDIN_END, USER_WORDS, count_names

_QUERY = re.compile(r"^\[run \d+, (?:query|task)\] (.*(?:\n(?!\[run \d+, ).*)*)", re.MULTILINE)
"""Matches the queries among the user's own texts in a compacted conversation."""

_JOB = "[JOB "
"""The start of a line that reports the end of a background job."""

if TYPE_CHECKING:
    from chain.text.search import Match, Pattern

MAX_SEARCH_S = 1.0
"""The maximum processor time, in seconds, of all searches for one reply. Searches block the trio loop."""


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """A tool result, with the name and the input of its call."""

    tool: str
    input: Mapping[str, Any]
    text: str
    is_error: bool


@dataclass(frozen=True, slots=True)
class TaskEvent:
    """An event that the next reply to the task must answer: tool results, or the query.

    ``aside``: the tool calls with these results were made for an interruption.
    """

    results: tuple[ToolOutcome, ...] = ()
    aside: bool = False

    @property
    def tools(self) -> str:
        """The names of the tools with results, each once."""
        return ", ".join(dict.fromkeys(o.tool for o in self.results))


class ScriptedConversation:
    """A conversation as rules see it. Only new messages are read, since a conversation only grows (SPEC, I7).

    The model sets ``postpones_task`` if its next reply leaves the task unanswered.
    """

    def __init__(self, marks: Marks) -> None:
        self.budget = SearchBudget(MAX_SEARCH_S)
        self._marks = marks
        self._count = 0
        self._last: Message | None = None
        self._calls_by_id: Mapping[str, ToolCall] = {}
        self._aside = False
        self._is_answered = False
        self._is_resumed = False
        self.postpones_task = False
        self.turn = 1
        self.step = 1
        self.call_count = 0
        self.char_count = 0
        self.query = ""
        self.events: list[TaskEvent] = []
        self.earlier_events: list[TaskEvent] = []
        self.lines: list[str] = []
        self.tool_uses: Counter[str] = Counter()

    @property
    def open_events(self) -> list[TaskEvent]:
        """The unanswered events, latest first. Empty after an answer, unless a message asks to continue."""
        return [] if self._is_answered and not self._is_resumed else self.events[::-1]

    def has_read(self, messages: Sequence[Message]) -> bool:
        """Return whether ``messages`` begins with the messages that were already read."""
        return not self._count or (self._count <= len(messages) and messages[self._count - 1] is self._last)

    def search(self, pattern: Pattern, text: str) -> Match | None:
        """Return the first match, or ``None``. Raise ``TooSlow`` if the time for searches is used up."""
        return self.budget.search(pattern, text, MAX_SEARCHED)

    def fullmatch(self, pattern: Pattern, text: str) -> bool:
        """Return whether the pattern matches the whole text. Raise ``TooSlow`` as ``search`` does."""
        return self.budget.fullmatch(pattern, text, MAX_SEARCHED)

    def read(self, messages: Sequence[Message]) -> None:
        """Update this state (query, events, lines, counts) with the messages that follow those already read."""
        for message in messages[self._count :]:
            self.char_count += count_chars(message.blocks)
            if message.role == "assistant":
                self._read_reply(message)
            else:
                self._read_user(message)
            self._last = message
        self._count = len(messages)

    def _read_reply(self, message: Message) -> None:
        self.turn += 1
        self.step += 1
        self.call_count += len(message.calls)
        self.tool_uses.update(call.name for call in message.calls)
        self._calls_by_id = {call.id: call for call in message.calls}
        self._aside = bool(self.lines)
        self._is_answered, self._is_resumed, self.postpones_task = not self.postpones_task, False, False
        self.lines = []

    def _read_user(self, message: Message) -> None:
        if message.results:
            results = []
            for result in message.results:
                call = self._calls_by_id.get(result.id, ToolCall(result.id, "", {}))
                results.append(ToolOutcome(call.name, call.input, result.text, result.is_error))
            self.events.append(TaskEvent(tuple(results), self._aside))
            self._is_answered = False
        # Later texts are attached files.
        if text := next((block.text for block in message.blocks if isinstance(block, Text)), None):
            self._read_text(text)

    def _read_text(self, text: str) -> None:
        mark = self._marks.interruption
        if self.search(self._marks.note, text.strip()):
            self.lines = []  # they belong to a finished run
        elif self.search(self._marks.resume, text.strip()):
            self._is_resumed = True
        elif text.startswith(COMPACTED):
            # A compaction has left only the user's own texts. The latest query is the current task.
            for query in _QUERY.findall(text.partition(USER_WORDS)[2]):
                self._start_task(query)
        elif text.startswith((mark, _JOB)):
            for line in re.split(rf"\n\n(?={re.escape(mark)}|{re.escape(_JOB)})", text):
                line = line.removeprefix(mark)
                query = self._redirected_query(line)
                if query is None:
                    self.lines.append(line.strip())
                else:
                    self._start_task(query.strip())
        else:
            self.lines = []
            self._start_task(self._redirected_query(text) or text)

    def _redirected_query(self, text: str) -> str | None:
        """Return the new query in a text that matches ``redirect``; otherwise ``None``."""
        redirect = self._marks.redirect and self.search(self._marks.redirect, text)
        return (redirect.groupdict().get("query") or text) if redirect else None

    def _start_task(self, query: str) -> None:
        self.earlier_events += self.events
        self.query, self.events = query, [TaskEvent()]
        self.step, self.tool_uses = 1, Counter()
        self._is_answered = self._is_resumed = False


class RuleContext:
    """The context in which rules are matched: a request, at most one interruption, and at most one event to answer."""

    def __init__(
        self, file: str, request: Request, conversation: ScriptedConversation, line: str, event: TaskEvent | None
    ) -> None:
        self._request = request
        self._conversation = conversation
        self._event = event
        self._names = {
            "query": conversation.query,
            "interruption": line,
            "turn": str(conversation.turn),
            "step": str(conversation.step),
            "tool": event.tools if event else "",
            "used": count_names(conversation.tool_uses.elements()),
            "result": "",
            "tail": "\n\n".join(request.tail),
            "file": Path(file).name,
            "offered": ", ".join(tool.name for tool in request.tools),
        }

    def match_rule(self, rule: ScriptRule) -> RuleMatch | None:
        """Return a rule with its captured groups if all its conditions are met; otherwise ``None``."""
        when, conversation, results = rule.when, self._conversation, self._event.results if self._event else ()
        if when.turn not in (None, conversation.turn) or when.step not in (None, conversation.step):
            return None
        if when.overrides not in (None, self._request.overrides.values.keys()):
            return None
        if when.wants_query and (self._event is None or results):
            return None
        if when.offered and not any(conversation.fullmatch(when.offered, tool.name) for tool in self._request.tools):
            return None
        outcome = next((each for each in results if self._matches_result(when, each)), None)
        if when.wants_results and outcome is None:
            return None
        names = {**self._names, "result": outcome.text, **_input_names(outcome.input)} if outcome else self._names
        texts = {**names, "user": conversation.query, "system": self._request.system}
        captured: dict[str, str] = {}
        for name, pattern in when.patterns.items():
            if (match := conversation.search(pattern, texts[name])) is None:
                return None
            captured |= _captured_groups(match, numbers=not captured)
        return RuleMatch(rule, self, names | captured)

    def _matches_result(self, when: When, outcome: ToolOutcome) -> bool:
        return (
            when.aside in (None, self._event and self._event.aside)
            and when.is_error in (None, outcome.is_error)
            and (when.tool is None or self._conversation.fullmatch(when.tool, outcome.tool))
            and (when.result is None or self._conversation.search(when.result, outcome.text) is not None)
        )

    def collect_items(self, collection: Collection, names: Mapping[str, str]) -> list[dict[str, str]]:
        """Return the items of a list, each as the values of the item's groups by name.

        ``names`` are the rule's values by name. They fill the template ``has``.
        """
        found: list[dict[str, str]] = []
        has = rules.fill(collection.has, names).casefold()
        for text, input in self._texts(collection):
            if collection.within is not None and not self._conversation.search(collection.within, text):
                continue
            for match in self._conversation.budget.find_all(collection.match, text, MAX_SEARCHED):
                if match[0] and has in match[0].casefold():
                    found.append({**_input_names(input), **_captured_groups(match)})
        if collection.unique is None:
            return found
        first: dict[str, dict[str, str]] = {}
        for item in found:
            first.setdefault(item[collection.unique], item)
        return list(first.values())

    def _texts(self, collection: Collection) -> Iterable[tuple[str, Mapping[str, Any]]]:
        conversation = self._conversation
        match collection.from_:
            case "results":
                events = conversation.events
            case "conversation":
                events = [*conversation.earlier_events, *conversation.events]
            case "latest":
                events = [self._event] if self._event else []
            case "stdin":
                return [(_stdin_text(conversation.query), {})]
            case "query" | "interruption" | "tail" as name:
                return [(self._names[name], {})]
        outcomes = (o for event in events for o in event.results if o.is_error == collection.is_error)
        tool = collection.tool
        return [(o.text, o.input) for o in outcomes if tool is None or conversation.fullmatch(tool, o.tool)]


def _stdin_text(query: str) -> str:
    """Return the piped input at the end of a query; empty if there is none."""
    _, _, rest = f"\n{query.rstrip()}".partition(STDIN_BEGIN.removeprefix("\n"))
    return rest.removesuffix(STDIN_END) if rest.endswith(STDIN_END) else ""


def _captured_groups(match: Match, *, numbers: bool = True) -> dict[str, str]:
    named = {name: value or "" for name, value in match.groupdict().items()}
    if not numbers:
        return named
    return {**named, **{str(n): match[n] or "" for n in range(match.re.groups + 1)}}


def _input_names(input: Mapping[str, Any]) -> dict[str, str]:
    return {f"input.{key}": value if isinstance(value, str) else json.dumps(value) for key, value in input.items()}


@dataclass(frozen=True, slots=True)
class RuleMatch:
    """A rule whose conditions are met, with the values for the slots of its templates, by name."""

    rule: ScriptRule
    context: RuleContext
    names: Mapping[str, str]


def count_chars(blocks: Iterable[Block]) -> int:
    """Return the number of characters in blocks, from which tokens are estimated. Images count as 0."""
    chars = 0
    for block in blocks:
        match block:
            case Text(text) | Thinking(text) | ToolResult(_, text):
                chars += len(text)
            case ToolCall(_, name, input):
                chars += len(name) + len(json.dumps(dict(input)))
            case Image():
                pass
            case Opaque(raw):
                chars += len(json.dumps(dict(raw)))
    return chars
