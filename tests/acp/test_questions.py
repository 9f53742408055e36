"""Approvals and choices that an editor shows and the user answers there.

The first word of a prompt selects a rule of ``RULES`` in ``support/editor.py``: ``write`` writes "a\\nb\\n" to new.txt.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.editor import RULES, TOOL_GROUPS, Editor, open_editor, opener

from chain.text.wording import NO_USER_CHOOSES
from cli.acp.rpc import METHOD_NOT_FOUND


@pytest.fixture
async def form_editor(tmp_path: Path) -> AsyncIterator[Editor]:
    """Yield an editor that can show forms."""
    session_opener = opener(tmp_path / "home", RULES, groups=TOOL_GROUPS)
    async with open_editor(session_opener, clientCapabilities={"elicitation": {"form": {}}}) as editor:
        yield editor


@pytest.fixture
async def form_session(form_editor: Editor, workspace: Path) -> str:
    """Return the id of an open session of the editor with forms."""
    return await form_editor.new_session(workspace)


async def test_a_permission_shows_the_difference(editor: Editor, session: str, workspace: Path) -> None:
    editor.prompt(session, "write")
    request = await editor.nth_request()
    assert request.method == "session/request_permission"
    assert [option["kind"] for option in request.params["options"]] == ["allow_once", "allow_always", "reject_once"]
    [shown] = request.params["toolCall"]["content"]
    assert (shown["type"], shown["path"]) == ("diff", str(workspace / "new.txt"))
    assert (shown["oldText"], shown["newText"]) == (None, "a\nb\n")
    assert editor.tool_calls()[request.params["toolCall"]["toolCallId"]]["status"] == "pending"


@pytest.mark.parametrize(
    ("option", "status", "starts", "reply", "content"),
    [("a", "completed", True, "Created new.txt", "a\nb\n"), ("n", "failed", False, "refused", "no file")],
    ids=["always", "no"],
)
async def test_a_permission_decides_on_the_call(
    editor: Editor, session: str, workspace: Path, option: str, status: str, starts: bool, reply: str, content: str
) -> None:
    prompt = editor.prompt(session, "write")
    editor.choose_option(await editor.nth_request(), option)
    await editor.result(prompt)
    [call] = editor.tool_calls().values()
    assert (call["status"], call["kind"]) == (status, "edit")
    assert ("rawInput" in call) == starts, "the input is sent when the call starts"
    assert reply in editor.text()
    file = workspace / "new.txt"
    assert (file.read_text() if file.exists() else "no file") == content


async def test_the_mode_applies_and_can_change(tmp_path: Path, workspace: Path) -> None:
    session_opener = replace(opener(tmp_path / "home", RULES, groups=("edit",)), mode="read only")
    async with open_editor(session_opener) as editor:
        session = await editor.new_session(workspace)
        await editor.run(session, "write")
        assert "Denied: the mode is read only" in editor.text()
        await editor.run(session, "/mode accept edits")
        await editor.run(session, "write")
    assert (workspace / "new.txt").exists()


async def test_without_forms_a_choice_is_a_permission(editor: Editor, session: str) -> None:
    prompt = editor.prompt(session, "ask")
    request = await editor.nth_request()
    assert [option["name"] for option in request.params["options"]] == ["left", "stop", "None of these"]
    editor.choose_option(request, "2")
    assert await editor.stop_reasons(prompt) == ["end_turn"]
    assert ": stop" in editor.text()


async def test_a_choice_is_asked_as_a_form(form_editor: Editor, form_session: str) -> None:
    prompt = form_editor.prompt(form_session, "ask")
    request = await form_editor.nth_request()
    assert request.method == "elicitation/create"
    assert (request.params["mode"], request.params["message"]) == ("form", "Which?")
    assert request.params["sessionId"] == form_session
    assert request.params["toolCallId"] in form_editor.tool_calls()
    choice = request.params["requestedSchema"]["properties"]["choice"]
    assert [option["title"] for option in choice["oneOf"]] == ["left", "stop"]
    form_editor.answer(request, action="accept", content={"choice": "2"})
    await form_editor.result(prompt)
    assert ": stop" in form_editor.text()


async def test_an_approval_is_never_a_form(form_editor: Editor, form_session: str) -> None:
    form_editor.prompt(form_session, "write")
    assert (await form_editor.nth_request()).method == "session/request_permission"


@pytest.mark.parametrize(
    ("query", "reply"), [("write", "no such thing here"), ("ask", NO_USER_CHOOSES)], ids=["approval", "choice"]
)
async def test_an_editor_that_cannot_ask_refuses(
    form_editor: Editor, form_session: str, query: str, reply: str
) -> None:
    prompt = form_editor.prompt(form_session, query)
    request = await form_editor.nth_request()
    form_editor.send(id=request.id, error={"code": METHOD_NOT_FOUND, "message": "no such thing here"})
    assert await form_editor.stop_reasons(prompt) == ["end_turn"]
    assert reply in form_editor.text()


@pytest.mark.parametrize("query", ["write", "ask"])
async def test_a_question_is_withdrawn_with_its_run(form_editor: Editor, form_session: str, query: str) -> None:
    prompt = form_editor.prompt(form_session, query)
    request = await form_editor.nth_request()
    form_editor.notify("session/cancel", sessionId=form_session)
    assert await form_editor.stop_reasons(prompt) == ["cancelled"]
    withdrawal = {"method": "$/cancel_request", "params": {"requestId": request.id}}
    await form_editor.wait_until(lambda: withdrawal in form_editor.notifications)
    # The editor's answer, which the protocol requires, comes too late.
    form_editor.answer(request, outcome={"outcome": "cancelled"})
    assert await form_editor.run(form_session, "hello") == "end_turn"
    [call] = form_editor.tool_calls().values()
    assert call["status"] == "failed"
