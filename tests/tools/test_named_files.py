"""The files that lines name: which words do, what goes along of each, and what is said of those that do not."""

from __future__ import annotations

import os
import socket
from base64 import b64decode
from pathlib import Path

import pytest

from chain.messages import Image, Text
from chain.text.wording import FILE_BEGIN, STDIN_BEGIN, STDIN_END
from chain.tools import named_files
from chain.tools.named_files import MAX_ATTACHED_CHARS, MAX_NAMED, Attachments, LineContent, image_of, read_named_files
from chain.tools.seen import KnownFileVersions, digest

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """Two files, one in a folder; and outside a file that is none of ours."""
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
        "@a.txt is what I mean",
        "is it (@a.txt)?",
        "read @a.txt.",
        "see @a.txt, then go on",
        "see @a.txt:2 and @a.txt:1-2!",
        "see @./a.txt",
        "see @docs/../a.txt",
        'see @"a.txt".',
    ],
)
def test_a_file_goes_along_with_the_number_of_its_lines(workspace: Path, line: str) -> None:
    found = read(workspace, line)
    assert texts(found) == ["[File a.txt, 2 lines]\nalpha\nbeta\n"]
    assert "(2 lines)" in found.notes["L1"]


@pytest.mark.parametrize(
    "line",
    [
        "mail me@a.txt",
        "@@a.txt",
        "the decorator @property and @nobody",
        "@",
        "@ a.txt",
        "an email to x@example.org",
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
def test_what_names_nothing_that_exists_stays_text(workspace: Path, line: str) -> None:
    assert read(workspace, line) == Attachments()


def test_a_name_with_spaces_stands_in_quotation_marks(workspace: Path) -> None:
    assert texts(read(workspace, 'read @"docs/b c.md" first')) == ["[File docs/b c.md, 1 line]\ngamma\n"]


def test_an_absolute_path_in_the_workspace_is_one_of_the_workspace(workspace: Path) -> None:
    assert texts(read(workspace, f"read @{workspace / 'a.txt'}")) == ["[File a.txt, 2 lines]\nalpha\nbeta\n"]


def test_a_file_goes_along_once_and_each_line_says_so(workspace: Path) -> None:
    found = read(workspace, "@a.txt and @./a.txt", "nothing", "again @a.txt")
    assert texts(found)[0] == "[File a.txt, 2 lines]\nalpha\nbeta\n"
    assert len(found.blocks) == 1
    assert dict(found.notes) == {"L1": "with a.txt (2 lines)", "L3": "with a.txt (2 lines)"}


def test_a_folder_goes_along_as_its_list(workspace: Path) -> None:
    found = read(workspace, "what is in @docs/ and in @.")
    assert texts(found) == ["[Folder docs, 1 entry]\nb c.md", "[Folder ., 2 entries]\na.txt\ndocs/"]


def test_a_large_folder_is_cut(workspace: Path) -> None:
    for n in range(named_files.MAX_ENTRIES + 5):
        (workspace / "docs" / f"{n:04}").touch()
    (shown,) = texts(read(workspace, "@docs"))
    assert shown.endswith("(6 more are not shown)")
    assert shown.count("\n") == named_files.MAX_ENTRIES + 1


def test_of_a_long_file_its_beginning_goes_along_and_a_word_of_the_rest(workspace: Path) -> None:
    (workspace / "long").write_text("0123456789\n" * 5_000)
    seen = KnownFileVersions()
    (shown,) = texts(read(workspace, "@long", seen=seen))
    whole = MAX_ATTACHED_CHARS // 11
    head, _, body = shown.partition("\n")
    assert head == (
        f"[File long, 5,000 lines; lines 1 to {whole} are here, and the rest can be read from line {whole + 1} on]"
    )
    assert body == "0123456789\n" * whole
    assert seen.digests.get(workspace / "long") == digest((workspace / "long").read_bytes())


def test_of_a_long_line_the_beginning_goes_along(workspace: Path) -> None:
    (workspace / "long").write_text("x" * 50_000)
    (shown,) = texts(read(workspace, "@long"))
    assert shown.startswith(
        "[File long, 1 line; its beginning is here, and the rest can be read from column 20001 on]\nxxx"
    )
    assert shown.count("x") == MAX_ATTACHED_CHARS


def test_what_went_along_counts_as_read(workspace: Path) -> None:
    seen = KnownFileVersions()
    read(workspace, "@a.txt", seen=seen)
    assert seen.digests.get(workspace / "a.txt") == digest(b"alpha\nbeta\n")
    assert seen.digests.get(workspace / "docs/b c.md") is None


@pytest.mark.parametrize("name", ["../secret", "~/../secret", "link", "folder/secret"])
def test_what_is_outside_is_left_out_and_said(workspace: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(workspace))
    (workspace / "link").symlink_to(workspace.parent / "secret")
    (workspace / "folder").symlink_to(workspace.parent)
    found = read(workspace, f"read @{name} now")
    assert found == Attachments(notes={"L1": f"without {name}: outside the workspace"})


def test_a_link_inside_is_followed(workspace: Path) -> None:
    (workspace / "link").symlink_to("a.txt")
    seen = KnownFileVersions()
    assert texts(read(workspace, "@link", seen=seen)) == ["[File link, 2 lines]\nalpha\nbeta\n"]
    assert seen.digests.get(workspace / "a.txt") is not None


def test_what_cannot_be_read_as_text_is_left_out_and_said(workspace: Path) -> None:
    (workspace / "data").write_bytes(b"a\0b")
    os.mkfifo(workspace / "pipe")
    with (workspace / "huge").open("wb") as file:
        file.truncate(80_000_000)
    with socket.socket(socket.AF_UNIX) as listening:
        here = os.open(workspace, os.O_RDONLY)
        listening.bind(f"/proc/self/fd/{here}/socket")
        os.close(here)
        found = read(workspace, "@data @pipe @huge @socket @a.txt")
    assert len(found.blocks) == 1
    assert found.notes["L1"] == (
        "with a.txt (2 lines); without data: binary; without pipe: a device, a pipe or a socket; "
        "without huge: too large, 80,000,000 bytes; without socket: a device, a pipe or a socket"
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_the_right_to_it_is_left_out_and_said(workspace: Path) -> None:
    (workspace / "a.txt").chmod(0)
    assert read(workspace, "@a.txt").notes["L1"] == "without a.txt: cannot be read: Permission denied"


def test_the_files_of_one_message_are_bounded(workspace: Path) -> None:
    for n in range(MAX_NAMED + 1):
        (workspace / f"f{n}").write_text(f"{n}\n")
    found = read(workspace, " ".join(f"@f{n}" for n in range(MAX_NAMED + 1)))
    assert len(found.blocks) == MAX_NAMED
    assert found.notes["L1"].endswith(f"without f{MAX_NAMED}: more than the {MAX_NAMED} files of one message")


def test_their_bytes_are_bounded(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_files, "MAX_NAMED_BYTES", 15)
    found = read(workspace, '@a.txt @"docs/b c.md"')
    assert texts(found) == ["[File a.txt, 2 lines]\nalpha\nbeta\n"]
    assert "without docs/b c.md: more than" in found.notes["L1"]


def test_a_name_that_a_terminal_would_obey_is_shown_without_that(workspace: Path) -> None:
    (workspace / "\x1b[2J").write_text("x\n")
    found = read(workspace, "@\x1b[2J")
    assert "\x1b" not in found.notes["L1"] + texts(found)[0]


def test_a_disk_that_does_not_answer_holds_up_nothing_for_long(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(named_files, "run_with_timeout", lambda work, timeout: False)
    found = read(workspace, "@a.txt", "no file")
    assert found == Attachments(notes={"L1": "without its files: their disk does not respond"})


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n and so on", "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
    ],
)
def test_an_image_goes_along_by_its_content_whatever_it_is_called(workspace: Path, content: bytes, kind: str) -> None:
    (workspace / "picture.txt").write_bytes(content)
    seen = KnownFileVersions()
    found = read(workspace, "see @picture.txt", seen=seen)
    assert found.blocks == (Text("[Image picture.txt]"), Image(kind, digest(content), "picture.txt"))
    assert isinstance(image := found.blocks[1], Image)
    assert b64decode(image.data) == content
    assert seen.digests.get(workspace / "picture.txt") is None


def test_two_images_of_one_name_both_go_along(workspace: Path) -> None:
    one, other = (image_of("shot.png", PNG + end) for end in (b"1", b"2"))
    assert one is not None
    assert other is not None
    sent = read_named_files(
        workspace, KnownFileVersions(), [LineContent("L1", "look", (one,)), LineContent("L2", "and this", (other, one))]
    )
    assert [block for block in sent.blocks if isinstance(block, Image)] == [one, other]
