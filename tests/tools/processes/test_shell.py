"""The tool ``shell``: its results, its previews, and the commands that it refuses."""

from __future__ import annotations

import dataclasses
import math
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
import trio
import trio.testing
from support.fences import needs
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
from chain.tools.tool import UNASKED, FunctionTool, JobRun, Jobs, Preview, ToolContext, ToolOutput, Verdict

LEFT_ONE = "1 background process ended with the command"
LEFT_TWO = "2 background processes ended with the command"
NOTHING, ALL = Protections(), Protections(*(True for _ in Protections._fields))


class StartedJobs(Jobs):
    """Jobs that the test runs itself."""

    def __init__(self) -> None:
        self.started: list[JobRun] = []

    def start(self, agent: str, call_id: str, command: str, run: JobRun, *, wakes: bool) -> str:
        self.started.append(run)
        return "J1"


class Shell:
    """The tool in a workspace, with the rules and the machine of a test."""

    def __init__(self, workspace: Path, guard: Guard) -> None:
        self.workspace, self.guard = workspace, guard
        self.reports: list[str] = []
        self.notices: list[str] = []
        self.rules = ShellRules()
        self.found: Protections | None = None
        self.environ = dict(os.environ)
        self.approved: Preview | None = UNASKED
        self.verdict: Verdict | None = None
        self.added: tuple[Path, ...] = ()
        self.jobs = StartedJobs()

    @property
    def tool(self) -> FunctionTool:
        (made,) = shell_tools(self.guard, self.rules, self.environ, self.found)
        assert isinstance(made, FunctionTool)
        return made

    @property
    def context(self) -> ToolContext:
        context = ToolContext(self.workspace, Plan(), "call_1", Steered(), self.reports.append, approved=self.approved)
        return dataclasses.replace(
            context, notice=self.notices.append, verdict=self.verdict, added_directories=self.added, jobs=self.jobs
        )

    async def run(self, command: str, **input: Any) -> str:
        return (await self.output(command, **input)).text

    async def output(self, command: str, **input: Any) -> ToolOutput:
        output = await self.tool.run(self.context, {"command": command, **input})
        assert isinstance(output, ToolOutput)
        return output

    async def preview(self, command: str, **input: Any) -> Preview:
        call = ToolCall("t1", "shell", {"command": command, **input})
        preview = await calling.preview(self.tool, call, self.context, calling.ToolLimits())
        assert preview is not None
        return preview


@pytest.fixture
def shell_(tmp_path: Path, guard: Guard) -> Shell:
    (tmp_path / "work/docs").mkdir(parents=True)
    (tmp_path / "work/file").write_text("x\n")
    return Shell(tmp_path / "work", guard)


# ------------------------------------------------------------------------------------------------------------ results


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize(
    ("command", "code", "text", "summary"),
    [
        ("echo hi; echo there >&2", 0, "hi\nthere\nexit code 0", ("there",)),
        ("printf hi; exit 3", 3, "hi\nexit code 3", ("exit 3", "hi")),
        ("true", 0, "exit code 0", ()),
        ("read x || echo no input", 0, "no input\nexit code 0", ("no input",)),
        ("[[ a == a ]] && echo bash", 0, "bash\nexit code 0", ("bash",)),
        ("printf 'a\\xffb\\n\\n'", 0, "a\ufffdb\n\nexit code 0", ("a\ufffdb",)),
        ("echo hi; kill -9 0", -9, "hi\nkilled by SIGKILL", ("killed by SIGKILL", "hi")),
        ("sleep 1000 & echo hi", 0, f"hi\n{LEFT_ONE}\nexit code 0", (LEFT_ONE, "hi")),
        ("sleep 1000 & setsid sleep 1000 & exit 3", 3, f"{LEFT_TWO}\nexit code 3", ("exit 3", LEFT_TWO)),
        ("sleep 1000 & kill -9 $$", -9, f"{LEFT_ONE}\nkilled by SIGKILL", ("killed by SIGKILL", LEFT_ONE)),
        ("true & true & wait", 0, "exit code 0", ()),
    ],
)
@pytest.mark.parametrize("found", [None, NOTHING], ids=["probed", "no namespace"])
async def test_a_result_has_output_and_ending(
    shell_: Shell, command: str, code: int, text: str, summary: tuple[str, ...], found: Protections | None
) -> None:
    shell_.found = found
    assert await shell_.output(command) == ToolOutput(text, exit_code=code, summary=summary)


