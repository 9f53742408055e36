"""Tools: how a function or an object becomes one, its schema and the check of its input, and the plan tools."""

import json
import math
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import pytest
import trio
from support.contexts import QueuedGuidance, tool_context

from chain.app.toolbox import configured_tools, tool_groups
from chain.config.load import load_settings
from chain.errors import ConfigError, ToolError
from chain.journal.records import PlanChange
from chain.lines.parse import Adjustment
from chain.messages import ToolCall
from chain.plan import Plan
from chain.tools import calling
from chain.tools.plan_tools import TOOLS
from chain.tools.processes.guarded import Guard
from chain.tools.registry import Registry
from chain.tools.tool import FunctionTool, ToolContext, _plain_schema, _schema_of, tool


@tool
async def echo(ctx: ToolContext, text: str, times: int = 1, mode: Literal["plain", "loud"] = "plain") -> str:
    """Say a text again.

    As often as it is wanted.
    """
    return (text.upper() if mode == "loud" else text) * times


# ------------------------------------------------------------------------------------------------- the decorator @tool


def test_tool_is_made_from_its_function() -> None:
    assert (echo.name, echo.description) == ("echo", "Say a text again.\n\nAs often as it is wanted.")
    assert (echo.timeout_s, echo.read_only, echo.needs_approval) == (None, False, False)
    assert echo.input_schema == {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "text": {"type": "string"},
            "times": {"type": "integer", "default": 1},
            "mode": {"type": "string", "enum": ["plain", "loud"], "default": "plain"},
        },
        "required": ["text"],
    }


def test_decorator_sets_the_other_fields() -> None:
    async def function(ctx: ToolContext) -> str:
        """Do something."""
        return ""

    longest_name = "a-B_9".ljust(64, "x")
    each = tool(name=longest_name, timeout_s=0.5, read_only=True, needs_approval=True)(function)
    assert (each.name, each.timeout_s, each.read_only, each.needs_approval) == (longest_name, 0.5, True, True)


def test_keyword_parameters_are_in_the_schema() -> None:
    @tool
    async def double(ctx: ToolContext, /, title: str, *, times: int = 2) -> str:
        """Do something."""
        return ""

    title, times = {"type": "string"}, {"type": "integer", "default": 2}
    assert double.input_schema["properties"] == {"title": title, "times": times}


REASON_BY_SIGNATURE = [
    ("def f(ctx: ToolContext) -> str", "f cannot be a tool: it must be defined with async def"),
    ("async def f() -> str", "its first parameter must be the context"),
    ("async def f(*, ctx: ToolContext) -> str", "its first parameter must be the context"),
    ("async def f(ctx: ToolContext, path) -> str", "its parameter path needs a type"),
    ("async def f(ctx: ToolContext, path: str, /) -> str", "its parameter path cannot be passed by name"),
    ("async def f(ctx: ToolContext, *paths: str) -> str", "its parameter paths cannot be passed by name"),
    ("async def f(ctx: ToolContext, **paths: str) -> str", "its parameter paths cannot be passed by name"),
]


@pytest.mark.parametrize(("signature", "reason"), REASON_BY_SIGNATURE)
def test_function_with_another_signature_is_refused(signature: str, reason: str) -> None:
    namespace: dict[str, Any] = {}
    exec(f"{signature}: 'Do it.'", globals(), namespace)
    with pytest.raises(TypeError, match=reason):
        tool(namespace["f"])


async def undescribed(ctx: ToolContext) -> str:
    return ""


UNUSABLE_FIELDS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "no docstring": (undescribed, {}, "undescribed cannot be a tool: it needs a docstring"),
    "zero timeout": (echo.function, {"timeout_s": 0}, "its timeout_s must be a positive number or None, not 0"),
    "NaN as timeout": (echo.function, {"timeout_s": float("nan")}, "not nan"),
    "text as timeout": (echo.function, {"timeout_s": "5"}, "not '5'"),
    "bool as timeout": (echo.function, {"timeout_s": True}, "not True"),
    "two words": (echo.function, {"name": "a b"}, "echo cannot be a tool: its name 'a b' must have 1 to 64"),
    "long name": (echo.function, {"name": "x" * 65}, "must have 1 to 64"),
    "name with line end": (echo.function, {"name": "echo\n"}, "must have 1 to 64"),
}


