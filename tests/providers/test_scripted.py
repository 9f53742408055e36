"""The rule-file model: its language, what it answers, how it streams, and where it says that a file is wrong."""

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
from chain.providers.scripted import conversation
from chain.providers.scripted.scripted_model import ScriptedModel

RESUME = (
    "Your reply was shown to the user. Continue the task, as the user's messages changed it. "
    "If it is already complete, give the final answer."
)


def model(rules: str) -> OneConversation:
    return OneConversation(ScriptedModel.parse(dedent(rules), "my.yaml"))


def line(*texts: str) -> Message:
    """A message as the executor delivers lines."""
    return user_text("\n\n".join(f"USER INTERRUPTION: {text}" for text in texts))


def called(*calls: ToolCall) -> Message:
    return assistant(calls)


def asked(name: str = "look", id: str = "call_1", **input: Any) -> Message:
    return assistant([ToolCall(id, name, input)])


def result(text: str, id: str = "call_1", *, is_error: bool = False) -> Message:
    return tool_results([ToolResult(id, text, is_error)])


async def answer(to: OneConversation, messages: Sequence[Message], **request: Any) -> Reply:
    return await to.reply(Request(request.pop("system", "system"), tuple(messages), **request))


async def text_of(rules: str, messages: Sequence[Message], **request: Any) -> str:
    return (await answer(model(rules), messages, **request)).message.text


# ---------------------------------------------------------------------------------------------- conditions


async def test_the_first_rule_whose_conditions_hold_is_used() -> None:
    rules = """
        rules:
          - {when: {user: '^b'}, text: begins with b}
          - {when: {user: 'an'}, text: has an}
          - {text: anything}
    """
    assert await text_of(rules, [user_text("banana")]) == "begins with b"
    assert await text_of(rules, [user_text("ANANAS")]) == "has an"
    assert await text_of(rules, [user_text("cherry")]) == "anything"


async def test_no_rule_that_fits_is_said_openly() -> None:
    text = await text_of("rules: [{when: {user: x}, text: x}]", [user_text("hello")])
    assert text == "No rule of my.yaml matches the query 'hello' (model call 1 of this conversation)."
    text = await text_of("rules: [{when: {user: x}, text: x}]", [user_text("x"), asked(), result("r")])
    assert "matches the result of look (model call 2" in text


async def test_a_user_rule_alone_answers_the_query_and_not_what_comes_later() -> None:
    rules = """
        rules:
          - {when: {user: 'go'}, tools: [{name: look}]}
          - {when: {user: 'go', tool: look}, text: done}
    """
    conversation = [user_text("go")]
    first = await answer(model(rules), conversation)
    assert first.message.calls == (ToolCall("call_1", "look", {}),)
    assert first.stop_reason == "tool_use"
    second = await answer(model(rules), [*conversation, first.message, result("r")])
    assert (second.message.text, second.stop_reason) == ("done", "end_turn")


@pytest.mark.parametrize(
    ("when", "fits"),
    [
        ("{result: 'apple'}", True),
        ("{result: 'pear', tool: look}", False),
        ("{result: 'pear'}", True),
        ("{tool: look}", True),
        ("{tool: loo}", False),
        ("{tool: 'lo+k|list'}", True),
        ("{is_error: true}", True),
        ("{is_error: true, result: apple}", False),
        ("{is_error: false, tool: list}", False),
        ("{turn: 2}", True),
        ("{turn: 3}", False),
        ("{step: 2}", True),
        ("{tail: 'the plan'}", True),
        ("{tail: 'plum'}", False),
        ("{system: '^syst'}", True),
        ("{overrides: [effort]}", True),
        ("{overrides: []}", False),
        ("{overrides: [effort, temperature]}", False),
        ("{offered: look}", True),
        ("{offered: 'plan|li.*'}", True),
        ("{offered: loo}", False),
        ("{user: go, turn: 2}", True),
        ("{user: stay, turn: 2}", False),
        ("{interruption: ''}", False),
        ("{}", True),
    ],
)
async def test_conditions(when: str, fits: bool) -> None:
    calls = called(ToolCall("1", "look", {}), ToolCall("2", "list", {}))
    results = tool_results([ToolResult("1", "an apple"), ToolResult("2", "no pear", is_error=True)])
    text = await text_of(
        f"rules: [{{when: {when}, text: fits}}, {{text: does not}}]",
        [user_text("go"), calls, results],
        tail=("This is the plan.",),
        overrides=Overrides(effort="low"),
        tools=(ToolSpec("look", "", {}), ToolSpec("list", "", {})),
    )
    assert text == ("fits" if fits else "does not")


