"""A chain without a terminal: reads lines from arguments, scripts, pipes and JSON, and writes answers and events."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import trio

from chain import events
from chain.chain import Chain, SubmitResult
from chain.concurrency.nurseries import background_task
from chain.errors import UserError
from chain.lines.parse import parse_line
from chain.session.exit_codes import WRONG_USAGE
from chain.text.wording import MAIN
from cli.ending import leaving_at_signal
from cli.headless_output import Format, HeadlessOutput
from cli.input.json_rows import Drop, Hello, Interrupt, JsonAnswer, JsonLine, Malformed, Watch, read_row
from cli.input.moments import AtQuestion, ScheduledLine, parse_moment
from cli.input.sender import NO_MOMENT, NO_ROOM, Sender
from cli.input.splitter import JSON_BYTES, TEXT_BYTES, RawLine
from cli.input.stdin import FIRST_BYTE_S, NO_INPUT_YET, NOT_UTF_8, STILL_OPEN, Lines, append_piped, read_piped
from cli.show.renderer import Renderer
from cli.show.text_rows import flat

OUTPUT_GRACE_S = 1.0
"""The time limit, in seconds, for the last output after a signal: the reader of the output may have stopped reading."""

WAITED = f"no query on standard input within {FIRST_BYTE_S:.0f} s; starting a run with the waiting lines"
UNREAD = "the program ended before it was read"
NO_QUERY = "there is no query; give one as an argument or on standard input"
MAX_SHOWN_WAITING = 200
"""The maximum number of characters that are shown of a waiting line of a resumed session."""
NO_ANSWER = 'a line does not answer a question; write {"type":"answer","id":"Q1","text":"y"}'


@dataclass(frozen=True, slots=True)
class HeadlessTask:
    """The task of a headless process.

    ``reads_stdin``: each line of standard input is sent to the chain. ``piped_within``: the whole standard input is
    appended to the query if its first byte comes within this many seconds. ``is_kept``: the session is on the disk.
    """

    query: str | None = None
    scheduled: Sequence[ScheduledLine] = ()
    reads_stdin: bool = False
    output: Format = "text"
    input: Literal["text", "stream-json"] = "text"
    notes: tuple[str, ...] = ()
    piped_within: float | None = None
    is_kept: bool = True


async def run_headless(
    chain: Chain, task: HeadlessTask, renderer: Renderer, *, stdin: int = 0, stdout: int = 1, stderr: int = 2
) -> int:
    """Run the task and return the exit code."""
    output = HeadlessOutput(chain, task.output, renderer, stdout=stdout, stderr=stderr)
    return await _Headless(chain, task, stdin, output).run()


class _Headless:
    """One headless chain, from its first line to its exit code."""

    def __init__(self, chain: Chain, task: HeadlessTask, fd: int, output: HeadlessOutput) -> None:
        self._chain = chain
        self._task = task
        self._fd = fd
        self._stdin = Lines(fd, JSON_BYTES if task.input == "stream-json" else TEXT_BYTES)
        self._output = output
        self._sender = Sender(chain, self._on_answer)
        self._work_scope = trio.CancelScope()
        self._output_scope: trio.CancelScope | None = None
        self._signal: int | None = None
        self._has_answered = False
        self._has_begun = False
        self._problem = NO_QUERY

    async def run(self) -> int:
        async with leaving_at_signal(self._leave), background_task(self._output.run):
            for note in (*self._task.notes, *self._resume_notes()):
                self._notify(note)
            with self._work_scope:
                await self._work()
            # After a signal the interrupted run still reports its end.
            await self._chain.wait_idle()
            await self._chain.wind_down()  # the output is still open, since the ends of jobs are reported
            for raw in self._stdin.unread():
                line = self._parse(raw)
                if isinstance(line, ScheduledLine):
                    self._sender.report_unsent(line, UNREAD)
            if not self._has_begun and self._signal is not None:
                for each in self._task.scheduled:
                    self._sender.report_unsent(each, NO_MOMENT)
            self._sender.discard(NO_ROOM)
            is_done = self._has_answered or self._chain.runs.last_status is not None or self._signal is not None
            problem = "" if is_done else self._problem
            with trio.CancelScope() as self._output_scope:
                self._limit_output()
                code = self._exit_code(problem)
                id = "" if problem or not self._task.is_kept else self._chain.session_id
                await self._output.finish(code, problem, session=id)
        return max(self._exit_code(problem), 1) if self._output.failure else self._exit_code(problem)

    def _resume_notes(self) -> Iterator[str]:
        """Yield notes on a resumed session: its changes, refused lines and waiting lines."""
        if (resumed := self._chain.resumed) is None:
            return
        yield from resumed.changes
        for what, lines in (
            ("Earlier lines that the model refused", resumed.returned),
            ("Earlier lines, delivered with the first run", self._chain.lines.waiting),
        ):
            if texts := "; ".join(
                f"{accepted.id} {flat(accepted.line.text)[:MAX_SHOWN_WAITING]}" for accepted in lines
            ):
                yield f"{what}: {texts}"

    def _exit_code(self, problem: str) -> int:
        if problem:
            return WRONG_USAGE
        terminated = self._signal not in (None, signal.SIGINT)
        return self._chain.runs.exit_code(interrupted=self._signal is not None, terminated=terminated)

    async def _work(self) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(self._sender.run)
            is_asked = self._task.query is not None or self._task.piped_within is not None
            if is_asked and (query := await self._query()) is not None:
                # No await from here to the start: after a signal no run may start.
                await trio.lowlevel.checkpoint_if_cancelled()
                if query.strip() or not self._run_waiting():
                    self._record(self._chain.start(query))
            if not is_asked or self._chain.is_running:
                self._has_begun = True
                for line in self._task.scheduled:
                    self._sender.schedule(line)
                if self._task.reads_stdin:
                    nursery.start_soon(self._run_waiting_without_input)
                    await self._read()
                if not self._has_answered:
                    self._run_waiting()
                await self._settle()
            nursery.cancel_scope.cancel()

    def _run_waiting(self) -> bool:
        """Start a run with the waiting lines of a resumed session. Return whether there were any."""
        has_begun = self._chain.runs.start_waiting()
        self._has_answered = self._has_answered or has_begun
        return has_begun

    async def _run_waiting_without_input(self) -> None:
        """Start a run with the waiting lines of a resumed session if no input comes within ``FIRST_BYTE_S``."""
        if self._chain.resumed is not None and self._chain.lines.waiting:
            await trio.sleep(FIRST_BYTE_S)
            if self._run_waiting():
                self._notify(WAITED)

    async def _query(self) -> str | None:
        """Return the query, followed by the piped input if there is any.

        If the input cannot be used, return ``None`` and set ``_problem``.
        """
        query, within = self._task.query, self._task.piped_within
        if within is None:
            return query
        if query is None and not self._chain.lines.waiting:
            within = math.inf  # without a query and waiting lines, no run can start before the input comes
        async with background_task(self._chain.prepare):  # load the model's client meanwhile
            try:
                piped = await read_piped(self._fd, first_byte_s=within, on_wait=lambda: self._notify(STILL_OPEN))
                query = append_piped(query, piped) if piped is not None else query or ""
            except UserError as error:
                self._problem = str(error)
                query = None
            else:
                if piped is None:
                    self._notify(NO_INPUT_YET)
                elif piped.has_invalid_bytes:
                    self._notify(NOT_UTF_8)
        return query

    async def _settle(self) -> None:
        """Wait until no run is active and no line is queued, then accept no more lines."""
        while True:
            await self._chain.wait_idle()
            if self._sender.queued_count:
                await self._sender.drain()
            elif not (self._chain.is_running or await self._chain.jobs.wait_for_waking_job()):
                # Lines that clients send from here on would be lost with the process.
                self._chain.stop_accepting()
                return

    def _leave(self, number: int) -> None:
        self._signal = number
        self._chain.stop_accepting()
        self._sender.close()
        self._chain.interrupt()
        self._work_scope.cancel()
        self._limit_output()

    def _limit_output(self) -> None:
        """If a signal has arrived, give the last output ``OUTPUT_GRACE_S`` seconds from now. Otherwise do nothing."""
        if self._output_scope is not None and self._signal is not None:
            self._output_scope.deadline = trio.current_time() + OUTPUT_GRACE_S

    async def _read(self) -> None:
        """Send the lines of the input to the chain until the input ends. These lines may also answer questions."""
        answerer = self._chain.answering()
        try:
            while (raw := await self._stdin.next()) is not None:
                if raw.notice:
                    self._notify(raw.notice)
                match self._parse(raw):
                    case ScheduledLine() as line:
                        self._sender.schedule(line)
                    case Interrupt():
                        self._chain.interrupt()
                        # Later lines are for the next run, not for the one that is ending.
                        await self._chain.wait_idle()
                    case Drop(id):
                        self._drop(id)
                    case JsonAnswer(id, text):
                        self._chain.answer(id, text, origin="json")
                    case Malformed(text, id, why):
                        self._record(self._chain.lines.refuse(text, why, id=id, origin="json"))
                    case None:
                        pass
                if not self._sender.has_capacity:
                    # Nothing is read now, so no answer can come: a question that waited for one would block the queue.
                    answerer.close()
                    await self._sender.wait_for_capacity()
                    answerer = self._chain.answering()
        finally:
            answerer.close()

    def _parse(self, raw: RawLine) -> ScheduledLine | Interrupt | Drop | JsonAnswer | Malformed | None:
        if self._task.input == "text":
            return parse_moment(raw.text, strict=False)
        found = read_row(raw)
        assert not isinstance(found, Hello | Watch), "these are for the side door"
        if not isinstance(found, JsonLine):
            return found
        line = parse_moment(found.text, strict=False)
        if isinstance(line.moment, AtQuestion):
            return Malformed(found.text, found.id, NO_ANSWER)
        return replace(line, urgency=found.urgency, id=found.id, origin="json", to=line.to or found.to)

    def _drop(self, id: str) -> None:
        if self._sender.drop(id):
            return
        try:
            self._chain.lines.drop(id)
        except UserError as error:
            count, why = len(self._chain.lines.waiting), str(error)
            refused = events.LineRefused(
                id=id, text="", kind="drop", urgency="next", target_agent=MAIN, waiting=count, origin="json", reason=why
            )
            self._output.put(refused)

    def _on_answer(self, line: ScheduledLine, answer: SubmitResult) -> None:
        self._record(answer)
        if line.id and answer.what == "nothing":
            # The sender of a line with an id waits for a receipt, even if the line had no effect.
            kind = parse_line(line.text).kind
            self._output.put(events.Receipt(id=line.id, text=line.text, state="handled", kind=kind))

    def _record(self, answer: SubmitResult) -> None:
        """Record the chain's answer to a line, and show the answer's message if no event shows that message."""
        match answer.what:
            case "started":
                self._has_answered = True
            case "handled":
                self._has_answered = True
                self._output.answer(answer.message)
            case "refused" if not self._has_answered:
                self._problem = answer.message
            case "nothing" | "returned" if answer.message:
                self._has_answered = True
                self._notify(answer.message)
            case _:
                pass

    def _notify(self, message: str) -> None:
        self._output.put(events.Notice(message=message))
