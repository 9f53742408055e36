"""Sessions of an editor: opening, listing, loading, closing and deleting them, and requests that are wrong."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from support.editor import RULES, Editor, open_editor, open_uninitialized_editor, opener
from support.examples import sample_in_short_run
from support.gate import Gate
from support.servers import entry_of, remove_time_limits, until_logged

from chain.config.load import load_settings
from chain.lines.parse import MAX_LINE
from chain.tools.tool import ToolContext, tool
from cli.acp import methods
from cli.acp.opener import SessionOpener
from cli.acp.rpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    NOT_FOUND,
)


def stored(session: str, folder: Path) -> dict[str, object]:
    """Return the parameters that open a stored session."""
    return {"sessionId": session, "cwd": str(folder), "mcpServers": []}


async def opening_notices(editor: Editor, folder: Path, *servers: object) -> list[str]:
    """Open a session, and return the notices in the answer."""
    result = await editor.call("session/new", cwd=str(folder), mcpServers=servers)
    notices: list[str] = result["_meta"]["chain"]["notices"]
    return notices


async def listed_sessions(editor: Editor, **params: object) -> list[dict[str, Any]]:
    sessions: list[dict[str, Any]] = (await editor.call("session/list", **params))["sessions"]
    return sessions


async def test_a_session_is_listed_for_its_folder(
    editor: Editor, session: str, workspace: Path, tmp_path: Path
) -> None:
    await editor.run(session, "hello")
    [entry] = await listed_sessions(editor, cwd=str(workspace))
    assert (entry["sessionId"], entry["title"], entry["cwd"]) == (session, "hello", str(workspace))
    assert await listed_sessions(editor, cwd=str(tmp_path)) == []


async def test_a_loaded_session_is_shown_before_the_answer(tmp_path: Path, workspace: Path, gate: Gate) -> None:
    session_opener = opener(tmp_path / "home", RULES, tools=[gate.tool])
    async with open_editor(session_opener) as editor:
        session = await editor.new_session(workspace)
        first = editor.prompt(session, "wait")
        await gate.started.wait()
        second = editor.prompt(session, "look elsewhere")
        gate.open.set()
        await editor.stop_reasons(first, second)
    async with open_editor(session_opener) as other:
        load = other.start_request("session/load", **stored(session, workspace))
        await other.result(load)
        after_answer = other.log[other.log.index(("answer", load)) + 1 :]
        assert {kind for _, kind in after_answer} <= {"available_commands_update"}
        assert other.text() == editor.text()
        # The first editor shows its own first prompt, and receives the second with the run that reads it.
        assert other.text("user_message_chunk") == "wait" + editor.text("user_message_chunk")
        [call] = other.tool_calls().values()
        assert call["status"] == "completed"


async def test_a_resumed_session_is_not_shown_again(editor: Editor, session: str, workspace: Path) -> None:
    await editor.run(session, "hello")
    await editor.call("session/close", sessionId=session)
    editor.notifications.clear()
    await editor.call("session/resume", **stored(session, workspace))
    assert await editor.run(session, "hello") == "end_turn"
    kinds = [update["sessionUpdate"] for update in editor.updates()]
    assert kinds == ["available_commands_update", "agent_message_chunk"]


async def test_a_session_open_elsewhere_is_not_loaded(tmp_path: Path) -> None:
    session_opener = opener(tmp_path / "home", RULES)
    async with open_editor(session_opener) as other:
        async with open_editor(session_opener) as editor:
            session = stored(await editor.new_session(tmp_path), tmp_path)
            assert "is open here" in (await editor.error_of("session/load", **session)).message
            assert "another process" in (await other.error_of("session/load", **session)).message
        assert "configOptions" in await other.call("session/load", **session)


async def test_a_session_is_loaded_in_its_own_folder(
    editor: Editor, session: str, workspace: Path, tmp_path: Path
) -> None:
    await editor.run(session, "hello")
    await editor.call("session/close", sessionId=session)
    assert (await editor.error_of("session/load", **stored(session, tmp_path))).code == INVALID_PARAMS
    incomplete_id = session[:-1]
    assert (await editor.error_of("session/load", **stored(incomplete_id, workspace))).code == NOT_FOUND
    await editor.call("session/load", **stored(session, workspace))
    assert await editor.run(session, "hello") == "end_turn"


async def test_loading_waits_for_a_close(editor: Editor, session: str, waiting_prompt: int, workspace: Path) -> None:
    close = editor.start_request("session/close", sessionId=session)
    load = editor.start_request("session/load", **stored(session, workspace))
    await editor.result(load)
    answers = [id for what, id in editor.log if what == "answer" and id in (waiting_prompt, close, load)]
    assert answers == [waiting_prompt, close, load]
    assert await editor.stop_reasons(waiting_prompt) == ["cancelled"]
    assert await editor.run(session, "hello") == "end_turn"


async def test_a_session_is_opened_only_once(
    editor: Editor, session: str, waiting_prompt: int, workspace: Path
) -> None:
    editor.start_request("session/close", sessionId=session)
    editor.start_request("session/load", **stored(session, workspace))
    error = await editor.error_of("session/resume", **stored(session, workspace))
    assert (error.code, error.message) == (INVALID_REQUEST, f"the session {session} is being opened here already")


async def test_open_sessions_are_limited(
    editor: Editor, session: str, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(methods, "MAX_SESSIONS", 1)
    error = await editor.error_of("session/new", cwd=str(workspace), mcpServers=[])
    assert (error.code, error.message) == (INVALID_REQUEST, "1 sessions are open; close one")
    await editor.call("session/close", sessionId=session)
    await editor.new_session(workspace)


# ------------------------------------------------------------------------------------------------------------ closing


async def test_a_closed_session_accepts_no_request(
    editor: Editor, session: str, waiting_prompt: int, workspace: Path
) -> None:
    other = await editor.new_session(workspace)
    assert await editor.call("session/close", sessionId=session) == {}
    assert await editor.stop_reasons(waiting_prompt) == ["cancelled"]
    assert (await editor.error_of("session/close", sessionId=session)).code == NOT_FOUND
    assert (await editor.prompt_error(session, "x")).code == NOT_FOUND
    assert await editor.run(other, "hello") == "end_turn"


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "end of the input"])
async def test_leaving_a_session_answers_all_its_prompts(tmp_path: Path, gate: Gate, is_closed: bool) -> None:
    async with open_editor(opener(tmp_path / "home", RULES, tools=[gate.tool])) as editor:
        session = await editor.new_session(tmp_path)
        prompts = [editor.prompt(session, "wait")]
        await gate.started.wait()
        texts = ("it waits for a safe point", "then: it waits for the end", "stop", "it follows a stop")
        prompts += [editor.prompt(session, text) for text in texts]
        if is_closed:
            await editor.call("session/close", sessionId=session)
            assert set(prompts) <= set(editor.answers)
    assert await editor.stop_reasons(*prompts) == ["cancelled"] * len(prompts)


async def test_a_deleted_session_is_gone(editor: Editor, session: str, waiting_prompt: int, workspace: Path) -> None:
    closed = await editor.new_session(workspace)
    await editor.run(closed, "hello")
    await editor.call("session/close", sessionId=closed)
    for id in (closed, session):
        assert await editor.call("session/delete", sessionId=id) == {}
    assert await editor.stop_reasons(waiting_prompt) == ["cancelled"]
    assert await listed_sessions(editor) == []
    assert (await editor.error_of("session/load", **stored(closed, workspace))).code == NOT_FOUND


async def test_deleting_an_unknown_session_deletes_nothing(editor: Editor, session: str) -> None:
    await editor.run(session, "hello")
    await editor.call("session/close", sessionId=session)
    incomplete_id, end_of_id = session[:-1], session[-6:]
    for id in (incomplete_id, end_of_id, f"../sessions/{session}", "none", ""):
        assert await editor.call("session/delete", sessionId=id) == {}, "the protocol wants no error"
    [entry] = await listed_sessions(editor)
    assert entry["sessionId"] == session


class BrokenDict(dict[str, object]):
    def __setitem__(self, key: str, value: object) -> None:
        raise RuntimeError("a mistake of our own")


@tool
async def break_chain(ctx: ToolContext) -> str:
    """Break the chain. An exception raised here would be the tool's result."""
    ctx.steering.run.step.answered = BrokenDict()  # type: ignore[attr-defined]
    return "broken"


