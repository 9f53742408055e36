"""Models of rule files: which rules are applied, what they reply, how a reply is streamed, and errors in a file."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import trio
import trio.testing
from support.sessions import OneConversation

from chain.errors import ConfigError, ModelError, ParameterRefused
from chain.messages import (
    TOO_LONG,
    Block,
    Message,
    Overrides,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Usage,
    assistant,
    tool_results,
    user_text,
)
from chain.model import Delta, Reply, Request, ToolSpec
from chain.providers.scripted.scripted_model import ScriptedModel

GO = user_text("go")
CONTINUE = user_text("Please continue.")
RESUME = user_text("Your reply was shown to the user. Continue the task, as the user's messages changed it.")
STOPPED = user_text("[The user stopped the run here]")
INTERRUPTED = user_text("[The user interrupted the run here]")


def model(rules: str) -> OneConversation:
    return OneConversation(ScriptedModel.parse(dedent(rules), "my.yaml"))


def interruption(*lines: str) -> Message:
    return user_text("\n\n".join(f"USER INTERRUPTION: {line}" for line in lines))


def call_and_result(tool: str, result: str = "r", **input: Any) -> list[Message]:
    """Return a reply that calls a tool, and the tool's result."""
    return [assistant([ToolCall("call_1", tool, input)]), tool_results([ToolResult("call_1", result)])]


async def get_reply(rules: OneConversation | str, messages: Sequence[Message], **request: Any) -> Reply:
    scripted = model(rules) if isinstance(rules, str) else rules
    return await scripted.reply(Request(request.pop("system", "system"), tuple(messages), **request))


async def get_text(rules: OneConversation | str, *messages: Message, **request: Any) -> str:
    return (await get_reply(rules, messages, **request)).message.text


# ---------------------------------------------------------------------------------------------- conditions


async def text_after_two_tools(condition: str) -> str:
    """Return the text of one rule with this condition, or "next rule", after the tools ``look`` and ``list``."""
    calls = assistant([ToolCall("1", "look", {}), ToolCall("2", "list", {})])
    results = tool_results([ToolResult("1", "an apple"), ToolResult("2", "no pear", is_error=True)])
    return await get_text(
        f"rules: [{{when: {condition}, text: met}}, {{text: next rule}}]",
        *(GO, calls, results),
        tail=("This is the plan.",),
        overrides=Overrides(effort="low"),
        tools=(ToolSpec("look", "", {}), ToolSpec("list", "", {})),
    )


@pytest.mark.parametrize(
    "condition",
    [
        "{}",
        "{result: 'apple'}",
        "{result: 'APPLE'}",
        "{result: 'pear'}",
        "{tool: 'lo+k|list'}",
        "{is_error: true}",
        "{turn: 2}",
        "{step: 2}",
        "{tail: 'the plan'}",
        "{system: '^syst'}",
        "{overrides: [effort]}",
        "{offered: 'plan|li.*'}",
        "{user: go, turn: 2}",
    ],
)
async def test_a_rule_is_applied_if_it_matches(condition: str) -> None:
    assert await text_after_two_tools(condition) == "met"


@pytest.mark.parametrize(
    "condition",
    [
        "{result: 'pear', tool: look}",
        "{tool: loo}",
        "{is_error: true, result: apple}",
        "{is_error: false, tool: list}",
        "{turn: 3}",
        "{step: 1}",
        "{tail: 'plum'}",
        "{overrides: []}",
        "{overrides: [effort, temperature]}",
        "{offered: loo}",
        "{user: go}",  # alone, it matches only until the query has its first reply
        "{user: stay, turn: 2}",
        "{interruption: ''}",
    ],
)
async def test_a_rule_is_skipped_unless_it_matches(condition: str) -> None:
    assert await text_after_two_tools(condition) == "next rule"


@pytest.mark.parametrize(
    ("messages", "subject"),
    [
        pytest.param([user_text("hello")], "the query 'hello' (model call 1 of", id="query"),
        pytest.param([user_text("x"), *call_and_result("look")], "the result of look (model call 2 of", id="result"),
        pytest.param([GO, interruption("hello")], "the message 'hello' (model call 1 of", id="interruption"),
    ],
)
async def test_a_reply_says_that_no_rule_matches(messages: list[Message], subject: str) -> None:
    text = await get_text("rules: [{when: {user: x}, text: x}]", *messages)
    assert text == f"No rule of my.yaml matches {subject} this conversation)."


