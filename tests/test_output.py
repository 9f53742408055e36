"""What a headless chain writes, where it goes, and readers who are slow, gone or asleep."""

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
from support.renderers import Make, at_a_terminal
from support.stages import Printing

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
"""Several times what the pipe of these tests holds."""


@tool
async def look(ctx: ToolContext) -> str:
    """Look."""
    ctx.progress("half way")
    return "seen"


@tool
async def evil(ctx: ToolContext) -> str:
    """Say what a terminal would obey."""
    ctx.progress("\x1b[5mblinking")
    return "\x1b]52;c;aGk=\x07clip\x9b3Jboard"


@dataclass
class Told(Printing):
    """A chain with an output into two files, or into the descriptors of a test."""

    output: HeadlessOutput

    async def run(self, query: str) -> events.Result:
        return await self.session.run(query)

    async def finish_and_read(self, pipe: Pipe) -> str:
        """Let somebody begin to read only now, and see what they get."""
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
) -> AsyncIterator[Told]:
    paths = folder / "stdout", folder / "stderr"
    own = [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600) for path in paths]
    try:
        async with (
            open_session(RULES % LONG.strip(), tools=[look, evil]) as session,
            trio.open_nursery() as nursery,
        ):
            renderer = make(color=False, ascii=False, width=100)
            given = [own[0] if stdout is None else stdout, own[1] if stderr is None else stderr]
            output = HeadlessOutput(session.chain, format, renderer, stdout=given[0], stderr=given[1])
            nursery.start_soon(output.run)
            yield Told(session, paths, output)
            nursery.cancel_scope.cancel()
    finally:
        for fd in own:
            os.close(fd)


@dataclass
class Pipe:
    """The two ends of a pipe; as files they know whether they are closed."""

    reading: FileIO
    writing: FileIO

    @property
    def waiting(self) -> int:
        """Bytes that nobody has read yet."""
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


async def test_text_puts_the_answer_on_one_descriptor_and_the_progress_on_the_other(tmp_path: Path) -> None:
    async with opened(tmp_path, "text") as stage:
        await stage.run("task")
        await stage.output.finish(0)

        assert stage.stdout == "The answer.\nOn two lines.\n"
        for part in ("▶ task", "[1/20]", "Looking.", "→ look", "half way", "✓ look", "[2/20]", "done, 2 iterations"):
            assert part in stage.stderr
        assert "The answer." not in stage.stderr


@pytest.mark.parametrize("make", [Renderer, at_a_terminal])
async def test_each_answer_comes_once_and_before_the_closing_row_of_its_run(tmp_path: Path, make: Make) -> None:
    with (tmp_path / "both").open("wb") as both:
        async with opened(tmp_path, "text", stdout=both.fileno(), stderr=both.fileno(), make=make) as stage:
            await stage.run("task")
            await stage.run("something else")
            await stage.output.finish(0)

    rows = (tmp_path / "both").read_text().splitlines()
    ends = [n for n, row in enumerate(rows) if row.startswith("✓ done")]
    assert len(ends) == 2
    assert ends[-1] == len(rows) - 1
    for n in ends:
        assert rows[n - 2 : n] == ["The answer.", "On two lines."]
    assert rows.count("The answer.") == 2


async def test_where_the_reply_is_shown_as_it_streams_it_is_not_written_again(tmp_path: Path) -> None:
    async with opened(tmp_path, "text", make=at_a_terminal) as stage:
        await stage.run("task")
        await stage.output.finish(0)

        assert stage.stdout == ""
        assert stage.stderr.count("The answer.") == 1


@pytest.mark.parametrize("make", [Renderer, at_a_terminal])
async def test_the_text_that_a_stop_cut_comes_once_with_what_was_found(tmp_path: Path, make: Make) -> None:
    with (tmp_path / "both").open("wb") as both:
        async with opened(tmp_path, "text", stdout=both.fileno(), stderr=both.fileno(), make=make) as stage:
            stage.session.chain.listen(lambda e: e.type == "text_delta" and stage.session.chain.submit("stop"))
            await stage.run("slow task")
            await stage.output.finish(0)

            assert stage.statuses == ["cancelled_during_synthesis"]
    told = (tmp_path / "both").read_text()
    assert told.count("Bit by") == 1
    assert told.index("Bit by") < told.index("look: seen") < told.index("⏹ cancelled")