async def test_a_bug_ends_only_its_session(tmp_path: Path) -> None:
    rules = "rules: [{when: {user: break}, tools: [{name: break_chain, input: {}}]}, {text: Hello.}]"
    async with open_editor(opener(tmp_path / "home", rules, tools=[break_chain])) as editor:
        session, other = await editor.new_session(tmp_path), await editor.new_session(tmp_path)
        assert (await editor.prompt_error(session, "break")).code == INTERNAL_ERROR
        # The session is still closing, or closed already.
        assert (await editor.prompt_error(session, "break")).code in (INTERNAL_ERROR, NOT_FOUND)
        assert await editor.run(other, "hello") == "end_turn"
    assert any("a mistake of our own" in warning for warning in editor.warnings)


# ------------------------------------------------------------------------------------------------- what a session uses


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ("model: x, base_url: 'http://127.0.0.1:1'", "models.definitions.claude.base_url"),
        ("model: x", "ANTHROPIC_API_KEY"),
    ],
    ids=["wrong setting", "no key"],
)
async def test_a_fault_of_the_configuration_is_named(tmp_path: Path, config: str, named: str) -> None:
    (tmp_path / "config.yaml").write_text(
        f"models: {{definitions: {{claude: {{provider: anthropic, {config}}}}}}}\n"
        "chains: {default: {model: claude, system_prompt: null}}\n"
    )
    session_opener = SessionOpener(lambda cwd: load_settings(config=None, environ={}, cwd=cwd), tmp_path / "state")
    async with open_editor(session_opener) as editor:
        assert named in (await editor.error_of("session/new", cwd=str(tmp_path), mcpServers=[])).message


