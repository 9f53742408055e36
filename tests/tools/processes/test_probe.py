"""The probe of this machine's protections. ``test_fence`` tests that they protect."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from support.fences import PROTECTIONS, USERS
from support.processes import run_python

from chain.tools.processes.probe import probe


def test_probe_restricts_only_its_own_process() -> None:
    probe.cache_clear()
    probe()
    status = Path("/proc/self/status").read_text()
    assert "NoNewPrivs:\t0" in status
    assert "Seccomp:\t0" in status or os.environ.get("CI")  # a CI container may have a filter of its own
    socket.socket().close()  # a fence with the protection of the network would refuse it


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("user", USERS, ids=lambda user: f"user {user}")
def test_any_user_can_probe(user: int) -> None:
    output = run_python(user, "-c", "from chain.tools.processes.probe import probe; print(probe().writes)")
    assert output.strip() == str(PROTECTIONS.writes)
