"""The history: what may come next, what is refused, and that nothing the Messages API would refuse is ever in it."""

import time
from typing import Any

import pytest
from double import check_messages
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


def asking(*ids: str) -> Message:
    """A reply that asks for these tools."""
    return reply(*(ToolCall(id, "shell", {}) for id in ids))


def answering(*ids: str) -> Message:
    return tool_results(ToolResult(id, "ok") for id in ids)


HELLO = user_text("hello")
HI = reply(Text("hi"))

STARTS: dict[str, list[Message]] = {
    "EMPTY": [],
    "ASKED": [HELLO],
    "OPEN": [HELLO, asking("t1", "t2")],
    "REPLIED": [HELLO, HI],
}

STEPS: dict[str, Message] = {
    "user text": user_text("more"),
    "reply": reply(Text("done")),
    "reply with calls": asking("t8", "t9"),
    "tool results": answering("t1", "t2"),
}

ALLOWED = {
    ("EMPTY", "user text"): "ASKED",
    ("ASKED", "user text"): "ASKED",
    ("ASKED", "reply"): "REPLIED",
    ("ASKED", "reply with calls"): "OPEN",
    ("OPEN", "tool results"): "ASKED",
    ("REPLIED", "user text"): "ASKED",
}

# ------------------------------------------------------------------------------------------------------- the table


@pytest.mark.parametrize(("start", "step", "end"), [(*row, end) for row, end in ALLOWED.items()])
def test_allowed_messages_are_appended(start: str, step: str, end: str) -> None:
    conversation = Conversation(STARTS[start])
    assert conversation.state == start

    conversation.append(STEPS[step])

    assert conversation.state == end
    assert list(conversation.messages) == [*STARTS[start], STEPS[step]]


@pytest.mark.parametrize(
    ("start", "step"), [(start, step) for start in STARTS for step in STEPS if (start, step) not in ALLOWED]
)
def test_other_messages_are_refused(start: str, step: str) -> None:
    conversation = Conversation(STARTS[start])

    with pytest.raises(ConversationError, match=f"{step} cannot follow in state {start}"):
        conversation.append(STEPS[step])

    assert conversation.state == start
    assert list(conversation.messages) == STARTS[start]


@pytest.mark.parametrize("start", STARTS)
def test_a_request_needs_something_to_answer(start: str) -> None:
    conversation = Conversation(STARTS[start])

    if start == "ASKED":
        assert conversation.request() == (HELLO,)
    else:
        with pytest.raises(ConversationError, match=f"no request .* state {start}"):
            conversation.request()


def test_check_changes_nothing() -> None:
    conversation = Conversation([HELLO])

    assert conversation.check(asking("t1")) == "OPEN"

    assert conversation.state == "ASKED"
    assert conversation.open_calls == ()
    assert conversation.check(asking("t1")) == "OPEN", "the id is still free"


def test_an_invalid_history_is_refused() -> None:
    with pytest.raises(ConversationError):
        Conversation([HELLO, asking("t1"), user_text("hello?")])


# --------------------------------------------------------------------------------------------------- single messages

CALL, RESULT = ToolCall("t1", "shell", {}), ToolResult("t1", "ok")
ONE_OPEN = [HELLO, reply(CALL)]