async def test_unusable_servers_are_named(editor: Editor, workspace: Path) -> None:
    servers = [{"name": "weather", "type": "sse", "url": "http://x"}, {"name": "news"}]
    weather, news = await opening_notices(editor, workspace, *servers)
    assert "weather" in weather
    assert "weather" not in news
    assert any("weather" in warning for warning in editor.warnings)


async def test_a_servers_prompt_is_a_command(editor: Editor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remove_time_limits(monkeypatch)
    environment = [{"name": "A", "value": "${UNSET}"}]  # plain text: an unset variable would disable the server
    server = {**entry_of(tmp_path / "log"), "name": "h", "env": environment}
    session = (await editor.call("session/new", cwd=str(tmp_path), mcpServers=[server]))["sessionId"]
    assert await editor.run(session, "hello") == "end_turn"
    await until_logged(tmp_path / "log", "tools/list")
    command = {"name": "mcp:h:greet", "description": "A greeting.", "input": {"hint": "[...]"}}
    await editor.wait_until(lambda: command in editor.updates("available_commands_update")[-1]["availableCommands"])
    assert await editor.run(session, "/mcp:h:greet Ada") == "end_turn"
    assert "Good day." in editor.text()
    missing_argument = await editor.prompt_error(session, "/mcp:h:greet")
    assert "needs who" in missing_argument.message


async def test_instructions_of_the_project_are_named(editor: Editor, workspace: Path) -> None:
    (workspace / "CLAUDE.md").write_text("Use make.")
    os.mkfifo(workspace / "AGENTS.md")
    [notice] = await opening_notices(editor, workspace)
    assert "AGENTS.md is left out of the project instructions" in notice
    (workspace / "AGENTS.md").unlink()
    assert await opening_notices(editor, workspace) == ["Project instructions: CLAUDE.md."]


# ------------------------------------------------------------------------------------------------------ wrong requests

LONG_TEXT = {"type": "text", "text": "x" * (MAX_LINE + 1)}
OPEN = "the open session"
"""A placeholder for the id of the test's session."""


@pytest.mark.parametrize(
    ("method", "params", "code", "named"),
    sample_in_short_run(
        [
            ("session/new", {}, INVALID_PARAMS, "cwd"),
            ("session/new", {"cwd": 5}, INVALID_PARAMS, "cwd"),
            ("session/new", {"cwd": "relative"}, INVALID_PARAMS, "cwd"),
            ("session/new", {"cwd": "/nowhere/at/all"}, INVALID_PARAMS, "cwd"),
            ("session/new", {"cwd": "/\0"}, INVALID_PARAMS, "cwd has"),
            ("session/new", {"cwd": "/\ud800"}, INVALID_PARAMS, "cwd has"),
            ("session/new", {"cwd": "/", "mcpServers": {}}, INVALID_PARAMS, "mcpServers"),
            ("session/load", {"cwd": "/"}, INVALID_PARAMS, "sessionId"),
            ("session/load", {"cwd": "/", "sessionId": ""}, INVALID_PARAMS, "sessionId"),
            ("session/load", {"cwd": "/", "sessionId": "\0\ud800"}, NOT_FOUND, "session"),
            ("session/resume", {"cwd": "/", "sessionId": "../../etc/passwd"}, NOT_FOUND, "passwd"),
            ("session/list", {"cursor": "x"}, INVALID_PARAMS, "cursor"),
            ("session/prompt", {"prompt": []}, INVALID_PARAMS, "sessionId"),
            ("session/prompt", {"sessionId": OPEN, "prompt": []}, INVALID_PARAMS, "prompt"),
            ("session/prompt", {"sessionId": OPEN, "prompt": "hello"}, INVALID_PARAMS, "prompt"),
            ("session/prompt", {"sessionId": OPEN, "prompt": [LONG_TEXT]}, INTERNAL_ERROR, "100,000"),
            ("_session/steering", {"sessionId": OPEN}, INVALID_PARAMS, "prompt"),
            ("authenticate", {"methodId": "key"}, INVALID_PARAMS, "methodId"),
            ("initialize", {"protocolVersion": 1}, INVALID_REQUEST, "initialized"),
            ("session/set_mode", {"sessionId": OPEN, "modeId": "x"}, METHOD_NOT_FOUND, "session/set_mode"),
        ],
        every=4,
    ),
    ids=lambda value: f"{value!s:.60}",
)
async def test_a_wrong_parameter_is_named(
    editor: Editor, session: str, method: str, params: dict[str, object], code: int, named: str
) -> None:
    if params.get("sessionId") == OPEN:
        params = {**params, "sessionId": session}
    error = await editor.error_of(method, **params)
    assert (error.code, named in error.message) == (code, True), error.message
    assert await editor.run(session, "hello") == "end_turn"


@pytest.mark.parametrize("version", [0, 2])
async def test_another_version_is_answered_with_ours(tmp_path: Path, version: int) -> None:
    async with open_uninitialized_editor(opener(tmp_path / "home", RULES)) as editor:
        assert (await editor.error_of("initialize", protocolVersion="one")).code == INVALID_PARAMS
        result = await editor.initialize(protocolVersion=version)
    assert result["protocolVersion"] == 1
    assert result["_meta"]["steering"] == {"supported": True}
    assert result["agentCapabilities"]["loadSession"] is True
