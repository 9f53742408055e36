"""A recorded session that is run again: as it was, and what is told where it is not."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import pytest
import trio
from hypothesis import strategies as st
from support import DROP, INTERRUPT, LINES, Acts, Replies, Session, open_session, settings, sharded, wait_quiet
from support.crashes import left
from support.examples import some
from support.house import ROOT
from support.models import ASKING_TOOLS, TOOLS, RandomModel, Step, asking_steps, steps
from support.replays import check_replays, is_replayable, replayed
from support.trees import FIRST, SECOND, TREE_TOOLS, Tree, TreeModel, tree_settings
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.config.load import Settings, load_settings
from chain.errors import SessionError
from chain.messages import Text, ToolCall
from chain.model import Delta, Reply, Request
from chain.replaying import replay
from chain.tools.tool import ToolContext, tool

# ------------------------------------------------------------------------------------- a handler prompt under test

RECORDED = ROOT / "tests" / "recorded"
"""A session, and the configuration that it was recorded with."""


def kept(handler: str, folder: Path) -> Settings:
    """The configuration of the session that is kept, with another handler prompt."""
    for path in RECORDED.glob("*.yaml"):
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "handler.yaml").write_text(handler)
    return load_settings(config=folder / "config.yaml", environ={}, cwd=folder)


CHANGES: dict[str, tuple[tuple[str, str], list[str]]] = {
    "what a line becomes": (
        ("THE USER SAYS", "THE USER WRITES"),
        ["main, iteration 2", "-THE USER SAYS: how far are you?", "+THE USER WRITES: how far are you?"],
    ),
    "the instructions for the answer": (
        ("one sentence", "two sentences"),
        ["main, iteration 3", "-  Answer in one sentence", "+  Answer in two sentences"],
    ),
    "what a line is by a rule": (("enough", "how far"), ["-kind: question", "+kind: stop"]),
    "whether the task goes on": (("rules:", "resume: false\nrules:"), ["main, iteration 4", "-Your reply was shown"]),
    "who carries out plan commands": (("rules:", "commands: {todo: model}\nrules:"), ["(Done: task 2 added"]),
    "the settings of the call": (("rules:", "config: {max_tokens: 9}\nrules:"), ["+overrides", "9"]),
}
"""A change of the handler prompt, and some of what is then told."""


def test_the_session_that_is_kept_is_as_it_was(tmp_path: Path) -> None:
    handler = (RECORDED / "handler.yaml").read_text()
    found = replay(kept(handler, tmp_path), (RECORDED / "session.jsonl").read_bytes().splitlines(keepends=True))
    assert found.outcome == "same", "\n".join(found.rows)


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_handler_prompt_is_told_by_the_first_difference(change: str, tmp_path: Path) -> None:
    (old, new), told = CHANGES[change]
    handler = (RECORDED / "handler.yaml").read_text()
    assert old in handler
    rows = (RECORDED / "session.jsonl").read_bytes().splitlines(keepends=True)
    found = replay(kept(handler.replace(old, new), tmp_path), rows)
    assert found.outcome != "same"
    for words in told:
        assert words in "\n".join(found.rows)


# ------------------------------------------------------------------------------------------------ what else may differ

RULES = """
rules:
  - {when: {user: write}, text: I write., tools: [{name: note, input: {text: x}}]}
  - {text: The answer.}
