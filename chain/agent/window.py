"""How full a model's window is, and what a conversation keeps when it is compacted. Pure.

What the user said is kept beside the conversation, word for word, so that no summary has to keep it (SPEC, I10).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from string import Template

from chain.journal.records import Compacted
from chain.messages import Image, Message, Opaque, Text, Thinking, ToolCall, ToolResult, Usage, user_text
from chain.model import Window
from chain.text.wording import COMPACTED, WORDS, counted

FIRST_RATIO = 3.5
"""Characters a token, until a service has said how many tokens a request came to."""

RATIOS = 1.0, 10.0
"""The least and the most that is believed: some servers leave out of their count what a cache held."""

MOST_WRONG = 2.0
"""How many times as long as by our estimate a conversation is taken to be that a service finds too long."""

WORDS_SHARE = 0.25
"""How much of the window the user's words of earlier runs may have."""

LONGEST_REPLY_SHARE = 0.5
"""How much of what may be full is kept free for a reply at most: a model whose longest reply is as long as its window
would be compacted at every call."""

IMAGE_CHARS = 5_600
"""What an image counts for: 1,600 tokens is the most that a service makes of one."""

LEAST_STUBBED = 400
"""Characters of a result that is worth a stub."""

EARLIER_GONE = "[earlier messages removed to make room]"
"""What stands for them in a request for a summary."""

PROMPT = """\
The conversation is about to be shortened to make room. Write what is needed to go on with the work from your text
alone, in this order: the goal; what was decided, and why; facts that were found, with their files and lines; what was
tried and did not work; what is open, and the next step. What the user said is kept word for word beside it, and the
plan is sent again, so repeat neither. Call no tools now.

${focus}"""

FOCUS = "What matters most to the user: "


@dataclass(frozen=True, slots=True)
class CompactionRules:
    """When and how a conversation is compacted.

    ``at`` is the share of the window that may be full, ``None`` for no compaction but what the user asks for. ``keep``
    is the share that the latest messages may have afterwards. ``prompt`` may hold ``${focus}``, what the user said
    matters.
    """

    at: float | None = 0.9
    keep: float = 0.2
    prompt: str = PROMPT

    @property
    def share(self) -> float:
        """How much of the window may be full."""
        return 1.0 if self.at is None else self.at

    def prompt_for(self, focus: str) -> str:
        """The message that asks for a summary."""
        return Template(self.prompt).safe_substitute(focus=FOCUS + focus if focus else "").strip()

    def room_for_reply(self, window: Window) -> int:
        """How many tokens of the window are kept free for a reply."""
        return min(window.longest_reply, int(self.share * window.tokens * LONGEST_REPLY_SHARE))

    def limit(self, window: Window) -> int:
        """How many tokens a conversation may fill."""
        return int(self.share * window.tokens) - self.room_for_reply(window)


class Fill:
    """How many tokens one conversation fills: as the last reply reported, and an estimate of what came since."""

    def __init__(self) -> None:
        self.image_bytes = 0
        """Bytes of all images in the conversation."""
        self.beside = 0
        """Characters of the system prompt and the tools; 0 until the agent's model is known."""
        self._counted: tuple[int, int, int] | None = None
        """The tokens that a service counted last, for so many characters of the conversation and beside it."""
        self._chars = 0
        self._known = 0
        self._since = 0
        self._counts_reply = False
        """Whether the reply that comes next is among the known tokens."""

    @property
    def ratio(self) -> float:
        """Characters a token, as the service has counted them last."""
        if self._counted is None:
            return FIRST_RATIO
        tokens, chars, beside = self._counted
        return min(max((chars + (beside or self.beside)) / tokens, RATIOS[0]), RATIOS[1])

    @property
    def tokens(self) -> int:
        """The tokens that the next request would have."""
        if not self._known:
            return self.estimate(self._chars + self.beside)
        return self._known + self.estimate(self._since)

    def estimate(self, chars: int) -> int:
        """How many tokens so many characters are."""
        return math.ceil(chars / self.ratio)

    def add(self, message: Message) -> None:
        """Count a message that was appended."""
        chars = length_of(message)
        self._chars += chars
        self.image_bytes += sum(image.size for image in message.images)
        if not (message.role == "assistant" and self._counts_reply):
            self._since += chars
        self._counts_reply = False

    def update(self, usage: Usage, asked_tokens: int, window: int, *, is_too_long: bool) -> None:
        """Note what a service says of a request with the whole conversation: by its reply, or that it is too long.

        ``asked_tokens`` is then how long it is, and ``window`` what the model can take in; 0 where that is not known.
        """
        if not is_too_long:
            asked = usage.total_tokens - usage.output_tokens
            if asked > 0:
                self._counted = asked, self._chars, self.beside
                self._known, self._since, self._counts_reply = usage.total_tokens, 0, True
            return
        most = int(self.tokens * MOST_WRONG)
        least = asked_tokens or (min(max(window, self.tokens), most) if window else 0)
        if least:
            self._counted = least, self._chars, self.beside
            self._known = self._since = 0

    def begin_anew(self, messages: Iterable[Message]) -> None:
        """Count these messages alone."""
        messages = list(messages)
        self._chars = sum(map(length_of, messages))
        self.image_bytes = sum(image.size for message in messages for image in message.images)
        self._known = self._since = 0
        self._counts_reply = False


