"""The content that a service refuses, found from its error message."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chain.messages import Image, Message, Opaque, Text, Thinking, ToolCall, ToolResult, digest_of, user_text
from chain.model import Request, ToolSpec
from chain.providers.anthropic.refusals import refused_content
from chain.providers.anthropic.stream import RequestRefused, ServiceError

MODEL = "claude-opus-5-5"
IMAGE, SECOND_IMAGE, THIRD_IMAGE = (Image("image/png", digest, f"{digest}.png", "AAAA") for digest in "abc")
RESULT_WITH_IMAGE = ToolResult("t1", "seen", images=(THIRD_IMAGE,))
RESULT = ToolResult("t2", "plain")
CALL = ToolCall("t1", "look", {"at": "x"})
OTHER_REPLY = Message("assistant", (Thinking("of another model", "s1"), Text("Hm.")), "another")
OWN_REPLY = Message("assistant", (Thinking("mine", "s2"), CALL, ToolCall("t2", "look", {})), MODEL)
REQUEST = Request(
    "",
    (
        Message("user", (Text("look"), IMAGE, SECOND_IMAGE)),
        user_text("now"),
        OTHER_REPLY,
        user_text("go on"),
        OWN_REPLY,
        Message("user", (RESULT_WITH_IMAGE, RESULT)),
    ),
    [ToolSpec(name, "", {}) for name in ("look", "mcp__db__query", "write")],
)
WITHOUT_IMAGE = replace(REQUEST, messages=(user_text("hello"),))
WITH_IMAGE = replace(REQUEST, messages=(Message("user", (Text("look"), IMAGE)),))


def refused(message: str, status: int = 400, request: Request = REQUEST) -> tuple[str, ...]:
    return refused_content(RequestRefused(message, message, status), request, MODEL)


@pytest.mark.parametrize(
    ("message", "content"),
    {
        # Adjacent user messages are one turn, and thinking of another model is not sent.
        "messages.0.content.2.image.source.base64: image exceeds 5 MB maximum": ("content", SECOND_IMAGE.digest),
        "messages[0].content[1].image_url: Invalid image": ("content", IMAGE.digest),
        "messages.1.content.0: this text is blocked": ("content", digest_of(Text("Hm."))),
        "messages.3.content.1.tool_use.input: too deep": ("content", digest_of(CALL)),
        "messages.4.content.0.tool_result.content.1.image.source: Invalid image": ("content", THIRD_IMAGE.digest),
        "messages.4.content.0: Could not process image": ("content", THIRD_IMAGE.digest),
        "messages.4.content.1.tool_result: blocked": ("content", digest_of(RESULT)),
        "messages.3.content.0: Invalid `signature` in `thinking` block": ("thinking",),
        "unknown content type: thinking": ("thinking",),
        # An unknown place: any image may be the cause.
        "messages.9.content.0: no such place": ("images",),
        "messages.0.content.0.text.cache_control: Extra inputs are not permitted": ("images",),
        # A number or a total size: fewer images may be accepted.
        "messages.3.content.0: a file of too many images; at most 100 images": ("oldest images",),
        "Too many images and documents: 101 > 100": ("oldest images",),
        "At most 1 image(s) may be provided in one prompt.": ("oldest images",),
        "image dimensions exceed max allowed size for many-image requests: 2000 pixels": ("oldest images",),
        "tools.1.custom.input_schema: JSON schema is invalid": ("tools", "mcp__db__query"),
        "Invalid 'tools[2].function.name': string too long": ("tools", "write"),
        "tools[0].function_declarations[1].parameters: only allowed for OBJECT": ("tools", "mcp__db__query"),
        "Invalid schema for function 'write': array schema missing items": ("tools", "write"),
        "tools.7.custom.name: there is none": ("images",),
        "whatever it is": ("images",),
    }.items(),
)
def test_the_message_names_the_refused_content(message: str, content: tuple[str, ...]) -> None:
    assert refused(message) == content


@pytest.mark.parametrize(
    ("status", "content"), [*((status, "images") for status in (400, 404, 415, 422, 500, 501)), (413, "oldest images")]
)
def test_an_image_may_cause_a_status(status: int, content: str) -> None:
    assert refused("no", status, WITH_IMAGE) == (content,)
    assert refused("no", status, WITHOUT_IMAGE) == ()


@pytest.mark.parametrize("status", [401, 402, 403, 408, 409, 429, 502, 503, 504, 529])
def test_statuses_that_no_content_causes(status: int) -> None:
    assert refused("messages.0.content.1: no image", status, WITH_IMAGE) == ()


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("invalid_request_error", ("images",)),
        ("not_found_error", ("images",)),
        ("api_error", ("images",)),
        ("request_too_large", ("oldest images",)),
        ("overloaded_error", ()),
    ],
)
def test_error_events_are_treated_like_statuses(kind: str, content: tuple[str, ...]) -> None:
    assert refused_content(ServiceError(kind, "no"), WITH_IMAGE, MODEL) == content


def test_content_that_is_not_sent_is_not_suspected() -> None:
    lost_image = Message("user", (replace(IMAGE, data=""),))
    request = replace(REQUEST, messages=(lost_image, OTHER_REPLY, user_text("go on")))
    assert refused("thinking is not supported", 400, request) == ()


def test_redacted_thinking_may_be_the_refused_content() -> None:
    redacted = Message("assistant", (Opaque({"type": "redacted_thinking", "data": "x"}), Text("Hm.")), MODEL)
    request = replace(REQUEST, messages=(user_text("hello"), redacted, user_text("go on")))
    assert refused("thinking is not supported", 400, request) == ("thinking",)
