"""A run leaves no task, process, file descriptor or busy thread behind, whatever it did and however it ended.

The sessions have a journal on a real disk, and send requests to the double of the service through real sockets.
Resources are counted before the session, while it is idle, and after it was closed.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio
from double import Double, ErrorEvent, Script, Stall, Status, Step, calls, serve, text
from support.sessions import make_settings
from support.wire import TOOLS as WIRE_TOOLS
from support.wire import model_at
from trio.testing import wait_all_tasks_blocked

from chain import events
from chain.app.open import open_chain
from chain.chain import Chain
from chain.tools.tool import Tool, ToolContext, tool


@tool
async def child(ctx: ToolContext) -> str:
    """Wait for a process that takes long."""
    ctx.progress("started")
    await trio.run_process(["sleep", "1000"], capture_stdout=True)
    return ""


@tool
async def thread(ctx: ToolContext) -> str:
    """Wait for a thread that takes long."""
    done = threading.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, done.wait, 1000)
        try:
            ctx.progress("started")
            await trio.sleep_forever()
        finally:
            done.set()
    return ""


@tool
async def tasks(ctx: ToolContext) -> str:
    """Wait in several tasks, with a pair of sockets."""
    first, second = trio.socket.socketpair()
    with first, second:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(trio.sleep_forever)
            ctx.progress("started")
            await first.recv(1)
            nursery.cancel_scope.cancel()
    return ""


@tool(read_only=True)
async def read(ctx: ToolContext) -> str:
    """Read what never comes, from a file that is open."""
    async with await trio.open_file("/dev/null", "rb"):
        ctx.progress("started")
        await trio.sleep_forever()
    return ""


TOOLS: tuple[Tool, ...] = (*WIRE_TOOLS, child, thread, tasks, read)


@dataclass(frozen=True)
class Resources:
    """The resources of this process, as counts by name."""

    tasks: Counter[str]
    files: Counter[str]
    threads: Counter[str]
    children: Counter[str]


async def count_resources() -> Resources:
    """Count the resources once all tasks wait and threads that are about to end have ended."""
    await wait_all_tasks_blocked()
    while any("trio" in name.casefold() for name in _busy_threads()):
        await wait_all_tasks_blocked(0.001)
    return Resources(_tasks(), _files(), _busy_threads(), _children())


def _tasks() -> Counter[str]:
    """Count all tasks except those that serve the connections of the double."""
    root = trio.lowlevel.current_root_task()
    assert root is not None
    counts: Counter[str] = Counter()
    unvisited = [root]
    while unvisited:
        task = unvisited.pop()
        if not task.name.startswith("trio._highlevel_serve_listeners"):
            counts[task.name] += 1
        unvisited += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return counts


def _files() -> Counter[str]:
    """Count the open descriptors by path, or by kind if they have no path."""
    counts: Counter[str] = Counter()
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the descriptor of this listing
            counts[os.readlink(f"/proc/self/fd/{fd}").partition(":[")[0]] += 1
    return counts


def _busy_threads() -> Counter[str]:
    """Count all threads except trio's idle workers, which live for ten seconds."""
    frames = sys._current_frames()
    counts: Counter[str] = Counter()
    for each in threading.enumerate():
        frame = frames.get(each.ident or 0)
        names = set()
        while frame is not None:
            names.add(frame.f_code.co_name)
            frame = frame.f_back
        if "_work" not in names or "_handle_job" in names:  # functions of trio's worker threads: waits, or has a job
            counts[each.name] += 1
    counts["borrowed from trio"] = int(trio.to_thread.current_default_thread_limiter().borrowed_tokens)
    return +counts


def _children() -> Counter[str]:
    counts: Counter[str] = Counter()
    for task in Path("/proc/self/task").iterdir():
        counts.update({*(task / "children").read_text().split()})
    return counts


class OpenSession:
    """An open session and its events."""

    def __init__(self, chain: Chain, double: Double) -> None:
        self.chain = chain
        self.double = double
        self.events: list[events.Event] = []
        self._news = trio.Event()

    async def wait_for(self, *types: type[events.Event], n: int = 1) -> None:
        """Wait for the n-th event of these types."""
        while sum(isinstance(e, types) for e in self.events) < n:
            await self._news.wait()

    def record_event(self, event: events.Event) -> None:
        self.events.append(event)
        self._news.set()
        self._news = trio.Event()


