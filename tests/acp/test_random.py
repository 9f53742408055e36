"""Random actions of an editor: each request is answered once, and each line has a final state."""

import json
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import trio
from hypothesis import strategies as st
from support.editor import RULES, Editor, open_editor, opener
from support.examples import sharded
from support.gate import Gate
from trio.testing import wait_all_tasks_blocked

FINAL_STATES = {"delivered", "handled", "returned", "dropped"}
TEXTS = ["hello", "wait", "ask", "!look", "!!turn", "then: hello", "then: wait", "stop", "todo: add x", "how far?"]
TEXTS += ["/queue", "/drop", "/compact", "/to main hello", "/model offline", "/quit"]
CHAINS = ["default", "other"]
SIMPLE_ACTS = [*["pause"] * 2, "cancel", "withdraw", "open gate", "answer", "dismiss", "load"]
"""Acts without a parameter. An entry that is repeated is drawn more often."""
OUTCOMES = {"answer": {"outcome": "selected", "optionId": "1"}, "dismiss": {"outcome": "cancelled"}}
"""The answer with the first option of a question, and the one without an option."""
ACTS = st.lists(
    st.tuples(st.sampled_from(["prompt", "steer"]), st.sampled_from(TEXTS))
    | st.tuples(st.just("switch chain"), st.sampled_from(CHAINS))
    | st.tuples(st.sampled_from(SIMPLE_ACTS)),
    max_size=14,
)


async def play(editor: Editor, gate: Gate, folder: Path, acts: list[tuple[str, ...]]) -> list[object]:
    """Carry out the acts in a new session. Return the ids of the editor's requests."""
    session = await editor.new_session(folder)
    ids: list[object] = []
    next_request = 0  # the index of the oldest question without an answer

    def has_question() -> bool:
        return next_request < len(editor.requests)

    for act in acts:
        match act:
            case ("prompt", text):
                ids.append(editor.prompt(session, text))
            case ("steer", text):
                ids.append(editor.start_steering(session, text))
            case ("switch chain", name):
                option = {"sessionId": session, "configId": "chain", "value": name}
                ids.append(editor.start_request("session/set_config_option", **option))
            case ("pause",):
                await wait_all_tasks_blocked(0.002)  # 2 ms more for work in threads
            case ("cancel",):
                editor.notify("session/cancel", sessionId=session)
            case ("withdraw",) if ids:  # else there is no request to withdraw
                editor.notify("$/cancel_request", requestId=ids[-1])
            case ("open gate",):
                gate.open.set()
            case ("answer" | "dismiss" as reaction,) if has_question():
                editor.answer(editor.requests[next_request], outcome=OUTCOMES[reaction])
                next_request += 1
            case ("load",):
                ids.append(editor.start_request("session/close", sessionId=session))
                load = editor.start_request("session/load", sessionId=session, cwd=str(folder), mcpServers=[])
                ids.append(load)
                await editor.wait_until(lambda id=load: id in editor.answers)  # type: ignore[misc]
    return ids


def final_states(home: Path) -> set[str]:
    """Return the states in which the lines of the only session ended. Without a receipt, a line has an empty state."""
    [journal] = home.glob("state/sessions/*.jsonl")
    records: list[dict[str, Any]] = [json.loads(row) for row in journal.read_text().splitlines()]
    states = {record["id"]: "" for record in records if record["type"] == "line"}
    states |= {record["id"]: record["state"] for record in records if record["type"] == "receipt"}
    return set(states.values())


@sharded(100, ACTS, shards=4)
def test_requests_are_answered_once_and_lines_end(acts: list[tuple[str, ...]]) -> None:
    async def main(folder: Path) -> None:
        gate = Gate()
        session_opener = opener(folder / "home", RULES, tools=[gate.tool], chains=CHAINS)
        async with open_editor(session_opener, _meta={"receipts": True}) as editor:
            ids = await play(editor, gate, folder, acts)
        answers = Counter(id for what, id in editor.log if what == "answer")
        assert {id: answers[id] for id in ids} == dict.fromkeys(ids, 1)
        assert not any("Traceback" in warning for warning in editor.warnings)
        assert final_states(folder / "home") <= FINAL_STATES

    with TemporaryDirectory() as folder:
        trio.run(main, Path(folder))
