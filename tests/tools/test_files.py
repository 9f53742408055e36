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
from support.contexts import tool_context

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


async def result_of(workspace: Path, tool: Any, **input: Any) -> str:
    return str((await tool.run(tool_context(workspace), input)).text)


async def rows_of(workspace: Path, tool: Any, **input: Any) -> list[str]:
    return (await result_of(workspace, tool, **input)).splitlines()


async def refusal_of(workspace: Path, tool: Any, **input: Any) -> str:
    with pytest.raises(ToolError) as refusal:
        await result_of(workspace, tool, **input)
    return str(refusal.value)


def names(rows: list[str]) -> list[str]:
    return [row.partition(":")[0] for row in rows]


# ----------------------------------------------------------------------------------------------------------- all three


def test_each_tool_only_reads() -> None:
    assert all(tool.read_only and not tool.needs_approval for tool in TOOLS)


INPUTS: list[tuple[Any, dict[str, str]]] = [(list_files, {}), (read_file, {}), (search_files, {"pattern": "x"})]


@pytest.mark.parametrize(("tool", "input"), INPUTS, ids=[tool.name for tool, _ in INPUTS])
async def test_each_tool_stays_inside_the_workspace(workspace: Path, tool: Any, input: dict[str, str]) -> None:
    (workspace / "out").symlink_to(workspace.parent / "secret.txt")
    assert "leads out of the workspace" in await refusal_of(workspace, tool, path="out", **input)
    removed = workspace.parent / "removed"
    assert await refusal_of(removed, tool, path="x", **input) == f"The workspace, {removed}, was removed."


async def test_links_out_are_listed_but_not_searched(workspace: Path) -> None:
    (workspace / "docs/out").symlink_to(workspace.parent / "secret.txt")
    (workspace / "docs/folder").symlink_to(workspace)
    (workspace / "docs/gone").symlink_to("nothing")
    listed = await rows_of(workspace, list_files, path="docs")
    assert "docs/out: a link that leads out of the workspace" in listed
    assert "docs/folder: a link to a folder, not followed" in listed
    assert "docs/gone: a broken link" in listed
    found = await result_of(workspace, search_files, pattern="outside", path="docs")
    assert "0 matching lines in 0 of 3 files" in found


async def test_busy_worker_threads_do_not_block_reading(workspace: Path) -> None:
    gate = Event()
    try:
        async with trio.open_nursery() as nursery:
            for _ in range(trio.to_thread.current_default_thread_limiter().total_tokens + 1):
                nursery.start_soon(partial(trio.to_thread.run_sync, gate.wait, abandon_on_cancel=True))
            await trio.testing.wait_all_tasks_blocked()
            assert "readme.md" in await result_of(workspace, list_files)
            nursery.cancel_scope.cancel()
    finally:
        gate.set()


SUMMARIES: dict[str, tuple[Any, dict[str, Any], str]] = {
    "whole file": (read_file, {"path": "readme.md"}, "3 lines"),
    "some lines": (read_file, {"path": "readme.md", "limit": 2}, "lines 1 to 2 of 3"),
    "one line": (read_file, {"path": "readme.md", "offset": 3}, "line 3 of 3"),
    "matches": (search_files, {"pattern": "beta"}, "2 matches"),
    "one match": (search_files, {"pattern": "beta two|Beta"}, "1 match"),
    "list": (list_files, {"path": "docs"}, "3 files in 2 folders"),
}


@pytest.mark.parametrize(("tool", "input", "summary"), SUMMARIES.values(), ids=SUMMARIES)
async def test_summary_says_how_much_was_found(workspace: Path, tool: Any, input: Any, summary: str) -> None:
    assert (await tool.run(tool_context(workspace), input)).summary == (summary,)


CONTENT_BY_REMARK = {
    "UTF-8 with a byte order mark; the lines end with CR LF": "\ufeffé x\r\ny".encode(),
    "UTF-16-LE with a byte order mark": "\ufeffé x\ny\n".encode("utf-16-le"),
    "UTF-16-BE with a byte order mark; the lines end with CR LF": "\ufeffé x\r\ny\r\n".encode("utf-16-be"),
    "lines 2 end with CR LF, the others with LF": "é x\ny\r\n".encode(),
}


