"""A tool call has one result, whatever the tool does, and the run continues."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from support.steered import tool_context
from trio.testing import wait_all_tasks_blocked

from chain.errors import PlanError, ToolError
from chain.messages import ToolCall, ToolResult
from chain.tools import calling
from chain.tools.calling import ToolLimits, truncate_middle
from chain.tools.tool import Preview, Tool, ToolContext, tool

CALL = ToolCall("t1", "probe", {})


async def run(probe: Tool, limits: ToolLimits | None = None) -> ToolResult:
    return await calling.run(probe, CALL, tool_context(), limits or ToolLimits())


async def call(body: Callable[[], Awaitable[Any]], limits: ToolLimits | None = None, **how: Any) -> ToolResult:
    """Return the result of a tool called ``probe`` that does this."""

    async def function(ctx: ToolContext) -> str:
        """Do this."""
        result: str = await body()
        return result

    return await run(tool(name="probe", **how)(function), limits)


def raising(error: BaseException) -> Callable[[], Awaitable[str]]:
    async def body() -> str:
        raise error

    return body


def failure(text: str) -> ToolResult:
    return ToolResult("t1", text, is_error=True)


# ------------------------------------------------------------------------------------------------------------ results


class OddText(str):
    """A text with methods of its own."""

    def strip(self, chars: str | None = None, /) -> str:
        raise ZeroDivisionError(chars)

    splitlines = strip  # type: ignore[assignment]
    __len__ = strip  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("value", "result"),
    [
        ("  3 files\n", ToolResult("t1", "  3 files\n")),
        ("", ToolResult("t1", "(no output)")),
        (" \n\t", ToolResult("t1", "(no output)")),
        ("x" * 105, ToolResult("t1", "x" * 50 + "\n[5 of 105 characters left out]\n" + "x" * 50)),
        (OddText("found"), ToolResult("t1", "found")),
        (None, failure("probe returned NoneType instead of text.")),
        (b"x", failure("probe returned bytes instead of text.")),
    ],
    ids=["text", "empty", "blank", "long", "subclass of str", "None", "bytes"],
)
async def test_returned_value_becomes_the_result(value: Any, result: ToolResult) -> None:
    async def body() -> Any:
        return value

    assert await call(body, ToolLimits(result_limit=100)) == result


@given(st.text(max_size=30), st.integers(1, 30))
def test_long_text_keeps_its_head_and_tail(text: str, limit: int) -> None:
    head, tail = text[: -(-limit // 2)], text[len(text) - limit // 2 :]
    cut = f"{head}\n[{len(text) - limit} of {len(text)} characters left out]\n{tail}"
    assert truncate_middle(text, limit) == (text if len(text) <= limit else cut)


# -------------------------------------------------------------------------------------------------------- time limits


@pytest.mark.parametrize(("own", "limit"), [(None, 60.0), (5.0, 5.0), (90.0, 90.0)])
async def test_tool_is_stopped_at_its_time_limit(
    autojump_clock: trio.testing.MockClock, own: float | None, limit: float
) -> None:
    async def body() -> str:
        await trio.sleep(limit - 0.1)
        return "done"

    assert (await call(body, ToolLimits(timeout_s=60), timeout_s=own)).text == "done"
    begun = trio.current_time()
    result = await call(trio.sleep_forever, ToolLimits(timeout_s=60), timeout_s=own)
    assert trio.current_time() - begun == pytest.approx(limit)
    assert result == failure(f"probe was stopped after {limit:g} s, its time limit; it may have had effects.")


@pytest.mark.parametrize(
    ("reports", "seconds", "said"), [(0, 3, "after 3 s"), (4, 7, "after 3 s"), (100, 30, "after 10 times 3 s")]
)
async def test_progress_restarts_the_limit_ten_times(
    autojump_clock: trio.testing.MockClock, reports: int, seconds: float, said: str
) -> None:
    @tool
    async def probe(ctx: ToolContext) -> str:
        """Report each second."""
        for _ in range(reports):
            await trio.sleep(1)
            ctx.extend()
        await trio.sleep_forever()

    begun = trio.current_time()
    result = await run(probe, ToolLimits(timeout_s=3))
    assert trio.current_time() - begun == seconds
    assert said in result.text


async def test_progress_leaves_a_paused_deadline_paused(autojump_clock: trio.testing.MockClock) -> None:
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

    assert (await calling.run(probe, CALL, tool_context(), ToolLimits(timeout_s=3), limit)).text == "done"


# --------------------------------------------------------------------------------------------------------- exceptions


class OddToolError(ToolError):
    def __str__(self) -> str:
        return OddText("No such thing.")


class Odd(BaseException):
    """An exception that a library may raise."""


class Exiting(BaseException):
    def __str__(self) -> str:
        raise SystemExit(5)


def nested(error: BaseException, levels: int) -> BaseException:
    for _ in range(levels):
        error = BaseExceptionGroup("one", [error])
    return error


ERRORS: list[tuple[BaseException, str]] = [
    (ToolError("There is no file x."), "There is no file x."),
    (PlanError("There is no task 9."), "There is no task 9."),
    (ExceptionGroup("one", [ToolError("There is no file x.")]), "There is no file x."),
    (OddToolError(), "No such thing."),
    (ToolError(" "), "The tool failed without an error message."),
    (ToolError("no: " + "x" * 100), f"no: {'x' * 46}\n[4 of 104 characters left out]\n{'x' * 50}"),
    (ValueError("no such column"), "probe failed: ValueError: no such column"),
    (ValueError("\n first row\nsecond row"), "probe failed: ValueError: first row"),
    (RuntimeError(), "probe failed: RuntimeError"),
    (trio.TooSlowError(), "probe failed: TooSlowError"),
    (ExceptionGroup("a", [ExceptionGroup("b", [OSError("gone")]), ValueError()]), "probe failed: OSError: gone"),
    (nested(Odd("deep"), 5_000), "probe failed: Odd: deep"),
]


@pytest.mark.parametrize(("error", "text"), ERRORS, ids=[text for _, text in ERRORS])
async def test_exception_becomes_one_sentence(error: BaseException, text: str) -> None:
    assert await call(raising(error), ToolLimits(result_limit=100)) == failure(text)


@pytest.mark.parametrize(
    "error",
    [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError(), Odd("odd"), Exiting()],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("where", ["alone", "in a nursery", "after another error", "with a cancellation"])
async def test_no_exception_ends_the_run(error: BaseException, where: str) -> None:
    async def body() -> str:
        match where:
            case "alone":
                raise error
            case "in a nursery":
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(raising(error))
            case "after another error":
                raise BaseExceptionGroup("some", [ValueError("no"), error])
            case _:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(trio.sleep_forever)
                    nursery.cancel_scope.cancel()
                    raise error
        return ""

    result = await call(body)
    assert result.is_error
    kind = "ValueError" if where == "after another error" else type(error).__name__
    assert result.text.startswith(f"probe failed: {kind}")


async def test_preview_that_fails_says_why() -> None:
    async def broken(ctx: ToolContext) -> Preview | None:
        raise ZeroDivisionError("by design")

    @tool(needs_approval=True, preview=broken)
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


async def raise_more() -> str:
    """Raise other exceptions together with the cancellation."""
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            await trio.sleep_forever()
    except BaseExceptionGroup as cancelled:
        raise BaseExceptionGroup("all", [cancelled, Odd("odd"), SystemExit(3)]) from None
    return ""


@pytest.mark.parametrize("body", [trio.sleep_forever, fail_in_cleanup, raise_more])
async def test_cancellation_of_the_call_passes_through_alone(body: Callable[[], Awaitable[Any]]) -> None:
    results = list[ToolResult]()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            async def interrupt() -> None:
                await wait_all_tasks_blocked()
                scope.cancel()

            nursery.start_soon(interrupt)
            results.append(await call(body))
    assert scope.cancelled_caught
    assert results == []


async def test_failure_at_the_time_limit_is_an_error(autojump_clock: trio.testing.MockClock) -> None:
    assert (await call(fail_in_cleanup)).text.startswith("probe")


async def test_cancellation_from_elsewhere_is_an_error() -> None:
    caught = list[trio.Cancelled]()
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as cancelled:
            caught.append(cancelled)
            raise

    result = await call(raising(caught[0]))
    assert (result.is_error, result.text[:23]) == (True, "probe failed: Cancelled")
