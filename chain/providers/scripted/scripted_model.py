"""A ``Model`` that replies by the rules of a file: it applies the first rule whose conditions are met.

The model is for offline demonstrations, for tests, and for trying prompts without a network. The same conversation
always gets the same replies. Between the requests of a conversation, the model stores how often each rule was used,
whether the latest reply postponed the answer to the task, and how far the conversation was read.
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
from chain.providers.scripted.conversation import (
    MAX_SEARCH_S,
    RuleContext,
    RuleMatch,
    ScriptedConversation,
    TaskEvent,
    count_chars,
)
from chain.providers.scripted.rules import Collection, Failure, Pace, RuleFile, ScriptedCall, ScriptRule
from chain.text.search import SearchBudget, TooSlow

CHARS_PER_TOKEN = 4
"""A common estimate of the number of characters in a token of English text."""


@lru_cache(maxsize=8)  # parsing takes most of the time to open a session
def _rules_of(text: str, file: str, at_terminal: bool = False) -> RuleFile:
    return reader.read_rules(yamlfile.parse(text, file), at_terminal=at_terminal)


class ScriptedModel(Model):
    """A ``Model`` that replies by rules."""

    def __init__(self, script: RuleFile, context_window: int = 0) -> None:
        """Create a model. ``context_window`` limits the tokens of a request with its reply; 0 means no limit."""
        self._script = script
        self._context_window = context_window

    @property
    def window(self) -> Window | None:
        """The context window; ``None`` if it is unlimited."""
        return Window(self._context_window) if self._context_window else None

    @classmethod
    def load(
        cls, path: Path, within: Path | None = None, *, at_terminal: bool = False, context_window: int = 0
    ) -> ScriptedModel:
        """Return the model of a rule file. Raise ``ConfigError`` if the file is not valid, or not in ``within``.

        ``at_terminal`` selects the file's pace for a person at a terminal.
        """
        return cls(_rules_of(yamlfile.read_text(path, within), str(path), at_terminal), context_window)

    @classmethod
    def parse(cls, text: str, file: str = "rules", *, context_window: int = 0) -> ScriptedModel:
        """Return the model of the rules in a text. Raise ``ConfigError``, which names ``file``, if it is not valid."""
        return cls(_rules_of(text, file), context_window)

    @property
    def name(self) -> str:
        """The value of ``name`` in the rule file."""
        return self._script.name

    async def reply(self, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        """Reply to one request. Raise ``ModelError`` if a rule requires it, or if searching takes too long."""
        dialogue: _Dialogue = request.memory.setdefault(self, _Dialogue(self._script))
        window = self._context_window
        tokens = dialogue.tokens_of(request) if window else 0
        if tokens <= window:  # a request that is too long uses no rule
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
    """The state of one conversation: the messages that were read, and how often each rule was used."""

    def __init__(self, script: RuleFile) -> None:
        self._script = script
        self._uses: Counter[int] = Counter()
        self._conversation = ScriptedConversation(script.marks)

    def tokens_of(self, request: Request) -> int:
        said = sum(count_chars(message.blocks) for message in request.messages)
        return _tokens(said + _chars_outside_messages(request))

    def answer(self, request: Request) -> ScriptedReply:
        """Return the reply to a request. Raise ``ModelError`` if searching takes too long."""
        if not self._conversation.has_read(request.messages):
            self._conversation = ScriptedConversation(self._script.marks)
        self._conversation.budget = budget = SearchBudget(MAX_SEARCH_S)
        try:
            self._conversation.read(request.messages)
            return self._answer(request)
        except TooSlow:
            self._conversation = ScriptedConversation(self._script.marks)  # only a part may have been read
        why = f"used most of the {MAX_SEARCH_S:g} s for searching; avoid repeats inside repeats, as in (a+)+"
        assert budget.slowest is not None
        raise ModelError(str(self._script.places[budget.slowest].error(why)))

    def _answer(self, request: Request) -> ScriptedReply:
        """Choose the rules, count their uses, and return the reply."""
        parts: list[ReplyPart] = []
        for match in self._choose(request):
            part = replace(reply_part(match), failure=self._failure(match.rule, request))
            if any(p.calls for p in parts) and not part.calls and match.rule.when.interruption is None:
                break  # the task is answered after the results
            self._uses[match.rule.index] += 1
            parts.append(part)
        postponed = self._postponed_parts(parts)
        self._uses.subtract(p.rule.index for p in postponed)
        self._conversation.postpones_task = bool(postponed)
        parts = parts[: len(parts) - len(postponed)]
        if not parts:
            parts = [ReplyPart(ScriptRule(-1), text=self._no_match_text())]
        return join_parts(parts, request, self._conversation, self._script.pace)

    def _postponed_parts(self, parts: Sequence[ReplyPart]) -> Sequence[ReplyPart]:
        """Return the parts that answer the task, if they must wait for a later reply; otherwise nothing.

        ``parts`` are first the answers to the user's lines, then the answers to the task. The answers to the task wait
        if there are answers to lines, none of these has a rule with ``and: continue``, no answer to the task calls
        tools, and the request has tool results to answer.
        """
        lines = [p for p in parts if p.rule.when.interruption is not None]
        task = parts[len(lines) :]
        if not lines or not task or any(p.rule.and_ == "continue" for p in lines) or any(p.calls for p in task):
            return ()
        return task if self._conversation.open_events[0].results else ()

    def _choose(self, request: Request) -> Iterator[RuleMatch]:
        """Yield the rules to apply, in the order of their output.

        A rule is chosen only after the caller has counted the use of the rule before it.
        """
        lines, events = self._conversation.lines, self._conversation.open_events
        task = events[0] if events else None
        match = self._first_match(request, lines, task)
        if match is None:
            return
        if match.rule.when.interruption is None:
            yield match
            below, continues = events[1:], match.rule.and_ != ""
        else:
            below, continues = events, False
            for line in lines:
                if match := self._first_match(request, [line], task, only_interruptions=True):
                    yield match
                    continues |= match.rule.and_ != ""
        for event in below:
            if not continues or not (match := self._first_match(request, [], event)):
                return
            yield match
            continues = match.rule.and_ != ""

    def _first_match(
        self, request: Request, lines: Sequence[str], task: TaskEvent | None, *, only_interruptions: bool = False
    ) -> RuleMatch | None:
        contexts = {
            line: RuleContext(self._script.file, request, self._conversation, line, task) for line in ("", *lines)
        }
        for rule in self._script.rules:
            if rule.times is not None and self._uses[rule.index] >= rule.times:
                continue
            if rule.when.interruption is None:
                tried: Sequence[str] = () if only_interruptions else ("",)
            else:
                tried = lines
            for line in tried:
                if match := contexts[line].match_rule(rule):
                    return match
        return None

    def _failure(self, rule: ScriptRule, request: Request) -> Failure | None:
        failure = rule.error
        if failure is None or (failure.times is not None and self._uses[rule.index] >= failure.times):
            return None
        if not failure.refuses:
            return failure
        refused = tuple(name for name in failure.refuses if name in request.overrides.values)
        return replace(failure, refuses=refused) if refused else None

    def _no_match_text(self) -> str:
        conversation = self._conversation
        if conversation.lines:
            what = f"the message {conversation.lines[-1][:200]!r}"
        elif conversation.open_events and (tools := conversation.open_events[0].tools):
            what = f"the result of {tools}"
        else:
            what = f"the query {conversation.query[:200]!r}"
        return f"No rule of {self._script.file} matches {what} (model call {conversation.turn} of this conversation)."


# ----------------------------------------------------------------------------------------------------- parts of a reply


@dataclass(frozen=True, slots=True)
class ReplyPart:
    """The part of a reply that one rule adds."""

    rule: ScriptRule
    thinking: str = ""
    text: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    failure: Failure | None = None


def reply_part(match: RuleMatch) -> ReplyPart:
    """Return the part that a matching rule adds to the reply."""
    names = dict(match.names)
    lists = {name: match.context.collect_items(collection, names) for name, collection in match.rule.collect.items()}
    for name, items in lists.items():
        names |= _list_names(name, match.rule.collect[name], items)
    calls: list[ScriptedCall] = []
    for call in match.rule.tools:
        items = [{}] if call.for_each is None else lists[call.for_each][: match.rule.collect[call.for_each].limit]
        for item in items:
            calls.append(replace(call, input={} if call.cut else rules.fill_input(call.input, {**names, **item})))
    thinking, text = (_strip_line_ends(rules.fill(each, names)) for each in (match.rule.thinking, match.rule.text))
    return ReplyPart(match.rule, thinking, text, tuple(calls))


def _strip_line_ends(text: str) -> str:
    """Remove the line ends that a YAML block adds. Return a blank text unchanged, because it is intended."""
    return text.rstrip("\n") if text.strip() else text


def _list_names(name: str, collection: Collection, items: Sequence[Mapping[str, str]]) -> dict[str, str]:
    rows = [rules.fill(collection.row, item) for item in items[: collection.limit]]
    if len(items) > collection.limit:
        # In the same code block as the rows before it.
        block = rules.INDENTATION if rows[0].startswith(rules.INDENTATION) else ""
        rows.append(f"{block}… and {len(items) - collection.limit} more")
    names = {name: collection.join.join(rows) or collection.empty, f"{name}.count": str(len(items))}
    for group in {key for item in items for key in item}:
        names[f"{name}.{group}"] = items[0].get(group, "")
        names[f"{name}.{group}.sum"] = str(sum(_number(item.get(group, "")) for item in items))
    return names if items else {**names, **{f"{name}.{g}.sum": "0" for g in rules.group_names(collection.match)}}


def _number(text: str) -> Decimal:
    """Parse a number. Return 0 for any other text, so that it adds nothing to a sum."""
    text = text.strip().replace(",", "")
    return Decimal(text) if rules.NUMBER_PATTERN.fullmatch(text) else Decimal(0)


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """A reply with its pace, and the error to raise instead of a complete reply, if there is one."""

    reply: Reply
    pace: Pace
    failure: Failure | None

    def pieces(self) -> Iterator[Delta]:
        """Yield the chunks of the reply.

        If an error is raised instead, yield only the first characters of text, as many as ``Failure.after``.
        """
        left = None if self.failure is None else self.failure.after
        blocks = self.reply.message.blocks
        piece = self.pace.chunk_size(sum(len(block.text) for block in blocks if isinstance(block, Text | Thinking)))
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


def _chars_outside_messages(request: Request) -> int:
    texts = [request.system, *request.tail, *(t.name + t.description for t in request.tools)]
    return sum(map(len, texts))


def join_parts(
    parts: Sequence[ReplyPart], request: Request, conversation: ScriptedConversation, pace: Pace
) -> ScriptedReply:
    """Join the parts to one reply. The pace is that of the last rule that sets one, or else ``pace``."""
    blocks: list[Block] = []
    if thinking := "\n\n".join(p.thinking for p in parts if p.thinking):
        blocks.append(Thinking(thinking))
    if text := "\n\n".join(p.text for p in parts if p.text):
        blocks.append(Text(text))
    drafts = [draft for p in parts for draft in p.calls]
    given = {draft.id for draft in drafts}
    # Numbers continue from the earlier calls of the conversation.
    ids = (id for n in itertools.count(conversation.call_count + 1) if (id := f"call_{n}") not in given)
    calls = [(ToolCall(d.id if d.id is not None else next(ids), d.name, d.input), d.cut) for d in drafts]
    blocks.extend(call for call, _ in calls)
    cut = {call.id for call, is_cut in calls if is_cut}

    stop_reason = next((p.rule.stop_reason for p in parts if p.rule.stop_reason), None)
    stop_reason = stop_reason or ("max_tokens" if cut else "tool_use" if calls else "end_turn")
    limit = request.overrides.max_tokens
    if limit is not None and _tokens(count_chars(blocks)) > limit:
        blocks, over = _truncate(blocks, limit * CHARS_PER_TOKEN)
        cut, stop_reason = {*cut, *over} & {b.id for b in blocks if isinstance(b, ToolCall)}, "max_tokens"

    usage = Usage(_tokens(conversation.char_count + _chars_outside_messages(request)), _tokens(count_chars(blocks)))
    for part in parts:
        usage = replace(usage, **part.rule.usage)
        pace = part.rule.pace or pace
    failure = next((p.failure for p in parts if p.failure is not None), None)
    return ScriptedReply(Reply(Message("assistant", tuple(blocks)), stop_reason, usage, frozenset(cut)), pace, failure)


def _truncate(blocks: Sequence[Block], chars: int) -> tuple[list[Block], set[str]]:
    """Truncate a reply to ``chars`` characters. Return the blocks left, and the ids of truncated calls."""
    kept: list[Block] = []
    for block in blocks:
        length = count_chars([block])
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
