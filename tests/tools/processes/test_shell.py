"""The tool that runs commands: what it gives, what it shows before, and what it refuses."""

from __future__ import annotations

import dataclasses
import math
import os
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
import trio
import trio.testing
from support.processes import until_async
from support.steered import Steered

from chain.errors import ToolError
from chain.messages import ToolCall
from chain.plan import Plan
from chain.text.escalations import Escalation
from chain.tools import calling
from chain.tools.allowances import parse_allowance, rule_for_always
from chain.tools.processes import shell
from chain.tools.processes.guarded import Guard
from chain.tools.processes.probe import Protections, probe
from chain.tools.processes.sandbox import Sandbox, ShellRules
from chain.tools.processes.shell import COMMAND_SUBJECT, shell_tools
from chain.tools.protected import Protected
from chain.tools.registry import Registry
from chain.tools.tool import UNASKED, FunctionTool, JobRun, Jobs, Preview, ToolContext, ToolOutput, Verdict

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the tool is for Linux")

LEFT_ONE = "background process ended with the command"
LEFT_MORE = "background processes ended with the command"
NOTHING, ALL = Protections(), Protections(*(True for _ in Protections._fields))


class OneJob(Jobs):
    """Keeps what the job is to run, for the test to run it."""

    run: JobRun

    def start(self, agent: str, call_id: str, command: str, run: JobRun, *, wakes: bool) -> str:
        self.run = run
        return "J1"


class Shell:
    """The tool in a workspace, with rules and a machine of the test's choice."""

    def __init__(self, workspace: Path, guard: Guard) -> None:
        self.workspace, self.guard = workspace, guard
        self.said: list[str] = []
        self.notices: list[str] = []
        self.rules = ShellRules()
        self.found: Protections | None = None
        self.environ = dict(os.environ)
        self.approved: Preview | None = UNASKED
        self.verdict: Verdict | None = None
        self.added: tuple[Path, ...] = ()
        self.jobs = Jobs()

    @property
    def tool(self) -> FunctionTool:
        (made,) = shell_tools(self.guard, self.rules, self.environ, self.found)
        assert isinstance(made, FunctionTool)
        return made

    def _context(self) -> ToolContext:
        context = ToolContext(self.workspace, Plan(), "call_1", Steered(), self.said.append, approved=self.approved)
        context = dataclasses.replace(context, notice=self.notices.append, verdict=self.verdict, added=self.added)
        return dataclasses.replace(context, jobs=self.jobs)

    async def run(self, command: str, **input: Any) -> str:
        return (await self.output(command, **input)).text

    async def output(self, command: str, **input: Any) -> ToolOutput:
        output = await self.tool.run(self._context(), {"command": command, **input})
        assert isinstance(output, ToolOutput)
        return output

    async def preview(self, command: str, **input: Any) -> Preview:
        shown = await calling.preview(
            self.tool, ToolCall("t1", "shell", {"command": command, **input}), self._context(), calling.ToolLimits()
        )
        assert shown is not None
        return shown


class StartedJobs(Jobs):
    """Jobs that a test runs itself."""

    def __init__(self) -> None:
        self.started: list[JobRun] = []

    def start(self, agent: str, call_id: str, command: str, run: JobRun, *, wakes: bool) -> str:
        self.started.append(run)
        return "J1"


@pytest.fixture
async def shell_(tmp_path: Path) -> AsyncIterator[Shell]:
    (tmp_path / "work/docs").mkdir(parents=True)
    (tmp_path / "work/file").write_text("x\n")
    guard = Guard()
    yield Shell(tmp_path / "work", guard)
    await guard.close()


# ----------------------------------------------------------------------------------------------------- what it gives


@pytest.mark.sampled(every=7)
@pytest.mark.parametrize(
    ("command", "result"),
    [
        ("echo hi; echo there >&2", "hi\nthere\nexit code 0"),
        ("printf hi; exit 3", "hi\nexit code 3"),
        ("true", "exit code 0"),
        ("echo hi; kill -9 $$", "hi\nkilled by SIGKILL"),
        ("read x || echo no input", "no input\nexit code 0"),
        ("[[ a == a ]] && echo bash", "bash\nexit code 0"),
        ("printf 'a\\xffb\\n\\n'", "a\N{REPLACEMENT CHARACTER}b\n\nexit code 0"),
        ("sleep 1000 & echo hi", f"hi\n1 {LEFT_ONE}\nexit code 0"),
        ("sleep 1000 & setsid sleep 1000 & exit 3", f"2 {LEFT_MORE}\nexit code 3"),
        ("sleep 1000 & kill -9 $$", f"1 {LEFT_ONE}\nkilled by SIGKILL"),
        ("true & true & wait", "exit code 0"),
    ],
)
async def test_its_result_is_the_output_and_how_it_ended(shell_: Shell, command: str, result: str) -> None:
    assert await shell_.run(command) == result


