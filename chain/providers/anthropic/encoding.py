"""Encodes a request for the Messages API. Pure: from ``Request`` to bytes.

A conversation only grows, so the JSON of its turns is cached and only new turns are encoded. Apart from copying these
bytes, the work of an iteration does not grow with the history.

Cache breakpoints let each request reuse the cache of the one before it. A breakpoint finds a cache entry at most 20
blocks back (https://docs.anthropic.com/en/docs/build-with-claude/prompt-caching), and one turn may have more blocks. So
the ends of the last three requests' conversations are marked: the newest to be written, the two before it to be found,
even if the last request was cancelled before the service had written it. The fourth breakpoint is that of the system
prompt. The request tail follows all of them, because the next request does not contain it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from chain.messages import Block, Message, Role, Thinking, is_signed_thinking, sent_form
from chain.model import Request, ToolSpec
from chain.providers.anthropic.service import Parameters

MARKED_ENDS = 3

OPEN_TURNS = 2 * MARKED_ENDS
"""The last turns may still gain or lose a mark, and the very last one may gain blocks, so their blocks are kept one by
one. The turns before them do not change any more: they are kept as the bytes that every request begins with."""

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))

_CACHED = b',"cache_control":{"type":"ephemeral"}}'
_LATER = ("messages", "system", "tools")
"""The keys that follow the head of the body: ``extra_body`` may not repeat them."""


class Encoder:
    """Encodes the requests of one conversation with one model."""

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        """Of these, ``max_tokens`` may change from request to request."""
        self._count = 0
        self._last: Message | None = None
        self._open: list[tuple[Role, list[bytes]]] = []
        self._settled = bytearray()
        self._tools: tuple[Sequence[ToolSpec], bytes] = ((), b"")

    def encode(self, request: Request) -> bytes:
        """Return the body of the request as JSON."""
        head = dumps(self._head(request))[:-1]
        parts = [head, b',"messages":[', *self._conversation(request), b"]"]
        if request.system:
            parts += [b',"system":[', _marked(dumps({"type": "text", "text": request.system})), b"]"]
        if request.tools:
            parts += [b',"tools":', self._tool_list(request.tools)]
        return b"".join([*parts, b"}"])

    def _head(self, request: Request) -> dict[str, Any]:
        own, one_call = self.parameters, request.overrides
        temperature = _first(one_call.temperature, own.temperature)
        effort = _first(one_call.effort, own.effort)
        head: dict[str, Any] = {name: value for name, value in own.extra_body.items() if name not in _LATER}
        head |= {"model": own.model, "max_tokens": _first(one_call.max_tokens, own.max_tokens), "stream": True}
        if temperature is not None:
            head["temperature"] = temperature
        if effort is not None:
            given = head.get("output_config")
            head["output_config"] = {**(given if isinstance(given, Mapping) else {}), "effort": effort}
        if own.thinking is not None:
            head["thinking"] = dict(own.thinking)
        if own.stop_sequences:
            head["stop_sequences"] = list(own.stop_sequences)
        return head

    def _tool_list(self, tools: Sequence[ToolSpec]) -> bytes:
        if self._tools[0] is not tools:
            plain = [{"name": t.name, "description": t.description, "input_schema": t.input_schema} for t in tools]
            self._tools = tools, dumps(plain)
        return self._tools[1]

    def _conversation(self, request: Request) -> list[bytes | bytearray]:
        self._encode_new(request.messages)
        turns = [(role, list(blocks)) for role, blocks in self._open]
        for _, blocks in [turn for turn in turns if turn[0] == "user"][-MARKED_ENDS:]:
            blocks[-1] = _marked(blocks[-1])
        tail = [dumps(text) for text in request.tail]
        if not self.parameters.system_messages:
            turns[-1][1].extend(b'{"type":"text","text":%s}' % text for text in tail)
            tail = []
        return [
            self._settled,
            b",".join(_turn(role, blocks) for role, blocks in turns),
            *(b',{"role":"system","content":%s}' % text for text in tail),
        ]

    def _encode_new(self, messages: Sequence[Message]) -> None:
        """Encode the new messages.

        A history that has the last encoded message at the same place continues it. Any other history, such as a
        compacted one, is encoded from its start.
        """
        if self._count > len(messages) or (self._count and messages[self._count - 1] is not self._last):
            self._count, self._open, self._settled = 0, [], bytearray()
        for message in messages[self._count :]:
            self._count, self._last = self._count + 1, message
            blocks = [dumps(sent_form(b)) for b in _sent(message, self.parameters.model)]
            if not blocks:
                continue
            if not self._open or self._open[-1][0] != message.role:
                self._open.append((message.role, []))
            self._open[-1][1].extend(blocks)
            if len(self._open) > OPEN_TURNS:
                self._settled += _turn(*self._open.pop(0)) + b","


def dumps(value: Any) -> bytes:  # noqa: ANN401 - any JSON
    """Return compact JSON in UTF-8. A lone surrogate, which UTF-8 cannot encode, becomes a question mark."""
    return _ENCODER.encode(value).encode(errors="replace")


def sent_turns(messages: Iterable[Message], model: str) -> list[list[Block]]:
    """Return the blocks of each turn of a request, as a service numbers them."""
    sent = ((message.role, block) for message in messages for block in _sent(message, model))
    return [[block for _, block in turn] for _, turn in groupby(sent, key=lambda pair: pair[0])]


def _sent(message: Message, model: str) -> list[Block]:
    # Thinking cannot be sent back that no service signed, nor to another model than the one that signed it. Nor may a
    # reply end in thinking, as one does that the token limit cut; a message of which nothing is left is not sent.
    is_own = message.model in ("", model)
    kept = [b for b in message.blocks if (is_own if is_signed_thinking(b) else not isinstance(b, Thinking))]
    while message.role == "assistant" and kept and is_signed_thinking(kept[-1]):
        del kept[-1]
    return kept


def _turn(role: Role, blocks: Sequence[bytes]) -> bytes:
    return b'{"role":"%s","content":[%s]}' % (role.encode(), b",".join(blocks))


def _marked(block: bytes) -> bytes:
    return block[:-1] + _CACHED


def _first(one_call: Any, own: Any) -> Any:  # noqa: ANN401 - a setting of any type
    return own if one_call is None else one_call
