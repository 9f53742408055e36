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


def attach(workspace: Path, *lines: str, known_files: KnownFileVersions | None = None) -> Attachments:
    """Return the attachments of lines with the ids ``L1``, ``L2`` and so on."""
    contents = [LineContent(f"L{n}", line) for n, line in enumerate(lines, 1)]
    return read_named_files(workspace, known_files or KnownFileVersions(), contents)


def texts(attachments: Attachments) -> list[str]:
    return [block.text for block in attachments.blocks if isinstance(block, Text)]


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
    attachments = attach(workspace, line.replace("WORKSPACE", str(workspace)), "no file", "again @a.txt")
    assert texts(attachments) == [A_TXT]
    assert attachments.notes.keys() == {"L1", "L3"}
    assert "(2 lines)" in attachments.notes["L1"]
    assert attachments.notes["L3"] == "with a.txt (2 lines)"


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
        pytest.param("@" + "x" * 5_000, id="a word too long for a path"),
        "@a\0b",
        pytest.param(f"sum it up{STDIN_BEGIN}see @a.txt{STDIN_END}", id="in the text of standard input"),
        pytest.param(f'explain b{FILE_BEGIN}b">\nsee @a.txt\n</file>', id="in the text of a file"),
    ],
)
def test_other_words_stay_text(workspace: Path, line: str) -> None:
    assert attach(workspace, line) == Attachments()


def test_folder_is_attached_as_its_list(workspace: Path) -> None:
    attachments = attach(workspace, 'what is in @docs/ and in @. and @"docs/b c.md"?')
    assert texts(attachments) == [
        "[Folder docs, 1 entry]\nb c.md",
        "[Folder ., 2 entries]\na.txt\ndocs/",
        "[File docs/b c.md, 1 line]\ngamma\n",
    ]


def test_long_list_of_a_folder_is_truncated(workspace: Path) -> None:
    (workspace / "many").mkdir()
    for n in range(named_files.MAX_ENTRIES + 6):
        (workspace / "many" / f"{n:04}").touch()
    (text,) = texts(attach(workspace, "@many"))
    _head, *rows, note = text.split("\n")
    assert len(rows) == named_files.MAX_ENTRIES
    assert note.endswith("(6 more are not shown)")


ROW = "0123456789\n"


def test_long_file_is_cut_after_a_line(workspace: Path) -> None:
    (workspace / "long").write_text(ROW * 5_000)
    count = MAX_ATTACHED_CHARS // len(ROW)
    assert texts(attach(workspace, "@long")) == [
        f"[File long, 5,000 lines; lines 1 to {count} are here, and the rest can be read from line {count + 1} on]\n"
        + ROW * count
    ]


def test_long_line_is_cut(workspace: Path) -> None:
    (workspace / "wide").write_text("x" * 50_000)
    next_column = MAX_ATTACHED_CHARS + 1
    assert texts(attach(workspace, "@wide")) == [
        f"[File wide, 1 line; its beginning is here, and the rest can be read from column {next_column} on]\n"
        + "x" * MAX_ATTACHED_CHARS
    ]


def test_attached_file_counts_as_read(workspace: Path) -> None:
    (workspace / "link").symlink_to("a.txt")
    (workspace / "long").write_text(ROW * 5_000)
    known_files = KnownFileVersions()
    attach(workspace, "@link @long", known_files=known_files)
    assert known_files.digests.get(workspace / "a.txt") == digest(b"alpha\nbeta\n")
    assert known_files.digests.get(workspace / "long") == digest(ROW.encode() * 5_000)
    assert known_files.digests.get(workspace / "docs/b c.md") is None


@pytest.mark.parametrize("name", ["../secret", "~/../secret", "link", "folder/secret"])
def test_file_outside_is_left_out(workspace: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(workspace))
    (workspace / "link").symlink_to(workspace.parent / "secret")
    (workspace / "folder").symlink_to(workspace.parent)
    assert attach(workspace, f"read @{name} now") == Attachments(notes={"L1": f"without {name}: outside the workspace"})


