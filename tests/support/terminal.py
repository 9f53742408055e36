"""The program in a pseudo-terminal. Test files that use the fixtures name this module in ``pytest_plugins``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from .journals import journal_files, receipts
from .program import program_command
from .project import ROOT
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

OTHER_RULES = 'rules: [{text: "The other one says: ${query}"}]\n'

COLOUR = re.compile(rb"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;\d+)*m")

PASTE = "\x1b[200~{}\x1b[201~"
"""What a terminal writes for a pasted text."""

SLOW_QUERY = "stream 40 words in 20 seconds"
WORDS = [f"w{n:02}" for n in range(1, 41)]
"""The words of the answer to ``SLOW_QUERY``."""

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
"""Time limits of the program that tests disable, since they could pass on a busy machine."""


def start_in(
    home: Path,
    *args: str,
    config: bool = True,
    disabled: Sequence[str] = LIMITS,
    launcher: Sequence[str] = (),
    env: Mapping[str, str | None] | None = None,
    **options: Any,
) -> Screen:
    """Start the program in the folder ``work`` of a home, with a configuration file unless ``config`` is false.

    ``disabled`` names the time limits that are disabled; a program with ``-p`` has none of them. ``launcher`` is a
    command that starts the program, such as a shell. The options are those of ``Screen``.
    """
    (home / "work").mkdir(exist_ok=True)
    file = home / "test.yaml"
    if not file.exists():
        file.write_text(CONFIG)
        (home / "other.yaml").write_text(OTHER_RULES)
    argv = [*launcher, *program_command(*(["--config", str(file)] if config else []), *args)]
    limits = {} if "-p" in args else {"DISABLED_LIMITS": " ".join(disabled)}
    return Screen(argv, home=home, cwd=home / "work", env={**limits, **(env or {})}, **options)


def configure(home: Path, rules: str, tools: str, more: str = "") -> Path:
    """Configure a model that follows ``rules``, with groups of ``tools``. Return the workspace."""
    (home / "rules.yaml").write_text(rules)
    (home / "test.yaml").write_text(
        "models: {default: test, definitions: {test: {provider: scripted, script: rules.yaml}}}\n"
        f"chains: {{default: {{model: test, tools: [{tools}]}}}}\n{more}"
    )
    (home / "work").mkdir()
    return home / "work"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts programs with their home in ``tmp_path``."""
    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(start_in(tmp_path, *args, **options))


@pytest.fixture
def screen(start: Start) -> Screen:
    """The program with its prompt up."""
    return wait_idle(start())


def wait_idle(screen: Screen) -> Screen:
    """Wait for an empty prompt without a run."""
    return screen.until(lambda s: s.prompt == ">" and s.editor == "" and "idle" in s.toolbar)


def send(screen: Screen, *lines: str) -> Screen:
    """Type lines, each with its Enter, in one write."""
    screen.type("".join(f"{line}\r" for line in lines))
    return screen


def start_tool(screen: Screen, query: str, tool: str = "gate") -> Screen:
    """Start a run, and wait until its tool runs."""

    def run_count() -> int:
        return sum(row.startswith(("▶", ">> ")) for row in screen.rows)

    count_before = run_count()
    send(screen, query)
    return screen.until(lambda s: run_count() > count_before and tool in s.toolbar)


def editor_has(text: str) -> Callable[[Screen], bool]:
    """Return a condition: the text in the editor is ``text``."""
    return lambda screen: screen.editor == text


def shown_words(screen: Screen) -> list[str]:
    """Return the words of the answer to ``SLOW_QUERY`` that are shown."""
    return re.findall(r"w\d\d", " ".join(screen.rows))


def journal(screen: Screen) -> Path:
    """Return the journal of the latest session."""
    return journal_files(screen.home)[-1]


def check_exit(screen: Screen, code: int = 0) -> None:
    """Wait for the exit. Check its code, the note on how to resume, and that the terminal is as it was before."""
    assert screen.wait() == code, screen.everything
    assert screen.left_behind == [], screen.everything
    assert screen.editor is None, screen.everything
    farewell = "".join(screen.rows[-6:])  # the row may be wrapped
    assert f"chain -r {journal(screen).stem}" in farewell


def quit_program(screen: Screen) -> None:
    """End the program by command."""
    send(screen, "/quit")
    check_exit(screen)


def line_states(screen: Screen) -> dict[str, str]:
    """Return the state of each line by its text."""
    return {line.text: line.state for line in receipts(screen.home).values()}
