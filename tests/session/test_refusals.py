"""Content that a service rejects is replaced by stubs once a request without it succeeds, also after resuming."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import pytest
from double import check_messages
from support.checks import check_invariants, check_replays
from support.crashes import load_crashed, reopen
from support.sessions import Session, make_settings, open_session
from trio.testing import MockClock

from chain import events
from chain.agent import refusals
from chain.agent.refusals import MAX_REQUEST_IMAGE_BYTES, OVER_LIMIT, apply_removal, removal_of_excess_images
from chain.agent.window import length_of
from chain.errors import ModelError
from chain.journal.records import REFUSED, Removed
from chain.messages import (
    Block,
    Image,
    Message,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Usage,
    assistant,
    digest_of,
    to_json,
    user_text,
)
from chain.model import Delta, Model, Reply, Request
from chain.tools.tool import ToolContext, ToolOutput, tool

PNG = b"\x89PNG\r\n\x1a\n"
SUMMARY_PROMPT = "The conversation is about to be shortened"


def refusal_of(*what: str, why: str = "no", is_failure: bool = False) -> ModelError:
    """Return a refusal of these parts of a request. ``is_failure``: the service reports a failure of its own."""
    refusal = ModelError(why, retryable=is_failure, cause=why if is_failure else "")
    refusal.refused = what
    return refusal


def images(request: Request) -> list[str]:
    """Return the names of the images in a request."""
    return [image.name for message in request.messages for image in message.images]


@tool(read_only=True)
async def look(ctx: ToolContext, at: str) -> ToolOutput:
    """Look at something."""
    content = PNG + at.encode()
    found = Image("image/png", digest_of(Text(at)), at, b64encode(content).decode(), len(content))
    return ToolOutput(f"seen {at}", (found,))


@dataclass
class RefusingModel(Model):
    """A model that refuses some requests. It answers the query "call NAME" with a call of ``look``."""

    refuses: Callable[[Request], ModelError | None]
    answer: str = "Fine."
    name: str = "refusing"
    calls: int = 0

    async def reply(self, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        if (refusal := self.refuses(request)) is not None:
            raise refusal
        usage = Usage(sum(map(length_of, request.messages)) // 4, 5)
        query = request.messages[-1].text
        if query.startswith("call "):
            self.calls += 1
            call = ToolCall(f"t{self.calls}", "look", {"at": query.removeprefix("call ")})
            return Reply(assistant([Thinking("Hm.", "signed"), call]), "tool_use", usage)
        text = "Short." if query.startswith(SUMMARY_PROMPT) else self.answer
        return Reply(assistant([Thinking("Hm.", "signed"), Text(text)]), "end_turn", usage)


@pytest.fixture
def workspace() -> Path:
    """Return the workspace of the default settings, with four images in it."""
    folder = make_settings().file
    assert folder is not None
    for n in range(4):
        (folder.parent / f"{n}.png").write_bytes(PNG + str(n).encode())
    return folder.parent


def notices(session: Session) -> list[str]:
    return [notice.message for notice in session.of(events.Notice)]


def conversation(session: Session) -> Sequence[Message]:
    return session.chain.runs.tree.main.agent.conversation.messages


def restored_conversation(session: Session) -> Sequence[Message]:
    """Return the conversation that the journal leads to."""
    _, loaded = load_crashed(session.file.data)
    return loaded.state.main.history.conversation.messages


async def check_restored(session: Session) -> None:
    """Check that the conversation is valid and the same after resuming."""
    check_invariants(session)
    assert restored_conversation(session) == conversation(session)
    assert check_messages([to_json(m) for m in [*conversation(session), user_text("Next")]]) is None
    _, loaded = load_crashed(session.file.data)
    assert loaded.state.refused_tools == session.chain._shared.refused_tools


# ------------------------------------------------------------------------------------------------------------- images


Check: TypeAlias = Callable[[Request], ModelError | None]
"""Returns the refusal of a request, or ``None``."""


def refuse_all_images(request: Request) -> ModelError | None:
    return refusal_of("images") if images(request) else None


def fail_with_images(request: Request) -> ModelError | None:
    return refusal_of("images", why="failed with 500", is_failure=True) if images(request) else None


def refuse_second_image(request: Request) -> ModelError | None:
    return refusal_of("images", why="Could not process image") if "1.png" in images(request) else None


def refuse_second_image_by_digest(request: Request) -> ModelError | None:
    digests = [i.digest for m in request.messages for i in m.images if i.name == "1.png"]
    return refusal_of("content", *digests, why="image exceeds 5 MB") if digests else None


def refuse_more_images_than(most: int) -> Check:
    return lambda request: refusal_of("oldest images") if len(images(request)) > most else None


TWO_AND_TWO = ["See @0.png and @1.png", "See @2.png and @3.png"]


@pytest.mark.parametrize(
    ("refuses", "queries", "sent"),
    [
        pytest.param(refuse_all_images, ["See @0.png and @1.png"], [], id="all"),
        pytest.param(fail_with_images, ["See @0.png and @1.png"], [], id="failure"),
        pytest.param(refuse_second_image, ["See @0.png", "See @1.png"], ["0.png"], id="newest"),
        pytest.param(
            refuse_second_image_by_digest, ["See @0.png, @1.png and @2.png"], ["0.png", "2.png"], id="named by digest"
        ),
        pytest.param(refuse_more_images_than(0), TWO_AND_TWO, [], id="none fits"),
        pytest.param(refuse_more_images_than(1), TWO_AND_TWO, ["3.png"], id="one fits"),
        pytest.param(refuse_more_images_than(3), TWO_AND_TWO, ["1.png", "2.png", "3.png"], id="three fit"),
    ],
)
async def test_refused_images_are_not_sent_again(
    refuses: Check, queries: list[str], sent: list[str], workspace: Path, autojump_clock: MockClock
) -> None:
    async with open_session(RefusingModel(refuses)) as session:
        for query in queries:
            assert (await session.run(query)).status == "done"
        assert images(session.model.requests[-1]) == sent
        assert all(notice.startswith("No longer sent: ") for notice in notices(session))
        before = len(session.model.requests)
        assert (await session.run("And now?")).status == "done"
        assert len(session.model.requests) == before + 1
        first_message = next(r["message"] for r in session.records if r["type"] == "message")
        assert any(b["type"] == "image" for b in first_message["content"]), "the journal keeps the images"
        await check_restored(session)
    check_replays(session)


@pytest.mark.parametrize("is_failure", [False, True], ids=["refusal", "failure"])
async def test_other_refusals_remove_no_image(is_failure: bool, workspace: Path, autojump_clock: MockClock) -> None:
    has_credit = False

    def refuse_without_credit(request: Request) -> ModelError | None:
        parts = ["images"] if images(request) else []
        return None if has_credit else refusal_of(*parts, why="no credit", is_failure=is_failure)

    async with open_session(RefusingModel(refuse_without_credit)) as session:
        assert (await session.run("See @0.png")).status == "error"
        has_credit = True
        await session.run("And now?")
        assert images(session.model.requests[-1]) == ["0.png"]
        assert notices(session) == []


async def test_a_temporary_failure_removes_no_image(workspace: Path, autojump_clock: MockClock) -> None:
    failures = [refusal_of("images", why="failed with 500", is_failure=True)]
    async with open_session(RefusingModel(lambda r: failures.pop() if failures else None)) as session:
        await session.run("See @0.png")
        assert [images(r) for r in session.model.requests] == [["0.png"]] * 2


async def test_images_over_the_limit_are_removed_first(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "MAX_REQUEST_IMAGE_BYTES", 20)  # two of these images, of 9 bytes each
    async with open_session(RefusingModel(lambda r: None)) as session:
        await session.run("See @0.png and @1.png")
        await session.run("See @2.png")
        assert [images(r) for r in session.model.requests] == [["0.png", "1.png"], ["1.png", "2.png"]]
        assert notices(session) == [f"No longer sent: 0.png ({OVER_LIMIT})."]
        await check_restored(session)
    check_replays(session)


def test_a_repeated_image_is_removed_once() -> None:
    size = MAX_REQUEST_IMAGE_BYTES // 2 - 1_000_000  # two of three fit into a request
    image = Image("image/png", "d", "d.png", "AAAA", size)
    messages = [Message("user", (Text("see"), image))] * 3
    (removed,) = removal_of_excess_images("main", 1, messages, 3 * size)
    assert removed.digests == ("d",)
    assert [len(m.images) for m in apply_removal(messages, removed)] == [0, 1, 1]


async def test_a_summary_is_requested_without_images(workspace: Path) -> None:
    def refuse_images_in_summary_request(request: Request) -> ModelError | None:
        is_for_summary = request.messages[-1].text.startswith(SUMMARY_PROMPT)
        return refusal_of("images") if images(request) and is_for_summary else None

    model = RefusingModel(refuse_images_in_summary_request, "Fine. " * 500)
    async with open_session(model, tools=[look]) as session:
        for query in ("See @0.png", "call x.png", "Well?"):
            await session.run(query)
        session.chain.runs.compact("")
        await session.chain.wait_idle()
        assert [c.state for c in session.of(events.Compaction)] == ["started", "ended"]
        (compacted,) = [r for r in session.records if r["type"] == "compacted"]
        assert "images" not in compacted
        await session.run("And now?")
        assert restored_conversation(session) == conversation(session)


# ---------------------------------------------------------------------------------------------- thinking, tools, texts


def count_thinking(request: Request) -> int:
    return sum(isinstance(block, Thinking) for message in request.messages for block in message.blocks)


async def test_refused_thinking_is_not_sent_again() -> None:
    def refuse_thinking_of_two_replies(request: Request) -> ModelError | None:
        return refusal_of("thinking", why="Invalid signature") if count_thinking(request) == 2 else None

    async with open_session(RefusingModel(refuse_thinking_of_two_replies)) as session:
        for query in ("One.", "Two.", "Three.", "Four."):
            assert (await session.run(query)).status == "done"
        one, two, refused, three, four = (count_thinking(request) for request in session.model.requests)
        assert (one, two, refused, three, four) == (0, 1, 2, 0, 1)
        assert notices(session) == [f"No longer sent: the thinking of earlier replies ({REFUSED})."]
        await check_restored(session)
    check_replays(session)


def test_a_reply_of_thinking_alone_becomes_a_stub() -> None:
    messages = [user_text("Hello"), assistant([Thinking("Hm.", "signed")]), user_text("Go on")]
    (_, reply, _) = apply_removal(messages, Removed("main", 1, "thinking"))
    assert reply.blocks == (Text(f"[thinking removed: {REFUSED}]"),)


async def test_a_refused_tool_is_not_sent_again() -> None:
    def has_look(request: Request) -> bool:
        return any(tool.name == "look" for tool in request.tools)

    def refuse_look(request: Request) -> ModelError | None:
        return refusal_of("tools", "look", why="tools.0: bad schema") if has_look(request) else None

    async with open_session(RefusingModel(refuse_look), tools=[look]) as session:
        await session.run("Hello")
        await session.run("Again")
        assert [has_look(request) for request in session.model.requests] == [True, False, False]
        assert notices(session) == [f"No longer sent: look ({REFUSED})."]
    check_replays(session)
    async with reopen(session.file.data, RefusingModel(refuse_look), tools=[look]) as resumed:
        await resumed.run("And now?")
        assert len(resumed.model.requests) == 1


async def test_a_refused_unknown_tool_ends_the_run() -> None:
    async with open_session(RefusingModel(lambda request: refusal_of("tools", "nothing"))) as session:
        assert (await session.run("Hello")).status == "error"
        assert len(session.model.requests) == 2, "the request is sent again only once"


FIRST_IMAGE, SECOND_IMAGE = Image("image/png", "d1", "one.png"), Image("image/png", "d2", "two.png")
RESULT = ToolResult("t1", "seen", is_error=True, images=(FIRST_IMAGE, SECOND_IMAGE))
CALL = ToolCall("t1", "look", {"at": 1})


@pytest.mark.parametrize(
    ("block", "digest", "stub"),
    [
        pytest.param(FIRST_IMAGE, "d1", Text("[image one.png removed: no]"), id="image"),
        pytest.param(Text("secret"), digest_of(Text("secret")), Text("[text removed: no]"), id="text"),
        pytest.param(RESULT, digest_of(RESULT), ToolResult("t1", "[result removed: no]", is_error=True), id="result"),
        pytest.param(
            RESULT,
            "d2",
            replace(RESULT, text="seen\n[image two.png removed: no]", images=(FIRST_IMAGE,)),
            id="image of a result",
        ),
        pytest.param(CALL, digest_of(CALL), ToolCall("t1", "look", {}), id="call"),
    ],
)
def test_removed_content_becomes_a_stub(block: Block, digest: str, stub: Block) -> None:
    before, after = user_text("before"), user_text("after")
    removed = Removed("main", 1, "content", (digest,), why="no")
    changed = apply_removal([before, Message("user", (block,)), after], removed)
    same, with_stub, later = changed
    assert (same.blocks, with_stub.blocks, later.blocks) == (before.blocks, (stub,), after.blocks)
    assert same is before
    assert later is not after
    assert apply_removal(changed, removed) is changed


async def test_a_named_result_stays_removed() -> None:
    def refuse_result(request: Request) -> ModelError | None:
        digests = [digest_of(r) for m in request.messages for r in m.results if r.text == "seen it"]
        return refusal_of("content", *digests, why="blocked") if digests else None

    async with open_session(RefusingModel(refuse_result), tools=[look]) as session:
        assert (await session.run("call it")).status == "done"
        _, _, results, *_ = conversation(session)
        assert results.blocks == (ToolResult("t1", f"[result removed: {REFUSED}]"),)
        assert restored_conversation(session) == conversation(session)


async def test_a_refusal_of_a_stub_ends_the_run() -> None:
    def refuse_first_block(request: Request) -> ModelError | None:
        first_block = request.messages[0].blocks[0]
        return refusal_of("content", digest_of(first_block))

    async with open_session(RefusingModel(refuse_first_block)) as session:
        assert (await session.run("Hello")).status == "error"
        assert len(session.model.requests) == 2, "the second request has the stub"
        assert not [r for r in session.records if r["type"] == "removed"]
