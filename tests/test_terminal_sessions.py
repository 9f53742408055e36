"""Several sessions of one program at a real terminal, one after the other.

The rest of the terminal's tests, and how they work, are in ``test_terminal.py``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.examples import one
from support.house import ROOT
from support.journals import journal_files, journals, receipts_of
from support.program import gates
from support.screen import Screen
from support.terminal import CTRL_C, CTRL_D, ESC, Start, busy, edits, idle, quit, send

from chain.session.resume import MAX_PAST

pytest_plugins = ["support.terminal"]

SLOW_DISK = (sys.executable, str(ROOT / "tests/support/slow_disk_program.py"))

AFRESH = "The conversation begins afresh"


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


def sessions(screen: Screen) -> int:
    return len(journal_files(screen.home))


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


@pytest.mark.spec("4", "model_context_window_exceeded")
def test_each_new_conversation_is_a_session_of_its_own(screen: Screen) -> None:
    send(screen, "todo: add buy milk", "todo: add ask for more", "todo: fail 2 closed").until("closed")
    send(idle(screen), "hello").until("Done: hello")
    afresh(screen).until(lambda s: "plan 1/2" in s.toolbar)
    assert f"{AFRESH}; the plan is kept (1/2), which" in screen.everything
    send(screen, "hello again").until("Done: hello again")
    afresh(screen)
    send(screen, "todo: clear", "hello at last").until("Done: hello at last")

    quit(idle(screen))
    plan = ["todo: add buy milk", "todo: add ask for more", "todo: fail 2 closed"]
    assert told(screen) == [
        {**{f"L{n}": (text, "handled") for n, text in enumerate(plan, 1)}, "L4": ("hello", "delivered")},
        {"L1": ("hello again", "delivered")},
        {"L1": ("todo: clear", "handled"), "L2": ("hello at last", "delivered")},
    ]
    for path in journal_files(screen.home):
        assert screen.times(f"Session {path.stem}; chain -r {path.stem} goes on with it.") == 1
    assert journal_files(screen.home)[-1].stem in "".join(screen.rows[-2:])
    assert [
        len([row for row in screen.rows if row.startswith("chain ") and path.stem in row])
        for path in journal_files(screen.home)
    ] == [1, 1, 1]


def test_the_model_of_a_new_session_is_told_the_plan_and_nothing_else(screen: Screen) -> None:
    send(screen, "todo: add buy milk", "hello").until("Done: hello")
    afresh(screen)
    send(screen, "hello again").until("Done: hello again")

    quit(idle(screen))
    session = journal_files(screen.home)[-1].stem
    trace: dict[str, Any] = json.loads((screen.home / f"state/chain/traces/{session}-1.json").read_text())
    (request,) = [step for step in trace["steps"] if step["type"] == "request"]
    assert [block["text"] for message in request["messages"] for block in message["content"]] == ["hello again"]
    assert "[ ] 1. buy milk" in request["tail"][0]
    begun = [record for record in journals(screen.home)[session] if record["type"] in ("session", "plan")]
    assert [record["type"] for record in begun] == ["session", "plan"]
    assert [task["text"] for task in begun[1]["tasks"]] == ["buy milk"]


def test_a_run_that_is_active_keeps_its_session(screen: Screen) -> None:
    busy(screen, "gate a")
    send(screen, "/new").until("a run is active; stop it first")
    send(screen, "/resume 2026").until(lambda s: s.everything.count("a run is active; stop it first") == 2)
    screen.open_gate("a")
    idle(screen.until("The gate said opened."))

    quit(screen)
    assert told(screen) == [{"L1": ("gate a", "delivered")}]


@pytest.mark.slow
def test_the_model_that_was_chosen_stays(screen: Screen) -> None:
    send(screen, "/model other")
    send(idle(screen), "hello").until("The other one says: hello")
    afresh(screen)
    send(screen, "hello again").until("The other one says: hello again")
    send(idle(screen), "/model").until(lambda s: any(row.split()[:2] == ["*", "other"] for row in s.rows))

    quit(idle(screen))


@pytest.mark.slow
def test_thoughts_stay_whole_in_the_next_session(screen: Screen) -> None:
    send(idle(screen), "/thinking on").until("thoughts are shown whole")
    afresh(screen)
    send(screen, "think").until("Thought about it.")
    assert "Considering it from all sides." in screen.everything

    quit(idle(screen))


@pytest.mark.slow
def test_what_was_interrupted_leaves_nothing_behind_in_the_next_session(screen: Screen) -> None:
    busy(screen, "hang", "hang")
    send(screen, "waits").until("📤 Interrupting: waits")
    screen.type(ESC)
    screen.until("⏹ interrupted").until(lambda s: (s.editor or "").startswith("waits"))
    screen.type(CTRL_C)
    afresh(screen)
    assert "hang" not in screen.toolbar
    send(screen, "hello").until("Done: hello")
    send(idle(screen), "/queue").until("Nothing waits.")
    send(idle(screen), "/quit")

    assert screen.wait() == 0
    assert told(screen) == [
        {"L1": ("hang", "delivered"), "L2": ("waits", "returned")},
        {"L1": ("hello", "delivered")},
    ]


def test_questions_and_what_was_allowed_are_of_one_session(start: Start, tmp_path: Path) -> None:
    (tmp_path / "test.yaml").write_text(
        "models: {default: test, definitions: {test: {provider: scripted, script: rules.yaml}}}\n"
        "chains: {default: {model: test, tools: [edit]}}\n"
    )
    (tmp_path / "rules.yaml").write_text(
        "rules:\n  - when: {user: '^write (?P<path>.+)', step: 1}\n"
        "    tools: [{name: write_file, input: {path: '${path}', content: new}}]\n  - text: 'Result: ${result}'\n"
    )
    screen = idle(start())
    send(screen, "write a").until(lambda s: s.prompt == "Q1?")
    send(screen, "a").until("✓ done")
    afresh(screen)
    send(screen, "write b").until(lambda s: s.prompt == "Q1?")
    send(screen, "y").until(lambda s: s.everything.count("✓ done") == 2)

    quit(idle(screen))
    assert sorted(path.name for path in (tmp_path / "work").iterdir()) == ["a", "b"]


# ----------------------------------------------------------------------------------------------- while one is opened


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


def test_what_is_typed_while_a_session_is_opened_stays_for_it(slow: Screen) -> None:
    send(slow, "hello").until("Done: hello")
    with standing_disk(idle(slow)):
        send(slow, "/new").until(lambda s: sessions(s) == 2)
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
def test_a_disk_that_hangs_in_a_write_holds_up_neither_keys_nor_esc_and_loses_nothing(slow: Screen) -> None:
    busy(slow, "gate a")
    with standing_disk(slow, "write"):
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


@pytest.mark.sampled
@pytest.mark.parametrize("way", one(["Ctrl-D", "SIGTERM"]))
def test_who_leaves_meanwhile_leaves(slow: Screen, way: str) -> None:
    with standing_disk(slow):
        send(slow, "/new").until(lambda s: sessions(s) == 2)
        if way == "Ctrl-D":
            slow.type(CTRL_D)
        else:
            slow.type("half")
            slow.until(edits("half"))
            slow.kill(signal.SIGTERM)
    assert slow.wait() == (0 if way == "Ctrl-D" else 143)
    assert slow.left_behind == []
    # Of the second it was not known yet that it can be gone on with.
    assert any(slow.times(f"chain -r {path.stem} ") == 1 for path in journal_files(slow.home))
    assert way == "Ctrl-D" or "Not sent: half" in slow.everything


def test_lines_whose_moments_have_not_come_move_along(start: Start) -> None:
    screen = idle(start("--say", "@done the last", "--say", "@iteration 9 too late"))
    afresh(screen)
    send(screen, "hello").until("Done: hello").until("Done: the last")

    send(idle(screen), "/quit")
    assert screen.wait() == 3
    assert "Not sent: @iteration 9 too late" in screen.everything
    assert told(screen) == [{}, {"L1": ("hello", "delivered"), "L2": ("the last", "delivered")}]


def test_on_a_terminal_of_rows_the_next_line_is_for_the_new_session(start: Start) -> None:
    screen = start(env={"TERM": "dumb"}).until(lambda s: s.rows[-1:] == [">"])
    send(screen, "todo: add stay", "/new", "and you").until("Done: and you")

    screen.until(lambda s: s.rows[-1:] == [">"])
    send(screen, "/quit")
    assert screen.wait() == 0
    assert told(screen) == [{"L1": ("todo: add stay", "handled")}, {"L1": ("and you", "delivered")}]


@pytest.mark.slow  # the test above holds it for keys
def test_whole_lines_wait_for_the_new_session_too(start: Start) -> None:
    no_echo = ("/bin/sh", "-c", 'stty -echo; exec "$0" "$@"')
    screen = start(env={"TERM": "dumb"}, under=no_echo).until(lambda s: s.rows[-1:] == [">"])
    screen.type("/new\nhello\n")
    screen.until("Done: hello")
    screen.type("/quit\n")

    assert screen.wait() == 0
    assert told(screen) == [{}, {"L1": ("hello", "delivered")}]


# ------------------------------------------------------------------------------------------------ resuming


def test_after_kill_9_in_the_middle_of_a_tool_the_session_goes_on(start: Start) -> None:
    first = idle(start())
    busy(first, "gate a")
    send(first, "!use B").until("Interrupting: !use B").until(lambda s: journals_have(s, "use B"))
    first.kill(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    id = journal_files(first.home)[-1].stem

    second = idle(start("-r", id[:-3]).until("from before waits"))
    assert "▶ gate a" in second.everything
    assert second.times("[Interrupted: stopped while running")
    assert second.times("The program ended in the middle of the last run, 1 tool running.")
    assert second.times("1 line from before waits (L2): Enter on an empty line sends it")
    send(second, "/queue").until("L2")
    second.type("\r")
    second.until("Understood: use B")
    quit(idle(second))
    assert told(second) == [{"L1": ("gate a", "delivered"), "L2": ("!use B", "delivered")}]

    third = idle(start("-c").until("Understood: use B").until("/help explains"))
    assert "from before" not in third.everything
    send(third, "hello").until("Done: hello")
    quit(idle(third))


def test_a_line_that_a_crash_in_a_refusal_left_is_in_the_editor(start: Start) -> None:
    first = idle(start())
    send(first, "refuse this").until("The model refused")
    first.until(lambda s: (s.editor or "").startswith("refuse this")).type(CTRL_C)
    quit(idle(first))
    path = journal_files(first.home)[-1]
    before, withdrawn, after = path.read_bytes().partition(b'{"type":"withdrawn"')
    path.write_bytes(before + withdrawn + after.partition(b"\n")[0] + b"\n")

    second = start("-c").until(lambda s: (s.editor or "").startswith("refuse this"))
    second.type(CTRL_C)
    quit(idle(second))
    assert told(second) == [{"L1": ("refuse this", "returned")}]


@pytest.mark.slow
def test_a_past_that_is_too_long_says_where_the_rest_is(start: Start) -> None:
    first = idle(start())
    send(first, "todo: add buy milk").until("buy milk")
    quit(idle(first))
    path = journal_files(first.home)[-1]
    records = journals(first.home)[path.stem]
    change = {"type": "model", "time": records[-1]["time"], "name": records[0]["model"]}
    with path.open("a") as file:
        for n in range(1, MAX_PAST + 1):
            file.write(json.dumps({**change, "seq": records[-1]["seq"] + n}) + "\n")

    second = idle(start("-c").until("/help explains"))
    assert f"Earlier events: chain sessions show {path.stem}" in second.everything
    quit(second)


def journals_have(screen: Screen, text: str) -> bool:
    return any(text.encode() in path.read_bytes() for path in journal_files(screen.home))


def test_a_session_is_resumed_at_the_prompt(start: Start) -> None:
    screen = idle(start())
    send(screen, "todo: add buy milk", "hello").until("Done: hello")
    first = journal_files(screen.home)[-1].stem
    afresh(screen)
    send(screen, "todo: clear", "/resume").until(lambda s: s.everything.count(first) > 1)
    send(screen, f"/resume {first}").until("The session goes on.")
    screen.until(lambda s: "plan 0/1" in s.toolbar)
    send(idle(screen), "hello again").until("Done: hello again")
    quit(idle(screen))
    lines = {"L1": ("todo: add buy milk", "handled"), "L2": ("hello", "delivered")}
    assert told(screen)[0] == {**lines, "L3": ("hello again", "delivered")}


def test_a_session_is_chosen_from_a_list_before_the_prompt_is_up(start: Start) -> None:
    first = idle(start())
    send(first, "hello").until("Done: hello")
    quit(idle(first))
    id = journal_files(first.home)[-1].stem
    screen = start("-r").until("Which one goes on?")
    assert next(row for row in screen.rows if id in row).startswith(" 1. ")
    screen.type("9z\r")
    screen.until("there is no session '9z'")
    screen.until(lambda s: s.everything.count("Which one") == 2)
    screen.type("1\r")
    screen.until("Done: hello")
    send(idle(screen), "hello again").until("Done: hello again")
    quit(idle(screen))
    assert [len(lines) for lines in told(screen)] == [2]
    none = start("-r").until("Which one goes on?")
    none.type("\r")
    assert none.wait() == 0


def test_the_session_that_is_open_is_known_by_the_beginning_of_its_id_too(screen: Screen) -> None:
    send(idle(screen), "hello").until("Done: hello")
    id = journal_files(screen.home)[-1].stem
    send(idle(screen), f"/resume {id[:-3]}").until("that session is the one that is open")
    screen.type(CTRL_C)
    send(screen, "/resume nothing").until("there is no session 'nothing'")
    assert "another process" not in screen.everything
    quit(idle(screen))


def test_a_session_is_one_programs_at_a_time(start: Start) -> None:
    first = idle(start())
    id = journal_files(first.home)[-1].stem
    second = start("-r", id)
    assert second.wait() == 2
    assert second.times(f"the session {id} is open in another process; chain watch shows it, and chain send")
    quit(first)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-r", "nothing"], "there is no session 'nothing'; chain sessions list shows those that there are"),
        (["-c"], "is kept; begin one without --continue"),
        (["-c", "-r", "x"], "--continue and --resume contradict each other; leave one out"),
    ],
)
def test_what_cannot_be_resumed_is_said(start: Start, arguments: list[str], says: str) -> None:
    screen = start(*arguments)
    assert screen.wait() == 2
    assert screen.times(says)
