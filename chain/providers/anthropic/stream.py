"""Parses server-sent events into one reply. Pure.

The parser relies only on the documentation (https://docs.anthropic.com/en/api/messages-streaming): it ignores pings,
unknown events and unknown deltas, and stores unknown blocks as received. It raises an error if a stream ends before
``message_stop`` or cannot be parsed, so it never returns a partial reply. It also raises an error for a reply that a
later request could not contain, because of a number that JSON does not have or a tool name that the API refuses.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, get_args

from chain.errors import ModelError
from chain.messages import Block, Opaque, StopReason, Text, Thinking, ToolCall, Usage, assistant, is_signed_thinking
from chain.model import Delta, Reply

MAX_EVENT = 16 * 1024 * 1024
"""The maximum number of bytes of one event. Without a limit, a stream without line ends could exhaust the memory."""

MAX_REPLY = 64 * 1024 * 1024
"""The maximum number of bytes of a stream. A reply of 128,000 tokens has 20 MB if each token is an event."""

MAX_REPLY_BLOCKS = 1_000
"""The maximum number of blocks of a reply; each tool call is one."""

MAX_COUNT = 10**12
"""The highest number of tokens that is accepted. The price of a number with hundreds of digits cannot be computed."""

MAX_JSON_NESTING = 100
"""The maximum number of levels of JSON in a block. A deeper value could perhaps be parsed, but not encoded."""

_COUNTS = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
_STOP_REASONS = frozenset(get_args(StopReason))
_TRUNCATING = ("max_tokens", "model_context_window_exceeded", "refusal")
"""The stop reasons that may truncate a block."""

_CAUSES = {
    "overloaded_error": "overloaded",
    "rate_limit_error": "rate limited",
    "api_error": "service failed",
    "timeout_error": "service timed out",
}
"""Short causes for the error types after which a retry may succeed."""

_STATUSES = {"invalid_request_error": 400, "not_found_error": 404, "request_too_large": 413, "api_error": 500}
"""The HTTP statuses of error types."""

_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""Matches a tool name that the API accepts: https://docs.anthropic.com/en/docs/agents-and-tools/tool-use/implement-tool-use."""


class BrokenStream(ModelError):
    """A stream that ended early or cannot be parsed. A retry may help."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the model's reply broke off: {why}", retryable=True)


class RequestRefused(ModelError):
    """A request that the service refused with this HTTP ``status``. ``said`` is the service's own message."""

    def __init__(self, message: str, said: str, status: int = 400) -> None:
        super().__init__(message)
        self.said = said
        self.status = status

    def find_mentioned(self, parameters: Iterable[str]) -> list[str]:
        """Return the ``parameters`` that the service's message names outside of paths such as ``tools.0.effort``."""
        return [p for p in parameters if re.search(rf"(?<![\w.]){p}(?!\w)", self.said)]


class ServiceError(RequestRefused):
    """An ``error`` event: the service ended the reply. ``kind`` is the error type of the API."""

    def __init__(self, kind: str, message: str) -> None:
        # Repeating an invalid request does not help.
        may_pass = kind not in ("invalid_request_error", "authentication_error", "permission_error", "not_found_error")
        why = f"the model's service ended the reply with an error: {message or kind}"
        super().__init__(why, message or kind, _STATUSES.get(kind, 0))
        self.retryable, self.cause = may_pass, _CAUSES.get(kind, "")
        self.kind = kind


@dataclass
class _OpenBlock:
    raw: Mapping[str, Any]
    text: list[str] = field(default_factory=list)
    json: list[str] = field(default_factory=list)
    signature: list[str] = field(default_factory=list)


