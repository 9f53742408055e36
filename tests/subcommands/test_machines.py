"""``chain worker``, ``send`` and ``watch`` as processes that share a session in a Redis."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import redis
from support.program import call_program, make_environ, start_program

pytestmark = [pytest.mark.slow, pytest.mark.skipif(redis.PROGRAM is None, reason=redis.WHY_NOT)]

CONFIG = """
models: {default: test, definitions: {test: {provider: scripted, script: rules.yaml}}}
chains: {default: {model: test, system_prompt: null, tools: [files, shell]}}
tools: {allow: [shell]}
instructions: []
"""
RULES = """
name: test
rules:
  - {when: {user: 'work', step: 1}, tools: [{name: shell, input: {command: "echo >begun; sleep 1000"}}]}
  - {when: {user: 'Go on'}, text: "Gone on, and done."}
  - {text: "Done: ${query}"}
"""


class Commands:
    """The commands of a folder whose sessions are in a Redis."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder = folder / "work"
        self.folder.mkdir()
        (folder / "config.yaml").write_text(CONFIG)
        (folder / "rules.yaml").write_text(RULES)
        self.environ = make_environ(folder, {"CHAIN_STATE": address, "CHAIN_CONFIG": str(folder / "config.yaml")})
        self.processes: list[subprocess.Popen[bytes]] = []

    def run(self, *words: str) -> str:
        done = self.call(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        return call_program(*words, cwd=self.folder, environ=self.environ)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        process = start_program(
            [sys.executable, "-m", "cli", *words],
            cwd=self.folder,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.processes.append(process)
        return process


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    with redis.own_redis(tmp_path / "redis") as server:
        commands = Commands(tmp_path, server.address)
        try:
            yield commands
        finally:
            for process in commands.processes:
                process.kill()
                process.communicate()


def test_another_worker_finishes_a_killed_ones_run(commands: Commands) -> None:
    os.mkfifo(commands.folder / "begun")
    first_worker = commands.start("worker")
    _, session, *_ = commands.run("send", "--new", "work on it").replace(".", " ").split()  # "Session ID."
    (commands.folder / "begun").read_bytes()  # waits until the command writes to the pipe
    watcher = commands.start("watch", "--output-format", "stream-json", "--session", session)
    assert watcher.stdout is not None
    first_worker.kill()
    second_worker = commands.start("worker", "-n", "2", "-v")
    types = []
    for event in map(json.loads, watcher.stdout):
        types.append(event["type"])
        if event["type"] == "result" and event["status"] == "done":
            break
    assert event["result"] == "Gone on, and done."
    assert types.count("init") == 2, "one for each worker"
    assert "has started a run" in commands.run("send", "--wait", "hello")
    interrupted = "[Interrupted: stopped while running, it may have had effects]"
    assert interrupted in commands.run("sessions", "show", session)
    assert commands.call("-r", session, "-p", "and more").returncode == 0
    assert session in commands.run("sessions")
    assert "no session of" in commands.call("send", "--workspace", str(commands.folder.parent), "hello").stderr
    second_worker.terminate()
    _, log = second_worker.communicate()
    assert second_worker.returncode == 0
    assert f"resumes the session {session}, in {commands.folder}" in log.decode()
    assert f"releases the session {session}" in log.decode()
