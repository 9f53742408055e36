"""The side door of the real program from other terminals: ``chain send``, ``chain watch``, and who is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.program import environ, start_program
from support.screen import Screen
from support.terminal import Start, journal, line_states, quit, send, start_tool, wait_idle

pytest_plugins = ["support.terminal"]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who is at the other end")


def command(home: Path, *words: str) -> subprocess.Popen[str]:
    """Start a command in another terminal of the same user."""
    return start_program(
        [sys.executable, "-m", "cli", *words],
        cwd=home / "work",
        env=environ(home, {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


def code_of(home: Path, *words: str) -> int:
    """Run a command to its end, and return its exit code."""
    with command(home, *words) as process:
        process.communicate()
    return process.returncode


def first_row(watching: subprocess.Popen[str]) -> str:
    assert watching.stdout is not None
    return next(watching.stdout)


def test_a_line_from_another_terminal_is_delivered(screen: Screen) -> None:
    start_tool(wait_idle(screen), "gate a")
    with command(screen.home, "watch") as watching, command(screen.home, "send", "--wait", "todo: add x") as sending:
        assert first_row(watching).startswith(f"Watching {journal(screen).stem}")
        screen.until("todo: add x")
        assert sending.poll() is None
        screen.open_gate("a")
        out, err = sending.communicate()
        assert (sending.returncode, err) == (0, "")
        assert out.startswith("L2 was delivered: main, iteration 1")
        wait_idle(screen)
        assert "todo: add x" not in (screen.editor or ""), "it is not the prompt's own"
        assert line_states(screen)["todo: add x"] == "delivered"
        quit(screen)
        shown, _ = watching.communicate()
    assert watching.returncode == 0
    assert "todo: add x" in shown


@pytest.mark.slow
def test_a_killed_chain_ends_both_commands(start: Start, tmp_path: Path) -> None:
    screen = start_tool(wait_idle(start()), "gate a")
    with command(tmp_path, "watch") as watching, command(tmp_path, "send", "--wait", "use B") as sending:
        first_row(watching)
        screen.until("📤 Interrupting: use B")
        screen.kill(signal.SIGKILL)
        screen.wait()
        (_, watched), (_, sent) = watching.communicate(), sending.communicate()
    assert (watching.returncode, "the chain was killed; resume its session with: chain -r " in watched) == (1, True)
    assert (sending.returncode, "the chain ended before" in sent) == (1, True)
    again = wait_idle(start("-c"))
    assert code_of(tmp_path, "send", "todo: add x") == 0
    send(again, "/quit")
    assert again.wait() == 0


@pytest.mark.slow
def test_a_new_session_has_its_own_door(screen: Screen) -> None:
    wait_idle(screen)
    first = journal(screen).stem
    send(screen, "/new")
    screen.until("New conversation")  # once the old session is closed
    wait_idle(screen)
    assert code_of(screen.home, "send", "--session", first, "todo: add x") == 2
    assert code_of(screen.home, "send", "todo: add x") == 0
    screen.until("✓ Done: todo: add x")
    quit(screen)


@pytest.mark.slow
def test_an_interrupted_watcher_disturbs_nobody(screen: Screen) -> None:
    wait_idle(screen)
    with command(screen.home, "watch") as left, command(screen.home, "watch") as interrupted:
        for each in (left, interrupted):
            first_row(each)
        interrupted.send_signal(signal.SIGINT)
        assert interrupted.wait() == 130
        assert left.stdout is not None
        left.stdout.close()
        send(screen, "hello")
        wait_idle(screen.until("✓ done"))
        assert left.wait() == 0
    quit(screen)


# ---------------------------------------------------------------------------------------------- commands of the model

DOOR = """\
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
ORPHAN = "(setsid {python} door.py {doors} > out 2>&1 &) ; while ! grep -q . out; do :; done; cat out"
"""Other ways to start a process are in ``tests/door/test_peers.py``."""

REFUSED = "processes that the chain started cannot use its side door"


@pytest.mark.slow
@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(("way", "sandbox"), [(ORPHAN, "off"), (ORPHAN, "auto"), (SEND, "off")])
def test_a_command_of_the_model_is_refused(way: str, sandbox: str, start: Start, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "door.py").write_text(DOOR)
    (work / "out").write_text("")
    runs = way.format(python=sys.executable, doors=tmp_path / "state/chain/doors")
    runs = f"export PYTHONPATH={os.environ.get('PYTHONPATH', Path(__file__).parents[1])}; {runs}"
    (tmp_path / "test.yaml").write_text(
        "models: {default: test, definitions: {test: {provider: scripted, script: rules.yaml}}}\n"
        "chains: {default: {model: test, tools: [shell]}}\n"
        f"tools: {{allow: [shell], shell: {{sandbox: '{sandbox}'}}}}\n"
    )
    shell = {"name": "shell", "input": {"command": runs.replace("$", "$$")}}
    rules = [{"when": {"user": "^run", "step": 1}, "tools": [shell]}, {"text": "Result: ${result}"}]
    (tmp_path / "rules.yaml").write_text(json.dumps({"rules": rules}))
    screen = wait_idle(start())
    send(screen, "run it")
    wait_idle(screen.until("Result: "))
    records = [json.loads(row) for row in journal(screen).read_text().splitlines()]
    assert [record["text"] for record in records if record["type"] == "line"] == ["run it"]
    blocks = [block for record in records if record["type"] == "message" for block in record["message"]["content"]]
    [result] = [block["content"] for block in blocks if block["type"] == "tool_result"]
    assert '"init"' not in result
    assert (REFUSED in result) == (sandbox == "off"), "in a sandbox there is no socket at all"
    quit(screen)
