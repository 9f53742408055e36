"""The invariants of SPEC section 2, and I10, where conversations outgrow the window again and again: random models in
random windows, whose service counts tokens its own way, with summaries of every kind, and a user who says things, asks
for compactions, stops and interrupts meanwhile.

``CHAIN_TEST_PROFILE=long`` tries ten times as many.
"""

from __future__ import annotations

import math
import random
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
    Session,
    check_full_disk,
    check_heard,
    check_invariants,
    check_silence,
    open_session,
    sharded,
    wait_quiet,
)
from support import settings as chain_settings
from support.crashes import check_same_again, check_went_on, left
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
at_events = st.lists(st.tuples(st.integers(0, 80), whats), max_size=10)
seconds = st.sampled_from([0.25, 0.5, 1.0, 1.5, 2.0, 3.25, 5.0])
at_times = st.lists(st.tuples(seconds, whats), max_size=5)
summaries = st.lists(st.sampled_from(get_args(Summary)), max_size=5)


async def drive(
    drawn: list[Step],
    says: list[Summary],
    at: list[tuple[int, str]],
    in_time: list[tuple[float, str]],
    setting: Setting,
    file: MemoryFile,
) -> None:
    use = chain_settings(max_iterations=LIMIT, **setting.more)
    is_well = not says and setting.room >= ENOUGH
    model = SmallWindow(RandomModel(drawn), setting.room, setting.counts, says, setting.tells, setting.knows)
    async with open_session(model, tools=TOOLS, use=use, interactive=setting.interactive, file=file) as session:
        chain = session.chain
        acts = Acts(session, at, also_idle=True)
        chain.listen(acts)
        for query in "Do the task", "Do another", "And a third":
            chain.submit(query)
            async with trio.open_nursery() as nursery:
                if query == "Do the task":
                    acts.at_once()
                    nursery.start_soon(acts.in_time, in_time)
                await wait_quiet(session)
                check(session)
                nursery.cancel_scope.cancel()
            if isinstance(file, FullDisk):
                file.room = math.inf
    check(session)
    assert len(model.refused) == len(set(model.refused)), "a request that was too long is not sent again"
    if is_well:
        assert "context_full" not in [result.status for result in session.of(events.Result)]


def check(session: Session) -> None:
    if not isinstance(session.file, FullDisk):
        check_invariants(session, max_iterations=LIMIT)
    elif session.file.room == math.inf and session.of(events.Result)[-1].status != "error":
        check_full_disk(session)
    check_silence(session, session.interrupted_at)
    check_heard(session)


honest = steps.filter(lambda step: step.stop_reason != "model_context_window_exceeded")


@sharded(2_000, st.lists(honest, max_size=14), summaries, at_events, at_times, st.sampled_from(SETTINGS))
def test_the_invariants_hold_in_windows_that_are_too_small(
    drawn: list[Step],
    says: list[Summary],
    at: list[tuple[int, str]],
    in_time: list[tuple[float, str]],
    setting: Setting,
) -> None:
    async def main() -> None:
        await drive(drawn, says, at, in_time, setting, MemoryFile())

    random.seed(0)
    trio.run(main, clock=MockClock(autojump_threshold=0))


disk_acts = st.sampled_from(DISK_ACTS)


@sharded(
    500,
    st.lists(honest, max_size=14),
    summaries,
    st.lists(st.tuples(st.integers(0, 80), st.one_of(disk_acts, whats)), max_size=12),
    st.sampled_from(SETTINGS),
)
def test_what_is_promised_holds_though_the_disk_is_full_as_well(
    drawn: list[Step], says: list[Summary], at: list[tuple[int, str]], setting: Setting
) -> None:
    async def main() -> None:
        await drive(drawn, says, at, [], setting, FullDisk())

    random.seed(0)
    trio.run(main, clock=MockClock(autojump_threshold=0))


@sharded(300, st.lists(honest, max_size=14), summaries, at_events, st.sampled_from(SETTINGS), st.floats(0, 1))
def test_wherever_a_crash_cuts_it_the_session_goes_on_with_what_was_said(
    drawn: list[Step], says: list[Summary], at: list[tuple[int, str]], setting: Setting, part: float
) -> None:
    async def main() -> None:
        file = MemoryFile()
        await drive(drawn, says, at, [], setting, file)
        data = file.data[: int(len(file.data) * part)]
        file, read = left(data)
        said, before = words_of(read), len(file.data.splitlines())
        model = SmallWindow(RandomModel([]), ENOUGH, setting.counts, [], setting.tells, setting.knows)
        async with open_session(model, tools=TOOLS, file=file, resume=read) as session:
            session.chain.runs.begin_waiting()
            await wait_quiet(session)
            await session.run("and now?")
            check_went_on(session, before)
            last = session.sent()
        check_same_again(session)
        assert all(text in last for text in said), "I10"
        assert words_of(load_journal(session.file.data.splitlines(keepends=True))) >= said

    random.seed(0)
    trio.run(main, clock=MockClock(autojump_threshold=0))


def words_of(read: LoadedSession) -> set[str]:
    """What a compaction that is on record keeps of the user's words, row by row, as far as they have marks."""
    compacted = read.state.main.history.compacted
    return set() if compacted is None else {row for row in compacted.words.splitlines() if MARKED.search(row)}
