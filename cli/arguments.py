"""Converts parsed arguments to settings, a workspace, a task and scheduled lines. Slow modules are imported late."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chain.config.load import Settings, load_settings
from chain.errors import UserError
from chain.lines.parse import MAX_LINE
from chain.text.modes import Mode, mode_named
from cli.options import resumes

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from cli.headless import HeadlessTask
    from cli.input.moments import ScheduledLine


def one_word(args: argparse.Namespace, name: str) -> str | None:
    """Return a command's argument ``name``; ``None`` if it is missing. Raise ``UserError`` if there are several."""
    if len(args.words) > 1:
        raise UserError(f"chain {args.command} has one argument, {name}; put several words in quotes")
    return args.words[0] if args.words else None


def read_state(args: argparse.Namespace) -> str:
    """Return the address of the Redis that stores the sessions; empty for the state folder.

    Ignore a faulty or untrusted configuration, so that commands for stored sessions work.
    """
    if given := args.state or os.environ.get("CHAIN_STATE", "").strip():
        return str(given)
    try:
        settings = read_settings(args)
    except UserError:
        return ""
    return "" if settings.untrusted_values else settings.state


def is_interactive(args: argparse.Namespace) -> bool:
    """Return whether to show a prompt: input and output are terminals, and no option asks for a run without one."""
    is_text = args.output_format == args.input_format == "text"
    return os.isatty(0) and os.isatty(1) and is_text and not (args.print or args.stdin or args.no_stdin)


def absolute_path(path: str | None) -> Path:
    """Return an absolute path, by default the current folder. Raise ``UserError`` if the current folder was removed."""
    try:
        return Path(path or ".").absolute()
    except FileNotFoundError:
        change = "change to another one, or name a folder with --workspace"
        raise UserError(f"the current folder was removed; {change}") from None


def read_settings(args: argparse.Namespace, cwd: Path | None = None, *, skip_here: bool = False) -> Settings:
    """Return the configuration for ``cwd``, by default the current folder. Raise ``ConfigError`` if it is invalid.

    The ``config.yaml`` in ``cwd`` itself is ignored if ``skip_here``, or if the current folder was removed.
    """
    flags = {name: vars(args)[name] for name in ("model", "chain", "max_iterations", "allow", "state")}
    named = absolute_path(args.config) if args.config else None
    try:
        cwd = cwd or Path.cwd()
    except FileNotFoundError:
        cwd, skip_here = Path("/"), True
    return load_settings(config=named, environ=os.environ, cwd=cwd, flags=flags, skip_here=skip_here)


def read_mode(args: argparse.Namespace) -> Mode | None:
    """Return the mode that ``--mode`` names; ``None`` keeps the session's own mode."""
    return None if args.mode is None else mode_named(args.mode)


def read_add_dirs(args: argparse.Namespace) -> list[str]:
    """Return the directories of ``--add-dir`` as absolute paths."""
    return [str(absolute_path(os.path.expanduser(path))) for path in args.add_dir]


def read_traces(state: Path, *, by_default: bool) -> Path | None:
    """Return the folder of the debug traces; ``None`` if ``$CHAIN_TRACE`` is 0, or unset while not ``by_default``."""
    wanted = os.environ.get("CHAIN_TRACE", "")
    return state / "traces" if (wanted != "0" if wanted else by_default) else None


@dataclass(frozen=True, slots=True)
class Place:
    """A workspace, the id of the session to resume (empty for a new session), and notes for the user on both."""

    workspace: Path
    resume: str = ""
    notes: tuple[str, ...] = ()


