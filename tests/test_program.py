"""The program without a terminal: its arguments, its standard streams, its exit codes, and what only a process shows.

Most tests call ``main`` in this process. Those that start the program say what needs a process: pipes, streams that are
closed, signals. All have a home of their own and no API key. They wait for what the program writes, never for time.
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
from collections.abc import Iterator, Mapping
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
"""Of the pipes of a process: one that nobody reads is soon full."""

NO_KEY = "chain: no API key: set ANTHROPIC_API_KEY or use --model offline\n"

RULES = r"""
rules:
  - {when: {interruption: '\(Done'}, text: Noted.}
  - {when: {interruption: '.'}, text: "Heard: ${interruption}"}
  - {when: {user: ^task, step: 1}, text: Looking., tools: [{name: wait, input: {}}]}
  - {when: {user: ^task}, text: The answer.}
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

DELEGATING = """
rules:
  - {when: {interruption: '.'}, text: Heard., and: continue}
  - {when: {user: '^look', step: 1}, tools: [{name: explore, input: {task: find the notes}}]}
  - {when: {user: '^find', step: 1}, tools: [{name: list_files, input: {path: .}}]}
  - {text: Done.}
"""

DRIVER = """
import os, sys
import trio
from chain import ToolContext, tool
from cli.main import main

@tool(timeout_s=1000)
async def wait(ctx: ToolContext) -> str:
    "Wait until somebody writes into the pipe."
    path = ctx.workspace / "gate"
    can_be_left = not (ctx.workspace / "stubborn").exists()
    return await trio.to_thread.run_sync(path.read_text, abandon_on_cancel=can_be_left)

sys.exit(main(sys.argv[1:], tools=[wait]))
"""


@dataclass(frozen=True)
class Ran:
    """A process that has ended."""

    code: int
    out: str
    err: str

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(row) for row in self.out.splitlines()]


@dataclass
class Live:
    """A process whose standard output is read as it comes."""

    process: subprocess.Popen[bytes]
    err: Path
    seen: list[dict[str, Any]] = field(default_factory=list)

    def send(self, *lines: str | dict[str, Any]) -> None:
        assert self.process.stdin is not None
        for each in lines:
            text = each if isinstance(each, str) else json.dumps(each)
            self.process.stdin.write(f"{text}\n".encode())
        self.process.stdin.flush()

    def until(self, type: str, **values: object) -> dict[str, Any]:
        """Read up to an object of this type with these values."""
        wanted = {"type": type, **values}
        for found in self._objects():
            if all(found.get(name) == value for name, value in wanted.items()):
                return found
        raise AssertionError(f"{wanted} did not come; {self.err.read_text()}")

    def ended(self) -> int:
        """Read the rest and wait for the exit code."""
        assert all(self._objects())
        return self.process.wait()

    def _objects(self) -> Iterator[dict[str, Any]]:
        assert self.process.stdout is not None
        while row := self.process.stdout.readline():
            self.seen.append(json.loads(row))
            yield self.seen[-1]


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

    def call(self, *args: str, stdin: bytes | int = b"", environ: Mapping[str, str] | None = None) -> Ran:
        """Call the program in this process. ``stdin``: what it reads, or a descriptor."""
        done = call_program(*args, cwd=self.folder, environ={**self.environ, **(environ or {})}, stdin=stdin)
        return Ran(done.returncode, done.stdout, done.stderr)

    def run(self, *argv: str, stdin: bytes = b"", environ: Mapping[str, str] | None = None) -> Ran:
        """Run a program to its end."""
        done = run_program(argv, cwd=self.folder, env={**self.environ, **(environ or {})}, input=stdin)
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())

    @contextmanager
    def live(self, *args: str) -> Iterator[Live]:
        """Start the program with a tool that waits until somebody writes into the pipe ``gate``."""
        driver = self.write("driver.py", DRIVER)
        os.mkfifo(self.folder / "gate")
        err = self.folder / "stderr"
        with err.open("wb") as stderr:
            process = start_program(
                [sys.executable, str(driver), "--config", "config.yaml", *args],
                cwd=self.folder,
                env=self.environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                pipesize=PIPE_SIZE,
            )
        with process:
            try:
                yield Live(process, err)
            finally:
                process.kill()

    def open_gate(self) -> None:
        """Let the waiting tool go on."""
        (self.folder / "gate").write_text("let go")

    @property
    def journals(self) -> list[list[dict[str, Any]]]:
        """The sessions' records, without a last one that is torn."""
        found = []
        for path in sorted((self.folder / "home/state/chain/sessions").glob("*.jsonl")):
            rows = path.read_bytes().split(b"\n")
            found.append([json.loads(row) for row in rows[:-1]])
        return found


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


