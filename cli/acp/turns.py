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

    ``line`` is empty for a stop that could not be recorded, and for a command that started a run. ``run`` is the time
    when that run began, since the result of an earlier run may still follow; else 0.
    """

    line: str
    state: events.State
    run: float

    def answer_by(self, event: events.Event) -> Mapping[str, Any] | RpcError | None:
        """Update the state by an event. Return the answer if the event ends the prompt."""
        match event:
            case events.Receipt(id=id, state=state) if id and id == self.line:
                if state == "dropped":
                    return cancelled(id, state)  # a result need not follow
                if self.state != "delivered":  # a refused reply gives back what was delivered; its result answers
                    self.state = state
            case events.Result() if self.state == "returned":
                return cancelled(self.line)
            case events.Result() if self.state != "queued" and self.run <= event.time:
                return _outcome(event, self.line)
            case _:
                pass
        return None


@dataclass(slots=True)
class Turns:
    """The prompts of a session that have no answer yet."""

    _prompts: dict[IncomingCall, PendingPrompt] = field(default_factory=dict)

    def add(self, call: IncomingCall, line: str, *, run: float = 0.0) -> None:
        """Add a prompt. The run of its line answers it; without a line the next result does, or that of ``run``."""
        self._prompts[call] = PendingPrompt(line, "queued" if line else "handled", run)

    def find(self, call: IncomingCall) -> PendingPrompt | None:
        """Return the prompt of this request if it has no answer yet."""
        return self._prompts.get(call)

    @property
    def are_over(self) -> bool:
        """Whether the next result will answer a prompt."""
        return any(prompt.state not in ("queued", "returned") for prompt in self._prompts.values())

    def on_event(self, event: events.Event) -> None:
        """Update the prompts by an event, and answer those that it ends."""
        for call, prompt in [*self._prompts.items()]:
            if (answer := prompt.answer_by(event)) is not None:
                del self._prompts[call]
                call.answer(answer)

    def fail_all(self, error: RpcError) -> None:
        """Fail all prompts, since the session has ended without a result."""
        for call in self._prompts:
            call.answer(error)
        self._prompts.clear()


def end_turn(line: str) -> Mapping[str, Any]:
    """Return the answer to a prompt that needed no run."""
    return _answer("end_turn", {"lineId": line} if line else {})


def cancelled(line: str, state: events.State = "returned") -> Mapping[str, Any]:
    """Return the answer to a prompt whose line was not used."""
    return _answer("cancelled", {"lineId": line, "state": state} if line else {})


def _outcome(result: events.Result, line: str) -> Mapping[str, Any] | RpcError:
    reason = STOP_REASONS.get(result.status)
    if reason is None:
        message = result.result or f"the run ended: {result.status}"
        return RpcError(INTERNAL_ERROR, message, {"chain": {"status": result.status}})
    used = result.usage
    usage = {"input_tokens": used.input_tokens, "output_tokens": used.output_tokens, "cost_usd": used.cost_usd}
    about = {"status": result.status, "iterations": result.iterations, "usage": usage}
    return _answer(reason, {**({"lineId": line} if line else {}), **about})


def _answer(reason: StopReason, chain: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"stopReason": reason, "_meta": {"chain": chain}}
