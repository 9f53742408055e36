"""What a row is worth, and that the best of many are found."""

import hypothesis.strategies as st
import pytest
from support import sharded

from chain.tools.research.ranking import Finding, best, findings_in, judge, score, terms


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("the wire", ("wire",)),
        ("How does the Wire work with the wire?", ("wire", "work")),
        ("what is it", ("what", "is", "it")),
        ("C", ("c",)),
        ("->", ("->",)),
        ("  ", ()),
        ("Straße", ("strasse",)),
        ("回 答", ("回", "答")),
        ("x" * 10, ("xxxxxxxxxx",)),
    ],
)
def test_terms(topic: str, expected: tuple[str, ...]) -> None:
    assert terms(topic) == expected


def test_a_topic_that_is_a_text_has_a_bounded_number_of_terms() -> None:
    assert len(terms(" ".join(f"word{n}" for n in range(500)))) == 32


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("The wire breaks.", 4),
        ("Wired and BREAKS", 3),
        ("a wireless one", 1),
        ("wire wire wire", 2),
        ("nothing here", 0),
    ],
)
def test_a_whole_word_counts_two_and_a_part_one(row: str, expected: int) -> None:
    assert score(row, judge("wire breaks")) == expected


def rows(*texts: str) -> list[tuple[int, str]]:
    return list(enumerate(texts, 1))


def test_the_best_come_first_and_equals_in_their_order() -> None:
    found = best(findings_in(rows("wires", "no", "the wire", "wire and pole", "wire"), judge("wire pole"), "a:"), 3)
    assert [(f.place, f.text) for f in found.best] == [("a:4", "wire and pole"), ("a:3", "the wire"), ("a:5", "wire")]
    assert (found.total, found.ignored) == (4, 0)


def test_what_is_preferred_comes_first_and_what_is_ignored_not_at_all() -> None:
    judged = judge("wire pole", preferred=["Copper"], ignored=["DRAFT"])
    found = best(findings_in(rows("wire pole", "copper wires", "wire, a draft", "copper"), judged, ""), 9)
    assert [f.text for f in found.best] == ["copper wires", "wire pole"]
    assert (found.total, found.ignored) == (2, 1)


def test_of_a_long_row_the_part_with_the_term_is_shown() -> None:
    (finding,) = findings_in(rows("x " * 500 + "needle" + " y" * 500), judge("needle"), "")
    assert "needle" in finding.text
    assert len(finding.text) < 250


FINDINGS = st.lists(
    st.builds(
        Finding,
        st.just("p"),
        st.text(max_size=1),
        st.integers(1, 4),
        is_preferred=st.booleans(),
        is_ignored=st.booleans(),
    )
)


@sharded(300, FINDINGS, st.integers(0, 5), shards=2)
def test_the_best_are_those_that_a_sort_finds(findings: list[Finding], most: int) -> None:
    kept = [f for f in findings if not f.is_ignored]
    expected = sorted(kept, key=lambda f: (not f.is_preferred, -f.score))[:most]
    found = best(findings, most)
    assert list(found.best) == expected
    assert all(a is b for a, b in zip(found.best, expected, strict=True)), "equals keep their order"
    assert (found.total, found.ignored) == (len(kept), len(findings) - len(kept))
