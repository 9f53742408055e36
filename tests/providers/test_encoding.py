"""A request as the Messages API wants it: what is in the body, and that the prompt cache can use it again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from double import NEWER, OLDER, Account, Conversations, Issued, Policy, PromptCache, check, reuse
from double.cache import LOOKBACK
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
from chain.providers.anthropic.encoding import Encoder, Parameters

HEADERS = {"authorization": "Bearer test-key", "anthropic-version": "2026-10-21"}
OLD_HEADERS = {**HEADERS, "anthropic-version": "2023-06-01"}
TOOLS = (
    ToolSpec("look", "Look at something.", {"type": "object", "properties": {"at": {"type": "string"}}}),
    ToolSpec("list", "List.", {"type": "object", "properties": {}}),
)
ASK = [user_text("hello")]


def parameters(model: str = NEWER, max_tokens: int = 1000, **more: Any) -> Parameters:
    return Parameters(model, max_tokens, **more)


def request(messages: Sequence[Message] = ASK, *tail: str, system: str = "You are a test.", **more: Any) -> Request:
    return Request(system, tuple(messages), TOOLS, tail, **more)


def body(messages: Sequence[Message] = ASK, *tail: str, with_: Parameters | None = None, **more: Any) -> dict[str, Any]:
    raw = Encoder(with_ or parameters()).encode(request(messages, *tail, **more))
    decoded: dict[str, Any] = json.loads(raw, object_pairs_hook=without_doubles)
    return decoded


def without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len({k for k, _ in pairs}) == len(pairs), f"a key stands twice in {[k for k, _ in pairs]}"
    return dict(pairs)


def bare(raw: Any) -> Any:
    """The JSON without breakpoints."""
    if isinstance(raw, dict):
        return {k: bare(v) for k, v in raw.items() if k != "cache_control"}
    return [bare(v) for v in raw] if isinstance(raw, list) else raw


def marks(raw: dict[str, Any]) -> list[tuple[str, int, int]]:
    """Where the breakpoints are: part, message, block."""
    found = [("system", 0, n) for n, b in enumerate(raw.get("system", ())) if "cache_control" in b]
    return found + [
        ("messages", i, j)
        for i, m in enumerate(raw["messages"])
        for j, b in enumerate(m["content"])
        if "cache_control" in b
    ]


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


def test_without_system_prompt_and_tools_there_is_none() -> None:
    raw = json.loads(Encoder(parameters()).encode(Request("", tuple(ASK))))
    assert raw.keys() == {"model", "max_tokens", "stream", "messages"}


def test_user_messages_in_a_row_are_one_and_the_results_come_first() -> None:
    history = [
        user_text("query"),
        user_text("carried over"),
        called("a", "b", say="Looking."),
        answered("a", "b"),
        user_text("USER INTERRUPTION: hurry"),
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
                {"type": "tool_result", "tool_use_id": "a", "content": "seen a"},
                {"type": "tool_result", "tool_use_id": "b", "content": "seen b"},
                {"type": "text", "text": "USER INTERRUPTION: hurry"},
            ],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "Done."}]},
        {"role": "user", "content": [{"type": "text", "text": "next"}]},
    ]


def test_an_error_result_says_so() -> None:
    history = [*ASK, called("a"), tool_results([ToolResult("a", "no", is_error=True)])]
    assert bare(body(history))["messages"][-1]["content"] == [
        {"type": "tool_result", "tool_use_id": "a", "content": "no", "is_error": True}
    ]


def test_thinking_goes_back_with_its_signature_and_without_one_not_at_all() -> None:
    redacted = Opaque({"type": "redacted_thinking", "data": "EmwKAh"})
    reply = assistant(
        [Thinking("Hm.", "signed"), redacted, Thinking("Unsigned."), Text("So."), ToolCall("a", "look", {})]
    )
    assert bare(body([*ASK, reply, answered("a")]))["messages"][1]["content"] == [
        {"type": "thinking", "thinking": "Hm.", "signature": "signed"},
        {"type": "redacted_thinking", "data": "EmwKAh"},
        {"type": "text", "text": "So."},
        {"type": "tool_use", "id": "a", "name": "look", "input": {}},
    ]


@pytest.mark.parametrize(("signer", "is_sent"), [("", True), (NEWER, True), (OLDER, False)])
def test_thinking_goes_to_the_model_that_signed_it_alone(signer: str, is_sent: bool) -> None:
    redacted = Opaque({"type": "redacted_thinking", "data": "EmwKAh"})
    reply = Message("assistant", (Thinking("Hm.", "signed"), redacted, Text("So.")), signer)
    kinds = [block["type"] for block in body([*ASK, reply, *ASK])["messages"][1]["content"]]
    assert kinds == (["thinking", "redacted_thinking"] if is_sent else []) + ["text"]


def test_a_reply_of_thinking_that_is_not_sent_leaves_no_empty_message() -> None:
    sent = body([*ASK, Message("assistant", (Thinking("Hm.", "signed"),), OLDER), user_text("Go on.")])["messages"]
    assert [[block["text"] for block in message["content"]] for message in sent] == [[ASK[0].text, "Go on."]]


def test_a_reply_does_not_end_in_thinking() -> None:
    redacted = Opaque({"type": "redacted_thinking", "data": "EmwKAh"})
    reply = assistant([Thinking("Hm.", "signed"), Text("So."), Thinking("And", "signed"), redacted, Thinking("x")])
    assert [b["type"] for b in body([*ASK, reply, *ASK])["messages"][1]["content"]] == ["thinking", "text"]


def test_unknown_blocks_go_back_as_they_came() -> None:
    raw = {"type": "novelty", "shape": "round", "deep": {"n": [1, None, True, 0.5]}, "äöü": "👩‍🚀"}
    assert bare(body([*ASK, assistant([Text("x"), Opaque(raw)]), *ASK]))["messages"][1]["content"][1] == raw


def test_what_utf8_cannot_say_is_replaced() -> None:
    raw = Encoder(parameters()).encode(request([user_text("half \ud83d a pair")]))
    assert "half ? a pair" in raw.decode()


# ------------------------------------------------------------------------------------------------------------ the tail


def test_the_tail_comes_after_everything_and_is_forgotten() -> None:
    encoder = Encoder(parameters())
    first = json.loads(encoder.encode(request([*ASK, called("a"), answered("a")], "post-prompt", "plan")))
    assert [b.get("text") for b in first["messages"][-1]["content"]] == [None, "post-prompt", "plan"]
    assert marks(first)[-1] == ("messages", 2, 0)
    later = json.loads(encoder.encode(request([*ASK, called("a"), answered("a"), assistant([Text("x")]), *ASK])))
    assert bare(later)["messages"][2]["content"] == bare(first)["messages"][2]["content"][:1]


def test_a_model_that_takes_system_messages_gets_the_tail_as_such() -> None:
    raw = body(ASK, "post-prompt", "plan", with_=parameters(system_messages=True))
    assert bare(raw)["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "hello"}]},
        {"role": "system", "content": "post-prompt"},
        {"role": "system", "content": "plan"},
    ]
    assert marks({**raw, "messages": raw["messages"][:1]}) == [("system", 0, 0), ("messages", 0, 0)]
    assert check(raw, HEADERS) is None
    assert check({**raw, "model": OLDER}, HEADERS) is not None


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


def test_extra_fields_change_nothing_that_is_said_already() -> None:
    extra = {"model": "other", "stream": False, "max_tokens": 1, "messages": [], "system": "x", "tools": [], "own": 1}
    assert body(with_=parameters(extra_body=extra)) == {**body(), "own": 1}


def test_the_handlers_settings_go_before_the_models() -> None:
    own = parameters(OLDER, 4000, temperature=0.5, effort="low")
    raw = body(with_=own, overrides=Overrides(1500, 0.3, "high"))
    assert (raw["max_tokens"], raw["temperature"], raw["output_config"]) == (1500, 0.3, {"effort": "high"})
    raw = body(with_=own, overrides=Overrides(temperature=0.0))
    assert (raw["max_tokens"], raw["temperature"], raw["output_config"]) == (4000, 0.0, {"effort": "low"})


@pytest.mark.parametrize("own", [None, 0.0, 1.0])
@pytest.mark.parametrize("one_call", [None, 0.0, 0.7])
def test_temperature_is_sent_only_when_it_is_set(own: float | None, one_call: float | None) -> None:
    raw = body(with_=parameters(OLDER, temperature=own), overrides=Overrides(temperature=one_call))
    assert raw.get("temperature") == (own if one_call is None else one_call)
    assert check(raw, OLD_HEADERS) is None


def test_the_parameters_that_are_set_for_one_call() -> None:
    assert Overrides().given == {}
    assert Overrides(temperature=0).given == {"temperature": 0}
    assert list(Overrides(1, 0, "").given) == ["max_tokens", "temperature", "effort"]


# ----------------------------------------------------------------------------------------------------- the breakpoints


def growing(turns: int, *, parallel: int = 1) -> Iterator[list[Message]]:
    """The conversations of a run's requests, each the same objects and some more."""
    history = [user_text("Count.")]
    for n in range(turns):
        yield list(history)
        ids = [f"t{n}_{i}" for i in range(parallel)]
        history += [called(*ids, say=f"Looking, {n}."), answered(*ids)]
        if n % 3 == 0:
            history.append(user_text(f"USER INTERRUPTION: {n}"))


