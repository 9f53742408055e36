"""The size of a conversation in tokens, and the content that remains after a compaction. Pure.

The user's texts are stored next to the conversation, so that no summary has to repeat them (SPEC, I10).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from string import Template
from typing import TypeAlias

from chain.journal.records import Compacted
from chain.messages import Image, Message, Opaque, Text, Thinking, ToolCall, ToolResult, Usage, user_text
from chain.model import Window
from chain.text.wording import COMPACTED, USER_WORDS, pluralize

FIRST_RATIO = 3.5
"""Characters per token, until a service has reported the tokens of a request."""

RATIOS = 1.0, 10.0
"""The bounds of a plausible ratio: some servers do not count cached tokens."""

MAX_ESTIMATE_ERROR = 2.0
"""The highest assumed ratio of a conversation's real size to our estimate, if a service finds it too long."""

WORDS_SHARE = 0.25
"""The share of the window for the user's words of earlier runs."""

LONGEST_REPLY_SHARE = 0.5
"""The largest share that is reserved for a reply: the longest reply of some models is as long as their window."""

IMAGE_CHARS = 5_600
"""The characters that an image counts for: a service counts at most 1,600 tokens."""

MIN_STUBBED_CHARS = 400
"""The characters of the shortest result that is replaced with a stub."""

EARLIER_GONE = "[earlier messages removed to make room]"
"""The text that replaces removed messages in a request for a summary."""

PROMPT = """\
The conversation is about to be shortened to make room. Write what is needed to go on with the work from your text
alone, in this order: the goal; what was decided, and why; facts that were found, with their files and lines; what was
tried and did not work; what is open, and the next step. What the user said is kept word for word beside it, and the
plan is sent again, so repeat neither. Call no tools now.

${focus}"""
"""The message that asks for a summary."""

FOCUS = "What matters most to the user: "


@dataclass(frozen=True, slots=True)
class CompactionRules:
    """The settings of compaction.

    ``at`` is the share of the window that may be full; with ``None`` only the user starts a compaction. ``keep`` is the
    share of the window for the latest messages afterwards. ``prompt`` may contain ``${focus}``, the user's emphasis.
    """

    at: float | None = 0.9
    keep: float = 0.2
    prompt: str = PROMPT

    @property
    def share(self) -> float:
        """The share of the window that may be full."""
        return 1.0 if self.at is None else self.at

    def prompt_for(self, focus: str) -> str:
        """Return the message that asks for a summary."""
        return Template(self.prompt).safe_substitute(focus=FOCUS + focus if focus else "").strip()

    def room_for_reply(self, window: Window) -> int:
        """Return the number of tokens in the window that are reserved for a reply."""
        return min(window.longest_reply, int(self.share * window.tokens * LONGEST_REPLY_SHARE))

    def limit(self, window: Window) -> int:
        """Return the number of tokens that a conversation may use."""
        return int(self.share * window.tokens) - self.room_for_reply(window)


class WindowUsage:
    """The size of one conversation in tokens: the count of the last reply, and an estimate of later messages."""

    def __init__(self) -> None:
        self.image_bytes = 0
        """The size of all images in the conversation, in bytes."""
        self.overhead = 0
        """The characters of the system prompt and the tools; 0 until the agent's model is known."""
        self._counted: tuple[int, int, int] | None = None
        """The last count of a service: tokens, characters of the conversation, and ``overhead`` at that time."""
        self._chars = 0
        self._known_tokens = 0
        self._chars_since = 0
        self._counts_reply = False
        """Whether the known tokens include the reply that is appended next."""

    @property
    def ratio(self) -> float:
        """Characters per token, by the last count of the service."""
        if self._counted is None:
            return FIRST_RATIO
        tokens, chars, overhead = self._counted
        return min(max((chars + (overhead or self.overhead)) / tokens, RATIOS[0]), RATIOS[1])

    @property
    def tokens(self) -> int:
        """The estimated size of the next request in tokens."""
        if not self._known_tokens:
            return self.estimate(self._chars + self.overhead)
        return self._known_tokens + self.estimate(self._chars_since)

    def estimate(self, chars: int) -> int:
        """Return the estimated number of tokens in this number of characters."""
        return math.ceil(chars / self.ratio)

    def add(self, message: Message) -> None:
        """Count an appended message."""
        chars = length_of(message)
        self._chars += chars
        self.image_bytes += sum(image.size for image in message.images)
        if not (message.role == "assistant" and self._counts_reply):
            self._chars_since += chars
        self._counts_reply = False

    def update(self, usage: Usage, asked_tokens: int, window: int, *, is_too_long: bool) -> None:
        """Use the count of a service for a request with the whole conversation.

        For a request that is too long, ``asked_tokens`` is its size and ``window`` that of the model; 0 if unknown.
        """
        if not is_too_long:
            asked = usage.total_tokens - usage.output_tokens
            if asked > 0:
                self._counted = asked, self._chars, self.overhead
                self._known_tokens, self._chars_since, self._counts_reply = usage.total_tokens, 0, True
            return
        most = int(self.tokens * MAX_ESTIMATE_ERROR)
        least = asked_tokens or (min(max(window, self.tokens), most) if window else 0)
        if least:
            self._counted = least, self._chars, self.overhead
            self._known_tokens = self._chars_since = 0

    def reset_to(self, messages: Iterable[Message]) -> None:
        """Reset the count to these messages."""
        messages = list(messages)
        self._chars = sum(map(length_of, messages))
        self.image_bytes = sum(image.size for message in messages for image in message.images)
        self._known_tokens = self._chars_since = 0
        self._counts_reply = False


