"""Which listed tools a model may have, and what is said of the others."""

from __future__ import annotations

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


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}, **more}


def parameters(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{n}": {"type": "null"} for n in range(count)}}


@pytest.mark.slow
def test_what_is_left_out_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tools of many parameters take long, so that a server could keep the program busy for minutes."""
    monkeypatch.setattr(tools, "MAX_ALL_VALUES", 1_000)
    listed = [tool(f"t{n}", inputSchema=parameters(200)) for n in range(1_000)]
    found, why = tools.tools_of(SERVER, listed)
    assert 1 < len(found) < 5
    assert "too large" in why
    found, _ = tools.tools_of(SERVER, [tool(f"t{n}", description="x" * 10_000) for n in range(100)])
    assert len(found) == 29
    listed = [tool("more"), *(tool(f"t{n}", inputSchema={"type": "object", "required": 5}) for n in range(5_000))]
    found, why = tools.tools_of(SERVER, listed)
    assert [each.name for each in found] == ["mcp__h__more"]
    assert "4997 more" in why


@pytest.mark.parametrize(
    ("more", "described"),
    [
        ({"description": ["x" * 1_000_000], "title": "A title."}, "A title."),
        ({"description": " ", "title": 5}, "t, a tool of h."),
        ({"title": "x" * 1_000_000}, None),
        ({"description": "x" * 10_001}, None),
    ],
)
def test_a_description_is_a_text_of_some_length(more: dict[str, Any], described: str | None) -> None:
    found, _ = tools.tools_of(SERVER, [tool("t", **more)])
    assert [each.description for each in found] == ([] if described is None else [described])


@pytest.mark.parametrize(
    ("name", "offered"),
    [
        ("docs.create", "mcp__h__docs_create"),
        ("user/update", "mcp__h__user_update"),
        ("two words: ä", "mcp__h__two_words___"),
        ("作成", None),
        ("", None),
        (5, None),
        ("a." * 40, None),
        ("." * 3_000_000, None),
    ],
)
def test_other_characters_of_a_name_are_mapped(name: object, offered: str | None) -> None:
    found, why = tools.tools_of(SERVER, [{"name": name, "inputSchema": {}}])
    assert [(each.name, each.tool) for each in found] == ([] if offered is None else [(offered, name)])
    assert bool(why) == (offered is None)


def test_tools_of_one_mapped_name_and_the_same_tool_again() -> None:
    names = ["a.b", "a.b", "a/b", "a_b", "a/b"]
    found, why = tools.tools_of(SERVER, [*map(tool, names), tool("a.b", description="other")])
    assert {each.name.removeprefix("mcp__h__"): each.tool for each in found} == {
        "a_b": "a.b",
        "a_b_2": "a/b",
        "a_b_3": "a_b",
    }
    assert why == "Of the tools of h were left out: 'a.b' (its name is used twice)."


@pytest.mark.parametrize("union", ["anyOf", "oneOf", "allOf"])
def test_a_union_at_the_top_is_said_in_the_description(union: str) -> None:
    parts = [{"required": ["a"]}, {"$ref": "#/$defs/b"}]
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "$defs": {"b": {}}}
    found, why = tools.tools_of(SERVER, [tool("t", description="Does it.", inputSchema={**schema, union: parts})])
    assert why == ""
    assert found[0].input_schema == schema
    assert found[0].description.startswith(f'Does it.\n\nThe input must fit this as well: {{"{union}": [{{"required"')
    found, _ = tools.tools_of(SERVER, [tool("t", inputSchema={union: parts})])
    assert found[0].input_schema == {"type": "object", "properties": {}}


def test_a_schema_without_bottom_is_left_out() -> None:
    schema: dict[str, Any] = {"type": "object"}
    inner = schema
    for _ in range(3_000):
        inner["x"] = inner = {}
    found, why = tools.tools_of(SERVER, [tool("deep", inputSchema=schema), tool("t")])
    assert [each.name for each in found] == ["mcp__h__t"]
    assert "levels" in why


@pytest.mark.parametrize(
    "schema", [parameters(1_100), {"type": "object", "required": [each for n in range(2_000) for each in (n, str(n))]}]
)
def test_a_schema_that_would_take_long_is_left_out(schema: dict[str, Any]) -> None:
    found, why = tools.tools_of(SERVER, [tool("t", inputSchema=schema)])
    assert not found
    assert "2,000 values" in why


def test_a_pattern_need_not_be_one_of_python() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": r"^\p{L}+$"}}}
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
def test_a_mistake_is_told_where_there_is_one(schema: dict[str, Any], why: str) -> None:
    checked = ServerTool(OfferedTool("t", "", schema, False, True, "h", "t"), None)
    with pytest.raises(ToolError, match=why) if why else nullcontext():
        checked.check({"b": 1})


@pytest.mark.parametrize(("allowed", "instead"), [("mcp", r"mcp__\*"), ("mcp:git", r"mcp__git__\*")])
def test_a_group_is_no_allowance(allowed: str, instead: str) -> None:
    use = settings(allow=allowed)
    with pytest.raises(ConfigError, match=f"{allowed} is a group of tools; {instead} allows"):
        read_allowances(use, (), tool_groups(use))
    use = settings(allow="mcp__*")
    assert [str(each) for each in read_allowances(use, (), tool_groups(use))] == ["mcp__*"]
