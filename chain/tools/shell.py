"""The tool that runs commands: ``shell``.

A command runs under the guard (``processes``), fenced in as the settings say and this machine allows (``fence``).
What holds is told before it is allowed: in the preview, which names the protections, and by ``chain check``.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Literal, NamedTuple

import trio

from chain.errors import ToolError, UserError
from chain.signal import Signal
from chain.threads import Threads
from chain.tools import fence
from chain.tools.fence import Fence, Protections
from chain.tools.lookalikes import spelled_out
from chain.tools.output import Output
from chain.tools.own import changed, git_state
from chain.tools.paths import as_text, existing
from chain.tools.places import Places, own_places
from chain.tools.processes import Ended, Guard
from chain.tools.secrets import is_secret
from chain.tools.tool import UNASKED, Preview, Subject, Tool, ToolContext, tool

TIMEOUT_S = 120.0
"""Seconds that a command has unless the model asks for others."""

MAX_TIMEOUT_S = 3_600.0
"""Seconds that the model may ask for: who waits for longer has been forgotten."""

MAX_COMMAND = 131_071
"""Bytes of one argument of a program that Linux accepts (MAX_ARG_STRLEN, less the NUL at its end)."""

PROGRESS_S = 0.1
"""Seconds between two reports of output: a flood would drown the terminal and every other task."""

GIT_S = 1.0
"""Seconds for a look at a repository after a command."""

MAX_FILES = 3
"""Hooks that a notice names: a new repository has a dozen examples."""

_OURS = "CHAIN_"

_MAX_NAMED = 3
"""Places of this program that a question names."""

_THREADS = Threads("shell")

_TAKEN_APART = re.compile(r"[;|&<>$`\r\n]")
"""What ends a command or puts another one, a file or a variable into it."""

_WITHOUT = {
    "writes": "a command can write wherever you can, and read the keys in this program's environment",
    "network": "a command can use the network",
    "unix_sockets": "a command can have your other programs act for it, by their Unix sockets",
    "signals": "a command can send signals to your other processes, and set their limits and priorities",
    "devices": "a command can use your terminals and other devices, and so read what you type",
}
"""What each protection is for, by what holds without it."""

_EXPOSED = "a command can change this program, which is in a folder that it may write, and so do all that you can"
"""What holds without ``writes`` on a machine that could refuse them."""


class _Commands(Subject):
    """Commands, of which a pattern never matches one that the shell would take apart.

    With ``git status*`` nobody means ``git status; rm -r .``.
    """

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


COMMANDS = _Commands()


@dataclass(frozen=True, slots=True)
class ShellRules:
    """The settings of the tool. ``secrets`` are the variables that the configuration uses as keys.

    ``env`` are variables that commands get although they are secrets, or look like secrets. ``writable`` are folders
    and files, besides the workspace and a temporary folder, that a fenced command may write. ``own`` are the folders of
    this program's files that it may not write wherever they are, besides those of the program itself.
    """

    sandbox: Literal["auto", "strict", "off"] = "auto"
    network: bool = False
    env: frozenset[str] = frozenset()
    writable: tuple[Path, ...] = ()
    secrets: frozenset[str] = frozenset()
    own: tuple[Path, ...] = ()


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
    made = tool(
        name="shell",
        kind="execute",
        timeout_s=math.inf,
        needs_approval=True,
        preview=shell.preview,
        subject=COMMANDS,
    )
    return (made(shell.run),)


def protections(rules: ShellRules, found: Protections, places: Places | None = None) -> tuple[str, ...]:
    """The short names of what holds: some of ``writes``, ``network``, ``signals`` and ``devices``.

    Where the network is allowed ``unix_sockets`` stands in its place: no Unix sockets. ``places`` are those that a
    command may write, if writes are refused elsewhere.
    """
    claimed = found._replace(writes=False) if places is not None and places.is_exposed else found
    return tuple(name for name in _WITHOUT if name in _wanted(rules) and getattr(claimed, name))


def gaps(rules: ShellRules, found: Protections, places: Places | None = None) -> tuple[str, ...]:
    """What a command can do, in words: a sentence for each protection that does not hold."""
    held = {*protections(rules, found, places)}
    if "network" in held:
        held.add("unix_sockets")
    return tuple(sentence for name, sentence in _sentences(places).items() if name not in held)


def missing(rules: ShellRules, found: Protections, places: Places | None = None) -> str:
    """Why no command is run where the sandbox is strict; empty if commands are."""
    lacking = _wanted(rules) - set(protections(rules, found, places))
    if rules.sandbox != "strict" or not lacking:
        return ""
    lacks = ", and ".join(f"{sentence} ({name})" for name, sentence in _sentences(places).items() if name in lacking)
    return f"tools.shell.sandbox is strict, but on this machine {lacks}; set it to auto to use what there is"


def _sentences(places: Places | None) -> dict[str, str]:
    return _WITHOUT | ({"writes": _EXPOSED} if places is not None and places.is_exposed else {})


def closed(workspace: Path, places: Places | None) -> str:
    """What a command cannot change although it may write around it, in a sentence; empty if there is nothing."""
    if places is None or not places.closed:
        return ""
    needed, folders = (_named(each, workspace.resolve()) for each in (places.kept or places.closed, places.closed))
    return (
        f"This program needs {needed}, which a command cannot change, so it makes, moves and removes nothing "
        f"directly in {folders}"
    )


def _named(paths: Sequence[str], root: Path) -> str:
    places = [Path(each) for each in paths[:_MAX_NAMED]]
    names = [as_text(each.relative_to(root) if each.is_relative_to(root) else each) for each in places]
    more = f" and {len(paths) - _MAX_NAMED} more" if len(paths) > _MAX_NAMED else ""
    return ", ".join("the workspace" if each == "." else each for each in names) + more


def open_places(rules: ShellRules, found: Protections, workspace: Path) -> Places | None:
    """What a command may write; ``None``: whatever the user may. It blocks. Raises ``ToolError``."""
    if not found.writes or "writes" not in _wanted(rules):
        return None
    return Places(workspace, rules.writable, own_places(rules.own))


def environment(environ: Mapping[str, str], rules: ShellRules) -> dict[str, str]:
    """The variables that a command gets: none of the chain's own, and no secrets but those that are named."""

    def passes(name: str, value: str) -> bool:
        if name.upper().startswith(_OURS):
            return False
        return name in rules.env or not (name in rules.secrets or is_secret(name, value))

    return {name: value for name, value in environ.items() if passes(name, value)}


