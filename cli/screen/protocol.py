"""The interfaces between a terminal (``editor``, ``dumb``) and the listener that receives its input.

Call the methods of a ``Listener`` in trio's thread. They return at once, but ``wait_ready`` waits. Any thread may call
``menu``, ``target``, ``outside_path`` and ``toolbar``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, Protocol, TypeAlias

from cli.show.toolbar import ToolbarPart

Acceptance: TypeAlias = Literal["accepted", "answered", "keep", "replace", "later", "gone"]
"""What happens to a typed line. ``accepted``: the line was submitted. ``answered``: it was submitted as an answer.
Otherwise it stays in the editor. ``keep``: the user must correct it. ``replace``: the next key replaces it. ``later``:
the user may send it again unchanged. ``gone``: it is no longer an answer, since its question has closed."""


def prompt_sign(question: str, target: str = "") -> str:
    """Return the prompt before the typed text. It shows the question that the text answers, or else the agent."""
    if question:
        return f"{question}? "
    return f"{target} > " if target else "> "


class Choice(NamedTuple):
    """A completion of the text before the cursor, as an entry of the menu."""

    text: str
    """The text before the cursor after the completion was inserted."""
    label: str
    about: str = ""


class Listener(Protocol):
    """The receiver of typed lines and keys."""

    def accept(self, text: str, *, question_id: str = "", again: bool = False) -> Acceptance:
        """Submit a line and return what the editor does with it.

        ``question_id``: the question that was open when the user began to type; empty if there was none. ``again``: the
        line was returned to the editor earlier, and the user sends it unchanged.
        """

    async def wait_ready(self) -> None:
        """Wait until a session switch has finished, so that lines are not refused because of it."""

    def on_escape(self, *, has_text: bool) -> None:
        """Handle Esc. ``has_text``: the editor is not empty."""

    def on_ctrl_c(self, *, has_text: bool) -> bool:
        """Handle Ctrl-C, and return whether to clear the text in the editor. ``has_text``: the editor is not empty."""

    def next_mode(self) -> None:
        """Handle Shift-Tab."""

    def leave(self) -> None:
        """Handle Ctrl-D on an empty line."""

    def hang_up(self) -> None:
        """Handle the loss of the terminal."""

    def paste_image(self) -> None:
        """Handle Ctrl-V: attach the image in the clipboard to the typed line."""

    def outside_path(self, pasted: str) -> str:
        """Return the path of a file outside the tools' folders if the pasted text names one; else an empty text."""

    def attach_path(self, path: str, pasted: str) -> None:
        """Attach a file to the typed line. If that fails, insert the pasted text again."""

    def take_back(self) -> str | None:
        """Drop the latest waiting line and return its text; ``None`` if there is none."""

    def session_rows(self) -> Iterator[str]:
        """Return the rows of the session for any thread. Iterating raises ``UserError`` if they cannot be read."""

    @property
    def awaits_input(self) -> bool:
        """Whether the program waits for the user to type."""

    def completions(self, text: str) -> Sequence[str]:
        """Return the completions of ``text``, the text before the cursor, each as the whole new text."""

    def menu(self, text: str) -> Sequence[Choice]:
        """Return the completions to offer while the user types: only commands and files."""

    def target(self, typed: str) -> str:
        """Return the name of the agent to which the typed line would go; empty for the main agent."""

    def toolbar(self, width: int, typed: str, question_id: str, lines_before: int, keys: str) -> Sequence[ToolbarPart]:
        """Return the row below the prompt, at most ``width`` columns wide.

        ``typed``: the line that is being typed. ``question_id``: the question that was open at its first key; empty for
        none. ``lines_before``: how many lines Enter sends before ``typed``. ``keys``: those that answer without Enter.
        """


class ScreenAbilities(Protocol):
    """The abilities of a terminal that commands depend on."""

    has_keys: bool
    """Whether the terminal has an editor, which reads keys such as Esc."""

    @property
    def has_clipboard(self) -> bool:
        """Whether ``Screen.copy`` may work. If false, ``Screen.copy`` does nothing."""


class Screen(ScreenAbilities, Protocol):
    """A terminal that shows rows, and contains the text that is being typed."""

    def copy(self, text: str) -> None:
        """Put a text on the clipboard, if the terminal allows that. A failure is not reported."""

    @property
    def width(self) -> int:
        """Columns of the terminal."""

    def listen(self, listener: Listener) -> None:
        """Set the listener, and pass it the input that was typed before this call."""

    def show(self, rows: Sequence[str], tail: str = "") -> None:
        """Show finished rows above the prompt, and below them the unfinished rows ``tail``. Never blocks."""

    def ask(self, question: str | None, keys: str = "") -> None:
        """Set the question that text begun from now on answers; ``None`` for none. ``keys`` answer it without Enter."""

    async def wait_shown(self) -> None:
        """Wait until all rows are on the screen."""

    def refresh(self) -> None:
        """Redraw the toolbar."""

    def alert(self, title: str, *, rings: bool) -> None:
        """Set the window's title, if the terminal has one, until the user types. Ring the bell if ``rings``."""

    def name_window(self, title: str) -> None:
        """Set the title of the window between alerts, if the terminal has one. ``close`` restores the original."""

    def redraw(self) -> None:
        """Redraw the prompt after a change of the terminal's size, or after another program used the terminal."""

    def give_back(self, text: str) -> None:
        """Put a returned line into the editor, below lines that were returned earlier and above the typed text."""

    def insert(self, text: str) -> None:
        """Insert a text at the cursor of the editor."""

    def edit(self, text: str) -> None:
        """Put a text into the editor to be changed, above the typed text."""

    @property
    def text(self) -> str:
        """The text in the editor; any thread may read it."""

    def discard_text(self) -> None:
        """Empty the editor, and add its text to the history."""

    async def close(self) -> None:
        """Remove the prompt, and restore the terminal."""
