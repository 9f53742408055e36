"""Background jobs: each end reaches the model once, or the user learns that it did not. No job outlives its session."""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
from support import FullDisk, Session, open_session, settings
from support.agents import Obedient, work
from support.crashes import load_crashed, reopened
from support.gate import TWO_STEPS, Gate, begin, finish
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.errors import ToolError, UserError
from chain.session.jobs import MAX_JOBS
from chain.tools.jobs import JobOutput
from chain.tools.tool import JobEnd, JobRun, Tool, ToolContext, tool

STARTS = """
rules:
  - {when: {tool: work}, text: Started.}
  - {when: {interruption: 'JOB'}, text: So it ended.}
  - {when: {user: 'start (?P<name>[a-z]+) waking'}, tools: [{name: work, input: {name: "${name}", wakes: true}}]}
  - {when: {user: 'start (?P<name>[a-z]+)'}, tools: [{name: work, input: {name: "${name}"}}]}
  - {text: The answer.}
"""


WAITS = STARTS.replace("text: Started.", "tools: [{name: wait, input: {}}]")
"""After the start of a job, a tool waits for its gate."""


@dataclass
class Works:
    """The tool ``work`` that starts jobs. Each job ends when the test calls ``end``; a negative code is a failure."""

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


def ended(code: int, note: str = "") -> JobRun:
    """A job that ends at once."""

    async def run(on_output: object) -> JobEnd:
        return JobEnd(code, f"exit code {code}", note)

    return run


def job_states(session: Session) -> list[str]:
    return [r.state for r in session.chain.lines.receipts if r.origin == "job"]


async def test_an_end_waits_for_the_next_run() -> None:
    works = Works()
    async with open_session(STARTS, tools=[works.tool], interactive=True) as session:
        await session.run("start a")
        assert session.of(events.ToolResult)[0].text == "[job J1 started]"
        await works.end("a")
        assert not session.chain.is_running
        assert [e.kind for e in session.of(events.LineQueued)] == ["job"]
        await session.run("go on")
        assert session.sent().endswith("user: go on\nuser: [JOB J1] exit code 0 after 0 s\n$ run a\na begins\na ends")
        assert job_states(session) == ["delivered"]


async def test_a_job_that_wakes_starts_a_run() -> None:
    works = Works()
    async with open_session(STARTS, tools=[works.tool]) as session:
        await session.run("start a waking")
        await works.end("a")
        await session.chain.wait_idle()
        assert [e.result for e in session.of(events.Result)] == ["Started.", "So it ended."]
        (interruption,) = session.of(events.UserInterruption)
        assert (interruption.point, interruption.iteration) == ("A", 0)


async def test_jobs_killed_together_end_in_their_order() -> None:
    works = Works()
    async with open_session(STARTS, tools=[works.tool], interactive=True) as session:
        for name in "abcde":
            await session.run(f"start {name}")
        assert session.chain.jobs.kill_all() == "Killing 5 background jobs: J1, J2, J3, J4, J5."
        await wait_all_tasks_blocked()
        assert [e.text[:8] for e in session.of(events.LineQueued)] == [f"[JOB J{n}]" for n in range(1, 6)]


async def test_a_killed_jobs_time_is_its_own(autojump_clock: MockClock) -> None:
    @tool
    async def work(ctx: ToolContext, name: str, wakes: bool = False) -> str:
        """Start a job that needs seconds to end."""

        async def run(on_output: object) -> JobEnd:
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(9 if name == "slow" else 1)

        return ctx.jobs.start(ctx.agent, ctx.call_id, name, run, wakes=wakes)

    async with open_session(STARTS, tools=[work], interactive=True) as session:
        await session.run("start slow")
        await session.run("start quick")
        session.chain.jobs.kill_all()
        await trio.sleep(10)
        ends = [event.text.split("\n")[0] for event in session.of(events.LineQueued)]
        assert ends == ["[JOB J1] killed by the user after 9 s", "[JOB J2] killed by the user after 1 s"]


async def test_a_killed_job_starts_no_run() -> None:
    works = Works()
    async with open_session(STARTS, tools=[works.tool], interactive=True) as session:
        await session.run("start a waking")
        session.chain.jobs.kill_job("j1")
        await wait_all_tasks_blocked()
        assert not session.chain.is_running
        assert [a.line.text for a in session.chain.lines.waiting] == [
            "[JOB J1] killed by the user after 0 s\n$ run a\na begins"
        ]


@pytest.mark.parametrize("line", ["use the other file", "how is it going?"])
async def test_a_job_line_joins_others_without_a_prompt(line: str) -> None:
    gate = Gate()
    handler = "messages: [{role: user, content: 'SAID: ${message}'}, {role: system, content: Answer it.}]"
    async with open_session(TWO_STEPS, tools=[gate.tool], use=settings(handler=handler, inbox_size=1)) as session:
        await begin(session, gate)
        session.chain.jobs.start("main", "call", "make", ended(1, "[sandbox: network denied]"), wakes=False)
        await wait_all_tasks_blocked()
        assert session.chain.submit(line).what == "queued", "the line of a job takes no room"
        await finish(session, gate)
        request = session.model.requests[1]
        assert request.messages[-1].text == (
            f"[JOB J1] exit code 1 after 0 s\n$ make\n[sandbox: network denied]\n\nSAID: {line}"
        )
        assert request.tail[0] == "Answer it."


