"""Clients of others with the real program: the official SDKs and acpx."""

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.clients import configure, install_node, install_python
from support.house import ROOT
from support.program import environ, gates, program

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CLIENTS = ROOT / "tests/acp/clients"

EXPECTED = {
    "initialize": [1, "chain", True],
    "new": True,
    "prompt": "end_turn",
    "updates": "Hello.",
    "permission": ["end_turn", "a\nb\n"],
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
    "delete": [],
}


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    pipe = gates(tmp_path) / "first"
    os.mkfifo(pipe)
    return pipe


def play(*command: str, home: Path, more: dict[str, str | None]) -> dict[str, Any]:
    done = subprocess.run(command, env=environ(home, more), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_python_sdk(tmp_path: Path, workspace: Path, gate: Path) -> None:
    folder = tmp_path / "sdk"
    folder.mkdir()
    install_python("agent-client-protocol", folder)
    client = [program()[0], str(CLIENTS / "python_sdk.py"), str(workspace), str(gate)]
    agent = ["env", f"PYTHONPATH={ROOT}", *program("acp", *configure(tmp_path))]
    assert play(*client, *agent, home=tmp_path, more={"PYTHONPATH": str(folder)}) == EXPECTED
    assert (workspace / "new.txt").read_text() == "a\nb\n"


def test_the_typescript_sdk(tmp_path: Path, workspace: Path, gate: Path) -> None:
    folder = tmp_path / "sdk"
    folder.mkdir()
    install_node("@agentclientprotocol/sdk", folder)
    script = folder / "client.mjs"
    script.write_text((CLIENTS / "typescript_sdk.mjs").read_text())
    client = ["node", str(script), str(workspace), str(gate)]
    agent = program("acp", *configure(tmp_path))
    assert play(*client, *agent, home=tmp_path, more={}) == EXPECTED


def test_acpx(tmp_path: Path, workspace: Path, gate: Path) -> None:
    """It queues a second prompt itself, does not steer, and loads the session for each prompt."""
    folder = tmp_path / "acpx"
    folder.mkdir()
    install_node("acpx", folder)
    agent = shlex.join(program("acp", *configure(tmp_path)))
    binary = str(folder / "node_modules/.bin/acpx")
    command = [binary, "--agent", agent, "--cwd", str(workspace), "--approve-all", "--ttl", "5"]
    env = environ(tmp_path, {"PATH": os.environ["PATH"]})

    def acpx(*words: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*command, *words], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def said(running: "subprocess.Popen[str]") -> str:
        text, _ = running.communicate()
        return text

    assert said(acpx("sessions", "new"))
    assert "Hello." in said(acpx("prompt", "hello"))
    assert "Written." in said(acpx("prompt", "write"))
    assert (workspace / "new.txt").read_text() == "a\nb\n"
    streaming = acpx("prompt", "stream")
    assert streaming.stdout is not None
    begun = ""
    while "w02" not in begun:
        begun += streaming.stdout.read(1)
    said(acpx("cancel"))
    rest = said(streaming)
    assert "cancelled" in rest
    assert "the end" not in rest
    held = acpx("prompt", "gate")
    writing = gate.open("w")  # waits until the tool reads
    second = said(acpx("prompt", "--no-wait", "hello"))
    writing.write("open")
    writing.close()
    assert "The gate said open." in said(held)
    assert second
    assert "Hello." in said(acpx("prompt", "hello"))  # behind the second one, which has ended by then
    setting = acpx("set", "model", "other")
    told = said(setting)
    assert setting.returncode == 0, told
    assert "nothing is running" in said(acpx("prompt", "/status"))
    said(acpx("sessions", "close"))
