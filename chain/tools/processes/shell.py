"""The tool ``shell``, which runs a command in bash.

A command runs under the guard (``guarded``), in the sandbox that the settings and the machine allow (``sandbox``).
``_preview`` returns the question to the user, and ``_result`` the result for the model.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence, Set
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePath

import trio

from chain.concurrency.nurseries import background_task
from chain.concurrency.threads import Threads
from chain.concurrency.wakeup import Wakeup
from chain.errors import ToolError, UserError
from chain.text.escalations import DENIED_BY_SANDBOX
from chain.text.wording import join_first, pluralize, truncate
from chain.tools.file_versions import digest
from chain.tools.lookalikes import escape_lookalikes
from chain.tools.paths import printable_path, resolve_existing
from chain.tools.processes.environment import unattended_environment
from chain.tools.processes.guarded import ExitStatus, Guard
from chain.tools.processes.output import Output
from chain.tools.processes.probe import Protections
from chain.tools.processes.sandbox import Sandbox, ShellRules
from chain.tools.protected import Snapshot, changed_files, is_in
from chain.tools.tool import UNASKED, JobEnd, Preview, Subject, Tool, ToolContext, ToolOutput, Verdict, tool

COMMAND_TIMEOUT_S = 120.0
"""Seconds that a command may take unless the model asks for another limit."""

MAX_TIMEOUT_S = 3_600.0
"""The longest limit that the model may ask for, in seconds."""

MAX_COMMAND = 131_071
"""Bytes that Linux accepts as one argument of a program: MAX_ARG_STRLEN without the NUL at its end."""

PROGRESS_S = 0.1
"""Seconds between two reports of output: more frequent reports would slow down the terminal and other tasks."""

INSPECTION_S = 1.0
"""The time limit, in seconds, of each search for changed protected files before and after a command."""

INSPECTION_PERIOD_S = 10.0
"""Seconds between two searches for changed protected files while a background job runs, perhaps for hours."""

LONGEST_ROW = 400
"""The most characters of the last row of output in a result's summary: more than front ends show."""

JOB_OUTPUT = 20_000
"""Bytes at the end of a job's output that are searched for refusals of the sandbox: a job may write for hours."""

MAX_FILES = 3
"""The maximum number of files that one notice names."""

_THREADS = Threads("shell")

_COMPOUND = re.compile(r"[;|&<>$`\r\n]")
"""Matches the characters that end a command, or that insert another command, a file or a variable."""


class _CommandSubject(Subject):
    """The text of a command. No pattern of an allowance matches a compound command, such as ``git status; rm -r .``."""

    plural = "commands"

    def normalize_pattern(self, text: str) -> str:
        if _COMPOUND.search(text):
            never = "a pattern never matches a command with ; | & < > $ ` or a line break"
            raise UserError(f"{never}; plain shell allows all")
        return text

    def matches(self, pattern: str, subject: str) -> bool:
        return not _COMPOUND.search(subject) and super().matches(pattern, subject)

    def note(self, pattern: str | None) -> str:
        return "" if pattern is None else ", but none with ; | & < > $ ` or a line break"


COMMAND_SUBJECT = _CommandSubject()


def shell_tools(
    guard: Guard, rules: ShellRules, environ: Mapping[str, str], machine: Protections | None = None
) -> tuple[Tool, ...]:
    """Return the tool ``shell``, or nothing on systems other than Linux, which have no guard.

    Commands get ``environ`` without secrets. ``machine`` are the protections that this machine supports. For ``None``,
    the machine is probed before the first command.
    """
    if sys.platform != "linux":
        return ()
    shell = _Shell(guard, rules, unattended_environment(rules.environment(environ)), machine)
    # The time limit is a parameter, so the limit of other tools does not apply.
    made = tool(
        name="shell",
        kind="execute",
        timeout_s=math.inf,
        needs_approval=True,
        preview=shell.preview,
        subject=COMMAND_SUBJECT,
    )
    return (made(shell.run),)


@dataclass(frozen=True, slots=True)
class _Call:
    """A checked command, with its sandbox, its directory, and the preview for people."""

    sandbox: Sandbox
    folder: Path
    preview: Preview


