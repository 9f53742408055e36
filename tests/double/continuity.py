"""I7: a conversation only grows. Pure.

The conversation of request k is a prefix, block by block and ``cache_control`` aside, of that of request k+1. What a
request carries after the conversation (its tail) is a row of text blocks at the end of its last user message, or system
messages at its end; the next request does not have it. From outside, the tail of a request cannot be told from the
conversation, so:

* without further word the tail may be any number of those blocks, as long as one block of the last user message
  remains: a user message of nothing but tail cannot be, since a conversation that is to be answered ends with a message
  of the user's;
* a test can say for each request how many blocks there are, and then exactly those are gone.

Agents of one program have conversations of their own, which interleave: a request continues whichever conversation it
fits, the longest first, and may begin a new one only when the test has said so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from .flat import Flat, flatten

Tail: TypeAlias = Callable[[Mapping[str, Any]], int | None]
"""How many blocks at the end of a request, of this body, are its tail; ``None`` where that is not known."""


@dataclass(frozen=True, slots=True)
class Said:
    """One request, as the next is held to it.

    ``fixed`` may not change; at least the first ``least`` of ``blocks`` have to stay, at most the first ``most`` are
    conversation.
    """

    fixed: tuple[tuple[str, bytes], ...]
    blocks: tuple[tuple[str, str, bytes], ...]
    least: int
    most: int


def said(body: Mapping[str, Any], tail: Tail | None = None, flat: list[Flat] | None = None) -> Said:
    """A request as the next one is held to it. Raises ``ValueError`` for a tail that it cannot have."""
    flat = flatten(body) if flat is None else flat
    blocks = [b for b in flat if b.part == "messages"]
    exact = tail(body) if tail else None
    possible = _possible_tail(blocks)
    if exact is not None and exact > possible:
        raise ValueError(f"a tail of {exact} blocks was declared, but at most {possible} can be one")
    return Said(
        fixed=tuple((b.part, b.text) for b in flat if b.part != "messages"),
        blocks=tuple((b.role, b.kind, b.text) for b in blocks),
        least=len(blocks) - (possible if exact is None else exact),
        most=len(blocks) - (exact or 0),
    )


def _possible_tail(blocks: list[Flat]) -> int:
    if blocks and blocks[-1].role == "system":
        return _run(blocks, lambda b: b.role == "system")
    texts = _run(blocks, lambda b: b.role == "user" and b.kind == "text")
    return min(texts, max(0, _run(blocks, lambda b: b.role == "user") - 1))


def _run(blocks: list[Flat], fits: Callable[[Flat], bool]) -> int:
    """How many blocks at the end fit."""
    n = 0
    while n < len(blocks) and fits(blocks[-1 - n]):
        n += 1
    return n


def broken(before: Said, now: Said, *, fixed: bool = True) -> str | None:
    """Why ``now`` does not continue ``before``, or ``None``. ``fixed`` asks for the same system and tools too."""
    if fixed and before.fixed != now.fixed:
        changed = {part for part, _ in set(before.fixed) ^ set(now.fixed)} or {"order of the tools"}
        return f"the {' and the '.join(sorted(changed))} changed within a run"
    same = common(before, now)
    if same < before.least:
        return (
            f"the conversation is not a prefix of the next request's: block {same} was {_show(before, same)} and is "
            f"{_show(now, same)}; the first {before.least} of {len(before.blocks)} blocks had to stay"
        )
    # What was declared as tail may stand there again as tail (the same call asked for again), not as conversation.
    if min(same, now.most) > before.most:
        return f"block {before.most} was declared as tail and is conversation now: {_show(now, before.most)}"
    return None


def common(before: Said, now: Said) -> int:
    """How many blocks the two have in common from the start."""
    same = 0
    for one, other in zip(before.blocks, now.blocks, strict=False):
        if one != other:
            break
        same += 1
    return same


def _show(request: Said, i: int, limit: int = 120) -> str:
    if i >= len(request.blocks):
        return "nothing"
    role, _, text = request.blocks[i]
    shown = text.decode("utf-8", "replace")
    return f"{role}'s {shown if len(shown) <= limit else shown[:limit] + '…'}"


@dataclass(slots=True)
class Conversations:
    """The conversations seen so far, each by its latest request, and what the test has announced."""

    tail: Tail | None = None
    _open: list[Said] = field(default_factory=list)
    _new: int = 1
    _withdrawal: bool = False

    def expect_new(self) -> None:
        """Let a coming request begin a conversation of its own."""
        self._new += 1

    def expect_withdrawal(self) -> None:
        """A coming request may lack messages that the one before it had."""
        self._withdrawal = True

    def follow(self, body: Mapping[str, Any], flat: list[Flat] | None = None) -> str | None:
        """Take the next request. Why it breaks I7, or ``None``. An announcement is spent only by what needs it.

        ``flat`` is the body flattened, if that was done already.
        """
        try:
            now = said(body, self.tail, flat)
        except ValueError as e:
            return str(e)
        nearest = sorted(self._open, key=lambda s: common(s, now), reverse=True)
        for before in nearest:
            if broken(before, now) is None:
                return self._take(now, before)
        if self._withdrawal and nearest and nearest[0].fixed == now.fixed:
            self._withdrawal = False
            return self._take(now, nearest[0])
        if self._new:
            self._new -= 1
            return self._take(now)
        # The next request is held to what came, so that one mistake is told once.
        return self._take(now, nearest[0], broken(nearest[0], now))

    def _take(self, now: Said, before: Said | None = None, why: str | None = None) -> str | None:
        if before is not None:
            self._open.remove(before)
        self._open.append(now)
        return why