async def test_a_new_conversation_starts_to_count_again() -> None:
    scripted = model("rules: [{text: 'call ${turn}, step ${step} of ${query}, used ${used}'}]")
    one, look = user_text("one"), call_and_result("look")
    assert await get_text(scripted, one) == "call 1, step 1 of one, used "
    for _ in range(2):
        assert await get_text(scripted, one, *look) == "call 2, step 2 of one, used look"
    next_query = [assistant([Text("a")]), user_text("two")]
    assert await get_text(scripted, one, *look, *next_query) == "call 3, step 1 of two, used "
    assert await get_text(scripted, user_text("other")) == "call 1, step 1 of other, used "
    assert await get_text(scripted, one, user_text("else")) == "call 1, step 1 of else, used "


async def test_conversations_count_their_uses_of_rules_separately() -> None:
    scripted = ScriptedModel.parse(
        "rules: [{times: 2, text: 'a${turn} ${query}'}, {text: b, error: {message: broken, times: 1}}]"
    )
    conversations = {query: (OneConversation(scripted), [user_text(query)]) for query in ("one", "two")}
    outcomes: dict[str, list[str]] = {query: [] for query in conversations}
    for _ in range(4):
        for query, (conversation, messages) in conversations.items():
            try:
                reply = (await get_reply(conversation, messages)).message
            except ModelError as error:
                outcomes[query].append(str(error))
                messages.append(CONTINUE)
            else:
                outcomes[query].append(reply.text)
                messages += [reply, CONTINUE]
    assert outcomes == {query: [f"a1 {query}", f"a2 {query}", "broken", "b"] for query in conversations}


# ---------------------------------------------------------------------------------------------- interruptions

# The task of these rules: the query calls ``list``, its result calls ``look``, and that result brings the answer.
TASK = """
rules:
  - {when: {interruption: 'status'}, text: 'At call ${turn}.', and: continue}
  - when: {interruption: 'add (?P<what>\\w+)'}
    text: 'Adding ${1}.'
    tools: [{name: plan_add, input: {task: '${what}'}}]
    and: continue
  - {when: {interruption: 'quiet'}, text: 'Only this.'}
  - {when: {interruption: '^.JOB (\\S+)\\] (.*)'}, text: 'Job ${1}: ${2}.', and: continue}
  - {when: {tool: look}, text: 'It is ${result}.'}
  - {when: {tool: list}, tools: [{name: look}], text: 'I look.'}
  - {when: {aside: true, tool: plan_add}, text: '${result}.', and: continue}
  - {when: {user: ''}, text: 'I list.', tools: [{name: list}]}
"""
# The same task. ``and: work`` continues it with tool calls, but postpones a final answer until the task is resumed.
WORK = """
rules:
  - {when: {interruption: 'status'}, text: 'At call ${turn}.', and: work}
  - {when: {interruption: 'hm'}, text: 'Hm.', and: continue}
  - {when: {interruption: 'add'}, text: 'Adding.', tools: [{name: plan_add}], and: work}
  - {when: {tool: again}, and: continue}
  - {when: {tool: look}, text: 'It is ${result}.', times: 1, error: {message: broken, times: 1, after: 3}}
  - {when: {tool: look}, text: 'It was ${result}.'}
  - {when: {tool: list}, tools: [{name: look}], text: 'I look.'}
  - {when: {user: ''}, text: 'Hello.'}
"""
LISTED = [GO, *call_and_result("list")]
LOOKED = [GO, *call_and_result("look", "red")]
ANSWERED = [*LOOKED, assistant([Text("It is red.")])]
JOB = "[JOB J1] exit code 0\n$ make\n\nDone."
JOB_2 = JOB.replace("J1", "J2")


def text_and_calls(reply: Reply) -> tuple[str, list[str]]:
    return reply.message.text, [call.name for call in reply.message.calls]


