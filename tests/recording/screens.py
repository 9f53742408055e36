"""Screens of the program, to be looked at: each as an SVG at 40, 80 and 120 columns.

    .venv/bin/python tests/recording/screens.py FOLDER [NAME...]

The real program runs in a pseudo-terminal; what its emulator shows is drawn.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from recording.drawing import frame, picture
from support.house import ROOT
from support.program import program
from support.screen import Screen
from support.terminal import idle, send

WIDTHS = (40, 80, 120)
ROWS = 34

CONFIG = f"""\
models:
  default: example
  definitions: {{example: {{provider: scripted, script: {ROOT / "tests/recording/rules.yaml"}}}}}
chains: {{default: {{model: example}}}}
"""

NOTES = "# Notes\n\nThe colour of the lid is red.\nThe price is the same as last year.\n\nAnother colour was tried.\n"

STRANGER = """\
models:
  default: proxy
  definitions:
    proxy:
      provider: anthropic
      model: claude-sonnet-5-5
      base_url: https://llm.example.org/anthropic/v2/with/a/path/that/is/longer/than/a/narrow/terminal
      api_key: "${ANTHROPIC_API_KEY}"
      extra_headers: {X-Team: "lids"}
chains: {default: {}}
tools:
  allow: [edit_file, "shell(make *)"]
  shell: {sandbox: "off", network: true}
"""


@contextmanager
def started(width: int, *args: str, rows: int = ROWS, named: bool = True) -> Iterator[Screen]:
    """The program in a folder with notes, with the replies of the example unless ``named`` is false."""
    with tempfile.TemporaryDirectory() as folder:
        home, work = Path(folder), Path(folder) / "work"
        work.mkdir()
        (work / "notes.md").write_text(NOTES)
        config = home / "example.yaml"
        config.write_text(CONFIG)
        if not named and not args:
            (work / "config.yaml").write_text(STRANGER)
        argv = program(*(["--config", str(config)] if named else []), *args)
        with Screen(argv, home=home, cwd=work, rows=rows, columns=width) as screen:
            yield screen


@contextmanager
def markdown(width: int) -> Iterator[Screen]:
    """A reply with a table and code."""
    with started(width, rows=64 if width < 80 else 44) as screen:
        send(idle(screen), "Compare the two ways to read a file").until("✓ done")
        yield idle(screen)


@contextmanager
def queue(width: int) -> Iterator[Screen]:
    """Five lines of all kinds that wait while a reply streams."""
    with started(width) as screen:
        send(idle(screen), "Describe the notes").until("I read the notes")
        send(screen, "the second part only", "!skip the prices", "todo: add ask the supplier", "how far are you?")
        send(screen, "context: the lids are red", "/queue").until(lambda s: "context: the lids are red" in s.flat)
        screen.type("half a line")
        yield screen.until(lambda s: s.editor == "half a line" and "» /queue" in s.everything)


@contextmanager
def approval(width: int) -> Iterator[Screen]:
    """A difference, and the question whether to make it."""
    with started(width) as screen:
        send(idle(screen), "Replace colour by color in the notes").until(lambda s: s.prompt == "Q1?")
        yield screen


@contextmanager
def demo(width: int) -> Iterator[Screen]:
    """The demonstration while it runs, with a line typed."""
    with started(width, "demo", named=False) as screen:
        screen.until(lambda s: "2/50" in s.toolbar)
        send(screen, "todo: add verify the SKU data").until(lambda s: "injected" in s.flat)
        yield screen


@contextmanager
def trust(width: int) -> Iterator[Screen]:
    """The question whether a configuration that was merely found is trusted."""
    with started(width, named=False) as screen:
        yield screen.until(lambda s: "shell.network" in s.flat and s.cursor[1] > 0)


@contextmanager
def commands(width: int) -> Iterator[Screen]:
    """What /help shows."""
    with started(width, rows=24 if width == 80 else 40) as screen:
        send(idle(screen), "/help")
        yield idle(screen.until("» /help"))


SCENES: dict[str, Callable[[int], object]] = {
    "markdown": markdown,
    "queue": queue,
    "approval": approval,
    "demo": demo,
    "trust": trust,
    "help": commands,
}


def draw(folder: Path, names: list[str]) -> list[Path]:
    """Draw scenes, all if none is named; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name in names or SCENES:
        for width in WIDTHS:
            with SCENES[name](width) as screen:  # type: ignore[attr-defined]
                path = folder / f"{name}-{width}.svg"
                path.write_text(picture(frame(screen), width), encoding="utf-8")
                files.append(path)
    return files


if __name__ == "__main__":
    draw(Path(sys.argv[1]), sys.argv[2:])
