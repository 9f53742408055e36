"""The prompt cache, accounted for as https://platform.claude.com/docs/en/build-with-claude/prompt-caching has it. Pure.

A breakpoint writes one entry, for the prefix that ends with its block. A later request looks, from each of its
breakpoints back over at most 20 positions (the breakpoint is the first), for an entry that an earlier request wrote;
the longest wins. What is read plus what is written plus the rest is the whole input.

Not modelled: the lifetime of entries, the shortest prefix that is cached, and the images that would make the messages'
part of the cache invalid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final, TypeAlias

from .flat import Flat, canonical, flatten

LOOKBACK: Final = 20
"""Positions that a breakpoint looks at, itself included."""

BYTES_PER_TOKEN: Final = 4
"""A rough measure, but the same one everywhere, so that ratios mean something."""

_Key: TypeAlias = tuple[str, bytes, bytes]


@dataclass(frozen=True, slots=True)
class Account:
    """What one request cost, in tokens.

    ``input``: neither read nor written. ``repeatable``: the longest prefix, block by block, that an earlier request had
    too, breakpoints or not: what a perfect placement could have read.
    """

    cache_read: int
    cache_write: int
    input: int
    repeatable: int


def reuse(accounts: list[Account]) -> float:
    """The part of the repeatable input that was read from the cache; 1 while nothing was repeatable."""
    repeatable = sum(a.repeatable for a in accounts)
    return sum(a.cache_read for a in accounts) / repeatable if repeatable else 1.0


@dataclass(slots=True)
class PromptCache:
    """What the service remembers between requests.

    Every block is one position of the lookback, as other clouds have it; Anthropic's own service counts a run of tool
    calls, and one of tool results, as one.
    """

    _entries: set[_Key] = field(default_factory=set)
    _seen: set[bytes] = field(default_factory=set)

    def account(self, body: Mapping[str, Any], blocks: list[Flat] | None = None) -> Account:
        """Account for one request, and remember it. ``blocks`` is the body flattened, if that was done already."""
        blocks = flatten(body) if blocks is None else blocks
        prefixes, sizes = _prefixes(blocks)
        keys = _keys(body, blocks, prefixes)
        marks = [i for i, b in enumerate(blocks) if b.breakpoint]
        read = max((self._found(i, keys) for i in marks), default=-1)
        repeated = -1
        while repeated + 1 < len(blocks) and prefixes[repeated + 1] in self._seen:
            repeated += 1
        self._seen.update(prefixes[repeated + 1 :])
        self._entries.update(keys[i] for i in marks)
        upto = {-1: 0, **dict(enumerate(sizes))}
        written = max([read, *marks])
        return Account(
            cache_read=upto[read],
            cache_write=upto[written] - upto[read],
            input=upto[len(blocks) - 1] - upto[written],
            repeatable=upto[repeated],
        )

    def _found(self, start: int, keys: list[_Key]) -> int:
        """Return the nearest position at or before ``start``, within the lookback, that has an entry; -1 for none."""
        places = range(start, max(start - LOOKBACK, -1), -1)
        return next((i for i in places if keys[i] in self._entries), -1)


def tokens(size: int) -> int:
    """Tokens for so many bytes, rounded up."""
    return -(-size // BYTES_PER_TOKEN)


def _prefixes(blocks: list[Flat]) -> tuple[list[bytes], list[int]]:
    """For each block a digest of everything up to its end, and the tokens up to there."""
    digest, size = b"", 0
    digests: list[bytes] = []
    sizes: list[int] = []
    for block in blocks:
        seed = f"{block.part}/{block.role}/".encode()
        digest = blake2b(digest + seed + block.text, digest_size=16).digest()
        size += tokens(len(block.text))
        digests.append(digest)
        sizes.append(size)
    return digests, sizes


def _keys(body: Mapping[str, Any], blocks: list[Flat], prefixes: list[bytes]) -> list[_Key]:
    """A cache belongs to a model; a change of thinking or of the tool choice spoils the messages' part of it."""
    model = str(body.get("model", ""))
    spoilers = canonical([body.get("thinking"), body.get("tool_choice")])
    return [
        (model, spoilers if block.part == "messages" else b"", prefix)
        for block, prefix in zip(blocks, prefixes, strict=True)
    ]
