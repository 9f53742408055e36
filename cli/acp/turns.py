"""The answers to an editor's prompts. Pure.

A prompt is submitted as a line, and answered with the result of the run that receives the line. The order of the events
shows which run receives the line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from chain import events
from cli.acp.rpc import INTERNAL_ERROR, RpcError

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
"""The protocol's stop reasons by the status of a run. A run with any other status is answered with an error."""


@dataclass(slots=True)
class PendingPrompt:
    """A prompt that waits for its answer, or a steering request whose text waits to be sent."""

    line_id: str
    """The id of the prompt's line; empty for a command, and for a stop that could not be recorded."""
    run_start: float = 0.0
    """The start time of the run that the prompt's command started, else 0. Results of earlier runs are no answer."""
    state: events.State = "queued"
    text: str = ""
    """The text to send before the answer."""
    answer: Mapping[str, Any] | None = None
    """The answer to a request that needs no run, sent after the line's receipt or the ``notice``; else ``None``."""
    notice: events.Notice | None = None

    @property
    def ends_with_run(self) -> bool:
        """Whether the result of the active run will answer this prompt."""
        return self.answer is None and (not self.line_id or self.state not in ("queued", "returned"))

    def answer_by(self, event: events.Event) -> Mapping[str, Any] | RpcError | None:
        """Update the state from an event. Return the answer if the event ends the request, else ``None``."""
        match event:
            case events.Notice() if event is self.notice:
                return self.answer
            case events.Receipt(id=id, state=state) if id and id == self.line_id:
                if self.answer is not None:
                    return self.answer
                if state == "dropped":
                    return cancelled_response(id, state)  # a result need not follow
                if self.state != "delivered":  # a refused reply returns its lines; the result of the run answers
                    self.state = state
            case events.Result() if self.state == "returned":
                return cancelled_response(self.line_id)
            case events.Result() if self.ends_with_run and self.run_start <= event.time:
                return _outcome(event, self.line_id)
            case _:
                pass
        return None


def prompt_response(reason: StopReason, line_id: str, **about: object) -> Mapping[str, Any]:
    """Return the response to a prompt. ``about`` is added to ``_meta.chain``, and ``line_id`` if it is not empty."""
    return {"stopReason": reason, "_meta": {"chain": {**({"lineId": line_id} if line_id else {}), **about}}}


def cancelled_response(line_id: str, state: events.State = "returned") -> Mapping[str, Any]:
    """Return the response to a prompt whose line was not used. ``line_id`` is empty if there is no line yet."""
    return prompt_response("cancelled", line_id, **({"state": state} if line_id else {}))


def _outcome(result: events.Result, line_id: str) -> Mapping[str, Any] | RpcError:
    reason = STOP_REASONS.get(result.status)
    if reason is None:
        message = result.result or f"the run ended: {result.status}"
        return RpcError(INTERNAL_ERROR, message, {"chain": {"status": result.status}})
    used = result.usage
    usage = {"input_tokens": used.input_tokens, "output_tokens": used.output_tokens, "cost_usd": used.cost_usd}
    return prompt_response(reason, line_id, status=result.status, iterations=result.iterations, usage=usage)
