"""The rules for what stands in a message, a system prompt or a tool: blocks and cache breakpoints. Pure."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any, Final, Literal

from .fault import Body, a_choice, a_flag, a_list, a_string, an_object, refuse

MAX_BREAKPOINTS: Final = 4

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
_CALL_ID = re.compile(r"[a-zA-Z0-9_-]+\Z")


def is_thinking(block: Body) -> bool:
    """Whether the block is the model's reasoning, readable or not."""
    return block.get("type") in ("thinking", "redacted_thinking")


def message(raw: object, where: str, *, kept: bool = False) -> None:
    """One message by itself. ``kept``: as a program keeps it, which may be more than it sends."""
    message = an_object(raw, where, required={"role", "content"}, optional=set())
    role = message["role"]
    if role not in ("user", "assistant", "system"):
        refuse(
            f'{where}.role: Unexpected role "{role}". Allowed roles are "user" or "assistant". The Messages API '
            'accepts a top-level `system` parameter, not "system" as an input message role.'
        )
    content = message["content"]
    if isinstance(content, str):
        if not content:
            refuse(f"{where}: {_NOTHING[role]}")
        not_blank(content, "messages")
        return
    blocks = a_list(content, f"{where}.content")
    if not blocks:
        refuse(f"{where}: {_NOTHING[role]}")
    for j, block in enumerate(blocks):
        if not kept or (isinstance(block, Mapping) and block.get("type") in _SENT_AS_KEPT):
            _block(_without_images(block) if kept else block, f"{where}.content.{j}", role)
    if role == "assistant" and is_thinking(blocks[-1]) and not kept:
        refuse(f"{where}: The final block in an assistant message cannot be `thinking`.")


_NOTHING: Final = {
    "user": "user messages must have non-empty content",
    "assistant": "all messages must have non-empty content except for the optional final assistant message",
    "system": "system content must contain at least one block",
}


def _without_images(block: object) -> object:
    """A block as a journal has it, without the images of a result, which are kept elsewhere."""
    match block:
        case {"type": "tool_result", "content": list(content)}:
            return {**block, "content": [part for part in content if part.get("type") != "image"]}
        case _:
            return block


_SENT_AS_KEPT: Final = {"text", "tool_use", "tool_result"}


def _block(raw: object, where: str, role: str) -> None:
    kind = raw.get("type") if isinstance(raw, Mapping) else None
    match kind:
        case "text":
            text_block(raw, where, "messages")
        case _ if role == "system":
            refuse(f"{where.split('.content')[0]}: role 'system' supports text blocks only")
        case "tool_use":
            block = an_object(
                raw,
                where,
                required={"type", "id", "name", "input"},
                optional={"cache_control", "caller"},
                tag="tool_use",
            )
            if role != "assistant":
                refuse(f"{where}: `tool_use` blocks can only be in `assistant` messages")
            if not _CALL_ID.match(a_string(block["id"], f"{where}.tool_use.id")):
                refuse(f"{where}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'")
            if not TOOL_NAME.match(a_string(block["name"], f"{where}.tool_use.name")):
                refuse(f"{where}.tool_use.name: String should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'")
            if not isinstance(block["input"], Mapping):
                refuse(f"{where}.tool_use.input: Input should be a valid dictionary")
            cache_control(block, f"{where}.tool_use")
        case "tool_result":
            _tool_result(raw, where, role)
        case "thinking":
            block = an_object(raw, where, required={"type", "thinking", "signature"}, optional=set(), tag="thinking")
            if role != "assistant":
                refuse(f"{where}: `thinking` blocks can only be in `assistant` messages")
            a_string(block["thinking"], f"{where}.thinking.thinking")
            a_string(block["signature"], f"{where}.thinking.signature")
        case "redacted_thinking":
            block = an_object(raw, where, required={"type", "data"}, optional=set(), tag="redacted_thinking")
            if role != "assistant":
                refuse(f"{where}: `redacted_thinking` blocks can only be in `assistant` messages")
            a_string(block["data"], f"{where}.redacted_thinking.data")
        case "image":
            _image(raw, where, role)
        case None:
            refuse(f"{where}.type: Field required")
        case _:
            refuse(f"{where}: Input tag {kind!r} found using 'type' is not one that this test double models")


MAX_IMAGE: Final = 5 * 1024 * 1024
_BEGINNINGS: Final = {
    "image/png": b"\x89PNG\r\n\x1a\n",
    "image/jpeg": b"\xff\xd8\xff",
    "image/gif": b"GIF8",
    "image/webp": b"RIFF",
}


