"""Which agents the shipped rules start for what was said, and what they do where no agent can be started."""

from __future__ import annotations

import re

import pytest
from support import OneConversation
from support.documents import text_of
from support.offline import offline_rules

from chain.messages import Message, ToolResult, tool_results, user_text
from chain.model import Request, ToolSpec
from chain.providers.scripted.scripted_model import ScriptedModel

RULES = offline_rules()
AGENTS = ("explore", "plan", "agent", "agent_ask")
FILES = ("list_files", "read_file", "search_files", "ask_user_question", "plan_add_task", "plan_list")

PARTS = ("kettle", "lid", "pot")
EVERYWHERE = 'explore "kettle" in the workspace'


async def calls(query: str, *offered: str) -> list[tuple[str, object]]:
    """What is called for a query: the tools, each with the first value of its input."""
    return called(await replied([user_text(query)], *offered))


def called(message: Message) -> list[tuple[str, object]]:
    return [(call.name, next(iter(call.input.values()), "")) for call in message.calls]


async def replied(conversation: list[Message], *offered: str) -> Message:
    tools = tuple(ToolSpec(name, "", {}) for name in offered or (*FILES, *AGENTS))
    model = OneConversation(ScriptedModel(RULES))
    return (await model.reply(Request("system", tuple(conversation), tools))).message


@pytest.mark.parametrize(
    ("query", "tasks"),
    [
        ("explore kettle", [EVERYWHERE]),
        ("Please explore the kettle.", [EVERYWHERE]),
        ("explore where the kettle is mentioned", [EVERYWHERE]),
        ("explore kettle in docs", ['explore "kettle" in docs']),
        ("explore where kettle is defined in the folder src/pots", ['explore "kettle" in src/pots']),
        ('explore kettle in "my notes"', ['explore "kettle" in my notes']),
        ("explore kettle, lid and the pot in docs, side by side", [f'explore "{x}" in docs' for x in PARTS]),
        ("explore kettle and lid", [EVERYWHERE, 'explore "lid" in the workspace']),
        ('explore "kettle and lid"', ['explore "kettle and lid" in the workspace']),
        ('explore "time for tea"', ['explore "time for tea" in the workspace']),
        ("explore the use of kettles in winter in docs", ['explore "use of kettles in winter" in docs']),
        ("explore kettle and ask me which file", [f"{EVERYWHERE} and ask me which file"]),
        ("explore kettle in docs and ask me which", ['explore "kettle" in docs and ask me which']),
    ],
)
async def test_an_explorer_is_sent_for_each_part_of_what_is_to_be_explored(query: str, tasks: list[str]) -> None:
    assert await calls(query) == [("explore", task) for task in tasks]


@pytest.mark.parametrize(
    ("query", "call"),
    [
        ("let an agent list files in docs", ("agent", "list files in docs")),
        ("Have another agent to explore kettle and lid", ("agent", "explore kettle and lid")),
        ("let an agent let an agent list files", ("agent", "let an agent list files")),
        ("plan how to change the lid", ("plan", "plan how to change the lid")),
        ("ask explore-2 where the lid is", ("agent_ask", "explore-2")),
        ("ask the explorer about the lid", ("agent_ask", "explorer")),
    ],
)
async def test_other_agents_get_their_tasks(query: str, call: tuple[str, str]) -> None:
    assert await calls(query) == [call]


@pytest.mark.parametrize(
    ("query", "question"),
    [
        ("ask the explorer where the lid is", "explore where the lid is"),
        ("ask the latest explorer, about the lid", "explore about the lid"),
        ("ask explore-1 what it found", "explore what it found"),
        ("Ask the explorer to count the lines in docs", "count the lines in docs"),
        ("ask explore-1: to search for lid", "search for lid"),
    ],
)
async def test_a_question_is_one_that_an_explorer_understands(query: str, question: str) -> None:
    reply = await replied([user_text(query)])
    assert [call.input["question"] for call in reply.calls] == [question]


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("explore kettle", "list_files"),
        ("explore kettle and lid in docs", "list_files"),
        ("plan how to change the lid", "search_files"),
        ("let an agent list files", None),
        ("ask the explorer about the lid", None),
    ],
)
async def test_who_is_not_offered_other_agents_calls_none(query: str, first: str | None) -> None:
    assert [name for name, _ in await calls(query, *FILES)][:1] == ([first] if first else [])


async def test_what_an_explorer_without_explorers_looks_for_is_all_of_it() -> None:
    conversation = [user_text("explore kettle and lid in docs")]
    conversation.append(await replied(conversation, *FILES))
    conversation.append(tool_results([ToolResult("call_1", "docs: 2 files\ndocs/a.md: 1 line, 1 word, 2 bytes")]))
    assert called(await replied(conversation, *FILES)) == [("search_files", "(?i)kettle|lid")]


@pytest.mark.parametrize("answer", ["[explore-1 ended: cancelled] The user stopped it.", "[Interrupted: stopped]"])
async def test_an_explorer_without_an_answer_is_said_to_have_none(answer: str) -> None:
    conversation = [user_text("explore kettle and lid")]
    conversation.append(await replied(conversation))
    results = [ToolResult("call_1", "It is here."), ToolResult("call_2", answer, is_error=True)]
    told = (await replied([*conversation, tool_results(results)])).text
    assert f"asked to {EVERYWHERE}. It answers:\n\nIt is here." in told
    assert f'asked to explore "lid" in the workspace. It has no answer:\n\n    {answer}' in told


@pytest.mark.parametrize("query", ["let an agent list files", "plan how to change the lid"])
async def test_another_agent_without_an_answer_is_said_to_have_none(query: str) -> None:
    conversation = [user_text(query)]
    conversation.append(await replied(conversation))
    ended = ToolResult("call_1", "[agent-1 ended: cancelled] The user stopped it.", is_error=True)
    assert "It has no answer:\n\n    [agent-1 ended" in (await replied([*conversation, tool_results([ended])])).text


@pytest.mark.parametrize(
    ("line", "query"),
    [
        ("explore lid in docs", 'explore "lid" in docs'),
        ("no, explore lid instead", None),
    ],
)
async def test_another_thing_to_explore_takes_the_place_of_the_task(line: str, query: str | None) -> None:
    conversation = [user_text("count the lines in docs")]
    conversation.append(await replied(conversation))
    conversation += [tool_results([ToolResult("call_1", "docs: 0 files")]), user_text(f"USER INTERRUPTION: {line}")]
    (call,) = called(await replied(conversation))
    assert call[0] == "explore"
    assert query in (None, call[1])


async def test_each_example_of_the_help_makes_it_call_a_tool() -> None:
    told = (await replied([user_text("help")])).text
    examples = [each for row in re.findall("^    (.+)", told, re.M) for each in re.split(" {3,}", row)]
    examples += re.findall("`((?:explore|ask|let|plan) [^`]+)`", " ".join(text_of("models").split()))
    assert len(examples) > 25
    assert [example for example in examples if not await calls(example)] == []
