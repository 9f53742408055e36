"""The events of a consumer: text is joined, other events are unchanged, and waiting progress is bounded."""

import gc
import weakref
from collections.abc import Iterable
from dataclasses import replace
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


async def waiting(feed: Feed) -> list[Event]:
    """Close a feed and return the events that wait."""
    feed.close()
    return await feed.batch()


def characters(events: Iterable[Event]) -> list[Any]:
    """Split the text of events into characters, and progress into rows. Joining does not change the result."""
    apart: list[Any] = []
    for event in events:
        if isinstance(event, TextDelta | ThinkingDelta | ToolProgress):
            of = (event.type, event.agent, event.iteration, getattr(event, "id", ""), getattr(event, "name", ""))
            pieces = event.text.split("\n") if isinstance(event, ToolProgress) else event.text
            apart += [(*of, piece) for piece in pieces if piece]
        else:
            apart.append(event)
    return apart


# ---------------------------------------------------------------------------------------------------------- joining


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        (text("a"), text("b"), "abc"),
        (ThinkingDelta(text="a"), ThinkingDelta(text="b"), "abc"),
        (progress("a"), progress("b"), "a\nb\nc"),
    ],
)
async def test_waiting_pieces_of_a_text_are_joined(one: Any, other: Any, together: str) -> None:
    (joined,) = await waiting(feed_of(one, other, replace(one, text="c")))

    assert joined == replace(one, text=together)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (text("a"), text("b", agent="explore")),
        (text("a"), text("b", iteration=2)),
        (text("a"), ThinkingDelta(text="b", iteration=1)),
        (progress("a"), progress("b", id="t2")),
        (text("a"), progress("b")),
        (Notice(message="a"), Notice(message="a")),
        (Reply(text="a", tool_calls=0), text("a")),
    ],
)
async def test_other_pieces_stay_separate(one: Event, other: Event) -> None:
    assert await waiting(feed_of(one, other)) == [one, other]


async def test_thinking_between_two_texts_stays_there() -> None:
    pieces = [text("a"), ThinkingDelta(text="b", iteration=1), text("c")]
    assert await waiting(feed_of(*pieces)) == pieces


pieces = st.text("abc", max_size=3)
some_agent = st.sampled_from(["main", "explore"])
some_events = st.one_of(
    st.builds(TextDelta, text=pieces, agent=some_agent, iteration=st.integers(1, 2)),
    st.builds(ThinkingDelta, text=pieces, agent=some_agent),
    st.builds(ToolProgress, id=st.sampled_from(["t1", "t2"]), name=st.just("shell"), text=pieces),
    st.builds(Notice, message=pieces),
    st.builds(Reply, text=pieces, tool_calls=st.integers(0, 1)),
)
some_steps = st.one_of(some_events, some_events, st.just("take"))
# The length is drawn first, since lists of no fixed length are mostly short ones.
stories = st.integers(0, 40).flatmap(lambda n: st.lists(some_steps, min_size=n, max_size=n))


@given(stories)
def test_no_event_is_lost_added_or_reordered(steps: list[Any]) -> None:
    async def main() -> list[Event]:
        feed, got, waits = Feed(), list[Event](), 0
        for step in steps:
            if step != "take":
                feed.put(step)
                waits += 1
            elif waits:
                got += await feed.batch()
                waits = 0
        return got + await waiting(feed)

    got = trio.run(main)

    given_events = [e for e in steps if e != "take"]
    # Pieces of two tools or agents may change places; the order within each stays.
    assert sorted(map(repr, characters(got))) == sorted(map(repr, characters(given_events)))
    assert [e for e in characters(got) if not isinstance(e, tuple)] == [
        e for e in given_events if isinstance(e, Notice | Reply)
    ]
    for kind in {e[:-1] for e in characters(given_events) if isinstance(e, tuple)}:
        assert [e for e in characters(got) if not isinstance(e, tuple) or e[:-1] == kind] == [
            e for e in characters(given_events) if not isinstance(e, tuple) or e[:-1] == kind
        ]


# ------------------------------------------------------------------------------------------------------- the bound


def progress_of(events: Iterable[Event]) -> str:
    return "".join(e.text for e in events if isinstance(e, ToolProgress))


@pytest.mark.parametrize(
    "pieces",
    [
        [f"{n:063}" for n in range(MAX_WAITING_PROGRESS // 16)],
        *([letter * MAX_WAITING_PROGRESS for letter in "abcd"[:n]] for n in range(2, 5)),
        ["a" * 3 * MAX_WAITING_PROGRESS + "end"],
        ["x" * (MAX_WAITING_PROGRESS - 2), "y"],
    ],
    ids=["many rows", "two", "three", "four", "one too long", "all fit"],
)
async def test_the_latest_progress_of_a_tool_is_kept(pieces: list[str]) -> None:
    everything = "\n".join(pieces)
    shown = progress_of(await waiting(feed_of(*map(progress, pieces))))
    assert everything.endswith(shown)
    assert min(len(everything), MAX_WAITING_PROGRESS) <= len(shown) <= 2 * MAX_WAITING_PROGRESS


async def test_progress_of_alternating_tools_is_bounded() -> None:
    piece = "x" * (MAX_WAITING_PROGRESS // 8)
    events = await waiting(feed_of(*(progress(piece, id=f"t{n % 2}") for n in range(100))))
    assert len(progress_of(events)) <= 4 * MAX_WAITING_PROGRESS


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
    gone = [weakref.ref(feed) for feed in feeds]
    kept = audience.feed(Notice(message="first"))
    feeds[0].close()
    feeds.clear()
    gc.collect()
    audience.emit(Notice(message="second"))
    assert [ref() for ref in gone] == [None] * 3
    assert [getattr(event, "message", None) for event in kept.take()] == ["first", "second"]