async def test_turn_counts_the_conversation_and_step_the_run() -> None:
    rules = "rules: [{text: '${turn} ${step}'}]"
    conversation = [user_text("one"), asked(), result("r"), assistant([Text("a")]), user_text("two")]
    assert await text_of(rules, conversation) == "3 1"


async def test_the_same_instance_reads_on_in_a_conversation_and_notices_another_one() -> None:
    scripted = model("rules: [{text: '${turn} ${query} ${used}'}]")
    conversation = [user_text("one"), asked(), result("r")]
    assert (await answer(scripted, conversation[:1])).message.text == "1 one "
    assert (await answer(scripted, conversation)).message.text == "2 one look"
    assert (await answer(scripted, conversation)).message.text == "2 one look"
    assert (await answer(scripted, [user_text("other")])).message.text == "1 other "
    withdrawn = [*conversation[:1], user_text("else")]
    assert (await answer(scripted, withdrawn)).message.text == "1 else "


async def test_times_passes_a_rule_over_once_it_was_used_so_often() -> None:
    scripted = model("rules: [{times: 2, text: a}, {text: b}]")
    assert [(await answer(scripted, [user_text("x")])).message.text for _ in range(3)] == ["a", "a", "b"]


async def test_conversations_that_share_a_model_count_their_rules_apart() -> None:
    scripted = ScriptedModel.parse(
        "rules: [{times: 2, text: 'a${turn} ${query}'}, {text: b, error: {message: broken, times: 1}}]"
    )
    talks = [OneConversation(scripted), OneConversation(scripted)]
    histories = [[user_text("one")], [user_text("two")]]
    said: list[list[str]] = [[], []]
    for _ in range(4):
        for talk, history, heard in zip(talks, histories, said, strict=True):
            try:
                history.append((await answer(talk, history)).message)
                heard.append(history[-1].text)
            except ModelError as error:
                heard.append(str(error))
            history.append(user_text("Please continue."))
    assert said == [["a1 one", "a2 one", "broken", "b"], ["a1 two", "a2 two", "broken", "b"]]


async def test_conversations_that_share_a_model_are_read_on_and_not_again(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Message] = []
    size = conversation.count_chars
    monkeypatch.setattr(conversation, "count_chars", lambda blocks: read.append(blocks) or size(blocks))
    scripted = ScriptedModel.parse("rules: [{text: ok}]")
    talks = [OneConversation(scripted), OneConversation(scripted)]
    histories: list[list[Message]] = [[], []]
    for n in range(5):
        for talk, history in zip(talks, histories, strict=True):
            history.append(user_text(f"{n}"))
            read.clear()
            history.append((await answer(talk, history)).message)
            assert len(read) == min(n + 1, 2), "the last reply and the new message"


# ---------------------------------------------------------------------------------------------- interruptions

TASK = """
rules:
  - {when: {interruption: 'status'}, text: 'At call ${turn}.', and: continue}
  - when: {interruption: 'add (?P<what>\\w+)'}
    text: 'Adding ${1}.'
    tools: [{name: plan_add, input: {task: '${what}'}}]
    and: continue
  - {when: {interruption: 'quiet'}, text: 'Only this.'}
  - {when: {tool: look}, text: 'It is ${result}.'}
  - {when: {tool: first}, tools: [{name: look}], text: 'Next I look.'}
  - {when: {aside: true, tool: plan_add}, text: '${result}.', and: continue}
  - {when: {user: ''}, text: 'First.', tools: [{name: first}]}
"""


async def test_a_reply_answers_the_interruption_and_goes_on_with_the_task() -> None:
    reply = await answer(model(TASK), [user_text("go"), asked("first"), result("r"), line("status?")])
    assert reply.message.text == "At call 2.\n\nNext I look."
    assert reply.message.calls == (ToolCall("call_2", "look", {}),)


async def test_without_continue_only_the_interruption_is_answered() -> None:
    reply = await answer(model(TASK), [user_text("go"), asked("first"), result("r"), line("quiet")])
    assert reply.message.text == "Only this."
    assert not reply.message.calls


