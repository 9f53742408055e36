"""The tool that runs commands: ``shell``.

A command runs under the guard (``processes``), fenced in as the settings say and this machine allows (``fence``).
What holds is told before it is allowed: in the preview, which names the protections, and by ``chain check``.
"""

from __future__ import annotations

import hashlib
import json
import math
import shlex
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Literal

import trio

from chain.errors import ToolError
from chain.threads import Threads
from chain.tools import fence
from chain.tools.fence import Fence, Protections
from chain.tools.output import Output
from chain.tools.paths import as_text, existing
from chain.tools.processes import Ended, Guard
from chain.tools.tool import UNASKED, Preview, Tool, ToolContext, tool

TIMEOUT_S = 120.0
"""Seconds that a command has unless the model asks for others."""

MAX_TIMEOUT_S = 3_600.0
"""Seconds that the model may ask for: who waits for longer has been forgotten."""

MAX_COMMAND = 131_071
"""Bytes of one argument of a program that Linux accepts (MAX_ARG_STRLEN, less the NUL at its end)."""

PROGRESS_S = 0.1
"""Seconds between two reports of output: a flood would drown the terminal and every other task."""

_SECRET_ENDS = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD")
_OURS = "CHAIN_"

_THREADS = Threads("shell")

_WITHOUT = {
    "writes": "a command can write wherever you can, and read the keys in this program's environment",
    "network": "a command can use the network",
    "unix_sockets": "a command can have your other programs act for it, by their Unix sockets",
    "signals": "a command can send signals to your other processes",
}
"""What each protection is for, by what holds without it."""


@dataclass(frozen=True, slots=True)
class ShellRules:
    """The settings of the tool. ``secrets`` are the variables that the configuration uses as keys.

    ``env`` are variables that commands get although they are secrets, or are named as if they were. ``writable`` are
    folders and files, besides the workspace and a temporary folder, that a fenced command may write.
    """

    sandbox: Literal["auto", "strict", "off"] = "auto"
    network: bool = False
    env: frozenset[str] = frozenset()
    writable: tuple[Path, ...] = ()
    secrets: frozenset[str] = frozenset()


def shell_tools(
    guard: Guard, rules: ShellRules, environ: Mapping[str, str], found: Protections | None = None
) -> tuple[Tool, ...]:
    """The tool ``shell``, or nothing where there is no guard, which is anywhere but on Linux.

    ``environ`` is what commands get, but for the secrets. ``found`` is what the machine can refuse to a command;
    without it the machine is probed when that is first asked for.
    """
    if sys.platform != "linux":
        return ()
    shell = _Shell(guard, rules, environment(environ, rules), found)
    # Its own limit is a parameter, so the one of all tools is not for it.
    return (tool(name="shell", timeout_s=math.inf, needs_approval=True, preview=shell.preview)(shell.run),)


def protections(rules: ShellRules, found: Protections) -> tuple[str, ...]:
    """The short names of what holds: some of ``writes``, ``network`` and ``signals``.

    Where the network is allowed ``unix_sockets`` stands in its place: no Unix sockets.
    """
    return tuple(name for name in _WITHOUT if name in _wanted(rules) and getattr(found, name))


def gaps(rules: ShellRules, found: Protections) -> tuple[str, ...]:
    """What a command can do, in words: a sentence for each protection that does not hold."""
    held = {*protections(rules, found)}
    if "network" in held:
        held.add("unix_sockets")
    return tuple(sentence for name, sentence in _WITHOUT.items() if name not in held)


def missing(rules: ShellRules, found: Protections) -> str:
    """Why no command is run where the sandbox is strict; empty if commands are."""
    lacking = _wanted(rules) - set(protections(rules, found))
    if rules.sandbox != "strict" or not lacking:
        return ""
    lacks = ", and ".join(f"{_WITHOUT[name]} ({name})" for name in _WITHOUT if name in lacking)
    return f"tools.shell.sandbox is strict, but on this machine {lacks}; set it to auto to use what there is"


def environment(environ: Mapping[str, str], rules: ShellRules) -> dict[str, str]:
    """The variables that a command gets: none of the chain's own, and no secrets but those that are named."""

    def passes(name: str) -> bool:
        if name.upper().startswith(_OURS):
            return False
        return name in rules.env or not (name in rules.secrets or name.upper().endswith(_SECRET_ENDS))

    return {name: value for name, value in environ.items() if passes(name)}


def _wanted(rules: ShellRules) -> frozenset[str]:
    if rules.sandbox == "off":
        return frozenset()
    return frozenset(_WITHOUT) - {"network" if rules.network else "unix_sockets"}


