"""The program without a terminal: mistakes, standard streams, exit codes, signals, and the installed wheel.

Most tests call ``main`` in this process. Those that start the program need pipes, closed streams or signals. All have a
home of their own and no API key.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.headless_sessions import line
from support.house import ROOT
from support.journals import journals, records
from support.program import call_at_home as call
from support.program import environ, run_program, start_program
from support.rows import check_order

PROGRAM = (sys.executable, "-m", "cli")
PIPE_SIZE = 4096
"""The size of a pipe in bytes: small, so that one that is not read is soon full."""

RULES = r"""
rules:
  - {when: {interruption: '.'}, text: "Heard: ${interruption}"}
  - {when: {user: ^task, step: 1}, text: Looking., tools: [{name: wait, input: {}}]}
  - {when: {user: ^block}, tools: [{name: block, input: {}}]}
  - {when: {user: ^long}, text: "%s", pace: {chunk: 100}}
  - {text: "Done: ${query}"}
"""

CONFIG = """\
models:
  default: test
  definitions:
    test: {provider: scripted, script: rules.yaml}
chains:
  default: {model: test, tools: [todo, files], max_iterations: 5}
"""

DRIVER = """
import os, sys, time
import trio
from chain import ToolContext, tool
from cli.main import main

@tool(timeout_s=1000)
async def wait(ctx: ToolContext) -> str:
    "Wait in a thread that cannot be cancelled if there is a file stubborn."
    can_be_left = not (ctx.workspace / "stubborn").exists()
    return await trio.to_thread.run_sync((ctx.workspace / "gate").read_text, abandon_on_cancel=can_be_left)

@tool
async def block(ctx: ToolContext) -> str:
    "Block the whole program."
    os.write(1, b"blocked\\n")
    while True:
        time.sleep(60)

sys.exit(main(["--config", "config.yaml", *sys.argv[1:]], tools=[wait, block]))
"""
JSON = ("--input-format", "stream-json", "--output-format", "stream-json")
OFFLINE = ("--model", "offline")
QUERY = ("-p", "hello")
CONFIGURED = ("--config", "config.yaml")
NAMED = (*QUERY, *CONFIGURED)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The home and the current folder, with a configuration of the test's own."""
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "rules.yaml").write_text(RULES % ("word " * 10_000).strip())
    return tmp_path


