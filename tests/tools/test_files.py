"""The file tools: what they tell, what they refuse, and that nothing holds them up."""

import os
import re
import socket
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import trio
import trio.testing
from support.steered import Steered

from chain.errors import ToolError
from chain.plan import Plan
from chain.tools import file_tree, files
from chain.tools.files import TOOLS, _change_date, list_files, read_file, search_files
from chain.tools.paths import MAX_WHOLE
from chain.tools.tool import ToolContext


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A few files, with the outside beside them."""
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


async def use(workspace: Path, tool: Any, said: list[str] | None = None, **input: Any) -> str:
    report = (said if said is not None else []).append
    return str((await tool.run(ToolContext(workspace, Plan(), "call_1", Steered(), report), input)).text)


async def refused(workspace: Path, tool: Any, **input: Any) -> str:
    with pytest.raises(ToolError) as caught:
        await use(workspace, tool, **input)
    return str(caught.value)


# ---------------------------------------------------------------------------------------------- staying inside


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("../secret.txt", "must not contain .."),
        ("docs/../../secret.txt", "must not contain .."),
        ("docs/..", "must not contain .."),
        ("/etc/passwd", "absolute path"),
        ("~/x", "absolute path"),
        ("out", "leads out of the workspace"),
        ("away/secret.txt", "leads out of the workspace"),
        ("round", "circle"),
        ("", "path is empty"),
        ("a\0b", "NUL"),
    ],
)
async def test_no_path_leads_out(workspace: Path, tool: Any, path: str, says: str) -> None:
    (workspace / "out").symlink_to(workspace.parent / "secret.txt")
    (workspace / "away").symlink_to(workspace.parent)
    (workspace / "round").symlink_to("round")
    more = {"pattern": "x"} if tool is search_files else {}
    assert says in await refused(workspace, tool, path=path, **more)


async def test_links_that_stay_inside_are_followed(workspace: Path) -> None:
    (workspace / "short").symlink_to("docs/a.txt")
    assert (await use(workspace, read_file, path="short")).startswith("short: 2 lines, 3 words, 17 bytes\nalpha")


async def test_a_workspace_that_is_a_link_works(workspace: Path) -> None:
    (workspace.parent / "link").symlink_to(workspace)
    assert "beta gamma" in await use(workspace.parent / "link", read_file, path="docs/a.txt")


async def test_links_out_are_listed_but_not_looked_into(workspace: Path) -> None:
    (workspace / "docs/out").symlink_to(workspace.parent / "secret.txt")
    (workspace / "docs/folder").symlink_to(workspace)
    (workspace / "docs/gone").symlink_to("nothing")
    rows = (await use(workspace, list_files, path="docs")).splitlines()
    assert "docs/out: a link that leads out of the workspace" in rows
    assert "docs/folder: a link to a folder, not followed" in rows
    assert "docs/gone: a broken link" in rows
    assert "0 matching lines in 0 of 3 files" in await use(workspace, search_files, pattern="outside", path="docs")


@pytest.fixture
def trap(workspace: Path) -> Path:
    """A folder outside that has the names of one inside; ``spring`` puts it in that one's place."""
    (workspace.parent / "trap").mkdir()
    for name in ("a.txt", "b.txt", "c.txt"):
        (workspace.parent / "trap" / name).write_text("outside\n")
    return workspace.parent / "trap"


def spring(trap: Path, folder: Path) -> None:
    folder.rename(folder.parent / "moved")
    folder.symlink_to(trap)


async def test_a_folder_that_becomes_a_link_after_the_check_is_not_listed(workspace: Path, trap: Path) -> None:
    assert "a.txt" in str(await trio.to_thread.run_sync(file_tree.scan, workspace, ("docs",)))
    spring(trap, workspace / "docs")
    with pytest.raises(OSError, match="Not a directory"):
        await trio.to_thread.run_sync(file_tree.scan, workspace, ("docs",))


async def test_threads_that_hang_elsewhere_keep_nobody_from_looking(workspace: Path) -> None:
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


