"""The tool ``research``: its visits and results, and the lines that change a running call."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support import sessions
from support.contexts import QueuedGuidance, tool_context
from support.site import Answer, User, open_site

from chain import events
from chain.errors import ToolError
from chain.lines.parse import parse_line
from chain.tools.processes.guarded import Guard
from chain.tools.research import visits
from chain.tools.research.report import MAX_RESULT
from chain.tools.research.visits import research_tools
from chain.tools.tool import Guidance

PADDING = "pass  # nothing of it\n" * 100
"""More rows than the beginning of a source has in a result."""

FILES = {
    "docs/wire.md": "# The wire\n\nHow wires are laid.\nA pole.\n",
    "docs/poles.md": "A pole of wood.\n",
    "tests/test_wire.py": "def test_wire():\n    pass\n",
    "lib/a.py": f"{PADDING}wire = 1\nwire_draft = 2  # a draft\ncopper wire\n",
    "notes.md": "the wire hums\n",
}
SOURCES = ["docs", "tests", "lib", "notes.md"]


@dataclass
class LinesAt:
    """Lines of the user that arrive at safe points, which are counted from 1. The line ``stop`` is a stop."""

    lines: dict[int, list[str]]
    point: int = 0

    def new_guidance(self) -> Guidance:
        self.point += 1
        lines = self.lines.get(self.point, [])
        adjustments = [parse_line(line).adjustment for line in lines if line != "stop"]
        return Guidance(tuple(each for each in adjustments if each is not None), "stop" in lines)


@dataclass
class Research:
    """The tool in a workspace, its user, and the progress that it has reported."""

    workspace: Path
    guard: Guard
    hosts: tuple[str, ...] = ()
    user: User = field(default_factory=User)
    progress: list[str] = field(default_factory=list)
    result_limit: int = 30_000

    async def __call__(self, topic: str, *sources: str, steering: Any = None) -> str:
        (tool,) = research_tools(self.hosts, self.guard)
        context = tool_context(
            self.workspace,
            steering=steering or QueuedGuidance(),
            report=self.progress.append,
            asking=self.user,
            result_limit=self.result_limit,
        )
        return await tool.run(context, {"topic": topic, "sources": list(sources)})


@pytest.fixture
def research(tmp_path: Path, guard: Guard) -> Research:
    (tmp_path / "secret.txt").write_text("the wire is secret\n")
    for name, text in FILES.items():
        (tmp_path / "work" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "work" / name).write_text(text)
    return Research(tmp_path / "work", guard)


def section(result: str, source: str) -> list[str]:
    """Return the rows for a source in a result. The first one is its outcome."""
    (text,) = (each for each in result.split("\n\n") if f"## {source}: " in each)
    return text.partition(f"## {source}: ")[2].splitlines()


def outcome(result: str, source: str) -> str:
    return section(result, source)[0]


def sources_of(result: str) -> list[str]:
    return [row.removeprefix("## ").split(": ")[0] for row in result.splitlines() if row.startswith("## ")]


# ------------------------------------------------------------------------------------------------------------- files


async def test_a_result_lists_places_with_rows(research: Research) -> None:
    assert await research("the wire", "docs", "notes.md", "./docs/") == (
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
    assert research.progress == ["docs: 2 places found", "notes.md: 1 place found"]


@pytest.mark.parametrize(
    ("source", "error"),
    [
        pytest.param("dosc", "There is no dosc; did you mean docs?", id="missing"),
        pytest.param("../secret.txt", "must not contain ..", id="parent folder"),
        pytest.param("out.txt", "leads out of the workspace", id="symbolic link"),
        pytest.param("x" * 3000, "has more than 2000 characters", id="long"),
        pytest.param("example.org", "An address begins with https://", id="address without a scheme"),
        pytest.param("data.bin", "binary", id="binary file"),
        pytest.param("file:///etc/passwd", "not an http or https address", id="address of a file"),
    ],
)
async def test_an_unreadable_source_does_not_end_the_research(research: Research, source: str, error: str) -> None:
    (research.workspace / "out.txt").symlink_to(research.workspace.parent / "secret.txt")
    (research.workspace / "data.bin").write_bytes(b"wire\0wire")
    result = await research("wire", source, "notes.md")
    assert error in result
    assert "is secret" not in result
    assert outcome(result, "notes.md") == "1 place found"


async def test_files_of_a_folder_that_were_not_searched(research: Research, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visits, "MAX_IN_FOLDER", 1000)
    (research.workspace / "docs/data.bin").write_bytes(b"wire\0wire")
    (research.workspace / "docs/large.txt").write_text("wire\n" * 300)
    (research.workspace / "docs/.git").mkdir()
    (research.workspace / "docs/out").symlink_to(research.workspace.parent / "secret.txt")
    result = await research("secret", "docs")
    assert outcome(result, "docs") == "0 places found"
    assert section(result, "docs")[-3:] == [
        "1 file not searched: binary or not readable.",
        "1 file not searched: more than 1000 bytes.",
        "Left out: docs/.git/.",
    ]
    assert outcome(await research("wire", "docs/large.txt"), "docs/large.txt") == "300 places found"


@pytest.mark.parametrize("source", ["large", "large/file.txt"])
async def test_the_bytes_of_a_source_are_limited(
    research: Research, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visits, "MAX_SOURCE_BYTES", 2**20)
    monkeypatch.setattr(visits, "MAX_IN_FOLDER", 2**21)
    (research.workspace / "large").mkdir()
    row = "wire".ljust(1023) + "\n"
    (research.workspace / "large/file.txt").write_text(row * 1025)
    (research.workspace / "large/next.txt").write_text(row)
    result = await research("wire", source)
    assert outcome(result, source) == "1,024 places found"
    assert section(result, source)[-1] == "Only the first 1 MB were read."


async def test_the_rows_of_a_source_are_limited(research: Research, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visits, "MAX_ROWS", 2)
    assert "Only the first 2 rows were searched." in section(await research("wire", "docs"), "docs")


@pytest.mark.parametrize("limit", [1, 5_000])
async def test_sources_share_the_limit_of_a_result(research: Research, limit: int) -> None:
    names = [f"long{n}" for n in range(10)]
    for name in names:
        (research.workspace / name).write_text(("wire " * 10 + "\n") * 100)
    research.result_limit = limit
    result = await research("wire", *names)
    assert sources_of(result) == names
    assert len(result) < max(limit, 1_000)  # the names and outcomes are always shown
    assert all(("wire wire" in "".join(section(result, name))) == (limit > 1) for name in names)


async def test_a_single_source_is_returned_whole(research: Research) -> None:
    rows = [f"line {n} of it" for n in range(1, 1001)]
    (research.workspace / "alone.txt").write_text("\n".join(rows))
    alone = section(await research("wire", "alone.txt", "missing.txt"), "alone.txt")
    assert alone == ["0 places found", "alone.txt:N", *(f"{n}- {row}" for n, row in enumerate(rows, 1))]


async def test_a_long_single_source_fills_the_result(research: Research) -> None:
    (research.workspace / "long.txt").write_text(PADDING * 20 + "Wires\ntheir price is 42\n" + PADDING * 20)
    rows = section(await research("wires", "long.txt"), "long.txt")
    assert 0.9 * MAX_RESULT < len("\n".join(rows)) <= MAX_RESULT
    assert "  2002- their price is 42" in rows


@pytest.mark.parametrize(
    ("topic", "sources", "error"),
    [
        pytest.param(" \n", ["docs"], "topic", id="blank topic"),
        pytest.param("x" * 2000, ["docs"], "topic", id="long topic"),
        pytest.param("wire", [], "it names 0", id="no source"),
        pytest.param("wire", ["docs"] * 51, "it names 51", id="many sources"),
    ],
)
async def test_invalid_arguments_are_an_error(research: Research, topic: str, sources: list[str], error: str) -> None:
    with pytest.raises(ToolError, match=error):
        await research(topic, *sources)
    assert not research.progress


# ----------------------------------------------------------------------------------------------------- the user's lines

at_each_point = pytest.mark.parametrize("point", [1, 2, 3, 4, 5])
"""Safe points 1 to 4 are before the four ``SOURCES``, and 5 is after the last one."""


def sources_after(point: int) -> list[str]:
    return SOURCES[point - 1 :]


@at_each_point
async def test_focus_changes_later_sources(research: Research, point: int) -> None:
    result = await research("pole", *SOURCES, steering=LinesAt({point: ["focus on the wire"]}))
    assert result.startswith("focus: the wire (from the user's line)\n")
    assert "focus: the wire (from your line)" in research.progress
    focused = [source for source in SOURCES if "focus: the wire" in outcome(result, source)]
    assert focused == sources_after(point)
    assert ("1: the wire hums" in result) == ("notes.md" in focused)


@at_each_point
async def test_ignore_leaves_out_rows_of_later_sources(research: Research, point: int) -> None:
    result = await research("wire", *SOURCES, steering=LinesAt({point: ["ignore the draft"]}))
    is_later = "lib" in sources_after(point)
    assert ("wire_draft" in result) != is_later
    assert ("1 place left out (ignore: draft, from the user's line)." in section(result, "lib")) == is_later


@at_each_point
async def test_prefer_changes_the_order_of_sources(research: Research, point: int) -> None:
    result = await research("wire", *SOURCES, steering=LinesAt({point: ["prefer notes"]}))
    earlier, later = SOURCES[: point - 1], sources_after(point)
    assert sources_of(result) == [*earlier, *sorted(later, key=lambda source: source != "notes.md")]


@at_each_point
async def test_skip_removes_a_later_source(research: Research, point: int) -> None:
    result = await research("pole", *SOURCES, steering=LinesAt({point: ["skip the tests folder."]}))
    is_later = "tests" in sources_after(point)
    assert (section(result, "tests") == ["skipped, as the user said"]) == is_later
    assert ("tests: skipped, as you said" in research.progress) == is_later
    assert ("skip: tests, but no remaining source has that name" in result) != is_later
    assert result.endswith("[3 visited, 1 skipped]" if is_later else "[4 visited, 0 skipped]")


@at_each_point
async def test_a_source_can_be_added_at_any_time(research: Research, point: int) -> None:
    result = await research("pole", *SOURCES, steering=LinesAt({point: ["also check docs/poles.md"]}))
    assert sources_of(result) == [*SOURCES, "docs/poles.md"]
    assert section(result, "docs/poles.md") == ["1 place found", "docs/poles.md:N", "1: A pole of wood."]
    assert result.endswith("[5 visited, 0 skipped]")


@at_each_point
async def test_a_stop_returns_the_results_so_far(research: Research, point: int) -> None:
    result = await research("wire", *SOURCES, steering=LinesAt({point: ["stop"]}))
    remaining = sources_after(point)
    visited = len(SOURCES) - len(remaining)
    assert result.endswith(f"\n[{visited} visited, {len(remaining)} skipped]")
    assert sources_of(result) == SOURCES
    assert [source for source in SOURCES if outcome(result, source) == "not visited, the user stopped"] == remaining
    assert len(research.progress) == visited


async def test_a_preferred_source_can_still_be_skipped(research: Research) -> None:
    result = await research("wire", "docs", "lib", steering=LinesAt({1: ["prefer lib"], 2: ["skip lib"]}))
    assert section(result, "lib") == ["skipped, as the user said"]
    assert outcome(result, "docs") == "2 places found"


async def test_a_skipped_source_can_be_added_again(research: Research) -> None:
    result = await research("wire", "docs", "lib", steering=LinesAt({1: ["skip lib"], 2: ["also check lib"]}))
    assert result.endswith("[2 visited, 0 skipped]")


RULES = """
rules:
  - {when: {step: 1}, tools: [{name: research, input: {topic: pole, sources: [r-docs, r-tests, r-lib]}}]}
  - {text: The answer.}