@pytest.mark.parametrize(
    ("messages", "text", "calls"),
    [
        pytest.param([*LISTED, interruption("status?")], "At call 2.\n\nI look.", ["look"], id="continue"),
        pytest.param([*LISTED, interruption("quiet")], "Only this.", [], id="no continue"),
        pytest.param(
            [GO, interruption("add tea", "status", "add milk")],
            "Adding tea.\n\nAt call 1.\n\nAdding milk.\n\nI list.",
            ["plan_add", "plan_add", "list"],
            id="several lines",
        ),
        pytest.param([*LISTED, interruption("unknown")], "I look.", ["look"], id="no matching rule"),
        pytest.param([*LOOKED, interruption("add tea")], "Adding tea.", ["plan_add"], id="calls before the answer"),
        pytest.param([*ANSWERED, interruption("status")], "At call 3.", [], id="line after the answer"),
        pytest.param([*LISTED, user_text(JOB)], "Job J1: exit code 0.\n\nI look.", ["look"], id="end of a job"),
        pytest.param(
            [*LISTED, user_text(f"{JOB}\n\nUSER INTERRUPTION: status\n\n{JOB_2}")],
            "Job J1: exit code 0.\n\nAt call 2.\n\nJob J2: exit code 0.\n\nI look.",
            ["look"],
            id="line between two jobs",
        ),
        pytest.param([*ANSWERED, user_text(JOB)], "Job J1: exit code 0.", [], id="job after the answer"),
    ],
)
async def test_a_reply_answers_lines_and_continues_the_task(
    messages: list[Message], text: str, calls: list[str]
) -> None:
    assert text_and_calls(await get_reply(TASK, messages)) == (text, calls)


@pytest.mark.parametrize(
    ("messages", "text", "calls"),
    [
        pytest.param(
            [*LISTED, interruption("quiet"), assistant([Text("Only this.")]), RESUME],
            *("I look.", ["look"]),
            id="latest results",
        ),
        pytest.param([GO, CONTINUE], "I list.", ["list"], id="query"),
        pytest.param([GO, interruption("status"), CONTINUE], "At call 1.\n\nI list.", ["list"], id="unanswered line"),
        pytest.param([GO, interruption("status"), STOPPED, CONTINUE], "I list.", ["list"], id="line before a stop"),
    ],
)
async def test_a_request_to_continue_refers_to_earlier_messages(
    messages: list[Message], text: str, calls: list[str]
) -> None:
    assert text_and_calls(await get_reply(TASK, messages)) == (text, calls)


@pytest.mark.parametrize("note", [STOPPED, INTERRUPTED], ids=["stop", "interrupt"])
async def test_a_note_about_a_stop_is_no_query(note: Message) -> None:
    assert await get_text("rules: [{text: '${query}'}]", GO, note) == "go"
    assert await get_text(TASK, *LISTED, interruption("quiet"), note, user_text("again")) == "I list."


@pytest.mark.parametrize(
    ("messages", "text", "calls"),
    [
        pytest.param([*LISTED, interruption("status")], "At call 2.\n\nI look.", ["look"], id="calls next"),
        pytest.param(
            [*LISTED, *call_and_result("again"), interruption("status")],
            *("At call 3.\n\nI look.", ["look"]),
            id="continued",
        ),
        pytest.param([*LOOKED, interruption("status", "status")], "At call 2.\n\nAt call 2.", [], id="two lines"),
        pytest.param([*LOOKED, interruption("add")], "Adding.", ["plan_add"], id="own calls"),
        pytest.param([*LISTED, interruption("add")], "Adding.\n\nI look.", ["plan_add", "look"], id="both calls"),
        pytest.param([GO, interruption("status")], "At call 1.\n\nHello.", [], id="query without a reply"),
    ],
)
async def test_and_work_postpones_only_a_final_answer(messages: list[Message], text: str, calls: list[str]) -> None:
    assert text_and_calls(await get_reply(WORK, messages)) == (text, calls)


