"""The conversation of an agent: a state machine that ensures that the Messages API accepts every request. Pure.

The API requires that the first and the last message of a request are user messages, that the message after each reply
with ``tool_use`` blocks has one ``tool_result`` for each of them, and that the ids of tool calls are unique
(https://docs.anthropic.com/en/api/messages). So a request can be made only in the state ASKED. A reply with tool calls
leads to the state OPEN, in which only the results of these calls can be appended. The table shows the state after each
message; an empty cell means that the message is not allowed:

========  =============  ==================  ==================  ============
state     user text      reply, no calls     reply with calls    tool results
========  =============  ==================  ==================  ============
EMPTY     ASKED
ASKED     ASKED          REPLIED             OPEN
OPEN                                                             ASKED
REPLIED   ASKED
========  =============  ==================  ==================  ============

Normally, messages are only appended, so that a prompt cache stays valid. There are two exceptions: ``withdraw`` removes
messages after a refused request, and ``reset_to`` replaces all messages after a compaction or a removal of refused
content. Several user messages in a row are allowed, because the provider merges them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Literal, TypeAlias, overload

from chain.errors import ConversationError
from chain.messages import Image, Message, Opaque, Text, ToolCall, ToolResult, tool_results
from chain.text.wording import INTERRUPTED, SKIPPED, UNREADABLE

MAX_CALL_ID = 128
"""The limit, in characters, of a tool call's id. The API itself creates ids of 30 characters."""

_ID = re.compile(r"[a-zA-Z0-9_-]+")
"""The pattern of the ids that the API accepts (``tool_use.id: String should match pattern``)."""

State: TypeAlias = Literal["EMPTY", "ASKED", "OPEN", "REPLIED"]
Step: TypeAlias = Literal["user text", "reply", "reply with calls", "tool results"]

_NEXT: dict[tuple[State, Step], State] = {
    ("EMPTY", "user text"): "ASKED",
    ("ASKED", "user text"): "ASKED",
    ("ASKED", "reply"): "REPLIED",
    ("ASKED", "reply with calls"): "OPEN",
    ("OPEN", "tool results"): "ASKED",
    ("REPLIED", "user text"): "ASKED",
}
"""The state after each allowed message, by the state before it and the type of the message: the table above."""


class CallIds:
    """The ids of the tool calls of all agents of a session. No two calls have the same id.

    Some servers create ids that the API does not accept (``functions.look:0``), or reuse ids in each reply.
    """

    def __init__(self) -> None:
        self.used: set[str] = set()
        self._number = 0

    def claim(self, message: Message) -> Message:
        """Return the reply ``message`` with a generated id for each call whose id is invalid or already used.

        The ids are added to ``used`` only when the reply is recorded. Raise ``ConversationError`` if two calls in the
        reply have the same id, because their results would be ambiguous.
        """
        for id, count in Counter(call.id for call in message.calls if call.id).items():
            if count > 1:
                raise ConversationError(f"the tool call id {id[:MAX_CALL_ID]!r} was used before")
        claimed = set[str]()
        ids = [self._claim_id(call.id, claimed) for call in message.calls]
        if ids == [call.id for call in message.calls]:
            return message
        remaining = iter(ids)
        blocks = (replace(b, id=next(remaining)) if isinstance(b, ToolCall) else b for b in message.blocks)
        return replace(message, blocks=tuple(blocks))

    def _claim_id(self, id: str, claimed: set[str]) -> str:
        """Return ``id``, or a generated id if ``id`` is used or invalid. Add the returned id to ``claimed``."""
        while id in self.used or id in claimed or len(id) > MAX_CALL_ID or not _ID.fullmatch(id):
            self._number += 1
            id = f"call_{self._number}"
        claimed.add(id)
        return id


