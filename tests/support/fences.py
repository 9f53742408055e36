"""The protections of this machine, and the fence that has all of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chain.tools.processes.fence import DEVICES, Fence
from chain.tools.processes.probe import probe

from .processes import NOBODY

PROTECTIONS = probe()
"""What this machine supports, one attribute for each protection."""
USERS = sorted({os.geteuid(), NOBODY if os.geteuid() == 0 else os.geteuid()})
"""The ids of the users as whom tests run programs: the current one, and an unprivileged one if that is root."""


def skip_without(*protections: str) -> pytest.MarkDecorator:
    """Return a mark that skips a test if this machine lacks one of these protections."""
    lacking = [name for name in protections if not getattr(PROTECTIONS, name)]
    return pytest.mark.skipif(bool(lacking), reason=f"this machine does not support {', '.join(lacking)}")


def full_fence(*writable: Path) -> Fence:
    """Return a fence with all protections of this machine, which allows writes in these directories."""
    return Fence(
        [*map(str, writable), *DEVICES] if PROTECTIONS.writes else None,
        *(PROTECTIONS.network, PROTECTIONS.unix_sockets, PROTECTIONS.signals, PROTECTIONS.namespace),
        DEVICES if PROTECTIONS.devices else None,
    )
