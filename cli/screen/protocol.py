"""The interface between a terminal (``editor``, ``dumb``) and the listener that its input goes to.

Every method of a ``Listener`` is called in trio's thread and returns at once, except ``menu``, ``target``,
``outside_path`` and ``toolbar``, which any thread may call, and ``ready``, which waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, Protocol, TypeAlias

from cli.show.toolbar import ToolbarPart

Acceptance: TypeAlias = Literal["accepted", "answered", "keep", "replace", "later", "gone"]
"""What happened to a line: accepted, as it is or as an answer; kept in the editor to be corrected, or to be replaced by
the next key, as what was not meant so; kept there to be sent again later as it is; kept there since the question that
it was to answer has gone, and a line from now on."""


def sign(question: str, target: str = "") -> str:
    """Return what stands before the text: the question that it answers, or the prompt with the agent it is for."""
    if question:
        return f"{question}? "
    return f"{target} > " if target else "> "


class Choice(NamedTuple):
    """A completion of the text before the cursor."""

    text: str
    """The whole text with the completion."""
    label: str
    about: str = ""


class Listener(Protocol):
    """Receives what is typed."""

    def accept(self, text: str, *, at: str = "", again: bool = False) -> Acceptance:
        """Accept a line begun at the question ``at``, or say why it stays; ``again``: it came back unchanged."""

    async def ready(self) -> None:
        """Wait until no line has to be sent again only because another session is being opened."""

    def escape(self, *, has_text: bool) -> None:
        """Handle Esc; ``has_text``: something is typed."""

    def ctrl_c(self, *, has_text: bool) -> bool:
        """Handle Ctrl-C. Returns whether to clear the text in the editor."""

    def next_mode(self) -> None:
        """Handle Shift-Tab."""

    def leave(self) -> None:
        """Handle Ctrl-D on an empty line."""

    def hang_up(self) -> None:
        """Handle the loss of the terminal."""

    def paste_image(self) -> None:
        """Attach the image in the clipboard to the line that is being typed."""

    def outside_path(self, pasted: str) -> str:
        """Return the path of a file that a pasted text is, if tools may not read it; else an empty text."""

    def attach_path(self, path: str, pasted: str) -> None:
        """Attach a file to the line that is being typed. If that fails, put back what was pasted."""

    def take_back(self) -> str | None:
        """Drop the latest waiting line and return its text; ``None`` if there is none."""

    def session_rows(self) -> Iterator[str]:
        """Return the rows of the whole session, which any thread may read. Reading raises ``UserError``."""

    @property
    def awaits_input(self) -> bool:
        """Whether nothing happens until the user types."""

    def completions(self, text: str) -> Sequence[str]:
        """Return the whole texts that the text before the cursor can be completed to."""

    def menu(self, text: str) -> Sequence[Choice]:
        """Return the commands or files among these, which are offered while the user types."""

    def target(self, typed: str) -> str:
        """Return the agent that the line would go to; empty for the main one."""

    def toolbar(self, width: int, typed: str, at: str, others: int, keys: str) -> Sequence[ToolbarPart]:
        """Return the row below the prompt, ``width`` columns wide; Enter sends ``others`` before what is ``typed``.

        ``keys`` answer the question ``at`` which it was begun, without Enter.
        """


class Screen(Protocol):
    """Shows rows, and holds the text that is being typed."""

    has_keys: bool
    """Whether there is an editor, with keys of its own such as Esc."""

    @property
    def has_clipboard(self) -> bool:
        """Whether ``copy`` can work."""

    def copy(self, text: str) -> None:
        """Put a text on the clipboard. Whether the terminal allows that is not known."""

    @property
    def width(self) -> int:
        """Columns of the terminal."""

    def listen(self, listener: Listener) -> None:
        """Set the listener; what was typed before waits for this call."""

    def show(self, rows: Sequence[str], tail: str = "") -> None:
        """Show whole rows above the prompt, and below them the unfinished ones. Never blocks."""

    def ask(self, question: str | None, keys: str = "") -> None:
        """Let what is begun in an empty editor from now on answer this question, or one of the keys do."""

    async def shown(self) -> None:
        """Wait until all rows are on the screen."""

    def refresh(self) -> None:
        """Redraw the toolbar."""

    def alert(self, title: str, *, rings: bool) -> None:
        """Say in the window's title, where there is one, what is waited for, until the user types; ``rings``: aloud."""

    def name_window(self, title: str) -> None:
        """Set the title that the window has between alerts, where there is one; the terminal restores its own later."""

    def redraw(self) -> None:
        """Draw the prompt anew: the terminal has another size, or another program had it."""

    def give_back(self, text: str) -> None:
        """Put a line into the editor, below others that came back and above what is being typed."""

    def insert(self, text: str) -> None:
        """Insert a text at the cursor of the editor."""

    def edit(self, text: str) -> None:
        """Put a text into the editor to be changed, above what is being typed."""

    @property
    def typed(self) -> str:
        """The text in the editor; any thread may read it."""

    async def close(self) -> None:
        """Remove the prompt, and restore the terminal."""