async def test_a_timeout_is_an_error_with_output(shell_: Shell, mock_clock: trio.testing.MockClock) -> None:
    context = dataclasses.replace(shell_.context, report=lambda text: mock_clock.jump(60))
    output = await shell_.tool.run(context, {"command": "echo begun; sleep 1000", "timeout_s": 60})
    end = "stopped after 60 s, its time limit"
    assert output == ToolOutput(f"begun\n{end}", is_error=True, summary=(end, "begun"))


async def test_output_is_reported_while_the_command_runs(shell_: Shell) -> None:
    os.mkfifo(shell_.workspace / "go")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shell_.run, "echo one; read x < go; echo two; printf th; printf ree")
        await until_async(lambda: shell_.reports == ["one\n"])
        await trio.to_thread.run_sync((shell_.workspace / "go").write_text, "\n")
    assert "".join(shell_.reports) == "one\ntwo\nthree"


async def test_a_flood_is_shortened_in_result_and_reports(shell_: Shell) -> None:
    result = await shell_.run("head -c 5000000 /dev/zero | tr '\\0' '\\n' && echo the end")
    assert len(result) < 2_100_000
    assert "[3,000,008 of 5,000,008 characters left out]" in result
    assert result.endswith(
        "the end\nThe output had 5,000,008 characters; 3,000,008 of them were not stored.\nexit code 0"
    )
    assert sum(map(len, shell_.reports)) < 1_000_000
    assert shell_.reports[-1].endswith("the end\n")


async def test_a_command_may_have_131071_bytes(shell_: Shell) -> None:
    longest = "true ".ljust(shell.MAX_COMMAND, "x")
    assert await shell_.run(longest) == "exit code 0"
    with pytest.raises(ToolError, match="131,072 bytes, more than the 131,071"):
        await shell_.run(f"{longest}x")


async def test_sh_replaces_a_missing_bash(shell_: Shell) -> None:
    shell_.environ["PATH"] = ""
    assert await shell_.run('test -z "$BASH_VERSION" && echo $((1 + 1)) $0') == "2 /bin/sh\nexit code 0"


COMMIT = "git init -q . && {} git -c user.name=a -c user.email=a@b.c commit -q --allow-empty"


@pytest.mark.parametrize(
    ("command", "result"),
    [
        (COMMIT.format(""), "exit code 1"),
        ('sh -c "$VISUAL a.txt"', "exit code 1"),
        ("eval $KUBE_EDITOR a.txt", "exit code 1"),
        (COMMIT.format("GIT_EDITOR='echo a >'"), "code 0"),
        ("$PAGER file", "x\nexit code 0"),
        ("printf y | $DELTA_PAGER", "y\nexit code 0"),
    ],
)
async def test_editors_fail_and_pagers_print_at_once(shell_: Shell, command: str, result: str) -> None:
    shell_.environ |= {"EDITOR": "cat /dev/zero", "KUBE_EDITOR": "cat /dev/zero", "DELTA_PAGER": "less"}
    said = await shell_.run(command)
    assert said.endswith(result)
    assert ("No editor can be opened here: give" in said) == (result == "exit code 1")