async def test_no_rule_of_the_handler_matches_output() -> None:
    gate, use = Gate(), settings(handler="rules: [{match: begins, action: stop}]")
    async with open_session(TWO_STEPS, tools=[gate.tool], use=use) as session:
        await begin(session, gate)
        session.chain.jobs.start("main", "call", "begins @config.yaml", ended(0), wakes=False)
        await wait_all_tasks_blocked()
        await finish(session, gate)
        assert session.result.status == "done"
        assert session.model.requests[1].tail == ()
        assert session.model.requests[1].messages[-1].text.endswith("$ begins @config.yaml")


async def test_an_interrupt_leaves_jobs_and_says_so() -> None:
    works, gate = Works(), Gate()
    async with open_session(WAITS, tools=[works.tool, gate.tool], interactive=True) as session:
        session.chain.submit("start a")
        await gate.started.wait()
        session.interrupt()
        await session.chain.wait_idle()
        says = "1 background job is still running: /jobs shows them, /kill all ends them."
        assert session.of(events.Notice)[-1].message == says
        assert session.chain.jobs.running == ("J1",)
        # While nothing but jobs is running, a stop ends them.
        answer = session.chain.submit("stop")
        assert (answer.what, answer.message) == ("nothing", "Killing 1 background job: J1.")
        await wait_all_tasks_blocked()
        assert works.killed == ["a"]
        await session.run("go on")
        assert "[JOB J1] killed by the user after 0 s" in session.sent()


@pytest.mark.parametrize("how", ["interrupt", "stop"])
async def test_a_waiting_end_survives_its_run(how: str) -> None:
    works, gate = Works(), Gate()
    async with open_session(WAITS, tools=[works.tool, gate.tool]) as session:
        session.chain.submit("start a waking")
        await gate.started.wait()
        await works.end("a")
        session.chain.submit("and this")
        if how == "stop":
            session.chain.submit("stop")
            gate.open.set()
        else:
            session.interrupt()
        await session.chain.wait_idle()
        assert [a.line.kind for a in session.chain.lines.waiting] == ["job"], "and starts no run by itself"
        assert session.state("L3") == "returned"
        await session.run("go on")
        assert "[JOB J1]" in session.sent()


async def test_a_ninth_job_is_refused() -> None:
    works = Works()
    async with open_session(STARTS, tools=[works.tool], interactive=True) as session:
        for n in range(MAX_JOBS + 1):
            await session.run(f"start {'abcdefghi'[n]}")
        last = session.of(events.ToolResult)[-1]
        assert last.is_error
        assert last.text.startswith("8 background jobs are running (J1, J2, ")
        await works.end("c")
        await session.run("go on")
        await session.run("start z")
        assert session.of(events.ToolResult)[-1].text == "[job J9 started]"


async def test_a_command_that_cannot_start_is_reported() -> None:
    works = Works(codes={"a": -1})
    async with open_session(STARTS, tools=[works.tool], interactive=True) as session:
        await session.run("start a")
        await works.end("a")
        await session.run("go on")
        assert "[JOB J1] failed after 0 s\n$ run a\na begins\nit cannot be started" in session.sent()


# ------------------------------------------------------------------------------------------------------- child agents


async def test_the_jobs_of_a_child_end_with_it() -> None:
    works, gate = Works(), Gate()
    task = work([["agent", {"task": work([["work", {"name": "a"}], ["work", {"name": "b"}], ["wait", {}]])}]])
    async with open_session(Obedient(), tools=[works.tool, gate.tool], use=settings(agents=True)) as session:
        session.chain.submit(task)
        await gate.started.wait()
        await works.end("b")
        gate.open.set()
        await session.chain.wait_idle()
        assert works.killed == ["a"]
        await wait_all_tasks_blocked()
        await session.run("go on")
        assert "[JOB J1] ended with agent-1 after 0 s" in session.sent()
        lines = [(r.text.split("]")[0], r.state, r.agent) for r in session.chain.lines.receipts if r.origin == "job"]
        assert sorted(lines) == [("[JOB J1", "delivered", "main"), ("[JOB J2", "delivered", "agent-1")]


# ------------------------------------------------------------------------------------------------- the tools for them


async def test_output_and_kill() -> None:
    works = Works()
    async with open_session(STARTS, tools=[works.tool], interactive=True) as session:
        await session.run("start a")
        jobs = session.chain.jobs
        assert jobs.output("j1", 0, 1_000) == "[J1: running for 0 s]\na begins\n[end of the output: after=9]"
        assert jobs.output("J1", 2, 1_000) == "[J1: running for 0 s]\nbegins\n[end of the output: after=9]"
        with pytest.raises(ToolError, match="There is no job J2; there are J1"):
            jobs.output("J2", 0, 1_000)
        assert await jobs.kill("J1", "main") == "[job J1 killed]"
        with pytest.raises(ToolError, match="no background job is running"):
            await jobs.kill("J1", "main")
        with pytest.raises(UserError, match="no background job is running"):
            jobs.kill_job("J1")
        await session.run("go on")
        assert "[JOB J1] killed by main after 0 s" in session.sent()


