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
"""The assumed characters per token until a service reports the tokens of a request."""

RATIOS = 1.0, 10.0
"""The smallest and largest plausible number of characters per token. Some servers do not count cached tokens."""

MAX_ESTIMATE_ERROR = 2.0
"""The largest assumed ratio of real to estimated size, if a service rejects a conversation without a size."""

WORDS_SHARE = 0.25
"""The share of the window that the user's texts of earlier runs may use after a compaction."""

LONGEST_REPLY_SHARE = 0.5
"""The limit of the tokens reserved for a reply, as a share of the usable window, which some replies may fill."""

IMAGE_CHARS = 5_600
"""The length of an image in estimates, in characters: a service counts at most 1,600 tokens for an image."""

MIN_STUBBED_CHARS = 400
"""The length, in characters, from which a tool result may be replaced by a stub."""

EARLIER_GONE = "[earlier messages removed to make room]"
"""The text that stands for the removed oldest messages in a request for a summary."""

PROMPT = """\
The conversation is about to be shortened to make room. Write what is needed to continue the work from your text alone,
in this order: the goal; what was decided, and why; facts that you found, with their files and lines; what was tried and
did not work; what is open, and the next step. The user's texts and the plan are sent again, word for word: do not
repeat them. Call no tools now.

${focus}"""
"""The default prompt that asks the model for a summary."""

FOCUS = "What matters most to the user: "


@dataclass(frozen=True, slots=True)
class CompactionRules:
    """The settings of compaction.

    ``at`` is the share of the window above which the conversation is compacted; with ``None``, only the user starts a
    compaction. ``keep`` is the share of the window for the latest messages, which a compaction leaves unchanged.
    ``prompt`` asks for the summary. Its placeholder ``${focus}`` is replaced by what the user wants emphasized.
    """

    at: float | None = 0.9
    keep: float = 0.2
    prompt: str = PROMPT

    @property
    def share(self) -> float:
        """The usable share of the window: ``at``, or the whole window if ``at`` is ``None``."""
        return 1.0 if self.at is None else self.at

    def prompt_for(self, focus: str) -> str:
        """Return the prompt with ``${focus}`` replaced by what the user wants emphasized; an empty focus removes it."""
        return Template(self.prompt).safe_substitute(focus=FOCUS + focus if focus else "").strip()

    def room_for_reply(self, window: Window) -> int:
        """Return the number of tokens in the window that are reserved for a reply."""
        return min(window.longest_reply, int(self.share * window.tokens * LONGEST_REPLY_SHARE))

    def limit(self, window: Window) -> int:
        """Return the number of tokens that a conversation may use."""
        return int(self.share * window.tokens) - self.room_for_reply(window)


class WindowUsage:
    """The estimated size of one conversation in tokens.

    The size is the token count that the service reported with its last reply, plus an estimate for later messages.
    """

    def __init__(self) -> None:
        self.image_bytes = 0
        """The size of all images in the conversation, in bytes."""
        self.overhead = 0
        """The characters of the system prompt and the tools; 0 until the agent's model is known."""
        self._counted: tuple[int, int, int] | None = None
        """The last request that a service counted: its tokens, its characters of conversation, and its ``overhead``."""
        self._chars = 0
        self._known_tokens = 0
        self._chars_since = 0
        self._counts_reply = False
        """Whether ``_known_tokens`` already includes the reply that will be appended next."""

    @property
    def ratio(self) -> float:
        """The characters per token in the last request that a service counted; ``FIRST_RATIO`` before that."""
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
        """Add the size of an appended message."""
        chars = length_of(message)
        self._chars += chars
        self.image_bytes += sum(image.size for image in message.images)
        if not (message.role == "assistant" and self._counts_reply):
            self._chars_since += chars
        self._counts_reply = False

    def update(self, usage: Usage, asked_tokens: int, window: int, *, is_too_long: bool) -> None:
        """Replace the estimate by the size that the service reported for a request with the whole conversation.

        Normally the size is in ``usage``. If the service rejected the request as too long (``is_too_long``), the size
        is ``asked_tokens``; if this is 0, the size is estimated from the model's ``window`` in tokens (0: unknown).
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
        """Estimate the size anew for a conversation of these messages."""
        messages = list(messages)
        self._chars = sum(map(length_of, messages))
        self.image_bytes = sum(image.size for message in messages for image in message.images)
        self._known_tokens = self._chars_since = 0
        self._counts_reply = False


@dataclass(frozen=True, slots=True)
class UserText:
    """A text of the user (a line, a query or an answer), or the task of an agent below the main agent.

    ``run`` is the number of the run that received the text. ``iteration`` is 0 for a query or task. ``line_id`` is
    empty for a task or answer.
    """

    text: str
    run: int
    iteration: int = 0
    line_id: str = ""

    @property
    def row(self) -> str:
        """The text, preceded by its run and iteration in brackets."""
        when = f"iteration {self.iteration}" if self.iteration else "query" if self.line_id else "task"
        return f"[run {self.run}, {when}] {self.text}"


WordsSnapshot: TypeAlias = tuple[list[UserText], int, int, list[UserText]]


class UserTexts:
    """The user's texts in the conversation of one agent, in order of delivery."""

    def __init__(self) -> None:
        self.run = 0
        """The number of the active run, or of the last one if none is active."""
        self._texts: list[UserText] = []
        self._answered_count = 0
        """The number of texts before the last reply without tool calls."""
        self._kept: list[UserText] = []
        """The texts that the last compaction kept."""

    def add(self, text: str, *, iteration: int = 0, line_id: str = "") -> None:
        """Add a text that was delivered in the active run."""
        self._texts.append(UserText(text, self.run, iteration, line_id))

    def mark_answered(self) -> None:
        """Mark all texts so far as answered by a reply without tool calls. ``remove`` cannot remove them any more."""
        self._answered_count = len(self._texts)

    def mark_compacted(self, left_out: int) -> None:
        """Store which texts a compaction has kept: all but the earliest ``left_out`` texts."""
        self._kept = self._texts[left_out:]

    def remove(self, line_ids: Collection[str]) -> str:
        """Remove user texts that were added after the last answer (a reply without tool calls).

        These are every task, every answer to a question, and the lines in ``line_ids``. Return the rows that remain of
        the texts that the last compaction kept.
        """
        removed = {id(t) for t in self._texts[self._answered_count :] if not t.line_id or t.line_id in line_ids}
        self._texts = [text for text in self._texts if id(text) not in removed]
        self._kept = [text for text in self._kept if id(text) not in removed]
        return "\n".join(text.row for text in self._kept)

    def snapshot(self) -> WordsSnapshot:
        """Return the current texts, for ``restore``.

        The snapshot shares the lists of texts. Existing entries of a list never change, so it stays valid.
        """
        return self._texts, len(self._texts), self._answered_count, self._kept

    def restore(self, snapshot: WordsSnapshot) -> None:
        """Restore a snapshot. ``run`` does not change, because it counts all runs of the session."""
        words, count, self._answered_count, self._kept = snapshot
        self._texts = words[:count]

    def select_rows(self, chars: int) -> tuple[str, int]:
        """Return the rows of the texts to keep in a compaction, and the number of texts left out.

        All texts of the active run are kept, and the latest texts of earlier runs that fit in ``chars`` characters.
        """
        rows: list[str] = []
        for text in reversed(self._texts):
            if text.run != self.run:
                chars -= len(text.row) + 1
                if chars < 0:
                    break
            rows.append(text.row)
        return "\n".join(reversed(rows)), len(self._texts) - len(rows)


