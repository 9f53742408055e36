"""The options that an editor can set, and the commands that it is offered."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from support.editor import RULES, Editor, connected, opener
from support.gate import Gate
from trio.testing import wait_all_tasks_blocked

from chain.config.load import load_settings
from cli.acp.rpc import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, NOT_FOUND
from cli.outbox import ROOM


def current(result: dict[str, Any]) -> dict[str, str]:
    return {option["id"]: option["currentValue"] for option in result["configOptions"]}


async def set_option(editor: Editor, session: str, id: str, value: object) -> dict[str, str]:
    return current(await editor.call("session/set_config_option", sessionId=session, configId=id, value=value))


async def commands(editor: Editor) -> list[dict[str, Any]]:
    """Return the commands that were offered last."""
    await editor.until(lambda: editor.updates("available_commands_update"))
    found: list[dict[str, Any]] = editor.updates("available_commands_update")[-1]["availableCommands"]
    return found


# ------------------------------------------------------------------------------------------------------------ options


async def test_models_and_chains_are_options(editor: Editor, workspace: Path) -> None:
    where = {"cwd": str(workspace), "mcpServers": []}
    first = await editor.call("session/new", **where)
    assert current(first) == {"model": "test", "chain": "default"}
    model, chain = first["configOptions"]
    about = {each["value"]: each["description"] for each in model["options"]}
    assert set(about) > {"test", "other", "keyless"}
    assert "SOME_KEY" in about["keyless"]
    assert [each["value"] for each in chain["options"]] == ["default", "review", "broken", "unpaid"]
    await editor.call("session/close", sessionId=first["sessionId"])
    for how in ("session/load", "session/resume"):
        again = await editor.call(how, sessionId=first["sessionId"], **where)
        assert again["configOptions"] == first["configOptions"]
        await editor.call("session/close", sessionId=first["sessionId"])


async def test_a_model_applies_to_the_next_run(editor: Editor, session: str, waiting: int, gate: Gate) -> None:
    assert (await set_option(editor, session, "model", "other"))["model"] == "other"
    gate.open.set()
    await editor.result(waiting)
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
)
async def test_a_refused_option_changes_nothing(
    editor: Editor, session: str, id: str, value: object, code: int, named: str
) -> None:
    error = await editor.error("session/set_config_option", sessionId=session, configId=id, value=value)
    assert (error.code, named in error.message) == (code, True), error.message
    await editor.run(session, "hello")
    assert editor.text() == "Hello."


async def test_another_chain_continues_the_conversation(editor: Editor, session: str, tmp_path: Path) -> None:
    assert await set_option(editor, session, "chain", "review") == {"model": "other", "chain": "review"}
    await editor.run(session, "hello")
    for _ in range(2):
        assert await set_option(editor, session, "chain", "default") == {"model": "test", "chain": "default"}
    await editor.run(session, "hello again")
    assert editor.text() == "Another here.Hello."
    rows = map(json.loads, (tmp_path / "home/state/sessions" / f"{session}.jsonl").read_text().splitlines())
    assert [row["text"] for row in rows if row["type"] == "line"] == ["hello", "hello again"]


async def test_a_chain_cannot_change_during_a_run(editor: Editor, session: str, waiting: int, gate: Gate) -> None:
    option = {"sessionId": session, "configId": "chain", "value": "review"}
    error = await editor.error("session/set_config_option", **option)
    assert (error.code, "a run is active" in error.message) == (INVALID_REQUEST, True)
    gate.open.set()
    await editor.result(waiting)
    await editor.call("session/set_config_option", **option)


async def test_a_session_lost_by_a_switch_is_closed(editor: Editor, session: str, tmp_path: Path) -> None:
    (tmp_path / "home/state/sessions" / f"{session}.jsonl").unlink()
    error = await editor.error("session/set_config_option", sessionId=session, configId="chain", value="review")
    assert "there is no session" in error.message
    assert "closed now" in error.message
    assert (await editor.error("session/close", sessionId=session)).code == NOT_FOUND


# ----------------------------------------------------------------------------------------------------------- commands


async def test_commands_are_offered_with_their_arguments(editor: Editor, session: str) -> None:
    offered = {each["name"]: each.get("input", {}).get("hint") for each in await commands(editor)}
    assert (offered["status"], offered["drop"], offered["to"]) == (None, "[L3]", "AGENT TEXT")


@pytest.mark.parametrize(
    ("text", "said"),
    [("/Tools", "wait"), ("/compact", "there is no conversation yet"), ("/status of it", "no argument")],
)
async def test_a_command_needs_no_model(editor: Editor, session: str, text: str, said: str) -> None:
    id = editor.prompt(session, text)
    assert await editor.reasons(id) == ["end_turn"]
    assert said in editor.text()
    assert not editor.receipts()
    assert not [note for note in editor.notes if said in note]
    assert editor.log[-1] == ("answer", id)


async def test_other_texts_with_a_slash_are_lines(editor: Editor, session: str) -> None:
    for text in ("/quit", " /status", "/statusses", "/usr/bin is a folder", "@done hello"):
        assert await editor.run(session, text) == "end_turn"
    assert editor.text() == "Hello." * 5


async def test_a_command_is_answered_during_a_run(editor: Editor, session: str, waiting: int, gate: Gate) -> None:
    later = editor.prompt(session, "later")
    await editor.until(lambda: editor.receipts("queued"))
    await editor.run(session, "/queue")
    assert "later" in editor.text()
    assert (await editor.steer(session, "/drop"))["outcome"] == "injected"
    assert await editor.reasons(later) == ["cancelled"]
    await editor.until(lambda: "Done." in editor.text())
    assert waiting not in editor.answers
    gate.open.set()
    assert await editor.reasons(waiting) == ["end_turn"]


async def test_a_line_can_be_addressed(editor: Editor, session: str, waiting: int, gate: Gate) -> None:
    assert "nobody" in (await editor.refusal(session, "/to nobody look elsewhere")).message
    addressed = editor.prompt(session, "/to main look elsewhere")
    await editor.until(lambda: editor.receipts("queued"))
    gate.open.set()
    assert await editor.reasons(waiting, addressed) == ["end_turn"] * 2
    assert editor.text("user_message_chunk") == "look elsewhere"


async def test_the_model_command_updates_the_option(editor: Editor, session: str) -> None:
    await editor.run(session, "/model other")
    [update] = editor.updates("config_option_update")
    assert current(update)["model"] == "other"
    await editor.run(session, "/model keyless")
    assert "SOME_KEY" in editor.text()
    await editor.run(session, "hello")
    assert editor.text().endswith("Another here.")
    assert len(editor.updates("config_option_update")) == 1


@pytest.mark.parametrize("config", [{"max_iterations": ROOM}], indirect=True, ids=[""])
async def test_a_compaction_answers_its_own_prompt(editor: Editor, session: str, tmp_path: Path) -> None:
    editor.reads = trio.Event()
    first = editor.prompt(session, "loop")
    journal = tmp_path / "home/state/sessions" / f"{session}.jsonl"
    while '"status":"max_iterations"' not in journal.read_text():  # it has ended, but the editor has not read it
        await wait_all_tasks_blocked(0.01)
    compacting = editor.prompt(session, "/compact what matters")
    editor.reads.set()
    assert await editor.reasons(first, compacting) == ["max_turn_requests", "end_turn"]
    assert "ompact" in editor.text("agent_thought_chunk")
    assert editor.log[-1] == ("answer", compacting)


async def test_a_compaction_can_be_cancelled(tmp_path: Path) -> None:
    slow = 'rules: [{when: {user: "^hello"}, text: Hello.}, {text: A summary., pace: {chunk: 1, delay_s: 600}}]'
    async with connected(opener(tmp_path / "home", slow)) as editor:
        await editor.initialize()
        session = await editor.new(tmp_path)
        await editor.run(session, "hello")
        compacting = editor.prompt(session, "/compact")
        editor.tell("$/cancel_request", requestId=compacting)
        assert await editor.reasons(compacting) == ["cancelled"]


async def test_a_command_of_the_user_starts_a_run(tmp_path: Path) -> None:
    use = opener(tmp_path / "home", RULES)
    config, environ = tmp_path / "home/config.yaml", {"HOME": str(tmp_path / "home")}
    use = replace(use, read_settings=lambda cwd: load_settings(config=config, environ=environ, cwd=cwd))
    folder = tmp_path / "home/.config/chain/commands"
    folder.mkdir(parents=True)
    (folder / "greet.md").write_text("---\ndescription: Greets\n---\nGreet $1")
    async with connected(use) as editor:
        await editor.initialize()
        session = await editor.new(tmp_path)
        assert {"name": "greet", "description": "Greets", "input": {"hint": "[...]"}} in await commands(editor)
        assert await editor.run(session, "/greet Ada") == "end_turn"
        assert "Good day." in editor.text()
