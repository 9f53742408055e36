"""The recording in the README, compared with the program."""

import re
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import pytest
from recording.record import FILE, LINES, QUERY, rows_of_run, start_program

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.slow
def test_the_recording_shows_the_program_of_today(tmp_path: Path) -> None:
    """The lines are sent by ``--say`` in the same iterations, so speed does not matter."""
    say = [word for iteration, line in LINES.items() for word in ("--say", f"@iteration {iteration} {line}")]
    with start_program(tmp_path, *say, QUERY) as screen:
        screen.until("✓ done")
        shown = rows_of_run(screen)
    recorded = ElementTree.parse(FILE).getroot().findtext(f"{SVG}desc")
    assert shown == recorded, "make it again: .venv/bin/python tests/recording/record.py"


SOURCE = FILE.read_text(encoding="utf-8")
FRAMES = re.findall(r'<g class="f\d+"( visibility="hidden")?>(.*)</g>', SOURCE)
"""Whether each frame is hidden without animation, and the SVG of the frame, which refers to its rows."""
ROWS = {
    name: unescape(re.sub(r"<[^>]*>", "", drawing))
    for name, drawing in re.findall(r'<g id="(r\d+)">(.*?)</g>', SOURCE)
}  # fmt: skip


def test_the_first_and_last_frame_show_an_interruption() -> None:
    (_, first), *_, (_, last) = FRAMES
    for frame in (first, last):
        rows = [ROWS[name] for name in re.findall(r'href="#(r\d+)"', frame)]
        assert any("INTERRUPTION at iteration" in row for row in rows)


def test_a_viewer_without_animation_shows_the_first_frame() -> None:
    first, *others = (bool(hidden) for hidden, _ in FRAMES)
    assert not first
    assert all(others)


def test_the_recording_shows_the_typed_lines() -> None:
    for line in LINES.values():
        assert any(line in row for row in ROWS.values())
