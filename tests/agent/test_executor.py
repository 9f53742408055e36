"""The loop: the requests to the model, the delivery of lines, and the end of runs. L1 is the query."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event

import pytest
import trio
from support.checks import checked_session
from support.disks import FullDisk
from support.gate import Gate, finish_run, start_run
from support.sessions import INTERRUPTED, SKIPPED, Session, call_at_event, make_settings, open_session
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.app.open import open_chain
from chain.errors import ParameterRefused
from chain.journal.reading import Reading
from chain.messages import Text, ToolCall, assistant
from chain.model import Delta, Model, Reply, Request
from chain.providers.scripted.scripted_model import ScriptedModel
from chain.session.restored_state import events_of_journal
from chain.tools.tool import ToolContext, tool

TWO_STEPS = """
rules:
  - when: {interruption: '\\?$'}
    text: It is going well.
  - {when: {step: 1}, text: Looking., tools: [{name: wait, input: {}}]}
  - {when: {tool: wait}, text: The answer.}
  - {text: Noted.}
"""


async def run_with_lines(session: Session, gate: Gate, *lines: str) -> None:
    """Start a run, send lines while its tool runs, and wait for its end."""
    await start_run(session, gate, *lines)
    await finish_run(session, gate)


async def test_a_query_is_answered_with_tool_results() -> None:
    gate = Gate()
    gate.open.set()
    async with checked_session(TWO_STEPS, tools=[gate.tool]) as session:
        result = await session.run("Do the task")
        assert (result.status, result.result, result.iterations) == ("done", "The answer.", 2)
        assert result.replies == ("Looking.", "The answer.")
        assert session.sent() == "user: Do the task\nassistant: Looking.\nuser: waited"


async def test_a_todo_line_is_executed_without_the_model() -> None:
    gate = Gate()
    async with open_session(TWO_STEPS, tools=[gate.tool]) as session:
        await run_with_lines(session, gate, "todo: add check the SKU", "todo: done 9")
        assert [t.text for t in session.chain.plan.tasks] == ["check the SKU"]
        assert "todo: add check the SKU (Done: task 1 added: check the SKU)" in session.sent(1)
        assert "(Not done: there is no task 9; the plan has 1)" in session.sent(1)
        assert "there is no task 9" in session.of(events.Notice)[-1].message
        _, request, _ = session.model.requests
        assert any("1. check the SKU" in text for text in request.tail)
        [change] = session.of(events.PlanChanged)
        assert (change.by, [task.state for task in change.tasks]) == ("user", ["PENDING"])


async def test_a_handler_may_leave_todos_to_the_model() -> None:
    gate, settings = Gate(), make_settings(handler="commands: {todo: model}")
    async with open_session(TWO_STEPS, tools=[gate.tool], settings=settings) as session:
        await run_with_lines(session, gate, "todo: add check the SKU")
        assert session.chain.plan.tasks == ()
        assert session.sent(1).endswith("USER INTERRUPTION: todo: add check the SKU")


async def test_the_handlers_token_limit_is_lifted_on_retry() -> None:
    gate, long_reply = Gate(), "A reply that needs more than three tokens."
    handler = "config: {max_tokens: 3}\nmessages: [{role: system, content: Be brief.}]"
    model = TWO_STEPS.replace("It is going well.", long_reply)
    async with open_session(model, tools=[gate.tool], settings=make_settings(handler=handler)) as session:
        await run_with_lines(session, gate, "how is it going?")
        [retry] = session.of(events.Retry)
        assert "max_tokens" in retry.reason
        assert long_reply in session.result.replies
        assert session.result.iterations == 3


async def test_refused_parameters_are_left_out_with_a_notice() -> None:
    gate = Gate()
    handler = "config: {temperature: 0.3}\nmessages: [{role: system, content: Be brief.}]"
    async with open_session(TWO_STEPS, tools=[gate.tool], settings=make_settings(handler=handler)) as session:

        def refuse_temperature(request: Request) -> None:
            session.mark(request)
            if request.overrides.temperature is not None:
                raise ParameterRefused("not these", ["top_p", "without", "temperature"])  # only the last one was sent

        session.model.on_request = refuse_temperature
        await run_with_lines(session, gate, "how is it going?")
        assert session.result.status == "done"
        [notice] = session.of(events.Notice)
        assert "the service refused temperature, so it is not sent" in notice.message
        assert "handler.yaml" in notice.message
        # The second request is repeated without the temperature.
        assert [r.overrides.temperature for r in session.model.requests] == [None, 0.3, None, None]


async def test_an_idle_chain_executes_todos_without_the_model() -> None:
    async with open_session("rules: [{text: unused}]") as session:
        added = session.chain.submit("todo: add buy milk")
        assert (added.what, added.message) == ("handled", "task 1 added: buy milk")
        assert session.chain.submit("todo: complete 2").message == "there is no task 2; the plan has 1"
        assert session.chain.submit("stop").message == "Nothing is running."
        assert session.chain.submit("status").what == "handled"
        assert session.model.requests == []
        assert session.state("L1") == "handled"
        assert session.of(events.RunStarted) == []


# ---------------------------------------------------------------------------------------------- the last iteration


async def test_a_line_after_the_last_iteration_is_returned() -> None:
    async with checked_session("rules: [{text: Answer.}]", settings=make_settings(max_iterations=1)) as session:
        call_at_event(session, events.Reply, lambda: session.chain.submit("more"))
        result = await session.run("Do the task")
        assert (result.status, result.result) == ("max_iterations", "Answer.")
        assert session.state("L2") == "returned"


async def test_a_limit_without_any_reply_text_is_explained() -> None:
    model = "rules: [{tools: [{name: plan_list, input: {}}]}]"
    async with open_session(model, settings=make_settings(max_iterations=3)) as session:
        result = await session.run("Do the task")
        assert result.result == "Stopped after 3 iterations without a final answer."


# ------------------------------------------------------------------------------------------------ tools never end a run

TOOL_FAULTS = {
    "an unknown tool": ("{name: nothing, input: {}}", "There is no tool 'nothing'."),
    "input that does not fit": ("{name: plan_mark_done, input: {task_number: one}}", "does not fit its schema"),
    "an unknown input key": ("{name: plan_list, input: {x: 1}}", "does not fit its schema"),
    "a tool that needs approval": ("{name: danger, input: {}}", "danger needs approval"),
    "a delegating tool that needs approval": ("{name: delegate, input: {}}", "delegate needs approval"),
    "a plan error": ("{name: plan_mark_done, input: {task_number: 4}}", "there is no task 4"),
    "a call that was cut off": ("{name: plan_list, input: {}, cut: true}", "cut off by max_tokens"),
}


@tool(needs_approval=True)
async def danger(ctx: ToolContext) -> str:
    """Do something dangerous."""
    return "done"


@tool(kind="delegate", needs_approval=True)
async def delegate(ctx: ToolContext) -> str:
    """Delegate a task, if the user allows it."""
    return "done"


@pytest.mark.parametrize(("call", "message"), TOOL_FAULTS.values(), ids=TOOL_FAULTS)
async def test_a_tool_fault_is_an_error_result(call: str, message: str) -> None:
    model = f"rules:\n  - {{when: {{step: 1}}, tools: [{call}, {{name: plan_list, input: {{}}}}]}}\n  - {{text: Done.}}"
    async with checked_session(model, tools=[danger, delegate]) as session:
        result = await session.run("Do the task")
        faulty, next_call = session.of(events.ToolResult)
        assert faulty.is_error
        assert message in faulty.text
        assert not next_call.is_error
        assert (result.status, result.result) == ("done", "Done.")


# ---------------------------------------------------------------------------------------------------- model errors


async def test_a_broken_stream_is_retried(autojump_clock: MockClock) -> None:
    model = "rules: [{text: The whole answer., error: {message: it broke, retryable: true, times: 2, after: 5}}]"
    async with checked_session(model) as session:
        result = await session.run("Do the task")
        assert (result.status, result.result, result.iterations) == ("done", "The whole answer.", 1)
        retries = session.of(events.Retry)
        assert [r.attempt for r in retries] == [1, 2]
        assert all(r.delay_s > 0 for r in retries)
        restored = events_of_journal(Reading(session.file.data.splitlines(keepends=True)))
        assert [r.delay_s for r in restored if isinstance(r, events.Retry)] == [r.delay_s for r in retries]
        first, _, last = session.model.requests
        assert first.messages == last.messages


OVERLOADED = "rules: [{text: Answer., error: {message: try later, retryable: true, cause: overloaded%s}}]"


async def test_an_overloaded_service_is_retried_for_ten_minutes(autojump_clock: MockClock) -> None:
    async with checked_session(OVERLOADED % "") as session:
        result = await session.run("Do the task")
        assert (result.status, result.result) == ("error", "try later")
        assert trio.current_time() == pytest.approx(600)
        retries = session.of(events.Retry)
        assert [r.attempt for r in retries] == list(range(1, len(retries) + 1))
        assert {r.reason for r in retries} == {"overloaded: try later"}
        assert len(retries) > 20
        delays = [r.delay_s for r in retries]
        assert max(delays) <= 30
        for delay, doubled in zip(delays, (0.5, 1, 2, 4, 8, 16), strict=False):  # up to half is left out at random
            assert doubled / 2 <= delay <= doubled


@pytest.mark.parametrize(("max_attempts", "attempts"), [(2, 2), (6, 6), (None, 4)], ids=["2", "6", "the default of 4"])
async def test_broken_replies_are_retried_up_to_the_limit(
    max_attempts: int | None, attempts: int, autojump_clock: MockClock
) -> None:
    broken = "rules: [{text: x, error: {message: it broke off, retryable: true}}]"
    async with open_session(broken, settings=make_settings(max_attempts=max_attempts)) as session:
        result = await session.run("Do the task")
        assert (result.status, result.result, result.exit_code) == ("error", "it broke off", 1)
        assert len(session.model.requests) == attempts
        assert [r.reason for r in session.of(events.Retry)] == ["it broke off"] * (attempts - 1)
        assert [error.kind for error in session.of(events.Error)] == ["model"]


async def test_overloads_do_not_count_as_broken_replies(autojump_clock: MockClock) -> None:
    rules = [
        {"times": 3, "text": "x", "error": {"message": "busy", "retryable": True, "cause": "overloaded"}},
        {"times": 3, "text": "x", "error": {"message": "it broke off", "retryable": True}},
        {"text": "Answer."},
    ]
    async with open_session(json.dumps({"rules": rules})) as session:
        assert (await session.run("Do the task")).result == "Answer."
        assert len(session.of(events.Retry)) == 6


@pytest.mark.parametrize(
    ("retry_after", "timeout_s", "exceeded_limit"),
    [
        pytest.param(599, 1800, "", id="within all limits"),
        pytest.param(601, 1800, "is left of retry_s (600 s)", id="beyond the time for retries"),
        pytest.param(130, 120, "the run has left", id="beyond the time limit of the run"),
    ],
)
async def test_retry_after_must_fit_the_time_left(
    retry_after: int, timeout_s: int, exceeded_limit: str, autojump_clock: MockClock
) -> None:
    model = OVERLOADED % f", retry_after: {retry_after}, times: 1"
    async with checked_session(model, settings=make_settings(timeout_s=timeout_s)) as session:
        result = await session.run("Do the task")
        if exceeded_limit:
            message = f"try later; the service asks to wait {retry_after} s, longer than {exceeded_limit}"
            assert (result.status, result.result, trio.current_time()) == ("error", message, 0)
        else:
            assert (result.result, trio.current_time()) == ("Answer.", retry_after)


UNUSABLE_CALLS = {
    "two calls with one id": "[{name: plan_list, input: {}, id: a}, {name: plan_list, input: {}, id: a}]",
    "a call without a name": "[{name: '', input: {}}]",
}


@pytest.mark.parametrize("calls", UNUSABLE_CALLS.values(), ids=UNUSABLE_CALLS)
async def test_an_unusable_reply_is_retried(calls: str, autojump_clock: MockClock) -> None:
    async with checked_session(f"rules:\n  - {{times: 1, tools: {calls}}}\n  - {{text: Answer.}}") as session:
        result = await session.run("Do the task")
        assert (result.status, result.result) == ("done", "Answer.")
        [retry] = session.of(events.Retry)
        assert "cannot be used" in retry.reason


# ---------------------------------------------------------------------------------------------------- stop reasons

STOP_REASONS = {
    "stop_sequence": ("done", "As far as"),
    "max_tokens": ("truncated", "As far as"),
    "model_context_window_exceeded": ("context_full", "As far as"),
    "pause_turn": ("error", "server tools are not supported"),
}


@pytest.mark.parametrize(("stop_reason", "status", "text"), [(reason, *row) for reason, row in STOP_REASONS.items()])
async def test_stop_reasons_decide_the_status(stop_reason: str, status: str, text: str) -> None:
    async with checked_session(f"rules: [{{text: As far as, stop_reason: {stop_reason}}}]") as session:
        result = await session.run("Do the task")
        assert result.status == status
        assert text in result.result
        assert "As far as" in session.file.data.decode(), "the reply is on record"
        assert (await session.run("Do it again")).status == status


async def test_a_stop_overrides_a_pause() -> None:
    async with checked_session("rules: [{text: As far as, stop_reason: pause_turn}]") as session:
        call_at_event(session, events.UsageReport, lambda: session.chain.submit("stop"))
        assert (await session.run("Do the task")).termination_reason == "user_cancelled"


async def test_an_empty_reply_is_continued_once() -> None:
    async with checked_session("rules: [{text: ''}]") as session:
        result = await session.run("Do the task")
        assert (result.status, result.iterations, result.exit_code) == ("empty", 2, 1)
        assert session.sent() == "user: Do the task\nuser: Please continue."


@pytest.mark.parametrize(
    ("empty_replies", "continues"), [(1, []), (2, ["user: Please continue."])], ids=["the first", "the second"]
)
async def test_a_waiting_line_follows_an_empty_reply(empty_replies: int, continues: list[str]) -> None:
    model = f"rules: [{{text: '', times: {empty_replies}}}, {{text: Answer.}}]"
    async with checked_session(model) as session:
        call_at_event(session, events.UsageReport, lambda: session.chain.submit("use B"), nth=empty_replies)
        result = await session.run("Do the task")
        assert session.sent().splitlines() == ["user: Do the task", *continues, "user: USER INTERRUPTION: use B"]
        assert [e.point for e in session.of(events.UserInterruption)] == ["B"]
        assert (result.status, result.result) == ("done", "Answer.")


async def test_lines_at_an_empty_last_reply_wait() -> None:
    model, settings = "rules: [{text: '', times: 1}, {text: Answer.}]", make_settings(max_iterations=1)
    async with checked_session(model, settings=settings, interactive=True) as session:
        call_at_event(session, events.UsageReport, lambda: session.chain.submit("use B"))
        await session.run("Do the task")
        assert [result.status for result in session.of(events.Result)] == ["max_iterations", "done"]
        assert session.state("L2") == "delivered"


# ---------------------------------------------------------------------------------------------------------- limits


@tool(timeout_s=5)
async def hang(ctx: ToolContext) -> str:
    """Hang."""
    await trio.sleep_forever()


async def test_the_time_limit_ends_a_hanging_tool(autojump_clock: MockClock) -> None:
    model = "rules:\n  - {when: {step: 1}, text: Looking., tools: [{name: hang, input: {}}]}\n  - {text: Answer.}"
    async with checked_session(model, tools=[hang], settings=make_settings(timeout_s=3)) as session:
        result = await session.run("Do the task")
        assert (result.status, result.result) == ("limit_reached", "Looking.")
        assert [event.text for event in session.of(events.ToolResult)] == [INTERRUPTED]
        assert [(r["what"], r["by"]) for r in session.records if r["type"] == "interrupted"] == [("tools", "time")]
        assert (await session.run("Do it again")).status == "limit_reached"


# ------------------------------------------------------ asides: lines that are answered before the task continues


def send_at_answer(session: Session, line: str) -> None:
    """Send a line in the step of the first reply without tool calls."""
    call_at_event(session, events.Reply, lambda: session.chain.submit(line), tool_calls=0)


@pytest.mark.parametrize(("line", "answer"), [("and another aside?", "The answer."), ("stay here", "As you like.")])
async def test_after_an_aside_only_redirects_end_the_run(line: str, answer: str) -> None:
    gate = Gate()
    model = """
