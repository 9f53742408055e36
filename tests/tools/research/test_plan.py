"""How the user's lines change the sources that a research will visit."""

import hypothesis.strategies as st
import pytest
from support import sharded

from chain.lines.parse import Adjustment, AdjustmentType, parse_line
from chain.tools.research.plan import MAX_NAME, ResearchPlan, is_named, may_be_host, normalize_name, source_name

FIVE = ["docs", "src/wire.py", "tests/tools", "https://www.example.org/docs", "notes.md"]


def after(*lines: str) -> ResearchPlan:
    """Return a plan for five sources after these lines."""
    plan = ResearchPlan.of("wires", FIVE)
    steer(plan, *lines)
    return plan


def steer(plan: ResearchPlan, *lines: str) -> None:
    for line in lines:
        adjustment = parse_line(line).adjustment
        assert adjustment is not None
        plan.steer(adjustment)


@pytest.mark.parametrize(
    ("said", "name"),
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
    ids=lambda text: text[:20],
)
def test_a_name_is_found_in_a_sentence(said: str, name: str) -> None:
    assert source_name(said) == name


def test_names_are_normalized() -> None:
    given = {"./docs/": "docs", "docs": "docs", ".": ".", "./": ".", "": "", "/": "/", "http://x/": "http://x/"}
    assert {name: normalize_name(name) for name in given} == given


@pytest.mark.parametrize(
    ("wanted", "skipped"),
    [
        ("docs", ["docs", "https://www.example.org/docs"]),
        ("the DOCS folder", ["docs", "https://www.example.org/docs"]),
        ("tools", ["tests/tools"]),
        ("example.org", ["https://www.example.org/docs"]),
        ("notes", ["notes.md"]),
        ("doc", []),
        ("the rest", FIVE),
    ],
)
def test_skip_removes_the_named_sources(wanted: str, skipped: list[str]) -> None:
    plan = after(f"skip {wanted}")
    assert plan.skipped == skipped
    assert plan.waiting == [name for name in FIVE if name not in skipped]
    assert ("no remaining source" in plan.notes[0]) == (not skipped)


def test_also_check_adds_a_source_once() -> None:
    plan = after("also check the lib folder", "also check lib", "also check docs")
    assert plan.waiting == [*FIVE, "lib"]
    assert plan.by_user == {"docs", "lib"}
    plan.visited.append(plan.waiting.pop(0))
    steer(plan, "also check docs")
    assert "docs" not in plan.waiting


def test_a_later_line_replaces_an_earlier_one() -> None:
    plan = after("skip docs", "also check docs", "focus on the wire", "focus on the pole.")
    assert "docs" in plan.waiting
    assert "docs" not in plan.skipped
    assert plan.focus == "the pole"


def test_prefer_moves_sources_to_the_front() -> None:
    plan = after("prefer the tests", "prefer notes")
    assert plan.waiting[:2] == ["notes.md", "tests/tools"]
    assert plan.preferred == ["tests", "notes"]


def test_ignore_and_focus_are_noted() -> None:
    plan = after("ignore the drafts", 'ignore "old notes".', "focus on the wire")
    assert plan.ignored == ["drafts", "old notes"]
    assert plan.notes == ["ignore: drafts", "ignore: old notes", "focus: the wire"]
    plan.steer(Adjustment("skip_source", " . "))
    assert plan.notes[3:] == []


def test_only_whole_words_name_a_source() -> None:
    assert is_named("src/test_wire.py", "test_wire")
    assert not is_named("src/test_wire.py", "wire")
    assert not is_named("a+b", "a+b+")


def test_a_host_has_a_dot_or_a_port() -> None:
    hosts = ["example.org", "example.org/a/b?c", "localhost:8000", "a.b.example.org:80/"]
    others = ["docs", "docs/a.b", "a b.org", ".git", "..", "1.2"]
    assert [*filter(may_be_host, [*hosts, *others])] == hosts


KINDS: list[AdjustmentType] = ["focus_query", "skip_source", "add_source", "drop_criterion", "preference"]
STEP = st.one_of(
    st.just(None),
    st.builds(Adjustment, st.sampled_from(KINDS), st.sampled_from(["a", "b", "the c folder.", "d", "x", "rest", " "])),
)


@sharded(400, st.lists(STEP, max_size=12), st.booleans(), shards=2)
def test_each_source_is_visited_or_skipped_once(steps: list[Adjustment | None], is_refused: bool) -> None:
    plan = ResearchPlan.of("t", ["a", "b", "c", "a/"])
    named = {"a", "b", "c"}
    for step in steps:
        if step is not None:
            plan.steer(step)
            named |= set(plan.waiting)
        elif plan.waiting:
            (plan.skipped if is_refused else plan.visited).append(plan.waiting.pop(0))
        assert sorted([*plan.waiting, *plan.visited, *plan.skipped]) == sorted(named)
    assert plan.counts == f"[{len(plan.visited)} visited, {len(named) - len(plan.visited)} skipped]"
