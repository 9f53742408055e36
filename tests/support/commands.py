"""Slash commands of a real session in memory, whose settings have four models."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from chain.config.commands import find_commands
from chain.config.load import Settings, load_settings
from chain.tools.tool import Tool, ToolContext, tool
from cli.terminal.slash import CommandAnswer, Commands

from .gate import Gate, finish_run, start_run
from .sessions import Session, open_session

RULES = """
rules:
  - {when: {user: '^Do the task$', step: 1}, text: Looking., tools: [{name: wait, input: {}}]}
  - {when: {tool: wait}, text: The answer.}
  - {text: Noted.}
"""


@tool(needs_approval=True)
async def danger(ctx: ToolContext) -> str:
    """Do something that cannot be undone!"""
    return "done"


def four_model_settings(folder: Path, *, chain_model: str = "test", handler: bool = True) -> Settings:
    """Return settings with two scripted models, a model with an API key, and one without."""
    (folder / "other.yaml").write_text("name: other rules\nrules: [{text: I am the other model.}]")
    (folder / "handler.yaml").write_text("messages: [{role: user, content: 'NOW: ${message}'}]")
    definitions = {
        "test": {"provider": "scripted", "script": "other.yaml"},
        "other": {"provider": "scripted", "script": "other.yaml", "max_attempts": 7},
        "keyless": {"provider": "anthropic", "model": "some-model", "api_key": "${ANTHROPIC_API_KEY}"},
        "keyed": {"provider": "anthropic", "model": "some-model", "api_key": "secret"},
    }
    chain = {"model": chain_model, "system_prompt": None, "tools": ["todo"]}
    chain |= {"interruption_prompt": "handler.yaml" if handler else None}
    raw = {"models": {"default": "test", "definitions": definitions}, "chains": {"default": chain}}
    (folder / "config.yaml").write_text(json.dumps({**raw, "tools": {"allow": ["danger"]}}))
    return load_settings(config=folder / "config.yaml", environ={"HOME": str(folder / "home")}, cwd=folder, flags={})


@asynccontextmanager
async def commands_of(
    folder: Path, *tools: Tool, rules: str = RULES, **more: Any
) -> AsyncIterator[tuple[Session, Commands]]:
    """Yield a session and its slash commands, which get the arguments ``more``."""
    settings = four_model_settings(folder)
    async with open_session(rules, tools=[*tools, danger], settings=settings, interactive=True) as session:
        find = partial(find_commands, settings, session.chain.workspace, folder / "state")
        yield session, Commands(session.chain, settings, find_custom=find, **more)


@asynccontextmanager
async def busy_commands(folder: Path, *lines: str) -> AsyncIterator[tuple[Session, Commands]]:
    """Yield a session whose tool runs while these lines are queued. The tool returns at the end of the block."""
    gate = Gate()
    async with commands_of(folder, gate.tool) as (session, commands):
        await start_run(session, gate, *lines)
        yield session, commands
        await finish_run(session, gate, max_iterations=100)


def answer_rows(answer: CommandAnswer) -> list[str]:
    """Return the rows of an answer that only shows text."""
    assert not answer.is_rejected, answer
    assert answer.edit is None
    return answer.text.split("\n")
