"""One tool call, one result: whatever a tool does, the model gets one clear answer and the run goes on."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from support.steered import Steered
from trio.testing import wait_all_tasks_blocked

from chain.errors import PlanError, ToolError
from chain.messages import ToolCall, ToolResult
from chain.plan import Plan
from chain.tools import calling
from chain.tools.calling import ToolLimits, truncate_middle
from chain.tools.tool import FunctionTool, Tool, ToolContext, tool


def context() -> ToolContext:
    return ToolContext(Path("/"), Plan(), "t1", Steered(), lambda text: None)


def named(name: str, body: Callable[[], Awaitable[Any]], **how: Any) -> Tool:
    """A tool that does this and takes no input."""

    async def function(ctx: ToolContext) -> str:
        """Do this."""
        result: str = await body()
        return result

    return tool(name=name, **how)(function)


async def called(body: Callable[[], Awaitable[Any]], rules: ToolLimits | None = None, **how: Any) -> ToolResult:
    """The result of a tool called ``probe`` that does this."""
    call = ToolCall("t1", "probe", {})
    return await calling.run(named("probe", body, **how), call, context(), rules or ToolLimits())


def raising(error: BaseException) -> Callable[[], Awaitable[str]]:
    async def body() -> str:
        raise error

    return body


def giving(value: Any) -> Callable[[], Awaitable[Any]]:
    async def body() -> Any:
        return value

    return body


# ------------------------------------------------------------------------------------------------------ good results


async def test_the_text_of_a_tool_is_its_result() -> None:
    assert await called(giving("  3 files\n")) == ToolResult("t1", "  3 files\n")


@pytest.mark.parametrize("text", ["", " \n\t"])
async def test_a_tool_that_says_nothing_has_a_result_that_says_so(text: str) -> None:
    assert await called(giving(text)) == ToolResult("t1", "(no output)")


async def test_a_long_result_is_cut_with_a_marker_that_says_how_much_is_missing() -> None:
    result = await called(giving("x" * 30_500), ToolLimits(result_limit=30_000))

    assert result == ToolResult("t1", "x" * 15_000 + "\n[500 of 30,500 characters left out]\n" + "x" * 15_000)


@given(st.text(max_size=30), st.integers(1, 30))
def test_a_text_is_cut_only_when_it_is_too_long_and_between_characters(text: str, limit: int) -> None:
    cut = truncate_middle(text, limit)

    if len(text) <= limit:
        assert cut == text
    else:
        head, tail = text[: -(-limit // 2)], text[len(text) - limit // 2 :]
        assert cut == f"{head}\n[{len(text) - limit} of {len(text)} characters left out]\n{tail}"
        assert cut.encode(errors="surrogatepass").decode(errors="surrogatepass") == cut


async def test_an_error_that_is_too_long_is_cut_as_well() -> None:
    result = await called(raising(ToolError("no: " + "x" * 5000)), ToolLimits(result_limit=100))

    assert result.is_error
    assert result.text.startswith("no: xxx")
    assert len(result.text) < 200


@pytest.mark.parametrize(("value", "type"), [(None, "NoneType"), (5, "int"), (b"x", "bytes"), (["x"], "list")])
async def test_what_is_no_text_is_an_error_that_names_the_tool(value: Any, type: str) -> None:
    assert await called(giving(value)) == ToolResult("t1", f"probe returned {type} instead of text.", is_error=True)


# ------------------------------------------------------------------------------------------------------- time limits


@pytest.mark.parametrize(
    ("own", "general", "limit"), [(None, 60.0, 60.0), (5.0, 60.0, 5.0), (90.0, 60.0, 90.0), (0.5, 60.0, 0.5)]
)
async def test_a_tool_is_stopped_at_its_own_limit_or_else_at_the_general_one(
    autojump_clock: trio.testing.MockClock, own: float | None, general: float, limit: float
) -> None:
    begun = trio.current_time()

    result = await called(trio.sleep_forever, ToolLimits(timeout_s=general), timeout_s=own)

    assert trio.current_time() - begun == limit
    assert result.is_error
    assert result.text == f"probe was stopped after {limit:g} s, its time limit; it may have had effects."


@pytest.mark.parametrize(
    ("reports", "ended_after", "said"),
    [(0, 3, "after 3 s"), (4, 7, "after 3 s"), (100, 30, "after 10 times 3 s")],
)
async def test_a_report_of_progress_begins_the_time_anew_up_to_ten_times(
    autojump_clock: trio.testing.MockClock, reports: int, ended_after: float, said: str
) -> None:
    @tool
    async def probe(ctx: ToolContext) -> str:
        """Report each second."""
        for _ in range(reports):
            await trio.sleep(1)
            ctx.extend()
        await trio.sleep_forever()

    begun = trio.current_time()
    result = await calling.run(probe, ToolCall("t1", "probe", {}), context(), ToolLimits(timeout_s=3))
    assert trio.current_time() - begun == ended_after
    assert said in result.text


async def test_a_report_of_progress_does_not_end_the_time_that_stands_still(
    autojump_clock: trio.testing.MockClock,
) -> None:
    limit = trio.CancelScope()

    @tool
    async def probe(ctx: ToolContext) -> str:
        """Report while a question is open."""
        limit.deadline = math.inf
        await trio.sleep(100)
        ctx.extend()
        await trio.sleep(100)
        limit.deadline = trio.current_time() + 1
        ctx.extend()
        return "done"

    result = await calling.run(probe, ToolCall("t1", "probe", {}), context(), ToolLimits(timeout_s=3), limit)
    assert result.text == "done"


async def test_a_tool_that_is_done_in_time_is_not_stopped(autojump_clock: trio.testing.MockClock) -> None:
    async def body() -> str:
        await trio.sleep(59.9)
        return "done"

    assert await called(body, ToolLimits(timeout_s=60)) == ToolResult("t1", "done")


async def test_what_a_tool_started_in_a_nursery_ends_with_its_time(autojump_clock: trio.testing.MockClock) -> None:
    ended = list[str]()

    async def child() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append("child")

    async def body() -> str:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child)
        return "never"

    result = await called(body)

    assert "time limit" in result.text
    assert ended == ["child"]


async def test_a_time_limit_of_the_tools_own_making_is_an_exception_like_any_other(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def body() -> str:
        with trio.fail_after(1):
            await trio.sleep_forever()

    assert await called(body) == ToolResult("t1", "probe failed: TooSlowError", is_error=True)


# -------------------------------------------------------------------------------------------------------- exceptions


@pytest.mark.parametrize("error", [ToolError("There is no file x."), PlanError("There is no file x.")])
async def test_a_tool_says_in_its_own_words_why_it_cannot(error: ToolError) -> None:
    assert await called(raising(error)) == ToolResult("t1", "There is no file x.", is_error=True)


async def test_a_tool_that_does_not_say_why_it_cannot_still_has_a_result_with_text() -> None:
    result = await called(raising(ToolError(" ")))

    assert result.is_error
    assert result.text.strip()


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no such column"), "probe failed: ValueError: no such column"),
        (ValueError("\n first row\nsecond row"), "probe failed: ValueError: first row"),
        (RuntimeError(), "probe failed: RuntimeError"),
        (KeyError("sku"), "probe failed: KeyError: 'sku'"),
        (ExceptionGroup("several", [ValueError("no such column")]), "probe failed: ValueError: no such column"),
        (
            ExceptionGroup("outer", [ExceptionGroup("inner", [OSError("gone")]), ValueError("x")]),
            "probe failed: OSError: gone",
        ),
    ],
)
async def test_any_other_exception_is_told_in_one_sentence(error: Exception, text: str) -> None:
    assert await called(raising(error)) == ToolResult("t1", text, is_error=True)


async def test_a_tool_error_in_a_nursery_of_a_tool_is_told_in_its_own_words() -> None:
    async def body() -> str:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(raising(ToolError("There is no file x.")))
        return "never"

    assert await called(body) == ToolResult("t1", "There is no file x.", is_error=True)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


async def test_an_exception_that_cannot_be_put_into_words_is_still_a_result() -> None:
    result = await called(raising(Unspeakable()))

    assert result.is_error
    assert "Unspeakable" in result.text


async def test_input_that_does_not_fit_is_an_error_that_names_what_is_wrong() -> None:
    ran = list[int]()

    @tool
    async def count(ctx: ToolContext, upto: int) -> str:
        """Count."""
        ran.append(upto)
        return str(upto)

    async def result(**input: Any) -> ToolResult:
        return await calling.run(count, ToolCall("t1", "count", input), context(), ToolLimits())

    for wrong in ({}, {"upto": "5"}, {"upto": 5, "from": 1}):
        refused = await result(**wrong)
        assert refused.is_error
        assert "input of count does not fit" in refused.text
    assert ran == []
    assert await result(upto=5) == ToolResult("t1", "5")


async def test_a_function_that_is_not_async_is_an_error_and_no_crash() -> None:
    def function(ctx: ToolContext) -> Any:
        return "text"

    result = await calling.run(
        FunctionTool(function, "probe", "Do this."), ToolCall("t1", "probe", {}), context(), ToolLimits()
    )

    assert result.is_error
    assert result.text.startswith("probe failed: TypeError")


# ------------------------------------------------------------------------------------------------------ cancellation


async def test_cancellation_passes_through() -> None:
    ended = list[str]()

    async def body() -> str:
        try:
            await trio.sleep_forever()
        finally:
            ended.append("cleaned up")

    async with trio.open_nursery() as nursery:

        async def run() -> None:
            await called(body)
            ended.append("gave a result")

        nursery.start_soon(run)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()

    assert ended == ["cleaned up"]


async def failing_as_it_is_taken_down() -> str:
    """A tool with a nursery, one of whose tasks fails as it is cancelled."""

    async def child() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("could not clean up")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(child)
        nursery.start_soon(trio.sleep_forever)
    return "never"


async def test_a_tool_that_fails_while_it_is_cancelled_breaks_nothing() -> None:
    """An interrupt reaches it."""
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            async def interrupt() -> None:
                await wait_all_tasks_blocked()
                scope.cancel()

            nursery.start_soon(interrupt)
            await called(failing_as_it_is_taken_down)
            await trio.lowlevel.checkpoint()

    assert scope.cancelled_caught


async def test_a_tool_that_fails_as_its_time_is_up_has_an_error_for_a_result(
    autojump_clock: trio.testing.MockClock,
) -> None:
    result = await called(failing_as_it_is_taken_down)

    assert result.is_error
    assert result.text.startswith("probe")


class Odd(BaseException):
    """What a library may raise."""


class Exiting(BaseException):
    def __str__(self) -> str:
        raise SystemExit(5)


ODD = [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError(), Odd("odd"), Exiting()]


@pytest.mark.parametrize("error", ODD, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("where", ["alone", "in a nursery", "in a group", "beside a cancellation"])
async def test_whatever_a_tool_raises_is_its_result(error: BaseException, where: str) -> None:
    async def body() -> str:
        match where:
            case "alone":
                raise error
            case "in a nursery":
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(raising(error))
            case "in a group":
                raise BaseExceptionGroup("some", [ValueError("no"), error])
            case _:
                # One of the tool's tasks is cancelled by a scope of the tool's own and fails as it ends.
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(trio.sleep_forever)
                    nursery.cancel_scope.cancel()
                    raise error
        return ""

    result = await called(body)
    assert result.is_error
    kind = "ValueError" if where == "in a group" else type(error).__name__
    assert result.text.startswith(f"probe failed: {kind}")


async def test_groups_may_be_deeper_than_the_stack() -> None:
    error: BaseException = Odd("deep")
    for _ in range(5_000):
        error = BaseExceptionGroup("one", [error])
    result = await called(raising(error))
    assert result.text == "probe failed: Odd: deep"


async def test_a_text_of_a_class_of_its_own_is_taken_as_text() -> None:
    class Text(str):
        __slots__ = ()

        def strip(self, chars: str | None = None, /) -> str:
            raise ZeroDivisionError(chars)

        splitlines = strip  # type: ignore[assignment]
        __len__ = strip  # type: ignore[assignment]

    class Told(ToolError):
        def __str__(self) -> str:
            return Text("No such thing.")

    async def body() -> str:
        return Text("found")

    assert await called(body) == ToolResult("t1", "found")
    assert await called(raising(Told())) == ToolResult("t1", "No such thing.", is_error=True)


async def test_a_cancellation_from_elsewhere_does_not_end_the_run() -> None:
    kept: list[trio.Cancelled] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as cancelled:
            kept.append(cancelled)
            raise

    result = await called(raising(kept[0]))
    assert (result.is_error, result.text[:23]) == (True, "probe failed: Cancelled")


async def test_only_the_cancellation_passes_through_whatever_comes_with_it() -> None:
    async def body() -> str:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                await trio.sleep_forever()
        except BaseExceptionGroup as cancelled:
            raise BaseExceptionGroup("all", [cancelled, Odd("odd"), SystemExit(3)]) from None
        return ""

    with trio.CancelScope() as scope:
        scope.cancel()
        await called(body)
    assert scope.cancelled_caught


@pytest.mark.parametrize("said", [b"bytes", 5, None])
async def test_progress_that_is_no_text_is_the_tools_mistake(said: Any) -> None:
    heard: list[str] = []
    call = ToolCall("t1", "probe", {})

    @tool(name="probe")
    async def probe(ctx: ToolContext) -> str:
        """Say it."""
        ctx.progress(said)
        return "said"

    result = await calling.run(probe, call, ToolContext(Path("/"), Plan(), "t1", Steered(), heard.append), ToolLimits())
    assert (result.is_error, heard) == (True, [])
    assert "progress must be text, not" in result.text
