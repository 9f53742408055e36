"""Random editors: whatever they do, each request is answered once, and each line ends in one known state."""

import json
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import trio
from hypothesis import strategies as st
from support.editor import Editor, connected, opener
from support.examples import sharded
from support.gate import Gate
from trio.testing import wait_all_tasks_blocked

RULES = r"""
rules:
  - {when: {interruption: '(?P<all>[\s\S]+)'}, text: "Understood: ${all}", and: continue}
  - {when: {user: 'wait', tool: wait}, text: "Waited."}
  - {when: {user: 'wait'}, text: "Looking.", tools: [{name: wait, input: {}}]}
  - {when: {user: 'ask', tool: ask_user_question}, text: "You said: ${result}"}
  - {when: {user: 'ask'}, tools: [{name: ask_user_question, input: {question: "Which?", options: [left, right]}}]}
  - {text: "Hello."}
"""

FINAL = {"delivered", "handled", "returned", "dropped"}
TEXTS = ["hello", "wait", "ask", "!look", "!!turn", "then: hello", "then: wait", "stop", "todo: add x", "how far?"]
TEXTS += ["/queue", "/drop", "/compact", "/to main hello", "/model offline", "/quit"]
CHAINS = ["default", "other"]
ACTS = st.lists(
    st.tuples(st.just("prompt"), st.sampled_from(TEXTS))
    | st.tuples(st.just("steer"), st.sampled_from(TEXTS))
    | st.tuples(st.just("switch"), st.sampled_from(CHAINS))
    | st.tuples(st.sampled_from(["pause", "pause", "cancel", "withdraw", "open", "answer", "dismiss", "load"])),
    max_size=14,
)


async def play(editor: Editor, gate: Gate, home: Path, acts: list[tuple[str, ...]]) -> list[object]:
    session = await editor.new(home)
    where = {"sessionId": session, "cwd": str(home), "mcpServers": []}
    ids: list[object] = []
    answered = 0
    for act, *words in acts:
        match act:
            case "prompt":
                ids.append(editor.prompt(session, words[0]))
            case "steer":
                block = {"type": "text", "text": words[0]}
                ids.append(editor.begin("_session/steering", sessionId=session, prompt=[block]))
            case "switch":
                ids.append(
                    editor.begin("session/set_config_option", sessionId=session, configId="chain", value=words[0])
                )
            case "pause":
                await wait_all_tasks_blocked(0.002)
            case "cancel":
                editor.tell("session/cancel", sessionId=session)
            case "withdraw" if ids:
                editor.tell("$/cancel_request", requestId=ids[-1])
            case "open":
                gate.open.set()
            case "answer" | "dismiss" if len(editor.asked) > answered:
                outcome = {"outcome": "selected", "optionId": "1"} if act == "answer" else {"outcome": "cancelled"}
                editor.answer(editor.asked[answered], outcome=outcome)
                answered += 1
            case "load":
                ids.append(editor.begin("session/close", sessionId=session))
                ids.append(editor.begin("session/load", **where))
                await editor.until(lambda id=ids[-1]: id in editor.answers)  # type: ignore[misc]
    return ids


def final_states(home: Path) -> dict[str, str]:
    [journal] = (home / "home/state/sessions").glob("*.jsonl")
    records: list[dict[str, Any]] = [json.loads(row) for row in journal.read_text().splitlines()]
    states = {record["id"]: "" for record in records if record["type"] == "line"}
    return states | {record["id"]: record["state"] for record in records if record["type"] == "receipt"}


@sharded(100, ACTS, shards=4)
def test_requests_are_answered_once_and_lines_end(acts: list[tuple[str, ...]]) -> None:
    async def main(home: Path) -> None:
        gate = Gate()
        async with connected(opener(home / "home", RULES, tools=[gate.tool], chains=CHAINS)) as editor:
            await editor.initialize(_meta={"receipts": True})
            ids = await play(editor, gate, home, acts)
        answers = Counter(id for what, id in editor.log if what == "answer")
        assert {id: answers[id] for id in ids} == dict.fromkeys(ids, 1)
        assert not [note for note in editor.notes if "Traceback" in note]
        assert set(final_states(home).values()) <= FINAL

    with TemporaryDirectory() as folder:
        trio.run(main, Path(folder))
