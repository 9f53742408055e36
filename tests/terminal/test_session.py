"""A session at a terminal, with a screen that only remembers what it is shown."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
from support import open_session, settings
from support.crashes import left
from support.disks import MemoryFile
from support.gate import Gate
from trio.testing import wait_all_tasks_blocked

from chain import events
from chain.session.resume import LoadedSession
from cli.terminal.display import Display
from cli.terminal.invocation import TerminalStyle
from cli.terminal.slash import CommandAnswer, Commands
from cli.terminal.terminal_session import TerminalSession

RULES = """
rules:
  - {when: {user: '^Do the task$', step: 1}, text: Looking., tools: [{name: wait, input: {}}]}
  - {text: Noted.}
"""


class Shown:
    """A screen 80 columns wide. ``rows`` are those that it was shown, ``tail`` what may still change."""

    has_keys = True
    width = 80

    def __init__(self) -> None:
        self.rows: list[str] = []
        self.tail = ""
        self.refreshed = trio.Event()
        """Set at the next drawing of the toolbar."""

    def show(self, rows: Sequence[str], tail: str = "") -> None:
        self.rows += rows
        self.tail = tail

    def ask(self, question: str | None, keys: str = "") -> None: ...

    def refresh(self) -> None:
        self.refreshed.set()
        self.refreshed = trio.Event()

    async def shown(self) -> None: ...


class Owner:
    """A program that has nothing else to do."""

    def give_back(self, text: str) -> None: ...

    def mark_unsent(self, text: str) -> None: ...

    def carry_out(self, command: str, answer: CommandAnswer) -> None: ...


@asynccontextmanager
async def at_terminal(
    max_iterations: int = 20, *, file: MemoryFile | None = None, resume: LoadedSession | None = None
) -> AsyncIterator[tuple[TerminalSession, Shown, Gate]]:
    """A session whose tool waits at the gate."""
    gate, screen, use = Gate(), Shown(), settings(max_iterations=max_iterations)
    opened = open_session(RULES, tools=[gate.tool], interactive=True, use=use, file=file, resume=resume)
    async with opened as session, trio.open_nursery() as nursery:
        display = Display(screen, TerminalStyle(color=False, ascii=False), None, None)  # type: ignore[arg-type]
        commands = Commands(session.chain, session.use)
        terminal = TerminalSession(session.chain, commands, Owner(), display)
        nursery.start_soon(terminal.run)
        yield terminal, screen, gate
        gate.open.set()
        await terminal.finish()


async def test_a_file_that_is_not_there_is_told() -> None:
    async with at_terminal() as (terminal, screen, _):
        terminal.accept("look at @nofile")
        await terminal.chain.wait_idle()
        terminal.accept("look at nofile")
        await terminal.chain.wait_idle()
    [told] = [row for row in screen.rows if "There is no file" in row]
    assert told == "There is no file @nofile; it is sent as text."


async def test_the_toolbar_and_the_rows_above_it_show_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr(time, "time", lambda: now)
    async with at_terminal() as (terminal, screen, gate):
        terminal.accept("Do the task")
        await gate.started.wait()
        await wait_all_tasks_blocked()
        assert "wait 0 s" in "".join(text for _, text in terminal.toolbar(80, "", "", 0, ""))
        now += 4.9
        terminal.print("An answer.")
        now += 0.2  # then a key is pressed, at which the toolbar is drawn and the rows are not
        toolbar = "".join(text for _, text in terminal.toolbar(80, "", "", 0, ""))
        assert screen.tail.endswith("→ wait · 4 s")
        assert "wait 4 s" in toolbar


def toolbar_of(terminal: TerminalSession) -> str:
    return "".join(text for _, text in terminal.toolbar(200, "", "", 0, ""))


async def test_an_idle_toolbar_names_the_model_the_folder_and_its_branch_after_the_last_run() -> None:
    async with at_terminal() as (terminal, screen, _):
        git = terminal.chain.workspace / ".git"
        git.mkdir()
        for head, shown in (
            ("ref: refs/heads/one\n", "one"),
            ("ref: refs/heads/two\n", "two"),
            ("1" * 40, "at commit"),
        ):
            (git / "HEAD").write_text(head)
            assert f" · {shown}" not in toolbar_of(terminal), "it is not read at each drawing"
            terminal.accept("Note it")
            while f" · {shown}" not in toolbar_of(terminal):
                await screen.refreshed.wait()
            assert toolbar_of(terminal).startswith("idle · ask · rules · …")
            assert f"{terminal.chain.workspace.name} · {shown}" in toolbar_of(terminal)


async def test_a_blank_row_parts_two_sessions_of_one_terminal() -> None:
    display = Display(Shown(), TerminalStyle(color=False, ascii=False), None, None)  # type: ignore[arg-type]
    rows = display.renderer().answer("/resume", "There is no other session here.")
    init = events.Init(session="S1", version="1", model="m", workspace="/w")
    assert rows[0] == "» /resume"
    assert display.renderer().lines(init) == ["", "chain 1 · m · S1"]


async def test_after_an_undo_the_toolbar_shows_how_full_the_conversation_is_now() -> None:
    async with at_terminal() as (terminal, _, _):
        shown = []
        for text in ("Note it", "word " * 4000):
            terminal.accept(text)
            await terminal.chain.wait_idle()
            await wait_all_tasks_blocked()
            shown.append(context_of(terminal))
        assert shown[0] + 1000 < shown[1]
        terminal.accept("/undo")
        assert context_of(terminal) < shown[0] + 1000
        assert context_of(terminal) == terminal.chain.window.tokens


def context_of(terminal: TerminalSession) -> int:
    """The tokens that the toolbar shows."""
    found = re.search(r"ctx ([\d,]+)", toolbar_of(terminal))
    assert found is not None
    return int(found[1].replace(",", ""))


async def test_a_resumed_session_shows_how_full_the_conversation_is_after_an_undo() -> None:
    file = MemoryFile()
    async with at_terminal(file=file) as (terminal, _, _):
        for text in ("Note it", "word " * 4000):
            terminal.accept(text)
            await terminal.chain.wait_idle()
        terminal.accept("/undo")
        tokens = terminal.chain.window.tokens
    file, read = left(file.data)
    async with at_terminal(file=file, resume=read) as (terminal, _, _):
        terminal.welcome("")
        assert context_of(terminal) == terminal.chain.window.tokens < tokens + 1000


async def test_after_an_undo_enter_does_not_continue_the_run_that_was_undone() -> None:
    async with at_terminal(max_iterations=1) as (terminal, _, gate):
        gate.open.set()
        for command, starts in (("/status", True), ("/undo", False)):
            terminal.accept("Do the task")
            await terminal.chain.wait_idle()
            await wait_all_tasks_blocked()
            terminal.accept(command)
            terminal.accept("")
            assert terminal.chain.is_running == starts
            await terminal.chain.wait_idle()
