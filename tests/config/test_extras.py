"""The command that installs the library of an extra into the environment of this program."""

from __future__ import annotations

import tomllib
from pathlib import Path

from support.project import ROOT

from chain.config.extras import MCP, REDIS, install_command


def test_the_requirements_match_the_project() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert (extras["mcp"], extras["redis"]) == ([MCP], [REDIS])


def test_the_command_uses_the_installer(tmp_path: Path) -> None:
    venv = tmp_path / "react-chain"
    venv.mkdir()
    python = f"{venv}/bin/py thon"  # the space needs quotes
    assert install_command(MCP, str(venv), python).endswith(f"'{python}' -m pip install 'mcp>=2.3'")
    (venv / "pipx_metadata.json").touch()  # pipx has created the environment
    assert install_command(MCP, str(venv), python) == "pipx inject react-chain 'mcp>=2.3'"
