"""A recorded session that is run again: as it was, and what is told where it is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from support import Acts, Replies, Session, open_session, settings, wait_quiet
from support.crashes import left
from support.house import ROOT
from support.models import ASKING_TOOLS, RandomModel, Step
from support.replays import check_replays, replayed
from support.trees import FIRST, SECOND, TREE_TOOLS, Tree, TreeModel, tree_settings
from trio.testing import MockClock

from chain.config.load import Settings, load_settings
from chain.errors import SessionError
from chain.messages import Text, ToolCall
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


@pytest.mark.slow
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
