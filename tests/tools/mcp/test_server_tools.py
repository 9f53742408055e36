"""The tools of a server's list that a model may use, and the sentence about those left out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.servers import server
from support.sessions import make_settings

from chain.app.toolbox import read_allowances, tool_groups
from chain.errors import ConfigError, ToolError
from chain.events import OfferedTool
from chain.tools.mcp import tools
from chain.tools.mcp.servers import ServerTool

SERVER = server({"command": "x"})


def tool(name: object, **more: Any) -> dict[str, Any]:
    """Return a tool as a server lists it."""
    return {"name": name, "inputSchema": {"type": "object"}, **more}


def parameters(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{n}": {"type": "null"} for n in range(count)}}


@pytest.mark.slow
def test_schemas_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "MAX_ALL_VALUES", 1_000)
    about_400_values = parameters(200)
    usable, left_out = tools.tools_of(SERVER, [tool(f"t{n}", inputSchema=about_400_values) for n in range(1_000)])
    assert 1 < len(usable) < 5
    assert "too large" in left_out


def test_descriptions_are_bounded_together() -> None:
    usable, _ = tools.tools_of(SERVER, [tool(f"t{n}", description="x" * 10_000) for n in range(100)])
    assert len(usable) == 29  # 300,000 characters, with those of the schemas


@pytest.mark.slow
def test_only_the_first_left_out_tools_are_named() -> None:
    invalid = [tool(f"t{n}", inputSchema={"type": "object", "required": 5}) for n in range(5_000)]
    (usable,), left_out = tools.tools_of(SERVER, [tool("valid"), *invalid])
    assert usable.name == "mcp__h__valid"
    assert "4997 more" in left_out, "three are named"


@pytest.mark.parametrize(
    ("more", "description"),
    [
        pytest.param({"description": ["x" * 1_000_000], "title": "A title."}, "A title.", id="title"),
        pytest.param({"description": " ", "title": 5}, "t, a tool of h.", id="name"),
    ],
)
def test_description_falls_back_to_title_and_name(more: dict[str, Any], description: str) -> None:
    ((usable,), _) = tools.tools_of(SERVER, [tool("t", **more)])
    assert usable.description == description


def test_names_are_mapped_and_stay_distinct() -> None:
    names = ["a.b", "a.b", "a/b", "a_b", "a/b", "two words: ä"]
    usable, left_out = tools.tools_of(SERVER, [*map(tool, names), tool("a.b", description="other")])
    assert {each.name: each.tool for each in usable} == {
        "mcp__h__a_b": "a.b",
        "mcp__h__a_b_2": "a/b",
        "mcp__h__a_b_3": "a_b",
        "mcp__h__two_words___": "two words: ä",
    }
    assert left_out == "Some tools of h were left out: 'a.b' (its name is used twice)."


def nested(levels: int) -> dict[str, Any]:
    schema = inner = dict[str, Any](type="object")
    for _ in range(levels):
        inner["x"] = inner = {}
    return schema


NUMBERS_AND_TEXTS = [value for n in range(2_000) for value in (n, str(n))]
"""Values that are slow to compare with each other, since they cannot be sorted."""

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
    "many required": (tool("t", inputSchema={"required": NUMBERS_AND_TEXTS}), "its schema has more than 2,000 values"),
    "long schema": (tool("t", inputSchema={"x": "x" * 100_000}), "its schema has more than"),
    "parameter name": (tool("t", inputSchema={"properties": {"a b": {}}}), "a parameter has a name with other"),
    "unknown type": (tool("t", inputSchema={"properties": {"a": {"type": "nothing"}}}), "its schema is wrong"),
    "circular reference": (tool("t", inputSchema={"$defs": {"a": {"$ref": "#/$defs/a"}}}), "a broken reference"),
    "reference to nothing": (tool("t", inputSchema={"x": {"$ref": "#/$defs/a"}}), "a broken reference"),
    "reference to a web page": (tool("t", inputSchema={"x": {"$ref": "https://example.org/x"}}), "a broken reference"),
}


@pytest.mark.parametrize(("listed", "cause"), LEFT_OUT.values(), ids=LEFT_OUT)
def test_unusable_tool_is_left_out(listed: dict[str, Any], cause: str) -> None:
    (usable,), left_out = tools.tools_of(SERVER, [listed, tool("good")])
    assert usable.name == "mcp__h__good"
    assert left_out.startswith("Some tools of h were left out: ")
    assert cause in left_out
    assert left_out.isprintable()


@pytest.mark.parametrize("union", ["anyOf", "oneOf", "allOf"])
def test_union_at_the_top_moves_to_the_description(union: str) -> None:
    parts = [{"required": ["a"]}, {"$ref": "#/$defs/b"}]
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "$defs": {"b": {}}}
    listed = tool("t", description="Does it.", inputSchema={**schema, union: parts})
    ((usable,), left_out) = tools.tools_of(SERVER, [listed])
    assert left_out == ""
    assert usable.input_schema == schema
    assert usable.description == f"Does it.\n\nThe input must fit this as well: {json.dumps({union: parts})}"


def test_schema_without_properties_is_completed() -> None:
    ((usable,), _) = tools.tools_of(SERVER, [tool("t", inputSchema={"anyOf": [{"required": ["a"]}]})])
    assert usable.input_schema == {"type": "object", "properties": {}}


def test_references_and_foreign_patterns_are_accepted() -> None:
    properties = {"a": {"type": "string", "pattern": r"^\p{L}+$"}, "b": {"$ref": "#/$defs/x~1y/anyOf/0"}}
    schema = {"type": "object", "properties": properties, "$defs": {"x/y": {"anyOf": [{}]}}}
    _, left_out = tools.tools_of(SERVER, [tool("t", inputSchema=schema)])
    assert left_out == ""


def check_input(schema: dict[str, Any], input: dict[str, Any]) -> None:
    offered = OfferedTool("t", "", schema, read_only=False, needs_approval=True, server="h", tool="t")
    ServerTool(offered, None).check(input)


@pytest.mark.parametrize(
    ("schema", "error"),
    [
        ({"required": ["a"]}, "a is missing"),
        ({"properties": {"a": {}}, "additionalProperties": False}, "there is no b"),
    ],
    ids=["missing key", "unknown key"],
)
def test_missing_and_unknown_keys_are_an_error(schema: dict[str, Any], error: str) -> None:
    with pytest.raises(ToolError, match=error):
        check_input(schema, {"b": 1})


@pytest.mark.parametrize(
    "schema", [{"patternProperties": {"^b": {}}, "additionalProperties": False}, {}], ids=["pattern", "any key"]
)
def test_other_keys_are_accepted(schema: dict[str, Any]) -> None:
    check_input(schema, {"b": 1})


@pytest.mark.parametrize(("group", "pattern"), [("mcp", r"mcp__\*"), ("mcp:git", r"mcp__git__\*")])
def test_group_of_tools_is_no_allowance(group: str, pattern: str) -> None:
    settings = make_settings(allow=group)
    with pytest.raises(ConfigError, match=f"{group} is a group of tools; {pattern} allows"):
        read_allowances(settings, (), tool_groups(settings))


def test_all_server_tools_can_be_allowed() -> None:
    settings = make_settings(allow="mcp__*")
    assert [str(each) for each in read_allowances(settings, (), tool_groups(settings))] == ["mcp__*"]
