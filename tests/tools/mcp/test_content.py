"""The content of a server's results, and the forms that it asks the user to fill in."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import pytest

from chain.text.wording import NO_USER_CHOOSES
from chain.tools.mcp.content import ask_user, output_of, texts_of


def picture(size: int) -> dict[str, str]:
    data = b64encode(b"\x89PNG\r\n\x1a\n" + bytes(size)).decode()
    return {"type": "image", "mimeType": "image/png", "data": data}


def test_images_of_a_result_are_bounded_together() -> None:
    less_than_half_of_the_limit = 4_000_000
    texts, images = texts_of([picture(less_than_half_of_the_limit)] * 4)
    assert len(images) == 2
    assert [text.endswith("left out]") for text in texts] == [False, False, True, True]


@pytest.mark.parametrize(
    ("texts", "structured"),
    [
        pytest.param(["Found:", '{\n  "fact": 1\n}'], {"fact": 1}, id="one of the texts"),
        pytest.param(["5"], {"result": 5}, id="result"),
        pytest.param(["a", '{"b": 1}'], {"result": ["a", {"b": 1}]}, id="one text for each result"),
        pytest.param(["yes"], {"result": "yes"}, id="result without quotes"),
        pytest.param(["12"], {"result": "12"}, id="result that looks like a number"),
        pytest.param([], None, id="no structured content"),
    ],
)
def test_structured_content_in_a_text_is_not_repeated(texts: list[str], structured: Any) -> None:
    content = [{"type": "text", "text": text} for text in texts]
    assert output_of({"content": content, "structuredContent": structured}).text == "\n\n".join(texts)


@pytest.mark.parametrize(
    ("texts", "structured"),
    [
        pytest.param(["1 page found"], {"fact": 1}, id="other text"),
        pytest.param(["yes"], {"answer": "yes"}, id="value that is not the result"),
        pytest.param(["[" * 5_000], {"a": 1}, id="text with deep JSON"),
        pytest.param([], {"a": 1}, id="no text"),
        pytest.param(['{"a": 1}', "x" * 100_000], {"a": 1}, id="texts too long to compare"),
    ],
)
def test_other_structured_content_is_added(texts: list[str], structured: Any) -> None:
    content = [{"type": "text", "text": text} for text in texts]
    output = output_of({"content": content, "structuredContent": structured})
    assert output.text == "\n\n".join([*texts, json.dumps(structured, indent=2)])


def test_error_keeps_its_images() -> None:
    output = output_of({"content": [{"type": "text", "text": "No."}, picture(1_000)], "isError": True})
    assert output.is_error
    assert len(output.images) == 1
    assert output.text.startswith("No.\n\n[image 1: ")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        pytest.param(
            {"name": "r.pdf", "description": "report of May"},
            "[Resource r.pdf: file:///r, report of May]",
            id="description",
        ),
        pytest.param({"name": "r.pdf", "title": "A report"}, "[Resource r.pdf: file:///r, A report]", id="title"),
        pytest.param({"description": 5}, "[Resource : file:///r]", id="invalid"),
    ],
)
def test_link_is_described(fields: dict[str, Any], text: str) -> None:
    assert output_of({"content": [{"type": "resource_link", "uri": "file:///r", **fields}]}).text == text


# --------------------------------------------------------------------------------------------------------------- forms


class Form:
    """A form of a server, and a user who gives these answers in turn. A number chooses an option, as in a session."""

    def __init__(self, fields: dict[str, Any], *answers: str, message: str = "Well?", **schema: Any) -> None:
        self.schema = {"properties": fields, **schema}
        self.message = message
        self.answers = [*answers]
        self.questions = list[tuple[str, Sequence[str]]]()
        """The questions so far, with their options."""

    async def fill_in(self) -> tuple[str, object]:
        return await ask_user("h", self.message, self.schema, "", self.choose)

    async def choose(self, question: str, options: Sequence[str]) -> str:
        self.questions.append((question, options))
        answer = self.answers.pop(0)
        is_number = answer.isdecimal() and 1 <= int(answer) <= len(options)
        return options[int(answer) - 1] if is_number else answer


RED, BLUE = {"const": "r", "title": "Red"}, {"const": "b", "title": "Blue"}


ANSWERS: dict[str, tuple[dict[str, Any], str, object]] = {
    # A field, the answer, and the value of the field. A server validates values that do not fit.
    "integer": ({"type": "integer"}, "1", 1),
    "no integer": ({"type": "integer"}, "many", "many"),
    "number": ({"type": "number"}, "1.5", 1.5),
    "number in a text": ({"type": "string"}, "1", "1"),
    "option": ({"type": "string", "enum": ["red", "blue"]}, "2", "blue"),
    "option that is shown escaped": ({"type": "string", "enum": ["red\x1b[31m", "a  b"]}, "1", "red\x1b[31m"),
    "option with a name": ({"type": "string", "enum": ["r", "b"], "enumNames": ["Red", "Blue"]}, "2", "b"),
    "option with a title": ({"type": "string", "oneOf": [RED, BLUE]}, "2", "b"),
    "invalid options": ({"type": "string", "enum": "no list", "items": 5}, "x", "x"),
    "several titles": ({"type": "array", "items": {"anyOf": [RED, {"const": "b"}]}}, "Red, b", ["r", "b"]),
    "one of several": ({"type": "array", "items": {"type": "string", "enum": ["r", "b"]}}, "1", ["r"]),
    "boolean": ({"type": "boolean"}, "1", True),
    "no boolean": ({"type": "boolean"}, "maybe", "maybe"),
}


@pytest.mark.parametrize(("field", "answer", "value"), ANSWERS.values(), ids=ANSWERS)
async def test_answer_becomes_the_value_of_a_field(field: dict[str, Any], answer: str, value: object) -> None:
    assert await Form({"a": field}, answer).fill_in() == ("accept", {"a": value})


@pytest.mark.parametrize(
    ("schema", "filled"),
    [
        pytest.param({"required": ["b"]}, {"b": "x"}, id="one required field"),
        pytest.param({}, {"a": "x", "b": "y"}, id="no required field"),
        pytest.param({"required": ["unknown", 5]}, {"a": "x", "b": "y"}, id="invalid list of required fields"),
    ],
)
async def test_only_required_fields_are_asked(schema: dict[str, Any], filled: dict[str, str]) -> None:
    fields = {"a": {"type": "string"}, "b": {"type": "string"}}
    assert await Form(fields, "x", "y", **schema).fill_in() == ("accept", filled)


async def test_message_of_a_server_stays_on_one_row() -> None:
    form = Form({"a": {"type": "string", "title": "Your\nname"}}, "x", message="Well?\n\nQ7 Allow shell?\r\n")
    await form.fill_in()
    ((question, _),) = form.questions
    assert question == "h asks: Well? Q7 Allow shell?\nYour name (decline to give no answer)"


@pytest.mark.parametrize("answer", ["decline", " Decline ", NO_USER_CHOOSES])
@pytest.mark.parametrize(
    "field", [{"type": "string"}, {"type": "string", "enum": ["red"]}], ids=["free text", "list of options"]
)
async def test_any_field_can_be_declined(field: dict[str, Any], answer: str) -> None:
    form = Form({"a": field}, answer)
    assert await form.fill_in() == ("decline", None)
    ((question, options),) = form.questions
    assert "decline" in question or "decline" in options
