"""The tools that list, read and search files: their results, their limits, and that nothing blocks them."""

import os
import re
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import trio
import trio.testing
from support.steered import tool_context

from chain.errors import ToolError
from chain.tools import file_tree, files
from chain.tools.files import TOOLS, _change_date, list_files, read_file, search_files
from chain.tools.paths import MAX_WHOLE


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "secret.txt").write_text("outside\n")
    root = tmp_path / "work"
    for name, text in {
        "readme.md": "# Title\n\nSome words here.\n",
        "docs/b.txt": "beta\nBeta two\n",
        "docs/a.txt": "alpha\nbeta gamma\n",
        "docs/deep/c.txt": "no end of line",
        ".git/config": "beta\n",
        "node_modules/x/y.js": "beta\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "data.bin").write_bytes(b"ab\0beta\n")
    return root


async def use(workspace: Path, tool: Any, **input: Any) -> str:
    return str((await tool.run(tool_context(workspace), input)).text)


async def rows(workspace: Path, tool: Any, **input: Any) -> list[str]:
    return (await use(workspace, tool, **input)).splitlines()


async def refused(workspace: Path, tool: Any, **input: Any) -> str:
    with pytest.raises(ToolError) as caught:
        await use(workspace, tool, **input)
    return str(caught.value)


# ----------------------------------------------------------------------------------------------------------- all three


@pytest.mark.parametrize("tool", TOOLS)
async def test_each_tool_only_reads_inside_the_workspace(workspace: Path, tool: Any) -> None:
    assert tool.read_only
    assert not tool.needs_approval
    (workspace / "out").symlink_to(workspace.parent / "secret.txt")
    more = {"pattern": "x"} if tool is search_files else {}
    assert "leads out of the workspace" in await refused(workspace, tool, path="out", **more)
    gone = workspace.parent / "gone"
    assert await refused(gone, tool, path="x", **more) == f"The workspace, {gone}, was removed."


async def test_links_out_are_listed_but_not_searched(workspace: Path) -> None:
    (workspace / "docs/out").symlink_to(workspace.parent / "secret.txt")
    (workspace / "docs/folder").symlink_to(workspace)
    (workspace / "docs/gone").symlink_to("nothing")
    listed = await rows(workspace, list_files, path="docs")
    assert "docs/out: a link that leads out of the workspace" in listed
    assert "docs/folder: a link to a folder, not followed" in listed
    assert "docs/gone: a broken link" in listed
    assert "0 matching lines in 0 of 3 files" in await use(workspace, search_files, pattern="outside", path="docs")


async def test_busy_worker_threads_do_not_block_reading(workspace: Path) -> None:
    gate = Event()
    try:
        async with trio.open_nursery() as nursery:
            for _ in range(trio.to_thread.current_default_thread_limiter().total_tokens + 1):
                nursery.start_soon(partial(trio.to_thread.run_sync, gate.wait, abandon_on_cancel=True))
            await trio.testing.wait_all_tasks_blocked()
            assert "readme.md" in await use(workspace, list_files)
            nursery.cancel_scope.cancel()
    finally:
        gate.set()


@pytest.mark.parametrize(
    ("tool", "input", "summary"),
    [
        (read_file, {"path": "readme.md"}, "3 lines"),
        (read_file, {"path": "readme.md", "limit": 2}, "lines 1 to 2 of 3"),
        (read_file, {"path": "readme.md", "offset": 3}, "line 3 of 3"),
        (search_files, {"pattern": "beta"}, "2 matches"),
        (search_files, {"pattern": "beta two|Beta"}, "1 match"),
        (list_files, {"path": "docs"}, "3 files in 2 folders"),
    ],
)
async def test_summary_says_how_much_was_found(workspace: Path, tool: Any, input: Any, summary: str) -> None:
    assert (await tool.run(tool_context(workspace), input)).summary == (summary,)


TEXTS = {
    "UTF-8 with a byte order mark; the lines end with CR LF": "\ufeffé x\r\ny".encode(),
    "UTF-16-LE with a byte order mark": "\ufeffé x\ny\n".encode("utf-16-le"),
    "UTF-16-BE with a byte order mark; the lines end with CR LF": "\ufeffé x\r\ny\r\n".encode("utf-16-be"),
    "lines 2 end with CR LF, the others with LF": "é x\ny\r\n".encode(),
}


@pytest.mark.parametrize("says", TEXTS)
async def test_tools_agree_on_the_lines_of_a_text(workspace: Path, says: str) -> None:
    (workspace / "f").write_bytes(TEXTS[says])
    head = f"f: 2 lines, 3 words, {len(TEXTS[says])} bytes"
    assert await use(workspace, read_file, path="f") == f"{head}; {says}\né x\ny"
    assert (await rows(workspace, list_files, path="f"))[1] == head
    for pattern, row in (("^é", "f:1: é x"), ("x$", "f:1: é x"), ("^y$", "f:2: y")):
        assert (await rows(workspace, search_files, pattern=pattern, path="f"))[0] == row
    assert "0 matching lines" in await use(workspace, search_files, pattern="^$|\r", path="f")


# ---------------------------------------------------------------------------------------------------------- list_files


async def test_list_has_a_row_for_each_file(workspace: Path) -> None:
    (workspace / "empty").mkdir()
    assert await rows(workspace, list_files) == [
        ".: 5 files in 4 folders",
        "data.bin: 8 bytes, binary",
        "readme.md: 3 lines, 5 words, 26 bytes",
        "docs/a.txt: 2 lines, 3 words, 17 bytes",
        "docs/b.txt: 2 lines, 3 words, 14 bytes",
        "docs/deep/c.txt: 1 line, 4 words, 14 bytes",
        "Left out: .git/, node_modules/.",
    ]
    assert await use(workspace, list_files, path="readme.md") == (
        "readme.md: 1 file\nreadme.md: 3 lines, 5 words, 26 bytes"
    )
    assert await use(workspace, list_files, path="empty/") == "empty: 0 files"


@pytest.mark.parametrize(
    ("pattern", "count", "names"),
    [
        ("*.txt", "3 files", ["docs/a.txt", "docs/b.txt", "docs/deep/c.txt"]),
        ("docs/?.txt", "2 files", ["docs/a.txt", "docs/b.txt"]),
        ("readme*", "1 file", ["readme.md"]),
        ("[", "0 files", []),
    ],
)
async def test_pattern_chooses_files(workspace: Path, pattern: str, count: str, names: list[str]) -> None:
    head, *found, _ = await rows(workspace, list_files, pattern=pattern)
    assert head == f".: {count} named {pattern}, of 5 files in 3 folders"
    assert [row.partition(":")[0] for row in found] == names


@pytest.mark.parametrize(
    ("order", "names"),
    [
        ("largest", ["readme.md", "docs/a.txt", "docs/b.txt", "docs/deep/c.txt", "data.bin"]),
        ("smallest", ["data.bin", "docs/b.txt", "docs/deep/c.txt", "docs/a.txt", "readme.md"]),
        ("newest", ["docs/b.txt", "docs/deep/c.txt", "data.bin", "readme.md", "docs/a.txt"]),
        ("oldest", ["docs/a.txt", "data.bin", "readme.md", "docs/deep/c.txt", "docs/b.txt"]),
    ],
)
async def test_order_sorts_by_size_or_time(workspace: Path, order: str, names: list[str]) -> None:
    times = {"docs/b.txt": 4, "docs/deep/c.txt": 3, "data.bin": 2, "readme.md": 2, "docs/a.txt": 1}
    for name, time in times.items():
        os.utime(workspace / name, (time, time))
    (workspace / "nowhere").symlink_to("gone")
    _, *found, _ = await rows(workspace, list_files, order=order)
    assert [row.partition(":")[0] for row in found] == [*names, "nowhere"]
    dated = [row.rpartition(" changed ")[2] for row in found if " changed " in row]
    assert dated == [f"1970-01-01 00:00:0{times[name]} UTC" for name in names if order in ("newest", "oldest")]


def test_date_outside_the_calendar_is_unknown() -> None:
    assert _change_date(99999999999999.0) == "date unknown"


async def test_long_list_is_truncated(workspace: Path) -> None:
    for n in range(files.MAX_LIST_ROWS + 5):
        (workspace / f"docs/n{n:04}").write_text("")
    head, *found, last = await rows(workspace, list_files, path="docs")
    assert head == f"docs: {files.MAX_LIST_ROWS + 8} files in 2 folders"
    assert len(found) == files.MAX_LIST_ROWS
    assert last == "(8 more files are not shown; list a folder inside docs.)"


async def test_huge_tree_is_truncated_in_order(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_tree, "MAX_TREE_ENTRIES", 5)
    for n in reversed(range(40)):
        (workspace / f"many/folder-{n:02}").mkdir(parents=True)
        (workspace / f"many/{n:02}.txt").touch()
    _, *found, last = await rows(workspace, list_files, path="many")
    assert [row.partition(":")[0] for row in found] == [f"many/0{n}.txt" for n in range(5)]
    assert last == "Only the first 5 files were read; give a subfolder for the others."
    for n in range(9):
        (workspace / f"tree/{n}").mkdir(parents=True)
        (workspace / f"tree/{n}/x").touch()
    head, *_, last = await rows(workspace, list_files, path="tree")
    assert head == "tree: 4 files in 5 folders", "the number of folders is bounded too"
    assert "Only the first 5" in last


async def test_rows_of_files_that_are_not_counted(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_WHOLE", 20)
    os.mkfifo(workspace / "pipe")
    (workspace / "two\nrows\x1b[31m").write_text("x")
    (workspace / os.fsdecode(b"\xff")).write_text("x")
    listed = await rows(workspace, list_files)
    assert "readme.md: 26 bytes, not counted" in listed
    assert "pipe: not readable" in listed
    assert "two?rows?[31m: 1 line, 1 word, 1 byte" in listed
    assert "?: 1 line, 1 word, 1 byte" in listed


@pytest.mark.parametrize(
    ("tool", "input", "says"),
    [
        (list_files, {"order": "best"}, "order"),
        (list_files, {"pattern": ""}, "1 to 1000 characters"),
        (search_files, {"pattern": ""}, "1 to 1000 characters"),
        (search_files, {"pattern": "x" * 1001}, "1 to 1000 characters"),
        (search_files, {"pattern": "("}, "is not a regular expression"),
        (search_files, {"pattern": "((x?){1000}){1000}"}, "is not a regular expression"),
        (read_file, {"path": "readme.md", "offset": 0}, "offset counts lines from 1"),
        (read_file, {"path": "docs"}, "docs is a folder; use list_files"),
        (read_file, {"path": "data.bin"}, "data.bin is a binary file of 8 bytes"),
    ],
)
async def test_misfitting_input_is_refused(workspace: Path, tool: Any, input: dict[str, Any], says: str) -> None:
    assert says in await refused(workspace, tool, **input)


# ----------------------------------------------------------------------------------------------------------- read_file


async def test_read_begins_with_the_counts(workspace: Path) -> None:
    text = await use(workspace, read_file, path="readme.md")
    assert text == "readme.md: 3 lines, 5 words, 26 bytes\n# Title\n\nSome words here."
    (workspace / "empty").write_text("")
    assert await use(workspace, read_file, path="empty") == "empty: 0 lines, 0 words, 0 bytes"
    (workspace / "old").write_bytes("Größe\r\n".encode("latin-1"))
    assert await use(workspace, read_file, path="old") == (
        "old: 1 line, 1 word, 7 bytes; it is not UTF-8, and � replaces bytes that could not be decoded; "
        "the lines end with CR LF\nGr��e"
    )


@pytest.mark.parametrize(("most", "counts"), [(MAX_WHOLE, "10 lines, 10 words, 21 bytes"), (20, "21 bytes")])
async def test_part_of_a_file_says_how_to_continue(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, most: int, counts: str
) -> None:
    """A file larger than MAX_WHOLE is read only up to the part."""
    monkeypatch.setattr(files, "MAX_WHOLE", most)
    (workspace / "ten").write_text("".join(f"{n}\n" for n in range(1, 11)))
    read, head = partial(use, workspace, read_file, path="ten"), f"ten: {counts}"
    assert await read(limit=1) == f"{head}; lines 1 to 1 are shown, read on with offset=2\n1"
    assert await read(offset=8, limit=2) == f"{head}; lines 8 to 9 are shown, read on with offset=10\n8\n9"
    assert await read(offset=9, limit=9) == f"{head}; lines 9 to 10 are shown\n9\n10"
    assert await refused(workspace, read_file, path="ten", offset=11) == f"There is no line 11. {head}."


async def test_long_file_is_cut_at_a_line(workspace: Path) -> None:
    (workspace / "long").write_text(("x" * 99 + "\n") * 1_200)
    head, *shown = await rows(workspace, read_file, path="long")
    assert head.endswith("; lines 1 to 240 are shown, read on with offset=241")
    assert len(shown) == 240
    context = tool_context(workspace, result_limit=5_000)
    head, *shown = (await read_file.run(context, {"path": "long", "offset": 11})).text.splitlines()
    assert head.endswith("; lines 11 to 50 are shown, read on with offset=51")
    assert len(shown) == 40
    assert (await rows(workspace, read_file, path="long", offset=1_200))[1:] == ["x" * 99]


@pytest.mark.parametrize("most", [MAX_WHOLE, 1_000])
@pytest.mark.parametrize("codec", ["utf-8", "utf-16-le"])
async def test_long_line_can_be_read_in_parts(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, most: int, codec: str
) -> None:
    monkeypatch.setattr(files, "MAX_WHOLE", most)
    line = "".join(f"é{n:04}" for n in range(10_000))
    text = f"a\r\n{line}\r\nlast\r\n"
    (workspace / "wide").write_bytes(f"\ufeff{text}".encode(codec))
    shown, more, calls = "", "offset=1, column=1, limit=9", 0
    while more:
        part = await use(workspace, read_file, path="wide", **{k: int(n) for k, n in re.findall(r"(\w+)=(\d+)", more)})
        head, _, body = part.partition("\n")
        _, _, more = head.partition("read on with ")
        shown += body.removesuffix("… (the rest of this line is not shown)") + ("" if "column" in more else "\n")
        calls += 1
    assert shown == text.replace("\r", "")
    assert calls == 4
    for line_number, column in ((2, 50_003), (4, 2)):
        says = await refused(workspace, read_file, path="wide", offset=line_number, column=column)
        assert says.startswith(f"There is no line {line_number} with a column {column}. wide: ")


# -------------------------------------------------------------------------------------------------------- search_files


async def test_search_returns_rows_and_counts(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_WHOLE", 20)
    os.mkfifo(workspace / "pipe")
    assert await rows(workspace, search_files, pattern="(?i)beta") == [
        "docs/a.txt:2: beta gamma",
        "docs/b.txt:1: beta",
        "docs/b.txt:2: Beta two",
        "3 matching lines in 2 of 6 files searched.",
        "Not searched (binary): data.bin.",
        "Not searched (not readable): pipe.",
        "Not searched (larger than 20 bytes): readme.md.",
        "Left out: .git/, node_modules/.",
    ]
    assert await use(workspace, search_files, pattern="^beta$", path="docs/b.txt") == (
        "docs/b.txt:1: beta\n1 matching line in 1 of 1 file searched."
    )


async def test_long_results_are_truncated_and_long_lines_shortened(workspace: Path) -> None:
    (workspace / "many").write_text("x\n" * (files.MAX_MATCHES + 7))
    *_, more, count = await rows(workspace, search_files, pattern="x", path="many")
    assert more == "(7 more matching lines are not shown.)"
    assert count == f"{files.MAX_MATCHES + 7} matching lines in 1 of 1 file searched."
    (workspace / "long").write_text("a" * 1000 + "needle" + "b" * 5000 + "\n" + "c" * 3000 + "needle\n")
    assert await rows(workspace, search_files, pattern="needle", path="long") == [
        f"long:1: …{'a' * 100}needle{'b' * 94}… (column 1001)",
        f"long:2: …{'c' * 100}needle (column 3001)",
        "2 matching lines in 1 of 1 file searched.",
    ]


async def test_search_reports_progress_and_follows_no_swapped_folder(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "BATCH", 2)
    (workspace.parent / "trap").mkdir()
    for name in ("a.txt", "b.txt", "c.txt"):
        (workspace.parent / "trap" / name).write_text("outside\n")
    said = list[str]()

    def report(text: str) -> None:
        if not said:
            (workspace / "docs").rename(workspace / "moved")
            (workspace / "docs").symlink_to(workspace.parent / "trap")
        said.append(text)

    output = await search_files.run(tool_context(workspace, report=report), {"pattern": "outside|Title"})
    assert said == ["searched 2 of 5 files, 1 matches", "searched 4 of 5 files, 1 matches"]
    assert output.text.splitlines()[:2] == ["readme.md:1: # Title", "1 matching line in 1 of 5 files searched."]


ENDLESS = "(a|aa)+$"
"""A pattern that takes years for a line of many a with another end."""


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("limit", "why"),
    [
        ("SEARCH_S", "(the search took longer than 0.3 s: search a smaller folder): trap/b, trap/c"),
        ("FILE_S", "to the end (the pattern takes too long there: make it simpler): trap/b"),
    ],
)
async def test_endless_search_is_ended_and_its_matches_stay(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, limit: str, why: str
) -> None:
    monkeypatch.setattr(files, limit, 0.3)
    (workspace / "trap").mkdir()
    (workspace / "trap/a").write_text("aa\n")
    (workspace / "trap/b").write_text("aa\n" + "a" * 60 + "b\n")
    (workspace / "trap/c").write_text("b\n")
    ticks = 0
    async with trio.open_nursery() as nursery:

        async def tick() -> None:
            nonlocal ticks
            while True:
                await trio.lowlevel.checkpoint()
                ticks += 1

        nursery.start_soon(tick)
        found = await rows(workspace, search_files, pattern=ENDLESS, path="trap")
        nursery.cancel_scope.cancel()
    assert ticks > 100, "other tasks run meanwhile"
    assert found[:2] == ["trap/a:1: aa", "trap/b:1: aa"]
    assert found[-1] == f"Not searched {why}."


async def test_cancelled_search_is_abandoned(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FILE_S", 1000.0)
    (workspace / "trap").write_text("a" * 60 + "b\n")
    with trio.move_on_after(0.1) as scope:
        await use(workspace, search_files, pattern=ENDLESS, path="trap")
    assert scope.cancelled_caught
