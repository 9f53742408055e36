"""The display of a terminal program, which all its sessions share."""

from __future__ import annotations

from dataclasses import dataclass, field

from cli.screen.protocol import Screen
from cli.show.renderer import Renderer
from cli.show.spacing import Spacing
from cli.show.tour import Tour
from cli.show.updating_renderer import UpdatingRenderer
from cli.terminal.alerts import Alerts
from cli.terminal.invocation import TerminalStyle


@dataclass(slots=True)
class Display:
    """The screen, its style and alerts, the comments on a demonstration, and the user's choices of what to show."""

    screen: Screen
    style: TerminalStyle
    tour: Tour | None
    alerts: Alerts | None
    shows_thinking: bool | None = None
    """Whether thoughts are shown in full; ``None`` until the user chooses."""
    spacing: Spacing = field(default_factory=Spacing)

    def renderer(self) -> Renderer:
        """Return a new renderer for the events of a session."""
        color, ascii, width = self.style.color, self.style.ascii, self.screen.width
        if self.screen.has_keys and self.style.updates_rows:
            renderer: Renderer = UpdatingRenderer(color=color, ascii=ascii, width=width, spacing=self.spacing)
        else:
            renderer = Renderer(color=color, ascii=ascii, width=width, streams=True, collapses=True)
        if self.shows_thinking is not None:
            renderer.shows_thinking = self.shows_thinking
        return renderer
