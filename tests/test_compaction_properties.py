"""The invariants of SPEC section 2, and I10, where conversations outgrow the window again and again: random models in
random windows, whose service counts tokens its own way, with summaries of every kind, and a user who says things, asks
for compactions, stops and interrupts meanwhile.

``CHAIN_TEST_PROFILE=long`` tries ten times as many.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, get_args

import trio
from hypothesis import strategies as st
from support import (
    COMPACT,
    DISK_ACTS,
    DROP,
    EDIT,
    INTERRUPT,
    LINES,
    FullDisk,
    MemoryFile,
    check_session,
    open_session,
    sharded,
    wait_quiet,
)
from support import settings as chain_settings
from support.crashes import check_needs_no_repair, check_resumed, load_crashed
from support.models import TOOLS, RandomModel, Step, steps
from support.small_window import SmallWindow, Summary
from support.users import MARKED, Acts
from trio.testing import MockClock

from chain import events
from chain.session.resume import LoadedSession, load_journal

LIMIT = 8
ENOUGH = 800
"""Tokens beside the system prompt and the tools in which a summary and all that is said here have room."""


@dataclass(frozen=True)
class Setting:
    """The window, and how a session is opened."""

    room: int
    counts: float = 1.0
    tells: bool = True
    knows: bool = True
    interactive: bool = False
    more: dict[str, Any] = field(default_factory=dict)


SETTINGS = [
    Setting(ENOUGH),
    Setting(300),
    Setting(150, counts=1.3),
    Setting(ENOUGH, counts=1.3, tells=False, interactive=True),
    Setting(300, counts=0.7, knows=False),
    Setting(ENOUGH, counts=1.3, knows=False, interactive=True),
    Setting(150, counts=0.8, knows=False, tells=False),
    Setting(60),
    Setting(300, more={"budget_tokens": 3_000}),
]

DOES = [COMPACT, COMPACT, INTERRUPT, DROP, EDIT]
whats = st.sampled_from([*LINES, *DOES, *LINES])
seconds = st.sampled_from([0.25, 0.5, 1.0, 1.5, 2.0, 3.25, 5.0])
summaries = st.lists(st.sampled_from(get_args(Summary)), max_size=5)


honest = steps.filter(lambda step: step.stop_reason != "model_context_window_exceeded")
disk_acts = st.sampled_from(DISK_ACTS)


@dataclass
class Example:
    """Three runs in a small window, the first of them while the user does things."""

    steps: list[Step]
    says: list[Summary]
    at: list[tuple[int, str]]
    setting: Setting
    in_time: list[tuple[float, str]] = field(default_factory=list)

    async def play(self, file: MemoryFile) -> None:
        setting, inner = self.setting, RandomModel(list(self.steps))
        use = chain_settings(max_iterations=LIMIT, **setting.more)
        model = SmallWindow(inner, setting.room, setting.counts, list(self.says), setting.tells, setting.knows)
        async with open_session(model, tools=TOOLS, use=use, interactive=setting.interactive, file=file) as session:
            acts = Acts(session, self.at, also_idle=True)
            session.chain.listen(acts)
            for query in "Do the task", "Do another", "And a third":
                session.chain.submit(query)
                async with trio.open_nursery() as nursery:
                    if query == "Do the task":
                        acts.at_once()
                        nursery.start_soon(acts.in_time, self.in_time)
                    await wait_quiet(session)
                    check_session(session, LIMIT)
                    nursery.cancel_scope.cancel()
                if isinstance(file, FullDisk):
                    file.room = math.inf
        check_session(session, LIMIT)
        assert len(model.refused) == len(set(model.refused)), "a request that was too long is not sent again"
        if not self.says and setting.room >= ENOUGH:
            assert "context_full" not in [result.status for result in session.of(events.Result)]

    async def crash(self, part: float) -> None:
        """Play it, cut the journal there, and continue the session."""
        file = MemoryFile()
        await self.play(file)
        file, read = load_crashed(file.data[: int(len(file.data) * part)])
        said = words_of(read)
        setting = self.setting
        model = SmallWindow(RandomModel([]), ENOUGH, setting.counts, [], setting.tells, setting.knows)
        async with open_session(model, tools=TOOLS, file=file, resume=read) as session:
            session.chain.runs.start_waiting()
            await wait_quiet(session)
            await session.run("and now?")
            check_resumed(session)
            last = session.sent()
        check_needs_no_repair(session)
        assert all(text in last for text in said), "I10"
        assert words_of(load_journal(session.file.data.splitlines(keepends=True))) >= said

    def run(self, play: Callable[..., Awaitable[None]], *args: Any) -> None:
        random.seed(0)
        trio.run(play, *args, clock=MockClock(autojump_threshold=0))


def words_of(read: LoadedSession) -> set[str]:
    """What a compaction that is on record keeps of the user's words, row by row, as far as they have marks."""
    compacted = read.state.main.history.compacted
    return set() if compacted is None else {row for row in compacted.words.splitlines() if MARKED.search(row)}


def examples(acts: st.SearchStrategy[str], **more: st.SearchStrategy[Any]) -> st.SearchStrategy[Example]:
    at = st.lists(st.tuples(st.integers(0, 80), acts), max_size=12)
    return st.builds(Example, st.lists(honest, max_size=14), summaries, at, st.sampled_from(SETTINGS), **more)


@sharded(2_000, examples(whats, in_time=st.lists(st.tuples(seconds, whats), max_size=5)))
def test_the_invariants_hold_in_small_windows(example: Example) -> None:
    example.run(example.play, MemoryFile())


@sharded(500, examples(st.one_of(disk_acts, whats)))
def test_the_promises_hold_on_a_full_disk(example: Example) -> None:
    example.run(example.play, FullDisk())


@sharded(300, examples(whats), st.floats(0, 1))
def test_a_session_continues_after_a_crash_anywhere(example: Example, part: float) -> None:
    example.run(example.crash, part)
