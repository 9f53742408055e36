"""Delivery of lines: at a safe point, all waiting lines except follow-ups become one user message.

The lines leave the inbox and the message is committed in one step without an ``await``. Otherwise a cancellation could
lose lines between the inbox and the conversation. On a full disk the commit raises ``JournalError``. The run then ends,
and its end returns these lines to the user. ``run.expectation`` describes what the delivered lines require of the next
reply.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import trio

from chain.agent.spec import AgentContext
from chain.agent.state import ReplyExpectation, Run
from chain.errors import PlanError
from chain.events import MID_TASK, Point, Status
from chain.interruption.prompt import Arrival, Composed, Situation, compose
from chain.journal import records
from chain.lines.accepted import AcceptedLine
from chain.messages import Message, Overrides, Text
from chain.plan import DONE, NOT_DONE
from chain.text.wording import truncate
from chain.tools.named_files import Attachments, LineContent, read_named_files

MAX_SHOWN_COMMAND = 200
"""The limit, in characters, to which a notice about a failed plan command shortens the command."""


class Delivery:
    """The delivery of one agent's lines into its conversation."""

    def __init__(self, context: AgentContext) -> None:
        self._context = context
        self._shared = context.shared
        self._inbox = context.inbox

    def append_query(self, run: Run, query: AcceptedLine) -> None:
        """Append the query of a run as a user message. Raise ``JournalError`` if it cannot be recorded."""
        attached = self._read_attachments([query])
        message = Message("user", (Text(query.line.message), *attached.blocks))
        agent, parent_id = self._context.name, self._context.spec.parent_id
        self._context.commit(records.Message(message, agent, parent_id, line_ids=(query.on_record,), point=Point.START))
        self._settle_delivered(run, [query], Point.START, attached)

    def deliver(self, run: Run, point: Point, skipped: tuple[str, ...] = (), *, calls_left: int | None = None) -> bool:
        """Append all waiting lines except follow-ups as one user message. Return whether there were such lines.

        ``skipped`` has the names of the tools that the lines prevented from starting. ``calls_left`` is the number of
        model calls left, by default the number of iterations left. Raise ``JournalError`` if the message cannot be
        recorded.
        """
        # No await from here to the commit.
        lines = self._inbox.drain()
        if not lines:
            return False
        prompt = self._context.current_prompt(run.iteration)
        remaining = self._context.spec.limits.max_iterations - run.iteration if calls_left is None else calls_left
        arrivals = [Arrival(a.line, self._carry_out(run, a) if prompt.todo_direct else "") for a in lines]
        situation = Situation(run.iteration, point, remaining, skipped, self._context.name, run.task_text)
        composed = compose(prompt, arrivals, situation, run.unanswered)
        if prompt.mistake is not None:
            self._context.current_prompt(run.iteration)  # emits the notice that a rule was too slow
        attached = self._read_attachments(lines)
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
            waited_s=trio.current_time() - lines[0].accepted_monotonic,
        )
        is_after_reply = self._context.conversation.state == "REPLIED"
        entered = self._context.commit(record)
        run.unanswered += arrivals
        run.expectation = expectation_after(
            run.expectation, situation, composed, run.unanswered, source=prompt.source, is_after_reply=is_after_reply
        )
        self._shared.journal.emit_after_acks(entered.emit)
        self._settle_delivered(run, lines, point, attached)
        return True

    def settle_todos(self, run: Run) -> None:
        """Carry out all waiting todo lines, and settle them as ``handled``.

        For use when no model call is left that could answer a message with these lines.
        """
        for accepted in self._inbox.drain_todos():
            self._carry_out(run, accepted)
            self._shared.ledger.settle(accepted, "handled", iteration=run.iteration)

    def return_withdrawn(self, run: Run, reason: Status) -> None:
        """Remove the messages after the last reply without tool calls, and settle their lines as ``returned``.

        Todo lines that were already carried out stay ``delivered``: if they were returned, the user could send them
        again, and they would be carried out twice. Raise ``JournalError`` if the removal cannot be recorded.
        """
        known = self._shared.ledger.lines.on_record
        lines = [known[id] for id in self._context.state.since_answer if id in known]
        lines = [accepted for accepted in lines if not accepted.is_carried_out]
        self._context.withdraw([accepted.on_record for accepted in lines], reason)
        for accepted in lines:
            self._shared.ledger.settle(accepted, "returned", iteration=run.iteration, reason=reason)

    def _read_attachments(self, lines: Sequence[AcceptedLine]) -> Attachments:
        """Read the files that the lines name. Return files and images as blocks, and notes for the lines' receipts."""
        texts = [a.line.message if a.line.names_files else "" for a in lines]
        contents = [LineContent(a.on_record, text, a.line.images) for a, text in zip(lines, texts, strict=True)]
        return read_named_files(
            self._shared.workspace, self._shared.known_files, contents, tuple(self._shared.added_directories)
        )

    def _settle_delivered(self, run: Run, lines: Sequence[AcceptedLine], point: Point, attached: Attachments) -> None:
        for accepted in lines:
            why = attached.notes.get(accepted.on_record, "")
            self._shared.ledger.settle(accepted, "delivered", iteration=run.iteration, point=point, reason=why)

    def _carry_out(self, run: Run, accepted: AcceptedLine) -> str:
        """Carry out the plan command of a todo line, and return a sentence about the outcome for the model.

        For a line of another kind, do nothing and return an empty string.
        """
        if accepted.line.command is None:
            return ""
        try:
            outcome = DONE.format(self._shared.plan.carry_out(accepted.line.command, line_id=accepted.on_record))
        except PlanError as error:
            why = f"{truncate(accepted.line.text.strip(), MAX_SHOWN_COMMAND)}: {error}"
            self._shared.journal.emit_after_acks(partial(self._context.emit_notice, run.iteration, why))
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
    """Return what the next reply has to fulfil after the delivery of lines in ``situation``. Pure.

    ``before`` is the expectation before, ``composed`` the delivered message, and ``unanswered`` all lines that the
    reply has to answer. ``source`` is the name of the handler prompt. ``is_after_reply``: before the delivery, the
    conversation ended with a reply without tool calls. An empty reply is not appended, so it does not count.
    """
    unanswered = [a for a in unanswered if a.line.kind != "job"]
    if not unanswered:  # the user wrote nothing, so the purpose of the work has not changed
        return replace(before, post_prompt="", overrides=Overrides())
    point = situation.point
    is_after_nothing = point == Point.AFTER_REPLY and not is_after_reply
    in_mid_task = point in MID_TASK or is_after_nothing or before.resume is not None
    # If lines are delivered before the first model call, the reply to them also answers the query.
    answers_query = point == Point.BEFORE_FIRST_CALL and bool(situation.query)
    asides_only = not answers_query and all(a.line.is_aside for a in unanswered)
    return ReplyExpectation(
        post_prompt=composed.post_prompt,
        overrides=composed.overrides,
        source=source,
        resume=composed.resume if in_mid_task else None,
        asides_only=asides_only,
        aside_task=asides_only and (before.aside_task if in_mid_task else True),
    )
