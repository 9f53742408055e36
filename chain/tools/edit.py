"""The tools ``write_file`` and ``edit_file``, which change files of the workspace.

An existing file must have been read or written before by an agent of the session, and be unchanged since. The preview
and the edit use the same function (``diff``), and the file is replaced atomically (``replace``), so an error, an
interrupt or a kill leaves the old file or the new one.

An interrupt abandons the thread of a read, but not the thread of an edit. So no file changes after the call of the edit
has ended. The thread checks for an interrupt just before it replaces the file.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath

import trio

from chain.concurrency.threads import Threads
from chain.errors import JournalError, ToolError, UserError
from chain.tools.diff import Change, Edit, Replacement, Whole, apply_edit, decode_editable
from chain.tools.file_text import FileText
from chain.tools.file_versions import digest
from chain.tools.paths import (
    MAX_WHOLE,
    describe_broken_link,
    describe_missing,
    open_file,
    printable_path,
    resolve_inside,
)
from chain.tools.protected import Protected
from chain.tools.replace import ConcurrentChange, replace
from chain.tools.tool import UNASKED, Preview, Subject, Tool, ToolContext, ToolOutput, tool

_THREADS = Threads("edit")


class _PathSubject(Subject):
    plural = "paths"

    def normalize_pattern(self, text: str) -> str:
        if text.startswith("~"):
            raise UserError("paths are relative to the workspace, or absolute in an added directory")
        if text.endswith("/"):
            raise UserError(f"{text} is a folder; {text}* are the files in it")
        if {"", ".", ".."} & set(text.removeprefix("/").split("/")):
            raise UserError("paths are relative to the workspace, without . and .. and empty parts in them")
        return text

    def matches(self, pattern: str, subject: str) -> bool:
        """Return whether a pattern matches a path. A relative pattern matches only paths in the workspace."""
        return pattern.startswith("/") == subject.startswith("/") and super().matches(pattern, subject)

    def note(self, pattern: str | None) -> str:
        if pattern is None:
            return "; files that run or are trusted outside the sandbox must be named"
        return "; * matches slashes too" if "*" in pattern else ""


PATHS = _PathSubject()


def edit_tools(protected: Protected | None = None) -> tuple[Tool, ...]:
    """Return the tools ``write_file`` and ``edit_file``.

    An allowance covers an edit of a file in ``protected`` only if its pattern names the file or its folder.
    """
    edits = _Edits(protected or Protected())
    write = tool(name="write_file", kind="edit", needs_approval=True, preview=edits.preview_write, subject=PATHS)
    edit = tool(name="edit_file", kind="edit", needs_approval=True, preview=edits.preview_edit, subject=PATHS)
    return write(edits.write), edit(edits.edit)


@dataclass(frozen=True, slots=True)
class _Edits:
    protected: Protected

    async def preview_write(self, ctx: ToolContext, path: str, content: str) -> Preview | None:
        return await self._preview(ctx, path, Whole(content))

    async def write(self, ctx: ToolContext, path: str, content: str) -> ToolOutput:
        """Write a whole text file of the workspace. A new file is created with its missing folders.

        `path` is relative to the workspace, or absolute in a directory that the user added. An existing file must have
        been read before; it keeps its mode, its byte order mark and, if all its lines end with CR LF, those line ends.
        To change a part of a file use edit_file.
        """
        return await self._run(ctx, path, Whole(content))

    async def preview_edit(
        self, ctx: ToolContext, path: str, old_string: str, new_string: str, replace_all: bool = False
    ) -> Preview | None:
        return await self._preview(ctx, path, Replacement(old_string, new_string, replace_all))

    async def edit(
        self, ctx: ToolContext, path: str, old_string: str, new_string: str, replace_all: bool = False
    ) -> ToolOutput:
        """Replace a text in a file of the workspace that was read before.

        `path` is as in write_file. `old_string` must be in the file exactly, with its spaces and line ends, and only
        once: include lines around it if needed, or set `replace_all` to replace it everywhere.
        """
        return await self._run(ctx, path, Replacement(old_string, new_string, replace_all))

    async def _preview(self, ctx: ToolContext, path: str, edit: Edit) -> Preview | None:
        return (await _THREADS.run(partial(_plan, ctx, self.protected, path, edit), abandon_on_cancel=True)).preview

    async def _run(self, ctx: ToolContext, path: str, edit: Edit) -> ToolOutput:
        async with ctx.known_files.edit_lock:
            plan = await _THREADS.run(partial(_carry_out, ctx, self.protected, path, edit))
            ctx.known_files.digests[plan.root.joinpath(*plan.parts)] = digest(plan.change.content)
        diff = plan.change.diff
        if plan.preview is None:
            return ToolOutput(f"{plan.shown} has this content already.", summary=("has this content already",))
        return ToolOutput(f"{'Created' if plan.status is None else 'Changed'} {diff.head}.", summary=(diff.counts,))


@dataclass(frozen=True, slots=True)
class _PlannedEdit:
    """An edit that was checked but not yet made.

    ``parts`` are the parts of the file's real path below ``root``. ``name`` is the real path: relative to the
    workspace, or absolute in an added directory. ``shown`` is the path as the model gave it. ``status`` and ``before``
    are the status and the content of the existing file; both are ``None`` for a new file. ``digest`` identifies the
    state before the edit.
    """

    root: Path
    parts: tuple[str, ...]
    name: str
    shown: str
    status: os.stat_result | None
    before: bytes | None
    digest: str
    change: Change
    only_by_name: str

    @property
    def preview(self) -> Preview | None:
        """The preview that the user approves or denies; ``None`` if the edit changes nothing."""
        if self.status is not None and not self.change.diff.hunks:
            return None
        diff = self.change.diff
        return Preview("", diff.path, self.digest, only_by_name=self.only_by_name, diff=diff)


def _carry_out(ctx: ToolContext, protected: Protected, path: str, edit: Edit) -> _PlannedEdit:
    plan = _plan(ctx, protected, path, edit)
    shown = plan.preview
    if shown is None:
        return plan
    if ctx.approved is not UNASKED and shown != ctx.approved:
        raise ToolError(f"{plan.shown} was changed after it was shown to the user; read it again.")
    try:
        trio.from_thread.run_sync(ctx.file_changing, plan.name, plan.before, plan.change.content)
        replace(str(plan.root), plan.parts, plan.change.content, plan.status, trio.from_thread.check_cancelled)
    except JournalError as error:
        raise ToolError(f"{plan.shown} was not changed, since undo could not restore it: {error}.") from None
    except ConcurrentChange:
        raise ToolError(
            f"{plan.shown}, or a folder of its path, was changed by another program just now; read it again."
        ) from None
    except OSError as error:
        raise ToolError(f"{plan.shown} cannot be written: {error.strerror}. Nothing was changed.") from None
    return plan


def _plan(ctx: ToolContext, protected: Protected, path: str, edit: Edit) -> _PlannedEdit:
    """Check an edit and return what it would change. Raise ``ToolError`` if it cannot be made."""
    given_root = ctx.root_of(path)
    real, shown = resolve_inside(given_root, path), printable_path(PurePath(path))
    root = ctx.innermost_root(real)
    parts = real.relative_to(root).parts
    name = real if root in ctx.added_directories else real.relative_to(root)
    part = protected.required_name(root, parts, path)
    only_by_name = printable_path(PurePath(part)) if part else ""
    raw: bytes | None = None
    status, text, now = None, FileText(), "no file"  # for a file that does not exist
    try:
        real.stat()
    except FileNotFoundError:
        if isinstance(edit, Replacement) or describe_broken_link(given_root, PurePath(path)):
            raise ToolError(describe_missing(given_root, PurePath(path))) from None
        if path.endswith("/"):
            raise ToolError(f"{path} is the name of a folder; give that of a file.") from None
    except NotADirectoryError:
        raise ToolError(f"{shown} cannot be a file: a part of this path is a file itself.") from None
    except OSError as error:
        raise ToolError(f"{shown} cannot be written: {error.strerror}.") from None
    else:
        if real.is_dir():
            raise ToolError(f"{shown} is a folder; only files can be written.")
        status, raw = _read_editable(root, parts, shown)
        text, now, known = decode_editable(shown, raw), digest(raw), ctx.known_files.digests.get(real)
        if known is None:
            raise ToolError(f"{shown} exists and was not read yet; read it first.")
        if known != now:
            raise ToolError(f"{shown} has changed since it was last read or written; read it again.")
    # The real path: a link must not make an allowance's pattern cover another file.
    made = apply_edit(printable_path(name), text, edit)
    if len(made.content) > MAX_WHOLE:
        raise ToolError(f"{shown} would have {len(made.content):,} bytes, more than the {MAX_WHOLE:,} of a text file.")
    return _PlannedEdit(root, parts, name.as_posix(), shown, status, raw, now, made, only_by_name)


def _read_editable(root: Path, parts: tuple[str, ...], shown: str) -> tuple[os.stat_result, bytes]:
    """Return the status and the content of a file to edit. Raise ``ToolError`` if it cannot be read or written.

    The status is read before the content, so that a later change of the file is noticed.
    """
    with open_file(root, parts, shown) as file:
        status = os.fstat(file.fileno())
        if status.st_size > MAX_WHOLE:
            raise ToolError(f"{shown} has {status.st_size:,} bytes, more than the {MAX_WHOLE:,} that can be edited.")
        raw = file.read(MAX_WHOLE)
    # A read-only file could be replaced nevertheless, because that needs only write permission for its folder.
    if not os.access(root.joinpath(*parts), os.W_OK):
        raise ToolError(f"{shown} cannot be written: {os.strerror(errno.EACCES)}.")
    return status, raw
