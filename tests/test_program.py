"""The program itself, as a user starts it: processes, pipes, signals, and everything that can be wrong before a run.

Each process has a home of its own, no API key, and a deadline. The tests wait for what it writes, never for time.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support import forked
from support.examples import one, some
from support.house import ROOT
from support.rows import check_order
from support.stages import line

from cli.main import main

PROGRAM = (sys.executable, "-m", "cli")
DEADLINE_S = 120
"""A machine under load takes some seconds to start a process; what takes longer than this hangs."""

GRACE_S = 15
"""The longest that a process may take to end when it is told to, whoever does not listen."""

PIPE_SIZE = 4096
"""Of the pipes of a process: one that nobody reads is soon full."""

NO_KEY = "chain: no API key: set ANTHROPIC_API_KEY or use --model offline\n"

RULES = r"""
rules:
  - {when: {interruption: '\(Done'}, text: Noted.}
  - {when: {interruption: '.'}, text: "Heard: ${interruption}"}
  - {when: {user: ^task, step: 1}, text: Looking., tools: [{name: wait, input: {}}]}
  - {when: {user: ^task}, text: The answer.}
  - {when: {user: '^read (?P<path>\S+)', step: 1}, tools: [{name: read_file, input: {path: "${path}"}}]}
  - {when: {tool: read_file}, text: "${result}"}
  - {when: {user: ^stream}, text: "abcdefghij", pace: {chunk: 5, delay_s: 1000}}
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


