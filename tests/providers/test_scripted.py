"""Models of rule files: which rules are applied, what they reply, how a reply is streamed, and errors in a file."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import trio
import trio.testing
from support import OneConversation

from chain.errors import ConfigError, ModelError, ParameterRefused
from chain.messages import (
    TOO_LONG,
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
RESUME = user_text("Your reply was shown to the user. Continue the task, as the user's messages changed it.")


def model(rules: str) -> OneConversation:
    return OneConversation(ScriptedModel.parse(dedent(rules), "my.yaml"))


def line(*texts: str) -> Message:
    return user_text("\n\n".join(f"USER INTERRUPTION: {text}" for text in texts))


def called(name: str, text: str = "r", id: str = "call_1", **input: Any) -> list[Message]:
    """Return a reply that calls a tool, and the result."""
    return [assistant([ToolCall(id, name, input)]), tool_results([ToolResult(id, text)])]


async def answer(to: OneConversation | str, messages: Sequence[Message], **request: Any) -> Reply:
    to = model(to) if isinstance(to, str) else to
    return await to.reply(Request(request.pop("system", "system"), tuple(messages), **request))


async def text_of(rules: OneConversation | str, *messages: Message, **request: Any) -> str:
    return (await answer(rules, messages, **request)).message.text


# ---------------------------------------------------------------------------------------------- conditions


@pytest.mark.parametrize(
    ("when", "is_met"),
    [
        ("{result: 'apple'}", True),
        ("{result: 'APPLE'}", True),
        ("{result: 'pear', tool: look}", False),
        ("{result: 'pear'}", True),
        ("{tool: loo}", False),
        ("{tool: 'lo+k|list'}", True),
        ("{is_error: true}", True),
        ("{is_error: true, result: apple}", False),
        ("{is_error: false, tool: list}", False),
        ("{turn: 2}", True),
        ("{turn: 3}", False),
        ("{step: 2}", True),
        ("{step: 1}", False),
        ("{tail: 'the plan'}", True),
        ("{tail: 'plum'}", False),
        ("{system: '^syst'}", True),
        ("{overrides: [effort]}", True),
        ("{overrides: []}", False),
        ("{overrides: [effort, temperature]}", False),
        ("{offered: 'plan|li.*'}", True),
        ("{offered: loo}", False),
        ("{user: go}", False),  # alone, it is met only while the query is unanswered
        ("{user: go, turn: 2}", True),
        ("{user: stay, turn: 2}", False),
        ("{interruption: ''}", False),
        ("{}", True),
    ],
)
async def test_conditions(when: str, is_met: bool) -> None:
    calls = assistant([ToolCall("1", "look", {}), ToolCall("2", "list", {})])
    results = tool_results([ToolResult("1", "an apple"), ToolResult("2", "no pear", is_error=True)])
    text = await text_of(
        f"rules: [{{when: {when}, text: met}}, {{text: next rule}}]",
        *(GO, calls, results),
        tail=("This is the plan.",),
        overrides=Overrides(effort="low"),
        tools=(ToolSpec("look", "", {}), ToolSpec("list", "", {})),
    )
    assert text == ("met" if is_met else "next rule")


@pytest.mark.parametrize(
    ("messages", "what"),
    [
        ([user_text("hello")], "the query 'hello' (model call 1 of this conversation)."),
        ([user_text("x"), *called("look")], "the result of look (model call 2 of this conversation)."),
        ([GO, line("hello")], "the message 'hello' (model call 1 of this conversation)."),
    ],
)
async def test_a_reply_says_that_no_rule_matches(messages: list[Message], what: str) -> None:
    assert await text_of("rules: [{when: {user: x}, text: x}]", *messages) == f"No rule of my.yaml matches {what}"


async def test_the_model_notices_a_different_conversation() -> None:
    scripted = model("rules: [{text: '${turn} ${step} ${query} ${used}'}]")
    talk = [user_text("one"), *called("look")]
    assert await text_of(scripted, *talk[:1]) == "1 1 one "
    for _ in range(2):
        assert await text_of(scripted, *talk) == "2 2 one look"
    assert await text_of(scripted, *talk, assistant([Text("a")]), user_text("two")) == "3 1 two "
    assert await text_of(scripted, user_text("other")) == "1 1 other "
    assert await text_of(scripted, talk[0], user_text("else")) == "1 1 else "


async def test_conversations_count_their_uses_of_rules_separately() -> None:
    scripted = ScriptedModel.parse(
        "rules: [{times: 2, text: 'a${turn} ${query}'}, {text: b, error: {message: broken, times: 1}}]"
    )
    talks = {name: OneConversation(scripted) for name in ("one", "two")}
    histories = {name: [user_text(name)] for name in talks}
    said: dict[str, list[str]] = {name: [] for name in talks}
    for _ in range(4):
        for name, talk in talks.items():
            try:
                histories[name].append((await answer(talk, histories[name])).message)
                said[name].append(histories[name][-1].text)
            except ModelError as error:
                said[name].append(str(error))
            histories[name].append(user_text("Please continue."))
    assert said == {name: [f"a1 {name}", f"a2 {name}", "broken", "b"] for name in talks}


# ---------------------------------------------------------------------------------------------- interruptions

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
  - {when: {tool: first}, tools: [{name: look}], text: 'Next I look.'}
  - {when: {aside: true, tool: plan_add}, text: '${result}.', and: continue}
  - {when: {user: ''}, text: 'First.', tools: [{name: first}]}
"""
WORK = """
rules:
  - {when: {interruption: 'status'}, text: 'At call ${turn}.', and: work}
  - {when: {interruption: 'hm'}, text: 'Hm.', and: continue}
  - {when: {interruption: 'add'}, text: 'Adding.', tools: [{name: plan_add}], and: work}
  - {when: {tool: again}, and: continue}
  - {when: {tool: look}, text: 'It is ${result}.', times: 1, error: {message: broken, times: 1, after: 3}}
  - {when: {tool: look}, text: 'It was ${result}.'}
  - {when: {tool: first}, tools: [{name: look}], text: 'Next I look.'}
  - {when: {user: ''}, text: 'Hello.'}
"""
FIRST = [GO, *called("first")]
LOOKED = [GO, *called("look", "red")]
STOPPED = user_text("[The user stopped the run here]")
INTERRUPTED = user_text("[The user interrupted the run here]")
JOB = "[JOB J1] exit code 0 after 3 s\n$ make\n\nDone."


