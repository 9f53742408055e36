"""The demonstration at a prompt, as a person sees it who tries what it suggests."""

import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.keys import CTRL_D, ESC
from support.program import make_environ
from support.project import ROOT
from support.screen import Screen
from support.terminal import send, wait_idle

from chain.errors import UserError
from cli.show.renderer import Renderer
from cli.subcommands.demo import play

StartDemo = Callable[..., Screen]

LAST_COMMENT = "/quit ends."


@pytest.fixture
def start_demo(tmp_path: Path) -> Iterator[StartDemo]:
    """Start the demonstration without the model's pauses. Its temporary files are in the folder ``tmp``.

    Its n-th tool waits at the gate ``tool-n``, unless ``--no-gates`` is given.
    """
    for name in ("home", "tmp", "work"):
        (tmp_path / name).mkdir()
    rules = tmp_path / "rules.yaml"
    shipped = (ROOT / "prompts/offline_model.yaml").read_text(encoding="utf-8")
    rules.write_text(re.sub(r"^(pace|terminal_pace): .*\n", "", shipped, flags=re.M), encoding="utf-8")
    with ExitStack() as stack:

        def start(*args: str) -> Screen:
            argv = [sys.executable, str(ROOT / "tests/support/demo_program.py"), str(rules), *args]
            home, env = tmp_path / "home", {"TMPDIR": str(tmp_path / "tmp")}
            screen = Screen(argv, home=home, cwd=tmp_path / "work", rows=60, columns=200, env=env)
            return stack.enter_context(screen)

        yield start


def demo_folders(screen: Screen) -> list[Path]:
    return list((screen.home.parent / "tmp").iterdir())


def check_removed(screen: Screen) -> None:
    """Check that no files of the demonstration remain, and the terminal is as before."""
    assert demo_folders(screen) == []
    assert [path.name for path in screen.home.rglob("*") if path.is_file()] == []
    assert not (screen.home / "state").exists()
    assert screen.left_behind == []


def wait_for_tool(screen: Screen, name: str) -> Screen:
    return screen.until(lambda s: f"→ {name}" in s.everything and name in s.toolbar)


@pytest.mark.slow
def test_the_suggested_lines_work(start_demo: StartDemo) -> None:
    screen = start_demo()
    wait_for_tool(screen, "list_files").until("todo: add verify the SKU data  ")
    assert len(demo_folders(screen)) == 1

    send(screen, "todo: add verify the SKU data").until("📤 Interrupting: todo: add verify")
    screen.open_gate("tool-1")
    screen.until("🔔 INTERRUPTION at iteration 1: ").until("[ ] 1. verify the SKU data")
    screen.until("│ The task was put on the plan")

    wait_for_tool(screen, "search_files")
    send(screen, "how far are you?").until("📤 Interrupting: how far are you?")
    screen.open_gate("tool-2")
    screen.until("🔔 INTERRUPTION at iteration 2: ").until("│ Your question waited").until("I work on")

    wait_for_tool(screen, "read_file").until("A good moment for: !use the notes first")
    send(screen, "!use the notes first").until("📤 Interrupting: !use the notes first")
    screen.open_gate("tool-3")
    screen.until("⏭ skipped: 3 × read_file").until("│ The running tool has finished")
    screen.until("I read the notes")
    screen.open_gate("tool-4")
    screen.open_gate("tool-5")
    screen.until("[✓] 1. verify the SKU data").until("Travel kettle").until("✓ done")
    screen.until(LAST_COMMENT).until("│ Not tried yet: stop")
    wait_idle(screen)

    send(screen, "analyze SKU122")
    wait_for_tool(screen, "list_files")
    send(screen, "stop").until("⏹ Stopping")
    screen.open_gate("tool-6")
    screen.until("[1 done, ").until("⏹ cancelled").until("│ Stopped.")
    assert screen.everything.count(LAST_COMMENT) == 1
    send(wait_idle(screen), "/quit")
    assert screen.wait() == 0
    check_removed(screen)


@pytest.mark.slow
def test_the_files_can_be_asked_about_afterwards(start_demo: StartDemo) -> None:
    screen = start_demo("--no-gates")
    screen.until("Travel kettle").until("✓ done").until(LAST_COMMENT).until("Not tried yet: todo: add verify")
    for line, answer in {
        "list the files": "notes/SKU123.md",
        "search SKU124": "products.csv:5: SKU124,Camp stove",
        "which file is the largest?": "products.csv: 5 lines, 9 words, 157 bytes.",
        "analyze SKU122": "Steel bottle",
    }.items():
        send(wait_idle(screen), line).until(answer)
    wait_idle(screen)
    assert screen.everything.count(LAST_COMMENT) == 1
    screen.type(CTRL_D)
    assert screen.wait() == 0
    check_removed(screen)


def demo_in_its_second_run(start_demo: StartDemo) -> Screen:
    screen = wait_for_tool(start_demo(), "list_files")
    screen.type(ESC)
    screen.until("│ The current step was cancelled.")
    send(wait_idle(screen), "analyze SKU122").until("▶ analyze SKU122")
    return wait_for_tool(screen, "list_files")


@pytest.mark.slow
def test_a_signal_removes_the_folder(start_demo: StartDemo) -> None:
    screen = demo_in_its_second_run(start_demo)
    screen.send_signal(signal.SIGTERM)
    assert screen.wait() == 143
    check_removed(screen)


@pytest.mark.slow
def test_a_closed_terminal_removes_the_folder(start_demo: StartDemo) -> None:
    screen = demo_in_its_second_run(start_demo)
    screen.hang_up()
    assert screen.wait(reads=False) == 143
    assert demo_folders(screen) == []


@pytest.mark.slow
def test_a_signal_removes_the_folder_without_a_terminal(tmp_path: Path) -> None:
    env, argv = make_environ(tmp_path, {"TMPDIR": str(tmp_path)}), [sys.executable, "-m", "cli", "demo"]
    with subprocess.Popen(
        argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as demo:
        assert demo.stdout is not None
        while demo.stdout.readline().strip() != b"[1/100]":
            assert list(tmp_path.glob("chain-demo-*"))
        demo.send_signal(signal.SIGINT)
        demo.stdout.read()
        assert demo.wait() in (0, 130, 143)  # its run may end before the signal
    assert not list(tmp_path.glob("chain-demo-*"))


def test_a_missing_temporary_folder_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(UserError, match="set TMPDIR"):
        play(Renderer(color=False, ascii=True))


@pytest.mark.slow
def test_the_command_opens_a_prompt(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    with Screen([sys.executable, "-m", "cli", "demo"], home=tmp_path, env={"TMPDIR": str(tmp_path / "tmp")}) as screen:
        screen.until("A demonstration").until("todo: add verify the SKU data  ").until("→ list_files")
        send(screen, "/quit")
        assert screen.wait() == 0
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not (tmp_path / "state").exists()