@contextmanager
def deadline(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Kill the process at its deadline, and in any case at the end."""
    watchdog = threading.Timer(DEADLINE_S, process.kill)
    watchdog.start()
    try:
        yield
    finally:
        watchdog.cancel()
        process.kill()


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
    """A process whose standard output is read as it comes. At its deadline it is killed, which ends every reading."""

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

    def run(
        self,
        *args: str,
        stdin: bytes | int = subprocess.DEVNULL,
        environ: Mapping[str, str] | None = None,
        program: tuple[str, ...] = PROGRAM,
    ) -> Ran:
        """Run the program to its end. ``stdin``: what it reads, or a descriptor."""
        given: dict[str, Any] = {"input": stdin} if isinstance(stdin, bytes) else {"stdin": stdin}
        done = forked.run(
            [*program, *args],
            cwd=self.folder,
            env={**self.environ, **(environ or {})},
            timeout=DEADLINE_S,
            **given,
        )
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())

    @contextmanager
    def live(self, *args: str) -> Iterator[Live]:
        """Start the program with a tool that waits until somebody writes into the pipe ``gate``."""
        driver = self.write("driver.py", DRIVER)
        os.mkfifo(self.folder / "gate")
        err = self.folder / "stderr"
        with err.open("wb") as stderr:
            process = forked.Popen(
                [sys.executable, str(driver), "--config", "config.yaml", *args],
                cwd=self.folder,
                env=self.environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                pipesize=PIPE_SIZE,
            )
        with process, deadline(process):
            yield Live(process, err)

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


@pytest.mark.started
def test_lines_from_a_pipe_are_a_query_and_what_interrupts_it(place: Place) -> None:
    place.write("prompts/one.txt", "a\nb\nc\n")
    place.write("prompts/two.txt", "d\n" * 17)

    ran = place.run(*OFFLINE, stdin=b"Count the lines of every file in prompts\ntodo: add check the licence\n")

    assert ran.code == 0
    assert "prompts/one.txt" in ran.out
    assert "17" in ran.out
    assert "[ ] 1. check the licence" in ran.err
    (plan,) = [r for r in place.journals[0] if r["type"] == "plan"]
    assert (plan["change"], plan["text"], plan["by"]) == ("added", "check the licence", "user")


def test_a_line_said_at_a_moment_shows_in_the_stream(place: Place) -> None:
    place.write("prompts/one.txt", "a\nb\n")

    ran = place.run(
        "-p",
        "Count the lines of every file in prompts",
        *OFFLINE,
        "--say",
        "@iteration 2 todo: add x",
        "--output-format",
        "stream-json",
    )

    assert ran.code == 0
    assert ran.err == ""
    types = [o["type"] for o in ran.objects]
    assert (types[0], types[-1]) == ("init", "result")
    (entered,) = [o for o in ran.objects if o["type"] == "user_interruption"]
    assert (entered["iteration"], entered["point"], entered["message"]) == (2, "D", "todo: add x")
    told = {o["text"]: (o["id"], o["state"]) for o in ran.objects if o["type"] == "receipt"}
    assert told["todo: add x"] == (entered["ids"][0], "delivered")
    assert ran.objects[-1]["exit_code"] == 0


@pytest.mark.parametrize("format", ["text", "json", "stream-json"])
def test_without_a_key_it_says_what_to_do(place: Place, format: str) -> None:
    ran = place.run("-p", "hello", "--say", "@iteration 2 todo: add x", "--output-format", format)

    assert (ran.code, ran.out, ran.err) == (2, "", NO_KEY)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("typed", [b"todo: add x\n", None])
def test_the_demonstration_shows_an_interruption_from_end_to_end(place: Place, typed: bytes | None) -> None:
    ran = place.run("demo", stdin=subprocess.DEVNULL if typed is None else typed)

    assert (ran.code, ran.err) == (0, "")
    order = [
        "plays by itself; where standard input and output are a terminal",
        "▶ Analyze product data for SKU123",
        "[1/50]",
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
    check_order(ran.out, ["[1/50]", "number of a product", "→ list_files"])
    assert ("standard input is not read" in ran.out) == (typed is not None)
    assert "goes on with it" not in ran.out, "nothing of it is kept"


def test_init_writes_a_configuration_that_runs(place: Place) -> None:
    assert place.run("init", "mine").code == 0
    mine = Place(place.folder / "mine")
    (mine.folder / "home").mkdir()
    mine.write("notes.txt", "one\ntwo\n")

    checked = mine.run("check", *OFFLINE)
    ran = mine.run("-p", "Count the lines of every file in .", *OFFLINE)

    assert (checked.code, checked.err) == (0, "")
    assert "config.yaml" in checked.out.splitlines()[0]
    assert ran.code == 0
    assert "notes.txt" in ran.out

    again = place.run("init", "mine")
    assert again.code == 2
    assert "overwrites nothing" in again.err


def test_check_tells_where_values_are_from_and_what_is_wrong(configured: Place) -> None:
    good = configured.run("check", "--config", "config.yaml")
    configured.write("config.yaml", CONFIG + "    \n  other: {system_prompt: gone.yaml}\n")
    bad = configured.run("check", "--config", "config.yaml")

    assert good.code == 0
    assert "chains.default.max_iterations: 5  (config.yaml:6)" in good.out.splitlines()
    assert good.out.splitlines()[-1].startswith("All is well: ")
    assert re.match(r"1 problem: .*config.yaml:8: chains.other.system_prompt: ", bad.out.splitlines()[-1])
    assert bad.code == 2
    (problem,) = [row for row in bad.out.splitlines() if row.startswith("problem: ")]
    assert "gone.yaml" in problem


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


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("args", [("check",), ("-p", "x"), ("-p", "x", "-v")])
@pytest.mark.parametrize("name", some([*WILD_FILES], every=5))
def test_no_escape_of_a_found_configuration_reaches_the_terminal(
    place: Place, name: str, args: tuple[str, ...]
) -> None:
    config, rules = WILD_FILES[name]
    place.write("config.yaml", config)
    place.write("r.yaml", rules)

    ran = place.run(*args)

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
    with process, deadline(process):
        assert process.stdout is not None
        assert process.stdout.readline() == b"blocked\n"
        while process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.5)
    assert process.returncode == 143


def test_importing_the_library_is_cheap(place: Place) -> None:
    code = "import sys, chain; print(*sorted({'anthropic', 'prompt_toolkit', 'yaml'} & set(sys.modules)))"

    ran = place.run(program=(sys.executable, "-c", code))

    assert (ran.code, ran.out.strip(), ran.err) == (0, "", "")


def test_the_version_and_the_help(place: Place) -> None:
    assert place.run("--version").out.startswith("chain ")
    ran = place.run("--help")
    assert (ran.code, ran.err) == (0, "")
    assert "--say" in ran.out
    reading, writing = os.pipe()
    os.close(reading)
    gone = subprocess.run([*PROGRAM, "--help"], env=place.environ, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (gone.returncode, gone.stderr) == (0, b"")


@pytest.mark.slow
@pytest.mark.skipif(find_spec("hatchling") is None, reason="the build backend is not installed")
def test_an_installed_program_finds_its_defaults(place: Place) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place.folder / "dist")],
        cwd=ROOT,
        capture_output=True,
        timeout=DEADLINE_S,
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
    ran = place.run(
        "-p",
        "List the files",
        *OFFLINE,
        "--workspace",
        "work",
        environ={"PYTHONPATH": str(place.folder / "site")},
    )
    assert ran.code == 0
    assert "notes.txt" in ran.out
    reference = place.run("help", "lines", environ={"PYTHONPATH": str(place.folder / "site")})
    assert reference.out == (place.folder / "site" / "cli" / "help" / "lines.md").read_text(encoding="utf-8")


# ---------------------------------------------------------------------------------------------------------- bad input

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
PROMPT = "messages: [{role: system, content: Be brief.}]\n"
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
    "config that is not YAML": Bad(NAMED, ("config.yaml:3",), {"config.yaml": "models: {}\nchains: [\n"}),
    "config that is a list": Bad(NAMED, ("config.yaml:1",), {"config.yaml": "- chains\n"}),
    "config that is not text": Bad(NAMED, ("config.yaml", "UTF-8"), {"config.yaml": b"chains: \xff\xfe\n"}),
    "config that is not there": Bad((*QUERY, "--config", "gone.yaml"), ("gone.yaml",)),
    "config that is a folder": Bad((*QUERY, "--config", "."), ("cannot be read",)),
    "unknown key": Bad(
        NAMED,
        ("config.yaml:6", "max_iteration", "max_iterations"),
        {"config.yaml": CONFIG.replace("iterations", "iteration")},
    ),
    "unknown top key": Bad(NAMED, ("config.yaml:7", "chain"), {"config.yaml": CONFIG + "chian: {}\n"}),
    "wrong type": Bad(
        NAMED, ("config.yaml:6", "max_iterations"), {"config.yaml": CONFIG.replace("iterations: 5", "iterations: five")}
    ),
    "a number out of range": Bad(
        NAMED, ("config.yaml:6", "max_iterations"), {"config.yaml": CONFIG.replace("iterations: 5", "iterations: 0")}
    ),
    "wrong type of tools": Bad(
        NAMED, ("config.yaml:6", "tools"), {"config.yaml": CONFIG.replace("[todo, files]", "todo")}
    ),
    "unknown model": Bad((*NAMED, "--model", "tets"), ("tets", "test")),
    "unknown model by environment": Bad(NAMED, ("tets", "test"), environ={"CHAIN_MODEL": "tets"}),
    "unknown model in the file": Bad(NAMED, ("tets",), {"config.yaml": CONFIG.replace("{model: test", "{model: tets")}),
    "unknown chain": Bad((*NAMED, "--chain", "defualt"), ("defualt", "default")),
    "unknown tool": Bad(NAMED, ("fles", "files"), {"config.yaml": CONFIG.replace("files", "fles")}),
    "missing system prompt": Bad(
        NAMED, ("gone.yaml",), {"config.yaml": CONFIG.replace("tools:", "system_prompt: gone.yaml, tools:")}
    ),
    "missing rules": Bad(NAMED, ("gone.yaml",), {"config.yaml": CONFIG.replace("rules.yaml", "gone.yaml")}),
    "broken rules": Bad(NAMED, ("rules.yaml:1",), {"rules.yaml": "rules: [{whem: {}, text: x}]\n"}),
    "missing variable": Bad(NAMED, ("NOT_THERE",), {"config.yaml": CONFIG.replace("rules.yaml", '"${NOT_THERE}"')}),
    "a workspace that is a file": Bad((*NAMED, "--workspace", "config.yaml"), ("config.yaml", "not a folder")),
    "a workspace that is not there": Bad((*NAMED, "--workspace", "gone"), ("gone", "not a folder")),
    "unknown moment": Bad((*NAMED, "--say", "@iterations 2 x"), ("@iterations", "@iteration")),
    "incomplete moment": Bad((*NAMED, "--say", "@iteration x"), ("@iteration N TEXT",)),
    "unknown moment in a script": Bad(
        (*NAMED, "--script", "script.txt"), ("script.txt:3", "@don"), {"script.txt": "# one\nuse B\n@don x\n"}
    ),
    "a script that is not there": Bad((*NAMED, "--script", "gone.txt"), ("gone.txt",)),
    "a script that is not text": Bad((*NAMED, "--script", "s.txt"), ("s.txt", "UTF-8"), {"s.txt": b"\xff\n"}),
    "an empty query": Bad(("-p", "", "--config", "config.yaml"), ("query is empty",)),
    "a blank query": Bad(("  ", "--config", "config.yaml"), ("query is empty",)),
    "no query": Bad(("-p", "--config", "config.yaml"), ("-p needs a query",)),
    "a query in many words": Bad(("list", "the", "files"), ("3 words", "quotes")),
    "a query that is too long": Bad(("-p", "x" * 100_001, "--config", "config.yaml"), ("100,001", "100,000")),
    "stdin without a query": Bad(("--stdin", "--config", "config.yaml"), ("--stdin",)),
    "a mistyped command": Bad(("chek", "--config", "config.yaml"), ("chain check", "chain -p chek")),
    "stdin and not": Bad((*NAMED, "--stdin", "--no-stdin"), ("--stdin", "--no-stdin")),
    "stdin twice": Bad((*NAMED, "--stdin", "--input-format", "stream-json"), ("--stdin", "--input-format")),
    "no stdin twice": Bad((*NAMED, "--no-stdin", "--input-format", "stream-json"), ("--no-stdin", "--input-format")),
    "an option without its value": Bad((*NAMED, "--say"), ("--say LINE",)),
    "an unknown option": Bad((*NAMED, "--modle", "test"), ("--modle", "--model?")),
    "an unknown format": Bad((*NAMED, "--output-format", "xml"), ("xml",)),
    "no number of iterations": Bad((*NAMED, "--max-iterations", "few"), ("--max-iterations", "few")),
    "a bomb in the config": Bad(NAMED, ("config.yaml",), {"config.yaml": BOMB}),
    "a deep config": Bad(NAMED, ("config.yaml",), {"config.yaml": "chains: " + "[" * 5_000 + "]" * 5_000}),
    "a huge config": Bad(NAMED, ("config.yaml",), {"config.yaml": CONFIG + "# \n" * 2_000_000}),
    "a bomb in the system prompt": Bad(
        NAMED,
        ("system.yaml",),
        {"config.yaml": CONFIG.replace("tools:", "system_prompt: system.yaml, tools:"), "system.yaml": BOMB},
    ),
    "a bomb in the rules": Bad(NAMED, ("rules.yaml",), {"rules.yaml": BOMB}),
    "a config that was merely found": Bad(
        QUERY,
        ("config.yaml", "base_url", "--config"),
        {"config.yaml": "chains: {}\nmodels: {definitions: {claude: {base_url: 'http://localhost:1'}}}\n"},
    ),
    "a state folder that cannot be made": Bad(NAMED, ("file",), {"file": ""}, {"XDG_STATE_HOME": "file"}),
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


@pytest.mark.sampled
@pytest.mark.parametrize("name", some([*BAD], every=5))
def test_bad_input_gets_one_sentence(
    configured: Place, name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    environ = {**configured.environ, **arrange(configured, BAD[name])}
    monkeypatch.chdir(configured.folder)
    for variable in os.environ.keys() - environ.keys():
        monkeypatch.delenv(variable)
    for variable, value in environ.items():
        monkeypatch.setenv(variable, value)

    code = main(BAD[name].args)

    told = capfd.readouterr()
    check_sentence(BAD[name], Ran(code, told.out, told.err), configured.folder)
    assert not configured.journals, "nothing was begun"


@pytest.mark.spec("7", "2")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("config that is not YAML", marks=pytest.mark.started),
        *("unknown key", "a workspace that is a file", "a bomb in the rules"),
    ],
)
def test_bad_input_ends_the_process_with_one_sentence(configured: Place, name: str) -> None:
    environ = arrange(configured, BAD[name])

    check_sentence(BAD[name], configured.run(*BAD[name].args, environ=environ), configured.folder)


def test_nothing_on_standard_input_is_wrong_usage(configured: Place) -> None:
    ran = configured.run("--config", "config.yaml")

    assert (ran.code, ran.out) == (2, "")
    assert ran.err.splitlines()[-1].startswith("chain: there is no query")


def test_verbose_shows_the_traceback_above_the_sentence(configured: Place) -> None:
    ran = configured.run(*NAMED, "--model", "tets", "-v")

    assert ran.code == 2
    assert ran.err.startswith("Traceback (most recent call last):")
    assert ran.err.splitlines()[-1].startswith("chain: ")


def test_a_configuration_that_is_passed_over_is_a_notice(place: Place) -> None:
    place.write("config.yaml", "models: {default: offline}\n")

    ran = place.run("-p", "hello", *OFFLINE)
    assert ran.code == 0
    (row,) = [row for row in ran.err.splitlines() if "config.yaml:1: is not used" in row]
    assert "no key chains" in row
    checked = place.run("check", *OFFLINE)
    assert [row for row in checked.out.splitlines() if "config.yaml:1: is not used" in row]


def test_instructions_of_the_project_are_told_with_v_and_in_json_and_what_is_wrong_always(configured: Place) -> None:
    configured.write("AGENTS.md", "Use make.")
    configured.write("home/.config/chain/AGENTS.md", b"\xff")
    configured.write("rules.yaml", "rules: [{when: {system: 'Use make'}, text: I do.}, {text: I do not.}]")
    files, fault = "Project instructions: AGENTS.md.", "is not UTF-8"

    ran = configured.run(*NAMED)
    assert (ran.code, ran.out) == (0, "I do.\n")
    assert (files in ran.err, ran.err.count(fault)) == (False, 1)

    ran = configured.run(*NAMED, "-v")
    assert (ran.err.count(files), ran.err.count(fault)) == (1, 1)

    rows = [json.loads(row) for row in configured.run(*NAMED, "--output-format", "stream-json").out.splitlines()]
    told = [row["message"] for row in rows if row["type"] == "notice"]
    assert told[0] == files
    assert fault in told[1]


def test_a_configuration_with_a_misspelt_key_of_its_chains_is_wrong(place: Place) -> None:
    place.write("config.yaml", "chain: {default: {max_iterations: 5}}\n")
    ran = place.run("-p", "hello", *OFFLINE)
    assert (ran.code, ran.out) == (2, "")
    assert "config.yaml:1: unknown key" in ran.err
    assert "did you mean chains instead of chain?" in ran.err


def test_a_missing_handler_file_is_a_notice(configured: Place) -> None:
    configured.write("config.yaml", CONFIG.replace("tools:", "interruption_prompt: gone.yaml, tools:"))

    ran = configured.run(*NAMED, "--say", "use B")

    assert (ran.code, ran.out) == (0, "Heard: use B\n")
    (row,) = [row for row in ran.err.splitlines() if "gone.yaml" in row]
    assert "built-in" in row


def test_an_over_long_line_on_a_pipe_is_refused_with_the_limit(configured: Place) -> None:
    ran = configured.run("--config", "config.yaml", stdin=b"x" * 100_001 + b"\nhello\n")

    assert (ran.code, ran.out) == (3, "Done: hello\n"), "a line did not get through"
    assert "100,000" in ran.err


def test_bytes_that_are_not_utf_8_on_a_pipe_are_replaced(configured: Place) -> None:
    ran = configured.run("--config", "config.yaml", stdin=b"gr\xfc\xdfe\n")

    assert (ran.code, ran.out) == (0, "Done: gr\ufffd\ufffde\n")
    assert "line 1 of the input is not UTF-8" in ran.err


def test_files_that_cannot_be_read_are_results_that_say_so(configured: Place) -> None:
    configured.write("data.bin", bytes(range(256)) * 4)
    configured.write("huge.txt", b"")
    with (configured.folder / "huge.txt").open("r+b") as file:
        file.truncate(3_000_000_000)
    names = ["data.bin", "huge.txt", "gone.txt", "../../etc/passwd"]
    lines = [f"{'then: ' if n else ''}read {name}" for n, name in enumerate(names)]

    ran = configured.run("--config", "config.yaml", stdin="\n".join(lines).encode())

    assert ran.code == 0
    binary, huge, gone, refused = ran.out.splitlines()
    assert "data.bin" in binary
    assert "1024 bytes" in binary
    assert "3000000000 bytes" in huge
    assert "no gone.txt" in gone
    assert "is refused" in refused


# -------------------------------------------------------------------------------------------------- standard streams


@pytest.mark.parametrize("args", [(), ("--stdin",)])
def test_stdin_goes_with_the_query_as_a_block(configured: Place, args: tuple[str, ...]) -> None:
    ran = configured.run(*NAMED, *args, stdin="one\nzwölf\n".encode())

    assert (ran.code, ran.out) == (0, "Done: hello\n\n<stdin>\none\nzwölf\n</stdin>\n")


@pytest.mark.started
def test_a_file_or_a_socket_on_standard_input_goes_with_the_query_too(configured: Place) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, configured.write("notes.txt", "a note").open("rb") as file:
        ours.sendall(b"a note")
        ours.shutdown(socket.SHUT_WR)
        for descriptor in (file.fileno(), theirs.fileno()):
            ran = configured.run(*NAMED, stdin=descriptor)

            assert (ran.code, ran.out) == (0, "Done: hello\n\n<stdin>\na note\n</stdin>\n")


@pytest.mark.parametrize("piped", [b"", b"\n"])
def test_an_empty_stdin_adds_nothing(configured: Place, piped: bytes) -> None:
    ran = configured.run(*NAMED, stdin=piped)

    assert (ran.code, ran.out) == (0, "Done: hello\n")
    assert "standard input" not in ran.err


def test_stdin_alone_is_the_query(configured: Place) -> None:
    ran = configured.run("-p", "--config", "config.yaml", stdin=b"hello\n")

    assert (ran.code, ran.out) == (0, "Done: hello\n")


@pytest.mark.slow
def test_a_pipe_that_nobody_writes_into_holds_nothing_up_for_long(configured: Place) -> None:
    reading, writing = os.pipe()
    try:
        ran = configured.run(*NAMED, stdin=reading)
    finally:
        os.close(reading)
        os.close(writing)

    assert (ran.code, ran.out) == (0, "Done: hello\n")
    (row,) = [row for row in ran.err.splitlines() if "standard input" in row]
    assert "--no-stdin" in row


@pytest.mark.slow  # two programs one after the other; `input/test_stdin.py` holds what is read
def test_stdin_can_be_left_to_others(configured: Place) -> None:
    configured.write("list", "one\ntwo\n")
    loop = 'while read -r each; do "$@" -p "$each" --no-stdin; done < list'

    ran = configured.run(program=("/bin/sh", "-c", loop, "sh", *PROGRAM, "--config", "config.yaml"))

    assert (ran.code, ran.out) == (0, "Done: one\nDone: two\n")


def test_stdin_that_is_not_utf_8_is_replaced_with_a_notice(configured: Place) -> None:
    ran = configured.run(*NAMED, stdin=b"gr\xfc\xdfe")

    assert ran.code == 0
    assert "gr\ufffd\ufffde" in ran.out
    assert "not UTF-8" in ran.err


def test_stdin_that_is_too_long_is_refused_with_the_limit(configured: Place) -> None:
    ran = configured.run(*NAMED, stdin=b"x" * 2_000_000)

    assert ran.code == 2
    assert "100,000" in ran.err


def test_a_script_is_lines_at_their_moments(configured: Place) -> None:
    configured.write("script.txt", "# a comment\r\n\r\nuse A\r\n@answer use B\n@done hello again\n@iteration 4 never\n")

    ran = configured.run(*NAMED, "--script", "script.txt", "--say", "use C")

    assert ran.code == 3
    assert ran.out == "Heard: use B\nDone: hello again\n"
    assert ran.err.splitlines()[-2] == "↩ Never sent (its moment did not come): @iteration 4 never"


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("args", "closed"),
    some(
        [
            (("hello",), "<&-"),
            (("hello",), "<&- >&- 2>&-"),
            (("-p", "hello"), ">&-"),
            (("-p", "hello"), "2>&-"),
            (("-p", "hello", "--stdin"), "<&-"),
            (("check",), ">&-"),
        ],
        every=6,
    ),
)
def test_standard_streams_may_be_closed(configured: Place, args: tuple[str, ...], closed: str) -> None:
    command = (*PROGRAM, "--config", "config.yaml", *args)

    ran = configured.run(program=("/bin/sh", "-c", f'exec "$@" {closed}', "sh", *command), stdin=b"")

    assert ran.code == 0, ran.err
    assert "Traceback" not in ran.err
    if ">&-" not in closed.split():
        assert ran.out.startswith("Done: hello" if args[0] != "check" else "config: ")
    if args[0] != "check":
        (records,) = configured.journals
        assert records[-1]["type"] == "result"


@pytest.mark.sampled
@pytest.mark.parametrize("args", one([("-p", "long"), ("-p", "long", "--output-format", "stream-json"), ("check",)]))
def test_a_reader_who_is_gone_breaks_nothing(configured: Place, args: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with (configured.folder / "stderr").open("w+b") as err:
        done = subprocess.run(
            [*PROGRAM, "--config", "config.yaml", *args],
            cwd=configured.folder,
            env=configured.environ,
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=err,
            timeout=DEADLINE_S,
            check=False,
        )
        os.close(writing)
        err.seek(0)
        told = err.read().decode()

    assert done.returncode == 0
    assert "Traceback" not in told
    assert "Exception" not in told


@pytest.mark.slow  # `test_terminal.py` has such a locale too
def test_a_terminal_that_is_plain_ascii_gets_ascii(configured: Place) -> None:
    ran = configured.run(*NAMED, "--say", "use B", environ={"LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"})

    assert ran.code == 0
    assert ran.err.isascii()


# ------------------------------------------------------------------------------------------------------------ signals

SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]


@pytest.mark.started
@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_signal_during_a_tool(configured: Place, number: signal.Signals, code: int) -> None:
    with configured.live(*JSON) as live:
        live.send(line("task", "q"))
        live.until("tool_call")
        live.send(line("use B", "b"))
        live.until("line_queued", id="b")
        live.process.send_signal(number)

        assert live.ended() == code

    last = live.seen[-1]
    assert (last["type"], last["status"], last["exit_code"]) == ("result", "interrupted", code)
    assert {r["id"]: r["state"] for r in receipts(live.seen)} == {"q": "delivered", "b": "returned"}
    assert live.err.read_text() == ""
    (records,) = configured.journals
    assert records[-1]["type"] == "result"
    note = [r for r in records if r["type"] == "message"][-1]["message"]
    assert note["content"][0]["text"] == "[The user interrupted the run here]"


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_signal_while_the_model_answers(configured: Place, number: signal.Signals, code: int) -> None:
    with configured.live("-p", "stream", "--no-stdin", "--output-format", "stream-json") as live:
        live.until("iteration_started")
        live.process.send_signal(number)

        assert live.ended() == code

    assert (live.seen[-1]["status"], live.seen[-1]["exit_code"]) == ("interrupted", code)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_signal_while_it_waits_for_what_is_piped_in(configured: Place, number: signal.Signals, code: int) -> None:
    with configured.live("-p", "hello", "--output-format", "stream-json") as live:
        live.send("begun")
        live.until("notice")  # that the input has not ended
        live.process.send_signal(number)

        assert live.ended() == code

    assert live.err.read_text() == ""
    assert (live.seen[-1]["type"], live.seen[-1]["exit_code"]) == ("result", code)


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_signal_while_it_waits_for_lines(configured: Place, number: signal.Signals, code: int) -> None:
    with configured.live(*JSON) as live:
        live.send(line("hello"))
        live.until("result")
        live.process.send_signal(number)

        assert live.ended() == code

    assert live.err.read_text() == ""
    assert live.seen[-1]["exit_code"] == code


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
    with process, deadline(process):
        assert process.stdout is not None
        assert os.read(process.stdout.fileno(), 1), "the answer comes when the run has ended"
        process.send_signal(signal.SIGTERM)

        assert process.wait(GRACE_S) == 143

    (records,) = configured.journals
    assert (records[-1]["type"], records[-1]["status"]) == ("result", "done")


# ----------------------------------------------------------------------------------------------------------- journals


@pytest.mark.started
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


def test_a_killed_process_leaves_every_line_that_it_acknowledged(configured: Place) -> None:
    with configured.live(*JSON) as live:
        live.send(line("task", "q"))
        live.until("tool_call")
        live.send(*(line(f"line {n}", f"n{n}") for n in range(1, 9)))
        for n in range(1, 9):
            live.until("line_queued", id=f"n{n}")
        live.process.kill()
        live.process.wait()

    (records,) = configured.journals
    lines = {r["id"]: r["text"] for r in records if r["type"] == "line"}
    assert lines == {"q": "task", **{f"n{n}": f"line {n}" for n in range(1, 9)}}
    assert [r["seq"] for r in records] == list(range(1, len(records) + 1))
    assert [r["type"] for r in records].count("tool_started") == 1
    assert "tool_finished" not in [r["type"] for r in records]


def test_journals_are_nobody_elses_business(configured: Place) -> None:
    assert configured.run(*NAMED).code == 0

    folder = configured.folder / "home/state/chain/sessions"
    (journal,) = folder.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert journal.stat().st_mode & 0o777 == 0o600


def test_processes_side_by_side_have_sessions_of_their_own(configured: Place) -> None:
    with configured.live(*JSON) as live:
        live.send(line("task", "q"))
        live.until("tool_call")
        assert configured.run(*NAMED).code == 0

    assert len(configured.journals) == 2
