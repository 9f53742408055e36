"""The one door into an agent's conversation: check, journal, append.

The journal comes before the append, so that the conversation never holds what the record does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chain.agent.conversation import Conversation
from chain.agent.spec import AgentSpec
from chain.events import Point
from chain.journal import records
from chain.journal.journal import Journal
from chain.lines.receipts import Accepted
from chain.messages import Message


@dataclass(frozen=True, slots=True)
class Met:
    """How lines met the conversation: where, by which handler prompt, and what the run had left and left out."""

    point: Point | None
    source: str = ""
    remaining: int = 0
    skipped: tuple[str, ...] = ()
    iteration: int = 0
    waited_s: float = 0.0


_NOT_MET = Met(None)


class History:
    """The conversation of one agent, on the record."""

    def __init__(self, spec: AgentSpec, journal: Journal, conversation: Conversation) -> None:
        self.conversation = conversation
        self._spec = spec
        self._journal = journal

    def use(self, spec: AgentSpec) -> None:
        """What comes from now on is that of this spec."""
        self._spec = spec

    def append(self, message: Message, *, lines: Sequence[Accepted] = (), met: Met | None = None) -> None:
        """Validates, journals and appends a message; ``lines`` are those that it delivers, and ``met`` is how.

        Raises ``ConversationError`` and ``JournalError``, and nothing has changed then.
        """
        met = met or _NOT_MET
        after = self.conversation.check(message)
        self._journal.record(
            records.Message(
                message,
                agent=self._spec.name,
                parent_id=self._spec.parent_id,
                is_interjection=met.point not in (None, "start"),
                line_ids=tuple(accepted.on_record for accepted in lines),
                point=met.point,
                source=met.source,
                remaining=met.remaining,
                skipped=met.skipped,
                iteration=met.iteration,
                waited_s=met.waited_s,
            )
        )
        self.conversation.append_checked(message, after)

    def withdraw(self) -> None:
        """Takes back what the service refuses to hear (``Conversation.withdraw``). Raises ``JournalError``."""
        count = self.conversation.withdrawable
        self._journal.record(records.Withdrawn(count, self._spec.name, "refused"))
        self.conversation.withdraw()
