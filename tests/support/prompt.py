"""The program at a prompt in memory: a real chain, and a screen that records its rows and calls."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from chain.config.load import load_settings
from chain.session.resume import LoadedSession
from chain.tools.tool import Tool
from cli.arguments import Place
from cli.screen.protocol import Listener
from cli.terminal import program
from cli.terminal.display import Display
from cli.terminal.invocation import Invocation, TerminalStyle
from cli.terminal.slash import CommandAnswer, Commands
from cli.terminal.terminal_session import TerminalSession

from .disks import MemoryFile
from .gate import Gate
from .sessions import Session, make_settings, open_session

PLAIN = TerminalStyle(color=False, ascii=False)

RULES = """
rules:
  - {when: {user: '^Do the task$', step: 1}, text: Looking., tools: [{name: wait, input: {}}]}
  - {text: Noted.}
"""


class RecordedScreen:
    """A ``Screen`` 80 columns wide, without a terminal."""

    has_keys = has_clipboard = True
    width = 80
    text = ""
    listener: Listener

    def __init__(self) -> None:
        self.rows: list[str] = []
        self.tail = ""
        self.calls: list[tuple[str, str]] = []
        """The calls that change the text or the clipboard, each with its argument."""
        self.question: str | None = None
        self._changed = trio.Event()

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until a condition holds, which is checked after each change of the screen."""
        while not condition():
            await self._changed.wait()

    async def until_row(self, text: str) -> str:
        """Wait for a row with this text, and return it."""
        await self.until(lambda: any(text in row for row in self.rows))
        return next(row for row in self.rows if text in row)

    def refresh(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def show(self, rows: Sequence[str], tail: str = "") -> None:
        self.rows += rows
        self.tail = tail
        self.refresh()

    def listen(self, listener: Listener) -> None:
        self.listener = listener
        self.refresh()

    def ask(self, question: str | None, keys: str = "") -> None:
        self.question = question

    async def wait_shown(self) -> None:
        await trio.lowlevel.checkpoint()

    def _call(self, name: str, argument: str) -> None:
        self.calls.append((name, argument))
        self.refresh()

    def edit(self, text: str) -> None:
        self._call("edit", text)

    def insert(self, text: str) -> None:
        self._call("insert", text)

    def give_back(self, text: str) -> None:
        self._call("give back", text)

    def copy(self, text: str) -> None:
        self._call("copy", text)

    def name_window(self, title: str) -> None: ...

    def alert(self, title: str, *, rings: bool) -> None: ...

    def redraw(self) -> None: ...

    def discard_text(self) -> None:
        self.text = ""

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()


class Owner:
    """A ``SessionOwner`` that does nothing."""

    def give_back(self, text: str) -> None: ...

    def mark_unsent(self, text: str) -> None: ...

    def carry_out(self, command: str, answer: CommandAnswer) -> None: ...


@asynccontextmanager
async def open_terminal_session(
    max_iterations: int = 20, *, file: MemoryFile | None = None, resume: LoadedSession | None = None
) -> AsyncIterator[tuple[TerminalSession, RecordedScreen, Gate, Session]]:
    """Yield a session in memory whose tool waits at the gate.

    ``file`` is its journal, and ``resume`` a session that was read from this journal.
    """
    gate, screen, limits = Gate(), RecordedScreen(), make_settings(max_iterations=max_iterations)
    opening = open_session(RULES, tools=[gate.tool], interactive=True, settings=limits, file=file, resume=resume)
    async with opening as session, trio.open_nursery() as nursery:
        display = Display(screen, PLAIN, None, None)
        terminal = TerminalSession(session.chain, Commands(session.chain, session.settings), Owner(), display)
        nursery.start_soon(terminal.run)
        await wait_all_tasks_blocked()
        yield terminal, screen, gate, session
        gate.open.set()
        await terminal.finish()


@dataclass
class Prompt:
    """The program and its screen. ``code`` is the exit code of the program, ``None`` while it runs."""

    screen: RecordedScreen
    signals: trio.MemorySendChannel[int]
    gate: Gate
    code: int | None = None
    ended: trio.Event = field(default_factory=trio.Event)

    @property
    def user(self) -> Listener:
        """The program's methods for the keys of the user."""
        return self.screen.listener

    @property
    def is_running(self) -> bool:
        """Whether a run is active, or its end is not shown yet."""
        return not self.user.awaits_input

    async def send(self, line: str, row: str = "") -> str:
        """Send a line. Wait for a new row with the text ``row`` if given, and return that row."""
        before = len(self.screen.rows)
        assert self.user.accept(line) == "accepted", self.screen.rows
        if not row:
            await wait_all_tasks_blocked()
            return ""
        await self.screen.until(lambda: any(row in shown for shown in self.screen.rows[before:]))
        return next(shown for shown in self.screen.rows[before:] if row in shown)

    def toolbar(self, typed: str = "") -> str:
        """Return the row below the prompt while a text is typed."""
        return "".join(text for _, text in self.user.toolbar(120, typed, "", 0, ""))

    async def wait_idle(self) -> None:
        """Wait until the program waits for input."""
        await self.screen.until(lambda: self.user.awaits_input)

    async def quit(self) -> int:
        """Leave as with Ctrl-D, and return the exit code."""
        self.user.leave()
        await self.ended.wait()
        assert self.code is not None
        return self.code


@asynccontextmanager
async def open_prompt(
    folder: Path,
    rules: str = RULES,
    *,
    tools: Iterable[Tool] = (),
    groups: Iterable[str] = (),
    agents: Any = None,
    **options: Any,
) -> AsyncIterator[Prompt]:
    """Yield the program with a model that follows rules.

    ``tools`` are added to the gate's tool, and ``groups`` of tools and ``agents`` to the configuration. The options are
    fields of ``Invocation``.
    """
    (folder / "rules.yaml").write_text(rules)
    (folder / "other.yaml").write_text(
        "name: other rules\nrules: [{thinking: Considering it., text: I am the other model.}]"
    )
    definitions = {name: {"provider": "scripted", "script": f"{name}.yaml"} for name in ("rules", "other")}
    chain = {"model": "rules", "system_prompt": None, "tools": ["todo", *groups], "max_iterations": 20}
    raw = {
        "models": {"default": "rules", "definitions": definitions},
        "chains": {"default": chain},
        "agents": agents or {},
        "inbox": {"size": 2},
    }
    (folder / "config.yaml").write_text(json.dumps(raw))
    (folder / "work").mkdir(exist_ok=True)
    configured = load_settings(config=folder / "config.yaml", environ={}, cwd=folder / "work")
    gate, screen = Gate(), RecordedScreen()
    signals, received = trio.open_memory_channel[int](10)
    invocation = Invocation(
        **{"settings": configured, "place": Place(folder / "work"), "state": folder / "state/chain", **options},
        tools=(gate.tool, *tools),
    )
    shown = Prompt(screen, signals, gate)

    async def serve() -> None:
        shown.code = await program.serve(screen, received, PLAIN, invocation)
        shown.ended.set()

    with pytest.MonkeyPatch.context() as patched:
        for name in ("exit_soon", "exit_on_signals"):  # these would end the process of the tests
            patched.setattr(program, name, lambda *_: None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            await screen.until(lambda: hasattr(screen, "listener"))
            yield shown
            gate.open.set()
            if shown.code is None:
                await shown.quit()
