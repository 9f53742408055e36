"""Messages and their JSON form, usage, and overrides."""

import json
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import instances_of

from chain.messages import (
    NO_IMAGE,
    Block,
    Image,
    Message,
    Opaque,
    Overrides,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Usage,
    assistant,
    block_from_json,
    block_to_json,
    block_to_request_json,
    from_json,
    to_json,
)

IMAGE = Image("image/png", "digest", "a.png", "AAAA")
IMAGE_JSON = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "ok"}
CALL = {"type": "tool_use", "id": "t1", "name": "shell", "input": {"a": [1]}}


@pytest.mark.parametrize(
    ("block", "raw"),
    [
        (Text("hi"), {"type": "text", "text": "hi"}),
        (Thinking("hm", "sig"), {"type": "thinking", "thinking": "hm", "signature": "sig"}),
        (ToolCall("t1", "shell", {"a": [1]}), CALL),
        (ToolResult("t1", "ok"), RESULT),
        (ToolResult("t1", "ok", is_error=True), {**RESULT, "is_error": True}),
    ],
    ids=["text", "thinking", "call", "result", "error"],
)
def test_blocks_in_the_form_of_the_messages_api(block: Block, raw: dict[str, Any]) -> None:
    assert block_to_json(block) == raw
    assert block_from_json(raw) == block


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param({}, id="empty"),
        pytest.param({"type": "redacted_thinking", "data": "x"}, id="redacted thinking"),
        pytest.param({"type": "image", "source": {}}, id="image"),
        pytest.param({"type": "text"}, id="text without text"),
        pytest.param({"type": "text", "text": 5}, id="number as text"),
        pytest.param({"type": "text", "text": "hi", "citations": [1]}, id="text with citations"),
        pytest.param({"type": "thinking", "thinking": "hm"}, id="thinking without signature"),
        pytest.param({**CALL, "input": "x"}, id="string as input"),
        pytest.param({**CALL, "caller": "x"}, id="call with a caller"),
        pytest.param({**RESULT, "content": [{"type": "text", "text": "x"}]}, id="result of blocks"),
    ],
)
def test_an_unknown_block_is_stored_unchanged(raw: dict[str, Any]) -> None:
    assert block_from_json(raw) == Opaque(raw)
    assert block_to_json(Opaque(raw)) == raw


def test_images_in_a_request() -> None:
    assert block_to_request_json(IMAGE) == IMAGE_JSON
    assert block_to_request_json(replace(IMAGE, data="")) == {"type": "text", "text": NO_IMAGE}


def test_an_error_with_an_image_is_not_marked() -> None:
    """Services refuse an image in a result that is marked as an error."""
    error = ToolResult("t1", "ok", is_error=True, images=(IMAGE,))
    assert block_to_request_json(error) == {**RESULT, "content": [{"type": "text", "text": "Error: ok"}, IMAGE_JSON]}


@given(instances_of(Message))
def test_a_message_survives_json(message: Message) -> None:
    copy = from_json(json.loads(json.dumps(to_json(message))))
    assert (copy, copy.model) == (message, message.model)
    assert [image.size for image in copy.images] == [image.size for image in message.images]


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"role": "system", "content": []},
        {"role": "user"},
        {"role": "user", "content": "text"},
        {"content": []},
        {"role": "user", "content": ["text"]},
    ],
    ids=["empty", "unknown role", "no content", "string as content", "no role", "string as block"],
)
def test_json_that_is_not_a_message(raw: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a message"):
        from_json(raw)


def test_the_parts_of_a_message() -> None:
    call, result = ToolCall("t1", "shell", {}), ToolResult("t0", "ok")
    message = Message("assistant", (Thinking("hm"), Text("Let me "), call, result, Text("look.")))
    assert (message.text, message.calls, message.results) == ("Let me look.", (call,), (result,))
    assert Message("assistant", (Thinking("hm"),)).text == ""


@given(st.lists(st.one_of(*map(instances_of, get_args(Block)))))
def test_a_reply_has_no_blank_text(blocks: list[Block]) -> None:
    assert list(assistant(blocks).blocks) == [b for b in blocks if not isinstance(b, Text) or b.text.strip()]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("    hi\n    there\n", "    hi\n    there"),
        ("\n \n  indented", "  indented"),
        ("plain", "plain"),
        (" \n\t", ""),
        ("", ""),
    ],
    ids=["indented rows", "blank rows before", "plain", "blank", "empty"],
)
def test_an_answer_keeps_its_indentation(text: str, answer: str) -> None:
    assert assistant([Text(text)]).answer == answer


def test_usage_is_added() -> None:
    total = Usage(1, 2, 3, 4, 0.5) + Usage(10, 20, 30, 40, 0.25)
    assert (total, total.total_tokens) == (Usage(11, 22, 33, 44, 0.75), 110)


@pytest.mark.parametrize(
    ("cost", "other", "total"),
    [(None, None, None), (0.5, None, 0.5), (None, 0.5, 0.5), (0.0, None, 0.0), (0.1, 0.2, 0.3)],
)
def test_unknown_costs_count_as_nothing(cost: float | None, other: float | None, total: float | None) -> None:
    assert (Usage(cost_usd=cost) + Usage(cost_usd=other)).cost_usd == total


def test_overrides_without_some_parameters() -> None:
    overrides = Overrides(max_tokens=5, temperature=0.0, effort="low")
    assert overrides.without() == overrides
    assert overrides.without("max_tokens", "top_p", "effort") == Overrides(temperature=0.0)


def test_values_of_overrides_are_those_that_are_set() -> None:
    assert Overrides(max_tokens=5, temperature=0.0).values == {"max_tokens": 5, "temperature": 0.0}
    assert Overrides(effort="low").values == {"effort": "low"}
    assert Overrides().values == {}
