"""``chain demo``: interruptions from end to end, offline, on a small product table in a temporary folder."""

from __future__ import annotations

import argparse
import functools
import json
import os
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from chain.config.load import Settings, defaults_folder, load_settings
from chain.errors import UserError
from cli.arguments import Place
from cli.command_output import renderer
from cli.ending import LEAVING, at_immediate_exit, received_signals
from cli.terminal import startup
from cli.terminal.invocation import Invocation

if TYPE_CHECKING:
    from chain import Tool, ToolContext, ToolOutput
    from cli.show.renderer import Renderer

DEMO_QUERY = "Analyze product data for SKU123"
LINE = "@iteration 3 todo: add verify SKU data"

TOOL_S = 2.0
"""The pause of each file tool in seconds, if the demonstration has a prompt, so that the user can type while a tool
runs. The six calls and four replies take about 20 seconds."""

ALONE = "this plays by itself; run chain demo at a terminal for a prompt to type into"
NOT_READ = "standard input is not read"

Pause: TypeAlias = Callable[[], Awaitable[object]]

_FILES = {
    "products.csv": """\
sku,name,price,stock,rating
SKU121,Enamel mug,8.50,240,4.1
SKU122,Steel bottle,19.90,75,4.6
SKU123,Travel kettle,34.00,12,3.8
SKU124,Camp stove,59.00,31,4.4
""",
    "orders.csv": """\
date,sku,pieces
2026-10-02,SKU122,40
2026-10-09,SKU123,25
2026-10-23,SKU123,30
2026-11-06,SKU124,10
""",
    "notes/SKU122.md": """\
# SKU122 Steel bottle

- Sells best in sets of two.
""",
    "notes/SKU123.md": """\
# SKU123 Travel kettle

- Returns rose in October: lids that do not close.
- The supplier promised a new lid for December.
""",
    "notes/suppliers.md": """\
# Suppliers

- Hearth Ltd makes SKU121, SKU122, SKU123 and SKU124; orders take six weeks.
""",
}


def run(args: argparse.Namespace) -> int:
    """Serve a prompt at a terminal, or play the demonstration on standard output. Return the exit code."""
    from cli.input.stdin import is_piped

    if os.isatty(0) and os.isatty(1):
        return serve_prompt(no_color=args.no_color, ascii=args.ascii)
    return play(renderer(args, fd=1), has_input=is_piped(0))


def play(renderer: Renderer, *, has_input: bool = False) -> int:
    """Play the demonstration on standard output and return the exit code.

    With ``has_input``, show a note that standard input is not read.
    """
    import trio

    async def work() -> int:
        from chain.app.open import open_chain
        from cli import headless
        from cli.headless import HeadlessTask
        from cli.input.moments import parse_moment

        # The folder must be removed even if a signal arrives before or after the run.
        with received_signals(*LEAVING), _product_folder() as folder:
            # The built-in configuration, not the user's: a demonstration is the same everywhere.
            config, flags = defaults_folder() / "config.yaml", {"model": "offline"}
            settings = load_settings(config=config, environ={}, cwd=folder, flags=flags)
            async with open_chain(settings, workspace=folder / "products", state=folder / "state") as chain:
                notes = (ALONE, *([NOT_READ] if has_input else []))
                job = HeadlessTask(DEMO_QUERY, (parse_moment(LINE, strict=True),), notes=notes, is_kept=False)
                return await headless.run_headless(chain, job, renderer, stderr=1)

    return trio.run(work)


def serve_prompt(
    *, no_color: bool = False, ascii: bool = False, pause: Pause | None = None, rules: Path | None = None
) -> int:
    """Serve a prompt for the demonstration and return the exit code.

    ``pause`` is awaited before each call of a file tool, by default for ``TOOL_S``. ``rules`` is a file that replaces
    the rules of the offline model.
    """

    @contextmanager
    def prepare() -> Iterator[Invocation]:
        import trio

        from chain.app.toolbox import tool_groups
        from cli.show.tour import Tour

        with _product_folder() as folder:
            settings = _settings_at(folder, rules)
            wait = pause or functools.partial(trio.sleep, TOOL_S)
            tools = [_slow_down(tool, wait) for tool in tool_groups(settings)["files"]]
            yield Invocation(
                settings, Place(folder / "products"), folder / "state", tools, query=DEMO_QUERY, tour=Tour()
            )

    return startup.run_at_terminal(prepare, history=None, no_color=no_color, ascii=ascii)


@contextmanager
def _product_folder() -> Iterator[Path]:
    """Yield a temporary folder with the product table. Raise ``UserError`` if it cannot be created.

    The folder is removed when the block ends, also if a signal other than SIGKILL ends the process.
    """
    with ExitStack() as stack:
        try:
            # A cancelled tool may still write, which must not keep the program from ending.
            temporary = tempfile.TemporaryDirectory(prefix="chain-demo-", ignore_cleanup_errors=True)
            folder = Path(stack.enter_context(temporary))
            stack.enter_context(at_immediate_exit(temporary.cleanup))
            for name, text in _FILES.items():
                path = folder / "products" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
        except OSError as error:
            why = error.strerror or str(error)
            raise UserError(f"the demo needs a temporary folder: {why}; set TMPDIR to one with room") from None
        yield folder


def _settings_at(folder: Path, rules: Path | None) -> Settings:
    """Return the built-in configuration with the offline model, without file tools and without tools that run commands.

    The caller adds slower file tools.
    """
    definitions = {"offline": {"script": str(rules)}} if rules else {}
    models = {"default": "offline", "definitions": definitions}
    config = {"models": models, "chains": {"default": {"tools": ["todo", "edit", "ask"]}}}
    path = folder / "config.yaml"
    path.write_text(json.dumps(config), encoding="utf-8")
    return load_settings(config=path, environ={}, cwd=folder, flags={})


def _slow_down(tool: Tool, pause: Pause) -> Tool:
    """Return a tool that pauses before each call, and never runs in parallel, so that there are calls to skip."""
    from chain import FunctionTool

    assert isinstance(tool, FunctionTool)
    function = tool.function

    @functools.wraps(function)
    async def after_a_pause(context: ToolContext, **input: object) -> str | ToolOutput:
        await pause()
        return await function(context, **input)

    return replace(tool, function=after_a_pause, read_only=False)