@pytest.mark.parametrize(
    ("command", "code", "summary"),
    [
        ("echo one; echo two", 0, ("two",)),
        ("true", 0, ()),
        ("echo bad; exit 3", 3, ("exit 3", "bad")),
        ("kill -9 $$", -9, ("killed by SIGKILL",)),
        ("sleep 1000 & echo up", 0, (f"1 {LEFT_ONE}", "up")),
    ],
)
async def test_how_it_ended_is_data_too(shell_: Shell, command: str, code: int, summary: tuple[str, ...]) -> None:
    output = await shell_.output(command)
    assert (output.exit_code, output.summary, output.is_error) == (code, summary, False)


async def test_what_is_left_is_counted_without_a_namespace_too(shell_: Shell) -> None:
    shell_.found = NOTHING
    assert await shell_.run("sleep 1000 & sleep 1000 & true & wait $!") == f"2 {LEFT_MORE}\nexit code 0"


async def test_time_that_runs_out_is_an_error_with_the_output_so_far(
    shell_: Shell, mock_clock: trio.testing.MockClock
) -> None:
    context = dataclasses.replace(shell_._context(), report=lambda text: mock_clock.jump(60))
    output = await shell_.tool.run(context, {"command": "echo begun; sleep 1000", "timeout_s": 60})
    end = "stopped after 60 s, its time limit"
    assert output == ToolOutput(f"begun\n{end}", is_error=True, summary=(end, "begun"))


async def test_the_folder_is_one_of_the_workspace(shell_: Shell) -> None:
    assert await shell_.run("pwd", workdir="docs") == f"{shell_.workspace}/docs\nexit code 0"
    assert await shell_.run("pwd") == f"{shell_.workspace}\nexit code 0"


async def test_all_of_a_workspace_may_be_written_also_if_its_path_is_relative(
    shell_: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shell_.workspace.parent)
    shell_.workspace = Path("work")
    assert await shell_.run("touch one ../two && ls ..", workdir="docs") == "docs\nfile\ntwo\nexit code 0"


async def test_sh_where_there_is_no_bash(shell_: Shell) -> None:
    shell_.environ["PATH"] = ""
    assert await shell_.run('test -z "$BASH_VERSION" && echo $((1 + 1)) $0') == "2 /bin/sh\nexit code 0"


async def test_output_is_reported_while_it_comes(shell_: Shell) -> None:
    os.mkfifo(shell_.workspace / "go")
    has_come = trio.Event()

    def report(text: str) -> None:
        shell_.said.append(text)
        has_come.set()

    context = dataclasses.replace(shell_._context(), report=report)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            shell_.tool.run, context, {"command": "echo one; read x < go; echo two; printf th; printf ree"}
        )
        await has_come.wait()
        assert shell_.said == ["one\n"]
        await trio.to_thread.run_sync((shell_.workspace / "go").write_text, "\n")
    assert "".join(shell_.said) == "one\ntwo\nthree"


async def test_a_flood_is_bounded_in_the_result_and_in_the_reports(shell_: Shell) -> None:
    result = await shell_.run("head -c 5000000 /dev/zero | tr '\\0' '\\n' && echo the end")
    assert len(result) < 2_100_000
    assert "[3,000,008 of 5,000,008 characters left out]" in result
    assert result.endswith(
        "the end\nThe output had 5,000,008 characters; 3,000,008 of them were not kept.\nexit code 0"
    )
    assert sum(map(len, shell_.said)) < 1_000_000
    assert shell_.said[-1].endswith("the end\n")


async def test_a_long_command_is_run_and_one_that_is_too_long_is_not(shell_: Shell) -> None:
    longest = "true ".ljust(shell.MAX_COMMAND, "x")
    assert await shell_.run(longest) == "exit code 0"
    with pytest.raises(ToolError, match="131,072 bytes, more than the 131,071"):
        await shell_.run(f"{longest}x")


