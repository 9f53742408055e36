"""The output of a headless chain: answers or JSON on standard output, progress on standard error.

One task writes both, in a thread, so that a reader that stops reading does not block the chain. During a slow write the
feed merges the waiting events. A reader that has closed its end of a pipe is not an error.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from math import ceil
from typing import Literal, TypeAlias

import trio

from chain import events
from chain.chain import Chain
from chain.concurrency.threads import Threads
from chain.session.exit_codes import INTERRUPTED_CODE, SIGTERM_CODE
from chain.text.plain import sanitize
from cli.event_rows import json_row, pieces_of_row
from cli.screen import tty
from cli.show.renderer import Renderer
from cli.show.session_list import resumption_rows
from cli.show.text_rows import columns, strip_colours
from cli.writing import write_text

_THREADS = Threads("output")

Format: TypeAlias = Literal["text", "json", "stream-json"]


class HeadlessOutput:
    """A writer of a chain's events in one of the formats ``text``, ``json`` and ``stream-json``."""

    def __init__(self, chain: Chain, format: Format, renderer: Renderer, *, stdout: int, stderr: int) -> None:
        self._chain = chain
        self._format = format
        self._renderer = renderer
        self._stdout = stdout
        self._stderr = stderr
        self._feed = chain.feed()
        self._last: events.Result | None = None
        self._receipts: dict[object, events.Receipt] = {}
        self._unsent: list[str] = []
        self._is_one_terminal = renderer.shows_answers
        """Whether all output goes to one terminal."""
        self._tail = ""
        """The rows of the unfinished reply that the terminal shows."""
        self._is_shared = False
        """Whether the shell has used the terminal since the start, and may have written among the rows."""
        self._ends_with_result = False
        self._answers: list[events.Notice] = []
        self.failure = ""
        self._done = trio.Event()

    async def run(self) -> None:
        """Write events as they happen. Return when ``finish`` was called and all events are written."""
        with tty.watch_suspension() as others_wrote:
            while batch := await self._feed.batch():
                if self._is_one_terminal:
                    self._renderer.resize(tty.size(self._stderr)[0])
                pieces = [piece for event in batch for piece in self._pieces(event)]
                if others_wrote():
                    self._tail = ""  # the shell's output is above the cursor now, and must not be erased
                # Write consecutive pieces for the same descriptor together: each write is a call in a thread.
                for fd, stretch in itertools.groupby(self._add_tail(pieces), key=lambda piece: piece[0]):
                    await self._write(fd, "".join(text for _, text in stretch))
            if not others_wrote():
                await self._write(self._stderr, self._erase_sequence())
        self._done.set()

    def _add_tail(self, pieces: list[tuple[int, str]]) -> list[tuple[int, str]]:
        """Return the pieces to write so that a reply's unfinished rows stay below all other rows.

        The first piece erases the shown unfinished rows. The last piece writes the current unfinished rows.
        """
        self._is_shared = self._is_shared or tty.is_shell_in_control(self._stderr)
        tail = "" if self._is_shared else self._renderer.drawn_tail
        if not pieces and tail == self._tail:
            return []
        # Leave the cursor below the unfinished rows: the terminal echoes typed characters there.
        pieces = [(self._stderr, self._erase_sequence()), *pieces, (self._stderr, f"{tail}\n" if tail else "")]
        self._tail = tail
        return pieces

    def _erase_sequence(self) -> str:
        """Return the control sequence that erases the unfinished rows, which may wrap at the terminal's width."""
        width = tty.size(self._stderr)[0] if self._tail else 1
        rows = sum(max(ceil(columns(strip_colours(row)) / width), 1) for row in self._tail.split("\n"))
        return f"\r\x1b[{rows}A\x1b[J" if self._tail else ""

    def put(self, event: events.Event) -> None:
        """Queue an event of the front end to be written after the chain's events so far."""
        self._feed.put(event)

    def answer(self, text: str) -> None:
        """Queue the answer to a line that needed no run. If no run follows, the answer is also the process's result."""
        self._last = self._last or events.Result(status="done", result="")
        if not self._last.iterations:
            self._last = replace(self._last, result=text)
        notice = events.Notice(message=text)
        self._answers.append(notice)
        self._feed.put(notice)

    async def finish(self, exit_code: int, problem: str = "", *, session: str = "") -> None:
        """Wait until all queued events are written, then write the end of the output.

        The end of the output has these parts in order: the error message ``problem``, unless empty; a final result, if
        the format needs one; how to resume the session with the id ``session``, unless empty.
        """
        self._feed.close()
        await self._done.wait()
        settled = self._chain.lines.settled()
        if problem:
            await self._write(self._stderr, f"chain: {sanitize(problem)}\n")
        was_interrupted = exit_code in (INTERRUPTED_CODE, SIGTERM_CODE)
        status: events.Status = "error" if problem else "interrupted" if was_interrupted else "done"
        last = self._last or events.Result(status=status, result=problem)
        last = replace(last, receipts=settled.receipts, unsent=settled.unsent)
        is_news = last.receipts or last.unsent or exit_code != last.exit_code or not self._ends_with_result
        if self._format == "json":
            self._collect(last)
            last = replace(last, receipts=tuple(self._receipts.values()), unsent=tuple(self._unsent))
        if self._format == "json" or (self._format == "stream-json" and is_news):
            # In pieces, since it may contain all lines of a long input.
            more = {"session": session} if session and self._format == "json" else {}
            for piece in pieces_of_row(replace(last, exit_code=exit_code), **more):
                await self._write(self._stdout, piece)
        if session and self._format == "text":
            rows = resumption_rows(session, tty.size(self._stderr)[0])
            await self._write(self._stderr, "".join(f"{row}\n" for row in rows))
        if self.failure:
            await self._write(self._stderr, f"chain: {self.failure}\n")

    def _pieces(self, event: events.Event) -> Iterator[tuple[int, str]]:
        self._ends_with_result = isinstance(event, events.Result)
        if isinstance(event, events.Result):
            self._last = event
            if self._format == "json":
                self._collect(event)
        match event:
            case _ if self._format == "stream-json":
                yield self._stdout, json_row(event)
            case events.Notice(message=text) if self._format == "text" and any(event is each for each in self._answers):
                yield self._stdout, f"{sanitize(text)}\n"
            case events.Result() if self._format == "text":
                yield from self._ending(event)
            case _:
                yield from self._progress(self._renderer.rows(event))

    def _ending(self, event: events.Result) -> Iterator[tuple[int, str]]:
        """Yield the last progress rows of a run, its answer, and its closing row, each with its descriptor."""
        before, after = self._renderer.split_result(event)
        yield from self._progress(before)
        # The indent of the first row belongs to the answer, such as a code block.
        text = re.sub(r"\A(?:[^\S\n]*\n)+", "", sanitize(event.result).rstrip())
        if text and event.status != "error" and not self._renderer.shows_answers:
            # Standard output is for answers, and an interrupted run has none.
            yield self._stderr if event.status == "interrupted" else self._stdout, f"{text}\n"
        yield from self._progress(after)

    def _progress(self, rows: Iterable[str]) -> Iterator[tuple[int, str]]:
        return ((self._stderr, f"{row}\n") for row in rows)

    def _collect(self, result: events.Result) -> None:
        """Collect a result's receipts and unsent lines, which the format ``json`` writes once, at the end."""
        for receipt in result.receipts:
            # An accepted line may have two receipts, delivered and then returned: the later one replaces the earlier.
            # Several refused lines may have the same id, so each keeps its receipt.
            self._receipts[len(self._receipts) if receipt.state == "refused" else receipt.id] = receipt
        self._unsent += result.unsent

    async def _write(self, fd: int, text: str) -> None:
        if not text:
            return
        try:
            await _THREADS.run(partial(write_text, fd, text), abandon_on_cancel=True)
        except BrokenPipeError:
            return  # the reader has closed its end
        except OSError as error:
            if fd == self._stdout:
                self.failure = f"standard output cannot be written: {error.strerror}"
