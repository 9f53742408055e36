"""Sessions of an editor: opening, listing, loading, closing and deleting them, and requests that are wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.editor import RULES, Editor, connected, opener
from support.examples import some
from support.gate import Gate
from support.servers import entry_of, heard

from chain.config.load import load_settings
from chain.tools.tool import ToolContext, tool
from cli.acp import methods
from cli.acp.opener import SessionOpener
from cli.acp.rpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    NOT_FOUND,
    RpcError,
)


def of(session: str, folder: Path) -> dict[str, object]:
    """Return the parameters that open a stored session."""
    return {"sessionId": session, "cwd": str(folder), "mcpServers": []}


async def notices(editor: Editor, folder: Path, *servers: object) -> list[str]:
    """Open a session, and return the notices of the answer."""
    result = await editor.call("session/new", cwd=str(folder), mcpServers=servers)
    found: list[str] = result["_meta"]["chain"]["notices"]
    return found


async def test_a_session_is_listed_loaded_and_resumed(tmp_path: Path, workspace: Path, gate: Gate) -> None:
    use = opener(tmp_path / "home", RULES, tools=[gate.tool])
    async with connected(use) as editor:
        await editor.initialize()
        session = await editor.new(workspace)
        first = editor.prompt(session, "wait")
        await gate.started.wait()
        second = editor.prompt(session, "look elsewhere")
        gate.open.set()
        await editor.reasons(first, second)
        said = (editor.text(), "wait" + editor.text("user_message_chunk"))
    async with connected(use) as editor:
        await editor.initialize()
        [listed] = (await editor.call("session/list", cwd=str(workspace)))["sessions"]
        assert (listed["sessionId"], listed["title"], listed["cwd"]) == (session, "wait", str(workspace))
        assert (await editor.call("session/list", cwd=str(tmp_path)))["sessions"] == []
        id = editor.begin("session/load", **of(session, workspace))
        await editor.result(id)
        later = editor.log[editor.log.index(("answer", id)) + 1 :]
        assert {kind for _, kind in later} <= {"available_commands_update"}, "the past comes before the answer"
        assert (editor.text(), editor.text("user_message_chunk")) == said
        assert [call["status"] for call in editor.calls().values()] == ["completed"]
        await editor.call("session/close", sessionId=session)
        editor.heard.clear()
        await editor.call("session/resume", **of(session, workspace))
        assert await editor.run(session, "hello") == "end_turn"
        kinds = [update["sessionUpdate"] for update in editor.updates()]
        assert kinds == ["available_commands_update", "agent_message_chunk"], "nothing of the past"


async def test_a_session_open_elsewhere_is_not_loaded(tmp_path: Path) -> None:
    use = opener(tmp_path / "home", RULES)
    async with connected(use) as other:
        await other.initialize()
        async with connected(use) as editor:
            await editor.initialize()
            where = of(await editor.new(tmp_path), tmp_path)
            assert "is open here" in (await editor.error("session/load", **where)).message
            assert "another process" in (await other.error("session/load", **where)).message
        assert "configOptions" in await other.call("session/load", **where)


async def test_a_session_is_loaded_in_its_own_folder(
    editor: Editor, session: str, workspace: Path, tmp_path: Path
) -> None:
    await editor.run(session, "hello")
    await editor.call("session/close", sessionId=session)
    assert (await editor.error("session/load", **of(session, tmp_path))).code == INVALID_PARAMS
    assert (await editor.error("session/load", **of(session[:-1], workspace))).code == NOT_FOUND
    await editor.call("session/load", **of(session, workspace))
    assert await editor.run(session, "hello") == "end_turn"


async def test_loading_waits_for_a_close_once(editor: Editor, session: str, waiting: int, workspace: Path) -> None:
    closing = editor.begin("session/close", sessionId=session)
    first, second = (editor.begin(f"session/{how}", **of(session, workspace)) for how in ("load", "resume"))
    await editor.result(first)
    with pytest.raises(RpcError, match=f"{session} is being opened here") as caught:
        await editor.result(second)
    assert caught.value.code == INVALID_REQUEST
    answers = [id for what, id in editor.log if what == "answer"]
    assert answers.index(waiting) < answers.index(closing) < answers.index(first)
    assert await editor.reasons(waiting) == ["cancelled"]
    assert await editor.run(session, "hello") == "end_turn"


async def test_open_sessions_are_limited(
    editor: Editor, session: str, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(methods, "MAX_SESSIONS", 1)
    error = await editor.error("session/new", cwd=str(workspace), mcpServers=[])
    assert (error.code, error.message) == (INVALID_REQUEST, "1 sessions are open; close one")
    await editor.call("session/close", sessionId=session)
    await editor.new(workspace)


# ------------------------------------------------------------------------------------------------------------ closing


async def test_a_closed_session_accepts_no_request(editor: Editor, session: str, waiting: int, workspace: Path) -> None:
    other = await editor.new(workspace)
    assert await editor.call("session/close", sessionId=session) == {}
    assert await editor.reasons(waiting) == ["cancelled"]
    assert (await editor.error("session/close", sessionId=session)).code == NOT_FOUND
    assert (await editor.refusal(session, "x")).code == NOT_FOUND
    assert await editor.run(other, "hello") == "end_turn"


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "end of the input"])
async def test_leaving_a_session_answers_all_its_prompts(tmp_path: Path, gate: Gate, is_closed: bool) -> None:
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
    assert await editor.reasons(*ids) == ["cancelled"] * len(ids)


async def test_a_deleted_session_is_gone(
    editor: Editor, session: str, waiting: int, workspace: Path, gate: Gate
) -> None:
    stored = await editor.new(workspace)
    await editor.run(stored, "hello")
    await editor.call("session/close", sessionId=stored)
    for id in (stored[:-1], stored[-6:], f"../sessions/{stored}", "none", ""):
        assert await editor.call("session/delete", sessionId=id) == {}, "the protocol wants no error"
    assert {each["sessionId"] for each in (await editor.call("session/list"))["sessions"]} == {stored, session}
    for id in (stored, session):
        assert await editor.call("session/delete", sessionId=id) == {}
    assert await editor.reasons(waiting) == ["cancelled"]
    assert (await editor.call("session/list"))["sessions"] == []
    assert (await editor.error("session/load", **of(stored, workspace))).code == NOT_FOUND


class Trap(dict[str, object]):
    def __setitem__(self, key: str, value: object) -> None:
        raise RuntimeError("a mistake of our own")


@tool
async def breaks(ctx: ToolContext) -> str:
    """Break the chain. An exception raised here would be the tool's result."""
    ctx.steering.run.step.answered = Trap()  # type: ignore[attr-defined]
    return "broken"


