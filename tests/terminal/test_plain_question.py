"""Questions before there is an editor."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.terminal.plain_question import WHICH_SESSION, _ask


@pytest.fixture
def keys() -> Iterator[int]:
    """Replace standard input by a pipe; return the end to write keys to."""
    before, (read, write) = os.dup(0), os.pipe()
    os.dup2(read, 0)
    try:
        yield write
    finally:
        os.dup2(before, 0)
        for fd in (before, read, write):
            os.close(fd)


@pytest.mark.parametrize(("typed", "answer"), [("es\n", "yes\n"), ("\x1b\n", "")])
def test_a_line_answers_and_esc_makes_it_empty(keys: int, typed: str, answer: str) -> None:
    os.write(keys, b"y")
    os.write(keys, typed.encode())
    assert _ask("?") == answer


def test_ctrl_c_that_does_not_interrupt_the_read_ends_the_question(keys: int) -> None:
    main = threading.get_native_id()

    def interrupt() -> None:
        # The signal goes to this thread: as one that comes just before the read, it leaves the read waiting.
        while Path(f"/proc/self/task/{main}/stat").read_text().rpartition(") ")[2][0] != "S":
            pass
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    def ask() -> None:
        thread.start()
        _ask("?")

    thread = threading.Thread(target=interrupt)
    with pytest.raises(KeyboardInterrupt):
        ask()
    thread.join()


def test_a_long_question_breaks_between_words(
    keys: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("cli.screen.tty.size", lambda: (60, 24))
    os.write(keys, b"\n")
    assert _ask(WHICH_SESSION) == "\n"
    rows = "Resume which session? (number or part of an id, Enter to\ncancel) "
    assert capfd.readouterr().out == rows
