"""What an editor can set, and the commands that it is offered, in lock-step."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from support.editor import Editor, connected, opener
from support.gate import Gate

from chain.config.load import load_settings
from cli.acp.rpc import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, NOT_FOUND
from cli.outbox import ROOM

RULES = r"""
rules:
  - {when: {interruption: '(?P<all>[\s\S]+)'}, text: "Understood: ${all}", and: continue}
  - {when: {user: '\Await', tool: wait}, text: "Waited."}
  - {when: {user: '\Await'}, text: "Looking.", tools: [{name: wait, input: {}}]}
  - {when: {user: '\Aloop', tool: plan_list}, tools: [{name: plan_list, input: {}}]}
  - {when: {user: '\Aloop'}, tools: [{name: plan_list, input: {}}]}
  - {text: "One here."}
"""
OTHER = "rules: [{text: Another here.}]"
KEYLESS = {"provider": "anthropic", "model": "claude-sonnet-5-5", "api_key": "${SOME_KEY}"}


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
async def editor(tmp_path: Path, gate: Gate) -> AsyncIterator[Editor]:
    async with offered(tmp_path, gate) as editor:
        yield editor


@asynccontextmanager
async def offered(home: Path, gate: Gate) -> AsyncIterator[Editor]:
    """An editor whose configuration has three models and three chains, one of them broken."""
    (home / "ws").mkdir()
    use = opener(home / "home", RULES, tools=[gate.tool], max_iterations=ROOM)
    path = home / "home" / "config.yaml"
    config: dict[str, Any] = json.loads(path.read_text())
    (home / "home" / "other.yaml").write_text(OTHER)
    config["models"]["definitions"] |= {"other": {"provider": "scripted", "script": "other.yaml"}, "keyless": KEYLESS}
    plain = config["chains"]["default"]
    config["chains"] |= {
        "review": {**plain, "model": "other", "tools": ["todo"]},
        "broken": {**plain, "system_prompt": "nowhere.yaml"},
        "unpaid": {**plain, "model": "keyless"},
    }
    path.write_text(json.dumps(config))
    async with connected(use) as editor:
        await editor.initialize(_meta={"receipts": True})
        yield editor


def current(result: dict[str, Any]) -> dict[str, str]:
    return {option["id"]: option["currentValue"] for option in result["configOptions"]}


async def set_option(editor: Editor, session: str, id: str, value: object) -> dict[str, Any]:
    return await editor.call("session/set_config_option", sessionId=session, configId=id, value=value)


# ----------------------------------------------------------------------------------------------------------- options


async def test_models_and_chains_are_options_however_a_session_is_opened(editor: Editor, tmp_path: Path) -> None:
    where = {"cwd": str(tmp_path / "ws"), "mcpServers": []}
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


async def test_a_single_chain_is_no_choice(tmp_path: Path) -> None:
    async with connected(opener(tmp_path / "home", RULES)) as editor:
        await editor.initialize()
        result = await editor.call("session/new", cwd=str(tmp_path), mcpServers=[])
        assert current(result) == {"model": "test"}


async def test_a_model_that_is_set_answers_the_next_prompt(editor: Editor, tmp_path: Path, gate: Gate) -> None:
    session = await editor.new(tmp_path / "ws")
    running = editor.prompt(session, "wait")
    await gate.started.wait()
    assert current(await set_option(editor, session, "model", "other"))["model"] == "other"
    gate.open.set()
    await editor.result(running)
    assert editor.text() == "Looking.Waited.", "the run keeps its own"
    await editor.result(editor.prompt(session, "hello"))
    assert editor.text().endswith("Waited.Another here.")
    assert not editor.updates("config_option_update"), "the answer has said it"


@pytest.mark.parametrize(
    ("id", "value", "code", "named"),
    [
        ("model", "keyless", INVALID_PARAMS, "SOME_KEY"),
        ("model", "tset", INVALID_PARAMS, "did you mean test"),
        ("model", True, INVALID_PARAMS, "value must be a string"),
        ("chain", "nowhere", INVALID_PARAMS, "default, review, broken"),
        ("chain", "broken", INTERNAL_ERROR, "nowhere.yaml"),
        ("chain", "unpaid", INTERNAL_ERROR, "SOME_KEY"),
        ("thinking", "on", INVALID_PARAMS, "model and chain"),
    ],
)
async def test_what_cannot_be_set_says_why_and_changes_nothing(
    editor: Editor, tmp_path: Path, id: str, value: object, code: int, named: str
) -> None:
    session = await editor.new(tmp_path / "ws")
    error = await editor.error("session/set_config_option", sessionId=session, configId=id, value=value)
    assert error.code == code
    assert named in error.message
    await editor.result(editor.prompt(session, "hello"))
    assert editor.text() == "One here."


async def test_another_chain_goes_on_with_the_conversation(editor: Editor, tmp_path: Path) -> None:
    session = await editor.new(tmp_path / "ws")
    assert current(await set_option(editor, session, "chain", "review")) == {"model": "other", "chain": "review"}
    await editor.result(editor.prompt(session, "hello"))
    assert current(await set_option(editor, session, "chain", "default")) == {"model": "test", "chain": "default"}
    assert current(await set_option(editor, session, "chain", "default")) == {"model": "test", "chain": "default"}
    await editor.result(editor.prompt(session, "hello again"))
    assert editor.text() == "Another here.One here."
    rows = map(json.loads, (tmp_path / "home/state/sessions" / f"{session}.jsonl").read_text().splitlines())
    assert [row["text"] for row in rows if row["type"] == "line"] == ["hello", "hello again"]


async def test_another_chain_waits_for_the_end_of_a_run(editor: Editor, tmp_path: Path, gate: Gate) -> None:
    session = await editor.new(tmp_path / "ws")
    running = editor.prompt(session, "wait")
    await gate.started.wait()
    where = {"sessionId": session, "configId": "chain", "value": "review"}
    error = await editor.error("session/set_config_option", **where)
    assert error.code == INVALID_REQUEST
    assert "a run is active" in error.message
    gate.open.set()
    assert (await editor.result(running))["stopReason"] == "end_turn"
    await editor.call("session/set_config_option", **where)


async def test_a_session_that_cannot_be_resumed_in_another_chain_is_said_to_be_closed(
    editor: Editor, tmp_path: Path
) -> None:
    session = await editor.new(tmp_path / "ws")
    (tmp_path / "home/state/sessions" / f"{session}.jsonl").unlink()
    error = await editor.error("session/set_config_option", sessionId=session, configId="chain", value="review")
    assert "there is no session" in error.message
    assert "closed now" in error.message
    assert (await editor.error("session/close", sessionId=session)).code == NOT_FOUND


async def test_a_session_between_two_chains_takes_no_prompt(editor: Editor, tmp_path: Path) -> None:
    session = await editor.new(tmp_path / "ws")
    switching = editor.begin("session/set_config_option", sessionId=session, configId="chain", value="review")
    prompts: list[int] = []
    while switching not in editor.answers:  # in each step that this takes
        prompts.append(editor.prompt(session, "hello"))
        await trio.testing.wait_all_tasks_blocked(0.001)
    for id in prompts:
        await editor.until(lambda id=id: id in editor.answers)  # type: ignore[misc]
        answer = editor.answers[id]
        assert "is being opened" in answer["error"]["message"] if "error" in answer else answer["result"]["stopReason"]


# ---------------------------------------------------------------------------------------------------------- commands


async def test_a_command_is_offered_with_how_its_argument_is_written(editor: Editor, tmp_path: Path) -> None:
    await editor.new(tmp_path / "ws")
    await editor.until(lambda: editor.updates("available_commands_update"))
    [offer] = editor.updates("available_commands_update")
    offered = {each["name"]: each.get("input", {}).get("hint") for each in offer["availableCommands"]}
    assert (offered["status"], offered["drop"], offered["to"]) == (None, "[L3]", "AGENT TEXT")


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("/status", "nothing is running"),
        ("/Tools", "wait"),
        ("/context", "tokens"),
        ("/todo", "The plan is empty"),
        ("/queue", "No line is waiting."),
        ("/drop", "No line is waiting."),
        ("/agents", "No agent is at work."),
        ("/model", "other"),
        ("/debug", "journal"),
        ("/compact", "there is no conversation yet"),
        ("/to explore-1", "write it as /to AGENT TEXT"),
        ("/status of it", "no argument"),
    ],
)
async def test_a_command_is_carried_out_without_the_model(editor: Editor, tmp_path: Path, text: str, said: str) -> None:
    session = await editor.new(tmp_path / "ws")
    id = editor.prompt(session, text)
    assert (await editor.result(id))["stopReason"] == "end_turn"
    assert said in editor.text()
    assert "One here." not in editor.text()
    assert not editor.receipts()
    assert editor.log[-1] == ("answer", id)


async def test_a_command_that_was_not_offered_is_a_line(editor: Editor, tmp_path: Path) -> None:
    session = await editor.new(tmp_path / "ws")
    for text in ("/quit", "/new", " /status", "/statusses", "/usr/bin is a folder", "@done hello"):
        assert (await editor.result(editor.prompt(session, text)))["stopReason"] == "end_turn"
    assert editor.text() == "One here." * 6


async def test_a_command_is_answered_while_a_run_goes_on(editor: Editor, tmp_path: Path, gate: Gate) -> None:
    session = await editor.new(tmp_path / "ws")
    running = editor.prompt(session, "wait")
    await gate.started.wait()
    waiting = editor.prompt(session, "later")
    await editor.until(lambda: editor.receipts("queued"))
    await editor.result(editor.prompt(session, "/queue"))
    assert "later" in editor.text()
    steered = await editor.call("_session/steering", sessionId=session, prompt=[{"type": "text", "text": "/drop"}])
    assert steered["outcome"] == "injected"
    assert (await editor.result(waiting))["stopReason"] == "cancelled"
    await editor.until(lambda: "Done." in editor.text())
    assert running not in editor.answers
    gate.open.set()
    assert (await editor.result(running))["stopReason"] == "end_turn"


async def test_a_line_for_one_agent_goes_to_it(editor: Editor, tmp_path: Path, gate: Gate) -> None:
    session = await editor.new(tmp_path / "ws")
    running = editor.prompt(session, "wait")
    await gate.started.wait()
    error = await editor.error(
        "session/prompt", sessionId=session, prompt=[{"type": "text", "text": "/to nobody look elsewhere"}]
    )
    assert "nobody" in error.message
    addressed = editor.prompt(session, "/to main look elsewhere")
    await editor.until(lambda: editor.receipts("queued"))
    gate.open.set()
    assert [(await editor.result(id))["stopReason"] for id in (running, addressed)] == ["end_turn"] * 2
    assert editor.text("user_message_chunk") == "look elsewhere"


async def test_a_model_that_a_command_sets_is_told_as_an_option(editor: Editor, tmp_path: Path) -> None:
    session = await editor.new(tmp_path / "ws")
    id = editor.prompt(session, "/model other")
    await editor.result(id)
    [update] = editor.updates("config_option_update")
    assert current(update)["model"] == "other"
    await editor.result(editor.prompt(session, "/model keyless"))
    assert "SOME_KEY" in editor.text()
    await editor.result(editor.prompt(session, "hello"))
    assert editor.text().endswith("Another here.")
    assert len(editor.updates("config_option_update")) == 1


async def test_a_compaction_answers_its_own_prompt_when_it_has_ended(editor: Editor, tmp_path: Path) -> None:
    session = await editor.new(tmp_path / "ws")
    editor.reads = trio.Event()
    first = editor.prompt(session, "loop")
    journal = tmp_path / "home/state/sessions" / f"{session}.jsonl"
    while '"status":"max_iterations"' not in journal.read_text():  # it has ended, which the editor has not read
        await trio.testing.wait_all_tasks_blocked(0.01)
    compacting = editor.prompt(session, "/compact what matters")
    editor.reads.set()
    assert (await editor.result(first))["stopReason"] == "max_turn_requests"
    result = await editor.result(compacting)
    assert (result["stopReason"], result["_meta"]["chain"]["status"]) == ("end_turn", "done")
    assert "ompact" in editor.text("agent_thought_chunk")
    assert editor.log[-1] == ("answer", compacting)


async def test_a_prompt_that_has_begun_a_compaction_can_be_taken_back(tmp_path: Path, gate: Gate) -> None:
    slow = 'rules: [{when: {user: "^hello"}, text: Hello.}, {text: A summary., pace: {chunk: 1, delay_s: 600}}]'
    async with connected(opener(tmp_path / "home", slow)) as editor:
        await editor.initialize()
        session = await editor.new(tmp_path)
        await editor.result(editor.prompt(session, "hello"))
        compacting = editor.prompt(session, "/compact")
        editor.tell("$/cancel_request", requestId=compacting)
        assert (await editor.result(compacting))["stopReason"] == "cancelled"


# ---------------------------------------------------------------------------------------------------------- deleting


async def test_a_session_that_is_deleted_is_gone(editor: Editor, tmp_path: Path, gate: Gate) -> None:
    kept, running = [await editor.new(tmp_path / "ws") for _ in range(2)]
    await editor.result(editor.prompt(kept, "hello"))
    await editor.call("session/close", sessionId=kept)
    id = editor.prompt(running, "wait")
    await gate.started.wait()
    for session in (kept, running):
        assert await editor.call("session/delete", sessionId=session) == {}
    assert (await editor.result(id))["stopReason"] == "cancelled", "what runs is interrupted first"
    assert (await editor.call("session/list"))["sessions"] == []
    assert (await editor.error("session/load", sessionId=kept, cwd=str(tmp_path / "ws"))).code == NOT_FOUND
    for session in (kept, "none", ""):
        assert await editor.call("session/delete", sessionId=session) == {}, "the protocol wants no error"


async def test_only_the_whole_id_deletes(editor: Editor, tmp_path: Path) -> None:
    session = await editor.new(tmp_path / "ws")
    await editor.result(editor.prompt(session, "hello"))
    await editor.call("session/close", sessionId=session)
    for part in (session[:-1], session[-6:], f"../sessions/{session}"):
        await editor.call("session/delete", sessionId=part)
    assert [each["sessionId"] for each in (await editor.call("session/list"))["sessions"]] == [session]


async def test_a_command_of_the_users_own_is_offered_and_its_run_answers_it(tmp_path: Path) -> None:
    use = opener(tmp_path / "home", "rules: [{when: {user: Greet Ada}, text: Good day.}, {text: Hello.}]")
    config, environ = tmp_path / "home/config.yaml", {"HOME": str(tmp_path / "home")}
    use = replace(use, read_settings=lambda cwd: load_settings(config=config, environ=environ, cwd=cwd))
    folder = tmp_path / "home/.config/chain/commands"
    folder.mkdir(parents=True)
    (folder / "greet.md").write_text("---\ndescription: Greets\n---\nGreet $1")
    async with connected(use) as editor:
        await editor.initialize()
        session = await editor.new(tmp_path)
        await editor.until(lambda: editor.updates("available_commands_update"))
        offered = editor.updates("available_commands_update")[-1]["availableCommands"]
        assert {"name": "greet", "description": "Greets", "input": {"hint": "[...]"}} in offered
        assert (await editor.result(editor.prompt(session, "/greet Ada")))["stopReason"] == "end_turn"
        assert "Good day." in editor.text()
