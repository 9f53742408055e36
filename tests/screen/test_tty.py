"""The identity of terminals."""

from __future__ import annotations

import os
import pty
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cli.screen import tty

NewTerminal = Callable[[], int]


@pytest.fixture
def new_terminal() -> Iterator[NewTerminal]:
    """Open a pseudo-terminal, and return the descriptor that a program would use."""
    descriptors: list[int] = []

    def open_terminal() -> int:
        descriptors.extend(pty.openpty())
        return descriptors[-1]

    yield open_terminal
    for fd in descriptors:
        os.close(fd)


def test_two_descriptors_of_one_terminal_are_recognised(new_terminal: NewTerminal) -> None:
    first = new_terminal()
    second = os.open(os.ttyname(first), os.O_RDWR | os.O_NOCTTY)
    try:
        assert tty.is_one_terminal(first, second)
    finally:
        os.close(second)


def test_other_terminals_and_files_are_not_confused(new_terminal: NewTerminal, tmp_path: Path) -> None:
    terminal = new_terminal()
    with (tmp_path / "file").open("wb") as file:
        assert not tty.is_one_terminal(terminal, new_terminal())
        assert not tty.is_one_terminal(terminal, file.fileno())
        assert not tty.is_one_terminal(file.fileno(), file.fileno())
