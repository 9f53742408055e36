"""The interfaces between a terminal (``editor``, ``dumb``) and the listener that receives its input.

Every method of a ``Listener`` is called in trio's thread and returns at once, except ``menu``, ``target``,
``outside_path`` and ``toolbar``, which any thread may call, and ``wait_ready``, which waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, Protocol, TypeAlias

from cli.show.toolbar import ToolbarPart

Acceptance: TypeAlias = Literal["accepted", "answered", "keep", "replace", "later", "gone"]
"""The result for a line. ``accepted``: submitted. ``answered``: submitted as an answer. ``keep``: stays in the editor
to be corrected. ``replace``: stays, and the next key replaces it. ``later``: stays, and is sent again unchanged.
``gone``: stays as an ordinary line, since its question has closed."""


def prompt_sign(question: str, target: str = "") -> str:
    """Return the prompt before the text: the question that it answers, or the default prompt with the target agent."""
    if question:
        return f"{question}? "
    return f"{target} > " if target else "> "


class Choice(NamedTuple):
    """A completion of the text before the cursor."""

    text: str
    """The whole text including the completion."""
    label: str
    about: str = ""


class Listener(Protocol):
    """The receiver of typed lines and keys."""

    def accept(self, text: str, *, at: str = "", again: bool = False) -> Acceptance:
        """Submit a line and return what the editor does with it.

        ``at`` is the id of the question that was open when the user began to type; empty if there was none. ``again``:
        the line was given back to the editor earlier, and the user sends it unchanged.
        """

    async def wait_ready(self) -> None:
        """Wait until a session switch has finished, so that lines are not refused because of it."""

    def on_escape(self, *, has_text: bool) -> None:
        """Handle Esc; ``has_text``: the editor is not empty."""

    def on_ctrl_c(self, *, has_text: bool) -> bool:
        """Handle Ctrl-C. Return whether to clear the text in the editor."""

    def next_mode(self) -> None:
        """Handle Shift-Tab."""

    def leave(self) -> None:
        """Handle Ctrl-D on an empty line."""

    def hang_up(self) -> None:
        """Handle the loss of the terminal."""

    def paste_image(self) -> None:
        """Attach the image in the clipboard to the typed line."""

    def outside_path(self, pasted: str) -> str:
        """Return the path if the pasted text is that of a file outside the tools' folders; else an empty text."""

    def attach_path(self, path: str, pasted: str) -> None:
        """Attach a file to the typed line. If that fails, insert the pasted text again."""

    def take_back(self) -> str | None:
        """Drop the latest waiting line and return its text; ``None`` if there is none."""

    def session_rows(self) -> Iterator[str]:
        """Return the rows of the whole session. Any thread may read them, which raises ``UserError``."""

    @property
    def awaits_input(self) -> bool:
        """Whether nothing happens until the user types."""

    def completions(self, text: str) -> Sequence[str]:
        """Return the whole texts that complete the text before the cursor."""

    def menu(self, text: str) -> Sequence[Choice]:
        """Return the commands or files among the completions, which are offered while the user types."""

    def target(self, typed: str) -> str:
        """Return the agent that the typed line would go to; empty for the main one."""

    def toolbar(self, width: int, typed: str, at: str, others: int, keys: str) -> Sequence[ToolbarPart]:
        """Return the row below the prompt, at most ``width`` columns wide.

        Enter sends ``others`` lines before the ``typed`` one, which was begun at the question ``at``. ``keys`` answer
        that question without Enter.
        """


class ScreenAbilities(Protocol):
    """The abilities of a terminal that commands depend on."""

    has_keys: bool
    """Whether there is an editor, with keys of its own such as Esc."""

    @property
    def has_clipboard(self) -> bool:
        """Whether ``Screen.copy`` can work."""


class Screen(ScreenAbilities, Protocol):
    """A terminal that shows rows, and contains the text that is being typed."""

    def copy(self, text: str) -> None:
        """Put a text on the clipboard. Whether the terminal allows this is not known."""

    @property
    def width(self) -> int:
        """Columns of the terminal."""

    def listen(self, listener: Listener) -> None:
        """Set the listener. Input typed before waits for this call."""

    def show(self, rows: Sequence[str], tail: str = "") -> None:
        """Show finished rows above the prompt, and replace the unfinished ones below them. Never blocks."""

    def ask(self, question: str | None, keys: str = "") -> None:
        """Set the open question. Text begun from now on answers it; one of the ``keys`` does so without Enter."""

    async def wait_shown(self) -> None:
        """Wait until all rows are on the screen."""

    def refresh(self) -> None:
        """Redraw the toolbar."""

    def alert(self, title: str, *, rings: bool) -> None:
        """Set the window's title until the user types, if the terminal has one; ``rings`` rings the bell."""

    def name_window(self, title: str) -> None:
        """Set the title that the window has between alerts, if the terminal has one.

        ``close`` restores the original.
        """

    def redraw(self) -> None:
        """Redraw the prompt after a change of the terminal's size, or after another program had the terminal."""

    def give_back(self, text: str) -> None:
        """Put a line into the editor, below others that came back and above the typed text."""

    def insert(self, text: str) -> None:
        """Insert a text at the cursor of the editor."""

    def edit(self, text: str) -> None:
        """Put a text into the editor to be changed, above the typed text."""

    @property
    def text(self) -> str:
        """The text in the editor; any thread may read it."""

    def discard_text(self) -> None:
        """Empty the editor. The history keeps the text."""

    async def close(self) -> None:
        """Remove the prompt, and restore the terminal."""
