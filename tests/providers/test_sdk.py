"""Requests and replies are those of the official SDK.

Each conversation takes place twice with the strict double, once with our client and once with the SDK.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from double import NEWER, OLDER, Policy, Say, calls, serve, text, thinking
from double.serving import Double, Seen
from pydantic import ConfigDict, TypeAdapter
from support.sessions import OneConversation
from support.wire import KEY, TOOLS, open_model

from chain.messages import Image, Message, ToolResult, Usage, block_to_request_json, tool_results, user_text
from chain.model import Reply, Request, ToolSpec, Window
from chain.network import tls_context
from chain.providers.anthropic.checking import sdk_client
from chain.providers.anthropic.connection import new_client
from chain.providers.anthropic.service import Service

if TYPE_CHECKING:
    # The SDK is imported by the tests that use it, since each process that collects tests would take a second for it.
    import anthropic

OTHER_HEADERS = {
    "user-agent": "names the program",
    "accept": "ours names a stream of events; the service ignores it and reads ``stream`` in the body",
    "accept-encoding": "a stream that is not compressed needs no decoder",
    "connection": "HTTP/1.1 keeps connections alive by default",
    "content-length": "the JSON of the SDK has other spaces and another order of keys",
    "content-type": "the SDK omits it if there is no body",
}
"""The headers that may differ, and why. Those of ``x-stainless-``, which count uses of the SDK, may differ too."""


@cache
def sdk_types() -> tuple[TypeAdapter[Any], TypeAdapter[Any]]:
    """Return the SDK's types of a list of requests and of a list of blocks.

    They are types of lists, because pydantic accepts no configuration for a TypedDict alone.
    """
    from anthropic.types import ContentBlockParam
    from anthropic.types.message_create_params import MessageCreateParamsStreaming

    strict = ConfigDict(extra="forbid", strict=True)
    requests: TypeAdapter[Any] = TypeAdapter(list[MessageCreateParamsStreaming], config=strict)
    return requests, TypeAdapter(list[ContentBlockParam], config=strict)  # type: ignore[valid-type]


OLD_VERSION = "2023-06-01"
"""The version of the API that has the parameter ``temperature``."""
PNG_HEADER = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(17)
PICTURE = Image("image/png", "", "dot.png", b64encode(PNG_HEADER).decode())
SPECS = tuple(ToolSpec(each.name, each.description, each.input_schema) for each in TOOLS)
TWO_CALLS = calls(("look", {"at": "ö €"}), ("look", {}), say="Looking “twice”.", text_chunk=3)

CONVERSATIONS: dict[str, tuple[dict[str, Any], Say]] = {
    # The parameters of the model, and the first reply; the second is a text.
    "tools": ({}, TWO_CALLS),
    "thinking": ({"thinking": {"type": "adaptive"}}, thinking("Hm.\nWell.", TWO_CALLS)),
    "redacted thinking": (
        {"thinking": {"type": "adaptive"}},
        Say(({"type": "redacted_thinking", "data": "c2VjcmV0"}, *TWO_CALLS.blocks)),
    ),
    "several texts": ({"effort": "low", "stop_sequences": ("END", "STOP")}, text("One.", "Two.", text_chunk=1)),
    "system messages": ({"system_messages": True}, TWO_CALLS),
    "temperature": ({"model": OLDER, "temperature": 0.3}, TWO_CALLS),
    "the token limit": ({}, text("It is", stop_reason="max_tokens")),
    "a stop sequence": ({}, text("It is", stop_reason="stop_sequence")),
    "a pause": ({}, text("It is", stop_reason="pause_turn")),
    "input from the cache": (
        {},
        text("x", usage={"input_tokens": 9, "cache_read_input_tokens": 800, "cache_creation_input_tokens": 70}),
    ),
}


@asynccontextmanager
async def sdk_at(double: Double, user: str = "") -> AsyncIterator[anthropic.AsyncAnthropic]:
    import anthropic

    url = double.url.replace("//", f"//{user}")
    http = anthropic.DefaultAsyncHttpxClient(verify=tls_context(httpx2.URL(url)))
    async with anthropic.AsyncAnthropic(api_key=KEY, base_url=url, max_retries=0, http_client=http) as client:
        yield client


def next_message(reply: Message) -> Message:
    """Return the user's message that follows a reply."""
    results = [ToolResult(call.id, "seen", images=(PICTURE,)) for call in reply.calls]
    return tool_results(results) if results else user_text("Go on.")


@pytest.mark.parametrize(("parameters", "first_reply"), CONVERSATIONS.values(), ids=CONVERSATIONS)
async def test_a_conversation_is_like_the_sdk(parameters: dict[str, Any], first_reply: Say) -> None:
    steps = [first_reply, text("The end.")]
    async with open_model(steps, **parameters) as (ours, model):
        conversation = OneConversation(model)
        messages: tuple[Message, ...] = (Message("user", (PICTURE, *user_text("What “is” it? 𝄞").blocks)),)
        our_replies: list[Reply] = []
        for _ in steps:
            reply = await conversation.reply(Request("You are a test.", messages, SPECS, tail=("It is late.",)))
            our_replies.append(reply)
            messages += (reply.message, next_message(reply.message))
    async with serve(steps, continuity=False) as theirs, sdk_at(theirs) as sdk:
        sdk_replies: list[anthropic.types.Message] = []
        for request in ours.requests:
            sdk_contents = iter([message.content for message in sdk_replies])
            turns = [
                {**turn, "content": next(sdk_contents)} if turn["role"] == "assistant" else turn
                for turn in request.body["messages"]
            ]
            sdk_replies.append(await ask_sdk(sdk, {**request.body, "messages": turns}))
    for our_request, sdk_request in zip(ours.requests, theirs.requests, strict=True):
        assert comparable_parts(our_request) == comparable_parts(sdk_request)
        check_types(our_request.body)
    for reply, message in zip(our_replies, sdk_replies, strict=True):
        assert [block_to_request_json(block) for block in reply.message.blocks] == [
            block.to_dict() for block in message.content
        ]
        assert reply.stop_reason == message.stop_reason
        usage = message.usage
        read, written = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
        assert reply.usage == Usage(usage.input_tokens, usage.output_tokens, read, written)


