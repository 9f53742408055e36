"""The questions of agents to the user: to approve a call, or to choose one of several options.

Questions wait in a queue, and only one is open at a time. Before a question opens, the allowances are checked again:
the answer "always" to an earlier question may allow the call. Each transition is one step without an ``await``::

    asked ──> allowed by the configuration
      └─────> waits ──> open ──> answered by the user
                └─────────┴────> withdrawn, or no one can answer

The tool call that asked continues once the answer is on disk.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import trio

from chain import events
from chain.agent.state import PausableDeadline
from chain.errors import JournalError, ToolError
from chain.events import AnsweredBy, Decision
from chain.journal import records
from chain.journal.journal import Journal, RecordedEvents
from chain.lines.parse import MAX_LINE
from chain.messages import ToolCall
from chain.text.escalations import Escalation, escalation_named
from chain.text.modes import DEFAULT_MODE, READ_ONLY_ANSWER, READ_ONLY_DENIAL, Mode
from chain.text.wording import ASKED_EACH_TIME, NO_USER_CHOOSES, QUESTION_WITHDRAWN
from chain.tools import allowances
from chain.tools.allowances import Allowance, Subjects
from chain.tools.lookalikes import escape_lookalikes
from chain.tools.tool import Asking, Preview, Tool, ToolKind, Verdict, kind_of

_NO_PREVIEW = Preview("", "", "")

KEPT_QUESTIONS, KEPT_CHARS = 20, 5_000_000
"""The limits of the questions stored for front ends: their number, and the characters of all their previews."""

LONGEST_SUBJECT = 80
"""The limit, in characters, of a path, command or host in a question's text. The preview shows it in full."""

_YES, _ALWAYS, _NO = ("y", "yes"), ("a", "always"), ("n", "no")
_CONSENT = (*_YES, *_ALWAYS)


@dataclass(frozen=True, slots=True)
class Asker(Asking):
    """The interface by which a tool call asks the user.

    ``clocks`` are the deadlines of the call and of all runs above it. They are paused from the question until its
    answer is on disk. If ``may_ask`` returns false (after a stop or an urgent line), a question is withdrawn instead of
    opened. ``kind`` is the kind of the tool.
    """

    questions: Questions
    agent: str
    call: ToolCall
    clocks: tuple[PausableDeadline, ...]
    may_ask: Callable[[], bool]
    kind: ToolKind = "other"

    async def approve(self, preview: Preview) -> Verdict:
        """Ask the user to approve the call, and return the verdict.

        Raise ``JournalError`` if the question or the answer cannot be recorded.
        """
        name = self.call.name
        subject, each_time = _one_row(preview.subject), ASKED_EACH_TIME if preview.only_by_name else ""
        text = f"Allow {name}{f': {subject}' if subject else '?'}{each_time}"
        question = records.Question(
            "",
            "approval",
            text,
            self.agent,
            self.call.id,
            name,
            preview=preview.text,
            protections=preview.protections,
            only_by_name=preview.only_by_name,
            always=preview.always,
            diff=preview.diff,
            subject=subject,
            escalations=preview.escalations,
        )
        answer = await self.questions.ask(PendingQuestion(self, question, preview))
        if answer.decision == "allowed":
            return Verdict(
                True,
                by_configuration=answer.by == "config" and not answer.is_for_always,
                is_once=answer.by == "user" and not answer.is_for_always,
                escalation=answer.escalation,
            )
        if answer.decision == "withdrawn":
            return Verdict(False, QUESTION_WITHDRAWN, withdrawn=True)
        if answer.by == "config":
            return Verdict(False, READ_ONLY_DENIAL)
        if answer.by == "nobody":
            flag = allowances.narrowest_allowance(name, preview, self.questions.subjects)
            hint = f"; allow it with --allow {flag}" if flag else ""
            if flag == name and preview.always == "subject":
                hint = f"; no pattern can name this call, and plain {name} would allow every call"
            return Verdict(False, f"{name} needs approval, and no one is available to approve it{hint}.")
        return Verdict(False, f"The user refused this: {answer.text}" if answer.text else "The user refused this.")

    async def choose(self, question: str, options: Sequence[str]) -> str:
        """Ask the user to choose an option. Return the option, or the text that the user wrote instead of choosing.

        Raise ``ToolError`` if the question is withdrawn or no one can answer it. Raise ``JournalError`` if the question
        or the answer cannot be recorded.
        """
        record = records.Question("", "choice", question, self.agent, self.call.id, self.call.name, tuple(options))
        answer = await self.questions.ask(PendingQuestion(self, record))
        if answer.decision == "answered":
            return answer.text
        raise ToolError(QUESTION_WITHDRAWN if answer.decision == "withdrawn" else NO_USER_CHOOSES)


