"""Nothing is left behind: no task, process, file descriptor or busy thread, however a run ends or a line comes back.

The sessions are whole: a journal on a real disk, and the double of the service behind real sockets. They are counted
twice: while the session is open and idle again, and once it is closed.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pytest
import trio
from double import Double, ErrorEvent, Say, Script, Stall, Status, Step, calls, serve, text
from support import settings as chain_settings
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
    one, other = trio.socket.socketpair()
    with one, other:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(trio.sleep_forever)
            ctx.progress("started")
            await one.recv(1)
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


# ------------------------------------------------------------------------------------------------------- what is there


@dataclass(frozen=True)
class Held:
    """What the process holds, as counts by name."""

    tasks: Counter[str]
    files: Counter[str]
    threads: Counter[str]
    children: Counter[str]


async def held() -> Held:
    """Everything, once it stands still: threads on their way out, such as one that syncs, are waited for."""
    await wait_all_tasks_blocked()
    while any("trio" in name.casefold() for name in _busy_threads()):
        await wait_all_tasks_blocked(0.001)
    return Held(_tasks(), _files(), _busy_threads(), _children())


def _tasks() -> Counter[str]:
    """All tasks but those that serve the double's connections."""
    root = trio.lowlevel.current_root_task()
    assert root is not None
    found: Counter[str] = Counter()
    left = [root]
    while left:
        task = left.pop()
        if not task.name.startswith("trio._highlevel_serve_listeners"):  # a connection's, at the double's end
            found[task.name] += 1
        left += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return found


def _files() -> Counter[str]:
    """What the open descriptors lead to: a path, or the kind of thing."""
    found: Counter[str] = Counter()
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one that listed them
            found[os.readlink(f"/proc/self/fd/{fd}").partition(":[")[0]] += 1
    return found


def _busy_threads() -> Counter[str]:
    """All threads but trio's idle workers, which wait for ten seconds whether there is more to do."""
    frames = sys._current_frames()
    found: Counter[str] = Counter()
    for each in threading.enumerate():
        frame = frames.get(each.ident or 0)
        names = set()
        while frame is not None:
            names.add(frame.f_code.co_name)
            frame = frame.f_back
        if "_work" not in names or "_handle_job" in names:
            found[each.name] += 1
    found["borrowed from trio"] = int(trio.to_thread.current_default_thread_limiter().borrowed_tokens)
    return +found


def _children() -> Counter[str]:
    found: Counter[str] = Counter()
    for task in Path("/proc/self/task").iterdir():
        found.update({*(task / "children").read_text().split()})
    return found


# ---------------------------------------------------------------------------------------------------------- a session


@dataclass
class Open:
    """An open session; its double, which holds no connection that the session has not."""

    chain: Chain
    double: Double
    events: list[events.Event]

    async def until(self, *types: type[events.Event], n: int = 1) -> None:
        """Until the n-th event of these types from the beginning has come."""
        while sum(isinstance(e, types) for e in self.events) < n:
            await self._news.wait()

    def hear(self, event: events.Event) -> None:
        self.events.append(event)
        self._news.set()
        self._news = trio.Event()

    def __post_init__(self) -> None:
        self._news = trio.Event()

    @property
    def status(self) -> str | None:
        return self.chain.runs.last_status


@asynccontextmanager
async def opened(script: Script, state: Path) -> AsyncIterator[Open]:
    use = chain_settings()
    async with serve(script) as double:
        async with open_chain(
            use, workspace=state, state=state, tools=TOOLS, model=model_at(double.url), traces=state / "traces"
        ) as chain:
            session = Open(chain, double, [])
            chain.listen(session.hear)
            yield session
        while double.open_connections:
            await wait_all_tasks_blocked(0.001)