BLOCKED = """
import os, sys, time
from chain import ToolContext, tool
from cli.main import main

@tool
async def block(ctx: ToolContext) -> str:
    "Hold everything up."
    os.write(1, b"blocked\\n")
    while True:
        time.sleep(60)

sys.exit(main(sys.argv[1:], tools=[block]))
"""


def receipts(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The receipts of all results, each of which has those since the one before."""
    return [receipt for o in objects if o["type"] == "result" for receipt in o["receipts"]]


JSON = ("--input-format", "stream-json", "--output-format", "stream-json")
OFFLINE = ("--model", "offline")


# ------------------------------------------------------------------------------------------------------ as promised


def test_lines_from_a_pipe_are_a_query_and_what_interrupts_it(place: Place) -> None:
    place.write("prompts/one.txt", "a\nb\nc\n")
    place.write("prompts/two.txt", "d\n" * 17)

    ran = place.run(
        *PROGRAM, *OFFLINE, stdin=b"Count the lines of every file in prompts\ntodo: add check the licence\n"
    )

    assert ran.code == 0
    assert "prompts/one.txt" in ran.out
    assert "17" in ran.out
    assert "[ ] 1. check the licence" in ran.err
    (plan,) = [r for r in place.journals[0] if r["type"] == "plan"]
    assert (plan["change"], plan["text"], plan["by"]) == ("added", "check the licence", "user")


@pytest.mark.parametrize("format", ["text", "json", "stream-json"])
def test_without_a_key_it_says_what_to_do(place: Place, format: str) -> None:
    ran = place.call("-p", "hello", "--say", "@iteration 2 todo: add x", "--output-format", format)

    assert (ran.code, ran.out, ran.err) == (2, "", NO_KEY)


@pytest.mark.parametrize("is_piped", [True, False])
def test_the_demonstration_shows_an_interruption_from_end_to_end(place: Place, is_piped: bool) -> None:
    with open(os.devnull, "rb") as nothing:
        ran = place.call("demo", stdin=b"todo: add x\n" if is_piped else nothing.fileno())

    assert (ran.code, ran.err) == (0, "")
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
    check_order(ran.out, order)
    # When it is told depends on the disk.
    queued = "📤 Interrupting: todo: add verify SKU data ⏳ Will inject at next safe point\n"
    check_order(ran.out, ["✓ list_files", queued, "[🔔 INTERRUPTION"])
    check_order(ran.out, ["[1/100]", "number of a product", "→ list_files"])
    assert ("standard input is not read" in ran.out) == is_piped
    assert "Resume this session" not in ran.out, "nothing of it is kept"


def test_init_writes_a_configuration_that_runs(place: Place) -> None:
    assert place.call("init", "mine").code == 0
    mine = Place(place.folder / "mine")
    mine.write("notes.txt", "one\ntwo\n")

    checked = mine.call("check", *OFFLINE)
    ran = mine.call("-p", "Count the lines of every file in .", *OFFLINE)

    assert (checked.code, checked.err) == (0, "")
    assert "config.yaml" in checked.out.splitlines()[0]
    assert ran.code == 0
    assert "notes.txt" in ran.out


def test_check_ends_with_whether_all_is_well(configured: Place) -> None:
    good = configured.call("check", "--config", "config.yaml")
    configured.write("config.yaml", CONFIG + "  other: {system_prompt: gone.yaml}\n")
    bad = configured.call("check", "--config", "config.yaml")

    assert good.code == 0
    assert good.out.splitlines()[-1].startswith("All is well: ")
    assert re.match(r"1 problem: .*config.yaml:7: chains.other.system_prompt: ", bad.out.splitlines()[-1])
    assert bad.code == 2


WILD = "\\e]0;pwned\\a\\e[2J\\x9b31m"
OFFLINE_CHAIN = "chains: {default: {model: offline}}\n"
WILD_FILES = {
    "a model's name": ('models: {definitions: {evil: {provider: anthropic, model: "xWILD"}}}\n' + OFFLINE_CHAIN, ""),
    "a path": ('chains: {default: {model: offline, system_prompt: "noWILD.yaml"}}\n', ""),
    "a tool": ('chains: {default: {model: offline, tools: ["WILDtodo"]}}\n', ""),
    "a header": (
        'models: {definitions: {x: {provider: anthropic, model: y, extra_headers: {"WILD": 5}}}}\n' + OFFLINE_CHAIN,
        "",
    ),
    "a rule": (
        "models: {definitions: {offline: {provider: scripted, script: r.yaml}}}\n" + OFFLINE_CHAIN,
        'rules:\n- text: a\n  when: {user: "(WILD"}\n',
    ),
}


@pytest.mark.parametrize("args", [("check",), ("-p", "x"), ("-p", "x", "-v")])
@pytest.mark.parametrize("name", WILD_FILES)
def test_no_escape_of_a_found_configuration_reaches_the_terminal(
    place: Place, name: str, args: tuple[str, ...]
) -> None:
    config, rules = WILD_FILES[name]
    place.write("config.yaml", config)
    place.write("r.yaml", rules)

    ran = place.call(*args)

    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", ran.out + ran.err)


@pytest.mark.slow  # it waits for half a second
def test_a_second_signal_ends_a_program_that_something_holds_up(place: Place) -> None:
    place.write("driver.py", BLOCKED)
    place.write(
        "config.yaml", "chains: {default: {model: m}}\nmodels: {definitions: {m: {provider: scripted, script: r.yaml}}}"
    )
    place.write("r.yaml", "rules: [{tools: [{name: block, input: {}}]}]")
    command = [sys.executable, "driver.py", "-p", "hello", "--config", "config.yaml"]
    process = subprocess.Popen(command, cwd=place.folder, env=place.environ, stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"blocked\n"
        while process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.5)
    assert process.returncode == 143


def test_the_version_and_the_help(place: Place) -> None:
    assert place.call("--version").out.startswith("chain ")
    ran = place.call("--help")
    assert (ran.code, ran.err) == (0, "")
    assert "--say" in ran.out


@pytest.mark.slow
@pytest.mark.skipif(find_spec("hatchling") is None, reason="the build backend is not installed")
def test_an_installed_program_finds_its_defaults(place: Place) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place.folder / "dist")],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
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
    assert ran.code == 0
    assert "notes.txt" in ran.out
    reference = place.run(*PROGRAM, "help", "lines", environ=site)
    assert reference.out == (place.folder / "site" / "cli" / "help" / "lines.md").read_text(encoding="utf-8")


# ---------------------------------------------------------------------------------------------------------- bad input

QUERY = ("-p", "hello")
NAMED = (*QUERY, "--config", "config.yaml")


@dataclass(frozen=True)
class Bad:
    """A mistake: files written over good ones, arguments, and what the one sentence must name."""

    args: tuple[str, ...]
    says: tuple[str, ...]
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)


BAD = {
    "a workspace that is a file": Bad((*NAMED, "--workspace", "config.yaml"), ("config.yaml", "not a folder")),
    "a workspace that is not there": Bad((*NAMED, "--workspace", "gone"), ("gone", "not a folder")),
    "unknown moment": Bad((*NAMED, "--say", "@iterations 2 x"), ("@iterations", "@iteration")),
    "a mistake in an address": Bad((*NAMED, "--say", "@to explore-1"), ("@to AGENT TEXT",)),
    "unknown moment in a script": Bad(
        (*NAMED, "--script", "script.txt"), ("script.txt:3", "@don"), {"script.txt": "# one\nuse B\n@don x\n"}
    ),
    "a script that is not there": Bad((*NAMED, "--script", "gone.txt"), ("gone.txt",)),
    "a script that is not text": Bad((*NAMED, "--script", "s.txt"), ("s.txt", "UTF-8"), {"s.txt": b"\xff\n"}),
    "a blank query": Bad(("  ", "--config", "config.yaml"), ("query is empty",)),
    "no query": Bad(("-p", "--no-stdin", "--config", "config.yaml"), ("-p needs a query",)),
    "a query that is too long": Bad(("-p", "x" * 100_001, "--config", "config.yaml"), ("100,001", "100,000")),
    "stdin without a query": Bad(("--stdin", "--config", "config.yaml"), ("--stdin",)),
    "stdin and not": Bad((*NAMED, "--stdin", "--no-stdin"), ("--stdin", "--no-stdin")),
    "stdin twice": Bad((*NAMED, "--stdin", "--input-format", "stream-json"), ("--stdin", "--input-format")),
    "no stdin twice": Bad((*NAMED, "--no-stdin", "--input-format", "stream-json"), ("--no-stdin", "--input-format")),
    "a config that was merely found": Bad(
        QUERY,
        ("config.yaml", "base_url", "--config"),
        {"config.yaml": "chains: {}\nmodels: {definitions: {claude: {base_url: 'http://localhost:1'}}}\n"},
    ),
}  # fmt: skip


def arrange(place: Place, bad: Bad) -> dict[str, str]:
    """Write the files of a mistake; returns its environment."""
    if "--config" not in bad.args:
        (place.folder / "config.yaml").unlink()
    for file, text in bad.files.items():
        place.write(file, text)
    return {k: str(place.folder / v) if k.startswith("XDG") else v for k, v in bad.environ.items()}


def check_sentence(bad: Bad, ran: Ran, folder: Path) -> None:
    assert (ran.code, ran.out) == (2, ""), ran.err
    (sentence,) = ran.err.splitlines()
    assert sentence.startswith("chain: ")
    assert len(sentence.replace(str(folder), "")) < 500, "however long the name of the folder is"
    for part in bad.says:
        assert part in sentence


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gets_one_sentence(configured: Place, name: str) -> None:
    environ = arrange(configured, BAD[name])

    check_sentence(BAD[name], configured.call(*BAD[name].args, environ=environ), configured.folder)
    assert not configured.journals, "nothing was begun"


def test_bad_input_ends_the_process_with_one_sentence(configured: Place) -> None:
    bad = BAD["a workspace that is a file"]

    check_sentence(bad, configured.run(*PROGRAM, *bad.args), configured.folder)


def test_nothing_on_standard_input_is_wrong_usage(configured: Place) -> None:
    ran = configured.call("--config", "config.yaml")

    assert (ran.code, ran.out) == (2, "")
    assert ran.err.splitlines()[-1].startswith("chain: there is no query")
    assert configured.journals == []


def test_verbose_shows_the_traceback_above_the_sentence(configured: Place) -> None:
    ran = configured.call(*NAMED, "--model", "tets", "-v")

    assert ran.code == 2
    assert ran.err.startswith("Traceback (most recent call last):")
    assert ran.err.splitlines()[-1].startswith("chain: ")


def test_a_configuration_that_is_passed_over_is_a_notice(place: Place) -> None:
    place.write("config.yaml", "models: {default: offline}\n")

    ran = place.call("-p", "hello", *OFFLINE)
    assert ran.code == 0
    (row,) = [row for row in ran.err.splitlines() if "config.yaml:1: is not used" in row]
    assert "no key chains" in row
    checked = place.call("check", *OFFLINE)
    assert [row for row in checked.out.splitlines() if "config.yaml:1: is not used" in row]


def test_instructions_of_the_project_are_told_with_v_and_in_json_and_what_is_wrong_always(configured: Place) -> None:
    configured.write("AGENTS.md", "Use make.")
    configured.write("home/.config/chain/AGENTS.md", b"\xff")
    configured.write("rules.yaml", "rules: [{when: {system: 'Use make'}, text: I do.}, {text: I do not.}]")
    files, fault = "Project instructions: AGENTS.md.", "is not UTF-8"

    ran = configured.call(*NAMED)
    assert (ran.code, ran.out) == (0, "I do.\n")
    assert (files in ran.err, ran.err.count(fault)) == (False, 1)

    ran = configured.call(*NAMED, "-v")
    assert (ran.err.count(files), ran.err.count(fault)) == (1, 1)

    rows = [json.loads(row) for row in configured.call(*NAMED, "--output-format", "stream-json").out.splitlines()]
    told = [row["message"] for row in rows if row["type"] == "notice"]
    assert told[0] == files
    assert fault in told[1]


# -------------------------------------------------------------------------------------------------- standard streams


@pytest.mark.parametrize("args", [(), ("--stdin",)])
def test_stdin_goes_with_the_query_as_a_block(configured: Place, args: tuple[str, ...]) -> None:
    ran = configured.call(*NAMED, *args, stdin="one\nzwölf\n".encode())

    assert (ran.code, ran.out) == (0, "Done: hello\n\n<stdin>\none\nzwölf\n</stdin>\n")


def test_a_file_or_a_socket_on_standard_input_goes_with_the_query_too(configured: Place) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, configured.write("notes.txt", "a note").open("rb") as file:
        ours.sendall(b"a note")
        ours.shutdown(socket.SHUT_WR)
        for descriptor in (file.fileno(), theirs.fileno()):
            ran = configured.call(*NAMED, stdin=descriptor)

            assert (ran.code, ran.out) == (0, "Done: hello\n\n<stdin>\na note\n</stdin>\n")


def test_stdin_alone_is_the_query(configured: Place) -> None:
    ran = configured.call("-p", "--config", "config.yaml", stdin=b"hello\n")

    assert (ran.code, ran.out) == (0, "Done: hello\n")


def test_stdin_can_be_left_to_others(configured: Place) -> None:
    with configured.write("list", "one\n").open("rb", buffering=0) as file:
        ran = configured.call(*NAMED, "--no-stdin", stdin=file.fileno())

        assert (ran.code, ran.out) == (0, "Done: hello\n")
        assert file.read() == b"one\n"


def test_a_script_is_lines_at_their_moments(configured: Place) -> None:
    configured.write("script.txt", "# a comment\r\n\r\nuse A\r\n@answer use B\n@done hello again\n@iteration 4 never\n")

    ran = configured.call(*NAMED, "--script", "script.txt", "--say", "use C")

    assert ran.code == 3
    assert ran.out == "Heard: use B\nDone: hello again\n"
    assert ran.err.splitlines()[-2] == "↩ Never sent (its moment did not come): @iteration 4 never"


def test_json_names_the_agent_beside_the_text(configured: Place) -> None:
    configured.write("config.yaml", CONFIG.replace("[todo, files]", "[todo, files, agents]"))
    configured.write("rules.yaml", DELEGATING)
    lines = [
        line("@iteration 1 look closer", "a", to="explore-1"),
        line("@tool list_files for the first", "b", to="main", urgent=True),
        line("@tool list_files @to explore-1 the text decides", "c", to="main"),
        line("@tool list_files nobody", "d", to="explore-7"),
        line("wrong", "e", to=["main"]),
        line("@iteration 1 never", "f", to="plan-1"),
        line("look around"),
    ]

    stdin = "".join(f"{json.dumps(row)}\n" for row in lines).encode()
    ran = configured.call("--config", "config.yaml", *JSON, stdin=stdin)

    assert ran.code == 3
    found = {r["id"]: (r["state"], r["agent"]) for r in receipts(ran.objects)}
    assert {id: found[id] for id in "abc"} == {
        "a": ("delivered", "explore-1"),
        "b": ("delivered", "main"),
        "c": ("delivered", "explore-1"),
    }
    reasons = {o["id"]: o["reason"] for o in ran.objects if o["type"] == "line_refused"}
    assert sorted(reasons) == ["d", "e"]
    assert "main, explore-1" in reasons["d"]
    assert [text for o in ran.objects if o["type"] == "result" for text in o["unsent"]] == ["@iteration 1 never"]


@pytest.mark.slow
@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(
    ("args", "closed"),
    [(("check",), ">&-"), (("hello",), "<&- >&- 2>&-"), (("-p", "hello"), "2>&-"), (("-p", "hello"), ">&-")],
)
def test_standard_streams_may_be_closed(configured: Place, args: tuple[str, ...], closed: str) -> None:
    command = (*PROGRAM, "--config", "config.yaml", *args)

    ran = configured.run("/bin/sh", "-c", f'exec "$@" {closed}', "sh", *command)

    assert ran.code == 0, ran.err
    assert "Traceback" not in ran.err
    if ">&-" not in closed.split():
        assert ran.out.startswith("Done: hello")
    if args != ("check",):
        (records,) = configured.journals
        assert records[-1]["type"] == "result"


@pytest.mark.slow
def test_a_reader_who_is_gone_breaks_nothing(configured: Place) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*PROGRAM, "--config", "config.yaml", "-p", "long"],
        cwd=configured.folder,
        env=configured.environ,
        stdin=subprocess.DEVNULL,
        stdout=writing,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writing)

    assert done.returncode == 0
    assert b"Traceback" not in done.stderr
    assert b"Exception" not in done.stderr


# ------------------------------------------------------------------------------------------------------------ signals


def test_a_signal_during_a_tool(configured: Place) -> None:
    with configured.live(*JSON) as live:
        live.send(line("task", "q"))
        live.until("tool_call")
        live.send(line("use B", "b"))
        live.until("line_queued", id="b")
        live.process.send_signal(signal.SIGINT)

        assert live.ended() == 130

    last = live.seen[-1]
    assert (last["type"], last["status"], last["exit_code"]) == ("result", "interrupted", 130)
    assert {r["id"]: r["state"] for r in receipts(live.seen)} == {"q": "delivered", "b": "returned"}
    assert live.err.read_text() == ""
    (records,) = configured.journals
    assert records[-1]["type"] == "result"


@pytest.mark.slow
def test_a_signal_while_it_waits_for_lines(configured: Place) -> None:
    with configured.live(*JSON) as live:
        live.send(line("hello"))
        live.until("result")
        live.process.send_signal(signal.SIGTERM)

        assert live.ended() == 143

    assert live.err.read_text() == ""
    assert live.seen[-1]["exit_code"] == 143


@pytest.mark.slow
def test_a_second_signal_ends_what_does_not_let_go(configured: Place) -> None:
    configured.write("stubborn", "")
    with configured.live(*JSON) as live:
        live.send(line("task"))
        live.until("tool_call")
        live.process.send_signal(signal.SIGINT)
        # The first one was heard when the second finds another action; until then there is nothing to wait for.
        while live.process.poll() is None:
            live.process.send_signal(signal.SIGTERM)
            try:
                live.process.wait(0.05)
            except subprocess.TimeoutExpired:
                continue

        assert live.process.returncode in (130, 143, -signal.SIGTERM)


@pytest.mark.slow
def test_a_reader_who_never_reads_does_not_keep_it_from_ending(configured: Place) -> None:
    with (configured.folder / "stderr").open("wb") as stderr:
        process = subprocess.Popen(
            [*PROGRAM, "--config", "config.yaml", "-p", "long"],
            cwd=configured.folder,
            env=configured.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            pipesize=PIPE_SIZE,
        )
    with process:
        assert process.stdout is not None
        assert os.read(process.stdout.fileno(), 1), "the answer comes when the run has ended"
        process.send_signal(signal.SIGTERM)

        assert process.wait() == 143

    (records,) = configured.journals
    assert (records[-1]["type"], records[-1]["status"]) == ("result", "done")


def test_a_live_conversation_over_two_pipes(configured: Place) -> None:
    with configured.live(*JSON) as live:
        assert live.until("init")["session"]
        live.send(line("task", "q"))
        live.until("tool_call", name="wait")
        live.send("not json", line("todo: add x", "t"), line("@answer use B", "b"))
        live.until("line_refused")
        live.until("line_queued", id="t")
        configured.open_gate()
        live.until("receipt", id="b", state="delivered")
        live.until("result", status="done")
        live.send(line("hello", "h"))
        assert live.until("result")["result"] == "Done: hello"
        assert live.process.stdin is not None
        live.process.stdin.close()

        assert live.ended() == 3, "a line was refused"

    points = {r["id"]: r["point"] for r in receipts(live.seen) if r["state"] != "refused"}
    assert points == {"q": "start", "t": "D", "b": "B", "h": "start"}
