"""The output of a headless chain in each format, and readers that are slow or gone."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import termios
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import pytest
import trio
from support import open_session
from support.headless_sessions import PrintingSession
from support.renderers import Make, at_a_terminal

from chain import events
from chain.tools.tool import ToolContext, tool
from cli.headless_output import Format, HeadlessOutput
from cli.show.renderer import Renderer

RULES = """
rules:
  - {when: {user: ^long}, text: "%s", pace: {chunk: 50}}
  - {when: {user: ^refuse}, text: Oh., stop_reason: refusal}
  - {when: {user: ^fail}, error: {message: the service is gone}}
  - {when: {user: ^slow, step: 1}, tools: [{name: look, input: {}}]}
  - {when: {user: ^slow, tool: look}, text: Bit by bit by bit., pace: {chunk: 7}}
  - {when: {user: ^task, step: 1}, text: Looking., tools: [{name: look, input: {}}]}
  - {when: {user: ^evil, step: 1}, text: "a\\e[31mb", tools: [{name: evil, input: {}}]}
  - {when: {user: ^evil, tool: evil}, text: "one\\x9b2Jtwo\\e]0;title\\athree\\x7f\\e[2J"}
  - {text: "The answer.\\nOn two lines."}
"""

LONG = "word " * 10_000
"""Several times the capacity of the pipe in these tests."""


@tool
async def look(ctx: ToolContext) -> str:
    """Look."""
    ctx.progress("half way")
    return "seen"


@tool
async def evil(ctx: ToolContext) -> str:
    """Return escape sequences."""
    ctx.progress("\x1b[5mblinking")
    return "\x1b]52;c;aGk=\x07clip\x9b3Jboard"


@dataclass
class Output(PrintingSession):
    """A chain whose output goes into two files, or into the descriptors of a test."""

    output: HeadlessOutput

    @property
    def last(self) -> dict[str, Any]:
        return self.objects[-1]

    async def finish_and_read(self, pipe: Pipe) -> str:
        """Finish the output while a reader begins to read. Return what it read."""
        raw = b""

        async def read() -> None:
            nonlocal raw
            raw = await trio.to_thread.run_sync(pipe.reading.readall) or b""

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await self.output.finish(0)
            pipe.writing.close()
        return raw.decode()


@asynccontextmanager
async def opened(
    folder: Path,
    format: Format,
    *,
    stdout: int | None = None,
    stderr: int | None = None,
    make: Make = Renderer,
    is_joined: bool = False,
) -> AsyncIterator[Output]:
    """Open a chain with an output. ``is_joined``: both descriptors are those of one file."""
    paths = folder / "stdout", folder / ("stdout" if is_joined else "stderr")
    own = [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600) for path in paths]
    try:
        async with (
            open_session(RULES % LONG.strip(), tools=[look, evil]) as session,
            trio.open_nursery() as nursery,
        ):
            renderer = make(color=False, ascii=False, width=100)
            out, err = own[0] if stdout is None else stdout, own[1] if stderr is None else stderr
            output = HeadlessOutput(session.chain, format, renderer, stdout=out, stderr=err)
            nursery.start_soon(output.run)
            yield Output(session, paths, output)
            nursery.cancel_scope.cancel()
    finally:
        for fd in own:
            os.close(fd)


@dataclass
class Pipe:
    """The two ends of a pipe."""

    reading: FileIO
    writing: FileIO

    @property
    def waiting(self) -> int:
        """The number of unread bytes."""
        count = bytearray(4)
        fcntl.ioctl(self.reading, termios.FIONREAD, count)
        return int.from_bytes(count, sys.byteorder)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    with FileIO(reading, "r") as r, FileIO(writing, "w") as w:
        yield Pipe(r, w)


def types(objects: list[dict[str, Any]]) -> list[str]:
    return [o["type"] for o in objects]


# --------------------------------------------------------------------------------------------------------------- text


async def test_text_separates_answers_from_progress(tmp_path: Path) -> None:
    async with opened(tmp_path, "text") as stage:
        stage.output.answer("the plan is empty")
        await stage.session.run("task")
        await stage.session.run("fail")
        await stage.output.finish(0)
        assert stage.stdout == "the plan is empty\nThe answer.\nOn two lines.\n"
        for part in ("▶ task", "[1/20]", "Looking.", "→ look", "half way", "✓ look", "[2/20]", "done, 2 iterations"):
            assert part in stage.stderr
        assert "The answer." not in stage.stderr
        assert "the service is gone" in stage.stderr


@pytest.mark.parametrize("make", [Renderer, at_a_terminal])
async def test_each_answer_precedes_its_closing_row(tmp_path: Path, make: Make) -> None:
    async with opened(tmp_path, "text", make=make, is_joined=True) as stage:
        await stage.session.run("task")
        await stage.session.run("something else")
        await stage.output.finish(0)
        rows = stage.stdout.splitlines()
        ends = [n for n, row in enumerate(rows) if row.startswith("✓ done")]
        assert (len(ends), ends[-1]) == (2, len(rows) - 1)
        assert [rows[n - 2 : n] for n in ends] == [["The answer.", "On two lines."]] * 2
        assert rows.count("The answer.") == 2


async def test_a_streamed_reply_is_not_repeated(tmp_path: Path) -> None:
    async with opened(tmp_path, "text", make=at_a_terminal) as stage:
        await stage.session.run("task")
        await stage.output.finish(0)
        assert stage.stdout == ""
        assert stage.stderr.count("The answer.") == 1


@pytest.mark.parametrize("make", [Renderer, at_a_terminal])
async def test_a_cut_reply_is_shown_once_with_results(tmp_path: Path, make: Make) -> None:
    async with opened(tmp_path, "text", make=make, is_joined=True) as stage:
        stage.session.chain.listen(lambda e: e.type == "text_delta" and stage.session.chain.submit("stop"))
        await stage.session.run("slow task")
        await stage.output.finish(0)
        assert stage.statuses == ["cancelled_during_synthesis"]
        assert stage.stdout.count("Bit by") == 1
        places = [stage.stdout.index(part) for part in ("Bit by", "look: seen", "⏹ cancelled")]
        assert places == sorted(places)


async def test_an_interrupted_run_has_no_answer(tmp_path: Path) -> None:
    async with opened(tmp_path, "text") as stage:
        stage.session.chain.submit("halt")
        stage.session.chain.interrupt()
        await stage.session.chain.wait_idle()
        await stage.output.finish(130)
        assert (stage.statuses, stage.stdout) == (["interrupted"], "")
        *_, sentence, closing = stage.stderr.splitlines()
        assert sentence.startswith("Interrupted.")
        assert "interrupted" in closing


async def test_returned_and_unsent_lines_are_reported(tmp_path: Path) -> None:
    async with opened(tmp_path, "text") as stage:
        await stage.session.run("refuse me")
        stage.session.chain.lines.mark_unsent("@iteration 9 late", "its moment did not come")
        await stage.output.finish(1)
        rows = stage.stderr.splitlines()
        assert "↩ Returned (refused): refuse me" in rows
        assert rows[-1] == "↩ Never sent (its moment did not come): @iteration 9 late"


@pytest.mark.parametrize("format", ["text", "json", "stream-json"])
async def test_hostile_text_is_harmless_in_each_format(tmp_path: Path, format: Format) -> None:
    async with opened(tmp_path, format) as stage:
        stage.output.put(events.Notice(message="half a pair: \udcff"))
        await stage.session.run("evil \x1b[31mquery\x9b1m")
        stage.session.chain.lines.mark_unsent("\ud83d\x1b[2J", "its moment did not come")
        await stage.output.finish(0)
        raw = stage.stdout + stage.stderr
        assert {char for char in raw if (ord(char) < 32 and char not in "\n\t") or 0x7F <= ord(char) <= 0x9F} == set()
        if format == "text":
            assert stage.stdout == "onetwothree\n"
            assert "clipboard" in stage.stderr
        else:
            assert stage.last["result"].startswith("one\x9b2Jtwo"), "JSON escapes it"


# --------------------------------------------------------------------------------------------------------------- JSON


async def test_json_is_only_the_last_result(tmp_path: Path) -> None:
    async with opened(tmp_path, "json") as stage:
        await stage.session.run("task")
        await stage.session.run("something else")
        assert stage.stdout == ""
        await stage.output.finish(0, session="20261127-101112-abcdef")
        (last,) = stage.objects
        assert (last["type"], last["status"], last["exit_code"]) == ("result", "done", 0)
        assert (last["session"], last["result"]) == ("20261127-101112-abcdef", "The answer.\nOn two lines.")
        assert [r["text"] for r in last["receipts"]] == ["task", "something else"]
        assert "[1/20]" in stage.stderr


async def test_json_of_a_problem_is_a_result(tmp_path: Path) -> None:
    async with opened(tmp_path, "json") as stage:
        await stage.output.finish(2, "there is no query")
        (last,) = stage.objects
        assert (last["type"], last["status"], last["exit_code"]) == ("result", "error", 2)
        assert "there is no query" in last["result"]


@pytest.mark.parametrize("format", ["json", "stream-json"])
async def test_an_answer_without_a_run_is_the_result(tmp_path: Path, format: Format) -> None:
    async with opened(tmp_path, format) as stage:
        done = stage.session.chain.submit("todo: add check the licence")
        stage.output.answer(done.message)
        await stage.output.finish(0)
        assert (stage.last["type"], stage.last["status"], stage.last["result"]) == ("result", "done", done.message)
        assert [(r["id"], r["state"]) for r in stage.last["receipts"]] == [("L1", "handled")]


async def test_stream_json_has_init_first_and_result_last(tmp_path: Path) -> None:
    """Events of the front end keep their place. After a later one the result is repeated."""
    async with opened(tmp_path, "stream-json") as stage:
        stage.output.put(events.Notice(message="before"))
        await stage.session.run("task")
        stage.output.put(events.Notice(message="something came up"))
        await stage.output.finish(0)
        found = types(stage.objects)
        assert found[:3] == ["init", "notice", "run_started"]
        assert found[-3:] == ["result", "notice", "result"]
        assert all(next(iter(o)) == "type" for o in stage.objects)
        assert stage.stderr == ""


@pytest.mark.parametrize(("code", "unsent"), [(3, ["@done late"]), (130, []), (0, ["@done late"]), (0, [])])
async def test_stream_json_repeats_a_changed_result(tmp_path: Path, code: int, unsent: list[str]) -> None:
    async with opened(tmp_path, "stream-json") as stage:
        await stage.session.run("task")
        for line in unsent:
            stage.session.chain.lines.mark_unsent(line, "its moment did not come")
        await stage.output.finish(code)
        first, *changed = (o for o in stage.objects if o["type"] == "result")
        assert len(first["receipts"]) == 1
        expected = [{**first, "receipts": [], "exit_code": code, "unsent": unsent}] if code or unsent else []
        assert changed == expected
        assert types(stage.objects)[-1] == "result"


# ------------------------------------------------------------------------------------------------------------ readers


async def test_a_slow_reader_gets_merged_text(tmp_path: Path, pipe: Pipe) -> None:
    async with opened(tmp_path, "stream-json", stdout=pipe.writing.fileno()) as stage:
        result = await stage.session.run("long")
        objects = [json.loads(row) for row in (await stage.finish_and_read(pipe)).splitlines()]
        assert (types(objects)[0], types(objects)[-1]) == ("init", "result")
        pieces = [o["text"] for o in objects if o["type"] == "text_delta"]
        assert "".join(pieces).strip() == result.result
        assert len(pieces) < len(LONG) / 50 / 2
        others = [e.type for e in stage.session.events if e.type != "text_delta"]
        assert [each for each in types(objects)[1:] if each != "text_delta"] == others


async def test_a_reader_who_never_reads_stops_no_run(tmp_path: Path, pipe: Pipe) -> None:
    fd = pipe.writing.fileno()
    async with opened(tmp_path, "stream-json", stdout=fd, stderr=fd) as stage:
        for _ in range(3):
            assert (await stage.session.run("long")).status == "done"
        assert [r["status"] for r in stage.session.records if r["type"] == "result"] == ["done"] * 3
        pipe.reading.close()  # which ends the write
        await stage.output.finish(0)


@pytest.mark.parametrize("format", ["text", "json", "stream-json"])
@pytest.mark.parametrize("is_late", [False, True])
async def test_a_closed_reader_stops_nothing(tmp_path: Path, pipe: Pipe, format: Format, is_late: bool) -> None:
    fd = pipe.writing.fileno()
    if not is_late:
        pipe.reading.close()
    async with opened(tmp_path, format, stdout=fd, stderr=fd) as stage:
        stage.session.chain.submit("long")
        if is_late:
            await trio.to_thread.run_sync(pipe.reading.read, 10)
            pipe.reading.close()
        await stage.session.chain.wait_idle()
        await stage.output.finish(0)
        assert stage.session.result.status == "done"


async def test_progress_continues_without_a_reader_of_answers(tmp_path: Path, pipe: Pipe) -> None:
    pipe.reading.close()
    async with opened(tmp_path, "text", stdout=pipe.writing.fileno()) as stage:
        await stage.session.run("task")
        await stage.output.finish(0)
        assert "done, 2 iterations" in stage.stderr


async def test_a_non_blocking_descriptor_gets_everything(tmp_path: Path, pipe: Pipe) -> None:
    os.set_blocking(pipe.writing.fileno(), False)
    async with opened(tmp_path, "text", stdout=pipe.writing.fileno()) as stage:
        await stage.session.run("long")
        while pipe.waiting < 4096:
            await trio.lowlevel.checkpoint()
        assert len((await stage.finish_and_read(pipe)).strip()) == len(LONG.strip())