def _wanted(rules: ShellRules) -> frozenset[str]:
    if rules.sandbox == "off":
        return frozenset()
    return frozenset(_WITHOUT) - {"network" if rules.network else "unix_sockets"}


class _Conditions(NamedTuple):
    """What a command would run with: what the machine can refuse, what it may write, and the folder to run in."""

    found: Protections
    places: Places | None
    folder: Path


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
        return self._shown(
            ctx.workspace, command, timeout_s, workdir, await self._check(ctx, command, timeout_s, workdir)
        )

    async def run(self, ctx: ToolContext, command: str, timeout_s: float = TIMEOUT_S, workdir: str = ".") -> str:
        """Run a command in bash and return its output (stdout and stderr) and exit code.

        It has no input and ends with bash: nothing that it starts in the background stays. `workdir` is relative to the
        workspace. After `timeout_s` seconds it is stopped. Depending on the user's settings it can write only in the
        workspace and in $TMPDIR, and has no network. If this program itself is in the workspace, nothing can be made,
        moved or removed in the folders above its files, which may be the top of the workspace.
        """
        now = await self._check(ctx, command, timeout_s, workdir)
        shown = self._shown(ctx.workspace, command, timeout_s, workdir, now)
        if ctx.approved is not UNASKED and ctx.approved != shown:
            raise ToolError("The command was not run: it, or its folder, is not what was shown when it was allowed.")
        shell = shutil.which("bash", path=self.environ.get("PATH")) or "/bin/sh"
        output = Output()
        async with _watching_git(ctx, now.folder), self._fence(now) as box:
            ended = await _with_reports(
                output,
                ctx.progress,
                lambda on_output: self.guard.run(
                    [shell, "-c", command],
                    cwd=now.folder,
                    env=self.environ if box is None else {**self.environ, "TMPDIR": str(self.guard.folder)},
                    on_output=on_output,
                    timeout_s=timeout_s,
                    fence=box,
                ),
            )
        if ended.code is None:
            raise ToolError(_result(output, f"stopped after {timeout_s:g} s, its time limit"))
        return _result(output, _end(ended.code))

    def _shown(self, workspace: Path, command: str, timeout_s: float, workdir: str, now: _Conditions) -> Preview:
        conditions = [f"in {spelled_out(as_text(PurePath(workdir)))}"] if PurePath(workdir) != PurePath() else []
        conditions += [f"for at most {timeout_s:g} s"] if timeout_s != TIMEOUT_S else []
        # Before the command, each row of which then has a sign: it could begin and end in rows that look the same.
        open_to, closed_to = gaps(self.rules, now.found, now.places), closed(workspace, now.places)
        head = [f"Not fenced in: {', '.join(open_to)}."] if open_to else []
        head += [f"{closed_to}."] if closed_to else []
        head += [f"{', '.join(conditions)}:"] if conditions else []
        first, *more = spelled_out(command).split("\n")
        rows = [f"$ {first}", *(f"> {row}" for row in more)] if head or more else [first]
        text = "\n".join([*head, *rows])
        digest = hashlib.sha256(json.dumps([command, str(now.folder)]).encode()).hexdigest()
        # In another folder the same words run other things, so that is another command, which no pattern matches.
        folder_text = shlex.quote(as_text(PurePath(workdir)))
        subject = f"cd -- {folder_text} || exit; {command}" if PurePath(workdir) != PurePath() else command
        return Preview(text, subject, digest, "subject", protections(self.rules, now.found, now.places))

    async def _check(self, ctx: ToolContext, command: str, timeout_s: float, workdir: str) -> _Conditions:
        """What it would run with. Raises ``ToolError`` for what is not to be run."""
        _check_command(command)
        if not 0 < timeout_s <= MAX_TIMEOUT_S:
            raise ToolError(f"timeout_s must be more than 0 and at most {MAX_TIMEOUT_S:,.0f} s, not {timeout_s:g}.")
        now = await _THREADS.run(lambda: self._conditions(ctx.workspace, workdir), abandon_on_cancel=True)
        if why := missing(self.rules, now.found, now.places):
            raise ToolError(f"The command was not run: {why}.")
        return now

    def _conditions(self, workspace: Path, workdir: str) -> _Conditions:
        """The same; called in a thread."""
        found = self.found or Protections()
        if self.found is None and self.rules.sandbox != "off":
            found = fence.probe()
        folder = _folder(workspace, workdir)
        return _Conditions(found, self.guard.places(lambda: open_places(self.rules, found, workspace)), folder)

    @asynccontextmanager
    async def _fence(self, now: _Conditions) -> AsyncIterator[Fence | None]:
        """The fence of a command: all that is wanted and can be had. Raises ``ToolError``."""
        if self.rules.sandbox == "off":
            yield None
            return
        held = protections(self.rules, now.found)
        box = Fence(
            network="network" in held,
            unix_sockets="unix_sockets" in held,
            signals="signals" in held,
            # A user namespace shows root's files as nobody's, and ssh does not trust such a configuration.
            namespace=now.found.namespace and not self.rules.network,
            devices=(*fence.DEVICES, *self._writable_devices) if "devices" in held else None,
        )
        if (places := now.places) is None:
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

    @property
    def _writable_devices(self) -> Iterator[str]:
        """The devices among what the user lets commands write."""
        named = (str(each.absolute()) for each in self.rules.writable)
        return (path for path in named if path.startswith("/dev/"))


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