# -------------------------------------------------------------------------------------------------- what it refuses

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({"command": " \n"}, "The command is empty"),
    "a NUL": ({"command": "echo \0"}, "NUL"),
    "half a character": ({"command": "echo \ud800"}, "does not fit its schema"),
    "no time": ({"timeout_s": 0}, "timeout_s must be more than 0"),
    "negative time": ({"timeout_s": -1}, "timeout_s must be more than 0"),
    "very much time": ({"timeout_s": 3_601}, "at most 3,600 s, not 3601"),
    "no such folder": ({"workdir": "dogs"}, "There is no dogs; did you mean docs?"),
    "a file": ({"workdir": "file"}, "file is not a folder"),
    "up": ({"workdir": ".."}, "must not contain .."),
    "absolute": ({"workdir": "/tmp"}, "absolute path"),
    "a link out": ({"workdir": "out"}, "leads out of the workspace"),
    "an unknown key": ({"cwd": "docs"}, "does not fit its schema"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_is_refused_is_told_in_a_sentence_and_not_run(shell_: Shell, name: str) -> None:
    (shell_.workspace / "out").symlink_to("..")
    changes, says = REFUSED[name]
    input = {"command": "touch was-here", **changes}
    for act in (shell_.run, shell_.preview):
        with pytest.raises(ToolError) as caught:
            await act(**input)
        assert says in str(caught.value)
        assert "\n" not in str(caught.value)
    assert not (shell_.workspace / "was-here").exists()


# ------------------------------------------------------------------------------------------------ what is shown before


async def test_the_preview_is_the_command_and_where_and_how_long(shell_: Shell) -> None:
    shell_.found = ALL
    shown = await shell_.preview("git status\n# more")
    assert (shown.text, shown.subject, shown.always) == ("$ git status\n> # more", "git status\n# more", "subject")
    assert (await shell_.preview("git status")).text == "git status"
    assert (await shell_.preview("ls", workdir="./docs", timeout_s=300)).text == "in docs, for at most 300 s:\n$ ls"
    assert (await shell_.preview("ls", workdir="docs")).subject == "cd -- docs || exit; ls"


async def test_no_command_has_the_preview_of_another_one(shell_: Shell) -> None:
    shell_.found = ALL
    calls: list[tuple[str, dict[str, Any]]] = [
        ("rm -rf *", {"workdir": "docs"}),
        ("in docs:\nrm -rf *", {}),
        ("in docs:\n$ rm -rf *", {}),
        ("\u0456n docs:\nrm -rf *", {}),
        ("$ in docs:\n> rm -rf *", {}),
        ("ls\nrm -rf *", {}),
        ("ls\n> rm -rf *", {}),
        ("$ ls\n> rm -rf *", {}),
    ]
    shown = [(await shell_.preview(command, **input)).text for command, input in calls]
    assert len(set(shown)) == len(calls)
    assert shown[3] == "$ \\u0456n docs:\n> rm -rf *"


async def test_its_digest_is_of_the_command_and_the_folder(shell_: Shell) -> None:
    digests = [
        (await shell_.preview(*command, **input)).digest
        for command, input in [(["ls"], {}), (["ls -l"], {}), (["ls"], {"workdir": "docs"})]
    ]
    assert len(set(digests)) == 3
    assert (await shell_.preview("ls", timeout_s=5)).digest == digests[0]


async def test_what_was_allowed_is_what_is_run(shell_: Shell) -> None:
    shell_.approved = await shell_.preview("echo hi")
    assert await shell_.run("echo hi") == "hi\nexit code 0"
    for command, input in [("echo ho", {}), ("echo hi", {"workdir": "docs"})]:
        with pytest.raises(ToolError, match="has changed since it was approved"):
            await shell_.run(command, **input)
    shell_.found = NOTHING
    with pytest.raises(ToolError, match="has changed since it was approved"):
        await shell_.run("echo hi")


def some(*names: str) -> Protections:
    return Protections(**dict.fromkeys(names, True))


OPEN_TO_NETWORK = ("writes", "unix_sockets", "signals", "devices")


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("sandbox", "network", "found", "held", "missing"),
    [
        ("auto", False, ALL, ("writes", "network", "signals", "devices"), ()),
        ("auto", True, ALL, ("writes", "unix_sockets", "signals", "devices"), ()),
        ("auto", False, NOTHING, (), ()),
        ("auto", False, some("writes", "network"), ("writes", "network"), ()),
        ("strict", False, ALL, ("writes", "network", "signals", "devices"), ()),
        ("strict", True, some(*OPEN_TO_NETWORK), OPEN_TO_NETWORK, ()),
        ("strict", False, some("writes", "network", "devices"), None, ("signals",)),
        ("strict", False, some("writes", "network", "signals"), None, ("devices",)),
        ("strict", True, some("network"), None, OPEN_TO_NETWORK),
        ("off", False, ALL, (), ()),
        ("off", True, NOTHING, (), ()),
    ],
)
async def test_which_protections_hold_on_which_machine(
    shell_: Shell,
    sandbox: Any,
    network: bool,
    found: Protections,
    held: tuple[str, ...] | None,
    missing: tuple[str, ...],
) -> None:
    shell_.rules, shell_.found = ShellRules(sandbox, network), found
    if held is not None:
        assert (await shell_.preview("ls")).protections == held
        assert Sandbox(shell_.rules, found).active_protections == held
        assert len(Sandbox(shell_.rules, found).gap_sentences) == (4 if "network" in held else 5) - len(held)
        return
    for act in (shell_.preview, shell_.run):
        with pytest.raises(ToolError, match=r"tools\.shell\.sandbox is strict.* to auto") as caught:
            await act("touch was-here")
        names = ("writes", "network", "unix_sockets", "signals", "devices")
        assert tuple(name for name in names if f"({name})" in str(caught.value)) == missing
    assert not (shell_.workspace / "was-here").exists()


