"""``chain send`` and ``chain watch`` at the side door of a session in this process: what they say, and exit codes."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import trio
from support import open_session, settings
from support.doors import open_door
from support.gates import THREE_TOOLS, Gates, begin, finish
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


async def sent(path: Path, line: str, *, wait: bool = False) -> tuple[int, str]:
    """The exit code of ``chain send``, and what it says or what its problem is."""
    said: list[str] = []
    with await trio.to_thread.run_sync(connected, path) as client:
        code, problem = await trio.to_thread.run_sync(partial(send, client, line, wait=wait, say=said.append))
    return code, "".join([*said, problem])


async def test_what_needs_no_run_is_answered(tmp_path: Path) -> None:
    async with open_session("rules: [{text: The answer.}]") as session, open_door(session, tmp_path) as door:
        assert await sent(door.path, "status") == (0, "nothing is running; 0 lines wait; plan 0/0; 0 tokens used")
        assert await sent(door.path, "todo: add x", wait=True) == (0, "task 1 added: x")
        assert await sent(door.path, "stop") == (0, "Nothing is running.")
        assert await sent(door.path, "hello", wait=True) == (0, "L3 has started a run.")
        await session.chain.wait_idle()


async def test_without_waiting_it_ends_when_the_line_is_safe(tmp_path: Path) -> None:
    gates = Gates()
    async with open_session(THREE_TOOLS, tools=gates.tools) as session, open_door(session, tmp_path) as door:
        await begin(session, gates, "a")
        assert await sent(door.path, "use the other file") == (0, "L2 waits for main.")
        assert await sent(door.path, "stop") == (0, "L3 was carried out.")
        await finish(session, gates)


async def test_a_line_without_room_is_a_failure(tmp_path: Path) -> None:
    gates = Gates()
    use = settings(inbox_size=1)
    async with open_session(THREE_TOOLS, tools=gates.tools, use=use) as session, open_door(session, tmp_path) as door:
        await begin(session, gates, "a", "use A")
        code, problem = await sent(door.path, "use B")
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
async def test_it_waits_and_says_what_became_of_the_line(then: str, code: int, said: str, tmp_path: Path) -> None:
    gates = Gates()
    async with open_session(THREE_TOOLS, tools=gates.tools) as session, open_door(session, tmp_path) as door:
        await begin(session, gates, "a")
        queued = trio.Event()
        session.chain.listen(lambda event: queued.set() if isinstance(event, events.LineQueued) else None)
        found: list[tuple[int, str]] = []

        async def wait() -> None:
            found.append(await sent(door.path, "use B", wait=True))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await queued.wait()
            assert not found
            if then == "drop":
                session.chain.lines.drop("L2")
            elif then:
                session.chain.submit(then)
            await finish(session, gates)
        [(found_code, found_said)] = found
        assert (found_code, found_said.startswith(said)) == (code, True), found_said


async def watched(path: Path, write: Callable[[str], object], *, in_json: bool = False) -> None:
    with await trio.to_thread.run_sync(connected, path) as client:
        await trio.to_thread.run_sync(
            watch, client, None if in_json else at_a_terminal(color=False, ascii=False), write
        )


async def test_watch_shows_how_things_stand_and_what_happens_until_the_end(tmp_path: Path) -> None:
    gates = Gates()
    shown, raw = list[str](), list[str]()
    async with (
        trio.open_nursery() as nursery,
        open_session(THREE_TOOLS, tools=gates.tools) as session,
        open_door(session, tmp_path) as door,
    ):
        await begin(session, gates, "a", "use B")
        nursery.start_soon(watched, door.path, shown.append)
        nursery.start_soon(partial(watched, door.path, raw.append, in_json=True))
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
    """A client of a chain that was killed after it sent its ``init``."""
    listening, path = sockets.listen(tmp_path, {}, ID)
    client = DoorClient(path)
    peer, _ = listening.accept()
    peer.sendall(json.dumps({"type": "init", "session": ID, "workspace": str(tmp_path), "model": "m"}).encode() + b"\n")
    client.read_greeting()
    listening.close()
    peer.shutdown(socket.SHUT_RDWR)
    peer.close()
    return client


def test_watch_says_that_its_chain_was_killed(killed: DoorClient) -> None:
    with killed, pytest.raises(UserError, match=f"the chain was killed; resume its session with: chain -r {ID}"):
        watch(killed, None, [].append)


def test_send_fails_when_the_chain_ends_before_it_knows(killed: DoorClient) -> None:
    with killed:
        code, problem = send(killed, "use B", wait=True, say=[].append)
    assert (code, "the chain ended before" in problem) == (1, True)


@pytest.mark.parametrize("words", [["send"], ["send", "  "], ["--wait", "hello"], ["watch", "--output-format", "json"]])
def test_wrong_usage_is_one_sentence(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    out, err = capfd.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