@asynccontextmanager
async def _watching_git(ctx: ToolContext, folder: Path) -> AsyncIterator[None]:
    """Tells people when hooks or the configuration of git are others after the block: no fence holds what these run."""
    folders = (ctx.workspace.absolute(), folder)
    before = await _THREADS.run(lambda: git_state(folders), abandon_on_cancel=True)
    try:
        yield
    finally:
        # Also after an interrupt, which must not wait for a disk that hangs.
        with trio.move_on_after(GIT_S, shield=True):
            after = await _THREADS.run(lambda: git_state(folders, before), abandon_on_cancel=True)
            if files := changed(before, after):
                ctx.notice(_changed_of_git(files, ctx.workspace))


def _changed_of_git(files: Sequence[str], workspace: Path) -> str:
    named = ", ".join(as_text(PurePath(os.path.relpath(file, workspace))) for file in files[:MAX_FILES])
    more = f" and {len(files) - MAX_FILES} more" if len(files) > MAX_FILES else ""
    return f"A command changed {named}{more}: git runs what stands there, outside of any fence."


async def _with_reports(
    output: Output,
    report: Callable[[str], None],
    run: Callable[[Callable[[bytes], None]], Awaitable[Ended]],
) -> Ended:
    """Run a command and report what it writes: the first at once, then in portions, and the rest in the end."""
    has_more = Signal()

    def add(chunk: bytes) -> None:
        output.add(chunk)
        has_more.set()

    async def relay() -> None:
        while True:
            await has_more.wait()
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