async def test_of_very_many_names_the_first_are_shown_whatever_their_order_on_the_disk(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_tree, "MAX_TREE_ENTRIES", 5)
    (workspace / "many").mkdir()
    for n in reversed(range(40)):
        (workspace / "many" / f"{n:02}.txt").touch()
        (workspace / "many" / f"folder-{n:02}").mkdir()
    rows = (await use(workspace, list_files, path="many")).splitlines()
    assert [row.partition(":")[0] for row in rows[1:6]] == [f"many/0{n}.txt" for n in range(5)]
    assert rows[-1] == "Only the first 5 files were read; give a subfolder for the others."
    (workspace / "tree").mkdir()
    for n in range(9):
        (workspace / "tree" / f"{n}").mkdir()
        (workspace / "tree" / f"{n}" / "x").touch()
    rows = (await use(workspace, list_files, path="tree")).splitlines()
    assert rows[0] == "tree: 4 files in 5 folders", "the folders that are looked into are bounded too"
    assert "Only the first 5" in rows[-1]


async def test_a_folder_that_becomes_a_link_while_a_search_runs_does_not_lead_out(
    workspace: Path, trap: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "BATCH", 2)
    said: list[str] = []

    def report(text: str) -> None:
        if not said:
            spring(trap, workspace / "docs")
        said.append(text)

    context = ToolContext(workspace, Plan(), "call_1", Steered(), report)
    found = (await search_files.run(context, {"pattern": "outside|Title"})).text
    assert said, "the search took a second look at the disk after the folder was swapped"
    assert found.splitlines()[0] == "readme.md:1: # Title"
    assert "1 matching line in 1 of 5 files" in found


# ---------------------------------------------------------------------------------------------- list_files


async def test_a_list_has_a_row_for_each_file_in_a_fixed_order(workspace: Path) -> None:
    assert (await use(workspace, list_files)).splitlines() == [
        ".: 5 files in 3 folders",
        "data.bin: 8 bytes, binary",
        "readme.md: 3 lines, 5 words, 26 bytes",
        "docs/a.txt: 2 lines, 3 words, 17 bytes",
        "docs/b.txt: 2 lines, 3 words, 14 bytes",
        "docs/deep/c.txt: 1 line, 4 words, 14 bytes",
        "Left out: .git/, node_modules/.",
    ]


async def test_a_list_of_one_file_and_of_an_empty_folder(workspace: Path) -> None:
    (workspace / "empty").mkdir()
    assert await use(workspace, list_files, path="readme.md") == (
        "readme.md: 1 file\nreadme.md: 3 lines, 5 words, 26 bytes"
    )
    assert await use(workspace, list_files, path="empty/") == "empty: 0 files"


@pytest.mark.parametrize(
    ("pattern", "first", "names"),
    [
        ("*.txt", ".: 3 files named *.txt, of 5 files in 3 folders", ["docs/a.txt", "docs/b.txt", "docs/deep/c.txt"]),
        ("docs/?.txt", ".: 2 files named docs/?.txt, of 5 files in 3 folders", ["docs/a.txt", "docs/b.txt"]),
        ("readme*", ".: 1 file named readme*, of 5 files in 3 folders", ["readme.md"]),
        ("*.zip", ".: 0 files named *.zip, of 5 files in 3 folders", []),
        ("[", ".: 0 files named [, of 5 files in 3 folders", []),
    ],
)
async def test_a_pattern_chooses_files(workspace: Path, pattern: str, first: str, names: list[str]) -> None:
    rows = (await use(workspace, list_files, pattern=pattern)).splitlines()
    assert rows[0] == first
    assert [row.partition(":")[0] for row in rows[1:-1]] == names


