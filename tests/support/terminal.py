"""The program at a terminal: how a test starts it, talks to it and leaves it.

A test file names this module in ``pytest_plugins`` for the fixtures.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from chain.text.wording import pluralize
from cli.show.text_rows import LONGEST_SHOWN

from .house import ROOT
from .journals import journal_files, journals, receipts, receipts_of
from .program import program
from .screen import Screen

CONFIG = f"""\
models:
  default: test
  definitions:
    test: {{provider: scripted, script: {ROOT / "tests/support/terminal_rules.yaml"}, max_attempts: 2}}
    other: {{provider: scripted, script: other.yaml}}
chains:
  default: {{model: test, tools: [todo, files]}}
"""

OTHER = 'rules: [{text: "The other one says: ${query}"}]\n'

ESC, ALT_ENTER, CTRL_C, CTRL_D, CTRL_J, CTRL_L, CTRL_R, UP = (
    "\x1b",
    "\x1b\r",
    "\x03",
    "\x04",
    "\n",
    "\x0c",
    "\x12",
    "\x1b[A",
)

SHIFT_ENTER = ("\x1b[13;2u", "\x1b[27;2;13~")

COLOUR = re.compile(rb"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;\d+)*m")

PASTE = "\x1b[200~{}\x1b[201~"

SLOW = "stream 40 words in 20 seconds"
"""A query with an answer that a test need not wait for: w01 w02 ..., of which there is soon something to see."""

WORDS = [f"w{n:02}" for n in range(1, 41)]

_INJECTED = re.compile(r" ✓ injected \(\d+ ")

SHOWN = 60
"""Characters of a text that are surely on its row, whatever else stands there."""

Start = Callable[..., Screen]


LIMITS = (
    "cli.terminal.program.DOUBLE_PRESS_S",
    "cli.terminal.terminal_session.SHOWING_S",
    "cli.screen.editor.EDITOR_CLOSE_S",
    "cli.screen.dumb.LAST_ROWS_S",
    "cli.screen.tty.WRITE_S",
    "cli.ending.EXIT_S",
    "cli.door.client.GREETING_S",
)
"""Times after which the program acts differently. On a busy machine they could pass by chance."""


def started(
    home: Path,
    *args: str,
    config: bool = True,
    never: Sequence[str] = LIMITS,
    under: Sequence[str] = (),
    env: Mapping[str, str | None] | None = None,
    **more: Any,
) -> Screen:
    """Start the program in an empty folder, with a configuration of the test's own unless ``config`` is false.

    ``never`` names limits that are disabled; a program with ``-p`` has none of them. ``under`` is a command that starts
    the program, such as a shell. ``more`` is for the screen.
    """
    (home / "work").mkdir(exist_ok=True)
    named = home / "test.yaml"
    if not named.exists():
        named.write_text(CONFIG)
        (home / "other.yaml").write_text(OTHER)
    argv = [*under, *program(*(["--config", str(named)] if config else []), *args)]
    own = {} if "-p" in args else {"NEVER": " ".join(never)}
    return Screen(argv, home=home, cwd=home / "work", env={**own, **(env or {})}, **more)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start programs, which have their home in ``tmp_path``."""
    with ExitStack() as stack:
        yield lambda *args, **more: stack.enter_context(started(tmp_path, *args, **more))


@pytest.fixture
def screen(start: Start) -> Screen:
    """The program with its prompt up."""
    return idle(start())


def idle(screen: Screen) -> Screen:
    """Wait for an empty prompt with nothing to do."""
    return screen.until(lambda s: s.prompt == ">" and s.editor == "" and "idle" in s.toolbar)


def send(screen: Screen, *lines: str) -> Screen:
    """Type lines, each with its Enter, in one go."""
    screen.type("".join(f"{line}\r" for line in lines))
    return screen


def busy(screen: Screen, query: str, tool: str = "gate") -> Screen:
    """Start a run, and wait until it is in the tool."""
    count = _runs(screen)
    send(screen, query)
    return screen.until(lambda s: _runs(s) > count and tool in s.toolbar)


def _runs(screen: Screen) -> int:
    return sum(row.startswith(("▶", ">> ")) for row in screen.rows)


