"""A file is replaced whole or not at all: at every error, at every swap, and when the process is killed."""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.examples import some

from chain.tools import paths
from chain.tools import replace as module
from chain.tools.replace import Changed, replace

OLD, NEW = b"old\n" * 3, b"new\n" * 50_000


def everything(root: Path) -> dict[str, tuple[int, bytes]]:
    """Every file and folder below, with its mode and content."""
    found = sorted(root.rglob("*"))
    return {str(p.relative_to(root)): (p.lstat().st_mode, p.read_bytes() if p.is_file() else b"") for p in found}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root/docs").mkdir(parents=True)
    (tmp_path / "root/docs/a.txt").write_bytes(OLD)
    (tmp_path / "root/docs/a.txt").chmod(0o640)
    return tmp_path / "root"


def give(root: Path, path: str, content: bytes = NEW, check: Callable[[], None] = lambda: None) -> None:
    file = root / path
    replace(str(root), Path(path).parts, content, file.stat() if file.exists() else None, check)


class Killed(BaseException):
    """The end of a process that does nothing any more, also not to clean up."""


class Calls:
    """The calls of the system, counted; the one that is named fails, or with ``is_kill`` it and all after it."""

    def __init__(self, fail: tuple[str, int] | None = None, error: int = errno.EIO, *, is_kill: bool = False) -> None:
        self.made: list[tuple[str, int]] = []
        self._fail = fail
        self._error = error
        self._is_kill = is_kill
        self._is_dead = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(os, name)
        if not callable(found) or isinstance(found, type | ModuleType) or name in ("fspath", "fsencode"):
            return found

        def call(*args: Any, **how: Any) -> Any:
            this = name, sum(made == name for made, _ in self.made)
            self.made.append(this)
            self._is_dead |= self._is_kill and this == self._fail
            if self._is_dead:
                if name == "close":
                    found(*args, **how)  # as the system does when a process ends
                raise Killed
            if this == self._fail:
                if name == "close":
                    found(*args, **how)  # the system closes it whatever it says
                raise OSError(self._error, os.strerror(self._error))
            return found(*args, **how)

        return call


@contextmanager
def through(calls: Calls) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "os", calls)
        patch.setattr(paths, "os", calls)
        yield


