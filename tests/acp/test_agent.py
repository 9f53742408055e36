"""The agent as an editor meets it, in lock-step: prompts, updates, permissions, cancelling, steering, loading."""

import base64
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from support.editor import Editor, connected, opener
from support.examples import some
from support.gate import Gate
from support.servers import entry_of, heard

from chain.config.load import load_settings
from chain.lines.parse import MAX_LINE
from chain.tools.tool import ToolContext, tool
from cli.acp.opener import SessionOpener
from cli.acp.rpc import (
    CANCELLED,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    NOT_FOUND,
    RpcError,
)
from cli.door import sockets
from cli.outbox import ROOM

RULES = r"""
rules:
  - {when: {interruption: 'stream'}, text: "Understood.", and: work}
  - {when: {interruption: '(?P<all>[\s\S]+)'}, text: "Understood: ${all}", and: continue}
  - {when: {user: '\Await', tool: wait}, text: "Waited."}
  - {when: {user: '\Await'}, text: "Looking.", tools: [{name: wait, input: {}}]}
  - {when: {user: '\Astream'}, text: "one two LONG seven", pace: {chunk: 4, delay_s: 0.02}}
  - {when: {user: '\Awrite', tool: write_file}, text: "Written: ${result}"}
  - {when: {user: '\Awrite'}, tools: [{name: write_file, input: {path: new.txt, content: "a\nb\n"}}]}
  - {when: {user: '\Aedit', tool: edit_file}, text: "Edited: ${result}"}
  - when: {user: '\Aedit', tool: read_file}
    tools: [{name: edit_file, input: {path: old.txt, old_string: b, new_string: B}}]
  - {when: {user: '\Aedit'}, tools: [{name: read_file, input: {path: old.txt}}]}
  - {when: {user: '\Aask', tool: ask_user_question}, text: "You said: ${result}"}
  - {when: {user: '\Aask'}, tools: [{name: ask_user_question, input: {question: "Which?", options: [left, stop]}}]}
  - {when: {user: '\Aplan', tool: plan_set_tasks}, text: "Planned."}
  - {when: {user: '\Aplan'}, tools: [{name: plan_set_tasks, input: {tasks: [look, write]}}]}
  - {when: {user: '\Arefuse'}, text: "No.", stop_reason: refusal}
  - {when: {user: '\Along'}, text: "Too lo", stop_reason: max_tokens}
  - {when: {user: '\Aloop', tool: plan_list}, tools: [{name: plan_list, input: {}}]}
  - {when: {user: '\Aloop'}, tools: [{name: plan_list, input: {}}]}
  - {when: {user: '\Aexplore', tool: explore}, text: "It says: ${result}"}
  - {when: {user: '\Aexplore'}, tools: [{name: explore, input: {task: "look around"}}]}
  - {when: {user: 'look around'}, text: "I see nothing."}
  - {text: "Hello."}
""".replace("LONG", "three " * 1_000)
"""Streaming all of the long text takes longer than anything that is to happen in the middle of it."""


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
async def editor(tmp_path: Path, gate: Gate) -> AsyncIterator[Editor]:
    (tmp_path / "ws").mkdir()
    groups = ("todo", "ask", "files", "edit", "agents")
    async with connected(opener(tmp_path / "home", RULES, tools=[gate.tool], groups=groups)) as editor:
        await editor.initialize(_meta={"receipts": True})
        yield editor