def _image(raw: object, where: str, role: str) -> None:
    block = an_object(raw, where, required={"type", "source"}, optional={"cache_control"}, tag="image")
    if role != "user":
        refuse(f"{where}: `image` blocks can only be in `user` messages")
    at = f"{where}.image.source"
    source = an_object(block["source"], at, required={"type", "media_type", "data"}, optional=set(), tag="base64")
    a_choice(source["type"], f"{at}.type", ("base64",))
    a_choice(source["media_type"], f"{at}.base64.media_type", tuple(_BEGINNINGS))
    try:
        content = base64.b64decode(a_string(source["data"], f"{at}.base64.data"), validate=True)
    except ValueError:
        refuse(f"{at}.base64: invalid base64 data")
    if not content:
        refuse(f"{at}.base64: image cannot be empty")
    if len(content) > MAX_IMAGE:
        refuse(f"{at}.base64: image exceeds 5 MB maximum: {len(content)} bytes > {MAX_IMAGE} bytes")
    is_whole = source["media_type"] != "image/png" or content[12:16] == b"IHDR"
    if not is_whole or not content.startswith(_BEGINNINGS[source["media_type"]]):
        refuse(f"{at}.base64.data: Could not process image")
    cache_control(block, f"{where}.image")


def _tool_result(raw: object, where: str, role: str) -> None:
    block = an_object(
        raw,
        where,
        required={"type", "tool_use_id"},
        optional={"content", "is_error", "cache_control"},
        tag="tool_result",
    )
    if role != "user":
        refuse(f"{where}: `tool_result` blocks can only be in `user` messages")
    if not _CALL_ID.match(a_string(block["tool_use_id"], f"{where}.tool_result.tool_use_id")):
        refuse(f"{where}.tool_result.tool_use_id: String should match pattern '^[a-zA-Z0-9_-]+$'")
    if "is_error" in block:
        a_flag(block["is_error"], f"{where}.tool_result.is_error")
    content = block.get("content", "")
    if not isinstance(content, str):
        for k, part in enumerate(a_list(content, f"{where}.tool_result.content")):
            if isinstance(part, Mapping) and part.get("type") == "image":
                _image(part, f"{where}.tool_result.content.{k}", role)
                continue
            if not isinstance(part, Mapping) or part.get("type") != "text":
                refuse(f"{where}.tool_result.content.{k}: this test double models text and images in tool results only")
            text_block(part, f"{where}.tool_result.content.{k}", "messages")
    if block.get("is_error") is True and not content:
        refuse(f"{where}.tool_result: content cannot be empty if `is_error` is true")
    cache_control(block, f"{where}.tool_result")


def text_block(raw: object, where: str, part: str) -> None:
    """A text block that is not blank."""
    if isinstance(raw, Mapping) and raw.get("type") != "text":
        refuse(f"{where}.type: Input should be 'text'")
    block = an_object(raw, where, required={"type", "text"}, optional={"cache_control", "citations"}, tag="text")
    text = a_string(block["text"], f"{where}.text.text")
    if block.get("cache_control") is not None and not text.strip():
        refuse(f"{where}.text: cache_control cannot be set for empty text blocks")
    if block.get("citations"):
        refuse(f"{where}.text.citations: this test double does not model citations")
    not_blank(text, part)
    cache_control(block, f"{where}.text")


def not_blank(text: str, part: str) -> None:
    """No empty and no blank text."""
    if not text:
        refuse(f"{part}: text content blocks must be non-empty")
    if not text.strip():
        refuse(f"{part}: text content blocks must contain non-whitespace text")


def cache_control(block: Body, where: str) -> None:
    """A well-formed breakpoint, if there is one."""
    raw = block.get("cache_control")
    if raw is None:
        return
    control = an_object(raw, f"{where}.cache_control", required={"type"}, optional={"ttl"})
    if control["type"] != "ephemeral":
        refuse(f"{where}.cache_control.type: Input should be 'ephemeral'")
    if "ttl" in control:
        a_choice(control["ttl"], f"{where}.cache_control.ttl", ("5m", "1h"))


# ---- the whole request


def breakpoints(request: Body) -> None:
    """At most four, and the long-lived ones first, in the order tools, system, messages."""
    controls = [c for c in _controls(request) if c is not None]
    if request.get("cache_control") is not None:
        cache_control(request, "body")
        controls.append(request["cache_control"])
    if len(controls) > MAX_BREAKPOINTS:
        refuse(f"A maximum of {MAX_BREAKPOINTS} blocks with cache_control may be provided. Found {len(controls)}.")
    lives: list[Literal["5m", "1h"]] = [c.get("ttl", "5m") for c in controls]
    if "5m" in lives and "1h" in lives[lives.index("5m") :]:
        refuse("a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block")


def _controls(request: Body) -> list[Any]:
    blocks: list[Body] = [*request.get("tools", [])]
    if isinstance(request.get("system"), list):
        blocks += request["system"]
    for message in request["messages"]:
        if isinstance(message["content"], list):
            for block in message["content"]:
                blocks.append(block)
                if block["type"] == "tool_result" and isinstance(block.get("content"), list):
                    blocks += block["content"]
    return [b.get("cache_control") for b in blocks]
