"""The recording in the README, compared with the program."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import pytest
from recording.record import FILE, LINES, QUERY, shown_run, started

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.slow
def test_the_recording_shows_the_program_of_today(tmp_path: Path) -> None:
    """The lines are sent by ``--say`` in the same iterations, so speed does not matter."""
    said = [word for iteration, line in LINES.items() for word in ("--say", f"@iteration {iteration} {line}")]
    with started(tmp_path, *said, QUERY) as screen:
        screen.until("✓ done")
        shown = shown_run(screen)
    recorded = ElementTree.parse(FILE).getroot().findtext(f"{SVG}desc")
    assert shown == recorded, "make it again: .venv/bin/python tests/recording/record.py"


def test_the_first_and_last_frame_show_an_interruption() -> None:
    """A viewer without animation shows only the first."""
    source = FILE.read_text(encoding="utf-8")
    frames = re.findall(r'<g class="f\d+"( visibility="hidden")?>(.*)</g>', source)
    rows = {name: _text(drawn) for name, drawn in re.findall(r'<g id="(r\d+)">(.*?)</g>', source)}
    for _, shown in (frames[0], frames[-1]):
        assert any("INTERRUPTION at iteration" in rows[name] for name in re.findall(r'href="#(r\d+)"', shown))
    assert [bool(hidden) for hidden, _ in frames] == [False, *[True] * (len(frames) - 1)]
    for line in LINES.values():
        assert any(line in row for row in rows.values())


def _text(drawn: str) -> str:
    return unescape(re.sub(r"<[^>]*>", "", drawn))