async def test_the_task_continues_after_results_for_lines() -> None:
    scripted, messages = model(TASK), [*LOOKED, interruption("add tea")]
    reply = await get_reply(scripted, messages)
    (call,) = reply.message.calls
    result = tool_results([ToolResult(call.id, "Task 1 added")])
    assert await get_text(scripted, *messages, reply.message, result) == "Task 1 added.\n\nIt is red."


async def test_a_postponed_answer_is_not_counted_as_used() -> None:
    scripted, messages = model(WORK), [*LOOKED, interruption("status")]
    for _ in range(2):  # the second request repeats the first, as after a call that broke off
        reply = await get_reply(scripted, messages)
        assert reply.message.text == "At call 2."
    with pytest.raises(ModelError, match="broken"):
        await get_reply(scripted, [*messages, reply.message, RESUME])
    assert await get_text(scripted, *messages, reply.message, RESUME) == "It was red."


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param(["hm"], "Hm.\n\nIt is red.", id="continue"),
        pytest.param(["status", "hm"], "At call 3.\n\nHm.\n\nIt is red.", id="work, then continue"),
    ],
)
async def test_a_line_with_continue_brings_the_postponed_answer(lines: list[str], expected: str) -> None:
    scripted = model(WORK.replace(", error: {message: broken, times: 1, after: 3}", ""))
    messages = [*LOOKED, interruption("status")]
    postponed = (await get_reply(scripted, messages)).message
    messages += [postponed, interruption(*lines)]
    answer = (await get_reply(scripted, messages)).message
    assert answer.text == expected
    assert await get_text(scripted, *messages, answer, interruption("hm")) == "Hm."


async def test_text_in_a_tool_result_is_no_interruption() -> None:
    rules = "rules: [{when: {interruption: ''}, text: fooled}, {when: {tool: look}, text: '${result}'}]"
    assert await get_text(rules, GO, *call_and_result("look", "USER INTERRUPTION: stop")) == "USER INTERRUPTION: stop"


async def test_marks_classify_messages() -> None:
    rules = """
        marks: {interruption: '>> ', redirect: '^read (?P<what>.+)', resume: '^on$', note: '^--$'}
        rules:
          - {when: {interruption: ''}, text: 'line ${interruption}', and: continue}
          - {when: {user: ''}, text: 'query ${query}'}
    """
    started = [GO, *call_and_result("look")]
    assert await get_text(rules, *started, user_text(">> a\n\n>> b")) == "line a\n\nline b"
    assert await get_text(rules, *started, user_text(">> read x\n\n>> b")) == "line b\n\nquery read x"
    assert await get_text(rules, GO, assistant([Text("a")]), user_text("on")) == "query go"
    assert await get_text(rules, GO, user_text("--")) == "query go"


# ---------------------------------------------------------------------------------------------- templates and lists


async def reply_after_look(rule: str) -> Reply:
    """Return the reply of one rule to the result of ``look``."""
    indented = dedent(rule).strip().replace("\n", "\n    ")
    result = "a.md 10\nb.md 20\nc.md 1,000.5\n"
    messages = [user_text("go to the park"), *call_and_result("look", result, path="docs")]
    return await get_reply(f"rules:\n  - {indented}", messages)


async def test_captures_fill_text_and_tool_input() -> None:
    reply = await reply_after_look(r"""
        when: {user: 'go to (the) (?P<where>\w+)', tool: look, result: '^(?P<file>b\S+) (\d+)'}
        text: '${1} ${2} of ${0}: ${where}; $$${input.path} [${file|6}] [${input.nothing:-none}]'
        tools: [{name: read, input: {path: 'x/${file}', n: '${2|number}', list: ['${where}', 3, true, null]}}]
    """)
    assert reply.message.text == "b.md 20 of b.md 20: park; $docs [  b.md] [none]"
    (call,) = reply.message.calls
    assert call.input == {"path": "x/b.md", "n": 20, "list": ["park", 3, True, None]}


