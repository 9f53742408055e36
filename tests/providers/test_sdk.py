"""Requests and replies are those of the official SDK.

Each conversation takes place twice with the strict double, once with our client and once with the SDK.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic.types import ContentBlockParam
from anthropic.types.message_create_params import MessageCreateParamsStreaming
from double import NEWER, OLDER, Policy, Say, calls, serve, text, thinking
from double.serving import Double, Seen
from pydantic import ConfigDict, TypeAdapter
from support import OneConversation
from support.wire import KEY, TOOLS, open_model

from chain.messages import Image, Message, ToolResult, Usage, block_to_request_json, tool_results, user_text
from chain.model import Reply, Request, ToolSpec, Window
from chain.providers.anthropic.checking import sdk_client
from chain.providers.anthropic.connection import new_client
from chain.providers.anthropic.service import Service

OTHERS = {
    "user-agent": "names the program",
    "accept": "ours asks for a stream; the service goes by the body",
    "accept-encoding": "a stream that is not compressed needs no decoder",
    "connection": "HTTP/1.1 keeps connections alive by default",
    "content-length": "the JSON of the SDK has other spaces and another order of keys",
    "content-type": "the SDK omits it if there is no body",
}
"""The headers that may differ, and why. Those of ``x-stainless-``, which count uses of the SDK, may differ too."""

STRICT = ConfigDict(extra="forbid", strict=True)
# Of lists, as a TypedDict alone takes no settings from outside.
REQUESTS = TypeAdapter(list[MessageCreateParamsStreaming], config=STRICT)
BLOCKS: TypeAdapter[Any] = TypeAdapter(list[ContentBlockParam], config=STRICT)  # type: ignore[valid-type]

SAMPLING = "2023-06-01"
PICTURE = Image("image/png", "", "dot.png", b64encode(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(17)).decode())
SPECS = tuple(ToolSpec(each.name, each.description, each.input_schema) for each in TOOLS)
TWO = calls(("look", {"at": "ö €"}), ("look", {}), say="Looking “twice”.", text_chunk=3)

TALKS: dict[str, tuple[dict[str, Any], Say]] = {
    # The parameters of the model, and the first reply; the second is a text.
    "tools": ({}, TWO),
    "thinking": ({"thinking": {"type": "adaptive"}}, thinking("Hm.\nWell.", TWO)),
    "hidden thinking": (
        {"thinking": {"type": "adaptive"}},
        Say(({"type": "redacted_thinking", "data": "c2VjcmV0"}, *TWO.blocks)),
    ),
    "several texts": ({"effort": "low", "stop_sequences": ("END", "STOP")}, text("One.", "Two.", text_chunk=1)),
    "system messages": ({"system_messages": True}, TWO),
    "sampling": ({"model": OLDER, "temperature": 0.3}, TWO),
    "the token limit": ({}, text("It is", stop_reason="max_tokens")),
    "a stop sequence": ({}, text("It is", stop_reason="stop_sequence")),
    "a pause": ({}, text("It is", stop_reason="pause_turn")),
    "used from the cache": (
        {},
        text("x", usage={"input_tokens": 9, "cache_read_input_tokens": 800, "cache_creation_input_tokens": 70}),
    ),
}


@asynccontextmanager
async def sdk_at(double: Double, user: str = "") -> AsyncIterator[anthropic.AsyncAnthropic]:
    url = double.url.replace("//", f"//{user}")
    async with anthropic.AsyncAnthropic(api_key=KEY, base_url=url, max_retries=0) as client:
        yield client


def answers(reply: Message) -> tuple[Message, ...]:
    """Return a reply and the message that follows it."""
    results = [ToolResult(call.id, "seen", images=(PICTURE,)) for call in reply.calls]
    return reply, tool_results(results) if results else user_text("Go on.")


@pytest.mark.parametrize("name", TALKS)
async def test_a_conversation_is_like_the_sdk(name: str) -> None:
    parameters, first = TALKS[name]
    steps = [first, text("The end.")]
    async with open_model(steps, **parameters) as (ours, model):
        talk = OneConversation(model)
        messages: tuple[Message, ...] = (Message("user", (PICTURE, *user_text("What “is” it? 𝄞").blocks)),)
        replies: list[Reply] = []
        for _ in steps:
            replies.append(await talk.reply(Request("You are a test.", messages, SPECS, tail=("It is late.",))))
            messages += answers(replies[-1].message)
    async with serve(steps, continuity=False) as theirs, sdk_at(theirs) as sdk:
        said: list[anthropic.types.Message] = []
        for seen in ours.requests:
            body = {**seen.body}
            # The SDK sends the objects of its own replies.
            own = iter(said)
            turns = [
                {**turn, "content": next(own).content} if turn["role"] == "assistant" else turn
                for turn in body["messages"]
            ]
            said.append(await ask_sdk(sdk, {**body, "messages": turns}))
    for our, their in zip(ours.requests, theirs.requests, strict=True):
        assert compared(our) == compared(their)
        check_types(our.body)
    for reply, message in zip(replies, said, strict=True):
        assert [block_to_request_json(block) for block in reply.message.blocks] == [
            block.to_dict() for block in message.content
        ]
        assert reply.stop_reason == message.stop_reason
        used = message.usage
        read, written = used.cache_read_input_tokens or 0, used.cache_creation_input_tokens or 0
        assert reply.usage == Usage(used.input_tokens, used.output_tokens, read, written)


async def ask_sdk(sdk: anthropic.AsyncAnthropic, body: dict[str, Any]) -> anthropic.types.Message:
    extra: dict[str, Any] = {}
    if "temperature" in body:  # the SDK has no such parameter
        extra = {
            "extra_body": {"temperature": body.pop("temperature")},
            "extra_headers": {"anthropic-version": SAMPLING},
        }
    del body["stream"]
    async with sdk.messages.stream(**body, **extra) as stream:
        return await stream.get_final_message()


def compared(seen: Seen) -> tuple[str, dict[str, str], Any]:
    """Return the parts of a request that must be the same."""
    same = {
        name: value.replace(seen.headers["host"], "HOST")
        for name, value in seen.headers.items()
        if name not in OTHERS and not name.startswith("x-stainless-")
    }
    return seen.path, same, seen.body


def check_types(body: Mapping[str, Any]) -> None:
    """Raise ``ValidationError`` for a field that the types of the SDK do not allow."""
    known = {name: value for name, value in body.items() if name != "temperature"}
    read_all(REQUESTS.validate_python([known]))
    # Blocks alone too: as part of a message they may be objects of the SDK, which have any fields.
    for turn in body["messages"]:
        if turn["role"] != "system":
            read_all(BLOCKS.validate_python(turn["content"]))


def read_all(checked: Any) -> None:
    """Read all parts of a value, since pydantic checks some of them only then."""
    if isinstance(checked, Mapping):
        read_all(checked.values())
    elif isinstance(checked, Iterable) and not isinstance(checked, str):
        for part in checked:
            read_all(part)


@pytest.mark.parametrize("user", ["", "me:pass%20wörd@", "me@"])
async def test_the_window_is_requested_like_the_sdk(user: str) -> None:
    async with open_model([text("x")], policy=Policy(key=None), user=user, context_window=0) as (ours, model):
        await OneConversation(model).reply(Request("", (user_text("x"),)))
        assert model.window == Window(200_000, 1000)
    async with serve([], policy=Policy(key=None)) as theirs, sdk_at(theirs, user) as sdk:
        assert (await sdk.models.retrieve(NEWER)).max_input_tokens == 200_000
    assert [compared(seen) for seen in ours.lookups] == [compared(seen) for seen in theirs.lookups]


SERVICES = {
    "Anthropic's": Service("key"),
    "with a path and a slash": Service("key", "https://example.org/gateway/"),
    "without a key": Service(None, "http://127.0.0.1:8080"),
    "with headers": Service(
        "key", "http://user:word@[::1]:80/x", extra_headers={"X-More": "1", "Authorization": "own"}
    ),
    "slow": Service("key", "https://example.org:444", idle_timeout_s=600.0),
    "impatient": Service("key", "http://localhost", idle_timeout_s=3.0),
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
@pytest.mark.parametrize("name", SERVICES)
def test_a_client_is_like_the_sdk(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    service = SERVICES[name]
    for environment in ENVIRONMENTS:
        with monkeypatch.context() as patch:
            for variable, value in environment.items():
                patch.setenv(variable, value)
            ours, theirs = new_client(service), sdk_client(service)
        assert (ours.base_url, ours.timeout) == (theirs.base_url, theirs.timeout)
        assert comparable(ours.headers) == comparable(theirs.headers)
        assert pool(ours.http) == pool(theirs.http), environment


def comparable(headers: Mapping[str, str]) -> dict[str, str]:
    return {k: v for k, v in headers.items() if k != "user-agent" and not k.startswith("x-stainless-")}


def pool(http: httpx2.AsyncBaseTransport) -> dict[str, Any]:
    """Return the settings of connections."""
    found = {**vars(http._pool)}  # type: ignore[attr-defined]
    tls = found.pop("_ssl_context")
    kept = ("_max_connections", "_max_keepalive_connections", "_keepalive_expiry", "_proxy_url", "_proxy_headers")
    made = {name: found.get(name) for name in (*kept, "_http1", "_http2", "_retries", "_local_address")}
    trust = (tls.cert_store_stats(), tls.options, tls.verify_mode, tls.check_hostname)
    return {**made, "sockets": sorted(found["_socket_options"]), "trust": trust}
