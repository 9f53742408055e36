"""What a research visits, finds and tells, and how the user's lines change it while it runs."""

from collections.abc import Callable
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
from chain.tools.research import visits
from chain.tools.research.report import MAX_RESULT
from chain.tools.research.visits import research_tools
from chain.tools.tool import Guidance, ToolContext

PADDING = "pass  # nothing of it\n" * 100
"""Lines before those that are to stand behind the beginning of a source."""

FILES = {
    "docs/wire.md": "# The wire\n\nHow wires are laid.\nA pole.\n",
    "docs/poles.md": "A pole of wood.\n",
    "tests/test_wire.py": "def test_wire():\n    pass\n",
    "lib/a.py": f"{PADDING}wire = 1\nwire_draft = 2  # a draft\ncopper wire\n",
    "notes.md": "the wire hums\n",
}


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "secret.txt").write_text("the wire is secret\n")
    root = tmp_path / "work"
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def said(line: str) -> Adjustment:
    adjustment = parse_line(line).adjustment
    assert adjustment is not None
    return adjustment


@dataclass
class Lines:
    """Lines that come at safe points, counted from 1; a stop is one of them."""

    at: dict[int, list[str]]
    n: int = 0

    def new_guidance(self) -> Guidance:
        self.n += 1
        lines = self.at.get(self.n, [])
        return Guidance(tuple(said(line) for line in lines if line != "stop"), "stop" in lines)


@dataclass
class Use:
    """One use of the tool, and what was reported."""

    workspace: Path
    hosts: tuple[str, ...] = ()
    asked: Asked = field(default_factory=Asked)
    rows: list[str] = field(default_factory=list)
    result_limit: int = 30_000
    report: Callable[[str], None] = lambda text: None

    async def __call__(self, topic: str, *sources: str, steering: Any = None) -> str:
        (tool,) = research_tools(self.hosts)

        def report(text: str) -> None:
            self.rows.append(text)
            self.report(text)

        context = ToolContext(
            *(self.workspace, Plan(), "call_1", steering or Steered(), report),
            asking=self.asked,
            result_limit=self.result_limit,
        )
        return await tool.run(context, {"topic": topic, "sources": list(sources)})


@pytest.fixture
def use(workspace: Path) -> Use:
    return Use(workspace)


def part(result: str, name: str) -> list[str]:
    """The rows of a source, without its heading's name."""
    for each in result.split("\n\n"):
        if each.startswith(f"## {name}: "):
            return each.removeprefix(f"## {name}: ").splitlines()
    raise AssertionError(f"nothing about {name} in:\n{result}")


def order(result: str) -> list[str]:
    """The sources in the order of the result."""
    return [row[3:].split(": ")[0] for row in result.splitlines() if row.startswith("## ")]


# ------------------------------------------------------------------------------------------------------------- files


