"""The lines of a session according to its records: the agent of each line, and the point of its delivery."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from chain.lines.parse import parse_line

from .users import LINE_MARK


@dataclass
class AcceptedLine:
    """An accepted line. ``ends`` are the ends of its records in the journal, by agent."""

    id: str
    number: int
    text: str
    kind: str
    urgency: str
    agent: str
    ends: dict[str, int] = field(default_factory=dict)
    point: str = ""
    """The point of its delivery."""

    @property
    def is_urgent(self) -> bool:
        return self.urgency != "next"

    @property
    def is_follow_up(self) -> bool:
        return self.kind == "follow-up"

    @property
    def end(self) -> int:
        """The end of its latest record."""
        return self.ends[self.agent]

    @property
    def marks(self) -> set[str]:
        """The parts of the text that identify the line in a conversation."""
        return set(LINE_MARK.findall(self.text))

    def is_in(self, texts: list[str]) -> bool:
        message = parse_line(self.text, local=False).message
        return any(self.text.strip() in text or message in text for text in texts)


class Lines:
    """The accepted lines of a session, by their ids."""

    def __init__(self) -> None:
        self._lines: dict[str, AcceptedLine] = {}

    def __getitem__(self, id: str) -> AcceptedLine:
        return self._lines[id]

    def __contains__(self, id: str) -> bool:
        return id in self._lines

    def add(self, record: dict[str, Any]) -> AcceptedLine:
        """Add an accepted line."""
        id = record["id"]
        assert id not in self._lines
        line = AcceptedLine(id, len(self._lines), record["text"], record["kind"], record["urgency"], record["agent"])
        line.ends[line.agent] = record["end"]
        self._lines[id] = line
        return line

    def move(self, record: dict[str, Any]) -> AcceptedLine:
        """Move a line to another agent."""
        line = self._lines[record["id"]]
        assert (line.text, line.kind, line.urgency) == (record["text"], record["kind"], record["urgency"])
        line.agent = record["agent"]
        line.ends[line.agent] = record["end"]
        return line

    @property
    def plan_marks(self) -> set[str]:
        """The marks that may occur in the texts of tasks."""
        return {mark for line in self._lines.values() if line.kind == "todo" for mark in line.marks}
