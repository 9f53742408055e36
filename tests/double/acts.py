"""A step and a request become a row of acts, which the connection carries out one by one. Pure.

Everything that is to be known about a response is decided here; the connection only sends, waits and closes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from .steps import (
    KINDS,
    Block,
    Cut,
    ErrorEvent,
    Garbage,
    Gate,
    Html,
    Raw,
    Reset,
    Say,
    Stall,
    Status,
    Step,
)


@dataclass(frozen=True, slots=True)
class Head:
    """The status line and headers. ``length`` ``None`` means chunks."""

    status: int
    headers: tuple[tuple[str, str], ...]
    length: int | None = None


@dataclass(frozen=True, slots=True)
class Data:
    """Part of the body."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Hold:
    """Wait at the gate."""

    gate: Gate


@dataclass(frozen=True, slots=True)
class Pause:
    """Let time pass."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Wire:
    """Bytes outside the protocol."""

    data: bytes


@dataclass(frozen=True, slots=True)
class End:
    """How it ends: in order, by a close, by a reset, or not at all."""

    how: Literal["done", "close", "reset", "hang"] = "done"


Act: TypeAlias = Head | Data | Hold | Pause | Wire | End


@dataclass(frozen=True, slots=True)
class Facts:
    """What a response has to know about its request. ``usage`` is the input side of the usage."""

    number: int
    stream: bool
    model: str
    usage: Mapping[str, int]

    @property
    def request_id(self) -> str:
        """What the service would call the request."""
        return f"req_{self.number:06d}"


def error_body(kind: str, message: str, request_id: str) -> dict[str, Any]:
    """The API's form of an error."""
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}


def complete(blocks: Sequence[Block], number: int) -> tuple[Block, ...]:
    """The blocks with the ids and signatures that they lack: the same ones for the same request."""
    return tuple(_completed(block, f"{number:06d}_{i}") for i, block in enumerate(blocks))


def _completed(block: Block, unique: str) -> Block:
    match block.get("type"):
        case "tool_use" if "id" not in block:
            return {"type": "tool_use", "id": f"toolu_{unique}", **block}
        case "thinking" if "signature" not in block:
            return {**block, "signature": f"sig_{unique}"}
        case _:
            return block


def acts(step: Step, facts: Facts) -> Iterator[Act]:
    """What to do for this step. Blocks are complete."""
    match step:
        case Say():
            yield from _said(step, facts)
        case Status(code, body, headers, message, gates):
            payload = error_body(KINDS.get(code, "api_error"), message, facts.request_id) if body is None else body
            yield from (Hold(g) for g in gates)
            yield from _whole(code, payload, facts, headers)
        case ErrorEvent(after, kind, message, reply):
            if not facts.stream:
                code = next((c for c, k in KINDS.items() if k == kind), 500)
                yield from _whole(code, error_body(kind, message, facts.request_id), facts, {})
                return
            yield from _until(reply, facts, after)
            yield Data(event("error", error_body(kind, message, facts.request_id)))
            yield End()
        case Reset(after, reply):
            yield from _until(reply, facts, after)
            yield End("reset")
        case Cut(after, extra, clean, reply):
            yield from _until(reply, facts, after, extra)
            yield End("done" if clean else "close")
        case Stall(after, reply):
            yield from _until(reply, facts, after)
            yield End("hang")
        case Garbage():
            yield from _garbage(step, facts)
        case Html(code, page):
            yield Head(code, (("content-type", "text/html"),), len(page.encode()))
            yield Data(page.encode())
            yield End()
        case Raw(data):
            yield Wire(data)
            yield End("close")


def _whole(code: int, body: Mapping[str, Any] | bytes, facts: Facts, headers: Mapping[str, str]) -> Iterator[Act]:
    payload = body if isinstance(body, bytes) else _json(body)
    named = {"content-type": "application/json", "request-id": facts.request_id, **headers}
    yield Head(code, tuple(named.items()), len(payload))
    yield Data(payload)
    yield End()


def _head(facts: Facts) -> Head:
    kind = "text/event-stream; charset=utf-8" if facts.stream else "application/json"
    return Head(200, (("content-type", kind), ("cache-control", "no-cache"), ("request-id", facts.request_id)))


def _said(say: Say, facts: Facts) -> Iterator[Act]:
    yield from _played(say, facts, events(say, facts))
    yield End()


def _until(say: Say, facts: Facts, after: int | None, extra: int = 0) -> Iterator[Act]:
    """The first events of a reply, and so many bytes of the next; for ``None`` not even the head."""
    if after is None:
        return
    whole = events(say, facts)
    rest = b"".join(whole[after:])[:extra]
    yield from _played(say, facts, whole[:after])
    if rest:
        yield Data(rest)


