"""The double of the Messages API: requests that it refuses and accepts, and its prompt cache.

It also checks that each request of a conversation begins with the one before (I7 of the specification).
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from typing import Any, NamedTuple

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

OLD_VERSION = {"anthropic-version": "2023-06-01"}
HEADERS = {"x-api-key": "test-key", **OLD_VERSION}
NEW_HEADERS = {"authorization": "Bearer test-key", "anthropic-version": "2026-10-21"}
"""The headers of the new version of the API, which has no ``temperature``; ``HEADERS`` are those of the old one."""
CACHED: dict[str, Any] = {"cache_control": {"type": "ephemeral"}}
SIGNED = {"type": "thinking", "thinking": "hm", "signature": "sig_1"}
REDACTED = {"type": "redacted_thinking", "data": "dark"}
ADAPTIVE = {"thinking": {"type": "adaptive"}}
BUDGET = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000}
PNG = b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + bytes(17)  # the double checks only the header


def message(role: str, *content: Any) -> dict[str, Any]:
    return {"role": role, "content": [text_block(c) if isinstance(c, str) else c for c in content]}


def user(*content: Any) -> dict[str, Any]:
    return message("user", *content)


def assistant(*content: Any) -> dict[str, Any]:
    return message("assistant", *content)


def text_block(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **fields}


def call(id: str = "a", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "look", "input": {}, **fields}


def result(id: str = "a", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": "seen", **fields}


def image(content: bytes = PNG, media_type: str = "image/png") -> dict[str, Any]:
    data = b64encode(content).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}


ASK, ANOTHER, REPLY, SYSTEM = user("q"), user("r"), assistant("a"), message("system", "be brief")
MARKED_ASK = user(text_block("q", **CACHED))
TOOL = {"name": "look", "description": "Looks.", "input_schema": {"type": "object", "properties": {}}}


def body(*messages: Any, **fields: Any) -> dict[str, Any]:
    return {"model": NEWER, "max_tokens": 100, "stream": True, "messages": [*(messages or [ASK])], **fields}


def after_call(*content: Any, **fields: Any) -> dict[str, Any]:
    """Return a request whose last message answers a call, by default with its result."""
    return body(ASK, assistant(call()), user(*(content or [result()])), **fields)


def with_reply(block: Any, **fields: Any) -> dict[str, Any]:
    """Return a request after a reply that contains this block."""
    return body(ASK, assistant(block, "a"), ASK, **fields)


def with_schema(**schema: Any) -> dict[str, Any]:
    """Return a request with a tool of this input schema."""
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
    (
        "system: text content blocks must contain",
        body(system=[text_block(" ")]),
        body(system=[text_block("s", **CACHED)]),
    ),
    # messages and blocks
    ("at least one message", body() | {"messages": []}, body(ASK, ASK)),
    ('Unexpected role "tool"', body({"role": "tool", "content": "x"}), body({"role": "user", "content": "x"})),
    ("messages.1: all messages must have non-empty content", body(ASK, assistant(), ASK), body(ASK, REPLY, ASK)),
    ("text content blocks must be non-empty", body(user("q", "")), body(user("q", "r"))),
    ("must contain non-whitespace text", body(user("q", "\n ")), body(user("q", "\n r"))),
    ("messages.0.content.0.type: Field required", body(user({"text": "x"})), body(user("x"))),
    ("messages.0.content.0: Input tag 'document'", body(user({"type": "document"})), body(user("x", image()))),
    ("`tool_use` blocks can only be in `assistant`", body(user(call())), after_call()),
    ("`tool_result` blocks can only be in `user`", with_reply(result()), after_call()),
    ("`image` blocks can only be in `user`", with_reply(image()), body(user(image()))),
    ("Could not process image", body(user(image(PNG, "image/jpeg"))), body(user(image(b"\xff\xd8\xff", "image/jpeg")))),
    ("Could not process image", after_call(result(content=[image(PNG[:8])])), after_call(result(content=[image()]))),
    ("image exceeds 5 MB", body(user(image(PNG + bytes(5 * 2**20)))), body(user(image(PNG + bytes(2**20))))),
    ("content cannot be empty if", after_call(result(is_error=True, content="")), after_call(result(content=""))),
    ("must be non-empty", after_call(result(content=[text_block("")])), after_call(result(content=[text_block("x")]))),
    ("tool_use.id: String should match", body(ASK, assistant(call("a b")), user(result("a b"))), after_call()),
    ("tool_use.name: String should match", body(ASK, assistant(call(name="")), user(result())), after_call()),
    # tools
    ("tools.0.custom.name: String should match", body(tools=[TOOL | {"name": "a b"}]), body(tools=[TOOL])),
    ("Tool names must be unique", body(tools=[TOOL, TOOL]), body(tools=[TOOL, TOOL | {"name": "b"}])),
    ("type: Input should be 'object'", with_schema(type="string"), with_schema()),
    (
        "does not support oneOf, allOf, or anyOf",
        with_schema(anyOf=[{}]),
        with_schema(properties={"a": {"anyOf": [{}, True]}}),
    ),
    ("Property keys should match", with_schema(properties={"a b": {}}), with_schema(properties={"a.b": {}})),
    (
        "JSON schema is",
        with_schema(properties={"a": {"type": "str"}}),
        with_schema(properties={"a": {"type": ["string", "null"]}}),
    ),
    ("JSON schema is", with_schema(properties={"a": {"anyOf": []}}), with_schema(properties={"a": {"items": {}}})),
    ("JSON schema is", with_schema(required="a"), with_schema(required=["a"], additionalProperties=False)),
    # who speaks when, calls and results
    ('first message must use the "user" role', body(REPLY, ASK), body(ASK, REPLY, ASK)),
    ("does not support assistant message prefill", body(ASK, REPLY), body(ASK, REPLY, ASK)),
    ("messages.2: two replies follow each other", body(ASK, REPLY, REPLY, ASK), body(ASK, REPLY, ASK, REPLY, ASK)),
    ("immediately after: a", body(ASK, assistant(call()), ASK), after_call()),
    ("immediately after: b", body(ASK, assistant(call(), call("b")), user(result())), after_call(result(), "and now")),
    ("immediately after: a", after_call("so", result()), body(*after_call()["messages"], ASK)),
    ("unexpected `tool_use_id`", body(ASK, REPLY, user(result())), after_call()),
    ("must have a single result", after_call(result(), result()), after_call()),
    ("ids must be unique", body(*after_call()["messages"], assistant(call()), user(result())), after_call()),
    # breakpoints, features of the model, the system role
    ("Found 5", body(*[MARKED_ASK] * 5), body(*[MARKED_ASK] * 4)),
    ("cannot be set for empty", body(user("q", text_block("", **CACHED))), body(MARKED_ASK)),
    ("`temperature` is deprecated", body(temperature=0.3), body(model=OLDER, temperature=0.3)),
    ("temperature: Input should be between", body(model=OLDER, temperature=2), body(model=OLDER, temperature=0)),
    ("may only be set to 1", body(model=OLDER, temperature=0.1, **BUDGET), body(model=OLDER, temperature=1, **BUDGET)),
    ("effort level 'xhigh'", body(model=OLDER, output_config={"effort": "xhigh"}), body(model=OLDER)),
    ("is not supported for this model", body(**BUDGET), body(model=OLDER, **BUDGET)),
    (
        "must be greater than `thinking.budget",
        body(model=OLDER, **BUDGET | {"max_tokens": 1024}),
        body(model=OLDER, **BUDGET),
    ),
    ("role 'system' is not supported", body(ASK, SYSTEM, model=OLDER), body(ASK, SYSTEM)),
    ("use the top-level 'system' parameter", body(SYSTEM, ASK), body(ASK, SYSTEM, SYSTEM, REPLY, ASK)),
    ("role 'system' must follow", body(ASK, REPLY, SYSTEM, ASK), body(*after_call()["messages"], SYSTEM)),
    ("role 'system' must precede", body(ASK, SYSTEM, ASK), body(ASK, SYSTEM, REPLY, ASK)),
    ("supports text blocks only", body(ASK, message("system", result())), body(ASK, SYSTEM)),
    # thinking: the double issued (SIGNED, call()) in one reply, and REDACTED in another
    ("The final block in an assistant message cannot be", body(ASK, assistant(SIGNED), ASK), with_reply(SIGNED)),
    ("Invalid `signature`", with_reply(SIGNED | {"thinking": "ha"}), with_reply(SIGNED)),
    ("Invalid `data` in `redacted_thinking`", with_reply(REDACTED | {"data": "x"}), with_reply(REDACTED)),
    ("cannot be modified", after_call(**ADAPTIVE), body(ASK, assistant(SIGNED, call()), user(result()), **ADAPTIVE)),
]


@pytest.mark.parametrize(("fault", "refused", "accepted"), RULES, ids=[fault for fault, _, _ in RULES])
def test_each_rule(fault: str, refused: dict[str, Any], accepted: dict[str, Any]) -> None:
    issued = Issued()
    issued.remember((SIGNED, call()))
    issued.remember((REDACTED,))
    refusal = check(refused, HEADERS, issued=issued)
    assert refusal is not None
    assert fault in refusal.message
    assert (refusal.status, refusal.kind) in [(400, "invalid_request_error"), (404, "not_found_error")]
    assert check(accepted, HEADERS, issued=issued) is None


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        pytest.param(OLD_VERSION, 401, id="no key"),
        pytest.param(HEADERS | {"x-api-key": "no"}, 401, id="wrong key"),
        pytest.param(HEADERS | {"anthropic-version": "2"}, 400, id="unknown version"),
        pytest.param(HEADERS | {"anthropic-beta": "x"}, 400, id="beta"),
    ],
)
def test_wrong_headers_are_refused(headers: dict[str, str], status: int) -> None:
    refusal = check(body(), headers)
    assert refusal is not None
    assert refusal.status == status


def test_a_key_may_be_unnecessary() -> None:
    assert check(body(), OLD_VERSION, policy=Policy(key=None)) is None


def test_the_new_api_version_has_no_temperature() -> None:
    assert check(body(), NEW_HEADERS) is None
    assert "temperature: Extra" in str(check(body(model=OLDER, temperature=1), NEW_HEADERS))


def test_a_policy_may_require_alternating_roles() -> None:
    assert "roles must alternate" in str(check(body(ASK, ASK), HEADERS, policy=Policy(alternate=True)))


def test_stored_messages_may_have_more_than_is_sent() -> None:
    unsent_blocks = assistant({"type": "novelty"}, call(), SIGNED)
    assert check_messages([ASK, unsent_blocks, user(result(content=[{"type": "image"}]))]) is None
    assert "without `tool_result`" in str(check_messages([ASK, unsent_blocks, ASK]))


# ---- each request of a conversation begins with the one before

# A tail is text at the end of a request that belongs to that request only. The next request need not repeat it.


class Continuation(NamedTuple):
    """A first request, a second one that continues it, one that does not, and the fault of that one."""

    first: Any
    accepted: Any
    refused: Any
    fault: str


CALL_AND_RESULT = after_call()["messages"]
ASK_AND_TAIL = user("q", "tail")
CONTINUATIONS = {
    "text": Continuation(
        body(ASK), accepted=body(ASK, REPLY, ASK), refused=body(ANOTHER, REPLY, ASK), fault="block 0 was user's"
    ),
    "breakpoint": Continuation(
        body(MARKED_ASK, REPLY, ASK), accepted=body(ASK, REPLY, MARKED_ASK), refused=body(ASK), fault="had to stay"
    ),
    "result": Continuation(
        body(*CALL_AND_RESULT),
        accepted=body(*CALL_AND_RESULT, REPLY, ASK),
        refused=after_call(result(content="else")),
        fault="block 2 was user's",
    ),
    "tail": Continuation(body(ASK_AND_TAIL), accepted=body(ASK, REPLY, ASK), refused=body(ANOTHER), fault="block 0"),
    "system tail": Continuation(
        body(ASK, SYSTEM), accepted=body(ASK, REPLY, ASK), refused=body(ANOTHER, REPLY, ASK), fault="block 0"
    ),
    "system message": Continuation(
        body(ASK, SYSTEM, REPLY, ASK),
        accepted=body(ASK, SYSTEM, REPLY, ASK, REPLY, ASK),
        refused=body(ASK, REPLY, ASK, REPLY, ASK),
        fault="block 1 was system's",
    ),
    "system prompt": Continuation(
        body(system="a"),
        accepted=body(ASK, REPLY, ASK, system="a"),
        refused=body(ASK, REPLY, ASK, system="b"),
        fault="system changed within a run",
    ),
    "tools": Continuation(
        body(tools=[TOOL]),
        accepted=body(ASK, REPLY, ASK, tools=[TOOL]),
        refused=body(ASK, REPLY, ASK),
        fault="tools changed within a run",
    ),
}


@pytest.mark.parametrize("case", CONTINUATIONS.values(), ids=CONTINUATIONS)
def test_a_conversation_only_grows(case: Continuation) -> None:
    assert fault_of_second_request(case.first, case.accepted) == ""
    assert case.fault in fault_of_second_request(case.first, case.refused)


def fault_of_second_request(first: Any, second: Any, tail: Callable[[Any], int] | None = None) -> str:
    """Return the fault of a request that follows another one; an empty string if it has none."""
    conversations = Conversations(tail=tail)
    assert conversations.follow(first) is None
    return conversations.follow(second) or ""


def declared_tail(request: Any) -> int:
    *_, last = request["messages"]
    return 1 if last == ASK_AND_TAIL else 0


@pytest.mark.parametrize("messages", [[ASK, REPLY, ASK], [ASK_AND_TAIL]], ids=["removed", "repeated as tail"])
def test_a_declared_tail_leaves_the_conversation(messages: list[Any]) -> None:
    assert fault_of_second_request(body(ASK_AND_TAIL), body(*messages), declared_tail) == ""


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        pytest.param(
            [ASK_AND_TAIL, REPLY, ASK],
            'block 1 was declared as tail and is conversation now: user\'s {"type":"text","text":"tail"}',
            id="tail that stays",
        ),
        pytest.param(
            [REPLY, REPLY],
            "the conversation is not a prefix of the next request's: block 0 was user's "
            '{"type":"text","text":"q"} and is assistant\'s {"type":"text","text":"a"}; '
            "the first 1 of 2 blocks had to stay",
            id="more removed",
        ),
    ],
)
def test_only_a_declared_tail_leaves_the_conversation(messages: list[Any], fault: str) -> None:
    assert fault_of_second_request(body(ASK_AND_TAIL), body(*messages), declared_tail) == fault


def test_a_request_is_not_only_tail() -> None:
    fault = Conversations(tail=lambda _: 1).follow(body(ASK))
    assert fault == "a tail of 1 blocks was declared, but at most 0 can be one"


CHILD_ASK = user("child")


def test_a_second_conversation_must_be_expected() -> None:
    conversations = Conversations()
    assert conversations.follow(body(ASK, REPLY, ASK)) is None
    assert conversations.follow(body(CHILD_ASK, system="child")) is not None
    conversations.expect_new()
    assert conversations.follow(body(ASK, system="other child")) is None


def test_expected_conversations_interleave() -> None:
    conversations = Conversations()
    conversations.expect_new()
    for request in (
        body(ASK),
        body(CHILD_ASK, system="child"),
        body(ASK, REPLY, ASK),
        body(CHILD_ASK, REPLY, ASK, system="child"),
    ):
        assert conversations.follow(request) is None


def test_an_expected_withdrawal_happens_once() -> None:
    conversations = Conversations()
    assert conversations.follow(body(ASK, REPLY, ASK)) is None
    conversations.expect_withdrawal()
    assert conversations.follow(body(ASK, REPLY, ANOTHER)) is None
    assert conversations.follow(body(ASK, REPLY, user("s"))) is not None


# ---- the prompt cache

BLOCKS = [text_block(f"number {i:02}") for i in range(40)]  # all of the same length
BLOCK_TOKENS = PromptCache().account(body(user(BLOCKS[0]))).input
STORED = 3
"""The number of blocks that the first request stores in the cache."""


def marked_body(count: int, *more: Any, **fields: Any) -> dict[str, Any]:
    """Return a request of this many blocks, with a breakpoint at the last one, and of ``more`` blocks."""
    *before, last = BLOCKS[:count]
    return body(user(*before, {**last, **CACHED}, *more), **fields)


@pytest.mark.parametrize(
    ("new_blocks", "read_blocks"), [(LOOKBACK - 1, STORED), (LOOKBACK, 0)], ids=["in reach", "out of reach"]
)
def test_a_breakpoint_reads_twenty_blocks_back(new_blocks: int, read_blocks: int) -> None:
    cache = PromptCache()
    stored = STORED * BLOCK_TOKENS
    assert cache.account(marked_body(STORED)) == Account(cache_read=0, cache_write=stored, input=0, repeatable=0)
    unmarked_block = text_block("number 99")
    account = cache.account(marked_body(STORED + new_blocks, unmarked_block))
    read, written = read_blocks * BLOCK_TOKENS, (STORED + new_blocks - read_blocks) * BLOCK_TOKENS
    assert account == Account(read, written, input=BLOCK_TOKENS, repeatable=stored)
    assert reuse([account]) == read_blocks / STORED


def test_each_model_has_its_own_cache() -> None:
    cache = PromptCache()
    cache.account(marked_body(STORED))
    assert cache.account(marked_body(STORED, model=OLDER)).cache_read == 0


def test_messages_are_not_reused_with_other_thinking() -> None:
    cache = PromptCache()
    cache.account(marked_body(STORED))
    stored = STORED * BLOCK_TOKENS
    account = cache.account(marked_body(STORED, **ADAPTIVE))
    assert account == Account(cache_read=0, cache_write=stored, input=0, repeatable=stored)


# ---- over real sockets


async def test_a_broken_rule_is_raised_at_the_end() -> None:
    with pytest.raises(RulesBroken, match="request 1: `temperature` is deprecated"):  # noqa: PT012 - __aexit__ raises
        async with open_model([text("x")], temperature=0.5) as (double, model):
            with pytest.raises(ModelError, match="is deprecated"):
                await model.reply(Request("", (user_text("hello"),)), lambda delta: None)
            assert double.unplayed == 1, "a refused request uses no step"
