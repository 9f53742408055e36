"""The open sessions of one program."""

from __future__ import annotations

import fcntl
import json
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from support import MemoryFile
from trio.testing import MockClock

from chain.app.open import open_chain
from chain.chain import Chain
from chain.config.load import Settings, load_settings
from chain.journal.journal import Journal
from chain.session import listing
from cli.terminal.chains import OpenSessions


def configured(folder: Path) -> Settings:
    """Return settings with two models that differ in their retries."""
    (folder / "one.yaml").write_text("name: one\nrules: [{text: The answer.}]")
    (folder / "two.yaml").write_text("name: two\nrules: [{text: x, error: {message: too busy, retryable: true}}]")
    models = {
        name: {"provider": "scripted", "script": f"{name}.yaml", "max_attempts": attempts}
        for name, attempts in (("one", 1), ("two", 3))
    }
    raw = {"models": {"default": "one", "definitions": models}, "chains": {"default": {"system_prompt": None}}}
    (folder / "config.yaml").write_text(json.dumps(raw))
    return load_settings(config=folder / "config.yaml", environ={}, cwd=folder, flags={})


@asynccontextmanager
async def opener(folder: Path, **more: Any) -> AsyncIterator[OpenSessions]:
    settings = configured(folder)
    opens = partial(open_chain, settings, workspace=folder, state=folder / "state", **more)
    async with trio.open_nursery() as nursery:
        sessions = OpenSessions(nursery, settings, opens, lambda _: nullcontext(""))
        yield sessions
        await sessions.close()


async def test_a_chain_accepts_lines_until_it_is_closed(tmp_path: Path) -> None:
    async with opener(tmp_path) as sessions:
        one, other = await sessions.open("one"), await sessions.open("one")
        await sessions.close(one)
        assert one.submit("too late").what == "refused"
        assert other.start("Do the task").what == "started"
        await other.wait_idle()
        await sessions.close(one)
    assert other.submit("too late").what == "refused"


async def test_a_chain_of_a_cancelled_caller_is_closed(tmp_path: Path) -> None:
    settings = configured(tmp_path)
    caller = trio.CancelScope()

    @asynccontextmanager
    async def opens(**more: Any) -> AsyncIterator[Chain]:
        async with open_chain(settings, workspace=tmp_path, state=tmp_path / "state", **more) as chain:
            caller.cancel()  # in the step in which the chain becomes open
            yield chain

    async with trio.open_nursery() as nursery:
        sessions = OpenSessions(nursery, settings, opens, lambda _: nullcontext(""))
        with caller:
            await sessions.open("one")
        await sessions.close()


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_locked_session_delays_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_cancelled: bool
) -> None:
    async with opener(tmp_path) as sessions:
        path = (await sessions.open("one")).journal_path
    assert path is not None
    waits, unlocked = threading.Event(), threading.Event()
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)

        def pause(seconds: float) -> None:
            waits.set()
            unlocked.wait()
            fcntl.flock(file, fcntl.LOCK_UN)

        monkeypatch.setattr(time, "sleep", pause)
        async with opener(tmp_path) as sessions, trio.open_nursery() as nursery:
            one = await sessions.open("one")
            nursery.start_soon(partial(sessions.open, "one", resume=path.stem))
            while not waits.is_set():
                await trio.lowlevel.checkpoint()
            assert one.start("Do the task").what == "started"
            await one.wait_idle()
            if is_cancelled:
                nursery.cancel_scope.cancel()
            unlocked.set()
    assert not listing.is_open(path)
    assert path.read_bytes().count(b'{"type":"session"') == (1 if is_cancelled else 2)


@pytest.mark.parametrize(("model", "retries"), [("one", 0), ("two", 2)])
async def test_each_model_has_its_own_retries(
    tmp_path: Path, autojump_clock: MockClock, model: str, retries: int
) -> None:
    async with opener(tmp_path, journal=Journal(MemoryFile(), id="test")) as sessions:
        chain = await sessions.open(model)
        feed = chain.feed()
        chain.start("Do the task")
        await chain.wait_idle()
        assert [event.type for event in feed.take()].count("retry") == retries