@pytest.mark.parametrize(
    ("order", "names"),
    [
        ("largest", ["readme.md", "docs/a.txt", "docs/b.txt", "docs/deep/c.txt", "data.bin"]),
        ("smallest", ["data.bin", "docs/b.txt", "docs/deep/c.txt", "docs/a.txt", "readme.md"]),
        ("newest", ["docs/b.txt", "docs/deep/c.txt", "data.bin", "readme.md", "docs/a.txt"]),
        ("oldest", ["docs/a.txt", "data.bin", "readme.md", "docs/deep/c.txt", "docs/b.txt"]),
    ],
)
async def test_a_list_may_begin_with_the_largest_or_the_newest(workspace: Path, order: str, names: list[str]) -> None:
    times = {"docs/b.txt": 4, "docs/deep/c.txt": 3, "data.bin": 2, "readme.md": 2, "docs/a.txt": 1}
    for name, time in times.items():
        os.utime(workspace / name, (time, time))
    (workspace / "nowhere").symlink_to("gone")
    rows = (await use(workspace, list_files, order=order)).splitlines()
    assert [row.partition(":")[0] for row in rows[1:-1]] == [*names, "nowhere"]
    dated = [f"{row.rpartition(' changed ')[2]}" for row in rows[1:-2] if " changed " in row]
    assert dated == [f"1970-01-01 00:00:0{times[name]} UTC" for name in names if order in ("newest", "oldest")]


@pytest.mark.parametrize(("input", "says"), [({"order": "best"}, "order"), ({"pattern": ""}, "1 to 1000 characters")])
async def test_a_list_that_cannot_be_made_says_why(workspace: Path, input: Any, says: str) -> None:
    with pytest.raises(ToolError, match=says):
        await use(workspace, list_files, **input)


async def test_a_long_list_is_cut_and_says_so(workspace: Path) -> None:
    for n in range(files.MAX_LIST_ROWS + 5):
        (workspace / f"docs/n{n:04}").write_text("")
    rows = (await use(workspace, list_files, path="docs")).splitlines()
    assert rows[0] == f"docs: {files.MAX_LIST_ROWS + 8} files in 2 folders"
    assert rows[-1] == "(8 more files are not shown; list a folder inside docs.)"
    assert len(rows) == files.MAX_LIST_ROWS + 2