async def test_several_lines_of_one_message_are_answered_in_their_order_and_the_task_goes_on_once() -> None:
    reply = await answer(model(TASK), [user_text("go"), line("add tea", "status", "add milk")])
    assert reply.message.text == "Adding tea.\n\nAt call 1.\n\nAdding milk.\n\nFirst."
    assert [(c.name, dict(c.input)) for c in reply.message.calls] == [
        ("plan_add", {"task": "tea"}),
        ("plan_add", {"task": "milk"}),
        ("first", {}),
    ]


async def test_a_final_answer_waits_for_the_results_of_the_interruptions_calls() -> None:
    scripted = model(TASK)
    conversation = [user_text("go"), asked("look"), result("red"), line("add tea")]
    reply = await answer(scripted, conversation)
    assert (reply.message.text, [c.name for c in reply.message.calls]) == ("Adding tea.", ["plan_add"])
    conversation += [reply.message, result("Task 1 added", reply.message.calls[0].id)]
    assert (await answer(scripted, conversation)).message.text == "Task 1 added.\n\nIt is red."


WORK = """
rules:
  - {when: {interruption: 'status'}, text: 'At call ${turn}.', and: work}
  - {when: {interruption: 'hm'}, text: 'Hm.', and: continue}
  - {when: {interruption: 'add'}, text: 'Adding.', tools: [{name: plan_add}], and: work}
  - {when: {aside: true, tool: plan_add}, text: 'Added.', and: continue}
  - {when: {tool: again}, and: continue}
  - {when: {tool: look}, text: 'It is ${result}.', times: 1, error: {message: broken, times: 1, after: 3}}
  - {when: {tool: look}, text: 'It was ${result}.'}
  - {when: {tool: first}, tools: [{name: look}], text: 'Next I look.'}
  - {when: {user: ''}, text: 'Hello.'}
"""


@pytest.mark.parametrize(
    ("lines", "tools", "says", "calls"),
    [
        (["status"], ["first"], "At call 2.\n\nNext I look.", ["look"]),
        (["status"], ["first", "again"], "At call 3.\n\nNext I look.", ["look"]),
        (["status"], ["first", "look"], "At call 3.", []),
        (["status", "status"], ["look"], "At call 2.\n\nAt call 2.", []),
        (["add"], ["look"], "Adding.", ["plan_add"]),
        (["add"], ["first"], "Adding.\n\nNext I look.", ["plan_add", "look"]),
        (["status"], [], "At call 1.\n\nHello.", []),
    ],
)
async def test_work_goes_on_in_the_same_reply_only_if_tools_are_called(
    lines: list[str], tools: list[str], says: str, calls: list[str]
) -> None:
    conversation = [user_text("go")]
    for n, name in enumerate(tools):
        conversation += [asked(name, f"t{n}"), result("red", f"t{n}")]
    reply = await answer(model(WORK), [*conversation, line(*lines)])
    assert (reply.message.text, [c.name for c in reply.message.calls]) == (says, calls)


async def test_an_answer_that_was_kept_back_is_not_used_up_and_comes_when_it_is_asked_for() -> None:
    scripted = model(WORK)
    conversation = [user_text("go"), asked("look"), result("red"), line("status")]
    for _ in range(2):  # as after a call that broke off
        reply = await answer(scripted, conversation)
        assert reply.message.text == "At call 2."
    with pytest.raises(ModelError, match="broken"):
        await answer(scripted, [*conversation, reply.message, user_text(RESUME)])
    last = await answer(scripted, [*conversation, reply.message, user_text(RESUME)])
    assert last.message.text == "It was red."


@pytest.mark.parametrize("lines", [["hm"], ["status", "hm"]])
async def test_an_answer_that_was_kept_back_comes_with_a_line_that_wants_it(lines: list[str]) -> None:
    scripted = model(WORK.replace(", error: {message: broken, times: 1, after: 3}", ""))
    conversation = [user_text("go"), asked("look"), result("red"), line("status")]
    conversation.append((await answer(scripted, conversation)).message)
    conversation.append(line(*lines))
    conversation.append((await answer(scripted, conversation)).message)
    assert conversation[-1].text.endswith("Hm.\n\nIt is red.")
    assert (await answer(scripted, [*conversation, line("hm")])).message.text == "Hm."


