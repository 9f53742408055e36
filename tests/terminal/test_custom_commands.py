"""Custom commands at a prompt, on a real chain."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from support import Session, open_session
from support.gate import Gate
from trio.testing import wait_all_tasks_blocked

from chain import events
from chain.config.commands import CustomCommand, find_commands
from chain.config.load import Settings, load_settings
from chain.tools.tool import Tool
from cli.terminal.attachments import Attachments
from cli.terminal.slash import Commands

RULES = """
rules:
  - {when: {user: 'wait', step: 1}, text: Looking., tools: [{name: wait, input: {}}]}
  - {text: The usual model.}
"""


def write(folder: Path, name: str, text: str) -> None:
    commands = folder / "home/.config/chain/commands"
    commands.mkdir(parents=True, exist_ok=True)
    (commands / f"{name}.md").write_text(text)


def configured(folder: Path) -> Settings:
    (folder / "other.yaml").write_text("name: other rules\nrules: [{text: The other model.}]")
    definitions = {
        "test": {"provider": "scripted", "script": "other.yaml"},
        "other": {"provider": "scripted", "script": "other.yaml"},
        "keyless": {"provider": "anthropic", "model": "some-model"},
    }
    chain = {"model": "test", "system_prompt": None, "interruption_prompt": None, "tools": []}
    raw = {"models": {"default": "test", "definitions": definitions}, "chains": {"default": chain}}
    (folder / "config.yaml").write_text(json.dumps(raw))
    return load_settings(config=folder / "config.yaml", environ={"HOME": str(folder / "home")}, cwd=folder)


@asynccontextmanager
async def opened(folder: Path, *tools: Tool) -> AsyncIterator[tuple[Session, Commands]]:
    settings = configured(folder)
    async with open_session(RULES, tools=[*tools], use=settings, interactive=True) as session:
        find = partial(find_commands, settings, session.chain.workspace, folder / "state")
        yield session, Commands(session.chain, settings, find_custom=find)


async def test_a_command_starts_a_run_with_its_expanded_text(tmp_path: Path) -> None:
    write(tmp_path, "review", "---\ndescription: Reviews\n---\n!stop $1")
    async with opened(tmp_path) as (session, commands):
        answer = commands.run("/REVIEW a.py")
        await session.chain.wait_idle()
        assert (answer.text, answer.keeps) == ("", False)
        assert session.chain.state.first_query.strip() == "!stop a.py"
        assert session.chain.state.replies == ["The usual model."]
        assert commands.run("/help").text.splitlines()[-2:] == ["Your commands:", "  /review  Reviews"]
        assert "/review" in commands.completions("/re")
        assert ("/review ", "/review [...]", "Reviews") in commands.menu("/re")


async def test_while_a_run_is_active_the_text_is_a_line(tmp_path: Path) -> None:
    write(tmp_path, "halt", "---\nmodel: other\n---\nstop")
    gate = Gate()
    async with opened(tmp_path, gate.tool) as (session, commands):
        session.chain.submit("please wait")
        await gate.started.wait()
        answer = commands.run("/halt")
        await wait_all_tasks_blocked()
        assert [accepted.line.message for accepted in session.chain.lines.waiting] == ["stop"]
        assert answer.text == "The active run keeps its model; other answers only runs of /halt."
        gate.open.set()
        await session.chain.wait_idle()
        assert session.chain.runs.last_status == "done"
    assert [each["kind"] for each in session.records if each["type"] == "line"] == ["redirect", "verbatim"]


async def test_the_model_of_a_command_holds_for_its_run_only(tmp_path: Path) -> None:
    write(tmp_path, "other", "---\nmodel: other\n---\nWho are you?")
    async with opened(tmp_path) as (session, commands):
        replies = []
        for text in ("/other", "/other again", "hello"):
            if text.startswith("/"):
                assert commands.run(text).text.startswith("other (")
            else:
                session.chain.submit(text)
            await session.chain.wait_idle()
            replies += session.chain.state.replies
        assert replies == ["The other model.", "The other model.", "The usual model."]
        assert session.chain.init.model == session.chain.state.model
    asked = [(each["name"], each["once"]) for each in session.records if each["type"] == "model"]
    assert asked == [("other rules", True)] * 2


@pytest.mark.parametrize("model", ["", "---\nmodel: other\n---\n"])
async def test_an_attached_image_goes_along(tmp_path: Path, model: str) -> None:
    write(tmp_path, "look", f"{model}Look at $ARGUMENTS")
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    async with opened(tmp_path) as (session, commands):
        attachments = Attachments()
        commands.custom.attach = attachments.expand
        attached = await attachments.attach_file(tmp_path / "a.png")
        commands.run(f"/look {attached.label}")
        await session.chain.wait_idle()
    assert [r["reason"] for r in session.records if r["type"] == "receipt"] == ["with a.png (PNG, 8 bytes)"]


async def test_a_command_whose_model_has_no_key_starts_nothing(tmp_path: Path) -> None:
    write(tmp_path, "other", "---\nmodel: keyless\n---\nWho are you?")
    async with opened(tmp_path) as (session, commands):
        assert "no API key" in commands.run("/other").text
        assert not session.chain.is_running


async def test_a_file_is_read_again_when_its_command_is_used(tmp_path: Path) -> None:
    async with opened(tmp_path) as (session, commands):
        write(tmp_path, "late", "The text.")
        commands.run("/late")
        await session.chain.wait_idle()
        assert session.chain.state.first_query.strip() == "The text."
        (tmp_path / "home/.config/chain/commands/late.md").unlink()
        assert commands.run("/late").keeps


async def test_a_built_in_command_wins_with_a_hint(tmp_path: Path) -> None:
    write(tmp_path, "status", "Mine.")
    write(tmp_path, "clear", "Mine.")
    async with opened(tmp_path) as (_, commands):
        assert "nothing is running" in commands.run("/status").text
        assert [fault.partition(".md: ")[2] for fault in commands.custom.found.faults] == [
            f"/{name} is a built-in command; rename the file to use it" for name in ("clear", "status")
        ]


async def test_a_command_of_the_folder_that_is_not_trusted_does_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as (session, commands):
        folder = session.chain.workspace / ".chain/commands"
        folder.mkdir(parents=True)
        (folder / "ship.md").write_text("Ship it.")
        assert "not trusted" in commands.run("/ship").text
        assert "/ship" not in commands.completions("/")
        assert not session.chain.is_running


async def test_a_command_of_the_folder_is_not_said_to_be_the_users_own(tmp_path: Path) -> None:
    write(tmp_path, "mine", "Mine.")
    async with opened(tmp_path) as (session, commands):
        file = session.chain.workspace / ".chain/commands/ship.md"
        own = commands.custom.found.commands
        commands.custom.found = replace(commands.custom.found, commands=(*own, CustomCommand("ship", file, "Ship it.")))
        assert [about for _, _, about in commands.custom.entries()] == [
            "a custom command",
            "a command of this folder",
        ]


async def test_a_text_that_is_too_long_is_refused_and_stays(tmp_path: Path) -> None:
    write(tmp_path, "long", "$ARGUMENTS $ARGUMENTS")
    async with opened(tmp_path) as (session, commands):
        answer = commands.run("/long " + "x" * 60_000)
        assert answer.keeps
        assert not session.chain.is_running
        refused = [event for event in session.events if isinstance(event, events.LineRefused)]
        assert "the limit is 100,000" in refused[0].reason


async def test_a_file_that_the_text_names_goes_along(tmp_path: Path) -> None:
    write(tmp_path, "look", "Look at @$1 please")
    async with opened(tmp_path) as (session, commands):
        (session.chain.workspace / "a.txt").write_text("the content of a")
        commands.run("/look a.txt")
        await session.chain.wait_idle()
        assert "the content of a" in session.sent()
