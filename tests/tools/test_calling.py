"""A tool call has one result, whatever the tool does, and the run continues."""

import asyncio
import math
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from support.contexts import tool_context
from trio.testing import wait_all_tasks_blocked

from chain.errors import PlanError, ToolError
from chain.messages import ToolCall, ToolResult
from chain.tools import calling
from chain.tools.calling import ToolLimits, truncate_middle
from chain.tools.tool import Preview, Tool, ToolContext, tool

CALL = ToolCall("t1", "probe", {})
Body = Callable[[], Awaitable[Any]]


async def run_tool(probe: Tool, limits: ToolLimits | None = None) -> ToolResult:
    return await calling.run(probe, CALL, tool_context(), limits or ToolLimits())


async def run_body(body: Body, limits: ToolLimits | None = None, **options: Any) -> ToolResult:
    """Return the result of a tool called ``probe`` whose function awaits ``body``."""

    async def function(ctx: ToolContext) -> str:
        """Do this."""
        result: str = await body()
        return result

    return await run_tool(tool(name="probe", **options)(function), limits)


def error_result(text: str) -> ToolResult:
    return ToolResult("t1", text, is_error=True)


# ------------------------------------------------------------------------------------------------------------ results


RESULT_LIMIT = 100


class OddText(str):
    """A text whose own methods must not be called."""

    def strip(self, chars: str | None = None, /) -> str:
        raise ZeroDivisionError(chars)

    splitlines = strip  # type: ignore[assignment]
    __len__ = strip  # type: ignore[assignment]


RESULTS: dict[str, tuple[object, ToolResult]] = {
    "text": ("  3 files\n", ToolResult("t1", "  3 files\n")),
    "empty": ("", ToolResult("t1", "(no output)")),
    "blank": (" \n\t", ToolResult("t1", "(no output)")),
    "long": ("x" * 105, ToolResult("t1", "x" * 50 + "\n[5 of 105 characters left out]\n" + "x" * 50)),
    "subclass of str": (OddText("found"), ToolResult("t1", "found")),
    "None": (None, error_result("probe returned NoneType instead of text.")),
    "bytes": (b"x", error_result("probe returned bytes instead of text.")),
}


@pytest.mark.parametrize(("value", "result"), RESULTS.values(), ids=RESULTS)
async def test_returned_value_becomes_the_result(value: Any, result: ToolResult) -> None:
    async def body() -> Any:
        return value

    assert await run_body(body, ToolLimits(result_limit=RESULT_LIMIT)) == result


@given(st.text(max_size=30), st.integers(1, 30))
def test_long_text_keeps_its_head_and_tail(text: str, limit: int) -> None:
    tail_size = limit // 2
    head_size = limit - tail_size
    omitted = len(text) - limit
    note = f"\n[{omitted} of {len(text)} characters left out]\n"
    truncated = text[:head_size] + note + text[len(text) - tail_size :]
    assert truncate_middle(text, limit) == (truncated if omitted > 0 else text)


# -------------------------------------------------------------------------------------------------------- time limits


CONFIGURED_S = 60.0
LIMITS = {"no own limit": (None, CONFIGURED_S), "a shorter own limit": (5.0, 5.0), "a longer own limit": (90.0, 90.0)}


@pytest.mark.parametrize(("own_limit", "limit"), LIMITS.values(), ids=LIMITS)
async def test_tool_is_stopped_at_its_time_limit(
    autojump_clock: trio.testing.MockClock, own_limit: float | None, limit: float
) -> None:
    async def end_in_time() -> str:
        await trio.sleep(limit - 0.1)
        return "done"

    configured = ToolLimits(timeout_s=CONFIGURED_S)
    assert (await run_body(end_in_time, configured, timeout_s=own_limit)).text == "done"
    start = trio.current_time()
    result = await run_body(trio.sleep_forever, configured, timeout_s=own_limit)
    assert trio.current_time() - start == pytest.approx(limit)
    assert result == error_result(f"probe was stopped after {limit:g} s, its time limit; it may have had effects.")


EXTENSIONS = {"none": (0, 3, "after 3 s"), "4": (4, 4 + 3, "after 3 s"), "100": (100, 10 * 3, "after 10 times 3 s")}


@pytest.mark.parametrize(("extensions", "stopped_after_s", "message"), EXTENSIONS.values(), ids=EXTENSIONS)
async def test_tool_can_extend_its_limit_tenfold(
    autojump_clock: trio.testing.MockClock, extensions: int, stopped_after_s: float, message: str
) -> None:
    @tool
    async def probe(ctx: ToolContext) -> str:
        """Extend the limit each second."""
        for _ in range(extensions):
            await trio.sleep(1)
            ctx.extend()
        await trio.sleep_forever()

    start = trio.current_time()
    result = await run_tool(probe, ToolLimits(timeout_s=3))
    assert trio.current_time() - start == stopped_after_s
    assert message in result.text


async def test_extending_leaves_a_paused_deadline_paused(autojump_clock: trio.testing.MockClock) -> None:
    scope = trio.CancelScope()

    @tool
    async def probe(ctx: ToolContext) -> str:
        """Extend the limit while a question is open."""
        scope.deadline = math.inf  # the question opens
        await trio.sleep(100)
        ctx.extend()
        await trio.sleep(100)
        scope.deadline = trio.current_time() + 1  # the question is answered
        ctx.extend()
        return "done"

    assert (await calling.run(probe, CALL, tool_context(), ToolLimits(timeout_s=3), scope)).text == "done"


