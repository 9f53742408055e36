"""Requests in the form of the Messages API, and breakpoints by which the prompt cache can reuse them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from double import NEWER, OLDER, Account, Conversations, Issued, Policy, PromptCache, check, reuse
from hypothesis import given
from hypothesis import strategies as st

from chain.agent.conversation import Conversation
from chain.messages import (
    Message,
    Opaque,
    Overrides,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    assistant,
    block_to_json,
    tool_results,
    user_text,
)
from chain.model import Request, ToolSpec
from chain.providers.anthropic import encoding
from chain.providers.anthropic.encoding import Encoder
from chain.providers.anthropic.service import Parameters

HEADERS = {"authorization": "Bearer test-key", "anthropic-version": "2026-10-21"}
OLD_HEADERS = {**HEADERS, "anthropic-version": "2023-06-01"}
"""Those of the version in which an older model accepts ``temperature``."""
MAX_BREAKPOINTS = 4
"""The limit of the service for one request."""
TOOLS = (
    ToolSpec("look", "Look at something.", {"type": "object", "properties": {"at": {"type": "string"}}}),
    ToolSpec("list", "List.", {"type": "object", "properties": {}}),
)
HELLO = [user_text("hello")]
REDACTED = Opaque({"type": "redacted_thinking", "data": "EmwKAh"})


def parameters(model: str = NEWER, max_tokens: int = 1000, **more: Any) -> Parameters:
    return Parameters(model, max_tokens, **more)


def request(messages: Sequence[Message] = HELLO, *tail: str, system: str = "You are a test.", **more: Any) -> Request:
    return Request(system, tuple(messages), TOOLS, tail, **more)


def body_of(encoder: Encoder, request: Request) -> dict[str, Any]:
    """Return the body of a request. Fail if one of its objects repeats a key."""
    body: dict[str, Any] = json.loads(encoder.encode(request), object_pairs_hook=object_without_repeats)
    return body


def body(messages: Sequence[Message] = HELLO, *tail: str, use: Parameters | None = None, **more: Any) -> dict[str, Any]:
    """Return the body of a request that a new encoder encodes with the parameters ``use``."""
    return body_of(Encoder(use or parameters()), request(messages, *tail, **more))


def object_without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len({key for key, _ in pairs}) == len(pairs), f"a key is repeated in {[key for key, _ in pairs]}"
    return dict(pairs)


def text_json(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def without_breakpoints(raw: Any) -> Any:
    if isinstance(raw, dict):
        return {k: without_breakpoints(v) for k, v in raw.items() if k != "cache_control"}
    return [without_breakpoints(v) for v in raw] if isinstance(raw, list) else raw


def breakpoints(raw: dict[str, Any]) -> list[tuple[str, int, int]]:
    """Return the places of the breakpoints: part, message, block."""
    messages = [("messages", i, message["content"]) for i, message in enumerate(raw["messages"])]
    contents = [("system", 0, raw.get("system", ())), *messages]
    return [(part, i, j) for part, i, blocks in contents for j, block in enumerate(blocks) if "cache_control" in block]


def reply(*call_ids: str, text: str = "") -> Message:
    return assistant([*([Text(text)] if text else []), *(ToolCall(id, "look", {"at": id}) for id in call_ids)])


def results(*ids: str) -> Message:
    return tool_results(ToolResult(id, f"seen {id}") for id in ids)


# ----------------------------------------------------------------------------------------------------- the messages


def test_a_plain_request() -> None:
    assert without_breakpoints(body()) == {
        "model": NEWER,
        "max_tokens": 1000,
        "stream": True,
        "messages": [{"role": "user", "content": [text_json("hello")]}],
        "system": [text_json("You are a test.")],
        "tools": [{"name": t.name, "description": t.description, "input_schema": dict(t.input_schema)} for t in TOOLS],
    }


def test_a_request_omits_an_empty_system_and_tools() -> None:
    keys = body_of(Encoder(parameters()), Request("", tuple(HELLO))).keys()
    assert keys == {"model", "max_tokens", "stream", "messages"}


def test_user_messages_are_merged_and_start_with_results() -> None:
    history = [
        *(user_text("query"), user_text("carried over")),
        reply("a", "b", text="Looking."),
        *(tool_results([ToolResult("a", "seen"), ToolResult("b", "no", is_error=True)]), user_text("hurry")),
        assistant([Text("Done.")]),
        user_text("next"),
    ]
    call_a, call_b = ({"type": "tool_use", "id": id, "name": "look", "input": {"at": id}} for id in "ab")
    result_a = {"type": "tool_result", "tool_use_id": "a", "content": "seen"}
    result_b = {"type": "tool_result", "tool_use_id": "b", "content": "no", "is_error": True}
    assert without_breakpoints(body(history))["messages"] == [
        {"role": "user", "content": [text_json("query"), text_json("carried over")]},
        {"role": "assistant", "content": [text_json("Looking."), call_a, call_b]},
        {"role": "user", "content": [result_a, result_b, text_json("hurry")]},
        {"role": "assistant", "content": [text_json("Done.")]},
        {"role": "user", "content": [text_json("next")]},
    ]


SIGNED = Thinking("Hm.", "signed")
NOVELTY = {"type": "novelty", "shape": "round", "deep": {"n": [1, None, True, 0.5]}, "äöü": "👩‍🚀"}


def contents_of_sent_replies(blocks: tuple[Any, ...], signer: str = "") -> list[Any]:
    """Return the contents of the replies in a request after a reply of these blocks, signed by this model."""
    raw = without_breakpoints(body([*HELLO, Message("assistant", blocks, signer), *HELLO]))
    return [message["content"] for message in raw["messages"] if message["role"] == "assistant"]


@pytest.mark.parametrize(
    ("blocks", "signer", "sent_types"),
    [
        ((SIGNED, REDACTED, Thinking("Unsigned."), Text("So.")), "", ["thinking", "redacted_thinking", "text"]),
        ((SIGNED, REDACTED, Text("So.")), NEWER, ["thinking", "redacted_thinking", "text"]),
        ((SIGNED, REDACTED, Text("So.")), OLDER, ["text"]),
        ((SIGNED, Text("So."), Thinking("And", "signed"), REDACTED, Thinking("x")), "", ["thinking", "text"]),
    ],
    ids=["unsigned thinking", "signed by this model", "signed by another model", "thinking at the end"],
)
def test_only_usable_thinking_is_sent(blocks: tuple[Any, ...], signer: str, sent_types: list[str]) -> None:
    (content,) = contents_of_sent_replies(blocks, signer)
    assert [block["type"] for block in content] == sent_types


def test_a_reply_without_usable_blocks_is_omitted() -> None:
    assert contents_of_sent_replies((SIGNED,), OLDER) == []


def test_an_unknown_block_is_sent_unchanged() -> None:
    assert contents_of_sent_replies((Text("x"), Opaque(NOVELTY))) == [[text_json("x"), NOVELTY]]


def test_a_lone_surrogate_is_replaced() -> None:
    assert "half ? a pair" in Encoder(parameters()).encode(request([user_text("half \ud83d a pair")])).decode()


def test_the_tail_comes_last_and_only_once() -> None:
    encoder, history = Encoder(parameters()), [*HELLO, reply("a"), results("a")]
    result = {"type": "tool_result", "tool_use_id": "a", "content": "seen a"}
    with_tail = body_of(encoder, request(history, "post-prompt", "plan"))
    *_, last_message = without_breakpoints(with_tail)["messages"]
    assert last_message["content"] == [result, text_json("post-prompt"), text_json("plan")]
    *_, last_breakpoint = breakpoints(with_tail)
    assert last_breakpoint == ("messages", 2, 0), "the result, which is before the tail"
    later = body_of(encoder, request([*history, assistant([Text("x")]), *HELLO]))
    _hello, _reply, result_message, *_ = without_breakpoints(later)["messages"]
    assert result_message["content"] == [result]


def test_the_tail_as_system_messages() -> None:
    raw = body(HELLO, "post-prompt", "plan", use=parameters(system_messages=True))
    hello, *tail = raw["messages"]
    assert tail == [{"role": "system", "content": "post-prompt"}, {"role": "system", "content": "plan"}]
    assert breakpoints({**raw, "messages": [hello]}) == [("system", 0, 0), ("messages", 0, 0)]
    assert check(raw, HEADERS) is None


# -------------------------------------------------------------------------------------------------------- the settings


def test_every_setting() -> None:
    use = parameters(
        OLDER,
        4000,
        temperature=0.5,
        effort="low",
        thinking={"type": "disabled"},
        stop_sequences=("END", "\n\n"),
        extra_body={"metadata": {"user_id": "me"}, "output_config": {"format": {"x": 1}}, "top_k": 5},
    )
    raw = body(use=use)
    assert {k: v for k, v in raw.items() if k not in ("messages", "system", "tools")} == {
        "model": OLDER,
        "max_tokens": 4000,
        "stream": True,
        "temperature": 0.5,
        "output_config": {"format": {"x": 1}, "effort": "low"},
        "thinking": {"type": "disabled"},
        "stop_sequences": ["END", "\n\n"],
        "metadata": {"user_id": "me"},
        "top_k": 5,
    }


def test_extra_body_replaces_no_own_field() -> None:
    extra = {"model": "other", "stream": False, "max_tokens": 1, "messages": [], "system": "x", "tools": [], "own": 1}
    assert body(use=parameters(extra_body=extra)) == {**body(), "own": 1}


@pytest.mark.parametrize(
    ("overrides", "max_tokens", "temperature", "effort"),
    [
        pytest.param(Overrides(max_tokens=1500, temperature=0.3, effort="high"), 1500, 0.3, "high", id="all"),
        pytest.param(Overrides(temperature=0.0), 4000, 0.0, "low", id="zero"),
        pytest.param(Overrides(), 4000, 0.5, "low", id="none"),
    ],
)
def test_parameters_of_a_call_override_the_model(
    overrides: Overrides, max_tokens: int, temperature: float, effort: str
) -> None:
    raw = body(use=parameters(OLDER, 4000, temperature=0.5, effort="low"), overrides=overrides)
    assert (raw["max_tokens"], raw["temperature"]) == (max_tokens, temperature)
    assert raw["output_config"] == {"effort": effort}
    assert check(raw, OLD_HEADERS) is None


# ----------------------------------------------------------------------------------------------------- the breakpoints


def growing(turns: int, *, parallel: int = 1) -> Iterator[list[Message]]:
    """Yield the conversation of each request of a run. It only grows."""
    history = [user_text("Count.")]
    for n in range(turns):
        yield list(history)
        ids = [f"t{n}_{i}" for i in range(parallel)]
        history += [reply(*ids, text=f"Looking, {n}."), results(*ids)]
        if n % 3 == 0:
            history.append(user_text(f"USER INTERRUPTION: {n}"))


@pytest.mark.parametrize("parallel", [1, 30])  # 30 results are more blocks than a breakpoint looks back over
def test_breakpoints_are_the_ends_of_three_requests(parallel: int) -> None:
    encoder, places_of_requests = Encoder(parameters()), []
    for history in growing(12, parallel=parallel):
        raw = body_of(encoder, request(history, "tail"))
        system, *_, last = places = breakpoints(raw)
        assert len(places) <= MAX_BREAKPOINTS
        assert system == ("system", 0, 0)
        *_, (last_index, last_message) = enumerate(raw["messages"])
        tail_index = last_message["content"].index(text_json("tail"))
        assert last == ("messages", last_index, tail_index - 1)
        places_of_requests.append(places)
    for distance in (1, 2):  # the request between may have been cancelled before its entry was stored
        for (*_, last), later_places in zip(places_of_requests, places_of_requests[distance:], strict=False):
            assert last in later_places


def growing_last_turn() -> Iterator[list[Message]]:
    """Yield conversations whose last turn grows, as after interruptions of runs."""
    history = [user_text("Count."), reply("a"), results("a")]
    for n in range(9):
        yield list(history)
        history += [user_text("[The user interrupted the run here]"), user_text(f"Once more, {n}.")]


@pytest.mark.parametrize(
    ("histories", "is_lossy"),
    [
        pytest.param(growing(40), False, id="single calls"),
        pytest.param(growing(40, parallel=30), False, id="many calls"),
        pytest.param(growing(30, parallel=25), True, id="half of the requests lost"),
        pytest.param(growing_last_turn(), False, id="a growing turn"),
    ],
)
def test_all_repeated_input_is_read_from_the_cache(histories: Iterator[list[Message]], is_lossy: bool) -> None:
    encoder, cache, accounts = Encoder(parameters()), PromptCache(), list[Account]()
    for n, history in enumerate(histories):
        raw = body_of(encoder, request(history, "the tail"))
        if not is_lossy or n % 2 == 0:
            accounts.append(cache.account(raw))
    assert all(account.cache_read == account.repeatable for account in accounts)
    assert any(account.cache_read for account in accounts)


# ---------------------------------------------------------------------------------------------------- the encoded turns


def test_only_new_messages_are_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded_messages, sendable_blocks = list[Message](), encoding._sendable_blocks

    def record(message: Message, model: str) -> Any:
        encoded_messages.append(message)
        return sendable_blocks(message, model)

    monkeypatch.setattr(encoding, "_sendable_blocks", record)
    encoder = Encoder(parameters())
    for history in growing(20):
        encoder.encode(request(history))
    assert encoded_messages == history


@pytest.mark.parametrize("common_messages", [9, 4, 1, 0])
def test_a_different_conversation_is_encoded_from_its_start(common_messages: int) -> None:
    encoder = Encoder(parameters())
    (*_, long) = growing(6)
    encoder.encode(request(long))
    shorter = request([*long[:common_messages], user_text("Something else.")])
    assert encoder.encode(shorter) == Encoder(parameters()).encode(shorter)


def test_different_tools_are_encoded_again() -> None:
    encoder = Encoder(parameters())
    encoder.encode(request())
    look, _ = TOOLS
    (tool,) = body_of(encoder, Request("s", tuple(HELLO), (look,)))["tools"]
    assert tool["name"] == "look"


texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20).filter(str.strip)
inputs = st.dictionaries(texts, st.none() | st.booleans() | st.integers() | texts | st.lists(texts), max_size=3)
MAX_ACTS = 12
MAX_REQUESTS = MAX_ACTS + 1


@st.composite
def conversations(draw: st.DrawFn) -> list[list[Message]]:
    """Draw the conversations of the requests of a session. Choices that are listed more than once are more frequent."""
    conversation, histories, count = Conversation(), list[list[Message]](), 0
    conversation.append(user_text(draw(texts)))
    for _ in range(draw(st.integers(1, MAX_ACTS))):
        act = draw(st.sampled_from(["reply", "reply", "reply", "user", "withdraw"]))
        if act == "withdraw":
            conversation.withdraw()
        if act != "reply":
            conversation.append(user_text(draw(texts)))
            continue
        histories.append(list(conversation.messages))
        blocks = draw(st.sampled_from([(), (Thinking("Hm.", "signed"),), (Thinking("Unsigned."),), (REDACTED,)]))
        calls = draw(st.sampled_from([0, 0, 1, 1, 2, 30]))
        names = st.sampled_from(["look", "list"])
        blocks = [*blocks, Text(draw(texts))]
        blocks += [ToolCall(f"toolu_{count + i}", draw(names), draw(inputs)) for i in range(calls)]
        conversation.append(assistant([*blocks, *draw(st.sampled_from([(), (Thinking("And then", "signed too"),)]))]))
        count += calls
        answers = [ToolResult(c.id, draw(texts), draw(st.booleans())) for c in conversation.open_calls]
        conversation.append(tool_results(answers) if calls else user_text(draw(texts)))
    histories.append(list(conversation.messages))
    return histories


@given(conversations(), st.lists(texts, max_size=2), st.booleans(), st.booleans())
def test_the_service_accepts_any_conversation(
    histories: list[list[Message]], tail: list[str], system_messages: bool, has_system: bool
) -> None:
    encoder, issued = Encoder(parameters(system_messages=system_messages)), Issued()
    for history in histories:
        for message in history:
            issued.remember(tuple(block_to_json(b) for b in message.blocks if isinstance(b, Thinking | Opaque)))
        raw = body_of(encoder, request(history, *tail, system="s" if has_system else ""))
        policy = Policy(alternate=not system_messages)  # a tail may be two system messages in a row
        assert check(raw, HEADERS, issued=issued, policy=policy) is None
        sent = [b["text"] for m in raw["messages"] if m["role"] == "user" for b in m["content"] if b["type"] == "text"]
        expected = [b.text for m in history if m.role == "user" for b in m.blocks if isinstance(b, Text)]
        assert sent == [*expected, *([] if system_messages else tail)]


@given(conversations(), st.lists(st.lists(texts, max_size=2), min_size=MAX_REQUESTS, max_size=MAX_REQUESTS))
def test_any_conversation_is_read_from_the_cache(histories: list[list[Message]], tails: list[list[str]]) -> None:
    encoder, cache, accounts = Encoder(parameters()), PromptCache(), list[Account]()
    tail_lengths = map(len, tails)
    growth = Conversations(tail=lambda _: next(tail_lengths))
    for (before, history), tail in zip(pairwise([[], *histories]), tails, strict=False):
        raw = body_of(encoder, request(history, *tail))
        account = cache.account(raw)
        if history[: len(before)] == before:
            accounts.append(account)
        else:
            growth.expect_withdrawal()
        assert growth.follow(raw) is None
    assert reuse(accounts) >= 0.99, "all, unless the blocks of a withdrawn reply are drawn again"
