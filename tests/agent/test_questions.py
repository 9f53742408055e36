"""Questions: who is asked, what answers, and what becomes of the call."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext

import pytest
import trio
from support import SKIPPED, FullDisk, MemoryFile, Session, check_invariants, checked_session, open_session, settings
from support.gates import Gates, results
from support.models import ASKING_TOOLS
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.errors import ToolError
from chain.plan import Plan
from chain.text.escalations import Escalation
from chain.tools.ask import ask_user_question
from chain.tools.tool import Preview, Tool, ToolContext, tool

CHANGE = "{name: change_file, input: {path: a}}"
OTHER = "{name: change_file, input: {path: b}}"
OWN = "{name: change_file, input: {path: own}}"
LATE = "{name: change_file, input: {path: late}}"
DANGER = "{name: danger, input: {}}"
LOOK = "{name: look, input: {at: x}}"
DIG = "{name: dig, input: {hosts: 2}}"
CHOICE = "{name: ask_user_question, input: {question: Which?, options: [left, right]}}"
COMMAND = "{name: command, input: {command: run}}"
REPLACE = "{name: replace, input: {}}"
NOBODY_ALLOWS = "danger needs approval, and no one is available to approve it; allow it with --allow danger."
NO_USER_CHOOSES = "Nobody can be asked; decide, and say what you assumed."


async def _in_a_sandbox(ctx: ToolContext, command: str) -> Preview:
    offered: tuple[Escalation, ...] = ("outside",) if command == "no network" else ("network", "outside")
    return Preview(f"$ {command}", command, command, "subject", escalations=offered)


@tool(needs_approval=True, preview=_in_a_sandbox, kind="execute")
async def command(ctx: ToolContext, command: str) -> str:
    """Return what was allowed."""
    assert ctx.verdict is not None
    return f"{command}: {ctx.verdict.escalation}, {'once' if ctx.verdict.is_once else 'always'}"


def asking(*calls: str) -> str:
    """A model whose first reply makes these calls."""
    first = f"{{when: {{step: 1}}, tools: [{', '.join(calls)}]}}"
    return f"rules: [{{when: {{interruption: .}}, text: Noted.}}, {first}, {{text: The answer.}}]"


@asynccontextmanager
async def asked(
    *calls: str,
    tools: Sequence[Tool] = (),
    allow: str = "",
    file: MemoryFile | None = None,
    timeout_s: float = 1800,
    is_answered: bool = True,
) -> AsyncIterator[Session]:
    """Run a model that makes these calls, with a user who can answer, until everything waits."""
    use = settings(allow=allow, timeout_s=timeout_s)
    every = [*tools, command, *ASKING_TOOLS, *Gates(is_open=True).tools]
    async with open_session(asking(*calls), tools=every, use=use, file=file) as session:
        with session.chain.answering() if is_answered else nullcontext():
            session.chain.submit("Do the task")
            await wait_all_tasks_blocked()
            yield session
            await session.chain.wait_idle()
    if not isinstance(file, FullDisk):
        check_invariants(session)


def decisions(session: Session) -> list[tuple[str, str, str]]:
    """Return the id, the decision and the author of each answer."""
    return [(e.id, e.decision, e.by) for e in session.of(events.Answer)]


async def answer(session: Session, *texts: str) -> None:
    """Answer the open questions, one after the other."""
    for text in texts:
        id = session.chain.questions.open_id
        assert id is not None
        assert session.chain.answer(id, text).what == "answered"
        await wait_all_tasks_blocked()


def started(session: Session) -> list[str]:
    return [r["name"] for r in session.records if r["type"] == "tool_started"]


# -------------------------------------------------------------------------------------------------------- approvals

DECISIONS = [
    ("y", "allowed", "a is changed"),
    ("YES ", "allowed", "a is changed"),
    ("n", "refused", "The user refused this."),
    ("not before noon", "refused", "The user refused this: not before noon"),
    ("todo: add x", "refused", "The user refused this: todo: add x"),
]


@pytest.mark.parametrize(("text", "decision", "result"), DECISIONS)
async def test_an_approval_is_answered(text: str, decision: str, result: str, autojump_clock: MockClock) -> None:
    async with asked(CHANGE) as session:
        [question] = session.of(events.Question)
        assert (question.id, question.kind, question.text) == ("Q1", "approval", "Allow change_file: a")
        assert (question.preview, question.name, question.options) == ("change a", "change_file", ())
        assert not session.of(events.ToolCall)
        await answer(session, text)
        await session.chain.wait_idle()
        assert decisions(session) == [("Q1", decision, "user")]
        assert results(session) == [result]
        assert started(session) == (["change_file"] if decision == "allowed" else [])
        assert len(session.of(events.ToolCall)) == len(started(session))


ALWAYS = {
    "the tool": ([CHANGE, OTHER, DANGER], "", "an", ["allowed/user/always", "allowed/config/always", "refused/user"]),
    "the subject": ([OTHER, OTHER, CHANGE], "", "ay", ["allowed/user/always", "allowed/config/always", "allowed/user"]),
    "not what is asked each time": (
        [OWN, OWN, CHANGE],
        "change_file",
        "ay",
        ["allowed/user", "allowed/user", "allowed/config"],
    ),
    "nothing beside what is asked each time": ([OWN, CHANGE], "", "an", ["allowed/user", "refused/user"]),
    "by configuration": ([CHANGE, DANGER], "change_file(a*)", "y", ["allowed/config", "allowed/user"]),
}


@pytest.mark.parametrize(("calls", "allow", "texts", "expected"), ALWAYS.values(), ids=ALWAYS)
async def test_what_always_allows(
    calls: list[str], allow: str, texts: str, expected: list[str], autojump_clock: MockClock
) -> None:
    async with asked(*calls, allow=allow) as session:
        await answer(session, *texts)
        await session.chain.wait_idle()
        answers = session.of(events.Answer)
        assert [f"{e.decision}/{e.by}{'/always' * e.is_for_always}" for e in answers] == expected
        each_time = [q for q in session.of(events.Question) if q.text.endswith("(asked each time)")]
        assert len(each_time) == calls.count(OWN)


@pytest.mark.parametrize(
    ("text", "escalation", "result"),
    [
        ("y", None, "run: None, once"),
        ("w", "network", "run: network, once"),
        ("With network", "network", "run: network, once"),
        ("o", "outside", "run: outside, once"),
        ("a", None, "run: None, always"),
        ("outside", None, "The user refused this: outside"),
    ],
)
async def test_an_answer_may_escalate_one_call(text: str, escalation: Escalation | None, result: str) -> None:
    async with asked(COMMAND) as session:
        assert session.of(events.Question)[0].escalations == ("network", "outside")
        await answer(session, text)
        await session.chain.wait_idle()
        assert results(session) == [result]
        assert [event.escalation for event in session.of(events.Answer)] == [escalation]
        [record] = [r for r in session.records if r["type"] == "answer"]
        assert record.get("escalation") == escalation


@pytest.mark.parametrize(
    ("call", "text", "mode"),
    [
        ("{name: command, input: {command: no network}}", "w", "ask"),
        (CHANGE, "w", "ask"),
        (CHANGE, "o", "ask"),
        (COMMAND, "o", "read only"),
    ],
)
async def test_an_escalation_must_be_offered(call: str, text: str, mode: str) -> None:
    async with asked(call) as session:
        session.chain.use_mode(mode)
        refused = session.chain.answer("Q1", text)
        assert refused.what == "refused"
        assert mode != "ask" or refused.message == f"{text} does not apply to Q1: no sandbox restricts that here"
        assert session.chain.questions.open_id == "Q1"
        await answer(session, "n")


# --------------------------------------------------------------------------------------------------------- previews


@pytest.mark.parametrize(("path", "result"), [("none", "none is changed"), ("bad", "it would fail")])
async def test_a_preview_may_make_a_question_unnecessary(path: str, result: str) -> None:
    async with asked(f"{{name: change_file, input: {{path: {path}}}}}") as session:
        await session.chain.wait_idle()
        assert not session.of(events.Question)
        assert results(session) == [result]


async def test_without_a_preview_the_input_is_shown(autojump_clock: MockClock) -> None:
    async with asked("{name: danger, input: {seconds: 2}}") as session:
        [question] = session.of(events.Question)
        assert (question.text, question.preview) == ("Allow danger?", '{\n  "seconds": 2\n}')
        await answer(session, "n")


class Replaced:
    """A tool ``replace`` whose preview shows ``content`` and counts how often it was asked for."""

    def __init__(self) -> None:
        self.content, self.previews = "one", 0

    @property
    def tool(self) -> Tool:
        async def shown(ctx: ToolContext) -> Preview:
            self.previews += 1
            return Preview(self.content, "f", self.content)

        @tool(needs_approval=True, preview=shown)
        async def replace(ctx: ToolContext) -> str:
            """Replace it."""
            return "done"

        return replace


async def test_calls_changed_since_approval_are_not_run() -> None:
    replaced = Replaced()
    async with asked(REPLACE, tools=[replaced.tool]) as session:
        replaced.content = "two"
        await answer(session, "y")
        await session.chain.wait_idle()
        assert results(session) == ["replace was not run: what it would do has changed since the user was asked."]
        assert started(session) == []


@pytest.mark.parametrize(("allow", "previews"), [("replace", 1), ("", 2)])
async def test_only_a_users_approval_is_checked_again(allow: str, previews: int) -> None:
    replaced = Replaced()
    async with asked(REPLACE, tools=[replaced.tool], allow=allow) as session:
        await answer(session, *["y"] * (not allow))
        await session.chain.wait_idle()
        assert (replaced.previews, results(session)) == (previews, ["done"])


FAULTS = {
    "an exception": (ValueError("no"), "replace failed: ValueError: no"),
    "an exit": (SystemExit(3), "replace failed: SystemExit"),
    "a Ctrl-C": (KeyboardInterrupt(), "replace failed: KeyboardInterrupt"),
    "no end": (None, "replace was not run: its preview took longer than 60 s."),
}


@pytest.mark.parametrize(("error", "text"), FAULTS.values(), ids=FAULTS)
async def test_a_failing_preview_is_an_error_result(
    error: BaseException | None, text: str, autojump_clock: MockClock
) -> None:
    async def broken(ctx: ToolContext) -> Preview:
        if error is None:
            await trio.sleep_forever()
        raise error or AssertionError

    @tool(needs_approval=True, preview=broken)
    async def replace(ctx: ToolContext) -> str:
        """Replace it."""
        return ""

    async with asked(REPLACE, tools=[replace]) as session:
        await session.chain.wait_idle()
        assert session.result.status == "done"
        assert results(session)[0].startswith(text)


# ---------------------------------------------------------------------------------------------------------- choices

CHOSEN = {
    "1": "left",
    "2": "right",
    "RIGHT": "right",
    "3": "3",
    "0": "0",
    "neither": "neither",
    "/left": "/left",
    "y": "y",
    "\ud800": "?",
}


@pytest.mark.parametrize(("text", "chosen"), CHOSEN.items())
async def test_what_answers_a_choice(text: str, chosen: str) -> None:
    async with asked(CHOICE) as session:
        [question] = session.of(events.Question)
        assert (question.kind, question.text, question.options) == ("choice", "Which?", ("left", "right"))
        await answer(session, text)
        await session.chain.wait_idle()
        assert results(session) == [f"The user answered: {chosen}"]
        [event] = session.of(events.Answer)
        assert (event.text, event.decision) == (chosen, "answered")


WRONG = [
    ("", ["a"], "The question is empty."),
    ("Q?", [], "Give 1 to 5 options"),
    ("Q?", list("abcdef"), "Give 1 to 5 options"),
    ("Q?", ["a", " "], "none of them empty"),
    ("Q?", ["a", "A"], "Two of the options are the same."),
    ("Q?" * 4000, ["a"], "are longer than 4,000 characters"),
]


@pytest.mark.parametrize(("question", "options", "why"), WRONG)
async def test_a_malformed_question_is_not_asked(question: str, options: list[str], why: str) -> None:
    context = ToolContext(settings().file.parent, Plan(), "t1", None, print)  # type: ignore[union-attr,arg-type]
    with pytest.raises(ToolError, match=why):
        await ask_user_question.run(context, {"question": question, "options": options})


# --------------------------------------------------------------------------------------------------- who can answer


async def test_without_a_user_questions_are_decided_at_once() -> None:
    async with asked(DANGER, CHOICE, is_answered=False) as session:
        await session.chain.wait_idle()
        assert results(session) == [NOBODY_ALLOWS, NO_USER_CHOOSES]
        assert decisions(session) == [("Q1", "refused", "nobody"), ("Q2", "refused", "nobody")]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("make", "allow it with --allow 'command(make)'"),
        ("make it's", "no pattern can name it, and plain command would allow every call"),
    ],
)
async def test_the_suggested_allowance_names_the_call(text: str, hint: str) -> None:
    async with asked(f"{{name: command, input: {{command: {text}}}}}", is_answered=False) as session:
        await session.chain.wait_idle()
        assert results(session) == [f"command needs approval, and no one is available to approve it; {hint}."]


async def test_questions_are_decided_when_the_last_user_leaves(autojump_clock: MockClock) -> None:
    async with checked_session(asking(CHOICE, CHOICE, DANGER), tools=ASKING_TOOLS) as session:
        one, other = session.chain.answering(), session.chain.answering()
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        one.close()
        one.close()
        await wait_all_tasks_blocked()
        assert session.chain.questions.open_id == "Q1"
        other.close()
        await session.chain.wait_idle()
        assert results(session) == [NO_USER_CHOOSES, NO_USER_CHOOSES, NOBODY_ALLOWS]


async def test_questions_queue_and_the_first_answer_counts(autojump_clock: MockClock) -> None:
    async with asked(CHOICE, CHOICE) as session:
        chain = session.chain
        assert [e.id for e in session.of(events.Question)] == ["Q1"]
        assert chain.answer("Q2", "left").message == "there is no question Q2"
        assert chain.answer("Q1", " ").message == "Q1 waits for an answer"
        assert chain.answer("Q1", "x" * 100_001).message == "the answer is too long; the limit is 100,000 characters"
        assert chain.answer("Q1", "1").what == "answered"
        late = chain.answer("Q1", "2", origin="json")
        assert (late.what, late.message) == ("refused", "Q1 is no longer open")
        refused = session.of(events.LineRefused)[-1]
        assert (refused.id, refused.text, refused.kind, refused.origin) == ("Q1", "2", "answer", "json")
        await answer(session, "2")
        await chain.wait_idle()
        assert results(session) == ["The user answered: left", "The user answered: right"]
        assert [r.state for r in chain.lines.receipts] == ["delivered"], "an answer is no line"
        assert chain.runs.exit_code() == 0


async def test_a_call_that_asks_runs_alone(autojump_clock: MockClock) -> None:
    async with asked(LOOK, "{name: peek, input: {}}", LOOK) as session:
        await trio.sleep(5)
        assert started(session) == ["look"]
        await answer(session, "y")
        await session.chain.wait_idle()
        assert started(session) == ["look", "peek", "look"]


# -------------------------------------------------------------------------------------------------------- deadlines


async def test_an_open_question_pauses_all_deadlines(mock_clock: MockClock) -> None:
    async with asked("{name: dig, input: {hosts: 1}}", DANGER, timeout_s=4) as session:
        for _ in range(2):
            mock_clock.jump(1e5)
            await wait_all_tasks_blocked()
            await answer(session, "y")
            mock_clock.jump(0.6)
            await wait_all_tasks_blocked()
        await session.chain.wait_idle()
        assert session.result.status == "done"
        assert results(session) == ["hosts: ['allowed']", "it is done"]


async def test_deadlines_resume_after_the_answer(mock_clock: MockClock) -> None:
    calls = [DANGER, "{name: slow, input: {}}", "{name: danger, input: {seconds: 100}}"]
    async with asked(*calls, timeout_s=30) as session:
        for seconds in (1e5, 29):
            mock_clock.jump(seconds)
            await wait_all_tasks_blocked()
            await answer(session, "y")
        assert session.chain.is_running
        mock_clock.jump(2)
        await session.chain.wait_idle()
        assert session.result.status == "limit_reached"


# ------------------------------------------------------------------------------------------------------- withdrawals

WITHDRAWS = {"stop": "cancelled", "!use B": "done", "!!use B": "done", "Esc": "interrupted"}


def act(session: Session, line: str) -> None:
    """Submit a line, or interrupt."""
    session.interrupt() if line == "Esc" else session.chain.submit(line)


@pytest.mark.parametrize("line", WITHDRAWS)
async def test_stops_urgent_lines_and_esc_withdraw_questions(line: str, autojump_clock: MockClock) -> None:
    async with asked(DANGER, CHANGE) as session:
        act(session, line)
        assert session.chain.questions.open_id is None
        assert session.chain.answer("Q1", "y").message == "Q1 is no longer open"
        await session.chain.wait_idle()
        assert session.result.status == WITHDRAWS[line]
        assert decisions(session) == [("Q1", "withdrawn", "user")]
        assert started(session) == []
        assert [e.text for e in session.of(events.ToolResult)] == [SKIPPED, SKIPPED]


@pytest.mark.parametrize("line", ["use the other one", "todo: add x", "focus on x"])
async def test_other_lines_leave_questions_open(line: str, autojump_clock: MockClock) -> None:
    async with asked(DANGER) as session:
        assert session.chain.submit(line).what == "queued"
        await wait_all_tasks_blocked()
        assert session.chain.questions.open_id == "Q1"
        await answer(session, "y")
        await session.chain.wait_idle()
        assert started(session) == ["danger"]


async def test_the_model_is_informed_of_a_withdrawn_choice() -> None:
    async with asked(CHOICE) as session:
        session.chain.submit("!go left")
        await session.chain.wait_idle()
        [result] = session.of(events.ToolResult)
        assert (result.is_error, result.text.startswith("The question was withdrawn")) == (True, True)


@pytest.mark.parametrize("line", ["Esc", "stop", "!no"])
async def test_an_allowed_call_may_still_be_prevented(line: str) -> None:
    file = MemoryFile()
    async with asked(CHANGE, file=file) as session:
        file.hold()
        assert session.chain.answer("Q1", "y").what == "answered"
        await wait_all_tasks_blocked()
        assert (started(session), decisions(session)) == ([], []), "its answer is not on disk yet"
        act(session, line)
        file.release()
        await session.chain.wait_idle()
        assert (started(session), decisions(session)) == ([], [("Q1", "allowed", "user")])


@pytest.mark.parametrize("line", ["stop", "!no"])
@pytest.mark.parametrize("call", [LATE, DIG], ids=["while a preview is made", "while the asking tool works"])
async def test_stops_and_urgent_lines_prevent_questions(line: str, call: str, mock_clock: MockClock) -> None:
    async with asked(call, DANGER) as session:
        if call == DIG:  # it asks about the first host at once, about the second after a while
            await answer(session, "y")
            mock_clock.jump(0.6)
            await wait_all_tasks_blocked()
        session.chain.submit(line)
        mock_clock.autojump_threshold = 0
        await session.chain.wait_idle()
        assert len(session.of(events.Question)) == (call == DIG)
        assert [e.name for e in session.of(events.ToolCall)] == ["dig"] * (call == DIG)


async def test_cancelling_the_host_withdraws_questions() -> None:
    with trio.CancelScope() as scope:
        async with asked(CHOICE) as session:
            assert session.chain.questions.open_id == "Q1"
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert [(r["decision"], r["by"]) for r in session.records if r["type"] == "answer"] == [("withdrawn", "user")]


# --------------------------------------------------------------------------------------------------- on a full disk


async def test_an_unrecorded_answer_leaves_the_question_open() -> None:
    file = FullDisk()
    async with asked(CHANGE, file=file) as session:
        file.full = True
        refused = session.chain.answer("Q1", "y")
        assert (refused.what, "No space left" in refused.message) == ("refused", True)
        assert session.chain.questions.open_id == "Q1"
        file.full = False
        await answer(session, "y")
        await session.chain.wait_idle()
    assert results(session) == ["a is changed"]
    check_invariants(session)


async def test_a_failed_sync_ends_the_asking_run() -> None:
    file = FullDisk()
    async with asked(CHOICE, file=file) as session:
        file.broken = True
        session.chain.submit("a line that has to come to the disk")
        await session.chain.wait_idle()
        assert session.chain.questions.open_id is None
        assert session.result.status == "error"
        assert decisions(session) == [("Q1", "withdrawn", "user")]


@pytest.mark.parametrize("what", ["stop", "Esc", "the last user leaves"])
async def test_a_full_disk_blocks_no_ending(what: str) -> None:
    file = FullDisk()
    async with open_session(asking(CHOICE, CHOICE), tools=ASKING_TOOLS, file=file) as session:
        answerer = session.chain.answering()
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        file.full = True
        answerer.close() if what == "the last user leaves" else act(session, what)
        await session.chain.wait_idle()
        assert session.chain.questions.open_id is None
        assert session.result.status in ("error", "cancelled", "interrupted")
        file.room = math.inf
        answerer.close()
        assert (await session.run("Again")).status == "done"
