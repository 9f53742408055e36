"""The side door in this process: what clients may ask for, and what they receive. No client delays the chain."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from support.checks import check_invariants
from support.doors import Client, OpenDoor, open_door
from support.gates import SLOW_ANSWER, THREE_TOOLS, Gates, finish_run, start_run
from support.models import ASKING_TOOLS, TOOLS, RandomModel, Step
from support.sessions import Session, call_at_event, open_session
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.errors import UserError
from chain.messages import Text, ToolCall
from chain.session import event_json
from cli.door import connection, server
from cli.door.client import DoorClient


def line_rows(client: Client) -> list[tuple[str, str]]:
    """Return the received rows about lines, each as the line's id, and the state or else the type of the row."""
    return [
        (row["id"], row.get("state", row["type"])) for row in client.rows_of("line_queued", "line_refused", "receipt")
    ]


async def finish_and_send(session: Session, gates: Gates) -> None:
    """Open the gates, and wait until the run has ended and the clients have received its events."""
    await finish_run(session, gates)
    await wait_all_tasks_blocked()


# -------------------------------------------------------------------------------------------------------------- lines


async def test_a_client_receives_only_its_lines_events(
    session: Session, gates: Gates, door: OpenDoor, client: Client
) -> None:
    other = await door.connect()
    await start_run(session, gates, "a", "use A")
    await client.send_line("use B", id="b")
    await other.send_line("use C")
    await finish_and_send(session, gates)
    assert client.types == other.types == ["init", "line_queued", "receipt"]
    assert line_rows(client) == [("b", "line_queued"), ("b", "delivered")]
    assert line_rows(other) == [("L3", "line_queued"), ("L3", "delivered")]
    [delivered] = session.of(events.UserInterruption)
    assert delivered.ids == ("L2", "b", "L3")


async def test_a_line_starts_a_run(session: Session, gates: Gates, client: Client) -> None:
    await client.send_line("Do the task", id="q")
    row = await client.wait_for("receipt", id="q")
    assert (row["state"], row["point"]) == ("delivered", "start")
    await finish_and_send(session, gates)


@pytest.mark.parametrize(
    ("text", "received"),
    [
        ("todo: add x", [("notice", "task 1 added: x"), ("receipt", "")]),
        ("stop", [("receipt", "Nothing is running.")]),
        ("  ", [("receipt", "")]),
    ],
    ids=["plan", "stop", "blank"],
)
async def test_a_line_that_needs_no_run_is_answered(text: str, received: list[tuple[str, str]], client: Client) -> None:
    await client.send_line(text, id="x")
    await client.wait_for("receipt", id="x", state="handled")
    _, *rows = client.rows
    assert [(row["type"], row.get("message", row.get("reason"))) for row in rows] == received


async def test_commands_and_moments_are_text(running: Session, gates: Gates, client: Client) -> None:
    for text in ("/quit", "@done next"):
        await client.send_line(text)
    await finish_and_send(running, gates)
    assert [row["state"] for row in client.rows_of("receipt")] == ["delivered", "delivered"]
    assert "INTERRUPTION: /quit" in running.sent()
    assert "INTERRUPTION: @done next" in running.sent()


@pytest.mark.parametrize("options", [{"inbox_size": 1}], indirect=True, ids=["room for 1"])
async def test_a_full_queue_refuses_all_but_a_stop(session: Session, gates: Gates, client: Client) -> None:
    await start_run(session, gates, "a", "use A")
    await client.send_line("use B", id="b")
    assert line_rows(client) == [("b", "line_refused"), ("b", "refused")]
    [receipt] = client.rows_of("receipt")
    assert "full" in receipt["reason"]
    await client.send_line("stop", id="s")
    await finish_and_send(session, gates)
    assert [row["state"] for row in client.rows_of("receipt")] == ["refused", "handled"]
    assert session.result.status == "cancelled_with_partial"
    assert session.chain.runs.exit_code() == 3, "the line of the prompt was returned"


async def test_a_line_goes_to_its_agent(running: Session, gates: Gates, client: Client) -> None:
    await client.send_line("use B", id="b", to="main")
    await client.send_line("use B", id="no", to="explore-1")
    await finish_and_send(running, gates)
    assert line_rows(client) == [("b", "line_queued"), ("no", "line_refused"), ("no", "refused"), ("b", "delivered")]


async def test_a_refused_line_hides_no_other_line(
    running: Session, gates: Gates, door: OpenDoor, client: Client
) -> None:
    other = await door.connect()
    await client.send_line("then: the next", id="same")
    await other.send_line("use B", id="same")
    assert running.chain.submit("use C", id="same", origin="json").what == "refused"
    gates.open_all()
    await running.chain.wait_idle()
    assert line_rows(client) == [("same", "line_queued"), ("same", "delivered")]
    assert line_rows(other) == [("same", "line_refused"), ("same", "refused")]


