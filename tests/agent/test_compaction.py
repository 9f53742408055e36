"""A conversation that outgrows its window is compacted: a summary replaces it, with all lines of the user verbatim."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import pytest
import trio
from support.checks import checked_session
from support.disks import FullDisk, MemoryFile
from support.sessions import at, open_session, settings, wait_quiet

from chain import events
from chain.errors import ModelError
from chain.messages import TOO_LONG, Message, Text, ToolCall, Usage, assistant
from chain.model import Delta, Model, Reply, Request, Window
from chain.session.resume import load_journal
from chain.text.wording import USER_WORDS
from chain.tools import ask
from chain.tools.tool import Tool, ToolContext, tool

SUMMARY = "The goal is to count. Two files were read."
ASKS = "The conversation is about to be shortened"


def is_asked_for_summary(request: Request) -> bool:
    return request.messages[-1].text.startswith(ASKS)


@dataclass
class SmallModel(Model):
    """A model that refuses requests of more than ``limit`` tokens of four characters.

    ``acts`` are its replies, in order: a number is a call of ``read``, a text an answer, ``None`` a refusal. A
    request for a summary sets ``asked``, waits for ``gate``, and gets ``summary`` (``None`` is a refusal), or an error
    if ``fails``. ``refused`` counts the requests that were too long.
    """

    acts: list[int | str | Message | None]
    window_tokens: int | None = 2_200
    summary: str | None = SUMMARY
    gate: trio.Event | None = None
    limit: int = 2_200
    fails: bool = False
    name: str = "small"
    asked: trio.Event = field(default_factory=trio.Event)
    refused: int = 0

    @property
    def window(self) -> Window | None:
        return None if self.window_tokens is None else Window(self.window_tokens)

    async def reply(self, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        await trio.lowlevel.checkpoint()
        tokens = tokens_of(request)
        if tokens > self.limit:
            self.refused += 1
            return Reply(Message("assistant", ()), TOO_LONG, asked_tokens=tokens)
        act: int | str | Message | None = self.summary
        if is_asked_for_summary(request):
            self.asked.set()
            if self.gate is not None:
                await self.gate.wait()
            if self.fails:
                raise ModelError("no summary today")
        else:
            act = self.acts.pop(0)
        match act:
            case None:
                return Reply(assistant([Text("no")]), "refusal", Usage(tokens, 1))
            case int():
                act = assistant([ToolCall(f"c{act}", "read", {"n": act})])
            case str():
                act = assistant([Text(act)])
        written = sum(len(block.text) for block in act.blocks if isinstance(block, Text))
        return Reply(act, "tool_use" if act.calls else "end_turn", Usage(tokens, written // 4))


def tokens_of(request: Request) -> int:
    texts = (getattr(b, "text", "") or getattr(b, "name", "") for m in request.messages for b in m.blocks)
    overhead = len(request.system) + sum(len(json.dumps(asdict(each))) for each in request.tools)
    return (sum(map(len, texts)) + overhead) // 4


def breaking_off(model: SmallModel) -> SmallModel:
    """Make the model break off its first reply to more than one message: the conversation is too long for it."""
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
    assert (result.status, result.result) == ("done", "done")
    assert model.refused == 0
    states = session.of(events.Compaction)
    assert [(e.state, e.by) for e in states][:2] == [("started", "fill"), ("ended", "fill")]
    assert states[1].summary == SUMMARY
    assert states[1].tokens_after < states[1].tokens_before
    [asked] = (tokens_of(r) for r in session.model.requests if is_asked_for_summary(r))
    assert 1_800 < asked <= 2_200, "the request for a summary should contain all that fits"
    assert not [r for r in session.records if r["type"] == "request" and r.get("message")], "the summary has a record"
    first = session.model.requests[-1].messages[0].text
    assert SUMMARY in first
    assert "[run 1, query] count the rows" in first
    assert result.iterations == 5


async def test_a_too_long_request_is_compacted() -> None:
    model = SmallModel([*range(1, 6), "done"], window_tokens=None)
    async with checked_session(model, tools=[read]) as session:
        result = await session.run("count the rows")
    assert result.status == "done"
    assert {e.by for e in session.of(events.Compaction)} == {"service"}
    assert model.refused >= 1


async def test_compaction_can_be_turned_off() -> None:
    model = SmallModel([*range(1, 6)], window_tokens=None)
    async with checked_session(model, tools=[read], use=settings(compact=False)) as session:
        assert (await session.run("count the rows")).status == "context_full"
        assert session.of(events.Compaction) == []


@pytest.mark.parametrize(("window", "stubs"), [(2_200, 1), (None, 3)], ids=["by our count", "by the service"])
@pytest.mark.parametrize(
    "summary", [{"summary": ""}, {"summary": None}, {"summary": "x" * 20_000}, {"fails": True}], ids=str
)
async def test_without_a_summary_old_results_become_stubs(
    window: int | None, stubs: int, summary: dict[str, Any]
) -> None:
    model = SmallModel([1, 2, 3, 4, "done"], window_tokens=window, limit=window or 2_000, **summary)
    async with checked_session(model, tools=[read]) as session:
        assert (await session.run("count the rows")).status == "done"
    [stubbed] = (r["stubbed"] for r in session.records if r["type"] == "compacted")
    assert len(stubbed) == session.sent().count("characters removed to make room]") == stubs
    why = "no summary today" if "fails" in summary else "could not be summarized"
    assert any(why in e.message for e in session.of(events.Notice))
    recorded = [r["stop_reason"] for r in session.records if r["type"] == "request" and "message" in r]
    usable = [reason for reason in recorded if reason != TOO_LONG]
    assert len(usable) == (0 if "fails" in summary else 1), "a reply that is no summary is recorded with its request"


@pytest.mark.parametrize("point", ["A", "D"])
async def test_lines_are_delivered_after_a_compaction(point: str) -> None:
    """A compaction comes before the first request of a run (point A), or between two iterations (point D)."""
    first = [f"{n} " * 700 for n in range(4)] if point == "A" else [*range(4)]
    model = SmallModel([*first, *["done"] * 2])
    async with checked_session(model, tools=[read]) as session:
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
    [entered] = session.of(events.UserInterruption)
    assert (entered.message, entered.point) == ("mind the empty ones", point)
    compacted = next(n for n, r in enumerate(session.model.requests) if is_asked_for_summary(r))
    assert "mind the empty ones" in session.sent(compacted + 1)


async def test_an_interrupted_requested_compaction_leaves_no_note() -> None:
    model = SmallModel(["hi"], gate=trio.Event())
    async with checked_session(model, interactive=True) as session:
        await session.run("a greeting")
        said = [r for r in session.records if r["type"] == "message"]
        session.chain.runs.compact("")
        await model.asked.wait()
        session.interrupt()
        await wait_quiet(session)
        assert session.result.status == "interrupted"
        assert [r for r in session.records if r["type"] == "message"] == said


@pytest.mark.parametrize("end", ["stop", "interrupt"])
async def test_a_stopped_compaction_changes_nothing(end: str) -> None:
    model = SmallModel([1, 2, 3, 4, "done", "done"], gate=trio.Event())
    async with checked_session(model, tools=[read]) as session:
        session.chain.submit("count the rows")
        await model.asked.wait()
        session.interrupt() if end == "interrupt" else session.chain.submit("stop")
        await wait_quiet(session)
        before = session.model.requests[-1].messages[:-1]
        assert session.result.status == ("cancelled_with_partial" if end == "stop" else "interrupted")
        assert [r["type"] for r in session.records].count("compacted") == 0
        assert [e.state for e in session.of(events.Compaction)] == ["started", "failed"]
        model.gate = None
        await session.run("and now?")
    asked = next(r for r in session.model.requests[::-1] if is_asked_for_summary(r))
    assert list(asked.messages[: len(before)]) == list(before)


async def test_a_now_line_cuts_and_repeats_a_compaction() -> None:
    model = SmallModel([1, 2, 3, 4, "done", "done"], gate=trio.Event())
    async with checked_session(model, tools=[read]) as session:
        session.chain.submit("count the rows")
        await model.asked.wait()
        model.asked = trio.Event()
        model.gate = None  # only the repetition gets a summary
        session.chain.submit("!!only the first file")
        await wait_quiet(session)
    assert session.result.status == "done"
    assert [e.state for e in session.of(events.Compaction)] == ["started", "failed", "started", "ended"]
    assert "only the first file" in session.sent()
    assert session.of(events.UserInterruption)[0].point == "N"


async def test_the_user_may_request_a_compaction() -> None:
    model = SmallModel(["x" * 3_000, 1, "done"], window_tokens=200_000, limit=200_000)
    async with checked_session(model, tools=[read], interactive=True) as session:
        await session.run("tell me much")
        session.chain.runs.compact("the   SKU numbers")
        await session.chain.wait_idle()
        assert "What matters most to the user: the SKU numbers" in session.model.requests[-1].messages[-1].text
        assert session.result.status == "done"
        assert session.result.iterations == 0
        at(session, events.ToolResult, session.chain.runs.compact)
        session.chain.submit("go on")
        await wait_quiet(session)
    assert [e.state for e in session.of(events.Compaction)] == ["started", "ended", "started", "ended"]
    assert "tell me much" in session.sent()


async def test_a_refused_query_is_removed_from_the_compacted_conversation() -> None:
    model = SmallModel(["hi", 1, 2, 3, 4, None, "fine"])
    async with checked_session(model, tools=[read]) as session:
        await session.run("a greeting")
        result = await session.run("the forbidden word")
        assert result.status == "refused"
        assert [e.state for e in session.of(events.Compaction)] == ["started", "ended"]
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
        assert "2,200 tokens" in result.result
        assert [e.reason for e in session.of(events.Receipt) if e.state == "returned"] == ["context_full"]
        assert (await session.run("shorter")).result == "fine"
    assert [message.text for message in session.model.requests[-1].messages] == ["shorter"]


async def test_compactions_that_gain_little_are_not_repeated() -> None:
    model = SmallModel([*range(8), "done"], window_tokens=2_200, limit=9_000)
    async with checked_session(model, tools=[read_tool(5)]) as session:
        result = await session.run("y" * 6_000)
    assert result.status == "done"
    assert len(session.of(events.Compaction)) <= 6


async def test_long_words_of_the_user_leave_room() -> None:
    model = SmallModel([*range(5), "done"])
    async with checked_session(model, tools=[read_tool(360)]) as session:
        await session.run("y" * 6_000)
    ended = [e for e in session.of(events.Compaction) if e.state == "ended"]
    assert ended
    assert all(e.summary and e.tokens_after <= 0.9 * 2_200 for e in ended)


async def test_a_compacted_conversation_contains_the_plan() -> None:
    model = SmallModel([1, 2, 3, 4, 5, 6, "done"])
    async with checked_session(model, tools=[read]) as session:
        at(session, events.IterationStarted, lambda: session.chain.submit("todo: add check the SKU"))
        await session.run("count the rows")
    compacted = next(n for n, r in enumerate(session.model.requests) if is_asked_for_summary(r))
    later = session.model.requests[compacted + 1 :]
    assert len(later) > 1
    for request in later:
        assert "check the SKU" in request.messages[0].text.partition(USER_WORDS)[2].partition("\n\n")[2]
        assert not request.tail


async def test_text_of_a_too_long_reply_is_retracted() -> None:
    model = breaking_off(SmallModel(["hi " * 500, "fine"]))
    async with checked_session(model) as session:
        await session.run("a greeting")
        assert (await session.run("go on")).result == "fine"
    found = [type(e).__name__ for e in session.events if isinstance(e, events.TextDelta | events.Retry)]
    assert found[-2:] == ["TextDelta", "Retry"]
    assert "As far as" not in session.sent()


@pytest.mark.parametrize("closes", [False, True])
async def test_a_compaction_requested_last_follows_the_run(closes: bool) -> None:
    model = SmallModel(["x" * 3_000, "done"], window_tokens=200_000, limit=200_000)
    async with checked_session(model, interactive=True) as session:
        await session.run("tell me much")
        at(session, events.IterationStarted, lambda: session.chain.runs.compact("the numbers"))
        if closes:
            at(session, events.IterationStarted, session.chain.stop_accepting)
        session.chain.submit("go on")
        await wait_quiet(session)
    assert [e.state for e in session.of(events.Compaction)] == ([] if closes else ["started", "ended"])
    asks = "What matters most to the user: the numbers"
    assert (asks in session.model.requests[-1].messages[-1].text) != closes


async def test_a_compaction_fails_on_a_full_disk() -> None:
    gate, file = trio.Event(), FullDisk()
    model = SmallModel([1, 2, 3, 4, "done"], gate=gate)
    file.room = math.inf
    async with open_session(model, tools=[read], file=file) as session:
        session.chain.submit("count the rows")
        await model.asked.wait()
        file.room = 0
        gate.set()
        await wait_quiet(session)
    assert [e.state for e in session.of(events.Compaction)] == ["started", "failed"]


async def test_a_smaller_models_window_causes_a_compaction() -> None:
    large = SmallModel(["x" * 7_000], window_tokens=200_000, limit=200_000)
    small = SmallModel(["fine"], limit=9_000, name="smaller")
    async with open_session(large) as session:
        await session.run("tell me much")
        session.chain.runs.use_model(small, None)
        await session.run("go on")
    assert [e.state for e in session.of(events.Compaction)] == ["started", "ended"]


async def test_answers_are_kept_word_for_word() -> None:
    asks = ToolCall("q", "ask_user_question", {"question": "Which year?", "options": ["2024", "2025"]})
    model = SmallModel([assistant([asks]), *range(1, 6), "done"])
    file = MemoryFile()
    async with checked_session(model, tools=[read, *ask.TOOLS], interactive=True, file=file) as session:
        session.chain.answering()
        at(session, events.Question, lambda: session.chain.answer("Q1", "the year before that"))
        await session.run("count the rows")
    assert "(asked: Which year?) the year before that" in session.model.requests[-1].messages[0].text
    restored = load_journal(file.data.splitlines(keepends=True)).state.main.history
    assert (
        restored.words.select_rows(10_000)[0]
        == session.chain.runs.executor.context.state.history.words.select_rows(10_000)[0]
    )
    assert restored.conversation.messages == session.chain.runs.executor.context.conversation.messages


async def test_compacted_images_are_named() -> None:
    model = SmallModel(["seen " * 900, "fine"], window_tokens=200_000, limit=200_000)
    async with checked_session(model) as session:
        session.chain.submit("what is this?", images=[("shot.png", b"\x89PNG\r\n\x1a\n and so on")])
        await wait_quiet(session)
        session.chain.runs.compact("")
        await session.chain.wait_idle()
        await session.run("go on")
    assert "(Images left out to make room: shot.png.)" in session.sent()
    assert any("shot.png" in e.message for e in session.of(events.Notice))


async def test_a_stop_during_a_compaction_keeps_shown_text() -> None:
    model = breaking_off(SmallModel(["hi " * 500, "never"], gate=trio.Event()))
    async with checked_session(model) as session:
        await session.run("a greeting")
        session.chain.submit("go on")
        await model.asked.wait()
        session.chain.submit("stop")
        await wait_quiet(session)
        assert session.result.status == "cancelled"
        assert "As far as" in session.result.result
        model.gate = None
        model.acts = ["fine"]
        await session.run("and now?")
    assert "assistant: As far as" in session.sent()


@pytest.mark.parametrize(("kind", "line"), [(events.Compaction, "use B"), (events.Retry, "!!use B")])
async def test_a_used_up_budget_delivers_no_line(kind: type[events.Event], line: str) -> None:
    model = breaking_off(SmallModel(["hi " * 500]))
    async with checked_session(model, use=settings(budget_tokens=300)) as session:
        await session.run("a greeting")
        at(session, kind, lambda: session.chain.submit(line))
        assert (await session.run("go on")).status == "limit_reached"
        assert [e.state for e in session.of(events.Compaction)] == ["started", "ended"]
        assert session.state("L3") == "returned"


async def test_a_quotation_of_a_withdrawn_line_stays() -> None:
    quoting = "see:\n[run 2, query] the forbidden word\nand that"
    model = SmallModel(["hi", 1, 2, 3, 4, None, "fine"])
    async with checked_session(model, tools=[read]) as session:
        await session.run(quoting)
        assert (await session.run("the forbidden word")).status == "refused"
        await session.run("something else")
    first = session.model.requests[-1].messages[0].text
    assert quoting in first
    assert first.count("the forbidden word") == 1


@pytest.mark.parametrize("asked", [0, 300_000])
async def test_too_long_is_not_believed_without_numbers(asked: int) -> None:
    model = SmallModel([1, "never"], window_tokens=200_000, limit=200_000)
    ours = model.reply

    async def misjudge(request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        if len(request.messages) > 1:
            return Reply(Message("assistant", ()), TOO_LONG, asked_tokens=asked)
        return await ours(request, on_delta)

    model.reply = misjudge  # type: ignore[method-assign]
    async with open_session(model, tools=[read]) as session:
        assert (await session.run("count the rows")).status == "context_full"
        assert bool(session.of(events.Compaction)) == bool(asked)
        assert all(used.context_tokens for used in session.of(events.UsageReport)), "a refused request used nothing"
        model.reply = ours  # type: ignore[method-assign]
        await session.run("and now?")
    assert ("row 1 row 1" in session.sent()) == (not asked), "no result became a stub"


@pytest.mark.parametrize("later", ["", "the names"])
async def test_a_cut_compaction_keeps_the_latest_focus(later: str) -> None:
    model = SmallModel(["hi " * 800, 1, "done", "done"], window_tokens=None, gate=trio.Event())
    async with checked_session(model, tools=[read]) as session:
        await session.run("a greeting")
        at(session, events.ToolResult, lambda: session.chain.runs.compact("the numbers"))
        session.chain.submit("go on")
        await model.asked.wait()
        model.gate = None
        if later:
            session.chain.runs.compact(later)
        session.chain.submit("!!only the first file")
        await wait_quiet(session)
    asked = [r.messages[-1].text for r in session.model.requests if is_asked_for_summary(r)]
    assert [text.partition("to the user: ")[2] for text in asked] == ["the numbers", later or "the numbers"]
