"""The pager of help in a pseudo-terminal."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.program import program_command
from support.screen import Screen

from cli.show.markdown_flow import render
from cli.subcommands.help import read_topic

pytestmark = pytest.mark.slow

COUNTING_PAGER = "import sys; print('PAGED', len(sys.stdin.read().splitlines()))"
INTERRUPTIBLE_PAGER = """
import signal
signal.signal(signal.SIGINT, lambda *_: print('HEARD', flush=True))
print('READY', flush=True)
open('/dev/tty').readline()
"""


def screen_after(home: Path, *args: str, rows: int = 24, **env: str | None) -> Screen:
    """Run the program to its end and return its screen."""
    with Screen(program_command(*args), home=home, rows=rows, env=env) as screen:
        assert screen.wait() == 0
        assert screen.left_behind == []
        return screen


def python_pager(folder: Path, script: str) -> str:
    """Return the command of a pager in Python."""
    (folder / "pager.py").write_text(script)
    return f"'{sys.executable}' '{folder}/pager.py'"


def test_only_a_long_topic_goes_through_the_pager(tmp_path: Path) -> None:
    pager = python_pager(tmp_path, COUNTING_PAGER)
    columns_of_screen = 100
    count = len(render(read_topic("tools"), columns_of_screen, ascii=False))
    assert screen_after(tmp_path, "help", "tools", PAGER=pager).everything == f"PAGED {count}"
    title, *_ = screen_after(tmp_path, "help", "files", rows=60, PAGER=pager).rows
    assert title == "Files", "the topic fits on the screen"


@pytest.mark.parametrize(
    ("env", "title"),
    [
        pytest.param({"PAGER": "cat"}, "Tools", id="no pager"),
        pytest.param({"PAGER": "cat", "NO_COLOR": "1"}, "# Tools", id="no pager and no colours"),
        pytest.param({"PAGER": "true", "TERM": "dumb"}, "# Tools", id="a dumb terminal"),
    ],
)
def test_without_a_pager_the_topic_is_written(tmp_path: Path, env: dict[str, str], title: str) -> None:
    screen = screen_after(tmp_path, "help", "tools", **env)
    assert screen.rows[0] == title
    assert "summarise docs" in screen.everything


def test_ctrl_c_is_for_the_pager(tmp_path: Path) -> None:
    env = {"PAGER": python_pager(tmp_path, INTERRUPTIBLE_PAGER)}
    with Screen(program_command("help", "tools"), home=tmp_path, env=env) as screen:
        screen.until("READY").type("\x03")
        screen.until("HEARD").type("q\r")
        assert screen.wait() == 0
