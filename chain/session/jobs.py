"""Background jobs: commands that continue after the tool call that started them, but not after the session.

How the end of a job reaches the model::

    shell(background)       job_started, then a task that runs the command under the guard
    the command has ended   job_ended, then a line of kind ``job`` in the inbox of the job's agent, in one step
    the next safe point     the line is delivered like any other; after a run it waits for the next run
    no run is active        the line of a job that wakes the session starts a run, unless the job was killed

If the agent of a job has ended, the line goes to the nearest agent above it that is at work. An agent's jobs are killed
when the agent ends, and all jobs when the session closes. Lines of jobs that no run will deliver are then settled as
``returned``. At a terminal they wait until the session is resumed. Records that a killed process could not write are
written when the session is resumed (``record_lost_jobs``). If the disk is full, a notice reports the end of a job.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import trio

from chain.agent.tree import AgentNode
from chain.concurrency.wakeup import Wakeup
from chain.errors import JournalError, ToolError, UserError
from chain.events import Notice
from chain.journal import records
from chain.journal.attachments import attachments_folder
from chain.journal.journal import Emit, Journal
from chain.lines.inbox import Inbox
from chain.session.runs import SessionRuns
from chain.session.state import State
from chain.text.phrases import duration
from chain.text.wording import pluralize, truncate
from chain.tools.jobs import JobOutput, JobState, Piece
from chain.tools.tool import JobEnd, JobRun, Jobs

MAX_JOBS = 8
"""The maximum number of concurrent jobs: enough for a server, a watcher and some builds."""

MAX_REPORTED = 2_000
"""The maximum number of characters of output in the line that reports a job's end.

The line contains the end of the output, where errors usually are. ``job_output`` returns earlier output.
"""

MAX_COMMAND = 500
"""The maximum number of characters of the command in the line that reports a job's end: enough to recognise it."""

SESSION_CLOSED = "ended with the session"
"""The reason that is given for a killed job, or for a returned line of a job, when the session closes."""

