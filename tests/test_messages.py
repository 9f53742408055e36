"""Messages and their JSON form; usage; overrides."""

import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.drawn import drawn

from chain.messages import (
    Block,
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
    from_json,
    to_json,
)

blocks = st.one_of(*map(drawn, get_args(Block)))


@pytest.mark.parametrize(
    ("block", "raw"),
    [
        (Text("hi"), {"type": "text", "text": "hi"}),
        (Thinking("hm", "sig"), {"type": "thinking", "thinking": "hm", "signature": "sig"}),
        (ToolCall("t1", "shell", {"a": [1]}), {"type": "tool_use", "id": "t1", "name": "shell", "input": {"a": [1]}}),
        (ToolResult("t1", "ok"), {"type": "tool_result", "tool_use_id": "t1", "content": "ok"}),
        (
            ToolResult("t1", "no", is_error=True),
            {"type": "tool_result", "tool_use_id": "t1", "content": "no", "is_error": True},
        ),
        (Opaque({"type": "redacted_thinking", "data": "x"}), {"type": "redacted_thinking", "data": "x"}),
    ],
)
def test_a_block_has_the_form_of_the_messages_api(block: Block, raw: dict[str, Any]) -> None:
    assert block_to_json(block) == raw
    assert block_from_json(raw) == block


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"type": "image", "source": {}},
        {"type": "text"},
        {"type": "text", "text": 5},
        {"type": "text", "text": "hi", "citations": [1]},
        {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}},
        {"type": "thinking", "thinking": "hm"},
        {"type": "tool_use", "id": "t1", "name": "shell", "input": "x"},
        {"type": "tool_use", "id": "t1", "name": "shell", "input": {}, "caller": "x"},
        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "x"}]},
    ],
)
def test_a_block_that_is_not_known_whole_is_kept_as_it_came(raw: dict[str, Any]) -> None:
    block = block_from_json(raw)

    assert block == Opaque(raw)
    assert block_to_json(block) == raw


@given(drawn(Message))
def test_a_message_survives_its_json(message: Message) -> None:
    read = from_json(json.loads(json.dumps(to_json(message))))
    assert (read, read.model) == (message, message.model)
    assert [image.size for image in read.images] == [image.size for image in message.images]


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
)
def test_what_is_no_message_is_refused(raw: dict[str, Any]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the type is the contract
        from_json(raw)


def test_a_message_knows_its_text_calls_and_results() -> None:
    call, result = ToolCall("t1", "shell", {}), ToolResult("t0", "ok")
    message = Message("assistant", (Thinking("hm"), Text("Let me "), call, result, Text("look.")))

    assert message.text == "Let me look."
    assert message.calls == (call,)
    assert message.results == (result,)
    assert Message("assistant", (Thinking("hm"),)).text == ""


@given(st.lists(blocks))
def test_a_reply_keeps_every_block_but_blank_text(given_blocks: list[Block]) -> None:
    kept = list(assistant(given_blocks).blocks)

    assert kept == [b for b in given_blocks if not isinstance(b, Text) or b.text.strip()]


def test_usage_adds_up() -> None:
    total = Usage(1, 2, 3, 4, 0.5) + Usage(10, 20, 30, 40, 0.25)

    assert total == Usage(11, 22, 33, 44, 0.75)
    assert total.total_tokens == 110


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [(None, None, None), (0.5, None, 0.5), (None, 0.5, 0.5), (0.0, None, 0.0), (0.5, 0.5, 1.0), (0.1, 0.2, 0.3)],
)
def test_a_cost_that_is_not_known_does_not_hide_one_that_is(
    one: float | None, other: float | None, both: float | None
) -> None:
    assert (Usage(cost_usd=one) + Usage(cost_usd=other)).cost_usd == both


def test_parameters_are_left_out_by_name() -> None:
    every = Overrides(max_tokens=5, temperature=0.0, effort="low")

    assert every.without() == every
    assert every.without("temperature") == Overrides(max_tokens=5, effort="low")
    assert every.without("max_tokens", "effort") == Overrides(temperature=0.0)
    assert every.without("top_p", "without", "effort") == Overrides(max_tokens=5, temperature=0.0)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("    hi\n    there\n", "    hi\n    there"),
        ("\n \n  indented", "  indented"),
        ("plain", "plain"),
        (" \n\t", ""),
        ("", ""),
    ],
)
def test_an_answer_keeps_the_indent_of_its_first_row(text: str, answer: str) -> None:
    assert assistant([Text(text)]).answer == answer
