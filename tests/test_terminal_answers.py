"""``chain -p`` in a pseudo-terminal: the reply streams once, and the terminal's echo is off meanwhile."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from support.keys import CTRL_C, CTRL_D, CTRL_Z
from support.screen import Screen
from support.terminal import SLOW_QUERY, WORDS, Start, shown_words

pytest_plugins = ["support.terminal"]

pytestmark = pytest.mark.slow


def test_a_reply_streams_once_until_ctrl_c(start: Start) -> None:
    screen = start("-p", SLOW_QUERY, columns=60, reflows=True)

    screen.until("w02").type("typed\r\rmeanwhile\r")
    for columns, word in ((25, "w04"), (33, "w05")):
        screen.resize(30, columns)
        screen.until(word)
    screen.type(CTRL_C)

    assert screen.wait() == 130
    shown = shown_words(screen)
    assert "w05" in shown
    assert "w40" not in shown
    assert shown == WORDS[: len(shown)]
    rows = " ".join(screen.rows)
    assert rows.index("w05") < rows.index("Interrupted.") < rows.index("⏹ interrupted")
    assert screen.left_behind == []


def suspend_run(start: Start, commands: str) -> Screen:
    """Suspend a run under a shell with job control, which then executes these commands."""
    shell = f'"$@"; echo "stopped: $?"; {commands}; echo "ended: $?"'
    screen = start("-p", "stream 40 words in 8 seconds", launcher=("/bin/sh", "-m", "-c", shell, "sh"))
    screen.until("w05").until(lambda s: not s.is_echoing).type(CTRL_Z)
    return screen.until("stopped: 1").until(lambda s: s.is_echoing)


def test_a_suspended_run_restores_the_echo(start: Start) -> None:
    screen = suspend_run(start, 'read -r line; echo "read $line"; fg')
    screen.type("a word\r")
    screen.until("ended: 0").until(lambda s: s.is_echoing)
    assert screen.wait() == 0
    assert {"a word", "read a word"} <= {*screen.rows}
    assert " ".join(screen.rows).count("w40") == 1


def test_a_foreground_run_repeats_its_reply_once(start: Start) -> None:
    screen = suspend_run(start, "bg >/dev/null; read -r line; echo back; fg >/dev/null")
    screen.type("go on\r")
    screen.until(lambda s: "w10" in s.everything.partition("back")[2]).type("typed\r\rmore\r")
    screen.until("ended: 0")
    assert screen.wait() == 0
    shown = shown_words(screen)
    first_of_repetition = shown.index("w01", 1)
    assert shown[first_of_repetition:] == WORDS


def test_ctrl_backslash_leaves_the_echo_on(start: Start) -> None:
    screen = start("-p", SLOW_QUERY)
    screen.until("w02").until(lambda s: not s.is_echoing).type("\x1c")
    assert screen.wait() == -signal.SIGQUIT
    assert screen.is_echoing


def test_a_query_from_standard_input_is_echoed(start: Start) -> None:
    screen = start("-p", "--stdin")
    screen.type("hello there\r")
    screen.until("hello there")
    assert screen.is_echoing
    screen.type(CTRL_D)
    screen.until("Done: hello there")
    assert screen.wait() == 0


@pytest.mark.parametrize("redirection", ["2> file", "> file"])
def test_the_answer_goes_to_standard_output(start: Start, tmp_path: Path, redirection: str) -> None:
    screen = start("-p", "hello there", launcher=("sh", "-c", f'exec "$@" {redirection}', "sh"))

    assert screen.wait() == 0
    redirected = (tmp_path / "work/file").read_text().splitlines()
    stdout, stderr = (screen.rows, redirected) if redirection == "2> file" else (redirected, screen.rows)
    assert stdout == ["Done: hello there"]
    assert "Done: hello there" not in stderr
    assert any(row.startswith("✓ done, 1 iteration") for row in stderr)
