"""What the tests of running chains share: a chain in memory, a recording model, and the invariants of SPEC section 2.

Nothing here stands in for our own code. The file layer and the models are implementations of the contracts that the
package itself defines (``JournalFile``, ``Model``).
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import trio
from api_rules import problems

from chain import config, events
from chain.app import open_chain
from chain.chain import Chain
from chain.messages import from_json, to_json
from chain.model import Delta, Model, Reply, Request
from chain.providers.scripted import ScriptedModel
from chain.session import Journal
from chain.tools import Tool

FINAL = {"delivered", "handled", "returned", "dropped"}


class MemoryFile:
    """A journal's file in memory. No thread, since the test clock would run on while one works."""

    def __init__(self) -> None:
        self.data = b""
        self.synced = b""

    def append(self, data: bytes) -> None:
        self.data += data

    async def sync(self) -> None:
        written = self.data
        await trio.lowlevel.checkpoint()
        self.synced = written


@dataclass
class Recorder:
    """A model that hands every request on to another, and keeps it."""

    inner: Model
    requests: list[Request] = field(default_factory=list)
    prepared: int = 0
    closed: int = 0

    @property
    def name(self) -> str:
        return self.inner.name

    async def reply(self, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        self.requests.append(request)
        return await self.inner.reply(request, on_delta)

    async def prepare(self) -> None:
        self.prepared += 1
        await self.inner.prepare()

    async def aclose(self) -> None:
        self.closed += 1
        await self.inner.aclose()


@dataclass
class Session:
    """An open chain and everything that can be known of it."""

    chain: Chain
    model: Recorder
    file: MemoryFile
    events: list[events.Event] = field(default_factory=list)

    def of(self, *types: type[events.Event]) -> list[Any]:
        """The events of these types so far."""
        return [e for e in self.events if isinstance(e, types)]

    @property
    def result(self) -> events.Result:
        """The last run's result."""
        found: events.Result = self.of(events.Result)[-1]
        return found

    @property
    def records(self) -> list[dict[str, Any]]:
        """The journal."""
        return [json.loads(row) for row in self.file.data.splitlines()]

    def state(self, id: str) -> str:
        """What became of a line."""
        return next(r.state for r in self.chain.receipts if r.id == id)

    def sent(self, n: int = -1) -> str:
        """The text of the conversation that request ``n`` carried, a message a line."""
        return "\n".join(
            f"{m.role}: {m.text or ', '.join(r.text for r in m.results) or [c.name for c in m.calls]}"
            for m in self.model.requests[n].messages
        )

    async def run(self, query: str) -> events.Result:
        """Start a run and wait until the chain is idle."""
        assert self.chain.submit(query).what == "started"
        await self.chain.wait_idle()
        return self.result


@cache
def settings(
    *,
    max_iterations: int = 20,
    inbox_size: int = 10,
    handler: str = "",
    timeout_s: float = 1800,
    max_attempts: int = 4,
    budget_tokens: int | None = None,
    allow: str = "",
) -> config.Settings:
    """Settings read from a file, as a user's are; made once for each combination."""
    folder = Path(mkdtemp(prefix="chain-test-"))
    (folder / "system.yaml").write_text("messages: [{role: system, content: You are a test.}]")
    (folder / "rules.yaml").write_text("rules: [{text: unused}]")
    if handler:
        (folder / "handler.yaml").write_text(handler)
    raw = {
        "models": {
            "default": "test",
            "definitions": {"test": {"provider": "scripted", "script": "rules.yaml", "max_attempts": max_attempts}},
        },
        "chains": {
            "default": {
                "model": "test",
                "system_prompt": "system.yaml",
                "interruption_prompt": "handler.yaml" if handler else None,
                "tools": ["todo"],
                "max_iterations": max_iterations,
                "timeout_s": timeout_s,
                "budget": {"max_tokens": budget_tokens},
            }
        },
        "inbox": {"size": inbox_size},
        "tools": {"allow": [allow] if allow else []},
    }
    path = folder / "config.yaml"
    path.write_text(json.dumps(raw))
    return config.load(config=path, environ={}, cwd=folder, flags={})


@asynccontextmanager
async def open_session(
    model: Model | str,
    *,
    tools: Iterable[Tool] = (),
    use: config.Settings | None = None,
    interactive: bool = False,
    file: MemoryFile | None = None,
    traces: Path | None = None,
) -> AsyncIterator[Session]:
    """A chain in memory; ``model`` may be the text of a rule file."""
    inner = ScriptedModel.parse(model) if isinstance(model, str) else model
    recorder, file = Recorder(inner), file or MemoryFile()
    chosen = use or settings()
    assert chosen.file is not None
    async with open_chain(
        chosen,
        workspace=chosen.file.parent,
        state=chosen.file.parent / "state",
        tools=tools,
        model=recorder,
        journal=Journal(file, id="test"),
        interactive=interactive,
        traces=traces,
    ) as chain:
        session = Session(chain, recorder, file)
        chain.listen(session.events.append)
        yield session


def check_invariants(session: Session, *, max_iterations: int = 20) -> None:
    """Everything of SPEC section 2 that can be seen from outside, once the chain is idle."""
    _check_conservation(session)
    withdrawals = sum(r["type"] == "withdrawn" for r in session.records)
    _check_requests(session.model.requests, withdrawals)
    _check_journal(session)
    _check_counts(session, max_iterations)
    _check_order(session)


def _check_conservation(session: Session) -> None:
    """I1: every accepted line is in one final state, and the events tell the same story."""
    accepted = [r["id"] for r in session.records if r["type"] == "line"]
    receipts = {r.id: r for r in session.chain.receipts if r.state != "refused"}
    assert sorted(accepted) == sorted(receipts), "each accepted line has one receipt"
    assert not session.chain.waiting
    for id, receipt in receipts.items():
        assert receipt.state in FINAL, f"{id} is {receipt.state}"
        told = [e.state for e in session.of(events.Receipt) if e.id == id]
        assert told[-1] == receipt.state
        assert told == [receipt.state] or told == ["delivered", "returned"], told
        recorded = [r["state"] for r in session.records if r["type"] == "receipt" and r["id"] == id]
        assert recorded == told


def _check_requests(requests: Sequence[Request], withdrawals: int) -> None:
    """I2 and I7: each request is valid, and begins with the one before, but for the withdrawals on record."""
    breaks = 0
    for n, request in enumerate(requests):
        raw = [to_json(m) for m in request.messages]
        assert problems(raw) == [], f"request {n}"
        assert all(text.strip() for text in request.tail)
    for before, after in pairwise(requests):
        assert (before.system, before.tools) == (after.system, after.tools)
        breaks += tuple(after.messages[: len(before.messages)]) != tuple(before.messages)
    assert breaks <= withdrawals


def _check_journal(session: Session) -> None:
    """I3 and I8: the record alone gives the conversation, and a line's text came in only at a safe point."""
    history: list[dict[str, Any]] = []
    texts = {r["id"]: r for r in session.records if r["type"] == "line"}
    for record in session.records:
        if record["type"] == "withdrawn":
            assert record["messages"] <= len(history)
            assert record["messages"] == len(history) or record["reason"] != "new"
            del history[len(history) - record["messages"] :]
        if record["type"] != "message":
            continue
        message, point = record["message"], record["point"]
        if record["line_ids"]:
            assert set(record["line_ids"]) <= texts.keys()
            before = history[-1] if history else None
            kinds = {b["type"] for b in before["content"]} if before else set()
            match point:
                case "B":
                    assert before is not None
                    assert before["role"] == "assistant"
                    assert "tool_use" not in kinds
                case "C" | "D":
                    assert kinds == {"tool_result"}
                case _:
                    assert point in ("start", "A")
        else:
            assert point is None
        history.append(message)
    if session.model.requests:
        last = [to_json(m) for m in session.model.requests[-1].messages]
        assert history[: len(last)] == last or any(r["type"] == "withdrawn" for r in session.records)
    assert [to_json(from_json(m)) for m in history] == history
    assert [r["seq"] for r in session.records] == list(range(1, len(session.records) + 1))


def _check_counts(session: Session, max_iterations: int) -> None:
    """I5: in each run the iterations count 1, 2, 3, ... and never pass the limit."""
    count = 0
    for event in session.events:
        match event:
            case events.RunStarted():
                count = 0
            case events.IterationStarted():
                count += 1
                assert event.iteration == count <= max_iterations
            case events.Result():
                assert event.iterations == count
            case _:
                pass
    assert len(session.of(events.RunStarted)) == len(session.of(events.Result))


def _check_order(session: Session) -> None:
    """I9: lines are delivered in the order of acceptance, follow-ups among themselves."""
    order = [r["id"] for r in session.records if r["type"] == "line"]
    kinds = {r["id"]: r["kind"] for r in session.records if r["type"] == "line"}
    delivered = [id for r in session.records if r["type"] == "message" for id in r["line_ids"]]
    for is_follow_up in (True, False):
        group = [id for id in delivered if (kinds[id] == "follow-up") == is_follow_up]
        assert group == sorted(group, key=order.index)
    assert len(delivered) == len(set(delivered))
