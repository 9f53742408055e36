"""Which editor gets the text of the prompt."""

from __future__ import annotations

from pathlib import Path

import pytest

from chain.errors import UserError
from cli.screen.outside import OutsideEditor, editor_command


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A path with a program ``vi`` alone."""
    (tmp_path / "vi").touch(0o755)
    return str(tmp_path)


@pytest.mark.parametrize(
    ("environ", "command"),
    [
        ({"VISUAL": "code --wait", "EDITOR": "vi"}, ["code", "--wait"]),
        ({"VISUAL": " ", "EDITOR": "'my editor' -x"}, ["my editor", "-x"]),
        ({}, ["vi"]),
    ],
)
def test_the_editor_that_is_named_else_a_usual_one(environ: dict[str, str], command: list[str], path: str) -> None:
    assert editor_command({"PATH": path, **environ}) == command


@pytest.mark.parametrize("environ", [{"PATH": "/nowhere"}, {"EDITOR": "'unclosed"}])
def test_without_an_editor_it_is_said_how_to_name_one(environ: dict[str, str]) -> None:
    with pytest.raises(UserError, match="EDITOR"):
        OutsideEditor().edit("text", environ)
