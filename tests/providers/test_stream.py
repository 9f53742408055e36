"""Replies parsed from the bytes of a stream: any chunks, unknown content, broken streams, stop reasons and usage."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from double.steps import Say, calls, thinking
from double.stream import Facts, complete
from double.stream import events as events_of
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import ModelError
from chain.messages import Block, Message, Opaque, Text, Thinking, ToolCall, Usage, block_to_json
from chain.model import Delta, Reply
from chain.providers.anthropic import stream
from chain.providers.anthropic.stream import BrokenStream, ReplyReader, ServiceError

USAGE = {"input_tokens": 11, "cache_read_input_tokens": 7, "cache_creation_input_tokens": 5}


def stream_of(say: Say) -> bytes:
    """Return the bytes that the double streams for a reply."""
    facts = Facts(number=1, model="m", usage=USAGE)
    return b"".join(events_of(replace(say, blocks=complete(say.blocks, facts.number)), facts))


def event(**fields: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (str(fields.get("type")).encode(), json.dumps(fields).encode())


START = event(type="message_start", message={"usage": {"input_tokens": 3}})
STOP = event(type="message_stop")


def end(reason: Any = "end_turn") -> bytes:
    return event(type="message_delta", delta={"stop_reason": reason}, usage={"output_tokens": 2}) + STOP


def block_start(index: Any = 0, **block: Any) -> bytes:
    return event(type="content_block_start", index=index, content_block=block)


def delta(index: Any = 0, **fields: Any) -> bytes:
    return event(type="content_block_delta", index=index, delta=fields)


def text_block(words: str, index: int = 0) -> bytes:
    return block_start(index, type="text", text="") + delta(index, type="text_delta", text=words)


def input_delta(piece: str, index: int = 0) -> bytes:
    return delta(index, type="input_json_delta", partial_json=piece)


def call_block(input: str | None, /, index: int = 0, **fields: Any) -> bytes:
    """Return the events of a tool call whose input is this JSON; without any delta for ``None``."""
    raw = {"type": "tool_use", "id": f"toolu_{index}", "name": "look", "input": {}, **fields}
    deltas = b"" if input is None else input_delta(input, index)
    return block_start(index, **raw) + deltas + event(type="content_block_stop", index=index)


def read(data: bytes, *cuts: int) -> tuple[Reply, list[Delta]]:
    """Return the reply and the deltas in these bytes, cut into chunks at these places."""
    reader, deltas = ReplyReader(), list[Delta]()
    for start, end in pairwise([0, *sorted(cuts), len(data)]):
        deltas += reader.feed(data[start:end])
    return reader.reply(), deltas


def read_reply(data: bytes) -> Reply:
    reply, _ = read(data)
    return reply


def error_of(data: bytes) -> str:
    """Return the message of the ``BrokenStream`` that these bytes raise."""
    with pytest.raises(BrokenStream) as caught:
        read(data)
    assert caught.value.retryable
    return str(caught.value)


# ------------------------------------------------------------------------------------------------------ whole replies

WHOLE = stream_of(
    thinking(
        "Hm. ⏳",
        calls(("look", {"at": "ä👩‍🚀", "deep": [{"n": 1}]}), ("list", {}), say="Let me look.\nTwo lines: data: x"),
    )
)


def test_a_whole_reply() -> None:
    reply, deltas = read(WHOLE)
    assert reply.message == Message(
        "assistant",
        (
            Thinking("Hm. ⏳", "sig_000001_0"),  # of the first request and its first block
            Text("Let me look.\nTwo lines: data: x"),
            ToolCall("toolu_000001_2", "look", {"at": "ä👩‍🚀", "deep": [{"n": 1}]}),
            ToolCall("toolu_000001_3", "list", {}),
        ),
    )
    assert (reply.stop_reason, reply.cut_calls) == ("tool_use", frozenset())
    assert replace(reply.usage, output_tokens=0) == Usage(input_tokens=11, cache_read_tokens=7, cache_write_tokens=5)
    assert deltas == [Delta("thinking", "Hm. ⏳"), Delta("text", "Let me look.\nTwo lines: data: x")]


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_a_stream_that_arrives_byte_by_byte(newline: bytes) -> None:
    data = WHOLE.replace(b"\n", newline)
    assert read(data, *range(1, len(data))) == read(WHOLE)


words = st.text(st.characters(codec="utf-8"), min_size=1)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)
sent_blocks = st.lists(
    st.one_of(
        words.map(lambda t: {"type": "text", "text": t}),
        words.map(lambda t: {"type": "thinking", "thinking": t, "signature": "signed"}),
        st.just({"type": "redacted_thinking", "data": "EmwKAh"}),
        st.dictionaries(words, json_values, max_size=3).map(lambda i: {"type": "tool_use", "name": "look", "input": i}),
    ),
    max_size=5,
).map(lambda sent: (*sent, {"type": "text", "text": "."}))


@given(sent_blocks, st.integers(0, 7), st.randoms(use_true_random=False))
def test_any_reply_in_any_chunks(sent: tuple[Mapping[str, Any], ...], text_chunk: int, random: Any) -> None:
    data = stream_of(Say(sent, text_chunk=text_chunk))
    reply, deltas = read(data, *(random.randrange(len(data)) for _ in range(random.randrange(20))))
    not_blank = [b for b in complete(sent, 1) if b["type"] != "text" or b["text"].strip()]
    assert [block_to_json(b) for b in reply.message.blocks] == not_blank
    for kind in ("text", "thinking"):
        streamed = "".join(d.text for d in deltas if d.kind == kind)
        assert streamed == "".join(b[kind] for b in sent if b["type"] == kind)


BLOCKS: dict[str, tuple[bytes, list[Block]]] = {
    # The events between the start and the end of a reply, and its blocks.
    "unknown events and deltas": (
        b": a comment\nid: 7\nretry: 3000\n\n"
        + event(type="ping")
        + event(type="weather_report", sky="clear")
        + text_block("Hello")
        + delta(0, type="sparkle_delta", sparkle=1)
        + delta(0, type="citations_delta", citation={"cited_text": "x"}),
        [Text("Hello")],
    ),
    "data in several lines": (
        b'data:{"type":"content_block_start","index":0,\ndata: "content_block":\ndata:{"type":"text","text":"Hi"}}\n\n',
        [Text("Hi")],
    ),
    "a block that starts with text": (
        block_start(0, type="text", text="He", citations=[]) + delta(0, type="text_delta", text="llo"),
        [Text("Hello")],
    ),
    "empty deltas": (text_block("") + block_start(1, type="thinking", thinking="", signature="s"), [Thinking("", "s")]),
    "a signature in pieces": (
        block_start(0, type="thinking", thinking="")
        + b"".join(delta(0, type="signature_delta", signature=piece) for piece in ("ab", "", "cd")),
        [Thinking("", "abcd")],
    ),
    "unknown blocks": (
        block_start(0, type="redacted_thinking", data="EmwKAh") + block_start(1, type="novelty", shape="round"),
        [Opaque({"type": "redacted_thinking", "data": "EmwKAh"}), Opaque({"type": "novelty", "shape": "round"})],
    ),
    "an unknown block with input": (
        block_start(0, type="server_tool_use", id="s1", input={}) + b"".join(map(input_delta, ["", '{"q": ', '"x"}'])),
        [Opaque({"type": "server_tool_use", "id": "s1", "input": {"q": "x"}})],
    ),
    "a call with unknown fields": (
        call_block('{"a": 1}', caller={"type": "direct"}, toolset_name=None),
        [ToolCall("toolu_0", "look", {"a": 1})],
    ),
    "interleaved blocks": (
        block_start(0, type="text", text="") + text_block("two", 1) + delta(0, type="text_delta", text="one"),
        [Text("one"), Text("two")],
    ),
    "no blocks": (b"", []),
    "a large event": (text_block("x" * 3_000_000), [Text("x" * 3_000_000)]),
    "no input": (call_block(None), [ToolCall("toolu_0", "look", {})]),
    "empty input": (call_block(""), [ToolCall("toolu_0", "look", {})]),
    "empty object": (call_block("{}"), [ToolCall("toolu_0", "look", {})]),
    "object with spaces": (call_block(" { } "), [ToolCall("toolu_0", "look", {})]),
    "input in the block": (call_block(None, input={"a": 1}), [ToolCall("toolu_0", "look", {"a": 1})]),
}


@pytest.mark.parametrize(("data", "blocks"), BLOCKS.values(), ids=BLOCKS)
def test_blocks_of_a_reply(data: bytes, blocks: list[Block]) -> None:
    after_end = b"data: [DONE]\n\n" + event(type="error", error={"type": "api_error", "message": "late"})
    reply, deltas = read(START + data + end() + after_end)
    assert list(reply.message.blocks) == blocks
    assert all(delta.text for delta in deltas)


@pytest.mark.parametrize("reason", ["max_tokens", "model_context_window_exceeded", "refusal"])
@pytest.mark.parametrize("input", [None, "", '{"at": "x', '{"at": 1, "n', "["])
def test_a_truncated_call_is_reported(input: str | None, reason: str) -> None:
    reply = read_reply(START + call_block('{"a": 1}') + call_block(input, 1) + end(reason))
    assert reply.message.blocks == (ToolCall("toolu_0", "look", {"a": 1}), ToolCall("toolu_1", "look", {}))
    assert (reply.cut_calls, reply.stop_reason) == ({"toolu_1"}, reason)


def test_a_call_before_others_is_not_truncated() -> None:
    reply = read_reply(START + call_block("") + call_block('{"a": 1}', 1) + end("max_tokens"))
    assert reply.cut_calls == frozenset()


def test_an_incomplete_call_before_text_is_an_error() -> None:
    error_of(START + call_block('{"a') + text_block("x", 1) + end("max_tokens"))


SIGNED = block_start(1, type="thinking", thinking="Hm.", signature="s")
UNSIGNED = block_start(1, type="thinking", thinking="Unsigned.")


@pytest.mark.parametrize(
    "data",
    [SIGNED, block_start(1, type="redacted_thinking", data="x"), SIGNED + text_block(" ", 2)],
    ids=["signed", "redacted", "signed, before blank text"],
)
def test_signed_thinking_after_calls_is_an_error(data: bytes) -> None:
    assert "thinking after its last call" in error_of(START + call_block("{}") + data + end("tool_use"))


@pytest.mark.parametrize(
    ("data", "kinds"),
    [
        pytest.param(call_block("{}") + SIGNED + end("refusal"), [ToolCall, Thinking], id="refusal"),
        pytest.param(
            call_block("{}") + SIGNED + text_block("x", 2) + end("tool_use"),
            [ToolCall, Thinking, Text],
            id="text after",
        ),
        pytest.param(call_block("{}") + UNSIGNED + end("tool_use"), [ToolCall, Thinking], id="not signed"),
        pytest.param(text_block("x") + SIGNED + end(), [Text, Thinking], id="no call"),
    ],
)
def test_other_thinking_at_the_end_is_read(data: bytes, kinds: list[type[Block]]) -> None:
    assert [type(block) for block in read_reply(START + data).message.blocks] == kinds


# ----------------------------------------------------------------------------------------------------- broken streams


@pytest.mark.parametrize(
    "data",
    [
        b"",
        START,
        START + text_block("Hello"),
        START + text_block("Hello") + event(type="message_delta", delta={"stop_reason": "end_turn"}),
        START + text_block("Hello") + end().removesuffix(b"\n"),
        text_block("Hello") + end(),
    ],
    ids=["nothing", "start", "block", "no message_stop", "no last newline", "no message_start"],
)
def test_a_stream_that_ends_early(data: bytes) -> None:
    assert "ended too early" in error_of(data)


def test_any_part_of_a_stream_ends_early() -> None:
    for length in range(len(WHOLE)):
        assert "ended too early" in error_of(WHOLE[:length])


MAX_LEVELS = stream.MAX_JSON_NESTING


def nested(levels: int) -> str:
    return '{"a":' + "[" * levels + "]" * levels + "}"


UNPARSABLE = {
    "truncated JSON": b'data: {"type": "content_block_delta", "ind\n\n',
    "no UTF-8": b"data: \xff\xfe\n\n",
    "list": b"data: [1, null]\n\n",
    "string": b'data: "ping"\n\n',
    "no type": b"data: {}\n\n",
    "deep JSON": b"data: %s\n\n" % (b"[" * 100_000),
    "not a number": b'data: {"type": "ping", "n": NaN}\n\n',
    "start without a block": event(type="content_block_start", index=0),
    "start without an index": event(type="content_block_start", content_block={"type": "text"}),
    "delta of an unknown block": event(type="content_block_delta", index=7, delta={"type": "text_delta", "text": "x"}),
    "no message": event(type="message_start"),
    "list as usage": event(type="message_start", message={"usage": [1]}),
    "list as stop reason": event(type="message_delta", delta={"stop_reason": ["end_turn"]}),
    "error without a message": event(type="error"),
    "number as text": block_start(0, type="text", text=5),
    "block without a type": block_start(0, text="x"),
    "null as index": block_start(None, type="text", text=""),
    "string as index": block_start("0", type="text", text=""),
    "repeated index": text_block("x") + block_start(0, type="text", text=""),
    "list as text": block_start(0, type="text", text="") + delta(0, type="text_delta", text=["x"]),
    "delta without a type": block_start(0, type="text", text="") + delta(0),
    "number as signature": block_start(0, type="thinking", thinking="") + delta(0, type="signature_delta", signature=1),
    "object as input": call_block(None) + delta(0, type="input_json_delta", partial_json={"a": 1}),
    "call without a name": block_start(0, type="tool_use", id="toolu_1"),
}


@pytest.mark.parametrize("data", UNPARSABLE.values(), ids=UNPARSABLE)
def test_an_event_that_cannot_be_parsed(data: bytes) -> None:
    error_of(START + data + end("tool_use"))


@pytest.mark.parametrize(
    "data",
    [
        *(call_block("{}", name=name) for name in ("", "multi_tool.use", "look up", "ä", "x" * 65, None)),
        call_block("{}", id=None),
        *(call_block(nested(levels)) for levels in (MAX_LEVELS, 5_000, 200_000)),
        *(block_start(0, type="novelty") + input_delta(j) for j in ("{", "[" * 200_000, nested(MAX_LEVELS))),
        block_start(0, type="novelty", x=json.loads(nested(MAX_LEVELS))),
        b'data: {"type":"content_block_start","index":0,"content_block":{"type":"novelty","x":1e999}}\n\n',
    ],
    ids=[
        *("empty name", "name with dot", "name with space", "name with umlaut", "long name", "no name", "no id"),
        *("nested input", "deeper input", "deepest input"),
        *("incomplete unknown input", "unclosed unknown input", "nested unknown input", "nested block", "infinite"),
    ],
)
def test_content_that_could_not_be_sent_back(data: bytes) -> None:
    error_of(START + data + end("tool_use"))


@pytest.mark.parametrize(
    "input", ['{"a": ', "[1]", "1", '"x"', "null", '{"a": [-Infinity]}', '{"a": {"b": 1e999}}', "{} {}"]
)
def test_an_input_that_is_not_a_json_object(input: str) -> None:
    assert "the input of its call to look" in error_of(START + call_block(input) + end("tool_use"))


def test_an_input_may_be_nested() -> None:
    levels = MAX_LEVELS - 2  # without those of the object and the list around it
    assert read_reply(START + call_block(nested(levels)) + end("tool_use")).message.calls


@given(
    st.binary(max_size=200)
    | st.lists(st.sampled_from([START, STOP, text_block("x"), b"data: {", b"\n\n"])).map(b"".join)
)
def test_noise_raises_only_model_errors(noise: bytes) -> None:
    with suppress(ModelError):
        read(START + noise + end())


@given(
    st.dictionaries(
        st.sampled_from(["type", "index", "delta", "content_block", "message", "usage", "error"]), json_values
    )
)
def test_events_of_any_shape_raise_only_model_errors(fields: dict[str, Any]) -> None:
    known = ("content_block_start", "content_block_delta", "message_start", "message_delta", "error")
    for type in (*known, fields.get("type")):
        with suppress(ModelError):
            read(START + text_block("x") + event(**{**fields, "type": type}) + end())


def feed(chunks: Iterable[bytes]) -> None:
    reader = ReplyReader()
    for chunk in [START, *chunks]:
        list(reader.feed(chunk))


@pytest.mark.parametrize(
    ("limit", "chunk", "message"),
    [
        ("MAX_EVENT", b"data: x\n", "one of its events is too long"),
        ("MAX_EVENT", b"x" * 7, "one of its events is too long"),
        ("MAX_REPLY", event(type="ping"), "it is too long"),
    ],
    ids=["rows of an event", "a row", "a stream"],
)
def test_limits_of_characters(limit: str, chunk: bytes, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, limit, 10_000)
    chunks_within_limit = [chunk] * (5_000 // len(chunk))
    feed(chunks_within_limit)
    with pytest.raises(BrokenStream, match=message):
        feed(3 * chunks_within_limit)


def test_the_limit_of_blocks() -> None:
    one_too_many = [block_start(n, type="text", text="x") for n in range(1_001)]
    feed(one_too_many[:-1])
    with pytest.raises(BrokenStream, match="it has more than 1,000 blocks"):
        feed(one_too_many)


@pytest.mark.parametrize(
    ("kind", "retryable"),
    [
        *((f"{kind}_error", True) for kind in ("overloaded", "api", "rate_limit", "timeout", "future")),
        *((f"{kind}_error", False) for kind in ("invalid_request", "authentication", "permission", "not_found")),
    ],
)
def test_an_error_event_is_raised(kind: str, retryable: bool) -> None:
    with pytest.raises(ServiceError, match="Overloaded") as caught:
        read(START + text_block("x") + event(type="error", error={"type": kind, "message": "Overloaded"}))
    assert (caught.value.kind, caught.value.retryable) == (kind, retryable)


# ------------------------------------------------------------------------------------------------- stop and usage


@pytest.mark.parametrize(
    ("ending", "reason"),
    [
        pytest.param(end("stop_sequence"), "stop_sequence", id="stop sequence"),
        pytest.param(end("pause_turn"), "pause_turn", id="pause"),
        pytest.param(STOP, "end_turn", id="no reason"),
        pytest.param(
            end("refusal").removesuffix(STOP) + event(type="message_delta", delta={}, usage={}) + STOP,
            "refusal",
            id="reason in the first of two deltas",
        ),
    ],
)
def test_stop_reasons(ending: bytes, reason: str) -> None:
    assert read_reply(START + text_block("x") + ending).stop_reason == reason


def test_an_unknown_stop_reason_is_an_error() -> None:
    with pytest.raises(ModelError, match="compaction") as caught:
        read(START + text_block("x") + end("compaction" + "x" * 1_000_000))
    assert not caught.value.retryable
    assert len(str(caught.value)) < 200, "a long reason is truncated"


def usage_of(at_start: str, later: str = "{}") -> Usage:
    """Return the usage of a reply whose first and last events have these usages, as JSON."""
    first = b'data: {"type":"message_start","message":{"usage":%s}}\n\n' % at_start.encode()
    last = b'data: {"type":"message_delta","delta":{},"usage":%s}\n\n' % later.encode()
    return read_reply(first + last + STOP).usage


@pytest.mark.parametrize(
    ("at_start", "later", "expected"),
    [
        ('{"input_tokens": 5, "output_tokens": 1}', '{"output_tokens": 9}', Usage(5, 9)),
        ('{"input_tokens": 5, "output_tokens": 1}', '{"input_tokens": 0, "output_tokens": 9}', Usage(5, 9)),
        ('{"input_tokens": 0}', '{"input_tokens": 7, "output_tokens": 2}', Usage(7, 2)),
        ('{"cache_read_input_tokens": 3, "cache_creation_input_tokens": 4, "x": {"y": 4}}', "{}", Usage(0, 0, 3, 4)),
        ("null", "null", Usage()),
    ],
    ids=["input at the start", "zero later", "zero at the start", "cache", "none"],
)
def test_usage_is_the_latest_count(at_start: str, later: str, expected: Usage) -> None:
    assert usage_of(at_start, later) == expected


@pytest.mark.parametrize("count", ["-1000000000", "1" + "0" * 400, "true", '"7"', "1.5", "null"])
def test_an_invalid_count_is_ignored(count: str) -> None:
    assert usage_of(f'{{"input_tokens": {count}, "output_tokens": 4}}') == Usage(0, 4)
