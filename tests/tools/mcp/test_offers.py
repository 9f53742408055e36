"""Which listed tools a model may have, and what is said of the others."""

from __future__ import annotations

from typing import Any

import pytest
from support import settings
from support.servers import server

from chain.app.toolbox import read_allowances, tool_groups
from chain.errors import ConfigError
from chain.tools.mcp import offers

SERVER = server({"command": "x"})


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}, **more}


def parameters(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{n}": {"type": "null"} for n in range(count)}}


@pytest.mark.slow
def test_what_is_left_out_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tools of many parameters take long, so that a server could keep the program busy for minutes."""
    monkeypatch.setattr(offers, "MAX_ALL_VALUES", 1_000)
    listed = [tool(f"t{n}", inputSchema=parameters(200)) for n in range(1_000)]
    found, why = offers.tools_of(SERVER, listed)
    assert 1 < len(found) < 5
    assert "too much" in why
    found, _ = offers.tools_of(SERVER, [tool(f"t{n}", description="x" * 10_000) for n in range(100)])
    assert len(found) == 29
    listed = [tool("more"), *(tool(f"t{n}", inputSchema={"type": "object", "required": 5}) for n in range(5_000))]
    found, why = offers.tools_of(SERVER, listed)
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
    found, _ = offers.tools_of(SERVER, [tool("t", **more)])
    assert [each.description for each in found] == ([] if described is None else [described])


def test_a_schema_without_bottom_is_left_out() -> None:
    schema: dict[str, Any] = {"type": "object"}
    inner = schema
    for _ in range(3_000):
        inner["x"] = inner = {}
    found, why = offers.tools_of(SERVER, [tool("deep", inputSchema=schema), tool("t")])
    assert [each.name for each in found] == ["mcp__h__t"]
    assert "levels" in why


@pytest.mark.parametrize(
    "schema", [parameters(1_100), {"type": "object", "required": [each for n in range(2_000) for each in (n, str(n))]}]
)
def test_a_schema_that_would_take_long_is_left_out(schema: dict[str, Any]) -> None:
    found, why = offers.tools_of(SERVER, [tool("t", inputSchema=schema)])
    assert not found
    assert "2,000 values" in why


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
    told = offers.mistake("t", schema, {"b": 1})
    assert why in told
    assert bool(told) == bool(why)


@pytest.mark.parametrize(("allowed", "instead"), [("mcp", r"mcp__\*"), ("mcp:git", r"mcp__git__\*")])
def test_a_group_is_no_allowance(allowed: str, instead: str) -> None:
    use = settings(allow=allowed)
    with pytest.raises(ConfigError, match=f"{allowed} is a group of tools; {instead} allows"):
        read_allowances(use, (), tool_groups(use))
    use = settings(allow="mcp__*")
    assert [str(each) for each in read_allowances(use, (), tool_groups(use))] == ["mcp__*"]
