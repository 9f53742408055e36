"""The new content that an edit makes, byte by byte, and the diff from the old content to the new."""

from __future__ import annotations

import re
import time
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import ToolError
from chain.tools.diff import Change, Edit, Replacement, Whole, apply_edit, decode_editable


def edit_bytes(old: bytes, edit: Edit) -> Change:
    return apply_edit("f", decode_editable("f", old), edit)


def refusal_of(old: bytes, old_string: str, new_string: str) -> str:
    with pytest.raises(ToolError) as refusal:
        edit_bytes(old, Replacement(old_string, new_string))
    return str(refusal.value)


def apply_diff(old: str, diff: str) -> str:
    """Apply a unified diff, and check each number and line of it."""
    old_lines = re.findall(r"[^\n]*\n|[^\n]+", old)
    new_lines = list[str]()
    rows = deque(diff.split("\n"))
    rows.popleft()  # the counts of the whole file
    at = 0  # the index of the next old line
    while rows:
        head = re.fullmatch(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", rows.popleft())
        assert head
        old_count, new_count = (int(count or 1) for count in (head[2], head[4]))
        # Lines are numbered from 1. A side without lines has the number of the line before it.
        old_index, new_index = int(head[1]) - (1 if old_count else 0), int(head[3]) - (1 if new_count else 0)
        assert old_index >= at
        new_lines += old_lines[at:old_index]
        at = old_index
        assert len(new_lines) == new_index
        while old_count or new_count:
            row = rows.popleft()
            sign, line = row[:1], row[1:] + "\n"
            if rows and rows[0].startswith("\\"):  # \ No newline at end of file
                rows.popleft()
                line = line[:-1]
            if sign in " -":
                assert old_lines[at] == line
                at, old_count = at + 1, old_count - 1
            if sign in " +":
                new_lines.append(line)
                new_count -= 1
    return "".join(new_lines + old_lines[at:])


TEXTS = st.lists(st.sampled_from(["a", "b", "c", "", "longer"]), max_size=25).flatmap(
    lambda lines: st.sampled_from(["\n".join(lines), "\n".join(lines) + "\n"])
)


@given(TEXTS, TEXTS)
def test_diff_turns_old_text_into_new(old: str, new: str) -> None:
    change = edit_bytes(old.encode(), Whole(new))
    assert change.content.decode() == new
    assert (not change.diff.hunks) == (old == new)
    assert apply_diff(old, change.diff.text) == new
    head, *rows = change.diff.text.split("\n")
    signs = [row[:1] for row in rows]
    assert head == f"f +{signs.count('+')} −{signs.count('-')}"


@given(TEXTS, st.data())
def test_replacement_changes_only_its_place(old: str, data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, len(old)))
    part = old[begin : data.draw(st.integers(begin, len(old)))]
    new = data.draw(TEXTS)
    if not part or part == new:
        return
    everywhere = edit_bytes(old.encode(), Replacement(part, new, replace_all=True))
    assert everywhere.content.decode() == old.replace(part, new)
    assert apply_diff(old, everywhere.diff.text) == everywhere.content.decode()
    occurrences = sum(old.startswith(part, n) for n in range(len(old)))
    if occurrences == 1:
        assert edit_bytes(old.encode(), Replacement(part, new)).content == everywhere.content
    else:
        assert "occurs" in refusal_of(old.encode(), part, new)


def test_diff_has_three_lines_of_context() -> None:
    old = "".join(f"{n}\n" for n in range(1, 31))
    new = old.replace("\n3\n", "\nthree\nand more\n").replace("\n10\n", "\n").replace("\n18\n", "\n")
    assert edit_bytes(old.encode(), Whole(new)).diff.text.split("\n") == [
        "f +2 −3",
        *("@@ -1,13 +1,13 @@", " 1", " 2", "-3", "+three", "+and more", " 4", " 5", " 6", " 7", " 8", " 9", "-10"),
        *(" 11", " 12", " 13", "@@ -15,7 +15,6 @@", " 15", " 16", " 17", "-18", " 19", " 20", " 21"),
    ]