async def test_a_bug_ends_only_its_session(tmp_path: Path) -> None:
    rules = "rules: [{when: {user: break}, tools: [{name: breaks, input: {}}]}, {text: Hello.}]"
    async with connected(opener(tmp_path / "home", rules, tools=[breaks])) as editor:
        await editor.initialize()
        session, other = await editor.new(tmp_path), await editor.new(tmp_path)
        assert (await editor.refusal(session, "break")).code == INTERNAL_ERROR
        assert (await editor.refusal(session, "break")).code in (INTERNAL_ERROR, NOT_FOUND)
        assert await editor.run(other, "hello") == "end_turn"
    assert any("a mistake of our own" in note for note in editor.notes)


# ------------------------------------------------------------------------------------------------- what a session uses


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ("model: x, base_url: 'http://127.0.0.1:1'", "models.definitions.claude.base_url"),
        ("model: x", "ANTHROPIC_API_KEY"),
    ],
)
async def test_a_fault_of_the_configuration_is_named(tmp_path: Path, config: str, named: str) -> None:
    (tmp_path / "config.yaml").write_text(
        f"models: {{definitions: {{claude: {{provider: anthropic, {config}}}}}}}\n"
        "chains: {default: {model: claude, system_prompt: null}}\n"
    )
    use = SessionOpener(lambda folder: load_settings(config=None, environ={}, cwd=folder), tmp_path / "state")
    async with connected(use) as editor:
        await editor.initialize()
        assert named in (await editor.error("session/new", cwd=str(tmp_path), mcpServers=[])).message


async def test_unusable_servers_are_named(editor: Editor, workspace: Path) -> None:
    found = await notices(editor, workspace, {"name": "weather", "type": "sse", "url": "http://x"}, {"name": "news"})
    assert ["weather" in note for note in found] == [True, False]
    assert any("weather" in each for each in editor.notes)


