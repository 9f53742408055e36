"""How lines change what a research visits, without a research."""

import hypothesis.strategies as st
import pytest
from support import sharded

from chain.lines.parse import Adjustment, AdjustmentType, parse_line
from chain.tools.research.course import (
    Course,
    begin,
    cleaned,
    is_like_host,
    is_named,
    passed_over,
    steered,
    tidied,
    visiting,
)


def after(course: Course, *lines: str) -> Course:
    for line in lines:
        adjustment = parse_line(line).adjustment
        assert adjustment is not None
        course = steered(course, adjustment)
    return course


def names(course: Course) -> list[str]:
    return [source.name for source in course.waiting]


FIVE = begin("wires", ["docs", "src/wire.py", "tests/tools", "https://www.example.org/docs", "notes.md"])


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
    ],
)
def test_what_a_line_names(said: str, named: str) -> None:
    assert cleaned(said) == named


@pytest.mark.parametrize(
    ("given", "name"),
    [("./docs/", "docs"), ("docs", "docs"), (".", "."), ("./", "."), ("", ""), ("/", "/"), ("http://x/", "http://x/")],
)
def test_a_name_has_one_form(given: str, name: str) -> None:
    assert tidied(given) == name


@pytest.mark.parametrize(
    ("wanted", "left"),
    [
        ("docs", ["src/wire.py", "tests/tools", "notes.md"]),
        ("the DOCS folder", ["src/wire.py", "tests/tools", "notes.md"]),
        ("tools", ["docs", "src/wire.py", "https://www.example.org/docs", "notes.md"]),
        ("example.org", ["docs", "src/wire.py", "tests/tools", "notes.md"]),
        ("notes", ["docs", "src/wire.py", "tests/tools", "https://www.example.org/docs"]),
        ("doc", names(FIVE)),
        ("the rest", []),
    ],
)
def test_skip(wanted: str, left: list[str]) -> None:
    course = after(FIVE, f"skip {wanted}")
    assert names(course) == left
    assert set(course.skipped) == set(names(FIVE)) - set(left)
    assert ("no source" in course.notes[0]) == (len(left) == 5)


def test_also_check_adds_once_and_marks_it_as_the_users() -> None:
    course = after(FIVE, "also check the lib folder", "also check lib", "also check docs")
    assert names(course) == [*names(FIVE), "lib"]
    assert [s.name for s in course.waiting if s.by_user] == ["docs", "lib"]
    course = visiting(course)
    assert "docs" not in names(after(course, "also check docs"))


def test_the_last_word_counts() -> None:
    course = after(FIVE, "skip docs", "also check docs")
    assert "docs" in names(course)
    assert "docs" not in course.skipped
    assert after(FIVE, "focus on the wire", "focus on the pole.").sought == "the pole"


def test_prefer_moves_sources_to_the_front_and_keeps_what_comes_first() -> None:
    course = after(FIVE, "prefer the tests", "prefer notes")
    assert names(course)[:2] == ["notes.md", "tests/tools"]
    assert course.preferred == ("tests", "notes")


def test_ignore_and_focus_are_noted() -> None:
    course = after(FIVE, "ignore the drafts", "focus on the wire")
    assert course.ignored == ("drafts",)
    assert course.notes == ("ignore: drafts", "focus: the wire")


def test_a_line_that_says_nothing_changes_nothing() -> None:
    assert steered(FIVE, Adjustment("skip_source", " . ")) == FIVE


def test_words_of_a_name_are_whole_words() -> None:
    assert is_named("src/test_wire.py", "test_wire")
    assert not is_named("src/test_wire.py", "wire")
    assert not is_named("a+b", "a+b+")


@pytest.mark.parametrize("name", ["example.org", "example.org/a/b?c", "localhost:8000", "a.b.example.org:80/"])
def test_what_may_be_a_host(name: str) -> None:
    assert is_like_host(name)


@pytest.mark.parametrize("name", ["docs", "docs/a.b", "a b.org", ".git", "..", "1.2"])
def test_what_is_no_host(name: str) -> None:
    assert not is_like_host(name)


KINDS: list[AdjustmentType] = ["focus_query", "skip_source", "add_source", "drop_criterion", "preference"]
STEP = st.one_of(
    st.just(None),
    st.builds(Adjustment, st.sampled_from(KINDS), st.sampled_from(["a", "b", "the c folder.", "d", "x", "rest", " "])),
)


@sharded(400, st.lists(STEP, max_size=12), st.booleans(), shards=2)
def test_no_source_is_lost_or_visited_twice(steps: list[Adjustment | None], is_refused: bool) -> None:
    course = begin("t", ["a", "b", "c", "a/"])
    named = {"a", "b", "c"}
    visits: list[str] = []
    for step in steps:
        if step is not None:
            course = steered(course, step)
            named |= {s.name for s in course.waiting}
        elif course.waiting:
            visits.append(course.waiting[0].name)
            course = visiting(course)
            if is_refused:
                course = passed_over(course)
        everywhere = [*names(course), *course.visited, *course.skipped]
        assert sorted(everywhere) == sorted(named), "each is in one place"
    if not is_refused:
        assert len(visits) == len(set(visits))
    assert course.counts == f"[{len(course.visited)} visited, {len(named) - len(course.visited)} skipped]"
