"""Applies an edit to the text of a file, and computes the hunks that differ. Pure.

The preview and the edit use the same function, so the file gets exactly the text that the user approved.

The lines of the old and the new text are matched in three steps. Each step works on the lines that are still unmatched:

1. equal lines at the start and at the end;
2. lines that occur exactly once in the old and once in the new text (patience diff);
3. other equal lines, by ``difflib.SequenceMatcher``.

The third step takes quadratic time or more, so its work is limited. A block that would exceed the limit is shown as
removed and added as a whole.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import islice
from typing import NamedTuple, TypeAlias

from chain.errors import ToolError
from chain.text.hunks import FileDiff, Hunk
from chain.text.wording import join_first
from chain.tools.file_text import MAX_NUMBERS, FileText
from chain.tools.lookalikes import differing_characters, fold_lookalikes

DIFF_CONTEXT = 3
"""Context lines before and after a change, as in git."""

MAX_STEPS = 20_000_000
"""The most steps that ``SequenceMatcher`` may take for one diff: about two seconds."""


@dataclass(frozen=True, slots=True)
class Whole:
    """An edit that writes the whole content of a file."""

    content: str


@dataclass(frozen=True, slots=True)
class Replacement:
    """An edit that replaces a text, which must occur once unless ``replace_all`` is set.

    The constructor raises ``ToolError`` if ``old`` is empty or equal to ``new``.
    """

    old: str
    new: str
    replace_all: bool = False

    def __post_init__(self) -> None:
        if not self.old:
            raise ToolError("old_string is empty: give the text to be replaced, or use write_file for a whole file.")
        if self.old == self.new:
            raise ToolError("old_string and new_string are the same, so there is nothing to replace.")


Edit: TypeAlias = Whole | Replacement


@dataclass(frozen=True, slots=True)
class Change:
    """The content of a file after an edit, and the difference from the old content: no hunks if nothing changes."""

    content: bytes
    diff: FileDiff


def decode_editable(path: str, raw: bytes) -> FileText:
    """Decode a file for an edit. Raise ``ToolError`` if it is binary, or neither valid UTF-8 nor valid UTF-16."""
    text = FileText.of(raw)
    if text is None:
        raise ToolError(f"{path} is a binary file of {len(raw)} bytes; only text can be edited.")
    if text.is_damaged:
        name, n = text.codec.upper(), text.body.count("\n", 0, text.body.index("\ufffd")) + 1
        raise ToolError(f"{path} is not {name} (see line {n}); only text in UTF-8 or UTF-16 can be edited.")
    return text


def apply_edit(path: str, text: FileText, edit: Edit) -> Change:
    """Return the content of a file after an edit, and the changes. Raise ``ToolError`` if the edit cannot be made."""
    match edit:
        case Whole(given):
            new = text.adapt_line_ends(given.removeprefix("\ufeff") if text.mark else given)
        case Replacement():
            new = _apply_replacement(path, text, edit)
    if "\0" in new:
        raise ToolError(f"The new text of {path} would contain a NUL character, which makes a file binary.")
    try:
        content = text.mark + new.encode(text.codec)
    except UnicodeEncodeError:
        raise ToolError(f"The new text of {path} would contain half a character (a lone surrogate).") from None
    before, after = _lines(text.body), _lines(new)
    # Show CRs only if some lines have none, because they may be the change.
    hide_cr = text.is_crlf and all(line.endswith("\r\n") for line in after if line.endswith("\n"))
    return Change(content, FileDiff(path, tuple(_hunks(before, after, hide_cr=hide_cr))))


def _apply_replacement(path: str, text: FileText, edit: Replacement) -> str:
    body, old, new = text.body, text.adapt_line_ends(edit.old), text.adapt_line_ends(edit.new)
    if old == new:
        raise ToolError(f"old_string and new_string are the same, since the lines of {path} end with CR LF.")
    count = body.count(old)
    if not count:
        raise ToolError(_describe_missing_text(path, body, old))
    if edit.replace_all:
        return body.replace(old, new)
    if count > 1:
        numbers = [str(n) for n in islice(_line_numbers(body, old), MAX_NUMBERS)]
        last = f" and {count - MAX_NUMBERS} more" if count > MAX_NUMBERS else ""
        raise ToolError(
            f"old_string occurs {count:,} times in {path}, at the lines {', '.join(numbers)}{last}: "
            "add the text around the one you mean, or set replace_all."
        )
    at = body.find(old)
    if body.find(old, at + 1) != -1:
        # ``str.count`` counts "aa" once in "aaa", although it occurs twice.
        n = next(_line_numbers(body, old))
        raise ToolError(f"old_string occurs twice in {path}, overlapping at line {n}: add the text around it.")
    return body[:at] + new + body[at + len(old) :]


def _describe_missing_text(path: str, body: str, old: str) -> str:
    """Return the error message for a text ``old`` that is not in the file.

    If the file contains a text that looks the same, the message names the characters that differ.
    """
    alike, wanted = fold_lookalikes(body), fold_lookalikes(old)
    at = alike.find(wanted)
    n = alike.count("\n", 0, max(at, 0)) + 1
    shown = "\n".join(body.split("\n")[n - 1 : n + old.count("\n")]).rstrip("\r")
    sides = ((path, differing_characters(shown, old)), ("old_string", differing_characters(old, shown)))
    differing = [f"{which} has {join_first(names, MAX_NUMBERS)}" for which, names in sides if names]
    if at < 0 or not wanted or not differing:
        return f"old_string is not in {path}: it must match exactly, with spaces and line ends."
    return (
        f"old_string is not in {path}, but a text at line {n} looks the same: {' and '.join(differing)}. "
        "Give the characters that are in the file."
    )


def _line_numbers(body: str, old: str) -> Iterator[int]:
    n, seen, at = 1, 0, body.find(old)
    while at != -1:
        n += body.count("\n", seen, at)
        seen = at
        yield n
        at = body.find(old, at + len(old))


def _lines(text: str) -> list[str]:
    """Split a text into lines with their line ends. Only a line feed ends a line, as in editors and ``read_file``."""
    *ended, last = text.split("\n")
    return [f"{line}\n" for line in ended] + ([last] if last else [])


# ---------------------------------------------------------------------------------------------------- matching of lines


class _Block(NamedTuple):
    """A block of changed lines: ``after[new:new_end]`` replaces ``before[old:old_end]``."""

    old: int
    old_end: int
    new: int
    new_end: int


class _LineMatcher:
    def __init__(self, before: Sequence[str], after: Sequence[str]) -> None:
        self._before = before
        self._after = after
        self._steps = MAX_STEPS

    def blocks(self) -> deque[_Block]:
        """Return the blocks of changed lines, in order. Adjacent blocks are merged."""
        blocks: deque[_Block] = deque()
        whole = self._trim(_Block(0, len(self._before), 0, len(self._after)))
        for part in self._split_at_anchors(whole):
            for old, old_end, new, new_end in self._split_at_equal_lines(self._trim(part)):
                if blocks and (blocks[-1].old_end, blocks[-1].new_end) == (old, new):
                    old, _, new, _ = blocks.pop()
                blocks.append(_Block(old, old_end, new, new_end))
        return blocks

    def _trim(self, b: _Block) -> _Block:
        """Return the block without the lines that are equal on both sides at its start and at its end."""
        before, after = self._before, self._after
        old, old_end, new, new_end = b
        while old < old_end and new < new_end and before[old] == after[new]:
            old, new = old + 1, new + 1
        while old < old_end and new < new_end and before[old_end - 1] == after[new_end - 1]:
            old_end, new_end = old_end - 1, new_end - 1
        return _Block(old, old_end, new, new_end)

    def _split_at_anchors(self, b: _Block) -> Iterator[_Block]:
        """Split a block at lines that occur once on each side and in the same order. Yield the parts between them."""
        once = _unique_lines(self._after, b.new, b.new_end)
        pairs = [(n, once[line]) for line, n in _unique_lines(self._before, b.old, b.old_end).items() if line in once]
        old, new = b.old, b.new
        for at_old, at_new in _longest_increasing(pairs):
            yield _Block(old, at_old, new, at_new)
            old, new = at_old + 1, at_new + 1
        yield _Block(old, b.old_end, new, b.new_end)

    def _split_at_equal_lines(self, b: _Block) -> Iterator[_Block]:
        """Split a block at the equal lines that ``SequenceMatcher`` finds. Yield the parts between them.

        If this would take more steps than remain of ``MAX_STEPS``, yield the block as it is.
        """
        before, after = self._before[b.old : b.old_end], self._after[b.new : b.new_end]
        if not before and not after:
            return
        counts = Counter(before)
        equal = sum(counts[line] for line in after if line in counts)
        steps = min(len(before), len(after), equal) * (len(before) + len(after) + equal)
        if not equal or steps > self._steps:
            yield b
            return
        self._steps -= steps
        for tag, old, old_end, new, new_end in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
            if tag != "equal":
                yield _Block(b.old + old, b.old + old_end, b.new + new, b.new + new_end)


def _unique_lines(lines: Sequence[str], begin: int, end: int) -> dict[str, int]:
    """Return the lines that occur exactly once in ``lines[begin:end]``, with their indices in ``lines``, in order."""
    counts = Counter(lines[begin:end])
    return {lines[n]: n for n in range(begin, end) if counts[lines[n]] == 1}


def _longest_increasing(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the longest subsequence in which both numbers of the pairs increase. The first numbers must be sorted."""
    ends: list[int] = []  # for each length, the least second number that a subsequence of this length ends with
    at: list[int] = []  # the index of the pair that has the number in ``ends``
    before: list[int] = []
    for n, (_, second) in enumerate(pairs):
        length = bisect_left(ends, second)
        before.append(at[length - 1] if length else -1)
        ends[length : length + 1] = [second]
        at[length : length + 1] = [n]
    backwards: list[tuple[int, int]] = []
    n = at[-1] if at else -1
    while n != -1:
        backwards.append(pairs[n])
        n = before[n]
    return backwards[::-1]


