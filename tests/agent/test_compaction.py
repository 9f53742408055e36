"""A conversation that outgrows its window is compacted: a summary replaces it, with all lines of the user verbatim."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import pytest
import trio
from support.checks import checked_session
from support.disks import FullDisk, MemoryFile
from support.sessions import Session, call_at_event, make_settings, open_session, wait_quiet

from chain import events
from chain.errors import ModelError
from chain.messages import TOO_LONG, Message, Text, ToolCall, Usage, assistant
from chain.model import Delta, Model, Reply, Request, Window
from chain.session.resume import load_journal
from chain.text.wording import USER_WORDS
from chain.tools import ask
from chain.tools.tool import Tool, ToolContext, tool

SUMMARY = "The goal is to count. Two files were read."
SUMMARY_PROMPT = "The conversation is about to be shortened"
WINDOW = 2_200
"""Tokens of a small window. The system prompt and the tools need 400 of them, a result of ``read`` needs 450."""
UNREACHED = 200_000
"""Tokens that no conversation of these tests needs."""
LARGE = {"window_tokens": UNREACHED, "limit": UNREACHED}
LONG_REPLY = "hi " * 1_000
"""A reply that a compaction does not keep word for word."""


def is_summary_request(request: Request) -> bool:
    return request.messages[-1].text.startswith(SUMMARY_PROMPT)


@dataclass
class SmallModel(Model):
    """A model that refuses requests of more than ``limit`` tokens of four characters.

    Its ``replies``, in order: a number is a call of ``read``, a text an answer, ``None`` a refusal. A request for a
    summary sets ``summary_requested``, waits for ``gate``, and gets ``summary`` (``None`` is a refusal), or an error
    if ``fails``. ``too_long`` counts the requests that exceeded the limit.
    """

    replies: list[int | str | Message | None]
    window_tokens: int | None = WINDOW
    summary: str | None = SUMMARY
    gate: trio.Event | None = None
    limit: int = WINDOW
    fails: bool = False
    name: str = "small"
    summary_requested: trio.Event = field(default_factory=trio.Event)
    too_long: int = 0

    @property
    def window(self) -> Window | None:
        return None if self.window_tokens is None else Window(self.window_tokens)

    async def reply(self, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        await trio.lowlevel.checkpoint()
        tokens = tokens_of(request)
        if tokens > self.limit:
            self.too_long += 1
            return Reply(Message("assistant", ()), TOO_LONG, asked_tokens=tokens)
        reply: int | str | Message | None = self.summary
        if is_summary_request(request):
            self.summary_requested.set()
            if self.gate is not None:
                await self.gate.wait()
            if self.fails:
                raise ModelError("no summary today")
        else:
            reply = self.replies.pop(0)
        match reply:
            case None:
                return Reply(assistant([Text("no")]), "refusal", Usage(tokens, 1))
            case int():
                reply = assistant([ToolCall(f"c{reply}", "read", {"n": reply})])
            case str():
                reply = assistant([Text(reply)])
        written = sum(len(block.text) for block in reply.blocks if isinstance(block, Text))
        return Reply(reply, "tool_use" if reply.calls else "end_turn", Usage(tokens, written // 4))


def tokens_of(request: Request) -> int:
    texts = (getattr(b, "text", "") or getattr(b, "name", "") for m in request.messages for b in m.blocks)
    overhead = len(request.system) + sum(len(json.dumps(asdict(each))) for each in request.tools)
    return (sum(map(len, texts)) + overhead) // 4


def compaction_states(session: Session) -> list[str]:
    return [e.state for e in session.of(events.Compaction)]


def summary_prompts(session: Session) -> list[str]:
    return [r.messages[-1].text for r in session.model.requests if is_summary_request(r)]


def requests_after_summary(session: Session) -> list[Request]:
    """Return the requests after the first one for a summary."""
    requests = iter(session.model.requests)
    next(filter(is_summary_request, requests))
    return list(requests)


def first_message(request: Request) -> str:
    """Return the text of the message that contains the summary, after a compaction."""
    return request.messages[0].text


def break_off_once(model: SmallModel) -> SmallModel:
    """Make the model break off its first reply to more than one message, because the conversation is too long."""
    reply, is_first = model.reply, True

    async def break_off(request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        nonlocal is_first
        if len(request.messages) > 1 and is_first:
            is_first = False
            on_delta(Delta("text", "As far as"))
            return Reply(assistant([Text("As far as")]), TOO_LONG, Usage(100, 1))
        return await reply(request, on_delta)

    model.reply = break_off  # type: ignore[method-assign]
    return model


@tool
async def read(context: ToolContext, n: int) -> str:
    """Read something long."""
    return f"row {n} " * 300


def read_tool(chars: int) -> Tool:
    """Return a tool ``read`` whose results have ``chars`` characters."""

    @tool(name="read")
    async def page(context: ToolContext, n: int) -> str:
        """Read a page."""
        return f"row {n} ".ljust(chars)

    return page


async def test_a_nearly_full_window_is_compacted() -> None:
    model = SmallModel([1, 2, 3, 4, "done"])
    async with checked_session(model, tools=[read]) as session:
        result = await session.run("count the rows")
    assert (result.status, result.result, result.iterations) == ("done", "done", 5)
    assert model.too_long == 0
    started, ended = session.of(events.Compaction)
    assert [(e.state, e.by) for e in (started, ended)] == [("started", "fill"), ("ended", "fill")]
    assert ended.summary == SUMMARY
    assert ended.tokens_after < ended.tokens_before
    [asked_tokens] = (tokens_of(r) for r in session.model.requests if is_summary_request(r))
    assert 0.8 * WINDOW < asked_tokens <= WINDOW, "the request for a summary contains all that fits"
    requests = [r for r in session.records if r["type"] == "request"]
    assert not any(r.get("message") for r in requests), "a usable summary is only in the record of its compaction"
    last = session.model.requests[-1]
    assert SUMMARY in first_message(last)
    assert "[run 1, query] count the rows" in first_message(last)


async def test_a_too_long_request_is_compacted() -> None:
    model = SmallModel([*range(1, 6), "done"], window_tokens=None)
    async with checked_session(model, tools=[read]) as session:
        result = await session.run("count the rows")
    assert result.status == "done"
    assert {e.by for e in session.of(events.Compaction)} == {"service"}
    assert model.too_long >= 1


async def test_compaction_can_be_turned_off() -> None:
    model = SmallModel([*range(1, 6)], window_tokens=None)
    async with checked_session(model, tools=[read], settings=make_settings(compact=False)) as session:
        assert (await session.run("count the rows")).status == "context_full"
        assert session.of(events.Compaction) == []


UNUSABLE = "could not be summarized"
NO_SUMMARY: dict[str, tuple[dict[str, Any], str, int]] = {
    # The options of the model, the reason in the notice, and the number of recorded unusable summaries.
    "an empty summary": ({"summary": ""}, UNUSABLE, 1),
    "a refusal": ({"summary": None}, UNUSABLE, 1),
    "a summary that is too long": ({"summary": "x" * 20_000}, UNUSABLE, 1),
    "an error": ({"fails": True}, "no summary today", 0),
}


STUBS = {
    "only as many as the excess": (WINDOW, WINDOW, 1),
    "half of a conversation that the service refused": (None, 2_000, 3),
}


@pytest.mark.parametrize(("window", "limit", "stubs"), STUBS.values(), ids=STUBS)
@pytest.mark.parametrize(("options", "reason", "unusable"), NO_SUMMARY.values(), ids=NO_SUMMARY)
async def test_without_a_summary_old_results_become_stubs(
    window: int | None, limit: int, stubs: int, options: dict[str, Any], reason: str, unusable: int
) -> None:
    model = SmallModel([1, 2, 3, 4, "done"], window_tokens=window, limit=limit, **options)
    async with checked_session(model, tools=[read]) as session:
        assert (await session.run("count the rows")).status == "done"
    [stubbed] = (r["stubbed"] for r in session.records if r["type"] == "compacted")
    assert len(stubbed) == session.sent().count("characters removed to make room]") == stubs
    assert any(reason in e.message for e in session.of(events.Notice))
    recorded = [r["stop_reason"] for r in session.records if r["type"] == "request" and "message" in r]
    assert len([each for each in recorded if each != TOO_LONG]) == unusable, "a request's record has its summary"


@pytest.mark.parametrize("point", ["A", "D"])
async def test_lines_are_delivered_after_a_compaction(point: str) -> None:
    """A compaction comes before the first request of a run (point A), or between two iterations (point D)."""
    query = "count the rows"
    model = SmallModel([*range(4), "done", "done"])
    async with checked_session(model, tools=[read]) as session:
        if point == "A":  # four replies of 350 tokens fit, but not also a query of 900
            model.replies = [*(f"{n} " * 700 for n in range(4)), "done", "done"]
            query += " of this long file" * 200
            for n in range(4):
                await session.run(f"question {n}")
        model.gate = trio.Event()
        session.chain.submit(query)
        await model.summary_requested.wait()
        session.chain.submit("mind the empty ones")
        await trio.testing.wait_all_tasks_blocked()
        assert not session.of(events.UserInterruption)
        model.gate.set()
        await wait_quiet(session)
    [interruption] = session.of(events.UserInterruption)
    assert (interruption.message, interruption.point) == ("mind the empty ones", point)
    next_request, *_ = requests_after_summary(session)
    assert any("mind the empty ones" in message.text for message in next_request.messages)


async def test_an_interrupted_requested_compaction_leaves_no_note() -> None:
    model = SmallModel(["hi"], gate=trio.Event())
    async with checked_session(model, interactive=True) as session:
        await session.run("a greeting")
        messages = [r for r in session.records if r["type"] == "message"]
        session.chain.runs.compact("")
        await model.summary_requested.wait()
        session.interrupt()
        await wait_quiet(session)
        assert session.result.status == "interrupted"
        assert [r for r in session.records if r["type"] == "message"] == messages


@pytest.mark.parametrize("end", ["stop", "interrupt"])
async def test_a_stopped_compaction_changes_nothing(end: str) -> None:
    model = SmallModel([1, 2, 3, 4, "done", "done"], gate=trio.Event())
    async with checked_session(model, tools=[read]) as session:
        session.chain.submit("count the rows")
        await model.summary_requested.wait()
        session.interrupt() if end == "interrupt" else session.chain.submit("stop")
        await wait_quiet(session)
        assert session.result.status == ("cancelled_with_partial" if end == "stop" else "interrupted")
        assert [r["type"] for r in session.records].count("compacted") == 0
        assert compaction_states(session) == ["started", "failed"]
        model.gate = None
        await session.run("and now?")
    stopped, repeated = (r for r in session.model.requests if is_summary_request(r))
    *conversation, _ = stopped.messages
    assert list(repeated.messages)[: len(conversation)] == conversation


async def test_a_now_line_repeats_a_compaction() -> None:
    model = SmallModel([1, 2, 3, 4, "done", "done"], gate=trio.Event())
    async with checked_session(model, tools=[read]) as session:
        session.chain.submit("count the rows")
        await model.summary_requested.wait()
        model.summary_requested = trio.Event()
        model.gate = None  # only the repetition gets a summary
        session.chain.submit("!!only the first file")
        await wait_quiet(session)
    assert session.result.status == "done"
    assert compaction_states(session) == ["started", "failed", "started", "ended"]
    assert "only the first file" in session.sent()
    [interruption] = session.of(events.UserInterruption)
    assert interruption.point == "N", "the point after a cut"


async def test_the_user_may_request_a_compaction() -> None:
    model = SmallModel([LONG_REPLY, 1, "done"], **LARGE)
    async with checked_session(model, tools=[read], interactive=True) as session:
        await session.run("tell me much")
        session.chain.runs.compact("the   SKU numbers")
        await session.chain.wait_idle()
        [prompt] = summary_prompts(session)
        assert "What matters most to the user: the SKU numbers" in prompt
        assert (session.result.status, session.result.iterations) == ("done", 0)
        call_at_event(session, events.ToolResult, session.chain.runs.compact)
        session.chain.submit("go on")
        await wait_quiet(session)
    assert compaction_states(session) == ["started", "ended", "started", "ended"]
    assert "tell me much" in session.sent()


async def test_a_refused_query_leaves_the_compacted_conversation() -> None:
    model = SmallModel(["hi", 1, 2, 3, 4, None, "fine"])
    async with checked_session(model, tools=[read]) as session:
        await session.run("a greeting")
        result = await session.run("the forbidden word")
        assert result.status == "refused"
        assert compaction_states(session) == ["started", "ended"]
        assert "the forbidden word" in session.sent()
        assert (await session.run("something else")).result == "fine"
    assert "the forbidden word" not in session.sent()
    assert "[run 1, query] a greeting" in session.sent()
    returned = [(e.text, e.reason) for e in session.of(events.Receipt) if e.state == "returned"]
    assert returned == [("the forbidden word", "refused")]


async def test_a_refusal_after_stubs_withdraws_the_query() -> None:
    model = SmallModel([1, 2, 3, 4, None, "fine"], summary=None)
    async with checked_session(model, tools=[read]) as session:
        assert (await session.run("the forbidden word")).status == "refused"
        assert any(record["type"] == "compacted" for record in session.records)
        await session.run("something else")
    assert [message.text for message in session.model.requests[-1].messages] == ["something else"]


async def test_a_query_that_fits_no_window_is_returned() -> None:
    model = SmallModel(["fine"])
    async with checked_session(model) as session:
        result = await session.run("x" * 12_000)
        assert result.status == "context_full"
        assert "user's words" in result.result
        assert f"{WINDOW:,} tokens" in result.result
        assert [e.reason for e in session.of(events.Receipt) if e.state == "returned"] == ["context_full"]
        assert (await session.run("shorter")).result == "fine"
    assert [message.text for message in session.model.requests[-1].messages] == ["shorter"]


async def test_compactions_that_gain_little_are_not_repeated() -> None:
    model = SmallModel([*range(8), "done"], limit=UNREACHED)
    async with checked_session(model, tools=[read_tool(chars=5)]) as session:
        result = await session.run("y" * 6_600)  # with the 400 tokens of each request, more than 90% of the window
    assert result.status == "done"
    assert compaction_states(session) == ["started", "failed"], "the user's words alone fill the window"


async def test_long_words_of_the_user_leave_room() -> None:
    model = SmallModel([*range(5), "done"])
    async with checked_session(model, tools=[read_tool(chars=360)]) as session:  # too short for stubs
        await session.run("y" * 6_000)  # with the 400 tokens of each request, just below 90% of the window
    ended = [e for e in session.of(events.Compaction) if e.state == "ended"]
    assert ended
    assert all(e.summary and e.tokens_after <= 0.9 * WINDOW for e in ended)


async def test_a_compacted_conversation_contains_the_plan() -> None:
    model = SmallModel([1, 2, 3, 4, 5, 6, "done"])
    async with checked_session(model, tools=[read]) as session:
        call_at_event(session, events.IterationStarted, lambda: session.chain.submit("todo: add check the SKU"))
        await session.run("count the rows")
    requests = requests_after_summary(session)
    assert len(requests) > 1
    for request in requests:
        _, _, words_and_plan = first_message(request).partition(USER_WORDS)
        _, _, plan = words_and_plan.partition("\n\n")
        assert "check the SKU" in plan
        assert not request.tail


async def test_text_of_a_too_long_reply_is_retracted() -> None:
    model = break_off_once(SmallModel([LONG_REPLY, "fine"]))
    async with checked_session(model) as session:
        await session.run("a greeting")
        assert (await session.run("go on")).result == "fine"
    *_, broken_off, retraction = (e.type for e in session.of(events.TextDelta, events.Retry))
    assert (broken_off, retraction) == ("text_delta", "retry")
    assert "As far as" not in session.sent()


@pytest.mark.parametrize("closes", [False, True], ids=["stays open", "closes"])
async def test_a_compaction_requested_last_follows_the_run(closes: bool) -> None:
    model = SmallModel([LONG_REPLY, "done"], **LARGE)
    async with checked_session(model, interactive=True) as session:
        await session.run("tell me much")
        call_at_event(session, events.IterationStarted, lambda: session.chain.runs.compact("the numbers"))
        if closes:
            call_at_event(session, events.IterationStarted, session.chain.stop_accepting)
        session.chain.submit("go on")
        await wait_quiet(session)
    assert compaction_states(session) == ([] if closes else ["started", "ended"])
    focus = "What matters most to the user: the numbers"
    assert [focus in prompt for prompt in summary_prompts(session)] == ([] if closes else [True])


async def test_a_compaction_fails_on_a_full_disk() -> None:
    gate, file = trio.Event(), FullDisk()
    model = SmallModel([1, 2, 3, 4, "done"], gate=gate)
    async with open_session(model, tools=[read], file=file) as session:
        session.chain.submit("count the rows")
        await model.summary_requested.wait()
        file.full = True
        gate.set()
        await wait_quiet(session)
    assert compaction_states(session) == ["started", "failed"]


async def test_a_smaller_models_window_causes_a_compaction() -> None:
    large = SmallModel(["x" * 7_000], **LARGE)  # with the 400 tokens of each request, nearly the small window
    small = SmallModel(["fine"], limit=UNREACHED, name="smaller")
    async with open_session(large) as session:
        await session.run("tell me much")
        session.chain.runs.use_model(small, None)
        await session.run("go on")
    assert compaction_states(session) == ["started", "ended"]


async def test_answers_are_kept_word_for_word() -> None:
    question = ToolCall("q", "ask_user_question", {"question": "Which year?", "options": ["2024", "2025"]})
    model = SmallModel([assistant([question]), *range(1, 6), "done"])
    file = MemoryFile()
    async with checked_session(model, tools=[read, *ask.TOOLS], interactive=True, file=file) as session:
        session.chain.answering()
        call_at_event(session, events.Question, lambda: session.chain.answer("Q1", "the year before that"))
        await session.run("count the rows")
    assert "(asked: Which year?) the year before that" in first_message(session.model.requests[-1])
    restored = load_journal(file.data.splitlines(keepends=True)).state.main.history
    history = session.chain.runs.executor.context.state.history
    assert restored.words.select_rows(chars=10_000) == history.words.select_rows(chars=10_000)
    assert restored.conversation.messages == history.conversation.messages


async def test_compacted_images_are_named() -> None:
    model = SmallModel([LONG_REPLY, "fine"], **LARGE)
    async with checked_session(model) as session:
        session.chain.submit("what is this?", images=[("shot.png", b"\x89PNG\r\n\x1a\n and so on")])
        await wait_quiet(session)
        session.chain.runs.compact("")
        await session.chain.wait_idle()
        await session.run("go on")
    assert "(Images left out to make room: shot.png.)" in session.sent()
    assert any("shot.png" in e.message for e in session.of(events.Notice))


async def test_a_stop_during_a_compaction_keeps_shown_text() -> None:
    model = break_off_once(SmallModel([LONG_REPLY, "never"], gate=trio.Event()))
    async with checked_session(model) as session:
        await session.run("a greeting")
        session.chain.submit("go on")
        await model.summary_requested.wait()
        session.chain.submit("stop")
        await wait_quiet(session)
        assert session.result.status == "cancelled"
        assert "As far as" in session.result.result
        model.gate = None
        model.replies = ["fine"]
        await session.run("and now?")
    assert "assistant: As far as" in session.sent()


@pytest.mark.parametrize(
    ("event", "line"),
    [
        pytest.param(events.Compaction, "use B", id="a line during the compaction"),
        pytest.param(events.Retry, "!!use B", id="a now line before the next request"),
    ],
)
async def test_a_used_up_budget_delivers_no_line(event: type[events.Event], line: str) -> None:
    model = break_off_once(SmallModel([LONG_REPLY]))
    budget = 300  # more than the reply that is broken off uses (101), and less than the request for a summary
    async with checked_session(model, settings=make_settings(budget_tokens=budget)) as session:
        await session.run("a greeting")
        call_at_event(session, event, lambda: session.chain.submit(line))
        assert (await session.run("go on")).status == "limit_reached"
        assert compaction_states(session) == ["started", "ended"]
        assert session.state("L3") == "returned", "the line after the two queries"


async def test_a_quotation_of_a_withdrawn_line_stays() -> None:
    quotation = "see:\n[run 2, query] the forbidden word\nand that"
    model = SmallModel(["hi", 1, 2, 3, 4, None, "fine"])
    async with checked_session(model, tools=[read]) as session:
        await session.run(quotation)
        assert (await session.run("the forbidden word")).status == "refused"
        await session.run("something else")
    compacted = first_message(session.model.requests[-1])
    assert quotation in compacted
    assert compacted.count("the forbidden word") == 1


@pytest.mark.parametrize("asked_tokens", [0, UNREACHED + 100_000], ids=["without a number", "with a number"])
async def test_too_long_is_believed_only_with_a_number(asked_tokens: int) -> None:
    model = SmallModel([1, "never"], **LARGE)
    reply = model.reply

    async def refuse(request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        if len(request.messages) > 1:
            return Reply(Message("assistant", ()), TOO_LONG, asked_tokens=asked_tokens)
        return await reply(request, on_delta)

    model.reply = refuse  # type: ignore[method-assign]
    async with open_session(model, tools=[read]) as session:
        assert (await session.run("count the rows")).status == "context_full"
        assert bool(session.of(events.Compaction)) == bool(asked_tokens)
        assert all(report.context_tokens for report in session.of(events.UsageReport)), "none of a refused request"
        model.reply = reply  # type: ignore[method-assign]
        await session.run("and now?")
    has_result = "row 1 row 1" in session.sent()
    assert has_result == (not asked_tokens), "a result becomes a stub only if the number is known"


@pytest.mark.parametrize("later", ["", "the names"], ids=["one request", "two requests"])
async def test_a_cut_compaction_keeps_the_latest_focus(later: str) -> None:
    model = SmallModel([LONG_REPLY, 1, "done", "done"], window_tokens=None, gate=trio.Event())
    async with checked_session(model, tools=[read]) as session:
        await session.run("a greeting")
        call_at_event(session, events.ToolResult, lambda: session.chain.runs.compact("the numbers"))
        session.chain.submit("go on")
        await model.summary_requested.wait()
        model.gate = None
        if later:
            session.chain.runs.compact(later)
        session.chain.submit("!!only the first file")
        await wait_quiet(session)
    first, repeated = summary_prompts(session)
    assert first.endswith("to the user: the numbers")
    assert repeated.endswith(f"to the user: {later or 'the numbers'}")
