"""The program at a prompt: its sessions, the keys that interrupt and exit, and what it prints at the end."""

from __future__ import annotations

import json
import re
import signal
from argparse import Namespace
from pathlib import Path

import pytest
from support.journals import journals, receipts_of
from support.prompt import prompt
from trio.testing import MockClock

from chain.config.load import load_settings
from chain.errors import UserError
from cli.arguments import Place, read_place
from cli.input.moments import parse_moment
from cli.terminal.program import DOUBLE_PRESS_S

STORES = """
rules:
  - {when: {user: store, step: 1}, tools: [{name: write_file, input: {path: a.txt, content: x}}]}
  - {text: Noted.}
"""


def lines(folder: Path) -> list[dict[str, str]]:
    """Return the lines of each session in the order of their starts, with their states."""
    sessions = sorted(journals(folder).values(), key=lambda found: found[0]["time"])
    return [{line.text: line.state for line in receipts_of(found).values()} for found in sessions]


async def test_new_keeps_the_plan_and_the_settings(tmp_path: Path) -> None:
    async with prompt(tmp_path) as at:
        await at.send("todo: add buy milk", "task 1 added")
        await at.send("hello", "✓ done")
        first = next(iter(journals(tmp_path)))
        await at.send("/model other", "other (rules in other.yaml) answers")
        await at.send("/effort high", "The effort is high")
        await at.send("/thinking on", "Thoughts are now")
        at.user.next_mode()
        assert await at.send("/new", "New conversation") == (
            "New conversation with the same plan (0/1); /new --clean starts without a plan."
        )
        await at.idle()
        await at.send("and you", "I am the other model.")
        assert any("Considering it." in row for row in at.screen.rows)
        await at.send("/effort", "Effort: high.")
        assert "accept edits" in "".join(text for _, text in at.user.toolbar(80, "", "", 0, ""))
        second = next(id for id in journals(tmp_path) if id != first)
        await at.send(f"/resume {first[:-2]}", "Session resumed.")
        await at.idle()
        assert await at.quit() == 0
    assert at.screen.rows[-2:] == [f"Resume this session with: chain -r {id}" for id in (second, first)]
    assert lines(tmp_path) == [{"todo: add buy milk": "handled", "hello": "delivered"}, {"and you": "delivered"}]


async def test_scheduled_lines_move_to_the_next_session(tmp_path: Path) -> None:
    async with prompt(tmp_path, scheduled=[parse_moment("@iteration 1 use B", strict=True)]) as at:
        await at.send("/new", "New conversation")
        await at.idle()
        await at.send("hello", "INTERRUPTION at iteration 1: use B")
        await at.idle()


async def test_a_session_that_cannot_be_opened_changes_nothing(tmp_path: Path) -> None:
    async with prompt(tmp_path) as at:
        sessions = tmp_path / "state/chain/sessions"
        sessions.rename(tmp_path / "elsewhere")
        sessions.write_text("no folder")
        await at.send("/new", "XDG_STATE_HOME")
        await at.idle()
        await at.send("hello", "Noted.")
        sessions.unlink()
        (tmp_path / "elsewhere").rename(sessions)
    assert lines(tmp_path) == [{"hello": "delivered"}]


async def test_lines_wait_while_another_session_is_opened(tmp_path: Path) -> None:
    async with prompt(tmp_path) as at:
        assert at.user.accept("/new") == "accepted"
        assert at.user.accept("hello") == "later"
        await at.user.wait_ready()
        assert at.user.accept("hello") == "accepted"
        await at.screen.until_row("Noted.")
    assert lines(tmp_path) == [{}, {"hello": "delivered"}]


async def test_without_a_key_the_offline_model_answers(tmp_path: Path) -> None:
    config = {"models": {"definitions": {"mine": {"provider": "anthropic", "model": "m", "api_key": "${KEY}"}}}}
    (tmp_path / "keyless.yaml").write_text(json.dumps({**config, "chains": {"default": {"model": "mine"}}}))
    settings = load_settings(config=tmp_path / "keyless.yaml", environ={}, cwd=tmp_path)
    async with prompt(tmp_path, settings=settings) as at:
        assert await at.screen.until_row("no API key") == ("ℹ no API key: the offline model answers; set KEY for mine")