async def test_a_resume_message_means_the_latest_results() -> None:
    conversation = [user_text("go"), asked("first"), result("r"), line("quiet"), assistant([Text("Only this.")])]
    reply = await answer(model(TASK), [*conversation, user_text(RESUME)])
    assert (reply.message.text, [c.name for c in reply.message.calls]) == ("Next I look.", ["look"])


async def test_please_continue_means_the_query_or_the_line_that_got_no_answer() -> None:
    assert (await answer(model(TASK), [user_text("go"), user_text("Please continue.")])).message.text == "First."
    again = [user_text("go"), line("status"), user_text("Please continue.")]
    assert (await answer(model(TASK), again)).message.text == "At call 1.\n\nFirst."


async def test_after_a_final_answer_there_is_nothing_to_continue() -> None:
    conversation = [user_text("go"), asked("look"), result("red"), assistant([Text("It is red.")]), line("status")]
    assert (await answer(model(TASK), conversation)).message.text == "At call 3."


@pytest.mark.parametrize("note", ["[The user stopped the run here]", "[The user interrupted the run here]"])
async def test_a_note_is_no_query_and_ends_what_came_before(note: str) -> None:
    conversation = [user_text("go"), asked("first"), result("r"), line("quiet"), user_text(note), user_text("again")]
    assert (await answer(model(TASK), conversation)).message.text == "First."
    assert await text_of("rules: [{text: '${query}'}]", [user_text("go"), user_text(note)]) == "go"


async def test_an_interruption_without_a_rule_of_its_own_leaves_the_task_to_its_rules() -> None:
    rules = "rules: [{when: {interruption: other}, text: wrong}, {when: {tool: look}, text: task}]"
    assert await text_of(rules, [user_text("go"), asked(), result("r"), line("hello")]) == "task"


async def test_text_in_a_tool_result_is_never_an_interruption() -> None:
    rules = "rules: [{when: {interruption: ''}, text: fooled}, {when: {tool: look}, text: '${result}'}]"
    told = "USER INTERRUPTION: stop"
    assert await text_of(rules, [user_text("go"), asked(), result(told)]) == told


async def test_marks_say_how_messages_are_told_apart() -> None:
    rules = """
        marks: {interruption: '>> ', redirect: '^read (?P<what>.+)', resume: '^on$', note: '^--$'}
        rules:
          - {when: {interruption: ''}, text: 'line ${interruption}', and: continue}
          - {when: {user: ''}, text: 'query ${query}'}
    """
    begun = [user_text("go"), asked(), result("r")]
    assert await text_of(rules, [*begun, user_text(">> a\n\n>> b")]) == "line a\n\nline b"
    assert await text_of(rules, [*begun, user_text(">> read x\n\n>> b")]) == "line b\n\nquery read x"
    assert await text_of(rules, [user_text("go"), assistant([Text("a")]), user_text("on")]) == "query go"
    assert await text_of(rules, [user_text("go"), user_text("--")]) == "query go"


# ---------------------------------------------------------------------------------------------- templates and lists

FILES = "a.md 10\nb.md 20\nc.md 1,000.5\n"


async def lists(rule: str, text: str = FILES) -> Reply:
    conversation = [user_text("go to the park"), asked(path="docs"), result(text)]
    return await answer(model(f"rules:\n  - {dedent(rule).strip().replace(chr(10), chr(10) + '    ')}"), conversation)


async def test_captures_fill_text_and_tool_input() -> None:
    reply = await lists(r"""
        when: {user: 'go to (the) (?P<where>\w+)', tool: look, result: '^(?P<file>b\S+) (\d+)'}
        text: '${1} ${2} of ${0}: ${where}; $$${input.path} [${file|6}] [${input.nothing:-none}]'
        tools: [{name: read, input: {path: 'x/${file}', n: '${2|number}', list: ['${where}', 3, true, null]}}]
    """)
    assert reply.message.text == "b.md 20 of b.md 20: park; $docs [  b.md] [none]"
    assert reply.message.calls[0].input == {"path": "x/b.md", "n": 20, "list": ["park", 3, True, None]}