async def ask_sdk(sdk: anthropic.AsyncAnthropic, body: dict[str, Any]) -> anthropic.types.Message:
    """Send a request with the SDK, and return the reply."""
    extra: dict[str, Any] = {}
    if "temperature" in body:  # the SDK has no such parameter
        extra = {
            "extra_body": {"temperature": body.pop("temperature")},
            "extra_headers": {"anthropic-version": OLD_VERSION},
        }
    del body["stream"]
    async with sdk.messages.stream(**body, **extra) as stream:
        return await stream.get_final_message()


def comparable_parts(request: Seen) -> tuple[str, dict[str, str], Any]:
    """Return the path, the headers without ``OTHER_HEADERS``, and the body."""
    headers = {
        name: value.replace(request.headers["host"], "HOST")
        for name, value in request.headers.items()
        if name not in OTHER_HEADERS and not name.startswith("x-stainless-")
    }
    return request.path, headers, request.body


def check_types(body: Mapping[str, Any]) -> None:
    """Raise ``ValidationError`` for a field that the types of the SDK do not allow."""
    requests, blocks = sdk_types()
    with_types = {name: value for name, value in body.items() if name != "temperature"}
    validate_lazy_parts(requests.validate_python([with_types]))
    # Blocks are validated alone too: as part of a message they may be objects of the SDK, which have any fields.
    for turn in body["messages"]:
        if turn["role"] != "system":
            validate_lazy_parts(blocks.validate_python(turn["content"]))


def validate_lazy_parts(value: Any) -> None:
    """Read all parts of a value, since pydantic validates some of them only when they are read."""
    if isinstance(value, Mapping):
        validate_lazy_parts(value.values())
    elif isinstance(value, Iterable) and not isinstance(value, str):
        for part in value:
            validate_lazy_parts(part)


@pytest.mark.parametrize("user", ["", "me:pass%20wörd@", "me@"])
async def test_the_window_is_requested_like_the_sdk(user: str) -> None:
    async with open_model([text("x")], policy=Policy(key=None), user=user, context_window=0) as (ours, model):
        await OneConversation(model).reply(Request("", (user_text("x"),)))
        assert model.window == Window(200_000, 1000)
    async with serve([], policy=Policy(key=None)) as theirs, sdk_at(theirs, user) as sdk:
        assert (await sdk.models.retrieve(NEWER)).max_input_tokens == 200_000
    assert list(map(comparable_parts, ours.lookups)) == list(map(comparable_parts, theirs.lookups))


SERVICES = {
    "Anthropic's": Service("key"),
    "with a path and a slash": Service("key", "https://example.org/gateway/"),
    "without a key": Service(None, "http://127.0.0.1:8080"),
    "with headers": Service(
        "key", "http://user:word@[::1]:80/x", extra_headers={"X-More": "1", "Authorization": "own"}
    ),
    "with a long timeout": Service("key", "https://example.org:444", idle_timeout_s=600.0),
    "with a short timeout": Service("key", "http://localhost", idle_timeout_s=3.0),
}
PROXY = "http://user:word@127.0.0.2:3128"
ENVIRONMENTS: tuple[dict[str, str], ...] = (
    {},
    {"HTTPS_PROXY": PROXY},
    {"https_proxy": "127.0.0.2:3128"},
    {"HTTP_PROXY": PROXY},
    {"ALL_PROXY": PROXY, "NO_PROXY": "127.0.0.1, example.org"},
    {"ALL_PROXY": PROXY, "no_proxy": "anthropic.com,localhost"},
    {"HTTPS_PROXY": PROXY, "NO_PROXY": "*"},
    {"ALL_PROXY": PROXY, "NO_PROXY": "127.0.0.0/8,https://example.org"},
    {"ALL_PROXY": PROXY, "NO_PROXY": "foo,*"},
)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)
def test_a_client_is_like_the_sdk(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    for environment in ENVIRONMENTS:
        with monkeypatch.context() as patch:
            for variable, value in environment.items():
                patch.setenv(variable, value)
            ours, theirs = new_client(service), sdk_client(service)
        assert (ours.base_url, ours.timeout) == (theirs.base_url, theirs.timeout)
        assert comparable(ours.headers) == comparable(theirs.headers)
        assert connection_settings(ours.http) == connection_settings(theirs.http), environment


def comparable(headers: Mapping[str, str]) -> dict[str, str]:
    return {k: v for k, v in headers.items() if k != "user-agent" and not k.startswith("x-stainless-")}


def connection_settings(http: httpx2.AsyncBaseTransport) -> dict[str, Any]:
    pool = vars(http._pool)  # type: ignore[attr-defined]
    names = ("_max_connections", "_max_keepalive_connections", "_keepalive_expiry", "_proxy_url", "_proxy_headers")
    settings = {name: pool.get(name) for name in (*names, "_http1", "_http2", "_retries", "_local_address")}
    tls = pool["_ssl_context"]
    trust = (tls.cert_store_stats(), tls.options, tls.verify_mode, tls.check_hostname)
    return {**settings, "sockets": sorted(pool["_socket_options"]), "trust": trust}