@pytest.mark.parametrize(
    ("old", "new", "rows"),
    [
        ("", "a\nb\n", ["f +2 −0", "@@ -0,0 +1,2 @@", "+a", "+b"]),
        ("a\n", "", ["f +0 −1", "@@ -1 +0,0 @@", "-a"]),
        ("a\n", "a", ["f +1 −1", "@@ -1 +1 @@", "-a", "+a", "\\ No newline at end of file"]),
        ("a\r\nb\r\n", "a\r\nc\r\n", ["f +1 −1", "@@ -1,2 +1,2 @@", " a", "-b", "+c"]),
        ("a\r\nb\n", "a\nb\n", ["f +1 −1", "@@ -1,2 +1,2 @@", "-a␍", "+a", " b"]),
    ],
    ids=["new file", "emptied", "last line end removed", "CR LF throughout", "a CR LF replaced"],
)
def test_diff_of_line_ends_and_empty_files(old: str, new: str, rows: list[str]) -> None:
    assert edit_bytes(old.encode(), Whole(new)).diff.text.split("\n") == rows


CONTENTS: dict[str, tuple[bytes, Edit, bytes]] = {
    "CR LF throughout": (b"a\r\nb\r\nc\r\n", Replacement("a\nb", "x\ny\nz"), b"x\r\ny\r\nz\r\nc\r\n"),
    "CR LF in old_string": (b"a\r\nb\r\n", Replacement("a\r\nb", "x\r\ny"), b"x\r\ny\r\n"),
    "LF of a mixed file": (b"a\r\nb\nc\n", Replacement("b\nc", "x\ny"), b"a\r\nx\ny\n"),
    "CR LF of a mixed file": (b"a\r\nb\nc\n", Replacement("a\r\nb", "x"), b"x\nc\n"),
    "byte order mark": (b"\xef\xbb\xbfa\nb\n", Replacement("a", "x"), b"\xef\xbb\xbfx\nb\n"),
    "last line without an end": (b"a\r\nb", Replacement("b", "x\ny"), b"a\r\nx\r\ny"),
    "UTF-16-LE": ("\ufeffa\r\nb\r\n".encode("utf-16-le"), Replacement("a\nb", "é"), "\ufeffé\r\n".encode("utf-16-le")),
    "UTF-16-BE": ("\ufeffa\n".encode("utf-16-be"), Replacement("a", "é"), "\ufeffé\n".encode("utf-16-be")),
    "other separators": ("a\x0cb\u2028c\n".encode(), Replacement("c", "d"), "a\x0cb\u2028d\n".encode()),
    "written whole, CR LF": (b"a\r\n", Whole("x\ny\n"), b"x\r\ny\r\n"),
    "written whole, mixed": (b"a\r\nb\n", Whole("x\ny\r\n"), b"x\ny\r\n"),
    "written whole, mark": (b"\xef\xbb\xbfa\n", Whole("x\n"), b"\xef\xbb\xbfx\n"),
    "written whole, mark written too": (b"\xef\xbb\xbfa\n", Whole("\ufeffx\n"), b"\xef\xbb\xbfx\n"),
    "written whole, last line end": (b"a", Whole("x\n"), b"x\n"),
}


@pytest.mark.parametrize(("old", "edit", "content"), CONTENTS.values(), ids=CONTENTS)
def test_edit_keeps_line_ends_and_byte_order_mark(old: bytes, edit: Edit, content: bytes) -> None:
    assert edit_bytes(old, edit).content == content


