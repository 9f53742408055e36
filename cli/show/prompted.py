"""Events as rows above a prompt, where commands ask again for what an agent did. Pure."""

from __future__ import annotations

from chain.events import Event
from chain.text.wording import MAIN
from cli.show.live import LiveRenderer
from cli.show.transcripts import Transcripts


class PromptRenderer(LiveRenderer):
    """The renderer above a prompt. It keeps what children do, of which it shows a few rows."""

    def __init__(self, *, color: bool, ascii: bool, width: int = 80) -> None:
        super().__init__(color=color, ascii=ascii, width=width)
        self._transcripts = Transcripts()

    def lines(self, event: Event) -> list[str]:
        """The rows to show for this event, and those that have waited for it; often none."""
        self._transcripts.update(event)
        return super().lines(event)

    def work_of(self, agent: str) -> list[str]:
        """All that an agent below the main one did, as far as it is kept; no rows for an empty name."""
        if not agent or agent == MAIN:
            return []
        return self._transcripts.rows(agent, self.width, color=self._color, ascii=self._ascii)
