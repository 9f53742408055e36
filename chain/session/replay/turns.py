"""Whose turn it is in a replay: whoever is about to write a record waits until the record has come to them.

What has no place on record (the start of a call that cannot be run, the end of what was cancelled) waits as well, and
so does the disk. Those go on when nothing else can, so nobody waits for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from chain.session.replay.script import Script, Who


@dataclass(eq=False, slots=True)
class _Waiting:
    """Somebody who waits, with the entry of the question that is to be asked if it is for that."""

    who: Who
    question: int | None
    is_over: trio.Event = field(default_factory=trio.Event)


class Turns:
    """All who wait."""

    def __init__(self, script: Script) -> None:
        self.is_due: Callable[[Who], bool] = lambda who: False
        """Whether what comes next on record is theirs, and nothing has to be waited for."""
        self.fails_later: Callable[[str], bool] = lambda call_id: False
        """Whether a user does something before a call that has begun fails."""
        self.begun: set[str] = set()
        """The calls that are to fail and have begun."""
        self._script = script
        self._is_playing = False
        self._waiting: list[_Waiting] = []
        self._syncs: list[trio.Event] = []
        self._asked: set[int] = set()

    # ----------------------------------------------------------------------------------------------- for those who wait

    async def wait(self, agent: str, call_id: str = "", question: int | None = None) -> None:
        """Wait until it is the turn of an agent or its call, or nothing else can go on."""
        who = Who(agent, call_id)
        is_due = self.is_due(who) and (question is not None or not self._is_held_back(call_id))
        if self._is_playing and not is_due and not (question is None and self._is_unseen(call_id)):
            await self._wait(_Waiting(who, question))
        if question is not None:
            self._asked.add(question)
        elif self._script.was_cut_after_answer(call_id):
            await trio.lowlevel.checkpoint_if_cancelled()  # before it could act on that

    async def wait_to_fail(self, agent: str, call_id: str) -> None:
        """Wait until a call that fails without being started may do so."""
        self.begun.add(call_id)
        if self._is_playing and self.fails_later(call_id):
            await self._wait(_Waiting(Who(agent, call_id), None))

    async def sync(self) -> None:
        """Wait until what was written may be on the disk."""
        if self._is_playing:
            event = trio.Event()
            self._syncs.append(event)
            await event.wait()

    # ------------------------------------------------------------------------------------------------ for the director

    def go_on(self, who: Who) -> bool:
        """Let one go on whose turn it is. Whether there was any."""
        return self._let_go(next((each for each in self._waiting if each.who.is_part_of(who)), None))

    def go_on_anyhow(self, agent: str, n: int) -> bool:
        """Let one go on whose turn it may not be, of this agent if there is any. Whether there was any.

        ``n`` is what is next on record. Who starts later comes behind the disk, and who asks comes last: the disk may
        hold up one who does so before.
        """
        mine = [each for each in self._waiting if each.who.agent == agent and each.question is None]
        unplaced = (each for each in mine if not self._script.starts_later(each.who.call_id, n))
        if self._let_go(next(unplaced, None)) or self.end_sync() or self._let_go(next(iter(mine), None)):
            return True
        others = (each for each in self._waiting if not self._script.never_begins(each.who.call_id))
        return self._let_go(min(others, key=lambda each: each.question is not None, default=None))

    def go_on_early(self, agent: str) -> bool:
        """Let one of an agent go on that had gone on by what is next on record, or the disk. Whether there was any."""
        mine = (each for each in self._waiting if each.who.agent == agent and each.question is None)
        begun = (each for each in mine if not self._script.never_begins(each.who.call_id))
        return self._let_go(next(begun, None)) or self.end_sync()

    def is_between(self, agent: str) -> bool:
        """Whether an agent waits, and none of its calls is under way."""
        return any(each.who == Who(agent) for each in self._waiting)

    def go_on_in_vain(self) -> bool:
        """Let one go on that on record did not. Whether there was any."""
        return self._let_go(next(iter(self._waiting), None))

    def queue_up(self, has_asked: Callable[[int], bool]) -> bool:
        """Let one ask who will wait for the answer to another's question. Whether there was any.

        They ask in the order of the questions; ``has_asked`` is about those who do so by themselves.
        """
        for each in self._waiting:
            if each.question is not None:
                before = self._script.question_before(each.question)
                if before is None or before in self._asked or has_asked(before):
                    return self._let_go(each)
        return False

    def end_sync(self) -> bool:
        """Let what was written be on the disk. Whether anybody waited for that."""
        if self._syncs:
            self._syncs.pop(0).set()
            return True
        return False

    def enter(self) -> None:
        """From now on there is somebody who lets them go on."""
        self._is_playing = True

    def leave(self) -> None:
        """Keep nobody any more."""
        self._is_playing = False
        while self.end_sync() or self.go_on_in_vain():
            pass

    def _is_held_back(self, call_id: str) -> bool:
        """Whether a call never started though it might have, or its tool might ask before others that did so."""
        if self._script.was_cut_after_answer(call_id):
            return True
        first = self._script.first_asked(call_id)
        return first is not None and any(each.question is not None and each.question < first for each in self._waiting)

    def _is_unseen(self, call_id: str) -> bool:
        """Whether nothing on record says when a call goes on: it cannot be run, or has a question to ask first."""
        asks = self._script.approval(call_id)
        is_to_ask = asks is not None and self._script.place_of(asks) not in self._asked
        return is_to_ask or self._script.is_unseen(call_id)

    async def _wait(self, waiting: _Waiting) -> None:
        self._waiting.append(waiting)
        with trio.CancelScope(shield=True):
            await waiting.is_over.wait()

    def _let_go(self, waiting: _Waiting | None) -> bool:
        if waiting is not None:
            self._waiting.remove(waiting)
            waiting.is_over.set()
        return waiting is not None
