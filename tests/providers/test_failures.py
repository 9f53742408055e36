"""Errors of a service as messages for the user, and the numbers in them. No sockets."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx2
import pytest

from chain.errors import ModelError
from chain.providers.anthropic.failures import BadStatus, Failures, TooLong, retry_after
from chain.providers.anthropic.service import Parameters, Service
from chain.providers.anthropic.stream import ServiceError

VLLM_LIMIT = "'max_tokens' is too large: 5. This model's maximum context length is 4096 tokens and your request has"
"""The start of a message. The request itself is too long if its tokens fill more than half of the window."""
HTML = "<html><body><h1>Bad Gateway</h1></body></html>"


def failures(**service: Any) -> Failures:
    return Failures(Parameters("mine", 10, extra_body={"x": {"y": ["bodysecret"]}}), Service(**service))


def json_of(message: str) -> str:
    return json.dumps({"type": "error", "error": {"type": "x", "message": message}})


def error_of(status: int, body: str) -> ModelError:
    return failures(base_url="http://host/v1", api_key="sk-key").status_error(BadStatus(status, body, retry_after=2.0))


NO = json_of("No")


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (400, NO, "refused the request: No; check the model's settings"),
        (401, json_of("No\nsk-key"), "rejected the API key: No …; check api_key of the model"),
        (402, json_of("No credit"), "answered 402: No credit; check base_url"),
        (403, NO, "may not use mine at http://host/v1: No; use another key or model"),
        (403, HTML, "an HTML page, so a proxy or another server answered"),
        (404, NO, "does not know mine: No; check model and base_url"),
        (413, NO, "is too large for http://host/v1: No; /new starts a new conversation"),
        (418, NO, "answered 418: No; check base_url"),
        (307, "", "redirects to another address, which is not followed; correct base_url"),
    ],
)
def test_a_status_that_is_not_retried(status: int, body: str, message: str) -> None:
    error = error_of(status, body)
    assert message in str(error)
    assert (error.retryable, error.cause, error.retry_after) == (False, "", None)


@pytest.mark.parametrize(
    ("status", "body", "message", "cause"),
    [
        (408, NO, "failed with 408: No; try again later", "failed with 408"),
        (429, NO, "limits the rate of requests: No; wait, or get a higher limit", "rate limited"),
        (500, NO, "failed with 500: No; try again later", "failed with 500"),
        (502, HTML, "failed with 502: an HTML page, so a proxy", "failed with 502"),
        (503, "", "failed with 503: nothing more; try again later", "failed with 503"),
        (529, NO, "is overloaded: No; try again later", "overloaded"),
    ],
)
def test_a_status_that_is_retried(status: int, body: str, message: str, cause: str) -> None:
    error = error_of(status, body)
    assert message in str(error)
    assert (error.retryable, error.cause, error.retry_after) == (True, cause, 2.0)


@pytest.mark.parametrize(
    ("message", "tokens", "window"),
    [
        ("prompt is too long: 210000 tokens > 200000 maximum", 210_000, 200_000),
        ("input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease", 188_240, 200_000),
        ("Input is too long for requested model.", 0, 0),
        ("the request (6152 tokens) exceeds the available context size (4096 tokens), try increasing it", 6_152, 4_096),
        (
            "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (4000 in the "
            "messages, 1000 in the completion).",
            *(5_000, 4_096),
        ),
        ("maximum context length is 32768 tokens and your request has 40000 input tokens.", 40_000, 32_768),
        ("maximum context length is 131072 tokens. However, you requested about 140000 tokens", 140_000, 131_072),
        ("The prompt (total length 9000) is longer than the maximum model length of 8192.", 9_000, 8_192),
        (f"{VLLM_LIMIT} 4000 input tokens", 4_000, 4_096),
        ("Your input exceeds the context window of this model.", 0, 0),
        ("the prompt exceeds the model's context window", 0, 0),
        ("The number of tokens is greater than the context length.", 0, 0),
        ("model loaded with context length of only 4096 tokens", 0, 0),
        ("context_length_exceeded", 0, 0),
        ("Context length exceeded", 0, 0),
        ("Prompt exceeds max length", 0, 0),
        ("Invalid request: Your request exceeded model token limit: 131072", 0, 0),
    ],
)
def test_messages_about_a_request_that_is_too_long(message: str, tokens: int, window: int) -> None:
    """The tokens and the window are 0 if the message does not state them."""
    error = error_of(400, json_of(message))
    assert isinstance(error, TooLong)
    assert (error.tokens, error.window) == (tokens, window)
    assert isinstance(failures().translate(ServiceError("invalid_request_error", message)), TooLong)


@pytest.mark.parametrize(
    "message",
    [
        "max_tokens: 99999 > 8192, the maximum",
        "max_tokens (64000) exceeds the model's output token limit of 8192",
        "Your monthly token limit has been reached. Upgrade your plan",
        "The 1M context window beta is not available for your organization",
        "context_management: context window strategy clear_tool_uses is not supported",
        "tools.3.custom.description: input is too long (max 1024 characters)",
        f"{VLLM_LIMIT} 1000 input tokens",
    ],
)
def test_messages_about_other_limits(message: str) -> None:
    assert not isinstance(error_of(400, json_of(message)), TooLong)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("2", 2),
        ("0.5", 0.5),
        ("-3", 0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0),
        ("later", None),
        ("inf", None),
        ("Mon, 01 Jan 2024 00:00:00 +99999999999999", None),  # an impossible time zone
    ],
)
def test_retry_after_is_read_in_seconds(header: str, seconds: float | None) -> None:
    assert retry_after({"retry-after": header}) == seconds


def test_secrets_are_redacted() -> None:
    url = "http://u:pa@ssword1@127.0.0.1:1/v1?key=topsecret"
    service = failures(api_key="sk-key", base_url=url, extra_headers={"X-Token": "Bearer headersecret", "X-Short": "1"})
    text = "topsecret pa@ssword1 bodysecret sk-key headersecret\nBearer headersecret 1"
    assert service.redact(text) == "… … … … … … 1", "a value of one character is no secret"
    assert re.fullmatch(
        "http://127.0.0.1:1/v1 is not .*", str(service.translate(httpx2.InvalidURL("ssword1@")))
    )  # a part of the password


def test_a_long_message_is_truncated() -> None:
    assert len(failures().redact("x" * 1_000)) == 500
