"""Runs tool calls. Each call has one result, whatever the tool does, so a tool never ends a run.

An unknown tool, invalid input, a timeout and any exception of the tool become an error result of one sentence. Only a
cancellation of the call by chain itself is raised again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import trio

from chain.errors import ToolError
from chain.messages import ToolCall, ToolResult
from chain.tools.registry import Registry
from chain.tools.tool import FunctionTool, Preview, Previewing, Tool, ToolContext, ToolOutput

NO_OUTPUT = "(no output)"
MAX_TIMES = 10
"""The maximum total time of a call that extends its time limit (``ToolContext.extend``), in multiples of the limit."""


@dataclass(frozen=True, slots=True)
class ToolLimits:
    """The limits of every tool call: the timeout in seconds, and the characters of a result."""

    timeout_s: float = 60.0
    result_limit: int = 30_000


def tool_for(registry: Registry, call: ToolCall) -> Tool:
    """Return the tool of a call. Raise ``ToolError`` if the tool is missing or the input does not fit its schema."""
    tool = registry.get(call.name)
    try:
        tool.check(call.input)
    except ToolError:
        raise
    except BaseException as error:
        raise ToolError(failure_message(tool.name, error)) from error
    return tool


async def preview(tool: Tool, call: ToolCall, context: ToolContext, limits: ToolLimits) -> Preview | None:
    """Return the preview of a call, which the user approves or denies; ``None`` if the call needs no approval.

    If the tool cannot preview calls, the preview shows the call's input. Raise ``ToolError`` if the call would fail.
    """
    if not tool.needs_approval:
        return None
    if not can_preview(tool):
        shown = json.dumps(dict(call.input), indent=2, ensure_ascii=False)
        return Preview(shown if call.input else "", "", shown)
    assert isinstance(tool, Previewing)
    try:
        with trio.move_on_after(limits.timeout_s):
            return await tool.preview(context, call.input)
        raise ToolError(f"{tool.name} was not run: its preview took longer than {limits.timeout_s:g} s.")
    except ToolError:
        raise
    except BaseException as error:
        if contains_cancelled(error):
            await trio.lowlevel.checkpoint_if_cancelled()  # raises if the chain cancelled the call
        raise ToolError(failure_message(tool.name, error)) from error


def can_preview(tool: Tool) -> bool:
    """Return whether a tool can preview a call. Without a preview, patterns of allowances have no subject to match."""
    if isinstance(tool, FunctionTool):
        return tool.previewer is not None
    return isinstance(tool, Previewing)


async def run(
    tool: Tool, call: ToolCall, context: ToolContext, limits: ToolLimits, scope: trio.CancelScope | None = None
) -> ToolResult:
    """Run a tool and return its result, which is an error result if the tool fails or exceeds its time limit.

    The tool runs in ``scope``, or a new scope for ``None``. The scope's deadline is set to the tool's time limit.
    """
    seconds = limits.timeout_s if tool.timeout_s is None else tool.timeout_s
    scope = scope or trio.CancelScope()
    output: object = None
    error: BaseException | None = None
    latest = math.inf

    def extend() -> None:
        # While a question is open, the deadline is infinite and stays so.
        scope.deadline = max(scope.deadline, min(trio.current_time() + seconds, latest))

    try:
        scope.deadline = trio.current_time() + seconds
        latest = trio.current_time() + MAX_TIMES * seconds
        with scope:
            output = await tool.run(replace(context, extend=extend), call.input)
    except BaseException as raised:  # noqa: BLE001 - whatever a tool raises is its result
        if contains_cancelled(raised):
            # If the chain cancelled the call, this raises the cancellation again, without other exceptions of the tool.
            # A ``Cancelled`` from any other source is an ordinary error.
            await trio.lowlevel.checkpoint_if_cancelled()
        error = raised
    if scope.cancelled_caught:
        times = f"{MAX_TIMES} times " if scope.deadline >= latest else ""
        why = f"{tool.name} was stopped after {times}{seconds:g} s, its time limit; it may have had effects."
        return error_result(call, why)
    if error is not None:
        return error_result(call, truncate_middle(failure_message(tool.name, error), limits.result_limit))
    text = _plain_text(output.text if isinstance(output, ToolOutput) else output)
    if not isinstance(text, str):
        return error_result(call, f"{tool.name} returned {type(text).__name__} instead of text.")
    if not isinstance(output, ToolOutput):
        output = ToolOutput(text)
    text = truncate_middle(text, limits.result_limit)
    result = error_result(call, text) if output.is_error else ToolResult(call.id, text if text.strip() else NO_OUTPUT)
    return replace(result, images=output.images, exit_code=output.exit_code, summary=output.summary)


def error_result(call: ToolCall, text: str) -> ToolResult:
    """Return an error result for a call, with this text."""
    return ToolResult(call.id, text if text.strip() else "The tool failed without an error message.", is_error=True)


def truncate_middle(text: str, limit: int) -> str:
    """Return a text, without its middle if it is longer than ``limit`` characters.

    A note in place of the middle says how many characters were left out. The note itself is not counted.
    """
    if len(text) <= limit:
        return text
    tail = limit // 2
    marker = f"\n[{len(text) - limit:,} of {len(text):,} characters left out]\n"
    return f"{text[: limit - tail]}{marker}{text[len(text) - tail :]}"


def _plain_text(text: object) -> object:
    """Convert an instance of a subclass of ``str``, whose methods may differ, to ``str``. Return any other object."""
    return str.__str__(text) if isinstance(text, str) else text


def exceptions_in(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception or, if it is a group, the exceptions in the group and in all groups nested in it."""
    left = [error]
    while left:
        error = left.pop()
        if isinstance(error, BaseExceptionGroup):
            left += reversed(error.exceptions)
        else:
            yield error


def contains_cancelled(error: BaseException) -> bool:
    """Return whether an exception is ``trio.Cancelled``, or a group that contains a ``trio.Cancelled`` at any depth."""
    return any(isinstance(each, trio.Cancelled) for each in exceptions_in(error))


def failure_message(name: str, error: BaseException) -> str:
    """Return an error message for an exception that a tool or a model raised.

    For a ``ToolError``, the message is the error's own text. For any other exception, it begins with ``name``.
    """
    leaves = list(exceptions_in(error))
    error = next((each for each in leaves if not isinstance(each, trio.Cancelled)), leaves[0])
    try:
        text = str.__str__(str(error))
    except BaseException:  # noqa: BLE001 - even this is a tool's own code
        text = ""
    if isinstance(error, ToolError):
        return text
    first = (text.strip().splitlines() or [""])[0]
    return f"{name} failed: {type(error).__name__}{': ' + first if first else ''}"
