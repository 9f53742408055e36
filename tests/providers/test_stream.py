"""Replies parsed from the bytes of a stream: any chunks, unknown content, broken streams, stop reasons and usage."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from double.steps import Say, calls, thinking
from double.stream import Facts, complete
from double.stream import events as events_of
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import ModelError
from chain.messages import Message, Opaque, Text, Thinking, ToolCall, Usage, block_to_json
from chain.model import Delta, Reply
from chain.providers.anthropic import stream
from chain.providers.anthropic.stream import BrokenStream, ReplyReader, ServiceError

USAGE = {"input_tokens": 11, "cache_read_input_tokens": 7, "cache_creation_input_tokens": 5}


def wire(say: Say) -> bytes:
    """Return a reply as a service streams it."""
    said = Say(complete(say.blocks, 1), say.stop_reason, usage=say.usage, text_chunk=say.text_chunk)
    return b"".join(events_of(said, Facts(1, "m", USAGE)))


def event(**fields: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (str(fields.get("type")).encode(), json.dumps(fields).encode())


START = event(type="message_start", message={"usage": {"input_tokens": 3}})
STOP = event(type="message_stop")


def done(reason: Any = "end_turn") -> bytes:
    return event(type="message_delta", delta={"stop_reason": reason}, usage={"output_tokens": 2}) + STOP


def begin(index: Any = 0, **block: Any) -> bytes:
    return event(type="content_block_start", index=index, content_block=block)


def delta(index: Any = 0, **fields: Any) -> bytes:
    return event(type="content_block_delta", index=index, delta=fields)


def a_text(words: str, index: int = 0) -> bytes:
    return begin(index, type="text", text="") + delta(index, type="text_delta", text=words)


def an_input(piece: str) -> bytes:
    return delta(0, type="input_json_delta", partial_json=piece)


def a_call(input: str | None, /, index: int = 0, **fields: Any) -> bytes:
    raw = {"type": "tool_use", "id": f"toolu_{index}", "name": "look", "input": {}, **fields}
    grown = b"" if input is None else delta(index, type="input_json_delta", partial_json=input)
    return begin(index, **raw) + grown + event(type="content_block_stop", index=index)


def read(data: bytes, *cuts: int) -> tuple[Reply, list[Delta]]:
    """Return the reply and the deltas in these bytes, cut into chunks at these places."""
    reader, deltas = ReplyReader(), list[Delta]()
    for start, end in pairwise([0, *sorted(cuts), len(data)]):
        deltas += reader.feed(data[start:end])
    return reader.reply(), deltas


def broken(data: bytes) -> str:
    """Return the message of the error that these bytes raise."""
    with pytest.raises(BrokenStream) as caught:
        read(data)
    assert caught.value.retryable
    return str(caught.value)


# ------------------------------------------------------------------------------------------------------ whole replies

RICH = wire(
    thinking(
        "Hm. ⏳",
        calls(("look", {"at": "ä👩‍🚀", "deep": [{"n": 1}]}), ("list", {}), say="Let me look.\nTwo lines: data: x"),
    )
)


def test_a_whole_reply() -> None:
    reply, deltas = read(RICH)
    assert reply.message == Message(
        "assistant",
        (
            Thinking("Hm. ⏳", "sig_000001_0"),
            Text("Let me look.\nTwo lines: data: x"),
            ToolCall("toolu_000001_2", "look", {"at": "ä👩‍🚀", "deep": [{"n": 1}]}),
            ToolCall("toolu_000001_3", "list", {}),
        ),
    )
    assert (reply.stop_reason, reply.cut_calls) == ("tool_use", frozenset())
    assert reply.usage == Usage(11, reply.usage.output_tokens, 7, 5)
    assert deltas == [Delta("thinking", "Hm. ⏳"), Delta("text", "Let me look.\nTwo lines: data: x")]


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_a_stream_that_arrives_byte_by_byte(newline: bytes) -> None:
    data = RICH.replace(b"\n", newline)
    assert read(data, *range(1, len(data))) == read(RICH)


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
def test_any_reply_in_any_chunks(sent: tuple[Mapping[str, Any], ...], piece: int, random: Any) -> None:
    data = wire(Say(sent, text_chunk=piece))
    reply, deltas = read(data, *(random.randrange(len(data)) for _ in range(random.randrange(20))))
    kept = [b for b in complete(sent, 1) if b["type"] != "text" or b["text"].strip()]
    assert [block_to_json(b) for b in reply.message.blocks] == kept
    for kind in ("text", "thinking"):
        shown = "".join(d.text for d in deltas if d.kind == kind)
        assert shown == "".join(b[kind] for b in sent if b["type"] == kind)


@pytest.mark.parametrize(
    ("data", "blocks"),
    [
        (
            b": a comment\nid: 7\nretry: 3000\n\n"
            + event(type="ping")
            + event(type="weather_report", sky="clear")
            + a_text("Hello")
            + delta(0, type="sparkle_delta", sparkle=1)
            + delta(0, type="citations_delta", citation={"cited_text": "x"}),
            [Text("Hello")],
        ),
        (
            b'data:{"type":"content_block_start","index":0,\ndata: "content_block":\ndata:'
            b'{"type":"text","text":"Hi"}}\n\n',
            [Text("Hi")],
        ),
        (begin(0, type="text", text="He", citations=[]) + delta(0, type="text_delta", text="llo"), [Text("Hello")]),
        (a_text("") + begin(1, type="thinking", thinking="", signature="s"), [Thinking("", "s")]),
        (
            begin(0, type="thinking", thinking="")
            + b"".join(delta(0, type="signature_delta", signature=piece) for piece in ("ab", "", "cd")),
            [Thinking("", "abcd")],
        ),
        (
            begin(0, type="redacted_thinking", data="EmwKAh") + begin(1, type="novelty", shape="round"),
            [Opaque({"type": "redacted_thinking", "data": "EmwKAh"}), Opaque({"type": "novelty", "shape": "round"})],
        ),
        (
            begin(0, type="server_tool_use", id="s1", input={}) + an_input("") + an_input('{"q": ') + an_input('"x"}'),
            [Opaque({"type": "server_tool_use", "id": "s1", "input": {"q": "x"}})],
        ),
        (a_call('{"a": 1}', caller={"type": "direct"}, toolset_name=None), [ToolCall("toolu_0", "look", {"a": 1})]),
        (
            begin(0, type="text", text="") + a_text("two", 1) + delta(0, type="text_delta", text="one"),
            [Text("one"), Text("two")],
        ),
        (b"", []),
        (a_text("x" * 3_000_000), [Text("x" * 3_000_000)]),
        *((a_call(written), [ToolCall("toolu_0", "look", {})]) for written in (None, "", "{}", " { } ")),
        (a_call(None, input={"a": 1}), [ToolCall("toolu_0", "look", {"a": 1})]),
    ],
    ids=[
        *("unknown events and deltas", "data in several lines", "a block that starts with text", "empty deltas"),
        *("a signature in pieces", "unknown blocks", "an unknown block with input", "a call with unknown fields"),
        *("interleaved blocks", "no blocks", "a large event"),
        *("no input", "empty input", "empty object", "object with spaces", "a whole input"),
    ],
)
def test_blocks_of_a_reply(data: bytes, blocks: list[Any]) -> None:
    late = b"data: [DONE]\n\n" + event(type="error", error={"type": "api_error", "message": "late"})
    reply, deltas = read(START + data + done() + late)
    assert list(reply.message.blocks) == blocks
    assert all(delta.text for delta in deltas)


@pytest.mark.parametrize("reason", ["max_tokens", "model_context_window_exceeded", "refusal"])
@pytest.mark.parametrize("written", [None, "", '{"at": "x', '{"at": 1, "n', "["])
def test_a_truncated_call_is_reported(written: str | None, reason: str) -> None:
    reply, _ = read(START + a_call('{"a": 1}') + a_call(written, 1) + done(reason))
    assert reply.message.blocks == (ToolCall("toolu_0", "look", {"a": 1}), ToolCall("toolu_1", "look", {}))
    assert (reply.cut_calls, reply.stop_reason) == ({"toolu_1"}, reason)


def test_only_the_last_block_can_be_truncated() -> None:
    assert read(START + a_call("") + a_call('{"a": 1}', 1) + done("max_tokens"))[0].cut_calls == frozenset()
    broken(START + a_call('{"a') + a_text("x", 1) + done("max_tokens"))


SIGNED = {"type": "thinking", "thinking": "Hm.", "signature": "s"}


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (a_call("{}") + begin(1, **SIGNED) + done("tool_use"), None),
        (a_call("{}") + begin(1, type="redacted_thinking", data="x") + done("tool_use"), None),
        (a_call("{}") + begin(1, **SIGNED) + a_text(" ", 2) + done("tool_use"), None),  # blank text is dropped
        (a_call("{}") + begin(1, **SIGNED) + done("refusal"), 2),
        (a_call("{}") + begin(1, **SIGNED) + a_text("x", 2) + done("tool_use"), 3),
        (a_call("{}") + begin(1, type="thinking", thinking="Unsigned.") + done("tool_use"), 2),
        (a_text("x") + begin(1, **SIGNED) + done(), 2),
    ],
)
def test_signed_thinking_after_calls_is_an_error(data: bytes, count: int | None) -> None:
    if count is None:
        assert "thinking after its last call" in broken(START + data)
    else:
        assert len(read(START + data)[0].message.blocks) == count


# ----------------------------------------------------------------------------------------------------- broken streams


@pytest.mark.parametrize(
    "data",
    [
        b"",
        START,
        START + a_text("Hello"),
        START + a_text("Hello") + event(type="message_delta", delta={"stop_reason": "end_turn"}),
        START + a_text("Hello") + done()[:-1],
        a_text("Hello") + done(),
        *(RICH[:n] for n in range(0, len(RICH), 97)),
    ],
)
def test_a_stream_that_ends_early(data: bytes) -> None:
    assert "ended too early" in broken(data)


DEEP = stream.MAX_JSON_NESTING


def nested(levels: int) -> str:
    return '{"a":' + "[" * levels + "]" * levels + "}"


@pytest.mark.parametrize(
    "data",
    [
        b'data: {"type": "content_block_delta", "ind\n\n',
        b"data: \xff\xfe\n\n",
        b"data: [1, null]\n\n",
        b'data: "ping"\n\n',
        b"data: {}\n\n",
        b"data: %s\n\n" % (b"[" * 100_000),
        b'data: {"type": "ping", "n": NaN}\n\n',
        event(type="content_block_start", index=0),
        event(type="content_block_start", content_block={"type": "text"}),
        event(type="content_block_delta", index=7, delta={"type": "text_delta", "text": "x"}),
        event(type="message_start"),
        event(type="message_start", message={"usage": [1]}),
        event(type="message_delta", delta={"stop_reason": ["end_turn"]}),
        event(type="error"),
        begin(0, type="text", text=5),
        begin(0, text="x"),
        begin(None, type="text", text=""),
        begin("0", type="text", text=""),
        a_text("x") + begin(0, type="text", text=""),
        begin(0, type="text", text="") + delta(0, type="text_delta", text=["x"]),
        begin(0, type="text", text="") + delta(0),
        begin(0, type="thinking", thinking="") + delta(0, type="signature_delta", signature=1),
        a_call(None) + delta(0, type="input_json_delta", partial_json={"a": 1}),
        begin(0, type="tool_use", id="toolu_1"),
        # Content that could not be sent back.
        *(a_call("{}", name=name) for name in ("", "multi_tool.use", "look up", "ä", "x" * 65, None)),
        a_call("{}", id=None),
        *(a_call(nested(levels)) for levels in (DEEP, 5_000, 200_000)),
        *(begin(0, type="novelty") + an_input(written) for written in ("{", "[" * 200_000, nested(DEEP))),
        begin(0, type="novelty", x=json.loads(nested(DEEP))),
        b'data: {"type":"content_block_start","index":0,"content_block":{"type":"novelty","x":1e999}}\n\n',
    ],
)
def test_a_stream_that_cannot_be_parsed(data: bytes) -> None:
    broken(START + data + done("tool_use"))


@pytest.mark.parametrize(
    "written", ['{"a": ', "[1]", "1", '"x"', "null", '{"a": [-Infinity]}', '{"a": {"b": 1e999}}', "{} {}"]
)
def test_an_input_that_is_not_a_json_object(written: str) -> None:
    assert "the input of its call to look" in broken(START + a_call(written) + done("tool_use"))


def test_an_input_may_be_nested() -> None:
    assert read(START + a_call(nested(DEEP - 2)) + done("tool_use"))[0].message.calls


@given(
    st.binary(max_size=200) | st.lists(st.sampled_from([START, STOP, a_text("x"), b"data: {", b"\n\n"])).map(b"".join)
)
def test_noise_raises_only_model_errors(noise: bytes) -> None:
    with suppress(ModelError):
        read(START + noise + done())


@given(
    st.dictionaries(
        st.sampled_from(["type", "index", "delta", "content_block", "message", "usage", "error"]), json_values
    )
)
def test_events_of_any_shape_raise_only_model_errors(fields: dict[str, Any]) -> None:
    known = ("content_block_start", "content_block_delta", "message_start", "message_delta", "error")
    for type in (*known, fields.get("type")):
        with suppress(ModelError):
            read(START + a_text("x") + event(**{**fields, "type": type}) + done())


@pytest.mark.parametrize(
    ("limit", "piece", "fitting", "message"),
    [
        ("MAX_EVENT", b"data: x\n", 600, "one of its events is too long"),
        ("MAX_EVENT", b"x" * 7, 700, "one of its events is too long"),
        ("MAX_REPLY", event(type="ping"), 150, "it is too long"),
        ("MAX_REPLY_BLOCKS", None, 1_000, "it has more than 1,000 blocks"),
    ],
    ids=["rows of an event", "a row", "a stream", "blocks"],
)
def test_limits(limit: str, piece: bytes | None, fitting: int, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if piece is not None:
        monkeypatch.setattr(stream, limit, 10_000)

    def feed(count: int) -> None:
        reader = ReplyReader()
        list(reader.feed(START))
        for n in range(count):
            list(reader.feed(begin(n, type="text", text="x") if piece is None else piece))

    feed(fitting)
    with pytest.raises(BrokenStream, match=message):
        feed(3 * fitting)


@pytest.mark.parametrize(
    ("kind", "retryable"),
    [
        *((f"{kind}_error", True) for kind in ("overloaded", "api", "rate_limit", "timeout", "future")),
        *((f"{kind}_error", False) for kind in ("invalid_request", "authentication", "permission", "not_found")),
    ],
)
def test_an_error_event(kind: str, retryable: bool) -> None:
    with pytest.raises(ServiceError, match="Overloaded") as caught:
        read(START + a_text("x") + event(type="error", error={"type": kind, "message": "Overloaded"}))
    assert (caught.value.kind, caught.value.retryable) == (kind, retryable)


# ------------------------------------------------------------------------------------------------- stop and usage


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (done("stop_sequence"), "stop_sequence"),
        (done("pause_turn"), "pause_turn"),
        (STOP, "end_turn"),
        (done("refusal").replace(STOP, b"") + event(type="message_delta", delta={}, usage={}) + STOP, "refusal"),
    ],
)
def test_stop_reasons(end: bytes, reason: str) -> None:
    assert read(START + a_text("x") + end)[0].stop_reason == reason


def test_an_unknown_stop_reason_is_an_error() -> None:
    with pytest.raises(ModelError, match="compaction") as caught:
        read(START + a_text("x") + done("compaction" + "x" * 1_000_000))
    assert not caught.value.retryable
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        (['{"input_tokens": 5, "output_tokens": 1}', '{"output_tokens": 9}'], Usage(5, 9)),
        (['{"input_tokens": 5, "output_tokens": 1}', '{"input_tokens": 0, "output_tokens": 9}'], Usage(5, 9)),
        (['{"input_tokens": 0}', '{"input_tokens": 7, "output_tokens": 2}'], Usage(7, 2)),
        (['{"cache_read_input_tokens": 3, "cache_creation_input_tokens": 4, "other": {"x": 4}}'], Usage(0, 0, 3, 4)),
        (["null", "null"], Usage()),
        *(
            ([f'{{"input_tokens": {count}, "output_tokens": 4}}'], Usage(0, 4))
            for count in ("-1000000000", "1" + "0" * 400, "true", '"7"', "1.5", "null")
        ),
    ],
)
def test_usage_is_the_latest_valid_count(counts: Sequence[str], expected: Usage) -> None:
    data = b'data: {"type":"message_start","message":{"usage":%s}}\n\n' % counts[0].encode()
    for later in counts[1:]:
        data += b'data: {"type":"message_delta","delta":{},"usage":%s}\n\n' % later.encode()
    assert read(data + STOP)[0].usage == expected
