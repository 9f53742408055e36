"""The invariants of SPEC section 2, and I10, in small windows: conversations are compacted again and again.

The windows, the tokens that a service counts, the replies and the summaries are random. Meanwhile the user sends
lines, asks for compactions, stops and interrupts.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, get_args

import trio
from hypothesis import strategies as st
from support.checks import check_session
from support.crashes import check_needs_no_repair, check_resumed, load_crashed
from support.disks import FullDisk, MemoryFile
from support.examples import sharded
from support.models import TOOLS, RandomModel, Step, steps
from support.sessions import make_settings, open_session, wait_quiet
from support.small_window import SmallWindow, Summary
from support.users import COMPACT, DISK_ACTS, DROP, EDIT, INTERRUPT, LINE_MARK, LINES, ActingUser
from trio.testing import MockClock

from chain import events
from chain.session.resume import LoadedSession, load_journal

MAX_ITERATIONS = 8
ENOUGH = 800
"""Tokens in which a summary and all lines of an example fit, in addition to the system prompt and the tools."""
FIRST_QUERY = "Do the task"
"""The query of the run in which the user acts."""


@dataclass(frozen=True)
class CompactionSetting:
    """The window (see ``SmallWindow``), and the settings of a session, ``more`` by name."""

    room: int
    token_ratio: float = 1.0
    reports_length: bool = True
    reports_window: bool = True
    interactive: bool = False
    more: dict[str, Any] = field(default_factory=dict)

    def window(self, inner: RandomModel, room: int, first_summaries: list[Summary]) -> SmallWindow:
        return SmallWindow(inner, room, self.token_ratio, first_summaries, self.reports_length, self.reports_window)


SETTINGS = [
    CompactionSetting(ENOUGH),
    CompactionSetting(300),  # a few messages fit
    CompactionSetting(150, token_ratio=1.3),  # little fits, and the program's estimates are too low
    CompactionSetting(ENOUGH, token_ratio=1.3, reports_length=False, interactive=True),
    CompactionSetting(300, token_ratio=0.7, reports_window=False),  # estimates are too high
    CompactionSetting(ENOUGH, token_ratio=1.3, reports_window=False, interactive=True),
    CompactionSetting(150, token_ratio=0.8, reports_window=False, reports_length=False),  # the least information
    CompactionSetting(60),  # next to nothing fits
    CompactionSetting(300, more={"budget_tokens": 3_000}),  # the budget ends some runs
]

# Entries that occur twice are drawn twice as often.
user_acts = st.sampled_from([*LINES, COMPACT, COMPACT, INTERRUPT, DROP, EDIT, *LINES])
seconds = st.sampled_from([0.25, 0.5, 1.0, 1.5, 2.0, 3.25, 5.0])
summaries = st.lists(st.sampled_from(get_args(Summary)), max_size=5)
# Only ``SmallWindow`` reports that the window is exceeded.
replies = steps.filter(lambda step: step.stop_reason != "model_context_window_exceeded")


@dataclass
class CompactionExample:
    """Three runs in a small window, and the user's acts during the first one."""

    steps: list[Step]
    first_summaries: list[Summary]
    at: list[tuple[int, str]]
    setting: CompactionSetting
    in_time: list[tuple[float, str]] = field(default_factory=list)

    async def play(self, file: MemoryFile) -> None:
        setting = self.setting
        settings = make_settings(max_iterations=MAX_ITERATIONS, **setting.more)
        model = setting.window(RandomModel(list(self.steps)), setting.room, list(self.first_summaries))
        async with open_session(
            model, tools=TOOLS, settings=settings, interactive=setting.interactive, file=file
        ) as session:
            acts = ActingUser(session, self.at, also_idle=True)
            session.chain.listen(acts)
            for query in FIRST_QUERY, "Do another", "And a third":
                session.chain.submit(query)
                async with trio.open_nursery() as nursery:
                    if query == FIRST_QUERY:
                        acts.perform_first()
                        nursery.start_soon(acts.perform_timed, self.in_time)
                    await wait_quiet(session)
                    check_session(session, MAX_ITERATIONS)
                    nursery.cancel_scope.cancel()
                if isinstance(file, FullDisk):
                    file.full = False
        check_session(session, MAX_ITERATIONS)
        assert len(model.refused) == len(set(model.refused)), "a request that was too long was sent again"
        if not self.first_summaries and setting.room >= ENOUGH:
            assert "context_full" not in [result.status for result in session.of(events.Result)]

    async def crash(self, part: float) -> None:
        """Play the example, and resume the session from the first ``part`` (0 to 1) of its journal."""
        file = MemoryFile()
        await self.play(file)
        file, read = load_crashed(file.data[: int(len(file.data) * part)])
        words = marked_words(read)
        model = self.setting.window(RandomModel([]), ENOUGH, [])
        async with open_session(model, tools=TOOLS, file=file, resume=read) as session:
            session.chain.runs.start_waiting()
            await wait_quiet(session)
            await session.run("and now?")
            check_resumed(session)
            last_request = session.sent()
        check_needs_no_repair(session)
        assert all(row in last_request for row in words), "I10: the user's words are in the next request"
        assert marked_words(load_journal(session.file.data.splitlines(keepends=True))) >= words

    def run(self, play: Callable[..., Awaitable[None]], *args: Any) -> None:
        random.seed(0)  # for the random pauses before retries
        trio.run(play, *args, clock=MockClock(autojump_threshold=0))


def marked_words(read: LoadedSession) -> set[str]:
    """Return the rows of the user's words that the last compaction kept and that contain a mark (``LINE_MARK``)."""
    compacted = read.state.main.history.compacted
    return set() if compacted is None else {row for row in compacted.words.splitlines() if LINE_MARK.search(row)}


def examples(acts: st.SearchStrategy[str], **more: st.SearchStrategy[Any]) -> st.SearchStrategy[CompactionExample]:
    at = st.lists(st.tuples(st.integers(0, 80), acts), max_size=12)
    return st.builds(
        CompactionExample, st.lists(replies, max_size=14), summaries, at, st.sampled_from(SETTINGS), **more
    )


@sharded(2_000, examples(user_acts, in_time=st.lists(st.tuples(seconds, user_acts), max_size=5)))
def test_the_invariants_hold_in_small_windows(example: CompactionExample) -> None:
    example.run(example.play, MemoryFile())


@sharded(500, examples(st.one_of(st.sampled_from(DISK_ACTS), user_acts)))
def test_the_promises_hold_on_a_full_disk(example: CompactionExample) -> None:
    example.run(example.play, FullDisk())


@sharded(300, examples(user_acts), st.floats(0, 1))
def test_a_session_continues_after_a_crash_anywhere(example: CompactionExample, part: float) -> None:
    example.run(example.crash, part)
