"""Which prompt is answered when a run ends, and with what. Pure.

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
class _Prompt:
    call: IncomingCall
    line: str
    state: events.State = "queued"


@dataclass(slots=True)
class Turns:
    """The prompts of a session that have no answer yet."""

    _prompts: dict[str, _Prompt] = field(default_factory=dict)
    """By the ids of their lines."""
    _unnamed: list[IncomingCall] = field(default_factory=list)
    """Those that stop the run, though their line could not be accepted."""

    def add(self, call: IncomingCall, line: str) -> None:
        """Let a prompt wait for what becomes of its line; one without a line waits for the next result."""
        if line:
            self._prompts[line] = _Prompt(call, line)
        else:
            self._unnamed.append(call)

    def line_of(self, call: IncomingCall) -> str | None:
        """The line of a prompt that still waits; ``None`` for a call that is none, empty for one without a line."""
        if call in self._unnamed:
            return ""
        return next((prompt.line for prompt in self._prompts.values() if prompt.call is call), None)

    @property
    def are_over(self) -> bool:
        """Whether the next result answers a prompt."""
        return bool(self._unnamed) or any(each.state not in ("queued", "returned") for each in self._prompts.values())

    def on_event(self, event: events.Event) -> None:
        """Take note of an event, and answer the prompts that it ends."""
        match event:
            case events.Receipt(id=id, state="dropped") if id in self._prompts:
                self._prompts.pop(id).call.answer(cancelled(id, "dropped"))  # no result need follow
            case events.Receipt(id=id, state=state) if id in self._prompts:
                prompt = self._prompts[id]
                if prompt.state != "delivered":  # a refused reply gives that back: the result says what it came to
                    prompt.state = state
            case events.Result():
                self._end(event)
            case _:
                pass

    def fail_all(self, error: RpcError) -> None:
        """Answer all: the session has ended without a result."""
        for call in (*self._unnamed, *(prompt.call for prompt in self._prompts.values())):
            call.fail(error)
        self._unnamed.clear()
        self._prompts.clear()

    def _end(self, result: events.Result) -> None:
        ended = [prompt for prompt in self._prompts.values() if prompt.state != "queued"]
        for prompt in ended:
            del self._prompts[prompt.line]
            if prompt.state == "returned":
                prompt.call.answer(cancelled(prompt.line))
            else:
                _settle(prompt.call, result, {"lineId": prompt.line})
        for call in self._unnamed:
            _settle(call, result, {})
        self._unnamed.clear()


def end_turn(line: str = "") -> Mapping[str, Any]:
    """The answer to a prompt that needed no run."""
    return _answer("end_turn", {"lineId": line} if line else {})


def rpc_failure(result: events.Result) -> RpcError:
    """The error of a run that came to nothing."""
    message = result.result or f"the run ended: {result.status}"
    return RpcError(INTERNAL_ERROR, message, {"chain": {"status": result.status}})


def cancelled(line: str, state: events.State = "returned") -> Mapping[str, Any]:
    """The answer to a prompt whose line came to nothing."""
    return _answer("cancelled", {"lineId": line, "state": state} if line else {})


def _settle(call: IncomingCall, result: events.Result, more: Mapping[str, Any]) -> None:
    reason = STOP_REASONS.get(result.status)
    if reason is None:
        call.fail(rpc_failure(result))
        return
    used = result.usage
    usage = {"input_tokens": used.input_tokens, "output_tokens": used.output_tokens, "cost_usd": used.cost_usd}
    call.answer(_answer(reason, {**more, "status": result.status, "iterations": result.iterations, "usage": usage}))


def _answer(reason: StopReason, chain: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"stopReason": reason, "_meta": {"chain": chain}}
