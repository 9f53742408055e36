"""A run without a prompt where a person sees its output: the reply as it streams, once, and the closing row last."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.examples import one
from support.screen import Screen
from support.terminal import CTRL_C, Start

pytest_plugins = ["support.terminal"]

ANSWER = "Done: hello there"


def before_farewell(rows: Sequence[str]) -> list[str]:
    """The rows above the one that says how to go on with the session."""
    return list(rows[: next(n for n, row in enumerate(rows) if row.startswith("Session "))])


def test_the_answer_is_seen_once_and_before_the_closing_row(start: Start) -> None:
    screen = start("-p", "hello there")

    assert screen.wait() == 0, "a terminal is not waited for"
    assert screen.rows.count(ANSWER) == 1
    answer, closing = before_farewell(screen.rows)[-2:]
    assert closing.startswith("✓ done, 1 iteration")
    assert answer == ANSWER


def test_a_reply_is_seen_while_it_streams_and_ctrl_c_ends_it(start: Start, tmp_path: Path) -> None:
    words = " ".join(f"w{n:03}" for n in range(2000))  # some minutes of them
    (tmp_path / "rules.yaml").write_text(f"rules: [{{text: '{words}', pace: {{chunk: 50, delay_s: 1}}}}]\n")
    (tmp_path / "test.yaml").write_text(
        "models: {definitions: {test: {provider: scripted, script: rules.yaml}}}\n"
        "chains: {default: {model: test, tools: []}}\n"
    )
    screen = start("-p", "hello there", columns=24)

    screen.until("w000 w001 w002 w003")
    screen.type(CTRL_C)

    assert screen.wait() == 130
    told = " ".join(screen.rows)
    assert told.count("w000") == 1
    assert told.index("w003") < told.index("Interrupted.") < told.index("⏹ interrupted")


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("env", [{}, {"NO_COLOR": "1"}])
def test_the_unfinished_rows_of_a_reply_are_replaced_by_the_finished_ones(start: Start, env: dict[str, str]) -> None:
    screen = start("-p", "stream 40 words slowly", columns=40, env=env)

    screen.until("w05")
    if not env:  # else there is nothing that could be erased
        screen.type("typed meanwhile")
    assert screen.wait() == 0
    seen = re.findall(r"w\d\d", " ".join(screen.rows))
    assert seen == [f"w{n:02}" for n in range(1, 41)]
    assert before_farewell(screen.rows)[-1].startswith("✓ done")


def test_what_is_typed_and_a_narrower_window_double_nothing(start: Start) -> None:
    screen = start("-p", "stream 40 words slowly", columns=60, reflows=True)

    screen.until("w05")
    screen.type("typed\r\rmeanwhile\r")
    screen.resize(30, 25)
    screen.until("w15")
    screen.resize(30, 33)
    assert screen.wait() == 0
    assert re.findall(r"w\d\d", " ".join(screen.rows)) == [f"w{n:02}" for n in range(1, 41)]
    assert screen.left_behind == []


def suspended(start: Start, then: str) -> Screen:
    """A run under a shell that has suspended it and goes on with these commands, with the terminal as it wants it."""
    shell = f'"$@"; echo "stopped: $?"; {then}; echo "ended: $?"'
    screen = start("-p", "stream 40 words slowly", under=("/bin/sh", "-m", "-c", shell, "sh"))
    screen.until("w05").until(lambda s: not s.echoes)
    screen.type("\x1a")
    return screen.until("stopped: 1").until(lambda s: s.echoes)


@pytest.mark.sampled
@pytest.mark.parametrize(
    "then", one(['read -r line; echo "read $line"; fg', 'bg; read -r line; echo "read $line"; wait'])
)
def test_what_takes_the_terminal_meanwhile_has_its_echo_and_keeps_its_rows(start: Start, then: str) -> None:
    screen = suspended(start, then)
    screen.type("a word\r")
    screen.until("ended: 0").until(lambda s: s.echoes)
    assert screen.wait() == 0
    assert {"a word", "read a word"} <= {*screen.rows}
    assert " ".join(screen.rows).count("w40") == 1


@pytest.mark.slow  # a shell starts the program
def test_back_in_the_foreground_what_is_typed_doubles_nothing(start: Start) -> None:
    screen = suspended(start, "bg >/dev/null; read -r line; echo back; fg >/dev/null")
    screen.type("go on\r")
    screen.until(lambda s: "w10" in s.everything.partition("back")[2]).type("typed\r\rmore\r")
    screen.until("ended: 0")
    assert screen.wait() == 0
    words = re.findall(r"w\d\d", " ".join(screen.rows))
    assert words[words.index("w01", 1) :] == [f"w{n:02}" for n in range(1, 41)], "once, below what was there"


def test_an_end_by_ctrl_backslash_leaves_the_echo_on(start: Start) -> None:
    screen = start("-p", "stream 40 words slowly")
    screen.until("w05").until(lambda s: not s.echoes)
    screen.type("\x1c")
    assert screen.wait() == -signal.SIGQUIT
    assert screen.echoes


def test_a_query_that_is_typed_is_seen(start: Start) -> None:
    screen = start("-p", "--stdin")
    screen.type("hello there\r")
    screen.until("hello there")
    assert screen.echoes
    screen.type("\x04")
    screen.until(ANSWER)
    assert screen.wait() == 0


@pytest.mark.sampled
@pytest.mark.parametrize("answer_is_seen", one([True, False]))
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


def test_at_a_terminal_too_json_is_one_object(start: Start) -> None:
    screen = start("-p", "hello there", "--output-format", "json", columns=2000)

    assert screen.wait() == 0
    assert json.loads(screen.rows[-1])["result"] == ANSWER
    assert ANSWER not in screen.rows


def test_a_trace_that_was_asked_for_is_named(start: Start) -> None:
    screen = start("-p", "hello there", env={"CHAIN_TRACE": "1"}, columns=300)

    assert screen.wait() == 0
    assert "traces" in screen.rows[-2]


def test_a_configuration_error_is_told_without_waiting_for_input(start: Start) -> None:
    never = ("sh", "-c", 'mkfifo never && exec "$@" <> never', "sh")
    screen = start("-p", "hello there", "--model", "nowhere", under=never)

    assert screen.wait() == 2
    assert "nowhere" in screen.everything
