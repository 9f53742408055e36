"""Attachments of a line: the image in the clipboard, and files outside the workspace."""

from __future__ import annotations

import os
import shlex
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path

import pytest
from support.prompt import open_terminal_session

from chain.chain import MAX_IMAGE
from chain.errors import UserError
from cli.terminal.attachments import MAX_TEXT, Attachments, outside_path, read_clipboard

PIXEL = b64decode(  # a PNG
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder for programs that read the clipboard, with the image ``pixel``."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "pixel").write_bytes(PIXEL)
    return folder


def install(folder: Path, name: str, script: str) -> None:
    """Install a shell script as a program that runs in its folder."""
    (folder / name).write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\ncd {shlex.quote(str(folder))}\n{script}\n")
    (folder / name).chmod(0o755)


async def test_the_first_program_with_an_image_is_used(programs: Path) -> None:
    install(programs, "wl-paste", "cat pixel; exit 1")  # tried first, and ignored because it fails
    install(programs, "xclip", "echo $@ > arguments; cat pixel")
    install(programs, "pngpaste", "echo text")  # never tried
    assert await read_clipboard({"PATH": str(programs)}) == PIXEL
    assert (programs / "arguments").read_text() == "-selection clipboard -target image/png -out\n"


@pytest.mark.parametrize(
    ("program", "script", "error"),
    [
        pytest.param("unknown-paste", "cat pixel", "install wl-paste", id="no known program"),
        pytest.param("wl-paste", "cat pixel; exit 1", "no image in the clipboard", id="a program that fails"),
        pytest.param("wl-paste", "echo text", "no image in the clipboard", id="a text"),
        pytest.param("wl-paste", "cat pixel; exec cat /dev/zero", f"more than {MAX_IMAGE:,} bytes", id="endless"),
    ],
)
async def test_a_clipboard_without_an_image_is_an_error(
    programs: Path, monkeypatch: pytest.MonkeyPatch, program: str, script: str, error: str
) -> None:
    monkeypatch.setattr("cli.terminal.attachments.CLIPBOARD_S", 1e6)  # a slow machine is not a hanging program
    install(programs, program, script)
    with pytest.raises(UserError, match=error):
        await Attachments().attach_clipboard({"PATH": str(programs)})


async def test_a_hanging_clipboard_program_is_killed(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.terminal.attachments.CLIPBOARD_S", 0.1)
    install(programs, "wl-paste", "echo $$ > pid; exec sleep 1000")
    with pytest.raises(UserError, match="did not answer"):
        await read_clipboard({"PATH": str(programs)})
    if (programs / "pid").exists():  # else it was killed before it ran
        with pytest.raises(ProcessLookupError):
            os.kill(int((programs / "pid").read_text()), 0)  # which only checks that it exists


async def test_files_of_the_same_name_have_different_labels(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "notes.txt").touch()
    attachments = Attachments()
    labels = [(await attachments.attach_file(tmp_path / f"{folder}/notes.txt")).label for folder in ("a", "b", "a")]
    assert labels == ["[notes.txt]", "[notes.txt 2]", "[notes.txt]"]


async def test_a_label_attaches_its_file_once(tmp_path: Path) -> None:
    attachments = Attachments()
    for name, content in (("notes.txt", b"one"), ("dot.png", PIXEL)):
        (tmp_path / name).write_bytes(content)
        await attachments.attach_file(tmp_path / name)
    assert attachments.expand("nothing") == ("nothing", [])
    assert attachments.expand("see [dot.png]") == ("see [dot.png]", [("dot.png", PIXEL)])
    expanded = f'sum up [notes.txt]\n\n<file path="{tmp_path}/notes.txt">\none\n</file>'
    assert attachments.expand("sum up [notes.txt]") == (expanded, [])
    assert attachments.expand(expanded) == (expanded, []), "a returned line, which is sent again"


@pytest.mark.parametrize(
    ("content", "error"),
    [
        pytest.param(b"\xff\xfe\0", "neither text nor an image", id="binary"),
        pytest.param(b"x" * (MAX_TEXT + 1), f"{MAX_TEXT + 1:,} characters", id="a long text"),
        pytest.param(b"x" * (MAX_IMAGE + 1), f"{MAX_IMAGE + 1:,} bytes", id="a large file"),
        pytest.param(None, "No such file", id="no file"),
    ],
)
async def test_unusable_files_are_refused(tmp_path: Path, content: bytes | None, error: str) -> None:
    if content is not None:
        (tmp_path / "file").write_bytes(content)
    with pytest.raises(UserError, match=error):
        await Attachments().attach_file(tmp_path / "file")


@pytest.fixture
def find_outside_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path | None]:
    """Return a function that finds the path of a file outside two roots in a pasted text.

    ``{}`` in the text is the home folder.
    """
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("out/a.txt", "out/a b.txt", "project/in.txt", "lib/in.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    roots = tmp_path / "project", tmp_path / "lib"
    # The long timeout is for a slow machine.
    return lambda pasted: outside_path(pasted.replace("{}", str(tmp_path)), roots, timeout_s=1e6)


@pytest.mark.parametrize(
    ("pasted", "name"),
    [
        ("{}/out/a.txt", "a.txt"),
        (" {}/out/a.txt \n", "a.txt"),
        ("'{}/out/a b.txt'", "a b.txt"),
        ('"{}/out/a b.txt"', "a b.txt"),
        ("{}/out/a\\ b.txt", "a b.txt"),
        ("{}/out/a b.txt", "a b.txt"),
        ("file://{}/out/a%20b.txt", "a b.txt"),
        ("~/out/a.txt", "a.txt"),
    ],
    ids=["plain", "blanks around", "quotes", "double quotes", "escaped blank", "bare blank", "URL", "home folder"],
)
def test_pasted_paths_of_files_outside_are_recognised(
    tmp_path: Path, find_outside_path: Callable[[str], Path | None], pasted: str, name: str
) -> None:
    assert find_outside_path(pasted) == tmp_path / "out" / name


@pytest.mark.parametrize(
    "pasted",
    [
        pytest.param("{}/out/none.txt", id="no such file"),
        pytest.param("{}/out", id="a folder"),
        pytest.param("{}/project/in.txt", id="a file inside the first root"),
        pytest.param("{}/lib/in.txt", id="a file inside the second root"),
        pytest.param("{}/out/a.txt is short", id="text after a path"),
        pytest.param("see {}/out/a.txt", id="text before a path"),
        pytest.param("out/a.txt", id="a relative path"),
        pytest.param("'{}/out/a.txt", id="an open quote"),
        pytest.param("{}/out/a.txt\n{}/out/a.txt", id="two paths"),
        pytest.param("", id="nothing"),
        pytest.param("\0", id="a null character"),
    ],
)
def test_other_pasted_texts_are_no_path(find_outside_path: Callable[[str], Path | None], pasted: str) -> None:
    assert find_outside_path(pasted) is None


async def test_only_a_labelled_line_carries_the_image(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(programs, "wl-paste", "cat pixel")
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    async with open_terminal_session() as (terminal, screen, _, session):
        terminal.paste_image()
        await screen.until(lambda: screen.calls)
        # The label is inserted into the line that the user types.
        assert screen.calls == [("insert", "[clipboard-1.png]")]
        assert f"Attached clipboard-1.png (PNG, {len(PIXEL)} bytes)." in screen.rows
        for line, images in (("what is [clipboard-1.png]?", [PIXEL]), ("and now", [])):
            terminal.accept(line)
            await session.chain.wait_idle()
            message = session.model.requests[-1].messages[-1]
            assert [b64decode(image.data) for image in message.images] == images


async def test_a_path_that_cannot_be_attached_stays_text(tmp_path: Path) -> None:
    async with open_terminal_session() as (terminal, screen, _, _):
        terminal.attach_path(str(tmp_path / "none"), pasted="pasted")
        await screen.until_row("Nothing was attached:")
        await screen.until(lambda: screen.calls)
    assert screen.calls == [("insert", "pasted")]
