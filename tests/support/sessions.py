"""Open a chain in memory with a model that records its requests."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

from chain import events
from chain.app.open import open_chain
from chain.chain import Chain
from chain.config.load import Settings, load_settings
from chain.config.servers import ToolServer
from chain.journal.journal import Journal
from chain.model import Delta, Memory, Model, Reply, Request, Window, window_of
from chain.plan import Task
from chain.providers.scripted.scripted_model import ScriptedModel
from chain.session.resume import LoadedSession, Resumed
from chain.tools.tool import Tool

from .disks import MemoryFile
from .states import should_watch, watch_states

SKIPPED = "[Skipped: user interrupted]"
INTERRUPTED = "[Interrupted: stopped while running, it may have had effects]"


@dataclass(frozen=True, slots=True)
class Mark:
    """A request, an event, or an interrupt (``None``), with the bytes of the journal that were written and synced."""

    written: int
    synced: int
    what: Request | events.Event | None


@dataclass
class RecordingModel:
    """A model that records each request and passes it to another model."""

    inner: Model
    requests: list[Request] = field(default_factory=list)
    on_request: Callable[[Request], None] = lambda request: None
    prepared: int = 0
    closed: int = 0

    @property
    def name(self) -> str:
        return self.inner.name

    async def reply(self, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        self.requests.append(request)
        self.on_request(request)
        return await self.inner.reply(request, on_delta)

    @property
    def window(self) -> Window | None:
        return window_of(self.inner)

    async def prepare(self) -> None:
        self.prepared += 1
        await self.inner.prepare()

    async def aclose(self) -> None:
        self.closed += 1
        await self.inner.aclose()


@dataclass
class OneConversation:
    """A model that is called without a chain. Its memory persists between requests."""

    model: Model
    memory: Memory = field(default_factory=dict)

    async def reply(self, request: Request, on_delta: Callable[[Delta], None] = lambda delta: None) -> Reply:
        return await self.model.reply(replace(request, memory=self.memory), on_delta)


_MARKED = events.LineQueued | events.IterationStarted | events.ToolCall | events.ToolProgress | events.UsageReport


@dataclass
class Session:
    """An open chain, its requests, events and journal."""

    chain: Chain
    model: RecordingModel
    file: MemoryFile
    interactive: bool = False
    events: list[events.Event] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    is_closing: bool = False
    interrupted_at: list[int] = field(default_factory=list)
    """The number of events at each interrupt."""
    models: list[RecordingModel] = field(default_factory=list)
    """The models that ``switch_model`` switched to."""
    settings: Settings | None = None
    """The settings that it was opened with."""
    prompts: dict[str, int] = field(default_factory=dict)
    """The modification times of the files next to its configuration, by their names."""
    tools: tuple[Tool, ...] = ()
    addressed: dict[str, str] = field(default_factory=dict)
    """The known addresses of lines by their ids; empty for no address."""
    states: dict[int, object] = field(default_factory=dict)
    """The ``fingerprint`` of the state after each record, by the ``seq`` of the record."""
    is_watched: bool = False
    """Whether ``states`` is filled."""
    has_unwritten: bool = False
    """Whether a record could not be written. The journal then leads to another state."""
    walk: object = None
    """The progress of the checks (``walk.walked``)."""
    _parsed: bytes = b""
    _records: list[dict[str, Any]] = field(default_factory=list)

    def mark(self, what: Request | events.Event | None) -> None:
        """Record that this happens now."""
        self.marks.append(Mark(len(self.file.data), len(self.file.synced), what))

    def record_event(self, event: events.Event) -> None:
        """Record an event."""
        self.events.append(event)
        if isinstance(event, _MARKED):
            self.mark(event)

    def interrupt(self) -> None:
        """Press Esc."""
        if self.chain.is_running:
            self.interrupted_at.append(len(self.events))
            self.mark(None)
        self.chain.interrupt()

    def switch_model(self, model: Model) -> None:
        """Switch to another model. Its requests are recorded with those of the first."""
        other = RecordingModel(model, self.model.requests, self.mark)
        self.chain.use_model(other)
        self.models.append(other)

    def of(self, *types: type[events.Event]) -> list[Any]:
        """The events of these types so far."""
        return [e for e in self.events if isinstance(e, types)]

    @property
    def resumed(self) -> Resumed:
        """The data of a resumed session that front ends show."""
        assert self.chain.resumed is not None
        return self.chain.resumed

    @property
    def result(self) -> events.Result:
        """The last run's result."""
        result: events.Result = self.of(events.Result)[-1]
        return result

    @property
    def records(self) -> list[dict[str, Any]]:
        """The records of the journal without torn rows. Each row is parsed once."""
        data = self.file.data[: self.file.data.rfind(b"\n") + 1]
        if not data.startswith(self._parsed):
            self._parsed, self._records = b"", []
        new = data[len(self._parsed) :].split(b"\n")[:-1]
        self._records += [json.loads(row) for row in new if not row.endswith(b"\0")]
        self._parsed = data
        return self._records[:]

    def state(self, id: str) -> str:
        """Return the state of a line."""
        return next(r.state for r in self.chain.lines.receipts if r.id == id)

    def sent(self, n: int = -1) -> str:
        """Return the conversation of request ``n`` with one row for each message."""
        return "\n".join(
            f"{m.role}: {m.text or ', '.join(r.text for r in m.results) or [c.name for c in m.calls]}"
            for m in self.model.requests[n].messages
        )

    @property
    def conversation(self) -> list[str]:
        """The recorded conversation, one text for each message."""
        messages = [record["message"]["content"] for record in self.records if record["type"] == "message"]
        return [" | ".join(b.get("text") or b.get("content") or b.get("name") for b in blocks) for blocks in messages]

    async def run(self, query: str) -> events.Result:
        """Start a run and wait until the chain is idle."""
        assert self.chain.submit(query).what == "started"
        await self.chain.wait_idle()
        return self.result


