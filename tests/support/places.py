"""A workspace and a state folder on the disk, in which sessions are opened one after the other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chain import events
from chain.app.open import open_chain
from chain.chain import Chain
from chain.concurrency.wakeup import Wakeup
from chain.config.load import Settings
from chain.providers.scripted.scripted_model import ScriptedModel
from chain.tools.tool import Tool

from .sessions import RecordingModel, make_settings


@dataclass
class Place:
    """A workspace and a state folder.

    ``rules`` is the text of the model's rule file. ``id`` is that of the last session.
    """

    workspace: Path
    state: Path
    rules: str
    tools: Sequence[Tool] = ()
    allow: str = ""
    settings: Settings | None = None
    id: str = ""
    all_events: list[events.Event] = field(default_factory=list)
    """The events of all sessions."""
    model: RecordingModel = field(init=False)
    _news: Wakeup = field(default_factory=Wakeup)

    @asynccontextmanager
    async def open(self, **options: Any) -> AsyncIterator[Chain]:
        """Yield the chain of a new session. The options are those of ``open_chain``."""
        self.model = RecordingModel(ScriptedModel.parse(self.rules))
        async with open_chain(
            self.settings or make_settings(allow=self.allow),
            workspace=self.workspace,
            state=self.state,
            model=self.model,
            tools=self.tools,
            interactive=True,
            **options,
        ) as chain:
            self.id = chain.session_id
            chain.listen(self._hear)
            yield chain

    def _hear(self, event: events.Event) -> None:
        self.all_events.append(event)
        self._news.set()

    async def wait_for(self, kind: type[events.Event]) -> None:
        """Wait until an event of this type has been emitted."""
        while not any(isinstance(event, kind) for event in self.all_events):
            await self._news.wait()

    async def ask(self, chain: Chain, *queries: str) -> str:
        """Run these queries. Return the last result of a tool; empty if there is none."""
        for query in queries:
            assert chain.submit(query).what == "started"
            await chain.wait_idle()
        return next(reversed(self.results), "")

    @property
    def results(self) -> list[str]:
        return [event.text for event in self.all_events if isinstance(event, events.ToolResult)]

    @property
    def notices(self) -> list[str]:
        return [event.message for event in self.all_events if isinstance(event, events.Notice)]
