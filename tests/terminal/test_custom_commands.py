"""Custom commands at a prompt, on a real chain."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.commands import busy_commands, commands_of
from trio.testing import wait_all_tasks_blocked

from chain import events
from chain.config.commands import CustomCommand
from cli.terminal.attachments import Attachments
from cli.terminal.slash import CommandAnswer


def write_command(folder: Path, name: str, text: str) -> None:
    """Write a custom command of the user."""
    commands = folder / "home/.config/chain/commands"
    commands.mkdir(parents=True, exist_ok=True)
    (commands / f"{name}.md").write_text(text)


async def test_a_command_starts_a_run_with_its_text(tmp_path: Path) -> None:
    write_command(tmp_path, "review", "!stop @$1")
    async with commands_of(tmp_path) as (session, commands):
        (session.chain.workspace / "a.txt").write_text("the content of a")
        assert commands.run("/REVIEW a.txt") == CommandAnswer()
        await session.chain.wait_idle()
        assert session.chain.state.first_query.strip() == "!stop @a.txt", "a command's text is not parsed as a line"
        assert "the content of a" in session.sent()


async def test_help_and_the_menu_offer_custom_commands(tmp_path: Path) -> None:
    write_command(tmp_path, "review", "---\ndescription: Reviews\n---\nReview it.")
    async with commands_of(tmp_path) as (_, commands):
        assert commands.run("/help").text.endswith("\nYour commands:\n  /review  Reviews")
        assert "/review" in commands.completions("/re")
        assert ("/review ", "/review [...]", "Reviews") in commands.menu("/re")


async def test_a_command_during_a_run_queues_its_text(tmp_path: Path) -> None:
    write_command(tmp_path, "halt", "---\nmodel: other\n---\nstop")
    async with busy_commands(tmp_path) as (session, commands):
        answer = commands.run("/halt")
        await wait_all_tasks_blocked()
        assert [accepted.line.message for accepted in session.chain.lines.waiting] == ["stop"]
        assert answer.text == "The active run keeps its model; other answers only runs of /halt."
    assert session.chain.runs.last_status == "done"


async def test_a_commands_model_answers_only_its_runs(tmp_path: Path) -> None:
    write_command(tmp_path, "other", "---\nmodel: other\n---\nWho are you?")
    async with commands_of(tmp_path) as (session, commands):
        for command in ("/other", "/other again"):
            assert commands.run(command).text.startswith("other (")
            await session.chain.wait_idle()
            assert session.chain.state.replies == ["I am the other model."]
        await session.run("hello")
        assert session.chain.state.replies == ["Noted."]
    uses = [(record["name"], record["once"]) for record in session.records if record["type"] == "model"]
    assert uses == [("other rules", True)] * 2


async def test_a_command_for_a_keyless_model_is_refused(tmp_path: Path) -> None:
    write_command(tmp_path, "keyless", "---\nmodel: keyless\n---\nWho are you?")
    async with commands_of(tmp_path) as (session, commands):
        assert "no API key" in commands.run("/keyless").text
        assert not session.chain.is_running


@pytest.mark.parametrize("header", ["", "---\nmodel: other\n---\n"], ids=["the session's model", "another model"])
async def test_a_labelled_image_is_attached(tmp_path: Path, header: str) -> None:
    write_command(tmp_path, "look", f"{header}Look at $ARGUMENTS")
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    async with commands_of(tmp_path) as (session, commands):
        attachments = Attachments()
        commands.custom.attach = attachments.expand
        attached = await attachments.attach_file(tmp_path / "a.png")
        commands.run(f"/look {attached.label}")
        await session.chain.wait_idle()
    reasons = [record["reason"] for record in session.records if record["type"] == "receipt"]
    assert reasons == ["with a.png (PNG, 8 bytes)"]


async def test_a_file_is_read_again_at_each_use(tmp_path: Path) -> None:
    async with commands_of(tmp_path) as (session, commands):
        write_command(tmp_path, "late", "The text.")
        assert not commands.run("/late").is_rejected
        await session.chain.wait_idle()
        (tmp_path / "home/.config/chain/commands/late.md").unlink()
        assert commands.run("/late").is_rejected


async def test_built_in_names_win_with_a_hint(tmp_path: Path) -> None:
    for name in ("status", "clear"):
        write_command(tmp_path, name, "Mine.")
    async with commands_of(tmp_path) as (_, commands):
        assert "nothing is running" in commands.run("/status").text
        for name, fault in zip(("clear", "status"), commands.custom.found.faults, strict=True):
            assert fault.endswith(f"{name}.md: /{name} is a built-in command; rename the file to use it")


async def test_an_untrusted_command_of_the_folder_does_nothing(tmp_path: Path) -> None:
    async with commands_of(tmp_path) as (session, commands):
        folder = session.chain.workspace / ".chain/commands"
        folder.mkdir(parents=True)
        (folder / "ship.md").write_text("Ship it.")
        assert "not trusted" in commands.run("/ship").text
        assert "/ship" not in commands.completions("/")
        assert "not trusted" in commands.run("/help").text
        assert not session.chain.is_running


async def test_missing_descriptions_name_the_commands_owner(tmp_path: Path) -> None:
    write_command(tmp_path, "mine", "Mine.")
    async with commands_of(tmp_path) as (session, commands):
        of_folder = CustomCommand("ship", session.chain.workspace / ".chain/commands/ship.md", "Ship it.")
        found = commands.custom.found
        commands.custom.found = replace(found, commands=(*found.commands, of_folder))
        descriptions = [about for _, _, about in commands.custom.entries()]
        assert descriptions == ["a custom command", "a command of this folder"]


async def test_an_empty_text_is_an_error(tmp_path: Path) -> None:
    write_command(tmp_path, "twice", "$ARGUMENTS $ARGUMENTS")
    async with commands_of(tmp_path) as (session, commands):
        assert commands.run("/twice").text.startswith("/twice needs an argument: its text is empty")
        assert not session.chain.is_running
        assert session.of(events.LineRefused) == [], "nothing was submitted"


async def test_a_text_over_the_limit_is_refused(tmp_path: Path) -> None:
    write_command(tmp_path, "twice", "$ARGUMENTS $ARGUMENTS")
    async with commands_of(tmp_path) as (session, commands):
        assert commands.run(f"/twice {'x' * 60_000}").is_rejected, "twice that is over the limit"
        assert not session.chain.is_running
        (refusal,) = session.of(events.LineRefused)
        assert "the limit is 100,000" in refusal.reason


async def test_a_typed_command_reports_its_broken_file(tmp_path: Path) -> None:
    write_command(tmp_path, "torn", "---\ndescription: [torn\n---\nMine.")
    async with commands_of(tmp_path) as (_, commands):
        assert "torn.md:2: is not valid YAML" in commands.run("/Torn").text
        assert commands.run("/turn").is_rejected
