"""Several sessions of one program at a real terminal, sessions that are resumed, and a disk that makes them wait."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.house import ROOT
from support.journals import journal_files, journals, receipts_of
from support.program import gates
from support.screen import Screen
from support.terminal import CTRL_C, CTRL_D, CTRL_R, ESC, UP, Start, busy, edits, idle, quit, send

pytest_plugins = ["support.terminal"]

SLOW_DISK = (sys.executable, str(ROOT / "tests/support/slow_disk_program.py"))

AFRESH = "New conversation"


def told(screen: Screen) -> list[dict[str, tuple[str, str]]]:
    """The lines of each session, the latest last: by their ids, their texts and what became of them."""
    return [
        {id: (line.text, line.state) for id, line in receipts_of(records).items()}
        for _, records in sorted(journals(screen.home).items(), key=lambda item: item[1][0]["time"])
    ]


def afresh(screen: Screen) -> Screen:
    """Go on with a new session."""
    count = screen.everything.count(AFRESH)
    send(idle(screen), "/new").until(lambda s: s.everything.count(AFRESH) > count)
    return idle(screen)


@contextmanager
def standing_disk(screen: Screen, at: str = "disk") -> Iterator[None]:
    """Inside the block nothing comes to the disk, or no write to a journal ends (``at`` is ``write``)."""
    gate = gates(screen.home) / at
    os.mkfifo(gate)
    try:
        yield
    finally:
        # With both ends open nobody waits for the pipe to be opened, and who reads it has its end when they close.
        both = os.open(gate, os.O_RDWR | os.O_NONBLOCK)
        gate.unlink()
        os.close(both)


@pytest.fixture
def slow(start: Start) -> Screen:
    """The program with its prompt up, on a disk that can be made to stand."""
    return idle(start(under=SLOW_DISK))


# ------------------------------------------------------------------------------------------------------------ sessions


@pytest.mark.slow
def test_new_conversations_are_sessions_and_one_is_resumed_at_the_prompt(screen: Screen) -> None:
    send(screen, "todo: add buy milk", "todo: add ask for more", "todo: fail 2 closed").until("closed")
    send(idle(screen), "hello").until("Done: hello")
    first = journal_files(screen.home)[-1].stem
    afresh(screen).until(lambda s: "plan 1/2" in s.toolbar)
    assert f"{AFRESH} with the same plan (1/2)" in screen.everything
    send(screen, "hello again").until("Done: hello again")
    second = journal_files(screen.home)[-1].stem
    send(idle(screen), f"/resume {second[:-3]}").until("this session is already open")
    screen.type(CTRL_C)
    send(screen, "todo: clear", "/resume").until(lambda s: s.everything.count(first) > 1)
    send(screen, f"/resume {first}").until("Session resumed.").until(lambda s: "plan 1/2" in s.toolbar)
    send(idle(screen), "hello at last").until("Done: hello at last")

    quit(idle(screen))
    lines = {"L1": "todo: add buy milk", "L2": "todo: add ask for more", "L3": "todo: fail 2 closed"}
    assert told(screen) == [
        {**{id: (text, "handled") for id, text in lines.items()}, **delivered(L4="hello", L5="hello at last")},
        {**delivered(L1="hello again"), "L2": ("todo: clear", "handled")},
    ]
    for id in (first, second):
        assert screen.times(f"Resume this session with: chain -r {id}") == 1
    assert first in "".join(screen.rows[-2:])
    # The model of a new session is told the plan, and nothing else of what was before.
    trace: dict[str, Any] = json.loads((screen.home / f"state/chain/traces/{second}-1.json").read_text())
    (request,) = [step for step in trace["steps"] if step["type"] == "request"]
    assert [block["text"] for message in request["messages"] for block in message["content"]] == ["hello again"]
    assert "[ ] 1. buy milk" in request["tail"][0]


def delivered(**texts: str) -> dict[str, tuple[str, str]]:
    return {id: (text, "delivered") for id, text in texts.items()}


def test_after_kill_9_in_the_middle_of_a_tool_the_session_and_the_history_go_on(start: Start) -> None:
    first = idle(start())
    send(first, "an alpha query").until("Done: an alpha query")
    busy(idle(first), "gate a")
    send(first, "!use B").until("Interrupting: !use B").until(lambda s: journals_have(s, "use B"))
    first.kill(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    id = journal_files(first.home)[-1].stem

    second = idle(start("-r", id[:-3]).until("from before waits"))
    assert "▶ gate a" in second.everything
    assert second.times("[Interrupted: stopped while running")
    assert second.times("The program ended in the middle of the last run, 1 tool running.")
    assert second.times("1 line from before waits (L3): Enter on an empty line sends it")
    second.type("\r")
    idle(second.until("Understood: use B")).type(UP)
    second.until(edits("!use B"))
    second.type(f"\x15{CTRL_R}alph")
    second.until("an alpha query")
    second.type("\r")
    second.until(edits("an alpha query"))
    send(second, "").until(lambda s: s.everything.count("Done: an alpha query") == 2)
    quit(idle(second))
    texts = {"L1": "an alpha query", "L2": "gate a", "L3": "!use B", "L4": "an alpha query"}
    assert told(second) == [delivered(**texts)]
    histories = list((second.home / "state/chain").rglob("*hist*"))
    assert [file.stat().st_mode & 0o077 for file in histories] == [0]


@pytest.mark.slow
def test_what_was_chosen_stays_and_what_was_interrupted_leaves_nothing(screen: Screen) -> None:
    send(screen, "/thinking on").until("Thoughts are now shown in full")
    busy(screen, "hang", "hang")
    send(screen, "waits").until("📤 Interrupting: waits")
    screen.type(ESC)
    screen.until("⏹ interrupted").until(edits("waits\n"))
    screen.type("\x15\x7f\x15")
    afresh(screen)
    assert "hang" not in screen.toolbar
    send(screen, "think").until("Considering it from all sides.").until("Thought about it.")
    send(idle(screen), "/model other")
    afresh(screen)
    send(screen, "hello").until("The other one says: hello")
    send(idle(screen), "/model").until(lambda s: any(row.split()[:2] == ["*", "other"] for row in s.rows))
    send(screen, "/queue").until("No line is waiting.")
    send(idle(screen), "/quit")

    assert screen.wait() == 0
    assert told(screen) == [
        {"L1": ("hang", "delivered"), "L2": ("waits", "returned")},
        delivered(L1="think"),
        delivered(L1="hello"),
    ]


# ----------------------------------------------------------------------------------------------- while one is opened


@pytest.mark.slow
def test_a_session_that_cannot_be_opened_leaves_the_old_one_in_use(screen: Screen) -> None:
    send(screen, "hello").until("Done: hello")
    folder = screen.home / "state/chain/sessions"
    folder.rename(folder.with_name("elsewhere"))
    folder.write_text("no folder")
    send(idle(screen), "/new").until("XDG_STATE_HOME")
    idle(screen)
    send(screen, "and you").until("Done: and you")
    folder.unlink()
    folder.with_name("elsewhere").rename(folder)
    assert AFRESH not in screen.everything

    quit(idle(screen))
    assert told(screen) == [{"L1": ("hello", "delivered"), "L2": ("and you", "delivered")}]


@pytest.mark.slow
def test_what_is_typed_while_a_session_is_opened_stays_for_it(slow: Screen) -> None:
    send(slow, "hello").until("Done: hello")
    with standing_disk(idle(slow)):
        send(slow, "/new").until(lambda s: len(journal_files(s.home)) == 2)
        slow.type("early bird\rand more")
        slow.until(edits("early bird\nand more"))
        assert AFRESH not in slow.everything
    slow.until(AFRESH).until(edits("early bird\nand more"))
    slow.type("\r")
    slow.until("Done: early bird")

    idle(slow)
    quit(slow)
    assert told(slow)[0] == {"L1": ("hello", "delivered")}
    assert told(slow)[1]["L1"] == ("early bird", "delivered")


@pytest.mark.slow
def test_a_disk_that_hangs_in_a_sync_holds_up_neither_keys_nor_esc_and_loses_nothing(slow: Screen) -> None:
    busy(slow, "gate a")
    with standing_disk(slow):
        slow.type(ESC)
        idle(slow.until("Interrupted"))
        for line in ("hello", "and you"):
            send(slow, line)
            slow.type("half")
            slow.until(edits("half"))
            slow.type("\x15")
            slow.until(edits(""))
        assert "Done" not in slow.everything
    slow.until("Done: hello")
    idle(slow)
    quit(slow)
    assert dict(told(slow)[0].values()) == {
        "gate a": "delivered",
        "hello": "delivered",
        "and you": "delivered",
    }


@pytest.mark.slow
def test_after_a_write_that_hangs_ctrl_c_is_a_key_again(slow: Screen) -> None:
    with standing_disk(slow, "write"):
        send(slow, "hello").until(lambda s: s.sends_signals)
    idle(slow.until("Done: hello"))
    assert not slow.sends_signals
    quit(slow)


@pytest.mark.slow
@pytest.mark.parametrize(("way", "code"), [("Ctrl-C", 130), ("SIGTERM", 143)])
def test_a_write_that_hangs_lets_keys_echo_and_the_program_end(slow: Screen, way: str, code: int) -> None:
    screen = slow
    busy(screen, "gate a")
    with standing_disk(screen, "write"):
        screen.open_gate("a")
        screen.type("half")
        screen.until(edits("half"))
        if way == "Ctrl-C":
            screen.type(CTRL_C)
            screen.until(lambda s: s.sends_signals)
        again = partial(screen.type, CTRL_C) if way == "Ctrl-C" else partial(screen.kill, signal.SIGTERM)
        screen.until(lambda s: s.has_ended or again())
        assert screen.wait() == code
    assert screen.is_cooked


@pytest.mark.slow
@pytest.mark.parametrize("way", ["Ctrl-D", "SIGTERM"])
def test_who_leaves_meanwhile_leaves(slow: Screen, way: str) -> None:
    with standing_disk(slow):
        send(slow, "/new").until(lambda s: len(journal_files(s.home)) == 2)
        if way == "Ctrl-D":
            slow.type(CTRL_D)
        else:
            slow.type("half")
            slow.until(edits("half"))
            slow.kill(signal.SIGTERM)
    assert slow.wait() == (0 if way == "Ctrl-D" else 143)
    assert slow.left_behind == []
    # Of the second it was not known yet that it can be gone on with.
    assert any(slow.times(f"chain -r {path.stem}") == 1 for path in journal_files(slow.home))
    assert way == "Ctrl-D" or "Not sent: half" in slow.everything


# ------------------------------------------------------------------------------------------------------------ resuming


@pytest.mark.slow
def test_which_instructions_are_read_is_told_once(start: Start, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work/AGENTS.md").write_text("Use make.")
    screen = idle(start())
    send(screen, "hello there").until("Done: hello there")
    quit(idle(screen))

    again = idle(start("-c").until("Done: hello there").until("/help explains"))
    assert again.everything.count("Project instructions: AGENTS.md.") == 1
    quit(again)


@pytest.mark.slow
def test_a_session_is_chosen_from_a_list_and_is_one_programs_at_a_time(start: Start) -> None:
    first = idle(start())
    send(first, "hello").until("Done: hello")
    quit(idle(first))
    id = journal_files(first.home)[-1].stem
    screen = start("-r").until("Resume which session?")
    assert next(row for row in screen.rows if id in row).startswith(" 1. ")
    screen.type("9z\r")
    screen.until("there is no session '9z'")
    screen.until(lambda s: s.everything.count("Resume which session?") == 2)
    screen.type("1\r")
    screen.until("Done: hello")
    second = start("-r", id)
    assert second.wait() == 2
    assert second.times(f"the session {id} is open in another process; chain watch shows it, and chain send")
    send(idle(screen), "hello again").until("Done: hello again")
    quit(idle(screen))
    assert [len(lines) for lines in told(screen)] == [2]
    none = start("-r").until("Resume which session?")
    none.type("\r")
    assert none.wait() == 0


def journals_have(screen: Screen, text: str) -> bool:
    return any(text.encode() in path.read_bytes() for path in journal_files(screen.home))


@pytest.mark.slow
def test_what_cannot_be_resumed_is_said(start: Start) -> None:
    for arguments, says in (
        (["-r", "nothing"], "there is no session 'nothing'; chain sessions list shows all sessions"),
        (["-c"], "; start one without --continue"),
        (["-c", "-r", "x"], "--continue and --resume cannot be used together"),
    ):
        screen = start(*arguments)
        assert screen.wait() == 2
        assert screen.times(says)