# -------------------------------------------------------------------------------------------------- what is told of git

AT_GIT = [
    ("echo x > .git/hooks/pre-commit", [".git/hooks/pre-commit"]),
    ("chmod +x .git/hooks/old", [".git/hooks/old"]),
    ("rm .git/hooks/old", [".git/hooks/old"]),
    ("t=$(stat -c %y .git/config); echo '[x] ' > .git/config; touch -d \"$t\" .git/config", [".git/config"]),
    ("cd .git/hooks && touch a b c d && rm old", [".git/hooks/a", ".git/hooks/b", ".git/hooks/c", "2 more"]),
    ("echo x > tracked", [".git/hooks/linked"]),
    ("echo x > .git/hooks/new; exit 3", [".git/hooks/new"]),
    ("echo x > .git/index; cat .git/config .git/hooks/old; mkdir -p sub", []),
]


@pytest.mark.sampled(every=7)
@pytest.mark.parametrize(("command", "files"), AT_GIT)
async def test_a_command_that_changed_what_git_runs_is_told(shell_: Shell, command: str, files: list[str]) -> None:
    (shell_.workspace / ".git/hooks").mkdir(parents=True)
    (shell_.workspace / ".git/config").write_text("[x]\n\n")
    (shell_.workspace / ".git/hooks/old").write_text("x\n")
    (shell_.workspace / "tracked").write_text("\n")
    (shell_.workspace / ".git/hooks/linked").symlink_to("../../tracked")
    await shell_.run(command)
    assert len(shell_.notices) == bool(files)
    assert all(file in notice for notice in shell_.notices for file in files)


async def test_that_is_told_of_the_repository_above_and_of_a_command_that_was_interrupted(shell_: Shell) -> None:
    (shell_.workspace / "docs/.git").mkdir()
    os.mkfifo(shell_.workspace / "up")
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            command = "echo x > .git/config; echo > ../up; sleep 1000"
            nursery.start_soon(partial(shell_.run, command, workdir="docs"))
            await trio.to_thread.run_sync((shell_.workspace / "up").read_text)
            scope.cancel()
    assert [notice.split(": ")[0] for notice in shell_.notices] == ["A command changed docs/.git/config"]


AT_WORKTREE = [
    ("echo 'gitdir: ../other' > .git", "docs/.git"),
    ("echo x > ../main/.git/config", "main/.git/config"),
    ("echo x > ../main/.git/config.worktree", "main/.git/config.worktree"),
    ("echo x > ../main/.git/hooks/new", "main/.git/hooks/new"),
    ("echo x > ../main/.git/worktrees/docs/config.worktree", "main/.git/worktrees/docs/config.worktree"),
    ("echo x > ../main/.git/worktrees/docs/commondir", "main/.git/worktrees/docs/commondir"),
    ("echo x > ../main/.git/worktrees/docs/index; cat .git", ""),
]


@pytest.mark.sampled(every=7)
@pytest.mark.parametrize(("command", "file"), AT_WORKTREE)
async def test_that_is_told_of_a_worktree(shell_: Shell, command: str, file: str) -> None:
    for folder in ("docs", "main/.git/hooks", "main/.git/worktrees/docs"):
        (shell_.workspace / folder).mkdir(parents=True, exist_ok=True)
    (shell_.workspace / "docs/.git").write_text("gitdir: ../main/.git/worktrees/docs\n")
    (shell_.workspace / "main/.git/worktrees/docs/commondir").write_text("../..\n")
    await shell_.run(command, workdir="docs")
    named = [notice.split(": ")[0].removeprefix("A command changed ") for notice in shell_.notices]
    assert [names.split(", ")[0].split(" and ")[0] for names in named] == ([file] if file else [])


