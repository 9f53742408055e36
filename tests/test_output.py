"""The output of a headless chain in each format, and readers that are slow or gone."""

import fcntl
import json
import os
import sys
import termios
import unicodedata
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import pytest
import trio
from support.headless_sessions import PrintingSession
from support.rows import MakeRenderer, check_order, terminal_renderer
from support.sessions import open_session

from chain import events
from chain.tools.tool import ToolContext, tool
from cli.headless_output import Format, HeadlessOutput
from cli.show.renderer import Renderer

RULES = """
# The first word of a query chooses the replies of its run. A tool, if any, is called in the first one.
rules:
  - {when: {user: ^long}, text: "%s", pace: {chunk: %d}}
  - {when: {user: ^refuse}, text: Oh., stop_reason: refusal}
  - {when: {user: ^fail}, error: {message: the service is gone}}
  - {when: {user: ^slow, step: 1}, tools: [{name: look, input: {}}]}
  - {when: {user: ^slow, tool: look}, text: Bit by bit by bit., pace: {chunk: 7}}
  - {when: {user: ^task, step: 1}, text: Looking., tools: [{name: look, input: {}}]}
  - {when: {user: ^hostile, step: 1}, text: "a\\e[31mb", tools: [{name: return_escapes, input: {}}]}
  - {when: {user: ^hostile, tool: return_escapes}, text: "one\\x9b2Jtwo\\e]0;title\\athree\\x7f\\e[2J"}
  - {text: "The answer.\\nOn two lines."}
"""
PIPE_CAPACITY = 4096
LONG = "word " * 10_000
"""A reply of several times ``PIPE_CAPACITY``, which streams in deltas of ``LONG_CHUNK`` characters."""
LONG_CHUNK = 50


@tool
async def look(ctx: ToolContext) -> str:
    """Look."""
    ctx.progress("half way")
    return "seen"


@tool
async def return_escapes(ctx: ToolContext) -> str:
    """Return escape sequences."""
    ctx.progress("\x1b[5mblinking")
    return "\x1b]52;c;aGk=\x07clip\x9b3Jboard"


@dataclass
class Pipe:
    """The two ends of a pipe."""

    reading: FileIO
    writing: FileIO

    @property
    def unread_bytes(self) -> int:
        count = bytearray(4)
        fcntl.ioctl(self.reading, termios.FIONREAD, count)
        return int.from_bytes(count, sys.byteorder)


@dataclass
class Printer(PrintingSession):
    """A chain whose output goes into two files, or into the descriptors of a test."""

    output: HeadlessOutput

    async def finish_and_read(self, pipe: Pipe) -> str:
        """Finish the output while a reader begins to read. Return the text that it read."""
        data = b""

        async def read() -> None:
            nonlocal data
            data = await trio.to_thread.run_sync(pipe.reading.readall) or b""

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await self.output.finish(0)
            pipe.writing.close()
        return data.decode()


