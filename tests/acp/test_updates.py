"""Events as updates, where the tests with a whole chain do not come by."""

from pathlib import Path

import pytest

from chain import events, load_settings
from chain.app.toolbox import tool_kinds
from chain.text.wording import INTERRUPTED
from chain.tools.tool import ToolContext, tool
from cli.acp.updates import MAX_SHOWN_OUTPUT, UpdateBuilder


@pytest.fixture
def teller() -> UpdateBuilder:
    return UpdateBuilder(Path("/work"), {"read_file": "read", "explore": "delegate"})


KINDS = {
    "read_file": "read",
    "list_files": "search",
    "search_files": "search",
    "write_file": "edit",
    "edit_file": "edit",
    "research": "fetch",
    "plan_list": "think",
    "plan_set_tasks": "think",
    "explore": "think",
    "agent_ask": "think",
    "ask_user_question": "other",
    "shout": "read",
    "of_nobody": "other",
}


@pytest.mark.parametrize("name", KINDS)
def test_the_kind_of_a_call_is_that_of_its_tool(tmp_path: Path, name: str) -> None:
    @tool(kind="read")
    async def shout(ctx: ToolContext) -> str:
        """Say it louder."""
        return ""

    settings = load_settings(config=None, environ={}, cwd=tmp_path)
    [update] = UpdateBuilder(tmp_path, tool_kinds(settings, [shout])).updates(
        events.ToolCall(id="c1", name=name, input={})
    )
    assert update["kind"] == KINDS[name]


def result(status: events.Status, text: str, *replies: str) -> events.Result:
    return events.Result(status=status, result=text, replies=replies)


@pytest.mark.parametrize(
    ("shown", "ended", "said"),
    [
        ("The answer.", result("done", "The answer.", "The answer."), []),
        ("", result("done", "The answer before an aside.", "The answer before an aside."), []),
        ("So f", result("cancelled", "So f\n\nWhat instead?", "So f"), ["What instead?"]),
        ("", result("cancelled", "Cancelled."), ["Cancelled."]),
        ("Part", result("interrupted", "Interrupted."), []),
        ("", result("max_iterations", "Stopped after 2."), ["Stopped after 2."]),
        ("Last.", result("max_iterations", "Last.", "Last."), []),
        ("", result("error", "no service"), ["no service"]),
        ("", result("limit_reached", ""), []),
    ],
)
def test_the_end_of_a_run_says_what_was_not_said(
    teller: UpdateBuilder, shown: str, ended: events.Result, said: list[str]
) -> None:
    for piece in shown:
        teller.updates(events.TextDelta(text=piece))
    assert [update["content"]["text"] for update in teller.updates(ended)] == said


def test_an_error_that_answers_a_prompt_is_not_said_twice(teller: UpdateBuilder) -> None:
    assert teller.updates(result("error", "no service"), tells_errors=False) == []


def test_each_message_has_an_id_of_its_own(teller: UpdateBuilder) -> None:
    told = [
        events.RunStarted(id="L1", query="go"),
        events.ThinkingDelta(text="hm"),
        events.TextDelta(text="one"),
        events.TextDelta(text=" two"),
        events.Retry(attempt=1, delay_s=2, reason="it broke"),
        events.TextDelta(text="again"),
        events.Reply(text="again", tool_calls=0),
        events.TextDelta(text="next"),
    ]
    chunks = [update for event in told for update in teller.updates(event)]
    texts: dict[str, str] = {}
    for chunk in chunks:
        texts[chunk["messageId"]] = texts.get(chunk["messageId"], "") + chunk["content"]["text"]
    retry = next(text for text in texts.values() if "it broke" in text)
    assert list(texts.values()) == ["go", "hm", "one two", retry, "again", "next"]


def test_a_prompt_of_the_editor_is_not_told_back_but_all_others_are(teller: UpdateBuilder) -> None:
    teller.expect("L1")
    assert teller.updates(events.RunStarted(id="L1", query="mine")) == []
    [theirs] = teller.updates(events.RunStarted(id="L2", query="theirs"))
    assert (theirs["sessionUpdate"], theirs["content"]["text"]) == ("user_message_chunk", "theirs")
    assert teller.updates(events.RunStarted(id="", query="")) == []


def test_progress_is_the_end_of_what_came_and_the_result_replaces_it(teller: UpdateBuilder) -> None:
    teller.updates(events.ToolCall(id="c1", name="shell", input={"command": "make"}))
    for n in range(1_000):
        [update] = teller.updates(events.ToolProgress(id="c1", name="shell", text=f"row {n}\n"))
    text = update["content"][0]["content"]["text"]
    assert "row 999\n" in text
    assert len(text) < 2 * MAX_SHOWN_OUTPUT
    ended = events.ToolResult(id="c1", name="shell", text="exit code 0", is_error=False, seconds=1)
    [update] = teller.updates(ended)
    assert (update["status"], len(update["content"])) == ("completed", 1)
    assert "exit code 0" in update["content"][0]["content"]["text"]


def test_a_call_that_never_started_is_announced_with_its_end(teller: UpdateBuilder) -> None:
    input = {"path": "docs/a.md"}
    ended = events.ToolResult(id="c1", name="read_file", text=INTERRUPTED, is_error=True, seconds=0, input=input)
    [update] = teller.updates(ended)
    assert (update["sessionUpdate"], update["status"], update["kind"]) == ("tool_call", "failed", "read")
    assert update["title"] == "read_file: docs/a.md"
    assert update["locations"][0]["path"].endswith("/docs/a.md")


def test_a_call_of_a_child_names_the_call_that_started_the_child(teller: UpdateBuilder) -> None:
    teller.updates(events.ToolCall(id="c1", name="explore", input={"task": "look"}))
    [titled] = teller.updates(events.AgentStarted(name="explore-1", kind="explore", parent_id="c1", task="look"))
    assert (titled["toolCallId"], titled["title"]) == ("c1", "explore-1: look")
    call = events.ToolCall(agent="explore-1", id="c2", name="read_file", input={"path": "a"}, parent_id="c1")
    [update] = teller.updates(call)
    assert update["_meta"]["chain"] == {"agent": "explore-1", "parentToolCallId": "c1"}


def test_an_editor_hears_how_full_the_window_is_and_of_a_compaction(teller: UpdateBuilder) -> None:
    used = {"input_tokens": 80, "output_tokens": 10, "cache_read_tokens": 0, "cache_write_tokens": 0}
    told = teller.updates(events.UsageReport(**used, cost_usd=None, context_tokens=90, context_window=100))
    assert told == [{"sessionUpdate": "usage_update", "used": 90, "size": 100}]
    ended = events.Compaction(agent="main", state="ended", by="user", tokens_before=90, tokens_after=20)
    thought, filled = teller.updates(ended)
    assert "Conversation compacted from 90 to 20 tokens: as you asked." in str(thought)
    assert filled == {"sessionUpdate": "usage_update", "used": 20, "size": 100}