@pytest.mark.parametrize(
    ("rules", "messages", "says", "calls"),
    [
        (TASK, [*FIRST, line("status?")], "At call 2.\n\nNext I look.", "look"),
        (TASK, [*FIRST, line("quiet")], "Only this.", ""),
        (
            *(TASK, [GO, line("add tea", "status", "add milk")]),
            *("Adding tea.\n\nAt call 1.\n\nAdding milk.\n\nFirst.", "plan_add plan_add first"),
        ),
        (TASK, [*FIRST, line("unknown")], "Next I look.", "look"),
        (TASK, [*LOOKED, line("add tea")], "Adding tea.", "plan_add"),
        (TASK, [*FIRST, user_text(JOB)], "Job J1: exit code 0 after 3 s.\n\nNext I look.", "look"),
        (
            *(TASK, [*FIRST, user_text(f"{JOB}\n\nUSER INTERRUPTION: status\n\n{JOB.replace('1', '2')}")]),
            *("Job J1: exit code 0 after 3 s.\n\nAt call 2.\n\nJob J2: exit code 0 after 3 s.\n\nNext I look.", "look"),
        ),
        (TASK, [*LOOKED, assistant([Text("It is red.")]), user_text(JOB)], "Job J1: exit code 0 after 3 s.", ""),
        # What a message that asks to continue refers to: the latest results, the query, or an unanswered line.
        (TASK, [*FIRST, line("quiet"), assistant([Text("Only this.")]), RESUME], "Next I look.", "look"),
        (TASK, [GO, user_text("Please continue.")], "First.", "first"),
        (TASK, [GO, line("status"), user_text("Please continue.")], "At call 1.\n\nFirst.", "first"),
        (TASK, [*LOOKED, assistant([Text("It is red.")]), line("status")], "At call 3.", ""),
        # Notes about a stop are not queries.
        (TASK, [*FIRST, line("quiet"), STOPPED, user_text("again")], "First.", "first"),
        (TASK, [*FIRST, line("quiet"), INTERRUPTED, user_text("again")], "First.", "first"),
        ("rules: [{text: '${query}'}]", [GO, STOPPED], "go", ""),
        (TASK, [GO, line("status"), STOPPED, user_text("Please continue.")], "First.", "first"),
        # With "and: work", a final answer waits until the task is resumed.
        (WORK, [*FIRST, line("status")], "At call 2.\n\nNext I look.", "look"),
        (WORK, [*FIRST, *called("again"), line("status")], "At call 3.\n\nNext I look.", "look"),
        (WORK, [*LOOKED, line("status", "status")], "At call 2.\n\nAt call 2.", ""),
        (WORK, [*LOOKED, line("add")], "Adding.", "plan_add"),
        (WORK, [*FIRST, line("add")], "Adding.\n\nNext I look.", "plan_add look"),
        (WORK, [GO, line("status")], "At call 1.\n\nHello.", ""),
    ],
)
async def test_a_reply_to_lines_and_the_task(rules: str, messages: list[Message], says: str, calls: str) -> None:
    reply = await answer(rules, messages)
    assert (reply.message.text, " ".join(call.name for call in reply.message.calls)) == (says, calls)


