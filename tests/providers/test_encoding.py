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
TOOLS = (
    ToolSpec("look", "Look at something.", {"type": "object", "properties": {"at": {"type": "string"}}}),
    ToolSpec("list", "List.", {"type": "object", "properties": {}}),
)
ASK = [user_text("hello")]
REDACTED = Opaque({"type": "redacted_thinking", "data": "EmwKAh"})


def parameters(model: str = NEWER, max_tokens: int = 1000, **more: Any) -> Parameters:
    return Parameters(model, max_tokens, **more)


def request(messages: Sequence[Message] = ASK, *tail: str, system: str = "You are a test.", **more: Any) -> Request:
    return Request(system, tuple(messages), TOOLS, tail, **more)


def encoded(encoder: Encoder, request: Request) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(encoder.encode(request), object_pairs_hook=without_repeats)
    return body


def body(messages: Sequence[Message] = ASK, *tail: str, with_: Parameters | None = None, **more: Any) -> dict[str, Any]:
    return encoded(Encoder(with_ or parameters()), request(messages, *tail, **more))


def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len({key for key, _ in pairs}) == len(pairs), f"a key is repeated in {[key for key, _ in pairs]}"
    return dict(pairs)


def bare(raw: Any) -> Any:
    """Return the JSON without breakpoints."""
    if isinstance(raw, dict):
        return {k: bare(v) for k, v in raw.items() if k != "cache_control"}
    return [bare(v) for v in raw] if isinstance(raw, list) else raw


def breakpoints(raw: dict[str, Any]) -> list[tuple[str, int, int]]:
    """Return the places of the breakpoints: part, message, block."""
    contents = [
        ("system", 0, raw.get("system", ())),
        *(("messages", i, m["content"]) for i, m in enumerate(raw["messages"])),
    ]
    return [(part, i, j) for part, i, blocks in contents for j, block in enumerate(blocks) if "cache_control" in block]


def called(*ids: str, say: str = "") -> Message:
    return assistant([*([Text(say)] if say else []), *(ToolCall(id, "look", {"at": id}) for id in ids)])


def answered(*ids: str) -> Message:
    return tool_results(ToolResult(id, f"seen {id}") for id in ids)


# ----------------------------------------------------------------------------------------------------- the messages


def test_a_plain_request() -> None:
    assert bare(body()) == {
        "model": NEWER,
        "max_tokens": 1000,
        "stream": True,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
        "system": [{"type": "text", "text": "You are a test."}],
        "tools": [{"name": t.name, "description": t.description, "input_schema": dict(t.input_schema)} for t in TOOLS],
    }
    without = json.loads(Encoder(parameters()).encode(Request("", tuple(ASK))))
    assert without.keys() == {"model", "max_tokens", "stream", "messages"}


def test_user_messages_are_merged_and_start_with_results() -> None:
    history = [
        *(user_text("query"), user_text("carried over")),
        called("a", "b", say="Looking."),
        *(tool_results([ToolResult("a", "seen"), ToolResult("b", "no", is_error=True)]), user_text("hurry")),
        assistant([Text("Done.")]),
        user_text("next"),
    ]
    assert bare(body(history))["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "query"}, {"type": "text", "text": "carried over"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Looking."},
                {"type": "tool_use", "id": "a", "name": "look", "input": {"at": "a"}},
                {"type": "tool_use", "id": "b", "name": "look", "input": {"at": "b"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "seen"},
                {"type": "tool_result", "tool_use_id": "b", "content": "no", "is_error": True},
                {"type": "text", "text": "hurry"},
            ],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "Done."}]},
        {"role": "user", "content": [{"type": "text", "text": "next"}]},
    ]


SIGNED = Thinking("Hm.", "signed")
NOVELTY = {"type": "novelty", "shape": "round", "deep": {"n": [1, None, True, 0.5]}, "äöü": "👩‍🚀"}


@pytest.mark.parametrize(
    ("blocks", "signer", "kinds"),
    [
        ((SIGNED, REDACTED, Thinking("Unsigned."), Text("So.")), "", ["thinking", "redacted_thinking", "text"]),
        ((SIGNED, REDACTED, Text("So.")), NEWER, ["thinking", "redacted_thinking", "text"]),
        ((SIGNED, REDACTED, Text("So.")), OLDER, ["text"]),
        ((SIGNED, Text("So."), Thinking("And", "signed"), REDACTED, Thinking("x")), "", ["thinking", "text"]),
        ((SIGNED,), OLDER, None),
        ((Text("x"), Opaque(NOVELTY)), "", ["text", "novelty"]),
    ],
    ids=["unsigned", "own", "of another model", "at the end", "nothing else", "unknown block"],
)
def test_which_blocks_of_a_reply_are_sent(blocks: tuple[Any, ...], signer: str, kinds: list[str] | None) -> None:
    sent = bare(body([*ASK, Message("assistant", blocks, signer), *ASK]))["messages"]
    replies = [message["content"] for message in sent if message["role"] == "assistant"]
    assert [[block["type"] for block in content] for content in replies] == ([] if kinds is None else [kinds])
    assert all(NOVELTY in content for content in replies if Opaque(NOVELTY) in blocks)


