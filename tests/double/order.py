"""The rules for the order of messages: roles, calls and results, thinking. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from .content import is_thinking
from .fault import Body, refuse
from .models import Features


@dataclass(frozen=True, slots=True)
class Issued:
    """What the service has said so far, as far as later requests are held to it.

    ``thinking`` maps a signature to the text that it signs; ``replies`` maps the id of a tool call to the thinking
    of the reply that it came in. Whoever answers requests keeps both up to date with ``remember``.
    """

    thinking: dict[str, str] = field(default_factory=dict)
    replies: dict[str, tuple[Body, ...]] = field(default_factory=dict)

    def remember(self, blocks: tuple[Body, ...]) -> None:
        """Note the blocks of one reply."""
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


def roles(messages: list[Body], features: Features, *, alternate: bool, prefill: bool) -> None:
    """Who may speak when. ``alternate`` and ``prefill`` are those of the policy."""
    if not messages:
        refuse("messages: at least one message is required")
    order = [m["role"] for m in messages]
    if order[0] == "system":
        refuse("messages.0: use the top-level 'system' parameter for the initial system prompt")
    # The service itself lets a conversation begin with the assistant; SPEC I2 does not.
    if order[0] != "user":
        refuse('messages: first message must use the "user" role')
    if "system" in order:
        if not features.system_role:
            refuse("role 'system' is not supported on this model")
        _system_places(order)
    if alternate:
        for i in range(1, len(order)):
            if order[i] == order[i - 1]:
                refuse(
                    f'messages: roles must alternate between "user" and "assistant", but found multiple "{order[i]}" '
                    f"roles in a row (messages.{i})"
                )
    # The service joins two replies in a row; SPEC I2 has none.
    for i in range(1, len(order)):
        if order[i] == order[i - 1] == "assistant":
            refuse(f"messages.{i}: two replies follow each other")
    if order[-1] == "assistant" and not (prefill and features.prefill):
        refuse("This model does not support assistant message prefill. The conversation must end with a user message.")


def _system_places(roles: list[str]) -> None:
    """A system message, or a row of them, stands right after a user message and before an assistant one or the end."""
    for i, role in enumerate(roles):
        if role != "system":
            continue
        before = next(r for r in reversed(roles[:i]) if r != "system")
        after = next((r for r in roles[i + 1 :] if r != "system"), None)
        if before != "user":
            refuse(
                f"messages.{i}: role 'system' must follow a 'user' message or an 'assistant' message ending in a "
                "server tool result"
            )
        if after == "user":
            refuse(f"messages.{i}: role 'system' must precede an 'assistant' message or end the array")


def pairs(messages: list[Body]) -> None:
    """Every call has exactly one result, at the start of the very next message; no result without its call.

    The service joins neighbouring user messages first; here the results must be in one message, as SPEC I2 says.
    """
    seen: set[str] = set()
    waiting: list[str] = []
    for i, message in enumerate(messages):
        blocks = message["content"] if isinstance(message["content"], list) else []
        answered = _results(blocks, waiting, i)
        if missing := [id for id in waiting if id not in answered]:
            refuse(
                f"messages.{i - 1}: `tool_use` ids were found without `tool_result` blocks immediately after: "
                f"{', '.join(missing)}. Each `tool_use` block must have a corresponding `tool_result` block in the "
                "next message."
            )
        waiting = []
        for j, block in enumerate(blocks):
            if block["type"] == "tool_use":
                if block["id"] in seen:
                    refuse(f"messages.{i}.content.{j}: `tool_use` ids must be unique")
                seen.add(block["id"])
                waiting.append(block["id"])
    if waiting:  # only where prefill is allowed
        refuse(
            f"messages.{len(messages) - 1}: `tool_use` ids were found without `tool_result` blocks immediately after: "
            f"{', '.join(waiting)}. Each `tool_use` block must have a corresponding `tool_result` block in the next "
            "message."
        )


def _results(blocks: list[Body], waiting: list[str], i: int) -> set[str]:
    """The ids that the results at the start of these blocks answer."""
    answered: set[str] = set()
    first = True
    for j, block in enumerate(blocks):
        if block["type"] != "tool_result":
            first = False
            continue
        id = block["tool_use_id"]
        if id not in waiting:
            refuse(
                f"messages.{i}.content.{j}: unexpected `tool_use_id` found in `tool_result` blocks: {id}. Each "
                "`tool_result` block must have a corresponding `tool_use` block in the previous message."
            )
        if id in answered:
            refuse(
                f"messages.{i}.content.{j}: each tool_use must have a single result. Found multiple `tool_result` "
                f"blocks with id: {id}"
            )
        # A result after other content does not count as one that follows immediately: the fault is the missing one.
        if first:
            answered.add(id)
    return answered


def thoughts(messages: list[Body], issued: Issued, thinking: bool, *, signatures: bool) -> None:
    """Thinking comes back as it was said; in a tool loop none of it may be missing while thinking is on."""
    for i, message in enumerate(messages):
        if message["role"] != "assistant" or isinstance(message["content"], str):
            continue
        for j, block in enumerate(message["content"]):
            if not signatures or not is_thinking(block):
                continue
            signed = issued.thinking.get(block["signature" if block["type"] == "thinking" else "data"])
            if signed is None or signed != block.get("thinking", ""):
                field = "signature" if block["type"] == "thinking" else "data"
                refuse(f"messages.{i}.content.{j}: Invalid `{field}` in `{block['type']}` block")
    if thinking:
        _loop(messages, issued)


def _loop(messages: list[Body], issued: Issued) -> None:
    """From the end back through the replies whose calls the messages after them answer."""
    for i in range(len(messages) - 1, -1, -1):
        message = messages[i]
        blocks = message["content"] if isinstance(message["content"], list) else []
        if message["role"] == "assistant":
            said = next((issued.replies[b["id"]] for b in blocks if b.get("id") in issued.replies), None)
            if said is not None and said != tuple(b for b in blocks if is_thinking(b)):
                refuse(
                    f"messages.{i}: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be "
                    "modified. These blocks must remain as they were in the original response."
                )
        # A user message of its own ends the loop, unless it only continues the message that holds the results.
        own = message["role"] == "user" and not any(b["type"] == "tool_result" for b in blocks)
        if own and (i == 0 or messages[i - 1]["role"] != "user"):
            return