# ------------------------------------------------------------------------------------------------- what a command may


@pytest.mark.parametrize("sandbox", ["auto", "off"])
async def test_a_command_is_in_the_fence_that_was_shown(shell_: Shell, sandbox: Any, tmp_path: Path) -> None:
    shell_.rules = ShellRules(sandbox, writable=(tmp_path / "more", tmp_path / "not there"))
    (tmp_path / "more").mkdir()
    shown = await shell_.preview("ls")
    held = shown.protections
    assert (f"A command may also write in {tmp_path}/more" in shown.text) == ("writes" in held)
    assert held == (Sandbox(shell_.rules, probe()).active_protections if sandbox == "auto" else ())
    await shell_.run(f"touch inside {tmp_path}/more/new {tmp_path}/outside $TMPDIR/temporary")
    assert (shell_.workspace / "inside").exists()
    assert (tmp_path / "more/new").exists()
    assert (tmp_path / "outside").exists() == ("writes" not in held)
    said = await shell_.run(f"{sys.executable} -c 'import socket; socket.socket()'; kill -0 {os.getpid()}")
    assert ("PermissionError" in said) == ("network" in held)
    assert said.endswith("exit code 0") == ("signals" not in held)


needs_writes = pytest.mark.skipif(not probe().writes, reason="this machine cannot refuse writes")


@needs_writes
async def test_the_files_of_this_program_in_the_workspace_are_not_a_command_s(shell_: Shell, tmp_path: Path) -> None:
    own = (shell_.workspace / "chain/sessions", tmp_path / "elsewhere")
    own[0].mkdir(parents=True)
    shell_.rules = ShellRules("strict", protected=Protected(own))
    shown = await shell_.preview("ls")
    assert shown.protections[0] == "writes"
    assert shown.text.splitlines()[0] == (
        "A command cannot change chain/sessions, which chain uses outside the sandbox. So it cannot create, move or "
        "delete files directly in the workspace, chain; let it use another folder, or see chain help sandbox."
    )
    assert "exit code 1" in await shell_.run("touch chain/sessions/new || mv chain away || touch new")
    assert await shell_.run("echo x >> file && touch docs/new $TMPDIR/new") == "exit code 0"


@needs_writes
async def test_where_a_command_may_change_this_program_writes_are_not_claimed(shell_: Shell) -> None:
    shell_.rules = ShellRules(protected=Protected((shell_.workspace / "docs",)), writable=(shell_.workspace / "docs",))
    shown = await shell_.preview("ls")
    assert "writes" not in shown.protections
    assert shown.text.startswith("Not fenced in: a command can change this program")
    assert await shell_.run("touch new docs/new") == "exit code 0"
    assert "exit code 1" in await shell_.run("touch ../new"), "what holds is still refused"
    shell_.rules = dataclasses.replace(shell_.rules, sandbox="strict")
    with pytest.raises(ToolError, match=r"strict, but on this machine a command can change this program.* \(writes\);"):
        await shell_.preview("ls")


SIGNS = {
    "curl: (6) Could not resolve host: example.org": "network",
    "urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>": "network",
    "Error: getaddrinfo EAI_AGAIN example.org": "network",
    "Could not connect to Redis at 127.0.0.1:6379: Permission denied": "network",
    "    _socket.socket.__init__(self, family)\nPermissionError: [Errno 13] Permission denied": "network",
    "dial unix /var/run/docker.sock: socket: permission denied": "network",
    "java.net.UnknownHostException: example.org": "network",
    "cat: /dev/tty: Permission denied": "devices",
    "PermissionError: [Errno 13] Permission denied: '/dev/tty'": "devices",
    "bash: line 1: kill: (1) - Operation not permitted": "signals",
    "touch: cannot touch '/x': Permission denied": "writes",
    "Error: EACCES: permission denied, open '/x'": "writes",
    "error: could not lock config file /root/.gitconfig: Permission denied": "writes",
    "mv: cannot move 'a' to '/x': Operation not permitted": "writes",
    "ls: cannot access 'x': No such file or directory": "",
    "1 failed, 3 passed": "",
    "": "",
}


