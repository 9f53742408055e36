"""Content that a service rejects is replaced by stubs once a request without it succeeds, also after resuming."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from double import check_messages
from support import Session, check_invariants, open_session, settings
from support.crashes import load_crashed, reopened
from support.replays import check_replays
from trio.testing import MockClock

from chain import events
from chain.agent import refusals
from chain.agent.refusals import OVER_LIMIT, apply_removal, removal_of_excess_images
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
ASKS = "The conversation is about to be shortened"


def error(why: str, *what: str, fails: bool = False) -> ModelError:
    """A refusal of ``what``. If it ``fails``, the service reports a failure of its own."""
    refusal = ModelError(why, retryable=fails, cause=why if fails else "")
    refusal.refused = what
    return refusal


def images(request: Request) -> list[str]:
    return [image.name for message in request.messages for image in message.images]


@tool(read_only=True)
async def look(ctx: ToolContext, at: str) -> ToolOutput:
    """Look at something."""
    content = PNG + at.encode()
    found = Image("image/png", digest_of(Text(at)), at, b64encode(content).decode(), len(content))
    return ToolOutput(f"seen {at}", (found,))


@dataclass
class Picky(Model):
    """A model that refuses some requests. It answers the others, with the calls that a query names first."""

    refuses: Callable[[Request], ModelError | None]
    answer: str = "Fine."
    name: str = "picky"
    calls: int = 0

    async def reply(self, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        if (refusal := self.refuses(request)) is not None:
            raise refusal
        usage = Usage(sum(map(length_of, request.messages)) // 4, 5)
        said = request.messages[-1].text
        if said.startswith("call "):
            self.calls += 1
            call = ToolCall(f"t{self.calls}", "look", {"at": said.removeprefix("call ")})
            return Reply(assistant([Thinking("Hm.", "signed"), call]), "tool_use", usage)
        text = "Short." if said.startswith(ASKS) else self.answer
        return Reply(assistant([Thinking("Hm.", "signed"), Text(text)]), "end_turn", usage)


@pytest.fixture
def workspace() -> Path:
    """The folder in which the sessions of these tests work, with four pictures."""
    folder = settings().file
    assert folder is not None
    for n in range(4):
        (folder.parent / f"{n}.png").write_bytes(PNG + str(n).encode())
    return folder.parent


def notices(session: Session) -> list[str]:
    return [notice.message for notice in session.of(events.Notice)]


async def check_restored(session: Session) -> None:
    """Check that the conversation is valid and the same after resuming."""
    check_invariants(session)
    live = session.chain.runs.tree.main.agent.conversation.messages
    restored = load_crashed(session.file.data)[1].state
    assert restored.main.history.conversation.messages == live
    assert check_messages([to_json(m) for m in [*live, user_text("Next")]]) is None
    assert restored.refused_tools == session.chain._shared.refused_tools


# ------------------------------------------------------------------------------------------------------------- images


def refuses_all(request: Request) -> ModelError | None:
    return error("no images, please", "images") if images(request) else None


def fails_with_images(request: Request) -> ModelError | None:
    return error("failed with 500", "images", fails=True) if images(request) else None


def refuses_newest(request: Request) -> ModelError | None:
    return error("Could not process image", "images") if "1.png" in images(request) else None


def names_one(request: Request) -> ModelError | None:
    found = [i.digest for m in request.messages for i in m.images if i.name == "1.png"]
    return error("image exceeds 5 MB", "content", *found) if found else None


def takes(most: int) -> Callable[[Request], ModelError | None]:
    return lambda request: error("too many images", "oldest images") if len(images(request)) > most else None


@pytest.mark.parametrize(
    ("refuses", "queries", "sent"),
    [
        (refuses_all, ["See @0.png and @1.png"], []),
        (fails_with_images, ["See @0.png and @1.png"], []),
        (refuses_newest, ["See @0.png", "See @1.png"], ["0.png"]),
        (names_one, ["See @0.png, @1.png and @2.png"], ["0.png", "2.png"]),
        (takes(0), ["See @0.png and @1.png", "See @2.png and @3.png"], []),
        (takes(1), ["See @0.png and @1.png", "See @2.png and @3.png"], ["3.png"]),
        (takes(3), ["See @0.png and @1.png", "See @2.png and @3.png"], ["1.png", "2.png", "3.png"]),
    ],
    ids=["all", "failure", "newest", "named", "none fits", "one fits", "three fit"],
)
async def test_refused_images_are_not_sent_again(
    refuses: Callable[[Request], ModelError | None],
    queries: list[str],
    sent: list[str],
    workspace: Path,
    autojump_clock: MockClock,
) -> None:
    async with open_session(Picky(refuses)) as session:
        for query in queries:
            assert (await session.run(query)).status == "done"
        assert images(session.model.requests[-1]) == sent
        assert all(notice.startswith("No longer sent: ") for notice in notices(session))
        before = len(session.model.requests)
        assert (await session.run("And now?")).status == "done"
        assert len(session.model.requests) == before + 1
        [query, *_] = [r for r in session.records if r["type"] == "message"]
        assert any(b["type"] == "image" for b in query["message"]["content"]), "the journal has the original"
        await check_restored(session)
    check_replays(session)


@pytest.mark.parametrize("fails", [False, True])
async def test_other_refusals_remove_no_image(fails: bool, workspace: Path, autojump_clock: MockClock) -> None:
    is_down = True
    down = lambda r: error("no credit", *(["images"] if images(r) else []), fails=fails) if is_down else None  # noqa: E731
    async with open_session(Picky(down)) as session:
        assert (await session.run("See @0.png")).status == "error"
        is_down = False
        await session.run("And now?")
        assert images(session.model.requests[-1]) == ["0.png"]
        assert notices(session) == []


async def test_a_temporary_failure_removes_no_image(workspace: Path, autojump_clock: MockClock) -> None:
    failures = [error("failed with 500", "images", fails=True)]
    async with open_session(Picky(lambda r: failures.pop() if failures else None)) as session:
        await session.run("See @0.png")
        assert [images(r) for r in session.model.requests] == [["0.png"]] * 2


async def test_images_over_the_limit_are_removed_first(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "MAX_REQUEST_IMAGE_BYTES", 20)
    async with open_session(Picky(lambda r: None)) as session:
        await session.run("See @0.png and @1.png")
        await session.run("See @2.png")
        assert [images(r) for r in session.model.requests] == [["0.png", "1.png"], ["1.png", "2.png"]]
        assert notices(session) == [f"No longer sent: 0.png ({OVER_LIMIT})."]
        await check_restored(session)
    check_replays(session)


def test_a_repeated_image_is_removed_once() -> None:
    one = Image("image/png", "d", "d.png", "AAAA", 9_000_000)
    messages = [Message("user", (Text("see"), one))] * 3
    (removed,) = removal_of_excess_images("main", 1, messages, 27_000_000)
    assert removed.digests == ("d",)
    assert [len(m.images) for m in apply_removal(messages, removed)] == [0, 1, 1]


async def test_a_summary_is_requested_without_images(workspace: Path) -> None:
    blind = lambda r: error("no", "images") if images(r) and r.messages[-1].text.startswith(ASKS) else None  # noqa: E731
    async with open_session(Picky(blind, "Fine. " * 500), tools=[look]) as session:
        for query in ("See @0.png", "call x.png", "Well?"):
            await session.run(query)
        session.chain.runs.compact("")
        await session.chain.wait_idle()
        assert [c.state for c in session.of(events.Compaction)] == ["started", "ended"]
        (compacted,) = [r for r in session.records if r["type"] == "compacted"]
        assert "images" not in compacted
        await session.run("And now?")
        live = session.chain.runs.tree.main.agent.conversation.messages
        assert load_crashed(session.file.data)[1].state.main.history.conversation.messages == live


# ---------------------------------------------------------------------------------------------- thinking, tools, texts


async def test_refused_thinking_is_not_sent_again() -> None:
    old = lambda r: error("Invalid signature", "thinking") if thoughts(r) == 2 else None  # noqa: E731
    async with open_session(Picky(old)) as session:
        for query in ("One.", "Two.", "Three.", "Four."):
            assert (await session.run(query)).status == "done"
        assert [thoughts(r) for r in session.model.requests] == [0, 1, 2, 0, 1]
        assert notices(session) == [f"No longer sent: the thinking of earlier replies ({REFUSED})."]
        await check_restored(session)
    check_replays(session)


def test_a_reply_of_thinking_alone_becomes_a_stub() -> None:
    messages = [user_text("Hello"), assistant([Thinking("Hm.", "signed")]), user_text("Go on")]
    (_, reply, _) = apply_removal(messages, Removed("main", 1, "thinking"))
    assert reply.blocks == (Text(f"[thinking removed: {REFUSED}]"),)


def thoughts(request: Request) -> int:
    return sum(isinstance(block, Thinking) for message in request.messages for block in message.blocks)


async def test_a_refused_tool_is_left_out() -> None:
    def bad(request: Request) -> ModelError | None:
        return error("tools.0: bad schema", "tools", "look") if any(t.name == "look" for t in request.tools) else None

    async with open_session(Picky(bad), tools=[look]) as session:
        await session.run("Hello")
        await session.run("Again")
        assert [any(t.name == "look" for t in r.tools) for r in session.model.requests] == [True, False, False]
        assert notices(session) == [f"No longer sent: look ({REFUSED})."]
    check_replays(session)
    async with reopened(session.file.data, Picky(bad), tools=[look]) as resumed:
        await resumed.run("And now?")
        assert len(resumed.model.requests) == 1


async def test_a_refused_unknown_tool_ends_the_run() -> None:
    async with open_session(Picky(lambda r: error("no", "tools", "nothing"))) as session:
        assert (await session.run("Hello")).status == "error"
        assert len(session.model.requests) == 2


RESULT = ToolResult("t1", "seen", True, (Image("image/png", "d1", "one.png"), Image("image/png", "d2", "two.png")))
CALL = ToolCall("t1", "look", {"at": 1})


@pytest.mark.parametrize(
    ("block", "digest", "stub"),
    [
        (RESULT.images[0], "d1", Text("[image one.png removed: no]")),
        (Text("secret"), digest_of(Text("secret")), Text("[text removed: no]")),
        (RESULT, digest_of(RESULT), ToolResult("t1", "[result removed: no]", True)),
        (RESULT, "d2", replace(RESULT, text="seen\n[image two.png removed: no]", images=RESULT.images[:1])),
        (CALL, digest_of(CALL), ToolCall("t1", "look", {})),
    ],
    ids=["image", "text", "result", "image of a result", "call"],
)
def test_removed_content_becomes_a_stub(block: Block, digest: str, stub: Block) -> None:
    messages = [user_text("before"), Message("user", (block,)), user_text("after")]
    removed = Removed("main", 1, "content", (digest,), why="no")
    changed = apply_removal(messages, removed)
    assert [m.blocks for m in changed] == [messages[0].blocks, (stub,), messages[2].blocks]
    assert changed[0] is messages[0]
    assert changed[2] is not messages[2]
    assert apply_removal(changed, removed) is changed


async def test_a_named_result_stays_removed() -> None:
    def bad(request: Request) -> ModelError | None:
        found = [digest_of(r) for m in request.messages for r in m.results if r.text == "seen it"]
        return error("blocked", "content", *found) if found else None

    async with open_session(Picky(bad), tools=[look]) as session:
        assert (await session.run("call it")).status == "done"
        live = session.chain.runs.tree.main.agent.conversation.messages
        assert live[2].blocks == (ToolResult("t1", f"[result removed: {REFUSED}]"),)
        assert load_crashed(session.file.data)[1].state.main.history.conversation.messages == live


async def test_a_refusal_of_a_stub_ends_the_run() -> None:
    bad = lambda r: error("blocked", "content", digest_of(r.messages[0].blocks[0]))  # noqa: E731
    async with open_session(Picky(bad)) as session:
        assert (await session.run("Hello")).status == "error"
        assert len(session.model.requests) == 2
        assert not [r for r in session.records if r["type"] == "removed"]
