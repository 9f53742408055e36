"""Immediate exits run the open duties (``at_immediate_exit``). A program that has the terminal gets its own Ctrl-C."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from cli.ending import received_signals
from cli.screen import tty

EXITING_PROGRAM = """
import signal, sys, time
from pathlib import Path
from cli.ending import at_immediate_exit, exit_at_once, exit_on_signals

def fail():
    raise OSError("no")

ending, file = sys.argv[1:]
with at_immediate_exit(fail), at_immediate_exit(Path(file).unlink):
    Path(file).touch()
    if ending == "exit during duty":
        exit_at_once(7)
    if ending in ("SIGTERM", "SIGINT"):
        exit_on_signals(signal.SIGTERM, signal.SIGINT)
        signal.raise_signal(getattr(signal, ending))
    Path(file).unlink()
Path(file).touch()
if ending == "exit after duty":
    exit_at_once(7)
exit_on_signals(signal.SIGTERM)
signal.raise_signal(signal.SIGTERM)
"""
"""A program with two duties, one that fails and one that deletes a file. Its arguments are an ending and the file."""
EXIT_CODE = 7
"""The code with which ``EXITING_PROGRAM`` exits."""


@pytest.mark.parametrize(
    ("ending", "code", "duty_runs"),
    [
        ("exit during duty", EXIT_CODE, True),
        ("SIGTERM", 128 + signal.SIGTERM, True),
        ("SIGINT", 128 + signal.SIGINT, True),
        ("exit after duty", EXIT_CODE, False),
        ("SIGTERM after duty", -signal.SIGTERM, False),  # without a duty the signal kills the program
    ],
)
def test_an_immediate_exit_runs_the_open_duties(ending: str, code: int, duty_runs: bool, tmp_path: Path) -> None:
    file = tmp_path / "file"
    command = [sys.executable, "-c", EXITING_PROGRAM, ending, str(file)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, file.exists()) == (code, not duty_runs), done.stderr


async def test_a_ctrl_c_for_another_program_is_dropped() -> None:
    def interrupt_another_program() -> None:
        with tty.lend_terminal(settle=lambda: trio.from_thread.run_sync(lambda: None)):  # waits for the event loop
            os.kill(os.getpid(), signal.SIGINT)

    with received_signals(signal.SIGINT, signal.SIGTERM) as signals:
        await trio.to_thread.run_sync(interrupt_another_program)
        signal.raise_signal(signal.SIGTERM)
        assert await anext(signals) == signal.SIGTERM