# --------------------------------------------------------------------------------------------------------- exceptions


class ToolErrorWithOddText(ToolError):
    def __str__(self) -> str:
        return OddText("No such thing.")


class LibraryExit(BaseException):
    """An exception that is no ``Exception``, as some libraries raise."""


class ExitWhenPrinted(BaseException):
    def __str__(self) -> str:
        raise SystemExit(5)


def deeply_nested(error: BaseException) -> BaseException:
    for _ in range(5 * sys.getrecursionlimit()):
        error = BaseExceptionGroup("one", [error])
    return error


async def raise_alone(error: BaseException) -> None:
    raise error


async def raise_in_nursery(error: BaseException) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(raise_alone, error)


async def raise_in_cancelled_nursery(error: BaseException) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        nursery.cancel_scope.cancel()
        raise error


ERRORS: list[tuple[BaseException, str]] = [
    (ToolError("There is no file x."), "There is no file x."),
    (PlanError("There is no task 9."), "There is no task 9."),
    (ExceptionGroup("one", [ToolError("There is no file y.")]), "There is no file y."),
    (ToolErrorWithOddText(), "No such thing."),
    (ToolError(" "), "The tool failed without an error message."),
    (ToolError("no: " + "x" * 100), f"no: {'x' * 46}\n[4 of 104 characters left out]\n{'x' * 50}"),
    (ValueError("no such column"), "probe failed: ValueError: no such column"),
    (ValueError("\n first row\nsecond row"), "probe failed: ValueError: first row"),
    (RuntimeError(), "probe failed: RuntimeError"),
    (trio.TooSlowError(), "probe failed: TooSlowError"),
    (ExceptionGroup("a", [ExceptionGroup("b", [OSError("gone")]), ValueError()]), "probe failed: OSError: gone"),
    (deeply_nested(LibraryExit("deep")), "probe failed: LibraryExit: deep"),
]


@pytest.mark.parametrize(("error", "message"), ERRORS, ids=[message for _, message in ERRORS])
async def test_exception_becomes_one_sentence(error: BaseException, message: str) -> None:
    limits = ToolLimits(result_limit=RESULT_LIMIT)
    assert await run_body(partial(raise_alone, error), limits) == error_result(message)


with_each_base_exception = pytest.mark.parametrize(
    "error",
    [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError(), LibraryExit(), ExitWhenPrinted()],
    ids=lambda error: type(error).__name__,
)


@with_each_base_exception
@pytest.mark.parametrize("raise_it", [raise_alone, raise_in_nursery, raise_in_cancelled_nursery])
async def test_no_exception_ends_the_run(
    error: BaseException, raise_it: Callable[[BaseException], Awaitable[None]]
) -> None:
    result = await run_body(partial(raise_it, error))
    assert result.is_error
    assert result.text.startswith(f"probe failed: {type(error).__name__}")


@with_each_base_exception
async def test_result_names_the_first_error_of_a_group(error: BaseException) -> None:
    result = await run_body(partial(raise_alone, BaseExceptionGroup("some", [ValueError("no"), error])))
    assert result.is_error
    assert result.text.startswith("probe failed: ValueError")


async def test_preview_that_fails_says_why() -> None:
    async def fail(ctx: ToolContext) -> Preview | None:
        raise ZeroDivisionError("by design")

    @tool(needs_approval=True, preview=fail)
    async def probe(ctx: ToolContext) -> str:
        """Do this."""
        return ""

    with pytest.raises(ToolError, match="probe failed: ZeroDivisionError: by design"):
        await calling.preview(probe, CALL, tool_context(), ToolLimits())


# ------------------------------------------------------------------------------------------------------- cancellation


async def fail_in_cleanup() -> str:
    """Wait in a nursery, one of whose tasks fails when it is cancelled."""

    async def child() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("could not clean up")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(child)
        nursery.start_soon(trio.sleep_forever)
    return "never"


async def add_errors_to_cancellation() -> str:
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            await trio.sleep_forever()
    except BaseExceptionGroup as cancelled:
        raise BaseExceptionGroup("all", [cancelled, LibraryExit(), SystemExit(3)]) from None
    return "never"


@pytest.mark.parametrize("body", [trio.sleep_forever, fail_in_cleanup, add_errors_to_cancellation])
async def test_cancellation_of_the_call_passes_through_alone(body: Body) -> None:
    has_result = False
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            async def interrupt() -> None:
                await wait_all_tasks_blocked()
                scope.cancel()

            nursery.start_soon(interrupt)
            await run_body(body)
            has_result = True
    assert scope.cancelled_caught
    assert not has_result


async def test_failure_at_the_time_limit_is_an_error(autojump_clock: trio.testing.MockClock) -> None:
    assert (await run_body(fail_in_cleanup)).text.startswith("probe")


async def test_cancellation_from_elsewhere_is_an_error() -> None:
    foreign: BaseException | None = None
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as cancelled:
            foreign = cancelled
            raise
    assert foreign is not None
    result = await run_body(partial(raise_alone, foreign))
    assert result.is_error
    assert result.text.startswith("probe failed: Cancelled")
