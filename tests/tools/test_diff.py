"""What an edit makes of a file: the content byte by byte, and a difference that leads from the old to the new."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import ToolError
from chain.tools.diff import Change, Edit, Replacement, Whole, change, decode_editable


def edited(old: bytes, edit: Edit) -> Change:
    return change("f", decode_editable("f", old), edit)


def refused(old: bytes, edit: Edit) -> str:
    with pytest.raises(ToolError) as caught:
        edited(old, edit)
    return str(caught.value)


def lines_of(text: str) -> list[str]:
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def applied(old: str, diff: str) -> str:
    """What a program that knows nothing but the format makes of the difference; it checks every number and line."""
    before, after = lines_of(old), list[str]()
    rows = diff.split("\n")[1:]
    at = n = 0
    while n < len(rows):
        head = re.fullmatch(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", rows[n])
        assert head, rows[n]
        n += 1
        old_left, new_left = (int(count or 1) for count in (head[2], head[4]))
        begin = int(head[1]) - (1 if old_left else 0)
        assert begin >= at
        after += before[at:begin]
        at = begin
        assert len(after) == int(head[3]) - (1 if new_left else 0)
        while old_left or new_left:
            sign, line = rows[n][:1], rows[n][1:] + "\n"
            n += 1
            if n < len(rows) and rows[n].startswith("\\"):
                n, line = n + 1, line[:-1]
            if sign in " -":
                assert before[at] == line
                at, old_left = at + 1, old_left - 1
            if sign in " +":
                after.append(line)
                new_left -= 1
    return "".join(after + before[at:])


TEXTS = st.lists(st.sampled_from(["a", "b", "c", "", "longer"]), max_size=25).flatmap(
    lambda lines: st.sampled_from(["\n".join(lines), "\n".join(lines) + "\n"])
)


@given(TEXTS, TEXTS)
def test_the_difference_leads_from_any_text_to_any_other(old: str, new: str) -> None:
    made = edited(old.encode(), Whole(new))
    assert made.content.decode() == new
    assert (not made.diff.hunks) == (old == new)
    text = made.diff.text
    assert applied(old, text) == new
    signs = [row[:1] for row in text.split("\n")[1:]]
    assert text.split("\n")[0] == f"f +{signs.count('+')} −{signs.count('-')}"


@given(TEXTS, st.data())
def test_a_replacement_changes_its_place_and_nothing_else(old: str, data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, len(old)))
    part = old[begin : data.draw(st.integers(begin, len(old)))]
    new = data.draw(TEXTS)
    if not part or part == new:
        return
    everywhere = edited(old.encode(), Replacement(part, new, everywhere=True))
    assert everywhere.content.decode() == old.replace(part, new)
    assert applied(old, everywhere.diff.text) == everywhere.content.decode()
    is_single = sum(old.startswith(part, n) for n in range(len(old))) == 1
    if is_single:
        assert edited(old.encode(), Replacement(part, new)).content == everywhere.content
    else:
        assert "occurs" in refused(old.encode(), Replacement(part, new))


def test_a_difference_is_unified_with_three_lines_of_context_and_a_head() -> None:
    old = "".join(f"{n}\n" for n in range(1, 31))
    new = old.replace("10\n", "ten\nand more\n").replace("25\n", "")
    assert edited(old.encode(), Whole(new)).diff.text.split("\n") == [
        "f +2 −2",
        *("@@ -7,7 +7,8 @@", " 7", " 8", " 9", "-10", "+ten", "+and more", " 11", " 12", " 13"),
        *("@@ -22,7 +23,6 @@", " 22", " 23", " 24", "-25", " 26", " 27", " 28"),
    ]


@pytest.mark.parametrize(
    ("old", "new", "rows"),
    [
        ("", "a\nb\n", ["f +2 −0", "@@ -0,0 +1,2 @@", "+a", "+b"]),
        ("a\n", "", ["f +0 −1", "@@ -1 +0,0 @@", "-a"]),
        ("a\n", "a", ["f +1 −1", "@@ -1 +1 @@", "-a", "+a", "\\ No newline at end of file"]),
    ],
)
def test_the_difference_of_what_is_empty_or_lacks_its_last_line_end(old: str, new: str, rows: list[str]) -> None:
    assert edited(old.encode(), Whole(new)).diff.text.split("\n") == rows


KEPT = {
    "CR LF throughout": (b"a\r\nb\r\nc\r\n", "a\nb", "x\ny\nz", b"x\r\ny\r\nz\r\nc\r\n"),
    "CR LF that is given as it is": (b"a\r\nb\r\n", "a\r\nb", "x\r\ny", b"x\r\ny\r\n"),
    "a mixed file is taken as it is": (b"a\r\nb\nc\n", "b\nc", "x\ny", b"a\r\nx\ny\n"),
    "a CR LF of a mixed file": (b"a\r\nb\nc\n", "a\r\nb", "x", b"x\nc\n"),
    "a byte order mark": (b"\xef\xbb\xbfa\nb\n", "a", "x", b"\xef\xbb\xbfx\nb\n"),
    "a missing last line end": (b"a\nb", "a", "x", b"x\nb"),
    "a last line without its end": (b"a\r\nb", "b", "x\ny", b"a\r\nx\r\ny"),
    "UTF-16": ("\ufeffa\r\nb\r\n".encode("utf-16-le"), "a\nb", "é", "\ufeffé\r\n".encode("utf-16-le")),
    "UTF-16, the other way round": ("\ufeffa\n".encode("utf-16-be"), "a", "é", "\ufeffé\n".encode("utf-16-be")),
    "separators that are no ends of line": ("a\x0cb\u2028c\n".encode(), "c", "d", "a\x0cb\u2028d\n".encode()),
}


@pytest.mark.parametrize("name", KEPT)
def test_ends_of_line_and_marks_are_kept(name: str) -> None:
    old, part, new, becomes = KEPT[name]
    assert edited(old, Replacement(part, new)).content == becomes


WRITTEN = {
    "CR LF throughout": (b"a\r\n", "x\ny\n", b"x\r\ny\r\n"),
    "mixed": (b"a\r\nb\n", "x\ny\r\n", b"x\ny\r\n"),
    "a byte order mark": (b"\xef\xbb\xbfa\n", "x\n", b"\xef\xbb\xbfx\n"),
    "a byte order mark that is given too": (b"\xef\xbb\xbfa\n", "\ufeffx\n", b"\xef\xbb\xbfx\n"),
    "the last line end is as it is given": (b"a", "x\n", b"x\n"),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_file_that_is_written_whole_keeps_its_ends_of_line_and_mark(name: str) -> None:
    old, content, becomes = WRITTEN[name]
    assert edited(old, Whole(content)).content == becomes


def test_ends_of_line_are_shown_only_where_they_differ() -> None:
    assert "\r" not in edited(b"a\r\nb\r\n", Replacement("b", "c")).diff.text
    assert "␍" not in edited(b"a\r\nb\r\n", Replacement("b", "c")).diff.text
    assert edited(b"a\r\nb\n", Replacement("a\r\n", "a\n")).diff.text.split("\n")[2:] == ["-a␍", "+a", " b"]


REFUSED = {
    "not there": (b"a\n", ("b", "c"), "old_string is not in f: it must be there exactly"),
    "other ends of line": (b"a\r\nb\nc", ("a\nb", "c"), "at line 1 looks the same: f has CR LF."),
    "more than once": (b"x\na\nx x\n", ("x", "c"), "old_string occurs 3 times in f, at the lines 1, 3, 3:"),
    "a no-break space": (
        "x\na\xa0b c\n".encode(),
        ("a b", "c"),
        "a text at line 2 looks the same: f has U+00A0 (NO-BREAK SPACE).",
    ),
    "curly quotes": ("say “a’s”\n".encode(), ('"a\'s"', "c"), "f has U+2019 (RIGHT SINGLE QUOTATION MARK), U+201C"),
    "curly quotes of the model": (b"it's\n", ("it’s", "c"), "old_string has U+2019 (RIGHT SINGLE QUOTATION MARK)."),
    "accents apart": ("cafe\u0301\n".encode(), ("café", "c"), "has U+0301 (COMBINING ACUTE ACCENT) and old_string has"),
    "syllables apart": (
        "\u1112\u1161\u11ab\n".encode(),
        ("\ud55c", "c"),
        "old_string has U+D55C (HANGUL SYLLABLE HAN)",
    ),
    "a dash": ("1–2\n".encode(), ("1-2", "c"), "f has U+2013 (EN DASH)."),
    "a character that nobody sees": ("a\u200bb\n".encode(), ("ab", "c"), "f has U+200B (ZERO WIDTH SPACE)."),
    "wide letters": ("ＡＢ\n".encode(), ("AB", "c"), "f has U+FF21 (FULLWIDTH LATIN CAPITAL LETTER A), U+FF22"),
    "two lines, the second of which differs": (
        b"a\r\nb\xc2\xa0c\r\n",
        ("a\nb c", "x"),
        "at line 1 looks the same: f has U+00A0",
    ),
    "another text with such characters": ("a\xa0b\n".encode(), ("b\xa0a", "c"), "it must be there exactly"),
    "many times": (
        b"x\n" * 1234,
        ("x", "c"),
        "occurs 1,234 times in f, at the lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and",
    ),
    "overlapping itself": (b"\naaa\n", ("aa", "c"), "old_string occurs twice in f, overlapping at line 2"),
    "the same but for ends of line": (b"a\r\nb\r\n", ("a\nb", "a\r\nb"), "are the same, since the lines of f end with"),
    "a NUL": (b"a\n", ("a", "\0"), "would contain a NUL"),
    "half a character": (b"a\n", ("a", "\ud800"), "half a character"),
    "binary": (b"a\0\n", ("a", "b"), "f is a binary file of 3 bytes"),
    "not UTF-8": (b"a\nb\xff\n", ("a", "b"), "f is not UTF-8 (see line 2)"),
    "half of UTF-16": (b"\xff\xfea\0\n", ("a", "b"), "f is not UTF-16-LE (see line 1)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_in_a_sentence(name: str) -> None:
    old, (part, new), says = REFUSED[name]
    assert says in refused(old, Replacement(part, new))


@pytest.mark.parametrize(("old", "new", "says"), [("", "x", "old_string is empty"), ("x", "x", "are the same")])
def test_a_replacement_that_makes_no_sense_cannot_be_made(old: str, new: str, says: str) -> None:
    with pytest.raises(ToolError, match=says):
        Replacement(old, new)


def test_small_changes_of_a_large_file_are_shown_as_small() -> None:
    lines = [f"line {n}" if n % 3 else "}" for n in range(60_000)]
    old = "\n".join(lines)
    for n in range(100, 60_000, 5_000):
        lines[n] = "another"
    made = edited(old.encode(), Whole("\n".join(lines)))
    assert made.diff.head == "f +12 −12"


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("alphabet", [2, 50, 100_000])
def test_no_difference_takes_long(alphabet: int) -> None:
    """The bound is far above what it takes, and far below what a matcher without a budget does."""
    old, new = ("\n".join(str(n * n * k % 100_003 % alphabet) for n in range(40_000)) for k in (3, 7))
    begun = time.process_time()
    made = edited(old.encode(), Whole(new))
    assert time.process_time() - begun < 20
    assert applied(old, made.diff.text) == new


def test_places_that_overlap_far_do_not_take_long() -> None:
    begun = time.process_time()
    assert "occurs" in refused(b"a" * 1_000_000, Replacement("a" * 300_000, "b"))
    assert time.process_time() - begun < 20
