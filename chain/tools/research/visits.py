"""``research``: visits folders, files and addresses in turn, and returns what they say about a topic, with where.

Before each source stands a safe point, so that the user's lines change what comes next: ``course`` says how. Which
places of a source fit is found by ``ranking``; ``report`` says what of it is shown. Nothing is interpreted.
"""

from __future__ import annotations

import ipaddress
import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import trio

from chain.concurrency.threads import Threads
from chain.errors import ToolError, UserError
from chain.text.wording import counted
from chain.tools.file_text import FileText
from chain.tools.file_tree import LOOK_UP, Tree, walk
from chain.tools.paths import open_file
from chain.tools.processes.guarded import Guard
from chain.tools.research import course as courses
from chain.tools.research import ranking
from chain.tools.research.addresses import Unreadable
from chain.tools.research.course import Course, Source
from chain.tools.research.hosts import Permits, Refused
from chain.tools.research.page_text import MAX_PAGE_ROWS, pieces
from chain.tools.research.pages import MAX_SOURCE_BYTES, SOURCE_S, Web, text_of_page
from chain.tools.research.ranking import Finding, Judge, Row
from chain.tools.research.report import MAX_RESULT, Beginning, Report, on_one_row, rendered
from chain.tools.tool import Subject, Tool, ToolContext, tool

MAX_SOURCES = 50
"""Sources of one call; at 30 s each that is 25 minutes."""

MAX_TOPIC = 1_000
MAX_SOURCE_NAME = 2_000

MAX_SHOWN_PLACES = 12
"""Places that are shown of a source: enough to see which file or page to read."""

MAX_IN_FOLDER = 512 * 1024
"""Bytes of a file in a folder that is searched. Larger ones are data, and would use up what is read of the folder."""

AT_THE_END = "after_sources"
"""The last safe point: what was said while the last source was visited still adds one."""

_THREADS = Threads("research")


class _Hosts(Subject):
    plural = "hosts"

    def pattern(self, text: str) -> str:
        """As of every subject; hosts that the configuration names are checked by it too."""
        if (":" in text and not _is_number(text)) or re.search(r"[/@\s]", text):
            raise UserError("a host is a name such as example.org, without https:// and without a path or port")
        if not text.isascii():
            raise UserError("write it as it is asked for, in the form that begins with xn--")
        return text.lower()


HOSTS = _Hosts()


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def research_tools(hosts: tuple[str, ...] = (), guard: Guard | None = None) -> tuple[Tool, ...]:
    """The tool ``research``; these hosts, each with those below it, need no approval.

    What it needs for addresses is imported when it first visits one.
    """
    web = Web(guard)

    # Without a time of its own, since each source has one.
    @tool(kind="fetch", read_only=True, timeout_s=math.inf, subject=HOSTS)
    async def research(ctx: ToolContext, topic: str, sources: list[str]) -> str:
        """Visit folders, files and web pages one after the other and collect what they say about a topic.

        `topic` is what is looked for: a few telling words. `sources` has 1 to 50 paths relative to the workspace and
        http(s) addresses, in the order in which they are visited. The result has the beginning of each source, then the
        places that fit the topic best, as PATH:LINE: text and ADDRESS: paragraph N: text, each with the rows next to
        it (N: where they fit as well, else N-). A source alone is given whole, as far as there is room: to read a page,
        name no other. The user can redirect a research that is under way; the result says what was changed.
        """
        if not ranking.terms(topic) or len(topic) > MAX_TOPIC:
            raise ToolError(f"The topic must have 1 to {MAX_TOPIC} characters, in words that can be looked for.")
        if not 1 <= len(sources) <= MAX_SOURCES:
            raise ToolError(f"sources must name 1 to {MAX_SOURCES} paths or addresses; it names {len(sources)}.")
        return await _Research(ctx, hosts, web, topic, sources).run()

    return (research,)