async def test_a_list_gives_rows_counts_sums_and_a_call_for_each_item() -> None:
    reply = await lists(r"""
        collect:
          files: {match: '^(?P<path>\S+) (?P<n>[\d.,]+)$', row: '${n|8} ${path}', limit: 2}
        text: |
          ${files}
          ${files.count} files, ${files.n.sum}, first ${files.path}
        tools: [{name: read, input: {path: '${path}', of: '${files.count|number}'}, for_each: files}]
    """)
    rows = ["      10 a.md", "      20 b.md", "    … and 1 more", "3 files, 1030.5, first a.md"]
    assert reply.message.text == "\n".join(rows)
    assert [dict(c.input) for c in reply.message.calls] == [{"path": "a.md", "of": 3}, {"path": "b.md", "of": 3}]


async def test_an_empty_list_says_so_and_makes_no_calls() -> None:
    reply = await lists(r"""
        collect: {files: {match: '^(zzz) (?P<n>\d+)', empty: none}}
        text: '${files} ${files.count} ${files.n.sum} [${files.1}]'
        tools: [{name: read, for_each: files}]
    """)
    assert (reply.message.text, reply.message.calls) == ("none 0 0 []", ())


async def test_lists_look_where_they_are_told() -> None:
    rules = r"""
        rules:
          - collect:
              all: {match: '\w+', join: ' '}
              latest: {match: '\w+', from: latest, join: ' '}
              looks: {match: '\w+', tool: look, join: ' '}
              errors: {match: '\w+', is_error: true, join: ' '}
              red: {match: '\w+', within: red, join: ' ', unique: 0}
              asked: {match: '\w+', from: query}
              plan: {match: '\w+', from: tail}
            text: '${all} | ${latest} | ${looks} | ${errors} | ${red} | ${asked} | ${plan}'
    """
    conversation = [
        user_text("old"), asked("look", "0"), result("old", "0"),
        user_text("go"), asked("look", "1"), result("red red", "1"),
        called(ToolCall("2", "list", {}), ToolCall("3", "list", {})),
        tool_results([ToolResult("2", "blue"), ToolResult("3", "broken", is_error=True)]),
    ]  # fmt: skip
    text = await text_of(rules, conversation, tail=("todo",))
    assert text == "red red blue | blue | red red | broken | red | go | todo"


async def test_a_list_can_be_of_all_results_of_the_conversation() -> None:
    rules = """
        rules:
          - collect:
              all: {match: '\\w+', from: conversation, join: ' '}
              new: {match: '\\w+', join: ' '}
            text: '${all}, ${new}'
    """
    before = [user_text("one"), asked(), result("apple"), assistant([Text("a")])]
    assert await text_of(rules, [*before, user_text("two")]) == "apple, "
    now = [user_text("two"), asked(id="call_2"), result("pear", id="call_2")]
    assert await text_of(rules, [*before, *now]) == "apple pear, pear"


async def test_a_list_can_be_of_the_items_that_contain_a_text() -> None:
    rules = r"""
        rules:
          - when: {user: 'find (?P<what>\S*)'}
            collect: {rows: {match: '^.+$', from: stdin, has: '${what}', join: ' | '}}
            text: '${rows.count} ${rows}'
    """
    block = "\n\n<stdin>\nTea (1.5\nmilk\n\n</stdin>\ntea\n</stdin>"
    assert await text_of(rules, [user_text("find tea" + block)]) == "2 Tea (1.5 | tea"
    assert await text_of(rules, [user_text("find (1.5" + block)]) == "1 Tea (1.5"
    assert await text_of(rules, [user_text("find " + block)]) == "4 Tea (1.5 | milk | </stdin> | tea"
    assert await text_of(rules, [user_text("find tea\n\n<stdin>\ntea")]) == "0 "
    assert await text_of(rules, [user_text("find tea in <stdin>\ntea\n</stdin>")]) == "0 "


async def test_names_tell_of_the_conversation() -> None:
    rules = "rules: [{text: '${file} ${query} ${turn} ${step} ${tool} ${used} ${tail} ${offered}'}]"
    conversation = [user_text("go"), called(ToolCall("1", "look", {}), ToolCall("2", "look", {}))]
    conversation.append(tool_results([ToolResult("1", "a"), ToolResult("2", "b")]))
    text = await text_of(rules, conversation, tail=("t", "u"))
    assert text == "my.yaml go 2 2 look 2 × look t\n\nu "


# ---------------------------------------------------------------------------------------------- replies


