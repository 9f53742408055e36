"""Tools: how a function or an object becomes one, its schema and the check of its input, and the plan tools."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pytest
import trio
from support.steered import Steered, tool_context

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
    async def some(ctx: ToolContext, /, title: str, *, two: int = 2) -> str:
        """Do something."""
        return ""

    name = "a-B_9" + "x" * 59
    made = tool(name=name, timeout_s=0.5, read_only=True, needs_approval=True)(some)
    assert (made.name, made.timeout_s, made.read_only, made.needs_approval) == (name, 0.5, True, True)
    assert made.input_schema["properties"] == {
        "title": {"type": "string"},
        "two": {"type": "integer", "default": 2},
    }


SIGNATURES = [
    ("def f(ctx: ToolContext) -> str", "f cannot be a tool: it must be defined with async def"),
    ("async def f() -> str", "its first parameter must be the context"),
    ("async def f(*, ctx: ToolContext) -> str", "its first parameter must be the context"),
    ("async def f(ctx: ToolContext, path) -> str", "its parameter path needs a type"),
    ("async def f(ctx: ToolContext, path: str, /) -> str", "its parameter path cannot be passed by name"),
    ("async def f(ctx: ToolContext, *paths: str) -> str", "its parameter paths cannot be passed by name"),
    ("async def f(ctx: ToolContext, **paths: str) -> str", "its parameter paths cannot be passed by name"),
]


@pytest.mark.parametrize(("signature", "says"), SIGNATURES)
def test_function_with_another_signature_is_refused(signature: str, says: str) -> None:
    made: dict[str, Any] = {}
    exec(f"{signature}: 'Do it.'", globals(), made)
    with pytest.raises(TypeError, match=says):
        tool(made["f"])


async def undescribed(ctx: ToolContext) -> str:
    return ""


@pytest.mark.parametrize(
    ("function", "how", "says"),
    [
        (undescribed, {}, "undescribed cannot be a tool: it needs a docstring"),
        (echo.function, {"timeout_s": 0}, "its timeout_s must be a positive number or None, not 0"),
        (echo.function, {"timeout_s": float("nan")}, "not nan"),
        (echo.function, {"timeout_s": "5"}, "not '5'"),
        (echo.function, {"timeout_s": True}, "not True"),
        (echo.function, {"name": "read file"}, "echo cannot be a tool: its name 'read file' must have 1 to 64"),
        (echo.function, {"name": "x" * 65}, "must have 1 to 64"),
        (echo.function, {"name": "echo\n"}, "must have 1 to 64"),
    ],
)
def test_unusable_fields_are_refused(function: Any, how: dict[str, Any], says: str) -> None:
    with pytest.raises(TypeError) as caught:
        tool(**how)(function)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_tool_can_report_and_be_steered() -> None:
    @tool
    async def long(ctx: ToolContext) -> str:
        """Take long."""
        ctx.progress("half")
        first, second = await ctx.safe_point("one"), await ctx.safe_point("two")
        return f"{[a.value for a in first.adjustments]} {[a.value for a in second.adjustments]} {second.stop}"

    said = list[str]()
    context = tool_context(steering=Steered(Adjustment("skip_source", "docs")), report=said.append)
    assert await long.run(context, {}) == "['docs'] [] False"
    with pytest.raises(TypeError, match="progress must be text, not bytes"):
        context.progress(b"half")  # type: ignore[arg-type]
    assert said == ["half"]


# ----------------------------------------------------------------------------------------------- schemas and the input


def taking(hint: Any, *default: Any) -> FunctionTool:
    """Return a tool with one parameter of this type, which returns it."""

    async def some(ctx: ToolContext, value: Any) -> str:
        """Take something."""
        return repr(value)

    some.__annotations__["value"], some.__defaults__ = hint, default
    return tool(some)


def test_schema_of_plain_types_equals_that_of_pydantic(tmp_path: Path) -> None:
    """Byte for byte, because the schemas of a resumed session are in the service's cache."""
    settings = load_settings(config=None, environ={}, cwd=tmp_path, flags={})
    ours = [each for group in tool_groups(settings, Guard(), tmp_path, ()).values() for each in group]
    order = Literal["up", "down"]
    plain = [*map(taking, (str, int, float, bool, list[str], order)), taking(str, "x"), taking(int, 1)]
    plain += [taking(bool, True), taking(float, 0.5), taking(order, "up")]
    others = [taking(Literal["one"]), taking(Literal["one", 1]), taking(int | str), taking(list[int]), taking(Any)]
    others += [taking(int, True), taking(float, 1), taking(str, None), taking(list[str], ["x"])]
    for each in (*ours, *plain, *others):
        assert isinstance(each, FunctionTool)
        assert json.dumps(each.input_schema) == json.dumps(_schema_of(each._input_model)), each
        assert (_plain_schema(each._parameters) is None) is (each in others), each
    assert _plain_schema(taking(float, math.inf)._parameters) is None


def test_schemas_of_tools_are_separate() -> None:
    taking(str).input_schema["properties"]["value"]["description"] = "Where."
    assert taking(str).input_schema["properties"]["value"] == {"type": "string"}


