"""The state of one agent, including its conversation. Pure.

Agents are part of the state of a session, which changes only when a record is applied (``session.state``).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from chain.agent.conversation import Conversation, Messages
from chain.agent.refusals import apply_removal
from chain.agent.window import UserTexts, WindowUsage, WordsSnapshot, first_message, messages_after
from chain.journal.records import Compacted, Removed, ToolFinished
from chain.messages import Message, ToolCall, ToolResult, Usage
from chain.plan import PlanNews
from chain.text.wording import ROOT


@dataclass(eq=False, slots=True)
class History:
    """A conversation, its size, and the user's texts in it.

    ``compacted`` is the record of the last compaction by a summary, or ``None``.
    """

    conversation: Conversation = field(default_factory=Conversation)
    window_usage: WindowUsage = field(default_factory=WindowUsage)
    words: UserTexts = field(default_factory=UserTexts)
    compacted: Compacted | None = None

    def append(self, message: Message) -> None:
        """Append a message. If it is not allowed next, change nothing and raise ``ConversationError``."""
        self.conversation.append(message)
        self.window_usage.add(message)
        if message.role == "assistant" and not message.calls:
            self.words.mark_answered()

    def compact(self, record: Compacted) -> None:
        """Apply the record of a compaction, which replaces messages.

        If the resulting conversation is invalid, change nothing and raise ``ConversationError``.
        """
        messages = messages_after(self.conversation.messages, record)
        self.conversation.reset_to(messages, is_summarized=bool(record.summary))
        self.window_usage.reset_to(messages)
        if record.summary:
            self.compacted = record
            self.words.mark_compacted(record.left_out)

    def withdraw(self, line_ids: Collection[str]) -> None:
        """Remove the messages after the last reply without tool calls.

        Also remove the user's texts in these messages from ``words``: the lines in ``line_ids``, all tasks, and all
        answers to questions. If the last compaction kept such a text, also remove the text from the summary message.
        """
        first, kept = None, self.words.remove(line_ids)
        if self.compacted is not None:
            self.compacted = replace(self.compacted, words=kept)
            first = first_message(self.compacted)
        self.conversation.withdraw(first)
        self.window_usage.reset_to(self.conversation.messages)

    def remove(self, removed: Removed) -> None:
        """Replace the content that ``removed`` names by stubs, because the service refuses this content."""
        self.conversation.reset_to(apply_removal(self.conversation.messages, removed), is_summarized=False)
        self.window_usage.reset_to(self.conversation.messages)

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the history, for ``restore``."""
        return self.conversation.snapshot(), self.words.snapshot(), self.compacted

    def restore(self, snapshot: Snapshot) -> None:
        """Restore the history to an earlier ``snapshot``."""
        messages, words, self.compacted = snapshot
        self.words.restore(words)
        self.conversation.restore(messages)
        self.window_usage.reset_to(self.conversation.messages)


Snapshot: TypeAlias = tuple[tuple[Messages, int], WordsSnapshot, Compacted | None]
"""A snapshot of a history: its messages, the user's texts, and the last compaction."""


@dataclass(eq=False, slots=True)
class AgentState:
    """An agent's description, conversation and progress. ``began`` is in seconds since the epoch.

    Three fields describe the open tool calls: ``started`` has the ids of the calls whose tools have started,
    ``results`` the recorded results by id, and ``finished`` the records of their ends by id. ``since_answer`` has the
    ids of the lines that were delivered after the last reply without tool calls. A refusal returns these lines to the
    user. ``is_summarizing``: the last request asked for a summary.

    The last four fields are for readers of a journal. ``window`` is the model's window in tokens, and 0 if unknown.
    ``reported_iteration`` is the last iteration whose start was emitted. ``error`` is the error of the last request,
    and ``delay_s`` the pause after that error in seconds.
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
    window: int = 0
    reported_iteration: int = 0
    error: str = ""
    delay_s: float = 0.0

    def open_call(self, id: str) -> ToolCall | None:
        """Return the open call with this id, or ``None``."""
        return next((call for call in self.history.conversation.open_calls if call.id == id), None)

    @property
    def unreported(self) -> list[str]:
        """The ids of the open or started calls whose results are not recorded."""
        ids = dict.fromkeys((*(call.id for call in self.history.conversation.open_calls), *self.started))
        return [id for id in ids if id not in self.results]

    def settle_calls(self) -> None:
        """Clear ``started``, ``results`` and ``finished`` after the results of all open calls have been appended."""
        self.started.clear()
        self.results.clear()
        self.finished.clear()