@pytest.fixture(autouse=True)
async def _warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What is made once for the whole process (modules, the resolver's files) is not counted."""
    global is_warm
    if not is_warm:
        async with opened([LOOK, FINAL], tmp_path_factory.mktemp("warm")) as session:
            session.chain.submit("Hello")
            await session.chain.wait_idle()
        is_warm = True


is_warm = False

FINAL = text("The final answer.", text_chunk=4)
LOOK = calls(("look", {"at": "x"}), ("look", {"at": "y"}), say="Let me look.")

Act: TypeAlias = Callable[[Open], Awaitable[None]]
CASES: dict[str, tuple[list[Step], Act, str]] = {}


def case(*steps: Step, status: str) -> Callable[[Act], Act]:
    """A case, named after its function: the replies, what happens, and how the run ends."""

    def add(act: Act) -> Act:
        CASES[act.__name__.replace("_", " ")] = ([*steps], act, status)
        return act

    return add


async def start(session: Open, *, tools: int = 0) -> None:
    session.chain.submit("Do the task")
    if tools:
        await session.until(events.ToolProgress, n=tools)


@case(LOOK, FINAL, status="done")
async def a_run_that_ends(session: Open) -> None:
    await start(session)


@case(calls(("tasks", {}), ("look", {})), status="interrupted")
async def a_stop_in_a_tool_that_never_ends_and_an_interrupt(session: Open) -> None:
    await start(session, tools=1)
    session.chain.submit("stop")
    await wait_all_tasks_blocked()
    session.chain.interrupt()


@case(text("A long answer.", text_chunk=2), status="interrupted")
async def an_interrupt_while_text_streams(session: Open) -> None:
    await start(session)
    await session.until(events.TextDelta)
    session.chain.interrupt()


@case(FINAL, status="interrupted")
async def an_interrupt_before_the_first_byte(session: Open) -> None:
    await start(session)
    await session.double.request(1)
    session.chain.interrupt()


@case(calls(("child", {})), status="interrupted")
async def an_interrupt_in_a_tool_with_a_process(session: Open) -> None:
    await start(session, tools=1)
    while not _children():
        await wait_all_tasks_blocked(0.001)
    session.chain.interrupt()


@case(calls(("thread", {})), status="interrupted")
async def an_interrupt_in_a_tool_with_a_thread(session: Open) -> None:
    await start(session, tools=1)
    session.chain.interrupt()


@case(calls(("tasks", {})), status="interrupted")
async def an_interrupt_in_a_tool_with_tasks_and_sockets(session: Open) -> None:
    await start(session, tools=1)
    session.chain.interrupt()


@case(calls(("read", {}), ("read", {}), ("look", {}), ("read", {})), status="interrupted")
async def an_interrupt_in_a_batch_of_reading_tools(session: Open) -> None:
    await start(session, tools=3)
    session.chain.interrupt()


@case(Status(529), Status(529), FINAL, status="interrupted")
async def an_interrupt_in_the_retry_backoff(session: Open) -> None:
    await start(session)
    await session.until(events.Retry)
    await wait_all_tasks_blocked()
    session.chain.interrupt()


@case(ErrorEvent(after=4), FINAL, status="done")
async def a_stream_that_breaks_and_is_asked_again(session: Open) -> None:
    await start(session)


@case(LOOK, text("No.", stop_reason="refusal"), status="refused")
async def a_refusal(session: Open) -> None:
    await start(session)


HELD = ("an interrupt while text streams", "an interrupt before the first byte")
"""The cases in which the service does not finish its reply by itself."""


def script(name: str) -> list[Step]:
    steps = CASES[name][0]
    if name not in HELD:
        return steps
    assert isinstance(steps[0], Say)
    return [Stall(None if "first byte" in name else 5, reply=steps[0])]


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", CASES)
async def test_nothing_is_left_of(name: str, tmp_path: Path) -> None:
    random.seed(0)
    _, act, status = CASES[name]
    before = await held()
    async with opened(script(name), tmp_path) as session:
        idle = await held()
        await act(session)
        await session.chain.wait_idle()
        assert session.status == status
        after = await held()
        assert (after.tasks, after.threads, after.children) == (idle.tasks, idle.threads, idle.children)
        # A connection to the service may stay open, with both of its ends in this process; all files are closed.
        assert after.files - idle.files <= Counter({"socket": 2})
    assert await held() == before


IN_THE_MIDDLE = {
    "a model call": HELD[0],
    "a tool with a process": "an interrupt in a tool with a process",
    "a tool with a thread": "an interrupt in a tool with a thread",
    "a tool with tasks and sockets": "an interrupt in a tool with tasks and sockets",
    "a batch of reading tools": "an interrupt in a batch of reading tools",
    "the retry backoff": "an interrupt in the retry backoff",
}


@pytest.mark.parametrize("where", IN_THE_MIDDLE)
async def test_nothing_is_left_of_a_session_closed_in_the_middle_of(where: str, tmp_path: Path) -> None:
    name = IN_THE_MIDDLE[where]
    before = await held()
    async with opened(script(name), tmp_path) as session:
        await start(session)
        await session.until(events.TextDelta, events.ToolProgress, events.Retry)
        session.chain.submit("use the other file")
    assert session.status == "interrupted"
    assert await held() == before


async def test_nothing_is_left_of_a_session_whose_user_goes_away_with_an_exception(tmp_path: Path) -> None:
    async def go_away() -> None:
        async with opened([calls(("tasks", {}))], tmp_path) as session:
            await start(session, tools=1)
            raise LookupError

    before = await held()
    with pytest.raises(LookupError):
        await go_away()
    assert await held() == before


@pytest.mark.slow
async def test_many_runs_in_a_row_hold_no_more_than_a_few(tmp_path: Path) -> None:
    """Runs of all kinds, so that what each leaves would add up."""
    before = await held()

    def answer(body: object, n: int) -> Step:
        return [LOOK, FINAL, Status(400), FINAL, calls(("tasks", {})), FINAL][n % 6]

    async with opened(answer, tmp_path) as session:

        def listen(event: events.Event) -> None:
            if isinstance(event, events.ToolProgress):
                session.chain.interrupt()

        session.chain.listen(listen)
        counted: list[Held] = []
        for n in range(25):
            session.chain.submit(f"Task {n}")
            await session.chain.wait_idle()
            counted.append(await held())
        early, late = counted[4], counted[-1]
        assert (late.tasks, late.threads, late.children) == (early.tasks, early.threads, early.children)
        assert max(c.files.total() for c in counted[5:]) <= max(c.files.total() for c in counted[:5])
        assert {"done", "error", "interrupted"} == {e.status for e in session.events if isinstance(e, events.Result)}
    assert await held() == before
