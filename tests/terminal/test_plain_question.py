"""Questions before there is an editor."""

from __future__ import annotations

import os
import select
import signal
import threading
from pathlib import Path

import pytest
from support.commands import configured, danger

from chain.app.open import open_chain
from cli.terminal.plain_question import WHICH_SESSION, _ask, ask_which


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("es\n", "yes\n"),
        ("\x1b\n", ""),
        ("\x1b[B\x1b[1;5Aes\x1bOC\n", "yes\n"),
        ("\x7f\n", "y\x7f\n"),
    ],
)
def test_a_line_answers_and_esc_cancels(keys: int, typed: str, answer: str) -> None:
    os.write(keys, b"y")
    os.write(keys, typed.encode())
    assert _ask("?") == answer


def test_a_line_of_arrow_keys_is_asked_again(keys: int, capfd: pytest.CaptureFixture[str]) -> None:
    def answer() -> None:
        while select.select([0], [], [], 0)[0]:  # until the first line was read
            pass
        os.write(keys, b"y\n")

    os.write(keys, b"\x1b[B\n")
    threading.Thread(target=answer).start()
    assert _ask("?") == "y\n"
    assert capfd.readouterr().out == "? ? "


def test_a_signal_before_the_read_ends_the_question(keys: int) -> None:
    main = threading.get_native_id()

    def interrupt() -> None:
        while Path(f"/proc/self/task/{main}/stat").read_text().rpartition(") ")[2][0] != "S":
            pass
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)  # to this thread, so the read goes on

    def ask() -> None:
        thread.start()
        _ask("?")

    thread = threading.Thread(target=interrupt)
    with pytest.raises(KeyboardInterrupt):
        ask()
    thread.join()


async def test_the_list_of_sessions_fits_the_window(
    tmp_path: Path, keys: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("cli.screen.tty.size", lambda: (60, 20))
    for n in range(7):
        async with open_chain(
            configured(tmp_path), workspace=tmp_path, state=tmp_path / "state", tools=[danger]
        ) as chain:
            chain.submit(f"task {n}")
            await chain.wait_idle()
    os.write(keys, b"1\n")
    assert ask_which(tmp_path / "state", "", tmp_path, ascii=False) == chain.session_id
    *rows, older, question, last = capfd.readouterr().out.split("\n")
    assert [row.strip() for row in rows[2::3]] == [f"task {n}" for n in (6, 5, 4, 3, 2)]
    assert older == "2 older sessions: chain sessions list"
    assert f"{question} {last.strip()}" == WHICH_SESSION, "it breaks between words"
