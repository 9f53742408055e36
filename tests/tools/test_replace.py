"""A file is replaced whole or not at all: at every error, at every swap, and if the process is killed."""

from __future__ import annotations

import errno
import os
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.processes import NOBODY

from chain.tools import paths
from chain.tools import replace as replace_module
from chain.tools.replace import ConcurrentChange

OLD, NEW = b"old\n" * 3, b"new\n" * 50_000
FILE, NEW_FILE = "docs/a.txt", "docs/new.txt"
PATHS = [FILE, NEW_FILE, "other/deep/new.txt"]


Tree = dict[str, tuple[int, bytes]]


def read_tree(root: Path) -> Tree:
    """Return the mode and content of everything in a folder."""
    return {
        str(path.relative_to(root)): (path.lstat().st_mode, path.read_bytes() if path.is_file() else b"")
        for path in sorted(root.rglob("*"))
    }


def without_temporary_files(entries: Tree) -> Tree:
    return {path: state for path, state in entries.items() if ".chain-" not in path}


def count_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def make_root(folder: Path) -> Path:
    (folder / "docs").mkdir(parents=True)
    (folder / FILE).write_bytes(OLD)
    (folder / FILE).chmod(0o640)
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_root(tmp_path / "root")


def replace(
    root: Path, path: str, check: Callable[[], None] = lambda: None, system: FailingSystem | None = None
) -> None:
    """Replace the content of a file by ``NEW``, with system calls that may fail."""
    file = root / path
    old = file.stat() if file.exists() else None
    with pytest.MonkeyPatch.context() as patch:
        if system is not None:
            patch.setattr(replace_module, "os", system)
            patch.setattr(paths, "os", system)
        replace_module.replace(str(root), Path(path).parts, NEW, old, check)


class Killed(BaseException):
    """The end of a killed process. All later system calls raise it too, so nothing is cleaned up."""


Call = tuple[str, int]
"""A system call: its name, and its number, from 0, among the calls of this name."""


class FailingSystem:
    """The module ``os`` with a log of its calls, of which one fails, or that one and all after it if ``is_kill``."""

    def __init__(self, failing: Call | None = None, error: int = errno.EIO, *, is_kill: bool = False) -> None:
        self.calls: list[Call] = []
        self._failing = failing
        self._error = error
        self._is_kill = is_kill
        self._is_dead = False

    def __getattr__(self, name: str) -> Any:
        function = getattr(os, name)
        is_system_call = callable(function) and not isinstance(function, type | ModuleType)
        if not is_system_call or name in ("fspath", "fsencode"):  # these two only convert paths
            return function

        def call(*args: Any, **options: Any) -> Any:
            this_call = name, sum(earlier == name for earlier, _ in self.calls)
            self.calls.append(this_call)
            self._is_dead |= self._is_kill and this_call == self._failing
            if name == "close" and (self._is_dead or this_call == self._failing):
                function(*args, **options)  # the system closes it in any case
            if self._is_dead:
                raise Killed
            if this_call == self._failing:
                raise OSError(self._error, os.strerror(self._error))
            return function(*args, **options)

        return call


def calls_of(path: str) -> list[Call]:
    """Return the system calls of a replacement."""
    with tempfile.TemporaryDirectory() as folder:
        system = FailingSystem()
        replace(make_root(Path(folder) / "root"), path, system=system)
        return system.calls


CALLS = [(path, call) for path in PATHS for call in calls_of(path)]
CALL_IDS = [f"{path} {name} {number}" for path, (name, number) in CALLS]


@pytest.mark.sampled(every=18)
@pytest.mark.parametrize(("path", "call"), CALLS, ids=CALL_IDS)
def test_failed_call_leaves_old_or_new_file(root: Path, path: str, call: Call) -> None:
    failing_name, _number = call
    before, descriptors = read_tree(root), count_descriptors()
    try:
        replace(root, path, system=FailingSystem(call))
    except OSError:
        assert read_tree(root) == before
    else:
        assert (root / path).read_bytes() == NEW
        if failing_name != "unlink":  # it removes the temporary file
            assert not [*root.rglob(".chain-*")]
    if failing_name != "close":  # then the folder that was opened just before stays open
        assert count_descriptors() == descriptors


@pytest.mark.parametrize(("path", "call"), CALLS, ids=CALL_IDS)
def test_kill_leaves_old_or_new_file(root: Path, path: str, call: Call) -> None:
    before = read_tree(root)
    with pytest.raises(Killed):
        replace(root, path, system=FailingSystem(call, is_kill=True))
    after = without_temporary_files(read_tree(root))
    mode, content = after.pop(path, (0, b""))
    old_mode, old_content = before.pop(path, (mode, b""))  # a new file has no old mode
    assert mode == old_mode
    assert content in (old_content, NEW)
    for created_folder in ("other", "other/deep"):
        after.pop(created_folder, None)
    assert after == before


def test_content_is_on_the_disk_before_the_rename() -> None:
    names = [name for name, _ in calls_of(FILE)]
    assert names.index("write") < names.index("fchmod") < names.index("fsync") < names.index("rename")
    assert names.count("rename") == 1