"""


@pytest.mark.parametrize(
    ("lines", "outcomes", "counts"),
    [
        pytest.param(
            ["skip r-tests", "focus on the wire", "also check r-notes.md"],
            {
                "r-docs": "2 places found",
                "r-tests": "skipped, as the user said",
                "r-lib": "3 places found, focus: the wire",
                "r-notes.md": "1 place found, focus: the wire",
            },
            "[3 visited, 1 skipped]",
            id="changed sources",
        ),
        pytest.param(
            ["stop"],
            {
                "r-docs": "2 places found",
                "r-tests": "not visited, the user stopped",
                "r-lib": "not visited, the user stopped",
            },
            "[1 visited, 2 skipped]",
            id="stop",
        ),
    ],
)
async def test_lines_of_a_session_reach_the_running_tool(
    guard: Guard, lines: list[str], outcomes: dict[str, str], counts: str
) -> None:
    settings = sessions.make_settings(max_iterations=17)  # as in no other test, so that the folder is not shared
    assert settings.file is not None
    for name, text in FILES.items():
        path = settings.file.parent / f"r-{name}"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    async with sessions.open_session(RULES, tools=research_tools((), guard), settings=settings) as session:
        sessions.call_at_event(session, events.ToolProgress, lambda: [session.chain.submit(line) for line in lines])
        await session.run("Research the poles")
        (result,) = session.of(events.ToolResult)
    assert {source: outcome(result.text, source) for source in sources_of(result.text)} == outcomes
    assert result.text.endswith(counts)


# -------------------------------------------------------------------------------------------------------------- pages

HTML = Answer(b"<title>T</title><h1>About wires</h1><p>The <b>wire</b> hums.<p>No.", "text/html")


async def test_html_is_searched_by_paragraph(research: Research) -> None:
    async with open_site(new=HTML) as site:
        site.redirect("/old", "/new")
        result = await research("the wire", site.url("/old"))
    assert section(result, site.url("/old")) == [
        "2 places found",
        f"{site.url('/new')}: paragraph N",
        "1- T",
        "2: About wires",
        "3: The wire hums.",
        "4- No.",
    ]


async def test_one_question_shows_all_pages_of_a_host(research: Research) -> None:
    async with open_site(first=HTML, second=HTML) as site:
        await research("the wire", site.url("/first"), site.url("/second"))
    assert research.user.asked_about == ["127.0.0.1"]
    assert site.url("/second") in research.user.previews[0].text


@pytest.mark.parametrize(
    ("answer", "reason"), [("not\nthat one", "not that one"), ("?", "no one answered")], ids=["refused", "withdrawn"]
)
async def test_a_refused_host_skips_its_source(research: Research, answer: str, reason: str) -> None:
    research.user.answers["127.0.0.1"] = answer
    async with open_site(page=HTML) as site:
        result = await research("wire", site.url("/page"), "notes.md")
        assert not site.requests
    assert section(result, site.url("/page")) == [f"refused: {reason}"]
    assert research.progress == [f"{site.url('/page')}: refused: {reason}", "notes.md: 1 place found"]
    assert result.endswith("[1 visited, 1 skipped]")


async def test_a_refused_redirect_counts_as_visited(research: Research) -> None:
    research.hosts, research.user.answers = ("127.0.0.1",), {"127.0.0.2": "no"}
    async with open_site() as site:
        site.redirect("/old", site.url("/page", "127.0.0.2"))
        result = await research("wire", site.url("/old"))
    assert section(result, site.url("/old")) == ["redirects to 127.0.0.2, which was refused: no"]
    assert result.endswith("[1 visited, 0 skipped]")


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("line", ["also check {}", "also check {}.", "also check the {} page"])
@pytest.mark.parametrize("is_named_by_model", [True, False])
async def test_a_host_of_the_user_needs_no_approval(research: Research, line: str, is_named_by_model: bool) -> None:
    async with open_site(page=HTML, other=HTML) as site:
        page, other = site.url("/page"), site.url("/other")
        sources = ["notes.md", other] if is_named_by_model else ["notes.md"]
        result = await research("wire", *sources, steering=LinesAt({1: [line.format(page)]}))
    assert outcome(result, page) == "2 places found"
    assert not research.user.previews


async def test_a_user_can_omit_the_scheme(research: Research) -> None:
    research.user.answers["localhost"] = "no"
    async with open_site() as site:
        name = f"localhost:{site.port}/page"
        result = await research("wire", "notes.md", steering=LinesAt({2: [f"also check {name}"]}))
    assert outcome(result, name).startswith("cannot be reached: no secure connection")
    assert not research.user.previews


async def test_a_file_is_preferred_to_a_host(research: Research) -> None:
    result = await research("wire", "docs", steering=LinesAt({1: ["also check notes.md"]}))
    assert outcome(result, "notes.md") == "1 place found"
