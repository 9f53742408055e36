"""The options that an editor can set, and the commands that it is offered."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.editor import RULES, Editor, open_editor, opener, with_unread_end
from support.gate import Gate
from trio.testing import wait_all_tasks_blocked

from chain.config.load import load_settings
from cli.acp.rpc import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, NOT_FOUND


def current_values(result: dict[str, Any]) -> dict[str, str]:
    """Return the values of the options in a result or an update."""
    return {option["id"]: option["currentValue"] for option in result["configOptions"]}


async def set_option(editor: Editor, session: str, id: str, value: object) -> dict[str, str]:
    """Set an option, and return the values of all options."""
    return current_values(await editor.call("session/set_config_option", sessionId=session, configId=id, value=value))


async def offered_commands(editor: Editor) -> list[dict[str, Any]]:
    """Return the commands that were offered last."""
    await editor.wait_until(lambda: editor.updates("available_commands_update"))
    *_, offer = editor.updates("available_commands_update")
    commands: list[dict[str, Any]] = offer["availableCommands"]
    return commands


async def test_models_and_chains_are_options(editor: Editor, workspace: Path) -> None:
    result = await editor.call("session/new", cwd=str(workspace), mcpServers=[])
    assert current_values(result) == {"model": "test", "chain": "default"}
    model, chain = result["configOptions"]
    descriptions = {option["value"]: option["description"] for option in model["options"]}
    assert set(descriptions) > {"test", "other", "keyless"}
    assert "SOME_KEY" in descriptions["keyless"]
    assert [option["value"] for option in chain["options"]] == ["default", "review", "broken", "unpaid"]


@pytest.mark.parametrize("method", ["session/load", "session/resume"])
async def test_a_stored_session_has_the_same_options(editor: Editor, workspace: Path, method: str) -> None:
    folder = {"cwd": str(workspace), "mcpServers": []}
    new = await editor.call("session/new", **folder)
    await editor.call("session/close", sessionId=new["sessionId"])
    stored = await editor.call(method, sessionId=new["sessionId"], **folder)
    assert stored["configOptions"] == new["configOptions"]


async def test_a_model_applies_to_the_next_run(editor: Editor, session: str, waiting_prompt: int, gate: Gate) -> None:
    assert (await set_option(editor, session, "model", "other"))["model"] == "other"
    gate.open.set()
    await editor.result(waiting_prompt)
    assert editor.text() == "Looking.Waited."
    await editor.run(session, "hello")
    assert editor.text().endswith("Waited.Another here.")
    assert not editor.updates("config_option_update"), "the answer has the option"


@pytest.mark.parametrize(
    ("id", "value", "code", "named"),
    [
        ("model", "keyless", INVALID_PARAMS, "SOME_KEY"),
        ("model", "tset", INVALID_PARAMS, "did you mean test"),
        ("model", True, INVALID_PARAMS, "value must be a string"),
        ("chain", "nowhere", INVALID_PARAMS, "default, review, broken"),
        ("chain", "broken", INTERNAL_ERROR, "nowhere.yaml"),
        ("chain", "unpaid", INTERNAL_ERROR, "SOME_KEY"),
        ("thinking", "on", INVALID_PARAMS, "the options are model and chain"),
    ],
    ids=["no key", "unknown model", "boolean", "unknown chain", "broken chain", "chain without key", "unknown option"],
)
async def test_a_refused_option_changes_nothing(
    editor: Editor, session: str, id: str, value: object, code: int, named: str
) -> None:
    error = await editor.error_of("session/set_config_option", sessionId=session, configId=id, value=value)
    assert (error.code, named in error.message) == (code, True), error.message
    await editor.run(session, "hello")
    assert editor.text() == "Hello."


async def test_another_chain_continues_the_conversation(editor: Editor, session: str, tmp_path: Path) -> None:
    assert await set_option(editor, session, "chain", "review") == {"model": "other", "chain": "review"}
    await editor.run(session, "hello")
    for _ in range(2):  # the second time it is in use already
        assert await set_option(editor, session, "chain", "default") == {"model": "test", "chain": "default"}
    await editor.run(session, "hello again")
    assert editor.text() == "Another here.Hello."
    rows = map(json.loads, (tmp_path / "home/state/sessions" / f"{session}.jsonl").read_text().splitlines())
    assert [row["text"] for row in rows if row["type"] == "line"] == ["hello", "hello again"]


async def test_a_chain_cannot_change_during_a_run(
    editor: Editor, session: str, waiting_prompt: int, gate: Gate
) -> None:
    option = {"sessionId": session, "configId": "chain", "value": "review"}
    error = await editor.error_of("session/set_config_option", **option)
    assert (error.code, "a run is active" in error.message) == (INVALID_REQUEST, True)
    gate.open.set()
    await editor.result(waiting_prompt)
    await editor.call("session/set_config_option", **option)


async def test_a_session_lost_by_a_switch_is_closed(editor: Editor, session: str, tmp_path: Path) -> None:
    (tmp_path / "home/state/sessions" / f"{session}.jsonl").unlink()
    error = await editor.error_of("session/set_config_option", sessionId=session, configId="chain", value="review")
    assert "there is no session" in error.message
    assert "closed now" in error.message
    assert (await editor.error_of("session/close", sessionId=session)).code == NOT_FOUND


async def test_commands_are_offered_with_their_arguments(editor: Editor, session: str) -> None:
    arguments = {each["name"]: each.get("input", {}).get("hint") for each in await offered_commands(editor)}
    assert (arguments["status"], arguments["drop"], arguments["to"]) == (None, "[L3]", "AGENT TEXT")


@pytest.mark.parametrize(
    ("text", "answer"),
    [("/Tools", "wait"), ("/compact", "there is no conversation yet"), ("/status of it", "no argument")],
    ids=["in capitals", "nothing to compact", "wrong argument"],
)
async def test_a_command_needs_no_model(editor: Editor, session: str, text: str, answer: str) -> None:
    # ``/tools`` lists the gate's tool ``wait``.
    prompt = editor.prompt(session, text)
    assert await editor.stop_reasons(prompt) == ["end_turn"]
    assert answer in editor.text()
    assert not editor.receipts()
    assert not any(answer in warning for warning in editor.warnings)
    assert editor.last_message == ("answer", prompt)


async def test_other_texts_with_a_slash_are_lines(editor: Editor, session: str) -> None:
    texts = ("/quit", " /status", "/statusses", "/usr/bin is a folder", "@done hello")
    for text in texts:
        assert await editor.run(session, text) == "end_turn"
    assert editor.text() == "Hello." * len(texts), "the model answered each text"


async def test_a_command_is_answered_during_a_run(
    editor: Editor, session: str, waiting_prompt: int, gate: Gate
) -> None:
    later = editor.prompt(session, "later")
    await editor.wait_until(lambda: editor.receipts("queued"))
    await editor.run(session, "/queue")
    assert "later" in editor.text()
    assert (await editor.steer(session, "/drop"))["outcome"] == "injected"
    assert await editor.stop_reasons(later) == ["cancelled"]
    await editor.wait_until(lambda: "Done." in editor.text())
    assert waiting_prompt not in editor.answers
    gate.open.set()
    assert await editor.stop_reasons(waiting_prompt) == ["end_turn"]


async def test_a_line_can_be_addressed(editor: Editor, session: str, waiting_prompt: int, gate: Gate) -> None:
    assert "nobody" in (await editor.prompt_error(session, "/to nobody look elsewhere")).message
    addressed = editor.prompt(session, "/to main look elsewhere")
    await editor.wait_until(lambda: editor.receipts("queued"))
    gate.open.set()
    assert await editor.stop_reasons(waiting_prompt, addressed) == ["end_turn", "end_turn"]
    assert editor.text("user_message_chunk") == "look elsewhere"


async def test_the_model_command_updates_the_option(editor: Editor, session: str) -> None:
    await editor.run(session, "/model other")
    [update] = editor.updates("config_option_update")
    assert current_values(update)["model"] == "other"
    await editor.run(session, "/model keyless")
    assert "SOME_KEY" in editor.text()
    await editor.run(session, "hello")
    assert editor.text().endswith("Another here.")
    assert editor.updates("config_option_update") == [update]


@with_unread_end
async def test_a_compaction_answers_its_own_prompt(editor: Editor, session: str, tmp_path: Path) -> None:
    editor.pause_reading()
    first = editor.prompt(session, "loop")
    journal = tmp_path / "home/state/sessions" / f"{session}.jsonl"
    while '"status":"max_iterations"' not in journal.read_text():
        await wait_all_tasks_blocked(0.01)
    compacting = editor.prompt(session, "/compact what matters")
    editor.reads.set()
    assert await editor.stop_reasons(first, compacting) == ["max_turn_requests", "end_turn"]
    assert "Conversation compacted" in editor.text("agent_thought_chunk")
    assert editor.last_message == ("answer", compacting)


async def test_a_compaction_can_be_cancelled(tmp_path: Path) -> None:
    slow_summary = 'rules: [{when: {user: "^hello"}, text: Hello.}, {text: A summary., pace: {chunk: 1, delay_s: 600}}]'
    async with open_editor(opener(tmp_path / "home", slow_summary)) as editor:
        session = await editor.new_session(tmp_path)
        await editor.run(session, "hello")
        compacting = editor.prompt(session, "/compact")
        editor.notify("$/cancel_request", requestId=compacting)
        assert await editor.stop_reasons(compacting) == ["cancelled"]


async def test_a_command_of_the_user_starts_a_run(tmp_path: Path) -> None:
    config, environ = tmp_path / "home/config.yaml", {"HOME": str(tmp_path / "home")}
    session_opener = replace(
        opener(tmp_path / "home", RULES),
        read_settings=lambda cwd: load_settings(config=config, environ=environ, cwd=cwd),
    )
    folder = tmp_path / "home/.config/chain/commands"
    folder.mkdir(parents=True)
    (folder / "greet.md").write_text("---\ndescription: Greets\n---\nGreet $1")
    async with open_editor(session_opener) as editor:
        session = await editor.new_session(tmp_path)
        assert {"name": "greet", "description": "Greets", "input": {"hint": "[...]"}} in await offered_commands(editor)
        assert await editor.run(session, "/greet Ada") == "end_turn"
        assert "Good day." in editor.text()