@pytest.mark.parametrize("output", SIGNS)
def test_what_the_sandbox_seems_to_have_refused_is_named_if_it_refuses_that(output: str) -> None:
    said = Sandbox(ShellRules(), ALL).refusal("make", output)
    assert said == (f"[sandbox: {SIGNS[output]} denied; see chain help sandbox]" if SIGNS[output] else "")
    assert Sandbox(ShellRules(), NOTHING).refusal("make", output) == ""
    # With the network allowed only Unix sockets are refused.
    others = Sandbox(ShellRules(network=True), ALL._replace(writes=False)).refusal("make", output)
    assert ("network" in others, "unix_sockets" in others) == (False, "docker.sock" in output)


def test_a_command_that_was_to_reach_an_address_and_said_nothing_names_the_network() -> None:
    assert "network denied" in Sandbox(ShellRules(), ALL).refusal("curl -s https://example.org", "\n")


@needs_writes
async def test_a_command_that_the_sandbox_made_fail_ends_with_what_it_refused(shell_: Shell) -> None:
    why = "[sandbox: writes denied; see chain help sandbox]"
    output = await shell_.output("touch ../x || false")
    assert output.summary[:2] == ("exit 1", why)
    assert (await shell_.run("touch ../x")).endswith(f": Permission denied\nexit code 1\n{why}")
    assert (await shell_.run("touch ../x 2>&1 | tail -1")).endswith(f": Permission denied\nexit code 0\n{why}")
    (shell_.workspace / "log").write_text("Permission denied\n")
    assert await shell_.run("cat log") == "Permission denied\nexit code 0"


PROBING = f"""touch ../new; {sys.executable} -c '
import socket
for name in ("AF_INET", "AF_UNIX"):
    try:
        socket.socket(getattr(socket, name)).close()
    except PermissionError:
        print(name, "is refused")
        break
'"""


@pytest.mark.parametrize(
    ("escalation", "can_write", "refused"),
    [(None, False, "AF_INET"), ("network", False, "AF_UNIX"), ("outside", True, "")],
)
@pytest.mark.skipif(not all(probe()[:3]), reason="this machine cannot refuse all of it")
async def test_an_escalation_lifts_only_what_it_names_and_only_for_its_call(
    shell_: Shell, tmp_path: Path, escalation: Escalation | None, can_write: bool, refused: str
) -> None:
    shell_.approved = await shell_.preview(PROBING)
    assert shell_.approved.escalations == ("network", "outside")
    shell_.verdict = Verdict(True, is_once=True, escalation=escalation)
    said = await shell_.run(PROBING)
    assert (tmp_path / "new").exists() == can_write
    assert f"{refused} is refused" in said if refused else "is refused" not in said
    (tmp_path / "new").unlink(missing_ok=True)
    shell_.verdict = Verdict(True, is_once=True)
    assert "AF_INET is refused" in await shell_.run(PROBING)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("rules", "found", "offered"),
    [
        (ShellRules(), ALL, ("network", "outside")),
        (ShellRules(network=True), ALL, ("outside",)),
        (ShellRules(), ALL._replace(network=False), ("outside",)),
        (ShellRules(), NOTHING, ()),
        (ShellRules("off"), ALL, ()),
        (ShellRules("strict"), ALL, ("network", "outside")),
        (ShellRules("strict"), ALL._replace(unix_sockets=False), ("outside",)),
    ],
)
def test_only_what_the_sandbox_restricts_can_be_lifted(
    rules: ShellRules, found: Protections, offered: tuple[Escalation, ...]
) -> None:
    assert Sandbox(rules, found).escalations == offered


@pytest.mark.parametrize(
    ("output", "row"),
    [
        ("curl: (6) Could not resolve host: example.org", "[sandbox: network denied; approve with w]"),
        ("touch: cannot touch '/x': Permission denied", "[sandbox: writes denied; approve with o]"),
        ("cat: /dev/tty: Permission denied", "[sandbox: devices denied; approve with o]"),
    ],
)
def test_a_call_that_was_asked_about_names_the_answer_that_lifts_what_was_refused(output: str, row: str) -> None:
    assert Sandbox(ShellRules(), ALL).refusal("make", output, can_approve=True) == row
    assert Sandbox(ShellRules(), ALL).escalated("outside").refusal("make", output, can_approve=True) == ""