@dataclass(frozen=True, slots=True)
class _Shell:
    guard: Guard
    rules: ShellRules
    environ: Mapping[str, str]
    found: Protections | None

    async def preview(
        self, ctx: ToolContext, command: str, timeout_s: float = TIMEOUT_S, workdir: str = "."
    ) -> Preview | None:
        """What people are asked about; raises ``ToolError`` for what would not be run."""
        return self._shown(command, timeout_s, workdir, *await self._check(ctx, command, timeout_s, workdir))

    async def run(self, ctx: ToolContext, command: str, timeout_s: float = TIMEOUT_S, workdir: str = ".") -> str:
        """Run a command in bash and return its output (stdout and stderr) and exit code.

        It has no input and ends with bash: nothing that it starts in the background stays. `workdir` is relative to the
        workspace. After `timeout_s` seconds it is stopped. Depending on the user's settings it can write only in the
        workspace and in $TMPDIR, and has no network.
        """
        found, folder = await self._check(ctx, command, timeout_s, workdir)
        if ctx.approved is not UNASKED and ctx.approved != self._shown(command, timeout_s, workdir, found, folder):
            raise ToolError("The command was not run: it, or its folder, is not what was shown when it was allowed.")
        box = self._fence(ctx.workspace, found)
        shell = shutil.which("bash", path=self.environ.get("PATH")) or "/bin/sh"
        output = Output()
        ended = await _with_reports(
            output,
            ctx.progress,
            lambda on_output: self.guard.run(
                [shell, "-c", command],
                cwd=folder,
                env=self.environ if box is None else {**self.environ, "TMPDIR": str(self.guard.folder)},
                on_output=on_output,
                timeout_s=timeout_s,
                fence=box,
            ),
        )
        if ended.code is None:
            raise ToolError(_result(output, f"stopped after {timeout_s:g} s, its time limit"))
        return _result(output, _end(ended.code))

    def _shown(self, command: str, timeout_s: float, workdir: str, found: Protections, folder: Path) -> Preview:
        conditions = [f"in {as_text(PurePath(workdir))}"] if PurePath(workdir) != PurePath() else []
        conditions += [f"for at most {timeout_s:g} s"] if timeout_s != TIMEOUT_S else []
        # Before the command, which could end in rows that look the same.
        open_to = gaps(self.rules, found)
        head = [f"Not fenced in: {', '.join(open_to)}."] if open_to else []
        head += [f"{', '.join(conditions)}:"] if conditions else []
        text = "\n".join([*head, command])
        digest = hashlib.sha256(json.dumps([command, str(folder)]).encode()).hexdigest()
        # In another folder the same words run other things, so that is another command, which no pattern matches.
        folder_text = shlex.quote(as_text(PurePath(workdir)))
        subject = f"cd -- {folder_text} || exit; {command}" if PurePath(workdir) != PurePath() else command
        return Preview(text, subject, digest, "subject", protections(self.rules, found))

    async def _check(self, ctx: ToolContext, command: str, timeout_s: float, workdir: str) -> tuple[Protections, Path]:
        """What the machine can refuse, and the folder to run in. Raises ``ToolError`` for what is not to be run."""
        _check_command(command)
        if not 0 < timeout_s <= MAX_TIMEOUT_S:
            raise ToolError(f"timeout_s must be more than 0 and at most {MAX_TIMEOUT_S:,.0f} s, not {timeout_s:g}.")
        found, folder = await _THREADS.run(
            lambda: (self._probe(), _folder(ctx.workspace, workdir)), abandon_on_cancel=True
        )
        self._check_strict(found)
        return found, folder

    def _probe(self) -> Protections:
        """What the machine can refuse; called in a thread."""
        if self.found is None and self.rules.sandbox != "off":
            return fence.probe()
        return self.found or Protections()

    def _check_strict(self, found: Protections) -> None:
        if why := missing(self.rules, found):
            raise ToolError(f"The command was not run: {why}.")

    def _fence(self, workspace: Path, found: Protections) -> Fence | None:
        """The fence of a command: all that is wanted and can be had."""
        if self.rules.sandbox == "off":
            return None
        held = protections(self.rules, found)
        own = [workspace, self.guard.folder, *self.rules.writable]
        writable = [*(str(each.absolute()) for each in own), *fence.DEVICES]
        return Fence(
            writable=writable if "writes" in held else None,
            network="network" in held,
            unix_sockets="unix_sockets" in held,
            signals="signals" in held,
            # A user namespace shows root's files as nobody's, and ssh does not trust such a configuration.
            namespace=found.namespace and not self.rules.network,
        )


def _check_command(command: str) -> None:
    if not command.strip():
        raise ToolError("The command is empty.")
    if "\0" in command:
        raise ToolError("The command holds a NUL character, which no program can be given.")
    size = len(command.encode())
    if size > MAX_COMMAND:
        raise ToolError(
            f"The command has {size:,} bytes, more than the {MAX_COMMAND:,} that bash can be given; "
            "write it to a file and run that."
        )


def _folder(workspace: Path, workdir: str) -> Path:
    """The real path of the folder to run in. Raises ``ToolError``."""
    folder = existing(workspace, workdir)
    if not folder.is_dir():
        raise ToolError(f"{as_text(PurePath(workdir))} is no folder; workdir is the folder that the command runs in.")
    return folder


async def _with_reports(
    output: Output,
    report: Callable[[str], None],
    run: Callable[[Callable[[bytes], None]], Awaitable[Ended]],
) -> Ended:
    """Run a command and report what it writes: the first at once, then in portions, and the rest in the end."""
    has_more = trio.Event()

    def add(chunk: bytes) -> None:
        output.add(chunk)
        has_more.set()

    async def relay() -> None:
        nonlocal has_more
        while True:
            await has_more.wait()
            has_more = trio.Event()
            while text := output.unseen():
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


def _result(output: Output, end: str) -> str:
    text = output.text()
    rows = [text.removesuffix("\n")] if text else []
    return "\n".join([*rows, *([output.note] if output.note else []), end])


def _end(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