class ReplyReader:
    """A parser for one streamed reply."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._data: list[bytearray] = []
        self._size = 0
        self._received = 0
        self._blocks: dict[int, _OpenBlock] = {}
        self._stop_reason = ""
        self._usage: dict[str, int] = {}
        self._has_started = False
        self._has_ended = False

    def feed(self, chunk: bytes) -> Iterator[Delta]:
        """Parse bytes and yield their deltas. Raise ``BrokenStream``, or ``ServiceError`` for an ``error`` event."""
        self._received += len(chunk)
        if self._received > MAX_REPLY:
            raise BrokenStream("it is too long")
        # Split only at a complete line: otherwise a long one would be copied again for each chunk.
        self._rest += chunk
        if b"\n" in chunk:
            *rows, self._rest = self._rest.split(b"\n")
            for row in rows:
                row = row.rstrip(b"\r")
                if row.startswith(b"data:"):
                    self._data.append(row[5:])
                    self._size += len(row)
                elif not row and self._data:
                    data, self._data, self._size = b"\n".join(self._data), [], 0
                    yield from self._read_event(data)
        if self._size + len(self._rest) > MAX_EVENT:
            raise BrokenStream("one of its events is too long")

    @property
    def has_begun(self) -> bool:
        """Whether any bytes of the reply were received."""
        return self._received > 0

    @property
    def usage(self) -> Usage:
        """The usage that the service has reported so far, in tokens."""
        return Usage(*(self._usage.get(name, 0) for name in _COUNTS))

    def reply(self) -> Reply:
        """Return the complete reply at the end of the stream. Raise ``BrokenStream`` if the reply is not complete."""
        if not self._has_ended:
            raise BrokenStream("it ended too early")
        reason: Any = self._stop_reason or "end_turn"
        if reason not in _STOP_REASONS:
            raise ModelError(f"the model stopped for a reason that this version does not know: {reason[:80]}")
        cut: list[str] = []
        last = max(self._blocks, default=0)
        blocks = tuple(self._finish_block(self._blocks[n], cut, is_last=n == last) for n in sorted(self._blocks))
        message = assistant(blocks)
        if message.calls and is_signed_thinking(message.blocks[-1]) and reason != "refusal":
            # The API accepts neither a reply that ends in thinking, nor calls without all of their thinking.
            raise BrokenStream("it has thinking after its last call")
        return Reply(message, reason, self.usage, frozenset(cut))

    def _read_event(self, data: bytes) -> Iterable[Delta]:
        if self._has_ended:
            return ()  # for example the "[DONE]" of some compatible servers
        try:
            event = _JSON.decode(data.decode())
        except (ValueError, RecursionError):
            raise BrokenStream("one of its events is not JSON") from None
        try:
            return self._apply(event)
        except (KeyError, TypeError, AttributeError):
            raise BrokenStream("one of its events has an unexpected form") from None

    def _apply(self, event: Any) -> Iterable[Delta]:  # noqa: ANN401 - JSON
        match event["type"]:
            case "content_block_delta":
                return self._apply_delta(self._blocks[event["index"]], event["delta"])
            case "content_block_start":
                return self._open(event["index"], event["content_block"])
            case "message_start":
                self._has_started = True
                self._count(event["message"].get("usage"))
            case "message_delta":
                self._stop_reason = _check_text(event["delta"].get("stop_reason") or self._stop_reason)
                self._count(event.get("usage"))
            case "message_stop":
                self._has_ended = self._has_started
            case "error":
                raise ServiceError(str(event["error"].get("type", "")), str(event["error"].get("message", "")))
            case _:
                pass
        return ()

    def _open(self, index: object, block: Mapping[str, Any]) -> Iterable[Delta]:
        if not isinstance(index, int) or index in self._blocks:
            raise BrokenStream("one of its blocks starts twice or has no number")
        if len(self._blocks) >= MAX_REPLY_BLOCKS:
            raise BrokenStream(f"it has more than {MAX_REPLY_BLOCKS:,} blocks")
        self._blocks[index] = opened = _OpenBlock(block, signature=[_check_text(block.get("signature") or "")])
        kind = block["type"]
        return self._append(opened, kind, block[kind]) if kind in ("text", "thinking") and block.get(kind) else ()

    def _apply_delta(self, block: _OpenBlock, delta: Mapping[str, Any]) -> Iterable[Delta]:
        match delta["type"]:
            case "text_delta":
                return self._append(block, "text", delta["text"])
            case "thinking_delta":
                return self._append(block, "thinking", delta["thinking"])
            case "input_json_delta":
                block.json.append(_check_text(delta["partial_json"]))
            case "signature_delta":
                block.signature.append(_check_text(delta["signature"]))
            case _:
                pass
        return ()

    def _append(self, block: _OpenBlock, kind: Literal["text", "thinking"], text: object) -> Iterable[Delta]:
        block.text.append(_check_text(text))
        return [Delta(kind, block.text[-1])] if text else ()

    def _count(self, usage: Mapping[str, Any] | None) -> None:
        # Each count is the total so far, so the last one is used. A later 0 means "unknown".
        for name, count in (usage or {}).items():
            is_count = isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= MAX_COUNT
            if is_count and (count or name not in self._usage):
                self._usage[name] = count

    def _finish_block(self, block: _OpenBlock, cut: list[str], *, is_last: bool) -> Block:
        try:
            match block.raw["type"]:
                case "text":
                    # Citations are dropped: the API accepts the text without them.
                    return Text("".join(block.text))
                case "thinking":
                    return Thinking("".join(block.text), "".join(block.signature))
                case "tool_use":
                    return self._finish_call(block, cut, is_last=is_last)
                case _:
                    input = {"input": _JSON.decode("".join(block.json))} if block.json else {}
                    return Opaque({key: _check_json(value) for key, value in {**block.raw, **input}.items()})
        except (ValueError, KeyError, TypeError, RecursionError):
            raise BrokenStream("one of its blocks has an unexpected form") from None

    def _finish_call(self, block: _OpenBlock, cut: list[str], *, is_last: bool) -> ToolCall:
        """Return the tool call of a block. If the input of the call was truncated, add the call's id to ``cut``.

        Raise ``BrokenStream`` for an invalid call. Fields of the block other than id, name and input concern server
        tools and are dropped.
        """
        id, name = _check_text(block.raw["id"]), _check_text(block.raw["name"])
        if not _TOOL_NAME.fullmatch(name):
            raise BrokenStream(f"it calls a tool by an invalid name, {name[:80]!r}")
        written, given = "".join(block.json), block.raw.get("input") or {}
        may_be_cut = is_last and self._stop_reason in _TRUNCATING
        if may_be_cut and not written.strip() and not given:
            # Truncated before any input, so the call was not necessarily meant to have none.
            cut.append(id)
            return ToolCall(id, name, {})
        try:
            input = _check_json(_JSON.decode(written) if written.strip() else given)
        except ValueError:
            input = None
        if isinstance(input, dict):
            return ToolCall(id, name, input)
        if not may_be_cut:
            raise BrokenStream(f"the input of its call to {name} is not a JSON object")
        cut.append(id)
        return ToolCall(id, name, {})


def _check_text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _check_json(value: object) -> object:
    """Return a JSON value. Raise ``ValueError`` if it could not be sent in a request."""
    level = [value]
    for _ in range(MAX_JSON_NESTING):
        if not level:
            return value
        if any(isinstance(v, float) and not math.isfinite(v) for v in level):
            raise ValueError
        inner = [v.values() if isinstance(v, dict) else v for v in level if isinstance(v, dict | list)]
        level = [v for values in inner for v in values]
    raise ValueError


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


_JSON = json.JSONDecoder(parse_constant=_refuse_constant)
"""A decoder that refuses ``NaN`` and ``Infinity``, which no service accepts."""
