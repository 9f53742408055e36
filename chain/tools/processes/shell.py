"""The tool that runs commands: ``shell``.

A command runs under the guard (``guarded``), fenced in as the settings say and this machine allows (``sandbox``).
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
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath
from typing import NamedTuple

import trio

from chain.concurrency.signal import Signal
from chain.concurrency.threads import Threads
from chain.errors import ToolError, UserError
from chain.text.wording import beginning, counted, first_of
from chain.tools.lookalikes import spelled_out
from chain.tools.paths import as_text, existing
from chain.tools.processes.environment import unattended
from chain.tools.processes.fence import Fence
from chain.tools.processes.guarded import Ended, Guard
from chain.tools.processes.output import Output
from chain.tools.processes.probe import Protections
from chain.tools.processes.sandbox import Sandbox, ShellRules
from chain.tools.protected import changed_files
from chain.tools.seen import digest
from chain.tools.tool import UNASKED, JobEnd, Preview, Subject, Tool, ToolContext, ToolOutput, tool

COMMAND_TIMEOUT_S = 120.0
"""Seconds that a command has unless the model asks for others."""

MAX_TIMEOUT_S = 3_600.0
"""Seconds that the model may ask for: who waits for longer has been forgotten."""

MAX_COMMAND = 131_071
"""Bytes of one argument of a program that Linux accepts (MAX_ARG_STRLEN, less the NUL at its end)."""

PROGRESS_S = 0.1
"""Seconds between two reports of output: a flood would drown the terminal and every other task."""

INSPECTION_S = 1.0
"""Seconds for each inspection of what is protected, before and after a command."""

LONGEST_ROW = 400
"""Characters of the last row of the output that the summary of a result has: more than people see of it."""

JOB_OUTPUT = 20_000
"""Bytes of the end of a job's output that are searched for what the sandbox refused: a job may write for hours."""

MAX_FILES = 3
"""Files that a notice names: a new repository has a dozen examples of hooks."""

_THREADS = Threads("shell")

_TAKEN_APART = re.compile(r"[;|&<>$`\r\n]")
"""What ends a command or puts another one, a file or a variable into it."""


class _CommandSubject(Subject):
    """Commands. A pattern never matches one that the shell takes apart: nobody means ``git status; rm -r .``."""

    plural = "commands"

    def pattern(self, text: str) -> str:
        if _TAKEN_APART.search(text):
            never = "a pattern never matches a command with ; | & < > $ ` or a line break"
            raise UserError(f"{never}; plain shell allows all")
        return text

    def matches(self, pattern: str, subject: str) -> bool:
        return not _TAKEN_APART.search(subject) and super().matches(pattern, subject)

    def note(self, pattern: str | None) -> str:
        return "" if pattern is None else ", but none with ; | & < > $ ` or a line break"


COMMAND_SUBJECT = _CommandSubject()


def shell_tools(
    guard: Guard, rules: ShellRules, environ: Mapping[str, str], found: Protections | None = None
) -> tuple[Tool, ...]:
    """The tool ``shell``, or nothing on other systems than Linux, which have no guard.

    Commands get ``environ`` but for the secrets. ``found`` is what the machine can refuse to a command; without it the
    machine is probed when that is first asked for.
    """
    if sys.platform != "linux":
        return ()
    shell = _Shell(guard, rules, unattended(rules.environment(environ)), found)
    # Its own limit is a parameter, so the one of all tools is not for it.
    made = tool(
        name="shell",
        kind="execute",
        timeout_s=math.inf,
        needs_approval=True,
        preview=shell.preview,
        subject=COMMAND_SUBJECT,
    )
    return (made(shell.run),)


class _Conditions(NamedTuple):
    """What fences a command in, the folder that it runs in, and what is shown of both."""

    sandbox: Sandbox
    folder: Path
    shown: Preview