def test_a_lone_surrogate_is_replaced() -> None:
    assert "half ? a pair" in Encoder(parameters()).encode(request([user_text("half \ud83d a pair")])).decode()


def test_the_tail_comes_last_and_only_once() -> None:
    encoder, history = Encoder(parameters()), [*ASK, called("a"), answered("a")]
    first = encoded(encoder, request(history, "post-prompt", "plan"))
    assert [b.get("text") for b in first["messages"][-1]["content"]] == [None, "post-prompt", "plan"]
    assert breakpoints(first)[-1] == ("messages", 2, 0)
    later = encoded(encoder, request([*history, assistant([Text("x")]), *ASK]))
    assert bare(later)["messages"][2]["content"] == bare(first)["messages"][2]["content"][:1]


def test_the_tail_as_system_messages() -> None:
    raw = body(ASK, "post-prompt", "plan", with_=parameters(system_messages=True))
    assert bare(raw)["messages"][1:] == [
        {"role": "system", "content": "post-prompt"},
        {"role": "system", "content": "plan"},
    ]
    assert breakpoints({**raw, "messages": raw["messages"][:1]}) == [("system", 0, 0), ("messages", 0, 0)]
    assert check(raw, HEADERS) is None


# -------------------------------------------------------------------------------------------------------- the settings


def test_every_setting() -> None:
    own = parameters(
        OLDER,
        4000,
        temperature=0.5,
        effort="low",
        thinking={"type": "disabled"},
        stop_sequences=("END", "\n\n"),
        extra_body={"metadata": {"user_id": "me"}, "output_config": {"format": {"x": 1}}, "top_k": 5},
    )
    raw = body(with_=own)
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
    assert body(with_=parameters(extra_body=extra)) == {**body(), "own": 1}


@pytest.mark.parametrize(
    ("overrides", "sent"),
    [
        (Overrides(1500, 0.3, "high"), (1500, 0.3, {"effort": "high"})),
        (Overrides(temperature=0.0), (4000, 0.0, {"effort": "low"})),
        (Overrides(), (4000, 0.5, {"effort": "low"})),
    ],
)
def test_parameters_of_a_call_override_the_model(overrides: Overrides, sent: tuple[Any, ...]) -> None:
    raw = body(with_=parameters(OLDER, 4000, temperature=0.5, effort="low"), overrides=overrides)
    assert (raw["max_tokens"], raw["temperature"], raw["output_config"]) == sent
    assert check(raw, OLD_HEADERS) is None


# ----------------------------------------------------------------------------------------------------- the breakpoints


def growing(turns: int, *, parallel: int = 1) -> Iterator[list[Message]]:
    """Yield the conversation of each request of a run. It only grows."""
    history = [user_text("Count.")]
    for n in range(turns):
        yield list(history)
        ids = [f"t{n}_{i}" for i in range(parallel)]
        history += [called(*ids, say=f"Looking, {n}."), answered(*ids)]
        if n % 3 == 0:
            history.append(user_text(f"USER INTERRUPTION: {n}"))


@pytest.mark.parametrize("parallel", [1, 30])
def test_breakpoints_are_the_ends_of_three_requests(parallel: int) -> None:
    encoder = Encoder(parameters())
    bodies = [encoded(encoder, request(h, f"tail {len(h)}")) for h in growing(12, parallel=parallel)]
    for raw in bodies:
        places = breakpoints(raw)
        assert len(places) <= 4
        assert places[0] == ("system", 0, 0)
        # The last one is the end of the conversation, not of the tail.
        assert places[-1] == ("messages", len(raw["messages"]) - 1, len(raw["messages"][-1]["content"]) - 2)
    for step in (1, 2):  # the request between may have been cancelled before its entry was stored
        for before, after in zip(bodies, bodies[step:], strict=False):
            assert breakpoints(before)[-1] in breakpoints(after)


def piling_up() -> Iterator[list[Message]]:
    """Yield conversations whose last turn grows, as after interruptions of runs."""
    history = [user_text("Count."), called("a"), answered("a")]
    for n in range(9):
        yield list(history)
        history += [user_text("[The user interrupted the run here]"), user_text(f"Once more, {n}.")]


