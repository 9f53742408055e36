"""The side door from inside: what clients may ask for, what they are told, and that none of them holds anything up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from support import Session, at, check_invariants, open_session, settings
from support.doors import open_door
from support.gates import SLOW_ANSWER, THREE_TOOLS, Gates, begin, finish
from support.models import ASKING_TOOLS, RandomModel, Step
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.errors import UserError
from chain.messages import Text, ToolCall
from chain.session import event_json
from cli.door import connection, server
from cli.door.client import DoorClient

ANSWER = "rules: [{text: The answer.}]"


def lines_of(rows: Sequence[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """What is told of lines: the type, the id and the state or the reason."""
    return [
        (row["type"], row["id"], row.get("state") or row.get("reason", "").split(";")[0])
        for row in rows
        if row["type"] in ("line_queued", "line_refused", "receipt", "error")
    ]


async def ended(session: Session, gates: Gates) -> None:
    """Let the tools go, and wait until the run has ended and all are told of it."""
    await finish(session, gates)
    await wait_all_tasks_blocked()


# ---------------------------------------------------------------------------------------------------------- its lines


async def test_a_client_is_told_who_is_there_and_then_of_its_own_lines_alone(tmp_path: Path) -> None:
    gates = Gates()
    async with open_session(THREE_TOOLS, tools=gates.tools) as session, open_door(session, tmp_path) as door:
        mine, other = await door.client(), await door.client()
        await begin(session, gates, "a", "use A")
        await mine.say("use B", id="b")
        await other.say("use C")
        await wait_all_tasks_blocked()
        assert lines_of(mine.rows) == [("line_queued", "b", "")]
        assert lines_of(other.rows) == [("line_queued", "L3", "")]
        await ended(session, gates)
        assert mine.types == ["init", "line_queued", "receipt"]
        assert mine.rows[0]["session"] == session.chain.session_id
        assert lines_of(mine.rows)[1:] == [("receipt", "b", "delivered")]
        assert lines_of(other.rows)[1:] == [("receipt", "L3", "delivered")]
        [entered] = session.of(events.UserInterruption)
        assert entered.ids == ("L2", "b", "L3")
        assert [e.origin for e in session.of(events.LineQueued)] == ["prompt", "door", "door"]
        check_invariants(session)


async def test_a_line_starts_a_run_and_its_sender_hears_of_it(tmp_path: Path) -> None:
    async with open_session(ANSWER) as session, open_door(session, tmp_path) as door:
        client = await door.client()
        await client.say("Do the task", id="q")
        row = await client.until("receipt", id="q")
        await session.chain.wait_idle()
        assert (row["state"], row["point"], session.result.result) == ("delivered", "start", "The answer.")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("todo: add x", [("notice", "task 1 added: x"), ("receipt", "")]),
        ("stop", [("receipt", "Nothing is running.")]),
        ("  ", [("receipt", "")]),
    ],
)
async def test_what_needs_no_run_is_answered_at_once(text: str, told: list[tuple[str, str]], tmp_path: Path) -> None:
    async with open_session(ANSWER) as session, open_door(session, tmp_path) as door:
        client = await door.client()
        await client.say(text, id="x")
        await client.until("receipt", id="x", state="handled")
        assert [(row["type"], row.get("message", row.get("reason"))) for row in client.rows[1:]] == told


async def test_commands_and_moments_are_text(tmp_path: Path) -> None:
    gates = Gates()
    async with open_session(THREE_TOOLS, tools=gates.tools) as session, open_door(session, tmp_path) as door:
        client = await door.client()
        await begin(session, gates, "a")
        await client.say("/quit")
        await client.say("@done next")
        await ended(session, gates)
        assert [row["state"] for row in client.of("receipt")] == ["delivered", "delivered"]
        assert "INTERRUPTION: /quit" in session.sent()
        assert "INTERRUPTION: @done next" in session.sent()


async def test_bytes_that_are_not_utf_8_are_replaced_with_a_notice(tmp_path: Path) -> None:
    gates = Gates()
    async with open_session(THREE_TOOLS, tools=gates.tools) as session, open_door(session, tmp_path) as door:
        client = await door.client()
        await begin(session, gates, "a")
        await client.send(b'{"type":"line","id":"x","text":"caf\xe9"}\n')
        [notice, queued] = client.of("notice", "line_queued")
        assert notice["message"] == "line 1 of the input is not UTF-8; its invalid bytes were replaced"
        assert (queued["id"], queued["text"]) == ("x", "caf\N{REPLACEMENT CHARACTER}")
        await ended(session, gates)


async def test_a_full_channel_refuses_and_a_stop_passes_by(tmp_path: Path) -> None:
    gates = Gates()
    use = settings(inbox_size=1)
    async with open_session(THREE_TOOLS, tools=gates.tools, use=use) as session, open_door(session, tmp_path) as door:
        client = await door.client()
        await begin(session, gates, "a", "use A")
        await client.say("use B", id="b")
        [queued, refused] = client.of("line_refused", "receipt")
        assert (queued["type"], refused["state"], "full" in refused["reason"]) == ("line_refused", "refused", True)
        await client.say("stop", id="s")
        await ended(session, gates)
        assert [row["state"] for row in client.of("receipt")] == ["refused", "handled"]
        assert session.result.status == "cancelled_with_partial"
        assert session.chain.runs.exit_code() == 3, "the prompt's own line came back"
        check_invariants(session)


async def test_what_comes_back_is_told_to_its_sender_also_after_the_next_run_has_begun(tmp_path: Path) -> None:
    gates = Gates()
    async with open_session(THREE_TOOLS, tools=gates.tools) as session, open_door(session, tmp_path) as door:
        client = await door.client()
        await begin(session, gates, "a")
        await client.say("then: the next", id="next")
        await ended(session, gates)
        row = await client.until("receipt", id="next")
        assert (row["state"], row["point"]) == ("delivered", "start")
        await session.chain.wait_idle()


async def test_a_line_goes_to_the_agent_that_it_names(tmp_path: Path) -> None:
    gates = Gates()
    async with open_session(THREE_TOOLS, tools=gates.tools) as session, open_door(session, tmp_path) as door:
        client = await door.client()
        await begin(session, gates, "a")
        await client.say("use B", to="main")
        await client.say("use B", to="explore-1", id="no")
        await ended(session, gates)
        assert [kind for kind, *_ in lines_of(client.rows)] == ["line_queued", "line_refused", "receipt", "receipt"]


# -------------------------------------------------------------------------------------------------- everything else


async def test_a_line_that_waits_is_dropped_and_one_that_does_not_is_an_error(tmp_path: Path) -> None:
    gates = Gates()
    async with open_session(THREE_TOOLS, tools=gates.tools) as session, open_door(session, tmp_path) as door:
        client = await door.client()
        await begin(session, gates, "a")
        await client.say("use B", id="b")
        await client.send({"type": "drop", "id": "b"}, {"type": "drop", "id": "b"})
        assert lines_of(client.rows) == [
            ("line_queued", "b", ""),
            ("receipt", "b", "dropped"),
            ("error", "b", ""),
        ]
        assert client.rows[-1]["message"] == "no line is waiting"
        await ended(session, gates)


async def test_an_interrupt_is_one(tmp_path: Path) -> None:
    gates = Gates()
    async with open_session(THREE_TOOLS, tools=gates.tools) as session, open_door(session, tmp_path) as door:
        client = await door.client()
        await begin(session, gates, "a")
        session.interrupt()
        await client.send({"type": "interrupt"})
        await session.chain.wait_idle()
        assert session.result.status == "interrupted"


BAD = {
    b"no json\n": "it is not a JSON object",
    b"[]\n": "it is not a JSON object",
    b"[" * 100_000 + b"\n": "it is not a JSON object",
    b'{"type":"nonsense","id":"n"}\n': "the type 'nonsense' is unknown",
    b'{"type":"line","id":"n"}\n': "its text is missing",
    b'{"type":"hello","answers":"yes"}\n': "its answers must be true or false",
    b'{"type":"drop"}\n': "its id must be a string",
    b'{"type":"line","id":"n","text":"x","To":"main"}\n': "the key 'To' is unknown; did you mean 'to'?",
    b'{"type":"hello","answer":true}\n': "the key 'answer' is unknown; did you mean 'answers'?",
    b'{"type":"watch","id":"n","since":3}\n': "the key 'since' is unknown",
    b'{"type":"line","id":"n","text":"' + b"x" * 3_000_000 + b'"}\n': "too long",
    b"\xff\xfe\n": "it is not a JSON object",
}


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("data", BAD, ids=range(len(BAD)))
async def test_what_cannot_be_read_is_answered_and_what_follows_is_done(data: bytes, tmp_path: Path) -> None:
    async with open_session(ANSWER) as session, open_door(session, tmp_path) as door:
        client = await door.client()
        await client.send(data)
        error = await client.until("error")
        assert BAD[data] in error["message"]
        assert error["id"] == ("n" if b'"id":"n"' in data else "")
        await client.say("todo: add x", id="after")
        await client.until("receipt", id="after", state="handled")


# ---------------------------------------------------------------------------------------------------------- watching


async def test_who_watches_late_is_told_how_things_stand_and_then_of_everything(tmp_path: Path) -> None:
    gates = Gates()
    async with open_session(THREE_TOOLS, tools=gates.tools) as session, open_door(session, tmp_path) as door:
        await begin(session, gates, "a", "use B", "todo: add x")
        client = await door.client()
        await client.send({"type": "watch"}, {"type": "watch"})
        assert client.types == ["init", "run_started", "line_queued", "line_queued"]
        heard = len(session.events)
        await client.say("use C", id="c")
        await ended(session, gates)
        told = [event_json.to_json(event) for event in session.events[heard:]]
        assert client.rows[4:] == told


async def test_who_comes_later_still_is_told_nothing_twice(tmp_path: Path) -> None:
    gates = Gates()
    async with open_session(THREE_TOOLS, tools=gates.tools) as session, open_door(session, tmp_path) as door:
        first = await door.client()
        await first.send({"type": "watch"})
        await begin(session, gates, "a", "use B")
        second = await door.client()
        await second.send({"type": "watch"})
        await ended(session, gates)
        begun = [row["type"] for row in second.rows]
        assert begun[:3] == ["init", "run_started", "line_queued"]
        assert (begun.count("run_started"), begun.count("line_queued")) == (1, 1)
        assert second.rows[3:] == first.rows[-len(second.rows[3:]) :]


async def test_the_last_event_reaches_who_watches_before_the_door_closes(tmp_path: Path) -> None:
    async with open_session(ANSWER) as session:
        async with open_door(session, tmp_path) as door:
            client = await door.client()
            await client.send({"type": "watch"})
            await session.run("Do the task")
        assert (client.types[-1], client.is_closed) == ("result", True)
        assert not door.path.exists()


async def test_a_run_that_the_end_of_the_door_cuts_is_told_to_its_end(tmp_path: Path) -> None:
    gates = Gates()
    async with open_session(THREE_TOOLS, tools=gates.tools) as session:
        async with open_door(session, tmp_path) as door:
            sender, watcher = await door.client(), await door.client()
            await watcher.send({"type": "watch"})
            await begin(session, gates, "a")
            await sender.say("use B", id="b")
            gates.let_all()
        assert lines_of(sender.rows) == [("line_queued", "b", ""), ("receipt", "b", "returned")]
        assert (watcher.types[-1], watcher.rows[-1]["status"]) == ("result", "interrupted")
        assert session.chain.submit("more").message == "the chain is closing"


async def test_a_slow_reader_is_told_that_it_is_disconnected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_session(ANSWER) as session, open_door(session, tmp_path) as door:
        with await trio.to_thread.run_sync(DoorClient, door.path) as client:
            await trio.to_thread.run_sync(client.read_greeting)
            client.send(type="watch")
            await wait_all_tasks_blocked()
            with monkeypatch.context() as patched:
                patched.setattr(connection, "MAX_BEHIND", -1)
                await session.run("Do the task")
                await wait_all_tasks_blocked()
            with pytest.raises(UserError, match="the chain continues"):
                await trio.to_thread.run_sync(list, client.rows())


@pytest.mark.slow
async def test_who_does_not_read_is_cut_off_and_holds_nobody_up(mock_clock: MockClock, tmp_path: Path) -> None:
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
        assert stopped.rows.count(other.rows[-1]) == 0, "it was cut off before the end"


async def test_of_too_many_each_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_CLIENTS", 2)
    async with open_session(ANSWER) as session, open_door(session, tmp_path) as door:
        clients = [await door.client() for _ in range(3)]
        await clients[2].until_closed()
        assert [client.types for client in clients] == [["init"], ["init"], ["error"]]
        await clients[0].leave()
        later = await door.client()
        await later.until("init")


# --------------------------------------------------------------------------------------------------------- questions

ASK = ToolCall("d", "ask_user_question", {"question": "Which?", "options": ["left", "right"]})


def asking() -> RandomModel:
    return RandomModel([Step((ASK,)), Step((Text("Done."),))])


async def test_a_client_that_said_so_answers_and_others_cannot(tmp_path: Path) -> None:
    async with open_session(asking(), tools=ASKING_TOOLS) as session, open_door(session, tmp_path) as door:
        one, other = await door.client(), await door.client()
        await one.send({"type": "hello", "answers": True})
        session.chain.submit("Do the task")
        await one.until("question", id="Q1")
        await other.send({"type": "answer", "id": "Q1", "text": "left"})
        assert "says so first" in (await other.until("error", id="Q1"))["message"]
        await one.send({"type": "answer", "id": "Q1", "text": "right"})
        assert (await one.until("answer", id="Q1"))["text"] == "right"
        await session.chain.wait_idle()
        assert "right" in session.sent()
        await one.send({"type": "answer", "id": "Q1", "text": "left"})
        assert (await one.until("line_refused", id="Q1"))["kind"] == "answer"
        assert other.types == ["init", "error"]


async def test_who_says_so_while_a_question_is_open_is_told_of_it(tmp_path: Path) -> None:
    async with open_session(asking(), tools=ASKING_TOOLS) as session, open_door(session, tmp_path) as door:
        client = await door.client()
        with session.chain.answering():
            session.chain.submit("Do the task")
            await wait_all_tasks_blocked()
            await client.send({"type": "hello", "answers": True})
            assert client.types == ["init", "question"]
            session.chain.answer("Q1", "1")
            await session.chain.wait_idle()
        assert client.types == ["init", "question", "answer"]


async def test_a_question_waits_for_nobody_when_the_last_who_answers_leaves(tmp_path: Path) -> None:
    async with open_session(asking(), tools=ASKING_TOOLS) as session, open_door(session, tmp_path) as door:
        client = await door.client()
        await client.send({"type": "hello", "answers": True})
        session.chain.submit("Do the task")
        await client.until("question", id="Q1")
        await client.leave()
        await session.chain.wait_idle()
        [answer] = session.of(events.Answer)
        assert (answer.decision, answer.by, session.result.status) == ("refused", "nobody", "done")


async def test_a_line_never_answers(tmp_path: Path) -> None:
    async with open_session(asking(), tools=ASKING_TOOLS) as session, open_door(session, tmp_path) as door:
        client = await door.client()
        await client.send({"type": "hello", "answers": True})
        session.chain.submit("Do the task")
        await client.until("question", id="Q1")
        await client.say("left", id="l")
        assert not session.of(events.Answer)
        await client.send({"type": "answer", "id": "Q1", "text": "left"}, {"type": "hello", "answers": False})
        await session.chain.wait_idle()
        assert (await client.until("receipt", id="l"))["state"] == "delivered"


# ------------------------------------------------------------------------------------------------------ coming, going


async def test_what_was_sent_stays_when_its_sender_leaves_and_half_a_row_is_no_row(tmp_path: Path) -> None:
    gates = Gates()
    async with open_session(THREE_TOOLS, tools=gates.tools) as session, open_door(session, tmp_path) as door:
        client = await door.client()
        await begin(session, gates, "a")
        await client.send({"type": "line", "text": "use B", "id": "b"}, b'{"type":"line","text":"use C"}')
        await client.leave()
        await ended(session, gates)
        assert [(r.id, r.state) for r in session.chain.lines.receipts] == [("L1", "delivered"), ("b", "delivered")]


async def test_who_ends_its_input_while_others_send_is_told_to_its_end_and_harms_nobody(tmp_path: Path) -> None:
    async with open_session(ANSWER) as session, open_door(session, tmp_path) as door:
        sender = await door.client()
        for n in range(50):
            watcher = await door.client()
            await watcher.send({"type": "watch"})
            await watcher.stream.send_eof()
            await sender.say(f"todo: add {n}", id=f"s{n}")
            await watcher.until_closed()
            assert (await sender.until("receipt", id=f"s{n}"))["state"] == "handled"


async def test_a_listener_that_stops_the_run_on_hearing_of_a_line_harms_nobody(tmp_path: Path) -> None:
    gates = Gates()
    async with open_session(THREE_TOOLS, tools=gates.tools) as session, open_door(session, tmp_path) as door:
        client = await door.client()
        at(session, events.LineQueued, lambda: session.chain.submit("stop"))
        await begin(session, gates, "a")
        await client.say("use B", id="b")
        await ended(session, gates)
        assert lines_of(client.rows) == [("line_queued", "b", ""), ("receipt", "b", "returned")]
        check_invariants(session)


async def test_a_door_that_cannot_be_opened_is_told_and_the_chain_works(tmp_path: Path) -> None:
    (tmp_path / "doors").write_text("in the way")
    async with open_session(ANSWER) as session, server.side_door(session.chain, tmp_path, {}) as problem:
        assert "there is no side door" in problem
        assert str(tmp_path / "doors") in problem
        await session.run("Do the task")
