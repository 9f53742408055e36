"""The identity of terminals."""

import os
import pty
from contextlib import ExitStack
from pathlib import Path

from cli.screen import tty


def test_descriptors_of_one_terminal_are_recognised(tmp_path: Path) -> None:
    with ExitStack() as stack, (tmp_path / "file").open("wb") as file:
        (master, terminal), (other_master, other_terminal) = pty.openpty(), pty.openpty()
        same_terminal = os.open(os.ttyname(terminal), os.O_RDWR | os.O_NOCTTY)
        for fd in (master, terminal, other_master, other_terminal, same_terminal):
            stack.callback(os.close, fd)
        assert tty.is_one_terminal(terminal, same_terminal)
        assert not tty.is_one_terminal(terminal, other_terminal)
        assert not tty.is_one_terminal(terminal, file.fileno())
        assert not tty.is_one_terminal(file.fileno(), file.fileno()), "a file is no terminal"
