"""``chain send`` and ``chain watch`` at a side door in this process: what they print, and their exit codes."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import trio
from support import Session
from support.doors import Entrance, open_door
from support.gates import Gates, begin, finish
from support.renderers import at_a_terminal
from trio.testing import wait_all_tasks_blocked

from chain import events
from chain.errors import UserError
from cli.door import sockets
from cli.door.client import DoorClient
from cli.main import main
from cli.subcommands.send import send
from cli.subcommands.watch import watch

ID = "20261123-1200-abcd"


def connected(path: Path) -> DoorClient:
    client = DoorClient(path)
    client.read_greeting()
    return client


async def sent(door: Entrance, line: str, *, wait: bool = False) -> tuple[int, str]:
    """Return the exit code of ``chain send``, and what it prints."""
    said: list[str] = []
    with await trio.to_thread.run_sync(connected, door.path) as client:
        code, problem = await trio.to_thread.run_sync(partial(send, client, line, wait=wait, say=said.append))
    return code, "".join([*said, problem])


async def test_send_prints_the_answer(session: Session, gates: Gates, door: Entrance) -> None:
    assert await sent(door, "status") == (0, "nothing is running; 0 lines wait; plan 0/0; 0 tokens used")
    assert await sent(door, "todo: add x", wait=True) == (0, "task 1 added: x")
    assert await sent(door, "stop") == (0, "Nothing is running.")
    assert await sent(door, "hello", wait=True) == (0, "L3 has started a run.")
    await finish(session, gates)


async def test_send_ends_when_its_line_is_stored(running: Session, gates: Gates, door: Entrance) -> None:
    assert await sent(door, "use the other file") == (0, "L2 waits for main.")
    assert await sent(door, "stop") == (0, "L3 was carried out.")
    await finish(running, gates)


@pytest.mark.parametrize("use", [{"inbox_size": 1}], indirect=True, ids=[""])
async def test_send_fails_if_the_queue_is_full(session: Session, gates: Gates, door: Entrance) -> None:
    await begin(session, gates, "a", "use A")
    code, problem = await sent(door, "use B")
    assert (code, "Interruption channel full" in problem) == (1, True)
    await finish(session, gates)


@pytest.mark.parametrize(
    ("then", "code", "said"),
    [
        ("", 0, "L2 was delivered: main, iteration 1"),
        ("stop", 3, "the line was returned"),
        ("drop", 3, "the line was dropped"),
    ],
)
async def test_send_waits_for_the_end_of_its_line(
    then: str, code: int, said: str, running: Session, gates: Gates, door: Entrance
) -> None:
    queued = trio.Event()
    running.chain.listen(lambda event: queued.set() if isinstance(event, events.LineQueued) else None)
    found: list[tuple[int, str]] = []

    async def wait() -> None:
        found.append(await sent(door, "use B", wait=True))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await queued.wait()
        assert not found
        if then == "drop":
            running.chain.lines.drop("L2")
        elif then:
            running.chain.submit(then)
        await finish(running, gates)
    assert [(code, text.startswith(said)) for code, text in found] == [(code, True)], found


async def watched(door: Entrance, write: Callable[[str], object], *, in_json: bool = False) -> None:
    renderer = None if in_json else at_a_terminal(color=False, ascii=False)
    with await trio.to_thread.run_sync(connected, door.path) as client:
        await trio.to_thread.run_sync(watch, client, renderer, write)


async def test_watch_shows_a_run_to_its_end(session: Session, gates: Gates, tmp_path: Path) -> None:
    shown, raw = list[str](), list[str]()
    await begin(session, gates, "a", "use B")
    async with trio.open_nursery() as nursery, open_door(session, tmp_path) as door:
        nursery.start_soon(watched, door, shown.append)
        nursery.start_soon(partial(watched, door, raw.append, in_json=True))
        while not (len(shown) > 2 and len(raw) > 2):
            await wait_all_tasks_blocked(0.005)
        assert [json.loads(row)["type"] for row in raw] == ["init", "run_started", "line_queued"]
        await finish(session, gates)
    text = "".join(shown)
    assert text.startswith(f"Watching {session.chain.session_id}")
    for part in ("use B", "✓ Message injected", "✓ done"):
        assert part in text
    types = [json.loads(row)["type"] for row in raw]
    assert (types.count("result"), types.count("user_interruption"), types[-1]) == (1, 1, "result")


@pytest.fixture
def killed(tmp_path: Path) -> DoorClient:
    """Return a client of a chain that was killed after it sent its ``init``."""
    listening, path = sockets.listen(tmp_path, {}, ID)
    client = DoorClient(path)
    peer, _ = listening.accept()
    peer.sendall(json.dumps({"type": "init", "session": ID, "workspace": str(tmp_path), "model": "m"}).encode() + b"\n")
    client.read_greeting()
    listening.close()
    peer.shutdown(socket.SHUT_RDWR)
    peer.close()
    return client


def test_a_killed_chain_fails_both(killed: DoorClient) -> None:
    with killed:
        with pytest.raises(UserError, match=f"the chain was killed; resume its session with: chain -r {ID}"):
            watch(killed, None, [].append)
        code, problem = send(killed, "use B", wait=True, say=[].append)
    assert (code, "the chain ended before" in problem) == (1, True)


@pytest.mark.parametrize("words", [["send"], ["send", "  "], ["--wait", "hello"], ["watch", "--output-format", "json"]])
def test_wrong_usage_is_one_sentence(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    out, err = capfd.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
