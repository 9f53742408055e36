"""Prompts, steering and cancellation, as an editor sees them: each prompt is answered once, after its updates."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from support.editor import Editor, connected, opener
from support.gate import Gate
from trio.testing import wait_all_tasks_blocked

from cli.acp.rpc import CANCELLED, INTERNAL_ERROR, INVALID_PARAMS, RpcError
from cli.door import sockets
from cli.outbox import ROOM


async def test_a_prompt_is_answered_after_its_updates(editor: Editor, session: str) -> None:
    id = editor.prompt(session, "hello")
    result = await editor.result(id)
    assert (result["stopReason"], result["_meta"]["chain"]["status"]) == ("end_turn", "done")
    assert editor.text() == "Hello."
    assert editor.log[-1] == ("answer", id)
    assert not editor.text("user_message_chunk"), "the editor shows its own prompt"


@pytest.mark.parametrize(
    ("query", "reason", "said"),
    [
        ("refuse", "refusal", "The model refused"),
        ("long", "max_tokens", "Too lo"),
        ("loop", "max_turn_requests", "without a final answer"),
        ("todo: add look", "end_turn", "look"),
        ("stop", "end_turn", "Nothing is running."),
        ("status", "end_turn", "nothing is running"),
    ],
)
@pytest.mark.parametrize("config", [{"max_iterations": 2}], indirect=True, ids=[""])
async def test_each_end_has_its_stop_reason(editor: Editor, session: str, query: str, reason: str, said: str) -> None:
    assert await editor.run(session, query) == reason
    assert said in editor.text()


async def test_a_failed_run_is_an_error(editor: Editor, session: str) -> None:
    error = await editor.refusal(session, "fail")
    assert (error.code, error.data) == (INTERNAL_ERROR, {"chain": {"status": "error"}})
    assert "the service is gone" in error.message


async def test_an_image_and_a_file_are_attached(editor: Editor, session: str, workspace: Path) -> None:
    (workspace / "a b.txt").write_text("one\n")
    picture = base64.b64encode(b"\x89PNG\r\n\x1a\n and so on").decode()
    link = {"type": "resource_link", "uri": f"file://{workspace}/a%20b.txt", "name": "a b.txt"}
    blocks = [{"type": "text", "text": "hello "}, link, {"type": "image", "data": picture, "mimeType": "image/png"}]
    await editor.call("session/prompt", sessionId=session, prompt=blocks)
    [receipt] = editor.receipts("delivered")
    assert receipt["reason"] == "with image 3 (PNG, 18 bytes), a b.txt (1 line)"
    blocks[-1]["data"] = "AAAA"
    error = await editor.error("session/prompt", sessionId=session, prompt=blocks)
    assert "image 3 is not an image that can be sent" in error.message


async def test_a_prompt_during_a_run_interrupts(editor: Editor, session: str, waiting: int, gate: Gate) -> None:
    second = editor.prompt(session, "look elsewhere")
    await editor.until(lambda: editor.receipts("queued"))
    gate.open.set()
    assert await editor.reasons(waiting, second) == ["end_turn", "end_turn"]
    assert "Understood: " in editor.text()
    assert editor.text("user_message_chunk") == "look elsewhere"
    assert editor.updates("user_message_chunk")[0]["_meta"]["chain"]["point"] == "D"


@pytest.mark.parametrize("config", [{"inbox": {"size": 1}}], indirect=True, ids=[""])
async def test_a_full_queue_refuses_all_but_a_stop(editor: Editor, session: str, waiting: int, gate: Gate) -> None:
    first = editor.prompt(session, "one")
    error = await editor.refusal(session, "two")
    assert ("full" in error.message, error.data) == (True, {"chain": {"state": "refused"}})
    stop = editor.prompt(session, "stop")
    await editor.until(lambda: editor.receipts("handled"))
    gate.open.set()
    assert await editor.reasons(waiting, first, stop) == ["end_turn", "cancelled", "end_turn"]


async def test_a_follow_up_has_its_own_answer(editor: Editor, session: str, waiting: int, gate: Gate) -> None:
    second = editor.prompt(session, "then: hello")
    gate.open.set()
    lines = [(await editor.result(id))["_meta"]["chain"]["lineId"] for id in (waiting, second)]
    assert lines == ["L1", "L2"]
    assert editor.log.index(("answer", waiting)) < editor.log.index(("answer", second))
    assert editor.text() == "Looking.Waited.Hello."


async def test_a_line_of_the_side_door_is_shown(
    editor: Editor, session: str, waiting: int, gate: Gate, tmp_path: Path
) -> None:
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(sockets.connect(tmp_path / "home/state/doors" / session)))
    async with stream:
        await stream.send_all(b'{"type":"line","text":"use B","id":"b"}\n')
        await editor.until(lambda: any(each["id"] == "b" for each in editor.receipts()))
        gate.open.set()
        await editor.result(waiting)
    assert [each["state"] for each in editor.receipts() if each["id"] == "b"] == ["queued", "delivered"]
    assert "use B" in editor.text("user_message_chunk")


# ----------------------------------------------------------------------------------------------------------- steering


async def test_steering_is_answered_at_once_and_has_receipts(
    editor: Editor, session: str, waiting: int, gate: Gate
) -> None:
    answer = await editor.steer(session, "use the other file")
    assert answer["outcome"] == "injected"
    gate.open.set()
    await editor.result(waiting)
    line = answer["_meta"]["chain"]["lineId"]
    assert [r["state"] for r in editor.receipts() if r["id"] == line] == ["queued", "delivered"]


async def test_steering_without_a_run_may_start_one(editor: Editor, session: str) -> None:
    required, wrong = ({"_meta": {"steering": {"idleBehavior": each}}} for each in ("promptRequired", "sleep"))
    assert (await editor.steer(session, "hello", **required))["outcome"] == "promptRequired"
    assert not editor.receipts()
    with pytest.raises(RpcError) as caught:
        await editor.steer(session, "hello", **wrong)
    assert caught.value.code == INVALID_PARAMS
    assert (await editor.steer(session, "hello"))["outcome"] == "startedNewTurn"
    await editor.until(lambda: editor.text() == "Hello.")


# ------------------------------------------------------------------------------------------------------- cancellation


@pytest.mark.parametrize("has_begun", [True, False])
async def test_cancel_interrupts_a_run(editor: Editor, session: str, has_begun: bool) -> None:
    id = editor.prompt(session, "stream")
    if has_begun:
        await editor.until(editor.text)
    editor.tell("session/cancel", sessionId=session)
    assert await editor.reasons(id) == ["cancelled"]
    assert bool(editor.text()) == has_begun
    assert "seven" not in editor.text()
    assert await editor.run(session, "hello") == "end_turn"


async def test_prompts_after_a_cancel_run_next(editor: Editor, session: str, waiting: int) -> None:
    editor.tell("session/cancel", sessionId=session)
    later = [editor.prompt(session, text) for text in ("hello", "hello again")]
    assert await editor.reasons(waiting, *later) == ["cancelled", "end_turn", "end_turn"]
    assert "Hello." in editor.text()


async def test_prompts_after_a_stop_run_next(editor: Editor, session: str, waiting: int, gate: Gate) -> None:
    stop, later, dropped = (editor.prompt(session, text) for text in ("stop", "hello", "hello again"))
    editor.tell("$/cancel_request", requestId=dropped)
    assert await editor.reasons(dropped) == ["cancelled"]
    assert waiting not in editor.answers
    gate.open.set()
    assert await editor.reasons(waiting, stop, later) == ["end_turn"] * 3
    assert editor.text().endswith("Hello.")


async def test_a_cancel_withdraws_the_prompts_after_a_stop(editor: Editor, session: str, waiting: int) -> None:
    prompts = [editor.prompt(session, text) for text in ("stop", "hello")]
    blocks = [{"type": "text", "text": "and this"}]
    steering = editor.begin("_session/steering", sessionId=session, prompt=blocks)
    editor.tell("session/cancel", sessionId=session)
    with pytest.raises(RpcError) as caught:
        await editor.result(steering)
    assert caught.value.code == CANCELLED
    assert await editor.reasons(waiting, *prompts) == ["cancelled"] * 3
    assert "Hello." not in editor.text()


async def test_cancelling_a_request_drops_its_waiting_line_only(editor: Editor, session: str, waiting: int) -> None:
    second = editor.prompt(session, "never mind the rest of it")
    await editor.until(lambda: editor.receipts("queued"))
    editor.tell("$/cancel_request", requestId=second)
    assert (await editor.result(second))["_meta"]["chain"]["state"] == "dropped"
    assert waiting not in editor.answers
    editor.tell("$/cancel_request", requestId=waiting)
    assert await editor.reasons(waiting) == ["cancelled"]


@asynccontextmanager
async def behind(editor: Editor, session: str, gate: Gate) -> AsyncIterator[tuple[int, int]]:
    """Yield two prompts: the editor has not read the end of the first one's run, and the second one's waits."""
    editor.reads = trio.Event()
    first, second = editor.prompt(session, "loop"), editor.prompt(session, "then: wait")
    await gate.started.wait()
    await wait_all_tasks_blocked()
    yield first, second
    gate.open.set()
    editor.reads.set()


slow_reader = pytest.mark.parametrize("config", [{"max_iterations": ROOM}], indirect=True, ids=[""])


@slow_reader
async def test_an_earlier_runs_end_releases_no_prompt(editor: Editor, session: str, gate: Gate) -> None:
    async with behind(editor, session, gate) as (first, second):
        stop, third = editor.prompt(session, "stop"), editor.prompt(session, "hello")
        await wait_all_tasks_blocked()
        editor.reads.set()
        assert await editor.reasons(first) == ["max_turn_requests"]
        await wait_all_tasks_blocked()
        assert set(editor.answers).isdisjoint({second, stop, third})
    assert await editor.reasons(second, stop, third) == ["end_turn"] * 3
    assert editor.text().endswith("Hello.")


@slow_reader
async def test_prompts_keep_their_order_after_an_unread_end(editor: Editor, session: str, gate: Gate) -> None:
    async with behind(editor, session, gate) as (_, second):
        editor.tell("session/cancel", sessionId=session)
        third = editor.prompt(session, "hello")
        await wait_all_tasks_blocked()
        fourth = editor.prompt(session, "then: plan")
        await wait_all_tasks_blocked()
    assert await editor.reasons(second, third, fourth) == ["cancelled", "end_turn", "end_turn"]
    assert editor.text().endswith("Hello.Planned.")


@slow_reader
@pytest.mark.parametrize(("nth", "reason"), [(0, "end_turn"), (1, "cancelled")])
async def test_cancelling_a_request_interrupts_only_its_own_run(
    editor: Editor, session: str, gate: Gate, nth: int, reason: str
) -> None:
    async with behind(editor, session, gate) as prompts:
        editor.tell("$/cancel_request", requestId=prompts[nth])
        await wait_all_tasks_blocked()
    assert await editor.reasons(*prompts) == ["max_turn_requests", reason]


# ------------------------------------------------------------------------------------------------------------ updates


async def test_receipts_need_a_request_for_them(tmp_path: Path) -> None:
    async with connected(opener(tmp_path / "home", "rules: [{text: Hello.}]")) as editor:
        await editor.initialize()
        await editor.run(await editor.new(tmp_path), "hello")
        assert {message["method"] for message in editor.heard} == {"session/update"}


async def test_the_plan_is_sent_whole(editor: Editor, session: str) -> None:
    await editor.run(session, "plan")
    await editor.run(session, "todo: fail 2 too late")
    entries = [(entry["content"], entry["status"]) for entry in editor.updates("plan")[-1]["entries"]]
    assert entries == [("look", "pending"), ("write (failed: too late)", "completed")]
