"""Events as updates, as far as the tests with a whole session do not cover them."""

from pathlib import Path

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
            [update] = builder.updates(events.ToolCall(id=name, name=name, input={}))
            assert update["kind"] == kind, name


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
def test_the_end_of_a_run_adds_unsaid_text(
    builder: UpdateBuilder, shown: str, ended: events.Result, said: list[str]
) -> None:
    builder.updates(events.TextDelta(text=shown))
    assert [update["content"]["text"] for update in builder.updates(ended)] == said


def test_an_error_in_the_answer_is_not_repeated(builder: UpdateBuilder) -> None:
    assert builder.updates(result("error", "no service"), includes_errors=False) == []


def test_each_message_has_its_own_id(builder: UpdateBuilder) -> None:
    happened = [
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
    for chunk in (update for event in happened for update in builder.updates(event)):
        texts[chunk["messageId"]] = texts.get(chunk["messageId"], "") + chunk["content"]["text"]
    retry = next(text for text in texts.values() if "it broke" in text)
    assert list(texts.values()) == ["go", "hm", "one two", retry, "again", "next"]


def test_only_the_editors_own_prompt_is_omitted(builder: UpdateBuilder) -> None:
    builder.expect("L1")
    assert builder.updates(events.RunStarted(id="L1", query="mine")) == []
    [theirs] = builder.updates(events.RunStarted(id="L2", query="theirs"))
    assert (theirs["sessionUpdate"], theirs["content"]["text"]) == ("user_message_chunk", "theirs")
    assert builder.updates(events.RunStarted(id="", query="")) == []


def test_the_result_replaces_the_end_of_the_progress(builder: UpdateBuilder) -> None:
    builder.updates(events.ToolCall(id="c1", name="shell", input={"command": "make"}))
    for n in range(1_000):
        [update] = builder.updates(events.ToolProgress(id="c1", name="shell", text=f"row {n}\n"))
    text = update["content"][0]["content"]["text"]
    assert "row 999\n" in text
    assert len(text) < 2 * MAX_SHOWN_OUTPUT
    ended = events.ToolResult(id="c1", name="shell", text="exit code 0", is_error=False, seconds=1)
    [update] = builder.updates(ended)
    assert (update["status"], len(update["content"])) == ("completed", 1)
    assert "exit code 0" in update["content"][0]["content"]["text"]


def test_a_call_that_never_started_is_announced(builder: UpdateBuilder) -> None:
    input = {"path": "docs/a.md"}
    ended = events.ToolResult(id="c1", name="read_file", text=INTERRUPTED, is_error=True, seconds=0, input=input)
    [update] = builder.updates(ended)
    assert (update["sessionUpdate"], update["status"], update["kind"]) == ("tool_call", "failed", "read")
    assert update["title"] == "read_file: docs/a.md"
    assert update["locations"][0]["path"] == "/project/docs/a.md"


def test_a_child_gives_its_name_to_the_call(builder: UpdateBuilder) -> None:
    builder.updates(events.ToolCall(id="c1", name="explore", input={"task": "look"}))
    [titled] = builder.updates(events.AgentStarted(name="explore-1", kind="explore", parent_id="c1", task="look"))
    assert (titled["toolCallId"], titled["title"]) == ("c1", "explore-1: look")
    [thought] = builder.updates(events.TextDelta(agent="explore-1", text="I see nothing."))
    assert thought["sessionUpdate"] == "agent_thought_chunk"
    assert thought["_meta"]["chain"] == {"agent": "explore-1", "parentToolCallId": "c1"}


def test_the_usage_of_the_window_is_updated(builder: UpdateBuilder) -> None:
    used = {"input_tokens": 80, "output_tokens": 10, "cache_read_tokens": 0, "cache_write_tokens": 0}
    shown = builder.updates(events.UsageReport(**used, cost_usd=None, context_tokens=90, context_window=100))
    assert shown == [{"sessionUpdate": "usage_update", "used": 90, "size": 100}]
    ended = events.Compaction(agent="main", state="ended", by="user", tokens_before=90, tokens_after=20)
    thought, filled = builder.updates(ended)
    assert "Conversation compacted from 90 to 20 tokens: as you asked." in str(thought)
    assert filled == {"sessionUpdate": "usage_update", "used": 20, "size": 100}