@pytest.mark.parametrize(("remark", "content"), CONTENT_BY_REMARK.items(), ids=CONTENT_BY_REMARK)
async def test_tools_agree_on_the_lines_of_a_text(workspace: Path, remark: str, content: bytes) -> None:
    (workspace / "f").write_bytes(content)
    counts = f"f: 2 lines, 3 words, {len(content)} bytes"
    assert await result_of(workspace, read_file, path="f") == f"{counts}; {remark}\né x\ny"
    assert await rows_of(workspace, list_files, path="f") == ["f: 1 file", counts]
    for pattern, match in (("^é", "f:1: é x"), ("x$", "f:1: é x"), ("^y$", "f:2: y")):
        first_row, *_ = await rows_of(workspace, search_files, pattern=pattern, path="f")
        assert first_row == match
    assert "0 matching lines" in await result_of(workspace, search_files, pattern="^$|\r", path="f")


# ---------------------------------------------------------------------------------------------------------- list_files


async def test_list_has_a_row_for_each_file(workspace: Path) -> None:
    (workspace / "empty").mkdir()
    assert await rows_of(workspace, list_files) == [
        ".: 5 files in 4 folders",
        "data.bin: 8 bytes, binary",
        "readme.md: 3 lines, 5 words, 26 bytes",
        "docs/a.txt: 2 lines, 3 words, 17 bytes",
        "docs/b.txt: 2 lines, 3 words, 14 bytes",
        "docs/deep/c.txt: 1 line, 4 words, 14 bytes",
        "Left out: .git/, node_modules/.",
    ]
    assert await result_of(workspace, list_files, path="empty/") == "empty: 0 files"


@pytest.mark.parametrize(
    ("pattern", "count", "matches"),
    [
        ("*.txt", "3 files", ["docs/a.txt", "docs/b.txt", "docs/deep/c.txt"]),
        ("docs/?.txt", "2 files", ["docs/a.txt", "docs/b.txt"]),
        ("readme*", "1 file", ["readme.md"]),
        ("[", "0 files", []),
    ],
)
async def test_pattern_chooses_files(workspace: Path, pattern: str, count: str, matches: list[str]) -> None:
    head, *rows, _ = await rows_of(workspace, list_files, pattern=pattern)
    assert head == f".: {count} named {pattern}, of 5 files in 3 folders"
    assert names(rows) == matches


CHANGED_AT_S = {"docs/b.txt": 4, "docs/deep/c.txt": 3, "data.bin": 2, "readme.md": 2, "docs/a.txt": 1}


@pytest.fixture
def dated_workspace(workspace: Path) -> Path:
    (workspace / "broken link").symlink_to("gone")
    for name, seconds in CHANGED_AT_S.items():
        os.utime(workspace / name, (seconds, seconds))
    return workspace


NAMES_BY_ORDER = {
    "largest": ["readme.md", "docs/a.txt", "docs/b.txt", "docs/deep/c.txt", "data.bin"],
    "smallest": ["data.bin", "docs/b.txt", "docs/deep/c.txt", "docs/a.txt", "readme.md"],
    "newest": ["docs/b.txt", "docs/deep/c.txt", "data.bin", "readme.md", "docs/a.txt"],
    "oldest": ["docs/a.txt", "data.bin", "readme.md", "docs/deep/c.txt", "docs/b.txt"],
}


@pytest.mark.parametrize(("order", "sorted_names"), NAMES_BY_ORDER.items(), ids=NAMES_BY_ORDER)
async def test_order_sorts_by_size_or_time(dated_workspace: Path, order: str, sorted_names: list[str]) -> None:
    _, *rows, _ = await rows_of(dated_workspace, list_files, order=order)
    assert names(rows) == [*sorted_names, "broken link"]


@pytest.mark.parametrize("order", ["newest", "oldest"])
async def test_order_by_time_shows_dates(dated_workspace: Path, order: str) -> None:
    _, *rows, broken_link, _ = await rows_of(dated_workspace, list_files, order=order)
    for name, row in zip(names(rows), rows, strict=True):
        assert row.endswith(f" changed 1970-01-01 00:00:0{CHANGED_AT_S[name]} UTC")
    assert "changed" not in broken_link


@pytest.mark.parametrize("order", ["largest", "smallest"])
async def test_order_by_size_shows_no_dates(dated_workspace: Path, order: str) -> None:
    assert "changed" not in await result_of(dated_workspace, list_files, order=order)