class _Research:
    def __init__(self, ctx: ToolContext, hosts: tuple[str, ...], web: Web, topic: str, sources: list[str]) -> None:
        self._ctx = ctx
        self._web = web
        self._permits = Permits(ctx.asking, hosts)
        self._course = courses.begin(topic, sources)
        self._by_user: set[str] = set()
        self._reports: list[Report] = []

    async def run(self) -> str:
        while True:
            first = next(iter(self._course.waiting), None)
            guidance = await self._ctx.safe_point(f"before_source:{first.name}" if first else AT_THE_END)
            for adjustment in guidance.adjustments:
                self._steer(courses.steered(self._course, adjustment))
            if guidance.stop:
                return self._result()
            now = next(iter(self._course.waiting), None)
            if now is None:
                return self._result()
            # Where lines put another source first, it has its own safe point first.
            if first is not None and now.name == first.name:
                await self._visit(now)

    def _steer(self, after: Course) -> None:
        before, self._course = self._course, after
        skipped = [name for name in after.skipped if name not in before.skipped]
        for note in after.notes[len(before.notes) :]:
            # A source that is skipped has a row of its own.
            if not skipped:
                self._ctx.progress(f"{on_one_row(note)} (from your line)")
        for name in skipped:
            self._ctx.progress(f"{on_one_row(name)}: skipped, as you said")
            self._reports.append(Report(name, "skipped, as the user said"))
        self._by_user |= {s.name for s in after.waiting if s.by_user and courses.is_address(s.name)}
        self._reports = [r for r in self._reports if r.name not in {s.name for s in after.waiting}]

    async def _visit(self, source: Source) -> None:
        self._course = courses.visiting(self._course)
        try:
            report = self._judged(await self._look(source))
        except Refused as refused:
            self._course = courses.passed_over(self._course)
            report = Report(source.name, f"refused: {on_one_row(str(refused))}")
        except (Unreadable, ToolError) as error:
            report = Report(source.name, on_one_row(str(error)))
        self._reports.append(report)
        self._ctx.progress(f"{on_one_row(source.name)}: {report.outcome}")

    async def _look(self, source: Source) -> Report:
        """What a source has. Raises ``Refused``, ``Unreadable`` and ``ToolError``."""
        name, course, workspace = source.name, self._course, self._ctx.workspace
        judge = ranking.judge(course.sought, course.preferred, course.ignored)
        if len(name) > MAX_SOURCE_NAME:
            raise Unreadable(f"has more than {MAX_SOURCE_NAME} characters")
        if courses.is_address(name):
            return await self._look_at_page(name, name, judge)
        try:
            with trio.move_on_after(SOURCE_S):
                return await _THREADS.run(partial(_search, workspace, name, judge), abandon_on_cancel=True)
            raise Unreadable(f"took longer than {SOURCE_S:g} s")
        except ToolError as error:
            if not courses.is_like_host(name):
                raise
            if not source.by_user:
                raise ToolError(f"{error} (An address begins with https://.)") from None
            # People say "also check example.org"; a path of that name would have come first.
            address = f"https://{name}"
            self._by_user.add(address)
            return await self._look_at_page(name, address, judge)

    async def _look_at_page(self, name: str, address: str, judge: Judge) -> Report:
        wanted = [s.name for s in self._course.waiting if courses.is_address(s.name)]
        page = await self._web.fetch(address, self._permits, self._by_user, wanted)
        text = await text_of_page(page, self._web.guard)
        opening = Beginning(judge)
        where = f"{page.address}: {text.unit} "
        findings = ranking.findings_in(opening.noted(text.rows, where), judge, where)
        found = await _THREADS.run(partial(ranking.best, findings, MAX_SHOWN_PLACES), abandon_on_cancel=True)
        notes = [_CUT] if page.was_cut else [_FIRST_ROWS] if len(text.rows) >= MAX_PAGE_ROWS else []
        return Report(name, found=found, opening=opening, notes=tuple(notes))

    def _judged(self, report: Report) -> Report:
        course, found, notes = self._course, report.found, report.notes
        if found.ignored:
            ignored = ", ".join(course.ignored)
            notes = (f"{counted(found.ignored, 'place')} left out (ignore: {ignored}, from the user's line).", *notes)
        outcome = f"{counted(found.total, 'place')} found"
        if course.focus:
            outcome += f", focus: {on_one_row(course.focus)}"
        return replace(report, outcome=outcome, preferred=course.preferred, notes=notes)

    def _result(self) -> str:
        course = self._course
        reports = [*self._reports, *(Report(s.name, "not visited, the user stopped") for s in course.waiting)]
        head = [f"{on_one_row(note)} (from the user's line)" for note in course.notes]
        end = ["", course.counts]
        # What does not fit is left out of each source, where a result that is cut would lose some altogether.
        most = min(MAX_RESULT, max(self._ctx.room - len("\n".join([*head, *end])), 0))
        return "\n".join([*head, *rendered(reports, most), *end]).lstrip("\n")