@pytest.mark.parametrize(("function", "options", "reason"), UNUSABLE_FIELDS.values(), ids=UNUSABLE_FIELDS)
def test_unusable_fields_are_refused(function: Any, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(TypeError) as refusal:
        tool(**options)(function)
    assert reason in str(refusal.value)
    assert "\n" not in str(refusal.value)


async def test_safe_point_returns_each_adjustment_once() -> None:
    context = tool_context(steering=QueuedGuidance(Adjustment("skip_source", "docs")))
    first, second = await context.safe_point("one"), await context.safe_point("two")
    assert [adjustment.value for adjustment in first.adjustments] == ["docs"]
    assert second.adjustments == ()
    assert not second.stop


async def test_progress_must_be_text() -> None:
    reports = list[str]()
    context = tool_context(report=reports.append)
    context.progress("half")
    with pytest.raises(TypeError, match="progress must be text, not bytes"):
        context.progress(b"half")  # type: ignore[arg-type]
    assert reports == ["half"]


# ----------------------------------------------------------------------------------------------- schemas and the input


def tool_with(hint: Any, *default: Any) -> FunctionTool:
    """Return a tool with the parameter ``value`` of this type, whose result is the ``repr`` of the value."""

    async def function(ctx: ToolContext, value: Any) -> str:
        """Take something."""
        return repr(value)

    function.__annotations__["value"], function.__defaults__ = hint, default
    return tool(function)


ORDER = Literal["up", "down"]
TOOLS_WITH_PLAIN_TYPES = [
    *map(tool_with, (str, int, float, bool, list[str], ORDER)),
    *(tool_with(str, "x"), tool_with(int, 1), tool_with(bool, True), tool_with(float, 0.5), tool_with(ORDER, "up")),
]
# A default may be of another type than its parameter.
TOOLS_WITH_OTHER_TYPES = [
    *map(tool_with, (Literal["one"], Literal["one", 1], int | str, list[int], Any)),
    *(tool_with(int, True), tool_with(float, 1), tool_with(str, None), tool_with(list[str], ["x"])),
]


def assert_schema_of_pydantic(each: FunctionTool) -> None:
    """Compare byte for byte, because the schemas of a resumed session are in the service's cache."""
    assert json.dumps(each.input_schema) == json.dumps(_schema_of(each._input_model)), each


def test_schema_of_plain_types_is_made_without_pydantic(tmp_path: Path) -> None:
    settings = load_settings(config=None, environ={}, cwd=tmp_path, flags={})
    own_tools = chain.from_iterable(tool_groups(settings, Guard(), tmp_path, ()).values())
    for each in (*own_tools, *TOOLS_WITH_PLAIN_TYPES):
        assert isinstance(each, FunctionTool)
        assert _plain_schema(each._parameters) is not None, each
        assert_schema_of_pydantic(each)


def test_schema_of_other_types_is_made_with_pydantic() -> None:
    for each in TOOLS_WITH_OTHER_TYPES:
        assert _plain_schema(each._parameters) is None, each
        assert_schema_of_pydantic(each)
    assert _plain_schema(tool_with(float, math.inf)._parameters) is None


def test_schemas_of_tools_are_separate() -> None:
    tool_with(str).input_schema["properties"]["value"]["description"] = "Where."
    assert tool_with(str).input_schema["properties"]["value"] == {"type": "string"}


DEFAULTS = [1, True, 0, False, [1], [True], "", None]


@pytest.mark.parametrize("default", DEFAULTS, ids=repr)
async def test_equal_defaults_of_other_types_stay_apart(default: Any) -> None:
    for each in DEFAULTS:
        tool_with(Any, each)._input_model  # noqa: B018 - fills the cache
    assert tool_with(Any, default).input_schema["properties"]["value"].get("default") == default
    assert await tool_with(Any, default).run(tool_context(), {}) == repr(default)


async def test_fitting_input_is_passed() -> None:
    assert await echo.run(tool_context(), {"text": "a"}) == "a"
    assert await echo.run(tool_context(), {"text": "a", "times": 2, "mode": "loud"}) == "AA"


MISFITTING_INPUTS: dict[str, tuple[dict[str, Any], str]] = {
    "no text": ({}, "text: Field required"),
    "number as text": ({"text": 5}, "text: Input should be a valid string"),
    "text as number": ({"text": "a", "times": "2"}, "times: Input should be a valid integer"),
    "bool as number": ({"text": "a", "times": True}, "times: Input should be a valid integer"),
    "unknown mode": ({"text": "a", "mode": "soft"}, "mode: Input should be 'plain' or 'loud'"),
    "unknown key": ({"text": "a", "more": 1}, "more: Extra inputs are not permitted"),
    "two faults": ({"text": None, "more": 1}, "; "),
}


@pytest.mark.parametrize(("input", "fault"), MISFITTING_INPUTS.values(), ids=MISFITTING_INPUTS)
def test_misfitting_input_names_the_key(input: dict[str, Any], fault: str) -> None:
    with pytest.raises(ToolError, match="The input of echo does not fit its schema") as refusal:
        echo.check(input)
    assert fault in str(refusal.value)


# -------------------------------------------------------------------------------------------------------- the registry


class Doubler:
    """A tool that is an object of a class of its own."""

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


def doubler(**fields: Any) -> Doubler:
    """Return a ``Doubler`` with other fields."""
    double = Doubler()
    for name, value in fields.items():
        setattr(double, name, value)
    return double


async def test_any_object_with_the_interface_is_a_tool() -> None:
    registry, call = Registry.of([Doubler()]), ToolCall("t1", "double", {"n": 21})
    result = await calling.run(calling.tool_for(registry, call), call, tool_context(), calling.ToolLimits())
    assert result.text == "42"
    with pytest.raises(ToolError, match="n is missing"):
        calling.tool_for(registry, ToolCall("t1", "double", {}))


async def wait_for(ctx: ToolContext, event: trio.Event) -> str:
    """Wait."""
    return ""


async def go_to(ctx: ToolContext, where: "Nowhere") -> str:  # type: ignore[name-defined]  # noqa: F821
    """Go."""
    return ""


UNUSABLE_TOOLS: dict[str, tuple[list[Any], str]] = {
    "function": ([len], "len is not a tool: decorate it with @tool"),
    "class": ([Doubler], "Doubler is not a tool: decorate it with @tool"),
    "missing attributes": ([OnlyRun()], "OnlyRun is not a tool: it has no name, description, timeout_s"),
    "unusable name": ([doubler(name="a b!")], "Doubler cannot be a tool: its name 'a b!' must have"),
    "no name": ([doubler(name=None)], "Doubler cannot be a tool: its name None must have"),
    "no description": ([doubler(description=" ")], "Doubler cannot be a tool: it needs a description"),
    "negative timeout": ([doubler(timeout_s=-1)], "its timeout_s must be a positive number or None, not -1"),
    "array as input": ([doubler(input_schema={"type": "array"})], "the type of its input_schema must be object"),
    "no JSON type": ([echo, tool(wait_for)], "wait_for cannot be a tool: its input has no schema"),
    "unknown type": ([tool(go_to)], "go_to cannot be a tool: its input has no schema (name 'Nowhere' is"),
    "one name twice": ([echo, echo], "two tools are called echo"),
}


@pytest.mark.parametrize(("tools", "reason"), UNUSABLE_TOOLS.values(), ids=UNUSABLE_TOOLS)
def test_registry_refuses_what_is_no_tool(tools: list[Any], reason: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        Registry.of(tools)
    assert reason in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_registry_names_its_tools_for_an_unknown_name() -> None:
    registry = Registry.of([echo, *TOOLS])
    assert registry.get("echo") is echo
    with pytest.raises(ToolError, match=r"There is no tool 'ecko'\. The tools are: echo, plan_add_task"):
        registry.get("ecko")
    with pytest.raises(ToolError, match="The tools are: none"):
        Registry.of([]).get("x")


def test_configuration_may_name_a_programs_own_tools(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("chains: {default: {model: offline, tools: [todo, echo]}}")
    settings = load_settings(config=tmp_path / "config.yaml", environ={}, cwd=tmp_path)
    groups = tool_groups(settings)
    assert "plan_list" in [each.name for each in configured_tools(settings, settings.chain(), [echo], groups)]
    with pytest.raises(ConfigError, match="there is no tool or group 'echo'"):
        configured_tools(settings, settings.chain(), (), groups)


# ------------------------------------------------------------------------------------------------------ the plan tools


async def test_plan_tools_change_and_render_the_plan() -> None:
    agents = list[str]()

    def apply(change: PlanChange) -> None:
        plan.apply(change)
        agents.append(change.by)

    plan = Plan(apply)
    tools = {each.name.removeprefix("plan_"): each for each in TOOLS}

    async def use(name: str, **input: Any) -> Any:
        return await tools[name].run(tool_context(plan=plan), input)

    assert await use("list") == "The plan is empty."
    assert await use("add_task", task="read  it\nall") == (
        "Task 1 added: read it all.\n[ ] 1. read it all\n0 done, 0 failed, 1 pending"
    )
    await use("add_task", task="compare")
    await use("add_task", task="write")
    assert (await use("mark_done", task_number=1)).startswith("Task 1 completed: read it all.\n[✓] 1.")
    _, _, second_task, _, counts = (await use("mark_failed", task_number=2, reason="no data")).splitlines()
    assert second_task == "[✗] 2. compare (no data)"
    assert counts == "1 done, 1 failed, 1 pending"
    assert await use("set_tasks", tasks=["a", "b"]) == (
        "The plan now has 2 tasks.\n[ ] 1. a\n[ ] 2. b\n0 done, 0 failed, 2 pending"
    )
    assert await use("clear") == "The plan is cleared, 2 tasks removed.\nThe plan is empty."
    assert agents == ["main"] * 7, "each of the seven changes names the agent that made it"


def test_only_the_plan_list_is_read_only() -> None:
    assert [each.name for each in TOOLS if each.read_only] == ["plan_list"]