@asynccontextmanager
async def open_printer(
    folder: Path,
    format: Format,
    *,
    stdout: int | None = None,
    stderr: int | None = None,
    make: MakeRenderer = Renderer,
    is_joined: bool = False,
) -> AsyncIterator[Printer]:
    """Open a chain with an output. With ``is_joined``, both descriptors are those of one file."""
    paths = folder / "stdout", folder / ("stdout" if is_joined else "stderr")
    own = [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600) for path in paths]
    try:
        async with (
            open_session(RULES % (LONG.strip(), LONG_CHUNK), tools=[look, return_escapes]) as session,
            trio.open_nursery() as nursery,
        ):
            renderer = make(color=False, ascii=False, width=100)
            out, err = own[0] if stdout is None else stdout, own[1] if stderr is None else stderr
            output = HeadlessOutput(session.chain, format, renderer, stdout=out, stderr=err)
            nursery.start_soon(output.run)
            yield Printer(session, paths, output)
            nursery.cancel_scope.cancel()
    finally:
        for fd in own:
            os.close(fd)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    """Create a pipe of ``PIPE_CAPACITY``."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_CAPACITY)
    with FileIO(reading, "r") as r, FileIO(writing, "w") as w:
        yield Pipe(r, w)


def types_of(objects: list[dict[str, Any]]) -> list[str]:
    return [each["type"] for each in objects]


# --------------------------------------------------------------------------------------------------------------- text


async def test_text_separates_answers_from_progress(tmp_path: Path) -> None:
    async with open_printer(tmp_path, "text") as printer:
        printer.output.answer("the plan is empty")
        await printer.session.run("task")
        await printer.session.run("fail")
        await printer.output.finish(0)
        assert printer.stdout == "the plan is empty\nThe answer.\nOn two lines.\n"
        for part in ("▶ task", "[1/20]", "Looking.", "→ look", "half way", "✓ look", "[2/20]", "done, 2 iterations"):
            assert part in printer.stderr
        assert "The answer." not in printer.stderr
        assert "the service is gone" in printer.stderr


@pytest.mark.parametrize("make", [Renderer, terminal_renderer], ids=["headless", "at a terminal"])
async def test_each_answer_precedes_its_closing_row(tmp_path: Path, make: MakeRenderer) -> None:
    async with open_printer(tmp_path, "text", make=make, is_joined=True) as printer:
        await printer.session.run("task")
        await printer.session.run("something else")
        await printer.output.finish(0)
        answer = ["The answer.", "On two lines."]
        rows = [row.partition(",")[0] for row in printer.stdout.splitlines()]
        assert rows[-3:] == [*answer, "✓ done"]
        first_end = rows.index("✓ done")
        assert rows[first_end - 2 : first_end] == answer
        assert (rows.count("✓ done"), rows.count("The answer.")) == (2, 2)


async def test_a_streamed_reply_is_not_repeated(tmp_path: Path) -> None:
    async with open_printer(tmp_path, "text", make=terminal_renderer) as printer:
        await printer.session.run("task")
        await printer.output.finish(0)
        assert printer.stdout == ""
        assert printer.stderr.count("The answer.") == 1


@pytest.mark.parametrize("make", [Renderer, terminal_renderer], ids=["headless", "at a terminal"])
async def test_a_cut_reply_is_shown_once_with_results(tmp_path: Path, make: MakeRenderer) -> None:
    async with open_printer(tmp_path, "text", make=make, is_joined=True) as printer:
        # The first words of the reply stop it.
        printer.session.chain.listen(lambda e: e.type == "text_delta" and printer.session.chain.submit("stop"))
        await printer.session.run("slow task")
        await printer.output.finish(0)
        assert printer.statuses == ["cancelled_during_synthesis"]
        assert printer.stdout.count("Bit by") == 1
        check_order(printer.stdout, ["Bit by", "look: seen", "⏹ cancelled"])


async def test_an_interrupted_run_has_no_answer(tmp_path: Path) -> None:
    async with open_printer(tmp_path, "text") as printer:
        printer.session.chain.submit("halt")
        printer.session.chain.interrupt()
        await printer.session.chain.wait_idle()
        await printer.output.finish(130)
        assert printer.statuses == ["interrupted"]
        assert printer.stdout == ""
        *_, sentence, closing_row = printer.stderr.splitlines()
        assert sentence.startswith("Interrupted.")
        assert "interrupted" in closing_row


async def test_returned_and_unsent_lines_are_reported(tmp_path: Path) -> None:
    async with open_printer(tmp_path, "text") as printer:
        await printer.session.run("refuse me")
        printer.session.chain.lines.mark_unsent("@iteration 9 late", "its moment did not come")
        await printer.output.finish(1)
        rows = printer.stderr.splitlines()
        assert "↩ Returned (refused): refuse me" in rows
        assert rows[-1] == "↩ Never sent (its moment did not come): @iteration 9 late"


@asynccontextmanager
async def hostile_output(folder: Path, format: Format) -> AsyncIterator[Printer]:
    async with open_printer(folder, format) as printer:
        printer.output.answer("ans\x1b[2Jwer")
        printer.output.put(events.Notice(message="half a pair: \udcff"))
        await printer.session.run("hostile \x1b[31mquery\x9b1m")
        printer.session.chain.lines.mark_unsent("\ud83d\x1b[2J", "its moment did not come")
        await printer.output.finish(0)
        yield printer


@pytest.mark.parametrize("format", ["text", "json", "stream-json"])
async def test_no_format_prints_control_characters(tmp_path: Path, format: Format) -> None:
    async with hostile_output(tmp_path, format) as printer:
        output = set(printer.stdout + printer.stderr) - {"\n", "\t"}
        assert not {char for char in output if unicodedata.category(char) == "Cc"}


async def test_text_omits_escape_sequences(tmp_path: Path) -> None:
    async with hostile_output(tmp_path, "text") as printer:
        assert printer.stdout == "answer\nonetwothree\n"
        assert "clipboard" in printer.stderr


@pytest.mark.parametrize("format", ["json", "stream-json"])
async def test_json_escapes_control_characters(tmp_path: Path, format: Format) -> None:
    async with hostile_output(tmp_path, format) as printer:
        *_, result = printer.objects
        assert result["result"].startswith("one\x9b2Jtwo")


# --------------------------------------------------------------------------------------------------------------- JSON


async def test_json_is_only_the_last_result(tmp_path: Path) -> None:
    async with open_printer(tmp_path, "json") as printer:
        await printer.session.run("task")
        await printer.session.run("something else")
        assert printer.stdout == ""
        await printer.output.finish(0, session="20261127-101112-abcdef")
        (result,) = printer.objects
        assert (result["type"], result["status"], result["exit_code"]) == ("result", "done", 0)
        assert result["session"] == "20261127-101112-abcdef"
        assert result["result"] == "The answer.\nOn two lines."
        assert [receipt["text"] for receipt in result["receipts"]] == ["task", "something else"]
        assert "[1/20]" in printer.stderr


async def test_json_of_a_problem_is_a_result(tmp_path: Path) -> None:
    async with open_printer(tmp_path, "json") as printer:
        await printer.output.finish(2, "there is no query")
        (result,) = printer.objects
        assert (result["type"], result["status"], result["exit_code"]) == ("result", "error", 2)
        assert "there is no query" in result["result"]


@pytest.mark.parametrize("format", ["json", "stream-json"])
async def test_an_answer_without_a_run_is_the_result(tmp_path: Path, format: Format) -> None:
    async with open_printer(tmp_path, format) as printer:
        answer = printer.session.chain.submit("todo: add check the licence")
        printer.output.answer(answer.message)
        await printer.output.finish(0)
        *_, result = printer.objects
        assert (result["type"], result["status"], result["result"]) == ("result", "done", answer.message)
        assert [(receipt["id"], receipt["state"]) for receipt in result["receipts"]] == [("L1", "handled")]


async def test_stream_json_has_init_first_and_result_last(tmp_path: Path) -> None:
    """Events of the front end keep their place. After a later one the result is repeated."""
    async with open_printer(tmp_path, "stream-json") as printer:
        printer.output.put(events.Notice(message="before"))
        await printer.session.run("task")
        printer.output.put(events.Notice(message="something came up"))
        await printer.output.finish(0)
        types = types_of(printer.objects)
        assert types[:3] == ["init", "notice", "run_started"]
        assert types[-3:] == ["result", "notice", "result"]
        assert all(next(iter(fields)) == "type" for fields in printer.objects)
        assert printer.stderr == ""


@pytest.mark.parametrize(
    ("code", "unsent"), [(3, ["@done late"]), (130, []), (0, ["@done late"])], ids=["code and line", "code", "line"]
)
async def test_stream_json_repeats_a_changed_result(tmp_path: Path, code: int, unsent: list[str]) -> None:
    async with open_printer(tmp_path, "stream-json") as printer:
        await printer.session.run("task")
        for line in unsent:
            printer.session.chain.lines.mark_unsent(line, "its moment did not come")
        await printer.output.finish(code)
        result, changed_result = (each for each in printer.objects if each["type"] == "result")
        assert len(result["receipts"]) == 1
        # Each result has the receipts since the one before it.
        assert changed_result == {**result, "receipts": [], "exit_code": code, "unsent": unsent}
        assert printer.objects[-1] == changed_result


async def test_stream_json_does_not_repeat_an_unchanged_result(tmp_path: Path) -> None:
    async with open_printer(tmp_path, "stream-json") as printer:
        await printer.session.run("task")
        await printer.output.finish(0)
        assert types_of(printer.objects).count("result") == 1
        assert types_of(printer.objects)[-1] == "result"


# ------------------------------------------------------------------------------------------------------------ readers


async def test_a_slow_reader_gets_merged_text(tmp_path: Path, pipe: Pipe) -> None:
    async with open_printer(tmp_path, "stream-json", stdout=pipe.writing.fileno()) as printer:
        result = await printer.session.run("long")
        objects = [json.loads(row) for row in (await printer.finish_and_read(pipe)).splitlines()]
        texts = [each["text"] for each in objects if each["type"] == "text_delta"]
        assert "".join(texts).strip() == result.result
        deltas_of_model = len(LONG) / LONG_CHUNK
        assert len(texts) < deltas_of_model / 2
        other_types = [each.type for each in printer.session.events if each.type != "text_delta"]
        assert [each for each in types_of(objects) if each != "text_delta"] == ["init", *other_types]


async def test_a_reader_who_never_reads_stops_no_run(tmp_path: Path, pipe: Pipe) -> None:
    fd = pipe.writing.fileno()
    async with open_printer(tmp_path, "stream-json", stdout=fd, stderr=fd) as printer:
        for _ in range(3):
            assert (await printer.session.run("long")).status == "done"
        assert [r["status"] for r in printer.session.records if r["type"] == "result"] == ["done"] * 3
        pipe.reading.close()  # which ends the write
        await printer.output.finish(0)


@pytest.mark.parametrize("format", ["text", "json", "stream-json"])
@pytest.mark.parametrize("is_late", [False, True], ids=["before the run", "during the run"])
async def test_a_closed_reader_stops_nothing(tmp_path: Path, pipe: Pipe, format: Format, is_late: bool) -> None:
    fd = pipe.writing.fileno()
    if not is_late:
        pipe.reading.close()
    async with open_printer(tmp_path, format, stdout=fd, stderr=fd) as printer:
        printer.session.chain.submit("long")
        if is_late:
            await trio.to_thread.run_sync(pipe.reading.read, 10)  # wait for some output
            pipe.reading.close()
        await printer.session.chain.wait_idle()
        await printer.output.finish(0)
        assert printer.session.result.status == "done"


async def test_progress_continues_without_a_reader_of_answers(tmp_path: Path, pipe: Pipe) -> None:
    pipe.reading.close()
    async with open_printer(tmp_path, "text", stdout=pipe.writing.fileno()) as printer:
        await printer.session.run("task")
        await printer.output.finish(0)
        assert "done, 2 iterations" in printer.stderr


async def test_a_non_blocking_descriptor_gets_everything(tmp_path: Path, pipe: Pipe) -> None:
    os.set_blocking(pipe.writing.fileno(), False)
    async with open_printer(tmp_path, "text", stdout=pipe.writing.fileno()) as printer:
        await printer.session.run("long")
        while pipe.unread_bytes < PIPE_CAPACITY:
            await trio.lowlevel.checkpoint()
        assert len((await printer.finish_and_read(pipe)).strip()) == len(LONG.strip())
