"""The invariants of SPEC section 2 in every agent of random trees: up to four levels and twelve agents, whose models
fail, refuse and ask each other, and a user who sends lines to any of them, answers, stops and interrupts. In the last
test the program around the chain is hard on it, too: its listeners raise, feeds come late, tools shield themselves for
longer than they are waited for, and the whole is cancelled from outside.

``CHAIN_TEST_PROFILE=long`` tries ten times as many.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import trio
from hypothesis import strategies as st
from support import (
    ANOTHER_MODEL,
    COMPACT,
    DISK_ACTS,
    DROP,
    DROP_FIRST,
    EDIT,
    INTERRUPT,
    LINES,
    Acts,
    FullDisk,
    MemoryFile,
    Replies,
    Session,
    check_full_disk,
    check_heard,
    check_invariants,
    check_silence,
    open_session,
    sharded,
    wait_quiet,
)
from support.clock import pass_time
from support.small_window import SmallWindow, Summary
from support.trees import FIRST, LEAVES, SECOND, TREE_TOOLS, Tree, TreeModel, tree_settings, trees, trees_of
from trio.testing import MockClock

from chain import events
from chain.model import Model
from chain.session.feed import Feed
from chain.tools.tool import Preview, Tool, ToolContext, tool

HANDLER = """
config: {max_tokens: 500, effort: low}
messages:
  - {role: user, content: "USER INTERRUPTION of ${agent}: ${message}"}
  - {role: system, content: "Deal with ${count} lines at ${point}, ${remaining} calls left."}
