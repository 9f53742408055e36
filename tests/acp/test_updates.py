"""Events as updates, as far as the tests with a whole session do not cover them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from chain import events, load_settings
from chain.app.toolbox import tool_kinds
from chain.text.wording import INTERRUPTED
from chain.tools.tool import ToolContext, tool
from cli.acp.updates import MAX_SHOWN_OUTPUT, UpdateBuilder


@pytest.fixture
def builder() -> UpdateBuilder:
    return UpdateBuilder(Path("/project"), {"read_file": "read", "explore": "delegate"})


def test_a_call_has_the_kind_of_its_tool(tmp_path: Path) -> None:
    @tool(kind="read")
    async def shout(ctx: ToolContext) -> str:
        """Say it louder."""
        return ""

    kinds = {
        "read": ["read_file", "shout"],
        "search": ["list_files", "search_files"],
        "edit": ["write_file", "edit_file"],
        "fetch": ["research"],
        "think": ["plan_list", "plan_set_tasks", "explore", "agent_ask"],
        "other": ["ask_user_question", "no_such_tool"],
    }
    builder = UpdateBuilder(tmp_path, tool_kinds(load_settings(config=None, environ={}, cwd=tmp_path), [shout]))
    for kind, names in kinds.items():
        for name in names:
            [call] = builder.updates(events.ToolCall(id=name, name=name, input={}))
            assert call["kind"] == kind, name


def result(status: events.Status, text: str, *replies: str) -> events.Result:
    return events.Result(status=status, result=text, replies=replies)


@pytest.mark.parametrize(
    ("streamed", "end", "added"),
    [
        pytest.param("The answer.", result("done", "The answer.", "The answer."), [], id="answer"),
        pytest.param("", result("done", "The answer.", "The answer."), [], id="answer sent in an earlier message"),
        pytest.param("So f", result("cancelled", "So f\n\nWhat instead?", "So f"), ["What instead?"], id="question"),
        pytest.param("", result("cancelled", "Cancelled."), ["Cancelled."], id="cancelled"),
        pytest.param("Part", result("interrupted", "Interrupted."), [], id="interrupted"),
        pytest.param("", result("max_iterations", "Stopped after 2."), ["Stopped after 2."], id="no answer"),
        pytest.param("Last.", result("max_iterations", "Last.", "Last."), [], id="last reply as answer"),
        pytest.param("", result("error", "no service"), ["no service"], id="error"),
        pytest.param("", result("limit_reached", ""), [], id="no text"),
    ],
)
def test_the_end_of_a_run_adds_unsaid_text(
    builder: UpdateBuilder, streamed: str, end: events.Result, added: list[str]
) -> None:
    builder.updates(events.TextDelta(text=streamed))
    assert [update["content"]["text"] for update in builder.updates(end)] == added


def test_an_error_in_the_answer_is_not_repeated(builder: UpdateBuilder) -> None:
    assert builder.updates(result("error", "no service"), includes_errors=False) == []


def test_each_message_has_its_own_id(builder: UpdateBuilder) -> None:
    run = [
        events.RunStarted(id="L1", query="go"),
        events.ThinkingDelta(text="hm"),
        events.TextDelta(text="one"),
        events.TextDelta(text=" two"),
        events.Retry(attempt=1, delay_s=2, reason="it broke"),
        events.TextDelta(text="again"),
        events.Reply(text="again", tool_calls=0),
        events.TextDelta(text="next"),
    ]
    texts: dict[str, str] = {}
    for chunk in (update for event in run for update in builder.updates(event)):
        texts[chunk["messageId"]] = texts.get(chunk["messageId"], "") + chunk["content"]["text"]
    query, thought, cut, retry, again, last = texts.values()
    assert (query, thought, cut, again, last) == ("go", "hm", "one two", "again", "next")
    assert "it broke" in retry


def test_only_the_editors_own_prompt_is_omitted(builder: UpdateBuilder) -> None:
    builder.omit_query("L1")
    assert builder.updates(events.RunStarted(id="L1", query="mine")) == []
    [update] = builder.updates(events.RunStarted(id="L2", query="theirs"))
    assert (update["sessionUpdate"], update["content"]["text"]) == ("user_message_chunk", "theirs")


def test_a_run_without_query_shows_no_prompt(builder: UpdateBuilder) -> None:
    assert builder.updates(events.RunStarted(id="", query="")) == []


def shown_output(update: Mapping[str, Any]) -> str:
    [content] = update["content"]
    text: str = content["content"]["text"]
    return text


def test_only_the_end_of_the_progress_is_shown(builder: UpdateBuilder) -> None:
    builder.updates(events.ToolCall(id="c1", name="shell", input={"command": "make"}))
    for n in range(MAX_SHOWN_OUTPUT):  # rows, which have several times as many characters
        [update] = builder.updates(events.ToolProgress(id="c1", name="shell", text=f"row {n}\n"))
    assert f"row {n}\n" in shown_output(update)
    assert len(shown_output(update)) < 2 * MAX_SHOWN_OUTPUT, "the fence around the output is short"


def test_the_result_replaces_the_progress(builder: UpdateBuilder) -> None:
    builder.updates(events.ToolCall(id="c1", name="shell", input={"command": "make"}))
    builder.updates(events.ToolProgress(id="c1", name="shell", text="at work\n"))
    result = events.ToolResult(id="c1", name="shell", text="exit code 0", is_error=False, seconds=1)
    [update] = builder.updates(result)
    assert update["status"] == "completed"
    assert "exit code 0" in shown_output(update)


def test_a_call_that_never_started_is_announced(builder: UpdateBuilder) -> None:
    input = {"path": "docs/a.md"}
    result = events.ToolResult(id="c1", name="read_file", text=INTERRUPTED, is_error=True, seconds=0, input=input)
    [call] = builder.updates(result)
    assert (call["sessionUpdate"], call["status"], call["kind"]) == ("tool_call", "failed", "read")
    assert call["title"] == "read_file: docs/a.md"
    [location] = call["locations"]
    assert location["path"] == "/project/docs/a.md"


def test_a_child_gives_its_name_to_the_call(builder: UpdateBuilder) -> None:
    builder.updates(events.ToolCall(id="c1", name="explore", input={"task": "look"}))
    [call] = builder.updates(events.AgentStarted(name="explore-1", kind="explore", parent_id="c1", task="look"))
    assert (call["toolCallId"], call["title"]) == ("c1", "explore-1: look")
    [thought] = builder.updates(events.TextDelta(agent="explore-1", text="I see nothing."))
    assert thought["sessionUpdate"] == "agent_thought_chunk"
    assert thought["_meta"]["chain"] == {"agent": "explore-1", "parentToolCallId": "c1"}


def test_the_usage_of_the_window_is_updated(builder: UpdateBuilder) -> None:
    tokens = {"input_tokens": 80, "output_tokens": 10, "cache_read_tokens": 0, "cache_write_tokens": 0}
    [usage] = builder.updates(events.UsageReport(**tokens, cost_usd=None, context_tokens=90, context_window=100))
    assert usage == {"sessionUpdate": "usage_update", "used": 90, "size": 100}
    compaction = events.Compaction(agent="main", state="ended", by="user", tokens_before=90, tokens_after=20)
    thought, usage = builder.updates(compaction)
    assert "Conversation compacted from 90 to 20 tokens: as you asked." in str(thought)
    assert usage == {"sessionUpdate": "usage_update", "used": 20, "size": 100}
