"""The tool ``research``: its visits and results, and the lines that change a running call."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support import sessions
from support.site import Answer, Asked, open_site
from support.steered import Steered

from chain import events
from chain.errors import ToolError
from chain.lines.parse import Adjustment, parse_line
from chain.plan import Plan
from chain.tools.processes.guarded import Guard
from chain.tools.research import visits
from chain.tools.research.report import MAX_RESULT
from chain.tools.research.visits import research_tools
from chain.tools.tool import Guidance, ToolContext

PADDING = "pass  # nothing of it\n" * 100
"""Rows before those that are not in the beginning of a source."""

FILES = {
    "docs/wire.md": "# The wire\n\nHow wires are laid.\nA pole.\n",
    "docs/poles.md": "A pole of wood.\n",
    "tests/test_wire.py": "def test_wire():\n    pass\n",
    "lib/a.py": f"{PADDING}wire = 1\nwire_draft = 2  # a draft\ncopper wire\n",
    "notes.md": "the wire hums\n",
}
SOURCES = ("docs", "tests", "lib", "notes.md")


def said(line: str) -> Adjustment:
    adjustment = parse_line(line).adjustment
    assert adjustment is not None
    return adjustment


@dataclass
class Lines:
    """Lines that arrive at safe points, counted from 1; a stop is one of them."""

    at: dict[int, list[str]]
    n: int = 0

    def new_guidance(self) -> Guidance:
        self.n += 1
        lines = self.at.get(self.n, [])
        return Guidance(tuple(said(line) for line in lines if line != "stop"), "stop" in lines)


@dataclass
class Use:
    """Calls of the tool in a workspace, and the rows that they reported."""

    workspace: Path
    guard: Guard
    hosts: tuple[str, ...] = ()
    asked: Asked = field(default_factory=Asked)
    rows: list[str] = field(default_factory=list)
    result_limit: int = 30_000

    async def __call__(self, topic: str, *sources: str, steering: Any = None) -> str:
        (tool,) = research_tools(self.hosts, self.guard)
        context = ToolContext(
            *(self.workspace, Plan(), "call_1", steering or Steered(), self.rows.append),
            asking=self.asked,
            result_limit=self.result_limit,
        )
        return await tool.run(context, {"topic": topic, "sources": list(sources)})

    async def part(self, topic: str, *sources: str, of: str = "", steering: Any = None) -> list[str]:
        """Return the rows of one source in the result, by default of the first one."""
        return part(await self(topic, *sources, steering=steering), of or sources[0])


@pytest.fixture
def use(tmp_path: Path, guard: Guard) -> Use:
    (tmp_path / "secret.txt").write_text("the wire is secret\n")
    for name, text in FILES.items():
        (tmp_path / "work" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "work" / name).write_text(text)
    return Use(tmp_path / "work", guard)


def part(result: str, name: str) -> list[str]:
    """Return the rows of a source, without its name in the heading."""
    (found,) = (each for each in result.split("\n\n") if f"## {name}: " in each)
    return found.partition(f"## {name}: ")[2].splitlines()


def order(result: str) -> list[str]:
    """Return the sources in the order of the result."""
    return [row[3:].split(": ")[0] for row in result.splitlines() if row.startswith("## ")]


# ------------------------------------------------------------------------------------------------------------- files


async def test_a_result_lists_places_with_rows(use: Use) -> None:
    assert await use("the wire", "docs", "notes.md", "./docs/") == (
        "## docs: 2 places found\n"
        "2 files: docs/poles.md, docs/wire.md\n"
        "docs/poles.md:N\n"
        "1- A pole of wood.\n"
        "docs/wire.md:N\n"
        "1: # The wire\n"
        "3: How wires are laid.\n"
        "4- A pole.\n"
        "\n## notes.md: 1 place found\n"
        "notes.md:N\n"
        "1: the wire hums\n"
        "\n[2 visited, 0 skipped]"
    )
    assert use.rows == ["docs: 2 places found", "notes.md: 1 place found"]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("dosc", "There is no dosc; did you mean docs?"),
        ("../secret.txt", "must not contain .."),
        ("/etc/passwd", "absolute path"),
        ("out.txt", "leads out of the workspace"),
        ("", "The path is empty"),
        ("x" * 3000, "has more than 2000 characters"),
        ("example.org", "An address begins with https://"),
        ("data.bin", "binary"),
        ("file:///etc/passwd", "not an http or https address"),
    ],
)
async def test_an_unreadable_source_does_not_end_the_research(use: Use, source: str, says: str) -> None:
    (use.workspace / "out.txt").symlink_to(use.workspace.parent / "secret.txt")
    (use.workspace / "data.bin").write_bytes(b"wire\0wire")
    result = await use("wire", source, "notes.md")
    assert says in result
    assert "secret" not in result.replace("secret.txt", "")
    assert part(result, "notes.md")[0] == "1 place found"
    assert says in (await use("wire", source))


async def test_a_result_says_what_was_not_searched(use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visits, "MAX_IN_FOLDER", 1000)
    (use.workspace / "docs/data.bin").write_bytes(b"wire\0wire")
    (use.workspace / "docs/large.txt").write_text("wire\n" * 300)
    (use.workspace / "docs/.git").mkdir()
    (use.workspace / "docs/out").symlink_to(use.workspace.parent / "secret.txt")
    found = await use.part("secret", "docs")
    assert [found[0], *found[-3:]] == [
        "0 places found",
        "1 file not searched: binary or not readable.",
        "1 file not searched: more than 1000 bytes.",
        "Left out: docs/.git/.",
    ]
    assert (await use.part("wire", "docs/large.txt"))[0] == "300 places found"
    monkeypatch.setattr(visits, "MAX_SOURCE_BYTES", 100)
    found = await use.part("wire", "docs/large.txt")
    assert (found[0], found[-1]) == ("20 places found", "Only the first 0 MB were read.")
    monkeypatch.setattr(visits, "MAX_SOURCE_BYTES", 80)
    assert (await use.part("wire", "."))[-2] == "Only the first 0 MB were read."
    monkeypatch.setattr(visits, "MAX_ROWS", 2)
    assert (await use.part("wire", "."))[-2] == "Only the first 2 rows were searched."


@pytest.mark.parametrize("limit", [1, 5_000])
async def test_sources_share_the_limit_of_a_result(use: Use, limit: int) -> None:
    names = [f"many{n}" for n in range(10)]
    for name in names:
        (use.workspace / name).write_text(("wire " * 10 + "\n") * 100)
    use.result_limit = limit
    result = await use("wire", *names)
    assert order(result) == names
    assert len(result) < max(limit, 1_000)
    assert all(("wire wire" in "".join(part(result, name))) == (limit > 1) for name in names)


async def test_a_single_source_is_returned_whole(use: Use) -> None:
    rows = [f"line {n} of it" for n in range(1, 1001)]
    (use.workspace / "alone.txt").write_text("\n".join(rows))
    found = await use.part("wire", "alone.txt", "gone.txt")
    assert found == ["0 places found", "alone.txt:N", *(f"{n}- {row}" for n, row in enumerate(rows, 1))]
    shared = await use.part("wire", "alone.txt", "notes.md")
    assert shared[:-1] == found[: len(shared) - 1]
    assert 1400 < len("\n".join(shared)) < 1600


async def test_a_long_single_source_fills_the_result(use: Use) -> None:
    (use.workspace / "long.txt").write_text(PADDING * 20 + "Wires\ntheir price is 42\n" + PADDING * 20)
    found = await use.part("wires", "long.txt")
    assert 0.9 * MAX_RESULT < len("\n".join(found)) <= MAX_RESULT
    assert "  2002- their price is 42" in found


@pytest.mark.parametrize(
    ("topic", "sources", "says"),
    [
        (" \n", ["docs"], "topic"),
        ("x" * 2000, ["docs"], "topic"),
        ("wire", [], "it names 0"),
        ("wire", ["docs"] * 51, "it names 51"),
    ],
)
async def test_invalid_arguments_are_an_error(use: Use, topic: str, sources: list[str], says: str) -> None:
    with pytest.raises(ToolError, match=says):
        await use(topic, *sources)
    assert not use.rows


# ----------------------------------------------------------------------------------------------------- the user's lines


@pytest.mark.parametrize("n", range(1, 6))
async def test_a_line_changes_the_sources_after_it(use: Use, n: int) -> None:
    """Safe points 1 to 4 are before the sources, and 5 is after the last one."""
    wire = await use("pole", *SOURCES, steering=Lines({n: ["focus on the wire"]}))
    assert wire.startswith("focus: the wire (from the user's line)\n")
    assert [("focus: the wire" in part(wire, source)[0]) for source in SOURCES] == [k >= n for k in range(1, 5)]
    assert ("1: the wire hums" in wire) == (n <= 4)
    assert "focus: the wire (from your line)" in use.rows

    lib = await use.part("wire", *SOURCES, of="lib", steering=Lines({n: ["ignore the draft", "prefer copper"]}))
    assert ("wire_draft" not in "".join(lib)) == (n <= 3)
    assert ("1 place left out (ignore: draft, from the user's line)." in lib) == (n <= 3)
    assert ("First those with copper" in "".join(lib)) == (n <= 3)
    assert (
        next(row for row in lib if "lib/a.py:1" in row)
        == f"lib/a.py:{'103: copper wire' if n <= 3 else '101: wire = 1'}"
    )

    notes = await use("wire", *SOURCES, steering=Lines({n: ["prefer notes"]}))
    later = [source for source in SOURCES[n - 1 :] if source != "notes.md"]
    assert order(notes) == ([*SOURCES[: n - 1], "notes.md", *later] if n <= 4 else list(SOURCES))


@pytest.mark.parametrize("n", range(1, 6))
async def test_sources_are_skipped_and_added_at_any_time(use: Use, n: int) -> None:
    lines = ["skip the tests folder.", "also check docs/poles.md"]
    result = await use("pole", *SOURCES, steering=Lines({n: lines}))
    assert {*order(result)} == {*SOURCES, "docs/poles.md"}
    assert part(result, "docs/poles.md") == ["1 place found", "docs/poles.md:N", "1: A pole of wood."]
    assert (part(result, "tests") == ["skipped, as the user said"]) == (n <= 2)
    assert ("tests: skipped, as you said" in use.rows) == (n <= 2)
    assert ("skip: tests, but no remaining source has that name" in result) == (n > 2)
    assert result.endswith("[4 visited, 1 skipped]" if n <= 2 else "[5 visited, 0 skipped]")


@pytest.mark.parametrize("n", range(1, 6))
async def test_a_stop_returns_the_results_so_far(use: Use, n: int) -> None:
    result = await use("wire", *SOURCES, steering=Lines({n: ["stop"]}))
    assert result.endswith(f"\n[{n - 1} visited, {5 - n} skipped]")
    assert order(result) == list(SOURCES)
    assert result.count("not visited, the user stopped") == 5 - n
    assert len(use.rows) == n - 1


async def test_a_preferred_source_can_still_be_skipped(use: Use) -> None:
    result = await use("wire", "docs", "lib", steering=Lines({1: ["prefer lib"], 2: ["skip lib"]}))
    assert part(result, "lib") == ["skipped, as the user said"]
    assert part(result, "docs")[0] == "2 places found"
    result = await use("wire", "docs", "lib", steering=Lines({1: ["skip lib"], 2: ["also check lib"]}))
    assert result.endswith("[2 visited, 0 skipped]")


RULES = """
rules:
  - {when: {step: 1}, tools: [{name: research, input: {topic: pole, sources: [r-docs, r-tests, r-lib]}}]}
  - {text: The answer.}