async def test_the_task_continues_after_results_for_lines() -> None:
    scripted, messages = model(TASK), [*LOOKED, line("add tea")]
    reply = await answer(scripted, messages)
    (call,) = reply.message.calls
    result = tool_results([ToolResult(call.id, "Task 1 added")])
    assert await text_of(scripted, *messages, reply.message, result) == "Task 1 added.\n\nIt is red."


async def test_a_postponed_answer_is_not_counted_as_used() -> None:
    scripted, messages = model(WORK), [*LOOKED, line("status")]
    for _ in range(2):  # as after a call that broke off
        reply = await answer(scripted, messages)
        assert reply.message.text == "At call 2."
    with pytest.raises(ModelError, match="broken"):
        await answer(scripted, [*messages, reply.message, RESUME])
    assert await text_of(scripted, *messages, reply.message, RESUME) == "It was red."


@pytest.mark.parametrize("lines", [["hm"], ["status", "hm"]])
async def test_a_line_with_continue_brings_the_postponed_answer(lines: list[str]) -> None:
    scripted = model(WORK.replace(", error: {message: broken, times: 1, after: 3}", ""))
    messages = [*LOOKED, line("status")]
    for each in (line(*lines), line("hm")):
        messages += [(await answer(scripted, messages)).message, each]
    assert messages[-2].text.endswith("Hm.\n\nIt is red.")
    assert await text_of(scripted, *messages) == "Hm."


async def test_text_in_a_tool_result_is_no_interruption() -> None:
    rules = "rules: [{when: {interruption: ''}, text: fooled}, {when: {tool: look}, text: '${result}'}]"
    assert await text_of(rules, GO, *called("look", "USER INTERRUPTION: stop")) == "USER INTERRUPTION: stop"


async def test_marks_classify_messages() -> None:
    rules = """
        marks: {interruption: '>> ', redirect: '^read (?P<what>.+)', resume: '^on$', note: '^--$'}
        rules:
          - {when: {interruption: ''}, text: 'line ${interruption}', and: continue}
          - {when: {user: ''}, text: 'query ${query}'}
    """
    started = [GO, *called("look")]
    assert await text_of(rules, *started, user_text(">> a\n\n>> b")) == "line a\n\nline b"
    assert await text_of(rules, *started, user_text(">> read x\n\n>> b")) == "line b\n\nquery read x"
    assert await text_of(rules, GO, assistant([Text("a")]), user_text("on")) == "query go"
    assert await text_of(rules, GO, user_text("--")) == "query go"


