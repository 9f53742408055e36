"""The records, requests and events of a session, checked in order by the rules of SPEC sections 2 to 5 and 10."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from chain import events
from chain.config.load import Settings
from chain.config.settings import AgentsSettings
from chain.model import Request
from chain.tools.tool import can_run_in_parallel

from .accepted import AcceptedLine, Lines
from .agent_walk import AgentWalk, Ending
from .sessions import Mark, Session

_PREFERRED = ("explore", "plan")
"""The kinds of agents that get lines without an address before all others."""


@dataclass(frozen=True, slots=True)
class Position:
    """A position in a session: numbers of records and marks, and the offset in the journal."""

    records: int = 0
    marks: int = 0
    end: int = 0


START = Position()


def merge_in_order(
    session: Session, records: Sequence[dict[str, Any]], since: Position = START
) -> Iterator[dict[str, Any] | Mark]:
    """Yield records and marks in the order in which they happened. Each record gets its ``end`` in the file."""
    marks = iter(session.marks[since.marks :])
    mark = next(marks, None)
    end = since.end
    for record, row in zip(records[since.records :], session.file.data[end:].splitlines(keepends=True), strict=True):
        while mark is not None and mark.written <= end:
            yield mark
            mark = next(marks, None)
        end += len(row)
        yield {**record, "end": end}
    while mark is not None:
        yield mark
        mark = next(marks, None)


_BEFORE_A_MESSAGE = ("line", "receipt", "plan", "question", "answer", "model", "interrupted", "compact")
"""Types of records that may precede the message of delivered lines in the same step."""


_limits: dict[int, tuple[Settings | None, AgentsSettings, float]] = {}
"""A cache by the identity of the settings, since few settings are used for thousands of sessions."""


def _limits_of(settings: Settings | None) -> tuple[AgentsSettings, float]:
    """Return the limits of agents, and the maximum number of tokens of a tree."""
    if id(settings) not in _limits:
        tokens = None if settings is None else settings.chain().budget.max_tokens
        _limits[id(settings)] = settings, AgentsSettings() if settings is None else settings.agents, tokens or math.inf
    _, agents, max_tokens = _limits[id(settings)]
    return agents, max_tokens


class Walk:
    """The records and marks of a whole tree of agents. Each agent has an ``AgentWalk``."""

    def __init__(self, session: Session, max_iterations: int) -> None:
        self._session = session
        self.max_iterations = max_iterations
        self.data = b""
        """The part of the journal that was read."""
        self._position = START
        self._agents_settings, self._budget = _limits_of(session.settings)
        self._limits = {kind.name: kind.max_iterations or max_iterations for kind in self._agents_settings.kinds}
        self._parallel: set[str] = set()
        self._endings: dict[str, Ending] = {}
        self._lines = Lines()
        self.main = self._agent("main", "main")
        self.agents = {"main": self.main}
        """All agents of the session, also finished ones."""
        self.conversations: dict[int, str] = {}
        """The agents by the identity of their conversations' memory."""
        self.deliveries: dict[tuple[str, ...], tuple[str, str, int, int]] = {}
        """By the ids of delivered lines: the agent, its ``parent_id`` and iteration, and the iterations left."""
        self.run_results: list[list[str]] = []
        """The results of each run that are no errors, in the order of the calls."""
        self._requesting = ""
        """The agent whose request was recorded last."""
        self._questions: dict[str, str] = {}
        """The agents by the ids of their open questions."""
        self._is_running = False

    def _agent(self, name: str, kind: str) -> AgentWalk:
        limit = self._limits.get(kind, self.max_iterations)
        return AgentWalk(name, kind, limit, self._lines, self._parallel, self._endings)

    def read_new(self, records: Sequence[dict[str, Any]]) -> None:
        """Read the records since the last call."""
        self._parallel |= {t.name for t in self._session.chain.tools if can_run_in_parallel(t)}
        for item in merge_in_order(self._session, records, self._position):
            self.read(item)
        self.data = self._session.file.data
        self._position = Position(len(records), len(self._session.marks), len(self.data))

    def read(self, item: dict[str, Any] | Mark) -> None:
        if isinstance(item, Mark):
            self._read_mark(item)
            return
        if item["type"] not in _BEFORE_A_MESSAGE and not (item["type"] == "message" and item["line_ids"]):
            for each in self.main.all():
                each.start_step()
        match item["type"]:
            case "line":
                self._line(item)
            case "receipt":
                self.agents[item["agent"]].receipt(item)
            case "message":
                agent = self._at_work(item["agent"])
                agent.message(item)
                if item["line_ids"]:
                    left = agent.limit - agent.iteration
                    self.deliveries[tuple(item["line_ids"])] = (agent.name, agent.parent_id, agent.iteration, left)
            case "request" if item["phase"] == "sent":
                self._requesting = item["agent"]
                self._at_work(item["agent"]).asks_model(is_for_summary=item.get("compacts", False))
            case "compacted":
                self._at_work(item["agent"]).compact(item)
            case "run":
                self._is_running, self.main.only_compacts = True, item.get("only_compacts", False)
            case "request":
                self._at_work(item["agent"]).reply_came(item)
            case "withdrawn":
                self._at_work(item["agent"]).withdraw(item)
            case "removed":
                self._at_work(item["agent"]).remove(item)
            case "tool_started":
                self._at_work(item["agent"]).start(item["id"])
            case "tool_finished":
                self._at_work(item["agent"]).finish(item["id"])
            case "question":
                self._questions[item["id"]] = item["agent"]
            case "answer":
                assert self._questions.pop(item["id"]) == item["agent"]
                is_withdrawn = item["decision"] == "withdrawn" or item["by"] == "config"
                agent = self.agents[item["agent"]]
                assert is_withdrawn or not agent.is_blocked, "a question is answered after an urgent line or a stop"
            case "agent_started":
                self._begin(item)
            case "agent_ended":
                assert self._at_work(item["agent"]) is self.agents[item["name"]].parent
                assert item["parent_id"] == self.agents[item["name"]].parent_id
                self.agents[item["name"]].end(item["status"], item["iterations"], item["usage"])
            case "result":
                self.run_results.append(self.main.findings)
                self.main.result(item, interactive=self._session.interactive)
                self._is_running = False
            case _:
                pass

    def _read_mark(self, mark: Mark) -> None:
        match mark.what:
            case None:
                for each in self.main.all():
                    each.request_end("interrupt")
            case Request() as request:
                self._request(request, mark.synced)
            case events.LineQueued(id=id, target_agent=target):
                end = self._lines[id].ends[target]
                assert end <= mark.synced, f"I6: {id} was acknowledged before it was on the disk"
            case events.IterationStarted(agent=name, iteration=iteration):
                self._at_work(name).iterate(iteration)
            case events.ToolCall(agent=name, id=id, parent_id=parent_id):
                assert parent_id == self._at_work(name).parent_id
                self.agents[name].call(id)
            case events.ToolProgress(agent=name, id=id):
                self._at_work(name).progress(id)
            case events.UsageReport(agent=name) as used:
                node: AgentWalk | None = self._at_work(name)
                while node is not None:
                    node.usage = [node.usage[0] + used.input_tokens, node.usage[1] + used.output_tokens]
                    node = node.parent
            case _:
                pass

    def _at_work(self, name: str) -> AgentWalk:
        agent = self.agents[name]
        assert agent in self.main.all(), f"{name} is not at work"
        return agent

    def _begin(self, record: dict[str, Any]) -> None:
        name, parent = record["name"], self._at_work(record["agent"])
        agent = self.agents.setdefault(name, self._agent(name, record["kind"]))
        assert agent.kind == record["kind"]
        assert name.startswith(f"{agent.kind}-")
        agent.begin(parent, record["parent_id"])
        assert agent.depth <= self._agents_settings.max_depth
        assert len(self.main.all()) - 1 <= self._agents_settings.max_running

    def _request(self, request: Request, synced: int) -> None:
        """I7: a conversation is one agent's, and an agent has one."""
        name = self.conversations.setdefault(id(request.memory), self._requesting)
        agent = self._at_work(name)
        assert agent.memory is request.memory or agent.memory is None, f"{name} has two conversations"
        agent.memory = request.memory
        assert sum(self.main.usage) < self._budget, "a call starts after the budget of the tree was spent"
        agent.request(request, synced)

    # ---- the agent of a line

    def _line(self, record: dict[str, Any]) -> None:
        agent = self._at_work(record["agent"])
        if record["id"] in self._lines:
            self._move(record, agent)
            return
        to = self._session.addressed.get(record["id"])
        if to is not None:
            expected = to.casefold() if to else self._target(record["kind"])
            assert agent.name == expected, f"{record['id']} goes to {agent.name}, not to {expected}"
        line = self._lines.add(record)
        agent.line(line)
        if line.kind == "stop":
            for each in agent.all():
                each.request_end("stop")
        self._cut_below(agent, line)

    def _move(self, record: dict[str, Any], agent: AgentWalk) -> None:
        """I1: a line moves from an agent that ends to the one that it works for."""
        line = self._lines[record["id"]]
        before = self.agents[line.agent]
        assert before.parent is agent, f"{line.id} moves from {before.name} to {agent.name}"
        before.waiting.remove(line)
        agent.line(self._lines.move(record))
        if agent.ended is None:
            self._cut_below(agent, line, but=before)

    def _cut_below(self, agent: AgentWalk, line: AcceptedLine, but: AgentWalk | None = None) -> None:
        if line.urgency == "now" and agent.settled_from is None:
            for each in agent.all():
                if each not in (agent, but):
                    each.request_end("interrupt")

    def _target(self, kind: str) -> str:
        """Return the agent that gets a line without an address."""
        if kind in ("todo", "follow-up", "stop"):
            return "main"
        if self._questions:
            return list(self._questions.values())[-1]
        node = self.main
        while below := [each for each in node.below if not each.is_asked]:
            ranks = [_PREFERRED.index(each.kind) if each.kind in _PREFERRED else len(_PREFERRED) for each in below]
            node = [each for each, rank in zip(below, ranks, strict=True) if rank == min(ranks)][-1]
        return node.name


def walk_session(session: Session, records: Sequence[dict[str, Any]], max_iterations: int) -> Walk:
    """Return the walk of a session, read to its end. It continues the walk of an earlier check."""
    walk = session.walk
    if not (
        isinstance(walk, Walk) and walk.max_iterations == max_iterations and session.file.data.startswith(walk.data)
    ):
        walk = Walk(session, max_iterations)
    session.walk = None  # if a check fails, the walk is not used again
    walk.read_new(records)
    session.walk = walk
    return walk