async def test_the_environment_has_no_secrets(shell_: Shell) -> None:
    shell_.environ |= {"ANTHROPIC_API_KEY": "sesame", "PLACE": "sesame", "CHAIN_DOOR": "sesame", "TMPDIR": "/somewhere"}
    shell_.rules = ShellRules(secrets=frozenset({"PLACE"}))
    said = await shell_.run("env")
    assert "sesame" not in said
    assert f"\nTMPDIR={shell_.guard.folder}\n" in f"\n{said}\n"
    shell_.rules = ShellRules("off")
    assert await shell_.run("echo $TMPDIR") == "/somewhere\nexit code 0"


# ----------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"command": " \n"}, "The command is empty"),
        ({"command": "echo \0"}, "NUL"),
        ({"command": "echo \ud800"}, "does not fit its schema"),
        ({"timeout_s": 0}, "timeout_s must be more than 0"),
        ({"timeout_s": -1}, "timeout_s must be more than 0"),
        ({"timeout_s": 3_601}, "at most 3,600 s, not 3601"),
        ({"workdir": "dogs"}, "There is no dogs; did you mean docs?"),
        ({"workdir": "file"}, "file is not a folder"),
        ({"workdir": ".."}, "must not contain .."),
        ({"workdir": "/tmp"}, "absolute path"),
        ({"workdir": "out"}, "leads out of the workspace"),
        ({"cwd": "docs"}, "does not fit its schema"),
        ({"timeout_s": 5, "background": True}, "has no time limit: leave timeout_s out"),
    ],
)
async def test_a_refused_command_does_not_run(shell_: Shell, changes: dict[str, Any], says: str) -> None:
    (shell_.workspace / "out").symlink_to("..")
    for act in (shell_.run, shell_.preview):
        with pytest.raises(ToolError) as caught:
            await act(**{"command": "touch was-here", **changes})
        assert says in str(caught.value)
        assert "\n" not in str(caught.value)
    assert not (shell_.workspace / "was-here").exists()


async def test_strict_refuses_commands_without_all_protections(shell_: Shell) -> None:
    shell_.rules, shell_.found = ShellRules("strict"), ALL._replace(signals=False)
    for act in (shell_.preview, shell_.run):
        with pytest.raises(ToolError, match=r"tools\.shell\.sandbox is strict.*\(signals\).* to auto"):
            await act("touch was-here")
    assert not (shell_.workspace / "was-here").exists()


async def test_only_the_approved_command_runs(shell_: Shell) -> None:
    shell_.approved = await shell_.preview("echo hi")
    assert await shell_.run("echo hi") == "hi\nexit code 0"
    for command, input in [("echo ho", {}), ("echo hi", {"workdir": "docs"})]:
        with pytest.raises(ToolError, match="has changed since it was approved"):
            await shell_.run(command, **input)
    shell_.found = NOTHING
    with pytest.raises(ToolError, match="has changed since it was approved"):
        await shell_.run("echo hi")


# ----------------------------------------------------------------------------------------------------------- previews


async def test_a_preview_names_command_folder_and_time(shell_: Shell) -> None:
    shell_.found = ALL
    preview = await shell_.preview("git status\n# more")
    assert (preview.text, preview.subject, preview.always) == (
        "$ git status\n> # more",
        "git status\n# more",
        "subject",
    )
    assert (await shell_.preview("git status")).text == "git status"
    assert (await shell_.preview("ls", workdir="./docs", timeout_s=300)).text == "in docs, for at most 300 s:\n$ ls"


async def test_a_preview_names_missing_protections(shell_: Shell) -> None:
    shell_.found = NOTHING
    preview = await shell_.preview("echo hi", workdir="docs")
    assert preview.protections == ()
    head, *rest = preview.text.split("\n")
    assert head.startswith("Not fenced in: a command can write wherever you can")
    assert "a command can use the network" in head
    assert rest == ["in docs:", "$ echo hi"]


