"""What of each source a result shows, and how the sources share its room."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from chain.lines.parse import Adjustment
from chain.tools.research.plan import ResearchPlan
from chain.tools.research.ranking import Row
from chain.tools.research.report import CONTEXT_ROWS, MAX_OPENING, MAX_RESULT, Report, Source, render, report_of

NOTHING = "nothing of it at all"


def report(name: str, texts: Sequence[str], *, preferred: str = "", ignored: str = "") -> Report:
    return report_of(plan(preferred, ignored), name, Source([Row(f"{name}:", n, t) for n, t in enumerate(texts, 1)]))


def plan(preferred: str = "", ignored: str = "") -> ResearchPlan:
    made = ResearchPlan.of("wire", [])
    made.steer(Adjustment("preference", preferred))
    made.steer(Adjustment("drop_criterion", ignored))
    return made


def size(rows: Sequence[str]) -> int:
    return len("\n".join(rows))


def of(name: str, rows: list[str]) -> list[str]:
    """The rows of a source."""
    start = next(n for n, row in enumerate(rows) if row.startswith(f"## {name}:"))
    rest = rows[start + 1 :]
    return rest[: rest.index("")] if "" in rest else rest


def test_what_a_source_does_not_need_is_left_to_the_others() -> None:
    long = [NOTHING] * 100 + ["wire " * 40] * 300
    many = [report(f"long{n}", long) for n in range(20)]
    few = render([*many[:10], *(report(f"short{n}", ["wire"]) for n in range(10))])
    all_of = render(many)
    assert size(all_of) <= MAX_RESULT
    assert size(few) <= MAX_RESULT
    sizes = [size(of(f"long{n}", few)) for n in range(10)]
    assert max(sizes) - min(sizes) < 250, "shared fairly"
    assert min(sizes) > 1.5 * max(size(of(f"long{n}", all_of)) for n in range(20))
    assert all(of(f"long{n}", all_of)[1] == f"1- {NOTHING}" for n in range(20)), "the beginning of each"


def test_each_row_is_shown_once_and_all_that_fit_are_counted() -> None:
    texts = ["wire one", *[NOTHING] * 200, "wire two", "wire three", NOTHING, "wire four", *[NOTHING] * 20, "wires"]
    texts += [*[NOTHING] * 20, "wires"] * 3
    found = report("a", texts)
    rows = of("a", render([replace(found, places=found.places[:5]), report("b", [])]))
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
    pieces = ["x" * 400] * 9 + ["the wire", "y" * 400, "z" * 400, "wires"]
    found = report_of(plan(), "p", Source([Row("p ", 1, piece) for piece in pieces]))
    rows = of("p", render([found, report("b", [])]))
    assert "p 1: the wire" in rows
    assert "p 1: wires" in rows
    assert not any("more place" in row for row in rows)


def test_of_a_row_for_which_there_is_no_room_the_beginning_is_shown() -> None:
    rows = of("a", render([report("a", ["x" * 10_000]), report("b", [])]))
    assert rows[1].startswith("1- xxx")
    assert rows[1].endswith("…")
    assert MAX_OPENING - 50 < size(rows) <= MAX_OPENING


@pytest.mark.parametrize("n", [1, 2])
def test_what_the_user_prefers_comes_first_where_places_are_listed(n: int) -> None:
    texts = [*[NOTHING] * 100, "a wire", *[NOTHING] * 9, "copper wires"]
    rows = of("a", render([report("a", texts, preferred="copper"), *[report("b", [])] * (n - 1)]))
    if n == 1:
        assert rows[1:] == [f"{k}{':' if 'wire' in text else '-'} {text}" for k, text in enumerate(texts, 1)]
    else:
        first = rows.index("First those with copper (prefer, from the user's line):")
        assert rows[first + 1] == "a:111: copper wires"


def test_of_a_long_row_the_part_with_the_term_is_shown() -> None:
    (place,) = report("a", ["x " * 500 + "wire" + " y" * 500]).places
    assert "wire" in place[0].text
    assert len(place[0].text) < 250


def test_rows_next_to_a_place_are_those_before_and_behind_that_are_not_ignored() -> None:
    assert CONTEXT_ROWS == 2
    (place,) = report("a", ["0", "1", "2", "wire", "4", "5", "6"]).places
    assert [line.text for line in place[1:]] == ["  2- 1", "  3- 2", "  5- 4", "  6- 5"]
    found = report("a", ["1", "a draft", "wire", "wire draft"], ignored="draft")
    assert [line.text for line in found.places[0]] == ["a:3: wire", "  1- 1"]
    assert found.notes == ["1 place left out (ignore: draft, from the user's line)."]
    assert found.outcome == "1 place found"