def chain_meta(result: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = result["_meta"]["chain"]
    return found


# ----------------------------------------------------------------------------------------------------------- prompts


async def test_a_prompt_is_answered_behind_all_updates_of_its_run(editor: Editor, tmp_path: Path) -> None:
    session = await editor.new(tmp_path / "ws")
    id = editor.prompt(session, "hello")
    result = await editor.result(id)
    assert result["stopReason"] == "end_turn"
    assert chain_meta(result)["status"] == "done"
    assert editor.text() == "Hello."
    assert editor.log[-1] == ("answer", id)
    assert not editor.text("user_message_chunk"), "the editor shows its own prompt"


async def test_an_image_and_a_file_of_the_workspace_go_along(editor: Editor, tmp_path: Path) -> None:
    session = await editor.new(tmp_path / "ws")
    (tmp_path / "ws" / "a b.txt").write_text("one\n")
    picture = base64.b64encode(b"\x89PNG\r\n\x1a\n and so on").decode()
    link = {"type": "resource_link", "uri": f"file://{tmp_path}/ws/a%20b.txt", "name": "a b.txt"}
    blocks = [{"type": "text", "text": "hello "}, link, {"type": "image", "data": picture, "mimeType": "image/png"}]
    result = await editor.result(editor.begin("session/prompt", sessionId=session, prompt=blocks))
    assert result["stopReason"] == "end_turn"
    (told,) = editor.receipts("delivered")
    assert told["reason"] == "with image 3 (PNG, 18 bytes), a b.txt (1 line)"


async def test_an_image_that_is_none_refuses_the_prompt(editor: Editor, tmp_path: Path) -> None:
    session = await editor.new(tmp_path / "ws")
    blocks = [{"type": "image", "data": "AAAA", "mimeType": "image/png"}]
    error = await editor.error("session/prompt", sessionId=session, prompt=blocks)
    assert "image 1 is not an image that can be sent" in error.message


async def test_a_slash_and_a_moment_are_text(editor: Editor, tmp_path: Path) -> None:
    session = await editor.new(tmp_path / "ws")
    for text in ("/quit", "@done hello"):
        assert (await editor.result(editor.prompt(session, text)))["stopReason"] == "end_turn"
    assert editor.text() == "Hello.Hello."


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
async def test_how_a_run_ends_is_the_stop_reason(
    editor: Editor, tmp_path: Path, query: str, reason: str, said: str
) -> None:
    session = await editor.new(tmp_path / "ws")
    result = await editor.result(editor.prompt(session, query))
    assert result["stopReason"] == reason
    assert said in editor.text()


async def test_a_run_that_fails_is_an_error_with_the_reason(tmp_path: Path) -> None:
    rules = "rules: [{error: {message: the service is gone, retryable: false}}]"
    async with connected(opener(tmp_path / "home", rules)) as editor:
        await editor.initialize()
        session = await editor.new(tmp_path)
        error = await editor.error("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "x"}])
    assert error.code == INTERNAL_ERROR
    assert "the service is gone" in error.message
    assert error.data == {"chain": {"status": "error"}}


async def test_a_second_prompt_in_mid_turn_interrupts_and_both_are_answered(
    editor: Editor, tmp_path: Path, gate: Gate
) -> None:
    session = await editor.new(tmp_path / "ws")
    first = editor.prompt(session, "wait for me")
    await gate.started.wait()
    second = editor.prompt(session, "look elsewhere")
    await editor.until(lambda: editor.receipts("queued"))
    gate.open.set()
    results = [await editor.result(id) for id in (first, second)]
    assert [result["stopReason"] for result in results] == ["end_turn", "end_turn"]
    assert "Understood: " in editor.text()
    assert "look elsewhere" in editor.text()
    assert editor.text("user_message_chunk") == "look elsewhere"
    assert editor.updates("user_message_chunk")[0]["_meta"]["chain"]["point"] == "D"


async def test_a_full_channel_is_an_error_with_the_reason_and_a_stop_still_stops(tmp_path: Path, gate: Gate) -> None:
    async with connected(opener(tmp_path / "home", RULES, tools=[gate.tool], inbox={"size": 1})) as editor:
        await editor.initialize(_meta={"receipts": True})
        session = await editor.new(tmp_path)
        ids = [editor.prompt(session, "wait")]
        await gate.started.wait()
        ids.append(editor.prompt(session, "one"))
        error = await editor.error("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "two"}])
        assert "full" in error.message
        assert error.data == {"chain": {"state": "refused"}}
        ids.append(editor.prompt(session, "stop"))
        await editor.until(lambda: editor.receipts("handled"))
        gate.open.set()
        results = [(await editor.result(id))["stopReason"] for id in ids]
        assert results == ["end_turn", "cancelled", "end_turn"]


async def test_a_follow_up_is_answered_by_its_own_run(editor: Editor, tmp_path: Path, gate: Gate) -> None:
    session = await editor.new(tmp_path / "ws")
    first = editor.prompt(session, "wait")
    await gate.started.wait()
    second = editor.prompt(session, "then: hello")
    gate.open.set()
    results = [chain_meta(await editor.result(id)) for id in (first, second)]
    assert [result["lineId"] for result in results] == ["L1", "L2"]
    assert editor.log.index(("answer", first)) < editor.log.index(("answer", second))
    assert editor.text() == "Looking.Waited.Hello."


# ----------------------------------------------------------------------------------------------- cancelling, steering


async def test_cancel_in_mid_stream(editor: Editor, tmp_path: Path) -> None:
    session = await editor.new(tmp_path / "ws")
    id = editor.prompt(session, "stream")
    await editor.until(lambda: editor.text())
    editor.tell("session/cancel", sessionId=session)
    assert (await editor.result(id))["stopReason"] == "cancelled"
    assert "seven" not in editor.text()
    assert (await editor.result(editor.prompt(session, "hello")))["stopReason"] == "end_turn"


async def test_a_cancel_that_comes_right_behind_its_prompt_finds_it(editor: Editor, tmp_path: Path) -> None:
    session = await editor.new(tmp_path / "ws")
    id = editor.prompt(session, "stream")
    editor.tell("session/cancel", sessionId=session)
    assert (await editor.result(id))["stopReason"] == "cancelled"
    assert not editor.text()


async def test_a_prompt_behind_a_cancel_is_for_the_next_run(editor: Editor, tmp_path: Path, gate: Gate) -> None:
    session = await editor.new(tmp_path / "ws")
    first = editor.prompt(session, "wait")
    await gate.started.wait()
    editor.tell("session/cancel", sessionId=session)
    second, third = editor.prompt(session, "hello"), editor.prompt(session, "hello again")
    assert (await editor.result(first))["stopReason"] == "cancelled"
    assert (await editor.result(second))["stopReason"] == "end_turn"
    assert (await editor.result(third))["stopReason"] == "end_turn"
    assert "Hello." in editor.text()


async def test_a_prompt_behind_a_stop_is_for_the_next_run(editor: Editor, tmp_path: Path, gate: Gate) -> None:
    session = await editor.new(tmp_path / "ws")
    first = editor.prompt(session, "wait")
    await gate.started.wait()
    stop, second, dropped = (editor.prompt(session, text) for text in ("stop", "hello", "hello again"))
    editor.tell("$/cancel_request", requestId=dropped)
    assert (await editor.result(dropped))["stopReason"] == "cancelled"
    assert first not in editor.answers
    gate.open.set()
    for id in (first, stop, second):
        assert (await editor.result(id))["stopReason"] == "end_turn"
    assert editor.text().endswith("Hello.")


async def test_a_cancel_takes_the_prompts_behind_a_stop_with_it(editor: Editor, tmp_path: Path, gate: Gate) -> None:
    session = await editor.new(tmp_path / "ws")
    ids = [editor.prompt(session, "wait")]
    await gate.started.wait()
    ids += [editor.prompt(session, text) for text in ("stop", "hello")]
    block = {"type": "text", "text": "and this"}
    steering = editor.begin("_session/steering", sessionId=session, prompt=[block])
    editor.tell("session/cancel", sessionId=session)
    with pytest.raises(RpcError) as caught:
        await editor.result(steering)
    assert caught.value.code == CANCELLED
    assert [(await editor.result(id))["stopReason"] for id in ids] == ["cancelled"] * 3
    assert "Hello." not in editor.text()


async def test_cancelling_the_request_drops_a_line_that_waits_and_interrupts_otherwise(
    editor: Editor, tmp_path: Path, gate: Gate
) -> None:
    session = await editor.new(tmp_path / "ws")
    first = editor.prompt(session, "wait")
    await gate.started.wait()
    second = editor.prompt(session, "never mind the rest of it")
    await editor.until(lambda: editor.receipts("queued"))
    editor.tell("$/cancel_request", requestId=second)
    assert chain_meta(await editor.result(second))["state"] == "dropped"
    assert first not in editor.answers
    editor.tell("$/cancel_request", requestId=first)
    assert (await editor.result(first))["stopReason"] == "cancelled"


@asynccontextmanager
async def behind(home: Path, gate: Gate) -> AsyncIterator[tuple[Editor, str, int, int]]:
    """An editor that has not read how its first run ended while its second is held in a tool, and both prompts."""
    async with connected(opener(home / "home", RULES, tools=[gate.tool], max_iterations=ROOM)) as editor:
        await editor.initialize()
        session = await editor.new(home)
        editor.reads = trio.Event()
        first, second = editor.prompt(session, "loop"), editor.prompt(session, "then: wait")
        await gate.started.wait()
        await trio.testing.wait_all_tasks_blocked()
        yield editor, session, first, second


async def test_the_end_of_an_earlier_run_lets_no_prompt_into_one_that_was_stopped(tmp_path: Path, gate: Gate) -> None:
    async with behind(tmp_path, gate) as (editor, session, first, second):
        stop, third = editor.prompt(session, "stop"), editor.prompt(session, "hello")
        await trio.testing.wait_all_tasks_blocked()
        editor.reads.set()
        assert (await editor.result(first))["stopReason"] == "max_turn_requests"
        await trio.testing.wait_all_tasks_blocked()
        assert set(editor.answers).isdisjoint({second, stop, third})
        gate.open.set()
        assert [(await editor.result(id))["stopReason"] for id in (second, stop, third)] == ["end_turn"] * 3
        assert editor.text().endswith("Hello.")


async def test_prompts_behind_a_run_that_is_over_and_not_told_keep_their_order(tmp_path: Path, gate: Gate) -> None:
    async with behind(tmp_path, gate) as (editor, session, _, second):
        editor.tell("session/cancel", sessionId=session)
        third = editor.prompt(session, "hello")
        await trio.testing.wait_all_tasks_blocked()
        fourth = editor.prompt(session, "then: plan")
        await trio.testing.wait_all_tasks_blocked()
        editor.reads.set()
        assert (await editor.result(second))["stopReason"] == "cancelled"
        assert [(await editor.result(id))["stopReason"] for id in (third, fourth)] == ["end_turn"] * 2
        assert editor.text().endswith("Hello.Planned.")


@pytest.mark.parametrize(("nth", "reason"), [(0, "end_turn"), (1, "cancelled")])
async def test_taking_back_a_prompt_interrupts_its_own_run_alone(
    tmp_path: Path, gate: Gate, nth: int, reason: str
) -> None:
    async with behind(tmp_path, gate) as (editor, _, first, second):
        editor.tell("$/cancel_request", requestId=(first, second)[nth])
        await trio.testing.wait_all_tasks_blocked()
        gate.open.set()
        editor.reads.set()
        assert (await editor.result(first))["stopReason"] == "max_turn_requests"
        assert (await editor.result(second))["stopReason"] == reason


async def test_steering_in_mid_turn_has_its_receipt(editor: Editor, tmp_path: Path, gate: Gate) -> None:
    session = await editor.new(tmp_path / "ws")
    id = editor.prompt(session, "wait")
    await gate.started.wait()
    block = {"type": "text", "text": "use the other file"}
    answer = await editor.call("_session/steering", sessionId=session, prompt=[block])
    assert answer["outcome"] == "injected"
    line = chain_meta(answer)["lineId"]
    gate.open.set()
    await editor.result(id)
    assert [r["state"] for r in editor.receipts() if r["id"] == line] == ["queued", "delivered"]
    assert [r["point"] for r in editor.receipts("delivered") if r["id"] == line] == ["D"]


async def test_steering_with_no_turn(editor: Editor, tmp_path: Path) -> None:
    session = await editor.new(tmp_path / "ws")
    asked = {"sessionId": session, "prompt": [{"type": "text", "text": "hello"}]}
    idle = {"_meta": {"steering": {"idleBehavior": "promptRequired"}}}
    assert (await editor.call("_session/steering", **asked, **idle))["outcome"] == "promptRequired"
    assert not editor.receipts()
    assert (await editor.call("_session/steering", **asked))["outcome"] == "startedNewTurn"
    await editor.until(lambda: editor.text() == "Hello.")
    wrong = {"_meta": {"steering": {"idleBehavior": "sleep"}}}
    assert (await editor.error("_session/steering", **asked, **wrong)).code == INVALID_PARAMS


async def test_a_now_line_cuts_the_reply(editor: Editor, tmp_path: Path) -> None:
    session = await editor.new(tmp_path / "ws")
    id = editor.prompt(session, "stream")
    await editor.until(lambda: editor.text())
    await editor.call("_session/steering", sessionId=session, prompt=[{"type": "text", "text": "!!turn round"}])
    assert (await editor.result(id))["stopReason"] == "end_turn"
    assert "Understood: " in editor.text()
    assert editor.updates("user_message_chunk")[0]["_meta"]["chain"]["point"] == "N"


async def test_receipts_are_for_those_who_ask(tmp_path: Path) -> None:
    async with connected(opener(tmp_path / "home", RULES)) as editor:
        await editor.initialize()
        await editor.result(editor.prompt(await editor.new(tmp_path), "hello"))
        assert {message["method"] for message in editor.heard} == {"session/update"}


# ---------------------------------------------------------------------------------------------------------- questions


@pytest.mark.parametrize(
    ("option", "status", "said", "content"),
    [
        ("y", "completed", "Created new.txt", "a\nb\n"),
        ("a", "completed", "Created new.txt", "a\nb\n"),
        ("n", "failed", "refused", None),
        ("nonsense", "failed", "refused", None),
    ],
)
async def test_permission_shows_the_difference_and_decides(
    editor: Editor, tmp_path: Path, option: str, status: str, said: str, content: str | None
) -> None:
    session = await editor.new(tmp_path / "ws")
    id = editor.prompt(session, "write")
    asked = await editor.question()
    assert asked.method == "session/request_permission"
    assert [each["kind"] for each in asked.params["options"]] == ["allow_once", "allow_always", "reject_once"]
    call = asked.params["toolCall"]
    [shown] = call["content"]
    path = str(tmp_path / "ws" / "new.txt")
    assert (shown["type"], shown["path"], shown["oldText"], shown["newText"]) == ("diff", path, None, "a\nb\n")
    assert editor.calls()[call["toolCallId"]]["status"] == "pending"
    editor.choose(asked, option)
    await editor.result(id)
    assert editor.calls()[call["toolCallId"]]["status"] == status
    assert said in editor.text()
    file = tmp_path / "ws" / "new.txt"
    assert (file.read_text() if file.exists() else None) == content


async def test_a_mode_that_is_given_at_the_start_holds_and_a_command_changes_it(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    use = replace(opener(tmp_path / "home", RULES, groups=("edit",)), mode="read only")
    async with connected(use) as editor:
        await editor.initialize()
        session = await editor.new(tmp_path / "ws")
        await editor.result(editor.prompt(session, "write"))
        assert "Denied: the mode is read only" in editor.text()
        await editor.result(editor.prompt(session, "/mode accept edits"))
        await editor.result(editor.prompt(session, "write"))
    assert (tmp_path / "ws" / "new.txt").exists()


async def test_an_edit_shows_what_stood_there(editor: Editor, tmp_path: Path) -> None:
    (tmp_path / "ws" / "old.txt").write_text("a\nb\nc")
    id = editor.prompt(await editor.new(tmp_path / "ws"), "edit")
    asked = await editor.question()
    [shown] = asked.params["toolCall"]["content"]
    assert (shown["oldText"], shown["newText"]) == ("a\nb\nc", "a\nB\nc")
    assert asked.params["toolCall"]["locations"] == [{"path": str(tmp_path / "ws" / "old.txt")}]
    editor.choose(asked, "y")
    await editor.result(id)
    assert {call["kind"] for call in editor.calls().values()} == {"read", "edit"}
    edit = next(call for call in editor.calls().values() if call["kind"] == "edit")
    assert edit["rawInput"]["new_string"] == "B"
    assert [each["type"] for each in edit["content"]] == ["diff", "content"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"outcome": {"outcome": "selected", "optionId": "2"}}, ": stop"),
        ({"outcome": {"outcome": "selected", "optionId": "none"}}, "decide"),
        ({"outcome": {"outcome": "cancelled"}}, "decide"),
        ({"outcome": 5}, "decide"),
    ],
)
async def test_a_choice_offers_its_options(
    editor: Editor, tmp_path: Path, answer: dict[str, object], said: str
) -> None:
    id = editor.prompt(await editor.new(tmp_path / "ws"), "ask")
    asked = await editor.question()
    assert [each["name"] for each in asked.params["options"]][:2] == ["left", "stop"]
    editor.answer(asked, **answer)
    assert (await editor.result(id))["stopReason"] == "end_turn"
    assert said in editor.text()


@asynccontextmanager
async def with_forms(home: Path, *groups: str) -> AsyncIterator[tuple[Editor, str]]:
    """An editor that shows forms, and its session."""
    async with connected(opener(home / "home", RULES, groups=groups)) as editor:
        await editor.initialize(clientCapabilities={"elicitation": {"form": {}}})
        yield editor, await editor.new(home)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"action": "accept", "content": {"choice": "2"}}, ": stop"),
        ({"action": "accept", "content": {"choice": "1", "other": " "}}, ": left"),
        ({"action": "accept", "content": {"choice": "1", "other": "go back"}}, ": go back"),
        ({"action": "accept", "content": {"choice": "3"}}, "decide"),
        ({"action": "accept", "content": {"choice": 1}}, "decide"),
        ({"action": "accept", "content": {"other": "x" * (MAX_LINE + 1)}}, "decide"),
        ({"action": "accept", "content": None}, "decide"),
        ({"action": "decline"}, "decide"),
        ({"action": "cancel"}, "decide"),
        ({"action": 5}, "decide"),
    ],
)
async def test_a_choice_is_a_form_where_there_are_forms(tmp_path: Path, answer: dict[str, object], said: str) -> None:
    async with with_forms(tmp_path, "ask") as (editor, session):
        id = editor.prompt(session, "ask")
        asked = await editor.question()
        assert (asked.method, asked.params["mode"], asked.params["message"]) == ("elicitation/create", "form", "Which?")
        assert asked.params["sessionId"] == session
        assert asked.params["toolCallId"] in editor.calls()
        fields = asked.params["requestedSchema"]["properties"]
        assert [each["title"] for each in fields["choice"]["oneOf"]] == ["left", "stop"]
        editor.answer(asked, **answer)
        assert (await editor.result(id))["stopReason"] == "end_turn"
        assert said in editor.text()


