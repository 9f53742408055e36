"""Whose a line is: ids that meet, lines that come back late, senders that leave."""

from __future__ import annotations

import json
from pathlib import Path

from support import check_invariants, open_session
from support.doors import Client, open_door
from support.gates import THREE_TOOLS, Gates, begin, finish
from support.models import ASKING_TOOLS, TOOLS, RandomModel, Step
from trio.testing import wait_all_tasks_blocked

from chain.messages import Text, ToolCall

ASK = ToolCall("d", "ask_user_question", {"question": "Which?", "options": ["left", "right"]})


def of_lines(client: Client) -> list[tuple[str, str]]:
    return [(row["id"], row.get("state", row["type"])) for row in client.of("line_queued", "line_refused", "receipt")]


async def test_a_refused_line_does_not_hide_the_one_that_has_its_id(tmp_path: Path) -> None:
    gates = Gates()
    async with open_session(THREE_TOOLS, tools=gates.tools) as session, open_door(session, tmp_path) as door:
        first, second = await door.client(), await door.client()
        await begin(session, gates, "a")
        await first.say("then: the next", id="same")
        await second.say("use B", id="same")
        gates.let_all()
        await session.chain.wait_idle()
        assert of_lines(first) == [("same", "line_queued"), ("same", "delivered")]
        assert of_lines(second) == [("same", "line_refused"), ("same", "refused")]


async def test_a_line_that_others_are_refused_is_not_told_to_the_client_that_has_its_id(tmp_path: Path) -> None:
    gates = Gates()
    async with open_session(THREE_TOOLS, tools=gates.tools) as session, open_door(session, tmp_path) as door:
        client = await door.client()
        await begin(session, gates, "a")
        await client.say("use B", id="same")
        assert session.chain.submit("use C", id="same", origin="json").what == "refused"
        await finish(session, gates)
        await wait_all_tasks_blocked()
        assert of_lines(client) == [("same", "line_queued"), ("same", "delivered")]


async def test_a_line_may_have_the_id_of_a_question(tmp_path: Path) -> None:
    model = RandomModel([Step((ASK,)), Step((Text("Done."),))])
    async with open_session(model, tools=ASKING_TOOLS) as session, open_door(session, tmp_path) as door:
        sender, other = await door.client(), await door.client()
        await other.send({"type": "hello", "answers": True})
        session.chain.submit("Do the task")
        await other.until("question", id="Q1")
        await sender.say("use B", id="Q1")
        await other.send({"type": "answer", "id": "Q1", "text": "left"})
        await session.chain.wait_idle()
        await wait_all_tasks_blocked()
        assert of_lines(sender) == [("Q1", "line_queued"), ("Q1", "delivered")]
        assert [row["type"] for row in sender.rows[1:]] == ["line_queued", "receipt"], "the answer is not its own"


async def test_what_the_refusal_of_a_later_run_gives_back_is_told(tmp_path: Path) -> None:
    model = RandomModel([Step((ToolCall("a", "steered", {}),)), Step((Text("No."),), "refusal")])
    async with open_session(model, tools=TOOLS) as session, open_door(session, tmp_path) as door:
        client = await door.client()
        await client.send({"type": "line", "text": "Do the task", "id": "q"}, {"type": "interrupt"})
        await session.chain.wait_idle()
        session.chain.submit("Do another task")
        await session.chain.wait_idle()
        session.chain.submit("And another")
        await session.chain.wait_idle()
        await wait_all_tasks_blocked()
        states = [receipt.state for receipt in session.chain.lines.receipts if receipt.id == "q"]
        assert of_lines(client)[-1] == ("q", states[0])


async def test_all_that_was_sent_at_once_is_done_though_its_sender_leaves(tmp_path: Path) -> None:
    gates = Gates()
    async with open_session(THREE_TOOLS, tools=gates.tools) as session, open_door(session, tmp_path) as door:
        client = await door.client()
        await begin(session, gates, "a")
        rows = [json.dumps({"type": "line", "text": f"use {n}", "id": f"b{n}"}).encode() + b"\n" for n in range(9)]
        await client.stream.send_all(b"".join(rows))
        await client.leave()
        await finish(session, gates)
        assert [r.id for r in session.chain.lines.receipts if r.origin == "door"] == [f"b{n}" for n in range(9)]
        check_invariants(session)