rules:
  - {when: {interruption: stay}, text: As you like.}
  - {when: {interruption: aside}, text: An aside.}
  - {when: {step: 1}, text: Looking., tools: [{name: wait, input: {}}]}
  - {when: {tool: wait}, text: The answer.}
"""
    async with open_session(model, tools=[gate.tool]) as session:
        send_at_answer(session, line)
        await run_with_lines(session, gate, "an aside?")
        assert session.result.result == answer


async def test_an_aside_may_cut_an_unanswered_redirect(autojump_clock: MockClock) -> None:
    gate = Gate()
    gate.open.set()
    model = """
rules:
  - {when: {step: 1}, tools: [{name: wait, input: {}}]}
  - {when: {interruption: fine}, text: It is fine.}
  - {when: {interruption: do B}, thinking: Hm, text: B is 42., pace: {chunk: 9, delay_s: 9}}
  - {text: It is complete already.}
"""
    async with checked_session(model, tools=[gate.tool]) as session:
        call_at_event(session, events.ToolResult, lambda: session.chain.submit("do B"))
        call_at_event(session, events.UserInterruption, lambda: session.chain.submit("!!is it fine?"))
        result = await session.run("Do the task")
        assert [e.point for e in session.of(events.UserInterruption)] == ["D", "N"]
        assert (result.replies, result.result) == (("B is 42.\n\nIt is fine.",), "B is 42.\n\nIt is fine.")


async def test_an_aside_with_the_query_changes_no_result() -> None:
    model = "rules:\n  - {when: {interruption: later}, text: Later.}\n  - {text: The answer.}"
    async with checked_session(model) as session:
        send_at_answer(session, "is it later?")
        session.chain.submit("Do the task")
        session.chain.submit("context: it is early")
        await session.chain.wait_idle()
        assert [e.point for e in session.of(events.UserInterruption)] == ["A", "B"]
        assert session.result.result == "The answer."


async def test_work_for_a_late_aside_changes_no_result() -> None:
    gate = Gate()
    gate.open.set()
    model = """
