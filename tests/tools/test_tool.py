"""Tools: their schema, the check of their input, the registry, and the plan tools."""

import json
import math
from pathlib import Path
from typing import Any, Literal

import pytest
import trio
from support.steered import Steered

from chain.app.toolbox import configured_tools, tool_groups
from chain.config.load import load_settings
from chain.errors import ConfigError, ToolError
from chain.journal.records import PlanChange
from chain.lines.parse import Adjustment
from chain.plan import Plan
from chain.tools.plan_tools import TOOLS
from chain.tools.processes.guarded import Guard
from chain.tools.registry import Registry
from chain.tools.tool import FunctionTool, ToolContext, _plain_schema, _schema_of, tool


def context(plan: Plan | None = None, *, steering: Steered | None = None, said: list[str] | None = None) -> ToolContext:
    report = (said if said is not None else []).append
    return ToolContext(Path("."), plan or Plan(), "call_1", steering or Steered(), report)


@tool
async def echo(ctx: ToolContext, text: str, times: int = 1, mode: Literal["plain", "loud"] = "plain") -> str:
    """Say a text again.

    As often as it is wanted.
    """
    return (text.upper() if mode == "loud" else text) * times


def test_a_tool_is_made_of_its_function() -> None:
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


def test_what_the_decorator_says_is_kept() -> None:
    @tool(name="other", timeout_s=5, read_only=True, needs_approval=True)
    async def some(ctx: ToolContext) -> str:
        """Do something."""
        return ""

    assert (some.name, some.timeout_s, some.read_only, some.needs_approval) == ("other", 5, True, True)
    assert some.input_schema == {"type": "object", "additionalProperties": False, "properties": {}}


def test_a_property_that_is_called_title_stays_in_the_schema() -> None:
    @tool
    async def page(ctx: ToolContext, title: str) -> str:
        """Show a page."""
        return title

    assert page.input_schema["properties"] == {"title": {"type": "string"}}


def taking(hint: Any, *default: Any) -> FunctionTool:
    async def some(ctx: ToolContext, value: Any) -> str:
        """Take something."""
        return ""

    some.__annotations__["value"], some.__defaults__ = hint, default
    return tool(some)


def test_a_schema_of_plain_types_is_the_one_that_pydantic_makes(tmp_path: Path) -> None:
    """Byte for byte: those of a resumed session are in the service's cache."""
    settings = load_settings(config=None, environ={}, cwd=tmp_path, flags={})
    ours = [each for group in tool_groups(settings, Guard(), tmp_path, ()).values() for each in group]
    order = Literal["up", "down"]
    plain = [
        *map(taking, (str, int, float, bool, list[str], order)),
        taking(str, "x"),
        taking(int, 1),
        taking(bool, True),
    ]
    plain += [taking(float, 0.5), taking(order, "up")]
    others = [taking(Literal["one"]), taking(Literal["one", 1]), taking(int | str), taking(list[int]), taking(Any)]
    others += [taking(int, True), taking(float, 1), taking(str, None), taking(list[str], ["x"])]
    for each in (*ours, *plain, *others):
        assert isinstance(each, FunctionTool)
        assert json.dumps(each.input_schema) == json.dumps(_schema_of(each._input_model)), each
        assert (_plain_schema(each._parameters) is None) is (each in others), each
    assert _plain_schema(taking(float, math.inf)._parameters) is None


@pytest.mark.parametrize("defaults", [(1, True), (0, False), ([1], [True]), ("", None)])
async def test_tools_of_one_name_whose_defaults_are_alike_are_told_apart(defaults: tuple[object, object]) -> None:
    def made(default: Any) -> FunctionTool:
        @tool
        async def same(ctx: ToolContext, value: Any = default) -> str:
            """Say what was given."""
            return repr(value)

        return same

    for default in defaults:
        assert made(default).input_schema["properties"]["value"].get("default") == default
        assert await made(default).run(context(), {}) == repr(default)


async def alone() -> str:
    """Nothing to work with."""
    return ""


async def untyped(ctx: ToolContext, path) -> str:  # type: ignore[no-untyped-def]  # noqa: ANN001
    """A path of no type."""
    return ""


async def many(ctx: ToolContext, *paths: str) -> str:
    """Many paths."""
    return ""