async def test_an_interrupted_run_has_no_answer(tmp_path: Path) -> None:
    async with opened(tmp_path, "text") as stage:
        await stage.run("task")
        stage.session.chain.submit("halt")
        stage.session.chain.interrupt()
        await stage.session.chain.wait_idle()
        await stage.output.finish(130)

        assert stage.statuses == ["done", "interrupted"]
        assert stage.stdout == "The answer.\nOn two lines.\n"
        *_, sentence, closing = stage.stderr.splitlines()
        assert sentence.startswith("Interrupted.")
        assert "interrupted" in closing


async def test_text_puts_no_error_among_the_answers(tmp_path: Path) -> None:
    async with opened(tmp_path, "text") as stage:
        await stage.run("fail")
        await stage.output.finish(1)

        assert stage.stdout == ""
        assert "the service is gone" in stage.stderr


async def test_text_reports_lines_that_did_not_get_through(tmp_path: Path) -> None:
    async with opened(tmp_path, "text") as stage:
        await stage.run("refuse me\x1b[2J")
        late = "@iteration 9 late\x1b[2J"
        stage.session.chain.lines.mark_unsent(late, "its moment did not come")
        await stage.output.finish(1)

        rows = stage.stderr.splitlines()
        assert "↩ Returned (refused): refuse me" in rows
        assert rows[-1] == "↩ Never sent (its moment did not come): @iteration 9 late"


async def test_an_answer_without_a_run_is_told(tmp_path: Path) -> None:
    async with opened(tmp_path, "text") as stage:
        stage.output.answer("the plan is empty")
        await stage.output.finish(0)

        assert "the plan is empty" in stage.stderr + stage.stdout


@pytest.mark.parametrize("format", ["text", "json", "stream-json"])
async def test_no_terminal_gets_an_escape_sequence(tmp_path: Path, format: Format) -> None:
    async with opened(tmp_path, format) as stage:
        await stage.run("evil \x1b[31mquery\x9b1m")
        await stage.output.finish(0)

        raw = stage.stdout + stage.stderr
        controls = {char for char in raw if (ord(char) < 32 and char not in "\n\t") or 0x7F <= ord(char) <= 0x9F}
        assert controls == set()
        if format == "text":
            assert stage.stdout == "onetwothree\n"
            assert "clipboard" in stage.stderr
        else:
            assert stage.objects[-1]["result"].startswith("one\x9b2Jtwo"), "JSON escapes it, and loses nothing"


# --------------------------------------------------------------------------------------------------------------- JSON


async def test_json_is_the_last_result_alone(tmp_path: Path) -> None:
    async with opened(tmp_path, "json") as stage:
        await stage.run("task")
        await stage.run("something else")
        assert stage.stdout == ""
        await stage.output.finish(0, session="20261127-101112-abcdef")

        (last,) = stage.objects
        assert (last["type"], last["status"], last["exit_code"]) == ("result", "done", 0)
        assert last["session"] == "20261127-101112-abcdef"
        assert last["result"] == "The answer.\nOn two lines."
        assert [r["text"] for r in last["receipts"]] == ["task", "something else"]
        assert "[1/20]" in stage.stderr


async def test_json_of_a_problem_is_a_result_too(tmp_path: Path) -> None:
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

        last = stage.objects[-1]
        assert (last["type"], last["status"], last["result"]) == ("result", "done", done.message)
        assert [(r["id"], r["state"]) for r in last["receipts"]] == [("L1", "handled")]


async def test_stream_json_has_init_first_and_result_last(tmp_path: Path) -> None:
    async with opened(tmp_path, "stream-json") as stage:
        await stage.run("task")
        await stage.output.finish(0)

        found = types(stage.objects)
        assert found[:2] == ["init", "run_started"]
        assert found[-1] == "result"
        assert found.count("init") == found.count("result") == 1
        assert all(next(iter(o)) == "type" for o in stage.objects), "the type comes first"
        assert stage.stderr == ""


@pytest.mark.parametrize(("code", "unsent"), [(3, ("@done late",)), (130, ()), (0, ("@done late",))])
async def test_stream_json_prints_a_result_that_changed_once_more(
    tmp_path: Path, code: int, unsent: tuple[str, ...]
) -> None:
    async with opened(tmp_path, "stream-json") as stage:
        await stage.run("task")
        for line in unsent:
            stage.session.chain.lines.mark_unsent(line, "its moment did not come")
        await stage.output.finish(code)

        first, second = (o for o in stage.objects if o["type"] == "result")
        assert types(stage.objects)[-1] == "result"
        assert {k: v for k, v in second.items() if first[k] != v}.keys() <= {"exit_code", "unsent", "receipts"}
        assert (len(first["receipts"]), second["receipts"]) == (1, []), "each receipt is told once"
        assert (second["exit_code"], second["unsent"]) == (code, list(unsent))


