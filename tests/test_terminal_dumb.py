"""The program at a terminal that shows no more than rows (``TERM=dumb``)."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from support.journals import journals, receipts_of
from support.screen import Screen
from support.terminal import CTRL_C, CTRL_D, LIMITS, Start, journal, send, states

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
    assert screen.times(f"chain -r {journal(screen).stem}")


@pytest.mark.slow
def test_rows_and_a_prompt_are_enough_for_a_run(start: Start) -> None:
    screen = start(env=DUMB).until(prompts())
    assert screen.is_cooked
    send(screen, "gate a").until("→ gate(")
    send(screen, "hello there").until("Interrupting: hello there")
    screen.type("half a li")
    screen.until("half a li")

    screen.open_gate("a")

    screen.until("Understood: hello there").until("✓ done").until(prompts())
    screen.type("k\x7fne\r")
    screen.until("Done: half a line").until(prompts())
    screen.type("not sent")
    screen.until(prompts("> not sent"))
    screen.type(CTRL_C)
    screen.until("Press Ctrl-C again").until(prompts())
    send(screen, "\x1b[Asent").until("Done: sent").until(prompts())

    screen.kill(signal.SIGTERM)

    left(screen, 143)
    lines = ("gate a", "hello there", "half a line", "sent")
    assert states(screen) == dict.fromkeys(lines, "delivered")


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
    send(screen, "y", "and then").until("Q2 allowed").until("and then").until(prompts())
    send(screen, "write c").until(prompts("Q3? "))
    screen.type(CTRL_C)
    screen.until(prompts())
    send(screen, "/quit")
    left(screen)
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["b"]
    assert states(screen)["and then"] == "delivered"


@pytest.mark.slow
def test_a_terminal_that_does_not_echo_sends_whole_lines(start: Start) -> None:
    screen = start(env=DUMB, under=NO_ECHO).until(prompts())
    screen.type("hello\n")
    screen.until("Done: hello").until(prompts())
    assert "hello" not in [row.removeprefix("> ") for row in screen.rows]
    screen.type("/new\nand you\n")
    screen.until("New conversation").until("Done: and you").until(prompts())
    screen.type("/quit\n")
    assert screen.wait() == 0
    assert b"\x1b" not in screen.raw
    texts = [[line.text for line in receipts_of(found).values()] for found in journals(screen.home).values()]
    assert sorted(texts) == [["and you"], ["hello"]]


@pytest.mark.slow
def test_ctrl_c_exits_when_pressed_twice(start: Start) -> None:
    screen = start(env=DUMB).until(prompts())
    screen.type(CTRL_C)
    screen.until("Press Ctrl-C again").until(prompts()).type(CTRL_C)
    left(screen, 130)


@pytest.mark.slow
def test_a_line_may_be_typed_ahead_and_ctrl_d_exits(start: Start) -> None:
    screen = start(env=DUMB)
    screen.type("early bird\r")
    screen.until("Done: early bird").until(prompts()).type(CTRL_D)
    left(screen)


@pytest.mark.slow
def test_the_loss_of_the_terminal_ends_the_program(start: Start) -> None:
    screen = start(env=DUMB).until(prompts())
    screen.hang_up()
    assert screen.wait() == 143


@pytest.mark.slow
def test_no_escape_sequence_is_written_when_a_tool_never_ends(start: Start) -> None:
    screen = start(env=DUMB, never=[*LIMITS, "cli.terminal.terminal_session.CLOSING_S"]).until(prompts())
    send(screen, "stone").until("→ stone")
    screen.type(CTRL_D)
    screen.until("Waiting for the running tool to end").type(CTRL_C)
    left(screen, 130)
