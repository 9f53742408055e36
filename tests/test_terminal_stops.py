"""Stopping and steering at a real terminal, and in a headless program: what is seen, how soon, and what is left.

The rest of the terminal's tests, and how they work, are in ``test_terminal.py``.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support import forked
from support.journals import receipts, records
from support.program import environ, program
from support.screen import Condition, Screen
from support.terminal import CTRL_C, ESC, Start, busy, edits, idle, left, quit, send, states

pytest_plugins = ["support.terminal"]

SOON_S = 0.5
"""What is at once for the user takes less."""

ECHOES = 30
"""A machine that does other work as well takes longer: as long as the echoes of so many keys do there, at the most."""

TRIES = 3
"""One that is quick enough shows that nothing is waited for."""


def seconds(screen: Screen, keys: str, condition: Condition) -> float:
    """How long after these keys the condition holds."""
    begun = time.monotonic()
    screen.type(keys)
    screen.until(condition)
    return time.monotonic() - begun


def is_idle(screen: Screen) -> bool:
    return "idle" in screen.toolbar


def is_soon(screen: Screen, attempt: Callable[[int], float]) -> bool:
    """Whether one of some attempts takes no longer than what is at once."""
    return any(attempt(n) < max(SOON_S, ECHOES * echo(screen)) for n in range(TRIES))


def echo(screen: Screen) -> float:
    """How long a key takes to be seen."""
    took = seconds(screen, "e", edits("e"))
    screen.type("\x15")
    screen.until(edits(""))
    return took


def clear(screen: Screen) -> Screen:
    """Empty the editor."""
    screen.type(CTRL_C)
    return idle(screen)


def alone(screen: Screen) -> Screen:
    """Wait until an Esc was taken for itself: together with some keys that follow quickly it would mean Alt."""
    screen.type("x")
    screen.until(edits("x"))
    screen.type("\x15")
    return idle(screen)


def works(screen: Screen) -> None:
    """A new query is answered."""
    count = screen.everything.count("Done: a new query")
    send(screen, "a new query").until(lambda s: s.everything.count("Done: a new query") == count + 1)
    idle(screen)


# ------------------------------------------------------------------------------------------------------ steer and stop


@pytest.mark.spec("7", "urgent")
def test_an_urgent_line_in_a_batch_of_three_skips_the_two_that_wait(screen: Screen) -> None:
    busy(screen, "gates a b c")
    send(screen, "!use the other file").until("⚡ ASAP, may skip tools")
    assert "INTERRUPTION" not in screen.everything

    screen.open_gate("a")

    screen.until("🔔 INTERRUPTION at iteration 1:").until("⏭ skipped: 2 × gate")
    screen.until(lambda s: re.search(r" ✓ injected \(\d+ s\) ", s.flat))
    screen.until("Understood: use the other file")
    idle(screen)
    assert screen.everything.count("✗ gate · [Skipped: user interrupted]") == 2
    assert [r["type"] for r in records(screen.home) if r["type"].startswith("tool_")] == [
        "tool_started",
        "tool_finished",
    ]
    quit(screen)


@pytest.mark.spec("7", "stop, in a reply that streams")
def test_a_stop_cuts_a_streaming_answer_at_once_and_shows_what_was_found(screen: Screen) -> None:
    shown: list[list[str]] = []

    def attempt(n: int) -> float:
        before = len(screen.everything)
        busy(screen, f"survey s{n}")
        screen.open_gate(f"s{n}", "five products")
        screen.until(lambda s: "w05" in s.everything[before:])
        took = seconds(screen, "stop\r", lambda s: "What would you like to do instead?" in s.everything[before:])
        told = idle(screen).everything[before:]
        shown.append(re.findall(r"w\d\d", told))
        assert "⏹ stop" in told
        assert f"✓ gate s{n} · five products" in screen.everything
        assert "Here's what I found" not in told
        assert "[1 done, 0 skipped]" in told
        assert "Results found but response generation was cancelled" in told
        assert "⏹ cancelled during synthesis" in told
        return took

    assert is_soon(screen, attempt)
    for words in shown:
        assert len(words) < 40
        assert words == sorted(set(words)), "what was shown is not shown again"
    works(screen)
    quit(screen)


@pytest.mark.spec("7", "stop, in a tool")
def test_a_stop_says_what_it_waits_for_and_esc_kills_it(screen: Screen) -> None:
    busy(screen, "hang", "hang")

    send(screen, "stop")

    screen.until(lambda s: re.search(r"^⏹ Stopping after hang \(\d+ s\); Esc kills it$", s.everything, re.M))
    screen.until(lambda s: "Stopping after hang" in s.toolbar)
    screen.type(ESC)
    screen.until("⏹ interrupted").until("Interrupted. Tell the chain what to do instead.")
    alone(screen)
    assert "✗ hang" in screen.everything
    assert "What would you like to do" not in screen.everything
    works(screen)
    quit(screen)
    assert states(screen) == {"hang": "delivered", "stop": "handled", "a new query": "delivered"}


# ------------------------------------------------------------------------------------------------------------------ Esc


def test_esc_in_a_hanging_tool_gives_the_prompt_back_at_once(screen: Screen) -> None:
    def attempt(n: int) -> float:
        busy(screen, "hang", "hang")
        return seconds(screen, ESC, is_idle)

    assert is_soon(screen, attempt)
    works(alone(screen))
    assert "Interrupted. Tell the chain what to do instead." in screen.everything
    quit(screen)


def test_esc_esc_is_one_interrupt_and_the_next_query_works(screen: Screen) -> None:
    for n, keys in enumerate((ESC + ESC, ESC * 5), 1):
        busy(screen, "hang", "hang")
        screen.type(keys)
        screen.until(lambda s, n=n: s.everything.count("⏹ interrupted") == n)
        works(alone(screen))
        assert screen.everything.count("⏹ interrupted") == n
    busy(screen, "hang", "hang")
    screen.type(ESC)
    screen.until(is_idle)
    screen.type(ESC)
    works(alone(screen))
    assert screen.everything.count("⏹ interrupted") == 3
    quit(screen)


@pytest.mark.spec("7", "with no run active: Ctrl-C, Esc")
def test_esc_with_nothing_to_interrupt_leaves_nothing_behind(screen: Screen) -> None:
    rows = screen.until("/help explains the rest").rows
    for keys in (ESC, ESC + ESC):
        screen.type(keys)
        alone(screen)
    screen.until(lambda s: s.rows == rows)
    assert [r["type"] for r in records(screen.home)] == ["session"]
    works(screen)
    assert "interrupted" not in screen.everything
    quit(screen)


@pytest.mark.slow
def test_esc_in_the_wait_before_another_attempt(screen: Screen) -> None:
    send(screen, "stall").until("↻ the service is full, again in ")
    screen.until(lambda s: "retry in" in s.toolbar)

    screen.type(ESC)

    screen.until("⏹ interrupted")
    send(alone(screen), "stall").until("Up again.")
    quit(idle(screen))


# ---------------------------------------------------------------------------------------------------------------- exits


@pytest.mark.slow
@pytest.mark.spec("7", "exit: Ctrl-C twice")
def test_two_quick_ctrl_c_leave_from_a_hanging_tool(screen: Screen) -> None:
    busy(screen, "hang", "hang")
    send(screen, "waits").until("📤 Interrupting: waits")

    screen.type(CTRL_C + CTRL_C)

    left(screen, 130)
    last = records(screen.home)[-1]
    assert (last["type"], last["status"]) == ("result", "interrupted")
    assert states(screen) == {"hang": "delivered", "waits": "returned"}


@pytest.mark.spec("7", "exit: Ctrl-D, SIGTERM, /quit")
@pytest.mark.spec("7", "143")
def test_sigterm_closes_the_session(screen: Screen) -> None:
    busy(screen, "gates a b")
    send(screen, "waits").until("📤 Interrupting: waits")

    screen.kill(signal.SIGTERM)

    left(screen, 143)
    found = records(screen.home)
    assert (found[-1]["type"], found[-1]["status"]) == ("result", "interrupted")
    [results] = [r["message"]["content"] for r in found if r["type"] == "message" and "tool_use_id" in str(r)]
    assert [b["content"] for b in results] == [
        "[Interrupted: stopped while running, it may have had effects]",
        "[Skipped: user interrupted]",
    ]
    assert "Came back: waits" in screen.rows


@pytest.mark.slow
@pytest.mark.spec("7", "3: a line was not sent")
def test_the_last_words_name_what_was_not_sent(start: Start) -> None:
    screen = idle(start("--say", "@iteration 9 too late"))
    busy(screen, "hang", "hang")
    send(screen, "one waits", "!another waits").until("📤 Interrupting: !another waits")

    send(screen, "/quit")

    left(screen, 3)
    rows = [row for row in screen.rows if row.startswith(("Came back: ", "Not sent: "))]
    assert rows == ["Came back: one waits", "Came back: !another waits", "Not sent: @iteration 9 too late"]


# --------------------------------------------------------------------------------------------------- lines that wait


def test_waiting_lines_are_listed_dropped_and_edited(screen: Screen) -> None:
    busy(screen, "gate a")
    send(screen, *(f"line {n}" for n in range(1, 11))).until(lambda s: "queue 10/10" in s.toolbar)
    send(screen, "one more").until("⚠️ Interruption channel full, try again").until(edits("one more"))
    screen.type("\x15")
    screen.until(edits(""))

    send(screen, "/drop L4").until("↩ Dropped: line 3").until(lambda s: "queue 9/10" in s.toolbar)
    send(screen, "one more").until("📤 Interrupting: one more").until(lambda s: "queue 10/10" in s.toolbar)
    send(screen, "/edit L6").until("↩ Dropped (taken back to edit): line 5").until(edits("line 5"))
    send(screen, " as I mean it").until("📤 Interrupting: line 5 as I mean it")
    send(screen, "/queue").until(lambda s: re.search(r"^\s*L13 .*line 5 as I mean it$", s.everything, re.M))
    screen.open_gate("a")

    screen.until("✓ injected")
    quit(idle(screen))
    delivered = [line.text for line in receipts(screen.home).values() if line.point == "D"]
    assert delivered == [
        *(f"line {n}" for n in (1, 2, 4, 6, 7, 8, 9, 10)),
        "one more",
        "line 5 as I mean it",
    ]


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("ends", ["Esc", "stop"])
def test_what_waited_is_in_the_editor_again_as_it_was_typed(screen: Screen, ends: str) -> None:
    lines = ["use B", "!use C", "todo: add x", "context: it is late", " stop", "focus on y", "why?", "then: the next"]
    busy(screen, "gates a b")
    send(screen, *lines).until("📤 Interrupting: then: the next")
    screen.type("half")
    screen.until(edits("half"))

    if ends == "Esc":
        screen.type(ESC)
    else:
        screen.type("\x15")
        send(screen, "stop").until("⏹ Stopping after gate")
        screen.type("half")
        screen.open_gate("a")

    screen.until(edits("\n".join([*lines, "half"]))).until("⏹ ")
    assert "plan" not in screen.toolbar, "what came back was not done"
    quit(clear(screen))
    found = [line.state for line in receipts(screen.home).values() if line.text in lines]
    assert found == ["returned"] * len(lines)


# ------------------------------------------------------------------------------------------------------------- headless


@pytest.mark.spec("7", "the four fields")
def test_a_stop_in_a_tool_of_a_headless_run(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work/notes.txt").write_text("sku: SKU123\nprice: 9\n")

    args = ("-p", "search for SKU123", "--model", "offline", "--say", "@tool search_files stop")
    ran = forked.run(
        program(*args, "--output-format", "json"),
        cwd=tmp_path / "work",
        env=environ(tmp_path, {}),
        stdin=subprocess.DEVNULL,
        timeout=60,
    )

    assert ran.returncode == 0, ran.stderr.decode()
    result = json.loads(ran.stdout)
    assert (result["type"], result["status"], result["exit_code"]) == ("result", "cancelled_with_partial", 0)
    assert (result["termination_reason"], result["partial"]) == ("user_cancelled", True)
    assert result["phase_reached"] == "tools"
    [found] = result["partial_results"]
    assert "notes.txt:1: sku: SKU123" in found
    assert result["result"].startswith("Here's what I found before you cancelled:\n• search_files: notes.txt:1: ")
    assert [(r["text"], r["state"]) for r in result["receipts"]] == [
        ("search for SKU123", "delivered"),
        ("stop", "handled"),
    ]
