"""The ``chain`` program with tools that wait for the test, or misbehave."""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import suppress
from pathlib import Path

import trio

from chain.tools.tool import ToolContext, tool
from cli.main import main

BURST_S = 0.01


class Bug(BaseException):
    """A bug of chain."""


class Trap(dict[str, object]):
    """A dictionary that raises ``Bug`` when an item is set."""

    def __setitem__(self, key: str, value: object) -> None:
        raise Bug("a mistake of our own")


@tool(timeout_s=1000)
async def gate(ctx: ToolContext, name: str) -> str:
    """Wait for a write to the pipe of this name, and return its text."""
    path = Path(os.environ["GATES"]) / name
    with suppress(FileExistsError):
        os.mkfifo(path)
    return await trio.to_thread.run_sync(path.read_text, abandon_on_cancel=True)


@tool(timeout_s=1000)
async def flood(ctx: ToolContext, lines: int, per_second: int) -> str:
    """Report many lines."""
    start = trio.current_time()
    for n in range(1, lines + 1):
        ctx.progress(f"flood line {n}\n")
        if trio.current_time() - start < n / per_second - BURST_S:
            await trio.sleep(BURST_S)
    return f"{lines} lines of flood"


@tool(timeout_s=1000)
async def hang(ctx: ToolContext) -> str:
    """Wait for ever."""
    ctx.progress("hanging now")
    await trio.sleep_forever()


@tool(timeout_s=1000)
async def stone(ctx: ToolContext) -> str:
    """Ignore every cancellation."""
    with trio.CancelScope(shield=True):
        await trio.sleep_forever()


@tool
async def breaks(ctx: ToolContext) -> str:
    """Break the program."""
    # An exception raised here would only be the tool's result.
    ctx.steering.run.step.answered = Trap()  # type: ignore[attr-defined]
    return "broken"


TOOLS = (gate, flood, hang, stone, breaks)


def disable(*limits: str) -> None:
    """Disable time limits of the program, each of which is named as ``module.NAME``."""
    for limit in limits:
        module, _, name = limit.rpartition(".")
        setattr(importlib.import_module(module), name, 1_000_000.0)


if __name__ == "__main__":
    disable(*os.environ.get("DISABLED_LIMITS", "").split())
    sys.exit(main(sys.argv[1:], tools=TOOLS))
