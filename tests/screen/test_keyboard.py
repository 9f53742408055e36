"""What Enter sends: all lines of the editor in one step, and the history afterwards."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

import pytest
import trio
from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.data_structures import Size
from prompt_toolkit.history import History
from prompt_toolkit.input import DummyInput
from prompt_toolkit.output import DummyOutput

from cli.screen.draft import Draft
from cli.screen.keyboard import Keyboard
from cli.screen.page import RowOutput
from cli.screen.protocol import Acceptance
from cli.screen.toolkit import HeldOutput


class Log(History):
    """A listener and a history that share one log of what happens, in its order."""

    def __init__(self, *, refuses: str | None = None) -> None:
        super().__init__()
        self.entries: list[str] = []
        self._refuses = refuses

    def accept(self, text: str, *, at: str = "", again: bool = False) -> Acceptance:
        self.entries.append(f"answer {at} {text}" if at else f"accept {text}")
        trio.lowlevel.current_trio_token().run_sync_soon(self.entries.append, "another task")
        if text == self._refuses:
            return "later"
        return "answered" if at else "accepted"

    def load_history_strings(self) -> Iterable[str]:
        return []

    def store_string(self, string: str) -> None:
        self.entries.append(f"store {string}")


def keyboard(log: Log, *lines: str) -> tuple[Keyboard, Buffer]:
    """An editor whose text is these lines, which came back from a run."""
    draft = Draft()
    keys = Keyboard(draft, RowOutput(HeldOutput(io.StringIO(), lambda: Size(rows=24, columns=80)), draft))
    buffer = Buffer(history=log)
    app: Application[Any] = Application(input=DummyInput(), output=DummyOutput())
    keys.attach(app, buffer)
    keys.token = trio.lowlevel.current_trio_token()
    keys.listener = log  # type: ignore[assignment]
    keys.is_ready.set()
    for line in lines:
        keys.put_above(line)
    return keys, buffer


async def press_enter(buffer: Buffer, log: Log) -> list[str]:
    """Press Enter and return what happened, without other tasks."""
    assert buffer.accept_handler is not None
    await trio.to_thread.run_sync(buffer.accept_handler, buffer)
    return [entry for entry in log.entries if entry != "another task"]


async def test_one_enter_sends_all_lines_in_one_step() -> None:
    log = Log()
    _, buffer = keyboard(log, "use A", "use B", "why?")
    await press_enter(buffer, log)
    assert log.entries[:4] == ["accept use A", "accept use B", "accept why?", "accept "]
    assert buffer.text == ""


async def test_the_history_is_written_after_all_lines() -> None:
    log = Log()
    _, buffer = keyboard(log, "use A", "use B")
    assert (await press_enter(buffer, log))[-2:] == ["store use A", "store use B"]


async def test_lines_from_the_refused_one_on_stay() -> None:
    log = Log(refuses="use B")
    _, buffer = keyboard(log, "use A", "use B", "use C")
    assert await press_enter(buffer, log) == ["accept use A", "accept use B", "store use A"]
    assert buffer.text == "use B\nuse C"


async def test_an_answer_is_not_in_the_history() -> None:
    log = Log()
    keys, buffer = keyboard(log)
    keys._draft.question = "Q1"
    buffer.insert_text("y")
    assert await press_enter(buffer, log) == ["answer Q1 y"]
    assert buffer.text == ""


@pytest.mark.parametrize(("refuses", "left"), [(None, "use A\n"), ("stop", "use A\nstop")])
async def test_a_stop_overtakes_what_came_back(refuses: str | None, left: str) -> None:
    log = Log(refuses=refuses)
    _, buffer = keyboard(log, "use A")
    buffer.insert_text("stop")
    assert (await press_enter(buffer, log))[0] == "accept stop"
    assert buffer.text == left


async def test_a_draft_that_was_left_for_an_older_entry_is_in_the_history() -> None:
    log = Log()
    _, buffer = keyboard(log)
    buffer.insert_text("half a thought")
    buffer._working_lines.appendleft("use A")  # as ``Buffer`` loads its history
    assert (await press_enter(buffer, log))[-2:] == ["store use A", "store half a thought"]
