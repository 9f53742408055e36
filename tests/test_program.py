"""The program without a terminal: mistakes, standard streams, exit codes, signals, and the installed wheel.

Most tests call ``main`` in this process. Those that start the program need pipes, closed streams or signals. Each test
has its own home, without an API key.
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
from support.headless_sessions import line_object
from support.journals import journals, records
from support.program import call_at_home as call
from support.program import make_environ, run_program, start_program
from support.project import ROOT
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

PROGRAM_WITH_TOOLS = """
import os, sys, time
import trio
from chain import ToolContext, tool
from cli.main import main

@tool(timeout_s=1000)
async def wait(ctx: ToolContext) -> str:
    "Wait in a thread, which cannot be cancelled if there is a file 'stubborn'."
    can_be_cancelled = not (ctx.workspace / "stubborn").exists()
    return await trio.to_thread.run_sync((ctx.workspace / "gate").read_text, abandon_on_cancel=can_be_cancelled)

@tool
async def block(ctx: ToolContext) -> str:
    "Block the whole program."
    os.write(1, b"blocked\\n")
    while True:
        time.sleep(60)

sys.exit(main(["--config", "config.yaml", *sys.argv[1:]], tools=[wait, block]))
"""
AS_JSON = ("--input-format", "stream-json", "--output-format", "stream-json")
OFFLINE = ("--model", "offline")
QUERY = ("-p", "hello")
CONFIGURED = ("--config", "config.yaml")
RUN = (*QUERY, *CONFIGURED)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The home, which is also the current folder, with the test's own configuration."""
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "rules.yaml").write_text(RULES % ("word " * 10_000).strip())
    return tmp_path


