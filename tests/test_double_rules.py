"""The double's rules for one request, and I7: for each a request that keeps it and one that breaks it."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest
from double import NEWER, OLDER, Conversations, Fault, Issued, Policy, check, check_count
from double.models import MODELS
from hypothesis import given
from hypothesis import strategies as st

HEADERS = {"x-api-key": "test-key", "anthropic-version": "2023-06-01"}
MARK: dict[str, Any] = {"cache_control": {"type": "ephemeral"}}
SIGNED = {"type": "thinking", "thinking": "hm", "signature": "sig_1"}


PNG = b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + bytes(17)


def image(content: bytes, media_type: str = "image/png") -> dict[str, Any]:
    data = b64encode(content).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}


def body(*messages: Any, **fields: Any) -> dict[str, Any]:
    return {"model": NEWER, "max_tokens": 100, "messages": list(messages or [user("hello")]), **fields}


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": _content(content)}


def assistant(*content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": _content(content)}


def system(*content: Any) -> dict[str, Any]:
    return {"role": "system", "content": _content(content)}


def _content(content: tuple[Any, ...]) -> list[Any]:
    return [said(c) if isinstance(c, str) else c for c in content]


def said(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **fields}


def call(id: str = "toolu_1", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "look", "input": {}, **fields}


def result(id: str = "toolu_1", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": "seen", **fields}


def tool(name: str = "look", **fields: Any) -> dict[str, Any]:
    return {"name": name, "description": "Looks.", "input_schema": {"type": "object", "properties": {}}, **fields}


def schema(**fields: Any) -> dict[str, Any]:
    return tool(input_schema={"type": "object", **fields})


def without(name: str, **fields: Any) -> dict[str, Any]:
    return {k: v for k, v in body(**fields).items() if k != name}


Q, A = user("q"), assistant("a")
LOOP = (Q, assistant(call()), user(result()))
ADAPTIVE = {"thinking": {"type": "adaptive"}}
BUDGET = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000}

ACCEPTED: dict[str, dict[str, Any]] = {
    "a question": body(),
    "content as a string": body({"role": "user", "content": "hello"}),
    "a conversation": body(Q, A, Q),
    "an image": body(user(said("What is this?"), image(PNG))),
    "two user messages in a row": body(Q, Q, A, Q),
    "system as a string": body(system="You are terse."),
    "an empty system prompt": body(system=""),
    "system as blocks": body(system=[said("You are terse.", **MARK)]),
    "a tool": body(tools=[tool()]),
    "a tool of type custom": body(
        tools=[tool(type="custom", strict=True, input_schema={"type": "object", "additionalProperties": False})]
    ),
    "the longest tool name": body(tools=[tool("a" * 64)]),
    "two tools": body(tools=[tool(), tool("see")]),
    "a rich schema": body(
        tools=[
            schema(
                properties={
                    "a": {"type": ["string", "null"], "enum": ["x", None]},
                    "b": {"type": "array", "items": {"$ref": "#/$defs/B"}},
                    "c": {"anyOf": [{"type": "integer"}, True]},
                },
                required=["a"],
                additionalProperties=False,
                **{"$defs": {"B": {"type": "object"}}},
            )
        ]
    ),
    "tool choice": body(
        tools=[tool()], tool_choice={"type": "tool", "name": "look", "disable_parallel_tool_use": True}
    ),
    "no tool choice": body(tools=[tool()], tool_choice={"type": "none"}),
    "a call and its result": body(*LOOP),
    "two calls and their results in another order": body(
        Q, assistant("let me", call("a"), call("b")), user(result("b"), result("a"))
    ),
    "text after the results": body(Q, assistant(call()), user(result(), "and now this")),
    "a user message after the results": body(*LOOP, user("stop")),
    "an empty result": body(Q, assistant(call()), user(result(content=""))),
    "a result without content": body(Q, assistant(call()), user({"type": "tool_result", "tool_use_id": "toolu_1"})),
    "a result in blocks": body(Q, assistant(call()), user(result(content=[said("a"), said("b")]))),
    "a failed result": body(Q, assistant(call()), user(result(is_error=True))),
    "four breakpoints": body(
        user(said("q", **MARK)), A, user(said("q", **MARK)), tools=[tool(**MARK)], system=[said("s", **MARK)]
    ),
    "long-lived breakpoints first": body(
        user(said("q", **MARK)), system=[said("s", cache_control={"type": "ephemeral", "ttl": "1h"})]
    ),
    "automatic caching": body(cache_control={"type": "ephemeral"}),
    "no breakpoint": body(user(said("q", cache_control=None))),
    "a breakpoint on a call and a result": body(Q, assistant(call(**MARK)), user(result(**MARK))),
    "stop sequences": body(stop_sequences=["END"]),
    "metadata": body(metadata={"user_id": "u1"}, service_tier="auto"),
    "effort": body(output_config={"effort": "xhigh"}),
    "a format": body(output_config={"format": {"type": "json_schema", "schema": {}}}),
    "adaptive thinking": body(**ADAPTIVE),
    "thinking disabled": body(thinking={"type": "disabled"}),
    "a thinking budget on an older model": body(model=OLDER, **BUDGET),
    "temperature on an older model": body(model=OLDER, temperature=0),
    "top_p on an older model": body(model=OLDER, top_p=0.5, top_k=5),
    "temperature 1 while thinking": body(model=OLDER, temperature=1, **BUDGET),
    "a system message at the end": body(Q, system("be brief")),
    "system messages before a reply": body(Q, system("be brief"), system("be kind"), A, Q),
    "a system message after results": body(*LOOP, system("be brief")),
    "known thinking comes back": body(Q, assistant(SIGNED, call()), user(result()), **ADAPTIVE),
    "thinking of a turn that is over may be dropped": body(Q, assistant(call()), user(result()), A, Q, **ADAPTIVE),
    "thinking may be dropped while it is off": body(*LOOP),
    "redacted thinking comes back": body(Q, assistant({"type": "redacted_thinking", "data": "dark"}, "a"), Q),
}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an image of the model's": (body(Q, assistant(image(PNG)), Q), "can only be in `user` messages"),
    "an image of another type": (body(user(image(PNG, "image/jpeg"))), "Could not process image"),
    "an image that is none": (body(user(image(PNG[:8] + bytes(20)))), "Could not process image"),
    "an image of an unknown type": (body(user(image(PNG, "image/bmp"))), "base64.media_type: Input should be"),
    "an image of too many bytes": (body(user(image(PNG + bytes(5 * 2**20)))), "image exceeds 5 MB maximum"),
    "an image by its digest": (
        body(user({"type": "image", "source": {"type": "digest", "media_type": "image/png", "digest": "x"}})),
        "image.source.base64.digest: Extra inputs are not permitted",
    ),
    # the body
    "no model": (without("model"), "model: Field required"),
    "no messages": (without("messages"), "messages: Field required"),
    "an empty conversation": (body() | {"messages": []}, "messages: at least one message is required"),
    "messages that are no list": (body() | {"messages": {}}, "messages: Input should be a valid list"),
    "an unknown field": (body(colour="red"), "colour: Extra inputs are not permitted"),
    "a field that is not modelled": (body(container="c"), "container: this test double does not model it"),
    "an unknown model": (body(model="claude-0"), "model: claude-0"),
    "no max_tokens": (without("max_tokens"), "max_tokens: Field required"),
    "max_tokens 0": (body(max_tokens=0), "max_tokens: Input should be greater than or equal to 1"),
    "max_tokens true": (body(max_tokens=True), "max_tokens: Input should be a valid integer"),
    "max_tokens too large": (body(max_tokens=10**6), "which is the maximum allowed number of output tokens for"),
    "stream that is no boolean": (body(stream=1), "stream: Input should be a valid boolean"),
    "a blank stop sequence": (body(stop_sequences=["\n"]), "stop_sequences: each stop sequence must contain non-white"),
    "an unknown service tier": (body(service_tier="gold"), "service_tier: Input should be 'auto' or 'standard_only'"),
    "unknown metadata": (body(metadata={"name": "x"}), "metadata.name: Extra inputs are not permitted"),
    # messages
    "an unknown role": (body({"role": "tool", "content": "x"}), 'messages.0.role: Unexpected role "tool"'),
    "no role": (body({"content": "x"}), "messages.0.role: Field required"),
    "an unknown field in a message": (body({**Q, "id": 1}), "messages.0.id: Extra inputs are not permitted"),
    "a message without content": (body({"role": "user"}), "messages.0.content: Field required"),
    "an empty message": (body(user()), "messages.0: user messages must have non-empty content"),
    "an empty string": (body({"role": "user", "content": ""}), "messages.0: user messages must have non-empty content"),
    "an empty reply": (body(Q, assistant(), Q), "messages.1: all messages must have non-empty content"),
    "a blank string": (body({"role": "user", "content": " "}), "messages: text content blocks must contain non-white"),
    "the assistant first": (body(A, Q), 'messages: first message must use the "user" role'),
    "the assistant last": (body(Q, A), "does not support assistant message prefill"),
    # blocks
    "a block without type": (body(user({"text": "x"})), "messages.0.content.0.type: Field required"),
    "an unknown block": (body(user({"type": "document"})), "messages.0.content.0: Input tag 'document'"),
    "an empty text": (body(user("")), "messages: text content blocks must be non-empty"),
    "a blank text": (body(user("q", "\n ")), "messages: text content blocks must contain non-whitespace text"),
    "a text without text": (body(user({"type": "text"})), "messages.0.content.0.text.text: Field required"),
    "a text that is none": (body(user(said(1))), "messages.0.content.0.text.text: Input should be a valid string"),  # type: ignore[arg-type]
    "an unknown field in a text": (body(user(said("q", id=1))), "messages.0.content.0.text.id: Extra inputs"),
    "citations": (body(user(said("q", citations=[{}]))), "this test double does not model citations"),
    "a blank system prompt": (body(system=[said(" ")]), "system: text content blocks must contain non-whitespace"),
    "a system prompt of another type": (body(system=[call()]), "system.0.type: Input should be 'text'"),
    # tools
    "a bad tool name": (body(tools=[tool("a b")]), "tools.0.custom.name: String should match pattern"),
    "a tool name that is too long": (body(tools=[tool("a" * 65)]), "tools.0.custom.name: String should match pattern"),
    "a tool name with a line end": (body(tools=[tool("look\n")]), "tools.0.custom.name: String should match pattern"),
    "two tools of one name": (body(tools=[tool(), tool()]), "tools: Tool names must be unique."),
    "a tool without schema": (body(tools=[{"name": "a"}]), "tools.0.custom.input_schema: Field required"),
    "an unknown field in a tool": (body(tools=[tool(parameters={})]), "tools.0.custom.parameters: Extra inputs"),
    "a server tool": (body(tools=[tool(type="bash_20250124")]), "tools.0: this test double models custom tools only"),
    "a schema of another type": (
        body(tools=[tool(input_schema={"type": "string"})]),
        "input_schema.type: Input should be 'object'",
    ),
    "a schema without type": (body(tools=[tool(input_schema={})]), "tools.0.custom.input_schema.type: Field required"),
    "a schema that is a choice": (body(tools=[schema(anyOf=[{}])]), "does not support oneOf, allOf, or anyOf"),
    "a bad property name": (body(tools=[schema(properties={"a b": {}})]), "Property keys should match pattern"),
    "a bad property type": (body(tools=[schema(properties={"a": {"type": "str"}})]), "JSON schema is invalid"),
    "a property that is no schema": (
        body(tools=[schema(properties={"a": 1})]),
        "input_schema.properties.a: JSON schema is inv",
    ),
    "properties that are a list": (
        body(tools=[schema(properties=[])]),
        "input_schema.properties: JSON schema is invalid",
    ),
    "bad required": (body(tools=[schema(required="a")]), "input_schema.required: JSON schema is invalid"),
    "bad items": (body(tools=[schema(properties={"a": {"items": 1}})]), "properties.a.items: JSON schema is invalid"),
    "an empty choice": (body(tools=[schema(properties={"a": {"anyOf": []}})]), "a.anyOf: JSON schema is invalid"),
    "strict with open objects": (
        body(tools=[tool(strict=True)]),
        "'additionalProperties' must be explicitly set to false",
    ),
    "a tool choice without tools": (body(tool_choice={"type": "auto"}), "may only be specified while providing tools"),
    "a tool choice that is not there": (
        body(tools=[tool()], tool_choice={"type": "tool", "name": "x"}),
        "Tool 'x' not found",
    ),
    "an unknown tool choice": (body(tools=[tool()], tool_choice={"type": "all"}), "tool_choice.type: Input should be"),
    "an unknown field in a tool choice": (
        body(tools=[tool()], tool_choice={"type": "none", "name": "x"}),
        "tool_choice.none.name",
    ),
    # calls and results
    "a call without result": (
        body(Q, assistant(call("a"), call("b")), Q),
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: a, b. Each",
    ),
    "a call with one result of two": (
        body(Q, assistant(call("a"), call("b")), user(result("a"))),
        "immediately after: b. Each",
    ),
    "a result too late": (
        body(Q, assistant(call()), Q, A, user(result())),
        "messages.1: `tool_use` ids were found without",
    ),
    "a result after text": (
        body(Q, assistant(call()), user("so", result())),
        "messages.1: `tool_use` ids were found without",
    ),
    "two replies in a row": (body(Q, A, A, Q), "messages.2: two replies follow each other"),
    "results in two messages": (
        body(Q, assistant(call("a"), call("b")), user(result("a")), user(result("b"))),
        "immediately after: b",
    ),
    "a result without call": (
        body(Q, A, user(result())),
        "messages.2.content.0: unexpected `tool_use_id` found in `tool_result`",
    ),
    "a result in the first message": (body(user(result())), "messages.0.content.0: unexpected `tool_use_id`"),
    "two results of one call": (
        body(Q, assistant(call()), user(result(), result())),
        "messages.2.content.1: each tool_use must have a single result",
    ),
    "one id twice in a message": (
        body(Q, assistant(call(), call()), user(result())),
        "messages.1.content.1: `tool_use` ids must be unique",
    ),
    "one id twice in a conversation": (
        body(*LOOP, assistant(call()), user(result())),
        "messages.3.content.0: `tool_use` ids must be unique",
    ),
    "a bad call id": (
        body(Q, assistant(call("a b")), user(result("a b"))),
        "messages.1.content.0.tool_use.id: String should match",
    ),
    "an empty call id": (body(Q, assistant(call("")), user(result(""))), "tool_use.id: String should match pattern"),
    "a bad result id": (
        body(Q, assistant(call()), user(result("a.b"))),
        "tool_result.tool_use_id: String should match",
    ),
    "an empty name in a call": (
        body(Q, assistant(call(name="")), user(result())),
        "tool_use.name: String should match pattern",
    ),
    "a call whose input is text": (
        body(Q, assistant(call(input="{}")), user(result())),
        "tool_use.input: Input should be a valid dictionary",
    ),
    "a call without input": (
        body(Q, assistant({"type": "tool_use", "id": "a", "name": "b"}), user(result("a"))),
        "tool_use.input: Field required",
    ),
    "an unknown field in a call": (body(Q, assistant(call(index=0)), user(result())), "tool_use.index: Extra inputs"),
    "an unknown field in a result": (
        body(Q, assistant(call()), user(result(name="look"))),
        "tool_result.name: Extra inputs",
    ),
    "a call of the user's": (body(user(call())), "`tool_use` blocks can only be in `assistant` messages"),
    "a result of the assistant's": (
        body(Q, assistant(result()), Q),
        "`tool_result` blocks can only be in `user` messages",
    ),
    "is_error that is no boolean": (
        body(Q, assistant(call()), user(result(is_error=None))),
        "is_error: Input should be a valid boolean",
    ),
    "an error without content": (
        body(Q, assistant(call()), user(result(is_error=True, content=""))),
        "content cannot be empty if `is_error` is true",
    ),
    "a blank block in a result": (
        body(Q, assistant(call()), user(result(content=[said("")]))),
        "text content blocks must be non-empty",
    ),
    # cache breakpoints
    "five breakpoints": (
        body(user(*(said(str(i), **MARK) for i in range(5)))),
        "A maximum of 4 blocks with cache_control may be provided. Found 5.",
    ),
    "five over the whole request": (
        body(
            user(said("q", **MARK)),
            cache_control={"type": "ephemeral"},
            tools=[tool(**MARK), tool("b", **MARK)],
            system=[said("s", **MARK)],
        ),
        "Found 5",
    ),
    "a breakpoint on a blank block": (
        body(user("q", said("", **MARK))),
        "messages.0.content.1.text: cache_control cannot be set for empty text blocks",
    ),
    "a breakpoint on thinking": (
        body(Q, assistant({**SIGNED, **MARK}, "a"), Q),
        "messages.1.content.0.thinking.cache_control: Extra inputs",
    ),
    "a breakpoint on a message": (body({**Q, **MARK}), "messages.0.cache_control: Extra inputs are not permitted"),
    "an unknown breakpoint": (
        body(user(said("q", cache_control={"type": "forever"}))),
        "cache_control.type: Input should be 'ephemeral'",
    ),
    "an unknown lifetime": (
        body(user(said("q", cache_control={"type": "ephemeral", "ttl": "2h"}))),
        "cache_control.ttl: Input should be '5m' or '1h'",
    ),
    "long-lived breakpoints last": (
        body(user(said("q", cache_control={"type": "ephemeral", "ttl": "1h"})), system=[said("s", **MARK)]),
        "a ttl='1h' cache_control block must not come after a ttl='5m'",
    ),
    # features of the model
    "temperature on a newer model": (body(temperature=0.3), "`temperature` is deprecated for this model."),
    "top_k on a newer model": (body(top_k=3), "`top_k` is deprecated for this model."),
    "temperature above 1": (body(model=OLDER, temperature=1.1), "temperature: Input should be between 0 and 1"),
    "temperature as text": (body(model=OLDER, temperature="0"), "temperature: Input should be a valid number"),
    "temperature and top_p": (body(model=OLDER, temperature=0.1, top_p=0.1), "cannot both be specified"),
    "temperature while thinking": (
        body(model=OLDER, temperature=0.1, **BUDGET),
        "may only be set to 1 when thinking is enabled",
    ),
    "top_k while thinking": (body(model=OLDER, top_k=1, **BUDGET), "`top_k` must be unset when thinking is enabled"),
    "an unknown effort": (body(output_config={"effort": "huge"}), "output_config.effort: Input should be 'low'"),
    "effort on a model without": (
        body(model="claude-haiku-4-5", output_config={"effort": "low"}),
        "does not support the effort parameter",
    ),
    "too much effort": (body(model=OLDER, output_config={"effort": "xhigh"}), "does not support effort level 'xhigh'"),
    "an unknown output setting": (body(output_config={"length": 1}), "output_config.length: Extra inputs"),
    "an unknown format": (body(output_config={"format": {"type": "xml", "schema": {}}}), "output_config.format.type"),
    "a budget on a newer model": (body(**BUDGET), '"thinking.type.enabled" is not supported for this model'),
    "adaptive thinking on an older model": (
        body(model="claude-haiku-4-5", **ADAPTIVE),
        "adaptive thinking is not supported on this model",
    ),
    "an unknown thinking type": (body(thinking={"type": "on"}), "thinking.type: Input should be"),
    "an unknown field in thinking": (
        body(thinking={"type": "adaptive", "budget_tokens": 2000}),
        "thinking.adaptive.budget_tokens: Extra",
    ),
    "a budget that is too small": (
        body(model=OLDER, **BUDGET) | {"thinking": {"type": "enabled", "budget_tokens": 9}},
        "greater than or equal to 1024",
    ),
    "a budget without room": (
        body(model=OLDER, **BUDGET) | {"max_tokens": 1024},
        "`max_tokens` must be greater than `thinking.budget_tokens`",
    ),
    "thinking with a forced tool": (
        body(tools=[tool()], tool_choice={"type": "any"}, **ADAPTIVE),
        "Thinking may not be enabled when tool_choice forces",
    ),
    # the system role
    "a system message on an older model": (
        body(Q, system("x"), model=OLDER),
        "role 'system' is not supported on this model",
    ),
    "a system message first": (body(system("x"), Q), "messages.0: use the top-level 'system' parameter"),
    "a system message after a reply": (
        body(Q, A, system("x"), Q),
        "messages.2: role 'system' must follow a 'user' message",
    ),
    "a system message before the user's": (
        body(Q, system("x"), Q),
        "messages.1: role 'system' must precede an 'assistant' message or end",
    ),
    "a system message between call and result": (
        body(Q, assistant(call()), system("x"), user(result())),
        "messages.2: role 'system' must follow",
    ),
    "an empty system message": (body(Q, system()), "messages.1: system content must contain at least one block"),
    "a result in a system message": (body(Q, system(result())), "messages.1: role 'system' supports text blocks only"),
    # thinking
    "a signature that was never given": (
        body(Q, assistant({**SIGNED, "signature": "x"}, "a"), Q),
        "messages.1.content.0: Invalid `signature` in `thinking` block",
    ),
    "thinking that was changed": (
        body(Q, assistant({**SIGNED, "thinking": "ha"}, "a"), Q),
        "messages.1.content.0: Invalid `signature`",
    ),
    "redacted thinking from nowhere": (
        body(Q, assistant({"type": "redacted_thinking", "data": "x"}, "a"), Q),
        "Invalid `data` in `redacted_thinking` block",
    ),
    "thinking dropped in a tool loop": (
        body(*LOOP, **ADAPTIVE),
        "messages.1: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified",
    ),
    "thinking dropped earlier in the loop": (
        body(*LOOP, assistant(call("toolu_2")), user(result("toolu_2"), "go on"), user("please"), **ADAPTIVE),
        "messages.1: `thinking` or",
    ),
    "thinking at the end of a reply": (
        body(Q, assistant(SIGNED), Q),
        "The final block in an assistant message cannot be `thinking`",
    ),
    "a user that is no text": (body(metadata={"user_id": 1}), "metadata.user_id: Input should be a valid string"),
    "a description that is no text": (
        body(tools=[tool(description=1)]),
        "custom.description: Input should be a valid str",
    ),
    "strict that is no boolean": (body(tools=[tool(strict=1)]), "custom.strict: Input should be a valid boolean"),
    "parallel that is no boolean": (
        body(tools=[tool()], tool_choice={"type": "auto", "disable_parallel_tool_use": 1}),
        "tool_choice.auto.disable_parallel_tool_use: Input should be a valid boolean",
    ),
    "an unknown display": (body(thinking={"type": "adaptive", "display": "loud"}), "thinking.adaptive.display: Input"),
    "top_k below 0": (body(model=OLDER, top_k=-1), "top_k: Input should be greater than or equal to 0"),
    "top_p while thinking": (body(model=OLDER, top_p=0.5, **BUDGET), "`top_p` must be greater than or equal to 0.95"),
    "redacted thinking of the user's": (
        body(user({"type": "redacted_thinking", "data": "dark"})),
        "`redacted_thinking` blocks can only be in `assistant` messages",
    ),
    "an image in a result": (
        body(Q, assistant(call()), user(result(content=[{"type": "image"}]))),
        "messages.2.content.0.tool_result.content.0.image.source: Field required",
    ),
    "a document in a result": (
        body(Q, assistant(call()), user(result(content=[{"type": "document"}]))),
        "messages.2.content.0.tool_result.content.0: this test double models text and images in tool results only",
    ),
    "five breakpoints, some in a result": (
        body(Q, assistant(call()), user(result(content=[said(str(i), **MARK) for i in range(5)]))),
        "Found 5",
    ),
    "a schema that is none": (body(tools=[tool(input_schema=[])]), "input_schema: Input should be a valid dictionary"),
    "required twice": (body(tools=[schema(required=["a", "a"])]), "input_schema: JSON schema is invalid"),
    "bad values": (body(tools=[schema(properties={"a": {"enum": "x"}})]), "properties.a: JSON schema is invalid"),
    "thinking of the user's": (body(user(SIGNED)), "`thinking` blocks can only be in `assistant` messages"),
    "thinking without signature": (
        body(Q, assistant({"type": "thinking", "thinking": "x"}, "a"), Q),
        "thinking.signature: Field required",
    ),
}


@pytest.fixture
def issued() -> Issued:
    """A service that has thought once, before the call toolu_1, and once in the dark."""
    said_before = Issued()
    said_before.remember((SIGNED, call()))
    said_before.remember(({"type": "redacted_thinking", "data": "dark"},))
    return said_before


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepts(name: str, issued: Issued) -> None:
    assert check(ACCEPTED[name], HEADERS, issued=issued) is None


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name: str, issued: Issued) -> None:
    request, message = REFUSED[name]
    fault = check(request, HEADERS, issued=issued)
    assert fault is not None
    assert message in fault.message
    expected = (404, "not_found_error") if name == "an unknown model" else (400, "invalid_request_error")
    assert (fault.status, fault.kind) == expected


@pytest.mark.parametrize(
    ("headers", "status", "message"),
    [
        ({"anthropic-version": "2023-06-01"}, 401, "x-api-key header is required"),
        (HEADERS | {"x-api-key": "other"}, 401, "invalid x-api-key"),
        ({"x-api-key": "test-key"}, 400, "anthropic-version: header is required"),
        (HEADERS | {"anthropic-version": "2"}, 400, "is not a valid version"),
        (HEADERS | {"anthropic-beta": "good, odd"}, 400, "Unexpected value(s) `odd` for the `anthropic-beta` header"),
    ],
)
def test_refuses_headers(headers: dict[str, str], status: int, message: str) -> None:
    fault = check(body(), headers, policy=Policy(betas=frozenset({"good"})))
    assert fault is not None
    assert fault.status == status
    assert message in fault.message


@pytest.mark.parametrize("model", [NEWER, OLDER])
@pytest.mark.parametrize("name", ["temperature", "top_p", "top_k"])
def test_the_newer_version_of_the_api_knows_no_sampling(model: str, name: str) -> None:
    headers = HEADERS | {"anthropic-version": "2026-10-21"}
    assert check(body(model=model), headers) is None
    fault = check(body(model=model, **{name: 1}), headers)
    assert fault is not None
    assert fault.message == f"{name}: Extra inputs are not permitted"


def test_the_key_may_be_a_bearer() -> None:
    headers = {"authorization": "Bearer test-key", "anthropic-version": "2026-10-21"}
    assert check(body(), headers) is None
    fault = check(body(), headers | {"authorization": "Bearer other"})
    assert fault is not None
    assert fault.status == 401


def test_accepts_headers() -> None:
    assert check(body(), HEADERS | {"anthropic-beta": "good"}, policy=Policy(betas=frozenset({"good"}))) is None
    assert check(body(), {"anthropic-version": "2023-06-01"}, policy=Policy(key=None)) is None


def test_a_fault_reads_like_the_apis() -> None:
    assert Fault(400, "invalid_request_error", "no").body("req_1") == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "no"},
        "request_id": "req_1",
    }


def test_compatible_servers_want_alternating_roles() -> None:
    strict = Policy(alternate=True)
    assert check(body(Q, A, Q), HEADERS, policy=strict) is None
    fault = check(body(Q, Q), HEADERS, policy=strict)
    assert fault is not None
    assert "roles must alternate" in fault.message


def test_prefill_is_for_older_models_and_by_choice() -> None:
    allowed = Policy(prefill=True)
    assert check(body(Q, A, model="claude-haiku-4-5"), HEADERS, policy=allowed) is None
    for request, policy in ((body(Q, A), allowed), (body(Q, A, model="claude-haiku-4-5"), Policy())):
        fault = check(request, HEADERS, policy=policy)
        assert fault is not None
        assert "prefill" in fault.message
    fault = check(body(Q, assistant(call()), model="claude-haiku-4-5"), HEADERS, policy=allowed)
    assert fault is not None
    assert "without `tool_result`" in fault.message


def test_count_tokens_has_fewer_fields() -> None:
    assert check_count(without("max_tokens"), HEADERS) is None
    fault = check_count(body(), HEADERS)
    assert fault is not None
    assert fault.message == "max_tokens: Extra inputs are not permitted"


def test_newer_and_older_models_differ_as_their_names_promise() -> None:
    assert (MODELS[NEWER].sampling, MODELS[NEWER].system_role) == (False, True)
    assert (MODELS[OLDER].sampling, MODELS[OLDER].system_role) == (True, False)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "content", "text", "role", "name", "input_schema", "properties", "cache_control", "effort"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@given(st.sampled_from(sorted(ACCEPTED)), st.data())
def test_whatever_comes_is_refused_and_not_tripped_over(name: str, data: st.DataObject) -> None:
    """Replace one value anywhere in a good request by anything."""
    request = _copy(ACCEPTED[name])
    target: Any = request
    key: Any = data.draw(st.sampled_from(sorted(request)))
    while isinstance(target[key], dict | list) and target[key] and data.draw(st.booleans()):
        target = target[key]
        key = data.draw(st.sampled_from(sorted(target) if isinstance(target, dict) else range(len(target))))
    target[key] = data.draw(_json)
    fault = check(request, HEADERS, issued=Issued())
    assert fault is None or fault.status in (400, 404)


def _copy(value: Any) -> Any:
    match value:
        case dict():
            return {k: _copy(v) for k, v in value.items()}
        case list():
            return [_copy(v) for v in value]
        case _:
            return value


# ---- I7

GROWS: dict[str, tuple[dict[str, Any], ...]] = {
    "by a turn": (body(Q), body(Q, A, Q)),
    "by nothing, asked again": (body(Q), body(Q)),
    "by a tool loop": (body(Q), body(*LOOP)),
    "with breakpoints that move": (body(user(said("q", **MARK))), body(Q, A, user(said("q", **MARK)))),
    "with a string that became a block": (body({"role": "user", "content": "q"}), body(Q, A, Q)),
    "with user messages that were joined": (
        body(*LOOP, user("x")),
        body(Q, assistant(call()), user(result(), "x"), A, Q),
    ),
    "and loses its tail": (body(*LOOP[:2], user(result(), "tail")), body(*LOOP, A, Q)),
    "and loses two blocks of tail": (body(user("q", "tail", "tail")), body(Q, A, Q)),
    "and changes its tail": (body(user("q", "one")), body(user("q", "two"))),
    "and loses a system message": (body(Q, system("x")), body(Q, A, Q)),
    "and gets a tail again": (body(user("q", "tail")), body(Q, A, user("q", "tail")), body(Q, A, Q, A, Q)),
    "with another effort": (body(Q), body(Q, A, Q, output_config={"effort": "low"})),
}

BREAKS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "the question changed": (body(Q), body(user("r"), A, Q), "block 0 was user's"),
    "a message went": (body(Q, A, Q), body(Q), "had to stay"),
    "a result changed": (body(*LOOP), body(Q, assistant(call()), user(result(content="else"))), "block 2 was user's"),
    "a role changed": (body(Q, A, Q), body(Q, user("a"), Q), "block 1 was assistant's"),
    "more than the tail went": (body(user("q", "tail")), body(user("r")), "block 0"),
    "a tail was put before the rest": (body(Q), body(user("tail", "q")), "block 0 was user's"),
    "a system message was in the middle": (body(Q, system("x"), A, Q), body(Q, A, Q, A, Q), "block 1 was system's"),
    "the system prompt changed": (body(Q, system="a"), body(Q, A, Q, system="b"), "the system changed within a run"),
    "the tools changed": (body(Q, tools=[tool()]), body(Q, A, Q), "the tools changed within a run"),
    "the order of the tools changed": (
        body(Q, tools=[tool("a"), tool("b")]),
        body(Q, A, Q, tools=[tool("b"), tool("a")]),
        "the order of the tools changed",
    ),
    "the order of an input's keys changed": (
        body(Q, assistant(call(input={"a": 1, "b": 2})), user(result())),
        body(Q, assistant(call(input={"b": 2, "a": 1})), user(result())),
        "block 1",
    ),
}


@pytest.mark.parametrize("name", GROWS)
def test_a_conversation_may_grow(name: str) -> None:
    conversations = Conversations()
    assert [conversations.follow(b) for b in GROWS[name]] == [None] * len(GROWS[name])


@pytest.mark.parametrize("name", BREAKS)
def test_a_conversation_may_do_nothing_else(name: str) -> None:
    before, now, message = BREAKS[name]
    conversations = Conversations()
    assert conversations.follow(before) is None
    assert message in (conversations.follow(now) or "")


def test_a_mistake_is_told_once() -> None:
    conversations = Conversations()
    assert conversations.follow(body(Q)) is None
    assert conversations.follow(body(user("r"))) is not None
    assert conversations.follow(body(user("r"), A, Q)) is None


def test_no_tails_can_be_said() -> None:
    conversations = Conversations(tail=0)
    assert conversations.follow(body(user("q", "x"))) is None
    assert conversations.follow(body(user("q"), A, Q)) is not None


def _tail(request: Any) -> int:
    return sum(b["text"].startswith("tail") for b in request["messages"][-1]["content"])


def test_the_exact_tail_can_be_said() -> None:
    conversations = Conversations(tail=_tail)
    assert conversations.follow(body(user("q", "x", "tail"))) is None
    assert conversations.follow(body(user("q", "x", "tail"))) is None, "asked again"
    assert conversations.follow(body(user("q", "x"), A, user("q", "tail"))) is None
    assert "had to stay" in (conversations.follow(body(user("q", "x"), A, user("p"))) or "")


def test_a_tail_that_was_kept_is_found() -> None:
    conversations = Conversations(tail=_tail)
    assert conversations.follow(body(user("q", "tail"))) is None
    assert "declared as tail" in (conversations.follow(body(user("q", "tail"), A, Q)) or "")


def test_a_tail_that_cannot_be_is_found() -> None:
    assert "at most 0" in (Conversations(tail=lambda _: 1).follow(body(Q)) or "")


def test_a_new_conversation_has_to_be_announced() -> None:
    conversations = Conversations()
    assert conversations.follow(body(Q, A, Q)) is None
    conversations.expect_new()
    assert conversations.follow(body(Q, A, Q, A, Q)) is None, "an announcement waits for the request that needs it"
    assert conversations.follow(body(user("new"))) is None
    assert conversations.follow(body(user("newer"))) is not None


def test_children_interleave_with_their_parent() -> None:
    conversations = Conversations()
    conversations.expect_new(2)
    parent, one, two = (body(user(n), system=n) for n in ("parent", "one", "two"))
    for request in (parent, one, two):
        assert conversations.follow(request) is None
    for request in (two, parent, one):
        longer = {**request, "messages": [*request["messages"], A, Q]}
        assert conversations.follow(longer) is None
    assert conversations.follow(body(user("one"), A, user("r"), system="one")) is not None


def test_a_withdrawal_has_to_be_announced_and_keeps_the_rest() -> None:
    conversations = Conversations()
    assert conversations.follow(body(Q, A, user("bad"), system="s")) is None
    conversations.expect_withdrawal()
    assert conversations.follow(body(Q, A, user("good"), system="s")) is None
    conversations.expect_withdrawal()
    assert conversations.follow(body(user("p"), system="t")) is not None


def test_a_new_run_may_have_other_tools_but_not_another_past() -> None:
    conversations = Conversations()
    assert conversations.follow(body(Q, system="s")) is None
    conversations.expect_new_run()
    assert conversations.follow(body(user("r"), system="t")) is not None
    assert conversations.follow(body(user("r"), A, Q, system="u", tools=[tool()])) is None
    assert conversations.follow(body(user("r"), A, Q, system="v")) is not None
