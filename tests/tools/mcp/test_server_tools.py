"""The tools of a server's list that a model may use, and the sentence about those left out."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Any

import pytest
from support import settings
from support.servers import server

from chain.app.toolbox import read_allowances, tool_groups
from chain.errors import ConfigError, ToolError
from chain.events import OfferedTool
from chain.tools.mcp import tools
from chain.tools.mcp.servers import ServerTool

SERVER = server({"command": "x"})


def tool(name: object, **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}, **more}


def parameters(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{n}": {"type": "null"} for n in range(count)}}


@pytest.mark.slow
def test_excess_tools_are_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checking tools with many parameters is slow, so a server could keep the program busy for minutes."""
    monkeypatch.setattr(tools, "MAX_ALL_VALUES", 1_000)
    found, why = tools.tools_of(SERVER, [tool(f"t{n}", inputSchema=parameters(200)) for n in range(1_000)])
    assert 1 < len(found) < 5
    assert "too large" in why
    found, _ = tools.tools_of(SERVER, [tool(f"t{n}", description="x" * 10_000) for n in range(100)])
    assert len(found) == 29
    listed = [tool("more"), *(tool(f"t{n}", inputSchema={"type": "object", "required": 5}) for n in range(5_000))]
    found, why = tools.tools_of(SERVER, listed)
    assert [each.name for each in found] == ["mcp__h__more"]
    assert "4997 more" in why


@pytest.mark.parametrize(
    ("more", "description"),
    [
        ({"description": ["x" * 1_000_000], "title": "A title."}, "A title."),
        ({"description": " ", "title": 5}, "t, a tool of h."),
    ],
)
def test_description_falls_back_to_title_and_name(more: dict[str, Any], description: str) -> None:
    ((found,), _) = tools.tools_of(SERVER, [tool("t", **more)])
    assert found.description == description


def test_names_are_mapped_and_stay_distinct() -> None:
    names = ["a.b", "a.b", "a/b", "a_b", "a/b", "two words: ä"]
    found, why = tools.tools_of(SERVER, [*map(tool, names), tool("a.b", description="other")])
    assert {each.name.removeprefix("mcp__h__"): each.tool for each in found} == {
        "a_b": "a.b",
        "a_b_2": "a/b",
        "a_b_3": "a_b",
        "two_words___": "two words: ä",
    }
    assert why == "Some tools of h were left out: 'a.b' (its name is used twice)."


def nested(levels: int) -> dict[str, Any]:
    schema = inner = dict[str, Any](type="object")
    for _ in range(levels):
        inner["x"] = inner = {}
    return schema


OTHER_TYPES = [each for n in range(2_000) for each in (n, str(n))]

LEFT_OUT: dict[str, tuple[dict[str, Any], str]] = {
    "no ASCII in the name": (tool("作成"), "its name has none of the characters"),
    "no name": (tool(""), "its name has none of the characters"),
    "number as name": (tool(5), "its name has none of the characters"),
    "long name": (tool("a." * 40), "its name with the prefix has more than 64"),
    "huge name": (tool("." * 3_000_000), "its name with the prefix has more than 64"),
    "long title": (tool("t", title="x" * 1_000_000), "its description has more than 10,000 characters"),
    "long description": (tool("t", description="x" * 10_001), "its description has more than 10,000 characters"),
    "schema is a text": (tool("t", inputSchema="text"), "its schema does not describe an object"),
    "schema of an array": (tool("t", inputSchema={"type": "array"}), "its schema does not describe an object"),
    "deep schema": (tool("t", inputSchema=nested(3_000)), "its schema has more than 30 levels"),
    "many values": (tool("t", inputSchema=parameters(1_100)), "its schema has more than 2,000 values"),
    "many required": (tool("t", inputSchema={"required": OTHER_TYPES}), "its schema has more than 2,000 values"),
    "long schema": (tool("t", inputSchema={"x": "x" * 100_000}), "its schema has more than"),
    "parameter name": (tool("t", inputSchema={"properties": {"a b": {}}}), "a parameter has a name with other"),
    "unknown type": (tool("t", inputSchema={"properties": {"a": {"type": "nothing"}}}), "its schema is wrong"),
    "circle": (tool("t", inputSchema={"$defs": {"a": {"$ref": "#/$defs/a"}}}), "a broken reference"),
    "reference to nothing": (tool("t", inputSchema={"x": {"$ref": "#/$defs/a"}}), "a broken reference"),
    "reference out": (tool("t", inputSchema={"x": {"$ref": "https://example.org/x"}}), "a broken reference"),
}


@pytest.mark.parametrize(("listed", "why"), LEFT_OUT.values(), ids=LEFT_OUT)
def test_unusable_tool_is_left_out(listed: dict[str, Any], why: str) -> None:
    found, sentence = tools.tools_of(SERVER, [listed, tool("good")])
    assert [each.name for each in found] == ["mcp__h__good"]
    assert sentence.startswith("Some tools of h were left out: ")
    assert why in sentence
    assert sentence.isprintable()


@pytest.mark.parametrize("union", ["anyOf", "oneOf", "allOf"])
def test_union_at_the_top_moves_to_the_description(union: str) -> None:
    parts = [{"required": ["a"]}, {"$ref": "#/$defs/b"}]
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "$defs": {"b": {}}}
    ((found,), why) = tools.tools_of(SERVER, [tool("t", description="Does it.", inputSchema={**schema, union: parts})])
    assert why == ""
    assert found.input_schema == schema
    assert found.description == f"Does it.\n\nThe input must fit this as well: {json.dumps({union: parts})}"
    ((found,), _) = tools.tools_of(SERVER, [tool("t", inputSchema={union: parts})])
    assert found.input_schema == {"type": "object", "properties": {}}


def test_references_and_foreign_patterns_are_accepted() -> None:
    properties = {"a": {"type": "string", "pattern": r"^\p{L}+$"}, "b": {"$ref": "#/$defs/x~1y/anyOf/0"}}
    schema = {"type": "object", "properties": properties, "$defs": {"x/y": {"anyOf": [{}]}}}
    assert tools.tools_of(SERVER, [tool("t", inputSchema=schema)])[1] == ""


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"required": ["a"]}, "a is missing"),
        ({"properties": {"a": {}}, "additionalProperties": False}, "there is no b"),
        ({"patternProperties": {"^b": {}}, "additionalProperties": False}, ""),
        ({}, ""),
    ],
)
def test_input_is_checked_for_missing_and_unknown_keys(schema: dict[str, Any], why: str) -> None:
    checked = ServerTool(OfferedTool("t", "", schema, False, True, "h", "t"), None)
    with pytest.raises(ToolError, match=why) if why else nullcontext():
        checked.check({"b": 1})


@pytest.mark.parametrize(("allowed", "instead"), [("mcp", r"mcp__\*"), ("mcp:git", r"mcp__git__\*")])
def test_group_of_tools_is_no_allowance(allowed: str, instead: str) -> None:
    use = settings(allow=allowed)
    with pytest.raises(ConfigError, match=f"{allowed} is a group of tools; {instead} allows"):
        read_allowances(use, (), tool_groups(use))
    use = settings(allow="mcp__*")
    assert [str(each) for each in read_allowances(use, (), tool_groups(use))] == ["mcp__*"]
