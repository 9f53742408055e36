"""What a user did in a recorded session, done again: lines, answers, interrupts, changes of the model and the plan."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias, get_args

from chain import records
from chain.errors import PlanError, UserError
from chain.events import Origin
from chain.lines.parse import Urgency, parse_line
from chain.lines.receipts import Accepted
from chain.model import Model
from chain.plan import Plan
from chain.records import PlanChange, Record, Unknown
from chain.session.feed import Listener
from chain.session.intake import Submitted
from chain.session.replay.actors import Actors, RecordedModel, Running
from chain.session.replay.script import Script
from chain.wording import MAIN

_ORIGINS: tuple[Origin, ...] = get_args(Origin)
_URGENCIES: tuple[Urgency, ...] = ("urgent", "now")


Attempts: TypeAlias = Callable[[str], int | None]
"""How often a model is asked, by its name; ``None``: as often as the one before."""


class Replayable(Protocol):
    """A chain, as far as it is run again."""

    @property
    def is_running(self) -> bool: ...  # noqa: D102 - as ``Chain`` says, here and below

    @property
    def plan(self) -> Plan: ...  # noqa: D102

    @property
    def open_question(self) -> str | None: ...  # noqa: D102

    @property
    def waiting(self) -> tuple[Accepted, ...]: ...  # noqa: D102

    def submit(  # noqa: D102
        self, text: str, *, urgency: Urgency, id: str, local: bool, origin: Origin, to: str
    ) -> Submitted: ...

    def start(self, query: str, *, id: str, origin: Origin) -> Submitted: ...  # noqa: D102

    def run_waiting(self) -> bool: ...  # noqa: D102

    def interrupt(self) -> bool: ...  # noqa: D102

    def answer(self, id: str, text: str) -> Submitted: ...  # noqa: D102

    def answering(self) -> AbstractContextManager[Any]: ...  # noqa: D102

    def drop(self, id: str, reason: str) -> str: ...  # noqa: D102

    def target(self, text: str, *, to: str) -> str: ...  # noqa: D102

    def needs_no_room(self, text: str, *, urgency: Urgency, local: bool, to: str) -> str | None: ...  # noqa: D102

    def use_model(self, model: Model, *, max_attempts: int | None) -> None: ...  # noqa: D102

    def listen(self, listener: Listener) -> None: ...  # noqa: D102


class Acts:
    """Does with a chain what is on record."""

    def __init__(self, script: Script, actors: Actors, chain: Replayable, attempts: Attempts) -> None:
        self._script = script
        self._actors = actors
        self._chain = chain
        self._attempts = attempts
        self._heard: set[str] = set()
        """The guidance that tools have heard of."""
        self._answerer: AbstractContextManager[Any] | None = None

    def do(self, record: Record | Unknown) -> str:
        """Do what a record tells of. Why that is not possible today, as a sentence; empty if it is."""
        match record:
            case records.Line():
                return self._say(record)
            case records.Answer():
                self._answer(record)
            case records.Interrupted():
                self._chain.interrupt()
            case records.Receipt(id=id, reason=reason):
                try:
                    self._chain.drop(id, reason)
                except UserError as error:
                    return f"It cannot be dropped: {error}."
            case records.Model(name=name):
                self._chain.use_model(RecordedModel(name), max_attempts=self._attempts(name))
            case records.TaskAdded() | records.TaskClosed() | records.PlanReplaced():
                return self._change_plan(record)
            case _:
                self._chain.run_waiting()
        return ""

    def be_there_for_questions(self, n: int) -> None:
        """Let there be somebody who answers, or nobody, as it was at the first question from an entry on."""
        if self._chain.open_question is not None:
            return
        found = self._script.next_question(n)
        if found is None:
            return
        answer, was_at_once = found
        if answer is not None and answer.by == "nobody" and was_at_once:
            self._leave()
        elif self._answerer is None:
            self._answerer = self._chain.answering()
            self._answerer.__enter__()

    def give_guidance(self, running: Running) -> None:
        """Let a tool hear of guidance that it acted on."""
        waiting = {a.id for a in self._chain.waiting if a.agent == running.context.agent}
        if new := (waiting & self._script.heard) - self._heard:
            self._heard |= new
            running.context.steering.new_guidance()

    def _say(self, record: records.Line) -> str:
        origin: Origin = next((known for known in _ORIGINS if known == record.origin), "prompt")
        parsed = parse_line(record.text, local=False)
        if record.kind == "verbatim" and parsed.kind != "verbatim":
            said = self._chain.start(record.text, id=record.id, origin=origin)
        else:
            urgency = self._marked(record)
            to = self._address(record, urgency)
            said = self._chain.submit(record.text, urgency=urgency, id=record.id, local=False, origin=origin, to=to)
        for running in self._actors.running.values():
            self.give_guidance(running)
        return f"The line is not accepted: {said.message}." if said.what in ("refused", "nothing") else ""

    def _change_plan(self, change: PlanChange) -> str:
        plan = self._chain.plan
        try:
            match change:
                case records.TaskAdded(text, by):
                    plan.add(text, by)
                case records.TaskClosed(number, state, reason, by):
                    plan.close(number, state, by, reason)
                case records.PlanReplaced(texts, by):
                    plan.replace_all(texts, by)
                case records.PlanRestored():
                    pass  # only at the opening
        except PlanError as error:
            return f"The plan cannot be changed so: {error}."
        return ""

    def _marked(self, record: records.Line) -> Urgency:
        """The urgency that a key or its JSON gave a line, where neither its text nor a rule did.

        Of a rule nothing is on record. But at a terminal the mark of a key is in the text, and without a handler prompt
        there was no rule.
        """
        by_text = parse_line(record.text, local=False).urgency
        by_rule = self._script.source_of(record.id).startswith("yaml:") and record.origin == "prompt"
        if by_rule or record.urgency == by_text:
            return "next"
        return next((urgency for urgency in _URGENCIES if urgency == record.urgency), "next")

    def _address(self, record: records.Line, urgency: Urgency) -> str:
        """To whom a line was sent; empty where it goes there by itself."""
        chain, text = self._chain, record.text
        if record.kind == "stop" and chain.is_running:
            # Without an address it is for all, and on record as one for the main agent.
            if record.agent != MAIN:
                return record.agent
            return "" if chain.needs_no_room(text, urgency=urgency, local=False, to="") == "stop" else MAIN
        return "" if chain.target(text, to="") == record.agent else record.agent

    def _answer(self, record: records.Answer) -> None:
        question = self._script.question_of(record)
        if record.by == "nobody" or question is None:
            self._leave()
        elif record.decision == "allowed":
            self._chain.answer(record.id, "a" if self._script.was_always(question) else "y")
        elif record.text in question.options:
            self._chain.answer(record.id, str(question.options.index(record.text) + 1))
        else:
            self._chain.answer(record.id, record.text or "n")

    def _leave(self) -> None:
        answerer, self._answerer = self._answerer, None
        if answerer is not None:
            answerer.__exit__(None, None, None)