"""


def noting(notes: list[str], does: str = "Write a note.") -> object:
    """A tool with an effect, which a replay must not have."""

    async def note(ctx: ToolContext, text: str) -> str:
        notes.append(text)
        return f"noted {len(notes)}"

    note.__doc__ = does
    return tool(note)


async def recorded(notes: list[str]) -> Session:
    """A session in which a note was written."""
    async with open_session(RULES, tools=[noting(notes)]) as session:  # type: ignore[list-item]
        await session.run("write")
    return session


async def test_no_tool_is_run_and_no_model_is_asked(autojump_clock: MockClock) -> None:
    notes: list[str] = []
    session = await recorded(notes)
    asked = len(session.model.requests)
    assert replayed(session).outcome == "same"
    assert (notes, len(session.model.requests)) == (["x"], asked)


FAULTS = {
    "for good": ("cause: overloaded", "error"),
    "for minutes": ("cause: overloaded, times: 20", "done"),
    "with a wait that is too long": ("cause: overloaded, retry_after: 601", "error"),
    "with replies of no use": ("after: 1", "error"),
    "until the user stopped": ("cause: overloaded, retry_after: 90", "cancelled"),
}
"""How a service failed, and the status of the run."""


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_call_is_made_again_as_often_as_it_was(fault: str, autojump_clock: MockClock) -> None:
    error, status = FAULTS[fault]
    model = f"rules: [{{text: The answer., error: {{message: try later, retryable: true, {error}}}}}]"
    async with open_session(model) as session:
        session.chain.submit("Go")
        if status == "cancelled":
            await trio.sleep(200)
            session.chain.submit("stop")
        await session.chain.wait_idle()
        assert session.result.status == status
    for _ in range(3):  # how long each pause is, is chance
        assert replayed(session).outcome == "same", replayed(session).rows


DIFFERENT = {
    "a tool that is described otherwise": ({"tools": ["Write down."]}, "main, iteration 1", "other tools"),
    "a tool that is gone": ({"tools": []}, "main, iteration 1", "other tools"),
    "fewer iterations": ({"max_iterations": 3}, "main", "+remaining: 3"),
    "a smaller inbox": ({"inbox_size": 1}, "main", "not accepted"),
}
"""What is not as it was recorded, where, and what of it is told."""


@pytest.mark.parametrize("what", DIFFERENT)
async def test_what_is_told_of_a_configuration_that_is_another(what: str, autojump_clock: MockClock) -> None:
    change, where, told = DIFFERENT[what]
    notes: list[str] = []
    async with open_session(RULES, tools=[noting(notes)]) as session:  # type: ignore[list-item]
        session.chain.submit("write")
        session.chain.submit("use the other file")
        session.chain.submit("and quickly")
        await wait_quiet(session)
    options = {name: value for name, value in change.items() if name != "tools"}
    session.use = settings(**options) if options else session.use
    if "tools" in change:
        session.tools = tuple(noting(notes, does) for does in change["tools"])  # type: ignore[misc]
    found = replayed(session)
    assert found.outcome != "same"
    assert where in found.rows[0]
    assert told in " ".join(found.rows)


ANSWERS: dict[str, Sequence[str]] = {
    "allowed": ["y"] * 5,
    "always": ["a"] * 5,
    "refused, with a reason": ["not that one", "n", "n", "no", "2"],
    "nobody": [],
}


@pytest.mark.parametrize("answers", ANSWERS)
async def test_questions_are_answered_as_they_were(answers: str, autojump_clock: MockClock) -> None:
    change = ToolCall("a", "change_file", {"path": "b"})
    ask = ToolCall("d", "ask_user_question", {"question": "Which?", "options": ["left", "right"]})
    model = RandomModel([Step((change, replace(change, id="b"), ToolCall("c", "dig", {}), ask))])
    async with open_session(model, tools=ASKING_TOOLS) as session, trio.open_nursery() as nursery:
        session.chain.listen(Replies(session, [(1, text) for text in ANSWERS[answers]], nursery))
        if ANSWERS[answers]:
            with session.chain.answering():
                await session.run("Do the task")
        else:
            await session.run("Do the task")
        nursery.cancel_scope.cancel()
    check_replays(session)


@pytest.mark.parametrize("journal", [b"", b"no journal\n", b'{"type":"model","seq":1,"time":1,"name":"x"}\n'])
def test_what_is_no_session_is_an_error(journal: bytes) -> None:
    with pytest.raises(SessionError):
        replay(settings(), journal.splitlines(keepends=True))


# ------------------------------------------------------------------------------------------------- in the same moment

WATCHES = Step((ToolCall("w0", "watch", {}), ToolCall("w1", "watch", {})))
SIDE_BY_SIDE = Tree(
    {
        FIRST: [
            Step((ToolCall("c0", "agent", {"task": "one"}), ToolCall("c1", "plan", {"task": "two"}), *WATCHES.blocks)),
            Step((Text("All."),)),
        ],
        "one": [WATCHES, Step((ToolCall("c0", "explore", {"task": "below"}), *WATCHES.blocks)), Step((Text("One."),))],
        "two": [WATCHES, WATCHES, Step((Text("Two."),))],
        "below": [WATCHES, Step((Text("Below."),))],
    }
)
"""Agents that all work at the same time, and end in the same moments."""


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("line", ["!at once", "!!now", "stop"])
async def test_agents_side_by_side_show_no_difference_that_is_none(line: str, autojump_clock: MockClock) -> None:
    async def play(moment: int) -> int:
        async with open_session(TreeModel(SIDE_BY_SIDE), tools=TREE_TOOLS, use=tree_settings()) as session:
            acts = Acts(session, [(moment, line)])
            session.chain.listen(acts)
            session.chain.submit(FIRST)
            await wait_quiet(session)
        check_replays(session, is_sure=False)
        return len(session.events)

    for moment in some(range(0, await play(-1), 2), every=10):
        await play(moment)


RACE = Tree(
    {
        FIRST: [
            Step((ToolCall("c0", "agent", {"task": "one"}), ToolCall("c1", "agent", {"task": "two"}))),
            Step((Text("All."),)),
        ],
        "one": [
            Step((ToolCall("c0", "watch", {"seconds": 5.0}),)),
            Step((ToolCall("c0", "plan_add_task", {"task": "of one"}),)),
            Step((Text("One."),)),
        ],
        "two": [Step((ToolCall("c0", "plan_add_task", {"task": "of two"}),)) for _ in range(3)]
        + [Step((Text("Two."),))],
    }
)
"""Two agents that change the plan, one of them later than the other since its tool took its time."""


async def test_agents_that_change_the_plan_beside_each_other_are_followed(autojump_clock: MockClock) -> None:
    async with open_session(TreeModel(RACE), tools=TREE_TOOLS, use=tree_settings()) as session:
        await session.run(FIRST)
    check_replays(session)


async def test_a_race_between_agents_cannot_be_followed_and_is_no_difference(autojump_clock: MockClock) -> None:
    """As if one agent had asked its model in the very moment before the plan was changed by the other."""
    async with open_session(TreeModel(RACE), tools=TREE_TOOLS, use=tree_settings()) as session:
        await session.run(FIRST)
    records = session.records
    told = next(r for r in reversed(records) if r["type"] == "request" and r["agent"] == "agent-1" and "tail" in r)
    del told["tail"]
    session.file.data = b"".join(json.dumps(r).encode() + b"\n" for r in records)
    found = replayed(session)
    assert found.outcome == "cannot be followed"
    assert "cannot be followed any further" in found.rows[0]
    assert any(row.startswith("+") for row in found.rows)


# ------------------------------------------------------------------------------------------------- after a crash


def work(tool: str, answer: str) -> list[Step]:
    return [Step((Text("I begin."), ToolCall("c0", tool, {}), ToolCall("c1", "slow", {}))), Step((Text(answer),))]


FAMILY = Tree(
    {
        FIRST: [
            Step((ToolCall("c0", "explore", {"task": "look"}), ToolCall("c1", "agent", {"task": "do"}))),
            Step((ToolCall("c0", "plan_add_task", {"task": "check it"}),)),
            Step((Text("All."),)),
        ],
        "look": [Step((ToolCall("c0", "watch", {"seconds": 0.5}),)), Step((Text("Seen."),))],
        "do": work("slow", "It is done."),
        SECOND: work("watch", "Again."),
    }
)


async def test_a_session_is_replayed_across_a_crash_at_any_record(autojump_clock: MockClock) -> None:
    use = tree_settings()
    async with open_session(TreeModel(FAMILY), tools=TREE_TOOLS, use=use) as session, trio.open_nursery() as nursery:
        session.chain.submit(FIRST)
        user = Acts(session, [])
        says = [(0.7, "use the other file"), (0.8, "todo: add x"), (0.9, "then: task again")]
        nursery.start_soon(user.in_time, says)
        await trio.sleep(1)
        await wait_quiet(session)
    rows = session.file.data.splitlines(keepends=True)
    for end in range(1, len(rows), 4):
        file, read = left(b"".join(rows[:end]))
        model = TreeModel(FAMILY, "second")
        async with open_session(model, tools=TREE_TOOLS, use=use, file=file, resume=read) as again:
            again.chain.submit(SECOND)
            await wait_quiet(again)
        check_replays(again)


async def test_what_differs_after_a_crash_is_told(autojump_clock: MockClock) -> None:
    async with open_session("rules: [{text: One.}]", use=settings(handler=HANDLER)) as session:
        await session.run("Do the task")
    file, read = left(session.file.data)
    async with open_session("rules: [{text: Two.}]", use=settings(handler=HANDLER), file=file, resume=read) as again:
        again.chain.submit("Do it again")
        again.chain.submit("use the other file")
        await wait_quiet(again)
    check_replays(again)
    again.use = settings(handler=HANDLER.replace("SAYS", "WRITES"))
    rows = replayed(again).rows
    assert "-THE USER SAYS: use the other file" in rows
    assert "+THE USER WRITES: use the other file" in rows


HANDLER = "messages: [{role: user, content: 'THE USER SAYS: ${message}'}]"

# ------------------------------------------------------------------------------------------------ whatever was recorded

Said: TypeAlias = list[tuple[float, str]]
"""What a user does at moments in seconds."""
Replied: TypeAlias = list[tuple[float, str | None]]
"""What is answered to each question, after so many seconds; ``None`` is never."""


async def played(drawn: Sequence[Step], said: Said, replied: Replied | None) -> Session:
    """A session in which a user acts at moments of their own, not in the step of an event; it is interrupted at last.

    Without ``replied`` nobody can be asked.
    """
    tools, use = [*TOOLS, *ASKING_TOOLS], settings(max_iterations=6)
    steps = RandomModel(list(drawn))
    async with (
        open_session(steps, tools=tools, use=use, interactive=replied is not None) as session,
        trio.open_nursery() as nursery,
    ):
        if replied is not None:
            session.chain.answering()
            session.chain.listen(Replies(session, list(replied), nursery))
        session.chain.submit("Do the task")
        nursery.start_soon(Acts(session, [], also_idle=True).in_time, said)
        await trio.sleep(30)
        session.chain.interrupt()
        await wait_quiet(session)
        nursery.cancel_scope.cancel()
    return session


DANGER, BAD, LATE = (
    ToolCall("a", "danger", {}),
    ToolCall("e", "change_file", {"path": "bad"}),
    ToolCall("m", "change_file", {"path": "late"}),
)
DIG, DIG_ONCE, LOOK = ToolCall("f", "dig", {}), ToolCall("g", "dig", {"hosts": 1}), ToolCall("i", "look", {})
ASK = ToolCall("h", "ask_user_question", {"question": "Which?", "options": ["left", "right"]})
NOW, LATER = "!!use this file now ‹›", "use the other file ‹›"
FAILED = "it would fail"

MOMENTS: dict[str, tuple[list[tuple[ToolCall | Text, ...]], Said, Replied | None, str]] = {
    "a stop, when one call had failed and the next was looked at": (
        [(DANGER, BAD, LATE)],
        [(0.2, "stop")],
        None,
        FAILED,
    ),
    "an urgent line then": ([(DANGER, BAD, LATE)], [(0.2, "!use the other file at once ‹›")], None, FAILED),
    "a line between a refusal and its result": ([(DANGER, LATE)], [(0.0, LATER)], None, "needs approval"),
    "a now line in the look at a call": ([(DIG_ONCE, LOOK, LATE)], [(0.7, NOW)], None, '"what":"tools"'),
    "a now line after a refusal": ([(DANGER, LATE)], [(0.7, NOW)], [(0.5, "not now")], "refused this: not now"),
    "a stop in the second look": ([(LATE,)], [(1.3, "stop")], [(0.5, "y")], '"status":"cancelled"'),
    "a now line in the second look": ([(LATE,)], [(1.3, NOW)], [(0.5, "y")], '"what":"tools"'),
    "an answer for one host, and for always for another": (
        [(DIG,), (DIG_ONCE,), (DIG,)],
        [],
        [(0.0, "y"), (0.0, "a"), (0.0, "a")],
        '"by":"config"',
    ),
    "three questions at once": ([(DIG, DIG_ONCE, ASK)], [], [(0.2, "n"), (0.5, "y"), (0.2, "n")], "choice"),
    "a reply that is cut, and a stop": (
        [(Text("Some text."),)],
        [(1.5, NOW), (1.5, "stop")],
        None,
        '"what":"answering"',
    ),
}
"""What is called in each reply, what a user does and answers, and a word of the record."""


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_moment_between_two_records_is_found_again(moment: str, autojump_clock: MockClock) -> None:
    replies, said, replied, word = MOMENTS[moment]
    drawn = [Step(blocks, delay_s=float(isinstance(blocks[0], Text))) for blocks in replies]
    session = await played(drawn, said, replied)
    assert word in session.file.data.decode()
    check_replays(session)


@pytest.mark.parametrize("beside", [ToolCall("j", "watch", {}), replace(ASK, id="k")])
@pytest.mark.parametrize("act", [NOW, INTERRUPT])
async def test_a_call_that_is_cut_as_it_starts_is_so_again(
    beside: ToolCall, act: str, autojump_clock: MockClock
) -> None:
    """The question of the call beside it was answered before, by nobody."""
    async with open_session(RandomModel([Step((ASK, beside))]), tools=[*TOOLS, *ASKING_TOOLS]) as session:

        def on_start(event: events.Event) -> None:
            if isinstance(event, events.ToolCall) and event.id.startswith(beside.id):
                Acts(session, []).do(act)

        session.chain.listen(on_start)
        session.chain.submit("Do the task")
        await wait_quiet(session)
    assert session.file.data.decode().count("Nobody can be asked") >= 1
    check_replays(session)


class LateWords(RandomModel):
    """Says its first words when it is cut."""

    async def reply(self, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        try:
            await trio.sleep_forever()
        finally:
            on_delta(Delta("text", "Some text."))
        raise AssertionError


async def test_words_that_come_between_a_stop_and_the_cut_do_so_again(autojump_clock: MockClock) -> None:
    async with open_session(LateWords([]), use=settings()) as session:
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        session.chain.submit("stop")
        await wait_quiet(session)
    assert session.result.status == "cancelled"
    assert '"what":"answering"' in session.file.data.decode()
    check_replays(session)


async def test_a_line_behind_an_interrupt_is_where_it_was_whether_that_or_the_disk_was_first() -> None:
    for before in (3, 4) * 5:  # which of two tasks goes on first is left to chance
        async with open_session("rules: [{text: Done.}]", use=settings()) as session:
            session.chain.submit("Do the task")
            await _let_pass(before)
            session.interrupt()
            await _let_pass(1)
            session.chain.submit("use the other file")
            await wait_quiet(session)
        check_replays(session)


@pytest.mark.parametrize("act", [NOW, INTERRUPT])
async def test_a_call_that_is_cut_in_the_step_in_which_it_is_allowed_is_so_again(
    act: str, autojump_clock: MockClock
) -> None:
    rules = "rules: [{when: {step: 1}, tools: [{name: danger, input: {}}]}, {text: Done.}]"
    for before in (6, 7, 8, 9) * 5:
        async with open_session(rules, tools=ASKING_TOOLS, use=settings(allow="danger")) as session:
            session.chain.submit("Do the task")
            await _let_pass(before)
            Acts(session, []).do(act)
            await _let_pass(1)
            session.chain.submit("use the other file")
            await wait_quiet(session)
        check_replays(session)


async def _let_pass(steps: int) -> None:
    for _ in range(steps):
        await trio.lowlevel.checkpoint()


seconds = st.sampled_from([0.0, 0.1, 0.3, 0.7, 1.1, 1.3, 1.9, 2.3, 3.1])
all_steps = st.one_of(
    st.lists(asking_steps, min_size=1, max_size=5), st.lists(st.one_of(steps, asking_steps), max_size=6)
)
answers = st.sampled_from(["y", "n", "a", "rather not", "1", None])
replies = st.lists(st.tuples(st.sampled_from([0.0, 0.2, 0.5, 1.0, 2.0]), answers), max_size=8)
said = st.lists(st.tuples(seconds, st.sampled_from([*LINES, INTERRUPT, DROP])), max_size=6)


@sharded(600, all_steps, said, st.none() | replies)
def test_whatever_was_asked_and_answered_is_so_again(drawn: list[Step], said: Said, replied: Replied | None) -> None:
    async def main() -> None:
        session = await played(drawn, said, replied)
        if is_replayable(session):
            check_replays(session, is_sure=False)

    random.seed(0)  # the jitter of the retries
    trio.run(main, clock=MockClock(autojump_threshold=0))


@sharded(200, st.lists(steps, max_size=6), st.lists(st.tuples(seconds, st.sampled_from(LINES)), max_size=6))
def test_whatever_was_said_and_done_is_so_again(drawn: list[Step], said: Said) -> None:
    async def main() -> None:
        use = settings(max_iterations=6)
        async with open_session(RandomModel(drawn), tools=TOOLS, use=use) as session, trio.open_nursery() as nursery:
            session.chain.submit("Do the task")
            nursery.start_soon(Acts(session, [], also_idle=True).in_time, said)
            await wait_quiet(session)
            await trio.sleep(10)
            await wait_quiet(session)
        check_replays(session, is_sure=False)

    random.seed(0)  # the jitter of the retries
    trio.run(main, clock=MockClock(autojump_threshold=0))
