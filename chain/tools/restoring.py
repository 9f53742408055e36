"""Restores the contents that edit tools replaced, unless another program has changed the file since."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath

from chain.errors import ToolError
from chain.journal.records import FileChanged
from chain.tools.file_versions import digest
from chain.tools.paths import MAX_WHOLE, open_file
from chain.tools.replace import ConcurrentChange, remove, replace


def restore_files(
    workspace: Path, changes: Sequence[FileChanged], content_of: Callable[[str], bytes | None]
) -> tuple[list[str], list[str]]:
    """Revert changes of files, given in the order in which they were made.

    Return the paths of the files that were restored at least in part, and of those that were not fully restored.

    ``content_of`` returns the content with a given digest; ``None`` if it is not stored any more. A file that another
    program has changed is not touched: its content is neither the old nor the new content of any change. The call can
    be repeated after a crash.
    """
    by_path: dict[str, list[FileChanged]] = defaultdict(list)
    for change in changes:
        by_path[change.path].append(change)
    restored, left = [], []
    for path, own in by_path.items():
        try:
            # In an added directory the path is absolute.
            root = Path(PurePath(path).anchor or workspace.resolve())
            parts = PurePath(path).relative_to(PurePath(path).anchor).parts
            was_restored, is_complete = _restore(root, parts, own, content_of)
        except (OSError, ToolError, ConcurrentChange):
            was_restored, is_complete = False, False
        restored += [path] if was_restored else []
        left += [] if is_complete else [path]
    return restored, left


def _restore(
    root: Path, parts: tuple[str, ...], changes: Sequence[FileChanged], content_of: Callable[[str], bytes | None]
) -> tuple[bool, bool]:
    """Revert the changes of one file. Return whether the disk was changed, and whether all changes are reverted."""
    status, now = _version(root, parts)
    target, is_complete = now, True
    for change in reversed(changes):
        if target == change.after:
            target = change.before
        elif target != change.before:  # equal if the change was never made, or is reverted already
            is_complete = False
            break
    if target == now:
        return False, is_complete
    if not target:
        assert status is not None
        remove(str(root), parts, status)
        return True, is_complete
    content = content_of(target)
    if content is None:
        return False, False
    replace(str(root), parts, content, status, lambda: None)
    return True, is_complete


def _version(root: Path, parts: tuple[str, ...]) -> tuple[os.stat_result | None, str]:
    """Return the status of a file and the digest of its content, or ``None`` and an empty text if it is missing."""
    if not os.path.lexists(root.joinpath(*parts)):
        return None, ""
    with open_file(root, parts, parts[-1]) as file:
        return os.fstat(file.fileno()), digest(file.read(MAX_WHOLE + 1))