async def test_a_line_returned_after_its_run_is_reported(tmp_path: Path) -> None:
    # The model reads the query of the interrupted run with that of the next run, and refuses both.
    model = RandomModel([Step((ToolCall("a", "steered", {}),)), Step((Text("No."),), stop_reason="refusal")])
    async with open_session(model, tools=TOOLS) as session, open_door(session, tmp_path) as door:
        client = await door.connect()
        await client.send({"type": "line", "text": "Do the task", "id": "q"}, {"type": "interrupt"})
        await session.chain.wait_idle()
        for text in ("Do another task", "And another"):
            session.chain.submit(text)
            await session.chain.wait_idle()
        await wait_all_tasks_blocked()
        *_, last = line_rows(client)
        assert last == ("q", session.state("q")) == ("q", "returned")


# --------------------------------------------------------------------------------------------------------- other rows


async def test_only_a_waiting_line_can_be_dropped(running: Session, gates: Gates, client: Client) -> None:
    await client.send_line("use B", id="b")
    await client.send({"type": "drop", "id": "b"}, {"type": "drop", "id": "b"})
    assert line_rows(client) == [("b", "line_queued"), ("b", "dropped")]
    assert client.types == ["init", "line_queued", "receipt", "error"]
    [error] = client.rows_of("error")
    assert error["message"] == "no line is waiting"
    await finish_and_send(running, gates)


async def test_a_client_can_interrupt(running: Session, client: Client) -> None:
    running.interrupt()
    await client.send({"type": "interrupt"})
    await running.chain.wait_idle()
    assert running.result.status == "interrupted"


