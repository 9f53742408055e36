"""Long help in a pseudo-terminal goes through the user's pager."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.program import program
from support.screen import Screen

from cli.show.markdown_flow import render
from cli.subcommands.help import read_topic

pytestmark = pytest.mark.slow

COUNTING = "import sys; print('PAGED', len(sys.stdin.read().splitlines()))"
INTERRUPTIBLE = """
import signal
signal.signal(signal.SIGINT, lambda *_: print('HEARD', flush=True))
print('READY', flush=True)
open('/dev/tty').readline()
"""


def shown(home: Path, *args: str, rows: int = 24, **env: str | None) -> Screen:
    """Return the screen when the program has ended."""
    with Screen(program(*args), home=home, rows=rows, env=env) as screen:
        assert screen.wait() == 0
        assert screen.left_behind == []
        return screen


def pager(folder: Path, script: str) -> str:
    """Return the command of a pager in Python."""
    (folder / "pager.py").write_text(script)
    return f"'{sys.executable}' '{folder}/pager.py'"


def test_only_a_long_topic_goes_through_the_pager(tmp_path: Path) -> None:
    counts = pager(tmp_path, COUNTING)
    screen = shown(tmp_path, "help", "tools", PAGER=counts)
    assert screen.everything == f"PAGED {len(render(read_topic('tools'), 100, ascii=False))}"
    assert shown(tmp_path, "help", "files", rows=60, PAGER=counts).rows[0] == "Files"


@pytest.mark.parametrize(
    ("env", "first"),
    [
        ({"PAGER": "cat"}, "Tools"),
        ({"PAGER": "cat", "NO_COLOR": "1"}, "# Tools"),
        ({"PAGER": "true", "TERM": "dumb"}, "# Tools"),
    ],
)
def test_without_a_pager_the_topic_is_written(tmp_path: Path, env: dict[str, str], first: str) -> None:
    screen = shown(tmp_path, "help", "tools", **env)
    assert screen.rows[0] == first
    assert "summarise docs" in screen.everything


def test_ctrl_c_is_for_the_pager(tmp_path: Path) -> None:
    env = {"PAGER": pager(tmp_path, INTERRUPTIBLE)}
    with Screen(program("help", "tools"), home=tmp_path, env=env) as screen:
        screen.until("READY").type("\x03")
        screen.until("HEARD").type("q\r")
        assert screen.wait() == 0
