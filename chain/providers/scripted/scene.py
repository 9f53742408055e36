"""What a rule sees: a conversation, read message by message, and a moment of it that rules are tried at. Pure."""

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
from chain.text.wording import COMPACTED, STDIN_BEGIN, STDIN_END, USER_WORDS, how_often

_QUERY = re.compile(r"^\[run \d+, (?:query|task)\] (.*(?:\n(?!\[run \d+, ).*)*)", re.MULTILINE)
"""What a run was started with, among the user's words that a compaction keeps."""

if TYPE_CHECKING:
    from chain.text.search import Match, Pattern

MAX_SEARCH_S = 1.0
"""Seconds of processor time that all searches for a reply share; the shipped rules need some milliseconds. Nothing else
runs meanwhile."""


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """A tool result beside the call that it answers."""

    tool: str
    input: Mapping[str, Any]
    text: str
    is_error: bool


@dataclass(frozen=True, slots=True)
class TaskEvent:
    """What the task has to answer: tool results (``aside``: of calls for an interruption), or else the query."""

    results: tuple[ToolOutcome, ...] = ()
    aside: bool = False

    @property
    def tools(self) -> str:
        """The names of the tools, without repeats."""
        return ", ".join(dict.fromkeys(o.tool for o in self.results))


class Scene:
    """A conversation as rules see it; the model sets ``keeps_back`` when its next reply leaves the task unanswered.

    A conversation only grows (SPEC, I7), so only new messages are read: all for each call would be most of the work.
    """

    def __init__(self, marks: Marks) -> None:
        self.budget = SearchBudget(MAX_SEARCH_S)
        self._marks = marks
        self._count = 0
        self._last: Message | None = None
        self._asked: Mapping[str, ToolCall] = {}
        self._aside = False
        self._answered = False
        self._nudged = False
        self.keeps_back = False
        self.turn = 1
        self.step = 1
        self.calls = 0
        self.chars = 0
        self.query = ""
        self.events: list[TaskEvent] = []
        self.earlier: list[TaskEvent] = []
        self.lines: list[str] = []
        self.used: Counter[str] = Counter()

    @property
    def open_events(self) -> list[TaskEvent]:
        """The events still to be answered, the latest first; none after an answer, unless a message asks to go on."""
        return [] if self._answered and not self._nudged else self.events[::-1]

    def has_read(self, messages: Sequence[Message]) -> bool:
        """Whether what was read is the beginning of these messages."""
        return not self._count or (self._count <= len(messages) and messages[self._count - 1] is self._last)

    def search(self, pattern: Pattern, text: str) -> Match | None:
        """The first match. Raises ``TooSlow``."""
        return self.budget.search(pattern, text, MAX_SEARCHED)

    def fullmatch(self, pattern: Pattern, text: str) -> bool:
        """Whether the pattern matches all of the text. Raises ``TooSlow``."""
        return self.budget.fullmatch(pattern, text, MAX_SEARCHED)

    def read(self, messages: Sequence[Message]) -> None:
        """Read the messages that are new."""
        for message in messages[self._count :]:
            self.chars += chars_of(message.blocks)
            if message.role == "assistant":
                self._read_reply(message)
            else:
                self._read_user(message)
            self._last = message
        self._count = len(messages)

    def _read_reply(self, message: Message) -> None:
        self.turn += 1
        self.step += 1
        self.calls += len(message.calls)
        self.used.update(call.name for call in message.calls)
        self._asked = {call.id: call for call in message.calls}
        self._aside = bool(self.lines)
        self._answered, self._nudged, self.keeps_back = not self.keeps_back, False, False
        self.lines = []

    def _read_user(self, message: Message) -> None:
        if message.results:
            results = []
            for result in message.results:
                call = self._asked.get(result.id, ToolCall(result.id, "", {}))
                results.append(ToolOutcome(call.name, call.input, result.text, result.is_error))
            self.events.append(TaskEvent(tuple(results), self._aside))
            self._answered = False
        # What comes after the first text are the files that it names.
        if text := next((block.text for block in message.blocks if isinstance(block, Text)), None):
            self._read_text(text)

    def _read_text(self, text: str) -> None:
        mark = self._marks.interruption
        if self.search(self._marks.note, text.strip()):
            self.lines = []  # they belong to a run that is over
        elif self.search(self._marks.resume, text.strip()):
            self._nudged = True
        elif text.startswith(COMPACTED):
            # What it stands for is gone but for the words; the latest query is the task that is at work.
            for query in _QUERY.findall(text.partition(USER_WORDS)[2]):
                self._begin(query)
        elif text.startswith(mark):
            for line in text.removeprefix(mark).split(f"\n\n{mark}"):
                query = self._task_in(line)
                if query is None:
                    self.lines.append(line.strip())
                else:
                    self._begin(query.strip())
        else:
            self.lines = []
            self._begin(self._task_in(text) or text)

    def _task_in(self, text: str) -> str | None:
        """The task that a text asks for, if it reads like one."""
        redirect = self._marks.redirect and self.search(self._marks.redirect, text)
        return (redirect.groupdict().get("query") or text) if redirect else None

    def _begin(self, query: str) -> None:
        self.earlier += self.events
        self.query, self.events = query, [TaskEvent()]
        self.step, self.used = 1, Counter()
        self._answered = self._nudged = False


