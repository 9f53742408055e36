"""The model that is a rule file: it answers with what the first rule says whose conditions the conversation meets.

It runs the offline demonstrations, stands in for a model in the tests, and lets users try their prompts without a
network. The same conversation always gets the same replies; between its requests are kept how often each rule was used
(from the moment it is chosen), whether the latest reply kept the task's answer back, and how far the conversation was
read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import trio

from chain.errors import ModelError, ParameterRefused
from chain.model import Delta, Reply, Request
from chain.providers.scripted import reader
from chain.providers.scripted.answer import ReplyPart, ScriptedReply, assemble, part_of
from chain.providers.scripted.rules import Failure, Pace, RuleFile, ScriptRule
from chain.providers.scripted.scene import MAX_SEARCH_S, Fit, Moment, Scene, TaskEvent
from chain.text.search import SearchBudget, TooSlow


class ScriptedModel:
    """A ``Model`` that answers from rules."""

    def __init__(self, script: RuleFile) -> None:
        self._script = script

    @classmethod
    def load(cls, path: Path, within: Path | None = None, *, at_terminal: bool = False) -> ScriptedModel:
        """The model of a rule file in the folder ``within``, at its terminal pace or not. Raises ``ConfigError``."""
        script = reader.load(path, within)
        return cls(script.at_terminal() if at_terminal else script)

    @classmethod
    def parse(cls, text: str, file: str = "rules") -> ScriptedModel:
        """The model of rules given as text; ``file`` is their name in errors. Raises ``ConfigError``."""
        return cls(reader.parse_rules(text, file))

    @property
    def name(self) -> str:
        """The file's ``name``."""
        return self._script.name

    async def reply(self, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        """Answer one request. Raises ``ModelError`` where a rule says so."""
        dialogue: _Dialogue = request.memory.setdefault(self, _Dialogue(self._script))
        answer = dialogue.answer(request)
        if answer.pace.think_s:
            await trio.sleep(answer.pace.think_s)
        for piece in answer.pieces():
            await _pause(answer.pace)
            on_delta(piece)
        await _pause(answer.pace)
        if answer.failure is not None:
            raise _error(answer.failure)
        return answer.reply

    async def prepare(self) -> None:
        """There is nothing to prepare."""

    async def aclose(self) -> None:
        """There is nothing to give up."""


class _Dialogue:
    """One conversation with the rules: what was read of it, and how often each rule was used in it."""

    def __init__(self, script: RuleFile) -> None:
        self._script = script
        self._uses: Counter[int] = Counter()
        self._scene = Scene(script.marks)

    def answer(self, request: Request) -> ScriptedReply:
        """What the rules say to the request. Raises ``ModelError`` if searching takes too long."""
        if not self._scene.has_read(request.messages):
            self._scene = Scene(self._script.marks)
        self._scene.budget = budget = SearchBudget(MAX_SEARCH_S)
        try:
            self._scene.read(request.messages)
            return self._answer(request)
        except TooSlow:
            self._scene = Scene(self._script.marks)  # it may have been read by half
            raise self._too_slow(budget) from None

    def _too_slow(self, budget: SearchBudget) -> ModelError:
        why = f"took most of the {MAX_SEARCH_S:g} s that searching may take; take repeats inside repeats apart: (a+)+"
        assert budget.slowest is not None
        return ModelError(str(self._script.places[budget.slowest].error(why)))

    def _answer(self, request: Request) -> ScriptedReply:
        """Choose, count and render, in one step that nothing can come between."""
        parts: list[ReplyPart] = []
        for fit in self._choose(request):
            part = replace(part_of(fit), failure=self._failure(fit.rule, request))
            if any(p.calls for p in parts) and not part.calls and fit.rule.when.interruption is None:
                break  # the task's answer waits until the results are there
            self._uses[fit.rule.index] += 1
            parts.append(part)
        kept_back = self._kept_back(parts)
        self._uses.subtract(p.rule.index for p in kept_back)
        self._scene.keeps_back = bool(kept_back)
        parts = parts[: len(parts) - len(kept_back)]
        if not parts:
            parts = [ReplyPart(ScriptRule(-1), text=self._nothing_fits())]
        return assemble(parts, request, self._scene, self._script.pace)

    def _kept_back(self, parts: Sequence[ReplyPart]) -> Sequence[ReplyPart]:
        """The parts that answer the task, where they wait: no line asks to ``continue``, and they call no tools."""
        lines = [p for p in parts if p.rule.when.interruption is not None]
        task = parts[len(lines) :]
        if not lines or not task or any(p.rule.go_on == "continue" for p in lines) or any(p.calls for p in task):
            return ()
        return task if self._scene.open_events[0].results else ()

    def _choose(self, request: Request) -> Iterator[Fit]:
        """The rules to apply, in the order of their output. Each is chosen after those before it were counted."""
        lines, events = self._scene.lines, self._scene.open_events
        fit = self._first(request, lines, events[:1])
        if fit is None:
            return
        if fit.rule.when.interruption is None:
            yield fit
            below, goes_on = events[1:], fit.rule.go_on != "no"
        else:
            below, goes_on = events, False
            for line in lines:
                if fit := self._first(request, [line], events[:1], only_interruptions=True):
                    yield fit
                    goes_on |= fit.rule.go_on != "no"
        for event in below:
            if not goes_on or not (fit := self._first(request, [], [event])):
                return
            yield fit
            goes_on = fit.rule.go_on != "no"

    def _first(
        self, request: Request, lines: Sequence[str], event: Sequence[TaskEvent], *, only_interruptions: bool = False
    ) -> Fit | None:
        for rule in self._script.rules:
            if rule.times is not None and self._uses[rule.index] >= rule.times:
                continue
            if rule.when.interruption is None:
                tried: Sequence[str] = () if only_interruptions else ("",)
            else:
                tried = lines
            for line in tried:
                moment = Moment(self._script.file, request, self._scene, line, event[0] if event else None)
                if fit := moment.fit(rule):
                    return fit
        return None

    def _failure(self, rule: ScriptRule, request: Request) -> Failure | None:
        failure = rule.failure
        if failure is None or (failure.times is not None and self._uses[rule.index] >= failure.times):
            return None
        if not failure.refuses:
            return failure
        refused = tuple(n for n in failure.refuses if getattr(request.overrides, n) is not None)
        return replace(failure, refuses=refused) if refused else None

    def _nothing_fits(self) -> str:
        scene = self._scene
        if scene.lines:
            what = f"the message {scene.lines[-1][:200]!r}"
        elif scene.open_events and (tools := scene.open_events[0].tools):
            what = f"the result of {tools}"
        else:
            what = f"the query {scene.query[:200]!r}"
        return f"No rule of {self._script.file} matches {what} (model call {scene.turn} of this conversation)."


async def _pause(pace: Pace) -> None:
    if pace.delay_s:
        await trio.sleep(pace.delay_s)
    else:
        await trio.lowlevel.checkpoint()


def _error(failure: Failure) -> ModelError:
    if failure.refuses:
        return ParameterRefused(failure.message, failure.refuses)
    return ModelError(failure.message, retryable=failure.retryable, retry_after=failure.retry_after)
