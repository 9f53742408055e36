"""A conversation that outgrows its window is shortened, and what the user said stands in it, word for word (I10)."""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field

import pytest
import trio
from support.checks import check_invariants
from support.crashes import left
from support.disks import FullDisk, MemoryFile
from support.sessions import at, open_session, settings, wait_quiet

from chain import events
from chain.errors import ModelError
from chain.messages import TOO_LONG, Message, Text, ToolCall, Usage, assistant
from chain.model import Delta, Model, Reply, Request, Window
from chain.session.resume import load_journal
from chain.text.wording import USER_WORDS
from chain.tools import ask, plan_tools
from chain.tools.tool import ToolContext, tool

SUMMARY = "The goal is to count. Two files were read."
ASKS = "The conversation is about to be shortened"


def chars_in(request: Request) -> int:
    """The characters of a request."""
    texts = (getattr(b, "text", "") or getattr(b, "name", "") for m in request.messages for b in m.blocks)
    beside = len(request.system) + sum(len(json.dumps(asdict(each))) for each in request.tools)
    return sum(map(len, texts)) + beside


def is_asked_for_summary(request: Request) -> bool:
    return request.messages[-1].text.startswith(ASKS)


@dataclass
class SmallModel(Model):
    """A model with a window, which counts four characters a token, and refuses what is longer.

    ``acts`` makes its replies, in turn, ``None`` is a refusal; ``summary`` the text of one that is asked for, as well.
    """

    acts: list[Callable[[Request], Message | None]]
    window_tokens: int | None = 2_200
    summary: str | None = SUMMARY
    refused: int = 0
    gate: trio.Event | None = None
    """Whoever waits for a summary waits for this."""
    asked: trio.Event = field(default_factory=trio.Event)
    limit: int = 2_200
    fails: int = 0
    name: str = "small"

    @property
    def window(self) -> Window | None:
        return None if self.window_tokens is None else Window(self.window_tokens)

    async def reply(self, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        await trio.lowlevel.checkpoint()
        tokens = chars_in(request) // 4
        if tokens > self.limit:
            self.refused += 1
            return Reply(Message("assistant", ()), "model_context_window_exceeded", asked_tokens=tokens)
        if is_asked_for_summary(request):
            self.asked.set()
            if self.gate is not None:
                await self.gate.wait()
            if self.fails:
                raise ModelError("no summary today")
            if self.summary is None:
                return Reply(assistant([Text("no")]), "refusal", Usage(tokens, 5))
            return Reply(assistant([Text(self.summary)]), "end_turn", Usage(tokens, len(self.summary) // 4))
        message = self.acts.pop(0)(request)
        if message is None:
            return Reply(Message("assistant", ()), "refusal", Usage(tokens, 1))
        reason = "tool_use" if message.calls else "end_turn"
        return Reply(
            message, reason, Usage(tokens, sum(len(b.text) for b in message.blocks if isinstance(b, Text)) // 4)
        )


def reads(n: int) -> Callable[[Request], Message]:
    return lambda request: assistant([ToolCall(f"c{n}", "read", {"n": n})])


def refuses(request: Request) -> None:
    """The service will not hear it."""


def says(text: str) -> Callable[[Request], Message]:
    return lambda request: assistant([Text(text)])


@tool
async def read(context: ToolContext, n: int) -> str:
    """Read something long."""
    return f"row {n} " * 300


def breaking_off(model: SmallModel) -> Callable[[Request, Callable[[Delta], None]], Awaitable[Reply]]:
    """The model, whose first reply to a longer conversation shows a beginning, and then finds it too long."""
    reply, is_first = model.reply, True

    async def breaks_off(request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        nonlocal is_first
        if len(request.messages) > 1 and is_first:
            is_first = False
            on_delta(Delta("text", "As far as"))
            return Reply(assistant([Text("As far as")]), TOO_LONG, Usage(100, 1))
        return await reply(request, on_delta)

    return breaks_off


@tool(name="read")
async def brief(context: ToolContext, n: int) -> str:
    """Read something short."""
    return f"row {n}"


async def test_a_nearly_full_window_is_compacted_and_the_run_goes_on() -> None:
    model = SmallModel([reads(1), reads(2), reads(3), reads(4), says("done")])
    async with open_session(model, tools=[read]) as session:
        result = await session.run("count the rows")
        check_invariants(session)
    assert (result.status, result.result) == ("done", "done")
    assert model.refused == 0
    told = session.of(events.Compaction)
    assert [(e.state, e.by) for e in told][:2] == [("started", "fill"), ("ended", "fill")]
    assert told[1].summary == SUMMARY
    assert told[1].tokens_after < told[1].tokens_before
    [asked] = (chars_in(r) // 4 for r in session.model.requests if is_asked_for_summary(r))
    assert 1_800 < asked <= 2_200, "of all that fits"
    assert not [r for r in session.records if r["type"] == "request" and r.get("message")], "the summary has a record"
    first = session.model.requests[-1].messages[0].text
    assert SUMMARY in first
    assert "[run 1, query] count the rows" in first
    assert result.iterations == 5


@pytest.mark.slow
async def test_what_was_said_stands_after_many_compactions() -> None:
    lines = ["no, this year's folder", "todo: add check the SKU", "why so long?"]
    model = SmallModel([reads(n) for n in range(1, 130)] + [says("done")])

    async with open_session(model, tools=[read], use=settings(max_iterations=200)) as session:

        def on_event(event: events.Event) -> None:
            if isinstance(event, events.IterationStarted) and event.iteration in (2, 3, 4):
                session.chain.submit(lines[event.iteration - 2])

        session.chain.listen(on_event)
        await session.run("count the rows of all files, and mind the SKU")
        check_invariants(session, max_iterations=200)
    assert sum(e.state == "ended" for e in session.of(events.Compaction)) >= 30
    last = session.sent()
    for words in ["count the rows of all files, and mind the SKU", *lines]:
        assert words in last
    assert model.refused <= 2


async def test_the_service_that_finds_it_too_long_is_asked_once_more_after_a_compaction() -> None:
    model = SmallModel([reads(n) for n in range(1, 6)] + [says("done")], window_tokens=None)
    async with open_session(model, tools=[read]) as session:
        result = await session.run("count the rows")
        check_invariants(session)
    assert result.status == "done"
    assert {e.by for e in session.of(events.Compaction)} == {"service"}
    assert model.refused >= 1


async def test_where_compaction_is_off_nothing_is_compacted_for_the_service_either() -> None:
    model = SmallModel([reads(n) for n in range(1, 6)], window_tokens=None)
    async with open_session(model, tools=[read], use=settings(compact=False)) as session:
        assert (await session.run("count the rows")).status == "context_full"
        assert session.of(events.Compaction) == []
        check_invariants(session)


@pytest.mark.parametrize(("window", "least"), [(2_200, 1), (None, 3)])
async def test_without_a_summary_the_oldest_results_become_stubs(window: int | None, least: int) -> None:
    """More of them for the service that found it too long than by our own count."""
    for summary in ("", None, "x" * 20_000):
        acts = [*(reads(n) for n in range(4)), says("done")]
        model = SmallModel(acts, window, summary, limit=window or 2_000)
        async with open_session(model, tools=[read]) as session:
            result = await session.run("count the rows")
            check_invariants(session)
        assert result.status == "done"
        [stubbed] = (r["stubbed"] for r in session.records if r["type"] == "compacted")
        assert len(stubbed) == session.sent().count("characters removed to make room]") == least
        assert any("could not be summarized" in e.message for e in session.of(events.Notice))
        ended = [r["stop_reason"] for r in session.records if r["type"] == "request" and "message" in r]
        assert len(ended) - ended.count(TOO_LONG) == 1, "no other record has the reply"


async def test_what_cannot_be_made_to_fit_says_what_fills_the_window() -> None:
    model = SmallModel([says("hm"), says("hm")])
    async with open_session(model) as session:
        await session.run("short")
        result = await session.run("x" * 12_000)
        check_invariants(session)
    assert result.status == "context_full"
    assert "user's words" in result.result
    assert "2,200 tokens" in result.result


@pytest.mark.parametrize("point", ["A", "D"])
async def test_lines_that_come_meanwhile_are_delivered_right_after_it(point: str) -> None:
    """At A where it comes before the first request of a run."""
    first = [says(f"{n} " * 700) for n in range(4)] if point == "A" else [reads(n) for n in range(4)]
    model = SmallModel([*first, *[says("done")] * 2])
    async with open_session(model, tools=[read]) as session:
        for n in range(4 if point == "A" else 0):
            await session.run(f"question {n}")
        model.gate = trio.Event()
        session.chain.submit("count the rows " + "of this long file " * 200 * (point == "A"))
        await model.asked.wait()
        session.chain.submit("mind the empty ones")
        await trio.testing.wait_all_tasks_blocked()
        assert not session.of(events.UserInterruption)
        model.gate.set()
        await wait_quiet(session)
        check_invariants(session)
    [entered] = session.of(events.UserInterruption)
    assert (entered.message, entered.point) == ("mind the empty ones", point)
    compacted = next(n for n, r in enumerate(session.model.requests) if is_asked_for_summary(r))
    assert "mind the empty ones" in session.sent(compacted + 1)


async def test_a_compaction_that_the_user_asks_for_and_interrupts_leaves_no_note() -> None:
    model = SmallModel([says("hi")], gate=trio.Event())
    async with open_session(model, interactive=True) as session:
        await session.run("a greeting")
        said = [r for r in session.records if r["type"] == "message"]
        session.chain.runs.compact("")
        await model.asked.wait()
        session.interrupt()
        await wait_quiet(session)
        assert session.result.status == "interrupted"
        assert [r for r in session.records if r["type"] == "message"] == said
        check_invariants(session)


async def test_a_stop_and_an_interrupt_leave_the_conversation_as_it_was() -> None:
    for is_stop in (True, False):
        model = SmallModel([reads(1), reads(2), reads(3), reads(4), says("done"), says("done")], gate=trio.Event())
        async with open_session(model, tools=[read]) as session:
            session.chain.submit("count the rows")
            await model.asked.wait()
            if is_stop:
                session.chain.submit("stop")
            else:
                session.interrupt()
            await wait_quiet(session)
            before = session.model.requests[-1].messages[:-1]
            assert session.result.status == ("cancelled_with_partial" if is_stop else "interrupted")
            assert [r["type"] for r in session.records].count("compacted") == 0
            assert [e.state for e in session.of(events.Compaction)] == ["started", "failed"]
            model.gate = None
            await session.run("and now?")
            check_invariants(session)
        asked = next(r for r in session.model.requests[::-1] if is_asked_for_summary(r))
        assert list(asked.messages[: len(before)]) == list(before)


async def test_a_now_line_cuts_it_and_it_is_done_once_more() -> None:
    model = SmallModel([reads(1), reads(2), reads(3), reads(4), says("done"), says("done")], gate=trio.Event())
    async with open_session(model, tools=[read]) as session:
        session.chain.submit("count the rows")
        await model.asked.wait()
        model.asked = trio.Event()
        gate, model.gate = model.gate, None
        session.chain.submit("!!only the first file")
        await wait_quiet(session)
        check_invariants(session)
    assert gate is not None
    assert session.result.status == "done"
    assert [e.state for e in session.of(events.Compaction)] == ["started", "failed", "started", "ended"]
    assert "only the first file" in session.sent()
    assert session.of(events.UserInterruption)[0].point == "N"


async def test_the_user_compacts_between_two_runs_and_in_one() -> None:
    model = SmallModel([says("x" * 3_000), reads(1), says("done")], window_tokens=200_000, limit=200_000)
    async with open_session(model, tools=[read], interactive=True) as session:
        await session.run("tell me much")
        session.chain.runs.compact("the   SKU numbers")
        await session.chain.wait_idle()
        assert "What matters most to the user: the SKU numbers" in session.model.requests[-1].messages[-1].text
        assert session.result.status == "done"
        assert session.result.iterations == 0
        at(session, events.ToolResult, session.chain.runs.compact)
        session.chain.submit("go on")
        await wait_quiet(session)
        check_invariants(session)
    assert [e.state for e in session.of(events.Compaction)] == ["started", "ended", "started", "ended"]
    assert "tell me much" in session.sent()


async def test_an_error_of_the_service_is_told_and_the_run_goes_on_with_stubs() -> None:
    model = SmallModel([reads(1), reads(2), reads(3), reads(4), says("done")], fails=1)
    async with open_session(model, tools=[read]) as session:
        result = await session.run("count the rows")
        check_invariants(session)
    assert result.status == "done"
    assert any("no summary today" in e.message for e in session.of(events.Notice))


async def test_what_a_refusal_gives_back_leaves_the_words_that_a_compaction_kept() -> None:
    model = SmallModel([says("hi"), reads(1), reads(2), reads(3), reads(4), refuses, says("fine")])
    async with open_session(model, tools=[read]) as session:
        await session.run("a greeting")
        result = await session.run("the forbidden word")
        assert result.status == "refused"
        assert [e.state for e in session.of(events.Compaction)] == ["started", "ended"]
        assert "the forbidden word" in session.sent()
        assert (await session.run("something else")).result == "fine"
        check_invariants(session)
    assert "the forbidden word" not in session.sent()
    assert "[run 1, query] a greeting" in session.sent()
    returned = [(e.text, e.reason) for e in session.of(events.Receipt) if e.state == "returned"]
    assert returned == [("the forbidden word", "refused")]


async def test_after_stubs_alone_a_refusal_takes_the_query_out_as_before() -> None:
    model = SmallModel([reads(1), reads(2), reads(3), reads(4), refuses, says("fine")], summary=None)
    async with open_session(model, tools=[read]) as session:
        assert (await session.run("the forbidden word")).status == "refused"
        assert any(record["type"] == "compacted" for record in session.records)
        await session.run("something else")
        check_invariants(session)
    assert [message.text for message in session.model.requests[-1].messages] == ["something else"]


async def test_a_query_that_fits_no_window_is_given_back_and_the_next_one_is_answered() -> None:
    model = SmallModel([says("fine")])
    async with open_session(model) as session:
        assert (await session.run("x" * 12_000)).status == "context_full"
        assert [e.reason for e in session.of(events.Receipt) if e.state == "returned"] == ["context_full"]
        assert (await session.run("shorter")).result == "fine"
        check_invariants(session)
    assert [message.text for message in session.model.requests[-1].messages] == ["shorter"]


async def test_a_long_query_after_a_chat_without_tools_leaves_room_for_the_summary() -> None:
    model = SmallModel([*(says(f"{n} " * 700) for n in range(4)), says("fine"), says("fine")])
    async with open_session(model) as session:
        for n in range(4):
            await session.run(f"question {n}")
        result = await session.run("and now this: " + "long " * 700)
        assert (result.status, result.result) == ("done", "fine")
        assert (await session.run("one more")).status == "done"
        check_invariants(session)
    assert {e.state for e in session.of(events.Compaction)} == {"started", "ended"}
    assert "question 0" in session.sent()


async def test_where_what_stays_is_too_much_no_summary_is_asked_for_at_each_iteration() -> None:
    model = SmallModel([*(reads(n) for n in range(8)), says("done")], window_tokens=2_200, limit=9_000)
    async with open_session(model, tools=[brief]) as session:
        result = await session.run("y" * 6_000)
        check_invariants(session)
    assert result.status == "done"
    assert len(session.of(events.Compaction)) <= 6


async def test_what_is_kept_beside_long_words_of_the_user_stays_below_the_limit() -> None:
    @tool(name="read")
    async def page(context: ToolContext, n: int) -> str:
        """Read a page."""
        return f"row {n} " * 60

    model = SmallModel([*(reads(n) for n in range(5)), says("done")])
    async with open_session(model, tools=[page]) as session:
        await session.run("y" * 6_000)
        check_invariants(session)
    ended = [e for e in session.of(events.Compaction) if e.state == "ended"]
    assert ended
    assert all(e.summary and e.tokens_after <= 0.9 * 2_200 for e in ended)


async def test_the_plan_stands_in_the_conversation_after_a_compaction_and_later_too() -> None:
    model = SmallModel([reads(1), reads(2), reads(3), reads(4), reads(5), reads(6), says("done")])
    async with open_session(model, tools=[read]) as session:
        at(session, events.IterationStarted, lambda: session.chain.submit("todo: add check the SKU"))
        await session.run("count the rows")
        check_invariants(session)
    compacted = next(n for n, r in enumerate(session.model.requests) if is_asked_for_summary(r))
    later = session.model.requests[compacted + 1 :]
    assert len(later) > 1
    for request in later:
        assert "check the SKU" in request.messages[0].text.partition(USER_WORDS)[2].partition("\n\n")[2]
        assert not request.tail


async def test_what_was_shown_of_a_reply_that_no_longer_fitted_is_taken_back() -> None:
    model = SmallModel([says("hi " * 500), says("fine")])
    model.reply = breaking_off(model)  # type: ignore[method-assign]
    async with open_session(model) as session:
        await session.run("a greeting")
        assert (await session.run("go on")).result == "fine"
        check_invariants(session)
    told = [type(e).__name__ for e in session.events if isinstance(e, events.TextDelta | events.Retry)]
    assert told[-2:] == ["TextDelta", "Retry"]
    assert "As far as" not in session.sent()


LAST = """
rules:
  - {when: {user: about to be shortened}, text: A summary.}
  - {when: {user: go on}, text: This is as long as a reply, stop_reason: REASON}
  - {text: "TEXT"}
"""


@pytest.mark.parametrize(("reason", "closes"), [("end_turn", False), ("max_tokens", False), ("end_turn", True)])
async def test_one_that_is_asked_for_in_the_last_iteration_is_made_after_the_run(reason: str, closes: bool) -> None:
    model = LAST.replace("REASON", reason).replace("TEXT", "x" * 3_000)
    async with open_session(model, interactive=True) as session:
        await session.run("tell me much")
        at(session, events.IterationStarted, lambda: session.chain.runs.compact("the numbers"))
        if closes:
            at(session, events.IterationStarted, session.chain.stop_accepting)
        session.chain.submit("go on")
        await wait_quiet(session)
        check_invariants(session)
    assert [e.state for e in session.of(events.Compaction)] == ([] if closes else ["started", "ended"])
    asks = "What matters most to the user: the numbers"
    assert (asks in session.model.requests[-1].messages[-1].text) != closes


async def test_a_compaction_is_told_to_have_failed_on_a_full_disk_too() -> None:
    gate, file = trio.Event(), FullDisk()
    model = SmallModel([reads(1), reads(2), reads(3), reads(4), says("done")], gate=gate)
    file.room = math.inf
    async with open_session(model, tools=[read], file=file) as session:
        session.chain.submit("count the rows")
        await model.asked.wait()
        file.room = 0
        gate.set()
        await wait_quiet(session)
    assert [e.state for e in session.of(events.Compaction)] == ["started", "failed"]


async def test_the_window_is_that_of_the_model_that_is_asked_next() -> None:
    first = SmallModel([says("x" * 7_000)], window_tokens=200_000, limit=200_000)
    then = SmallModel([says("fine")], limit=9_000, name="smaller")
    async with open_session(first) as session:
        await session.run("tell me much")
        session.chain.runs.use_model(then, None)
        await session.run("go on")
    assert [e.state for e in session.of(events.Compaction)] == ["started", "ended"]


async def test_what_was_answered_to_a_question_is_kept_word_for_word_and_after_a_resume_too() -> None:
    asks = ToolCall("q", "ask_user_question", {"question": "Which year?", "options": ["2024", "2025"]})
    model = SmallModel([lambda _: assistant([asks]), *(reads(n) for n in range(1, 6)), says("done")])
    file = MemoryFile()
    async with open_session(model, tools=[read, *ask.TOOLS], interactive=True, file=file) as session:
        session.chain.answering()
        at(session, events.Question, lambda: session.chain.answer("Q1", "the year before that"))
        await session.run("count the rows")
        check_invariants(session)
    assert "(asked: Which year?) the year before that" in session.model.requests[-1].messages[0].text
    restored = load_journal(file.data.splitlines(keepends=True)).state.main.history
    assert (
        restored.words.select_rows(10_000)[0]
        == session.chain.runs.executor.context.state.history.words.select_rows(10_000)[0]
    )
    assert restored.conversation.messages == session.chain.runs.executor.context.conversation.messages


async def test_images_that_leave_with_a_compaction_are_named() -> None:
    model = SmallModel([says("seen " * 900), says("fine")], window_tokens=200_000, limit=200_000)
    async with open_session(model) as session:
        session.chain.submit("what is this?", images=[("shot.png", b"\x89PNG\r\n\x1a\n and so on")])
        await wait_quiet(session)
        session.chain.runs.compact("")
        await session.chain.wait_idle()
        await session.run("go on")
        check_invariants(session)
    assert "(Images left out to make room: shot.png.)" in session.sent()
    assert any("shot.png" in e.message for e in session.of(events.Notice))


async def test_a_stop_amid_a_compaction_keeps_what_was_shown_of_the_reply() -> None:
    model = SmallModel([says("hi " * 500), says("never")], gate=trio.Event())
    model.reply = breaking_off(model)  # type: ignore[method-assign]
    async with open_session(model) as session:
        await session.run("a greeting")
        session.chain.submit("go on")
        await model.asked.wait()
        session.chain.submit("stop")
        await wait_quiet(session)
        check_invariants(session)
        assert session.result.status == "cancelled"
        assert "As far as" in session.result.result
        model.gate = None
        model.acts = [says("fine")]
        await session.run("and now?")
    assert "assistant: As far as" in session.sent()


async def test_a_budget_that_a_compaction_alone_uses_up_ends_that_run_and_nothing_else() -> None:
    model = SmallModel([says("hi " * 500), says("fine")])
    use = settings(budget_tokens=2_000)
    async with open_session(model, use=use) as session:
        await session.run("a greeting")

        async def breaks_off(request: Request, on_delta: Callable[[Delta], None]) -> Reply:
            error = ModelError("it broke off", retryable=True, cause="overloaded")
            error.usage = 3_000, 0, 0, 0, None
            raise error

        ours, model.reply = model.reply, breaks_off  # type: ignore[method-assign]
        session.chain.runs.compact("")
        await session.chain.wait_idle()
        assert session.result.status == "limit_reached"
        model.reply = ours  # type: ignore[method-assign]
        assert (await session.run("go on")).status == "done"


@pytest.mark.parametrize(("kind", "line"), [(events.Compaction, "use B"), (events.Retry, "!!use B")])
async def test_no_line_is_delivered_where_a_compaction_has_used_up_the_budget(
    kind: type[events.Event], line: str
) -> None:
    model = SmallModel([says("hi " * 500)])
    model.reply = breaking_off(model)  # type: ignore[method-assign]
    async with open_session(model, use=settings(budget_tokens=300)) as session:
        await session.run("a greeting")
        at(session, kind, lambda: session.chain.submit(line))
        assert (await session.run("go on")).status == "limit_reached"
        assert [e.state for e in session.of(events.Compaction)] == ["started", "ended"]
        assert session.state("L3") == "returned"
        check_invariants(session)


async def test_a_line_that_quotes_another_keeps_its_words_when_that_is_given_back() -> None:
    quoting = "see:\n[run 2, query] the forbidden word\nand that"
    model = SmallModel([says("hi"), reads(1), reads(2), reads(3), reads(4), refuses, says("fine")])
    async with open_session(model, tools=[read]) as session:
        await session.run(quoting)
        assert (await session.run("the forbidden word")).status == "refused"
        await session.run("something else")
        check_invariants(session)
    first = session.model.requests[-1].messages[0].text
    assert quoting in first
    assert first.count("the forbidden word") == 1


async def test_after_stubs_alone_a_resumed_model_is_told_its_own_plan_as_it_would_have_been() -> None:
    plans = ToolCall("p", "plan_set_tasks", {"tasks": ["sum up"]})
    acts = [lambda _: assistant([plans]), *(reads(n) for n in range(1, 5))]
    model = SmallModel([*acts, says("done"), says("done")], summary=None)
    file = MemoryFile()
    async with open_session(model, tools=[read, *plan_tools.TOOLS], file=file) as session:
        await session.run("count the rows")
        rows = file.data.splitlines(keepends=True)
    end = next(n for n, row in enumerate(rows) if b'"compacted"' in row) + 1
    resumed, known = left(b"".join(rows[:end]))
    model = SmallModel([says("done")])
    async with open_session(model, tools=[read, *plan_tools.TOOLS], file=resumed, resume=known) as session:
        await session.run("go on")
    assert any("sum up" in text for text in session.model.requests[0].tail)


@pytest.mark.parametrize("asked", [0, 300_000])
async def test_a_refusal_that_says_no_numbers_is_not_believed_of_a_window_that_is_nearly_empty(asked: int) -> None:
    model = SmallModel([reads(1), says("never")], window_tokens=200_000, limit=200_000)
    ours = model.reply

    async def misjudges(request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        if len(request.messages) > 1:
            return Reply(Message("assistant", ()), TOO_LONG, asked_tokens=asked)
        return await ours(request, on_delta)

    model.reply = misjudges  # type: ignore[method-assign]
    async with open_session(model, tools=[read]) as session:
        assert (await session.run("count the rows")).status == "context_full"
        assert bool(session.of(events.Compaction)) == bool(asked)
        assert all(used.context_tokens for used in session.of(events.UsageReport)), "a refused request used nothing"
        model.reply = ours  # type: ignore[method-assign]
        await session.run("and now?")
    assert ("row 1 row 1" in session.sent()) == (not asked), "no result became a stub"


@pytest.mark.parametrize("later", ["", "the names"])
async def test_a_compaction_that_a_line_cuts_keeps_what_the_user_said_matters_last(later: str) -> None:
    model = SmallModel([says("hi " * 800), reads(1), says("done"), says("done")], window_tokens=None, gate=trio.Event())
    async with open_session(model, tools=[read]) as session:
        await session.run("a greeting")
        at(session, events.ToolResult, lambda: session.chain.runs.compact("the numbers"))
        session.chain.submit("go on")
        await model.asked.wait()
        model.gate = None
        if later:
            session.chain.runs.compact(later)
        session.chain.submit("!!only the first file")
        await wait_quiet(session)
        check_invariants(session)
    asked = [r.messages[-1].text for r in session.model.requests if is_asked_for_summary(r)]
    assert [text.partition("to the user: ")[2] for text in asked] == ["the numbers", later or "the numbers"]


async def test_a_run_that_outgrows_its_window_is_replayed_though_the_next_one_asks_a_larger_model() -> None:
    model = SmallModel([says("hi " * 800)], summary=None, window_tokens=1_000)
    larger = SmallModel([says("done")], window_tokens=200_000, limit=200_000)
    async with open_session(model) as session:
        await session.run("a greeting")
        at(session, events.Compaction, lambda: session.chain.use_model(larger))
        assert (await session.run("y" * 2_000)).status == "context_full"
        assert (await session.run("and now?")).status == "done"
        check_invariants(session)