def call_at_event(
    session: Session, kind: type[events.Event], action: Callable[[], object], nth: int = 1, **fields: Any
) -> None:
    """Call ``action`` at the nth event of this type that has these fields, before other tasks run."""
    seen = 0

    def on_event(event: events.Event) -> None:
        nonlocal seen
        if isinstance(event, kind) and all(getattr(event, name) == value for name, value in fields.items()):
            seen += 1
            if seen == nth:
                action()

    session.chain.listen(on_event)


async def wait_quiet(session: Session) -> None:
    """Wait until the chain is idle and no listener has started another run."""
    count = -1
    while count != len(session.events):
        count = len(session.events)
        await session.chain.wait_idle()


_FOLDERS = TemporaryDirectory(prefix="chain-test-")
"""The files of the tests' settings. They are deleted when the process ends."""


def modification_times(settings: Settings) -> dict[str, int]:
    """Return the modification times of the files next to a configuration, by their names."""
    assert settings.file is not None
    return {path.name: path.stat().st_mtime_ns for path in settings.file.parent.glob("*.yaml")}


@cache
def make_settings(
    *,
    max_iterations: int = 20,
    inbox_size: int = 10,
    handler: str = "",
    timeout_s: float = 1800,
    max_attempts: int | None = None,
    budget_tokens: int | None = None,
    allow: str = "",
    agents: bool = False,
    kinds: str = "{}",
    files: str = "{}",
    max_depth: int = 3,
    max_running: int = 8,
    max_kept: int = 50,
    models: str = "{}",
    compact: bool = True,
) -> Settings:
    """Return settings that are read from a file, once for each combination.

    ``kinds`` and ``files`` are JSON objects by names. ``models`` are numbers of attempts by names; ``null``: no limit.
    """
    folder = Path(mkdtemp(dir=_FOLDERS.name))
    (folder / "system.yaml").write_text("messages: [{role: system, content: You are a test.}]")
    (folder / "rules.yaml").write_text("rules: [{text: unused}]")
    for name, text in json.loads(files).items():
        (folder / name).write_text(text)
    if handler:
        (folder / "handler.yaml").write_text(handler)
    raw = {
        "models": {
            "default": "test",
            "definitions": {
                name: {"provider": "scripted", "script": "rules.yaml", "max_attempts": attempts}
                for name, attempts in {"test": max_attempts, **json.loads(models)}.items()
            },
        },
        "chains": {
            "default": {
                "model": "test",
                "system_prompt": "system.yaml",
                "interruption_prompt": "handler.yaml" if handler else None,
                "tools": ["todo", "ask", "agents", "mcp"] if agents else ["todo", "mcp"],
                "max_iterations": max_iterations,
                "timeout_s": timeout_s,
                "compact": {} if compact else "off",
                "budget": {"max_tokens": budget_tokens},
            }
        },
        "inbox": {"size": inbox_size},
        "tools": {"allow": [allow] if allow else []},
        "agents": {"max_depth": max_depth, "max_running": max_running, "max_kept": max_kept, **json.loads(kinds)},
    }
    path = folder / "config.yaml"
    path.write_text(json.dumps(raw))
    return load_settings(config=path, environ={}, cwd=folder, flags={})


@asynccontextmanager
async def open_session(
    model: Model | str,
    *,
    tools: Iterable[Tool] = (),
    settings: Settings | None = None,
    interactive: bool = False,
    file: MemoryFile | None = None,
    traces: Path | None = None,
    resume: LoadedSession | None = None,
    plan: Iterable[Task] = (),
    servers: Sequence[ToolServer] = (),
) -> AsyncIterator[Session]:
    """Yield a session in memory. ``model`` may be the text of a rule file."""
    inner = ScriptedModel.parse(model) if isinstance(model, str) else model
    recorder, file = RecordingModel(inner), file or MemoryFile()
    chosen = settings or make_settings()
    assert chosen.file is not None
    async with open_chain(
        chosen,
        workspace=chosen.file.parent,
        state=chosen.file.parent / "state",
        tools=(tools := tuple(tools)),
        model=recorder,
        journal=Journal(file, id="test", seq=0 if resume is None else resume.seq, writes_later=file.writes_later),
        resume=resume or "",
        interactive=interactive,
        traces=traces,
        plan=plan,
        servers=servers,
    ) as chain:
        session = Session(
            chain, recorder, file, interactive, settings=chosen, tools=tools, prompts=modification_times(chosen)
        )
        recorder.on_request = session.mark
        chain.listen(session.record_event)
        if should_watch():
            watch_states(session)
        try:
            yield session
        finally:
            session.is_closing = True
            if chain.is_running:
                session.mark(None)  # closing is an interrupt