async def test_temporary_files_are_the_chain_s_in_a_fence(shell_: Shell) -> None:
    shell_.environ["TMPDIR"] = "/somewhere"
    assert await shell_.run("echo $TMPDIR") == f"{shell_.guard.folder}\nexit code 0"
    shell_.rules = ShellRules("off")
    assert await shell_.run("echo $TMPDIR") == "/somewhere\nexit code 0"


def test_no_secret_and_nothing_of_the_chain_is_in_the_environment() -> None:
    environ = {
        "HOME": "/home/me",
        "ANTHROPIC_API_KEY": "1",
        "my_token": "2",
        "DB_PASSWORD": "3",
        "Client_Secret": "4",
        "MY_PLACE": "5",
        "GITHUB_TOKEN": "6",
        "NPM": "7",
        "CHAIN_TRACE": "8",
        "CHAIN_KEY": "9",
        "KEYMAP": "10",
        "OTHER": "11",
        "PGPASSWORD": "12",
        "DATABASE_URL": "postgres://me:13@host/db",
        "OTHER_URL": "postgres://me:14@host/db",
    }
    named = frozenset({"GITHUB_TOKEN", "CHAIN_KEY", "NPM", "OTHER_URL"})
    kept = ShellRules(env=named, secrets=frozenset({"MY_PLACE", "NPM"})).environment(environ)
    assert sorted(kept) == ["GITHUB_TOKEN", "HOME", "KEYMAP", "NPM", "OTHER", "OTHER_URL"]


async def test_a_command_does_not_see_a_secret(shell_: Shell) -> None:
    shell_.environ |= {"ANTHROPIC_API_KEY": "sesame", "PLACE": "open", "CHAIN_DOOR": "sesame"}
    shell_.rules = ShellRules(secrets=frozenset({"PLACE"}))
    said = await shell_.run("env")
    assert "sesame" not in said
    assert "PLACE" not in said


@pytest.mark.parametrize(
    ("command", "result"),
    [
        ("git init -q . && git -c user.name=a -c user.email=a@b.c commit -q --allow-empty", "exit code 1"),
        ('sh -c "$VISUAL a.txt"', "exit code 1"),
        ("eval $KUBE_EDITOR a.txt", "exit code 1"),
        (
            "git init -q . && GIT_EDITOR='echo a >' git -c user.name=a -c user.email=a@b.c commit -q --allow-empty",
            "code 0",
        ),
        ("$PAGER file", "x\nexit code 0"),
        ("printf y | $DELTA_PAGER", "y\nexit code 0"),
    ],
)
async def test_what_would_wait_for_keys_ends_at_once(shell_: Shell, command: str, result: str) -> None:
    shell_.environ |= {"EDITOR": "cat /dev/zero", "KUBE_EDITOR": "cat /dev/zero", "DELTA_PAGER": "less"}
    said = await shell_.run(command)
    assert said.endswith(result)
    assert ("No editor can be opened here: give" in said) == (result == "exit code 1")


# --------------------------------------------------------------------------------------------------------- as a tool


async def test_it_needs_approval_and_bounds_its_time_itself(shell_: Shell) -> None:
    (made,) = Registry.of(shell_tools(shell_.guard, shell_.rules, {}))
    assert (made.name, made.needs_approval, made.read_only, made.timeout_s) == ("shell", True, False, math.inf)
    assert made.input_schema["required"] == ["command"]
    assert set(made.input_schema["properties"]) == {"command", "timeout_s", "workdir", "background", "wake"}


async def test_a_failing_command_is_no_error_result(shell_: Shell) -> None:
    rules = calling.ToolLimits(timeout_s=0.001, result_limit=100)  # the time is the tool's own to bound
    call = ToolCall("t1", "shell", {"command": "seq 1000; false"})
    result = await calling.run(shell_.tool, call, shell_._context(), rules)
    assert not result.is_error
    assert result.text.startswith("1\n2\n")
    assert result.text.endswith("1000\nexit code 1")


def test_off_linux_there_is_no_such_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert shell_tools(Guard(), ShellRules(), {}) == ()


async def test_in_another_folder_it_is_another_command(shell_: Shell) -> None:
    here, there = await shell_.preview("git status"), await shell_.preview("git status", workdir="docs")
    assert (here.subject, there.subject) == ("git status", "cd -- docs || exit; git status")
    for allowance in (
        rule_for_always("shell", here),
        *(parse_allowance(f"shell({text})", {"shell": COMMAND_SUBJECT}) for text in ("git status*", "*")),
    ):
        assert allowance.covers("shell", here.subject)
        assert not allowance.covers("shell", there.subject)
    assert rule_for_always("shell", there).covers("shell", there.subject)


