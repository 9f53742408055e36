"""The part of each source that a result shows, and how sources share its space."""

from collections.abc import Sequence
from dataclasses import replace

from chain.lines.parse import Adjustment
from chain.tools.research.plan import ResearchPlan
from chain.tools.research.ranking import Row
from chain.tools.research.report import CONTEXT_ROWS, MAX_OPENING, MAX_RESULT, Report, Source, render, report_of

NOTHING = "nothing of it at all"
NO_MATCHES = [NOTHING] * 100
"""More rows than the beginning of a source has in a result."""


def report(
    name: str, texts: Sequence[str], *, preferred: str = "", ignored: str = "", number: int | None = None
) -> Report:
    """Return the report of a source with these rows. All rows have this number, by default successive ones."""
    plan = ResearchPlan.of("wire", [])
    plan.steer(Adjustment("preference", preferred))
    plan.steer(Adjustment("drop_criterion", ignored))
    return report_of(plan, name, Source([Row(f"{name}:", number or n, text) for n, text in enumerate(texts, 1)]))


OTHER = report("other", [])


def size(rows: Sequence[str]) -> int:
    return len("\n".join(rows))


def rows_of(name: str, *reports: Report) -> list[str]:
    """Render these reports. Return the rows of one source without its heading."""
    _, _, rest = "\n".join(render(reports)).partition(f"\n## {name}: ")
    _, *rows = rest.split("\n\n")[0].splitlines()
    return rows


def places_of(report: Report) -> list[list[str]]:
    return [[line.text for line in place] for place in report.places]


def test_unused_space_goes_to_other_sources() -> None:
    long = [report(f"long{n}", NO_MATCHES + ["wire " * 40] * 300) for n in range(20)]
    short = [report(f"short{n}", ["wire"]) for n in range(20)]
    sizes_next_to_long = [size(rows_of(each.name, *long)) for each in long]
    sizes_next_to_short = [size(rows_of(each.name, *long[:10], *short[10:])) for each in long[:10]]
    assert min(sizes_next_to_short) > 1.5 * max(sizes_next_to_long), "half of the sources leave nearly all their space"
    assert max(sizes_next_to_short) - min(sizes_next_to_short) < 250, "they differ by about one row"


def test_sources_share_a_limited_space() -> None:
    reports = [report(f"long{n}", NO_MATCHES + ["wire " * 40] * 300) for n in range(20)]
    assert size(render(reports)) <= MAX_RESULT
    for each in reports:
        _location, first_row, *_ = rows_of(each.name, *reports)
        assert first_row == f"1- {NOTHING}", "the beginning of each source is shown"


def test_rows_are_shown_once_and_hidden_places_counted() -> None:
    texts = ["wire one", *[NOTHING] * 200, "wire two", "wire three", NOTHING, "wire four", *[NOTHING] * 20, "wires"]
    three_more_places = [*[NOTHING] * 20, "wires"] * 3
    long = report("a", texts + three_more_places)
    rows = rows_of("a", replace(long, places=long.places[:-3]), OTHER)
    assert rows[:3] == ["a:N", "1: wire one", f"2- {NOTHING}"]
    places = rows[rows.index("a:202: wire two") :]
    assert places == [
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
    rows = rows_of("p", report("p", pieces, number=1), OTHER)
    assert {"p:1: the wire", "p:1: wires"} <= {*rows}
    assert not any("more place" in row for row in rows)


def test_a_row_without_space_is_truncated() -> None:
    location, row = rows_of("a", report("a", ["x" * 10_000]), OTHER)
    assert location == "a:N"
    assert row.startswith("1- xxx")
    assert row.endswith("…")
    assert MAX_OPENING - 50 < size([location, row]) <= MAX_OPENING


def test_preferred_places_are_listed_first() -> None:
    rows = rows_of("a", report("a", [*NO_MATCHES, "a wire", *NO_MATCHES, "copper wires"], preferred="copper"), OTHER)
    heading = rows.index("First those with copper (prefer, from the user's line):")
    assert rows[heading + 1] == "a:202: copper wires"


def test_a_single_source_keeps_its_order() -> None:
    rows = rows_of("a", report("a", ["nothing", "a wire", "copper wires"], preferred="copper"))
    assert rows == ["a:N", "1- nothing", "2: a wire", "3: copper wires"]


def test_a_long_row_shows_its_matching_part() -> None:
    ((match,),) = places_of(report("a", ["x " * 500 + "wire" + " y" * 500]))
    assert "wire" in match
    assert len(match) < 250


def test_a_place_has_its_neighbours() -> None:
    assert CONTEXT_ROWS == 2
    (place,) = places_of(report("a", ["one", "two", "three", "wire", "five", "six", "seven"]))
    assert place == ["a:4: wire", "  2- two", "  3- three", "  5- five", "  6- six"]


def test_ignored_rows_are_left_out() -> None:
    source = report("a", ["one", "a draft", "wire", "wire draft"], ignored="draft")
    assert places_of(source) == [["a:3: wire", "  1- one"]]
    assert source.notes == ["1 place left out (ignore: draft, from the user's line)."]
    assert source.outcome == "1 place found"