@dataclass(frozen=True, slots=True)
class UserText:
    """A text of the user (a line, a query or an answer), or the task of an agent below the main agent.

    ``iteration`` is 0 for a query or task. ``line_id`` is empty for a task or answer.
    """

    text: str
    run: int
    iteration: int = 0
    line_id: str = ""

    @property
    def row(self) -> str:
        """The text with its run and iteration."""
        when = f"iteration {self.iteration}" if self.iteration else "query" if self.line_id else "task"
        return f"[run {self.run}, {when}] {self.text}"


WordsSnapshot: TypeAlias = tuple[list[UserText], int, int, list[UserText]]


class UserTexts:
    """The user's texts in the conversation of one agent, in order of delivery."""

    def __init__(self) -> None:
        self.run = 0
        """The number of the active or last run."""
        self._texts: list[UserText] = []
        self._answered_count = 0
        """The number of texts before the last reply without tool calls."""
        self._kept: list[UserText] = []
        """The texts that the last compaction kept."""

    def add(self, text: str, *, iteration: int = 0, line_id: str = "") -> None:
        """Add a text that was delivered in this run."""
        self._texts.append(UserText(text, self.run, iteration, line_id))

    def mark_answered(self) -> None:
        """Record a reply without tool calls: the texts before it can no longer be removed."""
        self._answered_count = len(self._texts)

    def mark_compacted(self, left_out: int) -> None:
        """Record a compaction that removed this number of the earliest texts."""
        self._kept = self._texts[left_out:]

    def remove(self, line_ids: Collection[str]) -> str:
        """Remove these lines, and tasks and answers, if they were added since the last reply without tool calls.

        Return the remaining rows of the texts that the last compaction kept.
        """
        removed = {id(t) for t in self._texts[self._answered_count :] if not t.line_id or t.line_id in line_ids}
        self._texts = [text for text in self._texts if id(text) not in removed]
        self._kept = [text for text in self._kept if id(text) not in removed]
        return "\n".join(text.row for text in self._kept)

    def snapshot(self) -> WordsSnapshot:
        """Return the current texts, for ``restore``. Lists of texts are only appended to or replaced, never changed."""
        return self._texts, len(self._texts), self._answered_count, self._kept

    def restore(self, snapshot: WordsSnapshot) -> None:
        """Restore a snapshot. The number of the run stays, since it counts the runs of the session."""
        words, count, self._answered_count, self._kept = snapshot
        self._texts = words[:count]

    def select_rows(self, chars: int) -> tuple[str, int]:
        """Return the rows of this run and the latest earlier rows that fit, and the number of texts that do not fit."""
        rows: list[str] = []
        for text in reversed(self._texts):
            if text.run != self.run:
                chars -= len(text.row) + 1
                if chars < 0:
                    break
            rows.append(text.row)
        return "\n".join(reversed(rows)), len(self._texts) - len(rows)


def length_of(message: Message) -> int:
    """Return the number of characters of a message that count towards the window."""
    chars = 0
    for block in message.blocks:
        match block:
            case Text(text) | Thinking(text):
                chars += len(text)
            case ToolResult(text=text, images=images):
                chars += len(text) + IMAGE_CHARS * len(images)
            case ToolCall(_, name, input):
                chars += len(name) + len(json.dumps(dict(input), default=str))
            case Image():
                chars += IMAGE_CHARS
            case Opaque(raw):
                chars += len(json.dumps(dict(raw), default=str))
    return chars


def count_latest_fitting(messages: Sequence[Message], chars: int) -> int:
    """Return how many of the latest messages fit.

    The first of them must contain no results, whose calls would be missing.
    """
    kept = 0
    for n, message in enumerate(reversed(messages), 1):
        chars -= length_of(message)
        if chars < 0:
            break
        if not message.results:
            kept = n
    return kept