async def test_no_two_calls_have_the_same_preview(shell_: Shell) -> None:
    shell_.found = ALL
    commands = ["in docs:\nrm -rf *", "in docs:\n$ rm -rf *", "\u0456n docs:\nrm -rf *", "$ in docs:\n> rm -rf *"]
    commands += ["ls\nrm -rf *", "ls\n> rm -rf *", "$ ls\n> rm -rf *"]
    texts = {command: (await shell_.preview(command)).text for command in commands}
    assert len({*texts.values(), (await shell_.preview("rm -rf *", workdir="docs")).text}) == len(commands) + 1
    assert texts["\u0456n docs:\nrm -rf *"] == "$ \\u0456n docs:\n> rm -rf *"


async def test_an_allowance_is_for_one_folder(shell_: Shell) -> None:
    here, there = await shell_.preview("git status"), await shell_.preview("git status", workdir="docs")
    assert (here.subject, there.subject) == ("git status", "cd -- docs || exit; git status")
    allowances = [parse_allowance(f"shell({text})", {"shell": COMMAND_SUBJECT}) for text in ("git status*", "*")]
    for allowance in (rule_for_always("shell", here), *allowances):
        assert allowance.covers("shell", here.subject)
        assert not allowance.covers("shell", there.subject)
    assert rule_for_always("shell", there).covers("shell", there.subject)
    digests = {here.digest, there.digest, (await shell_.preview("git status -s")).digest}
    assert len(digests) == 3
    assert (await shell_.preview("git status", timeout_s=5)).digest == here.digest


# ------------------------------------------------------------------------------------------- changes of trusted files


@pytest.mark.sampled(every=7)
@pytest.mark.parametrize(
    ("command", "files"),
    [
        ("echo x > .git/hooks/pre-commit; exit 3", ".git/hooks/pre-commit"),
        ("chmod +x .git/hooks/old", ".git/hooks/old"),
        ("rm .git/hooks/old", ".git/hooks/old"),
        ("t=$(stat -c %y .git/config); echo '[x] ' > .git/config; touch -d \"$t\" .git/config", ".git/config"),
        ("cd .git/hooks && touch a b c d", ".git/hooks/a, .git/hooks/b, .git/hooks/c and 1 more"),
        ("echo x > tracked", ".git/hooks/linked, tracked"),
        ("echo x > main/.git/worktrees/docs/commondir", "main/.git/worktrees/docs/commondir"),
        ("echo x > .git/index; cat .git/config .git/hooks/old; mkdir -p sub", ""),
    ],
)
async def test_changes_of_files_that_git_runs_are_reported(shell_: Shell, command: str, files: str) -> None:
    for folder in (".git/hooks", "docs", "main/.git/hooks", "main/.git/worktrees/docs"):
        (shell_.workspace / folder).mkdir(parents=True, exist_ok=True)
    for name, text in {
        ".git/config": "[x]\n\n",
        ".git/hooks/old": "x\n",
        "tracked": "\n",
        "docs/.git": "gitdir: ../main/.git/worktrees/docs\n",
        "main/.git/worktrees/docs/commondir": "../..\n",
    }.items():
        (shell_.workspace / name).write_text(text)
    (shell_.workspace / ".git/hooks/linked").symlink_to("../../tracked")
    await shell_.run(command)
    use = "git or chain uses this outside the sandbox."
    assert shell_.notices == ([f"A command changed {files}: {use}"] if files else [])


async def test_changes_of_an_interrupted_command_are_reported(shell_: Shell) -> None:
    (shell_.workspace / "docs/.git").mkdir()
    os.mkfifo(shell_.workspace / "up")
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            command = "echo x > .git/config; echo > ../up; sleep 1000"
            nursery.start_soon(partial(shell_.run, command, workdir="docs"))
            await trio.to_thread.run_sync((shell_.workspace / "up").read_text)
            scope.cancel()
    assert [notice.split(": ")[0] for notice in shell_.notices] == ["A command changed docs/.git/config"]