rules:
  - {when: {interruption: why}, tools: [{name: wait, input: {}}]}
  - {when: {interruption: known}, text: '', tools: [{name: plan_list, input: {}}]}
  - {when: {tool: '.*'}, text: Because.}
  - {text: The answer.}
"""
    async with checked_session(model, tools=[gate.tool]) as session:
        send_at_answer(session, "why is that?")
        call_at_event(session, events.ToolCall, lambda: session.chain.submit("context: known"), name="wait")
        result = await session.run("Do the task")
        assert result.replies == ("The answer.", "Because.")
        assert result.result == "The answer."


async def test_the_post_prompt_stays_until_a_reply() -> None:
    gate = Gate()
    model = """
rules:
  - {when: {step: 1}, tools: [{name: wait, input: {}}]}
  - {when: {step: 2}, text: ''}
  - {text: Noted.}
"""
    settings = make_settings(handler="messages: [{role: system, content: Be brief.}]")
    async with open_session(model, tools=[gate.tool], settings=settings) as session:
        await run_with_lines(session, gate, "use B")
        assert [r.tail for r in session.model.requests] == [(), ("Be brief.",), ("Be brief.",)]


# ----------------------------------------------------------------------------------------- disks, closing, listeners


async def test_a_failed_sync_returns_waiting_lines() -> None:
    disk, gate = FullDisk(), Gate()
    async with open_session(TWO_STEPS, tools=[gate.tool], file=disk) as session:
        await start_run(session, gate)
        disk.broken = True
        session.chain.submit("use B")
        session.chain.submit("then: the next")
        await wait_all_tasks_blocked()
        gate.open.set()
        await session.chain.wait_idle()
        assert session.result.status == "error"
        assert session.of(events.LineQueued) == []
        assert session.state("L3") == "returned"
        assert len(session.of(events.Result)) == 1


async def test_an_unrecorded_refusal_withdraws_nothing() -> None:
    disk = FullDisk()
    async with open_session("rules: [{text: No., stop_reason: refusal}]", file=disk) as session:
        call_at_event(session, events.UsageReport, lambda: setattr(disk, "full", True))
        result = await session.run("Do the task")
        assert result.status == "error"
        disk.full = False
        assert [r["type"] for r in session.records if r["type"] in ("message", "withdrawn")] == ["message"]
        assert session.state("L1") == "delivered"


@pytest.mark.parametrize("is_interrupted", [True, False], ids=["the block is left", "the run may finish"])
async def test_a_closing_chain_refuses_lines_and_runs(is_interrupted: bool) -> None:
    gate = Gate()
    async with checked_session(TWO_STEPS, tools=[gate.tool]) as session:
        call_at_event(session, events.Result, lambda: session.chain.submit("again"))
        await start_run(session, gate, "then: more")
        if not is_interrupted:
            session.chain.stop_accepting()
            await finish_run(session, gate)
    assert [r.status for r in session.of(events.Result)] == ["interrupted" if is_interrupted else "done"]
    assert len(session.of(events.RunStarted)) == 1
    assert session.state("L2") == "returned"
    [refusal] = session.of(events.LineRefused)
    assert refusal.reason == "the chain is closing"


async def test_a_run_is_announced_after_the_last_result() -> None:
    gate = Gate()
    async with checked_session(TWO_STEPS, tools=[gate.tool]) as session:
        call_at_event(session, events.Receipt, lambda: session.chain.submit("Do it again"), state="returned")
        await start_run(session, gate, "use B")
        session.chain.interrupt()
        gate.open.set()
        await session.chain.wait_idle()
        order = [e.type for e in session.of(events.RunStarted, events.Result)]
        assert order == ["run_started", "result", "run_started", "result"]


@pytest.mark.parametrize("failed_runs", [0, 2])
@pytest.mark.parametrize("room", [0, 1_000], ids=["nothing fits", "only small records fit"])
async def test_unrecorded_results_are_appended_by_a_later_run(room: int, failed_runs: int) -> None:
    disk = FullDisk()

    @tool
    async def big(ctx: ToolContext) -> str:
        """Return a result that does not fit on the disk."""
        disk.room = room
        return "y" * 10_000

    model = """