def oldest_results(messages: Sequence[Message], chars: int) -> tuple[str, ...]:
    """Return the ids of the oldest results that together have this number of characters, or of all results."""
    found: list[str] = []
    for result in (result for message in messages for result in message.results):
        if chars <= 0:
            break
        length = len(result.text) + IMAGE_CHARS * len(result.images)
        if length >= MIN_STUBBED_CHARS:
            found.append(result.id)
            chars -= length
    return tuple(found)


def replace_with_stubs(messages: Sequence[Message], ids: Collection[str]) -> list[Message]:
    """Return the messages with a stub for each of these results."""
    names = {call.id: call.name for message in messages for call in message.calls}

    def stub(result: ToolResult) -> ToolResult:
        images = f" and {pluralize(len(result.images), 'image')}" if result.images else ""
        removed = f"{len(result.text):,} characters{images} removed to make room"
        return replace(result, text=f"[{names.get(result.id, 'tool')}: {removed}]", images=())

    return [
        replace(m, blocks=tuple(stub(b) if isinstance(b, ToolResult) and b.id in ids else b for b in m.blocks))
        if any(result.id in ids for result in m.results)
        else m
        for m in messages
    ]


def shrink(messages: Sequence[Message], chars: int) -> Sequence[Message]:
    """Return the messages shortened by this number of characters, as far as possible.

    First the oldest results become stubs. Then the user's newest texts are removed, which no summary has to repeat.
    Then the oldest messages are removed. At least one reply stays.
    """
    if chars <= 0:
        return messages
    fewer = replace_with_stubs(messages, oldest_results(messages, chars))
    over = chars - sum(map(length_of, messages)) + sum(map(length_of, fewer))
    while over > 0 and fewer[-1].role == "user" and not fewer[-1].results and len(fewer) > 1:
        over -= length_of(fewer.pop())
    last_reply = max((n for n, message in enumerate(fewer) if message.role == "assistant"), default=0)
    removed = 0
    for n, message in enumerate(fewer[: last_reply + 1]):
        if not message.results:
            removed = n
            if over <= 0:
                break
        over -= length_of(message)
    rest = [user_text(EARLIER_GONE), *fewer[removed:]] if removed else fewer
    # Copies, because providers recognise the last message that they have encoded by identity.
    return [replace(m) for m in rest]


def messages_after(messages: Sequence[Message], record: Compacted) -> list[Message]:
    """Return the messages of a conversation after a compaction."""
    if not record.summary:
        return replace_with_stubs(messages, record.stubbed)
    kept = messages[max(len(messages) - record.kept, 0) :]
    return [first_message(record), *kept]


def first_message(record: Compacted) -> Message:
    """Return the message that replaces the messages before a compaction."""
    left_out = f"({pluralize(record.left_out, 'earlier line')} left out to make room.)" if record.left_out else ""
    images = f"(Images left out to make room: {', '.join(record.images)}.)" if record.images else ""
    words = "\n".join(filter(None, [left_out, images, record.words]))
    parts = [COMPACTED, record.summary, f"{USER_WORDS}\n\n{words}" if words else "", record.plan]
    return user_text("\n\n".join(filter(None, parts)))


@dataclass(frozen=True, slots=True)
class WindowView:
    """The content of a window in tokens, with its ``parts`` by name. ``window`` is 0 if its size is unknown."""

    window: int
    tokens: int
    parts: tuple[tuple[str, int], ...]

    @property
    def sentence(self) -> str:
        """The parts with their tokens, largest first."""
        rows = sorted(self.parts, key=lambda part: -part[1])
        return ", ".join(f"{name} {tokens:,}" for name, tokens in rows if tokens)


def view_of(
    messages: Sequence[Message],
    window_usage: WindowUsage,
    window: Window | None,
    beside: Sequence[tuple[str, int]],
    compacted: Compacted | None = None,
) -> WindowView:
    """Return the content of a window. ``beside`` are the characters before the conversation, by name.

    ``compacted`` is the compaction that the conversation starts with.
    """
    chars: Counter[str] = Counter(dict(beside))
    names = {call.id: call.name for message in messages for call in message.calls}
    if compacted is not None:
        chars["summary"] = len(compacted.summary)
        chars["user's words"] = -len(compacted.summary)
    for message in messages:
        if message.role == "assistant":
            chars["replies"] += length_of(message)
        elif not message.results:
            # The first block is the user's text. The files that it names follow.
            words = length_of(Message("user", message.blocks[:1]))
            chars["user's words"] += words
            chars["named files"] += length_of(message) - words
        for result in message.results:
            chars[f"results of {names.get(result.id, 'tools')}"] += len(result.text) + IMAGE_CHARS * len(result.images)
    parts = tuple((name, window_usage.estimate(n)) for name, n in chars.items())
    return WindowView(0 if window is None else window.tokens, window_usage.tokens, parts)
