"""An agent as the parts of its loop see it, and the one door into its conversation: check, journal, append.

The journal comes before the append, so that the conversation never holds what the record does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from chain import events
from chain.agent.conversation import Conversation
from chain.agent.spec import AgentSpec, Shared
from chain.events import Point
from chain.interruption.prompt import InterruptionPrompt
from chain.journal import records
from chain.journal.journal import Projected
from chain.lines.inbox import Inbox
from chain.lines.receipts import Accepted
from chain.messages import Message


@dataclass(frozen=True, slots=True)
class DeliveryDetails:
    """Point, prompt source, model calls left, skipped tools and longest wait of a delivery."""

    point: Point | None = None
    source: str = ""
    remaining: int = 0
    skipped: tuple[str, ...] = ()
    iteration: int = 0
    waited_s: float = 0.0


@dataclass(eq=False)
class AgentContext:
    """One agent. Its ``spec`` may be replaced between two runs, by another model or for another call."""

    spec: AgentSpec
    shared: Shared
    inbox: Inbox
    conversation: Conversation = field(default_factory=Conversation)

    @property
    def name(self) -> str:
        """The agent's name, as in ``explore-1``."""
        return self.spec.name

    def append(
        self,
        message: Message,
        *,
        lines: Sequence[Accepted] = (),
        details: DeliveryDetails = DeliveryDetails(),
        is_cut: bool = False,
    ) -> Projected:
        """Validates, journals and appends a message; ``lines`` are those that it delivers.

        ``is_cut``: it is what was shown of a reply that a now line cut. Returns the message's events. Raises
        ``ConversationError`` and ``JournalError``, and nothing has changed then.
        """
        after = self.conversation.check(message)
        told = self.shared.journal.record(
            records.Message(
                message,
                agent=self.name,
                parent_id=self.spec.parent_id,
                is_interjection=details.point not in (None, "start"),
                line_ids=tuple(accepted.on_record for accepted in lines),
                point=details.point,
                source=details.source,
                remaining=details.remaining,
                skipped=details.skipped,
                iteration=details.iteration,
                waited_s=details.waited_s,
                is_cut=is_cut,
            )
        )
        self.conversation.append_checked(message, after)
        return told

    def withdraw(self) -> None:
        """Takes back what the service refuses to hear (``Conversation.withdraw``). Raises ``JournalError``."""
        self.shared.journal.record(records.Withdrawn(self.conversation.withdrawable, self.name, "refused"))
        self.conversation.withdraw()

    def current_prompt(self, iteration: int) -> InterruptionPrompt:
        """The handler prompt that holds now. A fault of its file is reported, and the built-in one is used."""
        prompt, error = self.spec.prompts.current()
        if error is not None:
            why = f"{error.sentence}; the built-in handler prompt is used"
            notice = events.Notice(agent=self.name, iteration=iteration, message=why, file=error.file, line=error.line)
            self.shared.emit(notice)
        return prompt

    def check_prompt(self, iteration: int) -> None:
        """Report a fault of the handler prompt's file at once, not at the first interruption."""
        if self.spec.prompts.is_configured:
            self.current_prompt(iteration)