def edits(text: str) -> Callable[[Screen], bool]:
    """Whether this is what is in the editor."""
    return lambda screen: screen.editor == text


def words(screen: Screen, start: int = 0) -> list[str]:
    """Return the words of such an answer that have been shown, from one place on."""
    return re.findall(r"w\d\d", " ".join(screen.rows))[start:]


def journal(screen: Screen) -> Path:
    """The journal of the latest session."""
    return journal_files(screen.home)[-1]


def left(screen: Screen, code: int = 0) -> None:
    """The program ends with this code, names its session, and leaves no trace of itself in the terminal."""
    assert screen.wait() == code, screen.everything
    assert screen.left_behind == [], screen.everything
    assert screen.editor is None, screen.everything
    last = "".join(screen.rows[-6:])
    assert journal(screen).stem in last
    assert f"chain -r {journal(screen).stem}" in last
    agree(screen)


def quit(screen: Screen, code: int = 0) -> None:
    """End the program by command."""
    send(screen, "/quit")
    left(screen, code)


def agree(screen: Screen) -> None:
    """What the screen said of each line is what its journal has."""
    records = journals(screen.home)[journal(screen).stem]
    lines = receipts_of(records)
    rows = screen.rows
    queued = [line.text for line in lines.values() if line.state == "queued"]
    assert not queued or f"{pluralize(len(queued), 'line')} stay" in screen.everything
    # The end of a job is shown when it comes, not while it waits.
    jobs = {r["id"] for r in records if r["type"] == "line" and r["kind"] == "job"}
    queued = [line.text for id, line in lines.items() if line.state == "queued" and id not in jobs]

    begun = {r["id"] for r in records if r["type"] == "receipt" and r["point"] == "start"}
    for id in begun:
        query = lines[id].text.removeprefix("then:").lstrip("! ")
        start = f"▶ {_seen(query)}"
        assert any(_from(rows, n).startswith(start) for n, row in enumerate(rows) if row.startswith("▶")), query
    assert all(_rows_with(rows, "📤", text) for text in queued)
    assert sum(row.startswith("📤") for row in rows) == len(queued), "no other line waits any more"

    groups = [r["line_ids"] for r in records if r["type"] == "message" and r["is_interjection"]]
    groups = [ids for group in groups if (ids := [id for id in group if id not in jobs])]
    banners = [n for n, row in enumerate(rows) if row.startswith("🔔 INTERRUPTION ")]
    assert len(banners) == len(groups)
    for n, ids in zip(banners, groups, strict=True):
        iteration = lines[ids[0]].iteration
        when = f"at iteration {iteration}" if iteration else "before iteration 1"
        banner = _from(rows, n)
        assert banner.startswith(f"🔔 INTERRUPTION {when}: ")
        for id in ids:
            assert _flat(lines[id].text.split("\n")[0])[:SHOWN] in banner
        assert _INJECTED.search(banner)
    for line in lines.values():
        match line.state:
            case "returned":
                assert _rows_with(rows, "↩ Returned", line.text), line
            case "dropped":
                assert _rows_with(rows, "↩ Dropped", line.text), line
            case "handled" if line.kind == "stop":
                assert _rows_with(rows, "⏹ ", line.text), line
            case _:
                pass


def _rows_with(rows: list[str], sign: str, text: str) -> list[str]:
    """The rows that begin with the sign and, in the next ones too, have the text."""
    begun = [n for n, row in enumerate(rows) if row.startswith(sign)]
    return [rows[n] for n in begun if _seen(text) in _flat(" ".join(rows[n : n + SHOWN]))]


def _seen(text: str) -> str:
    """The beginning of a line as it is shown; of a long pasted one a single row is."""
    rows = text.split("\n")
    return _flat(rows[0] if len(rows) > LONGEST_SHOWN else text)[:SHOWN]


def _from(rows: list[str], n: int) -> str:
    """What stands from this row on, on one row."""
    return _flat(" ".join(rows[n:]))


def _flat(text: str) -> str:
    return " ".join(text.split())


def states(screen: Screen) -> dict[str, str]:
    """What became of each line, by its text."""
    return {line.text: line.state for line in receipts(screen.home).values()}
