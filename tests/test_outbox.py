"""A queue of rows for a peer that may be slow."""

import trio
from trio.testing import wait_all_tasks_blocked

from cli.outbox import Outbox


class Peer:
    """Receives rows while its gate is open."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.gate = trio.Event()

    async def write(self, rows: bytes) -> None:
        await self.gate.wait()
        self.writes.append(rows)


async def test_rows_are_written_in_order_and_those_that_wait_at_once() -> None:
    peer = Peer()
    outbox = Outbox(peer.write)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outbox.run)
        outbox.put(b"1\n")
        await wait_all_tasks_blocked()
        outbox.put(b"two\n")
        outbox.put(b"3\n")
        assert (len(outbox), outbox.excess) == (2, 2)
        peer.gate.set()
        await outbox.wait_empty()
        assert (peer.writes, outbox.excess) == ([b"1\n", b"two\n3\n"], 0)
        nursery.cancel_scope.cancel()


async def test_a_sender_waits_for_room_and_an_outbox_that_is_closed_has_room() -> None:
    peer = Peer()
    outbox = Outbox(peer.write)
    has_room = trio.Event()

    async def send() -> None:
        await outbox.wait_for_room(2)
        has_room.set()

    outbox.put(b"1\n")
    outbox.put(b"2\n")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await wait_all_tasks_blocked()
        assert not has_room.is_set()
        outbox.close()
        await has_room.wait()
        await outbox.wait_empty()
    outbox.put(b"3\n")
    assert (len(outbox), outbox.excess) == (0, 0)