@dataclass(eq=False, slots=True)
class PendingQuestion:
    """A question that waits for an answer.

    ``done`` is set once the question is answered, withdrawn or closed with an error (``failure``). A question without
    ``answer`` and ``failure`` was then withdrawn. The ``question`` record has an empty id until it is written.
    ``is_emitted``: the event of the question was emitted, so the event of its end must follow.
    """

    asker: Asker
    question: records.Question
    preview: Preview = _NO_PREVIEW
    answer: records.Answer | None = None
    failure: JournalError | None = None
    is_emitted: bool = False
    done: trio.Event = field(default_factory=trio.Event)

    @property
    def withdrawal(self) -> records.Answer:
        """The record that says that the question was withdrawn."""
        return records.Answer(self.question.id, "", "withdrawn", "user", self.question.agent)


class QuestionLog:
    """The questions in the journal.

    ``count`` is the highest number in a question's id. ``open`` has the records of unanswered questions by id.
    ``latest`` has the events of the latest questions, oldest first.
    """

    def __init__(self) -> None:
        self.count = 0
        self.open: dict[str, records.Question] = {}
        self.latest: deque[events.Question] = deque(maxlen=KEPT_QUESTIONS)

    def add(self, record: records.Question, event: events.Question) -> None:
        """Add a recorded question with its event. Remove the oldest events if the stored events exceed the limits."""
        self.count = max(self.count, number_in(record.id.removeprefix("Q")))
        self.open[record.id] = record
        self.latest.append(event)
        while len(self.latest) > 1 and sum(len(each.preview) for each in self.latest) > KEPT_CHARS:
            self.latest.popleft()


Answerer: TypeAlias = ExitStack[None]
"""A promise to answer questions, valid until it is closed. A question that no promise covers is refused at once."""


