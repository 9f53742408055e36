"""Replaces the content of a file atomically: a reader finds the old content or the new, never a mixture.

The content is written to a temporary file in the same folder, fsynced, and renamed. An error before the rename leaves
everything unchanged. A process that is killed may leave the temporary file, ``.chain-….tmp``. The folder is not
fsynced, so after a power cut the file has either the old or the new content.

Each folder of the path is opened in turn, without following links, and the last folder stays open. Before the rename
its path is opened again: if the folder was moved or replaced, the file is not changed.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress

from chain.tools import paths

_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK})
"""Error numbers with which a file system that has no hard links, such as vfat, refuses to create a hard link."""

_ACCESS_LIST = "system.posix_acl_access"
_USERS_OWN = "user."


class ConcurrentChange(Exception):
    """A change that was not made, because another program has changed the file or a folder of its path."""


def replace(
    root: str, parts: Sequence[str], content: bytes, old: os.stat_result | None, check: Callable[[], None]
) -> None:
    """Replace the content of a file atomically, and keep its mode, owner and access list.

    ``parts`` are the parts of the file's path below ``root``. ``old`` is the file's status from before its content was
    read. If ``old`` is ``None``, the file must not exist, and is created with its missing folders. ``check`` is called
    just before the rename; if it raises, nothing is changed.

    Raise ``ConcurrentChange`` if the file no longer has the status ``old``, or a folder of its path was moved or
    replaced. Raise ``OSError`` if the disk refuses the change.
    """
    *folders, name = parts
    made: list[Sequence[str]] = []
    try:
        if old is None:
            _make_folders(root, folders, made)
        with _open_folder(root, folders) as folder, _temporary_file(folder, name, content, old) as temporary:
            check()
            _check_place(root, folders, folder)
            if old is None:
                _rename_to_new(folder, temporary, name)
            else:
                # A program that writes to the file between these two calls loses its change. No system call compares
                # and replaces in one step.
                _check_same(folder, name, old)
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        for *above, last in reversed(made):
            # Fails if another program has created a file in the folder.
            with suppress(OSError), _open_folder(root, above) as folder:
                os.rmdir(last, dir_fd=folder)
        raise


def remove(root: str, parts: Sequence[str], old: os.stat_result) -> None:
    """Remove a file, by the parts of its path below ``root``.

    Raise ``ConcurrentChange`` if the file no longer has the status ``old``, or a folder of its path was moved or
    replaced. Raise ``OSError`` if the disk refuses the change.
    """
    *folders, name = parts
    with _open_folder(root, folders) as folder:
        _check_place(root, folders, folder)
        _check_same(folder, name, old)
        os.unlink(name, dir_fd=folder)


@contextmanager
def _closing_descriptor(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        with suppress(OSError):  # nothing was written through this descriptor
            os.close(descriptor)


def _open_folder(root: str, folders: Sequence[str]) -> AbstractContextManager[int]:
    return _closing_descriptor(paths.open_folder(root, folders))


@contextmanager
def _temporary_file(folder: int, target: str, content: bytes, old: os.stat_result | None) -> Iterator[str]:
    """Write ``content`` to a temporary file in ``folder``, fsync it, and yield its name.

    If ``old`` is given, the temporary file gets the owner, mode and attributes of the file ``target``. If the block
    raises, the temporary file is removed.
    """
    name = f".chain-{secrets.token_hex(8)}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name, flags, 0o666 if old is None else 0o600, dir_fd=folder)
    try:
        try:
            left = memoryview(content)
            while left:
                left = left[os.write(descriptor, left) :]
            if old is not None:
                _copy_status(descriptor, folder, target, old)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        yield name
    except BaseException:
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)
        raise


def _copy_status(descriptor: int, folder: int, name: str, old: os.stat_result) -> None:
    """Copy the owner (as far as permitted), the attributes and the mode of the file ``name`` to ``descriptor``.

    Raise ``ConcurrentChange`` if ``name`` is no longer the file with the status ``old``.
    """
    made = os.fstat(descriptor)
    # Only root may change the owner; other users may change the group to one of their own.
    if made.st_gid != old.st_gid:
        with suppress(PermissionError):
            os.fchown(descriptor, -1, old.st_gid)
    if made.st_uid != old.st_uid:
        with suppress(PermissionError):
            os.fchown(descriptor, old.st_uid, -1)
    # Before the mode: with an access list, the group bits of the mode are the list's mask.
    if sys.platform == "linux":
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            now = os.open(name, flags, dir_fd=folder)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ELOOP):
                raise
            raise ConcurrentChange from None
        with _closing_descriptor(now) as source:
            if not os.path.samestat(os.fstat(source), old):
                raise ConcurrentChange
            _copy_attributes(source, descriptor)
    os.fchmod(descriptor, stat.S_IMODE(old.st_mode))


def _copy_attributes(source: int, descriptor: int) -> None:
    """Copy the access list and the user's attributes to ``descriptor``. Remove its other attributes of these kinds."""
    wanted = {name: os.getxattr(source, name) for name in _attributes(source)}
    for name in _attributes(descriptor) - wanted.keys():  # inherited from the folder
        os.removexattr(descriptor, name)
    for name, value in wanted.items():
        os.setxattr(descriptor, name, value)


def _attributes(descriptor: int) -> set[str]:
    try:
        names = os.listxattr(descriptor)
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.ENOSYS):
            raise
        return set()  # the file system supports none
    return {name for name in names if name == _ACCESS_LIST or name.startswith(_USERS_OWN)}


def _rename_to_new(folder: int, temporary: str, name: str) -> None:
    """Rename a temporary file to ``name``. Raise ``ConcurrentChange`` if ``name`` exists, instead of replacing it."""
    try:
        os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        raise ConcurrentChange from None
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _check_same(folder, name, None)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        return
    with suppress(OSError):  # the file itself was created
        os.unlink(temporary, dir_fd=folder)


def _check_same(folder: int, name: str, old: os.stat_result | None) -> None:
    try:
        now = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        now = None
    if _identity(now) != _identity(old):
        raise ConcurrentChange


def _identity(status: os.stat_result | None) -> tuple[int, ...]:
    if status is None:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _check_place(root: str, folders: Sequence[str], folder: int) -> None:
    """Raise ``ConcurrentChange`` if the path ``folders`` below ``root`` no longer leads to the open folder."""
    try:
        with _open_folder(root, folders) as now:
            is_same = os.path.samestat(os.fstat(now), os.fstat(folder))
    except (FileNotFoundError, NotADirectoryError):
        is_same = False
    if not is_same:
        raise ConcurrentChange


def _make_folders(root: str, folders: Sequence[str], made: list[Sequence[str]]) -> None:
    """Create the missing folders of a path below ``root``. Append the path of each created folder to ``made``."""
    for n, name in enumerate(folders):
        with suppress(FileExistsError), _open_folder(root, folders[:n]) as above:
            os.mkdir(name, dir_fd=above)
            made.append(folders[: n + 1])
