"""A queue of rows for a peer that may be slow."""

from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from cli.outbox import Outbox


class Peer:
    """A peer with its outbox, which receives rows once ``reads`` is set."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self.reads = trio.Event()
        self.outbox = Outbox(self.receive)

    async def receive(self, rows: bytes) -> None:
        await self.reads.wait()
        self.received.append(rows)


@pytest.fixture
def peer() -> Peer:
    return Peer()


async def test_waiting_rows_are_written_together(peer: Peer, nursery: trio.Nursery) -> None:
    nursery.start_soon(peer.outbox.run)
    peer.outbox.put(b"1\n")
    await wait_all_tasks_blocked()
    peer.outbox.put(b"two\n")
    peer.outbox.put(b"three\n")
    assert (len(peer.outbox), peer.outbox.excess) == (2, len(b"three\n"))
    peer.reads.set()
    await peer.outbox.wait_empty()
    assert (peer.received, peer.outbox.excess) == ([b"1\n", b"two\nthree\n"], 0)


async def test_a_sender_waits_while_the_outbox_is_full(peer: Peer) -> None:
    peer.outbox.put(b"1\n")  # which nothing writes, since the outbox does not run
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(peer.outbox.wait_for_room, limit=1))
        await wait_all_tasks_blocked()
        assert nursery.child_tasks, "the sender still waits"
        peer.outbox.close()  # which drops the row


async def test_a_closed_outbox_has_no_rows(peer: Peer) -> None:
    peer.outbox.put(b"1\n")
    peer.outbox.close()
    await peer.outbox.wait_empty()
    peer.outbox.put(b"2\n")
    assert (len(peer.outbox), peer.outbox.excess) == (0, 0)
