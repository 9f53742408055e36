"""The program at a prompt: its sessions, the keys that interrupt and exit, and what it prints at the end."""

from __future__ import annotations

import json
import re
import signal
from argparse import Namespace
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from support.journals import journals, receipts_of
from support.prompt import Prompt, open_prompt
from trio.testing import MockClock

from chain.config.load import load_settings
from chain.errors import UserError
from chain.session.exit_codes import INTERRUPTED_CODE
from chain.tools.tool import JobEnd, ToolContext, tool
from cli.arguments import Place, read_place
from cli.input.moments import parse_moment
from cli.terminal.program import DOUBLE_PRESS_S

STORING_RULES = """
rules:
  - {when: {user: store, step: 1}, tools: [{name: write_file, input: {path: a.txt, content: x}}]}
  - {text: Noted.}
"""

JOB_RULES = """
rules:
  - {when: {user: start, step: 1}, tools: [{name: work, input: {}}]}
  - {text: Noted.}
"""


def line_states(folder: Path) -> list[dict[str, str]]:
    """Return the states of the lines of each session by their texts, the oldest session first."""
    sessions = sorted(journals(folder).values(), key=lambda records: records[0]["time"])
    return [{line.text: line.state for line in receipts_of(records).values()} for records in sessions]


async def test_new_keeps_the_plan_and_the_settings(tmp_path: Path) -> None:
    async with open_prompt(tmp_path) as prompt:
        await prompt.send("todo: add buy milk", "task 1 added")
        await prompt.send("hello", "✓ done")
        await prompt.send("/model other", "other (rules in other.yaml) answers")
        await prompt.send("/effort high", "The effort is high")
        await prompt.send("/thinking on", "Thoughts are now")
        prompt.user.next_mode()
        row = await prompt.send("/new", "New conversation")
        assert row == "New conversation with the same plan (0/1); /new --clean starts without a plan."
        await prompt.wait_idle()
        await prompt.send("and you", "I am the other model.")
        assert any("Considering it." in row for row in prompt.screen.rows)
        await prompt.send("/effort", "Effort: high.")
        assert "accept edits" in prompt.toolbar()
    assert line_states(tmp_path) == [{"todo: add buy milk": "handled", "hello": "delivered"}, {"and you": "delivered"}]


async def test_the_exit_names_every_session_used(tmp_path: Path) -> None:
    async with open_prompt(tmp_path) as prompt:
        (first,) = journals(tmp_path)
        await prompt.send("/new", "New conversation.")
        await prompt.wait_idle()
        (second,) = set(journals(tmp_path)) - {first}
        part_of_id = first[:-2]
        await prompt.send(f"/resume {part_of_id}", "Session resumed.")
        await prompt.wait_idle()
        assert await prompt.quit() == 0
    last_rows = prompt.screen.rows[-2:]
    assert last_rows == [f"Resume this session with: chain -r {id}" for id in (second, first)]


async def test_scheduled_lines_move_to_the_next_session(tmp_path: Path) -> None:
    async with open_prompt(tmp_path, scheduled=[parse_moment("@iteration 1 use B", strict=True)]) as prompt:
        await prompt.send("/new", "New conversation")
        await prompt.wait_idle()
        await prompt.send("hello", "INTERRUPTION at iteration 1: use B")
        await prompt.wait_idle()


async def test_a_session_that_cannot_be_opened_changes_nothing(tmp_path: Path) -> None:
    async with open_prompt(tmp_path) as prompt:
        sessions = tmp_path / "state/chain/sessions"
        sessions.rename(tmp_path / "elsewhere")
        sessions.write_text("no folder")
        await prompt.send("/new", "XDG_STATE_HOME")
        await prompt.wait_idle()
        await prompt.send("hello", "Noted.")
        sessions.unlink()
        (tmp_path / "elsewhere").rename(sessions)
    assert line_states(tmp_path) == [{"hello": "delivered"}]