@pytest.mark.parametrize("kind", ["fifo", "folder", "link", "nothing"])
def test_output_is_read_from_regular_files_only(tmp_path: Path, kind: str) -> None:
    (tmp_path / "other").write_text("other")
    make = {"fifo": os.mkfifo, "folder": os.mkdir, "link": lambda path: os.symlink(tmp_path / "other", path)}
    make.get(kind, str)(tmp_path / "J1.out")
    assert JobOutput.open(tmp_path / "J1.out") is None


def test_the_middle_of_much_output_is_dropped(tmp_path: Path) -> None:
    output = JobOutput(os.open(tmp_path / "J1.out", os.O_RDWR | os.O_CREAT), most=1_000, head=100, tail=200)
    written = b""
    for n in range(2_000):
        row = f"{n:07}\n".encode()
        written += row
        output.write(row)
        assert (tmp_path / "J1.out").stat().st_size <= 1_000
        assert output.size == len(written)
    content = (tmp_path / "J1.out").read_bytes()
    head, _, rest = content.partition(b"\n[")
    gap, _, tail = rest.partition(b" bytes left out]\n")
    assert head == written[:100]
    assert written.endswith(tail)
    assert len(tail) >= 200
    assert int(gap.replace(b",", b"")) == len(written) - 100 - len(tail)
    for after in (*range(0, 200, 7), 5_000, len(written) - 150, len(written), -150, -100_000):
        piece = output.read(after, 50)
        assert piece.data == written[piece.begin : piece.end]
        assert bool(piece.data) == (after != len(written))
    assert output.read(100, 50).begin == len(written) - len(tail)
    output.close()


# --------------------------------------------------------------------------------------------- the end of the session


async def test_undelivered_ends_are_listed_at_the_end() -> None:
    works = Works()
    async with open_session(STARTS, tools=[works.tool]) as session:
        await session.run("start a")
        await session.run("start b")
        await works.end("a")
        await session.chain.wind_down()
        settled = session.chain.lines.settled()
        assert [(r.state, r.reason, r.text.split("\n")[0]) for r in settled.receipts] == [
            ("returned", "ended with the session", "[JOB J1] exit code 0 after 0 s"),
            ("returned", "ended with the session", "[JOB J2] ended with the session after 0 s"),
        ]
        assert session.chain.runs.exit_code() == 0
    assert works.killed == ["b"]


async def test_at_a_terminal_an_end_waits_for_resuming() -> None:
    works = Works()
    async with open_session(STARTS, tools=[works.tool], interactive=True) as session:
        await session.run("start a")
        session.chain.leave()
        await session.chain.wait_idle()
    assert works.killed == ["a"]
    async with reopened(session.file.data) as session:
        await session.run("go on")
        assert "user: [JOB J1] ended with the session after 0 s" in session.sent()
        assert job_states(session) == ["delivered"]


@pytest.mark.parametrize("how", ["while it runs", "before its line", "stopped"])
async def test_a_killed_program_reports_its_jobs_when_resumed(how: str) -> None:
    works, gate = Works(), Gate()
    async with open_session(WAITS, tools=[works.tool, gate.tool], interactive=True) as session:
        session.chain.submit("start a")
        await gate.started.wait()
        if how == "stopped":
            session.chain.submit("stop")
        if how == "before its line":
            await works.end("a")
        data = session.file.data
        if how == "before its line":
            begins, ends, rest = data.partition(b'{"type":"job_ended"')
            data = begins + ends + rest.split(b"\n")[0] + b"\n"
        gate.open.set()
    async with reopened(data, interactive=True) as session:
        assert session.chain.jobs.running == ()
        await session.run("go on")
        outcome = "exit code 0 after 0 s" if how == "before its line" else "ended with the program"
        assert f"user: [JOB J1] {outcome}\n$ run a" in session.sent()
        assert job_states(session) == ["delivered"]
    assert load_crashed(session.file.data)[1].state.jobs["J1"].ended is not None


async def test_an_end_on_a_full_disk_is_reported() -> None:
    works, disk = Works(), FullDisk()
    async with open_session(STARTS, tools=[works.tool], interactive=True, file=disk) as session:
        await session.run("start a")
        disk.full = True
        await works.end("a")
        assert session.of(events.Notice)[-1].message.startswith("The end of job J1 could not be recorded: ")
        assert session.chain.jobs.running == ()
        disk.full = False
        await session.run("go on")
        assert "JOB" not in session.sent()
    async with reopened(disk.data) as session:
        await session.run("go on")
        assert "user: [JOB J1] ended with the program\n$ run a" in session.sent()