@dataclass(frozen=True, slots=True)
class _Shell:
    guard: Guard
    rules: ShellRules
    environ: Mapping[str, str]
    machine: Protections | None

    async def preview(
        self, ctx: ToolContext, command: str, timeout_s: float, workdir: str, background: bool, wake: bool
    ) -> Preview | None:
        """Return the preview for the question to the user. Raise ``ToolError`` if the command would be refused."""
        return (await self._check(ctx, command, timeout_s, workdir, background, wake)).preview

    async def run(
        self,
        ctx: ToolContext,
        command: str,
        timeout_s: float = COMMAND_TIMEOUT_S,
        workdir: str = ".",
        background: bool = False,
        wake: bool = False,
    ) -> ToolOutput:
        """Run a command in bash and return its output (stdout and stderr) and exit code.

        The command has no input. When bash ends, everything that it has started in the background is ended too.
        `workdir` is relative to the workspace, or absolute in a directory that the user added. After `timeout_s`
        seconds the command is stopped. Depending on the user's settings it can write only in the workspace, in added
        directories and in $TMPDIR, and has no network. If chain itself is in the workspace, nothing can be made, moved
        or removed in the folders that contain its files. If the result ends with `[sandbox: ... denied; approve with
        KEY]`, the user can allow that when you run the same command again.

        With `background` the tool returns `[job J1 started]` at once. The command runs without a time limit, until it
        or this session ends; at most 8 run. A message `[JOB J1] ...` reports the end. With `wake` that message also
        starts a run if none is active. `job_output` reads the job's output, and `job_kill` ends the job.
        """
        call = await self._check(ctx, command, timeout_s, workdir, background, wake)
        if ctx.approved is not UNASKED and ctx.approved != call.preview:
            raise ToolError("The command was not run: it or its folder has changed since it was approved.")
        verdict = ctx.verdict or Verdict(True)
        call = replace(call, sandbox=call.sandbox.escalated(verdict.escalation))
        if background or wake:
            return self._start_job(ctx, command, call, wakes=wake)
        output = Output()
        status = await _run_with_reports(output, ctx.progress, partial(self._execute, ctx, command, call, timeout_s))
        end = f"stopped after {timeout_s:g} s, its time limit" if status.code is None else _describe_exit(status.code)
        left = f"{pluralize(status.left_running, 'background process', 'background processes')} ended with the command"
        # A command of several parts may succeed although one of them failed.
        may_have_failed = status.code != 0 or _COMPOUND.search(command)
        can_approve = verdict.is_once
        refused = call.sandbox.refusal(command, output.text(), can_approve=can_approve) if may_have_failed else ""
        return _result(output, status.code, left if status.left_running else "", end, refused)

    async def _execute(
        self, ctx: ToolContext, command: str, call: _Call, timeout_s: float, on_output: Callable[[bytes], None]
    ) -> ExitStatus:
        """Run a command, and report its changes to protected files. Raise ``ToolError`` if it cannot be started."""
        shell, fence = shutil.which("bash", path=self.environ.get("PATH")) or "/bin/sh", call.sandbox.fence
        async with self._reporting_changes(ctx, call, is_job=timeout_s == math.inf):
            return await self.guard.run(
                [shell, "-c", command],
                cwd=call.folder,
                env=self.environ if fence is None else {**self.environ, "TMPDIR": str(self.guard.folder)},
                on_output=on_output,
                timeout_s=timeout_s,
                fence=fence,
                paths=call.sandbox.paths,
            )

    def _start_job(self, ctx: ToolContext, command: str, call: _Call, *, wakes: bool) -> ToolOutput:
        end = b""

        async def run(on_output: Callable[[bytes], None]) -> JobEnd:
            def add(chunk: bytes) -> None:
                nonlocal end
                end = (end + chunk)[-JOB_OUTPUT:]
                on_output(chunk)

            code = (await self._execute(ctx, command, call, math.inf, add)).code
            assert code is not None, "it has no time limit"
            refused = call.sandbox.refusal(command, end.decode(errors="replace")) if code else ""
            return JobEnd(code, _describe_exit(code), refused)

        id = ctx.jobs.start(ctx.agent, ctx.call_id, command, run, wakes=wakes)
        return ToolOutput(f"[job {id} started]", summary=(f"job {id} started",))

    async def _check(
        self, ctx: ToolContext, command: str, timeout_s: float, workdir: str, background: bool, wake: bool
    ) -> _Call:
        """Check a call, and return it with its sandbox and preview. Raise ``ToolError`` if the command must not run."""
        job_sentence = _job_sentence(timeout_s, wakes=wake) if background or wake else ""
        if not command.strip():
            raise ToolError("The command is empty.")
        if "\0" in command:
            raise ToolError("The command contains a NUL character, which cannot be passed to a program.")
        if (size := len(command.encode())) > MAX_COMMAND:
            raise ToolError(
                f"The command has {size:,} bytes, more than the {MAX_COMMAND:,} that bash accepts; "
                "write it to a file and run that."
            )
        if not 0 < timeout_s <= MAX_TIMEOUT_S:
            raise ToolError(f"timeout_s must be more than 0 and at most {MAX_TIMEOUT_S:,.0f} s, not {timeout_s:g}.")
        box, folder = await _THREADS.run(lambda: self._sandbox(ctx, workdir), abandon_on_cancel=True)
        if why := box.missing_reason:
            raise ToolError(f"The command was not run: tools.shell.sandbox is {why}.")
        return _Call(box, folder, _preview(ctx.workspace, command, timeout_s, workdir, box, folder, job_sentence))

    def _sandbox(self, ctx: ToolContext, workdir: str) -> tuple[Sandbox, Path]:
        """Return the sandbox of a command, and the real path of its directory. Call it in a thread.

        Raise ``ToolError`` if ``workdir`` is not a directory.
        """
        folder = resolve_existing(ctx.root_of(workdir), workdir)
        rules = replace(self.rules, writable=(*self.rules.writable, *self._writable_directories(ctx)))
        if not folder.is_dir():
            name = printable_path(PurePath(workdir))
            raise ToolError(f"{name} is not a folder; workdir is the folder that the command runs in.")
        machine = rules.probed_protections() if self.machine is None else self.machine
        paths = self.guard.writable_paths(lambda: rules.writable_paths(machine, ctx.workspace), ctx.added_directories)
        return Sandbox(rules, machine, paths), folder

    def _writable_directories(self, ctx: ToolContext) -> list[Path]:
        """Return the added directories that a command may write: those outside protected folders, such as Python's."""
        if not ctx.added_directories:
            return []
        refused = self.rules.protected.refused_places([ctx.workspace])
        return [each for each in ctx.added_directories if not is_in(str(each), refused.places - refused.wide_folders)]

    @asynccontextmanager
    async def _reporting_changes(self, ctx: ToolContext, call: _Call, *, is_job: bool) -> AsyncIterator[None]:
        """Notify people if files that are run or trusted outside the sandbox change during the block.

        With ``is_job``, search for changes at intervals too, not only at the end of the block.
        """
        is_fenced = "writes" in call.sandbox.active_protections
        before: Snapshot | None = None

        def snapshot(earlier: Snapshot | tuple[()] = ()) -> Snapshot:
            protected, workspace = self.rules.protected, ctx.workspace.absolute()
            found = dict(protected.snapshot(workspace, call.folder, earlier, is_fenced=is_fenced))
            for root in ctx.added_directories:
                found.update(protected.snapshot(root, root, earlier, is_fenced=is_fenced))
            return found

        async def changes() -> set[str]:
            after = await _THREADS.run(partial(snapshot, before or ()), abandon_on_cancel=True)
            return {*changed_files(before or {}, after)}

        def report(files: Set[str]) -> None:
            if files:
                ctx.notice(_change_notice(sorted(files), ctx.workspace))

        async def report_first_changes() -> None:
            reported = set[str]()
            while before is not None:
                await trio.sleep(INSPECTION_PERIOD_S)
                with trio.move_on_after(INSPECTION_S):
                    found = await changes()
                    report(found - reported)
                    reported |= found

        with trio.move_on_after(INSPECTION_S):
            before = await _THREADS.run(snapshot, abandon_on_cancel=True)
        try:
            async with background_task(report_first_changes) if is_job else nullcontext():
                yield
        finally:
            # Also after an interrupt, which must not wait for a disk that hangs.
            found: set[str] | None = None
            with trio.move_on_after(INSPECTION_S if before is not None else 0, shield=True):
                found = await changes()
            if before is None or found is None:
                what = "whether a command changed files that git runs or chain trusts"
                ctx.notice(f"Could not check within {INSPECTION_S:g} s {what}.")
            else:
                report(found)