class Moment:
    """What rules are tried on: a request, one of the lines that came, and one event to answer."""

    def __init__(self, file: str, request: Request, scene: Scene, line: str, event: TaskEvent | None) -> None:
        self._request = request
        self._scene = scene
        self._event = event
        self._names = {
            "query": scene.query,
            "interruption": line,
            "turn": str(scene.turn),
            "step": str(scene.step),
            "tool": event.tools if event else "",
            "used": how_often(scene.used.elements()),
            "result": "",
            "tail": "\n\n".join(request.tail),
            "file": Path(file).name,
            "offered": ", ".join(tool.name for tool in request.tools),
        }

    def fit(self, rule: ScriptRule) -> Fit | None:
        """The rule with what it captured, if all its conditions hold."""
        when, scene, results = rule.when, self._scene, self._event.results if self._event else ()
        if when.turn not in (None, scene.turn) or when.step not in (None, scene.step):
            return None
        if when.overrides not in (None, self._request.overrides.given.keys()):
            return None
        if when.wants_query and (self._event is None or results):
            return None
        if when.offered and not any(scene.fullmatch(when.offered, tool.name) for tool in self._request.tools):
            return None
        outcome = next((each for each in results if self._result_fits(when, each)), None)
        if when.wants_results and outcome is None:
            return None
        names = {**self._names, "result": outcome.text, **_input_names(outcome.input)} if outcome else self._names
        texts = {**names, "user": scene.query, "system": self._request.system}
        captured: dict[str, str] = {}
        for name, pattern in when.patterns.items():
            if (match := scene.search(pattern, texts[name])) is None:
                return None
            captured |= _captured(match, numbers=not captured)
        return Fit(rule, self, names | captured)

    def _result_fits(self, when: When, outcome: ToolOutcome) -> bool:
        return (
            when.aside in (None, self._event and self._event.aside)
            and when.is_error in (None, outcome.is_error)
            and (when.tool is None or self._scene.fullmatch(when.tool, outcome.tool))
            and (when.result is None or self._scene.search(when.result, outcome.text) is not None)
        )

    def items(self, collection: Collection, names: Mapping[str, str]) -> list[dict[str, str]]:
        """The items of a list, each with its names; ``names`` are those of the rule."""
        found: list[dict[str, str]] = []
        has = rules.fill(collection.has, names).casefold()
        for text, input in self._texts(collection):
            if collection.within is not None and not self._scene.search(collection.within, text):
                continue
            for match in self._scene.budget.find_all(collection.match, text, MAX_SEARCHED):
                if match[0] and has in match[0].casefold():
                    found.append({**_input_names(input), **_captured(match)})
        if collection.unique is None:
            return found
        first: dict[str, dict[str, str]] = {}
        for item in found:
            first.setdefault(item[collection.unique], item)
        return list(first.values())

    def _texts(self, collection: Collection) -> Iterable[tuple[str, Mapping[str, Any]]]:
        scene = self._scene
        match collection.from_:
            case "results":
                events = scene.events
            case "conversation":
                events = [*scene.earlier, *scene.events]
            case "latest":
                events = [self._event] if self._event else []
            case "stdin":
                return [(_block(scene.query), {})]
            case "query" | "interruption" | "tail" as name:
                return [(self._names[name], {})]
        outcomes = (o for event in events for o in event.results if o.is_error == collection.is_error)
        tool = collection.tool
        return [(o.text, o.input) for o in outcomes if tool is None or scene.fullmatch(tool, o.tool)]


def _block(query: str) -> str:
    """The text that came with a query, as ``chain --stdin`` puts it there; empty if there is none."""
    _, _, rest = f"\n{query.rstrip()}".partition(STDIN_BEGIN.removeprefix("\n"))
    return rest.removesuffix(STDIN_END) if rest.endswith(STDIN_END) else ""


def _captured(match: Match, *, numbers: bool = True) -> dict[str, str]:
    named = {name: value or "" for name, value in match.groupdict().items()}
    if not numbers:
        return named
    return {**named, **{str(n): match[n] or "" for n in range(match.re.groups + 1)}}


def _input_names(input: Mapping[str, Any]) -> dict[str, str]:
    return {f"input.{key}": value if isinstance(value, str) else json.dumps(value) for key, value in input.items()}


@dataclass(frozen=True, slots=True)
class Fit:
    """A rule whose conditions hold, with the names for its templates."""

    rule: ScriptRule
    moment: Moment
    names: Mapping[str, str]


def chars_of(blocks: Iterable[Block]) -> int:
    """The characters that tokens are estimated from."""
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