rules: [{match: ^enough, action: stop}, {match: ^wait, action: urgent}]
"""


@dataclass(frozen=True)
class Setting:
    """What a session is opened with; ``answers_s``: how long somebody is there to answer, ``None`` for always."""

    max_iterations: int = 6
    interactive: bool = False
    sync_s: float = 0.0
    answers_s: float | None = None
    more: dict[str, Any] = field(default_factory=dict)


SETTINGS = [
    Setting(),
    Setting(interactive=True, more={"handler": HANDLER}),
    Setting(max_iterations=2, interactive=True, more={"worker": 1}),
    Setting(max_iterations=3, more={"inbox_size": 1, "worker": 2, "explore": 1}),
    Setting(sync_s=0.3, more={"inbox_size": 2, "explore": 2, "handler": HANDLER}),
    Setting(interactive=True, sync_s=1.5, more={"inbox_size": 2}),
    Setting(answers_s=2.0, more={"max_running": 2, "max_kept": 1}),
    Setting(answers_s=0.0, more={"max_depth": 1}),
    Setting(max_iterations=4, answers_s=0.0, more={"max_running": 3, "max_depth": 2, "max_kept": 2}),
    Setting(more={"timeout_s": 4.0, "handler": HANDLER}),
    Setting(interactive=True, more={"budget_tokens": 14}),
    Setting(more={"max_attempts": 1, "handler": "resume: false", "allow": "danger"}),
]

DOES = [INTERRUPT, DROP, DROP_FIRST, EDIT, ANOTHER_MODEL]
SAYS = [*LINES, *LINES, "enough of this ‹›", "wait, use the third one ‹›", "note that it is late ‹›?", "stop"]
TO = ["", "", "@1 ", "@2 ", "@3 ", "@1 ", "@2 ", "@0 ", "@5 ", "@nobody-7 "]

whats = st.one_of(
    st.builds(lambda to, line: to + line, st.sampled_from(TO), st.sampled_from(SAYS)),
    st.builds(lambda to, line: to + line, st.sampled_from(TO), st.sampled_from(SAYS)),
    st.sampled_from(DOES),
)
moments = st.one_of(st.integers(3, 40), st.integers(0, 120))
at_events = st.lists(st.tuples(moments, whats), max_size=12)
seconds = st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.25, 1.5, 2.0, 3.0, 3.25, 5.0])
at_times = st.lists(st.tuples(seconds, whats), max_size=6)
between = st.lists(st.sampled_from(["todo: add one ‹›", "todo: clear", ANOTHER_MODEL, "@1 use B ‹›"]), max_size=2)
texts = st.sampled_from(["y", "a", "n", "rather not", "2", "somewhere else", None])
answers = st.lists(st.tuples(st.sampled_from([0.0, 0.25, 2.0]), texts), max_size=6)
settings = st.sampled_from(SETTINGS)

Timed = list[tuple[float, str]]
Numbered = list[tuple[int, str]]
Answering = list[tuple[float, str | None]]


@dataclass
class Example:
    """Two runs of a tree, and what the user does meanwhile and between them."""

    tree: Tree
    setting: Setting
    at: Numbered = field(default_factory=list)
    in_time: Timed = field(default_factory=list)
    answers: Answering = field(default_factory=list)
    then: list[str] = field(default_factory=list)
    closes_after_s: float | None = None
    models: int = 0
    tools: Sequence[Tool] = tuple(TREE_TOOLS)

    @property
    def model(self) -> Model:
        """What answers the first run."""
        return TreeModel(self.tree)

    def another(self) -> TreeModel:
        self.models += 1
        return TreeModel(self.tree, f"other{self.models}")

    async def play(self, file: MemoryFile) -> None:
        use = tree_settings(max_iterations=self.setting.max_iterations, **self.setting.more)
        async with open_session(
            self.model, tools=self.tools, use=use, interactive=self.setting.interactive, file=file
        ) as session:
            self.meet(session)
            acts = Acts(session, self.at, another=self.another)
            session.chain.listen(acts)
            await self.first_run(session, acts)
            self.check(session)
            acts.also_idle = True
            for what in self.then:
                acts.do(what)
                await wait_quiet(session)
            if isinstance(file, FullDisk):
                file.room = math.inf
            # The next run works, whatever the last one went through.
            session.chain.submit(SECOND)
            if self.closes_after_s is None:
                await wait_quiet(session)
                self.check(session)
            else:
                await trio.sleep(self.closes_after_s)
        self.check(session)

    def meet(self, session: Session) -> None:
        """Called with the session before anything is done with it."""

    async def first_run(self, session: Session, acts: Acts) -> None:
        chain = session.chain
        async with trio.open_nursery() as nursery:
            chain.listen(Replies(session, list(self.answers), nursery, isinstance(session.file, FullDisk)))
            with chain.answering() as answerer:
                chain.submit(FIRST)
                acts.at_once()
                nursery.start_soon(acts.in_time, self.in_time)
                if self.setting.answers_s is None:
                    # A question that nobody ever answers stands as long as somebody could; nobody else waits for ever.
                    with trio.move_on_after(1e6) as waited:
                        await wait_quiet(session)
                    assert waited.cancelled_caught <= (chain.open_question is not None)
                else:
                    await trio.sleep(self.setting.answers_s)
                answerer.close()
                if isinstance(session.file, FullDisk):
                    session.file.room = math.inf
            with trio.fail_after(1e6):
                await wait_quiet(session)
            nursery.cancel_scope.cancel()

    def check(self, session: Session) -> None:
        if not isinstance(session.file, FullDisk):
            check_invariants(session, max_iterations=self.setting.max_iterations)
        elif session.file.room == math.inf and session.of(events.Result)[-1].status != "error":
            check_full_disk(session)
        check_silence(session, session.interrupted_at)
        check_heard(session)

    def run(self, file: MemoryFile) -> None:
        random.seed(0)  # the jitter of the retries
        trio.run(self.play, file, clock=MockClock(autojump_threshold=0))


@sharded(2_400, trees, settings, at_events, at_times, answers, between, st.sampled_from([None, None, 0.0, 1.0]))
def test_the_invariants_hold_in_every_agent_of_a_tree(
    tree: Tree,
    setting: Setting,
    at: Numbered,
    in_time: Timed,
    answers: Answering,
    then: list[str],
    closes_after_s: float | None,
) -> None:
    Example(tree, setting, at, in_time, answers, then, closes_after_s).run(MemoryFile(setting.sync_s))


disk_acts = st.sampled_from(DISK_ACTS)


@sharded(
    500,
    trees,
    settings,
    st.lists(st.tuples(moments, st.one_of(disk_acts, whats)), max_size=12),
    st.lists(st.tuples(seconds, st.one_of(disk_acts, whats)), max_size=6),
    answers,
    st.lists(st.one_of(disk_acts, st.sampled_from(["todo: add one ‹›", "Do something else"])), max_size=4),
)
def test_what_is_promised_holds_in_a_tree_though_the_disk_is_full(
    tree: Tree, setting: Setting, at: Numbered, in_time: Timed, answers: Answering, then: list[str]
) -> None:
    Example(tree, setting, at, in_time, answers, then).run(FullDisk(setting.sync_s))


# -------------------------------------------------------------------------------------------- windows that are small


@dataclass
class SmallExample(Example):
    """The same, in windows that each agent's conversation outgrows."""

    room: int = 300
    says: list[Summary] = field(default_factory=list)

    @property
    def model(self) -> Model:
        return SmallWindow(TreeModel(self.tree), self.room, says=self.says)