def _preview(
    workspace: Path, command: str, timeout_s: float, workdir: str, box: Sandbox, folder: Path, job_sentence: str
) -> Preview:
    elsewhere = printable_path(PurePath(workdir)) if PurePath(workdir) != PurePath() else ""
    conditions = [f"in {escape_lookalikes(elsewhere)}"] if elsewhere else []
    conditions += [f"for at most {timeout_s:g} s"] if timeout_s != COMMAND_TIMEOUT_S else []
    # If there are rows above the command, its own rows have a prefix. Otherwise it could imitate the rows above.
    gaps = box.gap_sentences
    head = [f"Not fenced in: {', '.join(gaps)}."] if gaps else []
    head += [
        f"{sentence}."
        for sentence in (box.extra_writable_sentence(workspace), box.closed_folders_sentence(workspace))
        if sentence
    ]
    head += [job_sentence] if job_sentence else []
    head += [f"{', '.join(conditions)}:"] if conditions else []
    first, *more = escape_lookalikes(command).split("\n")
    rows = [f"$ {first}", *(f"> {row}" for row in more)] if head or more else [first]
    # In another directory the same text is another command, which must not match the same pattern.
    subject = f"cd -- {shlex.quote(elsewhere)} || exit; {command}" if elsewhere else command
    start = digest(json.dumps([command, str(folder), *([job_sentence] if job_sentence else [])]).encode())
    return Preview(
        "\n".join([*head, *rows]), subject, start, "subject", box.active_protections, escalations=box.escalations
    )


