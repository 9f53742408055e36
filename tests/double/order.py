"""The rules for the order of messages: roles, calls and results, thinking. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .blocks import is_thinking
from .models import Features
from .shapes import Body, refuse


@dataclass(frozen=True, slots=True)
class Issued:
    """The content that the service has sent and that later requests must repeat unchanged.

    ``thinking`` maps a signature to the text that it signs. ``replies`` maps the id of a tool call to the thinking of
    its reply. The server calls ``remember`` for each reply.
    """

    thinking: dict[str, str] = field(default_factory=dict)
    replies: dict[str, tuple[Body, ...]] = field(default_factory=dict)

    def remember(self, blocks: tuple[Body, ...]) -> None:
        """Store the thinking and call ids of one reply."""
        thoughts = tuple(b for b in blocks if is_thinking(b))
        for block in blocks:
            match block:
                case {"type": "thinking", "thinking": str(text), "signature": str(signature)}:
                    self.thinking[signature] = text
                case {"type": "redacted_thinking", "data": str(data)}:
                    self.thinking[data] = ""
                case {"type": "tool_use", "id": str(id)}:
                    self.replies[id] = thoughts
                case _:
                    pass


def _blocks_of(message: Body) -> Sequence[Body]:
    """Return the blocks of a message; none for one whose content is a string."""
    return message["content"] if isinstance(message["content"], list) else ()


def check_roles(messages: list[Body], features: Features, *, alternate: bool) -> None:
    """Refuse a request whose roles are in a wrong order. ``alternate``: two user messages in a row are refused too."""
    if not messages:
        refuse("messages: at least one message is required")
    order = [m["role"] for m in messages]
    if order[0] == "system":
        refuse("messages.0: use the top-level 'system' parameter for the initial system prompt")
    # The service accepts a first message of the assistant; SPEC I2 does not.
    if order[0] != "user":
        refuse('messages: first message must use the "user" role')
    if "system" in order:
        if not features.system_role:
            refuse("role 'system' is not supported on this model")
        _check_system_places(order)
    for i in range(1, len(order)):
        if order[i] != order[i - 1]:
            continue
        # The service joins two replies in a row; SPEC I2 forbids them.
        if order[i] == "assistant":
            refuse(f"messages.{i}: two replies follow each other")
        if alternate:
            refuse(f'messages: roles must alternate, but found multiple "{order[i]}" roles in a row (messages.{i})')
    # Only old models accept a last message of the assistant.
    if order[-1] == "assistant":
        refuse("This model does not support assistant message prefill. The conversation must end with a user message.")


def _check_system_places(roles: list[str]) -> None:
    """Refuse a system message that is not between a user message and an assistant message or the end."""
    for i, role in enumerate(roles):
        if role != "system":
            continue
        before = next(r for r in reversed(roles[:i]) if r != "system")
        after = next((r for r in roles[i + 1 :] if r != "system"), None)
        if before != "user":
            refuse(f"messages.{i}: role 'system' must follow a 'user' message")
        if after == "user":
            refuse(f"messages.{i}: role 'system' must precede an 'assistant' message or end the array")


def check_pairs(messages: list[Body]) -> None:
    """Refuse a request unless every call has exactly one result, at the start of the next message.

    A result without its call is refused too. The service joins neighbouring user messages first; here the results must
    be in one message, as SPEC I2 requires.
    """
    seen: set[str] = set()
    waiting: list[str] = []
    for i, message in enumerate(messages):
        blocks = _blocks_of(message)
        answered = _answered(blocks, waiting, i)
        if missing := [id for id in waiting if id not in answered]:
            ids = ", ".join(missing)
            refuse(f"messages.{i - 1}: `tool_use` ids were found without `tool_result` blocks immediately after: {ids}")
        waiting = []
        for j, block in enumerate(blocks):
            if block["type"] == "tool_use":
                if block["id"] in seen:
                    refuse(f"messages.{i}.content.{j}: `tool_use` ids must be unique")
                seen.add(block["id"])
                waiting.append(block["id"])


def _answered(blocks: Sequence[Body], waiting: list[str], i: int) -> set[str]:
    """Return the ids that the results at the start of these blocks answer."""
    answered: set[str] = set()
    first = True
    for j, block in enumerate(blocks):
        if block["type"] != "tool_result":
            first = False
            continue
        id = block["tool_use_id"]
        if id not in waiting:
            refuse(f"messages.{i}.content.{j}: unexpected `tool_use_id` found in `tool_result` blocks: {id}")
        if id in answered:
            refuse(f"messages.{i}.content.{j}: each tool_use must have a single result; there are more of {id}")
        # A result after other content does not count as one that follows immediately: the fault is the missing one.
        if first:
            answered.add(id)
    return answered


def check_thoughts(messages: list[Body], issued: Issued, thinking: bool) -> None:
    """Refuse changed thinking. While thinking is on, also refuse missing thinking in a tool loop."""
    for i, message in enumerate(messages):
        for j, block in enumerate(_blocks_of(message)):
            if not is_thinking(block):
                continue
            field = "signature" if block["type"] == "thinking" else "data"
            if issued.thinking.get(block[field]) != block.get("thinking", ""):
                refuse(f"messages.{i}.content.{j}: Invalid `{field}` in `{block['type']}` block")
    if thinking:
        _check_loop(messages, issued)


def _check_loop(messages: list[Body], issued: Issued) -> None:
    """Refuse missing or changed thinking in the replies of the latest tool loop."""
    for i in range(len(messages) - 1, -1, -1):
        message, blocks = messages[i], _blocks_of(messages[i])
        if message["role"] == "assistant":
            issued_thinking = next((issued.replies[b["id"]] for b in blocks if b.get("id") in issued.replies), None)
            if issued_thinking is not None and issued_thinking != tuple(b for b in blocks if is_thinking(b)):
                refuse(
                    f"messages.{i}: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be "
                    "modified"
                )
        # A user message of its own ends the loop, unless it only continues the message that holds the results.
        own = message["role"] == "user" and not any(b["type"] == "tool_result" for b in blocks)
        if own and (i == 0 or messages[i - 1]["role"] != "user"):
            return
