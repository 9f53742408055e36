"""The workload of the measured programs: the prompt, the tool, the replies, and a session in a folder of its own.

Each reply has a few words and calls one small tool; the last one calls none. The history grows by two messages in each
iteration, in the chain and in the bare loop.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from chain import events
from chain.app.open import build_model, open_chain
from chain.app.prompt_files import text_of_prompt
from chain.chain import Chain
from chain.config import yamlfile
from chain.config.load import Settings, load_settings
from chain.session.feed import Feed
from chain.tools.tool import Tool, ToolContext, tool
from cli.event_rows import json_row

PROMPTS = Path(__file__).parents[2] / "prompts"
MODEL = "claude-sonnet-5-5"
KEY = "test-key"
MAX_TOKENS = 8192
SYSTEM = text_of_prompt(yamlfile.read(PROMPTS / "system.yaml"))
QUERY = "Look up the price of every part, one after the other, and add them up."

WARM_UP = 5
"""Iterations before the measured ones, so that the first use of a client is not measured."""


def price_of(part: str) -> str:
    """Return the result of the tool: a new string each time, like that of a real tool."""
    return f"{part}: 17.30 a piece, 15.90 from ten pieces on; 4 are in stock."


@tool(read_only=True)
async def price(ctx: ToolContext, part: str) -> str:
    """Look up what a part costs."""
    return price_of(part)


def replies(iterations: int, **more: Any) -> list[dict[str, Any]]:
    """Return the double's steps for this many model calls, each with the fields ``more``."""
    words = {"type": "text", "text": "The next part."}
    call = {"type": "tool_use", "name": price.name, "input": {"part": "hinge 40x40"}}
    last = {"type": "text", "text": "All parts together cost 1730.00."}
    return [
        {"type": "say", "blocks": [words, call], "pings": False, "times": iterations - 1, **more},
        {"type": "say", "blocks": [last], "pings": False, **more},
    ]


def settings(folder: Path, url: str, iterations: int) -> Settings:
    """Return the settings of a chain with the shipped prompts that uses the double. Write them to a file first."""
    model = {"provider": "anthropic", "model": MODEL, "api_key": KEY, "base_url": url, "max_tokens": MAX_TOKENS}
    chosen = {
        "model": "double",
        "system_prompt": str(PROMPTS / "system.yaml"),
        "interruption_prompt": str(PROMPTS / "interruption_handler.yaml"),
        "tools": [],
        "max_iterations": iterations,
    }
    raw = {"models": {"default": "double", "definitions": {"double": model}}, "chains": {"default": chosen}}
    file = folder / "config.yaml"
    file.write_text(json.dumps(raw), encoding="utf-8")
    return load_settings(config=file, environ={}, cwd=folder, flags={})


@asynccontextmanager
async def ready_chain(folder: Path, url: str, iterations: int, tool: Tool = price) -> AsyncIterator[Chain]:
    """Open a chain as a front end does: with a client, a journal on the disk, a reader of the feed, and a listener."""
    chosen = settings(folder, url, iterations)
    model = build_model(chosen.model("double"))
    await model.prepare()
    async with trio.open_nursery() as nursery:
        opened = open_chain(chosen, workspace=folder, state=folder / "state", tools=[tool], model=model)
        async with opened as chain:
            chain.listen(_must_end_well)
            nursery.start_soon(_print_nowhere, chain.feed())
            yield chain


async def run(chain: Chain) -> None:
    chain.start(QUERY)
    await chain.wait_idle()


def _must_end_well(event: events.Event) -> None:
    if isinstance(event, events.Result) and event.status != "done":
        raise RuntimeError(f"the run ended as {event.status}: {event.result}")


async def _print_nowhere(feed: Feed) -> None:
    """Write every event like ``--output-format stream-json``."""
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:  # noqa: ASYNC230 - it never blocks
        while batch := await feed.batch():
            for event in batch:
                nowhere.write(json_row(event))
