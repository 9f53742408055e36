"""A run without a prompt where a person sees its output: the reply as it streams, once, and the closing row last."""

from __future__ import annotations

import signal
from collections.abc import Sequence

import pytest
from support.screen import Screen
from support.terminal import CTRL_C, SLOW, WORDS, Start, words

pytest_plugins = ["support.terminal"]

ANSWER = "Done: hello there"


def before_farewell(rows: Sequence[str]) -> list[str]:
    """Return the rows above the one that says how to resume the session."""
    return list(rows[: next(n for n, row in enumerate(rows) if row.startswith("Resume this session"))])


@pytest.mark.slow
def test_a_reply_streams_what_is_typed_and_a_narrower_window_double_nothing_and_ctrl_c_ends_it(start: Start) -> None:
    screen = start("-p", SLOW, columns=60, reflows=True)

    screen.until("w02")
    screen.type("typed\r\rmeanwhile\r")
    screen.resize(30, 25)
    screen.until("w04")
    screen.resize(30, 33)
    screen.until("w05")
    screen.type(CTRL_C)

    assert screen.wait() == 130
    seen = words(screen)
    assert 5 <= len(seen) < 40
    assert seen == WORDS[: len(seen)]
    rows = " ".join(screen.rows)
    assert rows.index("w05") < rows.index("Interrupted.") < rows.index("⏹ interrupted")
    assert screen.left_behind == []


def suspended(start: Start, then: str) -> Screen:
    """A run under a shell that has suspended it and goes on with these commands, with the terminal as it wants it."""
    shell = f'"$@"; echo "stopped: $?"; {then}; echo "ended: $?"'
    screen = start("-p", "stream 40 words in 8 seconds", under=("/bin/sh", "-m", "-c", shell, "sh"))
    screen.until("w05").until(lambda s: not s.echoes)
    screen.type("\x1a")
    return screen.until("stopped: 1").until(lambda s: s.echoes)


@pytest.mark.slow
def test_what_takes_the_terminal_meanwhile_has_its_echo_and_keeps_its_rows(start: Start) -> None:
    screen = suspended(start, 'read -r line; echo "read $line"; fg')
    screen.type("a word\r")
    screen.until("ended: 0").until(lambda s: s.echoes)
    assert screen.wait() == 0
    assert {"a word", "read a word"} <= {*screen.rows}
    assert " ".join(screen.rows).count("w40") == 1


@pytest.mark.slow
def test_back_in_the_foreground_what_is_typed_doubles_nothing(start: Start) -> None:
    screen = suspended(start, "bg >/dev/null; read -r line; echo back; fg >/dev/null")
    screen.type("go on\r")
    screen.until(lambda s: "w10" in s.everything.partition("back")[2]).type("typed\r\rmore\r")
    screen.until("ended: 0")
    assert screen.wait() == 0
    seen = words(screen)
    assert seen[seen.index("w01", 1) :] == WORDS, "once, below what was there"


@pytest.mark.slow
def test_an_end_by_ctrl_backslash_leaves_the_echo_on(start: Start) -> None:
    screen = start("-p", SLOW)
    screen.until("w02").until(lambda s: not s.echoes)
    screen.type("\x1c")
    assert screen.wait() == -signal.SIGQUIT
    assert screen.echoes


@pytest.mark.slow
def test_a_query_that_is_typed_is_seen(start: Start) -> None:
    screen = start("-p", "--stdin")
    screen.type("hello there\r")
    screen.until("hello there")
    assert screen.echoes
    screen.type("\x04")
    screen.until(ANSWER)
    assert screen.wait() == 0


@pytest.mark.slow
@pytest.mark.parametrize("answer_is_seen", [True, False])
def test_where_one_of_the_two_goes_elsewhere_the_answer_is_where_standard_output_goes(
    start: Start, answer_is_seen: bool
) -> None:
    elsewhere = "2> elsewhere" if answer_is_seen else "> elsewhere"
    screen = start("-p", "hello there", under=("sh", "-c", f'exec "$@" {elsewhere}', "sh"))

    assert screen.wait() == 0
    written = (screen.home / "work/elsewhere").read_text().splitlines()
    for rows, has_answer in ((screen.rows, answer_is_seen), (written, not answer_is_seen)):
        assert rows.count(ANSWER) == has_answer
        if has_answer:
            assert rows == [ANSWER]
        else:
            assert before_farewell(rows)[-1].startswith("✓ done, 1 iteration")