async def test_a_servers_prompt_is_a_command(editor: Editor, tmp_path: Path) -> None:
    entry = {**entry_of(tmp_path / "log"), "name": "h", "env": [{"name": "A", "value": "${HOME}"}]}
    session = (await editor.call("session/new", cwd=str(tmp_path), mcpServers=[entry]))["sessionId"]
    assert await editor.run(session, "hello") == "end_turn"
    assert "tools/list" in heard(tmp_path / "log")
    offered = editor.updates("available_commands_update")[-1]["availableCommands"]
    assert {"name": "mcp:h:greet", "description": "A greeting.", "input": {"hint": "[...]"}} in offered
    assert await editor.run(session, "/mcp:h:greet Ada") == "end_turn"
    assert "Good day." in editor.text()
    assert "needs who" in (await editor.refusal(session, "/mcp:h:greet")).message


async def test_instructions_of_the_project_are_named(editor: Editor, workspace: Path) -> None:
    (workspace / "CLAUDE.md").write_text("Use make.")
    os.mkfifo(workspace / "AGENTS.md")
    [fault] = await notices(editor, workspace)
    assert "AGENTS.md is left out of the project instructions" in fault
    (workspace / "AGENTS.md").unlink()
    assert await notices(editor, workspace) == ["Project instructions: CLAUDE.md."]


# ------------------------------------------------------------------------------------------------------ wrong requests

TEXT = {"type": "text", "text": "x" * 200_000}


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
            ("session/new", {"cwd": "/", "mcpServers": {}}, INVALID_PARAMS, "mcpServers"),
            ("session/load", {"cwd": "/"}, INVALID_PARAMS, "sessionId"),
            ("session/load", {"cwd": "/", "sessionId": "none"}, NOT_FOUND, "none"),
            ("session/load", {"cwd": "/", "sessionId": ""}, INVALID_PARAMS, "sessionId"),
            ("session/load", {"cwd": "/", "sessionId": "\0\ud800"}, NOT_FOUND, "session"),
            ("session/resume", {"cwd": "/", "sessionId": "../../etc/passwd"}, NOT_FOUND, "passwd"),
            ("session/list", {"cursor": "x"}, INVALID_PARAMS, "cursor"),
            ("session/list", {"cwd": "relative"}, INVALID_PARAMS, "cwd"),
            ("session/close", {"sessionId": "none"}, NOT_FOUND, "none"),
            ("session/prompt", {"prompt": []}, INVALID_PARAMS, "sessionId"),
            ("session/prompt", {"sessionId": "S", "prompt": []}, INVALID_PARAMS, "prompt"),
            ("session/prompt", {"sessionId": "S", "prompt": "hello"}, INVALID_PARAMS, "prompt"),
            ("session/prompt", {"sessionId": "S", "prompt": [TEXT]}, INTERNAL_ERROR, "100,000"),
            ("_session/steering", {"sessionId": "S"}, INVALID_PARAMS, "prompt"),
            ("authenticate", {"methodId": "key"}, INVALID_PARAMS, "methodId"),
            ("initialize", {"protocolVersion": 1}, INVALID_REQUEST, "initialized"),
            ("session/set_mode", {"sessionId": "S", "modeId": "x"}, METHOD_NOT_FOUND, "session/set_mode"),
        ],
        every=4,
    ),
)
async def test_a_wrong_parameter_is_named(
    editor: Editor, session: str, method: str, params: dict[str, object], code: int, named: str
) -> None:
    if params.get("sessionId") == "S":
        params = {**params, "sessionId": session}
    error = await editor.error(method, **params)
    assert (error.code, named in error.message) == (code, True), error.message
    assert await editor.run(session, "hello") == "end_turn"


@pytest.mark.parametrize("version", [0, 2])
async def test_initialize_comes_first_with_any_version(tmp_path: Path, version: int) -> None:
    async with connected(opener(tmp_path / "home", RULES)) as editor:
        assert (await editor.error("session/new", cwd=str(tmp_path))).code == INVALID_REQUEST
        assert (await editor.error("initialize", protocolVersion="one")).code == INVALID_PARAMS
        result = await editor.initialize(protocolVersion=version)
    assert result["protocolVersion"] == 1
    assert result["_meta"]["steering"] == {"supported": True}
    assert result["agentCapabilities"]["loadSession"] is True
