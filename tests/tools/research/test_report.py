"""The part of each source that a result shows, and how sources share its space."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from chain.lines.parse import Adjustment
from chain.tools.research.plan import ResearchPlan
from chain.tools.research.ranking import Row
from chain.tools.research.report import CONTEXT_ROWS, MAX_OPENING, MAX_RESULT, Report, Source, render, report_of

NOTHING = "nothing of it at all"


def report(name: str, texts: Sequence[str], *, preferred: str = "", ignored: str = "", n: int | None = None) -> Report:
    """Return the report of a source with these rows. ``n`` is the number of all rows, if it is the same."""
    plan = ResearchPlan.of("wire", [])
    plan.steer(Adjustment("preference", preferred))
    plan.steer(Adjustment("drop_criterion", ignored))
    return report_of(plan, name, Source([Row(f"{name}:", n or k, text) for k, text in enumerate(texts, 1)]))


def size(rows: Sequence[str]) -> int:
    return len("\n".join(rows))


def rows_of(name: str, *reports: Report) -> list[str]:
    """Render these reports. Return the rows of one source without its heading."""
    rows = render(reports)
    rest = rows[next(n for n, row in enumerate(rows) if row.startswith(f"## {name}:")) + 1 :]
    return rest[: rest.index("")] if "" in rest else rest


def test_unused_space_goes_to_other_sources() -> None:
    long = [report(f"long{n}", [NOTHING] * 100 + ["wire " * 40] * 300) for n in range(20)]
    half = [*long[:10], *(report(f"short{n}", ["wire"]) for n in range(10))]
    assert size(render(long)) <= MAX_RESULT
    assert size(render(half)) <= MAX_RESULT
    sizes = [size(rows_of(f"long{n}", *half)) for n in range(10)]
    assert max(sizes) - min(sizes) < 250
    assert min(sizes) > 1.5 * max(size(rows_of(f"long{n}", *long)) for n in range(20))
    assert all(rows_of(f"long{n}", *long)[1] == f"1- {NOTHING}" for n in range(20)), "the beginning of each"


def test_rows_are_shown_once_and_hidden_places_counted() -> None:
    texts = ["wire one", *[NOTHING] * 200, "wire two", "wire three", NOTHING, "wire four", *[NOTHING] * 20, "wires"]
    found = report("a", texts + [*[NOTHING] * 20, "wires"] * 3)
    rows = rows_of("a", replace(found, places=found.places[:5]), report("b", []))
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


def test_pieces_of_a_long_row_are_different_rows() -> None:
    pieces = ["x" * 400] * 9 + ["the wire", "y" * 400, "z" * 400, "wires"]
    rows = rows_of("p", report("p", pieces, n=1), report("b", []))
    assert {"p:1: the wire", "p:1: wires"} <= {*rows}
    assert not any("more place" in row for row in rows)


def test_a_row_without_space_is_truncated() -> None:
    rows = rows_of("a", report("a", ["x" * 10_000]), report("b", []))
    assert rows[1].startswith("1- xxx")
    assert rows[1].endswith("…")
    assert MAX_OPENING - 50 < size(rows) <= MAX_OPENING


@pytest.mark.parametrize("is_alone", [True, False])
def test_preferred_places_are_listed_first(is_alone: bool) -> None:
    texts = [*[NOTHING] * 100, "a wire", *[NOTHING] * 9, "copper wires"]
    rows = rows_of("a", report("a", texts, preferred="copper"), *([] if is_alone else [report("b", [])]))
    if is_alone:
        assert rows[1:] == [f"{k}{':' if 'wire' in text else '-'} {text}" for k, text in enumerate(texts, 1)]
    else:
        heading = rows.index("First those with copper (prefer, from the user's line):")
        assert rows[heading + 1] == "a:111: copper wires"


def test_a_long_row_shows_its_matching_part() -> None:
    (place,) = report("a", ["x " * 500 + "wire" + " y" * 500]).places
    assert "wire" in place[0].text
    assert len(place[0].text) < 250


def test_a_place_has_its_neighbours_without_ignored_rows() -> None:
    assert CONTEXT_ROWS == 2
    (place,) = report("a", ["0", "1", "2", "wire", "4", "5", "6"]).places
    assert [line.text for line in place[1:]] == ["  2- 1", "  3- 2", "  5- 4", "  6- 5"]
    found = report("a", ["1", "a draft", "wire", "wire draft"], ignored="draft")
    assert [line.text for line in found.places[0]] == ["a:3: wire", "  1- 1"]
    assert found.notes == ["1 place left out (ignore: draft, from the user's line)."]
    assert found.outcome == "1 place found"
