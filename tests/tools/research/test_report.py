"""What of each source a result shows, and how the sources share its room."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from chain.tools.research import ranking
from chain.tools.research.ranking import best, findings_in, judge
from chain.tools.research.report import BEGINNING, MAX_RESULT, Beginning, Report, chars_in, rendered

NOTHING = "nothing of it at all"


def report(name: str, texts: Iterable[str], topic: str = "wire", *, preferred: tuple[str, ...] = ()) -> Report:
    judged = judge(topic, preferred)
    opening = Beginning(judged)
    found = best(findings_in(opening.noted(list(enumerate(texts, 1)), f"{name}:"), judged, f"{name}:"), 12)
    return Report(name, f"{found.total} places", opening=opening, found=found, preferred=preferred)


def of(name: str, rows: list[str]) -> list[str]:
    """The rows of a source."""
    start = next(n for n, row in enumerate(rows) if row.startswith(f"## {name}:"))
    rest = rows[start + 1 :]
    return rest[: rest.index("")] if "" in rest else rest


def test_what_a_source_does_not_need_is_left_to_the_others() -> None:
    long = [NOTHING] * 100 + ["wire " * 40] * 300
    many = [report(f"long{n}", long) for n in range(20)]
    few = rendered([*many[:10], *(report(f"short{n}", ["wire"]) for n in range(10))])
    all_of = rendered(many)
    assert chars_in(all_of) <= MAX_RESULT
    assert chars_in(few) <= MAX_RESULT
    sizes = [chars_in(of(f"long{n}", few)) for n in range(10)]
    assert max(sizes) - min(sizes) < 250, "shared fairly"
    assert min(sizes) > 1.5 * max(chars_in(of(f"long{n}", all_of)) for n in range(20))
    assert all(of(f"long{n}", all_of)[1] == f"1- {NOTHING}" for n in range(20)), "the beginning of each"


def test_each_row_is_shown_once_and_all_that_fit_are_counted() -> None:
    texts = ["wire one", *[NOTHING] * 200, "wire two", "wire three", NOTHING, "wire four", *[NOTHING] * 20, "wires"]
    texts += [*[NOTHING] * 20, "wires"] * 3
    found = report("a", texts)
    rows = of("a", rendered([replace(found, found=replace(found.found, best=found.found.best[:5])), report("b", [])]))
    assert rows[:3] == ["a:N", "1: wire one", f"2- {NOTHING}"]
    assert rows[-14:] == [
        "a:202: wire two",
        *(f"  {n}- {NOTHING}" for n in (200, 201)),
        "  203: wire three",
        f"  204- {NOTHING}",
        "a:205: wire four",
        *(f"  {n}- {NOTHING}" for n in (206, 207)),
        "a:226: wires",
        *(f"  {n}- {NOTHING}" for n in (224, 225, 227, 228)),
        "(3 more places not shown.)",
    ]


def test_pieces_of_a_long_row_are_not_taken_for_each_other() -> None:
    judged = judge("wire")
    opening = Beginning(judged)
    pieces = [(1, "x" * 400)] * 9 + [(1, "the wire"), (1, "y" * 400), (1, "z" * 400), (1, "wires")]
    found = best(findings_in(opening.noted(pieces, "p "), judged, "p "), 12)
    rows = of("p", rendered([Report("p", opening=opening, found=found), report("b", [])]))
    assert "p 1: the wire" in rows
    assert "p 1: wires" in rows
    assert not any("more place" in row for row in rows)


def test_of_a_row_for_which_there_is_no_room_the_beginning_is_shown() -> None:
    rows = of("a", rendered([report("a", ["x" * 10_000]), report("b", [])]))
    assert rows[1].startswith("1- xxx")
    assert rows[1].endswith("…")
    assert BEGINNING - 50 < chars_in(rows) <= BEGINNING


@pytest.mark.parametrize("n", [1, 2])
def test_what_the_user_prefers_comes_first_where_places_are_listed(n: int) -> None:
    texts = [*[NOTHING] * 100, "a wire", *[NOTHING] * 9, "copper wires"]
    rows = of("a", rendered([report("a", texts, preferred=("copper",)), *[report("b", [])] * (n - 1)]))
    if n == 1:
        assert rows[1:] == [f"{k}{':' if 'wire' in text else '-'} {text}" for k, text in enumerate(texts, 1)]
    else:
        first = rows.index("First those with copper (prefer, from the user's line):")
        assert rows[first + 1] == "a:111: copper wires"


def test_near_rows_are_those_before_and_behind() -> None:
    texts = ["0", "1", "2", "wire", "4", "5", "6"]
    (finding,) = findings_in(enumerate(texts), judge("wire"), "")
    assert [each.text for each in finding.near] == ["1", "2", "4", "5"]
    assert ranking.NEAR == 2
    (finding,) = findings_in([(1, "wire")], judge("wire"), "")
    assert finding.near == ()
