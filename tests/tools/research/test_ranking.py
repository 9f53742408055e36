"""The score of a row, and the order of rows."""

import pytest

from chain.tools.research.ranking import Row, Scorer, terms_of


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("the wire", ["wire"]),
        ("How does the Wire work with the wire?", ["wire", "work"]),
        ("what is it", ["what", "is", "it"]),
        ("C", ["c"]),
        ("->", ["->"]),
        ("  ", []),
        ("Straße", ["strasse"]),
        ("回 答", ["回", "答"]),
        (" ".join(f"word{n}" for n in range(500)), [f"word{n}" for n in range(32)]),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_topic_has_up_to_32_terms(topic: str, expected: list[str]) -> None:
    assert [*terms_of(topic)] == expected


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
def test_a_word_counts_two_and_a_part_one(row: str, expected: int) -> None:
    assert Scorer("wire breaks").score(row) == expected


def test_rows_are_ranked_by_preference_score_and_order() -> None:
    def ranked(scorer: Scorer, *texts: str) -> list[str]:
        return [texts[n] for n in scorer.rank([Row("", 1, text) for text in texts])]

    found = ranked(Scorer("wire pole"), "wires", "no", "the wire", "wire and pole", "wire")
    assert found == ["wire and pole", "the wire", "wire", "wires"]
    scorer = Scorer("wire pole", preferred=["Copper"])
    assert ranked(scorer, "wire pole", "copper wires", "copper") == ["copper wires", "wire pole"]


def test_ignored_text_matches_in_any_case() -> None:
    scorer = Scorer("wire", ignored=["DRAFT"])
    assert [scorer.ignores(text) for text in ("wire, a Draft", "wire")] == [True, False]
