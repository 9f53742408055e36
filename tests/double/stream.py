"""A reply as the events of a stream, and an error as JSON. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .steps import Block, Say

KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""The error type that goes with a status: https://docs.anthropic.com/en/api/errors."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The data of a request that its response repeats. ``usage`` is the usage of the input."""

    number: int
    model: str
    usage: Mapping[str, int]

    @property
    def request_id(self) -> str:
        """The id of the request."""
        return f"req_{self.number:06d}"


def error_body(kind: str, message: str, request_id: str) -> dict[str, Any]:
    """Return an error in the API's form."""
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}


def complete(blocks: Sequence[Block], number: int) -> tuple[Block, ...]:
    """Return the blocks with their missing ids and signatures, which are the same for the same request."""
    return tuple(_completed(block, f"{number:06d}_{i}") for i, block in enumerate(blocks))


def _completed(block: Block, unique: str) -> Block:
    match block.get("type"):
        case "tool_use" if "id" not in block:
            return {"type": "tool_use", "id": f"toolu_{unique}", **block}
        case "thinking" if "signature" not in block:
            return {**block, "signature": f"sig_{unique}"}
        case _:
            return block


def event(name: str, data: Mapping[str, Any]) -> bytes:
    """Return one server-sent event."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), to_json({"type": name, **data}))


def events(say: Say, facts: Facts) -> list[bytes]:
    """Return the events of a reply. Its blocks are complete."""
    message: dict[str, Any] = {
        "id": f"msg_{facts.number:06d}",
        "type": "message",
        "role": "assistant",
        "model": facts.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {**facts.usage, "output_tokens": 1, **say.usage},
    }
    sent = [event("message_start", {"message": message})]
    for i, block in enumerate(say.blocks):
        sent += _block_events(i, block, say.text_chunk)
    if say.pings:
        sent.insert(min(2, len(sent)), event("ping", {}))
    called = any(b["type"] == "tool_use" for b in say.blocks)
    stop = {"stop_reason": say.stop_reason or ("tool_use" if called else "end_turn"), "stop_sequence": None}
    output = say.usage.get("output_tokens", max(1, len(to_json(say.blocks)) // 4))
    sent.append(event("message_delta", {"delta": stop, "usage": {"output_tokens": output}}))
    return [*sent, event("message_stop", {})]


def _block_events(i: int, block: Block, chunk: int) -> list[bytes]:
    match block["type"]:
        case "text":
            empty: dict[str, Any] = {"type": "text", "text": ""}
            deltas = [{"type": "text_delta", "text": t} for t in _pieces(block["text"], chunk)]
        case "thinking":
            empty = {"type": "thinking", "thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": t} for t in _pieces(block["thinking"], chunk)]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        case "tool_use":
            empty = {"type": "tool_use", "id": block["id"], "name": block["name"], "input": {}}
            data = block["input_json"] if "input_json" in block else to_json(block["input"]).decode()
            # The service starts with an empty piece, which is all of an empty input.
            pieces = ["", *(_pieces(data, chunk) if data != "{}" else ())]
            deltas = [{"type": "input_json_delta", "partial_json": p} for p in pieces]
        case _:  # a block without deltas, such as redacted thinking
            empty, deltas = dict(block), []
    return [
        event("content_block_start", {"index": i, "content_block": empty}),
        *(event("content_block_delta", {"index": i, "delta": d}) for d in deltas),
        event("content_block_stop", {"index": i}),
    ]


def _pieces(data: str, size: int) -> list[str]:
    size = size or max(1, len(data))
    return [data[i : i + size] for i in range(0, len(data), size)]


def to_json(value: object) -> bytes:
    """Return compact JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
