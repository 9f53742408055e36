"""The double's accounting for the prompt cache, on conversations small enough to reckon by hand."""

from __future__ import annotations

from typing import Any

from double import Account, PromptCache, reuse
from double.cache import LOOKBACK, tokens
from double.flat import canonical
from hypothesis import given
from hypothesis import strategies as st

MARK = {"cache_control": {"type": "ephemeral"}}


def block(text: str, *, mark: bool = False) -> dict[str, Any]:
    return {"type": "text", "text": text, **(MARK if mark else {})}


def size(*blocks: dict[str, Any]) -> int:
    return sum(tokens(len(canonical({k: v for k, v in b.items() if k != "cache_control"}))) for b in blocks)


def body(*blocks: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": list(blocks)}], **fields}


def row(n: int, *, marks: tuple[int, ...] = ()) -> list[dict[str, Any]]:
    return [block(f"number {i}", mark=i in marks) for i in range(n)]


def test_without_breakpoints_nothing_is_cached() -> None:
    cache = PromptCache()
    for repeatable in (0, size(block("a"))):
        assert cache.account(body(block("a"))) == Account(0, 0, size(block("a")), repeatable)


def test_a_breakpoint_writes_what_a_later_one_reads() -> None:
    cache = PromptCache()
    a, b, c = block("a"), block("bb"), block("ccc")
    assert cache.account(body(block("a", mark=True))) == Account(0, size(a), 0, 0)
    assert cache.account(body(a, block("bb", mark=True), c)) == Account(size(a), size(b), size(c), size(a))
    assert cache.account(body(a, block("bb", mark=True), c)) == Account(size(a, b), 0, size(c), size(a, b, c))


def test_the_order_is_tools_system_messages() -> None:
    cache = PromptCache()
    tool = {"name": "t", "input_schema": {"type": "object"}}
    first = cache.account(body(block("q"), system=[block("s", mark=True)], tools=[tool]))
    assert first.cache_write == size(tool) + size(block("s"))
    other_question = cache.account(body(block("r", mark=True), system="s", tools=[tool]))
    assert other_question.cache_read == first.cache_write
    other_tool = cache.account(body(block("q"), system=[block("s", mark=True)], tools=[{**tool, "name": "u"}]))
    assert other_tool.cache_read == other_tool.repeatable == 0


def test_a_change_in_the_middle_ends_what_is_read() -> None:
    cache = PromptCache()
    cache.account(body(*row(5, marks=(1, 4))))
    changed = row(5, marks=(1, 4))
    changed[3] = block("other")
    account = cache.account(body(*changed))
    assert account.cache_read == size(*row(2))
    assert account.repeatable == size(*row(3))


def test_only_what_was_written_can_be_read() -> None:
    cache = PromptCache()
    cache.account(body(*row(10, marks=(9,))))
    account = cache.account(body(*row(5, marks=(4,))))
    assert (account.cache_read, account.repeatable) == (0, size(*row(5)))


def test_a_breakpoint_looks_back_at_twenty_positions() -> None:
    for more, found in ((LOOKBACK - 1, True), (LOOKBACK, False)):
        cache = PromptCache()
        cache.account(body(*row(3, marks=(2,))))
        account = cache.account(body(*row(3 + more, marks=(2 + more,))))
        assert (account.cache_read > 0) is found
        assert account.repeatable == size(*row(3))


def test_another_breakpoint_helps_a_long_way_back() -> None:
    cache = PromptCache()
    cache.account(body(*row(3, marks=(2,))))
    account = cache.account(body(*row(40, marks=(20, 39))))
    assert account.cache_read == size(*row(3))
    assert account.cache_write == size(*row(40)) - size(*row(3))


def test_runs_of_calls_can_count_once() -> None:
    calls = [{"type": "tool_use", "id": f"t{i}", "name": "n", "input": {}} for i in range(30)]
    results = [{"type": "tool_result", "tool_use_id": f"t{i}", "content": "x"} for i in range(30)]
    for once in (False, True):
        cache = PromptCache(runs_count_once=once)
        question = {"role": "user", "content": [block("q", mark=True)]}
        cache.account({"model": "m", "messages": [question]})
        answers = [*results[:-1], {**results[-1], **MARK}]
        account = cache.account(
            {
                "model": "m",
                "messages": [question, {"role": "assistant", "content": calls}, {"role": "user", "content": answers}],
            }
            | {
                "messages": [
                    {"role": "user", "content": "q"},
                    {"role": "assistant", "content": calls},
                    {"role": "user", "content": answers},
                ]
            }
        )
        assert (account.cache_read > 0) is once


def test_automatic_caching_marks_the_last_block_that_can_be_marked() -> None:
    cache = PromptCache()
    assert cache.account(body(*row(3), cache_control={"type": "ephemeral"})).cache_write == size(*row(3))
    assert cache.account(body(*row(4), cache_control={"type": "ephemeral"})).cache_read == size(*row(3))


def test_short_prefixes_may_not_be_cached() -> None:
    short, long = row(1, marks=(0,)), row(50, marks=(0, 49))
    cache = PromptCache(minimum=100)
    assert cache.account(body(*short)).cache_write == 0
    assert cache.account(body(*long)).cache_write == size(*row(50))


def test_caches_belong_to_models_and_thinking_spoils_only_the_messages() -> None:
    cache = PromptCache()
    request = body(block("q", mark=True), system=[block("s", mark=True)])
    cache.account(request)
    assert cache.account({**request, "model": "n"}).cache_read == 0
    account = cache.account({**request, "thinking": {"type": "adaptive"}})
    assert (account.cache_read, account.repeatable) == (size(block("s")), size(block("s"), block("q")))


def test_a_string_is_a_block_and_joined_messages_are_the_same() -> None:
    cache = PromptCache()
    cache.account(body(block("a"), block("b", mark=True)))
    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": [block("b", mark=True)]}]
    assert cache.account({"model": "m", "messages": messages}).cache_read == size(block("a"), block("b"))


def test_reuse_is_one_while_there_is_nothing_to_reuse() -> None:
    assert reuse([Account(0, 5, 5, 0)]) == 1
    assert reuse([Account(0, 5, 5, 0), Account(3, 5, 5, 4)]) == 0.75


def test_a_long_run_with_a_breakpoint_at_the_end_reads_everything_it_can() -> None:
    cache = PromptCache()
    accounts = []
    for n in range(200):
        accounts.append(cache.account(body(*row(1 + 2 * n, marks=(2 * n,)), block(f"tail {n}"))))
    assert reuse(accounts) == 1


@given(st.lists(st.tuples(st.integers(1, 60), st.sets(st.integers(0, 59), max_size=4)), max_size=8))
def test_the_parts_add_up(requests: list[tuple[int, set[int]]]) -> None:
    cache = PromptCache()
    for n, marks in requests:
        account = cache.account(body(*row(n, marks=tuple(marks))))
        assert account.total == size(*row(n))
        assert 0 <= account.cache_read <= account.repeatable <= account.total
        assert account.cache_write >= 0
        assert account.input >= 0