async def test_a_list_gives_rows_counts_sums_and_calls() -> None:
    reply = await reply_after_look(r"""
        collect:
          files: {match: '^(?P<path>\S+) (?P<n>[\d.,]+)$', row: '${n|8} ${path}', limit: 2}
          others: {match: '^(zzz) (?P<n>\d+)', empty: none}
        text: |
          ${files}
          ${files.count} files, ${files.n.sum}, first ${files.path}
          ${others} ${others.count} ${others.n.sum} [${others.1}]
        tools:
          - {name: read, input: {path: '${path}', of: '${files.count|number}'}, for_each: files}
          - {name: read, for_each: others}
    """)
    rows = ["      10 a.md", "      20 b.md", "    … and 1 more", "3 files, 1030.5, first a.md", "none 0 0 []"]
    assert reply.message.text == "\n".join(rows)
    assert [dict(call.input) for call in reply.message.calls] == [{"path": "a.md", "of": 3}, {"path": "b.md", "of": 3}]


async def test_the_sources_of_lists() -> None:
    rules = r"""
        rules:
          - collect:
              all: {match: '\w+', from: conversation, join: ' '}
              run: {match: '\w+', join: ' '}
              latest: {match: '\w+', from: latest, join: ' '}
              looks: {match: '\w+', tool: look, join: ' '}
              errors: {match: '\w+', is_error: true, join: ' '}
              red: {match: '\w+', within: red, join: ' ', unique: 0}
              asked: {match: '\w+', from: query}
              plan: {match: '\w+', from: tail}
            text: |
              all ${all}; run ${run}; latest ${latest}; looks ${looks}
              errors ${errors}; red ${red}; asked ${asked}; plan ${plan}
    """
    earlier_run = [user_text("old"), *call_and_result("look", "grey"), assistant([Text("a")])]
    first_results = [GO, *call_and_result("look", "red red")]
    latest_results = [
        assistant([ToolCall("2", "list", {}), ToolCall("3", "list", {})]),
        tool_results([ToolResult("2", "blue"), ToolResult("3", "broken", is_error=True)]),
    ]
    text = await get_text(rules, *earlier_run, *first_results, *latest_results, tail=("todo",))
    assert text.splitlines() == [
        "all grey red red blue; run red red blue; latest blue; looks red red",
        "errors broken; red red; asked go; plan todo",
    ]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        pytest.param(
            "find tea\n\n<stdin>\nTea (1.5\nmilk\n\n</stdin>\ntea\n</stdin>", "2 Tea (1.5 | tea", id="two rows"
        ),
        pytest.param("find (1.5\n\n<stdin>\nTea (1.5\nmilk\n</stdin>", "1 Tea (1.5", id="literal text"),
        pytest.param("find \n\n<stdin>\nTea\n</stdin>\ntea\n</stdin>", "3 Tea | </stdin> | tea", id="every row"),
        pytest.param("find tea\n\n<stdin>\ntea", "0 ", id="no end of stdin"),
        pytest.param("find tea in <stdin>\ntea\n</stdin>", "0 ", id="no start of stdin"),
    ],
)
async def test_a_list_of_matching_stdin_rows(query: str, expected: str) -> None:
    rules = r"""
        rules:
          - when: {user: 'find (?P<what>\S*)'}
            collect: {rows: {match: '^.+$', from: stdin, has: '${what}', join: ' | '}}
            text: '${rows.count} ${rows}'
    """
    assert await get_text(rules, user_text(query)) == expected


async def test_names_of_templates() -> None:
    rules = "rules: [{text: '${file} ${query} ${turn} ${step} ${tool} ${used} ${tail} ${offered}'}]"
    calls = assistant([ToolCall("1", "look", {}), ToolCall("2", "look", {})])
    results = tool_results([ToolResult("1", "a"), ToolResult("2", "b")])
    text = await get_text(rules, GO, calls, results, tail=("t", "u"), tools=(ToolSpec("look", "", {}),))
    assert text == "my.yaml go 2 2 look 2 × look t\n\nu look"


# ---------------------------------------------------------------------------------------------- replies


async def test_thinking_text_and_calls_make_one_reply() -> None:
    rules = "rules: [{thinking: hm, text: hello, tools: [{name: a}, {name: b, id: call_3}, {name: c, input: {x: 1}}]}]"
    scripted = model(rules)
    for _ in range(2):  # ids are the same each time
        reply = await get_reply(scripted, [GO, *call_and_result("a")])
        assert reply.message.blocks == (
            *(Thinking("hm"), Text("hello")),
            *(ToolCall("call_2", "a", {}), ToolCall("call_3", "b", {}), ToolCall("call_4", "c", {"x": 1})),
        )


