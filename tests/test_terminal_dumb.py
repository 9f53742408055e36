"""The program in a terminal that only shows rows (``TERM=dumb``)."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from support.journals import journals, receipts_of
from support.screen import Screen
from support.terminal import CTRL_C, CTRL_D, Start, configure, journal, send, states

pytest_plugins = ["support.terminal"]

pytestmark = pytest.mark.slow

DUMB = {"TERM": "dumb"}


def prompts(text: str = "> ") -> Callable[[Screen], object]:
    """Return whether the last row is a prompt with this text, and the cursor behind it."""

    def holds(screen: Screen) -> bool:
        return screen.rows[-1:] == [text.rstrip()] and screen.cursor[1] == len(text)

    return holds


def left(screen: Screen, code: int = 0) -> None:
    """Check the exit code, and that no escape sequence was written."""
    assert screen.wait() == code, screen.everything
    assert screen.left_behind == []
    assert b"\x1b" not in screen.raw
    assert screen.times(f"chain -r {journal(screen).stem}")


def test_rows_and_a_prompt_suffice_for_a_run(start: Start) -> None:
    screen = start(env=DUMB)
    screen.type("early bird\r")
    screen.until("Done: early bird").until(prompts())
    assert screen.is_cooked
    send(screen, "gate a").until("→ gate(")
    send(screen, "hello there").until("Interrupting: hello there").type("half a li")
    screen.until("half a li").open_gate("a")
    screen.until("Understood: hello there").until("✓ done").until(prompts()).type("k\x7fne\r")
    screen.until("Done: half a line").until(prompts()).type("not sent")
    screen.until(prompts("> not sent")).type(CTRL_C)
    screen.until("Press Ctrl-C again").until(prompts())
    send(screen, "\x1b[Asent").until("Done: sent").until(prompts())
    send(screen, "/copy").until("no clipboard that chain can reach").until(prompts())

    screen.kill(signal.SIGTERM)

    left(screen, 143)
    lines = ("early bird", "gate a", "hello there", "half a line", "sent")
    assert states(screen) == dict.fromkeys(lines, "delivered")


def test_a_question_has_a_prompt_of_its_own(start: Start, tmp_path: Path) -> None:
    rules = """
rules:
  - {when: {user: '^write (?P<path>.+)', step: 1}, tools: [{name: write_file, input: {path: '${path}', content: new}}]}
  - text: 'Result: ${result}'
"""
    work = configure(tmp_path, rules, "edit")
    screen = start(env=DUMB).until(prompts())
    send(screen, "write a").until(prompts("Q1? "))
    assert "type a space" not in screen.flat  # no key answers without Enter here
    send(screen, "3").until("y, a or n; or say why not in a few words").until(prompts("Q1? "))
    send(screen, "n").until("Q1 refused").until(prompts())
    send(screen, "write b").until(prompts("Q2? "))
    send(screen, "y", "and then").until("Q2 allowed").until("and then").until(prompts())
    send(screen, "write c").until(prompts("Q3? ")).type(CTRL_C)
    send(screen.until(prompts()), "/quit")
    left(screen)
    assert [path.name for path in work.iterdir()] == ["b"]
    assert states(screen)["and then"] == "delivered"


def test_lines_are_whole_without_an_echo(start: Start) -> None:
    screen = start(env=DUMB, under=["/bin/sh", "-c", 'stty -echo; exec "$0" "$@"']).until(prompts())
    screen.type("hello\n")
    screen.until("Done: hello").until(prompts())
    assert "hello" not in [row.removeprefix("> ") for row in screen.rows]
    screen.type("/new\nand you\n")
    screen.until("New conversation").until("Done: and you").until(prompts()).type(CTRL_D)
    assert screen.wait() == 0
    texts = [[line.text for line in receipts_of(found).values()] for found in journals(screen.home).values()]
    assert sorted(texts) == [["and you"], ["hello"]]


def test_the_loss_of_the_terminal_ends_the_program(start: Start) -> None:
    screen = start(env=DUMB).until(prompts())
    screen.hang_up()
    assert screen.wait() == 143
