"""What of a request a service refuses, from its words. Pure.

A service names content by its place (``messages.2.content.0``, ``tools[3].function``), or not at all. Then images and
thinking are suspected, since these are what not every model accepts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from chain.errors import ContentRefused, RefusedContent
from chain.messages import Block, ToolResult, digest_of, is_signed_thinking
from chain.model import Request
from chain.providers.anthropic.encoding import sent_turns
from chain.providers.anthropic.failures import RequestRefused

_BLOCK = re.compile(
    r"\bmessages[.\[](\d+)\]?\.content[.\[](\d+)\]?(?:\.tool_result)?(?:\.content[.\[](\d+))?(?!.*cache_control)"
)
_TOOL = re.compile(r"\b(?:tools|function_declarations)[.\[](\d+)")
_TOOL_NAME = re.compile(r"\b(?:tool|function)s?\b[^\"'`]{0,20}[\"'`]([\w-]+)[\"'`]")
_IMAGE = re.compile(r"\bimages?\b", re.IGNORECASE)
_TOO_MANY = re.compile(r"too many image|many-image|(at most|maximum of|limit of|more than) \d+ image", re.IGNORECASE)
_THINKING = re.compile(r"thinking|\bsignature\b|\breasoning", re.IGNORECASE)


def refused_content(error: RequestRefused, request: Request, model: str) -> ContentRefused | None:
    """Return the error with the content that the model refuses; ``None`` if nothing in the request is suspected."""
    found = _found(error, request, model)
    if found is None:
        return None
    refused = ContentRefused(str(error), *found)
    refused.retryable, refused.retry_after, refused.cause = error.retryable, error.retry_after, error.cause
    refused.usage = error.usage
    return refused


def _found(error: RequestRefused, request: Request, model: str) -> tuple[RefusedContent, Sequence[str]] | None:
    said, tools = error.said, [tool.name for tool in request.tools]
    turns = sent_turns(request.messages, model)
    blocks = [block for _, turn in turns for block in turn]
    has_images = any(image.data for message in request.messages for image in message.images)
    if has_images and (error.status == 413 or _TOO_MANY.search(said)):
        return "oldest images", ()
    if found := _BLOCK.search(said):
        turn, n = int(found[1]), int(found[2])
        if turn < len(turns) and n < len(turns[turn][1]):
            return _of_block(turns[turn][1][n], said, None if found[3] is None else int(found[3]))
    elif (numbers := [int(n) for n in _TOOL.findall(said)]) and numbers[-1] < len(tools):
        return "tools", (tools[numbers[-1]],)
    elif (found := _TOOL_NAME.search(said)) and found[1] in tools:
        return "tools", (found[1],)
    if _THINKING.search(said) and any(map(is_signed_thinking, blocks)):
        return "thinking", ()
    return ("images", ()) if has_images else None


def _of_block(block: Block, said: str, part: int | None) -> tuple[RefusedContent, Sequence[str]]:
    if is_signed_thinking(block):
        return "thinking", ()
    if isinstance(block, ToolResult) and block.images:
        if part is not None and 0 < part <= len(block.images):
            return "content", (block.images[part - 1].digest,)
        if _IMAGE.search(said):
            return "content", [image.digest for image in block.images]
    return "content", (digest_of(block),)
