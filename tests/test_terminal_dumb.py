"""The program at a terminal that shows no more than rows (``TERM=dumb``)."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from support.journals import journals, receipts_of
from support.screen import Screen
from support.terminal import CTRL_C, Start, journal, send, states

pytest_plugins = ["support.terminal"]

DUMB = {"TERM": "dumb"}
NO_ECHO: Sequence[str] = ["/bin/sh", "-c", 'stty -echo; exec "$0" "$@"']


def prompts(text: str = "> ") -> Callable[[Screen], object]:
    """Whether the last row is a prompt with this text, and the cursor behind it."""

    def holds(screen: Screen) -> bool:
        return screen.rows[-1:] == [text.rstrip()] and screen.cursor[1] == len(text)

    return holds


def left(screen: Screen, code: int = 0) -> None:
    assert screen.wait() == code, screen.everything
    assert screen.left_behind == []
    assert b"\x1b" not in screen.raw
    assert screen.times(f"chain -r {journal(screen).stem} ")


@pytest.mark.slow
def test_rows_and_a_prompt_are_enough_for_a_run(start: Start) -> None:
    screen = start(env=DUMB).until(prompts())
    send(screen, "gate a").until("→ gate(")
    send(screen, "hello there").until("Interrupting: hello there")
    screen.type("half a li")
    screen.until(prompts("> half a li"))

    screen.open_gate("a")

    screen.until("Understood: hello there").until("✓ done").until(prompts("> half a li"))
    assert not [row for row in screen.rows if "half a li" in row and row != "> half a li"]
    screen.type("k\x7fne\r")
    screen.until("Done: half a line").until(prompts())
    screen.type("not sent")
    screen.until(prompts("> not sent"))
    screen.type(CTRL_C)
    screen.until(prompts()).type("half")
    screen.until(prompts("> half"))

    screen.kill(signal.SIGTERM)

    left(screen, 143)
    assert "Not sent: half" in screen.everything
    assert states(screen) == {"gate a": "delivered", "hello there": "delivered", "half a line": "delivered"}
    # Besides what was typed there is nothing but the prompt of each wait.
    typed = [row for row in screen.rows if row.startswith("> ") and not row.startswith("> half a li")]
    assert typed[:2] == ["> gate a", "> hello there"]


@pytest.mark.slow
def test_a_question_has_a_prompt_of_its_own(start: Start, tmp_path: Path) -> None:
    (tmp_path / "test.yaml").write_text(
        "models: {default: test, definitions: {test: {provider: scripted, script: rules.yaml}}}\n"
        "chains: {default: {model: test, tools: [edit]}}\n"
    )
    (tmp_path / "rules.yaml").write_text(
        "rules:\n  - when: {user: '^write (?P<path>.+)', step: 1}\n"
        "    tools: [{name: write_file, input: {path: '${path}', content: new}}]\n  - text: 'Result: ${result}'\n"
    )
    screen = start(env=DUMB).until(prompts())
    send(screen, "write a").until(prompts("Q1? "))
    assert "a space first" not in screen.flat  # no key answers without Enter here
    send(screen, "3").until("y, a or n; or say why not in a few words").until(prompts("Q1? "))
    send(screen, "n").until("Q1 refused").until(prompts())
    send(screen, "write b").until(prompts("Q2? "))
    send(screen, "y").until("Q2 allowed").until(prompts())
    send(screen, "write c").until(prompts("Q3? "))
    screen.type(CTRL_C)
    screen.until(prompts())
    send(screen, "/quit")
    left(screen)
    assert [row for row in screen.rows if re.match(r"Q\d\?", row)] == ["Q1? 3", "Q1? n", "Q2? y", "Q3?"]
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["b"]


@pytest.mark.slow
def test_a_terminal_that_does_not_echo_sends_whole_lines(start: Start) -> None:
    screen = start(env=DUMB, under=NO_ECHO).until(prompts())
    assert screen.is_cooked
    screen.type("hello\n")
    screen.until("Done: hello").until(prompts())
    assert "hello" not in [row.removeprefix("> ") for row in screen.rows]
    screen.type("/new\nand you\n")
    screen.until("The conversation begins afresh").until("Done: and you").until(prompts())
    screen.type("/quit\n")
    assert screen.wait() == 0
    assert b"\x1b" not in screen.raw
    texts = [[line.text for line in receipts_of(found).values()] for found in journals(screen.home).values()]
    assert sorted(texts) == [["and you"], ["hello"]]


@pytest.mark.slow
def test_what_was_typed_ahead_is_a_line_and_a_long_one_can_be_corrected(start: Start) -> None:
    screen = start(env=DUMB, columns=40)
    screen.type("early bird\rnext")
    screen.until("Done: early bird").until(prompts("> next"))
    screen.type(CTRL_C)
    long = "word " * 30
    screen.until(prompts()).type(f"{long}x")
    screen.until(lambda s: s.joined.endswith("word x"))
    screen.type("\x7fy\r")
    screen.until(lambda s: s.everything.count("✓ done") == 2).until(prompts())
    screen.type(CTRL_C)
    screen.until("Press Ctrl-C again").until(prompts())
    screen.type(CTRL_C)
    left(screen, 130)
    assert f"{long}y" in states(screen)
