"""What one agent was told and has said, and how that changes: by messages, a compaction, a refusal. Pure.

The live agent and the reading of a journal both change it here, so a resumed conversation is what it was.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from chain.agent.conversation import Conversation, State
from chain.agent.refusals import without
from chain.agent.window import Fill, Words, first_message, messages_after
from chain.journal.records import Compacted, Removed
from chain.messages import Message


@dataclass(eq=False, slots=True)
class History:
    """A conversation, how much of a window it fills, and what the user said in it.

    ``compacted`` is the compaction whose summary it begins with.
    """

    conversation: Conversation = field(default_factory=Conversation)
    fill: Fill = field(default_factory=Fill)
    words: Words = field(default_factory=Words)
    compacted: Compacted | None = None

    def append(self, message: Message, after: State | None = None) -> None:
        """Append a message; ``after`` is the state that it leads to, if it was checked in this very step.

        Raises ``ConversationError``, and changes nothing, when it may not come next.
        """
        self.conversation.append_checked(message, self.conversation.check(message) if after is None else after)
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