@pytest.mark.parametrize(
    ("histories", "is_lossy"),
    [(growing(40), False), (growing(40, parallel=30), False), (growing(30, parallel=25), True), (piling_up(), False)],
    ids=["single calls", "many calls", "half of the requests lost", "a growing turn"],
)
def test_all_repeated_input_is_read_from_the_cache(histories: Iterator[list[Message]], is_lossy: bool) -> None:
    encoder, cache, accounts = Encoder(parameters()), PromptCache(), list[Account]()
    for n, history in enumerate(histories):
        raw = encoded(encoder, request(history, "the tail"))
        if not is_lossy or n % 2 == 0:
            accounts.append(cache.account(raw))
    assert all(a.cache_read == a.repeatable for a in accounts)
    assert sum(a.cache_read for a in accounts) > 0


# ---------------------------------------------------------------------------------------------------- the encoded turns


def test_only_new_messages_are_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Message] = []
    sendable = encoding._sendable_blocks
    monkeypatch.setattr(encoding, "_sendable_blocks", lambda m, model: done.append(m) or sendable(m, model))
    encoder = Encoder(parameters())
    for history in growing(20):
        encoder.encode(request(history))
    assert done == history


def test_a_different_conversation_is_encoded_from_its_start() -> None:
    encoder = Encoder(parameters())
    (*_, long) = growing(6)
    encoder.encode(request(long))
    for keep in (9, 4, 1, 0):
        shorter = request([*long[:keep], user_text("Something else.")])
        assert encoder.encode(shorter) == Encoder(parameters()).encode(shorter)
    other_tools = Request("s", tuple(ASK), TOOLS[:1])
    assert len(encoded(encoder, other_tools)["tools"]) == 1


texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20).filter(str.strip)
inputs = st.dictionaries(texts, st.none() | st.booleans() | st.integers() | texts | st.lists(texts), max_size=3)


@st.composite
def conversations(draw: st.DrawFn) -> list[list[Message]]:
    """Draw the conversations of the requests of a session."""
    conversation, histories, count = Conversation(), list[list[Message]](), 0
    conversation.append(user_text(draw(texts)))
    for _ in range(draw(st.integers(1, 12))):
        what = draw(st.sampled_from(["reply", "reply", "reply", "user", "withdraw"]))
        if what == "withdraw":
            conversation.withdraw()
        if what != "reply":
            conversation.append(user_text(draw(texts)))
            continue
        histories.append(list(conversation.messages))
        blocks = draw(st.sampled_from([(), (Thinking("Hm.", "signed"),), (Thinking("Unsigned."),), (REDACTED,)]))
        calls = draw(st.sampled_from([0, 0, 1, 1, 2, 30]))
        names = st.sampled_from(["look", "list"])
        reply = [*blocks, Text(draw(texts))]
        reply += [ToolCall(f"toolu_{count + i}", draw(names), draw(inputs)) for i in range(calls)]
        conversation.append(assistant([*reply, *draw(st.sampled_from([(), (Thinking("And then", "signed too"),)]))]))
        count += calls
        results = [ToolResult(c.id, draw(texts), draw(st.booleans())) for c in conversation.open_calls]
        conversation.append(tool_results(results) if calls else user_text(draw(texts)))
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
        raw = encoded(encoder, request(history, *tail, system="s" if has_system else ""))
        assert check(raw, HEADERS, issued=issued, policy=Policy(alternate=not system_messages)) is None
        sent = [b["text"] for m in raw["messages"] if m["role"] == "user" for b in m["content"] if b["type"] == "text"]
        expected = [b.text for m in history if m.role == "user" for b in m.blocks if isinstance(b, Text)]
        assert sent == [*expected, *([] if system_messages else tail)]


@given(conversations(), st.lists(st.lists(texts, max_size=2), min_size=13, max_size=13))
def test_any_conversation_is_read_from_the_cache(histories: list[list[Message]], tails: list[list[str]]) -> None:
    encoder, cache, accounts = Encoder(parameters()), PromptCache(), list[Account]()
    lengths = iter(len(t) for t in tails)
    follow = Conversations(tail=lambda _: next(lengths))
    for (before, history), tail in zip(pairwise([[], *histories]), tails, strict=False):
        raw = encoded(encoder, request(history, *tail))
        account = cache.account(raw)
        if history[: len(before)] == before:
            accounts.append(account)
        else:
            follow.expect_withdrawal()
        assert follow.follow(raw) is None
    assert reuse(accounts) >= 0.99
