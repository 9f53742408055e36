"""The rules of the Messages API for the messages of a request, written without a look at our own code.

It reads JSON alone, so that it knows nothing of how the package keeps a conversation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any, TypeAlias

Json: TypeAlias = Mapping[str, Any]


def problems(messages: Sequence[Json]) -> list[str]:
    """Why the service would refuse these messages; empty when it would take them.

    Consecutive messages of the user count as one, which is what the service makes of them.
    """
    if not messages:
        return ["there are no messages"]
    turns = [(role, [b for m in group for b in m["content"]]) for role, group in _by_role(messages)]
    found = [f"message {n} is empty" for n, message in enumerate(messages) if not message["content"]]
    if turns[0][0] != "user":
        found.append("the first message is not the user's")
    if turns[-1][0] != "user":
        found.append("the last message is not the user's")
    if any(a["role"] == b["role"] == "assistant" for a, b in pairwise(messages)):
        found.append("two replies follow each other")
    found += _ids(turns)
    asked: list[str] = []
    for n, (role, blocks) in enumerate(turns):
        found += [f"turn {n}: {what}" for what in _turn(role, blocks, asked)]
        asked = [b["id"] for b in blocks if b["type"] == "tool_use"]
    if asked:
        found.append(f"no result for {asked}")
    return found


def _by_role(messages: Sequence[Json]) -> list[tuple[str, list[Json]]]:
    return [(role, list(group)) for role, group in groupby(messages, key=lambda m: str(m["role"]))]


def _ids(turns: Sequence[tuple[str, list[Json]]]) -> list[str]:
    ids = [str(b["id"]) for _, blocks in turns for b in blocks if b["type"] == "tool_use"]
    return [f"the id {id!r} is used twice" for id in sorted({i for i in ids if ids.count(i) > 1})]


def _turn(role: str, blocks: Sequence[Json], asked: Sequence[str]) -> list[str]:
    """What is wrong with one turn that follows calls with the ids ``asked``."""
    found = [
        "a blank text block" for b in blocks if b["type"] == "text" and not (b["text"] and not b["text"].isspace())
    ]
    kinds = [b["type"] for b in blocks]
    if role == "assistant":
        found += ["a result in a reply"] * ("tool_result" in kinds)
        found += ["a call without a name or an id" for b in blocks if b["type"] == "tool_use" and not _is_named(b)]
    else:
        found += ["a call in a user message"] * ("tool_use" in kinds)
        if "tool_result" in kinds[kinds.count("tool_result") :]:
            found.append("something stands before a result")
    answered = [b["tool_use_id"] for b in blocks if b["type"] == "tool_result"]
    if sorted(answered) != sorted(asked):
        found.append(f"calls {list(asked)} and results {answered}")
    return found


def _is_named(call: Json) -> bool:
    """Whether the API takes the id and the name; it says of others that they "should match pattern"."""
    return all(re.fullmatch("[a-zA-Z0-9_-]+", call[key]) for key in ("id", "name"))
