"""The side door in this process: what clients may ask for, and what they receive. No client delays the chain."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from support import Session, at, check_invariants, open_session
from support.doors import Client, Entrance, open_door
from support.gates import SLOW_ANSWER, THREE_TOOLS, Gates, begin, finish
from support.models import ASKING_TOOLS, TOOLS, RandomModel, Step
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.errors import UserError
from chain.messages import Text, ToolCall
from chain.session import event_json
from cli.door import connection, server
from cli.door.client import DoorClient


def lines_of(client: Client) -> list[tuple[str, str]]:
    """Return what a client received about lines: the id, and the state or the type."""
    return [(row["id"], row.get("state", row["type"])) for row in client.of("line_queued", "line_refused", "receipt")]


async def end(session: Session, gates: Gates) -> None:
    """Open the gates, and wait until the run has ended and the clients have received its events."""
    await finish(session, gates)
    await wait_all_tasks_blocked()


# -------------------------------------------------------------------------------------------------------------- lines


async def test_a_client_receives_its_own_lines_events(
    session: Session, gates: Gates, door: Entrance, client: Client
) -> None:
    other = await door.client()
    await begin(session, gates, "a", "use A")
    await client.say("use B", id="b")
    await other.say("use C")
    assert (lines_of(client), lines_of(other)) == ([("b", "line_queued")], [("L3", "line_queued")])
    await end(session, gates)
    assert client.types == ["init", "line_queued", "receipt"]
    assert client.rows[0]["session"] == session.chain.session_id
    assert (lines_of(client)[1:], lines_of(other)[1:]) == ([("b", "delivered")], [("L3", "delivered")])
    [delivered] = session.of(events.UserInterruption)
    assert delivered.ids == ("L2", "b", "L3")
    assert [e.origin for e in session.of(events.LineQueued)] == ["prompt", "door", "door"]


async def test_a_line_starts_a_run(session: Session, gates: Gates, client: Client) -> None:
    await client.say("Do the task", id="q")
    row = await client.until("receipt", id="q")
    assert (row["state"], row["point"]) == ("delivered", "start")
    await end(session, gates)


@pytest.mark.parametrize(
    ("text", "received"),
    [
        ("todo: add x", [("notice", "task 1 added: x"), ("receipt", "")]),
        ("stop", [("receipt", "Nothing is running.")]),
        ("  ", [("receipt", "")]),
    ],
)
async def test_a_line_that_needs_no_run_is_answered(text: str, received: list[tuple[str, str]], client: Client) -> None:
    await client.say(text, id="x")
    await client.until("receipt", id="x", state="handled")
    assert [(row["type"], row.get("message", row.get("reason"))) for row in client.rows[1:]] == received


async def test_commands_and_moments_are_text(running: Session, gates: Gates, client: Client) -> None:
    for text in ("/quit", "@done next"):
        await client.say(text)
    await end(running, gates)
    assert [row["state"] for row in client.of("receipt")] == ["delivered", "delivered"]
    assert "INTERRUPTION: /quit" in running.sent()
    assert "INTERRUPTION: @done next" in running.sent()


@pytest.mark.parametrize("use", [{"inbox_size": 1}], indirect=True, ids=[""])
async def test_a_full_queue_refuses_all_but_a_stop(session: Session, gates: Gates, client: Client) -> None:
    await begin(session, gates, "a", "use A")
    await client.say("use B", id="b")
    [queued, refused] = client.of("line_refused", "receipt")
    assert (queued["type"], refused["state"], "full" in refused["reason"]) == ("line_refused", "refused", True)
    await client.say("stop", id="s")
    await end(session, gates)
    assert [row["state"] for row in client.of("receipt")] == ["refused", "handled"]
    assert session.result.status == "cancelled_with_partial"
    assert session.chain.runs.exit_code() == 3, "the prompt's own line was returned"


async def test_a_line_goes_to_its_agent(running: Session, gates: Gates, client: Client) -> None:
    await client.say("use B", id="b", to="main")
    await client.say("use B", id="no", to="explore-1")
    await end(running, gates)
    assert lines_of(client) == [("b", "line_queued"), ("no", "line_refused"), ("no", "refused"), ("b", "delivered")]


async def test_a_refused_line_hides_no_other_line(
    running: Session, gates: Gates, door: Entrance, client: Client
) -> None:
    other = await door.client()
    await client.say("then: the next", id="same")
    await other.say("use B", id="same")
    assert running.chain.submit("use C", id="same", origin="json").what == "refused"
    gates.let_all()
    await running.chain.wait_idle()
    assert lines_of(client) == [("same", "line_queued"), ("same", "delivered")]
    assert lines_of(other) == [("same", "line_refused"), ("same", "refused")]


async def test_a_line_returned_after_its_run_is_reported(tmp_path: Path) -> None:
    model = RandomModel([Step((ToolCall("a", "steered", {}),)), Step((Text("No."),), "refusal")])
    async with open_session(model, tools=TOOLS) as session, open_door(session, tmp_path) as door:
        client = await door.client()
        await client.send({"type": "line", "text": "Do the task", "id": "q"}, {"type": "interrupt"})
        await session.chain.wait_idle()
        for text in ("Do another task", "And another"):
            session.chain.submit(text)
            await session.chain.wait_idle()
        await wait_all_tasks_blocked()
        [state] = [receipt.state for receipt in session.chain.lines.receipts if receipt.id == "q"]
        assert lines_of(client)[-1] == ("q", state)


# --------------------------------------------------------------------------------------------------------- other rows


async def test_only_a_waiting_line_can_be_dropped(running: Session, gates: Gates, client: Client) -> None:
    await client.say("use B", id="b")
    await client.send({"type": "drop", "id": "b"}, {"type": "drop", "id": "b"})
    assert lines_of(client) == [("b", "line_queued"), ("b", "dropped")]
    assert client.types == ["init", "line_queued", "receipt", "error"]
    assert client.rows[-1]["message"] == "no line is waiting"
    await end(running, gates)


async def test_a_client_can_interrupt(running: Session, client: Client) -> None:
    running.interrupt()
    await client.send({"type": "interrupt"})
    await running.chain.wait_idle()
    assert running.result.status == "interrupted"


BAD = {
    b"no json\n": "it is not a JSON object",
    b"[]\n": "it is not a JSON object",
    b"[" * 100_000 + b"\n": "it is not a JSON object",
    b'{"type":"nonsense","id":"n"}\n': "the type 'nonsense' is unknown",
    b'{"type":"line","id":"n"}\n': "its text is missing",
    b'{"type":"hello","answers":"yes"}\n': "the value of answers must be true or false",
    b'{"type":"drop"}\n': "its id must be a string",
    b'{"type":"line","id":"n","text":"x","To":"main"}\n': "the key 'To' is unknown; did you mean 'to'?",
    b'{"type":"watch","id":"n","since":3}\n': "the key 'since' is unknown",
    b'{"type":"line","id":"n","text":"' + b"x" * 3_000_000 + b'"}\n': "too long",
    b"\xff\xfe\n": "it is not a JSON object",
}


async def test_a_bad_row_is_answered(client: Client) -> None:
    for n, (data, message) in enumerate(BAD.items(), 1):
        await client.send(data)
        await client.say("  ", id=f"after {n}")
        await client.until("receipt", id=f"after {n}")
        assert len(errors := client.of("error")) == n
        assert message in errors[-1]["message"]
        assert errors[-1]["id"] == ("n" if b'"id":"n"' in data else "")


# ----------------------------------------------------------------------------------------------------------- watching


async def test_a_late_watcher_gets_a_snapshot_first(session: Session, gates: Gates, client: Client) -> None:
    await begin(session, gates, "a", "use B", "todo: add x")
    await client.send({"type": "watch"}, {"type": "watch"})
    assert client.types == ["init", "run_started", "line_queued", "line_queued"]
    before = len(session.events)
    await client.say("use C", id="c")
    await end(session, gates)
    assert client.rows[4:] == [event_json.to_json(event) for event in session.events[before:]]


async def test_clients_receive_the_end_of_a_cut_run(tmp_path: Path) -> None:
    gates = Gates()
    async with open_session(THREE_TOOLS, tools=gates.tools) as session:
        async with open_door(session, tmp_path) as door:
            sender, watcher = await door.client(), await door.client()
            await watcher.send({"type": "watch"})
            await begin(session, gates, "a")
            await sender.say("use B", id="b")
            gates.let_all()
        assert lines_of(sender) == [("b", "line_queued"), ("b", "returned")]
        assert (watcher.types[-1], watcher.rows[-1]["status"]) == ("result", "interrupted")
        assert (watcher.is_closed, door.path.exists()) == (True, False)
        assert session.chain.submit("more").message == "the chain is closing"


async def test_a_slow_watcher_learns_that_it_was_disconnected(
    running: Session, gates: Gates, door: Entrance, monkeypatch: pytest.MonkeyPatch
) -> None:
    with await trio.to_thread.run_sync(DoorClient, door.path) as slow:
        await trio.to_thread.run_sync(slow.read_greeting)
        slow.send(type="watch")
        await wait_all_tasks_blocked()
        with monkeypatch.context() as patched:
            patched.setattr(connection, "MAX_BEHIND", -1)
            await end(running, gates)
        with pytest.raises(UserError, match="the chain continues"):
            await trio.to_thread.run_sync(list, slow.rows())


@pytest.mark.slow
async def test_a_client_that_does_not_read_is_disconnected(mock_clock: MockClock, tmp_path: Path) -> None:
    mock_clock.autojump_threshold = 0.01
    async with open_session(SLOW_ANSWER) as session, open_door(session, tmp_path) as door:
        stopped, other = await door.client(reads=False), await door.client()
        for client in (stopped, other):
            await client.send({"type": "watch"})
        began = trio.current_time()
        for n in range(100):
            await session.run(f"Do the task {n} " + "x" * 20_000)
        took = trio.current_time() - began
        await trio.sleep(connection.STALL_S + 1)
        assert (other.types.count("result"), other.is_closed) == (100, False)
        assert took < 100 * 60, "the runs take as long as their model"
        await stopped.read()
        assert stopped.rows.count(other.rows[-1]) == 0, "it was disconnected before the end"


async def test_too_many_clients_are_refused(door: Entrance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_CLIENTS", 2)
    clients = [await door.client() for _ in range(3)]
    await clients[2].until_closed()
    assert [client.types for client in clients] == [["init"], ["init"], ["error"]]
    await clients[0].leave()
    await (await door.client()).until("init")


# ---------------------------------------------------------------------------------------------------------- questions

HELLO = {"type": "hello", "answers": True}


def answer(text: str) -> dict[str, str]:
    return {"type": "answer", "id": "Q1", "text": text}


@pytest.fixture
async def asking(tmp_path: Path) -> AsyncIterator[Session]:
    """Yield a session whose run asks a question."""
    ask = ToolCall("d", "ask_user_question", {"question": "Which?", "options": ["left", "right"]})
    async with open_session(RandomModel([Step((ask,)), Step((Text("Done."),))]), tools=ASKING_TOOLS) as session:
        yield session


async def test_only_a_client_that_said_so_answers(asking: Session, tmp_path: Path) -> None:
    async with open_door(asking, tmp_path) as door:
        one, other = await door.client(), await door.client()
        await one.send(HELLO)
        asking.chain.submit("Do the task")
        await one.until("question", id="Q1")
        await other.send(answer("left"))
        assert "to answer questions, first send" in (await other.until("error", id="Q1"))["message"]
        await one.send(answer("right"))
        assert (await one.until("answer", id="Q1"))["text"] == "right"
        await asking.chain.wait_idle()
        assert "right" in asking.sent()
        await one.send(answer("left"))
        assert (await one.until("line_refused", id="Q1"))["kind"] == "answer"
        assert other.types == ["init", "error"]


async def test_a_late_answerer_gets_the_open_question(asking: Session, tmp_path: Path) -> None:
    async with open_door(asking, tmp_path) as door:
        client = await door.client()
        with asking.chain.answering():
            asking.chain.submit("Do the task")
            await wait_all_tasks_blocked()
            await client.send(HELLO)
            assert client.types == ["init", "question"]
            asking.chain.answer("Q1", "1")
            await asking.chain.wait_idle()
        assert client.types == ["init", "question", "answer"]


async def test_the_last_answerers_leaving_refuses_the_question(asking: Session, tmp_path: Path) -> None:
    async with open_door(asking, tmp_path) as door:
        client = await door.client()
        await client.send(HELLO)
        asking.chain.submit("Do the task")
        await client.until("question", id="Q1")
        await client.leave()
        await asking.chain.wait_idle()
        [refused] = asking.of(events.Answer)
        assert (refused.decision, refused.by, asking.result.status) == ("refused", "nobody", "done")


async def test_a_line_never_answers(asking: Session, tmp_path: Path) -> None:
    async with open_door(asking, tmp_path) as door:
        sender, client = await door.client(), await door.client()
        await client.send(HELLO)
        asking.chain.submit("Do the task")
        await client.until("question", id="Q1")
        await sender.say("left", id="Q1")
        assert not asking.of(events.Answer)
        await client.send(answer("left"), {"type": "hello", "answers": False})
        await asking.chain.wait_idle()
        await wait_all_tasks_blocked()
        assert lines_of(sender) == [("Q1", "line_queued"), ("Q1", "delivered")]
        assert sender.types == ["init", "line_queued", "receipt"], "the answer is another client's"


# ------------------------------------------------------------------------------------------------------------ leaving


async def test_a_clients_whole_rows_outlive_it(running: Session, gates: Gates, client: Client) -> None:
    rows = [json.dumps({"type": "line", "text": f"use {n}", "id": f"b{n}"}).encode() + b"\n" for n in range(9)]
    await client.stream.send_all(b"".join(rows) + b'{"type":"line","text":"use C"}')
    await client.leave()
    await end(running, gates)
    sent = [receipt for receipt in running.chain.lines.receipts if receipt.origin == "door"]
    assert [(receipt.id, receipt.state) for receipt in sent] == [(f"b{n}", "delivered") for n in range(9)]


async def test_a_watchers_eof_harms_no_sender(door: Entrance, client: Client) -> None:
    for n in range(20):
        watcher = await door.client()
        await watcher.send({"type": "watch"})
        await watcher.stream.send_eof()
        await client.say(f"todo: add {n}", id=f"s{n}")
        await watcher.until_closed()
        assert (await client.until("receipt", id=f"s{n}"))["state"] == "handled"


async def test_a_listener_may_stop_a_lines_run(running: Session, gates: Gates, client: Client) -> None:
    at(running, events.LineQueued, lambda: running.chain.submit("stop"))
    await client.say("use B", id="b")
    await end(running, gates)
    assert lines_of(client) == [("b", "line_queued"), ("b", "returned")]
    check_invariants(running)


async def test_a_chain_works_without_its_door(session: Session, gates: Gates, tmp_path: Path) -> None:
    (tmp_path / "doors").write_text("in the way")
    async with server.side_door(session.chain, tmp_path, {}) as problem:
        assert "there is no side door" in problem
        assert str(tmp_path / "doors") in problem
        await begin(session, gates, "a")
        await end(session, gates)
