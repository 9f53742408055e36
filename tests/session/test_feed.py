"""The feed of a consumer joins pieces of text, keeps other events unchanged, and bounds waiting progress."""

import gc
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from chain.events import Event, Notice, Reply, TextDelta, ThinkingDelta, ToolProgress
from chain.session.feed import MAX_WAITING_PROGRESS, Broadcaster, Feed


def text(piece: str, *, agent: str = "main", iteration: int = 1) -> TextDelta:
    return TextDelta(text=piece, agent=agent, iteration=iteration)


def progress(piece: str, *, id: str = "t1") -> ToolProgress:
    return ToolProgress(id=id, name="shell", text=piece, iteration=1)


def feed_of(*events: Event) -> Feed:
    feed = Feed()
    for event in events:
        feed.put(event)
    return feed


async def close_and_drain(feed: Feed) -> list[Event]:
    """Close a feed and return the events that the consumer has not received."""
    feed.close()
    return await feed.batch()


@dataclass(frozen=True)
class Piece:
    """One character of a text, or one row of a tool's progress. ``source`` tells texts, agents and tools apart."""

    source: tuple[object, ...]
    text: str


def pieces_of(events: Iterable[Event]) -> list[Event | Piece]:
    """Split the text of events into the smallest pieces. Joining texts does not change the result."""
    pieces: list[Event | Piece] = []
    for event in events:
        if isinstance(event, TextDelta | ThinkingDelta | ToolProgress):
            source = (event.type, event.agent, event.iteration, getattr(event, "id", ""), getattr(event, "name", ""))
            parts = event.text.split("\n") if isinstance(event, ToolProgress) else event.text
            pieces += [Piece(source, part) for part in parts if part]
        else:
            pieces.append(event)
    return pieces


# ---------------------------------------------------------------------------------------------------------- joining


@pytest.mark.parametrize(
    ("event", "joined_text"),
    [
        pytest.param(text("a"), "abc", id="text"),
        pytest.param(ThinkingDelta(text="a"), "abc", id="thinking"),
        pytest.param(progress("a"), "a\nb\nc", id="progress"),
    ],
)
async def test_waiting_pieces_of_a_text_are_joined(event: Any, joined_text: str) -> None:
    (joined,) = await close_and_drain(feed_of(event, replace(event, text="b"), replace(event, text="c")))

    assert joined == replace(event, text=joined_text)


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([text("a"), text("b", agent="explore")], id="two agents"),
        pytest.param([text("a"), text("b", iteration=2)], id="two iterations"),
        pytest.param([text("a"), ThinkingDelta(text="b", iteration=1), text("c")], id="thinking between texts"),
        pytest.param([progress("a"), progress("b", id="t2")], id="two tools"),
        pytest.param([text("a"), progress("b")], id="text and progress"),
        pytest.param([Notice(message="a"), Notice(message="a")], id="equal notices"),
        pytest.param([Reply(text="a", tool_calls=0), text("a")], id="reply and text"),
    ],
)
async def test_other_events_stay_separate(events: list[Event]) -> None:
    assert await close_and_drain(feed_of(*events)) == events


BATCH = "the consumer receives a batch"

random_texts = st.text("abc", max_size=3)
agents = st.sampled_from(["main", "explore"])
random_events = st.one_of(
    st.builds(TextDelta, text=random_texts, agent=agents, iteration=st.integers(1, 2)),
    st.builds(ThinkingDelta, text=random_texts, agent=agents),
    st.builds(ToolProgress, id=st.sampled_from(["t1", "t2"]), name=st.just("shell"), text=random_texts),
    st.builds(Notice, message=random_texts),
    st.builds(Reply, text=random_texts, tool_calls=st.integers(0, 1)),
)
random_steps = st.one_of(random_events, random_events, st.just(BATCH))
# The length is drawn first, since lists of no fixed length are mostly short.
stories = st.integers(0, 40).flatmap(lambda n: st.lists(random_steps, min_size=n, max_size=n))


