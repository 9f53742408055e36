"""Encodes requests for the Messages API. Pure.

A turn is a series of messages of one role. A conversation only grows, so the JSON of its turns is cached, and only new
turns are encoded. Apart from copying the cached bytes, the work for a request does not grow with the conversation.

Cache breakpoints let each request reuse the cache entry of the one before. A breakpoint finds a cache entry at most 20
blocks back (https://docs.anthropic.com/en/docs/build-with-claude/prompt-caching), and one turn may have more blocks. So
three breakpoints mark where the conversation ended in the last three requests. The newest breakpoint creates an entry.
The two others find an entry, even if the last request was cancelled before the service had stored its entry. A fourth
breakpoint is at the end of the system prompt. The request tail follows all breakpoints, because the next request does
not contain it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from chain.messages import Block, Message, Role, Thinking, block_to_request_json, is_signed_thinking
from chain.model import Request, ToolSpec
from chain.providers.anthropic.service import Parameters

MARKED_ENDS = 3
"""The number of latest requests whose last user turn has a breakpoint."""

OPEN_TURNS = 2 * MARKED_ENDS
"""The number of latest turns whose blocks are cached one by one, because their blocks or breakpoints may still change.

Earlier turns are cached as the bytes with which the list of messages begins.
"""

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))

_CACHED = b',"cache_control":{"type":"ephemeral"}}'
_KEYS_AFTER_HEAD = ("messages", "system", "tools")
"""The keys of a body that follow the keys of ``_head``. ``extra_body`` cannot set these keys."""


class Encoder:
    """An encoder for the requests of one conversation to one model. It caches the encoded turns."""

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        """The parameters of the requests. Only ``max_tokens`` may change from request to request."""
        self._count = 0
        self._last: Message | None = None
        self._open_turns: list[tuple[Role, list[bytes]]] = []
        self._closed_turns = bytearray()
        self._tools: tuple[Sequence[ToolSpec], bytes] = ((), b"")

    def encode(self, request: Request) -> bytes:
        """Return the body of the request as JSON."""
        head = dumps(self._head(request))[:-1]
        parts = [head, b',"messages":[', *self._conversation(request), b"]"]
        if request.system:
            parts += [b',"system":[', _with_breakpoint(dumps({"type": "text", "text": request.system})), b"]"]
        if request.tools:
            parts += [b',"tools":', self._tool_list(request.tools)]
        return b"".join([*parts, b"}"])

    def _head(self, request: Request) -> dict[str, Any]:
        own = replace(self.parameters, **request.overrides.values)
        head: dict[str, Any] = {name: value for name, value in own.extra_body.items() if name not in _KEYS_AFTER_HEAD}
        head |= {"model": own.model, "max_tokens": own.max_tokens, "stream": True}
        if own.temperature is not None:
            head["temperature"] = own.temperature
        if own.effort is not None:
            given = head.get("output_config")
            head["output_config"] = {**(given if isinstance(given, Mapping) else {}), "effort": own.effort}
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
        turns = [(role, list(blocks)) for role, blocks in self._open_turns]
        for _, blocks in [turn for turn in turns if turn[0] == "user"][-MARKED_ENDS:]:
            blocks[-1] = _with_breakpoint(blocks[-1])
        tail = [dumps(text) for text in request.tail]
        if not self.parameters.system_messages:
            turns[-1][1].extend(b'{"type":"text","text":%s}' % text for text in tail)
            tail = []
        return [
            self._closed_turns,
            b",".join(_turn(role, blocks) for role, blocks in turns),
            *(b',{"role":"system","content":%s}' % text for text in tail),
        ]

    def _encode_new(self, messages: Sequence[Message]) -> None:
        """Encode the messages that follow the last encoded message.

        Encode all messages if the last encoded message is no longer at its position: then the conversation was
        replaced, for example by a compaction.
        """
        if self._count > len(messages) or (self._count and messages[self._count - 1] is not self._last):
            self._count, self._open_turns, self._closed_turns = 0, [], bytearray()
        for message in messages[self._count :]:
            self._count, self._last = self._count + 1, message
            blocks = [dumps(block_to_request_json(b)) for b in _sendable_blocks(message, self.parameters.model)]
            if not blocks:
                continue
            if not self._open_turns or self._open_turns[-1][0] != message.role:
                self._open_turns.append((message.role, []))
            self._open_turns[-1][1].extend(blocks)
            if len(self._open_turns) > OPEN_TURNS:
                self._closed_turns += _turn(*self._open_turns.pop(0)) + b","


def dumps(value: Any) -> bytes:  # noqa: ANN401 - any JSON
    """Return compact JSON in UTF-8. A lone surrogate, which UTF-8 cannot encode, becomes a question mark."""
    return _ENCODER.encode(value).encode(errors="replace")


def request_turns(messages: Iterable[Message], model: str) -> list[list[Block]]:
    """Return the turns of a request, each as the list of its blocks.

    Blocks that are not sent are left out, so each position is the one by which the service names the block.
    """
    sent = ((message.role, block) for message in messages for block in _sendable_blocks(message, model))
    return [[block for _, block in turn] for _, turn in groupby(sent, key=lambda pair: pair[0])]


def _sendable_blocks(message: Message, model: str) -> list[Block]:
    # Thinking without a signature cannot be sent back, and signed thinking only to the model that signed it. A reply
    # must not end in thinking, which happens at the token limit. A message without any blocks left is not sent.
    is_own = message.model in ("", model)
    kept = [b for b in message.blocks if (is_own if is_signed_thinking(b) else not isinstance(b, Thinking))]
    while message.role == "assistant" and kept and is_signed_thinking(kept[-1]):
        del kept[-1]
    return kept


def _turn(role: Role, blocks: Sequence[bytes]) -> bytes:
    return b'{"role":"%s","content":[%s]}' % (role.encode(), b",".join(blocks))


def _with_breakpoint(block: bytes) -> bytes:
    return block[:-1] + _CACHED