@sharded(
    200,
    trees,
    st.sampled_from([setting for setting in SETTINGS if not {"budget_tokens", "timeout_s"} & set(setting.more)]),
    st.lists(st.tuples(moments, st.one_of(st.just(COMPACT), whats)), max_size=12),
    answers,
    st.sampled_from([100, 300, 600]),
    st.lists(st.sampled_from(get_args(Summary)), max_size=4),
)
def test_the_invariants_hold_in_every_agent_though_its_window_is_small(
    tree: Tree, setting: Setting, at: Numbered, answers: Answering, room: int, says: list[Summary]
) -> None:
    SmallExample(tree, setting, at, answers=answers, room=room, says=says).run(MemoryFile(setting.sync_s))


# ----------------------------------------------------------------------------------------- a program that is hard on it


@tool(timeout_s=50)
async def hold(ctx: ToolContext) -> str:
    """Let nothing cancel it for longer than a chain that closes waits."""
    with trio.CancelScope(shield=True):
        await pass_time(8)
    return "let go"


async def _looked_at(ctx: ToolContext) -> Preview:
    _ASKED.setdefault(ctx.call_id, trio.current_time())
    return Preview("do it", "it", "it")


_ASKED: dict[str, float] = {}
"""When calls were first looked at that are allowed."""


@tool(needs_approval=True, preview=_looked_at)
async def permitted(ctx: ToolContext) -> str:
    """Do what the configuration allows."""
    ctx.progress(f"waited {trio.current_time() - _ASKED.pop(ctx.call_id):g}")
    return "permitted"


HARD_LEAVES = [*LEAVES, *[("permitted", {})] * 4, *[("hold", {})] * 2, *[("danger", {})] * 2]
HARD_SETTINGS = [replace(each, more={**each.more, "allow": "permitted"}) for each in SETTINGS]
now_lines = st.builds(
    lambda to, line: to + line,
    st.sampled_from(TO),
    st.sampled_from(["!!use this now ‹›", "!!how far is it ‹›?", "!use it ‹›"]),
)

Outside = tuple[float | None, int | None]
"""After how many seconds the whole is cancelled, and at which event a listener wants the program to exit."""