"""


@pytest.mark.parametrize(
    ("lines", "outcomes", "counts"),
    [
        (
            ["skip r-tests", "focus on the wire", "also check r-notes.md"],
            {
                "r-docs": "2 places found",
                "r-tests": "skipped, as the user said",
                "r-lib": "3 places found, focus: the wire",
                "r-notes.md": "1 place found, focus: the wire",
            },
            "[3 visited, 1 skipped]",
        ),
        (
            ["stop"],
            {
                "r-docs": "2 places found",
                "r-tests": "not visited, the user stopped",
                "r-lib": "not visited, the user stopped",
            },
            "[1 visited, 2 skipped]",
        ),
    ],
    ids=["steered", "stopped"],
)
async def test_lines_of_a_session_reach_the_running_tool(
    guard: Guard, lines: list[str], outcomes: dict[str, str], counts: str
) -> None:
    use = sessions.settings(max_iterations=18 if len(lines) > 1 else 17)
    assert use.file is not None
    for name, text in FILES.items():
        path = use.file.parent / f"r-{name}"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    async with sessions.open_session(RULES, tools=research_tools((), guard), use=use) as session:
        sessions.at(session, events.ToolProgress, lambda: [session.chain.submit(line) for line in lines])
        await session.run("Research the poles")
        (result,) = session.of(events.ToolResult)
    assert {name: part(result.text, name)[0] for name in order(result.text)} == outcomes
    assert result.text.endswith(counts)


# -------------------------------------------------------------------------------------------------------------- pages

HTML = Answer(b"<title>T</title><h1>About wires</h1><p>The <b>wire</b> hums.<p>No.", "text/html")


async def test_a_page_is_searched_by_paragraph(use: Use) -> None:
    async with open_site(page=HTML, text=Answer(b"a\n\nthe wire\n")) as site:
        site.redirect("/old", "/page")
        old, text = site.at("/old"), site.at("/text")
        result = await use("the wire", old, text)
    assert part(result, old) == [
        "2 places found",
        f"{site.at('/page')}: paragraph N",
        "1- T",
        "2: About wires",
        "3: The wire hums.",
        "4- No.",
    ]
    assert part(result, text) == ["1 place found", f"{text}: line N", "1- a", "3: the wire"]
    assert use.asked.subjects == ["127.0.0.1"]
    assert text in use.asked.previews[0].text


@pytest.mark.parametrize(("answer", "reason"), [("not\nthat one", "not that one"), ("?", "no one answered")])
async def test_a_refused_host_skips_its_source(use: Use, answer: str, reason: str) -> None:
    use.asked.answers["127.0.0.1"] = answer
    async with open_site(page=HTML) as site:
        result = await use("wire", site.at("/page"), "notes.md")
        assert not site.asked
    assert part(result, site.at("/page")) == [f"refused: {reason}"]
    assert use.rows == [f"{site.at('/page')}: refused: {reason}", "notes.md: 1 place found"]
    assert result.endswith("[1 visited, 1 skipped]")


async def test_a_refused_redirect_counts_as_visited(use: Use) -> None:
    use.hosts, use.asked.answers = ("127.0.0.1",), {"127.0.0.2": "no"}
    async with open_site() as site:
        site.redirect("/old", site.at("/page", "127.0.0.2"))
        result = await use("wire", site.at("/old"))
    assert part(result, site.at("/old")) == ["redirects to 127.0.0.2, which was refused: no"]
    assert result.endswith("[1 visited, 0 skipped]")


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("line", ["also check {}", "also check {}.", "also check the {} page"])
@pytest.mark.parametrize("is_named_by_model", [True, False])
async def test_a_host_of_the_user_needs_no_approval(use: Use, line: str, is_named_by_model: bool) -> None:
    async with open_site(page=HTML, other=HTML) as site:
        sources = ["notes.md", *([site.at("/other")] if is_named_by_model else [])]
        found = await use.part(
            "wire", *sources, of=site.at("/page"), steering=Lines({1: [line.format(site.at("/page"))]})
        )
    assert found[0] == "2 places found"
    assert not use.asked.previews


async def test_a_user_can_omit_the_scheme(use: Use) -> None:
    """The name is a path if there is such a file, else an https address."""
    use.asked.answers["localhost"] = "no"
    async with open_site() as site:
        name = f"localhost:{site.port}/page"
        found = await use.part("wire", "notes.md", of=name, steering=Lines({2: [f"also check {name}"]}))
    assert found[0].startswith("cannot be reached: no secure connection")
    assert not use.asked.previews
    assert await use.part("wire", "docs", of="notes.md", steering=Lines({1: ["also check notes.md"]}))