@pytest.mark.parametrize("parallel", [1, 19, 30])
def test_the_end_of_the_request_before_is_marked_again(parallel: int) -> None:
    encoder = Encoder(parameters())
    bodies = [json.loads(encoder.encode(request(h, f"tail {len(h)}"))) for h in growing(12, parallel=parallel)]
    for raw in bodies:
        assert len(marks(raw)) <= 4
        assert marks(raw)[0] == ("system", 0, 0)
        # The last breakpoint is the conversation's end, so never on the tail.
        assert marks(raw)[-1] == ("messages", len(raw["messages"]) - 1, len(raw["messages"][-1]["content"]) - 2)
    for before, after in pairwise(bodies):
        assert marks(before)[-1] in marks(after)
    for first, _, third in zip(bodies, bodies[1:], bodies[2:], strict=False):
        assert marks(first)[-1] in marks(third), "also where the request between was cut before it was written"


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("parallel", [1, 30])
def test_everything_that_repeats_is_read_from_the_cache(parallel: int) -> None:
    assert parallel + 1 > LOOKBACK or parallel == 1
    encoder, cache = Encoder(parameters()), PromptCache()
    accounts = [
        cache.account(json.loads(encoder.encode(request(h, "the tail")))) for h in growing(40, parallel=parallel)
    ]
    # The tail of one request is no part of the next; all else is read.
    assert all(a.cache_read == a.repeatable for a in accounts)
    assert sum(a.cache_read for a in accounts) > 0


