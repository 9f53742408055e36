"""The commands, as processes of their own: a worker that is killed in the middle of a run, and one that goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import redis
from support.program import call_program, environ

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
    def __init__(self, folder: Path, server: redis.OwnRedis) -> None:
        self.folder = folder / "work"
        self.folder.mkdir()
        (folder / "config.yaml").write_text(CONFIG)
        (folder / "rules.yaml").write_text(RULES)
        own = {"CHAIN_STATE": server.address, "CHAIN_CONFIG": str(folder / "config.yaml")}
        self.environ = environ(folder, own)
        self.workers: list[subprocess.Popen[bytes]] = []

    def run(self, *words: str) -> str:
        done = self.call(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        return call_program(*words, cwd=self.folder, environ=self.environ)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "cli", *words]
        worker = subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.workers.append(worker)
        return worker


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    with redis.own_redis(tmp_path / "redis") as server:
        found = Commands(tmp_path, server)
        try:
            yield found
        finally:
            for worker in found.workers:
                worker.kill()
                worker.communicate()


@pytest.mark.slow
def test_a_worker_is_killed_in_the_middle_of_a_run_and_another_one_finishes_it(commands: Commands) -> None:
    os.mkfifo(commands.folder / "begun")
    first = commands.start("worker")
    said = commands.run("send", "--new", "work on it")
    session = said.split()[1].rstrip(".")
    (commands.folder / "begun").read_bytes()  # waits for the command
    watching = commands.start("watch", "--output-format", "stream-json", "--session", session)
    assert watching.stdout is not None
    first.kill()
    second = commands.start("worker", "-n", "2", "-v")
    texts = []
    for row in watching.stdout:
        event = json.loads(row)
        texts.append((event["type"], event.get("result")))
        if event["type"] == "result" and event["status"] == "done":
            break
    assert texts[-1] == ("result", "Gone on, and done.")
    assert [kind for kind, _ in texts].count("init") == 2, "both workers are seen"
    assert "has started a run" in commands.run("send", "--wait", "hello")
    shown = commands.run("sessions", "show", session)
    assert "[Interrupted: stopped while running, it may have had effects]" in shown
    assert commands.call("-r", session, "-p", "and more").returncode == 0
    assert session in commands.run("sessions")
    second.terminate()
    _, told = second.communicate()
    assert second.returncode == 0
    assert f"resumes the session {session}, in {commands.folder}" in told.decode()
    assert f"releases the session {session}" in told.decode()


def test_what_is_meant_for_shared_sessions_says_so_elsewhere(commands: Commands) -> None:
    assert "no session of" in commands.call("send", "hello").stderr
    del commands.environ["CHAIN_STATE"]
    for words, why in (
        (("send", "--new", "x"), "--new needs --state"),
        (("watch", "--answers"), "--answers needs --state"),
        (("worker",), "needs the address of a Redis"),
        (("worker", "--state", "/tmp"), "is not the address of a Redis"),
        (("worker", "--state", "redis://x/0", "-n", "0"), "-n must be a number from 1"),
        (("worker", "--state", "redis://x/0", "--keep", "soon"), "--keep must be a number of days"),
        (("-p", "x", "--keep", "1d"), "--keep is for chain worker"),
    ):
        done = commands.call(*words)
        assert done.returncode in (1, 2)
        assert why in done.stderr, (words, done.stderr)
        assert len(done.stderr.splitlines()) == 1
