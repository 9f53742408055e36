"""Events as rows for a terminal, where replies are shown as they stream and nothing else prints the answer. Pure.

With colours a reply is rendered as Markdown, else it stays as it came. In both no other row stands inside a paragraph,
a list item, a table or a code block of the main agent's reply: it waits for the block's end.

The work of children is collapsed: while they work, each is a row of the tail, and what they write and the tools that
they use are never more than that. Their starts, their ends and all that is between them and the user are rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from chain import events
from chain.events import Event
from chain.text.wording import MAIN
from cli.show.children import MOST_ROWS
from cli.show.events import Renderer
from cli.show.lines import as_typed
from cli.show.markdown import MarkdownFlow, PlainFlow
from cli.show.spans import Span
from cli.show.table import table
from cli.show.text import in_rows
from cli.show.tour import Comment


class LiveRenderer(Renderer):
    """The renderer for a terminal: replies are shown as they stream, and ``tail`` is the unfinished row."""

    shows_answers = True
    left_out = (
        *Renderer.left_out,
        events.IterationStarted,
        events.TextDelta,
        events.Reply,
        events.ToolCall,
        events.ToolProgress,
        events.ToolResult,
    )
    _has_child_rows = True
    """Whether children are rows of the tail."""

    def __init__(self, *, color: bool, ascii: bool, width: int = 80) -> None:
        super().__init__(color=color, ascii=ascii, width=width)
        self._flow: MarkdownFlow | PlainFlow | None = None
        self._owe_reply = set[str]()
        """The children that have read a line and not replied yet."""
        self._aside: list[str] = []
        """Rows that wait for the end of the block that the main agent is writing."""

    def lines(self, event: Event) -> list[str]:
        """The rows to show for this event, and those that have waited for it; often none."""
        rows = super().lines(event)
        is_of_reply = event.agent == MAIN and isinstance(event, events.TextDelta | events.Reply)
        return rows if is_of_reply else self.aside(rows)

    def _is_left_out(self, event: Event) -> bool:
        # Whoever writes to a child wants to read what it says to that, though the rest of its replies is not shown.
        if isinstance(event, events.UserInterruption):
            self._owe_reply.add(event.agent)
        elif isinstance(event, events.Reply) and event.text.strip() and event.agent in self._owe_reply:
            self._owe_reply.remove(event.agent)
            return False
        return super()._is_left_out(event)

    def aside(self, rows: Sequence[str]) -> list[str]:
        """These rows, or none of them yet if they have to wait for the end of a block."""
        if self._flow is None or not self._flow.is_open:
            return list(rows)
        self._aside += rows
        return []

    @property
    def holds_rows(self) -> bool:
        """Whether rows wait for the end of a block."""
        return bool(self._aside)

    def _take_aside(self) -> list[str]:
        rows, self._aside = self._aside, []
        return rows

    @property
    def tail(self) -> str:
        """What may still change: the unfinished rows of a reply or a thought, else what children do and tools say."""
        flow = self._flow or self._thinking
        if flow is not None and flow.tail:
            return flow.tail
        working = self._children.rows(self.width, self._sign) if self._has_child_rows else []
        children = [self._paint("dim", row) for row in working]
        said = (p.last for (agent, _), p in reversed(self._progress.items()) if agent == MAIN)
        latest = [self._one_row(f"  {row}") for row in next(filter(None, said), [])]
        return "\n".join([*children, *latest[: MOST_ROWS - len(children)]])

    def resize(self, width: int) -> list[str]:
        """Adapt to another width. Returns the rows that no longer fit into the unfinished one."""
        rows = super().resize(width)
        for flow in (self._flow, self._thinking):
            if flow is not None:
                flow.width = self.width
                rows += flow.add("")
        return rows

    def answer(self, command: str, text: str, rows: Sequence[str] = ()) -> list[str]:
        """The rows of an answer to what was typed, which is repeated above it; ``rows`` come below it as they are."""
        typed = [] if not command.strip() else self._spans([("bold", f"{self._sign('»')} {as_typed(command)}")])
        return self.aside([*typed, *(self._wrapped(text) if text.strip() else []), *rows])

    def beside(self, comments: Iterable[Comment]) -> list[str]:
        """Rows of somebody who stands beside the user and comments on what happens."""
        rows: list[str] = []
        for is_table, group in itertools.groupby(comments, key=lambda comment: isinstance(comment, tuple)):
            if is_table:
                rows += table([comment for comment in group if isinstance(comment, tuple)], self.width - 2)
            else:
                rows += in_rows("\n".join(text for text in group if isinstance(text, str)), self.width - 2)
        return self.aside([self._paint("yellow", f"{self._sign('│')} {row}") for row in rows])

    def _new_flow(self) -> MarkdownFlow | PlainFlow:
        return MarkdownFlow(self.width, ascii=self._ascii) if self._color else PlainFlow(self.width)

    def _delta(self, event: events.TextDelta) -> list[str]:
        if self._who:
            return []
        if self._flow is None:
            self._flow = self._new_flow()
        rows = self._flow.add(event.text)
        if self._flow.whole is not None:
            rows[self._flow.whole : self._flow.whole] = self._take_aside()
        return rows

    def _reply(self, event: events.Reply) -> list[str]:
        if self._who:
            return super()._reply(event)
        if self._flow is not None:
            return self._end_flow()
        flow = self._new_flow()
        return [*flow.add(event.text), *flow.end()]

    def _retry(self, event: events.Retry) -> list[str]:
        if self._who:
            return super()._retry(event)
        # What the reply had begun is not shown, as it is void.
        was_begun, self._flow = self._flow is not None, None
        waited = self._take_aside()
        cut_off = self._note("↻", "That reply was cut off; ignore it.", "yellow") if was_begun else []
        return [*waited, *cut_off, *super()._retry(event)]

    def _end_flow(self) -> list[str]:
        """The rest of a reply, and what has waited for its end."""
        rows = [] if self._flow is None else self._flow.end()
        self._flow = None
        return [*rows, *self._take_aside()]

    def _release_held(self, event: Event) -> list[str]:
        """The rest of a reply that ends here, and the run's answer if no reply has shown it."""
        if not isinstance(event, events.Result | events.IterationStarted):
            return []
        rows = self._end_flow()
        if not isinstance(event, events.Result) or event.status == "error" or self._has_ended:
            return rows
        text = event.result.strip()
        # Replies were shown as they came; only what a stop adds to one is left to show.
        shown = max((r.strip() for r in event.replies if text.startswith(r.strip())), key=len, default="")
        return [*rows, *self._wrapped(text.removeprefix(shown).strip())]

    def _trace(self, event: events.Result) -> list[str]:
        """No rows: /debug shows the trace."""
        return []

    def _spans(self, spans: Sequence[Span], width: int | None = None) -> list[str]:
        return super()._spans(spans, self._room if width is None else width)

    def _note(self, sign: str, text: str, style: str) -> list[str]:
        return [self._paint(style, row) for row in self._wrapped(f"{self._sign(sign)} {self._who}{text}")]


class StreamingRenderer(LiveRenderer):
    """The renderer for a terminal without a prompt, where no command shows the trace, nor what a child does."""

    left_out = Renderer.left_out
    _has_child_rows = False

    @property
    def drawn_tail(self) -> str:
        """The unfinished rows, where they can be erased again."""
        return self.tail.lstrip("\n") if self._color else ""

    def _trace(self, event: events.Result) -> list[str]:
        return Renderer._trace(self, event)