def test_a_request_that_was_lost_costs_nothing_later() -> None:
    encoder, cache = Encoder(parameters()), PromptCache()
    accounts = []
    for n, history in enumerate(growing(30, parallel=25)):
        raw = json.loads(encoder.encode(request(history)))
        if n % 2 == 0:  # each second one never reaches the service
            accounts.append(cache.account(raw))
    assert reuse(accounts) == 1


def test_a_turn_that_grew_without_a_reply_is_found() -> None:
    """After interrupts the user's messages pile up in one turn, so that its end is no longer the last request's."""
    encoder, cache = Encoder(parameters()), PromptCache()
    history = [user_text("Count."), called("a"), answered("a")]
    accounts = []
    for n in range(9):
        accounts.append(cache.account(json.loads(encoder.encode(request(history)))))
        history += [user_text("[The user interrupted the run here]"), user_text(f"Once more, {n}.")]
    assert reuse(accounts) == 1


# --------------------------------------------------------------------------------------------- what is not done twice


def test_only_what_is_new_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Message] = []
    sent = encoding._sendable_blocks
    monkeypatch.setattr(encoding, "_sendable_blocks", lambda m, model: done.append(m) or sent(m, model))
    encoder = Encoder(parameters())
    for history in growing(20):
        encoder.encode(request(history))
    assert done == history


def test_a_conversation_that_was_shortened_is_read_again() -> None:
    encoder = Encoder(parameters())
    (*_, long) = growing(6)
    encoder.encode(request(long))
    for keep in (9, 4, 1, 0):
        shorter = [*long[:keep], user_text("Something else.")]
        assert encoder.encode(request(shorter)) == Encoder(parameters()).encode(request(shorter))