async def test_a_form_that_cannot_be_shown_chooses_nothing(tmp_path: Path) -> None:
    async with with_forms(tmp_path, "ask") as (editor, session):
        id = editor.prompt(session, "ask")
        asked = await editor.question()
        editor.say(id=asked.id, error={"code": METHOD_NOT_FOUND, "message": "no such method"})
        await editor.result(id)
        assert "decide" in editor.text()


async def test_a_form_is_withdrawn_with_its_question(tmp_path: Path) -> None:
    async with with_forms(tmp_path, "ask") as (editor, session):
        id = editor.prompt(session, "ask")
        asked = await editor.question()
        editor.prompt(session, "stop")
        await editor.result(id)
        withdrawn = {"method": "$/cancel_request", "params": {"requestId": asked.id}}
        await editor.until(lambda: withdrawn in editor.heard)


async def test_an_approval_is_a_permission_where_there_are_forms(tmp_path: Path) -> None:
    async with with_forms(tmp_path, "files", "edit") as (editor, session):
        id = editor.prompt(session, "write")
        asked = await editor.question()
        assert asked.method == "session/request_permission"
        editor.choose(asked, "n")
        await editor.result(id)


async def test_an_editor_that_cannot_ask_refuses_with_its_reason(editor: Editor, tmp_path: Path) -> None:
    id = editor.prompt(await editor.new(tmp_path / "ws"), "write")
    asked = await editor.question()
    editor.say(id=asked.id, error={"code": METHOD_NOT_FOUND, "message": "no such thing here"})
    assert (await editor.result(id))["stopReason"] == "end_turn"
    assert "no such thing here" in editor.text()


