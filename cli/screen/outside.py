"""The text of the prompt in an editor of the user's, which has the terminal meanwhile.

The chain continues behind it, and its rows wait. Both receive Ctrl-C, which the chain ignores, and Ctrl-Z.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from chain.errors import UserError
from cli.screen import tty

USUAL = ("nano", "vi")
"""Editors that are looked for where the environment names none."""


class OutsideEditor:
    """An editor that is started at a key. ``edit`` blocks its thread; ``end`` is for any other one.

    ``settle`` is that of ``tty.lent``.
    """

    def __init__(self, settle: Callable[[], object] = lambda: None) -> None:
        self._settle = settle
        self._process: subprocess.Popen[bytes] | None = None

    def edit(self, text: str, environ: Mapping[str, str]) -> str:
        """Return what the user made of the text. Raise ``UserError`` where there is no editor, or where it failed."""
        command = editor_command(environ)
        name = Path(command[0]).name
        with TemporaryDirectory(prefix="chain-") as folder:
            file = Path(folder, "line.md")
            file.write_text(f"{text}\n" if text else "", encoding="utf-8", errors="surrogateescape")
            code = self._run([*command, str(file)])
            if code != 0:
                raise UserError(f"{name} ended with {code}; the text is as it was")
            try:
                return file.read_text(encoding="utf-8").removesuffix("\n")
            except (OSError, UnicodeDecodeError) as error:
                raise UserError(f"what {name} saved cannot be read ({error}); the text is as it was") from None

    def end(self) -> None:
        """End the editor that runs, if any, since the program ends."""
        if (process := self._process) is not None:
            process.terminate()

    def _run(self, argv: Sequence[str]) -> int:
        with tty.lent(self._settle):
            try:
                self._process = subprocess.Popen(argv)
            except OSError as error:
                raise UserError(f"{argv[0]} cannot be started: {error.strerror}; set VISUAL or EDITOR") from None
            try:
                return self._process.wait()
            finally:
                self._process = None


def editor_command(environ: Mapping[str, str]) -> list[str]:
    """Return the editor that the environment names, else an installed one. Raise ``UserError`` without any."""
    named = environ.get("VISUAL", "").strip() or environ.get("EDITOR", "").strip()
    try:
        found = shlex.split(named)
    except ValueError as error:
        raise UserError(f"VISUAL or EDITOR cannot be read: {error}") from None
    found = found or [name for name in USUAL if shutil.which(name, path=environ.get("PATH"))][:1]
    if not found:
        raise UserError("there is no editor: set VISUAL or EDITOR to one")
    return found