MISFITS = {
    **{
        f"results {ids}": (STARTS["OPEN"], answering(*ids.split()), "not those of the open tool calls")
        for ids in ("t1", "t2", "t2 t1", "t1 t1", "t1 t2 t2", "t1 t2 t3", "t1 t3")
    },
    "an id used before": ([*ONE_OPEN, answering("t1")], asking("t2", "t1"), "'t1' was used before"),
    "an id used twice": ([HELLO], asking("t1", "t1"), "'t1' was used before"),
    "a call without an id": ([HELLO], reply(ToolCall("", "shell", {})), "an id and a name"),
    "a call without a name": ([HELLO], reply(ToolCall("t1", "", {})), "an id and a name"),
    **{f"a query {text!r}": ([], user_text(text), "blank") for text in ("", " ", "\n\t", "\u00a0\u2003")},
    "a blank reply": ([HELLO], reply(Text(" ")), "blank"),
    "a reply with a blank text": ([HELLO], reply(Text("Let me see."), Text(""), CALL), "blank"),
    "a query without content": ([], Message("user", ()), "needs content"),
    "a reply without content": ([HELLO], Message("assistant", ()), "needs content"),
    "a call of the user": ([HELLO], Message("user", (CALL,)), "may not hold a tool call"),
    "a result of the model": ([HELLO], reply(RESULT), "may not hold a tool result"),
    "text after results": (ONE_OPEN, Message("user", (RESULT, Text("stop"))), "a message of its own"),
    "text before results": (ONE_OPEN, Message("user", (Text("stop"), RESULT)), "a message of its own"),
    "an image before results": (ONE_OPEN, Message("user", (Opaque({"type": "image", "source": {}}), RESULT)), "."),
    # Keys that we do not know get no block around the rules.
    **{
        f"an opaque {raw['type']}": ([HELLO], reply(Text("hi"), block_from_json(raw)), ".")
        for raw in (
            {"type": "tool_use", "id": "t1", "name": "shell", "input": {}, "caller": {"type": "direct"}},
            {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "x"}]},
            {"type": "text", "text": " ", "citations": []},
        )
    },
}


@pytest.mark.parametrize(("before", "message", "match"), MISFITS.values(), ids=MISFITS)
def test_messages_that_the_service_would_reject(before: list[Message], message: Message, match: str) -> None:
    conversation = Conversation(before)
    state, calls = conversation.state, conversation.open_calls

    with pytest.raises(ConversationError, match=match):
        conversation.append(message)

    assert list(conversation.messages) == before
    assert (conversation.state, conversation.open_calls) == (state, calls)


def test_ten_thousand_calls_are_fast() -> None:
    ids = [f"t{n}" for n in range(10_000)]
    begun = time.process_time()
    Conversation([HELLO]).append(CallIds().claim(asking(*ids)))
    assert time.process_time() - begun < 1  # a quadratic check took five seconds


# ------------------------------------------------------------------------------------------------ repair, withdrawal


def test_repair_tells_started_from_skipped_calls() -> None:
    conversation = Conversation([HELLO, asking("t1", "t2", "t3")])

    stubs = conversation.stub_results(started=["t2", "t9"])

    assert stubs == (
        ToolResult("t1", "[Skipped: user interrupted]", is_error=True),
        ToolResult("t2", "[Interrupted: stopped while running, it may have had effects]", is_error=True),
        ToolResult("t3", "[Skipped: user interrupted]", is_error=True),
    )
    assert conversation.state == "OPEN", "repairing says what to append; it appends nothing"
    conversation.append(tool_results(stubs))
    assert check_messages([to_json(m) for m in conversation.request()]) is None


MORE = user_text("more")


@pytest.mark.parametrize(
    ("kept", "taken"),
    [
        ([], []),
        ([], [HELLO]),
        ([], [HELLO, MORE]),
        ([], [HELLO, asking("t1")]),
        ([], [HELLO, asking("t1"), answering("t1")]),
        ([HELLO, HI], []),
        ([HELLO, HI], [MORE]),
        ([HELLO, HI], [MORE, asking("t1"), answering("t1"), asking("t2"), answering("t2"), HELLO]),
        ([HELLO, asking("t0"), answering("t0"), HI], [MORE, asking("t1")]),
    ],
)
def test_withdraw_removes_messages_since_the_last_answer(kept: list[Message], taken: list[Message]) -> None:
    conversation = Conversation([*kept, *taken])

    assert conversation.withdraw() == tuple(taken)

    assert list(conversation.messages) == kept
    assert conversation.state == ("REPLIED" if kept else "EMPTY")
    assert conversation.open_calls == ()


