"""How lines enter the conversation: all that wait at a safe point become one message of the user.

Taking them and committing the message is one step without an ``await``: a cancellation between the two would leave
lines that neither wait nor are delivered. Where the disk is full the commit raises ``JournalError``, and the lines stay
in the inbox as taken ones, which every ending of a run gives back. What the lines want of the reply to them is left in
``run.expectation``.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from chain import events
from chain.agent.spec import AgentContext
from chain.agent.state import ReplyExpectation, Run
from chain.errors import PlanError
from chain.events import Point, Status
from chain.interruption.prompt import Arrival, Composed, Situation, compose
from chain.journal import records
from chain.lines.accepted import Accepted
from chain.messages import Message, Text
from chain.plan import DONE, NOT_DONE
from chain.text.wording import beginning
from chain.tools.named_files import Attachments, LineContent, read_named_files

MAX_SHOWN = 200
"""Characters of a plan command in a notice that it was not carried out."""


class Delivery:
    """Brings the lines of one agent into its conversation."""

    def __init__(self, context: AgentContext) -> None:
        self._context = context
        self._shared = context.shared
        self._inbox = context.inbox

    def query(self, run: Run, query: Accepted) -> None:
        """Append the query of a run."""
        attached = self._attached([query])
        message = Message("user", (Text(query.line.message), *attached.blocks))
        agent, parent_id = self._context.name, self._context.spec.parent_id
        self._context.commit(records.Message(message, agent, parent_id, line_ids=(query.on_record,), point="start"))
        self._entered(run, [query], "start", attached)

    def deliver(self, run: Run, point: Point, skipped: tuple[str, ...] = (), *, calls_left: int | None = None) -> bool:
        """Put all waiting lines into the conversation as one message. Whether there were any.

        ``calls_left``: the model calls that the run has left, if not those of the iterations to come.
        """
        # No await from here to the commit.
        lines = self._inbox.drain()
        if not lines:
            return False
        prompt = self._context.current_prompt(run.iteration)
        remaining = self._context.spec.limits.max_iterations - run.iteration if calls_left is None else calls_left
        arrivals = [Arrival(a.line, self._carry_out(run, a) if prompt.todo_direct else "") for a in lines]
        situation = Situation(run.iteration, point, remaining, skipped, self._context.name, run.asked_for)
        composed = compose(prompt, arrivals, situation, run.unanswered)
        if prompt.mistake is not None:
            # A rule was too slow just now, which is reported at once.
            self._context.current_prompt(run.iteration)
        attached = self._attached(lines)
        record = records.Message(
            Message("user", (Text(composed.text), *attached.blocks)),
            self._context.name,
            self._context.spec.parent_id,
            is_interjection=True,
            line_ids=tuple(accepted.on_record for accepted in lines),
            point=point,
            source=prompt.source,
            remaining=remaining,
            skipped=skipped,
            outcomes=tuple(a.outcome for a in arrivals) if any(a.outcome for a in arrivals) else (),
            iteration=run.iteration,
            waited_s=trio.current_time() - lines[0].since,
        )
        is_after_reply = self._context.conversation.state == "REPLIED"
        entered = self._context.commit(record)
        run.unanswered += arrivals
        run.expectation = expectation_after(
            run.expectation, situation, composed, run.unanswered, source=prompt.source, is_after_reply=is_after_reply
        )
        self._shared.journal.in_order(entered.emit)
        self._entered(run, lines, point, attached)
        return True

    def settle_todos(self, run: Run) -> None:
        """Carry out the todo lines that no model call is left to read."""
        for accepted in self._inbox.drain_todos():
            self._carry_out(run, accepted)
            self._shared.ledger.settle(accepted, "handled", iteration=run.iteration)

    def give_back(self, run: Run, reason: Status) -> None:
        """Take what came since the last answer out of the conversation, return its lines. Raise ``JournalError``.

        Lines that code has carried out are not returned: sent again they would be done twice.
        """
        known = self._shared.ledger.lines.on_record
        lines = [known[id] for id in self._context.state.since_answer if id in known]
        lines = [accepted for accepted in lines if not accepted.is_carried_out]
        self._context.withdraw([accepted.on_record for accepted in lines], reason)
        for accepted in lines:
            self._shared.ledger.settle(accepted, "returned", iteration=run.iteration, reason=reason)

    def _attached(self, lines: Sequence[Accepted]) -> Attachments:
        """What goes along with lines: the files that they name, as they are now."""
        texts = [a.line.message if a.line.names_files else "" for a in lines]
        contents = [LineContent(a.on_record, text, a.line.images) for a, text in zip(lines, texts, strict=True)]
        return read_named_files(self._shared.workspace, self._shared.seen, contents)

    def _entered(self, run: Run, lines: Sequence[Accepted], point: Point, attached: Attachments) -> None:
        for accepted in lines:
            why = attached.notes.get(accepted.on_record, "")
            self._shared.ledger.settle(accepted, "delivered", iteration=run.iteration, point=point, reason=why)

    def _carry_out(self, run: Run, accepted: Accepted) -> str:
        """Do what a todo line says. What was done, for the model; empty for all other lines."""
        if accepted.line.command is None:
            return ""
        try:
            outcome = DONE.format(self._shared.plan.carry_out(accepted.line.command, line_id=accepted.on_record))
        except PlanError as error:
            why = f"{beginning(accepted.line.text.strip(), MAX_SHOWN)}: {error}"
            notice = events.Notice(agent=self._context.name, iteration=run.iteration, message=why)
            self._shared.journal.in_order(lambda: self._shared.emit(notice))
            outcome = NOT_DONE.format(error)
        return outcome


def expectation_after(
    before: ReplyExpectation,
    situation: Situation,
    composed: Composed,
    unanswered: Sequence[Arrival],
    *,
    source: str,
    is_after_reply: bool,
) -> ReplyExpectation:
    """Return what a delivery wants of the reply to it. Pure.

    ``before`` is what was expected until then; ``unanswered`` are all lines that the reply answers. ``is_after_reply``:
    the conversation ended with a reply without tool calls. At B it does not where the reply was empty.
    """
    point = situation.point
    is_after_nothing = point == "B" and not is_after_reply
    in_mid_task = point in ("C", "D", "N") or is_after_nothing or before.resume is not None
    # The reply to a line at A answers the query too.
    answers_query = point == "A" and bool(situation.query)
    asides_only = not answers_query and all(a.line.is_aside for a in unanswered)
    return ReplyExpectation(
        post_prompt=composed.post_prompt,
        overrides=composed.overrides,
        source=source,
        resume=composed.resume if in_mid_task else None,
        asides_only=asides_only,
        aside_task=asides_only and (before.aside_task if in_mid_task else True),
    )