REFUSED_REPLACEMENTS: dict[str, tuple[bytes, str, str, str]] = {
    "absent": (b"a\n", "b", "c", "old_string is not in f: it must match exactly"),
    "other line ends": (b"a\r\nb\nc", "a\nb", "c", "at line 1 looks the same: f has CR LF."),
    "several": (b"x\na\nx x\n", "x", "c", "old_string occurs 3 times in f, at the lines 1, 3, 3:"),
    "many": (b"x\n" * 1234, "x", "c", "occurs 1,234 times in f, at the lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and"),
    "overlapping": (b"\naaa\n", "aa", "c", "old_string occurs twice in f, overlapping at line 2"),
    "no-break": ("x\na\xa0b c\n".encode(), "a b", "c", "at line 2 looks the same: f has U+00A0 (NO-BREAK SPACE)."),
    "curly quotes": ("say “a’s”\n".encode(), '"a\'s"', "c", "f has U+2019 (RIGHT SINGLE QUOTATION MARK), U+201C"),
    "curly quotes in old_string": (b"it's\n", "it’s", "c", "old_string has U+2019 (RIGHT SINGLE QUOTATION MARK)."),
    "separate accent": ("cafe\u0301\n".encode(), "café", "c", "has U+0301 (COMBINING ACUTE ACCENT) and old_string has"),
    "split syllable": ("\u1112\u1161\u11ab\n".encode(), "\ud55c", "c", "old_string has U+D55C (HANGUL SYLLABLE HAN)"),
    "dash": ("1–2\n".encode(), "1-2", "c", "f has U+2013 (EN DASH)."),
    "invisible": ("a\u200bb\n".encode(), "ab", "c", "f has U+200B (ZERO WIDTH SPACE)."),
    "wide letters": ("ＡＢ\n".encode(), "AB", "c", "f has U+FF21 (FULLWIDTH LATIN CAPITAL LETTER A), U+FF22"),
    "no-break in the second line": (b"a\r\nb\xc2\xa0c\r\n", "a\nb c", "x", "at line 1 looks the same: f has U+00A0"),
    "same characters in another order": ("a\xa0b\n".encode(), "b\xa0a", "c", "it must match exactly"),
    "only line ends changed": (b"a\r\nb\r\n", "a\nb", "a\r\nb", "are the same, since the lines of f end with"),
    "NUL": (b"a\n", "a", "\0", "would contain a NUL"),
    "half a character, a surrogate": (b"a\n", "a", "\ud800", "half a character"),
    "binary": (b"a\0\n", "a", "b", "f is a binary file of 3 bytes"),
    "not UTF-8": (b"a\nb\xff\n", "a", "b", "f is not UTF-8 (see line 2)"),
    "half of UTF-16": (b"\xff\xfea\0\n", "a", "b", "f is not UTF-16-LE (see line 1)"),
    "empty": (b"a\n", "", "x", "old_string is empty"),
    "unchanged": (b"a\n", "x", "x", "are the same"),
}


@pytest.mark.parametrize(
    ("old", "old_string", "new_string", "reason"), REFUSED_REPLACEMENTS.values(), ids=REFUSED_REPLACEMENTS
)
def test_replacement_that_does_not_fit_is_refused(old: bytes, old_string: str, new_string: str, reason: str) -> None:
    assert reason in refusal_of(old, old_string, new_string)


def test_large_file_has_a_small_diff() -> None:
    lines = [f"line {n}" if n % 3 else "}" for n in range(60_000)]  # every third line is the same
    old, changed_lines = "\n".join(lines), range(100, 60_000, 5_000)
    for n in changed_lines:
        lines[n] = "another"
    head = edit_bytes(old.encode(), Whole("\n".join(lines))).diff.head
    assert head == f"f +{len(changed_lines)} −{len(changed_lines)}"


MOST_SECONDS = 20
"""Far above the usual time, and far below that of a matcher without a budget."""


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("distinct_lines", [2, 50, 100_000])
def test_diff_of_unlike_files_is_fast(distinct_lines: int) -> None:
    # The squares modulo a prime are a sequence without repeated runs; each factor gives another one.
    old, new = ("\n".join(str(n * n * k % 100_003 % distinct_lines) for n in range(40_000)) for k in (3, 7))
    start = time.process_time()
    change = edit_bytes(old.encode(), Whole(new))
    assert time.process_time() - start < MOST_SECONDS
    assert apply_diff(old, change.diff.text) == new


def test_long_overlapping_places_are_found_fast() -> None:
    start = time.process_time()
    assert "occurs" in refusal_of(b"a" * 1_000_000, "a" * 300_000, "b")
    assert time.process_time() - start < MOST_SECONDS
