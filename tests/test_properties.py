"""The invariants of SPEC section 2 on random models, tools, lines and interrupts.

The user acts in the very step of numbered events and at moments in time. An example is drawn from short tables, each
with its plainest entry first, so that failures shrink to few and plain entries. Agents below the main one and questions
are in ``test_tree_properties``.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import trio
from hypothesis import strategies as st
from support import (
    ANOTHER_MODEL,
    DISK_ACTS,
    DROP,
    DROP_FIRST,
    EDIT,
    INTERRUPT,
    LINES,
    Acts,
    FullDisk,
    MemoryFile,
    check_session,
    open_session,
    sharded,
    wait_quiet,
)
from support import settings as chain_settings
from support.models import TOOLS, RandomModel, Step, steps
from trio.testing import MockClock

HANDLER = """
config: {max_tokens: 500, effort: low}
messages:
  - {role: user, content: "USER INTERRUPTION: ${message}"}
  - {role: system, content: "Deal with ${count} lines at ${point}, ${remaining} calls left."}
"""
RULES = """
rules:
  - {match: ^enough, action: stop}
  - {match: ^wait, action: urgent}
  - {match: ^note, resume: false}
"""
BY_RULE = ["enough of this ‹›", "wait, use the third one ‹›", "note that it is late ‹›?"]
"""Lines that match a rule, where these rules hold."""


@dataclass(frozen=True)
class Setting:
    """How a session is opened."""

    max_iterations: int = 6
    interactive: bool = False
    sync_s: float = 0.0
    more: dict[str, Any] = field(default_factory=dict)


SETTINGS = [
    Setting(),
    Setting(interactive=True),
    Setting(max_iterations=2, more={"handler": HANDLER}),
    Setting(max_iterations=3, interactive=True, more={"inbox_size": 2}),
    Setting(max_iterations=1),
    Setting(max_iterations=1, interactive=True, more={"handler": HANDLER}),
    Setting(sync_s=0.3, more={"inbox_size": 1, "handler": HANDLER}),
    Setting(max_iterations=4, interactive=True, sync_s=1.5, more={"inbox_size": 2, "handler": HANDLER}),
    Setting(more={"timeout_s": 4.0}),
    Setting(interactive=True, more={"timeout_s": 2.0, "handler": HANDLER}),
    Setting(more={"budget_tokens": 5}),
    Setting(interactive=True, more={"max_attempts": 1, "handler": "resume: false"}),
    Setting(more={"inbox_size": 1, "handler": RULES}),
    Setting(max_iterations=3, interactive=True, sync_s=0.3, more={"inbox_size": 2, "handler": RULES + HANDLER}),
]

seconds = st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.25, 1.5, 2.0, 3.0, 3.25, 5.0])
whats = st.sampled_from([*LINES, INTERRUPT, INTERRUPT, DROP, DROP_FIRST, EDIT, ANOTHER_MODEL, *LINES, *BY_RULE])
idly = st.sampled_from(["todo: add one ‹›", ANOTHER_MODEL, "todo: clear", "status", "stop"])
disk_acts = st.sampled_from(DISK_ACTS)


@dataclass
class Example:
    """A run of these steps while the user does things, things between two runs, and a second run."""

    steps: list[Step]
    at: list[tuple[int, str]]
    in_time: list[tuple[float, str]]
    then: list[str]
    setting: Setting
    closes_after_s: float | None = None

    async def play(self, file: MemoryFile) -> None:
        rest, names = list(self.steps), count(1)
        limit = self.setting.max_iterations
        use = chain_settings(max_iterations=limit, **self.setting.more)
        model, interactive = RandomModel(rest), self.setting.interactive
        async with open_session(model, tools=TOOLS, use=use, interactive=interactive, file=file) as session:
            acts = Acts(session, self.at, also_idle=True, another=lambda: RandomModel(rest, f"other{next(names)}"))
            session.chain.listen(acts)
            async with trio.open_nursery() as nursery:
                session.chain.submit("Do the task")
                acts.at_once()
                nursery.start_soon(acts.in_time, self.in_time)
                await wait_quiet(session)
                check_session(session, limit)
                nursery.cancel_scope.cancel()
            for what in self.then:
                acts.do(what)
                await wait_quiet(session)
            if isinstance(file, FullDisk):
                file.room = math.inf
            session.chain.submit("Do another task")
            if self.closes_after_s is None:
                await wait_quiet(session)
                check_session(session, limit)
            else:
                await trio.sleep(self.closes_after_s)
        check_session(session, limit)

    def run(self, file: MemoryFile) -> None:
        random.seed(0)  # the jitter of the retries
        trio.run(self.play, file, clock=MockClock(autojump_threshold=0))


@sharded(
    3_000,
    st.builds(
        Example,
        st.lists(steps, max_size=8),
        st.lists(st.tuples(st.integers(0, 60), whats), max_size=10),
        st.lists(st.tuples(seconds, whats), max_size=6),
        st.lists(idly, max_size=2),
        st.sampled_from(SETTINGS),
        st.sampled_from([None, None, None, 0.0, 1.0]),
    ),
)
def test_the_invariants_hold_whatever_happens(example: Example) -> None:
    example.run(MemoryFile(example.setting.sync_s))


@sharded(
    1_000,
    st.builds(
        Example,
        st.lists(steps, max_size=6),
        st.lists(st.tuples(st.integers(0, 40), st.one_of(disk_acts, whats)), max_size=12),
        st.lists(st.tuples(seconds, st.one_of(disk_acts, whats)), max_size=6),
        st.lists(st.one_of(disk_acts, idly, st.just("Do something else")), max_size=4),
        st.sampled_from(SETTINGS),
    ),
)
def test_the_promises_hold_on_a_full_disk(example: Example) -> None:
    example.run(FullDisk(example.setting.sync_s))
