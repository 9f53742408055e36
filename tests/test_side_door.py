"""The side door of the real program from other terminals: ``chain send``, ``chain watch``, and who is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.program import make_environ, start_program
from support.project import ROOT
from support.screen import Screen
from support.terminal import Start, journal, line_states, quit_program, send, start_tool, wait_idle

pytest_plugins = ["support.terminal"]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux identifies the process at the other end")


def start_command(home: Path, *words: str) -> subprocess.Popen[str]:
    """Start a command of chain outside the terminal that runs it."""
    return start_program(
        [sys.executable, "-m", "cli", *words],
        cwd=home / "work",
        env=make_environ(home, {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


def exit_code(home: Path, *words: str) -> int:
    """Run a command of chain to its end, and return its exit code."""
    with start_command(home, *words) as process:
        process.communicate()
    return process.returncode


def first_row(process: subprocess.Popen[str]) -> str:
    """Wait for the first row of output, and return it."""
    assert process.stdout is not None
    return next(process.stdout)


def test_a_line_from_another_terminal_is_delivered(screen: Screen) -> None:
    start_tool(wait_idle(screen), "gate a")
    line = "todo: add x"
    with start_command(screen.home, "watch") as watch, start_command(screen.home, "send", "--wait", line) as sender:
        assert first_row(watch).startswith(f"Watching {journal(screen).stem}")
        screen.until(line)
        assert sender.poll() is None
        screen.open_gate("a")
        out, err = sender.communicate()
        assert (sender.returncode, err) == (0, "")
        assert out.startswith("L2 was delivered: main, iteration 1")
        wait_idle(screen)
        assert line not in (screen.editor or ""), "the prompt gets back only its own lines"
        assert line_states(screen)[line] == "delivered"
        quit_program(screen)
        watched, _ = watch.communicate()
    assert watch.returncode == 0
    assert line in watched


@pytest.mark.slow
def test_a_killed_chain_ends_both_commands(start: Start, tmp_path: Path) -> None:
    screen = start_tool(wait_idle(start()), "gate a")
    with start_command(tmp_path, "watch") as watch, start_command(tmp_path, "send", "--wait", "use B") as sender:
        first_row(watch)
        screen.until("📤 Interrupting: use B")
        screen.send_signal(signal.SIGKILL)
        screen.wait()
        (_, watch_error), (_, send_error) = watch.communicate(), sender.communicate()
    assert watch.returncode == sender.returncode == 1
    assert "the chain was killed; resume its session with: chain -r " in watch_error
    assert "the chain ended before" in send_error
    resumed = wait_idle(start("-c"))
    assert exit_code(tmp_path, "send", "todo: add x") == 0
    send(resumed, "/quit")
    assert resumed.wait() == 0


@pytest.mark.slow
def test_a_new_session_has_its_own_door(screen: Screen) -> None:
    wait_idle(screen)
    closed_session = journal(screen).stem
    send(screen, "/new")
    screen.until("New conversation")  # once the old session is closed
    wait_idle(screen)
    assert exit_code(screen.home, "send", "--session", closed_session, "todo: add x") == 2
    assert exit_code(screen.home, "send", "todo: add x") == 0
    screen.until("✓ Done: todo: add x")
    quit_program(screen)


@pytest.mark.slow
def test_a_run_survives_watchers_that_leave(screen: Screen) -> None:
    wait_idle(screen)
    with start_command(screen.home, "watch") as unread, start_command(screen.home, "watch") as interrupted:
        for watcher in (unread, interrupted):
            first_row(watcher)
        interrupted.send_signal(signal.SIGINT)
        assert interrupted.wait() == 130
        assert unread.stdout is not None
        unread.stdout.close()
        send(screen, "hello")
        wait_idle(screen.until("✓ done"))
        assert unread.wait() == 0
    quit_program(screen)


CLIENT = """\
import json, os, socket, sys
folder = sys.argv[1]
os.chdir(folder)
[name] = os.listdir(".")
s = socket.socket(socket.AF_UNIX)
s.connect(name)
f = s.makefile("rw")
for row in ({"type": "hello", "answers": True}, {"type": "watch"}, {"type": "line", "text": "I am the user"}):
    f.write(json.dumps(row) + "\\n")
f.flush()
sys.exit("received: " + f.read())
"""

SEND = "{python} -m cli send 'I am the user'"
CONNECT = "(setsid {python} client.py {doors} > out 2>&1 &) ; while ! grep -q . out; do :; done; cat out"
"""Commands of the model. The second leaves a process behind, as in ``door/test_peers.py``, and waits for its output."""

REFUSED = "processes that the chain started cannot use its side door"


@pytest.mark.slow
@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("template", "sandbox", "reaches_door"),
    [(CONNECT, "off", True), (CONNECT, "auto", False), (SEND, "off", True)],
    ids=["own client", "own client in the sandbox", "chain send"],
)
def test_a_command_of_the_model_is_refused(
    template: str, sandbox: str, reaches_door: bool, start: Start, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "client.py").write_text(CLIENT)
    (work / "out").write_text("")
    command = template.format(python=sys.executable, doors=tmp_path / "state/chain/doors")
    command = f"export PYTHONPATH={os.environ.get('PYTHONPATH', ROOT)}; {command}"
    (tmp_path / "test.yaml").write_text(
        "models: {default: test, definitions: {test: {provider: scripted, script: rules.yaml}}}\n"
        "chains: {default: {model: test, tools: [shell]}}\n"
        f"tools: {{allow: [shell], shell: {{sandbox: '{sandbox}'}}}}\n"
    )
    escaped_command = command.replace("$", "$$")  # in a rule, one $ starts a placeholder
    shell = {"name": "shell", "input": {"command": escaped_command}}
    rules = [{"when": {"user": "^run", "step": 1}, "tools": [shell]}, {"text": "Result: ${result}"}]
    (tmp_path / "rules.yaml").write_text(json.dumps({"rules": rules}))
    screen = wait_idle(start())
    send(screen, "run it")
    wait_idle(screen.until("Result: "))
    records = [json.loads(row) for row in journal(screen).read_text().splitlines()]
    [line] = [record["text"] for record in records if record["type"] == "line"]
    assert line == "run it"
    blocks = [block for record in records if record["type"] == "message" for block in record["message"]["content"]]
    [result] = [block["content"] for block in blocks if block["type"] == "tool_result"]
    assert '"init"' not in result
    assert (REFUSED in result) == reaches_door, "a command in a sandbox sees no socket"
    quit_program(screen)