async def test_lines_wait_while_another_session_is_opened(tmp_path: Path) -> None:
    async with open_prompt(tmp_path) as prompt:
        assert prompt.user.accept("/new") == "accepted"
        assert prompt.user.accept("hello") == "later"
        await prompt.user.wait_ready()
        assert prompt.user.accept("hello") == "accepted"
        await prompt.screen.until_row("Noted.")
    assert line_states(tmp_path) == [{}, {"hello": "delivered"}]


async def test_without_a_key_the_offline_model_answers(tmp_path: Path) -> None:
    config = {"models": {"definitions": {"mine": {"provider": "anthropic", "model": "m", "api_key": "${KEY}"}}}}
    (tmp_path / "keyless.yaml").write_text(json.dumps({**config, "chains": {"default": {"model": "mine"}}}))
    settings = load_settings(config=tmp_path / "keyless.yaml", environ={}, cwd=tmp_path)
    async with open_prompt(tmp_path, settings=settings) as prompt:
        row = await prompt.screen.until_row("no API key")
    assert row == "ℹ no API key: the offline model answers; set KEY for mine"


async def test_the_first_query_is_not_parsed(tmp_path: Path) -> None:
    async with open_prompt(tmp_path, query="stop") as prompt:
        await prompt.screen.until_row("▶ stop")
        await prompt.screen.until_row("Noted.")


@pytest.mark.parametrize(
    ("actions", "effects"),
    [
        pytest.param(["press", "press"], ["hint", "exit"], id="twice"),
        pytest.param(["press", "wait", "press", "press"], ["hint", "hint", "exit"], id="after a pause"),
        pytest.param(["press with text"] * 2 + ["press"], ["clear", "clear", "hint"], id="with a text"),
        pytest.param(["press", "send a line", "press"], ["hint", "hint"], id="before and after a line"),
        pytest.param(["start a run", "press"], ["interrupt"], id="during a run"),
        pytest.param(
            ["start a run", "press with text", "press", "press"], ["interrupt", "hint", "exit"], id="until the exit"
        ),
        pytest.param(["start a run", "press", "wait", "press with text"], ["interrupt", "clear"], id="after a run"),
    ],
)
async def test_ctrl_c_clears_interrupts_or_exits(
    tmp_path: Path, mock_clock: MockClock, actions: list[str], effects: list[str]
) -> None:
    observed = list[str]()
    async with open_prompt(tmp_path) as prompt:

        async def press(*, has_text: bool) -> None:
            rows_before, was_running = len(prompt.screen.rows), prompt.is_running
            if prompt.user.on_ctrl_c(has_text=has_text):
                observed.append("clear")
            if was_running:
                await prompt.screen.until(lambda: prompt.user.awaits_input or prompt.code is not None)
            hints = prompt.screen.rows[rows_before:].count("Press Ctrl-C again to exit, or Ctrl-D.")
            observed.extend(["hint"] * hints)
            if was_running and not prompt.is_running:
                observed.append("interrupt")

        for action in actions:
            match action:
                case "wait":
                    mock_clock.jump(DOUBLE_PRESS_S + 1)
                case "start a run":
                    await prompt.send("Do the task", "Looking.")
                    await prompt.gate.started.wait()
                case "send a line":
                    await prompt.send("/todo", "The plan is empty.")
                case _:
                    await press(has_text=action == "press with text")
    if prompt.code == INTERRUPTED_CODE:
        observed.append("exit")
    assert observed == effects


async def test_esc_twice_offers_to_undo_a_run(tmp_path: Path) -> None:
    async with open_prompt(tmp_path, STORING_RULES, groups=["edit"]) as prompt:
        prompt.user.next_mode()
        await prompt.send("store", "Noted.")
        await prompt.wait_idle()
        for _ in range(2):
            prompt.user.on_escape(has_text=False)
        *_, last_row = prompt.screen.rows
        assert re.fullmatch(r"  1  \S+ \d\d:\d\d  store +a.txt", last_row)
        assert prompt.screen.calls == [("edit", "/undo ")]
        await prompt.send("/undo 1", "a.txt")
    assert not (tmp_path / "work/a.txt").exists()


