"""What happened in a session, as a tree: its runs, their iterations, what is in these, and the agents in calls. Pure.

The parts stand where the events put them, so a child's work is inside its call and an interruption where it landed.
Events of a session that a crash cut short make a story too: what has no end stays without one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from chain import events


@dataclass(slots=True, kw_only=True)
class _Part:
    at: int
    """Its place in the order of everything that happened, from 0."""
    time: float

    @property
    def anchor(self) -> str:
        """Its name on a page."""
        return f"e{self.at}"


@dataclass(slots=True, kw_only=True)
class Said(_Part):
    """A reply of the model."""

    text: str


@dataclass(slots=True, kw_only=True)
class Thought(_Part):
    """The model's reasoning before a reply."""

    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self.pieces).strip()


@dataclass(slots=True, kw_only=True)
class Landed(_Part):
    """Lines of the user that entered the conversation here."""

    event: events.UserInterruption
    urgency: str = "next"
    waited_s: float = 0.0
    """How long the first of them had waited; a journal has that in the receipts alone."""


@dataclass(slots=True, kw_only=True)
class Asked(_Part):
    """A question to the user, and the answer if there is one."""

    event: events.Question
    answer: events.Answer | None = None


@dataclass(slots=True, kw_only=True)
class Planned(_Part):
    """A change of the plan, which was ``before``."""

    event: events.PlanChanged
    before: tuple[events.TaskView, ...]


@dataclass(slots=True, kw_only=True)
class Told(_Part):
    """Something else that the user was told: a notice, an error, a refused line, a line that came back."""

    event: events.Notice | events.Error | events.Retry | events.LineRefused | events.Receipt


@dataclass(slots=True, kw_only=True)
class Call(_Part):
    """A tool call; one that never started has no input."""

    id: str
    name: str
    input: dict[str, object] | None
    until: int
    result: events.ToolResult | None = None
    works: list[Work] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Step(_Part):
    """An iteration; number 0 is what was before the first."""

    number: int
    most: int
    until: int
    ended: float
    tokens: int = 0
    items: list[Item] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Work(_Part):
    """What an agent did from its start to its end. ``parent`` is the name of the agent that started it."""

    agent: str
    kind: str
    task: str
    parent: str
    depth: int
    until: int
    ended: float
    status: events.Status | None = None
    steps: list[Step] = field(default_factory=list)

    @property
    def answer(self) -> Said | None:
        """What it said last, if it came to its end."""
        said = [item for _, item in self.items() if isinstance(item, Said)] if self.status == "done" else []
        return said[-1] if said else None

    @property
    def iterations(self) -> int:
        """How many it had."""
        return sum(step.number > 0 for step in self.steps)

    def items(self) -> Iterator[tuple[Step, Item]]:
        """All that is in it, each with its iteration; not what is inside the agents that it started."""
        return ((step, item) for step in self.steps for item in step.items)


@dataclass(slots=True, kw_only=True)
class Run(_Part):
    """A run of the session: the work of the main agent, and how it ended."""

    number: int
    query: str
    work: Work
    tokens: int = 0
    cost_usd: float | None = None
    result: events.Result | None = None


Item: TypeAlias = Said | Thought | Landed | Asked | Planned | Told | Call | Work


@dataclass(slots=True)
class Story:
    """A whole session."""

    init: events.Init | None = None
    before: Step | None = None
    """What was before the first run."""
    runs: list[Run] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    """When everything happened, in order."""

    @property
    def title(self) -> str:
        """The first row of the first query."""
        rows = (row.strip() for run in self.runs for row in run.query.splitlines())
        return next((row for row in rows if row), "A session without a query")

    @property
    def tokens(self) -> int:
        """Of all runs."""
        return sum(run.tokens for run in self.runs)

    @property
    def cost_usd(self) -> float | None:
        """Of all runs whose price is known."""
        known = [run.cost_usd for run in self.runs if run.cost_usd is not None]
        return sum(known) if known else None

    def works(self) -> Iterator[Work]:
        """The work of every agent, a parent's before its children's."""
        left = [run.work for run in reversed(self.runs)]
        while left:
            work = left.pop()
            yield work
            inside: list[Work] = []
            for _, item in work.items():
                inside += [item] if isinstance(item, Work) else item.works if isinstance(item, Call) else []
            left += reversed(inside)


def repeats(call: Call) -> bool:
    """Whether the result of a call is the answer that its agent is already shown to have given."""
    answer = call.works[-1].answer if call.works else None
    return answer is not None and call.result is not None and call.result.text.strip() == answer.text.strip()