def test_unreadable_file_is_left_out(workspace: Path) -> None:
    (workspace / "data").write_bytes(b"a\0b")
    os.mkfifo(workspace / "pipe")
    with (workspace / "huge").open("wb") as file:
        file.truncate(80_000_000)  # more than MAX_WHOLE
    with socket.socket(socket.AF_UNIX) as listener:
        bind(listener, workspace / "socket")
        attachments = attach(workspace, "@data @pipe @huge @socket @a.txt")
    assert texts(attachments) == [A_TXT]
    assert attachments.notes["L1"] == (
        "with a.txt (2 lines); without data: binary; without pipe: a device, a pipe or a socket; "
        "without huge: too large, 80,000,000 bytes; without socket: a device, a pipe or a socket"
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_file_without_permission_is_left_out(workspace: Path) -> None:
    (workspace / "a.txt").chmod(0)
    assert attach(workspace, "@a.txt").notes["L1"] == "without a.txt: cannot be read: Permission denied"


def test_number_of_attached_files_is_bounded(workspace: Path) -> None:
    *attached, excess = [f"f{n}" for n in range(MAX_NAMED + 1)]
    for name in (*attached, excess):
        (workspace / name).touch()
    attachments = attach(workspace, " ".join(f"@{name}" for name in (*attached, excess)))
    assert len(attachments.blocks) == len(attached)
    assert attachments.notes["L1"].endswith(f"without {excess}: more than the {MAX_NAMED} files of one message")


def test_size_of_attached_files_is_bounded(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_files, "MAX_NAMED_BYTES", 15)  # enough for the first file, not for both
    attachments = attach(workspace, '@a.txt @"docs/b c.md"')
    assert texts(attachments) == [A_TXT]
    assert "without docs/b c.md: more than" in attachments.notes["L1"]


def test_name_with_an_escape_sequence_is_sanitized(workspace: Path) -> None:
    (workspace / "\x1b[2J").write_text("x\n")
    attachments = attach(workspace, "@\x1b[2J")
    (text,) = texts(attachments)
    assert "\x1b" not in attachments.notes["L1"]
    assert "\x1b" not in text


def test_hanging_disk_blocks_nothing(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_files, "run_with_timeout", lambda work, timeout: False)  # not finished in time
    note = "without its files: their disk does not respond"
    assert attach(workspace, "@a.txt", "no file") == Attachments(notes={"L1": note})


CONTENT_BY_TYPE = {
    "image/png": PNG + b" and so on",
    "image/jpeg": b"\xff\xd8\xff\xe0",
    "image/gif": b"GIF89a",
    "image/webp": b"RIFF\0\0\0\0WEBPVP8 ",
}


@pytest.mark.parametrize(("media_type", "content"), CONTENT_BY_TYPE.items(), ids=CONTENT_BY_TYPE)
def test_image_is_recognised_by_its_content(workspace: Path, media_type: str, content: bytes) -> None:
    (workspace / "picture.txt").write_bytes(content)
    known_files = KnownFileVersions()
    caption, image = attach(workspace, "see @picture.txt", known_files=known_files).blocks
    assert caption == Text("[Image picture.txt]")
    assert image == Image(media_type, digest(content), "picture.txt")
    assert isinstance(image, Image)
    assert b64decode(image.data) == content
    assert not known_files.digests, "an attached image counted as a text that was read"


def test_images_with_one_name_are_both_attached(workspace: Path) -> None:
    one, other = (image_of("shot.png", PNG + end) for end in (b"1", b"2"))
    assert one is not None
    assert other is not None
    lines = [LineContent("L1", "look", (one,)), LineContent("L2", "and this", (other, one))]  # one is attached once
    attachments = read_named_files(workspace, KnownFileVersions(), lines)
    assert [block for block in attachments.blocks if isinstance(block, Image)] == [one, other]
