"""The end of a background job reaches the model once, or the user learns that it did not. A session ends its jobs."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
from support.agents import ObedientModel, task_of
from support.crashes import load_crashed, reopen
from support.disks import FullDisk
from support.gate import TWO_STEPS, Gate, finish_run, start_run
from support.sessions import Session, make_settings, open_session
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.errors import ToolError, UserError
from chain.session.jobs import MAX_JOBS
from chain.tools.jobs import JobOutput
from chain.tools.tool import JobEnd, JobRun, Tool, ToolContext, tool

STARTS_JOBS = """
rules:
  - {when: {tool: work}, text: Started.}
  - {when: {interruption: 'JOB'}, text: So it ended.}
  - {when: {user: 'start (?P<name>[a-z]+) waking'}, tools: [{name: work, input: {name: "${name}", wakes: true}}]}
  - {when: {user: 'start (?P<name>[a-z]+)'}, tools: [{name: work, input: {name: "${name}"}}]}
  - {text: The answer.}
"""
"""A model that starts the job that the query names. An end that starts a run is answered differently."""

STARTS_JOB_AND_WAITS = STARTS_JOBS.replace("text: Started.", "tools: [{name: wait, input: {}}]")
"""After the start of a job, the tool ``wait`` is called, which waits for its gate."""


@dataclass
class ControlledJobs:
    """The tool ``work``, which starts a job of a name. The job ends when the test calls ``end``.

    ``codes`` are exit codes by name. A negative code is a job that fails. ``killed`` are the names of cancelled jobs.
    """

    ends: dict[str, trio.Event] = field(default_factory=lambda: defaultdict(trio.Event))
    codes: dict[str, int] = field(default_factory=dict)
    killed: list[str] = field(default_factory=list)

    @property
    def tool(self) -> Tool:
        @tool
        async def work(ctx: ToolContext, name: str, wakes: bool = False) -> str:
            """Start a job."""

            async def run(on_output: object) -> JobEnd:
                assert callable(on_output)
                on_output(f"{name} begins\n".encode())
                try:
                    await self.ends[name].wait()
                except trio.Cancelled:
                    self.killed.append(name)
                    raise
                code = self.codes.get(name, 0)
                if code < 0:
                    raise ToolError("it cannot be started")
                on_output(f"{name} ends\n".encode())
                return JobEnd(code, f"exit code {code}")

            return f"[job {ctx.jobs.start(ctx.agent, ctx.call_id, f'run {name}', run, wakes=wakes)} started]"

        return work

    async def end(self, name: str) -> None:
        self.ends[name].set()
        await wait_all_tasks_blocked()


def job_that_ends(code: int, note: str = "") -> JobRun:
    """Return a job that ends immediately with this exit code."""

    async def run(on_output: object) -> JobEnd:
        return JobEnd(code, f"exit code {code}", note)

    return run


def job_line_states(session: Session) -> list[str]:
    """Return the state of the line of each job that has ended."""
    return [r.state for r in session.chain.lines.receipts if r.origin == "job"]


def second_request(session: Session) -> tuple[str, Sequence[str]]:
    """Return the last message of the second request, and the instructions that follow its messages."""
    request = session.model.requests[1]
    return request.messages[-1].text, request.tail


async def test_ends_of_jobs_wait_for_the_next_run() -> None:
    jobs = ControlledJobs()
    async with open_session(STARTS_JOBS, tools=[jobs.tool], interactive=True) as session:
        await session.run("start a")
        assert [result.text for result in session.of(events.ToolResult)] == ["[job J1 started]"]
        await jobs.end("a")
        assert not session.chain.is_running
        assert [e.kind for e in session.of(events.LineQueued)] == ["job"]
        await session.run("go on")
        assert session.sent().endswith("user: go on\nuser: [JOB J1] exit code 0 after 0 s\n$ run a\na begins\na ends")
        assert job_line_states(session) == ["delivered"]


async def test_a_job_that_wakes_starts_a_run() -> None:
    jobs = ControlledJobs()
    async with open_session(STARTS_JOBS, tools=[jobs.tool]) as session:
        await session.run("start a waking")
        await jobs.end("a")
        await session.chain.wait_idle()
        assert [e.result for e in session.of(events.Result)] == ["Started.", "So it ended."]
        (interruption,) = session.of(events.UserInterruption)
        assert (interruption.point, interruption.iteration) == ("A", 0)


async def test_jobs_killed_together_end_in_their_order() -> None:
    jobs = ControlledJobs()
    async with open_session(STARTS_JOBS, tools=[jobs.tool], interactive=True) as session:
        for name in "abcde":
            await session.run(f"start {name}")
        assert session.chain.jobs.kill_all() == "Killing 5 background jobs: J1, J2, J3, J4, J5."
        await wait_all_tasks_blocked()
        ids = [event.text.partition(" killed")[0] for event in session.of(events.LineQueued)]
        assert ids == ["[JOB J1]", "[JOB J2]", "[JOB J3]", "[JOB J4]", "[JOB J5]"]


async def test_a_killed_job_reports_its_own_time(autojump_clock: MockClock) -> None:
    @tool
    async def work(ctx: ToolContext, name: str, wakes: bool = False) -> str:
        """Start a job that needs seconds to end."""

        async def run(on_output: object) -> JobEnd:
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep({"slow": 9, "quick": 1}[name])

        return ctx.jobs.start(ctx.agent, ctx.call_id, name, run, wakes=wakes)

    async with open_session(STARTS_JOBS, tools=[work], interactive=True) as session:
        await session.run("start slow")
        await session.run("start quick")
        session.chain.jobs.kill_all()
        await trio.sleep(10)  # both have ended
        first_rows = [event.text.partition("\n")[0] for event in session.of(events.LineQueued)]
        assert first_rows == ["[JOB J1] killed by the user after 9 s", "[JOB J2] killed by the user after 1 s"]


async def test_a_killed_job_starts_no_run() -> None:
    jobs = ControlledJobs()
    async with open_session(STARTS_JOBS, tools=[jobs.tool], interactive=True) as session:
        await session.run("start a waking")
        session.chain.jobs.kill_job("j1")
        await wait_all_tasks_blocked()
        assert not session.chain.is_running
        [waiting] = session.chain.lines.waiting
        assert waiting.line.text == "[JOB J1] killed by the user after 0 s\n$ run a\na begins"


@pytest.mark.parametrize("line", ["use the other file", "how is it going?"], ids=["redirect", "question"])
async def test_the_handler_prompt_leaves_job_lines_unchanged(line: str) -> None:
    gate = Gate()
    handler = "messages: [{role: user, content: 'SAID: ${message}'}, {role: system, content: Answer it.}]"
    async with open_session(
        TWO_STEPS, tools=[gate.tool], settings=make_settings(handler=handler, inbox_size=1)
    ) as session:
        await start_run(session, gate)
        session.chain.jobs.start("main", "call", "make", job_that_ends(1, "[sandbox: network denied]"), wakes=False)
        await wait_all_tasks_blocked()
        assert session.chain.submit(line).what == "queued", "the line of a job does not fill the queue"
        await finish_run(session, gate)
        message, (first_instruction, *_) = second_request(session)
        assert message == f"[JOB J1] exit code 1 after 0 s\n$ make\n[sandbox: network denied]\n\nSAID: {line}"
        assert first_instruction == "Answer it."


async def test_no_handler_rule_matches_output_of_jobs() -> None:
    gate, settings = Gate(), make_settings(handler="rules: [{match: begins, action: stop}]")
    async with open_session(TWO_STEPS, tools=[gate.tool], settings=settings) as session:
        await start_run(session, gate)
        session.chain.jobs.start("main", "call", "begins @config.yaml", job_that_ends(0), wakes=False)
        await wait_all_tasks_blocked()
        await finish_run(session, gate)
        assert session.result.status == "done"
        message, instructions = second_request(session)
        assert message.endswith("$ begins @config.yaml")
        assert not instructions


async def test_an_interrupt_leaves_jobs_with_a_notice() -> None:
    jobs, gate = ControlledJobs(), Gate()
    async with open_session(STARTS_JOB_AND_WAITS, tools=[jobs.tool, gate.tool], interactive=True) as session:
        session.chain.submit("start a")
        await gate.started.wait()
        session.interrupt()
        await session.chain.wait_idle()
        *_, notice = session.of(events.Notice)
        assert notice.message == "1 background job is still running: /jobs shows them, /kill all ends them."
        assert session.chain.jobs.running == ("J1",)


async def test_a_stop_between_runs_kills_jobs() -> None:
    jobs = ControlledJobs()
    async with open_session(STARTS_JOBS, tools=[jobs.tool], interactive=True) as session:
        await session.run("start a")
        answer = session.chain.submit("stop")
        assert (answer.what, answer.message) == ("nothing", "Killing 1 background job: J1.")
        await wait_all_tasks_blocked()
        assert jobs.killed == ["a"]
        await session.run("go on")
        assert "[JOB J1] killed by the user after 0 s" in session.sent()


@pytest.mark.parametrize("ending", ["interrupt", "stop"])
async def test_ends_of_jobs_survive_a_cancelled_run(ending: str) -> None:
    jobs, gate = ControlledJobs(), Gate()
    async with open_session(STARTS_JOB_AND_WAITS, tools=[jobs.tool, gate.tool]) as session:
        session.chain.submit("start a waking")
        await gate.started.wait()
        await jobs.end("a")
        other_line = session.chain.submit("and this").id
        if ending == "stop":
            session.chain.submit("stop")
            gate.open.set()
        else:
            session.interrupt()
        await session.chain.wait_idle()
        assert [a.line.kind for a in session.chain.lines.waiting] == ["job"], "the line of the job starts no run"
        assert session.state(other_line) == "returned"
        await session.run("go on")
        assert "[JOB J1]" in session.sent()


async def test_a_ninth_job_is_refused() -> None:
    jobs = ControlledJobs()
    async with open_session(STARTS_JOBS, tools=[jobs.tool], interactive=True) as session:
        assert len("abcdefgh") == MAX_JOBS
        for name in "abcdefghi":
            await session.run(f"start {name}")
        *_, ninth = session.of(events.ToolResult)
        assert ninth.is_error
        assert ninth.text.startswith("8 background jobs are running (J1, J2, ")
        await jobs.end("c")
        await session.run("go on")
        await session.run("start z")
        *_, after_an_end = session.of(events.ToolResult)
        assert after_an_end.text == "[job J9 started]"


async def test_a_failed_job_is_reported() -> None:
    jobs = ControlledJobs(codes={"a": -1})
    async with open_session(STARTS_JOBS, tools=[jobs.tool], interactive=True) as session:
        await session.run("start a")
        await jobs.end("a")
        await session.run("go on")
        assert "[JOB J1] failed after 0 s\n$ run a\na begins\nit cannot be started" in session.sent()


# ------------------------------------------------------------------------------------------------------- child agents


async def test_the_jobs_of_a_child_end_with_it() -> None:
    jobs, gate = ControlledJobs(), Gate()
    task = task_of([["agent", {"task": task_of([["work", {"name": "a"}], ["work", {"name": "b"}], ["wait", {}]])}]])
    async with open_session(
        ObedientModel(), tools=[jobs.tool, gate.tool], settings=make_settings(agents=True)
    ) as session:
        session.chain.submit(task)
        await gate.started.wait()
        await jobs.end("b")
        gate.open.set()
        await session.chain.wait_idle()
        assert jobs.killed == ["a"]
        await wait_all_tasks_blocked()
        await session.run("go on")
        assert "[JOB J1] ended with agent-1 after 0 s" in session.sent()
        job_receipts = [receipt for receipt in session.chain.lines.receipts if receipt.origin == "job"]
        recipients = {receipt.text.partition("]")[0]: (receipt.state, receipt.agent) for receipt in job_receipts}
        assert recipients == {"[JOB J1": ("delivered", "main"), "[JOB J2": ("delivered", "agent-1")}


# ------------------------------------------------------------------------------------------------- the tools for them


async def test_job_output_is_read_from_an_offset() -> None:
    async with open_session(STARTS_JOBS, tools=[ControlledJobs().tool], interactive=True) as session:
        await session.run("start a")
        jobs = session.chain.jobs
        assert jobs.output("j1", 0, 1_000) == "[J1: running for 0 s]\na begins\n[end of the output: after=9]"
        assert jobs.output("J1", 2, 1_000) == "[J1: running for 0 s]\nbegins\n[end of the output: after=9]"
        with pytest.raises(ToolError, match="There is no job J2; there are J1"):
            jobs.output("J2", 0, 1_000)


async def test_a_job_is_killed_once() -> None:
    async with open_session(STARTS_JOBS, tools=[ControlledJobs().tool], interactive=True) as session:
        await session.run("start a")
        jobs = session.chain.jobs
        assert await jobs.kill("J1", "main") == "[job J1 killed]"
        with pytest.raises(ToolError, match="no background job is running"):
            await jobs.kill("J1", "main")
        with pytest.raises(UserError, match="no background job is running"):
            jobs.kill_job("J1")
        await session.run("go on")
        assert "[JOB J1] killed by main after 0 s" in session.sent()


@pytest.mark.parametrize("kind", ["fifo", "folder", "link", "missing"])
def test_output_is_read_from_regular_files_only(tmp_path: Path, kind: str) -> None:
    (tmp_path / "other").write_text("other")
    create = {"fifo": os.mkfifo, "folder": os.mkdir, "link": lambda path: os.symlink(tmp_path / "other", path)}
    if kind != "missing":
        create[kind](tmp_path / "J1.out")
    assert JobOutput.open(tmp_path / "J1.out") is None


def test_the_middle_of_much_output_is_dropped(tmp_path: Path) -> None:
    most, head_size, tail_size, path = 1_000, 100, 200, tmp_path / "J1.out"
    output = JobOutput(os.open(path, os.O_RDWR | os.O_CREAT), most=most, head=head_size, tail=tail_size)
    written = b""
    for n in range(2_000):
        row = f"{n:07}\n".encode()
        written += row
        output.write(row)
        assert path.stat().st_size <= most
        assert output.size == len(written)
    head, _, rest = path.read_bytes().partition(b"\n[")
    dropped, _, tail = rest.partition(b" bytes left out]\n")
    assert head == written[:head_size]
    assert written.endswith(tail)
    assert len(tail) >= tail_size
    assert int(dropped.replace(b",", b"")) == len(written) - head_size - len(tail)
    end, around_head, in_gap, in_tail = len(written), range(0, 2 * head_size, 7), 5_000, len(written) - 150
    from_end, before_start = -150, -100_000
    for offset in (*around_head, in_gap, in_tail, end, from_end, before_start):
        piece = output.read(offset, 50)
        assert piece.data == written[piece.begin : piece.end]
        assert bool(piece.data) == (offset != end)
    start_of_tail = len(written) - len(tail)
    assert output.read(head_size, 50).begin == start_of_tail, "a read in the gap continues with the tail"
    output.close()


# --------------------------------------------------------------------------------------------- the end of the session


async def test_closing_reports_ends_of_jobs_as_returned() -> None:
    jobs = ControlledJobs()
    async with open_session(STARTS_JOBS, tools=[jobs.tool]) as session:
        await session.run("start a")
        await session.run("start b")
        await jobs.end("a")
        await session.chain.wind_down()
        settled = session.chain.lines.settled()
        assert [(r.state, r.reason, r.text.split("\n")[0]) for r in settled.receipts] == [
            ("returned", "ended with the session", "[JOB J1] exit code 0 after 0 s"),
            ("returned", "ended with the session", "[JOB J2] ended with the session after 0 s"),
        ]
        assert session.chain.runs.exit_code() == 0, "ends of jobs that were returned are no failure"
    assert jobs.killed == ["b"]


async def test_job_ends_at_a_terminal_wait_for_resuming() -> None:
    jobs = ControlledJobs()
    async with open_session(STARTS_JOBS, tools=[jobs.tool], interactive=True) as session:
        await session.run("start a")
        session.chain.leave()
        await session.chain.wait_idle()
    assert jobs.killed == ["a"]
    async with reopen(session.file.data) as session:
        await session.run("go on")
        assert "user: [JOB J1] ended with the session after 0 s" in session.sent()
        assert job_line_states(session) == ["delivered"]


NO_END, EXITED = "ended with the program", "exit code 0 after 0 s"


@pytest.mark.parametrize(
    ("line", "has_end", "outcome"),
    [("", False, NO_END), ("", True, EXITED), ("stop", False, NO_END)],
    ids=["while the job runs", "between end and line of the job", "after a stop"],
)
async def test_a_killed_program_reports_its_jobs_when_resumed(line: str, has_end: bool, outcome: str) -> None:
    jobs, gate = ControlledJobs(), Gate()
    async with open_session(STARTS_JOB_AND_WAITS, tools=[jobs.tool, gate.tool], interactive=True) as session:
        session.chain.submit("start a")
        await gate.started.wait()
        if line:
            session.chain.submit(line)
        if has_end:
            await jobs.end("a")
        rows = session.file.data.splitlines(keepends=True)
        if has_end:
            end_of_job = next(n for n, row in enumerate(rows) if b'{"type":"job_ended"' in row)
            del rows[end_of_job + 1 :]
        gate.open.set()
    async with reopen(b"".join(rows), interactive=True) as session:
        assert session.chain.jobs.running == ()
        await session.run("go on")
        assert f"user: [JOB J1] {outcome}\n$ run a" in session.sent()
        assert job_line_states(session) == ["delivered"]
    _, loaded = load_crashed(session.file.data)
    assert loaded.state.jobs["J1"].ended is not None


async def test_an_end_on_a_full_disk_is_reported() -> None:
    jobs, disk = ControlledJobs(), FullDisk()
    async with open_session(STARTS_JOBS, tools=[jobs.tool], interactive=True, file=disk) as session:
        await session.run("start a")
        disk.full = True
        await jobs.end("a")
        *_, notice = session.of(events.Notice)
        assert notice.message.startswith("The end of job J1 could not be recorded: ")
        assert session.chain.jobs.running == ()
        disk.full = False
        await session.run("go on")
        assert "JOB" not in session.sent()
    async with reopen(disk.data) as session:
        await session.run("go on")
        assert "user: [JOB J1] ended with the program\n$ run a" in session.sent()
