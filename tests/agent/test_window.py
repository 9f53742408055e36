"""How full a window is, what fills it, and what stubs and summaries leave. Pure."""

from __future__ import annotations

from chain.agent.history import History
from chain.agent.window import (
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

ASKED, REPLY = user_text("x" * 350), assistant([Text("y" * 700)])


def test_a_stub_counts_the_images() -> None:
    pictures = tuple(Image("image/png", f"digest{n}", f"image {n}") for n in range(2))
    result = ToolResult("c1", "short", images=pictures)
    messages = [Message("assistant", (ToolCall("c1", "look", {}),)), Message("user", (result,))]
    assert oldest_results(messages, 1) == ("c1",)
    stubbed = replace_with_stubs(messages, {"c1"})[1]
    assert stubbed.results == (ToolResult("c1", "[look: 5 characters and 2 images removed to make room]"),)
    assert length_of(stubbed) < 100


def test_counted_replies_are_not_estimated() -> None:
    window_usage = WindowUsage()
    window_usage.add(ASKED)
    window_usage.update(Usage(100, 200), 0, 0, is_too_long=False)
    window_usage.add(REPLY)
    assert window_usage.tokens == 300
    window_usage.add(REPLY)
    window_usage.add(ASKED)
    assert window_usage.tokens == 600, "what comes after it is estimated"


def test_the_view_lists_the_largest_parts_first() -> None:
    view = view_of([ASKED, REPLY], WindowUsage(), None, [("tools", 35)])
    assert view.sentence == "replies 200, user's words 100, tools 10"


def test_the_latest_words_that_fit_are_kept() -> None:
    words = UserTexts()
    for words.run, text in ((1, "first"), (2, "second"), (3, "third" * 100)):
        words.add(text)
    kept = "[run 2, task] second\n[run 3, task] " + "third" * 100
    assert words.select_rows(len("[run 2, task] second\n")) == (kept, 1)
    assert words.select_rows(0) == (kept.partition("\n")[2], 2)


def test_the_summary_prompt_names_the_focus() -> None:
    rules = CompactionRules(prompt="Sum up. ${focus}")
    assert rules.prompt_for("") == "Sum up."
    assert rules.prompt_for("the names") == "Sum up. What matters most to the user: the names"


def test_kept_messages_do_not_begin_with_results() -> None:
    call, result = ToolCall("c1", "look", {}), ToolResult("c1", "y" * 50)
    messages = [ASKED, assistant([call]), Message("user", (result,)), assistant([Text("z" * 50)])]
    assert count_latest_fitting(messages, 104) == 1, "the results fit, but not their call"
    assert count_latest_fitting(messages, 106) == 3


def test_answered_texts_survive_a_withdrawal() -> None:
    history = History()
    for text, id in (("the year 2024", ""), ("the forbidden word", "L2")):
        history.append(user_text(text))
        history.words.add(text, line_id=id)
        if not id:
            history.append(REPLY)
    history.withdraw(["L2"])
    assert history.words.select_rows(1_000) == ("[run 0, task] the year 2024", 0)