async def test_a_question_that_is_withdrawn_is_asked_no_more(editor: Editor, tmp_path: Path) -> None:
    session = await editor.new(tmp_path / "ws")
    id = editor.prompt(session, "write")
    asked = await editor.question()
    editor.tell("session/cancel", sessionId=session)
    assert (await editor.result(id))["stopReason"] == "cancelled"
    await editor.until(lambda: any(m["method"] == "$/cancel_request" for m in editor.heard))
    # The editor's answer, as the protocol wants it, comes too late and changes nothing.
    editor.answer(asked, outcome={"outcome": "cancelled"})
    assert (await editor.result(editor.prompt(session, "hello")))["stopReason"] == "end_turn"
    assert editor.calls()[asked.params["toolCall"]["toolCallId"]]["status"] == "failed"


# ------------------------------------------------------------------------------------------------------------ updates


async def test_the_plan_is_told_whole(editor: Editor, tmp_path: Path) -> None:
    session = await editor.new(tmp_path / "ws")
    await editor.result(editor.prompt(session, "plan"))
    await editor.result(editor.prompt(session, "todo: fail 2 too late"))
    entries = editor.updates("plan")[-1]["entries"]
    assert [(entry["content"], entry["status"]) for entry in entries] == [
        ("look", "pending"),
        ("write (failed: too late)", "completed"),
    ]