def _change_notice(files: Sequence[str], workspace: Path) -> str:
    named = join_first([printable_path(PurePath(os.path.relpath(file, workspace))) for file in files], MAX_FILES)
    return f"A command changed {named}: git or chain uses this outside the sandbox."


def _job_sentence(timeout_s: float, *, wakes: bool) -> str:
    """Return the first sentence of the question to the user about a background job.

    Raise ``ToolError`` if the model asks for a time limit, which a job cannot have.
    """
    if timeout_s != COMMAND_TIMEOUT_S:
        raise ToolError("A command in the background has no time limit: leave timeout_s out, and end it with job_kill.")
    return "In the background until it ends; its end wakes the model." if wakes else "In the background until it ends."


async def _run_with_reports(
    output: Output, report: Callable[[str], None], run: Callable[..., Awaitable[ExitStatus]]
) -> ExitStatus:
    """Call ``run`` to run a command, and return its exit status. Add its output to ``output``.

    Pass the output to ``report`` too: the first rows at once, later rows at intervals.
    """
    has_more = Wakeup()

    def add(chunk: bytes) -> None:
        output.add(chunk)
        has_more.set()

    async def relay() -> None:
        while True:
            await has_more.wait()
            while output.has_unseen:
                if text := output.take_unseen():
                    report(text)
                await trio.sleep(PROGRESS_S)

    failure: ToolError | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(relay)
        try:
            status = await run(on_output=add)
        except ToolError as error:
            failure = error  # raised below, because the nursery would wrap it in a group
        nursery.cancel_scope.cancel()
    output.end()
    for _ in range(2):  # the whole rows, then a last row without a line end
        if text := output.take_unseen():
            report(text)
    if failure is not None:
        raise failure
    return status


def _result(output: Output, code: int | None, left: str, end: str, refused: str) -> ToolOutput:
    """Return the result of a command. It is an error if ``code`` is ``None``, since the command was stopped then.

    The rows of the tool (``left``, ``end``, ``refused``) follow the output. The summary also has the last row of the
    output, unless this row looks like ``refused``: a command could imitate it to make the user lift a restriction.
    """
    text = output.text()
    rows = [text.removesuffix("\n")] if text else []
    whole = "\n".join([*rows, *filter(None, [output.note, left, end, refused])])
    last = truncate(text.rstrip().rpartition("\n")[2].strip(), LONGEST_ROW)
    short = end if code is None or code < 0 else f"exit {code}" if code else ""
    summary = (short, refused, left, "" if last.startswith(DENIED_BY_SANDBOX) else last)
    return ToolOutput(whole, is_error=code is None, exit_code=code, summary=tuple(part for part in summary if part))


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
