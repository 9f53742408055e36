"""The tool ``research``, which visits folders, files and web pages in turn and collects what they say about a topic.

Before each source there is a safe point, at which the user's lines can change the ``plan``. ``pages`` fetches pages
from hosts that ``hosts`` approves, this module reads files, and ``report`` selects what is shown.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import trio

from chain.concurrency.threads import Threads
from chain.errors import ToolError, UserError
from chain.lines.parse import Adjustment
from chain.text.wording import pluralize
from chain.tools.file_text import FileText
from chain.tools.file_tree import walk
from chain.tools.paths import open_file
from chain.tools.processes.guarded import Guard
from chain.tools.research.addresses import SourceError, host_of, parse_ip
from chain.tools.research.hosts import HostApprovals, HostRefused
from chain.tools.research.page_text import MAX_ROWS, pieces
from chain.tools.research.pages import MAX_SOURCE_BYTES, SOURCE_S, fetch, text_of_page
from chain.tools.research.plan import MAX_NAME, ResearchPlan, is_address, may_be_host
from chain.tools.research.ranking import Row, terms_of
from chain.tools.research.report import MAX_RESULT, Report, Source, render, report_of, to_one_row
from chain.tools.tool import Subject, Tool, ToolContext, tool

MAX_SOURCES = 50
"""The most sources of one call. At 30 s for each source, a call takes up to 25 minutes."""

MAX_TOPIC = 1_000

MAX_IN_FOLDER = 512 * 1024
"""The most bytes of a file in a folder that is searched. Larger files are data, and would use up the folder's limit."""

_THREADS = Threads("research")


class _Hosts(Subject):
    plural = "hosts"

    def normalize_pattern(self, text: str) -> str:
        """Return a pattern for hosts in lower case. Raise ``UserError`` if no host can match it."""
        if (":" in text and (parse_ip(text) is None or "[" in text)) or re.search(r"[/@\s]", text):
            raise UserError("a host is a name such as example.org, without https:// and without a path or port")
        if not text.isascii():
            raise UserError("write its ASCII form, which begins with xn--")
        return text.lower()


HOSTS = _Hosts()


def research_tools(hosts: tuple[str, ...], guard: Guard) -> tuple[Tool, ...]:
    """Return the tool ``research``. The given hosts and their subdomains need no approval.

    The ``guard`` runs the program that extracts the text of pages.
    """

    # No time limit for the whole call, since each source has one.
    @tool(kind="fetch", read_only=True, timeout_s=math.inf, subject=HOSTS)
    async def research(ctx: ToolContext, topic: str, sources: list[str]) -> str:
        """Visit folders, files and web pages one after another, and collect what they say about a topic.

        `topic` is what to search for: a few specific words. `sources` has 1 to 50 paths relative to the workspace and
        http(s) addresses, in the order in which they are visited. The result has the beginning of each source, then the
        best matches, as PATH:LINE: text and ADDRESS: paragraph N: text, each with the rows next to it, as N: text if
        they match too, else as N- text. A single source is returned whole, as far as it fits: to read a page, name no
        other source. The user can redirect a running call; the result says what was changed.
        """
        if not terms_of(topic) or len(topic) > MAX_TOPIC:
            raise ToolError(f"The topic must have 1 to {MAX_TOPIC:,} characters and not be blank.")
        if not 1 <= len(sources) <= MAX_SOURCES:
            raise ToolError(f"sources must name 1 to {MAX_SOURCES} paths or addresses; it names {len(sources)}.")
        return await _Research(ctx, hosts, ResearchPlan.of(topic, sources), guard).run()

    return (research,)