async def test_thinking_text_and_calls_make_one_reply() -> None:
    rules = "rules: [{thinking: hm, text: hello, tools: [{name: a}, {name: b, id: given}, {name: c, input: {x: 1}}]}]"
    conversation = [user_text("x"), asked("a", "call_1"), result("r")]
    reply = await answer(model(rules), conversation)
    assert reply.message.blocks == (
        Thinking("hm"),
        Text("hello"),
        ToolCall("call_2", "a", {}),
        ToolCall("given", "b", {}),
        ToolCall("call_3", "c", {"x": 1}),
    )


async def test_generated_ids_keep_clear_of_given_ones_and_are_the_same_each_time() -> None:
    scripted = model("rules: [{tools: [{name: a, id: call_1}, {name: b}]}]")
    for _ in range(2):
        reply = await answer(scripted, [user_text("x")])
        assert [c.id for c in reply.message.calls] == ["call_1", "call_2"]


async def test_replies_that_no_service_should_give_can_be_given() -> None:
    twice = await answer(model("rules: [{tools: [{name: a, id: x}, {name: '', id: x}]}]"), [user_text("x")])
    assert twice.message.calls == (ToolCall("x", "a", {}), ToolCall("x", "", {}))
    empty = await answer(model("rules: [{text: ''}]"), [user_text("x")])
    assert (empty.message.blocks, empty.stop_reason) == ((), "end_turn")
    blank = await answer(model('rules: [{text: " \\n"}]'), [user_text("x")])
    assert blank.message.blocks == (Text(" \n"),)
    cut = await answer(model("rules: [{tools: [{name: a, input: {x: 1}, cut: true}, {name: b}]}]"), [user_text("x")])
    assert cut.message.calls == (ToolCall("call_1", "a", {}), ToolCall("call_2", "b", {}))
    assert (cut.cut_calls, cut.stop_reason) == ({"call_1"}, "max_tokens")


@pytest.mark.parametrize(
    "reason", ["end_turn", "stop_sequence", "max_tokens", "refusal", "model_context_window_exceeded", "pause_turn"]
)
async def test_any_stop_reason_can_be_given(reason: str) -> None:
    reply = await answer(model(f"rules: [{{text: x, stop_reason: {reason}}}]"), [user_text("x")])
    assert reply.stop_reason == reason


async def test_usage_is_estimated_unless_it_is_given() -> None:
    estimate = await answer(model("rules: [{text: '12345'}]"), [user_text("1234")], system="1234", tail=("1234",))
    assert estimate.usage == Usage(input_tokens=3, output_tokens=2)
    given = "rules: [{text: '12345', usage: {input_tokens: 7, cache_read_tokens: 9}}]"
    assert (await answer(model(given), [user_text("1234")])).usage == Usage(7, 2, cache_read_tokens=9)


async def test_max_tokens_cuts_the_reply_as_a_service_would() -> None:
    rules = "rules: [{thinking: '1234', text: '123456789', tools: [{name: a, input: {x: long enough}}, {name: b}]}]"
    whole = await answer(model(rules), [user_text("x")], overrides=Overrides(max_tokens=100))
    assert (whole.stop_reason, len(whole.message.blocks)) == ("tool_use", 4)
    in_text = await answer(model(rules), [user_text("x")], overrides=Overrides(max_tokens=2))
    assert in_text.message.blocks == (Thinking("1234"), Text("1234"))
    assert (in_text.stop_reason, in_text.usage.output_tokens, in_text.cut_calls) == ("max_tokens", 2, set())
    in_call = await answer(model(rules), [user_text("x")], overrides=Overrides(max_tokens=5))
    assert in_call.message.blocks[2:] == (ToolCall("call_1", "a", {}),)
    assert (in_call.stop_reason, in_call.cut_calls) == ("max_tokens", {"call_1"})
    nothing = await answer(model(rules), [user_text("x")], overrides=Overrides(max_tokens=0))
    assert (nothing.stop_reason, nothing.message.blocks) == ("max_tokens", ())


# ---------------------------------------------------------------------------------------------- errors


async def test_an_error_strikes_as_often_as_it_says() -> None:
    scripted = model("rules: [{text: ok, error: {message: busy, retryable: true, retry_after: 2, times: 2}}]")
    for _ in range(2):
        with pytest.raises(ModelError, match="busy") as caught:
            await answer(scripted, [user_text("x")])
        assert (caught.value.retryable, caught.value.retry_after) == (True, 2)
    assert (await answer(scripted, [user_text("x")])).message.text == "ok"


