"""The conversation: which messages may follow, and that it never has one that the Messages API would refuse."""

import time
from typing import Any

import pytest
from double import check_messages  # the test double of the Messages API
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from chain.agent.conversation import CallIds, Conversation
from chain.errors import ConversationError
from chain.messages import (
    Block,
    Message,
    Opaque,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    assistant,
    block_from_json,
    to_json,
    tool_results,
    user_text,
)
from chain.text.wording import INTERRUPTED, SKIPPED


def reply(*blocks: Block) -> Message:
    return Message("assistant", blocks)


def calls(*ids: str) -> Message:
    """Return a reply with tool calls."""
    return reply(*(ToolCall(id, "shell", {}) for id in ids))


def results(*ids: str) -> Message:
    return tool_results(ToolResult(id, "ok") for id in ids)


HELLO, HI, MORE = user_text("hello"), reply(Text("hi")), user_text("more")

CONVERSATIONS: dict[str, list[Message]] = {
    "EMPTY": [],
    "ASKED": [HELLO],
    "OPEN": [HELLO, calls("t1", "t2")],
    "REPLIED": [HELLO, HI],
}
"""A conversation in each state."""

NEXT_MESSAGES: dict[str, Message] = {
    "user text": MORE,
    "reply": reply(Text("done")),
    "reply with calls": calls("t8", "t9"),
    "tool results": results("t1", "t2"),
}

ALLOWED = {
    ("EMPTY", "user text"): "ASKED",
    ("ASKED", "user text"): "ASKED",
    ("ASKED", "reply"): "REPLIED",
    ("ASKED", "reply with calls"): "OPEN",
    ("OPEN", "tool results"): "ASKED",
    ("REPLIED", "user text"): "ASKED",
}


@pytest.mark.parametrize(("state", "message", "next_state"), [(*row, end) for row, end in ALLOWED.items()])
def test_allowed_messages_are_appended(state: str, message: str, next_state: str) -> None:
    conversation = Conversation(CONVERSATIONS[state])
    assert conversation.state == state
    conversation.append(NEXT_MESSAGES[message])
    assert conversation.state == next_state
    assert list(conversation.messages) == [*CONVERSATIONS[state], NEXT_MESSAGES[message]]


@pytest.mark.parametrize(
    ("state", "message"),
    [(state, message) for state in CONVERSATIONS for message in NEXT_MESSAGES if (state, message) not in ALLOWED],
)
def test_other_messages_are_refused(state: str, message: str) -> None:
    conversation = Conversation(CONVERSATIONS[state])
    with pytest.raises(ConversationError, match=f"{message} cannot follow in state {state}"):
        conversation.append(NEXT_MESSAGES[message])
    assert conversation.state == state
    assert list(conversation.messages) == CONVERSATIONS[state]


def test_a_request_needs_something_to_answer() -> None:
    assert Conversation(CONVERSATIONS["ASKED"]).request() == (HELLO,)
    for state in ("EMPTY", "OPEN", "REPLIED"):
        with pytest.raises(ConversationError, match=f"no request .* state {state}"):
            Conversation(CONVERSATIONS[state]).request()


def test_check_changes_nothing() -> None:
    conversation = Conversation([HELLO])
    assert conversation.check(calls("t1")) == "OPEN"
    assert conversation.state == "ASKED"
    assert conversation.open_calls == ()
    assert conversation.check(calls("t1")) == "OPEN", "the id is still free"


def test_an_invalid_history_is_refused() -> None:
    with pytest.raises(ConversationError):
        Conversation([HELLO, calls("t1"), user_text("hello?")])


CALL, RESULT = ToolCall("t1", "shell", {}), ToolResult("t1", "ok")
ONE_OPEN = [HELLO, reply(CALL)]

ANY = "."
"""A pattern for any message of an error."""

