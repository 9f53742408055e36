"""The chains of one program: each is open until it is closed, whatever becomes of the others."""

from __future__ import annotations

import fcntl
import json
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
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
from chain.errors import UserError
from chain.journal.journal import Journal
from chain.plan import Task
from chain.session import listing
from cli.terminal.chains import OpenSessions


def configured(folder: Path) -> Settings:
    """Settings with two models, of which one is asked more often."""
    (folder / "one.yaml").write_text("name: one\nrules: [{text: The answer.}]")
    (folder / "two.yaml").write_text("name: two\nrules: [{text: x, error: {message: too busy, retryable: true}}]")
    models: dict[str, Any] = {
        "one": {"provider": "scripted", "script": "one.yaml", "max_attempts": 1},
        "two": {"provider": "scripted", "script": "two.yaml", "max_attempts": 3},
        "keyless": {"provider": "anthropic", "model": "m"},
    }
    raw = {"models": {"default": "one", "definitions": models}, "chains": {"default": {"system_prompt": None}}}
    path = folder / "config.yaml"
    path.write_text(json.dumps(raw))
    return load_settings(config=path, environ={}, cwd=folder, flags={})


@asynccontextmanager
async def opener(folder: Path, **how: Any) -> AsyncIterator[OpenSessions]:
    settings = configured(folder)
    opens = partial(open_chain, settings, workspace=folder, state=folder / "state", **how)
    async with trio.open_nursery() as nursery:
        sessions = OpenSessions(nursery, settings, opens, lambda _: nullcontext(""))
        yield sessions
        await sessions.close()


async def test_one_is_opened_before_the_other_is_closed(tmp_path: Path) -> None:
    async with opener(tmp_path) as sessions:
        one = await sessions.open("one")
        other = await sessions.open("one", plan=[Task("buy milk", "DONE")])
        assert one.session_id != other.session_id
        assert other.plan.tasks == (Task("buy milk", "DONE"),)
        await sessions.close(one)
        assert one.submit("too late").what == "refused"
        assert other.start("Do the task").what == "started"
        await other.wait_idle()
        assert other.runs.last_status == "done"
        await sessions.close(one)
    assert other.submit("too late").what == "refused"


async def test_one_that_nobody_wants_any_more_in_the_step_in_which_it_is_open_is_closed(tmp_path: Path) -> None:
    settings = configured(tmp_path)
    leaving = trio.CancelScope()

    @asynccontextmanager
    async def opens(**how: Any) -> AsyncIterator[Chain]:
        async with open_chain(settings, workspace=tmp_path, state=tmp_path / "state", **how) as chain:
            leaving.cancel()
            yield chain

    async with trio.open_nursery() as nursery:
        sessions = OpenSessions(nursery, settings, opens, lambda _: nullcontext(""))
        with leaving:
            await sessions.open("one")
        await sessions.close()


async def test_what_cannot_be_opened_leaves_the_others_open(tmp_path: Path) -> None:
    async with opener(tmp_path) as sessions:
        one = await sessions.open("one")
        with pytest.raises(UserError, match="API key"):
            await sessions.open("keyless")
        (tmp_path / "state/sessions").rename(tmp_path / "elsewhere")
        (tmp_path / "state/sessions").write_text("no folder")
        with pytest.raises(UserError):
            await sessions.open("one")
        assert one.start("Do the task").what == "started"
        await one.wait_idle()
        assert one.runs.last_status == "done"


@dataclass
class Held:
    """A journal that somebody has for a moment, which lasts until it is let go. ``begun``: it is waited for."""

    path: Path
    begun: threading.Event = field(default_factory=threading.Event)
    let_go: threading.Event = field(default_factory=threading.Event)

    async def wait_begun(self) -> None:
        while not self.begun.is_set():
            await trio.lowlevel.checkpoint()


@pytest.fixture
async def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Held]:
    async with opener(tmp_path) as sessions:
        closed = await sessions.open("one")
    assert closed.journal_path is not None
    held = Held(closed.journal_path)
    with held.path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)

        def pause(seconds: float) -> None:
            held.begun.set()
            held.let_go.wait()
            fcntl.flock(file, fcntl.LOCK_UN)

        monkeypatch.setattr(time, "sleep", pause)
        yield held


async def test_the_others_go_on_while_a_session_is_locked_and_read(held: Held, tmp_path: Path) -> None:
    async with opener(tmp_path) as sessions, trio.open_nursery() as nursery:
        one = await sessions.open("one")
        nursery.start_soon(partial(sessions.open, "one", resume=held.path.stem))
        await held.wait_begun()
        assert one.start("Do the task").what == "started"
        await one.wait_idle()
        assert one.runs.last_status == "done"
        held.let_go.set()


async def test_a_session_that_nobody_waits_for_any_more_is_left_to_others(held: Held, tmp_path: Path) -> None:
    async with opener(tmp_path) as sessions, trio.open_nursery() as nursery:
        nursery.start_soon(partial(sessions.open, "one", resume=held.path.stem))
        await held.wait_begun()
        nursery.cancel_scope.cancel()
        held.let_go.set()
    assert not listing.is_open(held.path)
    assert held.path.read_bytes().count(b'{"type":"session"') == 1, "it was not opened"


@pytest.mark.parametrize(("model", "retries"), [("one", 0), ("two", 2)])
async def test_a_model_is_asked_as_often_as_its_definition_says(
    tmp_path: Path, autojump_clock: MockClock, model: str, retries: int
) -> None:
    async with opener(tmp_path, journal=Journal(MemoryFile(), id="test")) as sessions:
        chain = await sessions.open(model)
        assert chain.init.model == model
        feed = chain.feed()
        chain.start("Do the task")
        await chain.wait_idle()
        assert [event.type for event in feed.take()].count("retry") == retries