def run(home: Path, *argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    return run_program(argv, cwd=home, env=make_environ(home, variables), stdin=subprocess.DEVNULL, text=True)


def last_record(home: Path) -> dict[str, Any]:
    """Return the last record of the only session."""
    *_, last = records(home)
    return last


@contextmanager
def start(home: Path, *args: str, **more: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Start the program with the tools of ``PROGRAM_WITH_TOOLS``. Its standard error is the file ``stderr``."""
    (home / "driver.py").write_text(PROGRAM_WITH_TOOLS)
    os.mkfifo(home / "gate")
    streams: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "pipesize": PIPE_SIZE, **more}
    with (home / "stderr").open("wb") as stderr:
        command = [sys.executable, "driver.py", *args]
        process = start_program(command, cwd=home, env=make_environ(home, {}), stderr=stderr, **streams)
    with process:
        try:
            yield process
        finally:
            process.kill()


# Commands


@pytest.mark.parametrize("is_piped", [True, False], ids=["piped", "null device"])
def test_the_demonstration_plays_by_itself(home: Path, is_piped: bool) -> None:
    with open(os.devnull, "rb") as null_device:
        ran = call(home, "demo", stdin=b"todo: add x\n" if is_piped else null_device.fileno())
    assert (ran.returncode, ran.stderr) == (0, "")
    expected_order = [
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
    check_order(ran.stdout, expected_order)
    # The row of the queued line may come later, since it waits for the disk.
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
    first_row, *_, last_row = checked.stdout.splitlines()
    assert "config.yaml" in first_row
    assert last_row.startswith("All is well: ")
    ran = call(mine, *OFFLINE, stdin=b"Count the lines of every file in .\ntodo: add check the licence\n")
    assert ran.returncode == 0
    assert "notes.txt" in ran.stdout
    assert "[ ] 1. check the licence" in ran.stderr


def test_check_reports_a_problem_of_another_chain(home: Path) -> None:
    (home / "config.yaml").write_text(CONFIG + "  other: {system_prompt: gone.yaml}\n")
    checked = call(home, "check", *CONFIGURED)
    assert checked.returncode == 2
    *_, last_row = checked.stdout.splitlines()
    assert re.match(r"1 problem: .*config.yaml:7: chains.other.system_prompt: ", last_row)


@pytest.mark.parametrize(("option", "text"), [("--version", "chain "), ("--help", "--say")])
def test_the_version_and_the_help_are_written(home: Path, option: str, text: str) -> None:
    ran = call(home, option)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert text in ran.stdout


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
    help = run(home, *PROGRAM, "help", "lines", PYTHONPATH=site)
    assert help.stdout == (home / "site" / "cli" / "help" / "lines.md").read_text(encoding="utf-8")


# Mistakes


@dataclass(frozen=True)
class Mistake:
    """Arguments, files and variables with a mistake, and parts of the sentence that reports it."""

    args: tuple[str, ...]
    parts: tuple[str, ...]
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)


def in_config(text: str, *parts: str) -> Mistake:
    """Return a mistake in the configuration ``text``."""
    return Mistake(RUN, parts, {"config.yaml": text})


MISTAKES = {
    "no key": Mistake(QUERY, ("chain: no API key: set ANTHROPIC_API_KEY or use --model offline",)),
    "a workspace that is a file": Mistake((*RUN, "--workspace", "config.yaml"), ("config.yaml", "not a folder")),
    "an absent workspace": Mistake((*RUN, "--workspace", "gone"), ("gone", "not a folder")),
    "an unknown moment": Mistake((*RUN, "--say", "@iterations 2 x"), ("@iterations", "@iteration")),
    "an address without a text": Mistake((*RUN, "--say", "@to explore-1"), ("@to AGENT TEXT",)),
    "an unknown moment in a script": Mistake(
        (*RUN, "--script", "script.txt"),
        ("script.txt:3", "@don"),
        {"script.txt": "# one\nuse B\n@don x\n"},
    ),
    "an absent script": Mistake((*RUN, "--script", "gone.txt"), ("gone.txt",)),
    "a script that is not text": Mistake((*RUN, "--script", "s.txt"), ("s.txt", "UTF-8"), {"s.txt": b"\xff\n"}),
    "a blank query": Mistake(("  ", *CONFIGURED), ("query is empty",)),
    "no query": Mistake(("-p", "--no-stdin", *CONFIGURED), ("-p needs a query",)),
    "a query that is too long": Mistake(("-p", "x" * 100_001, *CONFIGURED), ("100,001", "100,000")),
    "stdin without a query": Mistake(("--stdin", *CONFIGURED), ("--stdin",)),
    "--stdin and --no-stdin": Mistake((*RUN, "--stdin", "--no-stdin"), ("--stdin", "--no-stdin")),
    "--stdin with JSON input": Mistake(
        (*RUN, "--stdin", "--input-format", "stream-json"), ("--stdin", "--input-format")
    ),
    "--no-stdin with JSON input": Mistake(
        (*RUN, "--no-stdin", "--input-format", "stream-json"), ("--no-stdin", "--input-format")
    ),
    "send --new without --state": Mistake(("send", "--new", "x"), ("--new needs --state",)),
    "watch --answers without --state": Mistake(("watch", "--answers"), ("--answers needs --state",)),
    "a worker without --state": Mistake(("worker",), ("needs the address of a Redis",)),
    "a worker whose state is a folder": Mistake(
        ("worker", "--state", "/tmp", *OFFLINE), ("is not the address of a Redis",)
    ),
    "a worker for no session": Mistake(
        ("worker", "--state", "redis://x/0", "-n", "0"), ("-n must be a number from 1",)
    ),
    "an age without a unit": Mistake(
        ("worker", "--state", "redis://x/0", "--keep", "soon"), ("--keep must be a number of days",)
    ),
    "an untrusted configuration": Mistake(
        QUERY,
        ("config.yaml", "base_url", "--config"),
        {"config.yaml": "chains: {}\nmodels: {definitions: {claude: {base_url: 'http://localhost:1'}}}\n"},
    ),
    "an unknown group of tools": in_config(
        CONFIG.replace("todo, files", "flies"), "config.yaml:6: ", "did you mean files?"
    ),
    "an unknown allowed tool": in_config(
        CONFIG + "tools:\n  allow:\n    - edit_fil\n", "config.yaml:9: ", "did you mean edit_file?"
    ),
    "an allowed path outside": in_config(
        CONFIG + "tools:\n  allow: ['edit_file(../x)']\n", "config.yaml:8: ", "relative to"
    ),
    "an unknown tool in --allow": Mistake(
        (*RUN, "--allow", "list_files,edit_fil"), ("flag --allow: ", "did you mean edit_file?")
    ),
    "an unknown tool in a variable": Mistake(
        RUN, ("CHAIN_ALLOW: ", "did you mean"), environ={"CHAIN_ALLOW": "edit_fil"}
    ),
    "a host with a scheme": in_config(
        CONFIG + "tools:\n  research: {hosts: ['https://x/']}\n", "config.yaml:8: ", "without https://"
    ),
    "an absent rule file": in_config(CONFIG.replace("rules.yaml", "gone.yaml"), "config.yaml:4: ", "gone.yaml cannot"),
    "an invalid pattern": Mistake(
        RUN,
        ("rules.yaml:2: ", "is not a regular"),
        {"rules.yaml": "rules:\n- {when: {user: (}, text: x}\n"},
    ),
    "an absent prompt": in_config(
        CONFIG.replace("{model", "{compaction_prompt: gone.yaml, model"), "config.yaml:6: ", "gone.yaml"
    ),
}


def check_report(ran: subprocess.CompletedProcess[str], mistake: Mistake, folder: Path) -> None:
    """Check that one sentence on standard error reports a mistake."""
    assert (ran.returncode, ran.stdout) == (2, ""), ran.stderr
    (sentence,) = ran.stderr.splitlines()
    assert sentence.startswith("chain: ")
    assert len(sentence.replace(str(folder), "")) < 500, "the sentence is short, whatever the length of the folder"
    for part in mistake.parts:
        assert part in sentence


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_gets_one_sentence(home: Path, name: str) -> None:
    mistake = MISTAKES[name]
    if "--config" not in mistake.args:
        (home / "config.yaml").unlink()
    for file, text in mistake.files.items():
        (home / file).write_bytes(text.encode() if isinstance(text, str) else text)
    check_report(call(home, *mistake.args, **mistake.environ), mistake, home)
    assert not journals(home), "no session was created"


@pytest.mark.parametrize("format", ["text", "stream-json"])
def test_without_input_no_session_is_left(home: Path, format: str) -> None:
    ran = call(home, *CONFIGURED, "--input-format", format)
    assert (ran.returncode, ran.stdout) == (2, "")
    *_, last_row = ran.stderr.splitlines()
    assert last_row.startswith("chain: there is no query")
    assert not journals(home)


def test_a_mistake_ends_the_process_with_2(home: Path) -> None:
    mistake = MISTAKES["a workspace that is a file"]
    check_report(run(home, *PROGRAM, *mistake.args), mistake, home)


def test_verbose_shows_the_traceback_without_escapes(home: Path) -> None:
    tool_with_escapes = r"\e]0;x\a\e[2J\x9b31mtodo"
    (home / "config.yaml").write_text(f'chains: {{default: {{model: offline, tools: ["{tool_with_escapes}"]}}}}\n')
    ran = call(home, *QUERY, "-v")
    assert ran.returncode == 2
    assert ran.stderr.startswith("Traceback (most recent call last):")
    *_, last_row = ran.stderr.splitlines()
    assert last_row.startswith("chain: ")
    control_characters = "[\x00-\x08\x0b-\x1f\x7f-\x9f]"
    assert not re.search(control_characters, ran.stderr + call(home, "check").stdout)


def test_an_ignored_configuration_is_a_notice(home: Path) -> None:
    (home / "config.yaml").write_text("models: {default: offline}\n")
    ran = call(home, *QUERY, *OFFLINE)
    assert ran.returncode == 0
    (notice,) = [row for row in ran.stderr.splitlines() if "config.yaml:1: is not used" in row]
    assert "no key chains" in notice
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
    names_files, names_fault = "Project instructions: AGENTS.md.", "is not UTF-8"
    ran = call(home, *RUN)
    assert (ran.returncode, ran.stdout) == (0, "I do.\n")
    assert names_files not in ran.stderr
    assert ran.stderr.count(names_fault) == 1
    ran = call(home, *RUN, "-v")
    assert ran.stderr.count(names_files) == ran.stderr.count(names_fault) == 1
    ran = call(home, *RUN, "--output-format", "stream-json")
    rows = [json.loads(row) for row in ran.stdout.splitlines()]
    files_notice, fault_notice, *_ = [row["message"] for row in rows if row["type"] == "notice"]
    assert files_notice == names_files
    assert names_fault in fault_notice


# Standard streams


def open_pipe(folder: Path, text: bytes) -> int:
    read_end, write_end = os.pipe()
    os.write(write_end, text)
    os.close(write_end)
    return read_end


def open_file(folder: Path, text: bytes) -> int:
    (folder / "notes.txt").write_bytes(text)
    return os.open(folder / "notes.txt", os.O_RDONLY)


def open_socket(folder: Path, text: bytes) -> int:
    ours, theirs = socket.socketpair()
    with ours:
        ours.sendall(text)
    return theirs.detach()


QUERY_AND_INPUT = "Done: hello\n\n<stdin>\nzwölf\n</stdin>\n"


@pytest.mark.parametrize(
    ("open_input", "args", "answer", "is_read"),
    [
        pytest.param(open_pipe, RUN, QUERY_AND_INPUT, True, id="a pipe"),
        pytest.param(open_pipe, (*RUN, "--stdin"), QUERY_AND_INPUT, True, id="a pipe with --stdin"),
        pytest.param(open_file, RUN, QUERY_AND_INPUT, True, id="a file"),
        pytest.param(open_socket, RUN, QUERY_AND_INPUT, True, id="a socket"),
        pytest.param(open_pipe, ("-p", *CONFIGURED), "Done: zwölf\n", True, id="without a query"),
        pytest.param(open_file, (*RUN, "--no-stdin"), "Done: hello\n", False, id="with --no-stdin"),
    ],
)
def test_standard_input_is_appended_to_the_query(
    home: Path, open_input: Callable[[Path, bytes], int], args: tuple[str, ...], answer: str, is_read: bool
) -> None:
    descriptor = open_input(home, "zwölf\n".encode())
    try:
        ran = call(home, *args, stdin=descriptor)
        assert (ran.returncode, ran.stdout) == (0, answer)
        unread = os.read(descriptor, 100)
        assert (unread == b"") == is_read
    finally:
        os.close(descriptor)


def test_a_script_sends_lines_at_their_moments(home: Path) -> None:
    (home / "script.txt").write_text("# a comment\r\n\r\nuse A\r\n@answer use B\n@done again\n@iteration 4 never\n")
    ran = call(home, *RUN, "--script", "script.txt", "--say", "use C")
    assert ran.returncode == 3
    assert ran.stdout == "Heard: use B\nDone: again\n"
    assert "↩ Never sent (its moment did not come): @iteration 4 never" in ran.stderr.splitlines()


@pytest.mark.slow
@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(
    ("args", "redirections"),
    [(("check",), ">&-"), (("hello",), "<&- >&- 2>&-"), (QUERY, "2>&-"), (QUERY, ">&-")],
    ids=["check without output", "no stream", "no standard error", "no standard output"],
)
def test_standard_streams_may_be_closed(home: Path, args: tuple[str, ...], redirections: str) -> None:
    has_output, has_session = redirections == "2>&-", args != ("check",)
    ran = run(home, "/bin/sh", "-c", f'exec "$@" {redirections}', "sh", *PROGRAM, *CONFIGURED, *args)
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr
    if has_output:
        assert ran.stdout.startswith("Done: hello")
    if has_session:
        assert last_record(home)["type"] == "result"


@pytest.mark.slow
def test_a_closed_pipe_is_no_error(home: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with start(home, "-p", "long", stdin=subprocess.DEVNULL, stdout=write_end) as process:
        os.close(write_end)
        assert process.wait() == 0
    assert not re.search("Traceback|Exception", (home / "stderr").read_text())


# Signals


def json_objects(process: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects that the process writes."""
    assert process.stdout is not None
    while row := process.stdout.readline():
        yield json.loads(row)


def send(process: subprocess.Popen[bytes], line: dict[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{json.dumps(line)}\n".encode())
    process.stdin.flush()


def test_a_signal_interrupts_a_tool(home: Path) -> None:
    with start(home, *AS_JSON) as process:
        output = json_objects(process)
        send(process, line_object("task", "query"))
        assert any(each["type"] == "tool_call" for each in output)
        send(process, line_object("use B", "later"))
        assert any(each["type"] == "line_queued" and each["id"] == "later" for each in output)
        process.send_signal(signal.SIGINT)
        *_, last = output
        assert process.wait() == 130
    assert (last["type"], last["status"], last["exit_code"]) == ("result", "interrupted", 130)
    states = {receipt["id"]: receipt["state"] for receipt in last["receipts"]}
    assert states == {"query": "delivered", "later": "returned"}
    assert (home / "stderr").read_text() == ""
    assert last_record(home)["type"] == "result"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "sign_of_tool", "pause_s"),
    [
        pytest.param("task", b'"tool_call"', 0.05, id="a tool that cannot be cancelled"),
        pytest.param("block", b"blocked", 0.5, id="a tool that blocks the program"),
    ],
)
def test_a_second_signal_ends_a_hanging_program(home: Path, query: str, sign_of_tool: bytes, pause_s: float) -> None:
    (home / "stubborn").touch()
    with start(home, "-p", query, "--output-format", "stream-json", stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert any(sign_of_tool in row for row in process.stdout)
        # Nothing shows that the first signal was received, so it is repeated.
        while process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(pause_s)
        # By the program's own exit, or by the signal's default action.
        assert process.returncode in (143, -signal.SIGTERM)


@pytest.mark.slow
def test_a_full_pipe_does_not_delay_the_end(home: Path) -> None:
    with start(home, "-p", "long", stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert os.read(process.stdout.fileno(), 1), "the answer comes when the run has ended"
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 143
    last = last_record(home)
    assert (last["type"], last["status"]) == ("result", "done")
