"""A store in memory. It forgets a session when the session is closed."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import NoReturn

from chain.errors import SessionError
from chain.journal.file import MemoryFile
from chain.journal.journal import Journal
from chain.session.listing import Summary
from chain.session.state import State
from chain.session.store import OpenSession


class MemoryStore:
    """A ``Store`` whose sessions exist only in memory. A closed session cannot be found or resumed."""

    def check(self) -> None:
        """Do nothing: memory can always be used."""

    @asynccontextmanager
    async def open_new(self, workspace: Path) -> AsyncIterator[OpenSession]:
        """Create a session."""
        id, state = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}", State()
        journal = Journal(MemoryFile(), id=id)
        journal.connect(state.apply, emit=lambda event: None)
        yield OpenSession(journal, state)

    def resume(self, id: str) -> NoReturn:
        """Raise ``SessionError``, since no session is stored."""
        raise SessionError(f"there is no session {id:.60}: --no-session stores none")

    def summaries(self, *, latest: int | None = None, workspace: Path | None = None) -> list[Summary]:
        """Return no sessions."""
        return []

    def find(self, id: str) -> Summary:
        """Raise ``SessionError``, since no session is stored."""
        self.resume(id)

    def whole_id(self, id: str) -> str:
        """Raise ``SessionError``, since no session is stored."""
        self.resume(id)

    def rows(self, id: str) -> AbstractContextManager[Iterable[bytes]]:
        """Raise ``SessionError``, since no session is stored."""
        self.resume(id)

    def attachment(self, id: str, digest: str) -> bytes | None:
        """Return ``None``, since no attachment is stored."""
        return None

    def delete(self, id: str) -> None:
        """Do nothing: there is nothing to delete."""