def test_date_outside_the_calendar_is_unknown() -> None:
    assert _change_date(99999999999999.0) == "date unknown"


async def test_long_list_is_truncated(workspace: Path) -> None:
    file_count = files.MAX_LIST_ROWS + 8
    (workspace / "many").mkdir()
    for n in range(file_count):
        (workspace / f"many/{n}").touch()
    head, *rows, note = await rows_of(workspace, list_files, path="many")
    assert head == f"many: {file_count} files"
    assert len(rows) == files.MAX_LIST_ROWS
    assert note == "(8 more files are not shown; list a folder inside many.)"


async def test_huge_folder_is_truncated_in_order(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_tree, "MAX_TREE_ENTRIES", 5)
    for n in reversed(range(40)):
        (workspace / f"many/folder-{n:02}").mkdir(parents=True)
        (workspace / f"many/{n:02}.txt").touch()
    _, *rows, note = await rows_of(workspace, list_files, path="many")
    assert names(rows) == [f"many/0{n}.txt" for n in range(5)]
    assert note == "Only the first 5 files were read; name a subfolder to see the others."


async def test_number_of_listed_folders_is_bounded(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_tree, "MAX_TREE_ENTRIES", 5)
    for n in range(9):
        (workspace / f"tree/{n}").mkdir(parents=True)
        (workspace / f"tree/{n}/x").touch()
    head, *_, note = await rows_of(workspace, list_files, path="tree")
    assert head == "tree: 4 files in 5 folders"  # tree itself is one of the 5, and has no file
    assert "Only the first 5 folders were read" in note


async def test_rows_of_files_that_are_not_counted(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_WHOLE", 20)  # readme.md is larger
    os.mkfifo(workspace / "pipe")
    rows = await rows_of(workspace, list_files)
    assert "readme.md: 26 bytes, not counted" in rows
    assert "pipe: not readable" in rows


async def test_listed_names_are_sanitized(workspace: Path) -> None:
    (workspace / "two\nrows\x1b[31m").write_text("x")
    (workspace / os.fsdecode(b"\xff")).write_text("x")
    rows = await rows_of(workspace, list_files)
    assert "two?rows?[31m: 1 line, 1 word, 1 byte" in rows
    assert "?: 1 line, 1 word, 1 byte" in rows


REFUSED_INPUTS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "unknown order": (list_files, {"order": "best"}, "order"),
    "empty file pattern": (list_files, {"pattern": ""}, "1 to 1000 characters"),
    "empty expression": (search_files, {"pattern": ""}, "1 to 1000 characters"),
    "long expression": (search_files, {"pattern": "x" * 1001}, "1 to 1000 characters"),
    "syntax error": (search_files, {"pattern": "("}, "is not a regular expression"),
    "huge expression": (search_files, {"pattern": "((x?){1000}){1000}"}, "is not a regular expression"),
    "line 0": (read_file, {"path": "readme.md", "offset": 0}, "offset counts lines from 1"),
    "folder": (read_file, {"path": "docs"}, "docs is a folder; use list_files"),
    "binary file": (read_file, {"path": "data.bin"}, "data.bin is a binary file of 8 bytes"),
}


@pytest.mark.parametrize(("tool", "input", "reason"), REFUSED_INPUTS.values(), ids=REFUSED_INPUTS)
async def test_misfitting_input_is_refused(workspace: Path, tool: Any, input: dict[str, Any], reason: str) -> None:
    assert reason in await refusal_of(workspace, tool, **input)


# ----------------------------------------------------------------------------------------------------------- read_file

RESULTS = {
    "text": (b"# Title\n\nSome words here.\n", "f: 3 lines, 5 words, 26 bytes\n# Title\n\nSome words here."),
    "empty": (b"", "f: 0 lines, 0 words, 0 bytes"),
    "not UTF-8": (
        "Größe\r\n".encode("latin-1"),
        "f: 1 line, 1 word, 7 bytes; it is not UTF-8, and � replaces bytes that could not be decoded; "
        "the lines end with CR LF\nGr��e",
    ),
}


@pytest.mark.parametrize(("content", "result"), RESULTS.values(), ids=RESULTS)
async def test_read_begins_with_the_counts(workspace: Path, content: bytes, result: str) -> None:
    (workspace / "f").write_bytes(content)
    assert await result_of(workspace, read_file, path="f") == result


