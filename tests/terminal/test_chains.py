"""The open sessions of one program."""

from __future__ import annotations

import fcntl
import json
import threading
import time
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from support.disks import MemoryFile
from trio.testing import MockClock

from chain.app.open import open_chain
from chain.chain import Chain
from chain.config.load import Settings, load_settings
from chain.journal.journal import Journal
from chain.session import listing
from cli.terminal.chains import OpenChain, OpenSessions


def configure(folder: Path) -> Settings:
    """Return settings with model ``one``, and model ``two``, which always fails and is retried twice."""
    (folder / "one.yaml").write_text("name: one\nrules: [{text: The answer.}]")
    (folder / "two.yaml").write_text("name: two\nrules: [{text: x, error: {message: too busy, retryable: true}}]")
    models = {
        name: {"provider": "scripted", "script": f"{name}.yaml", "max_attempts": attempts}
        for name, attempts in (("one", 1), ("two", 3))
    }
    raw = {"models": {"default": "one", "definitions": models}, "chains": {"default": {"system_prompt": None}}}
    (folder / "config.yaml").write_text(json.dumps(raw))
    return load_settings(config=folder / "config.yaml", environ={}, cwd=folder, flags={})


def no_door(chain: Chain) -> AbstractContextManager[str]:
    """Open no side door, so that other processes cannot use the session."""
    return nullcontext("")


@asynccontextmanager
async def open_sessions(
    folder: Path, open_function: OpenChain = open_chain, **options: Any
) -> AsyncIterator[OpenSessions]:
    """Yield the sessions of a program without side doors. The options are those of ``open_chain``."""
    settings = configure(folder)
    open_one = partial(open_function, settings, workspace=folder, state=folder / "state", **options)
    async with trio.open_nursery() as nursery:
        sessions = OpenSessions(nursery, settings, open_one, no_door)
        yield sessions
        await sessions.close()


async def test_a_chain_accepts_lines_until_it_is_closed(tmp_path: Path) -> None:
    async with open_sessions(tmp_path) as sessions:
        first, second = await sessions.open("one"), await sessions.open("one")
        await sessions.close(first)
        assert first.submit("too late").what == "refused"
        assert second.start("Do the task").what == "started"
        await second.wait_idle()
        await sessions.close(first)  # a second time, which does nothing
    assert second.submit("too late").what == "refused"


async def test_a_chain_of_a_cancelled_caller_is_closed(tmp_path: Path) -> None:
    caller = trio.CancelScope()
    chains = list[Chain]()

    @asynccontextmanager
    async def open_and_cancel(settings: Settings, **options: Any) -> AsyncIterator[Chain]:
        async with open_chain(settings, **options) as chain:
            caller.cancel()  # in the step in which the chain becomes open
            chains.append(chain)
            yield chain

    async with open_sessions(tmp_path, open_and_cancel) as sessions:
        with caller:
            await sessions.open("one")
    assert [chain.submit("too late").what for chain in chains] == ["refused"]


@pytest.mark.parametrize(("is_cancelled", "opening_count"), [(False, 2), (True, 1)], ids=["opened", "cancelled"])
async def test_a_locked_session_delays_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_cancelled: bool, opening_count: int
) -> None:
    async with open_sessions(tmp_path) as sessions:
        path = (await sessions.open("one")).journal_path
    assert path is not None
    is_waiting, may_unlock = threading.Event(), threading.Event()
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)

        def wait_and_unlock(seconds: float) -> None:
            is_waiting.set()
            may_unlock.wait()
            fcntl.flock(file, fcntl.LOCK_UN)

        monkeypatch.setattr(time, "sleep", wait_and_unlock)  # the opening thread sleeps between attempts to lock
        async with open_sessions(tmp_path) as sessions, trio.open_nursery() as nursery:
            other = await sessions.open("one")
            nursery.start_soon(partial(sessions.open, "one", resume=path.stem))
            await trio.to_thread.run_sync(is_waiting.wait, abandon_on_cancel=True)
            assert other.start("Do the task").what == "started"
            await other.wait_idle()
            if is_cancelled:
                nursery.cancel_scope.cancel()
            may_unlock.set()
    assert not listing.is_open(path)
    session_records = path.read_bytes().count(b'{"type":"session"')  # one for each time it was opened
    assert session_records == opening_count


@pytest.mark.parametrize(("model", "retries"), [("one", 0), ("two", 2)], ids=["working model", "failing model"])
async def test_each_model_has_its_own_retries(
    tmp_path: Path, autojump_clock: MockClock, model: str, retries: int
) -> None:
    in_memory = Journal(MemoryFile(), id="test")  # the clock could jump while a thread syncs a file
    async with open_sessions(tmp_path, journal=in_memory) as sessions:
        chain = await sessions.open(model)
        feed = chain.feed()
        chain.start("Do the task")
        await chain.wait_idle()
        assert sum(event.type == "retry" for event in feed.take()) == retries
