"""One session at a terminal: what its lines do, and what the screen shows."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from support.crashes import load_crashed
from support.disks import FullDisk, MemoryFile
from support.prompt import PLAIN, RecordedScreen, at_terminal, prompt
from trio.testing import wait_all_tasks_blocked

from chain import events
from cli.terminal.display import Display
from cli.terminal.terminal_session import TerminalSession

FULL = "⚠️ Interruption channel full, try again"

WRITES = """
rules:
  - {when: {user: '^store', step: 1}, tools: [{name: write_file, input: {path: a.txt, content: x}}]}
  - {when: {user: '^choose', step: 1}, tools: [{name: ask_user_question, input: {question: Which?, options: [a, b]}}]}
  - {when: {interruption: '(?P<said>.*)'}, text: "Noted: ${said}"}
  - {text: 'Result: ${result}'}
"""


def toolbar_of(terminal: TerminalSession) -> str:
    return "".join(text for _, text in terminal.toolbar(200, "", "", 0, ""))


def context_of(terminal: TerminalSession) -> int:
    """Return the tokens that the toolbar shows."""
    found = re.search(r"ctx ([\d,]+)", toolbar_of(terminal))
    assert found is not None
    return int(found[1].replace(",", ""))


async def test_a_missing_file_is_reported() -> None:
    async with at_terminal() as (terminal, screen, _, _):
        for text in ("look at @nofile", "look at nofile"):
            terminal.accept(text)
            await terminal.chain.wait_idle()
    assert [row for row in screen.rows if "No such file" in row] == ["No such file: @nofile. Sent as text."]


async def test_toolbar_and_rows_show_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr(time, "time", lambda: now)
    async with at_terminal() as (terminal, screen, gate, _):
        terminal.accept("Do the task")
        await gate.started.wait()
        await wait_all_tasks_blocked()
        now += 4.9
        terminal.print("An answer.")
        now += 0.2  # a key would draw only the toolbar
        assert screen.tail.endswith("→ wait · 4 s")
        assert "wait 4 s" in toolbar_of(terminal)


async def test_an_idle_toolbar_names_the_git_branch() -> None:
    async with at_terminal() as (terminal, screen, _, _):
        git = terminal.chain.workspace / ".git"
        git.mkdir()
        for head, shown in (("ref: refs/heads/one\n", "one"), ("1" * 40, "at commit")):
            (git / "HEAD").write_text(head)
            assert f" · {shown}" not in toolbar_of(terminal), "not read at each drawing"
            terminal.accept("Note it")
            await screen.until(lambda shown=shown: f" · {shown}" in toolbar_of(terminal))
            assert toolbar_of(terminal).startswith("idle · ask · rules · …")
            assert f"{terminal.chain.workspace.name} · {shown}" in toolbar_of(terminal)


async def test_a_blank_row_separates_two_sessions() -> None:
    display = Display(RecordedScreen(), PLAIN, None, None)
    display.renderer().answer("/resume", "There is no other session here.")
    init = events.Init(session="S1", version="1", model="m", workspace="/w")
    assert display.renderer().rows(init) == ["", "chain 1 · m · S1"]


async def test_an_undo_updates_the_context_in_the_toolbar() -> None:
    file, shown = MemoryFile(), []
    async with at_terminal(file=file) as (terminal, _, _, _):
        for text in ("Note it", "word " * 4000):
            terminal.accept(text)
            await terminal.chain.wait_idle()
            await wait_all_tasks_blocked()
            shown.append(context_of(terminal))
        terminal.accept("/undo")
        assert context_of(terminal) == terminal.chain.window.tokens < shown[0] + 1000 < shown[1]
    file, read = load_crashed(file.data)
    async with at_terminal(file=file, resume=read) as (terminal, _, _, _):
        terminal.welcome("")
        assert context_of(terminal) == terminal.chain.window.tokens < shown[0] + 1000


async def test_enter_continues_after_the_limit_unless_undone() -> None:
    async with at_terminal(max_iterations=1) as (terminal, screen, gate, _):
        gate.open.set()
        for command, starts in (("/status", True), ("/undo", False)):
            terminal.accept("Do the task")
            await terminal.chain.wait_idle()
            await wait_all_tasks_blocked()
            terminal.accept(command)
            terminal.accept("")
            assert terminal.chain.is_running == starts
            await terminal.chain.wait_idle()
    assert screen.rows.count("▶ Continue.") == 1


async def test_a_full_queue_is_reported_once_per_line(tmp_path: Path) -> None:
    async with prompt(tmp_path) as at:
        await at.send("Do the task", "Looking.")
        await at.send("one")
        await at.send("two")
        for text in ("three", "three", "four"):
            assert at.user.accept(text) == "later"
        await at.screen.until(lambda: at.screen.rows.count(FULL) == 2)
        await at.send("/drop", "↩ Dropped: two")
        await at.send("/queue", "one")
        await at.send("four")
        assert at.user.accept("/to explore-1 x") == "keep"
        at.user.on_escape(has_text=False)
        await at.idle()
        assert at.screen.calls == [("give back", "one"), ("give back", "four")]


HELPED = {
    "!ls": ("replace", "Nothing is running to interrupt"),
    "!stop": ("accepted", "Nothing is running."),
    "?": ("accepted", "Commands:"),
    "/sttaus": ("keep", "did you mean /status?"),
    "/drop L99": ("keep", "no line is waiting"),
    "todo: complete 7": ("accepted", "there is no task 7; the plan is empty"),
}


@pytest.mark.parametrize(("typed", "found"), HELPED.items(), ids=HELPED)
async def test_lines_that_need_help_are_not_sent(tmp_path: Path, typed: str, found: tuple[str, str]) -> None:
    async with prompt(tmp_path) as at:
        assert at.user.accept(typed) == found[0]
        await at.screen.until_row(found[1])
    assert not [row for row in at.screen.rows if row.startswith("▶")]


async def test_quit_as_a_word_exits_without_a_run(tmp_path: Path) -> None:
    async with prompt(tmp_path) as at:
        await at.send("Do the task", "Looking.")
        assert at.user.accept("quit") == "replace"
        await at.screen.until_row("A run is active: stop ends it, /quit exits.")
        await at.send("stop", "⏹ Stopping after wait")
        at.gate.open.set()
        await at.idle()
        await at.send(" exit", "Noted.")
        await at.idle()
        assert at.user.accept("!use B", again=True) == "accepted", "a line that came back may start a run"
        await at.screen.until_row("▶ use B")
        await at.idle()
        await at.send("exit()")
        await at.ended.wait()
    assert at.code == 0


async def test_answers_to_an_approval(tmp_path: Path) -> None:
    async with prompt(tmp_path, WRITES, groups=["edit"]) as at:
        await at.send("store", "❓ Q1 Allow write_file?")
        assert at.user.accept("  ", at="Q1") == "accepted", "a blank line does nothing"
        assert at.user.accept("3", at="Q1") == "accepted"
        await at.screen.until_row("y, a or n; or say why not in a few words")
        await at.send("/diff", "  +x")
        await at.send("/status", "iteration 1")
        assert at.user.accept("not now", at="Q1") == "answered"
        await at.screen.until_row("a.txt · refused: not now")
        await at.idle()
        assert at.user.accept("y", at="Q1") == "gone"
        await at.screen.until_row("⚠️ Q1 is no longer open")
        await at.send("store", "❓ Q2 Allow write_file?")
        await at.send("!!use B", "↩ Q2 withdrawn")
        await at.screen.until_row("Noted: use B")
        await at.idle()
        await at.send("store", "❓ Q3 Allow write_file?")
        assert at.user.accept("y", at="Q3") == "answered"
        await at.screen.until_row("Q3 allowed")
        await at.idle()
    assert (tmp_path / "work/a.txt").read_text() == "x"


async def test_a_choice_takes_a_number_or_words(tmp_path: Path) -> None:
    async with prompt(tmp_path, WRITES, groups=["ask"]) as at:
        await at.send("choose", "❓ Q1 Which?")
        assert at.user.accept("3", at="Q1") == "accepted"
        await at.screen.until_row("type a number from 1 to 2, or answer in words")
        assert at.user.accept("2", at="Q1") == "answered"
        await at.screen.until_row("Result: The user answered: b")
        await at.idle()


async def test_enter_continues_in_a_resumed_session_too() -> None:
    file = MemoryFile()
    async with at_terminal(1, file=file) as (terminal, _, gate, _):
        gate.open.set()
        terminal.accept("Do the task")
        await terminal.chain.wait_idle()
    file, read = load_crashed(file.data)
    async with at_terminal(1, file=file, resume=read) as (terminal, screen, _, _):
        terminal.welcome("")
        terminal.accept("")
        await screen.until_row("▶ Continue.")
        await terminal.chain.wait_idle()


async def test_a_query_that_cannot_be_stored_comes_back() -> None:
    file = FullDisk()
    async with at_terminal(file=file) as (terminal, screen, _, _):
        file.full = True
        terminal.start("Do the task")
        await screen.until_row("No space left on device")
        assert screen.calls == [("give back", "Do the task")]
        file.full = False
