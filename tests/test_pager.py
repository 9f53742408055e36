"""Long text at a terminal: through the user's pager, and nowhere else."""

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


def shown(home: Path, *args: str, rows: int = 24, **env: str | None) -> Screen:
    """The screen when the program has ended."""
    with Screen(program(*args), home=home, rows=rows, env=env) as screen:
        assert screen.wait() == 0
        assert screen.left_behind == []
        return screen


@pytest.fixture
def pager(tmp_path: Path) -> str:
    """The command of a pager that counts the rows."""
    file = tmp_path / "pager.py"
    file.write_text(COUNTING)
    return f"'{sys.executable}' '{file}'"


def test_a_long_topic_goes_through_the_pager_and_a_short_one_does_not(tmp_path: Path, pager: str) -> None:
    screen = shown(tmp_path, "help", "tools", PAGER=pager)
    assert screen.everything == f"PAGED {len(render(read_topic('tools'), 100, ascii=False))}"
    assert shown(tmp_path, "help", "files", rows=60, PAGER=pager).rows[0] == "Files"
    assert "PAGED" not in shown(tmp_path, "help", PAGER=pager).everything


def test_it_is_rendered_where_there_are_colours(tmp_path: Path) -> None:
    plain = shown(tmp_path, "help", "tools", PAGER="cat", NO_COLOR="1")
    assert "".join(plain.joined.split()) == "".join(read_topic("tools").split())
    rendered = shown(tmp_path, "help", "tools", PAGER="cat")
    assert "**" not in rendered.everything
    assert [row for row in rendered.rows if "│" in row]


def test_without_a_pager_it_is_written(tmp_path: Path) -> None:
    for env in (
        {"PAGER": ""},
        {"PAGER": "no-such-pager -x"},
        {"PAGER": "'unbalanced"},
        {"PAGER": "true", "TERM": "dumb"},
    ):
        screen = shown(tmp_path, "help", "tools", **env)
        assert screen.rows[0] == ("# Tools" if env.get("TERM") else "Tools")
        assert "summarise docs" in screen.everything


def test_an_interrupt_is_the_pagers(tmp_path: Path) -> None:
    """As in less, where Ctrl-C ends a search."""
    file = tmp_path / "pager.py"
    file.write_text(
        "import signal, sys\nsignal.signal(signal.SIGINT, lambda *_: print('HEARD', flush=True))\n"
        "print('READY', flush=True)\nopen('/dev/tty').readline()\n"
    )
    with Screen(program("help", "tools"), home=tmp_path, env={"PAGER": f"'{sys.executable}' '{file}'"}) as screen:
        screen.until("READY")
        screen.type("\x03")
        screen.until("HEARD")
        screen.type("q\r")
        assert screen.wait() == 0
