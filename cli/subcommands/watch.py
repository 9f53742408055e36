"""``chain watch``: shows what a session does that another process runs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from chain import Tool
from cli.command_output import fail, renderer
from cli.subcommands.elsewhere import Reach, check_format, visit_session, watch
from cli.writing import write_text

if TYPE_CHECKING:
    from cli.door.visit import Visit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the session, and whether questions are answered."""
    parser.add_argument("--session", metavar="ID")
    parser.add_argument("--answers", action="store_true")


def run(args: argparse.Namespace, tools: Sequence[Tool]) -> int:
    """Show what happens until the session ends. Return the exit code. Raise ``UserError``."""
    check_format(args, "text", "stream-json")
    shown = renderer(args, fd=1, streams=True) if args.output_format == "text" else None
    write = partial(write_text, 1)

    def watch_local(visit: Visit) -> tuple[int, str]:
        watch(visit, shown, write)
        return 0, ""

    def watch_shared(reach: Reach) -> tuple[int, str]:
        from cli.subcommands.machines import watch_remotely

        watch_remotely(reach, shown, write, answers=args.answers, say=fail)
        return 0, ""

    return visit_session(args, watch_local, watch_shared, needs_state="--answers" if args.answers else "")
