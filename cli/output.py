"""What a headless chain writes: answers or JSON on one descriptor, progress on the other; one task writes both.

Writing happens in a thread, since a reader who does not read must not stop the chain; a reader who has gone is nobody
to complain to. What piles up meanwhile is joined by the feed.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import Literal, TypeAlias

import trio

from chain import events
from chain.chain import Chain
from cli.render import Renderer, clean

Format: TypeAlias = Literal["text", "json", "stream-json"]


class Output:
    """Writes the events of a chain in one of the three formats."""

    def __init__(self, chain: Chain, format: Format, renderer: Renderer, *, stdout: int, stderr: int) -> None:
        self._chain = chain
        self._format = format
        self._renderer = renderer
        self._stdout = stdout
        self._stderr = stderr
        self._feed = chain.feed()
        self._last: events.Result | None = None
        self._done = trio.Event()

    async def run(self) -> None:
        """Write events until ``finish`` has been called and all is written."""
        while batch := await self._feed.batch():
            for event in batch:
                await self._write(event)
        self._done.set()

    def put(self, event: events.Event) -> None:
        """Write an event of the program's own, in its place among the chain's."""
        self._feed.put(event)

    def answer(self, text: str) -> None:
        """Write what was answered without a run."""
        self._last = self._last or events.Result(status="done", result="")
        if not self._last.iterations:
            self._last = replace(self._last, result=text)
        self._feed.put(events.Notice(message=text))

    async def finish(self, exit_code: int, unsent: tuple[str, ...], problem: str = "") -> None:
        """Write what is left, the report of lines that did not get through, and the last result if it changed."""
        self._feed.close()
        await self._done.wait()
        receipts = self._chain.receipts
        if problem:
            await self._to(self._stderr, f"chain: {clean(problem)}\n")
        elif self._format != "stream-json":
            await self._to(self._stderr, "".join(f"{row}\n" for row in _report(receipts, unsent)))
        told = self._last
        last = told or events.Result(status="error" if problem else "done", result=problem)
        last = replace(last, exit_code=exit_code, receipts=receipts, unsent=unsent)
        if self._format == "json" or (self._format == "stream-json" and last != told):
            await self._to(self._stdout, _json(last))

    async def _write(self, event: events.Event) -> None:
        if isinstance(event, events.Result):
            self._last = event
        if self._format == "stream-json":
            await self._to(self._stdout, _json(event))
            return
        rows = self._renderer.lines(event)
        if rows:
            await self._to(self._stderr, "".join(f"{row}\n" for row in rows))
        if isinstance(event, events.Result) and self._format == "text" and event.status != "error":
            text = clean(event.result).strip()
            if text:
                await self._to(self._stdout, f"{text}\n")

    async def _to(self, fd: int, text: str) -> None:
        data = text.encode(errors="replace")
        if not data:
            return
        try:
            await trio.to_thread.run_sync(_write_all, fd, data, abandon_on_cancel=True)
        except OSError:
            return  # nobody reads any more


def _write_all(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def _json(event: events.Event) -> str:
    # What JSON can say and UTF-8 cannot (half a surrogate pair) leaves as an escape.
    text = json.dumps(events.to_json(event), ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="backslashreplace").decode() + "\n"


def _report(receipts: tuple[events.Receipt, ...], unsent: tuple[str, ...]) -> list[str]:
    """The lines that did not get through, so that they can be sent again."""
    back = [r for r in receipts if r.state == "returned"]
    rows = [f"came back ({r.reason}): {clean(r.text)}" for r in back]
    rows += [f"never sent, its moment did not come: {clean(text)}" for text in unsent]
    return rows