@pytest.mark.parametrize(
    ("rule", "blocks", "stop_reason", "cut_calls"),
    [
        pytest.param(
            "tools: [{name: a, id: x}, {name: '', id: x}]",
            (ToolCall("x", "a", {}), ToolCall("x", "", {})),
            *("tool_use", set()),
            id="repeated ids",
        ),
        pytest.param("text: ''", (), "end_turn", set(), id="empty"),
        pytest.param('text: " \\n"', (Text(" \n"),), "end_turn", set(), id="blank"),
        pytest.param(
            "tools: [{name: a, input: {x: 1}, cut: true}]",
            (ToolCall("call_1", "a", {}),),
            *("max_tokens", {"call_1"}),
            id="truncated call",
        ),
        pytest.param("text: x, stop_reason: pause_turn", (Text("x"),), "pause_turn", set(), id="stop reason"),
    ],
)
async def test_replies_that_no_service_should_give(
    rule: str, blocks: tuple[Block, ...], stop_reason: str, cut_calls: set[str]
) -> None:
    reply = await get_reply(f"rules: [{{{rule}}}]", [GO])
    assert (reply.message.blocks, reply.stop_reason, reply.cut_calls) == (blocks, stop_reason, cut_calls)


async def test_usage_is_estimated_from_four_characters_per_token() -> None:
    reply = await get_reply("rules: [{text: '12345'}]", [user_text("1234")], system="1234", tail=("1234",))
    assert reply.usage == Usage(input_tokens=3, output_tokens=2)


async def test_a_rule_can_set_counts_of_its_usage() -> None:
    rules = "rules: [{text: '12345', usage: {input_tokens: 7, cache_read_tokens: 9}}]"
    reply = await get_reply(rules, [user_text("1234")])
    assert reply.usage == Usage(input_tokens=7, output_tokens=2, cache_read_tokens=9)


THINKING, TEXT = Thinking("1234"), Text("123456789")  # of one token and of three
LONG_CALL, SHORT_CALL = ToolCall("call_1", "a", {"x": "long enough"}), ToolCall("call_2", "b", {})


@pytest.mark.parametrize(
    ("max_tokens", "blocks", "stop_reason", "cut_calls"),
    [
        pytest.param(100, (THINKING, TEXT, LONG_CALL, SHORT_CALL), "tool_use", set(), id="whole"),
        pytest.param(5, (THINKING, TEXT, ToolCall("call_1", "a", {})), "max_tokens", {"call_1"}, id="in a call"),
        pytest.param(2, (THINKING, Text("1234")), "max_tokens", set(), id="in the text"),
        pytest.param(0, (), "max_tokens", set(), id="nothing"),
    ],
)
async def test_max_tokens_truncates_the_reply(
    max_tokens: int, blocks: tuple[Block, ...], stop_reason: str, cut_calls: set[str]
) -> None:
    rules = "rules: [{thinking: '1234', text: '123456789', tools: [{name: a, input: {x: long enough}}, {name: b}]}]"
    reply = await get_reply(rules, [GO], overrides=Overrides(max_tokens=max_tokens))
    assert (reply.message.blocks, reply.stop_reason, reply.cut_calls) == (blocks, stop_reason, cut_calls)
    assert reply.usage.output_tokens <= max_tokens


async def test_a_too_long_request_uses_no_rule() -> None:
    rules = "rules: [{when: {user: long}, text: One., times: 1}, {text: Another.}]"
    limited = OneConversation(ScriptedModel.parse(rules, context_window=100))
    too_long = await get_reply(limited, [user_text("long " * 100)])
    assert too_long.stop_reason == TOO_LONG
    assert too_long.asked_tokens > 100
    assert await get_text(limited, user_text("long")) == "One."


# ---------------------------------------------------------------------------------------------- errors


async def error_of(scripted: OneConversation) -> ModelError:
    with pytest.raises(ModelError, match="busy") as caught:
        await get_reply(scripted, [GO])
    return caught.value


