"""The invariants of SPEC section 2 for random models, tools, lines, answers, stops and interrupts.

An example is one agent with random replies, or a tree of up to four levels and twelve agents whose models fail, refuse
and ask each other. The user acts at numbered events and at times. Examples are drawn from short tables with the
plainest entry first, so that failures shrink to few and plain entries.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, get_args

import trio
from hypothesis import strategies as st
from support.checks import check_session
from support.disks import FullDisk, MemoryFile
from support.examples import sharded
from support.models import RandomModel, Step, steps
from support.sessions import Session, open_session, wait_quiet
from support.small_window import SmallWindow, Summary
from support.trees import FIRST, SECOND, TREE_TOOLS, Tree, TreeModel, tree_settings, trees
from support.users import (
    ANOTHER_MODEL,
    COMPACT,
    DISK_ACTS,
    DROP,
    DROP_FIRST,
    EDIT,
    INTERRUPT,
    LINES,
    ActingUser,
    AnsweringUser,
)
from trio.testing import MockClock

from chain.model import Model

HANDLER = """
config: {max_tokens: 500, effort: low}
messages:
  - {role: user, content: "USER INTERRUPTION of ${agent}: ${message}"}
  - {role: system, content: "Deal with ${count} lines at ${point}, ${remaining} calls left."}
rules:
  - {match: ^enough, action: stop}
  - {match: ^wait, action: urgent}
  - {match: ^note, resume: false}
"""
LINES_OF_RULES = ["enough of this ‹›", "wait, use the third one ‹›", "note that it is late ‹›?"]
"""Lines that match a rule of ``HANDLER``. ``‹›`` becomes a unique number, as in ``LINES``."""
FOREVER_S = 1e6
"""Longer than any example lasts that ends."""


@dataclass(frozen=True)
class SessionSetting:
    """The settings of a session, ``more`` by name.

    ``answers_s``: the seconds for which questions can be answered; ``None``: always. ``sync_s``: the time of a sync.
    """

    max_iterations: int = 6
    interactive: bool = False
    sync_s: float = 0.0
    answers_s: float | None = None
    more: dict[str, Any] = field(default_factory=dict)


SETTINGS = [
    SessionSetting(),  # the defaults
    SessionSetting(interactive=True, more={"handler": HANDLER}),  # a handler prompt with rules
    SessionSetting(max_iterations=1, interactive=True, more={"handler": HANDLER}),  # the first iteration is the last
    SessionSetting(max_iterations=2, interactive=True, more={"worker": 1}),  # a child's first iteration is its last
    SessionSetting(max_iterations=3, more={"inbox_size": 1, "worker": 2, "explore": 1}),  # a queue of one line
    SessionSetting(sync_s=0.3, more={"inbox_size": 2, "explore": 2, "handler": HANDLER}),  # a slow disk
    SessionSetting(interactive=True, sync_s=1.5, more={"inbox_size": 2}),  # a disk slower than many tools
    SessionSetting(answers_s=2.0, more={"max_running": 2, "max_kept": 1}),  # the user leaves questions open
    SessionSetting(answers_s=0.0, more={"max_depth": 1}),  # no user answers
    SessionSetting(max_iterations=4, answers_s=0.0, more={"max_running": 3, "max_depth": 2, "max_kept": 2}),  # all low
    SessionSetting(more={"timeout_s": 4.0, "handler": HANDLER}),  # some runs take longer
    SessionSetting(interactive=True, more={"budget_tokens": 14}),  # enough for seven replies of two tokens
    SessionSetting(more={"max_attempts": 1, "handler": "resume: false", "allow": "danger"}),  # no retry
]
ADDRESSES = ["", "", "@1 ", "@2 ", "@3 ", "@1 ", "@2 ", "@0 ", "@5 ", "@nobody-7 "]
"""The addresses of lines: none, agents by number, an agent that does not exist. Repeated ones are drawn more often."""


@dataclass
class SessionExample:
    """Two runs of a tree or of one agent, and the user's acts.

    The user acts during the first run at numbered events (``at``) and times (``in_time``), and after it (``then``).
    ``answers`` are answers of questions, each after some seconds. With ``closes_after_s`` the second run is cut.
    """

    plays: Tree | list[Step]
    setting: SessionSetting
    at: list[tuple[int, str]] = field(default_factory=list)
    in_time: list[tuple[float, str]] = field(default_factory=list)
    then: list[str] = field(default_factory=list)
    answers: list[tuple[float, str | None]] = field(default_factory=list)
    closes_after_s: float | None = None

    def models(self) -> tuple[Model, Callable[[], Model]]:
        """Return the first model, and a function that returns another model, which continues its work."""
        plays, numbers = self.plays if isinstance(self.plays, Tree) else list(self.plays), count(1)
        return self._model(plays, "first"), lambda: self._model(plays, f"other{next(numbers)}")

    def _model(self, plays: Tree | list[Step], name: str) -> Model:
        return TreeModel(plays, name) if isinstance(plays, Tree) else RandomModel(plays, name)

    async def play(self, file: MemoryFile) -> None:
        limit, interactive = self.setting.max_iterations, self.setting.interactive
        settings, (model, another) = tree_settings(max_iterations=limit, **self.setting.more), self.models()
        async with open_session(
            model, tools=TREE_TOOLS, settings=settings, interactive=interactive, file=file
        ) as session:
            acts = ActingUser(session, self.at, another=another)
            session.chain.listen(acts)
            await self.first_run(session, acts)
            check_session(session, limit)
            acts.also_idle = True
            for act in self.then:
                acts.perform(act)
                await wait_quiet(session)
            if isinstance(file, FullDisk):
                file.full = False
            session.chain.submit(SECOND)
            if self.closes_after_s is None:
                await wait_quiet(session)
                check_session(session, limit)
            else:
                await trio.sleep(self.closes_after_s)
        check_session(session, limit)

    async def first_run(self, session: Session, acts: ActingUser) -> None:
        chain = session.chain
        async with trio.open_nursery() as nursery:
            chain.listen(AnsweringUser(session, list(self.answers), nursery, isinstance(session.file, FullDisk)))
            with chain.answering() as answerer:
                chain.submit(FIRST)
                acts.perform_first()
                nursery.start_soon(acts.perform_timed, self.in_time)
                if self.setting.answers_s is None:
                    with trio.move_on_after(FOREVER_S) as waited:
                        await wait_quiet(session)
                    has_question = chain.questions.open_id is not None
                    assert has_question or not waited.cancelled_caught, "only an open question may wait forever"
                else:
                    await trio.sleep(self.setting.answers_s)
                answerer.close()
                if isinstance(session.file, FullDisk):
                    session.file.full = False
            await wait_quiet(session)
            nursery.cancel_scope.cancel()

    def run(self, file: MemoryFile) -> None:
        random.seed(0)  # for the random pauses before retries
        trio.run(self.play, file, clock=MockClock(autojump_threshold=0))


@dataclass
class SmallWindowExample(SessionExample):
    """An example in a window that each agent's conversation outgrows. It has ``room`` after the first request."""

    room: int = 300
    first_summaries: list[Summary] = field(default_factory=list)

    def models(self) -> tuple[Model, Callable[[], Model]]:
        first, another = super().models()
        return SmallWindow(first, self.room, first_summaries=list(self.first_summaries)), another