async def rest(ctx: ToolContext, **paths: str) -> str:
    """Named paths."""
    return ""


async def by_place(ctx: ToolContext, path: str, /) -> str:
    """A path that has no name."""
    return ""


async def by_name(*, ctx: ToolContext) -> str:
    """A context that is not the first."""
    return ""


async def undescribed(ctx: ToolContext) -> str:
    return ""


def waiting(ctx: ToolContext) -> str:
    """Hold everything up."""
    return ""


@pytest.mark.parametrize(
    ("function", "how", "says"),
    [
        (waiting, {}, "waiting cannot be a tool: it must be defined with async def"),
        (alone, {}, "alone cannot be a tool: its first parameter must be the context"),
        (by_name, {}, "by_name cannot be a tool: its first parameter must be the context"),
        (untyped, {}, "untyped cannot be a tool: its parameter path needs a type"),
        (many, {}, "many cannot be a tool: its parameter paths cannot be passed by name"),
        (rest, {}, "rest cannot be a tool: its parameter paths cannot be passed by name"),
        (by_place, {}, "by_place cannot be a tool: its parameter path cannot be passed by name"),
        (undescribed, {}, "undescribed cannot be a tool: it needs a docstring"),
        (
            echo.function,
            {"timeout_s": 0},
            "echo cannot be a tool: its timeout_s must be a positive number or None, not 0",
        ),
        (echo.function, {"timeout_s": -1.5}, "not -1.5"),
        (echo.function, {"timeout_s": float("nan")}, "not nan"),
        (echo.function, {"timeout_s": "5"}, "not '5'"),
        (echo.function, {"timeout_s": True}, "not True"),
        (echo.function, {"name": "read file"}, "echo cannot be a tool: its name 'read file' must have 1 to 64"),
        (echo.function, {"name": "x" * 65}, "must have 1 to 64"),
        (echo.function, {"name": "echo\n"}, "must have 1 to 64"),
    ],
)
def test_a_function_that_cannot_be_a_tool_is_refused_where_it_is_defined(
    function: Any, how: dict[str, Any], says: str
) -> None:
    with pytest.raises(TypeError) as caught:
        tool(**how)(function)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_a_tool_may_look_like() -> None:
    async def some(ctx: ToolContext, /, one: str, *, two: int = 2) -> str:
        """Do something."""
        return one * two

    assert tool(name="a-B_9" + "x" * 59, timeout_s=0.5)(some).timeout_s == 0.5
    assert set(tool(some).input_schema["properties"]) == {"one", "two"}


def test_what_the_model_cannot_be_told_of_does_not_get_into_a_registry() -> None:
    @tool
    async def wait(ctx: ToolContext, event: trio.Event) -> str:
        """Wait."""
        return ""

    @tool
    async def look(ctx: ToolContext, where: "Nowhere") -> str:  # type: ignore[name-defined]  # noqa: F821
        """Look."""
        return ""

    with pytest.raises(ConfigError, match=r"^wait cannot be a tool: .* no schema .*.*trio\.Event") as caught:
        Registry.of([echo, wait])
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"^look cannot be a tool: .* no schema .*name 'Nowhere' is"):
        Registry.of([look])


async def test_input_that_fits_is_handed_over() -> None:
    assert await echo.run(context(), {"text": "a"}) == "a"
    assert await echo.run(context(), {"text": "a", "times": 2, "mode": "loud"}) == "AA"


@pytest.mark.parametrize(
    ("input", "says"),
    [
        ({}, "text: Field required"),
        ({"text": 5}, "text: Input should be a valid string"),
        ({"text": "a", "times": "2"}, "times: Input should be a valid integer"),
        ({"text": "a", "times": 1.5}, "times: Input should be a valid integer"),
        ({"text": "a", "times": True}, "times: Input should be a valid integer"),
        ({"text": "a", "mode": "soft"}, "mode: Input should be 'plain' or 'loud'"),
        ({"text": "a", "more": 1}, "more: Extra inputs are not permitted"),
        ({"text": None, "more": 1}, "; "),
    ],
)
async def test_input_that_does_not_fit_is_a_tool_error_that_names_the_key(input: dict[str, Any], says: str) -> None:
    with pytest.raises(ToolError, match="The input of echo does not fit its schema") as caught:
        await echo.run(context(), input)
    assert says in str(caught.value)