class Questions:
    """The owner of a session's questions, and of the allowances that let calls run without a question."""

    def __init__(
        self,
        journal: Journal,
        log: QuestionLog,
        allowed: Iterable[Allowance],
        subjects: Subjects,
        mode: Callable[[], Mode] = lambda: DEFAULT_MODE,
    ) -> None:
        self.log = log
        self.mode = mode
        """A function that returns the current mode of the session."""
        self._journal = journal
        self._allowed = tuple(allowed)
        self._always: list[Allowance] = []
        """The allowances that the user has given by the answer "always"."""
        self.subjects = subjects
        self._answerers = Counter[str]()
        """The number of promises for each agent, by its name in lower case. The empty name stands for all agents."""
        self._waiting: deque[PendingQuestion] = deque()
        self.open: PendingQuestion | None = None
        """The open question, which the user can answer, or ``None``."""
        self._unsynced: list[PendingQuestion] = []
        """The questions whose answers are not synced yet. The events of these answers are emitted after the sync."""
        journal.on_failure(self._fail_all)

    @property
    def open_id(self) -> str | None:
        """The id of the open question, or ``None``."""
        return None if self.open is None else self.open.question.id

    @property
    def asker(self) -> str | None:
        """The name of the agent that asked the open question, or ``None`` if no question is open."""
        return None if self.open is None else self.open.question.agent

    def allows(self, tool: str) -> bool:
        """Return whether allowances let all calls of a tool run without a question."""
        return _is_covered((*self._allowed, *self._always), tool, _NO_PREVIEW)

    def denies(self, tool: Tool) -> bool:
        """Return whether the mode denies all calls of a tool."""
        return allowances.mode_denies(self.mode(), kind_of(tool))

    async def ask(self, pending: PendingQuestion) -> records.Answer:
        """Queue a question, wait until its answer is on disk and emitted, and return the answer.

        If the question is withdrawn, return its withdrawal. If the caller is cancelled, withdraw the question. Raise
        ``JournalError`` if the question or answer cannot be recorded.
        """
        self._waiting.append(pending)
        for clock in pending.asker.clocks:
            clock.pause()
        try:
            self._open_next()
            await pending.done.wait()
            if pending.failure is not None:
                raise pending.failure
            if pending.answer is None:
                return pending.withdrawal
            await self._journal.flush()
            return pending.answer
        finally:
            if not pending.done.is_set():
                self._withdraw(pending)
                self._open_next()
            for clock in pending.asker.clocks:
                clock.resume()

    def answering(self, agent: str = "") -> Answerer:
        """Return a new promise to answer the questions of one ``agent``, or of all agents if the name is empty."""
        answerer, folded = Answerer(), agent.casefold()
        self._answerers[folded] += 1
        answerer.callback(self._stop_answering, folded)
        return answerer

    def _stop_answering(self, agent: str) -> None:
        self._answerers[agent] -= 1
        self._open_next()  # decides the questions that no one can answer now

    def answer(self, id: str, text: str) -> str:
        """Answer the open question, whose id must be ``id``, with the user's ``text``.

        Return an empty string, or the reason why the answer was not accepted.
        """
        pending = self.open
        if pending is None or pending.question.id != id:
            number = id.removeprefix("Q")
            was_asked = number.isascii() and number.isdecimal() and 1 <= int(number[:9]) <= self.log.count
            return f"{id:.20} is no longer open" if was_asked else f"there is no question {id:.20}"
        text = text.encode(errors="replace").decode().strip()
        if not text:
            return f"{id} waits for {'y, a, n or a reason' if pending.question.kind == 'approval' else 'an answer'}"
        if len(text) > MAX_LINE:
            return f"the answer is too long; the limit is {MAX_LINE:,} characters"
        if pending.question.kind == "approval":
            escalation = escalation_named(text)
            if escalation is not None and escalation not in pending.question.escalations:
                return f"{text} does not apply to {id}: no sandbox restricts that here"
            if (escalation is not None or text.casefold() in _CONSENT) and self._is_denied(pending):
                return READ_ONLY_ANSWER
        try:
            self._decide(pending, text)
        except JournalError as error:
            return str(error)
        self._open_next()
        return ""

    def withdraw(self, agents: Collection[str] | None = None) -> None:
        """Withdraw the open and waiting questions of these agents, or of all agents if ``agents`` is ``None``.

        Then open the next question.
        """
        for pending in self._unsettled():
            if not pending.done.is_set() and (agents is None or pending.question.agent in agents):
                self._withdraw(pending)
        self._open_next()

    def _decide(self, pending: PendingQuestion, text: str) -> None:
        """Settle a question as the user's answer ``text`` says. Store an allowance if the answer is "always".

        Raise ``JournalError`` if the answer cannot be recorded.
        """
        if pending.question.kind == "choice":
            options = pending.question.options
            number = int(text) if text.isascii() and text.isdecimal() and len(text) < 3 else 0
            folded = {option.casefold(): option for option in options}
            if 1 <= number <= len(options):
                text = options[number - 1]
            self._settle(pending, "answered", "user", folded.get(text.casefold(), text))
        elif (escalation := escalation_named(text)) is not None:
            self._settle(pending, "allowed", "user", escalation=escalation)
        elif text.casefold() in _CONSENT:
            is_for_always = text.casefold() in _ALWAYS and not pending.preview.only_by_name
            self._settle(pending, "allowed", "user", is_for_always=is_for_always)
            if is_for_always:
                self._always.append(allowances.rule_for_always(pending.question.name, pending.preview))
        else:
            self._settle(pending, "refused", "user", "" if text.casefold() in _NO else text)

    def _open_next(self) -> None:
        """Settle the questions that the configuration decides or no one can answer, then open the next question."""
        if self.open is not None and not self._has_answerer(self.open):
            self._settle_without_user(self.open, "refused", "nobody")
        for pending in tuple(self._waiting):
            decision = self._configured_decision(pending)
            if decision is not None and pending in self._waiting:  # a listener may have settled it meanwhile
                self._waiting.remove(pending)
                self._settle_without_user(pending, decision[0], "config", is_for_always=decision[1])
        while self.open is None and self._waiting:
            pending = self._waiting.popleft()
            if not pending.asker.may_ask():
                self._release(pending)
            elif not self._has_answerer(pending):
                self._settle_without_user(pending, "refused", "nobody")
            else:
                self._open_one(pending)

    def _configured_decision(self, pending: PendingQuestion) -> tuple[Decision, bool] | None:
        """Return the decision of the mode or of an allowance, or ``None`` if the user has to decide.

        The second item is true if the deciding allowance comes from an earlier answer "always".
        """
        name, preview = pending.question.name, pending.preview
        if pending.question.kind != "approval":
            return None
        if self._is_denied(pending):
            return "refused", False
        if _is_covered(self._allowed, name, preview):
            return "allowed", False
        if _is_covered(self._always, name, preview):
            return "allowed", True
        return ("allowed", False) if allowances.mode_allows(self.mode(), pending.asker.kind, preview) else None

    def _unsettled(self) -> list[PendingQuestion]:
        """Return the open question, if any, followed by the waiting questions."""
        return [*([self.open] if self.open is not None else []), *self._waiting]

    def _is_denied(self, pending: PendingQuestion) -> bool:
        return allowances.mode_denies(self.mode(), pending.asker.kind)

    def _has_answerer(self, pending: PendingQuestion) -> bool:
        return any(self._answerers[name] > 0 for name in ("", pending.question.agent.casefold()))

    def _open_one(self, pending: PendingQuestion) -> None:
        """Record a question and open it for the user. If the record fails, close the question with the error."""
        try:
            recorded = self._record_question(pending)
        except JournalError as error:
            self._fail(pending, error)
            return
        self.open = pending

        def emit() -> None:
            if pending.failure is None:
                pending.is_emitted = True
                recorded.emit()

        self._journal.emit_after_acks(emit)

    def _settle_without_user(
        self, pending: PendingQuestion, decision: Decision, by: AnsweredBy, *, is_for_always: bool = False
    ) -> None:
        """Settle a question without the user. If the answer cannot be recorded, close the question with the error."""
        try:
            self._settle(pending, decision, by, is_for_always=is_for_always)
        except JournalError as error:
            self._fail(pending, error)

    def _fail(self, pending: PendingQuestion, error: JournalError) -> None:
        """Close a question with an error. The waiting ``ask`` raises the error, which ends the asking agent's run."""
        pending.failure = error
        self._release(pending)
        if pending.question.id:
            withdrawn = self._journal.apply_unrecorded(pending.withdrawal)
            if pending.is_emitted:
                self._journal.emit_after_acks(withdrawn.emit)

    def _fail_all(self, error: JournalError) -> None:
        """Close all questions with an error, because the journal has failed and can record no answers."""
        waiting = [*self._unsettled(), *self._unsynced]
        self._waiting.clear()
        self._unsynced.clear()
        for pending in waiting:
            self._fail(pending, error)

    def _release(self, pending: PendingQuestion) -> None:
        """Wake the task that waits for the answer. If the question is open, close it."""
        pending.done.set()
        if pending is self.open:
            self.open = None

    def _record_question(self, pending: PendingQuestion) -> RecordedEvents:
        """Record a question with a new id. If that fails, raise ``JournalError`` and leave the question's id empty."""
        question = replace(pending.question, id=f"Q{self.log.count + 1}")
        recorded = self._journal.record(question)
        pending.question = question
        return recorded

    def _settle(
        self,
        pending: PendingQuestion,
        decision: Decision,
        by: AnsweredBy,
        text: str = "",
        *,
        is_for_always: bool = False,
        escalation: Escalation | None = None,
    ) -> None:
        """Record an answer, close the question, and emit the answer once it is on disk.

        If the answer cannot be recorded, raise ``JournalError``. The question then stays unanswered.
        """
        question = None if pending.question.id else self._record_question(pending)
        asked = pending.question
        record = records.Answer(asked.id, text, decision, by, asked.agent, is_for_always, escalation)
        answer = self._journal.record(record)
        pending.answer = record
        self._release(pending)
        self._unsynced.append(pending)

        def emit() -> None:
            self._unsynced.remove(pending)
            if question is not None:
                question.emit()
            answer.emit()

        self._journal.acknowledge(emit)

    def _withdraw(self, pending: PendingQuestion) -> None:
        """Withdraw a question, and emit its withdrawal if the question was open.

        On a full disk the withdrawal takes effect although it cannot be recorded.
        """
        was_open = pending is self.open
        if not was_open:
            self._waiting.remove(pending)
        # Released before the event is emitted, because a listener may stop the run, which withdraws the open question.
        self._release(pending)
        if was_open:
            self._journal.emit_after_acks(self._journal.record_if_possible(pending.withdrawal).emit)


def _is_covered(allowed: Iterable[Allowance], tool: str, preview: Preview) -> bool:
    return any(allowance.covers(tool, preview.subject, preview.only_by_name) for allowance in allowed)


def _one_row(subject: str) -> str:
    """Return the first row of a path, command or host for a question's text, with lookalike characters escaped.

    The row has at most ``LONGEST_SUBJECT`` characters. An ellipsis stands for everything that is left out.
    """
    first, *others = escape_lookalikes(subject).strip().splitlines() or [""]
    is_cut = others or len(first) > LONGEST_SUBJECT
    return f"{first[:LONGEST_SUBJECT]}{'…' if is_cut else ''}"


def number_in(text: str) -> int:
    """Return the number that ``text`` consists of. Return 0 for more than 19 digits and for any other text."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else 0
