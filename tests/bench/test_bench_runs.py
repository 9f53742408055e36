"""Every program of the benchmark runs. Its figures are not checked."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_program_runs_and_has_a_figure() -> None:
    command = [sys.executable, str(Path(__file__).with_name("run.py")), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    _head, _rule, *rows = [[cell.strip() for cell in row.strip("|\n").split("|")] for row in done.stdout.splitlines()]
    assert len({row[0] for row in rows}) == len(rows) > 12
    assert all(row[2] for row in rows)
