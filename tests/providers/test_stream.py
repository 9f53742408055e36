"""A streamed reply, from bytes: the same however the bytes come, bearing what the API may add, and nothing partial."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from double.steps import Say, calls, nothing, thinking
from double.stream import Facts, complete
from double.stream import events as events_of
from hypothesis import given
from hypothesis import strategies as st

from chain.agent.conversation import Conversation
from chain.errors import ModelError
from chain.messages import Message, Opaque, Text, Thinking, ToolCall, Usage, block_to_json, user_text
from chain.model import Delta, Reply
from chain.providers.anthropic import stream
from chain.providers.anthropic.stream import BrokenStream, ReplyReader, ServiceError

USAGE = {"input_tokens": 11, "cache_read_input_tokens": 7, "cache_creation_input_tokens": 5}


def wire(say: Say, number: int = 1) -> bytes:
    """The reply as a service streams it."""
    blocks = complete(say.blocks, number)
    said = Say(blocks, say.stop_reason, usage=say.usage, text_chunk=say.text_chunk)
    return b"".join(events_of(said, Facts(number, "m", USAGE)))


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


def a_call(input: str | None, /, index: int = 0, **fields: Any) -> bytes:
    raw = {"type": "tool_use", "id": f"toolu_{index}", "name": "look", "input": {}, **fields}
    grown = b"" if input is None else delta(index, type="input_json_delta", partial_json=input)
    return begin(index, **raw) + grown + event(type="content_block_stop", index=index)


def read(data: bytes, *cuts: int) -> tuple[Reply, list[Delta]]:
    """The reply of these bytes, cut into chunks at these places."""
    reader, deltas = ReplyReader(), list[Delta]()
    places = [0, *sorted(cuts), len(data)]
    for start, end in pairwise(places):
        deltas += reader.feed(data[start:end])
    return reader.reply(), deltas


def blocks(data: bytes) -> tuple[Any, ...]:
    return read(data)[0].message.blocks


def broken(data: bytes) -> BrokenStream:
    with pytest.raises(BrokenStream) as caught:
        read(data)
    assert caught.value.retryable
    return caught.value


# ------------------------------------------------------------------------------------------------ however it is cut

RICH = wire(
    thinking(
        "Hm. ⏳",
        calls(("look", {"at": "ä👩‍🚀", "deep": [{"n": 1}]}), ("list", {}), say="Let me look.\nTwo lines: data: x"),
    )
)
EXPECTED = (
    Thinking("Hm. ⏳", "sig_000001_0"),
    Text("Let me look.\nTwo lines: data: x"),
    ToolCall("toolu_000001_2", "look", {"at": "ä👩‍🚀", "deep": [{"n": 1}]}),
    ToolCall("toolu_000001_3", "list", {}),
)


def test_a_whole_reply() -> None:
    reply, deltas = read(RICH)
    assert reply.message == Message("assistant", EXPECTED)
    assert reply.stop_reason == "tool_use"
    assert (reply.usage.input_tokens, reply.usage.cache_read_tokens, reply.usage.cache_write_tokens) == (11, 7, 5)
    assert reply.usage.output_tokens > 0
    assert reply.cut_calls == frozenset()
    assert deltas == [Delta("thinking", "Hm. ⏳"), Delta("text", "Let me look.\nTwo lines: data: x")]


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_byte_by_byte(newline: bytes) -> None:
    data = RICH.replace(b"\n", newline)
    assert read(data, *range(1, len(data))) == read(RICH)


words = st.text(st.characters(codec="utf-8"), min_size=1)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)
said = st.lists(
    st.one_of(
        words.map(lambda t: {"type": "text", "text": t}),
        words.map(lambda t: {"type": "thinking", "thinking": t, "signature": "signed"}),
        st.just({"type": "redacted_thinking", "data": "EmwKAh"}),
        st.dictionaries(words, json_values, max_size=3).map(
            lambda i: {"type": "tool_use", "name": "look", "input": i},
        ),
    ),
    max_size=5,
).map(lambda sent: (*sent, {"type": "text", "text": "."}))


@given(said, st.integers(0, 7), st.randoms(use_true_random=False))
def test_what_was_said_is_what_is_read(sent: tuple[Mapping[str, Any], ...], piece: int, random: Any) -> None:
    data = wire(Say(sent, text_chunk=piece))
    cuts = [random.randrange(len(data)) for _ in range(random.randrange(20))]
    reply, deltas = read(data, *cuts)
    kept = [b for b in complete(sent, 1) if b["type"] != "text" or b["text"].strip()]
    assert [block_to_json(b) for b in reply.message.blocks] == kept
    assert "".join(d.text for d in deltas if d.kind == "text") == "".join(
        b["text"] for b in sent if b["type"] == "text"
    )
    assert reply.stop_reason == ("tool_use" if reply.message.calls else "end_turn")


# --------------------------------------------------------------------------------------------- what the API may add


def test_what_is_not_known_is_passed_over() -> None:
    data = (
        b": a comment\nid: 7\nretry: 3000\n\n"
        + START
        + event(type="ping")
        + event(type="weather_report", sky="clear")
        + a_text("Hello")
        + delta(0, type="sparkle_delta", sparkle=1)
        + delta(0, type="citations_delta", citation={"cited_text": "x"})
        + done()
    )
    assert blocks(data) == (Text("Hello"),)


def test_data_may_be_spread_over_lines_and_come_without_a_space() -> None:
    assert blocks(START + b'data:{"type":"content_block_start","index":0,\ndata: "content_block":\ndata:'
                  b'{"type":"text","text":"Hi"}}\n\n' + done()) == (Text("Hi"),)  # fmt: skip


def test_a_block_may_begin_with_text() -> None:
    reply, deltas = read(START + begin(0, type="text", text="He") + delta(0, type="text_delta", text="llo") + done())
    assert reply.message.text == "Hello"
    assert [d.text for d in deltas] == ["He", "llo"]


def test_empty_pieces_are_not_shown() -> None:
    reply, deltas = read(START + a_text("") + begin(1, type="thinking", thinking="", signature="s") + done())
    assert deltas == []
    assert reply.message.blocks == (Thinking("", "s"),)


def test_a_signature_may_come_in_pieces() -> None:
    data = START + begin(0, type="thinking", thinking="", signature="")
    for piece in ("ab", "", "cd"):
        data += delta(0, type="signature_delta", signature=piece)
    assert blocks(data + done()) == (Thinking("", "abcd"),)


def test_text_with_citations_is_plain_text() -> None:
    data = START + begin(0, type="text", text="", citations=[]) + delta(0, type="text_delta", text="So it is.")
    assert blocks(data + delta(0, type="citations_delta", citation={"type": "x"}) + done()) == (Text("So it is."),)


def test_blocks_of_an_unknown_type_stay_as_they_came() -> None:
    data = START + begin(0, type="redacted_thinking", data="EmwKAh") + begin(1, type="novelty", shape="round")
    assert blocks(data + done()) == (
        Opaque({"type": "redacted_thinking", "data": "EmwKAh"}),
        Opaque({"type": "novelty", "shape": "round"}),
    )


def test_an_unknown_block_with_input_gets_it() -> None:
    data = START + begin(0, type="server_tool_use", id="srv_1", name="web", input={})
    for piece in ("", '{"q": ', '"x"}'):
        data += delta(0, type="input_json_delta", partial_json=piece)
    whole = {"type": "server_tool_use", "id": "srv_1", "name": "web", "input": {"q": "x"}}
    assert blocks(data + done()) == (Opaque(whole),)
    broken(START + begin(0, type="novelty") + delta(0, type="input_json_delta", partial_json="{") + done())


def test_a_call_with_more_keys_is_a_call() -> None:
    data = START + a_call('{"a": 1}', caller={"type": "direct"}, toolset_name=None) + done("tool_use")
    (call,) = blocks(data)
    assert call == ToolCall("toolu_0", "look", {"a": 1})
    conversation = Conversation([user_text("Go.")])
    conversation.append(Message("assistant", (call,)))
    assert block_to_json(call).keys() == {"type", "id", "name", "input"}


def test_blocks_that_run_into_each_other_keep_their_order() -> None:
    data = START + begin(0, type="text", text="") + begin(1, type="text", text="")
    data += delta(1, type="text_delta", text="two") + delta(0, type="text_delta", text="one") + done()
    assert blocks(data) == (Text("one"), Text("two"))


def test_what_comes_after_the_end_is_passed_over() -> None:
    extra = b"data: [DONE]\n\n" + event(type="error", error={"type": "api_error", "message": "late"})
    assert blocks(START + a_text("Hello") + done() + extra) == (Text("Hello"),)


def test_a_reply_without_content() -> None:
    reply, _ = read(wire(nothing()))
    assert (reply.message.blocks, reply.stop_reason) == ((), "end_turn")


# -------------------------------------------------------------------------------------------------------- tool input


@pytest.mark.parametrize("written", [None, "", "{}", " { } "])
def test_an_empty_input(written: str | None) -> None:
    assert blocks(START + a_call(written) + done("tool_use")) == (ToolCall("toolu_0", "look", {}),)


def test_an_input_that_came_whole() -> None:
    assert blocks(START + a_call(None, input={"a": 1}) + done("tool_use")) == (ToolCall("toolu_0", "look", {"a": 1}),)


@pytest.mark.parametrize(
    "written",
    ['{"a": ', "[1]", "1", '"x"', "null", '{"a": NaN}', '{"a": [-Infinity]}', '{"a": {"b": 1e999}}', "{} {}"],
)
def test_an_input_that_is_no_object_or_could_not_be_sent_back(written: str) -> None:
    assert "the input of its call of look" in str(broken(START + a_call(written) + done("tool_use")))


def test_an_input_may_not_be_too_deep() -> None:
    deep = stream.MAX_JSON_NESTING - 2
    assert len(blocks(START + a_call('{"a":' + "[" * deep + "]" * deep + "}") + done("tool_use"))) == 1
    for levels in (stream.MAX_JSON_NESTING, 5_000, 200_000):
        broken(START + a_call('{"a":' + "[" * levels + "]" * levels + "}") + done("tool_use"))
        broken(START + begin(0, type="novelty") + delta(0, type="input_json_delta", partial_json="[" * levels) + done())


@pytest.mark.parametrize("name", ["", " ", "multi_tool.use", "look up", "ä", "x" * 65, None, 7])
def test_a_name_that_the_api_would_not_take_back(name: Any) -> None:
    broken(START + a_call("{}", name=name) + done("tool_use"))


@pytest.mark.parametrize("id", [None, 7])
def test_an_id_that_is_no_text(id: Any) -> None:
    broken(START + a_call("{}", id=id) + done("tool_use"))


@pytest.mark.parametrize(
    "thought", [{"type": "thinking", "thinking": "Hm.", "signature": "s"}, {"type": "redacted_thinking", "data": "x"}]
)
def test_thinking_after_the_last_call_could_not_be_sent_back(thought: dict[str, Any]) -> None:
    assert "thinking after its last call" in str(broken(START + a_call("{}") + begin(1, **thought) + done("tool_use")))
    # A blank text is not kept, so it does not end the reply either.
    assert "thinking after its last call" in str(
        broken(START + a_call("{}") + begin(1, **thought) + a_text(" ", 2) + done("tool_use"))
    )
    assert len(blocks(START + a_call("{}") + begin(1, **thought) + done("refusal"))) == 2
    assert len(blocks(START + a_call("{}") + begin(1, **thought) + a_text("x", 2) + done("tool_use"))) == 3
    assert len(blocks(START + a_call("{}") + begin(1, type="thinking", thinking="Unsigned.") + done("tool_use"))) == 2
    assert len(blocks(START + a_text("x") + begin(1, **thought) + done())) == 2


@pytest.mark.parametrize("reason", ["max_tokens", "model_context_window_exceeded", "refusal"])
@pytest.mark.parametrize("written", [None, "", '{"at": "x', '{"at": 1, "n', "["])
def test_a_call_that_was_cut_off(written: str | None, reason: str) -> None:
    reply, _ = read(START + a_call('{"a": 1}') + a_call(written, 1) + done(reason))
    assert reply.message.blocks == (ToolCall("toolu_0", "look", {"a": 1}), ToolCall("toolu_1", "look", {}))
    assert reply.cut_calls == {"toolu_1"}
    assert reply.stop_reason == reason


def test_only_the_last_block_can_have_been_cut_off() -> None:
    reply, _ = read(START + a_call("") + a_call('{"a": 1}', 1) + done("max_tokens"))
    assert reply.cut_calls == frozenset()
    broken(START + a_call('{"a') + a_text("x", 1) + done("max_tokens"))


# ------------------------------------------------------------------------------------------------------ what breaks


@pytest.mark.parametrize(
    "data",
    [
        b"",
        START,
        START + a_text("Hello"),
        START + a_text("Hello") + event(type="message_delta", delta={"stop_reason": "end_turn"}),
        START + a_text("Hello") + done()[:-1],
        a_text("Hello") + done(),
    ],
)
def test_it_ends_too_early(data: bytes) -> None:
    assert "ended too early" in str(broken(data))


@pytest.mark.parametrize(
    "bad",
    [
        b'data: {"type": "content_block_delta", "ind\n\n',
        b"data: \xff\xfe\n\n",
        b"data: {'type': 'ping'}\n\n",
        b"data: [1, null]\n\n",
        b'data: "ping"\n\n',
        b"data: null\n\n",
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
        begin([0], type="text", text=""),
        begin("0", type="text", text=""),
        a_text("x") + begin(0, type="text", text=""),
        begin(0, type="text", text="") + delta(0, type="text_delta", text=None),
        begin(0, type="text", text="") + delta(0, type="text_delta", text=["x"]),
        begin(0, type="text", text="") + delta(0),
        begin(0, type="thinking", thinking="") + delta(0, type="signature_delta", signature=1),
        a_call(None) + delta(0, type="input_json_delta", partial_json={"a": 1}),
        begin(0, type="tool_use", id="toolu_1"),
    ],
)
def test_what_cannot_be_read(bad: bytes) -> None:
    broken(START + bad + done())


def test_every_early_end_is_one() -> None:
    for n in range(len(RICH)):
        reader = ReplyReader()
        list(reader.feed(RICH[:n]))
        with pytest.raises(BrokenStream):
            reader.reply()


@given(
    st.binary(max_size=200) | st.lists(st.sampled_from([START, STOP, a_text("x"), b"data: {", b"\n\n"])).map(b"".join)
)
def test_noise_breaks_nothing_but_the_stream(noise: bytes) -> None:
    with suppress(ModelError):
        read(START + noise + done())


@given(
    st.dictionaries(
        st.sampled_from(["type", "index", "delta", "content_block", "message", "usage", "error"]), json_values
    )
)
def test_events_of_any_shape_break_nothing_but_the_stream(fields: dict[str, Any]) -> None:
    for type in (
        "content_block_start",
        "content_block_delta",
        "message_start",
        "message_delta",
        "error",
        fields.get("type"),
    ):
        with suppress(ModelError):
            read(START + a_text("x") + event(**{**fields, "type": type}) + done())


@pytest.mark.parametrize("row", [b"data: x", b"x" * 7], ids=["many lines", "one line"])
def test_an_event_without_an_end(row: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MAX_EVENT", 10_000)
    row = row + b"\n" if row.startswith(b"data") else row

    def feed(count: int) -> None:
        reader = ReplyReader()
        for _ in range(count):
            list(reader.feed(row))

    feed(5_000 // len(row))
    with pytest.raises(BrokenStream, match="is too long"):
        feed(20_000 // len(row))


def test_a_big_event_that_ends_is_none() -> None:
    big = "x" * 3_000_000
    assert blocks(START + a_text(big) + done()) == (Text(big),)


@pytest.mark.parametrize(
    ("kind", "retryable"),
    [
        ("overloaded_error", True),
        ("api_error", True),
        ("rate_limit_error", True),
        ("timeout_error", True),
        ("one_of_the_future", True),
        ("invalid_request_error", False),
        ("authentication_error", False),
        ("permission_error", False),
        ("not_found_error", False),
    ],
)
def test_an_error_event(kind: str, retryable: bool) -> None:
    with pytest.raises(ServiceError, match="Overloaded") as caught:
        read(START + a_text("x") + event(type="error", error={"type": kind, "message": "Overloaded"}))
    assert (caught.value.kind, caught.value.retryable) == (kind, retryable)


# ------------------------------------------------------------------------------------------------- stop and usage


@pytest.mark.parametrize(
    "reason",
    ["end_turn", "stop_sequence", "tool_use", "max_tokens", "refusal", "model_context_window_exceeded", "pause_turn"],
)
def test_stop_reasons(reason: str) -> None:
    assert read(START + a_text("x") + done(reason))[0].stop_reason == reason


def test_a_stop_reason_of_the_future_is_an_error_that_asking_again_does_not_mend() -> None:
    with pytest.raises(ModelError, match="compaction") as caught:
        read(START + a_text("x") + done("compaction"))
    assert not caught.value.retryable


def test_no_stop_reason_is_the_end_of_the_turn() -> None:
    assert read(START + a_text("x") + STOP)[0].stop_reason == "end_turn"
    later = event(type="message_delta", delta={}, usage={"output_tokens": 9})
    assert read(START + a_text("x") + done("refusal").replace(STOP, b"") + later + STOP)[0].stop_reason == "refusal"


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([{"input_tokens": 5, "output_tokens": 1}, {"output_tokens": 9}], Usage(5, 9)),
        ([{"input_tokens": 5, "output_tokens": 1}, {"input_tokens": 0, "output_tokens": 9}], Usage(5, 9)),
        ([{"input_tokens": 0}, {"input_tokens": 7, "output_tokens": 2}], Usage(7, 2)),
        ([{"output_tokens": 4}, {"output_tokens": 6}, {"output_tokens": 9}], Usage(0, 9)),
        (
            [{"cache_read_input_tokens": 3, "cache_creation_input_tokens": 4, "cache_creation": {"x": 4}}, {}],
            Usage(0, 0, 3, 4),
        ),
        ([None, None], Usage()),
        ([{"input_tokens": None, "output_tokens": True, "service_tier": "standard"}], Usage()),
    ],
)
def test_usage_is_counted_as_it_grows(counts: Sequence[Any], expected: Usage) -> None:
    first, *later = counts
    data = event(type="message_start", message={"usage": first})
    data += b"".join(event(type="message_delta", delta={}, usage=u) for u in later)
    assert read(data + STOP)[0].usage == expected


@pytest.mark.parametrize("value", ['{"score": 1e999}', "[" * 101 + "]" * 101, "[" * 980 + "]" * 980])
def test_an_unknown_block_that_could_not_be_sent_back_breaks_the_stream(value: str) -> None:
    raw = (
        b'data: {"type":"content_block_start","index":0,"content_block":{"type":"future","x":%s}}\n\n' % value.encode()
    )
    assert broken(START + raw + done())


def test_counts_that_cannot_be_are_passed_over() -> None:
    for count in ("-1000000000", "1" + "0" * 400, "true", '"7"', "1.5", "null"):
        start = b'data: {"type":"message_start","message":{"usage":{"input_tokens":%s,"output_tokens":4}}}\n\n'
        reply, _ = read(start % count.encode() + a_text("hi") + event(type="message_delta", delta={}) + STOP)
        assert reply.usage == Usage(0, 4)


def test_a_stop_reason_without_end_is_told_in_a_few_words() -> None:
    with pytest.raises(ModelError) as caught:
        read(START + a_text("hi") + done("x" * 1_000_000))
    assert len(str(caught.value)) < 200


@pytest.mark.slow
def test_a_long_signature_costs_no_more_a_piece_than_a_short_one() -> None:
    data = START + event(type="content_block_start", index=0, content_block={"type": "thinking", "thinking": ""})
    data += delta(type="signature_delta", signature="s" * 50) * 100_000
    begun = time.process_time()
    reply, _ = read(data + event(type="content_block_stop", index=0) + done())
    assert time.process_time() - begun < 10  # it was minutes
    (thought,) = reply.message.blocks
    assert isinstance(thought, Thinking)
    assert len(thought.signature) == 5_000_000


def test_a_reply_of_too_many_blocks_breaks_off() -> None:
    assert "more than 1,000 blocks" in str(
        broken(
            START
            + b"".join(
                event(type="content_block_start", index=n, content_block={"type": "text", "text": "x"})
                for n in range(1_001)
            )
        )
    )


def test_a_reply_without_an_end_breaks_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MAX_REPLY", 10_000)
    assert "it is too long" in str(
        broken(START + a_text("x") + delta(type="text_delta", text="y" * 100) * 200 + done())
    )
    assert read(START + a_text("x") + done())[0].stop_reason == "end_turn"
