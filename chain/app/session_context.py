"""The session context in system prompts: folder, machine, git branch and date.

It is read once per session and stored, so that every request begins with the same text and hits the cache. The
workspace is not trusted: git is not run, no link is followed, and only a valid branch name is used.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from chain.regular_file import FLAGS, regular_file
from chain.tools.paths import printable_path

MAX_HEAD = 4_096
"""The limit, in bytes, of the files with a repository's location and branch. Longer files are not from git."""

_BRANCH = re.compile(r"ref: refs/heads/([^\x00-\x20\x7f~^:?*\[\\]{1,200})\n?")
_COMMIT = re.compile(r"([0-9a-f]{12})[0-9a-f]{28,52}\n?")


def session_context(workspace: Path, now: float | None = None) -> str:
    """Return the session context for a workspace. Reads the disk.

    ``now`` is the start of the session as a Unix time; ``None`` is the current time.
    """
    machine = os.uname()
    rows = [f"Working folder: {printable_path(workspace)}", f"System: {machine.sysname} {machine.machine}"]
    if branch := git_branch((workspace, *workspace.parents)):
        rows.append(f"Git branch: {branch}")
    day = time.strftime("%A, %Y-%m-%d", time.localtime(now))
    return "\n".join(["When this session began:", *rows, f"Date: {day}"])


def git_branch(folders: Iterable[Path]) -> str:
    """Return the branch of the first of these folders that is the top of a repository; empty if none is."""
    for folder in folders:
        own = folder / ".git"
        if not os.path.lexists(own):
            continue
        if not os.path.isdir(own):  # as in a worktree and a submodule
            kind, _, path = _read_small(own).rstrip("\n").partition(" ")
            own = folder / path if kind == "gitdir:" else own
        head = _read_small(own / "HEAD") if not own.is_symlink() else ""
        if found := _BRANCH.fullmatch(head):
            return found[1] if found[1].isprintable() else ""
        found = _COMMIT.fullmatch(head)
        return f"none, at commit {found[1]}" if found else ""
    return ""


def _read_small(file: Path) -> str:
    """Return the content of a small file; empty for a link, which may lead anywhere, and for other kinds of files."""
    with suppress(OSError, ValueError), regular_file(os.open(file, FLAGS | os.O_NOFOLLOW)) as opened:
        if len(read := opened.read(MAX_HEAD + 1)) <= MAX_HEAD:
            return read.decode()
    return ""