class _Research:
    """One call of the tool ``research``."""

    def __init__(self, ctx: ToolContext, hosts: Sequence[str], plan: ResearchPlan, guard: Guard) -> None:
        self._ctx = ctx
        self._guard = guard
        self._approvals = HostApprovals(ctx.asking, hosts)
        self._plan = plan
        self._reports: dict[str, Report] = {}

    async def run(self) -> str:
        """Visit the waiting sources until none is left or the user stops, and return the result."""
        plan = self._plan
        while True:
            before = plan.waiting[:1]
            # Also after the last source: a line that came during its visit can add a source.
            guidance = await self._ctx.safe_point(f"before_source:{before[0]}" if before else "after_sources")
            for adjustment in guidance.adjustments:
                self._steer(adjustment)
            if guidance.stop or not plan.waiting:
                return self._result()
            # A source that a line moved to the front has its own safe point.
            if plan.waiting[:1] == before:
                await self._visit(plan.waiting.pop(0))

    def _steer(self, adjustment: Adjustment) -> None:
        plan = self._plan
        notes, skipped = len(plan.notes), len(plan.skipped)
        plan.steer(adjustment)
        for name in plan.skipped[skipped:]:
            self._ctx.progress(f"{to_one_row(name)}: skipped, as you said")
            self._reports[name] = Report(name, "skipped, as the user said")
        if len(plan.skipped) <= skipped:  # each skipped source has its own row
            for note in plan.notes[notes:]:
                self._ctx.progress(f"{to_one_row(note)} (from your line)")
        for name in plan.waiting:
            self._reports.pop(name, None)

    async def _visit(self, name: str) -> None:
        settled = self._plan.visited
        try:
            source = await self._read(name)
            report = await _THREADS.run(partial(report_of, self._plan, name, source), abandon_on_cancel=True)
        except HostRefused as refused:
            settled = self._plan.skipped
            report = Report(name, f"refused: {to_one_row(str(refused))}")
        except (SourceError, ToolError) as error:
            report = Report(name, to_one_row(str(error)))
        settled.append(name)
        self._reports[name] = report
        self._ctx.progress(f"{to_one_row(name)}: {report.outcome}")

    async def _read(self, name: str) -> Source:
        """Return a source's content. Raise ``HostRefused``, ``SourceError`` or ``ToolError`` if it cannot be read."""
        user_sources = self._plan.user_sources
        if len(name) > MAX_NAME:
            raise SourceError(f"has more than {MAX_NAME} characters")
        if is_address(name):
            return await self._read_page(name)
        try:
            with trio.move_on_after(SOURCE_S):
                return await _THREADS.run(partial(_read_files, self._ctx.root_of(name), name), abandon_on_cancel=True)
            raise SourceError(f"took longer than {SOURCE_S:g} s")
        except ToolError as error:
            if not may_be_host(name):
                raise
            if name not in user_sources:
                raise ToolError(f"{error} (An address begins with https://.)") from None
            # People say "also check example.org". An existing path with this name was preferred above.
            user_sources.add(f"https://{name}")
            return await self._read_page(f"https://{name}")

    async def _read_page(self, address: str) -> Source:
        self._approvals.user_hosts = frozenset(map(host_of, self._plan.user_sources))
        page = await fetch(address, self._approvals, self._plan.waiting)
        rows = await text_of_page(page, self._guard)
        return Source(rows, notes=_limit_notes(rows, page.was_cut))

    def _result(self) -> str:
        plan = self._plan
        reports = [*self._reports.values(), *(Report(name, "not visited, the user stopped") for name in plan.waiting)]
        head = [f"{to_one_row(note)} (from the user's line)" for note in plan.notes]
        end = ["", plan.counts_row]
        # Each source is shortened: truncating the whole result would lose some of them altogether.
        room = min(MAX_RESULT, max(self._ctx.room - len("\n".join([*head, *end])), 0))
        return "\n".join([*head, *render(reports, room), *end]).lstrip("\n")


def _read_files(workspace: Path, name: str) -> Source:
    """Return the content of a file, or of all files in a folder. Runs in a thread. Raise ``ToolError`` on failure."""
    tree, is_folder = walk(workspace, name), (workspace / name).is_dir()
    rows, left, was_cut, omitted = list[Row](), MAX_SOURCE_BYTES, False, Counter[str]()
    for entry in tree.entries:
        trio.from_thread.check_cancelled()
        if entry.parts is None:
            continue
        if left <= 0:
            was_cut = True
            break
        try:
            with open_file(tree.root, entry.parts, entry.shown) as file:
                size = os.fstat(file.fileno()).st_size
                if is_folder and size > MAX_IN_FOLDER:
                    omitted[f"more than {MAX_IN_FOLDER} bytes"] += 1
                    continue
                text = FileText.of(file.peek()) and FileText.of(raw := file.read(left))
        except (ToolError, OSError) as error:
            if not is_folder:
                raise ToolError(str(error)) from None
            text = None
        if text is None:
            if not is_folder:
                raise ToolError(f"{entry.shown} is a binary file; only text can be searched.")
            omitted["binary or not readable"] += 1
            continue
        was_cut = was_cut or size > len(raw)
        left -= len(raw)
        found = (Row(f"{entry.shown}:", n, piece) for n, line in enumerate(text.lines, 1) for piece in pieces(line))
        rows += islice(found, MAX_ROWS - len(rows))
    notes = [f"{pluralize(n, 'file')} not searched: {why}." for why, n in omitted.items()]
    names = ", ".join(entry.shown for entry in tree.entries)
    title = f"{pluralize(len(tree.entries), 'file')}: {names}" if is_folder else ""
    return Source(rows, title, [*notes, *_limit_notes(rows, was_cut), *tree.notes()])


def _limit_notes(rows: Sequence[Row], was_cut: bool) -> list[str]:
    notes = {
        f"Only the first {MAX_SOURCE_BYTES // 1024**2} MB were read.": was_cut,
        f"Only the first {MAX_ROWS:,} rows were searched.": len(rows) == MAX_ROWS,
    }
    return [note for note, holds in notes.items() if holds]
