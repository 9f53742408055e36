"""Answers a request with a step of the script."""

from __future__ import annotations

import sys

from .connection import Connection
from .steps import Broken, Cut, ErrorEvent, Garbage, Raw, Reset, Say, Stall, Status, Step
from .stream import KINDS, Facts, error_body, event, events, to_json


async def play(step: Step, facts: Facts, out: Connection) -> bool:
    """Answer a request with this step, whose blocks are complete. Return whether the connection stays open."""
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
    """Make the reply fail after its first events."""
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
    """Send a reply, or its first events; nothing for ``None``."""
    if after is None:
        return
    sent = events(say, facts)[:after]
    kind = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
    await out.head(200, {**kind, "request-id": facts.request_id})
    if not say.delay_between:
        sent = [b"".join(sent)]
    for n, data in enumerate(sent):
        if n:
            await out.pause(say.delay_between)
        await out.data(data)