@dataclass(frozen=True, slots=True)
class Word:
    """What the user said: a line, the query of a run, the answer to a question; of an agent below main also its task.

    ``iteration`` is 0 for what a run was started with. ``line_id`` is empty for what is no line.
    """

    text: str
    run: int
    iteration: int = 0
    line_id: str = ""

    @property
    def row(self) -> str:
        """The words, with when they came."""
        when = f"iteration {self.iteration}" if self.iteration else "query" if self.line_id else "task"
        return f"[run {self.run}, {when}] {self.text}"


class Words:
    """All that the user said to one agent, in order."""

    def __init__(self) -> None:
        self.run = 0
        """The number of the run that is active, or of the last one."""
        self._words: list[Word] = []
        self._answered = 0
        """How many of them came before the last reply without tool calls."""
        self._kept: list[Word] = []
        """Those that the last compaction kept."""

    def add(self, text: str, *, iteration: int = 0, line_id: str = "") -> None:
        """Add what was delivered in this run."""
        self._words.append(Word(text, self.run, iteration, line_id))

    def add_answer(self, question: str, answer: str, iteration: int) -> None:
        """Add what the user answered to a question."""
        self.add(f"(asked: {question}) {answer}", iteration=iteration)

    def answered(self) -> None:
        """Note that a reply without tool calls is in the conversation."""
        self._answered = len(self._words)

    def compacted(self, left_out: int) -> None:
        """Note that a compaction has kept all but so many, the earliest."""
        self._kept = self._words[left_out:]

    def remove(self, line_ids: Collection[str]) -> str:
        """Take out what came since the last answer: these lines, and what is no line.

        Returns the rows that are left of those that the last compaction kept.
        """
        gone = {id(w) for w in self._words[self._answered :] if not w.line_id or w.line_id in line_ids}
        self._words = [word for word in self._words if id(word) not in gone]
        self._kept = [word for word in self._kept if id(word) not in gone]
        return "\n".join(word.row for word in self._kept)

    def kept(self, chars: int) -> tuple[str, int]:
        """The rows of this run, with as many of the earlier ones, latest first, as fit; and how many are left out."""
        rows: list[str] = []
        for word in reversed(self._words):
            if word.run != self.run:
                chars -= len(word.row) + 1
                if chars < 0:
                    break
            rows.append(word.row)
        return "\n".join(reversed(rows)), len(self._words) - len(rows)


def length_of(message: Message) -> int:
    """How many characters of a message count for the window."""
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


def latest_that_fit(messages: Sequence[Message], chars: int) -> int:
    """How many of the latest messages fit; the first of them answers no call, since its calls would be gone."""
    kept = 0
    for n, message in enumerate(reversed(messages), 1):
        chars -= length_of(message)
        if chars < 0:
            break
        if not message.results:
            kept = n
    return kept


