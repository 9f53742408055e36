"""The prompt cache (https://platform.claude.com/docs/en/build-with-claude/prompt-caching). Pure.

A breakpoint writes one entry, for the prefix that ends with its block. A later request searches for an entry from each
of its breakpoints back over at most 20 positions, the breakpoint included; the longest one is read.

The lifetime of entries, the minimum length of a cached prefix, and the effect of images are not modelled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final, TypeAlias

from .flat import Flat, canonical, flatten

LOOKBACK: Final = 20
"""Positions that are searched from a breakpoint, itself included."""

BYTES_PER_TOKEN: Final = 4
"""A rough estimate. Only ratios of tokens are used."""

_Key: TypeAlias = tuple[str, bytes, bytes]


@dataclass(frozen=True, slots=True)
class Account:
    """The tokens of one request.

    ``input`` was neither read from the cache nor written to it. ``repeatable`` is the longest prefix in blocks that an
    earlier request had too, which perfect breakpoints could have read.
    """

    cache_read: int
    cache_write: int
    input: int
    repeatable: int


def reuse(accounts: list[Account]) -> float:
    """Return the part of the repeatable input that was read from the cache; 1 if nothing was repeatable."""
    repeatable = sum(a.repeatable for a in accounts)
    return sum(a.cache_read for a in accounts) / repeatable if repeatable else 1.0


@dataclass(slots=True)
class PromptCache:
    """The cache of the service.

    Every block is one position, as at other clouds. Anthropic's own service counts a row of tool calls, or of tool
    results, as one.
    """

    _entries: set[_Key] = field(default_factory=set)
    _seen: set[bytes] = field(default_factory=set)

    def account(self, body: Mapping[str, Any], blocks: list[Flat] | None = None) -> Account:
        """Return the account of a request, and store its entries. ``blocks`` is the flattened body."""
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
    """Return the tokens of this many bytes, rounded up."""
    return -(-size // BYTES_PER_TOKEN)


def _prefixes(blocks: list[Flat]) -> tuple[list[bytes], list[int]]:
    """Return for each block a digest of the input up to its end, and the tokens up to there."""
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
    """Return the key of each prefix. It depends on the model, and for messages on thinking and the tool choice."""
    model = str(body.get("model", ""))
    spoilers = canonical([body.get("thinking"), body.get("tool_choice")])
    return [
        (model, spoilers if block.part == "messages" else b"", prefix)
        for block, prefix in zip(blocks, prefixes, strict=True)
    ]
