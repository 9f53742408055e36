"""The rules for a message and for each kind of block, with the breakpoints of the prompt cache. Pure."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any, Final

from .shapes import Body, fit, refuse

MAX_BREAKPOINTS: Final = 4

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
_CALL_ID = re.compile(r"[a-zA-Z0-9_-]+\Z")

MAX_IMAGE: Final = 5 * 1024 * 1024
_IMAGES: Final = {
    "image/png": b"\x89PNG\r\n\x1a\n",
    "image/jpeg": b"\xff\xd8\xff",
    "image/gif": b"GIF8",
    "image/webp": b"RIFF",
}
"""The kinds of images, and how each begins."""

_CACHED: Final = {"cache_control?": {"type": ("ephemeral",)}}
TEXT: Final = {"type": ("text",), "text": str, "citations?": list, **_CACHED}
_IMAGE: Final = {
    "type": ("image",),
    "source": {"type": ("base64",), "media_type": tuple(_IMAGES), "data": str},
    **_CACHED,
}
_BLOCKS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "text": ("", TEXT),
    "image": ("user", _IMAGE),
    "tool_use": ("assistant", {"type": str, "id": _CALL_ID, "name": TOOL_NAME, "input": Mapping, **_CACHED}),
    "tool_result": ("user", {"type": str, "tool_use_id": _CALL_ID, "content?": object, "is_error?": bool, **_CACHED}),
    "thinking": ("assistant", {"type": str, "thinking": str, "signature": str}),
    "redacted_thinking": ("assistant", {"type": str, "data": str}),
}
"""The kinds of blocks: the role that may send them ("" for any), and their shape."""

_NOTHING: Final = {
    "user": "user messages must have non-empty content",
    "assistant": "all messages must have non-empty content except for the optional final assistant message",
    "system": "system content must contain at least one block",
}
_SENT_AS_KEPT: Final = ("text", "tool_use", "tool_result")


def is_thinking(block: Body) -> bool:
    """Return whether the block is the model's reasoning, readable or not."""
    return block.get("type") in ("thinking", "redacted_thinking")


def check_message(raw: Any, where: str, *, kept: bool = False) -> None:
    """Refuse a message that is wrong by itself. ``kept``: as it is stored, with blocks that may not be sent."""
    fit(raw, {"role": str, "content": object, **({"model?": str} if kept else {})}, where)
    role, content = raw["role"], raw["content"]
    if role not in _NOTHING:
        refuse(f'{where}.role: Unexpected role "{role}". Allowed roles are "user" or "assistant".')
    if not content:
        refuse(f"{where}: {_NOTHING[role]}")
    if isinstance(content, str):
        check_text(content, "messages")
        return
    for j, block in enumerate(fit(content, list, f"{where}.content")):
        kind = block.get("type") if isinstance(block, Mapping) else None
        if not kept or kind in _SENT_AS_KEPT:
            _check_block(block, kind, f"{where}.content.{j}", role, kept=kept)
    if not kept and role == "assistant" and is_thinking(content[-1]):
        refuse(f"{where}: The final block in an assistant message cannot be `thinking`.")


def _check_block(block: Any, kind: Any, where: str, role: str, *, kept: bool) -> None:
    if not isinstance(kind, str):
        refuse(f"{where}.type: Field required")
    if kind not in _BLOCKS:
        refuse(f"{where}: Input tag {kind!r} found using 'type' is not one that this test double models")
    owner, shape = _BLOCKS[kind]
    if role == "system" and kind != "text":
        refuse(f"{where}: role 'system' supports text blocks only")
    if owner not in ("", role):
        refuse(f"{where}: `{kind}` blocks can only be in `{owner}` messages")
    at = f"{where}.{kind}"
    fit(block, shape, at)
    match kind:
        case "text":
            if "cache_control" in block and not block["text"].strip():
                refuse(f"{at}: cache_control cannot be set for empty text blocks")
            check_text(block["text"], "messages")
        case "image":
            _check_image(block, at)
        case "tool_result":
            _check_result(block, at, kept=kept)
        case _:
            pass


def _check_result(block: Body, at: str, *, kept: bool) -> None:
    content = block.get("content", "")
    if block.get("is_error") and not content:
        refuse(f"{at}: content cannot be empty if `is_error` is true")
    if isinstance(content, str):
        return
    for k, part in enumerate(fit(content, list, f"{at}.content")):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in ("text", "image"):
            refuse(f"{at}.content.{k}: this test double models text and images in tool results only")
        if kind == "image" and block.get("is_error") and not kept:
            refuse(f"{at}: all content must be type `text` if `is_error` is true")
        if kind == "text" or not kept:  # a journal stores images elsewhere
            _check_block(part, kind, f"{at}.content.{k}", "user", kept=kept)


def _check_image(block: Body, at: str) -> None:
    source = block["source"]
    try:
        content = base64.b64decode(source["data"], validate=True)
    except ValueError:
        refuse(f"{at}.source.base64: invalid base64 data")
    if len(content) > MAX_IMAGE:
        refuse(f"{at}.source.base64: image exceeds 5 MB maximum: {len(content)} bytes > {MAX_IMAGE} bytes")
    is_whole = source["media_type"] != "image/png" or content[12:16] == b"IHDR"
    if not is_whole or not content.startswith(_IMAGES[source["media_type"]]):
        refuse(f"{at}.source.base64.data: Could not process image")


def check_text(text: str, part: str) -> None:
    """Refuse empty and blank text."""
    if not text:
        refuse(f"{part}: text content blocks must be non-empty")
    if not text.strip():
        refuse(f"{part}: text content blocks must contain non-whitespace text")


def check_breakpoints(request: Body) -> None:
    """Refuse more than four breakpoints in the tools, the system prompt and the messages."""
    blocks: list[Body] = [*request.get("tools", [])]
    for content in (request.get("system"), *(m["content"] for m in request["messages"])):
        blocks += content if isinstance(content, list) else []
    count = sum("cache_control" in block for block in blocks)
    if count > MAX_BREAKPOINTS:
        refuse(f"A maximum of {MAX_BREAKPOINTS} blocks with cache_control may be provided. Found {count}.")
