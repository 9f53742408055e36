"""Events on their way to a consumer: joined where text runs, else exactly as they came, and never without bound."""

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
    """What waits in a feed, which is closed for it."""
    feed.close()
    return await feed.batch()


def characters(events: Iterable[Event]) -> list[Any]:
    """The events with every running text taken apart: joining leaves this as it is, and nothing else does.

    The rows of a tool are taken apart at their ends, which joining puts between them.
    """
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
async def test_pieces_that_continue_each_other_are_joined_while_they_wait(one: Any, other: Any, together: str) -> None:
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
async def test_what_does_not_belong_together_stays_apart(one: Event, other: Event) -> None:
    assert await waiting(feed_of(one, other)) == [one, other]


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
def test_nothing_is_lost_added_or_reordered_whenever_the_consumer_comes(steps: list[Any]) -> None:
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
    # Pieces of two tools, or of two agents, may be joined past each other; within each of them the order stands.
    assert sorted(map(repr, characters(got))) == sorted(map(repr, characters(given_events)))
    assert [e for e in characters(got) if not isinstance(e, tuple)] == [
        e for e in given_events if isinstance(e, Notice | Reply)
    ]
    for kind in {e[:-1] for e in characters(given_events) if isinstance(e, tuple)}:
        assert [e for e in characters(got) if not isinstance(e, tuple) or e[:-1] == kind] == [
            e for e in characters(given_events) if not isinstance(e, tuple) or e[:-1] == kind
        ]


# ------------------------------------------------------------------------------------------------------- the bound


def kept(events: Iterable[Event]) -> str:
    return "".join(e.text for e in events if isinstance(e, ToolProgress))


async def test_of_a_tool_that_says_too_much_the_last_of_it_is_kept() -> None:
    rows = [f"{n:063}\n" for n in range(MAX_WAITING_PROGRESS // 16)]

    shown = kept(await waiting(feed_of(*(progress(row) for row in rows))))

    assert MAX_WAITING_PROGRESS <= len(shown) <= 2 * MAX_WAITING_PROGRESS
    assert "".join(rows).endswith(shown)


@pytest.mark.parametrize("more", range(1, 4))
async def test_the_last_words_of_a_tool_are_kept_whenever_the_consumer_comes(more: int) -> None:
    """Also in the very moment in which the beginning was let go."""
    said = [letter * MAX_WAITING_PROGRESS for letter in "abcd"[: more + 1]]

    shown = kept(await waiting(feed_of(*(progress(piece) for piece in said))))

    assert "\n".join(said).endswith(shown)
    assert len(shown) >= MAX_WAITING_PROGRESS


async def test_one_piece_that_is_too_long_is_cut_as_well() -> None:
    shown = kept(await waiting(feed_of(progress("a" * 3 * MAX_WAITING_PROGRESS + "end"))))

    assert len(shown) <= 2 * MAX_WAITING_PROGRESS
    assert shown.endswith("end")


async def test_progress_that_fits_is_kept_whole() -> None:
    said = "x" * (MAX_WAITING_PROGRESS - 2)

    assert kept(await waiting(feed_of(progress(said), progress("y")))) == said + "\ny"


async def test_two_tools_that_talk_in_turn_do_not_make_the_feed_grow_without_bound() -> None:
    piece = "x" * (MAX_WAITING_PROGRESS // 8)

    events = await waiting(feed_of(*(progress(piece, id=f"t{n % 2}") for n in range(100))))

    assert len(kept(events)) <= 4 * MAX_WAITING_PROGRESS


async def test_a_reply_is_kept_whole_however_long_it_is() -> None:
    events = await waiting(feed_of(*(text("x" * MAX_WAITING_PROGRESS) for _ in range(4))))

    assert [len(e.text) for e in events if isinstance(e, TextDelta)] == [4 * MAX_WAITING_PROGRESS]


# -------------------------------------------------------------------------------------------- the consumer, the end


async def test_a_consumer_who_waits_gets_the_next_event(nursery: trio.Nursery) -> None:
    feed, got = Feed(), list[list[Event]]()
    first, second, third = Notice(message="1"), Notice(message="2"), Notice(message="3")

    async def consume() -> None:
        while batch := await feed.batch():
            got.append(batch)

    nursery.start_soon(consume)
    await wait_all_tasks_blocked()
    assert got == []

    feed.put(first)
    await wait_all_tasks_blocked()
    feed.put(second)
    feed.put(third)
    await wait_all_tasks_blocked()
    assert got == [[first], [second, third]]


async def test_a_consumer_who_gave_up_waiting_loses_nothing() -> None:
    feed, event = Feed(), Notice(message="1")
    with trio.CancelScope() as scope:
        scope.cancel()
        await feed.batch()
    assert scope.cancelled_caught

    feed.put(event)

    assert await feed.batch() == [event]


async def test_a_closed_feed_gives_what_it_has_and_then_ends() -> None:
    event = Notice(message="1")
    feed = feed_of(event)

    feed.close()
    feed.put(Notice(message="too late"))

    assert await feed.batch() == [event]
    assert await feed.batch() == []
    assert await feed.batch() == []


async def test_closing_ends_the_wait_of_a_consumer(autojump_clock: trio.abc.Clock, nursery: trio.Nursery) -> None:
    feed, got = Feed(), list[list[Event]]()

    async def consume() -> None:
        got.append(await feed.batch())

    nursery.start_soon(consume)
    await wait_all_tasks_blocked()
    feed.close()
    await wait_all_tasks_blocked()

    assert got == [[]]


async def test_a_dead_consumer_stops_nobody() -> None:
    dead, alive, got = Feed(), Feed(), list[Event]()

    for n in range(1000):
        for feed in (dead, alive):
            feed.put(text(f"{n} "))
        got += await alive.batch()

    assert [e.text for e in got if isinstance(e, TextDelta)] == [f"{n} " for n in range(1000)]
    (joined,) = await waiting(dead)
    assert isinstance(joined, TextDelta)
    assert joined.text == "".join(f"{n} " for n in range(1000))


async def test_a_feed_that_is_closed_or_held_by_nobody_is_let_go() -> None:
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