@pytest.mark.parametrize("kept", [[], [HI]])
def test_withdraw_keeps_a_summary(kept: list[Message]) -> None:
    conversation = Conversation([HELLO, HI, MORE])
    conversation.reset_to([user_text("a summary"), *kept, MORE, asking("t1")], is_summarized=True)

    assert conversation.withdraw(first=user_text("a shorter one")) == (MORE, asking("t1"))

    assert list(conversation.messages) == [user_text("a shorter one"), *kept]
    assert conversation.state == ("REPLIED" if kept else "ASKED")


def test_withdrawn_ids_are_free_again() -> None:
    conversation = Conversation([HELLO, asking("t0"), answering("t0"), HI, MORE, asking("t1")])
    conversation.withdraw()
    conversation.append(user_text("put differently"))

    with pytest.raises(ConversationError, match="'t0'"):
        conversation.append(asking("t0"))

    conversation.append(asking("t1"))
    assert conversation.state == "OPEN"


# ------------------------------------------------------------------------------------------ whatever happens (I2, I7)


ids = st.sampled_from(["t1", "t2", "t3", "t4", ""])
texts = st.sampled_from(["hello", "", " \n"])
strange: list[dict[str, Any]] = [
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
    st.sampled_from(strange).map(block_from_json),
)
any_message = st.builds(Message, st.sampled_from(["user", "assistant"]), st.lists(blocks, max_size=3).map(tuple))


class AnyConversation(RuleBasedStateMachine):
    """Messages of every kind, good and bad, against a plain list of those that were taken."""

    def __init__(self) -> None:
        super().__init__()
        self.conversation = Conversation()
        self.taken: list[Message] = []

    def offer(self, message: Message) -> bool:
        try:
            self.conversation.append(message)
        except ConversationError:
            return False
        self.taken.append(message)
        return True

    @rule(message=any_message)
    def offer_anything(self, message: Message) -> None:
        self.offer(message)

    @rule(text=texts)
    def say(self, text: str) -> None:
        is_open = bool(self.conversation.open_calls)

        assert self.offer(user_text(text)) == (bool(text.strip()) and not is_open)

    @rule(chosen=st.lists(st.integers(0, 30).map(str), min_size=1, max_size=3, unique=True))
    def ask_for_tools(self, chosen: list[str]) -> None:
        used = {call.id for m in self.taken for call in m.calls}
        asked = bool(self.taken) and self.taken[-1].role == "user"

        assert self.offer(asking(*chosen)) == (asked and used.isdisjoint(chosen))

    @rule(data=st.lists(blocks, max_size=3))
    def answer(self, data: list[Block]) -> None:
        self.offer(assistant(data))

    @precondition(lambda self: self.conversation.open_calls)
    @rule(started=st.sets(ids))
    def stub_results(self, started: set[str]) -> None:
        stubs = self.conversation.stub_results(started)

        assert {s.id for s in stubs if s.text == INTERRUPTED} | {s.id for s in stubs if s.text == SKIPPED} == {
            c.id for c in self.conversation.open_calls
        }
        assert self.offer(tool_results(stubs))

    @rule()
    def withdraw(self) -> None:
        back = self.conversation.withdraw()

        kept = self.taken[: len(self.taken) - len(back)]
        assert list(back) == self.taken[len(kept) :]
        assert not any(m.role == "assistant" and not m.calls for m in back)
        assert not kept or (kept[-1].role == "assistant" and not kept[-1].calls)
        self.taken = kept

    @invariant()
    def nothing_is_changed_but_by_appending(self) -> None:
        assert list(self.conversation.messages) == self.taken

    @invariant()
    def a_request_is_one_that_the_service_takes(self) -> None:
        try:
            request = self.conversation.request()
        except ConversationError:
            assert not self.taken or self.taken[-1].role == "assistant"
        else:
            assert check_messages([to_json(m) for m in request]) is None
            assert list(request) == self.taken


TestAnyConversation = AnyConversation.TestCase