async def test_only_two_quick_escs_without_text_count(tmp_path: Path, mock_clock: MockClock) -> None:
    async with open_prompt(tmp_path) as prompt:
        too_late_s = DOUBLE_PRESS_S + 1
        for seconds_before, has_text in ((0, False), (0, True), (0, False), (too_late_s, False)):
            mock_clock.jump(seconds_before)
            prompt.user.on_escape(has_text=has_text)
        assert "No run can be undone." not in prompt.screen.rows
        prompt.user.on_escape(has_text=False)  # the second without a text, and in time
        assert "No run can be undone." in prompt.screen.rows


async def test_unsent_lines_are_named_after_a_signal(tmp_path: Path) -> None:
    scheduled = [parse_moment("@iteration 9 too late", strict=True)]
    async with open_prompt(tmp_path, scheduled=scheduled) as prompt:
        await prompt.send("Do the task", "Looking.")
        await prompt.send("use B")
        prompt.screen.text = "half a\nthought"
        prompt.signals.send_nowait(signal.SIGTERM)
        await prompt.ended.wait()
    (id,) = journals(tmp_path)
    assert prompt.code == 128 + signal.SIGTERM
    end_of_run, *farewell = prompt.screen.rows[-5:]
    assert end_of_run.startswith("⏹ interrupted, 1 iteration")
    assert farewell == [
        "Not sent: @iteration 9 too late",
        "Not sent: half a\n  thought",
        "1 line stays queued in the session.",
        f"Resume this session with: chain -r {id}",
    ]
    assert line_states(tmp_path) == [{"Do the task": "delivered", "use B": "queued"}]


async def test_the_end_of_a_job_is_counted_separately(tmp_path: Path) -> None:
    @tool
    async def work(ctx: ToolContext) -> str:
        """Start a job."""

        async def run(on_output: object) -> JobEnd:
            await trio.sleep_forever()
            raise AssertionError

        return ctx.jobs.start(ctx.agent, ctx.call_id, "make", run, wakes=False)

    async with open_prompt(tmp_path, JOB_RULES, tools=[work]) as prompt:
        await prompt.send("start", "✓ done")
        await prompt.wait_idle()
        assert "idle · ask · 1 job · " in prompt.toolbar()
        assert await prompt.quit() == 0
    assert "1 job end stays queued in the session." in prompt.screen.rows


async def test_ctrl_d_with_waiting_lines_exits_with_3(tmp_path: Path) -> None:
    async with open_prompt(tmp_path) as prompt:
        await prompt.send("Do the task", "Looking.")
        await prompt.send("use B")
        assert await prompt.quit() == 3


async def test_commands_reach_the_editor_and_the_clipboard(tmp_path: Path) -> None:
    async with open_prompt(tmp_path) as prompt:
        await prompt.send("hello", "Noted.")
        await prompt.wait_idle()
        await prompt.send("/copy", f"Sent to the clipboard: {len('Noted.')} characters.")
        await prompt.send("Do the task", "Looking.")
        await prompt.send("use B")
        await prompt.send("/edit")
        assert prompt.screen.calls == [("copy", "Noted."), ("edit", "use B")]


async def test_keys_reach_the_session(tmp_path: Path) -> None:
    async with open_prompt(tmp_path) as prompt:
        await prompt.send("Do the task", "Looking.")
        await prompt.send("use B")
        assert prompt.user.take_back() == "use B"
        assert prompt.user.completions("/qui") == ["/quit"]
        assert [choice.label for choice in prompt.user.menu("/qui")] == ["/quit"]
        assert "Looking." in "\n".join(prompt.user.session_rows())


