"""``chain sessions [list|show ID|export ID|delete ID]``: lists, shows, exports and deletes stored sessions."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from chain.app import sessions
from chain.config.load import state_folder
from chain.errors import UserError
from chain.lines.parse import nearest_word
from cli.arguments import read_state
from cli.command_output import report_write_error, show, show_pages, terminal_style, write
from cli.show.renderer import Renderer
from cli.show.session_list import session_rows
from cli.show.text_rows import cut_to_row
from cli.writing import try_to_write

ACTIONS = ("list", "show", "export", "delete")

MAX_QUERY = 60
"""The maximum number of characters of a query that the question of ``delete`` shows."""

MAX_CONFIRMATION = 1_000
"""The maximum number of bytes that ``delete`` reads of the answer to its question."""


def run(args: argparse.Namespace) -> int:
    """List, show, export or delete sessions. Return the exit code. Raise ``UserError`` if that is impossible."""
    what, id = _read_words(args)
    store = sessions.open_store(state_folder(os.environ), read_state(args))
    if what == "list":
        return show(args, list_rows(args, store))
    if what == "delete":
        return delete_if_sure(args, store, id)
    faults: list[str] = []
    if what == "show":
        code = show_pages(show_rows(args, store, id, faults.append))
    else:
        code = report_write_error(write_export(args, store, id, faults.append))
    write(2, "".join(f"chain: {fault}\n" for fault in faults))
    return code


def _read_words(args: argparse.Namespace) -> tuple[str, str]:
    """Return the action and the id of a session, empty for ``list``. Raise ``UserError`` for other words."""
    what, *ids = args.words or ("list",)
    if what != "export" and (args.format or args.output):
        name = "--format" if args.format else "--output"
        raise UserError(f"{name} is for chain sessions export; a run has --output-format")
    if what not in ACTIONS:
        near = nearest_word(what, ACTIONS)
        hint = f"did you mean chain sessions {near}?" if near else f"write one of {', '.join(ACTIONS)}"
        raise UserError(f"there is no chain sessions {what!r:.60}; {hint}")
    if what == "list" and ids:
        raise UserError("chain sessions list has no arguments")
    if what != "list" and not (len(ids) == 1 and ids[0].strip()):
        raise UserError(f"chain sessions {what} needs one id; chain sessions list shows them")
    return what, "".join(ids).strip()


def list_rows(args: argparse.Namespace, store: sessions.Store) -> list[str]:
    """Return the rows of ``chain sessions list``."""
    found = store.summaries()
    if not found:
        return ["There are no sessions yet."]
    home = os.path.expanduser("~").removeprefix("~")  # without a home, expanduser returns ~ unchanged
    folder = ""
    with suppress(FileNotFoundError):  # the current folder was removed
        folder = str(Path(args.workspace or ".").resolve())
    _, ascii, width = terminal_style(args, fd=1)
    return session_rows(found, width, ascii=ascii, here=folder, now=time.time(), home=home)


def show_rows(
    args: argparse.Namespace, store: sessions.Store, id: str, report: Callable[[str], object]
) -> Iterator[str]:
    """Yield the rows that a terminal showed for a session. Call ``report`` with each fault of the journal."""
    color, ascii, width = terminal_style(args, fd=1)
    renderer = Renderer(color=color, ascii=ascii, width=width, streams=True, collapses=True)
    for event in sessions.session_events(store, store.whole_id(id), report):
        yield from renderer.rows(event)
    # The unfinished rows of a session that a crash ended.
    yield from (row for row in renderer.tail.splitlines() if row.strip())


def write_export(args: argparse.Namespace, store: sessions.Store, id: str, report: Callable[[str], object]) -> str:
    """Write a session to standard output, or to the new file of ``--output``.

    Return an error message if standard output cannot be written, otherwise an empty text. Raise ``UserError`` for a
    wrong format, and for a file that exists or cannot be written. Call ``report`` with each fault of the journal.
    """
    output: str | None = args.output
    id = store.whole_id(id)
    suffix = Path(output).suffix.removeprefix(".") if output else ""
    wanted = args.format or suffix.casefold() or "md"
    chosen = next((each for each in sessions.FORMATS if each == wanted), None)
    if chosen is None:
        formats = ", ".join(sessions.FORMATS)
        raise UserError(
            f"there is no format {wanted!r:.60}; choose one with --format: {formats}", file=Path(output or "")
        )
    pieces = sessions.export(store, id, chosen, report)
    if output is None:
        return next(filter(None, map(partial(try_to_write, 1), pieces)), "")
    path = Path(output)
    try:  # a file that only its owner can read, as a journal is
        with open(path, "x", encoding="utf-8", errors="replace", opener=partial(os.open, mode=0o600)) as file:
            try:
                file.writelines(pieces)
                file.close()  # a network file system may report a full disk only now
            except BaseException:
                path.unlink(missing_ok=True)  # half a document is useless
                raise
    except FileExistsError:
        raise UserError("already exists; name another file, or remove it first", file=path) from None
    except OSError as error:
        raise UserError(f"cannot be written: {error.strerror}", file=path) from None
    return ""


def delete_if_sure(args: argparse.Namespace, store: sessions.Store, id: str) -> int:
    """Ask on standard input whether to delete a session, and delete it if the answer is yes.

    Return the exit code: 1 if nothing was deleted. Raise ``UserError`` if the session is open in another process, and
    ``SessionError`` if there is no such session.
    """
    session = store.find(id)
    if session.is_open:
        raise UserError(f"session {session.id} is open in another process; close it there first")
    write(2, f"Delete session {session.id} ({cut_to_row(session.query, MAX_QUERY) or 'no query'})? [y/N] ")
    answer = sys.stdin.buffer.readline(MAX_CONFIRMATION)
    if not answer.endswith(b"\n"):
        write(2, "\n")  # the input ended without a line end
    if answer.strip().lower() not in (b"y", b"yes"):
        write(2, "Nothing was deleted.\n")
        return 1
    store.delete(session.id)
    return show(args, ["Deleted."])
