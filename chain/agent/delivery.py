"""How lines enter the conversation: all that wait at a safe point become one message of the user.

Taking them and committing the message is one step without an ``await``: between the two a cancellation would lose
lines. What the lines want of the reply to them is left in ``run.asked``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import trio

from chain import events
from chain.agent.run import Asked, Run
from chain.errors import PlanError
from chain.events import Point
from chain.interruption.prompt import Arrival, Composed, InterruptionPrompt, Situation, compose
from chain.lines.inbox import Inbox
from chain.lines.receipts import Accepted, Emit, Ledger, Record
from chain.messages import Message, user_text
from chain.plan import Plan

MAX_SHOWN = 200
"""Characters of a plan command in a notice that it was not carried out."""


class Commit(Protocol):
    """The executor's door into the conversation."""

    def __call__(self, message: Message, *, lines: Sequence[Accepted] = (), point: Point | None = None) -> None:
        """Check, journal and append the message. Raises ``JournalError``."""
        ...


class Delivery:
    """Brings the lines of one agent into its conversation. ``prompt()`` gives the handler prompt as it is now."""

    def __init__(
        self,
        *,
        agent: str,
        inbox: Inbox,
        ledger: Ledger,
        journal: Record,
        emit: Emit,
        plan: Plan,
        prompt: Callable[[], InterruptionPrompt],
        commit: Commit,
        max_iterations: int,
        trace_path: Callable[[], str | None],
    ) -> None:
        self._agent = agent
        self._inbox = inbox
        self._ledger = ledger
        self._journal = journal
        self._emit = emit
        self._plan = plan
        self._prompt = prompt
        self._commit = commit
        self._max_iterations = max_iterations
        self._trace_path = trace_path
        self._since_answer: list[Accepted] = []
        """The lines delivered since the last reply without tool calls, which a refusal gives back; not those that code
        has carried out, since sent again they would be done twice."""

    def query(self, run: Run, query: Accepted) -> None:
        """Append the query of a run."""
        self._commit(user_text(query.line.message), lines=[query], point="start")
        run.stranded.remove(query)
        self._entered(run, [query], "start")

    def deliver(self, run: Run, point: Point, skipped: tuple[str, ...] = ()) -> bool:
        """Put all waiting lines into the conversation as one message. Whether there were any."""
        lines = self._inbox.drain()
        if not lines:
            return False
        run.stranded.extend(lines)
        prompt = self._prompt()
        remaining = self._max_iterations - run.iteration
        arrivals = [Arrival(a.line, self._carry_out(run, a) if prompt.todo_direct else "") for a in lines]
        query = run.query.line.message if run.query else ""
        composed = compose(prompt, arrivals, Situation(run.iteration, point, remaining, skipped, self._agent, query))
        if prompt.mistake is not None:
            self._prompt()  # a rule was too slow just now: that is told at once
        self._commit(user_text(composed.text), lines=lines, point=point)
        run.stranded.clear()
        run.asked = _wanted(run, point, all(a.line.is_aside for a in lines), composed, prompt.source)
        entered = events.UserInterruption(
            agent=self._agent,
            iteration=run.iteration,
            ids=tuple(a.id for a in lines),
            message="\n\n".join(a.line.text for a in lines),
            point=point,
            prompt_source=prompt.source,
            target_agent=self._agent,
            parent_id="root",
            waited_s=trio.current_time() - lines[0].accepted_at,
            remaining=remaining,
            tools_skipped=skipped,
            trace_path=self._trace_path(),
        )
        self._journal.in_order(lambda: self._emit(entered))
        self._entered(run, lines, point)
        return True

    def settle_todos(self, run: Run) -> None:
        """Carry out the todo lines that no model call is left to read."""
        lines = self._inbox.take_todos()
        run.stranded.extend(lines)
        for accepted in lines:
            self._carry_out(run, accepted)
            self._ledger.settle(accepted, "handled", iteration=run.iteration)
            run.stranded.remove(accepted)

    def answered(self) -> None:
        """Take note of a reply without tool calls: no refusal takes back what came before it."""
        self._since_answer.clear()

    def give_back(self, run: Run) -> None:
        """Return the lines that a refusal took out of the conversation again."""
        for accepted in self._since_answer:
            self._ledger.settle(accepted, "returned", iteration=run.iteration, reason="refused")
        self._since_answer.clear()

    def _entered(self, run: Run, lines: Sequence[Accepted], point: Point) -> None:
        self._since_answer += [accepted for accepted in lines if accepted.id not in run.carried_out]
        for accepted in lines:
            self._ledger.settle(accepted, "delivered", iteration=run.iteration, point=point)

    def _carry_out(self, run: Run, accepted: Accepted) -> str:
        """Do what a todo line says. What was done, for the model; empty for all other lines."""
        if accepted.line.command is None:
            return ""
        try:
            outcome = f"(Done: {self._plan.carry_out(accepted.line.command)})"
        except PlanError as error:
            said = accepted.line.text.strip()
            why = f"{said if len(said) <= MAX_SHOWN else said[:MAX_SHOWN] + '…'}: {error}"
            notice = events.Notice(agent=self._agent, iteration=run.iteration, message=why)
            self._journal.in_order(lambda: self._emit(notice))
            outcome = f"(Not done: {error})"
        run.carried_out.add(accepted.id)
        return outcome


def _wanted(run: Run, point: Point, asides_only: bool, composed: Composed, source: str) -> Asked:
    """What a delivery asks of the reply to it, and what that reply goes back to."""
    before = run.asked
    in_mid_task = point in ("C", "D") or before.resume is not None
    if point == "A" and run.query is not None:
        asides_only = False  # the reply answers the query too
    return Asked(
        post_prompt=composed.post_prompt,
        overrides=composed.overrides,
        source=source,
        resume=composed.resume if in_mid_task else None,
        asides_only=asides_only,
        aside_task=asides_only and (before.aside_task if in_mid_task else True),
    )
