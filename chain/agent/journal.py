"""A journal as the loop needs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from chain.errors import JournalError
from chain.lines.receipts import Journal


class FlushedJournal(Journal, Protocol):
    """A journal that can be waited for."""

    def look(self, agent: str) -> None:
        """Called by an agent's own code wherever others may just have acted."""
        ...

    def when_failed(self, action: Callable[[JournalError], None]) -> None:
        """Call ``action`` when the disk fails for good."""
        ...

    async def written(self) -> None:
        """Wait for what the disk takes its time to write, if there is any. Raises ``JournalError``."""
        ...

    async def flush(self) -> None:
        """Wait until what was recorded is on the disk and acknowledged. Raises ``JournalError``."""
        ...