async def test_stream_json_ends_with_a_result_whatever_came_after_it(tmp_path: Path) -> None:
    async with opened(tmp_path, "stream-json") as stage:
        await stage.run("task")
        stage.output.put(events.Notice(message="something came up"))
        await stage.output.finish(0)

        assert "notice" in types(stage.objects)
        assert types(stage.objects)[-1] == "result"


@pytest.mark.parametrize("format", ["text", "json", "stream-json"])
async def test_what_utf_8_cannot_say_breaks_nothing(tmp_path: Path, format: Format) -> None:
    async with opened(tmp_path, format) as stage:
        stage.output.put(events.Notice(message="half a pair: \udcff"))
        await stage.run("task")
        stage.session.chain.lines.mark_unsent("\ud83d", "its moment did not come")
        await stage.output.finish(0)

        assert "The answer." in stage.stdout


async def test_the_programs_own_events_keep_their_place(tmp_path: Path) -> None:
    async with opened(tmp_path, "stream-json") as stage:
        stage.output.put(events.Notice(message="before"))
        await stage.run("task")
        await stage.output.finish(0)

        assert types(stage.objects)[:3] == ["init", "notice", "run_started"]


# ------------------------------------------------------------------------------------------------------------ readers


async def test_a_slow_reader_gets_everything_with_running_text_joined(tmp_path: Path, pipe: Pipe) -> None:
    async with opened(tmp_path, "stream-json", stdout=pipe.writing.fileno()) as stage:
        result = await stage.run("long")  # while nobody reads
        raw = await stage.finish_and_read(pipe)

        objects = [json.loads(row) for row in raw.splitlines()]
        assert (types(objects)[0], types(objects)[-1]) == ("init", "result")
        pieces = [o["text"] for o in objects if o["type"] == "text_delta"]
        assert "".join(pieces).strip() == result.result
        assert len(pieces) < len(LONG) / 50 / 2
        told = [e.type for e in stage.session.events]
        others = [t for t in types(objects)[1:] if t != "text_delta"]
        assert others == [t for t in told if t != "text_delta"]


async def test_a_reader_who_never_reads_stops_no_run(tmp_path: Path, pipe: Pipe) -> None:
    async with opened(tmp_path, "stream-json", stdout=pipe.writing.fileno(), stderr=pipe.writing.fileno()) as stage:
        for _ in range(3):
            result = await stage.run("long")
            assert result.status == "done"

        assert [r["status"] for r in stage.session.records if r["type"] == "result"] == ["done"] * 3
        pipe.reading.close()  # lets go of the thread that writes
        await stage.output.finish(0)


@pytest.mark.parametrize("format", ["text", "json", "stream-json"])
async def test_a_reader_who_is_gone_stops_nothing(tmp_path: Path, pipe: Pipe, format: Format) -> None:
    pipe.reading.close()
    async with opened(tmp_path, format, stdout=pipe.writing.fileno(), stderr=pipe.writing.fileno()) as stage:
        result = await stage.run("long")
        await stage.output.finish(0)

        assert result.status == "done"


async def test_a_reader_who_goes_in_the_middle_stops_nothing(tmp_path: Path, pipe: Pipe) -> None:
    async with opened(tmp_path, "stream-json", stdout=pipe.writing.fileno()) as stage:
        stage.session.chain.submit("long")
        assert await trio.to_thread.run_sync(pipe.reading.read, 10)
        pipe.reading.close()
        await stage.session.chain.wait_idle()
        await stage.output.finish(0)

        assert stage.session.result.status == "done"


async def test_when_the_answers_reader_is_gone_the_progress_still_comes(tmp_path: Path, pipe: Pipe) -> None:
    pipe.reading.close()
    async with opened(tmp_path, "text", stdout=pipe.writing.fileno()) as stage:
        await stage.run("task")
        await stage.output.finish(0)

        assert "done, 2 iterations" in stage.stderr


async def test_a_descriptor_that_does_not_block_gets_everything_too(tmp_path: Path, pipe: Pipe) -> None:
    os.set_blocking(pipe.writing.fileno(), False)
    async with opened(tmp_path, "text", stdout=pipe.writing.fileno()) as stage:
        await stage.run("long")
        while pipe.waiting < 4096:
            await trio.lowlevel.checkpoint()
        raw = await stage.finish_and_read(pipe)

        assert len(raw.strip()) == len(LONG.strip())