@pytest.mark.parametrize(
    ("max_whole", "counts"),
    [
        pytest.param(MAX_WHOLE, "10 lines, 10 words, 21 bytes", id="the whole file is read"),
        pytest.param(20, "21 bytes", id="a file above the limit is read up to the part"),
    ],
)
async def test_part_of_a_file_says_how_to_continue(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, max_whole: int, counts: str
) -> None:
    monkeypatch.setattr(files, "MAX_WHOLE", max_whole)
    (workspace / "ten").write_text("".join(f"{n}\n" for n in range(1, 11)))
    read, head = partial(result_of, workspace, read_file, path="ten"), f"ten: {counts}"
    assert await read(limit=1) == f"{head}; line 1 is shown, read on with offset=2\n1"
    assert await read(offset=8, limit=2) == f"{head}; lines 8 to 9 are shown, read on with offset=10\n8\n9"
    assert await read(offset=9, limit=9) == f"{head}; lines 9 to 10 are shown\n9\n10"
    assert await refusal_of(workspace, read_file, path="ten", offset=11) == f"There is no line 11. {head}."


async def test_long_file_is_cut_at_a_line(workspace: Path) -> None:
    line, line_count = "x" * 99, 1_200  # 240 lines are as many characters as MAX_SHOWN_FILE
    (workspace / "long").write_text(f"{line}\n" * line_count)

    async def read(offset: int, **limits: int) -> list[str]:
        context = tool_context(workspace, **limits)
        return (await read_file.run(context, {"path": "long", "offset": offset})).text.splitlines()

    head, *lines = await read(1)
    assert head.endswith("; lines 1 to 240 are shown, read on with offset=241")
    assert lines == [line] * 240
    head, *lines = await read(11, result_limit=5_000)  # one fifth is for remarks
    assert head.endswith("; lines 11 to 50 are shown, read on with offset=51")
    assert lines == [line] * 40
    _, *lines = await read(line_count)
    assert lines == [line]


WIDE_LINE = "".join(f"é{n:04}" for n in range(10_000))  # 50,000 characters, twice MAX_SHOWN_FILE and a rest
WIDE_TEXT = f"a\r\n{WIDE_LINE}\r\nlast\r\n"