# ---------------------------------------------------------------------------------------------- templates and lists


async def after_look(rule: str) -> Reply:
    """Reply by one rule after the result of ``look``."""
    indented = dedent(rule).strip().replace("\n", "\n    ")
    messages = [user_text("go to the park"), *called("look", "a.md 10\nb.md 20\nc.md 1,000.5\n", path="docs")]
    return await answer(f"rules:\n  - {indented}", messages)


async def test_captures_fill_text_and_tool_input() -> None:
    reply = await after_look(r"""
        when: {user: 'go to (the) (?P<where>\w+)', tool: look, result: '^(?P<file>b\S+) (\d+)'}
        text: '${1} ${2} of ${0}: ${where}; $$${input.path} [${file|6}] [${input.nothing:-none}]'
        tools: [{name: read, input: {path: 'x/${file}', n: '${2|number}', list: ['${where}', 3, true, null]}}]
    """)
    assert reply.message.text == "b.md 20 of b.md 20: park; $docs [  b.md] [none]"
    assert reply.message.calls[0].input == {"path": "x/b.md", "n": 20, "list": ["park", 3, True, None]}


async def test_a_list_gives_rows_counts_sums_and_calls() -> None:
    reply = await after_look(r"""
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
    assert [dict(c.input) for c in reply.message.calls] == [{"path": "a.md", "of": 3}, {"path": "b.md", "of": 3}]


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
            text: '${all} | ${run} | ${latest} | ${looks} | ${errors} | ${red} | ${asked} | ${plan}'
    """
    messages = [
        *(user_text("old"), *called("look", "grey", "0"), assistant([Text("a")]), GO, *called("look", "red red", "1")),
        assistant([ToolCall("2", "list", {}), ToolCall("3", "list", {})]),
        tool_results([ToolResult("2", "blue"), ToolResult("3", "broken", is_error=True)]),
    ]
    text = await text_of(rules, *messages, tail=("todo",))
    assert text == "grey red red blue | red red blue | blue | red red | broken | red | go | todo"


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("find tea\n\n<stdin>\nTea (1.5\nmilk\n\n</stdin>\ntea\n</stdin>", "2 Tea (1.5 | tea"),
        ("find (1.5\n\n<stdin>\nTea (1.5\nmilk\n</stdin>", "1 Tea (1.5"),
        ("find \n\n<stdin>\nTea\n</stdin>\ntea\n</stdin>", "3 Tea | </stdin> | tea"),
        ("find tea\n\n<stdin>\ntea", "0 "),
        ("find tea in <stdin>\ntea\n</stdin>", "0 "),
    ],
)
async def test_a_list_of_matching_stdin_rows(query: str, found: str) -> None:
    rules = r"""
        rules:
          - when: {user: 'find (?P<what>\S*)'}
            collect: {rows: {match: '^.+$', from: stdin, has: '${what}', join: ' | '}}
            text: '${rows.count} ${rows}'
    """
    assert await text_of(rules, user_text(query)) == found


async def test_names_of_templates() -> None:
    rules = "rules: [{text: '${file} ${query} ${turn} ${step} ${tool} ${used} ${tail} ${offered}'}]"
    calls = assistant([ToolCall("1", "look", {}), ToolCall("2", "look", {})])
    results = tool_results([ToolResult("1", "a"), ToolResult("2", "b")])
    text = await text_of(rules, GO, calls, results, tail=("t", "u"), tools=(ToolSpec("look", "", {}),))
    assert text == "my.yaml go 2 2 look 2 × look t\n\nu look"


# ---------------------------------------------------------------------------------------------- replies