rules:
  - {when: {user: the task, step: 1}, text: Looking., tools: [{name: big, input: {}}, {name: big, input: {}}]}
  - {text: The answer.}
"""
    async with open_session(model, tools=[big], file=disk) as session:
        assert (await session.run("Do the task")).status == "error"
        started = [e.id for e in session.of(events.ToolCall)]
        assert started
        assert started == [e.id for e in session.of(events.ToolResult) if e.id in started]
        for _ in range(failed_runs):
            session.chain.submit("again")
            await session.chain.wait_idle()
        returned = [e.text for e in session.of(events.Receipt) if e.state == "returned"]
        assert returned == ["again"] * (failed_runs if room else 0), "without room, no line is accepted"
        disk.room = 100_000
        assert (await session.run("Do another task")).status == "done"
        first, second = (r.text for m in session.model.requests[-1].messages for r in m.results)
        assert first == "y" * 10_000
        assert second == (first if room else SKIPPED), "without room, the start of a call cannot be recorded"
        published = [e.id for e in session.of(events.ToolResult)]
        assert len(published) == len(set(published)) == 2


# -------------------------------------------------------------------------------------------- the ids of tool calls


@dataclass
class ModelWithIds(Model):
    """A model whose replies are calls with these ids, then an answer. The call with the id "cut" is cut off."""

    replies: list[list[str]]
    name: str = "with ids"

    async def reply(self, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        await trio.lowlevel.checkpoint()
        ids = self.replies.pop(0) if self.replies else []
        blocks = [ToolCall(id, "look", {}) for id in ids] or [Text("The answer.")]
        if "cut" in ids:
            return Reply(assistant(blocks), "max_tokens", cut_calls=frozenset(["cut"]))
        return Reply(assistant(blocks), "tool_use" if ids else "end_turn")


@tool(read_only=True)
async def look(ctx: ToolContext) -> str:
    """Look."""
    return "seen"


async def test_invalid_and_reused_call_ids_are_rewritten() -> None:
    invalid, valid = ["functions.look:0", "", "call 1", "tö", "x" * 200], "valid-1"
    model = ModelWithIds([[*invalid, valid], ["", "call_2", valid], [], [valid, "cut"]])  # [] ends the first run
    async with checked_session(model, tools=[look]) as session:
        assert (await session.run("Do the task")).status == "done"
        assert (await session.run("Do another task")).status == "done"
        first_reply, second_reply, last_reply = (
            [call.id for call in message.calls] for message in session.model.requests[-1].messages if message.calls
        )
        assert [id for id in first_reply if id in (*invalid, valid)] == [valid]
        *_, cut = last_reply
        assert cut == "cut"
        ids = [*first_reply, *second_reply, *last_reply]
        assert len(ids) == len(set(ids)) == 6 + 3 + 2
        assert all(re.fullmatch("[a-zA-Z0-9_-]{1,128}", id) for id in ids)
        results = {event.id: event.text for event in session.of(events.ToolResult)}
        assert results.keys() == set(ids), "events have the ids of the conversation"
        assert "cut off by max_tokens" in results[cut]


# ---------------------------------------------------------------------------------------------------------- stops


async def test_a_stop_with_a_used_id_stops() -> None:
    gate = Gate()
    async with open_session(TWO_STEPS, tools=[gate.tool]) as session:
        session.chain.submit("Do the task", id="a1")
        await gate.started.wait()
        assert session.chain.submit("stop", id="a1").what == "stopping"
        [refusal] = session.of(events.LineRefused)
        assert (refusal.id, refusal.text) == ("a1", "stop")
        assert refusal.reason == "the id a1 was used before; give each line its own id; the run stops nevertheless"
        gate.open.set()
        await session.chain.wait_idle()
        assert session.result.status == "cancelled_with_partial"
        assert [(r.id, r.state) for r in session.result.receipts] == [("a1", "delivered"), ("a1", "refused")]


# --------------------------------------------------------------------------------------------------------- threads


async def test_hanging_threads_do_not_block_the_journal(tmp_path: Path) -> None:
    released = Event()
    hang = partial(trio.to_thread.run_sync, released.wait, abandon_on_cancel=True)
    try:
        async with trio.open_nursery() as nursery:
            # One more than the threads that may run at once:
            for _ in range(trio.to_thread.current_default_thread_limiter().total_tokens + 1):
                nursery.start_soon(hang)
            await wait_all_tasks_blocked()
            model = ScriptedModel.parse("rules: [{text: The answer.}]")
            async with open_chain(make_settings(), workspace=tmp_path, state=tmp_path / "state", model=model) as chain:
                chain.submit("Do the task")
                await chain.wait_idle()
                assert chain.runs.last_status == "done"
            nursery.cancel_scope.cancel()
    finally:
        released.set()