_FIRST_ROWS = f"Only the first {MAX_PAGE_ROWS:,} rows of it were looked at."
_CUT = f"Only the first {MAX_SOURCE_BYTES // 1024**2} MB were read."


@dataclass(slots=True)
class _Passed:
    """What a search of files passed over."""

    binary: int = 0
    large: int = 0
    was_cut: bool = False

    def notes(self) -> list[str]:
        left_out = ((self.binary, "binary or not readable"), (self.large, f"more than {MAX_IN_FOLDER} bytes"))
        notes = [f"{counted(n, 'file')} not searched: {why}." for n, why in left_out if n]
        return [*notes, _CUT] if self.was_cut else notes


def _search(workspace: Path, name: str, judge: Judge) -> Report:
    """Search a file or the files of a folder. Runs in a thread. Raises ``ToolError``."""
    tree, passed, opening = walk(workspace, name), _Passed(), Beginning(judge)
    if len(tree.entries) == 1 and not tree.folders and (workspace / name).is_file():
        # Somebody named this one file, so it says at once why it cannot be read, and may be larger.
        entry = tree.entries[0]
        if entry.parts is not None:
            open_file(tree.root, entry.parts, entry.shown).close()
        found = ranking.best(_findings(tree, judge, passed, opening, MAX_SOURCE_BYTES), MAX_SHOWN_PLACES)
        if passed.binary:
            raise ToolError(f"{entry.shown} is a binary file; only text can be searched.")
        title = ""
    else:
        found = ranking.best(_findings(tree, judge, passed, opening, MAX_IN_FOLDER), MAX_SHOWN_PLACES)
        title = f"{counted(len(tree.entries), 'file')}: {', '.join(entry.shown for entry in tree.entries)}"
        opening = opening.without_beginning()
    return Report(name, found=found, title=title, opening=opening, notes=(*passed.notes(), *tree.notes()))


def _findings(tree: Tree, judge: Judge, passed: _Passed, opening: Beginning, most: int) -> Iterator[Finding]:
    left = MAX_SOURCE_BYTES
    for entry in tree.entries:
        trio.from_thread.check_cancelled()
        if entry.parts is None:
            continue
        if left <= 0:
            passed.was_cut = True
            return
        try:
            with open_file(tree.root, entry.parts, entry.shown) as file:
                size = os.fstat(file.fileno()).st_size
                if size > most and most < MAX_SOURCE_BYTES:
                    passed.large += 1
                    continue
                raw = file.peek() if FileText.of(file.peek()) is None else file.read(left)
                text = FileText.of(raw)
        except (ToolError, OSError):
            text = None
        if text is None:
            passed.binary += 1
            continue
        passed.was_cut = passed.was_cut or size > len(raw)
        left -= len(raw)
        where = f"{entry.shown}:"
        yield from ranking.findings_in(opening.noted(_counted_lines(text.lines), where), judge, where)


def _counted_lines(lines: Sequence[str]) -> Iterator[Row]:
    for n, line in enumerate(lines, 1):
        if n % LOOK_UP == 0:
            trio.from_thread.check_cancelled()
        if line := line.rstrip():
            yield from ((n, piece) for piece in pieces(line))
