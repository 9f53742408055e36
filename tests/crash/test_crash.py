"""The real program, killed at points that are spread over all its writes and syncs, and resumed.

``PYTHONPATH=tests python -m crash --points 5000`` plays more of them. A point that failed is shown with the command
that plays it again.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.examples import IS_SHORT
from support.house import ROOT

from .scenarios import SCENARIOS

POINTS = 30 if IS_SHORT else 300
"""Over all scenarios; half a minute of a core for each hundred."""

SEED = 13

NAMES = ["lines", "asked"] if IS_SHORT else [scenario.name for scenario in SCENARIOS]
GROUPS = [NAMES] if IS_SHORT else [NAMES[n::4] for n in range(4)]


@pytest.mark.slow
@pytest.mark.timeout(600)  # a group plays up to 90 points; a program that hangs is a complaint after a minute
@pytest.mark.parametrize("names", GROUPS, ids=" ".join)
def test_nothing_that_was_acknowledged_is_lost(names: list[str]) -> None:
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/tests", "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
    chosen = [f"--scenario={name}" for name in names]
    command = [sys.executable, "-m", "crash", f"--points={POINTS}", f"--seed={SEED}", *chosen]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