async def test_what_a_child_does_names_the_child_and_its_call(editor: Editor, tmp_path: Path) -> None:
    await editor.result(editor.prompt(await editor.new(tmp_path / "ws"), "explore"))
    [parent] = [call for call in editor.calls().values() if call["kind"] == "think"]
    thought = next(u for u in editor.updates("agent_thought_chunk") if u["content"]["text"] == "I see nothing.")
    assert thought["_meta"]["chain"] == {"agent": "explore-1", "parentToolCallId": parent["toolCallId"]}
    assert editor.text() == "It says: I see nothing."


# ----------------------------------------------------------------------------------------------------------- sessions


async def test_a_session_is_listed_loaded_and_resumed(tmp_path: Path, gate: Gate) -> None:
    (tmp_path / "ws").mkdir()
    use = opener(tmp_path / "home", RULES, tools=[gate.tool])
    async with connected(use) as editor:
        await editor.initialize()
        session = await editor.new(tmp_path / "ws")
        first = editor.prompt(session, "wait")
        await gate.started.wait()
        second = editor.prompt(session, "look elsewhere")
        gate.open.set()
        for id in (first, second):
            await editor.result(id)
        told = (editor.text(), editor.text("user_message_chunk"))
    async with connected(use) as editor:
        await editor.initialize()
        [listed] = (await editor.call("session/list", cwd=str(tmp_path / "ws")))["sessions"]
        assert (listed["sessionId"], listed["title"], listed["cwd"]) == (session, "wait", str(tmp_path / "ws"))
        assert (await editor.call("session/list", cwd=str(tmp_path)))["sessions"] == []
        where = {"sessionId": session, "cwd": str(tmp_path / "ws"), "mcpServers": []}
        id = editor.begin("session/load", **where)
        await editor.result(id)
        behind = editor.log[editor.log.index(("answer", id)) + 1 :]
        assert {kind for _, kind in behind} <= {"available_commands_update"}, "the past comes before the answer"
        assert (editor.text(), editor.text("user_message_chunk")) == (told[0], "wait" + told[1])
        assert [call["status"] for call in editor.calls().values()] == ["completed"]
        assert (await editor.error("session/load", **where)).code == INVALID_REQUEST
        await editor.call("session/close", sessionId=session)
        editor.heard.clear()
        await editor.call("session/resume", **where)
        assert (await editor.result(editor.prompt(session, "hello")))["stopReason"] == "end_turn"
        kinds = [update["sessionUpdate"] for update in editor.updates()]
        assert kinds == ["available_commands_update", "agent_message_chunk"], "nothing of the past"


