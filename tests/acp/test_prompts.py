"""Prompts, steering and cancellation, as an editor sees them: each prompt is answered once, after its updates.

The first word of a prompt selects the model's reply, see ``RULES`` of ``support.editor``.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from support.editor import RULES, Editor, open_editor, opener, with_unread_end
from support.gate import Gate
from trio.testing import wait_all_tasks_blocked

from chain.events import Point
from cli.acp.rpc import CANCELLED, INTERNAL_ERROR, INVALID_PARAMS, RpcError
from cli.door import sockets


async def test_a_prompt_is_answered_after_its_updates(editor: Editor, session: str) -> None:
    prompt = editor.prompt(session, "hello")
    result = await editor.result(prompt)
    assert (result["stopReason"], result["_meta"]["chain"]["status"]) == ("end_turn", "done")
    assert editor.text() == "Hello."
    assert editor.last_message == ("answer", prompt)
    assert not editor.text("user_message_chunk"), "the editor shows its own prompt"


@pytest.mark.parametrize(
    ("query", "reason", "text"),
    [
        ("refuse", "refusal", "The model refused"),
        ("long", "max_tokens", "Too lo"),
        ("loop", "max_turn_requests", "without a final answer"),
        ("todo: add look", "end_turn", "look"),
        ("stop", "end_turn", "Nothing is running."),
        ("status", "end_turn", "nothing is running"),
    ],
)
@pytest.mark.parametrize("config", [{"max_iterations": 2}], indirect=True, ids=["2 iterations"])
async def test_each_end_has_its_stop_reason(editor: Editor, session: str, query: str, reason: str, text: str) -> None:
    assert await editor.run(session, query) == reason
    assert text in editor.text()


async def test_a_failed_run_is_an_error(editor: Editor, session: str) -> None:
    error = await editor.prompt_error(session, "fail")
    assert (error.code, error.data) == (INTERNAL_ERROR, {"chain": {"status": "error"}})
    assert "the service is gone" in error.message


async def test_an_image_and_a_file_are_attached(editor: Editor, session: str, workspace: Path) -> None:
    (workspace / "a b.txt").write_text("one\n")
    link = {"type": "resource_link", "uri": f"file://{workspace}/a%20b.txt", "name": "a b.txt"}
    data = base64.b64encode(b"\x89PNG\r\n\x1a\n and so on").decode()
    image = {"type": "image", "data": data, "mimeType": "image/png"}
    await editor.call("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "hello "}, link, image])
    [receipt] = editor.receipts("delivered")
    # The image has no name, and is the third block.
    assert receipt["reason"] == "with image 3 (PNG, 18 bytes), a b.txt (1 line)"


async def test_an_unusable_image_is_named(editor: Editor, session: str) -> None:
    image = {"type": "image", "data": "AAAA", "mimeType": "image/png"}
    error = await editor.error_of(
        "session/prompt", sessionId=session, prompt=[{"type": "text", "text": "hello "}, image]
    )
    assert "image 2 is not an image that can be sent" in error.message


async def test_a_prompt_during_a_run_interrupts(editor: Editor, session: str, waiting_prompt: int, gate: Gate) -> None:
    second = editor.prompt(session, "look elsewhere")
    await editor.wait_until(lambda: editor.receipts("queued"))
    gate.open.set()
    assert await editor.stop_reasons(waiting_prompt, second) == ["end_turn", "end_turn"]
    assert "Understood: " in editor.text()
    [shown] = editor.updates("user_message_chunk")
    assert (shown["content"]["text"], shown["_meta"]["chain"]["point"]) == ("look elsewhere", Point.AFTER_TOOLS)


@pytest.mark.parametrize("config", [{"inbox": {"size": 1}}], indirect=True, ids=["room for 1"])
async def test_a_full_queue_refuses_all_but_a_stop(
    editor: Editor, session: str, waiting_prompt: int, gate: Gate
) -> None:
    queued = editor.prompt(session, "one")
    error = await editor.prompt_error(session, "two")
    assert ("full" in error.message, error.data) == (True, {"chain": {"state": "refused"}})
    stop = editor.prompt(session, "stop")
    await editor.wait_until(lambda: editor.receipts("handled"))
    gate.open.set()
    assert await editor.stop_reasons(waiting_prompt, queued, stop) == ["end_turn", "cancelled", "end_turn"]


async def test_a_follow_up_has_its_own_answer(editor: Editor, session: str, waiting_prompt: int, gate: Gate) -> None:
    follow_up = editor.prompt(session, "then: hello")
    gate.open.set()
    lines = [(await editor.result(id))["_meta"]["chain"]["lineId"] for id in (waiting_prompt, follow_up)]
    assert lines == ["L1", "L2"]
    assert editor.log.index(("answer", waiting_prompt)) < editor.log.index(("answer", follow_up))
    assert editor.text() == "Looking.Waited.Hello."


async def test_a_line_of_the_side_door_is_shown(
    editor: Editor, session: str, waiting_prompt: int, gate: Gate, tmp_path: Path
) -> None:
    door = sockets.connect(tmp_path / "home/state/doors" / session)
    async with trio.SocketStream(trio.socket.from_stdlib_socket(door)) as stream:
        await stream.send_all(b'{"type":"line","text":"use B","id":"b"}\n')
        await editor.wait_until(lambda: editor.receipt_states("b"))
        gate.open.set()
        await editor.result(waiting_prompt)
    assert editor.receipt_states("b") == ["queued", "delivered"]
    assert "use B" in editor.text("user_message_chunk")


# ----------------------------------------------------------------------------------------------------------- steering


async def test_steering_is_answered_before_its_delivery(
    editor: Editor, session: str, waiting_prompt: int, gate: Gate
) -> None:
    answer = await editor.steer(session, "use the other file")
    assert answer["outcome"] == "injected"
    gate.open.set()
    await editor.result(waiting_prompt)
    assert editor.receipt_states(answer["_meta"]["chain"]["lineId"]) == ["queued", "delivered"]


async def test_steering_without_a_run_starts_one(editor: Editor, session: str) -> None:
    assert (await editor.steer(session, "hello"))["outcome"] == "startedNewTurn"
    await editor.wait_until(lambda: editor.text() == "Hello.")


def when_idle(behavior: str) -> dict[str, object]:
    """Return the parameter of steering that says what happens if no run is active."""
    return {"_meta": {"steering": {"idleBehavior": behavior}}}


async def test_steering_can_require_a_run(editor: Editor, session: str) -> None:
    answer = await editor.steer(session, "hello", **when_idle("promptRequired"))
    assert answer["outcome"] == "promptRequired"
    assert not editor.receipts()


async def test_an_unknown_idle_behavior_is_refused(editor: Editor, session: str) -> None:
    with pytest.raises(RpcError) as caught:
        await editor.steer(session, "hello", **when_idle("sleep"))
    assert caught.value.code == INVALID_PARAMS


# ------------------------------------------------------------------------------------------------------- cancellation


@pytest.mark.parametrize("has_text", [True, False], ids=["within the reply", "before the reply"])
async def test_cancel_interrupts_a_run(editor: Editor, session: str, has_text: bool) -> None:
    prompt = editor.prompt(session, "stream")
    if has_text:
        await editor.wait_until(editor.text)
    editor.notify("session/cancel", sessionId=session)
    assert await editor.stop_reasons(prompt) == ["cancelled"]
    assert bool(editor.text()) == has_text
    assert "seven" not in editor.text(), "the reply was cut before its last word"
    assert await editor.run(session, "hello") == "end_turn"


async def test_prompts_after_a_cancel_run_next(editor: Editor, session: str, waiting_prompt: int) -> None:
    editor.notify("session/cancel", sessionId=session)
    later = [editor.prompt(session, text) for text in ("hello", "hello again")]
    assert await editor.stop_reasons(waiting_prompt, *later) == ["cancelled", "end_turn", "end_turn"]
    assert "Hello." in editor.text()


async def test_prompts_after_a_stop_run_next(editor: Editor, session: str, waiting_prompt: int, gate: Gate) -> None:
    stop, later, cancelled = (editor.prompt(session, text) for text in ("stop", "hello", "hello again"))
    editor.notify("$/cancel_request", requestId=cancelled)
    assert await editor.stop_reasons(cancelled) == ["cancelled"]
    assert waiting_prompt not in editor.answers
    gate.open.set()
    assert await editor.stop_reasons(waiting_prompt, stop, later) == ["end_turn"] * 3
    assert editor.text().endswith("Hello.")


async def test_a_cancel_withdraws_the_prompts_after_a_stop(editor: Editor, session: str, waiting_prompt: int) -> None:
    prompts = [editor.prompt(session, text) for text in ("stop", "hello")]
    steering = editor.start_steering(session, "and this")
    editor.notify("session/cancel", sessionId=session)
    with pytest.raises(RpcError) as caught:
        await editor.result(steering)
    assert caught.value.code == CANCELLED
    assert await editor.stop_reasons(waiting_prompt, *prompts) == ["cancelled"] * 3
    assert "Hello." not in editor.text()


async def test_cancelling_a_request_drops_only_its_line(editor: Editor, session: str, waiting_prompt: int) -> None:
    second = editor.prompt(session, "never mind the rest of it")
    await editor.wait_until(lambda: editor.receipts("queued"))
    editor.notify("$/cancel_request", requestId=second)
    assert (await editor.result(second))["_meta"]["chain"]["state"] == "dropped"
    assert waiting_prompt not in editor.answers


async def test_cancelling_the_request_of_a_run_interrupts_it(editor: Editor, waiting_prompt: int) -> None:
    editor.notify("$/cancel_request", requestId=waiting_prompt)
    assert await editor.stop_reasons(waiting_prompt) == ["cancelled"]


@asynccontextmanager
async def unread_prompts(editor: Editor, session: str, gate: Gate) -> AsyncIterator[tuple[int, int]]:
    """Pause the editor's reading. Yield the ids of a prompt whose run has ended, and of one whose run is at the gate.

    At the end of the block, open the gate and let the editor read again.
    """
    editor.pause_reading()
    ended, active = editor.prompt(session, "loop"), editor.prompt(session, "then: wait")
    await gate.started.wait()
    await wait_all_tasks_blocked()  # until the agent waits for its editor
    yield ended, active
    gate.open.set()
    editor.reads.set()


@with_unread_end
async def test_an_earlier_runs_end_releases_no_prompt(editor: Editor, session: str, gate: Gate) -> None:
    async with unread_prompts(editor, session, gate) as (ended, active):
        stop, next_prompt = editor.prompt(session, "stop"), editor.prompt(session, "hello")
        await wait_all_tasks_blocked()  # until the agent has both
        editor.reads.set()
        assert await editor.stop_reasons(ended) == ["max_turn_requests"]
        await wait_all_tasks_blocked()  # in which a wrong answer would come
        assert set(editor.answers).isdisjoint({active, stop, next_prompt})
    assert await editor.stop_reasons(active, stop, next_prompt) == ["end_turn"] * 3
    assert editor.text().endswith("Hello.")


@with_unread_end
async def test_prompts_keep_their_order_after_an_unread_end(editor: Editor, session: str, gate: Gate) -> None:
    async with unread_prompts(editor, session, gate) as (_, active):
        editor.notify("session/cancel", sessionId=session)
        third = editor.prompt(session, "hello")
        await wait_all_tasks_blocked()  # so that the fourth finds the third waiting
        fourth = editor.prompt(session, "then: plan")
        await wait_all_tasks_blocked()  # until the agent has it, before the unread end is read
    assert await editor.stop_reasons(active, third, fourth) == ["cancelled", "end_turn", "end_turn"]
    assert editor.text().endswith("Hello.Planned.")


@with_unread_end
@pytest.mark.parametrize(("is_ended", "reason"), [(True, "end_turn"), (False, "cancelled")], ids=["ended", "active"])
async def test_cancelling_a_request_interrupts_only_its_run(
    editor: Editor, session: str, gate: Gate, is_ended: bool, reason: str
) -> None:
    async with unread_prompts(editor, session, gate) as (ended, active):
        editor.notify("$/cancel_request", requestId=ended if is_ended else active)
        await wait_all_tasks_blocked()  # until the agent has it
    assert await editor.stop_reasons(ended, active) == ["max_turn_requests", reason]


# ------------------------------------------------------------------------------------------------------------ updates


async def test_receipts_need_a_request_for_them(tmp_path: Path) -> None:
    async with open_editor(opener(tmp_path / "home", RULES)) as editor:
        await editor.run(await editor.new_session(tmp_path), "hello")
        assert {message["method"] for message in editor.notifications} == {"session/update"}


async def test_the_plan_is_sent_whole(editor: Editor, session: str) -> None:
    await editor.run(session, "plan")
    await editor.run(session, "todo: fail 2 too late")
    *_, plan = editor.updates("plan")
    assert [(entry["content"], entry["status"]) for entry in plan["entries"]] == [
        ("look", "pending"),
        ("write (failed: too late)", "completed"),
    ]
