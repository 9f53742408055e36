"""The user's external editor and pager."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from chain.errors import UserError
from cli.screen.external import ExternalProgram, editor_command


@pytest.fixture
def path_with_vi(tmp_path: Path) -> str:
    """Return a ``PATH`` with only ``vi``."""
    (tmp_path / "vi").touch(0o755)
    return str(tmp_path)


@pytest.mark.parametrize(
    ("environ", "command"),
    [
        ({"VISUAL": "code --wait", "EDITOR": "vi"}, ["code", "--wait"]),
        ({"VISUAL": " ", "EDITOR": "'my editor' -x"}, ["my editor", "-x"]),
        ({}, ["vi"]),
    ],
    ids=["VISUAL before EDITOR", "EDITOR if VISUAL is blank", "an installed one"],
)
def test_the_editor_is_named_or_a_usual_one(environ: dict[str, str], command: list[str], path_with_vi: str) -> None:
    assert editor_command({"PATH": path_with_vi, **environ}) == command


@pytest.mark.parametrize(
    "environ", [{"PATH": "/nowhere"}, {"EDITOR": "'unclosed"}], ids=["none installed", "unclosed quote"]
)
def test_the_error_says_how_to_name_an_editor(environ: dict[str, str]) -> None:
    with pytest.raises(UserError, match="EDITOR"):
        ExternalProgram().edit("text", environ)


@pytest.mark.parametrize(
    "environ",
    [{"PATH": "/nowhere"}, {"PAGER": "cat"}, {"PAGER": "no-such-pager -x"}, {"PAGER": "'unclosed"}, {"PAGER": ""}],
    ids=["none installed", "cat is no pager", "not installed", "unclosed quote", "empty"],
)
def test_the_error_says_how_to_name_a_pager(environ: dict[str, str]) -> None:
    with pytest.raises(UserError, match="set PAGER"):
        ExternalProgram().page(["a row"], environ)


def install_script(path: Path, commands: str) -> str:
    """Write a shell script, in which ``$0`` is its path. Return the path."""
    path.write_text(f"#!/bin/sh\n{commands}\n")
    path.chmod(0o755)
    return str(path)


def test_an_error_is_raised_before_the_pager_starts(tmp_path: Path) -> None:
    def unreadable() -> Iterator[str]:
        raise UserError("the session is gone")
        yield ""  # which makes it a generator

    pager = install_script(tmp_path / "pager", "touch $0.started")
    with pytest.raises(UserError, match="the session is gone"):
        ExternalProgram().page(unreadable(), {"PAGER": pager})
    assert not (tmp_path / "pager.started").exists()


def test_a_pager_that_ends_stops_the_reading(tmp_path: Path) -> None:
    pager = install_script(tmp_path / "pager", "head -n 1 > $0.read")
    endless_rows = map(str, count())
    ExternalProgram().page(endless_rows, {"PAGER": pager, "PATH": "/usr/bin:/bin"})
    assert (tmp_path / "pager.read").read_text() == "0\n"