async def test_closing_a_session_ends_its_run_first(editor: Editor, tmp_path: Path, gate: Gate) -> None:
    session, other = await editor.new(tmp_path / "ws"), await editor.new(tmp_path / "ws")
    id = editor.prompt(session, "wait")
    await gate.started.wait()
    closing = editor.begin("session/close", sessionId=session)
    assert (await editor.result(id))["stopReason"] == "cancelled"
    assert await editor.result(closing) == {}
    assert (await editor.error("session/close", sessionId=session)).code == NOT_FOUND
    error = await editor.error("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "x"}])
    assert error.code == NOT_FOUND
    assert (await editor.result(editor.prompt(other, "hello")))["stopReason"] == "end_turn"


@pytest.mark.parametrize("is_closed", [True, False])
async def test_leaving_a_session_answers_all_of_its_prompts(tmp_path: Path, gate: Gate, is_closed: bool) -> None:
    async with connected(opener(tmp_path / "home", RULES, tools=[gate.tool])) as editor:
        await editor.initialize()
        session = await editor.new(tmp_path)
        ids = [editor.prompt(session, "wait")]
        await gate.started.wait()
        texts = ("it waits for a safe point", "then: it waits for the end", "stop", "it is held back")
        ids += [editor.prompt(session, text) for text in texts]
        if is_closed:
            await editor.call("session/close", sessionId=session)
            assert set(ids) <= set(editor.answers)
    reasons = [editor.answers[id]["result"]["stopReason"] for id in ids]
    assert reasons == ["cancelled"] * len(ids)


async def test_loading_waits_for_a_close_and_is_for_one_request(editor: Editor, tmp_path: Path, gate: Gate) -> None:
    session = await editor.new(tmp_path / "ws")
    id = editor.prompt(session, "wait")
    await gate.started.wait()
    where = {"sessionId": session, "cwd": str(tmp_path / "ws"), "mcpServers": []}
    closing = editor.begin("session/close", sessionId=session)
    first, second = (editor.begin(f"session/{how}", **where) for how in ("load", "resume"))
    await editor.result(first)
    with pytest.raises(RpcError) as caught:
        await editor.result(second)
    assert caught.value.code == INVALID_REQUEST
    assert f"{session} is being opened here" in caught.value.message
    assert await editor.result(closing) == {}
    assert (await editor.result(id))["stopReason"] == "cancelled"
    answers = [answered for what, answered in editor.log if what == "answer"]
    assert answers.index(id) < answers.index(closing) < answers.index(first)
    assert "is open here" in (await editor.error("session/load", **where)).message
    assert (await editor.result(editor.prompt(session, "hello")))["stopReason"] == "end_turn"


async def test_a_session_that_could_not_be_loaded_can_be_loaded(editor: Editor, tmp_path: Path) -> None:
    session = await editor.new(tmp_path / "ws")
    await editor.result(editor.prompt(session, "hello"))
    await editor.call("session/close", sessionId=session)
    where = {"sessionId": session, "mcpServers": []}
    assert (await editor.error("session/load", cwd=str(tmp_path), **where)).code == INVALID_PARAMS
    await editor.call("session/load", cwd=str(tmp_path / "ws"), **where)
    assert (await editor.result(editor.prompt(session, "hello")))["stopReason"] == "end_turn"


async def test_the_end_of_the_input_closes_every_session(tmp_path: Path, gate: Gate) -> None:
    (tmp_path / "ws").mkdir()
    async with connected(opener(tmp_path / "home", RULES, tools=[gate.tool])) as editor:
        await editor.initialize()
        sessions = [await editor.new(tmp_path / "ws") for _ in range(2)]
        ids = [editor.prompt(session, "wait") for session in sessions]
        await gate.started.wait()
    assert [editor.answers[id]["result"]["stopReason"] for id in ids] == ["cancelled", "cancelled"]
    for session in sessions:
        rows = (tmp_path / "home/state/sessions" / f"{session}.jsonl").read_text().splitlines()
        assert json.loads(rows[-1])["status"] == "interrupted"


async def test_a_session_that_fails_ends_alone(tmp_path: Path, gate: Gate) -> None:
    (tmp_path / "ws").mkdir()
    broken = tmp_path / "ws" / "system.yaml"
    use = opener(tmp_path / "home", RULES, tools=[gate.tool])
    broken.write_text("messages: [")
    (tmp_path / "home" / "system.yaml").unlink()
    async with connected(use) as editor:
        await editor.initialize()
        error = await editor.error("session/new", cwd=str(tmp_path / "ws"), mcpServers=[])
        assert "system.yaml" in error.message
        (tmp_path / "home" / "system.yaml").write_text("messages: [{role: system, content: You are a test.}]")
        session = await editor.new(tmp_path / "ws")
        assert (await editor.result(editor.prompt(session, "hello")))["stopReason"] == "end_turn"


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ("model: x, base_url: 'http://127.0.0.1:1'", "models.definitions.claude.base_url"),
        ("model: x", "ANTHROPIC_API_KEY"),
    ],
)
async def test_a_configuration_that_cannot_be_used_is_an_error_that_names_the_key(
    tmp_path: Path, config: str, named: str
) -> None:
    (tmp_path / "config.yaml").write_text(
        f"models: {{definitions: {{claude: {{provider: anthropic, {config}}}}}}}\n"
        "chains: {default: {model: claude, system_prompt: null}}\n"
    )
    use = SessionOpener(lambda folder: load_settings(config=None, environ={}, cwd=folder), tmp_path / "state")
    async with connected(use) as editor:
        await editor.initialize()
        assert named in (await editor.error("session/new", cwd=str(tmp_path), mcpServers=[])).message