@pytest.mark.parametrize("sandbox", ["auto", "off"])
async def test_changes_of_a_running_job_are_reported(
    shell_: Shell, sandbox: Literal["auto", "off"], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "INSPECTION_PERIOD_S", 0.01)
    shell_.rules = ShellRules(sandbox)
    up = trio.Event()
    await shell_.run("echo; until [ -e go ]; do sleep 0.01; done; echo x > AGENTS.md; sleep 1000", background=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shell_.jobs.started[0], lambda chunk: up.set())
        await up.wait()
        assert shell_.notices == []
        (shell_.workspace / "go").touch()
        await until_async(lambda: shell_.notices)
        nursery.cancel_scope.cancel()
    assert {notice.split(":")[0] for notice in shell_.notices} == {"A command changed AGENTS.md"}


# -------------------------------------------------------------------------------------------------------- the sandbox


async def test_a_command_runs_in_its_folder(shell_: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the path of the workspace is relative."""
    assert await shell_.run("pwd", workdir="docs") == f"{shell_.workspace}/docs\nexit code 0"
    assert await shell_.run("pwd") == f"{shell_.workspace}\nexit code 0"
    monkeypatch.chdir(shell_.workspace.parent)
    shell_.workspace = Path("work")
    assert await shell_.run("touch one ../two && ls ..", workdir="docs") == "docs\nfile\ntwo\nexit code 0"


@pytest.mark.parametrize("sandbox", ["auto", "off"])
async def test_a_command_has_the_protections_of_its_preview(shell_: Shell, sandbox: Any, tmp_path: Path) -> None:
    shell_.rules = ShellRules(sandbox, writable=(tmp_path / "more", tmp_path / "not there"))
    (tmp_path / "more").mkdir()
    preview = await shell_.preview("ls")
    held = preview.protections
    assert (f"A command may also write in {tmp_path}/more" in preview.text) == ("writes" in held)
    assert held == (Sandbox(shell_.rules, probe()).active_protections if sandbox == "auto" else ())
    await shell_.run(f"touch inside {tmp_path}/more/new {tmp_path}/outside $TMPDIR/temporary")
    assert (shell_.workspace / "inside").exists()
    assert (tmp_path / "more/new").exists()
    assert (tmp_path / "outside").exists() == ("writes" not in held)
    said = await shell_.run(f"{sys.executable} -c 'import socket; socket.socket()'; kill -0 {os.getpid()}")
    assert ("PermissionError" in said) == ("network" in held)
    assert said.endswith("exit code 0") == ("signals" not in held)


@needs("writes")
async def test_own_files_in_the_workspace_are_protected(shell_: Shell, tmp_path: Path) -> None:
    own = (shell_.workspace / "chain/sessions", tmp_path / "elsewhere")
    own[0].mkdir(parents=True)
    shell_.rules = ShellRules("strict", protected=Protected(own))
    preview = await shell_.preview("ls")
    assert preview.protections[0] == "writes"
    assert preview.text.splitlines()[0] == (
        "A command cannot change chain/sessions, which chain uses outside the sandbox. So it cannot create, move or "
        "delete files directly in the workspace, chain; let it use another folder, or see chain help sandbox."
    )
    assert "exit code 1" in await shell_.run("touch chain/sessions/new || mv chain away || touch new")
    assert await shell_.run("echo x >> file && touch docs/new $TMPDIR/new") == "exit code 0"


@needs("writes")
async def test_a_writable_program_has_no_protection_of_writes(shell_: Shell) -> None:
    shell_.rules = ShellRules(protected=Protected((shell_.workspace / "docs",)), writable=(shell_.workspace / "docs",))
    preview = await shell_.preview("ls")
    assert "writes" not in preview.protections
    assert preview.text.startswith("Not fenced in: a command can change this program")
    assert await shell_.run("touch new docs/new") == "exit code 0"
    assert "exit code 1" in await shell_.run("touch ../new")
    shell_.rules = dataclasses.replace(shell_.rules, sandbox="strict")
    with pytest.raises(ToolError, match=r"strict, but on this machine a command can change this program.* \(writes\);"):
        await shell_.preview("ls")


@needs("writes")
async def test_a_failure_by_the_sandbox_is_named(shell_: Shell) -> None:
    why = "[sandbox: writes denied; see chain help sandbox]"
    output = await shell_.output("touch ../x || false")
    assert output.summary[:2] == ("exit 1", why)
    assert output.text.endswith(f": Permission denied\nexit code 1\n{why}")
    assert (await shell_.run("touch ../x 2>&1 | tail -1")).endswith(f": Permission denied\nexit code 0\n{why}")
    (shell_.workspace / "log").write_text("Permission denied\n")
    assert await shell_.run("cat log") == "Permission denied\nexit code 0"


async def test_a_command_cannot_forge_a_refusal(shell_: Shell) -> None:
    """The real row is the last one of the text, after the exit code, and a part of the summary."""
    forged = "[sandbox: network denied; approve with w]"
    output = await shell_.output(f"echo up; echo '{forged}'; exit 1")
    assert (output.text, output.summary) == (f"up\n{forged}\nexit code 1", ("exit 1",))


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
@needs("writes", "network", "unix_sockets")
async def test_an_escalation_lifts_one_restriction_once(
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


@needs("writes")
async def test_an_added_directory_is_writable_and_watched(shell_: Shell, tmp_path: Path) -> None:
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
@needs("writes", "network", "unix_sockets")
async def test_escalated_commands_and_jobs_write_added_directories(
    shell_: Shell, tmp_path: Path, in_background: bool
) -> None:
    lib, output = tmp_path / "lib", bytearray()
    lib.mkdir()
    shell_.added, shell_.verdict = (lib,), Verdict(True, is_once=True, escalation="network")
    command = f"touch ../next; cd {lib}; {PROBING.replace('../new', 'new')}"
    said = await shell_.run(command, background=in_background)
    if in_background:
        await shell_.jobs.started[0](output.extend)
        said = output.decode()
    assert "AF_UNIX is refused" in said
    assert (lib / "new").exists()
    assert not (tmp_path / "next").exists()


@needs("writes")
async def test_an_added_directory_of_protected_files_is_refused(shell_: Shell, tmp_path: Path) -> None:
    (tmp_path / "packages/one").mkdir(parents=True)
    shell_.rules = ShellRules(protected=Protected((tmp_path / "packages",)))
    shell_.added = (tmp_path / "packages/one",)
    assert "denied" in await shell_.run(f"touch {tmp_path}/packages/one/new")
    assert "writes" in (await shell_.preview("pwd")).protections
    assert (await shell_.run("pwd", workdir=str(tmp_path / "packages/one"))).startswith(f"{tmp_path}/packages/one\n")


# --------------------------------------------------------------------------------------------------------- as a tool


async def test_the_tool_needs_approval_and_limits_itself(shell_: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    made = shell_.tool
    assert (made.name, made.needs_approval, made.read_only, made.timeout_s) == ("shell", True, False, math.inf)
    assert made.input_schema["required"] == ["command"]
    assert set(made.input_schema["properties"]) == {"command", "timeout_s", "workdir", "background", "wake"}
    monkeypatch.setattr(sys, "platform", "darwin")
    assert shell_tools(shell_.guard, ShellRules(), {}) == ()


async def test_a_job_that_cannot_start_is_an_error(shell_: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    await shell_.run("true", background=True)

    async def fail(*_: object, **__: object) -> None:
        raise ToolError("The command cannot be started: for a reason.")

    monkeypatch.setattr(shell_.guard, "run", fail)
    with pytest.raises(ToolError, match="for a reason"):
        await shell_.jobs.started[0](lambda chunk: None)
