"""A queue of rows for a peer that may be slow."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from cli.outbox import Outbox


class Peer:
    """Receives rows while its gate is open."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.gate = trio.Event()
        self.outbox = Outbox(self.write)

    async def write(self, rows: bytes) -> None:
        await self.gate.wait()
        self.writes.append(rows)


@pytest.fixture
def peer() -> Peer:
    return Peer()


async def test_waiting_rows_are_written_together(peer: Peer, nursery: trio.Nursery) -> None:
    nursery.start_soon(peer.outbox.run)
    peer.outbox.put(b"1\n")
    await wait_all_tasks_blocked()
    peer.outbox.put(b"two\n")
    peer.outbox.put(b"3\n")
    assert (len(peer.outbox), peer.outbox.excess) == (2, 2)
    peer.gate.set()
    await peer.outbox.wait_empty()
    assert (peer.writes, peer.outbox.excess) == ([b"1\n", b"two\n3\n"], 0)


async def test_a_sender_waits_until_there_is_room(peer: Peer, nursery: trio.Nursery) -> None:
    peer.outbox.put(b"1\n")
    peer.outbox.put(b"2\n")
    has_room = trio.Event()

    async def send() -> None:
        await peer.outbox.wait_for_room(2)
        has_room.set()

    nursery.start_soon(send)
    await wait_all_tasks_blocked()
    assert not has_room.is_set()
    peer.outbox.close()
    await has_room.wait()
    await peer.outbox.wait_empty()
    peer.outbox.put(b"3\n")
    assert (len(peer.outbox), peer.outbox.excess) == (0, 0)
