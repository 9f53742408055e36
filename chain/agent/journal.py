"""A journal as the loop needs it."""

from __future__ import annotations

from typing import Protocol

from chain.lines.receipts import Journal


class FlushedJournal(Journal, Protocol):
    """A journal that can be waited for."""

    async def flush(self) -> None:
        """Wait until what was recorded is on the disk and acknowledged. Raises ``JournalError``."""
        ...
