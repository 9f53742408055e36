"""``chain send LINE``: sends a line to a session that another process runs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial

from chain import Tool
from chain.errors import UserError
from cli.command_output import say
from cli.subcommands.elsewhere import Reach, check_format, send, visit_session


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the line, whose words need no quotes, and the session that it goes to."""
    parser.add_argument("line", nargs="*", metavar="LINE")
    parser.add_argument("--session", metavar="ID")
    parser.add_argument("--wait", action="store_true")
    parser.add_argument("--new", action="store_true")


def run(args: argparse.Namespace, tools: Sequence[Tool]) -> int:
    """Send the line. Return the exit code. Raise ``UserError``."""
    line = " ".join(args.line)
    if not line.strip():
        raise UserError("chain send needs a line, for example: chain send 'todo: add check the SKU'")
    if args.new and args.session:
        raise UserError("--new and --session contradict each other; leave one out")
    check_format(args, "text")

    def send_to_shared(reach: Reach) -> tuple[int, str]:
        from cli.subcommands.machines import send_remotely

        return send_remotely(reach, line, is_new=args.new, wait=args.wait, say=say)

    to_local = partial(send, line=line, wait=args.wait, say=say)
    return visit_session(args, to_local, send_to_shared, needs_state="--new" if args.new else "")