async def test_an_error_is_raised_as_often_as_given() -> None:
    scripted = model("rules: [{text: ok, error: {message: busy, retryable: true, retry_after: 2, times: 2}}]")
    for _ in range(2):
        error = await error_of(scripted)
        assert (error.retryable, error.retry_after) == (True, 2)
    assert await get_text(scripted, GO) == "ok"


async def test_an_error_without_times_is_always_raised() -> None:
    scripted = model("rules: [{text: ok, error: {message: busy}}]")
    for _ in range(3):
        error = await error_of(scripted)
        assert (error.retryable, error.retry_after) == (False, None)


async def test_an_error_comes_after_the_given_characters() -> None:
    deltas: list[Delta] = []
    scripted = model("pace: {chunk: 4}\nrules: [{thinking: hm, text: '0123456789', error: {after: 6}}]")
    with pytest.raises(ModelError):
        await scripted.reply(Request("s", (GO,)), deltas.append)
    assert deltas == [Delta("thinking", "hm"), Delta("text", "0123"), Delta("text", "45")]


async def test_parameters_are_refused_only_if_they_are_set() -> None:
    rules = "rules: [{text: ok, error: {message: deprecated, refuses: [temperature, effort]}}]"
    with pytest.raises(ParameterRefused, match="deprecated") as caught:
        await get_reply(rules, [GO], overrides=Overrides(max_tokens=5, temperature=0))
    assert caught.value.parameters == ("temperature",)
    assert await get_text(rules, GO, overrides=Overrides(max_tokens=5)) == "ok"


# ---------------------------------------------------------------------------------------------- streaming

PACES = """
pace: {chunk: 4}
terminal_pace: {think_s: 3, delay_s: 1}
rules:
  - {when: {user: own}, text: abcdefgh, pace: {chunk: 8}}
  - {when: {user: slow}, thinking: hm, text: abcdefgh, pace: {delay_s: 5}}
  - {when: {user: patient}, text: abcdefgh, terminal_pace: {think_s: 10}}
  - {when: {user: long}, text: abcdefghijkl, pace: {chunk: 1, delay_s: 1, most_s: 4}}
  - {text: abcdefgh}
"""


@pytest.mark.parametrize(
    ("query", "at_terminal", "expected"),
    [
        pytest.param("x", False, [(0, "abcd"), (0, "efgh")], id="pace of the file"),
        pytest.param("x", True, [(4, "abcd"), (5, "efgh")], id="terminal pace of the file"),
        pytest.param("own", True, [(0, "abcdefgh")], id="pace of a rule, at a terminal"),
        pytest.param("slow", False, [(5, "hm"), (10, "abcd"), (15, "efgh")], id="delay of a rule"),
        pytest.param("patient", False, [(0, "abcd"), (0, "efgh")], id="terminal pace of a rule, not at a terminal"),
        pytest.param("patient", True, [(11, "abcd"), (12, "efgh")], id="terminal pace of a rule"),
        pytest.param("long", True, [(1, "abc"), (2, "def"), (3, "ghi"), (4, "jkl")], id="limited length"),
    ],
)
async def test_the_pace_of_a_reply(
    query: str,
    at_terminal: bool,
    expected: list[tuple[int, str]],
    tmp_path: Path,
    autojump_clock: trio.testing.MockClock,
) -> None:
    (tmp_path / "rules.yaml").write_text(PACES)
    scripted = OneConversation(ScriptedModel.load(tmp_path / "rules.yaml", at_terminal=at_terminal))
    deltas: list[tuple[int, str]] = []
    start = trio.current_time()

    def on_delta(delta: Delta) -> None:
        deltas.append((round(trio.current_time() - start), delta.text))

    await scripted.reply(Request("s", (user_text(query),)), on_delta)
    assert deltas == expected


async def test_a_cancelled_call_uses_the_rule(autojump_clock: trio.testing.MockClock) -> None:
    scripted = model("pace: {chunk: 1, delay_s: 1}\nrules: [{times: 1, text: abcdef}, {text: next}]")
    deltas: list[Delta] = []
    with trio.move_on_after(2.5):  # after two characters
        await scripted.reply(Request("s", (user_text("12"),)), deltas.append)
    assert deltas[-1] == Delta("usage", usage=Usage(input_tokens=1, output_tokens=1))
    assert await get_text(scripted, user_text("12")) == "next"


