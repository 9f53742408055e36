"""How lines change what a research visits, without a research."""

import hypothesis.strategies as st
import pytest
from support import sharded

from chain.lines.parse import Adjustment, AdjustmentType, parse_line
from chain.tools.research.plan import (
    MAX_NAME,
    ResearchPlan,
    is_named,
    may_be_host,
    normalize_name,
    source_name,
)

FIVE = ["docs", "src/wire.py", "tests/tools", "https://www.example.org/docs", "notes.md"]


def after(*lines: str) -> ResearchPlan:
    """A plan for five sources, after these lines."""
    plan = ResearchPlan.of("wires", FIVE)
    steer(plan, *lines)
    return plan


def steer(plan: ResearchPlan, *lines: str) -> None:
    for line in lines:
        adjustment = parse_line(line).adjustment
        assert adjustment is not None
        plan.steer(adjustment)


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ("the tests folder.", "tests"),
        ("`src/wire.py`", "src/wire.py"),
        ("https://example.org/page.", "https://example.org/page"),
        ("<https://example.org>", "https://example.org"),
        ("in the docs directory too", "docs"),
        ("the", "the"),
        ("page", "page"),
        ("  a   b ", "a b"),
        ('in the "docs" folder, please.', "docs"),
        ("a" + "' page" * 20_000 + "b", ("a" + "' page" * 20_000)[: MAX_NAME + 1]),
    ],
)
def test_what_a_line_names(said: str, named: str) -> None:
    assert source_name(said) == named


@pytest.mark.parametrize(
    ("given", "name"),
    [("./docs/", "docs"), ("docs", "docs"), (".", "."), ("./", "."), ("", ""), ("/", "/"), ("http://x/", "http://x/")],
)
def test_a_name_has_one_form(given: str, name: str) -> None:
    assert normalize_name(given) == name


@pytest.mark.parametrize(
    ("wanted", "left"),
    [
        ("docs", ["src/wire.py", "tests/tools", "notes.md"]),
        ("the DOCS folder", ["src/wire.py", "tests/tools", "notes.md"]),
        ("tools", ["docs", "src/wire.py", "https://www.example.org/docs", "notes.md"]),
        ("example.org", ["docs", "src/wire.py", "tests/tools", "notes.md"]),
        ("notes", ["docs", "src/wire.py", "tests/tools", "https://www.example.org/docs"]),
        ("doc", FIVE),
        ("the rest", []),
    ],
)
def test_skip(wanted: str, left: list[str]) -> None:
    plan = after(f"skip {wanted}")
    assert plan.waiting == left
    assert set(plan.skipped) == set(FIVE) - set(left)
    assert ("no remaining source" in plan.notes[0]) == (len(left) == 5)


def test_also_check_adds_once_and_marks_it_as_the_users() -> None:
    plan = after("also check the lib folder", "also check lib", "also check docs")
    assert plan.waiting == [*FIVE, "lib"]
    assert plan.by_user == {"docs", "lib"}
    plan.visited.append(plan.waiting.pop(0))
    steer(plan, "also check docs")
    assert "docs" not in plan.waiting


def test_the_last_word_counts() -> None:
    plan = after("skip docs", "also check docs", "focus on the wire", "focus on the pole.")
    assert "docs" in plan.waiting
    assert "docs" not in plan.skipped
    assert plan.focus == "the pole"


def test_prefer_moves_sources_to_the_front_and_keeps_what_comes_first() -> None:
    plan = after("prefer the tests", "prefer notes")
    assert plan.waiting[:2] == ["notes.md", "tests/tools"]
    assert plan.preferred == ["tests", "notes"]


def test_ignore_and_focus_are_noted() -> None:
    plan = after("ignore the drafts", 'ignore "old notes".', "focus on the wire")
    assert plan.ignored == ["drafts", "old notes"]
    assert plan.notes == ["ignore: drafts", "ignore: old notes", "focus: the wire"]


def test_a_line_that_says_nothing_changes_nothing() -> None:
    plan = after()
    plan.steer(Adjustment("skip_source", " . "))
    assert plan == after()


def test_words_of_a_name_are_whole_words() -> None:
    assert is_named("src/test_wire.py", "test_wire")
    assert not is_named("src/test_wire.py", "wire")
    assert not is_named("a+b", "a+b+")


@pytest.mark.parametrize("name", ["example.org", "example.org/a/b?c", "localhost:8000", "a.b.example.org:80/"])
def test_what_may_be_a_host(name: str) -> None:
    assert may_be_host(name)


@pytest.mark.parametrize("name", ["docs", "docs/a.b", "a b.org", ".git", "..", "1.2"])
def test_what_is_no_host(name: str) -> None:
    assert not may_be_host(name)


KINDS: list[AdjustmentType] = ["focus_query", "skip_source", "add_source", "drop_criterion", "preference"]
STEP = st.one_of(
    st.just(None),
    st.builds(Adjustment, st.sampled_from(KINDS), st.sampled_from(["a", "b", "the c folder.", "d", "x", "rest", " "])),
)


@sharded(400, st.lists(STEP, max_size=12), st.booleans(), shards=2)
def test_no_source_is_lost_or_visited_twice(steps: list[Adjustment | None], is_refused: bool) -> None:
    plan = ResearchPlan.of("t", ["a", "b", "c", "a/"])
    named = {"a", "b", "c"}
    for step in steps:
        if step is not None:
            plan.steer(step)
            named |= set(plan.waiting)
        elif plan.waiting:
            (plan.skipped if is_refused else plan.visited).append(plan.waiting.pop(0))
        assert sorted([*plan.waiting, *plan.visited, *plan.skipped]) == sorted(named), "each is in one place"
    assert plan.counts == f"[{len(plan.visited)} visited, {len(named) - len(plan.visited)} skipped]"