# ---------------------------------------------------------------------------------------------------------------- hunks


def _hunks(before: Sequence[str], after: Sequence[str], *, hide_cr: bool) -> Iterator[Hunk]:
    left = _LineMatcher(before, after).blocks()
    while left:
        group = [left.popleft()]
        while left and left[0].old - group[-1].old_end <= 2 * DIFF_CONTEXT:
            group.append(left.popleft())
        first, last = group[0], group[-1]
        lead = min(DIFF_CONTEXT, first.old)
        here, end = first.old - lead, min(last.old_end + DIFF_CONTEXT, len(before))
        # If a side has no lines in the hunk, its number is that of the line before the hunk.
        old = here + (end > here)
        new = first.new - lead + (last.new_end - first.new + end - last.old_end + lead > 0)
        rows: list[str] = []
        for block in group:
            rows += [_row(" ", line, hide_cr) for line in before[here : block.old]]
            rows += [_row("-", line, hide_cr) for line in before[block.old : block.old_end]]
            rows += [_row("+", line, hide_cr) for line in after[block.new : block.new_end]]
            here = block.old_end
        rows += [_row(" ", line, hide_cr) for line in before[here:end]]
        sides = (("-", before), ("+", after)) if end == len(before) else ()  # both files end here
        yield Hunk(old, new, tuple(rows), "".join(sign for sign, lines in sides if lines and lines[-1][-1] != "\n"))


def _row(sign: str, line: str, hide_cr: bool) -> str:
    if line.endswith("\r\n"):
        return f"{sign}{line[:-2]}{'' if hide_cr else '␍'}"
    return sign + line.removesuffix("\n")
