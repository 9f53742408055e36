"""Carries out a step over a connection."""

from __future__ import annotations

import sys

from .connection import Connection
from .steps import Broken, Cut, ErrorEvent, Garbage, Gate, Raw, Reset, Say, Stall, Status, Step
from .stream import KINDS, Facts, error_body, event, events, to_json


async def play(step: Step, facts: Facts, out: Connection) -> bool:
    """Answer a request with this step, whose blocks are complete. Return whether the connection can go on."""
    match step:
        case Say():
            await _send(step, facts, out)
        case Status():
            await _send_status(step, facts, out)
        case Broken():
            await _send(step.reply, facts, out, step.after)
            await _break(step, facts, out)
        case Raw(data):
            await out.stream.send_all(data)
    if isinstance(step, Reset):
        out.reset()
        return False
    if isinstance(step, Raw) or (isinstance(step, Cut) and not step.clean):
        await out.stream.send_eof()
        return False
    await out.end()
    return True


async def _break(step: Broken, facts: Facts, out: Connection) -> None:
    """Send what follows the part of the reply that is well."""
    match step:
        case ErrorEvent(kind=kind, message=message):
            await out.data(event("error", error_body(kind, message, facts.request_id)))
        case Garbage():
            await out.data(b'event: content_block_delta\ndata: {"type": "content_block_delta", "index": 0, "del\n\n')
        case Cut(after=int(after), extra=extra) if extra:
            await out.data(b"".join(events(step.reply, facts)[after:])[:extra])
        case Stall():
            await out.hang()
        case _:
            pass


async def _send_status(step: Status, facts: Facts, out: Connection) -> None:
    error = error_body(KINDS.get(step.code, "api_error"), step.message, facts.request_id)
    body = error if step.body is None else step.body
    payload = body if isinstance(body, bytes) else to_json(body)
    named = {"content-type": "application/json", "request-id": facts.request_id, **step.headers}
    await out.head(step.code, {**named, "content-length": str(len(payload))})
    await out.data(payload)


async def _send(say: Say, facts: Facts, out: Connection, after: int | None = sys.maxsize) -> None:
    """Send a reply, or its first events; for ``None`` not even the head.

    With nothing to happen between events they go in one write.
    """
    if after is None:
        return
    sent = events(say, facts)[:after]
    gates: dict[int, list[Gate]] = {}
    for gate in say.gates:
        gates.setdefault(min(gate.after, len(sent)), []).append(gate)
    for gate in gates.pop(0, ()):
        await out.hold(gate)
    kind = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
    await out.head(200, {**kind, "request-id": facts.request_id})
    waiting: list[bytes] = []
    for n, data in enumerate(sent, 1):
        waiting.append(data)
        if n in gates or say.delay_between or n == len(sent):
            await out.data(b"".join(waiting))
            waiting = []
        for gate in gates.get(n, ()):
            await out.hold(gate)
        if say.delay_between and n < len(sent):
            await out.pause(say.delay_between)
