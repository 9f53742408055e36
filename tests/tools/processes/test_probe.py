"""What a machine can refuse, as the probe finds it; ``test_fence`` holds that what it finds is so."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes import NOBODY, as_user, python_of

from chain.tools.processes.probe import probe

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fence is for Linux")

USERS = sorted({os.geteuid(), NOBODY if os.geteuid() == 0 else os.geteuid()})


def test_a_probe_leaves_this_process_as_it_is() -> None:
    probe.cache_clear()
    probe()
    assert "NoNewPrivs:\t0" in Path("/proc/self/status").read_text()
    assert "Seccomp:\t0" in Path("/proc/self/status").read_text() or os.environ.get("CI")
    socket.socket().close()


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("user", USERS, ids=lambda user: f"user {user}")
def test_the_probe_runs_as_any_user(user: int) -> None:
    python = python_of(user)
    if python is None:
        pytest.skip("no Python that another user may run")
    done = subprocess.run(
        [python, "-c", "from chain.tools.processes.probe import probe; print(probe().writes)"],
        capture_output=True,
        check=True,
        text=True,
        **as_user(user),
    )
    assert done.stdout.strip() == str(probe().writes)