def calls_of(path: str) -> list[tuple[str, int]]:
    """The calls that a replacement makes, found by making one."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "docs").mkdir()
        (root / "docs/a.txt").write_bytes(OLD)
        calls = Calls()
        with through(calls):
            give(root, path)
        return calls.made


PATHS = ["docs/a.txt", "docs/new.txt", "other/deep/new.txt"]


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(
    ("path", "name", "n"), some([(path, name, n) for path in PATHS for name, n in calls_of(path)], every=5)
)
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_an_error_at_any_call_of_the_system_leaves_the_old_or_the_new(
    root: Path, path: str, name: str, n: int, error: int
) -> None:
    before = everything(root)
    calls = Calls((name, n), error)
    open_before = len(os.listdir("/proc/self/fd"))
    raised: OSError | None = None
    try:
        with through(calls):
            give(root, path)
    except OSError as caught:
        raised = caught
    if raised is not None:
        assert raised.errno == error
        assert everything(root) == before
    else:
        assert (root / path).read_bytes() == NEW
        left = [p.name for p in root.rglob(".chain-*")]
        assert not left or name == "unlink", "only where it could not be removed"
    if name != "close":
        assert len(os.listdir("/proc/self/fd")) == open_before


@pytest.mark.parametrize(("path", "name", "n"), [(path, name, n) for path in PATHS for name, n in calls_of(path)])
def test_a_kill_at_any_call_of_the_system_leaves_the_old_or_the_new(root: Path, path: str, name: str, n: int) -> None:
    before = everything(root)
    with through(Calls((name, n), is_kill=True)), pytest.raises(Killed):
        give(root, path)
    after = {each: found for each, found in everything(root).items() if ".chain-" not in each}
    mode, content = after.pop(path, (0, b""))
    was = before.pop(path, (mode, b""))
    assert (mode, content) in (was, (was[0], NEW))
    assert {each: found for each, found in after.items() if each not in ("other", "other/deep")} == before


def test_the_steps_are_those_that_were_meant() -> None:
    """What is on the disk before the name is given to it is the content."""
    names = [name for name, _ in calls_of("docs/a.txt")]
    assert names.index("write") < names.index("fchmod") < names.index("fsync") < names.index("rename")
    assert names.count("rename") == 1
    assert "link" in [name for name, _ in calls_of("docs/new.txt")]


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o755, 0o640])
def test_the_mode_is_kept(root: Path, mode: int) -> None:
    (root / "docs/a.txt").chmod(mode)
    give(root, "docs/a.txt")
    assert stat.S_IMODE((root / "docs/a.txt").stat().st_mode) == mode
    assert everything(root).keys() == {"docs", "docs/a.txt"}


ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"


def access_list(group: int, mask: int) -> bytes:
    """Rights of the owner, one user, the group, the mask and the others, as Linux keeps them."""
    entries = (1, 6, -1), (2, 6, 65534), (4, group, -1), (16, mask, -1), (32, 0, -1)
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)


def attributes(path: Path) -> dict[str, bytes]:
    return {name: os.getxattr(path, name) for name in os.listxattr(path)}


def attribute(path: Path, name: str, value: bytes) -> None:
    try:
        os.setxattr(path, name, value)
    except OSError as error:
        pytest.skip(f"this file system keeps no {name}: {error.strerror}")


def test_the_access_list_and_the_user_s_attributes_are_kept(root: Path) -> None:
    file = root / "docs/a.txt"
    attribute(file, ACCESS, access_list(group=0, mask=6))
    attribute(file, "user.origin", b"here")
    before = attributes(file), file.stat().st_mode
    give(root, "docs/a.txt")
    assert (attributes(file), file.stat().st_mode) == before
    assert file.read_bytes() == NEW


def test_a_file_without_an_access_list_gets_none_from_its_folder(root: Path) -> None:
    """The list of a folder is for new files: whoever it names could not open the old one."""
    attribute(root / "docs", DEFAULT, access_list(group=6, mask=6))
    give(root, "docs/a.txt")
    assert attributes(root / "docs/a.txt") == {}
    give(root, "docs/new.txt")
    assert ACCESS in attributes(root / "docs/new.txt")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_the_owner_is_kept(root: Path) -> None:
    os.chown(root / "docs/a.txt", 1234, 2345)
    give(root, "docs/a.txt")
    found = (root / "docs/a.txt").stat()
    assert (found.st_uid, found.st_gid) == (1234, 2345)


def test_a_new_file_has_the_usual_mode_and_the_folders_it_needs(root: Path) -> None:
    give(root, "other/deep/new.txt")
    (root / "usual").touch()
    assert (root / "other/deep/new.txt").read_bytes() == NEW
    assert (root / "other/deep/new.txt").stat().st_mode == (root / "usual").stat().st_mode


def test_a_file_system_without_hard_links_will_do(root: Path) -> None:
    calls = Calls(("link", 0), errno.EPERM)
    with through(calls):
        give(root, "docs/new.txt")
    assert (root / "docs/new.txt").read_bytes() == NEW
    assert everything(root).keys() == {"docs", "docs/a.txt", "docs/new.txt"}


def swap_folder(root: Path) -> None:
    (root / "docs").rename(root / "moved")
    (root.parent / "trap").mkdir()
    (root.parent / "trap/a.txt").write_bytes(OLD)
    (root / "docs").symlink_to(root.parent / "trap")


def swap_for_folder(root: Path) -> None:
    (root / "docs").rename(root / "moved")
    (root / "docs").mkdir()
    (root / "docs/a.txt").write_bytes(OLD)


MEANWHILE: dict[str, Callable[[Path], object]] = {
    "written to": lambda root: (root / "docs/a.txt").write_bytes(b"theirs"),
    "replaced": lambda root: (root / "x").write_bytes(OLD) and (root / "x").rename(root / "docs/a.txt"),
    "removed": lambda root: (root / "docs/a.txt").unlink(),
    "its mode was changed": lambda root: (root / "docs/a.txt").chmod(0o600),
    "its folder became a link": swap_folder,
    "its folder became another": swap_for_folder,
    "its folder went": lambda root: (root / "docs").rename(root / "moved"),
}


@pytest.mark.parametrize("name", MEANWHILE)
def test_what_somebody_else_does_meanwhile_is_left_alone(root: Path, name: str) -> None:
    after: dict[str, tuple[int, bytes]] = {}

    def check() -> None:
        MEANWHILE[name](root)
        after.update(everything(root.parent))

    with pytest.raises(Changed):
        give(root, "docs/a.txt", check=check)
    left = {path: found for path, found in after.items() if ".chain-" not in path}
    assert everything(root.parent) == left


def test_a_path_that_came_to_be_meanwhile_is_left_alone(root: Path) -> None:
    with pytest.raises(Changed):
        give(root, "docs/new.txt", check=lambda: (root / "docs/new.txt").write_text("theirs") and None)
    assert (root / "docs/new.txt").read_text() == "theirs"
    assert everything(root).keys() == {"docs", "docs/a.txt", "docs/new.txt"}


@pytest.mark.parametrize("path", PATHS)
def test_a_check_that_says_no_leaves_everything_as_it_was(root: Path, path: str) -> None:
    before = everything(root)

    def check() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        give(root, path, check=check)
    assert everything(root) == before
