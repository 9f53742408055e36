"""Events as rows for a terminal, where replies are shown as they stream and nothing else prints the answer. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from chain import events
from chain.events import Event
from chain.wording import MAIN
from cli.show.events import Renderer
from cli.show.lines import as_typed
from cli.show.spans import Span
from cli.show.text import Flow


class LiveRenderer(Renderer):
    """The renderer for a terminal: replies are shown as they stream, and ``tail`` is the unfinished row."""

    shows_answers = True

    def __init__(self, *, color: bool, ascii: bool, width: int = 80) -> None:
        super().__init__(color=color, ascii=ascii, width=width)
        self._flows: dict[str, Flow] = {}

    @property
    def tail(self) -> str:
        """What may still change: the unfinished row of the main agent's reply or thought, or a tool's last output."""
        flow = self._flows.get(MAIN) or self._thinking.get(MAIN)
        if flow is not None and flow.tail:
            return flow.tail
        latest = next((rows for progress in reversed(self._progress.values()) if (rows := progress.last)), [])
        return "\n".join(self._one_row(f"  {row}") for row in latest)

    def resize(self, width: int) -> list[str]:
        """Adapt to another width. Returns the rows that no longer fit into the unfinished one."""
        self.width = max(width, 20)
        rows = []
        for flow in (*self._flows.values(), *self._thinking.values()):
            flow.width = self.width
            rows += flow.add("")
        return rows

    def answer(self, command: str, text: str, rows: Sequence[str] = ()) -> list[str]:
        """The rows of an answer to what was typed, which is repeated above it; ``rows`` come below it as they are."""
        typed = [] if not command.strip() else self._spans([("bold", f"{self._sign('»')} {as_typed(command)}")])
        return [*typed, *(self._wrapped(text) if text.strip() else []), *rows]

    def _narrow(self, text: str) -> list[str]:
        flow = Flow(self.width - 2)
        return [*flow.add(text), *flow.end()]

    def beside(self, texts: Iterable[str]) -> list[str]:
        """Rows of somebody who stands beside the user and comments on what happens."""
        return [self._paint("yellow", f"{self._sign('│')} {row}") for text in texts for row in self._narrow(text)]

    def _delta(self, event: events.TextDelta) -> list[str]:
        return self._flows.setdefault(event.agent, Flow(self.width)).add(event.text)

    def _reply(self, event: events.Reply) -> list[str]:
        flow = self._flows.pop(event.agent, None)
        return self._wrapped(event.text) if flow is None else flow.end()

    def _retry(self, event: events.Retry) -> list[str]:
        flow = self._flows.pop(event.agent, None)
        cut_off = [] if flow is None else self._note("↻", "That reply was cut off; ignore it.", "yellow")
        return [*cut_off, *super()._retry(event)]

    def _release_held(self, event: Event) -> list[str]:
        """The rest of a reply that ends here, and the run's answer if no reply has shown it."""
        if not isinstance(event, events.Result | events.IterationStarted):
            return []
        flow = self._flows.pop(event.agent, None)
        rows = [] if flow is None else flow.end()
        if not isinstance(event, events.Result) or event.status == "error" or event.agent in self._ended:
            return rows
        text = event.result.strip()
        # Replies were shown as they came; only what a stop adds to one is left to show.
        shown = max((r.strip() for r in event.replies if text.startswith(r.strip())), key=len, default="")
        return [*rows, *self._wrapped(text.removeprefix(shown).strip())]

    def _trace(self, event: events.Result) -> list[str]:
        """No rows: Ctrl-L shows the trace."""
        return []

    def _spans(self, spans: Sequence[Span], width: int | None = None) -> list[str]:
        return super()._spans(spans, self.width if width is None else width)

    def _note(self, sign: str, text: str, style: str) -> list[str]:
        return [self._paint(style, row) for row in self._wrapped(f"{self._sign(sign)} {text}")]


class StreamingRenderer(LiveRenderer):
    """The renderer for a terminal without a prompt, where no key shows the trace."""

    def _trace(self, event: events.Result) -> list[str]:
        return Renderer._trace(self, event)
