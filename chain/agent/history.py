"""The state of one agent: what it was told and has said, and how far it has come. Pure.

This is a part of the state of a session: only records change it (``session.state``).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from chain.agent.conversation import Conversation
from chain.agent.refusals import without
from chain.agent.window import Fill, Words, first_message, messages_after
from chain.journal.records import Compacted, Removed, ToolFinished
from chain.messages import Message, ToolCall, ToolResult, Usage
from chain.plan import PlanNews
from chain.text.wording import ROOT


@dataclass(eq=False, slots=True)
class History:
    """A conversation, how much of a window it fills, and what the user said in it.

    ``compacted`` is the compaction whose summary it begins with.
    """

    conversation: Conversation = field(default_factory=Conversation)
    fill: Fill = field(default_factory=Fill)
    words: Words = field(default_factory=Words)
    compacted: Compacted | None = None

    def append(self, message: Message) -> None:
        """Append a message. Raise ``ConversationError``, and change nothing, if it may not come next."""
        self.conversation.append(message)
        self.fill.add(message)
        if message.role == "assistant" and not message.calls:
            self.words.answered()

    def compact(self, record: Compacted) -> None:
        """Carry out a compaction. Raises ``ConversationError``, and changes nothing, if it does not fit."""
        messages = messages_after(self.conversation.messages, record)
        self.conversation.begin_anew(messages, is_summarized=bool(record.summary))
        self.fill.begin_anew(messages)
        if record.summary:
            self.compacted = record
            self.words.compacted(record.left_out)

    def withdraw(self, line_ids: Collection[str]) -> None:
        """Take out what the service will not hear, with these lines; also of the words that a compaction kept."""
        first, kept = None, self.words.remove(line_ids)
        if self.compacted is not None:
            self.compacted = replace(self.compacted, words=kept)
            first = first_message(self.compacted)
        self.conversation.withdraw(first)
        self.fill.begin_anew(self.conversation.messages)

    def remove(self, removed: Removed) -> None:
        """Replace content that the service refuses by stubs."""
        self.conversation.begin_anew(without(self.conversation.messages, removed), is_summarized=False)
        self.fill.begin_anew(self.conversation.messages)


@dataclass(eq=False, slots=True)
class AgentState:
    """An agent, and how far it has come.

    ``started`` are the open calls whose tools have started, and ``results`` those that already have a result on record;
    ``finished`` are the ends of those whose results come with those of the others. ``since_answer`` are the ids of the
    lines that were delivered since its last reply without tool calls: a refusal gives them back. ``is_summarizing``:
    its last request asked for a summary. ``began`` is in seconds since the epoch.

    The last three serve those who read a journal: the last iteration whose start was reported, and the error of the
    last request with the pause after it.
    """

    name: str
    kind: str = ""
    parent: str = ""
    parent_id: str = ROOT
    task: str = ""
    began: float = 0.0
    is_at_work: bool = False
    iteration: int = 0
    usage: Usage = field(default_factory=Usage)
    history: History = field(default_factory=History)
    started: set[str] = field(default_factory=set)
    results: dict[str, ToolResult] = field(default_factory=dict)
    finished: dict[str, ToolFinished] = field(default_factory=dict)
    since_answer: list[str] = field(default_factory=list)
    is_summarizing: bool = False
    news: PlanNews = field(default_factory=PlanNews)
    reported_iteration: int = 0
    error: str = ""
    delay_s: float = 0.0

    def open_call(self, id: str) -> ToolCall | None:
        """Return the call with this id that has no result in the conversation; ``None`` if there is none."""
        return next((call for call in self.history.conversation.open_calls if call.id == id), None)

    @property
    def unreported(self) -> list[str]:
        """The ids of the calls, open or with a lost record, whose results are not on record yet."""
        ids = dict.fromkeys((*(call.id for call in self.history.conversation.open_calls), *self.started))
        return [id for id in ids if id not in self.results]

    def settle_calls(self) -> None:
        """Note that no call is open any more."""
        self.started.clear()
        self.results.clear()
        self.finished.clear()