class Messages(Sequence[Message]):
    """A read-only view of the first ``count`` messages of a list to which messages are only appended.

    It avoids a copy for each request: a copy of 100,000 messages takes 0.1 ms.
    """

    def __init__(self, history: list[Message], count: int) -> None:
        self._history = history
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Message: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...

    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        if isinstance(index, slice):
            return [self._history[n] for n in range(*index.indices(self._count))]
        return self._history[range(self._count)[index]]

    def __iter__(self) -> Iterator[Message]:
        return islice(self._history, self._count)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __reversed__(self) -> Iterator[Message]:
        return (self._history[n] for n in reversed(range(self._count)))


class Conversation:
    """The messages of an agent, and their state. Models cache data in ``memory`` (see ``chain.model.Memory``)."""

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self.memory: dict[object, Any] = {}
        self._messages: list[Message] = []
        self._state: State = "EMPTY"
        self._ids: set[str] = set()
        self._open: tuple[ToolCall, ...] = ()
        self._fixed_count = 0
        """The number of messages at the start that cannot be withdrawn: 1 for the summary of a compaction, else 0."""
        for message in messages:
            self.append(message)

    @property
    def state(self) -> State:
        """The current state: ``EMPTY``, ``ASKED``, ``OPEN`` or ``REPLIED``."""
        return self._state

    @property
    def messages(self) -> Sequence[Message]:
        """All messages. Callers must not change the list."""
        return self._messages

    @property
    def open_calls(self) -> tuple[ToolCall, ...]:
        """The tool calls whose results are still missing, in order. It is empty in all states except OPEN."""
        return self._open

    def request(self) -> Sequence[Message]:
        """Return the messages for a model call. Raise ``ConversationError`` if the state is not ASKED."""
        if self._state != "ASKED":
            raise ConversationError(f"no request can be made of a conversation in state {self._state}")
        return Messages(self._messages, len(self._messages))

    def check(self, message: Message) -> State:
        """Return the state that the conversation would have after ``message``. Change nothing.

        Raise ``ConversationError`` if the message is not allowed next.
        """
        _check_blocks(message)
        step = _step_of(message)
        after = _NEXT.get((self._state, step))
        if after is None:
            raise ConversationError(f"{step} cannot follow in state {self._state}")
        seen = set[str]()
        for call in message.calls:
            if call.id in self._ids or call.id in seen:
                raise ConversationError(f"the tool call id {call.id!r} was used before")
            seen.add(call.id)
        if step == "tool results" and [r.id for r in message.results] != [c.id for c in self._open]:
            raise ConversationError("the results are not those of the open tool calls, in their order")
        return after

    def append(self, message: Message) -> None:
        """Append a message. If it is not allowed next, change nothing and raise ``ConversationError``."""
        self._state = self.check(message)
        self._messages.append(message)
        self._open = message.calls
        self._ids.update(call.id for call in message.calls)

    def adapt(self, message: Message) -> tuple[Message, ...]:
        """Return the messages to append in place of ``message`` if records before it may be missing in the journal.

        If ``message`` is allowed next, return only ``message``. Otherwise, stubs take the place of missing tool results
        and of a missing user message. Tool results whose calls are missing are dropped.
        """
        step, ids = _step_of(message), [call.id for call in self._open]
        if (self._state, step) in _NEXT and [result.id for result in message.results] == ids:
            return (message,)
        if self._open:
            known = {result.id: result for result in message.results}
            results = tool_results([known.get(id) or ToolResult(id, UNREADABLE, is_error=True) for id in ids])
            return (results,) if step == "tool results" else (results, message)
        return () if step == "tool results" else (Message("user", (Text(UNREADABLE),)), message)

    def stub_results(self, started: Iterable[str] = ()) -> tuple[ToolResult, ...]:
        """Return an error result for each open call, which says that the call was interrupted or skipped.

        ``started`` has the ids of the interrupted calls. All other open calls were skipped.
        """
        ran = set(started)
        return tuple(ToolResult(c.id, INTERRUPTED if c.id in ran else SKIPPED, is_error=True) for c in self._open)

    def reset_to(self, messages: Iterable[Message], *, is_summarized: bool) -> None:
        """Replace all messages. ``is_summarized``: the first new message is the summary of a compaction.

        If a message is invalid, change nothing and raise ``ConversationError``.
        """
        other = Conversation()
        for message in messages:
            # Copies, because providers recognise the messages that they have encoded by identity.
            for each in other.adapt(replace(message)):
                other.append(each)
        self._messages, self._state = other._messages, other._state
        self._ids, self._open = other._ids, other._open
        self._fixed_count = 1 if is_summarized else self._fixed_count

    def snapshot(self) -> tuple[Messages, int]:
        """Return a snapshot of the messages, for ``restore``."""
        return Messages(self._messages, len(self._messages)), self._fixed_count

    def restore(self, snapshot: tuple[Messages, int]) -> None:
        """Replace all messages by the messages of an earlier ``snapshot``."""
        messages, fixed = snapshot
        self.reset_to(messages, is_summarized=False)
        self._fixed_count = fixed

    @property
    def withdrawable_count(self) -> int:
        """The number of messages after the last reply without tool calls, which ``withdraw`` would remove."""
        count = 0
        for message in reversed(self._messages[self._fixed_count :]):
            if message.role == "assistant" and not message.calls:
                break
            count += 1
        return count

    def withdraw(self, first: Message | None = None) -> tuple[Message, ...]:
        """Remove all messages after the last reply without tool calls, and return the removed messages.

        The summary of a compaction at the start is not removed; if ``first`` is given, ``first`` replaces the summary.
        The new state is EMPTY if no message remains, ASKED if only the summary remains, and REPLIED otherwise.

        Refused messages have to be removed, because the API refuses the same history every time
        (https://docs.anthropic.com/en/docs/test-and-evaluate/strengthen-guardrails/handle-streaming-refusals).
        """
        count = len(self._messages) - self.withdrawable_count
        removed = tuple(self._messages[count:])
        self._messages = self._messages[:count]  # a new list, because earlier requests still read the previous list
        if first is not None and self._fixed_count:
            # Copies, as in ``reset_to``.
            self._messages = [first, *(replace(m) for m in self._messages[1:])]
        self._ids.difference_update(call.id for m in removed for call in m.calls)
        self._open = ()
        self._state = "EMPTY" if not count else "REPLIED" if self._messages[-1].role == "assistant" else "ASKED"
        return removed


