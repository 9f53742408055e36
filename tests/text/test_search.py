"""Regular expressions of users and models are compiled and searched in bounded time."""

from __future__ import annotations

import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.text.search import MAX_EXPANDED, BadPattern, Expressions, SearchBudget, TooSlow, expanded_size

ENDLESS = "^(a|aa)+$"
BAIT = "a" * 60 + "!"
"""A text that a search for ENDLESS would take years to reject."""


LONG = 2_000
"""A limit of characters that all texts here fit in."""


def compiled(text: str) -> Any:
    return Expressions().compile(text)


def test_endless_search_is_ended_in_any_thread() -> None:
    def search() -> None:
        with pytest.raises(TooSlow):
            SearchBudget(0.01).search(compiled(ENDLESS), BAIT, LONG)

    search()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(search).result()


def test_time_of_other_threads_does_not_count() -> None:
    class Pattern:
        """A pattern whose first two searches are ended early, as by the CPU time of another thread."""

        outcomes = iter([TimeoutError, TimeoutError, None])

        def search(self, text: str, start: int, end: int, timeout: float) -> str:
            if error := next(self.outcomes):
                raise error
            return text

    pattern: Any = Pattern()
    assert SearchBudget(60).search(pattern, "abc", LONG) == "abc"


def test_searches_share_their_time() -> None:
    budget, good, slow = SearchBudget(0.01), compiled("b"), compiled(ENDLESS)
    assert budget.search(good, "ab", LONG)
    with pytest.raises(TooSlow):
        budget.find_all(slow, BAIT, LONG)
    for search in (budget.search, budget.fullmatch):
        with pytest.raises(TooSlow):
            search(good, "b", LONG)
    assert budget.slowest is slow


def test_search_is_limited_to_the_first_characters() -> None:
    budget, final_b = SearchBudget(1), compiled("b$")
    assert budget.search(final_b, "aaBaaa", max_chars=3), "the case is ignored"
    assert not budget.search(final_b, "aaaaab", max_chars=3)
    assert [match[0] for match in budget.find_all(compiled("."), "abc", max_chars=2)] == ["a", "b"]
    assert budget.fullmatch(compiled("a+"), "aab", max_chars=2)
    assert not budget.fullmatch(compiled("a+"), "aab", max_chars=3)


def test_multiline_pattern_matches_the_ends_of_rows() -> None:
    assert SearchBudget(1).search(Expressions().compile("^b$", multiline=True), "a\nb\nc", LONG)
    assert not SearchBudget(1).search(compiled("^b$"), "a\nb\nc", LONG)


@pytest.mark.parametrize("text", ["[", "(", "a{2}{3}", "(?P<a>.)(?P<a>", "*", "(" * 5_000])
def test_invalid_expression_is_refused(text: str) -> None:
    with pytest.raises(BadPattern, match="is not a regular expression: "):
        compiled(text)


@pytest.mark.parametrize(
    "text",
    [
        "(?:(?:x?){1000}){1000}",
        "(?:(?:x?){1000}[[:alpha:](]){1000}[[:alpha:])]",
        "((x{99}){99}){99}",
        "x{999999}",
        "(x){99999999999999999999}",
        # With (?x), spaces and comments are ignored, also in a repeat.
        "(?x)(?:(?:x?) {1000}) # a comment (\n {1000}",
        "(?x)((x?){ 2000 }){ 2000 }",
        "(?x)((x?){2 000}){2#}\n000}",
        "(?x)((x?){1 , 2\t000}) {0,20#,1\n00}",
    ],
)
def test_huge_repeats_are_refused_before_compiling(text: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(BadPattern, match="it is too large"):
            compiled(text)
        _, peak = tracemalloc.get_traced_memory()
        assert peak < 1_000_000, "an expanded pattern would need many more bytes"
    finally:
        tracemalloc.stop()


def test_expressions_of_a_file_are_bounded_together() -> None:
    expressions = Expressions()
    text = "(?:x?){99}"
    most = MAX_EXPANDED // expanded_size(text)
    for _ in range(most):
        expressions.compile(text)
    with pytest.raises(BadPattern, match="with those before it in its file"):
        expressions.compile(text)


@pytest.mark.parametrize(
    "text", [r"\d{4}-\d{2}-\d{2}", r"(\d{1,3}\.){3}\d{1,3}", "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"]
)
def test_usual_repeats_are_small(text: str) -> None:
    assert expanded_size(text) < 300, "hundreds of these fit in a file"


@given(st.text(st.sampled_from("ab(){}[]|?*+12,\\ #^"), max_size=30))
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    try:
        pattern = compiled(text)
    except BadPattern:
        return
    SearchBudget(1).search(pattern, "abba", LONG)