BAD_ROWS = {
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
    for data, message in BAD_ROWS.items():
        client.rows.clear()
        await client.send(data)
        await client.send_line("  ", id="next")
        await client.wait_for("receipt", id="next")
        [error] = client.rows_of("error")
        id_of_row = "n" if b'"id":"n"' in data else ""
        assert (error["id"], message in error["message"]) == (id_of_row, True), error["message"]


# ----------------------------------------------------------------------------------------------------------- watching


async def test_a_late_watcher_gets_a_snapshot_first(session: Session, gates: Gates, client: Client) -> None:
    await start_run(session, gates, "a", "use B", "todo: add x")
    await client.send({"type": "watch"}, {"type": "watch"})
    assert client.types == ["init", "run_started", "line_queued", "line_queued"]
    client.rows.clear()
    later_events: list[events.Event] = []
    session.chain.listen(later_events.append)
    await client.send_line("use C", id="c")
    await finish_and_send(session, gates)
    assert client.rows == [event_json.to_json(event) for event in later_events]


async def test_clients_receive_the_end_of_a_cut_run(tmp_path: Path) -> None:
    gates = Gates()
    async with open_session(THREE_TOOLS, tools=gates.tools) as session:
        async with open_door(session, tmp_path) as door:
            sender, watcher = await door.connect(), await door.connect()
            await watcher.send({"type": "watch"})
            await start_run(session, gates, "a")
            await sender.send_line("use B", id="b")
            gates.open_all()
        assert line_rows(sender) == [("b", "line_queued"), ("b", "returned")]
        *_, last = watcher.rows
        assert (last["type"], last["status"]) == ("result", "interrupted")
        assert (watcher.is_closed, door.path.exists()) == (True, False)
        assert session.chain.submit("more").message == "the chain is closing"


async def test_a_slow_watcher_learns_that_it_was_disconnected(
    running: Session, gates: Gates, door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with await trio.to_thread.run_sync(DoorClient, door.path) as slow:
        await trio.to_thread.run_sync(slow.read_greeting)
        slow.send(type="watch")
        await wait_all_tasks_blocked()
        with monkeypatch.context() as patched:
            patched.setattr(connection, "MAX_BEHIND", -1)  # even one row that waits is too much
            await finish_and_send(running, gates)
        with pytest.raises(UserError, match="the chain continues"):
            await trio.to_thread.run_sync(list, slow.rows())


@pytest.mark.slow
async def test_a_client_that_does_not_read_is_disconnected(mock_clock: MockClock, tmp_path: Path) -> None:
    mock_clock.autojump_threshold = 0.01
    async with open_session(SLOW_ANSWER) as session, open_door(session, tmp_path) as door:
        stalled, other = await door.connect(reads=False), await door.connect()
        for client in (stalled, other):
            await client.send({"type": "watch"})
        runs = 100
        start = trio.current_time()
        for n in range(runs):
            # Queries that are longer in all than a socket stores.
            await session.run(f"Do the task {n} " + "x" * 20_000)
        took = trio.current_time() - start
        await trio.sleep(connection.STALL_S + 1)
        assert (other.types.count("result"), other.is_closed) == (runs, False)
        assert took < runs * 60, "each run takes the 30 s of its model, and waits for no client"
        await stalled.read()
        *_, last = other.rows
        assert last not in stalled.rows, "the stalled client was disconnected before the end"


# ---------------------------------------------------------------------------------------------------------- questions

OFFER = {"type": "hello", "answers": True}
"""A row by which a client offers to answer questions."""


def answer(text: str) -> dict[str, str]:
    return {"type": "answer", "id": "Q1", "text": text}


@pytest.fixture
async def asking_session(tmp_path: Path) -> AsyncIterator[Session]:
    """Yield a session whose run asks a question."""
    ask = ToolCall("d", "ask_user_question", {"question": "Which?", "options": ["left", "right"]})
    async with open_session(RandomModel([Step((ask,)), Step((Text("Done."),))]), tools=ASKING_TOOLS) as session:
        yield session


@pytest.fixture
async def asking_door(asking_session: Session, tmp_path: Path) -> AsyncIterator[OpenDoor]:
    async with open_door(asking_session, tmp_path) as door:
        yield door


@pytest.fixture
async def answerer(asking_session: Session, asking_door: OpenDoor) -> Client:
    """Return a client that has received the open question."""
    client = await asking_door.connect()
    await client.send(OFFER)
    asking_session.chain.submit("Do the task")
    await client.wait_for("question", id="Q1")
    return client


async def test_an_answer_reaches_the_model(asking_session: Session, answerer: Client) -> None:
    await answerer.send(answer("right"))
    received = await answerer.wait_for("answer", id="Q1")
    assert received["text"] == "right"
    await asking_session.chain.wait_idle()
    assert "right" in asking_session.sent()


async def test_a_late_answer_is_refused(asking_session: Session, answerer: Client) -> None:
    await answerer.send(answer("right"))
    await asking_session.chain.wait_idle()
    await answerer.send(answer("left"))
    refusal = await answerer.wait_for("line_refused", id="Q1")
    assert refusal["kind"] == "answer"


async def test_a_client_without_offer_cannot_answer(
    asking_session: Session, asking_door: OpenDoor, answerer: Client
) -> None:
    other = await asking_door.connect()
    await other.send(answer("left"))
    error = await other.wait_for("error", id="Q1")
    assert "to answer questions, first send" in error["message"]
    await answerer.send(answer("right"))
    await asking_session.chain.wait_idle()
    assert other.types == ["init", "error"]


async def test_a_late_answerer_gets_the_open_question(asking_session: Session, asking_door: OpenDoor) -> None:
    client = await asking_door.connect()
    with asking_session.chain.answering():
        asking_session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        await client.send(OFFER)
        assert client.types == ["init", "question"]
        asking_session.chain.answer("Q1", "1")
        await asking_session.chain.wait_idle()
    assert client.types == ["init", "question", "answer"]


async def test_the_last_answerers_leaving_refuses_the_question(asking_session: Session, answerer: Client) -> None:
    await answerer.disconnect()
    await asking_session.chain.wait_idle()
    [answer] = asking_session.of(events.Answer)
    assert (answer.decision, answer.by, asking_session.result.status) == ("refused", "nobody", "done")


async def test_a_line_never_answers(asking_session: Session, asking_door: OpenDoor, answerer: Client) -> None:
    sender = await asking_door.connect()
    await sender.send_line("left", id="Q1")
    assert not asking_session.of(events.Answer)
    await answerer.send(answer("left"), {"type": "hello", "answers": False})
    await asking_session.chain.wait_idle()
    await wait_all_tasks_blocked()
    assert line_rows(sender) == [("Q1", "line_queued"), ("Q1", "delivered")]
    assert sender.types == ["init", "line_queued", "receipt"], "the answer is another client's"


# ------------------------------------------------------------------------------------------------------------ leaving


async def test_a_clients_whole_rows_outlive_it(running: Session, gates: Gates, client: Client) -> None:
    ids = [f"b{n}" for n in range(9)]
    rows = [json.dumps({"type": "line", "text": f"use {id}", "id": id}).encode() + b"\n" for id in ids]
    await client.stream.send_all(b"".join(rows) + b'{"type":"line","text":"a row without its end"}')
    await client.disconnect()
    await finish_and_send(running, gates)
    states = {receipt.id: receipt.state for receipt in running.chain.lines.receipts if receipt.origin == "door"}
    assert states == dict.fromkeys(ids, "delivered")


async def test_a_watchers_eof_harms_no_sender(door: OpenDoor, client: Client) -> None:
    for n in range(20):  # often, since the order in which the door notices both differs
        watcher = await door.connect()
        await watcher.send({"type": "watch"})
        await watcher.stream.send_eof()
        await client.send_line(f"todo: add {n}", id=f"s{n}")
        await watcher.wait_closed()
        receipt = await client.wait_for("receipt", id=f"s{n}")
        assert receipt["state"] == "handled"


async def test_a_listener_may_stop_a_lines_run(running: Session, gates: Gates, client: Client) -> None:
    call_at_event(running, events.LineQueued, lambda: running.chain.submit("stop"))
    await client.send_line("use B", id="b")
    await finish_and_send(running, gates)
    assert line_rows(client) == [("b", "line_queued"), ("b", "returned")]
    check_invariants(running)


async def test_a_chain_works_without_its_door(session: Session, gates: Gates, tmp_path: Path) -> None:
    (tmp_path / "doors").write_text("in the way")
    async with server.side_door(session.chain, tmp_path, {}) as problem:
        assert "there is no side door" in problem
        assert str(tmp_path / "doors") in problem
        await start_run(session, gates, "a")
        await finish_and_send(session, gates)
