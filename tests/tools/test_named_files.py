"""The files that lines name with ``@``: which words name one, what is attached, and what the note says."""

from __future__ import annotations

import os
import socket
from base64 import b64decode
from pathlib import Path

import pytest
from support.sockets import bind

from chain.messages import Image, Text
from chain.text.wording import FILE_BEGIN, STDIN_BEGIN, STDIN_END
from chain.tools import named_files
from chain.tools.file_versions import KnownFileVersions, digest
from chain.tools.named_files import MAX_ATTACHED_CHARS, MAX_NAMED, Attachments, LineContent, image_of, read_named_files

PNG = b"\x89PNG\r\n\x1a\n"
A_TXT = "[File a.txt, 2 lines]\nalpha\nbeta\n"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    for name, text in {"work/a.txt": "alpha\nbeta\n", "work/docs/b c.md": "gamma\n", "secret": "outside\n"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path / "work"


def read(workspace: Path, *texts: str, seen: KnownFileVersions | None = None) -> Attachments:
    lines = [LineContent(f"L{n}", text) for n, text in enumerate(texts, 1)]
    return read_named_files(workspace, seen or KnownFileVersions(), lines)


def texts(found: Attachments) -> list[str]:
    return [block.text for block in found.blocks if isinstance(block, Text)]


@pytest.mark.parametrize(
    "line",
    [
        "look at @a.txt",
        "is it (@a.txt)?",
        "read @a.txt.",
        "see @a.txt:2 and @a.txt:1-2!",
        "see @./a.txt and @a.txt",
        "see @docs/../a.txt",
        'see @"a.txt".',
        "see @WORKSPACE/a.txt",
    ],
)
def test_named_file_is_attached_once(workspace: Path, line: str) -> None:
    found = read(workspace, line.replace("WORKSPACE", str(workspace)), "nothing", "again @a.txt")
    assert texts(found) == [A_TXT]
    assert "(2 lines)" in found.notes["L1"]
    assert found.notes["L3"] == "with a.txt (2 lines)"
    assert "L2" not in found.notes


@pytest.mark.parametrize(
    "line",
    [
        "mail me@a.txt",
        "@@a.txt",
        "the decorator @property and @nobody",
        "@ a.txt",
        "@a.txt/x",
        "@/no/such/file",
        "@../no-such-file",
        "@~nobody/x",
        "@" + "x" * 5_000,
        "@a\0b",
        f"sum it up{STDIN_BEGIN}see @a.txt{STDIN_END}",
        f'explain b{FILE_BEGIN}b">\nsee @a.txt\n</file>',
    ],
)
def test_other_words_stay_text(workspace: Path, line: str) -> None:
    assert read(workspace, line) == Attachments()


def test_folder_is_attached_as_its_list(workspace: Path) -> None:
    found = read(workspace, 'what is in @docs/ and in @. and @"docs/b c.md"?')
    assert texts(found) == [
        "[Folder docs, 1 entry]\nb c.md",
        "[Folder ., 2 entries]\na.txt\ndocs/",
        "[File docs/b c.md, 1 line]\ngamma\n",
    ]
    for n in range(named_files.MAX_ENTRIES + 5):
        (workspace / "docs" / f"{n:04}").touch()
    (shown,) = texts(read(workspace, "@docs"))
    assert shown.endswith("(6 more are not shown)")
    assert shown.count("\n") == named_files.MAX_ENTRIES + 1


def test_long_file_is_cut(workspace: Path) -> None:
    (workspace / "rows").write_text("0123456789\n" * 5_000)
    (workspace / "row").write_text("x" * 50_000)
    rows, row = texts(read(workspace, "@rows @row"))
    whole = MAX_ATTACHED_CHARS // 11
    assert rows == (
        f"[File rows, 5,000 lines; lines 1 to {whole} are here, and the rest can be read from line {whole + 1} on]\n"
        + "0123456789\n" * whole
    )
    assert row == (
        "[File row, 1 line; its beginning is here, and the rest can be read from column 20001 on]\n"
        + "x" * MAX_ATTACHED_CHARS
    )


def test_attached_file_counts_as_read(workspace: Path) -> None:
    (workspace / "link").symlink_to("a.txt")
    (workspace / "long").write_text("0123456789\n" * 5_000)
    seen = KnownFileVersions()
    read(workspace, "@link @long", seen=seen)
    assert seen.digests.get(workspace / "a.txt") == digest(b"alpha\nbeta\n")
    assert seen.digests.get(workspace / "long") == digest(b"0123456789\n" * 5_000)
    assert seen.digests.get(workspace / "docs/b c.md") is None


@pytest.mark.parametrize("name", ["../secret", "~/../secret", "link", "folder/secret"])
def test_file_outside_is_left_out(workspace: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(workspace))
    (workspace / "link").symlink_to(workspace.parent / "secret")
    (workspace / "folder").symlink_to(workspace.parent)
    assert read(workspace, f"read @{name} now") == Attachments(notes={"L1": f"without {name}: outside the workspace"})


def test_unreadable_file_is_left_out(workspace: Path) -> None:
    (workspace / "data").write_bytes(b"a\0b")
    os.mkfifo(workspace / "pipe")
    with (workspace / "huge").open("wb") as file:
        file.truncate(80_000_000)
    with socket.socket(socket.AF_UNIX) as listening:
        bind(listening, workspace / "socket")
        found = read(workspace, "@data @pipe @huge @socket @a.txt")
    assert texts(found) == [A_TXT]
    assert found.notes["L1"] == (
        "with a.txt (2 lines); without data: binary; without pipe: a device, a pipe or a socket; "
        "without huge: too large, 80,000,000 bytes; without socket: a device, a pipe or a socket"
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_file_without_permission_is_left_out(workspace: Path) -> None:
    (workspace / "a.txt").chmod(0)
    assert read(workspace, "@a.txt").notes["L1"] == "without a.txt: cannot be read: Permission denied"


def test_files_of_one_message_are_bounded(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(MAX_NAMED + 1):
        (workspace / f"f{n}").write_text(f"{n}\n")
    found = read(workspace, " ".join(f"@f{n}" for n in range(MAX_NAMED + 1)))
    assert len(found.blocks) == MAX_NAMED
    assert found.notes["L1"].endswith(f"without f{MAX_NAMED}: more than the {MAX_NAMED} files of one message")
    monkeypatch.setattr(named_files, "MAX_NAMED_BYTES", 15)
    found = read(workspace, '@a.txt @"docs/b c.md"')
    assert texts(found) == [A_TXT]
    assert "without docs/b c.md: more than" in found.notes["L1"]


def test_name_with_an_escape_sequence_is_sanitized(workspace: Path) -> None:
    (workspace / "\x1b[2J").write_text("x\n")
    found = read(workspace, "@\x1b[2J")
    assert "\x1b" not in found.notes["L1"] + texts(found)[0]


def test_hanging_disk_blocks_nothing(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_files, "run_with_timeout", lambda work, timeout: False)
    found = read(workspace, "@a.txt", "no file")
    assert found == Attachments(notes={"L1": "without its files: their disk does not respond"})


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (PNG + b" and so on", "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
    ],
)
def test_image_is_recognised_by_its_content(workspace: Path, content: bytes, kind: str) -> None:
    (workspace / "picture.txt").write_bytes(content)
    seen = KnownFileVersions()
    found = read(workspace, "see @picture.txt", seen=seen)
    assert found.blocks == (Text("[Image picture.txt]"), Image(kind, digest(content), "picture.txt"))
    assert isinstance(image := found.blocks[1], Image)
    assert b64decode(image.data) == content
    assert not seen.digests


def test_images_with_one_name_are_both_attached(workspace: Path) -> None:
    one, other = (image_of("shot.png", PNG + end) for end in (b"1", b"2"))
    assert one is not None
    assert other is not None
    lines = [LineContent("L1", "look", (one,)), LineContent("L2", "and this", (other, one))]
    found = read_named_files(workspace, KnownFileVersions(), lines)
    assert [block for block in found.blocks if isinstance(block, Image)] == [one, other]
