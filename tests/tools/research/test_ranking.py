"""The score of a row, and the order of rows."""

import pytest

from chain.tools.research.ranking import Row, Scorer, terms_of


@pytest.mark.parametrize(
    ("topic", "terms"),
    [
        pytest.param("How does the Wire work with the wire?", ["wire", "work"], id="sentence"),
        pytest.param("what is it", ["what", "is", "it"], id="only common words"),
        pytest.param("C", ["c"], id="one letter"),
        pytest.param("->", ["->"], id="no letters"),
        pytest.param("  ", [], id="only spaces"),
        pytest.param("Straße", ["strasse"], id="case folding"),
        pytest.param("回 答", ["回", "答"], id="no Latin letters"),
        pytest.param(" ".join(f"word{n}" for n in range(500)), [f"word{n}" for n in range(32)], id="many words"),
    ],
)
def test_a_topic_has_up_to_32_terms(topic: str, terms: list[str]) -> None:
    assert [*terms_of(topic)] == terms


@pytest.mark.parametrize(
    ("row", "score"),
    [
        pytest.param("The wire breaks.", 4, id="two words"),
        pytest.param("Wired and BREAKS", 3, id="part of a word, and a word"),
        pytest.param("a wireless one", 1, id="part of a word"),
        pytest.param("wire wire wire", 2, id="repeated word"),
        pytest.param("nothing here", 0, id="no word"),
    ],
)
def test_a_word_counts_two_and_a_part_one(row: str, score: int) -> None:
    assert Scorer("wire breaks").score(row) == score


def rank(scorer: Scorer, *texts: str) -> list[str]:
    return [texts[n] for n in scorer.rank([Row("", 1, text) for text in texts])]


def test_rows_are_ranked_by_score_and_order() -> None:
    ranked = rank(Scorer("wire pole"), "wires", "no", "the wire", "wire and pole", "wire")
    assert ranked == ["wire and pole", "the wire", "wire", "wires"]


def test_preferred_rows_are_ranked_first() -> None:
    scorer = Scorer("wire pole", preferred=["Copper"])
    assert rank(scorer, "wire pole", "copper wires", "copper") == ["copper wires", "wire pole"]


def test_ignored_text_matches_in_any_case() -> None:
    scorer = Scorer("wire", ignored=["DRAFT"])
    assert scorer.ignores("wire, a Draft")
    assert not scorer.ignores("wire")
