"""Attachments of a line: the image in the clipboard, and files outside the workspace."""

from __future__ import annotations

import os
import shlex
from base64 import b64decode
from pathlib import Path

import pytest
from support.prompt import at_terminal

from chain.errors import UserError
from cli.terminal import attachments
from cli.terminal.attachments import Attachments, outside_path, read_clipboard

PIXEL = b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder of programs, for ``PATH``."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "pixel").write_bytes(PIXEL)
    return folder


def program(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\ncd {shlex.quote(str(folder))}\n{script}\n")
    (folder / name).chmod(0o755)


async def test_the_first_program_with_an_image_is_used(programs: Path) -> None:
    environ = {"PATH": str(programs)}
    with pytest.raises(UserError, match="install wl-paste"):
        await read_clipboard(environ)
    program(programs, "wl-paste", "cat pixel; exit 1")
    assert await read_clipboard(environ) == b""
    program(programs, "pngpaste", "echo text")
    with pytest.raises(UserError, match="no image in the clipboard"):
        await Attachments().attach_clipboard(environ)
    program(programs, "xclip", "echo $@ > asked; cat pixel")
    assert await read_clipboard(environ) == PIXEL
    assert (programs / "asked").read_text() == "-selection clipboard -target image/png -out\n"


async def test_a_clipboard_that_hangs_or_is_endless(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"PATH": str(programs)}
    monkeypatch.setattr(attachments, "CLIPBOARD_S", 1e6)
    program(programs, "wl-paste", "cat pixel; exec cat /dev/zero")
    with pytest.raises(UserError, match="more than 5,242,880 bytes"):
        await Attachments().attach_clipboard(environ)
    monkeypatch.setattr(attachments, "CLIPBOARD_S", 0.1)
    program(programs, "wl-paste", "echo $$ > pid; exec sleep 1000")
    with pytest.raises(UserError, match="did not answer"):
        await read_clipboard(environ)
    if (programs / "pid").exists():
        with pytest.raises(ProcessLookupError):
            os.kill(int((programs / "pid").read_text()), 0)


async def test_lines_carry_the_files_that_they_label(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "notes.txt").write_text(f"in {folder}")
    (tmp_path / "dot.png").write_bytes(PIXEL)
    known = Attachments()
    labels = [
        (await known.attach_file(tmp_path / name)).label
        for name in ("a/notes.txt", "b/notes.txt", "a/notes.txt", "dot.png")
    ]
    assert labels == ["[notes.txt]", "[notes.txt 2]", "[notes.txt]", "[dot.png]"]
    assert known.expand("nothing") == ("nothing", [])
    assert known.expand("see [dot.png]") == ("see [dot.png]", [("dot.png", PIXEL)])
    whole = f'sum up [notes.txt 2]\n\n<file path="{tmp_path}/b/notes.txt">\nin b\n</file>'
    assert known.expand("sum up [notes.txt 2]") == (whole, [])
    assert known.expand(whole) == (whole, [])


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\xff\xfe\0", "neither text nor an image"),
        (b"x" * 50_001, "50,001 characters"),
        (b"x" * 6_000_000, "6,000,000 bytes"),
        (None, "No such file"),
    ],
)
async def test_unusable_files_are_refused(tmp_path: Path, content: bytes | None, why: str) -> None:
    if content is not None:
        (tmp_path / "file").write_bytes(content)
    with pytest.raises(UserError, match=why):
        await Attachments().attach_file(tmp_path / "file")


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
        ("{}/out/none.txt", ""),
        ("{}/out", ""),
        ("{}/project/in.txt", ""),
        ("{}/lib/in.txt", ""),
        ("{}/out/a.txt is short", ""),
        ("see {}/out/a.txt", ""),
        ("out/a.txt", ""),
        ("'{}/out/a.txt", ""),
        ("{}/out/a.txt\n{}/out/a.txt", ""),
        ("", ""),
        ("\0", ""),
    ],
)
def test_pasted_paths_of_files_outside_are_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pasted: str, name: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for each in ("out/a.txt", "out/a b.txt", "project/in.txt", "lib/in.txt"):
        (tmp_path / each).parent.mkdir(exist_ok=True)
        (tmp_path / each).touch()
    found = outside_path(pasted.replace("{}", str(tmp_path)), (tmp_path / "project", tmp_path / "lib"), 1e6)
    assert found == (tmp_path / "out" / name if name else None)


async def test_a_line_carries_the_image_it_labels(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(programs, "wl-paste", "cat pixel")
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    async with at_terminal() as (terminal, screen, _, session):
        terminal.paste_image()
        await screen.until(lambda: screen.calls)
        assert screen.calls == [("insert", "[clipboard-1.png]")]
        assert screen.rows[-1] == f"Attached clipboard-1.png (PNG, {len(PIXEL)} bytes)."
        for line, images in (("what is [clipboard-1.png]?", [PIXEL]), ("and now", [])):
            terminal.accept(line)
            await session.chain.wait_idle()
            assert [b64decode(image.data) for image in session.model.requests[-1].messages[-1].images] == images


async def test_a_path_that_cannot_be_attached_stays_text(tmp_path: Path) -> None:
    async with at_terminal() as (terminal, screen, _, _):
        terminal.attach_path(str(tmp_path / "none"), "pasted")
        await screen.until_row("Nothing was attached:")
        await screen.until(lambda: screen.calls)
    assert screen.calls == [("insert", "pasted")]
