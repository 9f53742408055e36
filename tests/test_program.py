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
from support.house import ROOT
from support.program import call_program, run_program, start_program
from support.rows import check_order
from support.stages import line

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


@dataclass(frozen=True)
class Place:
    """A folder to start the program in."""

    folder: Path

    @property
    def environ(self) -> dict[str, str]:
        home = self.folder / "home"
        own = {"HOME": str(home), "XDG_STATE_HOME": str(home / "state"), "LANG": "C.UTF-8", "PYTHONPATH": str(ROOT)}
        return {"PATH": os.environ["PATH"], **own}

    def write(self, name: str, text: str | bytes) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    def call(
        self, *args: str, stdin: bytes | int = b"", environ: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Call the program in this process. ``stdin`` is what it reads, or a descriptor."""
        return call_program(*args, cwd=self.folder, environ={**self.environ, **(environ or {})}, stdin=stdin)

    def run(self, *argv: str, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run a program to its end."""
        own = {**self.environ, **(environ or {})}
        return run_program(argv, cwd=self.folder, env=own, stdin=subprocess.DEVNULL, text=True)

    @contextmanager
    def started(self, *args: str, **more: Any) -> Iterator[subprocess.Popen[bytes]]:
        """Start the program with the tools of ``DRIVER``. Its standard error is the file ``stderr``."""
        driver = self.write("driver.py", DRIVER)
        os.mkfifo(self.folder / "gate")
        with (self.folder / "stderr").open("wb") as stderr:
            process = start_program(
                [sys.executable, str(driver), *args],
                cwd=self.folder,
                env=self.environ,
                **{
                    "stdin": subprocess.PIPE,
                    "stdout": subprocess.PIPE,
                    "stderr": stderr,
                    "pipesize": PIPE_SIZE,
                    **more,
                },
            )
        with process:
            try:
                yield process
            finally:
                process.kill()

    @property
    def stderr(self) -> str:
        return (self.folder / "stderr").read_text()

    @property
    def journals(self) -> list[list[dict[str, Any]]]:
        """The records of the sessions, without a last one that is incomplete."""
        paths = sorted((self.folder / "home/state/chain/sessions").glob("*.jsonl"))
        return [[json.loads(row) for row in path.read_bytes().split(b"\n")[:-1]] for path in paths]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "home").mkdir()
    return Place(tmp_path)


@pytest.fixture
def configured(place: Place) -> Place:
    """A folder with a configuration of the test's own."""
    place.write("config.yaml", CONFIG)
    place.write("rules.yaml", RULES % ("word " * 10_000).strip())
    return place


# Commands


@pytest.mark.parametrize("is_piped", [True, False])
def test_the_demonstration_plays_by_itself(place: Place, is_piped: bool) -> None:
    with open(os.devnull, "rb") as nothing:
        ran = place.call("demo", stdin=b"todo: add x\n" if is_piped else nothing.fileno())
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


def test_init_check_and_a_run_work_together(place: Place) -> None:
    assert place.call("init", "mine").returncode == 0
    mine = Place(place.folder / "mine")
    mine.write("notes.txt", "one\ntwo\n")
    checked = mine.call("check", *OFFLINE)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert "config.yaml" in checked.stdout.splitlines()[0]
    assert checked.stdout.splitlines()[-1].startswith("All is well: ")
    ran = mine.call(*OFFLINE, stdin=b"Count the lines of every file in .\ntodo: add check the licence\n")
    assert ran.returncode == 0
    assert "notes.txt" in ran.stdout
    assert "[ ] 1. check the licence" in ran.stderr
    mine.write("config.yaml", CONFIG + "  other: {system_prompt: gone.yaml}\n")
    mine.write("rules.yaml", "rules: []")
    checked = mine.call("check", *CONFIGURED)
    assert checked.returncode == 2
    assert re.match(r"1 problem: .*config.yaml:7: chains.other.system_prompt: ", checked.stdout.splitlines()[-1])


