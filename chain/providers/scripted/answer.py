"""What the rules that fit make of a request: texts and tool calls filled in, and put together as one reply. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from chain.messages import Block, Message, Text, Thinking, ToolCall, Usage
from chain.model import Delta, Reply, Request
from chain.providers.scripted import rules
from chain.providers.scripted.rules import Collection, Failure, Pace, ScriptRule
from chain.providers.scripted.scene import Fit, Scene, chars_of

CHARS_PER_TOKEN = 4
"""A usual estimate for English text; good enough to see budgets and limits at work."""


@dataclass(frozen=True, slots=True)
class DraftCall:
    """A tool call that has no id yet, unless the rule gave it one."""

    name: str
    input: Mapping[str, Any]
    id: str | None
    cut: bool


@dataclass(frozen=True, slots=True)
class ReplyPart:
    """What one rule adds to the reply."""

    rule: ScriptRule
    thinking: str = ""
    text: str = ""
    calls: tuple[DraftCall, ...] = ()
    failure: Failure | None = None


def part_of(fit: Fit) -> ReplyPart:
    """What a rule that fits adds to the reply."""
    names = dict(fit.names)
    lists = {name: fit.moment.items(collection, names) for name, collection in fit.rule.collect.items()}
    for name, items in lists.items():
        names |= _list_names(name, fit.rule.collect[name], items)
    calls: list[DraftCall] = []
    for call in fit.rule.calls:
        items = [{}] if call.for_each is None else lists[call.for_each][: fit.rule.collect[call.for_each].limit]
        for item in items:
            input = {} if call.cut else rules.fill_input(call.input, {**names, **item})
            calls.append(DraftCall(call.name, input, call.id, call.cut))
    return ReplyPart(
        fit.rule, _trimmed(fit.rule.thinking.fill(names)), _trimmed(fit.rule.text.fill(names)), tuple(calls)
    )


def _trimmed(text: str) -> str:
    """The text without the line ends that a YAML block adds. A blank text stays: somebody wrote it on purpose."""
    return text.rstrip("\n") if text.strip() else text


def _list_names(name: str, collection: Collection, items: Sequence[Mapping[str, str]]) -> dict[str, str]:
    rows = [collection.row.fill(item) for item in items[: collection.limit]]
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
    return Decimal(text) if rules.NUMBER.fullmatch(text) else Decimal(0)


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


def assemble(parts: Sequence[ReplyPart], request: Request, scene: Scene, pace: Pace) -> ScriptedReply:
    """Put the parts together as one reply."""
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
    if limit is not None and _tokens(chars_of(blocks)) > limit:
        blocks, over = _cut(blocks, limit * CHARS_PER_TOKEN)
        cut, stop_reason = {*cut, *over} & {b.id for b in blocks if isinstance(b, ToolCall)}, "max_tokens"

    texts = [request.system, *request.tail, *(t.name + t.description for t in request.tools)]
    usage = Usage(_tokens(scene.chars + sum(map(len, texts))), _tokens(chars_of(blocks)))
    for part in parts:
        usage = replace(usage, **part.rule.usage)
        pace = part.rule.pace or pace
    failure = next((p.failure for p in parts if p.failure is not None), None)
    return ScriptedReply(Reply(Message("assistant", tuple(blocks)), stop_reason, usage, frozenset(cut)), pace, failure)


def _fresh_ids(earlier: int, given: Iterable[str]) -> Iterator[str]:
    """Ids that no call of the conversation has, numbered on from its ``earlier`` calls."""
    return (id for n in itertools.count(earlier + 1) if (id := f"call_{n}") not in given)


def _cut(blocks: Sequence[Block], chars: int) -> tuple[list[Block], set[str]]:
    """The first ``chars`` characters of a reply, and the id of the call whose input was cut off."""
    kept: list[Block] = []
    for block in blocks:
        length = chars_of([block])
        if length <= chars:
            kept.append(block)
            chars -= length
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


def _tokens(chars: int) -> int:
    return -(-chars // CHARS_PER_TOKEN)