@pytest.mark.parametrize("max_whole", [MAX_WHOLE, 1_000], ids=["read whole", "read in part"])
@pytest.mark.parametrize("codec", ["utf-8", "utf-16-le"])
async def test_long_line_can_be_read_in_parts(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, max_whole: int, codec: str
) -> None:
    monkeypatch.setattr(files, "MAX_WHOLE", max_whole)
    (workspace / "wide").write_bytes(f"\ufeff{WIDE_TEXT}".encode(codec))
    text, places = "", list[str]()
    next_place = "offset=1, column=1, limit=9"
    while next_place:
        places.append(next_place)
        numbers = {name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", next_place)}
        head, _, body = (await result_of(workspace, read_file, path="wide", **numbers)).partition("\n")
        _, _, next_place = head.partition("read on with ")
        text += body.removesuffix("… (the rest of this line is not shown)")
        text += "" if "column" in next_place else "\n"
    assert text == WIDE_TEXT.replace("\r", "")
    assert places[1:] == ["offset=2", "offset=2 and column=24001", "offset=2 and column=48001"]


@pytest.mark.parametrize("max_whole", [MAX_WHOLE, 1_000], ids=["read whole", "read in part"])
@pytest.mark.parametrize(
    ("line", "column"), [(2, len(f"{WIDE_LINE}\r\n") + 1), (4, 2)], ids=["after the line end", "after the last line"]
)
async def test_column_that_does_not_exist_is_refused(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, max_whole: int, line: int, column: int
) -> None:
    monkeypatch.setattr(files, "MAX_WHOLE", max_whole)
    (workspace / "wide").write_text(WIDE_TEXT)
    reason = await refusal_of(workspace, read_file, path="wide", offset=line, column=column)
    assert reason.startswith(f"There is no line {line} with a column {column}. wide: ")


# -------------------------------------------------------------------------------------------------------- search_files


async def test_search_returns_rows_and_counts(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_WHOLE", 20)  # readme.md is larger
    os.mkfifo(workspace / "pipe")
    assert await rows_of(workspace, search_files, pattern="(?i)beta") == [
        "docs/a.txt:2: beta gamma",
        "docs/b.txt:1: beta",
        "docs/b.txt:2: Beta two",
        "3 matching lines in 2 of 6 files searched.",
        "Not searched (binary): data.bin.",
        "Not searched (not readable): pipe.",
        "Not searched (larger than 20 bytes): readme.md.",
        "Left out: .git/, node_modules/.",
    ]
    assert await result_of(workspace, search_files, pattern="^beta$", path="docs/b.txt") == (
        "docs/b.txt:1: beta\n1 matching line in 1 of 1 file searched."
    )


async def test_long_list_of_matches_is_truncated(workspace: Path) -> None:
    match_count = files.MAX_MATCHES + 7
    (workspace / "many").write_text("x\n" * match_count)
    *_, note, count = await rows_of(workspace, search_files, pattern="x", path="many")
    assert note == "(7 more matching lines are not shown.)"
    assert count == f"{match_count} matching lines in 1 of 1 file searched."


async def test_long_matching_line_is_shortened(workspace: Path) -> None:
    (workspace / "long").write_text("a" * 1000 + "needle" + "b" * 5000 + "\n" + "c" * 3000 + "needle\n")
    assert await rows_of(workspace, search_files, pattern="needle", path="long") == [
        f"long:1: …{'a' * 100}needle{'b' * 94}… (column 1001)",
        f"long:2: …{'c' * 100}needle (column 3001)",
        "2 matching lines in 1 of 1 file searched.",
    ]


async def test_search_follows_no_swapped_folder(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BATCH", 2)  # the first two files of five are searched before the swap
    (workspace.parent / "trap").mkdir()
    for name in ("a.txt", "b.txt", "c.txt"):
        (workspace.parent / "trap" / name).write_text("outside\n")
    reports = list[str]()

    def swap_at_first_report(text: str) -> None:
        if not reports:
            (workspace / "docs").rename(workspace / "moved")
            (workspace / "docs").symlink_to(workspace.parent / "trap")
        reports.append(text)

    context = tool_context(workspace, report=swap_at_first_report)
    match, count, *_ = (await search_files.run(context, {"pattern": "outside|Title"})).text.splitlines()
    assert reports == ["searched 2 of 5 files, 1 match", "searched 4 of 5 files, 1 match"]
    assert match == "readme.md:1: # Title"
    assert count == "1 matching line in 1 of 5 files searched."


ENDLESS = "(a|aa)+$"
"""A pattern that takes years for a line of many a with another end."""


REASON_BY_LIMIT = {
    "SEARCH_S": "(the search took longer than 0.3 s: search a smaller folder): trap/b, trap/c",
    "FILE_S": "to the end (the pattern takes too long there: make it simpler): trap/b",
}


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(("limit", "reason"), REASON_BY_LIMIT.items(), ids=REASON_BY_LIMIT)
async def test_search_ends_at_its_limit_with_matches(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, limit: str, reason: str
) -> None:
    monkeypatch.setattr(files, limit, 0.3)
    (workspace / "trap").mkdir()
    (workspace / "trap/a").write_text("aa\n")
    (workspace / "trap/b").write_text("aa\n" + "a" * 60 + "b\n")
    (workspace / "trap/c").write_text("b\n")
    checkpoints = 0
    async with trio.open_nursery() as nursery:

        async def count_checkpoints() -> None:
            nonlocal checkpoints
            while True:
                await trio.lowlevel.checkpoint()
                checkpoints += 1

        nursery.start_soon(count_checkpoints)
        first_match, second_match, *_, note = await rows_of(workspace, search_files, pattern=ENDLESS, path="trap")
        nursery.cancel_scope.cancel()
    assert checkpoints > 100, "other tasks run meanwhile"
    assert [first_match, second_match] == ["trap/a:1: aa", "trap/b:1: aa"]
    assert note == f"Not searched {reason}."


async def test_cancelled_search_is_abandoned(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FILE_S", 1000.0)  # so only the cancellation can end the search
    (workspace / "trap").write_text("a" * 60 + "b\n")
    with trio.move_on_after(0.1) as scope:
        await result_of(workspace, search_files, pattern=ENDLESS, path="trap")
    assert scope.cancelled_caught
