"""Make the recording of the README from a real run: a chain reads the wrong folder until a line corrects it.

    .venv/bin/python tests/recording/record.py          writes demo.svg next to this file

``tests/test_recording.py`` repeats the run and compares what the terminal shows.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from recording.drawing import Frame, frame, recording
from support.program import program_command
from support.rows import without_varying_parts
from support.screen import Condition, Screen

FILE = Path(__file__).with_name("demo.svg")

COLUMNS, ROWS = 88, 24
KEY_S, FRAME_S, THINK_S, REST_S, FIRST_S = 0.055, 0.07, 0.9, 6.0, 2.5
"""Seconds between keys, between frames, before a line is typed, of the last frame, and of the first one."""

QUERY = "summarise reports/2025"
LINES = {3: "no, summarise reports/2026", 5: "todo: add send it to Ana"}
"""The lines that are typed, by the iteration in which they are sent."""

REPORTS = {
    "2025/north.md": "# North, 2025\n\nThe old shop was closed in May.\n",
    "2025/south.md": "# South, 2025\n\nNothing new.\n",
    "2025/west.md": "# West, 2025\n\nTwo people came, one left.\n",
    "2026/north.md": "# North, 2026\n\nThe new shop opened in March and pays for itself.\n",
    "2026/south.md": "# South, 2026\n\nReturns fell by a third.\n",
}


def play(recorder: Recorder) -> None:
    """Type the query and the lines, from the first prompt to the end of the run."""
    recorder.until(lambda s: s.prompt == ">" and "idle" in s.toolbar)
    recorder.type(QUERY)
    recorder.type("\r")
    for iteration, text in LINES.items():
        recorder.type(text)
        in_iteration = re.compile(rf"(?<!\d){iteration}/\d+")
        recorder.until(lambda s, pattern=in_iteration: bool(pattern.search(s.toolbar)))
        recorder.type("\r")
        recorder.until(lambda s, text=text: text in s.flat)
    recorder.until("✓ done")


def start_program(home: Path, *args: str) -> Screen:
    """Start the program in a folder with the reports."""
    work = home / "team"
    for name, text in REPORTS.items():
        file = work / "reports" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return Screen(program_command("--model", "offline", *args), home=home, cwd=work, rows=ROWS, columns=COLUMNS)


def rows_of_run(screen: Screen) -> str:
    """Return the rows of the run without the parts that differ from run to run."""
    _, start, run = screen.everything.partition("▶")
    run, _, _ = run.partition("✓ done")
    return "\n".join(row for row in without_varying_parts(start + run) if row)


class Recorder:
    """A recorder of a screen, which types at the speed of a person."""

    def __init__(self, screen: Screen) -> None:
        self.frames: list[Frame] = []
        self._screen = screen
        self._start = time.monotonic()

    def type(self, text: str) -> None:
        """Type a text."""
        if len(text) > 1:
            self.watch(THINK_S)
        for key in text:
            self._screen.type(key)
            self.watch(KEY_S)

    def until(self, condition: Condition) -> None:
        """Record until the condition holds, or the text is on the screen."""
        holds = condition if callable(condition) else lambda screen: condition in screen.everything
        while not holds(self._screen):
            self.watch(FRAME_S)

    def watch(self, seconds: float) -> None:
        """Record for this time."""
        end = time.monotonic() + seconds
        self._screen.until(lambda _: time.monotonic() >= end)
        shown = frame(self._screen, time.monotonic() - self._start)
        if not self.frames or (shown.rows, shown.cursor) != (self.frames[-1].rows, self.frames[-1].cursor):
            self.frames.append(shown)


def frames_to_delivery(frames: Sequence[Frame]) -> list[Frame]:
    """Return the frames up to the last one with a delivered line. For ``FIRST_S``, that one is also the first."""
    last = max(n for n, shown in enumerate(frames) if shows_delivery(shown))
    begin = frames[0].at - FIRST_S
    return [replace(frames[last], at=0.0), *(replace(shown, at=shown.at - begin) for shown in frames[: last + 1])]


def shows_delivery(shown: Frame) -> bool:
    """Return whether a frame has the row of a delivered line."""
    return any("INTERRUPTION at iteration" in "".join(cell.text for cell in row) for row in shown.rows)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, start_program(Path(folder)) as screen:
        recorder = Recorder(screen)
        play(recorder)
        recorder.watch(THINK_S)
        about = rows_of_run(screen)
    frames = frames_to_delivery(recorder.frames)
    FILE.write_text(recording(frames, COLUMNS, rest_s=REST_S, about=about), encoding="utf-8")


if __name__ == "__main__":
    main()
