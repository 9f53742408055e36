"""Connects ``chain send`` and ``chain watch`` to a session of another process, by its socket or in Redis."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from chain.config.load import state_folder
from chain.errors import UserError
from cli.arguments import absolute_path, read_state
from cli.command_output import fail, report_write_error

if TYPE_CHECKING:
    from chain.app.remote import RemoteSession
    from cli.door.client import DoorClient

Connect: TypeAlias = Callable[[Callable[[str], object]], AbstractAsyncContextManager["RemoteSession"]]
"""A function that connects to a session in Redis.

Its argument is a function that is called with a message when the server does not respond.
"""


def connect_to_session(
    args: argparse.Namespace,
    with_client: Callable[[DoorClient], tuple[int, str]],
    with_remote: Callable[[Connect], tuple[int, str]],
    *,
    needs_state: str = "",
) -> int:
    """Call ``with_client`` with a connection to a session on this machine, or ``with_remote`` for one in Redis.

    Both functions return an exit code, and an error message or an empty string. ``needs_state`` is the name of an
    option that the user gave and that works only with Redis; empty if there is none. Return the exit code. Raise
    ``UserError`` if no session is found, or if ``needs_state`` is set without the address of a Redis.
    """
    address = read_state(args)
    workspace = Path("/") if args.session else absolute_path(args.workspace)  # --session names one of any workspace
    if needs_state and not address:
        raise UserError(f"{needs_state} needs --state; see chain help machines")
    try:
        if address:
            from chain.app.remote import remote_session

            is_new = needs_state == "--new"
            connect = partial(remote_session, address, id=args.session or "", workspace=workspace, is_new=is_new)
            code, problem = with_remote(connect)
        else:
            from cli.door.client import find_chain

            state = state_folder(os.environ)
            with find_chain(state, os.environ, session=args.session or "", workspace=workspace) as client:
                try:
                    code, problem = with_client(client)
                except UserError as error:
                    code, problem = 1, str(error)
    except BrokenPipeError:
        return 0  # the reader has closed its end
    except OSError as error:
        return report_write_error(error.strerror or str(error))
    return fail(problem, code) if problem else code


def check_format(args: argparse.Namespace, *formats: str) -> None:
    """Raise ``UserError`` if ``--output-format`` is not one of ``formats``."""
    if args.output_format not in formats:
        name = f"chain {args.command} has no --output-format {args.output_format}"
        raise UserError(f"{name}; see chain help side-door")