def oldest_results(messages: Sequence[Message], chars: int) -> tuple[str, ...]:
    """The ids of the oldest results that come to as many characters, as far as there are any."""
    found: list[str] = []
    for result in (result for message in messages for result in message.results):
        if chars <= 0:
            break
        length = len(result.text) + IMAGE_CHARS * len(result.images)
        if length >= LEAST_STUBBED:
            found.append(result.id)
            chars -= length
    return tuple(found)


def with_stubs(messages: Sequence[Message], ids: Collection[str]) -> list[Message]:
    """The messages, with a stub for each of these results."""
    names = {call.id: call.name for message in messages for call in message.calls}

    def stub(result: ToolResult) -> ToolResult:
        images = f" and {counted(len(result.images), 'image')}" if result.images else ""
        removed = f"{len(result.text):,} characters{images} removed to make room"
        return replace(result, text=f"[{names.get(result.id, 'tool')}: {removed}]", images=())

    return [
        replace(m, blocks=tuple(stub(b) if isinstance(b, ToolResult) and b.id in ids else b for b in m.blocks))
        if any(result.id in ids for result in m.results)
        else m
        for m in messages
    ]


def shrunk(messages: Sequence[Message], chars: int) -> Sequence[Message]:
    """The messages with so many characters less, as far as that is possible.

    First stubs stand for the oldest results. Then the newest words of the user go, which no summary has to keep; then
    the oldest messages. A reply stays.
    """
    if chars <= 0:
        return messages
    fewer = with_stubs(messages, oldest_results(messages, chars))
    over = chars - sum(map(length_of, messages)) + sum(map(length_of, fewer))
    while over > 0 and fewer[-1].role == "user" and not fewer[-1].results and len(fewer) > 1:
        over -= length_of(fewer.pop())
    last_reply = max((n for n, message in enumerate(fewer) if message.role == "assistant"), default=0)
    gone = 0
    for n, message in enumerate(fewer[: last_reply + 1]):
        if not message.results:
            gone = n
            if over <= 0:
                break
        over -= length_of(message)
    left = [user_text(EARLIER_GONE), *fewer[gone:]] if gone else fewer
    # Copies, since who has encoded the last one takes those before it for the same as well.
    return [replace(m) for m in left]


def messages_after(messages: Sequence[Message], record: Compacted) -> list[Message]:
    """The conversation after it was compacted."""
    if not record.summary:
        return with_stubs(messages, record.stubbed)
    kept = messages[max(len(messages) - record.kept, 0) :]
    return [first_message(record), *kept]


def first_message(record: Compacted) -> Message:
    """The message that stands for all that came before a compaction."""
    left_out = f"({counted(record.left_out, 'earlier line')} left out to make room.)" if record.left_out else ""
    images = f"(Images left out to make room: {', '.join(record.images)}.)" if record.images else ""
    words = "\n".join(filter(None, [left_out, images, record.words]))
    parts = [COMPACTED, record.summary, f"{WORDS}\n\n{words}" if words else "", record.plan]
    return user_text("\n\n".join(filter(None, parts)))


@dataclass(frozen=True, slots=True)
class WindowView:
    """What fills a window, in tokens, with its ``parts`` by name. An unknown window is 0."""

    window: int
    tokens: int
    parts: tuple[tuple[str, int], ...]

    @property
    def sentence(self) -> str:
        """What fills it, the largest first."""
        rows = sorted(self.parts, key=lambda part: -part[1])
        return ", ".join(f"{name} {tokens:,}" for name, tokens in rows if tokens)


def view_of(
    messages: Sequence[Message],
    fill: Fill,
    window: Window | None,
    beside: Sequence[tuple[str, int]],
    compacted: Compacted | None = None,
) -> WindowView:
    """What fills a window; ``beside`` are the characters of what comes before the conversation, by name.

    ``compacted`` is the compaction that the conversation begins with.
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
            # What the user said is one text; the files that it names come after it.
            words = length_of(Message("user", message.blocks[:1]))
            chars["user's words"] += words
            chars["named files"] += length_of(message) - words
        for result in message.results:
            chars[f"results of {names.get(result.id, 'tools')}"] += len(result.text) + IMAGE_CHARS * len(result.images)
    parts = tuple((name, fill.estimate(n)) for name, n in chars.items())
    return WindowView(0 if window is None else window.tokens, fill.tokens, parts)
