"""The command that installs the library of an extra, with the installer that installed this program."""

from __future__ import annotations

import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

MCP, REDIS = "mcp>=2.3", "coredis>=6.9,<7"
"""The libraries of the extras, as in ``pyproject.toml``.

A library is installed by its own name, not as an extra of chain, because chain may be in no package index.
"""


def install_command(requirement: str, prefix: str = sys.prefix, python: str = sys.executable) -> str:
    """Return the command that installs a requirement into this program's environment."""
    folder = Path(prefix)
    if (folder / "pipx_metadata.json").is_file():
        return f"pipx inject {folder.name} {shlex.quote(requirement)}"
    if find_spec("pip") is None:  # in environments that uv made
        return f"uv pip install --python {shlex.quote(python)} {shlex.quote(requirement)}"
    return f"{shlex.quote(python)} -m pip install {shlex.quote(requirement)}"