async def test_it_says_what_it_found_and_where(use: Use) -> None:
    result = await use("the wire", "docs", "notes.md")
    assert result == (
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


async def test_the_whole_workspace_is_a_source(use: Use) -> None:
    result = await use("wood", ".")
    assert part(result, ".")[0] == "1 place found"
    assert "docs/poles.md:N\n1: A pole of wood." in result


async def test_a_source_that_is_named_twice_is_visited_once(use: Use) -> None:
    assert (await use("wire", "docs", "./docs/", "docs/")).endswith("[1 visited, 0 skipped]")


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
async def test_a_source_that_cannot_be_visited_says_why_and_the_next_one_is(use: Use, source: str, says: str) -> None:
    (use.workspace / "out.txt").symlink_to(use.workspace.parent / "secret.txt")
    (use.workspace / "data.bin").write_bytes(b"wire\0wire")
    result = await use("wire", source, "notes.md")
    assert says in result
    assert "secret" not in result.replace("secret.txt", "")
    assert part(result, "notes.md")[0] == "1 place found"
    assert says in (await use("wire", source)), "also if it is the only one"


async def test_what_was_not_searched_is_said(use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visits, "MAX_IN_FOLDER", 1000)
    (use.workspace / "docs/data.bin").write_bytes(b"wire\0wire")
    (use.workspace / "docs/large.txt").write_text("wire\n" * 300)
    (use.workspace / "docs/.git").mkdir()
    (use.workspace / "docs/out").symlink_to(use.workspace.parent / "secret.txt")
    found = part(await use("secret", "docs"), "docs")
    assert [found[0], *found[-3:]] == [
        "0 places found",
        "1 file not searched: binary or not readable.",
        "1 file not searched: more than 1000 bytes.",
        "Left out: docs/.git/.",
    ]
    assert part(await use("wire", "docs/large.txt"), "docs/large.txt")[0] == "300 places found"
    monkeypatch.setattr(visits, "MAX_SOURCE_BYTES", 100)
    found = part(await use("wire", "docs/large.txt"), "docs/large.txt")
    assert found[0] == "20 places found"
    assert "were read." in found[-1]
    monkeypatch.setattr(visits, "MAX_SOURCE_BYTES", 80)
    assert "were read." in part(await use("wire", "."), ".")[-2]
    monkeypatch.setattr(visits, "MAX_ROWS", 2)
    assert part(await use("wire", "."), ".")[-2] == "Only the first 2 rows were searched."


@pytest.mark.parametrize("limit", [1, 5_000])
async def test_the_limit_of_a_result_is_shared_as_well(use: Use, limit: int) -> None:
    names = [f"many{n}" for n in range(10)]
    for name in names:
        (use.workspace / name).write_text(("wire " * 10 + "\n") * 100)
    use.result_limit = limit
    result = await use("wire", *names)
    assert order(result) == names
    assert len(result) < max(limit, 1_000), "no more than it takes to name them"
    assert all(("wire wire" in "".join(part(result, name))) == (limit > 1) for name in names)


async def test_behind_its_beginning_the_places_of_a_source_come_with_their_neighbours(use: Use) -> None:
    result = await use("the wire", "lib", "notes.md", steering=Lines({1: ["ignore the draft"]}))
    assert part(result, "lib")[-5:] == [
        "lib/a.py:101: wire = 1",
        "  99- pass  # nothing of it",
        "  100- pass  # nothing of it",
        "  103: copper wire",
        "1 place left out (ignore: draft, from the user's line).",
    ]
    assert "draft" not in "".join(part(result, "lib")[:-1])


async def test_a_source_alone_is_given_whole(use: Use) -> None:
    lines = [f"line {n} of it" for n in range(1, 1001)]
    (use.workspace / "alone.txt").write_text("\n".join(lines))
    found = part(await use("wire", "alone.txt", "gone.txt"), "alone.txt")
    assert found == ["0 places found", "alone.txt:N", *(f"{n}- {line}" for n, line in enumerate(lines, 1))]
    beside = part(await use("wire", "alone.txt", "notes.md"), "alone.txt")
    assert beside == found[: len(beside)][:-1] + beside[-1:]
    assert 1400 < len("\n".join(beside)) < 1600


async def test_a_source_alone_that_is_too_long_gives_its_places_and_as_much_as_there_is_room_for(use: Use) -> None:
    for n in range(2):
        (use.workspace / f"long{n}.txt").write_text(PADDING * 20 + "Wires\ntheir price is 42\n" + PADDING * 20)
    found = part(await use("wires", "long0.txt"), "long0.txt")
    assert 0.9 * MAX_RESULT < len("\n".join(found)) <= MAX_RESULT
    assert "  2002- their price is 42" in found


@pytest.mark.parametrize(
    ("topic", "sources", "says"),
    [
        ("", ["docs"], "topic"),
        (" \n", ["docs"], "topic"),
        ("x" * 2000, ["docs"], "topic"),
        ("wire", [], "it names 0"),
        ("wire", ["docs"] * 51, "it names 51"),
    ],
)
async def test_what_cannot_be_researched_at_all(use: Use, topic: str, sources: list[str], says: str) -> None:
    with pytest.raises(ToolError, match=says):
        await use(topic, *sources)
    assert not use.rows


# ----------------------------------------------------------------------------------------------------------- guidance


async def test_guidance_before_the_first_source_changes_all_that_follows(use: Use) -> None:
    result = await use("pole", "docs", "tests", steering=Steered(said("focus on the wire"), said("also check lib")))
    assert result.splitlines()[:2] == [
        "focus: the wire (from the user's line)",
        "also check: lib (from the user's line)",
    ]
    assert order(result) == ["docs", "tests", "lib"]
    assert part(result, "docs")[0] == "2 places found, focus: the wire"
    assert part(result, "docs")[-3:] == ["1: # The wire", "3: How wires are laid.", "4- A pole."]
    assert use.rows[0] == "focus: the wire (from your line)"


SOURCES = ("docs", "tests", "lib", "notes.md")


@pytest.mark.parametrize("n", range(1, 6))
async def test_skip_at_every_safe_point(use: Use, n: int) -> None:
    result = await use("wire", *SOURCES, steering=Lines({n: ["skip the tests folder."]}))
    if n <= 2:
        assert part(result, "tests") == ["skipped, as the user said"]
        assert "tests: skipped, as you said" in use.rows
        assert result.endswith("[3 visited, 1 skipped]")
    else:
        assert part(result, "tests")[0] == "1 place found"
        assert "skip: tests, but no remaining source has that name" in result
        assert result.endswith("[4 visited, 0 skipped]")


@pytest.mark.parametrize("n", range(1, 6))
async def test_also_check_at_every_safe_point(use: Use, n: int) -> None:
    """Also at the last, after the last source: nobody who types can know which one that is."""
    result = await use("pole", "docs", "tests", "lib", "notes.md", steering=Lines({n: ["also check docs/poles.md"]}))
    assert order(result) == [*SOURCES, "docs/poles.md"]
    assert part(result, "docs/poles.md") == ["1 place found", "docs/poles.md:N", "1: A pole of wood."]
    assert result.endswith("[5 visited, 0 skipped]")


@pytest.mark.parametrize("n", range(1, 6))
async def test_focus_at_every_safe_point_changes_what_comes_after_it(use: Use, n: int) -> None:
    result = await use("pole", *SOURCES, steering=Lines({n: ["focus on the wire"]}))
    for k, source in enumerate(SOURCES, 1):
        assert ("focus: the wire" in part(result, source)[0]) == (k >= n)
    assert ("1: the wire hums" in result) == (n <= 4)


@pytest.mark.parametrize("n", range(1, 6))
async def test_ignore_at_every_safe_point(use: Use, n: int) -> None:
    result = await use("wire", *SOURCES, steering=Lines({n: ["ignore the draft"]}))
    assert ("wire_draft" in result) == (n > 3)
    assert ("1 place left out (ignore: draft, from the user's line)." in part(result, "lib")) == (n <= 3)


@pytest.mark.parametrize("n", range(1, 6))
async def test_prefer_at_every_safe_point(use: Use, n: int) -> None:
    result = await use("wire", *SOURCES, steering=Lines({n: ["prefer copper", "prefer notes"]}))
    first = next(row for row in part(result, "lib") if row.startswith("lib/a.py:1"))
    assert first == ("lib/a.py:103: copper wire" if n <= 3 else "lib/a.py:101: wire = 1")
    assert ("First those with copper" in "".join(part(result, "lib"))) == (n <= 3)
    rest = [s for s in SOURCES[n - 1 :] if s != "notes.md"]
    assert order(result) == ([*SOURCES[: n - 1], "notes.md", *rest] if n <= 4 else list(SOURCES))


@pytest.mark.parametrize("n", range(1, 7))
async def test_a_stop_at_every_safe_point_returns_what_there_is(use: Use, n: int) -> None:
    five = (*SOURCES, "docs/wire.md")
    result = await use("wire", *five, steering=Lines({n: ["stop"]}))
    visited = min(n - 1, 5)
    assert result.splitlines()[-1] == f"[{visited} visited, {5 - visited} skipped]"
    assert order(result) == list(five)
    assert result.count("not visited, the user stopped") == 5 - visited
    assert len(use.rows) == visited


async def test_a_source_put_first_by_a_line_has_its_own_safe_point(use: Use) -> None:
    """What is said before it still keeps it from being visited."""
    result = await use("wire", "docs", "lib", steering=Lines({1: ["prefer lib"], 2: ["skip lib"]}))
    assert part(result, "lib") == ["skipped, as the user said"]
    assert part(result, "docs")[0] == "2 places found"


async def test_what_was_skipped_is_visited_if_the_user_says_so(use: Use) -> None:
    result = await use("wire", "docs", "lib", steering=Lines({1: ["skip lib"], 2: ["also check lib"]}))
    assert order(result) == ["docs", "lib"]
    assert result.endswith("[2 visited, 0 skipped]")


RULES = """
rules:
  - {when: {step: 1}, tools: [{name: research, input: {topic: pole, sources: [r-docs, r-tests, r-lib]}}]}
  - {text: The answer.}
"""


async def test_lines_of_a_session_steer_a_research_that_runs() -> None:
    use = sessions.settings(max_iterations=18)
    assert use.file is not None
    for name, text in FILES.items():
        path = use.file.parent / f"r-{name}"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    async with sessions.open_session(RULES, tools=research_tools(), use=use) as session:

        def send() -> None:
            for line in ("skip r-tests", "focus on the wire", "also check r-notes.md"):
                assert session.chain.submit(line).what == "queued"

        sessions.at(session, events.ToolProgress, send)
        await session.run("Research the poles")
        (result,) = session.of(events.ToolResult)
        told = [e.text for e in session.of(events.ToolProgress)]
    assert order(result.text) == ["r-docs", "r-tests", "r-lib", "r-notes.md"]
    assert part(result.text, "r-docs")[0] == "2 places found"
    assert part(result.text, "r-tests") == ["skipped, as the user said"]
    assert part(result.text, "r-lib")[0] == "3 places found, focus: the wire"
    assert result.text.endswith("[3 visited, 1 skipped]")
    assert "r-tests: skipped, as you said" in told


async def test_a_stop_in_a_session_ends_a_research_with_what_it_has() -> None:
    use = sessions.settings(max_iterations=17)
    assert use.file is not None
    (use.file.parent / "r-docs").write_text("a pole\n")
    async with sessions.open_session(RULES, tools=research_tools(), use=use) as session:
        sessions.at(session, events.ToolProgress, lambda: session.chain.submit("stop"))
        await session.run("Research the poles")
        (result,) = session.of(events.ToolResult)
    assert part(result.text, "r-docs") == ["1 place found", "r-docs:N", "1: a pole"]
    assert result.text.endswith("[1 visited, 2 skipped]")


# -------------------------------------------------------------------------------------------------------------- pages

HTML = Answer(b"<title>T</title><h1>About wires</h1><p>The <b>wire</b> hums.<p>No.", "text/html")


async def test_a_page_is_searched_by_its_paragraphs(use: Use) -> None:
    async with open_site(page=HTML, text=Answer(b"a\n\nthe wire\n")) as site:
        page, text = site.at("/page"), site.at("/text")
        result = await use("the wire", page, text)
    assert part(result, page) == [
        "2 places found",
        f"{page}: paragraph N",
        "1- T",
        "2: About wires",
        "3: The wire hums.",
        "4- No.",
    ]
    assert part(result, text) == ["1 place found", f"{text}: line N", "1- a", "3: the wire"]
    assert use.asked.subjects == ["127.0.0.1"], "a host is asked about once"
    assert text in use.asked.previews[0].text


async def test_places_of_a_page_name_where_it_was_in_the_end(use: Use) -> None:
    async with open_site(page=HTML) as site:
        site.redirect("/old", "/page")
        result = await use("hums", site.at("/old"))
    assert part(result, site.at("/old"))[1] == f"{site.at('/page')}: paragraph N"


async def test_a_host_of_the_configuration_is_not_asked_about(use: Use) -> None:
    use.hosts = ("127.0.0.1",)
    async with open_site(page=HTML) as site:
        assert "hums" in await use("wire", site.at("/page"))
    assert not use.asked.previews


async def test_a_refused_host_leaves_out_that_source_alone(use: Use) -> None:
    use.asked.answers["127.0.0.1"] = "not\nthat one"
    async with open_site(page=HTML) as site:
        result = await use("wire", site.at("/page"), "notes.md")
        assert not site.asked
    assert part(result, site.at("/page")) == ["refused: not that one"]
    assert part(result, "notes.md")[0] == "1 place found"
    assert use.rows[0] == f"{site.at('/page')}: refused: not that one"
    assert result.endswith("[1 visited, 1 skipped]")


async def test_a_question_that_was_withdrawn_leaves_out_that_source(use: Use) -> None:
    use.asked.answers["127.0.0.1"] = "?"
    async with open_site(page=HTML) as site:
        result = await use("wire", site.at("/page"), steering=Lines({2: ["stop"]}))
    assert "refused: nobody decided" in result


async def test_a_redirect_that_was_refused_counts_as_visited(use: Use) -> None:
    use.hosts, use.asked.answers = ("127.0.0.1",), {"127.0.0.2": "no"}
    async with open_site() as site:
        site.redirect("/old", site.at("/page", "127.0.0.2"))
        result = await use("wire", site.at("/old"))
    assert part(result, site.at("/old")) == ["redirects to 127.0.0.2, which was refused: no"]
    assert result.endswith("[1 visited, 0 skipped]")


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("line", ["also check {}", "also check {}.", "also check the {} page"])
@pytest.mark.parametrize("is_named_by_model", [True, False])
async def test_a_host_that_the_user_named_is_not_asked_about(use: Use, line: str, is_named_by_model: bool) -> None:
    async with open_site(page=HTML, other=HTML) as site:
        sources = ["notes.md", *([site.at("/other")] if is_named_by_model else [])]
        result = await use("wire", *sources, steering=Lines({1: [line.format(site.at("/page"))]}))
    assert part(result, site.at("/page"))[0] == "2 places found"
    assert not use.asked.previews


async def test_the_user_may_leave_out_the_scheme(use: Use) -> None:
    """Then it is a path if there is one, else https."""
    use.asked.answers["localhost"] = "no"
    async with open_site() as site:
        name = f"localhost:{site.port}/page"
        result = await use("wire", "notes.md", steering=Lines({2: [f"also check {name}"]}))
    assert part(result, name)[0].startswith("cannot be reached: no secure connection")
    assert not use.asked.previews
    assert part(await use("wire", "docs", steering=Lines({1: ["also check notes.md"]})), "notes.md")


async def test_the_end_of_a_page_that_is_too_long_is_left_out_and_said_to_be(
    use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chain.tools.research.pages.MAX_SOURCE_BYTES", 1_000)
    async with open_site(page=Answer(b"the wire\n" + b"x" * 100 + b"\n", is_endless=True)) as site:
        found = part(await use("wire", site.at("/page")), site.at("/page"))
    assert found[:3] == ["1 place found", f"{site.at('/page')}: line N", "1: the wire"]
    assert found[-1] == "Only the first 5 MB were read."
