"""The program in a terminal that only shows rows (``TERM=dumb``)."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from support.journals import journals, receipts_of
from support.keys import BACKSPACE, CTRL_C, CTRL_D, UP
from support.screen import Screen
from support.terminal import Start, configure, journal, line_states, send

pytest_plugins = ["support.terminal"]

pytestmark = pytest.mark.slow

DUMB = {"TERM": "dumb"}


def prompt_is(text: str = "> ") -> Callable[[Screen], object]:
    """Return a condition: the last row is this prompt, followed by the cursor."""

    def is_last_row(screen: Screen) -> bool:
        _, column = screen.cursor
        return screen.rows[-1:] == [text.rstrip()] and column == len(text)

    return is_last_row


def check_dumb_exit(screen: Screen, code: int = 0) -> None:
    """Wait for the exit. Check its code, and that no escape sequence was written."""
    assert screen.wait() == code, screen.everything
    assert screen.left_behind == []
    assert b"\x1b" not in screen.raw
    assert screen.times(f"chain -r {journal(screen).stem}")


def test_rows_and_a_prompt_suffice_for_a_run(start: Start) -> None:
    screen = start(env=DUMB)
    screen.type("early bird\r")
    screen.until("Done: early bird").until(prompt_is())
    assert screen.is_cooked
    send(screen, "gate a").until("→ gate(")
    send(screen, "hello there").until("Interrupting: hello there").type("half a li")
    screen.until("half a li").open_gate("a")
    screen.until("Understood: hello there").until("✓ done").until(prompt_is()).type(f"k{BACKSPACE}ne\r")
    screen.until("Done: half a line").until(prompt_is()).type("not sent")
    screen.until(prompt_is("> not sent")).type(CTRL_C)
    screen.until("Press Ctrl-C again").until(prompt_is())
    send(screen, f"{UP}sent").until("Done: sent").until(prompt_is())
    send(screen, "/copy").until("no clipboard that chain can reach").until(prompt_is())

    screen.send_signal(signal.SIGTERM)

    check_dumb_exit(screen, 143)
    lines = ("early bird", "gate a", "hello there", "half a line", "sent")
    assert line_states(screen) == dict.fromkeys(lines, "delivered")


def test_a_question_has_a_prompt_of_its_own(start: Start, tmp_path: Path) -> None:
    rules = """
rules:
  - {when: {user: '^write (?P<path>.+)', step: 1}, tools: [{name: write_file, input: {path: '${path}', content: new}}]}
  - text: 'Result: ${result}'
"""
    work = configure(tmp_path, rules, "edit")
    screen = start(env=DUMB).until(prompt_is())
    send(screen, "write a").until(prompt_is("Q1? "))
    assert "type a space" not in screen.flat  # no key answers without Enter here
    send(screen, "3").until("y, a or n; or say why not in a few words").until(prompt_is("Q1? "))
    send(screen, "n").until("Q1 refused").until(prompt_is())
    send(screen, "write b").until(prompt_is("Q2? "))
    send(screen, "y", "and then").until("Q2 allowed").until("and then").until(prompt_is())
    send(screen, "write c").until(prompt_is("Q3? ")).type(CTRL_C)
    send(screen.until(prompt_is()), "/quit")
    check_dumb_exit(screen)
    assert [path.name for path in work.iterdir()] == ["b"]
    assert line_states(screen)["and then"] == "delivered"


def test_lines_are_whole_without_an_echo(start: Start) -> None:
    screen = start(env=DUMB, launcher=["/bin/sh", "-c", 'stty -echo; exec "$0" "$@"']).until(prompt_is())
    screen.type("hello\n")
    screen.until("Done: hello").until(prompt_is())
    assert not {"hello", "> hello"} & {*screen.rows}
    screen.type("/new\nand you\n")
    screen.until("New conversation").until("Done: and you").until(prompt_is()).type(CTRL_D)
    assert screen.wait() == 0
    texts = [[line.text for line in receipts_of(records).values()] for records in journals(screen.home).values()]
    assert sorted(texts) == [["and you"], ["hello"]]


def test_the_loss_of_the_terminal_ends_the_program(start: Start) -> None:
    screen = start(env=DUMB).until(prompt_is())
    screen.hang_up()
    assert screen.wait() == 143
