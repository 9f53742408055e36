"""One tool call to one result, whatever the tool does: a tool never ends a run.

An unknown tool, input that does not fit, a timeout, an exception: each becomes a result that says so in one sentence.
Only cancellation passes through.
"""

from __future__ import annotations

from dataclasses import dataclass

import trio

from chain.errors import ToolError
from chain.messages import ToolCall, ToolResult
from chain.tools import Registry, Tool, ToolContext

NO_OUTPUT = "(no output)"


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds for every call: seconds until a tool is stopped, characters of a result, tools that need no asking."""

    timeout_s: float = 60.0
    result_limit: int = 30_000
    allow: frozenset[str] = frozenset()


def find(registry: Registry, call: ToolCall, rules: Rules) -> Tool:
    """The tool of a call that may run, with input that fits. Raises ``ToolError``."""
    tool = registry.get(call.name)
    try:
        tool.check(call.input)
    except ToolError:
        raise
    except Exception as error:
        raise ToolError(_told(tool, error)) from error
    if tool.needs_approval and tool.name not in rules.allow:
        raise ToolError(f"{tool.name} needs approval, and nobody can be asked here; allow it with --allow {tool.name}.")
    return tool


async def run(tool: Tool, call: ToolCall, context: ToolContext, rules: Rules) -> ToolResult:
    """Run the tool and make its result."""
    seconds = rules.timeout_s if tool.timeout_s is None else tool.timeout_s
    try:
        with trio.move_on_after(seconds) as scope:
            text: object = await tool.run(context, call.input)
        if scope.cancelled_caught:
            return failed(
                call, f"{tool.name} was stopped after {seconds:g} s, its time limit; it may have had effects."
            )
        if not isinstance(text, str):
            return failed(call, f"{tool.name} gave back {type(text).__name__} instead of text.")
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a tool raises is its result
        return failed(call, shortened(_told(tool, error), rules.result_limit))
    except BaseExceptionGroup as group:
        # A task of the tool failed while the tool was cancelled. The scope that cancelled it must see nothing else, or
        # what is left of the group would end the run.
        cancelled, rest = group.split(trio.Cancelled)
        if cancelled is not None and (rest is None or isinstance(rest, Exception)):
            raise cancelled from None
        raise
    return ToolResult(call.id, shortened(text, rules.result_limit) if text.strip() else NO_OUTPUT)


def failed(call: ToolCall, why: str) -> ToolResult:
    """An error result."""
    return ToolResult(call.id, why if why.strip() else "The tool failed without saying why.", is_error=True)


def shortened(text: str, limit: int) -> str:
    """The text, cut to ``limit`` characters with a marker that says how much was left out."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n[{len(text) - limit:,} of {len(text):,} characters left out]"


def _told(tool: Tool, error: BaseException) -> str:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - even this is a tool's own code
        text = ""
    if isinstance(error, ToolError):
        return text
    first = (text.strip().splitlines() or [""])[0]
    return f"{tool.name} failed: {type(error).__name__}{': ' + first if first else ''}"