_TAIL_BYTES = 16 * MAX_REPORTED
"""The number of bytes to read for ``MAX_REPORTED`` characters, since colours and overwritten rows are removed."""


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as front ends show it. ``state`` is a phrase: how long the job has been running, or how it ended."""

    id: str
    state: str
    command: str
    is_running: bool


@dataclass(eq=False, slots=True)
class _RunningJob:
    """A job whose command is running.

    ``started_at`` is the time of the job's start on trio's clock. ``reason`` says why the job is being killed, and is
    empty if it is not being killed. ``done`` is set when the job's end is recorded.
    """

    started: records.JobStarted
    run: JobRun
    output: JobOutput
    started_at: float
    reason: str = ""
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    done: trio.Event = field(default_factory=trio.Event)


class SessionJobs(Jobs):
    """The background jobs of a session."""

    def __init__(self, journal: Journal, state: State, emit: Emit) -> None:
        self._journal = journal
        self._state = state
        self._emit = emit
        self._runs: SessionRuns | None = None
        self._running: dict[str, _RunningJob] = {}
        self._new: list[_RunningJob] = []
        """The jobs whose tasks have not started yet."""
        self._changed = Wakeup()
        self._ended = Wakeup()
        self._is_closed = False

    def connect(self, runs: SessionRuns) -> None:
        """Set the runs that deliver the lines of jobs. Must be called before a job starts."""
        self._runs = runs

    @property
    def running(self) -> tuple[str, ...]:
        """The ids of the running jobs, oldest first."""
        return tuple(self._running)

    @property
    def views(self) -> tuple[JobView, ...]:
        """All jobs of the session, running or ended, oldest first."""
        jobs = self._state.jobs.items()
        return tuple(JobView(id, state_of(job), job.started.command, job.ended is None) for id, job in jobs)

    # ------------------------------------------------------------------------------------------------ their tasks

    async def run(self) -> None:
        """Run the commands of started jobs, until ``close`` is called and all commands have ended."""
        async with trio.open_nursery() as nursery:
            while self._new or not self._is_closed:
                while self._new:
                    nursery.start_soon(self._execute, self._new.pop(0))
                if not self._is_closed:
                    await self._changed.wait()

    def close(self) -> None:
        """Refuse new jobs and kill the running jobs. ``wait_closed`` waits until the ends of the jobs are recorded."""
        self._is_closed = True
        for job in self._running.values():
            _kill(job, SESSION_CLOSED)
        self._changed.set()

    async def wait_closed(self) -> None:
        """Wait until no job is running. Then settle as ``returned`` the lines of jobs that no run will deliver."""
        for job in tuple(self._running.values()):
            await job.done.wait()
        if self._runs is not None:
            self._runs.return_job_lines(SESSION_CLOSED)

    async def _execute(self, job: _RunningJob) -> None:
        """Run the command of a job. Then record the job's end, and queue the line that reports the end."""
        end: JobEnd | None = None
        problem = ""
        try:
            with job.scope:
                end = await job.run(job.output.write)
        except ToolError as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001 - no command may end the session, whatever its tool raises
            problem = f"{type(error).__name__}: {error}"
        seconds = trio.current_time() - job.started_at
        for earlier in tuple(self._running.values()):
            if earlier is job:
                break
            # The ends of jobs that were killed together are shown in order.
            if job.reason and earlier.reason == job.reason:
                await earlier.done.wait()
        # No await from here on, so that the end is recorded and its line is in an inbox.
        started = job.started
        if end is None:
            end = JobEnd(None, "failed" if problem else job.reason, problem)
        del self._running[started.id]
        record = records.JobEnded(started.id, started.agent, end.outcome, end.exit_code, seconds, end.note)
        self._journal.record_if_possible(record)
        self._report(job, report_text(started, record, job.output.read(-_TAIL_BYTES, _TAIL_BYTES)))
        job.output.close()
        job.done.set()
        self._ended.set()

    def _report(self, job: _RunningJob, text: str) -> None:
        """Queue the line that reports a job's end. If the job wakes the session and no run is active, start a run."""
        assert self._runs is not None
        node = self._agent_at_work(job.started.agent)
        try:
            accepted = node.inbox.put_job(text, job.started.id, iteration=node.iteration)
        except JournalError as error:
            self._emit(Notice(message=f"The end of job {job.started.id} could not be recorded: {error}"))
            return
        # A killed job starts no run, since whoever killed it expects its end.
        accepted.wakes = job.started.wakes and not job.reason
        if accepted.wakes:
            self._runs.start_waiting()

    def _agent_at_work(self, name: str) -> AgentNode:
        """Return the agent of this name if it is at work, otherwise the nearest agent above it that is at work."""
        assert self._runs is not None
        main = self._runs.tree.main
        at_work = {node.name: node for node in main.all() if not node.is_completing}
        while name not in at_work and name in self._state.agents:
            name = self._state.agents[name].parent
        return at_work.get(name, main)

    async def wait_for_waking_job(self) -> bool:
        """Return ``False`` if no running job wakes the session. Otherwise wait until any job ends; return ``True``."""
        if not any(job.started.wakes for job in self._running.values()):
            return False
        await self._ended.wait()
        return True

    # --------------------------------------------------------------------------------------------- for the user

    def kill_job(self, id: str) -> None:
        """Kill a job. A line later reports the job's end. Raise ``UserError`` if no such job is running."""
        _kill(self._find(id), "killed by the user")

    def kill_all(self) -> str:
        """Kill all jobs. Return a sentence that names them, or an empty string if none is running."""
        for job in self._running.values():
            _kill(job, "killed by the user")
        running = f"{pluralize(len(self._running), 'background job')}: {', '.join(self._running)}"
        return f"Killing {running}." if self._running else ""

    def _find(self, id: str) -> _RunningJob:
        job = self._running.get(id.strip().upper())
        if job is None:
            if not self._running:
                raise UserError("no background job is running")
            raise UserError(f"no job {id.strip():.20} is running; running: {', '.join(self._running)}")
        return job

    # ---------------------------------------------------------------------------------------------- for the tools

    def start(self, agent: str, call_id: str, command: str, run: JobRun, *, wakes: bool) -> str:
        """Start a job that calls ``run``, and return the job's id.

        Raise ``ToolError`` if the session closes, too many jobs are running or the output cannot be stored. Raise
        ``JournalError`` if the start cannot be recorded.
        """
        if self._is_closed:
            raise ToolError("The session is being closed, so no job can start.")
        if len(self._running) >= MAX_JOBS:
            running = f"{pluralize(MAX_JOBS, 'background job')} are running ({', '.join(self._running)})"
            raise ToolError(f"{running}, the limit: end one with job_kill, or wait until one ends.")
        id = f"J{len(self._state.jobs) + 1}"
        try:
            output = JobOutput.create(self._path(id))
        except OSError as error:
            raise ToolError(f"The output of a job cannot be stored: {error.strerror}.") from None
        record = records.JobStarted(id, agent, call_id, command, wakes)
        try:
            self._journal.record(record)
        except JournalError:
            output.close()
            raise
        self._running[id] = job = _RunningJob(record, run, output, trio.current_time())
        self._new.append(job)
        self._changed.set()
        return id

    def output(self, id: str, offset: int, most: int) -> str:
        """Return the state of a job, and up to ``most`` bytes of the job's output from byte ``offset`` on.

        Raise ``ToolError`` if there is no such job.
        """
        id = id.strip().upper()
        job, running = self._state.jobs.get(id), self._running.get(id)
        if job is None:
            known = ", ".join(self._state.jobs)
            raise ToolError(f"There is no job {id:.20}; {f'there are {known}' if known else 'no job was started'}.")
        if running is not None:
            output: JobOutput | None = running.output
        else:
            output = open_stored_output(self._path(id))
        rows = [f"[{id}: {state_of(job)}]"]
        if output is None:
            return "\n".join([*rows, "[the output is no longer stored]"])
        piece, size = output.read(offset, most), output.size
        if running is None:
            output.close()
        if piece.begin > max(offset, 0):
            rows.append(f"[the output below begins at byte {piece.begin:,}]")
        rows += [piece.text.rstrip("\n")] if piece.data else []
        left = size - piece.end
        rows.append(
            f"[{left:,} bytes follow: after={piece.end}]" if left else f"[end of the output: after={piece.end}]"
        )
        return "\n".join(rows)

    async def kill(self, id: str, agent: str) -> str:
        """Kill a job on behalf of ``agent`` and wait for its end. Return a confirmation.

        Raise ``ToolError`` if no such job is running.
        """
        try:
            job = self._find(id)
        except UserError as error:
            raise ToolError(f"Nothing was killed: {error}.") from None
        _kill(job, f"killed by {agent}")
        await job.done.wait()
        return f"[job {job.started.id} killed]"

    def kill_jobs_of(self, agent: str) -> None:
        """Kill the running jobs of ``agent``, which has ended."""
        for job in self._running.values():
            if job.started.agent == agent:
                _kill(job, f"ended with {agent}")

    def _path(self, id: str) -> Path | None:
        return output_path(self._journal, id)


