"""Approvals and choices that an editor shows and the user answers there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.editor import GROUPS, RULES, Editor, connected, opener

from cli.acp.rpc import METHOD_NOT_FOUND


@pytest.fixture
async def with_forms(tmp_path: Path) -> AsyncIterator[Editor]:
    """Yield an editor that can show forms."""
    async with connected(opener(tmp_path / "home", RULES, groups=GROUPS)) as editor:
        await editor.initialize(clientCapabilities={"elicitation": {"form": {}}})
        yield editor


@pytest.mark.parametrize(
    ("option", "status", "reply", "content"),
    [("a", "completed", "Created new.txt", "a\nb\n"), ("n", "failed", "refused", None)],
)
async def test_a_permission_shows_the_difference(
    editor: Editor, session: str, workspace: Path, option: str, status: str, reply: str, content: str | None
) -> None:
    id = editor.prompt(session, "write")
    asked = await editor.question()
    assert asked.method == "session/request_permission"
    assert [each["kind"] for each in asked.params["options"]] == ["allow_once", "allow_always", "reject_once"]
    call, file = asked.params["toolCall"], workspace / "new.txt"
    [shown] = call["content"]
    assert (shown["type"], shown["path"], shown["oldText"], shown["newText"]) == ("diff", str(file), None, "a\nb\n")
    assert editor.calls()[call["toolCallId"]]["status"] == "pending"
    editor.choose(asked, option)
    await editor.result(id)
    ended = editor.calls()[call["toolCallId"]]
    assert (ended["status"], ended["kind"], "rawInput" in ended) == (status, "edit", content is not None)
    assert reply in editor.text()
    assert (file.read_text() if file.exists() else None) == content


async def test_the_mode_applies_and_can_change(tmp_path: Path, workspace: Path) -> None:
    use = replace(opener(tmp_path / "home", RULES, groups=("edit",)), mode="read only")
    async with connected(use) as editor:
        await editor.initialize()
        session = await editor.new(workspace)
        await editor.run(session, "write")
        assert "Denied: the mode is read only" in editor.text()
        await editor.run(session, "/mode accept edits")
        await editor.run(session, "write")
    assert (workspace / "new.txt").exists()


async def test_a_choice_is_asked_as_a_permission_without_forms(editor: Editor, session: str) -> None:
    id = editor.prompt(session, "ask")
    asked = await editor.question()
    assert [each["name"] for each in asked.params["options"]] == ["left", "stop", "None of these"]
    editor.choose(asked, "2")
    assert await editor.reasons(id) == ["end_turn"]
    assert ": stop" in editor.text()


async def test_a_choice_is_asked_as_a_form_if_the_editor_has_forms(with_forms: Editor, tmp_path: Path) -> None:
    session = await with_forms.new(tmp_path)
    id = with_forms.prompt(session, "ask")
    asked = await with_forms.question()
    assert (asked.method, asked.params["mode"], asked.params["message"]) == ("elicitation/create", "form", "Which?")
    assert asked.params["sessionId"] == session
    assert asked.params["toolCallId"] in with_forms.calls()
    fields = asked.params["requestedSchema"]["properties"]
    assert [each["title"] for each in fields["choice"]["oneOf"]] == ["left", "stop"]
    with_forms.answer(asked, action="accept", content={"choice": "2"})
    await with_forms.result(id)
    assert ": stop" in with_forms.text()
    with_forms.prompt(session, "write")
    assert (await with_forms.question(2)).method == "session/request_permission", "an approval is no form"


@pytest.mark.parametrize(("query", "reply"), [("write", "no such thing here"), ("ask", "decide")])
async def test_an_editor_that_cannot_ask_refuses(with_forms: Editor, tmp_path: Path, query: str, reply: str) -> None:
    id = with_forms.prompt(await with_forms.new(tmp_path), query)
    asked = await with_forms.question()
    with_forms.say(id=asked.id, error={"code": METHOD_NOT_FOUND, "message": "no such thing here"})
    assert await with_forms.reasons(id) == ["end_turn"]
    assert reply in with_forms.text()


@pytest.mark.parametrize("query", ["write", "ask"])
async def test_a_question_is_withdrawn_with_its_run(with_forms: Editor, tmp_path: Path, query: str) -> None:
    session = await with_forms.new(tmp_path)
    id = with_forms.prompt(session, query)
    asked = await with_forms.question()
    with_forms.tell("session/cancel", sessionId=session)
    assert await with_forms.reasons(id) == ["cancelled"]
    withdrawn = {"method": "$/cancel_request", "params": {"requestId": asked.id}}
    await with_forms.until(lambda: withdrawn in with_forms.heard)
    # The editor's answer, which the protocol requires, comes too late.
    with_forms.answer(asked, outcome={"outcome": "cancelled"})
    assert await with_forms.run(session, "hello") == "end_turn"
    assert [call["status"] for call in with_forms.calls().values()] == ["failed"]
