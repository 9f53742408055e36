"""Answers prompts when their runs end. Pure.

A prompt is a line, and the result of the run that got it answers it. Events tell both in order: what was submitted
between a run's end and the event of that end belongs to a later run, though the chain says that it is idle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from chain import events
from cli.acp.rpc import INTERNAL_ERROR, RpcError
from cli.acp.wire import IncomingCall

StopReason: TypeAlias = Literal["end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"]

STOP_REASONS: Mapping[events.Status, StopReason] = {
    "done": "end_turn",
    "cancelled": "end_turn",
    "cancelled_with_partial": "end_turn",
    "cancelled_during_synthesis": "end_turn",
    "max_iterations": "max_turn_requests",
    "limit_reached": "max_turn_requests",
    "truncated": "max_tokens",
    "refused": "refusal",
    "interrupted": "cancelled",
}
"""How a run ended, as the protocol says it; a status that is not here is an error."""


@dataclass(slots=True)
class PendingPrompt:
    """A prompt that has no answer yet.

    ``line`` is empty for one that stops the run, though its line could not be accepted, or that is a command which has
    begun one. ``run`` is when the run of a command began, as an earlier one may still be told of; else 0.
    """

    call: IncomingCall
    line: str
    state: events.State
    run: float


@dataclass(slots=True)
class Turns:
    """The prompts of a session that have no answer yet."""

    _prompts: list[PendingPrompt] = field(default_factory=list)

    def add(self, call: IncomingCall, line: str, *, run: float = 0.0) -> None:
        """Add a prompt. The run of its line answers it; without a line the next result does, or that of ``run``."""
        self._prompts.append(PendingPrompt(call, line, "queued" if line else "handled", run))

    def find(self, call: IncomingCall) -> PendingPrompt | None:
        """The prompt that is this call, if it still waits."""
        return next((prompt for prompt in self._prompts if prompt.call is call), None)

    @property
    def are_over(self) -> bool:
        """Whether the next result will answer a prompt."""
        return any(prompt.state not in ("queued", "returned") for prompt in self._prompts)

    def on_event(self, event: events.Event) -> None:
        """Take note of an event, and answer the prompts that it ends."""
        if isinstance(event, events.Result):
            self._end(event)
        if not isinstance(event, events.Receipt) or not event.id:
            return
        prompt = next((prompt for prompt in self._prompts if prompt.line == event.id), None)
        if prompt is not None and event.state == "dropped":
            self._prompts.remove(prompt)
            prompt.call.answer(cancelled(prompt.line, "dropped"))  # no result need follow
        elif prompt is not None and prompt.state != "delivered":
            prompt.state = event.state  # a refused reply gives back what was delivered: the result says what it came to

    def fail_all(self, error: RpcError) -> None:
        """Answer all: the session has ended without a result."""
        for prompt in self._prompts:
            prompt.call.fail(error)
        self._prompts.clear()

    def _end(self, result: events.Result) -> None:
        ended = [prompt for prompt in self._prompts if prompt.state != "queued" and prompt.run <= result.time]
        self._prompts = [prompt for prompt in self._prompts if prompt not in ended]
        for prompt in ended:
            if prompt.state == "returned":
                prompt.call.answer(cancelled(prompt.line))
            else:
                _settle(prompt.call, result, {"lineId": prompt.line} if prompt.line else {})


def end_turn(line: str) -> Mapping[str, Any]:
    """The answer to a prompt that needed no run."""
    return _answer("end_turn", {"lineId": line} if line else {})


def cancelled(line: str, state: events.State = "returned") -> Mapping[str, Any]:
    """The answer to a prompt whose line came to nothing."""
    return _answer("cancelled", {"lineId": line, "state": state} if line else {})


def _settle(call: IncomingCall, result: events.Result, more: Mapping[str, Any]) -> None:
    reason = STOP_REASONS.get(result.status)
    if reason is None:
        message = result.result or f"the run ended: {result.status}"
        call.fail(RpcError(INTERNAL_ERROR, message, {"chain": {"status": result.status}}))
        return
    used = result.usage
    usage = {"input_tokens": used.input_tokens, "output_tokens": used.output_tokens, "cost_usd": used.cost_usd}
    call.answer(_answer(reason, {**more, "status": result.status, "iterations": result.iterations, "usage": usage}))


def _answer(reason: StopReason, chain: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"stopReason": reason, "_meta": {"chain": chain}}