INVALID_MESSAGES = {
    **{
        f"results {ids}": (CONVERSATIONS["OPEN"], results(*ids.split()), "not those of the open tool calls")
        for ids in ("t1", "t2", "t2 t1", "t1 t1", "t1 t2 t2", "t1 t2 t3", "t1 t3")
    },
    "an id used before": ([*ONE_OPEN, results("t1")], calls("t2", "t1"), "'t1' was used before"),
    "an id used twice": ([HELLO], calls("t1", "t1"), "'t1' was used before"),
    "a call without an id": ([HELLO], reply(ToolCall("", "shell", {})), "an id and a name"),
    "a call without a name": ([HELLO], reply(ToolCall("t1", "", {})), "an id and a name"),
    **{f"a query {text!r}": ([], user_text(text), "blank") for text in ("", " ", "\n\t", "\u00a0\u2003")},
    "a blank reply": ([HELLO], reply(Text(" ")), "blank"),
    "a reply with a blank text": ([HELLO], reply(Text("Let me see."), Text(""), CALL), "blank"),
    "a query without content": ([], Message("user", ()), "needs content"),
    "a reply without content": ([HELLO], Message("assistant", ()), "needs content"),
    "a call of the user": ([HELLO], Message("user", (CALL,)), "may not contain a tool call"),
    "a result of the model": ([HELLO], reply(RESULT), "may not contain a tool result"),
    "text after results": (ONE_OPEN, Message("user", (RESULT, Text("stop"))), "a message of its own"),
    "text before results": (ONE_OPEN, Message("user", (Text("stop"), RESULT)), "a message of its own"),
    "an image before results": (ONE_OPEN, Message("user", (Opaque({"type": "image", "source": {}}), RESULT)), ANY),
    # The rules also apply to blocks with unknown keys.
    **{
        f"an opaque {raw['type']}": ([HELLO], reply(Text("hi"), block_from_json(raw)), ANY)
        for raw in (
            {"type": "tool_use", "id": "t1", "name": "shell", "input": {}, "caller": {"type": "direct"}},
            {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "x"}]},
            {"type": "text", "text": " ", "citations": []},
        )
    },
}


@pytest.mark.parametrize(("before", "message", "match"), INVALID_MESSAGES.values(), ids=INVALID_MESSAGES)
def test_messages_that_the_service_would_reject(before: list[Message], message: Message, match: str) -> None:
    conversation = Conversation(before)
    state, open_calls = conversation.state, conversation.open_calls
    with pytest.raises(ConversationError, match=match):
        conversation.append(message)
    assert list(conversation.messages) == before
    assert (conversation.state, conversation.open_calls) == (state, open_calls)


def test_ten_thousand_calls_are_fast() -> None:
    ids = [f"t{n}" for n in range(10_000)]
    started_at = time.process_time()
    Conversation([HELLO]).append(CallIds().claim(calls(*ids)))  # as a run does: claim the ids, then append
    assert time.process_time() - started_at < 1  # a quadratic check took five seconds


def test_stubs_name_started_and_skipped_calls() -> None:
    conversation = Conversation([HELLO, calls("t1", "t2", "t3")])

    stubs = conversation.stub_results(started=["t2", "t9"])  # there is no call t9

    assert stubs == (
        ToolResult("t1", "[Skipped: user interrupted]", is_error=True),
        ToolResult("t2", "[Interrupted: stopped while running, it may have had effects]", is_error=True),
        ToolResult("t3", "[Skipped: user interrupted]", is_error=True),
    )
    assert conversation.state == "OPEN", "the stubs are not appended"
    conversation.append(tool_results(stubs))
    assert check_messages([to_json(m) for m in conversation.request()]) is None


ANSWERED = [HELLO, calls("t0"), results("t0"), HI]
WITHDRAWALS = {
    # The messages that are kept, and those that are withdrawn.
    "an empty conversation": ([], []),
    "only a query": ([], [HELLO]),
    "two messages of the user": ([], [HELLO, MORE]),
    "open calls": ([], [HELLO, calls("t1")]),
    "results": ([], [HELLO, calls("t1"), results("t1")]),
    "nothing after an answer": (ANSWERED, []),
    "a query after an answer": (ANSWERED, [MORE]),
    "open calls after an answer": (ANSWERED, [MORE, calls("t1")]),
    "several calls after an answer": (ANSWERED, [MORE, calls("t1"), results("t1"), calls("t2"), results("t2"), HELLO]),
}


@pytest.mark.parametrize(("kept", "withdrawn"), WITHDRAWALS.values(), ids=WITHDRAWALS)
def test_withdraw_removes_messages_since_the_last_answer(kept: list[Message], withdrawn: list[Message]) -> None:
    conversation = Conversation([*kept, *withdrawn])
    assert conversation.withdraw() == tuple(withdrawn)
    assert list(conversation.messages) == kept
    assert conversation.state == ("REPLIED" if kept else "EMPTY")
    assert conversation.open_calls == ()


