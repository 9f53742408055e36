"""The used part of a context window, and the parts of a conversation that a compaction keeps."""

from chain.agent.history import History
from chain.agent.window import (
    FIRST_RATIO,
    CompactionRules,
    UserTexts,
    WindowUsage,
    count_latest_fitting,
    length_of,
    oldest_results,
    replace_with_stubs,
    view_of,
)
from chain.messages import Image, Message, Text, ToolCall, ToolResult, Usage, assistant, user_text


def text_of(tokens: int) -> str:
    """Return a text of as many characters as are estimated to be this many tokens."""
    return "x" * int(tokens * FIRST_RATIO)


QUERY, REPLY = user_text(text_of(tokens=100)), assistant([Text(text_of(tokens=200))])


def test_a_stub_counts_the_images() -> None:
    images = tuple(Image("image/png", f"digest{n}", f"image {n}") for n in range(2))
    result = ToolResult("c1", "short", images=images)
    messages = [Message("assistant", (ToolCall("c1", "look", {}),)), Message("user", (result,))]
    assert oldest_results(messages, chars=1) == ("c1",)
    _, stubbed = replace_with_stubs(messages, {"c1"})
    assert stubbed.results == (ToolResult("c1", "[look: 5 characters and 2 images removed to make room]"),)
    assert length_of(stubbed) < 100, "the stub has no images"


def test_counted_replies_are_not_estimated() -> None:
    window_usage = WindowUsage()
    window_usage.add(QUERY)
    window_usage.update(Usage(input_tokens=100, output_tokens=200), asked_tokens=0, window=0, is_too_long=False)
    window_usage.add(REPLY)
    assert window_usage.tokens == 100 + 200, "as counted by the service"
    window_usage.add(REPLY)
    window_usage.add(QUERY)
    assert window_usage.tokens == 100 + 200 + 200 + 100, "later messages are estimated"


def test_the_view_lists_the_largest_parts_first() -> None:
    overhead = [("tools", len(text_of(tokens=10)))]
    view = view_of([QUERY, REPLY], WindowUsage(), window=None, overhead=overhead)
    assert view.sentence == "replies 200, user's words 100, tools 10"


def test_the_latest_words_that_fit_are_kept() -> None:
    words = UserTexts()
    for run, text in ((1, "first"), (2, "second"), (3, "third" * 100)):
        words.run = run
        words.add(text)
    second, third = "[run 2, task] second\n", "[run 3, task] " + "third" * 100
    assert words.select_rows(len(second)) == (second + third, 1), "the last text is kept in any case"
    assert words.select_rows(0) == (third, 2)


def test_the_summary_prompt_names_the_focus() -> None:
    rules = CompactionRules(prompt="Sum up. ${focus}")
    assert rules.prompt_for("") == "Sum up."
    assert rules.prompt_for("the names") == "Sum up. What matters most to the user: the names"


def test_kept_messages_do_not_begin_with_results() -> None:
    call, result = ToolCall("c1", "look", {}), ToolResult("c1", "y" * 50)
    messages = [QUERY, assistant([call]), Message("user", (result,)), assistant([Text("z" * 50)])]
    call_to_reply = sum(length_of(message) for message in messages if message is not QUERY)
    assert count_latest_fitting(messages, call_to_reply - 1) == 1, "the results fit, but not their call"
    assert count_latest_fitting(messages, call_to_reply) == 3


def test_answered_texts_survive_a_withdrawal() -> None:
    history = History()
    history.append(user_text("the year 2024"))
    history.words.add("the year 2024")
    history.append(REPLY)
    history.append(user_text("the forbidden word"))
    history.words.add("the forbidden word", line_id="L2")
    history.withdraw(["L2"])
    assert history.words.select_rows(1_000) == ("[run 0, task] the year 2024", 0)
