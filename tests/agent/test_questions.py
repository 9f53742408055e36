"""Questions of tool calls to the user: when they are asked, which answers they take, and what withdraws them."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext

import pytest
import trio
from support.checks import check_invariants, checked_session
from support.contexts import tool_context
from support.disks import FullDisk, MemoryFile
from support.gates import Gates, advance, sent_results
from support.models import ASKING_TOOLS
from support.sessions import SKIPPED, Session, make_settings, open_session
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.errors import ToolError
from chain.text.escalations import Escalation
from chain.tools.ask import ask_user_question
from chain.tools.tool import Preview, Tool, ToolContext, tool

CHANGE = "{name: change_file, input: {path: a}}"
# For these paths, the preview of ``change_file`` (support/models.py) differs:
BY_SUBJECT = "{name: change_file, input: {path: b}}"  # "always" allows only calls with the same path
EACH_TIME = "{name: change_file, input: {path: own}}"  # the user is asked each time
SLOW_PREVIEW = "{name: change_file, input: {path: late}}"
DANGER = "{name: danger, input: {}}"
LOOK = "{name: look, input: {at: x}}"
DIG = "{name: dig, input: {hosts: 2}}"
CHOICE = "{name: ask_user_question, input: {question: Which?, options: [left, right]}}"
COMMAND = "{name: command, input: {command: run}}"
REPLACE = "{name: replace, input: {}}"
NO_ONE_APPROVES = "danger needs approval, and no one is available to approve it; allow it with --allow danger."
NO_ONE_CHOOSES = "Nobody can be asked; decide, and say what you assumed."
DAYS = 1e5
"""Seconds beyond all deadlines of these tests."""
TOOL_S = 0.6
"""A little more than the time of a step of ``dig`` and ``danger``."""


async def _command_preview(ctx: ToolContext, command: str) -> Preview:
    escalations: tuple[Escalation, ...] = ("outside",) if command == "no network" else ("network", "outside")
    return Preview(f"$ {command}", command, command, "subject", escalations=escalations)


@tool(needs_approval=True, preview=_command_preview, kind="execute")
async def command(ctx: ToolContext, command: str) -> str:
    """Return what was allowed."""
    assert ctx.verdict is not None
    return f"{command}: {ctx.verdict.escalation}, {'once' if ctx.verdict.is_once else 'always'}"


def model_calling(*calls: str) -> str:
    """Return the rules of a model whose first reply makes these calls."""
    first = f"{{when: {{step: 1}}, tools: [{', '.join(calls)}]}}"
    return f"rules: [{{when: {{interruption: .}}, text: Noted.}}, {first}, {{text: The answer.}}]"


@asynccontextmanager
async def open_questions(
    *calls: str,
    tools: Sequence[Tool] = (),
    allow: str = "",
    file: MemoryFile | None = None,
    timeout_s: float = 1800,
    is_answered: bool = True,
) -> AsyncIterator[Session]:
    """Run a model that makes these calls until all tasks wait, usually for an answer. Finally, wait for the run."""
    settings = make_settings(allow=allow, timeout_s=timeout_s)
    all_tools = [*tools, command, *ASKING_TOOLS, *Gates(is_open=True).tools]
    async with open_session(model_calling(*calls), tools=all_tools, settings=settings, file=file) as session:
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


def started_tools(session: Session) -> list[str]:
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
async def test_an_answer_allows_or_refuses_a_call(
    text: str, decision: str, result: str, autojump_clock: MockClock
) -> None:
    async with open_questions(CHANGE) as session:
        [question] = session.of(events.Question)
        assert (question.id, question.kind, question.text) == ("Q1", "approval", "Allow change_file: a")
        assert (question.preview, question.name, question.options) == ("change a", "change_file", ())
        assert not session.of(events.ToolCall)
        await answer(session, text)
        await session.chain.wait_idle()
        assert decisions(session) == [("Q1", decision, "user")]
        assert sent_results(session) == [result]
        assert started_tools(session) == (["change_file"] if decision == "allowed" else [])
        assert len(session.of(events.ToolCall)) == len(started_tools(session))


ALLOWANCES = {
    # The calls, the configured allowance, the user's answers ("a" is always), and the decision on each call.
    "always allows the same tool": (
        [CHANGE, BY_SUBJECT, DANGER], "", "an", ["allowed/user/always", "allowed/config/always", "refused/user"]
    ),
    "always allows only the same subject": (
        [BY_SUBJECT, BY_SUBJECT, CHANGE], "", "ay", ["allowed/user/always", "allowed/config/always", "allowed/user"]
    ),
    "always does not allow a call that is asked each time": (
        [EACH_TIME, EACH_TIME, CHANGE], "change_file", "ay", ["allowed/user", "allowed/user", "allowed/config"]
    ),
    "always for a call that is asked each time allows no other": (
        [EACH_TIME, CHANGE], "", "an", ["allowed/user", "refused/user"]
    ),
    "the configuration allows": ([CHANGE, DANGER], "change_file(a*)", "y", ["allowed/config", "allowed/user"]),
}  # fmt: skip


@pytest.mark.parametrize(("calls", "allow", "answers", "expected"), ALLOWANCES.values(), ids=ALLOWANCES)
async def test_an_allowance_applies_to_later_calls(
    calls: list[str], allow: str, answers: str, expected: list[str], autojump_clock: MockClock
) -> None:
    async with open_questions(*calls, allow=allow) as session:
        await answer(session, *answers)
        await session.chain.wait_idle()
        given = session.of(events.Answer)
        assert [f"{e.decision}/{e.by}{'/always' * e.is_for_always}" for e in given] == expected
        asked_each_time = [q for q in session.of(events.Question) if q.text.endswith("(asked each time)")]
        assert len(asked_each_time) == calls.count(EACH_TIME)


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
    async with open_questions(COMMAND) as session:
        [question] = session.of(events.Question)
        assert question.escalations == ("network", "outside")
        await answer(session, text)
        await session.chain.wait_idle()
        assert sent_results(session) == [result]
        assert [event.escalation for event in session.of(events.Answer)] == [escalation]
        [record] = [r for r in session.records if r["type"] == "answer"]
        assert record.get("escalation") == escalation


NO_SANDBOX = "does not apply to Q1: no sandbox restricts that here"
READ_ONLY = "the mode is read only, so this cannot be allowed; Shift-Tab or /mode ask changes the mode"
NOT_OFFERED = {
    "another one is offered": ("{name: command, input: {command: no network}}", "w", "ask", f"w {NO_SANDBOX}"),
    "network for a tool without a sandbox": (CHANGE, "w", "ask", f"w {NO_SANDBOX}"),
    "outside for a tool without a sandbox": (CHANGE, "o", "ask", f"o {NO_SANDBOX}"),
    "the mode is read only": (COMMAND, "o", "read only", READ_ONLY),
}


@pytest.mark.parametrize(("call", "text", "mode", "message"), NOT_OFFERED.values(), ids=NOT_OFFERED)
async def test_an_escalation_must_be_offered(call: str, text: str, mode: str, message: str) -> None:
    async with open_questions(call) as session:
        session.chain.use_mode(mode)
        refused = session.chain.answer("Q1", text)
        assert (refused.what, refused.message) == ("refused", message)
        assert session.chain.questions.open_id == "Q1"
        await answer(session, "n")


# --------------------------------------------------------------------------------------------------------- previews


UNASKED = {"no preview": ("none", "none is changed"), "the preview raises a tool error": ("bad", "it would fail")}


@pytest.mark.parametrize(("path", "result"), UNASKED.values(), ids=UNASKED)
async def test_a_preview_may_make_a_question_unnecessary(path: str, result: str) -> None:
    async with open_questions(f"{{name: change_file, input: {{path: {path}}}}}") as session:
        await session.chain.wait_idle()
        assert not session.of(events.Question)
        assert sent_results(session) == [result]


async def test_without_a_preview_the_input_is_shown(autojump_clock: MockClock) -> None:
    async with open_questions("{name: danger, input: {seconds: 2}}") as session:
        [question] = session.of(events.Question)
        assert (question.text, question.preview) == ("Allow danger?", '{\n  "seconds": 2\n}')
        await answer(session, "n")


class Replace:
    """A tool ``replace`` that counts its previews. A preview shows ``content``, hangs, or raises ``error``."""

    def __init__(self, *, error: BaseException | None = None, hangs: bool = False) -> None:
        self.content, self.previews, self.error, self.hangs = "one", 0, error, hangs

    async def preview(self, ctx: ToolContext) -> Preview:
        self.previews += 1
        if self.hangs:
            await trio.sleep_forever()
        if self.error is not None:
            raise self.error
        return Preview(self.content, "f", self.content)

    @property
    def tool(self) -> Tool:
        @tool(needs_approval=True, preview=self.preview)
        async def replace(ctx: ToolContext) -> str:
            """Replace the content."""
            return "done"

        return replace


async def test_calls_changed_since_approval_are_not_run() -> None:
    replace = Replace()
    async with open_questions(REPLACE, tools=[replace.tool]) as session:
        replace.content = "two"
        await answer(session, "y")
        await session.chain.wait_idle()
        assert sent_results(session) == ["replace was not run: what it would do has changed since the user was asked."]
        assert started_tools(session) == []


@pytest.mark.parametrize(
    ("allow", "answers", "previews"), [("replace", [], 1), ("", ["y"], 2)], ids=["configuration", "user"]
)
async def test_only_a_users_approval_is_checked_again(allow: str, answers: list[str], previews: int) -> None:
    replace = Replace()
    async with open_questions(REPLACE, tools=[replace.tool], allow=allow) as session:
        await answer(session, *answers)
        await session.chain.wait_idle()
        assert (replace.previews, sent_results(session)) == (previews, ["done"])


PREVIEW_ERRORS = {
    "an exit": (Replace(error=SystemExit(3)), "replace failed: SystemExit"),
    "a timeout": (Replace(hangs=True), "replace was not run: its preview took longer than 60 s."),
}


@pytest.mark.parametrize(("replace", "message"), PREVIEW_ERRORS.values(), ids=PREVIEW_ERRORS)
async def test_a_failing_preview_is_an_error_result(replace: Replace, message: str, autojump_clock: MockClock) -> None:
    async with open_questions(REPLACE, tools=[replace.tool]) as session:
        await session.chain.wait_idle()
        assert session.result.status == "done"
        [result] = sent_results(session)
        assert result.startswith(message)


# ---------------------------------------------------------------------------------------------------------- choices

CHOICES = {
    "an option's number": ("2", "right"),
    "an option in other case": ("RIGHT", "right"),
    "a number above the last option": ("3", "3"),
    "zero": ("0", "0"),
    "another text": ("neither", "neither"),
    "a text like a command": ("/left", "/left"),
    "a lone surrogate": ("\ud800", "?"),
}


@pytest.mark.parametrize(("text", "chosen"), CHOICES.values(), ids=CHOICES)
async def test_a_choice_takes_an_option_or_any_text(text: str, chosen: str) -> None:
    async with open_questions(CHOICE) as session:
        [question] = session.of(events.Question)
        assert (question.kind, question.text, question.options) == ("choice", "Which?", ("left", "right"))
        await answer(session, text)
        await session.chain.wait_idle()
        assert sent_results(session) == [f"The user answered: {chosen}"]
        [event] = session.of(events.Answer)
        assert (event.text, event.decision) == (chosen, "answered")


MALFORMED_QUESTIONS = {
    "an empty question": ("", ["a"], "The question is empty."),
    "no options": ("Q?", [], "Give 1 to 5 options"),
    "six options": ("Q?", list("abcdef"), "Give 1 to 5 options"),
    "a blank option": ("Q?", ["a", " "], "none of them empty"),
    "equal options": ("Q?", ["a", "A"], "Two of the options are the same."),
    "a long question": ("Q?" * 4000, ["a"], "are longer than 4,000 characters"),
}


@pytest.mark.parametrize(("question", "options", "message"), MALFORMED_QUESTIONS.values(), ids=MALFORMED_QUESTIONS)
async def test_a_malformed_question_is_not_asked(question: str, options: list[str], message: str) -> None:
    with pytest.raises(ToolError, match=message):
        await ask_user_question.run(tool_context(), {"question": question, "options": options})


# --------------------------------------------------------------------------------------------------- who can answer


async def test_without_a_user_questions_are_decided_at_once() -> None:
    async with open_questions(DANGER, CHOICE, is_answered=False) as session:
        await session.chain.wait_idle()
        assert sent_results(session) == [NO_ONE_APPROVES, NO_ONE_CHOOSES]
        assert decisions(session) == [("Q1", "refused", "nobody"), ("Q2", "refused", "nobody")]


HINTS = {
    "plain": ("make", "allow it with --allow 'command(make)'"),
    "a quotation mark": ("make it's", "no pattern can name this call, and plain command would allow every call"),
}


@pytest.mark.parametrize(("line", "hint"), HINTS.values(), ids=HINTS)
async def test_the_suggested_allowance_names_the_call(line: str, hint: str) -> None:
    async with open_questions(f"{{name: command, input: {{command: {line}}}}}", is_answered=False) as session:
        await session.chain.wait_idle()
        assert sent_results(session) == [f"command needs approval, and no one is available to approve it; {hint}."]


async def test_questions_are_decided_when_the_last_user_leaves(autojump_clock: MockClock) -> None:
    async with checked_session(model_calling(CHOICE, CHOICE, DANGER), tools=ASKING_TOOLS) as session:
        first_user, second_user = session.chain.answering(), session.chain.answering()
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        first_user.close()
        first_user.close()  # has no effect
        await wait_all_tasks_blocked()
        assert session.chain.questions.open_id == "Q1"
        second_user.close()
        await session.chain.wait_idle()
        assert sent_results(session) == [NO_ONE_CHOOSES, NO_ONE_CHOOSES, NO_ONE_APPROVES]


async def test_questions_are_asked_one_at_a_time(autojump_clock: MockClock) -> None:
    async with open_questions(CHOICE, CHOICE) as session:
        assert [e.id for e in session.of(events.Question)] == ["Q1"]
        assert session.chain.answer("Q2", "left").message == "there is no question Q2"
        await answer(session, "1", "2")
        await session.chain.wait_idle()
        assert sent_results(session) == ["The user answered: left", "The user answered: right"]


async def test_a_late_blank_or_long_answer_is_refused() -> None:
    async with open_questions(CHOICE) as session:
        chain = session.chain
        assert chain.answer("Q1", " ").message == "Q1 waits for an answer"
        assert chain.answer("Q1", "x" * 100_001).message == "the answer is too long; the limit is 100,000 characters"
        assert chain.answer("Q1", "1").what == "answered"
        late = chain.answer("Q1", "2", origin="json")
        assert (late.what, late.message) == ("refused", "Q1 is no longer open")
        *_, refusal = session.of(events.LineRefused)
        assert (refusal.id, refusal.text, refusal.kind, refusal.origin) == ("Q1", "2", "answer", "json")
        await chain.wait_idle()
        assert [r.state for r in chain.lines.receipts] == ["delivered"], "only the query has a receipt"
        assert chain.runs.exit_code() == 0


async def test_a_call_that_asks_runs_alone(autojump_clock: MockClock) -> None:
    async with open_questions(LOOK, "{name: peek, input: {}}", LOOK) as session:
        await trio.sleep(5)
        assert started_tools(session) == ["look"]
        await answer(session, "y")
        await session.chain.wait_idle()
        assert started_tools(session) == ["look", "peek", "look"]


# -------------------------------------------------------------------------------------------------------- deadlines


async def test_an_open_question_pauses_all_deadlines(mock_clock: MockClock) -> None:
    async with open_questions("{name: dig, input: {hosts: 1}}", DANGER, timeout_s=4) as session:
        for _ in range(2):
            await advance(mock_clock, DAYS)
            await answer(session, "y")
            await advance(mock_clock, TOOL_S)
        await session.chain.wait_idle()
        assert session.result.status == "done"
        assert sent_results(session) == ["hosts: ['allowed']", "it is done"]


async def test_deadlines_resume_after_the_answer(mock_clock: MockClock) -> None:
    async with open_questions(DANGER, "{name: danger, input: {seconds: 100}}", timeout_s=30) as session:
        await advance(mock_clock, DAYS)
        await answer(session, "y")
        await advance(mock_clock, 29)  # the first call ends at this jump of the clock
        await answer(session, "y")
        assert session.chain.is_running
        mock_clock.jump(2)  # beyond the 30 s of the run
        await session.chain.wait_idle()
        assert session.result.status == "limit_reached"


# ------------------------------------------------------------------------------------------------------- withdrawals

STATUS_AFTER = {"stop": "cancelled", "!use B": "done", "!!use B": "done", "Esc": "interrupted"}


def do(session: Session, act: str) -> None:
    """Submit a line, or interrupt."""
    session.interrupt() if act == "Esc" else session.chain.submit(act)


def jump_while_idle(clock: MockClock) -> None:
    """Let the clock jump from now on whenever all tasks wait."""
    clock.autojump_threshold = 0


@pytest.mark.parametrize(("act", "status"), STATUS_AFTER.items())
async def test_stops_urgent_lines_and_esc_withdraw_questions(act: str, status: str, autojump_clock: MockClock) -> None:
    async with open_questions(DANGER, CHANGE) as session:
        do(session, act)
        assert session.chain.questions.open_id is None
        assert session.chain.answer("Q1", "y").message == "Q1 is no longer open"
        await session.chain.wait_idle()
        assert session.result.status == status
        assert decisions(session) == [("Q1", "withdrawn", "user")]
        assert started_tools(session) == []
        assert [e.text for e in session.of(events.ToolResult)] == [SKIPPED, SKIPPED]


@pytest.mark.parametrize("line", ["use the other one", "todo: add x", "focus on x"])
async def test_other_lines_leave_questions_open(line: str, autojump_clock: MockClock) -> None:
    async with open_questions(DANGER) as session:
        assert session.chain.submit(line).what == "queued"
        await wait_all_tasks_blocked()
        assert session.chain.questions.open_id == "Q1"
        await answer(session, "y")
        await session.chain.wait_idle()
        assert started_tools(session) == ["danger"]


async def test_the_model_is_informed_of_a_withdrawn_choice() -> None:
    async with open_questions(CHOICE) as session:
        session.chain.submit("!go left")
        await session.chain.wait_idle()
        [result] = session.of(events.ToolResult)
        assert result.is_error
        assert result.text.startswith("The question was withdrawn")


@pytest.mark.parametrize("act", ["Esc", "stop", "!no"])
async def test_an_allowed_call_may_still_be_prevented(act: str) -> None:
    file = MemoryFile()
    async with open_questions(CHANGE, file=file) as session:
        file.hold()
        assert session.chain.answer("Q1", "y").what == "answered"
        await wait_all_tasks_blocked()
        assert (started_tools(session), decisions(session)) == ([], []), "the answer is not on disk yet"
        do(session, act)
        file.release()
        await session.chain.wait_idle()
        assert (started_tools(session), decisions(session)) == ([], [("Q1", "allowed", "user")])


@pytest.mark.parametrize("line", ["stop", "!no"])
async def test_a_line_during_a_preview_prevents_its_question(line: str, mock_clock: MockClock) -> None:
    async with open_questions(SLOW_PREVIEW, DANGER) as session:
        session.chain.submit(line)
        jump_while_idle(mock_clock)
        await session.chain.wait_idle()
        assert (session.of(events.Question), session.of(events.ToolCall)) == ([], [])


@pytest.mark.parametrize("line", ["stop", "!no"])
async def test_a_line_prevents_further_questions_of_a_tool(line: str, mock_clock: MockClock) -> None:
    async with open_questions(DIG, DANGER) as session:
        await answer(session, "y")
        await advance(mock_clock, TOOL_S)
        session.chain.submit(line)
        jump_while_idle(mock_clock)
        await session.chain.wait_idle()
        assert [question.name for question in session.of(events.Question)] == ["dig"]
        assert [call.name for call in session.of(events.ToolCall)] == ["dig"]


async def test_cancelling_the_host_withdraws_questions() -> None:
    with trio.CancelScope() as scope:
        async with open_questions(CHOICE) as session:
            assert session.chain.questions.open_id == "Q1"
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert [(r["decision"], r["by"]) for r in session.records if r["type"] == "answer"] == [("withdrawn", "user")]


# --------------------------------------------------------------------------------------------------- on a full disk


async def test_an_unrecorded_answer_leaves_the_question_open() -> None:
    file = FullDisk()
    async with open_questions(CHANGE, file=file) as session:
        file.full = True
        refusal = session.chain.answer("Q1", "y")
        assert refusal.what == "refused"
        assert "No space left" in refusal.message
        assert session.chain.questions.open_id == "Q1"
        file.full = False
        await answer(session, "y")
        await session.chain.wait_idle()
    assert sent_results(session) == ["a is changed"]
    check_invariants(session)


async def test_a_failed_sync_ends_the_asking_run() -> None:
    file = FullDisk()
    async with open_questions(CHOICE, file=file) as session:
        file.broken = True
        session.chain.submit("a line that is synced")
        await session.chain.wait_idle()
        assert session.chain.questions.open_id is None
        assert session.result.status == "error"
        assert decisions(session) == [("Q1", "withdrawn", "user")]


@pytest.mark.parametrize("act", ["stop", "Esc", "the last user leaves"])
async def test_a_full_disk_blocks_no_ending(act: str) -> None:
    file = FullDisk()
    async with open_session(model_calling(CHOICE, CHOICE), tools=ASKING_TOOLS, file=file) as session:
        user = session.chain.answering()
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        file.full = True
        user.close() if act == "the last user leaves" else do(session, act)
        await session.chain.wait_idle()
        assert session.chain.questions.open_id is None
        assert session.result.status in ("error", "cancelled", "interrupted")
        file.full = False
        user.close()
        assert (await session.run("Again")).status == "done"