async def test_an_error_without_times_strikes_always_and_is_not_retryable() -> None:
    scripted = model("rules: [{error: {message: no credit}}]")
    for _ in range(3):
        with pytest.raises(ModelError, match="no credit") as caught:
            await answer(scripted, [user_text("x")])
        assert (caught.value.retryable, caught.value.retry_after) == (False, None)


async def test_an_error_in_the_middle_of_a_stream_leaves_what_was_shown() -> None:
    scripted = model("""
        pace: {chunk: 4}
        rules: [{thinking: hm, text: '0123456789', error: {after: 6}}]
    """)
    shown: list[Delta] = []
    with pytest.raises(ModelError):
        await scripted.reply(Request("s", (user_text("x"),)), shown.append)
    assert shown == [Delta("thinking", "hm"), Delta("text", "0123"), Delta("text", "45")]


async def test_parameters_are_refused_only_where_they_are_set() -> None:
    scripted = model("rules: [{text: ok, error: {message: deprecated, refuses: [temperature, effort]}}]")
    with pytest.raises(ParameterRefused, match="deprecated") as caught:
        await answer(scripted, [user_text("x")], overrides=Overrides(max_tokens=5, temperature=0))
    assert caught.value.parameters == ("temperature",)
    assert (await answer(scripted, [user_text("x")], overrides=Overrides(max_tokens=5))).message.text == "ok"


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
        (False, "long", [(1, "abc"), (2, "def"), (3, "ghi"), (4, "jkl")]),
        (True, "long", [(1, "abc"), (2, "def"), (3, "ghi"), (4, "jkl")]),
    ],
)
async def test_text_comes_in_pieces_at_the_pace_of_the_rule_and_of_the_terminal(
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


async def test_a_reply_without_delay_still_lets_others_run() -> None:
    scripted = model("pace: {chunk: 1}\nrules: [{text: abc}]")
    with trio.testing.assert_checkpoints():
        await answer(scripted, [user_text("x")])
    with trio.CancelScope() as scope:
        scope.cancel()
        await answer(scripted, [user_text("x")])
    assert scope.cancelled_caught


async def test_a_cancelled_call_counts_as_a_use_and_the_model_is_usable_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    scripted = model("pace: {chunk: 1, delay_s: 1}\nrules: [{times: 1, text: abc}, {text: next}]")
    with trio.move_on_after(1.5):
        await answer(scripted, [user_text("x")])
    assert (await answer(scripted, [user_text("x")])).message.text == "next"


# ---------------------------------------------------------------------------------------------- files with mistakes


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
        ("rules:\n  - text: x\n    and: work", 3, "for rules with an interruption"),
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
def test_a_mistake_is_told_with_its_line(text: str, line: int, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ScriptedModel.parse(text, "my.yaml")
    assert caught.value.file == "my.yaml"
    assert caught.value.line == line
    assert says in caught.value.message


def test_the_name_is_the_files_or_given(tmp_path: Any) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("rules: [{text: x}]")
    assert ScriptedModel.load(path).name == "mine"
    assert ScriptedModel.parse("name: other\nrules: []", "my.yaml").name == "other"
    with pytest.raises(ConfigError, match="cannot be read"):
        ScriptedModel.load(tmp_path / "none.yaml")


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
async def test_an_expression_that_would_hang_fails_the_call_and_is_named(rules: str, place: str) -> None:
    it = model(rules)
    with pytest.raises(ModelError, match="avoid repeats inside repeats") as failed:
        await answer(it, [user_text("a" * 60 + "!")])
    assert str(failed.value).startswith(f"{place}: used most of the ")
    assert not failed.value.retryable
    assert (await answer(it, [user_text("aa!")])).stop_reason == "end_turn"


async def test_a_request_that_is_too_long_uses_up_no_rule() -> None:
    rules = """
        rules:
          - when: {user: long}
            text: One.
            times: 1
          - text: Another.
        """
    model = OneConversation(ScriptedModel.parse(dedent(rules), context_window=100))
    too_long = await model.reply(Request("s", (user_text("long " * 100),)))
    assert (too_long.stop_reason, too_long.asked_tokens > 100) == (TOO_LONG, True)
    assert (await model.reply(Request("s", (user_text("long"),)))).message.text == "One."