async def test_a_session_that_another_program_has_open_is_an_error(tmp_path: Path) -> None:
    use = opener(tmp_path / "home", RULES)
    async with connected(use) as other:
        await other.initialize()
        async with connected(use) as editor:
            await editor.initialize()
            where = {"sessionId": await editor.new(tmp_path), "cwd": str(tmp_path), "mcpServers": []}
            assert "another process" in (await other.error("session/load", **where)).message
        assert "configOptions" in await other.call("session/load", **where)


class Trap(dict[str, object]):
    """What the program cannot know of."""

    def __setitem__(self, key: str, value: object) -> None:
        raise RuntimeError("a mistake of our own")


@tool
async def breaks(ctx: ToolContext) -> str:
    """Break the chain: not by raising it here, which would be the tool's result."""
    ctx.steering.run.step.answered = Trap()  # type: ignore[attr-defined]
    return "broken"


async def test_a_mistake_of_ours_ends_one_session(tmp_path: Path) -> None:
    rules = "rules: [{when: {user: break}, tools: [{name: breaks, input: {}}]}, {text: Hello.}]"
    async with connected(opener(tmp_path / "home", rules, tools=[breaks])) as editor:
        await editor.initialize()
        session, other = await editor.new(tmp_path), await editor.new(tmp_path)
        asked = {"sessionId": session, "prompt": [{"type": "text", "text": "break"}]}
        assert (await editor.error("session/prompt", **asked)).code == INTERNAL_ERROR
        assert (await editor.error("session/prompt", **asked)).code in (INTERNAL_ERROR, NOT_FOUND)
        assert (await editor.result(editor.prompt(other, "hello")))["stopReason"] == "end_turn"
    assert any("a mistake of our own" in note for note in editor.notes)


async def test_servers_that_cannot_be_used_are_named(editor: Editor, tmp_path: Path) -> None:
    servers = [{"name": "weather", "type": "sse", "url": "http://x"}, {"name": "news"}]
    result = await editor.call("session/new", cwd=str(tmp_path / "ws"), mcpServers=servers)
    notes = chain_meta(result)["notices"]
    assert ["weather" in note for note in notes] == [True, False]
    assert any("weather" in each for each in editor.notes)


async def test_servers_of_the_editor_are_started_as_they_stand(tmp_path: Path) -> None:
    log = tmp_path / "log"
    entry = {**entry_of(log), "name": "My weather", "env": [{"name": "A", "value": "${HOME}"}]}
    async with connected(opener(tmp_path / "home", "rules: [{text: Hello.}]")) as editor:
        await editor.initialize()
        created = await editor.call("session/new", cwd=str(tmp_path), mcpServers=[entry])
        assert (await editor.result(editor.prompt(created["sessionId"], "hello")))["stopReason"] == "end_turn"
    assert "tools/list" in heard(log)


async def test_a_prompt_of_a_server_is_a_command_whose_run_answers_it(tmp_path: Path) -> None:
    rules = "rules: [{when: {user: Greet Ada}, text: Good day.}, {text: Hello.}]"
    entry = {**entry_of(tmp_path / "log"), "name": "h"}
    async with connected(opener(tmp_path / "home", rules)) as editor:
        await editor.initialize()
        session = (await editor.call("session/new", cwd=str(tmp_path), mcpServers=[entry]))["sessionId"]
        assert (await editor.result(editor.prompt(session, "hello")))["stopReason"] == "end_turn"
        offered = editor.updates("available_commands_update")[-1]["availableCommands"]
        assert {"name": "mcp:h:greet", "description": "A greeting.", "input": {"hint": "[...]"}} in offered
        assert (await editor.result(editor.prompt(session, "/mcp:h:greet Ada")))["stopReason"] == "end_turn"
        assert "Good day." in editor.text()
        asked = {"sessionId": session, "prompt": [{"type": "text", "text": "/mcp:h:greet"}]}
        assert "needs who" in (await editor.error("session/prompt", **asked)).message


async def test_instructions_of_the_project_are_named(editor: Editor, tmp_path: Path) -> None:
    (tmp_path / "ws/CLAUDE.md").write_text("Use make.")
    os.mkfifo(tmp_path / "ws/AGENTS.md")
    [fault] = chain_meta(await editor.call("session/new", cwd=str(tmp_path / "ws"), mcpServers=[]))["notices"]
    assert "AGENTS.md is left out of the project instructions" in fault
    (tmp_path / "ws/AGENTS.md").unlink()
    [note] = chain_meta(await editor.call("session/new", cwd=str(tmp_path / "ws"), mcpServers=[]))["notices"]
    assert note == "Project instructions: CLAUDE.md."