@given(stories)
def test_no_event_is_lost_added_or_reordered(steps: list[Any]) -> None:
    async def main() -> list[Event]:
        feed, received, waiting = Feed(), list[Event](), 0
        for step in steps:
            if step != BATCH:
                feed.put(step)
                waiting += 1
            elif waiting:
                received += await feed.batch()
                waiting = 0
        return received + await close_and_drain(feed)

    def order_seen_by(source: object, pieces: list[Event | Piece]) -> list[Event | Piece]:
        """Return the pieces of a source and the events between them."""
        return [each for each in pieces if not isinstance(each, Piece) or each.source == source]

    sent, received = pieces_of(step for step in steps if step != BATCH), pieces_of(trio.run(main))
    # Pieces of two tools or agents may change places; the order within each stays.
    assert sorted(map(repr, received)) == sorted(map(repr, sent))
    for source in {None, *(piece.source for piece in sent if isinstance(piece, Piece))}:
        assert order_seen_by(source, received) == order_seen_by(source, sent)


# ------------------------------------------------------------------------------------------------------- the bound


SHORT_ROWS = [f"{n:063}" for n in range(4 * MAX_WAITING_PROGRESS // 64)]
"""Rows of 64 characters each, with the line end by which rows are joined."""


def progress_text(events: Iterable[Event]) -> str:
    return "".join(e.text for e in events if isinstance(e, ToolProgress))


def longest_texts(letters: str) -> list[str]:
    """Return one text of the greatest length for each letter."""
    return [letter * MAX_WAITING_PROGRESS for letter in letters]


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param(SHORT_ROWS, id="four times as much in short rows"),
        pytest.param(longest_texts("ab"), id="two longest texts"),
        pytest.param(longest_texts("abc"), id="three longest texts"),
        pytest.param(longest_texts("abcd"), id="four longest texts"),
        pytest.param(["a" * 3 * MAX_WAITING_PROGRESS + "end"], id="one text that is too long"),
        pytest.param(["x" * (MAX_WAITING_PROGRESS - 2), "y"], id="all fits"),
    ],
)
async def test_the_latest_progress_of_a_tool_is_kept(pieces: list[str]) -> None:
    everything = "\n".join(pieces)
    kept = progress_text(await close_and_drain(feed_of(*map(progress, pieces))))
    assert everything.endswith(kept)
    assert min(len(everything), MAX_WAITING_PROGRESS) <= len(kept) <= 2 * MAX_WAITING_PROGRESS


async def test_progress_of_alternating_tools_is_bounded() -> None:
    piece, most_of_one_tool = "x" * (MAX_WAITING_PROGRESS // 8), 2 * MAX_WAITING_PROGRESS
    events = await close_and_drain(feed_of(*(progress(piece, id=f"t{n % 2}") for n in range(100))))
    assert len(progress_text(events)) <= 2 * most_of_one_tool


# -------------------------------------------------------------------------------------------- the consumer, the end


async def test_a_waiting_consumer_gets_batches_until_the_end(nursery: trio.Nursery) -> None:
    feed, batches = Feed(), list[list[Event]]()
    first, second, third = Notice(message="1"), Notice(message="2"), Notice(message="3")

    @nursery.start_soon
    async def consume() -> None:
        while batch := await feed.batch():
            batches.append(batch)

    await wait_all_tasks_blocked()
    feed.put(first)
    await wait_all_tasks_blocked()
    feed.put(second)
    feed.put(third)
    await wait_all_tasks_blocked()
    assert batches == [[first], [second, third]]
    feed.close()
    await wait_all_tasks_blocked()
    assert not nursery.child_tasks


async def test_a_cancelled_wait_loses_nothing() -> None:
    feed, event = Feed(), Notice(message="1")
    with trio.CancelScope() as scope:
        scope.cancel()
        await feed.batch()
    assert scope.cancelled_caught
    feed.put(event)
    feed.close()
    feed.put(Notice(message="too late"))
    assert [await feed.batch() for _ in range(3)] == [[event], [], []]


async def test_an_unused_feed_is_freed() -> None:
    audience = Broadcaster()
    feeds = [audience.feed(Notice(message="first")) for _ in range(3)]
    references = [weakref.ref(feed) for feed in feeds]
    kept = audience.feed(Notice(message="first"))
    feeds[0].close()
    feeds.clear()
    gc.collect()
    audience.emit(Notice(message="second"))
    assert [reference() for reference in references] == [None] * 3
    assert [getattr(event, "message", None) for event in kept.take()] == ["first", "second"]
