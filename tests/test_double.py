"""The double of the Messages API: requests that it refuses and accepts, I7, and the prompt cache."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest
from double import (
    NEWER,
    OLDER,
    Account,
    Conversations,
    Issued,
    Policy,
    PromptCache,
    RulesBroken,
    check,
    check_messages,
    reuse,
    text,
)
from double.cache import LOOKBACK
from support.wire import open_model

from chain.errors import ModelError
from chain.messages import user_text
from chain.model import Request

HEADERS = {"x-api-key": "test-key", "anthropic-version": "2023-06-01"}
NEW_HEADERS = {"authorization": "Bearer test-key", "anthropic-version": "2026-10-21"}
MARK: dict[str, Any] = {"cache_control": {"type": "ephemeral"}}
SIGNED = {"type": "thinking", "thinking": "hm", "signature": "sig_1"}
DARK = {"type": "redacted_thinking", "data": "dark"}
ADAPTIVE = {"thinking": {"type": "adaptive"}}
BUDGET = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000}
PNG = b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + bytes(17)


def message(role: str, *content: Any) -> dict[str, Any]:
    return {"role": role, "content": [said(c) if isinstance(c, str) else c for c in content]}


def user(*content: Any) -> dict[str, Any]:
    return message("user", *content)


def assistant(*content: Any) -> dict[str, Any]:
    return message("assistant", *content)


def said(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **fields}


def call(id: str = "a", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "look", "input": {}, **fields}


def result(id: str = "a", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": "seen", **fields}


def image(content: bytes = PNG, media_type: str = "image/png") -> dict[str, Any]:
    data = b64encode(content).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}


Q, A = user("q"), assistant("a")
S = message("system", "be brief")
TOOL = {"name": "look", "description": "Looks.", "input_schema": {"type": "object", "properties": {}}}


def body(*messages: Any, **fields: Any) -> dict[str, Any]:
    return {"model": NEWER, "max_tokens": 100, "stream": True, "messages": [*(messages or [Q])], **fields}


def loop(*results: Any, **fields: Any) -> dict[str, Any]:
    """A request after one call."""
    return body(Q, assistant(call()), user(*(results or [result()])), **fields)


def answered(reply: Any, **fields: Any) -> dict[str, Any]:
    return body(Q, assistant(reply, "a"), Q, **fields)


def tool(**schema: Any) -> dict[str, Any]:
    return body(tools=[{**TOOL, "input_schema": {"type": "object", **schema}}])


def without(name: str) -> dict[str, Any]:
    return {k: v for k, v in body().items() if k != name}


RULES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    # The message, a request that is refused, and a similar one that is accepted.
    ("messages: Field required", without("messages"), body()),
    ("colour: Extra inputs are not permitted", body(colour="red"), body(stop_sequences=["END"])),
    ("stop_sequences: each", body(stop_sequences=["\n"]), body(stop_sequences=["a b"])),
    ("model: claude-0", body(model="claude-0"), body(model=OLDER)),
    ("max_tokens: Input should be greater than or equal to 1", body(max_tokens=0), body(max_tokens=1)),
    ("maximum allowed number of output tokens", body(max_tokens=128_001), body(max_tokens=128_000)),
    ("stream: this test double streams only", body(stream=False), body()),
    ("system: text content blocks must contain", body(system=[said(" ")]), body(system=[said("s", **MARK)])),
    # messages and blocks
    ("at least one message", body() | {"messages": []}, body(Q, Q)),
    ('Unexpected role "tool"', body({"role": "tool", "content": "x"}), body({"role": "user", "content": "x"})),
    ("messages.1: all messages must have non-empty content", body(Q, assistant(), Q), body(Q, A, Q)),
    ("text content blocks must be non-empty", body(user("q", "")), body(user("q", "r"))),
    ("must contain non-whitespace text", body(user("q", "\n ")), body(user("q", "\n r"))),
    ("messages.0.content.0.type: Field required", body(user({"text": "x"})), body(user("x"))),
    ("messages.0.content.0: Input tag 'document'", body(user({"type": "document"})), body(user("x", image()))),
    ("`tool_use` blocks can only be in `assistant`", body(user(call())), loop()),
    ("`tool_result` blocks can only be in `user`", answered(result()), loop()),
    ("`image` blocks can only be in `user`", answered(image()), body(user(image()))),
    ("Could not process image", body(user(image(PNG, "image/jpeg"))), body(user(image(b"\xff\xd8\xff", "image/jpeg")))),
    ("Could not process image", loop(result(content=[image(PNG[:8])])), loop(result(content=[image()]))),
    ("image exceeds 5 MB", body(user(image(PNG + bytes(5 * 2**20)))), body(user(image(PNG + bytes(2**20))))),
    ("content cannot be empty if", loop(result(is_error=True, content="")), loop(result(content=""))),
    ("must be non-empty", loop(result(content=[said("")])), loop(result(content=[said("x")]))),
    ("tool_use.id: String should match", body(Q, assistant(call("a b")), user(result("a b"))), loop()),
    ("tool_use.name: String should match", body(Q, assistant(call(name="")), user(result())), loop()),
    # tools
    ("tools.0.custom.name: String should match", body(tools=[TOOL | {"name": "a b"}]), body(tools=[TOOL])),
    ("Tool names must be unique", body(tools=[TOOL, TOOL]), body(tools=[TOOL, TOOL | {"name": "b"}])),
    ("type: Input should be 'object'", tool(type="string"), tool()),
    ("does not support oneOf, allOf, or anyOf", tool(anyOf=[{}]), tool(properties={"a": {"anyOf": [{}, True]}})),
    ("Property keys should match", tool(properties={"a b": {}}), tool(properties={"a.b": {}})),
    ("JSON schema is", tool(properties={"a": {"type": "str"}}), tool(properties={"a": {"type": ["string", "null"]}})),
    ("JSON schema is", tool(properties={"a": {"anyOf": []}}), tool(properties={"a": {"items": {}}})),
    ("JSON schema is", tool(required="a"), tool(required=["a"], additionalProperties=False)),
    # who speaks when, calls and results
    ('first message must use the "user" role', body(A, Q), body(Q, A, Q)),
    ("does not support assistant message prefill", body(Q, A), body(Q, A, Q)),
    ("messages.2: two replies follow each other", body(Q, A, A, Q), body(Q, A, Q, A, Q)),
    ("immediately after: a", body(Q, assistant(call()), Q), loop()),
    ("immediately after: b", body(Q, assistant(call(), call("b")), user(result())), loop(result(), "and now")),
    ("immediately after: a", loop("so", result()), body(*loop()["messages"], Q)),
    ("unexpected `tool_use_id`", body(Q, A, user(result())), loop()),
    ("must have a single result", loop(result(), result()), loop()),
    ("ids must be unique", body(*loop()["messages"], assistant(call()), user(result())), loop()),
    # what is counted, features of the model, the system role
    ("Found 5", body(*[user(said("q", **MARK))] * 5), body(*[user(said("q", **MARK))] * 4)),
    ("cannot be set for empty", body(user("q", said("", **MARK))), body(user(said("q", **MARK)))),
    ("`temperature` is deprecated", body(temperature=0.3), body(model=OLDER, temperature=0.3)),
    ("temperature: Input should be between", body(model=OLDER, temperature=2), body(model=OLDER, temperature=0)),
    (
        "may only be set to 1",
        body(model=OLDER, temperature=0.1, **BUDGET),
        body(model=OLDER, temperature=1, **BUDGET),
    ),
    ("effort level 'xhigh'", body(model=OLDER, output_config={"effort": "xhigh"}), body(model=OLDER)),
    ("is not supported for this model", body(**BUDGET), body(model=OLDER, **BUDGET)),
    (
        "must be greater than `thinking.budget",
        body(model=OLDER, **BUDGET | {"max_tokens": 1024}),
        body(model=OLDER, **BUDGET),
    ),
    ("role 'system' is not supported", body(Q, S, model=OLDER), body(Q, S)),
    ("use the top-level 'system' parameter", body(S, Q), body(Q, S, S, A, Q)),
    ("role 'system' must follow", body(Q, A, S, Q), body(*loop()["messages"], S)),
    ("role 'system' must precede", body(Q, S, Q), body(Q, S, A, Q)),
    ("supports text blocks only", body(Q, message("system", result())), body(Q, S)),
    # thinking
    ("The final block in an assistant message cannot be", body(Q, assistant(SIGNED), Q), answered(SIGNED)),
    ("Invalid `signature`", answered(SIGNED | {"thinking": "ha"}), answered(SIGNED)),
    ("Invalid `data` in `redacted_thinking`", answered(DARK | {"data": "x"}), answered(DARK)),
    ("cannot be modified", loop(**ADAPTIVE), body(Q, assistant(SIGNED, call()), user(result()), **ADAPTIVE)),
]


@pytest.mark.parametrize(("fault", "wrong", "right"), RULES)
def test_each_rule(fault: str, wrong: dict[str, Any], right: dict[str, Any]) -> None:
    issued = Issued()
    issued.remember((SIGNED, call()))
    issued.remember((DARK,))
    found = check(wrong, HEADERS, issued=issued)
    assert found is not None
    assert fault in found.message
    assert (found.status, found.kind) in [(400, "invalid_request_error"), (404, "not_found_error")]
    assert check(right, HEADERS, issued=issued) is None


def test_headers_versions_and_alternating_roles() -> None:
    old = {"anthropic-version": "2023-06-01"}
    assert check(body(), old, policy=Policy(key=None)) is None
    wrong = (
        old,
        HEADERS | {"x-api-key": "no"},
        HEADERS | {"anthropic-version": "2"},
        HEADERS | {"anthropic-beta": "x"},
    )
    assert [found.status for headers in wrong if (found := check(body(), headers))] == [401, 401, 400, 400]
    assert check(body(), NEW_HEADERS) is None
    assert "temperature: Extra" in str(check(body(model=OLDER, temperature=1), NEW_HEADERS))
    assert "roles must alternate" in str(check(body(Q, Q), HEADERS, policy=Policy(alternate=True)))


def test_stored_messages_may_have_more_than_is_sent() -> None:
    kept = [Q, assistant({"type": "novelty"}, call(), SIGNED), user(result(content=[{"type": "image"}]))]
    assert check_messages(kept) is None
    assert "without `tool_result`" in str(check_messages([*kept[:2], Q]))


# ---- I7

LOOP = loop()["messages"]
TAIL = user("q", "tail")


@pytest.mark.parametrize(
    ("before", "grows", "breaks", "why"),
    [
        (body(Q), body(Q, A, Q), body(user("r"), A, Q), "block 0 was user's"),
        (body(user(said("q", **MARK)), A, Q), body(Q, A, user(said("q", **MARK))), body(Q), "had to stay"),
        (body(*LOOP), body(*LOOP, A, Q), loop(result(content="else")), "block 2 was user's"),
        (body(TAIL), body(Q, A, Q), body(user("r")), "block 0"),
        (body(Q, S), body(Q, A, Q), body(user("r"), A, Q), "block 0"),
        (body(Q, S, A, Q), body(Q, S, A, Q, A, Q), body(Q, A, Q, A, Q), "block 1 was system's"),
        (body(system="a"), body(Q, A, Q, system="a"), body(Q, A, Q, system="b"), "system changed within a run"),
        (body(tools=[TOOL]), body(Q, A, Q, tools=[TOOL]), body(Q, A, Q), "tools changed within a run"),
    ],
)
def test_a_conversation_only_grows(before: Any, grows: Any, breaks: Any, why: str) -> None:
    for after, is_broken in ((grows, False), (breaks, True)):
        conversations = Conversations()
        assert conversations.follow(before) is None
        found = conversations.follow(after) or ""
        assert (why in found) if is_broken else not found


def test_only_a_declared_tail_may_go() -> None:
    for after, why in ((body(Q, A, Q), ""), (body(TAIL), ""), (body(TAIL, A, Q), "as tail"), (body(A, A), "to stay")):
        conversations = Conversations(tail=lambda request: int(request["messages"][-1] == TAIL))
        assert conversations.follow(body(TAIL)) is None
        found = conversations.follow(after) or ""
        assert (why in found) if why else not found
    assert "at most 0" in (Conversations(tail=lambda _: 1).follow(body(Q)) or "")


def test_conversations_interleave_and_new_ones_are_expected() -> None:
    conversations = Conversations()
    assert conversations.follow(body(Q, A, Q)) is None
    assert conversations.follow(body(user("child"), system="c")) is not None
    conversations.expect_new()
    assert [conversations.follow(body(*m, system="d")) for m in ([Q], [Q, A, Q])] == [None, None]
    assert conversations.follow(body(user("child"), A, Q, system="c")) is None
    conversations.expect_withdrawal()
    assert conversations.follow(body(user("child"), A, user("r"), system="c")) is None
    assert conversations.follow(body(user("child"), A, user("s"), system="c")) is not None


# ---- the prompt cache


def test_a_breakpoint_reads_twenty_blocks_back() -> None:
    row = [said(f"number {i:02}") for i in range(40)]
    size = PromptCache().account(body(user(row[0]))).input

    def marked(count: int, *marks: int, **fields: Any) -> dict[str, Any]:
        return body(user(*({**b, **MARK} if i in marks else b for i, b in enumerate(row[:count]))), **fields)

    for reach, is_found in ((LOOKBACK - 1, True), (LOOKBACK, False)):
        cache = PromptCache()
        assert cache.account(marked(3, 2)) == Account(0, 3 * size, 0, 0)
        n = 3 + reach
        read = 3 * size if is_found else 0
        account = cache.account(marked(n + 1, n - 1))
        assert account == Account(read, n * size - read, size, 3 * size)
        assert reuse([account]) == is_found
    assert cache.account(marked(3, 2, model=OLDER)).cache_read == 0
    assert cache.account(marked(3, 2, **ADAPTIVE)) == Account(0, 3 * size, 0, 3 * size)


# ---- over real sockets


async def test_a_broken_rule_is_raised_at_the_end() -> None:
    with pytest.raises(RulesBroken, match="request 1: `temperature` is deprecated"):  # noqa: PT012 - the end raises
        async with open_model([text("x")], temperature=0.5) as (double, model):
            with pytest.raises(ModelError, match="is deprecated"):
                await model.reply(Request("", (user_text("hello"),)), lambda delta: None)
            assert double.unplayed == 1, "a refused request uses no step"
