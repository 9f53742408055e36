"""The real program is killed at points that are spread over its writes and syncs, and resumed.

``PYTHONPATH=tests python -m crash --points 5000`` plays more points. A point that failed is printed with the command
that plays it again.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.examples import IS_SHORT
from support.project import ROOT

from .scenarios import SCENARIOS

POINTS = 60 if IS_SHORT else 300
"""The number of points over all scenarios."""

NAMES = ["lines", "questions"] if IS_SHORT else [scenario.name for scenario in SCENARIOS]
GROUPS = [NAMES] if IS_SHORT else [NAMES[n::4] for n in range(4)]
"""The scenarios of each test: four groups, which can run on different cores."""


@pytest.mark.slow
@pytest.mark.timeout(600)  # a group has up to 175 points
@pytest.mark.parametrize("names", GROUPS, ids=" ".join)
def test_a_kill_loses_nothing_acknowledged(names: list[str]) -> None:
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/tests", "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "crash", f"--points={POINTS}", "--seed=13", *(f"--scenario={n}" for n in names)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