@dataclass(frozen=True, slots=True)
class _Shell:
    guard: Guard
    rules: ShellRules
    environ: Mapping[str, str]
    found: Protections | None

    async def preview(
        self,
        ctx: ToolContext,
        command: str,
        timeout_s: float = COMMAND_TIMEOUT_S,
        workdir: str = ".",
        background: bool = False,
        wake: bool = False,
    ) -> Preview | None:
        """What people are asked about; raises ``ToolError`` for what would not be run."""
        how = _how_in_background(timeout_s, wakes=wake) if background or wake else ""
        return (await self._check(ctx, command, timeout_s, workdir, how)).shown

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

        It has no input and ends with bash: nothing that it starts in the background stays. `workdir` is relative to the
        workspace. After `timeout_s` seconds it is stopped. Depending on the user's settings it can write only in the
        workspace and in $TMPDIR, and has no network. If this program itself is in the workspace, nothing can be made,
        moved or removed in the folders above its files, which may be the top of the workspace.

        With `background` it returns `[job J1 started]` at once. The command runs without a time limit until it ends or
        this session does; at most 8 run. A message `[JOB J1] ...` reports its end. With `wake` that message also starts
        a run if none is active. `job_output` and `job_kill` read its output and end it.
        """
        how = _how_in_background(timeout_s, wakes=wake) if background or wake else ""
        now = await self._check(ctx, command, timeout_s, workdir, how)
        if ctx.approved is not UNASKED and ctx.approved != now.shown:
            raise ToolError("The command was not run: it, or its folder, is not what was shown when it was allowed.")
        if how:
            return self._start_job(ctx, command, now, wakes=wake)
        output = Output()
        ended = await _with_reports(output, ctx.progress, partial(self._execute, ctx, command, now, timeout_s))
        # A command of several parts may go well although one of them failed.
        may_have_failed = ended.code != 0 or _TAKEN_APART.search(command)
        refused = now.sandbox.refusal(command, output.text()) if may_have_failed else ""
        if ended.code is None:
            return _result(output, None, "", f"stopped after {timeout_s:g} s, its time limit", refused)
        left = f"{counted(ended.left, 'background process', 'background processes')} ended with the command"
        return _result(output, ended.code, left if ended.left else "", _end(ended.code), refused)

    async def _execute(
        self, ctx: ToolContext, command: str, now: _Conditions, timeout_s: float, on_output: Callable[[bytes], None]
    ) -> Ended:
        """Run a command that was checked, under the guard. Raise ``ToolError`` if it cannot be started."""
        shell = shutil.which("bash", path=self.environ.get("PATH")) or "/bin/sh"
        async with self._watch(ctx, now), self._fence(now) as box:
            return await self.guard.run(
                [shell, "-c", command],
                cwd=now.folder,
                env=self.environ if box is None else {**self.environ, "TMPDIR": str(self.guard.folder)},
                on_output=on_output,
                timeout_s=timeout_s,
                fence=box,
            )

    def _start_job(self, ctx: ToolContext, command: str, now: _Conditions, *, wakes: bool) -> ToolOutput:
        end = b""

        async def run(on_output: Callable[[bytes], None]) -> JobEnd:
            def add(chunk: bytes) -> None:
                nonlocal end
                end = (end + chunk)[-JOB_OUTPUT:]
                on_output(chunk)

            code = (await self._execute(ctx, command, now, math.inf, add)).code
            assert code is not None, "it has no time limit"
            refused = now.sandbox.refusal(command, end.decode(errors="replace")) if code else ""
            return JobEnd(code, _end(code), refused)

        id = ctx.jobs.start(ctx.agent, ctx.call_id, command, run, wakes=wakes)
        return ToolOutput(f"[job {id} started]", summary=(f"job {id} started",))

    async def _check(self, ctx: ToolContext, command: str, timeout_s: float, workdir: str, how: str) -> _Conditions:
        """What it would run with. Raises ``ToolError`` for what is not to be run."""
        if not command.strip():
            raise ToolError("The command is empty.")
        if "\0" in command:
            raise ToolError("The command holds a NUL character, which no program can be given.")
        if (size := len(command.encode())) > MAX_COMMAND:
            raise ToolError(
                f"The command has {size:,} bytes, more than the {MAX_COMMAND:,} that bash can be given; "
                "write it to a file and run that."
            )
        if not 0 < timeout_s <= MAX_TIMEOUT_S:
            raise ToolError(f"timeout_s must be more than 0 and at most {MAX_TIMEOUT_S:,.0f} s, not {timeout_s:g}.")
        box, folder = await _THREADS.run(lambda: self._sandbox(ctx.workspace, workdir), abandon_on_cancel=True)
        if why := box.missing:
            raise ToolError(f"The command was not run: tools.shell.sandbox is {why}.")
        return _Conditions(box, folder, _preview(ctx.workspace, command, timeout_s, workdir, box, folder, how))

    def _sandbox(self, workspace: Path, workdir: str) -> tuple[Sandbox, Path]:
        """What fences a command in, and the real path of the folder that it runs in; called in a thread."""
        folder, rules = existing(workspace, workdir), self.rules
        if not folder.is_dir():
            name = as_text(PurePath(workdir))
            raise ToolError(f"{name} is no folder; workdir is the folder that the command runs in.")
        found = rules.probed() if self.found is None else self.found
        return Sandbox(rules, found, self.guard.places(lambda: rules.places(found, workspace))), folder

    @asynccontextmanager
    async def _watch(self, ctx: ToolContext, now: _Conditions) -> AsyncIterator[None]:
        """Tell people if the block changed what runs or is trusted outside of the sandbox."""
        is_fenced, before, after = "writes" in now.sandbox.held, None, None
        look = partial(self.rules.protected.snapshot, ctx.workspace.absolute(), now.folder, is_fenced=is_fenced)
        with trio.move_on_after(INSPECTION_S):
            before = await _THREADS.run(look, abandon_on_cancel=True)
        try:
            yield
        finally:
            # Also after an interrupt, which must not wait for a disk that hangs.
            with trio.move_on_after(INSPECTION_S if before is not None else 0, shield=True):
                after = await _THREADS.run(partial(look, before or ()), abandon_on_cancel=True)
            if before is None or after is None:
                what = "changed what git runs, or what chain trusts"
                ctx.notice(f"Whether a command {what}, could not be inspected within {INSPECTION_S:g} s.")
            elif files := changed_files(before, after):
                ctx.notice(_changed(files, ctx.workspace))

    @asynccontextmanager
    async def _fence(self, now: _Conditions) -> AsyncIterator[Fence | None]:
        """The fence of a command: all that is wanted and can be had. Raises ``ToolError``."""
        box, places = now.sandbox.fence, now.sandbox.places
        if box is None or places is None:
            yield box
            return
        temporary = await self.guard.start()
        try:
            writable = await _THREADS.run(lambda: places.rules(temporary, signals=box.signals))
        except OSError as error:
            raise ToolError(f"The command was not run: what it may write cannot be said: {error.strerror}.") from None
        try:
            yield box._replace(writable=writable)
        finally:
            os.close(writable)


def _preview(
    workspace: Path, command: str, timeout_s: float, workdir: str, box: Sandbox, folder: Path, how: str
) -> Preview:
    elsewhere = as_text(PurePath(workdir)) if PurePath(workdir) != PurePath() else ""
    conditions = [f"in {spelled_out(elsewhere)}"] if elsewhere else []
    conditions += [f"for at most {timeout_s:g} s"] if timeout_s != COMMAND_TIMEOUT_S else []
    # Before the command, each row of which then has a sign: it could begin and end in rows that look the same.
    gaps = box.gaps
    head = [f"Not fenced in: {', '.join(gaps)}."] if gaps else []
    head += [f"{sentence}." for sentence in (box.also_written(workspace), box.closed(workspace)) if sentence]
    head += [how] if how else []
    head += [f"{', '.join(conditions)}:"] if conditions else []
    first, *more = spelled_out(command).split("\n")
    rows = [f"$ {first}", *(f"> {row}" for row in more)] if head or more else [first]
    # In another folder the same words run other things, so that is another command, which no pattern matches.
    subject = f"cd -- {shlex.quote(elsewhere)} || exit; {command}" if elsewhere else command
    start = digest(json.dumps([command, str(folder), *([how] if how else [])]).encode())
    return Preview("\n".join([*head, *rows]), subject, start, "subject", box.held)


def _changed(files: Sequence[str], workspace: Path) -> str:
    named = first_of([as_text(PurePath(os.path.relpath(file, workspace))) for file in files], MAX_FILES)
    return f"A command changed {named}: what is there runs or is trusted outside of the sandbox."


def _how_in_background(timeout_s: float, *, wakes: bool) -> str:
    """The sentence that a question about a job begins with. Raises ``ToolError`` if the job has a time limit."""
    if timeout_s != COMMAND_TIMEOUT_S:
        raise ToolError("A command in the background has no time limit: leave timeout_s out, and end it with job_kill.")
    return "In the background until it ends; its end wakes the model." if wakes else "In the background until it ends."


async def _with_reports(
    output: Output,
    report: Callable[[str], None],
    run: Callable[[Callable[[bytes], None]], Awaitable[Ended]],
) -> Ended:
    """Run a command and report what it writes: the first rows at once, then in portions, and the rest in the end."""
    has_more = Signal()

    def add(chunk: bytes) -> None:
        output.add(chunk)
        has_more.set()

    async def relay() -> None:
        while True:
            await has_more.wait()
            while output.has_unseen:
                if text := output.unseen():
                    report(text)
                await trio.sleep(PROGRESS_S)

    failure: ToolError | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(relay)
        try:
            ended = await run(add)
        except ToolError as error:
            failure = error  # raised below, where no nursery makes a group of it
        nursery.cancel_scope.cancel()
    output.end()
    for _ in range(2):  # whole rows, and then what is left of one
        if text := output.unseen():
            report(text)
    if failure is not None:
        raise failure
    return ended


def _result(output: Output, code: int | None, left: str, end: str, refused: str) -> ToolOutput:
    """The result of a command; an error for one that was stopped, which has no exit code."""
    text = output.text()
    rows = [text.removesuffix("\n")] if text else []
    whole = "\n".join([*rows, *filter(None, [output.note, left, end, refused])])
    last = beginning(text.rstrip().rpartition("\n")[2].strip(), LONGEST_ROW)
    short = end if code is None or code < 0 else f"exit {code}" if code else ""
    summary = (short, refused, left, last)
    return ToolOutput(whole, is_error=code is None, exit_code=code, summary=tuple(part for part in summary if part))


def _end(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