async def test_what_is_not_counted_says_why(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_WHOLE", 20)
    os.mkfifo(workspace / "pipe")
    rows = (await use(workspace, list_files)).splitlines()
    assert "readme.md: 26 bytes, not counted" in rows
    assert "pipe: not readable" in rows


async def test_names_that_are_no_text_take_one_row(workspace: Path) -> None:
    (workspace / "docs/two\nrows\x1b[31m").write_text("x")
    (workspace / os.fsdecode(b"docs/\xff")).write_text("x")
    rows = (await use(workspace, list_files, path="docs")).splitlines()
    assert "docs/two?rows?[31m: 1 line, 1 word, 1 byte" in rows
    assert "docs/?: 1 line, 1 word, 1 byte" in rows


# ---------------------------------------------------------------------------------------------- read_file


async def test_a_file_is_read_with_its_counts_first(workspace: Path) -> None:
    text = await use(workspace, read_file, path="readme.md")
    assert text == "readme.md: 3 lines, 5 words, 26 bytes\n# Title\n\nSome words here."
    (workspace / "empty").write_text("")
    assert await use(workspace, read_file, path="empty") == "empty: 0 lines, 0 words, 0 bytes"


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
async def test_a_summary_says_how_much_there_is(
    workspace: Path, tool: Any, input: dict[str, Any], summary: str
) -> None:
    output = await tool.run(ToolContext(workspace, Plan(), "call_1", Steered(), print), input)
    assert output.summary == (summary,)


async def test_a_part_says_which_lines_it_has_and_how_to_read_on(workspace: Path) -> None:
    (workspace / "ten").write_text("".join(f"{n}\n" for n in range(1, 11)))
    head = "ten: 10 lines, 10 words, 21 bytes"
    assert await use(workspace, read_file, path="ten", limit=2) == (
        f"{head}; lines 1 to 2 are shown, read on with offset=3\n1\n2"
    )
    assert await use(workspace, read_file, path="ten", offset=9, limit=9) == f"{head}; lines 9 to 10 are shown\n9\n10"
    assert await refused(workspace, read_file, path="ten", offset=11) == f"There is no line 11. {head}."
    assert "offset counts lines from 1" in await refused(workspace, read_file, path="ten", offset=0)


async def test_a_long_file_ends_at_a_line_and_says_so(workspace: Path) -> None:
    (workspace / "long").write_text(("x" * 99 + "\n") * 1000)
    shown = (await use(workspace, read_file, path="long")).splitlines()
    assert shown[0].endswith("; lines 1 to 240 are shown, read on with offset=241")
    assert len(shown) == 241
    context = ToolContext(workspace, Plan(), "call_1", Steered(), print, result_limit=5_000)
    less = (await read_file.run(context, {"path": "long", "offset": 11})).text.splitlines()
    assert less[0].endswith("; lines 11 to 50 are shown, read on with offset=51")
    assert len(less) == 41


@pytest.mark.parametrize("most", [MAX_WHOLE, 1_000])
@pytest.mark.parametrize("codec", ["utf-8", "utf-16-le"])
async def test_every_part_of_a_long_line_can_be_read(
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
    assert "; the lines end with CR LF; lines 2 to 3 are shown from column 49999" in await use(
        workspace, read_file, path="wide", offset=2, column=49_999
    )
    says = await refused(workspace, read_file, path="wide", offset=2, column=50_003)
    assert says.startswith("There is no line 2 with a column 50003. wide: ")
    assert "There is no line 4 with a column 2" in await refused(workspace, read_file, path="wide", offset=4, column=2)


async def test_a_huge_file_is_read_in_parts(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_WHOLE", 1000)
    (workspace / "huge").write_text("".join(f"line {n}\n" for n in range(1, 1001)))
    part = await use(workspace, read_file, path="huge", limit=1)
    assert part == "huge: 8893 bytes; lines 1 to 1 are shown, read on with offset=2\nline 1"
    part = await use(workspace, read_file, path="huge", offset=998, limit=2)
    assert part == "huge: 8893 bytes; lines 998 to 999 are shown, read on with offset=1000\nline 998\nline 999"
    assert "There is no line 1001" in await refused(workspace, read_file, path="huge", offset=1001)


async def test_a_huge_file_of_one_line_does_not_fill_the_memory(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_WHOLE", 1000)
    (workspace / "huge").write_text("z" * 200_000 + "\nlast\n")
    assert (await use(workspace, read_file, path="huge", offset=2)).splitlines()[-1] == "last"


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("docs", "docs is a folder; use list_files"),
        ("data.bin", "data.bin is a binary file of 8 bytes"),
        ("raedme.md", "There is no raedme.md; did you mean readme.md?"),
        ("dosc/a.txt", "There is no dosc/a.txt; did you mean docs/a.txt?"),
        ("docs/quite-another", "There is no docs/quite-another."),
        ("readme.md/x", "a part of this path is a file"),
        ("x" * 300, "cannot be read: File name too long"),
    ],
)
async def test_what_cannot_be_read_is_told_in_a_sentence(workspace: Path, path: str, says: str) -> None:
    assert says in await refused(workspace, read_file, path=path)


@pytest.mark.parametrize(("use", "input"), [(read_file, {"path": "x"}), (list_files, {})])
async def test_a_workspace_that_was_removed_is_named(tmp_path: Path, use: Any, input: dict[str, str]) -> None:
    assert await refused(tmp_path / "gone", use, **input) == f"The workspace, {tmp_path}/gone, was removed."


@pytest.mark.parametrize("path", ["broken", "broken/x"])
async def test_a_broken_link_is_said_to_be_one(workspace: Path, path: str) -> None:
    (workspace / "broken").symlink_to("nothing")
    assert await refused(workspace, read_file, path=path) == ("broken is a broken link: its target does not exist.")


async def test_a_name_that_is_not_shown_as_it_is_is_never_suggested(workspace: Path) -> None:
    (workspace / os.fsdecode(b"docs/gr\xfc\xdfe.txt")).write_text("")
    assert await refused(workspace, read_file, path="docs/gr??e.txt") == "There is no docs/gr??e.txt."
    (workspace / "docs/tab?.txt").write_text("")
    assert await refused(workspace, read_file, path="docs/tab\t.txt") == "There is no docs/tab?.txt."
    assert "did you mean docs/tab?.txt?" in await refused(workspace, read_file, path="docs/tab.txt")


async def test_text_that_is_not_utf8_is_read_and_says_so(workspace: Path) -> None:
    (workspace / "old.txt").write_bytes("Größe\r\n".encode("latin-1"))
    text = await use(workspace, read_file, path="old.txt")
    assert text == (
        "old.txt: 1 line, 1 word, 7 bytes; it is not UTF-8, and � replaces bytes that could not be decoded; "
        "the lines end with CR LF\nGr��e"
    )


ENCODED = {
    "UTF-8 with a byte order mark; the lines end with CR LF": "\ufeffé x\r\ny".encode(),
    "UTF-16-LE with a byte order mark": "\ufeffé x\ny\n".encode("utf-16-le"),
    "UTF-16-BE with a byte order mark; the lines end with CR LF": "\ufeffé x\r\ny\r\n".encode("utf-16-be"),
    "lines 2 end with CR LF, the others with LF": "é x\ny\r\n".encode(),
}


@pytest.mark.parametrize("says", ENCODED)
async def test_what_lines_do_not_show_is_said_and_all_tools_see_the_same_lines(workspace: Path, says: str) -> None:
    raw = ENCODED[says]
    (workspace / "f").write_bytes(raw)
    head = f"f: 2 lines, 3 words, {len(raw)} bytes"
    assert await use(workspace, read_file, path="f") == f"{head}; {says}\né x\ny"
    assert (await use(workspace, list_files, path="f")).splitlines()[1] == head
    for pattern, row in (("^é", "f:1: é x"), ("x$", "f:1: é x"), ("^y$", "f:2: y")):
        assert (await use(workspace, search_files, pattern=pattern, path="f")).splitlines()[0] == row
    assert "0 matching lines" in await use(workspace, search_files, pattern="^$|\r", path="f")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
async def test_a_file_without_permission(workspace: Path) -> None:
    (workspace / "readme.md").chmod(0)
    assert "cannot be read: Permission denied" in await refused(workspace, read_file, path="readme.md")


async def test_pipes_and_sockets_hold_nothing_up(workspace: Path) -> None:
    os.mkfifo(workspace / "pipe")
    assert "cannot be read: it is a folder, a device, a pipe" in await refused(workspace, read_file, path="pipe")
    assert "\nNot searched (not readable): pipe.\n" in await use(workspace, search_files, pattern="beta")
    # A socket's path has room for about a hundred bytes.
    folder = os.open(workspace, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(f"/proc/self/fd/{folder}/socket")
            assert "socket cannot be read" in await refused(workspace, read_file, path="socket")
    finally:
        os.close(folder)


async def test_a_cancelled_read_ends_at_once(workspace: Path) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await use(workspace, read_file, path="readme.md")
    assert scope.cancelled_caught


# ---------------------------------------------------------------------------------------------- search_files


async def test_a_search_gives_rows_and_counts(workspace: Path) -> None:
    assert (await use(workspace, search_files, pattern="(?i)beta")).splitlines() == [
        "docs/a.txt:2: beta gamma",
        "docs/b.txt:1: beta",
        "docs/b.txt:2: Beta two",
        "3 matching lines in 2 of 5 files searched.",
        "Not searched (binary): data.bin.",
        "Left out: .git/, node_modules/.",
    ]
    assert await use(workspace, search_files, pattern="^beta$", path="docs/b.txt") == (
        "docs/b.txt:1: beta\n1 matching line in 1 of 1 file searched."
    )
    assert await use(workspace, search_files, pattern="nowhere", path="docs") == (
        "0 matching lines in 0 of 3 files searched."
    )


async def test_many_matches_are_counted_and_not_all_shown(workspace: Path) -> None:
    (workspace / "many").write_text("x\n" * (files.MAX_MATCHES + 7))
    rows = (await use(workspace, search_files, pattern="x", path="many")).splitlines()
    assert rows[files.MAX_MATCHES] == "(7 more matching lines are not shown.)"
    assert rows[-1] == f"{files.MAX_MATCHES + 7} matching lines in 1 of 1 file searched."


async def test_of_a_long_line_the_part_with_the_match_is_shown(workspace: Path) -> None:
    (workspace / "long").write_text("a" * 1000 + "needle" + "b" * 5000 + "\n" + "c" * 3000 + "needle\n")
    assert (await use(workspace, search_files, pattern="needle", path="long")).splitlines() == [
        f"long:1: …{'a' * 100}needle{'b' * 94}… (column 1001)",
        f"long:2: …{'c' * 100}needle (column 3001)",
        "2 matching lines in 1 of 1 file searched.",
    ]


async def test_what_a_search_leaves_out_is_named(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_WHOLE", 20)
    rows = (await use(workspace, search_files, pattern="beta")).splitlines()
    assert rows[-3:-1] == ["Not searched (binary): data.bin.", "Not searched (larger than 20 bytes): readme.md."]


@pytest.mark.parametrize("pattern", ["(", "*", "a{99999999999}", "[z-a]", "((x?){1000}){1000}"])
async def test_a_bad_expression_is_told(workspace: Path, pattern: str) -> None:
    assert "is not a regular expression" in await refused(workspace, search_files, pattern=pattern)


async def test_an_empty_or_endless_pattern_is_refused(workspace: Path) -> None:
    assert "1 to 1000 characters" in await refused(workspace, search_files, pattern="")
    assert "1 to 1000 characters" in await refused(workspace, search_files, pattern="x" * 1001)


NEVER = "(a|aa)+$"
"""Takes longer than anybody waits for a row of many a that ends otherwise."""


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("limit", "why"),
    [
        ("SEARCH_S", "(the search took longer than 0.3 s: search a smaller folder): trap/b, trap/c"),
        ("FILE_S", "to the end (the pattern takes too long there: make it simpler): trap/b"),
    ],
)
async def test_an_expression_that_never_ends_is_ended_and_what_was_found_is_kept(
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
        rows = (await use(workspace, search_files, pattern=NEVER, path="trap")).splitlines()
        assert rows[:2] == ["trap/a:1: aa", "trap/b:1: aa"]
        assert rows[-1] == f"Not searched {why}."
        nursery.cancel_scope.cancel()
    assert ticks > 100, "the rest of the program went on meanwhile"


async def test_a_cancelled_search_is_not_waited_for(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FILE_S", 1000.0)
    (workspace / "trap").write_text("a" * 60 + "b\n")
    with trio.move_on_after(0.1) as scope:
        await use(workspace, search_files, pattern=NEVER, path="trap")
    assert scope.cancelled_caught


async def test_a_long_search_tells_how_far_it_is(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BATCH", 2)
    said: list[str] = []
    found = await use(workspace, search_files, said, pattern="beta")
    assert said == ["searched 2 of 5 files, 0 matches", "searched 4 of 5 files, 2 matches"]
    assert "2 matching lines in 2 of 5 files" in found


async def test_more_files_than_the_limit_are_said_to_be_left(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_tree, "MAX_TREE_ENTRIES", 3)
    assert "Only the first 3 files were read" in await use(workspace, search_files, pattern="x")


def test_all_of_them_only_look() -> None:
    assert [t.name for t in TOOLS] == ["list_files", "read_file", "search_files"]
    assert all(t.read_only and not t.needs_approval and t.description for t in TOOLS)


def test_a_date_that_no_calendar_has_spoils_nothing() -> None:
    assert _change_date(99999999999999.0) == "date unknown"
    assert _change_date(0.0) == "changed 1970-01-01 00:00:00 UTC"
