"""One session at a terminal: what its lines do, and what the screen shows."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from support.crashes import load_crashed
from support.disks import FullDisk, MemoryFile
from support.prompt import PLAIN, RecordedScreen, open_prompt, open_terminal_session
from trio.testing import wait_all_tasks_blocked

from chain import events
from cli.screen.protocol import Acceptance
from cli.terminal.display import Display
from cli.terminal.terminal_session import TerminalSession

ASKING_RULES = """
rules:
  - {when: {user: '^store', step: 1}, tools: [{name: write_file, input: {path: a.txt, content: x}}]}
  - {when: {user: '^choose', step: 1}, tools: [{name: ask_user_question, input: {question: Which?, options: [a, b]}}]}
  - {when: {interruption: '(?P<said>.*)'}, text: "Noted: ${said}"}
  - {text: 'Result: ${result}'}
"""


def toolbar_of(terminal: TerminalSession) -> str:
    parts = terminal.toolbar(width=200, typed="", question_id="", lines_before=0, keys="")
    return "".join(text for _, text in parts)


def context_tokens(terminal: TerminalSession) -> int:
    """Return the size of the context in tokens that the toolbar shows."""
    (tokens,) = re.findall(r"ctx ([\d,]+)", toolbar_of(terminal))
    return int(tokens.replace(",", ""))


async def test_a_missing_file_is_reported() -> None:
    async with open_terminal_session() as (terminal, screen, _, _):
        for text in ("look at @nofile", "look at nofile"):
            terminal.accept(text)
            await terminal.chain.wait_idle()
    assert [row for row in screen.rows if "No such file" in row] == ["No such file: @nofile. Sent as text."]


async def test_toolbar_and_rows_show_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr(time, "time", lambda: now)
    async with open_terminal_session() as (terminal, screen, gate, _):
        terminal.accept("Do the task")
        await gate.started.wait()
        await wait_all_tasks_blocked()
        now += 4.9
        terminal.print("An answer.")
        now += 0.2  # the rows were drawn at 4.9 s; the toolbar must not be ahead of them
        assert screen.tail.endswith("→ wait · 4 s")
        assert "wait 4 s" in toolbar_of(terminal)


async def test_an_idle_toolbar_names_the_git_branch() -> None:
    async with open_terminal_session() as (terminal, screen, _, _):
        git = terminal.chain.workspace / ".git"
        git.mkdir()
        for head, branch in (("ref: refs/heads/one\n", "one"), ("1" * 40, "at commit")):
            (git / "HEAD").write_text(head)
            assert f" · {branch}" not in toolbar_of(terminal), "not read at each drawing"
            terminal.accept("Note it")
            await screen.until(lambda branch=branch: f" · {branch}" in toolbar_of(terminal))
            # The mode, the model and the end of the folder's path.
            assert toolbar_of(terminal).startswith("idle · ask · rules · …")
            assert f"{terminal.chain.workspace.name} · {branch}" in toolbar_of(terminal)


async def test_a_blank_row_separates_two_sessions() -> None:
    display = Display(RecordedScreen(), PLAIN, None, None)
    display.renderer().answer("/resume", "There is no other session here.")
    init = events.Init(session="S1", version="1", model="m", workspace="/w")
    assert display.renderer().rows(init) == ["", "chain 1 · m · S1"]


async def test_an_undo_updates_the_context_in_the_toolbar() -> None:
    file = MemoryFile()
    async with open_terminal_session(file=file) as (terminal, _, _, session):
        await session.run("Note it")
        await wait_all_tasks_blocked()
        most_after_undo = context_tokens(terminal) + 1000  # less than the second query adds
        await session.run("word " * 4000)
        await wait_all_tasks_blocked()
        assert context_tokens(terminal) > most_after_undo
        terminal.accept("/undo")
        assert context_tokens(terminal) == terminal.chain.window.tokens < most_after_undo
    file, resumed = load_crashed(file.data)
    async with open_terminal_session(file=file, resume=resumed) as (terminal, _, _, _):
        terminal.welcome("")  # shows the past events, and then the size of the context
        assert context_tokens(terminal) == terminal.chain.window.tokens < most_after_undo


async def test_enter_continues_after_the_limit_unless_undone() -> None:
    async with open_terminal_session(max_iterations=1) as (terminal, screen, gate, _):
        gate.open.set()
        for command, is_continued in (("/status", True), ("/undo", False)):
            terminal.accept("Do the task")
            await terminal.chain.wait_idle()
            await wait_all_tasks_blocked()
            terminal.accept(command)
            terminal.accept("")
            assert terminal.chain.is_running == is_continued
            await terminal.chain.wait_idle()
    assert screen.rows.count("▶ Continue.") == 1


async def test_a_full_queue_is_reported_once_per_line(tmp_path: Path) -> None:
    async with open_prompt(tmp_path) as prompt:  # whose queue has room for two lines
        await prompt.send("Do the task", "Looking.")
        await prompt.send("one")
        await prompt.send("two")
        for text in ("three", "three", "four"):
            assert prompt.user.accept(text) == "later"
        await prompt.screen.until(lambda: prompt.screen.rows.count("⚠️ Interruption channel full, try again") == 2)
        await prompt.send("/drop", "↩ Dropped: two")
        await prompt.send("/queue", "one")
        await prompt.send("four")
        assert prompt.user.accept("/to explore-1 x") == "keep", "the absent agent matters, not the full queue"
        prompt.user.on_escape(has_text=False)
        await prompt.wait_idle()
        assert prompt.screen.calls == [("give back", "one"), ("give back", "four")]


@pytest.mark.parametrize(
    ("typed", "acceptance", "help"),
    [
        ("!ls", "replace", "Nothing is running to interrupt"),
        ("!stop", "accepted", "Nothing is running."),
        ("?", "accepted", "Commands:"),
        ("/sttaus", "keep", "did you mean /status?"),
        ("/drop L99", "keep", "no line is waiting"),
        ("todo: complete 7", "accepted", "there is no task 7; the plan is empty"),
    ],
)
async def test_lines_that_need_help_are_not_sent(tmp_path: Path, typed: str, acceptance: Acceptance, help: str) -> None:
    async with open_prompt(tmp_path) as prompt:
        assert prompt.user.accept(typed) == acceptance
        await prompt.screen.until_row(help)
    assert not [row for row in prompt.screen.rows if row.startswith("▶")]


async def test_a_returned_urgent_line_may_start_a_run(tmp_path: Path) -> None:
    async with open_prompt(tmp_path) as prompt:
        assert prompt.user.accept("!use B", again=True) == "accepted"  # Enter again on the returned line
        await prompt.screen.until_row("▶ use B")
        await prompt.wait_idle()


async def test_quit_during_a_run_is_explained(tmp_path: Path) -> None:
    async with open_prompt(tmp_path) as prompt:
        await prompt.send("Do the task", "Looking.")
        assert prompt.user.accept("quit") == "replace"
        await prompt.screen.until_row("A run is active: stop ends it, /quit exits.")


async def test_exit_as_the_only_word_exits(tmp_path: Path) -> None:
    async with open_prompt(tmp_path) as prompt:
        await prompt.send(" exit", "Noted.")  # the space makes it a text
        await prompt.wait_idle()
        await prompt.send("exit()")
        await prompt.ended.wait()
    assert prompt.code == 0


async def test_unclear_answers_and_commands_leave_a_question_open(tmp_path: Path) -> None:
    async with open_prompt(tmp_path, ASKING_RULES, groups=["edit"]) as prompt:
        await prompt.send("store", "❓ Q1 Allow write_file?")
        assert prompt.user.accept("  ", question_id="Q1") == "accepted", "a blank line does nothing"
        assert prompt.user.accept("3", question_id="Q1") == "accepted", "no choice has a number"
        await prompt.screen.until_row("y, a or n; or say why not in a few words")
        await prompt.send("/diff", "  +x")
        await prompt.send("/status", "iteration 1")
        await prompt.send("!!use B", "↩ Q1 withdrawn")
        await prompt.screen.until_row("Noted: use B")
        await prompt.wait_idle()


async def test_an_answer_approves_or_refuses_a_call(tmp_path: Path) -> None:
    async with open_prompt(tmp_path, ASKING_RULES, groups=["edit"]) as prompt:
        await prompt.send("store", "❓ Q1 Allow write_file?")
        assert prompt.user.accept("not now", question_id="Q1") == "answered"
        await prompt.screen.until_row("a.txt · refused: not now")
        await prompt.wait_idle()
        assert prompt.user.accept("y", question_id="Q1") == "gone", "Q1 has its answer"
        await prompt.screen.until_row("⚠️ Q1 is no longer open")
        await prompt.send("store", "❓ Q2 Allow write_file?")
        assert prompt.user.accept("y", question_id="Q2") == "answered"
        await prompt.screen.until_row("Q2 allowed")
        await prompt.wait_idle()
    assert (tmp_path / "work/a.txt").read_text() == "x"


async def test_a_choice_takes_a_number_or_words(tmp_path: Path) -> None:
    async with open_prompt(tmp_path, ASKING_RULES, groups=["ask"]) as prompt:
        await prompt.send("choose", "❓ Q1 Which?")
        assert prompt.user.accept("3", question_id="Q1") == "accepted"
        await prompt.screen.until_row("type a number from 1 to 2, or answer in words")
        assert prompt.user.accept("2", question_id="Q1") == "answered"
        await prompt.screen.until_row("Result: The user answered: b")
        await prompt.wait_idle()


async def test_enter_continues_in_a_resumed_session_too() -> None:
    file = MemoryFile()
    async with open_terminal_session(max_iterations=1, file=file) as (_, _, gate, session):
        gate.open.set()
        await session.run("Do the task")
    file, resumed = load_crashed(file.data)
    async with open_terminal_session(max_iterations=1, file=file, resume=resumed) as (terminal, screen, _, _):
        terminal.welcome("")  # as the program does before the user can type
        terminal.accept("")
        await screen.until_row("▶ Continue.")
        await terminal.chain.wait_idle()


async def test_a_query_that_cannot_be_stored_comes_back() -> None:
    file = FullDisk()
    async with open_terminal_session(file=file) as (terminal, screen, _, _):
        file.full = True
        terminal.start("Do the task")
        await screen.until_row("No space left on device")
        assert screen.calls == [("give back", "Do the task")]
        file.full = False
