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


def write(folder: Path, name: str, text: str) -> None:
    commands = folder / "home/.config/chain/commands"
    commands.mkdir(parents=True, exist_ok=True)
    (commands / f"{name}.md").write_text(text)


async def test_a_command_starts_a_run_with_its_text(tmp_path: Path) -> None:
    write(tmp_path, "review", "---\ndescription: Reviews\n---\n!stop @$1")
    async with commands_of(tmp_path) as (session, commands):
        (session.chain.workspace / "a.txt").write_text("the content of a")
        assert commands.run("/REVIEW a.txt") == CommandAnswer()
        await session.chain.wait_idle()
        assert session.chain.state.first_query.strip() == "!stop @a.txt"
        assert "the content of a" in session.sent()
        assert commands.run("/help").text.splitlines()[-2:] == ["Your commands:", "  /review  Reviews"]
        assert "/review" in commands.completions("/re")
        assert ("/review ", "/review [...]", "Reviews") in commands.menu("/re")


async def test_during_a_run_the_text_is_a_line(tmp_path: Path) -> None:
    write(tmp_path, "halt", "---\nmodel: other\n---\nstop")
    async with busy_commands(tmp_path) as (session, commands):
        answer = commands.run("/halt")
        await wait_all_tasks_blocked()
        assert [accepted.line.message for accepted in session.chain.lines.waiting] == ["stop"]
        assert answer.text == "The active run keeps its model; other answers only runs of /halt."
    assert session.chain.runs.last_status == "done"


async def test_a_commands_model_answers_only_its_runs(tmp_path: Path) -> None:
    write(tmp_path, "other", "---\nmodel: other\n---\nWho are you?")
    write(tmp_path, "keyless", "---\nmodel: keyless\n---\nWho are you?")
    async with commands_of(tmp_path) as (session, commands):
        for text, reply in (
            ("/other", "I am the other model."),
            ("/other again", "I am the other model."),
            ("hello", "Noted."),
        ):
            if text.startswith("/"):
                assert commands.run(text).text.startswith("other (")
            else:
                session.chain.submit(text)
            await session.chain.wait_idle()
            assert session.chain.state.replies == [reply]
        assert "no API key" in commands.run("/keyless").text
        assert not session.chain.is_running
    chosen = [(each["name"], each["once"]) for each in session.records if each["type"] == "model"]
    assert chosen == [("other rules", True)] * 2


@pytest.mark.parametrize("model", ["", "---\nmodel: other\n---\n"])
async def test_a_labelled_image_is_attached(tmp_path: Path, model: str) -> None:
    write(tmp_path, "look", f"{model}Look at $ARGUMENTS")
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    async with commands_of(tmp_path) as (session, commands):
        attachments = Attachments()
        commands.custom.attach = attachments.expand
        attached = await attachments.attach_file(tmp_path / "a.png")
        commands.run(f"/look {attached.label}")
        await session.chain.wait_idle()
    assert [r["reason"] for r in session.records if r["type"] == "receipt"] == ["with a.png (PNG, 8 bytes)"]


async def test_a_file_is_read_again_at_each_use(tmp_path: Path) -> None:
    async with commands_of(tmp_path) as (session, commands):
        write(tmp_path, "late", "The text.")
        commands.run("/late")
        await session.chain.wait_idle()
        assert session.chain.state.first_query.strip() == "The text."
        (tmp_path / "home/.config/chain/commands/late.md").unlink()
        assert commands.run("/late").is_rejected


async def test_built_in_names_win_with_a_hint(tmp_path: Path) -> None:
    for name in ("status", "clear"):
        write(tmp_path, name, "Mine.")
    async with commands_of(tmp_path) as (_, commands):
        assert "nothing is running" in commands.run("/status").text
        assert [fault.partition(".md: ")[2] for fault in commands.custom.found.faults] == [
            f"/{name} is a built-in command; rename the file to use it" for name in ("clear", "status")
        ]


async def test_an_untrusted_command_of_the_folder_does_nothing(tmp_path: Path) -> None:
    async with commands_of(tmp_path) as (session, commands):
        folder = session.chain.workspace / ".chain/commands"
        folder.mkdir(parents=True)
        (folder / "ship.md").write_text("Ship it.")
        assert "not trusted" in commands.run("/ship").text
        assert "/ship" not in commands.completions("/")
        assert "not trusted" in commands.run("/help").text
        assert not session.chain.is_running


async def test_descriptions_tell_whose_a_command_is(tmp_path: Path) -> None:
    write(tmp_path, "mine", "Mine.")
    async with commands_of(tmp_path) as (session, commands):
        of_folder = CustomCommand("ship", session.chain.workspace / ".chain/commands/ship.md", "Ship it.")
        own = commands.custom.found.commands
        commands.custom.found = replace(commands.custom.found, commands=(*own, of_folder))
        assert [about for _, _, about in commands.custom.entries()] == ["a custom command", "a command of this folder"]


@pytest.mark.parametrize(
    ("arguments", "says"), [("x" * 60_000, ""), ("", "/twice needs an argument: its text is empty")]
)
async def test_an_unusable_text_is_refused(tmp_path: Path, arguments: str, says: str) -> None:
    write(tmp_path, "twice", "$ARGUMENTS $ARGUMENTS")
    async with commands_of(tmp_path) as (session, commands):
        answer = commands.run(f"/twice {arguments}")
        assert answer.text.startswith(says)
        assert answer.is_rejected == (not says)
        assert not session.chain.is_running
        reasons = [event.reason for event in session.of(events.LineRefused)]
        assert len(reasons) == (not says)
        assert all("the limit is 100,000" in reason for reason in reasons)


async def test_an_unusable_file_is_named_when_its_command_is_typed(tmp_path: Path) -> None:
    write(tmp_path, "torn", "---\ndescription: [torn\n---\nMine.")
    async with commands_of(tmp_path) as (_, commands):
        assert "torn.md:2: is not valid YAML" in commands.run("/Torn").text
        assert commands.run("/turn").is_rejected
