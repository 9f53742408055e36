"""The model that is a rule file: it answers with what the first rule says whose conditions the conversation meets.

It runs the offline demonstrations, stands in for a model in the tests, and lets users try their prompts without a
network. The same conversation always gets the same replies; between its requests are kept how often each rule was used
(from the moment it is chosen), whether the latest reply kept the task's answer back, and how far the conversation was
read.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache
from pathlib import Path

import trio

from chain.config import yamlfile
from chain.errors import ModelError, ParameterRefused
from chain.messages import TOO_LONG, Block, Message, Text, Thinking, ToolCall, Usage
from chain.model import Delta, Model, Reply, Request, Window
from chain.providers.scripted import reader, rules
from chain.providers.scripted.rules import Collection, Failure, Pace, RuleFile, ScriptedCall, ScriptRule
from chain.providers.scripted.scene import MAX_SEARCH_S, Fit, Moment, Scene, TaskEvent, chars_of
from chain.text.search import SearchBudget, TooSlow

CHARS_PER_TOKEN = 4
"""A usual estimate for English text; good enough to see budgets and limits at work."""


@lru_cache(maxsize=8)  # the next session of a process has the same rules, and reading them takes most of its opening
def _rules_of(text: str, file: str, at_terminal: bool = False) -> RuleFile:
    return reader.read_rules(yamlfile.parse(text, file), at_terminal=at_terminal)


class ScriptedModel(Model):
    """A ``Model`` that answers from rules."""

    def __init__(self, script: RuleFile, context_window: int = 0) -> None:
        """``context_window`` is how many tokens a request and its reply may have together; 0 for no limit."""
        self._script = script
        self._context_window = context_window

    @property
    def window(self) -> Window | None:
        """The window, if there is one."""
        return Window(self._context_window) if self._context_window else None

    @classmethod
    def load(
        cls, path: Path, within: Path | None = None, *, at_terminal: bool = False, context_window: int = 0
    ) -> ScriptedModel:
        """The model of a rule file in the folder ``within``, at its terminal pace or not. Raises ``ConfigError``."""
        return cls(_rules_of(yamlfile.read_text(path, within), str(path), at_terminal), context_window)

    @classmethod
    def parse(cls, text: str, file: str = "rules", *, context_window: int = 0) -> ScriptedModel:
        """The model of rules given as text; ``file`` is their name in errors. Raises ``ConfigError``."""
        return cls(_rules_of(text, file), context_window)

    @property
    def name(self) -> str:
        """The file's ``name``."""
        return self._script.name

    async def reply(self, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        """Answer one request. Raises ``ModelError`` where a rule says so."""
        dialogue: _Dialogue = request.memory.setdefault(self, _Dialogue(self._script))
        window = self._context_window
        tokens = dialogue.tokens_of(request) if window else 0
        if tokens <= window:  # else no rule is used up for it
            answer = dialogue.answer(request)
            tokens = answer.reply.usage.total_tokens
        if window and tokens > window:
            return Reply(Message("assistant", ()), TOO_LONG, asked_tokens=tokens)
        said = 0
        try:
            if answer.pace.think_s:
                await trio.sleep(answer.pace.think_s)
            for piece in answer.pieces():
                await trio.sleep(answer.pace.delay_s)
                said += len(piece.text)
                on_delta(piece)
            await trio.sleep(answer.pace.delay_s)
        except trio.Cancelled:
            on_delta(Delta("usage", usage=replace(answer.reply.usage, output_tokens=_tokens(said))))
            raise
        if (failure := answer.failure) is None:
            return answer.reply
        if failure.refuses:
            raise ParameterRefused(failure.message, failure.refuses)
        pause, cause = failure.retry_after, failure.cause
        raise ModelError(failure.message, retryable=failure.retryable, retry_after=pause, cause=cause)


class _Dialogue:
    """One conversation with the rules: what was read of it, and how often each rule was used in it."""

    def __init__(self, script: RuleFile) -> None:
        self._script = script
        self._uses: Counter[int] = Counter()
        self._scene = Scene(script.marks)

    def tokens_of(self, request: Request) -> int:
        said = sum(chars_of(message.blocks) for message in request.messages)
        return _tokens(said + _chars_beside(request))

    def answer(self, request: Request) -> ScriptedReply:
        """What the rules say to the request. Raises ``ModelError`` if searching takes too long."""
        if not self._scene.has_read(request.messages):
            self._scene = Scene(self._script.marks)
        self._scene.budget = budget = SearchBudget(MAX_SEARCH_S)
        try:
            self._scene.read(request.messages)
            return self._answer(request)
        except TooSlow:
            self._scene = Scene(self._script.marks)  # it may have been read by half
        why = f"took most of the {MAX_SEARCH_S:g} s that searching may take; take repeats inside repeats apart: (a+)+"
        assert budget.slowest is not None
        raise ModelError(str(self._script.places[budget.slowest].error(why)))

    def _answer(self, request: Request) -> ScriptedReply:
        """Choose, count and render, in one step."""
        parts: list[ReplyPart] = []
        for fit in self._choose(request):
            part = replace(part_of(fit), failure=self._failure(fit.rule, request))
            if any(p.calls for p in parts) and not part.calls and fit.rule.when.interruption is None:
                break  # the task's answer waits until the results are there
            self._uses[fit.rule.index] += 1
            parts.append(part)
        kept_back = self._kept_back(parts)
        self._uses.subtract(p.rule.index for p in kept_back)
        self._scene.keeps_back = bool(kept_back)
        parts = parts[: len(parts) - len(kept_back)]
        if not parts:
            parts = [ReplyPart(ScriptRule(-1), text=self._nothing_fits())]
        return assemble(parts, request, self._scene, self._script.pace)

    def _kept_back(self, parts: Sequence[ReplyPart]) -> Sequence[ReplyPart]:
        """The parts that answer the task, if that waits: no line asks to ``continue``, and they call no tools."""
        lines = [p for p in parts if p.rule.when.interruption is not None]
        task = parts[len(lines) :]
        if not lines or not task or any(p.rule.and_ == "continue" for p in lines) or any(p.calls for p in task):
            return ()
        return task if self._scene.open_events[0].results else ()

    def _choose(self, request: Request) -> Iterator[Fit]:
        """The rules to apply, in the order of their output. Each is chosen after those before it were counted."""
        lines, events = self._scene.lines, self._scene.open_events
        task = events[0] if events else None
        fit = self._first(request, lines, task)
        if fit is None:
            return
        if fit.rule.when.interruption is None:
            yield fit
            below, goes_on = events[1:], fit.rule.and_ != ""
        else:
            below, goes_on = events, False
            for line in lines:
                if fit := self._first(request, [line], task, only_interruptions=True):
                    yield fit
                    goes_on |= fit.rule.and_ != ""
        for event in below:
            if not goes_on or not (fit := self._first(request, [], event)):
                return
            yield fit
            goes_on = fit.rule.and_ != ""

    def _first(
        self, request: Request, lines: Sequence[str], task: TaskEvent | None, *, only_interruptions: bool = False
    ) -> Fit | None:
        moments = {line: Moment(self._script.file, request, self._scene, line, task) for line in ("", *lines)}
        for rule in self._script.rules:
            if rule.times is not None and self._uses[rule.index] >= rule.times:
                continue
            if rule.when.interruption is None:
                tried: Sequence[str] = () if only_interruptions else ("",)
            else:
                tried = lines
            for line in tried:
                if fit := moments[line].fit(rule):
                    return fit
        return None

    def _failure(self, rule: ScriptRule, request: Request) -> Failure | None:
        failure = rule.error
        if failure is None or (failure.times is not None and self._uses[rule.index] >= failure.times):
            return None
        if not failure.refuses:
            return failure
        refused = tuple(name for name in failure.refuses if name in request.overrides.given)
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


# ---------------------------------------------------------------------------------------------- what a reply is made of


@dataclass(frozen=True, slots=True)
class ReplyPart:
    """What one rule adds to the reply."""

    rule: ScriptRule
    thinking: str = ""
    text: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    failure: Failure | None = None


def part_of(fit: Fit) -> ReplyPart:
    """What a rule that fits adds to the reply."""
    names = dict(fit.names)
    lists = {name: fit.moment.items(collection, names) for name, collection in fit.rule.collect.items()}
    for name, items in lists.items():
        names |= _list_names(name, fit.rule.collect[name], items)
    calls: list[ScriptedCall] = []
    for call in fit.rule.tools:
        items = [{}] if call.for_each is None else lists[call.for_each][: fit.rule.collect[call.for_each].limit]
        for item in items:
            calls.append(replace(call, input={} if call.cut else rules.fill_input(call.input, {**names, **item})))
    thinking, text = (_trimmed(rules.fill(each, names)) for each in (fit.rule.thinking, fit.rule.text))
    return ReplyPart(fit.rule, thinking, text, tuple(calls))


def _trimmed(text: str) -> str:
    """The text without the line ends that a YAML block adds. A blank text stays: somebody wrote it on purpose."""
    return text.rstrip("\n") if text.strip() else text


def _list_names(name: str, collection: Collection, items: Sequence[Mapping[str, str]]) -> dict[str, str]:
    rows = [rules.fill(collection.row, item) for item in items[: collection.limit]]
    if len(items) > collection.limit:
        # In the same block of code as the rows before it.
        block = rules.INDENTATION if rows[0].startswith(rules.INDENTATION) else ""
        rows.append(f"{block}… and {len(items) - collection.limit} more")
    names = {name: collection.join.join(rows) or collection.empty, f"{name}.count": str(len(items))}
    for group in {key for item in items for key in item}:
        names[f"{name}.{group}"] = items[0].get(group, "")
        names[f"{name}.{group}.sum"] = str(sum(_number(item.get(group, "")) for item in items))
    return names if items else {**names, **{f"{name}.{g}.sum": "0" for g in rules.groups(collection.match)}}


def _number(text: str) -> Decimal:
    """The number that a text is, or 0: rows without a number add nothing to a sum."""
    text = text.strip().replace(",", "")
    return Decimal(text) if rules.NUMBER_PATTERN.fullmatch(text) else Decimal(0)


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """A reply and the pace at which it is streamed, or the error that ends the stream instead."""

    reply: Reply
    pace: Pace
    failure: Failure | None

    def pieces(self) -> Iterator[Delta]:
        """The pieces in which the reply is streamed; before an error only as much text as its ``after`` says."""
        left = None if self.failure is None else self.failure.after
        blocks = self.reply.message.blocks
        piece = self.pace.piece(sum(len(block.text) for block in blocks if isinstance(block, Text | Thinking)))
        for block in blocks if left != 0 else ():
            match block:
                case Thinking(text):
                    delta = Delta("thinking", text)
                case Text(text):
                    delta = Delta("text", text[:left])
                    left = None if left is None else left - len(delta.text)
                case _:
                    continue
            for start in range(0, len(delta.text), piece):
                yield Delta(delta.kind, delta.text[start : start + piece])


def _chars_beside(request: Request) -> int:
    texts = [request.system, *request.tail, *(t.name + t.description for t in request.tools)]
    return sum(map(len, texts))


def assemble(parts: Sequence[ReplyPart], request: Request, scene: Scene, pace: Pace) -> ScriptedReply:
    """Put the parts together as one reply."""
    blocks: list[Block] = []
    if thinking := "\n\n".join(p.thinking for p in parts if p.thinking):
        blocks.append(Thinking(thinking))
    if text := "\n\n".join(p.text for p in parts if p.text):
        blocks.append(Text(text))
    drafts = [draft for p in parts for draft in p.calls]
    given = {draft.id for draft in drafts}
    # Numbered on from the earlier calls of the conversation.
    ids = (id for n in itertools.count(scene.calls + 1) if (id := f"call_{n}") not in given)
    calls = [(ToolCall(d.id if d.id is not None else next(ids), d.name, d.input), d.cut) for d in drafts]
    blocks.extend(call for call, _ in calls)
    cut = {call.id for call, is_cut in calls if is_cut}

    stop_reason = next((p.rule.stop_reason for p in parts if p.rule.stop_reason), None)
    stop_reason = stop_reason or ("max_tokens" if cut else "tool_use" if calls else "end_turn")
    limit = request.overrides.max_tokens
    if limit is not None and _tokens(chars_of(blocks)) > limit:
        blocks, over = _cut(blocks, limit * CHARS_PER_TOKEN)
        cut, stop_reason = {*cut, *over} & {b.id for b in blocks if isinstance(b, ToolCall)}, "max_tokens"

    usage = Usage(_tokens(scene.chars + _chars_beside(request)), _tokens(chars_of(blocks)))
    for part in parts:
        usage = replace(usage, **part.rule.usage)
        pace = part.rule.pace or pace
    failure = next((p.failure for p in parts if p.failure is not None), None)
    return ScriptedReply(Reply(Message("assistant", tuple(blocks)), stop_reason, usage, frozenset(cut)), pace, failure)


def _cut(blocks: Sequence[Block], chars: int) -> tuple[list[Block], set[str]]:
    """The first ``chars`` characters of a reply, and the id of the call whose input was cut off."""
    kept: list[Block] = []
    for block in blocks:
        length = chars_of([block])
        if length > chars:
            if isinstance(block, ToolCall):
                return [*kept, replace(block, input={})], {block.id}
            if isinstance(block, Text | Thinking) and chars:
                kept.append(replace(block, text=block.text[:chars]))
            break
        kept.append(block)
        chars -= length
    return kept, set()


def _tokens(chars: int) -> int:
    return -(-chars // CHARS_PER_TOKEN)
