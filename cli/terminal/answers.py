"""What a slash command answers, and what it leaves to the program. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chain import Task


@dataclass(frozen=True, slots=True)
class Opening:
    """The session to go on with: the one with the id ``resume``, or a new one with this plan."""

    plan: tuple[Task, ...] = ()
    resume: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a command.

    ``text`` is what to show. ``edit`` goes into the editor, above what is there. ``keeps``: the command was not
    understood, so what was typed stays in the editor. ``quit``: the program ends. ``preview`` is what a call would do,
    and ``agent`` an agent whose work is to be shown whole. With an ``opening`` the text is for the moment when that
    session is open.
    """

    text: str = ""
    preview: str = ""
    agent: str = ""
    edit: str | None = None
    keeps: bool = False
    quit: bool = False
    opening: Opening | None = None