# Entries that occur twice are drawn twice as often.
all_lines = st.sampled_from([*LINES, *LINES, *LINES_OF_RULES, "stop"])
sent_lines = st.builds(lambda address, line: address + line, st.sampled_from(ADDRESSES), all_lines)
user_acts = st.one_of(sent_lines, sent_lines, st.sampled_from([INTERRUPT, DROP, DROP_FIRST, EDIT, ANOTHER_MODEL]))
acts_on_a_disk = st.one_of(st.sampled_from(DISK_ACTS), user_acts)
moments = st.one_of(st.integers(3, 40), st.integers(0, 120))
seconds = st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.25, 1.5, 2.0, 3.0, 3.25, 5.0])
texts = st.sampled_from(["y", "a", "n", "rather not", "2", "somewhere else", None])
answers = st.lists(st.tuples(st.sampled_from([0.0, 0.25, 2.0]), texts), max_size=6)
acts_between_runs = st.sampled_from(["todo: add one ‹›", "todo: clear", ANOTHER_MODEL, "@1 use B ‹›", "status", "stop"])
one_agent = st.lists(steps, max_size=8)


def examples(
    plays: st.SearchStrategy[Any], acts: st.SearchStrategy[str], then: st.SearchStrategy[str]
) -> st.SearchStrategy[SessionExample]:
    return st.builds(
        SessionExample,
        plays,
        st.sampled_from(SETTINGS),
        st.lists(st.tuples(moments, acts), max_size=12),
        st.lists(st.tuples(seconds, acts), max_size=6),
        st.lists(then, max_size=4),
        answers,
        st.sampled_from([None, None, 0.0, 1.0]),  # closes_after_s
    )


@sharded(3_000, examples(one_agent, user_acts, acts_between_runs))
def test_the_invariants_hold_for_one_agent(example: SessionExample) -> None:
    example.run(MemoryFile(example.setting.sync_s))


@sharded(2_400, examples(trees, user_acts, acts_between_runs))
def test_the_invariants_hold_in_a_tree(example: SessionExample) -> None:
    example.run(MemoryFile(example.setting.sync_s))


@sharded(
    1_500,
    examples(st.one_of(one_agent, trees), acts_on_a_disk, st.one_of(st.sampled_from(DISK_ACTS), acts_between_runs)),
)
def test_the_promises_hold_on_a_full_disk(example: SessionExample) -> None:
    example.run(FullDisk(example.setting.sync_s))


@sharded(
    200,
    st.builds(
        SmallWindowExample,
        trees,
        st.sampled_from([each for each in SETTINGS if not each.more.keys() & {"budget_tokens", "timeout_s"}]),
        at=st.lists(st.tuples(moments, st.one_of(st.just(COMPACT), user_acts)), max_size=12),
        answers=answers,
        room=st.sampled_from([100, 300, 600]),
        first_summaries=st.lists(st.sampled_from(get_args(Summary)), max_size=4),
    ),
)
def test_the_invariants_hold_in_small_windows(example: SmallWindowExample) -> None:
    example.run(MemoryFile(example.setting.sync_s))