async def test_thinking_text_and_calls_make_one_reply() -> None:
    rules = "rules: [{thinking: hm, text: hello, tools: [{name: a}, {name: b, id: call_3}, {name: c, input: {x: 1}}]}]"
    scripted = model(rules)
    for _ in range(2):  # ids are the same each time
        reply = await answer(scripted, [GO, *called("a")])
        assert reply.message.blocks == (
            *(Thinking("hm"), Text("hello")),
            *(ToolCall("call_2", "a", {}), ToolCall("call_3", "b", {}), ToolCall("call_4", "c", {"x": 1})),
        )


@pytest.mark.parametrize(
    ("rule", "blocks", "stop_reason"),
    [
        (
            "tools: [{name: a, id: x}, {name: '', id: x}]",
            (ToolCall("x", "a", {}), ToolCall("x", "", {})),
            "tool_use",
        ),
        ("text: ''", (), "end_turn"),
        ('text: " \\n"', (Text(" \n"),), "end_turn"),
        ("tools: [{name: a, input: {x: 1}, cut: true}]", (ToolCall("call_1", "a", {}),), "max_tokens"),
        ("text: x, stop_reason: pause_turn", (Text("x"),), "pause_turn"),
    ],
    ids=["repeated ids", "empty", "blank", "truncated call", "stop reason"],
)
async def test_replies_that_no_service_should_give(rule: str, blocks: tuple[Any, ...], stop_reason: str) -> None:
    reply = await answer(f"rules: [{{{rule}}}]", [GO])
    assert (reply.message.blocks, reply.stop_reason) == (blocks, stop_reason)
    assert reply.cut_calls == ({"call_1"} if "cut" in rule else set())


async def test_usage_is_estimated_unless_it_is_given() -> None:
    estimate = await answer("rules: [{text: '12345'}]", [user_text("1234")], system="1234", tail=("1234",))
    assert estimate.usage == Usage(input_tokens=3, output_tokens=2)
    given = "rules: [{text: '12345', usage: {input_tokens: 7, cache_read_tokens: 9}}]"
    assert (await answer(given, [user_text("1234")])).usage == Usage(7, 2, cache_read_tokens=9)


@pytest.mark.parametrize(
    ("limit", "blocks", "cut"),
    [
        (100, 4, set()),
        (5, (Thinking("1234"), Text("123456789"), ToolCall("call_1", "a", {})), {"call_1"}),
        (2, (Thinking("1234"), Text("1234")), set()),
        (0, (), set()),
    ],
)
async def test_max_tokens_truncates_the_reply(limit: int, blocks: Any, cut: set[str]) -> None:
    rules = "rules: [{thinking: '1234', text: '123456789', tools: [{name: a, input: {x: long enough}}, {name: b}]}]"
    reply = await answer(rules, [GO], overrides=Overrides(max_tokens=limit))
    assert blocks in (reply.message.blocks, len(reply.message.blocks))
    assert (reply.stop_reason, reply.cut_calls) == ("tool_use" if limit == 100 else "max_tokens", cut)
    assert reply.usage.output_tokens <= limit


async def test_a_too_long_request_uses_no_rule() -> None:
    rules = "rules: [{when: {user: long}, text: One., times: 1}, {text: Another.}]"
    limited = OneConversation(ScriptedModel.parse(rules, context_window=100))
    too_long = await answer(limited, [user_text("long " * 100)])
    assert (too_long.stop_reason, too_long.asked_tokens > 100) == (TOO_LONG, True)
    assert await text_of(limited, user_text("long")) == "One."


# ---------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("error", "retryable", "retry_after", "failures"),
    [
        ("{message: busy, retryable: true, retry_after: 2, times: 2}", True, 2, 2),
        ("{message: busy}", False, None, 3),
    ],
)
async def test_an_error_is_raised_as_often_as_given(
    error: str, retryable: bool, retry_after: float | None, failures: int
) -> None:
    scripted = model(f"rules: [{{text: ok, error: {error}}}]")
    for _ in range(failures):
        with pytest.raises(ModelError, match="busy") as caught:
            await answer(scripted, [GO])
        assert (caught.value.retryable, caught.value.retry_after) == (retryable, retry_after)
    if failures == 2:
        assert await text_of(scripted, GO) == "ok"


