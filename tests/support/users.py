"""A user who acts at given moments: sends lines, presses keys, answers questions. The disk changes at moments too."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import trio

from chain import events
from chain.errors import JournalError, UserError
from chain.model import Model

from .disks import SMALL, FullDisk
from .sessions import Session

INTERRUPT = "(interrupt)"
DROP = "(drop)"
DROP_FIRST = "(drop the first)"
EDIT = "(edit)"
FULL = "(the disk is full)"
_NEARLY_FULL = "(the disk accepts small records only)"
ROOM = "(the disk has room)"
ANOTHER_MODEL = "(another model)"
COMPACT = "(compact)"
DISK_ACTS = [_NEARLY_FULL, _NEARLY_FULL, FULL, ROOM, ROOM]

LINES = [
    "use the other file ‹›",
    "!use the other file at once ‹›",
    "todo: add a task ‹›",
    "todo: done 1",
    "todo: fail 9",
    "focus on prices ‹›",
    "also check the other file ‹›",
    "!skip docs ‹›",
    "!!use this file now ‹›",
    "!!how far is it ‹›?",
    "context: it is late ‹›",
    "how is it going ‹›?",
    "then: Do the next task ‹›",
    " stop ‹›",
    "stop",
    "status",
    "todo: add",
    "/help",
]
"""Lines of all kinds. ``‹›`` becomes a unique number, so that the text can be found again."""

LINE_MARK = re.compile("‹[0-9]+›")
"""The unique number in a sent line."""


@dataclass
class ActingUser:
    """A listener that acts in the step of numbered events: each item of ``at`` is the number of an event and an act.

    An act is one of the constants of this module, or a line. Lines are sent only while a run is active, unless
    ``also_idle``. A line may begin with an address: ``@NAME``, or ``@N`` for the Nth active agent.
    """

    session: Session
    at: Sequence[tuple[int, str]]
    also_idle: bool = False
    another: Callable[[], Model] | None = None
    """Creates the model that ``ANOTHER_MODEL`` switches to."""
    seen: int = 0
    sent: int = 0

    def __call__(self, event: events.Event) -> None:
        self.seen += 1
        self._act_at(self.seen)

    def perform_first(self) -> None:
        """Do the acts before the first event."""
        self._act_at(0)

    def _act_at(self, number: int) -> None:
        for n, act in self.at:
            if n == number:
                self.perform(act)

    async def perform_timed(self, at: Iterable[tuple[float, str]]) -> None:
        """Do each act after a number of seconds from now."""
        start = trio.current_time()
        for seconds, act in sorted(at):
            await trio.sleep_until(start + seconds)
            self.perform(act)

    def perform(self, act: str) -> None:
        """Act now."""
        chain = self.session.chain
        match act:
            case "(interrupt)":
                self.session.interrupt()
            case "(drop)" | "(drop the first)" | "(edit)":
                waiting = [a.id for a in chain.lines.waiting]
                id = next(iter(waiting), "L1") if act == DROP_FIRST else chain.lines.last_waiting() or "L1"
                if act == DROP and waiting:
                    id = waiting[-1]  # a line that a tool has used cannot be dropped
                try:
                    text = chain.lines.drop(id)
                except UserError:
                    assert [a.id for a in chain.lines.waiting] == waiting
                else:
                    assert id not in [a.id for a in chain.lines.waiting]
                    if act == EDIT:
                        chain.submit(LINE_MARK.sub("", text).strip() + " ‹›".replace("‹›", self._number()))
            case "(another model)" if not self.session.is_closing and self.another is not None:
                with suppress(JournalError):
                    self.session.switch_model(self.another())
            case "(compact)":
                with suppress(UserError, JournalError):
                    chain.runs.compact("the numbers")
            case "(the disk is full)" | "(the disk accepts small records only)" | "(the disk has room)":
                assert isinstance(self.session.file, FullDisk)
                self.session.file.room = {FULL: 0, _NEARLY_FULL: SMALL, ROOM: math.inf}[act]
            case _ if act == ANOTHER_MODEL:
                pass
            case _ if chain.is_running or self.also_idle:
                self._send(act.replace("‹›", self._number()))
            case _:
                pass

    def _send(self, text: str) -> None:
        to = ""
        if text.startswith("@"):
            to, _, text = text[1:].partition(" ")
        if to.isdecimal():
            active = [view.name for view in self.session.chain.agents if view.state == "executing"]
            to = active[int(to) % len(active)] if active else ""
        answer = self.session.chain.submit(text, to=to)
        if answer.id:
            self.session.addressed[answer.id] = to

    def _number(self) -> str:
        self.sent += 1
        return f"‹{self.sent}›"


@dataclass
class AnsweringUser:
    """A listener that answers each question with the next text of ``drawn`` after its delay in seconds.

    ``None`` instead of a text gives no answer. Some answers come too late.
    """

    session: Session
    drawn: list[tuple[float, str | None]]
    nursery: trio.Nursery
    may_fail: bool = False
    """Whether an answer to an open question may be refused, because the disk is full."""

    def __call__(self, event: events.Event) -> None:
        if isinstance(event, events.Question) and event.id == self.session.chain.questions.open_id and self.drawn:
            after_s, text = self.drawn.pop(0)
            if text is not None:
                self.nursery.start_soon(self.reply, event.id, after_s, text)

    async def reply(self, id: str, after_s: float, text: str) -> None:
        await trio.sleep(after_s)
        was_open = self.session.chain.questions.open_id == id
        answer = self.session.chain.answer(id, text)
        assert answer.what == ("answered" if was_open else "refused") or (was_open and self.may_fail)
