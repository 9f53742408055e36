"""What a terminal and the one who listens to it ask of each other: kept to by ``terminal`` and ``plain``.

Every call of a ``Listener`` comes in trio's thread and is answered at once, except ``toolbar``, which any thread may
call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

from chain.lines.parse import Urgency

Taken: TypeAlias = Literal["taken", "keep", "later"]
"""What became of a line: it was taken; it stays in the editor to be put right; it stays to be sent again as it is."""


class Listener(Protocol):
    """Who reads what is typed."""

    def accept(self, text: str, *, urgency: Urgency) -> Taken:
        """Take a line."""
        ...

    def escape(self) -> None:
        """Esc was pressed."""
        ...

    def ctrl_c(self, *, has_text: bool) -> bool:
        """Ctrl-C was pressed. Whether the text in the editor is to be cleared."""
        ...

    def leave(self) -> None:
        """Ctrl-D on an empty line."""
        ...

    def hang_up(self) -> None:
        """The terminal is gone."""
        ...

    def take_back(self) -> str | None:
        """The latest waiting line, which waits no longer; ``None`` if there is none to take."""
        ...

    def redrawn(self) -> None:
        """Ctrl-L was pressed, and the screen is empty but for the prompt."""
        ...

    def completions(self, text: str) -> Sequence[str]:
        """What could stand for the text before the cursor."""
        ...

    def toolbar(self, width: int, typed: str) -> str:
        """The row below the prompt, at most ``width`` columns wide."""
        ...


class Screen(Protocol):
    """Where the rows are shown, and the text that is being typed."""

    @property
    def width(self) -> int:
        """Columns of the terminal."""
        ...

    def listen(self, listener: Listener) -> None:
        """Say who reads what is typed; what was typed until then waits for this."""
        ...

    def show(self, rows: Sequence[str], tail: str = "") -> None:
        """Show whole rows above the prompt, and below them the unfinished one. Never blocks."""
        ...

    async def shown(self) -> None:
        """Wait until all of it is on the screen."""
        ...

    def refresh(self) -> None:
        """Draw the toolbar anew."""
        ...

    def resized(self) -> None:
        """The terminal has another size now."""
        ...

    def give_back(self, text: str) -> None:
        """Put a line into the editor, below others that came back and above what is being typed."""
        ...

    def edit(self, text: str) -> None:
        """Put a text into the editor to be changed, above what is being typed."""
        ...

    async def close(self) -> str:
        """Take the prompt away and leave the terminal as it was. The text that was in the editor."""
        ...