async def test_a_resumed_session_restores_lines_draft_and_limit(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work/AGENTS.md").write_text("Use make.")
    async with open_prompt(tmp_path) as prompt:
        await prompt.send("hello", "Noted.")
        await prompt.send("Do the task", "Looking.")
        await prompt.send("use B")
        await prompt.send("use C")
        prompt.screen.text = "half a thought"
        assert await prompt.quit() == 3, "lines wait"
    (id,) = journals(tmp_path)
    async with open_prompt(tmp_path, place=Place(tmp_path / "work", id)) as prompt:
        # L1 and L2 are the queries.
        await prompt.screen.until_row("2 earlier lines wait (L3, L4): Enter on an empty line sends them")
        queries = [row for row in prompt.screen.rows if row.startswith("▶")]
        assert queries == ["▶ hello", "▶ Do the task"]
        assert prompt.screen.rows.count("ℹ Project instructions: AGENTS.md.") == 1
        assert prompt.screen.calls == [("edit", "half a thought")]
        await prompt.send("", "🔔 INTERRUPTION before iteration 1: use B")
        await prompt.wait_idle()


async def test_a_query_that_the_model_refuses_comes_back(tmp_path: Path) -> None:
    async with open_prompt(tmp_path, "rules: [{text: No., stop_reason: refusal}]") as prompt:
        await prompt.send("hello", "The model refused to answer")
        await prompt.screen.until(lambda: prompt.screen.calls)
        assert prompt.screen.calls == [("give back", "hello")]


AGENT_RULES = """
rules:
  - {when: {user: '^look', step: 1}, tools: [{name: explore, input: {task: "Do the task"}}]}
  - {when: {user: '^Do the task', step: 1}, text: Looking., tools: [{name: wait, input: {}}]}
  - {when: {interruption: '(?P<said>.+)'}, text: "Heard: ${said}"}
  - {text: Noted.}
"""


@asynccontextmanager
async def open_prompt_with_agent(folder: Path) -> AsyncIterator[Prompt]:
    """Yield a prompt with the agent ``explore-1`` at work."""
    async with open_prompt(folder, AGENT_RULES, groups=["agents"], agents={"explore": {"tools": ["wait"]}}) as prompt:
        await prompt.send("look around")
        await prompt.screen.until(lambda: prompt.user.target("use B") == "explore-1")
        yield prompt


@pytest.mark.parametrize(
    ("typed", "target", "end_of_toolbar"),
    [
        ("use B", "explore-1", "⏳ explore-1, next safe point"),
        ("/to main use C", "", "⏳ main, next safe point"),
        ("todo: add x", "", "plan, next safe point"),
        ("/to explore-7 x", "", "no such agent at work"),
        ("stop", "", "stops the run"),
    ],
)
async def test_the_toolbar_names_the_recipient(tmp_path: Path, typed: str, target: str, end_of_toolbar: str) -> None:
    async with open_prompt_with_agent(tmp_path) as prompt:
        assert prompt.user.target(typed) == target
        assert prompt.toolbar(typed).endswith(end_of_toolbar)


async def test_lines_go_to_the_named_agent(tmp_path: Path) -> None:
    async with open_prompt_with_agent(tmp_path) as prompt:
        await prompt.send("use B")
        await prompt.send("/to main use C")
        assert prompt.user.take_back() == "/to main use C"
        await prompt.send("/agents explore-1", "Looking.")
        prompt.gate.open.set()
        await prompt.screen.until_row("Heard: use B")
        await prompt.wait_idle()


async def test_a_line_for_an_absent_agent_is_kept(tmp_path: Path) -> None:
    async with open_prompt(tmp_path) as prompt:
        assert prompt.user.accept("/to explore-1 hello") == "keep"
        await prompt.screen.until_row("active: main")


@pytest.mark.parametrize(
    ("continues", "resume", "error"),
    [
        pytest.param(
            False, "lost", "there is no session 'lost'; chain sessions list shows all sessions", id="an unknown id"
        ),
        pytest.param(True, None, "; start one without --continue", id="no session to continue"),
        pytest.param(True, "x", "--continue and --resume cannot be used together", id="both options"),
    ],
)
def test_a_session_that_cannot_be_resumed(tmp_path: Path, continues: bool, resume: str | None, error: str) -> None:
    args = Namespace(workspace=None, no_session=False, resume=resume, **{"continue": continues})
    with pytest.raises(UserError, match=error):
        read_place(args, tmp_path)