@pytest.mark.parametrize("default", [1, True, 0, False, [1], [True], "", None])
async def test_equal_defaults_of_other_types_stay_apart(default: Any) -> None:
    for each in (1, True, 0, False, [1], [True], "", None):
        taking(Any, each)._input_model  # noqa: B018 - fills the cache
    assert taking(Any, default).input_schema["properties"]["value"].get("default") == default
    assert await taking(Any, default).run(tool_context(), {}) == repr(default)


async def test_fitting_input_is_passed() -> None:
    assert await echo.run(tool_context(), {"text": "a"}) == "a"
    assert await echo.run(tool_context(), {"text": "a", "times": 2, "mode": "loud"}) == "AA"


@pytest.mark.parametrize(
    ("input", "says"),
    [
        ({}, "text: Field required"),
        ({"text": 5}, "text: Input should be a valid string"),
        ({"text": "a", "times": "2"}, "times: Input should be a valid integer"),
        ({"text": "a", "times": True}, "times: Input should be a valid integer"),
        ({"text": "a", "mode": "soft"}, "mode: Input should be 'plain' or 'loud'"),
        ({"text": "a", "more": 1}, "more: Extra inputs are not permitted"),
        ({"text": None, "more": 1}, "; "),
    ],
)
def test_misfitting_input_names_the_key(input: dict[str, Any], says: str) -> None:
    with pytest.raises(ToolError, match="The input of echo does not fit its schema") as caught:
        echo.check(input)
    assert says in str(caught.value)


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
    made = Doubler()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


async def test_any_object_with_the_interface_is_a_tool() -> None:
    registry, call = Registry.of([Doubler()]), ToolCall("t1", "double", {"n": 21})
    result = await calling.run(calling.tool_for(registry, call), call, tool_context(), calling.ToolLimits())
    assert result.text == "42"
    with pytest.raises(ToolError, match="n is missing"):
        calling.tool_for(registry, ToolCall("t1", "double", {}))


async def takes_event(ctx: ToolContext, event: trio.Event) -> str:
    """Wait."""
    return ""


async def takes_unknown(ctx: ToolContext, where: "Nowhere") -> str:  # type: ignore[name-defined]  # noqa: F821
    """Look."""
    return ""


REFUSED: list[tuple[list[Any], str]] = [
    ([len], "len is not a tool: decorate it with @tool"),
    ([Doubler], "Doubler is not a tool: decorate it with @tool"),
    ([OnlyRun()], "OnlyRun is not a tool: it has no name, description, timeout_s"),
    ([doubler(name="a b!")], "Doubler cannot be a tool: its name 'a b!' must have"),
    ([doubler(name=None)], "Doubler cannot be a tool: its name None must have"),
    ([doubler(description=" ")], "Doubler cannot be a tool: it needs a description"),
    ([doubler(timeout_s=-1)], "its timeout_s must be a positive number or None, not -1"),
    ([doubler(input_schema={"type": "array"})], "the type of its input_schema must be object"),
    ([echo, tool(takes_event)], "takes_event cannot be a tool: its input has no schema"),
    ([tool(takes_unknown)], "takes_unknown cannot be a tool: its input has no schema (name 'Nowhere' is"),
    ([echo, echo], "two tools are called echo"),
]


@pytest.mark.parametrize(("tools", "says"), REFUSED, ids=[says[:40] for _, says in REFUSED])
def test_registry_refuses_what_is_no_tool(tools: list[Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Registry.of(tools)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_registry_names_its_tools_for_an_unknown_name() -> None:
    registry = Registry.of([echo, *TOOLS])
    assert registry.get("echo") is echo
    with pytest.raises(ToolError, match=r"There is no tool 'ecko'\. The tools are: echo, plan_add_task"):
        registry.get("ecko")
    with pytest.raises(ToolError, match="The tools are: none"):
        Registry.of([]).get("x")


def test_configuration_may_name_a_programs_own_tools(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("chains: {default: {model: offline, tools: [todo, echo]}}")
    found = load_settings(config=tmp_path / "config.yaml", environ={}, cwd=tmp_path)
    chosen, groups = found.chain(), tool_groups(found)
    assert "plan_list" in [each.name for each in configured_tools(found, chosen, [echo], groups)]
    with pytest.raises(ConfigError, match="there is no tool or group 'echo'"):
        configured_tools(found, chosen, (), groups)


# ------------------------------------------------------------------------------------------------------ the plan tools


async def test_plan_tools_change_and_render_the_plan() -> None:
    by = list[str]()

    def hear(change: PlanChange) -> None:
        plan.apply(change)
        by.append(change.by)

    plan = Plan(hear)
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
    failed = await use("mark_failed", task_number=2, reason="no data")
    assert failed.splitlines()[2] == "[✗] 2. compare (no data)"
    assert failed.splitlines()[-1] == "1 done, 1 failed, 1 pending"
    assert await use("set_tasks", tasks=["a", "b"]) == (
        "The plan now has 2 tasks.\n[ ] 1. a\n[ ] 2. b\n0 done, 0 failed, 2 pending"
    )
    assert await use("clear") == "The plan is cleared, 2 tasks removed.\nThe plan is empty."
    assert by == ["main"] * 7
    assert [each.name for each in TOOLS if each.read_only] == ["plan_list"]
