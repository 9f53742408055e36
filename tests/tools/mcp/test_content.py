"""The content of a server's results, and the forms that it asks the user to fill in."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import pytest

from chain.text.wording import NO_USER_CHOOSES
from chain.tools.mcp.content import answer_of, output_of, texts_of


def picture(size: int = 0) -> dict[str, str]:
    data = b64encode(b"\x89PNG\r\n\x1a\n" + bytes(size)).decode()
    return {"type": "image", "mimeType": "image/png", "data": data}


def test_images_of_a_result_are_bounded_together() -> None:
    texts, images = texts_of([picture(4_000_000)] * 4)
    assert len(images) == 2
    assert [text.endswith("left out]") for text in texts] == [False, False, True, True]


@pytest.mark.parametrize(
    ("texts", "structured", "is_repeated"),
    [
        (["1 page found"], {"fact": 1}, False),
        (["Found:", '{\n  "fact": 1\n}'], {"fact": 1}, True),
        (["5"], {"result": 5}, True),
        (["a", '{"b": 1}'], {"result": ["a", {"b": 1}]}, True),
        (["yes"], {"result": "yes"}, True),
        (["12"], {"result": "12"}, True),
        (["yes"], {"answer": "yes"}, False),
        (["[" * 5_000], {"a": 1}, False),
        ([], {"a": 1}, False),
        (['{"a": 1}', "x" * 100_000], {"a": 1}, False),
        ([], None, True),
    ],
)
def test_structured_content_is_added_unless_repeated(texts: list[str], structured: Any, is_repeated: bool) -> None:
    content = [{"type": "text", "text": text} for text in texts]
    output = output_of({"content": content, "structuredContent": structured})
    added = [] if is_repeated else [json.dumps(structured, indent=2)]
    assert output.text == "\n\n".join([*texts, *added])


def test_error_keeps_its_images() -> None:
    output = output_of({"content": [{"type": "text", "text": "No."}, picture()], "isError": True})
    assert (output.is_error, len(output.images)) == (True, 1)
    assert output.text.startswith("No.\n\n[image 1: ")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"name": "r.pdf", "description": "report of May"}, "[Resource r.pdf: file:///r, report of May]"),
        ({"name": "r.pdf", "title": "A report"}, "[Resource r.pdf: file:///r, A report]"),
        ({"description": 5}, "[Resource : file:///r]"),
    ],
)
def test_link_is_described(fields: dict[str, Any], text: str) -> None:
    assert output_of({"content": [{"type": "resource_link", "uri": "file:///r", **fields}]}).text == text


# --------------------------------------------------------------------------------------------------------------- forms


async def fill_in(
    fields: dict[str, Any], *answers: str, message: str = "Well?", **schema: Any
) -> tuple[Any, list[Any]]:
    """Return the result of a form, and the questions. An answer that is a number chooses an option, as in a session."""
    left, asked = [*answers], list[tuple[str, Sequence[str]]]()

    async def choose(question: str, options: Sequence[str]) -> str:
        asked.append((question, options))
        answer = left.pop(0)
        is_number = answer.isdecimal() and 1 <= int(answer) <= len(options)
        return options[int(answer) - 1] if is_number else answer

    return await answer_of("h", message, {"properties": fields, **schema}, "", choose), asked


COLOURS = [{"const": "r", "title": "Red"}, {"const": "b", "title": "Blue"}]


@pytest.mark.parametrize(
    ("field", "answer", "value"),
    [
        ({"type": "integer"}, "1", 1),
        ({"type": "integer"}, "many", "many"),
        ({"type": "number"}, "1.5", 1.5),
        ({"type": "string"}, "1", "1"),
        ({"type": "string", "enum": ["red", "blue"]}, "2", "blue"),
        ({"type": "string", "enum": ["red\x1b[31m", "a  b"]}, "1", "red\x1b[31m"),
        ({"type": "string", "enum": ["r", "b"], "enumNames": ["Red", "Blue"]}, "2", "b"),
        ({"type": "string", "oneOf": COLOURS}, "2", "b"),
        ({"type": "string", "enum": "no list", "items": 5}, "x", "x"),
        ({"type": "array", "items": {"anyOf": [COLOURS[0], {"const": "b"}]}}, "Red, b", ["r", "b"]),
        ({"type": "array", "items": {"type": "string", "enum": ["r", "b"]}}, "1", ["r"]),
        ({"type": "boolean"}, "1", True),
        ({"type": "boolean"}, "maybe", "maybe"),
    ],
)
async def test_answer_becomes_the_value_of_a_field(field: dict[str, Any], answer: str, value: object) -> None:
    found, _ = await fill_in({"a": field}, answer)
    assert found == ("accept", {"a": value})


async def test_only_required_fields_are_asked() -> None:
    fields = {name: {"type": "string"} for name in ("a", "b", "c")}
    assert (await fill_in(fields, "x", required=["b"]))[0] == ("accept", {"b": "x"})
    assert (await fill_in(fields, "x", "y", "z"))[0] == ("accept", {"a": "x", "b": "y", "c": "z"})
    assert (await fill_in(fields, "x", "y", "z", required=["d", 5]))[0][0] == "accept"


async def test_message_of_a_server_stays_on_one_row() -> None:
    field = {"type": "string", "title": "Your\nname"}
    _, asked = await fill_in({"a": field}, "x", message="Well?\n\nQ7 Allow shell?\r\n")
    assert asked[0][0] == "h asks: Well? Q7 Allow shell?\nYour name (decline to give no answer)"


@pytest.mark.parametrize("answer", ["decline", " Decline ", NO_USER_CHOOSES])
@pytest.mark.parametrize("field", [{"type": "string"}, {"type": "string", "enum": ["red"]}])
async def test_any_field_can_be_declined(field: dict[str, Any], answer: str) -> None:
    found, asked = await fill_in({"a": field}, answer)
    assert found == ("decline", None)
    assert "decline" in asked[0][0] or "decline" in asked[0][1]
