"""How the user's lines change the sources that a research will visit."""

import hypothesis.strategies as st
import pytest
from support.examples import sharded

from chain.lines.parse import Adjustment, AdjustmentType, parse_line
from chain.tools.research.plan import MAX_NAME, ResearchPlan, is_named, may_be_host, normalize_name, source_name

SOURCES = ["docs", "src/wire.py", "tests/tools", "https://www.example.org/docs", "notes.md"]


def plan_after(*lines: str) -> ResearchPlan:
    """Return a plan for ``SOURCES`` after these lines of the user."""
    plan = ResearchPlan.of("wires", SOURCES)
    steer(plan, *lines)
    return plan


def steer(plan: ResearchPlan, *lines: str) -> None:
    for line in lines:
        adjustment = parse_line(line).adjustment
        assert adjustment is not None
        plan.steer(adjustment)


LONG_NAME = "a" + "' page" * MAX_NAME + "b"
"""A name that is slow to match, since its words could also be the end of the sentence."""


@pytest.mark.parametrize(
    ("words", "name"),
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
        pytest.param(LONG_NAME, LONG_NAME[: MAX_NAME + 1], id="long name"),
    ],
)
def test_a_name_is_found_in_a_sentence(words: str, name: str) -> None:
    assert source_name(words) == name


@pytest.mark.parametrize(
    ("name", "normalized"),
    [("./docs/", "docs"), ("docs", "docs"), ("./", "."), ("", ""), ("/", "/"), ("http://x/", "http://x/")],
)
def test_names_are_normalized(name: str, normalized: str) -> None:
    assert normalize_name(name) == normalized


@pytest.mark.parametrize(
    ("words", "skipped"),
    [
        ("the DOCS folder", ["docs", "https://www.example.org/docs"]),
        ("tools", ["tests/tools"]),
        ("example.org", ["https://www.example.org/docs"]),
        ("notes", ["notes.md"]),
        ("the rest", SOURCES),
    ],
)
def test_skip_removes_the_named_sources(words: str, skipped: list[str]) -> None:
    plan = plan_after(f"skip {words}")
    assert plan.skipped == skipped
    assert plan.waiting == [name for name in SOURCES if name not in skipped]
    assert "no remaining source" not in plan.notes[0]


def test_skip_of_an_unknown_name_is_noted() -> None:
    plan = plan_after("skip doc")
    assert plan.waiting == SOURCES
    assert "no remaining source" in plan.notes[0]


def test_also_check_adds_a_source_once() -> None:
    plan = plan_after("also check the lib folder", "also check lib", "also check docs")
    assert plan.waiting == [*SOURCES, "lib"]
    assert plan.user_sources == {"docs", "lib"}


def test_also_check_visits_no_source_again() -> None:
    plan = plan_after()
    plan.visited.append(plan.waiting.pop(0))
    steer(plan, "also check docs")
    assert plan.visited == ["docs"]
    assert "docs" not in plan.waiting


def test_a_later_line_replaces_an_earlier_one() -> None:
    plan = plan_after("skip docs", "also check docs", "focus on the wire", "focus on the pole.")
    assert "docs" in plan.waiting
    assert "docs" not in plan.skipped
    assert plan.focus == "the pole"


def test_prefer_moves_sources_to_the_front() -> None:
    plan = plan_after("prefer the tests", "prefer notes")
    assert plan.waiting[:2] == ["notes.md", "tests/tools"]
    assert plan.preferred == ["tests", "notes"]


def test_ignore_and_focus_are_noted() -> None:
    plan = plan_after("ignore the drafts", 'ignore "old notes".', "focus on the wire")
    assert plan.ignored == ["drafts", "old notes"]
    assert plan.notes == ["ignore: drafts", "ignore: old notes", "focus: the wire"]


def test_line_without_a_name_changes_nothing() -> None:
    plan = plan_after()
    plan.steer(Adjustment("skip_source", " . "))
    assert (plan.waiting, plan.notes) == (SOURCES, [])


@pytest.mark.parametrize(
    ("source", "name", "expected"),
    [("src/test_wire.py", "test_wire", True), ("src/test_wire.py", "wire", False), ("a+b", "a+b+", False)],
)
def test_only_whole_words_name_a_source(source: str, name: str, expected: bool) -> None:
    assert is_named(source, name) == expected


def test_a_host_has_a_dot_or_a_port() -> None:
    hosts = ["example.org", "example.org/a/b?c", "localhost:8000", "a.b.example.org:80/"]
    others = ["docs", "docs/a.b", "a b.org", ".git", "..", "1.2"]
    assert [*filter(may_be_host, [*hosts, *others])] == hosts


KINDS: list[AdjustmentType] = ["focus_query", "skip_source", "add_source", "drop_criterion", "preference"]
STEP = st.one_of(
    st.just(None),
    st.builds(Adjustment, st.sampled_from(KINDS), st.sampled_from(["a", "b", "the c folder.", "d", "x", "rest", " "])),
)
"""A line of the user, or ``None`` for a visit to the next source."""


@sharded(400, st.lists(STEP, max_size=12), st.booleans(), shards=2)
def test_each_source_is_visited_or_skipped_once(steps: list[Adjustment | None], is_refused: bool) -> None:
    plan = ResearchPlan.of("t", ["a", "b", "c", "a/"])
    sources = {"a", "b", "c"}  # "a/" is "a" again
    for step in steps:
        if step is not None:
            plan.steer(step)
            sources |= set(plan.waiting)
        elif plan.waiting:
            finished = plan.skipped if is_refused else plan.visited
            finished.append(plan.waiting.pop(0))
        assert sorted([*plan.waiting, *plan.visited, *plan.skipped]) == sorted(sources)
    assert plan.counts_row == f"[{len(plan.visited)} visited, {len(sources) - len(plan.visited)} skipped]"