@asynccontextmanager
async def open_session(script: Script, state: Path) -> AsyncIterator[OpenSession]:
    """Open a session whose model answers with a script, and start a run."""
    async with serve(script) as double:
        async with open_chain(
            make_settings(),
            workspace=state,
            state=state,
            tools=TOOLS,
            model=model_at(double.url),
            traces=state / "traces",
        ) as chain:
            session = OpenSession(chain, double)
            chain.listen(session.record_event)
            session.chain.submit("Do the task")
            yield session
        while double.open_connections:
            await wait_all_tasks_blocked(0.001)


FINAL = text("The final answer.", text_chunk=4)
LOOK = calls(("look", {"at": "x"}), ("look", {"at": "y"}), say="Let me look.")
is_warm = False


@pytest.fixture(autouse=True)
async def _warm_up(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Create the resources that a process creates once, such as modules and files of the resolver."""
    global is_warm
    if not is_warm:
        async with open_session([LOOK, FINAL], tmp_path_factory.mktemp("warm")) as session:
            await session.chain.wait_idle()
        is_warm = True


def assert_idle(idle: Resources, after: Resources) -> None:
    assert (after.tasks, after.threads, after.children) == (idle.tasks, idle.threads, idle.children)
    # A connection to the service may stay open. Both of its ends are in this process.
    assert after.files - idle.files <= Counter({"socket": 2})


RUNS: dict[str, tuple[Sequence[Step], str]] = {
    "a run with tools": ([LOOK, FINAL], "done"),
    "a stream that breaks and is asked again": ([ErrorEvent(after=4), FINAL], "done"),
    "a refusal": ([LOOK, text("No.", stop_reason="refusal")], "refused"),
}


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("run", RUNS)
async def test_a_run_leaves_nothing_behind(run: str, tmp_path: Path) -> None:
    random.seed(0)  # for the random pauses before retries
    script, status = RUNS[run]
    before = await count_resources()
    async with open_session([LOOK, FINAL, *script], tmp_path) as session:
        await session.chain.wait_idle()
        idle = await count_resources()
        session.chain.submit("Do another task")
        await session.chain.wait_idle()
        assert session.chain.runs.last_status == status
        assert_idle(idle, await count_resources())
    assert await count_resources() == before


TOOL_WITH_PROCESS = "a tool with a process"
PLACES: dict[str, tuple[Sequence[Step], int]] = {
    "before the first byte": ([Stall(after=None, reply=FINAL)], 0),
    "text that streams": ([Stall(after=5, reply=text("A long answer.", text_chunk=2))], 1),
    TOOL_WITH_PROCESS: ([calls(("child", {}))], 1),
    "a tool with a thread": ([calls(("thread", {}))], 1),
    "a tool with tasks and sockets": ([calls(("tasks", {}))], 1),
    "a batch of reading tools": ([calls(("read", {}), ("read", {}), ("look", {}), ("read", {}))], 3),
    "the pause before a retry": ([Status(529)], 1),
}
"""The replies, and the number of deltas, retries and rows of progress after which a run has reached the place."""


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("ending", ["interrupt", "close", "exception"])
@pytest.mark.parametrize("place", PLACES)
async def test_a_cut_run_leaves_nothing_behind(place: str, ending: str, tmp_path: Path) -> None:
    random.seed(0)  # for the random pauses before retries
    script, event_count = PLACES[place]
    before = await count_resources()
    with suppress(LookupError):
        async with open_session([*script, FINAL], tmp_path) as session:
            await session.double.request(1)
            await session.wait_for(events.TextDelta, events.ToolProgress, events.Retry, n=event_count)
            while place == TOOL_WITH_PROCESS and not _children():
                await wait_all_tasks_blocked(0.001)
            if ending == "exception":
                raise LookupError
            if ending == "interrupt":  # the session continues
                session.chain.interrupt()
                await session.chain.wait_idle()
                after = await count_resources()
                session.chain.submit("Do another task")
                await session.chain.wait_idle()
                assert_idle(after, await count_resources())
            else:
                session.chain.submit("use the other file")
    assert session.chain.runs.last_status == ("done" if ending == "interrupt" else "interrupted")
    assert await count_resources() == before
