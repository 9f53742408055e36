"""The content that a service refuses, found from its error message."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chain.messages import Image, Message, Opaque, Text, Thinking, ToolCall, ToolResult, digest_of, user_text
from chain.model import Request, ToolSpec
from chain.providers.anthropic.refusals import refused_content
from chain.providers.anthropic.stream import RequestRefused, ServiceError

MODEL = "claude-opus-5-5"
A, B, C = (Image("image/png", name, f"{name}.png", "AAAA") for name in "abc")
RESULT = ToolResult("t1", "seen", images=(C,))
ODD = ToolResult("t2", "odd")
CALL = ToolCall("t1", "look", {"at": "x"})
OTHERS = Message("assistant", (Thinking("of another model", "s1"), Text("Hm.")), "another")
OWN = Message("assistant", (Thinking("mine", "s2"), CALL, ToolCall("t2", "look", {})), MODEL)
REQUEST = Request(
    "",
    (
        Message("user", (Text("look"), A, B)),
        user_text("now"),
        OTHERS,
        user_text("go on"),
        OWN,
        Message("user", (RESULT, ODD)),
    ),
    [ToolSpec(name, "", {}) for name in ("look", "mcp__db__query", "write")],
)
PLAIN = replace(REQUEST, messages=(user_text("hello"),))
SEEING = replace(REQUEST, messages=(Message("user", (Text("look"), A)),))


def found(said: str, status: int = 400, request: Request = REQUEST) -> tuple[str, ...]:
    return refused_content(RequestRefused(said, said, status), request, MODEL)


@pytest.mark.parametrize(
    ("said", "what"),
    {
        # Adjacent user messages are one turn, and thinking of another model is not sent.
        "messages.0.content.2.image.source.base64: image exceeds 5 MB maximum": ("content", B.digest),
        "messages[0].content[1].image_url: Invalid image": ("content", A.digest),
        "messages.1.content.0: this text is blocked": ("content", digest_of(Text("Hm."))),
        "messages.3.content.1.tool_use.input: too deep": ("content", digest_of(OWN.calls[0])),
        "messages.4.content.0.tool_result.content.1.image.source: Could not process image": ("content", C.digest),
        "messages.4.content.0: Could not process image": ("content", C.digest),
        "messages.4.content.1.tool_result: blocked": ("content", digest_of(ODD)),
        "messages.3.content.0: Invalid `signature` in `thinking` block": ("thinking",),
        "unknown content type: thinking": ("thinking",),
        "messages.9.content.0: no such place": ("images",),
        "messages.0.content.0.text.cache_control: Extra inputs are not permitted": ("images",),
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
def test_refused_content(said: str, what: tuple[str, ...]) -> None:
    assert found(said) == what


@pytest.mark.parametrize("status", [400, 404, 413, 415, 422, 500, 501])
def test_statuses_that_an_image_may_cause(status: int) -> None:
    assert found("no", status, SEEING) == ("oldest images" if status == 413 else "images",)
    assert found("no", status, PLAIN) == ()


@pytest.mark.parametrize("status", [401, 402, 403, 408, 409, 429, 502, 503, 504, 529])
def test_statuses_that_no_content_causes(status: int) -> None:
    assert found("messages.0.content.1: no image", status, SEEING) == ()


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("invalid_request_error", ("images",)),
        ("not_found_error", ("images",)),
        ("api_error", ("images",)),
        ("request_too_large", ("oldest images",)),
        ("overloaded_error", ()),
    ],
)
def test_error_events(kind: str, what: tuple[str, ...]) -> None:
    assert refused_content(ServiceError(kind, "no"), SEEING, MODEL) == what


def test_content_that_is_not_sent_is_not_suspected() -> None:
    gone = replace(SEEING, messages=(Message("user", (replace(A, data=""),)), OTHERS, user_text("go on")))
    assert found("thinking is not supported", 400, gone) == ()
    redacted = Message("assistant", (Opaque({"type": "redacted_thinking", "data": "x"}), Text("Hm.")), MODEL)
    sent = replace(SEEING, messages=(user_text("hello"), redacted, user_text("go on")))
    assert found("thinking is not supported", 400, sent) == ("thinking",)
