"""The check that a conversation only grows (I7 of the specification). Pure.

A request begins with all blocks of the request before, without ``cache_control``, except for a tail. The tail consists
of text blocks at the end of the last user message, or of system messages at the end:

* Without a ``Tail`` function it may be any number of those blocks, but at least one block of the last user message
  belongs to the conversation.
* With a ``Tail`` function, it is exactly as many blocks as the function returns.

The conversations of several agents interleave. A request continues the conversation with the longest common prefix, and
may start a new one only if the test expects that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from .flat import Flat, flatten

Tail: TypeAlias = Callable[[Mapping[str, Any]], int | None]
"""Returns the number of blocks in the tail of a request with this body; ``None`` if it is unknown."""


@dataclass(frozen=True, slots=True)
class FlatRequest:
    """A request, for comparison with the next one.

    ``fixed`` are the system prompt and the tools, which may not change. The conversation has between ``least`` and
    ``most`` of ``blocks``; the others are the tail.
    """

    fixed: tuple[tuple[str, bytes], ...]
    blocks: tuple[tuple[str, str, bytes], ...]
    least: int
    most: int


def flat_request(body: Mapping[str, Any], tail: Tail | None = None, flat: list[Flat] | None = None) -> FlatRequest:
    """Return a request for comparison. Raise ``ValueError`` for an impossible tail. ``flat`` is the flattened body."""
    flat = flatten(body) if flat is None else flat
    blocks = [b for b in flat if b.part == "messages"]
    exact = tail(body) if tail else None
    possible = _possible_tail(blocks)
    if exact is not None and exact > possible:
        raise ValueError(f"a tail of {exact} blocks was declared, but at most {possible} can be one")
    return FlatRequest(
        fixed=tuple((b.part, b.text) for b in flat if b.part != "messages"),
        blocks=tuple((b.role, b.kind, b.text) for b in blocks),
        least=len(blocks) - (possible if exact is None else exact),
        most=len(blocks) - (exact or 0),
    )


def _possible_tail(blocks: list[Flat]) -> int:
    if blocks and blocks[-1].role == "system":
        return _count_at_end(blocks, lambda b: b.role == "system")
    texts = _count_at_end(blocks, lambda b: b.role == "user" and b.kind == "text")
    return min(texts, max(0, _count_at_end(blocks, lambda b: b.role == "user") - 1))


def _count_at_end(blocks: list[Flat], fits: Callable[[Flat], bool]) -> int:
    return next((n for n, block in enumerate(reversed(blocks)) if not fits(block)), len(blocks))


def find_breach(before: FlatRequest, now: FlatRequest, *, fixed: bool = True) -> str | None:
    """Return why ``now`` does not continue ``before``, or ``None``. ``fixed``: compare system and tools too."""
    if fixed and before.fixed != now.fixed:
        changed = {part for part, _ in set(before.fixed) ^ set(now.fixed)} or {"order of the tools"}
        return f"the {' and the '.join(sorted(changed))} changed within a run"
    same = _common(before, now)
    if same < before.least:
        return (
            f"the conversation is not a prefix of the next request's: block {same} was {_show(before, same)} and is "
            f"{_show(now, same)}; the first {before.least} of {len(before.blocks)} blocks had to stay"
        )
    # A declared tail may be sent again as the tail of the same conversation, but may not become part of it.
    if min(same, now.most) > before.most:
        return f"block {before.most} was declared as tail and is conversation now: {_show(now, before.most)}"
    return None


def _common(before: FlatRequest, now: FlatRequest) -> int:
    """Return the length of the common prefix in blocks."""
    pairs = enumerate(zip(before.blocks, now.blocks, strict=False))
    return next((n for n, (one, other) in pairs if one != other), min(len(before.blocks), len(now.blocks)))


def _show(request: FlatRequest, i: int) -> str:
    if i >= len(request.blocks):
        return "nothing"
    role, _, text = request.blocks[i]
    return f"{role}'s {text.decode('utf-8', 'replace')[:120]}"


@dataclass(slots=True)
class Conversations:
    """The latest request of each conversation, and the expectations of the test."""

    tail: Tail | None = None
    _open: list[FlatRequest] = field(default_factory=list)
    _new: int = 1
    _withdrawal: bool = False

    def expect_new(self) -> None:
        """Let a coming request start a conversation."""
        self._new += 1

    def expect_withdrawal(self) -> None:
        """Let a coming request lack messages of the one before it."""
        self._withdrawal = True

    def follow(self, body: Mapping[str, Any], flat: list[Flat] | None = None) -> str | None:
        """Add the next request. Return why it breaks I7, or ``None``. ``flat`` is the flattened body."""
        try:
            now = flat_request(body, self.tail, flat)
        except ValueError as e:
            return str(e)
        nearest = sorted(self._open, key=lambda s: _common(s, now), reverse=True)
        continued, why = next((before for before in nearest if find_breach(before, now) is None), None), None
        if continued is None and self._withdrawal and nearest and nearest[0].fixed == now.fixed:
            self._withdrawal, continued = False, nearest[0]
        elif continued is None and self._new:
            self._new -= 1
        elif continued is None:
            continued, why = nearest[0], find_breach(nearest[0], now)
        if continued is not None:
            self._open.remove(continued)
        self._open.append(now)
        return why