async def test_a_reply_without_delay_has_checkpoints() -> None:
    with trio.testing.assert_checkpoints():
        await get_reply("rules: [{text: abc}]", [GO])


# ---------------------------------------------------------------------------------------------- rule files


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("name: x", 1, "there is no list of rules"),
        ("rules:\n  - {when: {usr: x}, text: x}", 2, "did you mean user?"),
        ("rules:\n  - when: {user: x}", 2, "a rule without an effect"),
        ("rules:\n  - text: x\n    when: {user: '('}", 3, "is not a regular expression"),
        ("rules:\n  - text: '${nme}'\n    when: {user: '(?P<name>x)'}", 2, "did you mean name?"),
        ("rules:\n  - text: 'costs $5'", 2, "a $ must be written $$"),
        ("rules:\n  - text: x\n    and: stop", 3, "expected one of continue, work"),
        ("rules:\n  - text: x\n    and: work", 3, "only for rules with an interruption"),
        ("rules:\n  - text: x\n    collect:\n      f: {match: x, has: '${nme}'}", 4, "unknown name ${nme}"),
        ("rules:\n  - text: x\n    stop_reason: bored", 3, "expected one of end_turn"),
        ("rules:\n  - text: x\n    times: 0", 3, "at least 1"),
        ("rules:\n  - tools:\n      - {input: {}}", 3, "needs the name of the tool"),
        ("rules:\n  - tools:\n      - {name: x, input: 5}", 3, "expected a mapping"),
        ("rules:\n  - tools:\n      - {name: x, for_each: files}", 3, "a list under collect"),
        ("rules:\n  - text: x\n    collect:\n      turn: {match: x}", 4, "this name is taken"),
        ("rules:\n  - text: x\n    collect:\n      f: {row: x}", 4, "needs match"),
        ("rules:\n  - text: x\n    collect:\n      f: {match: x, unique: path}", 4, "expected one of 0"),
        ("rules:\n  - text: x\n    when: {user: '(?P<a>x)', result: '(?P<a>y)'}", 3, "in two of the expressions"),
        ("rules:\n  - text: x\n    error: {refuses: [top_p]}", 3, "expected one of max_tokens"),
        ("marks: {interruption: ''}\nrules: []", 1, "must not be blank"),
        ("rules: [", 1, "is not valid YAML"),
    ],
)
def test_an_error_names_its_line(text: str, line: int, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ScriptedModel.parse(text, "my.yaml")
    assert (caught.value.file, caught.value.line) == ("my.yaml", line)
    assert message in caught.value.message


def test_the_default_name_is_the_file_name(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("rules: [{text: x}]")
    assert ScriptedModel.load(tmp_path / "mine.yaml").name == "mine"
    assert ScriptedModel.parse("name: other\nrules: []", "my.yaml").name == "other"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rules", "place"),
    [
        ("rules:\n- when: {user: '^(a|aa)+$'}\n  text: x\n", "my.yaml:2: rules[0].when.user"),
        (
            "rules:\n- text: x\n  collect: {l: {match: '^(a|aa)+$', from: query}}\n",
            "my.yaml:3: rules[0].collect.l.match",
        ),
        ("marks:\n  note: '^(a|aa)+$'\nrules: [{text: x}]\n", "my.yaml:2: marks.note"),
    ],
    ids=["condition", "list", "mark"],
)
async def test_a_slow_expression_fails_the_call(rules: str, place: str) -> None:
    scripted = model(rules)
    slow_to_match, quick_to_match = user_text("a" * 60 + "!"), user_text("aa!")
    with pytest.raises(ModelError, match="avoid repeats inside repeats") as caught:
        await get_reply(scripted, [slow_to_match])
    assert str(caught.value).startswith(f"{place}: used most of the ")
    assert not caught.value.retryable
    assert (await get_reply(scripted, [quick_to_match])).stop_reason == "end_turn"