def test_new_file_is_linked_into_its_folder() -> None:
    """Unlike a rename, a link never replaces a file that another program has created."""
    assert "link" in [name for name, _ in calls_of(NEW_FILE)]


def test_no_temporary_file_is_left(root: Path) -> None:
    replace(root, FILE)
    assert read_tree(root).keys() == {"docs", FILE}


@pytest.mark.parametrize("mode", [0o600, 0o755], ids=oct)
def test_mode_is_kept(root: Path, mode: int) -> None:
    (root / FILE).chmod(mode)
    replace(root, FILE)
    assert (root / FILE).stat().st_mode & 0o777 == mode


def test_new_file_has_usual_mode_and_folders(root: Path) -> None:
    replace(root, "other/deep/new.txt")
    (root / "usual").touch()
    assert (root / "other/deep/new.txt").read_bytes() == NEW
    assert (root / "other/deep/new.txt").stat().st_mode == (root / "usual").stat().st_mode


ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
ACL_VERSION, OWNER, USER, GROUP, MASK, OTHERS, NO_ID = 2, 1, 2, 4, 16, 32, -1
READ_WRITE = 6


def access_list(group: int, mask: int) -> bytes:
    """Return the rights of the owner, one user, the group, the mask and others in the format of Linux."""
    owner, nobody = (OWNER, READ_WRITE, NO_ID), (USER, READ_WRITE, NOBODY)
    entries = owner, nobody, (GROUP, group, NO_ID), (MASK, mask, NO_ID), (OTHERS, 0, NO_ID)
    return struct.pack("<I", ACL_VERSION) + b"".join(struct.pack("<HHi", *entry) for entry in entries)


def attributes(path: Path) -> dict[str, bytes]:
    return {name: os.getxattr(path, name) for name in os.listxattr(path)}


def set_attribute(path: Path, name: str, value: bytes) -> None:
    try:
        os.setxattr(path, name, value)
    except OSError as error:
        pytest.skip(f"this file system has no {name}: {error.strerror}")


def test_access_list_and_user_attributes_are_kept(root: Path) -> None:
    file = root / FILE
    set_attribute(file, ACCESS, access_list(group=0, mask=READ_WRITE))
    set_attribute(file, "user.origin", b"here")
    before = attributes(file), file.stat().st_mode
    replace(root, FILE)
    assert (attributes(file), file.stat().st_mode) == before
    assert file.read_bytes() == NEW


def test_only_new_files_inherit_the_access_list(root: Path) -> None:
    """The default list of a folder could give users access that the old file denied."""
    set_attribute(root / "docs", DEFAULT, access_list(group=READ_WRITE, mask=READ_WRITE))
    replace(root, FILE)
    assert attributes(root / FILE) == {}
    replace(root, NEW_FILE)
    assert ACCESS in attributes(root / NEW_FILE)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_owner_is_kept(root: Path) -> None:
    user, group = 1234, 2345
    os.chown(root / FILE, user, group)
    replace(root, FILE)
    state = (root / FILE).stat()
    assert (state.st_uid, state.st_gid) == (user, group)


def test_file_system_without_hard_links_works(root: Path) -> None:
    replace(root, NEW_FILE, system=FailingSystem(failing=("link", 0), error=errno.EPERM))
    assert (root / NEW_FILE).read_bytes() == NEW
    assert read_tree(root).keys() == {"docs", FILE, NEW_FILE}


def swap_folder(root: Path, *, is_link: bool) -> None:
    """Move the folder of ``FILE`` away, and put another one, or a link to one outside, in its place."""
    (root / "docs").rename(root / "moved")
    other = root.parent / "trap" if is_link else root / "docs"
    other.mkdir()
    (other / "a.txt").write_bytes(OLD)
    if is_link:
        (root / "docs").symlink_to(other)


CHANGES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "written": (FILE, lambda root: (root / FILE).write_bytes(b"theirs")),
    "replaced": (FILE, lambda root: (root / "x").write_bytes(OLD) and (root / "x").rename(root / FILE)),
    "removed": (FILE, lambda root: (root / FILE).unlink()),
    "mode changed": (FILE, lambda root: (root / FILE).chmod(0o600)),
    "folder became a link": (FILE, lambda root: swap_folder(root, is_link=True)),
    "folder replaced": (FILE, lambda root: swap_folder(root, is_link=False)),
    "folder moved": (FILE, lambda root: (root / "docs").rename(root / "moved")),
    "created": (NEW_FILE, lambda root: (root / NEW_FILE).write_text("theirs")),
}


@pytest.mark.parametrize(("path", "change"), CHANGES.values(), ids=CHANGES)
def test_concurrent_change_is_left_alone(root: Path, path: str, change: Callable[[Path], object]) -> None:
    after: dict[str, tuple[int, bytes]] = {}

    def check() -> None:
        change(root)
        after.update(read_tree(root.parent))

    with pytest.raises(ConcurrentChange):
        replace(root, path, check=check)
    assert read_tree(root.parent) == without_temporary_files(after)


@pytest.mark.parametrize("path", PATHS)
def test_failed_check_leaves_everything_unchanged(root: Path, path: str) -> None:
    before = read_tree(root)

    def check() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replace(root, path, check=check)
    assert read_tree(root) == before