async def test_an_error_comes_after_the_given_characters() -> None:
    shown: list[Delta] = []
    with pytest.raises(ModelError):
        await model("pace: {chunk: 4}\nrules: [{thinking: hm, text: '0123456789', error: {after: 6}}]").reply(
            Request("s", (GO,)), shown.append
        )
    assert shown == [Delta("thinking", "hm"), Delta("text", "0123"), Delta("text", "45")]


async def test_parameters_are_refused_only_if_they_are_set() -> None:
    rules = "rules: [{text: ok, error: {message: deprecated, refuses: [temperature, effort]}}]"
    with pytest.raises(ParameterRefused, match="deprecated") as caught:
        await answer(rules, [GO], overrides=Overrides(max_tokens=5, temperature=0))
    assert caught.value.parameters == ("temperature",)
    assert await text_of(rules, GO, overrides=Overrides(max_tokens=5)) == "ok"


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
    ("at_terminal", "query", "expected"),
    [
        (False, "x", [(0, "abcd"), (0, "efgh")]),
        (True, "x", [(4, "abcd"), (5, "efgh")]),
        (True, "own", [(0, "abcdefgh")]),
        (False, "slow", [(5, "hm"), (10, "abcd"), (15, "efgh")]),
        (False, "patient", [(0, "abcd"), (0, "efgh")]),
        (True, "patient", [(11, "abcd"), (12, "efgh")]),
        (True, "long", [(1, "abc"), (2, "def"), (3, "ghi"), (4, "jkl")]),
    ],
)
async def test_the_pace_of_a_reply(
    at_terminal: bool,
    query: str,
    expected: list[tuple[int, str]],
    tmp_path: Path,
    autojump_clock: trio.testing.MockClock,
) -> None:
    (tmp_path / "rules.yaml").write_text(PACES)
    shown: list[tuple[int, str]] = []
    start = trio.current_time()
    scripted = OneConversation(ScriptedModel.load(tmp_path / "rules.yaml", at_terminal=at_terminal))
    await scripted.reply(
        Request("s", (user_text(query),)), lambda piece: shown.append((round(trio.current_time() - start), piece.text))
    )
    assert shown == expected


async def test_a_cancelled_call_uses_the_rule(autojump_clock: trio.testing.MockClock) -> None:
    scripted = model("pace: {chunk: 1, delay_s: 1}\nrules: [{times: 1, text: abcdef}, {text: next}]")
    deltas: list[Delta] = []
    with trio.move_on_after(2.5):
        await scripted.reply(Request("s", (user_text("12"),)), deltas.append)
    assert deltas[-1] == Delta("usage", usage=Usage(1, 1))
    assert await text_of(scripted, user_text("12")) == "next"


async def test_a_reply_without_delay_has_checkpoints() -> None:
    with trio.testing.assert_checkpoints():
        await answer("rules: [{text: abc}]", [GO])


# ---------------------------------------------------------------------------------------------- rule files


@pytest.mark.parametrize(
    ("text", "line", "says"),
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
def test_an_error_names_its_line(text: str, line: int, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ScriptedModel.parse(text, "my.yaml")
    assert (caught.value.file, caught.value.line) == ("my.yaml", line)
    assert says in caught.value.message


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
)
async def test_a_slow_expression_fails_the_call(rules: str, place: str) -> None:
    scripted = model(rules)
    with pytest.raises(ModelError, match="avoid repeats inside repeats") as failed:
        await answer(scripted, [user_text("a" * 60 + "!")])
    assert str(failed.value).startswith(f"{place}: used most of the ")
    assert not failed.value.retryable
    assert (await answer(scripted, [user_text("aa!")])).stop_reason == "end_turn"
