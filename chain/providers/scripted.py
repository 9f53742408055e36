"""The model that is a rule file: it looks for a rule that fits the conversation and answers with what the rule says.

It is no language model and does not pretend to be one. It runs the offline demonstrations, stands in for a model in the
tests, and lets users try their own prompts without a network. The language of the files is told in
``chain.providers.rules``.

The same conversation gets the same reply, whatever the time. Three things are remembered between calls: how often each
rule was used, which counts from the moment it is chosen, also when the call is cancelled or fails; whether the latest
reply kept the task's answer back (``and: work``); and how far the conversation was read, which only saves reading it
again.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never

import trio

from chain.errors import ModelError, ParameterRefused
from chain.messages import Block, Message, Opaque, Text, Thinking, ToolCall, ToolResult, Usage
from chain.model import Delta, Reply, Request
from chain.providers import rules
from chain.providers.rules import MAX_SEARCHED, Collection, Failure, Marks, Pace, Rule, RuleFile
from chain.search import Patience, TooSlow

if TYPE_CHECKING:
    from chain.search import Match, Pattern

MAX_SEARCH_S = 1.0
"""Seconds of processor time that all searches for a reply have together; the shipped rules need some milliseconds, and
nothing else goes on meanwhile."""

CHARS_PER_TOKEN = 4
"""A usual estimate for English text; good enough to see budgets and limits at work."""


class ScriptedModel:
    """A ``Model`` that answers from rules."""

    def __init__(self, script: RuleFile) -> None:
        self._script = script
        self._uses: Counter[int] = Counter()
        self._scene = _Scene(script.marks)

    @classmethod
    def load(cls, path: Path, within: Path | None = None) -> ScriptedModel:
        """The model of a rule file, which must be in the folder ``within``. Raises ``ConfigError``."""
        return cls(rules.load(path, within))

    @classmethod
    def parse(cls, text: str, file: str = "rules") -> ScriptedModel:
        """The model of rules given as text; ``file`` is their name in errors. Raises ``ConfigError``."""
        return cls(rules.parse(text, file))

    @property
    def name(self) -> str:
        """The file's ``name``."""
        return self._script.name

    async def reply(self, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        """Answer one request. Raises ``ModelError`` where a rule says so."""
        if not self._scene.has_read(request.messages):
            self._scene = _Scene(self._script.marks)
        self._scene.patience = patience = Patience(MAX_SEARCH_S)
        try:
            self._scene.read(request.messages)
            answer = self._answer(request)
        except TooSlow:
            self._scene = _Scene(self._script.marks)  # it may have been read by half
            raise self._too_slow(patience) from None
        await self._stream(answer, on_delta)
        return answer.reply

    async def prepare(self) -> None:
        """There is nothing to prepare."""

    async def aclose(self) -> None:
        """There is nothing to give up."""

    def _too_slow(self, patience: Patience) -> ModelError:
        why = f"took most of the {MAX_SEARCH_S:g} s that searching may take; take repeats inside repeats apart: (a+)+"
        assert patience.slowest is not None
        return ModelError(str(self._script.places[patience.slowest].error(why)))

    def _answer(self, request: Request) -> _Answer:
        """Choose, count and render, in one step that nothing can come between."""
        parts: list[_Part] = []
        for fit in self._choose(request):
            part = replace(_render(fit), failure=self._failure(fit.rule, request))
            if any(p.calls for p in parts) and not part.calls and fit.rule.when.interruption is None:
                break  # the task's answer waits until the results are there
            self._uses[fit.rule.index] += 1
            parts.append(part)
        kept_back = self._kept_back(parts)
        self._uses.subtract(p.rule.index for p in kept_back)
        self._scene.keeps_back = bool(kept_back)
        parts = parts[: len(parts) - len(kept_back)]
        if not parts:
            parts = [_Part(Rule(-1), text=self._nothing_fits())]
        return _assemble(parts, request, self._scene, self._script.pace)

    def _kept_back(self, parts: Sequence[_Part]) -> Sequence[_Part]:
        """The parts for the task, if no line wants more than its work and they are only an answer."""
        lines = [p for p in parts if p.rule.when.interruption is not None]
        task = parts[len(lines) :]
        if not lines or not task or any(p.rule.go_on == "continue" for p in lines) or any(p.calls for p in task):
            return ()
        return task if self._scene.open_events[0].results else ()

    def _choose(self, request: Request) -> Iterator[_Fit]:
        """The rules to apply, in the order of their output; each is looked for after the ones before were counted."""
        lines, events = self._scene.lines, self._scene.open_events
        fit = self._first(request, lines, events[:1])
        if fit is None:
            return
        if fit.rule.when.interruption is None:
            yield fit
            below, goes_on = events[1:], fit.rule.go_on != "no"
        else:
            below, goes_on = events, False
            for line in lines:
                if fit := self._first(request, [line], events[:1], only_interruptions=True):
                    yield fit
                    goes_on |= fit.rule.go_on != "no"
        for event in below:
            if not goes_on or not (fit := self._first(request, [], [event])):
                return
            yield fit
            goes_on = fit.rule.go_on != "no"

    def _first(
        self, request: Request, lines: Sequence[str], event: Sequence[_Event], *, only_interruptions: bool = False
    ) -> _Fit | None:
        """The first rule that fits the event, if there is one, or one of the lines."""
        for rule in self._script.rules:
            if rule.times is not None and self._uses[rule.index] >= rule.times:
                continue
            if rule.when.interruption is None:
                tried: Sequence[str] = () if only_interruptions else ("",)
            else:
                tried = lines
            for line in tried:
                moment = _Moment(self._script.file, request, self._scene, line, event[0] if event else None)
                if fit := moment.fit(rule):
                    return fit
        return None

    def _failure(self, rule: Rule, request: Request) -> Failure | None:
        """The error that strikes when this rule is used now."""
        failure = rule.failure
        if failure is None or (failure.times is not None and self._uses[rule.index] >= failure.times):
            return None
        if not failure.refuses:
            return failure
        refused = tuple(n for n in failure.refuses if getattr(request.overrides, n) is not None)
        return replace(failure, refuses=refused) if refused else None

    def _nothing_fits(self) -> str:
        scene = self._scene
        if scene.lines:
            what = f"the message {scene.lines[-1][:200]!r}"
        elif scene.open_events and (tools := scene.open_events[0].tools):
            what = f"the result of {tools}"
        else:
            what = f"the query {scene.query[:200]!r}"
        return f"No rule of {self._script.file} matches {what} (model call {scene.turn} of this conversation)."

    async def _stream(self, answer: _Answer, on_delta: Callable[[Delta], None]) -> None:
        for piece in answer.pieces():
            await _pause(answer.pace)
            on_delta(piece)
        await _pause(answer.pace)
        if answer.failure is not None:
            raise _error(answer.failure)


async def _pause(pace: Pace) -> None:
    if pace.delay_s:
        await trio.sleep(pace.delay_s)
    else:
        await trio.lowlevel.checkpoint()


def _error(failure: Failure) -> ModelError:
    if failure.refuses:
        return ParameterRefused(failure.message, failure.refuses)
    return ModelError(failure.message, retryable=failure.retryable, retry_after=failure.retry_after)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """A tool result beside the call that it answers."""

    tool: str
    input: Mapping[str, Any]
    text: str
    is_error: bool


@dataclass(frozen=True, slots=True)
class _Event:
    """Something that the task has to answer: the results of one reply's calls, or, without any, the query.

    ``aside``: the calls were made in answer to an interruption.
    """

    results: tuple[_Outcome, ...] = ()
    aside: bool = False

    @property
    def tools(self) -> str:
        """The names of the tools, without repeats."""
        return ", ".join(dict.fromkeys(o.tool for o in self.results))


class _Scene:
    """What a conversation comes to, read message by message.

    ``keeps_back`` is set by whoever answers: the reply that comes next leaves the task unanswered.

    A conversation only grows (SPEC, I7), so a scene that ends in the very message that the request has at that place
    is read on from there; at ten thousand iterations, reading all of it for each call would be most of the work.
    """

    def __init__(self, marks: Marks) -> None:
        self.patience = Patience(MAX_SEARCH_S)
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
        self.events: list[_Event] = []
        self.lines: list[str] = []
        self.used: Counter[str] = Counter()

    @property
    def open_events(self) -> list[_Event]:
        """What is still to be answered, the latest first; empty after an answer that nobody asked to continue."""
        return [] if self._answered and not self._nudged else self.events[::-1]

    def has_read(self, messages: Sequence[Message]) -> bool:
        """Whether all that was read is the beginning of these."""
        return not self._count or (self._count <= len(messages) and messages[self._count - 1] is self._last)

    def search(self, pattern: Pattern, text: str) -> Match | None:
        """The first match. Raises ``TooSlow``."""
        return self.patience.search(pattern, text, MAX_SEARCHED)

    def is_whole(self, pattern: Pattern, text: str) -> bool:
        """Whether the pattern matches all of the text. Raises ``TooSlow``."""
        return self.patience.is_whole(pattern, text, MAX_SEARCHED)

    def read(self, messages: Sequence[Message]) -> None:
        """Read the messages that are new."""
        for message in messages[self._count :]:
            self.chars += _size(message.blocks)
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
                results.append(_Outcome(call.name, call.input, result.text, result.is_error))
            self.events.append(_Event(tuple(results), self._aside))
            self._answered = False
        for block in message.blocks:
            if isinstance(block, Text):
                self._read_text(block.text)

    def _read_text(self, text: str) -> None:
        mark = self._marks.interruption
        if self.search(self._marks.note, text.strip()):
            self.lines = []  # they belong to a run that is over
        elif self.search(self._marks.resume, text.strip()):
            self._nudged = True
        elif text.startswith(mark):
            for line in text.removeprefix(mark).split(f"\n\n{mark}"):
                redirect = self._marks.redirect and self.search(self._marks.redirect, line)
                if redirect:
                    self._begin((redirect.groupdict().get("query") or line).strip())
                else:
                    self.lines.append(line.strip())
        else:
            self.lines = []
            self._begin(text)

    def _begin(self, query: str) -> None:
        self.query, self.events = query, [_Event()]
        self.step, self.used = 1, Counter()
        self._answered = self._nudged = False


@dataclass(frozen=True, slots=True)
class _Moment:
    """What one try of a rule looks at."""

    file: str
    request: Request
    scene: _Scene
    line: str
    event: _Event | None

    def fit(self, rule: Rule) -> _Fit | None:
        """The rule with what it captured, if all its conditions hold."""
        when, scene = rule.when, self.scene
        if when.turn not in (None, scene.turn) or when.step not in (None, scene.step):
            return None
        if when.overrides is not None and when.overrides != self._overrides:
            return None
        if when.wants_query and (self.event is None or self.event.results):
            return None
        found: list[Match | None] = []
        if when.interruption is not None:
            found.append(scene.search(when.interruption, self.line))
        outcome = None
        if self.event is not None and self.event.results:
            outcome = next((o for o in self.event.results if self._is_meant(rule, self.event, o)), None)
        if when.wants_results and outcome is None:
            return None
        if when.result is not None and outcome is not None:
            found.append(scene.search(when.result, outcome.text))
        if when.user is not None:
            found.append(scene.search(when.user, scene.query))
        if when.tail is not None:
            found.append(scene.search(when.tail, self._tail))
        if when.system is not None:
            found.append(scene.search(when.system, self.request.system))
        matches = [m for m in found if m is not None]
        if len(matches) < len(found):
            return None
        names = self._names(outcome)
        for n, match in enumerate(matches):
            names |= _captured(match, numbers=n == 0)
        return _Fit(rule, self, names)

    def _is_meant(self, rule: Rule, event: _Event, outcome: _Outcome) -> bool:
        """Whether the conditions on a tool result hold for this one."""
        when = rule.when
        return (
            when.aside in (None, event.aside)
            and when.is_error in (None, outcome.is_error)
            and (when.tool is None or self.scene.is_whole(when.tool, outcome.tool))
            and (when.result is None or self.scene.search(when.result, outcome.text) is not None)
        )

    def items(self, collection: Collection, names: Mapping[str, str]) -> list[dict[str, str]]:
        """The items of a list, each with its names; ``names`` are those of the rule."""
        found: list[dict[str, str]] = []
        has = collection.has.fill(names).casefold()
        for text, input in self._texts(collection):
            if collection.within is not None and not self.scene.search(collection.within, text):
                continue
            for match in self.scene.patience.matches(collection.match, text, MAX_SEARCHED):
                if match[0] and has in match[0].casefold():
                    found.append({**_input_names(input), **_captured(match)})
        if collection.unique is None:
            return found
        first: dict[str, dict[str, str]] = {}
        for item in found:
            first.setdefault(item[collection.unique], item)
        return list(first.values())

    def _texts(self, collection: Collection) -> Iterator[tuple[str, Mapping[str, Any]]]:
        match collection.source:
            case "results" | "latest" as source:
                events = self.scene.events if source == "results" else [self.event] if self.event else []
                for outcome in (o for event in events for o in event.results):
                    tool_fits = collection.tool is None or self.scene.is_whole(collection.tool, outcome.tool)
                    if tool_fits and outcome.is_error == collection.is_error:
                        yield outcome.text, outcome.input
            case "query":
                yield self.scene.query, {}
            case "stdin":
                yield _block(self.scene.query), {}
            case "interruption":
                yield self.line, {}
            case "tail":
                yield self._tail, {}
            case _:
                assert_never(collection.source)

    def _names(self, outcome: _Outcome | None) -> dict[str, str]:
        scene = self.scene
        return {
            "query": scene.query,
            "interruption": self.line,
            "turn": str(scene.turn),
            "step": str(scene.step),
            "tool": self.event.tools if self.event else "",
            "used": ", ".join(name if n == 1 else f"{n} × {name}" for name, n in scene.used.items()),
            "result": outcome.text if outcome else "",
            "tail": self._tail,
            "file": Path(self.file).name,
            "offered": ", ".join(tool.name for tool in self.request.tools),
            **(_input_names(outcome.input) if outcome else {}),
        }

    @property
    def _tail(self) -> str:
        return "\n\n".join(self.request.tail)

    @property
    def _overrides(self) -> frozenset[str]:
        return frozenset(n for n in rules.PARAMETERS if getattr(self.request.overrides, n) is not None)


def _block(query: str) -> str:
    """The text that came with a query, as ``chain --stdin`` puts it there; empty if there is none."""
    _, _, rest = f"\n{query.rstrip()}".partition("\n<stdin>\n")
    return rest.removesuffix("\n</stdin>") if rest.endswith("\n</stdin>") else ""


def _captured(match: Match, *, numbers: bool = True) -> dict[str, str]:
    named = {name: value or "" for name, value in match.groupdict().items()}
    if not numbers:
        return named
    return {**named, **{str(n): match[n] or "" for n in range(match.re.groups + 1)}}


def _input_names(input: Mapping[str, Any]) -> dict[str, str]:
    return {f"input.{key}": value if isinstance(value, str) else json.dumps(value) for key, value in input.items()}


@dataclass(frozen=True, slots=True)
class _Fit:
    """A rule that is to be used, with its names."""

    rule: Rule
    moment: _Moment
    names: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Draft:
    """A tool call that has no id yet, unless the rule gave it one."""

    name: str
    input: Mapping[str, Any]
    id: str | None
    cut: bool


@dataclass(frozen=True, slots=True)
class _Part:
    """What one rule adds to the reply."""

    rule: Rule
    thinking: str = ""
    text: str = ""
    calls: tuple[_Draft, ...] = ()
    failure: Failure | None = None


def _render(fit: _Fit) -> _Part:
    names = dict(fit.names)
    lists = {name: fit.moment.items(collection, names) for name, collection in fit.rule.collect.items()}
    for name, items in lists.items():
        names |= _list_names(name, fit.rule.collect[name], items)
    calls: list[_Draft] = []
    for call in fit.rule.calls:
        items = [{}] if call.for_each is None else lists[call.for_each][: fit.rule.collect[call.for_each].limit]
        for item in items:
            input = {} if call.cut else rules.fill_input(call.input, {**names, **item})
            calls.append(_Draft(call.name, input, call.id, call.cut))
    return _Part(fit.rule, _trimmed(fit.rule.thinking.fill(names)), _trimmed(fit.rule.text.fill(names)), tuple(calls))


def _trimmed(text: str) -> str:
    """The text without the line ends of a YAML block; a text that is blank is meant to be."""
    return text.rstrip("\n") if text.strip() else text


def _list_names(name: str, collection: Collection, items: Sequence[Mapping[str, str]]) -> dict[str, str]:
    rows = [collection.row.fill(item) for item in items[: collection.limit]]
    if len(items) > collection.limit:
        rows.append(f"… and {len(items) - collection.limit} more")
    names = {name: collection.join.join(rows) or collection.empty, f"{name}.count": str(len(items))}
    for group in {key for item in items for key in item}:
        names[f"{name}.{group}"] = items[0].get(group, "")
        names[f"{name}.{group}.sum"] = str(sum(_number(item.get(group, "")) for item in items))
    return names if items else {**names, **{f"{name}.{g}.sum": "0" for g in rules.groups(collection.match)}}


def _number(text: str) -> Decimal:
    """A number in a text, 0 for anything else: a sum over rows of which some have none is still a sum."""
    text = text.strip().replace(",", "")
    return Decimal(text) if rules.NUMBER.fullmatch(text) else Decimal(0)


@dataclass(frozen=True, slots=True)
class _Answer:
    """A reply with how it comes, or the error that comes instead."""

    reply: Reply
    pace: Pace
    failure: Failure | None

    def pieces(self) -> Iterator[Delta]:
        """What is shown while the reply comes; before an error only the text that comes first."""
        left = None if self.failure is None else self.failure.after
        for block in self.reply.message.blocks if left != 0 else ():
            match block:
                case Thinking(text):
                    delta = Delta("thinking", text)
                case Text(text):
                    delta = Delta("text", text[:left])
                    left = None if left is None else left - len(delta.text)
                case _:
                    continue
            for start in range(0, len(delta.text), self.pace.chunk):
                yield Delta(delta.kind, delta.text[start : start + self.pace.chunk])


def _assemble(parts: Sequence[_Part], request: Request, scene: _Scene, pace: Pace) -> _Answer:
    blocks: list[Block] = []
    if thinking := "\n\n".join(p.thinking for p in parts if p.thinking):
        blocks.append(Thinking(thinking))
    if text := "\n\n".join(p.text for p in parts if p.text):
        blocks.append(Text(text))
    drafts = [draft for p in parts for draft in p.calls]
    ids = _fresh_ids(scene.calls, {draft.id for draft in drafts if draft.id is not None})
    calls = [(ToolCall(d.id if d.id is not None else next(ids), d.name, d.input), d.cut) for d in drafts]
    blocks.extend(call for call, _ in calls)
    cut = {call.id for call, is_cut in calls if is_cut}

    given = next((p.rule.stop_reason for p in parts if p.rule.stop_reason), None)
    stop_reason = given or ("max_tokens" if cut else "tool_use" if calls else "end_turn")
    limit = request.overrides.max_tokens
    if limit is not None and _tokens(_size(blocks)) > limit:
        blocks, over = _cut(blocks, limit * CHARS_PER_TOKEN)
        cut, stop_reason = {*cut, *over} & {b.id for b in blocks if isinstance(b, ToolCall)}, "max_tokens"

    told = [request.system, *request.tail, *(t.name + t.description for t in request.tools)]
    usage = Usage(_tokens(scene.chars + sum(map(len, told))), _tokens(_size(blocks)))
    for part in parts:
        usage = replace(usage, **part.rule.usage)
        pace = part.rule.pace or pace
    failure = next((p.failure for p in parts if p.failure is not None), None)
    return _Answer(Reply(Message("assistant", tuple(blocks)), stop_reason, usage, frozenset(cut)), pace, failure)


def _fresh_ids(earlier: int, given: Iterable[str]) -> Iterator[str]:
    """Ids that no call of the conversation has: they go on from the number of calls before."""
    return (id for n in itertools.count(earlier + 1) if (id := f"call_{n}") not in given)


def _cut(blocks: Sequence[Block], chars: int) -> tuple[list[Block], set[str]]:
    """The beginning of a reply, and the id of the call whose input was cut off."""
    kept: list[Block] = []
    for block in blocks:
        size = _size([block])
        if size <= chars:
            kept.append(block)
            chars -= size
            continue
        match block:
            case Text(text) if chars:
                kept.append(Text(text[:chars]))
            case Thinking(text) if chars:
                kept.append(Thinking(text[:chars]))
            case ToolCall(id, name):
                return [*kept, ToolCall(id, name, {})], {id}
            case _:
                pass
        break
    return kept, set()


def _size(blocks: Iterable[Block]) -> int:
    """Characters, as far as tokens are estimated from them."""
    return sum(_block_size(block) for block in blocks)


def _block_size(block: Block) -> int:
    match block:
        case Text(text) | Thinking(text) | ToolResult(_, text):
            return len(text)
        case ToolCall(_, name, input):
            return len(name) + len(json.dumps(dict(input)))
        case Opaque(raw):
            return len(json.dumps(dict(raw)))


def _tokens(chars: int) -> int:
    return -(-chars // CHARS_PER_TOKEN)
