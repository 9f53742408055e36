"""What a user attaches to a line: the image in the clipboard, and files outside the workspace."""

from __future__ import annotations

import os
import shlex
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from support import open_session
from support.sessions import Session

from chain.errors import UserError
from cli.terminal import attachments
from cli.terminal.attachments import Attachments, outside_path, read_clipboard
from cli.terminal.display import Display
from cli.terminal.invocation import TerminalStyle
from cli.terminal.slash import CommandAnswer, Commands
from cli.terminal.terminal_session import TerminalSession

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


async def test_the_first_program_that_has_an_image_gives_it(programs: Path) -> None:
    environ = {"PATH": str(programs)}
    with pytest.raises(UserError, match="install wl-paste"):
        await read_clipboard(environ)
    program(programs, "wl-paste", "cat pixel; exit 1")
    assert await read_clipboard(environ) == b""
    program(programs, "xclip", "echo $@ > asked; cat pixel")
    assert await read_clipboard(environ) == PIXEL
    assert (programs / "asked").read_text() == "-selection clipboard -target image/png -out\n"


async def test_a_clipboard_that_does_not_answer_and_one_that_is_endless(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"PATH": str(programs)}
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


async def test_what_is_no_image_is_not_attached(programs: Path) -> None:
    program(programs, "pngpaste", "echo text")
    with pytest.raises(UserError, match="no image in the clipboard"):
        await Attachments().attach_clipboard({"PATH": str(programs)})


async def test_files_have_labels_and_go_with_the_lines_that_have_these(tmp_path: Path) -> None:
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
async def test_files_that_are_not_attached(tmp_path: Path, content: bytes | None, why: str) -> None:
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
def test_which_pastes_are_files_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pasted: str, name: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for each in ("out/a.txt", "out/a b.txt", "project/in.txt", "lib/in.txt"):
        (tmp_path / each).parent.mkdir(exist_ok=True)
        (tmp_path / each).touch()
    found = outside_path(pasted.replace("{}", str(tmp_path)), (tmp_path / "project", tmp_path / "lib"), 1e6)
    assert found == (tmp_path / "out" / name if name else None)


class Shown:
    """A screen whose editor only remembers what is inserted."""

    has_keys = True
    width = 80

    def __init__(self) -> None:
        self.rows: list[str] = []
        self.inserted = trio.Event()
        self.text = ""

    def show(self, rows: list[str], tail: str = "") -> None:
        self.rows += rows

    def insert(self, text: str) -> None:
        self.text = text
        self.inserted.set()

    def ask(self, question: str | None, keys: str = "") -> None: ...

    def refresh(self) -> None: ...

    async def shown(self) -> None: ...


class Owner:
    """A program that has nothing else to do."""

    def give_back(self, text: str) -> None: ...

    def mark_unsent(self, text: str) -> None: ...

    def carry_out(self, command: str, answer: CommandAnswer) -> None: ...


@asynccontextmanager
async def at_terminal() -> AsyncIterator[tuple[TerminalSession, Shown, Session]]:
    screen = Shown()
    async with (
        open_session("rules: [{text: Noted.}]", interactive=True) as session,
        trio.open_nursery() as nursery,
    ):
        display = Display(screen, TerminalStyle(color=False, ascii=False), None, None)  # type: ignore[arg-type]
        terminal = TerminalSession(session.chain, Commands(session.chain, session.use), Owner(), display)
        await nursery.start(_run, terminal)
        yield terminal, screen, session
        await terminal.finish()


async def _run(terminal: TerminalSession, task_status: trio.TaskStatus[None]) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(terminal.run)
        await trio.testing.wait_all_tasks_blocked()
        task_status.started()


async def test_the_line_goes_with_the_image_in_the_clipboard(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(programs, "wl-paste", "cat pixel")
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    async with at_terminal() as (terminal, screen, session):
        terminal.paste_image()
        await screen.inserted.wait()
        assert screen.text == "[clipboard-1.png]"
        assert screen.rows[-1] == f"Attached clipboard-1.png (PNG, {len(PIXEL)} bytes)."
        assert terminal.accept("what is [clipboard-1.png]?") == "accepted"
        await session.chain.wait_idle()
        [image] = [image for m in session.model.requests[-1].messages for image in m.images]
        assert b64decode(image.data) == PIXEL
        assert terminal.accept("and now") == "accepted"
        await session.chain.wait_idle()
        assert not session.model.requests[-1].messages[-1].images


async def test_a_file_that_cannot_be_attached_stays_text(tmp_path: Path) -> None:
    async with at_terminal() as (terminal, screen, _):
        terminal.attach_path(str(tmp_path / "none"), "pasted")
        await screen.inserted.wait()
    assert screen.text == "pasted"
    assert any("Nothing was attached:" in row for row in screen.rows)
