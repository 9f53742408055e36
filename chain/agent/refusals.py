"""Content that the service refuses: requests omit it, and stubs replace it. Pure.

After a refusal, the next request omits the suspected content. The removal is recorded only if the service answers that
request. So a refusal for another reason (no credit, an unknown model) removes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate

from chain.errors import ModelError
from chain.journal.records import REFUSED, Removed
from chain.messages import (
    Block,
    Image,
    Message,
    Text,
    ToolCall,
    ToolResult,
    digest_of,
    is_signed_thinking,
    replace_images,
)

MAX_REQUEST_IMAGE_BYTES = 20_000_000
"""The limit of all images of a request, in bytes. As base64 they have 27 MB; a whole request may have 32 MB."""

OVER_LIMIT = f"the images of one request may have at most {MAX_REQUEST_IMAGE_BYTES // 10**6} MB"
TOO_MANY_IMAGES = "the service accepts no more images in one request"


def apply_removal(messages: Sequence[Message], removed: Removed) -> Sequence[Message]:
    """Return the messages, with stubs in place of the removed content; ``messages`` itself if nothing changes.

    If ``removed`` has a digest n times, the first n blocks with this digest are replaced. The first changed message and
    all messages after it are new objects, so that a provider's cache notices the change.
    """
    remaining = Counter(removed.digests)

    def stub(block: Block) -> Block:
        if not remaining or not remaining[digest := digest_of(block)]:
            return block if isinstance(block, Image) else replace_images(block, stub)
        remaining[digest] -= 1
        match block:
            case Image(name=name):
                return Text(f"[image {name} removed: {removed.why}]")
            case ToolResult():
                return replace(block, text=f"[result removed: {removed.why}]", images=())
            case ToolCall():
                return replace(block, input={})
            case _:
                return Text(f"[text removed: {removed.why}]")

    changed, is_same = list[Message](), True
    for message in messages:
        blocks = tuple(stub(b) for b in message.blocks if removed.what != "thinking" or not is_signed_thinking(b))
        is_same = is_same and blocks == message.blocks
        blocks = blocks or (Text(f"[thinking removed: {removed.why}]"),)
        changed.append(message if is_same else replace(message, blocks=blocks))
    return messages if is_same else changed


def removal_of_excess_images(
    agent: str, iteration: int, messages: Sequence[Message], image_bytes: int
) -> list[Removed]:
    """Return one removal of the oldest images that exceed the limit of a request, or an empty list.

    ``image_bytes`` is the size of all images of the conversation. If this size does not exceed the limit, the messages
    are not searched.
    """
    if image_bytes <= MAX_REQUEST_IMAGE_BYTES:
        return []
    images = _images_in(messages)
    kept = sum(size <= MAX_REQUEST_IMAGE_BYTES for size in accumulate(image.size for image in reversed(images)))
    return [_removal_of(agent, iteration, images[: len(images) - kept], OVER_LIMIT)] if kept < len(images) else []


def suspected_removal(
    agent: str, iteration: int, messages: Sequence[Message], error: ModelError, removals: Iterable[Removed]
) -> Removed:
    """Return the content that the next request omits after the service has refused a request with ``error``.

    ``messages`` are those of the refused request. ``removals`` describes what earlier refusals have removed from them.
    """
    images = _images_in(messages)
    match error.refused:
        case ("tools", *names):
            return Removed(agent, iteration, "tools", names=tuple(names))
        case ("thinking",):
            return Removed(agent, iteration, "thinking", names=("the thinking of earlier replies",))
        case ("oldest images",):
            # Each attempt removes as many images as all earlier ones together, so that few requests are needed.
            dropped = sum(len(removed.digests) for removed in removals if removed.why == TOO_MANY_IMAGES)
            return _removal_of(agent, iteration, images[: max(dropped, 1)], TOO_MANY_IMAGES)
        case ("content", *digests):
            blocks = [b for m in messages for b in (*m.blocks, *(i for r in m.results for i in r.images))]
            return _removal_of(agent, iteration, [b for b in blocks if digest_of(b) in digests])
        case _:
            # The service has accepted the older images before, so only newer ones are suspected. But after an error
            # with a cause, only one removal is tried: that of all images.
            last = max((n for n, message in enumerate(messages) if message.role == "assistant"), default=-1)
            newest = [] if error.cause else _images_in(messages[last + 1 :])
            return _removal_of(agent, iteration, newest or images)


def _images_in(messages: Iterable[Message]) -> list[Image]:
    return [image for message in messages for image in message.images]


def _removal_of(agent: str, iteration: int, blocks: Sequence[Block], why: str = REFUSED) -> Removed:
    names = dict.fromkeys(b.name if isinstance(b, Image) else "content of the conversation" for b in blocks)
    return Removed(agent, iteration, "content", tuple(map(digest_of, blocks)), tuple(names), why)