async def test_a_tool_can_report_and_be_steered() -> None:
    @tool
    async def long(ctx: ToolContext) -> str:
        """Take long."""
        ctx.progress("half")
        first, second = await ctx.safe_point("one"), await ctx.safe_point("two")
        return f"{[a.value for a in first.adjustments]} {[a.value for a in second.adjustments]} {second.stop}"

    said: list[str] = []
    steering = Steered(Adjustment("skip_source", "docs"))
    assert await long.run(context(steering=steering, said=said), {}) == "['docs'] [] False"
    assert said == ["half"]


def test_a_registry_finds_tools_and_names_those_it_has() -> None:
    registry = Registry.of([echo, *TOOLS])
    assert registry.get("echo") is echo
    assert [t.name for t in registry][:2] == ["echo", "plan_add_task"]
    with pytest.raises(ToolError, match=r"There is no tool 'ecko'\. The tools are: echo, plan_add_task"):
        registry.get("ecko")
    with pytest.raises(ToolError, match="The tools are: none"):
        Registry.of([]).get("x")


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="two tools are called echo"):
        Registry.of([echo, echo])


# ---------------------------------------------------------------------------------------------- the plan

PLAN = {each.name: each for each in TOOLS}


async def on(plan: Plan, name: str, **input: Any) -> str:
    return await PLAN[name].run(context(plan), input)


async def test_the_model_works_on_the_plan() -> None:
    changes: list[str] = []

    def hear(change: PlanChange) -> None:
        plan.apply(change)
        changes.append(change.by)

    plan = Plan(hear)
    assert await on(plan, "plan_list") == "The plan is empty."
    assert await on(plan, "plan_add_task", task="read  it\nall") == (
        "Task 1 added: read it all.\n[ ] 1. read it all\n0 done, 0 failed, 1 pending"
    )
    await on(plan, "plan_add_task", task="compare")
    await on(plan, "plan_add_task", task="write")
    assert (await on(plan, "plan_mark_done", task_number=1)).startswith("Task 1 completed: read it all.\n[✓] 1.")
    failed = await on(plan, "plan_mark_failed", task_number=2, reason="no data")
    assert failed.splitlines()[2] == "[✗] 2. compare (no data)"
    assert failed.splitlines()[-1] == "1 done, 1 failed, 1 pending"
    assert await on(plan, "plan_set_tasks", tasks=["a", "b"]) == (
        "The plan now has 2 tasks.\n[ ] 1. a\n[ ] 2. b\n0 done, 0 failed, 2 pending"
    )
    assert await on(plan, "plan_clear") == "The plan is cleared, 2 tasks removed.\nThe plan is empty."
    assert changes == ["main"] * 7


def test_only_looking_at_the_plan_is_read_only() -> None:
    assert [t.name for t in TOOLS if t.read_only] == ["plan_list"]
    assert all(isinstance(t, FunctionTool) and t.description and not t.needs_approval for t in TOOLS)


def test_a_tool_of_the_programs_own_may_be_named_in_the_configuration(tmp_path: Path) -> None:
    @tool
    async def echo(ctx: ToolContext, text: str) -> str:
        """Say it again."""
        return text

    (tmp_path / "config.yaml").write_text("chains: {default: {model: offline, tools: [todo, echo]}}")
    found = load_settings(config=tmp_path / "config.yaml", environ={}, cwd=tmp_path)
    chosen, groups = found.chain(), tool_groups(found)
    assert "plan_list" in [each.name for each in configured_tools(found, chosen, [echo], groups)]
    with pytest.raises(ConfigError, match="there is no tool or group 'echo'"):
        configured_tools(found, chosen, (), groups)


def test_a_change_of_one_tools_schema_leaves_others_alone() -> None:
    @tool
    async def one(ctx: ToolContext, path: str) -> str:
        """One."""
        return path

    @tool
    async def other(ctx: ToolContext, path: str) -> str:
        """Another."""
        return path

    one.input_schema["properties"]["path"]["description"] = "Where."
    assert other.input_schema["properties"]["path"] == {"type": "string"}
