"""Questions in line mode, before the editor starts."""

from __future__ import annotations

import os
import select
import signal
import threading
from pathlib import Path

import pytest
from support.commands import danger, four_model_settings

from chain.app.open import open_chain
from cli.terminal.plain_question import WHICH_SESSION, _ask, ask_which_session


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        pytest.param("yes\n", "yes\n", id="letters"),
        pytest.param("y\x1b\n", "", id="Esc cancels"),
        pytest.param("y\x1b[B\x1b[1;5Aes\x1bOC\n", "yes\n", id="arrow keys are ignored"),
        pytest.param("y\x7f\n", "y\x7f\n", id="a backspace stays"),
    ],
)
def test_the_answer_is_the_typed_line(keys: int, typed: str, answer: str) -> None:
    for part in (typed[:1], typed[1:]):
        os.write(keys, part.encode())
    assert _ask("?") == answer


def test_a_line_of_arrow_keys_is_asked_again(keys: int, capfd: pytest.CaptureFixture[str]) -> None:
    def answer_after_the_first_line() -> None:
        while select.select([0], [], [], 0)[0]:  # the first line is not read yet
            pass
        os.write(keys, b"y\n")

    os.write(keys, b"\x1b[B\n")
    threading.Thread(target=answer_after_the_first_line).start()
    assert _ask("?") == "y\n"
    assert capfd.readouterr().out == "? ? "


def test_a_signal_before_the_read_ends_the_question(keys: int) -> None:
    main = threading.get_native_id()

    def is_asleep() -> bool:
        _, _, fields = Path(f"/proc/self/task/{main}/stat").read_text().rpartition(") ")
        return fields.startswith("S")

    def interrupt() -> None:
        while not is_asleep():
            pass
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)  # this thread gets the signal, so the read continues

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
    # A session has 3 rows, so 20 rows have room for 5 of the 7 sessions.
    monkeypatch.setattr("cli.screen.tty.size", lambda: (60, 20))
    settings, state = four_model_settings(tmp_path), tmp_path / "state"
    for n in range(7):
        async with open_chain(settings, workspace=tmp_path, state=state, tools=[danger]) as chain:
            chain.submit(f"task {n}")
            await chain.wait_idle()
    os.write(keys, b"1\n")
    assert ask_which_session(state, "", tmp_path, ascii=False) == chain.session_id
    *rows, older, question, end_of_question = capfd.readouterr().out.split("\n")
    tasks = [row.strip() for row in rows if row.strip().startswith("task ")]
    assert tasks == [f"task {n}" for n in (6, 5, 4, 3, 2)]
    assert older == "2 older sessions: chain sessions list"
    assert f"{question} {end_of_question.strip()}" == WHICH_SESSION, "the question breaks between words"