CTRL_C = {
    "c c": "hints exits",
    "c later c c": "hints hints exits",
    "text text c": "clears clears hints",
    "c line c": "hints hints",
    "run c": "interrupts",
    "run text c c": "interrupts hints exits",
    "run c later text": "interrupts clears",
}


@pytest.mark.parametrize(("presses", "effects"), CTRL_C.items(), ids=CTRL_C)
async def test_ctrl_c(tmp_path: Path, mock_clock: MockClock, presses: str, effects: str) -> None:
    """``c`` is Ctrl-C at an empty prompt, ``text`` with a text; ``run`` and ``line`` send one, ``later`` waits."""
    found = []
    async with prompt(tmp_path) as at:
        for press in presses.split():
            hints, was_running = at.screen.rows.count("Press Ctrl-C again to exit, or Ctrl-D."), at.is_running
            if press == "later":
                mock_clock.jump(DOUBLE_PRESS_S + 1)
            elif press == "run":
                await at.send("Do the task", "Looking.")
                await at.gate.started.wait()
            elif press == "line":
                await at.send("/todo", "The plan is empty.")
            else:
                has_cleared = at.user.on_ctrl_c(has_text=press == "text")
                if was_running:
                    await at.screen.until(lambda: at.user.awaits_input or at.code is not None)
                hints = at.screen.rows.count("Press Ctrl-C again to exit, or Ctrl-D.") - hints
                found += ["clears"] * has_cleared + ["hints"] * hints
                found += ["interrupts"] * (was_running and not at.is_running)
    found += ["exits"] * (at.code == 130)
    assert " ".join(found) == effects


async def test_esc_twice_lists_the_runs_to_undo(tmp_path: Path, mock_clock: MockClock) -> None:
    async with prompt(tmp_path, STORES, groups=["edit"]) as at:
        at.user.next_mode()
        at.user.on_escape(has_text=False)
        at.user.on_escape(has_text=False)
        await at.screen.until_row("No run can be undone.")
        await at.send("store", "Noted.")
        await at.idle()
        for has_text, seconds in ((False, 0), (True, 0), (False, 0), (False, DOUBLE_PRESS_S + 1)):
            mock_clock.jump(seconds)
            at.user.on_escape(has_text=has_text)
        assert at.screen.calls == []
        at.user.on_escape(has_text=False)
        assert re.fullmatch(r"  1  \S+ \d\d:\d\d  store +a.txt", at.screen.rows[-1])
        assert at.screen.calls == [("edit", "/undo ")]
        await at.send("/undo 1", "a.txt")
    assert not (tmp_path / "work/a.txt").exists()


async def test_unsent_lines_are_named_after_a_signal(tmp_path: Path) -> None:
    late = parse_moment("@iteration 9 too late", strict=True)
    async with prompt(tmp_path, scheduled=[late]) as at:
        await at.send("Do the task", "Looking.")
        await at.send("use B")
        at.screen.text = "half a\nthought"
        at.signals.send_nowait(signal.SIGTERM)
        await at.ended.wait()
    (id,) = journals(tmp_path)
    assert at.code == 143
    assert at.screen.rows[-5].startswith("⏹ interrupted, 1 iteration")
    assert at.screen.rows[-4:] == [
        "Not sent: @iteration 9 too late",
        "Not sent: half a\n  thought",
        "1 line stays queued in the session.",
        f"Resume this session with: chain -r {id}",
    ]
    assert lines(tmp_path) == [{"Do the task": "delivered", "use B": "queued"}]


async def test_ctrl_d_with_waiting_lines_exits_with_3(tmp_path: Path) -> None:
    async with prompt(tmp_path) as at:
        await at.send("Do the task", "Looking.")
        await at.send("use B")
        assert await at.quit() == 3


