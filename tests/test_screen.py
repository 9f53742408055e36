"""The harness of the terminal's tests, tried on small programs."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.emulator import Emulator
from support.house import ROOT
from support.journals import Receipt, receipts, records
from support.program import gates
from support.screen import DEADLINE_S, Screen

from chain.providers.scripted.scripted_model import ScriptedModel

Start = Callable[..., Screen]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a program that the test's end kills."""
    with ExitStack() as stack:

        def start(*argv: str, **more: object) -> Screen:
            return stack.enter_context(Screen(argv, home=tmp_path, **more))  # type: ignore[arg-type]

        yield start


def shell(text: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", text)


def python(text: str) -> tuple[str, ...]:
    return (sys.executable, "-c", text)


def shown(text: str, *, columns: int = 10, lines: int = 3) -> Emulator:
    import pyte

    emulator = Emulator(columns, lines, lambda _: None)
    pyte.Stream(emulator).feed(text)
    return emulator


# ---------------------------------------------------------------------------------------------------------- the program


def test_what_a_program_writes_is_seen_and_its_exit_code_known(start: Start) -> None:
    screen = start(*shell("echo one; echo two; exit 7"))

    assert screen.wait() == 7
    assert screen.everything == "one\ntwo"
    assert screen.raw == b"one\r\ntwo\r\n"
    assert screen.left_behind == []


def test_it_runs_in_a_terminal_that_controls_it(start: Start) -> None:
    screen = start(*shell('test -t 0 && test -t 1 && test -t 2 && stty size && echo "$TERM" && echo seen >/dev/tty'))

    assert screen.wait() == 0
    assert screen.rows == ["30 100", "xterm-256color", "seen"]


def test_the_last_words_of_a_program_are_read(start: Start) -> None:
    for n in range(20):
        screen = start(*shell(f"seq 1 {1000 + n}"))
        assert screen.wait() == 0
        assert screen.rows == [str(k) for k in range(1, 1001 + n)]


def test_keys_reach_the_program(start: Start) -> None:
    screen = start(*shell('read -r line; echo "got $line"'))

    screen.type("hello\r")

    assert screen.wait() == 0
    assert "got hello" in screen.rows


def test_many_keys_and_much_output_do_not_block_each_other(start: Start) -> None:
    screen = start(*shell("stty raw -echo; echo ready; head -c 200000 | wc -c; seq 1 1000"))
    screen.until("ready")

    screen.type("x" * 200_000)

    screen.until("200000")
    assert screen.wait() == 0


def test_a_wait_ends_with_the_program_and_shows_the_screen(start: Start) -> None:
    screen = start(*shell("echo only this; exit 3"))

    with pytest.raises(AssertionError, match=r"(?s)'that' did not come: the program ended with 3.*only this"):
        screen.until("that")


def test_a_wait_ends_at_its_deadline_and_shows_the_screen(start: Start) -> None:
    screen = start(*shell("echo only this; read -r line"))
    screen.until("only")

    with pytest.raises(AssertionError, match=r"(?s)test_screen.py:\d+.* did not come: 0.05 s have passed.*only this"):
        screen.until(lambda s: False, deadline=0.05)
    with pytest.raises(AssertionError, match=r"'the end' did not come"):
        screen.wait(deadline=0.05)


def test_a_condition_may_look_at_other_things_than_the_screen(start: Start, tmp_path: Path) -> None:
    screen = start(*shell("read -r line; echo hidden >file; read -r line"))
    screen.type("\r")

    screen.until(lambda _: (tmp_path / "file").exists())


def test_a_condition_is_to_hold_of_a_whole_picture(start: Start) -> None:
    screen = start(*shell(r"printf '\033[?25l> one\r\n'; sleep 0.2; printf 'idle\033[?25h'; read -r line"))

    screen.until(lambda s: s.display[0] == "> one")
    assert screen.display[1] == "idle"


def test_what_a_program_that_has_ended_left_undrawn_is_looked_at(start: Start) -> None:
    screen = start(*shell(r"printf '\033[?25lhalf'"))

    assert screen.wait() == 0
    screen.until("half")


def test_signals_reach_the_program(start: Start) -> None:
    trap = "trap 'echo heard; exit 5' TERM; echo ready; while :; do read -r line; done"
    screen = start(*shell(trap)).until("ready")
    screen.kill(signal.SIGTERM)
    screen.type("\r")
    assert screen.wait() == 5
    assert "heard" in screen.everything

    screen = start(*shell("kill -9 $$"))
    assert screen.wait() == -signal.SIGKILL


def test_a_key_of_a_cooked_terminal_is_a_signal(start: Start) -> None:
    screen = start(*shell("echo ready; read -r line")).until("ready")

    screen.type("\x03")

    assert screen.wait() == -signal.SIGINT


def test_the_window_can_be_closed(start: Start, tmp_path: Path) -> None:
    code = "trap 'echo gone >file; exit 0' HUP; echo ready; read -r line; read -r line"
    screen = start(*shell(code)).until("ready")

    screen.hang_up()

    assert screen.wait() in (0, -signal.SIGHUP)
    assert (tmp_path / "file").exists()


def test_closing_kills_the_program_and_its_group(start: Start) -> None:
    with start(*shell("trap '' TERM HUP INT; sleep 1000 & echo $!; wait")) as screen:
        screen.until(lambda s: s.rows)
        child = os.pidfd_open(int(screen.rows[0]))

    ended, _, _ = select.select([child], [], [], DEADLINE_S)
    os.close(child)
    assert ended
    assert screen.process.returncode == -signal.SIGKILL


# --------------------------------------------------------------------------------------------------------- the terminal


def test_what_scrolled_off_is_kept(start: Start) -> None:
    screen = start(*shell("seq 1 100"), rows=5)

    assert screen.wait() == 0
    assert screen.display == ["97", "98", "99", "100", ""]
    assert screen.rows == [str(n) for n in range(1, 101)]
    assert screen.cursor == (4, 0)


def test_rows_that_wrap_can_be_found(start: Start) -> None:
    screen = start(*shell("echo a-very-long-word-that-wraps"), columns=10)

    assert screen.wait() == 0
    assert screen.rows == ["a-very-lon", "g-word-tha", "t-wraps"]
    assert "a-very-long-word-that-wraps" in screen.joined


def test_a_new_size_reaches_the_program(start: Start) -> None:
    code = """
import os, signal, sys
def told(*_): os.write(1, b"%d %d\\n" % os.get_terminal_size())
signal.signal(signal.SIGWINCH, told)
os.write(1, b"ready\\n")
sys.stdin.readline()
"""
    screen = start(*python(code)).until("ready")

    screen.resize(12, 40)

    screen.until("40 12")
    assert len(screen.display) == 12


def test_fewer_rows_push_the_top_ones_into_the_scrollback() -> None:
    emulator = shown("a\r\nb\r\nc", lines=4)
    emulator.resize(2, 10)
    assert (emulator.scrolled, emulator.rows, emulator.cursor.y) == (["a"], ["b", "c"], 1)

    emulator = shown("a\r\nb\r\nc\x1b[H", lines=4)
    emulator.resize(2, 5)
    assert (emulator.scrolled, emulator.rows, emulator.cursor.y) == ([], ["a", "b"], 0)

    emulator.resize(4, 5)
    assert emulator.rows == ["a", "b", "", ""]


def test_signs_of_every_width() -> None:
    assert shown("日本語!").rows[0] == "日本語!"
    assert shown("123456789日").rows[:2] == ["123456789", "日"]
    assert shown("⚠️ full").rows[0] == "⚠️ full"
    assert shown("👩‍👩‍👧x").rows[0] == "👩‍👩‍👧x"
    assert shown("e\u0301a").rows[0] == "éa"
    assert shown("🎉\u200d.").cursor.x == 3
    assert shown("\u200dx").rows[0] == "x"


@pytest.mark.parametrize(
    "sequence",
    ["\x1b[>4;2m", "\x1b[>1u", "\x1b[<u", "\x1b[=5;1u", "\x1b[?u", "\x1b[?4m", "\x1bPtext\x1b\\", "\x1b_text\x1b\\"],
)
def test_sequences_that_pyte_does_not_know_leave_nothing(start: Start, sequence: str) -> None:
    one_by_one = "import os, sys; [os.write(1, bytes([b])) for b in sys.argv[1].encode()]; print(end='\\r\\n')"
    screen = start(*python(one_by_one), f"a{sequence}b")

    assert screen.wait() == 0
    assert screen.rows == ["ab"]


def test_a_question_for_the_cursor_is_answered(start: Start) -> None:
    code = """
import os, tty
tty.setraw(0)
print("abc\\x1b[6n", end="", flush=True)
answer = b""
while not answer.endswith(b"R"):
    answer += os.read(0, 100)
print(answer, end="\\r\\n")
"""
    screen = start(*python(code))

    assert screen.wait() == 0
    assert r"abcb'\x1b[1;4R'" in screen.rows


def test_what_a_program_leaves_behind_is_seen(start: Start) -> None:
    screen = start(*shell(r"stty -echo; printf '\033[?2004h\033[?25l\033[31munfinished'"))

    assert screen.wait() == 0
    assert screen.left_behind == [
        "the terminal's local settings",
        "bracketed paste",
        "a hidden cursor",
        "colours",
        "a row that is not finished",
    ]
    assert screen.mode(2004) is True

    screen = start(*shell(r"stty -echo; stty echo; printf '\033[?2004;25h\033[?2004l\033[1mx\033[0m\n'"))
    assert screen.wait() == 0
    assert screen.left_behind == []


def test_whether_the_terminal_edits_lines_is_seen(start: Start) -> None:
    screen = start(*shell("read -r line; stty -icanon; read -r line"))
    assert screen.is_cooked

    screen.type("\n")

    screen.until(lambda s: not s.is_cooked)


# ----------------------------------------------------------------------------------------------------------- the prompt

PROMPT = """
from prompt_toolkit import PromptSession
session = PromptSession("> ", bottom_toolbar="the toolbar", multiline=True)
print("> quoted text above")
print("got", repr(session.prompt(default="")))
"""


def test_the_editor_and_the_toolbar_are_found(start: Start) -> None:
    screen = start(*python(PROMPT))
    screen.until(lambda s: s.editor == "" and s.toolbar)
    assert screen.toolbar.strip() == "the toolbar"

    screen.type("one\rtwo")

    screen.until(lambda s: s.editor == "one\ntwo")
    screen.type("\x1b\r")
    assert screen.wait() == 0
    assert r"got 'one\ntwo'" in screen.everything
    assert screen.left_behind == []


def test_without_a_prompt_there_is_no_editor(start: Start) -> None:
    screen = start(*shell("echo '>no prompt'; echo text"))

    assert screen.wait() == 0
    assert screen.editor is None
    assert screen.toolbar == ""


# -------------------------------------------------------------------------------------------- gates, rules and journals


def test_a_gate_waits_for_whoever_stands_there(start: Start, tmp_path: Path) -> None:
    screen = start(*shell('mkfifo "$GATES/a"; echo made; read -r line <"$GATES/a"; echo "got $line"; read -r line'))

    screen.open_gate("a", "this\n")

    screen.until("got this")
    assert gates(tmp_path) == tmp_path / "gates"


def test_a_gate_at_which_nobody_stands(start: Start) -> None:
    screen = start(*shell("exit 0"))

    with pytest.raises(AssertionError, match="nobody stands at this gate"):
        screen.open_gate("a")


def test_the_rules_can_be_read() -> None:
    assert ScriptedModel.load(ROOT / "tests/support/terminal_rules.yaml").name == "test"


def test_journals_say_what_became_of_each_line(tmp_path: Path) -> None:
    folder = tmp_path / "state/chain/sessions"
    folder.mkdir(parents=True)
    rows = [
        {"type": "session", "id": "s"},
        {"type": "line", "id": "L1", "text": "one", "kind": "redirect"},
        {"type": "line", "id": "L2", "text": "two", "kind": "stop"},
        {"type": "receipt", "id": "L1", "state": "delivered", "iteration": 1, "point": "D"},
        {"type": "receipt", "id": "L1", "state": "returned", "iteration": 2, "point": None},
    ]
    (folder / "s.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows) + '{"type": "to')

    assert records(tmp_path) == rows
    assert receipts(tmp_path) == {
        "L1": Receipt("one", "redirect", "returned", 2, None),
        "L2": Receipt("two", "stop", "queued", 0, None),
    }
