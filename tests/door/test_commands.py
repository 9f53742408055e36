"""``chain send`` and ``chain watch`` at a side door in this process: what they print, and their exit codes."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import trio
from support.doors import OpenDoor, open_door
from support.gates import Gates, finish_run, start_run
from support.rows import terminal_renderer
from support.sessions import Session, call_at_event
from trio.testing import wait_all_tasks_blocked

from chain import events
from chain.errors import UserError
from cli.door import sockets
from cli.door.client import DoorClient
from cli.main import main
from cli.subcommands.send import send
from cli.subcommands.watch import watch

ID = "20261123-1200-abcd"


def connect(path: Path) -> DoorClient:
    """Return a client of a door that has received the first row."""
    client = DoorClient(path)
    client.read_greeting()
    return client


async def send_line(door: OpenDoor, line: str, *, wait: bool = False) -> tuple[int, str]:
    """Run ``chain send``. Return its exit code and its output."""
    output: list[str] = []
    with await trio.to_thread.run_sync(connect, door.path) as client:
        code, problem = await trio.to_thread.run_sync(partial(send, client, line, wait=wait, say=output.append))
    return code, "".join([*output, problem])


async def test_send_prints_the_answer(session: Session, gates: Gates, door: OpenDoor) -> None:
    assert await send_line(door, "status") == (0, "nothing is running; 0 lines wait; plan 0/0; 0 tokens used")
    assert await send_line(door, "todo: add x", wait=True) == (0, "task 1 added: x")
    assert await send_line(door, "stop") == (0, "Nothing is running.")
    assert await send_line(door, "hello", wait=True) == (0, "L3 has started a run.")
    await finish_run(session, gates)


async def test_send_ends_when_its_line_is_stored(running: Session, gates: Gates, door: OpenDoor) -> None:
    assert await send_line(door, "use the other file") == (0, "L2 waits for main.")
    assert await send_line(door, "stop") == (0, "L3 was carried out.")
    await finish_run(running, gates)


@pytest.mark.parametrize("options", [{"inbox_size": 1}], indirect=True, ids=["room for 1"])
async def test_send_fails_if_the_queue_is_full(session: Session, gates: Gates, door: OpenDoor) -> None:
    await start_run(session, gates, "a", "use A")
    code, problem = await send_line(door, "use B")
    assert (code, "Interruption channel full" in problem) == (1, True)
    await finish_run(session, gates)


@pytest.mark.parametrize(
    ("action", "code", "output"),
    [
        ("deliver", 0, "L2 was delivered: main, iteration 1"),
        ("stop", 3, "the line was returned"),
        ("drop", 3, "the line was dropped"),
    ],
)
async def test_send_waits_for_the_end_of_its_line(
    action: str, code: int, output: str, running: Session, gates: Gates, door: OpenDoor
) -> None:
    is_queued = trio.Event()
    call_at_event(running, events.LineQueued, is_queued.set)
    results: list[tuple[int, str]] = []

    async def send_and_wait() -> None:
        results.append(await send_line(door, "use B", wait=True))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send_and_wait)
        await is_queued.wait()
        assert not results
        if action == "drop":
            running.chain.lines.drop("L2")
        elif action == "stop":
            running.chain.submit("stop")
        await finish_run(running, gates)
    [(actual_code, actual_output)] = results
    assert actual_code == code
    assert actual_output.startswith(output)


async def run_watch(door: OpenDoor, write: Callable[[str], object], *, in_json: bool = False) -> None:
    """Run ``chain watch`` until the door closes."""
    renderer = None if in_json else terminal_renderer(color=False, ascii=False)
    with await trio.to_thread.run_sync(connect, door.path) as client:
        await trio.to_thread.run_sync(watch, client, renderer, write)


async def test_watch_shows_a_run_to_its_end(session: Session, gates: Gates, tmp_path: Path) -> None:
    rows = list[str]()
    await start_run(session, gates, "a", "use B")
    async with trio.open_nursery() as nursery, open_door(session, tmp_path) as door:
        nursery.start_soon(run_watch, door, rows.append)
        while "use B" not in "".join(rows):
            await wait_all_tasks_blocked(0.005)  # the watcher prints in a thread
        await finish_run(session, gates)
    text = "".join(rows)
    assert text.startswith(f"Watching {session.chain.session_id}")
    assert "✓ Message injected" in text
    assert "✓ done" in text


async def test_watch_prints_events_as_json(session: Session, gates: Gates, tmp_path: Path) -> None:
    rows = list[str]()
    await start_run(session, gates, "a", "use B")
    async with trio.open_nursery() as nursery, open_door(session, tmp_path) as door:
        nursery.start_soon(partial(run_watch, door, rows.append, in_json=True))
        while len(rows) < 3:
            await wait_all_tasks_blocked(0.005)  # the watcher prints in a thread
        assert [json.loads(row)["type"] for row in rows] == ["init", "run_started", "line_queued"]
        await finish_run(session, gates)
    *others, last = [json.loads(row)["type"] for row in rows]
    assert (last, others.count("result"), others.count("user_interruption")) == ("result", 0, 1)


@pytest.fixture
def orphan(tmp_path: Path) -> DoorClient:
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


def test_watch_fails_if_the_chain_is_killed(orphan: DoorClient) -> None:
    with orphan, pytest.raises(UserError, match=f"the chain was killed; resume its session with: chain -r {ID}"):
        watch(orphan, None, [].append)


def test_send_fails_if_the_chain_is_killed(orphan: DoorClient) -> None:
    with orphan:
        code, problem = send(orphan, "use B", wait=True, say=[].append)
    assert (code, "the chain ended before" in problem) == (1, True)


@pytest.mark.parametrize(
    "words",
    [["send"], ["send", "  "], ["--wait", "hello"], ["watch", "--output-format", "json"]],
    ids=["no line", "blank line", "no command", "unknown option"],
)
def test_wrong_usage_is_one_sentence(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    out, err = capfd.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
