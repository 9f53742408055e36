"""Immediate exits: the duties that still run, the exit codes, and signals during another program."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from cli.ending import received_signals
from cli.screen import tty

CODE = """
import signal, sys, time
from pathlib import Path
from cli.ending import at_immediate_exit, exit_at_once, exit_on_signals

def fails():
    raise OSError("no")

how, file = sys.argv[1:]
with at_immediate_exit(fails), at_immediate_exit(Path(file).unlink):
    Path(file).touch()
    if how == "call":
        exit_at_once(7)
    if how in ("SIGTERM", "SIGINT"):
        exit_on_signals(signal.SIGTERM, signal.SIGINT)
        signal.raise_signal(getattr(signal, how))
    Path(file).unlink()
Path(file).touch()
if how == "after":
    exit_at_once(7)
exit_on_signals(signal.SIGTERM)
signal.raise_signal(signal.SIGTERM)
"""


@pytest.mark.parametrize(
    ("how", "code", "is_left"),
    [("call", 7, False), ("SIGTERM", 143, False), ("SIGINT", 130, False), ("after", 7, True), ("default", -15, True)],
)
def test_an_immediate_exit_runs_the_open_duties(how: str, code: int, is_left: bool, tmp_path: Path) -> None:
    file = tmp_path / "made"
    done = subprocess.run([sys.executable, "-c", CODE, how, str(file)], check=False, capture_output=True, text=True)
    assert (done.returncode, file.exists()) == (code, is_left), done.stderr


async def test_a_ctrl_c_for_another_program_is_dropped() -> None:
    def lend() -> None:
        with tty.lend_terminal(lambda: trio.from_thread.run_sync(lambda: None)):
            os.kill(os.getpid(), signal.SIGINT)

    with received_signals(signal.SIGINT, signal.SIGTERM) as signals:
        await trio.to_thread.run_sync(lend)
        signal.raise_signal(signal.SIGTERM)
        assert await anext(signals) == signal.SIGTERM
