"""What agents ask the user: whether a call may run, or which of these. One mechanism for all of them.

Questions queue, and one is open at a time. It is looked up in the allowances when it is asked and again before it
opens, since "always" may have been the answer to one before it. It is open until the first answer, until it is
withdrawn, or until nobody is left who could answer. Each of these is one step without an ``await``, so an answer that
races with a stop is either the answer or comes too late::

    asked ──> allowed by the configuration
      └─────> waits ──> open ──> answered by the user
                └─────────┴────> withdrawn, or nobody is there

The asker goes on once the answer is on disk.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TypeAlias

import trio

from chain import events
from chain.agent.state import Clock
from chain.errors import JournalError, ToolError
from chain.events import AnsweredBy, Decision, QuestionKind
from chain.journal import records
from chain.journal.journal import Journal, Projected
from chain.lines.parse import MAX_LINE
from chain.messages import ToolCall
from chain.text.wording import ASKED_EACH_TIME, NOBODY_CHOOSES, QUESTION_WITHDRAWN
from chain.tools import allowances
from chain.tools.allowances import Allowance, Subjects
from chain.tools.lookalikes import spelled_out
from chain.tools.tool import Asking, Preview, Verdict

_NO_PREVIEW = Preview("", "", "")

KEPT, KEPT_CHARS = 20, 5_000_000
"""Questions that can be looked at again, and the characters of their previews: a diff may be large."""

LONGEST_SUBJECT = 80
"""Characters of a path, a command or a host in the text of a question: the preview has all of it."""

_YES, _ALWAYS, _NO = ("y", "yes"), ("a", "always"), ("n", "no")


@dataclass(frozen=True, slots=True)
class Asker(Asking):
    """How a call of an agent asks; the ``clocks`` stand still meanwhile: the call's, the run's, all above them.

    ``may_ask`` is asked before a question opens: after a stop or an urgent line nothing is to be asked any more.
    """

    questions: Questions
    agent: str
    call: ToolCall
    clocks: tuple[Clock, ...]
    may_ask: Callable[[], bool]

    async def approve(self, preview: Preview) -> Verdict:
        """Ask whether the call may do this. Raises ``JournalError``."""
        name = self.call.name
        subject, each_time = _shown(preview.subject), ASKED_EACH_TIME if preview.only_by_name else ""
        text = f"Allow {name}{f': {subject}' if subject else '?'}{each_time}"
        asked = PendingQuestion(self, "approval", text, preview=preview, subject=subject)
        await self.questions.ask(asked)
        if asked.decision == "allowed":
            return Verdict(True)
        if asked.decision == "withdrawn":
            return Verdict(False, QUESTION_WITHDRAWN, withdrawn=True)
        if asked.by == "nobody":
            flag = allowances.that_permits(name, preview, self.questions.subjects)
            hint = f"; allow it with --allow {flag}" if flag else ""
            if flag == name and preview.always == "subject":
                hint = f"; no pattern can name it, and plain {name} would allow every call"
            return Verdict(False, f"{name} needs approval, and nobody can be asked here{hint}.")
        return Verdict(False, f"The user refused this: {asked.answer}" if asked.answer else "The user refused this.")

    async def choose(self, question: str, options: Sequence[str]) -> str:
        """Ask which of the options, or what else. Raises ``ToolError`` if there is no answer, and ``JournalError``."""
        asked = PendingQuestion(self, "choice", question, tuple(options))
        await self.questions.ask(asked)
        if asked.decision == "answered":
            return asked.answer
        raise ToolError(QUESTION_WITHDRAWN if asked.decision == "withdrawn" else NOBODY_CHOOSES)


@dataclass(eq=False, slots=True)
class PendingQuestion:
    """A question and what became of it. That counts when ``done`` is set: by an answer, or when the disk failed."""

    asker: Asker
    kind: QuestionKind
    text: str
    options: tuple[str, ...] = ()
    preview: Preview = _NO_PREVIEW
    subject: str = ""
    id: str = ""
    answer: str = ""
    decision: Decision = "withdrawn"
    by: AnsweredBy = "user"
    failure: JournalError | None = None
    is_told: bool = False
    """Whether its event was emitted, so that one must tell what became of it."""
    done: trio.Event = field(default_factory=trio.Event)

    @property
    def withdrawal(self) -> records.Answer:
        """What is recorded where it is asked no more."""
        return records.Answer(self.id, "", "withdrawn", "user", self.asker.agent)


class Asked:
    """The questions on record: how many, those without an answer, and the latest, the last one last."""

    def __init__(self) -> None:
        self.count = 0
        self.open: dict[str, records.Question] = {}
        self.latest: deque[events.Question] = deque(maxlen=KEPT)

    def add(self, record: records.Question, event: events.Question) -> None:
        """Add a question, and forget the earliest that are too much to keep."""
        self.count = max(self.count, whole_number(record.id.removeprefix("Q")))
        self.open[record.id] = record
        self.latest.append(event)
        while len(self.latest) > 1 and sum(len(each.preview) for each in self.latest) > KEPT_CHARS:
            self.latest.popleft()

    def settle(self, id: str) -> records.Question | None:
        """Note the answer to a question, and return the question; ``None`` if its record is lost."""
        return self.open.pop(id, None)


Answerer: TypeAlias = ExitStack[None]
"""Somebody who can answer, until it is closed. As long as there is one, a question waits for its answer."""


class Questions:
    """The questions of a session, and what need not be asked."""

    def __init__(
        self, journal: Journal, asked: Asked, allowed: Iterable[Allowance] = (), subjects: Subjects | None = None
    ) -> None:
        self.asked = asked
        self._journal = journal
        self._allowed = tuple(allowed)
        self._always: list[Allowance] = []
        """What the user has allowed since by the answer "always"."""
        self.subjects = subjects or {}
        self._answerers = Counter[str]()
        """How many can answer, by the agent whose questions they answer alone; empty for those who answer all."""
        self._waiting: deque[PendingQuestion] = deque()
        self.open: PendingQuestion | None = None
        self._untold: list[PendingQuestion] = []
        """Those whose answers are not known to be on the disk, so that nobody was told of them."""
        journal.when_failed(self._fail_all)

    def allows(self, tool: str, preview: Preview = _NO_PREVIEW) -> bool:
        """Whether a call needs no asking."""
        return any(_covers(allowed, tool, preview) for allowed in (self._allowed, self._always))

    # ------------------------------------------------------------------------------------------------ for agents

    async def ask(self, asked: PendingQuestion) -> None:
        """Ask, and wait until the answer is on disk and told. Raises ``JournalError``."""
        self._waiting.append(asked)
        for clock in asked.asker.clocks:
            clock.hold()
        try:
            self._open_next()
            await asked.done.wait()
            if asked.failure is not None:
                raise asked.failure
            if asked.decision != "withdrawn":
                await self._journal.flush()
        finally:
            if not asked.done.is_set():
                self._withdraw(asked)
                self._open_next()
            for clock in asked.asker.clocks:
                clock.release()

    # -------------------------------------------------------------------------------------------- for front ends

    def answering(self, agent: str = "") -> Answerer:
        """Somebody who can answer from now on, with ``agent`` the questions of this one alone."""
        answerer, whose = Answerer(), agent.casefold()
        self._answerers[whose] += 1
        answerer.callback(self._stop_answering, whose)
        return answerer

    def _stop_answering(self, whose: str) -> None:
        self._answerers[whose] -= 1
        self._open_next()  # what nobody is left to answer is decided at once

    def answer(self, id: str, text: str) -> str:
        """Answer the open question. Why that was not possible; empty if it was."""
        asked = self.open
        if asked is None or asked.id != id:
            number = id.removeprefix("Q")
            was = number.isascii() and number.isdecimal() and 1 <= int(number[:9]) <= self.asked.count
            return f"{id:.20} is no longer open" if was else f"there is no question {id:.20}"
        text = text.encode(errors="replace").decode().strip()
        if not text:
            return f"{id} waits for y, a, n or a reason" if asked.kind == "approval" else f"{id} waits for an answer"
        if len(text) > MAX_LINE:
            return f"an answer has at most {MAX_LINE:,} characters"
        try:
            self._decide(asked, text)
        except JournalError as error:
            return str(error)
        self._open_next()
        return ""

    def withdraw(self, agents: Collection[str] | None = None) -> None:
        """Withdraw what these agents ask, or else all: the user stops, or writes something else instead."""
        for asked in (self.open, *self._waiting):
            if asked is not None and not asked.done.is_set() and (agents is None or asked.asker.agent in agents):
                self._withdraw(asked)
        self._open_next()

    # --------------------------------------------------------------------------------------------------- inside

    def _decide(self, asked: PendingQuestion, text: str) -> None:
        """Settle a question by what the user wrote. Raises ``JournalError``."""
        if asked.kind == "choice":
            number = int(text) if text.isascii() and text.isdecimal() and len(text) < 3 else 0
            folded = {option.casefold(): option for option in asked.options}
            if 1 <= number <= len(asked.options):
                text = asked.options[number - 1]
            self._settle(asked, "answered", "user", folded.get(text.casefold(), text))
        elif text.casefold() in (*_YES, *_ALWAYS):
            is_for_always = text.casefold() in _ALWAYS and not asked.preview.only_by_name
            self._settle(asked, "allowed", "user", is_for_always=is_for_always)
            if is_for_always:
                self._always.append(allowances.for_always(asked.asker.call.name, asked.preview))
        else:
            self._settle(asked, "refused", "user", "" if text.casefold() in _NO else text)

    def _open_next(self) -> None:
        """Settle what needs nobody, or nobody can answer, and open the next question that is left."""
        if self.open is not None and not self._has_answerer(self.open):
            self._settle_without_user(self.open, "refused", "nobody")
        # What is allowed waits for nobody's answer, be it allowed by the answer to another question.
        for asked in tuple(self._waiting):
            is_left = asked in self._waiting  # who hears of one may have answered another
            if is_left and asked.kind == "approval" and self.allows(asked.asker.call.name, asked.preview):
                self._waiting.remove(asked)
                by_answer = not _covers(self._allowed, asked.asker.call.name, asked.preview)
                self._settle_without_user(asked, "allowed", "config", is_for_always=by_answer)
        while self.open is None and self._waiting:
            asked = self._waiting.popleft()
            if not asked.asker.may_ask():
                self._let_go(asked)
            elif not self._has_answerer(asked):
                self._settle_without_user(asked, "refused", "nobody")
            else:
                self._open_one(asked)

    def _has_answerer(self, asked: PendingQuestion) -> bool:
        return any(self._answerers[whose] > 0 for whose in ("", asked.asker.agent.casefold()))

    def _open_one(self, asked: PendingQuestion) -> None:
        try:
            projected = self._record_question(asked)
        except JournalError as error:
            self._fail(asked, error)
            return
        self.open = asked

        def emit() -> None:
            if asked.failure is None:
                asked.is_told = True
                projected.emit()

        self._journal.in_order(emit)

    def _settle_without_user(
        self, asked: PendingQuestion, decision: Decision, by: AnsweredBy, *, is_for_always: bool = False
    ) -> None:
        try:
            self._settle(asked, decision, by, is_for_always=is_for_always)
        except JournalError as error:
            self._fail(asked, error)

    def _fail(self, asked: PendingQuestion, error: JournalError) -> None:
        """Let the asker raise the error, which ends its run."""
        asked.failure = error
        self._let_go(asked)
        if asked.id:
            withdrawn = self._journal.apply_unrecorded(asked.withdrawal)
            if asked.is_told:
                self._journal.in_order(withdrawn.emit)

    def _fail_all(self, error: JournalError) -> None:
        """No answer can be kept any more, so nobody waits for one."""
        waiting = [*([self.open] if self.open is not None else []), *self._waiting, *self._untold]
        self._waiting.clear()
        self._untold.clear()
        for asked in waiting:
            self._fail(asked, error)

    def _let_go(self, asked: PendingQuestion) -> None:
        asked.done.set()
        if asked is self.open:
            self.open = None

    def _record_question(self, asked: PendingQuestion) -> Projected:
        id, call, preview = f"Q{self.asked.count + 1}", asked.asker.call, asked.preview
        record = records.Question(
            id,
            asked.kind,
            asked.text,
            asked.asker.agent,
            call.id,
            call.name,
            asked.options,
            preview.text,
            preview.protections,
            preview.only_by_name,
            preview.always,
            preview.diff,
            asked.subject,
        )
        projected = self._journal.record(record)
        asked.id = id
        return projected

    def _settle(
        self, asked: PendingQuestion, decision: Decision, by: AnsweredBy, text: str = "", *, is_for_always: bool = False
    ) -> None:
        """Record an answer, and emit it once it is on disk. Raises ``JournalError``; the question is then as before."""
        question = None if asked.id else self._record_question(asked)
        answer = self._journal.record(records.Answer(asked.id, text, decision, by, asked.asker.agent, is_for_always))
        asked.decision, asked.by, asked.answer = decision, by, text
        self._let_go(asked)
        self._untold.append(asked)

        def emit() -> None:
            self._untold.remove(asked)
            if question is not None:
                question.emit()
            answer.emit()

        self._journal.acknowledge(emit)

    def _withdraw(self, asked: PendingQuestion) -> None:
        """Ask no more. A full disk must not keep anybody from stopping, and what never opened is not mentioned."""
        was_open = asked is self.open
        if not was_open:
            self._waiting.remove(asked)
        # First of all: a listener may stop the run on hearing of it, which withdraws what is open.
        self._let_go(asked)
        if was_open:
            self._journal.in_order(self._journal.record_if_possible(asked.withdrawal).emit)


def _covers(allowed: Iterable[Allowance], tool: str, preview: Preview) -> bool:
    return any(allowance.covers(tool, preview.subject, preview.only_by_name) for allowance in allowed)


def _shown(subject: str) -> str:
    first, *more = spelled_out(subject).strip().splitlines() or [""]
    is_cut = more or len(first) > LONGEST_SUBJECT
    return f"{first[:LONGEST_SUBJECT]}{'…' if is_cut else ''}"


def whole_number(text: str) -> int:
    """Return the whole number that a text is; 0 for another text, or one that nobody has counted to."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else 0