def _kill(job: _RunningJob, reason: str) -> None:
    job.reason = job.reason or reason
    job.scope.cancel()


def output_path(journal: Journal, id: str) -> Path | None:
    """Return the path of a job's output file; ``None`` if the session is not stored in a folder."""
    return None if journal.path is None else attachments_folder(journal.path) / f"{id}.out"


def open_stored_output(path: Path | None) -> JobOutput | None:
    """Open the output file of a job that has ended. Return ``None`` if the output is not stored."""
    return None if path is None else JobOutput.open(path)


def state_of(job: JobState) -> str:
    """Return a phrase for the state of a job: how long it has been running, or how it ended."""
    if job.ended is None:
        return f"running for {duration(time.time() - job.start_time, whole=True)}"
    return _outcome(job.ended)


def _outcome(ended: records.JobEnded) -> str:
    return ended.outcome if ended.seconds is None else f"{ended.outcome} after {duration(ended.seconds, whole=True)}"


def report_text(started: records.JobStarted, ended: records.JobEnded, output: Piece | None) -> str:
    """Return the text of the line that reports the end of a job. ``output`` is the last part of the job's output."""
    text = "" if output is None else output.text.rstrip()
    is_cut = output is not None and (output.begin > 0 or len(text) > MAX_REPORTED)
    rows = [f"[JOB {started.id}] {_outcome(ended)}", f"$ {truncate(started.command, MAX_COMMAND)}"]
    rows += [f"[the last {MAX_REPORTED:,} characters of the output; job_output returns more]"] if is_cut else []
    return "\n".join(filter(None, [*rows, text[-MAX_REPORTED:], ended.note]))


def record_lost_jobs(state: State, journal: Journal, inbox: Inbox) -> None:
    """Record missing ends of jobs, and queue lines about them. Raise ``JournalError`` if a record cannot be written."""
    for id, job in state.jobs.items():
        if job.ended is None:
            journal.record(records.JobEnded(id, job.started.agent, "ended with the program"))
        if not job.line_id and job.ended is not None:
            output = open_stored_output(output_path(journal, id))
            tail = None if output is None else output.read(-_TAIL_BYTES, _TAIL_BYTES)
            if output is not None:
                output.close()
            inbox.put_job(report_text(job.started, job.ended, tail), id)
