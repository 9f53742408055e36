"""The identity of terminals."""

from __future__ import annotations

import os
import pty
from contextlib import ExitStack
from pathlib import Path

from cli.screen import tty


def test_descriptors_of_one_terminal_are_recognised(tmp_path: Path) -> None:
    with ExitStack() as stack:
        opened = [pty.openpty() for _ in range(2)]
        for fd in (fd for pair in opened for fd in pair):
            stack.callback(os.close, fd)
        (_, one), (_, other) = opened
        again = os.open(os.ttyname(one), os.O_RDWR | os.O_NOCTTY)
        stack.callback(os.close, again)
        file = stack.enter_context((tmp_path / "file").open("wb")).fileno()

        assert tty.is_one_terminal(one, again)
        assert not tty.is_one_terminal(one, other)
        assert not tty.is_one_terminal(one, file)
        assert not tty.is_one_terminal(file, file)
