"""What a user did in a recorded session, done again: lines, answers, interrupts, changes of the model and the plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, get_args

from chain.chain import Answerer, Chain
from chain.errors import PlanError, UserError
from chain.events import Origin
from chain.journal import records
from chain.journal.records import PlanChange, Record, Unknown
from chain.lines.parse import Urgency, parse_line
from chain.replay.actors import Actors, RecordedModel
from chain.replay.script import Script
from chain.text.wording import MAIN

_ORIGINS: tuple[Origin, ...] = get_args(Origin)
_URGENCIES: tuple[Urgency, ...] = ("urgent", "now")


Attempts: TypeAlias = Callable[[str], int | None]
"""How often a model is asked, by its name; ``None``: as often as the one before."""


class Acts:
    """Does with a chain what is on record."""

    def __init__(self, script: Script, actors: Actors, chain: Chain, attempts: Attempts) -> None:
        self._script = script
        self._actors = actors
        self._chain = chain
        self._attempts = attempts
        self._answerer: Answerer | None = None
        self._asked = 0
        """How many of the questions on record were asked."""

    def do(self, record: Record | Unknown) -> str:
        """Do what a record tells of. Why that is not possible today, as a sentence; empty if it is."""
        match record:
            case records.Line():
                return self._say(record)
            case records.Answer():
                self._answer(record)
            case records.Interrupted(by="time", agent=agent):
                node = self._actors.node(agent)
                if node is not None and node.run is not None:
                    node.run.scope.cancel()  # as its deadline does
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

    def can_be_done(self, n: int) -> bool:
        """Whether what an entry tells of is possible as things stand."""
        is_running = self._chain.is_running
        match self._script.entries[n].record:
            case records.Line(agent=agent, kind=kind, effect=effect):
                is_for_run = effect == "waits" or kind == "stop"
                return is_running == is_for_run and self._actors.node(agent) is not None
            case records.Answer(id=id):
                return self._chain.open_question == id
            case records.RunBegun():
                return not is_running
            case records.Interrupted(agent=agent):
                return is_running and self._actors.node(agent) is not None
            case records.TaskAdded() | records.TaskClosed() | records.PlanReplaced() as change:
                return change.by == "user" or any(each.agent == change.by for each in self._actors.running.values())
            case _:
                return True

    def be_there_for_questions(self) -> None:
        """Let there be somebody who answers, or nobody, as it was at the next question."""
        asked, tape = self._script.presences, self._actors.tape
        while self._asked < len(asked) and tape.is_done(asked[self._asked]):
            self._asked += 1
        if self._chain.open_question is not None or self._asked == len(asked):
            return
        if not self._script.question_at(asked[self._asked]).is_open:
            self._leave()
        elif self._answerer is None:
            self._answerer = self._chain.answering()

    def _say(self, record: records.Line) -> str:
        origin: Origin = next((known for known in _ORIGINS if known == record.origin), "prompt")
        parsed = parse_line(record.text, local=False)
        if record.kind == "verbatim" and parsed.kind != "verbatim":
            said = self._chain.start(record.text, id=record.id, origin=origin)
        else:
            urgency = self._marked(record)
            to = self._address(record, urgency)
            said = self._chain.submit(record.text, urgency=urgency, id=record.id, local=False, origin=origin, to=to)
        if record.id in self._script.heard and (node := self._actors.node(record.agent)) is not None:
            others = {each.on_record for each in node.inbox.waiting()} - {record.id}
            node.inbox.adjustments(others)  # a tool heard it, sooner or later
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
        """The urgency that its sender gave a line by other means than its text; a rule finds it by itself today."""
        by_text = parse_line(record.text, local=False).urgency
        if record.by_rule or record.urgency == by_text:
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
        question = self._script.question(record.id)
        if record.by == "nobody":
            self._leave()
        elif record.decision == "allowed":
            self._chain.answer(record.id, "a" if record.is_for_always else "y")
        elif record.text in question.options:
            self._chain.answer(record.id, str(question.options.index(record.text) + 1))
        else:
            self._chain.answer(record.id, record.text or "n")

    def _leave(self) -> None:
        answerer, self._answerer = self._answerer, None
        if answerer is not None:
            answerer.close()