def test_other_tools_are_other_bytes() -> None:
    encoder = Encoder(parameters())
    one = json.loads(encoder.encode(Request("s", tuple(ASK), TOOLS)))
    other = json.loads(encoder.encode(Request("s", tuple(ASK), TOOLS[:1])))
    assert (len(one["tools"]), len(other["tools"])) == (2, 1)


# ------------------------------------------------------------------------------------------- any conversation at all

texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20).filter(str.strip)
inputs = st.dictionaries(texts, st.none() | st.booleans() | st.integers() | texts | st.lists(texts), max_size=3)


@st.composite
def conversations(draw: st.DrawFn) -> list[list[Message]]:
    """The histories of the requests of a session, with everything that a session can hold."""
    conversation, histories, count = Conversation(), [], 0
    conversation.append(user_text(draw(texts)))
    for _ in range(draw(st.integers(1, 12))):
        match draw(st.sampled_from(["ask", "ask", "ask", "user", "withdraw"])):
            case "user":
                conversation.append(user_text(draw(texts)))
            case "withdraw":
                conversation.withdraw()
                conversation.append(user_text(draw(texts)))
            case _:
                histories.append(list(conversation.messages))
                calls = draw(st.sampled_from([0, 0, 1, 1, 2, 30]))
                thought = draw(st.sampled_from([None, Thinking("Hm.", "signed"), Thinking("Unsigned."), REDACTED]))
                reply = [*([thought] if thought else []), Text(draw(texts))]
                reply += [
                    ToolCall(f"toolu_{count + i}", draw(st.sampled_from(["look", "list"])), draw(inputs))
                    for i in range(calls)
                ]
                if draw(st.booleans()):
                    reply.append(Thinking("And then", "signed too"))
                conversation.append(assistant(reply))
                if calls:
                    results = [ToolResult(c.id, draw(texts), draw(st.booleans())) for c in conversation.open_calls]
                    conversation.append(tool_results(results))
                    count += calls
                else:
                    conversation.append(user_text(draw(texts)))
    histories.append(list(conversation.messages))
    return histories


REDACTED = Opaque({"type": "redacted_thinking", "data": "EmwKAh"})


@given(conversations(), st.lists(texts, max_size=2), st.booleans(), st.booleans())
def test_whatever_the_conversation_the_service_takes_it(
    histories: list[list[Message]], tail: list[str], system_messages: bool, has_system: bool
) -> None:
    encoder, issued = Encoder(parameters(system_messages=system_messages)), Issued()
    for history in histories:
        for message in history:
            issued.remember(tuple(block_to_json(b) for b in message.blocks if isinstance(b, Thinking | Opaque)))
        raw = json.loads(
            encoder.encode(request(history, *tail, system="s" if has_system else "")),
            object_pairs_hook=without_doubles,
        )
        policy = Policy(alternate=not system_messages)
        assert check(raw, HEADERS, issued=issued, policy=policy) is None
        spoken = [
            t["text"] for m in raw["messages"] if m["role"] == "user" for t in m["content"] if t["type"] == "text"
        ]
        expected = [b.text for m in history if m.role == "user" for b in m.blocks if isinstance(b, Text)]
        assert spoken == [*expected, *([] if system_messages else tail)]


@given(conversations(), st.lists(st.lists(texts, max_size=2), min_size=13, max_size=13))
def test_whatever_the_conversation_it_is_read_from_the_cache_and_only_grows(
    histories: list[list[Message]], tails: list[list[str]]
) -> None:
    encoder, cache = Encoder(parameters()), PromptCache()
    lengths = iter(len(t) for t in tails)
    follow = Conversations(tail=lambda _: next(lengths))
    accounts: list[Account] = []
    for before, history, tail in zip([[], *histories], histories, tails, strict=False):
        raw = json.loads(encoder.encode(request(history, *tail)))
        shortened = any(a is not b for a, b in zip(before, history, strict=False)) or len(history) < len(before)
        account = cache.account(raw)
        if shortened:
            follow.expect_withdrawal()
        else:
            accounts.append(account)
        assert follow.follow(raw) is None
    assert reuse(accounts) >= 0.99