def run(home: Path, *argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    return run_program(argv, cwd=home, env=environ(home, variables), stdin=subprocess.DEVNULL, text=True)


@contextmanager
def start(home: Path, *args: str, **more: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Start the program with the tools of ``DRIVER``. Its standard error is the file ``stderr``."""
    (home / "driver.py").write_text(DRIVER)
    os.mkfifo(home / "gate")
    streams: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "pipesize": PIPE_SIZE, **more}
    with (home / "stderr").open("wb") as stderr:
        command = [sys.executable, "driver.py", *args]
        process = start_program(command, cwd=home, env=environ(home, {}), stderr=stderr, **streams)
    with process:
        try:
            yield process
        finally:
            process.kill()


# Commands


@pytest.mark.parametrize("is_piped", [True, False])
def test_the_demonstration_plays_by_itself(home: Path, is_piped: bool) -> None:
    with open(os.devnull, "rb") as nothing:
        ran = call(home, "demo", stdin=b"todo: add x\n" if is_piped else nothing.fileno())
    assert (ran.returncode, ran.stderr) == (0, "")
    order = [
        "plays by itself; run chain demo at a terminal",
        "▶ Analyze product data for SKU123",
        "[1/100]",
        "→ list_files",
        "✓ list_files",
        "→ read_file",
        "[ ] 1. verify SKU data",
        "[🔔 INTERRUPTION at iteration 3]",
        "✓ Message injected (after read_file",
        "Travel kettle",
        "✓ done",
    ]
    check_order(ran.stdout, order)
    # When the line is acknowledged depends on the disk.
    queued = "📤 Interrupting: todo: add verify SKU data ⏳ Will inject at next safe point\n"
    check_order(ran.stdout, ["✓ list_files", queued, "[🔔 INTERRUPTION"])
    assert ("standard input is not read" in ran.stdout) == is_piped
    assert "Resume this session" not in ran.stdout, "the session is not stored"


def test_init_check_and_a_run_work_together(home: Path) -> None:
    assert call(home, "init", "mine").returncode == 0
    mine = home / "mine"
    (mine / "notes.txt").write_text("one\ntwo\n")
    checked = call(mine, "check", *OFFLINE)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert "config.yaml" in checked.stdout.splitlines()[0]
    assert checked.stdout.splitlines()[-1].startswith("All is well: ")
    ran = call(mine, *OFFLINE, stdin=b"Count the lines of every file in .\ntodo: add check the licence\n")
    assert ran.returncode == 0
    assert "notes.txt" in ran.stdout
    assert "[ ] 1. check the licence" in ran.stderr
    (home / "config.yaml").write_text(CONFIG + "  other: {system_prompt: gone.yaml}\n")
    checked = call(home, "check", *CONFIGURED)
    assert checked.returncode == 2
    assert re.match(r"1 problem: .*config.yaml:7: chains.other.system_prompt: ", checked.stdout.splitlines()[-1])


def test_the_version_and_the_help_are_written(home: Path) -> None:
    assert call(home, "--version").stdout.startswith("chain ")
    ran = call(home, "--help")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "--say" in ran.stdout


@pytest.mark.slow
@pytest.mark.skipif(find_spec("hatchling") is None, reason="the build backend is not installed")
def test_an_installed_program_finds_its_defaults(home: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(home / "dist")]
    built = run_program(command, cwd=ROOT)
    assert built.returncode == 0, built.stderr.decode()
    (wheel,) = (home / "dist").glob("react_chain-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(home / "site")
        metadata = next(archive.read(n).decode() for n in names if n.endswith("entry_points.txt"))
    shipped = {"config.yaml", *(path.relative_to(ROOT).as_posix() for path in (ROOT / "prompts").rglob("*.yaml"))}
    assert {f"chain/defaults/{name}" for name in shipped} <= names
    assert {f"cli/help/{path.name}" for path in (ROOT / "cli" / "help").iterdir()} <= names
    assert "chain/py.typed" in names
    assert not [name for name in names if name.startswith(("tests", ".", "config", "prompts"))]
    assert "chain = cli:console" in metadata

    (home / "work").mkdir()
    (home / "work/notes.txt").write_text("one\ntwo\n")
    site = str(home / "site")
    ran = run(home, *PROGRAM, "-p", "List the files", *OFFLINE, "--workspace", "work", PYTHONPATH=site)
    assert ran.returncode == 0
    assert "notes.txt" in ran.stdout
    reference = run(home, *PROGRAM, "help", "lines", PYTHONPATH=site)
    assert reference.stdout == (home / "site" / "cli" / "help" / "lines.md").read_text(encoding="utf-8")


# Mistakes


@dataclass(frozen=True)
class Bad:
    """A mistake: arguments, parts of the one sentence, files that replace good ones, and variables."""

    args: tuple[str, ...]
    says: tuple[str, ...]
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)


def broken(text: str, *says: str) -> Bad:
    return Bad(NAMED, says, {"config.yaml": text})


BAD = {
    "no key": Bad(QUERY, ("chain: no API key: set ANTHROPIC_API_KEY or use --model offline",)),
    "a workspace that is a file": Bad((*NAMED, "--workspace", "config.yaml"), ("config.yaml", "not a folder")),
    "a workspace that is not there": Bad((*NAMED, "--workspace", "gone"), ("gone", "not a folder")),
    "an unknown moment": Bad((*NAMED, "--say", "@iterations 2 x"), ("@iterations", "@iteration")),
    "an address without a text": Bad((*NAMED, "--say", "@to explore-1"), ("@to AGENT TEXT",)),
    "an unknown moment in a script": Bad(
        (*NAMED, "--script", "script.txt"), ("script.txt:3", "@don"), {"script.txt": "# one\nuse B\n@don x\n"}
    ),
    "a script that is not there": Bad((*NAMED, "--script", "gone.txt"), ("gone.txt",)),
    "a script that is not text": Bad((*NAMED, "--script", "s.txt"), ("s.txt", "UTF-8"), {"s.txt": b"\xff\n"}),
    "a blank query": Bad(("  ", *CONFIGURED), ("query is empty",)),
    "no query": Bad(("-p", "--no-stdin", *CONFIGURED), ("-p needs a query",)),
    "a query that is too long": Bad(("-p", "x" * 100_001, *CONFIGURED), ("100,001", "100,000")),
    "stdin without a query": Bad(("--stdin", *CONFIGURED), ("--stdin",)),
    "stdin and not": Bad((*NAMED, "--stdin", "--no-stdin"), ("--stdin", "--no-stdin")),
    "stdin twice": Bad((*NAMED, "--stdin", "--input-format", "stream-json"), ("--stdin", "--input-format")),
    "no stdin twice": Bad((*NAMED, "--no-stdin", "--input-format", "stream-json"), ("--no-stdin", "--input-format")),
    "a new session without a state": Bad(("send", "--new", "x"), ("--new needs --state",)),
    "answers without a state": Bad(("watch", "--answers"), ("--answers needs --state",)),
    "a worker without a state": Bad(("worker",), ("needs the address of a Redis",)),
    "a state that is a folder": Bad(("worker", "--state", "/tmp", *OFFLINE), ("is not the address of a Redis",)),
    "a worker of no session": Bad(("worker", "--state", "redis://x/0", "-n", "0"), ("-n must be a number from 1",)),
    "a wrong age": Bad(("worker", "--state", "redis://x/0", "--keep", "soon"), ("--keep must be a number of days",)),
    "an untrusted configuration": Bad(
        QUERY,
        ("config.yaml", "base_url", "--config"),
        {"config.yaml": "chains: {}\nmodels: {definitions: {claude: {base_url: 'http://localhost:1'}}}\n"},
    ),
    "a tool": broken(CONFIG.replace("todo, files", "flies"), "config.yaml:6: ", "did you mean files?"),
    "an allowance": broken(CONFIG + "tools:\n  allow:\n    - edit_fil\n", "config.yaml:9: ", "did you mean edit_file?"),
    "an allowance outside": broken(CONFIG + "tools:\n  allow: ['edit_file(../x)']\n", "config.yaml:8: ", "relative to"),
    "an allowance in a flag": Bad(
        (*NAMED, "--allow", "list_files,edit_fil"), ("flag --allow: ", "did you mean edit_file?")
    ),
    "an allowance in a variable": Bad(NAMED, ("CHAIN_ALLOW: ", "did you mean"), environ={"CHAIN_ALLOW": "edit_fil"}),
    "a host": broken(CONFIG + "tools:\n  research: {hosts: ['https://x/']}\n", "config.yaml:8: ", "without https://"),
    "a script of rules": broken(CONFIG.replace("rules.yaml", "gone.yaml"), "config.yaml:4: ", "gone.yaml cannot"),
    "a rule": Bad(
        NAMED, ("rules.yaml:2: ", "is not a regular"), {"rules.yaml": "rules:\n- {when: {user: (}, text: x}\n"}
    ),
    "a prompt": broken(
        CONFIG.replace("{model", "{compaction_prompt: gone.yaml, model"), "config.yaml:6: ", "gone.yaml"
    ),
}


def check_sentence(bad: Bad, ran: subprocess.CompletedProcess[str], folder: Path) -> None:
    assert (ran.returncode, ran.stdout) == (2, ""), ran.stderr
    (sentence,) = ran.stderr.splitlines()
    assert sentence.startswith("chain: ")
    assert len(sentence.replace(str(folder), "")) < 500, "however long the name of the folder is"
    for part in bad.says:
        assert part in sentence


@pytest.mark.parametrize("name", BAD)
def test_a_mistake_gets_one_sentence(home: Path, name: str) -> None:
    bad = BAD[name]
    if "--config" not in bad.args:
        (home / "config.yaml").unlink()
    for file, text in bad.files.items():
        (home / file).write_bytes(text.encode() if isinstance(text, str) else text)
    check_sentence(bad, call(home, *bad.args, **bad.environ), home)
    assert not journals(home), "no session was created"


@pytest.mark.parametrize("format", ["text", "stream-json"])
def test_without_input_no_session_is_left(home: Path, format: str) -> None:
    ran = call(home, *CONFIGURED, "--input-format", format)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.splitlines()[-1].startswith("chain: there is no query")
    assert not journals(home)


def test_a_mistake_ends_the_process_with_2(home: Path) -> None:
    bad = BAD["a workspace that is a file"]
    check_sentence(bad, run(home, *PROGRAM, *bad.args), home)


def test_verbose_shows_the_traceback_without_escapes(home: Path) -> None:
    (home / "config.yaml").write_text('chains: {default: {model: offline, tools: ["\\e]0;x\\a\\e[2J\\x9b31mtodo"]}}\n')
    ran = call(home, *QUERY, "-v")
    assert ran.returncode == 2
    assert ran.stderr.startswith("Traceback (most recent call last):")
    assert ran.stderr.splitlines()[-1].startswith("chain: ")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", ran.stderr + call(home, "check").stdout)


def test_a_configuration_passed_over_is_a_notice(home: Path) -> None:
    (home / "config.yaml").write_text("models: {default: offline}\n")
    ran = call(home, *QUERY, *OFFLINE)
    assert ran.returncode == 0
    (row,) = [row for row in ran.stderr.splitlines() if "config.yaml:1: is not used" in row]
    assert "no key chains" in row
    assert "config.yaml:1: is not used" in call(home, "check", *OFFLINE).stdout


def test_check_notes_ignored_keys_of_commands(home: Path) -> None:
    folder = home / "config/chain/commands"
    folder.mkdir(parents=True)
    (folder / "fix.md").write_text("---\nallowed-tools: Read\n---\nFix it.")
    (folder / "empty.md").touch()
    ran = call(home, "check", *OFFLINE)
    assert ran.returncode == 0
    assert f"note: {folder}/empty.md: has no text" in ran.stdout
    assert f"note: {folder}/fix.md:2: unknown key allowed-tools is" in ran.stdout


def test_project_instructions_are_named_with_v(home: Path) -> None:
    (home / "AGENTS.md").write_text("Use make.")
    (home / "config/chain").mkdir(parents=True)
    (home / "config/chain/AGENTS.md").write_bytes(b"\xff")
    (home / "rules.yaml").write_text("rules: [{when: {system: 'Use make'}, text: I do.}, {text: I do not.}]")
    files, fault = "Project instructions: AGENTS.md.", "is not UTF-8"
    ran = call(home, *NAMED)
    assert (ran.returncode, ran.stdout) == (0, "I do.\n")
    assert (files in ran.stderr, ran.stderr.count(fault)) == (False, 1)
    ran = call(home, *NAMED, "-v")
    assert (ran.stderr.count(files), ran.stderr.count(fault)) == (1, 1)
    rows = [json.loads(row) for row in call(home, *NAMED, "--output-format", "stream-json").stdout.splitlines()]
    notices = [row["message"] for row in rows if row["type"] == "notice"]
    assert notices[0] == files
    assert fault in notices[1]


# Standard streams


def pipe(folder: Path, text: bytes) -> int:
    reading, writing = os.pipe()
    os.write(writing, text)
    os.close(writing)
    return reading


def file(folder: Path, text: bytes) -> int:
    (folder / "notes.txt").write_bytes(text)
    return os.open(folder / "notes.txt", os.O_RDONLY)


def connection(folder: Path, text: bytes) -> int:
    ours, theirs = socket.socketpair()
    with ours:
        ours.sendall(text)
    return theirs.detach()


BLOCK = "Done: hello\n\n<stdin>\nzwölf\n</stdin>\n"


@pytest.mark.parametrize(
    ("make", "args", "answer", "is_read"),
    [
        (pipe, NAMED, BLOCK, True),
        (pipe, (*NAMED, "--stdin"), BLOCK, True),
        (file, NAMED, BLOCK, True),
        (connection, NAMED, BLOCK, True),
        (pipe, ("-p", *CONFIGURED), "Done: zwölf\n", True),
        (file, (*NAMED, "--no-stdin"), "Done: hello\n", False),
    ],
)
def test_standard_input_is_appended_to_the_query(
    home: Path, make: Callable[[Path, bytes], int], args: tuple[str, ...], answer: str, is_read: bool
) -> None:
    descriptor = make(home, "zwölf\n".encode())
    try:
        ran = call(home, *args, stdin=descriptor)
        assert (ran.returncode, ran.stdout) == (0, answer)
        assert bool(os.read(descriptor, 100)) != is_read
    finally:
        os.close(descriptor)


def test_a_script_sends_lines_at_their_moments(home: Path) -> None:
    (home / "script.txt").write_text("# a comment\r\n\r\nuse A\r\n@answer use B\n@done again\n@iteration 4 never\n")
    ran = call(home, *NAMED, "--script", "script.txt", "--say", "use C")
    assert ran.returncode == 3
    assert ran.stdout == "Heard: use B\nDone: again\n"
    assert ran.stderr.splitlines()[-2] == "↩ Never sent (its moment did not come): @iteration 4 never"


@pytest.mark.slow
@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(
    ("args", "closed"), [(("check",), ">&-"), (("hello",), "<&- >&- 2>&-"), (QUERY, "2>&-"), (QUERY, ">&-")]
)
def test_standard_streams_may_be_closed(home: Path, args: tuple[str, ...], closed: str) -> None:
    ran = run(home, "/bin/sh", "-c", f'exec "$@" {closed}', "sh", *PROGRAM, *CONFIGURED, *args)
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr
    if ">&-" not in closed.split():
        assert ran.stdout.startswith("Done: hello")
    if args != ("check",):
        assert records(home)[-1]["type"] == "result"


@pytest.mark.slow
def test_a_closed_pipe_is_no_error(home: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with start(home, "-p", "long", stdin=subprocess.DEVNULL, stdout=writing) as process:
        os.close(writing)
        assert process.wait() == 0
    assert not re.search("Traceback|Exception", (home / "stderr").read_text())


# Signals


def objects(process: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the objects that the process writes."""
    assert process.stdout is not None
    while row := process.stdout.readline():
        yield json.loads(row)


def send(process: subprocess.Popen[bytes], *lines: dict[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(b"".join(f"{json.dumps(each)}\n".encode() for each in lines))
    process.stdin.flush()


def test_a_signal_interrupts_a_tool(home: Path) -> None:
    with start(home, *JSON) as process:
        seen = objects(process)
        send(process, line("task", "q"))
        assert any(each["type"] == "tool_call" for each in seen)
        send(process, line("use B", "b"))
        assert any(each["type"] == "line_queued" and each["id"] == "b" for each in seen)
        process.send_signal(signal.SIGINT)
        *_, last = seen
        assert process.wait() == 130
    assert (last["type"], last["status"], last["exit_code"]) == ("result", "interrupted", 130)
    assert {r["id"]: r["state"] for r in last["receipts"]} == {"q": "delivered", "b": "returned"}
    assert (home / "stderr").read_text() == ""
    assert records(home)[-1]["type"] == "result"


@pytest.mark.slow
@pytest.mark.parametrize(("query", "pause"), [("task", 0.05), ("block", 0.5)])
def test_a_second_signal_ends_a_hanging_program(home: Path, query: str, pause: float) -> None:
    (home / "stubborn").touch()
    with start(home, "-p", query, "--output-format", "stream-json", stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        for row in process.stdout:
            if (b"blocked" if query == "block" else b'"tool_call"') in row:
                break
        # Nothing shows that the first signal was received.
        while process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(pause)
        assert process.returncode in (143, -signal.SIGTERM)


@pytest.mark.slow
def test_a_full_pipe_does_not_delay_the_end(home: Path) -> None:
    with start(home, "-p", "long", stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert os.read(process.stdout.fileno(), 1), "the answer comes when the run has ended"
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 143
    last = records(home)[-1]
    assert (last["type"], last["status"]) == ("result", "done")