# ---------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("method", "params", "code", "named"),
    some(
        [
            ("session/new", {}, INVALID_PARAMS, "cwd"),
            ("session/new", {"cwd": 5}, INVALID_PARAMS, "cwd"),
            ("session/new", {"cwd": "relative"}, INVALID_PARAMS, "cwd"),
            ("session/new", {"cwd": "/nowhere/at/all"}, INVALID_PARAMS, "cwd"),
            ("session/new", {"cwd": "/\0"}, INVALID_PARAMS, "cwd has"),
            ("session/new", {"cwd": "/\ud800"}, INVALID_PARAMS, "cwd has"),
            ("session/load", {"cwd": "/\0", "sessionId": "none"}, INVALID_PARAMS, "cwd has"),
            ("session/new", {"cwd": "/", "mcpServers": {}}, INVALID_PARAMS, "mcpServers"),
            ("session/load", {"cwd": "/"}, INVALID_PARAMS, "sessionId"),
            ("session/load", {"cwd": "/", "sessionId": "none"}, NOT_FOUND, "none"),
            ("session/load", {"cwd": "/", "sessionId": ""}, INVALID_PARAMS, "sessionId"),
            ("session/resume", {"cwd": "/", "sessionId": ""}, INVALID_PARAMS, "sessionId"),
            ("session/resume", {"cwd": "/", "sessionId": "../../etc/passwd"}, NOT_FOUND, "passwd"),
            ("session/list", {"cursor": "x"}, INVALID_PARAMS, "cursor"),
            ("session/list", {"cwd": "relative"}, INVALID_PARAMS, "cwd"),
            ("session/list", {"cwd": "/\0"}, INVALID_PARAMS, "cwd has"),
            ("session/list", {"cwd": "/\ud800"}, INVALID_PARAMS, "cwd has"),
            ("session/load", {"cwd": "/", "sessionId": "\0\ud800"}, NOT_FOUND, "session"),
            ("session/close", {"sessionId": "none"}, NOT_FOUND, "none"),
            ("session/prompt", {"prompt": []}, INVALID_PARAMS, "sessionId"),
            ("session/prompt", {"sessionId": "none", "prompt": []}, NOT_FOUND, "none"),
            ("session/prompt", {"sessionId": "S", "prompt": []}, INVALID_PARAMS, "prompt"),
            ("session/prompt", {"sessionId": "S", "prompt": "hello"}, INVALID_PARAMS, "prompt"),
            ("session/prompt", {"sessionId": "S", "prompt": [{"type": "text", "text": " "}]}, INVALID_PARAMS, "prompt"),
            ("_session/steering", {"sessionId": "S"}, INVALID_PARAMS, "prompt"),
            ("authenticate", {"methodId": "key"}, INVALID_PARAMS, "methodId"),
            ("initialize", {"protocolVersion": 1}, INVALID_REQUEST, "initialized"),
            ("session/set_mode", {"sessionId": "S", "modeId": "x"}, METHOD_NOT_FOUND, "session/set_mode"),
        ],
        every=5,
    ),
)
async def test_wrong_params_are_named(
    editor: Editor, tmp_path: Path, method: str, params: dict[str, object], code: int, named: str
) -> None:
    session = await editor.new(tmp_path / "ws")
    if params.get("sessionId") == "S":
        params = {**params, "sessionId": session}
    error = await editor.error(method, **params)
    assert error.code == code
    assert named in error.message
    assert (await editor.result(editor.prompt(session, "hello")))["stopReason"] == "end_turn"


@pytest.mark.parametrize("version", [0, 1, 2, 65535])
async def test_every_version_is_answered_with_ours(tmp_path: Path, version: int) -> None:
    async with connected(opener(tmp_path / "home", RULES)) as editor:
        result = await editor.initialize(protocolVersion=version)
    assert result["protocolVersion"] == 1
    assert result["_meta"]["steering"] == {"supported": True}
    assert result["agentCapabilities"]["loadSession"] is True


async def test_initialize_comes_first(tmp_path: Path) -> None:
    async with connected(opener(tmp_path / "home", RULES)) as editor:
        assert (await editor.error("session/new", cwd=str(tmp_path))).code == INVALID_REQUEST
        assert (await editor.error("initialize", protocolVersion="one")).code == INVALID_PARAMS
        await editor.initialize()


async def test_a_prompt_that_is_too_long_is_refused_with_the_reason(editor: Editor, tmp_path: Path) -> None:
    session = await editor.new(tmp_path / "ws")
    block = {"type": "text", "text": "x" * 200_000}
    error = await editor.error("session/prompt", sessionId=session, prompt=[block])
    assert "100,000" in error.message


async def test_an_editor_that_does_not_read_fills_no_memory(tmp_path: Path) -> None:
    rules = "rules: [{text: word word, pace: {chunk: 1, delay_s: 0}, tools: [{name: plan_list, input: {}}]}]"
    async with connected(opener(tmp_path / "home", rules, max_iterations=100)) as editor:
        await editor.initialize()
        session = await editor.new(tmp_path)
        editor.reads = trio.Event()
        id = editor.prompt(session, "go")
        while len(editor.outbox) < ROOM:
            await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()
        assert len(editor.outbox) <= 2 * ROOM
        editor.reads.set()
        await editor.result(id)


# ---------------------------------------------------------------------------------------------------------- side door


async def test_a_line_of_the_side_door_is_told_to_the_editor_and_answers_nothing(
    editor: Editor, tmp_path: Path, gate: Gate
) -> None:
    session = await editor.new(tmp_path / "ws")
    id = editor.prompt(session, "wait")
    await gate.started.wait()
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(sockets.connect(tmp_path / "home/state/doors" / session)))
    async with stream:
        await stream.send_all(b'{"type":"line","text":"use B","id":"b"}\n')
        await editor.until(lambda: any(each["id"] == "b" for each in editor.receipts()))
        gate.open.set()
        await editor.result(id)
    assert [each["state"] for each in editor.receipts() if each["id"] == "b"] == ["queued", "delivered"]
    assert "use B" in editor.text("user_message_chunk")
