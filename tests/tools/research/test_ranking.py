"""What a row is worth, and which come first."""

import pytest

from chain.tools.research.ranking import Row, Scorer, terms_of


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
    assert terms_of(topic) == expected


def test_a_topic_that_is_a_text_has_a_bounded_number_of_terms() -> None:
    assert len(terms_of(" ".join(f"word{n}" for n in range(500)))) == 32


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
    assert Scorer("wire breaks").score(row) == expected


def best(scorer: Scorer, *texts: str) -> list[str]:
    return [texts[n] for n in scorer.rank([Row("", 1, text) for text in texts])]


def test_the_best_come_first_and_equals_in_their_order() -> None:
    found = best(Scorer("wire pole"), "wires", "no", "the wire", "wire and pole", "wire")
    assert found == ["wire and pole", "the wire", "wire", "wires"]


def test_what_is_preferred_comes_first() -> None:
    scorer = Scorer("wire pole", preferred=["Copper"])
    assert best(scorer, "wire pole", "copper wires", "copper") == ["copper wires", "wire pole"]


def test_what_is_ignored_has_any_case() -> None:
    scorer = Scorer("wire", ignored=["DRAFT"])
    assert scorer.ignores("wire, a Draft")
    assert not scorer.ignores("wire")