@pytest.mark.parametrize(("kept", "state"), [([], "ASKED"), ([HI], "REPLIED")], ids=["alone", "with an answer"])
def test_withdraw_keeps_a_summary(kept: list[Message], state: str) -> None:
    """The summary at the start, and a last answer ``kept`` after it, stay. ``first`` replaces the summary."""
    conversation = Conversation([HELLO, HI, MORE])
    conversation.reset_to([user_text("a summary"), *kept, MORE, calls("t1")], is_summarized=True)
    assert conversation.withdraw(first=user_text("a shorter one")) == (MORE, calls("t1"))
    assert list(conversation.messages) == [user_text("a shorter one"), *kept]
    assert conversation.state == state


def test_withdrawn_ids_are_free_again() -> None:
    conversation = Conversation([*ANSWERED, MORE, calls("t1")])
    conversation.withdraw()
    conversation.append(user_text("put differently"))
    with pytest.raises(ConversationError, match="'t0'"):
        conversation.append(calls("t0"))
    conversation.append(calls("t1"))
    assert conversation.state == "OPEN"


ids = st.sampled_from(["t1", "t2", "t3", "t4", ""])
texts = st.sampled_from(["hello", "", " \n"])
unknown_blocks: list[dict[str, Any]] = [
    {"type": "redacted_thinking", "data": "x"},
    {"type": "image", "source": {}},
    {"type": "text", "text": "hello", "citations": []},
    {"type": "text", "text": "", "citations": []},
    {"type": "tool_use", "id": "t5", "name": "shell", "input": {}, "caller": {}},
    {"type": "tool_result", "tool_use_id": "t1", "content": []},
]
blocks = st.one_of(
    st.builds(Text, texts),
    st.builds(Thinking, texts),
    st.builds(ToolCall, ids, st.sampled_from(["shell", ""]), st.just({})),
    st.builds(ToolResult, ids, texts),
    st.sampled_from(unknown_blocks).map(block_from_json),
)
any_message = st.builds(Message, st.sampled_from(["user", "assistant"]), st.lists(blocks, max_size=3).map(tuple))


def is_answer(message: Message) -> bool:
    return message.role == "assistant" and not message.calls


def last_role(messages: list[Message]) -> str | None:
    """Return the role of the last message, or ``None`` if there is no message."""
    return messages[-1].role if messages else None


class AnyConversation(RuleBasedStateMachine):
    """Valid and invalid messages, appended to a conversation and to a list of those that it accepted."""

    def __init__(self) -> None:
        super().__init__()
        self.conversation = Conversation()
        self.accepted: list[Message] = []

    def append(self, message: Message) -> bool:
        """Return whether the message was accepted."""
        try:
            self.conversation.append(message)
        except ConversationError:
            return False
        self.accepted.append(message)
        return True

    @rule(message=any_message)
    def append_any_message(self, message: Message) -> None:
        self.append(message)

    @rule(text=texts)
    def append_user_text(self, text: str) -> None:
        is_open = bool(self.conversation.open_calls)

        assert self.append(user_text(text)) == (bool(text.strip()) and not is_open)

    @rule(new_ids=st.lists(st.integers(0, 30).map(str), min_size=1, max_size=3, unique=True))
    def append_calls(self, new_ids: list[str]) -> None:
        used_ids = {call.id for m in self.accepted for call in m.calls}
        is_asked = last_role(self.accepted) == "user"

        assert self.append(calls(*new_ids)) == (is_asked and used_ids.isdisjoint(new_ids))

    @rule(data=st.lists(blocks, max_size=3))
    def append_reply(self, data: list[Block]) -> None:
        self.append(assistant(data))

    @precondition(lambda self: self.conversation.open_calls)
    @rule(started=st.sets(ids))
    def append_stubs(self, started: set[str]) -> None:
        stubs = self.conversation.stub_results(started)

        assert [stub.id for stub in stubs] == [call.id for call in self.conversation.open_calls]
        assert all(stub.text == (INTERRUPTED if stub.id in started else SKIPPED) for stub in stubs)
        assert self.append(tool_results(stubs))

    @rule()
    def withdraw(self) -> None:
        withdrawn = list(self.conversation.withdraw())

        kept = list(self.conversation.messages)
        assert kept + withdrawn == self.accepted
        assert not any(map(is_answer, withdrawn))
        assert not kept or is_answer(kept[-1])
        self.accepted = kept

    @invariant()
    def nothing_is_changed_but_by_appending(self) -> None:
        assert list(self.conversation.messages) == self.accepted

    @invariant()
    def a_request_is_accepted_by_the_service(self) -> None:
        try:
            request = self.conversation.request()
        except ConversationError:
            assert last_role(self.accepted) in (None, "assistant")
        else:
            assert check_messages([to_json(m) for m in request]) is None
            assert list(request) == self.accepted


TestAnyConversation = AnyConversation.TestCase