async def test_the_question_says_what_does_not_hold(shell_: Shell) -> None:
    shell_.found = NOTHING
    shown = await shell_.preview("echo hi", workdir="docs")
    assert shown.protections == ()
    head, where, command = shown.text.split("\n")
    assert head.startswith("Not fenced in: a command can write wherever you can")
    assert "a command can use the network" in head
    assert (where, command) == ("in docs:", "$ echo hi")


@needs_writes
async def test_commands_write_in_an_added_directory_and_its_hooks_are_reported(shell_: Shell, tmp_path: Path) -> None:
    lib = tmp_path / "lib"
    (lib / ".git/hooks").mkdir(parents=True)
    assert "denied" in await shell_.run(f"touch {lib}/new")
    with pytest.raises(ToolError, match="absolute path"):
        await shell_.run("pwd", workdir=str(lib))
    shell_.added = (lib,)
    assert (await shell_.run("touch new; pwd", workdir=str(lib))).startswith(f"{lib}\n")
    assert (lib / "new").exists()
    assert f"A command may also write in {lib}" in (await shell_.preview("pwd")).text
    with pytest.raises(ToolError, match="must not contain"):
        await shell_.run("pwd", workdir=f"{lib}/..")
    await shell_.run(f"echo x > {lib}/.git/hooks/pre-commit")
    assert any("lib/.git/hooks/pre-commit" in notice for notice in shell_.notices)


@pytest.mark.parametrize("in_background", [False, True])
@pytest.mark.skipif(not all(probe()[:3]), reason="this machine cannot refuse all of it")
async def test_an_escalated_command_and_a_job_write_in_an_added_directory(
    shell_: Shell, tmp_path: Path, in_background: bool
) -> None:
    lib, jobs, parts = tmp_path / "lib", OneJob(), list[bytes]()
    lib.mkdir()
    shell_.added, shell_.verdict, shell_.jobs = (lib,), Verdict(True, is_once=True, escalation="network"), jobs
    command = f"touch ../beside; cd {lib}; {PROBING.replace('../new', 'new')}"
    said = await shell_.run(command, background=in_background)
    if in_background:
        await jobs.run(parts.append)
        said = b"".join(parts).decode()
    assert "AF_UNIX is refused" in said
    assert (lib / "new").exists()
    assert not (tmp_path / "beside").exists()


@needs_writes
async def test_commands_do_not_write_in_an_added_directory_of_what_is_protected(shell_: Shell, tmp_path: Path) -> None:
    (tmp_path / "packages/one").mkdir(parents=True)
    shell_.rules = ShellRules(protected=Protected((tmp_path / "packages",)))
    shell_.added = (tmp_path / "packages/one",)
    assert "denied" in await shell_.run(f"touch {tmp_path}/packages/one/new")
    assert "writes" in (await shell_.preview("pwd")).protections
    assert (await shell_.run("pwd", workdir=str(tmp_path / "packages/one"))).startswith(f"{tmp_path}/packages/one\n")


@pytest.mark.parametrize("sandbox", ["auto", "off"])
async def test_what_a_job_changes_is_said_while_it_runs(
    shell_: Shell, sandbox: Literal["auto", "off"], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "INSPECTION_PERIOD_S", 0.01)
    shell_.rules = dataclasses.replace(shell_.rules, sandbox=sandbox)
    jobs = StartedJobs()
    has_begun = trio.Event()
    command = "echo; until [ -e go ]; do sleep 0.01; done; echo x > AGENTS.md; sleep 1000"
    await shell_.tool.run(dataclasses.replace(shell_._context(), jobs=jobs), {"command": command, "background": True})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(jobs.started[0], lambda chunk: has_begun.set())
        await has_begun.wait()
        assert shell_.notices == []
        (shell_.workspace / "go").touch()
        await until_async(lambda: shell_.notices)
        nursery.cancel_scope.cancel()
    assert {notice.split(":")[0] for notice in shell_.notices} == {"A command changed AGENTS.md"}


async def test_a_job_that_cannot_start_says_why(shell_: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = StartedJobs()
    await shell_.tool.run(dataclasses.replace(shell_._context(), jobs=jobs), {"command": "true", "background": True})

    async def fail(*_: object, **__: object) -> None:
        raise ToolError("The command cannot be started: for a reason.")

    monkeypatch.setattr(shell_.guard, "run", fail)
    with pytest.raises(ToolError, match="for a reason"):
        await jobs.started[0](lambda chunk: None)
