"""The official SDKs as editors of the real program.

The clients in ``clients/`` print what they received as JSON. Where an SDK cannot be installed, its test is skipped.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.editor import configure_client
from support.program import gates, make_environ, program_command
from support.project import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CLIENTS = ROOT / "tests/acp/clients"
INSTALLING_S = 120

EXPECTED = {
    "initialize": [1, "chain", True],  # the version of the protocol, the agent's name, whether it loads sessions
    "new": True,
    "prompt": "end_turn",
    "updates": "Hello.",
    "permission": ["end_turn", "a\nb\n"],  # the end of the run, the new text in the request
    "cancel": "cancelled",
    "steer": "injected",
    "second": ["end_turn", "end_turn"],
    "receipt": ["queued", "delivered"],
    "load": True,
    "list": True,
    "options": [{"model": "test", "chain": "default"}, {"model": "other", "chain": "default"}],
    "chain": {"model": "other", "chain": "review"},
    "commands": ["status", True],
    "form": "The user answered: right",
    "delete": [],  # the sessions that are listed afterwards
}
"""What a client prints: the outcome of each of its steps."""


def install(folder: Path, *command: str) -> None:
    """Install an SDK, or skip the test."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    try:
        subprocess.run(command, cwd=folder, capture_output=True, timeout=INSTALLING_S, check=True)
    except (OSError, subprocess.SubprocessError):
        pytest.skip("the SDK could not be installed")


@pytest.mark.parametrize("language", ["python", "typescript"])
def test_an_official_sdk_finds_what_it_expects(language: str, tmp_path: Path, workspace: Path) -> None:
    folder = tmp_path / "sdk"
    folder.mkdir()
    gate = gates(tmp_path) / "first"
    os.mkfifo(gate)
    agent = program_command("acp", *configure_client(tmp_path))
    variables: dict[str, str | None] = {}
    if language == "python":
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1")
        install(folder, *pip, "--target", str(folder), "agent-client-protocol")
        client = [program_command()[0], str(CLIENTS / "python_sdk.py")]
        # Only the client may import the SDK and what it installs.
        agent, variables = ["env", f"PYTHONPATH={ROOT}", *agent], {"PYTHONPATH": str(folder)}
    else:
        (folder / "package.json").write_text('{"private": true}')
        npm = ("npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error")
        install(folder, *npm, "@agentclientprotocol/sdk")
        client = ["node", shutil.copy(CLIENTS / "typescript_sdk.mjs", folder / "client.mjs")]
    command = [*client, str(workspace), str(gate), *agent]
    editor = subprocess.run(command, env=make_environ(tmp_path, variables), capture_output=True, text=True, check=False)
    assert editor.returncode == 0, editor.stderr
    *_, received = editor.stdout.splitlines()
    assert json.loads(received) == EXPECTED
    assert (workspace / "new.txt").read_text() == "a\nb\n"
