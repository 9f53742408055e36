"""What is a tool, and what is refused as one before a session exists."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.steered import Steered

from chain.errors import ConfigError, ToolError
from chain.messages import ToolCall, ToolResult
from chain.plan import Plan
from chain.tools import calling
from chain.tools.registry import Registry
from chain.tools.tool import ToolContext


class Doubler:
    """A tool of a class of its own."""

    name: Any = "double"
    description = "Double a number."
    input_schema: Mapping[str, Any] = {"type": "object", "properties": {"n": {"type": "integer"}}}
    timeout_s: Any = None
    read_only = True
    needs_approval = False

    def check(self, input: Mapping[str, Any]) -> None:
        if "n" not in input:
            raise ToolError("n is missing")

    async def run(self, context: ToolContext, input: Mapping[str, Any]) -> str:
        return str(2 * input["n"])


class OnlyRun:
    async def run(self, context: ToolContext, input: Mapping[str, Any]) -> str:
        return ""


class NotAwaitedHere(Doubler):
    def run(self, context: ToolContext, input: Mapping[str, Any]) -> Any:
        return super().run(context, input)


def made(**parts: Any) -> Doubler:
    found = Doubler()
    for name, value in parts.items():
        setattr(found, name, value)
    return found


@pytest.mark.parametrize("tool", [Doubler(), NotAwaitedHere(), made(timeout_s=0.5)])
async def test_any_object_with_the_interface_is_a_tool(tool: Any) -> None:
    registry, context = Registry.of([tool]), ToolContext(Path("."), Plan(), "t1", Steered(), print)
    call = ToolCall("t1", "double", {"n": 21})
    assert await calling.run(calling.find(registry, call), call, context, calling.ToolLimits()) == ToolResult(
        "t1", "42"
    )
    with pytest.raises(ToolError, match="n is missing"):
        calling.find(registry, ToolCall("t1", "double", {}))


REFUSED: dict[str, tuple[Any, str]] = {
    "a function": (len, "len is not a tool: decorate it with @tool"),
    "a class": (Doubler, "Doubler is not a tool: decorate it with @tool"),
    "nothing but run": (OnlyRun(), "OnlyRun is not a tool: it has no name, description, timeout_s"),
    "a name that the API refuses": (made(name="a b!"), "Doubler cannot be a tool: its name 'a b!' must have"),
    "no name": (made(name=None), "Doubler cannot be a tool: its name None must have"),
    "no description": (made(description=" "), "Doubler cannot be a tool: it needs a description"),
    "no time": (made(timeout_s=-1), "its timeout_s must be a positive number or None, not -1"),
    "a schema of a list": (made(input_schema={"type": "array"}), "the type of its input_schema must be object"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_a_tool_is_refused_in_one_sentence(name: str) -> None:
    tool, words = REFUSED[name]
    with pytest.raises(ConfigError) as caught:
        Registry.of([tool])
    assert words in str(caught.value)
