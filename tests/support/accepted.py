"""The lines of a session as its journal has them: which agent each waits for, and where it came in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from chain.lines.parse import parse_line

from .users import MARKED


@dataclass
class AcceptedLine:
    """A line; ``number`` counts the accepted lines, ``ends`` are where its records end, by the agents they name."""

    id: str
    number: int
    text: str
    kind: str
    urgency: str
    agent: str
    ends: dict[str, int] = field(default_factory=dict)
    entered: str = ""
    """At which point it came in."""

    @property
    def is_urgent(self) -> bool:
        return self.urgency != "next"

    @property
    def is_follow_up(self) -> bool:
        return self.kind == "follow-up"

    @property
    def end(self) -> int:
        """Where the record ends by which it waits where it does."""
        return self.ends[self.agent]

    @property
    def marks(self) -> set[str]:
        """What no other line's text has."""
        return set(MARKED.findall(self.text))

    def is_in(self, texts: list[str]) -> bool:
        said = parse_line(self.text, local=False).message
        return any(self.text.strip() in text or said in text for text in texts)


class Lines:
    """The accepted lines of a session, by their ids."""

    def __init__(self) -> None:
        self._lines: dict[str, AcceptedLine] = {}

    def __getitem__(self, id: str) -> AcceptedLine:
        return self._lines[id]

    def __contains__(self, id: str) -> bool:
        return id in self._lines

    def add(self, record: dict[str, Any]) -> AcceptedLine:
        """A line that was accepted."""
        id = record["id"]
        assert id not in self._lines
        line = AcceptedLine(id, len(self._lines), record["text"], record["kind"], record["urgency"], record["agent"])
        line.ends[line.agent] = record["end"]
        self._lines[id] = line
        return line

    def move(self, record: dict[str, Any]) -> AcceptedLine:
        """A line whose agent has left it to another."""
        line = self._lines[record["id"]]
        assert (line.text, line.kind, line.urgency) == (record["text"], record["kind"], record["urgency"])
        line.agent = record["agent"]
        line.ends[line.agent] = record["end"]
        return line

    @property
    def of_the_plan(self) -> set[str]:
        """What the texts of tasks may have from todo lines."""
        return {mark for line in self._lines.values() if line.kind == "todo" for mark in line.marks}