@dataclass
class Late:
    """Somebody who comes when a session is under way, and reads all of it from then on."""

    session: Session

    def __post_init__(self) -> None:
        self.before = self.session.chain.standing
        self.since = len(self.session.events)
        self.feed: Feed = self.session.chain.feed()
        self.check_standing()

    def check_standing(self) -> None:
        """What is told of how things stand is what was told before, as far as it still holds."""
        agents, lines = set(), set()
        for event in self.session.events:
            match event:
                case events.AgentStarted(name=name):
                    agents.add(name)
                case events.AgentEnded(name=name):
                    agents.discard(name)
                case events.LineQueued(id=id):
                    lines.add(id)
                case events.RunStarted(id=id):
                    lines.discard(id)
                case events.Receipt(id=id, state=state) if state not in ("refused", "unsent"):
                    lines.discard(id)
                case events.UserInterruption(ids=ids):
                    lines.difference_update(ids)
                case _:
                    pass
        assert {e.name for e in self.before if isinstance(e, events.AgentStarted)} == agents
        assert {e.id for e in self.before if isinstance(e, events.LineQueued)} == lines

    async def check(self) -> None:
        """The feed has an end, and nothing is missing in it."""
        told: list[events.Event] = []
        with trio.fail_after(1):
            while batch := await self.feed.batch():
                told += batch
        assert whole(told[1:]) == whole(self.session.events[self.since :]), "after what says which session it is"


def whole(told: list[events.Event]) -> list[int]:
    """The events but for running text, which is joined for who reads it late."""
    return [id(e) for e in told if not isinstance(e, events.TextDelta | events.ThinkingDelta | events.ToolProgress)]


@dataclass
class HardExample(Example):
    """The same in a program that raises, comes late and is cancelled."""

    raises: list[int] = field(default_factory=list)
    late_at: list[int] = field(default_factory=list)
    outside: Outside = (None, None)
    tools: Sequence[Tool] = (*TREE_TOOLS, hold, permitted)

    def meet(self, session: Session) -> None:
        self.session = session
        self.late = [Late(session)]
        self.told: list[events.Event] = []
        session.chain.listen(self.act)
        session.chain.listen(self.told.append)

    def act(self, event: events.Event) -> None:
        n = len(self.session.events)
        if n in self.late_at:
            self.late.append(Late(self.session))
        if n == self.outside[1]:
            raise SystemExit
        if n in self.raises:
            raise ValueError

    async def play(self, file: MemoryFile) -> None:
        _ASKED.clear()
        after_s, exit_at = self.outside
        has_failed = has_left = False
        with trio.move_on_after(math.inf if after_s is None else after_s) as whole_program:
            try:
                await super().play(file)
            except* ValueError:
                has_failed = True
            except* SystemExit:
                has_left = True
        session = self.session
        n = len(session.events)
        self.check(session)
        # What listeners raise comes out of the block, and everybody is told of everything all the same.
        assert has_left == (exit_at is not None and exit_at <= n)
        assert has_failed == any(1 <= at <= n for at in self.raises) or has_left
        assert sorted(map(id, self.told)) == sorted(map(id, session.events))
        for late in (*self.late, Late(session)):
            await late.check()
        waits = [float(e.text.removeprefix("waited ")) for e in session.of(events.ToolProgress) if "waited" in e.text]
        assert all(waited <= 2 * self.setting.sync_s for waited in waits), "what is allowed waits for the disk alone"
        if whole_program.cancelled_caught and not any(e.name == "hold" for e in session.of(events.ToolCall)):
            took = trio.current_time() - whole_program.deadline
            assert took < 2 + 4 * self.setting.sync_s, "only the disk had to be waited for, and what tidies up"


@sharded(
    500,
    trees_of(HARD_LEAVES),
    st.sampled_from(HARD_SETTINGS),
    st.lists(st.tuples(moments, st.one_of(now_lines, whats)), max_size=12),
    at_times,
    answers,
    st.lists(st.integers(1, 80), max_size=3),
    st.lists(st.integers(1, 80), max_size=3),
    st.tuples(st.sampled_from([None, None, 0.0, 0.5, 2.0, 9.0]), st.one_of(st.none(), st.none(), st.integers(1, 60))),
)
def test_the_invariants_hold_in_a_program_that_raises_comes_late_and_is_cancelled(
    tree: Tree,
    setting: Setting,
    at: Numbered,
    in_time: Timed,
    answers: Answering,
    raises: list[int],
    late_at: list[int],
    outside: Outside,
) -> None:
    example = HardExample(tree, setting, at, in_time, answers, raises=raises, late_at=late_at, outside=outside)
    example.run(MemoryFile(setting.sync_s))