def _played(say: Say, facts: Facts, sent: list[bytes]) -> Iterator[Act]:
    """Events with what is to happen between them. With nothing between them they go in one write."""
    gates: dict[int, list[Gate]] = {}
    for gate in say.gates:
        gates.setdefault(min(gate.after, len(sent)), []).append(gate)
    if say.delay_before:
        yield Pause(say.delay_before)
    yield from (Hold(g) for g in gates.pop(0, ()))
    yield _head(facts)
    waiting: list[bytes] = []
    for n, data in enumerate(sent, 1):
        waiting.append(data)
        if n in gates or say.delay_between or n == len(sent):
            yield from _writes(b"".join(waiting), say.write_size)
            waiting = []
        yield from (Hold(g) for g in gates.get(n, ()))
        if say.delay_between and n < len(sent):
            yield Pause(say.delay_between)


def _writes(data: bytes, size: int) -> Iterator[Act]:
    size = size or len(data)
    yield from (Data(data[i : i + size]) for i in range(0, len(data), size))


def _garbage(step: Garbage, facts: Facts) -> Iterator[Act]:
    if not facts.stream:
        yield from _whole(200, b'{"type": "message", "content": [', facts, {})
        return
    yield from _until(step.reply, facts, step.after)
    match step.kind:
        case "sse":
            yield Data(b"\x00\xff\xfe no field here\n:::\ndata\n\n\nevent\nevent: \xc3\x28\n\n")
        case "json":
            yield Data(b'event: content_block_delta\ndata: {"type": "content_block_delta", "index": 0, "del\n\n')
        case "shape":
            yield Data(b"event: content_block_delta\ndata: [1, null]\n\n")
        case "orphan_delta":
            delta = {"type": "text_delta", "text": "out of nowhere"}
            yield Data(event("content_block_delta", {"index": 7, "delta": delta}))
        case "unknown_event":
            yield Data(event("weather_report", {"sky": "clear"}))
            yield Data(b"".join(events(step.reply, facts)[step.after :]))
    yield End()


# ---- the reply itself


def event(name: str, data: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), _json({"type": name, **data}))


def events(say: Say, facts: Facts) -> list[bytes]:
    """The events of a streamed reply; of one that is not streamed, the whole body as one."""
    if not facts.stream:
        return [_json(_message(say, facts, whole=True))]
    start = event("message_start", {"message": _message(say, facts, whole=False)})
    sent = [start]
    for i, block in enumerate(say.blocks):
        sent += _block_events(i, block, say)
    if say.pings:
        sent.insert(min(2, len(sent)), event("ping", {}))
    stop = {"stop_reason": stop_reason(say), "stop_sequence": say.stop_sequence}
    output = say.usage.get("output_tokens", _output_tokens(say))
    sent.append(event("message_delta", {"delta": stop, "usage": {"output_tokens": output}}))
    sent.append(event("message_stop", {}))
    return sent


def stop_reason(say: Say) -> str:
    """Why the reply ended: as scripted, else as its blocks suggest."""
    called = any(b["type"] == "tool_use" for b in say.blocks)
    return say.stop_reason or ("tool_use" if called else "end_turn")


def _output_tokens(say: Say) -> int:
    return max(1, len(_json(list(say.blocks))) // 4)


def _message(say: Say, facts: Facts, *, whole: bool) -> dict[str, Any]:
    usage = {**facts.usage, "output_tokens": _output_tokens(say) if whole else 1, **say.usage}
    return {
        "id": f"msg_{facts.number:06d}",
        "type": "message",
        "role": "assistant",
        "model": facts.model,
        "content": [_plain(b) for b in say.blocks] if whole else [],
        "stop_reason": stop_reason(say) if whole else None,
        "stop_sequence": say.stop_sequence if whole else None,
        "usage": usage,
    }


def _plain(block: Block) -> Block:
    if "input_json" not in block:
        return block
    return {**{k: v for k, v in block.items() if k != "input_json"}, "input": {}}


def _block_events(i: int, block: Block, say: Say) -> list[bytes]:
    match block["type"]:
        case "text":
            empty: dict[str, Any] = {"type": "text", "text": ""}
            deltas = [{"type": "text_delta", "text": t} for t in _pieces(block["text"], say.text_chunk)]
        case "thinking":
            empty = {"type": "thinking", "thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": t} for t in _pieces(block["thinking"], say.text_chunk)]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        case "tool_use":
            empty = {"type": "tool_use", "id": block["id"], "name": block["name"], "input": {}}
            data = block["input_json"] if "input_json" in block else _json(block["input"]).decode()
            # The service begins with an empty piece; an input without fields is nothing else.
            pieces = ["", *(_pieces(data, say.text_chunk) if data != "{}" else ())]
            deltas = [{"type": "input_json_delta", "partial_json": p} for p in pieces]
        case _:  # a block that comes whole, such as redacted thinking
            empty, deltas = dict(block), []
    return [
        event("content_block_start", {"index": i, "content_block": empty}),
        *(event("content_block_delta", {"index": i, "delta": d}) for d in deltas),
        event("content_block_stop", {"index": i}),
    ]


def _pieces(data: str, size: int) -> list[str]:
    size = size or max(1, len(data))
    return [data[i : i + size] for i in range(0, len(data), size)]


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
