"""Regular files are read. Others, which could block a reader, are refused when opened or when a read would block."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from chain.regular_file import FLAGS, regular_file


@pytest.mark.parametrize(
    "make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)], ids=["pipe", "folder", "device"]
)
def test_other_files_are_refused_and_closed(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "file")
    descriptor = os.open(tmp_path / "file", FLAGS)
    with pytest.raises(OSError, match="it is a folder"):
        regular_file(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_a_regular_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"one\ntwo")
    with regular_file(os.open(tmp_path / "file", FLAGS)) as file:
        assert (file.readline(), file.peek(), file.read()) == (b"one\n", b"two", b"two")


# /proc/kmsg is a regular file without an end: it has no data until the kernel writes the next message.
@pytest.mark.skipif(not os.access("/proc/kmsg", os.R_OK), reason="only root reads the messages of the kernel")
@pytest.mark.parametrize("size", [10, 1 << 20], ids=["small reads", "large reads"])
def test_a_read_without_data_raises(size: int) -> None:
    def read_all() -> None:
        while file.read(size):
            pass

    with regular_file(os.open("/proc/kmsg", FLAGS)) as file, pytest.raises(BlockingIOError):
        read_all()
