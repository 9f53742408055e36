"""The ``chain`` program with tools for the tests of its terminal: some wait until they are let go, some misbehave."""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import suppress
from pathlib import Path

import trio

from chain.tools.tool import ToolContext, tool
from cli.main import main

WILD = (
    "\x1b[2J\x1b[5;5Hmoved \x1b]0;title-of-a-tool\x07\x1b]52;c;Y2xpcGJvYXJk\x1b\\clip "
    "\x1b[?1049h\x1b[?25l\x1b[5;10r\x1bc\x9b2Jerased \x1bPdevice\x1b\\ \x07bell \x08\x08back \x1b[31mred\x1b[0m\n"
    "wide 日本語 한국어, emoji 🎉 👩‍👩‍👧 ⚠️, combining e\u0301 n\u0303, turned \u202eback\u202c, tab\there\n"
    + "long "
    * 2000
    + "end-of-the-long-line\n"
    "last wild row"
)
"""What a terminal would obey instead of showing, what it counts differently, and 10,000 signs in a row."""

SHOWN_OF_WILD = (
    "moved",
    "clip",
    "erased",
    "bell",
    "red",
    "wide 日本語 한국어, emoji 🎉",
    "end-of-the-long-line",
    "last wild row",
)
BURST_S = 0.01


class Bug(BaseException):
    """A mistake of our own, which nothing expects."""


class Trap(dict[str, object]):
    """What the program cannot know of."""

    def __setitem__(self, key: str, value: object) -> None:
        raise Bug("a mistake of our own")


@tool(timeout_s=1000)
async def gate(ctx: ToolContext, name: str) -> str:
    """Wait until somebody writes into the pipe of that name, and return what it was."""
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


@tool
async def wild(ctx: ToolContext) -> str:
    """Report and return what is bad for a terminal."""
    ctx.progress(WILD)
    await trio.lowlevel.checkpoint()
    return WILD


@tool
async def fails(ctx: ToolContext) -> str:
    """Fail."""
    await trio.lowlevel.checkpoint()
    raise OSError("the tool is made to fail")


@tool(timeout_s=1000)
async def hang(ctx: ToolContext) -> str:
    """Wait for ever."""
    ctx.progress("hanging now")
    await trio.sleep_forever()


@tool(timeout_s=1000)
async def stone(ctx: ToolContext) -> str:
    """Hear nothing at all."""
    with trio.CancelScope(shield=True):
        await trio.sleep_forever()


@tool
async def breaks(ctx: ToolContext) -> str:
    """Break the program."""
    # Not by raising it here, which would be the tool's result.
    ctx.steering.run.step.answered = Trap()  # type: ignore[attr-defined]
    return "broken"


TOOLS = (gate, flood, wild, fails, hang, stone, breaks)


def lift(*limits: str) -> None:
    """Make times of the program, each named by its module and its name there, so long that they never pass."""
    for limit in limits:
        module, _, name = limit.rpartition(".")
        setattr(importlib.import_module(module), name, 1_000_000.0)


if __name__ == "__main__":
    lift(*os.environ.get("NEVER", "").split())
    sys.exit(main(sys.argv[1:], tools=TOOLS))