def test_the_version_and_the_help_are_written(place: Place) -> None:
    assert place.call("--version").stdout.startswith("chain ")
    ran = place.call("--help")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "--say" in ran.stdout


@pytest.mark.slow
@pytest.mark.skipif(find_spec("hatchling") is None, reason="the build backend is not installed")
def test_an_installed_program_finds_its_defaults(place: Place) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place.folder / "dist")]
    built = run_program(command, cwd=ROOT)
    assert built.returncode == 0, built.stderr.decode()
    (wheel,) = (place.folder / "dist").glob("react_chain-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(place.folder / "site")
        metadata = next(archive.read(n).decode() for n in names if n.endswith("entry_points.txt"))
    shipped = {"config.yaml", *(path.relative_to(ROOT).as_posix() for path in (ROOT / "prompts").rglob("*.yaml"))}
    assert {f"chain/defaults/{name}" for name in shipped} <= names
    assert {f"cli/help/{path.name}" for path in (ROOT / "cli" / "help").iterdir()} <= names
    assert "chain/py.typed" in names
    assert not [name for name in names if name.startswith(("tests", ".", "config", "prompts"))]
    assert "chain = cli:console" in metadata

    place.write("work/notes.txt", "one\ntwo\n")
    site = {"PYTHONPATH": str(place.folder / "site")}
    ran = place.run(*PROGRAM, "-p", "List the files", *OFFLINE, "--workspace", "work", environ=site)
    assert ran.returncode == 0
    assert "notes.txt" in ran.stdout
    reference = place.run(*PROGRAM, "help", "lines", environ=site)
    assert reference.stdout == (place.folder / "site" / "cli" / "help" / "lines.md").read_text(encoding="utf-8")


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
    "a config that was merely found": Bad(
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
def test_a_mistake_gets_one_sentence(configured: Place, name: str) -> None:
    bad = BAD[name]
    if "--config" not in bad.args:
        (configured.folder / "config.yaml").unlink()
    for file, text in bad.files.items():
        configured.write(file, text)
    check_sentence(bad, configured.call(*bad.args, environ=bad.environ), configured.folder)
    assert not configured.journals, "no session was created"


@pytest.mark.parametrize("format", ["text", "stream-json"])
def test_without_input_no_session_is_left(configured: Place, format: str) -> None:
    ran = configured.call(*CONFIGURED, "--input-format", format)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.splitlines()[-1].startswith("chain: there is no query")
    assert configured.journals == []


def test_a_mistake_ends_the_process_with_2(configured: Place) -> None:
    bad = BAD["a workspace that is a file"]
    check_sentence(bad, configured.run(*PROGRAM, *bad.args), configured.folder)


def test_verbose_shows_the_traceback_without_escapes(place: Place) -> None:
    place.write("config.yaml", 'chains: {default: {model: offline, tools: ["\\e]0;x\\a\\e[2J\\x9b31mtodo"]}}\n')
    ran = place.call(*QUERY, "-v")
    assert ran.returncode == 2
    assert ran.stderr.startswith("Traceback (most recent call last):")
    assert ran.stderr.splitlines()[-1].startswith("chain: ")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", ran.stderr + place.call("check").stdout)


def test_a_configuration_passed_over_is_a_notice(place: Place) -> None:
    place.write("config.yaml", "models: {default: offline}\n")
    ran = place.call(*QUERY, *OFFLINE)
    assert ran.returncode == 0
    (row,) = [row for row in ran.stderr.splitlines() if "config.yaml:1: is not used" in row]
    assert "no key chains" in row
    assert "config.yaml:1: is not used" in place.call("check", *OFFLINE).stdout


def test_check_notes_ignored_keys_of_commands(place: Place) -> None:
    place.write("home/.config/chain/commands/fix.md", "---\nallowed-tools: Read\n---\nFix it.")
    place.write("home/.config/chain/commands/empty.md", "")
    ran = place.call("check", *OFFLINE)
    assert ran.returncode == 0
    assert f"note: {place.folder}/home/.config/chain/commands/empty.md: has no text" in ran.stdout
    assert f"note: {place.folder}/home/.config/chain/commands/fix.md:2: unknown key allowed-tools is" in ran.stdout


def test_project_instructions_are_named_with_v(configured: Place) -> None:
    configured.write("AGENTS.md", "Use make.")
    configured.write("home/.config/chain/AGENTS.md", b"\xff")
    configured.write("rules.yaml", "rules: [{when: {system: 'Use make'}, text: I do.}, {text: I do not.}]")
    files, fault = "Project instructions: AGENTS.md.", "is not UTF-8"
    ran = configured.call(*NAMED)
    assert (ran.returncode, ran.stdout) == (0, "I do.\n")
    assert (files in ran.stderr, ran.stderr.count(fault)) == (False, 1)
    ran = configured.call(*NAMED, "-v")
    assert (ran.stderr.count(files), ran.stderr.count(fault)) == (1, 1)
    rows = [json.loads(row) for row in configured.call(*NAMED, "--output-format", "stream-json").stdout.splitlines()]
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
    configured: Place, make: Callable[[Path, bytes], int], args: tuple[str, ...], answer: str, is_read: bool
) -> None:
    descriptor = make(configured.folder, "zwölf\n".encode())
    try:
        ran = configured.call(*args, stdin=descriptor)
        assert (ran.returncode, ran.stdout) == (0, answer)
        assert bool(os.read(descriptor, 100)) != is_read
    finally:
        os.close(descriptor)


def test_a_script_sends_lines_at_their_moments(configured: Place) -> None:
    configured.write("script.txt", "# a comment\r\n\r\nuse A\r\n@answer use B\n@done hello again\n@iteration 4 never\n")
    ran = configured.call(*NAMED, "--script", "script.txt", "--say", "use C")
    assert ran.returncode == 3
    assert ran.stdout == "Heard: use B\nDone: hello again\n"
    assert ran.stderr.splitlines()[-2] == "↩ Never sent (its moment did not come): @iteration 4 never"


@pytest.mark.slow
@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(
    ("args", "closed"), [(("check",), ">&-"), (("hello",), "<&- >&- 2>&-"), (QUERY, "2>&-"), (QUERY, ">&-")]
)
def test_standard_streams_may_be_closed(configured: Place, args: tuple[str, ...], closed: str) -> None:
    ran = configured.run("/bin/sh", "-c", f'exec "$@" {closed}', "sh", *PROGRAM, *CONFIGURED, *args)
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr
    if ">&-" not in closed.split():
        assert ran.stdout.startswith("Done: hello")
    if args != ("check",):
        (records,) = configured.journals
        assert records[-1]["type"] == "result"


@pytest.mark.slow
def test_a_closed_pipe_is_no_error(configured: Place) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with configured.started("-p", "long", stdin=subprocess.DEVNULL, stdout=writing) as process:
        os.close(writing)
        assert process.wait() == 0
    assert "Traceback" not in configured.stderr
    assert "Exception" not in configured.stderr


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


def test_a_signal_interrupts_a_tool(configured: Place) -> None:
    with configured.started(*JSON) as process:
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
    assert configured.stderr == ""
    (records,) = configured.journals
    assert records[-1]["type"] == "result"


@pytest.mark.slow
@pytest.mark.parametrize(("query", "pause"), [("task", 0.05), ("block", 0.5)])
def test_a_second_signal_ends_a_hanging_program(configured: Place, query: str, pause: float) -> None:
    configured.write("stubborn", "")
    with configured.started("-p", query, "--output-format", "stream-json", stdin=subprocess.DEVNULL) as process:
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
def test_a_full_pipe_does_not_delay_the_end(configured: Place) -> None:
    with configured.started("-p", "long", stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert os.read(process.stdout.fileno(), 1), "the answer comes when the run has ended"
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 143
    (records,) = configured.journals
    assert (records[-1]["type"], records[-1]["status"]) == ("result", "done")
