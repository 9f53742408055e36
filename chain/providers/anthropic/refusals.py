"""Finds the content of a request that a service refuses, from its error message. Pure.

Most services name the content by its position (``messages.2.content.0``, ``tools[3].function``). If a service names no
content, images and thinking are suspected, because not every model accepts them.
"""

from __future__ import annotations

import re

from chain.messages import Block, ToolResult, digest_of, is_signed_thinking
from chain.model import Request
from chain.providers.anthropic.encoding import request_turns
from chain.providers.anthropic.stream import RequestRefused

_REFUSAL_STATUSES = frozenset({400, 404, 413, 415, 422, 500, 501})
"""The statuses with which services refuse the content of a request."""

_BLOCK = re.compile(
    r"\bmessages[.\[](\d+)\]?\.content[.\[](\d+)\]?(?:\.tool_result)?(?:\.content[.\[](\d+))?(?!.*cache_control)"
)
_TOOL = re.compile(r"\b(?:tools|function_declarations)[.\[](\d+)")
_TOOL_NAME = re.compile(r"\b(?:tool|function)s?\b[^\"'`]{0,20}[\"'`]([\w-]+)[\"'`]")
_IMAGE = re.compile(r"\bimages?\b", re.IGNORECASE)
_TOO_MANY = re.compile(r"too many image|many-image|(at most|maximum of|limit of|more than) \d+ image", re.IGNORECASE)
_THINKING = re.compile(r"thinking|\bsignature\b|\breasoning", re.IGNORECASE)


def refused_content(error: RequestRefused, request: Request, model: str) -> tuple[str, ...]:
    """Return the refused content, in the form of ``ModelError.refused``; empty if no content is suspected."""
    if error.status not in _REFUSAL_STATUSES:
        return ()
    said, tools = error.said, [tool.name for tool in request.tools]
    turns = request_turns(request.messages, model)
    has_images = any(image.data for message in request.messages for image in message.images)
    if has_images and (error.status == 413 or _TOO_MANY.search(said)):
        return ("oldest images",)
    if found := _BLOCK.search(said):
        turn, n = int(found[1]), int(found[2])
        if turn < len(turns) and n < len(turns[turn]):
            return _refused_block(turns[turn][n], said, int(found[3] or 0))
    elif (numbers := [int(n) for n in _TOOL.findall(said)]) and numbers[-1] < len(tools):
        return "tools", tools[numbers[-1]]
    elif (found := _TOOL_NAME.search(said)) and found[1] in tools:
        return "tools", found[1]
    if _THINKING.search(said) and any(is_signed_thinking(block) for turn in turns for block in turn):
        return ("thinking",)
    return ("images",) if has_images else ()


def _refused_block(block: Block, said: str, part: int) -> tuple[str, ...]:
    if is_signed_thinking(block):
        return ("thinking",)
    images = block.images if isinstance(block, ToolResult) else ()
    named = images[part - 1 : part] if part else images if _IMAGE.search(said) else ()
    return "content", *map(digest_of, named or (block,))