def read_place(args: argparse.Namespace, state: Path, address: str = "") -> Place:
    """Return the workspace, and the session that ``-c`` or ``-r`` selects. Raise ``UserError`` if there is none."""
    if not resumes(args):
        return Place(absolute_path(args.workspace))
    if args.no_session:
        raise UserError("--no-session stores nothing, so it cannot resume a session; leave one of the options out")
    from chain.app import sessions

    store = sessions.open_store(state, address)
    if vars(args)["continue"]:
        if args.resume is not None:
            raise UserError("--continue and --resume cannot be used together")
        found = sessions.latest_session(store, given := absolute_path(args.workspace))
        if found is None:
            raise UserError(f"there is no session in {given.resolve()}; start one without --continue")
    elif not args.resume:
        raise UserError("--resume needs the id of a session; chain sessions list shows them")
    else:
        found = store.find(args.resume)
    workspace = Path(found.workspace)
    if not (found.workspace and workspace.is_dir()):
        given = absolute_path(args.workspace)
        gone = f"The workspace of the session, {found.workspace or 'which is not recorded'}, no longer exists"
        return Place(given, found.id, (f"{gone}; it continues in {given.resolve()}.",))
    if args.workspace and absolute_path(args.workspace).resolve() != workspace.resolve():
        raise UserError(f"session {found.id} works in {workspace}; omit --workspace")
    return Place(workspace, found.id)


def check_query(query: str) -> None:
    """Raise ``UserError`` for a query that is empty or too long."""
    if not query.strip():
        raise UserError("the query is empty; write a task")
    if len(query) > MAX_LINE:
        raise UserError(f"the query has {len(query):,} characters, and the limit is {MAX_LINE:,}; put it in a file")


def read_task(args: argparse.Namespace, query: str | None) -> HeadlessTask:
    """Return the task of a process without a prompt. Raise ``UserError`` if options conflict or there is no task."""
    from cli.headless import HeadlessTask

    is_live = args.input_format == "stream-json"
    if query is not None:
        check_query(query)
    within = _piped_timeout(args, query)
    if args.print and query is None and within is None and not is_live and not resumes(args):
        raise UserError("-p needs a query, for example: chain -p 'List the files'")
    scheduled = read_scheduled(args)
    leaves_stdin = args.no_stdin or args.stdin or (args.print and not is_live)
    note = "lines typed here are not read, because the output is not a terminal; use --say or --script"
    notes = (note,) if os.isatty(0) and not leaves_stdin else ()
    reads_stdin = not leaves_stdin and not os.isatty(0)
    if query is None and within is None and not reads_stdin and not scheduled and not resumes(args):
        raise UserError("there is no query; give one, for example: chain -p 'List the files'")
    return HeadlessTask(query, scheduled, reads_stdin, args.output_format, args.input_format, notes, within)


def _piped_timeout(args: argparse.Namespace, query: str | None) -> float | None:
    """Return the seconds to wait for the first byte of piped input, which is appended to the query.

    Return infinity for no limit, and ``None`` if no input is appended. Raise ``UserError`` if the options conflict.
    """
    from cli.input.stdin import FIRST_BYTE_S, is_piped

    if args.stdin and args.no_stdin:
        raise UserError("--stdin and --no-stdin cannot be used together")
    if args.input_format == "stream-json":
        if args.stdin or args.no_stdin:
            name = "--stdin" if args.stdin else "--no-stdin"
            raise UserError(f"{name} needs --input-format text")
        return None
    if args.stdin:
        if query is None and not args.print:
            raise UserError("--stdin needs a query to which it appends standard input")
        return math.inf
    if not args.print or args.no_stdin or not is_piped(0):
        return None
    # Without a query, no run can start before the input comes, unless lines of a resumed session wait.
    return FIRST_BYTE_S if query is not None or resumes(args) else math.inf


def read_scheduled(args: argparse.Namespace) -> Sequence[ScheduledLine]:
    """Return the lines of ``--script`` and ``--say`` with their times. Raise ``UserError`` if one is malformed."""
    if not (args.script or args.say):
        return ()
    from cli.input.moments import parse_moment, read_script

    scheduled = []
    if args.script:
        path = Path(args.script)
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise UserError(f"cannot be read: {error.strerror}", file=path) from None
        except UnicodeDecodeError:
            raise UserError("is not UTF-8 text; save it as UTF-8", file=path) from None
        scheduled += read_script(text, str(path))
    for text in args.say:
        if not text.strip():
            raise UserError("--say needs a line, for example: --say '@iteration 2 todo: add check the licence'")
        scheduled.append(parse_moment(text, strict=True))
    return scheduled