def length_of(message: Message) -> int:
    """Return the length of a message in characters, from which its tokens are estimated."""
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
    """Return the number of the latest messages that can be kept in ``chars`` characters.

    The first kept message contains no tool results, because the calls of these results would be missing.
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
    """Return the ids of the oldest tool results that together have at least ``chars`` characters.

    If all results have fewer characters, return all ids. Results shorter than ``MIN_STUBBED_CHARS`` are left out.
    """
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
    """Return a copy of the messages, with stubs in place of the tool results with these ids."""
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
    """Return a copy of the messages for a request for a summary, shorter by ``chars`` characters if possible.

    First, stubs replace the oldest tool results. Then the user's texts after the last reply are removed, the newest
    first: no summary has to repeat them. Then the oldest messages are removed. The last reply is never removed.
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
    """Return the messages that a conversation has after a compaction. ``messages`` are those before the compaction."""
    if not record.summary:
        return replace_with_stubs(messages, record.stubbed)
    kept = messages[max(len(messages) - record.kept, 0) :]
    return [first_message(record), *kept]


def first_message(record: Compacted) -> Message:
    """Return the message with the summary and the user's texts, which replaces the messages that were not kept."""
    left_out = f"({pluralize(record.left_out, 'earlier line')} left out to make room.)" if record.left_out else ""
    images = f"(Images left out to make room: {', '.join(record.images)}.)" if record.images else ""
    words = "\n".join(filter(None, [left_out, images, record.words]))
    parts = [COMPACTED, record.summary, f"{USER_WORDS}\n\n{words}" if words else "", record.plan]
    return user_text("\n\n".join(filter(None, parts)))


@dataclass(frozen=True, slots=True)
class WindowView:
    """The content of a model's window: the names and sizes of its ``parts``.

    ``window`` is the size of the window, and 0 if unknown. ``tokens`` is the used size. All sizes are in tokens.
    """

    window: int
    tokens: int
    parts: tuple[tuple[str, int], ...]

    @property
    def sentence(self) -> str:
        """The names of the parts with their tokens, largest first, separated by commas."""
        rows = sorted(self.parts, key=lambda part: -part[1])
        return ", ".join(f"{name} {tokens:,}" for name, tokens in rows if tokens)


def view_of(
    messages: Sequence[Message],
    window_usage: WindowUsage,
    window: Window | None,
    overhead: Sequence[tuple[str, int]],
    compacted: Compacted | None = None,
) -> WindowView:
    """Return the content of a model's window.

    ``overhead`` has the names and characters of the parts before the conversation, such as the tools. ``compacted`` is
    the compaction that the conversation starts with, if any.
    """
    chars: Counter[str] = Counter(dict(overhead))
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
