"""``chain -p`` in a pseudo-terminal: the reply streams once, and the terminal's echo is off meanwhile."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from support.screen import Screen
from support.terminal import CTRL_C, SLOW, WORDS, Start, words

pytest_plugins = ["support.terminal"]

pytestmark = pytest.mark.slow


def test_a_reply_streams_once_until_ctrl_c(start: Start) -> None:
    screen = start("-p", SLOW, columns=60, reflows=True)

    screen.until("w02").type("typed\r\rmeanwhile\r")
    for columns, word in ((25, "w04"), (33, "w05")):
        screen.resize(30, columns)
        screen.until(word)
    screen.type(CTRL_C)

    assert screen.wait() == 130
    seen = words(screen)
    assert 5 <= len(seen) < 40
    assert seen == WORDS[: len(seen)]
    rows = " ".join(screen.rows)
    assert rows.index("w05") < rows.index("Interrupted.") < rows.index("⏹ interrupted")
    assert screen.left_behind == []


def suspended(start: Start, then: str) -> Screen:
    """Suspend a run under a shell that then executes these commands."""
    shell = f'"$@"; echo "stopped: $?"; {then}; echo "ended: $?"'
    screen = start("-p", "stream 40 words in 8 seconds", under=("/bin/sh", "-m", "-c", shell, "sh"))
    screen.until("w05").until(lambda s: not s.echoes).type("\x1a")
    return screen.until("stopped: 1").until(lambda s: s.echoes)


def test_a_suspended_run_restores_the_echo(start: Start) -> None:
    screen = suspended(start, 'read -r line; echo "read $line"; fg')
    screen.type("a word\r")
    screen.until("ended: 0").until(lambda s: s.echoes)
    assert screen.wait() == 0
    assert {"a word", "read a word"} <= {*screen.rows}
    assert " ".join(screen.rows).count("w40") == 1


def test_a_foreground_run_repeats_its_reply_once(start: Start) -> None:
    screen = suspended(start, "bg >/dev/null; read -r line; echo back; fg >/dev/null")
    screen.type("go on\r")
    screen.until(lambda s: "w10" in s.everything.partition("back")[2]).type("typed\r\rmore\r")
    screen.until("ended: 0")
    assert screen.wait() == 0
    seen = words(screen)
    assert seen[seen.index("w01", 1) :] == WORDS


def test_ctrl_backslash_leaves_the_echo_on(start: Start) -> None:
    screen = start("-p", SLOW)
    screen.until("w02").until(lambda s: not s.echoes).type("\x1c")
    assert screen.wait() == -signal.SIGQUIT
    assert screen.echoes


def test_a_query_from_standard_input_is_echoed(start: Start) -> None:
    screen = start("-p", "--stdin")
    screen.type("hello there\r")
    screen.until("hello there")
    assert screen.echoes
    screen.type("\x04")
    screen.until("Done: hello there")
    assert screen.wait() == 0


@pytest.mark.parametrize("is_answer_shown", [True, False])
def test_the_answer_goes_to_standard_output(start: Start, tmp_path: Path, is_answer_shown: bool) -> None:
    elsewhere = "2> elsewhere" if is_answer_shown else "> elsewhere"
    screen = start("-p", "hello there", under=("sh", "-c", f'exec "$@" {elsewhere}', "sh"))

    assert screen.wait() == 0
    written = (tmp_path / "work/elsewhere").read_text().splitlines()
    answer, others = (screen.rows, written) if is_answer_shown else (written, screen.rows)
    assert answer == ["Done: hello there"]
    assert "Done: hello there" not in others
    assert any(row.startswith("✓ done, 1 iteration") for row in others)