async def test_commands_reach_the_editor_and_the_clipboard(tmp_path: Path) -> None:
    async with prompt(tmp_path, query="stop") as at:
        await at.screen.until_row("Noted.")
        await at.idle()
        await at.send("/copy", "Sent to the clipboard: 6 characters.")
        await at.send("Do the task", "Looking.")
        await at.send("use B")
        assert at.user.take_back() == "use B"
        await at.send("use C")
        await at.send("/edit")
        assert at.screen.calls == [("copy", "Noted."), ("edit", "use C")]
        assert at.user.completions("/qui") == ["/quit"]
        assert [choice.label for choice in at.user.menu("/qui")] == ["/quit"]
        assert "Noted." in "\n".join(at.user.session_rows())
        at.gate.open.set()
        await at.idle()
        await at.send("/quit")
        await at.ended.wait()
    assert at.code == 0


async def test_a_resumed_session_restores_lines_draft_and_limit(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work/AGENTS.md").write_text("Use make.")
    async with prompt(tmp_path) as at:
        await at.send("hello", "Noted.")
        await at.send("Do the task", "Looking.")
        await at.send("use B")
        await at.send("use C")
        at.screen.text = "half a thought"
        assert await at.quit() == 3
    (id,) = journals(tmp_path)
    async with prompt(tmp_path, place=Place(tmp_path / "work", id)) as at:
        await at.screen.until_row("2 earlier lines wait (L3, L4): Enter on an empty line sends them")
        assert [row for row in at.screen.rows if row.startswith("▶")] == ["▶ hello", "▶ Do the task"]
        assert at.screen.rows.count("ℹ Project instructions: AGENTS.md.") == 1
        assert at.screen.calls == [("edit", "half a thought")]
        await at.send("", "🔔 INTERRUPTION before iteration 1: use B")
        await at.idle()


async def test_a_query_that_the_model_refuses_comes_back(tmp_path: Path) -> None:
    async with prompt(tmp_path, "rules: [{text: No., stop_reason: refusal}]") as at:
        await at.send("hello", "The model refused to answer")
        await at.screen.until(lambda: at.screen.calls)
        assert at.screen.calls == [("give back", "hello")]


AGENTS = """
rules:
  - {when: {user: '^look', step: 1}, tools: [{name: explore, input: {task: "Do the task"}}]}
  - {when: {user: '^Do the task', step: 1}, text: Looking., tools: [{name: wait, input: {}}]}
  - {when: {interruption: '(?P<said>.+)'}, text: "Heard: ${said}"}
  - {text: Noted.}
"""


async def test_lines_go_to_the_named_agent(tmp_path: Path) -> None:
    async with prompt(tmp_path, AGENTS, groups=["agents"], kinds={"explore": {"tools": ["wait"]}}) as at:
        assert at.user.accept("/to explore-1 hello") == "keep"
        await at.screen.until_row("active: main")
        await at.send("look around")
        await at.screen.until(lambda: at.user.target("use B") == "explore-1")
        for typed, target, shown in (
            ("use B", "explore-1", "⏳ explore-1, next safe point"),
            ("/to main use C", "", "⏳ main, next safe point"),
            ("todo: add x", "", "plan, next safe point"),
            ("/to explore-7 x", "", "no such agent at work"),
            ("stop", "", "stops the run"),
        ):
            assert at.user.target(typed) == target
            assert "".join(text for _, text in at.user.toolbar(120, typed, "", 0, "")).endswith(shown)
        for line in ("use B", "/to main use C"):
            await at.send(line)
        assert at.user.take_back() == "/to main use C"
        await at.send("/agents explore-1", "Looking.")
        at.gate.open.set()
        await at.screen.until_row("Heard: use B")
        await at.idle()


@pytest.mark.parametrize(
    ("continues", "resume", "says"),
    [
        (False, "nothing", "there is no session 'nothing'; chain sessions list shows all sessions"),
        (True, None, "; start one without --continue"),
        (True, "x", "--continue and --resume cannot be used together"),
    ],
)
def test_a_session_that_cannot_be_resumed(tmp_path: Path, continues: bool, resume: str | None, says: str) -> None:
    args = Namespace(workspace=None, no_session=False, resume=resume, **{"continue": continues})
    with pytest.raises(UserError, match=says):
        read_place(args, tmp_path)
