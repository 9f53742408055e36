"""The user's external editor and pager, which own the terminal while they run.

The chain continues meanwhile, and its rows wait. Both programs receive Ctrl-C, which the chain ignores, and Ctrl-Z.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from chain.errors import UserError
from cli.screen import tty

FALLBACK_EDITORS = ("nano", "vi")
"""Editors to try if the environment names none."""

LESS = "R~+G"
"""Options of less: show colours, start at the end. ``$LESS`` overrides them. Without ``X`` less restores the screen."""


class ExternalProgram:
    """An external program that a key starts. It blocks the calling thread. Another thread can ``end`` the program.

    ``settle`` is passed to ``tty.lend_terminal``.
    """

    def __init__(self, settle: Callable[[], object] = lambda: None) -> None:
        self._settle = settle
        self._process: subprocess.Popen[bytes] | None = None

    def edit(self, text: str, environ: Mapping[str, str]) -> str:
        """Let the user edit the text, and return the result. Raise ``UserError`` if there is no editor or it fails."""
        command = editor_command(environ)
        name = Path(command[0]).name
        with TemporaryDirectory(prefix="chain-") as folder:
            file = Path(folder, "line.md")
            file.write_text(f"{text}\n" if text else "", encoding="utf-8", errors="surrogateescape")
            code = self._run([*command, str(file)], "VISUAL or EDITOR")
            if code != 0:
                raise UserError(f"{name} ended with {code}; the text is unchanged")
            try:
                return file.read_text(encoding="utf-8").removesuffix("\n")
            except (OSError, UnicodeDecodeError) as error:
                raise UserError(f"what {name} saved cannot be read ({error}); the text is unchanged") from None

    def page(self, rows: Iterable[str], environ: Mapping[str, str]) -> None:
        """Show rows in the user's pager until it exits.

        Raise ``UserError`` if there is no pager. A ``UserError`` that the first of the ``rows`` raises is passed on.
        """
        command = pager_command(environ)
        if not command:
            raise UserError("there is no pager: install less, or set PAGER to one")
        encoding, rows = sys.stdout.encoding or "utf-8", iter(rows)
        rows = chain([next(rows, "")], rows)  # report an error before the pager starts
        data = (f"{row}\n".encode(encoding, errors="replace") for row in rows)
        self._run(command, "PAGER", data, {"LESS": LESS, **environ})

    def end(self) -> None:
        """Terminate the running program, if any. Called when chain exits."""
        if (process := self._process) is not None:
            process.terminate()

    def _run(
        self,
        argv: Sequence[str],
        variable: str,
        data: Iterator[bytes] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> int:
        """Run a program on the terminal, write ``data`` to its input, and return its exit code.

        ``variable`` is the environment variable with which the user can choose another program.
        """
        with tty.lend_terminal(self._settle):
            try:
                process = subprocess.Popen(argv, stdin=None if data is None else subprocess.PIPE, env=environ)
            except OSError as error:
                raise UserError(f"{argv[0]} cannot be started: {error.strerror}; set {variable}") from None
            self._process = process
            try:
                if data is not None and process.stdin is not None:
                    # The user may quit the pager before it has read all.
                    with suppress(BrokenPipeError), process.stdin as pipe:
                        pipe.writelines(data)
            finally:
                code = process.wait()
                self._process = None
            return code


def editor_command(environ: Mapping[str, str]) -> list[str]:
    """Return the command of the editor that the environment names, or else of an installed one of ``FALLBACK_EDITORS``.

    Raise ``UserError`` if there is no editor.
    """
    named = environ.get("VISUAL", "").strip() or environ.get("EDITOR", "").strip()
    try:
        found = shlex.split(named)
    except ValueError as error:
        raise UserError(f"VISUAL or EDITOR cannot be read: {error}") from None
    found = found or [name for name in FALLBACK_EDITORS if shutil.which(name, path=environ.get("PATH"))][:1]
    if not found:
        raise UserError("there is no editor: set VISUAL or EDITOR to one")
    return found


def pager_command(environ: Mapping[str, str]) -> list[str]:
    """Return the command of the pager that the environment names, or else of less.

    Return an empty list if that program is not installed, or if it is ``cat``.
    """
    try:
        words = shlex.split(environ.get("PAGER", "less"))
    except ValueError:
        return []
    return words if words and words[0] != "cat" and shutil.which(words[0], path=environ.get("PATH")) else []