def _step_of(message: Message) -> Step:
    if message.role == "assistant":
        return "reply with calls" if message.calls else "reply"
    return "tool results" if message.results else "user text"


def _check_blocks(message: Message) -> None:
    """Raise ``ConversationError`` if the message has no blocks, or a block that the API does not accept in its role."""
    if not message.blocks:
        raise ConversationError("a message needs content")
    for block in message.blocks:
        match block:
            case Text(text) if not text.strip():
                raise ConversationError("a text block may not be blank")
            case ToolCall(id, name):
                if message.role == "user":
                    raise ConversationError("a user message may not contain a tool call")
                if not id.strip() or not name.strip():
                    raise ConversationError("a tool call needs an id and a name")
            case Image() if message.role == "assistant":
                raise ConversationError("a reply may not contain an image")
            case ToolResult() if message.role == "assistant":
                raise ConversationError("a reply may not contain a tool result")
            case Opaque({"type": "tool_use" | "tool_result" as kind}):
                raise ConversationError(f"a {kind} block in an unknown form")
            case Opaque(raw) if not isinstance(raw.get("type"), str):
                raise ConversationError("a block needs a type")
            case Opaque({"type": "text", "text": str(text)}) if not text.strip():
                raise ConversationError("a text block may not be blank")
            case Text() | Image() | Opaque() if message.results:
                raise ConversationError("text next to tool results needs a message of its own")
            case _:
                pass
